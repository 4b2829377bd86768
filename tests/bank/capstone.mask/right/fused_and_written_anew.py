"""A module of its own: fused attention with a mask that is added, one product for q, k and v."""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.models.siglip.frame import packed, unpacked


class Attention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, x, bias):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return self.out(o.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(sizes.width), nn.LayerNorm(sizes.width)
        self.attention = Attention(sizes)
        self.up, self.down = nn.Linear(sizes.width, sizes.mlp), nn.Linear(sizes.mlp, sizes.width)

    def forward(self, x, bias):
        x = x + self.attention(self.before_attention(x), bias)
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class HoistedTower(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.embed = nn.Linear(sizes.patch, sizes.width)
        self.places = nn.Parameter(torch.zeros(sizes.patches, sizes.width))
        self.blocks = nn.ModuleList([Layer(sizes) for _ in range(sizes.layers)])
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, patches, lengths):
        batch, n, _ = patches.shape
        real = torch.arange(n, device=patches.device).expand(batch, n) < lengths.unsqueeze(1)
        bias = patches.new_zeros(batch, 1, 1, n).masked_fill(~real[:, None, None], -torch.inf)
        x = self.embed(torch.where(real[..., None], patches, 0)) + self.places
        for block in self.blocks:
            x = block(x, bias)
        shares = real / lengths[:, None].to(x.dtype)
        return torch.einsum("bn,bnw->bw", shares, self.norm(x))

    def load_state_dict(self, named, strict=True, assign=False):
        return super().load_state_dict(packed(named), strict, assign)

    def state_dict(self, *args, **kwargs):
        return unpacked(super().state_dict(*args, **kwargs))
