"""What is printed of a prediction: beside what came, with the ratio where there is one, and with its reason."""

import pytest

from course_lib.predictions import WIDTH, Log, against


def test_a_prediction_is_set_beside_what_came(capsys):
    against({"cos": 0.126, "cos cos": None}, {"cos": 0.131, "cos cos": 0.26}, unit="ms")
    assert capsys.readouterr().out.splitlines() == [
        "cos: 0.131 ms; predicted 0.126, 0.96 times that",
        "cos cos: 0.26 ms; no prediction",
    ]


@pytest.mark.parametrize(
    ("guess", "came", "said"),
    [
        ("fp16", "fp32", "fp32; predicted fp16"),
        (True, False, "False; predicted True"),
        (2, 0.0, "0; predicted 2"),
        (2, float("inf"), "inf; predicted 2"),
        (12345.6, 12345.6, "1.23e+04; predicted 1.23e+04, 1.00 times that"),
    ],
)
def test_words_truths_and_numbers_without_a_ratio_are_said_as_they_are(capsys, guess, came, said):
    against({"it": guess}, {"it": came})
    assert capsys.readouterr().out == f"it: {said}\n"


def test_the_reason_comes_last_and_needs_no_measurement(capsys):
    against({"why": "a copy reads and writes, " * 8, "copy": 2}, {"copy": 2}, digits=4)
    first, *reason = capsys.readouterr().out.splitlines()
    assert first == "copy: 2; predicted 2, 1.00 times that"
    assert reason[0].startswith("The reason given: a copy reads and writes,")
    assert len(reason) > 1 and all(len(line) <= WIDTH for line in reason)


def test_a_name_that_nobody_measured_is_an_error():
    with pytest.raises(KeyError):
        against({"copy": 2}, {"cpoy": 2})


def test_a_log_sets_predictions_beside_what_came_and_says_how_far_off_they_were():
    log = Log()
    log.note("a step", {"ms": 2.0, "why": "bytes", "which": "h"}, {"ms": 1.0, "which": "qkv"})
    log.note("another", {"MiB": 9000, "graphs": None}, {"MiB": 6000, "graphs": 1})
    log.note("on a GPU", {"us": 3.0}, {})
    log.decide({"a step": "keep: it fits"})
    assert [list(row) for row in log.table()] == [
        ["a step: ms", "2", "1", "keep: it fits"],
        ["a step: which", "h", "qkv", ""],
        ["another: MiB", "9,000", "6,000", "nothing yet"],
        ["another: graphs", "-", "1", ""],
        ["on a GPU: us", "3", "-", "nothing yet"],
    ]
    assert log.table().note.startswith("2 numbers predicted that have come; off by a factor of 1.8 in the middle, 2 at")


def test_a_cell_that_runs_again_replaces_its_rows_and_keeps_its_place():
    log = Log()
    for guess in (1, 2):
        log.note("first", {"n": guess}, {"n": 4})
        log.note("second", {"n": guess}, {"n": 4})
    assert [row[:2] for row in log.table()] == [["first: n", "2"], ["second: n", "2"]]


def test_a_decision_on_a_step_that_was_not_noted_is_an_error():
    log = Log()
    assert "no number" in str(log)
    with pytest.raises(KeyError, match="nothing was noted of 'b'"):
        log.decide({"b": "keep"})
