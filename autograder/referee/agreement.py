"""Whether two large tensors agree, looking at each element once.

Torch's operators would go over the memory six times, and every output of every timed call is looked at: that took
longer than what was timed.
"""

from __future__ import annotations

import torch

from course_lib import device  # noqa: F401  decides the tier before Triton is imported

# isort: split
import triton
import triton.language as tl

BLOCK = 4096


@triton.jit
def _count_far(got, want, counts, n, relative, absolute, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    offs = program * BLOCK + tl.arange(0, BLOCK)
    mine = tl.load(got + offs, mask=offs < n, other=0.0).to(tl.float32)
    true = tl.load(want + offs, mask=offs < n, other=0.0).to(tl.float32)
    near = tl.abs(mine - true) <= relative * tl.abs(true) + absolute  # never so for NaN
    tl.store(counts + program, tl.sum(1 - near.to(tl.int32), 0))


def agree(got: torch.Tensor, want: torch.Tensor, allowed: float) -> bool:
    """Every |got - want| is at most allowed * (|want| + rms(want)); NaN agrees with nothing."""
    if not want.numel():
        return True
    rms = float(torch.linalg.vector_norm(want, dtype=torch.float32)) / want.numel() ** 0.5
    if not got.is_cuda:
        far = (got.float() - want.float()).abs_()
        return bool((far <= allowed * want.float().abs() + allowed * rms).all())
    return count_far(got, want, allowed, allowed * rms) == 0


def count_far(got: torch.Tensor, want: torch.Tensor, relative: float, absolute: float) -> int:
    """Elements with |got - want| above relative * |want| + absolute, or NaN."""
    got, want = got.contiguous(), want.contiguous()
    programs = triton.cdiv(got.numel(), BLOCK)
    counts = torch.empty(programs, dtype=torch.int32, device=got.device)
    _count_far[(programs,)](got, want, counts, got.numel(), relative, absolute, BLOCK, num_warps=8)
    return int(counts.sum())
