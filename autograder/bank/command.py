"""python -m autograder bank: the bank on this machine; --cheats and --speed run another part of it."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from autograder.bank import KINDS, Entry, counts, entries, joined, run, speed, table, workers_at_once
from autograder.bank.edits import BadEdit
from autograder.bank.recording import keep_apart
from autograder.call import in_ranks
from autograder.exercise import UNITS, find, get, registry
from course_lib import device

NAMED = 0.95  # of the mistakes of an exercise, that are to be called by their name
NCCL_WORKERS = 8  # each has two ranks or more, and all of them share the GPUs
NCCL_LIMIT_S = 300.0  # for one submission: a rank that hangs takes a minute, and a case by itself five seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", nargs="*", metavar="EXERCISE", help="only these, or units; or show EXERCISE NAME")
    parser.add_argument("--quick", action="store_true", help="mistakes on their case, a cheat a family, or formulas")
    parser.add_argument("--cheats", action="store_true", help="the cheats instead, against the referee")
    parser.add_argument("--speed", action="store_true", help="the points for speed of right and slow ones instead")
    parser.add_argument("--seeds", type=int, metavar="N", help="whose points vary between N seeds, instead")
    parser.add_argument(
        "--resume", type=Path, metavar="FOLDER", help="--seeds: keep what is through, and go on from it"
    )
    parser.add_argument("--nccl", action="store_true", help="the distributed exercises, with NCCL and a GPU a rank")
    parser.add_argument("--seed", type=int, default=None, help="repeat the draw of an earlier run")
    parser.add_argument("--record", metavar="DEVICE", help="keep the outcome in benchmarks/results/DEVICE.json")


def main(args: argparse.Namespace) -> int:
    try:
        return _main(args)
    except BadEdit as error:
        print(f"The bank cannot be read. {error}", file=sys.stderr)
        return 2


def _main(args: argparse.Namespace) -> int:
    if args.exercise[:1] == ["show"]:
        return show(*args.exercise[1:])
    if args.seeds is not None and args.seeds < 1:
        print(f"Expected --seeds of 1 or more, got {args.seeds}.")
        return 2
    device.ask_apart()  # every part of the bank forks
    fresh = 0 if args.resume else int.from_bytes(os.urandom(4), "little")  # what goes on draws what it drew
    seed = fresh if args.seed is None else args.seed
    if args.record and (args.quick or (args.seeds or 100) < 100):
        print("Only a run on all cases, or under 100 seeds and more, is worth recording.")
        return 2
    if args.cheats:
        from autograder.bank import cheats  # needs bubblewrap, which the rest of the bank does not

        return cheats.main(args.exercise, seed, args.quick, args.record)
    if args.seeds:
        from autograder.bank import seeds  # needs the referee's rounds

        return seeds.main(args.exercise, seed, args.seeds, args.quick, args.record, args.resume)
    if args.speed:
        return speed.main(args.exercise, seed, args.record)
    found, part, workers, limit_s = entries(args.exercise), "bank", workers_at_once(), 120.0
    if args.nccl:
        in_ranks.BACKEND, part, workers, limit_s = "auto", "bank_nccl", NCCL_WORKERS, NCCL_LIMIT_S
        found = [entry for entry in found if get(entry.exercise).kind == "distributed"]
        if in_ranks.chosen("auto", 2) != "nccl":
            print("NCCL needs two CUDA devices, and this machine has fewer.")
            return 2
    wrong = [*unknown(args.exercise), *unmatched(found)]
    if wrong or not found:
        print("\n".join(wrong or ["The bank has no such submissions."]), file=sys.stderr)
        return 2
    print(f"{len(found)} submissions, tier {device.TIER}, seed {seed}", flush=True)
    todo = [half for entry in found for half in entry.halves()]
    alone = [entry for entry in todo if entry.needs_machine_to_itself]
    together = [entry for entry in todo if entry not in alone]
    results, left = [], Counter(entry.exercise for entry in todo)
    # Those alone come first: an exercise is kept when its last one is through, also where time ends before all are.
    for some, beside in ((alone, 1), (together, workers)):
        for result in run(some, seed, args.quick, beside, limit_s):
            results.append(result)
            left[result.entry.exercise] -= 1
            if args.record and not left[result.entry.exercise]:  # a run that is cut short keeps what it finished
                of_it = [r for r in results if r.entry.exercise == result.entry.exercise]
                keep_apart(part, counts(joined(of_it)), args.record)
            print(f"\r{len(results)}/{len(todo)} {result.entry!s:<70.70}", end="", file=sys.stderr, flush=True)
            if not result.as_expected:
                print(f"\nNOT AS EXPECTED {result.entry}: {result.says or 'accepted'}", flush=True)
            elif result.entry.kind == "mistakes" and not result.skipped and not result.rightly_named:
                print(f"\nnamed {result.named}: {result.entry}: {result.says}", flush=True)
    rows = counts(joined(results))
    print(f"\n{table(joined(results))}")
    few = [row for row in rows if row["named"] < NAMED * row["of_mistakes"] and not args.quick]
    for row in few:
        print(f"{row['exercise']}: {row['named']} of {row['of_mistakes']} mistakes named; {NAMED:.0%} are asked for")
    return 0 if all(r.as_expected for r in results) and not few else 1


def unknown(names: Iterable[str]) -> list[str]:
    """What is said about names of no exercise and no unit."""
    known = {*registry(), *UNITS}
    return [f"No exercise and no unit is called {name!r}." for name in names if name not in known]


def unmatched(found: Iterable[Entry]) -> list[str]:
    """Folders of the bank without an exercise, mistakes without an edit, and edits without a mistake."""
    said = []
    for name in sorted({entry.exercise for entry in found}):
        exercise, folder = find(name), f"tests/bank/{name}"
        if exercise is None:
            unit = name.partition(".")[0]
            said.append(f"{folder}: no such exercise; is it in EXERCISES of autograder/exercises/{unit}/__init__.py?")
            continue
        edits = {entry.mistake for entry in found if entry.exercise == name and entry.kind == "mistakes"}
        asked = {mistake.name for mistake in exercise.mistakes}
        said += [f"Mistake {one!r} of {name} has no edit in {folder}/mistakes.diff." for one in sorted(asked - edits)]
        said += [
            f"The edit {one!r} in {folder}/mistakes.diff has no Mistake of that name." for one in sorted(edits - asked)
        ]
    return said


def show(exercise: str = "", name: str = "", *_: str) -> int:
    """Print a submission of the bank as a file of its own."""
    if find(exercise) is None:
        print("Say which: bank show EXERCISE NAME, such as: bank show roofline.softmax base_two", file=sys.stderr)
        return 2
    there = entries([exercise], [*KINDS, "cheats"])
    found = [entry for entry in there if name in (entry.name, f"{entry.kind}/{entry.name}")]
    for entry in found:
        print(f"# {entry}\n{entry.source}")
    if not found:
        known = sorted(entry.name for entry in there)
        print(f"The bank of {exercise!r} has no {name!r}; it has: {', '.join(known) or 'nothing'}.", file=sys.stderr)
    return 0 if found else 2
