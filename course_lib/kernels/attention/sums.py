"""Before and after the backward pass in one, where dq is a sum over programs in fp32: zeros, and rounding.

dk and dv are such sums too where programs share the query heads of a tile, here and in two passes. And side_by_side.py
has shift and delta made here.

    prepare    shift and delta as the pass over keys makes them, zeros for the sums of dq where nobody writes first: in
               any order all, in order those of causal calls of more queries than keys, and of sequences without keys
    finish     dq of its sums, dk and dv of the sums of their parts: added in order, scaled and rounded

Bytes: prepare reads o and do and writes zeros, 8 B H n_q D, 4 without; finish reads the sums and writes dq, 6 B H n_q
D, and (8 parts + 4) B H_kv n_k D for dk and dv.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.attention.masks import head_start
from course_lib.kernels.attention.rows import load_rows, scale_rows, spans, store_rows, zero_rows
from course_lib.kernels.attention.terms import terms_of
from course_lib.kernels.attention.tuning import OnePass
from course_lib.kernels.columns import split
from course_lib.kernels.launching import launch
from course_lib.kernels.strides import in_units, unit_of

__all__ = ["finish", "finish_kernel", "prepare", "prepare_kernel", "room", "sums_and_counts", "sums_of_parts"]

ROWS = 128  # of a program
COUNTED = tl.constexpr(64)  # queries a counter, where additions come in order


@triton.jit
def prepare_kernel(
    sum_ptr, counts_ptr, shift_ptr, delta_ptr, o_ptr, do_ptr, l_ptr, dl_ptr, lengths_ptr,
    heads, n_q, stride_sum, stride_terms, stride_o, stride_do,
    ZEROS: tl.constexpr, ORDERED: tl.constexpr,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """shift and delta, as dq_kernel makes them, zeros for the counts, and for the sums where nobody writes first."""
    blocks = tl.cdiv(n_q, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    first_m = block * BLOCK
    offs_m = first_m + tl.arange(0, BLOCK)
    o_rows = (head_start(o_ptr, batch, head, stride_o, UNIT), stride_o[2], stride_o[3])
    do_rows = (head_start(do_ptr, batch, head, stride_do, UNIT), stride_do[2], stride_do[3])
    o, o_rest = load_rows(o_rows, first_m, n_q, BLOCK, HEAD, MAIN, REST, UNIT, WIDE, True)
    do, do_rest = load_rows(do_rows, first_m, n_q, BLOCK, HEAD, MAIN, REST, UNIT, WIDE, True)
    dl_row = dl_ptr
    if dl_ptr is not None:
        dl_row = dl_ptr + row * n_q
    shift, delta = terms_of(do, do_rest, o, o_rest, l_ptr + row * n_q, dl_row, offs_m, n_q, REST)
    tl.store(shift_ptr + row * stride_terms + offs_m, shift, mask=offs_m < n_q)
    tl.store(delta_ptr + row * stride_terms + offs_m, delta, mask=offs_m < n_q)
    if sum_ptr is not None:
        nobody_writes = ZEROS
        if lengths_ptr is not None and not ZEROS:
            nobody_writes = tl.load(lengths_ptr + batch) <= 0
        if nobody_writes:
            zeros, zeros_rest = zero_rows(BLOCK, MAIN, REST)
            to = sum_ptr + row * stride_sum
            store_rows(to, zeros, zeros_rest, first_m, n_q, (0, 0, HEAD, 1), BLOCK, HEAD, MAIN, REST, 1, False)
    if counts_ptr is not None:
        if tl.program_id(0) == 0:
            tl.store(counts_ptr, 0)
    if ORDERED:
        COUNTERS: tl.constexpr = BLOCK // COUNTED
        offs = block * COUNTERS + tl.arange(0, COUNTERS)
        counters = tl.cdiv(n_q, COUNTED)
        tl.store(counts_ptr + 1 + row * counters + offs, tl.zeros((COUNTERS,), tl.int32), mask=offs < counters)


@triton.jit
def finish_kernel(
    dq_ptr, sum_ptr, heads, n_q, stride_sum, stride_dq, scale,
    PARTS: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dq of its sums, or dk or dv: those of PARTS heads in a row added, scaled and rounded."""
    blocks = tl.cdiv(n_q, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    rows = (sum_ptr + row * PARTS * stride_sum, HEAD, 1)
    dq, dq_rest = load_rows(rows, block * BLOCK, n_q, BLOCK, HEAD, MAIN, REST, 1, False, True)
    for part in tl.static_range(1, PARTS):
        rows = (sum_ptr + (row * PARTS + part) * stride_sum, HEAD, 1)
        more, more_rest = load_rows(rows, block * BLOCK, n_q, BLOCK, HEAD, MAIN, REST, 1, False, True)
        dq += more
        if REST:
            dq_rest += more_rest
    dq, dq_rest = scale_rows(dq, dq_rest, tl.full((BLOCK,), 1.0, tl.float32) * scale, REST)
    to = head_start(dq_ptr, row // heads, row % heads, stride_dq, UNIT)
    store_rows(to, dq, dq_rest, block * BLOCK, n_q, stride_dq, BLOCK, HEAD, MAIN, REST, UNIT, WIDE)


def prepare(sums, counts, shift, delta, do, q, o, l, dl, k_lengths, zeros: bool, in_order: bool) -> None:
    (B, H, n_q, D), unit = q.shape, unit_of(o, do)
    main, rest = split(D)
    launch(
        prepare_kernel, (triton.cdiv(n_q, ROWS) * B * H,),
        sums, counts, shift, delta, o, do, l, dl if dl is None else dl.contiguous(), k_lengths,
        H, n_q, 0 if sums is None else sums.stride(-3), shift.stride(0), in_units(o, unit), in_units(do, unit),
        ZEROS=zeros, ORDERED=in_order,
        HEAD=D, MAIN=main, REST=rest, UNIT=unit, WIDE=spans(ROWS, main + rest, o, do), BLOCK=ROWS, num_warps=8,
    )  # fmt: skip


def finish(dq, sums, scale: float, parts: int = 1) -> None:
    """Into (B, H, n_q, D) of any strides; sums: (B H parts, n_q or more, D) fp32, contiguous."""
    (B, H, n_q, D), unit = dq.shape, unit_of(dq)
    main, rest = split(D)
    launch(
        finish_kernel, (triton.cdiv(n_q, ROWS) * B * H,), dq, sums, H, n_q, sums.stride(-3), in_units(dq, unit), scale,
        PARTS=parts, HEAD=D, MAIN=main, REST=rest, UNIT=unit, WIDE=spans(ROWS, main + rest, dq), BLOCK=ROWS,
        num_warps=8,
    )  # fmt: skip


def room(q, k, blocks) -> torch.Tensor | None:
    """For the sums of dq, where it is made in one pass, those of dk and dv in parts, and behind them the counts."""
    if not isinstance(blocks, OnePass):
        return None
    counters = q.shape[:2].numel() * triton.cdiv(q.shape[2], COUNTED.value) if blocks.in_order else 0
    return torch.empty(_of_dq(q) + _in_parts(k, blocks) + 1 + counters, dtype=torch.float32, device=q.device)


def _rows(q) -> int:
    """Of the sums: eights, as rows 0 to 3 and 4 to 7 of eight change places on their way. What is behind n_q is never
    read."""
    return triton.cdiv(q.shape[2], 8) * 8


def _of_dq(q) -> int:
    return q.shape[:2].numel() * _rows(q) * q.shape[3]


def _in_parts(k, blocks: OnePass) -> int:
    return 2 * blocks.parts * k.numel() if blocks.parts > 1 else 0


def sums_and_counts(room: torch.Tensor, q, k, blocks: OnePass) -> tuple[torch.Tensor, torch.Tensor]:
    """(B H, n_q rounded up to eights, D) fp32; and int32: tiles that were taken, and in order one for each COUNTED
    queries of a head."""
    sums = room[: _of_dq(q)].view(-1, _rows(q), q.shape[3])
    return sums, room[_of_dq(q) + _in_parts(k, blocks) :].view(torch.int32)


def sums_of_parts(room: torch.Tensor, q, k, blocks: OnePass) -> torch.Tensor:
    """Of dk and of dv: (2, B, H_kv parts, n_k, D) fp32."""
    B, kv_heads, n_k, D = k.shape
    return room[_of_dq(q) :][: _in_parts(k, blocks)].view(2, B, kv_heads * blocks.parts, n_k, D)
