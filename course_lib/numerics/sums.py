"""Sums in a chosen format and order, every addition rounded as hardware of that format would round it.

A sum of n numbers one by one is off by up to n half units of its own size; by pairs by log2(n); with the lost part
carried along (Kahan) by one or two, whatever n.
"""

from collections.abc import Callable
from math import frexp, inf, isfinite, ldexp, nan
from typing import Literal

import numpy as np
import torch

from course_lib.numerics.formats import Format, format_of, round_to

__all__ = ["Order", "accumulate", "running_sums"]

Order = Literal["one by one", "in pairs", "compensated"]
_NATIVE = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}  # numpy rounds after every addition too
FEW_ROWS = 16  # so many are summed faster one number at a time than as vectors of rows


def running_sums(x: torch.Tensor, dtype) -> torch.Tensor:
    """(..., n) -> (..., n) float64: the sum one by one after every term, each rounded to the format.

    Terms go in as they are, rounded or not; exact for terms of fp32 or narrower.
    """
    of, x = format_of(dtype), x.detach().to("cpu", torch.float64)
    native = _NATIVE.get(of.name)
    if native is not None and torch.equal(round_to(x, of), x):
        with np.errstate(over="ignore"):
            return torch.from_numpy(np.add.accumulate(x.numpy().astype(native), axis=-1).astype(np.float64))
    rows = x.reshape(-1, x.shape[-1])
    if len(rows) > FEW_ROWS:
        total, sums = torch.zeros(len(rows), dtype=torch.float64), torch.empty_like(rows)
        for i in range(rows.shape[1]):
            total = sums[:, i] = round_to(total + rows[:, i], of)
        return sums.view(x.shape)
    near = _rounder(of)
    return torch.tensor([_one_by_one(row.tolist(), near) for row in rows], dtype=torch.float64).view(x.shape)


def accumulate(x: torch.Tensor, dtype, order: Order = "one by one", lanes: int = 1) -> torch.Tensor:
    """(..., n) -> (...) float64: the sum along the last dimension, every addition rounded to the format.

    "one by one"   s + x_i, from 0 on; what one accumulator of this format does
    "in pairs"     neighbours first, then neighbours of the sums, and so on; an odd one waits
    "compensated"  Kahan: what an addition has lost is subtracted from the next term, all of it in the format
    lanes: term i goes to lane i % lanes, each lane sums in this order, and the lanes' sums are added in pairs, as
    threads do it. Exact for terms of this format. A wider one, up to fp32, that lies halfway between two numbers of it
    takes what is 2^28 times smaller for nothing, and goes to the even one.
    """
    of, x = format_of(dtype), x.detach().to("cpu", torch.float64)
    if x.shape[-1] == 0:
        return torch.zeros(x.shape[:-1], dtype=torch.float64)
    if lanes > 1:
        short = -x.shape[-1] % lanes
        x = torch.nn.functional.pad(x, (0, short)).unflatten(-1, (-1, lanes)).transpose(-1, -2)
        return _in_pairs(accumulate(x, of, order), of)
    if order == "in pairs":
        return _in_pairs(x, of)
    if order == "one by one":
        return running_sums(x, of)[..., -1]
    if order == "compensated":
        rows, near = x.reshape(-1, x.shape[-1]), _rounder(of)
        return torch.tensor([_compensated(row.tolist(), near) for row in rows], dtype=torch.float64).view(x.shape[:-1])
    raise ValueError(f'order is "one by one", "in pairs" or "compensated", not {order!r}')


def _in_pairs(x: torch.Tensor, of: Format) -> torch.Tensor:
    while (n := x.shape[-1]) > 1:
        pairs = round_to(x[..., 0 : n - 1 : 2] + x[..., 1::2], of)
        x = torch.cat((pairs, x[..., n - 1 :]), dim=-1) if n % 2 else pairs
    return round_to(x[..., 0], of)


def _one_by_one(terms: list[float], near: Callable[[float], float]) -> list[float]:
    total, sums = 0.0, []
    for term in terms:
        total = near(total + term)
        sums.append(total)
    return sums


def _compensated(terms: list[float], near: Callable[[float], float]) -> float:
    total = lost = 0.0
    for term in terms:
        wanted = near(term - lost)
        following = near(total + wanted)
        lost = near(near(following - total) - wanted)
        total = following
    return total


def _rounder(of: Format) -> Callable[[float], float]:
    """`round_to` to even for one number, fifty times as fast."""

    def near(x: float) -> float:
        if x == 0 or not isfinite(x):
            return x
        exponent = max(frexp(x)[1] - 1, of.min_exponent) - of.fraction_bits
        rounded = ldexp(round(ldexp(x, -exponent)), exponent)
        if abs(rounded) <= of.largest:
            return rounded
        return (inf if rounded > 0 else -inf) if of.infinity else nan

    return near
