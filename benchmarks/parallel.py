"""A training step of every rung of data parallel training, and of torch's DDP, turn by turn in one run.

What is asked is how much of the communication is not hidden: the time of a step minus that of the same step without
any ("no sync"), as the difference within a round, so that whatever drifts meets both. The slowest rank counts. A step
is forward, backward and `finish`, with AdamW where the name says so. A row's times are of the first rounds, in which
every variant took part: the device slows down within a run, and rows over other rounds do not compare.

Two claims are among the rows. The exposed communication of `buckets` at its best setting is at most that of DDP at its
best setting; a `sharded` step takes at most 5 % longer than one of `buckets` with the same AdamW. The three that took
least of each kind have more rounds, which choose the best. A claim is of rounds of its own after that, so that the
choice does not favour whom it chose: no sync, ours, theirs, theirs, ours, then with the two exchanged. "ours ms" and
"theirs ms" are the means of the middle half of all rounds, the ratio is theirs, with its 95 % interval over rounds. A
claim holds when the upper end is at most the target and the interval is narrower than 3 % (of exposed communication,
which is a small difference of long steps) or 1 % (of steps).
"""

from __future__ import annotations

import time

import numpy as np
import torch

from benchmarks.against import Red
from benchmarks.parallel_steps import PLAIN, Setting, measured, without_optimizer
from course_lib.device import TIER
from course_lib.distributed import launch
from course_lib.models.transformer import Sizes, Transformer

MEASURES = (
    "benchmarks/parallel.py",
    "benchmarks/parallel_steps.py",
    "course_lib/distributed/collectives.py",
    "course_lib/models/transformer.py",
    *(f"course_lib/parallel/{name}.py" for name in ("replica", "naive", "flat", "overlap", "buckets", "sharded")),
)
TARGET, TARGET_SHARDED = 1.0, 1.05
WIDEST, WIDEST_EXPOSED = 0.01, 0.03  # an interval that a claim may have; of steps as in benchmarks/against.py

# 974 million parameters, in bf16 and in fp32: 1.9 or 3.9 GB of gradients beside 84 ms of computing on an H200
LARGE = Sizes(16000, 1024, 2048, 16, 18)
ON_GPUS = {
    "": Setting(LARGE, torch.bfloat16, 4, (5.0, 25.0, 100.0, 400.0), rounds=60, steps=2, seconds=(20, 12, 62, 7)),
    "fp32: ": Setting(LARGE, torch.float32, 4, (100.0, 400.0), 12, steps=2, seconds=(8, 0, 0, 7), whole=False),
}
ON_HOST = {"": Setting(Sizes(512, 64, 128, 4, 4), torch.float32, 4, (0.25, 1.0, 4.0), 10, 2, (20, 5, 15, 15))}


def run() -> list[dict]:
    ranks = torch.cuda.device_count() if TIER == "gpu" else 2
    if ranks < 2:
        raise Red("one GPU has nobody to send to: two are needed")
    found = []
    for kind, setting in (ON_GPUS if TIER == "gpu" else ON_HOST).items():
        start = time.perf_counter()
        told = launch(measured, ranks, args=(setting,), limit_s=240)
        model = {"model": f"{_millions(setting.sizes):.1f} million parameters, {setting.dtype}".replace("torch.", "")}
        found += [row | {"name": kind + row["name"]} | model for row in rows(told)]
        turns = min(map(len, told[0]["seconds"].values())), *(len(claim["turns"]) for claim in told[0]["claims"])
        print(f"{kind}{turns} rounds of all and of claims in {time.perf_counter() - start:.0f} s", flush=True)
    return found


def _millions(sizes: Sizes) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(sizes).parameters()) / 1e6


def rows(told: list[dict]) -> list[dict]:
    """One row a variant, from what the ranks measured."""
    names = list(told[0]["seconds"])
    seconds = {name: np.max([of_rank["seconds"][name] for of_rank in told], axis=0) for name in names}
    together = min(map(len, seconds.values()))  # finalists have more rounds, and all have those at the beginning
    seconds = {name: taken[:together] for name, taken in seconds.items()}
    bare = {name: seconds[name] - seconds[PLAIN] for name in without_optimizer(seconds)}
    claims = {}
    for of_ranks in zip(*(of_rank["claims"] for of_rank in told), strict=True):
        *before, ours, theirs = of_ranks[0]["names"]
        turns = _slowest([claim["turns"] for claim in of_ranks])
        limits = (TARGET, WIDEST_EXPOSED) if before else (TARGET_SHARDED, WIDEST)
        claims[ours] = {"against": theirs} | _claim(*turns, *limits)
    found = []
    for name in names:
        row = {"name": name, "value": _ms(seconds[name]), "unit": "ms", "ranks": len(told)}
        row |= {"turns": together, "state MiB": told[0]["state"].get(name)}
        if name in bare and name != PLAIN:
            row |= exposed(bare[name])
        found.append(row | claims.get(name, {}))
    return found


def _slowest(of_ranks: list[list]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of ours and of theirs in each round: the mean of two turns, minus the step without sync where it ran."""
    turns = list(zip(*(zip(*rounds, strict=True) for rounds in of_ranks), strict=True))  # by name, by rank, by round
    *before, ours, theirs = (np.max(of_name, axis=0).mean(axis=1) for of_name in turns)
    less = before[0] if before else 0.0
    return ours - less, theirs - less


def _claim(ours: np.ndarray, theirs: np.ndarray, target: float, widest: float) -> dict:
    draws = _draws(len(ours))
    ratios = _middle(ours[draws]) / _middle(theirs[draws])
    low, high = (float(q) for q in np.quantile(ratios, [0.025, 0.975]))
    verdict = "interval too wide" if high - low > widest else "holds" if high <= target else "missed"
    taken = {"rounds": len(ours), "ours ms": 1e3 * float(_middle(ours)), "theirs ms": 1e3 * float(_middle(theirs))}
    ratio = {"ratio": taken["ours ms"] / taken["theirs ms"], "ratio low": low, "ratio high": high}
    return taken | ratio | {"target": target, "verdict": verdict}


def _middle(samples: np.ndarray) -> np.ndarray:
    """The mean of the middle half: nearly as exact as a mean, and outliers do not count."""
    count = samples.shape[-1]
    return np.sort(samples, axis=-1)[..., count // 4 : count - count // 4].mean(axis=-1)


def _ms(samples: np.ndarray) -> float:
    return float(np.median(samples)) * 1e3


def exposed(seconds: np.ndarray) -> dict:
    """The median of what a step takes more than without sending, and its 95 % interval over rounds."""
    low, high = np.quantile(np.median(seconds[_draws(len(seconds))], axis=1), [0.025, 0.975])
    return {"exposed ms": _ms(seconds), "low": float(low) * 1e3, "high": float(high) * 1e3}


def _draws(rounds: int) -> np.ndarray:
    """Whole rounds, drawn again and again: what moved everything in a round moves both sides."""
    return np.random.default_rng(0).integers(rounds, size=(2000, rounds))
