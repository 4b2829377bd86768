"""Who owns each byte at each moment of forward and backward, and which operator saved what for which purpose.

Every operator that is no view is a moment. A block of memory is born when an operator returns it, and freed when
nothing refers to it any more. Its owner is known later, from its use: a gradient, a tensor that an operator keeps for
its backward step (`gelu keeps self`), the result, or "in passing" for memory that is only worked on. No device is
needed: on meta tensors, which have sizes and no memory, the same account predicts a run on another machine:

    with torch.device("meta"):
        model, x = Model(), torch.empty(16384, 1152, dtype=torch.bfloat16)
    print(ledger(lambda: model(x)))

Memory that an operator takes and gives back within one call is not counted: workspaces, and the intermediate values of
fused kernels.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.table import Table, Tabular, bytes_text

__all__ = ["Block", "Kept", "Ledger", "ledger", "saved"]

GRANULE = 512  # bytes: an allocator on a GPU gives multiples of it
RESULT, PASSING = "the result", "in passing"


class Kept(NamedTuple):
    """A tensor that autograd holds between forward and backward."""

    operator: str  # "gelu", or the name of an autograd Function
    name: str  # what that operator's backward calls it
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int  # of its memory, counted where it comes first; 0 where others hold the same memory
    given: bool  # an input or a weight: alive anyway


@dataclass(frozen=True)
class Block:
    owner: str
    operator: str  # that made it
    bytes: int
    born: int  # the moment
    freed: int | None  # None: still there at the end


@dataclass(frozen=True)
class Ledger(Tabular):
    """Bytes above what was there before: weights and inputs are not counted."""

    PASSING: ClassVar[str] = PASSING  # owner of memory that is held only while it is worked on

    device: str
    moments: tuple[str, ...]  # the operators in order
    forward: int  # so many of them are forward
    blocks: tuple[Block, ...]
    kept: tuple[Kept, ...]

    def bytes_at(self, moment: int) -> int:
        return sum(self.owners_at(moment).values())

    def owners_at(self, moment: int) -> dict[str, int]:
        """Bytes of each owner just after an operator, largest first."""
        sizes: dict[str, int] = defaultdict(int)
        for block in self.blocks:
            if block.born <= moment and (block.freed is None or block.freed > moment):
                sizes[block.owner] += block.bytes
        return dict(sorted(sizes.items(), key=lambda pair: (-pair[1], pair[0])))

    @property
    def peak_at(self) -> int:
        return max(range(len(self.moments)), key=self.bytes_at, default=0)

    @property
    def peak_bytes(self) -> int:
        return self.bytes_at(self.peak_at)

    @property
    def held_bytes(self) -> int:
        """Between forward and backward, the result among it."""
        return self.bytes_at(self.forward - 1)

    def rows(self) -> list[tuple[str, str, str]]:
        """(owner, between forward and backward, at the peak)."""
        held, peak = self.owners_at(self.forward - 1), self.owners_at(self.peak_at)
        names = sorted(held.keys() | peak.keys(), key=lambda n: (-max(held.get(n, 0), peak.get(n, 0)), n))
        rows = [(name, bytes_text(held.get(name, 0)), bytes_text(peak.get(name, 0))) for name in names]
        return [*rows, ("all", bytes_text(self.held_bytes), bytes_text(self.peak_bytes))]

    def table(self) -> Table:
        return Table(("owner", "between forward and backward", f"at the peak ({self._peak_words()})"), self.rows())

    def _peak_words(self) -> str:
        if not self.moments:
            return "nothing ran"
        return f"{self.moments[self.peak_at]}, {'forward' if self.peak_at < self.forward else 'backward'}"


def saved(result: torch.Tensor, inputs: Iterable[torch.Tensor] = ()) -> list[Kept]:
    """What autograd holds for the backward pass of `result`, by the operator that will use it, first users first.

    Weights and inputs with a gradient are known as given; inputs without one may have to be named.
    """
    return _kept(result, {_memory_of(t) for t in (*_leaves(result), *inputs)}, set())


def _kept(result: torch.Tensor, given: set[int], made: set[int]) -> list[Kept]:
    """Memory that is in neither set was given. A Function is the exception: tensors that it made look the same."""
    kept, seen = [], set()
    for node, name, tensor in _held_by(result):
        where = _memory_of(tensor)
        size = 0 if where in seen else tensor.untyped_storage().nbytes()
        seen.add(where)
        plain = tensor.is_leaf and not _is_function(node)
        known = where not in made and (where in given or plain)
        kept.append(Kept(_operator(node.name()), name, tuple(tensor.shape), tensor.dtype, size, known))
    return kept


def ledger(forward: Callable[[], torch.Tensor], named: Mapping[str, torch.Tensor] | None = None) -> Ledger:
    """Run `forward()` once and the backward pass of its result, with gradients of ones, and account for every byte.

    named: tensors whose gradients are to be called by name, such as `dict(model.named_parameters())`. Gradients that
    were there before are left out of the account where backward only adds to them.
    """
    watch = _Watch()
    with watch:
        result = forward()
    watch.settle()
    forward_moments = len(watch.moments)
    made = set(watch.alive)
    kept = _kept(result, {_memory_of(t) for _, _, t in _held_by(result)} - made, made)
    watch.own(result, RESULT)
    for node, name, tensor in _held_by(result):
        watch.own(tensor, f"{_operator(node.name())} keeps {name}")
    device = result.device.type
    if result.requires_grad:
        grad = torch.ones_like(result)
        leaves = _leaves(result)
        node = name = tensor = None
        with watch:
            result.backward(grad)
        del result
        watch.settle()
        names = {id(tensor): name for name, tensor in (named or {}).items()}
        for leaf in leaves:
            if leaf.grad is not None:
                watch.own(leaf.grad, f"gradient of {names.get(id(leaf), 'a leaf')}")
    return Ledger(device, tuple(watch.moments), forward_moments, tuple(watch.blocks.values()), tuple(kept))


class _Watch(TorchDispatchMode):
    """Notes after each operator which memory is new and which is gone."""

    def __init__(self):
        super().__init__()
        self.moments: list[str] = []
        self.blocks: dict[int, Block] = {}  # in the order of birth
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}  # address of a storage -> itself, number of its block

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            _memory_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, (torch.Tensor, torch.UntypedStorage))
        }
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        self._bury()
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor, given, str(func.overloadpacket.__name__))
        self.moments.append(str(func.overloadpacket.__name__))
        return out

    def _note(self, tensor: torch.Tensor, given: set[int], operator: str) -> None:
        storage, where = tensor.untyped_storage(), _memory_of(tensor)
        if where in given or where in self.alive or storage.nbytes() == 0:
            return  # a view, or a result that was written into a given tensor
        number = len(self.blocks)
        granule = GRANULE if tensor.device.type in ("cuda", "meta") else 1
        size = -(-storage.nbytes() // granule) * granule
        self.blocks[number] = Block(PASSING, operator, size, len(self.moments), None)
        self.alive[where] = StorageWeakRef(storage), number

    def _bury(self) -> None:
        for where, (ref, number) in list(self.alive.items()):
            if ref.expired():
                self.blocks[number] = replace(self.blocks[number], freed=len(self.moments))
                del self.alive[where]

    def settle(self) -> None:
        """Call this at the end of a pass. Memory freed after the last operator counts as freed at that operator."""
        for where, (ref, number) in list(self.alive.items()):
            if ref.expired():
                self.blocks[number] = replace(self.blocks[number], freed=max(0, len(self.moments) - 1))
                del self.alive[where]

    def own(self, tensor: torch.Tensor, owner: str) -> None:
        found = self.alive.get(_memory_of(tensor))
        if found is not None and self.blocks[found[1]].owner == PASSING:
            self.blocks[found[1]] = replace(self.blocks[found[1]], owner=owner)


def _memory_of(of: torch.Tensor | torch.UntypedStorage) -> int:
    return StorageWeakRef(of.untyped_storage() if isinstance(of, torch.Tensor) else of).cdata


def _operator(node: str) -> str:
    """AddmmBackward0 -> addmm, _MLPBackward -> _MLP, GeneratedBackwardFor_lib_op_defaultBackward -> lib_op."""
    name = re.sub(r"Backward\d*$", "", node)
    if generated := re.fullmatch(r"GeneratedBackwardFor_(\w+?)_default", name):
        return generated[1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() if re.search(r"Backward\d+$", node) else name


def _is_function(node) -> bool:
    """An autograd Function, or an operator with a gradient of its own."""
    return hasattr(node, "saved_tensors")


def _nodes(result: torch.Tensor):
    """Of the backward graph, in the order in which forward made them."""
    seen, stack, order = set(), [result.grad_fn], []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        order.append(node)
        stack.extend(following for following, _ in node.next_functions)
    return sorted(order, key=lambda node: node._sequence_nr() if hasattr(node, "_sequence_nr") else 0)


def _held_by(result: torch.Tensor):
    """(node, name, tensor) of everything that is saved."""
    for node in _nodes(result):
        if _is_function(node):
            found = [(f"tensor {i}", t) for i, t in enumerate(node.saved_tensors)]
        else:
            names = [n for n in dir(node) if n.startswith("_saved_")]
            found = [(n.removeprefix("_saved_"), getattr(node, n)) for n in names]
        for name, value in found:
            for tensor in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(tensor, torch.Tensor):
                    yield node, name, tensor


def _leaves(result: torch.Tensor) -> list[torch.Tensor]:
    return [node.variable for node in _nodes(result) if hasattr(node, "variable")]
