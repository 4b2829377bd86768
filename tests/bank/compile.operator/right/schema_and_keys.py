"""A schema, and an implementation for each part."""

import torch
from torch import library

from course_lib.given_kernels import gate_into


def make_operator(name):
    library.define(name, "(Tensor x, Tensor y) -> Tensor")

    @library.impl(name, "cpu")
    def kernel(x, y):
        out = x.new_empty(x.shape)
        gate_into(x, y, out)
        return out

    @library.register_fake(name)
    def fake(x, y):
        return x.new_empty(x.shape)

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        s = y.sigmoid()
        gx = g * s if ctx.needs_input_grad[0] else None
        gy = g * x * s * (1 - s) if ctx.needs_input_grad[1] else None
        return gx, gy

    library.register_autograd(name, backward, setup_context=keep)
    space, _, op = name.partition("::")
    return getattr(getattr(torch.ops, space), op)
