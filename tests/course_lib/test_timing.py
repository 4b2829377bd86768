import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from course_lib import timing
from course_lib.timing import rounds, sampling
from course_lib.timing.clocks import Clock
from course_lib.timing.stopwatch import Batch


@pytest.mark.parametrize("n", [6, 9, 25, 100, 1500])
def test_the_interval_holds_the_true_median_in_95_of_100_experiments(n):
    samples = np.random.default_rng(n).exponential(size=(1000, n))
    intervals = [sampling.median_interval(row) for row in samples]
    held = np.mean([low <= np.log(2) <= high for low, high in intervals])
    assert 0.93 <= held <= 0.99  # 0.95 or a little more, since ranks are whole numbers; 0.007 is one sigma


def test_the_interval_still_holds_when_measuring_stops_as_soon_as_it_is_narrow():
    draws = np.random.default_rng(0).lognormal(sigma=0.05, size=(400, 640))
    held = 0
    for row in draws:
        n = next((n for n in range(20, 640, 20) if sampling.half_width(row[:n]) <= 0.01), 640)
        low, high = sampling.median_interval(row[:n])
        held += low <= 1.0 <= high
    assert held / 400 > 0.85  # looking again and again costs some of the 95 %


def test_five_samples_are_too_few_for_an_interval():
    assert sampling.half_width([1.0, 1.1, 1.2, 1.3, 1.4]) == float("inf")
    assert sampling.median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_exact_and_approximate_ranks_meet():
    assert abs(sampling._lower_rank(1000) - sampling._lower_rank(1001)) <= 1


def test_the_bootstrap_interval_holds_the_true_ratio_and_is_no_wider_than_it_must():
    rng, held, widths = np.random.default_rng(1), 0, []
    for _ in range(300):
        shared = rng.lognormal(sigma=0.1, size=(40, 1))  # moves a and b of one round together
        a = 0.8 * shared * rng.lognormal(sigma=0.03, size=(40, 2))
        b = shared * rng.lognormal(sigma=0.03, size=(40, 2))
        _, low, high = sampling.bootstrap_ratio(a, b, resamples=400)
        held += low <= 0.8 <= high
        widths.append(high - low)
    assert held / 300 > 0.92  # 0.99 measured: the bootstrap of a median is on the safe side
    assert np.mean(widths) < 0.045  # 0.035 measured; independent draws of a and b would give 0.07


def test_the_bootstrap_gives_the_same_interval_every_time():
    a, b = np.random.default_rng(2).lognormal(size=(2, 30, 2))
    assert sampling.bootstrap_ratio(a, b) == sampling.bootstrap_ratio(a, b)


def test_blocks_settle_only_when_they_agree():
    steady = [1.0, 1.001, 0.999] * 5
    assert sampling.settled(steady, [t * 1.01 for t in steady], 0.02)
    assert not sampling.settled(steady, [t * 0.9 for t in steady], 0.02)
    assert not sampling.settled([], steady, 0.02)


class VirtualClock:
    """Calls are their own durations, on a clock of their own that `measure` reads too."""

    method = "events"

    def __init__(self, monkeypatch, slow=lambda now, i: 1.0, late=lambda i: False, host=0.0):
        self.now, self.ran = 0.0, 0
        self.slow, self.late, self.host = slow, late, host
        monkeypatch.setattr(rounds, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def times(self, calls):
        seconds, late = [], []
        for call in calls:
            took = call() * self.slow(self.now, self.ran)
            self.now += took
            self.ran += 1
            seconds.append(took)
            late.append(self.late(self.ran))
        return Batch(seconds, late, [self.host] * len(calls), None)


def _measured(clock, precision=0.01, max_seconds=2.0, call=lambda: 1e-4):
    return timing._time(call, clock, precision, max_seconds)


def test_warm_up_lasts_as_long_as_the_clock_ramps_up(monkeypatch):
    for ramp in (0.03, 0.3):
        clock = VirtualClock(monkeypatch, slow=lambda now, i, ramp=ramp: 1 + max(0.0, 1 - now / ramp))
        got = _measured(clock)
        assert got.median_s == pytest.approx(1e-4, rel=0.01) and got.warnings == ()
        assert got.warmup_runs * 1e-4 > ramp


def test_a_steady_call_is_warmed_up_for_60_milliseconds_only(monkeypatch):
    got = _measured(VirtualClock(monkeypatch))
    assert 0.06 <= got.warmup_runs * 1e-4 <= 0.07 and got.median_s == pytest.approx(1e-4)


def test_a_call_that_never_settles_is_reported(monkeypatch):
    got = _measured(VirtualClock(monkeypatch, slow=lambda now, i: 1 + now))
    assert any("not settled" in w for w in got.warnings) and any("drifted" in w for w in got.warnings)


def test_a_noisy_call_runs_longer_and_a_wide_interval_is_reported(monkeypatch):
    noise = np.random.default_rng(3).lognormal(sigma=0.1, size=200_000)
    clock = VirtualClock(monkeypatch, slow=lambda now, i: noise[i])
    got = _measured(clock)
    assert (got.high_s - got.low_s) / 2 / got.median_s <= 0.01
    got = _measured(clock, precision=0.0001, max_seconds=0.2)
    assert any("time limit came first" in w for w in got.warnings)


def test_runs_in_which_the_device_waited_for_the_host_are_left_out(monkeypatch):
    clock = VirtualClock(monkeypatch, slow=lambda now, i: 3.0 if i % 5 == 4 else 1.0, late=lambda i: i % 5 == 0)
    got = _measured(clock)
    assert max(got.samples) == pytest.approx(1e-4) and got.warnings == ()


def test_waiting_for_the_host_most_of_the_time_is_reported(monkeypatch):
    got = _measured(VirtualClock(monkeypatch, late=lambda i: i % 5 != 0))
    assert any("waited for the host" in w and "time_graph" in w for w in got.warnings)


def test_a_launch_slower_than_its_kernel_is_reported(monkeypatch):
    got = _measured(VirtualClock(monkeypatch, host=2e-4))
    assert any("sets the pace" in w for w in got.warnings)


def test_a_call_of_many_seconds_is_run_three_times_and_says_so(monkeypatch):
    got = _measured(VirtualClock(monkeypatch), call=lambda: 5.0)
    assert len(got.samples) == 3 and any("only 3 runs" in w for w in got.warnings)


def test_moving_and_held_clocks_are_reported():
    moving = [Clock(1980, 500.0, ()), Clock(1500, 700.0, ("power cap",)), Clock(1500, 700.0, ("power cap",))]

    def doubts(seen, top=1980):
        return list(timing._clock_doubts(seen, lambda: top))

    assert doubts(moving) == ["the clock moved between 1500 and 1980 MHz (power cap)"]
    assert doubts(moving[1:]) == doubts(moving[1:], top=None) == ["the clock was held at 1500 MHz (power cap)"]
    assert doubts([moving[0]] * 3) == [] and doubts(()) == []


def test_a_power_cap_that_costs_next_to_nothing_is_no_warning():
    assert list(timing._clock_doubts([Clock(1965, 400.0, ("power cap",))] * 3, lambda: 1980)) == []


def test_times_read_with_a_unit_and_an_interval():
    got = timing.Timing(71.2e-6, 70.9e-6, 71.6e-6, 70e-6, 72e-6, (), 3, "events", ())
    assert str(got) == "71.2 us [70.9, 71.6]" and got.us == pytest.approx(71.2) and got.ms == pytest.approx(0.0712)


def test_the_ratio_of_two_functions_is_found_though_both_drift(monkeypatch):
    rng = np.random.default_rng(4)
    clock = VirtualClock(monkeypatch, slow=lambda now, i: (1 + now) * rng.lognormal(sigma=0.01))
    monkeypatch.setattr(timing, "HostClock", lambda cold: clock)
    monkeypatch.setattr(timing, "DEVICE", "cpu")
    got = timing.compare(lambda: 1.05e-4, lambda: 1e-4)
    assert got.low <= 1.05 <= got.high and got.high - got.low < 0.02
    few = timing.compare(lambda: 1.05e-4, lambda: 1e-4, rounds=7)
    assert len(few.a.samples) == 14


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match='"events" or "graph"'):
        timing.compare(lambda: None, lambda: None, method="guess")


@pytest.mark.skipif(timing.DEVICE == "cuda", reason="shows the host's clock, which needs a machine without a GPU")
def test_the_host_clock_times_a_sleep():
    got = timing.time_gpu(lambda: time.sleep(0.004), max_seconds=0.3, precision=0.05)
    assert got.method == "host" and 0.004 <= got.p10_s < 0.006  # beside other tests half of the sleeps may be longer
    with pytest.raises(RuntimeError, match="need a GPU"):
        timing.time_graph(lambda: None)


@pytest.mark.gpu
def test_events_and_do_bench_agree_on_a_copy():
    from triton.testing import do_bench

    x = torch.randn(2**24, device="cuda")
    y = torch.empty_like(x)
    ours = timing.time_gpu(lambda: y.copy_(x))
    assert ours.median_s * 1e3 == pytest.approx(do_bench(lambda: y.copy_(x), return_mode="median"), rel=0.03)


@pytest.mark.gpu
def test_a_graph_times_a_short_kernel_below_its_launch_cost():
    x = torch.randn(2**14, device="cuda")
    cold, warm = timing.time_graph(x.cos_), timing.time_graph(x.cos_, cold=False)
    assert cold.method == "graph" and 0.2e-6 < warm.median_s < 5e-6 and cold.median_s < 10e-6


@pytest.mark.gpu
def test_many_short_kernels_in_one_call_are_timed_without_the_host():
    x = torch.randn(2**14, device="cuda")

    def ten():
        for _ in range(10):
            x.cos_()

    events = timing.time_gpu(ten, cold=False)
    graph = timing.time_graph(ten, cold=False)
    assert events.median_s < 2 * graph.median_s  # waiting for the host would make it three times or more
    assert not any("waited" in w for w in events.warnings)


@pytest.mark.gpu
def test_a_synchronisation_inside_is_reported():
    x = torch.randn(2**14, device="cuda")
    assert any("waited for the host" in w for w in timing.time_gpu(lambda: x.sum().item()).warnings)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["events", "graph"])
def test_a_function_is_as_fast_as_itself(method):
    x = torch.randn(2**22, device="cuda")
    y = torch.empty_like(x)
    got = timing.compare(lambda: y.copy_(x), lambda: y.copy_(x), method=method)
    assert 0.98 < got.ratio < 1.02 and got.high - got.low < 0.02
