"""What the benchmarks of several ranks make of measured times, and that they time nothing that is wrong."""

import pytest
import torch

from benchmarks import collectives, parallel, parallel_steps
from benchmarks.against import Red
from course_lib.distributed import RankFailed, launch
from course_lib.models.transformer import Sizes
from course_lib.parallel import Buckets, Sharded

ROUNDS = 12
TINY = parallel_steps.Setting(Sizes(32, 8, 16, 2, 1), torch.float32, 2, (0.001, 0.01, 0.1), rounds=2, steps=1)


def told(**milliseconds) -> list[dict]:
    """Two ranks, the second one always slower by 1 ms; every round is a little slower than the one before."""
    names = [name.replace("__", ", ").replace("_", " ") for name in milliseconds]
    states = {name: 8.0 if "AdamW" in name else None for name in names}
    found = []
    for late in (0.0, 1e-3):
        seconds = {
            n: [ms * 1e-3 + late + 1e-5 * i for i in range(ROUNDS)] for n, ms in zip(names, milliseconds.values())
        }
        found.append({"seconds": seconds, "state": states})
    return found


def by_name(rows: list[dict]) -> dict[str, dict]:
    return {row["name"]: row for row in rows}


def test_exposed_is_the_difference_to_the_step_without_communication_on_the_slowest_rank():
    rows = by_name(parallel.rows(told(no_sync=50, naive=60, buckets_5=57, DDP_5=58, buckets_25=56, DDP_25__views=57)))
    assert rows["no sync"]["value"] == pytest.approx(51.055) and "exposed ms" not in rows["no sync"]
    assert rows["naive"]["exposed ms"] == pytest.approx(10) == rows["naive"]["low"] == rows["naive"]["high"]
    best = rows["buckets 25"]
    assert (best["against"], best["verdict"]) == ("DDP 25, views", "holds")
    assert best["ratio"] == pytest.approx(6 / 7)
    assert "ratio" not in rows["buckets 5"], "the claim is about the best size"


def test_rows_are_of_the_rounds_of_all_and_a_claim_is_of_all_rounds_of_its_own():
    steps = told(no_sync=50, naive=60, buckets_5=56, DDP_5=58)
    for of_rank in steps:  # the later half of the rounds is slower by 10 ms, where nothing is sent by 12
        for name, later in {"no sync": 0.062, "buckets 5": 0.066, "DDP 5": 0.068}.items():
            of_rank["seconds"][name] += [later] * 3 * ROUNDS
    rows = by_name(parallel.rows(steps))
    assert {row["turns"] for row in rows.values()} == {ROUNDS}
    assert rows["buckets 5"]["value"] == pytest.approx(57.055) and rows["buckets 5"]["exposed ms"] == pytest.approx(6)
    claim = rows["buckets 5"]
    assert (claim["rounds"], claim["ours ms"], claim["theirs ms"]) == (4 * ROUNDS, *map(pytest.approx, (4, 6)))


def test_a_claim_that_does_not_hold_is_missed():
    steps = told(no_sync=50, buckets_5=58, DDP_5=57, buckets_5__AdamW=60, sharded_5__AdamW=64, DDP_5__AdamW=61)
    rows = by_name(parallel.rows(steps))
    assert rows["buckets 5"]["verdict"] == "missed"
    assert rows["sharded 5, AdamW"]["verdict"] == "missed"
    assert rows["sharded 5, AdamW"]["against"] == "buckets 5, AdamW"
    assert rows["sharded 5, AdamW"]["state MiB"] == 8.0
    assert "exposed ms" not in rows["DDP 5, AdamW"]


def test_a_claim_with_a_wide_interval_is_none():
    steps = told(no_sync=50, buckets_5=57, DDP_default=58)
    steps[1]["seconds"]["buckets 5"] = [s + 1e-3 * (i % 2) for i, s in enumerate(steps[1]["seconds"]["buckets 5"])]
    best = by_name(parallel.rows(steps))["buckets 5"]
    assert best["ratio high"] - best["ratio low"] > 0.01 and best["ratio high"] <= parallel.TARGET
    assert (best["against"], best["verdict"]) == ("DDP default", "interval too wide")


def test_of_several_ranks_the_slowest_counts_for_a_collective():
    def of_rank(late):
        one = [
            {"operation": operation, "bytes": n, "one": 2e-5 + late, "queued": 1e-5, "in a row": 1e-5 + n / 1e9 + late}
            for operation in collectives.OPERATIONS
            for n in (4096, 1 << 20, 1 << 26)
        ]
        return one

    rows = by_name(collectives.rows([of_rank(0.0), of_rank(5e-6)], 2, "gloo"))
    assert rows["all_reduce 4 KiB"]["value"] == pytest.approx(19.096)
    assert rows["all_reduce 1 MiB"]["one us"] == pytest.approx(25)
    line = rows["all_gather, line"]
    assert line["value"] == pytest.approx(15, rel=1e-3) and line["bus GB/s"] == pytest.approx(0.5, rel=1e-3)
    assert line["crossover KiB"] == pytest.approx(15e-6 * 1e9 / 1024, rel=1e-3)


def test_collectives_are_measured_in_every_way():
    def few(rank):
        return collectives.measured(rank, (1024, 4096))

    of_ranks = launch(few, 2, "gloo")
    assert len(of_ranks[0]) == 2 * len(collectives.OPERATIONS)
    assert all(row[way] > 0 for row in of_ranks[1] for way in ("one", "queued", "in a row"))


def test_every_variant_is_right_and_timed():
    rows = by_name(parallel.rows(launch(parallel_steps.measured, 2, "gloo", args=(TINY,))))
    ddp = {"DDP default", "DDP 0.01 MiB", "DDP 0.01 MiB, views", "DDP 0.01 MiB, views, static graph"}
    assert {"naive", "flat", "overlap", "buckets 0.01 MiB", "sharded 0.01 MiB, AdamW", *ddp} <= set(rows)
    whole, half = rows["buckets 0.01 MiB, AdamW"]["state MiB"], rows["sharded 0.01 MiB, AdamW"]["state MiB"]
    assert 0.45 * whole < half < 0.6 * whole


def test_a_rung_with_wrong_gradients_is_not_timed():
    def measured(rank):
        Buckets.mean = lambda self, tensor: torch.distributed.all_reduce(tensor, async_op=True)  # a sum, no mean
        return parallel_steps.measured(rank, TINY)

    with pytest.raises(RankFailed, match=r"raised Red: overlap is wrong|raised Red: buckets .* is wrong"):
        launch(measured, 2, "gloo")
    assert issubclass(Red, AssertionError)


def test_a_sharded_step_that_leaves_weights_behind_is_not_timed():
    def measured(rank):
        step = Sharded.step

        def half(self):
            first = next(iter(self.module.parameters()))
            before = first.detach().clone()
            step(self)
            first.data.copy_(before)

        Sharded.step = half
        return parallel_steps.measured(rank, TINY)

    with pytest.raises(RankFailed, match=r"raised Red: sharded 0\.01 MiB, AdamW is wrong"):
        launch(measured, 2, "gloo")
