"""A loop over the images."""

import torch
import torch.nn.functional as F

from course_lib.models.broken_tower import Block, Tower

KILLED_BY = "the batch grows"


class RepairedBlock(Block):
    def forward(self, x, keys):
        x = x + self.attention(x, keys, x.shape[1])
        return x + self.down(torch.relu(self.up(x)))


class RepairedTower(Tower):
    block = RepairedBlock

    def forward(self, patches, lengths):
        x = self.embed(patches) + self.positions(patches.shape[1])
        row = torch.arange(patches.shape[1])
        keys = torch.stack([row < lengths[image] for image in range(patches.shape[0])])
        for block in self.blocks:
            x = block(x, keys)
        return self.pooled(self.norm(x), lengths)

    def positions(self, patches):
        table = self.table.t()[None]
        return F.interpolate(table, size=patches, mode="linear", align_corners=True)[0].t()
