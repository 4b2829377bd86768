"""Products and sums in kernels too: one for all products, one for GELU and its slope in place, one for sums of rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def _product_kernel(
    out_ptr, a_ptr, b_ptr, bias_ptr,
    M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK: tl.constexpr,
):
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(0, K, BLOCK):
        offs_k = k + tl.arange(0, BLOCK)
        a = tl.load(
            a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak,
            mask=(offs_m < M)[:, None] & (offs_k < K)[None, :], other=0.0,
        )
        b = tl.load(
            b_ptr + offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn,
            mask=(offs_k < K)[:, None] & (offs_n < N)[None, :], other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _gelu_kernel(a_ptr, dh_ptr, h_ptr, da_ptr, n, BLOCK: tl.constexpr):
    """a from h, in its place; with da also dh."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    h = tl.load(h_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    u = 0.7978845608028654 * (h + 0.044715 * h * h * h)
    e = tl.exp(-2.0 * tl.abs(u))
    t = tl.where(u < 0, -1.0, 1.0) * (1.0 - e) / (1.0 + e)
    a = 0.5 * h * (1.0 + t)
    tl.store(a_ptr + offs, a.to(a_ptr.dtype.element_ty), mask=mask)
    if da_ptr is not None:
        da = tl.load(da_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        inner = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * h * h)
        slope = 0.5 * (1.0 + t) + 0.5 * h * (1.0 - t * t) * inner
        tl.store(dh_ptr + offs, (da * slope).to(dh_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sum_kernel(out_ptr, x_ptr, M, N, stride_m, stride_n, BLOCK: tl.constexpr):
    offs_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for m in range(0, M, BLOCK):
        offs_m = m + tl.arange(0, BLOCK)
        mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
        x = tl.load(x_ptr + offs_m[:, None] * stride_m + offs_n[None, :] * stride_n, mask=mask, other=0.0)
        total += tl.sum(x.to(tl.float32), axis=0)
    tl.store(out_ptr + offs_n, total.to(out_ptr.dtype.element_ty), mask=offs_n < N)


def product(a, b, bias=None):
    (M, K), N = a.shape, b.shape[1]
    out = torch.empty(M, N, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(M, 32), triton.cdiv(N, 32))
    _product_kernel[grid](out, a, b, bias, M, N, K, *a.stride(), *b.stride(), BLOCK=32)
    return out


def gelu(h, da=None):
    a, dh = h, da
    _gelu_kernel[(triton.cdiv(h.numel(), 1024),)](a, dh, h, da, h.numel(), BLOCK=1024)
    return a, dh


def sum_of_rows(x):
    out = torch.empty(x.shape[1], dtype=x.dtype, device=x.device)
    _sum_kernel[(triton.cdiv(x.shape[1], 32),)](out, x, *x.shape, *x.stride(), BLOCK=32)
    return out


class MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2):
        ctx.save_for_backward(x, w1, b1, w2)
        h = product(x, w1.mT, b1)
        a, _ = gelu(h)
        return product(a, w2.mT, b2)

    @staticmethod
    def backward(ctx, dy):
        x, w1, b1, w2 = ctx.saved_tensors
        h = product(x, w1.mT, b1)
        da = product(dy, w2)
        a, dh = gelu(h, da)
        dx, dw1, dw2 = product(dh, w1), product(dh.mT, x), product(dy.mT, a)
        return dx, dw1, sum_of_rows(dh), dw2, sum_of_rows(dy)


def mlp(x, w1, b1, w2, b2):
    return MLP.apply(x, w1, b1, w2, b2)
