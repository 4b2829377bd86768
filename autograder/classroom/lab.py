"""`python -m autograder lab`: copy missing lessons into work/ and open JupyterLab at the first one.

work/ lies in the repository, or, where only the wheel is installed, in the folder where the command is called.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from autograder.classroom import carrying
from course_lib.places import HOME, RELEASES, environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ip", default="127.0.0.1", help="0.0.0.0 inside a container")
    parser.add_argument("--port", default="8888")


def main(args: argparse.Namespace) -> int:
    for path in copy_missing(RELEASES, HOME / "work"):
        print("copied", path.relative_to(HOME), flush=True)
    for line in carrying.renew(RELEASES, HOME / "work"):
        print(line, flush=True)
    if importlib.util.find_spec("jupyterlab") is None:
        print("JupyterLab is not installed here: pip install jupyterlab, or open work/ with any other Jupyter.")
        return 1
    command = [sys.executable, "-m", "jupyterlab", f"--ip={args.ip}", f"--port={args.port}"]
    command += [f"--ServerApp.root_dir={HOME}", f"--LabApp.default_url={first_page(HOME)}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # not on Windows
        command.append("--allow-root")
    if not has_display():
        command.append("--no-browser")
        print("No display here: open the address with the token that follows in a browser.")
        print(f"From another machine, first: ssh -L {args.port}:localhost:{args.port} THIS_MACHINE", flush=True)
    os.execve(command[0], command, environment())


def copy_missing(releases: Path, work: Path) -> list[Path]:
    """Copy what `work` lacks; a file that is there belongs to the student and is never written over."""
    copied = []
    for path in sorted(releases.rglob("*")):
        target = work / path.relative_to(releases)
        if path.is_file() and ".ipynb_checkpoints" not in path.parts and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            carrying.remember(path, work / carrying.GIVEN / path.relative_to(releases))
            copied.append(target)
    return copied


def first_page(home: Path) -> str:
    notebooks = sorted((home / "work").glob("[0-9][0-9]_*/*.ipynb"))
    return f"/lab/tree/{notebooks[0].relative_to(home).as_posix()}" if notebooks else "/lab"


def has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
