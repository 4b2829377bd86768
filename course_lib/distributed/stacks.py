"""Where a rank is, read from what faulthandler wrote when it was asked."""

from __future__ import annotations

import linecache
import os
import re
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))
COURSE = os.path.dirname(os.path.dirname(HERE))
# Where a line is ours or a library's, and not the caller's. A judged call goes through the autograder's network.
LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")
LIBRARIES += tuple(os.path.join(COURSE, room) + os.sep for room in ("course_lib", "autograder"))
OUTERMOST = os.path.join(HERE, "rank.py")  # of the thread that runs the function
FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True)
class Stack:
    text: str = ""  # every frame of the function
    where: str = "somewhere"  # "at line 3 in step: dist.all_reduce(x)"
    waits: bool = False  # for other ranks


def is_whole(written: str) -> bool:
    """Whether the stack of the rank's function is there, down to its outermost frame, which lies in rank.py."""
    return OUTERMOST in written and written.endswith("\n")


def read(written: str) -> Stack:
    threads = re.split(r"^(?=(?:Current thread|Thread) 0x)", written, flags=re.MULTILINE)
    text = next(thread for thread in threads if OUTERMOST in thread)
    frames = [(file, int(line), name) for file, line, name in FRAME.findall(text)]
    frames = frames[: [file for file, _, _ in frames].index(OUTERMOST)] or frames
    lines = [f'  File "{file}", line {line}, in {name}\n    {source(file, line)}' for file, line, name in frames[::-1]]
    said = "It was here (innermost call last):\n" + "\n".join(lines)
    own = next((frame for frame in frames if not any(place in frame[0] for place in LIBRARIES)), None)
    inner = frames[0]
    waits = "/torch/distributed/" in inner[0] or ".wait(" in source(*inner[:2])
    if own is None:
        return Stack(said, "inside the library", waits)
    return Stack(said, f"at line {own[1]} in {own[2]}: {source(*own[:2])}", waits)


def source(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()
