"""A program of one warp turns one row of one head: 256 bytes in bf16 at head size 128."""

import triton
import triton.language as tl


@triton.jit
def _row_kernel(
    out_ptr, x_ptr, cos_ptr, sin_ptr,
    heads, length,
    stride_ob, stride_oh, stride_os, stride_od,
    stride_xb, stride_xh, stride_xs, stride_xd,
    PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
):
    row = (tl.program_id(0) % length).to(tl.int64)
    head = (tl.program_id(0) // length % heads).to(tl.int64)
    batch = (tl.program_id(0) // length // heads).to(tl.int64)
    offs = tl.arange(0, BLOCK_D)
    turning, mask = offs < 2 * PAIRS, offs < D
    if INTERLEAVED:
        pair, second, partner = offs // 2, offs % 2 == 1, offs ^ 1
    else:
        pair, second, partner = offs % PAIRS, offs >= PAIRS, (offs + PAIRS) % (2 * PAIRS)
    cos = tl.load(cos_ptr + row * PAIRS + pair, mask=turning, other=1.0)
    sin = tl.load(sin_ptr + row * PAIRS + pair, mask=turning, other=0.0)
    x_ptr += batch * stride_xb + head * stride_xh + row * stride_xs
    own = tl.load(x_ptr + offs * stride_xd, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + partner * stride_xd, mask=turning, other=0.0).to(tl.float32)
    y = own * cos + tl.where(second, other, -other) * sin
    out_ptr += batch * stride_ob + head * stride_oh + row * stride_os
    tl.store(out_ptr + offs * stride_od, y.to(out_ptr.dtype.element_ty), mask=mask)


def rope_into(q, k, cos, sin, layout, q_out, k_out):
    for x, out in ((q, q_out), (k, k_out)):
        batch, heads, length, head_size = x.shape
        _row_kernel[(batch * heads * length,)](
            out, x, cos, sin, heads, length, *out.stride(), *x.stride(),
            PAIRS=cos.shape[1], INTERLEAVED=layout == "interleaved",
            D=head_size, BLOCK_D=triton.next_power_of_2(head_size), num_warps=1,
        )
