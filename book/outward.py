"""What a page offers beside its text: the released notebook, and where the repository has an address, a launch and an
issue. The address is `Repository` in [project.urls] of pyproject.toml; without one no page leads outside."""

from __future__ import annotations

import re
import sys
import tomllib
from urllib.parse import quote

from autograder.classroom.lessons import COURSE, Lesson

__all__ = ["offers", "repository"]


def repository() -> str:
    """OWNER/NAME on GitHub, or nothing."""
    project = tomllib.loads((COURSE / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return owner_and_name(project.get("urls", {}).get("Repository", ""))


def owner_and_name(address: str) -> str:
    if not address:
        return ""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(\.git)?/?", address)
    if not found:
        sys.exit(
            f"Repository in [project.urls] is {address!r}: launch and issue buttons know https://github.com/OWNER/NAME"
        )
    return found[1]


def offers(lesson: Lesson, place: str, repo: str) -> str:
    """One line of links, in Markdown. place: the page, as an issue is to name it."""
    notebook = f"notebooks/{lesson.unit}/{lesson.name}.ipynb"
    links = [f"{{download}}`Download the released notebook </student/{lesson.unit}/{lesson.name}.ipynb>`"]
    if repo:
        links += [
            f"[Open it in Colab](https://colab.research.google.com/github/{repo}/blob/HEAD/{notebook})",
            f"[Open it in Binder](https://mybinder.org/v2/gh/{repo}/HEAD?labpath={quote(notebook, safe='')})",
            f"[Say what is wrong here](https://github.com/{repo}/issues/new?title={quote(f'{place}: ', safe='')})",
        ]
    return " · ".join(links)
