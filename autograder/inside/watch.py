"""Inside the sandbox: one call of the submission's function, watched. It reports what it saw and judges nothing.

torch's profiler records every operator that any thread of this process dispatches and, on a GPU, every kernel, copy
and fill that the device runs. Launches of Triton kernels are counted where Triton launches them. All of this happens
in the process of the student's code, which can forge it: so it can only take points away, never give any.
"""

from __future__ import annotations

import _thread
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton

from autograder.inside import calling

# The profiler's library writes to stderr at any lower level, and reads this when it first starts.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

CANARY = "aten::hypot"  # an operator that no lesson uses: dispatched on purpose, it must be seen
FUNCTION_SCOPE = 0  # of a recorded event: an operator, and not a range that the code itself has named
SHOWN = 200  # different names of a kind, or launches, that are reported
NAME = 200  # characters of a name
WAYS = 64  # to launch a kernel, which differ by types and constants, that are compiled

_start_thread, _lock = _thread.start_new_thread, _thread.allocate_lock  # as they are before any cell runs


def watched(function: Callable, args: Sequence[Any], beside: int = 0) -> tuple[calling.Answer, dict]:
    """The call's answer, and what was seen meanwhile, with so many workers of the referee beside this one:

    operators  name -> how often it was dispatched, in any thread
    kernels    name of a Triton kernel -> launches
    programs   [[name of the kernel, [grid]], ...], one entry a launch
    device     name -> how often the device ran it: kernels, copies and fills; empty without a GPU
    dropped    how many more names there were than are told of operators, kernels and device
    threads    Python threads left over; processes: other processes of this sandbox left over
    blind      why the profiler may have missed something, or ""
    """
    number = torch.ones(1)  # made here: importing this module must run no tensor operation
    recording = _Recording()
    with calling.counted_launches() as launches:
        recording.start()
        recording.canary(number)
        answer = calling.call(function, args)
        recording.canary(number)
        recording.canary(number, elsewhere=True)
        recording.stop()
    kernels, programs = _launched(launches)
    operators, on_device = recording.operators(), Counter()
    seen = {"operators": _bounded(operators), "kernels": _bounded(kernels), "programs": programs[:SHOWN]}
    seen |= {"device": {}, "threads": threads(), "processes": processes(beside), "blind": recording.blind}
    if _on_gpu():
        ran = recording.device_events()
        on_device.update(name for name, _ in ran)
        seen["device"] = _bounded(on_device)
        seen["programs"] = [[name[:NAME], grid] for name, grid in ran if name in kernels][:SHOWN]
        missed = [name for name, count in kernels.items() if seen["device"].get(name[:NAME], 0) < count]
        empty = any(isinstance(arg, torch.Tensor) and not arg.numel() for arg in args)
        if missed and not answer.error and not empty:  # a launch of no program is counted, and the device runs nothing
            seen["blind"] = seen["blind"] or f"launches of {missed[0]} that no device event belongs to"
    seen["dropped"] = sum(max(0, len(names) - SHOWN) for names in (operators, kernels, on_device))
    return answer, seen


class _Recording:
    """The profiler around a call; `blind` says what went wrong with it."""

    def __init__(self):
        self.blind, self._profile, self._canaries = "", None, 0

    def start(self) -> None:
        try:
            with calling.quiet():
                everything = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
                # not torch.profiler.profile: that imports the compiler first, which takes a second
                self._profile = torch.autograd.profiler.profile(
                    use_kineto=True,
                    use_device="cuda" if _on_gpu() else None,
                    experimental_config=everything,
                )
                self._profile.__enter__()
        except Exception as error:
            self._profile, self.blind = None, f"the profiler did not start: {calling.describe(error)}"

    def canary(self, number: torch.Tensor, elsewhere: bool = False) -> None:
        """One operator that must show up: in this thread, or in another one."""
        self._canaries += 1
        if not elsewhere:
            torch.hypot(number, number)
            return
        done = _lock()
        done.acquire()

        def dispatch():
            try:
                torch.hypot(number, number)
            finally:
                done.release()

        _start_thread(dispatch, ())
        done.acquire(timeout=5.0)

    def stop(self) -> None:
        if self._profile is None:
            return
        try:
            with calling.quiet():
                self._profile.__exit__(None, None, None)
                self._profile.kineto_results.events()
        except Exception as error:
            self._profile, self.blind = None, f"the profiler did not end: {calling.describe(error)}"

    def operators(self) -> Counter[str]:
        found: Counter[str] = Counter()
        if self._profile is not None:
            events = self._profile.kineto_results.events()
            host = [e for e in events if "CPU" in str(e.device_type()) and e.scope() == FUNCTION_SCOPE]
            found.update(e.name() for e in host if "::" in e.name())
            if found[CANARY] < self._canaries:
                self.blind = self.blind or "operators known to have run were not recorded"
            found[CANARY] -= self._canaries
        return +found

    def device_events(self) -> list[tuple[str, list[int]]]:
        """(name, grid) of everything that the device ran. The grid stands in the written trace only."""
        if self._profile is None:
            return []
        try:
            with tempfile.TemporaryDirectory() as folder, calling.quiet():
                path = os.path.join(folder, "trace.json")
                self._profile.export_chrome_trace(path)
                with open(path, encoding="utf-8", errors="replace") as file:
                    events = json.load(file)["traceEvents"]
            kinds = ("kernel", "gpu_memcpy", "gpu_memset")
            return [(e["name"], e.get("args", {}).get("grid", [])) for e in events if e.get("cat") in kinds]
        except Exception as error:
            self.blind = self.blind or f"the trace could not be read: {calling.describe(error)}"
            return []


def uncompiled() -> dict[str, list[str]]:
    """Of the kernels that Triton's interpreter ran: why the compiler does not take them, and which it could not say."""
    from course_lib.compiled import why_not_each
    from course_lib.interpreter.launch import signatures

    refused, unknown = [], []
    if len(signatures) > WAYS:
        unknown.append(f"kernels were launched in {len(signatures)} ways, with other types or constants")
    launches = list(signatures.values())[:WAYS]
    for (function, _, _), why in zip(launches, why_not_each(launches), strict=True):
        name = function.__name__[:NAME]
        if isinstance(why, Exception):
            unknown.append(f"{name}: {calling.describe(why)[:NAME]}")
        elif why:
            refused.append(f"{name}: {why}"[: 2 * NAME])
    return {"refused": refused, "unknown": unknown}


def _on_gpu() -> bool:
    return not triton.knobs.runtime.interpret and torch.cuda.is_available()


def _launched(launches: list) -> tuple[Counter, list]:
    """Names of the launched kernels, and their grids where the launch tells (in the interpreter)."""
    names: Counter[str] = Counter()
    programs = []
    for launch in launches:
        if isinstance(launch, tuple):
            name, grid = launch
            programs.append([name[:NAME], [int(size) for size in grid]])
        else:
            name = str(launch.get().get("name"))
        names[name] += 1
    return names, programs


def _bounded(counts: Counter) -> dict[str, int]:
    return {name[:NAME]: count for name, count in counts.most_common(SHOWN)}


def threads() -> int:
    """Other threads of this process that run Python, but for autograd's own."""
    own = 0
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as file:
                own += file.read().startswith("pt_autograd")
        except OSError:
            continue
    return max(0, len(sys._current_frames()) - 1 - own)


def processes(beside: int = 0) -> int:
    """Processes that this one has started, and daemons: their parent is process 1, the zygote.

    Our `beside` sibling workers are children of process 1 too, so they are subtracted. Each sibling reports its own
    children.
    """
    me, parents = os.getpid(), _parents()
    below = 0
    for pid in parents.keys() - {1, me}:
        while parents.get(pid, 1) not in (1, me):
            pid = parents[pid]
        below += parents.get(pid) == me
    daemons = sum(parent == 1 for pid, parent in parents.items() if pid != me)
    return below + max(0, daemons - beside)


def _parents() -> dict[int, int]:
    """Every process of this sandbox, with its parent."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", errors="replace") as file:
                found[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found
