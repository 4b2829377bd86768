"""What the exercises that average gradients share: how a case is drawn, what is true, and what is looked at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autograder.exercise import Call, Case, Draw, Values
from autograder.exercises.ddp.replicas import single
from autograder.inside.probes.replicas import BATCH, MODELS, REACHED, WIDTH
from autograder.judging.ranks import first_off, form_of, reports_of, same_bits, told, too_little_or_too_much

LIMIT, LIMIT_FP32 = 1e-9, 1e-5  # of numbers near 1: rounding is 1e-15 and 1e-7, and every known mistake is above 1e-3
IN_FP32 = ("Mixed",)  # models with a layer in fp32
LEAST = 2e-4  # of their gradients: in the next step the rounding becomes 0.05 * 4e-9 / 2e-4, a tenth of LIMIT_FP32
ALL_USED = ("Plain", "Wide", "Deep")  # models in which every rank uses and trains everything
ONE_RANK = "used on one rank only"  # among the last cases: who skips what it did not use hangs there
PARTS = "several parts"
FIRST_WAS_RIGHT = "(the first was right)"
MOST = 1.3  # of the bytes that are needed: gathering everything everywhere takes 1.4 on three ranks, 1.7 on four
TOO_MUCH = "bytes together, where"
ORDINALS = ("first", "second", "third")


def call(d: Draw, model: str, ranks: int = 2, parts: int = 1, fill: bool = False, steps: int = 2, **options) -> Call:
    """Every rank's parts of the batch of each step."""
    words = f"{ranks} ranks, model {model}" + (f", {parts} parts" if parts > 1 else "")
    while True:
        seed = d.integer(1, 10**6)
        batches = [[_batch(d, model) for _ in range(parts)] for _ in range(steps)]
        shards = [[[x.chunk(ranks)[rank] for x in step] for step in batches] for rank in range(ranks)]
        args = {"shards": shards, "model": model, "seed": seed, "fill": fill, "options": options}
        if model not in IN_FP32 or _steady(args):
            return Call(args, words)


def _steady(args: Values) -> bool:
    """Whether no gradient of the first step is almost 0.

    AdamW divides by it: the rounding of fp32, 4e-9, would be as large in a weight as a mistake. In one of 430 draws a
    right answer was refused by that.
    """
    grads = single(args)[0]["grads"].values()
    return min(grad.abs().min().item() for grad in grads if grad is not None) > LEAST


def _batch(d: Draw, model: str) -> torch.Tensor:
    x = d.normal(BATCH, WIDTH, dtype=torch.float64)
    if model == "Routed":  # the first column chooses the layer: the first rank sees one, the last the other
        x[:, 0] = x[:, 0].abs() * torch.tensor([1.0] * (BATCH // 2) + [-1.0] * (BATCH // 2), dtype=torch.float64)
    return x


def cases(**options) -> tuple[Case, ...]:
    """The situations of data parallel training; `options` go to the submission."""
    kinds = {
        "two ranks": {"model": "Plain"},
        "three ranks": {"model": "Plain", "ranks": 3},
        "four ranks": {"model": "Plain", "ranks": 4},
        "large layers": {"model": "Wide", "ranks": 4, "steps": 1},
        PARTS: {"model": "Plain", "parts": 3},
        "gradients filled with zeros": {"model": "Plain", "fill": True, "steps": 3},
        "a shared weight": {"model": "Tied"},
        "a frozen layer": {"model": "Frozen"},
        "two types of numbers": {"model": "Mixed"},
        "weights in another order": {"model": "Strided"},
        "numbers that are no parameters": {"model": "Fixed"},
        "a layer that nobody uses": {"model": "Unused"},
        ONE_RANK: {"model": "Routed"},
    }
    return tuple(Case(name, lambda d, kind=kind: call(d, **kind, **options)) for name, kind in kinds.items())


def oracle(args: Values) -> dict:
    return {"ranks": {"steps": [single(args)] * len(args["shards"]), "right": True}}


def acceptance(
    how: Callable[[Sequence[Mapping], Values], str | None], most: float = MOST
) -> Callable[[Any, Any, Values], str | None]:
    """An `accept`: first what every rank holds, then, of a right answer, `how` it was made.

    most: how often the bytes may be sent that are needed.
    """

    def accept(got: Any, want: Any, args: Values) -> str | None:
        wrong = reports_of(got, len(args["shards"]))
        if wrong:
            return wrong
        try:
            found = [steps_of(report["value"]) for report in got]
            wrong = values_off(found, want["steps"], args)
            if wrong or not want["right"]:
                return wrong
            least = floor(args)
            if least and told(got) > most * least:
                return f"the ranks sent {told(got):.0f} {TOO_MUCH} {least} are enough"
            return _bits(found) or _notes(got) or how(got, args) or too_little_or_too_much(got, least)
        except (AttributeError, KeyError, TypeError, ValueError):
            return "a rank reported something else"

    return accept


def steps_of(value: Any) -> list[dict]:
    return value["steps"] if isinstance(value, Mapping) else value


def values_off(found: Sequence[list[dict]], want: Sequence[list[dict]], args: Values) -> str | None:
    """The first number of a gradient or a weight, on any rank and after any step, that is not the wanted one."""
    limit = LIMIT_FP32 if args["model"] in IN_FP32 else LIMIT
    for rank, (steps, truth) in enumerate(zip(found, want, strict=True)):
        for number, (step, right) in enumerate(zip(steps, truth, strict=True)):
            for kind in ("grads", "weights"):
                for name, value in right[kind].items():
                    wrong = _one(step[kind][name], value, f"the {kind[:-1]} of `{name}`", rank, limit)
                    if wrong:
                        return f"{wrong}, in the {ORDINALS[number]} step{f' {FIRST_WAS_RIGHT}' if number else ''}"
    return None


def _one(got: Any, want: torch.Tensor | None, what: str, rank: int, limit: float) -> str | None:
    what = what.replace("the grad ", "the gradient ")
    if want is None or got is None:
        if got is want:
            return None
        return f"{what} on rank {rank} is {'none' if got is None else 'there'}, where in one process it is not"
    wrong = form_of(got, want, what, rank)
    if wrong or first_off(got, want, limit) is None:
        return wrong
    return f"{what} on rank {rank} is not that of one process"


def _bits(found: Sequence[list[dict]]) -> str | None:
    for number, steps in enumerate(zip(*found, strict=True)):
        for name in steps[0]["weights"]:
            other = same_bits([step["weights"][name] for step in steps])
            if other is not None:
                where = f"its last bits, after the {ORDINALS[number]} step"
                return f"`{name}` of rank {other} differs from that of rank 0 in {where}"
    return None


def _notes(got: Sequence[Mapping]) -> str | None:
    found = [(rank, note) for rank, report in enumerate(got) for note in report["traffic"]["notes"]]
    return f"rank {found[0][0]}: {found[0][1]}" if found else None


def floor(args: Values) -> int:
    """Bytes that all ranks together have to send: weights once at the start, then twice what is trained in each step.

    A mean goes to one place and comes back; so do a part's gradient and its updated weights. 0 where a rank may have
    nothing to say.
    """
    steps, ranks = len(args["shards"][0]), len(args["shards"])
    if args["model"] not in ALL_USED:
        return 0
    return (ranks - 1) * (1 + 2 * steps) * sum(nbytes for _, nbytes in trained_bytes(args["model"]))


@dataclass(frozen=True)
class Begun:
    """A collective that a rank took part in."""

    name: str
    nbytes: int
    background: bool


def segments(report: Mapping, label: str, early: bool = False) -> list[list[Begun]]:
    """What a rank began after each mark of this name; early: only before the backward pass reached the first layer."""
    found: list[tuple[str, list[Begun]]] = [("start", [])]
    counts = True
    for name, nbytes, background in report["traffic"]["collectives"]:
        if name == REACHED:
            counts = not early
        elif nbytes < 0:
            found.append((name, []))
            counts = True
        elif name != "barrier" and counts:
            found[-1][1].append(Begun(name, nbytes, background))
    return [begun for name, begun in found if name == label]


def trained_bytes(model: str) -> list[tuple[torch.dtype, int]]:
    """Type and bytes of each trained parameter, in the order of the module."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            module = MODELS[model]()
    finally:
        torch.set_default_dtype(before)
    return [(p.dtype, p.nbytes) for p in module.parameters() if p.requires_grad]
