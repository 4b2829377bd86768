"""One kernel leaves a state for each part of the keys, a second one merges them, as is done for few queries."""

import torch
import triton
import triton.language as tl


@triton.jit
def _part_kernel(
    acc_ptr, m_ptr, l_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, heads, group, n_q, n_k, head_size, scale, width,
    stride_qb, stride_qh, stride_qm, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n_q, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    offs_m = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    offs_d = tl.arange(0, BLOCK_D)
    here = (offs_m < n_q)[:, None] & (offs_d < head_size)[None, :]
    batch, head = row // heads, row % heads
    keys = n_k
    if lengths_ptr is not None:
        keys = tl.load(lengths_ptr + batch)
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // group * stride_kh
    v_ptr += batch * stride_vb + head // group * stride_vh
    q = tl.load(q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd, mask=here, other=0.0)
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    first = tl.program_id(1) * width
    for start in range(first, tl.minimum(first + width, n_k), BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        there = (offs_n < keys)[:, None] & (offs_d < head_size)[None, :]
        k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd, mask=there, other=0.0)
        v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :] * stride_vd, mask=there, other=0.0)
        see = offs_n[None, :] < tl.minimum(keys, first + width)
        if CAUSAL:
            see &= offs_m[:, None] + n_k - n_q >= offs_n[None, :]
        s = tl.where(see, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.where(see, tl.exp(s - new[:, None]), 0.0)
        factor = tl.where(m == -float("inf"), 0.0, tl.exp(m - new))
        l = l * factor + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None], input_precision="ieee")
        m = new
    place = (row * tl.num_programs(1) + tl.program_id(1)) * n_q + offs_m
    tl.store(m_ptr + place, m, mask=offs_m < n_q)
    tl.store(l_ptr + place, l, mask=offs_m < n_q)
    tl.store(acc_ptr + place[:, None] * head_size + offs_d[None, :], acc, mask=here)


@triton.jit
def _merge_kernel(
    out_ptr, lse_ptr, acc_ptr, m_ptr, l_ptr, heads, n_q, head_size, parts,
    stride_ob, stride_oh, stride_om, stride_od, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n_q, BLOCK)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    offs_m = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    offs_d = tl.arange(0, BLOCK_D)
    here = (offs_m < n_q)[:, None] & (offs_d < head_size)[None, :]
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    for part in range(parts):
        place = (row * parts + part) * n_q + offs_m
        top = tl.maximum(top, tl.load(m_ptr + place, mask=offs_m < n_q, other=-float("inf")))
    safe = tl.where(top == -float("inf"), 0.0, top)
    l = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for part in range(parts):
        place = (row * parts + part) * n_q + offs_m
        factor = tl.exp(tl.load(m_ptr + place, mask=offs_m < n_q, other=-float("inf")) - safe)
        l += factor * tl.load(l_ptr + place, mask=offs_m < n_q, other=0.0)
        one = tl.load(acc_ptr + place[:, None] * head_size + offs_d[None, :], mask=here, other=0.0)
        acc += factor[:, None] * one
    o = acc / tl.where(l > 0, l, 1.0)[:, None]
    out_ptr += row // heads * stride_ob + row % heads * stride_oh
    place = offs_m[:, None] * stride_om + offs_d[None, :] * stride_od
    tl.store(out_ptr + place, o.to(out_ptr.dtype.element_ty), mask=here)
    tl.store(lse_ptr + row * n_q + offs_m, safe + tl.log(l), mask=offs_m < n_q)


def flash_forward(q, k, v, out, lse, causal, scale, k_lengths):
    (batch, heads, n_q, head_size), (kv_heads, n_k) = q.shape, k.shape[1:3]
    parts = 2 if n_k < 300 else 3
    width = triton.cdiv(n_k, parts)
    m = torch.empty(batch * heads, parts, n_q, device=q.device)
    l = torch.empty_like(m)
    acc = torch.empty(batch * heads, parts, n_q, head_size, device=q.device)
    rows = triton.cdiv(n_q, 32) * batch * heads
    columns = triton.next_power_of_2(head_size)
    _part_kernel[(rows, parts)](
        acc, m, l, q, k, v, k_lengths, heads, heads // kv_heads, n_q, n_k, head_size, scale, width,
        *q.stride(), *k.stride(), *v.stride(), CAUSAL=causal, BLOCK=32, BLOCK_D=columns,
    )
    _merge_kernel[(rows,)](
        out, lse, acc, m, l, heads, n_q, head_size, parts, *out.stride(), BLOCK=32, BLOCK_D=columns
    )
