"""What others call: plain torch, the autograd Function, the operators for torch.compile, `add_norm`."""

import math
from typing import Literal

import torch
from torch.autograd.function import once_differentiable

from course_lib.kernels.add_norm.backward import write_backward
from course_lib.kernels.add_norm.forward import write_forward
from course_lib.kernels.add_norm.tuning import MAX_WIDTH
from course_lib.kernels.philox import draw_seed

__all__ = ["add_norm", "add_norm_operator", "add_norm_reference"]

InPlace = Literal["x", "both"]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def add_norm_reference(x, residual, weight, bias=None, eps: float = 1e-5):
    """(norm(x + residual), x + residual) in the types of x and of the residual; the norm is of the rounded sum."""
    s = x + residual
    y = torch.nn.functional.layer_norm(s.to(weight.dtype), s.shape[-1:], weight, bias, eps)
    return y.to(x.dtype), s.to(residual.dtype)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """(..., N) -> (rows, N), columns adjacent."""
    if x.dim() != 2:  # a view costs the host 2 us
        x = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return x if x.stride(1) == 1 or x.shape[1] == 1 else x.contiguous()


def _forward(x, residual, weight, bias, eps, p, seed, offset, in_place=None):
    """Of rows; y, s, mean, rstd."""
    y = x if in_place else torch.empty_like(x, memory_format=torch.contiguous_format)
    s = residual if in_place == "both" else torch.empty_like(residual, memory_format=torch.contiguous_format)
    mean, rstd = (torch.empty(len(x), dtype=torch.float32, device=x.device) for _ in range(2))
    write_forward(y, s, mean, rstd, x, residual, weight, bias, eps, p, seed, offset)
    return y, s, mean, rstd


def _backward(dy, ds, s, weight, biased: bool, mean, rstd, p, seed, offset, x_bias=None):
    """Of rows: gradients of the residual, of x, of weight, bias and x_bias. That of x is None where it is that of the
    residual, and those of biases where there are none."""
    d = torch.empty_like(s, memory_format=torch.contiguous_format)
    other = seed is not None or dy.dtype != s.dtype
    dx = torch.empty_like(d, dtype=dy.dtype) if other else None
    dw = torch.empty_like(weight)
    db = torch.empty_like(weight) if biased else None
    sum_x = None if x_bias is None else torch.empty_like(x_bias)
    ds = None if ds is None else _rows(ds)
    write_backward(d, dx, dw, db, _rows(dy), ds, s, weight, mean, rstd, p, seed, offset, sum_x=sum_x)
    return d, dx, dw, db, sum_x


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, bias, x_bias, eps, p, seed, offset, in_place):
        ctx.set_materialize_grads(False)
        for written in {"x": (x,), "both": (x, residual)}.get(in_place, ()):
            # Whoever kept the old values for a backward pass is told so there; mark_dirty takes no views.
            torch.autograd.graph.increment_version(written)
        y, s, mean, rstd = _forward(x, residual, weight, bias, eps, p, seed, offset, in_place)
        if in_place:  # under new names, as if just made
            y, s = y.detach(), s.detach() if in_place == "both" else s
        ctx.save_for_backward(s, weight, mean, rstd, seed, x_bias)
        ctx.how, ctx.y_dtype = (bias is not None, p, offset), y.dtype
        return y, s

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, ds):
        s, weight, mean, rstd, seed, x_bias = ctx.saved_tensors
        biased, p, offset = ctx.how
        dy = torch.zeros_like(s, dtype=ctx.y_dtype) if dy is None else dy
        d, dx, *of_vectors = _backward(dy, ds, s, weight, biased, mean, rstd, p, seed, offset, x_bias)
        return d if dx is None else dx, d, *of_vectors, *(None,) * 5


@torch.library.custom_op("speed_of_light::add_norm", mutates_args=())
def add_norm_operator(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float,
    p: float, seed: torch.Tensor | None, offset: int, x_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(rows, N) -> y, s, and mean and rstd (rows,) for backward. To torch.compile it is one node."""
    return _forward(x, residual, weight, bias, eps, p, seed, offset)


@add_norm_operator.register_fake
def _(x, residual, weight, bias, eps, p, seed, offset, x_bias=None):
    y, s = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, residual))
    return y, s, *(x.new_empty(x.shape[0], dtype=torch.float32) for _ in range(2))


@torch.library.custom_op("speed_of_light::add_norm_backward", mutates_args=())
def _backward_operator(
    dy: torch.Tensor, ds: torch.Tensor | None, s: torch.Tensor, weight: torch.Tensor, biased: bool,
    mean: torch.Tensor, rstd: torch.Tensor, p: float, seed: torch.Tensor | None, offset: int,
    x_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """d, dx, dw, db, and the gradient of x_bias; what there is not is empty, since an operator returns tensors, each
    with memory."""
    made = _backward(dy, ds, s, weight, biased, mean, rstd, p, seed, offset, x_bias)
    return tuple(weight.new_empty(0) if one is None else one for one in made)


@_backward_operator.register_fake
def _(dy, ds, s, weight, biased, mean, rstd, p, seed, offset, x_bias=None):
    d = torch.empty_like(s, memory_format=torch.contiguous_format)
    other = seed is not None or dy.dtype != s.dtype
    dx = torch.empty_like(d, dtype=dy.dtype) if other else None
    db, sum_x = torch.empty_like(weight) if biased else None, None if x_bias is None else torch.empty_like(x_bias)
    return tuple(weight.new_empty(0) if one is None else one for one in (d, dx, torch.empty_like(weight), db, sum_x))


def _keep_for_backward(ctx, inputs, output):
    _, _, weight, bias, _, p, seed, offset, x_bias = inputs
    y, s, mean, rstd = output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(s, weight, mean, rstd, seed, x_bias)
    ctx.how, ctx.y_dtype = (bias is not None, p, offset), y.dtype


def _operator_backward(ctx, dy, ds, _dmean, _drstd):
    s, weight, mean, rstd, seed, x_bias = ctx.saved_tensors
    biased, p, offset = ctx.how
    dy = torch.zeros_like(s, dtype=ctx.y_dtype) if dy is None else dy
    d, dx, dw, db, sum_x = _backward_operator(dy, ds, s, weight, biased, mean, rstd, p, seed, offset, x_bias)
    same = seed is None and dy.dtype == s.dtype
    return d if same else dx, d, dw, db if biased else None, *(None,) * 4, None if x_bias is None else sum_x


add_norm_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


def _check(x, residual, weight, bias, x_bias, p, offset, in_place) -> None:
    assert x.shape == residual.shape, f"x {tuple(x.shape)} and residual {tuple(residual.shape)} differ"
    width = x.shape[-1]
    assert 0 < width <= MAX_WIDTH, f"a row lies in one program's registers: at most {MAX_WIDTH} columns, not {width}"
    for name, vector in (("weight", weight), ("bias", bias), ("x_bias", x_bias)):
        assert vector is None or vector.shape == (width,), f"{name} {tuple(vector.shape)} for rows of {width}"
        assert vector is None or vector.is_contiguous(), f"{name} is contiguous"
    for t in (x, residual, weight, *(() if x_bias is None else (x_bias,))):
        assert t.dtype in DTYPES, f"one of {DTYPES}, not {t.dtype}"
    assert 0 <= p < 1 and offset % 4 == 0, f"0 <= p < 1 and an offset that is a multiple of 4, not {p} and {offset}"
    assert in_place in (None, "x", "both"), f'in_place is None, "x" or "both", not {in_place!r}'
    for name, t in {"x": (("x", x),), "both": (("x", x), ("residual", residual))}.get(in_place, ()):
        assert not (t.is_leaf and t.requires_grad and torch.is_grad_enabled()), f"{name} is a leaf with old values"
        assert t.is_contiguous(), f"in place {name} has to be contiguous"


def add_norm(
    x, residual, weight, bias=None, eps: float = 1e-5, p: float = 0.0, training: bool = True, seed=None,
    offset: int = 0, in_place: InPlace | None = None, x_bias=None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """s = dropout(x, p) + residual and y = layer_norm(s) weight + bias: (y, s), y in x's type, s in the residual's.

    x, residual (..., N), N at most 16384; weight, bias (N,). Differentiable in these and x_bias. The norm is that of
    the sum before it is rounded; kept for backward are s, 8 bytes a row and, with dropout, a seed (see philox.py).
    in_place: "x": y takes the memory of x. "both": s that of the residual as well. What is written over is used up: a
    backward pass that has kept the old values raises torch's error. (So where a stream of residuals goes from layer to
    layer in training, "x" is what can be asked for: s is kept here, and the next layer must not write over it.) In a
    graph that is being compiled the results are new tensors. Bytes: read x and residual, write y and s.
    x_bias (N,): a bias that is in x already, detached there, as in x = F.linear(h, w, x_bias.detach()). Its gradient is
    the sum of the rows of that of x, which is taken here, where they are in registers.
    """
    _check(x, residual, weight, bias, x_bias, p, offset, in_place)
    x_bias = x_bias if x_bias is not None and x_bias.requires_grad else None  # nobody asks for its sum
    if not training or p == 0:
        p, seed = 0.0, None
    elif seed is None:
        seed = draw_seed(x.device)
    given, how = (_rows(x), _rows(residual), weight, bias), (eps, p, seed, offset)
    if torch.compiler.is_compiling():
        y, s, *_ = add_norm_operator(*given, *how, x_bias)
    else:
        y, s = _AddNorm.apply(*given, x_bias, *how, in_place)  # a Function costs the host 4 us a call, an operator 20
    return (y, s) if x.dim() == 2 else (y.view(x.shape), s.view(residual.shape))
