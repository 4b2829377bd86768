"""Tensors in, one launch."""

import triton

from course_lib.kernels.attention.operands import strides, unit
from course_lib.kernels.rope.kernel import rope_kernel
from course_lib.kernels.rope.tuning import Blocks, blocks_for

__all__ = ["heads_inside", "write_rope"]


def heads_inside(q) -> bool:
    """Do the heads of one position lie closer together than the positions of one head: (B, S, H, D) in memory?"""
    return q.stride(1) < q.stride(2)


def write_rope(
    q_out, k_out, q, k, first, second, positions, offset: int, computed: bool, interleaved: bool, inverse: bool,
    blocks: Blocks | None = None,
) -> None:  # fmt: skip
    """q, q_out (B, H, S, D), k, k_out (B, H_kv, S, D), any strides; in place where out is the tensor itself.

    first, second: cosines and sines (positions, R / 2), or with `computed` both parts of the frequencies (R / 2,).
    positions: (B, S) integers of any strides, or None for 0, 1, ..; `offset` is added to each. Bytes: read and write
    the first R elements of every head, all D of them where out is another tensor.
    """
    (B, q_heads, S, D), k_heads = q.shape, k.shape[1]
    pairs = first.shape[-1]
    inside = heads_inside(q)
    blocks = blocks or blocks_for(q_heads, k_heads, 2 * pairs, inside, q.device)
    programs = B * triton.cdiv(S, blocks.positions)
    programs *= triton.cdiv(q_heads, blocks.q_heads) + triton.cdiv(k_heads, blocks.k_heads)
    if programs == 0 or pairs == 0:
        return
    rest = 0 if q_out is q and k_out is k else D - 2 * pairs
    step = unit(q_out, k_out, q, k)
    rope_kernel[(programs,)](
        q_out, k_out, q, k, first, second, positions,
        q_heads, k_heads, S, first.shape[0], offset,
        *strides(q_out, step), *strides(k_out, step), *strides(q, step), *strides(k, step),
        *((0, 0) if positions is None else positions.stride()),
        PAIRS=pairs, REST=rest, INTERLEAVED=interleaved, COMPUTED=computed, INVERSE=inverse,
        HEADS_INSIDE=inside, UNIT=step,
        BLOCK_S=blocks.positions, BLOCK_Q=blocks.q_heads, BLOCK_K=blocks.k_heads,
        BLOCK_P=triton.next_power_of_2(pairs), BLOCK_R=triton.next_power_of_2(max(1, rest)),
        num_warps=blocks.warps,
    )  # fmt: skip
