"""What a kernel is bound by: how busy the parts of a multiprocessor are while it runs, counted by Nsight Compute.

`ncu` runs each case in a process of its own, `python -m benchmarks.counters CASE`, and counts the second call of it.
Clocks are left as they are, so shares can be compared and times cannot. Shared memory has 32 banks: "banks %" is what
is read and written of them, by instructions and by the copy engine, over 32 each clock; global memory that passes
through the L1 cache is among it. A wavefront is one pass of an instruction through shared memory, one clock; "second
wavefronts %" of them are there because of bank conflicts.
"""

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks import attention as attentions
from benchmarks import linear_gelu as gelus
from benchmarks.against import Red
from course_lib.kernels.add_norm import add_norm
from course_lib.kernels.attention import attention
from course_lib.kernels.linear_gelu import linear_gelu, product_with_slope
from course_lib.kernels.matmul import matmul
from course_lib.kernels.mx import mx_linear, quantize

METRICS = {
    "ns": "gpu__time_duration.sum",
    "clocks": "sm__cycles_elapsed.sum",
    "tensor cores %": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "DRAM %": "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "reads": "l1tex__data_bank_reads.sum",
    "writes": "l1tex__data_bank_writes.sum",
    "wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "second": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
}
LEAST = 0.02  # of a case's time: shorter kernels are left out
LIMIT_S = 180


def _attention(head_size: int, causal: bool = False, deterministic: bool = True) -> Callable[[], object]:
    *qkv, do = attentions.inputs(4, 16, 4096, head_size)
    qkv = [x.requires_grad_() for x in qkv]
    call = partial(attention, *qkv, causal=causal, deterministic=deterministic)
    return lambda: torch.autograd.grad(call(), qkv, do)


def _matmul() -> Callable[[], object]:
    return partial(matmul, *(torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)))


def _linear_gelu() -> Callable[[], object]:
    return partial(linear_gelu, *gelus.inputs(16384, 4304, 1152))


def _slope() -> Callable[[], object]:
    dy, w, h = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in SLOPE)
    return partial(product_with_slope, dy, w, h, sums=True)


def _mx(rows: int) -> Callable[[], object]:
    x, w = (torch.randn(n, 4096, device="cuda", dtype=torch.bfloat16) for n in (rows, 14336))
    return partial(mx_linear, x, quantize(w))


def _add_norm() -> Callable[[], object]:
    x, residual, dy, ds = (torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    weight = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
    given = [x.requires_grad_() for x in (x, residual, weight)]
    return lambda: torch.autograd.grad(add_norm(*given), given, (dy, ds))


SLOPE = (16384, 1152), (1152, 4304), (16384, 4304)
CASES: dict[str, Callable[[], Callable[[], object]]] = {
    "attention 4 x 16 x 4096 x 128": partial(_attention, 128),
    "attention 4 x 16 x 4096 x 128 in any order": partial(_attention, 128, deterministic=False),
    "attention 4 x 16 x 4096 x 128 causal": partial(_attention, 128, True),
    "attention 4 x 16 x 4096 x 64": partial(_attention, 64),
    "attention 4 x 16 x 4096 x 64 causal": partial(_attention, 64, True),
    "matmul 8192 x 8192 x 8192": _matmul,
    "linear_gelu 16384 x 4304 x 1152": _linear_gelu,
    "product with slope 16384 x 4304 x 1152": _slope,
    "MXINT8 product 16 x 14336 x 4096": partial(_mx, 16),
    "MXINT8 product 256 x 14336 x 4096": partial(_mx, 256),
    "add_norm 16384 x 4096": _add_norm,
}


def ncu() -> str | None:
    """Nsight Compute: from the PATH, or the newest in the folder into which NVIDIA's packages put it."""
    installed = Path("/opt/nvidia/nsight-compute").glob("*/ncu")
    newest = max(installed, key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)], default=None)
    return shutil.which("ncu") or (newest and str(newest))


def run() -> list[dict]:
    if not (program := ncu()):
        raise Red("Nsight Compute (ncu) counts, and it is not installed here")
    return [row for case in CASES for row in _counted(program, case)]


def _counted(program: str, case: str) -> list[dict]:
    options = ["--csv", "--page", "raw", "--print-units", "base", "--clock-control", "none"]
    options += ["--profile-from-start", "off", "--metrics", ",".join(METRICS.values())]
    command = [program, *options, sys.executable, "-m", "benchmarks.counters", case]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise Red(f"ncu took longer than {LIMIT_S} s at {case}") from None
    if done.returncode:
        raise Red(f"ncu ended with {done.returncode} at {case}: {(done.stderr or done.stdout).strip()[-300:]}")
    rows = list(rows_of(case, done.stdout))
    print(*rows, sep="\n", flush=True)
    return rows


def rows_of(case: str, told: str) -> Iterator[dict]:
    """What ncu prints, a row a kernel: a line of names, one of units, and one for each kernel."""
    lines = [line for line in told.splitlines() if line.startswith('"')]
    if len(lines) < 3:
        raise Red(f"ncu counted no kernel of {case}: {told.strip()[-300:]}")
    names, _units, *each = csv.reader(lines)
    kernels = [dict(zip(names, one, strict=True)) for one in each]
    try:
        counted = [{short: float(one[name].replace(",", "")) for short, name in METRICS.items()} for one in kernels]
    except (KeyError, ValueError) as missing:
        raise Red(f"ncu did not count all that was asked of {case}: {missing}") from None
    whole = sum(one["ns"] for one in counted)
    for kernel, one in zip(kernels, counted, strict=True):
        if one["ns"] >= LEAST * whole:
            yield {
                "name": f"{case}: {kernel['Kernel Name'].split('(')[0]}",
                "value": one["ns"] / 1e3,
                "unit": "us",
                "tensor cores %": one["tensor cores %"],
                "banks %": 100 * (one["reads"] + one["writes"]) / (32 * one["clocks"]),
                "second wavefronts %": 100 * one["second"] / max(one["wavefronts"], 1),
                "DRAM %": one["DRAM %"],
            }


def once(case: str) -> None:
    call = CASES[case]()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    once(sys.argv[1])
