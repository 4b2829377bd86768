"""The wheel, installed in an empty folder: a reader who has no repository meets all lessons and all their results."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from course_lib import check_install, places

COURSE = places.ROOT
RELEASES = sorted((COURSE / "notebooks").glob("*/*.ipynb"))
EXTRAS = ("anywidget", "bleach", "jupyterlab", "jupytext", "nbclient", "nbconvert", "nbformat", "nbgrader")
NOT_ON_WINDOWS = ("fcntl", "grp", "pwd", "resource", "termios")
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({}))\n"
COMMAND = "from course_lib.command import main; sys.exit(main({}))\n"

# Cells of a notebook as a kernel runs them, until one fails.
CELLS = """
import json
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
import autograder, course_lib

for package in (autograder, course_lib):
    assert Path(package.__file__).parents[1] == Path(sys.argv[1]), package.__file__
shell = InteractiveShell.instance()
cells = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))["cells"]
sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
for number, source in enumerate(sources[: int(sys.argv[3])], 1):
    if not shell.run_cell(source).success:
        sys.exit(f"code cell {number} failed")
print(f"ran to the end of code cell {number}")
"""
IMPORTS = """
import ast, json, pathlib

for path in sorted(pathlib.Path("notebooks").glob("*/*.ipynb")):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    setup = next("".join(cell["source"]) for cell in cells if "setup" in cell["metadata"].get("tags", ()))
    for one in ast.parse(setup).body:
        if isinstance(one, ast.Import | ast.ImportFrom):
            exec(ast.unparse(one))
from autograder import live
"""
LOOK = """
import os, autograder, course_lib
for package, folder in ((autograder, "."), (course_lib, "kernels"), (course_lib, "recorded")):
    print(*sorted(os.listdir(os.path.join(os.path.dirname(package.__file__), folder))))
"""
SANDBOX = "import subprocess; from autograder.referee import sandbox\n"
SANDBOX += "subprocess.run(sandbox.command([sys.executable, '-c', sys.argv[1]]), check=True)\n"


bubblewrapped = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")


def builds(test):
    """Takes its time, and one worker takes all of them: they share one wheel."""
    return pytest.mark.slow(pytest.mark.xdist_group("package")(test))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that nothing of an earlier build gets into it."""
    tree = tmp_path_factory.mktemp("package") / "tree"
    for room in ("autograder", "benchmarks", "course_lib", "notebooks", "solutions", "tests"):
        shutil.copytree(COURSE / room, tree / room, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(COURSE / name, tree)
    pip("wheel", "--no-build-isolation", "--wheel-dir", tree.parent, tree)
    return next(tree.parent.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel) -> Path:
    folder = wheel.parent / "installed"
    pip("install", "--target", folder, wheel)
    return folder


def pip(verb: str, *words) -> None:
    line = [sys.executable, "-m", "pip", verb, "--quiet", "--no-deps", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def run(*command, cwd: Path, packages: Path | None) -> subprocess.CompletedProcess:
    """With the installed course on the path, and nothing of the repository."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part and Path(part) != COURSE]
    path = os.pathsep.join([*([str(packages)] if packages else []), *others])
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )


def without(modules: tuple[str, ...]) -> str:
    """Python that cannot import these."""
    return WITHOUT.format(repr(modules))


# ------------------------------------------------------------------------------------------- what needs no wheel


def test_check_install_asks_for_what_pyproject_asks_for():
    project = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]
    assert [f"{name}>={least}" for name, least in check_install.LEAST.items()] == sorted(
        project["dependencies"], key=lambda line: list(check_install.LEAST).index(Requirement(line).name)
    )
    assert project["requires-python"] == ">={}.{}".format(*check_install.OLDEST_PYTHON)


@pytest.mark.parametrize(
    ("name", "version", "says"),
    [
        ("pillow", None, "pillow      missing. pip install 'pillow>=10'"),
        ("ipywidgets", "7.6.5", "ipywidgets  7.6.5. It is too old: pip install 'ipywidgets>=7.7'"),
    ],
)
def test_check_install_ends_with_1_where_something_needed_lacks(monkeypatch, capsys, name, version, says):
    real = metadata.version

    def found(asked: str) -> str:
        if asked != name:
            return real(asked)
        if version is None:
            raise metadata.PackageNotFoundError(asked)
        return version

    monkeypatch.setattr(check_install.metadata, "version", found)
    assert check_install.main(None) == 1
    said = capsys.readouterr().out.splitlines()
    assert says in said and said[-1] == f"Needed and lacking: {name}{', tier' * (version is None)}."


def test_what_is_not_needed_may_lack(monkeypatch, capsys):
    monkeypatch.setattr(check_install.shutil, "which", lambda name: None)
    assert check_install.main(None) == 0
    assert "bubblewrap  missing. `try` and grading need it: apt-get install bubblewrap" in capsys.readouterr().out


def test_lessons_import_neither_an_extra_nor_what_windows_lacks():
    code = without((*EXTRAS, *NOT_ON_WINDOWS)) + IMPORTS
    done = subprocess.run([sys.executable, "-c", code], cwd=COURSE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------- what needs one


@builds
def test_the_wheel_holds_every_module_explorer_result_and_release_and_nothing_else(wheel):
    sources = {path: path.relative_to(COURSE).as_posix() for room in ("autograder", "course_lib")
               for path in (COURSE / room).rglob("*") if path.suffix in (".py", ".mjs")}  # fmt: skip
    sources |= {path: f"course_lib/recorded/{path.name}" for path in (COURSE / "benchmarks/results").glob("*.json")}
    sources |= {path: f"autograder/releases/{path.parent.name}/{path.name}" for path in RELEASES}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert names == set(sources.values())
        assert [path for path, name in sources.items() if archive.read(name) != path.read_bytes()] == []


@builds
@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.parent.name)
def test_a_lesson_begins_in_an_empty_folder_with_what_lessons_need_and_no_more(installed, tmp_path, release):
    here = installed / "autograder/releases" / release.parent.name / release.name
    limit = 99 if release.parent.name == "00_start" else 10
    done = run(sys.executable, "-c", without(EXTRAS) + CELLS, installed, here, limit, cwd=tmp_path, packages=installed)
    assert done.returncode == 0 and "ran to the end of code cell" in done.stdout, done.stdout[-3000:] + done.stderr


@builds
def test_check_install_says_what_works_and_runs_without_torch(installed, tmp_path):
    done = run(sys.executable, installed / "bin/speed-of-light", "check-install", cwd=tmp_path, packages=installed)
    assert done.returncode == 0, done.stdout + done.stderr
    devices = len(list((COURSE / "benchmarks/results").glob("*.json")))
    assert f"lessons     {len(RELEASES)}, and recorded results of {devices} devices" in done.stdout
    code = "import sys; " + COMMAND.format(["check-install"])
    bare = run(sys.executable, "-S", "-c", code, cwd=tmp_path, packages=installed)
    assert bare.returncode == 1 and "torch       missing. pip install 'torch>=2.11'" in bare.stdout, bare.stderr


@builds
def test_verbs_that_write_into_the_repository_are_not_there_without_one(installed, tmp_path):
    done = run(sys.executable, "-m", "autograder", "notebooks", cwd=tmp_path, packages=installed)
    assert done.returncode == 2 and "invalid choice: 'notebooks' (choose from" in done.stderr, done.stdout


@builds
def test_lab_copies_into_the_folder_where_it_is_called_and_keeps_what_is_there(installed, tmp_path):
    def lab() -> str:
        code = without(("jupyterlab",)) + COMMAND.format(["lab"])
        done = run(sys.executable, "-c", code, cwd=tmp_path, packages=installed)
        assert done.returncode == 1 and "JupyterLab is not installed here" in done.stdout, done.stderr
        return done.stdout

    before = sorted(installed.rglob("*.ipynb"))
    assert lab().count("copied work/") == len(RELEASES)
    copies = {path: tmp_path / "work" / path.relative_to(COURSE / "notebooks") for path in RELEASES}
    assert all(copy.read_bytes() == path.read_bytes() for path, copy in copies.items())
    mine, lost = list(copies.values())[:2]
    mine.write_text("hours of work")
    lost.unlink()
    assert lab().count("copied work/") == 1
    assert mine.read_text() == "hours of work" and lost.exists()
    assert sorted(installed.rglob("*.ipynb")) == before


@builds
@bubblewrapped
def test_try_gives_a_solved_lesson_all_its_points(installed, tmp_path):
    shutil.copy(COURSE / "solutions/00_start/start.ipynb", tmp_path / "mine.ipynb")
    words = ("try", "mine.ipynb")
    done = run(sys.executable, installed / "bin/speed-of-light", *words, cwd=tmp_path, packages=installed)
    assert done.returncode == 0 and "5/5  start.axpy" in done.stdout, done.stdout + done.stderr


@builds
@bubblewrapped
def test_a_sandbox_does_not_show_the_truths_of_a_course_in_its_own_environment(installed, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    site = next((tmp_path / "env").rglob("site-packages"))
    shutil.copytree(installed, site, dirs_exist_ok=True)
    (site / "others.pth").write_text("\n".join(part for part in sys.path if part.endswith("site-packages")))
    python = tmp_path / "env/bin/python"
    done = run(python, "-c", "import sys; " + SANDBOX, LOOK, cwd=tmp_path, packages=None)
    assert done.stdout.splitlines() == ["__init__.py inside", "", ""], done.stdout + done.stderr
