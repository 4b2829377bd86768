"""All 65,536 answers are worked out once, and looked up by torch.

NAIVE is False: `check` too sees that no kernel is launched.
"""

import torch

FAMILY = "precomputation"
NAIVE = False
CAUGHT = "no kernel is launched, and torch computes while the function runs"

TABLE = torch.arange(-128.0, 128.0)[None, :] * torch.exp2(torch.arange(256).double() - 133)[:, None]
TABLE[255] = float("nan")
TABLE = TABLE.to(torch.bfloat16)


def dequantize(mantissas, exponents, group, out):
    columns = mantissas.shape[1]
    e = exponents.long().repeat_interleave(group, 1)[:, :columns]
    out.copy_(TABLE.to(out.device)[e, mantissas.long() + 128])
