"""The whole tree passes ruff, lessons included."""

import subprocess
import sys
from pathlib import Path

import pytest

COURSE = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words", [("check", "--no-cache"), ("format", "--check", "--no-cache")], ids=["lint", "format"]
)
def test_every_file_passes_ruff(words):
    done = subprocess.run([sys.executable, "-m", "ruff", *words, "."], cwd=COURSE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
