"""The clock is ours: what a submission does to look fast either costs it the points or makes no difference.

Here everything runs on the CPU, with answers that sleep for a known time instead of computing for one.
"""

import shutil
from dataclasses import replace

import pytest
import torch

from autograder import exercise
from autograder.bank import find
from autograder.exercise import Case, Speed
from autograder.judging.verdict import CaseVerdict, Timed, Verdict
from autograder.referee import clock
from autograder.referee.referee import TRIES, Referee
from autograder.referee.room import Room, Worker
from autograder.referee.submission import Cell, Submission
from course_lib.results import load

pytestmark = [
    pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed"),
    pytest.mark.xdist_group("yardsticks"),  # one worker makes them
]

CALL_S = 5e-3  # what an honest answer takes
SIZES = next(case for case in exercise.get("start.axpy").cases if case.name == "a partial last block")
SLEEPS = replace(
    exercise.get("start.axpy"),
    launches=False,
    speed=Speed(1.0, (Case("timed", SIZES.draw),), lambda args, ceilings: CALL_S, reference="the fixture's:axpy"),
)
HONEST = """
import time
def axpy(a, x, y, out):
    time.sleep(0.005)
    out.copy_(a * x + y)
"""


@pytest.fixture(scope="module")
def yard():
    """Yardsticks whose reference is the honest answer."""
    made = clock.Yardsticks()
    worker = Worker(made.room)
    worker.load("axpy", Submission((Cell("reference", HONEST),)))
    made.workers[SLEEPS.name] = worker
    made.measure(clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1))
    yield made
    made.close()


def measured(source, yard):
    with Room(Submission((Cell("cell", source),))) as room:
        worker = Worker(room)
        try:
            assert not worker.load("axpy")
            return clock.measure(worker, clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1), yard)
        finally:
            worker.end()


def test_an_honest_answer_takes_what_it_takes(yard):
    for _ in range(3):  # the machine may be busy with other tests
        found = measured(HONEST, yard)
        assert CALL_S <= found.timed.seconds and found.review == ""
        assert found.timed.low_s <= found.timed.seconds <= found.timed.high_s
        if found.timed.seconds < 1.3 * CALL_S:
            return
    pytest.fail(f"5 ms of sleep took {found.timed.seconds * 1e3:.1f} ms")


def test_a_round_holds_as_many_calls_as_the_floor_says():
    assert clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1).calls == round(clock.ROUND_S / CALL_S)


WRONG = {
    "goes on in a thread": """
import threading
def axpy(a, x, y, out):
    import time
    def later():
        time.sleep(0.05)
        out.copy_(a * x + y)
    threading.Thread(target=later, daemon=True).start()
""",
    "skips every other call": """
calls = []
def axpy(a, x, y, out):
    calls.append(1)
    if len(calls) % 2:
        out.copy_(a * x + y)
""",
    "skips calls once it is warm": """
calls = []
def axpy(a, x, y, out):
    calls.append(1)
    if len(calls) < 6:
        out.copy_(a * x + y)
""",
    "keeps an answer by shape": """
kept = {}
def axpy(a, x, y, out):
    key = tuple(x.shape)
    if key not in kept:
        kept[key] = a * x + y
    out.copy_(kept[key])
""",
    "is right only in the first elements": """
def axpy(a, x, y, out):
    out[:64].copy_(a * x[:64] + y[:64])
    out[64:] = 0
""",
    "raises when it is timed": """
calls = []
def axpy(a, x, y, out):
    calls.append(1)
    if len(calls) > 3:
        raise ValueError("enough")
    out.copy_(a * x + y)
""",
}


LATER = "skips calls once it is warm", "raises when it is timed"


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LATER else n for n in WRONG])
def test_a_timed_call_that_does_not_do_its_work_is_not_right(name, yard):
    with pytest.raises(clock.NotRight):
        measured(WRONG[name], yard)


def test_clocks_patched_inside_make_no_difference(yard):
    patched = HONEST + "\nimport torch\ntime.perf_counter = time.monotonic = time.time = lambda: 0.0\n"
    assert measured(patched, yard).timed.seconds >= CALL_S


def test_an_answer_that_differs_when_it_is_watched_goes_to_a_person(yard):
    """It finds the one who watches among its callers, and rounds a little differently then."""
    turned = (
        HONEST
        + """
    import traceback
    if any(frame.name == "watched" for frame in traceback.extract_stack()):
        out.mul_(1 + 2e-7)
"""
    )
    assert "not the same when a profiler looked on" in measured(turned, yard).review


def test_an_answer_that_is_another_one_in_later_calls_of_a_round_goes_to_a_person(yard):
    """The first call of a round finds the device idle and is honest, and so is all that is watched."""
    turned = (
        HONEST
        + """
    import traceback
    watched = any(frame.name == "watched" for frame in traceback.extract_stack())
    if time.perf_counter() - LAST[0] < 0.01 and not watched:
        out.mul_(1 + 2e-7)
    LAST[0] = time.perf_counter()
LAST = [0.0]
"""
    )
    assert "outputs were not the same when a profiler looked on" in measured(turned, yard).review


def test_a_round_drawn_again_has_the_same_inputs_and_a_changed_bit_shows(yard):
    setting = clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1)
    first = setting.round()
    again, other = setting.round(values=first.drawn), setting.round()
    for one in (first, again, other):
        for args in one.calls:
            args["out"].copy_(args["x"])
    assert first.bits() == again.bits() != other.bits()
    again.calls[-1]["out"].view(torch.int32)[-1] ^= 1
    assert [a == b for a, b in zip(first.bits(), again.bits(), strict=True)] == [True] * (setting.calls - 1) + [False]
    for one in (first, again, other):
        one.close()


def test_a_time_far_below_the_floor_goes_to_a_person():
    """All inputs as one batch while nobody counts took a fifth of what their launches need at the least."""
    timed = Timed("8 inputs", 1e-4, 1e-4, 1e-4, floor_s=5e-4)
    assert clock._of_floor(timed).startswith("It took 20% of the least time")
    assert not clock._of_floor(replace(timed, seconds=4.7e-4)) and not clock._of_floor(replace(timed, seconds=1e-2))


def laps(seconds, calls_s, count=6):
    return [clock.Lap(seconds, calls_s)] * count


def test_no_more_is_subtracted_than_was_around_our_calls_alone():
    """A submission that keeps processors busy while our round runs would gain by what our round then waits."""
    setting = clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1)
    alone = clock.Alone(calls_s=20e-3, around_s=2e-3, around_high_s=2e-3)
    calm, slowed, _, _ = clock._concluded(setting, alone, laps(32e-3, 0), laps(22e-3, 20e-3))
    assert calm.seconds * setting.calls == pytest.approx(30e-3) and slowed == pytest.approx(0)
    same, slowed, _, _ = clock._concluded(setting, alone, laps(32e-3, 0), laps(30e-3, 20e-3))
    assert same.seconds == pytest.approx(calm.seconds) and slowed == pytest.approx(8 / 32)
    assert clock._concluded(setting, alone, laps(32e-3, 0), laps(25e-3, 23e-3))[1] == pytest.approx(0.15)
    scattered = replace(alone, around_high_s=5e-3)  # alone too it was now and then longer: no reason to be alarmed
    still, slowed, _, _ = clock._concluded(setting, scattered, laps(32e-3, 0), laps(24e-3, 20e-3))
    assert still.seconds == pytest.approx(calm.seconds) and slowed == pytest.approx(0)


def test_what_the_submission_says_about_its_time_is_not_believed():
    setting, alone = clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1), clock.Alone(20e-3, 2e-3, 2e-3)
    said = [clock._concluded(setting, alone, laps(32e-3, calls_s), laps(22e-3, 20e-3))[0] for calls_s in (0, 1, -1)]
    assert len(set(said)) == 1


def test_rounds_go_on_only_while_the_points_depend_on_them():
    """Wide intervals: far above and far below what earns points they do not matter, between they do."""
    setting, alone = clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1), clock.Alone(20e-3, 0.0, 0.0)
    for share, rounds in ((1.2, clock.FEWEST), (0.2, clock.FEWEST), (0.6, clock.MOST), (0.9, clock.MOST)):
        middle = setting.floor_s * setting.calls / share
        ours = [clock.Lap(middle * scatter, 0.0) for scatter in (0.9, 1.1) * clock.MOST]
        theirs = laps(20e-3, 20e-3) if share < 0.9 else laps(1e-9, 1e-9)
        for count in range(1, clock.MOST + 1):
            timed, _, unsteady, per_call = clock._concluded(setting, alone, ours[:count], theirs)
            if clock._enough(setting, per_call, timed):
                break
        assert count == rounds, share
        assert (timed.seconds == timed.high_s) == (rounds == clock.MOST) and not unsteady


def test_where_our_own_rounds_vary_as_well_nothing_is_concluded():
    """Else a submission would pay for the noise of the machine: 1.4 of 4 points, beside a job on another GPU."""
    setting, alone = clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1), clock.Alone(20e-3, 2e-3, 4e-3)

    def told(middle_s, own_vary, wide=0.1):
        scattered = (1 - wide, 1 + wide) * (clock.MOST // 2)
        submitted = [clock.Lap(2e-3 + middle_s * scatter, 0.0) for scatter in scattered]
        own = [clock.Lap(22e-3 + own_vary * sign, 20e-3) for sign in (-0.1, 0.1) * (clock.MOST // 2)]
        timed, slowed, unsteady, calls_s = clock._concluded(setting, alone, submitted, own)
        return timed, clock.Measured(timed, slowed, tuple(calls_s), (), 1.0, "", unsteady).noisy

    between = setting.floor_s * setting.calls / 0.8
    timed, noisy = told(between, 20e-3)
    assert "our own rounds varied too, by 7" in noisy and timed.low_s < timed.seconds < timed.high_s
    timed, noisy = told(between, 20e-3, wide=0.016)  # little depends on it: the middle counts
    assert not noisy and timed.low_s < timed.seconds < timed.high_s
    timed, noisy = told(between, 2e-3)
    assert not noisy and timed.seconds == timed.high_s
    far = setting.floor_s * setting.calls / 0.2
    assert not told(far, 20e-3)[1]  # it earns nothing at either end


def test_a_reference_slowed_down_makes_the_run_void(yard):
    setting = clock.setting(SLEEPS, SLEEPS.speed.cases[0], 1)
    alone = yard.alone[setting.key]
    try:
        yard.alone[setting.key] = replace(alone, calls_s=alone.calls_s / 4)
        assert measured(HONEST, yard).noisy
    finally:
        yard.alone[setting.key] = alone
    assert any(as_fast_as_alone(yard, setting) for _ in range(6))  # the machine may be busy with other tests


def test_without_the_reference_kernel_the_share_of_the_floor_is_measured(yard, monkeypatch):
    """A cohort's copy of the course has no course_lib.kernels."""
    alone = replace(SLEEPS, name="alone", speed=replace(SLEEPS.speed, reference="course_lib.no_such_room:axpy"))
    monkeypatch.setattr(clock, "yardsticks", lambda: yard)
    with Referee(Submission((Cell("cell", HONEST),))) as there:
        (found,) = there._timed(alone, 1)
    assert found.timed.reference_s is None and 0.3 < found.timed.share <= 1.0


@pytest.mark.parametrize(("busy", "reference"), [(True, "operator:add"), (False, "operator:add"), (True, None)])
def test_ceilings_that_our_own_kernel_beats_are_measured_again(busy, reference, yard, monkeypatch):
    """A floor of three times what our own kernel takes: a copy was measured beside another program, say. Where there is
    no kernel of our own, what its rounds take says nothing."""
    asked = []

    def ceilings(refresh=False):
        asked.append(refresh)
        return CALL_S * (3 if busy and not any(asked) else 1)

    speed = replace(SLEEPS.speed, floor_s=lambda args, found: found, reference=reference)
    monkeypatch.setattr("course_lib.device.ceilings", ceilings)
    monkeypatch.setattr(clock, "yardsticks", lambda: yard)
    with Referee(Submission((Cell("cell", HONEST),))) as there:
        (found,) = there._timed(replace(SLEEPS, speed=speed), 1)
    again = busy and reference is not None
    assert found.timed.floor_s == CALL_S * (3 if busy and not again else 1)
    assert asked == ([False, True, False] if again else [False])


def settled(monkeypatch, *found):
    """What the referee makes of right answers whose timing came to each of `found` in turn."""
    monkeypatch.setattr("course_lib.device.TIER", "gpu")
    there, left = Referee(Submission(())), list(found)
    right = Verdict(SLEEPS.name, "gpu", 1, 5.0, 5.0, (CaseVerdict("one", "", True, ""),))
    there.verdicts[SLEEPS.name, 1] = right

    def timed(exercise, seed):
        if isinstance(left[0], Exception):
            raise left.pop(0)
        return [left.pop(0)]

    monkeypatch.setattr(there, "_timed", timed)
    verdict = there.examine_speed(SLEEPS, 1)
    return verdict.points, verdict.pending, verdict.note, len(left)


FAST = clock.Measured(Timed("n", CALL_S, CALL_S, CALL_S, CALL_S), 0.0, (), (), 1.0)
LOUD = replace(FAST, slowed=0.2)


def test_on_a_device_that_is_not_quiet_nothing_is_concluded(monkeypatch):
    points, pending, note, _ = settled(monkeypatch, *[LOUD] * TRIES)
    assert (points, pending) == (0, True) and "20% slower than alone" in note
    assert settled(monkeypatch, *[LOUD] * (TRIES - 1), FAST)[:2] == (1.0, False)
    points, pending, note, _ = settled(monkeypatch, *[replace(FAST, unsteady=0.03)] * TRIES)
    assert (points, pending) == (0, True) and "our own rounds varied too, by 3.0%" in note


def test_points_for_speed_are_paid_held_or_lost(monkeypatch):
    assert settled(monkeypatch, FAST, LOUD) == (1.0, False, "", 1)
    points, pending, note, _ = settled(monkeypatch, replace(FAST, review="Odd."))
    assert (points, pending) == (0, True) and note == "1 points wait for a person. Odd."
    points, pending, note, _ = settled(monkeypatch, clock.NotRight("zeros"))
    assert (points, pending) == (0, False) and "a timed answer was not right: zeros" in note


def test_the_recorded_clock_of_an_h200_agrees_with_the_events_of_the_device():
    """From 50 us to 5 ms a call; shorter and longer ones are reported, not promised. Where the interval is wide, the
    referee does not believe the middle of it either."""
    rows = [row for row in load("clock", "h200")["rows"] if 50 <= row["events_us"] <= 5000]
    sure = [row for row in rows if (row["high_us"] - row["low_us"]) / 2 <= clock.NARROW * row["clock_us"]]
    assert len(sure) >= 5 and {row["kernel"] for row in sure} == {row["kernel"] for row in rows}
    assert [row["name"] for row in sure if abs(row["ratio"] - 1) > 0.02] == []
    outside = [row for row in rows if not 0.98 * row["low_us"] <= row["events_us"] <= 1.02 * row["high_us"]]
    assert outside == []


def test_the_kernels_of_the_clocks_table_are_there():
    from benchmarks.clock import KERNELS

    assert len(KERNELS) >= 3
    assert all(find(f"{name}/right/{answer}").source for name, (answer, _) in KERNELS.items())


@pytest.mark.parametrize(("device", "allowed_s"), [("cpu", 10.0), ("h200", 12.0)])
def test_a_recorded_submission_of_lesson_01_took_no_longer_than_it_may(device, allowed_s):
    rows = {row["name"]: row for row in load("grading", device)["rows"]}
    assert rows["as graded, sandbox included"]["seconds"] <= allowed_s
    assert rows["as graded, sandbox included"]["points"] >= 53


def as_fast_as_alone(yard, setting):
    yard.forget(setting)
    yard.measure(setting)
    return abs(measured(HONEST, yard).slowed) < clock.NOISY - 1
