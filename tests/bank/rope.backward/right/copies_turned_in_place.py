"""Copies are turned in place, by a Function with a context of its own for each tensor."""

import torch
import triton
import triton.language as tl


@triton.jit
def _in_place_kernel(
    x_ptr, cos_ptr, sin_ptr, positions_ptr,
    heads, length, offset, stride_row, stride_pb, stride_ps,
    PAIRS: tl.constexpr, BLOCK_P: tl.constexpr, INTERLEAVED: tl.constexpr, BACK: tl.constexpr,
):
    """A program turns one row of a contiguous tensor."""
    row = tl.program_id(0).to(tl.int64)
    batch, position = row // (heads * length), row % length
    if positions_ptr is not None:
        position = tl.load(positions_ptr + batch * stride_pb + position * stride_ps).to(tl.int64)
    offs = tl.arange(0, BLOCK_P)
    mask = offs < PAIRS
    cos = tl.load(cos_ptr + (position + offset) * PAIRS + offs, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + (position + offset) * PAIRS + offs, mask=mask, other=0.0)
    if BACK:
        sin = -sin
    first = x_ptr + row * stride_row + offs * (2 if INTERLEAVED else 1)
    second = first + (1 if INTERLEAVED else PAIRS)
    x0 = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    x1 = tl.load(second, mask=mask, other=0.0).to(tl.float32)
    tl.store(first, (x0 * cos - x1 * sin).to(x_ptr.dtype.element_ty), mask=mask)
    tl.store(second, (x0 * sin + x1 * cos).to(x_ptr.dtype.element_ty), mask=mask)


def copied(x, cos, sin, positions, offset, layout, back):
    batch, heads, length, head_size = x.shape
    x = x.clone(memory_format=torch.contiguous_format)
    _in_place_kernel[(batch * heads * length,)](
        x, cos, sin, positions, heads, length, offset, head_size,
        *((0, 0) if positions is None else positions.stride()),
        PAIRS=cos.shape[1], BLOCK_P=triton.next_power_of_2(cos.shape[1]),
        INTERLEAVED=layout == "interleaved", BACK=back,
    )
    return x


class Turn(torch.autograd.Function):
    @staticmethod
    def forward(x, cos, sin, positions, offset, layout):
        return copied(x, cos, sin, positions, offset, layout, False)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.inputs = inputs[1:]

    @staticmethod
    def backward(ctx, gradient):
        return copied(gradient, *ctx.inputs, True), None, None, None, None, None


def rope(q, k, cos, sin, positions, offset, layout):
    return tuple(Turn.apply(x, cos, sin, positions, offset, layout) for x in (q, k))
