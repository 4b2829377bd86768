"""Slabs: a tensor that one side lays out is the same tensor on the other."""

import os

import pytest
import torch

from autograder.inside.slabs import Opened
from autograder.referee.slabs import HostSlab, describe_slabs, describe_tensor

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.bool)
LAYOUTS = {  # (shape, stride, first element)
    "whole": ((3, 4), (4, 1), 0),
    "transposed": ((4, 3), (1, 4), 0),
    "rows of a wider matrix": ((3, 2), (4, 1), 1),
    "every other element": ((6,), (2,), 0),
    "one row three times": ((3, 4), (0, 1), 4),
    "overlapping windows": ((5, 3), (1, 1), 0),
    "no elements": ((0, 4), (4, 1), 0),
    "a single number": ((), (), 5),
}


@pytest.fixture
def slab():
    made = HostSlab(12 * 8)
    yield made
    made.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_and_layout_arrives_and_what_is_written_there_is_seen_here(slab, dtype, layout):
    here = slab.tensor(12, dtype)
    here.copy_(torch.arange(12) % 5)
    view = here.as_strided(*LAYOUTS[layout])
    there = Opened(*describe_slabs([slab])).tensor(describe_tensor(view, 0))
    assert (there.dtype, there.shape, there.stride()) == (dtype, view.shape, view.stride())
    assert torch.equal(there, view)
    if there.numel() and 0 not in there.stride():
        there.add_(1) if dtype is not torch.bool else there.logical_not_()
        assert torch.equal(there, view)


def test_nobody_changes_the_size_of_a_slab(slab):
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(slab.descriptor, size)
