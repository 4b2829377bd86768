"""A round lays its calls out where nobody can have been before, and looks at every element afterwards."""

import gc
import weakref

import pytest
import torch

from autograder import exercise
from autograder.referee.agreement import agree, count_far
from autograder.referee.rounds import ALIGNED, Round

AXPY, SOFTMAX = exercise.get("start.axpy"), exercise.get("roofline.softmax")
STRIDED = next(case for case in SOFTMAX.cases if case.name == "strided rows")
LONG = next(case for case in AXPY.cases if case.name == "a partial last block")


@pytest.fixture
def make():
    made = []

    def round_of(subject, case, calls):
        made.append(Round(subject, case, 1, calls, "cpu", "interpreter"))
        return made[-1]

    yield round_of
    for one in made:
        one.close()


def answer(round_):
    for args in round_.calls:
        if "y" in args:
            args["out"].copy_(args["a"] * args["x"] + args["y"])
        else:
            args["out"].copy_(torch.softmax(args["x"].double(), -1))


@pytest.mark.parametrize(("subject", "case"), [(AXPY, LONG), (SOFTMAX, STRIDED)])
def test_right_answers_are_right_and_no_tensor_lies_in_another(make, subject, case):
    round_ = make(subject, case, 5)
    assert "never written" in round_.wrong() or "error" in round_.wrong()
    answer(round_)
    assert round_.wrong() == ""
    starts = [v.data_ptr() for args in round_.calls for v in args.values() if isinstance(v, torch.Tensor)]
    assert len(set(starts)) == len(starts)
    assert all(at % ALIGNED == starts[0] % ALIGNED for at in starts)


def test_arguments_come_in_their_order_and_what_is_returned_behind_them(make):
    """A worker copies what a function returns into the last tensors of a call, one after the other."""
    tiled = exercise.get("flash.tiled")
    drawn = list(tiled.draw(tiled.cases[0], 1, "cpu", "interpreter").args)
    calls = [list(args) for _ in range(4) for args in make(tiled, tiled.cases[0], 2).calls]
    assert calls == [[*drawn, "o", "lse"]] * 8


def test_a_round_that_is_over_holds_no_memory_until_the_collector_comes():
    """Ten rounds of large calls did, until the GPU had no room for the eleventh."""
    gc.collect()
    gc.disable()
    try:
        round_ = Round(AXPY, LONG, 1, 3, "cpu", "interpreter")
        answer(round_)
        assert round_.wrong() == ""
        held = [weakref.ref(round_), *map(weakref.ref, round_._tensors.values())]
        round_.close()
        del round_
        assert [one() for one in held] == [None] * len(held)
    finally:
        gc.enable()


def test_siblings_have_the_sizes_of_the_seed_and_values_of_their_own(make):
    first, second = make(AXPY, LONG, 2).calls
    drawn = AXPY.draw(LONG, 1, "cpu", "interpreter").args
    assert first["x"].shape == second["x"].shape == drawn["x"].shape and first["a"] == drawn["a"]
    assert not torch.equal(first["x"], second["x"]) and not torch.equal(first["x"], drawn["x"])


def test_places_are_not_the_same_twice(make):
    def places():
        round_ = make(AXPY, LONG, 3)
        return [args["x"].storage_offset() for args in round_.calls]

    assert len({tuple(places()) for _ in range(8)}) > 1


def test_all_that_is_no_input_starts_as_nan(make):
    round_ = make(AXPY, LONG, 2)
    inputs, outputs = (one.bytes.view(torch.float32) for one in round_.slabs)
    assert outputs.isnan().all()
    assert int((~inputs.isnan()).sum()) == sum(args[name].numel() for args in round_.calls for name in "xy")


@pytest.mark.parametrize("spoilt", ["one element", "one call", "one call unwritten"])
def test_one_wrong_element_of_one_call_is_found_with_and_without_limits(make, spoilt):
    from autograder.judging import tolerance

    round_ = make(AXPY, LONG, 4)
    answer(round_)
    args = round_.calls[2]
    limits = tolerance.derive(AXPY, [(args, AXPY.oracle(args))])
    assert round_.wrong(limits) == ""
    if spoilt == "one element":
        args["out"][17] *= 1.01
    else:
        args["out"].fill_(float("nan") if "unwritten" in spoilt else 0.0)
    assert round_.wrong() and round_.wrong(limits)


def test_what_is_gathered_are_elements_of_every_output(make):
    round_ = make(AXPY, LONG, 3)
    round_.choose_gathered()
    before = round_.gather().view(torch.float32)
    assert before.isnan().all() and before.numel() == 3 * 16
    answer(round_)
    assert not round_.gather().view(torch.float32).isnan().any()


def test_a_plan_tells_places_and_no_values(make):
    plan = make(AXPY, LONG, 3).plan(calls=2)
    assert len(plan["plan"]) == 2
    assert all(set(part) == {"$", "slab", "dtype", "shape", "stride", "at"} for part in plan["plan"][0][1:])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_tensors_agree_until_one_element_is_too_far(device, dtype):
    want = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    rms = float(want.float().square().mean().sqrt())
    got = want.clone()
    got[2, 4999] += 0.9e-2 * (want[2, 4999].abs() + rms)
    assert agree(got, want, 1e-2) and agree(got[:, ::3], want[:, ::3], 1e-2)
    assert count_far(got, want, 1e-2, 1e-2 * rms) == 0
    for wrong in (want[2, 4999] + 2e-2 * (want[2, 4999].abs() + rms), float("nan"), float("inf")):
        got[2, 4999] = wrong
        assert not agree(got, want, 1e-2)
        assert count_far(got, want, 1e-2, 1e-2 * rms) == 1


def test_a_blank_round_holds_no_values():
    round_ = Round(AXPY, LONG, 1, 2, "cpu", "interpreter", blank=True)
    assert all(one.bytes.view(torch.float32).isnan().all() for one in round_.slabs)
    assert round_.plan() != {} and round_.calls[0]["a"] == AXPY.draw(LONG, 1, "cpu", "interpreter").args["a"]
    round_.close()
