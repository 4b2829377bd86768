"""The tower as it came."""

from course_lib.models.broken_tower import Tower

KILLED_BY = "short images"


class RepairedTower(Tower):
    pass
