"""The README says what was measured, and what is there."""

import re
import sys
from pathlib import Path

from autograder.classroom import limited
from benchmarks import readme
from course_lib import results

ROOT = Path(__file__).resolve().parents[2]
TEXT = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
OTHERS = {"show the output of a CPU": "AMD EPYC"}


def test_the_measured_table_is_what_the_results_hold(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["readme", "--check"])
    assert readme.main() == 0, "run: python -m benchmarks.readme"


def test_a_number_changed_by_hand_is_put_right():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    spoilt = text.replace(readme.table(), readme.table().replace(" us", " ms", 1))
    assert spoilt != text == readme.with_table(spoilt)


def test_what_lesson_08_takes_of_a_card_is_what_was_recorded():
    (row,) = results.load("lesson08.peak")["rows"]
    took = f"took {row['all processes GiB']:.1f} GiB of the fuller of two H200s, contexts among it."
    assert took in TEXT


def test_lessons_with_cells_of_another_machine_are_named():
    lessons = sorted((ROOT / "solutions").glob("*/*.ipynb"))
    for words, machine in OTHERS.items():
        shown = f"*Output of an {machine}; others of this lesson: NVIDIA H200.*"
        named = "".join(re.findall(rf"some cells of ([\d and,]+) {words}", TEXT))
        assert re.findall(r"\d\d", named) == [path.parent.name[:2] for path in lessons if shown in path.read_text()]
    said = {one for path in lessons for one in re.findall(r"\*Output of an (.*?);", path.read_text())}
    assert said <= set(OTHERS.values())


def test_students_and_instructors_read_how_to_stay_off_the_speed_board():
    for path in ("students/README.md", "README.md"):
        assert limited.NO_BOARD.search((ROOT / path).read_text(encoding="utf-8")), path


def test_every_link_to_a_file_of_the_course_leads_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
