"""`python -m autograder bundle`: what students get, in one file that is the same on every build.

It holds the released lessons, what they import, the checks and `try`; no solution, no bank, no reference kernel. Which
modules of `autograder/` belong there follows from what the students' verbs import. Where what computes the truth of an
exercise would be an answer to it, students get some calls of it in its place (exercises/recorded.py).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import re
import tarfile
import tomllib
import zlib
from pathlib import Path, PurePosixPath

from autograder.classroom import lessons
from autograder.classroom.counted import many
from autograder.classroom.lessons import COURSE, Lesson
from autograder.exercises import recorded
from autograder.referee.sandbox import ANSWERS
from course_lib.command import VERBS
from course_lib.meaning import reached

TOP = "speed-of-light"  # the folder that it is unpacked to
TEMPLATES = COURSE / "students"
# Of these rooms only what the students' verbs and the chosen lessons import
BY_NEED = ("autograder/bank", "autograder/classroom", "autograder/exercises")
# make and Python compare times: a changed file has another time, and the same file always the same one.
FIRST_SECOND, SECONDS = 1_577_836_800, 365 * 86_400  # of 2020


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", nargs="*", help="01_roofline or roofline; all of them without it")
    parser.add_argument("--out", type=Path, default=Path("speed-of-light-students.tar.gz"), help="the file to write")


def main(args: argparse.Namespace) -> int:
    chosen = chosen_lessons(args.lesson)
    if missing := [lesson.unit for lesson in chosen if not lesson.release.exists()]:
        print(f"Not released yet: {', '.join(missing)}. Run: make notebooks")
        return 1
    held = contents(chosen)
    before = lessons_of(args.out)
    lessons.write_if_changed(args.out, packed(held))
    size = f"{args.out.stat().st_size / 1e6:.1f} MB"
    print(f"wrote {args.out}: {many(len(chosen), 'lesson')}, {many(len(held), 'file')}, {size}")
    print(f"sha256 {hashlib.sha256(args.out.read_bytes()).hexdigest()}")
    now = lessons_in(held)
    if before and (changed := sorted(unit for unit in before.keys() & now.keys() if before[unit] != now[unit])):
        print(f"Changed since the file that was there: {', '.join(changed)}.")
    return 0


def chosen_lessons(names: list[str]) -> list[Lesson]:
    """In the order of the course, each once."""
    named = {lesson for name in names or [""] for lesson in lessons.find(COURSE, name)}
    return sorted(named, key=lambda lesson: lesson.unit)


def contents(chosen: list[Lesson]) -> dict[str, bytes]:
    """Every file of the bundle by its place in it."""
    files = copied(chosen)
    truths = {path for path in files if recorded.is_truth(path)}
    held = {path.relative_to(COURSE).as_posix(): path.read_bytes() for path in sorted(files - truths)}
    for path in truths:
        name, text = recorded.text(path)
        held[path.with_name(name).relative_to(COURSE).as_posix()] = text.encode()
    held |= {path.name: path.read_bytes() for path in sorted(TEMPLATES.iterdir()) if path.is_file()}
    held["README.md"] = held["README.md"].replace(b"LESSONS", "\n".join(rows(chosen)).encode())
    held["requirements.txt"] = requirements().encode()
    return held


def copied(chosen: list[Lesson]) -> set[Path]:
    """What students get as it is in the repository."""
    released = {path for lesson in chosen for path in lesson.release.parent.rglob("*") if is_plain(path)}
    results = {*(COURSE / "benchmarks" / "results").glob("*.json")}
    sliders = {*(COURSE / "course_lib").rglob("*.mjs")}
    others = {COURSE / name for name in ("LICENSE", "constraints.txt", *notes(chosen))}
    return released | results | sliders | modules(chosen) | others


def notes(chosen: list[Lesson]) -> set[str]:
    """Of what was tried and measured, what these lessons refer to."""
    texts = "\n".join(lesson.release.read_text(encoding="utf-8") for lesson in chosen)
    return set(re.findall(r"benchmarks/notes/\w+\.md", texts))


def is_plain(path: Path) -> bool:
    return path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(COURSE).parts)


def modules(chosen: list[Lesson]) -> set[Path]:
    """The modules that lessons, checks and the students' verbs may import."""
    every = {path for room in ("autograder", "course_lib") for path in (COURSE / room).rglob("*.py")}
    starts = [COURSE.joinpath(*module.split(".")).with_suffix(".py") for module, _ in VERBS.values()]
    starts += [COURSE / "autograder" / name for name in ("__init__.py", "__main__.py", "live.py")]
    starts += [COURSE / "autograder/exercises" / lesson.name / "__init__.py" for lesson in chosen]
    needed = with_packages({path for start in starts for path in reached(start, ["autograder"])} | {*starts})
    by_need = tuple(COURSE / room for room in BY_NEED)
    answers = tuple(COURSE / "course_lib" / name for name in ANSWERS)
    return {path for path in every if not _below(path, *by_need, *answers) and not _of_answers(path)} | needed


def _of_answers(path: Path) -> bool:
    """A module of course_lib that is made of what is left out, such as the tower of the course's kernels."""
    return _below(path, COURSE / "course_lib") and bool(reached(path, [f"course_lib/{name}" for name in ANSWERS]))


def with_packages(files: set[Path]) -> set[Path]:
    """With the packages that these files lie in: to import a module runs its package first, and what that imports."""
    while True:
        packages = {folder / "__init__.py" for path in files for folder in path.parents if COURSE in folder.parents}
        packages = {path for path in packages if path.is_file()} - files
        if not packages:
            return files
        files = files | packages | {path for one in packages for path in reached(one, ["autograder"])}


def _below(path: Path, *folders: Path) -> bool:
    return any(folder in path.parents for folder in folders)


def rows(chosen: list[Lesson]) -> list[str]:
    """The lessons' rows of the course's README, with links to what is in the bundle."""
    text, found = (COURSE / "README.md").read_text(encoding="utf-8"), []
    for lesson in chosen:
        row = re.search(rf"^\| \[{lesson.unit[:2]} .*$", text, re.MULTILINE)
        if row is None:
            raise SystemExit(f"README.md has no row for lesson {lesson.unit}")
        whole = f"{lesson.unit[:2]}_{lesson.name}"
        found.append(row[0].replace(f"(solutions/{whole}/", f"(notebooks/{lesson.unit}/"))
    return found


def requirements() -> str:
    """The pins of what lessons import and what opens them."""
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["lab"]]
    names = {re.match(r"[\w.-]+", line)[0].lower() for line in wanted}
    lines = (COURSE / "requirements.txt").read_text().splitlines()
    kept = [line for line in lines if line.partition("==")[0].lower() in names]
    return "\n".join(kept) + "\n"


def packed(held: dict[str, bytes]) -> bytes:
    """A gzipped tar: sorted names, one owner, times that depend on the bytes alone."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(held.items()):
            entry = tarfile.TarInfo(str(PurePosixPath(TOP, name)))
            entry.size, entry.mode, entry.mtime = len(data), 0o644, time_of(data)
            archive.addfile(entry, io.BytesIO(data))
    return gzip.compress(tar.getvalue(), mtime=0)


def time_of(data: bytes) -> int:
    return FIRST_SECOND + int.from_bytes(hashlib.sha256(data).digest()[:8], "big") % SECONDS


def lessons_in(held: dict[str, bytes]) -> dict[str, str]:
    """Unit -> the hash of its notebook."""
    found = {name: data for name, data in held.items() if re.fullmatch(r"notebooks/[^/]+/[^/]+\.ipynb", name)}
    return {name.split("/")[1]: hashlib.sha256(data).hexdigest() for name, data in found.items()}


def lessons_of(bundle: Path) -> dict[str, str]:
    """As `lessons_in`, of a file; empty where that is no bundle."""
    try:
        with tarfile.open(bundle) as archive:
            files = {m.name.removeprefix(f"{TOP}/"): archive.extractfile(m).read() for m in archive if m.isfile()}
    except (OSError, EOFError, zlib.error, tarfile.TarError):
        return {}
    return lessons_in(files)
