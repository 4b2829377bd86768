"""Mantissas and exponents are parameters that need no gradient."""

import torch
import torch.nn.functional as F
from torch import nn

KILLED_BY = "a model"


def quantized(weight, group):
    """int8 mantissas (N, K) and uint8 exponents (N, groups)."""
    groups = F.pad(weight.detach().double(), (0, -weight.shape[1] % group)).unflatten(1, (-1, group))
    largest = groups.abs().amax(2)
    power = torch.frexp(largest).exponent - 1
    e = torch.where(largest > 0, power + 127, 0).clamp(0, 254)
    m = (groups * torch.exp2(133.0 - e.double())[:, :, None]).round().clamp(-127, 127)
    return m.flatten(1)[:, : weight.shape[1]].to(torch.int8), e.to(torch.uint8)


class MXLinear(nn.Module):
    def __init__(self, layer, group=32):
        super().__init__()
        m, e = quantized(layer.weight, group)
        self.group = group
        self.mantissas = nn.Parameter(m, requires_grad=False)
        self.exponents = nn.Parameter(e, requires_grad=False)
        self.bias = layer.bias

    def forward(self, x):
        scale = torch.exp2(self.exponents.float() - 133).repeat_interleave(self.group, 1)[:, : x.shape[-1]]
        return F.linear(x, (self.mantissas * scale).to(x.dtype), self.bias)


def stays(name, layer, model, skip):
    if type(layer) is not nn.Linear or any(name == one or name.startswith(one + ".") for one in skip):
        return True
    others = [m for m in model.modules() if not isinstance(m, nn.Linear)]
    return any(p is layer.weight for m in others for p in m.parameters(recurse=False))


def swap_linears(model, skip):
    swapped = [name for name, layer in model.named_modules() if not stays(name, layer, model, skip)]
    new = {model.get_submodule(name): MXLinear(model.get_submodule(name)) for name in swapped}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if layer in new:
            model.set_submodule(name, new[layer])
    return swapped
