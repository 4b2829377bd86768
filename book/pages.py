"""python -m book.pages FOLDER: the pages of the site as Markdown, made from the lessons, the results and the kernels.

A lesson's notebook is written for a student at a kernel; a page is read. So an exercise shows what a student gets,
its hints are folded, and the solution with the report of its check waits behind one more fold. Cells that only help or
draw are folded. Nothing is executed here: outputs are those of the solved lessons.
"""

from __future__ import annotations

import ast
import base64
import html
import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

import nbformat

from autograder.classroom.lessons import COURSE, Lesson, find
from benchmarks import readme, recorded
from book.mathml import mathml
from course_lib import results

BOOK = COURSE / "book"
FENCE = "`" * 5  # longer than any fence inside
ON_TWO = ("08_ddp",)  # lessons that were executed on two GPUs
WORDS_A_MINUTE, CODE_LINES_A_MINUTE, SECONDS_A_FIGURE = 200, 20, 20


@dataclass
class Page:
    """A section of a lesson, or what stands before the first one or after the last."""

    unit: str
    name: str
    ran: str  # the machine of the lesson's outputs, with date and versions
    title: str = ""
    cells: list = field(default_factory=list)

    @property
    def path(self) -> str:
        return f"{self.unit}/{self.name}"

    @property
    def prose(self) -> str:
        return "\n\n".join(cell.source for cell in self.cells if cell.cell_type == "markdown")

    @property
    def minutes(self) -> int:
        """Reading: the words, the code that is not an exercise's, and the figures."""
        code = [c for c in self.cells if c.cell_type == "code"]
        lines = sum(c.source.count("\n") + 1 for c in code if "nbgrader" not in c.metadata)
        figures = sum("image/png" in out.get("data", {}) for c in code for out in c.outputs)
        words = len(self.prose.split())
        return max(1, round(words / WORDS_A_MINUTE + lines / CODE_LINES_A_MINUTE + figures * SECONDS_A_FIGURE / 60))


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
    write_kernels(out)
    write(out / "api.md", api(lessons))
    shutil.copy(readme.FIGURE, out / "pictures")
    write(out / "index.md", home(lessons, pages))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


# Lessons


def cut(lesson: Lesson) -> list[Page]:
    """Pages of a lesson: one a numbered section, and one for each part after them. Without numbers, one in all."""
    notebook = nbformat.read(lesson.solution, 4)
    numbered = any(re.match(r"## 1\. ", c.source) for c in notebook.cells)
    ran = said_of_machine(notebook)
    found = [Page(lesson.unit, "index", ran)]
    for cell in divided(notebook.cells):
        head = re.match(r"## (?:(\d+)\. )?(.+)", cell.source) if cell.cell_type == "markdown" else None
        if head and numbered and not head[2].startswith("Exercise "):
            name = f"section-{head[1]}" if head[1] else re.sub(r"\W+", "-", head[2].lower())
            found.append(Page(lesson.unit, name, ran, head[0].removeprefix("## ")))
        found[-1].cells.append(cell)
    found[0].title = re.match(r"# (.+)", notebook.cells[0].source)[1]
    return found


def divided(cells: list):
    """The cells, those of prose cut where a section or an exercise begins in their midst."""
    for cell in cells:
        parts = re.split(r"^(?=## )", cell.source, flags=re.MULTILINE) if cell.cell_type == "markdown" else []
        if "nbgrader" in cell.metadata or len(parts) < 2:
            yield cell
        else:
            yield from (nbformat.v4.new_markdown_cell(part.strip()) for part in parts if part.strip())


def said_of_machine(notebook) -> str:
    """The machine, date and versions that most tables of a lesson name, to be said once."""
    found = re.findall(r"<br>recorded: ([^<]*)</small>", json.dumps([c.get("outputs") for c in notebook.cells]))
    return max(set(found), key=found.count, default=notebook.metadata.speed_of_light.machine)


class Links:
    """Where the words of a lesson lead: other lessons, sections, exercises, and terms of the glossary."""

    def __init__(self, pages: dict[str, list[Page]], terms: dict[str, str]):
        self.terms, self.used = terms, set()  # phrase -> term
        self.page = {}  # "01", "01.7" or "exercise 1.7" -> a link's target
        for unit, of_lesson in pages.items():
            self.page[unit[:2]] = f"/{unit}/index.md"
            for page in of_lesson:
                if page.name.startswith("section-"):
                    self.page[f"{unit[:2]}.{page.name.removeprefix('section-')}"] = f"/{page.path}.md"
                for kind, number in re.findall(r"^#+ (Exercise|Question) (\d+\.\d+)", page.prose, re.MULTILINE):
                    self.page[f"{kind.lower()} {number}"] = f"#{kind.lower()}-{number.replace('.', '-')}"

    def linked(self, text: str, unit: str, met: set[str]) -> str:
        """Prose with its links; code, mathematics, headings and tables' code stay as they are."""
        blocks = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
        return "".join(b if b.startswith("```") else self._prose(b, unit, met) for b in blocks)

    def _prose(self, text: str, unit: str, met: set[str]) -> str:
        kept = r"(^#[^\n]*$|\$\$.+?\$\$|`[^`]*`|\$[^$\n]+\$|\[[^\]]*\]\([^)]*\)|<[^>]+>)"
        parts = re.split(kept, text, flags=re.MULTILINE | re.DOTALL)
        return "".join(part if i % 2 else self._words(part, unit, met) for i, part in enumerate(parts))

    def _words(self, text: str, unit: str, met: set[str]) -> str:
        def link(words: str, key: str) -> str:
            if key not in self.page:
                sys.exit(f"{unit} says {words!r}, and there is no such thing")
            return words if key == unit[:2] else f"[{words}]({self.page[key]})"

        own = unit[:2]
        rules = [
            (
                r"\b([Ll]esson\s+(0\d))(,\s+|\s+only\s+|\s+\(|\s+found\s+in\s+its\s+)(section\s+(\d+))",
                lambda m: link(m[1], m[2]) + m[3] + link(m[4], f"{m[2]}.{m[5]}"),
            ),
            (r"\b[Ll]esson\s+(0\d)\b", lambda m: link(m[0], m[1])),
            (r"\b[Ss]ection\s+(\d+)\b(?! in CUDA)", lambda m: link(m[0], f"{own}.{m[1]}")),
            (
                r"\b([Ss]ections)\s+(\d+)\s+(to|and)\s+(\d+)",
                lambda m: f"{m[1]} {link(m[2], f'{own}.{m[2]}')} {m[3]} {link(m[4], f'{own}.{m[4]}')}",
            ),
            (r"\b([Ee]xercise|[Qq]uestion)\s+(\d+\.\d+)", lambda m: link(m[0], f"{m[1].lower()} {m[2]}")),
        ]
        for pattern, made in rules:
            pieces = re.split(r"(\[[^\]]*\]\([^)]*\))", text)
            text = "".join(p if i % 2 else re.sub(pattern, made, p) for i, p in enumerate(pieces))
        pieces = re.split(r"(\[[^\]]*\]\([^)]*\))", text)
        return "".join(p if i % 2 else self._explained(p, met) for i, p in enumerate(pieces))

    def _explained(self, text: str, met: set[str]) -> str:
        """The first use of every term on a page leads to the glossary."""
        found = []
        for phrase, term in self.terms.items():
            exactly = rf"[{phrase[0].upper()}{phrase[0]}]" + re.escape(phrase[1:]).replace(r"\ ", r"\s+")
            hit = re.search(rf"(?<![\w/.-]){exactly}(?![\w/-]|\.\w)", text)
            if hit and term not in met:
                found.append((hit.start(), -len(phrase), hit, term))
        done, out = 0, ""
        for start, _, hit, term in sorted(found, key=lambda f: f[:2]):
            if start >= done and term not in met:
                met.add(term)
                self.used.add(term)
                out += text[done:start] + f"{{term}}`{' '.join(hit[0].split())} <{term}>`"
                done = hit.end()
        return out + text[done:]


def write_lesson(lesson: Lesson, pages: list[Page], links: Links, out: Path) -> None:
    released = nbformat.read(lesson.release, 4)
    stubs = {c.metadata.nbgrader.grade_id: c.source for c in released.cells if "nbgrader" in c.metadata}
    student = out / "student" / lesson.unit
    student.mkdir(parents=True)
    shutil.copy(lesson.release, student)
    for page in pages:
        first = page.name == "index"
        parts = list(shown(page, stubs, links, out))
        if first:
            before = ["## Before the first section"] if len(pages) > 1 else []
            parts[1:1] = [about(lesson, page), *contents(pages), *before]
        else:
            exercises = re.findall(r"^## Exercise.*\((\d+) min", page.prose, re.MULTILINE)
            time = f"{page.minutes} min to read" + (
                f", {sum(map(int, exercises))} for the exercise" if exercises else ""
            )
            place = f"Lesson [{pages[0].title}](/{lesson.unit}/index.md)"
            title, _, rest = parts[0].partition("\n")
            parts[0] = f"{title}\n\n{container('where', f'{place} · {time}')}\n\n{rest}"
        write(out / f"{page.path}.md", "\n\n".join(parts))


def about(lesson: Lesson, page: Page) -> str:
    count = f"two {page.ran}" if lesson.unit in ON_TWO else page.ran
    return f"""```{{admonition}} Read here, or do it
:class: tip
The outputs on these pages are of this machine: {count}. An exercise shows what a student
gets; a solution and the report of its check wait behind a fold. To work on it yourself take
{{download}}`the released notebook </student/{lesson.unit}/{lesson.name}.ipynb>` of the course, which `make lab` opens.
```"""


def contents(pages: list[Page]) -> list[str]:
    """The map of a lesson that has more than one page."""
    if len(pages) == 1:
        return []
    lines = ["## The way through", "", "::::{container} map", "| section | to read | to do |", "|---|---|---|"]
    for page in pages[1:]:
        todo = re.findall(r"^#+ ((?:Exercise|Question) \S+)(?: `[^`]+`)? \((\d+) min", page.prose, re.MULTILINE)
        work = ", ".join(f"[{name}](#{name.lower().replace(' ', '-').replace('.', '-')}) {m} min" for name, m in todo)
        lines.append(f"| [{page.title}](/{page.path}.md) | {page.minutes} min | {work} |")
    tree = "\n".join(page.name for page in pages[1:])
    return ["\n".join([*lines, "::::"]), f"```{{toctree}}\n:hidden:\n\n{tree}\n```"]


def shown(page: Page, stubs: dict[str, str], links: Links, out: Path):
    """The Markdown of every cell, in the order of reading: what is to be done, hints, then how it can be done."""
    met, waiting, before = set(), [], "markdown"
    for cell in page.cells:
        graded = cell.metadata.get("nbgrader", {})
        hints, rest = "", cell.source
        if cell.cell_type == "markdown" and not graded:
            ends = [m.end() for m in re.finditer("</details>", rest)] if rest.startswith("<details>") else []
            hints, rest = (rest[: ends[-1]], rest[ends[-1] :].strip()) if ends else ("", rest)
        if hints:
            yield hinted(hints, page, links, met)
        if waiting and rest and not (graded and cell.cell_type == "code"):
            yield solution(waiting, page, out)
            waiting = []
        if cell.cell_type == "markdown":
            if graded:
                yield fold("A good answer, and how it is marked", words(unmarked(rest), page, links, met), "solution")
            elif rest:
                yield words(rest, page, links, met)
        elif graded.get("solution"):
            yield code(stubs[graded["grade_id"]])
            waiting.append(cell)
        elif graded:
            waiting.append(cell)
        else:
            yield executed(cell, page, out, introduced=before == "markdown")
        before = cell.cell_type
    if waiting:
        yield solution(waiting, page, out)


def words(text: str, page: Page, links: Links, met: set[str]) -> str:
    """Prose of a cell for a page whose title is its section's: headings one step up, and targets for exercises."""
    out = []
    deep = page.name != "index"
    for block in re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL):
        if not block.startswith("```"):
            block = re.sub(r"^%", r"\\%", block, flags=re.MULTILINE)  # a comment to MyST
            block = re.sub(r"^#(#+ )", r"\1", block, flags=re.MULTILINE) if deep else block
            if deep:  # an exercise and what follows it stand under the section's title
                block = re.sub(r"^# (?=(Exercise|Question) )", "## ", block, flags=re.MULTILINE)
            target = r"^(#+ (Exercise|Question) (\d+)\.(\d+))"
            block = re.sub(target, lambda m: f"({m[2].lower()}-{m[3]}-{m[4]})=\n{m[1]}", block, flags=re.MULTILINE)
        out.append(block)
    return links.linked("".join(out), page.unit, met)


def hinted(text: str, page: Page, links: Links, met: set[str]) -> str:
    found = re.findall(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", text, re.DOTALL)
    return "\n\n".join(fold(title, words(body.strip(), page, links, met), "hint") for title, body in found)


def solution(cells: list, page: Page, out: Path) -> str:
    parts, reports = [], False
    for cell in cells:
        parts.append(code(unmarked(cell.source)))
        made = outputs(cell, page, out)
        reports |= bool(made)
        parts += made
    title = "One solution, and the report of its check" if reports else "One solution"
    return fold(title, "\n\n".join(parts), "solution")


def executed(cell, page: Page, out: Path, introduced: bool) -> str:
    made = outputs(cell, page, out)
    if "widgets." in cell.source and made:
        made.append(container("still", "On this page the figure stands still; in the notebook it has controls."))
    if "setup" in cell.metadata.get("tags", []):
        given = re.findall(r"^(?:def|class) (\w+)", cell.source, re.MULTILINE)
        title = f"Given: {', '.join(f'`{name}`' for name in given)}"
        if "course_lib.device" in cell.source:
            title = "The cell that every lesson starts with, and the machine"
        return fold(title, "\n\n".join([code(cell.source), *made]))
    title = folded_as(cell, page.prose, introduced)
    shown_code = fold(title, code(cell.source)) if title else code(cell.source)
    return "\n\n".join([shown_code, *made])


def folded_as(cell, prose: str, introduced: bool) -> str:
    """The title of the fold for a cell that draws, or only defines what no sentence introduces or names."""
    kinds = {key for out in cell.outputs for key in out.get("data", {})} | {o.output_type for o in cell.outputs}
    if "image/png" in kinds and "plots." in cell.source and "stream" not in kinds and "triton.jit" not in cell.source:
        return "How this figure is made"
    tree = ast.parse(cell.source)
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    simple = all(isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom) for node in tree.body)
    if cell.outputs or not defined or not simple or "triton.jit" in cell.source:
        return ""
    draws = all(node.name.startswith("draw_") for node in defined)
    if not draws and (introduced or any(re.search(rf"`{node.name}\b", prose) for node in defined)):
        return ""
    return "Helpers: " + ", ".join(f"`{node.name}`" for node in defined)


def unmarked(source: str) -> str:
    return re.sub(r"^[ \t]*### (BEGIN|END) SOLUTION\n?", "", source + "\n", flags=re.MULTILINE).strip("\n")


def code(source: str, language: str = "python") -> str:
    return f"{FENCE}{language}\n{source}\n{FENCE}"


def container(kind: str, body: str) -> str:
    return f"::::{{container}} {kind}\n{body}\n::::"


def raw(text: str) -> str:
    return f"{FENCE}{{raw}} html\n{text}\n{FENCE}"


def fold(title: str, body: str, kind: str = "aside") -> str:
    said = html.escape(title, quote=False)
    said = re.sub(r"`([^`]*)`", r"<code>\1</code>", said)
    said = re.sub(r"\$([^$]+)\$", lambda m: mathml(html.unescape(m[1])), said)
    return f"{raw(f'<details class={kind}><summary>{said}</summary>')}\n\n{body}\n\n{raw('</details>')}"


def outputs(cell, page: Page, out: Path) -> list[str]:
    parts = []
    for i, output in enumerate(cell.outputs):
        data = output.get("data", {})
        if output.output_type == "stream":
            parts.append(container("output", code(output.text.rstrip("\n"), "text")))
        elif output.output_type == "error":
            sys.exit(f"{page.path}: an executed cell ends in {output.ename}")
        elif "image/png" in data:
            about = output.metadata.get("image/png", {})
            name = f"{page.unit}-{cell.id}-{i}.png"
            (out / "pictures").mkdir(exist_ok=True)
            (out / "pictures" / name).write_bytes(base64.b64decode(data["image/png"]))
            parts.append(figure(name, about.get("alt", ""), about.get("width"), page))
        elif "text/html" in data:
            if not data["text/html"].startswith('<div style="position:absolute;width:1px'):  # the picture has it as alt
                parts.append(raw(f'<div class="report">{report(data["text/html"], page.ran)}</div>'))
        else:
            parts.append(container("output", code(data["text/plain"], "text")))
    return parts


def figure(name: str, alt: str, width: int | None, page: Page) -> str:
    if not alt:
        sys.exit(f"{page.path}: a figure has no alternative text")
    one_line = " ".join(alt.split())
    size = f":width: {width}px\n" if width else ""
    return container("plot", f"```{{image}} /pictures/{name}\n:alt: {one_line}\n{size}```")


CLASSES = {  # what the lessons' reports say by inline styles, as classes that know light and dark
    "border-left:4px solid #0072B2;padding-left:.8em;max-width:60em": "verdict right",
    "border-left:4px solid #D55E00;padding-left:.8em;max-width:60em": "verdict wrong",
    "color:#0072B2": "said-right",
    "color:#D55E00": "said-wrong",
    "text-align:left;vertical-align:top;white-space:pre;font-family:monospace": "code-cell",
}


def report(text: str, ran: str) -> str:
    """A table or a check's report for a page: classes for colours, one column where two are the same machine."""
    text = re.sub(
        r"""style=(['"])(.*?)\1""",
        lambda m: f'class="{CLASSES[m[2]]}"' if m[2] in CLASSES else "",
        one_machine(text, ran),
    )
    text = re.sub(r"(<t[hd]) +>", r"\1>", text)
    return re.sub(r"(<table.*?</table>)", r'<div class="wide">\1</div>', text, flags=re.DOTALL)


def one_machine(text: str, ran: str) -> str:
    """A table "here" beside "recorded" where both are the recorded run: its numbers once, its machine if it differs."""
    beside = re.match(
        r"<table><thead><tr><th>([^<]*)</th><th>here([^<]*)</th><th>recorded[^<]*</th><th>here / recorded</th></tr>"
        r"</thead><tbody>(.*)</tbody></table><p><small>here: ([^<]*)<br>recorded: (.*?)</small></p>$",
        text,
        re.DOTALL,
    )
    if not beside or not beside[5].startswith(beside[4]):
        return text
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", beside[3])]
    if any(here != there for _, here, there, _ in rows):
        return text
    body = "".join(f"<tr><td>{name}</td><td>{here}</td></tr>" for name, here, _, _ in rows)
    head = f"<tr><th></th><th>measured{beside[2]}</th></tr>"
    where = "" if beside[5] == ran else f"<p><small>{beside[5]}</small></p>"
    return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>{where}"


# Glossary


def glossary(out: Path) -> dict[str, str]:
    """Writes the page; returns phrase -> term."""
    found, phrases = [], {}
    for line in (BOOK / "glossary.md").read_text(encoding="utf-8").splitlines():
        entry = re.match(r"\*\*(.+?)\*\*(?: \((.+?)\))?: (.+)", line)
        if entry:
            found.append((entry[1], entry[3]))
            phrases |= dict.fromkeys([entry[1], *(entry[2] or "").split(", ")], entry[1])
    phrases.pop("", None)
    body = "\n\n".join(f"{term}\n  {said}" for term, said in sorted(found, key=lambda e: e[0].lower()))
    intro = "Words of the lessons, each in a plain sentence. The first use on a page leads here."
    write(out / "glossary.md", f"# Glossary\n\n{intro}\n\n:::{{glossary}}\n{body}\n:::")
    return dict(sorted(phrases.items(), key=lambda e: -len(e[0])))


# Measured

TITLES = {
    "softmax": "Softmax",
    "matmul": "Matrix product",
    "attention": "Attention",
    "linear_gelu": "Linear with GELU",
    "mlp": "A step of an MLP",
    "add_norm": "Residual and norm",
    "rope": "RoPE",
    "mx": "MXINT8",
    "pointwise": "Pointwise",
}


def measured() -> str:
    """Every row of the sections that the README's table draws on."""
    stale = recorded.stale()
    parts = [
        "# Measured",
        "Our reference kernels beside the best peer: in the same process, in turn (A B B A). A ratio below 1 says that "
        "ours is faster. The floor is the recorded one, or else what the row's bytes need at the rate of a large copy, "
        "or its operations at the rate that a large product lasts at. A shorter product runs at a higher clock, and a "
        "kernel that reads more than it writes is faster than a copy: such times can lie a little below. A click on "
        "the head of a column sorts.",
    ]
    old = [section for section in stale if section in readme.SHOWN]
    others = [s for s in stale if s not in old and not s.startswith("bank")]
    said = f"The code behind {listed(old)} has changed since it was measured." if old else "All of it holds."
    said += f" Of what else was recorded, {listed(others)} is to be measured again." if others else ""
    said += f" So are {sum(s.startswith('bank') for s in stale)} sections on how exercises are judged." if stale else ""
    parts.append(f"```{{admonition}} Does it still hold?\n{said} `python -m benchmarks stale` says the same.\n```")
    for section in readme.SHOWN:
        entry = results.load(section)
        versions = ", ".join(f"{name} {entry['versions'][name]}" for name in ("torch", "triton"))
        mark = ". **The code has changed since.**" if section in stale else "."
        parts.append(f"## {TITLES[section]}\n\n{entry['machine']}, {entry['date']}, {versions}{mark}")
        parts.append(raw(rows(TITLES[section], [row for row in entry["rows"] if "ratio" in row])))
    return "\n\n".join(parts)


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def rows(title: str, found: list[dict]) -> str:
    heads = ["kernel", "ours, µs", "best peer", "its µs", "ours / peer's", "95 % interval", "floor, µs", "target"]
    head = "".join(f"<th scope=col{' class=n' if i not in (0, 2) else ''}>{text}</th>" for i, text in enumerate(heads))
    body = []
    for row in found:
        peer = row.get("best peer", "")
        over = row.get("target") is not None and row["ratio"] > row["target"]
        cells = [
            microseconds(row["value"]),
            html.escape(str(peer)),
            microseconds(row.get(f"{peer} us")),
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f} to {row['high']:.3f}",
            microseconds(floor_us(row)),
            "" if row.get("target") is None else f"{row['target']:.3f}" + (", missed" if over else ""),
        ]
        kinds = ("n", "", "n", "n", "n", "n", "n")
        tds = "".join(f"<td{f' class={k}' if k else ''}>{c}</td>" for k, c in zip(kinds, cells))
        body.append(f"<tr><th scope=row>{html.escape(row['name'])}</th>{tds}</tr>")
    inside = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="wide"><table class=sortable aria-label="{title}">{inside}</table></div>'


def floor_us(row: dict) -> float | None:
    """The recorded floor, or the row's bytes or operations at the recorded ceilings of the machine."""
    top = {ceiling["name"]: ceiling["value"] for ceiling in results.load("ceilings")["rows"]}
    formats = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "tf32": "tf32"}
    kind = next((short for name, short in formats.items() if name in row["name"]), "bf16")
    if "floor us" in row:
        return row["floor us"]
    if "TB/s" in row:
        return row["value"] * row["TB/s"] * 1e12 / top["copy"]
    return row["value"] * row["TFLOP/s"] * 1e12 / top[f"matmul {kind}"] if "TFLOP/s" in row else None


def microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


# Kernels

KERNELS = COURSE / "course_lib" / "kernels"
NOTES = COURSE / "benchmarks" / "notes"
TAUGHT = {  # family -> its lesson
    "pointwise": "00_start",
    "softmax": "01_roofline",
    "matmul": "01_roofline",
    "attention": "04_flash",
    "one_pass": "04_flash",
    "linear_gelu": "05_mlp",
    "mlp": "05_mlp",
    "add_norm": "05_mlp",
    "dropout": "05_mlp",
    "rope": "06_rope",
    "mx": "07_mx",
}


def write_kernels(out: Path) -> None:
    families: dict[str, list[Path]] = {}
    for path in sorted(KERNELS.rglob("*.py")):
        if path.parent != KERNELS or path.name != "__init__.py":
            families.setdefault(path.relative_to(KERNELS).parts[0].removesuffix(".py"), []).append(path)
    notes = {path.stem: path for path in sorted(NOTES.glob("*.md"))}
    for family, paths in families.items():
        start = next((p for p in paths if p.stem in (family, "__init__")), paths[0])
        lesson = f"Taught in lesson [{TAUGHT[family][:2]}](/{TAUGHT[family]}/index.md). " if family in TAUGHT else ""
        noted = f"[What was tried](#notes-{family}) stands below." if family in notes else ""
        parts = [f"# `{family}`", lesson + noted, *annotated(start)]
        parts += (
            [f"(notes-{family})=", demoted(notes.pop(family).read_text(encoding="utf-8"))] if family in notes else []
        )
        if others := [path for path in paths if path != start]:
            listing = "\n".join(path.stem for path in others)
            parts.append(f"## Its other files\n\n```{{toctree}}\n:maxdepth: 1\n\n{listing}\n```")
        name = f"{family}/index" if len(paths) > 1 else family
        write(out / "kernels" / f"{name}.md", "\n\n".join(filter(None, parts)))
        for path in others:
            text = [f"# `{family}/{path.name}`", *annotated(path)]
            write(out / "kernels" / family / f"{path.stem}.md", "\n\n".join(text))
    for name, path in notes.items():
        write(out / "kernels" / f"notes-{name}.md", path.read_text(encoding="utf-8"))
    listed_pages = [f"{f}/index" if len(p) > 1 else f for f, p in families.items()] + [f"notes-{n}" for n in notes]
    intro = "The reference kernels, each beside its own comments, and what was tried on the way to it."
    listing = "\n".join(listed_pages)
    write(out / "kernels" / "index.md", f"# Kernels\n\n{intro}\n\n```{{toctree}}\n:maxdepth: 1\n\n{listing}\n```")


def demoted(text: str) -> str:
    return re.sub(r"^#", "##", text, flags=re.MULTILINE)


def annotated(path: Path) -> list[str]:
    """What a module says about itself, then docstrings and comments, each beside the code that it explains."""
    source = path.read_text(encoding="utf-8")
    parsed, lines = ast.parse(source), source.split("\n")
    strings = {}  # first line of a docstring -> its last line and its text
    for node in ast.walk(parsed):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            strings[node.body[0].lineno] = (node.body[0].end_lineno, ast.get_docstring(node))
    tops = {min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))]) for node in parsed.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef)}  # fmt: skip
    pairs, said, kept = [], [], []

    def close():
        body = "\n".join(kept).strip("\n")
        if said or body:
            pairs.append(("\n\n".join(said), body))
        said.clear(), kept.clear()

    head = ast.get_docstring(parsed)
    number = parsed.body[0].end_lineno + 1 if head else 1
    while number <= len(lines):
        line = lines[number - 1]
        if number in strings:
            end, text = strings[number]
            said.append(plain(text))
            number = end
        elif line.strip().startswith("# ") and "fmt:" not in line:
            if any(k.strip() for k in kept):
                close()
            words = [line.strip()[2:]]
            while lines[number].strip().startswith("# "):
                words.append(lines[number].strip()[2:])
                number += 1
            said.append(plain("\n".join(words)))
        else:
            if number in tops and any(k.strip() for k in kept):
                close()
            kept.append(line.removesuffix("  # fmt: skip"))
        number += 1
    close()
    return [plain(head or ""), *(pair(words, body) for words, body in pairs)]


def pair(words: str, body: str) -> str:
    parts = [f":::{{container}} said\n{words}\n:::"] if words else []
    parts += [f":::{{container}} source\n{code(body)}\n:::"] if body else []
    return container("pair" if words and body else "alone", "\n".join(parts))


def plain(text: str) -> str:
    """A docstring or a comment as Markdown: one backtick is code, what is indented stands as it is, no other marks."""
    out = []
    for line in text.split("\n"):
        if line.startswith("    "):
            if out and out[-1].strip() and not out[-1].startswith("    "):
                out.append("")
            out.append(line)
        else:
            spans = re.split(r"(`[^`]+`)", line)
            escaped = "".join(s if s.startswith("`") else re.sub(r"([\\*_\[\]<>|#$~{}])", r"\\\1", s) for s in spans)
            escaped = re.sub(r"^([=+%-])(?! )", r"\\\1", escaped)
            if out and out[-1].startswith("    ") and escaped.strip():
                out.append("")
            out.append(escaped)
    return "\n".join(out)


# What lessons import


def api(lessons: list[Lesson]) -> str:
    """Every name of course_lib that a lesson imports or reaches through a module, with its docstring."""
    used: dict[str, set[str]] = {}
    for lesson in lessons:
        cells = nbformat.read(lesson.solution, 4).cells
        source = "\n".join(c.source for c in cells if c.cell_type == "code")
        modules = {}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_lib"):
                for name in node.names:
                    module = f"{node.module}.{name.name}"
                    if module_file(module):
                        modules[name.asname or name.name] = module
                    else:
                        used.setdefault(node.module, set()).add(name.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
                used.setdefault(modules[node.value.id], set()).add(node.attr)
    parts = ["# course_lib", "What the lessons import, with what each of it says about itself."]
    for module in sorted(used):
        parts += [f"## `{module}`", first_paragraph(module_file(module))]
        entries = [entry(module, name) for name in sorted(used[module])]
        parts += [e for e in entries if e]
    return "\n\n".join(parts)


def module_file(module: str) -> Path | None:
    base = COURSE.joinpath(*module.split("."))
    found = [p for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()]
    return found[0] if found else None


def first_paragraph(path: Path) -> str:
    return plain((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0])


def entry(module: str, name: str) -> str:
    node = defined(module, name)
    if node is None:
        return ""
    if isinstance(node, ast.FunctionDef):
        result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        head = f"{name}({ast.unparse(node.args)}){result}"
    else:
        head = f"class {name}"
    return f"### `{name}`\n\n{container('signature', code(head))}\n\n{plain(ast.get_docstring(node) or '')}"


def defined(module: str, name: str):
    """The function or class that a name of a module is; packages pass names on from their files."""
    path = module_file(module)
    body = ast.parse(path.read_text(encoding="utf-8")).body if path else []
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
                    prefix = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
                    target = f"{prefix}.{node.module}" if node.level else node.module
                    return defined(target, alias.name) if target.startswith("course_lib") else None
    return None


# The first page


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

- [Measured](measured.md): the reference kernels beside their best peers.
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
kernels/index
glossary
api
```
"""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
