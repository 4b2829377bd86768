"""The number of programs is rounded down."""

import triton
import triton.language as tl

KILLED_BY = "many rows"


@triton.jit
def _quantize_kernel(
    m_ptr, e_ptr, x_ptr, rows, columns, groups, stride_m, stride_x, GROUP: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask_row, row = row < rows, row.to(tl.int64)
    for group in range(groups):
        column = group * GROUP + tl.arange(0, GROUP)
        mask = mask_row[:, None] & (column < columns)[None, :]
        x = tl.load(x_ptr + row[:, None] * stride_x + column[None, :], mask=mask, other=0.0).to(tl.float32)
        e = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1) >> 23
        # 2^(133 - e) is past fp32's largest number for small e: in two factors
        power = 133 - e
        first = tl.minimum(tl.maximum(power, -100), 100)
        scale = tl.exp2(first.to(tl.float32))[:, None]
        y = x * scale * tl.exp2((power - first).to(tl.float32))[:, None]
        m = (y + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
        m = tl.minimum(tl.maximum(m, -127), 127)
        m = tl.where((e == 255)[:, None], 0, m)
        tl.store(m_ptr + row[:, None] * stride_m + column[None, :], m.to(tl.int8), mask=mask)
        tl.store(e_ptr + row * groups + group, e.to(tl.uint8), mask=mask_row)


def quantize(x, group, mantissas, exponents):
    rows, columns = x.shape
    if rows:
        _quantize_kernel[(rows // 4,)](
            mantissas, exponents, x, rows, columns, triton.cdiv(columns, group),
            mantissas.stride(0), x.stride(0), GROUP=group, ROWS=4,
        )
