"""The kernel: a program turns a block of positions and heads of q or of k.

Whether x and out are the same memory makes no difference: a thread has loaded both elements of a pair before it stores
either, and no other thread stores them.
"""

import triton
import triton.language as tl

__all__ = ["rope_kernel"]


@triton.jit
def _positions(positions_ptr, batch, offs_s, mask_s, stride_b, stride_s, offset):
    if positions_ptr is None:
        return offs_s.to(tl.int64) + offset
    else:
        at = positions_ptr + tl.cast(batch, tl.int64) * stride_b + offs_s.to(tl.int64) * stride_s
        return tl.load(at, mask=mask_s, other=0).to(tl.int64) + offset


@triton.jit
def _cos_sin_of_quarters(whole, rest):
    """cos and sin of whole + rest quarter turns, whole integer, |rest| <= 0.5.

    Two short polynomials (of the Cephes library, for up to an eighth of a turn, within 1.5 units in the last place),
    and the quarter says which is which. tl.cos would reduce the angle once more, and brings a path for huge ones along:
    the machine code of the kernel has 2000 lines this way and 6400 that way.
    """
    x = rest * 1.5707963267948966
    z = x * x
    sin = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    cos = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    quarter = whole.to(tl.int32) & 3
    odd = (quarter & 1) == 1
    turned_cos, turned_sin = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    turned_cos = tl.where((quarter == 1) | (quarter == 2), -turned_cos, turned_cos)
    return turned_cos, tl.where(quarter >= 2, -turned_sin, turned_sin)


@triton.jit
def _cos_sin(
    first_ptr, second_ptr, positions, mask_s, offs_p, n_positions,
    PAIRS: tl.constexpr, COMPUTED: tl.constexpr,
):  # fmt: skip
    """(positions, pairs) in fp32."""
    mask_p = offs_p < PAIRS
    if COMPUTED:
        high = tl.load(first_ptr + offs_p, mask=mask_p, other=0.0)[None, :]
        low = tl.load(second_ptr + offs_p, mask=mask_p, other=0.0)[None, :]
        position, high = tl.broadcast(positions.to(tl.float32)[:, None], high)
        # Whole quarters go before anything is rounded away: one fused multiply-add of two 24-bit factors loses nothing
        # but its last rounding, 2^-26 of a quarter, for every position below 2^24.
        whole = tl.floor(position * high + 0.5)
        rest = tl.fma(position, high, -whole) + position * low
        more = tl.floor(rest + 0.5)  # beyond 2^22 quarters the sum above had no bit left for a half
        return _cos_sin_of_quarters(whole + more, rest - more)
    else:
        # A position that the tables do not hold gives NaN, and reads nothing.
        known = mask_s & (positions >= 0) & (positions < n_positions)
        at, mask = positions[:, None] * PAIRS + offs_p[None, :], known[:, None] & mask_p[None, :]
        cos = tl.load(first_ptr + at, mask=mask, other=float("nan"))
        return cos, tl.load(second_ptr + at, mask=mask, other=float("nan"))


@triton.jit
def _turn(
    out_ptr, x_ptr, first_ptr, second_ptr, positions_ptr,
    batch, offs_s, first_head, n_heads, length, n_positions, offset,
    stride_out_b, stride_out_h, stride_out_s, stride_out_d, stride_x_b, stride_x_h, stride_x_s, stride_x_d,
    stride_positions_b, stride_positions_s,
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTED: tl.constexpr, INVERSE: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    offs_h = first_head + tl.arange(0, BLOCK_H)
    offs_p = tl.arange(0, BLOCK_P)
    mask_s = offs_s < length
    mask_rows = mask_s[:, None] & (offs_h < n_heads)[None, :]
    # Strides but that inside a row come in UNITs, so that the compiler sees wide accesses in rows of 72 elements too.
    x_rows = tl.cast(batch, tl.int64) * stride_x_b + offs_s.to(tl.int64)[:, None] * stride_x_s
    x_rows = (x_rows + offs_h.to(tl.int64)[None, :] * stride_x_h) * UNIT
    out_rows = tl.cast(batch, tl.int64) * stride_out_b + offs_s.to(tl.int64)[:, None] * stride_out_s
    out_rows = (out_rows + offs_h.to(tl.int64)[None, :] * stride_out_h) * UNIT
    x_ptrs, out_ptrs = x_ptr + x_rows[:, :, None], out_ptr + out_rows[:, :, None]  # (positions, heads, 1)

    # What takes long is asked for first: the table of an explicit position waits for the position.
    mask = mask_rows[:, :, None] & (offs_p < PAIRS)[None, None, :]
    if INTERLEAVED:
        # Both elements of a pair in one access: a step of two would halve what each access brings.
        offs_i = tl.arange(0, 2 * BLOCK_P)
        mask_i = mask_rows[:, :, None] & (offs_i < 2 * PAIRS)[None, None, :]
        x = tl.load(x_ptrs + offs_i[None, None, :] * stride_x_d, mask=mask_i, other=0.0).to(tl.float32)
        x0, x1 = tl.split(tl.reshape(x, (x.shape[0], BLOCK_H, BLOCK_P, 2)))
    else:
        x0 = tl.load(x_ptrs + offs_p[None, None, :] * stride_x_d, mask=mask, other=0.0).to(tl.float32)
        x1 = tl.load(x_ptrs + (PAIRS + offs_p)[None, None, :] * stride_x_d, mask=mask, other=0.0).to(tl.float32)

    positions = _positions(positions_ptr, batch, offs_s, mask_s, stride_positions_b, stride_positions_s, offset)
    cos, sin = _cos_sin(first_ptr, second_ptr, positions, mask_s, offs_p, n_positions, PAIRS, COMPUTED)
    if INVERSE:
        sin = -sin
    cos, sin = cos[:, None, :], sin[:, None, :]
    y0 = (x0 * cos - x1 * sin).to(out_ptr.dtype.element_ty)
    y1 = (x1 * cos + x0 * sin).to(out_ptr.dtype.element_ty)

    if INTERLEAVED:
        y = tl.reshape(tl.join(y0, y1), (x0.shape[0], BLOCK_H, 2 * BLOCK_P))
        tl.store(out_ptrs + offs_i[None, None, :] * stride_out_d, y, mask=mask_i)
    else:
        tl.store(out_ptrs + offs_p[None, None, :] * stride_out_d, y0, mask=mask)
        tl.store(out_ptrs + (PAIRS + offs_p)[None, None, :] * stride_out_d, y1, mask=mask)
    if REST:  # out of place only: in place, what is not turned is already there
        offs_r = tl.arange(0, BLOCK_R)
        mask_r = mask_rows[:, :, None] & (offs_r < REST)[None, None, :]
        rest = tl.load(x_ptrs + (2 * PAIRS + offs_r)[None, None, :] * stride_x_d, mask=mask_r, other=0.0)
        tl.store(out_ptrs + (2 * PAIRS + offs_r)[None, None, :] * stride_out_d, rest, mask=mask_r)


@triton.jit
def rope_kernel(
    q_out_ptr, k_out_ptr, q_ptr, k_ptr, first_ptr, second_ptr, positions_ptr,
    q_heads, k_heads, length, n_positions, offset,
    stride_q_out_b, stride_q_out_h, stride_q_out_s, stride_q_out_d,
    stride_k_out_b, stride_k_out_h, stride_k_out_s, stride_k_out_d,
    stride_q_b, stride_q_h, stride_q_s, stride_q_d,
    stride_k_b, stride_k_h, stride_k_s, stride_k_d,
    stride_positions_b, stride_positions_s,
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTED: tl.constexpr, INVERSE: tl.constexpr,
    HEADS_INSIDE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    q_blocks = tl.cdiv(q_heads, BLOCK_Q)
    blocks = q_blocks + tl.cdiv(k_heads, BLOCK_K)
    s_blocks = tl.cdiv(length, BLOCK_S)
    # Programs that run at the same time take neighbouring memory: the next heads, or the next positions.
    if HEADS_INSIDE:
        block = tl.program_id(0) % blocks
        s_block = tl.program_id(0) // blocks % s_blocks
    else:
        s_block = tl.program_id(0) % s_blocks
        block = tl.program_id(0) // s_blocks % blocks
    batch = tl.program_id(0) // (blocks * s_blocks)
    offs_s = s_block * BLOCK_S + tl.arange(0, BLOCK_S)
    # Two calls and not one with chosen pointers: what the compiler knows of a pointer's alignment does not survive a
    # choice.
    if block < q_blocks:
        _turn(
            q_out_ptr, q_ptr, first_ptr, second_ptr, positions_ptr,
            batch, offs_s, block * BLOCK_Q, q_heads, length, n_positions, offset,
            stride_q_out_b, stride_q_out_h, stride_q_out_s, stride_q_out_d,
            stride_q_b, stride_q_h, stride_q_s, stride_q_d,
            stride_positions_b, stride_positions_s,
            PAIRS, REST, INTERLEAVED, COMPUTED, INVERSE, UNIT, BLOCK_Q, BLOCK_P, BLOCK_R,
        )  # fmt: skip
    else:
        _turn(
            k_out_ptr, k_ptr, first_ptr, second_ptr, positions_ptr,
            batch, offs_s, (block - q_blocks) * BLOCK_K, k_heads, length, n_positions, offset,
            stride_k_out_b, stride_k_out_h, stride_k_out_s, stride_k_out_d,
            stride_k_b, stride_k_h, stride_k_s, stride_k_d,
            stride_positions_b, stride_positions_s,
            PAIRS, REST, INTERLEAVED, COMPUTED, INVERSE, UNIT, BLOCK_K, BLOCK_P, BLOCK_R,
        )  # fmt: skip
