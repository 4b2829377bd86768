"""Each query by itself: no (n_q, n_k) scores, and no walk over the keys."""

import torch

KILLED_BY = "odd sizes"


def tiled_forward(q, k, v, causal, scale, block):
    n_q, n_k = q.shape[2], k.shape[2]
    rows = []
    for m in range(n_q):
        seen = slice(0, max(0, m + 1 + n_k - n_q) if causal else None)
        s = scale * q[:, :, m : m + 1].float() @ k[:, :, seen].float().mT
        lse = torch.logsumexp(s, dim=-1)
        p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
        rows.append((p @ v[:, :, seen].float(), lse))
    o, lse = (torch.cat(parts, dim=2) for parts in zip(*rows, strict=True))
    return o.to(q.dtype), lse
