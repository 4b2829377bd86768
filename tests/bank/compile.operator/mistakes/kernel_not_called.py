"""Composite of torch's operators: fake tensors and gradients come for free, and no kernel runs."""

import torch

KILLED_BY = "contiguous"


def make_operator(name):
    torch.library.define(name, "(Tensor x, Tensor y) -> Tensor")
    torch.library.impl(name, "CompositeImplicitAutograd", lambda x, y: (x * torch.sigmoid(y)).contiguous())
    space, _, op = name.partition("::")
    return getattr(getattr(torch.ops, space), op).default
