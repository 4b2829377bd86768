"""One call of a submission's function on fenced buffers, and what it left behind."""

from __future__ import annotations

import contextlib
import copy
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from autograder.call.fences import Fenced, fence, span
from autograder.exercise import Call, Case, Exercise
from autograder.inside import calling
from autograder.inside.recording import counting
from autograder.inside.wire import decode, encode
from autograder.judging.outcome import Outcome


def attempt(exercise: Exercise, call: Call, function: Callable, computed: Counter | None = None) -> Outcome:
    """Call `function` once in this process and look at everything it touched.

    computed: counts the operators of torch that computed meanwhile.
    """
    fenced = lay_out(exercise, call)
    args = [fenced[name].view if name in fenced else _own_copy(value) for name, value in call.args.items()]
    called = _alone(calling.through(exercise.probe, function), exercise.hides)
    beside: Counter[str] = Counter()
    answer = calling.call(called if computed is None else counting(called, computed, beside), args)
    told = {"error": answer.error, "where": answer.where, "launches": answer.launches, "seconds": answer.seconds}
    outcome = Outcome(**told, **beside)
    if answer.error:
        return outcome
    try:
        value = decode(encode(answer.value)) if exercise.kind == "scenario" else answer.value
    except TypeError as error:  # in the words of a worker, which sends plain data only
        return replace(outcome, error=f"TypeError: {error}")
    return inspect(exercise, outcome, value, fenced)


def _alone(function: Callable, hides: Sequence[str]) -> Callable:
    """The function without what its exercise hides."""
    if not hides:
        return function

    def call(*args):
        with hidden(hides), _emptied(getattr(function, "__globals__", {}), hides):
            return function(*args)

    return call


@contextlib.contextmanager
def hidden(modules: Sequence[str]) -> Iterator[None]:
    """Inside, importing one of them fails: a hint, for the process is the student's. The referee has none to import."""
    kept = {name: sys.modules[name] for name in _named(sys.modules, modules)}
    places = [(sys.modules[parent], name) for parent, _, name in (m.rpartition(".") for m in modules) if parent]
    loaded = [(parent, name, vars(parent).pop(name)) for parent, name in places if name in vars(parent)]
    sys.modules.update(dict.fromkeys([*modules, *kept]))
    try:
        yield
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(kept)
        for parent, name, module in loaded:
            setattr(parent, name, module)


@contextlib.contextmanager
def _emptied(names: dict[str, Any], modules: Sequence[str]) -> Iterator[None]:
    """Inside, those of the names that stand for one of these modules stand for an empty one, as for the referee."""
    kept = {k: v for k, v in names.items() if isinstance(v, types.ModuleType) and _named([v.__name__], modules)}
    names.update({name: types.ModuleType(module.__name__) for name, module in kept.items()})
    try:
        yield
    finally:
        names.update(kept)


def _named(names: Iterable[str], modules: Sequence[str]) -> list[str]:
    """Those of the names that are one of the modules or lie in one."""
    below = tuple(f"{module}." for module in modules)
    return [name for name in names if name in modules or name.startswith(below)]


def lay_out(exercise: Exercise, call: Call, allocate: Callable | None = None) -> dict[str, Fenced]:
    """Every tensor argument in its own fenced slab."""
    tensors = {name: value for name, value in call.args.items() if isinstance(value, torch.Tensor)}
    return {name: fence(value, name in exercise.writes, allocate) for name, value in tensors.items()}


def inspect(exercise: Exercise, outcome: Outcome, value: Any, fenced: dict[str, Fenced]) -> Outcome:
    """The outcome of a call that returned: its outputs and everything it should not have touched."""
    returned = _returned(exercise, value)
    if isinstance(returned, str):
        return replace(outcome, error=returned)
    return replace(
        outcome,
        outputs={name: fenced[name].view for name in exercise.writes} | returned,
        damage={name: d for name, f in fenced.items() if (d := f.damage()).total},
        changed={name: n for name, f in fenced.items() if (n := f.changed())},
        unwritten={name: n for name, f in fenced.items() if (n := f.unwritten())},
    )


def _returned(exercise: Exercise, value: Any) -> dict[str, Any] | str:
    """The returned values by name, or what is wrong with their number."""
    names = exercise.returns
    if len(names) < 2:
        return dict.fromkeys(names, value)
    if not isinstance(value, (tuple, list)) or len(value) != len(names):
        return f"TypeError: {exercise.entry} should return {len(names)} values ({', '.join(names)}), not {value!r:.80}"
    return dict(zip(names, value, strict=True))


def _own_copy(value: Any) -> Any:
    """Plain data is copied, so that a submission cannot change what the oracle sees; served objects are not."""
    return copy.deepcopy(value) if isinstance(value, (list, dict, tuple)) else value


HOST_BYTES = 1 << 24  # arguments are judged where they are if one of them is larger


def judged_part(record: Call | Outcome, case: Case) -> Call | Outcome:
    """What is judged of a call or an outcome, on the host where it fits: out of reach of a later fault."""
    if isinstance(record, Call):
        return replace(record, args=_part(record.args, case, laid_out))
    return replace(record, outputs=_part(record.outputs, case, torch.Tensor.cpu))


def _part(values: Mapping[str, Any], case: Case, to_host: Callable) -> dict[str, Any]:
    """All on one device: the truth is made of all of them."""
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    tensors = {name: case.part(value) if case.part else value for name, value in tensors.items()}
    if all(value.nbytes <= HOST_BYTES for value in tensors.values()):
        tensors = {name: to_host(value) for name, value in tensors.items()}
    return {**values, **tensors}


def laid_out(tensor: torch.Tensor) -> torch.Tensor:
    """On the host with the same strides, which `cpu()` drops: known mistakes read a tensor by its strides."""
    if not tensor.is_cuda or span(tensor.shape, tensor.stride()) * tensor.element_size() > HOST_BYTES:
        return tensor.cpu()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
