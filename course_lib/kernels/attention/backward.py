"""Attention, backward: the probabilities are made again from L, in two passes, and no two programs add to one sum.

    p = exp(s - L)    dp = do vᵀ    ds = p (dp - delta)    delta_i = sum_j p_ij dp_ij = sum_d do_id o_id

    dq = scale ds k                 one program a block of queries, walking over the keys; it also keeps delta, and L in
                                    base 2, for the other pass
    dk = scale dsᵀ q, dv = pᵀ do    one program a block of keys, walking over the queries that see them, and over all
                                    query heads that share these keys, or its part of these heads

Seven products are made where a single pass makes five: s and dp are made twice. For that no program ever writes where
another does: no atomic additions, and the same bits on every run. Where programs have parts of the heads, each writes
sums of its own in fp32, and they are added in a fixed order. Where they were measured faster run a single pass,
groups_onepass.py, or, where one block holds all keys of a head, a single program a head, one_block.py.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.kernels.attention.masks import (
    at_run_time,
    head_start,
    key_range,
    keys_of,
    probabilities,
    queries_of,
    query_range,
    which_head,
)
from course_lib.kernels.attention.one_block import write_in_one_block
from course_lib.kernels.attention.rows import (
    LOG2_E,
    add_products,
    load_rows,
    matrix_products,
    precision,
    rows_to_walk,
    scale_rows,
    spans,
    store_rows,
    tiles,
    zero_rows,
)
from course_lib.kernels.attention.sums import finish, room
from course_lib.kernels.attention.terms import load_terms, row_terms, terms_of, terms_to_walk
from course_lib.kernels.attention.tuning import (
    Blocks,
    Groups,
    OneBlock,
    OnePass,
    Parts,
    blocks_for,
    one_block_for,
    one_pass_for,
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
def _walk_keys(
    dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
    first, end, offs_m, n_valid, diagonal, scale_log2,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, PADDED: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    stages: tl.constexpr = 1 if MASKED else None  # as in the forward pass: only one of two loops may be pipelined
    CUT: tl.constexpr = PADDED and MASKED  # as there: a probability of 0 hides no NaN
    for start in tl.range(first, end, BLOCK_N, num_stages=stages):
        offs_n = start + tl.arange(0, BLOCK_N)
        k, k_rest = load_rows(
            k_rows, start, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA, CUT
        )  # (BLOCK_N, D)
        v, v_rest = load_rows(
            v_rows, start, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, MASKED, TMA, CUT
        )  # (BLOCK_N, D)
        s = matrix_products(q, q_rest, k, k_rest, REST, PRECISION)  # (BLOCK_M, BLOCK_N)
        p = probabilities(
            s, shift[:, None], offs_m[:, None], offs_n[None, :], n_valid, diagonal, scale_log2, CAUSAL, WHOLE, MASKED
        )  # fmt: skip
        dp = matrix_products(do, do_rest, v, v_rest, REST, PRECISION)  # (BLOCK_M, BLOCK_N)
        ds = p * (dp - delta[:, None])  # (BLOCK_M, BLOCK_N)
        dq, dq_rest = add_products(dq, dq_rest, ds.to(k.dtype), k, k_rest, REST, PRECISION)  # (BLOCK_M, D)
    return dq, dq_rest


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
    PADDED: tl.constexpr = lengths_ptr is not None
    blocks = tl.cdiv(n_q, BLOCK_M)
    block, batch, head = which_head(heads, blocks)
    if CAUSAL:
        block = blocks - 1 - block
    first_m = block * BLOCK_M
    offs_m = first_m + tl.arange(0, BLOCK_M)
    n_k = at_run_time(n_k)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    n_rows = queries_of(n_q, n_valid, SAME_LENGTHS)
    if SAME_LENGTHS:
        n_valid = tl.where(first_m < n_rows, n_valid, 0)
    diagonal = n_k - n_q
    full, end = key_range(first_m, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    q_rows = (head_start(q_ptr, batch, head, stride_q, UNIT), stride_q[2], stride_q[3])
    o_rows = (head_start(o_ptr, batch, head, stride_o, UNIT), stride_o[2], stride_o[3])
    do_rows = (head_start(do_ptr, batch, head, stride_do, UNIT), stride_do[2], stride_do[3])
    k_ptr = head_start(k_ptr, batch, head // GROUP, stride_k, UNIT)
    v_ptr = head_start(v_ptr, batch, head // GROUP, stride_v, UNIT)
    k_rows = rows_to_walk(k_ptr, k_tiles, batch, head // GROUP, stride_k, TMA)
    v_rows = rows_to_walk(v_ptr, v_tiles, batch, head // GROUP, stride_v, TMA)
    q, q_rest = load_rows(q_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    do, do_rest = load_rows(do_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    o, o_rest = load_rows(o_rows, first_m, n_rows, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)
    terms = tl.cast(batch * heads + head, tl.int64) * stride_terms + offs_m
    row = tl.cast(batch * heads + head, tl.int64) * n_q
    dl_row = dl_ptr
    if dl_ptr is not None:
        dl_row = dl_ptr + row
    shift, delta = terms_of(do, do_rest, o, o_rest, l_ptr + row, dl_row, offs_m, n_rows, REST)
    # Behind the length inf and 0: where the copy engine fetches q and do there, the other pass relies on it.
    tl.store(shift_ptr + terms, shift, mask=offs_m < n_q)
    tl.store(delta_ptr + terms, delta, mask=offs_m < n_q)

    dq, dq_rest = zero_rows(BLOCK_M, MAIN, REST)
    dq, dq_rest = _walk_keys(
        dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
        0, full, offs_m, n_valid, diagonal, scale_log2,
        HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, False, BLOCK_N, PRECISION,
    )  # fmt: skip
    if CAUSAL or not WHOLE:
        dq, dq_rest = _walk_keys(
            dq, dq_rest, q, q_rest, do, do_rest, shift, delta, k_rows, v_rows,
            full, end, offs_m, n_valid, diagonal, scale_log2,
            HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, True, BLOCK_N, PRECISION,
        )  # fmt: skip

    factor = tl.full((BLOCK_M,), 1.0, tl.float32) * scale
    dq, dq_rest = scale_rows(dq, dq_rest, factor, REST)
    dq_ptr = head_start(dq_ptr, batch, head, stride_dq, UNIT)
    store_rows(dq_ptr, dq, dq_rest, first_m, n_q, stride_dq, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE)


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
def _walk_queries(
    dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_rows, do_rows, shift_row, delta_row,
    first, end, offs_n, n_q, n_valid, diagonal, scale_log2,
    HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, WIDE: tl.constexpr,
    TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr,
    BLOCK_M: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    # Everything is turned: keys go down, queries go across, so that pᵀ and dsᵀ come out of one product and enter the
    # next one from registers.
    stages: tl.constexpr = 1 if MASKED and not TMA else None  # both loops, where the copy engine feeds them: 4 % faster
    for start in tl.range(first, end, BLOCK_M, num_stages=stages):
        offs_m = start + tl.arange(0, BLOCK_M)
        q, q_rest = load_rows(q_rows, start, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True, TMA)  # (BLOCK_M, D)
        shift = load_terms(shift_row, start, offs_m, n_q, BLOCK_M, TMA)  # (BLOCK_M,)
        s = matrix_products(k, k_rest, q, q_rest, REST, PRECISION)  # (BLOCK_N, BLOCK_M)
        do, do_rest = load_rows(do_rows, start, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True, TMA)  # (BLOCK_M, D)
        # dp does not wait for p: the tensor cores make it while the exponentials are taken.
        dp = matrix_products(v, v_rest, do, do_rest, REST, PRECISION)  # (BLOCK_N, BLOCK_M)
        p = probabilities(
            s, shift[None, :], offs_m[None, :], offs_n[:, None], n_valid, diagonal, scale_log2, CAUSAL, WHOLE, MASKED
        )  # fmt: skip
        delta = load_terms(delta_row, start, offs_m, n_q, BLOCK_M, TMA)  # (BLOCK_M,)
        ds = (p * (dp - delta[None, :])).to(q.dtype)  # (BLOCK_N, BLOCK_M)
        dv, dv_rest = add_products(dv, dv_rest, p.to(do.dtype), do, do_rest, REST, PRECISION)  # (BLOCK_N, D)
        dk, dk_rest = add_products(dk, dk_rest, ds, q, q_rest, REST, PRECISION)  # (BLOCK_N, D)
    return dk, dk_rest, dv, dv_rest


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
    """GROUP query heads share a head of keys; a program walks over GROUP / PARTS of them."""
    n_k = at_run_time(n_k)
    block, batch, part = which_head(kv_heads * PARTS, tl.cdiv(n_k, BLOCK_N))
    kv_head = part // PARTS
    first_n = block * BLOCK_N
    offs_n = first_n + tl.arange(0, BLOCK_N)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    diagonal = n_k - n_q
    n_q = queries_of(n_q, n_valid, SAME_LENGTHS)
    first, full, end = query_range(first_n, n_q, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    k_rows = (head_start(k_ptr, batch, kv_head, stride_k, UNIT), stride_k[2], stride_k[3])
    v_rows = (head_start(v_ptr, batch, kv_head, stride_v, UNIT), stride_v[2], stride_v[3])
    # Zeros behind the length: there s, dp and so ds are 0, whatever memory holds.
    k, k_rest = load_rows(k_rows, first_n, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)
    v, v_rest = load_rows(v_rows, first_n, n_valid, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)

    dk, dk_rest = zero_rows(BLOCK_N, MAIN, REST)
    dv, dv_rest = zero_rows(BLOCK_N, MAIN, REST)
    for member in range(GROUP // PARTS):  # the query heads that share these keys
        head = part * (GROUP // PARTS) + member
        row = batch * kv_heads * GROUP + head
        shift_row = terms_to_walk(shift_ptr, shift_tiles, row, stride_terms, TMA)
        delta_row = terms_to_walk(delta_ptr, delta_tiles, row, stride_terms, TMA)
        q_head = head_start(q_ptr, batch, head, stride_q, UNIT)
        do_head = head_start(do_ptr, batch, head, stride_do, UNIT)
        q_rows = rows_to_walk(q_head, q_tiles, batch, head, stride_q, TMA)
        do_rows = rows_to_walk(do_head, do_tiles, batch, head, stride_do, TMA)
        # The pipelined loop comes first: the other way round the assembler serializes its wgmma (C7515).
        dk, dk_rest, dv, dv_rest = _walk_queries(
            dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_rows, do_rows, shift_row, delta_row,
            full, end, offs_n, n_q, n_valid, diagonal, scale_log2,
            HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, False, BLOCK_M, PRECISION,
        )  # fmt: skip
        if CAUSAL or REST or not WHOLE:
            dk, dk_rest, dv, dv_rest = _walk_queries(
                dk, dk_rest, dv, dv_rest, k, k_rest, v, v_rest, q_rows, do_rows, shift_row, delta_row,
                first, full, offs_n, n_q, n_valid, diagonal, scale_log2,
                HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, True, BLOCK_M, PRECISION,
            )  # fmt: skip

    factor = tl.full((BLOCK_N,), 1.0, tl.float32) * scale
    dk, dk_rest = scale_rows(dk, dk_rest, factor, REST)
    dk_ptr = head_start(dk_ptr, batch, part, stride_dk, UNIT)
    dv_ptr = head_start(dv_ptr, batch, part, stride_dv, UNIT)
    store_rows(dk_ptr, dk, dk_rest, first_n, n_k, stride_dk, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)
    store_rows(dv_ptr, dv, dv_rest, first_n, n_k, stride_dv, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)


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

    `blocks` for dk and dv; None: what is fastest; OneBlock: for all three; OnePass: too, with `sums` from `room`.
    same_lengths: queries are padded like keys; those behind the length get dq = 0 and give nothing, if they, o and do
    are finite there.
    """
    shift, delta = terms
    blocks = blocks or one_block_for(q, k)
    if isinstance(blocks, OneBlock):
        return write_in_one_block(dq, dk, dv, do, q, k, v, l, dl, causal, scale, k_lengths, blocks, same_lengths)
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


def write_backward(
    dq, dk, dv, do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None, blocks=None,
    deterministic: bool = True,
) -> None:  # fmt: skip
    """The same, with room of its own, and in one pass where that is faster and the call allows it."""
    blocks = blocks or one_pass_for(causal, k_lengths, deterministic, q, k, v, do, dk, dv)
    write_gradients(
        dq, dk, dv, row_terms(l), do, q, k, v, o, l, causal, scale, k_lengths, dl, blocks, False, room(q, k, blocks)
    )  # fmt: skip


def backward(do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None, deterministic: bool = True):
    """do like o, any strides; o and L as `forward` gave them; dl (B, H, n_q) or None -> dq, dk, dv.

    Not deterministic: the last bits of dq may differ from run to run. FLOP: 14 B H n_q n_k D, in one pass 10; half of
    it causal.
    """
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    write_backward(dq, dk, dv, do, q, k, v, o, l, causal, scale, k_lengths, dl, None, deterministic)
    return dq, dk, dv
