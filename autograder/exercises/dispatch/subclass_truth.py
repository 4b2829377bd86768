"""The tensor that is asked for, and the ones that people write: one method overridden each."""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
KEPT = (aten.clone.default, aten._unsafe_view.default)
PRODUCTS = (aten.mm.default, aten.bmm.default)
SCALINGS = (aten.mul.Tensor, aten.div.Tensor, aten.neg.default)
IN_PLACE = (aten.mul_.Tensor, aten.div_.Tensor)


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, held, scale, base=None):
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, **cls.facts(held))

    @classmethod
    def facts(cls, held):
        return {"strides": held.stride(), "dtype": held.dtype, "device": held.device}

    def __init__(self, held, scale, base=None):
        self.held, self.base, self.own = held, base, scale

    @property
    def scale(self):
        """That of what this is a view of, whatever becomes of it."""
        return self.own if self.base is None else self.base.scale

    def scale_by(self, scale):
        if self.base is not None:
            raise TypeError("one scale cannot say that a part was scaled")
        self.own = scale

    def __repr__(self):
        return f"Scaled({self.held}, {self.scale})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            return cls.write(func, args, kwargs)
        if func in SCALINGS and cls.is_scaling(args):
            return cls.rescale(func, args)
        if cls.is_kept(func):
            return cls.moved(func, args, kwargs)
        return cls.product(func, *args) if func in PRODUCTS else cls.compute(func, args, kwargs)

    @classmethod
    def write(cls, func, args, kwargs):
        if func in IN_PLACE and cls.is_scaling(args):
            args[0].scale_by(cls.new_scale(func, args))
            return args[0]
        written = [a for a, told in zip(args, func._schema.arguments, strict=False) if _is_written(told)]
        written += [kwargs[told.name] for told in func._schema.arguments if _is_written(told) and told.name in kwargs]
        if any(isinstance(one, cls) for one in written):
            raise TypeError(f"{func} would write into a copy")
        return cls.compute(func, args, kwargs)

    @classmethod
    def is_scaling(cls, args):
        return isinstance(args[0], cls) and not any(isinstance(a, torch.Tensor) for a in args[1:])

    @classmethod
    def new_scale(cls, func, args):
        x, *rest = args
        return x.scale * rest[0] if "mul" in func.name() else x.scale / rest[0] if rest else -x.scale

    @classmethod
    def rescale(cls, func, args):
        return cls(args[0].held, cls.new_scale(func, args))

    @classmethod
    def is_kept(cls, func):
        return func.is_view or func in KEPT

    @classmethod
    def moved(cls, func, args, kwargs):
        out = func(args[0].held, *args[1:], **kwargs)
        base = args[0] if func.is_view else None
        return tree_map(lambda held: cls(held, args[0].scale, base), out)

    @classmethod
    def product(cls, func, a, b):
        return cls(func(cls.held_of(a), cls.held_of(b)), cls.scale_of(a) * cls.scale_of(b))

    @classmethod
    def held_of(cls, x):
        return x.held if isinstance(x, cls) else x

    @classmethod
    def scale_of(cls, x):
        return x.scale if isinstance(x, cls) else 1.0

    @classmethod
    def compute(cls, func, args, kwargs):
        return func(*cls.unwrap(args), **cls.unwrap(kwargs))

    @classmethod
    def unwrap(cls, tree):
        return tree_map(cls.plain, tree)

    @classmethod
    def plain(cls, x):
        return x.held * x.scale if isinstance(x, cls) else x


def _is_written(argument) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


# ------------------------------------------------------------------------------------------- what people write


class ScaleLostInViews(Scaled):
    @classmethod
    def moved(cls, func, args, kwargs):
        return tree_map(lambda held: cls(held, 1.0), func(args[0].held, *args[1:], **kwargs))


class HeldOfViews(Scaled):
    """Views of what is held, and no wrapper around them."""

    @classmethod
    def moved(cls, func, args, kwargs):
        return func(args[0].held, *args[1:], **kwargs)


class ViewsComputed(Scaled):
    @classmethod
    def is_kept(cls, func):
        return func in KEPT


class NothingKept(Scaled):
    @classmethod
    def is_kept(cls, func):
        return False


class CloneComputed(Scaled):
    @classmethod
    def is_kept(cls, func):
        return func.is_view


class UnsafeViewComputed(Scaled):
    @classmethod
    def is_kept(cls, func):
        return func.is_view or func is aten.clone.default


class ViewsLeftBehind(Scaled):
    """A view keeps the scale that it began with."""

    @property
    def scale(self):
        return self.own


class EachForItself(ViewsLeftBehind):
    """Views are tensors like others."""

    def scale_by(self, scale):
        self.own = scale


class BaseScaledByPart(Scaled):
    def scale_by(self, scale):
        whole = self
        while whole.base is not None:
            whole = whole.base
        whole.own = scale


class PartScaledByItself(Scaled):
    """A view follows its base until it is scaled itself."""

    def scale_by(self, scale):
        self.own, self.base = scale, None


class PartsForgotten(Scaled):
    """Wraps one tensor; of several, none."""

    @classmethod
    def moved(cls, func, args, kwargs):
        out = func(args[0].held, *args[1:], **kwargs)
        return super().moved(func, args, kwargs) if isinstance(out, torch.Tensor) else out


class NumbersComputed(Scaled):
    @classmethod
    def rescale(cls, func, args):
        return cls.compute(func, args, {})


class NumbersIntoHeld(Scaled):
    @classmethod
    def rescale(cls, func, args):
        return cls(func(args[0].held, *args[1:]), args[0].scale)


class NumbersTwice(Scaled):
    @classmethod
    def rescale(cls, func, args):
        return cls(func(args[0].held, *args[1:]), cls.new_scale(func, args))


class DivisionMultiplies(Scaled):
    @classmethod
    def new_scale(cls, func, args):
        return args[0].scale * args[1] if len(args) > 1 else -args[0].scale


class EveryDivision(Scaled):
    """All overloads of div, the one that rounds too."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is aten.div.Tensor_mode and cls.is_scaling(args):
            return cls.rescale(func, args)
        return super().__torch_dispatch__(func, types, args, kwargs)


class FactorsAlike(Scaled):
    """The second factor's scale goes into the result, as if every product were one with a number."""

    @classmethod
    def is_scaling(cls, args):
        return isinstance(args[0], cls)

    @classmethod
    def new_scale(cls, func, args):
        x, *rest = args
        other = [cls.scale_of(a) if isinstance(a, torch.Tensor) else a for a in rest]
        return super().new_scale(func, (x, *other))


class LeftScaleOnly(Scaled):
    @classmethod
    def product(cls, func, a, b):
        first = next(x for x in (a, b) if isinstance(x, cls))
        return cls(func(cls.held_of(a), cls.held_of(b)), first.scale)


class SecondScaleForgotten(Scaled):
    @classmethod
    def product(cls, func, a, b):
        return cls(func(cls.held_of(a), cls.held_of(b)), cls.scale_of(a))


class ScalesAdded(Scaled):
    @classmethod
    def product(cls, func, a, b):
        scales = [x.scale for x in (a, b) if isinstance(x, cls)]
        return cls(func(cls.held_of(a), cls.held_of(b)), sum(scales))


class ProductsComputed(Scaled):
    @classmethod
    def product(cls, func, a, b):
        return cls.compute(func, (a, b), {})


class BatchedComputed(Scaled):
    @classmethod
    def product(cls, func, a, b):
        return super().product(func, a, b) if func is aten.mm.default else cls.compute(func, (a, b), {})


class ListsMissed(Scaled):
    @classmethod
    def unwrap(cls, tree):
        return {k: cls.plain(v) for k, v in tree.items()} if isinstance(tree, dict) else [cls.plain(v) for v in tree]


class FirstArgumentOnly(Scaled):
    @classmethod
    def unwrap(cls, tree):
        return [cls.plain(tree[0]), *tree[1:]] if isinstance(tree, list | tuple) and tree else tree


class KeywordsDropped(Scaled):
    @classmethod
    def compute(cls, func, args, kwargs):
        return func(*cls.unwrap(args))


class ComputedOnHeld(Scaled):
    @classmethod
    def plain(cls, x):
        return cls.held_of(x)


class WrappedAgain(Scaled):
    """Results of plain computations, with the first scale around them."""

    @classmethod
    def compute(cls, func, args, kwargs):
        out = super().compute(func, args, kwargs)
        scale = next(a.scale for a in tree_leaves((args, kwargs)) if isinstance(a, cls))
        return tree_map(lambda t: cls(t, scale) if isinstance(t, torch.Tensor) else t, out)


class HeldWrappedAgain(WrappedAgain):
    @classmethod
    def plain(cls, x):
        return cls.held_of(x)


class UnwrappedByItself(Scaled):
    """Multiplies the wrapper, which gives a wrapper."""

    @classmethod
    def plain(cls, x):
        return x * x.scale if isinstance(x, cls) else x


class WritesLost(Scaled):
    @classmethod
    def write(cls, func, args, kwargs):
        if func in IN_PLACE and cls.is_scaling(args):
            return super().write(func, args, kwargs)
        return cls.compute(func, args, kwargs)


class EveryWriteLost(Scaled):
    """Scaling in place too."""

    @classmethod
    def write(cls, func, args, kwargs):
        return cls.compute(func, args, kwargs)


class WritesIntoHeld(Scaled):
    @classmethod
    def write(cls, func, args, kwargs):
        if func in IN_PLACE and cls.is_scaling(args):
            return super().write(func, args, kwargs)
        func(*tree_map(cls.held_of, args), **tree_map(cls.held_of, kwargs))
        return args[0]


class InPlaceAnew(Scaled):
    @classmethod
    def write(cls, func, args, kwargs):
        if func in IN_PLACE and cls.is_scaling(args):
            return cls.rescale(func, args)
        return super().write(func, args, kwargs)


class EveryWriteRefused(Scaled):
    @classmethod
    def write(cls, func, args, kwargs):
        if func in IN_PLACE and cls.is_scaling(args):
            return super().write(func, args, kwargs)
        raise TypeError("nothing may be written")


class InPlaceRefused(Scaled):
    @classmethod
    def write(cls, func, args, kwargs):
        if func in IN_PLACE and cls.is_scaling(args):
            raise TypeError("nothing may be written")
        return super().write(func, args, kwargs)


class StridesForgotten(Scaled):
    @classmethod
    def facts(cls, held):
        return {"dtype": held.dtype, "device": held.device}


class TypeForgotten(Scaled):
    @classmethod
    def facts(cls, held):
        return {"strides": held.stride(), "device": held.device}
