"""In every rank: a training step of each variant of data parallel training, checked against each other, then timed."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.against import Red
from course_lib.distributed import place
from course_lib.models.transformer import Sizes, Transformer
from course_lib.parallel import Buckets, Flat, Naive, Overlap, Sharded

PLAIN, ADAMW, ZERO = "no sync", ", AdamW", ", ZeRO"
LEARNING_RATE = 3e-4  # less would be lost in the rounding of bf16 weights, and nothing could be compared
WARM_UP = 3  # DDP makes its buckets anew after the first step
LEAST_ROUNDS = 4
ALL = 0.4  # of the time for rounds, for all variants
KINDS = ("buckets", "DDP")  # the first at its best is compared with the second at its best
# of gradients relative to those of naive: a few roundings of one sum
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 5e-3}


@dataclass(frozen=True)
class Setting:
    sizes: Sizes
    dtype: torch.dtype  # of weights and gradients; on a GPU products are in bf16 either way
    batch: int  # sequences on each rank
    mibs: tuple[float, ...]  # of buckets
    rounds: int  # at most, of all variants; then those that a claim is about go on, for as long
    steps: int  # in a row, in a turn
    seconds: float = 60.0  # after so many no other round begins


class Step:
    """Forward, backward, `finish`, and the optimizer's step where there is one."""

    def __init__(self, model: nn.Module, module: nn.Module, optimizer=None, state=None):
        self.model, self.module, self.optimizer = model, module, optimizer
        self.state = state or optimizer  # which one holds the state
        self.finish = getattr(model, "finish", lambda: None)

    def __call__(self, tokens: torch.Tensor, look: Callable[[], object] | None = None) -> None:
        """`look` is called when the gradients are there."""
        with torch.autocast(place().type, torch.bfloat16, enabled=place().type == "cuda"):
            logits = self.model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        self.finish()
        if look is not None:
            look()
        if self.optimizer is not None:
            self.optimizer.step()
        self.model.zero_grad()

    def state_mib(self) -> float | None:
        if self.state is None:
            return None
        kept = [value for one in self.state.state.values() for value in one.values() if torch.is_tensor(value)]
        return sum(value.nbytes for value in kept) / 2**20


def measured(rank: int, setting: Setting) -> dict:
    """name -> seconds a step in each turn on this rank, and the MiB of optimizer state that it holds."""
    torch.manual_seed(0)
    with place():  # drawn where they are needed: there are up to a thousand million of them
        model = Transformer(setting.sizes).to(setting.dtype)
    own = torch.Generator().manual_seed(rank)  # each rank has a batch of its own
    tokens = torch.randint(setting.sizes.vocabulary, (setting.batch, setting.sizes.context + 1), generator=own)
    tokens = tokens.to(place())
    steps = {name: make() for name, make in variants(model, setting).items()}
    check(steps, tokens, LIMITS[setting.dtype])
    for step in steps.values():
        for _ in range(WARM_UP):
            step(tokens)
    seconds: dict[str, list[float]] = {name: [] for name in steps}

    def rounds(names: list[str], least: int, most: int, until: float) -> None:
        number = 0
        while number < most and (number < least or _begins(until)):
            for name in names[:: 1 if number % 2 == 0 else -1]:
                seconds[name].append(_turn(partial(steps[name], tokens), setting.steps))
            number += 1

    start = time.perf_counter()
    rounds(list(steps), LEAST_ROUNDS, setting.rounds, start + ALL * setting.seconds)
    rounds(_claimed(seconds), 0, len(steps) * setting.rounds, start + setting.seconds)
    return {"seconds": seconds, "state": {name: step.state_mib() for name, step in steps.items()}}


def without_optimizer(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.endswith((ADAMW, ZERO))]


def best(seconds: dict[str, list[float]]) -> list[str]:
    """Of each kind the variant without an optimizer that took least."""
    bare = without_optimizer(seconds)
    return [min((n for n in bare if n.startswith(kind)), key=lambda n: median(seconds[n])) for kind in KINDS]


def _claimed(seconds: dict[str, list[float]]) -> list[str]:
    """The variants that claims compare, as rank 0 found them: all ranks must go on with the same."""
    of_state = [name for name in seconds if name.endswith(ADAMW) and not name.startswith("DDP")]
    told = [[PLAIN, *best(seconds), *of_state]]
    dist.broadcast_object_list(told, 0)
    return told[0]


def variants(model: Transformer, setting: Setting) -> dict[str, Callable[[], Step]]:
    """name -> what makes it. The rungs take no optimizer's step, so their weights can lie in one memory."""

    def rung(wrap) -> Step:
        module = twin(model)
        return Step(wrap(module), module)

    found = {PLAIN: lambda: rung(lambda module: module)}
    found |= {"naive": partial(rung, Naive), "flat": partial(rung, Flat), "overlap": partial(rung, Overlap)}
    # left to itself DDP makes the first bucket 1 MiB and the others 25; told a size, it makes all of that size
    found["DDP default"] = partial(rung, DistributedDataParallel)
    for mib in setting.mibs:
        found[f"buckets {mib:g} MiB"] = partial(rung, partial(Buckets, mib=mib))
        ddp = partial(DistributedDataParallel, bucket_cap_mb=mib)
        found[f"DDP {mib:g} MiB"] = partial(rung, ddp)
        views = partial(ddp, gradient_as_bucket_view=True)
        found[f"DDP {mib:g} MiB, views"] = partial(rung, views)
        found[f"DDP {mib:g} MiB, views, static graph"] = partial(rung, partial(views, static_graph=True))
    mib = setting.mibs[-2]
    found |= {f"{n} {mib:g} MiB{ending}": partial(make, model, mib) for (n, ending), make in TRAINING.items()}
    return found


def twin(model: nn.Module) -> nn.Module:
    """Other parameters in the same memory: hooks and gradients of their own."""
    other = copy.deepcopy(model)
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        mine.data = theirs.data
    return other


def adamw(params) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, lr=LEARNING_RATE, fused=True)


def _buckets(model: nn.Module, mib: float) -> Step:
    module = copy.deepcopy(model)
    return Step(Buckets(module, mib), module, adamw(module.parameters()))


def _sharded(model: nn.Module, mib: float) -> Step:
    module = copy.deepcopy(model)
    sharded = Sharded(module, lambda pieces: adamw(pieces.values()), mib)
    return Step(sharded, module, sharded, sharded.optimizer)


def _ddp(model: nn.Module, mib: float) -> Step:
    module = copy.deepcopy(model)
    ddp = DistributedDataParallel(module, bucket_cap_mb=mib, gradient_as_bucket_view=True)
    return Step(ddp, module, adamw(module.parameters()))


def _zero(model: nn.Module, mib: float) -> Step:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of what it imports, so in a rank only

    module = copy.deepcopy(model)
    ddp = DistributedDataParallel(module, bucket_cap_mb=mib, gradient_as_bucket_view=True)
    zero = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=LEARNING_RATE, fused=True)
    return Step(ddp, module, zero, zero.optim)


TRAINING = {("buckets", ADAMW): _buckets, ("sharded", ADAMW): _sharded, ("DDP", ADAMW): _ddp, ("DDP", ZERO): _zero}


# --------------------------------------------------------------------------------------- right before fast


def check(steps: dict[str, Step], tokens: torch.Tensor, limit: float) -> None:
    """Gradients as naive has them; weights after a sharded step as after a whole one.

    Two functions, so that the gradients to compare with are gone before the first optimizer makes its state: in fp32
    everything together is not far from what a GPU holds.
    """
    _check_gradients({name: step for name, step in steps.items() if step.optimizer is None}, tokens, limit)
    trained = {name: step for name, step in steps.items() if step.optimizer is not None}
    _check_updates(trained, [p.detach() for p in steps[PLAIN].module.parameters()], tokens)


def _check_gradients(steps: dict[str, Step], tokens: torch.Tensor, limit: float) -> None:
    want: list[torch.Tensor] = []

    def gradients(name: str) -> Iterator[torch.Tensor]:
        return (p.grad for p in steps[name].module.parameters())

    steps["naive"](tokens, lambda: want.extend(grad.clone() for grad in gradients("naive")))
    for name, step in steps.items():
        if name not in (PLAIN, "naive"):
            step(tokens)  # the first step of DDP is not like those that are timed
            step(tokens, lambda name=name: _near(name, gradients(name), want, limit))


def _check_updates(steps: dict[str, Step], start: list[torch.Tensor], tokens: torch.Tensor) -> None:
    """start: the weights that all began with. How far each has come from there is made again where it is asked for."""

    def moved(step: Step) -> Iterator[torch.Tensor]:
        return (p.detach() - s for p, s in zip(step.module.parameters(), start, strict=True))

    for name, step in steps.items():
        step(tokens)
        # the first step of AdamW is about a sign: where a gradient is next to nothing, rounding decides it
        _near(name, moved(step), moved(next(iter(steps.values()))), 0.02)


def _near(name: str, got: Iterable[torch.Tensor], want: Iterable[torch.Tensor], limit: float) -> None:
    off = size = torch.zeros((), dtype=torch.float64, device=place())
    for g, w in zip(got, want, strict=True):
        off, size = off + (g - w).double().square().sum(), size + w.double().square().sum()
    if not (off / size).sqrt() < limit:
        raise Red(f"{name} is wrong: {float((off / size).sqrt()):.1e} off, limit {limit:.0e}")


def _begins(until: float) -> bool:
    """Whether there is time for another round, by the clock of rank 0: all ranks must do equally many."""
    agreed = torch.tensor(time.perf_counter() < until, device=place())
    dist.broadcast(agreed, 0)
    return bool(agreed)


def _turn(step: Callable[[], object], steps: int) -> float:
    """Seconds a step, of several in a row."""
    dist.barrier()
    synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize()
    return (time.perf_counter() - start) / steps


def synchronize() -> None:
    if place().type == "cuda":
        torch.cuda.synchronize()
