"""A linear layer with weights in the format, and a model's layers swapped for it."""

import fnmatch
from collections.abc import Iterable

import torch
from torch import nn

from course_lib.kernels.mx.convert import dequantize, quantize
from course_lib.kernels.mx.format import GROUP, Quantized, group_count
from course_lib.kernels.mx.product import mx_linear

__all__ = ["MXLinear", "swap_linears"]


class MXLinear(nn.Module):
    """y = x wᵀ + bias, weights held as int8 mantissas and shared exponents: 1 + 1 / group bytes a weight."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, group: int = GROUP,
        device=None, dtype: torch.dtype | None = None,
    ):  # fmt: skip
        """`dtype` is the bias's. Weights are zeros until they are loaded or come from a layer."""
        super().__init__()
        self.in_features, self.out_features, self.group = in_features, out_features, group
        groups = group_count(in_features, group)
        self.register_buffer("mantissas", torch.zeros(out_features, in_features, dtype=torch.int8, device=device))
        self.register_buffer("exponents", torch.zeros(out_features, groups, dtype=torch.uint8, device=device))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device)) if bias else None

    @classmethod
    def from_linear(cls, layer: nn.Linear, group: int = GROUP) -> "MXLinear":
        """The same layer, its weights rounded to the format; the bias is the layer's own."""
        new = cls(layer.in_features, layer.out_features, False, group, layer.weight.device)
        made = quantize(layer.weight.detach().contiguous(), group)
        new.mantissas.copy_(made.mantissas)
        new.exponents.copy_(made.exponents)
        new.bias = layer.bias
        return new.train(layer.training)

    @property
    def quantized(self) -> Quantized:
        return Quantized(self.mantissas, self.exponents, self.group)

    @property
    def weight(self) -> torch.Tensor:
        """Made anew at every reading, for code that asks a layer for its weight; in the bias's type where it can be."""
        wide = self.bias is not None and self.bias.dtype == torch.float32
        return dequantize(self.quantized, torch.float32 if wide else torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mx_linear(x, self.quantized, self.bias)

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, bias={self.bias is not None}, group={self.group}"


def swap_linears(model: nn.Module, skip: Iterable[str] = (), group: int = GROUP) -> list[str]:
    """Put an MXLinear in the place of every nn.Linear of `model`, and return their names.

    skip: names or patterns of what stays, such as "lm_head", "blocks.0.*", "*.gate". Subclasses of nn.Linear stay too,
    since their owners expect more of them, and so do weights that another kind of module shares (a tied embedding),
    which would be held twice. A layer used in two places is swapped once.
    """
    patterns, new, swapped = tuple(skip), {}, []
    shared = {
        id(parameter)
        for module in model.modules()
        if type(module) is not nn.Linear
        for parameter in module.parameters(recurse=False)
    }
    for parent_name, parent in list(model.named_modules(remove_duplicate=False)):
        for name, child in list(parent._modules.items()):
            full = f"{parent_name}.{name}".lstrip(".")
            if type(child) is not nn.Linear or id(child.weight) in shared:
                continue
            if any(fnmatch.fnmatchcase(full, pattern) for pattern in patterns):
                continue
            if id(child) not in new:
                new[id(child)] = child, MXLinear.from_linear(child, group)
            setattr(parent, name, new[id(child)][1])
            swapped.append(full)
    return swapped
