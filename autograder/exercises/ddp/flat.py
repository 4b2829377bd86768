"""ddp.flat: the same as ddp.naive, with one all-reduce for all gradients.

    class Flat:
        def __init__(self, module): ...
        def finish(self): ...

As there, but `finish()` begins one collective for the gradients of each type of number, and at most one more: who has
used what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autograder.exercise import Exercise, Mistake, Values
from autograder.exercises.ddp.averaging import acceptance, cases, oracle, segments, trained_bytes
from autograder.exercises.ddp.averaging_mistakes import FLAGS_APART, SHARED, all_of, answer, flags_apart, said
from autograder.exercises.ddp.replicas import in_single_precision

TOO_MANY = "collectives, where"


def how(got: Sequence[Mapping], args: Values) -> str | None:
    enough = _types(args) + 1
    for rank, report in enumerate(got):
        most = max(len(begun) for begun in segments(report, "finish"))
        if most > enough:
            return f"finish() on rank {rank} began {most} {TOO_MANY} {enough} are enough"
    return None


def _types(args: Values) -> int:
    return len({dtype for dtype, _ in trained_bytes(args["model"])})


MISTAKES = (
    Mistake("flags_one_by_one", FLAGS_APART, sign=flags_apart(TOO_MANY, _types)),
    Mistake(
        "one_by_one",
        "Gradients are right, but travel in many collectives: put them into one buffer for each type.",
        sign=said(TOO_MANY),
    ),
    Mistake(
        "single_precision",
        "All gradients went through fp32, and those of fp64 have lost half of their digits. One buffer for each type.",
        answer(combine=in_single_precision),
    ),
    *all_of(SHARED, without=("changed_on_its_way",)),
)

FLAT = Exercise(
    name="ddp.flat",
    entry="Flat",
    points=3,
    about="one buffer for all gradients",
    point=("two ranks", "three ranks", "two types of numbers"),
    kind="distributed",
    cases=cases(),
    oracle=oracle,
    mistakes=MISTAKES,
    returns=("ranks",),
    accept=acceptance(how),
    probe="autograder.inside.probes.replicas:averaged",
    launches=False,
)
