"""Numpy rounds terms to fp16, torch all else: tensors without dimensions in the format of the sum."""

from fractions import Fraction

import numpy as np
import torch

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def _stored(terms, of_terms):
    """In fp32. Numpy rounds float64 to fp16 at once, torch by way of fp32."""
    if of_terms == "fp16":
        return torch.from_numpy(np.array(terms, dtype=np.float64).astype(np.float16)).to(torch.float32)
    return torch.tensor(terms, dtype=torch.float32).to(TYPES[of_terms]).to(torch.float32)


def accumulate(terms, of_terms, of_sum, order):
    data = _stored(terms, of_terms)
    if of_sum in (of_terms, "fp32"):
        data = data.to(TYPES[of_sum])
    stuck = None
    zero = torch.zeros((), dtype=TYPES[of_sum])
    if order == "in pairs":
        row = data
        while len(row) > 1:
            even = len(row) // 2 * 2
            row = torch.cat(((row[0:even:2] + row[1:even:2]).to(TYPES[of_sum]), row[even:].to(TYPES[of_sum])))
        total = row[0] if len(row) else zero
    elif order == "compensated":
        total = lost = zero
        for term in data:
            wanted = (term - lost).to(TYPES[of_sum])
            following = total + wanted
            lost = (following - total) - wanted
            total = following
    else:
        total, last = zero, 0
        for i, term in enumerate(data):
            following = (total.to(data.dtype) + term).to(TYPES[of_sum])
            if following != total:
                last = i + 1
            total = following
        stuck = last if bool((data[last:] != 0).any()) else None
    if total.isfinite():
        drift = float(Fraction(total.item()) - sum(map(Fraction, terms)))
    else:
        drift = total.item()
    return total.item(), drift, stuck
