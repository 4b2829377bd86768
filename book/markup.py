"""The few forms in which a page says things in Markdown for Sphinx."""

import html
import re
from pathlib import Path

from book.mathml import mathml

FENCE = "`" * 5  # longer than any fence inside


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.rstrip() + "\n", encoding="utf-8")


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
