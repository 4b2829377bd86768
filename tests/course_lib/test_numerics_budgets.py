import pytest
import torch

from course_lib.numerics import Budget, error_budget, round_to, signed_ulps, ulp_statistics


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_statistics_know_a_rounding_from_a_bias():
    want = normal(100_000)
    fair = ulp_statistics(round_to(want, "bf16"), want, "bf16")
    assert fair.correct == 1 and fair.largest <= 0.5 and abs(fair.mean) < 0.01
    assert fair.rms == pytest.approx(12**-0.5, rel=0.02)
    cut = ulp_statistics(round_to(want.abs(), "bf16", "to zero"), want.abs(), "bf16")
    assert (
        cut.mean == pytest.approx(-0.5, abs=0.01) and cut.faithful == 1 and cut.correct == pytest.approx(0.5, abs=0.01)
    )
    assert ulp_statistics(want.bfloat16(), want).correct > 0.99, "units of got's own type"


def test_signed_units_keep_the_side_on_which_an_answer_is_wrong():
    want = torch.tensor([1.0, 1.0, -4.0], dtype=torch.float64)
    got = want + torch.tensor([2.0**-7, -(2.0**-8), 2.0**-5])
    assert signed_ulps(got, want, "bf16").tolist() == [1, -0.5, 1]
    with pytest.raises(ValueError, match="shapes differ"):
        signed_ulps(got[:2], want, "bf16")


def test_nothing_finite_is_nothing_wrong():
    nothing = torch.full((3,), float("nan"), dtype=torch.float64)
    assert ulp_statistics(nothing, nothing, "fp16").correct == 1


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_the_budget_of_two_roundings_explains_what_separate_kernels_lose(name):
    """h is rounded, then gelu(h): what either brings alone, and both; fused there is only the second."""
    h = normal(200_000)
    gelu = torch.nn.functional.gelu
    want = gelu(h)
    parts = {"h": gelu(round_to(h, name)), "gelu(h)": round_to(want, name)}
    got = round_to(gelu(round_to(h, name)), name)
    budget = error_budget(want, parts, got)
    assert budget.measured == pytest.approx(budget.expected, rel=0.03)
    assert budget.measured > 1.3 * budget.parts["gelu(h)"]
    text = str(budget)
    assert (
        "expected of all" in text and text.splitlines()[1].startswith("h ") and ">gelu(h)</td>" in budget._repr_html_()
    )


def test_what_no_step_explains_stands_out():
    want = normal(10_000)
    budget = error_budget(want, {"store": round_to(want, "bf16")}, round_to(want * 1.01, "bf16"))
    assert budget.measured > 4 * budget.expected
    assert Budget({}, 0.0).expected == 0 and error_budget(want, {}, want).measured == 0
