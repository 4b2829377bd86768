"""A training step of every rung of data parallel training, and of torch's DDP, turn by turn in one run.

What is asked is how much of the communication is not hidden: the time of a step minus that of the same step without
any ("no sync"), as the difference within a round, so that whatever drifts meets both. The slowest rank counts. A step
is forward, backward and `finish`, with AdamW where the name says so. A row's times are of the rounds in which every
variant took part: the device slows down within a run, and rows over other rounds do not compare.

Two claims are among the rows. The exposed communication of `buckets` at its best size is at most that of DDP at its
best setting; a `sharded` step takes at most 5 % longer than one of `buckets` with the same AdamW. Each is a ratio of
medians with its 95 % interval over rounds, and holds when the upper end is at most the target and the interval is
narrower than 1 %. Those that claims compare go on when the other variants are done: "ours ms" and "theirs ms" are the
medians over all their "rounds".
"""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.against import Red
from benchmarks.parallel_steps import PLAIN, Setting, best, measured, without_optimizer
from course_lib.device import TIER
from course_lib.distributed import launch
from course_lib.models.transformer import Sizes

MEASURES = (
    "benchmarks/parallel.py",
    "benchmarks/parallel_steps.py",
    "course_lib/distributed/collectives.py",
    "course_lib/models/transformer.py",
    *(f"course_lib/parallel/{name}.py" for name in ("replica", "naive", "flat", "overlap", "buckets", "sharded")),
)
TARGET, TARGET_SHARDED = 1.0, 1.05
WIDEST = 0.01  # an interval that a claim may have, as in benchmarks/against.py

# 974 million parameters, in bf16 and in fp32: 1.9 or 3.9 GB of gradients beside 84 ms of computing on an H200
LARGE = Sizes(16000, 1024, 2048, 16, 18)
ON_GPUS = {
    "": Setting(LARGE, torch.bfloat16, 4, (5.0, 25.0, 100.0, 400.0), rounds=24, steps=2),
    "fp32: ": Setting(LARGE, torch.float32, 4, (100.0, 400.0), rounds=12, steps=2, seconds=30.0),
}
ON_HOST = {"": Setting(Sizes(512, 64, 128, 4, 4), torch.float32, 4, (0.25, 1.0, 4.0), rounds=10, steps=2)}


def run() -> list[dict]:
    ranks = torch.cuda.device_count() if TIER == "gpu" else 2
    if ranks < 2:
        raise Red("one GPU has nobody to send to: two are needed")
    found = []
    for kind, setting in (ON_GPUS if TIER == "gpu" else ON_HOST).items():
        start = time.perf_counter()
        told = launch(measured, ranks, args=(setting,), limit_s=240)
        found += [row | {"name": kind + row["name"]} for row in rows(told)]
        turns = sorted(map(len, told[0]["seconds"].values()))
        print(f"{kind}{turns[0]} to {turns[-1]} rounds in {time.perf_counter() - start:.0f} s, all told", flush=True)
    return found


def rows(told: list[dict]) -> list[dict]:
    """One row a variant, from what the ranks measured."""
    names = list(told[0]["seconds"])
    seconds = {name: np.max([of_rank["seconds"][name] for of_rank in told], axis=0) for name in names}
    # the variants that claims compare have more rounds, and all have those at the beginning
    together = min(map(len, seconds.values()))
    bare = {name: seconds[name] - seconds[PLAIN][: len(seconds[name])] for name in without_optimizer(seconds)}
    ours, theirs = best({name: taken for name, taken in seconds.items() if len(taken) == len(seconds[PLAIN])})
    found = []
    for name in names:
        row = {"name": name, "value": _ms(seconds[name][:together]), "unit": "ms", "ranks": len(told)}
        row |= {"turns": together, "state MiB": told[0]["state"].get(name)}
        if name in bare and name != PLAIN:
            low, high = _interval(bare[name][:together])
            row |= {"exposed ms": _ms(bare[name][:together]), "low": low * 1e3, "high": high * 1e3}
        if name == ours:
            row |= _claim(bare[ours], bare[theirs], theirs, TARGET)
        if name.startswith("sharded"):
            whole = name.replace("sharded", "buckets")
            row |= _claim(seconds[name], seconds[whole], whole, TARGET_SHARDED)
        found.append(row)
    return found


def _claim(ours: np.ndarray, theirs: np.ndarray, peer: str, target: float) -> dict:
    draws = _draws(len(ours))
    ratios = np.median(ours[draws], axis=1) / np.median(theirs[draws], axis=1)
    low, high = (float(q) for q in np.quantile(ratios, [0.025, 0.975]))
    verdict = "interval too wide" if high - low > WIDEST else "holds" if high <= target else "missed"
    taken = {"rounds": len(ours), "ours ms": _ms(ours), "theirs ms": _ms(theirs)}
    ratio = {"ratio": taken["ours ms"] / taken["theirs ms"], "ratio low": low, "ratio high": high}
    return {"against": peer} | taken | ratio | {"target": target, "verdict": verdict}


def _ms(samples: np.ndarray) -> float:
    return float(np.median(samples)) * 1e3


def _interval(samples: np.ndarray) -> tuple[float, float]:
    low, high = np.quantile(np.median(samples[_draws(len(samples))], axis=1), [0.025, 0.975])
    return float(low), float(high)


def _draws(rounds: int) -> np.ndarray:
    """Whole rounds, drawn again and again: what moved everything in a round moves both sides."""
    return np.random.default_rng(0).integers(rounds, size=(2000, rounds))
