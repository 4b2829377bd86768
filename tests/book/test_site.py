"""The site is built from what the repository holds, and a reader needs nothing else to see all of it."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

from autograder.classroom.lessons import COURSE, find
from book import outward, printing, reference

MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
BOOK = COURSE / "book"
MOST_BYTES = 2_000_000  # of a page with all that it loads

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("book"),
    pytest.mark.skipif(
        bool(MISSING), reason=f"the extra `book` is not installed ({', '.join(MISSING)}); see make book"
    ),
]


def sphinx(source: Path, out: Path) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", str(BOOK), str(source), str(out)]
    return subprocess.run(words, cwd=COURSE, capture_output=True, text=True)


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
def built(tmp_path_factory):
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


def of_lesson(pages, unit: str) -> list[Page]:
    return [page for path, page in pages.items() if path.parent.name == unit]


def test_the_build_says_nothing(built):
    assert built[1] == ""


@pytest.mark.parametrize("text", ["# A\n\n[b](#nowhere)", "# A\n\n$\\nosuchcommand$", "# A\n\n{term}`nosuchterm`"])
def test_a_page_with_a_fault_stops_the_build(tmp_path, text):
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
    assert "SOLUTION" not in "".join(p.text for p in pages.values())


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


# In a browser

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage""".split()
in_browser = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver")
SCROLLS = "return [document.documentElement.scrollWidth, innerWidth]"
# Text whose contrast with what lies under it is below WCAG AA: 4.5, of large text 3.
FAINT = r"""
const channels = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length > 3 ? n : [...n, 1]; };
const over = (top, under) => under.map((value, i) => value * (1 - top[3]) + top[i] * top[3]);
const light = c => c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const ground = element => {
  const layers = [];
  for (; element; element = element.parentElement) layers.unshift(channels(getComputedStyle(element).backgroundColor));
  return layers.reduce((under, top) => over(top, under), [255, 255, 255]);
};
const faint = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, style = getComputedStyle(element);
  if (!walker.currentNode.data.trim() || !element.getClientRects().length || style.visibility === "hidden") continue;
  if (element.closest("script, style, noscript, .copy")) continue;
  const under = ground(element), text = over(channels(style.color), under);
  const [more, less] = [light(text), light(under)].sort((a, b) => b - a);
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && +style.fontWeight >= 700);
  if ((more + 0.05) / (less + 0.05) < (large ? 3 : 4.5)) faint.add(element.tagName + " " + style.color);
}
return [...faint];
"""
GROUND = "return getComputedStyle(document.body).backgroundColor"


@pytest.fixture
def browser(tmp_path, monkeypatch):
    monkeypatch.setenv("SE_OFFLINE", "true")  # selenium looks for no driver of its own
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in [*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"]:
        options.add_argument(flag)
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    yield driver
    driver.quit()


def look(browser, width: int, scheme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    preferred = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [preferred]})


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")])
def test_every_page_fits_and_runs_without_an_error(browser, built, pages, width, scheme):
    look(browser, width, scheme)
    wrong, grounds = [], set()
    for path in pages:
        browser.get(path.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach(fold => (fold.open = true))")
        needs, has = browser.execute_script(SCROLLS)
        wrong += [f"{path.name} is {needs} wide"] if needs > width or has > width else []
        wrong += [f"{path.name}: {entry['message']}" for entry in browser.get_log("browser")]
        wrong += [f"{path.name}: {text} is hard to read" for text in browser.execute_script(FAINT)]
        grounds.add(browser.execute_script(GROUND))
    assert not wrong
    assert len(grounds) == 1
    red = int(re.search(r"\d+", grounds.pop())[0])
    assert (red < 60) == (scheme == "dark")


@in_browser
def test_a_page_that_is_too_wide_or_faint_or_fails_would_be_seen(browser, tmp_path):
    text = "<body><div style='width:900px'>x</div><p style='color: #D55E00'>y</p><script>nosuch()</script></body>"
    (tmp_path / "bad.html").write_text(text)
    look(browser, 390, "light")
    browser.get((tmp_path / "bad.html").as_uri())
    assert max(browser.execute_script(SCROLLS)) > 390
    assert browser.execute_script(FAINT) == ["P rgb(213, 94, 0)"]
    assert "nosuch" in browser.get_log("browser")[0]["message"]


@in_browser
def test_folds_open_together_and_tables_sort_and_search_finds(browser, built):
    root = built[0]
    look(browser, 1400, "light")
    browser.get((root / "01_roofline" / "section-1.html").as_uri())
    shut = "return [...document.querySelectorAll('article details')].filter(fold => !fold.open).length"
    assert browser.execute_script(shut) > 3
    browser.find_element("css selector", ".open-all").click()
    assert browser.execute_script(shut) == 0
    browser.get((root / "measured.html").as_uri())
    times = (
        "return [...document.querySelectorAll('.sortable')[2].tBodies[0].rows].map(row => +row.cells[1].textContent)"
    )
    before = browser.execute_script(times)
    head = browser.find_elements("css selector", ".sortable")[2].find_elements("css selector", "thead button")[1]
    browser.execute_script("arguments[0].click()", head)
    assert browser.execute_script(times) == sorted(before) != before
    browser.execute_script("arguments[0].click()", head)
    assert browser.execute_script(times) == sorted(before, reverse=True)
    browser.get((root / "search.html").as_uri() + "?q=coalescing")
    browser.implicitly_wait(10)
    assert browser.find_elements("css selector", "#search-results li")


@in_browser
def test_what_scrolls_sideways_fades_at_its_edge_until_its_end_is_reached(browser, built):
    look(browser, 390, "light")
    browser.get((built[0] / "index.html").as_uri())
    masked = "return getComputedStyle(document.querySelector('.plot')).maskImage"
    assert "gradient" in browser.execute_script(masked)
    browser.execute_script("document.querySelector('.plot').scrollLeft = 1e4")
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert browser.execute_script(masked) == "none"
    look(browser, 1400, "light")
    browser.get((built[0] / "index.html").as_uri())
    assert browser.execute_script(masked) == "none"


@in_browser
def test_a_name_in_a_table_stays_in_one_piece_on_a_phone(browser, built):
    look(browser, 390, "light")
    browser.get((built[0] / "01_roofline" / "section-1.html").as_uri())
    rows = "return [...document.querySelectorAll('article td code .pre')].map(name => name.getClientRects().length)"
    found = set(browser.execute_script(rows))
    assert found <= {0, 1} and 1 in found  # nothing is drawn of what a fold hides


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


EXPLORERS = {
    "01_roofline": 2, "02_compile": 1, "05_mlp": 2, "06_rope": 1, "07_mx": 1, "08_ddp": 1
}  # fmt: skip


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_explorers_move_by_keyboard_without_a_kernel_and_hide_their_stills(browser, pages, width, scheme):
    from selenium.webdriver.common.keys import Keys

    look(browser, width, scheme)
    found = dict.fromkeys(EXPLORERS, 0)
    for path, page in pages.items():
        if 'class="live"' not in page.text:
            continue
        found[path.parent.name] += page.text.count('class="live"')
        browser.get(path.as_uri())
        for explorer in browser.find_elements("css selector", ".explorer"):
            words = explorer.find_element("css selector", ".title").text
            bar = explorer.find_element("css selector", "input[type=range]")
            browser.execute_script("arguments[0].focus()", bar)
            bar.send_keys(Keys.ARROW_RIGHT)
            assert explorer.find_element("css selector", ".title").text != words
            assert not explorer.find_elements("css selector", "input:not([id]), svg:not([aria-label])")
            assert browser.execute_script(UNNAMED, explorer) == []
            assert browser.execute_script(OUTSIDE, explorer) == []
            assert ("dark" in explorer.get_attribute("class")) == (scheme == "dark")
        assert (
            browser.execute_script("return getComputedStyle(document.querySelector('.stands-still')).display") == "none"
        )
        assert browser.get_log("browser") == []
    assert found == EXPLORERS


# Words of a figure that reach over its edge.
OUTSIDE = """const edge = arguments[0].querySelector("svg").getBoundingClientRect().right + 1;
return [...arguments[0].querySelectorAll("svg text")]
  .filter(text => text.getBoundingClientRect().right > edge).map(text => text.textContent)"""
# Controls that no label names.
UNNAMED = """return [...arguments[0].querySelectorAll("input, select")]
  .filter(input => !input.labels.length || !input.labels[0].textContent.trim()).map(input => input.id)"""


@in_browser
def test_on_paper_folds_are_open_and_the_still_stands_in_for_the_explorer(browser, built):
    look(browser, 1400, "light")
    browser.get((built[0] / "01_roofline" / "section-1.html").as_uri())
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = "return [...document.querySelectorAll(arguments[0])].map(one => one.getBoundingClientRect().height)"
    assert min(browser.execute_script(shown, "article details pre")) > 0
    assert browser.execute_script(shown, ".live") == [0]
    assert browser.execute_script(shown, ".stands-still")[0] > 100


@in_browser
def test_a_lesson_prints_as_one_document_with_all_its_pages(built, tmp_path):
    words = [sys.executable, "-m", "book.printing", str(built[0]), str(tmp_path), "02_compile"]
    done = subprocess.run(words, cwd=COURSE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "02_compile.pdf").read_bytes()
    assert made.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", made)) > 20
    assert not list(built[0].rglob("all-pages.html"))


def test_links_between_pages_of_a_printed_lesson_stay_inside_it(built):
    pages = printing.pages_of(built[0] / "04_flash" / "index.html")
    assert {page.name for page in pages} == {p.name for p in (built[0] / "04_flash").glob("*.html")}
    text = printing.joined(pages)
    marks = set(re.findall(r'\bid="([^"]+)"', text))
    assert not [mark for mark in re.findall(r'href="#([^"]+)"', text) if mark not in marks]
    assert not re.search(r'href="section-\d+\.html', text)
    assert "<script" not in text


AXE = Path(os.environ.get("AXE") or "/nonexistent")


def of_every_kind(pages) -> list[Path]:
    """Every page with an explorer, and two of each folder: a page takes axe one to ten seconds."""
    chosen, met = [], {}
    for path, page in pages.items():
        met[path.parent] = met.get(path.parent, 0) + 1
        if met[path.parent] <= 2 or 'class="live"' in page.text or path.name in ("measured.html", "search.html"):
            chosen.append(path)
    return chosen


@in_browser
@pytest.mark.skipif(not AXE.is_file(), reason="AXE names no axe.min.js (npm pack axe-core)")
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_axe_finds_no_serious_fault_on_pages_of_every_kind(browser, pages, width, scheme):
    look(browser, width, scheme)
    script, wrong = AXE.read_text(encoding="utf-8"), {}
    browser.set_script_timeout(300)
    for path in of_every_kind(pages):
        browser.get(path.as_uri())
        browser.execute_script(script)
        for fault in browser.execute_async_script(RUN_AXE):
            wrong.setdefault(fault["id"], []).append(f"{path.parent.name}/{path.name}: {fault['where']}")
    assert wrong == {}


RUN_AXE = """const done = arguments[arguments.length - 1];
axe.run(document, { resultTypes: ["violations"] }).then(found => done(found.violations
  .filter(fault => ["serious", "critical"].includes(fault.impact))
  .map(fault => ({ id: fault.id, where: fault.nodes[0].target.join(" ") + " " + fault.nodes[0].failureSummary }))));"""


@in_browser
def test_what_was_read_is_ticked_wherever_it_is_linked_and_the_browser_keeps_it(browser, built):
    lesson = built[0] / "01_roofline"
    look(browser, 1400, "light")
    ticked = "return [...document.querySelectorAll('article a.read')].map(link => link.href.split('/').pop())"
    browser.get((lesson / "section-2.html").as_uri())
    browser.execute_script("document.querySelector('.tick input').click()")
    browser.get((lesson / "index.html").as_uri())
    assert browser.execute_script(ticked) == ["section-2.html"]
    assert browser.find_elements("css selector", ".sidebar-tree a.read")
    browser.get((lesson / "section-2.html").as_uri())
    browser.execute_script("document.querySelector('.tick input').click()")
    browser.get((lesson / "index.html").as_uri())
    assert browser.execute_script(ticked) == []
