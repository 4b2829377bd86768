"""What the notes and the README say a cohort costs follows from recorded times, by the fleet's own rule."""

import re

import pytest

from autograder.classroom.fleet import plans
from benchmarks import cohorts
from course_lib.results import ROOT

NOTE = (ROOT / "benchmarks/notes/grading.md").read_text(encoding="utf-8")
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
RECORDED, SINCE = cohorts.graded_s() + cohorts.timing_s(), cohorts.graded_s() + cohorts.WHOLE_ROUNDS_S


def test_the_table_of_the_note_is_the_one_that_the_code_makes():
    assert cohorts.table() in NOTE, "run: python -m benchmarks.cohorts"


def test_the_sentences_around_the_table_have_its_seconds_and_shares():
    assert f"takes {cohorts.graded_s():.1f} s for a solved lesson 01 and {cohorts.timing_s():.1f} s for" in NOTE
    assert f"{RECORDED:.1f} s together" in NOTE and f"a submission comes to {SINCE:.1f} s" in NOTE
    assert f"With the {cohorts.WHOLE_ROUNDS_S:.0f} s that points for speed took" in NOTE
    assert f"Points for speed of lesson 01 took {cohorts.WHOLE_ROUNDS_S:.0f} s that day" in NOTE
    assert [round(each_s / cohorts.graded_s()) for each_s in (RECORDED, SINCE)] == [6, 8]
    few, many = ({cohorts.size(one, count) for one in (RECORDED, SINCE)} for count in (600, 10_000))
    assert few == {2} and "batches are of 2" in NOTE
    assert many == {10} and "10,000 submissions go in batches of 10" in NOTE
    share, other = (100 * cohorts.START_S / (2 * each_s) for each_s in (RECORDED, SINCE))
    assert f"With a start of {cohorts.START_S:.1f} s" in NOTE
    assert f"starting is {share:.1f} % of grading ({other:.1f} %)" in NOTE


def test_the_last_round_is_waited_for_whole():
    rounds, alone = ([cohorts.seconds(one, 600, gpus) / 60 for one in (RECORDED, SINCE)] for gpus in (64, 1))
    even = [minutes / 64 for minutes in alone]
    said = "{:.1f} minutes ({:.1f}), where {:.1f} ({:.1f}) would be a 64th"
    assert said.format(*rounds, *even) in NOTE


@pytest.mark.parametrize(("gpus", "told"), [(1, "9.9 h"), (8, "75 min"), (16, "39 min"), (64, "12 min")])
def test_a_cohort_of_which_the_cost_is_known_by_hand(gpus, told):
    """57.9 s: three fill the 120 s of a batch, so 200 batches of 179 s."""
    rounds = -(-200 // gpus)
    assert cohorts.seconds(57.9, 600, gpus) == pytest.approx(rounds * 179.02)
    assert cohorts.in_words(rounds * 179.02) == told


def test_what_a_start_takes_is_the_sum_of_the_rows_of_the_fleet():
    empty = float(re.search(r"Slurm starts an empty task \| ([\d.]+)", NOTE)[1])
    first = float(re.search(r"to its first judging \| ([\d.]+) in a quiet minute", NOTE)[1])
    assert pytest.approx(empty + first) == cohorts.START_S and plans.LEAST_S == 120


def test_the_readme_tells_the_same_seconds():
    (whole, least, most) = re.search(
        r"submission of lesson 01 takes (\d+) s, and (\d+) to (\d+) s more", README
    ).groups()
    assert (int(whole), int(least)) == (round(cohorts.graded_s()), round(cohorts.timing_s()))
    assert int(most) == round(cohorts.WHOLE_ROUNDS_S, -1)
