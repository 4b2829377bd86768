"""From how many rows on one route to a product overtakes the one before."""

import pytest
import torch

from benchmarks import mx
from benchmarks.mx_routes import crossover, measured_routes
from course_lib.kernels.mx import Quantized
from course_lib.kernels.mx.tuning import DIRECT, FETCHED, Routes


def test_the_crossover_is_the_first_that_wins():
    assert crossover((2, 4, 8), lambda r: 10, lambda r: 30 / r) == 4
    assert crossover((2, 4, 8), lambda r: 1, lambda r: 30) == 9


def test_each_route_begins_where_it_takes_less_time_than_the_one_before():
    costs = {"vector": lambda r: r, "matrix": lambda r: 3.5 + r / 100, "dequantize": lambda r: 4 + r / 200}
    found = measured_routes(lambda route, rows: costs[route](rows))
    assert found == Routes(tensor_cores=4, dequantize=128)
    assert measured_routes(lambda route, rows: rows).dequantize == 4097, "never"


@pytest.mark.parametrize(
    ("rows", "rung"),
    [(16, f"matrix, {DIRECT[16][1]}"), (32, f"matrix, {DIRECT[32][1]}"), (100, f"matrix, {FETCHED[128][1]}"),
     (257, "dequantize")],
)  # fmt: skip
def test_a_row_of_the_benchmark_names_the_kernel_that_made_it(rows, rung, monkeypatch):
    for module in ("benchmarks.mx", "course_lib.kernels.mx.product"):
        monkeypatch.setattr(f"{module}.on_hopper", lambda _: True)
    monkeypatch.setattr("course_lib.kernels.mx.rungs.gluon_is_known", lambda: True)
    w = Quantized(torch.zeros(4096, 4096, dtype=torch.int8), torch.zeros(4096, 128, dtype=torch.uint8), 32)
    assert mx._rung(torch.zeros(rows, 4096, dtype=torch.bfloat16), w) == rung
