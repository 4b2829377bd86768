"""The referee: draws the inputs, holds the truth, and asks a sandboxed worker for answers.

    with Referee(submission) as referee:
        for exercise in exercises:
            verdict = referee.examine(exercise, seed)

One room is one sandbox is one submission; each exercise gets workers of its own in it. Nothing that a worker does
reaches the next exercise: everything it started is ended first. Whatever it reports is data; the verdict is made here.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch

from autograder.exercise import Case, Exercise
from autograder.inside import calling
from autograder.judging.judge import NO_SPEED, NOT_ALONE, judge, no_speed
from autograder.judging.outcome import NOT_WRITTEN
from autograder.judging.score import speed_credit
from autograder.judging.verdict import SpeedVerdict, Verdict
from autograder.referee import audit, clock, crew, lanes, replay
from autograder.referee.room import (
    CONTEXTS,
    DEFAULT,
    Budget,
    Crowded,
    Lost,
    NoRoom,
    Patience,
    Room,
    TooBusy,
    Worker,
    held_by_others,
)
from autograder.referee.submission import Submission
from course_lib import device

ROWS = 4  # of exercises that are judged side by side, at most
TRIES = 3  # to find the device quiet
SMALL, OWN = 0.5, 0.5  # share of the sizes; where it is less, the referee takes this much of the GPU and no more
WATCHED = 3  # cases of a timed exercise that are watched, and tried with the kernels switched off
TOO_MUCH = 0.25  # of a GPU's memory, held by a submission while none was left to judge with


def fingerprint(seed: int) -> str:
    """What a report tells of the run's seed: who knew it could bring the answers to all inputs of a resubmission."""
    return f"hidden (hash {hashlib.sha256(f'seed {seed}'.encode()).hexdigest()[:8]})"


def _measured_alone(exercise: Exercise, seed: int, yard: clock.Yardsticks) -> list[clock.Setting]:
    """What is timed, with our own code measured on it."""
    settings = [clock.setting(exercise, case, seed) for case in exercise.speed.cases]
    for setting in settings:
        yard.measure(setting)
    return settings


def _calm(verdict: Verdict) -> bool:
    """Whether nothing went wrong. What went wrong may have been caused by another row, so it is tried again alone."""
    return not (verdict.note or verdict.pending or any(not (case.right or case.errors) for case in verdict.cases))


def _for_a_person(verdict: Verdict, why: str) -> Verdict:
    """The verdict on calls that could not be carried out apart from the code of the submission."""
    held = verdict.held or verdict.points
    if not held:
        return verdict
    said = f"The calls could not be carried out apart from the code around the kernels: {why}."
    note = f"{verdict.note} {said}" if verdict.held else f"The points wait for a person. {said}"
    return replace(verdict, points=0.0, held=held, note=note, pending=True)


def _next(waiting: deque[Exercise]) -> Exercise | None:
    try:
        return waiting.popleft()
    except IndexError:  # another row took the last one
        return None


class Referee:
    """Judges the exercises of one submission."""

    def __init__(
        self,
        submission: Submission,
        imports: tuple[str, ...] = (),
        patience: Patience = DEFAULT,
        budget: Budget | None = None,
        alone: bool = True,
    ):
        """alone: nobody else uses this GPU, so that speed can be measured."""
        self.alone = alone
        self.room = Room(submission, imports, patience, budget=budget)
        self.ranks: Room | None = None  # for exercises on several ranks, once there was one
        self.verdicts: dict[tuple[str, int], Verdict] = {}

    def __enter__(self) -> Referee:
        self.room.__enter__()
        # What torch only holds here, no worker can have. Where large cases run, the referee needs more than a part.
        if device.share_of_sizes() < SMALL:
            device.take_at_most(OWN)
        return self

    def __exit__(self, *error) -> None:
        self.room.__exit__(*error)
        if self.ranks:
            self.ranks.__exit__(*error)

    def examine(self, exercise: Exercise, seed: int) -> Verdict:
        """Judge one exercise of the submission in a worker of its own."""
        key = exercise.name, seed
        if key not in self.verdicts:
            self._keep(exercise, seed, self._examined(exercise, seed))
        return self.verdicts[key]

    def _keep(self, exercise: Exercise, seed: int, verdict: Verdict) -> None:
        told = tuple(self.room.budget.endless.values())
        self.verdicts[exercise.name, seed] = replace(verdict, seed=fingerprint(seed), endless=told)

    def examine_ahead(self, wanted: Iterable[Exercise], seed: int) -> None:
        """Judge several exercises side by side, in a sandbox for each row, where this machine has room.

        Only what went without trouble is kept; `examine` judges everything else alone. Exercises that hide modules run
        alone: a parallel sandbox of the same submission has those modules, and the two could signal through load or
        free memory.
        """
        together = [one for one in wanted if not one.hides and one.entry not in self.room.submission.untouched]
        waiting = deque(sorted(together, key=lambda one: not one.asks_for_kernels))  # what takes longest first
        rows = min(lanes.several(), ROWS, len(waiting))
        if rows < 2:
            return

        def judge_some(one: Referee) -> None:
            while exercise := _next(waiting):
                with contextlib.suppress(lanes.Disturbed, torch.OutOfMemoryError, NoRoom, TooBusy):
                    verdict = one._judged(exercise, seed, lanes.several())
                    if _calm(verdict):
                        self._keep(exercise, seed, verdict)

        room = self.room
        with contextlib.ExitStack() as held:
            others = [
                held.enter_context(Referee(room.submission, room.imports, room.patience, room.budget))
                for _ in range(rows - 1)
            ]
            for one in (self, *others):
                one.room.ready()  # before any code of the submission runs, which could keep the others from it
            with ThreadPoolExecutor(rows) as pool:
                list(pool.map(judge_some, [self, *others]))
            room.ran += [ran for one in others for ran in one.room.ran]

    def examine_speed(self, exercise: Exercise, seed: int) -> SpeedVerdict:
        """Time an exercise that is right; without a GPU, or on a device that is not quiet, the points stay pending."""
        why_not = NO_SPEED if device.TIER != "gpu" else NOT_ALONE if not self.alone else ""
        blank, verdict = no_speed(exercise, device.TIER, why_not or NO_SPEED), self.examine(exercise, seed)
        if verdict.held:
            return replace(blank, note="not timed before a person has looked at the exercise itself.")
        if verdict.pending or (verdict.accepted and why_not):
            return blank
        blank = replace(blank, note="", pending=False)
        if not verdict.accepted:  # nobody need wait for the speed of what is wrong
            return replace(blank, note="not timed, because not all cases are right.")
        if exercise.asks_for_kernels:
            watched = self._watched(exercise, seed)
            if watched.pending or not watched.accepted:
                note = f"not timed before a person has looked. {watched.note or watched.headline}"
                return replace(blank, note=note, pending=True)
        elif text := audit.past_the_clock(self.room.submission.cells, exercise):
            return replace(blank, note=f"not timed before a person has looked. {text}", pending=True)
        for _ in range(TRIES):
            try:
                timed = self._timed(exercise, seed)
            except clock.NotRight as error:
                return replace(blank, note=f"a timed answer was not right: {error}")
            except Lost as error:
                return replace(blank, note=f"not timed: {error}.")
            if not timed[-1].noisy:
                break
        blank = replace(blank, rows=tuple(one.timed for one in timed))
        if timed[-1].noisy:
            one = timed[-1]
            return replace(blank, note=f"the device was not quiet: {one.noisy} ({one.timed.sizes}).", pending=True)
        speed = exercise.speed
        points = speed_credit(min(row.share for row in blank.rows), speed.full, speed.none, speed.points)
        review = " ".join(dict.fromkeys(filter(None, (one.review for one in timed))))
        if points and review:
            return replace(blank, note=f"{points:g} points wait for a person. {review}", pending=True)
        return replace(blank, points=points)

    def _watched(self, exercise: Exercise, seed: int) -> Verdict:
        """Whether the largest calls come from the kernels when the submission runs as it will run while it is timed.

        That it is right is known from programs, which no clock is run on.
        """

        def elements(case: Case) -> int:
            args = exercise.draw(case, seed, device.DEVICE, device.TIER).args
            return sum(value.numel() for value in args.values() if isinstance(value, torch.Tensor))

        live = [case for case in exercise.cases if case.runs_here and case.live]
        largest = tuple(sorted(live, key=elements)[-WATCHED:])
        try:
            return self._judged_watched(replace(exercise, cases=largest), seed, 1)
        except Lost as error:
            note = f"Not judged: {error}."
            return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note)

    def _timed(self, exercise: Exercise, seed: int) -> list[clock.Measured]:
        """Every timed case, until one was measured on a device that was not quiet."""
        yard = clock.yardsticks()
        if exercise.speed.kernel() is None:  # not in every copy of the course: the share of the floor is left
            exercise = replace(exercise, speed=replace(exercise.speed, reference=None))
        settings = _measured_alone(exercise, seed, yard)
        if any(map(yard.undercuts, settings)):
            device.ceilings(refresh=True)
            settings = _measured_alone(exercise, seed, yard)
        measured = []
        with self._worker() as worker:
            why_not = worker.load(exercise.entry)
            if why_not:
                raise clock.NotRight(why_not)
            for setting in settings:
                measured.append(clock.measure(worker, setting, yard))
                if measured[-1].noisy:
                    yard.forget(setting)
                    break
        return measured

    @contextlib.contextmanager
    def _room(self, exercise: Exercise) -> Iterator[Room]:
        """The room in which an exercise is judged.

        An exercise that hides modules gets a room of its own. Exercises on several ranks share a second one: what
        ranks import takes seconds, and the workers of that room find it imported.
        """
        if exercise.kind == "distributed":
            if self.ranks is None:
                imports = (*self.room.imports, *crew.IMPORTS)
                self.ranks = Room(
                    self.room.submission, imports, self.room.patience, budget=self.room.budget
                ).__enter__()
                self.ranks.ran = self.room.ran
            self.ranks.submission, self.ranks.patience = self.room.submission, self.room.patience
            yield self.ranks
            return
        if not exercise.hides:
            yield self.room
            return
        given = self.room.submission, self.room.imports, self.room.patience
        with Room(*given, hides=exercise.hides, budget=self.room.budget) as room:
            yield room

    @contextlib.contextmanager
    def _worker(self, room: Room | None = None) -> Iterator[Worker]:
        """A worker for one exercise; Lost when it held so much of the GPU that judging ran out of memory."""
        worker = Worker(room or self.room)
        try:
            yield worker
        except RuntimeError as error:  # the driver's own is no torch.OutOfMemoryError
            if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error):
                raise
            before, total = clock.memory()
            worker.end()
            held = clock.memory()[0] - before
            if isinstance(error, Crowded) and held_by_others() <= CONTEXTS:
                worker.lost = f"its process held {held / 2**30:.1f} GiB of the GPU, and said that it held less"
                raise Lost(worker.lost) from error
            # Somebody else's, or our own limit while memory was free: no verdict, grade again.
            if held < TOO_MUCH * total or before > TOO_MUCH * total:
                raise torch.OutOfMemoryError(str(error)) from error
            worker.lost = f"its process held {held / 2**30:.1f} GiB of the GPU, and too little was left to judge with"
            raise Lost(worker.lost) from error
        finally:
            worker.end()

    def _examined(self, exercise: Exercise, seed: int) -> Verdict:
        try:
            verdict = self._judged(exercise, seed, lanes.several())
        except lanes.Disturbed:
            verdict = self._judged(exercise, seed, 1)
        without = exercise.without_room if verdict.cases else ""
        return replace(verdict, shows_not=without) if without else verdict

    def _judged(self, exercise: Exercise, seed: int, several: int) -> Verdict:
        if exercise.entry in self.room.submission.untouched:
            note = f"`{exercise.entry}` is {NOT_WRITTEN}: its cell is still the empty one."
            return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note)
        if device.TIER not in exercise.tiers:
            note = f"This exercise needs the tier {' or '.join(exercise.tiers)}."
            return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note, pending=True)
        try:
            if exercise.kind == "distributed":
                with self._room(exercise) as room:
                    why_not, trials = crew.tried(room, exercise, seed)
                if why_not:
                    return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=why_not)
                with calling.quiet():
                    verdict = judge(exercise, device.TIER, seed, trials)
                return audit.seen_from_within(room, exercise, verdict, ranks=True) if verdict.points else verdict
            if exercise.asks_for_kernels:
                try:
                    return replay.judged(self.room, exercise, seed, self._worker, several)
                except replay.Unwritable as error:
                    return _for_a_person(self._judged_watched(exercise, seed, several), str(error))
            return self._judged_watched(exercise, seed, several)
        except Lost as error:
            note = f"Not judged: {error}."
            return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note)

    def _judged_watched(self, exercise: Exercise, seed: int, several: int) -> Verdict:
        """In a worker that holds the true values. What it did with them is looked at from within and from without."""
        with self._room(exercise) as room, self._worker(room) as worker:
            why_not = worker.load(exercise.entry)
            if why_not:
                return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=why_not)
            trials = lanes.tried(worker, exercise, seed, several)
            with calling.quiet():
                verdict = judge(exercise, device.TIER, seed, trials)
            if verdict.points and exercise.asks_for_kernels:
                return audit.audited(room, worker, exercise, verdict, trials)
            return audit.seen_from_within(room, exercise, verdict) if verdict.points and exercise.probe else verdict
