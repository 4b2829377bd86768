"""What is not contiguous is copied first; both passes are one kernel. Each element makes its call, and takes a number."""

import torch
import triton
import triton.language as tl


@triton.jit
def _number(seed, index):
    a, b, c, d = tl.rand4x(seed, index // 4)
    which = index % 4
    return tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))


@triton.jit
def _dropout_kernel(out_ptr, x_ptr, seed, n, p, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    keep = _number(seed, offs) >= p
    y = tl.where(keep, x * scale, 0.0)
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def dropped(x, p, seed):
    x = x.contiguous()
    out = torch.empty_like(x)
    _dropout_kernel[(triton.cdiv(x.numel(), 512),)](out, x, seed, x.numel(), p, 1 / (1 - p), BLOCK=512)
    return out


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.how = p, seed
        return dropped(x, p, seed)

    @staticmethod
    def backward(ctx, dy):
        return dropped(dy, *ctx.how), None, None


def dropout(x, p, seed):
    return Dropout.apply(x, p, seed)
