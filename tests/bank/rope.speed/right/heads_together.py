"""A program turns several heads at one or a few positions: angles are loaded once for all, pairs in one wide access."""

import triton
import triton.language as tl


@triton.jit
def _heads_kernel(
    out_ptr, x_ptr, cos_ptr, sin_ptr,
    heads, length,
    stride_ob, stride_oh, stride_os, stride_od,
    stride_xb, stride_xh, stride_xs, stride_xd,
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):
    h_blocks, s_blocks = tl.cdiv(heads, BLOCK_H), tl.cdiv(length, BLOCK_S)
    h_block = tl.program_id(0) % h_blocks
    s_block = tl.program_id(0) // h_blocks % s_blocks
    batch = (tl.program_id(0) // h_blocks // s_blocks).to(tl.int64)
    offs_s = s_block * BLOCK_S + tl.arange(0, BLOCK_S).to(tl.int64)
    offs_h = h_block * BLOCK_H + tl.arange(0, BLOCK_H).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)
    mask_s, mask_p = offs_s < length, offs_p < PAIRS
    rows = mask_s[:, None] & (offs_h < heads)[None, :]
    x_rows = x_ptr + batch * stride_xb + offs_s[:, None] * stride_xs + offs_h[None, :] * stride_xh
    out_rows = out_ptr + batch * stride_ob + offs_s[:, None] * stride_os + offs_h[None, :] * stride_oh
    place = offs_s[:, None] * PAIRS + offs_p[None, :]
    cos = tl.load(cos_ptr + place, mask=mask_s[:, None] & mask_p[None, :], other=0.0)[:, None, :]
    sin = tl.load(sin_ptr + place, mask=mask_s[:, None] & mask_p[None, :], other=0.0)[:, None, :]
    if INTERLEAVED:
        offs_d = tl.arange(0, 2 * BLOCK_P)
        mask_d = rows[:, :, None] & (offs_d < 2 * PAIRS)[None, None, :]
        x = tl.load(x_rows[:, :, None] + offs_d[None, None, :] * stride_xd, mask=mask_d, other=0.0).to(tl.float32)
        x0, x1 = tl.split(tl.reshape(x, (BLOCK_S, BLOCK_H, BLOCK_P, 2)))
        y = tl.reshape(tl.join(x0 * cos - x1 * sin, x1 * cos + x0 * sin), (BLOCK_S, BLOCK_H, 2 * BLOCK_P))
        at = out_rows[:, :, None] + offs_d[None, None, :] * stride_od
        tl.store(at, y.to(out_ptr.dtype.element_ty), mask=mask_d)
    else:
        mask = rows[:, :, None] & mask_p[None, None, :]
        first, second = offs_p[None, None, :], offs_p[None, None, :] + PAIRS
        x0 = tl.load(x_rows[:, :, None] + first * stride_xd, mask=mask, other=0.0).to(tl.float32)
        x1 = tl.load(x_rows[:, :, None] + second * stride_xd, mask=mask, other=0.0).to(tl.float32)
        y0, y1 = x0 * cos - x1 * sin, x1 * cos + x0 * sin
        tl.store(out_rows[:, :, None] + first * stride_od, y0.to(out_ptr.dtype.element_ty), mask=mask)
        tl.store(out_rows[:, :, None] + second * stride_od, y1.to(out_ptr.dtype.element_ty), mask=mask)
    if REST > 0:
        offs_r = 2 * PAIRS + tl.arange(0, BLOCK_R)
        mask_r = rows[:, :, None] & (offs_r < 2 * PAIRS + REST)[None, None, :]
        rest = tl.load(x_rows[:, :, None] + offs_r[None, None, :] * stride_xd, mask=mask_r, other=0.0)
        tl.store(out_rows[:, :, None] + offs_r[None, None, :] * stride_od, rest, mask=mask_r)


def rope_into(q, k, cos, sin, layout, q_out, k_out):
    pairs = cos.shape[1]
    for x, out in ((q, q_out), (k, k_out)):
        batch, heads, length, head_size = x.shape
        inside = x.stride(1) < x.stride(2)
        block_h = min(16 if inside else 2, triton.next_power_of_2(heads))
        block_s = max(1, (2048 if x.is_cuda else 256) // (block_h * 2 * triton.next_power_of_2(pairs)))
        _heads_kernel[(triton.cdiv(length, block_s) * triton.cdiv(heads, block_h) * batch,)](
            out, x, cos, sin, heads, length, *out.stride(), *x.stride(),
            PAIRS=pairs, REST=head_size - 2 * pairs, INTERLEAVED=layout == "interleaved",
            BLOCK_S=block_s, BLOCK_H=block_h, BLOCK_P=triton.next_power_of_2(pairs),
            BLOCK_R=triton.next_power_of_2(max(1, head_size - 2 * pairs)),
        )
