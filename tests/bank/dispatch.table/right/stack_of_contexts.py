"""One stack of what contexts did; sets are read from it."""

class Dispatcher:
    def __init__(self, keys):
        self.rank = {key: n for n, key in enumerate(keys)}
        self.rules = {}
        self.stack = []

    def register(self, op, key, kernel):
        self.rules[op, key] = kernel

    def fallthrough(self, op, key):
        self.rules[op, key] = None

    class _Pushed:
        def __init__(self, stack, entry):
            self.stack, self.entry = stack, entry

        def __enter__(self):
            self.stack.append(self.entry)

        def __exit__(self, kind, error, trace):
            self.stack.pop()
            return False

    def include(self, key):
        return self._Pushed(self.stack, ("include", key))

    def exclude(self, key):
        return self._Pushed(self.stack, ("exclude", key))

    def call(self, op, *args):
        keys = {key for arg in args for key in arg.keys} | {k for what, k in self.stack if what == "include"}
        return self.redispatch(op, keys - {k for what, k in self.stack if what == "exclude"}, *args)

    def redispatch(self, op, keys, *args):
        for key in sorted(keys, key=self.rank.__getitem__):
            if (op, key) not in self.rules:
                raise LookupError(f"{op} has no rule for {key}")
            if self.rules[op, key] is not None:
                return self.rules[op, key](self, keys, *args)
        raise LookupError(op)
