"""The mask is made once, for the longest image, read as a number."""

import torch
import torch.nn.functional as F

from course_lib.models.broken_tower import Block, Tower

KILLED_BY = "another mask each time"


class RepairedBlock(Block):
    def forward(self, x, keys):
        x = x + self.attention(x, keys, x.shape[1])
        return x + self.down(torch.relu(self.up(x)))


class RepairedTower(Tower):
    block = RepairedBlock

    def forward(self, patches, lengths):
        x = self.embed(patches) + self.positions(patches.shape[1])
        longest = lengths.max().item()
        keys = torch.arange(longest) < lengths[:, None]
        keys = F.pad(keys, (0, patches.shape[1] - longest))
        for block in self.blocks:
            x = block(x, keys)
        return self.pooled(self.norm(x), lengths)

    def positions(self, patches):
        table = self.table.t()[None]
        return F.interpolate(table, size=patches, mode="linear", align_corners=True)[0].t()
