"""A plan: which texts lack a verdict, in batches of which one task judges one.

A plan is written before anything is submitted and never changed. What is done is seen from the verdict files alone, so
there is no state that an interruption could leave wrong.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from autograder.classroom.taken import VERDICTS, Item, items
from autograder.classroom.verdicts import TIERS, beside, reachable

LEAST_S = 120.0  # of grading in a task
STARTS = 10  # times as long as the start of a task, at least, takes the grading in it
ASSUMED_S, ASSUMED_START_S = 10.0, 5.0  # for a submission and for a start, where none was measured yet


@dataclass(frozen=True)
class Text:
    """One text to judge, whoever handed it in."""

    who: tuple[Item, ...]  # all have the same code; the first one's file is read
    files: tuple[tuple[str, ...], ...]  # for each check: names of files of which one is its verdict

    def done(self, there: Container[str]) -> bool:
        return all(any(name in there for name in names) for names in self.files)


@dataclass(frozen=True)
class Plan:
    lesson: str
    number: int
    tier: str  # that is asked for
    slurm: str  # what is asked of Slurm, or "" for workers on this machine
    workers: int  # on this machine
    submissions: int  # of the lesson, with those that have their verdicts
    batches: tuple[tuple[Text, ...], ...]

    @property
    def folder(self) -> Path:
        """Of logs, and of one record a task."""
        return folder(self.lesson) / str(self.number)

    def log(self, task: int | str) -> Path:
        return self.folder / f"{task}.log"

    def record(self, task: int) -> Path:
        return self.folder / f"{task}.json"


def folder(lesson: str) -> Path:
    return VERDICTS / "fleet" / lesson


def path(lesson: str, number: int) -> Path:
    return folder(lesson) / f"plan-{number}.json"


def lessons() -> list[str]:
    """Of which there is a plan."""
    return sorted({path.parent.name for path in (VERDICTS / "fleet").glob("*/plan-*.json")})


def written(plan: Plan) -> Plan:
    plan.folder.mkdir(parents=True, exist_ok=True)
    to = path(plan.lesson, plan.number)
    beside(to).write_text(json.dumps(asdict(plan)), encoding="utf-8")
    os.replace(beside(to), to)
    return plan


def forget(plan: Plan) -> None:
    """A plan of which nothing came."""
    path(plan.lesson, plan.number).unlink()


def read(lesson: str, number: int) -> Plan:
    data = json.loads(path(lesson, number).read_text(encoding="utf-8"))
    batches = tuple(
        tuple(Text(tuple(Item(**one) for one in text["who"]), tuple(map(tuple, text["files"]))) for text in batch)
        for batch in data.pop("batches")
    )
    return Plan(**data, batches=batches)


def numbers(lesson: str) -> list[int]:
    """Of the plans that there are, the newest first."""
    return sorted((int(path.stem.split("-")[1]) for path in folder(lesson).glob("plan-*.json")), reverse=True)


def there() -> set[str]:
    """The verdict files that are not empty."""
    if not VERDICTS.exists():
        return set()
    return {entry.name for entry in os.scandir(VERDICTS) if entry.name.endswith(".json") and entry.stat().st_size}


def texts(lesson: str, tier: str) -> tuple[int, list[Text]]:
    """How many submissions there are, and the different texts that were not all judged on this tier or a higher one."""
    found: dict[tuple, list[Item]] = {}
    every, known = items(lesson), there()
    for item in every:
        if judging := item.judging():
            keys = tuple((judging.key(asked), reachable(asked, tier)) for asked in judging.asked)
            found.setdefault(keys, []).append(item)
    all_texts = [
        Text(tuple(who), tuple(tuple(f"{key}.{t}.json" for t in TIERS[TIERS.index(least) :]) for key, least in keys))
        for keys, who in found.items()
    ]
    return len(every), [text for text in all_texts if not text.done(known)]


def measured(lesson: str) -> tuple[float, float]:
    """Seconds that a submission takes and that a task takes to start, as the tasks of this lesson recorded them."""
    records = [record for path in folder(lesson).glob("*/*.json") if (record := _read(path))]
    judged = sum(one["judged"] for one in records)
    each_s = sum(one["graded_s"] for one in records) / judged if judged else ASSUMED_S
    start_s = sum(one["start_s"] for one in records) / len(records) if records else ASSUMED_START_S
    return each_s, start_s


def _read(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def batch_size(each_s: float, start_s: float, count: int, most_tasks: int) -> int:
    """So many that starting costs less than a tenth of grading, and that an array can have so many tasks."""
    for_its_start = math.ceil(max(LEAST_S, STARTS * start_s) / max(each_s, 0.01))
    return max(1, for_its_start, math.ceil(count / most_tasks))


def in_batches(texts: Iterable[Text], size: int) -> tuple[tuple[Text, ...], ...]:
    """Of about equal size, and none larger than this."""
    every = list(texts)
    count = math.ceil(len(every) / size)
    return tuple(tuple(every[first::count]) for first in range(count))
