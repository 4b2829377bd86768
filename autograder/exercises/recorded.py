"""Calls of an exercise and what is true of them, written down: for a copy of the course without what computes it.

Some exercises ask for a class, or for a rule in plain Python, and a class like it computes what is true: its text would
be an answer. It stands in a module of its own, `NAME_truth.py`, with the known mistakes that are made of it. The
students' bundle leaves that out and has `NAME.json` in its place: a few calls of each case, drawn as for grading, with
what is true of them and what each known mistake answers. So `check` says there what it says here; grading draws anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from autograder.exercise import Call, Case, Draw, Exercise, Mistake, Values, get

TRUTH = "_truth"  # how the name of such a module ends
DRAWN = 3  # calls of each case


class Apart:
    """Stands for a module of truths that this copy of the course has not, and for all that is in it."""

    def __getattr__(self, name: str) -> Apart:
        return self

    def __call__(self, *args: Any) -> Apart:
        return self


def apart(missing: ModuleNotFoundError) -> Apart:
    if not str(missing.name).endswith(TRUTH):
        raise missing
    return Apart()


def judged_here(exercise: Exercise, truth: Any) -> Exercise:
    """The exercise as this copy of the course can judge it: with its own truths, or with those that were recorded."""
    if not isinstance(truth, Apart):
        return exercise
    unit, _, stem = exercise.name.partition(".")
    return replayed(exercise, json.loads((Path(__file__).parent / unit / f"{stem}.json").read_text()))


def is_truth(path: Path) -> bool:
    return path.stem.endswith(TRUTH)


@cache
def text(truth: Path) -> tuple[str, str]:
    """What stands in the place of a module of truths: its file's name, and what is in it."""
    stem = truth.stem.removesuffix(TRUTH)
    return f"{stem}.json", json.dumps(recorded(get(f"{truth.parent.name}.{stem}")))


def recorded(exercise: Exercise) -> dict[str, list[dict]]:
    """By case the calls, what is true of each, and what the mistakes answer where that is not the truth."""
    return {case.name: [_one(exercise, case, seed) for seed in range(DRAWN)] for case in exercise.cases}


def _one(exercise: Exercise, case: Case, seed: int) -> dict:
    call = exercise.draw(case, seed, "cpu", "interpreter")
    values = {**call.args, **call.secret}
    want = exercise.oracle(values)
    answers = {}
    for name, answer in _answers(exercise):
        try:
            if (said := answer(values)) != want:
                answers[name] = said
        except Exception:  # a wrong answer may not be able to answer at all
            answers[name] = None
    found = {"args": call.args, "secret": call.secret, "sizes": call.sizes, "want": want, "answers": answers}
    if json.loads(json.dumps(found)) != found:
        raise TypeError(f"{exercise.name}, \u201c{case.name}\u201d: a call that JSON does not give back as it was")
    return found


def _answers(exercise: Exercise) -> Iterator[tuple[str, Callable[[Values], Values]]]:
    """Of every mistake that has a formula, one for each variant."""
    for mistake in exercise.mistakes:
        if mistake.answer and not mistake.variants:
            yield mistake.name, mistake.answer
        for number, variant in enumerate(mistake.variants if mistake.answer else ()):
            yield f"{mistake.name} {number}", lambda v, answer=mistake.answer, variant=variant: answer(v, variant)


def replayed(exercise: Exercise, kept: Mapping[str, list[dict]]) -> Exercise:
    """The same exercise, which draws among the recorded calls and knows no others."""
    known = {_told({**one["args"], **one["secret"]}): one for calls in kept.values() for one in calls}
    return replace(
        exercise,
        cases=tuple(replace(case, draw=partial(_drawn, calls=kept[case.name])) for case in exercise.cases),
        oracle=lambda v: known[_told(v)]["want"],
        mistakes=tuple(_replayed(mistake, known) if mistake.answer else mistake for mistake in exercise.mistakes),
    )


def _drawn(d: Draw, calls: list[dict]) -> Call:
    one = json.loads(json.dumps(d.choice(calls)))  # whoever gets it may change it
    return Call(one["args"], one["sizes"], one["secret"])


def _replayed(mistake: Mistake, known: Mapping[str, dict]) -> Mistake:
    def answer(v: Values, number: int | None = None) -> Values:
        name = mistake.name if number is None else f"{mistake.name} {number}"
        one = known[_told(v)]
        if (said := one["answers"].get(name, one["want"])) is None:
            raise RuntimeError(f"{name} raises an error on these arguments")
        return said

    return replace(mistake, answer=answer, variants=tuple(range(len(mistake.variants))))


def _told(values: Values) -> str:
    return json.dumps(values, sort_keys=True)
