"""Groups of a column."""

import triton
import triton.language as tl

KILLED_BY = "whole groups"


@triton.jit
def _quantize_kernel(m_ptr, e_ptr, x_ptr, rows, columns, stride_m, stride_x, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * GROUP + tl.arange(0, GROUP)).to(tl.int64)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row < rows) & (column < columns)[None, :]
    x = tl.load(x_ptr + row * stride_x + column[None, :], mask=mask, other=0.0).to(tl.float32)
    e = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0) >> 23
    half = (133 - e) // 2
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((133 - e - half + 127) << 23).to(tl.float32, bitcast=True)
    m = (x * first[None, :] * second[None, :] + 12582912.0) - 12582912.0
    m = tl.minimum(tl.maximum(m, -127.0), 127.0)
    m = tl.where((e == 255)[None, :], 0.0, m)
    tl.store(m_ptr + row * stride_m + column[None, :], m.to(tl.int8), mask=mask)


def quantize(x, group, mantissas, exponents):
    rows, columns = x.shape
    if rows:
        _quantize_kernel[(triton.cdiv(rows, group), triton.cdiv(columns, 32))](
            mantissas, exponents, x, rows, columns, mantissas.stride(0), x.stride(0), GROUP=group, BLOCK=32
        )
