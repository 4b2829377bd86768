"""Where a sequence begins was forgotten: all programs turn the first one."""

import triton
import triton.language as tl

KILLED_BY = "halves"


@triton.jit
def _turn(
    x_ptr, cos, sin, offs_s, offs_p, mask,
    stride_s, stride_d,
    PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
):
    if INTERLEAVED:
        first, second = 2 * offs_p, 2 * offs_p + 1
    else:
        first, second = offs_p, offs_p + PAIRS
    rows = x_ptr + offs_s.to(tl.int64)[:, None] * stride_s
    x0 = tl.load(rows + first[None, :] * stride_d, mask=mask, other=0.0).to(tl.float32)
    x1 = tl.load(rows + second[None, :] * stride_d, mask=mask, other=0.0).to(tl.float32)
    y0 = x0 * cos - x1 * sin
    y1 = x1 * cos + x0 * sin
    tl.store(rows + first[None, :] * stride_d, y0.to(x_ptr.dtype.element_ty), mask=mask)
    tl.store(rows + second[None, :] * stride_d, y1.to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _rope_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, positions_ptr,
    q_heads, k_heads, length, offset,
    stride_qb, stride_qh, stride_qs, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    stride_pb, stride_ps,
    PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_P: tl.constexpr,
):
    blocks = tl.cdiv(length, BLOCK_S)
    block = tl.program_id(0) % blocks
    row = tl.program_id(0) // blocks
    batch = (row // (q_heads + k_heads)).to(tl.int64)
    head = (row % (q_heads + k_heads)).to(tl.int64)
    offs_s = block * BLOCK_S + tl.arange(0, BLOCK_S)
    offs_p = tl.arange(0, BLOCK_P)
    mask_s = offs_s < length
    mask_p = offs_p < PAIRS
    mask = mask_s[:, None] & mask_p[None, :]
    position = offs_s.to(tl.int64)
    if positions_ptr is not None:
        position = tl.load(positions_ptr + batch * stride_pb + offs_s * stride_ps, mask=mask_s, other=0)
    position += offset
    place = position[:, None] * PAIRS + offs_p[None, :]
    cos = tl.load(cos_ptr + place, mask=mask, other=1.0)
    sin = tl.load(sin_ptr + place, mask=mask, other=0.0)
    if head < q_heads:
        x_ptr = q_ptr + head * stride_qh
        _turn(x_ptr, cos, sin, offs_s, offs_p, mask, stride_qs, stride_qd, PAIRS, INTERLEAVED)
    else:
        x_ptr = k_ptr + (head - q_heads) * stride_kh
        _turn(x_ptr, cos, sin, offs_s, offs_p, mask, stride_ks, stride_kd, PAIRS, INTERLEAVED)


def rope_(q, k, cos, sin, positions, offset, layout):
    (batch, heads, length, _), kv_heads = q.shape, k.shape[1]
    pairs = cos.shape[1]
    ids = (0, 0) if positions is None else positions.stride()
    _rope_kernel[(triton.cdiv(length, 16) * batch * (heads + kv_heads),)](
        q, k, cos, sin, positions,
        heads, kv_heads, length, offset,
        *q.stride(), *k.stride(), *ids,
        PAIRS=pairs, INTERLEAVED=layout == "interleaved", BLOCK_S=16, BLOCK_P=triton.next_power_of_2(pairs),
    )
