"""Attention in tiles at work: an error where a number for each key is made at once, whatever it lies in."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

AT_ONCE = "all scores at once"
LONG = 32  # blocks in a row, from which on memory is looked at: six copies of a block's scores are a fifth of all
VIEWS = ("_unsafe_view", "_reshape_alias")
JOINS = ("cat", "stack", "copy_", "constant_pad_nd")  # of several tensors, and nothing is computed
ELSEWHERE = ("numpy", "tolist", "__array__", "__dlpack__")


class _Keys:
    """Memory that holds keys or values: how far apart they lie in it, and how many."""

    def __init__(self, tensor: torch.Tensor, dimension: int):
        self.storage = StorageWeakRef(tensor.untyped_storage())  # another tensor may get its memory later
        self.stride, self.count = tensor.stride(dimension), tensor.shape[dimension]

    def touched(self, view: torch.Tensor) -> int:
        """How many of them a view has."""
        return math.prod(self._along(*dimension) for dimension in zip(view.shape, view.stride(), strict=True))

    def _along(self, size: int, stride: int) -> int:
        if stride >= self.stride:
            return size if stride < self.stride * self.count else 1
        return max(1, -(-size * stride // self.stride))

    def dimension(self, view: torch.Tensor) -> int:
        """Along which of its dimensions a view has the most."""
        found = [self._along(*dimension) for dimension in zip(view.shape, view.stride(), strict=True)]
        return max(range(len(found)), key=found.__getitem__)


class _InTiles(TorchDispatchMode):
    """Refuses attention ready-made, an operator that brings more than `block` keys or values together with another
    tensor, a number for each key at once, of every query or of one query by itself, and, in a long row, tensors that
    take as much memory as all scores.
    """

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int):
        super().__init__()
        self.queries, self.keys, self.head_size, self.block = q.shape[2], k.shape[2], q.shape[3], block
        self.held = {_memory(x): _Keys(x, 2) for x in (k, v)}
        self.given = {_memory(x) for x in (q, k, v)}
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        scores = 4 * q[..., 0].numel() * self.keys
        inputs = 4 * sum(x.numel() for x in (q, k, v, q))
        self.allowed = 3 * inputs + scores // 4 if self.keys >= LONG * block else math.inf

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().partition("::")[2].partition(".")[0]
        if "attention" in name:
            raise ValueError(f"{name} was called: write the walk over the keys yourself")
        given = [x for x in _tensors((args, kwargs)) if x.numel() > 1]
        held = [(x, keys) for x in given if (keys := self.held.get(_memory(x))) and not keys.storage.expired()]
        wide = [(x, keys) for x, keys in held if keys.touched(x) > self.block]
        view = func.is_view or name in VIEWS
        if wide and len(given) > 1 and not view and name not in JOINS:
            count = max(keys.touched(x) for x, keys in wide)
            raise ValueError(f"{AT_ONCE}: {name} takes {count} keys or values, take `block` at a time")
        out = func(*args, **(kwargs or {}))
        self._count(out, name)
        if isinstance(out, torch.Tensor) and (out.is_floating_point() or out.is_complex()):
            if held and not view and (name in JOINS or len(given) == 1):  # a copy, which may become a part of all keys
                x, keys = held[0]
                if (dimension := _likeliest(out, x, keys.dimension(x))) is not None:
                    self.held[_memory(out)] = _Keys(out, dimension)
            if self._is_of_all_keys(out.shape):
                raise ValueError(f"{AT_ONCE}: {name} made {tuple(out.shape)}, take `block` keys at a time")
        return out

    def _count(self, made: Any, name: str) -> None:
        for storage in [x.untyped_storage() for x in _tensors(made) if x.dtype != torch.bool]:  # a mask may be whole
            if storage.data_ptr() not in self.given:
                self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        if sum(size for _, size in self.alive.values()) > self.allowed:
            self.alive = {at: (storage, size) for at, (storage, size) in self.alive.items() if not storage.expired()}
            held = sum(size for _, size in self.alive.values())
            if held > self.allowed:
                raise ValueError(f"{AT_ONCE}: {held} bytes are held after {name}, a block of keys takes less")

    def _is_of_all_keys(self, shape: torch.Size) -> bool:
        whole = Counter((self.queries, self.keys)) <= Counter(shape)
        transposed = shape[-2:] == (self.head_size, self.keys)  # k or v itself
        row = self.queries != self.keys and shape[-1:] == (self.keys,) and not transposed
        return whole or row


class _InTorch(TorchFunctionMode):
    """Refuses to hand numbers to what no mode sees."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in ELSEWHERE:
            raise ValueError(f"{func.__name__} was called: compute with torch")
        return func(*args, **(kwargs or {}))


def _likeliest(out: torch.Tensor, of: torch.Tensor, dimension: int) -> int | None:
    """Along which dimension of a copy the keys lie that lay along this one."""
    if out.dim() == of.dim():
        return dimension
    return next((at for at, size in enumerate(out.shape) if size == of.shape[dimension]), None)


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def in_tiles(function: Callable, q, k, v, causal: bool, scale: float, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What the function returns; nothing is refused where a row is one block, or where each key is one."""
    if block == 1 or block >= k.shape[2]:
        return function(q, k, v, causal, scale, block)
    with _InTorch(), _InTiles(q, k, v, block):
        return function(q, k, v, causal, scale, block)
