"""`python -m autograder lab`: copy missing lessons into work/ and open JupyterLab at the first one."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from autograder.classroom import lessons
from autograder.classroom.lessons import COURSE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ip", default="127.0.0.1", help="0.0.0.0 inside a container")
    parser.add_argument("--port", default="8888")


def main(args: argparse.Namespace) -> int:
    for path in copy_missing(COURSE):
        print("copied", path.relative_to(COURSE))
    command = [sys.executable, "-m", "jupyterlab", f"--ip={args.ip}", f"--port={args.port}"]
    command += [f"--ServerApp.root_dir={COURSE}", f"--LabApp.default_url={first_page(COURSE)}"]
    if os.geteuid() == 0:
        command.append("--allow-root")
    if not has_display():
        command.append("--no-browser")
        print("No display here: open the address with the token that follows in a browser.")
        print(f"From another machine, first: ssh -L {args.port}:localhost:{args.port} THIS_MACHINE", flush=True)
    os.execve(command[0], command, lessons.environment())


def copy_missing(course: Path) -> list[Path]:
    """Copy what work/ lacks; a file that is there belongs to the student and is never written over."""
    copied = []
    for path in sorted((course / "notebooks").rglob("*")):
        target = course / "work" / path.relative_to(course / "notebooks")
        if path.is_file() and ".ipynb_checkpoints" not in path.parts and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            copied.append(target)
    return copied


def first_page(course: Path) -> str:
    notebooks = sorted((course / "work").glob("[0-9][0-9]_*/*.ipynb"))
    return f"/lab/tree/{notebooks[0].relative_to(course).as_posix()}" if notebooks else "/lab"


def has_display() -> bool:
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
