"""What lessons say in words about the recorded H200. When a new record changes one: look at the sentence."""

import pytest

from course_lib import results


def recorded(section: str) -> dict[str, float]:
    rows = results.load(section, "h200")["rows"]
    return {row["name"]: row.get("us", row.get("value")) for row in rows}


def test_compiled_loses_where_compiling_is_timed_and_wins_where_it_is_not():
    lab = recorded("lesson02.lab")
    assert lab["compiled, as in the lab"] > lab["eager, as in the lab"]
    assert lab["compiled"] < lab["eager"]


def test_a_tiny_compiled_function_is_slower_for_good():
    tiny = recorded("lesson02.tiny")
    assert tiny["x + 1, compiled"] > 2 * tiny["x + 1, eager"]


def test_the_broken_tower_launches_more_when_compiled_and_gains_the_smaller_part():
    tower = recorded("lesson02.towers")
    assert tower["broken, compiled, launches"] > tower["broken, eager, launches"]
    best = tower["broken, eager, ms"] - tower["repaired, compiled, ms"]
    assert tower["broken, eager, ms"] - tower["broken, compiled, ms"] < best / 2


def test_less_memory_is_kept_in_less_time():
    kept, step = recorded("lesson02.kept"), recorded("lesson02.step")
    assert kept["compiled"] < kept["eager"]
    assert step["forward and backward, compiled"] < step["forward and backward, eager"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_gain_falls_as_the_width_grows(dtype):
    gains = [gain for name, gain in recorded("lesson02.widths").items() if name.startswith(dtype)]
    assert gains == sorted(gains, reverse=True) and len(gains) == 4


def test_a_faster_multiplier_gains_more_and_the_widest_gain_is_near_the_count():
    gain = recorded("lesson02.widths")
    assert all(gain[f"bf16, width {d}"] > gain[f"fp32, width {d}"] for d in (512, 1024, 2048, 4096))
    assert 1.05 < gain["bf16, width 4096"] < 1.2  # the count allows 1.08, which question 2.8 asks for


def test_layers_in_c_plus_plus_are_cheap_and_every_visit_to_python_costs_a_microsecond():
    cost = recorded("dispatch")
    plain = cost["torch.add(x, y)"]
    for flags in ("in no_grad", "in autocast", "inference tensors, inference mode"):
        assert abs(cost[flags] - plain) < 0.1 * plain
    for layer in ("under a function mode", "under a dispatch mode", "a kernel in Python on one key"):
        assert cost[layer] > plain + 1
    assert cost["a gradient is required"] > 1.1 * plain
    assert sorted(cost, key=cost.get)[-2:] == ["on meta", "a fake tensor"]


def test_the_wrapper_costs_what_the_answer_of_question_3_6_reckons_with():
    cost = recorded("dispatch")
    assert cost["a wrapper with __torch_dispatch__"] - cost["torch.add(x, y)"] == pytest.approx(7, abs=0.5)


def test_two_passes_take_less_time_than_one_with_atomics_in_every_case():
    took = recorded("lesson04.atomics")
    cases = {name.split(":")[0] for name in took}
    ratios = [took[f"{case}: one pass, atomics"] / took[f"{case}: two passes, mine"] for case in cases]
    assert len(cases) == 4 and all(1.2 < ratio < 1.8 for ratio in ratios)
    ratios = [row["one over two"] for row in results.load("one_pass")["rows"] if "one over two" in row]
    assert len(ratios) == 4 and all(1.2 < ratio < 1.8 for ratio in ratios)


def test_the_longest_programs_of_rope_are_not_the_fastest():
    rate = recorded("lesson06.blocks")
    assert rate["1 positions, 8 heads, 2 warps"] > 1.02 * rate["1 positions, 32 heads, 4 warps"]
