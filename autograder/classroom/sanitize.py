"""What formgrader and feedback show of a student's markdown: text, tables, links and pictures; nothing that acts.

nbgrader renders markdown as it stands, and markdown may hold any HTML. nbconvert's own `sanitize_html` leaves neither
paragraphs nor headings of a lesson, nor the figures of our reports. formgrader also serves files of the course, with
all the rights of Jupyter: so no link leads to one, and no file that it serves can act.

Of code only Python is coloured: pygments knows 500 more languages, and one of them takes a minute for 300 zeros and
twice that for each one more. A student chooses the language by ```` ```zeek ```` in a text, and by `%%perl` in a cell.
"""

from __future__ import annotations

import functools
import re
from html import unescape

import bleach
from bleach.css_sanitizer import CSSSanitizer
from bleach.html5lib_shim import Filter
from nbconvert.filters import Highlight2HTML, strip_files_prefix
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbgrader.server_extensions.formgrader.handlers import SubmissionFilesHandler
from pygments.token import STANDARD_TYPES

from autograder.referee.submission import visible

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
TAGS = {
    *"a abbr b blockquote br code dd del details div dl dt em hr i img kbd li ol p pre s small span strong sub".split(),
    *"summary sup table tbody td th thead tr u ul".split(),
    *HEADINGS,
}
ATTRIBUTES = {name: ["id"] for name in HEADINGS}
ATTRIBUTES |= {name: ["class"] for name in ("div", "span", "pre", "code")}  # colours of code
ATTRIBUTES |= {name: ["style"] for name in ("td", "th")}  # alignment
CLASSES = {*STANDARD_TYPES.values(), "highlight", "anchor-link"}  # of colours, and of the link behind a heading
IN_TEXT = "own-"  # what the ids of headings begin with, and of no other element
ID, CLASS, HREF = ((None, name) for name in ("id", "class", "href"))
# Elsewhere, or on the same page: `http:page.html` is a file beside this page, and `//name` a server like this one.
ELSEWHERE = re.compile(r"(?:https?://\w|mailto:)", re.IGNORECASE)
NUMBERED = re.compile(r"&#(?:[0-9]+|x[0-9a-f]+);?", re.IGNORECASE)


def _of_link(tag: str, name: str, value: str) -> bool:
    return name in ("class", "title") or (name == "href" and bool(value[:1] == "#" or ELSEWHERE.match(value)))


def _of_picture(tag: str, name: str, value: str) -> bool:
    return name in ("alt", "title") or (name == "src" and bool(ELSEWHERE.match(value)))


ATTRIBUTES |= {"a": _of_link, "img": _of_picture}


class _OwnNames(Filter):
    """Ids, links to them and classes of a text, as the page can bear them."""

    def __iter__(self):
        for token in super().__iter__():
            if token["type"] in ("StartTag", "EmptyTag"):
                found = token["data"]
                if ID in found:
                    found[ID] = f"{IN_TEXT}{found[ID]}"
                if found.get(HREF, "").startswith("#"):
                    found[HREF] = f"#{IN_TEXT}{found[HREF][1:]}"
                if classes := CLASSES.intersection(found.pop(CLASS, "").split()):
                    found[CLASS] = " ".join(sorted(classes))
            yield token


CLEANER = bleach.Cleaner(
    TAGS,
    ATTRIBUTES,
    protocols=("http", "https", "mailto"),
    filters=[_OwnNames],
    css_sanitizer=CSSSanitizer(["text-align"]),
)


class _OnlyPython(IPythonRenderer):
    def block_code(self, code: str, info: str | None = None) -> str:
        return super().block_code(code, info if (info or "").strip() == "python" else None)

    def _embed_image_or_attachment(self, src: str) -> str:
        """No picture of the notebook is here; nbconvert ends at one that is missing."""
        return src


def rendered(source: str) -> str:
    """A cell's markdown, in place of nbconvert's `markdown2html`."""
    return MarkdownWithMath(renderer=_OnlyPython(escape=False)).render(source)


def coloured(source: str, language: str | None = None, metadata: dict | None = None) -> str:
    """A cell's code, in place of nbconvert's `highlight_code`, which reads magics as other languages."""
    return Highlight2HTML(pygments_lexer="python3")(source)


@functools.lru_cache(maxsize=1024)  # the lesson's own text stands on every page
def harmless(html: str) -> str:
    """A cell's rendered markdown; a tag that is not on the list is shown as text."""
    cleaned = CLEANER.clean(strip_files_prefix(html))
    return visible(NUMBERED.sub(lambda number: _unless_control(number[0]), cleaned))


def _unless_control(number: str) -> str:
    """Python has no letter for some numbers that a browser has a control for."""
    letter = unescape(number)
    return number if letter and visible(letter) == letter else "\N{REPLACEMENT CHARACTER}"


def disarm() -> None:
    """formgrader serves any file of the course folder by its path, what was handed in too: as pages that cannot act."""
    SubmissionFilesHandler.set_extra_headers = _without_rights


def _without_rights(handler: SubmissionFilesHandler, path: str) -> None:
    handler.set_header("Content-Security-Policy", "sandbox; default-src 'none'; img-src 'self'")
    handler.set_header("X-Content-Type-Options", "nosniff")
