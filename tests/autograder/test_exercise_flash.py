"""Unit 04: what a diagnosis says about places, how close an answer must be, and that the course's own kernels pass."""

import math
from dataclasses import replace

import pytest
import torch

from autograder import bank
from autograder.bank import formulas, orders
from autograder.call.in_process import examine
from autograder.exercise import get
from autograder.exercises.flash.places import wrong_rows
from course_lib.kernels.attention.backward import backward
from course_lib.kernels.attention.forward import forward
from tests.defined import defined

NAMES = ("flash.merge", "flash.tiled", "flash.forward", "flash.backward", "flash.speed")


def wrong_in(rows, batch=2, heads=4, n=78, columns=slice(None)):
    """A map of wrong elements: `rows` of every head."""
    wrong = torch.zeros(batch, heads, n, 16, dtype=torch.bool)
    wrong[:, :, rows, columns] = True
    return wrong


def args(n_q=78, n_k=78, causal=False):
    return {"q": torch.empty(2, 4, n_q, 16), "k": torch.empty(2, 4, n_k, 16), "causal": causal}


# ------------------------------------------------------------------------------------------- where it is wrong


def test_a_partial_last_tile_is_called_by_its_rows_and_the_tiles_that_end_there():
    said = wrong_rows("out", wrong_in(slice(64, 78)), args())
    assert "queries 64 to 77 of 0 to 77" in said and "the last tile when it has 16, 32 or 64 rows" in said


def test_rows_of_dk_are_keys():
    assert "keys 64 to 77" in wrong_rows("dk", wrong_in(slice(64, 78)), args())


def test_queries_that_see_no_key_are_called_so():
    assert "those that see no key" in wrong_rows("out", wrong_in(slice(0, 30)), args(n_k=48, causal=True))


def test_one_head_one_sequence_and_some_columns_are_named():
    wrong = torch.zeros(2, 4, 78, 16, dtype=torch.bool)
    wrong[1, 3, :, 8:] = True
    said = wrong_rows("out", wrong, args())
    assert "only in sequence 1" in said and "only in head 3" in said and "columns 8 to 15" in said


def test_all_rows_need_no_places():
    assert wrong_rows("lse", torch.ones(2, 4, 78, dtype=torch.bool), args()) == "wrong in 624 of 624 rows"


# ------------------------------------------------------------------------------------------- what is right


def flash_forward(q, k, v, out, lse, causal, scale, k_lengths):
    if scale < 0:  # as the public function does
        q, scale = -q, -scale
    o, l = forward(q, k, v, causal, scale, k_lengths)
    out.copy_(o)
    lse.copy_(l)


def flash_backward(q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths):
    flip = -1.0 if scale < 0 else 1.0
    made = backward(dout, flip * q, k, v, out, lse, causal, flip * scale, k_lengths)
    for mine, theirs, sign in zip((dq, dk, dv), made, (flip, 1.0, 1.0), strict=True):
        mine.copy_(sign * theirs)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "function"), [("flash.forward", flash_forward), ("flash.backward", flash_backward)])
def test_the_kernels_of_the_library_are_right(name, function):
    verdict = examine(get(name), function, seed=31, live=True)
    assert verdict.cases  # torch computes in the lines above, so no points are asked for
    assert not [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]


@pytest.mark.slow
def test_the_step_that_speed_is_compared_with_is_right():
    exercise = get("flash.speed")
    verdict = examine(exercise, exercise.speed.kernel(), seed=32, live=True)
    assert verdict.accepted, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]


def test_a_gradient_of_a_row_with_one_key_is_not_asked_for_alone():
    """dq of a softmax over one key is 0, and no rounding of an honest answer is small beside 0."""
    for name in ("flash.backward", "flash.speed"):
        exercise = get(name)
        for case in exercise.cases:
            if "interpreter" in case.tiers:
                drawn = exercise.draw(case, 5, "cpu", "interpreter").args
                assert drawn["k"].shape[2] > 1, case.name


def test_the_wrong_mask_that_the_lesson_hands_in_is_named():
    cell = defined("04_flash/flash.py", "tiled_forward", "a_key_too_few", torch=torch)
    verdict = examine(get("flash.tiled"), cell["a_key_too_few"], seed=34, live=True)
    assert verdict.diagnosis.mistake == "causal_off_by_one"
    assert any(case.right for case in verdict.cases)


# ------------------------------------------------------------------------------------------- merge


@pytest.mark.parametrize("name", ["all_keys_of_a_few_queries", "all_keys_put_together"])
def test_keys_that_are_stacked_or_put_together_are_keys(name):
    one = get("flash.tiled")
    verdict = examine(one, bank.find(f"flash.tiled/cheats/{name}").function, seed=5, only=one.point[:1])
    assert "keys or values, take `block` at a time" in verdict.cases[0].why


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"m": 0.0, "l": 1.0, "o": [1.0, 2.0]}, None),
        ({"m": 0.0, "l": 1.0, "o": (1.0, 2.0)}, None),
        ({"m": 0.0, "l": 1.0, "o": [1.0, 2.0, 1.0]}, "one number a column"),
        ({"m": 0.0, "l": math.nan, "o": [1.0, 2.0]}, "l is NaN"),
        ({"m": 0.0, "l": 1.0 + 1e-6, "o": [1.0, 2.0]}, "l is wrong"),
        ((0.0, 1.0, [1.0, 2.0]), "a dict"),
        (None, "a dict"),
    ],
)
def test_a_merged_state_is_compared_entry_by_entry(state, says):
    part = {"m": 0.0, "l": 1.0, "o": [1.0, 2.0]}
    why = get("flash.merge").accept(state, part, {"a": part, "b": part})
    assert (why is None) if says is None else (says in why)


@pytest.mark.parametrize(("name", "seed"), [("flash.speed", 18), ("flash.backward", 71111)])
def test_rows_of_dq_that_are_rounding_refuse_no_order_of_sums(name, seed):
    """They were held against limits from one order: 3 of 80 draws of one refused another, and 1 of 200 of the other."""
    one = replace(get(name), alike=name != "flash.speed", mistakes=())
    ((_, answer),) = orders.honest(one, seed)
    right = formulas.under(one, seed, "interpreter").right(answer)
    assert [case for case, fine in right.items() if not fine] == []


@pytest.mark.parametrize("name", ["flash.forward", "flash.backward", "flash.speed"])
def test_no_case_has_what_the_assembler_breaks_on_hopper(name):
    """Keys by columns and values by rows, in tiles of 32 columns: nearly every usual tile of a right kernel is lost."""
    one = get(name)
    for case in one.cases:
        if "gpu" in case.tiers and not case.share:
            v = one.draw(case, 3, "cpu", "gpu").args
            broken = 16 < v["k"].shape[-1] <= 32 and v["k"].stride(2) == 1 and v["v"].stride(3) == 1
            assert not broken, case.name
