"""A table says the same as text and as HTML."""

from collections import namedtuple

import pytest

from course_lib.table import Table, Tabular, bytes_text, number_text

Row = namedtuple("Row", "name took code")
TWO = Table(
    ("name", "took", "code"),
    [Row("x", "9.5 us", "if a < b:\n    pass"), Row("longer", "12 us", "")],
    caption="a <title>",
    note="so & so\nand so",
    code=("code",),
)


def test_text_is_aligned_numbers_at_their_end_and_words_at_their_beginning():
    assert str(TWO).split("\n") == [
        "a <title>",
        "name      took  code",
        "x       9.5 us  if a < b:",
        "                    pass",
        "longer   12 us",
        "so & so",
        "and so",
    ]
    assert repr(TWO) == str(TWO), "a console and the plain text of a cell show the table as well"


def test_html_is_escaped_everywhere_and_scrolls_by_itself_on_a_phone():
    page = TWO._repr_html_()
    assert "a &lt;title&gt;</caption>" in page and "<title>" not in page
    assert "if a &lt; b:\n    pass</td>" in page and "so &amp; so<br>and so" in page
    assert page.startswith("<div style='overflow-x:auto'><table>")
    assert "<th style='text-align:left'>name</th><th style='text-align:right'>took</th>" in page
    assert "text-align:right;white-space:nowrap'>9.5 us</td>" in page
    assert "white-space:pre;font-family:monospace'>if a" in page
    attack = "<script>alert(1)</script>"
    assert "<script>" not in Table((attack,), [[attack]], caption=attack, note=attack)._repr_html_()


@pytest.mark.parametrize("cells", [["1", "2.5 MiB"], ["-3e-05", "12%"], ["1,024 tokens/s", ""], ["7", "-"], [1, 2.5]])
def test_a_column_of_numbers_is_aligned_right(cells):
    assert "right" in Table(("n",), [[cell] for cell in cells])._repr_html_()


@pytest.mark.parametrize("cells", [["1", "many"], ["3.12.3"], ["sm_90"], ["0/1"], ["", "-"], ["2 of 3"]])
def test_a_column_with_other_cells_is_aligned_left(cells):
    assert "right" not in Table(("n",), [[cell] for cell in cells])._repr_html_()


def test_without_names_of_columns_the_first_cell_names_its_row():
    table = Table((), [("device", "NVIDIA H200"), ("tier", "GPU")])
    assert str(table) == "device  NVIDIA H200\ntier    GPU"
    page = table._repr_html_()
    assert "<thead>" not in page and ">device</th>" in page and ">NVIDIA H200</td>" in page


def test_a_table_without_rows_shows_its_caption_and_note():
    empty = Table(("a", "b"), [], caption="nothing", note="why")
    assert str(empty) == "nothing\nwhy"
    assert empty._repr_html_() == "<p><b>nothing</b></p><p><small>why</small></p>"
    assert str(Table((), [])) == "" == Table((), [])._repr_html_()


def test_a_program_reads_the_rows_as_they_were_given():
    assert len(TWO) == 2 and TWO[0].took == "9.5 us" and [row.name for row in TWO] == ["x", "longer"]


def test_a_long_sentence_keeps_room_for_some_words():
    assert "min-width:12em" in Table(("why",), [["word " * 20]])._repr_html_()
    assert "min-width" not in Table(("why",), [["a word"]])._repr_html_()


def test_numbers_are_written_in_full_or_with_three_digits():
    values = (None, 0, 1024, 0.123456, 12.0, 1329.18, 1e-7, -1234.5, True, "1.50", float("nan"))
    assert [number_text(value) for value in values] == [
        "", "0", "1,024", "0.123", "12", "1,329", "1e-07", "-1,234", "True", "1.50", "nan",
    ]  # fmt: skip


def test_bytes_are_said_in_a_unit_that_fits():
    sizes = (0, 1023, -1536, 2**20, 2317110, 150109880320, 3 * 2**30)
    assert [bytes_text(n) for n in sizes] == [
        "0 B", "1023 B", "-1.5 KiB", "1 MiB", "2.21 MiB", "139.8 GiB", "3 GiB",
    ]  # fmt: skip


def test_what_has_a_table_is_shown_as_it():
    class One(Tabular):
        def table(self):
            return Table(("n",), [[1]])

    assert str(One()) == "n\n1" and One()._repr_html_() == Table(("n",), [[1]])._repr_html_()
