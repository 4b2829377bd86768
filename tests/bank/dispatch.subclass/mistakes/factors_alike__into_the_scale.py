"""A second factor that is a tensor goes into the scale."""

import torch
from torch.utils._pytree import tree_map

aten = torch.ops.aten

KILLED_BY = "products with tensors"


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, held, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device
        )

    def __init__(self, held, scale):
        self.held = held
        self.scale = scale

    def __repr__(self):
        return f"Scaled({self.held}, {self.scale})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        x = args[0]
        by_number = isinstance(x, cls) and not any(isinstance(a, torch.Tensor) for a in args[1:])

        if func is aten.mul_.Tensor and by_number:
            x.scale = x.scale * args[1]
            return x
        if func is aten.div_.Tensor and by_number:
            x.scale = x.scale / args[1]
            return x
        if func._schema.is_mutable:
            target = kwargs.get("out", x)
            if isinstance(target, cls):
                raise TypeError(f"{func} cannot write into a Scaled")

        if func is aten.mul.Tensor and isinstance(x, cls):
            return cls(x.held, x.scale * cls.plain(args[1]))
        if func is aten.div.Tensor and by_number:
            return cls(x.held, x.scale / args[1])
        if func is aten.neg.default:
            return cls(x.held, -x.scale)

        if func.is_view or func in (aten.clone.default, aten._unsafe_view.default):
            out = func(x.held, *args[1:], **kwargs)
            return tree_map(lambda t: cls(t, x.scale), out)

        if func in (aten.mm.default, aten.bmm.default):
            a, b = args
            scale = getattr(a, "scale", 1.0) * getattr(b, "scale", 1.0)
            return cls(func(getattr(a, "held", a), getattr(b, "held", b)), scale)

        args = tree_map(cls.plain, args)
        kwargs = tree_map(cls.plain, kwargs)
        return func(*args, **kwargs)

    @classmethod
    def plain(cls, t):
        return t.held * t.scale if isinstance(t, cls) else t
