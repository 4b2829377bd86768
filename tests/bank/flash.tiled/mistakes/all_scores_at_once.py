"""Softmax over whole rows, as in a formula: right, and with all scores in memory."""

import torch

KILLED_BY = "whole blocks"


def tiled_forward(q, k, v, causal, scale, block):
    s = q.float() @ k.float().mT * scale
    if causal:
        n_q, n_k = s.shape[-2:]
        s = s.masked_fill(torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).triu(n_k - n_q + 1), -torch.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    return (p @ v.float()).to(q.dtype), lse
