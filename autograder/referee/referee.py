"""The referee: draws the inputs, holds the truth, and asks a sandboxed worker for answers.

    with Room(submission) as room:
        for exercise in exercises:
            verdict = room.examine(exercise, seed)

One room is one sandbox is one submission; each exercise gets a worker of its own in it. Nothing that a worker does
reaches the next exercise: everything it started is ended first. Whatever it reports is data; the verdict is made here.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autograder import calling
from autograder.check import judged_part
from autograder.exercise import Call, Exercise
from autograder.judging.judge import judge
from autograder.judging.outcome import Outcome
from autograder.judging.verdict import Verdict
from autograder.referee import channel as wire
from autograder.referee import sandbox
from autograder.referee.channel import Channel, ChannelError, SharedMemory, decode, encode
from autograder.referee.submission import Submission
from autograder.trial import inspect, lay_out
from course_lib import device

HERE = Path(__file__).resolve().parent
INSIDE = (HERE / "worker.py", HERE / "channel.py", HERE.parent / "calling.py")  # all a sandbox holds of the autograder
START_S = 60.0  # a zygote imports torch and Triton
KEPT_OUTPUT = 1 << 16  # characters of what a worker prints that are kept for the report
MAILBOX_BYTES = 1 << 26  # largest returned tensors of one call


@dataclass(frozen=True)
class Patience:
    """Seconds after which a worker is ended."""

    cells_s: float = 60.0  # to run the submission's cells
    call_s: float = 30.0  # for one call


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


class Room:
    """A sandbox with a warm zygote for one submission."""

    def __init__(self, submission: Submission, imports: tuple[str, ...] = (), patience: Patience = Patience()):
        self.submission, self.imports, self.patience = submission, imports, patience

    def __enter__(self) -> Room:
        sandbox.require()
        here, there = socket.socketpair()
        gpu = torch.cuda.current_device() if device.TIER == "gpu" else None
        limits = replace(sandbox.Limits(), memory_bytes=None) if gpu is not None else sandbox.Limits()
        line = sandbox.command(
            [sys.executable, "/referee/worker.py", str(there.fileno())],
            placed={Path("/referee") / path.name: path for path in INSIDE},
            gpu=gpu,
            limits=limits,
        )
        self.process = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[there.fileno()]
        )
        there.close()
        self.control = Channel(here)
        self.control.send(list(self.imports))
        try:
            self.control.receive(START_S)
        except (ChannelError, TimeoutError) as error:
            said = self._ended()
            raise RuntimeError(f"the sandbox did not start: {said or error}") from error
        return self

    def __exit__(self, *_) -> None:
        self._ended()

    def _ended(self) -> str:
        self.control.end.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(2.0)
        self.process.kill()
        return self.process.communicate()[1].decode(errors="replace")[-2000:]

    def examine(self, exercise: Exercise, seed: int) -> Verdict:
        """Judge one exercise of the submission in a worker of its own."""
        if device.TIER not in exercise.tiers:
            note = f"This exercise needs the tier {' or '.join(exercise.tiers)}."
            return Verdict(exercise.name, device.TIER, seed, 0.0, exercise.points, (), note=note, pending=True)
        worker = Worker(self)
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
            outcome = worker.attempt(exercise, call)
            yield (case, judged_part(call, case), judged_part(outcome, case))
            lost = f"in \u201c{case.name}\u201d: {worker.lost}" if worker.lost else ""
            if outcome.not_written:
                return


class Worker:
    """One exercise's process, seen from outside."""

    def __init__(self, room: Room):
        self.room, self.lost, self.printed = room, "", Printed()
        here, there = socket.socketpair()
        read, write = os.pipe()
        room.control.send("start", [there.fileno(), write])
        there.close()
        os.close(write)
        self.channel = Channel(here)
        self._reader = threading.Thread(target=self.printed.drain, args=(read,), daemon=True)
        self._reader.start()

    def load(self, exercise: Exercise) -> str:
        """Run the submission's cells; why there is nothing to judge, or ''."""
        submission = self.room.submission
        self.channel.send({"cells": [[c.name, c.source] for c in submission.cells], "entry": exercise.entry})
        try:
            reply = self.channel.receive(self.room.patience.cells_s)
            troubles = [tuple(map(str, t)) for t in reply["troubles"]]
            found, is_callable = bool(reply["defined"]), bool(reply["callable"])
        except TimeoutError:
            return f"The cells of this notebook did not end in {self.room.patience.cells_s:g} s."
        except (ChannelError, KeyError, TypeError):
            return "The process ended while it ran the cells of this notebook."
        told = " ".join(f"The cell {name} raised {error} ({where})." for name, error, where in troubles[:3])
        if not found:
            return f"{submission.missing(exercise.entry)} {told}".strip()
        if not is_callable:
            return f"`{exercise.entry}` should be a function. {told}".strip()
        return ""

    def attempt(self, exercise: Exercise, call: Call) -> Outcome:
        """One call on fenced shared memory; a worker that dies or hangs is an outcome too."""
        memories: list[SharedMemory] = []

        def allocate(elements: int, dtype: torch.dtype) -> torch.Tensor:
            memories.append(SharedMemory(elements * dtype.itemsize))
            return memories[-1].tensor(elements, dtype)

        started = time.perf_counter()
        try:
            fenced = lay_out(exercise, call, allocate)
            report, mailbox = self._ask(exercise, call, fenced, memories)
            outcome = _outcome(report)
            if outcome.error:
                return outcome
            private = {name: replace_slab(f) for name, f in fenced.items()}  # what happens later no longer counts
            return inspect(exercise, outcome, _value(exercise, report, mailbox), private)
        except TimeoutError:
            self.lost = f"the call did not end in {self.room.patience.call_s:g} s"
        except ChannelError as error:
            self.lost = f"the process ended ({error})"
        finally:
            for memory in memories:
                memory.close()
        return Outcome(error=f"Lost: {self.lost}", seconds=time.perf_counter() - started)

    def _ask(self, exercise: Exercise, call: Call, fenced: dict, memories: list) -> tuple[dict, SharedMemory | None]:
        args, served, descriptors = [], [], []
        for name, value in call.args.items():
            if name in fenced:
                args.append(wire.describe_tensor(fenced[name].view) | {"descriptor": len(descriptors)})
                descriptors.append(memories[len(descriptors)].descriptor)
            elif hasattr(value, "_send"):
                kind = type(value)
                args.append({"$": "served", "class": f"{kind.__module__}:{kind.__name__}", "number": len(served)})
                served.append(value)
            else:
                args.append(encode(value))
        mailbox = SharedMemory(MAILBOX_BYTES) if exercise.kind == "kernel" and exercise.returns else None
        if mailbox:
            memories.append(mailbox)
            descriptors.append(mailbox.descriptor)
        self.channel.send({"args": args, "wants": len(exercise.returns)}, descriptors)
        return self._answered(served), mailbox

    def _answered(self, served: list) -> dict:
        """The worker's report, after everything it asked of served objects."""
        until = time.monotonic() + self.room.patience.call_s
        while True:
            message = self.channel.receive(until - time.monotonic())
            if not isinstance(message, dict):
                raise ChannelError("a report that is no report")
            if "ask" not in message:
                return message
            self.channel.send(_serve(served, message))

    def end(self) -> None:
        """End the process and everything it started; the next exercise finds the sandbox empty."""
        self.room.control.send("sweep")
        self.room.control.receive(30.0)
        self.channel.end.close()
        self._reader.join(5.0)


def replace_slab(fenced):
    """The same fences over a private copy of the slab."""
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


def _outcome(report: dict) -> Outcome:
    """The part of a report that is about the call itself, forced into shape."""
    error, where = report.get("error"), report.get("where")
    launches, seconds = report.get("launches"), report.get("seconds")
    return Outcome(
        error=str(error)[:600] if error is not None else None,
        where=str(where)[:300] if where else None,
        launches=launches if isinstance(launches, int) else 0,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
    )


def _value(exercise: Exercise, report: dict, mailbox: SharedMemory | None) -> Any:
    """What the call returned, as `attempt` in one process would see it."""
    if not exercise.returns:
        return None
    values = [_one(v, mailbox) for v in report.get("values") or []]
    return tuple(values) if report.get("several") else values[0] if values else None


def _one(value: Any, mailbox: SharedMemory | None) -> Any:
    if not (isinstance(value, dict) and value.get("$") == "raw"):
        return decode(value)
    dtype, shape, at = getattr(torch, str(value.get("dtype")), None), value.get("shape"), value.get("at")
    if mailbox is None or not isinstance(dtype, torch.dtype) or not isinstance(at, int) or not isinstance(shape, list):
        raise ChannelError("a returned tensor that is none")
    if not all(isinstance(n, int) and 0 <= n < 1 << 31 for n in shape):
        raise ChannelError("a returned tensor of no shape")
    count = 1
    for n in shape:
        count *= n
    data = os.pread(mailbox.descriptor, count * dtype.itemsize, at) if count <= MAILBOX_BYTES else b""
    if len(data) != count * dtype.itemsize:
        raise ChannelError("a returned tensor larger than allowed")
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape) if data else torch.empty(shape, dtype=dtype)
