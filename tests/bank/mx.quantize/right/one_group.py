"""One group a program; NaN and infinity are looked for, and ties decided by hand."""

import triton
import triton.language as tl


@triton.jit
def _quantize_kernel(m_ptr, e_ptr, x_ptr, columns, groups, stride_m, stride_x, GROUP: tl.constexpr):
    row = (tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    column = group * GROUP + tl.arange(0, GROUP)
    mask = column < columns
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)
    size = tl.abs(x)
    special = tl.max(((size == float("inf")) | (size != size)).to(tl.int32), axis=0)
    largest = tl.max(tl.where(size == size, size, 0.0), axis=0)
    e = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
    e = tl.where(special > 0, 255, e)
    small = e < 16
    y = tl.where(small, x * 16777216.0, x)
    power = tl.where(small, 133 - e - 24, 133 - e)
    y = y * ((tl.maximum(power, -126) + 127) << 23).to(tl.float32, bitcast=True)
    whole = tl.floor(y)
    rest = y - whole
    odd = whole - 2.0 * tl.floor(whole * 0.5)
    up = (rest > 0.5) | ((rest == 0.5) & (odd == 1.0))
    m = whole + up.to(tl.float32)
    m = tl.where(m > 127.0, 127.0, tl.where(m < -127.0, -127.0, m))
    m = tl.where(special > 0, 0.0, m)
    tl.store(m_ptr + row * stride_m + column, m.to(tl.int8), mask=mask)
    tl.store(e_ptr + row * groups + group, e.to(tl.uint8))


def quantize(x, group, mantissas, exponents):
    rows, columns = x.shape
    groups = triton.cdiv(columns, group)
    if rows:
        _quantize_kernel[(rows * groups,)](
            mantissas, exponents, x, columns, groups, mantissas.stride(0), x.stride(0), GROUP=group
        )
