"""formgrader's page of a submission: what waits is open with its answer, question and guide; the rest is folded."""

from collections import Counter
from html import escape
from html.parser import HTMLParser
from types import SimpleNamespace

import nbformat
import pytest
from jinja2 import Environment, FileSystemLoader
from nbconvert.exporters import HTMLExporter, html
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.converters import GenerateFeedback
from nbgrader.server_extensions.formgrader import base, handlers
from traitlets.config import Config

from autograder.classroom import export, marking, sanitize
from autograder.referee.submission import OWN


def graded(name, source, kind=new_code_cell, **marks):
    return kind(
        source, metadata={"nbgrader": {"grade_id": name, "grade": True, "solution": False, "points": 2} | marks}
    )


def answer(name, source="def f(): pass"):
    return new_code_cell(source, metadata={"nbgrader": {"grade_id": name, "grade": False, "solution": True}})


def words(name, source):
    return graded(name, source, new_markdown_cell, solution=True)


@pytest.fixture
def cells():
    return [
        new_markdown_cell("# A lesson"),
        answer("softmax"),
        graded("softmax_check", 'check("roofline.softmax", softmax)'),
        graded("softmax_speed", 'check_speed("roofline.softmax", softmax)'),
        new_markdown_cell("## The next part\nprose"),
        answer("matmul"),
        graded("matmul_check", 'check("roofline.matmul", matmul)'),
        new_markdown_cell("## Question 1.9\nWhy?"),
        words("why", "Because."),
    ]


@pytest.mark.parametrize(
    ("waits", "shown"),
    [
        ({"softmax_check"}, {1, 2}),
        ({"softmax_speed"}, {1, 3}),
        ({"matmul_check"}, {5, 6}),
        ({"why"}, {7, 8}),
        (set(), set()),
    ],
)
def test_what_waits_is_shown_with_the_answer_or_the_question_it_is_about(cells, waits, shown):
    assert marking.opened(cells, dict.fromkeys(waits, "")) == shown


def test_of_what_waits_for_a_gpu_the_answer_stays_folded_unless_a_person_gave_something(cells):
    cells[3].outputs = [new_output("execute_result", metadata={"speed_of_light": {"waits": "a GPU"}})]
    assert marking.opened(cells, {"softmax_speed": "", "why": ""}) == {3, 7, 8}
    assert marking.opened(cells, {"softmax_speed": "a mark by hand of 1 points"}) == {1, 3}


def test_an_answer_in_a_cell_of_ones_own_is_open_beside_the_question(cells):
    own = [new_markdown_cell(text, metadata={OWN: True}) for text in ("42", "Because, as I wrote above.", "# Notes")]
    cells = [*cells[:8], own[0], cells[8], *own[1:]]
    assert marking.opened(cells, {"why": ""}) == {7, 8, 9, 10}
    assert marking.opened(cells, {"softmax_check": ""}) == {1, 2}


def test_neighbours_that_do_not_wait_are_one_fold_that_says_what_is_in_it(cells):
    found = list(marking.folds(cells, {5, 6}))
    assert [[cells.index(cell) for cell in fold] for fold in found] == [[0, 1, 2, 3, 4], [7, 8]]
    assert [marking.title(fold) for fold in found] == [
        "A lesson (5 cells: roofline.softmax, roofline.softmax, speed)",
        "Question 1.9 (2 cells: why)",
    ]


def test_where_nothing_waits_each_graded_cell_ends_a_fold(cells):
    assert [len(fold) for fold in marking.folds(cells, set())] == [3, 1, 3, 2]


FILTERS = {
    "markdown2html": sanitize.rendered,
    "strip_files_prefix": sanitize.harmless,
    "highlight_code": sanitize.coloured,
}  # as nbgrader_config.py sets them


def page_of(notebook, filters=None):
    """formgrader's page."""
    config = Config()
    config.HTMLExporter.template_name = "marking"
    config.HTMLExporter.extra_template_basedirs = [str(marking.TEMPLATES), handlers.template_path]
    config.HTMLExporter.extra_template_paths = [handlers.template_path]
    config.HTMLExporter.filters = filters or {}
    names = ("notebook_id", "submission_id", "base_url", "student", "last_name", "first_name", "notebook_path")
    resources = dict.fromkeys(names, "x") | {"assignment_id": "x", "index": 0, "total": 1}
    return HTMLExporter(config=config).from_notebook_node(notebook, resources=resources)[0]


def feedback_of(notebook, filters=None):
    for cell in notebook.cells:
        cell.metadata.get("nbgrader", {}).update(score=1, points=2, comment=None)
    resources = {"nbgrader": {"notebook": "roofline", "score": 1, "max_score": 2, "late_penalty": 0}}
    config = GenerateFeedback().config.copy()
    config.HTMLExporter.filters = filters or {}
    return export.Feedback(config=config).from_notebook_node(notebook, resources=resources)[0]


def test_the_page_has_every_cell_once_in_folds_that_close_and_the_guide_beside_the_answer(cells):
    notebook = nbformat.v4.new_notebook(cells=cells)
    marking.prepare(notebook, {"why": ""}, {"why": "1 point for *because* <script>x</script>"})
    page = page_of(notebook)
    assert page.count("<details") == page.count("</details>") == 1
    assert all(page.count(f'id="{name}"') == 1 for name in ("softmax_check", "softmax_speed", "matmul_check", "why"))
    _, guided = page.split('<div class="guided">')
    assert guided.index("Because.") < guided.index("Marking guide") < guided.index("<em>because</em>")


def test_a_page_of_feedback_is_made_without_a_tree_of_it_and_its_pictures_have_words(cells, monkeypatch):
    read, tree = [], html.BeautifulSoup
    monkeypatch.setattr(html, "BeautifulSoup", lambda page, **options: read.append(page) or tree("", **options))
    pictures = "<img src='https://x.y/z.png'>\n\n<img title='alt=' alt='a plot' src='https://x.y/z.png'>"
    notebook = nbformat.v4.new_notebook(cells=[*cells, new_markdown_cell(pictures)])
    notebook.metadata[export.FIRST] = ["This waits."]
    page = feedback_of(notebook)
    assert read == [""] and page.count(f'alt="{export.NO_WORDS}"') == 1 and page.count("<img") == 2
    assert page.index("This waits.") < page.index("Because.") and page.rstrip().endswith("</html>")


def test_guides_are_those_of_the_solved_lesson_without_its_marks(tmp_path):
    text = "### BEGIN SOLUTION\nBecause.\n\n*Marking guide.* 1 point.\n### END SOLUTION"
    nbformat.write(nbformat.v4.new_notebook(cells=[words("why", text), answer("f")]), tmp_path / "solved.ipynb")
    assert marking.guides(tmp_path / "solved.ipynb") == {"why": "Because.\n\n*Marking guide.* 1 point."}
    assert marking.guides(tmp_path / "nothing.ipynb") == {}


class Attributes(HTMLParser):
    """How often each attribute with its value is there; a class counts by itself."""

    def __init__(self, page):
        super().__init__()
        self.found = Counter()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            self.found.update((name, one) for one in (value.split() if name == "class" else [value]))


TAKEN_OVER = "nbgrader_cell full-credit no-credit mark-graded score extra-credit tabbable comment folded guide".split()
HOSTILE = [
    "# softmax_check",
    "softmax_check\n===",
    "## `softmax_check`",
    f'<div class="{" ".join(TAKEN_OVER)}"><h2 id="softmax_check" class="score">x</h2></div>',
    '<h3 ID=softmax_check>x</h3><p id="softmax_check" class="full-credit" style="color: red" data-link="x">x</p>',
    '<h1 id="why-comment"></h1><h1 id="softmax_check_extra_credit"></h1><h1 id="statusmessage"></h1>',
    '<a id="softmax_check" name="softmax_check" class="tabbable full-credit" href="#softmax_check">x</a>',
    '<label for="softmax_check" class="no-credit">x</label><input id="softmax_check" name="softmax_check">',
    '<button class="full-credit">x</button><form id="softmax_check"><textarea class="comment"></textarea></form>',
    '<pre class="score" id="softmax_check"><code class="score">x</code></pre><span class="score tabbable">x</span>',
    '<details id="softmax_check" class="folded" name="x"><summary class="score">x</summary></details>',
    '<svg id="softmax_check" class="score"><g id="softmax_check"/><title class="score">x</title></svg>',
    '<math><mi id="softmax_check" class="score">x</mi></math><img id="softmax_check" class="score" usemap="#x">',
    '<table id="softmax_check" class="score"><tr><td id="softmax_check" class="score" style="color: red">x</table>',
    '![" id="softmax_check" class="score](https://x.y/z.png \'" id="softmax_check" class="score\')',
    '[x](https://x.y "a\\" id=softmax_check class=score")',
    "![x](attach&#109;ent:x.png)",
    '| <b id="softmax_check" class="score">a</b> | b |\n|:-:|---|\n| <i class="score">x</i> | `<i class="score">` |',
    '```python\n<i id="softmax_check" class="score">\n```',
    "```score full-credit\nx\n```",
    "```mermaid\nx\n```",
    "$\\class{score}{\\cssId{softmax_check}{x}}$",
]


@pytest.mark.parametrize("kind", [new_markdown_cell, new_code_cell])
@pytest.mark.parametrize("made", [page_of, feedback_of])
def test_no_text_of_a_student_has_an_id_or_a_class_of_the_page_around_it(cells, made, kind):
    """formgrade.js takes the first element of an id for the box of a score, and every click on a class for a mark."""

    def found(texts):
        own = [kind(text, id=f"own{n}", metadata={OWN: True}) for n, text in enumerate(texts)]
        notebook = nbformat.v4.new_notebook(cells=[*own, *cells, words("also", "\n\n".join(texts))])
        return Attributes(made(notebook, FILTERS)).found

    more = found(HOSTILE) - found(["x"] * len(HOSTILE))
    ids = {value for name, value in more if name in ("id", "name", "for")}
    assert {value for name, value in more if name == "class"} <= sanitize.CLASSES | {"hl-python3"}
    assert ids and all(one.startswith("own-") for one in ids)
    assert {value for name, value in more if name == "style"} <= {"text-align:center;", ""}
    assert {name for name, _ in more} <= {"id", "class", "style", "href", "src", "alt", "title"}
    assert not sanitize.CLASSES & {*TAKEN_OVER, "panel-body", "save-icon", "btn", "collapse", "fade", "hidden", "row"}


def test_links_within_a_text_lead_to_its_headings():
    text = sanitize.harmless(sanitize.rendered("# My plan\n\n[above](#My-plan), [away](https://x.y/#My-plan)"))
    assert '<h1 id="own-My-plan">' in text and text.count('href="#own-My-plan"') == 2
    assert 'href="https://x.y/#My-plan"' in text


HARM = "</script><svg onload=\"alert('O'Neill')\">"


def test_names_are_text_on_the_page_of_a_submission(cells, tmp_path, monkeypatch):
    """A folder is called as a student likes, and a display name comes from an LMS."""
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "roofline.ipynb")
    monkeypatch.setattr(marking, "waiting", lambda book, submission: {})
    monkeypatch.setattr(marking, "guides", lambda solved: {})
    course = SimpleNamespace(source_directory="", format_path=lambda *parts: str(tmp_path))
    exporter = SimpleNamespace(config=Config())
    pages = marking.Pages(SimpleNamespace(settings={"nbgrader_exporter": exporter}, coursedir=course, gradebook=None))
    names = ("assignment_id", "notebook_id", "submission_id", "base_url")
    about = dict.fromkeys(names, "x") | {"index": 0, "total": 1, "notebook_path": f"/{HARM}"}
    for person in ({"last_name": HARM, "first_name": "Ada"}, {"last_name": None, "first_name": None}):
        page, _ = pages.from_filename(str(tmp_path / "roofline.ipynb"), about | {"student": HARM} | person)
        assert Attributes(page).found["data-link", f"/{HARM}"] == 2 and escape(HARM, quote=False) in page
        assert not [name for name, _ in Attributes(page).found if name == "onload"]


def test_names_are_text_on_all_other_pages_of_formgrader(monkeypatch):
    monkeypatch.setattr(base.BaseHandler, "render", base.BaseHandler.render)
    monkeypatch.setattr(handlers.SubmissionHandler, "exporter", None)
    marking.install()
    plain = Environment(loader=FileSystemLoader(handlers.template_path))
    handler = SimpleNamespace(settings={"nbgrader_jinja2_env": plain})
    values = dict.fromkeys(("student_id", "assignment_id", "notebook_id", "course_dir", "current_config"), HARM)
    for name in plain.list_templates(extensions=["tpl"]):
        if name == "formgrade_404.tpl":  # it asks for a file that nbgrader does not have
            continue
        page = base.BaseHandler.render(handler, name, base_url="", **values)
        assert 'onload="' not in page
        calm = base.BaseHandler.render(handler, name, base_url="", **dict.fromkeys(values, "x"))
        assert calm == plain.get_template(name).render(base_url="", **dict.fromkeys(values, "x")), "its own HTML stays"
