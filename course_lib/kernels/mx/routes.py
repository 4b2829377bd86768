"""Where one way of multiplying overtakes the next, measured on the device at hand and kept between runs.

Measuring takes seconds and launches kernels, so it is asked for and never happens inside a product: without it the
rows of tuning.DEFAULT hold.
"""

import functools
import json
from collections.abc import Callable

import torch
import triton

from course_lib.device import DEVICE, cache_folder, machine, write_atomically
from course_lib.kernels.mx.tuning import DEFAULT, VECTOR_ROWS, Routes

__all__ = ["crossover", "measure_routes", "routes_for"]

# Rows of x that are tried, in order. Half steps, so a crossover is known to a factor of 1.5.
FEW = tuple(range(2, VECTOR_ROWS + 1))
MANY = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)


def crossover(rows: tuple[int, ...], before: Callable[[int], float], after: Callable[[int], float]) -> int:
    """The fewest of `rows` at which `after` takes less time than `before`; one more than the last where none does."""
    return next((r for r in rows if after(r) < before(r)), rows[-1] + 1)


def measure_routes(N: int, K: int, group: int, seconds: Callable[[str, int], float]) -> Routes:
    """`seconds(route, rows)`: of "vector", "matrix" and "dequantize", for N x K weights. Kept for `routes_for`."""
    tensor_cores = crossover(FEW, lambda r: seconds("vector", r), lambda r: seconds("matrix", r))
    many = crossover(MANY, lambda r: seconds("matrix", r), lambda r: seconds("dequantize", r))
    found = Routes(tensor_cores, many)
    path = _path()
    kept = _read(path) | {_key(N, K, group): [found.tensor_cores, found.dequantize]}
    write_atomically(path, json.dumps(kept, indent=1))
    _known.cache_clear()
    return found


def routes_for(N: int, K: int, group: int) -> Routes:
    found = _known().get(_key(N, K, group))
    return DEFAULT if found is None else Routes(*found)


@functools.cache
def _known() -> dict:
    return _read(_path())


def _path():
    return cache_folder() / "mx_routes.json"


def _read(path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


@functools.cache
def _place() -> str:
    name = machine().name if DEVICE == "cuda" else "interpreter"
    return f"{name}, torch {torch.__version__}, triton {triton.__version__}"


def _key(N: int, K: int, group: int) -> str:
    return f"{_place()}, {N} x {K}, groups of {group}"
