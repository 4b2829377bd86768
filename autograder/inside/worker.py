"""Inside the sandbox: runs the student's code and reports data, never verdicts. It knows no exercise and no truth.

Process 1 is the zygote. It has imported torch, Triton and what the lesson's setup imports, has run no tensor
operation (an OpenMP pool here would hang every child) and touched no GPU. For each exercise it forks a worker, and
ends it, with everything it started, by `kill(-1, SIGKILL)`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import os
import resource
import signal
import socket
import sys
import traceback
from collections import Counter
from typing import Any

import torch

if hasattr(torch, "cuda"):  # the folder of torch is empty in a sandbox that hides it
    import course_lib.device  # noqa: F401  decides the tier before Triton is imported
    from autograder.inside.playing import Player
    from autograder.inside.recording import Recorder

# isort: split
from autograder.inside import calling
from autograder.inside.cells import run_cells
from autograder.inside.slabs import Opened
from autograder.inside.watch import uncompiled, watched
from autograder.inside.wire import Channel, ChannelError, decode, encode, name_of, to_bytes

PR_SET_DUMPABLE = 4
LIMITS = 16  # kinds of them in Linux


def zygote(descriptor: int) -> None:
    """Take orders on `descriptor` until the referee hangs up."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # no child may read or write this process
    control = Channel(socket.socket(fileno=descriptor), send_s=None)
    imports, _ = control.receive_with_descriptors()
    prepare(imports)
    control.send({"ready": True})
    allowed = allowances()
    while True:
        try:
            order, descriptors = control.receive_with_descriptors()
        except ChannelError:
            break
        if order == "start":
            if os.fork() == 0:
                control.end.close()
                worker(*descriptors)
        else:
            sweep()
            if allowances() != allowed:  # the referee sees that this sandbox is gone, and makes a new one
                break
            control.send({"swept": True})
        for passed in descriptors:
            os.close(passed)
    sweep()
    os._exit(0)


def allowances() -> list:
    """What this process may use. A worker has the same uid, so it can take from it, and every later worker inherits."""
    limits = [resource.getrlimit(kind) for kind in range(LIMITS)]
    return [*limits, os.sched_getaffinity(0), os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)]


def prepare(imports: list[str]) -> None:
    """Import what every worker needs, so that each fork has it already."""
    for name in imports:
        try:
            importlib.import_module(name)
        except Exception:
            continue  # the setup cell that wants it will say so itself


def sweep() -> None:
    """End every other process of this sandbox and collect it."""
    while True:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            os.wait()
        except ChildProcessError:
            break
    for folder in ("/tmp", "/dev/shm"):
        empty(folder, os.stat(folder).st_dev)
    os.makedirs("/tmp/home", exist_ok=True)


def empty(folder: str, device: int) -> None:
    """Remove what workers left, but nothing that is mounted there from outside.

    What lies in a folder is brought up before the folder is removed, so no depth is too deep. What cannot be removed
    counts as held memory.
    """
    removed = True
    while removed:
        removed = False
        with os.scandir(folder) as entries:
            found = list(entries)
        for entry in found:
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                elif entry.stat(follow_symlinks=False).st_dev == device:
                    bring_up(entry.path, folder)
                    os.rmdir(entry.path)
                    removed = True


def bring_up(path: str, folder: str) -> None:
    """Move what lies in a folder to the folder above; files of a folder that is not ours are removed there."""
    with contextlib.suppress(PermissionError):  # the home folder is not ours, and open to all
        os.chmod(path, 0o700)
    with os.scandir(path) as entries:
        for entry in list(entries):
            with contextlib.suppress(OSError):
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    continue
                os.chmod(entry.path, 0o700)  # a folder that cannot be written cannot be moved
                os.rename(entry.path, os.path.join(folder, os.urandom(8).hex()))


def worker(talk: int, output: int) -> None:
    """One exercise: run the cells, then answer calls until nobody asks any more."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    channel = Channel(socket.socket(fileno=talk), send_s=None)
    try:
        serve(channel)
    except ChannelError:
        pass
    except Exception:
        traceback.print_exc()  # for whoever looks for a fault of ours
    finally:
        sys.stderr.flush()
        os._exit(0)


def serve(channel: Channel) -> None:
    function, planned, opened, recorder, player = None, None, [], None, None
    while True:
        order, descriptors = channel.receive_with_descriptors()
        if order == "close":
            while opened:
                opened.pop().close()
            channel.send({"closed": True})
            continue
        if order == "open":
            torch.cuda.init()
            torch.cuda.synchronize()
            channel.send({"opened": True})
            continue
        if order == "compile":
            channel.send(uncompiled())
            continue
        if "cells" in order:
            names, troubles = run_cells(order["cells"], order["seconds"], order["settled"], order["apart"])
            function = names.get(order["entry"])
            channel.send({"troubles": troubles, "callable": callable(function), "defined": order["entry"] in names})
            continue
        if "plan" in order:
            planned = order
            channel.send({"ready": True})
            continue
        if "rank" in order:
            from autograder.inside.rank import as_rank  # here: it needs torch, which an exercise may hide

            channel.send(as_rank(function, order))
            continue
        if "texts" in order:
            player = Player(dict(order["texts"]))
            channel.send({"read": True})
            continue
        opened.append(Opened(order["slabs"], descriptors))
        if "record" in order:
            recorder = recorder or Recorder()
            channel.send(with_held(recorded(recorder, function, order, opened.pop(), channel)))
        elif "programs" in order:
            channel.send(with_held(played(player, order, opened[-1], descriptors)))
        elif "go" in order:
            channel.send(with_held(answer_round(function, planned, order["watched"], opened[-1], channel)))
        else:
            channel.send(with_held(answer(function, order, opened[-1], descriptors, channel)))
        for descriptor in descriptors:
            os.close(descriptor)


def with_held(report: dict) -> dict:
    """An error and what this process holds of the GPU: memory may have been out through somebody else's."""
    if report["error"] is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        report["held"] = torch.cuda.memory_reserved()
    return report


def answer(function, order: dict, opened: Opened, descriptors: list[int], channel: Channel) -> dict:
    """One call; `watched`: with a profiler looking on."""
    args = [argument(a, opened, channel) for a in order["args"]]
    function = calling.through(order["probe"], function)
    got, seen = watched(function, args, order["beside"]) if order["watched"] else (calling.call(function, args), None)
    report = {"error": got.error, "where": got.where, "launches": got.launches, "seconds": got.seconds, "seen": seen}
    if got.error is None and order["wants"]:
        report |= returned(got.value, order["wants"], descriptors)
    return report


def recorded(recorder, function, order: dict, opened: Opened, channel: Channel) -> dict:
    """One call on tensors of noise: the program that it is."""
    args = [argument(a, opened, channel) for a in order["args"]]
    got, program = recorder.record(calling.through(order["probe"], function), args, opened.bytes, order["allowed"])
    report = {"error": got.error, "where": got.where, "launches": got.launches, "seconds": got.seconds}
    opened.close()
    return report | {"program": program}


def played(player, order: dict, opened: Opened, descriptors: list[int]) -> dict:
    """Programs one after the other, each on its own slabs; what all of them returned is looked at in the end."""
    ends = list(itertools.accumulate(order["counts"]))
    parts = [opened.bytes[end - count : end] for end, count in zip(ends, order["counts"], strict=True)]

    beside: Counter[str] = Counter()  # the most of any call

    def run() -> list:
        values = []
        for program, slabs, most in zip(order["programs"], parts, order["most"], strict=True):
            values.append(player.play(program, slabs, order["allowed"], most))
            beside.update(player.beside - beside)
        return values

    got = calling.call(run, ())
    report = {"error": got.error, "where": got.where, "launches": got.launches, "seconds": got.seconds, "answers": []}
    report["beside"] = dict(beside)
    at = 0
    for value in got.value or [] if order["wants"] else []:
        made = returned(value, order["wants"], descriptors, at)
        if "error" in made:
            return report | made
        at = made.pop("end")
        report["answers"].append(made)
    for program in order["programs"]:
        player.forget(program)
    return report


def answer_round(function, planned: dict, looked_on: bool, opened: Opened, channel: Channel) -> dict:
    """Several calls in a row; what they return is copied into the last tensors of each.

    A call's tensors are made while the device is still busy with the call before. Events around all of them are for
    information: the clock that counts runs elsewhere.
    """
    copied, function = planned["returned"], calling.through(planned["probe"], function)

    def run():
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2 if opened.addresses else 0)]
        for mark in marks[:1]:
            mark.record()
        for call in planned["plan"]:
            args = [argument(a, opened, channel) for a in call]
            if copied:
                copy_returned(function(*args[:-copied]), args[-copied:])
            else:
                function(*args)
        for mark in marks[1:]:
            mark.record()
        return marks

    opened.touch()
    got, seen = watched(run, ()) if looked_on else (calling.call(run, (), counted=False), None)
    report = {"error": got.error, "where": got.where, "launches": got.launches, "seconds": got.seconds, "seen": seen}
    if got.error is None:
        report["calls_s"] = got.value[0].elapsed_time(got.value[1]) / 1e3 if got.value else got.seconds
    return report


def copy_returned(values: Any, into: list) -> None:
    values = values if isinstance(values, tuple | list) else (values,)
    for place, value in zip(into, values, strict=True):
        got, asked = (value.dtype, *value.shape), (place.dtype, *place.shape)
        if got != asked:
            raise TypeError(f"returned {got}, expected {asked}")
        place.copy_(value)


def argument(value: Any, opened: Opened, channel: Channel) -> Any:
    kind = value.get("$") if isinstance(value, dict) else None
    if kind == "placed":
        return opened.tensor(value)
    if kind == "served":
        module, _, name = value["class"].partition(":")
        return getattr(importlib.import_module(module), name)(asking(channel, value["number"]))
    return decode(value)


def asking(channel: Channel, number: int):
    """A function that carries one call of a served object to the referee and returns its answer."""

    def send(name: str, *values):
        channel.send({"ask": number, "call": name, "values": [encode(v) for v in values]})
        reply, _ = channel.receive_with_descriptors()
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return decode(reply["value"])

    return send


def returned(value: Any, wants: int, descriptors: list[int], at: int = 0) -> dict:
    """The returned values; tensors go, as raw bytes, into the memory that came for them, from there to `end`."""
    values = list(value) if wants > 1 and isinstance(value, tuple | list) else [value]
    # exercises of plain data come without such memory: a tensor is no plain data, and encode says so
    mailbox, described = descriptors[-1] if descriptors else None, []
    try:
        for one in values:
            if mailbox is not None and hasattr(one, "untyped_storage"):
                data = to_bytes(one)
                described.append({"$": "raw", "dtype": name_of(one.dtype), "shape": list(one.shape), "at": at})
                at += os.pwrite(mailbox, data, at) if data else 0
            else:
                described.append(encode(one))
    except (TypeError, OSError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    several = len(values) > 1 or (isinstance(value, tuple | list) and wants > 1)
    return {"values": described, "several": several, "end": at}


if __name__ == "__main__":
    zygote(int(sys.argv[1]))
