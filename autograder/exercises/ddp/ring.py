"""ddp.ring: an all-reduce from sends and receives between two ranks.

    ring_all_reduce(buffer)

Every rank of the group calls it with a tensor of one dimension, of the same length and type everywhere. Afterwards
each holds the sum over all ranks, in the same memory, and bit for bit the same. `torch.distributed` is there, with 2 to
4 ranks; of it only what goes from one rank to another may be used: send, recv, isend, irecv, batch_isend_irecv.

A rank sends at most 2 (N - 1) messages, and at most 2 (N - 1) / N of the buffer, rounded up to whole numbers: twice
everything but one of N parts. Any length may come, also one that N does not divide, and one below N.

Right means: each sum within the roundings of N - 1 additions of its true value, nothing changed while it is sent, and
every send and receive waited for; and what is summed has come over the network.
"""

from __future__ import annotations

import math

import torch

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.ddp.ring_mistakes import FEW, MISTAKES
from autograder.judging.ranks import (
    collectives,
    first_off,
    form_of,
    reports_of,
    same_bits,
    sent,
    too_little_or_too_much,
)

ROUNDING = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}


def _call(d: Draw, ranks: int, length: int, dtype: torch.dtype = torch.float32) -> Call:
    shards = [d.normal(length, dtype=dtype) for _ in range(ranks)]
    return Call({"shards": shards}, f"{ranks} ranks, {length} numbers")


def _not_divisible(d: Draw, ranks: int, low: int, high: int) -> int:
    return ranks * d.integer(low, high) + d.integer(1, ranks - 1)


CASES = (
    Case("two ranks", lambda d: _call(d, 2, 2 * d.integer(10, 40))),
    Case("three ranks", lambda d: _call(d, 3, 3 * d.integer(10, 40))),
    Case("three ranks, not divisible", lambda d: _call(d, 3, _not_divisible(d, 3, 10, 40))),
    Case("four ranks", lambda d: _call(d, 4, 4 * d.integer(10, 40))),
    Case("four ranks, not divisible", lambda d: _call(d, 4, _not_divisible(d, 4, 10, 40))),
    Case(FEW, lambda d: _call(d, 4, d.integer(1, 3))),
    Case("double precision", lambda d: _call(d, 2, d.integer(20, 60), torch.float64)),
    Case("a megabyte", lambda d: _call(d, 3, 3 * d.integer(80_000, 90_000) + 1)),
)


def oracle(args) -> dict:
    shards = [shard.to(torch.float64) for shard in args["shards"]]
    return {"ranks": {"sums": [sum(shards)] * len(shards), "right": True}}


def accept(got, want, args) -> str | None:
    """What is wrong; of a known wrong answer (`right` is False) only whether these are its numbers."""
    shards, ranks = args["shards"], len(args["shards"])
    wrong = reports_of(got, ranks)
    if wrong:
        return wrong
    buffers = [report["value"] for report in got]
    size = sum(shard.to(torch.float64).abs() for shard in shards)
    # a partial sum is at most `size`, so each addition rounds by at most this; wrong answers may add up more
    limit = ROUNDING[shards[0].dtype] * size * (1.01 * (ranks - 1) if want["right"] else 32)
    for rank, (buffer, sums) in enumerate(zip(buffers, want["sums"], strict=True)):
        wrong = form_of(buffer, sums, "the buffer", rank)
        if wrong:
            return wrong
        at = first_off(buffer, sums, limit)
        if at is not None:
            return f"on rank {rank} the number at {at} of 0 to {len(sums) - 1} is not the sum"
    return _how(got, buffers, shards) if want["right"] else None


def _how(got, buffers, shards) -> str | None:
    ranks, length = len(shards), len(shards[0])
    other = same_bits(buffers)
    if other is not None:
        return f"the sums of rank {other} differ from those of rank 0 in their last bits"
    for rank, report in enumerate(got):
        used = collectives(report)
        if used:
            return f"rank {rank} used {used[0]}: this exercise asks for sends and receives"
        if report["traffic"]["notes"]:
            return f"rank {rank}: {report['traffic']['notes'][0]}"
    most, most_bytes = limits(ranks, length, shards[0].element_size())
    for rank, report in enumerate(got):
        messages, nbytes = sent(report)
        if nbytes > most_bytes:
            return f"rank {rank} sent {nbytes} bytes; {most_bytes} are enough"
        if messages > most:
            return f"rank {rank} sent {messages} messages; {most} are enough"
    return too_little_or_too_much(got, 2 * (ranks - 1) * shards[0].nbytes)


def limits(ranks: int, length: int, size: int) -> tuple[int, int]:
    """Messages and bytes that one rank may send."""
    steps = 2 * (ranks - 1)
    return steps, steps * math.ceil(length / ranks) * size


RING = Exercise(
    name="ddp.ring",
    entry="ring_all_reduce",
    points=5,
    about="a ring in which each rank sends 2 (N - 1) / N of the buffer",
    point=("three ranks", "four ranks"),
    kind="distributed",
    cases=CASES,
    oracle=oracle,
    mistakes=MISTAKES,
    returns=("ranks",),
    accept=accept,
    probe="autograder.inside.probes.reducing:in_place",
    launches=False,
)
