"""Inside the sandbox: what a submission's function launches and moves, written down as a program.

The function runs on tensors of the right sizes, strides and types that hold noise, and its kernels do not run. So the
code around the kernels never sees a value that is judged. Another process, `playing.py`, carries the program out on
the true values with the kernels of the submission's text. It can do nothing else than what is described here:

    memories   numbers; some are arguments ("arguments": number -> slab), some have known content ("constants")
    kernels    where each stands in the text, and what the names in it stand for
    steps      ["call", operator, args, kwargs, memories of its results], one of torch's that move numbers, or one that
               the exercise allows
               ["launch", kernel, grid, args, kwargs]
    fields     names in named tuples that kernels are given -> their place there; None for one that has several
    returned   what the function returned; a tensor is a place in a memory
    gone       memories that nothing can reach any more
    strangers  operators of torch that compute, and how often: nothing here can carry them out
    why_not    what cannot be written down, or ""

All of it comes from the process of the submission and can be forged. That gains nothing: a forged program is carried
out too, and whatever it says, only kernels of the text compute.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import functools
import inspect
import textwrap
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.tools.tensor_descriptor import TensorDescriptor

from autograder.inside import calling
from autograder.inside.numbers import moved, multiplications
from autograder.inside.wire import name_of
from course_lib.interpreter.launch import is_running

# Operators that make, move and fill memory: none computes, and what they do depends on no value.
MOVES = {
    f"aten::{name}"
    for name in """
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided zeros zeros_like new_zeros ones ones_like
    new_ones full full_like new_full arange _to_copy clone copy_ fill_ zero_ cat stack constant_pad_nd repeat
    scalar_tensor
    """.split()
}
FRESH = {name for name in MOVES if "empty" in name}  # of which the content is nothing yet
LOOKS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"}  # numbers that Python is told
CONSTANTS = 1 << 22  # bytes of tables that no step has made
STEPS = 20_000  # of one call
REFUSALS = TypeError, ValueError, OverflowError
PLAIN = bool, int, float, str
FIXED = bool | int | float | str | None


class Unwritable(TypeError):
    """Something that a program has no form for."""


class Recorder:
    """Programs of the calls of one worker. Memories keep their numbers from call to call."""

    def __init__(self):
        self._known: dict[int, tuple[int, StorageWeakRef]] = {}  # a storage's address -> its number
        self._count = 0
        self._kernels: dict[Any, int] = {}
        self._program: dict[str, Any] = {}
        self._allowed: set[str] = MOVES
        self._looked = False  # at numbers, after a launch
        self._one_by_one = threading.RLock()  # backward passes of a GPU launch from a thread of autograd's

    def record(
        self, function: Callable, args: Sequence[Any], slabs: Sequence[torch.Tensor], allowed: Sequence[str] = ()
    ) -> tuple[Any, dict]:
        """The call's answer, and the program that its launches and moves are. allowed: operators that may compute."""
        program = {"arguments": {}, "constants": {}, "kernels": {}, "steps": [], "returned": None, "gone": []}
        self._program = program | {"fields": {}, "strangers": Counter(), "why_not": ""}
        self._allowed, self._looked = MOVES.union(allowed), False
        for number, slab in enumerate(slabs):
            self._program["arguments"][self._new(slab.untyped_storage())] = number
        with launches_go_to(self._launched), _Watch(self._called), _Whole(self._program["strangers"]):
            answer = calling.call(function, args)
        if answer.error is not None and self._looked:  # at what a kernel would have written
            self._program["why_not"] = f"it looks at what a kernel wrote, and raised {answer.error}"[:300]
        if answer.error is None:
            self._attempt(lambda: self._program.update(returned=self._value(answer.value)))
        self._program["gone"] = self._forget()
        return answer, self._program

    # ---------------------------------------------------------------------------------------- what is seen

    def _called(self, func, args, kwargs, results) -> None:
        """An operator of torch has run."""
        name = func._schema.name
        self._looked |= name in LOOKS and any(step[0] == "launch" for step in self._program["steps"])
        tensors = _tensors(results)
        new = [self._number(one) is None for one in tensors]
        if name not in self._allowed:
            if _computes(func, results, new):
                self._program["strangers"][name] += 1
            return  # what computes nothing only looks at memory in another way
        if not func._schema.is_mutable and not any(new):
            return

        def write() -> None:
            named = {name: self._value(value) for name, value in kwargs.items()}
            step = ["call", _operator(func), [self._value(one) for one in args], named]
            numbers = [self._new(t.untyped_storage()) if fresh else None for t, fresh in zip(tensors, new, strict=True)]
            self._step([*step, numbers])

        self._attempt(write)

    def _launched(self, function, grid, args, kwargs) -> None:
        """A kernel would have run."""
        self._named((*args, *kwargs.values()))
        self._attempt(
            lambda: self._step(
                [
                    "launch",
                    self._kernel(function),
                    [int(size) for size in grid],
                    [self._value(one) for one in args],
                    {name: self._value(one) for name, one in kwargs.items()},
                ]
            )
        )

    def _attempt(self, write: Callable[[], None]) -> None:
        """What cannot be written down is no error of the submission: a person looks at it."""
        try:
            with self._one_by_one:
                write()
        except REFUSALS as error:
            self._program["why_not"] = self._program["why_not"] or f"{error}"[:300]

    def _step(self, step: list) -> None:
        if len(self._program["steps"]) >= STEPS:
            raise Unwritable(f"more than {STEPS} steps in one call")
        self._program["steps"].append(step)

    # ---------------------------------------------------------------------------------------- memories

    def _number(self, tensor: torch.Tensor) -> int | None:
        known = self._known.get(tensor.untyped_storage()._cdata)
        return known[0] if known else None

    def _new(self, storage: torch.UntypedStorage) -> int:
        self._count += 1
        self._known[storage._cdata] = self._count, StorageWeakRef(storage)  # which keeps the address from reuse
        return self._count

    def _forget(self) -> list[int]:
        gone = {at: number for at, (number, storage) in self._known.items() if storage.expired()}
        for at in gone:
            del self._known[at]
        return list(gone.values())

    def _constant(self, tensor: torch.Tensor) -> int:
        """A memory that was there before the call: its content goes along."""
        storage = tensor.untyped_storage()
        held = sum(len(one) for one in self._program["constants"].values())
        if 3 * held / 4 + storage.nbytes() > CONSTANTS:
            raise Unwritable(f"tables of more than {CONSTANTS >> 20} MiB that the kernels did not make")
        with torch.utils._python_dispatch._disable_current_modes():
            content = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu().numpy().tobytes()
        number = self._new(storage)
        self._program["constants"][number] = base64.b64encode(content).decode()
        return number

    # ---------------------------------------------------------------------------------------- values

    def _value(self, value: Any) -> Any:
        """Anything that an operator, a launch or an answer holds, as JSON."""
        if isinstance(value, torch.Tensor):
            number = self._number(value)
            place = {"memory": self._constant(value) if number is None else number, "dtype": name_of(value.dtype)}
            return place | {"shape": list(value.shape), "stride": list(value.stride()), "at": value.storage_offset()}
        if value is None or type(value) in PLAIN:
            return value
        if plain := next((kind for kind in PLAIN if isinstance(value, kind)), None):  # one of an IntEnum, say
            return plain(value)
        if isinstance(value, tuple | list | torch.Size):
            return {"items": [self._value(one) for one in value], "tuple": not isinstance(value, list)}
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return {"torch": name_of(value)}
        if isinstance(value, torch.device):
            return {"device": True}
        if isinstance(value, tl.constexpr):
            return {"constexpr": self._value(value.value)}
        if isinstance(value, tl.dtype):
            return {"language": str(value) if not value.is_ptr() else ""}
        if isinstance(value, TensorDescriptor):
            parts = [value.base, list(value.shape), list(value.strides), list(value.block_shape), value.padding]
            return {"descriptor": [self._value(one) for one in parts]}
        if hasattr(value, "base") and isinstance(value.base, torch.Tensor):  # triton.reinterpret
            return {"reinterpreted": self._value(value.base), "as": name_of(value.dtype)}
        if is_kernel(value):
            return {"kernel": self._kernel(value.fn)}
        if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of NumPy
            return self._value(value.item())
        raise Unwritable(f"a {type(value).__name__} in a launch, in an operator or among the results")

    def _named(self, values: Sequence[Any]) -> None:
        """Tell of the names of named tuples among these: a program holds plain ones."""
        fields = self._program["fields"]
        for value in (one.value if isinstance(one, tl.constexpr) else one for one in values):
            if isinstance(value, tuple):
                for place, name in enumerate(getattr(value, "_fields", ())):
                    fields[name] = place if fields.get(name, place) == place else None
                self._named(value)

    # ---------------------------------------------------------------------------------------- kernels

    def _kernel(self, function: types.FunctionType, constants: bool = False) -> int:
        """The number of a kernel; when it is first met, with where it stands and what its names stand for.

        constants: it is a function of constants, and no kernel.
        """
        key = function.__code__
        if key not in self._kernels:
            number = self._kernels[key] = len(self._kernels)
            told = {
                "cell": key.co_filename.removeprefix("<").removesuffix(">"),
                "line": key.co_firstlineno,
                "name": function.__name__,
                "constants": constants,
            }
            told["names"] = {name: self._bound(value) for name, value in _globals_of(function).items()}
            self._program["kernels"][number] = told
        return self._kernels[key]

    def _bound(self, value: Any) -> Any:
        """What a global name of a kernel stands for; None for what no kernel can use."""
        if isinstance(value, types.ModuleType):
            return {"module": value.__name__}
        if (is_kernel(value) or is_of_constants(value)) and not _of_triton(value.fn):
            return {"kernel": self._kernel(value.fn, is_of_constants(value))}
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            defaults = [*value._field_defaults.values()]
            plain = all(one is None or type(one) in PLAIN for one in defaults)
            return {"named": [*value._fields], "defaults": defaults} if plain else None
        if isinstance(value, FIXED | tl.constexpr | tl.dtype | tuple):
            self._named((value,))
            try:
                return {"value": self._value(value)}
            except Unwritable:
                return None
        found = getattr(value, "fn", value)
        if _of_triton(found):
            return {"from": getattr(found, "__module__", ""), "object": getattr(found, "__name__", "")}
        return None


def counting(function: Callable, strangers: Counter, beside: Counter) -> Callable:
    """The function, which counts the operators of torch that compute while it runs, as a recorder would, and tells how
    many numbers in memory the others make, how many multiplications and how many moves there are, as a player would.
    """

    def tell(func, args, kwargs, results) -> None:
        given = {one.untyped_storage()._cdata for one in _tensors(tree_leaves((args, kwargs)))}
        new = [one.untyped_storage()._cdata not in given for one in _tensors(results)]
        beside["multiplied"] += multiplications(func, args, kwargs, results)
        if func._schema.name in MOVES:
            beside["made"] += sum(one.numel() for one, is_new in zip(_tensors(results), new, strict=True) if is_new)
            if not is_running():  # Triton's interpreter copies the arguments of each launch
                count, other_type = moved(func, args, kwargs, results)
                beside.update(moved=count, cast=other_type)
        elif _computes(func, results, new):
            strangers[func._schema.name] += 1

    @functools.wraps(function)
    def counted(*args):
        with _Watch(tell), _Whole(strangers):
            return function(*args)

    return counted


def _computes(func, results: Any, new: Sequence[bool]) -> bool:
    """Whether an operator does more than look at memory in another way. new: which tensors it made lie elsewhere."""
    return func._schema.is_mutable or any(new) or len(new) < len(_several(results)) or not _several(results)


def _several(results: Any) -> Sequence[Any]:
    return results if isinstance(results, tuple | list) else (results,)


def _tensors(results: Any) -> list[torch.Tensor]:
    return [one for one in _several(results) if isinstance(one, torch.Tensor)]


class _Watch(TorchDispatchMode):
    """Tells of every operator of torch, after it has run."""

    def __init__(self, tell: Callable):
        super().__init__()
        self.tell = tell

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        self.tell(func, args, kwargs or {}, results)
        return results


class _Whole(TorchFunctionMode):
    """Counts what a `_Watch` sees the parts of alone, as proof.MADE_OF takes it apart again."""

    def __init__(self, counts: Counter):
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.isfinite, torch.Tensor.isfinite):
            self.counts["aten::isfinite"] += 1
        return func(*args, **(kwargs or {}))


def _operator(func) -> str:
    return f"{func._schema.name.removeprefix('aten::')}.{func._overloadname}"


def is_kernel(value: Any) -> bool:
    is_function = isinstance(getattr(value, "fn", None), types.FunctionType)
    return isinstance(value, triton.runtime.KernelInterface) and is_function


def is_of_constants(value: Any) -> bool:
    """Whether it is under `@triton.constexpr_function`, which triton 3.5 was the first to have."""
    return type(value).__name__ == "ConstexprFunction" and isinstance(getattr(value, "fn", None), types.FunctionType)


def _of_triton(value: Any) -> bool:
    """Whether it is Triton's own: a module, or something that one of its modules defines."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", "")
    return str(name).partition(".")[0] == "triton"


def _globals_of(function: types.FunctionType) -> Mapping[str, Any]:
    """The names that a kernel's code may take from outside of it."""
    names, known = _names_of(function.__code__) | _in_its_head(function), function.__globals__
    language = {name for name, value in known.items() if isinstance(value, types.ModuleType) and _of_triton(value)}
    outside = {name: value for name, value in known.items() if name in names | language}
    closed = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in closed:
        try:
            outside[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return outside


def _names_of(code: types.CodeType) -> set[str]:
    """Those of the comprehensions in it too."""
    inner = (one for one in code.co_consts if isinstance(one, types.CodeType))
    return {*code.co_names}.union(*map(_names_of, inner))


def _in_its_head(function: types.FunctionType) -> set[str]:
    """The names in defaults and annotations of its arguments, which its code does not hold."""
    try:
        (made,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        parts = made.args.defaults + [one.annotation for one in made.args.args if one.annotation]
    except (OSError, SyntaxError, ValueError, AttributeError):  # no text, or that of something else
        return set()
    return {one.id for part in parts for one in ast.walk(part) if isinstance(one, ast.Name)}


@contextlib.contextmanager
def launches_go_to(tell: Callable) -> Iterator[None]:
    """Inside, Triton's kernels are told of in place of being run: tell(function, grid, args, kwargs).

    Only an autotuner's trials run on a GPU, on noise: which configuration is the fastest does not depend on values.
    """
    if triton.knobs.runtime.interpret:
        from course_lib import interpreter

        with interpreter.launches_go_to(tell):
            yield
        return

    jit, tuner = triton.runtime.JITFunction, triton.runtime.Autotuner
    launch, bench, trials = jit.run, tuner._bench, []

    def run(kernel, *args, grid, warmup, **kwargs):
        if warmup or trials:
            return launch(kernel, *args, grid=grid, warmup=warmup, **kwargs)
        named = {name: value for name, value in kwargs.items() if name in kernel.arg_names}
        bound = inspect.signature(kernel.fn).bind(*args, **named)
        bound.apply_defaults()
        triton.knobs.runtime.launch_enter_hook({"name": kernel.fn.__name__})  # for a probe that counts launches
        tell(kernel.fn, grid(dict(bound.arguments)) if callable(grid) else grid, args, kwargs)

    def tried(*args, **kwargs):
        trials.append(True)
        try:
            with torch.utils._python_dispatch._disable_current_modes():
                return bench(*args, **kwargs)
        finally:
            trials.pop()

    jit.run, tuner._bench = run, tried
    try:
        yield
    finally:
        jit.run, tuner._bench = launch, bench
