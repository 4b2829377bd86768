"""The naive layers, told once which keys are padding."""

import torch.nn.functional as F

from course_lib.models import vision
from course_lib.models.siglip.frame import Framed, real_patches


class HoistedAttention(vision.Attention):
    def forward(self, x, hidden):
        batch, patches, width = x.shape
        q, k, v = (f(x).view(batch, patches, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT * (width // self.heads) ** -0.5
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, patches, width))


class HoistedBlock(vision.Block):
    def __init__(self, sizes):
        super().__init__(sizes, HoistedAttention)

    def forward(self, x, hidden):
        x = x + self.attention(self.before_attention(x), hidden)
        return x + self.down(F.gelu(self.up(self.before_mlp(x)), approximate="tanh"))


class HoistedTower(Framed):
    def __init__(self, sizes):
        super().__init__(sizes, HoistedBlock)

    def forward(self, patches, lengths):
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        hidden = ~real[:, None, None, :]
        for block in self.blocks:
            x = block(x, hidden)
        return self.pooled(self.norm(x), real)
