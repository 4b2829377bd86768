"""The towers' benchmark, on sizes of a CPU: every row it will have, and that a wrong tower gets none."""

import pytest

from benchmarks import __main__ as command
from benchmarks import recorded, tower
from benchmarks.against import Red
from course_lib.models.siglip import ours


@pytest.fixture
def once(monkeypatch):
    """Every call once, nothing compiled, and times and peaks that say nothing."""

    def measured(case):
        case.check()
        for call in (case.ours, *case.peers.values()):
            call()
        return {"name": case.name, "value": 1.0, "unit": "us", "target": case.target} | {
            f"{n} us": 1.0 for n in case.peers
        }

    def alone(one, given):
        one.forward(given), one.backward(given)()
        return {"forward": 1.0, "backward": 1.0}

    monkeypatch.setattr(tower, "measure", measured)
    monkeypatch.setattr(tower, "_alone", alone)
    monkeypatch.setattr(tower, "_peak", lambda one, given: 2.0 if one.backend else 1.0)
    monkeypatch.setattr(tower, "_compiled", lambda one, setting: one)


@pytest.mark.slow
def test_every_tower_has_its_rows_in_every_way(once):
    rows = {row["name"]: row for row in tower.run(tower.TINY)}
    size = str(tower.TINY)
    kinds = ["naive", *(f"ours, {keep}" for keep in tower.SETTINGS), "strong, math"]
    assert {f"tower {size}: {kind}, {way}" for kind in kinds for way in ("eager", "compiled")} <= rows.keys()
    claims = {
        f"tower {what} {size}, {keep}, against {rival}"
        for what in ("forward", "backward") for keep in tower.SETTINGS for rival in ("strong", "naive")
    }  # fmt: skip
    assert claims <= rows.keys()
    assert rows[f"tower peak {size}, input kept, norms again"]["of strong's"] == 0.5
    assert f"tower step {size}: ours, pre-activation kept, compiled" in rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # and by its compiler itself
def test_peaks_are_measured_of_what_is_compiled_too():
    given = tower.drawn(tower.TINY)
    for name, one in tower.candidates(tower.TINY).items():
        assert tower._runs(one, given) and tower._peak(one, given) > 0, name


def test_a_tower_that_is_wrong_gets_no_row(once, monkeypatch):
    right = ours.packed_attention
    monkeypatch.setattr(ours, "packed_attention", lambda qkv, _lengths, bias: right(qkv, None, bias))  # padding is seen
    with pytest.raises(Red, match="ours, pre-activation kept, eager is wrong"):
        tower.run(tower.TINY)


def test_the_best_of_a_kind_is_chosen_for_each_direction_by_itself():
    seen = {
        "strong, a": {"forward": 2.0, "backward": 5.0},
        "strong, b": {"forward": 3.0, "backward": 4.0},
        "ours, input kept, norms again, a": {"forward": 1.0, "backward": 1.0},
    }
    assert [tower.best(seen, "strong", what) for what in ("forward", "backward")] == ["strong, a", "strong, b"]


def test_a_peer_that_refuses_is_left_out_and_ours_that_refuses_is_not(capsys):
    given, found = tower.drawn(tower.TINY), tower.candidates(tower.TINY)

    def refuses(patches, lengths):
        raise RuntimeError("no kernel for this mask")

    found = {name: one for name, one in found.items() if name.endswith("eager")}
    some = found | {"strong, math, eager": tower.Candidate(found["strong, math, eager"].tower, refuses)}
    kept, _ = tower.right_ones(some, given)
    assert "strong, math, eager" not in kept and "no kernel for this mask" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="no kernel"):
        tower.right_ones(
            found | {"ours, input kept, norms again, eager": tower.Candidate(found["naive, eager"].tower, refuses)},
            given,
        )


def test_the_section_is_known_and_depends_on_the_towers_and_their_kernels():
    assert "tower" in command.SECTIONS
    files = {path.name for path in recorded.measured("tower")}
    assert {"naive.py", "strong.py", "ours.py", "packed.py", "mlp.py", "tower.py"} <= files
    assert all(path.is_file() for path in recorded.measured("tower"))
