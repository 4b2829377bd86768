"""What collectives cost between ranks: NCCL with a GPU each, gloo with two processes on the host.

Every time is taken three ways, because each alone can mislead:

    one      a barrier, one call, and the device waited for: what a program pays that needs the result at once
    queued   until the call has returned: what the host pays to hand it over, whatever its size
    in a row many calls, waited for once, divided: what the transfer takes when something else keeps the queue full

A mean is made in three ways besides: by NCCL itself (ReduceOp.AVG), by dividing before the sum, and of fp32 that
travels as bf16, as torch's bf16_compress_hook does. Of these the error is measured too, against the mean in fp64 of
what all ranks hold: numbers that bf16 holds exactly, so that all of it comes from the reduction; of what is compressed,
fp32 numbers, and the error holds their rounding.

A size is warmed up with calls of that size: the algorithm, the channels and the buffers depend on it. The line through
the times in a row gives alpha and beta. Ranks report their own medians, and the slowest counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist

from benchmarks.against import Red
from course_lib.device import TIER
from course_lib.distributed import bus_bandwidth, fit, launch, place
from course_lib.distributed.collectives import all_gather, reduce_scatter

MEASURES = (
    "benchmarks/collectives.py",
    "course_lib/distributed/collectives.py",
    "course_lib/distributed/costs.py",
    "course_lib/distributed/rank.py",
)
KIB = 1 << 10
ON_GPUS = tuple(4 * KIB << 2 * step for step in range(10))  # 4 KiB to 1 GiB
ON_HOST = tuple(KIB << 2 * step for step in range(8))  # 1 KiB to 16 MiB
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
WARM_UP, ROUNDS = 5, 15
NUMBERS = 64 << 20 if TIER == "gpu" else 1 << 18  # of which means are made
ROW_S, MOST_IN_A_ROW = 5e-3, 200


def run() -> list[dict]:
    """One row a size and operation, then one line an operation."""
    on_gpus = TIER == "gpu"
    ranks = torch.cuda.device_count() if on_gpus else 2
    if ranks < 2:
        raise Red("one GPU has nobody to send to: two are needed")
    told = launch(measured, ranks, args=(ON_GPUS if on_gpus else ON_HOST,), limit_s=240)
    backend = "nccl" if on_gpus else "gloo"
    return rows(told, ranks, backend) + mean_rows(launch(means, ranks, args=(NUMBERS,), limit_s=120), backend)


def rows(told: list[list[dict]], ranks: int, backend: str) -> list[dict]:
    """What the ranks measured, as the rows of a result; the slowest rank counts."""
    found = []
    for same in zip(*told, strict=True):
        operation, nbytes = same[0]["operation"], same[0]["bytes"]
        one, queued, row = (max(of_rank[way] for of_rank in same) for way in ("one", "queued", "in a row"))
        found.append(
            {
                "name": f"{operation} {_size(nbytes)}",
                "operation": operation,
                "bytes": nbytes,
                "value": row * 1e6,
                "unit": "us",
                "one us": one * 1e6,
                "queued us": queued * 1e6,
                "bus GB/s": bus_bandwidth(operation, nbytes, ranks, row) / 1e9,
                "ranks": ranks,
                "backend": backend,
            }
        )
    return found + [_line(operation, found, ranks, backend) for operation in OPERATIONS]


def _line(operation: str, found: list[dict], ranks: int, backend: str) -> dict:
    line = fit({row["bytes"]: row["value"] * 1e-6 for row in found if row["operation"] == operation})
    return {
        "name": f"{operation}, line",
        "operation": operation,
        "value": line.alpha_s * 1e6,
        "unit": "us",
        "bus GB/s": bus_bandwidth(operation, 1, ranks, line.beta_s) / 1e9 if line.beta_s else None,
        "crossover KiB": line.crossover_bytes / KIB if line.beta_s else None,
        "worst off": line.worst,
        "ranks": ranks,
        "backend": backend,
    }


def mean_rows(told: list[dict[str, dict]], backend: str) -> list[dict]:
    """One row a way to make a mean; the slowest rank counts, and the largest error."""
    found = []
    for name in told[0]:
        took, error = (max(of_rank[name][what] for of_rank in told) for what in ("seconds", "error"))
        row = {"name": name, "operation": "mean", "value": took * 1e6, "unit": "us", "error": error}
        found.append(row | {"ranks": len(told), "backend": backend})
    return found


def _size(nbytes: int) -> str:
    unit, scale = next(pair for pair in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", KIB)) if nbytes >= pair[1])
    return f"{nbytes // scale} {unit}"


# --------------------------------------------------------------------------------------- in every rank


def measured(rank: int, sizes: tuple[int, ...]) -> list[dict]:
    found = []
    for operation in OPERATIONS:
        for nbytes in sizes:
            begin = _call(operation, nbytes)
            _check(operation, nbytes)
            for _ in range(WARM_UP):
                begin().wait()
            synchronize()
            one = median(_one(begin) for _ in range(ROUNDS))
            queued = median(_queued(begin) for _ in range(ROUNDS))
            count = _same_everywhere(max(3, min(MOST_IN_A_ROW, round(ROW_S / one))))
            row = median(_in_a_row(begin, count) for _ in range(5))
            found.append({"operation": operation, "bytes": nbytes, "one": one, "queued": queued, "in a row": row})
    return found


def means(rank: int, numbers: int) -> dict[str, dict]:
    """Ways to make a mean -> seconds of one among many in a row, and the relative error (root mean square)."""
    found = {}
    for name, (dtype, make) in _ways_to_a_mean().items():
        compressed = name.endswith("as bf16")
        own = _drawn(rank, numbers, exact=not compressed).to(dtype)
        buffer = own.clone()
        make(buffer)
        error = _error(buffer, numbers, exact=not compressed)
        if not error < 0.01:
            raise Red(f"{name} is {error:.1e} off")
        row = median(_times_in_a_row(lambda make=make, buffer=buffer: make(buffer)) for _ in range(5))
        found[f"mean of {numbers >> 20 or numbers / 2**20:g} Mi numbers, {name}"] = {"seconds": row, "error": error}
    return found


def _ways_to_a_mean() -> dict[str, tuple[torch.dtype, Callable[[torch.Tensor], None]]]:
    def averaged(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor, dist.ReduceOp.AVG)

    def divided(tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor.div_(dist.get_world_size()))

    def compressed(tensor: torch.Tensor) -> None:
        small = tensor.to(torch.bfloat16).div_(dist.get_world_size())
        dist.all_reduce(small)
        tensor.copy_(small)

    found = {}
    for kind, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if dist.get_backend() == "nccl":
            found[f"{kind}, AVG"] = dtype, averaged
        found[f"{kind}, divided and summed"] = dtype, divided
    return found | {"fp32, sent as bf16": (torch.float32, compressed)}


def _drawn(rank: int, numbers: int, exact: bool) -> torch.Tensor:
    """Another normal draw for each rank; exact: such that bf16 holds every number."""
    draw = torch.Generator(place()).manual_seed(rank)
    values = torch.randn(numbers, device=place(), generator=draw)
    return values.bfloat16().float() if exact else values


def _error(got: torch.Tensor, numbers: int, exact: bool) -> float:
    ranks = dist.get_world_size()
    want = sum(_drawn(rank, numbers, exact).double() for rank in range(ranks)) / ranks
    return float(((got.double() - want).square().sum() / want.square().sum()).sqrt())


def _times_in_a_row(call: Callable[[], None], count: int = 10) -> float:
    call()
    _ready()
    start = time.perf_counter()
    for _ in range(count):
        call()
    synchronize()
    return (time.perf_counter() - start) / count


def _buffers(operation: str, nbytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Everything (of `nbytes`), and this rank's part of it."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = max(1, nbytes // 4 // ranks)
    whole = torch.full((part * ranks,), rank + 1.0, device=place())
    return whole, torch.full((part,), rank + 1.0, device=place())


def _call(operation: str, nbytes: int) -> Callable[[], dist.Work]:
    """Begin one collective on memory that exists already. It holds zeros, whose sums do not grow."""
    whole, part = (buffer.zero_() for buffer in _buffers(operation, nbytes))
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole, async_op=True),
        "reduce_scatter": lambda: reduce_scatter(part, whole),
        "all_gather": lambda: all_gather(whole, part),
        "broadcast": lambda: dist.broadcast(whole, 0, async_op=True),
    }
    return calls[operation]


def _check(operation: str, nbytes: int) -> None:
    """A collective that gives something else is not timed."""
    whole, part = _buffers(operation, nbytes)
    ranks, total = dist.get_world_size(), float(sum(range(1, dist.get_world_size() + 1)))
    if operation == "all_reduce":
        dist.all_reduce(whole)
        right = bool((whole == total).all())
    elif operation == "reduce_scatter":
        reduce_scatter(part, whole).wait()
        right = bool((part == total).all())
    elif operation == "all_gather":
        all_gather(whole, part).wait()
        right = whole.view(ranks, -1)[:, -1].tolist() == [rank + 1.0 for rank in range(ranks)]
    else:
        dist.broadcast(whole, 0)
        right = bool((whole == 1.0).all())
    if not right:
        raise Red(f"{operation} of {nbytes} bytes gives a wrong result")


def synchronize() -> None:
    if place().type == "cuda":
        torch.cuda.synchronize()


def _same_everywhere(count: int) -> int:
    """Rank 0's number: all ranks must make equally many calls."""
    agreed = torch.tensor(count, device=place())
    dist.broadcast(agreed, 0)
    return int(agreed)


def _ready() -> None:
    dist.barrier()
    synchronize()


def _one(begin: Callable[[], dist.Work]) -> float:
    _ready()
    start = time.perf_counter()
    begin().wait()
    synchronize()
    return time.perf_counter() - start


def _queued(begin: Callable[[], dist.Work]) -> float:
    _ready()
    start = time.perf_counter()
    work = begin()
    taken = time.perf_counter() - start
    work.wait()
    return taken


def _in_a_row(begin: Callable[[], dist.Work], count: int) -> float:
    _ready()
    start = time.perf_counter()
    works = [begin() for _ in range(count)]
    for work in works:
        work.wait()
    synchronize()
    return (time.perf_counter() - start) / count
