"""Judging: limits that are derived, credit, patterns, and mistakes called by their names."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from autograder import bank
from autograder.call.in_process import examine
from autograder.classroom import report
from autograder.exercise import Call, Case, Exercise, Mistake, Precision, get, registry
from autograder.exercises.dtypes import significant
from autograder.exercises.flash.attention import backward_truth
from autograder.exercises.flash.backward import ORDER as BACKWARD_ARGS
from autograder.judging import patterns, score, tolerance
from autograder.judging.compare import same
from autograder.judging.judge import case_verdict, wrong
from autograder.judging.outcome import Outcome
from autograder.judging.verdict import CaseVerdict, Verdict
from autograder.referee.rounds import Round


def _double(v, dtype):
    return 2 * v["x"].to(dtype)


def _exercise(**changes) -> Exercise:
    """out = 2x, without a kernel: judging is the same."""

    def draw(d):
        n = d.integer(80, 120)
        return Call({"x": d.normal(3, n), "out": d.empty(3, n)}, f"3 x {n}")

    fields = {
        "name": "test.double",
        "entry": "double",
        "points": 4,
        "kind": "kernel",
        "cases": tuple(Case(f"case {i}", draw) for i in range(4)),
        "writes": ("out",),
        "oracle": lambda v: {"out": _double(v, torch.float64)},
        "precision": Precision(
            lambda v: {"out": _double(v, torch.float32)},
            "fp32",
            lambda v: {"out": _double({"x": v["x"].half()}, torch.float32)},
            "fp16",
        ),
        "mistakes": (Mistake("times_three", "That is 3x.", answer=lambda v: {"out": 3.0 * v["x"].double()}),),
        "launches": False,
    }
    return Exercise(**{**fields, **changes})


def _fill(factor, columns=slice(None)):
    def double(x, out):
        out[:, columns] = factor * x[:, columns]

    return double


def test_a_sentence_has_a_largest_length_whatever_the_answer_holds():
    exercise = get("roofline.profile")
    names = {f"{n:06d}" * 6: 0 for n in range(20_000)}
    verdict = examine(exercise, lambda events, gap_us: names, seed=1)
    assert len(str(report.lines(verdict))) < 20_000 and "characters)" in verdict.cases[0].why


def test_a_report_says_where_it_was_judged_and_ranks_are_processes_of_the_cpu():
    verdict = examine(_exercise(), _fill(2.0), seed=1)
    for name, words in (("start.axpy", "Judged on the GPU"), ("ddp.flat", "Judged on processes of the CPU")):
        there = replace(verdict, tier="gpu", exercise=name)
        assert any(words in line for line in report.lines(there)) and words in report.html(there)


def test_a_right_answer_gets_all_points():
    verdict = examine(_exercise(), _fill(2.0), seed=1)
    assert verdict.accepted and verdict.points == 4 and verdict.diagnosis is None


def test_a_returned_value_has_the_type_of_its_own_call():
    """fp32 is a type that other calls of this exercise return, and fp16 is what this one asks for."""
    types = {"case 0": torch.float16, "case 1": torch.float32}

    def draw(dtype):
        return lambda d: Call({"x": d.normal(3, 80, dtype=dtype)}, "3 x 80")

    exercise = _exercise(
        cases=tuple(Case(name, draw(dtype)) for name, dtype in types.items()),
        writes=(),
        returns=("out",),
        precision=Precision(
            lambda v: {"out": 2 * v["x"]}, "exact", lambda v: {"out": (2.02 * v["x"]).to(v["x"].dtype)}, "1 % off"
        ),
        mistakes=(),
    )
    assert examine(exercise, lambda x: 2 * x, seed=1).accepted
    wide = examine(exercise, lambda x: 2 * x.float(), seed=1)
    assert [case.why for case in wide.cases] == ["`out` is float32, should be float16", ""]


def test_a_known_mistake_is_named():
    verdict = examine(_exercise(), _fill(3.0), seed=1)
    assert verdict.points == 0
    assert verdict.diagnosis.mistake == "times_three"


def test_an_unknown_mistake_is_described_by_where_it_is():
    verdict = examine(_exercise(), _fill(2.0, slice(0, 64)), seed=1)
    assert verdict.diagnosis.mistake is None
    assert "never written" in verdict.diagnosis.says
    assert "NaN" in verdict.diagnosis.pattern


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, out: out.zero_(),
        lambda x, out: out.copy_(x),
        lambda x, out: out.fill_(float(x.mean())),
        lambda x, out: out.copy_(2 * x.half()),
        lambda x, out: out.copy_(2 * x).mul_(1 + 1e-4),
        lambda x, out: None,
    ],
    ids=["zeros", "copy of the input", "mean", "fp16", "off by 1e-4", "nothing"],
)
def test_answers_without_merit_fail_every_case(wrong):
    assert examine(_exercise(), wrong, seed=2).right == 0


def test_one_wrong_row_fails_however_small_its_share():
    def one_row(x, out):
        out.copy_(2 * x)
        out[1] *= 1 + 1e-3

    assert examine(_exercise(), one_row, seed=3).right == 0


def test_changing_an_input_costs_the_case():
    def careless(x, out):
        out.copy_(x.mul_(2))

    verdict = examine(_exercise(), careless, seed=4)
    assert verdict.right == 0
    assert "input `x`" in verdict.cases[0].why
    assert verdict.diagnosis.pattern == ""  # of outputs that nobody judged


def test_without_a_launch_a_kernel_exercise_earns_nothing():
    verdict = examine(_exercise(launches=True), _fill(2.0), seed=5)
    assert verdict.points == 0
    assert "No Triton kernel was launched" in verdict.note


def test_calls_that_raised_are_not_said_to_have_launched_nothing():
    def broken(x, out):
        if x.numel():
            raise ValueError("such a pity")

    def empty(d):
        return Call({"x": d.normal(0, 3), "out": d.empty(0, 3)}, "0 x 3")

    cases = (Case("no elements", empty), *_exercise().cases)
    assert examine(_exercise(launches=True, cases=cases), broken, seed=5).note == ""


def test_a_raised_error_is_shown_with_its_line():
    def broken(x, out):
        raise ValueError("such a pity")

    verdict = examine(_exercise(), broken, seed=6)
    assert "ValueError: such a pity" in verdict.diagnosis.says
    assert "raise ValueError" in verdict.diagnosis.says


def test_an_error_inside_the_library_is_shown_with_the_line_that_called_it():
    from course_lib.simulated_gpu import PITFALLS, DeviceModel

    def impatient(x, out):
        gpu = DeviceModel({"kernel": 1e-4}, PITFALLS["asynchrony"], seed=7).handle()
        gpu.elapsed(gpu.record(), gpu.record())

    verdict = examine(_exercise(), impatient, seed=6)
    assert "(line" in verdict.diagnosis.says and "gpu.elapsed(gpu.record()" in verdict.diagnosis.says


def test_a_call_that_raises_moves_no_limit_and_no_verdict_of_the_others():
    def drawn(mean):
        return Case(f"mean {mean}", lambda d: Call({"x": d.normal(3, 100) + mean, "out": d.empty(3, 100)}, "3 x 100"))

    cases = (drawn(0.0), *(drawn(mean) for mean in (1e3, 2e3)))
    one = Precision(
        lambda v: {"out": 2 * ((v["x"] + 1e4) - 1e4)}, "with a detour", lambda v: {"out": 2 * v["x"].half()}, "fp16"
    )

    def picky(x, out):
        if x.mean() < 500:
            raise ValueError("too small")
        out.copy_(2 * x)

    exercise = _exercise(cases=cases, precision=one)
    raised, right = (examine(exercise, function, seed=11) for function in (picky, _fill(2.0)))
    assert raised.limits == right.limits and len(raised.limits) == 1
    assert [case.right for case in raised.cases] == [False, True, True]


def test_a_stub_is_called_not_written_yet_and_only_tried_once():
    def stub(x, out):
        raise NotImplementedError("not written yet")

    tried = []
    verdict = examine(_exercise(), lambda *given: tried.append(given) or stub(*given), seed=7)
    assert len(tried) == 1 and len(verdict.cases) == 4 and verdict.points == 0 and not verdict.limits
    assert verdict.diagnosis.says.startswith("Not written yet") and not verdict.diagnosis.mistake
    assert "raised NotImplementedError: not written yet" in verdict.cases[0].why
    assert [case.why for case in verdict.cases[1:]] == 3 * ["not tried: not written yet"]
    assert "The point here" not in report.html(replace(verdict, exercise="start.axpy"))


@pytest.mark.parametrize("says", ["not written yet", "something else"])
def test_an_answer_whose_second_half_says_that_it_is_not_written_keeps_all_its_cases(says):
    tried = []

    def half(x, out):
        tried.append(x)
        if len(tried) in (2, 3):
            raise NotImplementedError(says)
        out.copy_(2 * x)

    verdict = examine(_exercise(point=("case 1",)), half, seed=7)
    assert [case.right for case in verdict.cases] == [True, False, False, True] and verdict.points == 0
    assert verdict.limits == examine(_exercise(), _fill(2.0), seed=7).limits


def test_the_same_seed_draws_the_same_values_and_another_seed_others():
    exercise = _exercise()
    draws = [exercise.draw(exercise.cases[0], seed, "cpu", "interpreter").args["x"] for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert draws[0].shape != draws[2].shape or not torch.equal(draws[0], draws[2])


def test_the_limit_lies_between_its_two_measurements():
    exercise = _exercise()
    args = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter").args
    limits = tolerance.derive(exercise, [(args, exercise.oracle(args))])
    for limit in limits["out", torch.float32].values():
        assert limit.good < limit.limit < limit.lower
        assert limit.lower / limit.limit == pytest.approx(limit.limit / limit.good)


def _sums(n: int) -> Exercise:
    """out = sums of 24 numbers with signs, which cancel at times; `lower` is what TF32 would make of them."""

    def draw(d):
        return Call({"x": d.normal(24, n), "out": d.empty(n)}, f"{n} sums")

    def added(v, dtype=torch.float64, of=None):
        return {"out": (v["x"] if of is None else of).to(dtype).sum(0)}

    return _exercise(
        cases=(Case("sums", draw),),
        oracle=added,
        precision=Precision(
            lambda v: added(v, torch.float32), "fp32",
            lambda v: added(v, torch.float32, significant(v["x"], 11)), "TF32",
            floor_ulps=0.5,
        ),
        mistakes=(),
    )  # fmt: skip


def _one_by_one(x, out):
    """The same sums as `_sums` in another honest order: all partial sums in fp32, from the last number to the first."""
    total = torch.zeros_like(out)
    for row in x.flip(0):
        total += row
    out.copy_(total)


OTHERS = 2, 5, 8, 17, 29, 63
few_or_many_sums = pytest.mark.parametrize(
    "n", [1, 3, 13, 47, 64, *(pytest.param(n, marks=pytest.mark.slow) for n in OTHERS)]
)


@few_or_many_sums
def test_another_honest_order_of_a_few_sums_is_right_whatever_is_drawn(n):
    exercise = _sums(n)
    wrong = [s for s in range(60) if not examine(exercise, _one_by_one, s).accepted]
    twice = [s for s in range(60) if _in_a_round(exercise, _one_by_one, s)]
    assert (wrong, twice) == ([], [])


@few_or_many_sums
def test_few_sums_that_are_wrong_by_a_percent_of_their_terms_never_pass(n):
    """By three percent in a round, where what TF32 rounds away passes: of one small sum, that is up to a percent."""
    exercise = _sums(n)

    def off(x, out, by=0.01):
        _one_by_one(x, out)
        out += by * x[0].abs().max().clamp(min=0.1)

    assert not any(examine(exercise, off, s).accepted for s in range(60))
    assert all(_in_a_round(exercise, partial(off, by=0.03), s) for s in range(60))


def test_one_call_by_itself_is_not_held_to_limits_that_come_from_it_alone():
    """A right GELU rounds otherwise than the honest one, here in every draw by more than such limits allow."""
    exercise, name = get("mlp.linear_gelu"), "large partial sums"
    right = bank.find("mlp.linear_gelu/right/grouped_and_transposed").function
    case = next(case for case in exercise.cases if case.name == name)
    for seed in range(4):
        call = exercise.draw(case, seed, "cpu", "interpreter")
        right(*call.args.values())
        trial = case, call, Outcome(outputs={"out": call.args["out"]})
        assert case_verdict(exercise, "interpreter", seed, trial).right
        call.args["out"][3] *= 1.01
        assert not case_verdict(exercise, "interpreter", seed, trial).right


def _in_a_round(exercise, function, seed) -> str:
    """What is wrong after two calls in a row."""
    round_ = Round(exercise, exercise.cases[0], seed, 2, "cpu", "interpreter")
    for args in round_.calls:
        function(*args.values())
    why = round_.wrong()
    round_.close()
    return why


@pytest.mark.parametrize(
    ("right", "total", "points"), [(10, 10, 5.0), (5, 10, 0.0), (4, 10, 0.0), (9, 10, 4.0), (0, 0, 0.0), (2, 3, 1.66)]
)
def test_half_right_is_worth_nothing(right, total, points):
    axpy = replace(get("start.axpy"), point=())
    assert score.credit(axpy, {str(number): number < right for number in range(total)}) == points


def test_outputs_that_are_parts_of_an_exercise_are_credited_one_by_one():
    backward = replace(get("flash.backward"), point=(), points=10.0)
    right = dict.fromkeys("abcd", True)
    assert score.credit(backward, right) == 10
    wrong = {**right, "a": False, "b": False, "c": False}
    assert score.credit(backward, wrong) == 0, "nothing is known of its outputs"
    assert score.credit(backward, wrong, dict.fromkeys("abc", ("dq",))) == 4, "dq is right everywhere"
    assert score.credit(backward, wrong, {"a": ("dq", "dv"), "b": ("dq", "dv"), "c": ("dk",)}) == 0.5 * (4 + 3)
    assert score.credit(replace(backward, point=("a",)), wrong, dict.fromkeys("abc", ("dk", "dv"))) == 5, "the point"
    assert score.credit(replace(backward, parts=()), wrong, dict.fromkeys("abc", ("dq",))) == 0
    for one in (e for e in registry().values() if e.parts):
        names, shares = zip(*one.parts, strict=True)
        assert set(names) == set(one.outputs) and sum(shares) == pytest.approx(1)


def test_a_report_says_of_each_part_what_it_earned():
    def without_dk(*args):
        named = dict(zip(BACKWARD_ARGS.split(), args, strict=True))
        made = backward_truth(named)
        for name in ("dq", "dv"):
            named[name].copy_(made[name])

    verdict = examine(replace(get("flash.backward"), launches=False), without_dk, 3)
    count = len(verdict.cases)
    told = report.lines(verdict)
    assert f"dq: right in {count} of {count} cases, 4.8 of 4.8 points." in told
    assert f"dk: right in 0 of {count} cases, 0 of 3.6 points." in told
    assert verdict.points == 6.0 and verdict.cases[0].fine == ("dq", "dv")


def test_an_answer_that_misses_what_an_exercise_is_about_earns_at_most_half():
    axpy = replace(get("start.axpy"), point=("whole", "short"))
    cases = {**dict.fromkeys(map(str, range(98)), True), "whole": True, "short": True}
    assert score.credit(axpy, cases) == 5
    assert score.credit(axpy, {**cases, "0": False}) == 4.9
    assert score.credit(axpy, {**cases, "short": False}) == 2.5
    assert score.credit(axpy, {name: name == "whole" for name in cases}) == 0
    assert score.credit(axpy, {"0": True, "short": False}) == 0
    assert score.missed(axpy, {**cases, "short": False}) == ["short"] and not score.missed(axpy, {"0": True})


def test_a_point_that_was_not_judged_is_missed_where_it_runs():
    axpy = get("start.axpy")
    right = {case.name: True for case in axpy.cases if case.name not in axpy.point}
    assert score.missed(axpy, right) == list(axpy.point) and score.credit(axpy, right) == axpy.points / 2
    elsewhere = replace(axpy, cases=tuple(replace(case, tiers=()) for case in axpy.cases))
    assert not score.missed(elsewhere, right)


def test_a_report_says_what_the_point_was():
    name = get("start.axpy").point[0]
    cases = (CaseVerdict("one element", "n = 1", True), CaseVerdict(name, "n = 7", False, "wrong"))
    said = "\n".join(report.lines(Verdict("start.axpy", "interpreter", 1, 2.5, 5, cases)))
    assert f"The point here is {get('start.axpy').about}: at most half" in said and name in said
    right = tuple(CaseVerdict(name, "n = 7", True) for name in get("start.axpy").point)
    assert "The point here" not in report.html(Verdict("start.axpy", "interpreter", 1, 5, 5, right))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -1.0, 7.0, 3.14159])
def test_a_score_is_finite_within_the_points_and_has_two_decimals(value):
    settled = score.settle(value, 5)
    assert 0 <= settled <= 5 and math.isfinite(settled) and round(settled, 2) == settled


@pytest.mark.parametrize(
    ("share", "points"), [(0.95, 4.0), (0.9, 4.0), (0.6, 2.0), (0.3, 0.0), (0.1, 0.0), (math.nan, 0.0)]
)
def test_speed_points_are_linear_in_the_share_of_the_floor(share, points):
    assert score.speed_credit(share, full=0.9, none=0.3, points=4) == pytest.approx(points)


WANT = torch.arange(1.0, 257.0, dtype=torch.float64).view(8, 32)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("unwritten", lambda t: t[:, 20:].fill_(math.nan)),
        ("constant factor", lambda t: t.mul_(1.25)),
        ("last columns", lambda t: t[:, 30:].add_(1)),
        ("last rows", lambda t: t[6:].add_(1)),
        ("one row", lambda t: t[3].add_(1)),
        ("above diagonal", lambda t: t[0, 1:5].add_(1)),
        ("below diagonal", lambda t: t[5, :3].add_(1)),
        ("grows along columns", lambda t: t.add_(torch.arange(32.0) ** 2)),
    ],
)
def test_a_pattern_is_recognised(kind, spoil):
    got = WANT.clone()
    spoil(got)
    assert kind in patterns.describe(got, WANT, got != WANT)


def test_a_right_output_has_no_pattern():
    assert patterns.describe(WANT, WANT, torch.zeros_like(WANT, dtype=torch.bool)) == {}


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (1, 1.0),
        ([1, 2.0], (1.0, 2)),
        ({"a": [1.0 + 1e-12]}, {"a": [1.0]}),
        ("memory", "memory"),
        (math.nan, math.nan),
    ],
)
def test_plain_data_that_is_equal_up_to_rounding_is_the_same(got, want):
    assert same(got, want) is None


@pytest.mark.parametrize(
    ("got", "want"),
    [(1.001, 1.0), ([1], [1, 2]), ({"b": 1}, {"a": 1}), ("1", 1), (True, 1), (None, 0), (1, "1"), ([1, 3], [1, 2])],
)
def test_plain_data_that_differs_is_told_without_the_expected_value(got, want):
    sentence = same(got, want)
    assert sentence
    assert repr(want) not in sentence.replace(repr(got), "")


def test_several_outputs_are_told_one_by_one():
    plain = replace(get("compile.backend"), accept=None)
    want, right = (
        {"results": 1.0, "counts": 2.0, "sum": 3.0},
        Outcome(outputs={"results": 1.0, "counts": 2.0, "sum": 3.0}),
    )
    assert wrong(plain, {}, want, right, {}) == ("", {})
    one, _ = wrong(plain, {}, want, replace(right, outputs={**right.outputs, "counts": 5.0}), {})
    assert "5" in one and one.endswith("; `results` and `sum` are right")
    both, _ = wrong(plain, {}, want, replace(right, outputs={**want, "counts": 5.0, "sum": 7.0}), {})
    assert "5" in both and "7" in both and both.endswith("; `results` is right")


@pytest.mark.parametrize(("wrong_in", "named"), [((1, 2), None), ((1, 2, 3, 4, 5), "zero")])
def test_a_mistake_whose_formula_would_have_failed_cases_that_were_right_is_not_named(wrong_in, named):
    cases = tuple(Case(f"case {n}", lambda d, n=n: Call({"n": n}, f"n = {n}")) for n in range(1, 7))
    zero = Mistake("zero", "Always 0.", answer=lambda v: {"out": 0})
    plain = Exercise("a.b", "f", 1, "scenario", cases, lambda v: {"out": v["n"]}, (zero,), returns=("out",))
    verdict = examine(plain, lambda n: 0 if n in wrong_in else n, 1)
    assert verdict.right == 6 - len(wrong_in) and verdict.diagnosis.mistake == named
