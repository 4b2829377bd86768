"""Linear layer and GELU in one kernel: bias and GELU are taken while the sum is in fp32, before it is rounded once.

    out = gelu(x wᵀ + bias)        x (M, K), w (N, K) as torch's Linear keeps it, bias (N,), out (M, N); tanh form

Separate kernels write h = x wᵀ + bias to memory in 16 bits, read it, write gelu(h): 6 M N bytes where 2 M N do, and
two roundings where one does. FLOP: 2 M N K. At 16384 x 4304 x 1152 the product takes 239 us at 680 TFLOP/s, and the
way of h through memory 67 us more.

    gelu         GELU and its slope, one exponential
    tiled        a program makes a tile; with GROUP_M in an order that shares the L2 cache
    persistent   programs that stay; tensor descriptors
    pingpong     two groups of warps take turns: one multiplies, one takes its GELU (Hopper, Gluon)
    parts        for few rows, and long sums of few tiles (product_parts.py)
    wide         where other tiles leave many multiprocessors idle (product_wide.py)
    elementwise  the same without a fused end
    tuning       which rung runs, and in which tiles
    public       `linear_gelu`, its rungs one by one, and the products that come back: `product_with_slope`, always one
                 kernel, and `product_through_gelu`, the fastest way

The way back needs (dy w2) gelu'(h): the same kernel with another end, and an elementwise pass less.

Measured on an H200: benchmarks/notes/linear_gelu.md.
"""

from course_lib.kernels.linear_gelu.gelu import gelu_reference, slope_reference
from course_lib.kernels.linear_gelu.public import (
    linear_gelu,
    linear_gelu_grouped,
    linear_gelu_operator,
    linear_gelu_parts,
    linear_gelu_persistent,
    linear_gelu_pingpong,
    linear_gelu_reference,
    linear_gelu_tiled,
    product_through_gelu,
    product_with_slope,
)

__all__ = [
    "gelu_reference",
    "linear_gelu",
    "linear_gelu_grouped",
    "linear_gelu_operator",
    "linear_gelu_parts",
    "linear_gelu_persistent",
    "linear_gelu_pingpong",
    "linear_gelu_reference",
    "linear_gelu_tiled",
    "product_through_gelu",
    "product_with_slope",
    "slope_reference",
]
