"""Two parts of a block whose norm is made again on the way back, so that nobody keeps its result.

    x = branch + x,  y = norm(x)    then    m = down(gelu(up(y)))    or    y wᵀ + b

A linear layer keeps its input for the gradient of its weight. Here that input is a norm, and x, from which it came, is
kept anyway, with the mean and 1 / deviation of each row: so y is made once more in backward. That reads and writes a
row of the width, 4 bytes a number in bf16, and saves 2 bytes a number from forward to backward, twice a layer.

y is made again from x as it was rounded, and forward from the sum before: in 16 bits the two differ by roundings. Each
part is one autograd Function of operators that are there already, and torch.compile takes both as they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.kernels.add_norm import add_norm_operator
from course_lib.kernels.mlp import Keep, mlp_operator

__all__ = ["added_linear", "added_mlp"]


def _added(branch, x, weight, bias, eps):
    """y, x, mean and 1 / deviation of the rows of x."""
    return add_norm_operator(branch, x, weight, bias, eps, 0.0, None, 0)


def _added_backward(dy, dx, x, weight, mean, rstd, branch_bias):
    """The gradient of both, x and the branch; of the branch's bias, of weight and of bias."""
    d, _, dw, db, sums = torch.ops.speed_of_light.add_norm_backward(
        dy, dx, x, weight, True, mean, rstd, 0.0, None, 0, branch_bias
    )
    return d, sums, dw, db


class _AddedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, branch, branch_bias, x, weight, bias, eps, w, b):
        y, x, mean, rstd = _added(branch, x, weight, bias, eps)
        ctx.save_for_backward(x, mean, rstd, weight, bias, w, branch_bias)
        ctx.eps = eps
        return F.linear(y, w, b), x

    @staticmethod
    def backward(ctx, dout, dx):
        x, mean, rstd, weight, bias, w, branch_bias = ctx.saved_tensors
        y = F.layer_norm(x, x.shape[-1:], weight, bias, ctx.eps)
        dw = dout.mT @ y
        del y
        d, sums, dweight, dbias = _added_backward(dout @ w, dx, x, weight, mean, rstd, branch_bias)
        return d, sums, d, dweight, dbias, None, dw, None


class _AddedMLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, branch, branch_bias, x, weight, bias, eps, w1, b1, w2, b2, keep, at_once):
        y, x, mean, rstd = _added(branch, x, weight, bias, eps)
        m, h, a = mlp_operator(y, w1, b1, w2, b2, keep, at_once)
        ctx.save_for_backward(x, mean, rstd, weight, bias, w1, b1, w2, h, a, branch_bias)
        ctx.eps, ctx.at_once = eps, at_once
        return m, x

    @staticmethod
    def backward(ctx, dm, dx):
        x, mean, rstd, weight, bias, w1, b1, w2, h, a, branch_bias = ctx.saved_tensors
        y = F.layer_norm(x, x.shape[-1:], weight, bias, ctx.eps)
        needs = [True, True, True, True, False]
        dy, dw1, db1, dw2, _ = torch.ops.speed_of_light.mlp_backward(dm, y, w1, b1, w2, h, a, needs, ctx.at_once)
        del y
        d, sums, dweight, dbias = _added_backward(dy, dx, x, weight, mean, rstd, branch_bias)
        return d, sums, d, dweight, dbias, None, dw1, db1, dw2, None, None, None


def added_linear(
    branch, branch_bias, x, norm: nn.LayerNorm, linear: nn.Linear
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(linear(norm(branch + x)), branch + x), of tensors (..., width).

    `branch_bias` is in `branch` already, detached, and gets its gradient here. The bias of `linear` gets none.
    """
    given = _rows(branch), branch_bias, _rows(x), norm.weight, norm.bias, norm.eps, linear.weight, linear.bias.detach()
    out, s = _AddedLinear.apply(*given)
    return out.view(*x.shape[:-1], -1), s.view(x.shape)


def added_mlp(branch, branch_bias, x, norm: nn.LayerNorm, up: nn.Linear, down: nn.Linear, keep: Keep, at_once: int):
    """(down(gelu(up(norm(branch + x)))), branch + x); biases as above, so that of `down` gets no gradient here.

    `keep` and `at_once` as in course_lib.kernels.mlp, its input apart.
    """
    weights, given = (up.weight, up.bias, down.weight, down.bias.detach()), (norm.weight, norm.bias, norm.eps)
    m, s = _AddedMLP.apply(_rows(branch), branch_bias, _rows(x), *given, *weights, keep, at_once)
    return m.view(x.shape), s.view(x.shape)


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1])
