"""Which rung of the ladder runs: plain Triton everywhere, kernels with jobs for their warps where they win.

    1  forward.py, dq.py, dkdv.py          any shape, stride, type and device: what the lesson teaches
    2  groups_forward.py, groups_dkdv.py   an H100 or H200, rows in reach of the copy engine, and an entry in
                                           tuning.GROUPS: the shapes where the hand-made schedule was measured faster

Both rungs take and leave the same tensors, so that every call may choose anew.
"""

import functools

import torch
import triton

from course_lib.kernels.attention.operands import aligned
from course_lib.kernels.attention.parts import split
from course_lib.kernels.attention.tuning import GROUPS, Blocks, Groups, tuned

__all__ = ["blocks_for", "gluon_is_known", "groups_for"]

HOPPER = (9, 0)  # wgmma is of this architecture alone; Blackwell has other instructions
# Gluon is experimental: names, defaults and meanings change between releases. These two the tests have seen.
GLUON_SEEN = ("3.6", "3.7")


@functools.cache
def gluon_is_known() -> bool:
    """Is this a Triton whose Gluon the second rung is written for? Where it is not, the first does all."""
    if ".".join(triton.__version__.split(".")[:2]) not in GLUON_SEEN:
        return False
    try:
        from course_lib.kernels.attention import groups_dkdv, groups_forward  # noqa: F401
    except (ImportError, AttributeError):  # a build without Gluon, or with another one than its version says
        return False
    return True


@functools.cache
def _capability(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def groups_for(kernel: str, causal: bool, padded: bool, capability, *tensors: torch.Tensor) -> Groups | None:
    """The second rung's blocks for "forward" or "dkdv", or None: then it is not valid here, or not faster.

    `tensors`: all that the copy engine is to fetch or to write, q first; `padded`: k_lengths are given.
    """
    entry = GROUPS.get((kernel, sum(split(tensors[0].shape[-1])), causal))
    if entry is None or capability != HOPPER or padded or not all(map(aligned, tensors)) or not gluon_is_known():
        return None
    return entry


def blocks_for(kernel: str, causal: bool, k_lengths, *tensors: torch.Tensor) -> Blocks | Groups:
    """What to launch "forward" or "dkdv" with; its type says which rung."""
    q = tensors[0]
    groups = groups_for(kernel, causal, k_lengths is not None, _capability(q.device), *tensors)
    return groups or getattr(tuned(q.shape[-1], causal, q.dtype, q.device), kernel)
