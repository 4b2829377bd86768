"""custom_op with its rules."""

import torch

from course_lib.given_kernels import gate_into


def make_operator(name):
    @torch.library.custom_op(name, mutates_args=())
    def gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        gate_into(x, y, out)
        return out

    @gate.register_fake
    def _(x, y):
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        s = torch.sigmoid(y)
        return grad * s, grad * x * s * (1 - s)

    gate.register_autograd(backward, setup_context=setup_context)
    return gate
