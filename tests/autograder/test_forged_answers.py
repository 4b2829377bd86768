"""Whatever a submission sends in place of an answer: it is wrong, and the referee does not stumble over it."""

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from autograder import bank
from autograder.call.in_process import examine
from autograder.exercise import UNITS, get, of_unit
from autograder.inside.wire import decode, encode
from autograder.judging.judge import judge
from autograder.judging.outcome import Outcome

SCENARIOS = [e for unit in UNITS for e in of_unit(unit) if e.kind == "scenario"]
OTHER = [None, True, 5, -1, 1.5, float("nan"), float("inf"), "x", [], {}, (), [1], ["a"], {"a": 1}, [[1]], {1: 2}, [{}]]


def places(value, path=()):
    """Where something stands in an answer: itself, its entries, and theirs."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, entry in entries:
        yield from places(entry, (*path, key))


def changed(value, path, into):
    """The answer with something else in one place."""
    if not path:
        return into
    made = dict(value) if isinstance(value, dict) else list(value)
    made[path[0]] = changed(value[path[0]], path[1:], into)
    return made


@pytest.mark.parametrize("tries", [15, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("exercise", SCENARIOS, ids=lambda e: e.name)
def test_an_answer_with_something_else_in_one_place_is_judged_like_any_other(exercise, tries):
    draw, case = random.Random(exercise.name), exercise.cases[0]
    call = exercise.draw(case, 5, "cpu", "interpreter")
    want = exercise.oracle({**call.args, **call.secret})
    known = replace(exercise, oracle=lambda args: want, point=())  # of all cases this one alone is judged
    for _ in range(tries):
        name = draw.choice(list(want))
        forged = changed(want[name], draw.choice(list(places(want[name]))), copy.deepcopy(draw.choice(OTHER)))
        verdict = judge(known, "interpreter", 5, [(case, call, Outcome(outputs=want | {name: forged}))])
        assert verdict.points in (0, exercise.points) and bool(verdict.points) == verdict.cases[0].right, forged


# -------------------------------------------------------------------------------- numbers of NumPy and of torch


def in_kind(value, kind):
    """An answer whose numbers are of NumPy or of torch, as honest code leaves them."""
    if isinstance(value, dict):
        return {key: in_kind(one, kind) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(in_kind(one, kind) for one in value)
    return kind(value) if isinstance(value, bool | int | float) else value


KINDS = [
    pytest.param(lambda x: np.asarray(x)[()], id="numpy"),
    pytest.param(lambda x: torch.tensor(x, dtype=torch.float64 if isinstance(x, float) else None), id="torch"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mlp.saved", "mlp.accumulate", "flash.merge", "compile.break_even", "roofline.work"])
def test_numbers_of_numpy_and_of_torch_are_numbers_in_a_notebook_as_for_the_referee(name, kind):
    exercise = get(name)
    right = bank.entries([name], ["right"])[0].function
    assert decode(encode(in_kind([1, 1.5, True], kind))) == [1, 1.5, True]
    verdict = examine(exercise, lambda *args: in_kind(right(*args), kind), seed=3)
    assert verdict.accepted, next(case.why for case in verdict.cases if not case.right)


def test_what_does_not_travel_is_called_by_its_kind():
    verdict = examine(get("mlp.saved"), lambda *args: {1, 2}, seed=3)
    assert "a set is not plain data" in verdict.cases[0].why
