"""One maximum of the matrix."""

import torch
import triton
import triton.language as tl

KILLED_BY = "whole groups"


@triton.jit
def _largest_kernel(top_ptr, x_ptr, rows, columns, stride_x, BLOCK: tl.constexpr):
    top = tl.zeros((BLOCK,), tl.int32)
    for row in range(rows):
        offs = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + tl.cast(row, tl.int64) * stride_x + offs, mask=offs < columns, other=0.0).to(tl.float32)
        top = tl.maximum(top, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(top_ptr, tl.max(top, axis=0))


@triton.jit
def _quantize_kernel(
    m_ptr, e_ptr, x_ptr, top_ptr, columns, groups, stride_m, stride_x, BLOCK: tl.constexpr, BLOCK_G: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column, group = tl.arange(0, BLOCK), tl.arange(0, BLOCK_G)
    mask = column < columns
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)
    e = tl.load(top_ptr) >> 23
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
        top, block = torch.empty(1, dtype=torch.int32, device=x.device), triton.next_power_of_2(columns)
        _largest_kernel[(1,)](top, x, rows, columns, x.stride(0), BLOCK=block)
        _quantize_kernel[(rows,)](
            mantissas, exponents, x, top, columns, groups, mantissas.stride(0), x.stride(0),
            BLOCK=block, BLOCK_G=triton.next_power_of_2(groups),
        )
