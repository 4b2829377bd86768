"""Attention, backward: the probabilities are made again from L, in two passes, and no two programs add to one sum.

    p = exp(s - L)    dp = do vᵀ    ds = p (dp - delta)    delta_i = sum_j p_ij dp_ij = sum_d do_id o_id

    dq = scale ds k                 one program a block of queries, walking over the keys; it also keeps delta, and L in
                                    base 2, for the other pass
    dk = scale dsᵀ q, dv = pᵀ do    one program a block of keys, walking over the queries that see them, and over all
                                    query heads that share these keys

Seven products are made where a single pass would make five: s and dp are made twice. For that no program ever writes
where another does: no atomic additions, and the same bits on every run.
"""

import math

import torch

from course_lib.kernels.attention.dkdv import write_dkdv
from course_lib.kernels.attention.dq import write_dq
from course_lib.kernels.attention.rungs import blocks_for
from course_lib.kernels.attention.tuning import tuned

__all__ = ["backward", "row_terms", "write_backward"]


def backward(do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None):
    """do like o, any strides; o and L as `forward` gave them; dl (B, H, n_q) or None -> dq, dk, dv.

    FLOP: 14 B H n_q n_k D, half of it causal.
    """
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    write_backward(dq, dk, dv, do, q, k, v, o, l, causal, scale, k_lengths, dl)
    return dq, dk, dv


def row_terms(l: torch.Tensor) -> torch.Tensor:
    """Room for shift and delta: two of (B H, n_q) fp32, each row at a multiple of 16 bytes, as the copy engine asks."""
    *heads, n_q = l.shape
    return torch.empty(2, math.prod(heads), -(-n_q // 4) * 4, dtype=torch.float32, device=l.device)[..., :n_q]


def write_backward(
    dq, dk, dv, do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None, blocks=None
) -> None:  # fmt: skip
    """The same into given tensors of any strides. `blocks` for dk and dv; None: what is fastest."""
    shift, delta = row_terms(l)
    table = tuned(q.shape[-1], causal, q.dtype, q.device)
    write_dq(dq, shift, delta, do, q, k, v, o, l, dl, causal, scale, k_lengths, table.dq)
    blocks = blocks or blocks_for("dkdv", causal, k_lengths, q, k, v, do, dk, dv)
    write_dkdv(dk, dv, do, q, k, v, shift, delta, causal, scale, k_lengths, blocks)
