"""Every kernel exercise, whatever it asks for: an honest answer passes, cheap ones do not, mistakes are mistakes."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest
import torch

from autograder import bank
from autograder.bank import entries
from autograder.call.in_process import examine
from autograder.exercise import UNITS, of_unit, registry
from autograder.judging import judge as judging
from autograder.judging import tolerance
from autograder.judging.outcome import Outcome
from course_lib.device import TIER
from course_lib.numerics import error

KERNELS = {name: e for name, e in sorted(registry().items()) if e.kind == "kernel"}
MISTAKES = [(name, m.name) for name, e in KERNELS.items() for m in e.mistakes if m.answer]

# One process takes an exercise: what is true of its cases is worked out once.
every_kernel = pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in KERNELS])


@cache
def situations(name):
    """The live cases of an exercise on the interpreter tier (of one that needs a GPU, those), drawn on the CPU, and
    what is true of each."""
    exercise = KERNELS[name]
    tier = exercise.tiers[0]
    cases = [case for case in exercise.cases if case.live and tier in case.tiers]
    drawn = [(case, exercise.draw(case, 20, "cpu", tier)) for case in cases]
    return tier, [(case, call, exercise.oracle(call.args)) for case, call in drawn]


@cache
def truth_of(name):
    """As `judge` works it out, whatever the answer is: no call raises here."""
    tier, drawn = situations(name)
    trials = [(case, call, Outcome()) for case, call, _ in drawn]
    return judging._truth(KERNELS[name], trials, judging._siblings(KERNELS[name], tier, 20))


@cache
def limits_of(name):
    return tolerance.derive(KERNELS[name], [(call.args, want) for _, call, want in situations(name)[1]])


def type_of(exercise, args, output):
    """Of an output that is written, its own; of one that is returned, that of an honest answer."""
    return args[output].dtype if output in exercise.writes else exercise.precision.good(args)[output].dtype


def verdict_of(name, answer, diagnosed=False):
    """`answer` takes (arguments, truth) as the exercise's own functions do and fills the outputs, in their types. To
    look for the mistake of a wrong one takes longer than to judge it, and changes no point."""
    exercise = KERNELS[name] if diagnosed else replace(KERNELS[name], mistakes=())
    tier, drawn = situations(name)
    trials = []
    for case, call, want in drawn:
        made = answer(call.args, want)
        outputs = {output: made[output].to(type_of(exercise, call.args, output)) for output in exercise.outputs}
        trials.append((case, call, Outcome(outputs, launches=1)))
    with patch.object(judging, "_truth", return_value=truth_of(name)):
        return judging.judge(exercise, tier, 20, trials)


@every_kernel
def test_the_good_computation_passes(name):
    verdict = verdict_of(name, lambda args, want: KERNELS[name].precision.good(args))
    assert verdict.accepted and verdict.points == KERNELS[name].points, verdict


@every_kernel
def test_the_truth_itself_passes(name):
    assert verdict_of(name, lambda args, want: want).accepted


def _zeros(args, want):
    return {output: torch.zeros_like(truth) for output, truth in want.items()}


def _mean(args, want):
    means = {output: truth.mean() if truth.numel() else 0.0 for output, truth in want.items()}
    return {output: torch.full_like(truth, float(means[output])) for output, truth in want.items()}


def _first_input(args, want):
    """The values of the first tensor argument, repeated to fill the output."""
    values = next(value for value in args.values() if isinstance(value, torch.Tensor)).double().flatten()
    made = {}
    for output, truth in want.items():
        times = -(-truth.numel() // max(1, len(values)))
        source = values if len(values) else torch.ones(1)
        made[output] = source.repeat(max(1, times))[: truth.numel()].expand(truth.numel()).reshape(truth.shape)
    return made


@every_kernel
@pytest.mark.parametrize("answer", [_zeros, _mean, _first_input])
def test_a_cheap_answer_earns_nothing(name, answer):
    verdict = verdict_of(name, answer)
    assert verdict.points == 0, [case.name for case in verdict.cases if case.right]


@pytest.mark.slow
@every_kernel
@pytest.mark.parametrize("answer", [_zeros, _mean, _first_input])
def test_to_look_for_the_mistake_of_a_cheap_answer_changes_no_point(name, answer):
    assert verdict_of(name, answer, diagnosed=True).points == 0


@every_kernel
def test_one_precision_lower_earns_nothing(name):
    verdict = verdict_of(name, lambda args, want: KERNELS[name].precision.lower(args))
    assert verdict.points == 0, [case.name for case in verdict.cases if case.right]


@every_kernel
def test_good_and_lower_precision_are_far_enough_apart(name):
    """In all cases together, or in one that was made to tell."""
    exercise = KERNELS[name]
    pairs = [(call.args, want) for _, call, want in situations(name)[1]]
    limits = limits_of(name)

    def over(output: str, dtype, limit: float) -> float:
        """The largest error of the lower precision in one case, over the limit."""
        of_type = [(args, want[output]) for args, want in pairs if type_of(exercise, args, output) == dtype]
        return max(error(exercise.precision.lower(args)[output].to(dtype), want).rms for args, want in of_type) / limit

    # fp16 and bf16 are 3 bits, a factor of 8, apart; a sum of many rounded numbers is closer, so one output has to tell
    for dtype in {dtype for _, dtype in limits}:
        of_type = [(output, by_metric["rms"]) for (output, d), by_metric in limits.items() if d == dtype]
        apart = {output: rms.lower / rms.good for output, rms in of_type if rms.good}
        if apart and max(apart.values()) < 6:
            assert max(over(output, dtype, rms.limit) for output, rms in of_type) > 1.5, (dtype, apart)


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_a_mistake_is_wrong_somewhere(name, mistake):
    exercise = KERNELS[name]
    wrong = exercise.mistake(mistake)
    for variant in [(v,) for v in wrong.variants] or [()]:
        for _, call, want in situations(name)[1]:
            for output, claimed in wrong.answer(call.args, *variant).items():
                found = error(claimed, want[output])
                if tolerance.exceeded(found, limits_of(name)[output, type_of(exercise, call.args, output)]):
                    return
    pytest.fail("this mistake gives right answers in every case")


@every_kernel
def test_speed_is_graded_against_a_slow_solution(name):
    if KERNELS[name].speed:
        assert entries([name], ["slow"])


ALL = [e for unit in UNITS for e in of_unit(unit) if e.kind == "kernel" and TIER in e.tiers]


@pytest.mark.slow
@pytest.mark.parametrize("exercise", [pytest.param(e, id=e.name) for e in ALL])
def test_a_right_answer_of_the_bank_stays_far_below_every_limit(exercise, monkeypatch):
    """Where it comes near one, an unlucky draw costs an honest answer a case: a sum that cancels is such a draw."""
    shares, exceeded = [], tolerance.exceeded

    def watched(found, limits):
        shares.extend(getattr(found, metric) / limit.limit for metric, limit in limits.items() if limit.limit)
        return exceeded(found, limits)

    monkeypatch.setattr(tolerance, "exceeded", watched)
    entry = bank.entries([exercise.name], ["right"])[0]
    answer = entry.function
    for seed in range(300, 310):
        verdict = examine(exercise, answer, seed, live=True)
        assert verdict.accepted, (seed, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right])
    assert max(shares, default=0.0) < 0.75


def test_two_mistakes_in_one_answer_are_named_where_their_product_is_known():
    def matmul(a, b, out):
        whole = a.shape[1] // 32 * 32
        out.copy_(a[:, :whole].half().double() @ b[:whole].half().double())

    said = examine(registry()["roofline.matmul"], matmul, seed=4).diagnosis
    assert said.mistake == "inputs_in_fp16 and k_tail_dropped"
    assert "Two things at once." in said.says and "rounded to fp16" in said.says and "`K // BLOCK_K` turns" in said.says
