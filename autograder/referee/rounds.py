"""Several calls of one case, laid out in fresh slabs: what an audit watches and what the clock times.

Every call has arguments and outputs of its own, at random aligned places of one slab for inputs and one for outputs;
all else in the slabs is NaN. Nothing of it can be known before the slabs are opened.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from autograder.call.fences import span
from autograder.exercise import Call, Case, Exercise, Values
from autograder.inside.calling import quiet
from autograder.inside.wire import encode
from autograder.judging import tolerance
from autograder.judging.judge import wrong
from autograder.judging.outcome import Outcome
from autograder.referee import slabs
from autograder.referee.agreement import agree

ALIGNED = 512  # bytes, as torch's allocator aligns
GAPS = 32  # at most so many times ALIGNED between two tensors
ROOM = 1.25  # times the slabs' size that must be free
GATHERED = 16  # elements of every output that are read to stop the clock


@dataclass(frozen=True)
class Placed:
    """A tensor of one call: in which slab (0 inputs, 1 outputs), from which byte."""

    like: torch.Tensor
    slab: int
    at: int

    @property
    def span(self) -> int:
        return _span(self.like)


class Round:
    """`calls` siblings of a case's call: the sizes of the seed, values from the system's entropy.

    `blank`: all inputs are NaN, for a round in which nothing is computed. `values`: those of an earlier round, which
    had them from its `drawn`.
    """

    def __init__(
        self, exercise: Exercise, case: Case, seed: int, calls: int, device: str, tier: str, blank: bool = False,
        values: Iterable[int] = (),
    ):  # fmt: skip
        rng, drawn, again = random.SystemRandom(), [], iter(tuple(values))
        self.exercise, self.case, self.rng, self.drawn = exercise, case, rng, drawn

        def draw() -> Call:  # without `self`: a round that refers to itself keeps its tensors until it is collected
            drawn.append(next(again, None) or rng.getrandbits(62))
            return exercise.draw(case, seed, device, tier, values=drawn[-1])

        self._draw = draw
        like = self._draw()
        self.sizes = like.sizes
        returned = _returned(exercise, like.args)
        self._tensors = {n: v for n, v in like.args.items() if isinstance(v, torch.Tensor)} | returned
        self._outputs = [n for n in self._tensors if n in exercise.writes or n in returned]
        self._returned = list(returned)
        sizes, self._places = self._lay(calls)
        if device == "cuda" and torch.cuda.mem_get_info()[0] < ROOM * sum(sizes):
            # What earlier checks left to torch's allocator, a slab cannot use. But memory given back is memory moved:
            # the next slabs lie elsewhere, and the same kernel took 131 us a call in one place and 145 in another.
            torch.cuda.empty_cache()
        self.slabs = [slabs.slab(size, device) for size in sizes]
        for one in self.slabs:
            one.bytes.fill_(0xFF)  # NaN in every floating type
        known = like.args if blank or calls == 1 else None
        self.calls = [self._fill(places, known, blank) for places in self._places]

    def _lay(self, calls: int) -> tuple[list[int], list[dict[str, Placed]]]:
        """The sizes of both slabs, and every call's places in them."""
        order = [(number, name) for number in range(calls) for name in self._tensors]
        self.rng.shuffle(order)
        ends, places = [0, 0], [{} for _ in range(calls)]
        for number, name in order:
            which = int(name in self._outputs)
            at = ends[which] + ALIGNED * self.rng.randint(0, GAPS)
            places[number][name] = placed = Placed(self._tensors[name], which, at)
            ends[which] = -(-(at + placed.span) // ALIGNED) * ALIGNED
        return ends, places

    def _fill(self, places: dict[str, Placed], args: Values | None, blank: bool) -> dict:
        """Draw one call and put it into its places; its arguments, as views of the slabs."""
        args = dict(self._draw().args if args is None else args)
        for name in self._tensors:  # in the order of the arguments, then of what is returned
            view = self._view(places[name])
            if not blank and name not in self._outputs:
                view.copy_(args[name])
            args[name] = view
        return args

    def _view(self, place: Placed) -> torch.Tensor:
        whole = self.slabs[place.slab].bytes.view(place.like.dtype)
        return whole.as_strided(place.like.shape, place.like.stride(), place.at // place.like.element_size())

    def plan(self, calls: int | None = None) -> dict:
        """What the worker is told before it is given the memory; `calls`: only the first so many."""
        pairs = list(zip(self.calls, self._places, strict=True))[:calls]
        described = [[self._described(n, v, places) for n, v in call.items()] for call, places in pairs]
        return {"plan": described, "returned": len(self._returned), "probe": self.exercise.probe}

    def _described(self, name: str, value, places: dict[str, Placed]):
        return slabs.describe_tensor(value, places[name].slab) if name in places else encode(value)

    def outputs(self, number: int) -> Values:
        return {name: self.calls[number][name] for name in self._outputs}

    def bits(self) -> list[int]:
        """A number for every output of every call that hangs on all of its bits."""
        with quiet():
            found = [_sum_of_bits(out) for n in range(len(self.calls)) for out in self.outputs(n).values()]
            return torch.stack(found).tolist() if found else []

    def choose_gathered(self) -> None:
        """Choose random elements of every output. Before the clock starts, since the choice takes time."""
        bytes_of = [self._bytes_of_some(places[name]) for places in self._places for name in self._outputs]
        self._at = torch.cat(bytes_of).to(self.slabs[1].bytes.device) if bytes_of else None

    def _bytes_of_some(self, place: Placed) -> torch.Tensor:
        width, shape, stride = place.like.element_size(), place.like.shape, place.like.stride()
        if not place.like.numel():
            return torch.empty(0, dtype=torch.int64)
        starts = [
            place.at + width * sum(self.rng.randrange(n) * s for n, s in zip(shape, stride, strict=True))
            for _ in range(GATHERED)
        ]
        return (torch.tensor(starts)[:, None] + torch.arange(width)).flatten()

    def gather(self) -> torch.Tensor | None:
        """Those elements, on the host: reading them is what stops the clock."""
        return None if self._at is None else self.slabs[1].bytes[self._at].cpu()

    def wrong(self, limits: tolerance.Limits | None = None) -> str:
        """The first thing that is wrong with any output of any call, or ''. Every element is looked at.

        Without limits: all calls are checked against float64, for what one keeps from another. How precise they are was
        judged over all cases, and limits of one case alone scatter. So here the lower precision passes, as derived from
        all calls, and from further siblings where outputs have few elements. With limits: one random call is checked
        against float64, the rest against the reference kernel (or the exercise's honest computation in fp32), which is
        many times faster.
        """
        chosen = self.rng.randrange(len(self.calls))
        with quiet():
            if not limits:
                return self._far_from_truth()
            for number, args in enumerate(self.calls):
                if number != chosen:
                    why = self._far_from_good(number, limits)
                else:
                    why, _ = wrong(self.exercise, args, self.exercise.oracle(args), self._outcome(number), limits)
                if why:
                    return why
        return ""

    def _far_from_truth(self) -> str:
        known = [(args, self.exercise.oracle(args)) for args in self.calls]
        needed = 1 + tolerance.siblings_needed(known[0][1]) - len(known)
        others = (self._draw().args for _ in range(needed))
        known += [(args, self.exercise.oracle(args)) for args in others]
        limits = tolerance.at_lower(tolerance.derive_from_groups(self.exercise, [known]))
        for number, (args, want) in enumerate(known[: len(self.calls)]):
            group = [known[number], *known[:number], *known[number + 1 :]]
            why, _ = wrong(self.exercise, args, want, self._outcome(number), tolerance.of_call(limits, group))
            if why:
                return why
        return ""

    def _outcome(self, number: int) -> Outcome:
        return Outcome(outputs=self.outputs(number))

    def _far_from_good(self, number: int, limits: tolerance.Limits) -> str:
        good = self._good(self.calls[number])
        for name, got in self.outputs(number).items():
            limit = limits[name, got.dtype]["worst"]
            if not agree(got, good[name].to(got.dtype), limit.limit + limit.good):
                return f"`{name}`: an element further from the truth than {limit.limit:.1e}"
        return ""

    def _good(self, args: Values) -> Values:
        speed = self.exercise.speed
        reference = speed.kernel() if speed and self.slabs[1].bytes.is_cuda else None
        if not reference:
            return self.exercise.precision.good(args)
        fresh = {name: torch.empty_like(args[name]) for name in self.exercise.writes}
        passed = {name: value for name, value in args.items() if name not in self._returned}
        value = reference(*(passed | fresh).values())
        values = value if isinstance(value, tuple) else (value,)
        return fresh | dict(zip(self._returned, values, strict=False))

    def close(self) -> None:
        self.calls = []
        for one in self.slabs:
            one.close()


WIDTHS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _sum_of_bits(out: torch.Tensor) -> torch.Tensor:
    """Of rows, by their places: two answers that differ in a few last bits would rarely agree in it by chance."""
    bits = out.view(WIDTHS[out.element_size()])
    rows = (bits.sum(-1, dtype=torch.int64) if out.dim() > 1 else bits.to(torch.int64)).flatten()
    return (rows * torch.arange(1, len(rows) + 1, device=rows.device)).sum()


def bytes_of_a_call(exercise: Exercise, call: Call) -> int:
    """Memory of all tensors of one call."""
    return sum(_span(v) + ALIGNED * GAPS for v in call.args.values() if isinstance(v, torch.Tensor))


def _returned(exercise: Exercise, args: Values) -> Values:
    """Tensors like those that the function returns; the worker copies what is returned into such."""
    if not exercise.returns:
        return {}
    good = exercise.precision.good(args)
    return {name: torch.empty_like(good[name]) for name in exercise.returns}


def _span(tensor: torch.Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    return span(tensor.shape, tensor.stride()) * tensor.element_size()
