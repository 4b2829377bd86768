"""Masks Autograd with a guard and calls the operator again."""

import torch

from course_lib.given_kernels import cap_into


def register(library):
    library.define("cap(Tensor x, float limit) -> Tensor")
    operator = getattr(torch.ops, library.ns).cap

    class Cap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, limit):
            with torch._C._AutoDispatchBelowAutograd():
                out = operator(x, limit)
            ctx.limit = limit
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, grad):
            (out,) = ctx.saved_tensors
            return grad * (1 - (out / ctx.limit) ** 2), None

    def on_cpu(x, limit):
        out = torch.empty(x.shape, dtype=x.dtype)
        cap_into(x, limit, out)
        return out

    def on_meta(x, limit):
        return torch.empty(x.shape, dtype=x.dtype, device="meta")

    library.impl("cap", on_cpu, "CPU")
    library.impl("cap", on_meta, "Meta")
    library.impl("cap", Cap.apply, "Autograd")
