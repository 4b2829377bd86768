"""Torch converts a number of Python to fp16 by way of fp32."""

import math

import torch

KILLED_BY = "terms beside a tie"


def accumulate(terms, of_terms, of_sum, order):
    D = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}

    def R(v):
        return torch.tensor(v, dtype=torch.float64).to(D[of_sum]).item()

    t = torch.tensor(terms, dtype=torch.float64).to(D[of_terms]).tolist()
    total = lost = 0.0
    stuck = None
    last = 0
    if order == "one by one":
        for i, x in enumerate(t):
            new = R(total + x)
            if new != total:
                last = i + 1
            total = new
        if any(t[last:]):
            stuck = last
    elif order == "in pairs":
        while len(t) > 1:
            t = [R(sum(t[i : i + 2])) if i + 1 < len(t) else t[i] for i in range(0, len(t), 2)]
        total = R(t[0]) if t else total
    else:
        for x in t:
            w = R(x - lost)
            f = R(total + w)
            lost = R(R(f - total) - w)
            total = f
    return total, total - math.fsum(terms), stuck
