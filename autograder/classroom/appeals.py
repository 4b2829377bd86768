"""`python -m autograder verdict STUDENT LESSON`: what decided a student's marks, why, and the same judged again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from autograder.classroom import cohort, seeds, taken
from autograder.classroom.marks import in_book, read_shown, shown_file
from autograder.classroom.taken import VERDICTS, Item
from autograder.classroom.verdicts import A_GPU, OUR_FAULT, Asked, Judging, asked_by, grader_hash, is_check, read
from autograder.referee import sandbox
from autograder.referee.referee import fingerprint
from autograder.referee.submission import visible

SAME, DIFFERS, REFUSED = 0, 1, 2  # exit status


@dataclass(frozen=True)
class Decided:
    """A check cell of one student, and the verdict that decided its points."""

    item: Item
    cell: str
    asked: Asked
    verdict: dict | None  # None where nothing was judged yet
    mark: str  # by hand, or ""
    counted: bool  # the verdict is the one that the gradebook's points came from
    why: str = ""  # where there is no verdict

    @property
    def name(self) -> str:
        return str(self.asked)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("student")
    parser.add_argument("lesson", help="01_roofline")
    parser.add_argument("exercise", nargs="?", default="", help="roofline.softmax; all of them without it")
    parser.add_argument("--why", action="store_true", help="with the cases, the limits and what was found")
    parser.add_argument("--again", action="store_true", help="judge again here, on the same draws, and compare")


def main(args: argparse.Namespace) -> int:
    every = list(decided(args.student, args.lesson))
    found = [one for one in every if args.exercise in ("", one.asked.name)]
    if not every:
        print(f"Nothing of {args.student} was taken in for {args.lesson}.", file=sys.stderr)
    elif not found:
        names = ", ".join(dict.fromkeys(one.asked.name for one in every))
        print(f"No exercise of {args.lesson} is called {args.exercise!r}. There are {names}.", file=sys.stderr)
    if not found:
        return REFUSED
    print(f"{args.student}, {args.lesson}")
    width = max(len(one.name) for one in found)
    for one in found:
        print(f"{one.name:<{width}}  {in_short(one)}")
        if args.why and one.verdict:
            print("".join(f"    {visible(line)}\n" for line in reasons(one)), end="")
    return again(found) if args.again else SAME


def decided(student: str, lesson: str) -> Iterator[Decided]:
    """In the order of the lesson."""
    book = in_book(cohort.gradebook(lesson), lesson, student)
    for item in taken.items(lesson):
        if item.student != student:
            continue
        shown = read_shown(shown_file(student, lesson, item.notebook, VERDICTS))
        with taken.closed():
            judging = item.judging()
        for cell in filter(is_check, taken.released(lesson, item.notebook).cells):
            name, asked = cell.metadata.nbgrader["grade_id"], asked_by(cell)
            if asked is None:
                continue
            file = shown.get(name, {}).get("verdict", "")
            verdict = read(VERDICTS / file) if file else None
            counted = verdict is not None
            if judging and not counted:
                verdict = judging.known(asked)
            marks = book.get((student, item.notebook, name))
            why = shown.get(name, {}).get("why", "")
            yield Decided(item, name, asked, verdict, marks.by_hand if marks else "", counted, why)


def in_short(one: Decided) -> str:
    """One line: points, by whom, where, and what is to be known of it."""
    if one.verdict is None:
        return f"{one.mark}; no verdict is kept" if one.mark else one.why or "not judged yet"
    verdict, said = one.verdict, []
    points = f"{verdict['points']:g} of {verdict['out_of']:g}"
    said.append(f"waits for {verdict['waits']}" if verdict["waits"] else points)
    if one.mark:
        said.append(f"{one.mark} counts")
    if verdict["mistake"]:
        said.append(f"the mistake {verdict['mistake']}")
    machine = verdict["machine"]
    if verdict["waits"] != A_GPU:
        said.append(f"judged on {machine['name']} ({machine['host']}) in {verdict['seconds']:g} s")
    if verdict["judged_by"] != grader_hash(one.asked.name):
        said.append("the exercise changed since")
    if not one.counted:
        said.append("not in the gradebook yet")
    return "; ".join(said)


def reasons(one: Decided) -> list[str]:
    """The report that the student got, what was expected, and where it was made. The seed only when seeds are open."""
    machine, lines = one.verdict["machine"], []
    expected = dict(one.verdict.get("expected", {}))  # a verdict of an earlier version has none
    for line in one.verdict["text"]:
        case = next((name for name in expected if line.startswith(f"  wrong: {name} (")), "")
        lines += [line, *(f"    {one}" for one in (expected.pop(case).splitlines() if case else ()))]
    lines += one.verdict.get("endless", [])
    lines += [f"torch {machine['torch']}, triton {machine['triton']}, tier {one.verdict['tier']}."]
    if not seeds.is_open(one.item.lesson):
        return [*lines, f"Its seed is closed: python -m autograder seeds {one.item.lesson} --open, after the deadline."]
    judging = one.item.judging()
    if judging is None or fingerprint(judging.seed) != one.verdict["seed"]:
        return [*lines, "Its seed is gone: the text or the run's seed is another one by now."]
    return [*lines, f"Seed {judging.seed}: python -m autograder try NOTEBOOK --seed {judging.seed} draws the same."]


def again(found: list[Decided]) -> int:
    """Judge on this machine with the recorded seed, and compare. Nothing is kept."""
    try:
        sandbox.require()
    except sandbox.NoSandbox as error:
        print(f"verdict --again: {error}", file=sys.stderr)
        return REFUSED
    statuses = [SAME]
    for notebook in dict.fromkeys(one.item for one in found):
        with taken.closed():
            judging = notebook.judging()
        if judging is None:
            print(f"{notebook.notebook}.ipynb could not be taken apart: a person grades it.", file=sys.stderr)
            return REFUSED
        with judging:
            for one in found:
                if one.item == notebook:
                    status, said = compared(one, judging)
                    statuses.append(status)
                    print(f"again, {one.name}: {said}", flush=True)
    return max(statuses)


def compared(one: Decided, judging: Judging) -> tuple[int, str]:
    before = one.verdict
    if before is None:
        return REFUSED, "not judged yet, so there is nothing to compare with."
    if before["seed"] != fingerprint(judging.seed):
        return REFUSED, "the text that was judged, or the run's seed, is no longer there: it cannot be judged again."
    try:
        now = judging.made(one.asked)
    except OUR_FAULT as error:
        return REFUSED, f"the referee could not judge it ({type(error).__name__}: {visible(str(error))[:200]})."
    notes = []
    if before["judged_by"] != now["judged_by"]:
        notes.append("by the exercise as it is now, which changed since")
    if before["tier"] != now["tier"]:
        notes.append(f"on the tier {now['tier']}, not {before['tier']}")
    elif one.asked.speed and not now["pending"]:
        notes.append("times are measured anew")
    how = f" ({'; '.join(notes)})" if notes else ""
    changes = differences(before, now)
    if not changes:
        return SAME, f"the same{how}: {_points(now)}."
    return DIFFERS, f"not the same{how}: {'; '.join(changes)}."


def differences(before: dict, now: dict) -> list[str]:
    """In words; none where all that decides points is equal."""
    found = []
    if (before["points"], before["waits"]) != (now["points"], now["waits"]):
        found.append(f"then {_points(before)}, now {_points(now)}")
    then, here = dict(before["cases"]), dict(now["cases"])
    for case in sorted(then.keys() | here.keys()):
        if then.get(case) != here.get(case):
            found.append(f"\u201c{case}\u201d was {_right(then.get(case))} and is {_right(here.get(case))}")
    return found


def _points(verdict: dict) -> str:
    return f"waits for {verdict['waits']}" if verdict["waits"] else f"{verdict['points']:g} of {verdict['out_of']:g}"


def _right(right: bool | None) -> str:
    return {None: "not tried", True: "right", False: "wrong"}[right]
