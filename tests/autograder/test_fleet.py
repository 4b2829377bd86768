"""What a fleet plans, asks of Slurm and tells, without Slurm; and workers of this machine."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autograder.bank import find
from autograder.classroom import taken
from autograder.classroom.fleet import plans, slurm, status, work
from autograder.classroom.fleet.plans import Plan, Text
from autograder.classroom.handed_in import CODE
from autograder.classroom.marks import shown_file
from autograder.classroom.taken import Item
from autograder.referee.submission import extract

UNIT, NAME = "00_start", "start"
COURSE = Path(__file__).resolve().parents[2]


@pytest.fixture
def verdicts(tmp_path, monkeypatch) -> Path:
    """The folder of verdict files; of these students nothing else was handed in."""
    for module in (plans, status, work):
        monkeypatch.setattr(module, "VERDICTS", tmp_path)
    monkeypatch.setattr(status, "lacks", lambda item, tier: True)
    monkeypatch.setattr(status, "next_step", lambda lesson: f"Now write the gradebook: nbgrader autograde {lesson}")
    return tmp_path


def text(*students: str) -> Text:
    """One check; its verdict is named like the first student."""
    names = tuple(f"{students[0]}.{tier}.json" for tier in ("shared", "gpu"))
    return Text(tuple(Item(student, UNIT, NAME) for student in students), (names,))


TWO = (text("ada"), text("bob", "ben")), (text("cy"),)


def planned(number: int = 1, asked: str = "partition=gpu", batches=TWO) -> Plan:
    return plans.written(Plan(UNIT, number, "gpu", asked, 2, 10, batches))


def alive(monkeypatch, tasks: dict, reasons: frozenset = frozenset()) -> None:
    monkeypatch.setattr(slurm, "alive", lambda every: (tasks, set(reasons)))


# ------------------------------------------------------------------------------------------- plans


@pytest.mark.parametrize("count", [1, 59, 600, 10_000])
@pytest.mark.parametrize(("each_s", "start_s"), [(0.4, 3), (10, 5), (48, 9), (300, 40)])
def test_starting_costs_less_than_a_tenth_of_grading_and_an_array_is_not_too_long(each_s, start_s, count):
    size = plans.batch_size(each_s, start_s, count, most_tasks=1000)
    batches = plans.in_batches([text(f"s{n}") for n in range(count)], size)
    assert size * each_s >= max(120, 10 * start_s) and len(batches) <= 1000
    assert (size - 1) * each_s < max(120, 10 * start_s) or -(-count // (size - 1)) > 1000
    lengths = [len(batch) for batch in batches]
    assert max(lengths) <= size and max(lengths) - min(lengths) <= 1
    assert sorted(one.who[0].student for batch in batches for one in batch) == sorted(f"s{n}" for n in range(count))


def test_a_plan_is_read_as_it_was_written(verdicts):
    assert plans.read(UNIT, planned(7).number) == planned(7) and plans.numbers(UNIT) == [7]


def test_batches_follow_what_tasks_measured(verdicts):
    assert plans.measured(UNIT) == (plans.ASSUMED_S, plans.ASSUMED_START_S)
    plan = planned()
    for task, (judged, start_s, graded_s) in enumerate([(10, 4.0, 30.0), (0, 2.0, 0.0)]):
        plan.record(task).write_text(json.dumps({"judged": judged, "start_s": start_s, "graded_s": graded_s}))
    plan.record(2).write_text("{")  # what a full disk left
    assert plans.measured(UNIT) == (3.0, 3.0)


# ------------------------------------------------------------------------------------------- Slurm


def test_what_is_asked_of_slurm_is_what_was_said_and_what_was_not_said_has_a_limit(verdicts):
    plan = planned(asked="partition=gpu,gres=gpu:a100:1,shard:2,time=7,exclusive")
    line = slurm.line(plan, expected_s=120)
    assert {"--partition=gpu", "--gres=gpu:a100:1,shard:2", "--time=7", "--exclusive"} <= {*line}
    assert {"--array=0-1", "--requeue", "--mem=24G", "--cpus-per-task=8", "--open-mode=append"} <= {*line}
    assert line[-1].endswith(f"-m autograder fleet {UNIT} --task 1:$SLURM_ARRAY_TASK_ID")
    assert "--time=18" in slurm.line(replace(plan, slurm="gres=gpu:1"), expected_s=120)


@pytest.mark.parametrize(
    ("asked", "tier"),
    [
        ("partition=gpu,exclusive", "interpreter"),
        ("gres=gpu:1", "gpu"),
        ("gpus=h200:1", "gpu"),
        ("gpus-per-task=1", "gpu"),
    ],
)
def test_the_tier_is_what_the_nodes_are_asked_for(asked, tier):
    assert slurm.tier(asked) == tier


def test_tasks_are_found_by_the_name_of_their_array(verdicts, monkeypatch):
    plan = planned()
    rows = [f"{slurm.name(plan)}|0|RUNNING|None", f"{slurm.name(plan)}|1|PENDING|Resources", "another|5|RUNNING|None"]
    monkeypatch.setattr(slurm, "asked", lambda line: "\n".join(rows) + "\n")
    assert slurm.alive([plan]) == ({(1, 0): True, (1, 1): False}, {"Resources"})


@pytest.mark.parametrize(
    ("surroundings", "alone"),
    [
        ({"SLURM_GPUS_ON_NODE": "1"}, True),
        ({"SLURM_GPUS_ON_NODE": "1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, False),
        ({"SLURM_SHARDS_ON_NODE": "2"}, False),
        ({}, False),
    ],
)
def test_a_slice_of_a_gpu_is_not_alone(surroundings, alone, monkeypatch):
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_SHARDS_ON_NODE", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"SLURM_JOB_ID": "5"} | surroundings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slurm, "asked", lambda line: "OverSubscribe=OK Contiguous=0")
    assert slurm.alone() == alone


def test_what_slurm_refuses_leaves_no_plan(verdicts, monkeypatch):
    from autograder.classroom.fleet import command

    def refused(line):
        raise slurm.Refused("sbatch refused: Invalid partition")

    monkeypatch.setattr(command, "take_in", lambda lesson: None)
    monkeypatch.setattr(plans, "texts", lambda lesson, tier: (1, [text("ada")]))
    monkeypatch.setattr(slurm, "most_tasks", lambda: 1000)
    monkeypatch.setattr(slurm, "asked", refused)
    arguments = command.argparse.Namespace(lesson=UNIT, slurm="partition=no", workers=None, status=False, task=None)
    assert command.main(arguments) == command.REFUSED and plans.numbers(UNIT) == []


def test_without_slurm_and_where_it_refuses_its_words_are_told():
    with pytest.raises(slurm.NoAnswer, match="There is no no-such-sbatch"):
        slurm.asked(["no-such-sbatch"])
    with pytest.raises(slurm.NoAnswer, match="sh refused: Invalid partition"):
        slurm.asked(["sh", "-c", "echo Invalid partition >&2; exit 1"])


# ------------------------------------------------------------------------------------------- status


def test_every_submission_is_done_running_waiting_or_failed(verdicts, monkeypatch):
    plan = planned()
    alive(monkeypatch, {(1, 0): True, (1, 1): False}, frozenset({"Resources"}))
    found = status.of(UNIT)
    assert (found.done, found.running, found.waiting, found.failed) == (6, 1, 3, [])
    said = "\n".join(status.told(UNIT, found))
    assert f"{UNIT} [############........] 6 of 10 submissions done, 1 running, 0 failed, 3 waiting" in said
    assert "1 task runs; about 35 s are left" in said and "in Slurm's words: Resources" in said

    (verdicts / "ada.gpu.json").write_text("{}")
    (verdicts / "cy.shared.json").write_text("{}")
    (verdicts / "bob.gpu.json").write_text("")  # a power cut
    plan.log(0).write_text("task 1:0\nslurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 12:00 DUE TO TIME LIMIT ***\n")
    alive(monkeypatch, {})
    found = status.of(UNIT)
    assert (found.done, found.running, found.waiting) == (8, 0, 0)
    assert [student for student, _ in found.failed] == ["bob", "ben"]
    said = "\n".join(status.told(UNIT, found))
    assert "failed: bob, ben (task 1:0: JOB 5 ON n1 CANCELLED AT 12:00 DUE TO TIME LIMIT)" in said
    assert "The same command again submits what failed, and nothing else." in said

    (verdicts / "bob.gpu.json").write_text("{}")
    said = status.told(UNIT, status.of(UNIT))
    assert "10 of 10 submissions done" in said[0] and said[-1] == f"Now write the gradebook: nbgrader autograde {UNIT}"


def test_what_an_earlier_array_left_undone_runs_or_failed_and_is_not_done(verdicts, monkeypatch):
    """Who hands in while an array runs is in a plan of one text; then the array is cancelled."""
    planned(1)
    planned(2, batches=((text("dan"),),))
    alive(monkeypatch, {(1, 1): True, (2, 0): False})
    found = status.of(UNIT)
    assert (found.running, found.waiting) == (1, 1) and [name for name, _ in found.failed] == ["ada", "bob", "ben"]
    (verdicts / "dan.gpu.json").write_text("{}")
    alive(monkeypatch, {})
    found = status.of(UNIT)
    assert [student for student, _ in found.failed] == ["ada", "bob", "ben", "cy"] and found.done == 6
    assert "task 1:1: it left no log" in found.failed[-1][1]
    assert not [line for line in status.told(UNIT, found) if "write the gradebook: " in line]


def test_a_text_of_several_plans_counts_once_and_one_that_was_replaced_no_more(verdicts, monkeypatch):
    planned(1)
    cpu = Text(text("bob", "ben").who, (("bob.interpreter.json", "bob.shared.json", "bob.gpu.json"),))
    again = Text(text("cy").who, (("cy-2.gpu.json",),))
    planned(2, batches=((text("ada"), cpu, again),))
    alive(monkeypatch, {(2, 0): False})
    found = status.of(UNIT)
    assert (found.done, found.waiting, found.failed) == (6, 4, [])
    for name in ("ada.gpu", "bob.interpreter", "cy-2.gpu"):
        (verdicts / f"{name}.json").write_text("{}")
    assert status.of(UNIT).done == 10
    alive(monkeypatch, {(1, 1): True})
    assert (status.of(UNIT).done, status.of(UNIT).running) == (9, 1), "the earlier text is judged still"


def test_who_handed_in_a_text_that_has_its_verdicts_has_not_failed_and_the_gradebook_is_looked_at(
    tmp_path, monkeypatch
):
    for module in (plans, status, taken):
        monkeypatch.setattr(module, "VERDICTS", tmp_path / "verdicts")
    monkeypatch.setattr(taken, "HOME", tmp_path)
    alive(monkeypatch, {})
    item = Item("ada", UNIT, NAME)
    item.path.parent.mkdir(parents=True)

    def hand_in(code: str) -> tuple[Text, ...]:
        notebook = json.loads((taken.RELEASES / UNIT / f"{NAME}.ipynb").read_text())
        answer = next(c for c in notebook["cells"] if c["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy")
        answer["source"] = code
        notebook["metadata"][CODE] = extract(taken.released(UNIT, NAME), notebook).as_data()
        item.path.write_text(json.dumps(notebook))
        return tuple(plans.texts(UNIT, "interpreter")[1])

    def judged(text: Text, tier: str) -> list[str]:
        names = [next(name for name in names if name.endswith(f".{tier}.json")) for names in text.files]
        for name in names:
            (plans.VERDICTS / name).write_text(json.dumps({"tier_of_file": tier}))
        return names

    (again,) = hand_in("def axpy(a, x, y, out): out[:] = y")
    interpreter = judged(again, "interpreter")
    plans.written(Plan(UNIT, 1, "interpreter", "", 1, 1, (hand_in("def axpy(a, x, y, out): pass"),)))
    assert [student for student, _ in status.of(UNIT).failed] == ["ada"]
    assert hand_in("def axpy(a, x, y, out): out[:] = y") == ()

    def last_line() -> str:
        found = status.of(UNIT)
        assert (found.done, found.failed) == (1, [])
        return status.told(UNIT, found)[-1]

    write, known, there = f"nbgrader autograde {UNIT}", "--Autograde.only_known=True", "The gradebook has them."
    to_write = f"Now write the gradebook: {write} {known}"
    shown = shown_file("ada", UNIT, NAME, plans.VERDICTS)
    shown.parent.mkdir(parents=True)
    assert last_line() == to_write
    shown.write_text(json.dumps({name: {"verdict": name} for name in interpreter}))
    assert last_line() == there
    gpu = judged(again, "gpu")
    with_force = f"Now write the gradebook: {write} --force {known} (without --force, marks that are there stay)"
    assert last_line() == with_force, "a GPU has judged it since"
    shown.write_text(json.dumps({name: {"verdict": name} for name in gpu}))
    assert last_line() == there
    item.path.unlink()
    assert last_line() == there, "taken back"


BEGAN = "task 1:0 on n1, AMD EPYC\n"
CANCELLED = "slurmstepd-n1: error: *** JOB 3 ON n1 CANCELLED AT 2026-11-29T03:12:48 ***\nended from outside\n"
LOST = "it ended without a word, as where its node is lost; its log ends with"


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (BEGAN, f"{LOST} 'task 1:0 on n1, AMD EPYC'"),
        (f"{BEGAN}ada: judged in 3.1 s\n", f"{LOST} 'ada: judged in 3.1 s'"),
        (f"{BEGAN}{CANCELLED}", "JOB 3 ON n1 CANCELLED AT 2026-11-29T03:12:48"),
        (f"{BEGAN}{CANCELLED}{BEGAN}", f"{LOST} 'task 1:0 on n1, AMD EPYC'"),  # requeued, and its node lost
        (
            f"{BEGAN}ada: judged in 3.1 s, but not start.axpy: see the fault above\ntask 1:0 judged 1 of 1\n",
            "ada: judged in 3.1 s, but not start.axpy: see the fault above",
        ),
    ],
    ids=["lost at once", "lost later", "cancelled", "requeued and lost", "our own fault"],
)
def test_why_a_task_failed_is_what_happened_and_not_what_it_wrote_while_it_worked(log, why, verdicts):
    plan = planned()
    plan.folder.mkdir(parents=True, exist_ok=True)
    plan.log(0).write_text(log)
    assert status.why_ended(plan, 0) == f"task 1:0: {why}"


def test_where_slurm_does_not_answer_the_status_is_what_verdicts_say_and_nothing_is_planned(verdicts, monkeypatch):
    from autograder.classroom.fleet import command

    def refused(line):
        raise slurm.Refused("squeue refused: no controller")

    monkeypatch.setattr(slurm, "asked", refused)
    monkeypatch.setattr(command, "take_in", lambda lesson: None)
    monkeypatch.setattr(command.sandbox, "require", lambda: None)
    monkeypatch.setattr(plans, "texts", lambda lesson, tier: (10, []))
    planned()
    said = status.told(UNIT, status.of(UNIT))
    assert "6 of 10 submissions done, 0 running, 0 failed, 4 waiting" in said[0]
    assert said[-1:] == [
        "Which of those that wait run, and which have failed, is not known: squeue refused: no controller"
    ]
    arguments = command.argparse.Namespace(lesson=UNIT, slurm=None, workers=2)
    with pytest.raises(slurm.NoAnswer, match=f"delete {plans.path(UNIT, 1)}. squeue refused"):
        command._begun(arguments)
    for student in ("ada", "bob", "cy"):  # an array that is done is asked for by nobody
        (verdicts / f"{student}.gpu.json").write_text("{}")
    assert status.of(UNIT).done == 10 and command._begun(arguments) == command.FULL


def test_a_cohort_that_was_timed_on_several_gpus_is_told(verdicts, monkeypatch):
    planned()
    alive(monkeypatch, {})
    for student, gpu in (("ada", "NVIDIA H200"), ("bob", "NVIDIA A100"), ("cy", "NVIDIA H200")):
        (verdicts / f"{student}.gpu.json").write_text(json.dumps({"machine": {"name": gpu}, "share": 0.8}))
    said = "\n".join(status.told(UNIT, status.of(UNIT)))
    assert "Points for speed were measured on different GPUs: NVIDIA H200 (2), NVIDIA A100 (1)" in said


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_judged(verdicts, monkeypatch):
    monkeypatch.setattr(work, "VERDICTS", verdicts / "a file" / "below it")
    (verdicts / "a file").touch()
    with pytest.raises(work.NoDisk, match="Not a directory"):
        work.room()
    monkeypatch.setattr(work, "VERDICTS", verdicts)
    work.room()
    assert [path.name for path in verdicts.iterdir()] == ["a file"]


def test_a_hand_in_that_was_taken_back_since_costs_the_others_of_its_task_nothing(verdicts, monkeypatch, capsys):
    """Of a text that several handed in the next one's file is read."""

    class Known(contextlib.nullcontext):
        asked = ()

    def judging(item, alone):
        if item.student == "ada":
            raise FileNotFoundError(item.path)
        return None if item.student == "bob" else Known()

    monkeypatch.setattr(Item, "judging", judging)
    monkeypatch.setattr(slurm, "alone", lambda: False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    plan = planned(batches=((text("ada"), text("bob", "ben"), text("cy")),))
    assert work.main(replace(plan, tier="interpreter"), 0) == 0
    said = capsys.readouterr().out.splitlines()[1:]
    assert [line.partition(" in ")[0] for line in said] == [
        "ada: taken back since, or handed", "ben: judged", "cy: judged", "task 1:0 judged 3 of 3",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------- workers of this machine


@pytest.fixture
def course(tmp_path):
    """A copy of the course with a few submissions of lesson 00."""
    for part in ("autograder", "course_lib", f"solutions/{UNIT}", f"notebooks/{UNIT}"):
        shutil.copytree(COURSE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(COURSE / "nbgrader_config.py", tmp_path)
    right = find("start.axpy/right/masked").source
    answers = {f"s{n}": f"{right}# {n}\n" for n in range(9)} | {"twin": f"{right}# 0\n", "cleo": None}
    for student, answer in answers.items():
        nb = json.loads((COURSE / "notebooks" / UNIT / f"{NAME}.ipynb").read_text())
        for cell in nb["cells"]:
            if answer and cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
                cell["source"] = answer
        path = tmp_path / "submitted" / student / UNIT / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(nb))
    return tmp_path


def started(course: Path, *words: str) -> subprocess.Popen:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = [sys.executable, "-m", "autograder", "fleet", UNIT, *words]
    surroundings = os.environ | {"PYTHONPATH": str(course), "PATH": path}
    return subprocess.Popen(line, cwd=course, env=surroundings, text=True, stdout=-1, stderr=subprocess.STDOUT)


def run(course: Path, *words: str) -> tuple[int, str]:
    with started(course, *words) as child:
        said = child.communicate(timeout=300)[0]
    return child.returncode, said


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_workers_that_are_killed_and_begun_again_judge_each_text_once(course):
    assert run(course, "--status") == (1, f"No fleet was sent for {UNIT}.\n")
    child, until = started(course, "--workers", "1"), time.monotonic() + 200
    while not list((course / "verdicts").glob("*.json")) and time.monotonic() < until:
        time.sleep(0.05)
    said = run(course, "--status")[1]
    assert " running, 0 failed" in said and "1 task runs; about" in said
    nothing = "Nothing to add: what lacks a verdict is in tasks that run or wait (1).\n"
    assert run(course, "--workers", "1")[1] == nothing
    before = {path: path.stat().st_mtime_ns for path in (course / "verdicts").glob("*.json")}
    child.send_signal(signal.SIGKILL)
    child.communicate()
    while "running, 0 failed" in (said := run(course, "--status")[1]) and " 0 running" not in said:
        assert time.monotonic() < until, "a worker outlives the run that started it"
    assert "failed: " in said or "11 of 11 submissions done" in said
    status, said = run(course, "--workers", "2")
    assert status == 0 and ("11 of 11 submissions done" in said or "Every submission" in said)
    assert len(list((course / "verdicts").glob("*.json"))) == 10, "equal texts are one"
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    logs = "\n".join(path.read_text() for path in (course / "verdicts/fleet").rglob("*.log"))
    judged = [line.partition(":")[0] for line in logs.splitlines() if ": judged in" in line]
    assert len(judged) == len(set(judged)) <= 10


def test_without_a_lesson_the_status_of_all_is_told(verdicts, monkeypatch, capsys):
    from autograder.classroom.fleet import command

    planned()
    plans.written(replace(planned(), lesson="04_flash"))
    alive(monkeypatch, {})
    arguments = command.argparse.Namespace(lesson=None, slurm=None, workers=None, status=True, task=None)
    assert command.main(arguments) == command.NOT_ALL
    said = capsys.readouterr().out
    assert f"{UNIT} [" in said and "04_flash [" in said


def test_a_lesson_that_there_is_not_is_named():
    from autograder.classroom.fleet import command

    arguments = command.argparse.Namespace(lesson="99_none", slurm=None, workers=1, status=False, task=None)
    with pytest.raises(SystemExit, match="No lesson is called '99_none'"):
        command.main(arguments)
