"""Attention, forward, of few queries and many keys: programs share the keys of one query, and a second kernel merges.

A program of forward.py holds queries of one head and walks over all of its keys. One query a head, as when a language
model writes a token, leaves it two faults: B H programs may be fewer than a GPU has multiprocessors, and heads that
share keys each read them again. Here a tile holds the rows of all GROUP query heads that share a head of keys,
GROUP x n_q rows, and the keys are split: `parts` programs take a share each. Each leaves what lesson 04 calls a state,

    m = max_j s_j        l = sum_j exp(s_j - m)        acc = sum_j exp(s_j - m) v_j

and the second kernel merges the states of a query in a fixed order (flash.merge of lesson 04, for many parts at once):

    M = max_p m_p        o = sum_p exp(m_p - M) acc_p / sum_p exp(m_p - M) l_p        L = M + log of the lower sum

A part without keys has m = -inf, l = 0 and acc = 0, so its weight is 0. How many parts there are depends on types,
shapes, strides, whether rows start at multiples of 16 bytes, and the device. Where sequences have lengths, the programs
divide the keys that are there.

Bytes: k and v once, 2 B H_kv n_k D x element size, and the states, 8 B H n_q parts (D + 2), written and read in fp32.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.attention.masks import head_start, key_range, keys_of, which_head
from course_lib.kernels.attention.rows import LOG2_E, precision, rows_to_walk, spans, tiles, zero_rows
from course_lib.kernels.attention.tuning import Parts
from course_lib.kernels.attention.walk import walk_keys
from course_lib.kernels.columns import split
from course_lib.kernels.launching import launch
from course_lib.kernels.strides import in_units, unit_of

__all__ = ["write_forward_in_parts"]


@triton.jit
def _load_queries(
    ptr, query, member, there, stride,
    FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr, UNIT: tl.constexpr,
):  # fmt: skip
    """Rows of several heads: (BLOCK_M, COLUMNS). `ptr` is where the first of these heads begins."""
    offs_col = FIRST + tl.arange(0, COLUMNS)
    start = (query.to(tl.int64) * stride[2] + member.to(tl.int64) * stride[1]) * UNIT
    ptrs = ptr + (start[:, None] + offs_col.to(tl.int64)[None, :] * stride[3])
    return tl.load(ptrs, mask=there[:, None] & (offs_col < HEAD)[None, :], other=0.0)


@triton.jit
def _store_sums(ptr, x, state, there, FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr):
    offs_col = FIRST + tl.arange(0, COLUMNS)
    ptrs = ptr + (state[:, None] * HEAD + offs_col[None, :])
    tl.store(ptrs, x, mask=there[:, None] & (offs_col < HEAD)[None, :])


@triton.jit(do_not_specialize=("kv_heads", "n_q", "n_k", "parts"))
def _parts_kernel(
    acc_ptr, max_ptr, sum_ptr, q_ptr, k_ptr, v_ptr, k_tiles, v_tiles, lengths_ptr,
    kv_heads, n_q, n_k, parts,
    stride_q, stride_k, stride_v,  # of batch, head and row in UNITs, of column
    scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    PADDED: tl.constexpr = lengths_ptr is not None
    blocks = tl.cdiv(n_q * GROUP, BLOCK_M)
    program, batch, kv_head = which_head(kv_heads, blocks * parts)
    # Tiles that walk over the same keys stand side by side and share them in the L2 cache.
    part = program // blocks
    first_row = program % blocks * BLOCK_M
    row = first_row + tl.arange(0, BLOCK_M)
    query, member, there = row // GROUP, row % GROUP, row < n_q * GROUP
    n_valid = keys_of(lengths_ptr, batch, n_k)
    diagonal = n_k - n_q
    QUERIES: tl.constexpr = (BLOCK_M + GROUP - 2) // GROUP + 1  # so many, at most, lie in a tile
    full, end = key_range(first_row // GROUP, n_valid, diagonal, CAUSAL, QUERIES, BLOCK_N)
    turns = tl.cdiv(end, BLOCK_N)  # of the walk over all keys; this part takes its share
    first = part * turns // parts * BLOCK_N
    end = tl.minimum((part + 1) * turns // parts * BLOCK_N, end)

    q_ptr = head_start(q_ptr, batch, kv_head * GROUP, stride_q, UNIT)
    q = _load_queries(q_ptr, query, member, there, stride_q, 0, MAIN, HEAD, UNIT)
    q_rest = q
    if REST:
        q_rest = _load_queries(q_ptr, query, member, there, stride_q, MAIN, REST, HEAD, UNIT)
    k_ptr = head_start(k_ptr, batch, kv_head, stride_k, UNIT)
    v_ptr = head_start(v_ptr, batch, kv_head, stride_v, UNIT)
    k_rows = rows_to_walk(k_ptr, k_tiles, batch, kv_head, stride_k, TMA)
    v_rows = rows_to_walk(v_ptr, v_tiles, batch, kv_head, stride_v, TMA)

    acc, acc_rest = zero_rows(BLOCK_M, MAIN, REST)
    row_max = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc, acc_rest, row_max, row_sum = walk_keys(
        acc, acc_rest, row_max, row_sum, q, q_rest, k_rows, v_rows,
        first, tl.minimum(full, end), query, n_valid, diagonal, scale_log2,
        HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, False, True, BLOCK_N, PRECISION,
    )  # fmt: skip
    if CAUSAL or not WHOLE:
        acc, acc_rest, row_max, row_sum = walk_keys(
            acc, acc_rest, row_max, row_sum, q, q_rest, k_rows, v_rows,
            tl.maximum(first, full), end, query, n_valid, diagonal, scale_log2,
            HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, True, False, BLOCK_N, PRECISION,
        )  # fmt: skip

    state = ((tl.cast(batch, tl.int64) * kv_heads + kv_head) * GROUP + member) * n_q + query
    state = state * parts + part
    tl.store(max_ptr + state, row_max, mask=there)
    tl.store(sum_ptr + state, row_sum, mask=there)
    _store_sums(acc_ptr, acc, state, there, 0, MAIN, HEAD)
    if REST:
        _store_sums(acc_ptr, acc_rest, state, there, MAIN, REST, HEAD)


@triton.jit(do_not_specialize=("heads", "n_q", "parts"))
def _merge_kernel(
    o_ptr, l_ptr, acc_ptr, max_ptr, sum_ptr,
    heads, n_q, parts,
    stride_o,  # of batch, head, row and column
    HEAD: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_P: tl.constexpr,
):  # fmt: skip
    """One program a query: all of its states at once, summed by a tree that is the same on every run."""
    LN_2: tl.constexpr = 0.6931471805599453
    row = tl.program_id(0).to(tl.int64)
    offs_p, offs_d = tl.arange(0, BLOCK_P), tl.arange(0, COLUMNS)
    mask_p, mask_d = offs_p < parts, offs_d < HEAD
    state = row * parts + offs_p
    part_max = tl.load(max_ptr + state, mask=mask_p, other=-float("inf"))  # (BLOCK_P,)
    part_sum = tl.load(sum_ptr + state, mask=mask_p, other=0.0)
    ptrs = acc_ptr + (state[:, None] * HEAD + offs_d[None, :])
    acc = tl.load(ptrs, mask=mask_p[:, None] & mask_d[None, :], other=0.0)  # (BLOCK_P, COLUMNS)

    row_max = tl.max(part_max, axis=0)
    # Where no part saw a key -inf - -inf would be NaN; any finite shift makes 0 of every weight.
    weight = tl.exp2(part_max - tl.where(row_max == -float("inf"), 0.0, row_max))
    row_sum = tl.sum(weight * part_sum, axis=0)
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    o = tl.sum(acc * weight[:, None], axis=0) / row_sum  # (COLUMNS,)

    batch_head, query = row // n_q, row % n_q
    start = batch_head // heads * stride_o[0] + batch_head % heads * stride_o[1] + query * stride_o[2]
    tl.store(o_ptr + start + offs_d.to(tl.int64) * stride_o[3], o.to(o_ptr.dtype.element_ty), mask=mask_d)
    tl.store(l_ptr + row, (row_max + tl.log2(row_sum)) * LN_2)


def merging_warps(head_size: int, parts: int) -> int:
    """Each thread has 16 to 32 numbers to load at once: four or more loads of 16 bytes."""
    numbers = triton.next_power_of_2(head_size) * triton.next_power_of_2(parts)
    return max(1, min(16, numbers // 1024))


def write_forward_in_parts(o, l, q, k, v, causal: bool, scale: float, k_lengths, blocks: Parts) -> None:
    """o and L into given tensors: o of any strides, L contiguous."""
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    group, rows, parts = H // kv_heads, B * H * n_q, blocks.parts
    causal = causal and n_q > 1  # one query sees every key
    main, rest = split(D)
    unit = unit_of(q, k, v)
    walked = tiles(blocks.n, k, v)
    acc = torch.empty(rows, parts, D, dtype=torch.float32, device=q.device)
    part_max, part_sum = torch.empty(2, rows, parts, dtype=torch.float32, device=q.device)
    launch(
        _parts_kernel, (triton.cdiv(group * n_q, blocks.m) * parts * B * kv_heads,),
        acc, part_max, part_sum, q, k, v, *walked, k_lengths,
        kv_heads, n_q, n_k, parts,
        *(in_units(x, unit) for x in (q, k, v)),
        scale * LOG2_E,
        GROUP=group, HEAD=D, MAIN=main, REST=rest,
        UNIT=unit, WIDE=spans(blocks.n, main + rest, k, v), TMA=walked[0] is not None,
        CAUSAL=causal, WHOLE=k_lengths is None and n_k % blocks.n == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    launch(
        _merge_kernel, (rows,),
        o, l, acc, part_max, part_sum,
        H, n_q, parts,
        o.stride(),
        HEAD=D, COLUMNS=triton.next_power_of_2(D), BLOCK_P=triton.next_power_of_2(parts),
        num_warps=merging_warps(D, parts),
    )  # fmt: skip
