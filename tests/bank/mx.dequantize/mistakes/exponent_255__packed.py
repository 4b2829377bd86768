"""Corners of the packing but for e = 255."""

import triton
import triton.language as tl

KILLED_BY = "every pair"


@triton.jit
def _dequantize_kernel(
    out_ptr, m_ptr, e_ptr,
    columns, groups,
    stride_out, stride_m,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = column < columns
    m = tl.load(m_ptr + row * stride_m + column, mask=mask, other=0).to(tl.int32)
    e = tl.load(e_ptr + row * groups + group, mask=group < groups, other=0).to(tl.int32)
    # bf16's fields: sign, exponent, and of the size the six bits below its leading one
    size = tl.where(m < 0, -m, m)
    sign = tl.where(m < 0, 1, 0) << 15
    wide = e[:, None] + tl.zeros_like(m)
    number = sign | wide << 7 | (size & 0x3F) << 1
    number = number.to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32)
    one = (sign | wide << 7).to(tl.int16).to(tl.bfloat16, bitcast=True).to(tl.float32)
    out = tl.where((size & 0x40) == 0, number - one, number)
    out = tl.where((size == 128) & (wide < 255), 2.0 * one, out)
    smallest = 2.0**-126 / 128.0  # bf16's subnormals count in these
    out = tl.where(wide == 0, m.to(tl.float32) * smallest, out)
    tl.store(out_ptr + row * stride_out + column, out.to(tl.bfloat16), mask=mask)


def dequantize(mantissas, exponents, group, out):
    rows, columns = mantissas.shape
    groups = triton.cdiv(columns, group)
    if rows == 0:
        return
    block = max(1, 256 // group)
    _dequantize_kernel[(rows, triton.cdiv(groups, block))](
        out, mantissas, exponents, columns, groups, out.stride(0), mantissas.stride(0), GROUP=group, BLOCK_G=block
    )
