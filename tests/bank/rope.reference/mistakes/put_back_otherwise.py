"""Neighbours are taken, and put back as halves."""

import torch

KILLED_BY = "interleaved"


def rope_reference(x, offset, base, rotary_size, layout):
    length, pairs = x.shape[2], rotary_size // 2
    position = torch.arange(length, dtype=torch.float64, device=x.device) + offset
    frequency = base ** (-torch.arange(0, rotary_size, 2, dtype=torch.float64, device=x.device) / rotary_size)
    angle = position[:, None] * frequency[None, :]
    cos, sin = angle.cos().float(), angle.sin().float()
    turning, rest = x[..., :rotary_size].float(), x[..., rotary_size:]
    if layout == "halves":
        x0, x1 = turning[..., :pairs], turning[..., pairs:]
    else:
        x0, x1 = turning[..., 0::2], turning[..., 1::2]
    y0 = x0 * cos - x1 * sin
    y1 = x1 * cos + x0 * sin
    if layout == "halves":
        y = torch.cat((y0, y1), dim=-1)
    else:
        y = torch.cat((y0, y1), dim=-1)
    return torch.cat((y.to(x.dtype), rest), dim=-1)
