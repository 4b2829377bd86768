"""The picture of shapes around the table, made from made-up rows: every row is drawn, and the sentence counts them."""

import pytest

from benchmarks import around, readme

ROWS = [
    {"kind": "attention", "name": "attention forward 4 x 16 x 77 x 64", "best peer": "cudnn", "ratio": 0.8},
    {"kind": "attention", "name": "attention backward 4 x 16 x 77 x 64", "best peer": "flash 4", "ratio": 1.1},
    {"kind": "matmul", "name": "matmul bfloat16 1 x 4096 x 4096", "best peer": "cublas", "ratio": 1.3},
    {"kind": "matmul", "name": "matmul 7 x 7 x 7", "refused": "too odd"},
]
ENTRY = {"machine": "a GPU", "date": "2026-11-26", "versions": {"torch": "2.11", "triton": "3.6"}, "rows": ROWS}


@pytest.fixture
def recorded(monkeypatch):
    def load(section, device="h200"):
        kind = section.removeprefix("beside_").replace("products", "matmul")
        rows = [row for row in ENTRY["rows"] if row["kind"] == kind]
        return ENTRY | {"rows": rows} if device == "h100" or kind == "matmul" else {}

    monkeypatch.setattr(around.results, "load", load)
    monkeypatch.setattr(around.recorded, "is_stale", lambda section, device: section != "beside_products")


def test_the_sentence_counts_and_names_what_is_slow_or_refused(recorded):
    said = around.said()
    assert "3 rows" in said and "1 are at most 1, 2 at most 1.15" in said
    assert "Above 1.15: attention forward 0 of 1; attention backward 0 of 1; matmul 1 of 1, at most 1.300" in said
    assert "(bfloat16 1 x 4096 x 4096)." in said and "Refused: matmul 7 x 7 x 7 (too odd)." in said
    assert said.endswith("The code behind `beside_attention` and `beside_add_norm` has changed since.")


def test_any_order_of_additions_is_a_kind_of_its_own(recorded, monkeypatch):
    free = {**ROWS[1], "name": "attention backward in any order 4 x 16 x 77 x 64", "ratio": 1.2}
    monkeypatch.setitem(ENTRY, "rows", [*ROWS, free])
    assert (
        "attention backward 0 of 1; attention backward in any order 1 of 1, at most 1.200 (4 x 16 x 77 x 64); "
        "matmul 1 of 1, at most 1.300 (bfloat16 1 x 4096 x 4096)." in around.said()
    )


def test_sections_of_several_days_and_machines_are_all_named(recorded, monkeypatch):
    load = around.results.load

    def later(section, device="h200"):
        entry = load(section, device)
        if section != "beside_products" or not entry:
            return entry
        return entry | {"machine": "another", "date": "2026-11-27"}

    monkeypatch.setattr(around.results, "load", later)
    assert "a GPU, torch 2.11, triton 3.6; another, torch 2.11, triton 3.6, 2026-11-26 and 2026-11-27)" in around.said()
    assert "a GPU and another" in readme.as_svg(around.figure)


def test_every_row_is_in_the_picture(recorded):
    svg = readme.as_svg(around.figure)
    assert svg == readme.as_svg(around.figure)
    for words in ("4 x 16 x 77 x 64", "1 x 4096 x 4096", "0.80 cudnn", "1.10 flash 4", "1.30 cublas", "a GPU"):
        assert words in svg, words


def drawn(figure) -> list[list[str]]:
    """Of each column its names, once there are as many dots as rows."""
    assert sum(len(axes.texts) for axes in figure.axes) == sum("ratio" in row for row in ENTRY["rows"])
    return [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]


def test_a_kind_that_goes_on_in_the_next_column_has_its_name_there_too(recorded, monkeypatch):
    many = [{**ROWS[0], "name": f"attention forward {n} x 16 x 77 x 64"} for n in range(9)]
    monkeypatch.setitem(ENTRY, "rows", many)
    first, second = drawn(around.figure())
    assert first[0] == "attention forward" and second[0] == "attention forward, continued"
    assert len(first) + len(second) == 9 + 2


def test_a_head_is_not_the_last_of_its_column(recorded, monkeypatch):
    many = [
        f"attention {way} {n} x 16 x 77 x 64" for way, most in (("forward", 2), ("backward", 3)) for n in range(most)
    ]
    monkeypatch.setitem(ENTRY, "rows", [{**ROWS[0], "name": name} for name in many])
    first, second = drawn(around.figure())
    assert len(first) == 3 and second[0] == "attention backward" and len(second) == 4


def test_without_ratios_nothing_is_above(recorded, monkeypatch):
    monkeypatch.setitem(ENTRY, "rows", ROWS[3:])
    assert "Above 1.15: none." in around.said()


def test_without_a_record_it_says_so(monkeypatch):
    monkeypatch.setattr(around.results, "load", lambda section, device="h200": {})
    assert not around.is_there() and "not measured" in around.said()
