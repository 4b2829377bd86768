"""What students get: the same bytes on every build, everything that lessons need, and no answer."""

import argparse
import ast
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from autograder.classroom import bundle, leaks, lessons
from autograder.exercise import get
from course_lib.results import ROOT

pytestmark = pytest.mark.xdist_group("bundle")  # one process records the calls that stand in it
SOME = bundle.chosen_lessons(["00_start", "flash"])
ALL = bundle.chosen_lessons([])
bubblewrapped = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


def unpacked(folder: Path, held: dict[str, bytes]) -> Path:
    with tarfile.open(fileobj=io.BytesIO(bundle.packed(held))) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, Debian 12's, has none
        archive.extractall(folder)
    return folder / bundle.TOP


def run(folder: Path, *command: str, **options) -> subprocess.CompletedProcess:
    """In an unpacked bundle, with no other course to import."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part) != ROOT]
    path = os.pathsep.join([str(folder), *others])
    settings = os.environ | {"PYTHONPATH": path}
    options |= {"capture_output": True, "text": True}
    return subprocess.run([sys.executable, *command], cwd=folder, env=settings, **options)


@pytest.fixture(scope="module")
def students(tmp_path_factory) -> Path:
    return unpacked(tmp_path_factory.mktemp("students"), bundle.contents(ALL))


def test_the_bytes_depend_on_nothing_but_what_is_in_it(tmp_path):
    held = bundle.contents(SOME)
    assert bundle.packed(held) == bundle.packed(dict(reversed(held.items())))
    code = "import sys; from autograder.classroom import bundle as b; "
    code += "sys.stdout.buffer.write(b.packed(b.contents(b.chosen_lessons(['00_start', 'flash']))))"
    settings = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    other = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=settings, umask=0o077, capture_output=True)
    assert other.stdout == bundle.packed(held), other.stderr


def test_a_file_that_changed_has_another_time_and_another_file_the_same():
    """Python runs what it compiled of a module while size and time are the same."""
    held = {"a.py": b"x = 5\n", "b.py": b"y = 1\n"}

    def times(files):
        with tarfile.open(fileobj=io.BytesIO(bundle.packed(files))) as archive:
            return {member.name: member.mtime for member in archive}

    before, after = times(held), times(held | {"a.py": b"x = 6\n"})
    assert before["speed-of-light/a.py"] != after["speed-of-light/a.py"]
    assert before["speed-of-light/b.py"] == after["speed-of-light/b.py"]


def test_a_file_that_was_cut_short_is_no_bundle_and_one_that_cannot_be_written_leaves_the_last(tmp_path, monkeypatch):
    out, (start, *_) = tmp_path / "b.tar.gz", ALL
    whole = bundle.packed({f"notebooks/{start.unit}/{start.name}.ipynb": start.release.read_bytes()})
    for end in (0, 10, 1000, len(whole) // 2):
        out.write_bytes(whole[:end])
        assert bundle.lessons_of(out) == {}
    out.write_bytes(whole[:1000] + bytes(1000) + whole[2000:])
    assert bundle.lessons_of(out) == {}
    out.write_bytes(whole)
    monkeypatch.setattr(bundle, "contents", lambda chosen: {"README.md": b"x"})
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space left"):
        bundle.main(argparse.Namespace(lesson=["00_start"], out=out))
    assert out.read_bytes() == whole


def full_disk(path: Path, data: bytes) -> int:
    with path.open("wb") as file:
        file.write(data[:20])
    raise OSError(errno.ENOSPC, "No space left on device")


def test_it_holds_no_solution_no_bank_and_no_reference_kernel():
    names = set(bundle.contents(ALL))
    assert {lesson.release.relative_to(ROOT).as_posix() for lesson in ALL} <= names
    kept_back = ("solutions/", "tests/", "book/", "autograder/bank/", "course_lib/kernels/", "course_lib/parallel/")
    assert [name for name in names if name.startswith(kept_back)] == []
    assert {"README.md", "Makefile", "LICENSE", "requirements.txt", "constraints.txt"} <= names
    told = {name for name in names if name.startswith("autograder/classroom/")}
    assert "autograder/classroom/stubs.py" not in told and "autograder/classroom/grading.py" not in told
    towers = {name.rpartition("/")[2] for name in names if name.startswith("course_lib/models/siglip/")}
    assert {"naive.py", "strong.py", "timed.py"} <= towers and "ours.py" not in towers, "it is made of the kernels"


def test_every_module_of_ours_that_one_in_it_imports_is_in_it_too():
    held = bundle.contents(SOME)
    missing = set()
    for name, data in held.items():
        if name.endswith(".py"):
            for node in ast.walk(ast.parse(data)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in (
                    "autograder",
                    "course_lib",
                ):
                    place = node.module.replace(".", "/")
                    if not {f"{place}.py", f"{place}/__init__.py"} & held.keys():
                        missing.add(f"{name} imports {node.module}")
    assert not missing


def test_a_bundle_of_some_lessons_holds_only_their_exercises():
    units = {name.split("/")[2] for name in bundle.contents(SOME) if name.startswith("autograder/exercises/")}
    assert {name for name in units if not name.endswith(".py")} == {"start", "flash"}


def test_it_asks_for_the_pins_of_what_lessons_import_and_what_opens_them():
    lines = bundle.requirements().splitlines()
    assert {line.partition("==")[0] for line in lines} >= {"torch", "triton", "jupyterlab", "nbformat"}
    assert not [line for line in lines if line.startswith(("nbgrader", "pytest", "jupytext"))]
    assert set(lines) <= set((ROOT / "requirements.txt").read_text().splitlines())


def test_its_readme_names_files_verbs_and_targets_that_are_there(students):
    text = (students / "README.md").read_text()
    assert "LESSONS" not in text.replace("LESSONS\n", "")
    for lesson in ALL:
        assert f"(notebooks/{lesson.unit}/{lesson.name}.ipynb)" in text
    makefile = (students / "Makefile").read_text()
    assert all(f"\n{target}: " in makefile for target in ("lab", "try", "carry"))
    done = run(students, "-m", "autograder", "--help")
    verbs = {line.split()[0] for line in done.stdout.splitlines() if re.match("    [a-z]", line)}
    assert verbs == {"lab", "try", "carry", "check-install"}, done.stdout


def test_the_towers_without_kernels_run_in_it_and_the_other_is_refused_in_words(students):
    code = """
import torch
from course_lib.models import siglip
for kind in (siglip.naive.Tower, siglip.strong.Tower):
    print(kind(siglip.Sizes())(torch.randn(2, 16, 48), torch.tensor([16, 3])).shape)
siglip.ours
"""
    done = run(students, "-c", code)
    assert done.stdout.count("torch.Size([2, 64])") == 2, done.stderr
    assert "ModuleNotFoundError: The tower of the course's kernels is not here" in done.stderr


@pytest.mark.slow
def test_explorers_open_in_it_and_notes_that_lessons_name_are_there(students):
    code = """
from course_lib import widgets
print(bool(widgets.break_even_explorer()._repr_mimebundle_()), bool(widgets.memory_explorer()._repr_mimebundle_()))
"""
    done = run(students, "-c", code)
    assert done.stdout == "True True\n", done.stderr
    held = {path.relative_to(ROOT) for path in (ROOT / "course_lib").rglob("*.mjs")}
    assert held and all((students / path).exists() for path in held)
    for released in (students / "notebooks").rglob("*.ipynb"):
        for name in re.findall(r"benchmarks/notes/\w+\.md", released.read_text()):
            assert (students / name).exists(), f"{released.name} names {name}"


def test_checks_answer_in_it(students):
    code = "import sys\nfrom autograder import check, exercise\n"
    code += "for unit in exercise.UNITS: assert exercise.of_unit(unit)\n"
    code += "print(float(check('start.axpy', lambda *args: None)), sys.modules['autograder'].__file__)"
    done = run(students, "-c", code)
    assert done.stdout.split() == ["0.0", str(students / "autograder/__init__.py")], done.stderr


def slow_but(name: str) -> list:
    marks = {True: [], False: [pytest.mark.slow]}
    return [pytest.param(lesson, marks=marks[lesson.name == name], id=lesson.unit) for lesson in ALL]


TRUTHS = sorted((ROOT / "autograder/exercises").glob("*/*_truth.py"))


@pytest.mark.parametrize("lesson", slow_but("dispatch"))
def test_no_class_or_function_that_students_get_is_an_answer(lesson):
    held = [path.relative_to(ROOT).as_posix() for path in bundle.copied([lesson]) - {*TRUTHS}]
    assert leaks.answers_in_modules(lesson.name, [name for name in held if name.endswith(".py")]) == []


def test_what_computes_a_truth_is_found_to_be_an_answer_and_is_not_in_it(students):
    names = [path.relative_to(ROOT).as_posix() for path in TRUTHS]
    assert len(names) == 5 and not [name for name in names if (students / name).exists()]
    wrong = leaks.answers_in_modules("dispatch", names)
    for made, exercise in (("table_truth.Table", "table"), ("meter_truth.Meter", "meter")):
        assert f"autograder.exercises.dispatch.{made} is an answer to dispatch.{exercise}" in wrong


RECORDED = """
import importlib.util, json, sys
import course_lib.device
from autograder.call.in_process import examine
from autograder.exercise import get
said = {}
for name, path, right, mistaken in json.load(sys.stdin):
    spec = importlib.util.spec_from_file_location("theirs", path)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    for made in (right, mistaken):
        verdict = examine(get(name), eval(made, vars(theirs)), 5)
        said[f"{name} {made}"] = [verdict.points, verdict.diagnosis and verdict.diagnosis.says[:40]]
print(json.dumps(said))
"""
THEIRS = (  # an answer, a mistake, and how its name begins
    ("dispatch.table", "Table", "IncludeWins", "A key that is both included and excluded"),
    ("dispatch.meter", "Meter", "FourBytes", "Elements are not always 4 bytes"),
    ("dispatch.subclass", "Scaled", "TypeForgotten", "The wrapper has another type"),
    ("dispatch.keys", "Rule().met", "ModeIgnored().met", ""),
    (
        "compile.guards",
        "lambda calls, *rest: Rule(*rest).compiles(calls)",
        "lambda calls, *rest: TypesAlike(*rest).compiles(calls)",
        "The type is guarded",
    ),
)


def test_an_answer_is_right_and_a_mistake_has_its_name_where_the_truth_was_written_down(students):
    asked = []
    for name, right, wrong, _ in THEIRS:
        asked.append((name, str(ROOT / "autograder/exercises" / f"{name.replace('.', '/')}_truth.py"), right, wrong))
    done = run(students, "-c", RECORDED, input=json.dumps(asked))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name, right, wrong, names in THEIRS:
        assert said[f"{name} {right}"] == [get(name).points, None]
        points, told = said[f"{name} {wrong}"]
        assert points < get(name).points and told.startswith(names)


@pytest.mark.slow
@bubblewrapped
def test_try_gives_a_solved_lesson_all_its_points_in_it(students, tmp_path):
    shutil.copy(lessons.find(unit="start")[0].solution, tmp_path / "mine.ipynb")
    done = run(students, "-m", "autograder", "try", str(tmp_path / "mine.ipynb"))
    assert done.returncode == 0 and "5/5  start.axpy" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@bubblewrapped
def test_try_judges_every_lesson_in_it_without_the_reference_kernels(students, tmp_path):
    """mx.linear hides them from a submission: where there are none there is nothing to hide."""
    for lesson in ALL[1:]:
        shutil.copy(lesson.solution, tmp_path / lesson.solution.name)
        done = run(students, "-m", "autograder", "try", str(tmp_path / lesson.solution.name))
        assert done.returncode == 0, f"{lesson.unit}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("lesson", ALL, ids=lambda lesson: lesson.unit)
def test_every_cell_of_a_released_lesson_runs_in_it_but_those_of_empty_exercises(students, lesson):
    """Cells that fail are those that need an answer."""
    done = run(students, "-c", CELLS, str(students / "notebooks" / lesson.unit / f"{lesson.name}.ipynb"))
    assert done.returncode == 0 and "ran" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


# In a kernel, as `lab` starts one; what a cell of an untouched lesson may raise: that it is not written yet, or that
# a name or a note is missing which an earlier cell would have made.
CELLS = """
import pathlib, sys
import nbformat
from nbclient import NotebookClient
from course_lib.places import environment

path = pathlib.Path(sys.argv[1])
notebook = nbformat.read(path, 4)
client = NotebookClient(notebook, timeout=900, allow_errors=True, kernel_name="python3",
                        resources={"metadata": {"path": str(path.parent)}})
client.execute(env=environment())
wrong = []
for cell in notebook.cells:
    for out in cell.get("outputs", ()):
        if out.output_type != "error" or out.ename == "NameError":
            continue
        if not any(words in out.evalue for words in ("not written yet", "nothing was noted of")):
            wrong.append(f"{cell.id}: {out.ename}: {out.evalue[:300]}")
print("\\n".join(wrong) or "ran")
sys.exit(bool(wrong))
"""
