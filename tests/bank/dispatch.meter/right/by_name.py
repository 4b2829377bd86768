"""Operators by name; formulas in a table."""

from math import prod

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}


def everything(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from everything(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from everything(one)


class Meter(TorchDispatchMode):
    flops = bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        if name in PRODUCTS:
            a, b = (args[i].shape for i in PRODUCTS[name])
            *batch, m, k = a
            self.flops += 2 * prod(batch) * m * k * b[-1]
        elif "_scaled_dot_product" in name:
            products, first = (5, 1) if "backward" in name else (2, 0)
            *heads, queries, size = args[first].shape
            self.flops += 2 * products * prod(heads) * queries * args[first + 1].shape[-2] * size
        elif name == "aten::convolution":
            self.flops += 2 * prod(result.shape) * prod(args[1].shape[1:])
        elif name == "aten::convolution_backward":
            for_input, for_weight, _ = args[-1]
            self.flops += 2 * (for_input + for_weight) * prod(args[0].shape) * prod(args[2].shape[1:])
        views = func.is_view or name == "aten::_unsafe_view"
        if not views and "empty" not in name:
            for t in everything([args, kwargs or {}, result]):
                self.bytes += t.nbytes
        return result
