"""ddp.sharded: as before, but each rank holds the optimizer's state of a part of the numbers only.

    class Sharded:
        def __init__(self, module, make): ...
        def finish(self): ...
        def step(self): ...
        def zero_grad(self): ...

make(parameters) gives an optimizer for a list of tensors that require gradients; parts of a parameter, cut along one
dimension or as one row of numbers, are fine: it treats every number alike. Each rank begins with rank 0's parameters
and buffers. After the backward pass `finish()` brings the mean gradients to those ranks that need them; `step()` lets
each rank update its part, after which every rank has all updated weights; `zero_grad()` makes ready for the next step.

Right means: the weights of one process that trains on the whole batch with the same optimizer, after every step, bit
for bit the same on all ranks; and each rank's optimizers hold about 1 / N of the state that one process would hold: at
most 1 / N and 15 % of all more. What is begun in the background is waited for, and not touched before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from autograder.exercise import Case, Draw, Exercise, Mistake, Values
from autograder.exercises.ddp.averaging import ONE_RANK, acceptance, call, segments, steps_of
from autograder.exercises.ddp.averaging_mistakes import SHARED, answer, reports, right_at_first, said
from autograder.exercises.ddp.replicas import single
from autograder.inside.probes.replicas import made

MORE = 0.15  # of the whole state: room for parts that are whole parameters
LEAST = 0.6  # of it on all ranks together; a shared weight has state once, and counts twice in the whole
HOLDS = "of the state"


def _call(d: Draw, model: str, ranks: int = 2, optimizer: str = "momentum"):
    drawn = call(d, model, ranks, steps=3)
    drawn.args["optimizer"] = optimizer
    return drawn


KINDS = {
    "two ranks": {"model": "Deep"},
    "three ranks": {"model": "Deep", "ranks": 3},
    "four ranks": {"model": "Deep", "ranks": 4},
    "AdamW": {"model": "Deep", "optimizer": "adamw"},
    "small layers": {"model": "Plain", "ranks": 3},
    "a shared weight": {"model": "Tied"},
    "a frozen layer": {"model": "Frozen"},
    "two types of numbers": {"model": "Mixed"},
    "weights in another order": {"model": "Strided"},
    "numbers that are no parameters": {"model": "Fixed"},
    "a layer that nobody uses": {"model": "Unused"},
    ONE_RANK: {"model": "Routed"},
}
CASES = tuple(Case(name, lambda d, kind=kind: _call(d, **kind)) for name, kind in KINDS.items())


def oracle(args: Values) -> dict:
    steps = [{"grads": {}, "weights": step["weights"]} for step in single(args)]
    return {"ranks": {"steps": [steps] * len(args["shards"]), "right": True}}


def how(got: Sequence[Mapping], args: Values) -> str | None:
    most, shares = 1 / len(got) + MORE, [float(report["value"]["held"]) for report in got]
    for rank, held in enumerate(shares):
        if args["model"] == "Deep" and not held <= most:
            return f"rank {rank} holds {held:.0%} {HOLDS}; at most {most:.0%} is asked for"
    if sum(shares) < LEAST:
        return f"all ranks together hold {sum(shares):.0%} {HOLDS}: what a step takes is to stay with the optimizer"
    return None


# -------------------------------------------------------------------------------------------- what people get wrong


def _last(t) -> list[dict[str, torch.Tensor]]:
    """Every rank's weights after the last step."""
    return [steps_of(report["value"])[-1]["weights"] for report in reports(t)]


def _spread(t) -> bool:
    """Each number is right on some rank, and not on all, after the first step."""
    ranks = [steps_of(report["value"])[0]["weights"] for report in reports(t)]
    truth = t.want["ranks"]["steps"][0][0]["weights"]
    near = {n: torch.stack([(one[n] - want).abs() < 1e-6 for one in ranks]) for n, want in truth.items()}
    return all(bool(n.any(0).all()) for n in near.values()) and not all(bool(n.all()) for n in near.values())


def _kept(t) -> torch.Tensor:
    """Of each trained number that was to change: whether it is on all ranks what it was at the beginning."""
    module = made(t.args["model"], t.args["seed"])
    start = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    truth, ranks = t.want["ranks"]["steps"][0][-1]["weights"], _last(t)
    kept = {n: torch.stack([one[n] == start[n] for one in ranks]).all(0) for n in start}
    return torch.cat([kept[n][truth[n] != start[n]] for n in start])


def _no_start(t) -> bool:
    """A rank began nothing before its first backward pass."""
    return any(not any(segments(report, "start")) for report in reports(t))


def _too_much(e) -> list[float]:
    """The share of the state on each rank, in all cases in which it was too much, if that is all that is wrong."""
    return [float(r["value"]["held"]) for t in e.failing for r in reports(t)] if said(f"{HOLDS}; at most")(e) else []


def _in_all(question) -> object:
    def sign(e) -> bool:
        ran = [t for t in e.failing if reports(t)]
        return bool(ran) and all(question(t) for t in ran)

    return sign


NOT_HERE = (
    "everything_everywhere",
    "not_averaged",
    "no_start",
    "start_without_frozen",
    "not_brought_back",
    "weights_averaged",
)
MISTAKES = (
    Mistake(
        "whole_state",
        "Each rank's optimizer has state for everything. Give each an optimizer for its own part only: state is made "
        "for what is stepped.",
        sign=lambda e: (held := _too_much(e)) and min(held) > 0.95,
    ),
    Mistake(
        "uneven",
        "One rank holds much more state than another: weights and biases take turns in a module, so every N-th "
        "parameter is no N-th of the numbers. Give the largest parameters away first, each to the rank that has least; "
        "or cut one flat buffer.",
        sign=lambda e: (held := _too_much(e)) and min(held) <= 0.95,
    ),
    Mistake(
        "no_start",
        "Ranks begin with weights of their own: nothing is sent before the first backward pass. Broadcast rank 0's.",
        sign=_in_all(_no_start),
    ),
    Mistake(
        "not_gathered",
        "Each number is right on the rank that updated it, and old on the others: send the updated parts to all after "
        "the step.",
        sign=_in_all(_spread),
    ),
    Mistake(
        "never_updated",
        "No weight ever changes. The optimizer has to be given views of the weights, not copies; and where weights are "
        "gathered in a buffer, each p.data has to be a view of it.",
        sign=_in_all(lambda t: bool(_kept(t).all())),
    ),
    Mistake(
        "left_out",
        "Some numbers are never updated: parts of length // N do not cover everything, a parameter belongs to no rank, "
        "or the optimizer was given copies of some: it needs views.",
        sign=_in_all(lambda t: bool(_kept(t).any())),
    ),
    Mistake(
        "forgets",
        "The optimizer is made anew in each step, and its momentum is lost with it. Make it once.",
        answer(forgets=True),
    ),
    Mistake(
        "left_over",
        "The first step is right and a later one is not: gradients of the first are left over. zero_grad() lets go of "
        "those of all parameters, also of those that this rank does not update.",
        sign=right_at_first,
    ),
    *(mistake for mistake in SHARED if mistake.name not in NOT_HERE),
)

SHARDED = Exercise(
    name="ddp.sharded",
    entry="Sharded",
    points=6,
    about="an optimizer's state of which each rank holds a part",
    point=("two ranks", "three ranks", "small layers"),
    kind="distributed",
    cases=CASES,
    oracle=oracle,
    mistakes=MISTAKES,
    returns=("ranks",),
    accept=acceptance(how, most=2.0),  # an all-reduce in place of its half, then weights from each rank: 1.5
    probe="autograder.inside.probes.replicas:sharded",
    launches=False,
)
