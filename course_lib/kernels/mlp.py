"""Linear, GELU, linear: with a choice of what is kept for the way back.

    h = x w1ᵀ + b1      a = gelu(h)      y = a w2ᵀ + b2             x (M, d), w1 (n, d), w2 (d, n), y (M, d)

    da = dy w2          dh = da gelu'(h)
    dw2 = dyᵀ a         dw1 = dhᵀ x      dx = dh w1      db1, db2: the sums of the rows of dh and dy

Forward 4 M d n FLOP in two products, backward twice that in four. What the four need is x, h and a, and `keep` says
which of them are held from forward to backward; the rest is made again:

    "everything"       x, h, a     bf16: 2 M (d + 2 n) bytes      nothing
    "pre-activation"   x, h              2 M (d + n)              a, one GELU an element, where h is read anyway
    "input"            x                 2 M d                    h and a: the first product again, 7 products for 6

At d 1152, n 4304, M 16384: 305, 170 and 36 MiB. GELU and its slope are at the ends of products (linear_gelu), so making
a again moves no byte that would not move; making h again costs a sixth more FLOP, and that is a sixth more time.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch.autograd.function import once_differentiable

from course_lib.kernels.linear_gelu import gelu_reference, linear_gelu, product_through_gelu

__all__ = ["KEEP", "bytes_kept", "mlp", "mlp_operator", "mlp_reference"]

Keep = Literal["everything", "pre-activation", "input"]
KEEP = ("everything", "pre-activation", "input")


def mlp_reference(x, w1, b1, w2, b2):
    """In whatever type they are."""
    linear = torch.nn.functional.linear
    return linear(gelu_reference(linear(x, w1, b1)), w2, b2)


def bytes_kept(rows: int, width: int, hidden: int, keep: Keep, element_size: int = 2) -> int:
    """Of activations, from forward to backward, x among them."""
    return element_size * rows * (width + {"everything": 2, "pre-activation": 1, "input": 0}[keep] * hidden)


@torch.no_grad()
def _forward(x, w1, b1, w2, b2, keep: Keep):
    """x (M, d) -> y, and h and a where they are kept, else None."""
    h = None if keep == "input" else x.new_empty(x.shape[0], w1.shape[0])
    a = linear_gelu(x, w1, b1, h=h)
    y = torch.mm(a, w2.mT) if b2 is None else torch.addmm(b2, a, w2.mT)
    return y, h, a if keep == "everything" else None


@torch.no_grad()
def _backward(dy, x, w1, b1, w2, h, a, needs: Sequence[bool]):
    """Gradients of x, w1, b1, w2, b2, those that `needs` names; h and a as `_forward` left them."""
    need_x, need_w1, need_b1, need_w2, need_b2 = needs
    dy = dy.contiguous()
    db2 = dy.sum(0) if need_b2 else None
    dx = dw1 = db1 = dw2 = None
    through = need_x or need_w1 or need_b1
    dh = None
    if h is None:  # both are ours: a goes when it has been used, and dh takes the place of h
        dh = h = x.new_empty(x.shape[0], w1.shape[0])
        a = linear_gelu(x, w1, b1, h=h)
    if a is not None and need_w2:
        dw2 = torch.mm(dy.mT, a)
    again = torch.empty_like(h) if a is None and need_w2 else None
    del a
    if through:
        dh, sums = product_through_gelu(dy, w2, h, dh, again)
    elif again is not None:
        again = gelu_reference(h)
    if again is not None:
        dw2 = torch.mm(dy.mT, again)
    del again
    if need_b1:
        db1 = sums.to(b1.dtype)
    if need_w1:
        dw1 = torch.mm(dh.mT, x)
    if need_x:
        dx = torch.mm(dh, w1)
    return dx, dw1, db1, dw2, db2


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2, keep):
        y, h, a = _forward(x, w1, b1, w2, b2, keep)
        ctx.save_for_backward(x, w1, b1, w2, h, a)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *_backward(dy, *ctx.saved_tensors, ctx.needs_input_grad[:5]), None


def _given(x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """An operator returns tensors and no None: what there is not is empty."""
    return like.new_empty(0) if x is None else x


def _or_none(x: torch.Tensor) -> torch.Tensor | None:
    return x if x.dim() == 2 else None


@torch.library.custom_op("speed_of_light::mlp", mutates_args=())
def mlp_operator(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor, b2: torch.Tensor | None, keep: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x (M, d) -> y, h, a; h and a are empty where they are not kept. To torch.compile it is one node."""
    y, h, a = _forward(x, w1, b1, w2, b2, keep)
    return y, _given(h, x), _given(a, x)


@mlp_operator.register_fake
def _(x, w1, b1, w2, b2, keep):
    hidden = (x.shape[0], w1.shape[0])
    h = x.new_empty(0 if keep == "input" else hidden)
    return x.new_empty(x.shape[0], w2.shape[0]), h, x.new_empty(hidden if keep == "everything" else 0)


@torch.library.custom_op("speed_of_light::mlp_backward", mutates_args=())
def _backward_operator(
    dy: torch.Tensor, x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor,
    h: torch.Tensor, a: torch.Tensor, needs: Sequence[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    dx, dw1, db1, dw2, db2 = _backward(dy, x, w1, b1, w2, _or_none(h), _or_none(a), needs)
    return _given(dx, x), _given(dw1, x), _given(db1, x), _given(dw2, x), _given(db2, x)


@_backward_operator.register_fake
def _(dy, x, w1, b1, w2, h, a, needs):
    shapes = (x.shape, w1.shape, w1.shape[:1], w2.shape, w2.shape[:1])
    return tuple(x.new_empty(shape if need else 0) for shape, need in zip(shapes, needs))


def _keep_for_backward(ctx, inputs, output):
    x, w1, b1, w2, *_ = inputs
    ctx.save_for_backward(x, w1, b1, w2, *output[1:])


def _operator_backward(ctx, dy, _dh, _da):
    needs = list(ctx.needs_input_grad[:5])
    grads = _backward_operator(dy, *ctx.saved_tensors, needs)
    return *(grad if need else None for grad, need in zip(grads, needs)), None


mlp_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


def _check(x, w1, b1, w2, b2, keep) -> None:
    assert keep in KEEP, f"keep is one of {KEEP}, not {keep!r}"
    assert w1.dim() == w2.dim() == 2 and w2.shape[1] == w1.shape[0], f"w1 {tuple(w1.shape)}, w2 {tuple(w2.shape)}"
    assert x.shape[-1] == w1.shape[1], f"x {tuple(x.shape)} does not end in {w1.shape[1]}"
    for name, bias, w in (("b1", b1, w1), ("b2", b2, w2)):
        assert bias is None or bias.shape == w.shape[:1], f"{name} {tuple(bias.shape)} for {w.shape[0]} columns"
    types = {t.dtype for t in (x, w1, b1, w2, b2) if t is not None}
    assert len(types) == 1, f"one type for all, not {sorted(map(str, types))}"


def mlp(x, w1, b1, w2, b2, keep: Keep = "pre-activation") -> torch.Tensor:
    """gelu(x w1ᵀ + b1) w2ᵀ + b2, tanh form, differentiable in all five: x (..., d), w1 (n, d), w2 (d_out, n).

    fp16, bf16 or fp32, one type; biases may be None. `keep` says what is held for backward, see above.
    """
    _check(x, w1, b1, w2, b2, keep)
    rows = x.reshape(-1, x.shape[-1])
    if torch.compiler.is_compiling():
        y = mlp_operator(rows, w1, b1, w2, b2, keep)[0]
    else:  # a Function costs the host 4 us a call, an operator 20
        y = _MLP.apply(rows, w1, b1, w2, b2, keep)
    return y.view(*x.shape[:-1], w2.shape[0])
