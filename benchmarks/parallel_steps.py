"""In every rank: a training step of each variant of data parallel training, checked against each other, then timed."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
WARM_UP = 2  # DDP makes its buckets anew after the first step, and the check has made two
LEAST_ROUNDS = 4
KINDS = ("buckets", "DDP")  # the first at its best is compared with the second at its best
FINALISTS = 3  # of each kind: those that took least in the first rounds go on, and the best of them are compared
# of gradients relative to those of naive: a few roundings of one sum
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 5e-3}


@dataclass(frozen=True)
class Setting:
    sizes: Sizes
    dtype: torch.dtype  # of weights and gradients; on a GPU products are in bf16 either way
    batch: int  # sequences on each rank
    mibs: tuple[float, ...]  # of buckets
    rounds: int  # at most: of all variants, of the finalists and, four times as many, of what a claim compares
    steps: int  # in a row, in a turn
    # After so many no other round begins: of all, of the finalists, of those that each of the two claims compares. A
    # claim without seconds is not made.
    seconds: tuple[float, float, float, float]
    whole: bool = True  # whether DDP is tried with every setting, and torch's own optimizers of sharded state too


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
    all_s, finalists_s, *claims_s = setting.seconds
    seconds = timed(steps, list(steps), tokens, setting, min(LEAST_ROUNDS, setting.rounds), all_s)
    finalists = _agreed([name for kind in KINDS for name in ranking(kind, seconds)[:FINALISTS]])
    if finalists_s:
        for name, taken in timed(steps, [PLAIN, *finalists], tokens, setting, 1, finalists_s).items():
            seconds[name] += taken
    exposed = _agreed([PLAIN, *(ranking(kind, {name: seconds[name] for name in finalists})[0] for kind in KINDS)])
    of_state = [name for start in ("sharded", "buckets") for name in steps if name.startswith(start) and ADAMW in name]
    claims = []
    for names, limit_s in zip((exposed, of_state), claims_s, strict=True):
        if limit_s:
            turns = [
                _compared(steps, names, tokens, setting.steps, number)
                for number in _numbers(2, 4 * setting.rounds, limit_s)
            ]
            claims.append({"names": names, "turns": turns})
    state = {name: step.state_mib() for name, step in steps.items()}
    return {"seconds": seconds, "claims": claims, "state": state}


def timed(
    steps: dict[str, Step], names: Sequence[str], tokens: torch.Tensor, setting: Setting, least: int, limit_s: float
) -> dict[str, list[float]]:
    """name -> seconds of a step in each turn: one turn a round, in one order and then in the reverse."""
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in _numbers(least, setting.rounds, limit_s):
        for name in names[:: 1 if number % 2 == 0 else -1]:
            seconds[name].append(turn(partial(steps[name], tokens), setting.steps))
    return seconds


def _compared(steps: dict[str, Step], names: Sequence[str], tokens: torch.Tensor, count: int, number: int) -> list:
    """Seconds of one round, by the order of names: each of the last two has two turns, in the order A B B A."""
    *before, ours, theirs = names
    first, second = (ours, theirs) if number % 2 == 0 else (theirs, ours)
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in (*before, first, second, second, first):
        found[name].append(turn(partial(steps[name], tokens), count))
    return [found[name] for name in names]


def without_optimizer(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.endswith((ADAMW, ZERO))]


def ranking(kind: str, seconds: dict[str, list[float]]) -> list[str]:
    """The variants of a kind without an optimizer, those that took least first."""
    return sorted((n for n in without_optimizer(seconds) if n.startswith(kind)), key=lambda n: median(seconds[n]))


def _agreed(names: list[str]) -> list[str]:
    """As rank 0 found them: all ranks must go on with the same."""
    told = [names]
    dist.broadcast_object_list(told, 0)
    return told[0]


def _numbers(least: int, most: int, limit_s: float) -> Iterator[int]:
    """Of rounds: `least` of them, and more until the time is over."""
    until, number = time.perf_counter() + limit_s, 0
    while number < most and (number < least or _begins(until)):
        yield number
        number += 1


def variants(model: Transformer, setting: Setting) -> dict[str, Callable[[], Step]]:
    """name -> what makes it. The rungs take no optimizer's step, so their weights can lie in one memory."""

    def rung(wrap) -> Step:
        module = twin(model)
        return Step(wrap(module), module)

    found = {PLAIN: lambda: rung(lambda module: module)}
    found |= {"naive": partial(rung, Naive), "flat": partial(rung, Flat), "overlap": partial(rung, Overlap)}
    # left to itself DDP makes the first bucket 1 MiB and the others 25; told a size, it makes all of that size
    best = partial(DistributedDataParallel, gradient_as_bucket_view=True, static_graph=True)
    found["DDP default"] = partial(rung, DistributedDataParallel)
    found["DDP default, views, static graph"] = partial(rung, best)
    for mib in setting.mibs:
        found[f"buckets {mib:g} MiB"] = partial(rung, partial(Buckets, mib=mib))
        found[f"buckets {mib:g} MiB, static graph"] = partial(rung, partial(Buckets, mib=mib, static=True))
        ddp = partial(DistributedDataParallel, bucket_cap_mb=mib)
        if setting.whole:
            found[f"DDP {mib:g} MiB"] = partial(rung, ddp)
            found[f"DDP {mib:g} MiB, views"] = partial(rung, partial(ddp, gradient_as_bucket_view=True))
        found[f"DDP {mib:g} MiB, views, static graph"] = partial(rung, partial(best, bucket_cap_mb=mib))
    mib = setting.mibs[-2]
    training = {key: make for key, make in TRAINING.items() if setting.whole or key[0] != "DDP"}
    found |= {f"{n} {mib:g} MiB{ending}": partial(make, model, mib) for (n, ending), make in training.items()}
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


def turn(step: Callable[[], object], steps: int) -> float:
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
