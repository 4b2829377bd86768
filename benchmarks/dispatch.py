"""What a call costs the host, layer by layer: x + y on 8 numbers, where the arithmetic takes next to nothing.

Every row adds one thing to the plain call `torch.add(x, y)` or takes one away. Rows are timed in turn, a batch each, so
that whatever drifts meets all alike; from each the cost of an empty function and of the loop is taken off. On a GPU the
device is waited for before each batch: what is measured is how long the host needs to hand the work over. Runs with or
without a GPU; with one, the ways around a Triton launch come on top.

From one process to the next the same call can differ by half. So several processes measure, one after the other; a row
gives the median of their medians, and the least and the largest.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.against import Red
from benchmarks.launches import add_kernel, add_many_kernel
from course_lib.device import DEVICE
from course_lib.results import ROOT

MEASURES = ("benchmarks/dispatch.py", "benchmarks/launches.py")
NUMBERS = 8
BATCH_S = 2e-3
ROUNDS = 61
PROCESSES = 5
PLAIN = "torch.add(x, y)"

Setting = tuple[Callable[[], object], Callable[[], contextlib.AbstractContextManager]]  # the call, and around what


# -------------------------------------------------------------------------------------------------- the layers


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)

    def __init__(self, held):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[a.held if isinstance(a, cls) else a for a in args], **(kwargs or {})))


class Plus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


@torch.library.custom_op("speed_of_light_bench::plus", mutates_args=())
def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@contextlib.contextmanager
def by_key() -> Iterator[Callable]:
    """The same operator with one kernel in Python, on the key of this device's backend."""
    with torch.library._scoped_library("speed_of_light_bench_key", "DEF") as library:
        library.define("plus(Tensor x, Tensor y) -> Tensor")
        library.impl("plus", lambda x, y: x + y, DEVICE.upper())
        yield torch.ops.speed_of_light_bench_key.plus.default


def layers(key_plus: Callable) -> dict[str, Setting]:
    """name -> a call that gives x + y, and the context in which it is made."""
    x, y = (torch.arange(NUMBERS, dtype=torch.float32, device=DEVICE) + i for i in range(2))
    needs = x.clone().requires_grad_()
    out, aten, none = torch.empty_like(x), torch.ops.aten.add.Tensor, contextlib.nullcontext
    with torch.inference_mode():
        inferred, inferred_y = x.clone(), y.clone()
    sub, wrapped, wrapped_y = x.as_subclass(Subclass), Wrapper(x), Wrapper(y)
    meta = x.to("meta")
    fake = FakeTensorMode()
    faked = fake.from_tensor(x)

    def add():
        return torch.add(x, y)

    @contextlib.contextmanager
    def two_modes():
        with Mode(), Mode():
            yield

    return {
        PLAIN: (add, none),
        "x + y": (lambda: x + y, none),
        "into memory that is there": (lambda: torch.add(x, y, out=out), none),
        "torch.ops.aten.add.Tensor": (lambda: aten(x, y), none),
        "in no_grad": (add, torch.no_grad),
        "inference tensors, inference mode": (lambda: torch.add(inferred, inferred_y), torch.inference_mode),
        "a gradient is required": (lambda: torch.add(needs, y), none),
        "in an autograd.Function": (lambda: Plus.apply(x, y), none),
        "in an autograd.Function, a gradient required": (lambda: Plus.apply(needs, y), none),
        "in autocast": (add, lambda: torch.autocast(DEVICE, dtype=torch.bfloat16)),
        "under a function mode": (add, FunctionMode),
        "under a dispatch mode": (add, Mode),
        "under two dispatch modes": (add, two_modes),
        "a subclass": (lambda: torch.add(sub, y), none),
        "a wrapper with __torch_dispatch__": (lambda: torch.add(wrapped, wrapped_y), none),
        "a kernel in Python on one key": (lambda: key_plus(x, y), none),
        "torch.library.custom_op": (lambda: plus(x, y), none),
        "on meta": (lambda: torch.add(meta, meta), none),
        "a fake tensor": (lambda: torch.add(faked, faked), none),
    } | (on_a_gpu(x, y) if DEVICE == "cuda" else {})


def on_a_gpu(x: torch.Tensor, y: torch.Tensor) -> dict[str, Setting]:
    """Launches that go round the dispatcher, and programs that were compiled."""
    none, out = contextlib.nullcontext, torch.empty_like(x)

    def launched():
        add_kernel[(1,)](out, x, y, NUMBERS, BLOCK=16)
        return out

    def launched_with_many():
        add_many_kernel[lambda meta: (-(-NUMBERS // meta["BLOCK"]),)](
            out, x, y, x, y, *x.stride(), *y.stride(), *out.stride(), NUMBERS, 1.0, BLOCK=16
        )
        return out

    compiled = torch.compile(lambda a, b: a + b)
    replayed = torch.compile(lambda a, b: a + b, mode="reduce-overhead")
    for _ in range(4):  # compiled, warmed up and captured before anything is timed
        compiled(x, y), replayed(x, y)
    return {
        "a Triton launch": (launched, none),
        "a Triton launch with many arguments": (launched_with_many, none),
        "torch.compile": (lambda: compiled(x, y), none),
        "torch.compile, reduce-overhead": (lambda: replayed(x, y), none),
    }


# ------------------------------------------------------------------------------------------------ the measuring


def run() -> list[dict]:
    """One row a layer: microseconds a call, between which of all processes, and what is above the plain call."""
    line = [sys.executable, "-W", "ignore", "-m", "benchmarks.dispatch"]
    told = [subprocess.run(line, cwd=ROOT, capture_output=True, text=True) for _ in range(PROCESSES)]
    for one in told:
        if one.returncode:
            raise Red(one.stderr.strip().splitlines()[-1] if one.stderr.strip() else "a process ended early")
    return together([json.loads(one.stdout.splitlines()[-1]) for one in told])


def together(found: list[list[dict]]) -> list[dict]:
    """The rows of several processes as one: the median, the least and the largest of their medians."""
    rows = []
    for same in zip(*found, strict=True):
        us = [row["us"] for row in same]
        rows.append({"name": same[0]["name"], "us": median(us), "low_us": min(us), "high_us": max(us)})
    plain = next(row["us"] for row in rows if row["name"] == PLAIN)
    return [row | {"above_plain_us": row["us"] - plain} for row in rows]


def measured(rounds: int = ROUNDS) -> list[dict]:
    """The rows of this process."""
    with by_key() as key_plus:
        settings = layers(key_plus)
        for name, setting in settings.items():
            _check(name, *setting)
        return _timed({"": (lambda: None, contextlib.nullcontext), **settings}, rounds)


def _check(name: str, call: Callable, around: Callable) -> None:
    """A layer that gives something else, or nothing, is not timed."""
    with around():
        got = call()
    held = getattr(got, "held", got).detach()
    if held.is_meta or isinstance(got, torch._subclasses.FakeTensor):
        right = tuple(got.shape) == (NUMBERS,)
    else:
        right = held.tolist() == [2.0 * i + 1 for i in range(NUMBERS)]
    if not right:
        raise Red(f"{name} does not give x + y")


def _timed(settings: dict[str, Setting], rounds: int) -> list[dict]:
    counts = {name: _calls_a_batch(*setting) for name, setting in settings.items()}
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(rounds):
        for name, setting in settings.items():
            seconds[name].append(_batch(*setting, counts[name]))
    nothing = median(seconds.pop(""))
    return [{"name": name, "us": (median(taken) - nothing) * 1e6} for name, taken in seconds.items()]


def _calls_a_batch(call: Callable, around: Callable) -> int:
    _batch(call, around, 50)
    return max(20, round(BATCH_S / _batch(call, around, 50)))


def _batch(call: Callable, around: Callable, count: int) -> float:
    """Seconds a call, the context already entered."""
    with around():
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - start) / count


if __name__ == "__main__":
    print(json.dumps(measured()))
