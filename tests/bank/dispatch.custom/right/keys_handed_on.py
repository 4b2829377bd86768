"""The kernel of Autograd gets the keys and redispatches with those below it; the derivative from the input."""

import torch

from course_lib import given_kernels

BELOW = torch._C._after_autograd_keyset


class Cap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, keys, operator, x, limit):
        ctx.limit = limit
        ctx.save_for_backward(x)
        return operator.redispatch(keys & BELOW, x, limit)

    @staticmethod
    def backward(ctx, g):
        t = torch.tanh(ctx.saved_tensors[0] / ctx.limit)
        return None, None, g - g * t * t, None


def empty(x, limit):
    return x.new_empty(x.shape)


def cpu(x, limit):
    out = empty(x, limit)
    given_kernels.cap_into(x, limit, out)
    return out


def register(library):
    library.define("cap(Tensor x, float limit) -> Tensor")
    operator = getattr(torch.ops, library.ns).cap.default
    library.impl("cap", cpu, "CPU")
    library.impl("cap", empty, "Meta")
    library.impl("cap", lambda keys, x, limit: Cap.apply(keys, operator, x, limit), "Autograd", with_keyset=True)
