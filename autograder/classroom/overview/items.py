"""Numbers about exercises and about the class. Pure: answers in, numbers out."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autograder.classroom.overview.answers import Answer

LEAST = 5  # students, before a correlation is said


@dataclass(frozen=True)
class ItemRow:
    """What is known of one graded cell. An answer that waits says nothing yet and is not in the numbers."""

    item: str
    out_of: float
    settled: int  # students whose points are there
    waiting: int
    tried: int
    mean: float | None  # share of the points, over the settled; None while nobody who tried it has points
    full: float | None  # share of the settled who have all points
    discrimination: float | None  # correlation of the points with those of all other items


def totals(answers: Sequence[Answer]) -> dict[str, float]:
    """Student -> points so far."""
    found: dict[str, float] = {}
    for one in answers:
        found[one.student] = found.get(one.student, 0.0) + one.points
    return found


def analysed(answers: Sequence[Answer]) -> list[ItemRow]:
    """In the order of the lesson."""
    every, rows = totals(answers), []
    for name in dict.fromkeys(one.item for one in answers):
        mine = [one for one in answers if one.item == name]
        settled = [one for one in mine if not one.waits]
        shares = [one.points / one.out_of if one.out_of else 0.0 for one in settled]
        rest = [every[one.student] - one.points for one in settled]
        told = bool(shares) and (len(settled) == len(mine) or any(map(says, settled)))
        rows.append(
            ItemRow(
                item=name,
                out_of=mine[0].out_of,
                settled=len(settled),
                waiting=len(mine) - len(settled),
                tried=sum(one.tried for one in mine),
                mean=statistics.fmean(shares) if told else None,
                full=sum(share >= 1.0 for share in shares) / len(shares) if told else None,
                discrimination=correlation(shares, rest),
            )
        )
    return rows


def says(one: Answer) -> bool:
    """Whether settled points tell of the exercise while others wait. For speed they do where it was timed or a person
    gave points; others have their 0 at once, as those have who left an answer empty."""
    return one.tried and (one.kind != "speed" or one.share is not None or one.points > 0)


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's; None where one of them does not vary, or where there are too few."""
    if len(one) < LEAST or len({*one}) < 2 or len({*other}) < 2:
        return None
    found = statistics.correlation(one, other)
    return found if math.isfinite(found) else None


def mistakes(answers: Sequence[Answer]) -> list[tuple[str, str, int, str]]:
    """(exercise, mistake, how often, the source of the shortest example), the most frequent first."""
    counts = Counter((one.name, one.mistake) for one in answers if one.mistake)
    rows = []
    for (name, mistake), count in counts.most_common():
        sources = [one.source for one in answers if (one.name, one.mistake) == (name, mistake) and one.source]
        rows.append((name, mistake, count, min(sources, key=len, default="")))
    return rows


def seconds(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """Item -> what each judging took, in the order of the lesson."""
    found: dict[str, list[float]] = {one.item: [] for one in answers}
    for one in answers:
        found[one.item] += [one.seconds] if one.seconds else []
    return {item: took for item, took in found.items() if took}


def board(answers: Sequence[Answer]) -> dict[str, list[tuple[str, float, str]]]:
    """Exercise -> (student, share of the reachable speed, GPU), the fastest first; without those who opted out."""
    found: dict[str, list[tuple[str, float, str]]] = {}
    for one in answers:
        if one.kind == "speed" and one.share is not None and one.board and not one.waits:
            found.setdefault(one.name, []).append((one.student, one.share, one.machine))
    return {name: sorted(rows, key=lambda row: -row[1]) for name, rows in found.items()}


def timed_on(answers: Sequence[Answer]) -> Counter:
    """GPU -> how many points for speed were measured on it."""
    return Counter(one.machine for one in answers if one.share is not None)
