"""The bank: submissions whose verdict is known. `python -m autograder bank` runs them all on this machine.

    tests/bank/<exercise>/right/*.py      different right solutions: every case must be right
    tests/bank/<exercise>/mistakes.diff   edits of them: each must be caught, and called by its name
    tests/bank/<exercise>/slow.diff       edits of them that are right, but not fast
    tests/bank/<exercise>/cheats.diff     see bank/cheats.py, which `--cheats` runs

bank/edits.py says how an edit is written. An edit <mistake>__second is a second way to make that mistake.

Each submission is tried in a process of its own, forked from this one after torch is imported and before any tensor or
CUDA call, so a crash or a hang is a result and harms no neighbour. On a GPU, opening the device takes longer than most
submissions: there a process goes on with the next one that is made of kernels, until the device answers it no more.
"""

from __future__ import annotations

import importlib
import linecache
import multiprocessing.connection
import os
import time
import types
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autograder.bank.apart import Apart
from autograder.bank.edits import BadEdit, Edit, expand, read
from autograder.call import in_ranks
from autograder.call.in_process import examine
from autograder.exercise import get
from course_lib import device
from course_lib.results import ROOT

BANK = ROOT / "tests" / "bank"
KINDS = ("right", "slow", "mistakes")
WORKER_BYTES = 5 << 30  # of the GPU: 24 workers took all of 80 GB, and right answers could not be judged
TOLD = 3  # wrong cases of a submission that are told, each whole


@dataclass(frozen=True)
class Entry:
    exercise: str
    kind: str
    name: str
    where: Path | Edit  # a file, or an edit of one
    cases: str = "all"  # or "small" or "large": those that fit a notebook, or the others

    @property
    def mistake(self) -> str:
        return self.name.partition("__")[0]

    @property
    def source(self) -> str:
        return expand(self.where) if isinstance(self.where, Edit) else self.where.read_text()

    @property
    def function(self) -> Any:
        """What the exercise asks for."""
        return getattr(load(self), get(self.exercise).entry)

    @property
    def killed_by(self) -> str:
        """The case that is known to catch this mistake."""
        return self.where.caught_by if isinstance(self.where, Edit) else ""

    @property
    def killers(self) -> tuple[str, ...]:
        """That case, behind those that have to run before it: for what is kept from one call to the next."""
        before = self.where.says.get("BEFORE", ()) if isinstance(self.where, Edit) else ()
        return *before, self.killed_by

    @property
    def needs_machine_to_itself(self) -> bool:
        """Whether it must run the cases that are too large for a notebook: right ones all, mistakes their killer."""
        if self.cases != "all":
            return self.cases == "large"
        return bool(self.large) and (self.killed_by in self.large if self.killed_by else True)

    @property
    def large(self) -> tuple[str, ...]:
        cases = (case for case in get(self.exercise).cases if case.runs_here)
        return tuple(case.name for case in cases if not case.live)

    def halves(self) -> tuple[Entry, ...]:
        """What of it can be judged beside others, and what cannot; a mistake is named by all cases together."""
        if self.kind == "mistakes" or not self.needs_machine_to_itself:
            return (self,)
        return replace(self, cases="small"), replace(self, cases="large")

    def __str__(self) -> str:
        return f"{self.exercise}/{self.kind}/{self.name}"


@dataclass(frozen=True)
class Result:
    entry: Entry
    accepted: bool = False
    named: str | None = None
    says: str = ""  # what a student would have read, or how the process ended
    seconds: float = 0.0
    skipped: bool = False  # this tier cannot show it
    broken: bool = False  # not judged: the entry itself is wrong, or judging it raised an error

    @property
    def as_expected(self) -> bool:
        return self.skipped or (not self.broken and self.accepted == (self.entry.kind != "mistakes"))

    @property
    def rightly_named(self) -> bool:
        return self.named == self.entry.mistake


def entries(names: Iterable[str] = (), kinds: Iterable[str] = KINDS) -> list[Entry]:
    """The submissions of some exercises or units, or of all."""
    folders = sorted(p for p in BANK.iterdir() if p.is_dir() and among(p.name, names))
    return [entry for folder in folders for kind in kinds for entry in _of(folder, kind)]


def _of(folder: Path, kind: str) -> list[Entry]:
    files = [Entry(folder.name, kind, path.stem, path) for path in sorted((folder / kind).glob("*.py"))]
    edits = read(folder / f"{kind}.diff") if (folder / f"{kind}.diff").is_file() else {}
    return files + [Entry(folder.name, kind, *item) for item in sorted(edits.items())]


def among(exercise: str, names: Iterable[str]) -> bool:
    """Whether `names`, of exercises or units, say this exercise; no names say all."""
    wanted = set(names)
    return not wanted or not wanted.isdisjoint({exercise, exercise.partition(".")[0]})


def find(path: str) -> Entry:
    """The submission "start.axpy/mistakes/no_mask"."""
    exercise, kind, name = path.split("/")
    return next(entry for entry in entries([exercise], [kind]) if entry.name == name)


def load(entry: Entry) -> types.ModuleType:
    """The submission as a module. Its text lies where Triton and tracebacks look for the text of a module."""
    path, source = f"<{entry}>", entry.source
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    module = types.ModuleType(f"bank_{entry.name}")
    exec(compile(source, path, "exec"), module.__dict__)
    return module


def try_entry(entry: Entry, seed: int, quick: bool) -> Result:
    """Judge one submission in this process. `quick`: a mistake runs only on the case that is known to kill it."""
    start = time.perf_counter()
    exercise = get(entry.exercise)
    cases = [case.name for case in exercise.cases]
    if entry.kind == "mistakes" and entry.killed_by not in cases:
        raise BadEdit(f"{entry}: caught by {entry.killed_by!r}, but the cases are {', '.join(cases)}.")
    module = load(entry)
    if device.TIER not in getattr(module, "TIERS", exercise.tiers):
        return Result(entry, skipped=True)
    if in_ranks.BACKEND != "gloo" and not getattr(module, "NCCL", True):
        return Result(entry, skipped=True)
    only = entry.killers if entry.kind == "mistakes" and quick else entry.large if entry.cases == "large" else ()
    live = not entry.needs_machine_to_itself
    verdict = examine(exercise, getattr(module, exercise.entry), seed, live=live, only=only)
    if only and not verdict.cases:
        raise BadEdit(f"{entry}: no case of this tier is called {only[0]!r}.")
    diagnosis = verdict.diagnosis
    wrong = [f"{c.name} ({c.sizes}): {c.why}" for c in verdict.cases if not c.right]
    if len(wrong) > TOLD:
        wrong[TOLD:] = [f"and {len(wrong) - TOLD} other cases"]
    says = " ".join(filter(None, [verdict.note, diagnosis and diagnosis.says, "; ".join(wrong)]))
    named = diagnosis.mistake if diagnosis else None
    return Result(entry, verdict.accepted, named, says, time.perf_counter() - start)


def run(todo: list[Entry], seed: int, quick=False, workers: int = 1, limit_s: float = 120.0, task=try_entry):
    """Results in the order in which they end; at most `workers` at a time, each the outcome of one `task`."""
    # Once, and not in each child: torch imports its compiler at the first tensor mode, process group or compilation,
    # which takes a second.
    importlib.import_module("torch._functorch.aot_autograd")
    if any(get(entry.exercise).kind == "distributed" for entry in todo):
        in_ranks.prepare()
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


def workers_at_once() -> int:
    cores = len(os.sched_getaffinity(0))
    return min(cores, max(1, device.memory_bytes() // WORKER_BYTES)) if device.TIER == "gpu" else cores


def goes_on(entry: Entry) -> bool:
    """Whether a process may try this one after and before others: kernels change nothing in the process but memory."""
    return device.TIER == "gpu" and get(entry.exercise).asks_for_kernels


def _outcome(task, entry: Entry, seed: int, quick: bool) -> tuple[Result, bool]:
    """The result, and whether this process can try another one."""
    torch.set_num_threads(1)  # several of these run at once; the environment variable is read when torch is imported
    try:
        result = task(entry, seed, quick)
    except BadEdit as error:
        return Result(entry, says=str(error), broken=True), False
    except BaseException as error:
        return Result(entry, says=f"could not be judged: {type(error).__name__}: {error}", broken=True), False
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
    found: dict[str, Result] = {}
    for one in results:
        if (other := found.get(str(one.entry))) is not None:
            says = " ".join(filter(None, [other.says, one.says]))
            both = {"accepted": other.accepted and one.accepted, "seconds": other.seconds + one.seconds, "says": says}
            both |= {"broken": other.broken or one.broken}
            one = replace(one, entry=replace(one.entry, cases="all"), **both)
        found[str(one.entry)] = one
    return list(found.values())


def counts(results: list[Result]) -> list[dict]:
    """One row an exercise: how many were accepted, caught and named, of how many that this tier could show.

    Slow ones are right, so `right` counts them too; `slow` says how many of those they are.
    """
    names = sorted({r.entry.exercise for r in results})
    return [_counted(name, [r for r in results if r.entry.exercise == name]) for name in names]


def table(results: list[Result]) -> str:
    """The counts as text, with a sum."""
    header = f"{'exercise':<24}{'right':>10}{'slow':>8}{'caught':>10}{'named':>10}{'skipped':>9}{'seconds':>9}"
    return "\n".join([header, *map(_line, [*counts(results), _counted("all", results)])])


def _counted(name: str, results: list[Result]) -> dict:
    ran = [r for r in results if not r.skipped]
    good = [r for r in ran if r.entry.kind != "mistakes"]
    slow = [r for r in ran if r.entry.kind == "slow"]
    bad = [r for r in ran if r.entry.kind == "mistakes"]
    return {
        "exercise": name,
        "right": sum(r.accepted for r in good),
        "of_right": len(good),
        "slow": sum(r.accepted for r in slow),
        "of_slow": len(slow),
        "caught": sum(not (r.accepted or r.broken) for r in bad),
        "named": sum(r.rightly_named for r in bad),
        "of_mistakes": len(bad),
        "skipped": len(results) - len(ran),
        "seconds": sum(r.seconds for r in results),
    }


def _line(row: dict) -> str:
    right = f"{row['right'] - row['slow']}/{row['of_right'] - row['of_slow']}"
    slow, caught, named = (
        f"{row[part]}/{row[whole]}"
        for part, whole in (("slow", "of_slow"), ("caught", "of_mistakes"), ("named", "of_mistakes"))
    )
    counted = f"{right:>10}{slow:>8}{caught:>10}{named:>10}"
    return f"{row['exercise']:<24}{counted}{row['skipped']:>9}{row['seconds']:>9.1f}"
