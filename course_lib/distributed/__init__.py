"""Several processes that compute together: starting them, what their collectives cost, who waited for whom."""

from course_lib.distributed.launching import RankFailed, launch
from course_lib.distributed.rank import place

__all__ = ["RankFailed", "launch", "place"]
