"""A product into a tensor that the caller gives: what a speed is compared with where memory must be the caller's.

The taught rungs alone, though the tuned ones are faster: a student's kernel is judged by what plain Triton reaches.
"""

from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.product import taught_matrix, taught_vector
from course_lib.kernels.mx.tuning import DEFAULT

__all__ = ["gemv_into"]


def gemv_into(x, mantissas, exponents, group: int, out) -> None:
    """x (M, K), mantissas (N, K) int8, exponents (N, ceil(K / group)) uint8, out (M, N) in x's type; M is 1 to 16."""
    write = taught_vector if x.shape[0] < DEFAULT.tensor_cores else taught_matrix
    write(out, x, Quantized(mantissas, exponents, group), None)
