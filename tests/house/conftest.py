"""A small course in a temporary folder: the real autograder and nbgrader_config.py, one lesson with stock checks."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

COURSE = Path(__file__).resolve().parents[2]

SCRIPT = '''# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Lesson 00, doubling

# %% tags=["setup"]
import os
home = os.path.expanduser("~")
print("run in", os.getcwd())
guess = None
### BEGIN PREDICTION
guess = "the-secret-guess"
### END PREDICTION

# %% nbgrader={<solution>, "grade_id": "double"}
def double(x):
    """Twice x."""
    ### BEGIN SOLUTION
    twice = 2 * x  # the-secret-of-doubling
    ### END SOLUTION
    return twice

# %% nbgrader={<check>, "grade_id": "double_points", "points": 4}
sum(double(x) == x + x for x in (1, 2, 3, 4))

# %% [markdown] nbgrader={<written>, "grade_id": "why", "points": 2}
# Because two times x is x and x, the-secret-of-writing.
'''
KINDS = {
    "<solution>": '"grade": false, "locked": false, "schema_version": 3, "solution": true, "task": false',
    "<check>": '"grade": true, "locked": true, "schema_version": 3, "solution": false, "task": false',
    "<written>": '"grade": true, "locked": false, "schema_version": 3, "solution": true, "task": false',
}
for kind, metadata in KINDS.items():
    SCRIPT = SCRIPT.replace(kind, metadata)


@dataclass(frozen=True)
class Course:
    root: Path

    @property
    def script(self) -> Path:
        return self.root / "solutions" / "00_start" / "start.py"

    @property
    def solution(self) -> Path:
        return self.script.with_suffix(".ipynb")

    @property
    def release(self) -> Path:
        return self.root / "notebooks" / "00_start" / "start.ipynb"

    def run(self, *command: str, **extra) -> subprocess.CompletedProcess:
        """In this course, with this python's programs, and no course but this one to import."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "JUPYTER"))}
        environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
        environment["PYTHONPATH"] = os.pathsep.join([str(self.root), environment.get("PYTHONPATH", "")])
        return subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, **extra)

    def autograder(self, *words: str) -> subprocess.CompletedProcess:
        return self.run(sys.executable, "-m", "autograder", *words)


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Course:
    """Built and executed once; tests that change something take a copy of it."""
    root = tmp_path_factory.mktemp("house") / "course"
    for package in ("autograder", "course_lib"):
        shutil.copytree(COURSE / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    # Its checks are stock ones, so that grading is stock nbgrader's too: the referee knows the course's exercises only.
    stock = "\nc.pop('Autograde')\n"
    (root / "nbgrader_config.py").write_text((COURSE / "nbgrader_config.py").read_text() + stock)
    made = Course(root)
    made.script.parent.mkdir(parents=True)
    made.script.write_text(SCRIPT)
    (made.script.parent / "numbers.json").write_text("[1, 2]\n")
    for verb in ("notebooks", "execute"):
        done = made.autograder(verb)
        assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture
def course(built, tmp_path) -> Course:
    shutil.copytree(built.root, tmp_path / "course")
    return Course(tmp_path / "course")
