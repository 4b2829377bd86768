"""A SigLIP-like tower under torch.compile, as plain data: results, gradients, graphs, and what its layers make again of
`lengths`.

What depends on `lengths` and on nothing else is found by running a graph three times: with its images and weights, with
others, and with other lengths. A value that the second run repeats and the third one changes is such a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from autograder.inside.calling import Found
from autograder.inside.probes.towers import Captured, Graph, captured, with_weights
from course_lib.models.siglip import naive
from course_lib.models.siglip.frame import named_gradients
from course_lib.models.vision import Sizes

GIVEN = "course_lib.models.siglip.strong"  # computes what is asked for, and is to be written anew


def make(kind: Callable[[Sizes], torch.nn.Module], config: Mapping[str, Any]) -> torch.nn.Module:
    """A tower in float64. `sharp` multiplies q and k: the larger they are, the larger are the scores."""
    sizes = Sizes(**{name: value for name, value in config.items() if name not in ("seed", "sharp")})
    made = with_weights(kind(sizes), naive.Tower(sizes), config["seed"])
    if any(type(part).__module__ == GIVEN for part in made.modules()):
        raise Found(f"the tower is made of {GIVEN}: write the forward pass yourself")
    with torch.no_grad():
        for name, weights in made.named_parameters():
            if "attention.q." in name or "attention.k." in name:
                weights *= config.get("sharp", 1.0)
            elif "attention.qkv." in name:
                weights[: 2 * len(weights) // 3] *= config.get("sharp", 1.0)
    return made


def images(config: Mapping[str, Any], call: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches and lengths. `padding` is what lies behind a length, where that is no ordinary number."""
    generator = torch.Generator().manual_seed(call["seed"])
    lengths = torch.tensor(call["lengths"], dtype=getattr(torch, call.get("type", "int64")))
    sizes = len(lengths), config["patches"], config["patch"]
    patches = torch.randn(sizes, generator=generator, dtype=torch.float64)
    for image, (length, padding) in enumerate(zip(call["lengths"], call.get("padding", ()))):
        patches[image, length:] = float(padding)
    return patches, lengths


def run(tower: torch.nn.Module, config: Mapping, calls: Sequence[Mapping]) -> tuple[list, dict[str, list[float]]]:
    """Results and gradients as the tower stands, without a compiler."""
    keep = _into_gradients(calls)
    return [keep(tower(*images(config, call))) for call in calls], _gradients(tower)


def hoisted(kind: Callable, config: Mapping, calls: Sequence[Mapping]) -> tuple[list, dict, dict, dict]:
    """Results, gradients, graphs as `towers.compiled` tells them, and what layers make again: with more layers or with
    fewer than the configuration has, in one call.
    """
    given, kept = ([images(config, call) for call in calls] for _ in "12")
    tower = make(kind, config)
    seen = captured(tower, given, _into_gradients(calls))
    if not all(
        torch.equal(_bits(one), _bits(own)) for ours, theirs in zip(kept, given) for one, own in zip(ours, theirs)
    ):
        raise Found("what was passed, patches or lengths, was changed")
    layers = 1 if config["layers"] > 1 else 2
    other = make(kind, {**config, "layers": layers})
    made = {config["layers"]: of_lengths(seen, tower, *given[0])}
    made[layers] = of_lengths(captured(other, kept[:1], lambda result: None), other, *kept[0])
    few, many = (made[layers] for layers in sorted(made))
    again = {"again": sorted((many.made - few.made).elements()), "masks": max(many.read - few.read, 0)}
    return seen.kept, _gradients(tower), seen.graphs(), again


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """NaN equals NaN."""
    return tensor.view(torch.int64) if tensor.is_floating_point() else tensor


def _into_gradients(calls: Sequence[Mapping]) -> Callable[[torch.Tensor], list]:
    """Of each result in turn its numbers, after a backward pass in a direction that its call draws."""
    seeds = iter([call["seed"] + 1 for call in calls])

    def keep(result: torch.Tensor) -> list:
        generator = torch.Generator().manual_seed(next(seeds))
        (result * torch.randn(result.shape, generator=generator, dtype=torch.float64)).sum().backward()
        return result.tolist()

    return keep


def _gradients(tower: torch.nn.Module) -> dict[str, list[float]]:
    return {name: gradient.flatten().tolist() for name, gradient in named_gradients(tower).items()}


# --------------------------------------------------------------------------------- values that depend on lengths alone


@dataclass(frozen=True)
class OfLengths:
    made: Counter  # names of the operations that give such values
    read: int  # such tensors that other operations read


def of_lengths(seen: Captured, tower: torch.nn.Module, patches: torch.Tensor, lengths: torch.Tensor) -> OfLengths:
    """Such values of the graph of the first call; none where that call made several."""
    if seen.first != 1:
        return OfLengths(Counter(), 0)
    graph = seen.captured[0]
    varied = [value for value in graph.inputs if any(value is one for one in (patches, *tower.parameters()))]
    generator = torch.Generator().manual_seed(0)
    here, others = (
        {id(value): torch.randn(value.shape, generator=generator, dtype=value.dtype) for value in varied} for _ in "12"
    )
    runs = [_run(graph, new) for new in (here, others, {**here, id(lengths): lengths % patches.shape[1] + 1})]
    found = [(step, _alike(step, second) and not _alike(step, third)) for step, second, third in zip(*runs)]
    made = Counter(step.name for step, is_alone in found if is_alone)
    places = {place for step, is_alone in found if is_alone for place in step.makes}
    read = {place for step, is_alone in found if not is_alone and step.values for place in step.reads}
    return OfLengths(made, len(read & places))


@dataclass(frozen=True)
class Step:
    """One operation of a graph that ran."""

    name: str
    values: list[torch.Tensor]  # what it gave or wrote, as it was then
    reads: list[int]  # where in memory its arguments lie, and what it gave
    makes: list[int]


class Noting(TorchFunctionMode):
    """Notes every operation inside, in order. What was made stays alive, so that no place is used twice."""

    def __init__(self):
        super().__init__()
        self.steps: list[Step] = []
        self.alive: list[torch.Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        gave = _tensors(args[:1] if made is None else made)  # an assignment gives nothing, and writes
        self.alive += gave
        name = getattr(func, "__name__", str(func)).strip("_")
        self.steps.append(Step(name, [one.clone() for one in gave], *map(_places, (given, gave))))
        return made


def _run(graph: Graph, new: Mapping[int, torch.Tensor]) -> list[Step]:
    """The graph with other tensors in the place of some that it was called with."""
    with torch.no_grad(), Noting() as noting:
        graph.module.forward(*(new.get(id(value), value) for value in graph.inputs))
    return noting.steps


def _tensors(values: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(values) if isinstance(one, torch.Tensor)]


def _places(tensors: Iterable[torch.Tensor]) -> list[int]:
    return [one.untyped_storage().data_ptr() for one in tensors]


def _alike(one: Step, other: Step) -> bool:
    pairs = list(zip(one.values, other.values))
    return bool(pairs) and all(a.shape == b.shape and torch.allclose(a, b, equal_nan=True) for a, b in pairs)
