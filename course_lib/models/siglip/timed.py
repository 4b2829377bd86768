"""What the clock compares a block with: the strong tower's, forward and backward, into memory of the caller.

It stands here and not in course_lib/kernels/timed.py because it is no answer. It is made of torch's operators alone, so
it is also in the copies of students and cohorts, which come without the kernels: speed is compared with it there too.

A block computes as `strong.Block` does, eager: q, k and v in three products, and a mask that is added to the scores. y
and dx are written by the additions that end each pass. The gradients of the parameters are copied from what autograd
made: 30 MB at So400m's widths, on paper less than 1 % of the time of 64 images.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib.models.siglip.frame import real_patches

__all__ = ["BACKENDS", "block_step"]

EPS = 1e-5
# In this order: cuDNN's was the fastest both ways at So400m's widths (benchmarks/notes/tower.md). It takes 2-byte types
# on a GPU; the others are for older cards, and for a CPU.
BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.MATH,
]


def block_step(
    x, lengths, dy, n1_w, n1_b, qkv_w, qkv_b, out_w, out_b, n2_w, n2_b, up_w, up_b, down_w, down_b, heads: int,
    y, dx, d_n1_w, d_n1_b, d_qkv_w, d_qkv_b, d_out_w, d_out_b, d_n2_w, d_n2_b, d_up_w, d_up_b, d_down_w, d_down_b,
) -> None:  # fmt: skip
    """x, dy, y, dx (B, N, d), lengths (B,) integers from 1 to N; of each parameter d_... is the gradient.

    qkv_w (3 d, d) holds the rows of q, k and v; the other matrices are those of `strong.Block`.
    """
    given = n1_w, n1_b, *qkv_w.chunk(3), *qkv_b.chunk(3), out_w, out_b, n2_w, n2_b, up_w, up_b, down_w, down_b
    wanted = (
        d_n1_w, d_n1_b, *d_qkv_w.chunk(3), *d_qkv_b.chunk(3), d_out_w, d_out_b, d_n2_w, d_n2_b, d_up_w, d_up_b,
        d_down_w, d_down_b,
    )  # fmt: skip
    real = real_patches(lengths, x.shape[1])
    mask = torch.zeros_like(real, dtype=x.dtype).masked_fill(~real, float("-inf"))[:, None, None]
    with torch.enable_grad():
        # x enters twice, so that the two parts of its gradient are added by us, into dx
        added, normed, *parameters = (t.detach().requires_grad_() for t in (x, x, *given))
        h, m = _branches(added, normed, mask, heads, *parameters)
        made = torch.autograd.grad((h, m), (added, normed, *parameters), (dy, dy))
    with torch.no_grad():
        torch.add(h, m, out=y)
        torch.add(made[0], made[1], out=dx)
        for out, gradient in zip(wanted, made[2:], strict=True):
            out.copy_(gradient)


def _branches(
    added, normed, mask, heads, n1_w, n1_b, q_w, k_w, v_w, q_b, k_b, v_b, out_w, out_b, n2_w, n2_b, up_w, up_b,
    down_w, down_b,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """h, which is x and what attention adds to it, and what the MLP adds to h."""
    batch, n, width = added.shape
    n1 = F.layer_norm(normed, (width,), n1_w, n1_b, EPS)
    q, k, v = (
        F.linear(n1, w, b).view(batch, n, heads, -1).transpose(1, 2) for w, b in ((q_w, q_b), (k_w, k_b), (v_w, v_b))
    )
    with sdpa_kernel(BACKENDS, set_priority=True):
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    h = added + F.linear(o.transpose(1, 2).reshape(batch, n, width), out_w, out_b)
    u = F.linear(F.layer_norm(h, (width,), n2_w, n2_b, EPS), up_w, up_b)
    return h, F.linear(F.gelu(u, approximate="tanh"), down_w, down_b)
