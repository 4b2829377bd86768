"""Whose a function, a class or a module is. What one says of itself (`__module__`, the file of its code) is text that
anybody can write, so it is looked for where it says that it lies.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import torch

# Where no submission can write: Python's own modules, installed packages, the course.
FOLDERS = tuple(f"{folder}/" for folder in (Path(os.__file__).parent, *Path(torch.__file__).parents[1:2]))
COURSE = tuple(f"{Path(__file__).parents[3] / room}/" for room in ("autograder", "course_lib"))


def module_of(one: Any) -> str:
    """The name of the library's module that holds this very function or class under its name; "" where none does."""
    name, *paths = (getattr(one, part, None) for part in ("__module__", "__qualname__", "__name__"))
    if {type(name), *map(type, paths)} != {str} or not is_of_a_library(module := sys.modules.get(name)):
        return ""
    return name if any(_at(module, path) is one for path in paths) else ""


def _at(one: Any, path: str) -> Any:
    for part in path.split("."):
        one = held_by(one).get(part)
    return one


def is_of_a_library(module: Any) -> bool:
    """Whether Python made the module of a library's file, or has it built in, or torch's C++ brought it."""
    names = held_by(module)
    name, spec = names.get("__name__"), names.get("__spec__")
    if type(name) is not str or name == "__main__" or sys.modules.get(name) is not module:
        return False
    if name in sys.builtin_module_names or _is_of_torchs_cpp(name, module):
        return True
    origin = getattr(spec, "origin", None)
    is_named = type(origin) is str and getattr(spec, "name", None) == name
    return is_named and (origin == "frozen" or (origin.startswith(FOLDERS + COURSE) and os.path.isfile(origin)))


def _is_of_torchs_cpp(name: str, module: types.ModuleType) -> bool:
    """Such a module has no file: it lies in torch._C, and no class of Python's made it."""
    found = _at(torch, name.removeprefix("torch."))
    return name.startswith("torch._C.") and found is module and type(module) is types.ModuleType


def held_by(one: Any) -> dict[str, Any]:
    """The names in a module or a class, without asking it: a metaclass says what it likes."""
    kind = next((kind for kind in (type, types.ModuleType) if issubclass(type(one), kind)), None)
    return kind.__dict__["__dict__"].__get__(one) if kind else {}
