"""The mask is kept after all, in a variable of the module, which no saved tensor shows. A kernel applies it.

NAIVE is False: the check counts what the module holds after a call as well.
"""

import torch
import triton
import triton.language as tl

FAMILY = "vendor call"
NAIVE = False
CAUGHT = "what the module holds afterwards is counted"


@triton.jit
def _dropout_kernel(out_ptr, x_ptr, seed, n, p, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    keep = tl.rand(seed, offs) >= p
    y = tl.where(keep, x * scale, 0.0)
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def dropped(x, p, seed):
    x = x.contiguous()
    out = torch.empty_like(x)
    _dropout_kernel[(triton.cdiv(x.numel(), 512),)](out, x, seed, x.numel(), p, 1 / (1 - p), BLOCK=512)
    return out


MASKS = {}


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.key = len(MASKS)
        MASKS[ctx.key] = dropped(torch.ones(x.shape, device=x.device), p, seed)
        return dropped(x, p, seed)

    @staticmethod
    def backward(ctx, dy):
        return dy * MASKS[ctx.key], None, None


def dropout(x, p, seed):
    return Dropout.apply(x, p, seed)
