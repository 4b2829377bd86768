"""Attention in tiles: which tiles of the score matrix have to be computed, and what one row knows after each of them.

Everything here is plain arithmetic on small examples, for figures and for thinking; kernels are elsewhere.
"""

from dataclasses import dataclass

import numpy as np

__all__ = ["EDGE", "SKIPPED", "WHOLE", "Step", "online", "tile_kinds", "visible"]

SKIPPED, WHOLE, EDGE = "skipped", "whole", "edge"


def visible(n_q: int, n_k: int, *, causal: bool = False, keys: int | None = None) -> np.ndarray:
    """(n_q, n_k) of bool: may query m look at key n?

    Causal is aligned bottom-right: the last query sees the last key. `keys` hides the keys from its value on and
    leaves the diagonal where it is.
    """
    m, n = np.arange(n_q)[:, None], np.arange(n_k)[None, :]
    seen = np.broadcast_to(n < (n_k if keys is None else keys), (n_q, n_k))
    return seen & (n <= m + n_k - n_q) if causal else seen.copy()


def tile_kinds(
    n_q: int, n_k: int, block_m: int, block_n: int, *, causal: bool = False, keys: int | None = None
) -> np.ndarray:
    """(tiles of queries, tiles of keys): SKIPPED where no query sees any key of the tile, WHOLE where every query sees
    all its block_n keys, EDGE where a mask is needed. Found by looking at every pair."""
    tall, wide = -(-n_q // block_m), -(-n_k // block_n)
    seen = np.zeros((n_q, wide * block_n), bool)  # keys past the end exist in a tile, and nobody sees them
    seen[:, :n_k] = visible(n_q, n_k, causal=causal, keys=keys)
    kinds = np.empty((tall, wide), dtype=object)
    for i in range(tall):
        for j in range(wide):
            tile = seen[i * block_m : (i + 1) * block_m, j * block_n : (j + 1) * block_n]
            kinds[i, j] = WHOLE if tile.all() else EDGE if tile.any() else SKIPPED
    return kinds


@dataclass(frozen=True)
class Step:
    """What a row holds after one more tile of keys."""

    end: int  # keys seen or masked so far
    row_max: float  # largest score so far; -inf while no key was visible
    row_sum: float  # of the weights
    factor: float  # what everything summed before was multiplied by
    weights: np.ndarray  # (end,): exp(score - row_max) of every key so far, as the sums hold them now
    acc: np.ndarray  # (head size,): the values, weighted


def online(scores: np.ndarray, values: np.ndarray, block: int) -> list[Step]:
    """One row of scores (n_k,), -inf where masked, and values (n_k, d), `block` keys at a time."""
    row_max, row_sum, acc = -np.inf, 0.0, np.zeros(values.shape[1])
    weights, steps = np.zeros(0), []
    for start in range(0, len(scores), block):
        tile = scores[start : start + block]
        new_max = max(row_max, tile.max())
        shift = new_max if np.isfinite(new_max) else 0.0  # -inf - -inf is NaN
        factor = float(np.exp(row_max - shift))
        new = np.exp(tile - shift)
        row_sum, acc = row_sum * factor + new.sum(), acc * factor + new @ values[start : start + block]
        weights, row_max = np.append(weights * factor, new), new_max
        steps.append(Step(start + len(tile), float(row_max), float(row_sum), factor, weights, acc))
    return steps
