"""Whole tiles without a mask, base 2, the longest programs first, tiles by head size."""

import torch
import triton
import triton.language as tl


@triton.jit
def _tile(
    ptr, first, n, stride_row, stride_column, head_size,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, MASKED: tl.constexpr, FULL: tl.constexpr,
):
    """Rows first .. first + ROWS; zeros past row n where MASKED, and past column head_size where not FULL."""
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    ptrs = ptr + tl.cast(first, tl.int64) * stride_row + (rows[:, None] * stride_row + columns[None, :] * stride_column)
    inside = (rows < n - first)[:, None]
    if MASKED and FULL:
        x = tl.load(ptrs, mask=inside, other=0.0)
    elif MASKED:
        x = tl.load(ptrs, mask=inside & (columns < head_size)[None, :], other=0.0)
    elif FULL:
        x = tl.load(ptrs)
    else:
        x = tl.load(ptrs, mask=(columns < head_size)[None, :], other=0.0)
    return x


@triton.jit
def _keep(
    ptr, x, first, n, stride_row, stride_column, head_size, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    ptrs = ptr + tl.cast(first, tl.int64) * stride_row + (rows[:, None] * stride_row + columns[None, :] * stride_column)
    tl.store(ptrs, x.to(ptr.dtype.element_ty), mask=(rows < n - first)[:, None] & (columns < head_size)[None, :])


@triton.jit
def _forward_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, heads, n_q, n_k, head_size, scale,
    s_ob, s_oh, s_om, s_od, s_qb, s_qh, s_qm, s_qd, s_kb, s_kh, s_kn, s_kd, s_vb, s_vh, s_vn, s_vd,
    CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, FULL: tl.constexpr,
):
    blocks = tl.cdiv(n_q, M)
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    k_ptr += batch * s_kb + head * s_kh
    v_ptr += batch * s_vb + head * s_vh
    q_ptr += batch * s_qb + head * s_qh
    q = _tile(q_ptr, block * M, n_q, s_qm, s_qd, head_size, M, D, True, FULL)
    offs_m = block * M + tl.arange(0, M)
    whole, end = n_k, n_k
    if CAUSAL:
        whole = tl.minimum(n_k, tl.maximum(block * M + n_k - n_q + 1, 0))
        end = tl.minimum(n_k, tl.maximum(block * M + M + n_k - n_q, 0))
    whole = whole // N * N
    m = tl.full((M,), -float("inf"), tl.float32)
    l = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    for start in tl.range(0, whole, N):
        k = _tile(k_ptr, start, n_k, s_kn, s_kd, head_size, N, D, False, FULL)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        factor = tl.exp2(m - new)
        l = l * factor + tl.sum(p, axis=1)
        v = _tile(v_ptr, start, n_k, s_vn, s_vd, head_size, N, D, False, FULL)
        acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None], input_precision="ieee")
        m = new
    for start in tl.range(whole, end, N, num_stages=1):
        offs_n = start + tl.arange(0, N)
        k = _tile(k_ptr, start, n_k, s_kn, s_kd, head_size, N, D, True, FULL)
        see = (offs_n < n_k)[None, :]
        if CAUSAL:
            see = see & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        s = tl.where(see, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        shift = tl.where(new == -float("inf"), 0.0, new)
        p = tl.exp2(s - shift[:, None])
        factor = tl.exp2(m - shift)
        l = l * factor + tl.sum(p, axis=1)
        v = _tile(v_ptr, start, n_k, s_vn, s_vd, head_size, N, D, True, FULL)
        acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None], input_precision="ieee")
        m = new
    acc = acc / tl.where(l == 0.0, 1.0, l)[:, None]
    _keep(out_ptr + batch * s_ob + head * s_oh, acc, block * M, n_q, s_om, s_od, head_size, M, D)
    tl.store(lse_ptr + row * n_q + offs_m, (m + tl.log2(l)) * 0.6931471805599453, mask=offs_m < n_q)


@triton.jit
def _dq_kernel(
    dq_ptr, delta_ptr, shift_ptr, q_ptr, k_ptr, v_ptr, out_ptr, dout_ptr, lse_ptr, heads, n_q, n_k, head_size, scale,
    s_dqb, s_dqh, s_dqm, s_dqd, s_qb, s_qh, s_qm, s_qd, s_kb, s_kh, s_kn, s_kd, s_vb, s_vh, s_vn, s_vd,
    s_ob, s_oh, s_om, s_od, s_gb, s_gh, s_gm, s_gd,
    CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, FULL: tl.constexpr,
):
    """dq; on the way, what the other pass needs of each query: delta, and L in base 2."""
    blocks = tl.cdiv(n_q, M)
    block = tl.program_id(0) % blocks
    if CAUSAL:
        block = blocks - 1 - block
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    k_ptr += batch * s_kb + head * s_kh
    v_ptr += batch * s_vb + head * s_vh
    q = _tile(q_ptr + batch * s_qb + head * s_qh, block * M, n_q, s_qm, s_qd, head_size, M, D, True, FULL)
    out = _tile(out_ptr + batch * s_ob + head * s_oh, block * M, n_q, s_om, s_od, head_size, M, D, True, FULL)
    dout = _tile(dout_ptr + batch * s_gb + head * s_gh, block * M, n_q, s_gm, s_gd, head_size, M, D, True, FULL)
    offs_m = block * M + tl.arange(0, M)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
    lse = tl.load(lse_ptr + row * n_q + offs_m, mask=offs_m < n_q, other=0.0)
    shift = tl.where(lse == -float("inf"), float("inf"), lse * 1.4426950408889634)
    tl.store(delta_ptr + row * n_q + offs_m, delta, mask=offs_m < n_q)
    tl.store(shift_ptr + row * n_q + offs_m, shift, mask=offs_m < n_q)
    whole, end = n_k, n_k
    if CAUSAL:
        whole = tl.minimum(n_k, tl.maximum(block * M + n_k - n_q + 1, 0))
        end = tl.minimum(n_k, tl.maximum(block * M + M + n_k - n_q, 0))
    whole = whole // N * N
    of_exponent = scale * 1.4426950408889634
    dq = tl.zeros((M, D), tl.float32)
    for start in tl.range(0, whole, N):
        k = _tile(k_ptr, start, n_k, s_kn, s_kd, head_size, N, D, False, FULL)
        v = _tile(v_ptr, start, n_k, s_vn, s_vd, head_size, N, D, False, FULL)
        p = tl.exp2(tl.dot(q, tl.trans(k), input_precision="ieee") * of_exponent - shift[:, None])
        ds = p * (tl.dot(dout, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    for start in tl.range(whole, end, N, num_stages=1):
        offs_n = start + tl.arange(0, N)
        k = _tile(k_ptr, start, n_k, s_kn, s_kd, head_size, N, D, True, FULL)
        v = _tile(v_ptr, start, n_k, s_vn, s_vd, head_size, N, D, True, FULL)
        see = (offs_n < n_k)[None, :]
        if CAUSAL:
            see = see & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * of_exponent
        p = tl.exp2(tl.where(see, s, -float("inf")) - shift[:, None])
        ds = p * (tl.dot(dout, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    _keep(dq_ptr + batch * s_dqb + head * s_dqh, dq * scale, block * M, n_q, s_dqm, s_dqd, head_size, M, D)


@triton.jit
def _dkdv_kernel(
    dk_ptr, dv_ptr, delta_ptr, shift_ptr, q_ptr, k_ptr, v_ptr, dout_ptr, heads, n_q, n_k, head_size, scale,
    s_dkb, s_dkh, s_dkn, s_dkd, s_dvb, s_dvh, s_dvn, s_dvd, s_qb, s_qh, s_qm, s_qd, s_kb, s_kh, s_kn, s_kd,
    s_vb, s_vh, s_vn, s_vd, s_gb, s_gh, s_gm, s_gd,
    CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, FULL: tl.constexpr,
):
    """Keys go down and queries across, so that p and ds enter the next product as they are."""
    blocks = tl.cdiv(n_k, N)
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    q_ptr += batch * s_qb + head * s_qh
    dout_ptr += batch * s_gb + head * s_gh
    k = _tile(k_ptr + batch * s_kb + head * s_kh, block * N, n_k, s_kn, s_kd, head_size, N, D, True, FULL)
    v = _tile(v_ptr + batch * s_vb + head * s_vh, block * N, n_k, s_vn, s_vd, head_size, N, D, True, FULL)
    delta_ptr += row * n_q
    shift_ptr += row * n_q
    offs_n = block * N + tl.arange(0, N)
    first, whole = 0, 0
    if CAUSAL:
        first = tl.maximum(block * N - (n_k - n_q), 0) // M * M
        whole = tl.cdiv(tl.maximum(block * N + N - 1 - (n_k - n_q), 0), M) * M
    whole = tl.minimum(whole, n_q)
    of_exponent = scale * 1.4426950408889634
    dk = tl.zeros((N, D), tl.float32)
    dv = tl.zeros((N, D), tl.float32)
    for start in tl.range(whole, n_q, M):  # keys past the last one are zeros here, and are not stored
        offs_m = start + tl.arange(0, M)
        q = _tile(q_ptr, start, n_q, s_qm, s_qd, head_size, M, D, True, FULL)
        dout = _tile(dout_ptr, start, n_q, s_gm, s_gd, head_size, M, D, True, FULL)
        shift = tl.load(shift_ptr + offs_m, mask=offs_m < n_q, other=float("inf"))
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < n_q, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q), input_precision="ieee") * of_exponent - shift[None, :])
        dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision="ieee")
        ds = p * (tl.dot(v, tl.trans(dout), input_precision="ieee") - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    for start in tl.range(first, whole, M, num_stages=1):
        offs_m = start + tl.arange(0, M)
        q = _tile(q_ptr, start, n_q, s_qm, s_qd, head_size, M, D, True, FULL)
        dout = _tile(dout_ptr, start, n_q, s_gm, s_gd, head_size, M, D, True, FULL)
        shift = tl.load(shift_ptr + offs_m, mask=offs_m < n_q, other=float("inf"))
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < n_q, other=0.0)
        see = offs_n[:, None] <= offs_m[None, :] + n_k - n_q
        s = tl.dot(k, tl.trans(q), input_precision="ieee") * of_exponent
        p = tl.exp2(tl.where(see, s, -float("inf")) - shift[None, :])
        dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision="ieee")
        ds = p * (tl.dot(v, tl.trans(dout), input_precision="ieee") - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    _keep(dk_ptr + batch * s_dkb + head * s_dkh, dk * scale, block * N, n_k, s_dkn, s_dkd, head_size, N, D)
    _keep(dv_ptr + batch * s_dvb + head * s_dvh, dv, block * N, n_k, s_dvn, s_dvd, head_size, N, D)


# queries, keys, warps, stages of the forward pass, of dq, of dk and dv
# (with 128 keys of 32 columns, keys by columns and values by rows, ptxas 12.8 loses a descriptor: triton#11366)
UP_TO_32 = ((64, 64, 4, 2), (128, 64, 8, 3), (64, 64, 4, 3))
UP_TO_64 = ((64, 128, 4, 2), (128, 64, 8, 3), (64, 64, 4, 3))
UP_TO_128 = ((64, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 2))
WITHOUT_TENSOR_CORES = ((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1))


def _how(tile):
    return {"M": tile[0], "N": tile[1], "num_warps": tile[2], "num_stages": tile[3]}


def attention_step(q, k, v, dout, out, lse, dq, dk, dv, causal, scale):
    batch, heads, n_q, head_size = q.shape
    n_k, columns = k.shape[2], triton.next_power_of_2(head_size)
    meta = {"CAUSAL": causal, "D": columns, "FULL": columns == head_size}
    forward, for_q, for_k = UP_TO_32 if columns <= 32 else UP_TO_64 if columns <= 64 else UP_TO_128
    if q.element_size() == 4 or not q.is_cuda:
        forward, for_q, for_k = WITHOUT_TENSOR_CORES
    delta, shift = torch.empty_like(lse), torch.empty_like(lse)
    _forward_kernel[(triton.cdiv(n_q, forward[0]) * batch * heads,)](
        out, lse, q, k, v, heads, n_q, n_k, head_size, scale * 1.4426950408889634,
        *out.stride(), *q.stride(), *k.stride(), *v.stride(), **meta, **_how(forward),
    )
    _dq_kernel[(triton.cdiv(n_q, for_q[0]) * batch * heads,)](
        dq, delta, shift, q, k, v, out, dout, lse, heads, n_q, n_k, head_size, scale,
        *dq.stride(), *q.stride(), *k.stride(), *v.stride(), *out.stride(), *dout.stride(), **meta, **_how(for_q),
    )
    _dkdv_kernel[(triton.cdiv(n_k, for_k[1]) * batch * heads,)](
        dk, dv, delta, shift, q, k, v, dout, heads, n_q, n_k, head_size, scale,
        *dk.stride(), *dv.stride(), *q.stride(), *k.stride(), *v.stride(), *dout.stride(), **meta, **_how(for_k),
    )
