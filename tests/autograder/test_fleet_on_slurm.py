"""A fleet on a real Slurm of four nodes on this machine: none is judged twice and none is lost, whatever ends."""

import contextlib
import json
import os
import sys
from pathlib import Path

import pytest

from autograder.bank import find
from tests.autograder.slurm_here import NEEDS, OTHER, UNIT, Cluster, Course, wait

pytestmark = NEEDS
RIGHT = find("start.axpy/right/masked").source
WRONG = find("start.axpy/mistakes/no_mask").source


@pytest.fixture(scope="module")
def cluster():
    made = Cluster()
    made.start()
    yield made
    made.end()


@pytest.fixture
def course(cluster, tmp_path):
    yield Course(tmp_path, cluster)
    cluster.asked("scancel", "--user=root")
    wait(lambda: not cluster.asked("squeue", "-h"), patience_s=60)


def test_sixty_submissions_through_a_cancelled_array_and_a_lost_node(course, cluster):
    """Every third is an answer to run; the others are untouched, each with a comment of its own."""
    expected = {}
    for n in range(60):
        answer = None if n % 3 else WRONG if n % 6 else RIGHT
        expected[f"s{n:02}"] = 5.0 if answer == RIGHT else 0.0
        course.hand_in(f"s{n:02}", answer, f"# {n}")
    course.hand_in("twin", RIGHT, "# 0")
    expected["twin"] = 5.0
    status, said = course.fleet("--slurm", "partition=all,hold")
    assert status == 0 and "61 submissions of 00_start; without a verdict: 61, in 60 texts, 12 a task at most" in said
    assert "of 5 tasks" in said
    nothing = (0, "Nothing to add: what lacks a verdict is in tasks that run or wait (5).\n")
    assert course.fleet("--slurm", "partition=all") == nothing
    cluster.asked("scontrol", "release", cluster.asked("squeue", "-h", "-o", "%A").strip())
    wait(lambda: len(course.kept()) >= 10)
    cluster.asked("scancel", "--user=root")
    wait(course.quiet)
    before = course.kept()
    said = course.status()
    assert "0 running" in said and "0 waiting" in said and " 0 failed" not in said
    assert "CANCELLED" in said or "ended from outside" in said or "it never began" in said
    assert "The same command again submits what failed, and nothing else." in said

    status, said = course.fleet("--slurm", "partition=all")
    assert status == 0, said
    wait(lambda: any(course.kept().keys() - before.keys()) and "R n1" in cluster.asked("squeue", "-h", "-o", "%t %N"))
    assert "running" in course.status() and "tasks run; about" in course.status()
    cluster.lose(1)
    wait(course.quiet)
    cluster.node(1)
    assert f"{UNIT} [####################] 61 of 61 submissions done, 0 running, 0 failed, 0 waiting" in course.status()
    assert "Every submission of 00_start has its verdicts" in course.fleet("--slurm", "partition=all")[1]
    assert {name: course.kept()[name] for name in before} == before, "what was judged stays as it is"
    again = [student for student in set(course.judged()) if course.judged().count(student) > 1]
    assert not again and len(course.kept()) == 60
    verdicts = [json.loads(path.read_text()) for path in course.verdicts.glob("*.json")]
    processors = {one["machine"]["name"] for one in verdicts}
    assert OTHER in processors and len(processors) == 2
    assert not [path for path in course.verdicts.rglob("*") if path.stat().st_mode & 0o077]

    times = course.kept()
    assert course.run("nbgrader", "generate_assignment", UNIT)[0] == 0
    status, said = course.run("nbgrader", "autograde", UNIT, "--Autograde.only_known=True")
    assert status == 0, said
    assert course.marks() == expected and course.kept() == times


def test_a_task_over_its_time_is_told_and_submitted_again_with_more(course):
    """Slurm's least limit is a minute, and cells that never end take longer, all in one batch."""
    course.hand_in("ada", RIGHT)
    for n in range(9):
        course.hand_in(f"zoe{n}", RIGHT, f"while {n} < 10: pass")
    assert course.fleet("--slurm", "time=1")[0] == 0
    wait(course.quiet)
    said, first = course.status(), course.judged()
    assert "ada" in first and "zoe8" not in first and "DUE TO TIME LIMIT" in said
    assert f" {10 - len(first)} failed" in said and f" {len(first)} of 10 submissions done" in said
    assert course.run("nbgrader", "generate_assignment", UNIT)[0] == 0
    said = course.run("nbgrader", "autograde", UNIT, "--Autograde.only_known=True")[1]
    assert "Left out, for want of a verdict: zoe" in said and {*course.marks()} == {*first}
    assert course.fleet("--slurm", "time=20")[0] == 0
    wait(course.quiet)
    assert "10 of 10 submissions done" in course.status()
    assert sorted(course.judged()) == ["ada", *(f"zoe{n}" for n in range(9))]


def fill(path: Path) -> None:
    with path.open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))


def test_a_full_disk_is_told_before_anything_is_judged_and_costs_nobody(course, cluster):
    course.verdicts.symlink_to(cluster.small)
    for student in ("ada", "bob"):
        course.hand_in(student, RIGHT, f"# {student}")
    assert course.fleet("--slurm", "hold")[0] == 0
    filler = course.verdicts / "filler"
    fill(filler)
    said = course.status()
    assert "the disk is full. Mend that, and say the same command again." in said and "2 waiting" in said
    assert "Why tasks wait, in Slurm's words: JobHeldUser" in said
    assert course.fleet("--slurm", "partition=all")[0] == 2
    cluster.asked("scontrol", "release", cluster.asked("squeue", "-h", "-o", "%A").strip())
    wait(course.quiet)
    assert "2 failed" in course.status() and not course.kept()
    filler.unlink()
    assert course.fleet("--slurm", "partition=all")[0] == 0
    wait(course.quiet)
    assert "2 of 2 submissions done" in course.status() and sorted(course.judged()) == ["ada", "bob"]


def test_a_task_has_its_gpu_alone_where_slurm_gave_it_one_or_the_whole_node(course, cluster):
    program = "from autograder.classroom.fleet import slurm; print(slurm.alone())"
    ask = f"cd {course.folder} && PYTHONPATH=. {sys.executable} -c '{program}'"
    told = {}
    for options in ("--mem=100", "--gres=gpu:1 --mem=100", "--exclusive --mem=100", "--oversubscribe --mem=100"):
        out = course.folder / f"out{len(told)}"
        cluster.asked("sbatch", "--wait", f"--output={out}", *options.split(), f"--wrap={ask}")
        told[options.split()[0]] = out.read_text().strip()
    assert told == {"--mem=100": "False", "--gres=gpu:1": "True", "--exclusive": "True", "--oversubscribe": "False"}
