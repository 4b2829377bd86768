"""Keys as bits, as torch has them; contexts are counted."""

from collections import Counter


class Guard:
    def __init__(self, counter, key):
        self.counter, self.key = counter, key

    def __enter__(self):
        self.counter[self.key] += 1

    def __exit__(self, *error):
        self.counter[self.key] -= 1


class Dispatcher:
    def __init__(self, keys):
        self.bit = {key: 1 << n for n, key in enumerate(reversed(keys))}
        self.key = {bit: key for key, bit in self.bit.items()}
        self.kernels, self.passing = {}, {}
        self.inside, self.outside = Counter(), Counter()

    def register(self, op, key, kernel):
        self.kernels.setdefault(op, {})[self.bit[key]] = kernel

    def fallthrough(self, op, key):
        self.passing[op] = self.passing.get(op, 0) | self.bit[key]

    def include(self, key):
        return Guard(self.inside, key)

    def exclude(self, key):
        return Guard(self.outside, key)

    def mask(self, keys):
        return sum(self.bit[key] for key in set(keys))

    def call(self, op, *args):
        bits = self.mask(k for k, n in self.inside.items() if n)
        for arg in args:
            bits |= self.mask(arg.keys)
        bits &= ~self.mask(k for k, n in self.outside.items() if n)
        return self.run(op, bits, args)

    def redispatch(self, op, keys, *args):
        return self.run(op, self.mask(keys), args)

    def run(self, op, bits, args):
        left = bits & ~self.passing.get(op, 0)
        highest = 1 << (left.bit_length() - 1) if left else 0
        kernel = self.kernels.get(op, {})[highest]  # KeyError, which is a LookupError
        return kernel(self, frozenset(self.key[b] for b in self.key if b & bits), *args)
