"""What formgrader and feedback show of a student's markdown: text, tables, links and pictures; nothing that acts.

nbgrader renders markdown as it stands, and markdown may hold any HTML. nbconvert's own `sanitize_html` leaves neither
paragraphs nor headings of a lesson, nor the figures of our reports.
"""

from __future__ import annotations

import bleach
from bleach.css_sanitizer import CSSSanitizer
from nbconvert.filters import strip_files_prefix

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
TAGS = {
    *"a abbr b blockquote br code dd del details div dl dt em hr i img kbd li ol p pre s small span strong sub".split(),
    *"summary sup table tbody td th thead tr u ul".split(),
    *HEADINGS,
}
ATTRIBUTES = {name: ["id"] for name in HEADINGS}
ATTRIBUTES |= {name: ["class"] for name in ("div", "span", "pre", "code")}  # colours of code
ATTRIBUTES |= {name: ["style"] for name in ("td", "th")}  # alignment
ATTRIBUTES |= {"a": ["class", "href", "title"], "img": ["alt", "src", "title"]}
CLEANER = bleach.Cleaner(
    TAGS, ATTRIBUTES, protocols=("http", "https", "mailto"), css_sanitizer=CSSSanitizer(["text-align"])
)


def harmless(html: str) -> str:
    """A cell's rendered markdown; a tag that is not on the list is shown as text."""
    return CLEANER.clean(strip_files_prefix(html))
