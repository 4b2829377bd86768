"""Tensors in, one launch forward, two backward."""

import functools

import torch
import triton

from course_lib.kernels.add_norm.backward import backward_kernel, sum_parts_kernel
from course_lib.kernels.add_norm.forward import forward_kernel
from course_lib.kernels.add_norm.tuning import Backward, Forward, backward_rows, forward_rows, parts_of
from course_lib.kernels.dropout import smallest_kept
from course_lib.kernels.tiles import multiprocessors

__all__ = ["SUM_BLOCKS", "write_backward", "write_forward"]

SUM_BLOCKS = 256, 32  # programs and columns, of the second step


def _unit(width: int, *matrices: torch.Tensor | None) -> int:
    """The largest power of two, up to 8 elements, that divides all row strides."""
    bits = functools.reduce(int.__or__, (x.stride(0) for x in matrices if x is not None and len(x) > 1), 8)
    return bits & -bits


def _sizes(width: int, unit: int, rows: int) -> dict:
    main, rest = parts_of(width, rows)
    return {"N": width, "MAIN": main, "REST": rest, "UNIT": unit, "BLOCK_M": rows}


def _pitch(x: torch.Tensor | None, unit: int) -> int:
    return 0 if x is None else x.stride(0) // unit


def _drop(p: float) -> tuple[int, float]:
    return smallest_kept(p), 1 / (1 - p)


def write_forward(
    y, s, mean, rstd, x, residual, weight, bias, eps: float, p: float = 0.0, seed=None, offset: int = 0,
    how: Forward | None = None,
) -> None:  # fmt: skip
    """s = dropout(x) + residual, y = norm(s) weight + bias, mean and rstd of s. In place where y is x, s is residual.

    y, s, x, residual (rows, N), columns adjacent, any row strides; mean, rstd (rows,) fp32; weight, bias (N,)
    contiguous. Bytes: read x and residual, write y and s.
    """
    rows, width = x.shape
    if rows == 0:
        return
    how = how or forward_rows(width, x.device)
    unit = _unit(width, y, s, x, residual)
    forward_kernel[(triton.cdiv(rows, how.rows),)](
        y, s, mean, rstd, x, residual, weight, bias, seed,
        rows, eps, offset, *_drop(p),
        *(_pitch(t, unit) for t in (y, s, x, residual)),
        **_sizes(width, unit, how.rows), num_warps=how.warps,
    )  # fmt: skip


def write_backward(
    d, dx, dw, db, dy, ds, s, weight, mean, rstd, p: float = 0.0, seed=None, offset: int = 0,
    how: Backward | None = None,
) -> None:  # fmt: skip
    """d: the gradient of s, and so of the residual. dx: d through the dropout, or None. dw, db (N,), db or None.

    dy and ds (or None): gradients of y and of s. Bytes: read dy, ds and s, write d (and dx).
    """
    rows, width = s.shape
    how = how or backward_rows(width, rows, s.device)
    programs = max(1, min(how.programs * multiprocessors(s.device), triton.cdiv(rows, how.rows)))
    parts = torch.empty(2, programs, width, dtype=torch.float32, device=s.device)
    parts_w, parts_b = parts[0], None if db is None else parts[1]
    unit = _unit(width, d, dx, dy, ds, s)
    backward_kernel[(programs,)](
        d, dx, parts_w, parts_b, dy, ds, s, weight, mean, rstd, seed,
        rows, offset, *_drop(p),
        *(_pitch(t, unit) for t in (d, dx, dy, ds, s)),
        **_sizes(width, unit, how.rows), AHEAD=how.ahead, STAGES=how.stages, num_warps=how.warps,
    )  # fmt: skip
    block_p, block_n = SUM_BLOCKS if s.device.type == "cuda" else (2, 32)
    sum_parts_kernel[(triton.cdiv(width, block_n), 2)](
        dw, db, parts_w, parts_b,
        programs, width,
        BLOCK_P=block_p, BLOCK_N=block_n, num_warps=8,
    )  # fmt: skip
