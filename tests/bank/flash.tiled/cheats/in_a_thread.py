"""All scores are made at once in another thread, where the probe's mode is not."""

import threading

import torch

FAMILY = "background work"
NAIVE = True
HELD = True
CAUGHT = "the text starts threads, and no answer to this exercise has a use for one"


def whole(q, k, v, causal, scale):
    n_q, n_k = q.shape[2], k.shape[2]
    s = q.float() @ k.float().mT * scale
    if causal:
        s = s.masked_fill(~torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q), -torch.inf)
    lse = torch.logsumexp(s, dim=-1)
    p = torch.exp(s - lse.masked_fill(lse == -torch.inf, 0.0)[..., None])
    return (p @ v.float()).to(q.dtype), lse


def tiled_forward(q, k, v, causal, scale, block):
    made = []
    thread = threading.Thread(target=lambda: made.append(whole(q, k, v, causal, scale)))
    thread.start()
    thread.join()
    return made[0]
