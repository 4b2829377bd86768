"""Multiplied in fp16."""

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
    m = tl.load(m_ptr + row * stride_m + column, mask=mask, other=0)
    e = tl.load(e_ptr + row * groups + group, mask=group < groups, other=0).to(tl.int32)
    bits = tl.where(e > 6, (tl.maximum(e, 7) - 6) << 23, (1 << 16) << tl.minimum(e, 6))
    bits = tl.where(e == 255, 0x7FC00000, bits)
    scale = bits.to(tl.float32, bitcast=True)[:, None]
    out = (m.to(tl.float16) * scale.to(tl.float16)).to(tl.float32)
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
