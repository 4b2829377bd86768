"""A part of a lesson: everything it needs is in it, all parts are the whole, and it is a lesson as any other."""

import builtins
import shutil
import symtable

import pytest

from autograder import exercise
from autograder.classroom import bundle, lessons, parts
from autograder.classroom.lessons import COURSE, Lesson
from autograder.classroom.stubs import without_magics
from autograder.classroom.verdicts import asked_by, is_check

WHOLE = Lesson(COURSE, "05_mlp")
SCRIPT = lessons.read_script(WHOLE)
LETTERS = parts.parts_of(SCRIPT)
each_part = pytest.mark.parametrize("letter", LETTERS)


def names_of(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """(global names that the code reads, names that its top binds)."""
    top = table.get_type() == "module"
    read = {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    bound = {s.get_name() for s in table.get_symbols() if top and (s.is_assigned() or s.is_imported())}
    for child in table.get_children():
        read |= names_of(child)[0]
    return read, bound


def unbound(cells: list) -> set[str]:
    """Names that a cell reads and no cell binds, up to it."""
    known, missing = set(dir(builtins)), set()
    for cell in cells:
        if cell.cell_type == "code":
            source = without_magics(cell.source)
            read, bound = names_of(symtable.symtable(source, "", "exec"))
            known |= bound
            missing |= read - known
    return missing


def test_lesson_05_has_three_parts_that_share_its_exercises():
    assert LETTERS == ["a", "b", "c"]
    asked = [[asked_by(c).name for c in parts.cells_of(SCRIPT, part) if is_check(c)] for part in LETTERS]
    assert [name for names in asked for name in names] == [one.name for one in exercise.of_unit("mlp")]
    assert all(asked)


@each_part
def test_a_part_uses_no_name_of_another_one(letter):
    assert unbound(parts.cells_of(SCRIPT, letter)) == set()


def test_a_name_that_no_cell_binds_is_found():
    cells = [cell for cell in parts.cells_of(SCRIPT, "b") if "def mlp_arguments" not in cell.source]
    assert "mlp_arguments" in unbound(cells)


@each_part
def test_a_part_becomes_a_lesson_that_is_found_and_released(letter, tmp_path):
    for folder in ("solutions", "notebooks"):
        (tmp_path / folder).mkdir()
    shutil.copytree(COURSE / "solutions" / "05_mlp", tmp_path / "solutions" / "05_mlp")
    made = parts.written(Lesson(tmp_path, "05_mlp"), letter)
    assert made.unit == f"05{letter}_mlp" and made.part == letter and made.name == "mlp"
    assert [one.unit for one in lessons.find(tmp_path)] == ["05_mlp", made.unit]
    again = lessons.read_script(made)
    assert parts.parts_of(again) == [letter] and f"(part {letter.upper()})" in again.cells[0].source
    checks = [asked_by(cell).name for cell in again.cells if is_check(cell)]
    assert checks == [asked_by(c).name for c in parts.cells_of(SCRIPT, letter) if is_check(c)]
    assert lessons.refresh(made).cells and made.solution.exists()
    assert bundle.rows([made])[0].count(f"(notebooks/{made.unit}/mlp.ipynb)") == 1
