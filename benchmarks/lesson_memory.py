"""python -m benchmarks.lesson_memory [LESSON ... | grading]: every lesson in 7 GiB of the GPU, and what each takes.

Each lesson is executed as `python -m autograder execute` does, by a process that may take no more of the GPU, so sizes
are those of a card of 8 GB. A lesson that needs more fails. What torch's allocator reserved at most is recorded
as a section of the lesson, "lesson04.peak"; the outputs are not kept. Not counted there are the device's own context,
some 0.5 GiB, and processes that a lesson starts, as 08 does: "all processes GiB" is what all of them took, contexts
among it, on the device where that was most. Nothing else may run on the devices.

`grading` is the solved lesson 01 with its points for speed, graded while another process holds all but 8 GiB of the
device. "grading.peak" is all that was taken of these, contexts and the referee's workers among it; nothing else may run
on the device. Whoever loses a point, or is timed and gets none for speed, fails. Points for speed may wait: with the
sizes of 8 GB a round of the clock takes 0.3 ms on an H200, where it takes an RTX 4060 6 (benchmarks/speed_sizes.py).
"""

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import nbformat
import torch
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

from autograder.classroom import execute, lessons
from course_lib import results
from course_lib.device import MEMORY_LIMIT, TIER, machine

__all__ = ["most_taken", "peak_bytes", "watched"]

GIB = 7.0
CARD = 8 << 30  # bytes
# torch forgets its peak where a lesson asks for a smaller one
FIRST = """
import torch
_peaks, _reset = [], torch.cuda.reset_peak_memory_stats
def _kept(*given):
    _peaks.append(torch.cuda.max_memory_reserved())
    _reset(*given)
torch.cuda.reset_peak_memory_stats = _kept
"""
LAST = 'print("most bytes reserved:", max([*_peaks, torch.cuda.max_memory_reserved()]))'


def watched(notebook: NotebookNode) -> NotebookNode:
    """The notebook between a cell that begins to watch and one that says what was seen."""
    first, last = (nbformat.v4.new_code_cell(source) for source in (FIRST, LAST))
    notebook.cells = [first, *notebook.cells, last]
    return notebook


def peak_bytes(notebook: NotebookNode) -> int:
    """Of an executed one."""
    said = "".join(out.get("text", "") for out in notebook.cells[-1].outputs)
    return int(re.search(r"most bytes reserved: (\d+)", said)[1])


def taken() -> list[int]:
    """Bytes of each device, by all processes."""
    found = map(torch.cuda.mem_get_info, range(torch.cuda.device_count()))
    return [total - free for free, total in found]


@contextmanager
def most_taken(every_s: float = 0.05):
    """A list: of each device the most bytes that were taken at any moment, by all processes."""
    most, done = taken(), threading.Event()

    def look():
        while not done.wait(every_s):
            most[:] = map(max, most, taken())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def grade() -> int:
    """Twice: as a process that takes all but 8 GiB of the device and looks on, and as one that may have 7 of these.

    Who looks on is not who grades, so that nothing stands beside the referee's clock in its own process.
    """
    if os.environ.get(MEMORY_LIMIT) == str(GIB):
        return grade_all()
    rest = max(0, torch.cuda.mem_get_info()[0] - CARD)
    taken = torch.empty(rest, dtype=torch.uint8, device="cuda")
    command = [sys.executable, "-m", "benchmarks.lesson_memory", "grading"]
    with most_taken() as most:
        code = subprocess.run(command, env=os.environ | {MEMORY_LIMIT: str(GIB)}, check=False).returncode
    del taken
    peak = (most[0] - (torch.cuda.mem_get_info()[1] - CARD)) / 2**30
    print(f"grading: at most {peak:.2f} GiB", flush=True)
    if not code:
        row = {"name": "peak", "value": peak, "unit": "GiB", "held to GiB": GIB}
        results.save("grading.peak", [row], re.search("[a-z]+[0-9]+", machine().name.lower())[0])
    return code


def grade_all() -> int:
    """1 where a solved exercise lost a point, or was timed and got none for its speed, or none was timed."""
    from autograder import exercise as exercises
    from benchmarks import grading

    rows = grading.in_turn()
    judged = [row for row in rows if "speed_points" in row]
    all_of_it = {row["name"]: exercises.get(row["name"]).points for row in judged}
    short = [row["name"] for row in judged if row["points"] != all_of_it[row["name"]] or row["speed_points"] == 0]
    waiting = [row["name"] for row in judged if row["timed"] and row["speed_points"] is None]
    print("\n".join(map(str, rows)))
    print(
        f"{', '.join(short) or 'nothing'} lost a point; speed waits for {', '.join(waiting) or 'nothing'}", flush=True
    )
    return 1 if short or not any(row["speed_points"] for row in judged) else 0


def main(names: list[str]) -> int:
    if TIER != "gpu":
        print("Peaks of a GPU's memory need a GPU, and this machine has none.")
        return 2
    if names == ["grading"]:
        return grade()
    os.environ[MEMORY_LIMIT] = str(GIB)
    os.environ.pop(results.RECORD, None)  # sizes are not those that the recorded tables have
    failed = []
    for lesson in lessons.find() if not names else [one for name in names for one in lessons.find(unit=name)]:
        began, before = time.monotonic(), taken()
        try:
            with most_taken() as most:
                notebook = execute.run(watched(lessons.refresh(lesson)), lesson.script.parent)
        except CellExecutionError as error:
            failed.append(lesson.unit)
            print(f"{lesson.unit}: does not run in {GIB:g} GiB: {error}", flush=True)
            continue
        peak = peak_bytes(notebook) / 2**30
        together = max(map(int.__sub__, most, before)) / 2**30
        row = {"name": "peak", "value": peak, "unit": "GiB", "held to GiB": GIB, "all processes GiB": together}
        results.save(f"lesson{lesson.unit[:2]}.peak", [row], re.search("[a-z]+[0-9]+", machine().name.lower())[0])
        took = time.monotonic() - began
        print(f"{lesson.unit}: at most {peak:.2f} GiB reserved, {together:.2f} by all, {took:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
