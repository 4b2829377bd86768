"""Up to three dimensions with their strides, one row a program."""

import torch
import triton
import triton.language as tl


@triton.jit
def _number(seed, index):
    a, b, c, d = tl.rand4x(seed, index // 4)
    which = index % 4
    return tl.where(which == 0, a, tl.where(which == 1, b, tl.where(which == 2, c, d)))


@triton.jit
def _rows_kernel(
    out_ptr, x_ptr, seed,
    rows, columns, p,
    stride_xb, stride_xr, stride_xc,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = x_ptr + row // rows * stride_xb + row % rows * stride_xr
    for first in range(0, columns, BLOCK):
        offs = first + tl.arange(0, BLOCK).to(tl.int64)
        mask = offs < columns
        x = tl.load(at + offs * stride_xc, mask=mask, other=0.0).to(tl.float32)
        index = row * columns + offs
        y = tl.where(_number(seed, index) < p, 0.0, x / (1.0 - p))
        tl.store(out_ptr + index, y.to(out_ptr.dtype.element_ty), mask=mask)


def dropped(x, p, seed):
    shape = x.shape
    x = x.reshape(1, 1, -1) if x.dim() == 1 else x[None] if x.dim() == 2 else x
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _rows_kernel[(x.shape[0] * x.shape[1],)](
        out, x, seed,
        x.shape[1], x.shape[2], p,
        *x.stride(),
        BLOCK=1024,
    )
    return out.view(shape)


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ctx.p, ctx.seed = p, seed
        return dropped(x, p, seed)

    @staticmethod
    def backward(ctx, dy):
        return dropped(dy, ctx.p, ctx.seed), None, None


def dropout(x, p, seed):
    return Dropout.apply(x, p, seed)
