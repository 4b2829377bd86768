"""MXINT8: matrices in blocks that share an exponent, and products with weights held that way.

    value = m * 2^(e - 133)        m int8 with 6 fraction bits, one e uint8 (bias 127) for each group of a row

Where the OCP standard leaves room: a group of zeros has e = 0 and m = 0; one with NaN or infinity e = 255 and m = 0;
m is rounded to nearest even and held to +-127, e to 0 .. 254. e = 255 is NaN for every m; for e <= 6 values are bf16's
subnormals, and are kept; (-128, 254) is -2^128, which becomes -inf: the one pair of 65,536 that bf16 cannot hold.

Bytes: 1 + 1 / group a weight, 0.516 of bf16's for groups of 32. A product of few rows is bound by its weights' bytes,
so it can take half of bf16's time; one of many rows is bound by arithmetic, and the conversion comes on top.

    format          the format in plain torch
    convert         quantize, dequantize, and 2^(e - 133) as a kernel makes it
    gemv            the product of a few rows, without tensor cores
    gemm            the product of some rows, on tensor cores
    gemv_warps      tuned: the product of one row, on an H100 or H200
    gemm_registers  tuned: the product of up to 64 rows, likewise
    rungs           where the tuned ones are valid
    tuning          which blocks, and from how many rows on
    product         the routes, as one operator, and its gradient
    module          MXLinear, swap_linears
"""

from course_lib.kernels.mx.convert import dequantize, quantize
from course_lib.kernels.mx.format import GROUP, Quantized, dequantize_reference, quantize_reference
from course_lib.kernels.mx.module import MXLinear, swap_linears
from course_lib.kernels.mx.product import mx_linear, mx_linear_operator

__all__ = [
    "GROUP",
    "MXLinear",
    "Quantized",
    "dequantize",
    "dequantize_reference",
    "mx_linear",
    "mx_linear_operator",
    "quantize",
    "quantize_reference",
    "swap_linears",
]
