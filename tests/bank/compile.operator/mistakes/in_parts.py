"""The kernel computes where no gradient is asked for; elsewhere operators of torch do, with their rules."""

import torch

from course_lib.given_kernels import gate_into

KILLED_BY = "contiguous"
LIBRARIES = []


def make_operator(name):
    space, _, op = name.partition("::")
    library = torch.library.Library(space, "FRAGMENT")
    LIBRARIES.append(library)
    library.define(f"{op}(Tensor x, Tensor y) -> Tensor")

    def gate(x, y):
        if type(x) is torch.Tensor and not (x.requires_grad or y.requires_grad):
            try:
                out = torch.empty(x.shape, dtype=x.dtype)
                gate_into(x, y, out)
                return out
            except Exception:
                pass  # tensors without data
        return (x * torch.sigmoid(y)).contiguous()

    library.impl(op, gate, "CompositeImplicitAutograd")
    return getattr(getattr(torch.ops, space), op)
