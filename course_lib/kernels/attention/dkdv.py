"""dk = scale dsᵀ q and dv = pᵀ do: one program holds BLOCK_N keys and walks over the queries that see them."""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.kernels.attention.masks import head_start, keys_of, probabilities, query_range, which_head
from course_lib.kernels.attention.operands import LOG2_E, precision, spans, strides, tiles, unit
from course_lib.kernels.attention.parts import (
    add_products,
    load_rows,
    matrix_products,
    rows_to_walk,
    scale_rows,
    split,
    store_rows,
    zero_rows,
)
from course_lib.kernels.attention.tuning import Blocks, Groups

__all__ = ["dkdv_kernel", "write_dkdv"]


@triton.jit
def _load_terms(row, start, offs_m, n_q, BLOCK_M: tl.constexpr, TMA: tl.constexpr):
    """shift or delta of queries from `start` on. Zeros behind the last query are as good as any number: q and do are 0
    there, and so is all that is added."""
    # Without the copy engine every thread fetches the numbers of its own columns, 16 loads and 16 masks for each of the
    # two: 190 of 530 instructions of the loop at head size 64.
    if TMA:
        terms = row[1].load([row[0], start]).reshape(BLOCK_M)
    else:
        terms = tl.load(row[0] + offs_m, mask=offs_m < n_q, other=0.0)
    return terms


@triton.jit
def _terms_to_walk(ptr, tiles, row, stride, TMA: tl.constexpr):
    if TMA:
        terms = (row, tiles)
    else:
        terms = (ptr + tl.cast(row, tl.int64) * stride,)
    return terms


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
        q, q_rest = load_rows(q_rows, start, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True, TMA)
        shift = _load_terms(shift_row, start, offs_m, n_q, BLOCK_M, TMA)
        s = matrix_products(k, k_rest, q, q_rest, REST, PRECISION)
        do, do_rest = load_rows(do_rows, start, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True, TMA)
        # dp does not wait for p: the tensor cores make it while the exponentials are taken.
        dp = matrix_products(v, v_rest, do, do_rest, REST, PRECISION)
        p = probabilities(
            s, shift[None, :], offs_m[None, :], offs_n[:, None], n_valid, diagonal, scale_log2, CAUSAL, WHOLE, MASKED
        )  # fmt: skip
        delta = _load_terms(delta_row, start, offs_m, n_q, BLOCK_M, TMA)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dv, dv_rest = add_products(dv, dv_rest, p.to(do.dtype), do, do_rest, REST, PRECISION)
        dk, dk_rest = add_products(dk, dk_rest, ds, q, q_rest, REST, PRECISION)
    return dk, dk_rest, dv, dv_rest


@triton.jit
def dkdv_kernel(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr,
    q_tiles, do_tiles, shift_tiles, delta_tiles, lengths_ptr,
    kv_heads, n_q, n_k, stride_terms,
    stride_dk_b, stride_dk_h, stride_dk_n, stride_dk_d,
    stride_dv_b, stride_dv_h, stride_dv_n, stride_dv_d,
    stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    scale, scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block, batch, kv_head = which_head(kv_heads, tl.cdiv(n_k, BLOCK_N))
    first_n = block * BLOCK_N
    offs_n = first_n + tl.arange(0, BLOCK_N)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    diagonal = n_k - n_q
    first, full, end = query_range(first_n, n_q, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    k_rows = (head_start(k_ptr, batch, kv_head, stride_k_b, stride_k_h, UNIT), stride_k_n, stride_k_d)
    v_rows = (head_start(v_ptr, batch, kv_head, stride_v_b, stride_v_h, UNIT), stride_v_n, stride_v_d)
    k, k_rest = load_rows(k_rows, first_n, n_k, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)
    v, v_rest = load_rows(v_rows, first_n, n_k, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE, True)

    dk, dk_rest = zero_rows(BLOCK_N, MAIN, REST)
    dv, dv_rest = zero_rows(BLOCK_N, MAIN, REST)
    for member in range(GROUP):  # the query heads that share these keys
        head = kv_head * GROUP + member
        row = batch * kv_heads * GROUP + head
        shift_row = _terms_to_walk(shift_ptr, shift_tiles, row, stride_terms, TMA)
        delta_row = _terms_to_walk(delta_ptr, delta_tiles, row, stride_terms, TMA)
        q_head = head_start(q_ptr, batch, head, stride_q_b, stride_q_h, UNIT)
        do_head = head_start(do_ptr, batch, head, stride_do_b, stride_do_h, UNIT)
        q_rows = rows_to_walk(q_head, q_tiles, batch, head, stride_q_m, stride_q_d, TMA)
        do_rows = rows_to_walk(do_head, do_tiles, batch, head, stride_do_m, stride_do_d, TMA)
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
    dk_ptr = head_start(dk_ptr, batch, kv_head, stride_dk_b, stride_dk_h, UNIT)
    dv_ptr = head_start(dv_ptr, batch, kv_head, stride_dv_b, stride_dv_h, UNIT)
    store_rows(dk_ptr, dk, dk_rest, first_n, n_k, stride_dk_n, stride_dk_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)
    store_rows(dv_ptr, dv, dv_rest, first_n, n_k, stride_dv_n, stride_dv_d, BLOCK_N, HEAD, MAIN, REST, UNIT, WIDE)


def write_dkdv(
    dk, dv, do, q, k, v, shift, delta, causal: bool, scale: float, k_lengths, blocks: Blocks | Groups
) -> None:  # fmt: skip
    """Into dk and dv, like k and v; shift and delta as write_dq made them. FLOP: 8 B H n_q n_k D, half of it causal.

    What `blocks` are says which rung makes them.
    """
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    if dk.numel() == 0:
        return
    if isinstance(blocks, Groups):
        from course_lib.kernels.attention.groups_dkdv import write_dkdv_in_groups

        return write_dkdv_in_groups(dk, dv, do, q, k, v, shift, delta, causal, scale, blocks)
    main, rest = split(D)
    tensors = (dk, dv, q, k, v, do)
    step = unit(*tensors)
    walked = tiles(blocks.m, q, do)
    terms = tuple(TensorDescriptor.from_tensor(x, [1, blocks.m]) if walked[0] else None for x in (shift, delta))
    dkdv_kernel[(triton.cdiv(n_k, blocks.n) * B * kv_heads,)](
        dk, dv, q, k, v, do, shift, delta,
        *walked, *terms, k_lengths,
        kv_heads, n_q, n_k, shift.stride(0),
        *(stride for x in tensors for stride in strides(x, step)),
        scale, scale * LOG2_E,
        GROUP=H // kv_heads, HEAD=D, MAIN=main, REST=rest,
        UNIT=step, WIDE=spans(max(blocks.m, blocks.n), main + rest, *tensors), TMA=walked[0] is not None,
        CAUSAL=causal, WHOLE=k_lengths is None and n_k % blocks.n == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages, maxnreg=blocks.registers,
    )  # fmt: skip
