"""Our tower, put together from the course's kernels.

    x = embed(patches) + places,  qkv = norm(x) wᵀ + b         one product for q, k and v
    each block     a = out(attention(qkv))                     packed: no copy forward, one gradient on the way back
                   y, x = norm(a + x), a + x                   add_norm: the addition and its norm are one kernel
                   m = down(gelu(up(y)))                       mlp: GELU at the end of the first product
                   y, x = norm(m + x), m + x
                   qkv = y wᵀ + b                              of the next block; the last one ends with y

So an addition always has its norm in the same kernel, also where a block ends and the next one begins.

A linear layer would sum the rows of a gradient for its bias, a pass of its own. The layers qkv, out and down add their
biases detached. Those of out and down get their gradient from add_norm, which has the rows in registers, and that of
qkv from attention, which knows a third of it.

Held from forward to backward, of each row of each layer, in rows of the width: q, k, v, o and x twice; both y unless
`norms` is "again", which makes them once more from x; and hidden / width for the MLP unless `keep` is "input"
(`bytes_kept`). Nothing here asks the device for a number, so a step can be captured in a CUDA graph. Nothing but the
size of the batch changes from call to call: torch.compile makes one graph, for all lengths and all batches of 2 and
more.

A copy of the course without course_lib/kernels comes without this file as well.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.kernels.add_norm import add_norm
from course_lib.kernels.attention.packed import packed_attention
from course_lib.kernels.mlp import Keep, mlp
from course_lib.models import vision
from course_lib.models.siglip.again import added_linear, added_mlp
from course_lib.models.siglip.frame import Framed, packed, real_patches, unpacked
from course_lib.models.vision import Sizes

__all__ = ["NORMS", "Attention", "Block", "Tower", "bytes_kept"]

Norms = Literal["kept", "again"]
NORMS = ("kept", "again")
AT_ONCE = 2**14  # rows of the MLP: enough to keep all multiprocessors busy with one product
# Of the last block, whose backward step comes first: beside it all that the others keep is there.
AT_THE_PEAK = AT_ONCE // 2


class Attention(nn.Module):
    """q, k and v are one layer with rows in this order; a state dict has them apart, as the other towers do.

    The bias of `out` gets its gradient from whoever adds what this returns; in a block that of `down` does.
    """

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, qkv, lengths):  # (B, N, 3 width), (B,)
        batch, patches, width = *qkv.shape[:2], self.out.in_features
        o = packed_attention(qkv.view(batch, patches, 3, self.heads, width // self.heads), lengths, self.qkv.bias)
        return _linear(o.view(batch, patches, width), self.out)


class Block(vision.Block):
    def __init__(self, sizes: Sizes, keep: Keep, norms: Norms):
        super().__init__(sizes, Attention)
        self.keep, self.norms, self.at_once = keep, norms, AT_ONCE

    def begin(self, x):
        """qkv of the first block, before which nothing is added."""
        norm = self.before_attention
        return _linear(F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps), self.attention.qkv)

    def forward(self, qkv, x, lengths):
        """What the MLP adds, and x before that: (m, x)."""
        a, bias, up, down = self.attention(qkv, lengths), self.attention.out.bias, self.up, self.down
        if self.norms == "again" and torch.is_grad_enabled():
            return added_mlp(a, bias, x, self.before_mlp, up, down, self.keep, self.at_once)
        y, x = _added(a, bias, x, self.before_mlp)
        return mlp(y, up.weight, up.bias, down.weight, down.bias.detach(), self.keep, self.at_once), x

    def go_on(self, m, bias, x):
        """From the block before, and the bias that is in m: (qkv, x)."""
        if self.norms == "again" and torch.is_grad_enabled():
            return added_linear(m, bias, x, self.before_attention, self.attention.qkv)
        y, x = _added(m, bias, x, self.before_attention)
        return _linear(y, self.attention.qkv), x


def _linear(x, layer: nn.Linear):
    """layer(x), for whoever takes the bias along."""
    return F.linear(x, layer.weight, layer.bias.detach())


def _added(branch, bias, x, norm):
    """(norm(branch + x), branch + x). `bias` is in `branch` already, detached.

    The memory of `branch` is used again; without gradients that of x is too.
    """
    in_place = "x" if torch.is_grad_enabled() else "both"
    return add_norm(branch, x, norm.weight, norm.bias, norm.eps, in_place=in_place, x_bias=bias)


class Tower(Framed):
    """`keep` says what the MLP holds for backward, as in course_lib.kernels.mlp; `norms` whether their results are."""

    def __init__(self, sizes: Sizes, keep: Keep = "pre-activation", norms: Norms = "kept"):
        assert norms in NORMS, f"norms is one of {NORMS}, not {norms!r}"
        super().__init__(sizes, lambda sizes: Block(sizes, keep, norms))
        self.blocks[-1].at_once = AT_THE_PEAK
        self.register_state_dict_post_hook(_save_apart)
        self.register_load_state_dict_pre_hook(_load_packed)

    def embedded(self, patches, real):
        """Of columns that are a multiple of 8, zeros at the end. A row of 588 numbers begins off 16 bytes, where the
        copy engine fetches nothing: cuBLAS then takes a kernel of the A100's time, 0.58 ms for 65,536 rows."""
        more = -patches.shape[-1] % 8
        filled = F.pad(patches, (0, more)).masked_fill_(~real[..., None], 0.0)
        return F.linear(filled, F.pad(self.embed.weight, (0, more)), self.embed.bias) + self.places

    def forward(self, patches, lengths):
        lengths = lengths.to(torch.int32)
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        first, *rest = self.blocks
        m, x = first(first.begin(x), x, lengths)
        bias = first.down.bias
        for block in rest:
            qkv, x = block.go_on(m, bias, x)
            m, x = block(qkv, x, lengths)
            bias = block.down.bias
        y, _ = _added(m, bias, x, self.norm)
        return self.pooled(y, real)


def _save_apart(tower, state, prefix, metadata) -> None:
    whole = unpacked(state)
    state.clear()
    state.update(whole)


def _load_packed(tower, state, prefix, metadata, strict, missing, unexpected, errors) -> None:
    whole = packed(state)
    state.clear()
    state.update(whole)


def bytes_kept(sizes: Sizes, batch: int, keep: Keep, norms: Norms = "kept", element_size: int = 2) -> int:
    """Of activations, from forward to backward, the patches among them, and with what norms and softmax note."""
    width = sizes.width
    hidden = {"everything": 2, "pre-activation": 1, "input": 0}[keep] * sizes.mlp
    layer = element_size * ((8 if norms == "kept" else 6) * width + hidden)
    layer += 4 * sizes.heads + 16  # L, and mean and rstd of two norms
    patch = -(-sizes.patch // 8) * 8
    first = element_size * (patch + width + 1) + 8  # patches, x, its mean and rstd, which rows are real
    if norms == "again":
        first += element_size * width  # the first norm of all has no addition before it, and is kept
    return batch * (sizes.patches * (sizes.layers * layer + first) + 12)  # and the length, twice
