"""Names that a notebook holds and grading does not: those that only demonstration cells bind.

A submission is its setup cells, its solution cells and the student's own cells. A check that resolved more names than
these would be green where grading gives 0.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from autograder.judging.names import ONLY_DEMONSTRATED, names_in
from course_lib.places import RELEASES


@contextlib.contextmanager
def withheld(function: Callable) -> Iterator[frozenset[str]]:
    """Inside, the notebook lacks the names that a submission would lack; which these are.

    A function that a demonstration cell defines is no answer: the lesson shows it with the names beside it.
    """
    names = _only_demonstrated()
    space = _space_of(function)
    lacking = names & space.keys() if getattr(function, "__name__", "") not in names else ()
    kept = {name: space.pop(name) for name in lacking}
    try:
        yield names
    finally:
        space.update(kept)


def _space_of(function: Callable) -> dict[str, Any]:
    """Where the code behind an answer looks its names up; a class, which has no globals, looks in the notebook."""
    shell = _shell()
    return getattr(function, "__globals__", shell.user_ns if shell else {})


def said_of(missing: str) -> str:
    """What to do about a name that grading will not find."""
    return f"`{missing}` {ONLY_DEMONSTRATED}"


def _only_demonstrated() -> frozenset[str]:
    """The names that only demonstration cells have bound in the notebook that runs here; none outside of one."""
    shell = _shell()
    ran = shell.user_ns.get("In", []) if shell else []
    shown, others = set(), set()
    for text in ran:
        found = _demonstrations().get(_bare(text))
        if found is None:
            others |= names_in(shell.transform_cell(text))[0]
        else:
            shown |= found
    return frozenset(shown - others)


def _shell():
    """The notebook's own Python, where there is one."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


@functools.cache
def _demonstrations() -> dict[str, frozenset[str]]:
    """Every demonstration cell of the released lessons, without blanks -> the names that it binds."""
    found = {}
    for path in sorted(RELEASES.glob("*/*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            metadata = cell["metadata"]
            if cell["cell_type"] == "code" and "nbgrader" not in metadata and "setup" not in metadata.get("tags", ()):
                text = "".join(cell["source"])
                found[_bare(text)] = frozenset(names_in(text)[0])
    return found


def _bare(text: str) -> str:
    return re.sub(r"\s+", "", text)
