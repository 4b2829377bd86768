"""A process that calls functions for us: what they hang, crash or change is its own."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch

TELLING_S = 0.5


class Apart:
    """Forked from this process, which has touched no GPU. After a function that raised it is of no more use."""

    _open: ClassVar[set[Apart]] = set()

    def __init__(self):
        context = multiprocessing.get_context("fork")
        self.pipe, there = context.Pipe()  # to wait on
        self._open.add(self)
        self._process = context.Process(target=_answering, args=(there,))
        self._process.start()
        there.close()

    def call(self, function: Callable, *args) -> None:
        self.pipe.send((function, args))

    def answer(self) -> tuple[bool, Any]:
        """Whether the function returned, and what; or why not."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            return False, f"the process ended with {self._process.exitcode}"

    def tell_where(self) -> None:
        """Have it write to stderr where each of its threads is, because it does not answer."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process.pid, signal.SIGUSR1)
            time.sleep(TELLING_S)

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()
        self._open.discard(self)


def _answering(pipe) -> None:
    # torch makes its pool of threads anew in a fork, when it is first asked: two threads that ask at once break it
    torch.set_num_threads(torch.get_num_threads())
    faulthandler.register(signal.SIGUSR1, file=2)
    for one in Apart._open:
        one.pipe.close()  # or none of them would ever see that nobody asks any more
    with contextlib.suppress(EOFError):
        while True:
            function, args = pipe.recv()
            try:
                pipe.send((True, function(*args)))
            except BaseException as error:
                pipe.send((False, f"{type(error).__name__}: {error}"))
                break
    os._exit(0)
