"""Attention, forward: one program holds BLOCK_M queries and walks over the keys, BLOCK_N at a time.

walk.py has the walk: it leaves m, the largest score of a row, l = sum_j exp(s_j - m) and acc = sum_j exp(s_j - m) v_j.
At the end o = acc / l. L = m + log l is kept: exp(s_j - L) is the probability, all that the backward pass needs. m and
l live in base 2; L is stored as a natural logarithm.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.attention.masks import at_run_time, head_start, key_range, keys_of, which_head
from course_lib.kernels.attention.parts import write_forward_in_parts
from course_lib.kernels.attention.rows import (
    LOG2_E,
    load_rows,
    precision,
    rows_to_walk,
    scale_rows,
    spans,
    store_rows,
    tiles,
    zero_rows,
)
from course_lib.kernels.attention.tuning import Blocks, Groups, Parts, blocks_for
from course_lib.kernels.attention.walk import walk_keys
from course_lib.kernels.columns import split
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.strides import in_units, unit_of

__all__ = ["forward", "write_forward"]


@triton.jit
def _forward_kernel(
    o_ptr, l_ptr, q_ptr, k_ptr, v_ptr, k_tiles, v_tiles, k_edge_tiles, v_edge_tiles, lengths_ptr,
    heads, n_q, n_k,
    stride_o, stride_q, stride_k, stride_v,  # of batch, head and row in UNITs, of column
    scale_log2,
    GROUP: tl.constexpr, HEAD: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    UNIT: tl.constexpr, WIDE: tl.constexpr, TMA: tl.constexpr, CAUSAL: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EDGE: tl.constexpr, EDGE_FIRST: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    LN_2: tl.constexpr = 0.6931471805599453
    PADDED: tl.constexpr = lengths_ptr is not None
    blocks = tl.cdiv(n_q, BLOCK_M)
    block, batch, head = which_head(heads, blocks)
    if CAUSAL:
        block = blocks - 1 - block  # the last queries see most keys: started first, they do not finish alone
    first_m = block * BLOCK_M
    offs_m = first_m + tl.arange(0, BLOCK_M)
    n_k = at_run_time(n_k)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    diagonal = n_k - n_q
    full, end = key_range(first_m, n_valid, diagonal, CAUSAL, BLOCK_M, BLOCK_N)

    q_ptr = head_start(q_ptr, batch, head, stride_q, UNIT)
    k_ptr = head_start(k_ptr, batch, head // GROUP, stride_k, UNIT)
    v_ptr = head_start(v_ptr, batch, head // GROUP, stride_v, UNIT)
    q_rows = (q_ptr, stride_q[2], stride_q[3])
    k_rows = rows_to_walk(k_ptr, k_tiles, batch, head // GROUP, stride_k, TMA)
    v_rows = rows_to_walk(v_ptr, v_tiles, batch, head // GROUP, stride_v, TMA)
    k_edge = rows_to_walk(k_ptr, k_edge_tiles, batch, head // GROUP, stride_k, TMA)
    v_edge = rows_to_walk(v_ptr, v_edge_tiles, batch, head // GROUP, stride_v, TMA)
    q, q_rest = load_rows(q_rows, first_m, n_q, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE, True)

    acc, acc_rest = zero_rows(BLOCK_M, MAIN, REST)
    row_max = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    # Two loops: blocks that every query sees whole need no mask, and they are nearly all. The others, at the edge, have
    # a size of their own; the table says where it is faster to begin with them.
    for turn in tl.static_range(2):
        if (turn == 0) != EDGE_FIRST:
            acc, acc_rest, row_max, row_sum = walk_keys(
                acc, acc_rest, row_max, row_sum, q, q_rest, k_rows, v_rows,
                0, full, offs_m, n_valid, diagonal, scale_log2,
                HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, False, True, BLOCK_N, PRECISION,
            )  # fmt: skip
        elif CAUSAL or not WHOLE:
            acc, acc_rest, row_max, row_sum = walk_keys(
                acc, acc_rest, row_max, row_sum, q, q_rest, k_edge, v_edge,
                full, end, offs_m, n_valid, diagonal, scale_log2,
                HEAD, MAIN, REST, UNIT, WIDE, TMA, CAUSAL, WHOLE, PADDED, True, EDGE_FIRST and TMA, EDGE, PRECISION,
            )  # fmt: skip

    # A row with no key has the sum 0 and the maximum -inf: zeros, and L = -inf.
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    acc, acc_rest = scale_rows(acc, acc_rest, 1.0 / row_sum, REST)
    o_ptr = head_start(o_ptr, batch, head, stride_o, UNIT)
    store_rows(o_ptr, acc, acc_rest, first_m, n_q, stride_o, BLOCK_M, HEAD, MAIN, REST, UNIT, WIDE)
    l_ptr += (tl.cast(batch, tl.int64) * heads + head) * n_q
    tl.store(l_ptr + offs_m, (row_max + tl.log2(row_sum)) * LN_2, mask=offs_m < n_q)


def forward(q, k, v, causal: bool, scale: float, k_lengths=None):
    """q (B, H, n_q, D), k and v (B, H / group, n_k, D), any strides -> o like q, L (B, H, n_q) fp32.

    k_lengths (B,) int32 or None. FLOP: 4 B H n_q n_k D, half of it causal. Bytes: read q, k, v, write o and L.
    """
    o, l = torch.empty_like(q), torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
    write_forward(o, l, q, k, v, causal, scale, k_lengths)
    return o, l


@planned
def write_forward(
    o, l, q, k, v, causal: bool, scale: float, k_lengths, blocks: Blocks | Groups | Parts | None = None
) -> None:  # fmt: skip
    """o and L into given tensors: o of any strides, L contiguous.

    What `blocks` are says which kernels make them; None: what is fastest.
    """
    (B, H, n_q, D), n_k = q.shape, k.shape[2]
    if o.numel() == 0:
        return
    blocks = blocks or blocks_for("forward", causal, k_lengths, q, k, v, o)
    if isinstance(blocks, Parts):
        return write_forward_in_parts(o, l, q, k, v, causal, scale, k_lengths, blocks)
    if isinstance(blocks, Groups):
        from course_lib.kernels.attention.groups_forward import write_forward_in_groups

        return write_forward_in_groups(o, l, q, k, v, causal, scale, k_lengths, blocks)
    main, rest = split(D)
    unit = unit_of(q, k, v, o)
    walked, edge = tiles(blocks.n, k, v), blocks.edge or blocks.n
    at_the_edge = walked if edge == blocks.n else tiles(edge, k, v)
    launch(
        _forward_kernel, (triton.cdiv(n_q, blocks.m) * B * H,),
        o, l, q, k, v, *walked, *at_the_edge, k_lengths,
        H, n_q, n_k,
        *(in_units(x, unit) for x in (o, q, k, v)),
        scale * LOG2_E,
        GROUP=H // k.shape[1], HEAD=D, MAIN=main, REST=rest,
        UNIT=unit, WIDE=spans(max(blocks.m, blocks.n), main + rest, q, k, v, o), TMA=walked[0] is not None,
        CAUSAL=causal, WHOLE=k_lengths is None and n_k % blocks.n == 0,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, EDGE=edge, EDGE_FIRST=blocks.edge is not None,
        PRECISION=precision(q.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages, maxnreg=blocks.registers,
    )  # fmt: skip
