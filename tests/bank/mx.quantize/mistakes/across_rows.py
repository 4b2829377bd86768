"""The matrix is one flat list of numbers."""

import triton
import triton.language as tl

KILLED_BY = "a partial last group"


@triton.jit
def _quantize_kernel(
    m_ptr, e_ptr, x_ptr, columns, total, stride_m, stride_x, GROUP: tl.constexpr, BLOCK_G: tl.constexpr
):
    group = tl.program_id(0) * BLOCK_G + tl.arange(0, BLOCK_G)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask, row, column = at < total, (at // columns).to(tl.int64), at % columns
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)
    e = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1) >> 23
    half = (133 - e) // 2
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((133 - e - half + 127) << 23).to(tl.float32, bitcast=True)
    m = (x * first[:, None] * second[:, None] + 12582912.0) - 12582912.0
    m = tl.minimum(tl.maximum(m, -127.0), 127.0)
    m = tl.where((e == 255)[:, None], 0.0, m)
    tl.store(m_ptr + row * stride_m + column, m.to(tl.int8), mask=mask)
    tl.store(e_ptr + group, e.to(tl.uint8), mask=group * GROUP < total)


def quantize(x, group, mantissas, exponents):
    block = max(1, 256 // group)
    if x.numel():
        _quantize_kernel[(triton.cdiv(x.numel(), block * group),)](
            mantissas, exponents, x, x.shape[1], x.numel(), mantissas.stride(0), x.stride(0), GROUP=group, BLOCK_G=block
        )
