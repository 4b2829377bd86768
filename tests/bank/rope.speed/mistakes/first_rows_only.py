"""One block a head."""

import triton
import triton.language as tl

KILLED_BY = "many rows"


@triton.jit
def _turn(
    out_ptr, x_ptr, cos, sin, offs_s, offs_p, mask_s, mask,
    stride_os, stride_od, stride_xs, stride_xd,
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_R: tl.constexpr,
):
    if INTERLEAVED:
        first, second = 2 * offs_p[None, :], 2 * offs_p[None, :] + 1
    else:
        first, second = offs_p[None, :], offs_p[None, :] + PAIRS
    x_rows = x_ptr + offs_s[:, None] * stride_xs
    out_rows = out_ptr + offs_s[:, None] * stride_os
    x0 = tl.load(x_rows + first * stride_xd, mask=mask, other=0.0).to(tl.float32)
    x1 = tl.load(x_rows + second * stride_xd, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_rows + first * stride_od, (x0 * cos - x1 * sin).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_rows + second * stride_od, (x1 * cos + x0 * sin).to(out_ptr.dtype.element_ty), mask=mask)
    if REST > 0:
        offs_r = tl.arange(0, BLOCK_R)
        mask_r = mask_s[:, None] & (offs_r < REST)[None, :]
        rest = tl.load(x_rows + (2 * PAIRS + offs_r)[None, :] * stride_xd, mask=mask_r, other=0.0)
        tl.store(out_rows + (2 * PAIRS + offs_r)[None, :] * stride_od, rest, mask=mask_r)


@triton.jit
def _rope_kernel(
    q_out_ptr, k_out_ptr, q_ptr, k_ptr, cos_ptr, sin_ptr,
    q_heads, k_heads, length,
    stride_qob, stride_qoh, stride_qos, stride_qod,
    stride_kob, stride_koh, stride_kos, stride_kod,
    stride_qb, stride_qh, stride_qs, stride_qd,
    stride_kb, stride_kh, stride_ks, stride_kd,
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):
    heads = q_heads + k_heads
    head = (tl.program_id(0) % heads).to(tl.int64)
    blocks = 1
    block = tl.program_id(0) // heads % blocks
    batch = (tl.program_id(0) // heads // blocks).to(tl.int64)
    offs_s = block * BLOCK_S + tl.arange(0, BLOCK_S).to(tl.int64)
    offs_p = tl.arange(0, BLOCK_P)
    mask_s = offs_s < length
    mask = mask_s[:, None] & (offs_p < PAIRS)[None, :]
    place = offs_s[:, None] * PAIRS + offs_p[None, :]
    cos = tl.load(cos_ptr + place, mask=mask, other=0.0)
    sin = tl.load(sin_ptr + place, mask=mask, other=0.0)
    if head < q_heads:
        out_ptr = q_out_ptr + batch * stride_qob + head * stride_qoh
        x_ptr = q_ptr + batch * stride_qb + head * stride_qh
        _turn(
            out_ptr, x_ptr, cos, sin, offs_s, offs_p, mask_s, mask,
            stride_qos, stride_qod, stride_qs, stride_qd, PAIRS, REST, INTERLEAVED, BLOCK_R,
        )
    else:
        out_ptr = k_out_ptr + batch * stride_kob + (head - q_heads) * stride_koh
        x_ptr = k_ptr + batch * stride_kb + (head - q_heads) * stride_kh
        _turn(
            out_ptr, x_ptr, cos, sin, offs_s, offs_p, mask_s, mask,
            stride_kos, stride_kod, stride_ks, stride_kd, PAIRS, REST, INTERLEAVED, BLOCK_R,
        )


def rope_into(q, k, cos, sin, layout, q_out, k_out):
    (batch, heads, length, head_size), kv_heads = q.shape, k.shape[1]
    pairs = cos.shape[1]
    block = 32 if q.is_cuda else 16
    _rope_kernel[(batch * (heads + kv_heads),)](
        q_out, k_out, q, k, cos, sin, heads, kv_heads, length,
        *q_out.stride(), *k_out.stride(), *q.stride(), *k.stride(),
        PAIRS=pairs, REST=head_size - 2 * pairs, INTERLEAVED=layout == "interleaved",
        BLOCK_S=block, BLOCK_P=triton.next_power_of_2(pairs),
        BLOCK_R=triton.next_power_of_2(max(1, head_size - 2 * pairs)),
    )
