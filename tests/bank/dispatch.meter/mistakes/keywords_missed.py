"""What comes as a keyword is not looked at."""

from math import prod

import torch
from torch.utils._python_dispatch import TorchDispatchMode

KILLED_BY = "a result that is given"
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
        result = func(*args, **(kwargs or {}))
        name = func.name().split(".")[0]
        if name in PRODUCTS:
            a, b = (args[i].shape for i in PRODUCTS[name])
            *batch, m, k = a
            self.flops += 2 * prod(batch) * m * k * b[-1]
        views = func.is_view or name == "aten::_unsafe_view"
        if not views and "empty" not in name:
            for t in everything([args, result]):
                self.bytes += t.nbytes
        return result
