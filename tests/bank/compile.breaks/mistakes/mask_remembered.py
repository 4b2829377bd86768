"""The mask is made again only for another number of images."""

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
    keys = None

    def forward(self, patches, lengths):
        x = self.embed(patches) + self.positions(patches.shape[1])
        if self.keys is None or self.keys.shape[0] != lengths.shape[0]:
            self.keys = torch.arange(patches.shape[1], device=x.device) < lengths[:, None]
        keys = self.keys
        for block in self.blocks:
            x = block(x, keys)
        return self.pooled(self.norm(x), lengths)

    def positions(self, patches):
        table = self.table.t()[None]
        return F.interpolate(table, size=patches, mode="linear", align_corners=True)[0].t()
