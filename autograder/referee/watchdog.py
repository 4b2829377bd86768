"""Counts the memory of a whole sandbox, and ends the sandbox when it is too much. Counts the lack of processors too.

Limits of the kernel hold for one process; many processes, files in /tmp and memory without an owner add up past any of
them, and a cgroup is not ours to make everywhere. So a thread of the referee adds up, twenty times a second, what the
processes of the sandbox hold (shared pages divided among their users), what lies in its temporary folders, and memory
files that are only open. What is both open and mapped counts twice: the sum may be too large, never too small.

The sandbox is ended whole, by its process 1: the kernel takes the rest along, files included, and no fork is faster.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator

EVERY_S = 0.05
WAIT_S = 1.0  # for a processor, at a time: a scheduler lets nobody wait longer
# Counting takes milliseconds; a sandbox in which it takes this long twice in a row was made to outgrow the count. Once
# happens where the whole machine stands still.
COUNT_S = 3.0
FOLDERS = ("tmp", "dev/shm")
INODE_BYTES = 1024  # an empty file costs memory too


class Watchdog:
    """`said` is why the sandbox was ended, or ''. `lacked`: seconds in which one of its threads could have run and had
    no processor, but no more than those in which none ran: threads that keep one another from a processor lack none. It
    is known with a delay of EVERY_S."""

    def __init__(self, bwrap: int, limit: int):
        self.bwrap, self.limit = bwrap, limit
        self.said, self.most, self.lacked, self.spare = "", 0, 0.0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop watching, and end what is left of the sandbox."""
        self._stop.set()
        self._thread.join()
        kill(self.bwrap)

    def _watch(self) -> None:
        slow, known, before = 0, {}, time.monotonic()
        while not self._stop.wait(EVERY_S):
            since = time.monotonic()
            held = in_use(self.bwrap, self.limit)
            self.most = max(self.most, held)
            known = self._count(known, since - before)
            before = since
            slow = slow + 1 if time.monotonic() - since > COUNT_S else 0
            if slow > 1:
                self.said = "It had more processes or open files than can be counted in time."
                kill(self.bwrap)
                return
            if held > self.limit:
                self.said = f"It held {held / 2**30:.1f} GiB of memory; {self.limit / 2**30:.1f} GiB are allowed."
                kill(self.bwrap)
                return

    def _count(self, known: dict[str, tuple[float, float]], took: float) -> dict[str, tuple[float, float]]:
        found = {thread: _used(thread) for pid in descendants(self.bwrap) for thread in threads(pid)}
        before = [known.get(one, (0.0, 0.0)) for one in found]
        more = [(now[0] - then[0], now[1] - then[1]) for now, then in zip(found.values(), before, strict=True)]
        ran, longest = sum(max(0.0, ran) for ran, _ in more), max((lacked for _, lacked in more), default=0.0)
        # the kernel tells of a wait when it is over, so part of it may lie before the last look
        spare = min(self.spare, WAIT_S) + max(0.0, took - ran)
        lacked = max(0.0, min(longest, spare))
        self.lacked, self.spare = self.lacked + lacked, spare - lacked
        return found


def kill(bwrap: int) -> None:
    """End process 1 of a sandbox, and with it all the others; return when they are gone."""
    until = time.monotonic() + 5.0
    while (first := children(bwrap)) and time.monotonic() < until:
        for pid in first:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if any(_state(pid) in "Zg" for pid in first):  # ended; its parent will collect it
            return
        time.sleep(0.005)


def in_use(bwrap: int, enough: int) -> int:
    """Bytes that a sandbox holds. The exact count is slow, so it is made only where the rough one exceeds `enough`.

    If the exact count times out, the rough one is used; it errs high.
    """
    until = time.monotonic() + COUNT_S
    pids = list(descendants(bwrap))
    files = _temporary(pids) + sum(_memory_files(pids, until).values())
    rough = sum(map(_resident, pids)) + files
    if rough <= enough:
        return rough
    exact = sum(map(_proportional, _in_time(pids, until))) + files
    return exact if time.monotonic() < until else rough


def _in_time(pids: list[int], until: float) -> Iterator[int]:
    return itertools.takewhile(lambda pid: time.monotonic() < until, pids)


def descendants(pid: int) -> Iterator[int]:
    waiting = children(pid)
    while waiting:
        child = waiting.pop()
        yield child
        waiting += children(child)


def children(pid: int) -> list[int]:
    """Each thread has children of its own."""
    found: list[int] = []
    for thread in _listed(f"/proc/{pid}/task"):
        found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else 0


def _proportional(pid: int) -> int:
    """Pages shared by n processes count 1/n each: a forked process costs only what it changed."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0 if _state(pid) in "Zg" else _resident(pid)


def threads(pid: int) -> list[str]:
    return [f"{pid}/task/{thread}" for thread in _listed(f"/proc/{pid}/task")]


def _used(thread: str) -> tuple[float, float]:
    """Seconds for which a thread had a processor, and for which it could have run and had none; 0 where it has ended,
    and where the kernel does not count them."""
    fields = _read(f"/proc/{thread}/schedstat").split()
    return (int(fields[0]) / 1e9, int(fields[1]) / 1e9) if len(fields) == 3 else (0.0, 0.0)


def _temporary(pids: list[int]) -> int:
    """What lies in the sandbox's own folders, also in files that have no name any more.

    While bubblewrap is setting up, its process still sees this machine's folders, which are none of the sandbox's. It
    moves its root meanwhile, so a path may lead to one folder and a moment later to another: each is opened once.
    """
    total = 0
    for folder in FOLDERS if pids else ():
        try:
            there = os.open(f"/proc/{pids[0]}/root/{folder}", os.O_PATH | os.O_DIRECTORY)
            try:
                own, held = os.fstat(there).st_dev != os.stat(f"/{folder}").st_dev, os.fstatvfs(there)
            finally:
                os.close(there)
        except OSError:
            continue
        if own:
            total += (held.f_blocks - held.f_bfree) * held.f_frsize + (held.f_files - held.f_ffree) * INODE_BYTES
    return total


def _memory_files(pids: list[int], until: float) -> dict[tuple[int, int], int]:
    """Sizes of files without a folder (memfd_create), each once."""
    sizes: dict[tuple[int, int], int] = {}
    for pid in _in_time(pids, until):
        for descriptor in _listed(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{descriptor}"
            try:
                if os.readlink(path).startswith("/memfd:"):
                    there = os.stat(path)
                    sizes[there.st_dev, there.st_ino] = there.st_blocks * 512
            except OSError:
                continue
    return sizes


def _state(pid: int) -> str:
    """One letter as in ps; Z has ended, g is gone."""
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1] or "g"


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> str:
    """A file of /proc; a process that has ended has none."""
    try:
        with open(path) as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""
