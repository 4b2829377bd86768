"""The meter that is asked for, and the ones that people write: one rule overridden each."""

from __future__ import annotations

import math

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Meter(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.flops = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = self.in_parts(func, args, kwargs or {})
        if out is not NotImplemented:
            return out
        out = func(*args, **(kwargs or {}))
        self.flops += self.flops_of(_name(func), args, out)
        if not self.moves_nothing(func):
            self.bytes += self.read(self.given(args, kwargs or {})) + self.written(func, out)
        return out

    def in_parts(self, func, args, kwargs):
        """An operator that is made of others, as inference mode shows it: its parts come by and are counted."""
        with self:
            return func.decompose(*args, **kwargs)

    def given(self, args, kwargs) -> list:
        return [*args, *kwargs.values()]

    def flops_of(self, name: str, args, out) -> int:
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            a, b = args[-2:] if name in ("mm", "bmm") else args[1:3]
            return self.product(a.shape, b.shape)
        if name.startswith("_scaled_dot_product"):
            return self.attention(name, args)
        return self.convolution(name, args, out) if name.startswith("convolution") else 0

    def attention(self, name: str, args) -> int:
        back = name.endswith("_backward")
        q, k = (t.shape for t in args[back : back + 2])
        return (self.BACKWARD if back else 2) * 2 * math.prod(q) * k[-2]

    BACKWARD = 5  # products in the backward pass of attention: scores again, and gradients of v, p, q and k

    def convolution(self, name: str, args, out) -> int:
        if name == "convolution":
            return 2 * out.numel() * args[1][0].numel()
        grad, _, weight, *_, mask = args
        return 2 * grad.numel() * weight[0].numel() * self.gradients(mask)

    def gradients(self, mask) -> int:
        return sum(mask[:2])

    def product(self, a, b) -> int:
        return 2 * math.prod(a) * b[-1]

    def moves_nothing(self, func) -> bool:
        return self.is_view(func) or "empty" in _name(func)

    def is_view(self, func) -> bool:
        return func.is_view or _name(func) == "_unsafe_view"

    def read(self, given) -> int:
        return sum(self.size(t) for t in self.tensors_in(given))

    def written(self, func, out) -> int:
        return sum(self.size(t) for t in self.tensors_in(out))

    def tensors_in(self, values) -> list[torch.Tensor]:
        if isinstance(values, torch.Tensor):
            return [values]
        return [t for v in values for t in self.tensors_in(v)] if isinstance(values, list | tuple) else []

    def size(self, tensor) -> int:
        return tensor.numel() * tensor.element_size()


def _name(func) -> str:
    return func.name().partition("::")[2].partition(".")[0]


class WithoutTwo(Meter):
    def product(self, a, b):
        return super().product(a, b) // 2


class BatchForgotten(Meter):
    def product(self, a, b):
        return super().product(a[-2:], b)


class OnlyMm(Meter):
    def flops_of(self, name, args, out):
        return 0 if name in ("addmm", "baddbmm") else super().flops_of(name, args, out)


class OnlyTwoDimensions(Meter):
    def flops_of(self, name, args, out):
        return 0 if name in ("bmm", "baddbmm") else super().flops_of(name, args, out)


class WrongOperands(Meter):
    """The first two arguments of addmm, of which the first is the bias."""

    def flops_of(self, name, args, out):
        return self.product(*(a.shape for a in args[:2])) if "mm" in name else super().flops_of(name, args, out)


class WholeInInferenceMode(Meter):
    """Takes operators as they come."""

    def in_parts(self, func, args, kwargs):
        return NotImplemented


class PartsUnseen(Meter):
    """Lets an operator run in parts, and is not active while they run."""

    def in_parts(self, func, args, kwargs):
        return func.decompose(*args, **kwargs)


class AttentionMissed(Meter):
    def attention(self, name, args):
        return 0


class ConvolutionMissed(Meter):
    def convolution(self, name, args, out):
        return 0


class OnlyProducts(AttentionMissed, ConvolutionMissed):
    pass


class AttentionBackwardLikeForward(Meter):
    BACKWARD = 2


class FourBackward(Meter):
    """Two for each product of the forward pass: the scores are not kept, and are computed again."""

    BACKWARD = 4


class ConvolutionBackwardOnce(Meter):
    def gradients(self, mask):
        return 1


class ViewsCounted(Meter):
    def is_view(self, func):
        return False


class OnlyUnsafeViewKnown(Meter):
    def is_view(self, func):
        return _name(func) == "_unsafe_view"


class UnsafeViewCounted(Meter):
    def is_view(self, func):
        return func.is_view


class AllocationsCounted(Meter):
    def moves_nothing(self, func):
        return self.is_view(func)


class OnlyRead(Meter):
    def written(self, func, out):
        return 0


class OnlyWritten(Meter):
    def read(self, given):
        return 0


class ListsMissed(Meter):
    def read(self, given):
        return sum(self.size(t) for t in given if isinstance(t, torch.Tensor))


class KeywordsMissed(Meter):
    def given(self, args, kwargs):
        return list(args)


class AllListsMissed(ListsMissed):
    """Of results too."""

    def written(self, func, out):
        return self.size(out) if isinstance(out, torch.Tensor) else 0


class FirstResultOnly(Meter):
    def written(self, func, out):
        return super().written(func, out[0] if isinstance(out, tuple | list) and out else out)


class OneTensorResults(Meter):
    def written(self, func, out):
        return super().written(func, out) if isinstance(out, torch.Tensor) else 0


class FourBytes(Meter):
    def size(self, tensor):
        return 4 * tensor.numel()


class InPlaceOnce(Meter):
    def written(self, func, out):
        return 0 if _name(func).endswith("_") else super().written(func, out)


class EachTensorOnce(Meter):
    """A tensor that has two places, as two arguments or as argument and result."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = self.bytes
        out = super().__torch_dispatch__(func, types, args, kwargs)
        if self.bytes != before:
            places = self.tensors_in([*args, *(kwargs or {}).values(), out])
            self.bytes = before + sum(self.size(t) for t in {id(t): t for t in places}.values())
        return out


class WholeMemory(Meter):
    """The memory behind a tensor, however little of it the tensor shows."""

    def size(self, tensor):
        return tensor.untyped_storage().nbytes()
