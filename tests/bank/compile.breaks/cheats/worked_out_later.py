"""The compiled tower returns an object that computes when it is asked for its numbers, after the compiler.

NAIVE is False: the course's probe takes nothing but a tensor, in a notebook too.
"""

from course_lib.models.broken_tower import Tower

FAMILY = "lazy tensor"
NAIVE = False
CAUGHT = "what is no tensor is not asked for numbers"


class Later:
    def __init__(self, tower, patches, lengths):
        self.tower, self.patches, self.lengths = tower, patches, lengths

    def tolist(self):
        return Tower.forward(self.tower, self.patches, self.lengths).tolist()


class RepairedTower(Tower):
    def forward(self, patches, lengths):
        return Later(self, patches * 1.0, lengths)
