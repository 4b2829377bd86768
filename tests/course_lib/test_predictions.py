"""What is printed of a prediction: beside what came, with the ratio where there is one, and with its reason."""

import pytest

from course_lib.predictions import WIDTH, against


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
