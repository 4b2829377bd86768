"""The memory that operators make while a function runs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.inside.calling import trials
from course_lib.interpreter.launch import is_running


class InPassing(TorchDispatchMode):
    """Notes the most bytes that are alive at one time of those that operators make inside, an autotuner's trials aside.

    Where these are more than is granted, what only cycles of Python still hold is collected first: frames of Triton's
    interpreter hold matrices that an answer has let go.
    """

    def __init__(self, granted: int):
        super().__init__()
        self.granted, self.most, self.alive = granted, 0, {}

    def __enter__(self):
        self.little = contextlib.ExitStack()
        self.little.enter_context(collecting_little())
        self.trial = self.little.enter_context(trials([]))
        return super().__enter__()

    def __exit__(self, *ended):
        super().__exit__(*ended)
        self.little.close()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {t.untyped_storage()._cdata for t in (*args, *(kwargs or {}).values()) if isinstance(t, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        if is_running() or self.trial:
            return made
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor) and (at := one.untyped_storage())._cdata not in given:
                self.alive[at._cdata] = StorageWeakRef(at), at.nbytes()
        if self._now() > max(self.granted, self.most):
            gc.collect()
        self.most = max(self.most, self._now())
        return made

    def _now(self) -> int:
        self.alive = {key: (at, size) for key, (at, size) in self.alive.items() if not at.expired()}
        return sum(size for _, size in self.alive.values())


@contextlib.contextmanager
def collecting_little() -> Iterator[None]:
    """What was there before is not looked through when cycles are collected, which takes some tenths of a second."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
