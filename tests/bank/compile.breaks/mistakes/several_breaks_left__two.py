"""No more printing and no clock; mask and positions as before."""

from course_lib.models.broken_tower import Tower

KILLED_BY = "three layers"


class RepairedTower(Tower):
    def forward(self, patches, lengths):
        x = self.embed(patches) + self.positions(patches.shape[1])
        for block in self.blocks:
            x = block(x, lengths)
        return self.pooled(self.norm(x), lengths)
