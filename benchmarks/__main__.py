"""python -m benchmarks [SECTION ...]: measure all or some of SECTIONS, save to benchmarks/results, print.

python -m benchmarks stale: what is recorded and no longer holds, because the code means something else now.
"""

import importlib
import re
import sys

import torch

from autograder.referee.sandbox import NoSandbox
from benchmarks import recorded
from benchmarks.against import Red
from course_lib import results
from course_lib.device import TIER, machine
from course_lib.distributed import RankFailed

ANYWHERE = ("dispatch", "grading", "collectives", "parallel")  # those that say something without a GPU too
SEVERAL = ("collectives", "parallel", "multiprocessors")  # with GPUs, they need two
SECTIONS = (
    "autocast",
    "ceilings",
    "pointwise",
    "softmax",
    "matmul",
    "attention",
    "attention_sizes",
    "one_pass",
    "rope",
    "mx",
    "linear_gelu",
    "mlp",
    "add_norm",
    "dropout",
    "collectives",
    "parallel",
    "multiprocessors",
    "dispatch",
    "other_cards",
    "timing",
    "clock",
    "grading",
)


def main(names: list[str]) -> int:
    if names == ["stale"]:
        return recorded.tell_stale()
    if unknown := set(names) - set(SECTIONS):
        print(f"No benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}.")
        return 2
    if TIER != "gpu" and not (names and set(names) <= set(ANYWHERE)):
        print("The benchmarks need a CUDA device, and this machine has none. What an H200 gave: benchmarks/results/.")
        print(f"Only {' and '.join(ANYWHERE)}, named alone, run without.")
        return 2
    names = names or [name for name in SECTIONS if name not in SEVERAL or torch.cuda.device_count() > 1]
    red = [name for name in names if not _section(name)]
    return 1 if red else 0


def _section(name: str) -> bool:
    module = importlib.import_module(f"benchmarks.{name}")
    try:
        rows = module.run()
    except (Red, NoSandbox, RankFailed) as wrong:
        print(f"\n{name}: no numbers, because {wrong}")
        return False
    results.save(name, rows, _slug(), recorded.means(name))
    print(f"\n{name} on {machine().name}\n{_table(rows)}", flush=True)
    return True


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
