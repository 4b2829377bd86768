"""Attention, backward: the probabilities are made again from L, in two passes, and no two programs add to one sum.

    p = exp(s - L)    dp = do vᵀ    ds = p (dp - delta)    delta_i = sum_j p_ij dp_ij = sum_d do_id o_id

    dq = scale ds k                 one program a block of queries, walking over the keys; it also keeps delta, and L in
                                    base 2, for the other pass
    dk = scale dsᵀ q, dv = pᵀ do    one program a block of keys, walking over the queries that see them, and over all
                                    query heads that share these keys, or its part of these heads

Seven products are made where a single pass makes five: s and dp are made twice. For that no program ever writes where
another does: no atomic additions, and the same bits on every run. Where programs have parts of the heads, each writes
sums of its own in fp32, and they are added in a fixed order. What one program does is in
backward_tiles.py. A single pass (groups_onepass.py) runs where it was measured faster; and where one block holds all
keys of a head, one program makes its gradients (one_block.py). side_by_side.py launches both passes at once.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.kernels.attention.backward_tiles import dkdv_of_keys, dq_of_queries
from course_lib.kernels.attention.masks import at_run_time, which_head
from course_lib.kernels.attention.one_block import write_in_one_block
from course_lib.kernels.attention.rows import LOG2_E, precision, spans, tiles
from course_lib.kernels.attention.side_by_side import write_side_by_side
from course_lib.kernels.attention.sums import finish, room
from course_lib.kernels.attention.terms import row_terms
from course_lib.kernels.attention.tuning import (
    Blocks,
    Groups,
    OneBlock,
    OnePass,
    Parts,
    SideBySide,
    blocks_for,
    one_block_for,
    one_pass_for,
    side_by_side_for,
)
from course_lib.kernels.columns import split
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.strides import in_units, unit_of

__all__ = [
    "backward",
    "dkdv_kernel",
    "dq_kernel",
    "row_terms",
    "write_backward",
    "write_dkdv",
    "write_dq",
    "write_gradients",
]


@triton.jit
def dq_kernel(
    dq_ptr, shift_ptr, delta_ptr, q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, l_ptr, dl_ptr,
    k_tiles, v_tiles, lengths_ptr,
    heads, n_q, n_k, stride_terms,
    stride_dq, stride_q, stride_k, stride_v, stride_o, stride_do,  # of batch, head and row in UNITs, of column
    scale, scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
    SAME_LENGTHS: tl.constexpr = False,
):  # fmt: skip
    n_k = at_run_time(n_k)
    block, batch, head = which_head(heads, tl.cdiv(n_q, BLOCK_M))
    dq_of_queries(
        dq_ptr, shift_ptr, delta_ptr, q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, l_ptr, dl_ptr,
        k_tiles, v_tiles, lengths_ptr,
        block, batch, head, heads, n_q, n_k, stride_terms,
        stride_dq, stride_q, stride_k, stride_v, stride_o, stride_do,
        scale, scale_log2,
        GROUP, HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, BLOCK_M, BLOCK_N, PRECISION, SAME_LENGTHS,
    )  # fmt: skip


def write_dq(
    dq, shift, delta, do, q, k, v, o, l, dl, causal: bool, scale: float, k_lengths, blocks: Blocks,
    same_lengths: bool = False,
) -> None:  # fmt: skip
    """Into dq like q, and shift and delta (B H, n_q) fp32, rows apart by any stride. FLOP: 6 B H n_q n_k D, half of it
    causal."""
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    if dq.numel() == 0:
        return
    main, rest = split(D)
    tensors = (dq, q, k, v, o, do)
    unit = unit_of(*tensors)
    walked = tiles(blocks.n, k, v)
    launch(
        dq_kernel, (triton.cdiv(n_q, blocks.m) * B * H,),
        dq, shift, delta, q, k, v, o, do, l, dl if dl is None else dl.contiguous(),
        *walked, k_lengths,
        H, n_q, n_k, shift.stride(0),
        *(in_units(x, unit) for x in tensors),
        scale, scale * LOG2_E,
        GROUP=H // kv_heads, HEAD=D, MAIN=main, REST=rest,
        UNIT=unit, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors), TMA=walked[0] is not None,
        CAUSAL=causal, WHOLE=k_lengths is None and n_k % blocks.n == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        SAME_LENGTHS=same_lengths,
        num_warps=blocks.warps, num_stages=blocks.stages, maxnreg=blocks.registers,
    )  # fmt: skip


@triton.jit
def dkdv_kernel(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr,
    q_tiles, do_tiles, shift_tiles, delta_tiles, lengths_ptr,
    kv_heads, n_q, n_k, stride_terms,
    stride_dk, stride_dv, stride_q, stride_k, stride_v, stride_do,  # of batch, head and row in UNITs, of column
    scale, scale_log2,
    GROUP: tl.constexpr, PARTS: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr, SAME_LENGTHS: tl.constexpr = False,
):  # fmt: skip
    n_k = at_run_time(n_k)
    block, batch, part = which_head(kv_heads * PARTS, tl.cdiv(n_k, BLOCK_N))
    dkdv_of_keys(
        dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr,
        q_tiles, do_tiles, shift_tiles, delta_tiles, lengths_ptr,
        block, batch, part, kv_heads, n_q, n_k, stride_terms,
        stride_dk, stride_dv, stride_q, stride_k, stride_v, stride_do,
        scale, scale_log2,
        GROUP, PARTS, HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, BLOCK_M, BLOCK_N, PRECISION, SAME_LENGTHS,
    )  # fmt: skip


def write_dkdv(
    dk, dv, do, q, k, v, shift, delta, causal: bool, scale: float, k_lengths, blocks: Blocks | Groups | Parts,
    same_lengths: bool = False,
) -> None:  # fmt: skip
    """Into dk and dv, like k and v; shift and delta as write_dq made them. FLOP: 8 B H n_q n_k D, half of it causal.

    What `blocks` are says which kernels make them. Of Parts, parts x 8 B H_kv n_k D bytes are written and read besides.
    """
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    if dk.numel() == 0:
        return
    if isinstance(blocks, Groups):
        from course_lib.kernels.attention.groups_dkdv import write_dkdv_in_groups  # Gluon need not be there

        return write_dkdv_in_groups(
            dk, dv, do, q, k, v, shift, delta, causal, scale, k_lengths, blocks, same_lengths
        )  # fmt: skip
    main, rest = split(D)
    parts, sums = blocks.parts if isinstance(blocks, Parts) else 1, (dk, dv)
    if parts > 1:
        sums = torch.empty(2, B, kv_heads * parts, n_k, D, dtype=torch.float32, device=q.device)
    tensors = (*sums, q, k, v, do)
    unit = unit_of(*tensors)
    walked = tiles(blocks.m, q, do)
    terms = tuple(TensorDescriptor.from_tensor(x, [1, blocks.m]) if walked[0] else None for x in (shift, delta))
    launch(
        dkdv_kernel, (triton.cdiv(n_k, blocks.n) * B * kv_heads * parts,),
        *sums, q, k, v, do, shift, delta,
        *walked, *terms, k_lengths,
        kv_heads, n_q, n_k, shift.stride(0),
        *(in_units(x, unit) for x in tensors),
        scale, scale * LOG2_E,
        GROUP=H // kv_heads, PARTS=parts, HEAD=D, MAIN=main, REST=rest,
        UNIT=unit, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors), TMA=walked[0] is not None,
        CAUSAL=causal, WHOLE=k_lengths is None and n_k % blocks.n == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype), SAME_LENGTHS=same_lengths,
        num_warps=blocks.warps, num_stages=blocks.stages, maxnreg=blocks.registers,
    )  # fmt: skip
    if parts > 1:
        for whole, of_parts in zip((dk, dv), sums):
            finish(whole, of_parts, 1.0, parts)


@planned
def write_gradients(
    dq, dk, dv, terms, do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None, blocks=None,
    same_lengths: bool = False, sums=None,
) -> None:  # fmt: skip
    """dq, dk and dv into given tensors of any strides; `terms`: room from `row_terms`.

    `blocks` for dk and dv; None: what is fastest of two passes, one block and side by side. OneBlock, SideBySide and
    OnePass are for all three gradients, and OnePass needs `sums` from `room`.
    same_lengths: queries are padded like keys; those behind the length get dq = 0 and give nothing, if they, o and do
    are finite there.
    """
    shift, delta = terms
    blocks = blocks or one_block_for(q, k) or (None if same_lengths else side_by_side_for(causal, None, q, k))
    if isinstance(blocks, OneBlock):
        return write_in_one_block(dq, dk, dv, do, q, k, v, l, dl, causal, scale, k_lengths, blocks, same_lengths)
    if isinstance(blocks, SideBySide):
        assert not same_lengths, "side by side knows no lengths of queries"
        return write_side_by_side(
            dq, dk, dv, shift, delta, do, q, k, v, o, l, dl, causal, scale, k_lengths, blocks
        )  # fmt: skip
    if isinstance(blocks, OnePass):
        from course_lib.kernels.attention.groups_onepass import write_in_one_pass  # Gluon need not be there

        assert not same_lengths, "one pass knows no lengths of queries"
        return write_in_one_pass(
            dq, dk, dv, shift, delta, sums, do, q, k, v, o, l, dl, causal, scale, k_lengths, blocks
        )  # fmt: skip
    of_dq = blocks_for("dq", causal, k_lengths, q, k, v)
    write_dq(dq, shift, delta, do, q, k, v, o, l, dl, causal, scale, k_lengths, of_dq, same_lengths)
    blocks = blocks or blocks_for("dkdv", causal, k_lengths, q, k, v, do, dk, dv)
    write_dkdv(dk, dv, do, q, k, v, shift, delta, causal, scale, k_lengths, blocks, same_lengths)


def in_one_for(causal: bool, k_lengths, deterministic: bool, *tensors: torch.Tensor) -> OnePass | SideBySide | None:
    """One pass, or both at once where that is faster; None: write_gradients chooses. `tensors`: q, k, v, do, dk, dv."""
    one = one_pass_for(causal, k_lengths, deterministic, *tensors)
    return one and (side_by_side_for(causal, one, *tensors[:2]) or one)


def write_backward(
    dq, dk, dv, do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None, blocks=None,
    deterministic: bool = True,
) -> None:  # fmt: skip
    """The same, with room of its own, and also in one pass where that is faster and the call allows it."""
    blocks = blocks or in_one_for(causal, k_lengths, deterministic, q, k, v, do, dk, dv)
    write_gradients(
        dq, dk, dv, row_terms(l), do, q, k, v, o, l, causal, scale, k_lengths, dl, blocks, False, room(q, k, blocks)
    )  # fmt: skip


def backward(do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None, deterministic: bool = True):
    """do like o, any strides; o and L as `forward` gave them; dl (B, H, n_q) or None -> dq, dk, dv.

    Not deterministic: the last bits of dq may differ from run to run. FLOP: 14 B H n_q n_k D, in one pass or one
    block 10; half of it causal.
    """
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    write_backward(dq, dk, dv, do, q, k, v, o, l, causal, scale, k_lengths, dl, None, deterministic)
    return dq, dk, dv
