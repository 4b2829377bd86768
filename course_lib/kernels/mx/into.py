"""A product into a tensor that the caller gives: what a speed is compared with where memory must be the caller's."""

from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.product import product

__all__ = ["gemv_into"]


def gemv_into(x, mantissas, exponents, group: int, out) -> None:
    """x (M, K), mantissas (N, K) int8, exponents (N, ceil(K / group)) uint8, out (M, N) in x's type."""
    product(x, Quantized(mantissas, exponents, group), None, None, out)
