"""What a cell of a lesson defines, as its students run it."""

import ast

from course_lib.places import ROOT

__all__ = ["defined"]


def defined(lesson: str, *names: str, **given) -> dict:
    """The functions and classes of these names, out of "07_mx/mx.py"; `given`: what else their code sees."""
    path = ROOT / "solutions" / lesson
    found = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if getattr(node, "name", "") in names]
    exec(compile(ast.Module(found, type_ignores=[]), str(path), "exec"), given)
    return {name: given[name] for name in names}
