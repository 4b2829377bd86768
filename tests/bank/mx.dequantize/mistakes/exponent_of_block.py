"""One exponent a block."""

import triton
import triton.language as tl

KILLED_BY = "whole groups"


@triton.jit
def _dequantize_kernel(
    out_ptr, m_ptr, e_ptr,
    rows, columns, groups, group,
    stride_out, stride_m,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    mask = (row < rows) & (column < columns)
    m = tl.load(m_ptr + row * stride_m + column, mask=mask, other=0).to(tl.float32)
    e = tl.load(e_ptr + row * groups + (tl.program_id(1) * BLOCK) // group, mask=mask, other=0).to(tl.int32)
    # 2^(e - 133) in two factors, both of them normal numbers
    half = e // 2
    first = ((half - 66 + 127) << 23).to(tl.float32, bitcast=True)
    second = ((e - half - 67 + 127) << 23).to(tl.float32, bitcast=True)
    out = tl.where(e == 255, float("nan"), m * first * second)
    tl.store(out_ptr + row * stride_out + column, out.to(tl.bfloat16), mask=mask)


def dequantize(mantissas, exponents, group, out):
    rows, columns = mantissas.shape
    if rows == 0:
        return
    block = min(128, triton.next_power_of_2(columns))
    _dequantize_kernel[(triton.cdiv(rows, 4), triton.cdiv(columns, block))](
        out, mantissas, exponents, rows, columns, triton.cdiv(columns, group), group,
        out.stride(0), mantissas.stride(0), ROWS=4, BLOCK=block,
    )
