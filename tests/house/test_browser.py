"""Lesson 00 in a real browser, as a student meets it: open, run all, see a figure."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from autograder.classroom.lab import copy_missing
from autograder.classroom.lessons import COURSE
from course_lib.places import environment

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
    """(address, token) of a JupyterLab over a fresh work/ folder."""
    copy_missing(COURSE / "notebooks", tmp_path / "work")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    token = secrets.token_hex(8)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={tmp_path}"]
    command += ["--LabApp.expose_app_in_browser=True", "--LabApp.news_url=None"]
    command += ["--allow-root"] if os.geteuid() == 0 else []
    with (tmp_path / "lab.log").open("w") as out:
        server = subprocess.Popen(command, env=environment(), stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until_up(f"http://127.0.0.1:{port}/api?token={token}", server, tmp_path / "lab.log")
        yield f"http://127.0.0.1:{port}", token
    finally:
        server.terminate()
        server.wait(20)


def wait_until_up(address: str, server: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        assert server.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(address, timeout=1).close()
            return
        except OSError:
            time.sleep(0.25)
    raise AssertionError(log.read_text())


@pytest.fixture
def browser(tmp_path, monkeypatch):
    monkeypatch.setenv("SE_OFFLINE", "true")  # selenium looks for no driver of its own
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in [*FLAGS, f"--user-data-dir={tmp_path / 'chromium'}"]:
        options.add_argument(flag)
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def test_lesson_00_runs_from_top_to_bottom_and_shows_a_figure(lab, browser):
    from selenium.webdriver.support.ui import WebDriverWait

    address, token = lab
    wait = WebDriverWait(browser, 240)
    browser.get(f"{address}/lab/tree/work/00_start/start.ipynb?token={token}&reset")
    wait.until(lambda b: b.find_elements("css selector", ".jp-Notebook .jp-Cell"))
    wait.until(lambda b: b.execute_script(READY))
    # Runs until the first untouched exercise stops it, so every figure before that must be there.
    assert browser.execute_async_script(RUN_ALL) in ("ran",), "the command itself must work"
    wait.until(lambda b: b.find_elements("css selector", ".jp-OutputArea-output img, .jp-OutputArea-output svg"))
    text = " ".join(e.text for e in browser.find_elements("css selector", ".jp-OutputArea-output"))
    assert "ModuleNotFoundError" not in text
    assert "not written yet" in text or "Error" not in text
