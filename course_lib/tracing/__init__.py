"""What torch.compile did, and what the dispatcher will do, made visible: watch, then ask.

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
    tracing.call_path(op, x=x)    the path of a call through the dispatcher, here and now

Every view is a Table: a notebook shows it, a program reads its rows as named tuples. Views only read what was recorded.
"""

from course_lib.tracing.breaks import Break, breaks
from course_lib.tracing.bytecode import Line, bytecode, graphs
from course_lib.tracing.callpath import Registered, Station, call_path, registered
from course_lib.tracing.flow import Flow, flow
from course_lib.tracing.guards import Guard, guards
from course_lib.tracing.kernels import Kernel, kernels
from course_lib.tracing.phases import Part, phases
from course_lib.tracing.recompiles import Recompile, recompiles
from course_lib.tracing.reuse import compiles
from course_lib.tracing.saved import Joint, Saved, joint, saved
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
    "Registered",
    "Saved",
    "Station",
    "Watched",
    "breaks",
    "bytecode",
    "call_path",
    "compiles",
    "flow",
    "graphs",
    "guards",
    "joint",
    "kernels",
    "phases",
    "recompiles",
    "registered",
    "saved",
    "watch",
]
