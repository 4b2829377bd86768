"""ddp.overlap: each gradient travels while the backward pass goes on.

    class Overlap:
        def __init__(self, module): ...
        def no_sync(self): ...      # a context: backward passes inside only accumulate
        def finish(self): ...

As ddp.naive, but the all-reduce of a gradient begins in the background (async_op=True) as soon as the backward pass has
made it, and `finish()` waits. Of several parts all but the last run inside `no_sync()`, where nothing is begun; after
the last, what has come together is averaged.

All ranks begin the same collectives in the same order, also where their shards use different parameters: a collective
of one rank meets that of the other by its place in the order and by nothing else.

Right means: as in ddp.naive; and where every rank uses every parameter, all gradients but one are under way when the
backward pass ends, begun in the background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autograder.exercise import Exercise, Mistake, Values
from autograder.exercises.ddp.averaging import acceptance, cases, oracle, segments, trained_bytes
from autograder.exercises.ddp.averaging_mistakes import HOOKS, SHARED, all_of, said

LATE, HELD, ALONE, NO_CONTEXT = "only begun after", "in the foreground", "without sync", "has no no_sync()"
IN_ORDER = ("Plain", "Fixed")  # layers are used in their order, and all of them


def how(got: Sequence[Mapping], args: Values) -> str | None:
    wrong = without_sync(got, args)
    if wrong or args["model"] not in IN_ORDER:
        return wrong
    least = len(trained_bytes(args["model"])) - 1
    for rank, report in enumerate(got):
        for begun in segments(report, "backward"):
            if len(begun) < least:
                return f"{len(begun)} collectives of rank {rank} were begun in the backward pass, the others {LATE} it"
            if sum(one.background for one in begun) < least:
                return f"rank {rank} waits for collectives inside the backward pass: they run {HELD}"
    return None


def without_sync(got: Sequence[Mapping], args: Values) -> str | None:
    """Whether backward passes that are to accumulate begin nothing."""
    for rank, report in enumerate(got):
        if len(args["shards"][0][0]) > 1:
            alone = segments(report, "backward without sync")
            if not alone:
                return f"it {NO_CONTEXT}"
            if any(alone):
                return f"rank {rank} began collectives in a backward pass {ALONE}"
    return None


LATE_ONES = (
    Mistake(
        "begins_in_finish",
        "Gradients are right, but begin to travel only when the backward pass is over. Begin each in a hook of its "
        "parameter (register_post_accumulate_grad_hook).",
        sign=said(LATE),
    ),
    Mistake(
        "waits_in_the_hook",
        "Each all-reduce is waited for inside the backward pass, which stands still meanwhile. Begin it with "
        "async_op=True, and wait in finish().",
        sign=said(HELD),
    ),
)

OVERLAP = Exercise(
    name="ddp.overlap",
    entry="Overlap",
    points=5,
    kind="distributed",
    cases=cases(),
    oracle=oracle,
    mistakes=all_of(LATE_ONES, HOOKS, SHARED, without=("types_together", "weights_averaged", "changed_on_its_way")),
    returns=("ranks",),
    accept=acceptance(how),
    probe="course_lib.probes.replicas:averaged",
    launches=False,
)
