"""python -m benchmarks.launch_costs: what kernels cost the host, a JSON line each.

    calls    one call of each public kernel, so small that the device is always done first: the time of Python, of
             Triton's launcher and of the driver; and how many planned calls of it met addresses for the first time
    steps    forward and backward, eager, waited for: ours, ours as launchers are written (every launch through
             Triton), and what torch has. "of the fastest peer" is to be at most 1.3
    tower    the same of a training step of 8 images, ours against strong, and where the host's time goes

Medians of rounds in turn over all that is compared, so that a slower moment of the machine meets all of them alike.
"""

import contextlib
import cProfile
import gc
import json
import pstats
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch
import triton
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton import knobs

from course_lib.device import DEVICE, machine
from course_lib.kernels import launching
from course_lib.kernels.add_norm import add_norm, add_norm_reference
from course_lib.kernels.add_norm.backward import write_backward
from course_lib.kernels.attention import attention
from course_lib.kernels.attention.backward import backward
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.linear_gelu import linear_gelu, linear_gelu_grouped, linear_gelu_persistent
from course_lib.kernels.matmul import matmul
from course_lib.kernels.mlp import mlp, mlp_reference
from course_lib.kernels.mx import mx_linear, quantize
from course_lib.kernels.rope import Tables, rope, rope_
from course_lib.timing.waiting import captured, waited_us

__all__ = ["as_written", "calls", "measured", "steps"]

ROUNDS, CALLS = 41, 100
TO_REACH = 1.3  # of the fastest peer's time
LIMIT = 2e-2  # ours against a peer, relative, over all results and gradients: both round to bf16
ATTENTION = (4, 16, 512, 64), (1, 8, 256, 64)
ROWS, WIDTH, HIDDEN = 512, 1152, 4304


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Launches are watched, so every one of them goes through Triton."""
    chain = knobs.runtime.launch_enter_hook
    chain.add(_seen)
    try:
        yield
    finally:
        chain.remove(_seen)


def _seen(metadata) -> None:
    """Of a launch; nothing is done with it."""


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)


def calls() -> dict[str, Callable[[], object]]:
    found = {}
    for D, heads, kv_heads in ((64, 4, 4), (72, 4, 2)):
        q, k, v = (_random(1, h, 64, D) for h in (heads, kv_heads, kv_heads))
        o, l = forward(q, k, v, True, 0.1)
        found |= {
            f"attention forward, head size {D}": lambda q=q, k=k, v=v: forward(q, k, v, True, 0.1),
            f"attention backward, head size {D}": lambda q=q, k=k, v=v, o=o, l=l: backward(o, q, k, v, o, l, True, 0.1),
            f"attention, head size {D}": lambda q=q, k=k, v=v: attention(q, k, v, causal=True),
        }
    q, k = _random(1, 4, 16, 64), _random(1, 2, 16, 64)
    angle = torch.arange(16.0)[:, None] / torch.arange(1.0, 33.0)
    tables = Tables(angle.cos().to(DEVICE), angle.sin().to(DEVICE))
    positions = torch.arange(16, device=DEVICE)[None]
    x, s, weight, bias = (_random(*shape) for shape in ((16, 128), (16, 128), (128,), (128,)))
    w, hidden = _random(256, 128), _random(256)
    N, K = (512, 2048) if DEVICE == "cuda" else (16, 64)
    held, one, some = quantize(_random(N, K)), _random(1, K), _random(16, K)
    needs = x.clone().requires_grad_()
    y, total = add_norm(needs, s, weight, bias)
    d, dw, db = (torch.empty_like(t) for t in (s, weight, bias))
    mean, rstd = (torch.zeros(len(x), device=DEVICE) for _ in range(2))
    leaf, *others, do = (_random(1, 4, 64, 64) for _ in range(4))
    out = attention(leaf.requires_grad_(), *others)
    return found | {
        "rope": lambda: rope(q, k, tables),
        "rope with positions": lambda: rope(q, k, tables, positions=positions),
        "rope_": lambda: rope_(q, k, tables),
        "add_norm": lambda: add_norm(x, s, weight, bias),
        "add_norm backward": lambda: write_backward(d, None, dw, db, x, s, x, weight, mean, rstd),
        "add_norm backward by autograd": lambda: torch.autograd.grad((y, total), needs, (x, s), retain_graph=True),
        "attention backward by autograd": lambda: torch.autograd.grad(out, leaf, do, retain_graph=True),
        "linear_gelu": lambda: linear_gelu(x, w, hidden),
        "linear_gelu_grouped": lambda: linear_gelu_grouped(x, w, hidden),
        "linear_gelu_persistent": lambda: linear_gelu_persistent(x, w, hidden),
        "matmul": lambda: matmul(x, w.T),
        "mx_linear, 1 row": lambda: mx_linear(one, held),
        "mx_linear, 16 rows": lambda: mx_linear(some, held),
    }


def _batch(call: Callable[[], object], count: int) -> float:
    """Seconds of the host a call."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measured(rounds: int = ROUNDS, count: int = CALLS) -> list[dict]:
    every = calls()
    for call in every.values():  # compiled and warmed up before anything is timed
        _batch(call, min(count, 20))
    seconds: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, call in every.items():
            seconds[name].append(_batch(call, count))
    return [
        {"name": name, "us": round(median(taken) * 1e6, 2), "least": round(min(taken) * 1e6, 2)}
        | {"with new addresses": _not_ready(every[name])}
        for name, taken in seconds.items()
    ]


@dataclass(frozen=True)
class Way:
    """One way to make a step, and what holds around it."""

    name: str
    step: Callable[[], tuple]  # results and gradients
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext


def _step(function: Callable, leaves: list) -> Callable[[], tuple]:
    """Forward, then the gradients of all leaves. Nothing of it stays alive: a graph is captured on another stream."""
    with torch.no_grad():
        y = function(*leaves)
        dy = torch.randn(y.shape, dtype=y.dtype, device=y.device)  # the same for all, whatever y's strides are

    def step():
        y = function(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, dy)

    return step


def _ours(step: Callable) -> list[Way]:
    return [Way("ours", step), Way("ours as written", step, as_written)]


def steps() -> dict[str, list[Way]]:
    """Ours first."""
    found = {}
    for shape in ATTENTION:
        leaves = [_random(*shape).requires_grad_() for _ in range(3)]
        torch.manual_seed(0)
        ways = _ours(_step(attention, leaves))
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            torch.manual_seed(0)
            with contextlib.suppress(RuntimeError):  # one that does not take these shapes
                with sdpa_kernel(backend):
                    peer = _step(torch.nn.functional.scaled_dot_product_attention, leaves)
                    peer()
                ways.append(Way(backend.name, peer, lambda backend=backend: sdpa_kernel(backend)))
        found["attention " + " x ".join(map(str, shape))] = ways
    weights = [_random(HIDDEN, WIDTH), _random(HIDDEN), _random(WIDTH, HIDDEN), _random(WIDTH)]
    leaves = [x.mul_(WIDTH**-0.5).requires_grad_() for x in weights]
    leaves = [_random(ROWS, WIDTH).requires_grad_(), *leaves]
    vectors = [_random(WIDTH).requires_grad_() for _ in range(2)]
    matrices = [_random(ROWS, WIDTH).requires_grad_() for _ in range(2)]
    for name, ours, peer, given in (
        (f"mlp {ROWS} x {WIDTH} -> {HIDDEN}", mlp, mlp_reference, leaves),
        (f"add_norm {ROWS} x {WIDTH}", _sum_of(add_norm), _sum_of(add_norm_reference), [*matrices, *vectors]),
    ):
        torch.manual_seed(0)
        ways = _ours(_step(ours, given))
        torch.manual_seed(0)
        found[name] = [*ways, Way("eager torch", _step(peer, given))]
    return found


def _sum_of(function: Callable) -> Callable:
    """y + s: both results of add_norm have a gradient."""
    return lambda *given: torch.add(*function(*given))


def tower_steps() -> list[Way]:
    from benchmarks.tower import LARGE, SMALL_BATCH, Candidate, drawn
    from course_lib.models.siglip import ours, strong

    setting = replace(LARGE, batch=SMALL_BATCH)
    given = drawn(setting)
    torch.manual_seed(0)
    first = ours.Tower(setting.sizes).to(DEVICE, setting.dtype)
    other = strong.Tower(setting.sizes).to(DEVICE, setting.dtype)
    other.load_state_dict(first.state_dict())
    mine = Candidate(first, first)
    ways = _ours(lambda: mine.step(given))
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        one = Candidate(other, other, backend)
        ways.append(Way(f"strong, {backend.name}", lambda one=one: one.step(given)))
    return ways


def _difference(a: tuple, b: tuple) -> float:
    """The largest |a - b| / |b| of a pair."""
    pairs = [(x.detach().double(), y.detach().double()) for x, y in zip(a, b, strict=True)]
    return max(float((x - y).norm() / y.norm()) for x, y in pairs)


def compared(name: str, ways: list[Way], check: bool = True, rounds: int = 7, times: int = 20) -> dict:
    """Every way waited for, in turn."""
    row: dict = {"name": name}
    results = {}
    for way in ways:
        with way.around():
            for _ in range(4):
                results[way.name] = way.step()
    ours, plain, *peers = ways
    row["same bits"] = all(map(torch.equal, results[ours.name], results[plain.name]))
    if check:
        assert row["same bits"], f"{name}: another result where launchers run as they are written"
        row["differs by"] = max(_difference(results[ours.name], results[peer.name]) for peer in peers)
        assert row["differs by"] < LIMIT, f"{name}: ours and a peer differ by {row['differs by']}"
    us, of_peer = _in_turn(ways, rounds, times)
    row |= us | {"of the fastest peer": of_peer, "to reach": TO_REACH}
    with torch.autograd.set_multithreading_enabled(False):  # backward stays in the thread that asks for it
        us, of_peer = _in_turn([ours, *peers], rounds, times)
    row |= {f"in one thread, {one}": x for one, x in us.items()} | {"in one thread, of the fastest peer": of_peer}
    if DEVICE == "cuda":
        row["asked for in us"] = round(_batch(ours.step, 20) * 1e6, 1)
        row["calls a step with new addresses"] = _not_ready(ours.step)
        results.clear()
        gc.collect()
        row["in a graph us"] = round(waited_us(captured(ours.step)), 1)
    return row


def _in_turn(ways: list[Way], rounds: int, times: int) -> tuple[dict[str, float], float]:
    """us of each way, and of the first over the fastest of those that are not ours."""
    taken: dict[str, list[float]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            with way.around():
                taken[way.name].append(waited_us(way.step, times))
    us = {name: median(many) for name, many in taken.items()}
    fastest = min(x for name, x in us.items() if not name.startswith("ours"))
    return {f"{name} us": round(x, 1) for name, x in us.items()}, round(us[ways[0].name] / fastest, 3)


def _not_ready(step: Callable, times: int = 10) -> float:
    """Planned calls of a step whose addresses came for the first time, or again after they were forgotten."""
    made, original = [], launching._made_ready

    def counted(*given):
        made.append(None)
        return original(*given)

    launching._made_ready = counted
    try:
        for _ in range(times):
            step()
    finally:
        launching._made_ready = original
    return len(made) / times


def profiled(name: str, step: Callable[[], object], times: int = 20, most: int = 25) -> list[dict]:
    """The functions with most time of their own; backward runs in this thread, where it can be seen."""
    with torch.autograd.set_multithreading_enabled(False):
        step()
        with cProfile.Profile() as profile:
            for _ in range(times):
                step()
        torch.cuda.synchronize()
    rows = []
    for (file, line, function), (_, calls, own, with_callees, _) in pstats.Stats(profile).stats.items():
        where = f"{'/'.join(file.split('/')[-3:])}:{line} {function}" if line else function
        figures = (round(own / times * 1e6, 1), round(with_callees / times * 1e6, 1), round(calls / times, 1))
        rows.append(
            {"profile of": name, "function": where} | dict(zip(("own us", "with callees us", "calls"), figures))
        )
    return sorted(rows, key=lambda row: -row["own us"])[:most]


def main() -> None:
    print(json.dumps({"machine": machine().name, "torch": torch.__version__, "triton": triton.__version__}))
    for row in measured():
        print(json.dumps(row), flush=True)
    if DEVICE != "cuda":
        return
    every = steps()
    for name, ways in every.items():
        print(json.dumps(compared(name, ways)), flush=True)
    name, ways = "tower step of 8 images", tower_steps()
    print(json.dumps(compared(name, ways, check=False, rounds=5, times=10)), flush=True)
    for row in profiled(name, ways[0].step):
        print(json.dumps(row), flush=True)
    for name, ways in every.items():
        for row in profiled(name, ways[0].step, most=12):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
