"""A matrix product of few tiles: several programs share the sum of one tile, or tiles are as low as a has rows.

    out = end(a b + bias)        a (M, K), b (K, N), any strides; bias (N,) and an end, such as GELU, where given

A result of few tiles leaves multiprocessors idle, and a multiprocessor alone fetches 1/132 of what memory can give.

    few rows   the product is made as bᵀ aᵀ: BLOCK_N columns of b are the rows of the instruction, and the few rows of a
               are its columns, of which it takes 16 as well as 256
    a long K   each of SPLIT programs sums its part of K and writes it in fp32; a second kernel adds the parts in their
               order: the same bits on every run

Bytes: a and b once for every tile that reads them, and 8 M N SPLIT for the parts, which mostly stay in the L2 cache.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.hardware import copy_engine
from course_lib.kernels.launching import launch
from course_lib.kernels.product_tiles import Tile, options
from course_lib.kernels.strides import common_unit

__all__ = ["load_bytes", "parts_kernel", "sum_parts_kernel", "write_parts"]

SUMMED = 4096  # numbers that a program of the second kernel holds


@triton.jit
def _leave(acc, out_ptrs, h_ptrs, bias, mask, END: tl.constexpr):
    if bias is not None:
        acc += bias
    if h_ptrs is not None:
        tl.store(h_ptrs, acc.to(h_ptrs.dtype.element_ty), mask=mask)
    if END is not None:
        acc = END(acc)
    tl.store(out_ptrs, acc.to(out_ptrs.dtype.element_ty), mask=mask)


# Sizes in units and multiples of the pitches show the compiler how wide loads may be: it need not look at the sizes.
@triton.jit(do_not_specialize=["m_units", "n_units", "k_units", "part_blocks"])
def parts_kernel(
    out_ptr, h_ptr, a_ptr, b_ptr, bias_ptr,
    m_units, n_units, k_units, part_blocks,
    strides_out, strides_h, strides_a, strides_b,
    UNIT_M: tl.constexpr, UNIT_N: tl.constexpr, UNIT_K: tl.constexpr, UNIT_A: tl.constexpr, UNIT_B: tl.constexpr,
    EVEN: tl.constexpr, EARLY: tl.constexpr, END: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    M, N, K = m_units * UNIT_M, n_units * UNIT_N, k_units * UNIT_K
    tiles_m = tl.cdiv(M, BLOCK_M)
    part = tl.program_id(1)
    first, a_part = part * part_blocks * BLOCK_K, part_blocks * BLOCK_K
    offs_m = (tl.program_id(0) % tiles_m).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tl.program_id(0) // tiles_m).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = first.to(tl.int64) + tl.arange(0, BLOCK_K)
    mask_m, mask_n = offs_m < M, offs_n < N

    rows_a, steps_a = offs_m[None, :] * strides_a[0], offs_k[:, None] * strides_a[1]
    rows_b, steps_b = offs_k[None, :] * strides_b[0], offs_n[:, None] * strides_b[1]
    # Of the two offsets of an operand, one counts elements that are adjacent, the other pitches.
    if strides_a[1] == 1:
        rows_a = tl.multiple_of(rows_a, (UNIT_A, UNIT_A))
    else:
        steps_a = tl.multiple_of(steps_a, (UNIT_A, UNIT_A))
    if strides_b[1] == 1:
        rows_b = tl.multiple_of(rows_b, (UNIT_B, UNIT_B))
    else:
        steps_b = tl.multiple_of(steps_b, (UNIT_B, UNIT_B))
    a_ptrs = a_ptr + (rows_a + steps_a)
    b_ptrs = b_ptr + (rows_b + steps_b)

    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(first, min(K, first + a_part), BLOCK_K):
        # EVEN: K is a multiple of BLOCK_K, and nothing along K needs a mask.
        mask_k = k + tl.arange(0, BLOCK_K) < K
        mask_a = mask_m[None, :] if EVEN else mask_m[None, :] & mask_k[:, None]
        mask_b = mask_n[:, None] if EVEN else mask_n[:, None] & mask_k[None, :]
        b = tl.load(b_ptrs, mask=mask_b, other=0.0)  # (BLOCK_N, BLOCK_K)
        a = tl.load(a_ptrs, mask=mask_a, other=0.0)  # (BLOCK_K, BLOCK_M)
        acc = tl.dot(b, a, acc, input_precision=INPUT_PRECISION)  # (BLOCK_N, BLOCK_M)
        a_ptrs += tl.cast(strides_a[1], tl.int64) * BLOCK_K
        b_ptrs += tl.cast(strides_b[0], tl.int64) * BLOCK_K

    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()  # the second kernel may take its place, and waits there for the parts
    out_ptrs = out_ptr + tl.cast(part, tl.int64) * strides_out[0]
    out_ptrs += offs_m[None, :] * strides_out[1] + offs_n[:, None] * strides_out[2]
    h_ptrs = None
    if h_ptr is not None:
        h_ptrs = h_ptr + offs_m[None, :] * strides_h[0] + offs_n[:, None] * strides_h[1]
    bias = None
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)[:, None]
    _leave(acc, out_ptrs, h_ptrs, bias, mask_n[:, None] & mask_m[None, :], END)


@triton.jit(do_not_specialize=["parts"])
def sum_parts_kernel(
    out_ptr, h_ptr, parts_ptr, bias_ptr,
    N, parts, stride_part,
    strides_out, strides_h,
    PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr, END: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_part = tl.arange(0, PARTS).to(tl.int64)
    mask_n, mask_part = offs_n < N, offs_part < parts
    if EARLY:
        tl.extra.cuda.gdc_wait()
    # All parts at once: one after the other, each would wait for its own load.
    parts_ptrs = parts_ptr + offs_part[:, None] * stride_part + row * N + offs_n[None, :]
    each = tl.load(parts_ptrs, mask=mask_part[:, None] & mask_n[None, :], other=0.0)  # (PARTS, BLOCK)
    acc = tl.sum(each, axis=0)  # a tree, the same on every run
    h_ptrs = None
    if h_ptr is not None:
        h_ptrs = h_ptr + row * strides_h[0] + offs_n * strides_h[1]
    bias = None
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    _leave(acc, out_ptr + row * strides_out[0] + offs_n * strides_out[1], h_ptrs, bias, mask_n, END)


def _unit(x: torch.Tensor) -> int:
    """The largest power of two of elements, up to 16 bytes, that divides the pitch of x."""
    pitches = [stride for stride in x.stride() if stride != 1]
    return common_unit(pitches, 16 // x.element_size()) if pitches else 1


def load_bytes(x: torch.Tensor) -> int:
    """How wide a load of x may be: 16 bytes or less. An asynchronous copy takes 4 at least."""
    if 1 not in x.stride() or x.data_ptr() % 16 != 0:  # Triton notices pointers at multiples of 16 bytes, and no others
        return x.element_size()
    return common_unit([x.shape[x.stride().index(1)], _unit(x)], 16 // x.element_size()) * x.element_size()


def write_parts(
    out, a, b, tile: Tile, split: int, input_precision: str = "ieee", bias=None, h=None, end=None, early=None
) -> None:
    """end(a b + bias) into out, and a b + bias into h if that is given; `split` programs share the sum of a tile.

    Any strides; the bias is contiguous. Workspace: 4 M N split bytes where split > 1.
    early: the second kernel starts while the first still runs, and waits; compute capability 9.0 and later.
    """
    (M, K), N = a.shape, b.shape[1]
    blocks = max(1, triton.cdiv(K, tile.block_k))
    part_blocks = triton.cdiv(blocks, split)
    split = triton.cdiv(blocks, part_blocks)
    alone = split == 1
    early = not alone and out.is_cuda and copy_engine(out.device) if early is None else early
    parts = out if alone else torch.empty(split, M, N, dtype=torch.float32, device=out.device)
    most = 16 // a.element_size()
    units = [common_unit([size], most) for size in (M, N, K)]
    strides_h = (0, 0) if h is None else h.stride()
    launch(
        parts_kernel, (triton.cdiv(M, tile.block_m) * triton.cdiv(N, tile.block_n), split),
        parts, h if alone else None, a, b, bias if alone else None,
        *(size // unit for size, unit in zip((M, N, K), units)), part_blocks,
        (0, *out.stride()) if alone else parts.stride(), strides_h, a.stride(), b.stride(),
        UNIT_M=units[0], UNIT_N=units[1], UNIT_K=units[2], UNIT_A=_unit(a), UNIT_B=_unit(b),
        EVEN=K % tile.block_k == 0, EARLY=early, END=end if alone else None,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_K=tile.block_k, INPUT_PRECISION=input_precision,
        **options(tile),
    )  # fmt: skip
    if not alone:
        held = triton.next_power_of_2(split)
        block = min(max(32, SUMMED // held), max(32, triton.next_power_of_2(N)))
        launch(
            sum_parts_kernel, (M, triton.cdiv(N, block)),
            out, h, parts, bias,
            N, split, parts.stride(0),
            out.stride(), strides_h,
            PARTS=held, BLOCK=block, EARLY=early, END=end, num_warps=4, launch_pdl=early,
        )  # fmt: skip
