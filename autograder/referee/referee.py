"""The referee: draws the inputs, holds the truth, and asks a sandboxed worker for answers.

    with Referee(submission) as referee:
        for exercise in exercises:
            verdict = referee.examine(exercise, seed)

One room is one sandbox is one submission; each exercise gets workers of its own in it. Nothing that a worker does
reaches the next exercise: everything it started is ended first. Whatever it reports is data; the verdict is made here.
"""

from __future__ import annotations

from autograder import calling
from autograder.check import judged_part
from autograder.exercise import Exercise
from autograder.judging.judge import judge
from autograder.judging.outcome import Outcome
from autograder.judging.verdict import Verdict
from autograder.referee import room as rooms
from autograder.referee.room import DEFAULT, Patience, Worker
from autograder.referee.submission import Submission
from course_lib import device


class Referee:
    """Judges the exercises of one submission."""

    def __init__(self, submission: Submission, imports: tuple[str, ...] = (), patience: Patience = DEFAULT):
        self.room = rooms.Room(submission, imports, patience)

    def __enter__(self) -> Referee:
        self.room.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.room.__exit__(*error)

    def examine(self, exercise: Exercise, seed: int) -> Verdict:
        """Judge one exercise of the submission in a worker of its own."""
        if device.TIER not in exercise.tiers:
            note = f"This exercise needs the tier {' or '.join(exercise.tiers)}."
            return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note, pending=True)
        worker = Worker(self.room)
        try:
            why_not = worker.load(exercise)
            if why_not:
                return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=why_not)
            trials = list(self._trials(worker, exercise, seed))
        finally:
            worker.end()
        with calling.quiet():
            return judge(exercise, device.TIER, seed, trials)

    def _trials(self, worker: Worker, exercise: Exercise, seed: int):
        """Every case of this tier; when the worker is lost, the cases that are left are not tried."""
        lost = ""
        for case in exercise.cases:
            if device.TIER not in case.tiers:
                continue
            call = exercise.draw(case, seed, device.DEVICE, device.TIER)
            if lost:
                yield (case, call, Outcome(error=f"NotTried: {lost}"))
                continue
            outcome = worker.attempt(exercise, case, call)
            yield (case, judged_part(call, case), outcome)
            lost = f"in \u201c{case.name}\u201d: {worker.lost}" if worker.lost else ""
            if outcome.not_written:
                return


Room = Referee
