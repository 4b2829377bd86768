"""Small models, each with one thing that data parallel training easily gets wrong, and what a rank makes of them.

In fp64, so that what differs is a mistake and not rounding; a model may have a layer in fp32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from autograder.inside.probes.network import mark
from course_lib.distributed import place

BATCH = 12  # of a step, on all ranks together: divisible by 2, 3 and 4
WIDTH = 7  # numbers of one example
REACHED = "the first layer"  # a mark inside the backward pass


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(WIDTH, 11), nn.Linear(11, 5, bias=False), nn.Linear(5, 1)

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Tied(Plain):
    """The first layer's weight is the last one's too."""

    def __init__(self):
        super().__init__()
        self.third = nn.Linear(11, WIDTH)
        self.third.weight = nn.Parameter(self.first.weight.detach().T.contiguous())
        self.first.weight = self.third.weight

    def forward(self, x):
        return self.third(torch.tanh(F.linear(x, self.first.weight.T, self.first.bias)))


class Frozen(Plain):
    def __init__(self):
        super().__init__()
        self.second.requires_grad_(False)


class Unused(Plain):
    """One layer that no shard uses, in the middle of the others."""

    def __init__(self):
        super().__init__()
        self.idle = nn.Linear(3, 3)
        self.fourth = nn.Linear(1, 1)

    def forward(self, x):
        return self.fourth(super().forward(x))


class Routed(Plain):
    """Two experts; of the whole batch both see something, of a shard perhaps only one."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(1, 2), nn.Linear(1, 2)

    def forward(self, x):
        h, goes_left = super().forward(x), x[:, 0] > 0
        out = h.new_zeros(len(x), 2)
        for expert, rows in ((self.left, goes_left), (self.right, ~goes_left)):
            if rows.any():
                out = out.index_put((rows.nonzero()[:, 0],), expert(h[rows]))
        return out


class Mixed(Plain):
    """Parameters of two types."""

    def __init__(self):
        super().__init__()
        self.second.float()

    def forward(self, x):
        return self.third(torch.tanh(self.second(torch.tanh(self.first(x)).float())).double())


class Strided(nn.Module):
    """Weights that do not lie row by row, and layers that are not used in the order in which they were made."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 1)
        self.convolution = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.first = nn.Linear(WIDTH, 12)
        self.first.weight = nn.Parameter(torch.randn(WIDTH, 12).T)

    def forward(self, x):
        h = self.convolution(self.first(x).view(-1, 3, 2, 2))
        return self.last(h.flatten(1))


class Wide(Plain):
    """Weights that are large enough to travel alone, one of them column by column."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(WIDTH, 96), nn.Linear(96, 96), nn.Linear(96, 1)
        self.second.weight = nn.Parameter(self.second.weight.detach().T)


class Gaps(Plain):
    """A weight that is every other column of something larger."""

    def __init__(self):
        super().__init__()
        self.first.weight = nn.Parameter(torch.randn(11, 2 * WIDTH)[:, ::2])


class Deep(nn.Module):
    """Layers of one size, whose state can be shared out evenly."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, 24)
        self.layers = nn.ModuleList(nn.Linear(24, 24) for _ in range(6))

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class Fixed(Plain):
    """Numbers that are no parameters and change the result: statistics of an earlier training."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH).eval()
        self.norm.running_mean.normal_()
        self.norm.train = lambda mode=True: self.norm

    def forward(self, x):
        return super().forward(self.norm(x))


class Normed(Plain):
    """Statistics that every forward pass changes."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return super().forward(self.norm(x))


KINDS = (Plain, Tied, Frozen, Unused, Routed, Mixed, Strided, Wide, Gaps, Deep, Fixed, Normed)
MODELS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in KINDS}


def made(name: str, seed: int) -> nn.Module:
    """A model on the host, drawn from a seed. Nothing else of torch's random state changes."""
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        try:
            return MODELS[name]()
        finally:
            torch.set_default_dtype(before)


def adamw(params) -> torch.optim.AdamW:
    """With decay: a gradient of zeros is something else than no gradient."""
    return torch.optim.AdamW(params, lr=0.05, weight_decay=0.1)


def momentum(params) -> torch.optim.SGD:
    """Unlike AdamW it tells a gradient from twice that gradient."""
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1)


OPTIMIZERS = {"adamw": adamw, "momentum": momentum}


def state_of(module: nn.Module) -> dict[str, dict[str, Any]]:
    """Copies of gradients and weights, by name."""
    named = list(module.named_parameters())
    return {
        "grads": {name: None if p.grad is None else p.grad.detach().clone() for name, p in named},
        "weights": {name: p.detach().clone() for name, p in named},
    }


# ------------------------------------------------------------------------------------------ on one rank


def averaged(wrap: Callable, shard: Sequence, model: str, seed: int, fill: bool, options: dict) -> list[dict]:
    """Training with `wrap(module, **options)`, which averages gradients; after each step gradients and weights.

    shard: of every step the parts of this rank's batch; all but the last part run without sync where `wrap` has
    no_sync. fill: zero_grad writes zeros into gradients instead of letting go of them.

    A mark is put where the backward pass reaches the first layer: all other gradients are there.
    """
    module = made(model, seed + dist.get_rank()).to(place())
    module.first.register_forward_hook(_marks)
    wrapped = wrap(module, **options)
    optimizer = adamw([p for p in module.parameters() if p.requires_grad])
    seen = []
    for parts in shard:
        for number, x in enumerate(parts):
            loss = module(x).square().mean() / len(parts)
            alone = number < len(parts) - 1 and hasattr(wrapped, "no_sync")
            mark("backward without sync" if alone else "backward")
            with wrapped.no_sync() if alone else contextlib.nullcontext():
                loss.backward()
        mark("finish")
        wrapped.finish()
        mark("step")
        grads = state_of(module)["grads"]
        optimizer.step()
        seen.append({"grads": grads, "weights": state_of(module)["weights"]})
        optimizer.zero_grad(set_to_none=not fill)
    return seen


def _marks(layer: nn.Module, args: tuple, out: torch.Tensor) -> None:
    if out.requires_grad:
        out.register_hook(lambda grad: mark(REACHED, ends=False))


def sharded(wrap: Callable, shard: Sequence, model: str, seed: int, fill: bool, options: dict, optimizer: str) -> dict:
    """Training with `wrap(module, make)`, which holds a part of the optimizer's state.

    Weights after each step, and this rank's share of the state that one process would hold for the same optimizer.
    """
    module = made(model, seed + dist.get_rank()).to(place())
    optimizers: list[torch.optim.Optimizer] = []

    def make(params):
        optimizers.append(OPTIMIZERS[optimizer](params))
        return optimizers[-1]

    wrapped = wrap(module, make, **options)
    seen = []
    for parts in shard:
        mark("backward")
        for x in parts:
            module(x).square().mean().backward()
        wrapped.finish()
        wrapped.step()
        seen.append({"grads": {}, "weights": state_of(module)["weights"]})
        wrapped.zero_grad()
    return {"steps": seen, "held": numbers_of_state(optimizers) / whole_state(module, optimizer)}


def numbers_of_state(optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Without those that are single numbers, such as the count of steps."""
    kept = [value for one in optimizers for state in one.state.values() for value in state.values()]
    return sum(value.numel() for value in kept if isinstance(value, torch.Tensor) and value.dim())


def whole_state(module: nn.Module, optimizer: str) -> int:
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return trained * (2 if optimizer == "adamw" else 1)
