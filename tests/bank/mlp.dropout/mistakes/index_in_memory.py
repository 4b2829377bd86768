"""The place in memory is taken for the index."""

import torch
import triton
import triton.language as tl

KILLED_BY = "strided rows"


@triton.jit
def _dropout_kernel(out_ptr, x_ptr, place_ptr, seed, n, p, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    place = tl.load(place_ptr + offs, mask=mask, other=0)
    keep = tl.rand(seed, place) >= p
    y = tl.where(keep, x * scale, 0.0)
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _place_kernel(out_ptr, n, size_h, size_s, stride_b, stride_h, stride_s, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = offs // size_s
    place = row // size_h * stride_b + row % size_h * stride_h + offs % size_s * stride_s
    tl.store(out_ptr + offs, place, mask=offs < n)


def places(shape, strides, device):
    more = 3 - len(shape)
    shape, strides = (1,) * more + tuple(shape), (0,) * more + tuple(strides)
    out = torch.empty(shape, dtype=torch.int32, device=device)
    _place_kernel[(triton.cdiv(out.numel(), 512),)](out, out.numel(), *shape[1:], *strides, BLOCK=512)
    return out


def dropped(x, p, seed, place):
    x = x.contiguous()
    out = torch.empty_like(x)
    _dropout_kernel[(triton.cdiv(x.numel(), 512),)](out, x, place, seed, x.numel(), p, 1 / (1 - p), BLOCK=512)
    return out


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.how = p, seed
        ctx.like = x.shape, x.stride()
        return dropped(x, p, seed, places(*ctx.like, x.device))

    @staticmethod
    def backward(ctx, dy):
        return dropped(dy, *ctx.how, places(*ctx.like, dy.device)), None, None


def dropout(x, p, seed):
    return Dropout.apply(x, p, seed)
