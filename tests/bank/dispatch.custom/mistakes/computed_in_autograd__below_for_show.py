"""Autograd's kernel calls the keys below, drops what they give, and computes with what torch differentiates by itself."""

import torch

from course_lib.given_kernels import cap_into

KILLED_BY = "contiguous"


def register(library):
    library.define("cap(Tensor x, float limit) -> Tensor")
    operator = getattr(torch.ops, library.ns).cap

    def on_cpu(x, limit):
        out = torch.empty(x.shape, dtype=x.dtype)
        cap_into(x, limit, out)
        return out

    def with_gradient(x, limit):
        with torch._C._AutoDispatchBelowAutograd():
            out = operator(x, limit)
        return (limit * torch.tanh(x / limit)).contiguous() if x.requires_grad and torch.is_grad_enabled() else out

    library.impl("cap", on_cpu, "CPU")
    library.impl("cap", lambda x, limit: torch.empty(x.shape, dtype=x.dtype, device="meta"), "Meta")
    library.impl("cap", with_gradient, "Autograd")
