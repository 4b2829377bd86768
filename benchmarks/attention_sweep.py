"""python -m benchmarks.attention_sweep [--seconds 540] [--kernels forward dq dkdv ...] [--jobs N]: try blocks.

One JSON line each: kernel, shape, blocks, TFLOP/s of what the kernel itself computes, its time over that of the table's
blocks (turn by turn), its error against the table's result; or what went wrong. "forward groups" and "dkdv groups" are
the kernels with jobs for their warps, held against the table's blocks of the plain ones; "forward few keys" are plain
ones, held against what longer rows would take; "one pass", "one pass in order" and "one block", for few keys, make all
three gradients, held against two passes as the tables have them; so does "side by side", for few tiles, held against
one pass where the tables have that.

First every core compiles its share, then one process measures. Blocks that crash the device lose only their own line: a
new process continues with the next job. Shapes take turns, so a sweep that is cut short has seen the likeliest blocks
of every shape.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial

import torch

from benchmarks.attention import CASES, inputs, relative
from course_lib.kernels.attention.backward import row_terms, write_dkdv, write_dq, write_gradients
from course_lib.kernels.attention.forward import forward, write_forward
from course_lib.kernels.attention.sums import room
from course_lib.kernels.attention.tuning import (
    Blocks,
    Groups,
    OneBlock,
    OnePass,
    SideBySide,
    blocks_for,
    groups_for,
    one_pass_for,
    tuned,
)
from course_lib.kernels.columns import split
from course_lib.kernels.hardware import capability
from course_lib.timing import compare

SHAPES = [case[:5] for case in CASES if case[2] <= 4096] + [(4, 16, 4096, 72, True)]
# Head sizes that no case measures: the first FEW candidates alone; of 48 and of few heads, backward, all of them.
OTHERS, FEW = [(4, 16, 4096, head_size, causal) for head_size in (16, 32, 40, 96) for causal in (False, True)], 9
FEW_HEADS = [(8, 1, 4096, 32, False), *((8, 1, length, 64, False) for length in (1024, 2048, 4096))]
FULL = {kernel: FEW_HEADS + [(4, 16, 4096, 48, causal) for causal in (False, True)] for kernel in ("dq", "dkdv")}
# Of the kernels with jobs for their warps. Short sequences say from where on a program of many tiles pays.
GROUP_SHAPES = [(4, 16, 4096, 72, False), (4, 16, 4096, 72, True), (256, 16, 256, 72, False)]
GROUP_SHAPES += [(32, 16, 512, head_size, causal) for head_size in (128, 64) for causal in (False, True)]
GROUP_SHAPES += [case[:5] for case in CASES if case[2] == 4096]
GROUP_SHAPES += [(4, 16, 4096, head_size, causal) for head_size in (32, 48, 96) for causal in (False, True)] + FEW_HEADS
NARROW = (16, 32, 40, 48, 72, 80, 96, 112)  # head sizes for one pass that no case measures
PRODUCTS = {"forward": 2, "dq": 3, "dkdv": 4, "forward groups": 2, "dkdv groups": 4}
PRODUCTS |= {
    "one block": 5,
    "side by side": 7,
    "forward few keys": 2,
    "one pass": 5,
    "one pass in order": 5,
    "forward groups dealt": 2,
    "forward groups dealt, lengths": 2,
}
ONE_PASS_SHAPES = [case[:5] for case in CASES if case[2] == 4096]
ONE_PASS_SHAPES += [(4, 16, 4096, head_size, causal) for head_size in NARROW for causal in (False, True)]
ONE_PASS_SHAPES += [(B, 16, 16384 // B, *rest) for B in (8, 16, 32) for _, _, _, *rest in ONE_PASS_SHAPES]
ONE_BLOCK_SHAPES = [
    (256, 16, length, head_size, causal)
    for length in (16, 32, 49, 64, 77, 96, 128)
    for head_size in (128, 64, 72, 32, 96, 40, 16)
    for causal in (False, True)
]
# One to sixteen programs of 64 rows a multiprocessor; without a mask few.
FEW_TILES = [(1, heads, 1024) for heads in (8, 16, 32, 4, 12, 24, 48)] + [(4, 16, 1024)]
FEW_TILES += [(1, 16, 512), (4, 16, 512), (1, 8, 2048), (1, 16, 2048), (8, 16, 256), (1, 4, 4096), (1, 12, 2048)]
FEW_TILES += [(1, 16, 160)]
SIDE_BY_SIDE_SHAPES = [
    (batch, heads, length, head_size, causal)
    for causal in (True, False)
    for batch, heads, length in FEW_TILES
    for head_size in (64, 128, 72, 96, 32, 40, 16)
    if causal or batch * heads * length <= 2**14
]
DEALT = [(16, True, 2, 3), (16, False, 2, 2), (16, False, 2, 3), (8, True, 2, 3), (32, True, 2, 3), (16, True, 3, 4)]
DEALT += [(16, True, 2, 3, True), (16, False, 2, 2, True)]
# What the numbers of a candidate with jobs for its warps are, and of one whose tiles are dealt.
OF_GROUPS = "block", "stages", "held", "persistent", "heads_interleaved", "turns", "consumers", "lazy"
OF_DEALT = "heads_interleaved", "turns", "consumers", "stages", "lazy"
DEALT_SHAPES = [
    (*rows, head_size, True)
    for rows in ((4, 16, 4096), (8, 16, 2048), (16, 16, 1024), (64, 16, 256), (1, 16, 16384), (1, 12, 2048))
    for head_size in (32, 48, 64, 72, 96, 128)
]
# Likeliest first. Queries and keys a block, warps, stages, where it pays a limit on registers, keys at the edge a turn.
CANDIDATES = {
    "forward": [
        (64, 128, 4, 2), (64, 64, 4, 2), (64, 64, 4, 3), (128, 64, 4, 2), (128, 64, 8, 3), (64, 128, 4, 3),
        (128, 128, 8, 3), (128, 64, 8, 2, 128), (128, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 2), (128, 32, 4, 3),
        (64, 128, 4, 2, 128), (128, 64, 4, 2, 168), (128, 32, 4, 4), (64, 64, 4, 4), (64, 32, 4, 4),
        (64, 128, 4, 3, 168), (64, 64, 4, 2, 96), (128, 128, 4, 2), (128, 64, 8, 3, 128), (64, 128, 4, 2, None, 64),
    ],
    "dq": [
        (64, 64, 4, 2), (128, 64, 8, 3), (64, 64, 4, 3), (128, 64, 8, 2), (64, 64, 4, 2, 168), (64, 64, 4, 2, 128),
        (128, 64, 8, 2, 128), (64, 128, 4, 2), (64, 32, 4, 3), (128, 64, 4, 2), (64, 128, 8, 2), (128, 128, 8, 2),
        (128, 32, 4, 3), (64, 32, 4, 4), (128, 64, 4, 3), (64, 64, 4, 3, 128),
    ],
    "dkdv": [
        (64, 64, 4, 2), (64, 64, 4, 2, 168), (32, 64, 4, 3), (64, 64, 4, 3), (32, 128, 4, 3), (64, 128, 8, 3),
        (64, 128, 8, 2), (32, 64, 4, 4), (32, 128, 8, 3), (32, 64, 4, 3, 128), (32, 64, 4, 3, 168), (128, 64, 4, 2),
        (64, 128, 8, 2, 128), (32, 128, 8, 3, 128), (128, 64, 8, 2), (128, 128, 8, 2), (64, 64, 4, 3, 168),
        (64, 32, 4, 2), (128, 64, 8, 3), (64, 64, 4, 3, 128),
    ],
    "forward groups": [
        (128, 2, 2, True), (128, 2, 1, False, 8), (128, 3, 2, True), (128, 3, 1, False, 8), (128, 2, 1, False),
        (128, 2, 2, True, 1, False), (128, 3, 2, True, 1, False), (64, 4, 2, True), (128, 2, 1, True, 16),
        (128, 4, 2, True, 1, True, 3), (128, 4, 2, True, 1, True, 3, True), (128, 2, 2, True, 1, False, 2, True),
    ],
    # Causal; the second with lengths.
    "forward groups dealt": DEALT,
    "forward groups dealt, lengths": DEALT,
    "dkdv groups": [
        (64, 4, 2), (32, 4, 1), (64, 3, 1, False), (64, 3, 2), (32, 4, 2),
    ],
    "one block": [
        (32, 32, 4, 2), (64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 2, 128), (64, 128, 4, 2), (32, 64, 4, 2),
        (32, 64, 4, 1), (32, 128, 4, 1), (64, 64, 8, 2), (32, 128, 8, 1), (32, 32, 4, 1),
    ],
    "side by side": [(64, 64, 4, 3), (64, 64, 4, 2)],
    "forward few keys": [
        (64, 64, 4, 1), (64, 64, 4, 2), (32, 32, 2, 1), (16, 32, 2, 1), (64, 32, 4, 2), (32, 64, 2, 1),
        (32, 32, 4, 1), (64, 32, 4, 1), (32, 64, 4, 1), (64, 128, 4, 1), (128, 64, 4, 2), (128, 128, 8, 1),
    ],
    # Heads together; queries a turn and stages, where others than the tables' are tried.
    "one pass": [(4,), (8,), (1,), (16,), (32,), (2,), (8, 64, 3)],
    "one pass in order": [(4,), (16,), (2,), (8,), (32,), (64,), (8, 64, 3), (16, 64, 3), (8, 128, 3), (16, 128, 3)],
}  # fmt: skip


def jobs(kernels: list[str]) -> list[tuple]:
    """(kernel, shape, blocks), the first candidates of every kernel and shape before any second ones."""
    longest = max(map(len, CANDIDATES.values()))
    return [
        (kernel, shape, CANDIDATES[kernel][i])
        for i in range(longest)
        for kernel in kernels
        if i < len(CANDIDATES[kernel])
        for shape in _shapes(kernel, i)
    ]


def _shapes(kernel: str, candidate: int) -> list[tuple]:
    if kernel == "one block":  # of keys: the smallest that holds all of them
        keys = CANDIDATES[kernel][candidate][1]
        return [shape for shape in ONE_BLOCK_SHAPES if shape[2] <= keys and (keys == 32 or shape[2] > keys // 2)]
    if kernel == "forward few keys":  # longer rows than blocks only where two blocks hold them
        return [shape for shape in ONE_BLOCK_SHAPES if shape[2] <= 2 * max(CANDIDATES[kernel][candidate][:2])]
    if kernel.startswith("one pass"):
        return ONE_PASS_SHAPES
    if kernel == "side by side":
        return SIDE_BY_SIDE_SHAPES
    if "dealt" in kernel:
        return DEALT_SHAPES
    return GROUP_SHAPES if "groups" in kernel else SHAPES + FULL.get(kernel, []) + (OTHERS if candidate < FEW else [])


def _ready(kernel: str, shape: tuple):
    """blocks -> the results of one kernel on one set of inputs; and the table's blocks of the plain one."""
    *size, causal = shape
    q, k, v, do = inputs(*size)
    scale = q.shape[-1] ** -0.5
    table = tuned(q.shape[-1], causal, q.dtype, q.device)
    lengths = None
    if kernel.endswith("lengths"):  # from half of the keys to all of them
        lengths = torch.randint(k.shape[2] // 2, k.shape[2] + 1, q.shape[:1], device=q.device, dtype=torch.int32)
    o, l = forward(q, k, v, causal, scale, lengths)
    shift, delta = terms = row_terms(l)
    dq, dk, dv = (torch.full_like(x, float("nan")) for x in (q, k, v))

    def run_forward(blocks):
        write_forward(o, l, q, k, v, causal, scale, lengths, blocks)
        return (o,)

    def run_dq(blocks):
        write_dq(dq, shift, delta, do, q, k, v, o, l, None, causal, scale, None, blocks)
        return (dq,)

    def run_dkdv(blocks):
        write_dkdv(dk, dv, do, q, k, v, shift, delta, causal, scale, None, blocks)
        return dk, dv

    def run_one_pass(blocks):
        if blocks is not None:
            in_order = kernel == "one pass in order"
            usual = 128 if sum(split(q.shape[-1])) <= 64 else 64, 2
            together, block, stages = *blocks, *usual[len(blocks) - 1 :]
            blocks = OnePass(block, together, least=1, tiles=1, in_order=in_order, stages=stages)
        more = None, None, blocks, False, room(q, k, blocks)
        write_gradients(dq, dk, dv, terms, do, q, k, v, o, l, causal, scale, *more)
        return dq, dk, dv

    def run_two_passes():
        of_dq, of_dkdv = (blocks_for(one, causal, None, q, k, v, do, dk, dv) for one in ("dq", "dkdv"))
        return *run_dq(of_dq), *run_dkdv(of_dkdv)

    def run_one_block(blocks):
        if blocks is None:
            return run_two_passes()
        write_gradients(dq, dk, dv, terms, do, q, k, v, o, l, causal, scale, None, None, blocks)
        return dq, dk, dv

    def run_side_by_side(blocks):
        blocks = blocks or one_pass_for(causal, None, True, q, k, v, do, dk, dv)
        if blocks is None:
            return run_two_passes()
        more = None, None, blocks, False, room(q, k, blocks)
        write_gradients(dq, dk, dv, terms, do, q, k, v, o, l, causal, scale, *more)
        return dq, dk, dv

    of_all = {"one block": run_one_block, "side by side": run_side_by_side}
    if kernel in of_all or kernel.startswith("one pass"):
        return of_all.get(kernel, run_one_pass), None
    if kernel == "forward few keys":
        longer = groups_for("forward", causal, False, capability(q.device), q, k, v, o)
        return run_forward, longer or table.forward
    run_dq(table.dq)  # which makes shift and delta
    kind = kernel.split()[0]
    return {"forward": run_forward, "dq": run_dq, "dkdv": run_dkdv}[kind], getattr(table, kind)


def blocks_of(kernel: str, blocks: tuple) -> Blocks | Groups | tuple:
    if kernel.startswith("one pass"):
        return blocks
    if "dealt" in kernel:
        return Groups(block=128, held=2, dealt=True, **dict(zip(OF_DEALT, blocks)))
    if kernel == "one block":
        return OneBlock(*blocks)
    if kernel == "side by side":
        return SideBySide(*blocks)
    return Groups(**dict(zip(OF_GROUPS, blocks))) if "groups" in kernel else Blocks(*blocks)


def measured(kernel: str, shape: tuple, blocks: tuple) -> dict:
    run, base = _ready(kernel, shape)
    candidate = blocks_of(kernel, blocks)
    want = [x.clone() for x in run(base)]
    got = run(candidate)
    if any(x.isnan().any() for x in got):
        return {"wrong": "NaN"}
    error = max(relative(a, b.double()) for a, b in zip(got, want))
    if error > 4e-3:  # both are rounded to bf16: 3e-3 between two right results
        return {"wrong": f"{error:.1e} from the table's result"}
    # Of few tiles or keys the host's pace would count: by graphs.
    method = "graph" if kernel in ("side by side", "forward few keys") else "events"
    calls = partial(run, candidate), partial(run, base)
    seen = compare(*calls, method=method, cold=False, precision=0.01, max_seconds=0.2)
    batch, heads, length, head_size, causal = shape
    flops = 2 * PRODUCTS[kernel] * batch * heads * length**2 * head_size / (2 if causal else 1)
    return {
        "TFLOP/s": round(flops / seen.a.median_s / 1e12, 1),
        "us": round(seen.a.us, 1),
        "over the table's": round(seen.ratio, 3),
        "error": float(f"{error:.1e}"),
    }


def compiler(jobs: list[tuple], first: int, step: int) -> None:
    """Every `step`-th job from `first` on, run once: the worker then finds it in Triton's cache."""
    for job in jobs[first::step]:
        try:
            run, _ = _ready(*job[:2])
            run(blocks_of(job[0], job[2]))
            torch.cuda.synchronize()
        except Exception:  # it will fail again, and be told, when it is measured
            continue


def worker(jobs: list[tuple], first: int, deadline: float) -> None:
    """From job `first` on: a line when a job begins, a line with its result; leaves after an error of the device."""
    for number, job in enumerate(jobs):
        if number < first:
            continue
        if time.time() > deadline:
            return
        print(json.dumps({"begin": number}), flush=True)
        try:
            result = measured(*job)
            torch.cuda.synchronize()
        except Exception as failed:  # whatever one configuration does, the next is to be tried
            result = {"failed": f"{type(failed).__name__}: {str(failed)[:120]}"}
        print(json.dumps(_line(job) | result), flush=True)
        try:
            torch.cuda.synchronize()
        except RuntimeError:  # the device's context is lost
            sys.exit(1)


def _line(job: tuple) -> dict:
    kernel, shape, blocks = job
    return {"kernel": kernel, "shape": list(shape), "blocks": list(blocks)}


def sweep(kernels: list[str], most: int, seconds: float) -> None:
    everything, deadline, begun = jobs(kernels)[:most], time.time() + seconds, -1
    me = [sys.executable, "-m", "benchmarks.attention_sweep", "--jobs", str(most), "--kernels", *kernels]
    cores = str(max(1, min(len(os.sched_getaffinity(0)) - 1, len(everything))))
    children = [subprocess.Popen([*me, "--first", str(first), "--step", cores]) for first in range(int(cores))]
    for child in children:
        child.wait()
    while begun + 1 < len(everything) and time.time() < deadline:
        before, finished = begun, True
        command = [*me, "--first", str(begun + 1), "--deadline", str(deadline)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for text in child.stdout:
                if text.startswith('{"begin"'):
                    begun, finished = json.loads(text)["begin"], False
                elif text.startswith("{"):
                    finished = True
                    print(text, end="", flush=True)
        if not finished:
            print(json.dumps(_line(everything[begun]) | {"failed": f"crashed, {child.returncode}"}), flush=True)
        if begun == before:
            return  # it does not even start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--kernels", nargs="+", default=list(CANDIDATES), choices=list(CANDIDATES))
    parser.add_argument("--jobs", type=int, default=10**6, help="try only so many, the likeliest")
    parser.add_argument("--first", type=int, help="used by the sweep itself: be the worker, from this job on")
    parser.add_argument("--step", type=int, help="used by the sweep itself: compile every so many jobs")
    parser.add_argument("--deadline", type=float)
    asked = parser.parse_args()
    everything = jobs(asked.kernels)[: asked.jobs]
    if asked.first is None:
        sweep(asked.kernels, asked.jobs, asked.seconds)
    elif asked.step is not None:
        compiler(everything, asked.first, asked.step)
    else:
        worker(everything, asked.first, asked.deadline)


if __name__ == "__main__":
    main()
