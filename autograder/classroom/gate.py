"""`python -m autograder release-check LESSON`: what must be so before a lesson is given out, on one page.

Each line of the page says what was looked at and how. The exit status is 1 when one of them failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.classroom import bundle, cohort, leaks, lessons, notebooks, rehearsal, stubs
from autograder.classroom.counted import many
from autograder.classroom.lessons import COURSE, Lesson
from course_lib.places import environment

MANY = 6  # sentences of one line of the page; the rest is counted
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)>?[^)]*\)|<(?:a|img)\b[^>]*?(?:href|src)\s*=\s*[\"']([^\"']+)")
CODE = re.compile(r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]*\$", re.DOTALL)  # where brackets mean something else
FILE = re.compile(r"`((?:autograder|benchmarks|course_lib|notebooks|solutions)/[\w./-]+)`")


@dataclass(frozen=True)
class Looked:
    """One line of the page."""

    name: str
    how: str  # what it was shown by
    wrong: tuple[str, ...] = ()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", nargs="+", help="01_roofline or roofline; several are several pages")


def main(args: argparse.Namespace) -> int:
    failed = False
    for lesson in bundle.chosen_lessons(args.lesson):
        began, found = time.monotonic(), []
        for number, one in enumerate(looked_at(lesson), 1):
            found.append(one)
            print(f"\r{lesson.unit}: {number} looked at, last {one.name:<40}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        print(page(lesson, found, time.monotonic() - began), flush=True)
        failed |= any(one.wrong for one in found)
    print(cohort.open_to_others(COURSE), end="")
    return 1 if failed else 0


def page(lesson: Lesson, found: list[Looked], seconds: float) -> str:
    from course_lib import device

    here = device.machine()
    lines = [f"Release check of {lesson.unit}, on {here.name} (tier: {here.tier}), {seconds:.0f} s", ""]
    for one in found:
        more = [f"and {len(one.wrong) - MANY} more"] if len(one.wrong) > MANY else []
        lines.append(wrapped(f"{'FAILED' if one.wrong else 'ok':<8}{one.name}: {one.how}", 8))
        lines += [wrapped(f"{'':8}- {says}", 10) for says in [*one.wrong[:MANY], *more]]
    failed = [one.name for one in found if one.wrong]
    lines += ["", f"Not ready: {', '.join(failed)}." if failed else "Ready to be given out.", ""]
    return "\n".join(lines)


def wrapped(text: str, indent: int) -> str:
    return textwrap.fill(text, 100, subsequent_indent=" " * indent, break_on_hyphens=False, drop_whitespace=True)


def looked_at(lesson: Lesson) -> Iterator[Looked]:
    """Every line of the page, the quick ones first."""
    wanted, why_not = built(lesson)
    yield forms(wanted, why_not)
    if why_not or not lesson.release.exists():
        return
    script, release = lessons.read_script(lesson), nbformat.read(lesson.release, as_version=4)
    held = bundle.contents([lesson])
    yield solution_text(script, release)
    yield leaking(lesson, wanted, release, held)
    yield links(release, lesson.release.parent, held)
    yield pictures(nbformat.read(lesson.solution, as_version=4))
    yield ready_made(lesson, held)
    yield from graded(lesson)
    yield bank(lesson)


# ------------------------------------------------------------------------------------------- the text


def built(lesson: Lesson) -> tuple[dict[Path, bytes], list[str]]:
    """What the script makes; or why it makes nothing."""
    wrong = [f"{lesson.script.name}: {says}" for says in stubs.problems(lessons.read_script(lesson))]
    if wrong:
        return {}, wrong
    try:
        return notebooks.made([lesson]), []
    except (Exception, SystemExit) as error:  # nbgrader ends the process
        return {}, [f"nbgrader makes no release of it ({type(error).__name__}: {error}); make notebooks says why"]


def forms(wanted: dict[Path, bytes], why_not: list[str]) -> Looked:
    differ = [path for path, content in wanted.items() if not path.exists() or path.read_bytes() != content]
    wrong = [f"{path.relative_to(COURSE)} differs: make notebooks" for path in differ]
    how = "the solved and the released notebook are what the script makes, byte for byte"
    return Looked("forms agree", how, (*why_not, *wrong))


def solution_text(script: NotebookNode, release: NotebookNode) -> Looked:
    answers = len(leaks.solutions(script.cells))
    how = "no cell holds half of the lines of an answer, or its function under other names; "
    how += f"{many(answers, 'answer')} compared"
    return Looked("no solution text", how, tuple(leaks.text_of_solutions(script, release)))


def leaking(lesson: Lesson, made: dict[Path, bytes], release: NotebookNode, held: dict[str, bytes]) -> Looked:
    wanted = {path for path in made if lesson.release.parent in path.parents}
    there = {path for path in lesson.release.parent.rglob("*") if path.is_file()}
    wrong = [f"{path.relative_to(COURSE)} comes from no lesson" for path in sorted(there - wanted)]
    wrong += [f"{path.name} is released beside the lesson" for path in sorted(wanted) if path.suffix in (".py", ".pyc")]
    wrong += leaks.what_a_release_may_not_hold(release)
    code = {name: data.decode() for name, data in held.items() if name.endswith((".py", ".md", ".json"))}
    wrong += leaks.text_in_files(lessons.read_script(lesson), code)
    how = "no outputs, attachments or stray files; no text of the lesson's solutions in the "
    how += f"{many(len(held), 'file')} of the students' bundle"
    return Looked("no leak", how, tuple(wrong))


def ready_made(lesson: Lesson, held: dict[str, bytes]) -> Looked:
    wrong = leaks.answers_in_modules(lesson.name, [name for name in held if name.endswith(".py")])
    how = "no class or function of its exercises in the students' bundle is an answer to one; each was tried"
    return Looked("no ready-made answer", how, tuple(wrong))


def links(release: NotebookNode, folder: Path, held: dict[str, bytes]) -> Looked:
    prose = [(cell.id, cell.source) for cell in release.cells if cell.cell_type == "markdown"]
    targets = [(name, first or second) for name, text in prose for first, second in LINK.findall(CODE.sub("", text))]
    anchors = {anchor(line) for _, text in prose for line in re.findall(r"^#+ +(.+)$", text, re.MULTILINE)}
    wrong = [f"cell {name}: {says}" for name, target in targets if (says := broken(target, folder, anchors, held))]
    named = [(name, path) for name, text in prose for path in FILE.findall(text)]
    wrong += [f"cell {name} names {path}, which is not there" for name, path in named if not (COURSE / path).exists()]
    outside = sum(bool(re.match(r"https?:", target)) for _, target in targets)
    inside = f"{many(len(targets) - outside, 'link')} into the course and {many(len(named), 'name')} of files"
    how = f"looked up: {inside}; not fetched: {many(outside, 'link')} elsewhere"
    return Looked("links", how, tuple(wrong))


def broken(target: str, folder: Path, anchors: set[str], held: dict[str, bytes]) -> str:
    """Why a link of a released lesson leads nowhere for a student, or ""."""
    if target.startswith("#"):
        return "" if target[1:] in anchors else f"no heading for {target}"
    if re.match(r"https?://[\w-]+(\.[\w-]+)+", target) or target.startswith("mailto:"):
        return ""
    if ":" in target.partition("/")[0]:
        return f"{target[:60]} is no link that a release can have"
    path = (folder / target.partition("#")[0]).resolve()
    if not path.is_relative_to(COURSE) or path.relative_to(COURSE).as_posix() not in held:
        return f"{target} is not in the students' bundle"
    return ""


def anchor(heading: str) -> str:
    """As JupyterLab makes it."""
    return re.sub(r"[`*$]", "", heading).strip().replace(" ", "-")


def pictures(solved: NotebookNode) -> Looked:
    drawn = [cell for cell in solved.cells if cell.cell_type == "code" and "plots.show(" in cell.source]
    wrong = []
    for cell in drawn:
        kinds = {kind for out in cell.outputs for kind in out.get("data", {})}
        wrong += [] if kinds & {"image/png", "image/svg+xml"} else [f"cell {cell.id} drew no picture"]
    failing = [cell.id for cell in solved.cells if any(out.output_type == "error" for out in cell.get("outputs", ()))]
    wrong += [f"cell {name} ended with an error" for name in failing]
    how = f"the executed lesson has no error, and the pictures of {many(len(drawn), 'cell')} that draw"
    return Looked("pictures", how, tuple(wrong))


# ------------------------------------------------------------------------------------------- the grading


def graded(lesson: Lesson) -> Iterator[Looked]:
    """Both hand-ins through nbgrader's own commands, by the referee, into a gradebook."""
    from course_lib import device

    try:
        with rehearsal.course(lesson) as course:
            how = "the gradebook has the points of the exercises, for each of them"
            yield Looked("points", how, tuple(course.wrong_points()))
            took = {who: course.nbgrader("autograde", lesson.unit, f"--student={who}") for who in REHEARSED}
            solved, untouched = map(course.marks, REHEARSED)
    except rehearsal.Failed as error:
        yield Looked("grading", "nbgrader's commands on a course of two", (str(error),))
        return
    by_machine = [mark for mark in solved if mark.by_machine]
    how = f"the solved lesson earns {sum(m.points or 0 for m in by_machine):g} of {sum(m.out_of for m in by_machine):g}"
    waits = rehearsal.waiting_for_a_gpu(solved)
    how += f"; not shown here, for want of a GPU: {', '.join(waits)}" if waits else ""
    yield Looked("solved earns all", how, tuple(rehearsal.short_of_all(solved, device.TIER)))
    how = f"the untouched release earns {sum(mark.points or 0 for mark in untouched):g}, and nothing of it waits"
    yield Looked("untouched earns none", how, tuple(rehearsal.more_than_none(untouched)))
    yield timing(took[rehearsal.SOLVED], took[rehearsal.UNTOUCHED])


REHEARSED = (rehearsal.SOLVED, rehearsal.UNTOUCHED)
TOO_LONG_S = 600.0  # for one hand-in: 600 of them would take more than four days


def timing(solved_s: float, untouched_s: float) -> Looked:
    hours = max(solved_s - untouched_s, 0) * 600 / 3600
    how = f"the solved one took {solved_s:.1f} s, the untouched one {untouched_s:.1f} s, with starting nbgrader"
    how += f"; 600 like the solved one take {hours:.1f} h at least, one after another"
    wrong = (f"more than {TOO_LONG_S / 60:.0f} minutes for one hand-in",) if solved_s > TOO_LONG_S else ()
    return Looked("time of grading", how, wrong)


def bank(lesson: Lesson, run: Callable[..., subprocess.CompletedProcess] = subprocess.run) -> Looked:
    line = [sys.executable, "-m", "autograder", "bank", lesson.name]
    done = run(line, cwd=COURSE, env=environment(), capture_output=True, text=True)
    rows = re.findall(r"^all +(\S+) +(\S+) +(\S+) +(\S+) +(\d+) ", done.stdout, re.MULTILINE)
    if not rows:
        return Looked("known mistakes", "the bank", (done.stderr.strip()[-300:] or "the bank answered nothing",))
    right, slow, caught, named, skipped = rows[-1]
    how = f"{caught} mistakes caught, {named} called by their name, {right} right and {slow} slow answers accepted"
    how += f"; {skipped} that this machine cannot show" if int(skipped) else ""
    return Looked("known mistakes", how, tuple(bank_problems(done.stdout.splitlines(), done.returncode)))


def bank_problems(said: Iterable[str], status: int) -> list[str]:
    wrong = [line.removeprefix("NOT AS EXPECTED ") for line in said if line.startswith("NOT AS EXPECTED ")]
    few = [line for line in said if "% are asked for" in line]
    return [*wrong, *few] or (["the bank ended with an error"] if status else [])
