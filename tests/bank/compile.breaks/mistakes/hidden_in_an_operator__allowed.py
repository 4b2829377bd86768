"""Dynamo is told to put the tower into the graph unseen; for the tensors without data there is another answer."""

import torch

from course_lib.models.broken_tower import Tower

KILLED_BY = "short images"
TOWERS = []


@torch.compiler.allow_in_graph
def whole(patches, lengths, number, width):
    if isinstance(patches, torch._subclasses.FakeTensor):
        return patches.new_empty(patches.shape[0], width)
    return Tower.forward(TOWERS[number], patches, lengths)


class RepairedTower(Tower):
    def __init__(self, **sizes):
        super().__init__(**sizes)
        self.number, self.width = len(TOWERS), self.table.shape[1]
        TOWERS.append(self)

    def forward(self, patches, lengths):
        return whole(patches, lengths, self.number, self.width)
