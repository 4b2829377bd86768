"""An autograd Function."""

import torch

from course_lib.given_kernels import gate_into

KILLED_BY = "fp32"


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        out = torch.empty(x.shape, dtype=x.dtype)
        gate_into(x, y, out)
        return out

    @staticmethod
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        s = torch.sigmoid(y)
        return grad * s, grad * x * s * (1 - s)


def make_operator(name):
    return Gate.apply
