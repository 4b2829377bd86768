"""The bank: submissions whose verdict is known. `python -m autograder bank` runs them all on this machine.

    tests/bank/<exercise>/right/      different right solutions: every case must be right
    tests/bank/<exercise>/mistakes/   <mistake>.py or <mistake>__second.py: must be caught, and called by that name
    tests/bank/<exercise>/slow/       right, but not fast
    tests/bank/<exercise>/cheats/     see bank/cheats.py, which `--cheats` runs

Each file is tried in a process of its own, forked from this one after torch is imported and before any tensor or
CUDA call, so a crash or a hang is a result and harms no neighbour. On a GPU, opening the device takes longer than most
files: there a process goes on with the next file that is made of kernels, until the device answers it no more.
"""

from __future__ import annotations

import importlib.util
import multiprocessing.connection
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from autograder.bank.apart import Apart
from autograder.call import in_ranks
from autograder.call.in_process import examine
from autograder.exercise import get
from course_lib import device
from course_lib.results import ROOT

BANK = ROOT / "tests" / "bank"
KINDS = ("right", "slow", "mistakes")


@dataclass(frozen=True)
class Entry:
    exercise: str
    kind: str
    path: Path
    cases: str = "all"  # or "small" or "large": those that fit a notebook, or the others

    @property
    def mistake(self) -> str:
        return self.path.stem.partition("__")[0]

    @property
    def needs_machine_to_itself(self) -> bool:
        """Whether it must run the cases that are too large for a notebook: right ones all, mistakes their killer."""
        if self.cases != "all":
            return self.cases == "large"
        killer = re.search(r'^KILLED_BY = "(.*)"$', self.path.read_text(), re.MULTILINE)
        return bool(self.large) and (killer.group(1) in self.large if killer else True)

    @property
    def large(self) -> tuple[str, ...]:
        cases = (case for case in get(self.exercise).cases if device.TIER in case.tiers)
        return tuple(case.name for case in cases if not case.live)

    def halves(self) -> tuple[Entry, ...]:
        """What of it can be judged beside others, and what cannot; a mistake is named by all cases together."""
        if self.kind == "mistakes" or not self.needs_machine_to_itself:
            return (self,)
        return replace(self, cases="small"), replace(self, cases="large")

    def __str__(self) -> str:
        return f"{self.exercise}/{self.kind}/{self.path.name}"


@dataclass(frozen=True)
class Result:
    entry: Entry
    accepted: bool = False
    named: str | None = None
    says: str = ""  # what a student would have read, or how the process ended
    seconds: float = 0.0
    skipped: bool = False  # this tier cannot show it

    @property
    def as_expected(self) -> bool:
        return self.skipped or self.accepted == (self.entry.kind != "mistakes")

    @property
    def rightly_named(self) -> bool:
        return self.named == self.entry.mistake


def entries(names: Iterable[str] = (), kinds: Iterable[str] = KINDS) -> list[Entry]:
    """The files of the bank, of some exercises or units or of all."""
    folders = sorted(p for p in BANK.iterdir() if p.is_dir() and not p.name.startswith("_") and among(p.name, names))
    return [Entry(p.name, kind, path) for p in folders for kind in kinds for path in sorted((p / kind).glob("*.py"))]


def among(exercise: str, names: Iterable[str]) -> bool:
    """Whether `names`, of exercises or units, say this exercise; no names say all."""
    wanted = set(names)
    return not wanted or not wanted.isdisjoint({exercise, exercise.partition(".")[0]})


def load(path: Path):
    """The file as a module."""
    spec = importlib.util.spec_from_file_location(f"bank_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def try_entry(entry: Entry, seed: int, quick: bool) -> Result:
    """Judge one file in this process. `quick`: a mistake runs only on the case that is known to kill it."""
    start = time.perf_counter()
    module = load(entry.path)
    exercise = get(entry.exercise)
    if device.TIER not in getattr(module, "TIERS", exercise.tiers):
        return Result(entry, skipped=True)
    if in_ranks.BACKEND != "gloo" and not getattr(module, "NCCL", True):
        return Result(entry, skipped=True)
    only = (module.KILLED_BY,) if entry.kind == "mistakes" and quick else entry.large if entry.cases == "large" else ()
    live = not entry.needs_machine_to_itself
    verdict = examine(exercise, getattr(module, exercise.entry), seed, live=live, only=only)
    if only and not verdict.cases:
        raise ValueError(f"{entry}: KILLED_BY names no case of this tier: {only!r}")
    diagnosis = verdict.diagnosis
    wrong = "; ".join(f"{c.name} ({c.sizes}): {c.why}" for c in verdict.cases if not c.right)[:300]
    says = " ".join(filter(None, [verdict.note, diagnosis and diagnosis.says, wrong]))
    named = diagnosis.mistake if diagnosis else None
    return Result(entry, verdict.accepted, named, says, time.perf_counter() - start)


def run(todo: list[Entry], seed: int, quick=False, workers: int = 1, limit_s: float = 120.0, task=try_entry):
    """Results in the order in which they end; at most `workers` at a time, each the outcome of one `task`."""
    if any(get(entry.exercise).kind == "distributed" for entry in todo):
        in_ranks.prepare()  # once, and not in each child
    waiting, free, running = list(reversed(todo)), [], {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                entry = waiting.pop()
                apart = free.pop() if free and goes_on(entry) else Apart()
                apart.call(_outcome, task, entry, seed, quick)
                running[apart.pipe] = (apart, entry, time.monotonic())
            for pipe in multiprocessing.connection.wait(list(running), timeout=1.0):
                apart, entry, _ = running.pop(pipe)
                returned, answer = apart.answer()
                result, well = answer if returned else (Result(entry, says=answer), False)
                if well and goes_on(entry):
                    free.append(apart)
                else:
                    apart.close()
                yield result
            for pipe, (apart, entry, since) in list(running.items()):
                if time.monotonic() - since > limit_s:
                    running.pop(pipe)
                    apart.close()
                    yield Result(entry, says=f"did not end in {limit_s:g} s", seconds=limit_s)
    finally:
        for apart in [*free, *(apart for apart, _, _ in running.values())]:
            apart.close()


def goes_on(entry: Entry) -> bool:
    """Whether a process may try this one after and before others: kernels change nothing in the process but memory."""
    return device.TIER == "gpu" and get(entry.exercise).asks_for_kernels


def _outcome(task, entry: Entry, seed: int, quick: bool) -> tuple[Result, bool]:
    """The result, and whether this process can try another one."""
    torch.set_num_threads(1)  # several of these run at once; the environment variable is read when torch is imported
    try:
        result = task(entry, seed, quick)
    except BaseException as error:
        return Result(entry, says=f"could not be judged: {type(error).__name__}: {error}"), False
    return result, _well()


def _well() -> bool:
    if torch.cuda.is_initialized():
        try:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
        except RuntimeError:  # the fault of a kernel stays with its process
            return False
    return True


def joined(results: Iterable[Result]) -> list[Result]:
    """One result a submission, where its halves were judged apart."""
    found: dict[Path, Result] = {}
    for one in results:
        if (other := found.get(one.entry.path)) is not None:
            says = " ".join(filter(None, [other.says, one.says]))
            both = {"accepted": other.accepted and one.accepted, "seconds": other.seconds + one.seconds, "says": says}
            one = replace(one, entry=replace(one.entry, cases="all"), **both)
        found[one.entry.path] = one
    return list(found.values())


def counts(results: list[Result]) -> list[dict]:
    """One row an exercise: how many were accepted, caught and named, of how many that this tier could show."""
    names = sorted({r.entry.exercise for r in results})
    return [_counted(name, [r for r in results if r.entry.exercise == name]) for name in names]


def table(results: list[Result]) -> str:
    """The counts as text, with a sum."""
    header = f"{'exercise':<24}{'right':>10}{'caught':>10}{'named':>10}{'skipped':>9}{'seconds':>9}"
    return "\n".join([header, *map(_line, [*counts(results), _counted("all", results)])])


def _counted(name: str, results: list[Result]) -> dict:
    ran = [r for r in results if not r.skipped]
    good = [r for r in ran if r.entry.kind != "mistakes"]
    bad = [r for r in ran if r.entry.kind == "mistakes"]
    return {
        "exercise": name,
        "right": sum(r.accepted for r in good),
        "of_right": len(good),
        "caught": sum(not r.accepted for r in bad),
        "named": sum(r.rightly_named for r in bad),
        "of_mistakes": len(bad),
        "skipped": len(results) - len(ran),
        "seconds": sum(r.seconds for r in results),
    }


def _line(row: dict) -> str:
    right, caught, named = (
        f"{row[part]}/{row[whole]}"
        for part, whole in (("right", "of_right"), ("caught", "of_mistakes"), ("named", "of_mistakes"))
    )
    return f"{row['exercise']:<24}{right:>10}{caught:>10}{named:>10}{row['skipped']:>9}{row['seconds']:>9.1f}"
