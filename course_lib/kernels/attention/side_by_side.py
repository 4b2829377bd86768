"""Attention, backward, where tiles are too few for the GPU: both passes of backward.py in one launch, side by side.

The programs of dk and dv come first, those of dq behind them, of each kind the longest first, and a multiprocessor has
room for several. Neither kind waits for the other, since shift and delta are there before (sums.py). Products and sums
are those of two passes in the same blocks.
"""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.kernels.attention.backward_tiles import dkdv_of_keys, dq_of_queries
from course_lib.kernels.attention.masks import at_run_time
from course_lib.kernels.attention.rows import LOG2_E, precision, spans, tiles
from course_lib.kernels.attention.sums import prepare
from course_lib.kernels.attention.tuning import SideBySide
from course_lib.kernels.columns import split
from course_lib.kernels.launching import launch
from course_lib.kernels.strides import in_units, unit_of

__all__ = ["side_by_side_kernel", "write_side_by_side"]


@triton.jit
def side_by_side_kernel(
    dq_ptr, dk_ptr, dv_ptr, shift_ptr, delta_ptr, q_ptr, k_ptr, v_ptr, do_ptr,
    k_tiles, v_tiles, q_tiles, do_tiles, shift_tiles, delta_tiles, lengths_ptr,
    sizes, scales,  # (of_keys, batches, heads, n_q, n_k, stride_terms), (scale, scale_log2)
    # strides of batch, head and row in UNITs, of column
    stride_dq, stride_dk, stride_dv, stride_q, stride_k, stride_v, stride_do,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """of_keys: programs that make dk and dv."""
    of_keys, batches, heads, n_q, n_k, stride_terms = sizes
    scale, scale_log2 = scales
    n_k = at_run_time(n_k)
    program = tl.program_id(0)
    # In this order: the other way round it takes 182 registers at 64 columns, and two programs fit where three do.
    if program >= of_keys:
        number = program - of_keys
        batch_head = number % (batches * heads)
        dq_of_queries(
            dq_ptr, shift_ptr, delta_ptr, q_ptr, k_ptr, v_ptr, q_ptr, do_ptr, shift_ptr, None,
            k_tiles, v_tiles, lengths_ptr,
            number // (batches * heads), batch_head // heads, batch_head % heads, heads, n_q, n_k, stride_terms,
            stride_dq, stride_q, stride_k, stride_v, stride_q, stride_do,
            scale, scale_log2,
            GROUP, HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, BLOCK_M, BLOCK_N, PRECISION,
            SAME_LENGTHS=False, TERMS_THERE=True,
        )  # fmt: skip
    else:
        kv_heads = heads // GROUP
        batch_head = program % (batches * kv_heads)
        dkdv_of_keys(
            dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr,
            q_tiles, do_tiles, shift_tiles, delta_tiles, lengths_ptr,
            program // (batches * kv_heads), batch_head // kv_heads, batch_head % kv_heads,
            kv_heads, n_q, n_k, stride_terms,
            stride_dk, stride_dv, stride_q, stride_k, stride_v, stride_do,
            scale, scale_log2,
            GROUP, 1, HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, BLOCK_M, BLOCK_N, PRECISION,
        )  # fmt: skip


def write_side_by_side(
    dq, dk, dv, shift, delta, do, q, k, v, o, l, dl, causal: bool, scale: float, k_lengths, blocks: SideBySide
) -> None:  # fmt: skip
    """Into dq, dk and dv, and shift and delta. FLOP: 14 B H n_q n_k D, half of it causal."""
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    of_keys, of_queries = triton.cdiv(n_k, blocks.n) * B * kv_heads, triton.cdiv(n_q, blocks.m) * B * H
    if of_queries:
        prepare(None, None, shift, delta, do, q, o, l, dl, k_lengths=None, zeros=False, in_order=False)
    if of_keys + of_queries == 0:
        return
    main, rest = split(D)
    tensors = (dq, dk, dv, q, k, v, do)
    unit = unit_of(*tensors)
    of_k, of_q = tiles(blocks.n, k, v), tiles(blocks.m, q, do)
    reached = of_k[0] is not None and of_q[0] is not None
    terms = [TensorDescriptor.from_tensor(x, [1, blocks.m]) if reached else None for x in (shift, delta)]
    walked = (*of_k, *of_q) if reached else (None,) * 4
    launch(
        side_by_side_kernel, (of_keys + of_queries,),
        dq, dk, dv, shift, delta, q, k, v, do, *walked, *terms, k_lengths,
        (of_keys, B, H, n_q, n_k, shift.stride(0)), (scale, scale * LOG2_E),
        *(in_units(x, unit) for x in tensors),
        GROUP=H // kv_heads, HEAD=D, MAIN=main, REST=rest,
        UNIT=unit, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors), TMA=reached,
        CAUSAL=causal, WHOLE=k_lengths is None and n_k % blocks.n == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages, maxnreg=blocks.registers,
    )  # fmt: skip
