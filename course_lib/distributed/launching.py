"""Start a function on several ranks from wherever you are: a notebook cell, a script, or a program under torchrun."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import linecache
import os
import re
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from course_lib.distributed import stacks
from course_lib.distributed.rank import MESSAGE_BYTES, join, load
from course_lib.distributed.server import SERVER
from course_lib.distributed.warm import MOST_RANKS

START_S = 120.0  # the first launch of a process imports torch
GRACE_S = 0.3  # wait after the first failure: the report of its cause may come a moment later
STACK_S = 1.0  # that a rank has to write its stack
LEAVE_S = 20.0  # that a rank has to leave the group: NCCL releases memory that it shares with other GPUs
CONNECTION = re.compile(r"connection (closed|reset|refused)|broken pipe|socket|remote process", re.IGNORECASE)


class RankFailed(RuntimeError):
    """A rank raised, ended, or did not end in time, and all were ended. The message holds that rank's traceback."""

    def __init__(self, rank: int, says: str, details: str = "", raised: str = ""):
        super().__init__(f"{says}\n\n{details}" if details else says)
        self.rank, self.says, self.details = rank, says, details
        self.raised = raised  # "ValueError: the loss is NaN"; empty when the rank ended or was late


def launch(
    function: Callable[..., Any],
    world_size: int = 2,
    backend: str = "auto",
    *,
    args: Sequence[Any] = (),
    limit_s: float = 120.0,
) -> list[Any]:
    """Call `function(rank, *args)` in `world_size` processes that form a group, and return what each returned.

    backend: "gloo" on the host, "nccl" with a GPU for each rank; "auto" takes NCCL where there are enough GPUs.
    The function may be defined in a notebook cell: it travels by value, with what it refers to. What ranks print
    appears here line by line; what they write on stderr is kept for the report of a failure. Returned tensors lie on
    the host. When a rank fails, or `limit_s` is over, all are ended and RankFailed says what happened where.

    Under torchrun the processes are there already: each calls `function` once, and each gets the same list.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return _as_one_rank(function, world_size, backend, args, limit_s)
    if dist.is_initialized():
        raise RuntimeError("launch was called inside a group: a rank cannot start ranks of its own")
    if not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size is from 1 to {MOST_RANKS}, not {world_size}")
    with _Launch(function, world_size, chosen(backend, world_size), args, limit_s) as one:
        return one.results()


def chosen(backend: str, world_size: int) -> str:
    if backend not in ("auto", "gloo", "nccl"):
        raise ValueError(f'backend is "auto", "gloo" or "nccl", not {backend!r}')
    if backend != "auto":
        return backend
    return "nccl" if dist.is_nccl_available() and torch.cuda.device_count() >= world_size else "gloo"


def _as_one_rank(function: Callable, world_size: int, backend: str, args: Sequence, limit_s: float) -> list[Any]:
    """This process is a rank that torchrun started."""
    rank, size, local, beside = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    if size != world_size:
        raise ValueError(f"launch was asked for {world_size} ranks, and torchrun started {size}")
    if not dist.is_initialized():
        join(chosen(backend, beside), rank, size, limit_s, local=local)
        atexit.register(_leave)
    faulthandler.dump_traceback_later(limit_s, exit=True)  # says where this rank is; torchrun then ends the others
    try:
        value, values = function(rank, *args), [None] * size
        dist.all_gather_object(values, value)
        return values
    finally:
        faulthandler.cancel_dump_traceback_later()


def _leave() -> None:
    if dist.is_initialized() and sys.exc_info()[0] is None:
        dist.barrier()  # a process whose peer has gone first is aborted by gloo
        dist.destroy_process_group()


@dataclass
class _Rank:
    talk: socket.socket
    output: int  # the pipe with what it prints
    pid: int = 0
    unprinted: bytes = b""  # the beginning of a line
    told: dict | None = None  # its last message: an empty dict when the function returned
    status: int | None = None  # how the process ended

    @property
    def failed(self) -> bool:
        return bool(self.told) or (self.told is None and self.status is not None)


class _Launch:
    """The ranks of one launch, from the process that wants their results."""

    def __init__(self, function: Callable, size: int, backend: str, args: Sequence, limit_s: float):
        self.size, self.limit_s = size, limit_s
        self.selector = selectors.DefaultSelector()
        self.ranks: list[_Rank] = []
        self.connection = SERVER.connect()
        self.folder = Path(tempfile.mkdtemp(prefix="launch-", dir=SERVER.folder))
        try:
            self._write_order(function, backend, args)
            self._start()
        except BaseException:
            self.__exit__()
            raise

    def _write_order(self, function: Callable, backend: str, args: Sequence) -> None:
        with open(self.folder / "call", "wb") as file:
            torch.save((function, tuple(args)), file, pickle_module=cloudpickle)
        # tracebacks of a rank, and everything else that reads source text, then find the cells of a notebook
        cells = {n: e for n, e in linecache.cache.items() if len(e) == 4 and e[1] is None and not os.path.exists(n)}
        order = {"environment": dict(os.environ), "place": os.getcwd(), "path": sys.path, "words": sys.argv}
        order |= {"cells": cells, "backend": backend, "limit_s": self.limit_s}
        (self.folder / "order").write_text(json.dumps(order))

    def _start(self) -> None:
        theirs: list[int] = []
        try:
            for _ in range(self.size):
                talk, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                output, written = os.pipe()
                os.set_blocking(output, False)
                self.ranks.append(_Rank(talk, output))
                theirs += [there.detach(), written]
            socket.send_fds(self.connection, [json.dumps({"folder": str(self.folder)}).encode()], theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self.connection.settimeout(START_S)
        pids = self._report()["pids"]
        self.until = time.monotonic() + self.limit_s
        self.selector.register(self.connection, selectors.EVENT_READ, (self._ended, None))
        for rank, rank.pid in zip(self.ranks, pids, strict=True):
            self.selector.register(rank.talk, selectors.EVENT_READ, (self._heard, rank))
            self.selector.register(rank.output, selectors.EVENT_READ, (self._print, rank))

    # ---- while they run

    def results(self) -> list[Any]:
        self._wait(self.until, lambda: any(r.failed for r in self.ranks) or all(r.told == {} for r in self.ranks))
        if not all(rank.told == {} for rank in self.ranks):
            self._wait(time.monotonic() + GRACE_S, lambda: False)
            raise self._failure()
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                rank.talk.send(b"!")
        self._wait(time.monotonic() + LEAVE_S, lambda: all(rank.status is not None for rank in self.ranks))
        bad = next((n for n, rank in enumerate(self.ranks) if rank.status != 0), None)
        if bad is not None:
            says = f"rank {bad} of {self.size} returned, and {ended(self.ranks[bad].status)} when it left the group"
            raise RankFailed(bad, says, self._stderr(bad))
        return [load(self.folder / f"result{n}") for n in range(self.size)]

    def _wait(self, until: float, done: Callable[[], bool]) -> None:
        while not done() and (left := until - time.monotonic()) > 0:
            for key, _ in self.selector.select(left):
                then, rank = key.data
                then(rank)

    def _heard(self, rank: _Rank) -> None:
        data = b""
        with contextlib.suppress(ConnectionError):
            data = rank.talk.recv(MESSAGE_BYTES)
        if data:
            rank.told = json.loads(data)
        else:
            self.selector.unregister(rank.talk)

    def _print(self, rank: _Rank) -> None:
        if not self._read(rank):
            self.selector.unregister(rank.output)

    def _read(self, rank: _Rank) -> bool:
        """Print whole lines, with the rank before them; whether there can be more."""
        try:
            data = os.read(rank.output, 1 << 16)
        except BlockingIOError:
            return True
        end = b"\n" if rank.unprinted and not data else b""  # a last line may have none
        *lines, rank.unprinted = (rank.unprinted + data + end).split(b"\n")
        for line in lines:
            print(f"rank {self.ranks.index(rank)}: {line.decode(errors='replace')}", flush=True)
        return bool(data)

    def _ended(self, _) -> None:
        message = self._report()
        self.ranks[message["rank"]].status = message["status"]

    def _report(self) -> dict:
        """What the process that started the ranks has to say."""
        data = b""
        with contextlib.suppress(ConnectionError):
            data = self.connection.recv(MESSAGE_BYTES)
        if not data:
            raise RuntimeError(SERVER.gone())
        return json.loads(data)

    # ---- what went wrong

    def _failure(self) -> RankFailed:
        found = self._stacks()
        failed = [number for number, rank in enumerate(self.ranks) if rank.failed]
        if failed:
            first = min(failed, key=self._blame)
            told, status = self.ranks[first].told, self.ranks[first].status
            what = f"raised {told['error']}: {told['message']}" if told else f"{ended(status)} before it returned"
            details = told["traceback"] if told else self._stderr(first)
        else:
            late = [number for number, rank in enumerate(self.ranks) if rank.told is None]
            # a rank that waits for others is late because of another one: report a rank that does not wait
            first = next((n for n in late if n in found and not found[n].waits), late[0])
            what = f"did not end in {self.limit_s:g} s"
            details = found[first].text if first in found else ""
        says = [f"rank {first} of {self.size} {what}"]
        for number, rank in enumerate(self.ranks):
            if number != first and rank.told == {}:
                says.append(f"rank {number} had returned")
            elif number != first and number in found:
                says.append(f"rank {number} was {found[number].where}")
        told = self.ranks[first].told
        return RankFailed(first, "\n".join(says), details, f"{told['error']}: {told['message']}" if told else "")

    def _blame(self, number: int) -> tuple[int, float]:
        """The cause sorts before its consequences: ended processes, exceptions by time, lost connections."""
        told = self.ranks[number].told
        if not told:
            return 0, 0.0
        return (2 if CONNECTION.search(told["message"]) else 1), told["at"]

    def _stacks(self) -> dict[int, stacks.Stack]:
        """Where those ranks are that have said nothing yet."""
        asked = {n: len(self._stderr(n)) for n, r in enumerate(self.ranks) if r.told is None and r.status is None}
        for number in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.ranks[number].pid, signal.SIGUSR1)
        found: dict[int, stacks.Stack] = {}
        until = time.monotonic() + STACK_S
        while len(found) < len(asked) and time.monotonic() < until:
            time.sleep(0.02)
            written = {n: self._stderr(n)[before:] for n, before in asked.items()}
            found = {n: stacks.read(text) for n, text in written.items() if stacks.is_whole(text)}
        return found

    def _stderr(self, number: int) -> str:
        with contextlib.suppress(OSError):
            text = (self.folder / f"stderr{number}").read_text(errors="replace")
            return text.partition("\nExtension modules:")[0]  # faulthandler lists them after a crash
        return ""

    # ---- the end

    def __enter__(self) -> _Launch:
        return self

    def __exit__(self, *_) -> None:
        """End what is left of the ranks; return when they are gone."""
        try:
            if any(rank.pid and rank.status is None for rank in self.ranks):
                self.connection.send(b'"end"')
                self._wait(time.monotonic() + 5.0, lambda: all(rank.status is not None for rank in self.ranks))
        except (OSError, RuntimeError):
            pass  # the process that started the ranks has ended, and so have the ranks
        finally:
            self.selector.close()
            self.connection.close()
            for rank in self.ranks:
                self._read(rank)  # the last lines; one read takes all that a pipe can hold
                rank.talk.close()
                os.close(rank.output)
            shutil.rmtree(self.folder, ignore_errors=True)


def ended(status: int | None) -> str:
    if status is None:
        return "did not end"
    with contextlib.suppress(ValueError):
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
