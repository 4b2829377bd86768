"""A table from operators to functions, as a dispatcher has one."""

import torch

aten = torch.ops.aten


def unwrapped(value):
    if isinstance(value, Scaled):
        return torch.mul(value.held, value.scale)
    if isinstance(value, list | tuple):
        return type(value)(unwrapped(one) for one in value)
    return value


def wrapped(value, scale):
    if isinstance(value, torch.Tensor):
        return Scaled(value, scale)
    return type(value)(wrapped(one, scale) for one in value)


def views(value, shown):
    """Scaled tensors that share the place of a scale, and must not write into it."""
    if not isinstance(value, torch.Tensor):
        return type(value)(views(one, shown) for one in value)
    view = Scaled(value, shown[0])
    view.shown, view.is_part = shown, True
    return view


def parts(value):
    return (value.held, value.scale) if isinstance(value, Scaled) else (value, 1)


def like_view(func, x, *args, **kwargs):
    return views(func(x.held, *args, **kwargs), x.shown)


def copied(func, x, *args, **kwargs):
    return wrapped(func(x.held, *args, **kwargs), x.scale)


def product(func, a, b):
    (a, s), (b, t) = parts(a), parts(b)
    return Scaled(func(a, b), s * t)


def times(func, x, factor):
    return (
        Scaled(x.held, x.scale * factor) if is_number(factor) and isinstance(x, Scaled) else fallback(func, x, factor)
    )


def over(func, x, divisor):
    return times(func, x, 1 / divisor) if is_number(divisor) and isinstance(x, Scaled) else fallback(func, x, divisor)


def times_(func, x, factor):
    if not (is_number(factor) and isinstance(x, Scaled)):
        return fallback(func, x, factor)
    if x.is_part:
        raise TypeError("a part has no scale of its own")
    x.shown[0] *= factor
    return x


def over_(func, x, divisor):
    return times_(func, x, 1 / divisor) if is_number(divisor) else fallback(func, x, divisor)


def is_number(value):
    return not isinstance(value, torch.Tensor)


def fallback(func, *args, **kwargs):
    if func._schema.is_mutable:
        names = [told.name for told in func._schema.arguments if told.alias_info and told.alias_info.is_write]
        given = dict(zip([told.name for told in func._schema.arguments], args)) | kwargs
        if any(isinstance(given.get(name), Scaled) for name in names):
            raise TypeError("a Scaled has no memory to write into")
    return func(*unwrapped(args), **{name: unwrapped(value) for name, value in kwargs.items()})


KERNELS = {
    aten.mul.Tensor: times,
    aten.div.Tensor: over,
    aten.neg.default: lambda func, x: times(func, x, -1),
    aten.mul_.Tensor: times_,
    aten.div_.Tensor: over_,
    aten.clone.default: copied,
    aten._unsafe_view.default: copied,
    aten.mm.default: product,
    aten.bmm.default: product,
}


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, held, scale):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device=held.device
        )
        made.held, made.shown, made.is_part = held, [scale], False
        return made

    @property
    def scale(self):
        return self.shown[0]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kernel = KERNELS.get(func, like_view if func.is_view else fallback)
        return kernel(func, *args, **(kwargs or {}))
