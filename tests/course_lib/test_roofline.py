from math import inf

import pytest

from course_lib import roofline
from course_lib.roofline import Roof, Work, attainable, floor_s, regime, ridge, terms_s

ROOF = Roof("a machine", flops_per_s=100e12, bytes_per_s=2e12, launch_s=5e-6)


def test_work_adds_up_and_scales():
    assert Work(1, 2) + Work(10, 20) == Work(11, 22)
    assert 3 * Work(1, 2) == Work(1, 2) * 3 == Work(3, 6)
    assert sum([Work(1, 2), Work(10, 20), Work(100, 200)]) == Work(111, 222)


def test_work_does_not_add_to_numbers():
    with pytest.raises(TypeError):
        Work(1, 2) + 1
    with pytest.raises(TypeError):
        1 + Work(1, 2)


def test_intensity_is_flops_a_byte():
    assert Work(30, 10).intensity == 3
    assert Work(1, 0).intensity == inf
    assert Work(0, 0).intensity == 0


def test_negative_work_and_dead_roofs_are_refused():
    for flops, size in ((-1, 0), (0, -1), (float("nan"), 0)):
        with pytest.raises(ValueError, match="negative"):
            Work(flops, size)
    for rates in ((0, 1, 0), (1, 0, 0), (1, 1, -1)):
        with pytest.raises(ValueError, match="positive"):
            Roof("dead", *rates)


def test_floor_is_the_largest_of_three_terms_and_not_their_sum():
    work = Work(flops=1e9, bytes=1e8)  # 10 us of arithmetic, 50 us of traffic
    assert terms_s(work, ROOF) == pytest.approx({"overhead": 5e-6, "bandwidth": 50e-6, "compute": 10e-6})
    assert floor_s(work, ROOF) == pytest.approx(50e-6)


def test_regime_names_the_term_that_sets_the_floor():
    assert regime(Work(1e6, 1e6), ROOF) == "overhead"
    assert regime(Work(1e9, 1e8), ROOF) == "bandwidth"
    assert regime(Work(1e12, 1e8), ROOF) == "compute"


def test_no_launch_cost_leaves_overhead_out():
    free = Roof("free launches", 100e12, 2e12)
    assert regime(Work(1, 1), free) == "bandwidth"
    assert regime(Work(0, 0), free) == "overhead"
    assert floor_s(Work(0, 0), free) == 0


def test_ridge_is_where_bandwidth_and_compute_take_the_same_time():
    assert ridge(ROOF) == 50
    work = Work(flops=50e9, bytes=1e9)
    terms = terms_s(work, ROOF)
    assert terms["bandwidth"] == terms["compute"]
    assert regime(work, ROOF) == "compute"
    assert regime(Work(49e9, 1e9), ROOF) == "bandwidth"


def test_attainable_rises_with_intensity_up_to_the_ridge():
    assert attainable(1, ROOF) == 2e12
    assert attainable(50, ROOF) == 100e12
    assert attainable(5000, ROOF) == 100e12


def test_attainable_agrees_with_the_floor_where_launches_are_free():
    free = Roof("free launches", 100e12, 2e12)
    for work in (Work(1e9, 1e9), Work(1e12, 1e9)):
        assert work.flops / floor_s(work, free) == pytest.approx(attainable(work.intensity, free))


def test_public_names_are_sorted():
    assert roofline.__all__ == sorted(roofline.__all__)
