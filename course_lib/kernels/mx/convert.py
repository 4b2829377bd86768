"""To the format and back, each in one read and one write.

A program takes some groups, whichever rows they lie in, and a thread some adjacent elements of one.

Bytes an element, groups of 32: quantize reads 2 (bf16) and writes 1.03; dequantize reads 1.03 and writes 2.
"""

import torch
import triton
import triton.language as tl

from course_lib.kernels.mx.format import GROUP, Quantized, group_count

__all__ = ["dequantize", "quantize", "scale_of"]

# Elements and warps a program, measured on an H200 (benchmarks/notes/mx.md). 16 and 32 elements a thread, so that the
# narrower access is 16 bytes too; what a thread loaded then changes hands through shared memory before the store. With
# 8 there is no such exchange, and it was slower: by 3 % for dequantize, by 20 % for quantize.
DEQUANTIZE, QUANTIZE = (4096, 8), (4096, 4)


@triton.jit
def scale_of(e):
    """2^(e - 133) in fp32, made of bits; NaN for 255. Once a group, so a few instructions more cost nothing.

    Below e = 7 the scale is a subnormal number, one bit that has left the exponent and gone down the fraction. The
    usual `e << 23` knows no such numbers, and exp2 on a GPU makes zeros of them.
    """
    e = e.to(tl.int32)
    normal = (tl.maximum(e, 7) - 6) << 23
    subnormal = tl.full(e.shape, 1 << 16, tl.int32) << tl.minimum(e, 6)
    bits = tl.where(e > 6, normal, subnormal)
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def _place(
    n_rows, n_groups, columns,
    GROUP_SIZE: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The groups of this program: their numbers, rows and columns, and masks of those that exist."""
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    if WHOLE:  # one row: no division to find one's place
        row, group = tl.zeros_like(n), n
        mask_n = n < n_groups
    else:
        row, group = n // n_groups, n % n_groups
        mask_n = row < n_rows
    column = group.to(tl.int64)[:, None] * GROUP_SIZE + tl.arange(0, GROUP_SIZE)[None, :]
    mask = mask_n[:, None] if EVEN else mask_n[:, None] & (column < columns)
    return n, row.to(tl.int64)[:, None], column, mask_n, mask


@triton.jit
def quantize_kernel(
    m_ptr, e_ptr, x_ptr,
    n_rows, n_groups, columns,
    stride_m, stride_x,
    GROUP_SIZE: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    n, row, column, mask_n, mask = _place(n_rows, n_groups, columns, GROUP_SIZE, EVEN, WHOLE, BLOCK_N)
    mask, mask_n = (mask, mask_n) if MASKED else (None, None)
    # (BLOCK_N, GROUP_SIZE)
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0 if MASKED else None).to(tl.float32)

    # The maximum of the bits is that of the sizes, and keeps what a maximum of numbers may drop: NaN is above infinity.
    largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)  # (BLOCK_N,)
    # The exponent field is floor(log2) + 127; subnormal numbers have 0 there, which is what clamping gives too.
    e = largest >> 23
    # x 2^(133 - e) in two steps: 2^133 is no fp32 number, and each step is exact where it matters.
    half = (133 - e) >> 1
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((133 - e - half + 127) << 23).to(tl.float32, bitcast=True)
    y = x * first[:, None] * second[:, None]
    # 1.5 * 2^23 leaves a sum no bit below 1: it is rounded to nearest, ties to even, and its low bits are the integer.
    m = (y + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
    m = tl.minimum(tl.maximum(m, -127), 127)
    m = tl.where((e == 255)[:, None], 0, m)

    tl.store(m_ptr + row * stride_m + column, m.to(tl.int8), mask=mask)
    tl.store(e_ptr + n, e.to(tl.uint8), mask=mask_n)


@triton.jit
def dequantize_kernel(
    out_ptr, m_ptr, e_ptr,
    n_rows, n_groups, columns,
    stride_out, stride_m,
    GROUP_SIZE: tl.constexpr, EVEN: tl.constexpr, WHOLE: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    n, row, column, mask_n, mask = _place(n_rows, n_groups, columns, GROUP_SIZE, EVEN, WHOLE, BLOCK_N)
    mask, mask_n = (mask, mask_n[:, None]) if MASKED else (None, None)
    # What is read is given up last by the caches, so that results make room: 1 % of the time where there is much of it.
    m = tl.load(m_ptr + row * stride_m + column, mask=mask, eviction_policy="evict_last")  # (BLOCK_N, GROUP_SIZE)
    e = tl.load(e_ptr + n[:, None], mask=mask_n, eviction_policy="evict_last")  # (BLOCK_N, 1)
    # Exact: 7 bits of m times a power of two, subnormal results included.
    out = m.to(tl.float32) * scale_of(e)
    tl.store(out_ptr + row * stride_out + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def _launch(
    kernel, results: tuple, wide: tuple, rows: int, columns: int, group: int, elements: int, warps: int
) -> None:
    """results: the pointers in the kernel's order; wide: the two matrices whose row strides it takes."""
    groups = group_count(columns, group)
    even, strides = columns % group == 0, [x.stride(0) for x in wide]
    whole = even and strides == [columns, columns]
    if whole:  # rows that follow each other are one long row
        rows, groups, columns = 1, rows * groups, rows * columns
    assert rows * groups < 2**31, f"{rows * groups} groups: fewer than 2^31 can be numbered"
    block = max(1, elements // group)
    if rows and columns:
        kernel[(triton.cdiv(rows * groups, block),)](
            *results,
            rows, groups, columns,
            *strides,
            GROUP_SIZE=group, EVEN=even, WHOLE=whole, MASKED=not even or rows * groups % block != 0, BLOCK_N=block,
            num_warps=warps,
        )  # fmt: skip


def quantize(
    x: torch.Tensor, group: int = GROUP, out: Quantized | None = None,
    elements: int = QUANTIZE[0], warps: int = QUANTIZE[1],
) -> Quantized:  # fmt: skip
    """x (rows, columns) fp32, fp16 or bf16, columns adjacent, group a power of two up to 32768.

    A group of zeros gives e = 0; one with NaN or infinity e = 255 and m = 0; m is rounded to nearest even and held to
    +-127, e to 0..254. `out`: where to; `elements` and `warps` a program.
    """
    assert x.dim() == 2 and (x.stride(1) == 1 or x.shape[1] == 1), "a matrix whose columns are adjacent"
    assert x.dtype in (torch.float32, torch.float16, torch.bfloat16), f"fp32, fp16 or bf16, not {x.dtype}"
    assert group <= 2**15, f"a group lies in one program's registers: at most 32768, not {group}"
    rows, columns = x.shape
    shape = (rows, group_count(columns, group))
    if out is None:
        m = torch.empty(rows, columns, dtype=torch.int8, device=x.device)
        out = Quantized(m, torch.empty(shape, dtype=torch.uint8, device=x.device), group)
    m, e = out.mantissas, out.exponents
    assert (m.shape, e.shape, out.group) == (x.shape, shape, group), (m.shape, e.shape, out.group)
    assert e.is_contiguous() and (m.stride(1) == 1 or columns == 1), "columns are adjacent"
    _launch(quantize_kernel, (m, e, x), (m, x), rows, columns, group, elements, warps)
    return out


def dequantize(
    w: Quantized, dtype: torch.dtype = torch.bfloat16, out: torch.Tensor | None = None,
    elements: int = DEQUANTIZE[0], warps: int = DEQUANTIZE[1],
) -> torch.Tensor:  # fmt: skip
    """(rows, columns) in bf16 or fp32, exact; (-128, 254) is -inf. `out`: columns adjacent."""
    m, e = w.mantissas, w.exponents
    rows, columns = m.shape
    assert dtype in (torch.bfloat16, torch.float32), f"{dtype} does not hold 2^-133 and 2^127: bf16 and fp32 do"
    out = torch.empty(rows, columns, dtype=dtype, device=m.device) if out is None else out
    assert out.shape == m.shape and e.shape == (rows, group_count(columns, w.group)), (m.shape, e.shape, out.shape)
    assert e.is_contiguous() and all(x.stride(1) == 1 or columns == 1 for x in (m, out)), "columns are adjacent"
    _launch(dequantize_kernel, (out, m, e), (out, m), rows, columns, w.group, elements, warps)
    return out
