"""q, k and v are one layer; attention in plain torch keeps q, k, v and o; the MLP keeps its input; norms stay torch's."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.models.siglip.frame import Framed, packed, real_patches, unpacked


class Attend(torch.autograd.Function):
    """(B, N, 3, H, D) -> (B, N, H, D), the probabilities made again from q and k."""

    @staticmethod
    def probabilities(q, k, hidden):
        scores = q @ k.mT * q.shape[-1] ** -0.5
        return scores.masked_fill(hidden, -math.inf).softmax(-1)

    @staticmethod
    def forward(ctx, qkv, hidden):
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        ctx.save_for_backward(qkv, hidden)
        return (Attend.probabilities(q, k, hidden) @ v).transpose(1, 2).contiguous()

    @staticmethod
    def backward(ctx, do):
        qkv, hidden = ctx.saved_tensors
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        do = do.transpose(1, 2)
        p = Attend.probabilities(q, k, hidden)
        dp = do @ v.mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        dqkv = torch.empty_like(qkv)
        for place, d in enumerate((ds @ k, ds.mT @ q, p.mT @ do)):
            dqkv[:, :, place] = d.transpose(1, 2)
        return dqkv, None


class MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, w1, b1, w2, b2):
        ctx.save_for_backward(y, w1, b1, w2)
        return F.linear(F.gelu(F.linear(y, w1, b1), approximate="tanh"), w2, b2)

    @staticmethod
    def backward(ctx, dm):
        y, w1, b1, w2 = ctx.saved_tensors
        rows, dm = y.flatten(0, -2), dm.flatten(0, -2)
        h = F.linear(rows, w1, b1)
        u = math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)
        t = torch.tanh(u)
        a = h * (1 + t) / 2
        slope = (1 + t) / 2 + h / 2 * (1 - t * t) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * h * h)
        dh = (dm @ w2) * slope
        return (dh @ w1).view_as(y), dh.mT @ rows, dh.sum(0), dm.mT @ a, dm.sum(0)


class FrugalBlock(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.heads = sizes.heads
        self.before_attention, self.before_mlp = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.attention = nn.ModuleDict(
            {"qkv": nn.Linear(sizes.width, 3 * sizes.width), "out": nn.Linear(sizes.width, sizes.width)}
        )
        self.up, self.down = nn.Linear(sizes.width, sizes.mlp), nn.Linear(sizes.mlp, sizes.width)

    def forward(self, x, hidden):
        qkv = self.attention["qkv"](self.before_attention(x))
        o = Attend.apply(qkv.unflatten(-1, (3, self.heads, -1)), hidden)
        x = x + self.attention["out"](o.flatten(2))
        y = self.before_mlp(x)
        return x + MLP.apply(y, self.up.weight, self.up.bias, self.down.weight, self.down.bias)


class FrugalTower(Framed):
    def __init__(self, sizes):
        super().__init__(sizes, FrugalBlock)
        self.register_load_state_dict_pre_hook(self.pack)
        self.register_state_dict_post_hook(self.unpack)

    @staticmethod
    def pack(tower, state, *rest):
        whole = packed(state)
        state.clear()
        state.update(whole)

    @staticmethod
    def unpack(tower, state, *rest):
        whole = unpacked(state)
        state.clear()
        state.update(whole)

    def forward(self, patches, lengths):
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        hidden = ~real[:, None, None]
        for block in self.blocks:
            x = block(x, hidden)
        return self.pooled(self.norm(x), real)

    @staticmethod
    def planned(sizes, images, bytes_a_number):
        rows, width = images * sizes.patches, sizes.width
        layer = rows * (8 * width + 4)  # x, y, q, k, v, o, x, y and of two norms what they note
        first = rows * (sizes.patch + 1)
        last = rows * (width + 2)
        return {
            "layers": layer * bytes_a_number * sizes.layers,
            "before": first * bytes_a_number,
            "after": last * bytes_a_number,
            "mask": rows,
        }
