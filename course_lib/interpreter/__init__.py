"""Makes Triton's interpreter safe to learn with: an answer is what a GPU would give, or it is refused.

Triton runs kernels on the CPU when TRITON_INTERPRET=1, one program after another, in numpy. Without patches
it is silently wrong in places: bf16 arithmetic works on bit patterns, fp32 -> bf16 truncates, float arguments
promote like Python numbers, minima keep NaN, `if` on a block is always true. Each patch below mends one of
these. The patches replace private parts of Triton. Each part is looked up by name, and if a version of Triton
does not have it, the error names the part and the version.
"""

import linecache
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

__all__ = ["Cause", "cause", "install", "launches", "launches_go_to"]

_installed = False


def install() -> None:
    """Install the patches; calling it again changes nothing. Needs TRITON_INTERPRET=1 at import of triton."""
    global _installed
    if not _installed:
        # Imported here because these import Triton, which must not happen before the tier is chosen.
        from course_lib.interpreter import language, launch, names, operations, shapes

        shapes.install()
        operations.install()
        language.install()
        launch.install()
        names.install()
        _installed = True


@contextmanager
def launches() -> Iterator[list[tuple[str, tuple[int, int, int]]]]:
    """Collect (kernel name, grid) of every interpreted launch inside the block."""
    from course_lib.interpreter.launch import listeners

    seen: list[tuple[str, tuple[int, int, int]]] = []
    listeners.append(seen)
    try:
        yield seen
    finally:
        # by identity: two listeners that saw the same launches are equal
        listeners[:] = [one for one in listeners if one is not seen]


@contextmanager
def launches_go_to(tell: Callable) -> Iterator[None]:
    """Inside the block a launch is not run: tell(function, grid, args, kwargs) is called in its place."""
    from course_lib.interpreter.launch import recorders

    recorders.append(tell)
    try:
        yield
    finally:
        recorders.pop()


@dataclass(frozen=True)
class Cause:
    """Why a kernel stopped: the error itself and the line of the kernel it came from."""

    error: BaseException
    file: str | None
    line: int | None
    source: str  # the text of that line
    program: tuple[int, int, int] | None  # which program of the grid was running

    def __str__(self) -> str:
        message = f"{type(self.error).__name__}: {self.error}"
        where = f"\n  line {self.line} of {self.file}: {self.source}" if self.line else ""
        program = f"\n  in program {self.program}" if self.program else ""
        return message + where + program


def cause(exc: BaseException) -> Cause:
    """The error behind Triton's InterpreterError (whose message is only a repr), with the line of the kernel."""
    error, program = exc, getattr(exc, "program", None)
    frames = traceback.extract_tb(error.__traceback__)
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
        frames += traceback.extract_tb(error.__traceback__)
    outside = ("/triton/", "/numpy/", "/course_lib/interpreter/")
    own = [frame for frame in frames if not any(part in frame.filename for part in outside)]
    if not own:
        return Cause(error, None, None, "", program)
    last = own[-1]
    source = linecache.getline(last.filename, last.lineno).strip()
    return Cause(error, last.filename, last.lineno, source, program)
