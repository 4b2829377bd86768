"""A rotation at work: in the memory of its arguments, or as a step that autograd differentiates.

What is said of the second is whether anything of q and k is held between its two passes.
"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from autograder.inside.calling import Found, counted_launches, trials
from autograder.inside.probes.belonging import is_of_a_library, module_of
from autograder.inside.probes.passing import InPassing

HEADS = 6  # of q and k together, from which on copies are looked for: angles, looked up for each row, are small beside
LAUNCHES = 2  # in which q and k are turned where they lie
MOST = 1_000_000  # objects that are looked at, which takes a second
FLAT = {types.CodeType, types.FrameType, str, bytes, int, float, bool, torch.dtype}  # kinds that lead to nothing


def in_place(function: Callable, q_before, k_before, q, k, *how) -> None:
    """q and k get the values of `q_before` and `k_before`, then the function may turn them, without a copy of them."""
    q.copy_(q_before)
    k.copy_(k_before)
    with counted_launches() as launches, trials(launches):
        _without_copies(lambda: function(q, k, *how), q, k, 0, "are to be turned where they lie")
    if len(launches) > LAUNCHES:
        raise Found(f"the call launched {len(launches)} kernels; one is enough for q and k, or one for each of them")


def _without_copies(call: Callable, q, k, results: int, rule: str) -> Any:
    """What the call returns. `results`: how often q and k may be made anew.

    An error when half as many bytes again are alive at once and a kernel was launched; without one a report says that.
    """
    if q.shape[1] + k.shape[1] < HEADS:
        return call()
    size = q.nbytes + k.nbytes
    with counted_launches() as launches, InPassing(results * size + (size - 1) // 2) as made:
        answer = call()
    if launches and made.most > made.granted:
        of_results = f", {size} of them results" if results else ""
        raise Found(
            f"the call held {made.most} bytes of its own at one moment{of_results}; q and k have {size}, and {rule}"
        )
    return answer


def differentiated(function: Callable, q, k, q_grad, k_grad, watched: bool, *how) -> tuple[torch.Tensor, ...]:
    """The function's two results, and the gradients of q and k for these gradients of them.

    A gradient without dimensions is that of a sum: autograd makes it as large as the result, without memory of its own.
    None for k: one tensor is the gradient of both, as where both are added.
    An error when gradients are copied; `watched`: also when as much as a quarter of k is kept for the backward pass,
    beyond the tensors of `how`.
    """
    known = [x for x in how if isinstance(x, torch.Tensor)]
    leaves = q.detach().requires_grad_(), k.detach().requires_grad_()
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        results = function(*leaves, *how)
    _check_results(results, leaves)
    held = kept([*saved, *attributes(results)], known)
    if watched and 4 * held >= max(1, k.nbytes):
        raise Found(
            f"{held} bytes beside the tables are kept for the backward pass; q and k have {q.nbytes + k.nbytes}"
        )
    given = q_grad, q_grad if k_grad is None else k_grad
    grads = [g.expand_as(y) if g.dim() == 0 else g for g, y in zip(given, results, strict=True)]
    made = _without_copies(
        lambda: torch.autograd.grad(results, leaves, grads, allow_unused=True),
        q, k, 1, "their gradients are to be read where they lie",
    )  # fmt: skip
    for name, gradient in zip("qk", made, strict=True):
        if gradient is None:
            raise Found(f"there is no gradient of {name}")
    return *(y.detach() for y in results), *made


def _check_results(results, leaves) -> None:
    if not isinstance(results, tuple | list) or len(results) != 2:
        raise TypeError(f"expected two tensors, q and k turned, got {type(results).__name__}")
    for name, y, x in zip("qk", results, leaves, strict=True):
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"expected tensors, got {type(y).__name__} for {name}")
        if y.shape != x.shape:
            raise Found(f"the result for {name} has shape {tuple(y.shape)}, should be {tuple(x.shape)}")
        if y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            raise Found(f"the result for {name} lies in the memory of {name}: make a new tensor")
        if not y.requires_grad:
            raise Found(f"the result for {name} has no gradient function")


def kept(tensors, given) -> int:
    """Bytes of the tensors, those that share memory counted once, and those in the memory of `given` not at all.

    Fake tensors, which torch.compile leaves where a notebook's globals lead to, have no memory.
    """
    tensors, given = ([x for x in some if type(x) is not FakeTensor] for some in (tensors, given))
    memory: dict[int, int] = {}
    for x in tensors:
        at = x.untyped_storage().data_ptr()
        memory[at] = max(x.nbytes, memory.get(at, 0))
    known = {x.untyped_storage().data_ptr() for x in given}
    return sum(size for at, size in memory.items() if at not in known)


def attributes(results) -> Iterator[torch.Tensor]:
    """Tensors that the autograd Functions behind the results hold as attributes of their contexts."""
    todo, seen = [y.grad_fn for y in results], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [before for before, _ in node.next_functions]
        yield from reached(getattr(node, "__dict__", {}))


def of_the_module(function: Callable) -> list[torch.Tensor]:
    """Tensors that the module of a function holds, in whatever: between two passes they are kept too."""
    return list(reached(getattr(function, "__globals__", {})))


def reached(*roots: Any) -> Iterator[torch.Tensor]:
    """Tensors that these lead to, through containers, objects, closures, classes and modules; not through modules of
    libraries and the classes that lie in one. What a thing is made of is asked of Python, not of the thing.
    """
    todo, seen = list(roots), set()
    while todo:
        one = todo.pop()
        kind = type(one)
        if len(seen) > MOST:
            raise Found(f"more than {MOST:,} objects hang on this answer: what is kept among them cannot be told")
        if id(one) in seen or one is None or kind in FLAT:
            continue
        seen.add(id(one))
        if issubclass(kind, torch.Tensor):
            yield one
            todo.append(one.__dict__)
        elif kind is types.FunctionType:
            todo += [one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__]
        elif (issubclass(kind, type) and module_of(one)) or (
            issubclass(kind, types.ModuleType) and is_of_a_library(one)
        ):
            continue
        else:
            todo += gc.get_referents(one)
