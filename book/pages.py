"""python -m book.pages FOLDER: the pages of the site as Markdown, made from the lessons, the results and the kernels.

A lesson's notebook is written for a student at a kernel; a page is read. So an exercise shows what a student gets,
its hints are folded, and the solution with the report of its check waits behind one more fold, as what the author
predicted does. Cells that only help or draw are folded. Nothing is executed here: outputs are those of the solved
lessons.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from autograder.classroom.lessons import COURSE, Lesson, find
from benchmarks import around, readme
from book.lessons import Links, Page, cut, write_lesson
from book.markup import container, write
from book.measured import everything, measured
from book.reference import api, glossary, write_kernels


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    lessons = find()
    pages = {lesson.unit: cut(lesson) for lesson in lessons}
    links = Links(pages, glossary(out))
    for lesson in lessons:
        write_lesson(lesson, pages[lesson.unit], links, out)
    if unused := set(links.terms.values()) - links.used:
        sys.exit(f"book/glossary.md explains what no lesson says: {', '.join(sorted(unused))}")
    write(out / "measured.md", measured())
    write(out / "recorded.md", everything())
    write_kernels(out)
    write(out / "api.md", api(lessons))
    for picture in (readme.FIGURE, *([readme.AROUND] if around.is_there() else [])):
        shutil.copy(picture, out / "pictures")
    write(out / "index.md", home(lessons, pages))


def home(lessons: list[Lesson], pages: dict[str, list[Page]]) -> str:
    text = (COURSE / "README.md").read_text(encoding="utf-8")
    table = {
        m[1]: (m[2], m[3]) for m in re.finditer(r"^\| \[(\d\d) .*?\| (.*?) \| .*? \| (.*?) \|$", text, re.MULTILINE)
    }
    lines = ["| lesson | to do | to read | exercises |", "|---|---|---|---|"]
    for lesson in lessons:
        number = lesson.unit[:2]
        minutes = sum(page.minutes for page in pages[lesson.unit])
        read = f"{minutes} min" if minutes < 60 else f"{minutes / 60:.1f} h"
        link = f"[{pages[lesson.unit][0].title}](/{lesson.unit}/index.md)"
        lines.append(f"| {link} | {table[number][0]} | {read} | {table[number][1]} |")
    intro = re.search(r"# Speed of Light\n\n(.*?)\n\n", text, re.DOTALL)[1]
    listing = "\n".join(f"{lesson.unit}/index" for lesson in lessons)
    alt = re.search(r"!\[(.*?)\]\(benchmarks/results/roofline.svg\)", text)[1]
    return f"""# Speed of Light

{intro}

::::{{container}} plot
```{{image}} /pictures/roofline.svg
:alt: {alt}
```
::::

Every lesson starts from a claim made in the field, lets you predict before you measure, and ends with a verdict. Here
the lessons are to be read, with the outputs of an H200; exercises show their solutions behind a fold. To do them, take
the course itself: `make lab` opens it in JupyterLab, with or without a GPU.

## Lessons

{container("map lessons", chr(10).join(lines))}

## To look things up

- [Measured](measured.md): the reference kernels beside their best peers, and [all else that was
  recorded](recorded.md).
- [Kernels](kernels/index.md): their sources beside their comments, and what was tried.
- [Glossary](glossary.md): words of the lessons in plain sentences.
- [course_lib](api.md): what the lessons import.

```{{toctree}}
:hidden:
:caption: Lessons

{listing}
```

```{{toctree}}
:hidden:
:caption: Look up

measured
recorded
kernels/index
glossary
api
```
"""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
