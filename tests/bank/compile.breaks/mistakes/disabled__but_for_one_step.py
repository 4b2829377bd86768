"""One product is compiled and the tower is not: that is one graph."""

import torch

from course_lib.models.broken_tower import Tower

KILLED_BY = "short images"


class RepairedTower(Tower):
    def forward(self, patches, lengths):
        return self.rest(patches * 1.0, lengths)

    @torch.compiler.disable
    def rest(self, patches, lengths):
        return super().forward(patches, lengths)
