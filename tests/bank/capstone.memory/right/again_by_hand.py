"""Norms, pre-activation and GELU are made again, each by an autograd Function; attention is torch's."""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.models.siglip import strong


def norm_again(x, weight, bias, eps):
    """The norm with leaves of its own, so that autograd can go back through it alone."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    with torch.enable_grad():
        y = F.layer_norm(leaves[0], x.shape[-1:], leaves[1], leaves[2], eps)
    return leaves, y


class NormQKV(torch.autograd.Function):
    """q, k and v of norm(x), of which x is kept."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, wq, bq, wk, bk, wv, bv):
        ctx.save_for_backward(x, weight, bias, wq, wk, wv)
        ctx.eps = eps
        y = F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        return F.linear(y, wq, bq), F.linear(y, wk, bk), F.linear(y, wv, bv)

    @staticmethod
    def backward(ctx, *grads):
        x, weight, bias, *ws = ctx.saved_tensors
        leaves, y = norm_again(x, weight, bias, ctx.eps)
        rows, dy, found = y.detach().flatten(0, 1), 0, []
        for d, w in zip(grads, ws):
            d = d.flatten(0, 1)
            dy = dy + d @ w
            found += [d.mT @ rows, d.sum(0)]
        dx, dweight, dbias = torch.autograd.grad(y, leaves, dy.view_as(y))
        return dx, dweight, dbias, None, *found


class NormMLP(torch.autograd.Function):
    """down(gelu(up(norm(x)))), of which x is kept."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps, w1, b1, w2, b2):
        ctx.save_for_backward(x, weight, bias, w1, b1, w2)
        ctx.eps = eps
        y = F.layer_norm(x, x.shape[-1:], weight, bias, eps)
        return F.linear(F.gelu(F.linear(y, w1, b1), approximate="tanh"), w2, b2)

    @staticmethod
    def backward(ctx, d):
        x, weight, bias, w1, b1, w2 = ctx.saved_tensors
        leaves, y = norm_again(x, weight, bias, ctx.eps)
        rows, d = y.detach().flatten(0, 1), d.flatten(0, 1)
        h = F.linear(rows, w1, b1).requires_grad_()
        with torch.enable_grad():
            a = F.gelu(h, approximate="tanh")
        dw2, db2 = d.mT @ a.detach(), d.sum(0)
        (dh,) = torch.autograd.grad(a, h, d @ w2)
        dx, dweight, dbias = torch.autograd.grad(y, leaves, (dh @ w1).view_as(y))
        return dx, dweight, dbias, None, dh.mT @ rows, dh.sum(0), dw2, db2


class Block(strong.Block):
    def forward(self, x, mask):
        x = x + self.attend(x, mask)
        norm, up, down = self.before_mlp, self.up, self.down
        return x + NormMLP.apply(x, norm.weight, norm.bias, norm.eps, up.weight, up.bias, down.weight, down.bias)

    def attend(self, x, mask):
        norm, layer = self.before_attention, self.attention
        weights = [t for one in (layer.q, layer.k, layer.v) for t in (one.weight, one.bias)]
        qkv = NormQKV.apply(x, norm.weight, norm.bias, norm.eps, *weights)
        q, k, v = (t.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for t in qkv)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return layer.out(o.transpose(1, 2).flatten(2))


class FrugalTower(strong.Tower):
    def __init__(self, sizes):
        super().__init__(sizes)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))

    @staticmethod
    def planned(sizes, images, bytes_a_number):
        rows = images * sizes.patches
        number = rows * bytes_a_number
        return {
            "patches, padding set to 0": number * sizes.patch,
            "x, before each norm": number * sizes.width * (2 * sizes.layers + 1),
            "q, k, v and o": 4 * number * sizes.width * sizes.layers,
            "log-sum-exp": number * sizes.heads * sizes.layers,
            "mean and 1 / deviation of the last norm": 2 * number,
            "mask, and which patches are real": 2 * number,
            "how many": 8 * images,
        }
