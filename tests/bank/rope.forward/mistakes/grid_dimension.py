"""Sequences are the second dimension of the grid."""

import triton
import triton.language as tl

KILLED_BY = "more than 65535 sequences"
TIERS = ("gpu",)


@triton.jit
def _element_kernel(
    x_ptr, cos_ptr, sin_ptr, positions_ptr,
    heads, length, offset,
    stride_b, stride_h, stride_s, stride_d,
    stride_pb, stride_ps,
    PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_R: tl.constexpr,
):
    block, row = tl.program_id(0), tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    offs_s, offs_r = block * BLOCK_S + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_R)
    if INTERLEAVED:
        pair, second, partner = offs_r // 2, offs_r % 2 == 1, offs_r ^ 1
    else:
        pair, second, partner = offs_r % PAIRS, offs_r >= PAIRS, (offs_r + PAIRS) % (2 * PAIRS)
    mask_s = offs_s < length
    mask = mask_s[:, None] & (offs_r < 2 * PAIRS)[None, :]
    position = offs_s.to(tl.int64)
    if positions_ptr is not None:
        position = tl.load(positions_ptr + batch * stride_pb + offs_s * stride_ps, mask=mask_s, other=0)
    place = (position + offset)[:, None] * PAIRS + pair[None, :]
    cos = tl.load(cos_ptr + place, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + place, mask=mask, other=0.0)
    rows = x_ptr + batch * stride_b + head * stride_h + offs_s.to(tl.int64)[:, None] * stride_s
    own = tl.load(rows + offs_r[None, :] * stride_d, mask=mask, other=0.0).to(tl.float32)
    other = tl.load(rows + partner[None, :] * stride_d, mask=mask, other=0.0).to(tl.float32)
    turned = own * cos + tl.where(second[None, :], other, -other) * sin
    # an element is stored by one thread and was loaded by another: all loads of the program come first
    tl.debug_barrier()
    tl.store(rows + offs_r[None, :] * stride_d, turned.to(x_ptr.dtype.element_ty), mask=mask)


def rope_(q, k, cos, sin, positions, offset, layout):
    pairs = cos.shape[1]
    for x in (q, k):
        batch, heads, length, _ = x.shape
        _element_kernel[(triton.cdiv(length, 8), batch * heads)](
            x, cos, sin, positions, heads, length, offset,
            *x.stride(), *((0, 0) if positions is None else positions.stride()),
            PAIRS=pairs, INTERLEAVED=layout == "interleaved", BLOCK_S=8, BLOCK_R=triton.next_power_of_2(2 * pairs),
        )
