"""The built site, once for all tests that look at it."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from autograder.classroom.lessons import COURSE

MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]


@dataclass
class Page(HTMLParser):
    """What the tests ask about one page."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)  # scripts, styles and pictures
    pictures: list[dict] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)

    def __post_init__(self):
        super().__init__()
        self.text = self.path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids |= {given["id"]} if "id" in given else set()
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append(given)
        if "style" in given:
            self.styles.append(given["style"])
        if "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(given["href"])

    def file(self, address: str) -> Path:
        return (self.path.parent / unquote(re.split("[?#]", address)[0])).resolve()


@pytest.fixture(scope="session")
def sphinx():
    """What runs Sphinx, a warning being an error."""
    if MISSING:
        pytest.skip(f"the extra `book` is not installed ({', '.join(MISSING)}); see make book")

    def run(source: Path, out: Path) -> subprocess.CompletedProcess:
        words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "book", str(source), str(out)]
        return subprocess.run(words, cwd=COURSE, capture_output=True, text=True)

    return run


@pytest.fixture(scope="session")
def built(sphinx, tmp_path_factory):
    """(folder of the pages, what the two programs said)."""
    root = tmp_path_factory.mktemp("book")
    words = [sys.executable, "-m", "book.pages", str(root / "source")]
    made = subprocess.run(words, cwd=COURSE, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    done = sphinx(root / "source", root / "html")
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "html", made.stdout + made.stderr + done.stdout + done.stderr


@pytest.fixture(scope="session")
def pages(built) -> dict[Path, Page]:
    return {path: Page(path) for path in sorted(built[0].rglob("*.html"))}
