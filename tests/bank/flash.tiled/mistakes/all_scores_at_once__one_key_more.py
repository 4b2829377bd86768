"""A row is one number wider than there are keys, and so are the scores."""

import torch
import torch.nn.functional as F

KILLED_BY = "odd sizes"


def tiled_forward(q, k, v, causal, scale, block):
    n_q, n_k = q.shape[2], k.shape[2]
    keys, values = (F.pad(x.float(), (0, 0, 0, 1)) for x in (k, v))
    see = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device)
    see = F.pad(see.tril(n_k - n_q) if causal else see, (0, 1))
    s = (q.float() @ keys.mT * scale).masked_fill(~see, -torch.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    return (p @ values).to(q.dtype), lse
