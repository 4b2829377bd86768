"""The site in Chromium: it fits a phone, can be read in light and dark, moves by keyboard and prints."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.classroom.lessons import COURSE

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage""".split()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("book"),
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver"),
]
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
# What is wider than its frame, and cannot be scrolled there or does not fade at the edge.
CUT = """return [...document.querySelectorAll("article :is(pre, .plot, .math, .wide, .table-wrapper)")]
  .filter(frame => frame.scrollWidth - frame.clientWidth > 2)
  .filter(frame => getComputedStyle(frame).overflowX !== "auto" || getComputedStyle(frame).maskImage === "none")
  .map(frame => frame.textContent.trim().slice(0, 40))"""
TWO_FRAMES = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"


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


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (1400, "dark"), (390, "light"), (390, "dark")])
def test_every_page_fits_and_runs_without_an_error(browser, built, pages, width, scheme):
    look(browser, width, scheme)
    wrong, grounds = [], set()
    for path in pages:
        browser.get(path.as_uri())
        browser.execute_script("document.querySelectorAll('details').forEach(fold => (fold.open = true))")
        browser.execute_async_script(TWO_FRAMES)  # what was opened is measured
        needs, has = browser.execute_script(SCROLLS)
        wrong += [f"{path.name} is {needs} wide"] if needs > width or has > width else []
        wrong += [f"{path.name}: {entry['message']}" for entry in browser.get_log("browser")]
        wrong += [f"{path.name}: {text} is hard to read" for text in browser.execute_script(FAINT)]
        wrong += [f"{path.name}: {text!r} is cut off" for text in browser.execute_script(CUT)]
        grounds.add(browser.execute_script(GROUND))
    assert not wrong
    assert len(grounds) == 1
    red = int(re.search(r"\d+", grounds.pop())[0])
    assert (red < 60) == (scheme == "dark")


def test_a_page_that_is_too_wide_or_faint_or_fails_would_be_seen(browser, tmp_path):
    text = "<div style='width:900px'>x</div><p style='color: #D55E00'>y</p><script>nosuch()</script>"
    text += f"<article style='width:300px'><pre style='overflow:auto'>{'z' * 99}</pre></article>"
    (tmp_path / "bad.html").write_text(f"<body>{text}</body>")
    look(browser, 390, "light")
    browser.get((tmp_path / "bad.html").as_uri())
    assert max(browser.execute_script(SCROLLS)) > 390
    assert browser.execute_script(FAINT) == ["P rgb(213, 94, 0)"]
    assert browser.execute_script(CUT) == ["z" * 40]
    assert "nosuch" in browser.get_log("browser")[0]["message"]


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


@pytest.mark.parametrize(
    ("page", "frame"),
    [("index", ".plot"), ("05_mlp/section-6", ".output pre"), ("08_ddp/section-7", ".output pre")],
)
def test_what_scrolls_sideways_fades_at_its_edge_until_its_end_is_reached(browser, built, page, frame):
    look(browser, 390, "light")
    browser.get((built[0] / f"{page}.html").as_uri())
    masked = f"return getComputedStyle(document.querySelector('{frame}')).maskImage"
    assert "gradient" in browser.execute_script(masked)
    browser.execute_script(f"document.querySelector('{frame}').scrollLeft = 1e4")
    browser.execute_async_script(TWO_FRAMES)
    assert browser.execute_script(masked) == "none"


def test_a_figure_that_fits_a_laptop_does_not_fade_there(browser, built):
    look(browser, 1400, "light")
    browser.get((built[0] / "index.html").as_uri())
    assert browser.execute_script("return getComputedStyle(document.querySelector('.plot')).maskImage") == "none"


def test_a_name_in_a_table_stays_in_one_piece_on_a_phone(browser, built):
    look(browser, 390, "light")
    browser.get((built[0] / "01_roofline" / "section-1.html").as_uri())
    rows = "return [...document.querySelectorAll('article td code .pre')].map(name => name.getClientRects().length)"
    found = set(browser.execute_script(rows))
    assert found <= {0, 1} and 1 in found  # nothing is drawn of what a fold hides


EXPLORERS = {
    "01_roofline": 2, "02_compile": 1, "05_mlp": 2, "06_rope": 1, "07_mx": 1, "08_ddp": 1
}  # fmt: skip


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


def test_on_paper_folds_are_open_and_the_still_stands_in_for_the_explorer(browser, built):
    look(browser, 1400, "light")
    browser.get((built[0] / "01_roofline" / "section-1.html").as_uri())
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    shown = "return [...document.querySelectorAll(arguments[0])].map(one => one.getBoundingClientRect().height)"
    assert min(browser.execute_script(shown, "article details pre")) > 0
    assert browser.execute_script(shown, ".live") == [0]
    assert browser.execute_script(shown, ".stands-still")[0] > 100


def test_a_lesson_prints_as_one_document_with_all_its_pages(built, tmp_path):
    words = [sys.executable, "-m", "book.printing", str(built[0]), str(tmp_path), "02_compile"]
    done = subprocess.run(words, cwd=COURSE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "02_compile.pdf").read_bytes()
    assert made.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", made)) > 20
    assert not list(built[0].rglob("all-pages.html"))


AXE = Path(os.environ.get("AXE") or "/nonexistent")


def of_every_kind(pages) -> list[Path]:
    """Every page with an explorer, and two of each folder: a page takes axe one to ten seconds."""
    chosen, met = [], {}
    for path, page in pages.items():
        met[path.parent] = met.get(path.parent, 0) + 1
        if met[path.parent] <= 2 or 'class="live"' in page.text or path.name in ("measured.html", "search.html"):
            chosen.append(path)
    return chosen


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
