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

Right means: as in ddp.naive; and where layers are used in their order, all of them on every rank, the gradients of all
layers but the first are under way when the backward pass reaches the first, and all but one when it ends, begun in the
background.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autograder.exercise import Exercise, Mistake, Values
from autograder.exercises.ddp.averaging import Begun, acceptance, cases, oracle, segments, trained_bytes
from autograder.exercises.ddp.averaging_mistakes import HOOKS, LATE, SHARED, all_of, said

HELD, ALONE, NO_CONTEXT = "in the foreground", "without sync", "has no no_sync()"
BEHIND = "had begun when the backward pass reached the first layer"
IN_ORDER = ("Plain", "Wide")  # layers are used in their order, and all of them
OF_THE_FIRST = 2  # parameters of their first layer
FLAGS = 16  # bytes that may travel with a gradient: who has one


def how(got: Sequence[Mapping], args: Values) -> str | None:
    wrong = without_sync(got, args)
    if wrong or args["model"] not in IN_ORDER:
        return wrong
    sizes = [nbytes for _, nbytes in trained_bytes(args["model"])]
    for rank, report in enumerate(got):
        wrong = not_overlapped(report, rank, least=len(sizes) - 1, early=len(sizes) - OF_THE_FIRST, sizes=sizes)
        if wrong:
            return wrong
    return None


def not_overlapped(report: Mapping, rank: int, least: int, early: int, sizes: Sequence[int] = ()) -> str | None:
    """Whether fewer collectives than `least` begin inside a backward pass, or than `early` before its last layer.

    sizes: bytes of what is to travel. What holds something else is not counted: gradients may travel later.
    """
    for begun, before in zip(segments(report, "backward"), segments(report, "backward", early=True), strict=True):
        if sizes:
            begun, before = _of_sizes(begun, sizes), _of_sizes(before, sizes)
        if len(begun) < least:
            those = f"{len(begun)} collectives with gradients of rank {rank}"
            return f"{those} were begun in the backward pass, the others {LATE} it"
        if sum(one.background for one in begun) < least:
            return f"rank {rank} waits for collectives inside the backward pass: they run {HELD}"
        if len(before) < early:
            return f"{len(before)} collectives with gradients of rank {rank} {BEHIND}; {early} could have"
    return None


def _of_sizes(begun: Sequence[Begun], sizes: Sequence[int]) -> list[Begun]:
    """One for each size at most."""
    left, found = sorted(begun, key=lambda one: one.nbytes), []
    for size in sorted(sizes):
        fits = next((one for one in left if size <= one.nbytes <= size + FLAGS), None)
        if fits:
            left.remove(fits)
            found.append(fits)
    return found


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
        "waits_for_the_first",
        "All wait for the gradient of the first layer, which comes last: nothing travels while the backward pass goes "
        "on. Begin in the reverse of the module's order.",
        sign=said(BEHIND),
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
    about="communication that runs while the backward pass goes on, in one order on all ranks",
    point=("two ranks", "three ranks", "several parts", "used on one rank only"),
    kind="distributed",
    cases=cases(),
    oracle=oracle,
    mistakes=all_of(
        HOOKS, LATE_ONES, SHARED, without=("types_together", "weights_averaged", "changed_on_its_way", "before_full")
    ),
    returns=("ranks",),
    accept=acceptance(how),
    probe="autograder.inside.probes.replicas:averaged",
    launches=False,
)
