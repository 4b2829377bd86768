"""Running the cells of a submission one after the other, as a notebook would, in a fresh `__main__`."""

from __future__ import annotations

import asyncio
import inspect
import io
import linecache
import signal
import sys
import traceback
import types
from collections.abc import Container, Iterable
from functools import partial
from typing import Any

from autograder.inside import calling
from autograder.inside.compiling import KEPT, in_statements, whole
from autograder.inside.own_time import OVERDUE, OwnTime, lacked_here

AGAIN_S = 0.2  # until a cell that caught the end of its time is stopped again


class TimeOver(KeyboardInterrupt):
    """Like an interrupt in a notebook, it passes `except Exception` and an event loop."""


class _Nothing:
    """Answers every magic of a notebook with nothing."""

    def __getattr__(self, name):
        return lambda *args, **options: None


def run_cells(
    cells: Iterable[tuple[str, str]], seconds: float, settled: str = "", apart: bool = False
) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    """The names that the cells leave behind, and of each cell that raised its name, the error and the line: that of
    the cell `settled` first, and those above it before those below.

    cells: name and source of each. Each may use a third of the seconds that are left, so that one endless loop is not
    the end. settled: the cell after which names keep their values: what later cells bind again counts only while these
    run, and what they bind for the first time stays. apart: where something is hidden, a statement that needs it costs
    the cell that statement and not what comes after it.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.get_ipython = _Nothing
    module.display = lambda *args, **options: None
    cells, troubles, kept, left, future, runner = [*cells], [], {}, seconds, 0, asyncio.Runner()
    last = next((number for number, (name, _) in enumerate(cells) if name == settled), len(cells))
    paths, loop = {f"<{name}>" for name, _ in cells}, runner.get_loop()
    for number, (name, source) in enumerate(cells):
        path = f"<{name}>"
        linecache.cache[path] = (len(source), None, lines_of(source), path)
        own = OwnTime(max(0.1, left) / 3, lacked_here)
        with calling.quiet():
            try:
                signal.signal(signal.SIGALRM, partial(_overdue, own, paths))
                signal.setitimer(signal.ITIMER_REAL, own.left())
                parts = in_statements(source, path, future) if apart else [whole(source, path, future)]
                if any(part.co_flags & KEPT for part in parts):
                    future = KEPT
                for part in parts:
                    try:
                        awaited = _evaluated(part, module.__dict__, loop)
                        if part.co_flags & inspect.CO_COROUTINE:
                            runner.run(awaited)
                    except (ImportError, AttributeError, NameError) as error:
                        if not apart:
                            raise
                        troubles.append((_how_far(number, last, passed_over=True), _trouble(name, error)))
                if asyncio.all_tasks(loop):
                    runner.run(asyncio.sleep(0))  # tasks that the cell made begin
                _let_go()
            except BaseException as error:  # `exit()` in a cell ends that cell only
                _let_go()
                troubles.append((_how_far(number, last), _trouble(name, error)))
        left -= own.charged
        if name == settled:
            kept = dict(module.__dict__)
    _let_go()  # an alarm that rang while a cell ended may have set another
    module.__dict__.update(kept)
    return module.__dict__, [trouble for _, trouble in sorted(troubles, key=lambda one: one[0])]


def _how_far(number: int, last: int, passed_over: bool = False) -> tuple:
    """Of what went wrong in a cell, the least is told first: few are told, and it may be why a name is not there. Where
    something is hidden, every statement that needs it is passed over, and says little beside what ended a cell."""
    return number > last, number != last, passed_over, -number


def lines_of(source: str) -> list[str]:
    """The lines as Python counts them: str.splitlines() ends one at a form feed too, or at U+2028."""
    return io.StringIO(source, newline=None).readlines()


def _trouble(name: str, error: BaseException) -> tuple[str, str, str]:
    return name, calling.describe(error), calling.where(error) or ""


def _evaluated(part: types.CodeType, names: dict[str, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """What the code comes to. A notebook's loop runs while a cell does, so `asyncio.create_task` finds one."""
    asyncio._set_running_loop(loop)
    try:
        return eval(part, names)
    finally:
        asyncio._set_running_loop(None)


def _overdue(own: OwnTime, paths: Container[str], _: int, frame: types.FrameType | None) -> None:
    if left := own.left():
        signal.setitimer(signal.ITIMER_REAL, left)
        return
    signal.signal(signal.SIGALRM, lambda _, at: _stop(at, paths))
    _stop(frame, paths)
    raise TimeOver(OVERDUE) from None  # it tells of itself, not of what was being handled


def _let_go() -> None:
    sys.settrace(None)
    signal.setitimer(signal.ITIMER_REAL, 0)


def _stop(frame: types.FrameType | None, paths: Container[str]) -> None:
    """Raise in a cell, and at the next line that a cell runs: there, a bare `except:` around the first does not hold.

    Where nothing of a cell runs now, it has ended, or waits in its loop.
    """

    def trace(at: types.FrameType, event: str, _: Any):
        if event == "line":  # Python then takes the trace away
            raise TimeOver(OVERDUE) from None
        return trace if at.f_code.co_filename in paths else None

    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    frames = [one for one, _ in traceback.walk_stack(frame) if one.f_code.co_filename in paths]
    for one in frames:
        one.f_trace = trace
    if frames:
        sys.settrace(trace)
        raise TimeOver(OVERDUE) from None
