"""The dispatcher that is asked for, and the ones that people write: one method overridden each."""

from __future__ import annotations

from contextlib import contextmanager

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


def shared() -> type[Table]:
    """A dispatcher whose contexts belong to the class: made anew for each scenario."""

    everyones = {"included": frozenset(), "excluded": frozenset()}

    class Shared(Table):
        def __init__(self, keys):
            self.keys, self.entries = list(keys), {}

        included = property(lambda self: everyones["included"], lambda self, v: everyones.update(included=v))
        excluded = property(lambda self: everyones["excluded"], lambda self, v: everyones.update(excluded=v))

    return Shared
