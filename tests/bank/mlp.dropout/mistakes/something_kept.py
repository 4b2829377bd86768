"""A mask of one byte an element is kept."""

import torch
import triton
import triton.language as tl

KILLED_BY = "a vector"


@triton.jit
def _mask_kernel(mask_ptr, seed, n, p, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(mask_ptr + offs, tl.rand(seed, offs) >= p, mask=offs < n)


@triton.jit
def _masked_kernel(out_ptr, x_ptr, mask_ptr, n, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    keep = tl.load(mask_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr + offs, tl.where(keep, x * scale, 0.0).to(out_ptr.dtype.element_ty), mask=offs < n)


def masked(x, mask, p):
    x = x.contiguous()
    out = torch.empty_like(x)
    _masked_kernel[(triton.cdiv(x.numel(), 512),)](out, x, mask, x.numel(), 1 / (1 - p), BLOCK=512)
    return out


def mask_of(x, p, seed):
    mask = torch.empty(x.shape, dtype=torch.bool, device=x.device)
    _mask_kernel[(triton.cdiv(x.numel(), 512),)](mask, seed, x.numel(), p, BLOCK=512)
    return mask


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        mask = mask_of(x, p, seed)
        ctx.save_for_backward(mask)
        ctx.p = p
        return masked(x, mask, p)

    @staticmethod
    def backward(ctx, dy):
        return masked(dy, *ctx.saved_tensors, ctx.p), None, None


def dropout(x, p, seed):
    return Dropout.apply(x, p, seed)
