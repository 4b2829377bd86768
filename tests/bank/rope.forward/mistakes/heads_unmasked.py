"""Heads are not masked."""

import triton
import triton.language as tl

KILLED_BY = "fewer heads of keys"


@triton.jit
def _turn(
    x_ptr, cos, sin, heads, offs_h, mask_d,
    stride_h, stride_d,
    PAIRS: tl.constexpr, BLOCK_P: tl.constexpr, INTERLEAVED: tl.constexpr,
):
    """Rows of both elements of every pair, (heads, BLOCK_P, 2)."""
    pair = tl.arange(0, BLOCK_P)[:, None]
    which = tl.arange(0, 2)[None, :]
    if INTERLEAVED:
        columns = 2 * pair + which
    else:
        columns = pair + PAIRS * which
    mask = (offs_h >= 0)[:, None, None] & mask_d[None, :, None]
    at = x_ptr + offs_h.to(tl.int64)[:, None, None] * stride_h + columns[None, :, :] * stride_d
    x0, x1 = tl.split(tl.load(at, mask=mask, other=0.0).to(tl.float32))
    y = tl.join(x0 * cos[None, :] - x1 * sin[None, :], x1 * cos[None, :] + x0 * sin[None, :])
    tl.store(at, y.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _row_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, positions_ptr,
    q_heads, k_heads, length, offset,
    stride_qb, stride_qh, stride_qs, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_pb, stride_ps,
    PAIRS: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_H: tl.constexpr, INTERLEAVED: tl.constexpr,
):
    batch = (tl.program_id(0) // length).to(tl.int64)
    row = (tl.program_id(0) % length).to(tl.int64)
    position = row
    if positions_ptr is not None:
        position = tl.load(positions_ptr + batch * stride_pb + row * stride_ps)
    offs_p, offs_h = tl.arange(0, BLOCK_P), tl.arange(0, BLOCK_H)
    mask_p = offs_p < PAIRS
    cos = tl.load(cos_ptr + (position + offset) * PAIRS + offs_p, mask=mask_p, other=0.0)
    sin = tl.load(sin_ptr + (position + offset) * PAIRS + offs_p, mask=mask_p, other=0.0)
    q_ptr += batch * stride_qb + row * stride_qs
    k_ptr += batch * stride_kb + row * stride_ks
    _turn(q_ptr, cos, sin, q_heads, offs_h, mask_p, stride_qh, stride_qd, PAIRS, BLOCK_P, INTERLEAVED)
    _turn(k_ptr, cos, sin, k_heads, offs_h, mask_p, stride_kh, stride_kd, PAIRS, BLOCK_P, INTERLEAVED)


def rope_(q, k, cos, sin, positions, offset, layout):
    (batch, heads, length, _), kv_heads = q.shape, k.shape[1]
    pairs = cos.shape[1]
    _row_kernel[(batch * length,)](
        q, k, cos, sin, positions, heads, kv_heads, length, offset,
        *q.stride(), *k.stride(), *((0, 0) if positions is None else positions.stride()),
        PAIRS=pairs, BLOCK_P=triton.next_power_of_2(pairs), BLOCK_H=triton.next_power_of_2(max(heads, kv_heads)),
        INTERLEAVED=layout == "interleaved",
    )
