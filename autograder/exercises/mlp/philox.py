"""The numbers that tl.rand and tl.rand4x make, without Triton: Philox 4x32, ten rounds of a seed and a counter."""

import numpy as np
import torch

WORD = np.uint64(0xFFFFFFFF)
SCALE = np.float32(4.6566127342e-10)  # of tl.rand: a little less than 2^-31


def words(seed: int, counters: np.ndarray) -> np.ndarray:
    """(n,) counters -> (n, 4) numbers of 32 bits."""
    counters, seed = counters.astype(np.uint64), np.uint64(seed % 2**64)
    c0, c1, c2, c3 = counters & WORD, counters >> np.uint64(32), np.zeros_like(counters), np.zeros_like(counters)
    k0, k1 = seed & WORD, seed >> np.uint64(32)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & WORD, (a >> np.uint64(32)) ^ c3 ^ k1, a & WORD
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & WORD, (k1 + np.uint64(0xBB67AE85)) & WORD
    return np.stack((c0, c1, c2, c3), axis=-1).astype(np.uint32)


def numbers(seed: int, counters: torch.Tensor, which: int = 0) -> torch.Tensor:
    """tl.rand(seed, counters), in [0, 1), fp32; of any shape, on the device of the counters."""
    return _in_shape(words(seed, counters.cpu().numpy().ravel())[:, which], counters)


def numbers_of_four(seed: int, index: torch.Tensor) -> torch.Tensor:
    """Of element i number i % 4 of the four that tl.rand4x(seed, i // 4) makes."""
    at = index.cpu().numpy().ravel()
    return _in_shape(words(seed, at // 4)[np.arange(len(at)), at % 4], index)


def _in_shape(bits: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    bits = bits.view(np.int32)
    made = (bits ^ (bits >> 31)).astype(np.float32) * SCALE
    return torch.from_numpy(made).view(like.shape).to(like.device)
