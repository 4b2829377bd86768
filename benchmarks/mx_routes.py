"""python -m benchmarks.mx_routes: from how many rows of x on each route to a product is fastest, a JSON line a shape.

What wins belongs into `ROUTES` of course_lib/kernels/mx/tuning.py; each line also says what stands there. That table
is for where gemm_fetched.py does not run: the taught product takes its place here.
"""

import json
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.mx import PRODUCTS, normal
from course_lib.kernels.mx import Quantized, quantize
from course_lib.kernels.mx.product import product, taught_matrix
from course_lib.kernels.mx.tuning import FETCHED_ABOVE, VECTOR_ROWS, Routes, routes_for
from course_lib.timing import time_graph

__all__ = ["crossover", "measured_routes"]

# Rows of x that are tried, in order. Half steps, so a crossover is known to a factor of 1.5.
FEW = tuple(range(2, VECTOR_ROWS + 1))
MANY = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)


def crossover(rows: tuple[int, ...], before: Callable[[int], float], after: Callable[[int], float]) -> int:
    """The fewest of `rows` at which `after` takes less time than `before`; one more than the last where none does."""
    return next((r for r in rows if after(r) < before(r)), rows[-1] + 1)


def measured_routes(seconds: Callable[[str, int], float]) -> Routes:
    """`seconds(route, rows)`: what a product of so many rows takes by "vector", "matrix" or "dequantize"."""
    tensor_cores = crossover(FEW, lambda r: seconds("vector", r), lambda r: seconds("matrix", r))
    return Routes(tensor_cores, crossover(MANY, lambda r: seconds("matrix", r), lambda r: seconds("dequantize", r)))


def _seconds(w: Quantized, route: str, rows: int) -> float:
    N, K = w.mantissas.shape
    x = normal(rows, K)
    if route == "matrix" and rows > FETCHED_ABOVE:
        call = partial(taught_matrix, x.new_empty(rows, N), x, w, None)
    else:
        call = partial(product, x, w, None, route)
    return time_graph(call, precision=0.02, max_seconds=0.3).median_s


def main() -> None:
    for N, K in PRODUCTS:
        found = measured_routes(partial(_seconds, quantize(normal(N, K))))
        print(json.dumps({"N": N, "K": K, "measured": vars(found), "table": vars(routes_for(N, K))}), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
