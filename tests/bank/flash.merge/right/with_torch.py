"""Tensors inside, numbers and lists outside; float64, because fp32 is too coarse here."""

import torch


def merge(a, b):
    m = torch.tensor([a["m"], b["m"]], dtype=torch.float64)
    top = m.max()
    factors = torch.exp(m - torch.where(top.isinf(), torch.zeros_like(top), top))
    l = factors @ torch.tensor([a["l"], b["l"]], dtype=torch.float64)
    o = factors @ torch.tensor([a["o"], b["o"]], dtype=torch.float64)
    return {"m": top.item(), "l": l.item(), "o": o.tolist()}
