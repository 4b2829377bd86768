"""A loop that ends, and nothing after it."""

from contextlib import contextmanager

KILLED_BY = "fallthrough"


class Dispatcher:
    def __init__(self, keys):
        self.priority = keys
        self.table = {}
        self.include_set = set()
        self.exclude_set = set()

    def register(self, op, key, kernel):
        self.table[(op, key)] = kernel

    def fallthrough(self, op, key):
        self.table[(op, key)] = "fallthrough"

    def call(self, op, *args):
        keys = set()
        for arg in args:
            keys |= arg.keys
        keys |= self.include_set
        keys -= self.exclude_set
        return self.redispatch(op, frozenset(keys), *args)

    def redispatch(self, op, keys, *args):
        for key in self.priority:
            if key not in keys:
                continue
            kernel = self.table.get((op, key))
            if kernel == "fallthrough":
                continue
            if kernel is None:
                raise LookupError(f"{op} has no kernel for {key}")
            return kernel(self, keys, *args)

    @contextmanager
    def include(self, key):
        before = set(self.include_set)
        self.include_set.add(key)
        try:
            yield
        finally:
            self.include_set = before

    @contextmanager
    def exclude(self, key):
        before = set(self.exclude_set)
        self.exclude_set.add(key)
        try:
            yield
        finally:
            self.exclude_set = before
