"""The site is built from what the repository holds, and a reader needs nothing else to see all of it."""

import ast
import html
import re
from urllib.parse import unquote

import nbformat
import pytest

from autograder.classroom.lessons import COURSE, find

pytest.importorskip("docutils", reason="`make tools` installs what the site is made with")

from book import outward, printing, reference
from book.lessons import PREDICTED, predicted

BOOK = COURSE / "book"
MOST_BYTES = 2_000_000  # of a page with all that it loads

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("book")]


def of_lesson(pages, unit: str) -> list:
    return [page for path, page in pages.items() if path.parent.name == unit]


def test_the_build_says_nothing(built):
    assert built[1] == ""


@pytest.mark.parametrize("text", ["# A\n\n[b](#nowhere)", "# A\n\n$\\nosuchcommand$", "# A\n\n{term}`nosuchterm`"])
def test_a_page_with_a_fault_stops_the_build(sphinx, tmp_path, text):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text(text)
    done = sphinx(tmp_path / "source", tmp_path / "html")
    assert done.returncode != 0
    assert "WARNING" in done.stderr


def test_every_link_inside_leads_somewhere(pages):
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, mark = page.file(link) if link.split("#")[0] else path, unquote(link.partition("#")[2])
            if not file.exists() or (mark and file in pages and mark not in pages[file].ids):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_every_picture_has_an_alternative_text(pages):
    assert sum(len(page.pictures) for page in pages.values()) > 60
    assert not [(path, p) for path, page in pages.items() for p in page.pictures if not p.get("alt", "").strip()]


@pytest.mark.parametrize("lesson", find(), ids=lambda lesson: lesson.unit)
def test_every_figure_and_exercise_of_a_lesson_is_there(pages, lesson):
    cells = nbformat.read(lesson.solution, 4).cells
    released = {
        c.metadata.nbgrader.grade_id: c for c in nbformat.read(lesson.release, 4).cells if "nbgrader" in c.metadata
    }
    found = of_lesson(pages, lesson.unit)
    alts = [p["alt"] for page in found for p in page.pictures]
    for cell in cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                assert " ".join(output.metadata["image/png"]["alt"].split()) in alts
    text = {page.path: re.sub(r"<[^>]+>", "", page.text.replace("&quot;", '"')) for page in found}
    for name, cell in released.items():
        if cell.cell_type == "code" and cell.metadata.nbgrader.solution:
            head = next(line for line in cell.source.splitlines() if re.match("def |class ", line)).split("(")[0]
            assert any(head in said for said in text.values()), name


def test_a_solution_waits_behind_a_fold_after_the_stub_and_its_hints(pages):
    page = next(p for p in of_lesson(pages, "01_roofline") if 'id="exercise-1-1"' in p.text)
    part = page.text[page.text.index('id="exercise-1-1"') :]
    order = [
        part.index(mark) for mark in ("not written yet", "Hint 1", "Hint 3", "One solution", "16 of 16 cases right")
    ]
    assert order == sorted(order)
    assert not re.search(r"<details[^>]*\bopen\b", "".join(p.text for p in pages.values()))
    assert not [path for path, page in pages.items() if re.search("(BEGIN|END) (SOLUTION|PREDICTION)", page.text)]


def test_what_the_author_predicted_waits_behind_a_fold_after_the_template(pages):
    text = next(p.text for path, p in pages.items() if path.match("01_roofline/section-1.html"))
    text = text[text.index("# replace None") :]
    order = [text.index(mark) for mark in (PREDICTED, "0.252", "TFLOP/s")]
    assert order == sorted(order)
    for lesson in find():
        cells = nbformat.read(lesson.solution, 4).cells
        said = [predicted(cell.source) for cell in cells if "BEGIN PREDICTION" in cell.source]
        shown = "".join(page.text for page in of_lesson(pages, lesson.unit))
        unfolded = re.sub(r"<details class=solution>.*?</details>", "", shown, flags=re.DOTALL)
        shown, unfolded = (html.unescape(re.sub(r"<[^>]+>", "", text)) for text in (shown, unfolded))
        assert said and shown.count(PREDICTED) == len(said)
        assert [guess for guess in said if guess in unfolded or guess not in shown] == []


def test_an_output_of_another_machine_says_so_in_one_quiet_line(pages):
    for lesson in find():
        outputs = [out for cell in nbformat.read(lesson.solution, 4).cells for out in cell.get("outputs", [])]
        lines = [out["data"]["text/plain"] for out in outputs if "text/markdown" in out.get("data", {})]
        text = "".join(page.text for page in of_lesson(pages, lesson.unit))
        assert re.findall(r'<div class="elsewhere[^"]*">\s*<p><em>(.*?)</em></p>\s*</div>', text) == lines
        assert text.count("Output of an") == len(lines)


def test_nothing_is_asked_of_the_outside(built, pages):
    asked = [(path.name, a) for path, page in pages.items() for a in page.loaded if re.match(r"(https?:)?//", a)]
    for file in built[0].rglob("*.css"):
        asked += re.findall(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")]+)""", file.read_text(encoding="utf-8"))
    assert not asked
    assert not [
        a for page in pages.values() for a in page.loaded if not a.startswith("data:") and not page.file(a).exists()
    ]


def test_no_page_weighs_more_than_a_phone_likes(pages):
    heavy = {}
    for path, page in pages.items():
        files = {page.file(a) for a in page.loaded if not a.startswith("data:")}
        weight = path.stat().st_size + sum(file.stat().st_size for file in files)
        if weight > MOST_BYTES:
            heavy[path.name] = weight
    assert not heavy


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_what_the_guideline_defines():
    assert contrast("#000000", "#fff") == pytest.approx(21)
    assert contrast("#D55E00", "#ffffff") < 4.5  # the notebooks' colour of a wrong answer, too light for small text


def test_colours_of_verdicts_can_be_read_in_light_and_dark(pages):
    css = (BOOK / "static" / "book.css").read_text(encoding="utf-8")
    modes = re.findall(r"\{ (--right: .*?) \}", css)
    assert len(modes) == 3
    assert modes[1] == modes[2], "dark by choice and dark by the system's setting are one"
    for mode in modes:
        colour = dict(re.findall(r"--(\w+): (#\w+);", mode))
        for name in ("right", "wrong", "quiet"):
            assert contrast(colour[name], colour["ground"]) >= 4.5, (name, mode)
            assert contrast(colour[name], colour["card"]) >= 4.5, (name, mode)
    assert not [s for page in pages.values() for s in page.styles if "color" in s]


def test_measured_rows_and_stale_sections_are_those_of_the_results(built):
    from benchmarks import readme, recorded
    from book.measured import TITLES
    from course_lib import results

    assert set(readme.SHOWN) <= set(TITLES)
    text = (built[0] / "measured.html").read_text(encoding="utf-8")
    rows = [row for section in TITLES for row in results.load(section)["rows"] if "ratio" in row]
    assert text.count("<th scope=row>") == text.count('class="dot ') == len(rows)
    assert text.count("The code has changed since.") == sum(recorded.is_stale(section) for section in TITLES)
    others = [name for name in results.sections() if not name.startswith("bank") and name not in TITLES]
    text = (built[0] / "recorded.html").read_text(encoding="utf-8")
    assert [name for name in others if f'aria-label="{name}"' not in text and results.load(name).get("rows")] == []


def test_every_page_of_a_lesson_offers_the_released_notebook(pages):
    for lesson in find():
        for page in of_lesson(pages, lesson.unit):
            (link,) = {a for a in page.links if a.endswith(f"/{lesson.name}.ipynb")}
            assert page.file(link).read_bytes() == lesson.release.read_bytes()


def test_launch_and_issue_appear_where_the_repository_has_an_address():
    lesson = next(lesson for lesson in find() if lesson.unit == "04_flash")
    bare = outward.offers(lesson, "04_flash/section-2", "")
    assert "http" not in bare and "{download}" in bare
    said = outward.offers(lesson, "04_flash/section-2", outward.owner_and_name("https://github.com/some/where.git"))
    assert "https://colab.research.google.com/github/some/where/blob/HEAD/notebooks/04_flash/flash.ipynb" in said
    assert "https://mybinder.org/v2/gh/some/where/HEAD?labpath=notebooks%2F04_flash%2Fflash.ipynb" in said
    assert "https://github.com/some/where/issues/new?title=04_flash%2Fsection-2%3A%20" in said
    with pytest.raises(SystemExit, match="OWNER/NAME"):
        outward.owner_and_name("https://example.org/some/where")


def test_every_kernel_says_in_the_overview_what_it_is(pages, built):
    text = pages[built[0] / "kernels" / "index.html"].text
    said = dict(re.findall(r'class="pre">(\w+)</span></code></span></a>: (.+?)</p></li>', text, re.DOTALL))
    assert said.keys() == {path.stem for path in reference.KERNELS.iterdir() if not path.name.startswith("_")}
    assert min(map(len, said.values())) > 40


@pytest.mark.parametrize(
    "given", ["a, /, b: int = 3, *, c=None, d: int | None = None", "*parts, **rest", "x=1, *, y", ""]
)
def test_parameters_of_a_function_are_written_as_the_formatter_writes_them(given):
    assert reference.parameters(ast.parse(f"def f({given}): pass").body[0].args) == given


def test_a_page_with_a_common_name_says_of_which_lesson_it_is(pages, built):
    assert "<title>Questions (05)" in pages[built[0] / "05_mlp" / "questions.html"].text
    assert "Further reading (03)" in pages[built[0] / "04_flash" / "index.html"].text


def test_links_between_pages_of_a_printed_lesson_stay_inside_it(built):
    pages = printing.pages_of(built[0] / "04_flash" / "index.html")
    assert {page.name for page in pages} == {p.name for p in (built[0] / "04_flash").glob("*.html")}
    text = printing.joined(pages)
    marks = set(re.findall(r'\bid="([^"]+)"', text))
    assert not [mark for mark in re.findall(r'href="#([^"]+)"', text) if mark not in marks]
    assert not re.search(r'href="section-\d+\.html', text)
    assert "<script" not in text
