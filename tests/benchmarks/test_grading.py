"""What the benchmark of grading hands in is what a student would: answers, and nothing else to run."""

from autograder.referee.submission import extract
from benchmarks import grading


def test_no_cell_but_answers_and_setup_runs_and_every_answer_is_there():
    release, handed_in, asked = grading._lesson()
    names = [cell.name for cell in extract(release, handed_in).cells]
    assert not [name for name in names if name.startswith("your cell")]
    assert {one.name.replace(".", "_") for one in asked} <= {*names}
    sources = {cell.name: cell.source for cell in extract(release, handed_in).cells}
    empty = {cell.name: cell.source for cell in extract(release, release).cells}
    assert all(sources[name] != empty[name] for name in names if not name.startswith("setup"))
