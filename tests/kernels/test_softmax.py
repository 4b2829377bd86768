import pytest
import torch

from course_lib.device import DEVICE
from course_lib.kernels import softmax as module
from course_lib.kernels.softmax import MAX_WIDTH, softmax, softmax_reference

# In fp32: |x - m| below 40 here, so the argument of exp2 is off by at most 58 x 2^-24 x 2, exp2 and the division by
# 3 units, the sum by log2(width) units.
RELATIVE = 140 * 2.0**-24


def oracle(x):
    x = x.double()
    return torch.softmax(x, -1).masked_fill((x == -float("inf")).all(-1, keepdim=True), 0.0)


@pytest.mark.parametrize(
    ("rows", "width"), [(1, 1), (3, 2), (70, 31), (5, 33), (9, 1000), (130, 64), (2, 4097), (1, 16384), (3, 12289)]
)
def test_softmax_is_right_for_any_width(rows, width, dtype, random, fenced, assert_within):
    x, out = random(rows, width, dtype=dtype) * 4, fenced(rows, width, dtype=dtype)
    assert softmax(x, out) is out
    assert_within(out, oracle(x), RELATIVE * oracle(x))


@pytest.mark.parametrize(
    ("width", "pitch_in", "pitch_out"), [(40, 56, 48), (33, 35, 34), (1000, 1008, 1000), (1, 5, 3)]
)
def test_rows_may_lie_apart_in_memory(width, pitch_in, pitch_out, dtype, random, fenced, assert_within):
    x = random(21, pitch_in, dtype=dtype)[:, :width]
    buffer = fenced(21, pitch_out, dtype=dtype)
    out = buffer[:, :width]
    softmax(x, out)
    assert_within(out, oracle(x), RELATIVE * oracle(x))
    assert buffer[:, width:].isnan().all(), "written between the rows"


def test_a_row_of_only_minus_infinity_gives_zeros_and_touches_no_other_row(dtype, random, assert_within):
    x = random(9, 75, dtype=dtype)
    x[4] = -float("inf")
    x[6, 1:] = -float("inf")
    out = softmax(x)
    assert (out[4] == 0).all() and out[6, 0] == 1 and (out[6, 1:] == 0).all()
    assert_within(out, oracle(x), RELATIVE * oracle(x))
    torch.testing.assert_close(softmax_reference(x), oracle(x).to(dtype))


def test_large_values_do_not_overflow(random, assert_within):
    x = random(4, 100, dtype=torch.float32)
    x[0] += 1e4
    x[1] = torch.finfo(torch.float32).max
    x[2, 0], x[2, 1:] = 3e38, -3e38
    out = softmax(x)
    # Adding 1e4 rounds the inputs, not the softmax of what they became.
    assert_within(out, oracle(x), RELATIVE * oracle(x))
    torch.testing.assert_close(out[1], torch.full_like(out[1], 0.01))


def test_nan_stays_in_its_row(random):
    x = random(6, 40, dtype=torch.float32)
    x[2, 7] = float("nan")
    out = softmax(x)
    assert out[2].isnan().all()
    assert not out[[0, 1, 3, 4, 5]].isnan().any()


def test_misaligned_starts_and_odd_pitches_are_read_right(random, dtype, assert_within):
    buffer = random(24 * 64 + 3, dtype=dtype)
    x = buffer[3:].view(24, 64)
    assert_within(softmax(x), oracle(x), RELATIVE * oracle(x))


def test_the_output_may_have_another_type_and_the_matrix_no_rows(random, assert_within):
    x = random(5, 300, dtype=torch.float16)
    out = softmax(x, torch.empty(5, 300, device=DEVICE))
    assert_within(out, oracle(x), RELATIVE * oracle(x))
    assert softmax(x[:0]).shape == (0, 300) and softmax(x[:, :0]).shape == (5, 0)


def test_what_it_cannot_do_is_refused(random):
    with pytest.raises(AssertionError, match="16384"):
        softmax(random(1, MAX_WIDTH + 1, dtype=torch.float32))
    with pytest.raises(AssertionError, match="adjacent"):
        softmax(random(8, 4, dtype=torch.float32).T)


@pytest.mark.gpu
@pytest.mark.parametrize("short", [0, 8, 3])
@pytest.mark.parametrize("block_n", sorted(module._CONFIGS))
def test_every_configuration_of_the_table_is_right(block_n, short, dtype, random, fenced, assert_within):
    x, out = random(1031, block_n - short, dtype=dtype), fenced(1031, block_n - short, dtype=dtype)
    softmax(x, out)
    assert_within(out, oracle(x), RELATIVE * oracle(x))


@pytest.mark.gpu
def test_matrices_past_2_to_the_31_elements_are_right_to_the_last_row(assert_within):
    x = torch.randn(2**17 + 5, MAX_WIDTH, device=DEVICE, dtype=torch.bfloat16)
    out = torch.full_like(x, float("nan"))
    softmax(x, out)
    for rows in (slice(0, 8), slice(2**17 - 4, None)):
        assert_within(out[rows], oracle(x[rows]), RELATIVE * oracle(x[rows]))
    assert not out.isnan().any()


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
