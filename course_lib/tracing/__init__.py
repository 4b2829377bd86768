"""What torch.compile did, made visible: watch it, then ask.

    with tracing.watch() as seen:
        compiled(x).sum().backward()

    tracing.bytecode(fn, seen)    bytecode beside the graph
    tracing.breaks(seen)          where a graph ended, why, what to do
    tracing.guards(seen)          when the code may be used again
    tracing.recompiles(seen)      what was compiled again, and the guard that failed
    tracing.joint(seen)           forward and backward as one graph
    tracing.saved(seen)           what forward keeps for backward, in bytes
    tracing.kernels(seen)         the code that was written, beside the Python it came from
    tracing.phases(seen)          where the time went
    tracing.flow(fn, seen)        all of it, cut down to one picture

    tracing.compiles(calls)       which calls compile and which use code that is there

Every view is a table for a notebook and a sequence of named tuples for a program. Views only read what was recorded.
"""

from course_lib.tracing.breaks import Break, breaks
from course_lib.tracing.bytecode import Line, bytecode, graphs
from course_lib.tracing.flow import Flow, flow
from course_lib.tracing.guards import Guard, guards
from course_lib.tracing.kernels import Kernel, kernels
from course_lib.tracing.phases import Part, phases
from course_lib.tracing.recompiles import Recompile, recompiles
from course_lib.tracing.reuse import compiles
from course_lib.tracing.saved import Joint, Saved, joint, saved
from course_lib.tracing.view import View
from course_lib.tracing.watching import Compilation, Watched, watch

__all__ = [
    "Break",
    "Compilation",
    "Flow",
    "Guard",
    "Joint",
    "Kernel",
    "Line",
    "Part",
    "Recompile",
    "Saved",
    "View",
    "Watched",
    "breaks",
    "bytecode",
    "compiles",
    "flow",
    "graphs",
    "guards",
    "joint",
    "kernels",
    "phases",
    "recompiles",
    "saved",
    "watch",
]
