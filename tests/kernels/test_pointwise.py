import pytest
import torch

from course_lib.device import DEVICE
from course_lib.kernels import pointwise
from course_lib.kernels.pointwise import axpy, axpy_reference, cos_chain, cos_chain_reference

U = 2.0**-24  # half a unit in the last place of 1.0 in fp32
LENGTHS = [0, 1, 31, 1024, 1025, 5003]


@pytest.mark.parametrize("n", LENGTHS)
def test_axpy_is_right_for_any_length(n, dtype, random, fenced, assert_within):
    x, y, out = random(n, dtype=dtype), random(n, dtype=dtype), fenced(n, dtype=dtype)
    assert axpy(-1.7, x, y, out) is out
    want = -1.7 * x.double() + y.double()
    # a itself is rounded to fp32, then one product and one sum
    assert_within(out, want, 3 * U * ((1.7 * x.double()).abs() + y.double().abs()))


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("repeat", [1, 3])
def test_cos_chain_is_right_for_any_length(n, repeat, dtype, random, fenced, assert_within):
    x, out = random(n, dtype=dtype) * 3, fenced(n, dtype=dtype)
    assert cos_chain(x, repeat, out) is out
    want = x.double()
    for _ in range(repeat):
        want = want.cos()
    # cos is good to 2 units, and never widens an error it is given
    assert_within(out, want, torch.full_like(want, 4 * U * repeat))


def test_cos_chain_takes_64_cosines_and_large_arguments(random, fenced, assert_within):
    x, out = random(513, dtype=torch.float32) * 1e6, fenced(513, dtype=torch.float32)
    want = x.double()
    for _ in range(64):
        want = want.cos()
    assert_within(cos_chain(x, 64, out), want, torch.full_like(want, 64 * 4 * U))


def test_the_references_agree_with_the_kernels(random):
    x, y = random(7, 11, dtype=torch.float32), random(7, 11, dtype=torch.float32)
    torch.testing.assert_close(axpy(0.3, x, y, torch.empty_like(x)), axpy_reference(0.3, x, y))
    torch.testing.assert_close(cos_chain(x, 2, torch.empty_like(x)), cos_chain_reference(x, 2))


def test_axpy_may_write_over_an_input(random):
    x, y = random(2000, dtype=torch.float32), random(2000, dtype=torch.float32)
    want = axpy_reference(2.0, x, y)
    torch.testing.assert_close(axpy(2.0, x, y, y), want)


def test_tensors_that_are_not_contiguous_are_refused(random):
    x = random(8, 8, dtype=torch.float32)
    with pytest.raises(AssertionError, match="contiguous"):
        axpy(1.0, x.T, x.T, torch.empty_like(x))
    with pytest.raises(AssertionError, match="repeat"):
        cos_chain(x, 65, torch.empty_like(x))


@pytest.mark.gpu
def test_axpy_reaches_past_2_to_the_31_elements():
    n = 2**31 + 1003
    x = torch.randn(n, device=DEVICE, dtype=torch.float16)
    out = torch.full_like(x, float("nan"))
    axpy(2.0, x, x, out)
    torch.testing.assert_close(out[-2000:].float(), 3 * x[-2000:].float(), rtol=1e-3, atol=0)
    torch.testing.assert_close(out[:2000].float(), 3 * x[:2000].float(), rtol=1e-3, atol=0)
    assert not out.isnan().any()


def test_the_module_lists_what_it_offers():
    assert pointwise.__all__ == sorted(pointwise.__all__)
    assert all(hasattr(pointwise, name) for name in pointwise.__all__)
