"""Views of one tensor in both passes; delta, then a pass that owns queries and one that owns keys; base e."""

import torch
import triton
import triton.language as tl


@triton.jit
def _forward_kernel(
    o_ptr, l_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr,
    heads, n, head_size, scale,
    stride_ob, stride_oh, stride_on,
    stride_qb, stride_qh, stride_qn,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK_M)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    offs_m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    mask_q = (offs_m < n)[:, None] & mask_d
    o_ptr += batch * stride_ob + head * stride_oh
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head * stride_kh
    v_ptr += batch * stride_vb + head * stride_vh
    q = tl.load(q_ptr + offs_m[:, None] * stride_qn + offs_d[None, :], mask=mask_q, other=0.0)
    keys = tl.load(lengths_ptr + batch)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, keys, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_k = (offs_n < keys)[:, None] & mask_d
        k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :], mask=mask_k, other=0.0)
        v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :], mask=mask_k, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where((offs_n < keys)[None, :], s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp(s - new[:, None])
        factor = tl.exp(m - new)
        l = l * factor + tl.sum(p, axis=1)
        acc = acc * factor[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = new
    place = offs_m[:, None] * stride_on + offs_d[None, :]
    tl.store(o_ptr + place, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=mask_q)
    tl.store(l_ptr + row * n + offs_m, m + tl.log(l), mask=offs_m < n)


@triton.jit
def _delta_kernel(
    delta_ptr, o_ptr, do_ptr,
    heads, n, head_size,
    stride_ob, stride_oh, stride_on,
    stride_gb, stride_gh, stride_gn, stride_gd,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK_M)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    offs_m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs_m < n)[:, None] & (offs_d < head_size)[None, :]
    o_ptr += batch * stride_ob + head * stride_oh
    do_ptr += batch * stride_gb + head * stride_gh
    o = tl.load(o_ptr + offs_m[:, None] * stride_on + offs_d[None, :], mask=mask, other=0.0)
    do = tl.load(do_ptr + offs_m[:, None] * stride_gn + offs_d[None, :] * stride_gd, mask=mask, other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    tl.store(delta_ptr + row * n + offs_m, delta, mask=offs_m < n)


@triton.jit
def _dq_kernel(
    dq_ptr, q_ptr, k_ptr, v_ptr, do_ptr, l_ptr, delta_ptr, lengths_ptr,
    heads, n, head_size, scale,
    stride_dqb, stride_dqh, stride_dqn,
    stride_qb, stride_qh, stride_qn,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_gd,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK_M)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    offs_m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    mask_q = (offs_m < n)[:, None] & mask_d
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head * stride_kh
    v_ptr += batch * stride_vb + head * stride_vh
    do_ptr += batch * stride_gb + head * stride_gh
    q = tl.load(q_ptr + offs_m[:, None] * stride_qn + offs_d[None, :], mask=mask_q, other=0.0)
    do = tl.load(do_ptr + offs_m[:, None] * stride_gn + offs_d[None, :] * stride_gd, mask=mask_q, other=0.0)
    l = tl.load(l_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
    delta = tl.load(delta_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
    keys = tl.load(lengths_ptr + batch)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, keys, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_k = (offs_n < keys)[:, None] & mask_d
        k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :], mask=mask_k, other=0.0)
        v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :], mask=mask_k, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where((offs_n < keys)[None, :], tl.exp(s - l[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    dq_ptr += batch * stride_dqb + head * stride_dqh
    place = offs_m[:, None] * stride_dqn + offs_d[None, :]
    tl.store(dq_ptr + place, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask_q)


@triton.jit
def _dkdv_kernel(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, l_ptr, delta_ptr, lengths_ptr,
    heads, n, head_size, scale,
    stride_dkb, stride_dkh, stride_dkn,
    stride_dvb, stride_dvh, stride_dvn,
    stride_qb, stride_qh, stride_qn,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_gb, stride_gh, stride_gn, stride_gd,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK_N)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    mask_k = (offs_n < n)[:, None] & mask_d
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head * stride_kh
    v_ptr += batch * stride_vb + head * stride_vh
    do_ptr += batch * stride_gb + head * stride_gh
    k = tl.load(k_ptr + offs_n[:, None] * stride_kn + offs_d[None, :], mask=mask_k, other=0.0)
    v = tl.load(v_ptr + offs_n[:, None] * stride_vn + offs_d[None, :], mask=mask_k, other=0.0)
    keys = tl.load(lengths_ptr + batch)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for start in range(0, n, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        mask_q = (offs_m < n)[:, None] & mask_d
        q = tl.load(q_ptr + offs_m[:, None] * stride_qn + offs_d[None, :], mask=mask_q, other=0.0)
        do = tl.load(do_ptr + offs_m[:, None] * stride_gn + offs_d[None, :] * stride_gd, mask=mask_q, other=0.0)
        l = tl.load(l_ptr + row * n + offs_m, mask=offs_m < n, other=float("inf"))
        delta = tl.load(delta_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where((offs_n < keys)[None, :], tl.exp(s - l[:, None]), 0.0)
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    dk_ptr += batch * stride_dkb + head * stride_dkh
    dv_ptr += batch * stride_dvb + head * stride_dvh
    place = offs_n[:, None] * stride_dkn + offs_d[None, :]
    tl.store(dk_ptr + place, (dk * scale).to(dk_ptr.dtype.element_ty), mask=mask_k)
    place = offs_n[:, None] * stride_dvn + offs_d[None, :]
    tl.store(dv_ptr + place, dv.to(dv_ptr.dtype.element_ty), mask=mask_k)


def apart(qkv):
    """q, k and v (B, H, N, D), views of (B, N, 3, H, D)."""
    return [part.transpose(1, 2) for part in qkv.unbind(2)]


def forward(q, k, v, lengths, o, l):
    B, H, N, D = q.shape
    _forward_kernel[(triton.cdiv(N, 32) * B * H,)](
        o, l, q, k, v, lengths, H, N, D, D**-0.5,
        *o.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        BLOCK_M=32, BLOCK_N=32, BLOCK_D=triton.next_power_of_2(D),
    )


def backward(do, q, k, v, lengths, o, l, dq, dk, dv):
    B, H, N, D = q.shape
    delta = torch.empty_like(l)
    grid, columns = (triton.cdiv(N, 32) * B * H,), triton.next_power_of_2(D)
    _delta_kernel[grid](delta, o, do, H, N, D, *o.stride()[:3], *do.stride(), BLOCK_M=32, BLOCK_D=columns)
    _dq_kernel[grid](
        dq, q, k, v, do, l, delta, lengths, H, N, D, D**-0.5,
        *dq.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride(),
        BLOCK_M=32, BLOCK_N=32, BLOCK_D=columns,
    )
    _dkdv_kernel[grid](
        dk, dv, q, k, v, do, l, delta, lengths, H, N, D, D**-0.5,
        *dk.stride()[:3], *dv.stride()[:3], *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride(),
        BLOCK_M=32, BLOCK_N=32, BLOCK_D=columns,
    )


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, lengths, heads):
        B, N, d = x.shape
        qkv = torch.addmm(b, x.reshape(B * N, d), w.mT).view(B, N, 3, heads, d // heads)
        o = torch.empty(B, N, heads, d // heads, dtype=x.dtype, device=x.device)
        l = torch.empty(B, heads, N, dtype=torch.float32, device=x.device)
        forward(*apart(qkv), lengths, o.transpose(1, 2), l)
        ctx.save_for_backward(x, w, lengths, qkv, o, l)
        return o.view(B, N, d)

    @staticmethod
    def backward(ctx, do):
        x, w, lengths, qkv, o, l = ctx.saved_tensors
        B, N, d = x.shape
        dqkv = torch.empty_like(qkv)
        do = do.view(o.shape).transpose(1, 2)
        backward(do, *apart(qkv), lengths, o.transpose(1, 2), l, *apart(dqkv))
        rows = dqkv.view(B * N, 3 * d)
        return (rows @ w).view(B, N, d), rows.mT @ x.reshape(B * N, d), rows.sum(0), None, None


def attend(x, w, b, lengths, heads):
    return Attend.apply(x, w, b, lengths, heads)
