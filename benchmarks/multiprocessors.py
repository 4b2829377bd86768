"""NCCL's multiprocessors beside the products of a backward pass: what limiting them costs one and gains the other.

An all-reduce on GPUs is a kernel. Each of its channels is a block that holds a multiprocessor until the transfer has
ended, so a matrix product beside it has fewer. A group of ranks can be given a limit (`max_ctas` in its configuration,
NCCL_MAX_CTAS for all groups of a process) and a stream of high priority. For each such group:

    the all-reduce     of 1 GiB, alone
    products           alone, and while an all-reduce is under way from before their beginning to after their end
    a step             of buckets in the large model, what is not hidden of its communication

The blocks of a kernel are read from a profile, so that a limit which had no effect is seen. Ranks report their own
times, and the slowest counts.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from math import prod
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.against import Red
from benchmarks.collectives import synchronize
from benchmarks.parallel import LARGE, exposed
from benchmarks.parallel_steps import PLAIN, Setting, Step, timed, twin
from course_lib.device import TIER
from course_lib.distributed import bus_bandwidth, launch, place
from course_lib.models.transformer import Transformer
from course_lib.parallel import Buckets

MEASURES = (
    "benchmarks/multiprocessors.py",
    "benchmarks/parallel_steps.py",
    "course_lib/models/transformer.py",
    "course_lib/parallel/buckets.py",
    "course_lib/parallel/replica.py",
)
FREE, HIGH = "as NCCL chooses", "of high priority"
LIMITS = (16, 8, 4, 2)  # multiprocessors at most
GIB, ROUNDS, HEAD_START = 2**30, 9, 300_000  # the last in clocks: the all-reduce is under way when products begin
MIB_OF_BUCKETS = 25.0
ON_GPUS = Setting(LARGE, torch.bfloat16, 4, (MIB_OF_BUCKETS,), rounds=12, steps=2, seconds=(15, 0, 0, 0))
PRODUCTS = {"8 products of 4096 x 4096": (8, 4096), "a product of 8192 x 8192": (1, 8192)}


def run() -> list[dict]:
    if TIER != "gpu" or torch.cuda.device_count() < 2:
        raise Red("NCCL's multiprocessors are asked about: two GPUs are needed")
    start = time.perf_counter()
    told = launch(measured, torch.cuda.device_count(), args=(ON_GPUS, PRODUCTS, GIB, LIMITS), limit_s=150)
    print(f"multiprocessors: {time.perf_counter() - start:.0f} s", flush=True)
    return rows(told)


def rows(told: list[dict]) -> list[dict]:
    """What the ranks measured; the slowest rank counts."""
    found = []
    for same in zip(*(of_rank["all-reduce"] for of_rank in told), strict=True):
        seconds = max(one["seconds"] for one in same)
        row = _row(f"all-reduce of 1 GiB, {same[0]['group']}", seconds, told) | {"blocks": same[0]["blocks"]}
        found.append(row | {"bus GB/s": bus_bandwidth("all_reduce", same[0]["bytes"], len(told), seconds) / 1e9})
    for same in zip(*(of_rank["products"] for of_rank in told), strict=True):
        alone, beside, sending = (max(one[way] for one in same) for way in ("alone", "beside", "sending"))
        row = _row(f"{same[0]['name']} beside an all-reduce of 1 GiB, {same[0]['group']}", beside, told)
        row |= {"blocks": same[0]["blocks"], "alone ms": alone * 1e3, "slowed": beside / alone}
        row |= {"all-reduce ms": sending * 1e3, "lost ms": (1 - alone / beside) * sending * 1e3}
        found.append(row | {"ended early": any(one["ended early"] for one in same)})
    seconds = {name: np.max([of_rank["steps"][name] for of_rank in told], axis=0) for name in told[0]["steps"]}
    for name, taken in seconds.items():
        row = _row(f"step, {name}", float(np.median(taken)), told)
        found.append(row | (exposed(taken - seconds[PLAIN]) if name != PLAIN else {}))
    return found


def _row(name: str, seconds: float, told: list[dict]) -> dict:
    return {"name": name, "value": seconds * 1e3, "unit": "ms", "ranks": len(told)}


# --------------------------------------------------------------------------------------- in every rank


def measured(rank: int, setting: Setting, products: dict, nbytes: int, limits: tuple[int, ...]) -> dict:
    of_groups = groups(limits)
    buffer = torch.zeros(nbytes // 4, device=place())
    found: dict = {"all-reduce": [], "products": []}
    for name, group in of_groups.items():
        send = partial(dist.all_reduce, buffer, group=group, async_op=True)
        took = _alone(send)
        found["all-reduce"].append({"group": name, "bytes": nbytes, "seconds": took, "blocks": blocks(send, "nccl")})
    for words, (count, size) in products.items():
        dtype = torch.bfloat16 if place().type == "cuda" else torch.float32
        matrix = torch.randn(size, size, device=place(), dtype=dtype)
        compute = partial(_multiply, matrix, count)
        of_product = blocks(partial(_multiply, matrix, 1), "")
        for name, group in of_groups.items():
            send = partial(dist.all_reduce, buffer, group=group, async_op=True)
            found["products"].append({"name": words, "group": name, "blocks": of_product, **_beside(compute, send)})
    del buffer, matrix
    return found | {"steps": _steps(rank, setting, of_groups)}


def groups(limits: tuple[int, ...]) -> dict[str, dist.ProcessGroup]:
    """All ranks, under each setting; gloo has none of them."""
    found = {FREE: dist.group.WORLD}
    if dist.get_backend() != "nccl":
        return found
    for limit in limits:
        options = dist.ProcessGroupNCCL.Options()
        options.config.max_ctas = limit
        found[f"at most {limit}"] = dist.new_group(backend="nccl", pg_options=options)
    found[HIGH] = dist.new_group(backend="nccl", pg_options=dist.ProcessGroupNCCL.Options(is_high_priority_stream=True))
    return found


def _multiply(matrix: torch.Tensor, count: int) -> None:
    for _ in range(count):
        matrix @ matrix


def _alone(send: Callable[[], dist.Work]) -> float:
    taken = []
    for _ in range(ROUNDS + 2):
        dist.barrier()
        synchronize()
        start = time.perf_counter()
        send().wait()
        synchronize()
        taken.append(time.perf_counter() - start)
    return median(taken[2:])


def _beside(compute: Callable[[], None], send: Callable[[], dist.Work]) -> dict:
    """Seconds of products, of products beside an all-reduce and of that all-reduce, in turns."""
    taken: dict[str, list[float]] = {"alone": [], "beside": [], "sending": []}
    early = False
    for _ in range(ROUNDS + 2):
        for sends in (False, True):
            dist.barrier()
            synchronize()
            begun = moment()
            work = send() if sends else None
            if place().type == "cuda":
                torch.cuda._sleep(HEAD_START)
            start = moment()
            compute()
            end = moment()
            if work is None:
                taken["alone"].append(between(start, end))
                continue
            work.wait()
            last = moment()
            taken["beside"].append(between(start, end))
            taken["sending"].append(between(begun, last))
            early |= between(end, last) < 0.02 * between(start, end)
    return {way: median(times[2:]) for way, times in taken.items()} | {"ended early": early}


def moment():
    """Now, on the stream that computes or on the host."""
    if place().type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between(start, end) -> float:
    if place().type != "cuda":
        return end - start
    end.synchronize()
    return start.elapsed_time(end) * 1e-3


def blocks(call: Callable[[], dist.Work | None], named: str) -> int | None:
    """How many blocks the longest kernel of a call has, of those whose name contains this; none without a GPU."""
    if place().type != "cuda":
        return None
    dist.barrier()
    synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        work = call()
        if work is not None:
            work.wait()
        synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        seen.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    kernels = [e for e in events if e.get("cat") == "kernel" and named in e["name"] and "grid" in e.get("args", {})]
    return prod(max(kernels, key=lambda e: e["dur"])["args"]["grid"]) if kernels else None


def _steps(rank: int, setting: Setting, of_groups: dict[str, dist.ProcessGroup]) -> dict[str, list[float]]:
    """name -> seconds of a step in each turn."""
    torch.manual_seed(0)
    with place():
        model = Transformer(setting.sizes).to(setting.dtype)
    tokens = torch.randint(setting.sizes.vocabulary, (setting.batch, setting.sizes.context + 1)).to(place())
    module = twin(model)
    steps = {PLAIN: Step(module, module)}
    for name, group in of_groups.items():
        module = twin(model)
        wrapped = Buckets(module, setting.mibs[0], static=True, group=group)
        steps[f"buckets {setting.mibs[0]:g} MiB, {name}"] = Step(wrapped, module)
    for step in steps.values():
        for _ in range(3):
            step(tokens)
    return timed(steps, list(steps), tokens, setting, 4, setting.seconds[0])
