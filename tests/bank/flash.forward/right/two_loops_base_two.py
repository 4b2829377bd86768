"""Powers of two; blocks that all queries see whole are walked without a mask; 72 columns are 64 and 16."""

import triton
import triton.language as tl


@triton.jit
def _rows(ptr, offs, n, stride_row, stride_column, head_size, FIRST: tl.constexpr, COLUMNS: tl.constexpr):
    columns = FIRST + tl.arange(0, COLUMNS)
    mask = (offs < n)[:, None] & (columns < head_size)[None, :]
    return tl.load(ptr + offs[:, None] * stride_row + columns[None, :] * stride_column, mask=mask, other=0.0)


@triton.jit
def _walk(
    acc, rest, m, l, q, q_rest, k_ptr, v_ptr, first, end, offs_m, diagonal, keys, head_size, scale,
    stride_kn, stride_kd, stride_vn, stride_vd,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
):
    for start in range(first, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        k = _rows(k_ptr, offs_n, keys, stride_kn, stride_kd, head_size, 0, MAIN)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if REST:
            k_rest = _rows(k_ptr, offs_n, keys, stride_kn, stride_kd, head_size, MAIN, REST)
            s = tl.dot(q_rest, tl.trans(k_rest), s, input_precision="ieee")
        s *= scale
        if MASKED:
            see = offs_n[None, :] < keys
            if CAUSAL:
                see = see & (offs_n[None, :] <= offs_m[:, None] + diagonal)
            s = tl.where(see, s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        safe = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp2(s - safe[:, None])
        factor = tl.exp2(m - safe)
        l = l * factor + tl.sum(p, axis=1)
        m = new
        v = _rows(v_ptr, offs_n, keys, stride_vn, stride_vd, head_size, 0, MAIN)
        acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None], input_precision="ieee")
        if REST:
            v_rest = _rows(v_ptr, offs_n, keys, stride_vn, stride_vd, head_size, MAIN, REST)
            rest = tl.dot(p.to(v.dtype), v_rest, rest * factor[:, None], input_precision="ieee")
    return acc, rest, m, l


@triton.jit
def _flash_forward_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr, heads, group, n_q, n_k, head_size, scale,
    stride_ob, stride_oh, stride_om, stride_od, stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd, stride_vb, stride_vh, stride_vn, stride_vd,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
):
    LN_2: tl.constexpr = 0.6931471805599453
    row = tl.program_id(0)  # of (batch, head)
    first_m = tl.program_id(1) * BLOCK_M
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    offs_m = first_m + tl.arange(0, BLOCK_M)
    diagonal = n_k - n_q
    keys = n_k
    if lengths_ptr is not None:
        keys = tl.load(lengths_ptr + batch)
    end, whole = keys, keys
    if CAUSAL:
        whole = tl.minimum(keys, tl.maximum(first_m + diagonal + 1, 0))
        end = tl.minimum(keys, tl.maximum(first_m + BLOCK_M + diagonal, 0))
    whole = whole // BLOCK_N * BLOCK_N
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // group * stride_kh
    v_ptr += batch * stride_vb + head // group * stride_vh
    q = _rows(q_ptr, offs_m, n_q, stride_qm, stride_qd, head_size, 0, MAIN)
    acc = tl.zeros((BLOCK_M, MAIN), tl.float32)
    q_rest, rest = q, acc
    if REST:
        q_rest = _rows(q_ptr, offs_m, n_q, stride_qm, stride_qd, head_size, MAIN, REST)
        rest = tl.zeros((BLOCK_M, REST), tl.float32)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc, rest, m, l = _walk(
        acc, rest, m, l, q, q_rest, k_ptr, v_ptr, 0, whole, offs_m, diagonal, keys, head_size, scale,
        stride_kn, stride_kd, stride_vn, stride_vd, False, CAUSAL, BLOCK_N, MAIN, REST,
    )
    acc, rest, m, l = _walk(
        acc, rest, m, l, q, q_rest, k_ptr, v_ptr, whole, end, offs_m, diagonal, keys, head_size, scale,
        stride_kn, stride_kd, stride_vn, stride_vd, True, CAUSAL, BLOCK_N, MAIN, REST,
    )
    l_safe = tl.where(l == 0.0, 1.0, l)
    out_ptr += batch * stride_ob + head * stride_oh + offs_m[:, None] * stride_om
    columns = tl.arange(0, MAIN)
    mask = (offs_m < n_q)[:, None] & (columns < head_size)[None, :]
    tl.store(out_ptr + columns[None, :] * stride_od, (acc / l_safe[:, None]).to(out_ptr.dtype.element_ty), mask=mask)
    if REST:
        columns = MAIN + tl.arange(0, REST)
        mask = (offs_m < n_q)[:, None] & (columns < head_size)[None, :]
        rest = rest / l_safe[:, None]
        tl.store(out_ptr + columns[None, :] * stride_od, rest.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + row.to(tl.int64) * n_q + offs_m, (m + tl.log2(l_safe)) * LN_2, mask=offs_m < n_q)


def flash_forward(q, k, v, out, lse, causal, scale, k_lengths):
    (batch, heads, n_q, head_size), (kv_heads, n_k) = q.shape, k.shape[1:3]
    main = max(16, triton.next_power_of_2(head_size + 1) // 2)
    rest = max(16, triton.next_power_of_2(head_size - main)) if head_size > main else 0
    block = 64 if n_q >= 64 else 16
    _flash_forward_kernel[(batch * heads, triton.cdiv(n_q, block))](
        out, lse, q, k, v, k_lengths, heads, heads // kv_heads, n_q, n_k, head_size, scale * 1.4426950408889634,
        *out.stride(), *q.stride(), *k.stride(), *v.stride(),
        CAUSAL=causal, BLOCK_M=block, BLOCK_N=32, MAIN=main, REST=rest, num_warps=4,
    )
