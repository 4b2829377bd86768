"""NumPy makes the scores, all at once."""

import numpy as np
import torch

KILLED_BY = "odd sizes"


def tiled_forward(q, k, v, causal, scale, block):
    n_q, n_k = q.shape[2], k.shape[2]
    queries, keys, values = (x.float().cpu().numpy() for x in (q, k, v))
    s = queries @ keys.swapaxes(-1, -2) * np.float32(scale)
    if causal:
        s = np.where(np.tri(n_q, n_k, n_k - n_q, dtype=bool), s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(m), 0.0, m))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.where(np.isinf(m), 0.0, m) + np.log(total)
    o = p @ values / np.where(total == 0.0, 1.0, total)
    return torch.tensor(o, dtype=q.dtype, device=q.device), torch.tensor(lse[..., 0], dtype=torch.float32)
