"""An MLP in plain torch with a choice of what it keeps for the backward pass. It runs on meta tensors, on any machine.

The kernels of course_lib.kernels.mlp hold the same; these lines show it without running a kernel.
"""

from dataclasses import replace

import torch

from course_lib.memory.ledger import Ledger, ledger

__all__ = ["KEPT", "mlp_ledger"]

KEPT = {  # policy -> which of x, h and a the backward pass finds
    "everything": ("x", "h", "a"),
    "pre-activation": ("x", "h"),
    "input": ("x",),
}
MADE_BY = {"add": "x", "mm": "h", "gelu": "a"}  # what is kept, by the operator that makes it


def _gelu(h: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(h, approximate="tanh")


class _MLP(torch.autograd.Function):
    """x w1ᵀ, GELU, times w2ᵀ; h or x are kept."""

    @staticmethod
    def forward(ctx, x, w1, w2, keep):
        h = x @ w1.mT
        ctx.save_for_backward(x, w1, w2, h if keep == "pre-activation" else None)
        return _gelu(h) @ w2.mT

    @staticmethod
    def backward(ctx, dy):
        x, w1, w2, h = ctx.saved_tensors
        h = x @ w1.mT if h is None else h
        dw2 = dy.mT @ _gelu(h)
        da = dy @ w2
        dh = torch.ops.aten.gelu_backward(da, h, approximate="tanh")
        del da, h
        return dh @ w1, dh.mT @ x, dw2, None


def mlp_ledger(tokens: int, width: int, hidden: int, keep: str, layers: int = 1, dtype=torch.bfloat16) -> Ledger:
    """Who owns what in one pass there and back through layers of x + mlp(x); the first x is made by an operator too."""
    if keep not in KEPT:
        raise ValueError(f"keep is one of {', '.join(KEPT)}, not {keep!r}")
    with torch.device("meta"):
        before = torch.empty(tokens, width, dtype=dtype, requires_grad=True)
        weights = [
            [torch.empty(shape, dtype=dtype, requires_grad=True) for shape in ((hidden, width), (width, hidden))]
            for _ in range(layers)
        ]

    def forward():
        x = before + 1
        for w1, w2 in weights:
            x = x + (_gelu(x @ w1.mT) @ w2.mT if keep == "everything" else _MLP.apply(x, w1, w2, keep))
        return x

    made = ledger(forward)
    blocks = (replace(b, owner=_called(b)) for b in made.blocks)
    return replace(made, blocks=tuple(blocks))


def _called(block) -> str:
    if " keeps " in block.owner:
        return f"{MADE_BY[block.operator]}, kept"
    return "gradients" if block.owner.startswith("gradient of") else block.owner
