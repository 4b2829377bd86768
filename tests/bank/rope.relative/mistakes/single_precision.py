"""Vectors and frequencies are tensors of torch, in fp32."""

import torch

KILLED_BY = "halves"


def relative_score(q, k, distance, base, layout):
    q, k = torch.tensor(q), torch.tensor(k)
    half = len(q) // 2
    if layout == "halves":
        (q0, q1), (k0, k1) = q.split(half), k.split(half)
    else:
        q0, q1, k0, k1 = q[0::2], q[1::2], k[0::2], k[1::2]
    angle = distance * base ** (-torch.arange(half) / half)
    return float(((q0 * k0 + q1 * k1) * angle.cos() + (q0 * k1 - q1 * k0) * angle.sin()).sum())
