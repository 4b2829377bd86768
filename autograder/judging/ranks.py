"""What several ranks reported, judged: values, bits that must be the same everywhere, and what they sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

SURELY = 0.9  # of the bytes that are needed: the count itself misses none
# A collective sends at most twice the least; the rest is for headers. Measured for 17 small collectives on 4 ranks:
# 13.7 KB from one to another, of which 1.2 are for the connection. More is allowed: a busy machine acknowledges more.
SLACK, CONNECTION_BYTES, MESSAGE_BYTES = 1.25, 4096, 2048


def reports_of(got: Any, ranks: int) -> str | None:
    """What is wrong with the form of the reports. They come from processes that ran the submission."""
    if not isinstance(got, list) or len(got) != ranks:
        return f"{ranks} reports were expected"
    if not all(isinstance(one, Mapping) and {"value", "traffic"} <= set(one) for one in got):
        return "a rank reported something else"
    return None


def form_of(got: Any, want: torch.Tensor, what: str, rank: int) -> str | None:
    """Whether a tensor came, of the wanted shape; its type is for the caller to compare."""
    if not isinstance(got, torch.Tensor):
        return f"{what} of rank {rank} should be a tensor, got {type(got).__name__}"
    if got.shape != want.shape:
        return f"{what} of rank {rank} has shape {tuple(got.shape)}, should be {tuple(want.shape)}"
    return None


def first_off(got: torch.Tensor, want: torch.Tensor, limit: torch.Tensor | float) -> int | None:
    """The first element, counted row by row, that is further from the truth than its limit; NaN always is."""
    off = (got.detach().to(torch.float64) - want).abs()
    bad = (~(off <= limit)).reshape(-1).nonzero()
    return int(bad[0]) if len(bad) else None


def same_bits(tensors: Sequence[torch.Tensor]) -> int | None:
    """The first rank whose bits differ from those of rank 0."""
    raw = [t.detach().contiguous().reshape(-1).view(torch.uint8) if t.numel() else t.new_empty(0) for t in tensors]
    return next((rank for rank, one in enumerate(raw) if not torch.equal(one, raw[0])), None)


def sent(report: Mapping) -> tuple[int, int]:
    """Messages and bytes that a rank sent itself, collectives not counted."""
    told = report["traffic"]["sent"].values()
    return sum(messages for messages, _ in told), sum(nbytes for _, nbytes in told)


def told(got: Sequence[Mapping]) -> float:
    """Bytes that all ranks together sent, as they tell: of a collective, what the best algorithm sends for it."""
    share = (len(got) - 1) / len(got)  # of what all send, in units of the bytes of one rank
    return sum(sent(one)[1] + sum(share * n * (2 if reduced else 1) for reduced, n in _begun(one)) for one in got)


def _begun(report: Mapping) -> list[tuple[bool, int]]:
    """Of each collective whether it is an all-reduce, and its bytes."""
    return [(name.startswith("allreduce"), n) for name, n, _ in report["traffic"]["collectives"] if n >= 0]


def too_little_or_too_much(got: Sequence[Mapping], floor: int) -> str | None:
    """Whether what travelled explains an answer for which all ranks together send `floor` bytes at least.

    The ranks tell what they sent, and may lie. Where the referee asks, the bytes that passed the network are there too:
    counted by the kernel, with everything that nobody told of, and a few hundred bytes for each message and connection.
    """
    others, all_told = len(got) - 1, told(got)
    if all_told < floor:
        return f"the ranks sent {all_told:.0f} bytes together, where this takes {floor}: something went another way"
    passed = got[0]["traffic"].get("passed")
    if passed is None:  # nobody counts in a notebook
        return None
    if passed < SURELY * floor:
        return f"{passed} bytes passed between the ranks, where this takes {floor}: something went another way"
    most = sum(sent(one)[1] + sum(others / len(got) * 2 * n for _, n in _begun(one)) for one in got)
    count = max(sent(one)[0] + len(_begun(one)) for one in got)
    if passed > SLACK * most + len(got) * others * (CONNECTION_BYTES + MESSAGE_BYTES * count):
        return f"{passed} bytes passed between the ranks, who told of {all_told:.0f}: some of it was hidden"
    return None


def collectives(report: Mapping, but: Sequence[str] = ("barrier",)) -> list[str]:
    """Names of the collectives that a rank took part in, in order."""
    return [name for name, nbytes, _ in report["traffic"]["collectives"] if nbytes >= 0 and name not in but]
