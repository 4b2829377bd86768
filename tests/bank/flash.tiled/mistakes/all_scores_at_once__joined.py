"""The scores are made `block` keys at a time, and then put side by side."""

import torch

KILLED_BY = "odd sizes"


def tiled_forward(q, k, v, causal, scale, block):
    n_q, n_k = q.shape[2], k.shape[2]
    s = torch.cat([q.float() @ tile.float().mT for tile in k.split(block, dim=2)], dim=-1) * scale
    if causal:
        s = s.masked_fill(torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).triu(n_k - n_q + 1), -torch.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    o = sum(w @ tile.float() for w, tile in zip(p.split(block, -1), v.split(block, dim=2), strict=True))
    return o.to(q.dtype), lse
