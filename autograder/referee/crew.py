"""Exercises on several ranks: as many workers of one sandbox, each given its own shard, judged from outside.

The workers meet over the loopback of the sandbox, which reaches nothing else, and the kernel counts what passes it,
whatever the workers say. A rank that raises, ends or is late ends its crew; after one that was lost the other cases
are not tried.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from autograder.exercise import Call, Exercise
from autograder.inside.wire import WireError, decode, encode
from autograder.judging.judge import Trial, is_stub, not_tried
from autograder.judging.outcome import LOST, NOT_TRIED, Outcome
from autograder.referee.room import Lost, Room, Worker, outcome_of
from autograder.referee.submission import Cell
from autograder.referee.watchdog import children
from course_lib import device

# The process from which workers are forked has these already; the first step of any optimizer imports torch._dynamo.
IMPORTS = ("torch.distributed", "torch._dynamo", "autograder.inside.rank")
IMPORTS += ("autograder.inside.probes.reducing", "autograder.inside.probes.replicas")
GRACE_S = 0.5  # after the first trouble: what caused it may be told a moment later
CONNECTION = re.compile(r"connection (closed|reset|refused)|broken pipe|remote process", re.IGNORECASE)
FRAME = re.compile(r'^  File "<(.*)>", line (\d+) in (.*)$', re.MULTILINE)


class RankedWorkers:
    """Workers for one exercise, until one of them fails."""

    def __init__(self, room: Room, exercise: Exercise):
        self.room, self.exercise = room, exercise
        self.workers: list[Worker] = []
        self.met = 0  # so many groups were formed: each has a file of its own

    def man(self, ranks: int) -> str:
        """Have so many workers, with the submission loaded; why there is nothing to judge, or ''."""
        missing = ranks - len(self.workers)
        if missing <= 0:
            return ""
        more = [Worker(self.room) for _ in range(missing)]
        self.workers += more
        with ThreadPoolExecutor(missing) as pool:
            return next(filter(None, pool.map(lambda worker: worker.load(self.exercise.entry), more)), "")

    def attempt(self, call: Call) -> Outcome:
        shards, started = call.args["shards"], time.perf_counter()
        common = {name: value for name, value in call.args.items() if name != "shards"}
        self.met += 1
        order = {"ranks": len(shards), "probe": self.exercise.probe, "limit_s": self.room.patience.call_s}
        order |= {"store": f"/tmp/meeting{self.met}", "common": encode(common, tensors=True)}
        before = passed(self.room)
        with ThreadPoolExecutor(len(shards)) as pool:
            asked = [
                pool.submit(_ask, worker, order | {"rank": rank, "shard": encode(shard, tensors=True)})
                for rank, (worker, shard) in enumerate(zip(self.workers, shards, strict=False))
            ]
            _until_done_or_failed(asked)
            failed = any(map(_failed, asked))
            if failed:
                wait(asked, GRACE_S)
                causes = [one.result() if one.done() else None for one in asked]
                self.end()  # the others are in a collective, and would be until their time is over
        seconds = time.perf_counter() - started
        if failed:
            return Outcome(error=self._told(causes), seconds=seconds)
        after = passed(self.room)
        if before is None or after is None:
            return Outcome(error=f"{LOST}: the sandbox ended", seconds=seconds)
        try:
            reports = [_in_shape(decode(one.result()["rank"], tensors=True)) for one in asked]
        except Exception as error:  # whatever a rank gave for data
            return Outcome(error=f"{type(error).__name__}: {error}"[:600], seconds=seconds)
        for report in reports:
            report["traffic"]["passed"] = after - before
        return Outcome(outputs={"ranks": reports}, seconds=seconds)

    def end(self) -> None:
        """End all workers; the next case finds the sandbox empty."""
        self.room.sweep()
        for worker in self.workers:
            worker.channel.end.close()
            worker._reader.join(5.0)
        self.gone, self.workers = self.workers, []

    def _told(self, causes: Sequence[dict | None]) -> str:
        """Whose fault it was: a process that ended, then an exception, then a lost connection; or all were late."""
        ranks = len(causes)
        worst = min((r for r, cause in enumerate(causes) if cause is not None), key=lambda r: _blame(causes[r]))
        if "error" in causes[worst]:
            where = causes[worst].get("where")
            return f"{causes[worst]['error'][:400]} (rank {worst} of {ranks}{f', at {where}' if where else ''})"
        said = [f"rank {worst} of {ranks}: {causes[worst]['lost']}"]
        for rank in range(ranks):
            if where := stood(self.gone[rank].printed.text, self.room.submission.cells):
                said.append(f"rank {rank} was {where}")
        return f"{LOST}: " + "\n".join(said)[:600]


def _failed(one: Future) -> bool:
    return one.done() and "rank" not in one.result()


def _until_done_or_failed(asked: Sequence[Future]) -> None:
    left = set(asked)
    while left and not any(map(_failed, asked)):
        _, left = wait(left, return_when=FIRST_COMPLETED)


def _ask(worker: Worker, order: dict) -> dict[str, Any]:
    """What a rank says: "rank", or "error", or that it was "lost"."""
    try:
        report = worker.ask(order, (), worker.room.patience.call_s)
    except Lost:
        return {"lost": worker.lost}
    told = outcome_of(report)
    if told.error is None:
        return {"rank": report.get("rank")}
    return {"error": told.error, "where": told.where}


def _blame(cause: dict) -> int:
    if "error" in cause:
        return 2 if CONNECTION.search(cause["error"]) else 1
    return 3 if "did not end" in cause["lost"] else 0


def _in_shape(report: Any) -> dict[str, Any]:
    """A report as the watch makes it, whatever came: the traffic that a rank tells is information, and may be junk."""
    if not isinstance(report, dict) or not isinstance(report.get("traffic"), dict) or "value" not in report:
        raise WireError("a rank reported something else")
    traffic = report["traffic"]
    sent, begun, notes = traffic.get("sent"), traffic.get("collectives"), traffic.get("notes")
    right = isinstance(sent, dict) and all(_numbers(one, 2) for one in sent.values())
    right = right and isinstance(notes, list) and all(isinstance(note, str) for note in notes)
    right = right and isinstance(begun, list) and all(_collective(one) for one in begun)
    if not right:
        raise WireError("a rank reported its traffic in no shape")
    return {"value": report["value"], "traffic": {"sent": sent, "collectives": begun, "notes": notes}}


def _numbers(value: Any, count: int) -> bool:
    return isinstance(value, list) and len(value) == count and all(type(one) is int for one in value)


def _collective(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and type(value[1]) is int


def stood(printed: str, cells: Sequence[Cell]) -> str:
    """Where a late rank was in the submission, from the last stack that it wrote: "at line 3 in f: dist.send(x, 1)"."""
    sources = {cell.name: cell.source.splitlines() for cell in cells}
    for name, line, function in FRAME.findall(printed[printed.rfind("most recent call first") :]):
        if name in sources and 0 < int(line) <= len(sources[name]):
            return f"at line {line} in {function}: {sources[name][int(line) - 1].strip()[:120]}"
    return ""


def passed(room: Room) -> int | None:
    """Bytes that passed the loopback of the sandbox since it began: the kernel counts, out of the workers' reach.

    None of a sandbox that has ended.
    """
    for pid in children(room.process.pid):
        try:
            with open(f"/proc/{pid}/net/dev") as table:
                rows = [line.split(":") for line in table if line.strip().startswith("lo:")]
        except OSError:
            continue
        if rows:
            return int(rows[0][1].split()[0])
    return None


def tried(room: Room, exercise: Exercise, seed: int) -> tuple[str, list[Trial]]:
    """(why there is nothing to judge or '', every case of this tier)."""
    crew, trials, lost = RankedWorkers(room, exercise), [], ""
    cases = [case for case in exercise.cases if case.runs_here]
    try:
        for case in cases:
            call = exercise.draw(case, seed, "cpu", device.TIER)
            if lost:
                trials.append(
                    (case, call, Outcome(error=f"{NOT_TRIED}: after \u201c{lost}\u201d, which did not end well."))
                )
                continue
            why_not = crew.man(len(call.args["shards"]))
            if why_not:
                return why_not, []
            trials.append((case, call, crew.attempt(call)))
            if is_stub(trials):
                return "", [*trials, *map(not_tried, cases[1:])]
            lost = case.name if trials[-1][-1].lost else ""
    finally:
        crew.end()
    return "", trials
