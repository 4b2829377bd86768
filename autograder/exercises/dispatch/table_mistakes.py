"""What people get wrong about a dispatcher."""

from __future__ import annotations

from autograder.exercise import Mistake
from autograder.exercises.recorded import apart
from autograder.inside.probes.dispatching import ran

try:
    import autograder.exercises.dispatch.table_truth as truth
except ModuleNotFoundError as missing:
    truth = apart(missing)


def _runs(*kinds):
    return {"answer": lambda v, kind: {"events": ran(kind, v["scenario"])}, "variants": kinds}


MISTAKES = (
    Mistake(
        "fallthrough_loops",
        "A fallthrough came back to itself: it has to go on with the next key of the set, not with the same set.",
        sign=lambda e: e.failed("fallthrough") and e.passed("down the line") and _too_deep(e, "fallthrough"),
    ),
    Mistake(
        "shared_by_all",
        "What one dispatcher includes or excludes shows in another one: keep it in the instance, not in the class or "
        "the module.",
        answer=lambda v: {"events": ran(truth.shared(), v["scenario"])},
    ),
    Mistake(
        "kept_after_an_error",
        "After an error a context was not undone: put what undoes it into `finally`.",
        **_runs(truth.KeptAfterErrors),
    ),
    Mistake(
        "inner_context_ends_the_outer",
        "The end of an inner context ended the outer one too: restore what was before, do not remove the key.",
        **_runs(truth.RemovedAtTheEnd, truth.EmptiedAtTheEnd),
    ),
    Mistake(
        "include_beats_exclude",
        "A key that is both included and excluded was used: exclude has the last word.",
        **_runs(truth.IncludeWins),
    ),
    Mistake(
        "include_ignored",
        "Included keys were not added to those of the arguments.",
        **_runs(truth.IncludeIgnored),
    ),
    Mistake(
        "redispatch_looks_at_contexts",
        "`redispatch` takes the keys as they are given: neither include nor exclude changes them.",
        **_runs(truth.RedispatchExcludes, truth.RedispatchIncludes),
    ),
    Mistake(
        "missing_passes_on",
        "A key for which nothing is registered was passed over: that is an error, only a fallthrough passes on.",
        **_runs(truth.MissingPasses),
    ),
    Mistake(
        "empty_set_passes",
        "Nothing was raised where no key is left: after the last key of the set comes a LookupError.",
        **_runs(truth.EmptySetPasses),
    ),
    Mistake(
        "fallthrough_of_all_operators",
        "A fallthrough that was registered for one operator was taken for all of them.",
        **_runs(truth.FallthroughOfAll),
    ),
    Mistake(
        "fallthrough_dropped_from_the_set",
        "The keys that were passed over are missing in the set that the kernel got: it gets the whole set.",
        **_runs(truth.FallthroughDropped, truth.PassedDropped),
    ),
    Mistake(
        "own_key_dropped",
        "The kernel got the set without its own key: it gets the whole set, and masks itself when it redispatches.",
        **_runs(truth.OwnKeyDropped),
    ),
    Mistake(
        "first_argument_only",
        "Only some arguments were asked for their keys: take the union of all.",
        **_runs(truth.FirstArgument, truth.CommonKeys),
    ),
    Mistake(
        "priority_reversed",
        "The lowest key was taken first: the list of keys begins with the highest.",
        **_runs(truth.LowestFirst),
    ),
    Mistake(
        "redispatch_recomputes",
        "`redispatch` computed the set from the arguments again, so a kernel that had masked itself was called again. "
        "Use the keys that are given.",
        **_runs(truth.Recomputes),
    ),
    Mistake(
        "order_of_the_set",
        "The kernel of another key of the set ran: walk over the keys in the order that the dispatcher was made with. "
        "A set has no order of its own.",
        sign=lambda e: 2 * sum(map(_another_key, e.failing)) > len(e.failing),
    ),
)


def _another_key(t) -> bool:
    """What differs first is whose turn it is, with the same operator and the same set."""
    pairs = zip(t.outcome.outputs.get("events") or (), t.want["events"], strict=False)
    got, want = next(((here, true) for here, true in pairs if here != true), ((), ()))
    return len(got) == len(want) == 3 and (got[0], got[2]) == (want[0], want[2])


def _too_deep(e, case: str) -> bool:
    tried = [t for t in e.tried if t.case.name == case]
    return any("RecursionError" in (t.outcome.error or str(t.outcome.outputs.get("events"))) for t in tried)
