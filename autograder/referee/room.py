"""One sandbox for one submission, and the workers in it, seen from outside. What they report is data."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from autograder.call.fences import Fenced
from autograder.call.trial import inspect, judged_part, lay_out
from autograder.exercise import Call, Case, Exercise
from autograder.inside.own_time import OwnTime
from autograder.inside.wire import TAG, TYPES, Channel, ChannelError, WireError, decode, encode, from_bytes, is_shape
from autograder.judging.outcome import LOST, Outcome
from autograder.referee import sandbox
from autograder.referee.rounds import Round
from autograder.referee.slabs import DeviceSlab, HostSlab, Slab, describe_slabs, describe_tensor, node_of_gpu, slab
from autograder.referee.submission import Submission, endless, in_words
from autograder.referee.watchdog import Watchdog
from course_lib import device

START_S = 60.0  # a zygote imports torch and Triton
ENDS_S = 2.0  # an idle sandbox ends by itself when nobody speaks to it any more
PLAN_S = CLOSE_S = 10.0  # for what takes milliseconds
OPEN_S = 60.0  # for a GPU, which takes a fifth of a second
_opening = threading.Lock()
_beginner = ThreadPoolExecutor(1, thread_name_prefix="sandboxes")
LONGEST = 2  # times as long as a submission has, by the clock
LITTLE_S = 0.1  # when no more is left to it, its time is over
SHARE_OF_CELLS = 0.4  # of the patience with cells, in which the worker itself ends those that go on for ever
SAID = 3  # cells that raised, at most
TOLD = 400  # characters of each part of what a worker says went wrong in a cell
KEPT_OUTPUT = 1 << 16  # characters of what a worker prints that are kept for the report
MAILBOX_BYTES = 1 << 26  # largest returned tensors of one call
CONTEXTS = 4 << 30  # of a GPU's memory, that nobody's tensors hold: half a GiB a process, and what the driver takes
PRIVATE_BYTES = 1 << 32  # larger slabs are judged where they are: two copies might not fit


@dataclass(frozen=True)
class Patience:
    """Seconds of its own after which a worker is ended: what others take of the processors is not charged."""

    cells_s: float = 60.0  # to run the submission's cells
    call_s: float = 60.0  # for one call: in the interpreter right ones with the smallest tiles have to end
    whole_s: float = 960.0  # for everything that the code of one submission does, points for speed included


DEFAULT = Patience()


class Budget:
    """The seconds of their own that the workers of one submission may keep the referee waiting, in all its rooms
    together; and LONGEST times as long by the clock, after which it is not known what the submission needs."""

    def __init__(self, seconds: float):
        self.seconds, self._spent, self._waited = seconds, 0.0, 0.0
        self._waiting, self._since, self._charged, self._lock = 0, 0.0, 0.0, threading.Lock()
        self.endless: dict[str, str] = {}  # cell -> what is told of it, where it waited or went on for ever

    @contextlib.contextmanager
    def waiting(self, own: OwnTime) -> Iterator[None]:
        """What is charged in here is spent; what is waited for side by side counts once."""
        with self._lock:
            if not self._waiting:
                self._since, self._charged = time.monotonic(), 0.0
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._charged += own.charged
                if self._waiting == 1:
                    self._spent, self._waited = self._so_far()
                self._waiting -= 1

    def _so_far(self) -> tuple[float, float]:
        """Seconds spent, and seconds waited by the clock; where others wait still, with what they waited."""
        waited = time.monotonic() - self._since if self._waiting else 0.0
        return self._spent + min(waited, self._charged), self._waited + waited

    def tell(self, troubles: Iterable[Sequence[str]]) -> None:
        """Keep what is to be said of cells that waited or went on for ever."""
        told = {name: said for name, *rest in troubles if (said := endless((name, *rest)))}
        self.endless = dict([*(told | self.endless).items()][:SAID])

    def left(self, most: float, lacked: Callable[[], float]) -> OwnTime:
        """What may be waited now, at most so many seconds. Lost when none are left, and TooBusy when none are left by
        the clock."""
        with self._lock:
            spent, waited = self._so_far()
        if spent >= self.seconds - LITTLE_S:
            raise Lost(f"this submission has used up its time, {self.seconds:g} s in all")
        if waited >= LONGEST * self.seconds - LITTLE_S:
            raise TooBusy(f"this submission waited {waited - spent:.0f} of {waited:.0f} s for a processor")
        return OwnTime(min(most, self.seconds - spent), lacked, LONGEST * self.seconds - waited)


@dataclass
class Printed:
    """What a worker wrote on stdout and stderr: information for the report, capped, never a verdict."""

    text: str = ""
    dropped: int = 0

    def drain(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as pipe:
            while piece := pipe.read1(1 << 16):
                room = KEPT_OUTPUT - len(self.text)
                self.text += piece[: max(0, room)].decode(errors="replace")
                self.dropped += max(0, len(piece) - max(0, room))


class NoRoom(RuntimeError):
    """The sandbox of a submission did not start, before any code of it ran."""


class Lost(RuntimeError):
    """A worker that hangs, is gone, or no longer speaks our language."""


class TooBusy(RuntimeError):
    """Other processes kept a submission from its time, so nothing is known of it: grade again, or a person looks."""


class Room:
    """A sandbox with a warm zygote for one submission.

    `answers`: the reference kernels can be imported in it. Such a room is for our own code only.
    `hides`: modules that cannot be imported in it.
    """

    def __init__(
        self,
        submission: Submission,
        imports: tuple[str, ...] = (),
        patience: Patience = DEFAULT,
        answers: bool = False,
        hides: tuple[str, ...] = (),
        budget: Budget | None = None,
    ):
        self.budget = budget or Budget(patience.whole_s)
        self.submission, self.imports, self.patience, self.answers = submission, imports, patience, answers
        self.hides, self.is_ready = hides, False
        self.ran: list[tuple[float, float]] = []  # when code of the submission compiled or ran, as its workers say

    def __enter__(self) -> Room:
        sandbox.require()
        here, there = socket.socketpair()
        gpu = node_of_gpu() if device.TIER == "gpu" else None
        limits = replace(sandbox.Limits(), memory_bytes=None) if gpu is not None else sandbox.Limits()
        line = sandbox.command(
            # -P: the folder that it starts in can be written by submissions, and is no place to import from
            [sys.executable, "-P", "-m", "autograder.inside.worker", str(there.fileno())],
            gpu=gpu,
            limits=limits,
            answers=self.answers,
            hides=self.hides,
        )
        self.process = _begun(line, there.fileno())
        there.close()
        self.watchdog = Watchdog(self.process.pid, limits.memory)
        self.control = Channel(here)
        with contextlib.suppress(ChannelError):  # when it has ended already, `ready` says so
            self.control.send(list(self.imports))
        self.is_ready = False
        return self

    def __exit__(self, *_) -> None:
        self._ended(ENDS_S if self.is_ready else 0.0)  # one that still starts does not listen yet

    @property
    def code_s(self) -> float:
        """Seconds in which code of the submission was compiled or running, in one worker or in several."""
        total = until = 0.0
        for start, end in sorted(self.ran):
            total += max(0.0, end - max(start, until))
            until = max(until, end)
        return total

    def note(self, seconds: float) -> None:
        """Code of the submission has just run for so long."""
        now = time.perf_counter()
        self.ran.append((now - seconds, now))

    def own_time(self, seconds: float) -> OwnTime:
        """For what its workers do now, of what is left to the submission."""
        watchdog = self.watchdog  # a new sandbox has a new one
        return self.budget.left(seconds, lambda: watchdog.lacked)

    def ready(self) -> None:
        """Wait until it has imported what its workers need; not on entering, so that several can start at once.

        A second one is begun where the first did not start: the machine may have been short of something for a moment.
        """
        why: list[str] = []
        while not self.is_ready:
            try:
                if self.control.end.fileno() < 0:
                    self.__enter__()
                self.control.receive(START_S)
                self.is_ready = True
            except (ChannelError, OSError) as error:  # a TimeoutError is one
                said = self._ended()
                why.append(f"{self.watchdog.said or said or error or type(error).__name__}".strip())
                if len(why) == 2:
                    raise NoRoom(f"the sandbox did not start: {'; then: '.join(dict.fromkeys(why))}") from error

    def sweep(self) -> None:
        """End every worker and everything that they started; where that cannot be, the whole sandbox."""
        try:
            self.control.send("sweep")
            self.control.receive(30.0)
        except (ChannelError, TimeoutError):
            self._ended()

    def start(self, descriptors: Sequence[int]) -> None:
        """A worker that gets these descriptors; in a new sandbox where the last one has ended, or ends just now."""
        try:
            if self.process.poll() is not None:
                raise ChannelError("no sandbox")
            self.control.send("start", descriptors)
        except ChannelError:
            self._ended()
            self.__enter__().ready()
            self.control.send("start", descriptors)

    def _ended(self, patience_s: float = ENDS_S) -> str:
        self.control.end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        self.watchdog.end()
        self.process.kill()
        stderr = self.process.stderr
        return "" if stderr.closed else self.process.communicate()[1].decode(errors="replace")[-2000:]


def _renewed() -> None:
    """In a fork, which has none of its parent's threads."""
    global _beginner
    _beginner = ThreadPoolExecutor(1, thread_name_prefix="sandboxes")


os.register_at_fork(after_in_child=_renewed)


def _begun(line: Sequence[str], passed: int) -> subprocess.Popen:
    """A sandbox, begun by a thread that lives as long as this process.

    Bubblewrap's outer process ends with the thread that began it, and what is inside then goes on uncounted.
    """
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return _beginner.submit(subprocess.Popen, line, pass_fds=[passed], **quiet).result()


class Crowded(torch.OutOfMemoryError):
    """A call ran out of memory beside others on the GPU, by what its worker says that it holds."""


class Worker:
    """One exercise's process, seen from outside."""

    def __init__(self, room: Room):
        self.room, self.lost, self.printed = room, "", Printed()
        self.troubles: list[list[str]] = []  # of the cells that it ran: name, error and line
        # Number of our other workers in this sandbox. A worker we hung up on still counts: the zygote reaps it only at
        # the next sweep.
        self.beside = 0
        self.is_player = False  # it carries out programs, and has run no code of the submission
        self.helpers: list[Worker] = []  # those of them that end with this one
        room.ready()
        here, there = socket.socketpair()
        read, write = os.pipe()
        room.start([there.fileno(), write])
        there.close()
        os.close(write)
        self.channel = Channel(here)
        self._reader = threading.Thread(target=self.printed.drain, args=(read,), daemon=True)
        self._reader.start()

    def load(self, entry: str, submission: Submission | None = None) -> str:
        """Run the submission's cells (or those of another); why there is nothing to judge, or ''."""
        submission = submission or self.room.submission
        began = time.perf_counter()
        own = self.room.own_time(self.room.patience.cells_s)
        order = {"cells": [[c.name, c.source] for c in submission.cells], "entry": entry}
        order |= {"seconds": SHARE_OF_CELLS * own.seconds, "apart": bool(self.room.hides)}
        order["settled"] = submission.settled(entry)
        try:
            with self.room.budget.waiting(own):
                self.channel.send(order)
                reply = self.channel.receive(own)
            self.room.note(time.perf_counter() - began)
            troubles = [[str(part)[:TOLD] for part in (name, error, where)] for name, error, where in reply["troubles"]]
            self.troubles = troubles
            if submission is self.room.submission:
                self.room.budget.tell(troubles)
            found, is_callable = bool(reply["defined"]), bool(reply["callable"])
        except TimeoutError:
            self._late("The cells of this notebook", own)
            return self.lost
        except (ChannelError, KeyError, TypeError, ValueError):
            self.lost = f"The process ended while it ran the cells of this notebook. {self.room.watchdog.said}".strip()
            return self.lost
        if not found:
            return submission.missing(entry, troubles[:SAID])
        if not is_callable:
            return " ".join([f"`{entry}` should be a function.", *map(in_words, troubles[:SAID])])
        return ""

    def open(self) -> None:
        """Have the GPU opened. One after the other: two at once take twice as long, and the first could be at work."""
        if device.DEVICE == "cuda" and not self.lost:
            with _opening, contextlib.suppress(Lost):  # what comes next says that it is lost
                self.ask("open", (), OPEN_S)

    def attempt(self, exercise: Exercise, case: Case, call: Call, watched: bool = False) -> Outcome:
        """One call on fenced memory of ours; a worker that dies or hangs is an outcome too."""
        slabs, started = [], time.perf_counter()
        try:
            fenced = lay_out(exercise, call, _filling(slabs))
            mailbox = HostSlab(MAILBOX_BYTES) if exercise.kind == "kernel" and exercise.returns else None
            args, served = _described(call, fenced)
            described, descriptors = describe_slabs(slabs)
            if mailbox:
                slabs.append(mailbox)
                descriptors.append(mailbox.descriptor)
            order = {"slabs": described, "args": args, "wants": len(exercise.returns), "watched": watched}
            order |= {"probe": exercise.probe, "beside": self.beside}
            report = self.ask(order, descriptors, self.room.patience.call_s, served)
            return _left_behind(exercise, case, self._outcome(report), report, mailbox, fenced)
        except Lost:
            return Outcome(error=f"{LOST}: {self.lost}", seconds=time.perf_counter() - started)
        finally:
            self.close(slabs)

    def record(self, exercise: Exercise, call: Call) -> tuple[Outcome, dict]:
        """One call on these tensors, of which nothing comes back but how it went, and the program that it is."""
        slabs, started = [], time.perf_counter()
        try:
            args, _ = _described(call, lay_out(exercise, call, _filling(slabs)))
            described, descriptors = describe_slabs(slabs)
            order = {"record": True, "slabs": described, "args": args, "probe": exercise.probe}
            order |= {"allowed": exercise.allowed}
            report = self.ask(order, descriptors, self.room.patience.call_s)
            program = report.get("program")
            return self._outcome(report), program if isinstance(program, dict) else {}
        except Lost:
            return Outcome(error=f"{LOST}: {self.lost}", seconds=time.perf_counter() - started), {}
        finally:
            self.close(slabs)

    def _outcome(self, report: dict) -> Outcome:
        found = outcome_of(report)
        explained = found.error and self.room.submission.explained(found.error, self.troubles)
        return replace(found, error=explained)

    def read(self) -> None:
        """Have it make kernels of the submission's text, and of nothing else. Once."""
        if not self.is_player and not self.lost:
            self.is_player = True
            self.open()
            cells = [[cell.name, cell.source] for cell in self.room.submission.cells]
            with contextlib.suppress(Lost):  # what comes next says that it is lost
                self.ask({"texts": cells}, (), PLAN_S)

    def play(self, exercise: Exercise, case: Case, calls: Sequence[Call], programs: Sequence[dict]) -> list[Outcome]:
        """These programs one after the other, each on the tensors of its call; then what all of them left behind."""
        slabs, counts, fences, started = [], [], [], time.perf_counter()
        try:
            for call in calls:
                fences.append(lay_out(exercise, call, _filling(slabs)))
                counts.append(len(slabs) - sum(counts))
            described, descriptors = describe_slabs(slabs)
            mailbox = HostSlab(MAILBOX_BYTES * len(calls)) if exercise.returns else None
            if mailbox:
                slabs.append(mailbox)
                descriptors.append(mailbox.descriptor)
            order = {"programs": list(programs), "counts": counts, "slabs": described, "wants": len(exercise.returns)}
            order |= {"allowed": exercise.allowed}
            order |= {"most": [exercise.most(call.args) if exercise.most else {} for call in calls]}
            report = self.ask(order, descriptors, len(calls) * self.room.patience.call_s)
            outcome = outcome_of(report)
            if outcome.error:
                return [outcome] * len(calls)
            answers = report["answers"] or [{}] * len(calls)
            return [
                _left_behind(exercise, case, outcome, answer, mailbox, fenced)
                for answer, fenced in zip(answers, fences, strict=True)
            ]
        except Lost:
            lost = Outcome(error=f"{LOST}: {self.lost}", seconds=time.perf_counter() - started)
            return [lost] * len(calls)
        finally:
            self.close(slabs)

    def plan(self, round_: Round, calls: int | None = None) -> None:
        """Tell the sizes and places of a round (or of its first calls), but not yet where its memory is."""
        self.ask(round_.plan(calls), (), PLAN_S)

    def go(self, round_: Round, patience_s: float, watched: bool = False) -> dict:
        """All calls of the planned round; its slabs stay open in the worker until they are closed."""
        described, descriptors = describe_slabs(round_.slabs)
        return self.ask({"go": True, "slabs": described, "watched": watched}, descriptors, patience_s)

    def ask(self, order: Any, descriptors: Sequence[int], patience_s: float, served: Sequence[Any] = ()) -> dict:
        """The worker's report; Lost when there is none, and `lost` then says why."""
        try:
            own = self.room.own_time(patience_s)
            with self.room.budget.waiting(own):
                self.channel.send(order, descriptors, patience_s)
                report = self._answered(served, own)
            self.room.note(outcome_of(report).seconds)
            if "out of memory" in str(report.get("error")) and full() and held_by_others(report.get("held")) > CONTEXTS:
                raise Crowded("a call found no memory, and others held some")
            return report
        except TimeoutError:
            self._late("the call", own)
        except ChannelError as error:
            self.lost = self.room.watchdog.said or f"the process ended ({error})"
        except (Lost, TooBusy) as error:
            self.lost = str(error)
            raise
        raise Lost(self.lost)

    def _late(self, what: str, own: OwnTime) -> None:
        """Say why no answer came; TooBusy where this machine is the reason."""
        self.lost = f"{what} did not end in {own}"
        try:
            self.room.own_time(own.seconds)
        except Lost as error:
            self.lost = str(error)

    def close(self, slabs: Sequence[Slab]) -> None:
        """Give slabs back. Device memory is first unmapped by the worker, or the worker is ended."""
        if device.DEVICE == "cuda":
            with contextlib.suppress(Lost, TooBusy):  # what comes next says so
                if not self.lost:
                    self.unmap()
            if self.lost:
                self.room.sweep()
        for one in slabs:
            one.close()

    def unmap(self) -> None:
        """The worker lets go of all memory that it was given."""
        self.ask("close", (), CLOSE_S)

    def _answered(self, served: Sequence[Any], own: OwnTime) -> dict:
        """The worker's report, after everything it asked of served objects."""
        while True:
            message = self.channel.receive(own)
            if not isinstance(message, dict):
                raise ChannelError("a report that is no report")
            if "ask" not in message:
                return message
            self.channel.send(_serve(served, message), timeout_s=own.left())

    def hang_up(self) -> None:
        """Ask it nothing more: it ends by itself while the referee goes on, or with the room's other workers."""
        self.channel.end.close()

    def end(self) -> None:
        """End the process and everything it started; the next exercise finds the sandbox empty."""
        self.room.sweep()
        for one in (self, *self.helpers):
            one.channel.end.close()
            one._reader.join(5.0)


def _filling(slabs: list[Slab]) -> Callable:
    """What allocates the memory of a call, and keeps it in this list."""

    def allocate(elements: int, dtype: torch.dtype) -> torch.Tensor:
        slabs.append(slab(elements * dtype.itemsize, device.DEVICE))
        return slabs[-1].tensor(elements, dtype)

    return allocate


def _described(call: Call, fenced: dict[str, Fenced]) -> tuple[list, list]:
    """The arguments as they are sent, and the objects that the worker may ask."""
    args, served = [], []
    numbers = {name: number for number, name in enumerate(fenced)}
    for name, value in call.args.items():
        if name in fenced:
            args.append(describe_tensor(fenced[name].view, numbers[name]))
        elif hasattr(value, "_send"):
            kind = type(value)
            args.append({TAG: "served", "class": f"{kind.__module__}:{kind.__name__}", "number": len(served)})
            served.append(value)
        else:
            args.append(encode(value))
    return args, served


def _left_behind(exercise: Exercise, case: Case, outcome: Outcome, answer: dict, mailbox, fenced: dict) -> Outcome:
    """The outcome of a call with what it returned and wrote."""
    if outcome.error:
        return outcome
    private = {name: _private(one) for name, one in fenced.items()}  # what happens later no longer counts
    try:
        value = _value(exercise, answer, mailbox)
    except Exception as error:  # whatever shape the worker gave it
        return replace(outcome, error=f"{type(error).__name__}: {error}"[:600])
    return judged_part(inspect(exercise, outcome, value, private), case)


def _private(fenced: Fenced) -> Fenced:
    """The same fences over a copy of the slab that no worker can reach."""
    if fenced.slab.nbytes > PRIVATE_BYTES:
        return fenced
    slab = fenced.slab.clone()
    view = slab.as_strided(fenced.view.shape, fenced.view.stride(), fenced.view.storage_offset())
    return replace(fenced, slab=slab, view=view)


def _serve(served: list, message: dict) -> dict:
    """One call of a served object; what it refuses, the worker is told."""
    try:
        target = served[message["ask"]]
        return {"value": encode(target._send(str(message["call"]), *[decode(v) for v in message["values"]]))}
    except Exception as error:
        return {"error": f"{error}"[:400]}


def full() -> bool:
    """Whether less of the GPU is free than any case wants."""
    free, total = torch.cuda.mem_get_info() if device.DEVICE == "cuda" else (1, 1)
    return free < total / 4


def held_by_others(held: Any = 0) -> int:
    """Bytes of the GPU that neither the referee holds nor, as it says itself, a worker."""
    if device.DEVICE != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved() - DeviceSlab.held - (held if isinstance(held, int) else 0)


COUNTED = "made", "multiplied", "moved", "cast"  # beside the kernels


def outcome_of(report: dict) -> Outcome:
    """The part of a report that is about the call itself, forced into shape."""
    error, where = report.get("error"), report.get("where")
    launches, seconds, seen = report.get("launches"), report.get("seconds"), report.get("seen")
    beside = report.get("beside") if isinstance(report.get("beside"), dict) else {}
    counts = {name: count for name in COUNTED if isinstance(count := beside.get(name), int)}
    return Outcome(
        error=str(error)[:600] if error is not None else None,
        where=str(where)[:300] if where else None,
        launches=launches if isinstance(launches, int) else 0,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        seen=seen if isinstance(seen, dict) else None,
        **counts,
    )


def _value(exercise: Exercise, report: dict, mailbox: HostSlab | None) -> Any:
    """What the call returned, as `attempt` in one process would see it."""
    if not exercise.returns:
        return None
    values = [_one(v, mailbox) for v in report.get("values") or []]
    return tuple(values) if report.get("several") else values[0] if values else None


def _one(value: Any, mailbox: HostSlab | None) -> Any:
    if not (isinstance(value, dict) and value.get(TAG) == "raw"):
        return decode(value)
    name, shape, at = str(value.get("dtype")), value.get("shape"), value.get("at")
    if name not in TYPES:
        raise TypeError(f"a tensor of {name[:40]} came back, and nobody can compute with that here")
    if mailbox is None or not isinstance(at, int) or not is_shape(shape):
        raise WireError("a returned tensor that is none")
    nbytes = math.prod(shape) * TYPES[name].itemsize
    data = os.pread(mailbox.descriptor, nbytes, at) if nbytes <= MAILBOX_BYTES and at >= 0 else b""
    if len(data) != nbytes:
        raise WireError("a returned tensor larger than allowed")
    return from_bytes(data, TYPES[name], shape)
