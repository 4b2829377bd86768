"""python -m book.printing SITE OUT: the built site as one PDF a lesson, and one of what is looked up, by Chromium.

The pages of a lesson are put behind each other in one file beside them, with links between them made links inside it;
Chromium prints that. Folds are open on paper (static/book.css).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["joined", "main"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = """--headless=new --disable-gpu --disable-dev-shm-usage --disable-background-networking --disable-sync
--disable-component-update --no-first-run --no-pdf-header-footer --allow-file-access-from-files""".split()
LOOKED_UP = ("measured", "glossary", "api")
PATIENCE_S = 300  # of one document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path, help="what `make book` built")
    parser.add_argument("out", type=Path)
    parser.add_argument("lesson", nargs="?", default="", help="only this one, such as 01_roofline")
    given = parser.parse_args()
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        sys.exit(f"Printing needs Chromium, and there is none of {', '.join(NAMES)}.")
    given.out.mkdir(parents=True, exist_ok=True)
    documents = {folder.name: pages_of(folder / "index.html") for folder in sorted(given.site.glob("[0-9][0-9]_*"))}
    documents["look_up"] = [given.site / f"{name}.html" for name in LOOKED_UP]
    if given.lesson:
        documents = {given.lesson: documents[given.lesson]}
    for name, pages in documents.items():
        whole = pages[0].with_name("all-pages.html")
        whole.write_text(joined(pages), encoding="utf-8")
        try:
            print_one(program, whole, given.out / f"{name}.pdf")
        finally:
            whole.unlink()
        print(f"{given.out / f'{name}.pdf'}")


def pages_of(index: Path) -> list[Path]:
    """The lesson's first page, then its sections in the order of its map."""
    text = index.read_text(encoding="utf-8")
    listed = re.findall(r'<li class="toctree-l2[^"]*"><a class="[^"]*" href="([\w-]+\.html)"', text)
    sections = [index.parent / name for name in dict.fromkeys(listed) if name != "index.html"]
    return [index, *(path for path in sections if path.is_file())]


def joined(pages: list[Path]) -> str:
    """The articles of several pages as one page; what each of them calls by a name is called by its page's too."""
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    head = re.search(r"<head>.*?</head>", texts[pages[0]], re.DOTALL)[0]
    head = re.sub(
        r'<script.*?</script>|<link rel="(next|prev|index|search|canonical)"[^>]*>', "", head, flags=re.DOTALL
    )
    parts = []
    for path, text in texts.items():
        article = re.search(r'<article[^>]*role="main"[^>]*>(.*?)</article>', text, re.DOTALL)[1]
        article = re.sub(r"<script.*?</script>", "", article, flags=re.DOTALL)  # figures stand still on paper
        article = re.sub(r'\bid="([^"]+)"', rf'id="{path.stem}-\1"', article)
        article = re.sub(r'href="#([^"]+)"', rf'href="#{path.stem}-\1"', article)
        for other in pages:
            article = re.sub(rf'href="{re.escape(other.name)}#([^"]+)"', rf'href="#{other.stem}-\1"', article)
            article = article.replace(f'href="{other.name}"', f'href="#page-{other.stem}"')
        parts.append(f'<section class="printed" id="page-{path.stem}"><article>{article}</article></section>')
    return f'<!doctype html><html lang="en">{head}<body data-theme="light">{"".join(parts)}</body></html>'


def print_one(program: str, page: Path, out: Path) -> None:
    with tempfile.TemporaryDirectory() as profile:
        words = [program, *FLAGS, f"--user-data-dir={profile}", f"--print-to-pdf={out.resolve()}"]
        if os.geteuid() == 0:
            words.append("--no-sandbox")  # Chromium's own does not start for root
        done = subprocess.run([*words, page.resolve().as_uri()], capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode or not out.is_file():
        sys.exit(f"{out.name} was not printed: {done.stderr[-500:]}")


if __name__ == "__main__":
    main()
