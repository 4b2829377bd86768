"""Does time_gpu agree with triton.testing.do_bench, and what does a sweep of the cache leave behind?

Kernels from about 10 us to 10 ms. Both timers sweep the same number of bytes; do_bench writes them and time_gpu reads.
The last rows time one product of a matrix and a vector behind both sweeps, and with weights of its own in each call and
no sweep, which is what a model does.
"""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from unittest import mock

import torch
from triton.testing import do_bench

from benchmarks.against import ring_of
from course_lib.timing import Timing, stopwatch, time_gpu, time_graph

MEASURES = (
    "course_lib/timing/__init__.py",
    "course_lib/timing/clocks.py",
    "course_lib/timing/rounds.py",
    "course_lib/timing/sampling.py",
    "course_lib/timing/stopwatch.py",
)

ROUNDS = 5  # at 9 us both timers differ from themselves by 5 to 7 % between two calls


def kernels() -> dict[str, Callable[[], object]]:
    """name -> one call; every call writes into memory it already has."""
    calls: dict[str, Callable[[], object]] = {}
    for mib in (8, 64, 512, 4096, 16384):
        x = torch.empty(mib * 2**18, dtype=torch.float32, device="cuda").uniform_()
        y = torch.empty_like(x)
        calls[f"copy {mib} MiB"] = partial(y.copy_, x)
        if mib < 16384:
            calls[f"cos {mib} MiB"] = partial(torch.cos, x, out=y)
    for n in (2048, 8192):
        a, b = torch.randn(2, n, n, dtype=torch.bfloat16, device="cuda")
        calls[f"bf16 matmul {n}"] = partial(torch.mm, a, b, out=torch.empty_like(a))
    return calls


def run() -> list[dict]:
    """One row a kernel: medians in us over ROUNDS turns each, their spread, and the ratio ours / do_bench."""
    rows = []
    for name, call in kernels().items():
        ours, theirs = [], []
        for _ in range(ROUNDS):
            ours.append(time_gpu(call))
            theirs.append(do_bench(call, return_mode="median") * 1e-3)
        rows.append(_row(name, ours, theirs))
    return [*rows, *sweeps()]


class Written(stopwatch.Sweep):
    """The sweep that other timers make."""

    def __call__(self) -> None:
        self.buffer.zero_()


def sweeps() -> Iterator[dict]:
    """A product that reads 117 MB of weights, behind each kind of sweep."""
    x, out = torch.randn(4096, device="cuda").bfloat16(), torch.empty(14336, device="cuda", dtype=torch.bfloat16)
    ring = ring_of(lambda: torch.randn(14336, 4096, device="cuda").bfloat16(), 2 * 14336 * 4096)

    def product():
        torch.mv(ring[0], x, out=out)

    def own_weights():
        for w in ring:
            torch.mv(w, x, out=out)

    def behind(sweep: type) -> float:
        with mock.patch.object(stopwatch, "Sweep", sweep):
            return median(time_graph(product).us for _ in range(ROUNDS))

    own = median(time_graph(own_weights, cold=False).us / len(ring) for _ in range(ROUNDS))
    seen = {"a sweep that writes": behind(Written), "a sweep that reads": behind(stopwatch.Sweep)}
    for name, us in {"weights of its own": own, **seen}.items():
        yield {"name": f"mv 14336 x 4096, {name}", "time_graph_us": us, "ratio": us / own}


def _row(name: str, ours: list[Timing], theirs: list[float]) -> dict:
    mine = [t.median_s for t in ours]
    return {
        "name": name,
        "time_gpu_us": median(mine) * 1e6,
        "time_gpu_spread": max(mine) / min(mine) - 1,
        "do_bench_us": median(theirs) * 1e6,
        "do_bench_spread": max(theirs) / min(theirs) - 1,
        "ratio": median(mine) / median(theirs),
        "runs": sum(len(t.samples) for t in ours),
        "warnings": "; ".join(dict.fromkeys(w for t in ours for w in t.warnings)),
    }
