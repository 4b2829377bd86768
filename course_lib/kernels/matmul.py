"""Matrix product as a ladder: every rung is the one before it with one idea more.

    c[m, n] = sum_k a[m, k] b[k, n]             2 M N K FLOP; at least (M K + K N + M N) x element size bytes

    matmul_naive       a program makes one piece of one row of c. Every program reads all it needs of b from memory:
                       b is read M times over, and the time is that of the bytes.
    matmul_tiled       a program makes a BLOCK_M x BLOCK_N tile on the tensor cores: a is read N / BLOCK_N times
                       and b M / BLOCK_M times.
    matmul_grouped     the same tiles in another order: programs that run at the same time share rows of a and
                       columns of b, which the L2 cache then serves.
    matmul_persistent  one program a multiprocessor walks over many tiles; tensor descriptors let the copy engine
                       (TMA) fetch the tiles, and the loads of the next tile run during the store of this one.
    matmul_parts       beside the ladder, for a c of few tiles: lower tiles for few rows, and several programs that
                       share the sum along a long K (product_parts.py).

All rungs accumulate in fp32, take any M, N and K, and round once, at the store. `input_precision` says what a product
of fp32 inputs is: "ieee" keeps all 24 bits of each factor (no tensor cores); "tf32" keeps 11 of them, and is fast.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.descriptors import by_rows_or_columns, describable, described
from course_lib.kernels.hardware import copy_engine, limits, multiprocessors
from course_lib.kernels.product_copies import aligned_like, aligned_rows, copy_back
from course_lib.kernels.product_parts import write_parts
from course_lib.kernels.product_routes import Parts, copies_us, large_us, parts_for
from course_lib.kernels.product_tiles import (
    GROUP_M,
    PERSISTENT,
    POINTER,
    UNALIGNED,
    allowed,
    constants,
    fastest,
    options,
    tile_count,
    tile_position,
)

__all__ = [
    "matmul",
    "matmul_grouped",
    "matmul_naive",
    "matmul_parts",
    "matmul_persistent",
    "matmul_reference",
    "matmul_tiled",
]


def matmul_reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.float() @ b.float()).to(a.dtype)


@triton.jit
def _naive_kernel(
    out_ptr, a_ptr, b_ptr,
    M, N, K,
    stride_out_m, stride_out_n, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_n = offs_n < N

    acc = tl.zeros((BLOCK_N,), tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_k = offs_k < K - k
        a = tl.load(a_ptr + row * stride_a_m + (k + offs_k) * stride_a_k, mask=mask_k, other=0.0)  # (BLOCK_K,)
        b_ptrs = b_ptr + (k + offs_k)[:, None] * stride_b_k + offs_n[None, :] * stride_b_n
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)  # (BLOCK_K, BLOCK_N)
        acc += tl.sum(a.to(tl.float32)[:, None] * b.to(tl.float32), axis=0)  # (BLOCK_N,)

    tl.store(out_ptr + row * stride_out_m + offs_n * stride_out_n, acc.to(out_ptr.dtype.element_ty), mask=mask_n)


@triton.jit
def _tiled_kernel(
    out_ptr, a_ptr, b_ptr,
    M, N, K,
    stride_out_m, stride_out_n, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    tile_m, tile_n = tile_position(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    offs_m = tl.cast(tile_m, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.cast(tile_n, tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_m = offs_m < M
    mask_n = offs_n < N

    a_ptrs = a_ptr + offs_m[:, None] * stride_a_m + offs_k[None, :] * stride_a_k
    b_ptrs = b_ptr + offs_k[:, None] * stride_b_k + offs_n[None, :] * stride_b_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_k = offs_k < K - k
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)  # (BLOCK_M, BLOCK_K)
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)  # (BLOCK_K, BLOCK_N)
        acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)  # (BLOCK_M, BLOCK_N)
        a_ptrs += tl.cast(stride_a_k, tl.int64) * BLOCK_K
        b_ptrs += tl.cast(stride_b_k, tl.int64) * BLOCK_K

    out_ptrs = out_ptr + offs_m[:, None] * stride_out_m + offs_n[None, :] * stride_out_n
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :])


@triton.jit
def _persistent_kernel(
    out_desc, a_desc, b_desc,
    M, N, K,
    A_BY_COLUMN: tl.constexpr, B_BY_COLUMN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    INPUT_PRECISION: tl.constexpr,
):  # fmt: skip
    # A descriptor carries shape and strides; the copy engine fills what lies outside with zeros and writes nothing
    # there, so no mask is needed. A matrix stored by columns is described as its transpose and turned on the way in.
    n_tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    # flatten makes one loop of the two, so that loads for the next tile are in flight while this one is stored.
    for tile in tl.range(tl.program_id(0), n_tiles, tl.num_programs(0), flatten=True):
        tile_m, tile_n = tile_position(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        m = tile_m * BLOCK_M
        n = tile_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([k, m]).T if A_BY_COLUMN else a_desc.load([m, k])  # (BLOCK_M, BLOCK_K)
            b = b_desc.load([n, k]).T if B_BY_COLUMN else b_desc.load([k, n])  # (BLOCK_K, BLOCK_N)
            acc = tl.dot(a, b, acc, input_precision=INPUT_PRECISION)  # (BLOCK_M, BLOCK_N)
        out_desc.store([m, n], acc.to(out_desc.dtype))


def _checked_out(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    assert a.dim() == 2 and b.dim() == 2, f"two matrices expected, got shapes {tuple(a.shape)} and {tuple(b.shape)}"
    assert a.shape[1] == b.shape[0], f"inner sizes differ: {tuple(a.shape)} times {tuple(b.shape)}"
    assert a.dtype == b.dtype and a.dtype.itemsize in POINTER, f"one 2- or 4-byte type: {a.dtype}, {b.dtype}"
    if out is None:
        return torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    assert out.shape == (a.shape[0], b.shape[1]), f"out has shape {tuple(out.shape)}"
    return out


def matmul_naive(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """a (M, K) times b (K, N), any strides. Bytes asked of memory: about M N K x element size."""
    out = _checked_out(a, b, out)
    (M, K), N = a.shape, b.shape[1]
    if M and N:
        _naive_kernel[(M, triton.cdiv(N, 256))](
            out, a, b,
            M, N, K,
            *out.stride(), *a.stride(), *b.stride(),
            BLOCK_N=256, BLOCK_K=16, num_warps=4,
        )  # fmt: skip
    return out


def _tiles(table: dict, a: torch.Tensor, stored: int) -> tuple:
    """The tiles of a table that a's device can take."""
    tiles = table[a.dtype.itemsize]
    return allowed(tiles, a.dtype.itemsize, limits(a.device), stored) if a.is_cuda else tiles


def _launch_tiles(a, b, out, input_precision, group_m) -> torch.Tensor:
    out = _checked_out(a, b, out)
    (M, K), N = a.shape, b.shape[1]
    if M == 0 or N == 0:
        return out
    aligned = describable(out) and by_rows_or_columns(a) and by_rows_or_columns(b)
    table = POINTER if aligned else UNALIGNED
    tile = fastest(_tiles(table, a, 0), M, N, multiprocessors(a.device))
    _tiled_kernel[(tile_count(M, N, tile),)](
        out, a, b,
        M, N, K,
        *out.stride(), *a.stride(), *b.stride(),
        **constants(tile, group_m, input_precision), **options(tile),
    )  # fmt: skip
    return out


def matmul_tiled(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, input_precision: str = "ieee"
) -> torch.Tensor:
    """a (M, K) times b (K, N), any strides; tiles of c go row by row."""
    return _launch_tiles(a, b, out, input_precision, group_m=1)


def matmul_grouped(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, input_precision: str = "ieee"
) -> torch.Tensor:
    """a (M, K) times b (K, N), any strides; tiles of c go in groups of 8 tile rows."""
    return _launch_tiles(a, b, out, input_precision, group_m=GROUP_M)


def _fits_persistent(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> bool:
    """The one rule for the last rung: a copy engine, and rows of out and rows or columns of a and b it can address."""
    return copy_engine(a.device) and describable(out) and by_rows_or_columns(a) and by_rows_or_columns(b)


def matmul_persistent(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, input_precision: str = "ieee"
) -> torch.Tensor:
    """a (M, K) times b (K, N), each stored by rows or by columns with a pitch that is a multiple of 16 bytes."""
    out = _checked_out(a, b, out)
    assert _fits_persistent(a, b, out), "TMA needs compute capability 9.0 and 16-byte rows: use matmul_grouped"
    (M, K), N = a.shape, b.shape[1]
    programs = multiprocessors(a.device)
    tile = fastest(_tiles(PERSISTENT, a, 1), M, N, programs)
    block_m, block_n, block_k = tile.block_m, tile.block_n, tile.block_k
    a_by_column, b_by_column = not describable(a), not describable(b)
    _persistent_kernel[(min(tile_count(M, N, tile), programs),)](
        described(out, False, block_m, block_n),
        described(a, a_by_column, block_m, block_k),
        described(b, b_by_column, block_k, block_n),
        M, N, K,
        A_BY_COLUMN=a_by_column, B_BY_COLUMN=b_by_column,
        **constants(tile, GROUP_M, input_precision), **options(tile),
    )  # fmt: skip
    return out


def _parts_for(a: torch.Tensor, b: torch.Tensor) -> Parts:
    (M, K), N = a.shape, b.shape[1]
    return parts_for(*((N, M) if _turned(M, N) else (M, N)), K, a, b)


def _turned(M: int, N: int) -> bool:
    """Is it the columns of c that are few? Then its transpose is made, bᵀ aᵀ, which has few rows."""
    return N <= 64 and N < M


def matmul_parts(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None = None,
    input_precision: str = "ieee",
    parts: Parts | None = None,
) -> torch.Tensor:
    """a (M, K) times b (K, N), any strides. Workspace: 4 M N bytes for each part where a sum has several."""
    out = _checked_out(a, b, out)
    if out.numel():
        parts = parts or _parts_for(a, b)
        given = (out.t(), b.t(), a.t()) if _turned(*out.shape) else (out, a, b)
        write_parts(*given, parts.tile, parts.split, input_precision)
    return out


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """A copy that the copy engine can address, by columns where x is stored by columns."""
    return aligned_rows(x.t()).t() if x.stride(0) == 1 else aligned_rows(x)


def matmul(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None, input_precision: str = "ieee"
) -> torch.Tensor:
    """a (M, K) times b (K, N) into out (M, N), any strides, fp32, fp16 or bf16; no gradient is recorded.

    What is estimated to be fastest (product_routes.py): parts, or large tiles. Large tiles are those of the persistent
    rung for 2-byte types where there is a copy engine, and of the grouped rung otherwise. For them a matrix whose rows
    and columns do not start at multiples of 16 bytes is copied first, and such a result afterwards.
    """
    out = _checked_out(a, b, out)
    if out.numel() == 0:
        return out
    if not describable(out) and describable(out.t()):
        matmul(b.t(), a.t(), out.t(), input_precision)  # the same product
        return out
    far = [x for x in (a, b) if not by_rows_or_columns(x)] + ([] if describable(out) else [out])
    (M, K), N = a.shape, b.shape[1]
    parts = _parts_for(a, b)
    table = PERSISTENT if a.dtype.itemsize == 2 and copy_engine(a.device) else POINTER
    programs = multiprocessors(a.device)
    tile = fastest(_tiles(table, a, int(table is PERSISTENT)), M, N, programs)
    us = large_us(tile, M, N, K, a.element_size(), programs) + copies_us(x.numel() * x.element_size() for x in far)
    if K == 0 or parts.us <= us:
        return matmul_parts(a, b, out, input_precision, parts)
    a, b = (x if by_rows_or_columns(x) else _aligned(x) for x in (a, b))
    made = out if describable(out) else aligned_like(out)
    (matmul_persistent if table is PERSISTENT else matmul_grouped)(a, b, made, input_precision)
    if made is not out:
        copy_back(out, made)
    return out
