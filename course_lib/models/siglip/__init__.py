"""A SigLIP-like vision tower, three times: the same parameters, the same results, from naive to fast.

    frame     what they share: patches to the first block, the mean at the end, names of packed parameters
    naive     as one finds them
    strong    what torch alone does well
    ours      from the course's kernels; left out where those are, as in what a class gets
    again     what of ours makes the result of a norm again in backward, in place of keeping it
    weights   published weights from a file, by our names
    training  one step, the same for all three
    timed     a block of strong, forward and backward, into memory of the caller: what the clock compares with

    tower = naive.Tower(Sizes()); tower(patches, lengths)

patches (B, N, numbers a patch), padded to N = sizes.patches; lengths (B,) how many of them are real, from 1 to N; out
comes (B, width). Each class takes the state dict of each other. fp32, fp16, bf16; naive and strong also fp64.
"""

from __future__ import annotations

import importlib

import torch

from course_lib.models.siglip import naive, strong
from course_lib.models.vision import Sizes

__all__ = ["Sizes", "any_batch", "naive", "strong"]


def __getattr__(name: str):
    """`ours` is imported when it is asked for: the other two need no kernels."""
    if name != "ours":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module(f"{__name__}.ours")
    except ModuleNotFoundError as missing:
        if not missing.name.startswith((f"{__name__}.ours", "course_lib.kernels")):
            raise
        raise ModuleNotFoundError(
            "The tower of the course's kernels is not here: this copy of the course comes without course_lib/kernels, "
            "because they are answers. The naive and the strong tower are here, and the fast one is yours to write.",
            name=missing.name,
        ) from None


def any_batch(*tensors: torch.Tensor) -> None:
    """Tell torch.compile that the first size of these changes from call to call, before the first call.

    A tower compiled from such inputs is not compiled again for another batch of at least 2.
    """
    for tensor in tensors:
        torch._dynamo.mark_dynamic(tensor, 0)
