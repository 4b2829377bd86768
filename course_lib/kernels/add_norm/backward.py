"""Backward: one read of dy, ds and s, one write of the gradient; dw and db in two steps, without locks or atomics.

    x̂ = (s - mean) rstd        g = dy w
    d = rstd (g - mean(g) - x̂ mean(g x̂)) + ds        for the residual and, without dropout, for x as well
    dw = Σ dy x̂                db = Σ dy              over all rows
    Σ dx                                               where asked for: of the bias of the layer that made x

Sums over all rows are what makes this hard: many programs add to the same N numbers. Here as many programs as the
device holds at once walk over the rows; each keeps its own sums in registers and writes them once at its end, N numbers
of P programs; a second kernel adds those up. 924 programs of 1152 columns write 8.5 MB, an eighteenth of what the
rows take. The order of every addition is fixed, so the same device gives the same bits on every run.

Wide rows fill the registers: at 12288 columns dw and db alone are 98 KB of the 262 that a multiprocessor has. With
AGAIN a row and weights wait for the row's sums in their own type, and x̂ and g are made from them a second time.

With 2 SHARERS two programs walk over the same rows. Both read all columns of dy and s, since both need the row's means.
Each reads ds, makes d and keeps dw and db for its own half of the columns alone. They are neighbours in the grid, so
that they read a row at about the same time, and the second finds it in the L2 cache.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.add_norm.rows import (
    kept_rows,
    load_columns,
    load_rows,
    load_terms,
    pitch,
    row_unit,
    rows_of,
    sizes,
    store_rows,
    two_row_sums,
)
from course_lib.kernels.add_norm.tuning import Backward, backward_rows, registers_of
from course_lib.kernels.hardware import multiprocessors
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.philox import smallest_kept

__all__ = ["SUM_BLOCKS", "backward_kernel", "sum_parts_kernel", "write_backward"]

SUM_BLOCKS = 256, 32  # programs and columns of the second step


@triton.jit
def _load_block(
    block, dy_ptr, ds_ptr, s_ptr, n_rows, stride_dy, stride_ds, stride_s,
    N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, OWN_REST: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_M: tl.constexpr, half,
):  # fmt: skip
    offs_m = rows_of(block, BLOCK_M)
    dy = load_rows(dy_ptr, offs_m, n_rows, stride_dy, N, MAIN, REST, UNIT, half)
    s = load_rows(s_ptr, offs_m, n_rows, stride_s, N, MAIN, REST, UNIT, half)
    ds = s
    if ds_ptr is not None:
        ds = load_rows(ds_ptr, offs_m, n_rows, stride_ds, N, MAIN, OWN_REST, UNIT, half)
    return dy, s, ds


@triton.jit
def _terms(
    dy_rows, s_rows, weight, mean_ptr, rstd_ptr, block, n_rows,
    N: tl.constexpr, BLOCK_M: tl.constexpr, UNKNOWN: tl.constexpr,
):  # fmt: skip
    """rstd, and in fp32 both blocks of dy, of x̂ and of g = dy w."""
    mean = load_terms(mean_ptr, block, n_rows, BLOCK_M, UNKNOWN)  # (BLOCK_M, 1), or of the only row one number
    rstd = load_terms(rstd_ptr, block, n_rows, BLOCK_M, UNKNOWN)
    dy, dy_rest = dy_rows[0].to(tl.float32), dy_rows[1].to(tl.float32)
    x, x_rest = (s_rows[0].to(tl.float32) - mean) * rstd, (s_rows[1].to(tl.float32) - mean) * rstd
    if N == 1:  # s was rounded and its mean was not: their difference would be rounding, times up to 1 / sqrt(eps)
        x = x * 0.0
    return rstd, dy, dy_rest, x, x_rest, dy * weight[0], dy_rest * weight[1]  # dy and g 0 beyond the last column


@triton.jit
def backward_kernel(
    d_ptr, dx_ptr, parts_w_ptr, parts_b_ptr, dy_ptr, ds_ptr, s_ptr, weight_ptr, mean_ptr, rstd_ptr, seed_ptr,
    n_rows, start, least, scale,
    stride_d, stride_dx, stride_dy, stride_ds, stride_s,
    N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr,
    AHEAD: tl.constexpr, STAGES: tl.constexpr, AGAIN: tl.constexpr, SHARERS: tl.constexpr, parts_x_ptr=None,
):  # fmt: skip
    OWN_REST: tl.constexpr = REST if SHARERS == 1 else 0  # of REST's columns, those whose gradients are made here
    half = tl.program_id(0) % SHARERS
    if not AGAIN:
        weight = load_columns(weight_ptr, N, MAIN, REST, 1.0, False, half)
    dw = tl.zeros((BLOCK_M, MAIN), tl.float32)
    db = tl.zeros((BLOCK_M, MAIN), tl.float32)
    of_x = tl.zeros((BLOCK_M, MAIN), tl.float32)
    dw_rest, db_rest, of_x_rest = dw, db, of_x
    if OWN_REST:
        dw_rest = tl.zeros((BLOCK_M, OWN_REST), tl.float32)
        db_rest = tl.zeros((BLOCK_M, OWN_REST), tl.float32)
        of_x_rest = tl.zeros((BLOCK_M, OWN_REST), tl.float32)

    n_blocks = tl.cdiv(n_rows, BLOCK_M)
    step, walker = tl.num_programs(0) // SHARERS, tl.program_id(0) // SHARERS  # sharers are one walker
    if AHEAD:  # the rows of the next turn are on their way while these are worked on
        coming = _load_block(
            walker, dy_ptr, ds_ptr, s_ptr, n_rows, stride_dy, stride_ds, stride_s,
            N, MAIN, REST, OWN_REST, UNIT, BLOCK_M, half,
        )  # fmt: skip
    for block in tl.range(walker, n_blocks, step, num_stages=STAGES):
        if AHEAD:
            dy_rows, s_rows, ds_rows = coming
            coming = _load_block(
                block + step, dy_ptr, ds_ptr, s_ptr, n_rows, stride_dy, stride_ds, stride_s,
                N, MAIN, REST, OWN_REST, UNIT, BLOCK_M, half,
            )  # fmt: skip
        else:
            dy_rows, s_rows, ds_rows = _load_block(
                block, dy_ptr, ds_ptr, s_ptr, n_rows, stride_dy, stride_ds, stride_s,
                N, MAIN, REST, OWN_REST, UNIT, BLOCK_M, half,
            )  # fmt: skip
        # dy_rows, s_rows: pairs of blocks, (BLOCK_M, MAIN) and (BLOCK_M, REST); ds_rows: and (BLOCK_M, OWN_REST)
        offs_m = rows_of(block, BLOCK_M)  # (BLOCK_M, 1)
        if AGAIN:
            weight = load_columns(weight_ptr, N, MAIN, REST, 1.0, False, half)
        rstd, dy, dy_rest, x, x_rest, g, g_rest = _terms(
            dy_rows, s_rows, weight, mean_ptr, rstd_ptr, block, n_rows, N, BLOCK_M, False
        )  # fmt: skip
        along, level = two_row_sums((g * x, g_rest * x_rest), (g, g_rest), REST)
        along, level = along / N, level / N
        if AGAIN:  # mean, rstd and weights as if unknown: else the compiler keeps the first x and g in fp32 till here
            weight = load_columns(weight_ptr, N, MAIN, OWN_REST, 1.0, True, half)
            rstd, dy, dy_rest, x, x_rest, g, g_rest = _terms(
                dy_rows, s_rows, weight, mean_ptr, rstd_ptr, block, n_rows, N, BLOCK_M, True
            )  # fmt: skip
        d, d_rest = (g - level - x * along) * rstd, (g_rest - level - x_rest * along) * rstd
        if ds_ptr is not None:
            d, d_rest = d + ds_rows[0].to(tl.float32), d_rest + ds_rows[1].to(tl.float32)
        store_rows(d_ptr, (d, d_rest), offs_m, n_rows, stride_d, N, MAIN, OWN_REST, UNIT, half)
        if dx_ptr is not None:
            if seed_ptr is not None:
                keep, keep_rest = kept_rows(tl.load(seed_ptr), start, offs_m, least, N, MAIN, OWN_REST, half)
                d, d_rest = tl.where(keep, d * scale, 0.0), tl.where(keep_rest, d_rest * scale, 0.0)
            store_rows(dx_ptr, (d, d_rest), offs_m, n_rows, stride_dx, N, MAIN, OWN_REST, UNIT, half)
        dw += dy * x
        db += dy
        if OWN_REST:
            dw_rest += dy_rest * x_rest
            db_rest += dy_rest
        if parts_x_ptr is not None:
            of_x += d
            if OWN_REST:
                of_x_rest += d_rest

    offs_p = rows_of(walker, 1)
    for_w = tl.sum(dw, axis=0)[None, :], tl.sum(dw_rest, axis=0)[None, :]
    for_b = tl.sum(db, axis=0)[None, :], tl.sum(db_rest, axis=0)[None, :]
    store_rows(parts_w_ptr, for_w, offs_p, step, N, N, MAIN, OWN_REST, 1, half)
    if parts_b_ptr is not None:
        store_rows(parts_b_ptr, for_b, offs_p, step, N, N, MAIN, OWN_REST, 1, half)
    if parts_x_ptr is not None:
        for_x = tl.sum(of_x, axis=0)[None, :], tl.sum(of_x_rest, axis=0)[None, :]
        store_rows(parts_x_ptr, for_x, offs_p, step, N, N, MAIN, OWN_REST, 1, half)


@triton.jit
def _sum_parts(out_ptr, parts_ptr, n_parts, N, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for first in range(0, n_parts, BLOCK_P):
        offs_p = first + tl.arange(0, BLOCK_P)
        mask = (offs_p < n_parts)[:, None] & (offs_n < N)[None, :]
        parts = parts_ptr + offs_p.to(tl.int64)[:, None] * N + offs_n[None, :]
        acc += tl.load(parts, mask=mask, other=0.0)  # (BLOCK_P, BLOCK_N)
    tl.store(out_ptr + offs_n, tl.sum(acc, axis=0).to(out_ptr.dtype.element_ty), mask=offs_n < N)


@triton.jit
def sum_parts_kernel(
    dw_ptr, db_ptr, parts_w_ptr, parts_b_ptr,
    n_parts, N,
    BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr, sum_x_ptr=None, parts_x_ptr=None,
):  # fmt: skip
    """Programs (i, 0) make a block of dw, (i, 1) the same block of db, (i, 2) of the sum of dx."""
    if tl.program_id(1) == 0:
        _sum_parts(dw_ptr, parts_w_ptr, n_parts, N, BLOCK_P, BLOCK_N)
    elif tl.program_id(1) == 1:
        if db_ptr is not None:
            _sum_parts(db_ptr, parts_b_ptr, n_parts, N, BLOCK_P, BLOCK_N)
    elif sum_x_ptr is not None:
        _sum_parts(sum_x_ptr, parts_x_ptr, n_parts, N, BLOCK_P, BLOCK_N)


def write_backward(
    d, dx, dw, db, dy, ds, s, weight, mean, rstd, p: float = 0.0, seed=None, offset: int = 0,
    how: Backward | None = None, sum_x=None,
) -> None:  # fmt: skip
    """d: the gradient of s, and so of the residual. dx: d through the dropout, or None. dw, db (N,), db or None.

    dy and ds (or None): gradients of y and of s. sum_x (N,) or None: for the sum of the rows of dx, before they are
    rounded. d and dx have memory of their own: of two programs that share a row one may still read it when the other
    writes. Bytes: read dy, ds and s, write d (and dx).
    """
    rows, width = s.shape
    widest = max(dy.element_size(), s.element_size(), 0 if ds is None else ds.element_size())
    how = how or backward_rows(width, rows, s.device, widest, weight.element_size())
    if how.halved and rows:
        written = {t.data_ptr() for t in (d, dx) if t is not None}
        assert written.isdisjoint(t.data_ptr() for t in (dy, ds, s) if t is not None), "d and dx need their own memory"
    walkers = max(1, min(how.programs * multiprocessors(s.device) // (1 + how.halved), -(-rows // how.rows)))
    sums = 2 if sum_x is None else 3
    parts = torch.empty(sums, walkers, width, dtype=torch.float32, device=s.device)
    _write_backward(d, dx, dw, db, sum_x, parts, dy, ds, s, weight, mean, rstd, p, seed, offset, how)


@planned
def _write_backward(
    d, dx, dw, db, sum_x, parts, dy, ds, s, weight, mean, rstd, p: float, seed, offset: int, how: Backward
) -> None:  # fmt: skip
    """`parts` (2 or, with sum_x, 3; walkers, N) fp32: room for the sums of each walker."""
    (rows, width), (sums, walkers) = s.shape, parts.shape[:2]
    parts_w, parts_b, parts_x = parts[0], None if db is None else parts[1], None if sum_x is None else parts[2]
    unit = row_unit(d, dx, dy, ds, s)
    # At 1152 columns one sum more makes 168 registers of 127, and a program less fits. Held to 144 nothing spills.
    registers = None if sum_x is None else registers_of(how)
    launch(
        backward_kernel, (walkers * (1 + how.halved),),
        d, dx, parts_w, parts_b, dy, ds, s, weight, mean, rstd, seed,
        rows, offset, smallest_kept(p), 1 / (1 - p),
        *(pitch(t, unit) for t in (d, dx, dy, ds, s)),
        **sizes(width, unit, how.rows, how.halved), AHEAD=how.ahead, STAGES=how.stages, AGAIN=how.again,
        SHARERS=1 + how.halved, parts_x_ptr=parts_x, num_warps=how.warps, maxnreg=registers,
    )  # fmt: skip
    block_p, block_n = SUM_BLOCKS if s.device.type == "cuda" else (2, 32)
    launch(
        sum_parts_kernel, (triton.cdiv(width, block_n), sums),
        dw, db, parts_w, parts_b,
        walkers, width,
        BLOCK_P=block_p, BLOCK_N=block_n, sum_x_ptr=sum_x, parts_x_ptr=parts_x, num_warps=8,
    )  # fmt: skip
