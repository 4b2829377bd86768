"""Whatever a submission sends in place of an answer: it is wrong, and the referee does not stumble over it."""

import copy
import random
from dataclasses import replace

import pytest

from autograder.exercise import UNITS, WITHOUT_LESSON, of_unit
from autograder.judging.judge import judge
from autograder.judging.outcome import Outcome

SCENARIOS = [e for unit in (*UNITS, *WITHOUT_LESSON) for e in of_unit(unit) if e.kind == "scenario"]
TRIES = 60
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


@pytest.mark.parametrize("exercise", SCENARIOS, ids=lambda e: e.name)
def test_an_answer_with_something_else_in_one_place_is_judged_like_any_other(exercise):
    draw, case = random.Random(exercise.name), exercise.cases[0]
    call = exercise.draw(case, 5, "cpu", "interpreter")
    want = exercise.oracle({**call.args, **call.secret})
    known = replace(exercise, oracle=lambda args: want)
    for _ in range(TRIES):
        name = draw.choice(list(want))
        forged = changed(want[name], draw.choice(list(places(want[name]))), copy.deepcopy(draw.choice(OTHER)))
        verdict = judge(known, "interpreter", 5, [(case, call, Outcome(outputs=want | {name: forged}))])
        assert verdict.points in (0, exercise.points) and bool(verdict.points) == verdict.cases[0].right, forged
