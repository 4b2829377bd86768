import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from course_lib import results


@pytest.fixture(autouse=True)
def _an_h200_with_an_empty_folder(tmp_path, monkeypatch):
    versions = {"driver": "580", "numpy": "2.5", "python": "3.12", "torch": "2.11", "triton": "3.6"}
    machine = {"name": "NVIDIA H200", **versions}
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(results, "_machine", lambda: machine)
    monkeypatch.delenv(results.RECORD, raising=False)


def test_a_saved_section_loads_with_machine_versions_and_rows():
    results.save("softmax", [{"name": "N 1024", "value": 22.0, "unit": "us"}])
    entry = results.load("softmax")
    assert entry["rows"] == [{"name": "N 1024", "value": 22.0, "unit": "us"}]
    assert entry["machine"] == "NVIDIA H200" and entry["versions"]["triton"] == "3.6"
    assert len(entry["date"]) == 10 and entry["meaning"] == ""


def test_a_section_that_was_never_saved_is_false_and_says_what_is_missing():
    assert not results.load("nothing")
    with pytest.raises(LookupError, match=r"'rows' of .*'nothing', and nothing .*: .*h200\.json does not exist"):
        results.load("nothing")["rows"]
    results.save("softmax", [])
    with pytest.raises(LookupError, match=r"h200\.json has no section 'nothing'\. Install"):
        results.load("nothing")["date"]


def test_what_the_h200_lacks_comes_from_another_gpu_and_a_run_there_is_set_beside_the_h200s(monkeypatch):
    results.save("both", [{"name": "x", "unit": "ms", "value": 2.0}])
    h100 = results._machine() | {"name": "NVIDIA H100 80GB HBM3"}
    monkeypatch.setattr(results, "_machine", lambda: h100)
    monkeypatch.setenv(results.RECORD, "h100")
    alone, both = results.beside("alone", {"x": 1e-3}), results.beside("both", {"x": 1e-3})
    assert alone.recorded_on is None and "this is the recorded run: NVIDIA H100" in str(alone)
    assert both.ratio("x") == 0.5 and "recorded: NVIDIA H200" in str(both)
    assert results.load("alone")["machine"] == h100["name"] and results.load("both")["machine"] == "NVIDIA H200"
    assert results.load("both", "h100")["rows"][0]["value"] == 1.0 and not results.load("alone", "h200")
    assert results.gpus() == ["h200", "h100"]


def test_saving_one_section_leaves_the_others_alone():
    results.save("a", [{"name": "x", "value": 1}])
    before = results.load("a")
    results.save("b", [{"name": "y", "value": 2}])
    assert results.load("a") == before


def test_sections_saved_at_once_are_all_kept():
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: results.save(f"section{i}", [{"name": "x", "value": i}]), range(16)))
    assert all(results.load(f"section{i}")["rows"][0]["value"] == i for i in range(16))


def test_a_system_that_cannot_lock_a_folder_shows_results_and_records_none(monkeypatch):
    results.save("a", [{"name": "x", "value": 1}])
    monkeypatch.setattr(results, "fcntl", None)
    assert results.load("a")["rows"][0]["value"] == 1
    with pytest.raises(OSError, match="recorded on Linux only"):
        results.save("b", [])


def test_the_file_is_json_with_sorted_keys_one_row_a_line_and_no_part_left():
    results.save("b", [{"z": 1, "a": 2}, {"z": 3, "a": 4}])
    path = results.save("a", [])
    text = path.read_text()
    assert list(json.loads(text)) == ["a", "b"]
    assert '   {"a": 2, "z": 1},\n   {"a": 4, "z": 3}\n' in text
    assert [p.name for p in path.parent.iterdir()] == ["h200.json"]


def test_numbers_are_kept_to_six_digits_and_nan_is_refused():
    results.save("a", [{"name": "x", "value": 1 / 3}])
    assert results.load("a")["rows"][0]["value"] == 0.333333
    with pytest.raises(ValueError, match="no measurement"):
        results.save("a", [{"name": "x", "value": float("nan")}])
    with pytest.raises(TypeError, match="not list"):
        results.save("a", [{"name": "x", "value": [1]}])


def test_numbers_of_another_machine_are_refused():
    with pytest.raises(ValueError, match="do not belong in a100"):
        results.save("a", [], "a100")
    with pytest.raises(ValueError, match="lower-case"):
        results.save("a", [], "../h200")


def test_a_section_keeps_what_the_code_meant(tmp_path):
    results.save("b", [], meaning="123abc")
    results.save("a", [])
    assert results.load("b")["meaning"] == "123abc"
    assert results.sections() == ["a", "b"]


def test_sections_of_another_file_can_be_taken_over(tmp_path):
    path = results.save("a", [{"name": "x", "value": 1}])
    other = tmp_path / "other.json"
    other.write_text(path.read_text().replace('"value": 1', '"value": 2'))
    results.save("b", [{"name": "y", "value": 3}])
    results.merge(other, ["a"])
    assert results.load("a")["rows"][0]["value"] == 2 and results.load("b")["rows"][0]["value"] == 3
    with pytest.raises(KeyError, match="has no section c"):
        results.merge(other, ["c"])


def test_beside_gives_mine_recorded_and_ratio_in_the_asked_unit():
    results.save("copy", [{"name": "1 GiB", "value": 500.0, "unit": "us"}])
    table = results.beside("copy", {"1 GiB": 1e-3, "mine only": SimpleNamespace(median_s=2e-3)}, unit="ms")
    approx = pytest.approx
    assert table.rows == (("1 GiB", approx(1.0), approx(0.5)), ("mine only", approx(2.0), None))
    assert table.ratio("1 GiB") == pytest.approx(2.0) and table.ratio("mine only") is None
    assert "here [ms]" in str(table) and "NVIDIA H200" in str(table)


def test_beside_takes_plain_numbers_when_the_unit_is_no_time():
    results.save("rate", [{"name": "copy", "value": 4.2, "unit": "TB/s"}])
    table = results.beside("rate", {"copy": 0.021}, unit="TB/s")
    assert table.rows == (("copy", 0.021, 4.2),)


def test_beside_says_plainly_when_nothing_was_recorded():
    table = results.beside("nothing", {"x": 1.0})
    assert table.recorded_on is None and "Nothing was recorded for 'nothing' on h200" in table._repr_html_().replace(
        "&#x27;", "'"
    )
    assert str(table).splitlines()[:2] == ["nothing  here [ms]", "x            1,000"]


def test_beside_records_only_when_asked(monkeypatch):
    results.beside("copy", {"x": 1e-3})
    assert not results.load("copy")
    monkeypatch.setenv(results.RECORD, "h200")
    table = results.beside("copy", {"x": 1e-3})
    assert results.load("copy")["rows"] == [{"name": "x", "unit": "ms", "value": 1.0}]
    assert table.ratio("x") == 1.0


def test_the_run_that_records_shows_its_numbers_once(monkeypatch):
    monkeypatch.setenv(results.RECORD, "h200")
    table = results.beside("copy", {"x": 1e-3})
    assert str(table).splitlines()[0] == "copy  here [ms]" and "this is the recorded run: NVIDIA H200" in str(table)
    monkeypatch.delenv(results.RECORD)
    assert "here / recorded" in str(results.beside("copy", {"x": 1e-3}))


def test_unlike_sizes_have_no_ratio_and_both_are_told(monkeypatch):
    monkeypatch.setenv(results.RECORD, "h200")
    results.beside("product", {"x": 1e-3}, size="16384 x 1152")
    monkeypatch.delenv(results.RECORD)
    small = results.beside("product", {"x": 2e-3}, size="256 x 96")
    assert small.ratio("x") is None and "here / recorded" not in str(small)
    assert "NVIDIA H200, at 256 x 96" in str(small) and "triton 3.6, at 16384 x 1152" in str(small)
    assert results.beside("product", {"x": 2e-3}, size="16384 x 1152").ratio("x") == 2.0


def test_a_benchmarks_rows_are_shown_in_their_unit_and_never_replaced(monkeypatch):
    results.save("dispatch", [{"name": "plain", "us": 8.0, "low_us": 7.5}, {"name": "theirs", "us": 9.0}])
    monkeypatch.setenv(results.RECORD, "h200")
    table = results.beside("dispatch", {"plain": 4e-6}, unit="us", records=False)
    assert table.rows == (("plain", pytest.approx(4.0), 8.0), ("theirs", None, 9.0))
    assert results.load("dispatch")["rows"][0]["low_us"] == 7.5


def test_names_are_escaped_in_the_html_table():
    assert "<b>" not in results.beside("copy", {"<b>": 1.0})._repr_html_()
