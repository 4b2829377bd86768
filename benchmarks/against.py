"""One case: its result is checked first, then its time is compared with that of every peer, in turns A B B A.

A claim is a ratio to the fastest peer. It holds when the upper end of the ratio's 95 % interval is at most the target
and the interval is narrower than 1 %. Large products run at the power limit, where two kernels that take turns share
one heat: whoever saves power pays for the other. So a claim on one is also timed alone, each for a second.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from course_lib.timing import Comparison, compare, time_gpu, time_graph

__all__ = ["Case", "Red", "alone_us", "measure", "ring_of", "within"]

RING_BYTES = 640 * 2**20  # more than ten times the L2 cache of an H200: no call finds its data there


class Red(AssertionError):
    """A wrong result: its speed is not worth a number."""


@dataclass(frozen=True)
class Case:
    name: str
    ours: Callable[[], object]
    peers: dict[str, Callable[[], object]]
    check: Callable[[], None]  # raises Red
    calls: int = 1  # how many kernel calls one `ours()` or peer makes
    target: float | None = None  # largest ratio to the fastest peer
    method: str = "graph"
    work: dict[str, float] = field(default_factory=dict)  # "TB/s": bytes / 1e12 and so on, of one call


def measure(case: Case, looks: tuple[float, float] = (0.5, 1.0)) -> dict:
    """A flat row: our time, each peer's, and the ratio to the fastest. looks: seconds for each peer, for the best."""
    case.check()

    def against(peer: Callable[[], object], seconds: float) -> Comparison:
        return compare(case.ours, peer, method=case.method, cold=False, precision=0.002, max_seconds=seconds)

    seen = {name: against(peer, looks[0]) for name, peer in case.peers.items()}
    best = max(seen, key=lambda name: seen[name].ratio)
    seen[best] = against(case.peers[best], looks[1] if case.target is None else 3.0)  # a claim is worth more rounds
    ours_s = seen[best].a.median_s / case.calls
    row = {"name": case.name, "value": ours_s * 1e6, "unit": "us"}
    row |= {unit: amount / ours_s for unit, amount in case.work.items()}
    row |= {f"{name} us": c.b.us / case.calls for name, c in seen.items()}
    row |= {"best peer": best, "ratio": seen[best].ratio, "low": seen[best].low, "high": seen[best].high}
    row |= {"target": case.target, "verdict": _verdict(case.target, seen[best])}
    if case.target is not None and "TFLOP/s" in case.work:
        ours_us, peer_us = (alone_us(call, case.method) / case.calls for call in (case.ours, case.peers[best]))
        row |= {"alone us": ours_us, f"{best} alone us": peer_us, "ratio alone": ours_us / peer_us}
    return row


def alone_us(call: Callable[[], object], method: str = "events") -> float:
    """The median of a second without a neighbour."""
    timed = {"events": time_gpu, "graph": time_graph}[method]
    return timed(call, cold=False, precision=1e-4, max_seconds=1.0).us


def _verdict(target: float | None, seen) -> str:
    if target is None:
        return "-"
    if seen.high - seen.low > 0.01:
        return "interval too wide"
    return "holds" if seen.high <= target else "missed"


def ring_of(make: Callable[[], torch.Tensor], bytes_a_call: float) -> list[torch.Tensor]:
    """Inputs for several calls: so many that the first ones have left the cache when their turn comes again."""
    return [make() for _ in range(max(2, -(-RING_BYTES // int(bytes_a_call))))]


def within(name: str, got: torch.Tensor, want: torch.Tensor, limit: float) -> None:
    """||got - want|| / ||want|| over everything, and over the worst row."""
    difference, want = got.double() - want.double(), want.double()
    overall = (difference.norm() / want.norm()).item()
    worst = (difference.norm(dim=-1) / want.norm(dim=-1)).max().item()
    if not (overall < limit and worst < 4 * limit):
        raise Red(f"{name} is wrong: relative error {overall:.2e}, worst row {worst:.2e}, limit {limit:.0e}")
