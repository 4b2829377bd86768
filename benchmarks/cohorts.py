"""What a cohort costs on N GPUs: worked out from recorded times by the fleet's own rule for its batches, not measured.

python -m benchmarks.cohorts prints the table of notes/grading.md. The submission is the dearest that there is: lesson
01 solved, all points for speed earned.
"""

from __future__ import annotations

import math

from autograder.classroom.fleet.plans import batch_size, in_batches
from course_lib import results

GPUS, COHORTS = (1, 4, 8, 16, 32, 64), (600, 2_000, 10_000)
# Slurm starts an empty task, and a task comes to its first judging: notes/grading.md, "A fleet".
START_S = 0.42 + 4.9
MOST_TASKS = 1_000  # of an array, by Slurm's own setting
WHOLE_ROUNDS_S = 79.0  # points for speed since two timed rounds run once more: one run of 2026-11-29, not kept


def graded_s() -> float:
    """Seconds of one submission without its points for speed."""
    return _rows()["as graded, sandbox included"]["seconds"]


def timing_s() -> float:
    """Seconds of its points for speed."""
    return _rows()["one after the other"]["timing_s"]


def _rows() -> dict[str, dict]:
    return {row["name"]: row for row in results.load("grading", "h200")["rows"]}


def size(each_s: float, submissions: int) -> int:
    """Submissions in the largest batch of the fleet."""
    return batch_size(each_s, START_S, submissions, MOST_TASKS)


def seconds(each_s: float, submissions: int, gpus: int) -> float:
    """Every GPU takes one batch after the other; the last round is waited for whole."""
    batches = in_batches(range(submissions), size(each_s, submissions))
    return math.ceil(len(batches) / gpus) * (START_S + max(map(len, batches)) * each_s)


def in_words(seconds: float) -> str:
    """Two digits; below 100 minutes in minutes."""
    if seconds < 6_000:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.0f} h" if hours >= 10 else f"{hours:.1f} h"


def table() -> str:
    """By the recorded times, and in brackets with points for speed as they took since."""
    recorded, since = graded_s() + timing_s(), graded_s() + WHOLE_ROUNDS_S
    lines = ["| GPUs | 600 submissions | 2,000 | 10,000 |", "|---|---|---|---|"]
    for gpus in GPUS:
        both = [(seconds(recorded, count, gpus), seconds(since, count, gpus)) for count in COHORTS]
        lines.append(f"| {gpus} | {' | '.join(f'{in_words(one)} ({in_words(other)})' for one, other in both)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
