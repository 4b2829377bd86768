"""torch.utils.checkpoint around the norm and the MLP of a block, and nothing else."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from course_lib.models.siglip import strong


class FrugalTower(strong.Tower):
    def forward(self, patches, lengths):
        n = patches.shape[1]
        real = torch.arange(n, device=lengths.device) < lengths[:, None]
        x = self.embedded(patches, real)
        mask = torch.zeros_like(real, dtype=x.dtype).masked_fill(~real, float("-inf"))[:, None, None]
        for block in self.blocks:
            x = x + block.attention(block.before_attention(x), mask)
            x = x + checkpoint(self.branch, block, x, use_reentrant=False)
        return self.pooled(self.norm(x), real)

    @staticmethod
    def branch(block, x):
        return block.down(F.gelu(block.up(block.before_mlp(x)), approximate="tanh"))

    @staticmethod
    def planned(sizes, images, bytes_a_number):
        rows, width = images * sizes.patches, sizes.width
        one = rows * bytes_a_number
        layer = {
            "x before attention": one * width,
            "its norm": one * width,
            "mean and rstd": 2 * one,
            "q k v": 3 * one * width,
            "o": one * width,
            "lse": one * sizes.heads,
            "x before the MLP": one * width,
        }
        plan = {name: size * sizes.layers for name, size in layer.items()}
        plan["embed"] = one * sizes.patch
        plan["last norm"] = one * (width + 2)
        plan["masks"] = 2 * one
        return plan
