"""Several processes that compute together: starting them, what their collectives cost, who waited for whom."""

from course_lib.distributed.costs import Line, bus_bandwidth, fit, sent_share
from course_lib.distributed.launching import RankFailed, launch
from course_lib.distributed.rank import place
from course_lib.distributed.timeline import Recorder, Span, exposed_s, together

__all__ = [
    "Line",
    "RankFailed",
    "Recorder",
    "Span",
    "bus_bandwidth",
    "exposed_s",
    "fit",
    "launch",
    "place",
    "sent_share",
    "together",
]
