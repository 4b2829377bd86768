"""`python -m autograder fleet LESSON`: judge all submissions of a lesson, by Slurm or by workers on this machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time

import torch

from autograder.classroom import taken
from autograder.classroom.counted import many
from autograder.classroom.fleet import plans, slurm, status, work
from autograder.classroom.fleet.plans import Plan
from autograder.referee import sandbox
from course_lib import device
from course_lib.places import HOME, environment

FULL, NOT_ALL, REFUSED = 0, 1, 2  # exit status
EVERY_S = 2.0  # a line of progress, at most so often


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lesson", nargs="?", help="01_roofline; --status without it tells of all lessons")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--slurm", metavar="OPTIONS", help='options of sbatch: "partition=gpu,gres=gpu:1,time=30"')
    where.add_argument(
        "--workers", type=int, metavar="N", help="processes on this machine; without it, one a GPU or one"
    )
    where.add_argument("--status", action="store_true", help="say how far it is, and change nothing")
    where.add_argument("--task", metavar="PLAN:TASK", help="what a task of the array itself says")


def main(args: argparse.Namespace) -> int:
    with taken.closed():
        try:
            if args.task:
                number, task = map(int, args.task.split(":"))
                return work.main(plans.read(args.lesson, number), task)
            if args.status:
                lessons = [args.lesson] if args.lesson else plans.lessons()
                return max([_told(lesson) for lesson in lessons], default=FULL)
            if args.lesson is None:
                raise SystemExit("Say which lesson: python -m autograder fleet 01_roofline")
            taken.notebooks(args.lesson)
            return _begun(args)
        except (slurm.NoAnswer, sandbox.NoSandbox, OSError) as error:
            print(f"fleet: {error}", file=sys.stderr)
            return REFUSED


def _told(lesson: str) -> int:
    found = status.of(lesson)
    if found is None:
        print(f"No fleet was sent for {lesson}.")
        return NOT_ALL
    print("\n".join(status.told(lesson, found)))
    work.room()
    return FULL if found.done == found.submissions else NOT_ALL


def _begun(args: argparse.Namespace) -> int:
    """Plan what lacks a verdict and is in no task that is alive; then hand it over."""
    lesson = args.lesson
    if args.slurm is None:
        sandbox.require()
    work.room()
    with contextlib.ExitStack() as while_it_runs:
        with status.holding(plans.folder(lesson) / ".planning", "Another run of this command plans right now."):
            take_in(lesson)
            plan, alive = _planned(args)
            if plan and plan.slurm:
                expected_s = max(map(len, plan.batches)) * plans.measured(lesson)[0]
                try:
                    array = slurm.asked(slurm.line(plan, expected_s)).strip()
                except slurm.Refused:
                    plans.forget(plan)
                    raise
                see = f"python -m autograder fleet {lesson} --status"
                print(f"Array {array} of {many(len(plan.batches), 'task')}. How far it is: {see}")
            elif plan:
                while_it_runs.enter_context(status.holding(plan.folder / "run"))
        if plan and not plan.slurm:
            return _run_here(plan)
    if alive and not plan:
        print(f"Nothing to add: what lacks a verdict is in tasks that run or wait ({alive}).")
    elif not plan:
        print(f"Every submission of {lesson} has its verdicts. {status.next_step(lesson)}")
    return FULL


def take_in(lesson: str) -> None:
    """Read what lies in submitted/."""
    from autograder.classroom import cohort  # brings nbgrader, which no task needs

    course = cohort.course(lesson)
    cohort.close_to_others(course)
    with contextlib.chdir(HOME):
        cohort.taken_in(course, taken.TAKEN)


def _planned(args: argparse.Namespace) -> tuple[Plan | None, int]:
    """The new plan, if there is something to do, and how many tasks of earlier ones are alive."""
    lesson, earlier = args.lesson, [plans.read(args.lesson, number) for number in plans.numbers(args.lesson)]
    alive = status.tasks_alive(earlier)
    taken_on = {text.files for plan in earlier for task, batch in enumerate(plan.batches)
                if (plan.number, task) in alive for text in batch}  # fmt: skip
    gpus = torch.cuda.device_count() if device.TIER == "gpu" else 0
    workers = args.workers or max(1, gpus)
    here = "interpreter" if not gpus else "gpu" if workers <= gpus else "shared"
    tier = slurm.tier(args.slurm) if args.slurm is not None else here
    submissions, found = plans.texts(lesson, tier)
    todo = [text for text in found if text.files not in taken_on]
    if not todo:
        return None, len(alive)
    most = slurm.most_tasks() if args.slurm is not None else len(todo)
    size = plans.batch_size(*plans.measured(lesson), len(todo), most)
    if args.slurm is None:
        size = min(size, -(-len(todo) // workers))
    number = max(plans.numbers(lesson), default=0) + 1
    wanted = "" if args.slurm is None else args.slurm or "requeue"  # no wishes, but Slurm all the same
    plan = Plan(lesson, number, tier, wanted, workers, submissions, plans.in_batches(todo, size))
    people = sum(len(text.who) for text in todo)
    print(
        f"{many(submissions, 'submission')} of {lesson}; without a verdict: {people}, in {many(len(todo), 'text')}, "
        f"{size} a task at most"
    )
    return plans.written(plan), len(alive)


def _run_here(plan: Plan) -> int:
    """Workers on this machine, each with a GPU of its own while there are enough."""
    waiting, running, said, shown = list(range(len(plan.batches))), {}, time.monotonic(), ""
    gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    gpus = gpus or [str(number) for number in range(torch.cuda.device_count() if device.TIER == "gpu" else 0)]
    try:
        while waiting or running:
            for slot in range(plan.workers):
                if waiting and slot not in running:
                    running[slot] = _started(plan, waiting.pop(0), gpus[slot % len(gpus)] if gpus else None)
            time.sleep(0.1)
            running = {slot: child for slot, child in running.items() if child.poll() is None}
            if time.monotonic() - said > EVERY_S:
                said, before = time.monotonic(), shown
                shown = status.told(plan.lesson, status.of(plan.lesson))[0]
                if shown != before:
                    print(shown, flush=True)
    finally:
        for child in running.values():
            child.terminate()
        for child in running.values():
            child.wait()
    return _told(plan.lesson)


def _started(plan: Plan, task: int, gpu: str | None) -> subprocess.Popen:
    line = [sys.executable, "-m", "autograder", "fleet", plan.lesson, "--task", f"{plan.number}:{task}"]
    threads = str(max(1, len(os.sched_getaffinity(0)) // plan.workers))
    surroundings = {"OMP_NUM_THREADS": threads} | environment()
    if gpu is not None:
        surroundings["CUDA_VISIBLE_DEVICES"] = gpu
    # the worker keeps the lock that it inherits, for as long as it lives
    with status.holding(plan.folder / f"{task}.lock") as lock, plan.log(task).open("a") as log:
        return subprocess.Popen(
            line, cwd=HOME, env=surroundings, stdout=log, stderr=subprocess.STDOUT, pass_fds=[lock.fileno()]
        )
