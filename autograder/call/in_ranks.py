"""One call of a submission's function on several ranks, in processes of this machine, and what each of them reported.

A rank that raises, ends or is late is an outcome: course_lib.distributed ends them all within the limit.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle

from autograder.exercise import Call, Exercise
from autograder.inside.probes.network import reported
from autograder.judging.outcome import LOST, Outcome
from course_lib.distributed import RankFailed, launch
from course_lib.distributed.launching import chosen
from course_lib.distributed.server import SERVER
from course_lib.distributed.stacks import LIBRARIES

# `check` always uses gloo, so verdicts agree on every machine. `bank --nccl` sets "auto": NCCL where there are enough
# GPUs.
BACKEND = "gloo"
SHARING = {"nccl"}  # backends with which calls on equally many ranks share their processes
# For one case, which takes 0.2 s. The ranks of a loaded machine need a second or two to meet. With NCCL each rank opens
# its GPU first, which takes seconds even on an idle machine.
LIMIT_S = {"gloo": 10.0, "nccl": 40.0}
FRAME = re.compile(r'^  File "(.*)", line \d+, in .*\n    (.*)$', re.MULTILINE)


def prepare() -> None:
    """Start the process that starts ranks, so that forked children of this one find it running."""
    SERVER.connect().close()


@contextlib.contextmanager
def sharing(*backends: str) -> Iterator[None]:
    more = set(backends) - SHARING
    SHARING.update(more)
    try:
        yield
    finally:
        SHARING.difference_update(more)


def attempts(exercise: Exercise, calls: Sequence[Call], function: Callable) -> Iterator[Outcome]:
    """An outcome a call, in order.

    It takes a while until ranks have met, seconds with NCCL, so calls on equally many ranks may share their processes.
    When one of these calls fails, each is made again in processes of its own, to tell which one it was.
    """
    known: dict[int, Outcome] = {}
    met: set[int] = set()
    for number, call in enumerate(calls):
        size = len(call.args["shards"])
        if size not in met and chosen(BACKEND, size) in SHARING:
            met.add(size)
            alike = [n for n, other in enumerate(calls) if len(other.args["shards"]) == size]
            known |= zip(alike, _in_turn(exercise, [calls[n] for n in alike], function))
        yield known.get(number) or attempt(exercise, call, function)


def _in_turn(exercise: Exercise, calls: Sequence[Call], function: Callable) -> list[Outcome]:
    """All outcomes. None where a rank failed, or began more collectives than another: the next call would meet them."""
    since, size = time.perf_counter(), len(calls[0].args["shards"])
    given = [_shared_out(call) for call in calls]
    try:
        args = (exercise.probe, cloudpickle.dumps(function), given)
        limit_s = LIMIT_S[chosen(BACKEND, size)] + len(calls)
        told = list(zip(*launch(called_in_turn, size, BACKEND, args=args, limit_s=limit_s), strict=True))
    except Exception:
        return []
    if any(len({len(one["traffic"]["collectives"]) for one in reports}) > 1 for reports in told):
        return []
    seconds = (time.perf_counter() - since) / len(calls)
    return [Outcome(outputs={"ranks": list(reports)}, seconds=seconds) for reports in told]


def _shared_out(call: Call) -> tuple[list, dict]:
    """`shards` has one entry a rank and is not passed on; everything else every rank is given."""
    return call.args["shards"], {name: value for name, value in call.args.items() if name != "shards"}


def attempt(exercise: Exercise, call: Call, function: Callable) -> Outcome:
    shards, common = _shared_out(call)
    since = time.perf_counter()
    try:
        packed = cloudpickle.dumps(function)
        limit_s, args = LIMIT_S[chosen(BACKEND, len(shards))], (exercise.probe, packed, shards, common)
        reports = launch(called, len(shards), BACKEND, args=args, limit_s=limit_s)
    except RankFailed as failure:
        return Outcome(error=_told(failure, len(shards)), seconds=time.perf_counter() - since)
    except Exception as error:  # it cannot travel: it holds a lock, a file, a module of its own
        return Outcome(error=f"{type(error).__name__}: {error}"[:600])
    return Outcome(outputs={"ranks": reports}, seconds=time.perf_counter() - since)


def called(rank: int, probe: str, packed: bytes, shards: Sequence[Any], common: dict[str, Any]) -> dict[str, Any]:
    """In a rank: the probe with the function and this rank's shard."""
    module, _, name = probe.partition(":")
    run = getattr(importlib.import_module(module), name)
    # loaded under watch: what it imported from torch.distributed is then what is watched
    return reported(run, lambda: cloudpickle.loads(packed), shards[rank], common)


def called_in_turn(rank: int, probe: str, packed: bytes, given: Sequence[tuple[Sequence[Any], dict]]) -> list:
    """In a rank: several calls, each with the function as it came."""
    return [called(rank, probe, packed, shards, common) for shards, common in given]


def _told(failure: RankFailed, ranks: int) -> str:
    line = _line(failure.details)
    at = f", at {line[:120]}" if line else ""
    if failure.raised:
        return f"{failure.raised[:400]} (rank {failure.rank} of {ranks}{at})"
    first, *others = failure.says.splitlines()
    return f"{LOST}: " + "\n".join([first + at, *others])[:600]


def _line(stack: str) -> str:
    """The innermost line that is not a library's, or else the innermost one."""
    frames = FRAME.findall(stack)
    own = [line for file, line in frames if not any(place in file for place in LIBRARIES)]
    return (own or [line for _, line in frames] or [""])[-1].strip()
