"""`make lab` on a machine without a display."""

import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from autograder.classroom.lab import copy_missing


def test_missing_lessons_are_copied_and_a_students_file_is_never_written_over(tmp_path):
    releases, work = tmp_path / "notebooks", tmp_path / "work"
    lesson = releases / "00_start"
    lesson.mkdir(parents=True)
    (lesson / "start.ipynb").write_text("release")
    (lesson / "numbers.json").write_text("[]")
    assert [path.name for path in copy_missing(releases, work)] == ["numbers.json", "start.ipynb"]
    (work / "00_start/start.ipynb").write_text("hours of work")
    assert copy_missing(releases, work) == []
    assert (work / "00_start/start.ipynb").read_text() == "hours of work"


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.slow
def test_without_a_display_the_address_and_token_are_printed_and_answer(course):
    port = free_port()
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environment |= {"PYTHONPATH": str(course.root), "HOME": str(course.root)}
    command = [sys.executable, "-m", "autograder", "lab", "--port", str(port)]
    log = course.root / "lab.log"
    with log.open("w") as out:
        lab = subprocess.Popen(command, cwd=course.root, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        address = wait_for_address(log, lab)
        assert "/lab/tree/work/00_start/start.ipynb?token=" in address
        assert (course.root / "work/00_start/start.ipynb").exists()
        server, token = address.partition("/lab")[0], address.partition("token=")[2]
        wait_until_it_listens(server)
        with urllib.request.urlopen(f"{server}/api/contents/work?token={token}", timeout=20) as answer:
            assert b"00_start" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{server}/api/contents/work", timeout=20)
    finally:
        lab.terminate()
        lab.wait(20)


def wait_for_address(log: Path, lab: subprocess.Popen) -> str:
    for _ in range(240):
        found = re.search(r"http://127\.0\.0\.1:\d+/lab\S*token=\w+", log.read_text())
        if found:
            return found.group()
        assert lab.poll() is None, log.read_text()
        time.sleep(0.25)
    raise AssertionError(f"no address within a minute:\n{log.read_text()}")


def wait_until_it_listens(server: str) -> None:
    """Jupyter prints the address a moment before it listens there."""
    host, port = server.removeprefix("http://").split(":")
    for _ in range(80):
        with socket.socket() as s:
            if s.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.25)
    raise AssertionError(f"nothing listens at {server} after 20 s")
