"""Does time_gpu agree with triton.testing.do_bench? Kernels from about 10 us to 10 ms, the same sweep of the cache."""

from collections.abc import Callable
from functools import partial

import torch
from triton.testing import do_bench

from course_lib.timing import Timing, time_gpu

FILES = (
    "course_lib/clocks.py",
    "course_lib/rounds.py",
    "course_lib/sampling.py",
    "course_lib/stopwatch.py",
    "course_lib/timing.py",
)


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
    """One row a kernel: both medians in us, ours twice around do_bench's two, and the ratio ours / do_bench."""
    rows = []
    for name, call in kernels().items():
        ours, theirs = [time_gpu(call)], []
        theirs += [do_bench(call, return_mode="median") * 1e-3 for _ in range(2)]
        ours += [time_gpu(call)]
        rows.append(_row(name, ours, theirs))
    return rows


def _row(name: str, ours: list[Timing], theirs: list[float]) -> dict:
    mean = sum(t.median_s for t in ours) / len(ours)
    bench = sum(theirs) / len(theirs)
    return {
        "name": name,
        "time_gpu_us": mean * 1e6,
        "time_gpu_first_us": ours[0].us,
        "time_gpu_second_us": ours[1].us,
        "low_us": min(t.low_s for t in ours) * 1e6,
        "high_us": max(t.high_s for t in ours) * 1e6,
        "do_bench_us": bench * 1e6,
        "do_bench_first_us": theirs[0] * 1e6,
        "do_bench_second_us": theirs[1] * 1e6,
        "ratio": mean / bench,
        "runs": sum(len(t.samples) for t in ours),
        "warnings": "; ".join(dict.fromkeys(w for t in ours for w in t.warnings)),
    }
