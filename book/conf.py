"""Sphinx reads this: python -m sphinx -c book book/build/source book/build/html. `make book` does all of it."""

import re

from docutils import nodes
from docutils.utils.math import MathError
from sphinx.util import logging

from book.mathml import mathml

project = "Speed of Light"
html_title = "Speed of Light"
author = "the authors of Speed of Light"
copyright = "2026 The Speed of Light authors, MIT licence"
language = "en"
smartquotes = False  # m' is a variable

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3
myst_dmath_double_inline = True
suppress_warnings = ["myst.header"]  # a page may begin at any depth, as a cell does

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [("book.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_use_index = False
html_show_search_summary = False  # a page opened as a file may not fetch the others
html_math_renderer = "mathml"
html_theme_options = {
    "top_of_page_buttons": [],
    "navigation_with_keys": False,
    "light_css_variables": {"color-brand-primary": "#00568b", "color-brand-content": "#00568b"},
    "dark_css_variables": {"color-brand-primary": "#7cc0ea", "color-brand-content": "#7cc0ea"},
}
# Both styles pass WCAG AA.
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"


def inline(writer, node):
    writer.body.append(formula(node, block=False))
    raise nodes.SkipNode


def block(writer, node):
    writer.body.append(f'<div class="math">{formula(node, block=True)}</div>')
    raise nodes.SkipNode


def formula(node, block: bool) -> str:
    try:
        return mathml(node.astext(), block)
    except MathError as wrong:
        logging.getLogger(__name__).warning("no MathML for this formula: %s", wrong, location=node)
        return ""


def with_lesson(app, page, template, context, doctree):
    """Several lessons have a page "Questions": the tab, and a link from another lesson, say of which lesson it is."""
    if lesson := re.match(r"(\d\d)_\w+/(?!index)", page):
        context["title"] = f"{context['title']} ({lesson[1]})"
    for way in ("prev", "next"):
        if (other := context.get(way)) and (lesson := re.match(r"\.\./(\d\d)_\w+/(?!index)", other["link"])):
            context[way] = other | {"title": f"{other['title']} ({lesson[1]})"}


def with_level(app, page, template, context, doctree):
    """Captions of the navigation are headings to a screen reader, which wants to know of which level."""
    tree = context.get("furo_navigation_tree", "")
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def setup(app):
    app.connect("html-page-context", with_lesson)
    app.connect("html-page-context", with_level, priority=900)  # after the theme made the tree
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
