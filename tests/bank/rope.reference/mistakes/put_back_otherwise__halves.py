"""Halves are taken, and put back as neighbours."""

import torch

KILLED_BY = "halves"


def rope_reference(x, offset, base, rotary_size, layout):
    batch, heads, length, _ = x.shape
    at = torch.arange(length, dtype=torch.float64, device=x.device) + offset
    by = torch.tensor([base ** (-2 * j / rotary_size) for j in range(rotary_size // 2)], dtype=torch.float64)
    spin = torch.polar(torch.ones(1, dtype=torch.float64, device=x.device), torch.outer(at, by.to(x.device)))
    spin = spin.to(torch.complex64)
    turning = x[..., :rotary_size].float()
    order = turning.unflatten(-1, (2, -1)).mT if layout == "halves" else turning.unflatten(-1, (-1, 2))
    y = torch.view_as_real(torch.view_as_complex(order.contiguous()) * spin)
    y = y.flatten(-2)
    return torch.cat((y.to(x.dtype), x[..., rotary_size:]), dim=-1)
