"""A kernel makes the numbers, torch compares, scales and chooses."""

import torch
import triton
import triton.language as tl

FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the watched run saw torch choose"


@triton.jit
def _numbers_kernel(out_ptr, seed, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.rand(seed, offs), mask=offs < n)


def dropped(x, p, seed):
    numbers = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    _numbers_kernel[(triton.cdiv(x.numel(), 512),)](numbers, seed, x.numel(), BLOCK=512)
    return torch.where(numbers >= p, x / (1 - p), 0.0)


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
