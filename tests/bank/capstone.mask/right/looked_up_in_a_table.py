"""The masks of all lengths lie in a buffer: a length picks a row. Attention writes its softmax out."""

import torch
import torch.nn.functional as F

from course_lib.models.siglip import naive


class HoistedTower(naive.Tower):
    def __init__(self, sizes):
        super().__init__(sizes)
        n = sizes.patches
        self.register_buffer("real_by_length", torch.ones(n + 1, n).tril(-1).bool(), persistent=False)

    def forward(self, patches, lengths):
        real = self.real_by_length[lengths]
        keys = real[:, None, None]
        x = self.embed(patches.where(real[..., None], 0)) + self.places
        for block in self.blocks:
            x = x + self.attend(block.attention, block.before_attention(x), keys)
            x = x + block.down(F.gelu(block.up(block.before_mlp(x)), approximate="tanh"))
        return self.norm(x).where(real[..., None], 0).sum(1) / lengths[:, None]

    def attend(self, part, x, keys):
        q, k, v = (f(x).unflatten(-1, (part.heads, -1)).transpose(1, 2) for f in (part.q, part.k, part.v))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores.where(keys, -torch.inf)
        parts = (scores - scores.amax(-1, keepdim=True)).exp()
        o = (parts / parts.sum(-1, keepdim=True)) @ v
        return part.out(o.transpose(1, 2).flatten(2))
