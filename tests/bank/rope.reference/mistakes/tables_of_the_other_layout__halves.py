"""Angles are always repeated one by one."""

import torch

KILLED_BY = "halves"


def rope_reference(x, offset, base, rotary_size, layout):
    y = x.clone()
    exponent = torch.arange(0, rotary_size, 2, dtype=torch.float64, device=x.device) / rotary_size
    angle = torch.outer(torch.arange(offset, offset + x.shape[2], dtype=torch.float64, device=x.device), base**-exponent)
    if layout == "halves":
        angle = angle.repeat_interleave(2, dim=-1)
        x0, x1 = x[..., :rotary_size].float().chunk(2, dim=-1)
        partner = torch.cat((-x1, x0), dim=-1)
    else:
        angle = angle.repeat_interleave(2, dim=-1)
        x0, x1 = x[..., 0:rotary_size:2].float(), x[..., 1:rotary_size:2].float()
        partner = torch.stack((-x1, x0), dim=-1).flatten(-2)
    y[..., :rotary_size] = (x[..., :rotary_size] * angle.cos().float() + partner * angle.sin().float()).to(x.dtype)
    return y
