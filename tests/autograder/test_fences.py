"""Fences: whatever a submission touches beyond its tensors shows."""

import pytest
import torch

from autograder.call import fences
from autograder.call.fences import GUARD, fence

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_untouched_tensor_shows_no_damage(dtype):
    fenced = fence(torch.arange(12).to(dtype).view(3, 4), is_output=False)
    assert fenced.damage().total == 0
    assert fenced.changed() == 0
    assert torch.equal(fenced.view, fenced.original)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("offset", "where"), [(-1, "before"), (12, "after")])
def test_one_element_written_outside_is_found_on_its_side(dtype, offset, where):
    fenced = fence(torch.zeros(12, dtype=dtype), is_output=True)
    fenced.slab[GUARD + offset] = 1
    damage = fenced.damage()
    assert getattr(damage, where) == damage.total == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("halves", [True, False])
@pytest.mark.parametrize("first", [12, 13, -8])
def test_a_row_that_is_turned_in_place_beyond_an_output_is_found(dtype, halves, first):
    fenced = fence(torch.zeros(12, dtype=dtype), is_output=True)
    row = fenced.slab[GUARD + first :][:8]
    x0, x1 = (row[:4], row[4:]) if halves else (row[::2], row[1::2])
    y0, y1 = 0.8 * x0 - 0.6 * x1, 0.8 * x1 + 0.6 * x0
    x0.copy_(y0)
    x1.copy_(y1)
    assert fenced.damage().total


def test_a_write_into_the_gap_of_a_strided_tensor_is_found():
    fenced = fence(torch.zeros(3, 8)[:, :5], is_output=True)
    fenced.slab[GUARD + 6] = 1.0  # row 0, column 6: memory between the rows
    assert fenced.damage().gaps == 1


def test_strides_are_kept():
    transposed = torch.arange(12.0).view(3, 4).t()
    fenced = fence(transposed, is_output=False)
    assert fenced.view.stride() == transposed.stride()
    assert torch.equal(fenced.view, transposed)


def test_a_written_nan_is_not_an_unwritten_element():
    fenced = fence(torch.zeros(4), is_output=True)
    fenced.view[0] = float("nan")
    fenced.view[1] = 1.0
    assert fenced.unwritten() == 2


def test_an_integer_that_equals_the_poison_is_an_answer_and_a_whole_output_of_it_is_none():
    fenced = fence(torch.zeros(4, dtype=torch.int8), is_output=True)
    assert fenced.unwritten() == 4
    fenced.view[0] = 5
    assert fenced.unwritten() == 0


def test_nan_read_beyond_an_input_and_stored_beyond_an_output_is_damage():
    source, target = fence(torch.zeros(4), is_output=False), fence(torch.zeros(4), is_output=True)
    target.slab[GUARD + 4] = source.slab[GUARD + 4]
    assert target.damage().after == 1
    assert target.damage().nan


def test_a_changed_input_is_counted():
    fenced = fence(torch.zeros(4), is_output=False)
    fenced.view[2] = -0.0  # equal to 0.0 as a number, other bits
    assert fenced.changed() == 1


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0)])
def test_a_tensor_without_elements_has_fences_too(shape):
    fenced = fence(torch.zeros(shape), is_output=True)
    assert fenced.view.shape == shape
    assert fenced.damage().total == fenced.unwritten() == 0
    fenced.slab[GUARD] = 1.0
    assert fenced.damage().total == 1


def test_a_wrapped_offset_lands_in_memory_of_ours(monkeypatch):
    monkeypatch.setattr(fences, "FAR", 1 << 18)
    tensor = torch.zeros(2, 3, dtype=torch.float16).as_strided((2, 1), (1, 1))
    assert fence(tensor, is_output=True).front == GUARD, "a small tensor needs no room"
    far = torch.zeros((1 << 18) + 9, dtype=torch.float16).as_strided((2, 3), ((1 << 18) + 2, 1))
    fenced = fence(far, is_output=True)
    wrapped = fenced.view.storage_offset() - (1 << 18) + 2
    fenced.slab[wrapped] = 1.0
    assert fenced.damage().before == 1 and fenced.damage().total == 1
    assert torch.equal(fence(far, is_output=False).view, far)
