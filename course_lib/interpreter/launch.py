"""Patches of a launch: its grid, its options, the record of launches, its errors."""

import gc
import inspect
from collections.abc import Callable
from functools import wraps
from types import CodeType

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as triton_interpreter

from course_lib.interpreter import bounds
from course_lib.interpreter.patching import part, replace
from course_lib.interpreter.signature import signature_of

__all__ = ["MAX_GRID_YZ", "install", "is_running", "listeners", "recorders", "signatures"]

# Launch options of compiled kernels: allowed here and without effect.
LAUNCH_OPTIONS = set(
    """num_warps num_stages num_ctas maxnreg launch_cooperative_grid launch_pdl waves_per_eu enable_fp_fusion
    debug sanitize_overflow warmup ptx_options ir_override noinline""".split()
)
MAX_GRID_YZ = 65535  # CUDA's limit on the second and third axis of a grid

# One list for each open course_lib.interpreter.launches().
listeners: list[list[tuple[str, tuple[int, int, int]]]] = []
# What takes a launch in place of running it, the last one: (function as it was written, grid, args, kwargs).
recorders: list[Callable] = []
# Launches that somebody listened to: (code of a kernel, types and constants as text) -> its function, types, constants
signatures: dict[tuple[CodeType, str], tuple[Callable, dict, dict]] = {}
_depth = 0  # launches and device functions that are running now


def is_running() -> bool:
    """Whether a kernel runs now: operators of torch are then the interpreter's own."""
    return _depth > 0


def install() -> None:
    executor = part(triton_interpreter, "GridExecutor")
    replace(executor, "__init__", _executor)
    replace(executor, "__call__", _launch)
    for name in ("_init_args_hst", "_restore_args_dev"):
        replace(executor, name, _let_go)
    replace(part(triton_interpreter, "InterpretedFunction"), "__call__", _device_call)


def _executor(original):
    """Constants are those that a compiler takes for such. Triton reads annotations as text here, and knows two: so
    `triton.language.constexpr`, or a quoted one, was a number."""

    @wraps(original)
    def init(self, fn, arg_names, *args, **kwargs):
        original(self, fn, arg_names, *args, **kwargs)
        self.constexprs = [name for name in arg_names if "constexpr" in str(fn.__annotations__.get(name, ""))]

    return init


def _launch(original):
    @wraps(original)
    def launch(self, *args, **kwargs):
        global _depth
        names = inspect.getfullargspec(self.fn).args
        unknown = sorted(set(kwargs) - set(names) - LAUNCH_OPTIONS)
        if unknown:
            raise TypeError(f"{self.fn.__name__} has no argument {unknown[0]!r}; it has {', '.join(names)}")
        self.grid = _plain_grid(self, names, args, kwargs)
        for seen in listeners:
            seen.append((self.fn.__name__, self.grid))
        if listeners:
            named = {key: value for key, value in (*zip(names, args), *kwargs.items()) if key in names}
            types, constants = signature_of(self.fn, named)
            signatures[self.fn.__code__, repr((types, constants))] = self.fn, types, constants
        if recorders:
            for hook in self.pre_run_hooks:
                hook(*args, **kwargs)
            inspect.getcallargs(self.fn, *args, **{name: value for name, value in kwargs.items() if name in names})
            return recorders[-1](inspect.unwrap(self.fn), self.grid, args, kwargs)
        _depth += 1
        try:
            # A GPU computes inf - inf and 1 / 0 without a word.
            with np.errstate(all="ignore"), bounds.only([*zip(names, args), *kwargs.items()]):
                return original(self, *args, **kwargs)
        except Exception as error:
            error.program = getattr(triton_interpreter.interpreter_builder, "grid_idx", None)
            raise
        finally:
            _depth -= 1

    return launch


def _plain_grid(executor, names, args, kwargs) -> tuple[int, int, int]:
    """The grid as three integers; a grid function gets plain arguments, as on a GPU, and not blocks."""
    grid = executor.grid
    if callable(grid):
        named = {name: value for name, value in kwargs.items() if name in names}
        grid = grid(inspect.getcallargs(executor.fn, *args, **named))
    if not isinstance(grid, tuple | list):
        raise TypeError(f"a grid is a tuple such as (4,), with its comma; got {grid!r}")
    grid = tuple(int(size) for size in grid)
    grid += (1,) * (3 - len(grid))
    if max(grid[1:]) > MAX_GRID_YZ:
        raise ValueError(
            f"grid {grid}: CUDA allows {MAX_GRID_YZ} programs along its second and third axis; put the long axis first"
        )
    return grid


def _let_go(original):
    """What these leave is in a circle, a function that calls itself, and would hold the memory of every argument until
    Python looks for circles the next time."""

    @wraps(original)
    def call(self, *args):
        try:
            return original(self, *args)
        finally:
            gc.collect(1)

    return call


def _device_call(original):
    part(triton_interpreter.InterpretedFunction, "rewrite")
    modules = {id(module): module for module in (tl, part(tl, "core"))}
    is_builtin = part(tl.core, "is_builtin")

    @wraps(original)
    def call(self, *args, **kwargs):
        # Triton patches its whole language again for every call of tl.sum or of a helper, which takes a
        # millisecond and changes nothing once the launch has patched what this function sees.
        seen = modules.keys() & map(id, self.fn.__globals__.values())
        if _depth == 0 or any(is_builtin(modules[one].arange) for one in seen):
            return original(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    return call
