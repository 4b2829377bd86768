"""A vision tower between its two passes: what it planned to hold, what it holds, what its products cost, and what it
computes. It runs on the CPU, where every machine holds the same.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.inside.calling import Found
from autograder.inside.probes.passing import collecting_little
from course_lib.models.siglip import naive
from course_lib.models.siglip.frame import unpacked
from course_lib.models.vision import Sizes

# --------------------------------------------------------------------------------------------- what is looked at

PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "addmv": 1}  # where the first factor is
OTHERS = (
    "mm mv conv linear attention lstm gru rnn cdist fft embedding_bag".split()
)  # in names of products that are not counted here
ATTENTION = "_scaled_dot_product"


class Watch(TorchDispatchMode):
    """The FLOP of all products, the memory that operators read, and the memory that they made or wrote.

    An error when they read more than so many bytes that are not known and that no operator made: these were held, or
    computed, where nobody here saw it.
    """

    def __init__(self, known: Iterable[int], granted: int):
        super().__init__()
        self.known, self.granted, self.unknown = set(known), granted, {}
        self.flops, self.read, self.filled = 0, set(), {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:  # an operator that is made of others: its parts come by
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        if func.namespace != "aten":
            raise Found(f"{func.name()} is no operator of torch's own: what runs inside of it cannot be seen here")
        name = func.name().removeprefix("aten::").partition(".")[0]
        given = list(tensors([*args, *kwargs.values()]))
        before = {memory(t)._cdata for t in given}
        self._look_for_unknown(name, given)
        out = func(*args, **kwargs)
        self.flops += _flops(name, given, args)
        if name == "set_":  # gives a tensor other memory, and fills none
            self._look_for_unknown(name, [out])
            return out
        writes = bool(func._schema.is_mutable)
        for t in tensors([out, *(_written(func, args, kwargs) if writes else ())]):
            at = memory(t)
            if writes or at._cdata not in before:
                self.filled[at._cdata] = StorageWeakRef(at), at.nbytes()
        if not func.is_view:
            self.read |= before
        return out

    def _look_for_unknown(self, name: str, given: list[torch.Tensor]) -> None:
        for at in map(memory, given):
            if at._cdata not in self.known and at._cdata not in self.filled:
                self.unknown[at._cdata] = at.nbytes()
        if sum(self.unknown.values()) > self.granted:
            raise Found(
                f"aten::{name} reads a tensor that no operator of this pass made, and that was not held before it: the "
                "two passes compute in the thread that calls them, and hold what they hold in tensors"
            )

    def alive(self) -> dict[int, int]:
        """Of what was made or written the memory that still exists: its bytes by its address."""
        gc.collect()
        return {at: size for at, (one, size) in self.filled.items() if not one.expired()}


def memory(t: torch.Tensor) -> torch.UntypedStorage:
    return t.untyped_storage()


def tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for one in values:
            yield from tensors(one)


def _written(func, args, kwargs) -> Iterator[Any]:
    for place, named in enumerate(func._schema.arguments):
        if named.alias_info is not None and named.alias_info.is_write:
            yield args[place] if place < len(args) else kwargs.get(named.name)


def _flops(name: str, given: list[torch.Tensor], args: tuple) -> int:
    """2 m n k of a product; attention in one operator has 2 products forward and 5 backward."""
    if name in PRODUCTS:
        a, b = args[PRODUCTS[name] : PRODUCTS[name] + 2]
        return 2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1)
    if name.startswith(ATTENTION):
        back = name.endswith("_backward")
        q, k = args[back : back + 2]
        return (5 if back else 2) * 2 * q.numel() * k.shape[-2]
    if any(part in name for part in OTHERS):
        raise Found(f"aten::{name}: multiply with matmul, linear or scaled_dot_product_attention, which are counted")
    if name in ("mul", "mul_") and len(given) == 2:  # a product of matrices, written as one of all pairs
        shape = torch.broadcast_shapes(*(t.shape for t in given))
        if math.prod(shape) > 2 * max(memory(t).nbytes() // t.element_size() for t in given):
            return 2 * math.prod(shape)
    return 0


class Planning(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise Found(_ran(func.name()))


def _ran(name: str) -> str:
    return f"planned() ran {name}: it says beforehand what will be held, from numbers alone"


ELSEWHERE = frozenset("torch subprocess multiprocessing".split())
BEGINS = frozenset("start_new_thread start_joinable_thread fork fork_exec posix_spawn setprofile".split())


def of_numbers(function: Callable, *args: Any) -> Any:
    """What the function returns, which computes with numbers: not with tensors, not in another thread or process.

    What it calls is written down, not refused: who catches an error gains nothing.
    """
    ran: list[str] = []

    def look(frame, event: str, arg: Any) -> None:
        if event == "call":
            module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        elif event == "c_call":
            name = str(getattr(arg, "__name__", ""))
            module = str(getattr(arg, "__module__", None) or type(getattr(arg, "__self__", None)).__module__)
        else:
            return
        if module.partition(".")[0] in ELSEWHERE or name in BEGINS:
            ran.append(f"{module}.{name}")

    before, planning = sys.getprofile(), Planning()
    with planning:
        sys.setprofile(look)
        try:
            answer = function(*args)
        finally:
            seen, still = list(ran), sys.getprofile() is look
            sys.setprofile(before)
    if seen or not still:
        raise Found(_ran(seen[0] if seen else "what stops a profiler"))
    return answer


# -------------------------------------------------------------------------------------------------- a tower at work


def given(case: Mapping[str, Any]) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The naive tower, patches, lengths, and a gradient of the result, all made from one seed in fp32."""
    sizes, images = Sizes(**case["sizes"]), len(case["lengths"])
    generator = torch.Generator().manual_seed(case["seed"])
    tower = naive.Tower(sizes)
    with torch.no_grad():
        for name, weights in tower.named_parameters():
            std = weights.shape[1] ** -0.5 if weights.dim() > 1 else 0.3
            mean = float("norm" in name or "before" in name) if name.endswith("weight") else 0.0
            weights.copy_(torch.randn(weights.shape, generator=generator) * std + mean * (weights.dim() == 1))
        for name in ("q", "k"):  # scores that tell keys apart
            for block in tower.blocks:
                getattr(block.attention, name).weight.mul_(1.5)
    # Large, so that an eps of 1e-5 and one of 1e-6 give the same within the limits of fp32 in every draw. The fp64 case
    # tells them apart.
    patches = 4.0 * torch.randn(images, sizes.patches, sizes.patch, generator=generator)
    gradient = torch.randn(images, sizes.width, generator=generator)
    lengths = torch.tensor(case["lengths"])
    if case["nan"]:
        patches[torch.arange(sizes.patches) >= lengths[:, None]] = float("nan")
    return tower, patches, lengths, gradient


def measured(kind: Callable, case: Mapping[str, Any]) -> tuple[list, dict[str, list], dict[str, int]]:
    """The result; the gradient of each parameter, of a matrix its product with a vector that is known; and of memory

    planned   what `planned` says in sum
    held      what exists between the passes that operators made or wrote in the first, beside the result
    in_vain   the part of it that the second pass never reads
    forward, backward   the FLOP of the products of a pass
    """
    sizes, images, dtype = Sizes(**case["sizes"]), len(case["lengths"]), getattr(torch, case["dtype"])
    with collecting_little():
        planned = _planned(kind, sizes, images, dtype.itemsize, case["asks"]["plan"]) if case["asks"] else 0
        return _passes(kind, case, sizes, dtype, planned)


def _planned(kind: Callable, sizes: Sizes, images: int, bytes_a_number: int, asked: bool) -> int:
    """asked: where it is not, a plan that is not written yet is none."""
    if not hasattr(kind, "planned"):
        if not asked:
            return 0
        raise Found("FrugalTower has no `planned`: a static method that says what will be held")
    try:
        plan = of_numbers(kind.planned, sizes, images, bytes_a_number)
    except NotImplementedError:
        if not asked:
            return 0
        raise
    if type(plan) is not dict or not plan or any(type(name) is not str for name in plan):
        raise Found(f"planned() should return a dict, name -> bytes; got {plan!r:.80}")
    for name, size in plan.items():
        if type(size) not in (int, float) or not 0 <= size < 2**60:
            raise Found(f"planned() should give a number of bytes for {name!r:.40}; got {size!r:.40}")
    return round(sum(plan.values()))


def _passes(kind: Callable, case: Mapping[str, Any], sizes: Sizes, dtype: torch.dtype, planned: int):
    theirs, tower, patches, lengths, gradient = _ready(kind, case, sizes, dtype)
    before = patches.clone()
    there = {memory(t)._cdata for t in (patches, lengths, gradient, *tower.parameters(), *tower.buffers())}
    width = patches.shape[0] * patches.shape[1] * sizes.width * dtype.itemsize  # a row each of x
    forward = Watch(there, width)
    with forward:
        y = tower(patches, lengths)
    _check_result(y, gradient)
    alive = forward.alive()
    backward = Watch(there | alive.keys(), width)
    with backward:
        y.backward(gradient)
    if not torch.equal(before.nan_to_num(9.0), patches.nan_to_num(9.0)):
        raise Found("the patches were changed: they belong to others")
    result = memory(y)
    held = {at: size for at, size in alive.items() if at != result._cdata}
    beside = max(0, result.nbytes() - y.nbytes)  # of the memory that the result is a part of
    told = {
        "planned": planned,
        "held": sum(held.values()) + beside,
        "in_vain": sum(size for at, size in held.items() if at not in backward.read) + beside,
        "forward": forward.flops,
        "backward": backward.flops,
    }
    return y.detach().tolist(), _gradients(tower, theirs, case["seed"]), told


def _ready(kind: Callable, case: Mapping[str, Any], sizes: Sizes, dtype: torch.dtype):
    theirs, patches, lengths, gradient = given(case)
    tower = kind(sizes)
    if not isinstance(tower, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, got {type(tower).__name__}")
    tower.load_state_dict(theirs.state_dict())
    return theirs, tower.to(dtype), patches.to(dtype), lengths, gradient.to(dtype)


def computed(kind: Callable, case: Mapping[str, Any]) -> tuple[list, dict[str, list]]:
    """The result and the gradients alone, in float64."""
    theirs, tower, patches, lengths, gradient = _ready(kind, case, Sizes(**case["sizes"]), torch.float64)
    y = tower(patches, lengths)
    y.backward(gradient)
    return y.detach().tolist(), _gradients(tower, theirs, case["seed"])


def _check_result(y: Any, like: torch.Tensor) -> None:
    if not isinstance(y, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(y).__name__}")
    if y.shape != like.shape or y.dtype != like.dtype:
        raise Found(f"the result is {tuple(y.shape)}, {y.dtype}; {tuple(like.shape)}, {like.dtype} was expected")
    if not y.requires_grad:
        raise Found("the result has no gradient function")


def _gradients(tower: torch.nn.Module, theirs: torch.nn.Module, seed: int) -> dict[str, list]:
    """By the names of the naive tower; of a matrix its product with a vector drawn from the seed."""
    found = unpacked({name: p.grad for name, p in tower.named_parameters() if p.grad is not None})
    generator, answer = torch.Generator().manual_seed(seed + 1), {}
    for name, weights in theirs.named_parameters():
        along = torch.randn(weights.shape[-1], generator=generator, dtype=torch.float64)
        if name not in found:
            raise Found(f"there is no gradient of {name}")
        if found[name].shape != weights.shape:
            raise Found(f"the gradient of {name} is {tuple(found[name].shape)}, the parameter {tuple(weights.shape)}")
        mine = found[name].detach().double()
        answer[name] = (mine @ along if mine.dim() > 1 else mine).tolist()
    return answer
