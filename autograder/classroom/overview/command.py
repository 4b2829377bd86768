"""`python -m autograder report LESSON`: one page and one table about a class that was graded."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from autograder.classroom import taken
from autograder.classroom.export import QUOTED, as_text
from autograder.classroom.overview import answers, items, page
from autograder.classroom.overview.answers import Answer

DONE, NOTHING = 0, 1  # exit status
COLUMNS = "student pseudonym exercise kind points out_of waits tried mistake seconds share machine".split()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", help="01_roofline")
    parser.add_argument("--out", type=Path, help="folder of the two files; without it, verdicts/reports")


def main(args: argparse.Namespace) -> int:
    taken.notebooks(args.lesson)
    with taken.closed():
        found, ungraded = answers.gathered(args.lesson)
        if not found:
            print(f"Nobody has marks for {args.lesson} yet: nbgrader autograde {args.lesson}")
            return NOTHING
        names = answers.pseudonyms(args.lesson, items.totals(found))
        folder = args.out or taken.VERDICTS / "reports"
        folder.mkdir(parents=True, exist_ok=True)
        html, table = folder / f"{args.lesson}.html", folder / f"{args.lesson}.csv"
        said = page.page(args.lesson, found, ungraded, names, answers.odd(args.lesson, found))
        html.write_text(said, encoding="utf-8")
        write_table(table, found, names)
    print(f"{html}\n{table}")
    return DONE


def write_table(to: Path, found: list[Answer], names: dict[str, str]) -> None:
    """One row for each graded cell of each student."""
    with to.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, quoting=QUOTED)
        rows.writerow(COLUMNS)
        for one in found:
            given = [one.points, one.out_of, one.waits, one.tried, one.mistake, one.seconds, one.share, one.machine]
            rows.writerow([as_text(one.student), names[one.student], one.name, one.kind, *given])
