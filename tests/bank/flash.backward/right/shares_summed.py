"""dk and dv of every query head in fp32, then a kernel that sums over the group."""

import torch
import triton
import triton.language as tl


@triton.jit
def _delta_kernel(
    delta_ptr, out_ptr, dout_ptr,
    heads, n_q, head_size,
    stride_ob, stride_oh, stride_om, stride_od,
    stride_gb, stride_gh, stride_gm, stride_gd,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n_q, BLOCK_M)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    offs_m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_m < n_q)[:, None] & (offs_d < head_size)[None, :]
    out_ptr += row // heads * stride_ob + row % heads * stride_oh
    dout_ptr += row // heads * stride_gb + row % heads * stride_gh
    out = tl.load(out_ptr + offs_m[:, None] * stride_om + offs_d[None, :] * stride_od, mask=mask, other=0.0)
    dout = tl.load(dout_ptr + offs_m[:, None] * stride_gm + offs_d[None, :] * stride_gd, mask=mask, other=0.0)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
    tl.store(delta_ptr + row * n_q + offs_m, delta, mask=offs_m < n_q)


@triton.jit
def _dq_kernel(
    dq_ptr, q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, lengths_ptr,
    heads, group, n_q, n_k, head_size, scale,
    stride_dqb, stride_dqh, stride_dqm, stride_dqd,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gm, stride_gd,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n_q, BLOCK_M)
    block = tl.program_id(0) % blocks
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    kv_head = head // group
    offs_m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    mask_q = (offs_m < n_q)[:, None] & mask_d
    q_ptr += batch * stride_qb + head * stride_qh
    dout_ptr += batch * stride_gb + head * stride_gh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    q = tl.load(q_ptr + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd, mask=mask_q, other=0.0)
    dout = tl.load(dout_ptr + offs_m[:, None] * stride_gm + offs_d[None, :] * stride_gd, mask=mask_q, other=0.0)
    lse = tl.load(lse_ptr + row * n_q + offs_m, mask=offs_m < n_q, other=0.0)
    delta = tl.load(delta_ptr + row * n_q + offs_m, mask=offs_m < n_q, other=0.0)
    keys = n_k
    if LENGTHS:
        keys = tl.load(lengths_ptr + batch)
    end = keys
    if CAUSAL:
        end = tl.minimum(end, (block + 1) * BLOCK_M + n_k - n_q)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, end, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_k = (offs_n < keys)[:, None] & mask_d
        k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd, mask=mask_k, other=0.0)
        v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :] * stride_vd, mask=mask_k, other=0.0)
        see = (offs_m >= 0)[:, None] & (offs_n < keys)[None, :]
        if CAUSAL:
            see = see & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where(see, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    dq_ptr += batch * stride_dqb + head * stride_dqh
    place = offs_m[:, None] * stride_dqm + offs_d[None, :] * stride_dqd
    tl.store(dq_ptr + place, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask_q)


@triton.jit
def _shares_kernel(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, lengths_ptr,
    heads, group, n_q, n_k, head_size, scale,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    stride_qb, stride_qh, stride_qm, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gm, stride_gd,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n_k, BLOCK_N)
    block = tl.program_id(0) % blocks
    batch = (tl.program_id(0) // blocks // heads).to(tl.int64)
    head = (tl.program_id(0) // blocks % heads).to(tl.int64)
    kv_head = head // group
    offs_n = block * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    mask_k = (offs_n < n_k)[:, None] & mask_d
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :] * stride_kd, mask=mask_k, other=0.0)
    v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :] * stride_vd, mask=mask_k, other=0.0)
    keys = n_k
    if LENGTHS:
        keys = tl.load(lengths_ptr + batch)
    k = tl.where((offs_n < keys)[:, None], k, 0.0)
    v = tl.where((offs_n < keys)[:, None], v, 0.0)
    first = 0
    if CAUSAL:
        first = tl.maximum(block * BLOCK_N - (n_k - n_q), 0) // BLOCK_M * BLOCK_M
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    row = batch * heads + head
    q_head = q_ptr + batch * stride_qb + head * stride_qh
    dout_head = dout_ptr + batch * stride_gb + head * stride_gh
    for start in range(first, n_q, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        mask_q = (offs_m < n_q)[:, None] & mask_d
        q = tl.load(q_head + offs_m[:, None] * stride_qm + offs_d[None, :] * stride_qd, mask=mask_q, other=0.0)
        dout = tl.load(dout_head + offs_m[:, None] * stride_gm + offs_d[None, :] * stride_gd, mask=mask_q, other=0.0)
        lse = tl.load(lse_ptr + row * n_q + offs_m, mask=offs_m < n_q, other=0.0)
        delta = tl.load(delta_ptr + row * n_q + offs_m, mask=offs_m < n_q, other=0.0)
        see = (offs_m >= 0)[:, None] & (offs_n < keys)[None, :]
        if CAUSAL:
            see = see & (offs_n[None, :] <= offs_m[:, None] + n_k - n_q)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where(see, tl.exp(s - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p).to(dout.dtype), dout, input_precision="ieee")
        dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    dk_ptr += batch * stride_dkb + head * stride_dkh
    dv_ptr += batch * stride_dvb + head * stride_dvh
    place = offs_n[:, None] * stride_dkn + offs_d[None, :] * stride_dkd
    tl.store(dk_ptr + place, (dk * scale).to(dk_ptr.dtype.element_ty), mask=mask_k)
    place = offs_n[:, None] * stride_dvn + offs_d[None, :] * stride_dvd
    tl.store(dv_ptr + place, dv.to(dv_ptr.dtype.element_ty), mask=mask_k)


@triton.jit
def _sum_kernel(
    x_ptr, shares_ptr, heads, group, n_k, head_size, stride_b, stride_h, stride_n, stride_d,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n_k, BLOCK_N)
    batch = (tl.program_id(0) // blocks // heads).to(tl.int64)
    head = (tl.program_id(0) // blocks % heads).to(tl.int64)
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_n < n_k)[:, None] & (offs_d < head_size)[None, :]
    total = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for member in range(group):
        start = ((batch * heads + head) * group + member) * n_k * head_size
        total += tl.load(shares_ptr + start + offs_n[:, None] * head_size + offs_d[None, :], mask=mask, other=0.0)
    place = batch * stride_b + head * stride_h + offs_n[:, None] * stride_n + offs_d[None, :] * stride_d
    tl.store(x_ptr + place, total.to(x_ptr.dtype.element_ty), mask=mask)


def flash_backward(q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths):
    (batch, heads, n_q, head_size), (kv_heads, n_k) = q.shape, k.shape[1:3]
    delta = torch.empty_like(lse)
    by_queries, by_keys = triton.cdiv(n_q, 32) * batch * heads, triton.cdiv(n_k, 32) * batch * kv_heads
    columns = triton.next_power_of_2(head_size)
    _delta_kernel[(by_queries,)](
        delta, out, dout, heads, n_q, head_size, *out.stride(), *dout.stride(), BLOCK_M=32, BLOCK_D=columns
    )
    _dq_kernel[(by_queries,)](
        dq, q, k, v, dout, lse, delta, k_lengths, heads, heads // kv_heads, n_q, n_k, head_size, scale,
        *dq.stride(), *q.stride(), *k.stride(), *v.stride(), *dout.stride(),
        CAUSAL=causal, LENGTHS=k_lengths is not None, BLOCK_M=32, BLOCK_N=32, BLOCK_D=columns,
    )
    dk_shares = torch.empty(batch, heads, n_k, head_size, device=q.device)
    dv_shares = torch.empty_like(dk_shares)
    _shares_kernel[(by_keys * heads // kv_heads,)](
        dk_shares, dv_shares, q, k, v, dout, lse, delta, k_lengths,
        heads, heads // kv_heads, n_q, n_k, head_size, scale,
        *dk_shares.stride(), *dv_shares.stride(), *q.stride(), *k.stride(), *v.stride(), *dout.stride(),
        CAUSAL=causal, LENGTHS=k_lengths is not None, BLOCK_M=32, BLOCK_N=32, BLOCK_D=columns,
    )
    for x, shares in ((dk, dk_shares), (dv, dv_shares)):
        _sum_kernel[(by_keys,)](
            x, shares, kv_heads, heads // kv_heads, n_k, head_size, *x.stride(), BLOCK_N=32, BLOCK_D=columns
        )
