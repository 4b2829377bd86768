"""What a lesson takes of a GPU's memory: watched through what it forgets, recorded, and said in words."""

import threading

import nbformat
import pytest
import torch

from autograder.classroom import execute
from autograder.referee import clock
from benchmarks.lesson_memory import most_taken, peak_bytes, watched
from course_lib import results


def test_a_peak_that_a_lesson_forgets_is_kept(tmp_path):
    """torch is given numbers of its own: 100 bytes, forgotten, then 40."""
    pretend = (
        "import torch\n"
        "now = [100]\n"
        "torch.cuda.max_memory_reserved = lambda: now[0]\n"
        "torch.cuda.reset_peak_memory_stats()\n"
        "now[0] = 40"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(pretend)])
    notebook = watched(notebook)
    notebook.cells[0].source += "\n_reset = lambda: None"
    assert peak_bytes(execute.run(notebook, tmp_path)) == 100


def test_a_lesson_says_its_peak_or_that_there_is_none(tmp_path, monkeypatch):
    assert results.memory_of("99_none").startswith("GPU memory: not measured yet")
    entry = {"rows": [{"value": 5.13, "held to GiB": 7.0}], "machine": "NVIDIA H200", "date": "2026-11-24"}
    monkeypatch.setattr(results, "load", lambda section, device: entry if section == "lesson04.peak" else None)
    said = results.memory_of("04_flash")
    assert "at most 5.1 GiB" in said and "held to 7 GiB (NVIDIA H200, 2026-11-24)" in said
    entry["rows"][0]["all processes GiB"] = 6.24
    assert "held to 7 GiB, 6.2 by all together (NVIDIA H200, 2026-11-24)" in results.memory_of("04_flash")
    entry["rows"][0]["value"] = 0.0
    assert "at most 6.2 GiB of one, contexts among it, by processes that" in results.memory_of("04_flash")


def test_the_most_that_is_taken_at_any_moment_is_kept(monkeypatch):
    free = {0: iter([95, 90, 40, 70]), 1: iter([80, 85, 85, 85])}
    seen = threading.Event()

    def left(number):
        value = next(free[number], None)
        if value is None:
            seen.set()
        return (value or 100, 100)

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", left)
    with most_taken(every_s=1e-4) as most:
        assert seen.wait(10)
    assert most == [60, 20]


@pytest.mark.parametrize(("taken", "left"), [(1, 7 - 2), (136, 4)])
def test_the_clock_plans_with_the_memory_that_a_process_may_take(monkeypatch, taken, left):
    monkeypatch.setattr(clock.device, "DEVICE", "cuda")
    monkeypatch.setattr(clock.device, "memory_bytes", lambda: 7 << 30)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: ((140 - taken) << 30, 140 << 30))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 2 << 30)
    assert clock.memory() == (left << 30, 7 << 30)


@pytest.mark.gpu
def test_a_lesson_runs_in_little_memory(monkeypatch, tmp_path):
    from autograder.classroom import lessons

    monkeypatch.setenv("SPEED_OF_LIGHT_GPU_GIB", "7")
    (lesson,) = lessons.find(unit="00_start")
    assert 0 < peak_bytes(execute.run(watched(lessons.refresh(lesson)), tmp_path)) < 7 * 2**30
