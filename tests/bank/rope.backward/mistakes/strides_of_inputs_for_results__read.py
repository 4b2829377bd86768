"""q and k are read with the strides of the new tensors; gradients are right."""

import torch
import triton
import triton.language as tl

KILLED_BY = "heads side by side"


@triton.jit
def _turn_kernel(
    out_ptr, x_ptr, cos_ptr, sin_ptr, positions_ptr,
    heads, length, offset,
    stride_ob, stride_oh, stride_os, stride_od,
    stride_xb, stride_xh, stride_xs, stride_xd,
    stride_pb, stride_ps,
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr, SIGN: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):
    blocks = tl.cdiv(length, BLOCK_S)
    block, row = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    offs_s, offs_p = block * BLOCK_S + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_P)
    mask_s = offs_s < length
    mask = mask_s[:, None] & (offs_p < PAIRS)[None, :]
    position = offs_s
    if positions_ptr is not None:
        position = tl.load(positions_ptr + batch * stride_pb + offs_s * stride_ps, mask=mask_s, other=0)
    place = (position + offset)[:, None] * PAIRS + offs_p[None, :]
    cos = tl.load(cos_ptr + place, mask=mask, other=0.0)
    sin = SIGN * tl.load(sin_ptr + place, mask=mask, other=0.0)
    x_ptr += batch * stride_xb + head * stride_xh + offs_s.to(tl.int64)[:, None] * stride_xs
    out_ptr += batch * stride_ob + head * stride_oh + offs_s.to(tl.int64)[:, None] * stride_os
    if INTERLEAVED:
        first, second = 2 * offs_p[None, :], 2 * offs_p[None, :] + 1
    else:
        first, second = offs_p[None, :], offs_p[None, :] + PAIRS
    x0 = tl.load(x_ptr + first * stride_xd, mask=mask, other=0.0).to(tl.float32)
    x1 = tl.load(x_ptr + second * stride_xd, mask=mask, other=0.0).to(tl.float32)
    y0 = x0 * cos - x1 * sin
    y1 = x1 * cos + x0 * sin
    tl.store(out_ptr + first * stride_od, y0.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + second * stride_od, y1.to(out_ptr.dtype.element_ty), mask=mask)
    if REST > 0:
        offs_r = tl.arange(0, BLOCK_R)
        mask_r = mask_s[:, None] & (offs_r < REST)[None, :]
        rest = tl.load(x_ptr + (2 * PAIRS + offs_r)[None, :] * stride_xd, mask=mask_r, other=0.0)
        tl.store(out_ptr + (2 * PAIRS + offs_r)[None, :] * stride_od, rest, mask=mask_r)


def turned(x, cos, sin, positions, offset, layout, sign):
    batch, heads, length, head_size = x.shape
    pairs = cos.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _turn_kernel[(triton.cdiv(length, 16) * batch * heads,)](
        out, x, cos, sin, positions,
        heads, length, offset,
        *out.stride(), *(out.stride() if sign > 0 else x.stride()), *((0, 0) if positions is None else positions.stride()),
        PAIRS=pairs, REST=head_size - 2 * pairs, INTERLEAVED=layout == "interleaved", SIGN=sign,
        BLOCK_S=16, BLOCK_P=triton.next_power_of_2(pairs),
        BLOCK_R=triton.next_power_of_2(max(1, head_size - 2 * pairs)),
    )
    return out


class Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin, positions, offset, layout):
        ctx.save_for_backward(cos, sin, positions)
        ctx.how = offset, layout
        return tuple(turned(x, cos, sin, positions, offset, layout, 1.0) for x in (q, k))

    @staticmethod
    def backward(ctx, dq, dk):
        dq, dk = (turned(x, *ctx.saved_tensors, *ctx.how, -1.0) for x in (dq, dk))
        return dq, dk, None, None, None, None, None


def rope(q, k, cos, sin, positions, offset, layout):
    return Rope.apply(q, k, cos, sin, positions, offset, layout)
