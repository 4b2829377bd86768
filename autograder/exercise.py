"""What an exercise is: plain data that says how inputs are drawn, what is true and which wrong answers are known.

Nothing here runs a submission. `check` (in a notebook) and the referee (in another process) both walk

    exercise.cases -> Case.draw(Draw) -> Call -> the student's function -> judging.judge -> Verdict
"""

from __future__ import annotations

import hashlib
import importlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from course_lib import device

Values = Mapping[str, Any]  # argument or output name -> tensor, number, string, list or dict


@dataclass(frozen=True)
class Call:
    """The arguments of one call, in the order in which they are passed."""

    args: dict[str, Any]
    sizes: str  # what a report says about this call: "n = 1031"
    secret: dict[str, Any] = field(default_factory=dict)  # what only the oracle is given (a simulator's truth)


@dataclass
class Draw:
    """A source of random sizes and values. One seed gives the same draw on every machine.

    With `values`, the sizes are still those of the seed but the values are others, made on the device itself. With
    `sizes`, the values are those of the seed and the sizes, with all else that is no tensor, are those of `sizes`.
    """

    seed: int
    device: str  # where tensors are put: "cpu" or "cuda"
    tier: str  # "interpreter" or "gpu"
    values: int | None = None
    bf16: bool = True  # False: the device has none, and bf16 is drawn as fp16
    share: float = 1.0  # of the sizes of timed cases that the device's memory has room for
    sizes: int | None = None
    replaced: bool = field(default=False, init=False)  # was fp16 drawn in the place of bf16?
    rng: random.Random = field(init=False)
    _torch: torch.Generator = field(init=False)

    def __post_init__(self):
        self.rng = random.Random(self.seed if self.sizes is None else self.sizes)
        where, seed = ("cpu", self.seed) if self.values is None else (self.device, self.values)
        self._torch = torch.Generator(where).manual_seed(seed % 2**63)

    def integer(self, low: int, high: int) -> int:
        """An integer from low to high, both included."""
        return self.rng.randint(low, high)

    def odd(self, low: int, high: int) -> int:
        """An odd integer from low to high; an even end stands for the odd number after it."""
        return 2 * self.integer(low // 2, high // 2) + 1

    def sized(self, full: int, least: int = 1) -> int:
        """A size of a timed case, smaller where the device has little memory."""
        return max(least, round(full * self.share))

    def type_of(self, dtype: torch.dtype) -> torch.dtype:
        """The type that is drawn for `dtype`."""
        if dtype != torch.bfloat16 or self.bf16:
            return dtype
        self.replaced = True
        return torch.float16

    def choice(self, options):
        return self.rng.choice(list(options))

    def number(self, low: float, high: float) -> float:
        return self.rng.uniform(low, high)

    def normal(self, *shape: int, dtype=torch.float32, mean=0.0, std=1.0, strides=None) -> torch.Tensor:
        """Normal values; `strides` (in elements) lays the same values out with gaps or transposed."""
        values = torch.randn(shape, generator=self._torch, device=self._torch.device)
        if (std, mean) != (1.0, 0.0):
            values = values * std + mean
        return self.lay_out(values.to(self.type_of(dtype)), strides)

    def uniform(self, *shape: int, low=0.0, high=1.0, dtype=torch.float32, strides=None) -> torch.Tensor:
        values = torch.rand(shape, generator=self._torch, device=self._torch.device) * (high - low) + low
        return self.lay_out(values.to(self.type_of(dtype)), strides)

    def integers(self, *shape: int, low: int, high: int, dtype: torch.dtype, strides=None) -> torch.Tensor:
        """From low to high, both included."""
        values = torch.randint(low, high + 1, shape, generator=self._torch, device=self._torch.device, dtype=dtype)
        return self.lay_out(values, strides)

    def empty(self, *shape: int, dtype=torch.float32, strides=None) -> torch.Tensor:
        """An output for the submission to fill: NaN wherever its type allows."""
        dtype = self.type_of(dtype)
        values = torch.full(shape, float("nan") if dtype.is_floating_point else 0, dtype=dtype, device=self.device)
        return self.lay_out(values, strides)

    def lay_out(self, values: torch.Tensor, strides=None) -> torch.Tensor:
        values = values.to(self.device)
        if strides is None:
            return values
        laid = torch.empty_strided(values.shape, strides, dtype=values.dtype, device=self.device)
        return laid.copy_(values)


ON_GPU = ("gpu",)  # tiers of what the interpreter cannot run, or only in minutes


@dataclass(frozen=True)
class Case:
    """One kind of situation. The name is stable and public; `Exercise.draw` says what is drawn from a run's seed."""

    name: str
    draw: Callable[[Draw], Call]
    tiers: tuple[str, ...] = ("interpreter", "gpu")
    live: bool = True  # False: too slow or too large for the instant answer in a notebook
    part: Callable[[torch.Tensor], torch.Tensor] | None = None  # of a huge case: which part of every tensor is judged
    share: float = 0.0  # runs where `device.share_of_sizes()` is at least this: 0.5 needs a card of 24 GB, 1 one of 40

    @property
    def runs_here(self) -> bool:
        return device.TIER in self.tiers and (self.share == 0 or device.share_of_sizes() >= self.share)


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people really write, so that it can be called by its name.

    `answer` computes it: the same arguments as the oracle, the same outputs, but wrong. Where the wrong answer
    depends on something the submission chose (a block size), it takes one of `variants` as a second argument.
    `sign` recognises it from the evidence of all cases instead, where no formula can (a write out of bounds).
    `rounds` is for one that only rounds the inputs: with it, what becomes of this and another mistake in one answer is
    known too.
    """

    name: str  # "no_mask": also the file name in the bank
    says: str  # the likely cause and the next thing to try, in words for the student
    answer: Callable[..., Values] | None = None
    variants: tuple = ()
    sign: Callable[[Any], bool] | None = None  # takes judging.diagnose.Evidence
    rounds: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = ()  # ways in which it rounds every input


@dataclass(frozen=True)
class Precision:
    """Two honest computations that bracket the tolerance: `good` must pass and `lower` must not.

    Both take the arguments and return the outputs as the oracle does, in the precision their name says.
    """

    good: Callable[[Values], Values]
    good_is: str  # "fp32 throughout"
    lower: Callable[[Values], Values]
    lower_is: str  # "inputs rounded to TF32"
    floor_ulps: float = 2.0  # no honest answer is asked to do better: two roundings of an output near 1
    by_row: bool = True  # whether each row counts by itself; where its terms may cancel, its error has no usual size


@dataclass(frozen=True)
class Speed:
    """Points for speed: the share of the floor that this device's measured ceilings allow."""

    points: float
    cases: tuple[Case, ...]  # sizes where the reference takes at least 50 us on the fastest device we know
    floor_s: Callable[[Values, Any], float]  # (arguments, device.Ceilings) -> seconds
    full: float = 0.9  # share of the floor, or of the reference's speed, that earns all points
    none: float = 0.3  # share that earns nothing; linear between
    products: bool = False  # the floor is that of tensor cores
    least_kernels: Callable[[Values], int] | None = None  # a timed call runs at least so many on the device
    reference: str | None = None  # "course_lib.kernels.softmax:softmax", same arguments as the entry point

    def kernel(self) -> Callable | None:
        """The reference kernel, where this copy of the course has it."""
        module, _, name = (self.reference or "").partition(":")
        try:
            return getattr(importlib.import_module(module), name) if module else None
        except ModuleNotFoundError:
            return None


@dataclass(frozen=True)
class Exercise:
    name: str  # "roofline.softmax"
    entry: str  # the function the notebook must define
    points: float  # for being right; speed.points come on top, in a grade cell of their own
    kind: str  # "kernel": tensors judged against float64; "scenario": plain data; "distributed": see ranks.py
    cases: tuple[Case, ...]
    oracle: Callable[[Values], Values]  # args and secret -> float64 tensors or plain data, one entry an output
    mistakes: tuple[Mistake, ...]
    about: str = ""  # what it is about, in one line
    point: tuple[str, ...] = ()  # cases that hold this: while one of them is wrong, at most half of the points
    parts: tuple[tuple[str, float], ...] = ()  # outputs that earn points by themselves, and their shares of all points
    writes: tuple[str, ...] = ()  # arguments that the function fills; poisoned with NaN before the call
    returns: tuple[str, ...] = ()  # names of the returned values
    precision: Precision | None = None  # kernels
    accept: Callable[[Any, Any, Values], str | None] | None = None  # scenarios: (got, want, args) -> what is wrong
    speed: Speed | None = None
    probe: str = ""  # "module:name" of what calls the function instead, and returns what it saw: probe(function, *args)
    hides: tuple[str, ...] = ()  # packages and modules that a submission has not: they tell the answer
    tiers: tuple[str, ...] = ("interpreter", "gpu")
    launches: bool = True  # a kernel exercise must launch at least one Triton kernel
    allowed: tuple[str, ...] = ()  # operators of torch that may compute beside the kernels: "aten::mm"
    most: Callable[[Values], Mapping[str, int]] | None = None  # how many numbers these may work on: see inside/numbers
    scratch: Callable[[Values], float] | None = None  # so many numbers beside the arguments hold what may not be held
    multiplies: Callable[[Values], float] | None = None  # what torch may multiply takes fewer multiplications than this
    public: tuple[str, ...] = ()  # tensors on whose values the code around kernels may depend: lengths, say
    deterministic: bool = False  # no atomics: results must not depend on program order
    where: Callable[[str, torch.Tensor, Values], str] | None = None  # (output, wrong elements, args) -> their places
    shows_not: str = ""  # what the interpreter tier cannot show about this exercise, in one sentence
    alike: bool = True  # where answers are tensors, all grading runs draw the same sizes

    @property
    def asks_for_kernels(self) -> bool:
        return self.kind == "kernel" and self.launches

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.writes + self.returns

    @property
    def without_room(self) -> str:
        """The cases that this device's memory is too small for, in words for a report; "" where there are none."""
        names = [f"\u201c{case.name}\u201d" for case in self.cases if device.TIER in case.tiers and not case.runs_here]
        return f"{', '.join(names)}, which this card's memory has no room for" if names else ""

    def draw(self, case: Case, seed: int, where: str, tier: str, values: int | None = None) -> Call:
        """The call of one case in one grading run; independent of which other cases run.

        Which mistakes a case shows is decided by its sizes: a mask that is missing is seen where a block is partial.
        So the sizes of an answer in tensors are the same in all runs, and the same answer earns the same points; its
        values are those of the seed. Plain data is all values: see exercises/telling.py.

        `values`: a sibling of that call, of the same sizes but with other values.
        """
        here = {"bf16": device.has_bf16(), "share": device.share_of_sizes()} if where == "cuda" else {}
        sizes = self._number("sizes", case) if self.alike and self.kind != "scenario" else None
        draw = Draw(self._number(seed, case), where, tier, values, **here, sizes=sizes)
        call = case.draw(draw)
        return replace(call, sizes=f"{call.sizes}; fp16, since this card has no bf16") if draw.replaced else call

    def _number(self, seed: int | str, case: Case) -> int:
        """What a case draws from under a seed."""
        digest = hashlib.sha256(f"{seed}/{self.name}/{case.name}".encode()).digest()
        return int.from_bytes(digest[:8], "little")

    def timed_sizes(self, call: Call) -> str:
        """What a report says about a timed call."""
        slow = self.speed.products and not device.has_bf16()
        return f"{call.sizes}; Triton uses no tensor cores on this card" if slow else call.sizes

    def mistake(self, name: str) -> Mistake:
        return next(m for m in self.mistakes if m.name == name)


# The folders of autograder/exercises: each is a package with EXERCISES, in the order of its lesson
UNITS = tuple(sorted(path.parent.name for path in (Path(__file__).parent / "exercises").glob("*/__init__.py")))


def of_unit(unit: str) -> tuple[Exercise, ...]:
    return importlib.import_module(f"autograder.exercises.{unit}").EXERCISES


def registry() -> dict[str, Exercise]:
    """Every exercise, by name."""
    return {exercise.name: exercise for unit in UNITS for exercise in of_unit(unit)}


def find(name: str) -> Exercise | None:
    """An exercise by its name; only its own unit is imported."""
    unit = name.partition(".")[0]
    return next((one for one in of_unit(unit) if one.name == name), None) if unit in UNITS else None


def get(name: str) -> Exercise:
    """An exercise that there is."""
    found = find(name)
    if found is None:
        raise KeyError(f"no exercise is called {name!r}; there are {', '.join(sorted(registry()))}")
    return found
