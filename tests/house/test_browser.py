"""A real browser, as people meet the course: a student in JupyterLab, an instructor in formgrader, feedback."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from nbconvert import HTMLExporter

from autograder.bank import find
from autograder.classroom.lab import copy_missing
from autograder.classroom.lessons import COURSE
from course_lib.places import environment

SCREENSHOTS = COURSE / "build" / "screenshots"  # of tests that failed
LESSON = COURSE / "notebooks" / "00_start" / "start.ipynb"
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1400,1000""".split()
RUN_ALL = """
const done = arguments[0], app = window.jupyterapp;
app.shell.currentWidget.sessionContext.ready
  .then(() => app.commands.execute('notebook:run-all-cells')).then(() => done('ran'), e => done('failed: ' + e));
"""
READY = "return !!(window.jupyterapp?.shell?.currentWidget?.sessionContext)"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs Debian's chromium and chromium-driver"),
    pytest.mark.skipif(not LESSON.exists(), reason="lesson 00 is not released yet"),
]


@pytest.fixture
def lab(tmp_path):
    """(address, token) of a JupyterLab over a fresh work/ folder, in which lesson 00 is answered."""
    copy_missing(COURSE / "notebooks", tmp_path / "work")
    notebook = json.loads(LESSON.read_text())
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
            cell["source"] = find("start.axpy/right/masked").source
    (tmp_path / "work/00_start/start.ipynb").write_text(json.dumps(notebook))
    cell = {"cell_type": "code", "id": "slider", "metadata": {}, "outputs": [], "execution_count": None}
    for name, first in (("slider", ""), ("without_anywidget", "import sys; sys.modules['anywidget'] = None\n")):
        cell["source"] = f"{first}from course_lib import widgets\nwidgets.break_even_explorer()"
        (tmp_path / f"work/{name}.ipynb").write_text(json.dumps(notebook | {"cells": [cell]}))
    words = ["-m", "jupyterlab", f"--ServerApp.root_dir={tmp_path}"]
    words += ["--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"]
    with served(words, tmp_path) as (address, token):
        yield address, token


@contextlib.contextmanager
def served(words: list[str], folder: Path):
    """(address, token) of a Jupyter server that was started there."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    token = secrets.token_hex(8)
    command = [sys.executable, *words, "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--IdentityProvider.token={token}"]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    log = folder / "server.log"
    with log.open("w") as out:
        server = subprocess.Popen(command, cwd=folder, env=environment(), stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until_up(f"http://127.0.0.1:{port}/api?token={token}", server, log)
        yield f"http://127.0.0.1:{port}", token
    finally:
        server.terminate()
        server.wait(20)


def wait_until_up(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(480):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.25)
    raise AssertionError(log.read_text())


@pytest.fixture
def browser(tmp_path, monkeypatch, request):
    monkeypatch.setenv("SE_OFFLINE", "true")  # selenium looks for no driver of its own
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"]:
        options.add_argument(flag)
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    driver.set_script_timeout(60)
    failed_before = request.session.testsfailed
    yield driver
    if request.session.testsfailed > failed_before:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        driver.save_screenshot(str(SCREENSHOTS / f"{request.node.name}.png"))
    driver.quit()


def patience(browser):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60)


def all_run(browser, address: str, token: str, notebook: str) -> None:
    """Open a notebook in JupyterLab and run its cells."""
    browser.get(f"{address}/lab/tree/{notebook}?token={token}&reset")
    patience(browser).until(lambda b: b.find_elements("css selector", ".jp-Notebook .jp-Cell"))
    patience(browser).until(lambda b: b.execute_script(READY))
    assert browser.execute_async_script(RUN_ALL) in ("ran",), "the command itself must work"


def test_lesson_00_runs_from_top_to_bottom_and_shows_a_figure_and_the_report_of_its_check(lab, browser):
    all_run(browser, *lab, "work/00_start/start.ipynb")
    shown = ".jp-OutputArea-output"

    def reports(driver):
        """Of the lesson's own hasty attempt, and of the answer."""
        return [one.text for one in driver.find_elements("css selector", f"{shown} div[style*='border-left']")]

    patience(browser).until(lambda b: len(reports(b)) == 2)
    assert "(0 of 5 points)" in reports(browser)[0]
    assert reports(browser)[1].startswith("start.axpy: 7 of 7 cases right. (5 of 5 points)")
    assert browser.find_elements("css selector", ".jp-OutputArea-output img, .jp-OutputArea-output svg")
    text = " ".join(e.text for e in browser.find_elements("css selector", shown))
    assert "Error" not in text


@pytest.mark.parametrize(
    ("notebook", "handle", "picture", "shows"),
    [
        ("slider", "input[type=range]", "svg", "outerHTML"),  # drawn by the browser
        ("without_anywidget", ".noUi-handle", "img.widget-image", "src"),  # drawn by the kernel
    ],
)
def test_a_slider_that_is_moved_by_a_key_changes_its_picture(lab, browser, notebook, handle, picture, shows):
    from selenium.webdriver.common.keys import Keys

    all_run(browser, *lab, f"work/{notebook}.ipynb")
    handle, picture = (f".jp-OutputArea-output {one}" for one in (handle, picture))
    for one in (handle, picture):
        patience(browser).until(lambda b, one=one: b.find_elements("css selector", one))
    before = browser.find_element("css selector", picture).get_attribute(shows)
    browser.find_element("css selector", handle).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    patience(browser).until(lambda b: b.find_element("css selector", picture).get_attribute(shows) != before)


# ------------------------------------------------------------------------------------------- an instructor

UNIT, NAME, SPEED = "01_roofline", "roofline", "roofline_softmax_speed"
HARM = "<script>window.harm = 1</script><img src=x onerror='window.harm = 1'>"
OTHER_PAGES = f"""manage_assignments manage_submissions/{UNIT} gradebook gradebook/{UNIT} gradebook/{UNIT}/{NAME}
manage_students/ada manage_students/ada/{UNIT} manage_students""".split()
# formgrade.js looks for the box of a score by its id, and a click on its buttons by their classes.
SHIELD = f'<div class="nbgrader_cell"><h2 id="{SPEED}">Mine</h2><div class="full-credit">My thoughts</div></div>'
TALLEST = 8000  # pixels of a page on which fifteen boxes wait


@pytest.fixture(scope="module")
def classroom(tmp_path_factory):
    """A course in which a solved lesson 01 was handed in and graded: without a GPU its points for speed wait."""
    course = tmp_path_factory.mktemp("classroom")
    shutil.copytree(COURSE / "solutions" / UNIT, course / "solutions" / UNIT)
    settings = (COURSE / "nbgrader_config.py").read_text()
    kept = "".join(f"c.{step}.verdicts = str(COURSE / 'verdicts')\n" for step in ("JudgedNotebook", "SavedMarks"))
    (course / "nbgrader_config.py").write_text(f"{settings}\n{kept}")
    nbgrader(course, "generate_assignment", UNIT)
    solved = json.loads((COURSE / "solutions" / UNIT / f"{NAME}.ipynb").read_text())
    mine = {"cell_type": "markdown", "id": "harm", "metadata": {}, "source": f"My notes on this lesson. {HARM}"}
    mine["source"] += f"\n\n# {SPEED}\n\n{SHIELD}"
    solved["cells"].insert(3, mine)
    (course / "submitted/ada" / UNIT).mkdir(parents=True)
    (course / "submitted/ada" / UNIT / f"{NAME}.ipynb").write_text(json.dumps(solved))
    nbgrader(course, "autograde", UNIT)
    return course


def nbgrader(course: Path, *words: str) -> None:
    line = [sys.executable, "-m", "nbgrader", *words]
    done = subprocess.run(line, cwd=course, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def asked(course: Path, question: str) -> list:
    with sqlite3.connect(course / "gradebook.db") as book:
        return book.execute(question).fetchall()


MARK = f"select manual_score from grade g join base_cell c on g.cell_id = c.id where c.name = '{SPEED}'"
COMMENT = "select manual_comment from comment where manual_comment is not null"
# Of a page as the browser reads it and before anything runs: MathJax adds scripts where there is a network.
SCRIPTS = """
const scripts = new DOMParser().parseFromString(arguments[0], 'text/html').scripts;
return [...scripts].map(script => [script.src, script.type, script.textContent]);
"""
BESIDE = """
const guide = document.querySelector('.guide').getBoundingClientRect();
const answer = document.querySelector('.answered').getBoundingClientRect();
return [answer.right <= guide.left, Math.abs(answer.top - guide.top) < 40];
"""


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_an_instructor_opens_what_waits_marks_it_and_the_mark_survives_another_run(classroom, browser):
    extension = "--ServerApp.jpserver_extensions={'nbgrader.server_extensions.formgrader': True}"
    words = ["-m", "jupyter_server", f"--ServerApp.root_dir={classroom}", extension]
    with sqlite3.connect(classroom / "gradebook.db") as book:  # as a roster brings names
        book.execute("update student set last_name = ?, first_name = ?", ("O'Neill & Co", HARM))
    with served(words, classroom) as (address, token):
        browser.get(f"{address}/login?token={token}&next=/formgrader/gradebook/{UNIT}/{NAME}")
        patience(browser).until(lambda b: b.find_elements("partial link text", "Submission #1"))
        browser.find_element("partial link text", "Submission #1").click()
        patience(browser).until(lambda b: b.find_elements("id", SPEED))
        look_at_the_page(browser)
        browser.execute_script("$(':contains(My thoughts)').click()")
        box = browser.find_element("id", SPEED)
        assert box.is_displayed(), "what waits is open"
        give(browser, box, "3")
        patience(browser).until(lambda b: asked(classroom, MARK) == [(3.0,)])
        comment = browser.find_element("css selector", "textarea.comment")
        browser.execute_script("$(arguments[0]).parents('details').prop('open', true)", comment)
        give(browser, comment, "well measured")
        patience(browser).until(lambda b: asked(classroom, COMMENT) == [("well measured",)])
        for page in OTHER_PAGES:
            browser.get(f"{address}/formgrader/{page}")
            patience(browser).until(lambda b: b.find_elements("css selector", "#main-table td a"))
            assert browser.execute_script("return window.harm") is None
        assert f"O'Neill & Co, {HARM}" in browser.find_element("id", "main-table").text
    nbgrader(classroom, "autograde", UNIT, "--force")
    assert (asked(classroom, MARK), asked(classroom, COMMENT)) == ([(3.0,)], [("well measured",)])


def look_at_the_page(browser) -> None:
    """Short, with folds that show that they are folds, and the guide beside the answer; nothing of a student acts."""
    assert browser.execute_script("return document.documentElement.scrollHeight") < TALLEST
    folds = browser.find_elements("css selector", "details.folded > summary")
    assert folds and {fold.value_of_css_property("display") for fold in folds} == {"list-item"}
    assert browser.execute_script(BESIDE) == [True, True]
    assert "Marking guide" in browser.find_element("css selector", ".guide").text
    folds[0].click()
    assert browser.find_element("css selector", "details.folded").get_attribute("open")
    folds[0].click()
    assert browser.execute_script("return window.harm") is None


def give(browser, box, text: str) -> None:
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    box.clear()
    box.send_keys(text)
    browser.execute_script("$(arguments[0]).change()", box)


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_feedback_opens_and_nothing_in_it_acts(classroom, browser):
    nbgrader(classroom, "generate_feedback", UNIT, "--force")
    page = classroom / "feedback/ada" / UNIT / f"{NAME}.html"
    browser.get(page.as_uri())
    text = browser.find_element("tag name", "body").text
    assert "My notes on this lesson." in text and "Points may still come. These wait:" in text
    assert browser.execute_script("return window.harm") is None
    scripts = browser.execute_script(SCRIPTS, page.read_text())
    assert [one[:2] for one in scripts] == [[HTMLExporter().mathjax_url, ""], ["", "text/x-mathjax-config"]]
    assert not scripts[0][2].strip() and scripts[1][2].lstrip().startswith("init_mathjax = function()")
