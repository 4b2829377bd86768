"""The bank's quick selection: right and slow submissions on all cases, each mistake on the case that kills it."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from autograder import bank, exercise
from autograder.bank import command, recording, speed
from autograder.call.in_process import examine
from autograder.judging.verdict import SpeedVerdict, Timed
from course_lib import device

EXERCISES = sorted(exercise.registry())
RANKED = sorted(name for name, one in exercise.registry().items() if one.kind == "distributed")  # a GPU for each rank
SAMPLE = 5  # mistakes of an exercise with kernels, compilers or ranks that are tried here; `make bank` tries all
# All cases of these take more than about 2 s: `make test` tries those that show the point.
LONG = """
capstone.mask capstone.memory capstone.qkv capstone.speed capstone.tower compile.backend compile.breaks compile.guards
compile.operator compile.pass ddp.buckets ddp.cost ddp.flat ddp.naive ddp.overlap ddp.ring ddp.sharded dispatch.keys
flash.backward flash.forward flash.speed flash.tiled mlp.accumulate mlp.add_norm mlp.autocast mlp.dropout
mlp.linear_gelu mlp.recompute mlp.saved mx.gemv mx.linear mx.quantize roofline.matmul roofline.profile roofline.regime
roofline.stopwatch roofline.work rope.backward rope.forward rope.speed
""".split()


@pytest.mark.parametrize("name", EXERCISES)
def test_every_exercise_has_two_right_solutions_and_an_edit_for_every_mistake(name):
    files, asked = bank.entries([name]), exercise.get(name)
    assert sum(e.kind == "right" for e in files) >= 2
    mistakes = [e for e in files if e.kind == "mistakes"]
    assert not command.unmatched(files)
    assert {e.killed_by for e in mistakes} <= {case.name for case in asked.cases}
    assert bool(asked.speed) == any(e.kind == "slow" for e in files)
    assert len(asked.about) > 15 and not asked.about.endswith("."), "what it is about, as a part of a sentence"
    here = {case.name for case in asked.cases if set(case.tiers) >= set(asked.tiers)}
    assert asked.point and set(asked.point) <= here, "every tier shows its point"
    assert set(asked.point) & {e.killed_by for e in mistakes}, "and the bank misses it"


@pytest.mark.parametrize("name", LONG)
def test_where_it_shows_its_point_right_is_accepted_and_a_mistake_is_caught(name):
    right, mistakes = (bank.entries([name], [kind]) for kind in ("right", "mistakes"))
    at_point = [entry for entry in mistakes if set(entry.killers) <= set(exercise.get(name).point)]
    assert not surprising([right[0], at_point[0]], 20260101, _at_point)


def _at_point(entry, seed, quick):
    asked, module = exercise.get(entry.exercise), bank.load(entry)
    if device.TIER not in getattr(module, "TIERS", asked.tiers):
        return bank.Result(entry, skipped=True)
    only = asked.point[-1] if entry.kind == "right" else entry.killers
    verdict = examine(asked, getattr(module, asked.entry), seed, only=only)
    return bank.Result(entry, verdict.accepted, says=f"{verdict.points:g} points")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in EXERCISES])
def test_right_is_accepted_and_mistakes_are_caught_on_their_case(name):
    asked, found = exercise.get(name), bank.entries([name])
    right, mistakes = ([entry for entry in found if entry.kind == kind] for kind in ("right", "mistakes"))
    if asked.kind != "scenario" or asked.probe:
        right, mistakes = right[:1], mistakes[:: max(1, len(mistakes) // SAMPLE)]
    small = [half for entry in right + mistakes for half in entry.halves() if not half.needs_machine_to_itself]
    assert not surprising(small, 20260101)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 11])
@pytest.mark.parametrize("name", EXERCISES)
def test_each_mistake_is_caught_by_the_case_that_it_names_whatever_is_drawn(name, seed):
    assert not surprising(bank.entries([name]), seed)


def surprising(todo, seed, task=bank.try_entry):
    results = list(bank.run(todo, seed, quick=True, workers=1, limit_s=300, task=task))
    assert results
    return [f"{r.entry}: {r.says or 'accepted'}" for r in results if not r.as_expected]


def test_an_entry_that_is_wrong_itself_is_never_caught(tmp_path):
    folder = tmp_path / "start.axpy"
    (folder / "right").mkdir(parents=True)
    (folder / "right" / "masked.py").write_text(bank.find("start.axpy/right/masked").source)
    head = '# of masked\n## {}, caught by "{}": What it should not be.\n'
    nowhere = head.format("no_mask", exercise.get("start.axpy").cases[0].name) + "-nowhere\n+here\n"
    (folder / "mistakes.diff").write_text(nowhere + head.format("other", "no such case") + "-import triton\n")
    edits = bank.read(folder / "mistakes.diff")
    todo = [bank.Entry("start.axpy", "mistakes", name, edit) for name, edit in edits.items()]
    results = {r.entry.name: r for r in bank.run(todo, seed=1)}
    assert not any(r.as_expected for r in results.values())
    assert "do not stand in masked" in results["no_mask"].says and "but the cases are" in results["other"].says


def test_what_has_no_match_is_said_before_anything_is_judged():
    files = bank.entries(["start.axpy"])
    assert command.unmatched([e for e in files if e.mistake != "no_mask"]) == [
        "Mistake 'no_mask' of start.axpy has no edit in tests/bank/start.axpy/mistakes.diff."
    ]
    renamed = [replace(e, name="unheard_of") if e.name == "no_mask" else e for e in files]
    assert (
        "The edit 'unheard_of' in tests/bank/start.axpy/mistakes.diff has no Mistake" in command.unmatched(renamed)[-1]
    )
    (alone,) = command.unmatched([replace(files[0], exercise="start.none")])
    assert "autograder/exercises/start/__init__.py" in alone
    assert command.unknown(["start", "start.axpy", "start.axpi"]) == ["No exercise and no unit is called 'start.axpi'."]


# ------------------------------------------------------------------------------------------------- what is recorded


def recorded(part, name):
    """The rows of the run on an H200; without one the test says how to make one, and passes."""
    rows = recording.kept(part, name)
    if not rows:
        pytest.skip(f"not yet recorded on a GPU: run `{recording.command(part, name)}`")
    return rows


@pytest.mark.parametrize(
    ("part", "name"), [*(("bank", name) for name in EXERCISES), *(("bank_nccl", name) for name in RANKED)]
)
def test_the_recorded_run_on_an_h200_accepts_what_is_right_and_names_what_is_wrong(part, name):
    (row,) = recorded(part, name)
    assert row["right"] == row["of_right"] >= 2
    assert row["caught"] == row["of_mistakes"]
    assert row["named"] >= 0.95 * row["of_mistakes"]


@pytest.mark.parametrize("name", [name for name in EXERCISES if exercise.get(name).speed])
def test_the_recorded_points_for_speed_tell_fast_from_slow(name):
    rows = recorded("bank_speed", name)
    paces = [_pace(row["exercise"], row["kind"], row["points"], row["out_of"]) for row in rows]
    assert speed.surprises(paces) == []


def test_an_outcome_that_was_not_recorded_says_how_to_record_it():
    with pytest.raises(pytest.skip.Exception, match=r"run `python -m autograder bank new.one --record h200`"):
        recorded("bank", "new.one")


def test_an_outcome_holds_while_the_exercise_and_its_submissions_mean_the_same(monkeypatch):
    axpy = exercise.get("start.axpy")
    before = recording.means("bank", axpy.name)
    assert len({before, recording.means("bank_cheats", axpy.name), recording.means("bank", "roofline.work")}) == 3

    def changed(**fields):
        monkeypatch.setattr(recording, "get", lambda name: replace(axpy, **fields))
        return recording.means("bank", axpy.name)

    first, *others = axpy.mistakes
    assert changed(mistakes=(replace(first, says="Other words."), *others)) == before
    assert changed(mistakes=others) != before
    assert changed(points=axpy.points + 1) != before
    assert changed(cases=axpy.cases[1:]) != before
    monkeypatch.setattr(recording, "get", exercise.get)
    fewer = bank.entries([axpy.name], ["right", "mistakes"])[1:]
    monkeypatch.setattr(recording, "entries", lambda names, kinds: fewer)
    assert recording.means("bank", axpy.name) != before


def test_an_outcome_is_kept_an_exercise_at_a_time(monkeypatch):
    kept = {}
    monkeypatch.setattr(recording, "save", lambda section, rows, slug, meaning: kept.update({section: (rows, meaning)}))
    rows = [{"exercise": name, "n": n} for n, name in enumerate(("roofline.work", "start.axpy", "roofline.work"))]
    recording.keep("bank_cheats", rows, "h200")
    assert [row["n"] for row in kept["bank_cheats.roofline.work"][0]] == [0, 2]
    assert kept["bank_cheats.start.axpy"][1] == recording.means("bank_cheats", "start.axpy")


def test_a_slow_one_with_all_points_and_an_exercise_without_a_fast_one_are_surprises():
    paces = [_pace("roofline.chain", "slow", 3, 3), _pace("roofline.chain", "right", 2, 3)]
    assert speed.surprises(paces) == [
        "roofline.chain/slow/any earns all points",
        "no right submission of roofline.chain earns all points",
    ]


def test_points_for_speed_and_the_slowest_share_are_kept_with_the_submission(monkeypatch):
    rows = (Timed("n=1", 1.0, 1.0, 1.0, floor_s=0.5), Timed("n=2", 1.0, 1.0, 1.0, floor_s=0.25))
    verdict = SpeedVerdict("roofline.chain", "gpu", points=1.5, out_of=3.0, rows=rows)
    monkeypatch.setattr(speed, "examine_speed", lambda exercise, function, seed: verdict)
    pace = speed.time_entry(bank.find("roofline.chain/right/unrolled"), seed=1)
    assert pace.accepted and not pace.broken
    assert {name: speed.row(pace)[name] for name in ("points", "out_of", "share")} == {
        "points": 1.5,
        "out_of": 3.0,
        "share": 0.25,
    }


def _pace(name: str, kind: str, points: float, out_of: float) -> speed.Pace:
    return speed.Pace(bank.Entry(name, kind, "any", Path("any.py")), accepted=True, points=points, out_of=out_of)


def test_the_report_counts_slow_ones_beside_right_ones():
    found = [
        bank.Entry("roofline.chain", kind, "any", Path("any.py")) for kind in ("right", "right", "slow", "mistakes")
    ]
    results = [bank.Result(entry, accepted=entry.kind != "mistakes") for entry in found]
    (row,) = bank.counts(results)
    assert (row["right"], row["of_right"], row["slow"], row["of_slow"]) == (3, 3, 1, 1)
    header, line, _ = (text.split() for text in bank.table(results).splitlines())
    assert dict(zip(header, line)) == {
        "exercise": "roofline.chain", "right": "2/2", "slow": "1/1", "caught": "1/1", "named": "0/1", "skipped": "0",
        "seconds": "0.0",
    }  # fmt: skip


def test_the_first_wrong_cases_of_a_submission_are_told_whole_and_the_others_counted():
    mistake = bank.find("roofline.work/mistakes/always_four_bytes")
    cases = [c for c in examine(exercise.get("roofline.work"), mistake.function, seed=1).cases if not c.right]
    said = bank.try_entry(mistake, seed=1, quick=False).says
    assert all(f"{c.name} ({c.sizes}): {c.why}" in said for c in cases[: bank.TOLD])
    assert said.endswith(f"; and {len(cases) - bank.TOLD} other cases") and len(cases) > bank.TOLD


def test_a_crash_and_a_hang_are_results_and_harm_no_neighbour(tmp_path):
    folder = tmp_path / "start.axpy" / "right"
    folder.mkdir(parents=True)
    (folder / "crash.py").write_text("import os\ndef axpy(a, x, y, out):\n    os._exit(3)\n")
    (folder / "hang.py").write_text("def axpy(a, x, y, out):\n    while True:\n        pass\n")
    (folder / "raises.py").write_text("1 / 0\n")
    todo = [bank.Entry("start.axpy", "right", path.stem, path) for path in sorted(folder.glob("*.py"))]
    says = {r.entry.name: r.says for r in bank.run(todo, seed=1, workers=2, limit_s=6)}
    assert "ended with 3" in says["crash"]
    assert "did not end" in says["hang"]
    assert "ZeroDivisionError" in says["raises"]


def _out_of_memory(entry, seed, quick):
    raise MemoryError("no GPU memory is left")


def test_a_mistake_that_could_not_be_judged_is_not_caught():
    mistake = bank.find("roofline.work/mistakes/always_four_bytes")
    (unjudged,) = bank.run([mistake], seed=1, task=_out_of_memory)
    (judged,) = bank.run([mistake], seed=1)
    assert judged.as_expected and not unjudged.as_expected and "no GPU memory" in unjudged.says
    assert [bank.counts([one])[0]["caught"] for one in (unjudged, judged)] == [0, 1]
    assert not bank.joined([judged, unjudged])[0].as_expected


def test_a_gpu_s_memory_limits_how_many_are_judged_at_once(monkeypatch):
    monkeypatch.setattr(bank.os, "sched_getaffinity", lambda pid: set(range(24)))
    assert bank.workers_at_once() == 24
    monkeypatch.setattr(bank.device, "TIER", "gpu")
    for gib, workers in ((139, 24), (80, 16), (8, 1), (4, 1)):
        monkeypatch.setattr(bank.device, "memory_bytes", lambda gib=gib: gib << 30)
        assert bank.workers_at_once() == workers


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


@pytest.mark.slow
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
