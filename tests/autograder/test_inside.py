"""The wall: what a sandbox holds of ours is the folder `inside`, and that folder needs nothing from behind the wall."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.referee import sandbox
from autograder.referee.room import Room, Worker
from autograder.referee.submission import Cell, Submission

COURSE = Path(__file__).resolve().parents[2]
INSIDE = COURSE / "autograder/inside"
FILES = sorted(path.relative_to(INSIDE).as_posix() for path in INSIDE.rglob("*.py"))
ANSWERS = ("course_lib.kernels", "course_lib.parallel")
needs_bubblewrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


def imported(path):
    """Full names of all that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import hides where it leads"
            yield from (f"{node.module}.{one.name}" for one in node.names)


def file_of(name):
    """The file of ours that this name is imported from: a module, or a package that has the name."""
    place = COURSE.joinpath(*name.split("."))
    found = [place.with_suffix(".py"), place / "__init__.py", place.parent.with_suffix(".py")]
    return next((path for path in [*found, place.parent / "__init__.py"] if path.is_file()), None)


def behind_the_wall(name):
    first = name.partition(".")[0]
    if first == "autograder":
        return not name.startswith("autograder.inside.")
    if first == "course_lib":
        return name.startswith(ANSWERS)
    return first not in {"torch", "triton", "numpy", *sys.stdlib_module_names}


@pytest.mark.parametrize("file", FILES)
def test_what_lies_inside_imports_nothing_from_outside(file):
    assert [name for name in imported(INSIDE / file) if behind_the_wall(name)] == []


def test_what_the_library_brings_along_is_no_answer_either():
    """A module of course_lib that is used inside imports others, and none of them may be covered or judge."""
    waiting = [name for file in FILES for name in imported(INSIDE / file) if name.startswith("course_lib.")]
    seen = set()
    while waiting:
        path = file_of(waiting.pop())
        if path is None or path in seen:
            continue
        seen.add(path)
        ours = [name for name in imported(path) if name.partition(".")[0] in ("autograder", "course_lib")]
        assert [name for name in ours if name.startswith(("autograder", *ANSWERS))] == [], path
        waiting += ours
    assert {COURSE / "course_lib/torch_inside/reuse.py", COURSE / "course_lib/distributed/rank.py"} <= seen


def test_nothing_that_lessons_import_leads_inside():
    for path in [*COURSE.glob("solutions/*/*.py"), *COURSE.glob("course_lib/**/*.py")]:
        assert [name for name in imported(path) if name.startswith("autograder.inside")] == [], path


def test_a_check_in_a_notebook_loads_nothing_of_the_referee():
    program = """
import sys
from autograder import check
assert check("start.axpy", lambda a, x, y, out: None).points == 0
print([name for name in sys.modules if name.startswith(("autograder.referee", "autograder.bank"))])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=COURSE)
    assert done.stdout == "[]\n", done.stderr


# ------------------------------------------------------------------------------------------- in a real sandbox

LOOKS = """
import json, os

def what_i_see(course):
    ours = os.path.join(course, "autograder")
    found = [os.path.join(folder, file) for folder, _, files in os.walk(ours) for file in files]
    return json.dumps(sorted(os.path.relpath(path, ours) for path in found if path.endswith(".py")))

def loaded():
    import sys
    return json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] == "autograder"))

def what_can_be_imported(names):
    import importlib
    found = []
    for name in names:
        try:
            importlib.import_module(name)
            found.append(name)
        except ImportError:
            pass
    return json.dumps(found)

def the_stub():
    from autograder import check, check_speed
    return json.dumps([check("start.axpy", len), check_speed("start.axpy", len)])
"""


@pytest.fixture(scope="module")
def asked():
    """Asks a function of the cells above, in a worker, and returns its answer."""
    from autograder.exercise import Call, get

    exercise = get("mlp.saved")  # plain data, and one thing is returned
    with Room(Submission((Cell("looks", LOOKS),))) as room:

        def ask(entry, *args):
            worker = Worker(room)
            try:
                assert worker.load(entry) == ""
                got = worker.attempt(exercise, exercise.cases[0], Call(dict(enumerate(args)), ""))
                assert got.error is None, got
                return json.loads(next(iter(got.outputs.values())))
            finally:
                worker.end()

        yield ask


@needs_bubblewrap
def test_a_worker_sees_the_folder_inside_and_nothing_else_of_the_autograder(asked):
    assert asked("what_i_see", str(COURSE)) == sorted(["__init__.py", *(f"inside/{file}" for file in FILES)])


@needs_bubblewrap
def test_a_worker_has_nothing_loaded_that_judges(asked):
    names = asked("loaded")
    assert "autograder.inside.calling" in names
    assert [name for name in names if name != "autograder" and not name.startswith("autograder.inside")] == []


@needs_bubblewrap
def test_a_worker_can_import_every_room_inside_and_no_other_one(asked):
    rooms = [f"autograder.{path.stem}" for path in (COURSE / "autograder").iterdir() if path.name[0] not in "_."]
    others = [*rooms, "autograder.exercises.start", "autograder.judging.judge", "solutions", "tests.bank", *ANSWERS]
    others += ["course_lib.kernels.softmax", "course_lib.parallel.naive"]
    # folders without files are packages to Python, and hold nothing
    assert asked("what_can_be_imported", others) == ["autograder.inside", *ANSWERS]
    names = [f"autograder.inside.{file.removesuffix('.py').replace('/', '.')}" for file in FILES if "__" not in file]
    assert asked("what_can_be_imported", names) == names


@needs_bubblewrap
def test_a_check_in_a_submitted_cell_does_nothing(asked):
    assert asked("the_stub") == [None, None]


def test_the_command_line_of_a_sandbox_mounts_the_folder_as_a_whole():
    line = sandbox.command(["true"])
    mounted = {
        line[i + 1] for i, word in enumerate(line) if word == "--ro-bind" and line[i + 1].startswith(str(COURSE))
    }
    ours = {place for place in mounted if not sys.prefix.startswith(place)}
    assert ours == {str(COURSE / "course_lib"), str(INSIDE), str(INSIDE / "stub.py")}
