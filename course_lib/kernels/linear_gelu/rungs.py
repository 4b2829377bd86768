"""Which rung runs: the first that is valid here, from the fastest down.

pingpong     an H100 or H200, a Triton whose Gluon was tried, 2-byte types in reach of the copy engine, at least a
             tile for each group of every multiprocessor, and an entry in tuning.PINGPONG
persistent   2-byte types in reach of a copy engine
grouped      everything else
"""

import functools

import torch
import triton

from course_lib.kernels.attention.rungs import HOPPER, gluon_is_known
from course_lib.kernels.descriptors import copy_engine, describable
from course_lib.kernels.linear_gelu.tuning import PINGPONG, Turns
from course_lib.kernels.tiles import multiprocessors

__all__ = ["reached", "turns_for"]


def reached(*matrices: torch.Tensor | None) -> bool:
    """Can the copy engine address all of these by rows?"""
    given = [x for x in matrices if x is not None]
    return copy_engine(given[0].device) and all(map(describable, given))


@functools.cache
def _hopper(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER


def turns_for(kernel: str, out: torch.Tensor, *matrices: torch.Tensor | None) -> Turns | None:
    """What the rung of turns is launched with for "gelu" or "slope", or None where it is not valid, or not faster."""
    entry = PINGPONG.get(kernel)
    if entry is None or not _hopper(out.device):
        return None
    tiles = triton.cdiv(out.shape[0], 128) * triton.cdiv(out.shape[1], 128)
    if tiles < 2 * multiprocessors(out.device) or out.element_size() != 2 or not reached(out, *matrices):
        return None
    return entry if gluon_is_known() else None
