"""The warm process: it has imported torch, has run nothing, and forks the ranks of a launch within milliseconds.

One connection is one launch. The client sends an order with two descriptors a rank. This process forks the ranks and
reports the end of each. When the connection closes, for whatever reason, it ends the ranks of that launch and all
processes that they started. When no process is left that could connect, this process ends too.

It runs no tensor operation: a pool of OpenMP threads here would hang every child. It touches no GPU: a child of a
process that has could not use one.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import traceback
from dataclasses import dataclass, field

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl
# course_lib.device first: it decides the tier before Triton is imported. The first step of any optimizer imports
# torch._dynamo, which takes a second.
PRELOADED = ("course_lib.device", "torch.distributed", "torch._dynamo", "course_lib.distributed.rank")
MOST_RANKS = 64  # two descriptors each in one message, of which Linux passes 253
MESSAGE_BYTES = 1 << 12  # an order names a folder


@dataclass
class Crew:
    """The ranks of one launch."""

    connection: socket.socket
    pids: dict[int, int] = field(default_factory=dict)  # process -> rank, of those that have not ended
    groups: list[int] = field(default_factory=list)  # the process group that each rank leads

    def tell(self, message: dict) -> None:
        with contextlib.suppress(OSError):  # it may have hung up, which the next round sees
            self.connection.send(json.dumps(message).encode())

    def end(self) -> None:
        for group in self.groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        for pid in self.pids:  # one that was forked just now may not lead its group yet
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Warm:
    """Serves launches until the pipe `alive` has no writer."""

    def __init__(self, listener: int, alive: int):
        self.listener, self.alive = socket.socket(fileno=listener), alive
        self.crews: dict[int, Crew] = {}  # by the descriptor of the connection
        self.woken, self.wakes = socket.socketpair()
        for end in (self.woken, self.wakes):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakes.fileno(), warn_on_full_buffer=False)
        self.selector = selectors.DefaultSelector()
        for source in (self.listener, self.alive, self.woken):
            self.selector.register(source, selectors.EVENT_READ)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    connection, _ = self.listener.accept()
                    connection.setblocking(False)
                    self.crews[connection.fileno()] = Crew(connection)
                    self.selector.register(connection, selectors.EVENT_READ)
                elif key.fileobj is self.woken:
                    with contextlib.suppress(BlockingIOError):
                        self.woken.recv(1 << 12)
                elif key.fd == self.alive:
                    return
                elif key.fd in self.crews:
                    self._heard(self.crews[key.fd])
            self._collect()

    def _heard(self, crew: Crew) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(crew.connection, MESSAGE_BYTES, 2 * MOST_RANKS)
        except ConnectionError:
            data, descriptors = b"", []
        order = json.loads(data) if data else "end"
        if order != "end":
            self._start(crew, order["folder"], descriptors)
            return
        crew.end()
        if not data:
            self.selector.unregister(crew.connection)
            del self.crews[crew.connection.fileno()]
            crew.connection.close()
            if not self.crews:
                end_children()

    def _start(self, crew: Crew, folder: str, descriptors: list[int]) -> None:
        size = len(descriptors) // 2
        for rank in range(size):
            pid = os.fork()
            if pid == 0:
                become_rank(rank, size, *descriptors[2 * rank : 2 * rank + 2], folder)
            crew.pids[pid] = rank
            crew.groups.append(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        crew.tell({"pids": crew.groups})

    def _collect(self) -> None:
        """Reap every child that has ended. The end of a rank is reported, the end of an orphan of a rank is not."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for crew in self.crews.values():
                if pid in crew.pids:
                    crew.tell({"rank": crew.pids.pop(pid), "status": os.waitstatus_to_exitcode(status)})

    def end(self) -> None:
        for crew in self.crews.values():
            crew.end()
        end_children()


def end_children() -> None:
    """End orphans: a process that a rank started in a session of its own becomes a child of this process."""
    with contextlib.suppress(OSError), open(f"/proc/self/task/{os.getpid()}/children") as listed:
        for pid in map(int, listed.read().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def become_rank(rank: int, size: int, talk: int, output: int, folder: str) -> None:
    """In the child: let go of all that belongs to the warm process or to another rank, then run."""
    code = 70
    try:
        os.setsid()  # a process group of its own, to be ended as a whole
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(os.open(os.path.join(folder, f"stderr{rank}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != talk:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        from course_lib.distributed.rank import run

        code = run(rank, size, socket.socket(fileno=talk), folder)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # no destructor runs, so none can abort


def preload(gpus: int) -> None:
    """Import the modules that ranks need. Meanwhile torch.cuda.device_count gives the known number of GPUs: if this
    process asked CUDA or NVML itself, its children could not use them, and NCCL needs them."""
    cuda = importlib.import_module("torch").cuda
    real = cuda.device_count, cuda.is_available
    cuda.device_count, cuda.is_available = lambda: gpus, lambda: gpus > 0
    for name in PRELOADED:
        importlib.import_module(name)
    cuda.device_count, cuda.is_available = real


def main(listener: int, alive: int, folder: str, gpus: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    preload(gpus)
    warm = Warm(listener, alive)
    try:
        warm.serve()
    finally:
        warm.end()
        shutil.rmtree(folder, ignore_errors=True)
