import statistics
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from course_lib.simulated_gpu import PITFALLS, PRESETS, DeviceModel, SimulatedGPU, Traits, vary

KERNELS = {"small": 20e-6, "medium": 150e-6, "large": 3e-3}


def careful(gpu, kernel):
    """Warmed up until steady, cold cache, device kept busy, median, less an empty pair of events."""

    def times(runs):
        for _ in range(head):
            gpu.flush_cache()
        pairs = []
        for _ in range(runs):
            gpu.flush_cache()
            start = gpu.record()
            gpu.launch(kernel)
            pairs.append((start, gpu.record(), gpu.record()))
        gpu.synchronize()
        return statistics.median(gpu.elapsed(a, b) - gpu.elapsed(b, c) for a, b, c in pairs)

    head = 1
    gpu.launch(kernel)
    gpu.synchronize()
    before = gpu.host_time()
    while gpu.host_time() - before < 0.3:
        times(25)
    head = 100
    return statistics.median(times(25) for _ in range(9))


def never_synchronizes(gpu, kernel):
    gpu.launch(kernel)
    begin = gpu.host_time()
    for _ in range(50):
        gpu.launch(kernel)
    return (gpu.host_time() - begin) / 50


def pairs_of_events(gpu, kernel, runs=50, head=100, flush=True, warm_s=0.3, compiled=True, less_events=True):
    if compiled:
        gpu.launch(kernel)
        gpu.synchronize()
    begin = gpu.host_time()
    while gpu.host_time() - begin < warm_s:
        for _ in range(20):
            gpu.flush_cache()
        gpu.synchronize()
    seconds = []
    for _ in range(head):
        gpu.flush_cache()
    if not flush:
        gpu.launch(kernel)
    for _ in range(runs):
        if flush:
            gpu.flush_cache()
        start = gpu.record()
        gpu.launch(kernel)
        end = gpu.record()
        seconds.append((start, end, gpu.record() if less_events else end))
    gpu.synchronize()
    return [gpu.elapsed(a, b) - gpu.elapsed(b, c) for a, b, c in seconds]


NAIVE = {
    "asynchrony": never_synchronizes,
    "compile": lambda gpu, kernel: statistics.mean(pairs_of_events(gpu, kernel, compiled=False)),
    "cache": lambda gpu, kernel: statistics.median(pairs_of_events(gpu, kernel, flush=False)),
    "ramp": lambda gpu, kernel: statistics.median(pairs_of_events(gpu, kernel, runs=20, head=40, warm_s=0.0)),
    "outliers": lambda gpu, kernel: statistics.mean(pairs_of_events(gpu, kernel, 200, head=400, less_events=False)),
    "slow_host": lambda gpu, kernel: statistics.median(pairs_of_events(gpu, kernel, head=0, less_events=False)),
    "events": lambda gpu, kernel: statistics.median(pairs_of_events(gpu, kernel, less_events=False)),
}


def error(timer, traits, kernel="small", seed=0):
    """Signed relative error of a timer."""
    model = DeviceModel(KERNELS, traits, seed=seed)
    return timer(model.handle(), kernel) / model.truth(kernel) - 1


@pytest.mark.parametrize("seeds", [(0, 1), pytest.param((2, 3), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_careful_timer_is_within_3_percent_on_every_device(preset, kernel, seeds):
    for seed in seeds:
        traits = vary(PRESETS[preset], seed)
        assert abs(error(careful, PRESETS[preset], kernel, seed)) < 0.03
        assert abs(error(careful, traits, kernel, seed)) < 0.03


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_a_timer_that_forgets_one_thing_is_wrong_by_more_than_10_percent_there(pitfall):
    for seed in range(6):
        assert abs(error(NAIVE[pitfall], PITFALLS[pitfall], seed=seed)) > 0.10
        assert abs(error(NAIVE[pitfall], vary(PITFALLS[pitfall], seed), seed=seed)) > 0.10


def test_the_device_on_which_a_timer_fails_says_what_it_forgot():
    fails = {
        name: {pitfall for pitfall, traits in PITFALLS.items() if abs(error(timer, traits)) > 0.10}
        for name, timer in NAIVE.items()
    }
    assert fails.pop("asynchrony") == set(PITFALLS)  # it times launches, whatever the device
    assert fails.pop("compile") == {"compile", "outliers"}  # one long run and a rare one are alike to a mean
    assert fails.pop("outliers") == {"outliers", "events"}
    assert fails.pop("slow_host") == {"slow_host", "events"}  # a device that waits shows no empty pair of its own
    assert fails == {name: {name} for name in fails}


def test_every_whole_device_defeats_every_naive_timer_that_it_should():
    for name in ("datacentre", "laptop", "shared"):
        for pitfall in ("asynchrony", "compile", "cache", "ramp"):
            assert abs(error(NAIVE[pitfall], PRESETS[name])) > 0.05, (name, pitfall)


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    once, again, other = (
        pairs_of_events(DeviceModel(KERNELS, PRESETS["laptop"], seed).handle(), "small") for seed in (1, 1, 2)
    )
    assert once == again and once != other


def test_a_launch_returns_before_the_work_is_done():
    gpu = DeviceModel({"k": 1.0}, Traits()).handle()
    begin = gpu.host_time()
    gpu.launch("k")
    assert gpu.host_time() - begin < 1e-4
    gpu.synchronize()
    assert gpu.host_time() - begin > 1.0


def test_a_full_queue_makes_the_host_wait():
    gpu = DeviceModel({"k": 1e-3}, Traits(queue_depth=8)).handle()
    begin = gpu.host_time()
    for _ in range(8):
        gpu.launch("k")
    assert gpu.host_time() - begin < 1e-4
    for _ in range(8):
        gpu.launch("k")
    assert 7e-3 < gpu.host_time() - begin < 9e-3


def test_each_kernel_compiles_once():
    gpu = DeviceModel(KERNELS, Traits(compile_s=0.5)).handle()
    costs = []
    for kernel in ("small", "small", "large", "small", "large"):
        begin = gpu.host_time()
        gpu.launch(kernel)
        costs.append(gpu.host_time() - begin > 0.5)
    assert costs == [True, False, True, False, False]


def test_the_cache_is_kept_by_a_second_run_and_lost_to_a_sweep_or_another_kernel():
    model = DeviceModel({"a": 1e-3, "b": 1e-3}, Traits(cache_gain=2.0))
    gpu = model.handle()

    def run(kernel):
        start = gpu.record()
        gpu.launch(kernel)
        end = gpu.record()
        gpu.synchronize()
        return gpu.elapsed(start, end)

    def is_cold(seconds):
        return seconds > 0.9e-3

    assert is_cold(run("a")) and not is_cold(run("a"))
    assert is_cold(run("b")) and is_cold(run("a"))
    gpu.flush_cache()
    assert is_cold(run("a"))


def test_the_clock_rises_with_work_and_falls_after_a_rest():
    gpu = DeviceModel({"k": 1e-3}, Traits(idle_speed=0.5, ramp_s=0.02, decay_s=0.005)).handle()

    def run(count):
        events = [gpu.record()]
        for _ in range(count):
            gpu.launch("k")
            events.append(gpu.record())
        gpu.synchronize()
        return [gpu.elapsed(a, b) for a, b in pairwise(events)]

    first = run(40)
    assert first[0] > 1.7e-3 and all(a >= b - 1e-8 for a, b in pairwise(first))
    assert first[-1] == pytest.approx(1e-3, rel=1e-3)
    gpu.sleep(0.004)
    assert run(1)[0] < 1.02e-3
    gpu.sleep(0.006)
    assert run(1)[0] > 1.7e-3


def test_a_long_kernel_does_the_same_work_as_many_short_ones_while_the_clock_rises():
    traits = Traits(idle_speed=0.4, ramp_s=0.05)
    one = DeviceModel({"k": 0.08}, traits)
    many = DeviceModel({"k": 0.0008}, traits)
    for model, count in ((one, 1), (many, 100)):
        for _ in range(count):
            model.call("launch", "k")
        model.call("synchronize")
    assert one.seconds == pytest.approx(many.seconds, rel=1e-3)


def test_an_event_that_has_not_happened_cannot_be_read():
    gpu = DeviceModel(KERNELS, Traits()).handle()
    start = gpu.record()
    gpu.launch("large")
    end = gpu.record()
    with pytest.raises(RuntimeError, match="synchronize first"):
        gpu.elapsed(start, end)
    gpu.synchronize()
    assert gpu.elapsed(start, end) > 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("truth", "small"), "has no 'truth'"),
        (("_run", 1.0), "has no '_run'"),
        (("launch", "other"), "no kernel 'other'"),
        (("elapsed", 0, 1), "is no event"),
        (("elapsed", -1, True), "is no event"),
        (("sleep", -1), "cannot sleep"),
        (("sleep", float("nan")), "cannot sleep"),
    ],
)
def test_what_is_not_allowed_is_refused_with_a_sentence(call, said):
    with pytest.raises(RuntimeError, match=said):
        DeviceModel(KERNELS, Traits()).call(*call)


def test_a_timer_that_never_ends_is_stopped():
    def forever(call, *values):
        while True:
            call(*values)

    gpu = DeviceModel(KERNELS, Traits(), limit=1000).handle()
    with pytest.raises(RuntimeError, match="does the timer end"):
        forever(gpu.launch, "small")
    gpu = DeviceModel(KERNELS, Traits(), limit_s=1.0).handle()
    with pytest.raises(RuntimeError, match="does the timer end"):
        forever(gpu.sleep, 0.3)


def test_the_handle_speaks_in_plain_values_only():
    model, seen = DeviceModel(KERNELS, PRESETS["laptop"]), []

    def send(name, *values):
        answer = model.call(name, *values)
        seen.append((name, *values, answer))
        return answer

    gpu = SimulatedGPU(send)
    careful(gpu, "small")
    gpu.sleep(0.1)
    assert {type(value) for call in seen for value in call} <= {str, int, float, type(None)}
    assert {call[0] for call in seen} == set(DeviceModel.CALLS)
    assert [name for name in dir(gpu) if not name.startswith("_")] == sorted(DeviceModel.CALLS)


def test_a_varied_device_keeps_what_is_off_off():
    varied = vary(PITFALLS["asynchrony"], seed=3)
    assert varied.cache_gain == 1 and varied.idle_speed == 1 and varied.outlier_rate == 0 == varied.compile_s
    assert varied.launch_s != PITFALLS["asynchrony"].launch_s
    assert replace(varied, launch_s=1.0) != varied and vary(varied, 5) == vary(varied, 5)


@pytest.mark.parametrize("rate", [0.04, 0.1, 0.19])
def test_of_five_runs_in_a_row_one_at_most_is_slowed_down_and_the_share_of_all_is_the_rate(rate):
    gpu = DeviceModel({"k": 1e-4, "other": 1e-4}, Traits(outlier_rate=rate), seed=3, limit_s=1000.0).handle()
    pairs = []
    for run in range(20_000):
        for _ in range(run % 3):
            gpu.flush_cache()
        gpu.launch("other")
        pairs.append((gpu.record(), gpu.launch("k"), gpu.record()))
    gpu.synchronize()
    slow = [gpu.elapsed(a, b) > 4e-4 for a, _, b in pairs]
    assert max(sum(slow[i : i + 5]) for i in range(len(slow))) == 1
    assert sum(slow) / len(slow) == pytest.approx(rate, rel=0.1)


def test_a_device_on_which_more_than_one_run_in_five_is_slow_is_refused():
    with pytest.raises(ValueError, match="at most one run in 5"):
        DeviceModel(KERNELS, Traits(outlier_rate=0.21))


def test_a_call_costs_microseconds():
    gpu = DeviceModel(KERNELS, PRESETS["laptop"]).handle()
    took = []
    for _ in range(20):  # of which the fastest: the machine may be busy with other tests
        begin = time.perf_counter()
        pairs_of_events(gpu, "small", runs=100, warm_s=0.0)
        took.append(time.perf_counter() - begin)
    assert min(took) / 400 < 20e-6


def test_two_events_with_nothing_between_them_are_one_event_apart_on_a_busy_device():
    gpu = DeviceModel({"k": 1e-4}, Traits(event_s=3e-6, resolution_s=1e-12)).handle()
    gpu.flush_cache()
    a, b = gpu.record(), gpu.record()
    gpu.launch("k")
    c = gpu.record()
    gpu.synchronize()
    assert gpu.elapsed(a, b) == pytest.approx(3e-6, rel=1e-4)
    assert gpu.elapsed(b, c) == pytest.approx(1e-4 + 3e-6, rel=1e-4)


def test_events_are_no_work_that_keeps_the_clock_up():
    gpu = DeviceModel({"k": 1e-3}, Traits(event_s=3e-6, idle_speed=0.5, ramp_s=0.01, decay_s=0.01)).handle()
    for _ in range(50):
        gpu.launch("k")
    gpu.synchronize()
    for _ in range(3):
        gpu.sleep(0.006)
        gpu.record()
    start = gpu.record()
    gpu.launch("k")
    end = gpu.record()
    gpu.synchronize()
    assert gpu.elapsed(start, end) > 1.5e-3
