"""What a call costs the host is measured for every public kernel."""

import pytest

from benchmarks.launch_costs import calls, measured


@pytest.mark.slow
def test_every_call_runs_and_has_a_time():
    rows = measured(rounds=1, count=1)
    assert [row["name"] for row in rows] == list(calls()) and all(row["us"] > 0 for row in rows)
    names = " ".join(row["name"] for row in rows)
    assert all(op in names for op in ("attention backward", "rope_", "add_norm backward", "linear_gelu", "mx_linear"))
