"""The bank's quick selection: right and slow submissions on all cases, each mistake on the case that kills it."""

import re
from pathlib import Path

import pytest

from autograder import bank, exercise
from autograder.bank import recording, speed

HERE = sorted(ex.name for unit in ("start", "roofline") for ex in exercise.of_unit(unit))
KILLED = sorted(ex.name for unit in ("flash", "rope", "mx", "mlp") for ex in exercise.of_unit(unit))
RECORDED = sorted(exercise.registry())  # the outcome of the bank on an H200 is kept
WITH_NCCL = ("ddp.ring", "ddp.naive", "ddp.flat", "ddp.overlap", "ddp.buckets", "ddp.sharded")  # a GPU for each rank


def test_every_exercise_has_two_right_solutions_and_a_file_for_every_mistake():
    for name, ex in exercise.registry().items():
        files = bank.entries([name])
        assert sum(e.kind == "right" for e in files) >= 2, name
        realised = {e.mistake for e in files if e.kind == "mistakes"}
        assert realised == {m.name for m in ex.mistakes}, name


@pytest.mark.parametrize("name", HERE)  # the other units have files of tests of their own
def test_right_is_accepted_and_each_mistake_is_caught_on_its_case(name):
    results = list(bank.run(bank.entries([name]), seed=20260101, quick=True, limit_s=60))
    surprising = [f"{r.entry}: {r.says or 'accepted'}" for r in results if not r.as_expected]
    assert results and not surprising, "\n".join(surprising)


@pytest.mark.parametrize(
    ("section", "name"), [*(("bank", name) for name in RECORDED), *(("bank_nccl", name) for name in WITH_NCCL)]
)
def test_the_recorded_run_on_an_h200_accepts_what_is_right_and_names_what_is_wrong(section, name):
    (row,) = recording.kept(section, name)
    assert row["right"] == row["of_right"] >= 2
    assert row["caught"] == row["of_mistakes"]
    assert row["named"] >= 0.95 * row["of_mistakes"]


def test_the_recorded_points_for_speed_tell_fast_from_slow():
    timed = [name for name in RECORDED if exercise.get(name).speed]
    recorded = {name: recording.kept("bank_speed", name) for name in timed}
    assert all(recorded.values()), [name for name, rows in recorded.items() if not rows]
    rows = [row for rows in recorded.values() for row in rows]
    paces = [_pace(row["exercise"], row["kind"], row["points"], row["out_of"]) for row in rows]
    assert speed.surprises(paces) == []


def test_an_outcome_is_kept_an_exercise_at_a_time_with_the_files_that_it_depends_on(monkeypatch):
    kept = {}
    monkeypatch.setattr(recording, "save", lambda section, rows, slug, hashes: kept.update({section: (rows, hashes)}))
    rows = [{"exercise": name, "n": n} for n, name in enumerate(("roofline.work", "start.axpy", "roofline.work"))]
    recording.keep("bank_cheats", rows, "h200", "autograder/referee")
    assert [row["n"] for row in kept["bank_cheats.roofline.work"][0]] == [0, 2]
    files = set(kept["bank_cheats.start.axpy"][1])
    assert {"autograder/exercises/start.py", "autograder/judging/judge.py", "autograder/referee/clock.py"} <= files
    assert "tests/bank/start.axpy/right/masked.py" in files
    assert not [path for path in files if "roofline" in path]


def test_a_slow_one_with_all_points_and_an_exercise_without_a_fast_one_are_surprises():
    paces = [_pace("roofline.chain", "slow", 3, 3), _pace("roofline.chain", "right", 2, 3)]
    assert speed.surprises(paces) == [
        "roofline.chain/slow/any earns all points",
        "no right submission of roofline.chain earns all points",
    ]


def _pace(name: str, kind: str, points: float, out_of: float) -> speed.Pace:
    return speed.Pace(bank.Entry(name, kind, "any", Path("any.py")), accepted=True, points=points, out_of=out_of)


def test_a_crash_and_a_hang_are_results_and_harm_no_neighbour(tmp_path):
    folder = tmp_path / "start.axpy" / "right"
    folder.mkdir(parents=True)
    (folder / "crash.py").write_text("import os\ndef axpy(a, x, y, out):\n    os._exit(3)\n")
    (folder / "hang.py").write_text("def axpy(a, x, y, out):\n    while True:\n        pass\n")
    (folder / "raises.py").write_text("1 / 0\n")
    todo = [bank.Entry("start.axpy", "right", path.stem, path) for path in sorted(folder.glob("*.py"))]
    says = {r.entry.name: r.says for r in bank.run(todo, seed=1, workers=2, limit_s=5)}
    assert "ended with 3" in says["crash"]
    assert "did not end" in says["hang"]
    assert "ZeroDivisionError" in says["raises"]


def test_where_a_process_goes_on_it_does_so_until_one_ends_it(tmp_path, monkeypatch):
    folder = tmp_path / "start.axpy" / "right"
    folder.mkdir(parents=True)
    (folder / "4_ends.py").write_text("import os\ndef axpy(a, x, y, out):\n    os._exit(3)\n")
    for name in ("1", "2", "3_raises", "5", "6"):
        (folder / f"{name}.py").write_text("import os\ndef axpy(a, x, y, out):\n    raise ValueError(os.getpid())\n")
    (folder / "3_raises.py").write_text("1 / 0\n")
    todo = [bank.Entry("start.axpy", "right", path.stem, path) for path in sorted(folder.glob("*.py"))]

    def processes():
        says = {r.entry.name: r.says for r in bank.run(todo, seed=1, workers=1)}
        assert "ZeroDivisionError" in says["3_raises"] and "ended with 3" in says["4_ends"]
        return [re.search(r"ValueError: (\d+)", says[name]).group(1) for name in ("1", "2", "5", "6")]

    assert len(set(processes())) == 4
    monkeypatch.setattr(bank, "goes_on", lambda entry: True)
    one, two, five, six = processes()
    assert one == two != five == six


def test_a_right_one_with_large_cases_is_judged_in_two_halves_and_counted_once():
    whole = next(entry for entry in bank.entries(["compile.breaks"]) if entry.kind == "right")
    small, large = whole.halves()
    assert [half.needs_machine_to_itself for half in (small, large)] == [False, True]
    seen = [list(bank.run([half], seed=3)) for half in (small, large)]
    assert all(len(results) == 1 and results[0].accepted for results in seen)
    told = [bank.Result(small, accepted=True, seconds=1.0), bank.Result(large, says="wrong", seconds=2.0)]
    assert bank.joined(told) == [bank.Result(whole, accepted=False, says="wrong", seconds=3.0)]
    (row,) = bank.counts(bank.joined([*seen[0], *seen[1]]))
    assert (row["right"], row["of_right"]) == (1, 1)
    mistake = next(entry for entry in bank.entries(["compile.breaks"]) if entry.kind == "mistakes")
    assert mistake.halves() == (mistake,)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 11])
@pytest.mark.parametrize("name", KILLED)
def test_each_mistake_is_caught_by_the_case_that_it_names_whatever_is_drawn(name, seed):
    results = list(bank.run(bank.entries([name]), seed=seed, quick=True, workers=2))
    surprising = [f"{r.entry}: {r.says or 'accepted'}" for r in results if not r.as_expected]
    assert results and not surprising, "\n".join(surprising)
