"""One block a row, and one maximum of it."""

import triton
import triton.language as tl

KILLED_BY = "whole groups"


@triton.jit
def _quantize_kernel(
    m_ptr, e_ptr, x_ptr, columns, groups, stride_m, stride_x, BLOCK: tl.constexpr, BLOCK_G: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column, group = tl.arange(0, BLOCK), tl.arange(0, BLOCK_G)
    mask = column < columns
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)
    e = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=0) >> 23
    half = (133 - e) // 2
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((133 - e - half + 127) << 23).to(tl.float32, bitcast=True)
    m = (x * first * second + 12582912.0) - 12582912.0
    m = tl.minimum(tl.maximum(m, -127.0), 127.0)
    m = tl.where(e == 255, 0.0, m)
    tl.store(m_ptr + row * stride_m + column, m.to(tl.int8), mask=mask)
    tl.store(e_ptr + row * groups + group, (e + tl.zeros_like(group)).to(tl.uint8), mask=group < groups)


def quantize(x, group, mantissas, exponents):
    rows, columns = x.shape
    groups = triton.cdiv(columns, group)
    if rows:
        _quantize_kernel[(rows,)](
            mantissas, exponents, x, columns, groups, mantissas.stride(0), x.stride(0),
            BLOCK=triton.next_power_of_2(columns), BLOCK_G=triton.next_power_of_2(groups),
        )
