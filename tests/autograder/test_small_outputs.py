"""Right answers stay right where an output has few elements, whose norms, and so whose limits, are odd."""

import dataclasses

import pytest
import torch

from autograder import bank, exercise
from autograder.bank import seeds
from autograder.judging.tolerance import ENOUGH

KERNELS = sorted(n for n, one in exercise.registry().items() if one.kind == "kernel" and "interpreter" in one.tiers)
# In `make test` the cheapest; all with ALL=1.
SAMPLE = ("start.axpy",)
FEW = 1  # draws of each case; `slow` takes more
MANY = 25


class Small(exercise.Draw):
    """Draws sizes from the lower end of what a case asks for."""

    def integer(self, low: int, high: int) -> int:
        return super().integer(low, min(high, low + 2))


def refusals(name: str, draws: int) -> tuple[list[str], int]:
    """What is said against right answers, once and called twice in a row; and how many small outputs were judged."""
    one, said, small = seeds.undiagnosed(name), [], 0
    cases = tuple(case for case in one.cases if case.runs_here and case.live)
    for entry in bank.entries([name], ["right"]):
        function = entry.function
        for seed in range(draws):
            verdict = seeds.examine(one, function, seed, live=True)
            said += [f"{entry}, seed {seed}, {c.name} ({c.sizes}): {c.why}" for c in verdict.cases if not c.right]
            small += sum(e.elements < ENOUGH for c in verdict.cases for e in c.errors.values())
            case = cases[seed % len(cases)]
            if one.launches and (why := seeds.twice(one, case, seed, function)):
                said.append(f"{entry}, seed {seed}, {case.name}, called twice: {why}")
    return said, small


@pytest.fixture
def small_draws(monkeypatch):
    monkeypatch.setattr(exercise, "Draw", Small)
    varied = {name: dataclasses.replace(seeds.undiagnosed(name), alike=False) for name in KERNELS}
    monkeypatch.setattr(seeds, "undiagnosed", varied.__getitem__)


@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS])
def test_no_right_answer_is_refused_where_outputs_are_small(name, small_draws, request):
    said, small = refusals(name, FEW if request.node.get_closest_marker("slow") is None else MANY)
    assert said == []
    assert small or not exercise.get(name).precision, "no case of it has a small output, however it is drawn"


@pytest.mark.slow
def test_limits_of_a_single_call_would_refuse_right_answers(small_draws, monkeypatch):
    """What these draws are for: without siblings, two right sums of few terms are refused by the limits of one call."""
    from autograder.judging import tolerance

    monkeypatch.setattr(tolerance, "siblings_needed", lambda want: 0)
    monkeypatch.setattr(tolerance, "_lacking", lambda truth: 0)
    assert refusals("mlp.add_norm", 12)[0]


def test_small_draws_are_small():
    drawn = [Small(seed, "cpu", "interpreter").integer(3, 4000) for seed in range(50)]
    assert {*drawn} == {3, 4, 5} and torch.is_tensor(Small(1, "cpu", "interpreter").normal(2))
