"""The blocks are made one by one and all kept, until their common maximum is known."""

import torch

KILLED_BY = "little memory"


def tiled_forward(q, k, v, causal, scale, block):
    n_q, n_k = q.shape[2], k.shape[2]
    rows = torch.arange(n_q, device=q.device)[:, None] + n_k - n_q
    starts, blocks = range(0, n_k, block), []
    for start in starts:
        s = q.float() @ k[:, :, start : start + block].float().mT * scale
        columns = torch.arange(start, start + s.shape[-1], device=q.device)
        blocks.append(s.masked_fill(columns > rows, -torch.inf) if causal else s)
    m = torch.stack([s.amax(dim=-1, keepdim=True) for s in blocks]).amax(dim=0)
    shift = m.masked_fill(m == -torch.inf, 0.0)
    blocks = [torch.exp(s - shift) for s in blocks]
    total = sum(p.sum(dim=-1, keepdim=True) for p in blocks)
    o = sum(p @ v[:, :, at : at + block].float() for at, p in zip(starts, blocks, strict=True))
    return (o / torch.where(total == 0, 1.0, total)).to(q.dtype), (shift + torch.log(total)).squeeze(-1)
