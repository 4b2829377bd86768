"""Operators by their packets, tensors by pytree."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
ALLOCATES = (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided)


class Meter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.flops = 0
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out = func(*args, **kwargs)
        op = func.overloadpacket
        if op in (aten.mm, aten.bmm):
            self.multiply(args[0], args[1])
        elif op in (aten.addmm, aten.baddbmm):
            self.multiply(args[1], args[2])
        elif op is aten.convolution:
            self.flops += 2 * out.numel() * args[1][0].numel()
        elif op is aten.convolution_backward:
            for asked in args[-1][:2]:
                self.flops += asked * 2 * args[0].numel() * args[2][0].numel()
        elif op.__name__.startswith("_scaled_dot_product"):
            if op.__name__.endswith("_backward"):
                self.flops += 5 * attention(args[1], args[2])
            else:
                self.flops += 2 * attention(args[0], args[1])
        if not func.is_view and op is not aten._unsafe_view and op not in ALLOCATES:
            self.bytes += nbytes((args, kwargs))
            self.bytes += nbytes(out)
        return out

    def multiply(self, a, b):
        self.flops += 2 * a.numel() * b.shape[-1]


def attention(q, k):
    return 2 * q.numel() * k.shape[-2]


def nbytes(tree):
    tensors = [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)
