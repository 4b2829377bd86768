"""What people get wrong in a ring: as a ring of lists with one thing changed, or by how it ended."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import torch

from autograder.exercise import Mistake, Values
from autograder.inside.probes.network import CHANGED, NOT_WAITED

FEW = "fewer numbers than ranks"  # a case
Cut = Callable[[int, int], list[slice]]

# -------------------------------------------------------------------------------------------- a ring of lists


def _from_sizes(sizes: list[int]) -> list[slice]:
    ends = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


def even(length: int, ranks: int) -> list[slice]:
    """As tensor_split: sizes differ by at most one, the larger first."""
    return _from_sizes([length // ranks + (i < length % ranks) for i in range(ranks)])


def rest_last(length: int, ranks: int) -> list[slice]:
    return _from_sizes([length // ranks] * (ranks - 1) + [length - length // ranks * (ranks - 1)])


def rounded_up(length: int, ranks: int) -> list[slice]:
    size = -(-length // ranks)
    return [slice(min(i * size, length), min((i + 1) * size, length)) for i in range(ranks)]


CUTS = (even, rest_last, rounded_up)


def ring(
    shards: list[torch.Tensor],
    cut: Cut = even,
    reduce_steps: int | None = None,
    gather_steps: int | None = None,
    owner: int = 1,
    adds: tuple[bool, bool] = (True, False),
) -> list[torch.Tensor]:
    """What every rank holds after a ring in which each sends to the next one.

    owner: after the first half rank r has part (r + owner) whole, so the second begins with that; 1 is right.
    adds: whether what comes is added, in either half.
    """
    held, ranks = [shard.to(torch.float64).clone() for shard in shards], len(shards)
    parts = cut(len(held[0]), ranks)
    halves = (
        (ranks - 1 if reduce_steps is None else reduce_steps, 0),
        (ranks - 1 if gather_steps is None else gather_steps, owner),
    )
    for (steps, begin), add in zip(halves, adds, strict=True):
        for step in range(steps):
            moving = [held[rank][parts[(rank + begin - step) % ranks]].clone() for rank in range(ranks)]
            for rank in range(ranks):
                place = held[rank][parts[(rank - 1 + begin - step) % ranks]]
                came = moving[(rank - 1) % ranks]
                place.copy_(place + came if add else came)
    return held


def _answer(make: Callable[..., list[torch.Tensor]]) -> Callable[..., Values]:
    def answer(args: Values, *variant) -> Values:
        return {"ranks": {"sums": make(args["shards"], *variant), "right": False}}

    return answer


def _mean(shards):
    return [sum(shard.double() for shard in shards) / len(shards)] * len(shards)


def _tail_lost(shards):
    """Only what N parts of equal size cover."""
    total = sum(shard.double() for shard in shards)
    covered = len(total) // len(shards) * len(shards)
    return [torch.cat([total[:covered], shard.double()[covered:]]) for shard in shards]


def _one_round(shards):
    """The buffer of the rank before, added once."""
    return [shard.double() + shards[rank - 1].double() for rank, shard in enumerate(shards)]


def _short(shards, cut: Cut, half: int) -> list[torch.Tensor]:
    steps = len(shards) - 2
    return ring(shards, cut, **({"reduce_steps": steps} if half == 0 else {"gather_steps": steps}))


# -------------------------------------------------------------------------------------------- how it ended


def _reports(t) -> list[dict]:
    found = t.outcome.outputs.get("ranks")
    return found if isinstance(found, list) else []


def _noted(words: str) -> Callable:
    return lambda e: any(words in report["traffic"]["notes"] for t in e.failing for report in _reports(t))


def _hangs_in_send(e) -> bool:
    in_send = re.compile(r"\bsend\(|isend\(.*\)\.wait\(")
    return any(t.outcome.lost and in_send.search(t.outcome.error) for t in e.failing)


def _hangs_beyond_two(e) -> bool:
    return e.passed("two ranks") and any(t.outcome.lost and "did not end" in t.outcome.error for t in e.failing)


def _collective(e) -> bool:
    ran = [t for t in e.failing if _reports(t)]
    return bool(ran) and all("this exercise asks for sends" in t.why for t in ran)


def _bytes_over(e, where: Callable[[list[int], int, int], bool]) -> bool:
    """`where(bytes sent by each rank, bytes of the buffer, ranks)`, in every case in which sums are right, if not bit
    for bit, and too much was sent."""
    told = [t for t in e.failing if "are enough" in t.why or "in their last bits" in t.why]
    found = [t for t in told if len(t.args["shards"]) > 2]
    return bool(found) and all(
        where([_bytes(r) for r in _reports(t)], t.args["shards"][0].nbytes, len(_reports(t))) for t in found
    )


def _bytes(report: dict) -> int:
    return sum(nbytes for _, nbytes in report["traffic"]["sent"].values())


MISTAKES = (
    Mistake(
        "blocking_sends",
        "Every rank is in a send that waits for its receiver, and no one receives. Start the send in the background "
        "(isend), receive, then wait for the send; or let every second rank receive first.",
        sign=_hangs_in_send,
    ),
    Mistake(
        "wrong_direction",
        "With two ranks both neighbours are the same, with more they are not: who sends to rank + 1 receives from "
        "rank - 1.",
        sign=_hangs_beyond_two,
    ),
    Mistake(
        "overwritten",
        "A part was changed while it was being sent. Receive into memory of its own, and wait for isend before the "
        "part is written.",
        sign=_noted(CHANGED),
    ),
    Mistake(
        "missing_wait",
        "A send or a receive was never waited for: until wait() returns, perhaps nothing has come or left. "
        "Keep what isend and irecv return, and wait for both in each step.",
        sign=_noted(NOT_WAITED),
    ),
    Mistake(
        "used_early",
        "What came is NaN: it was read before wait() of its receive.",
        sign=lambda e: any(bool(r["value"].isnan().any()) for t in e.failing for r in _reports(t)),
    ),
    Mistake(
        "collective",
        "The sum is right, but a collective made it. Build it from send, recv, isend and irecv.",
        sign=_collective,
    ),
    Mistake(
        "through_one_rank",
        "One rank collects everything and sends it to all: its link carries (N - 1) times the buffer while the others "
        "wait. In a ring every link carries the same.",
        sign=lambda e: _bytes_over(e, lambda s, n, ranks: sum(one > n for one in s) == 1),
    ),
    Mistake(
        "everything_everywhere",
        "Whole buffers go round: every rank sends (N - 1) times the buffer, where 2 (N - 1) / N is enough. Cut the "
        "buffer into N parts: first each part collects its sum on one rank, then the sums go round.",
        sign=lambda e: _bytes_over(e, lambda s, n, ranks: all(one >= (ranks - 1) * n for one in s)),
    ),
    Mistake(
        "number_by_number",
        "Far more messages than steps: each costs its fixed time. Send a part as one message.",
        sign=lambda e: bool(ran := [t for t in e.failing if _reports(t)]) and all("messages;" in t.why for t in ran),
    ),
    Mistake(
        "too_few_parts",
        "It fails where there are fewer numbers than ranks: chunk(N) may give fewer than N parts. tensor_split(N) "
        "always gives N, some of them empty.",
        sign=lambda e: e.failed_only(FEW) and e.raised("IndexError"),
    ),
    Mistake(
        "default_type",
        "It fails for numbers of another type than fp32: the memory that receives has the default type. Make it with "
        "torch.empty_like(part).",
        sign=lambda e: e.failed_only("double precision"),
    ),
    Mistake("mean_for_sum", "This is the mean; the sum is asked for.", _answer(_mean)),
    Mistake(
        "not_in_place",
        "The buffers are as they were: the sum was made somewhere else. Write into the buffer that was given.",
        _answer(lambda shards: [shard.double() for shard in shards]),
    ),
    Mistake(
        "no_second_half",
        "Each rank has one part of the sum whole and the others half made: after N - 1 steps of adding, the whole "
        "parts must go round too, N - 1 steps more.",
        _answer(lambda shards, cut: ring(shards, cut, gather_steps=0)),
        CUTS,
    ),
    Mistake(
        "no_sums",
        "Every part is one rank's own, and no sum has survived. Either the first half copies what comes where it must "
        "add, or the second half passes on the parts that the first one began with: when rank r began by sending part "
        "r, it has part r + 1 whole in the end.",
        _answer(lambda shards, cut: ring(shards, cut, owner=0)),
        CUTS,
    ),
    Mistake(
        "wrong_owner",
        "In the second half ranks pass on a part that they do not have whole. When rank r began by sending part r, it "
        "has part r + 1 whole after the first half.",
        _answer(lambda shards, variant: ring(shards, variant[0], owner=variant[1])),
        tuple((cut, owner) for cut in CUTS for owner in (-1, 2)),
    ),
    Mistake(
        "a_step_too_few",
        "One step is missing in one of the halves: both take N - 1.",
        _answer(lambda shards, variant: _short(shards, *variant)),
        tuple((cut, half) for cut in CUTS for half in (0, 1)),
    ),
    Mistake(
        "adds_in_the_second_half",
        "In the second half what comes is a finished sum: copy it, do not add it.",
        _answer(lambda shards, cut: ring(shards, cut, adds=(True, True))),
        CUTS,
    ),
    Mistake(
        "tail_lost",
        "Right but for the last numbers, where N does not divide the length: N parts of length // N do not cover "
        "everything. torch.tensor_split cuts into N parts of nearly equal size.",
        _answer(_tail_lost),
    ),
    Mistake(
        "one_round_only",
        "Each rank has its own numbers and those of one neighbour: that is one step of a ring.",
        _answer(_one_round),
    ),
)
