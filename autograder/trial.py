"""One call of a submission's function on fenced buffers, and what it left behind."""

from __future__ import annotations

import contextlib
import copy
import io
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton

from autograder.buffers import fence
from autograder.exercise import Call, Exercise
from autograder.judging.outcome import NOT_WRITTEN, Outcome

NOT_THEIRS = (str(Path(__file__).parent), "/site-packages/", "/lib/python3")  # frames of libraries and of ours


@contextlib.contextmanager
def counted_launches() -> Iterator[list]:
    """The Triton launches inside the block, on either tier."""
    seen: list = []
    if triton.knobs.runtime.interpret:
        from course_lib import interpreter

        with interpreter.launches() as seen:
            yield seen
        return

    def note(metadata):
        seen.append(metadata)

    hooks = triton.knobs.runtime.launch_enter_hook
    hooks.add(note)
    try:
        yield seen
    finally:
        hooks.remove(note)


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    """Keep warnings and stderr out of the cell: one line there would make stock nbgrader give zero."""
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()) as text:
        warnings.simplefilter("ignore")
        yield text


def attempt(exercise: Exercise, call: Call, function: Callable) -> Outcome:
    """Call `function` once and look at everything it touched."""
    fenced = {
        name: fence(value, name in exercise.writes)
        for name, value in call.args.items()
        if isinstance(value, torch.Tensor)
    }
    args = [fenced[name].view if name in fenced else _own_copy(value) for name, value in call.args.items()]
    start = time.perf_counter()
    with quiet(), counted_launches() as launches:
        try:
            value = function(*args)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            outputs = _outputs(exercise, value, fenced)
        except Exception as error:
            return Outcome(error=_describe(error), where=_where(error), seconds=time.perf_counter() - start)
    return Outcome(
        outputs=outputs,
        damage={name: d for name, f in fenced.items() if (d := f.damage()).total},
        changed={name: n for name, f in fenced.items() if (n := f.changed())},
        unwritten={name: n for name, f in fenced.items() if (n := f.unwritten())},
        launches=len(launches),
        seconds=time.perf_counter() - start,
    )


def _own_copy(value: Any) -> Any:
    """Plain data is copied, so that a submission cannot change what the oracle sees; served objects are not."""
    return copy.deepcopy(value) if isinstance(value, (list, dict, tuple)) else value


def _outputs(exercise: Exercise, value: Any, fenced: dict) -> dict[str, Any]:
    outputs = {name: fenced[name].view for name in exercise.writes}
    if len(exercise.returns) == 1:
        outputs[exercise.returns[0]] = value
    elif exercise.returns:
        if not isinstance(value, (tuple, list)) or len(value) != len(exercise.returns):
            wanted = f"{len(exercise.returns)} values ({', '.join(exercise.returns)})"
            raise TypeError(f"{exercise.entry} should return {wanted}, not {value!r:.80}")
        outputs.update(zip(exercise.returns, value, strict=True))
    return outputs


def _root(error: BaseException) -> BaseException:
    """The first cause: Triton wraps what went wrong inside a kernel in its own exception."""
    while (inner := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = inner
    return error


def _describe(error: Exception) -> str:
    chain = [error, _root(error)]
    known = next((e for e in chain if NOT_WRITTEN in str(e)), None)
    shown = known or _root(error)
    return f"{type(shown).__name__}: {str(shown).strip() or 'no message'}"[:600]


def _where(error: Exception) -> str | None:
    """The innermost line that belongs to the submission rather than to a library."""
    frames = [f for e in (error, _root(error)) for f in traceback.extract_tb(e.__traceback__)]
    own = [f for f in frames if f.line and not any(place in f.filename for place in NOT_THEIRS)]
    return f"line {own[-1].lineno}: {own[-1].line}" if own else None
