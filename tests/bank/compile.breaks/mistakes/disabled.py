"""The positions are taken out of the graph."""

import torch
import torch.nn.functional as F

from course_lib.models.broken_tower import Block, Tower

KILLED_BY = "short images"


class RepairedBlock(Block):
    def forward(self, x, keys):
        x = x + self.attention(x, keys, x.shape[1])
        return x + self.down(torch.relu(self.up(x)))


class RepairedTower(Tower):
    block = RepairedBlock

    def forward(self, patches, lengths):
        x = self.embed(patches) + self.positions(patches.shape[1])
        keys = torch.arange(patches.shape[1], device=x.device) < lengths[:, None]
        for block in self.blocks:
            x = block(x, keys)
        return self.pooled(self.norm(x), lengths)

    @torch.compiler.disable
    def positions(self, patches):
        return super().positions(patches)
