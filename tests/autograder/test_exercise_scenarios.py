"""The four exercises of unit 01 that ask for plain data: work, stopwatch, regime, profile."""

import json
import shutil
import time
from itertools import pairwise

import pytest

from autograder import bank
from autograder.call.in_process import examine
from autograder.exercise import get
from autograder.exercises.roofline.growth import near
from autograder.exercises.roofline.stopwatch import BUDGET_CALLS, LIMIT
from autograder.exercises.roofline.trace_reading import SHORT_US, counted
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
from course_lib.simulated_gpu import SimulatedGPU

NAMES = ("roofline.work", "roofline.stopwatch", "roofline.regime", "roofline.profile")
SEEDS = (11, 12)


def _calls(name, seeds=SEEDS):
    exercise = get(name)
    for case in exercise.cases:
        for seed in seeds:
            yield case, exercise.draw(case, seed, "cpu", "interpreter")


# ---------------------------------------------------------------------------------------------- all four


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_draw_and_another_seed_another(name):
    def plain(call):
        return json.dumps([{k: v for k, v in call.args.items() if k != "gpu"}, str(call.secret), call.sizes])

    first = [plain(call) for _, call in _calls(name, (5,))]
    assert first == [plain(call) for _, call in _calls(name, (5,))]
    other = [plain(call) for _, call in _calls(name, (6,))]
    assert sum(a == b for a, b in zip(first, other, strict=True)) <= 1  # "every size is one" has nothing to draw


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n == "roofline.work" else [pytest.mark.slow]) for n in NAMES]
)
def test_every_mistake_is_called_by_its_name_on_another_seed(name):
    exercise, wrong = get(name), []
    for entry in bank.entries([name], ["mistakes"]):
        verdict = examine(exercise, entry.function, seed=77)
        named = verdict.diagnosis.mistake if verdict.diagnosis else None
        killed = any(c.name == entry.killed_by and not c.right for c in verdict.cases)
        if named != entry.mistake or not killed:
            wrong.append(f"{entry}: named {named}, {'caught' if killed else 'not caught'} by {entry.killed_by}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_judging_a_right_submission_takes_less_than_a_second(name):
    for entry in bank.entries([name], ["right"]):
        start = time.process_time()
        assert examine(get(name), entry.function, seed=3).accepted
        assert time.process_time() - start < 1.0


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize("kind", ["right", pytest.param("mistakes", marks=pytest.mark.slow)])
def test_the_referee_comes_to_the_same_verdict_from_outside(kind):
    chosen = {name: bank.entries([name], [kind])[0] for name in NAMES}
    cells = tuple(Cell(name, entry.source) for name, entry in chosen.items())
    with Referee(Submission(cells)) as there:
        for name, entry in chosen.items():
            outside, inside = there.examine(get(name), seed=21), examine(get(name), entry.function, seed=21)
            assert (outside.points, outside.diagnosis) == (inside.points, inside.diagnosis), entry
            assert outside.cases == inside.cases, entry


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", [None, "text", [], (), {}, float("nan"), True, (1, 2, 3), [[1], [2]], -1.0])
def test_an_answer_of_the_wrong_kind_is_wrong_and_never_an_error(name, answer):
    exercise = get(name)
    for _, call in _calls(name, (1,)):
        known = {**call.args, **call.secret}
        for output, want in exercise.oracle(known).items():
            if answer is None and want is None:
                continue
            why = exercise.accept(answer, want, known)
            assert why and output is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_a_student_reads_never_contains_the_expected_number(name):
    exercise = get(name)
    for _, call in _calls(name, (4,)):
        known = {**call.args, **call.secret}
        for want in exercise.oracle(known).values():
            secrets = {
                text for number in _numbers(want) for text in (f"{number:g}", f"{number:.4g}", f"{number * 1e6:.4g}")
            }
            for mistake in exercise.mistakes:
                for variant in [(v,) for v in mistake.variants] or [()]:
                    answers = mistake.answer(known, *variant).values() if mistake.answer else ()
                    for got in answers:
                        why = exercise.accept(got, want, known) if type(got) is type(want) else None
                        shown = {f"{n:g}" for n in _numbers(got)} | {f"{n:g}" for n in _numbers(call.args)}
                        assert not _words(why) & (secrets - shown)


def _numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _numbers(v)]
    return [value] if isinstance(value, (int, float)) and value not in (0, 1, 2) else []


def _words(text):
    return {word.strip(".,:()[]") for word in (text or "").split()}


# --------------------------------------------------------------------------------------------- roofline.work


@pytest.mark.parametrize(
    ("op", "sizes", "dtype", "flops", "moved"),
    [
        ("matmul", {"batch": 1, "m": 2, "n": 3, "k": 4}, "fp32", 48, 4 * (8 + 12 + 6)),
        ("matmul", {"batch": 5, "m": 2, "n": 3, "k": 4}, "bf16", 240, 2 * 5 * 26),
        ("matmul", {"batch": 1, "m": 2, "n": 3, "k": 4}, "tf32", 48, 104),
        ("add", {"elements": 7}, "fp16", 7, 42),
        ("softmax", {"rows": 2, "columns": 3}, "fp64", 30, 8 * 12),
        ("layer_norm", {"rows": 2, "columns": 3}, "fp8", 2 * (21 + 4), 6 + 6 + 3 + 3),
        # 4 x 3 scores of head size 2: 4 + 1 + 5 + 4 FLOPs each; Q and O 8 elements, K and V 6, S and P 12 twice each
        (
            "naive_attention",
            {"batch": 1, "heads": 1, "queries": 4, "keys": 3, "head_size": 2},
            "fp32",
            12 * 14,
            4 * (8 + 6 + 6 + 8 + 48),
        ),
        (
            "fused_attention",
            {"batch": 2, "heads": 3, "queries": 4, "keys": 3, "head_size": 2},
            "fp16",
            6 * 168,
            2 * 6 * 28,
        ),
    ],
)
def test_work_counts_what_a_person_counts_by_hand(op, sizes, dtype, flops, moved):
    assert get("roofline.work").oracle({"op": op, "sizes": sizes, "dtype": dtype}) == {"work": (flops, moved)}


# ---------------------------------------------------------------------------------------- roofline.stopwatch


@pytest.mark.slow
def test_the_limit_of_the_stopwatch_lies_between_careful_timers_and_naive_ones(capsys):
    careful, naive, cases = {}, {}, {c.name: c for c in get("roofline.stopwatch").cases}

    def error(function, case, seed):
        call = get("roofline.stopwatch").draw(case, seed, "cpu", "interpreter")
        return abs(function(*call.args.values()) / call.secret["truth"] - 1)

    for entry in bank.entries(["roofline.stopwatch"], ["right"]):
        careful[entry.name] = max(error(entry.function, c, seed) for c in cases.values() for seed in range(8))
    for entry in bank.entries(["roofline.stopwatch"], ["mistakes"]):
        if entry.mistake not in ("over_budget", "elapsed_before_synchronize"):  # these raise
            naive[entry.name] = min(error(entry.function, cases[entry.killed_by], seed) for seed in range(8))
    with capsys.disabled():
        low, high = max(careful, key=careful.get), min(naive, key=naive.get)
        print(f"\nright: {low}, off by {careful[low]:.1%} at worst; limit {LIMIT:.0%}", end="; ")
        print(f"wrong: {high}, off by {naive[high]:.1%} at least")
    assert max(careful.values()) < LIMIT / 1.5
    assert min(naive.values()) > LIMIT * 1.5


def test_a_careful_timer_needs_only_numbers_names_and_half_of_the_budget():
    for case, call in _calls("roofline.stopwatch"):
        calls = 0

        def through_json(*message, send=call.args["gpu"]._send):
            nonlocal calls
            calls += 1
            return json.loads(json.dumps(send(*json.loads(json.dumps(message)))))

        function = bank.find("roofline.stopwatch/right/until_it_settles").function
        got = function(SimulatedGPU(through_json), call.args["kernel"])
        assert got == pytest.approx(call.secret["truth"], rel=LIMIT), case.name
        assert calls < BUDGET_CALLS / 2, case.name


def test_a_timer_that_ignores_one_difficulty_fails_on_that_device_and_not_on_calm_ones():
    exercise = get("roofline.stopwatch")
    for entry in bank.entries(["roofline.stopwatch"], ["mistakes"]):
        if entry.mistake in ("gap_counted", "mean_instead_of_median", "warm_cache", "clock_not_sustained"):
            wrong = {c.name for c in examine(exercise, entry.function, seed=9).cases if not c.right}
            assert entry.killed_by in wrong, entry
            assert not wrong & {"a long kernel", "a short kernel", "compilation"}, entry


def test_a_device_of_the_stopwatch_has_no_second_kernel_to_compare_with():
    """One of a known time would turn any timer into a right one."""
    for _, call in _calls("roofline.stopwatch"):
        with pytest.raises(RuntimeError, match=f"there is {call.args['kernel']}$"):
            call.args["gpu"].launch("another")


# ------------------------------------------------------------------------------------------- roofline.regime


def test_tables_show_what_their_names_promise():
    shows = {
        "overhead, then bandwidth": ["overhead", "bandwidth"],
        "overhead, then compute": ["overhead", "compute"],
        "overhead, bandwidth, compute": ["overhead", "bandwidth", "compute"],
        "only overhead": ["overhead"],
        "only bandwidth": ["bandwidth"],
        "only compute": ["compute"],
        "bandwidth, then compute": ["bandwidth", "compute"],
    }
    for case, call in _calls("roofline.regime", range(6)):
        known = {**call.args, **call.secret}
        want, rows = get("roofline.regime").oracle(known), call.args["rows"]
        if case.name in shows:
            assert list(dict.fromkeys(want["labels"])) == shows[case.name]
        assert len(rows) < 60 and all(len(row["seconds"]) == 7 for row in rows)
        assert all(a["size"] < b["size"] for a, b in pairwise(rows))
        first, last, crossing = rows[0]["size"], rows[-1]["size"], call.secret["crossing"]
        assert all(max(edge, crossing) > 2.5 * min(edge, crossing) for edge in (first, last))


def test_labels_near_the_end_of_overhead_are_not_judged_and_others_are():
    exercise = get("roofline.regime")
    case = next(c for c in exercise.cases if c.name == "overhead, then bandwidth")
    call = exercise.draw(case, 2, "cpu", "interpreter")
    known = {**call.args, **call.secret}
    want = exercise.oracle(known)["labels"]
    for i, row in enumerate(call.args["rows"]):
        other = list(want)
        other[i] = "overhead" if want[i] != "overhead" else "bandwidth"
        judged = exercise.accept(other, want, known) is not None
        assert judged != near(row["size"], call.secret["crossing"])
    end = exercise.oracle(known)["overhead_ends"]
    assert exercise.accept(1.9 * end, end, known) is None and exercise.accept(end / 1.9, end, known) is None
    assert exercise.accept(2.1 * end, end, known) and exercise.accept(end / 2.1, end, known)
    assert exercise.accept(0, end, known) and exercise.accept(None, end, known)


# ------------------------------------------------------------------------------------------ roofline.profile


def _event(category, start, duration, **more):
    return {
        "category": category,
        "name": more.pop("name", category),
        "start_us": start,
        "duration_us": duration,
        **more,
    }


def _work(correlation, launched, started, duration, thread=1, stream=7):
    return [
        _event("launch", launched, 2.0, thread=thread, correlation=correlation),
        _event("kernel", started, duration, stream=stream, correlation=correlation),
    ]


def test_a_trace_read_by_hand():
    events = [
        _event("range", 0.0, 100.0, name="warmup", thread=1),
        *_work(1, 10.0, 20.0, 50.0),
        _event("range", 200.0, 60.0, name="step", thread=1),
        _event("range", 210.0, 20.0, name="inner", thread=1),
        *_work(2, 205.0, 210.0, 40.0),  # in step
        *_work(3, 215.0, 250.0, 30.0),  # in inner, runs after it
        *_work(4, 240.0, 260.0, 40.0, stream=13),  # in step, beside the kernel before
        *_work(5, 245.0, 340.0, 10.0, thread=2),  # another thread: in no range
    ]
    got = get("roofline.profile").oracle({"events": events, "gap_us": 39.0})["profile"]
    assert got == {
        "ranges": {"step": 80.0, "inner": 30.0, "outside": 10.0},
        "busy": (90.0 + 10.0) / 140.0,
        "gaps": [[300.0, 40.0]],
        "bound": "host",
    }


def test_traces_are_physical_and_exact():
    for _, call in _calls("roofline.profile"):
        events = call.args["events"]
        launches = {e["correlation"]: e for e in events if e["category"] == "launch"}
        free = {}
        for kernel in sorted((e for e in events if e["category"] == "kernel"), key=lambda e: e["start_us"]):
            launch = launches[kernel["correlation"]]
            assert kernel["start_us"] >= launch["start_us"] + launch["duration_us"]
            assert kernel["start_us"] >= free.get(kernel["stream"], 0.0)
            free[kernel["stream"]] = kernel["start_us"] + kernel["duration_us"]
        assert all(e["duration_us"] > 0 and (e["start_us"] * 8).is_integer() for e in events)


def test_a_long_kernel_makes_its_device_the_limit_in_every_draw_also_by_the_number_of_kernels():
    """Once most kernels were short (seed 71040), and once the device was idle for long (264)."""
    exercise = get("roofline.profile")
    (case,) = (c for c in exercise.cases if c.name == "short kernels beside a long one")
    for seed in (*range(255, 275), *range(71030, 71050)):
        v = exercise.draw(case, seed, "cpu", "interpreter").args
        kernels = counted(v)
        assert exercise.oracle(v)["profile"]["bound"] == "device", seed
        assert 2 * sum(k["duration_us"] < SHORT_US for k in kernels) <= len(kernels), seed


def test_a_range_without_kernels_may_be_zero_or_left_out():
    exercise = get("roofline.profile")
    call = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter")
    want = exercise.oracle(call.args)["profile"]
    with_zero = {**want, "ranges": {**want["ranges"], "idle": 0.0}}
    assert exercise.accept(with_zero, want, call.args) is None
    assert exercise.accept({**want, "ranges": {**want["ranges"], "idle": 1.0}}, want, call.args)
