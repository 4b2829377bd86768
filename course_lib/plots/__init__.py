"""The course's figures: data in, Axes out. Each has its message as title, axes with units, and the device's name.

Every function takes `ax` (made when absent), `title` (the message; most have one made from the data) and, where
something was measured, `device` (the machine's name, printed small). `show(ax, alt="...")` displays the result.
One file draws one kind of figure; `house` has what all of them share.
"""

from course_lib.plots.attention_tiles import block_map, online_steps
from course_lib.plots.break_even import gains, totals
from course_lib.plots.call_costs import costs
from course_lib.plots.compile_stations import pipeline
from course_lib.plots.dispatch_keys import call_path, key_map
from course_lib.plots.errormap import error_map
from course_lib.plots.families import families
from course_lib.plots.fxgraphs import graphs
from course_lib.plots.groups import group_tiles
from course_lib.plots.house import HATCHES, LINES, MARKERS, PALETTE, figure, png, quantity, show, style
from course_lib.plots.memory_areas import memory_by_owner
from course_lib.plots.operator_kinds import kinds
from course_lib.plots.programs import grid
from course_lib.plots.rank_lanes import ranks
from course_lib.plots.residents import programs_that_fit
from course_lib.plots.roofs import Point, roofline
from course_lib.plots.rotation import dials, pair_map
from course_lib.plots.sizes import regimes, repeat_curve, sweep
from course_lib.plots.times import against_floor, histogram, timeline, timing
from course_lib.plots.waterfall import waterfall

__all__ = [
    "HATCHES",
    "LINES",
    "MARKERS",
    "PALETTE",
    "Point",
    "against_floor",
    "block_map",
    "call_path",
    "costs",
    "dials",
    "error_map",
    "families",
    "figure",
    "gains",
    "graphs",
    "grid",
    "group_tiles",
    "histogram",
    "key_map",
    "kinds",
    "memory_by_owner",
    "online_steps",
    "pair_map",
    "pipeline",
    "png",
    "programs_that_fit",
    "quantity",
    "ranks",
    "regimes",
    "repeat_curve",
    "roofline",
    "show",
    "style",
    "sweep",
    "timeline",
    "timing",
    "totals",
    "waterfall",
]
