"""Which kernel makes a product of a few rows: a tuned one where it is valid and was measured, else a taught one.

                                  tuned             taught
    one row of x                  gemv_warps.py     gemv.py
    up to 16, on tensor cores     gemm_registers.py gemm.py
    up to 64, few short weights   gemm_registers.py gemm.py
    up to 256                     gemm_fetched.py   gemm.py

The tuned ones want an H100 or H200, a Triton whose Gluon was tried, x in bf16, groups of 32, and rows of x and of the
weights that begin at multiples of 16 bytes; the taught ones take everything. Both give the same product, added up in
another order.
"""

import torch

from course_lib.kernels.descriptors import describable
from course_lib.kernels.hardware import gluon_is_known
from course_lib.kernels.mx.format import GROUP, Quantized
from course_lib.kernels.mx.tuning import Direct, Fetched, Walk, direct_blocks, fetched_blocks, walk_blocks

__all__ = ["direct_for", "fetched_for", "walk_for"]


def _reached(x: torch.Tensor, w: Quantized) -> bool:
    """Can the tuned kernels read these 16 bytes at a time, and four groups' exponents as a word?"""
    m, e = w.mantissas, w.exponents
    if x.dtype != torch.bfloat16 or w.group != GROUP or m.shape[1] == 0 or m.shape[1] % (4 * GROUP):
        return False
    rows = m.stride(0) % 16 == 0 and (x.shape[0] == 1 or x.stride(0) % 8 == 0)
    return rows and m.data_ptr() % 16 == 0 and x.data_ptr() % 16 == 0 and e.data_ptr() % 4 == 0


def walk_for(x: torch.Tensor, w: Quantized, hopper: bool) -> Walk | None:
    """What gemv_warps.py is launched with, or None where it is not valid. x (rows, K), columns adjacent."""
    N, K = w.mantissas.shape
    if not hopper or x.shape[0] != 1 or N * w.mantissas.stride(0) >= 2**33:
        return None
    blocks = walk_blocks(N, K)
    return blocks if blocks and _reached(x, w) and gluon_is_known() else None


def direct_for(x: torch.Tensor, w: Quantized, hopper: bool) -> Direct | None:
    """What gemm_registers.py is launched with, or None where it is not valid or was not measured."""
    N, K = w.mantissas.shape
    blocks = direct_blocks(x.shape[0], N, K) if hopper else None
    return blocks if blocks and blocks.n <= N and _reached(x, w) and gluon_is_known() else None


def fetched_for(x: torch.Tensor, w: Quantized, hopper: bool) -> Fetched | None:
    """What gemm_fetched.py is launched with, or None where it is not valid or another one is faster."""
    blocks = fetched_blocks(x.shape[0], *w.mantissas.shape) if hopper else None
    reached = blocks and _reached(x, w) and describable(x) and describable(w.mantissas)
    return blocks if reached and gluon_is_known() else None
