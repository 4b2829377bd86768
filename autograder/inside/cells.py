"""Running the cells of a submission one after the other, as a notebook would, in a fresh `__main__`."""

from __future__ import annotations

import ast
import asyncio
import inspect
import io
import linecache
import signal
import sys
import types
from collections.abc import Iterable
from functools import partial
from typing import Any

from autograder.inside import calling
from autograder.inside.own_time import OVERDUE, OwnTime, lacked_here

KEPT = annotations.compiler_flag  # what a notebook keeps of `from __future__ import annotations` for all later cells


class TimeOver(KeyboardInterrupt):
    """Like an interrupt in a notebook, it passes `except Exception` and an event loop."""


class _Nothing:
    """Answers every magic of a notebook with nothing."""

    def __getattr__(self, name):
        return lambda *args, **options: None


def run_cells(
    cells: Iterable[tuple[str, str]], seconds: float, settled: str = "", apart: bool = False
) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    """The names that the cells leave behind, and for each cell that raised: its name, the error, the line.

    cells: name and source of each. Each may use a third of the seconds that are left, so that one endless loop is not
    the end. settled: the cell after which names keep their values: what later cells bind again counts only while these
    run, and what they bind for the first time stays. apart: where something is hidden, a statement that needs it costs
    the cell that statement and not what comes after it.
    """
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    module.get_ipython = _Nothing
    module.display = lambda *args, **options: None
    troubles, kept, left, future, runner = [], {}, seconds, 0, asyncio.Runner()
    for name, source in cells:
        path = f"<{name}>"
        linecache.cache[path] = (len(source), None, lines_of(source), path)
        own = OwnTime(max(0.1, left) / 3, lacked_here)
        with calling.quiet():
            try:
                signal.signal(signal.SIGALRM, partial(_overdue, own))
                signal.setitimer(signal.ITIMER_REAL, own.left())
                parts = _statements(source, path, future) if apart else [_compiled(source, path, future)]
                if any(part.co_flags & KEPT for part in parts):
                    future = KEPT
                for part in parts:
                    try:
                        awaited = eval(part, module.__dict__)
                        if part.co_flags & inspect.CO_COROUTINE:
                            runner.run(awaited)
                    except (ImportError, AttributeError, NameError) as error:
                        if not apart:
                            raise
                        troubles.append(_trouble(name, error))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except BaseException as error:  # `exit()` in a cell ends that cell only
                signal.setitimer(signal.ITIMER_REAL, 0)
                troubles.append(_trouble(name, error))
        left -= own.charged
        if name == settled:
            kept = dict(module.__dict__)
    signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm that rang while a cell ended may have set another
    module.__dict__.update(kept)
    return module.__dict__, troubles


def lines_of(source: str) -> list[str]:
    """The lines as Python counts them: str.splitlines() ends one at a form feed too, or at U+2028."""
    return io.StringIO(source, newline=None).readlines()


def _compiled(source: str | ast.Module, path: str, future: int) -> types.CodeType:
    return compile(source, path, "exec", future | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def _statements(source: str, path: str, future: int) -> list[types.CodeType]:
    """Each statement of a cell by itself, under what the cell imports from __future__."""
    body = ast.parse(source, path).body
    imported = [one for one in body if isinstance(one, ast.ImportFrom) and one.module == "__future__"]
    return [_compiled(ast.Module([*imported, one], []), path, future) for one in body if one not in imported]


def _trouble(name: str, error: BaseException) -> tuple[str, str, str]:
    return name, calling.describe(error), calling.where(error) or ""


def _overdue(own: OwnTime, *_) -> None:
    if not (left := own.left()):
        raise TimeOver(OVERDUE) from None  # it tells of itself, not of what was being handled
    signal.setitimer(signal.ITIMER_REAL, left)
