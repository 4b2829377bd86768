"""The vision tower: naive, strong and ours, forward, backward and peak memory, bf16, 256 images of 128 to 256 patches.

4 layers of So400m's widths. First every tower is run in every way that it has (eager and compiled; for strong each
attention backend too), held against the naive one in fp32, and timed alone: a row each. Then claims: ours, in the
faster of its ways, against the fastest way of strong and against the fastest of naive, in each direction by itself.
"peak" is the most at any time of forward and backward above weights and inputs, gradients of weights among it. The
floor is that of the products, scores of padding among them, at the measured ceiling.

Of 8 images a step takes less time than the host takes to ask for it. There the host's clock is held against a wait for
the device, with and without a CUDA graph.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch._functorch import config as donated_buffers
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.against import Case, Red, measure
from course_lib import memory
from course_lib.device import DEVICE, TIER, ceilings
from course_lib.meaning import ROOT, reached
from course_lib.models.siglip import Sizes, naive, ours, strong
from course_lib.models.siglip.frame import named_gradients
from course_lib.timing import time_gpu
from course_lib.timing.waiting import captured, waited_us

MODELS = ("vision", *(f"siglip/{name}" for name in ("frame", "naive", "strong", "ours", "again")))
MEASURES = (
    "benchmarks/tower.py",
    "course_lib/timing/waiting.py",
    *(f"course_lib/models/{name}.py" for name in MODELS),
    *(
        str(path.relative_to(ROOT))
        for path in reached(ROOT / "course_lib/models/siglip/ours.py", ["course_lib/kernels"])
    ),
)
SETTINGS = {  # of ours: what the MLP keeps, and whether norms are
    "pre-activation kept": ("pre-activation", "kept"),
    "input kept": ("input", "kept"),
    "input kept, norms again": ("input", "again"),
}
# What is to be reached, as a share of the other's time or memory.
OF_NAIVE = {"forward": 1 / 2.2, "backward": 1 / 1.6, "peak": 0.45}
FAST, SMALL = {"forward": 1 / 1.2, "backward": 1 / 1.15, "peak": 0.75}, {"backward": 1.0, "peak": 0.55}
OF_STRONG = dict(zip(SETTINGS, (FAST, SMALL, SMALL)))
SLACK = 1.25  # an error may be so many times that of the naive tower in the same type; a peer's twice as many
ZERO_ON_PAPER = "attention.k.bias"  # it moves all scores of a row alike: its gradient is rounding
SMALL_BATCH = 8


@dataclass(frozen=True)
class Setting:
    sizes: Sizes
    batch: int
    shortest: int  # lengths are drawn from here to all patches
    dtype: torch.dtype
    backend: str  # of torch.compile
    ways: dict[str, strong.Way]

    def __str__(self) -> str:
        return f"{self.batch} x {self.sizes.patches} x {self.sizes.width}, {self.sizes.layers} layers"


LARGE = Setting(Sizes.so400m(layers=4), 256, 128, torch.bfloat16, "inductor", strong.WAYS)
# The same code where there is no GPU, for the tests: without a claim.
TINY = Setting(
    Sizes(patch=3, patches=5, width=32, mlp=40, heads=2, layers=1), 3, 2, torch.float32, "aot_eager",
    {f"math, {word}": strong.Way(word == "compiled", SDPBackend.MATH) for word in ("eager", "compiled")},
)  # fmt: skip


def run(setting: Setting = LARGE) -> list[dict]:
    rows = []
    for row in (*_large(setting), *_small(replace(setting, batch=min(setting.batch, SMALL_BATCH)))):
        rows.append(row)
        print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


@dataclass(frozen=True)
class Given:
    """One batch, and the gradient of its result; padding is noise."""

    patches: torch.Tensor
    lengths: torch.Tensor
    dy: torch.Tensor

    def to(self, dtype: torch.dtype) -> Given:
        return Given(self.patches.to(dtype), self.lengths, self.dy.to(dtype))


def drawn(setting: Setting) -> Given:
    sizes, batch = setting.sizes, setting.batch
    random = torch.Generator(DEVICE).manual_seed(0)
    shapes = (batch, sizes.patches, sizes.patch), (batch, sizes.width)
    patches, dy = (torch.randn(one, generator=random, device=DEVICE, dtype=setting.dtype) for one in shapes)
    ends = setting.shortest, sizes.patches + 1
    return Given(patches, torch.randint(*ends, (batch,), generator=random, device=DEVICE), dy)


@dataclass(frozen=True)
class Candidate:
    """A tower in one way of running it."""

    tower: nn.Module
    call: Callable  # the tower, or what torch.compile made of it
    backend: SDPBackend | None = None

    def forward(self, given: Given) -> torch.Tensor:
        with nullcontext() if self.backend is None else sdpa_kernel(self.backend):
            return self.call(given.patches, given.lengths)

    def backward(self, given: Given) -> Callable[[], object]:
        y, weights = self.forward(given), list(self.tower.parameters())
        return lambda: torch.autograd.grad(y, weights, given.dy, retain_graph=True)

    def step(self, given: Given) -> object:
        return torch.autograd.grad(self.forward(given), list(self.tower.parameters()), given.dy)

    def results(self, given: Given) -> dict[str, torch.Tensor]:
        """The result and, by name, every gradient."""
        for p in self.tower.parameters():
            p.grad = None
        y = self.forward(given)
        y.backward(given.dy.to(y.dtype))
        found = {"y": y.detach()} | named_gradients(self.tower)
        for p in self.tower.parameters():
            p.grad = None
        return found


def candidates(setting: Setting) -> dict[str, Candidate]:
    """ "naive, eager", "strong, cudnn, compiled", "ours, input, eager" and so on, all with the same weights."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    first = naive.Tower(setting.sizes).to(DEVICE, setting.dtype)
    kinds = {"naive": (first, None)}
    for kept, held in SETTINGS.items():
        kinds[f"ours, {kept}"] = _with_weights_of(first, ours.Tower(setting.sizes, *held)), None
    found = {}
    for name, (tower, backend) in kinds.items():
        found[f"{name}, eager"] = Candidate(tower, tower, backend)
        found[f"{name}, compiled"] = Candidate(tower, _compiled(tower, setting), backend)
    for name, way in setting.ways.items():
        tower = _with_weights_of(first, strong.Tower(setting.sizes))
        found[f"strong, {name}"] = Candidate(tower, _compiled(tower, setting) if way.compiled else tower, way.backend)
    return found


def _with_weights_of(first: nn.Module, tower: nn.Module) -> nn.Module:
    tower.to(DEVICE, next(first.parameters()).dtype).load_state_dict(first.state_dict())
    return tower


def _compiled(tower: nn.Module, setting: Setting) -> Callable:
    return torch.compile(tower, backend=setting.backend, fullgraph=True, dynamic=False)


def right_ones(found: dict[str, Candidate], given: Given) -> tuple[dict[str, Candidate], dict[str, dict[str, float]]]:
    """Those that run and are as right as a peer has to be, and the errors of each. Ours has to be right: Red."""
    truth = _truth(found["naive, eager"].tower, given)
    kept, errors = {}, {}
    for name, one in found.items():
        try:
            errors[name] = _errors(one.results(given), truth)
        except RuntimeError as refused:  # a backend that does not take these shapes or this mask
            if not name.startswith("strong"):
                raise
            print(f"{name} is left out: {str(refused).splitlines()[0]}", flush=True)
            continue
        worst = max(errors[name][what] / errors["naive, eager"][what] for what in ("y", "gradients"))
        if name.startswith("ours") and not worst < SLACK:
            raise Red(f"{name} is wrong: {errors[name]}, naive in the same type {errors['naive, eager']}")
        if worst < 2 * SLACK:
            kept[name] = one
        else:
            print(f"{name} is left out: {errors[name]}", flush=True)
    return kept, errors


def _truth(tower: nn.Module, given: Given) -> dict[str, torch.Tensor]:
    """Of the naive tower, eager, in fp32, or of fp32 in fp64."""
    wider = torch.float64 if given.patches.dtype == torch.float32 else torch.float32
    exact = naive.Tower(tower.sizes).to(DEVICE, wider)
    exact.load_state_dict(tower.state_dict())
    return Candidate(exact, exact).results(given.to(wider))


def _errors(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> dict[str, float]:
    """||got - want|| / ||want|| of the result, and the largest of a gradient."""
    each = {
        name: ((got[name].to(exact.dtype) - exact).norm() / exact.norm()).item()
        for name, exact in want.items()
        if not name.endswith(ZERO_ON_PAPER)
    }
    of = max((name for name in each if name != "y"), key=each.get)
    return {"y": each["y"], "gradients": each[of], "largest of": of}


def _large(setting: Setting) -> Iterator[dict]:
    given = drawn(setting)
    peaks = {name: _peak(one, given) for name, one in candidates(setting).items() if _runs(one, given)}
    with donated_buffers.patch(donated_buffer=False):  # graphs are kept, so that backward can run again and again
        found, errors = right_ones(candidates(setting), given)
        seen = {name: _alone(one, given) | {"peak": peaks[name]} for name, one in found.items()}
        for name, row in seen.items():
            said = {f"error of {what}": x for what, x in errors[name].items()}
            yield {
                "name": f"tower {setting}: {name}", "value": row["forward"], "unit": "us",
                "backward us": row["backward"], "peak MiB": row["peak"],
            } | said  # fmt: skip
        for kept in SETTINGS:
            for what in ("forward", "backward"):
                for rival in ("strong", "naive"):
                    yield _against(what, kept, rival, setting, given, found, seen)
            yield _peaks(kept, setting, seen)


def _runs(one: Candidate, given: Given) -> bool:
    """False where a backend does not take these shapes or this mask; who else fails, fails."""
    try:
        one.step(given)
    except RuntimeError:
        if one.backend is None:
            raise
        return False
    return True


def _peak(one: Candidate, given: Given) -> float:
    """MiB of a step, with all that torch.compile does of itself: it may write over what it has kept."""
    gc.collect()
    return memory.peak(lambda: one.step(given)) / 2**20


def _alone(one: Candidate, given: Given) -> dict[str, float]:
    """A first look: us forward, with a graph for backward recorded, and us backward."""
    timed = {"cold": False, "precision": 0.01, "max_seconds": 0.5}
    forward = time_gpu(lambda: one.forward(given), **timed).us
    return {"forward": forward, "backward": time_gpu(one.backward(given), **timed).us}


def best(seen: dict[str, dict[str, float]], kind: str, what: str) -> str:
    """The name of the candidate of this kind with the least of `what`: "strong", or with a setting, "ours, SETTING"."""
    ways = [name for name in seen if name.rpartition(", ")[0] == kind or name.partition(", ")[0] == kind]
    return min(ways, key=lambda name: seen[name][what])


def _rival(seen: dict[str, dict[str, float]], kind: str, what: str) -> str:
    return "naive, eager" if kind == "naive" else best(seen, kind, what)


def _against(what, kept, rival, setting, given, found, seen) -> dict:
    names = best(seen, f"ours, {kept}", what), _rival(seen, rival, what)
    if what == "forward":
        mine, theirs = (lambda one=found[name]: one.forward(given) for name in names)
    else:
        mine, theirs = (found[name].backward(given) for name in names)
    sizes = setting.sizes
    flops = {"forward": sizes.forward_flops, "backward": sizes.backward_flops}[what](setting.batch)
    target = OF_STRONG[kept].get(what) if rival == "strong" else OF_NAIVE[what]
    case = Case(
        f"tower {what} {setting}, {kept}, against {rival}", mine, {rival: theirs}, lambda: None,
        target=target if TIER == "gpu" else None, method="events", work={"TFLOP/s": flops / 1e12},
    )  # fmt: skip
    row = measure(case) | {"our way": names[0], "their way": names[1]}
    if TIER == "gpu":
        floor = flops / ceilings().flops_per_s["bf16"] * 1e6
        row |= {"floor us": floor, "times the floor": row["value"] / floor}
    return row


def _peaks(kept: str, setting: Setting, seen: dict[str, dict[str, float]]) -> dict:
    least = {kind: seen[_rival(seen, kind, "peak")]["peak"] for kind in (f"ours, {kept}", "strong", "naive")}
    mine, theirs, plain = least.values()
    counted = ours.bytes_kept(setting.sizes, setting.batch, *SETTINGS[kept], setting.dtype.itemsize)
    return {
        "name": f"tower peak {setting}, {kept}", "value": mine, "unit": "MiB",
        "strong MiB": theirs, "of strong's": mine / theirs, "of strong's, to reach": OF_STRONG[kept]["peak"],
        "naive MiB": plain, "of naive's": mine / plain, "of naive's, to reach": OF_NAIVE["peak"],
        "kept MiB, counted": counted / 2**20,
    }  # fmt: skip


def _small(setting: Setting) -> Iterator[dict]:
    """A whole step by the host's clock, until the device has done it."""
    given = drawn(setting)
    found = {name: one for name, one in candidates(setting).items() if "again" not in name}
    found, _ = right_ones(found, given)
    for name, one in found.items():
        row = {"name": f"tower step {setting}: {name}", "unit": "us"}
        row["value"] = waited_us(lambda one=one: one.step(given))
        if TIER == "gpu":
            row["in a graph us"] = waited_us(captured(lambda one=one: one.step(given)))
        yield row
