"""The bank's quick selection: right and slow submissions on all cases, each mistake on the case that kills it."""

import pytest

from autograder import bank, exercise


def test_every_exercise_has_two_right_solutions_and_a_file_for_every_mistake():
    for name, ex in exercise.registry().items():
        files = bank.entries([name])
        assert sum(e.kind == "right" for e in files) >= 2, name
        realised = {e.mistake for e in files if e.kind == "mistakes"}
        assert realised == {m.name for m in ex.mistakes}, name


@pytest.mark.parametrize("name", sorted(exercise.registry()))
def test_right_is_accepted_and_each_mistake_is_caught_on_its_case(name):
    results = list(bank.run(bank.entries([name]), seed=20260101, quick=True, limit_s=60))
    surprising = [f"{r.entry}: {r.says or 'accepted'}" for r in results if not r.as_expected]
    assert results and not surprising, "\n".join(surprising)


def test_a_crash_and_a_hang_are_results_and_harm_no_neighbour(tmp_path):
    folder = tmp_path / "start.axpy" / "right"
    folder.mkdir(parents=True)
    (folder / "crash.py").write_text("import os\ndef axpy(a, x, y, out):\n    os._exit(3)\n")
    (folder / "hang.py").write_text("def axpy(a, x, y, out):\n    while True:\n        pass\n")
    (folder / "raises.py").write_text("1 / 0\n")
    todo = [bank.Entry("start.axpy", "right", path) for path in sorted(folder.glob("*.py"))]
    says = {r.entry.path.stem: r.says for r in bank.run(todo, seed=1, workers=2, limit_s=5)}
    assert "ended with 3" in says["crash"]
    assert "did not end" in says["hang"]
    assert "ZeroDivisionError" in says["raises"]
