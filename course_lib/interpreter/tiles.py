"""What a kernel in Gluon works with, on the host: numbers, tiles, shared memory, barriers, and what is on its way."""

import functools
import types
from collections.abc import Callable

import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["Barrier", "Barriers", "Described", "InFlight", "Int", "Memory", "Pointer", "Sent", "Tile", "of_tile", "up"]


class Int(int):
    """An integer of the GPU: // rounds towards zero there, % has the sign of the left side. Nobody may rely on it."""

    def __floordiv__(self, other):
        assert self >= 0 and other > 0, f"{int(self)} // {int(other)}"
        return Int(int(self) // int(other))

    def __mod__(self, other):
        assert self >= 0 and other > 0, f"{int(self)} % {int(other)}"
        return Int(int(self) % int(other))

    def to(self, kind):
        return self


def _kept(name: str) -> Callable:
    def method(self, other):
        return Int(getattr(int, name)(int(self), int(other))) if isinstance(other, int) else NotImplemented

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "rshift"):
    setattr(Int, f"__{_name}__", _kept(f"__{_name}__"))


def up(a: int, b: int) -> Int:
    """a / b, rounded as a GPU does (a + b - 1) / b."""
    a += b - 1
    return Int(abs(a) // b * (1 if a >= 0 else -1))


class Tile(torch.Tensor):
    """What a job holds in registers."""

    type = types.SimpleNamespace(layout=None)

    def split(self):
        """The two halves along the last dimension, which has two."""
        return self[..., 0], self[..., 1]


def of_tile(x: torch.Tensor) -> Tile:
    return x.as_subclass(Tile)


class Pointer:
    """An address, or a tile of them."""

    def __init__(self, memory: torch.Tensor, offset=0):
        self.memory, self.offset = memory.view(-1), offset

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)

    @property
    def value(self):
        return self.memory[self.offset]

    @value.setter
    def value(self, new):
        self.memory[self.offset] = new


def _with_what_is_before(x: torch.Tensor, elements: int) -> torch.Tensor:
    """The memory of x, a copy, behind so many elements that are no numbers."""
    values = x.as_strided([1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride()))], [1])
    return torch.cat([x.new_full([elements], float("nan")), values])


class Described:
    """A tensor as the copy engine knows it."""

    def __init__(self, desc: TensorDescriptor):
        self.begins_before = not isinstance(desc.base, torch.Tensor)
        base = _with_what_is_before(desc.base.tensor, -desc.base.elements) if self.begins_before else desc.base
        self.memory = base.as_strided(desc.shape, desc.strides)
        self.dtype, self.layout = desc.base.dtype, desc.layout
        self.block_type = types.SimpleNamespace(shape=list(desc.block_shape))

    def region(self, coord):
        """Of the tile at these coordinates, what lies in the tensor: where that is there, and in the tile."""
        sizes = [max(min(b, n - c), 0) for c, b, n in zip(coord, self.block_type.shape, self.memory.shape)]
        return tuple(slice(c, c + size) for c, size in zip(coord, sizes)), tuple(map(slice, sizes))

    def tile(self, coord) -> torch.Tensor:
        """With zeros for what lies outside."""
        there, inside = self.region(coord)
        # An H200 reported an illegal access then, where memory before the tensor was not there.
        outside = any(part.stop == 0 for part in inside)
        assert not (self.begins_before and outside), f"nothing of the tile at {list(coord)} lies in the tensor"
        tile = torch.zeros(self.block_type.shape, dtype=self.dtype)
        tile[inside] = self.memory[there]
        return tile


class Memory:
    """A part of shared memory."""

    def __init__(self, values: torch.Tensor, layout=None):
        self.values, self.layout = values, layout
        self.shape, self.dtype = list(values.shape), values.dtype

    def index(self, place):
        return Memory(self.values[place], self.layout)

    def reshape(self, shape):
        return Memory(self.values.view(shape), self.layout)

    def permute(self, order):
        return Memory(self.values.permute(order), self.layout)

    def slice(self, start, length, dim=0):
        return Memory(self.values.narrow(dim, start, length), self.layout)

    def _reinterpret(self, kind, shape, layout):
        return Memory(self.values.reshape(-1).view(kind)[: torch.Size(shape).numel()].view(shape), layout)

    def load(self, layout):
        return of_tile(self.values.clone())

    def store(self, x):
        assert x.dtype == self.dtype and list(x.shape) == self.shape, (x.dtype, self.dtype, x.shape, self.shape)
        self.values.copy_(x)


class Barrier:
    """It is passed when so many have arrived and so many bytes; then it counts anew."""

    def init(self, count: int):
        self.count = self.missing = count
        self.bytes = self.passed = 0

    def hears(self, arrivals: int, more_bytes: int):
        self.missing, self.bytes = self.missing - arrivals, self.bytes + more_bytes
        assert self.missing >= 0, "more arrive at a barrier than it counts"
        if self.missing == self.bytes == 0:
            self.missing, self.passed = self.count, self.passed + 1

    def is_passed(self, parity: int) -> bool:
        """Of the last two rounds, the one with this parity."""
        return self.passed % 2 != parity


class Barriers:
    def __init__(self, shape):
        self.shape, self._each = list(shape), [Barrier() for _ in range(shape[0])]

    def index(self, place) -> Barrier:
        return self._each[place]


class InFlight:
    """A product that nobody has waited for. It has no value, so whoever uses it fails."""

    def __init__(self, product: Callable[[], torch.Tensor]):
        self._product = product

    @functools.cached_property
    def made(self) -> Tile:
        return of_tile(self._product())


class Sent:
    """A tile on its way out of shared memory."""

    def __init__(self, desc: Described, coord, tile: Memory, adds: bool):
        self._there, self._inside = desc.region(coord)
        self._desc, self._tile, self._adds = desc, tile, adds
        self._values, self._written = None, False

    def read(self):
        if self._values is None:
            self._values = self._tile.values.view(self._desc.block_type.shape)[self._inside].clone()

    def write(self):
        self.read()
        if not self._written:
            self._written, there = True, self._desc.memory[self._there]
            there.copy_(there + self._values if self._adds else self._values)
