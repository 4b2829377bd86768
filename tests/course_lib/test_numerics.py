from math import inf, isnan, nan

import numpy as np
import pytest
import torch

from course_lib import numerics
from course_lib.numerics import Error, error, round_to, ulp, ulps

EXACT = Error(rms=0, worst_row=0, worst=0, worst_index=(0, 0), ulps=0, unwritten=0, elements=12)
HALF_TYPES = [torch.float16, torch.bfloat16]


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF_TYPES])
def test_an_exact_answer_has_no_error_in_any_dtype(dtype):
    want = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    assert error(want.to(dtype), want) == EXACT


def test_rms_is_the_relative_norm_of_the_difference():
    want = normal(5, 7)
    found = error(want * 1.01, want)
    assert found.rms == pytest.approx(0.01)
    assert found.worst_row == pytest.approx(0.01)
    assert found.worst < 0.01


def test_one_wrong_row_hides_in_rms_and_shows_in_worst_row():
    want = normal(1000, 16)
    got = want.clone()
    got[123] = 0
    found = error(got, want)
    assert found.rms < 0.05
    assert found.worst_row == pytest.approx(1)
    assert found.worst_index[0] == 123


def test_worst_index_points_at_the_wrong_element_of_any_shape():
    want = normal(3, 4, 5, 6)
    got = want.clone()
    got[2, 0, 4, 1] += 100
    assert error(got, want).worst_index == (2, 0, 4, 1)
    assert error(got.flatten(), want.flatten()).worst_index == (2 * 120 + 0 * 30 + 4 * 6 + 1,)


def test_worst_weighs_an_element_by_its_own_size_and_the_typical_size():
    want = torch.tensor([3.0, 4.0], dtype=torch.float64)
    typical = (25 / 2) ** 0.5
    assert error(want + torch.tensor([0.0, 1.0]), want).worst == pytest.approx(1 / (4 + typical))


def test_infinities_do_not_change_what_is_a_typical_size():
    want = torch.tensor([2.0, inf, inf, inf], dtype=torch.float64)
    assert error(want + torch.tensor([1.0, 0, 0, 0]), want).worst == 1 / (2 + 2)


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 4)])
def test_an_empty_answer_has_no_error(shape):
    assert error(torch.empty(shape), torch.empty(shape, dtype=torch.float64)) == Error(0, 0, 0, (), 0, 0, 0)


def test_rows_of_one_number_are_one_row_together():
    """The second is what a sum leaves that nearly cancels: 1e-3, with the rounding of numbers around 1."""
    want = torch.tensor([[1.0], [1e-3], [-1.0]], dtype=torch.float64)
    found = error(want + 1e-7, want)
    assert found.worst_row == found.rms == pytest.approx(1e-7 * (3 / 2) ** 0.5, rel=1e-3)
    assert found.worst == pytest.approx(1e-7 / (1e-3 + (2 / 3) ** 0.5), rel=1e-3)
    found = error((want + torch.tensor([[0.0], [0.5], [0.0]])), want)
    assert found.worst > 0.5, "one wrong number among them still shows"


def test_a_single_number_is_one_row():
    found = error(torch.tensor(1.5), torch.tensor(1.0, dtype=torch.float64))
    assert (found.rms, found.worst_row, found.worst, found.worst_index) == (0.5, 0.5, 0.25, ())
    assert found.elements == 1


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        error(torch.zeros(3, 1), torch.zeros(3, 4, dtype=torch.float64))


def test_infinities_of_the_same_sign_are_equal():
    want = torch.tensor([[inf, -inf, 1.0, 2.0]], dtype=torch.float64)
    assert error(want.float(), want).rms == 0
    assert error(want.float(), want).ulps == 0


@pytest.mark.parametrize("wrong", [-inf, 7.0, nan])
def test_anything_else_at_an_infinity_is_an_infinite_error(wrong):
    want = torch.tensor([[1.0, inf], [1.0, 1.0]], dtype=torch.float64)
    got = want.clone()
    got[0, 1] = wrong
    found = error(got, want)
    assert found.rms == found.worst_row == found.worst == found.ulps == inf
    assert found.worst_index == (0, 1)
    assert found.unwritten == isnan(wrong)


def test_an_overflow_is_an_infinite_error():
    assert error(torch.tensor([inf, 1.0]), torch.tensor([1.0, 1.0], dtype=torch.float64)).rms == inf


def test_nan_that_is_wanted_is_right_and_not_unwritten():
    want = torch.tensor([1.0, nan, 3.0], dtype=torch.float64)
    found = error(want.half(), want)
    assert (found.rms, found.worst, found.ulps, found.unwritten) == (0, 0, 0, 0)


def test_a_number_where_nan_is_wanted_is_wrong_but_written():
    found = error(torch.tensor([1.0, 2.0]), torch.tensor([1.0, nan], dtype=torch.float64))
    assert found.rms == found.worst == inf
    assert found.unwritten == 0


def test_unwritten_elements_are_counted_and_infinitely_wrong():
    want = normal(4, 4)
    got = want.clone()
    got[1, 2:] = nan
    found = error(got, want)
    assert found.unwritten == 2
    assert found.rms == found.worst_row == found.worst == found.ulps == inf
    assert found.worst_index == (1, 2)


def test_strided_tensors_are_compared_element_by_element():
    want = normal(6, 10)
    wide = torch.full((6, 20), nan)
    wide[:, ::2] = want.float()
    assert error(wide[:, ::2], want).rms < 1e-7
    assert error(want.T.float(), want.T).rms < 1e-7
    assert error(want.T.clone(), want.T).worst == 0
    assert error(want[:1].expand(6, 10).float(), want[:1].expand(6, 10)).rms < 1e-7


def test_a_row_of_zeros_wants_zeros_but_forgives_the_rounding_of_its_neighbours():
    want = normal(100, 16)
    want[5] = 0
    got = want.clone()
    got[5] = 1e-9
    assert error(got, want).worst_row == pytest.approx(1e-7, rel=0.2)
    got[5] = 1
    assert error(got, want).worst_row > 10


def test_only_zeros_wanted_makes_any_difference_infinite():
    want = torch.zeros(3, 4, dtype=torch.float64)
    assert error(want.float(), want) == EXACT
    assert error(want + 1e-30, want).rms == inf


def test_norms_survive_numbers_whose_squares_overflow_or_vanish():
    for size in (1e-300, 1e300):
        found = error(torch.tensor([1.5, 2.0]).double() * size, torch.tensor([1.0, 2.0]).double() * size)
        assert found.rms == pytest.approx(0.5 / 5**0.5)


def test_gradients_are_not_tracked():
    got = torch.ones(3, requires_grad=True)
    assert error(got * 2, torch.full((3,), 2.0, dtype=torch.float64)).rms == 0


@pytest.mark.gpu
def test_answers_on_the_gpu_are_compared_there_or_here():
    want = normal(33, 65)
    here = error(want.to(torch.bfloat16), want)
    assert error(want.to("cuda", torch.bfloat16), want) == here
    there = error(want.to("cuda", torch.bfloat16), want.cuda())
    assert there.worst_index == here.worst_index
    assert there.rms == pytest.approx(here.rms)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF_TYPES])
def test_ulp_at_one_is_the_machine_epsilon(dtype):
    assert ulp(1.0, dtype) == torch.finfo(dtype).eps
    assert ulp(-1.99, dtype) == torch.finfo(dtype).eps
    assert ulp(0.99, dtype) == torch.finfo(dtype).eps / 2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALF_TYPES])
def test_ulp_near_zero_is_the_smallest_subnormal(dtype):
    smallest = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    assert ulp(0.0, dtype) == smallest
    assert ulp(torch.finfo(dtype).smallest_normal, dtype) == smallest
    assert ulp(2 * torch.finfo(dtype).smallest_normal, dtype) == 2 * smallest


def test_ulp_agrees_with_numpys_spacing():
    x = torch.cat([normal(1000) * 10.0**k for k in range(-8, 4)])
    for dtype, numpy_type in ((torch.float16, np.float16), (torch.float32, np.float32)):
        stored = x.to(dtype)
        # numpy measures towards the next larger number, which is the same spacing for positive ones
        expected = np.spacing(stored.abs().numpy().astype(numpy_type)).astype(np.float64)
        found = ulp(stored, dtype).numpy()
        finite = np.isfinite(expected) & np.isfinite(found)
        assert finite.sum() > 10_000
        assert (found == expected)[finite].all()


def test_ulp_is_nan_where_there_is_no_number():
    assert isnan(ulp(inf, torch.float16)) and isnan(ulp(nan, torch.float16))


def test_ulps_are_steps_of_the_output_dtype():
    want = torch.tensor([1.0, 1.0, 1024.0], dtype=torch.float64)
    got = torch.tensor([1.0, 1 + 3 * 2**-10, 1025.0])
    assert ulps(got.half(), want).tolist() == [0, 3, 1]
    assert ulps(got.bfloat16(), want).tolist() == [0, 0, 0]
    assert error(got.half(), want).ulps == 3


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_a_correctly_rounded_answer_is_within_half_an_ulp(dtype):
    want = torch.cat([normal(1000) * 10.0**k for k in range(-8, 4)])
    assert 0.45 < error(round_to(want, dtype).to(dtype), want).ulps <= 0.5


def test_integers_are_one_ulp_apart():
    assert error(torch.tensor([3, -5], dtype=torch.int8), torch.tensor([3.0, -7.0]).double()).ulps == 2


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_every_half_number_is_left_alone_and_every_midpoint_goes_to_even(dtype):
    bits = torch.arange(0, 0x7F80 if dtype == torch.bfloat16 else 0x7C00, dtype=torch.int32).to(torch.int16)
    exact = bits.view(dtype).double()
    assert torch.equal(round_to(exact, dtype), exact)
    middle = ((exact[1:] + exact[:-1]) / 2).float()
    for x in (middle, middle.nextafter(torch.tensor(inf)), middle.nextafter(torch.tensor(0.0)), -middle):
        assert torch.equal(round_to(x, dtype), x.to(dtype).float())
        assert torch.equal(round_to(x.double(), dtype).float(), x.to(dtype).float())


@pytest.mark.parametrize("dtype", HALF_TYPES)
def test_overflow_rounds_to_infinity_from_half_a_step_above_the_largest(dtype):
    largest = torch.finfo(dtype).max
    edge = largest + ulp(largest, dtype) / 2
    assert round_to(edge, dtype) == inf
    assert round_to(-edge, dtype) == -inf
    assert round_to(np.nextafter(edge, 0), dtype) == largest


@pytest.mark.parametrize("name", ["fp16", "bf16", "tf32", "fp32"])
def test_nan_infinity_and_signed_zero_pass_through(name):
    found = round_to(torch.tensor([nan, inf, -inf, 0.0, -0.0, -1e-60], dtype=torch.float64), name)
    assert found[0].isnan()
    assert found[1:3].tolist() == [inf, -inf]
    assert found[3:].tolist() == [0, 0, 0]
    assert found.signbit().tolist()[3:] == [False, True, True]


def test_tf32_agrees_with_rounding_the_bits():
    random_bits = torch.randint(-(2**31), 2**31, (200_000,), generator=torch.Generator().manual_seed(1))
    subnormal = torch.arange(0, 1 << 16)
    ties = torch.arange(0x3F800000, 0x3F900000, 1 << 12)
    bits = torch.cat([random_bits, subnormal, ties, torch.tensor([0x7F7FFFFF, 0x7F7FEFFF, 0x7F7FF000])])
    x = bits.to(torch.int32).view(torch.float32)
    x = x[x.isfinite()]
    as_bits = x.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    kept = (as_bits + 0xFFF + ((as_bits >> 13) & 1)) & 0xFFFFE000
    expected = kept.to(torch.int32).view(torch.float32)
    assert torch.equal(round_to(x, "tf32").view(torch.int32), expected.view(torch.int32))


def test_rounding_from_float64_happens_once():
    just_above_a_tie = 1 + 2**-11 + 2**-40  # fp32 drops the last part, and then the tie goes down
    assert round_to(just_above_a_tie, "fp16") == 1 + 2**-10
    assert float(torch.tensor(just_above_a_tie, dtype=torch.float64).float().half()) == 1
    x = torch.cat([normal(2000) * 10.0**k for k in range(-9, 5)])
    with np.errstate(over="ignore"):
        assert np.array_equal(round_to(x, "fp16").numpy(), x.numpy().astype(np.float16).astype(np.float64))
        assert np.array_equal(round_to(x, "fp32").numpy(), x.numpy().astype(np.float32).astype(np.float64))


def test_rounding_keeps_float64_and_gives_fp32_otherwise():
    assert round_to(torch.ones(2, dtype=torch.float64), "bf16").dtype == torch.float64
    for dtype in (torch.float32, *HALF_TYPES):
        assert round_to(torch.ones(2, dtype=dtype), "bf16").dtype == torch.float32
    assert round_to(torch.tensor([65504.0]).half(), "bf16").tolist() == [65536.0]
    assert isinstance(round_to(1.0, "bf16"), float)


def test_an_unknown_format_is_named():
    with pytest.raises(ValueError, match="unknown format 'fp7'"):
        round_to(1.0, "fp7")


def test_public_names_are_sorted():
    assert numerics.__all__ == sorted(numerics.__all__)
