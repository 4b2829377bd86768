"""`python -m autograder notebooks`: the paired and the released notebooks, rebuilt from the scripts."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from autograder.classroom import lessons
from autograder.classroom.lessons import COURSE, Lesson
from autograder.classroom.stubs import problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when a form disagrees")


def main(args: argparse.Namespace) -> int:
    found = lessons.find(COURSE)
    if not found:
        print("There are no lessons in solutions/ yet.")
    wrong = [f"{one.unit}, {says}" for one in found for says in problems(lessons.read_script(one))]
    if wrong:
        print("\n".join(wrong))
        return 1
    wanted = made(found)
    if args.check:
        return check(wanted)
    for path, content in wanted.items():
        if lessons.write_if_changed(path, content):
            print("wrote", path.relative_to(COURSE))
    for path in left_over(wanted):
        path.unlink()
        print("removed", path.relative_to(COURSE))
    return 0


def made(found: list[Lesson]) -> dict[Path, bytes]:
    """What the notebooks of these lessons should hold."""
    solutions = {lesson.solution: lessons.to_text(lessons.refresh(lesson)).encode() for lesson in found}
    return solutions | build_releases(found, solutions)


def check(wanted: dict[Path, bytes]) -> int:
    wrong = [p for p, content in wanted.items() if not p.exists() or p.read_bytes() != content]
    for path in wrong:
        print(f"{path.relative_to(COURSE)} disagrees with its script. Run: make notebooks")
    extra = left_over(wanted)
    for path in extra:
        print(f"{path.relative_to(COURSE)} comes from no lesson. Run: make notebooks")
    return 1 if wrong or extra else 0


def left_over(wanted: dict[Path, bytes]) -> list[Path]:
    """Files in notebooks/ that no lesson makes."""
    there = [p for p in (COURSE / "notebooks").rglob("*") if p.is_file() and ".ipynb_checkpoints" not in p.parts]
    return sorted(set(there) - set(wanted))


def build_releases(found: list[Lesson], solutions: dict[Path, bytes]) -> dict[Path, bytes]:
    """What notebooks/ should hold, made by nbgrader from refreshed solutions in a temporary tree."""
    if not found:
        return {}
    with tempfile.TemporaryDirectory(prefix="speed-of-light-") as folder:
        tree = Path(folder)
        shutil.copy(COURSE / "nbgrader_config.py", tree)
        for lesson in found:
            there = tree / "solutions" / lesson.unit
            shutil.copytree(lesson.script.parent, there, ignore=shutil.ignore_patterns(".*", "__pycache__"))
            (there / lesson.solution.name).write_bytes(solutions[lesson.solution])
        generate(tree, [lesson.unit for lesson in found])
        built = (p for p in (tree / "notebooks").rglob("*") if p.is_file())
        return {COURSE / p.relative_to(tree): p.read_bytes() for p in built}


def generate(tree: Path, units: list[str]) -> None:
    """`nbgrader generate_assignment` for each unit, without a gradebook: the course's own stays as it is."""
    from nbgrader.apps import GenerateAssignmentApp  # takes two seconds, so only where it is needed

    before, mask = Path.cwd(), os.umask(0o077)
    os.umask(mask)  # nbgrader_config.py sets another one, and lessons are for everybody
    os.chdir(tree)
    try:
        for unit in units:
            GenerateAssignmentApp.clear_instance()
            app = GenerateAssignmentApp.instance()
            app.initialize([unit, "--no-db", "--log-level=ERROR", f"--CourseDirectory.root={tree}"])
            app.start()
    finally:
        GenerateAssignmentApp.clear_instance()
        os.chdir(before)
        os.umask(mask)
