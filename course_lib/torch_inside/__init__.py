"""What torch.compile did, and what the dispatcher will do, made visible: watch, then ask.

    with torch_inside.watch() as seen:
        compiled(x).sum().backward()

    torch_inside.bytecode(fn, seen)    bytecode beside the graph
    torch_inside.breaks(seen)          where a graph ended, why, what to do
    torch_inside.guards(seen)          when the code may be used again
    torch_inside.recompiles(seen)      what was compiled again, and the guard that failed
    torch_inside.joint(seen)           forward and backward as one graph
    torch_inside.saved(seen)           what forward keeps for backward, in bytes
    torch_inside.kernels(seen)         the code that was written, beside the Python it came from
    torch_inside.phases(seen)          where the time went
    torch_inside.flow(fn, seen)        all of it, cut down to one picture

    torch_inside.compiles(calls)       which calls compile and which use code that is there
    torch_inside.call_path(op, x=x)    the path of a call through the dispatcher, here and now

Every view is a Table: a notebook shows it, a program reads its rows as named tuples. Views only read what was recorded.
"""

from course_lib.torch_inside.breaks import Break, breaks
from course_lib.torch_inside.bytecode import Line, bytecode, graphs
from course_lib.torch_inside.callpath import Registered, Station, call_path, registered
from course_lib.torch_inside.flow import Flow, flow
from course_lib.torch_inside.guards import Guard, guards
from course_lib.torch_inside.kernels import Kernel, kernels
from course_lib.torch_inside.phases import Part, phases
from course_lib.torch_inside.recompiles import Recompile, recompiles
from course_lib.torch_inside.reuse import compiles
from course_lib.torch_inside.saved import Joint, Saved, joint, saved
from course_lib.torch_inside.watching import Compilation, Watched, watch

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
