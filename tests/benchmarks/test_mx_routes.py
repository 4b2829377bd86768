"""From how many rows on one route to a product overtakes the one before."""

from benchmarks.mx_routes import crossover, measured_routes
from course_lib.kernels.mx.tuning import Routes


def test_the_crossover_is_the_first_that_wins():
    assert crossover((2, 4, 8), lambda r: 10, lambda r: 30 / r) == 4
    assert crossover((2, 4, 8), lambda r: 1, lambda r: 30) == 9


def test_each_route_begins_where_it_takes_less_time_than_the_one_before():
    costs = {"vector": lambda r: r, "matrix": lambda r: 3.5 + r / 100, "dequantize": lambda r: 4 + r / 200}
    found = measured_routes(lambda route, rows: costs[route](rows))
    assert found == Routes(tensor_cores=4, dequantize=128)
    assert measured_routes(lambda route, rows: rows).dequantize == 4097, "never"
