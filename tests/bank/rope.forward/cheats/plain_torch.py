"""Plain PyTorch turns everything; a kernel adds zero to it."""

import torch
import triton
import triton.language as tl

FAMILY = "decoy kernel"
NAIVE = True
CAUGHT = "torch multiplied while the function ran"


@triton.jit
def _nothing_kernel(x_ptr, stride_d, BLOCK: tl.constexpr):
    at = x_ptr + tl.arange(0, BLOCK) * stride_d
    tl.store(at, tl.load(at) + 0.0)


def rope_(q, k, cos, sin, positions, offset, layout):
    pairs = cos.shape[1]
    for x in (q, k):
        at = torch.arange(x.shape[2], device=x.device)[None] if positions is None else positions.long()
        c, s = cos[at + offset][:, None], sin[at + offset][:, None]
        part = x[..., : 2 * pairs]
        x0, x1 = part.float().chunk(2, -1) if layout == "halves" else (part[..., 0::2].float(), part[..., 1::2].float())
        y = (x0 * c - x1 * s, x1 * c + x0 * s)
        part.copy_(torch.cat(y, -1) if layout == "halves" else torch.stack(y, -1).flatten(-2))
        _nothing_kernel[(1,)](x, x.stride(3), BLOCK=2)
