"""What a collective costs: the bytes that each rank sends, and a line through measured times.

The alpha-beta model: a call on `n` bytes takes alpha + n * beta. Alpha is the fixed cost of a call (steps of a ring,
launches, agreement); 1 / beta is the rate at which the buffer travels. At alpha / beta bytes both parts cost the same.
Below that size fewer and larger calls help; above it they do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

__all__ = ["Line", "bus_bandwidth", "fit", "sent_share"]


def sent_share(operation: str, ranks: int) -> float:
    """Bytes that each rank sends at least, as a share of the buffer's.

    The buffer is what holds everything: the gathered one, the one that is scattered. An all-reduce is a reduce-scatter
    and an all-gather; in each, every rank sends all of the N parts but one.
    """
    once = (ranks - 1) / ranks
    shares = {"all_reduce": 2 * once, "reduce_scatter": once, "all_gather": once, "broadcast": 1.0}
    return shares[operation]


def bus_bandwidth(operation: str, nbytes: int, ranks: int, seconds: float) -> float:
    """Bytes a second on each rank's link. It can be compared between numbers of ranks, and with the link's own rate."""
    return sent_share(operation, ranks) * nbytes / seconds


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
    """The line through bytes -> seconds with the least relative error; alpha and beta are at least 0.

    The error is relative because sizes span six powers of ten. With plain least squares the largest size alone would
    decide, and its noise would set alpha.
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
