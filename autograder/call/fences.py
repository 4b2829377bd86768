"""Memory with fences: every tensor that a submission sees lies between guard bands that show a stray read or write.

A slab is one flat allocation: guard, the tensor (with its gaps, if it is strided), guard. The bands and gaps of
inputs hold one private NaN, those of outputs another, so a value copied from beyond an input can be told apart from
an untouched output, bit by bit. Types without NaN hold a sentinel. Of an output every second element of bands and gaps
holds a number: what is turned or scaled in place leaves a NaN as it was, and a number not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from autograder.judging.outcome import Damage

GUARD = 1 << 16  # elements on either side: more than the largest block that a lesson uses

# An offset past 2^31 that was computed in 32 bits wraps round to at most this far before the tensor. Memory of our own
# there turns a fault, which ends the process, into a wrong answer with a name.
FAR = 1 << 31  # elements
FAR_BYTES = 4 << 30  # more than this for two-byte elements would not fit beside three arrays of 2^31 fp32

# bit patterns: quiet NaNs with payloads that arithmetic does not produce by itself
_BITS = {
    torch.float64: (torch.int64, 0x7FF85A5A5A5A5A5A, 0x7FF8A5A5A5A5A5A5),
    torch.float32: (torch.int32, 0x7FC5A5A5, 0x7FCA5A5A),
    torch.float16: (torch.int16, 0x7E5A, 0x7EA5),
    torch.bfloat16: (torch.int16, 0x7FDA, 0x7FE5),
    torch.int64: (torch.int64, 0x5A5A5A5A5A5A5A5A, 0x2525252525252525),
    torch.int32: (torch.int32, 0x5A5A5A5A, 0x25252525),
    torch.int16: (torch.int16, 0x5A5A, 0x2525),
    torch.int8: (torch.int8, 0x5A, 0x25),
    torch.uint8: (torch.uint8, 0x5A, 0x25),
}
_BETWEEN = {  # some 218 in each type
    torch.float64: 0x406B4B4B4B4B4B4B,
    torch.float32: 0x435A5A5A,
    torch.float16: 0x5AD2,
    torch.bfloat16: 0x435A,
}


@dataclass(frozen=True)
class Fenced:
    """A tensor in its slab, with what is needed to say later what was touched."""

    view: torch.Tensor  # what the submission is given
    original: torch.Tensor  # the values as drawn
    slab: torch.Tensor
    poison: int
    is_output: bool
    front: int = GUARD  # elements of the slab before the tensor

    def _bits(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(_BITS[tensor.dtype][0])

    def damage(self) -> Damage:
        """What was written outside the tensor."""
        extent = self.slab.numel() - self.front - GUARD
        bits = self._bits(self.slab)
        stray = bits != self.poison
        if between := _between(self.slab.dtype, self.is_output):
            torch.ne(bits[1::2], between, out=stray[1::2])
        stray.as_strided(self.view.shape, self.view.stride(), self.front).fill_(False)
        counts = [int(part.sum()) for part in stray.split([self.front, extent, GUARD])]
        values = self.slab[stray] if sum(counts) else self.slab[:0]
        nan = self.slab.dtype.is_floating_point and bool(torch.isnan(values).all())
        return Damage(*counts, nan=nan)

    def changed(self) -> int:
        """How many elements of an input no longer hold the bits they were given."""
        if self.is_output:
            return 0
        return int((self._bits(self.view.contiguous()) != self._bits(self.original.contiguous())).sum())

    def unwritten(self) -> int:
        """Elements of an output that hold poison still; of integers, which may be that number, all elements or none."""
        count = int((self._bits(self.view.contiguous()) == self.poison).sum()) if self.is_output else 0
        return count if self.view.is_floating_point() or count == self.view.numel() else 0


def input_poison(dtype: torch.dtype) -> int:
    """What fences around inputs of a type hold, as bits; of an integer type its value."""
    return _BITS[dtype][1]


def _between(dtype: torch.dtype, is_output: bool) -> int | None:
    """What every second element of fences holds, as bits; None where all hold poison."""
    return _BETWEEN.get(dtype) if is_output else None


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last, both included."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def fence(tensor: torch.Tensor, is_output: bool, allocate: Callable | None = None) -> Fenced:
    """A copy of `tensor`, same strides, inside fences; an output starts as poison everywhere.

    `allocate(elements, dtype)` provides the slab, where it must lie in memory of a special kind.
    """
    extent = span(tensor.shape, tensor.stride())
    bits, of_inputs, of_outputs = _BITS[tensor.dtype]
    poison = of_outputs if is_output else of_inputs
    front = FAR + GUARD if extent > FAR and FAR * tensor.element_size() <= FAR_BYTES else GUARD
    elements = front + extent + GUARD
    slab = allocate(elements, bits) if allocate else torch.empty(elements, dtype=bits, device=tensor.device)
    slab.fill_(poison)
    if between := _between(tensor.dtype, is_output):
        slab[1::2] = between
        slab.as_strided(tensor.shape, tensor.stride(), front).fill_(poison)
    slab = slab.view(tensor.dtype)
    view = slab.as_strided(tensor.shape, tensor.stride(), front)
    if not is_output:
        view.copy_(tensor)
        if not math.prod(tensor.shape):
            view = slab[front:front].view(tensor.shape)
    return Fenced(view, tensor, slab, poison, is_output, front)
