"""The largest number."""

import triton
import triton.language as tl

KILLED_BY = "sizes far apart"


@triton.jit
def _quantize_kernel(
    m_ptr, e_ptr, x_ptr,
    columns, groups,
    stride_m, stride_x,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = column < columns
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)
    top = tl.max(x, axis=1)
    bad = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1) >> 23
    e = tl.where(bad == 255, 255, tl.maximum(top, 0.0).to(tl.int32, bitcast=True) >> 23)
    half = (133 - e) // 2
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((133 - e - half + 127) << 23).to(tl.float32, bitcast=True)
    y = x * first[:, None] * second[:, None]
    m = (y + 12582912.0) - 12582912.0
    m = tl.minimum(tl.maximum(m, -127.0), 127.0)
    m = tl.where((e == 255)[:, None], 0.0, m)
    tl.store(m_ptr + row * stride_m + column, m.to(tl.int8), mask=mask)
    tl.store(e_ptr + row * groups + group, e.to(tl.uint8), mask=group < groups)


def quantize(x, group, mantissas, exponents):
    rows, columns = x.shape
    groups = triton.cdiv(columns, group)
    if rows == 0:
        return
    block = max(1, 256 // group)
    _quantize_kernel[(rows, triton.cdiv(groups, block))](
        mantissas, exponents, x, columns, groups, mantissas.stride(0), x.stride(0), GROUP=group, BLOCK_G=block
    )
