"""The last block is filled up with zeros."""

import torch
from torch.nn.functional import pad

KILLED_BY = "a shorter last block"


def tiled_forward(q, k, v, causal, scale, block):
    batch, heads, n_q, head_size = q.shape
    n_k = k.shape[2]
    queries = q.float()
    rows = torch.arange(n_q, device=q.device)[:, None]
    m = torch.full((batch, heads, n_q, 1), -float("inf"), device=q.device)
    l = torch.zeros(batch, heads, n_q, 1, device=q.device)
    acc = torch.zeros(batch, heads, n_q, head_size, device=q.device)
    for start in range(0, n_k, block):
        keys = k[:, :, start : start + block].float()
        values = v[:, :, start : start + block].float()
        more = block - keys.shape[2]
        keys, values = pad(keys, (0, 0, 0, more)), pad(values, (0, 0, 0, more))
        s = queries @ keys.mT * scale
        if causal:
            columns = torch.arange(start, start + keys.shape[2], device=q.device)
            s = s.masked_fill(columns > rows + n_k - n_q, -float("inf"))
        new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        shift = torch.where(new == -float("inf"), 0.0, new)
        p = torch.exp(s - shift)
        factor = torch.exp(m - shift)
        l = l * factor + p.sum(dim=-1, keepdim=True)
        acc = acc * factor + p @ values
        m = new
    o = acc / torch.where(l == 0, 1.0, l)
    return o.to(q.dtype), (m + torch.log(l)).squeeze(-1)
