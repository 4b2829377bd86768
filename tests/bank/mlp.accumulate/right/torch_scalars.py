"""Torch rounds: tensors without dimensions in the format of the sum."""

from fractions import Fraction

import torch

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def accumulate(terms, of_terms, of_sum, order):
    data = torch.tensor(terms, dtype=torch.float32).to(TYPES[of_terms]).to(torch.float32).to(TYPES[of_sum])
    if TYPES[of_terms] == torch.float16 and of_sum == "bf16":
        data = torch.tensor(terms, dtype=torch.float32).to(torch.float16).to(torch.float32)
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
