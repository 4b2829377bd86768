"""The dispatcher that is asked for, and the ones that people write: one method overridden each."""

from __future__ import annotations

from contextlib import contextmanager

from autograder.exercise import Mistake
from autograder.inside.probes.dispatching import ran

FALLTHROUGH = object()


class Table:
    def __init__(self, keys):
        self.keys, self.entries = list(keys), {}
        self.included, self.excluded = frozenset(), frozenset()

    def register(self, op, key, kernel):
        self.entries[op, key] = kernel

    def fallthrough(self, op, key):
        self.entries[op, key] = FALLTHROUGH

    def call(self, op, *args):
        return self.redispatch(op, self.computed(args), *args)

    def computed(self, args) -> frozenset:
        return (self.of_arguments(args) | self.included) - self.excluded

    def of_arguments(self, args) -> frozenset:
        return frozenset().union(*(a.keys for a in args))

    def redispatch(self, op, keys, *args):
        for key in self.order(keys):
            entry = self.entry(op, key)
            if entry is FALLTHROUGH:
                continue
            if entry is None:
                raise LookupError(f"{op} has no kernel for {key}")
            return entry(self, self.handed(keys, key), *args)
        raise LookupError(f"{op}: no key left")

    def order(self, keys) -> list:
        return [key for key in self.keys if key in keys]

    def entry(self, op, key):
        return self.entries.get((op, key))

    def handed(self, keys, key) -> frozenset:
        return frozenset(keys)

    @contextmanager
    def include(self, key):
        before, self.included = self.included, self.included | {key}
        try:
            yield
        finally:
            self.included = before

    @contextmanager
    def exclude(self, key):
        before, self.excluded = self.excluded, self.excluded | {key}
        try:
            yield
        finally:
            self.excluded = before


class IncludeWins(Table):
    def computed(self, args):
        return (self.of_arguments(args) - self.excluded) | self.included


class IncludeIgnored(Table):
    def computed(self, args):
        return self.of_arguments(args) - self.excluded


class FirstArgument(Table):
    def of_arguments(self, args):
        return args[0].keys if args else frozenset()


class CommonKeys(Table):
    def of_arguments(self, args):
        return frozenset.intersection(*(a.keys for a in args)) if args else frozenset()


class LowestFirst(Table):
    def order(self, keys):
        return super().order(keys)[::-1]


class Recomputes(Table):
    """Redispatch asks the arguments again: without a mask, the same kernel for ever."""

    def redispatch(self, op, keys, *args):
        return super().redispatch(op, self.computed(args), *args)


class RedispatchExcludes(Table):
    def redispatch(self, op, keys, *args):
        return super().redispatch(op, frozenset(keys) - self.excluded, *args)


class RedispatchIncludes(Table):
    def redispatch(self, op, keys, *args):
        return super().redispatch(op, (frozenset(keys) | self.included) - self.excluded, *args)


class MissingPasses(Table):
    def entry(self, op, key):
        return super().entry(op, key) or FALLTHROUGH


class FallthroughOfAll(Table):
    def fallthrough(self, op, key):
        super().fallthrough(None, key)

    def entry(self, op, key):
        return self.entries.get((None, key)) or super().entry(op, key)


class FallthroughDropped(Table):
    """Keys that were passed are taken out of what the kernel is given."""

    def redispatch(self, op, keys, *args):
        kept = {key for key in keys if self.entry(op, key) is not FALLTHROUGH}
        return super().redispatch(op, kept, *args)


class PassedDropped(Table):
    """Only those above the kernel, as a loop meets them."""

    def handed(self, keys, key):
        passed = self.keys[: self.keys.index(key)]
        return frozenset(keys).difference(passed)


class EmptySetPasses(Table):
    """Where no key is left, nothing is raised."""

    def redispatch(self, op, keys, *args):
        entries = [self.entry(op, key) for key in self.order(keys)]
        return None if all(entry is FALLTHROUGH for entry in entries) else super().redispatch(op, keys, *args)


class OwnKeyDropped(Table):
    def handed(self, keys, key):
        return frozenset(keys) - {key}


class KeptAfterErrors(Table):
    @contextmanager
    def include(self, key):
        before, self.included = self.included, self.included | {key}
        yield
        self.included = before

    @contextmanager
    def exclude(self, key):
        before, self.excluded = self.excluded, self.excluded | {key}
        yield
        self.excluded = before


class RemovedAtTheEnd(Table):
    @contextmanager
    def include(self, key):
        self.included |= {key}
        try:
            yield
        finally:
            self.included -= {key}

    @contextmanager
    def exclude(self, key):
        self.excluded |= {key}
        try:
            yield
        finally:
            self.excluded -= {key}


class EmptiedAtTheEnd(Table):
    @contextmanager
    def include(self, key):
        self.included |= {key}
        try:
            yield
        finally:
            self.included = frozenset()

    @contextmanager
    def exclude(self, key):
        self.excluded |= {key}
        try:
            yield
        finally:
            self.excluded = frozenset()


def _shared() -> type[Table]:
    """A dispatcher whose contexts belong to the class: made anew for each scenario."""

    everyones = {"included": frozenset(), "excluded": frozenset()}

    class Shared(Table):
        def __init__(self, keys):
            self.keys, self.entries = list(keys), {}

        included = property(lambda self: everyones["included"], lambda self, v: everyones.update(included=v))
        excluded = property(lambda self: everyones["excluded"], lambda self, v: everyones.update(excluded=v))

    return Shared


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
        answer=lambda v: {"events": ran(_shared(), v["scenario"])},
    ),
    Mistake(
        "kept_after_an_error",
        "After an error a context was not undone: put what undoes it into `finally`.",
        **_runs(KeptAfterErrors),
    ),
    Mistake(
        "inner_context_ends_the_outer",
        "The end of an inner context ended the outer one too: restore what was before, do not remove the key.",
        **_runs(RemovedAtTheEnd, EmptiedAtTheEnd),
    ),
    Mistake(
        "include_beats_exclude",
        "A key that is both included and excluded was used: exclude has the last word.",
        **_runs(IncludeWins),
    ),
    Mistake(
        "include_ignored",
        "Included keys were not added to those of the arguments.",
        **_runs(IncludeIgnored),
    ),
    Mistake(
        "redispatch_looks_at_contexts",
        "`redispatch` takes the keys as they are given: neither include nor exclude changes them.",
        **_runs(RedispatchExcludes, RedispatchIncludes),
    ),
    Mistake(
        "missing_passes_on",
        "A key for which nothing is registered was passed over: that is an error, only a fallthrough passes on.",
        **_runs(MissingPasses),
    ),
    Mistake(
        "empty_set_passes",
        "Nothing was raised where no key is left: after the last key of the set comes a LookupError.",
        **_runs(EmptySetPasses),
    ),
    Mistake(
        "fallthrough_of_all_operators",
        "A fallthrough that was registered for one operator was taken for all of them.",
        **_runs(FallthroughOfAll),
    ),
    Mistake(
        "fallthrough_dropped_from_the_set",
        "The keys that were passed over are missing in the set that the kernel got: it gets the whole set.",
        **_runs(FallthroughDropped, PassedDropped),
    ),
    Mistake(
        "own_key_dropped",
        "The kernel got the set without its own key: it gets the whole set, and masks itself when it redispatches.",
        **_runs(OwnKeyDropped),
    ),
    Mistake(
        "first_argument_only",
        "Only some arguments were asked for their keys: take the union of all.",
        **_runs(FirstArgument, CommonKeys),
    ),
    Mistake(
        "priority_reversed",
        "The lowest key was taken first: the list of keys begins with the highest.",
        **_runs(LowestFirst),
    ),
    Mistake(
        "redispatch_recomputes",
        "`redispatch` computed the set from the arguments again, so a kernel that had masked itself was called again. "
        "Use the keys that are given.",
        **_runs(Recomputes),
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
