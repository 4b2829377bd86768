"""capstone.speed: its truth is autograd's, the clock's block answers as the entry does; the floor."""

import inspect
from dataclasses import replace

import pytest
import torch

from autograder.call.in_process import examine
from autograder.exercise import Draw, get
from autograder.exercises.capstone.block import EPS, NAMES, PARAMETERS, passes
from autograder.judging import tolerance
from autograder.referee import clock
from autograder.referee.rounds import Round
from benchmarks.speed_sizes import OnPaper, ceilings_of
from course_lib.cards import CARDS
from course_lib.models.vision import Sizes
from course_lib.numerics import error

SPEED = get("capstone.speed")
LIVE = [case for case in SPEED.cases if "interpreter" in case.tiers]
# As a student's copy is timed, in the sizes of a case that a CPU takes
SMALL = replace(SPEED, speed=replace(SPEED.speed, cases=LIVE[:1]))


@pytest.mark.parametrize("case", LIVE, ids=lambda case: case.name)
def test_the_truth_is_what_autograd_makes_of_the_strong_block(case):
    args = SPEED.draw(case, 3, "cpu", "interpreter").args
    exact = {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in args.items()}
    made = exact | {name: torch.empty_like(exact[name]) for name in NAMES}
    SPEED.speed.kernel()(*made.values())
    for name, want in passes(args).items():
        assert ((made[name] - want).norm() / want.norm()).item() < 1e-11, name


def test_images_are_computed_some_at_a_time_and_nothing_changes(monkeypatch):
    args = SPEED.draw(LIVE[1], 3, "cpu", "interpreter").args
    want = passes(args)
    monkeypatch.setattr("autograder.exercises.capstone.block.ROWS", 2 * args["x"].shape[1])
    for name, made in passes(args).items():
        torch.testing.assert_close(made, want[name], rtol=1e-12, atol=1e-12)


def test_the_block_that_speed_is_compared_with_is_right_and_launches_no_kernel():
    verdict = examine(SPEED, SPEED.speed.kernel(), seed=32, live=True)
    assert [f"{case.name}: {case.why}" for case in verdict.cases if not case.right] == []
    assert verdict.points == 0 and "No Triton kernel" in verdict.note


def test_it_takes_the_arguments_of_the_entry_in_their_order():
    drawn = list(SPEED.draw(LIVE[0], 3, "cpu", "interpreter").args)
    assert drawn == list(inspect.signature(SPEED.speed.kernel()).parameters)
    assert drawn[-len(NAMES) :] == list(NAMES) and drawn[3:15] == list(PARAMETERS)


def test_a_round_of_the_clock_is_answered_by_it_and_one_wrong_gradient_is_found():
    """As the clock lays it out: every call in slabs that hold NaN elsewhere, outputs read where they lie."""
    from autograder.judging import tolerance

    round_ = Round(SMALL, LIVE[1], 1, 3, "cpu", "interpreter")
    try:
        for args in round_.calls:
            SPEED.speed.kernel()(*args.values())
        limits = tolerance.derive(SMALL, [(args, SMALL.oracle(args)) for args in round_.calls])
        round_.choose_gathered()
        assert round_.wrong(limits) == "" and not round_.gather().view(torch.float32).isnan().any()
        round_.calls[1]["d_down_b"].mul_(1.01)
        assert "`d_down_b`" in round_.wrong(limits)
    finally:
        round_.close()


@pytest.mark.parametrize(("name", "images", "calls"), [("small", 64, range(6, 15)), ("large", 256, range(1, 5))])
def test_the_floor_counts_three_times_the_products_forward(name, images, calls):
    case = next(one for one in SPEED.speed.cases if one.name == f"a {name} batch")
    call = case.draw(OnPaper(1, "meta", "gpu"))
    ceilings = ceilings_of(CARDS["H100"])
    sizes = Sizes.so400m(layers=1)
    (n, d), rows = (sizes.patches, sizes.width), images * sizes.patches
    scores = 2 * 2 * rows * n * d
    operations = 3 * (2 * rows * (4 * d * d + 2 * d * sizes.mlp) + scores)
    floor_s = SPEED.speed.floor_s(call.args, ceilings)
    assert floor_s == pytest.approx(operations / ceilings.products_per_s("bf16"))
    assert clock.calls_in_a_round(floor_s, clock.bytes_of_a_call(SPEED, call), 80 << 30) in calls
    assert 0.008 < 3 * scores / 4 / operations < 0.012, "of all, what lengths from 128 to 256 leave out"


def test_timed_lengths_are_those_that_the_lesson_tells():
    lengths = SPEED.speed.cases[0].draw(Draw(1, "cpu", "interpreter", values=2, share=1 / 8)).args["lengths"]
    assert lengths.dtype == torch.int32 and len(lengths) == 8 and 128 <= lengths.min() and lengths.max() <= 256


def test_torchs_own_norm_is_far_within_the_limits_of_every_draw_in_16_bits():
    """Six right answers of the bank were refused in one of 100 draws: on a CPU it adds up their rows in 16 bits."""
    one = replace(SPEED, alike=False)
    cases = [case for case in LIVE if "fp16" in case.name]
    norms = {"n1_w": _by_torch("x", "dn1"), "n2_w": _by_torch("h", "dn2")}
    for seed in range(71008, 71016):
        groups = [[(args, passes(args))] for args in (one.draw(c, seed, "cpu", "interpreter").args for c in cases)]
        limits = tolerance.derive_from_groups(one, groups)
        for ((args, want),) in groups:
            made = passes(args, torch.float32, rounded=lambda t: t.half().float(), of=norms)
            for name in ("d_n1_w", "d_n2_w"):
                found, limit = error(made[name].half(), want[name]), limits[name, torch.float16]
                assert all(getattr(found, m) < 0.9 * limit[m].limit for m in limit), (seed, name)


def test_no_hidden_units_gradient_is_made_of_rounding_where_x_is_small():
    """In one of 20 draws the smallest was 3e-5 of the usual one, and an honest tanh moved it by a hundredth."""
    case = next(case for case in LIVE if case.name == "a small x")
    for seed in range(72000, 72040):
        units = passes(SPEED.draw(case, seed, "cpu", "interpreter").args)["d_up_w"].norm(dim=1)
        assert units.min() > 0.02 * units.square().mean().sqrt()


def _by_torch(of: str, gradient: str):
    """The gradient of a norm's weight, from all values as rows."""

    def sums(rows):
        x, dn = rows[of].half(), rows[gradient].half()
        _, mean, rstd = torch.native_layer_norm(x, x.shape[1:], None, None, EPS)
        ones = torch.ones_like(x[0])
        needed = [False, True, True]
        return torch.ops.aten.native_layer_norm_backward(dn, x, x.shape[1:], mean, rstd, ones, ones, needed)[1].float()

    return sums
