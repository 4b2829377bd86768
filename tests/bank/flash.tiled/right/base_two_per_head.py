"""One head after the other, powers of two, causal blocks past the diagonal skipped."""

import torch


def tiled_forward(q, k, v, causal, scale, block):
    o = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], device=q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            o[b, h], lse[b, h] = _one_head(q[b, h].float(), k[b, h].float(), v[b, h].float(), causal, scale, block)
    return o, lse


def _one_head(q, k, v, causal, scale, block):
    n_q, n_k = len(q), len(k)
    m = torch.full((n_q,), -float("inf"), device=q.device)
    l, acc = torch.zeros(n_q, device=q.device), torch.zeros_like(q)
    start = 0
    while start < n_k:
        stop = min(start + block, n_k)
        s = q @ k[start:stop].T * (scale * 1.4426950408889634)
        if causal:
            hidden = torch.ones(n_q, stop - start, dtype=torch.bool, device=q.device).triu(n_k - n_q - start + 1)
            s[hidden] = -float("inf")
        seen = s.max(dim=1).values > -float("inf")
        new = torch.where(seen, torch.maximum(m, s.max(dim=1).values), m)
        p = torch.where(seen[:, None], torch.exp2(s - new[:, None]), 0.0)
        factor = torch.where(seen, torch.exp2(m - new), 1.0)
        l = l * factor + p.sum(dim=1)
        acc = acc * factor[:, None] + p @ v[start:stop]
        m, start = new, stop
    lse = (m + torch.log2(l)) * 0.6931471805599453
    return torch.where(l[:, None] > 0, acc / l[:, None], 0.0), lse
