"""Inside the sandbox: carries out programs that `recording.py` has written, on the values that are judged.

The process has run nothing of the submission: it makes kernels of its text (`kernels.py`), and moves numbers by the
operators in `recording.MOVES`; it computes by those that the referee says the exercise allows. Fresh memory is NaN, so
that what was never written shows.
"""

from __future__ import annotations

import base64
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch.utils._pytree import tree_leaves
from triton.tools.tensor_descriptor import TensorDescriptor

from autograder.inside.kernels import Text
from autograder.inside.numbers import Numbers, moved, multiplications
from autograder.inside.recording import FRESH, MOVES, is_kernel
from autograder.inside.wire import TYPES
from course_lib import device

PLAIN = {"language", "kernel"}
NO_NUMBER = object()
NO_LIMITS: Mapping[str, int] = {}
# bytes that are NaN in every floating type, and a large negative number in the others
NAN = 0xFF


class Player:
    """Programs of one recorder, in their order: later ones may use memories of earlier ones."""

    def __init__(self, cells: Mapping[str, str]):
        self.text = Text(cells)
        self.memories: dict[int, torch.Tensor] = {}  # of bytes
        self.allowed, self.numbers = MOVES, Numbers({})
        # by a call: numbers in memory of its own, those of products of torch, and tensors that were moved or got a type
        self.beside = Counter()
        if triton.knobs.runtime.interpret:
            from course_lib.interpreter import bounds

            bounds.trust_addresses = False  # an address that a tensor holds is one of another process
        else:
            triton.set_allocator(_memory)

    def play(
        self,
        program: Mapping,
        slabs: Sequence[torch.Tensor],
        allowed: Sequence[str] = (),
        most: Mapping[str, int] = NO_LIMITS,
    ) -> Any:
        """What the recorded function returned, with the true values in it. most: numbers that `allowed` work on."""
        self.allowed, self.numbers = MOVES.union(allowed), Numbers(most)
        self.beside = Counter()
        for number, slab in program["arguments"].items():
            self.memories[int(number)] = slabs[slab]
        for number, content in program["constants"].items():
            raw = bytearray(base64.b64decode(content))
            table = torch.frombuffer(raw, dtype=torch.uint8) if raw else torch.empty(0, dtype=torch.uint8)
            self.memories[int(number)] = table.to(device.DEVICE)
        self.text.tell({int(number): told for number, told in program["kernels"].items()}, self._plain)
        self.text.name(program.get("fields", {}))
        for kind, *step in program["steps"]:
            (self._call if kind == "call" else self._launch)(*step)
        return self._value(program["returned"])

    def forget(self, program: Mapping) -> None:
        for number in program["gone"]:
            self.memories.pop(number, None)

    def _call(self, operator: str, args: list, kwargs: dict, numbers: list) -> None:
        name, _, overload = operator.partition(".")
        if f"aten::{name}" not in self.allowed:
            raise ValueError(f"the operator {name[:40]} is not carried out here")
        operators = getattr(torch.ops.aten, name)
        if overload not in operators.overloads():
            raise ValueError(f"there is no operator {operator[:80]}")
        given, named = [*map(self._value, args)], {key: self._value(value) for key, value in kwargs.items()}
        func = getattr(operators, overload)
        _no_value_is_a_size(func._schema, given, named)
        made = func(*given, **named)
        self.beside["multiplied"] += multiplications(func, given, named, made)
        if f"aten::{name}" in MOVES:
            count, other_type = moved(func, given, named, made)
            self.beside += {"moved": count, "cast": other_type}
        made = made if isinstance(made, tuple | list) else (made,)
        if f"aten::{name}" not in MOVES:
            self.numbers.count(name, (*given, *named.values(), *made))
        made = [one for one in made if isinstance(one, torch.Tensor)]  # a gradient that nobody asks for is None
        for number, tensor in zip(numbers, made, strict=True):
            if number is not None:
                whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
                known = {one.data_ptr() for one in self.memories.values()}
                self.beside["made"] += tensor.numel() if whole.data_ptr() not in known else 0
                self.memories[number] = whole.fill_(NAN) if f"aten::{name}" in FRESH else whole

    def _launch(self, number: int, grid: list, args: list, kwargs: dict) -> None:
        kernel = self.text.kernel(number)
        annotated = {n for n, one in inspect.signature(kernel.fn).parameters.items() if one.annotation is not one.empty}
        fixed = {n: n in annotated or n not in kernel.arg_names for n in (*kernel.arg_names, *kwargs)}
        given = {name: self._argument(value, fixed[name]) for name, value in kwargs.items()}
        passed = [self._argument(one, fixed[name]) for name, one in zip(kernel.arg_names, args, strict=False)]
        if len(passed) < len(args):
            raise TypeError(f"{kernel.fn.__name__} takes {len(passed)} arguments")
        kernel[tuple(map(int, grid))](*passed, **given)

    def _argument(self, value: Any, fixed: bool) -> Any:
        """An argument of a launch. A constant of the kernel is no tensor: the interpreter would compute with it."""
        if fixed:
            return self._plain(value)
        if isinstance(value, dict) and "items" in value:
            return tuple(self._argument(one, False) for one in value["items"])
        if isinstance(value, dict) and not value.keys() & {"memory", "descriptor", "reinterpreted"}:
            return self._plain(value)
        return self._value(value)

    def _plain(self, value: Any) -> Any:
        """A number, a string, a type, a kernel, or a tuple of these."""
        if isinstance(value, dict) and "items" in value:
            return tuple(self._plain(one) for one in value["items"])
        if isinstance(value, dict) and "constexpr" in value:
            return tl.constexpr(self._plain(value["constexpr"]))
        found = self._value(value) if not isinstance(value, dict) or value.keys() & PLAIN else NO_NUMBER
        if found is None or isinstance(found, bool | int | float | str | tl.dtype) or is_kernel(found):
            return found
        raise TypeError("a constant of a kernel that is no number, type or kernel")

    def _value(self, value: Any) -> Any:
        if isinstance(value, list):
            raise TypeError("a list that is no value")
        if not isinstance(value, dict):
            return value
        if "memory" in value:
            return self._tensor(value)
        if "items" in value:
            items = [self._value(one) for one in value["items"]]
            return tuple(items) if value["tuple"] else items
        if "torch" in value:
            found = getattr(torch, value["torch"])
            if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
                raise TypeError("no type and no layout")
            return found
        if "device" in value:
            return torch.device(device.DEVICE)
        if "constexpr" in value:
            return tl.constexpr(self._value(value["constexpr"]))
        if "language" in value:
            return getattr(tl, TYPES_OF_TRITON[value["language"]])
        if "descriptor" in value:
            base, shape, strides, block, padding = map(self._value, value["descriptor"])
            return TensorDescriptor(base, shape, strides, block, padding)
        if "reinterpreted" in value:
            return triton.reinterpret(self._value(value["reinterpreted"]), getattr(tl, TYPES_OF_TRITON[value["as"]]))
        return self.text.kernel(value["kernel"])

    def _tensor(self, place: Mapping) -> torch.Tensor:
        whole, dtype = self.memories[place["memory"]], TYPES[place["dtype"]]
        whole = whole[: whole.numel() // dtype.itemsize * dtype.itemsize]
        return whole.view(dtype).as_strided(place["shape"], place["stride"], place["at"])


def _no_value_is_a_size(schema: torch.FunctionSchema, given: Sequence, named: Mapping) -> None:
    """torch would take a tensor of one number for a size, a place or a number to fill with: what is moved where must
    not hang on values."""
    kinds = {one.name: str(one.type) for one in schema.arguments}
    for name, value in (*zip(kinds, given, strict=False), *named.items()):
        if "Tensor" not in kinds.get(name, "") and any(isinstance(one, torch.Tensor) for one in tree_leaves(value)):
            raise TypeError(f"{name} of {schema.name} is a tensor, and no number")


def _memory(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """For descriptors that a kernel makes itself. Who called triton.set_allocator was the recorder."""
    return torch.empty(size, dtype=torch.int8, device=device.DEVICE)


# what Triton's types say of themselves -> their names in its language
TYPES_OF_TRITON = {str(getattr(tl, name)): name for name in dir(tl) if isinstance(getattr(tl, name), tl.dtype)}
