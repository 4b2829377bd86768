"""Every block is a finished state of its own, and states are merged two by two."""

import torch


def tiled_forward(q, k, v, causal, scale, block):
    states = [_state(q, k, v, causal, scale, start, block) for start in range(0, k.shape[2], block)]
    while len(states) > 1:
        pairs = zip(states[::2], states[1::2])
        states = [_merge(a, b) for a, b in pairs] + (states[-1:] if len(states) % 2 else [])
    m, l, acc = states[0]
    return (acc / l.masked_fill(l == 0, 1.0)).to(q.dtype), (m + l.log())[..., 0]


def _state(q, k, v, causal, scale, start, block):
    part = slice(start, start + block)
    s = q.float() @ k[:, :, part].float().transpose(-1, -2) * scale
    if causal:
        rows = torch.arange(q.shape[2], device=q.device)[:, None] + k.shape[2] - q.shape[2]
        columns = torch.arange(start, start + s.shape[-1], device=q.device)
        s = torch.where(columns <= rows, s, -float("inf"))
    m = s.amax(-1, keepdim=True)
    p = torch.exp(s - _finite(m))
    return m, p.sum(-1, keepdim=True), p @ v[:, :, part].float()


def _merge(a, b):
    m = torch.maximum(a[0], b[0])
    of_a, of_b = torch.exp(a[0] - _finite(m)), torch.exp(b[0] - _finite(m))
    return m, of_a * a[1] + of_b * b[1], of_a * a[2] + of_b * b[2]


def _finite(m):
    return m.masked_fill(m == -float("inf"), 0.0)
