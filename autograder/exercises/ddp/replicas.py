"""Copies of a model, trained side by side in one process: what every rank should hold, and what it holds when one
thing is done wrong. No process and no collective: gradients of all copies are there, and are put together here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from autograder.exercise import Values
from autograder.inside.probes.replicas import OPTIMIZERS, made, state_of

Copies = Sequence[nn.Module]
Steps = list[list[dict]]  # of each rank, of each step: {"grads": ..., "weights": ...}

# ------------------------------------------------------------------------------------------ how copies start


def start_equal(copies: Copies, frozen: bool = True, buffers: bool = True) -> None:
    """All as the first: parameters (also those that are not trained), and what else is kept."""
    for other in copies[1:]:
        for mine, theirs in zip(other.parameters(), copies[0].parameters(), strict=True):
            if frozen or theirs.requires_grad:
                mine.data.copy_(theirs.data)
        for mine, theirs in zip(other.buffers(), copies[0].buffers(), strict=True):
            if buffers:
                mine.copy_(theirs)


def start_apart(copies: Copies) -> None:
    """Each as it was drawn."""


# --------------------------------------------------------------------------------- how gradients are put together


def together(copies: Copies) -> Iterator[list[nn.Parameter]]:
    """Each trained parameter, on all ranks."""
    for same in zip(*(copy.parameters() for copy in copies), strict=True):
        if same[0].requires_grad:
            yield list(same)


def _each(
    copies: Copies, make: Callable[[list[torch.Tensor], list[torch.Tensor | None]], Sequence[torch.Tensor | None]]
) -> None:
    """make(gradients with zeros for none, gradients) -> what each rank has afterwards."""
    for same in together(copies):
        grads = [p.grad for p in same]
        filled = [torch.zeros_like(p) if p.grad is None else p.grad for p in same]
        for p, grad in zip(same, make(filled, grads), strict=True):
            p.grad = None if grad is None else grad.clone()


def mean(copies: Copies, step: int = 0) -> None:
    """What is right: the mean, with zeros for those that did not use a parameter; none where nobody did."""

    def one(filled, grads):
        return [sum(filled) / len(filled) if any(g is not None for g in grads) else None] * len(filled)

    _each(copies, one)


def total(copies: Copies, step: int = 0) -> None:
    mean(copies)
    for p in (p for same in together(copies) for p in same if p.grad is not None):
        p.grad *= len(copies)


def halved(copies: Copies, step: int = 0) -> None:
    """The sum over 2, as if there were two ranks."""
    mean(copies)
    for p in (p for same in together(copies) for p in same if p.grad is not None):
        p.grad *= len(copies) / 2


def divided_twice(copies: Copies, step: int = 0) -> None:
    mean(copies)
    for p in (p for same in together(copies) for p in same if p.grad is not None):
        p.grad /= len(copies)


def not_at_all(copies: Copies, step: int = 0) -> None:
    """Each keeps its own."""


def not_at_all_with_zeros(copies: Copies, step: int = 0) -> None:
    _each(copies, lambda filled, grads: filled)


def those_with(copies: Copies, step: int = 0) -> None:
    """The mean over those that have a gradient."""

    def one(filled, grads):
        there = [g for g in grads if g is not None]
        return [sum(there) / len(there) if there else None] * len(grads)

    _each(copies, one)


def zeros_for_none(copies: Copies, step: int = 0) -> None:
    """A parameter that nobody used gets zeros: the optimizer then decays it."""
    _each(copies, lambda filled, grads: [sum(filled) / len(filled)] * len(filled))


def of_rank_0(copies: Copies, step: int = 0) -> None:
    _each(copies, lambda filled, grads: [filled[0] if any(g is not None for g in grads) else None] * len(filled))


def in_single_precision(copies: Copies, step: int = 0) -> None:
    def one(filled, grads):
        there = any(g is not None for g in grads)
        return [sum(g.float() for g in filled).div(len(filled)).to(filled[0].dtype) if there else None] * len(filled)

    _each(copies, one)


def in_another_order(copies: Copies, step: int = 0) -> None:
    """Each rank begins what it has, in the order in which it came, and then what it lacks."""
    nobodys = [same for same in together(copies) if all(p.grad is None for p in same)]
    reverse = zip(*reversed(list(together(copies))), strict=True)
    for met in zip(*(sorted(own, key=lambda p: p.grad is None) for own in reverse), strict=True):
        filled = [torch.zeros_like(p) if p.grad is None else p.grad for p in met]
        if len({grad.shape for grad in filled}) == 1:
            for p in met:
                p.grad = sum(filled) / len(filled)
    for p in (p for same in nobodys for p in same):
        p.grad = None


def a_shared_weight_twice(copies: Copies, step: int = 0) -> None:
    """Summed once for each place in which a module holds it, and divided once."""
    mean(copies)
    held = [id(p) for module in copies[0].modules() for p in module._parameters.values() if p is not None]
    for same in together(copies):
        for p in same:
            if p.grad is not None:
                p.grad *= len(copies) ** (held.count(id(same[0])) - 1)


def weights_instead(copies: Copies, step: int = 0) -> None:
    with torch.no_grad():
        for same in together(copies):
            middle = sum(p.detach() for p in same) / len(same)
            for p in same:
                p.copy_(middle)


# ------------------------------------------------------------------------------------------ training


def trained(
    args: Values,
    combine: Callable[[Copies, int], None] = mean,
    start: Callable[[Copies], None] = start_equal,
    each_part: Callable[[Copies, list[list], bool], None] | None = None,
    forgets: bool = False,
) -> Steps:
    """What every rank reports. each_part: what is done after each part instead, see `last_part_only`.

    forgets: each step has a new optimizer.
    """
    copies = [made(args["model"], args["seed"] + rank) for rank in range(len(args["shards"]))]
    start(copies)
    optimizers = [_optimizer(args, copy) for copy in copies]
    seen: Steps = [[] for _ in copies]
    for step in range(len(args["shards"][0])):
        parts = len(args["shards"][0][step])
        for part in range(parts):
            kept = [[p.grad for p in copy.parameters()] for copy in copies]
            if each_part is not None:
                for copy in copies:
                    copy.zero_grad()
            for copy, shard in zip(copies, args["shards"], strict=True):
                (copy(shard[step][part]).square().mean() / parts).backward()
            if each_part is not None:
                each_part(copies, kept, part == parts - 1)
        if each_part is None:
            combine(copies, step)
        grads = [state_of(copy)["grads"] for copy in copies]
        optimizers = [_optimizer(args, copy) for copy in copies] if forgets else optimizers
        for optimizer in optimizers:
            optimizer.step()
        for rank, copy in enumerate(copies):
            seen[rank].append({"grads": grads[rank], "weights": state_of(copy)["weights"]})
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=not args["fill"])
    return seen


def _optimizer(args: Values, module: nn.Module) -> torch.optim.Optimizer:
    return OPTIMIZERS[args.get("optimizer", "adamw")]([p for p in module.parameters() if p.requires_grad])


def last_part_only(copies: Copies, kept: list[list], last: bool) -> None:
    """The last part's gradients are averaged before they are added to those of the parts before, which are not."""
    if last:
        mean(copies)
    for copy, before in zip(copies, kept, strict=True):
        for p, earlier in zip(copy.parameters(), before, strict=True):
            if earlier is not None:
                p.grad = earlier.clone() if p.grad is None else earlier + p.grad


def divided_in_each_part(copies: Copies, kept: list[list], last: bool) -> None:
    """What has come together is divided after every part, and added up over ranks after the last."""
    for copy, before in zip(copies, kept, strict=True):
        for p, earlier in zip(copy.parameters(), before, strict=True):
            if p.grad is not None:
                p.grad = (p.grad if earlier is None else earlier + p.grad) / len(copies)
            elif earlier is not None:
                p.grad = earlier / len(copies)
    if last:
        total(copies)


def single(args: Values) -> list[dict]:
    """Training in one process, on the whole batch of each step: the truth."""
    module = made(args["model"], args["seed"])
    optimizer = _optimizer(args, module)
    seen = []
    for step in range(len(args["shards"][0])):
        parts = len(args["shards"][0][step])
        for part in range(parts):
            x = torch.cat([shard[step][part] for shard in args["shards"]])
            (module(x).square().mean() / parts).backward()
        grads = state_of(module)["grads"]
        optimizer.step()
        seen.append({"grads": grads, "weights": state_of(module)["weights"]})
        optimizer.zero_grad(set_to_none=not args["fill"])
    return seen
