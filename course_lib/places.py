"""Where the course's data lies: in the repository, or in the packages where only its wheel was installed.

The wheel holds the recorded results and the released lessons as `course_lib/recorded` and `autograder/releases`
(setup.py puts them there). The repository has neither folder, so it always reads its own files.
"""

import os
import sys
from pathlib import Path

__all__ = ["HOME", "INSTALLED", "RELEASES", "RESULTS", "ROOT", "environment"]

ROOT = Path(__file__).resolve().parents[1]  # the repository, or the folder that the packages are installed in
INSTALLED = (ROOT / "course_lib" / "recorded").is_dir()
RESULTS = ROOT / "course_lib" / "recorded" if INSTALLED else ROOT / "benchmarks" / "results"
RELEASES = ROOT / "autograder" / "releases" if INSTALLED else ROOT / "notebooks"
HOME = Path.cwd() if INSTALLED else ROOT  # the folder of work/ and verdicts/: never one that packages are installed in


def environment() -> dict[str, str]:
    """For programs and kernels: course_lib comes from this course, and this python's programs (alembic) come first."""
    ours = {"PATH": str(Path(sys.executable).parent)}
    if not INSTALLED:
        ours["PYTHONPATH"] = str(ROOT)
    joined = {name: os.pathsep.join(filter(None, [first, os.environ.get(name)])) for name, first in ours.items()}
    # Kernels of this environment win over kernels of the same name in the home folder.
    return os.environ | joined | {"JUPYTER_PREFER_ENV_PATH": "1"}
