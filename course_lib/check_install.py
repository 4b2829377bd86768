"""`speed-of-light check-install`: what works on this machine, a line each, and what to do about what does not.

Nothing is imported at the top but what Python brings: the command must run where something is missing.
"""

import argparse
import importlib
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from course_lib import places

__all__ = ["LEAST", "OLDEST_PYTHON", "Line", "lines", "main"]

OLDEST_PYTHON = (3, 11)
# What lessons import, and the oldest versions they run with, as pyproject.toml has them.
LEAST = {
    "torch": "2.11",
    "triton": "3.6",
    "numpy": "2.0",
    "matplotlib": "3.9",
    "pillow": "10",
    "cloudpickle": "3.0",
    "ipywidgets": "7.7",
}
TRITON = "triton has a wheel for Linux only: elsewhere use the container, README.md, 'Without Linux'"
TIERS = {
    "gpu": "GPU: kernels are compiled and run there",
    "interpreter": "interpreter: kernels run on the CPU, and points for speed wait. Where there is an NVIDIA GPU, "
    "install its driver and torch with CUDA, and leave TRITON_INTERPRET unset",
}
OTHER_NAMES = {"triton": ("triton-windows",)}  # under which the same package is installed


@dataclass(frozen=True)
class Line:
    """One thing that was looked at."""

    name: str
    found: str  # a version, or what works
    to_do: str = ""  # empty where nothing needs doing
    needed: bool = True  # lessons do not run without it

    @property
    def stops(self) -> bool:
        return bool(self.to_do) and self.needed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def main(args: argparse.Namespace) -> int:
    found = list(lines())
    for line in found:
        print(f"{line.name:<12}{line.found}{f'. {line.to_do}' if line.to_do else ''}")
    lacking = [line.name for line in found if line.stops]
    print(f"Needed and lacking: {', '.join(lacking)}." if lacking else "Everything that lessons need is here.")
    return 1 if lacking else 0


def lines() -> Iterator[Line]:
    python = "" if sys.version_info >= OLDEST_PYTHON else "Install Python 3.11 or newer"
    yield Line("Python", platform.python_version(), python)
    packages = [_package(name, f">={least}") for name, least in LEAST.items()]
    yield from packages
    if any(package.found == "missing" for package in packages):
        yield Line("tier", "unknown", "Install what is missing first")
    else:
        yield _tier()
    yield _data()
    yield _bubblewrap()
    yield _package("jupyterlab", "", needed=False, use="`lab` opens it: pip install jupyterlab")
    yield _package("nbgrader", "", needed=False, use="only grading needs it: pip install nbgrader")


def _package(name: str, least: str, needed: bool = True, use: str = "") -> Line:
    version = next(filter(None, map(_version, (name, *OTHER_NAMES.get(name, ())))), None)
    if version is None:
        to_do = use or f"pip install '{name}{least}'"
        return Line(name, "missing", f"{to_do}; {TRITON}" if name == "triton" else to_do, needed)
    if _numbers(version) < _numbers(least):
        return Line(name, version, f"It is too old: pip install '{name}{least}'", needed)
    return Line(name, version, needed=needed)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> list[int]:
    """Of "2.13.0+cpu" 2, 13 and 0."""
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])]


def _tier() -> Line:
    """What `course_lib.device` chooses, and that a lesson's first cell can be run."""
    try:
        device = importlib.import_module("course_lib.device")
        importlib.import_module("course_lib.widgets")
        return Line("tier", TIERS[device.TIER])
    except Exception as error:  # whatever it is, a reader wants it in this line
        return Line("tier", "unknown", f"The lessons' imports end with {type(error).__name__}: {error}")


def _data() -> Line:
    lessons, recorded = list(places.RELEASES.glob("*/*.ipynb")), list(places.RESULTS.glob("*.json"))
    again = "" if lessons and recorded else "Install the course again: its wheel holds both"
    return Line("lessons", f"{len(lessons)}, and recorded results of {len(recorded)} devices", again)


def _bubblewrap() -> Line:
    to_do = "`try` and grading need it: apt-get install bubblewrap; without it: try --unsafe-no-sandbox"
    if not shutil.which("bwrap") or not hasattr(os, "geteuid"):
        return Line("bubblewrap", "missing", to_do, needed=False)
    try:
        sandbox = importlib.import_module("autograder.referee.sandbox")
        sandbox.require()
    except Exception as error:  # NoSandbox, or torch is missing
        return Line("bubblewrap", "not usable", f"{error}", needed=False)
    return Line("bubblewrap", "usable", needed=False)
