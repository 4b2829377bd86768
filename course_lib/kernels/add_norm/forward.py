"""Forward: one read of x and of the residual, one write of their sum and of its norm.

Rows lie whole in registers, so the mean, the variance around it and the norm cost no further pass. The variance is
that of the differences from the mean: E[s^2] - E[s]^2 would lose all bits of a row whose mean is large.
"""

import triton
import triton.language as tl

from course_lib.kernels.add_norm.rows import (
    kept_rows,
    load_columns,
    load_rows,
    pitch,
    row_sums,
    row_unit,
    rows_of,
    sizes,
    store_rows,
    store_terms,
)
from course_lib.kernels.add_norm.tuning import Forward, forward_rows
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.philox import smallest_kept

__all__ = ["forward_kernel", "write_forward"]


@triton.jit
def _dropped(x, kept, scale):
    main, rest = x
    keep, keep_rest = kept
    return tl.where(keep, main * scale, 0.0), tl.where(keep_rest, rest * scale, 0.0)


@triton.jit
def forward_kernel(
    y_ptr, s_ptr, mean_ptr, rstd_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr, seed_ptr,
    n_rows, eps, start, least, scale,
    stride_y, stride_s, stride_x, stride_residual,
    N: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, UNIT: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    offs_m = rows_of(tl.program_id(0), BLOCK_M)
    # Rows are pairs of blocks: (BLOCK_M, MAIN) and (BLOCK_M, REST); weight and bias (1, MAIN) and (1, REST).
    x, x_rest = load_rows(x_ptr, offs_m, n_rows, stride_x, N, MAIN, REST, UNIT)
    residual, residual_rest = load_rows(residual_ptr, offs_m, n_rows, stride_residual, N, MAIN, REST, UNIT)
    weight, weight_rest = load_columns(weight_ptr, N, MAIN, REST, 1.0)
    bias, bias_rest = load_columns(bias_ptr, N, MAIN, REST, 0.0)
    x, x_rest = x.to(tl.float32), x_rest.to(tl.float32)
    if seed_ptr is not None:
        kept = kept_rows(tl.load(seed_ptr), start, offs_m, least, N, MAIN, REST)
        x, x_rest = _dropped((x, x_rest), kept, scale)
    s, s_rest = x + residual.to(tl.float32), x_rest + residual_rest.to(tl.float32)
    store_rows(s_ptr, (s, s_rest), offs_m, n_rows, stride_s, N, MAIN, REST, UNIT)

    # The norm is that of the sum in fp32, before it is rounded for whoever reads it next.
    mean = row_sums((s, s_rest), REST) / N  # (BLOCK_M, 1), or of the only row one number
    c, c_rest = s - mean, s_rest - mean
    if MAIN > N:
        c = tl.where(tl.arange(0, MAIN)[None, :] < N, c, 0.0)
    if REST:
        c_rest = tl.where(MAIN + tl.arange(0, REST)[None, :] < N, c_rest, 0.0)
    rstd = tl.rsqrt(row_sums((c * c, c_rest * c_rest), REST) / N + eps)
    y = c * rstd * weight + bias, c_rest * rstd * weight_rest + bias_rest
    store_rows(y_ptr, y, offs_m, n_rows, stride_y, N, MAIN, REST, UNIT)
    store_terms(mean_ptr, mean, tl.program_id(0), n_rows, BLOCK_M)
    store_terms(rstd_ptr, rstd, tl.program_id(0), n_rows, BLOCK_M)


@planned
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
    unit = row_unit(y, s, x, residual)
    launch(
        forward_kernel, (triton.cdiv(rows, how.rows),),
        y, s, mean, rstd, x, residual, weight, bias, seed,
        rows, eps, offset, smallest_kept(p), 1 / (1 - p),
        *(pitch(t, unit) for t in (y, s, x, residual)),
        **sizes(width, unit, how.rows), num_warps=how.warps,
    )  # fmt: skip
