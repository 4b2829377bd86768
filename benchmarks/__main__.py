"""python -m benchmarks [SECTION ...]: measure all or some of SECTIONS, save to benchmarks/results, print.

python -m benchmarks --processes 3 [SECTION ...]: each section in three fresh processes, on all GPUs that are here. An
interval is that of one series, and processes differ by more; so the process in the middle is recorded, and beside each
ratio the smallest and the largest of all.

python -m benchmarks stale: what is recorded and no longer holds, because the code means something else now.
"""

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import median_low

import torch

from autograder.referee.sandbox import NoSandbox
from benchmarks import recorded
from benchmarks.against import Red
from course_lib import results
from course_lib.device import TIER, machine
from course_lib.distributed import RankFailed

ANYWHERE = ("dispatch", "grading", "collectives", "parallel")  # those that say something without a GPU too
SEVERAL = ("collectives", "parallel", "multiprocessors", "attention_in_ddp")  # with GPUs, they need two
SECTIONS = (
    "autocast",
    "ceilings",
    "pointwise",
    "softmax",
    "matmul",
    "attention",
    "attention_sizes",
    "beside_attention",
    "beside_products",
    "beside_add_norm",
    "one_pass",
    "rope",
    "mx",
    "linear_gelu",
    "mlp",
    "add_norm",
    "dropout",
    "tower",
    "collectives",
    "parallel",
    "multiprocessors",
    "attention_in_ddp",
    "dispatch",
    "other_cards",
    "timing",
    "clock",
    "counters",
    "grading",
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split(":")[1].split(",")[0])
    parser.add_argument("sections", nargs="*", help=f"stale, or of: {', '.join(SECTIONS)}")
    parser.add_argument("--processes", type=int, default=1, help="fresh processes a section")
    parser.add_argument("--into", type=Path, help="write the rows to this file and record nothing")
    asked = parser.parse_args(arguments)
    names = asked.sections
    if names == ["stale"]:
        return max(map(recorded.tell_stale, ("h200", "cpu")))
    if unknown := set(names) - set(SECTIONS):
        print(f"No benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}.")
        return 2
    if TIER != "gpu" and not (names and set(names) <= set(ANYWHERE)):
        print("The benchmarks need a CUDA device, and this machine has none. What an H200 gave: benchmarks/results/.")
        print(f"Only {' and '.join(ANYWHERE)}, named alone, run without.")
        return 2
    names = names or [name for name in SECTIONS if _able(name)]
    if asked.processes > 1:
        found = _apart([name for name in names for _ in range(asked.processes)])
    else:
        found = [(name, _measured(name)) for name in names]
    if asked.into:
        asked.into.write_text(json.dumps(dict(found)))
        return 0
    red = []
    for name in dict.fromkeys(names):
        runs = [rows for section, rows in found if section == name]
        if None in runs:
            red.append(name)
        else:
            rows = joined(runs)
            results.save(name, rows, _slug(), recorded.means(name))
            print(f"\n{name} on {machine().name}\n{_table(rows)}", flush=True)
    return 1 if red else 0


def _able(name: str) -> bool:
    if name == "counters":
        return importlib.import_module("benchmarks.counters").ncu() is not None
    return name not in SEVERAL or torch.cuda.device_count() > 1


def _measured(name: str) -> list[dict] | None:
    """The rows of a section; None, and a line, where something was wrong."""
    try:
        return importlib.import_module(f"benchmarks.{name}").run()
    except (Red, NoSandbox, RankFailed) as wrong:
        print(f"\n{name}: no numbers, because {wrong}")
        return None


def _apart(names: Sequence[str]) -> list[tuple[str, list[dict] | None]]:
    """Each name in a process of its own, one after the other on each GPU; what needs several GPUs runs by itself."""
    devices = max(torch.cuda.device_count(), 1)
    free: SimpleQueue[int] = SimpleQueue()
    for device in range(devices):
        free.put(device)

    def alone(name: str):
        device = free.get()
        try:
            return name, _process(name, str(device) if TIER == "gpu" else None)
        finally:
            free.put(device)

    with ThreadPoolExecutor(devices) as pool:
        found = list(pool.map(alone, [name for name in names if name not in SEVERAL]))
    return found + [(name, _process(name, None)) for name in names if name in SEVERAL]


def _process(name: str, device: str | None) -> list[dict] | None:
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "rows.json"
        seen = {} if device is None else {"CUDA_VISIBLE_DEVICES": device}
        command = [sys.executable, "-m", "benchmarks", name, "--into", str(into)]
        subprocess.run(command, env=os.environ | seen, check=False)
        return json.loads(into.read_text())[name] if into.exists() else None


def joined(runs: Sequence[list[dict]]) -> list[dict]:
    """Of several runs of a section one: of each row the one whose ratio, or else value, is in the middle."""
    if len(runs) == 1:
        return runs[0]
    rows = []
    for first in runs[0]:
        same = [row for run in runs for row in run if row["name"] == first["name"]]
        key = next((key for key in ("ratio", "value") if all(row.get(key) is not None for row in same)), None)
        middle = first if key is None else next(r for r in same if r[key] == median_low(r[key] for r in same))
        told = {"processes": len(same)}
        if key == "ratio":
            told |= {"least ratio": min(r["ratio"] for r in same), "largest ratio": max(r["ratio"] for r in same)}
        rows.append(middle | told)
    return rows


def _slug() -> str:
    """NVIDIA H200 -> h200: the first word of the name that has both letters and digits; without a GPU, cpu."""
    if TIER != "gpu":
        return "cpu"
    return re.search(r"[a-z]+[0-9]+[a-z]*", machine().name.lower()).group()


def _table(rows: list[dict]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [columns, *([_text(row.get(key)) for key in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip() for line in cells)


def _text(value) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
