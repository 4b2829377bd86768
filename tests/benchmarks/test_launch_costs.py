import pytest
import torch

from benchmarks import launch_costs
from benchmarks.launch_costs import calls, compared, measured, steps


@pytest.mark.slow
def test_every_call_runs_and_has_a_time():
    rows = measured(rounds=1, count=1)
    assert [row["name"] for row in rows] == list(calls()) and all(row["us"] > 0 for row in rows)
    assert all(row["with new addresses"] == 0 for row in rows) or launch_costs.DEVICE == "cuda"
    names = " ".join(row["name"] for row in rows)
    assert all(op in names for op in ("attention backward", "rope_", "add_norm backward", "linear_gelu", "mx_linear"))


def test_steps_of_ours_are_held_against_peers_and_are_right(monkeypatch):
    small = {"ATTENTION": ((1, 2, 20, 16),), "ROWS": 5, "WIDTH": 24, "HIDDEN": 40}
    for name, value in small.items():
        monkeypatch.setattr(launch_costs, name, value)
    for name, ways in steps().items():
        for way in ways:
            assert all(x.grad_fn is None for x in way.step()), "a graph that is captured must find no earlier step"
        row = compared(name, ways, rounds=1)
        assert row["same bits"] and row["differs by"] < 1e-5 and row["of the fastest peer"] > 0
        assert row["in one thread, ours us"] > 0 and "in one thread, ours as written us" not in row
    wrong = launch_costs.Way("peer", lambda: (torch.full((3,), 2.0),))
    right = launch_costs.Way("ours", lambda: (torch.ones(3),))
    with pytest.raises(AssertionError, match="differ"):
        compared("a", [right, right, wrong])
