"""Several processes of one benchmark: what is kept of them."""

import json

from benchmarks import __main__ as command
from benchmarks.__main__ import joined


def test_the_process_in_the_middle_is_kept_and_how_far_the_others_lie():
    runs = [[{"name": "a", "ratio": r, "value": 10 * r}, {"name": "b", "value": 5 - r}] for r in (1.2, 0.9, 1.0)]
    a, b = joined(runs)
    assert (a["ratio"], a["value"]) == (1.0, 10.0)
    assert (a["least ratio"], a["largest ratio"], a["processes"]) == (0.9, 1.2, 3)
    assert b["value"] == 4.0 and "least ratio" not in b


def test_one_process_is_kept_as_it_is():
    assert joined([[{"name": "a", "ratio": 1.0}]]) == [{"name": "a", "ratio": 1.0}]


def test_a_row_that_only_some_processes_have_and_one_without_numbers():
    runs = [[{"name": "a", "wrong": "nan"}], [{"name": "a", "wrong": "nan"}, {"name": "late", "value": 1.0}]]
    assert joined(runs) == [{"name": "a", "wrong": "nan", "processes": 2}]


def test_rows_go_to_a_file_of_their_own_and_nothing_is_recorded(tmp_path, monkeypatch):
    rows, saved = [{"name": "a", "value": 1.0}], []
    monkeypatch.setattr(command, "_measured", lambda name: rows)
    monkeypatch.setattr(command.results, "save", lambda *given: saved.append(given))
    into = tmp_path / "rows.json"
    assert command.main(["dispatch", "--into", str(into)]) == 0
    assert json.loads(into.read_text()) == {"dispatch": rows} and not saved
    assert command.main(["dispatch"]) == 0 and saved[0][:2] == ("dispatch", rows)


def test_a_section_of_which_a_process_failed_is_not_recorded(monkeypatch):
    saved = []
    monkeypatch.setattr(command, "_process", lambda name, device: None if name == "grading" else [{"name": "a"}])
    monkeypatch.setattr(command.results, "save", lambda *given: saved.append(given[0]))
    assert command.main(["dispatch", "grading", "--processes", "2"]) == 1
    assert saved == ["dispatch"]
