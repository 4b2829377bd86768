"""One loop over all blocks of keys, every block masked; columns padded to a power of two."""

import triton
import triton.language as tl


@triton.jit
def _flash_forward_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr,
    heads, group, n_q, n_k, head_size, scale,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n_q, BLOCK_M)
    block = tl.program_id(0) % blocks
    batch = (tl.program_id(0) // blocks // heads).to(tl.int64)
    head = (tl.program_id(0) // blocks % heads).to(tl.int64)
    kv_head = head // group
    offs_m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < head_size
    mask_q = (offs_m < n_q)[:, None] & mask_d[None, :]
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    q = tl.load(q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd, mask=mask_q, other=0.0)
    keys = n_k
    if LENGTHS:
        keys = tl.load(lengths_ptr + batch)
    end = keys
    if CAUSAL:
        end = tl.minimum(end, (block + 1) * BLOCK_M + n_k - n_q)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_k = (offs_n < keys)[:, None] & mask_d[None, :]
        k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd, mask=mask_k, other=0.0)
        v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :] * stride_vd, mask=mask_k, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        see = offs_n[None, :] < keys
        if CAUSAL:
            see = see & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        s = tl.where(see, s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        shift = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp(s - shift[:, None])
        factor = tl.exp(m - shift)
        l = l * factor + tl.sum(p, axis=1)
        acc = acc * factor[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = new
    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    out_ptr += batch * stride_ob + head * stride_oh
    place = offs_m[:, None] * stride_om + offs_d[None, :] * stride_od
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=mask_q)
    tl.store(lse_ptr + (batch * heads + head) * n_q + offs_m, m + tl.log(l), mask=offs_m < n_q)


def flash_forward(q, k, v, out, lse, causal, scale, k_lengths):
    (batch, heads, n_q, head_size), (kv_heads, n_k) = q.shape, k.shape[1:3]
    _flash_forward_kernel[(triton.cdiv(n_q, 32) * batch * heads,)](
        out, lse, q, k, v, k_lengths,
        heads, heads // kv_heads, n_q, n_k, head_size, scale,
        *out.stride(), *q.stride(), *k.stride(), *v.stride(),
        CAUSAL=causal, LENGTHS=k_lengths is not None,
        BLOCK_M=32, BLOCK_N=32, BLOCK_D=triton.next_power_of_2(head_size),
    )
