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

What is made and not kept has hidden layers too: forward a, backward da and dh and what is made again, 4 M n bytes and
more at the highest point of a step. No row needs another one but for the sums over all of them, so rows can go through
in pieces, `at_once` rows at a time. Then so many rows of hidden layers exist at once, and dw1 and dw2 are added up
piece by piece, rounded once each.
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


def _pieces(rows: int, at_once: int) -> list[slice]:
    """All rows in pieces of one size, at most `at_once` rows each; 0: in one."""
    count = max(1, -(-rows // at_once)) if at_once else 1
    size = -(-rows // count)
    return [slice(i * size, min((i + 1) * size, rows)) for i in range(count)]


def _rows_of(x: torch.Tensor | None, piece: slice) -> torch.Tensor | None:
    """A view costs the host 2 us: none where the piece is all there is."""
    return x if x is None or len(x) == piece.stop - piece.start else x[piece]


def _forward(x, w1, b1, w2, b2, keep: Keep, at_once: int = 0):
    """x (M, d) -> y, and h and a where they are kept, else None."""
    h = None if keep == "input" else x.new_empty(x.shape[0], w1.shape[0])
    y = x.new_empty(x.shape[0], w2.shape[0])
    for piece in _pieces(x.shape[0], 0 if keep == "everything" else at_once):
        a, out = linear_gelu(_rows_of(x, piece), w1, b1, h=_rows_of(h, piece)), _rows_of(y, piece)
        if b2 is None:
            torch.mm(a, w2.mT, out=out)
        else:
            torch.addmm(b2, a, w2.mT, out=out)
    return y, h, a if keep == "everything" else None


def _backward(dy, x, w1, b1, w2, h, a, needs: Sequence[bool], at_once: int = 0):
    """Gradients of x, w1, b1, w2, b2, those that `needs` names; h and a as `_forward` left them."""
    dy = dy.contiguous()
    db2 = dy.sum(0) if needs[4] else None
    dx = dw1 = db1 = dw2 = None
    for piece in _pieces(x.shape[0], at_once):
        dx, dw1, db1, dw2 = _add_piece(piece, dx, dw1, db1, dw2, dy, x, w1, b1, w2, h, a, needs)
    return dx, dw1, db1.to(b1.dtype) if needs[2] else None, dw2, db2


def _add_piece(piece: slice, dx, dw1, db1, dw2, dy, x, w1, b1, w2, h, a, needs: Sequence[bool]):
    """The same gradients, db1 in fp32, with what some rows give or add. None: nothing yet."""
    need_x, need_w1, need_b1, need_w2, _ = needs
    all_rows = x.shape
    dy, x, h, a = (_rows_of(t, piece) for t in (dy, x, h, a))
    dh = None
    if h is None:  # both are ours: a goes when it has been used, and dh takes the place of h
        dh = h = x.new_empty(x.shape[0], w1.shape[0])
        a = linear_gelu(x, w1, b1, h=h)
    if a is not None and need_w2:
        dw2 = _plus_product(dw2, dy.mT, a)
    again = torch.empty_like(h) if a is None and need_w2 else None
    del a
    if need_x or need_w1 or need_b1:
        dh, of_rows = product_through_gelu(dy, w2, h, dh, again)
        db1 = of_rows if db1 is None else db1 + of_rows
    elif again is not None:
        again = gelu_reference(h)
    if again is not None:
        dw2 = _plus_product(dw2, dy.mT, again)
    del again
    if need_w1:
        dw1 = _plus_product(dw1, dh.mT, x)
    if need_x:
        dx = x.new_empty(all_rows) if dx is None else dx
        torch.mm(dh, w1, out=_rows_of(dx, piece))
    return dx, dw1, db1, dw2


def _plus_product(total: torch.Tensor | None, a, b) -> torch.Tensor:
    """total + a b, in the memory of total: summed in fp32, rounded once a piece."""
    return torch.mm(a, b) if total is None else total.addmm_(a, b)


class _MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2, keep, at_once):
        y, h, a = _forward(x, w1, b1, w2, b2, keep, at_once)
        ctx.save_for_backward(x, w1, b1, w2, h, a)
        ctx.at_once = at_once
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return *_backward(dy, *ctx.saved_tensors, ctx.needs_input_grad[:5], ctx.at_once), None, None


def _given(x: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
    """An operator returns tensors and no None: what there is not is empty."""
    return like.new_empty(0) if x is None else x


def _or_none(x: torch.Tensor) -> torch.Tensor | None:
    return x if x.dim() == 2 else None


@torch.library.custom_op("speed_of_light::mlp", mutates_args=())
def mlp_operator(
    x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor, b2: torch.Tensor | None, keep: str,
    at_once: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """x (M, d) -> y, h, a; h and a are empty where they are not kept. To torch.compile it is one node."""
    with torch.no_grad():
        y, h, a = _forward(x, w1, b1, w2, b2, keep, at_once)
    return y, _given(h, x), _given(a, x)


@mlp_operator.register_fake
def _(x, w1, b1, w2, b2, keep, at_once=0):
    hidden = (x.shape[0], w1.shape[0])
    h = x.new_empty(0 if keep == "input" else hidden)
    return x.new_empty(x.shape[0], w2.shape[0]), h, x.new_empty(hidden if keep == "everything" else 0)


@torch.library.custom_op("speed_of_light::mlp_backward", mutates_args=())
def _backward_operator(
    dy: torch.Tensor, x: torch.Tensor, w1: torch.Tensor, b1: torch.Tensor | None, w2: torch.Tensor,
    h: torch.Tensor, a: torch.Tensor, needs: Sequence[bool], at_once: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    with torch.no_grad():
        dx, dw1, db1, dw2, db2 = _backward(dy, x, w1, b1, w2, _or_none(h), _or_none(a), needs, at_once)
    return _given(dx, x), _given(dw1, x), _given(db1, x), _given(dw2, x), _given(db2, x)


@_backward_operator.register_fake
def _(dy, x, w1, b1, w2, h, a, needs, at_once=0):
    shapes = (x.shape, w1.shape, w1.shape[:1], w2.shape, w2.shape[:1])
    return tuple(x.new_empty(shape if need else 0) for shape, need in zip(shapes, needs))


def _keep_for_backward(ctx, inputs, output):
    x, w1, b1, w2, *_, ctx.at_once = inputs
    ctx.save_for_backward(x, w1, b1, w2, *output[1:])


def _operator_backward(ctx, dy, _dh, _da):
    needs = list(ctx.needs_input_grad[:5])
    grads = _backward_operator(dy, *ctx.saved_tensors, needs, ctx.at_once)
    return *(grad if need else None for grad, need in zip(grads, needs)), None, None


mlp_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


def _check(x, w1, b1, w2, b2, keep, at_once) -> None:
    assert keep in KEEP, f"keep is one of {KEEP}, not {keep!r}"
    assert at_once >= 0, f"at_once is a number of rows, or 0 for all, not {at_once}"
    assert w1.dim() == w2.dim() == 2 and w2.shape[1] == w1.shape[0], f"w1 {tuple(w1.shape)}, w2 {tuple(w2.shape)}"
    assert x.shape[-1] == w1.shape[1], f"x {tuple(x.shape)} does not end in {w1.shape[1]}"
    for name, bias, w in (("b1", b1, w1), ("b2", b2, w2)):
        assert bias is None or bias.shape == w.shape[:1], f"{name} {tuple(bias.shape)} for {w.shape[0]} columns"
    types = {t.dtype for t in (x, w1, b1, w2, b2) if t is not None}
    assert len(types) == 1, f"one type for all, not {sorted(map(str, types))}"


def mlp(x, w1, b1, w2, b2, keep: Keep = "pre-activation", at_once: int = 0) -> torch.Tensor:
    """gelu(x w1ᵀ + b1) w2ᵀ + b2, tanh form, differentiable in all five: x (..., d), w1 (n, d), w2 (d_out, n).

    fp16, bf16 or fp32, one type; biases may be None. `keep` says what is held for backward, `at_once` how
    many rows are worked on at a time, see above.
    """
    _check(x, w1, b1, w2, b2, keep, at_once)
    rows = x.reshape(-1, x.shape[-1])
    if torch.compiler.is_compiling():
        y = mlp_operator(rows, w1, b1, w2, b2, keep, at_once)[0]
    else:  # a Function costs the host 4 us a call, an operator 20
        y = _MLP.apply(rows, w1, b1, w2, b2, keep, at_once)
    return y.view(*x.shape[:-1], w2.shape[0])
