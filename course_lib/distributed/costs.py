"""What a collective costs: the bytes that each rank sends, and a line through measured times.

The alpha-beta model: a call on `n` bytes takes alpha + n * beta. Alpha is what a call costs that moves nothing (steps
of a ring, launches, agreement), 1 / beta the rate at which the buffer passes. They cost equally much at alpha / beta
bytes: below, fewer and larger calls help; above, they do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Line", "bus_bandwidth", "fit", "ring_seconds", "sent_share"]


def sent_share(operation: str, ranks: int) -> float:
    """Bytes that each rank sends at least, as a share of the buffer's.

    The buffer is what holds everything: the gathered one, the one that is scattered. An all-reduce is a reduce-scatter
    and an all-gather; in each, every rank sends all of the N parts but one.
    """
    once = (ranks - 1) / ranks
    shares = {"all_reduce": 2 * once, "reduce_scatter": once, "all_gather": once, "broadcast": 1.0}
    return shares[operation]


def bus_bandwidth(operation: str, nbytes: int, ranks: int, seconds: float) -> float:
    """Bytes a second on each rank's link: comparable between numbers of ranks, and with what the link can do."""
    return sent_share(operation, ranks) * nbytes / seconds


def ring_seconds(nbytes: float, ranks: int, hop_s: float, bytes_per_s: float) -> float:
    """An all-reduce around a ring: 2(N - 1) steps, each sends one N-th of the buffer to the next rank."""
    steps = 2 * (ranks - 1)
    return steps * (hop_s + nbytes / ranks / bytes_per_s)


@dataclass(frozen=True)
class Line:
    alpha_s: float  # of a call that moves nothing
    beta_s: float  # for each byte of the buffer
    worst: float = 0.0  # largest relative distance between the line and a measured time

    def seconds(self, nbytes: float) -> float:
        return self.alpha_s + nbytes * self.beta_s

    @property
    def bytes_per_s(self) -> float:
        return 1 / self.beta_s if self.beta_s else float("inf")

    @property
    def crossover_bytes(self) -> float:
        """Where the fixed cost and the transfer take equally long."""
        return self.alpha_s / self.beta_s if self.beta_s else float("inf")


def fit(times: Mapping[int, float]) -> Line:
    """The line through bytes -> seconds that is nearest in relative terms, with neither part below zero.

    Relative, because sizes span six powers of ten: with plain least squares the largest alone would decide, and alpha
    would be whatever its noise leaves.
    """
    if len(times) < 2:
        raise ValueError(f"a line needs two sizes at least, got {len(times)}")
    nbytes, seconds = (np.array(list(part), dtype=np.float64) for part in (times.keys(), times.values()))
    scaled = np.stack([1 / seconds, nbytes / seconds], axis=1)  # (sizes, 2): minimise |scaled @ (alpha, beta) - 1|
    alpha, beta = np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)[0]
    if alpha < 0 or beta < 0:
        alone = [float(column.sum() / (column @ column)) for column in scaled.T]
        alpha, beta = (0.0, alone[1]) if alpha < 0 else (alone[0], 0.0)
    worst = float(np.abs(scaled @ (alpha, beta) - 1).max())
    return Line(float(alpha), float(beta), worst)
