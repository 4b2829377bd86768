"""What others call: plain torch, the autograd Function, the operators for torch.compile, `rope` and `rope_`."""

from typing import Literal

import torch
from torch.autograd.function import once_differentiable

from course_lib.kernels.rope.angles import Angles, Computed, Tables
from course_lib.kernels.rope.launch import write_rope

__all__ = ["rope", "rope_", "rope_in_place_operator", "rope_operator", "rope_reference"]

Layout = Literal["halves", "interleaved"]
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def rope_reference(x, cos, sin, layout: Layout = "halves"):
    """x (B, H, S, D), cos and sin (S, R / 2) or (B, 1, S, R / 2), computed in their type -> a new tensor like x."""
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs].to(cos.dtype), x[..., 2 * pairs :]
    if layout == "halves":
        x0, x1 = turned.chunk(2, dim=-1)
        y = torch.cat((x0 * cos - x1 * sin, x1 * cos + x0 * sin), dim=-1)
    else:
        x0, x1 = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack((x0 * cos - x1 * sin, x1 * cos + x0 * sin), dim=-1).flatten(-2)
    return torch.cat((y.to(x.dtype), rest), dim=-1)


@torch.library.custom_op("speed_of_light::rope_", mutates_args=("q", "k"))
def rope_in_place_operator(
    q: torch.Tensor, k: torch.Tensor, first: torch.Tensor, second: torch.Tensor, positions: torch.Tensor | None,
    offset: int, computed: bool, interleaved: bool, inverse: bool,
) -> None:  # fmt: skip
    """q and k themselves are turned; no gradient is recorded. The schema says so: Tensor(a!) q, Tensor(b!) k -> ()."""
    write_rope(q, k, q, k, first, second, positions, offset, computed, interleaved, inverse)


@torch.library.custom_op("speed_of_light::rope", mutates_args=())
def rope_operator(
    q: torch.Tensor, k: torch.Tensor, first: torch.Tensor, second: torch.Tensor, positions: torch.Tensor | None,
    offset: int, computed: bool, interleaved: bool, inverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """New tensors, differentiable: to torch.compile one node, and one more like it in the backward graph."""
    return _turned(q, k, first, second, positions, offset, computed, interleaved, inverse)


@rope_operator.register_fake
def _(q, k, first, second, positions, offset, computed, interleaved, inverse):
    return torch.empty_like(q), torch.empty_like(k)


def _turned(q, k, *how) -> tuple[torch.Tensor, torch.Tensor]:
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    write_rope(q_out, k_out, q, k, *how)
    return q_out, k_out


def _keep_for_backward(ctx, inputs, output):
    _, _, first, second, positions, *ctx.how = inputs
    ctx.save_for_backward(first, second, positions)


def _operator_backward(ctx, dq, dk):
    offset, computed, interleaved, inverse = ctx.how
    grads = rope_operator(dq, dk, *ctx.saved_tensors, offset, computed, interleaved, not inverse)
    return *grads, *(None,) * 7


rope_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


class _Rope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, in_place, first, second, positions, *how):
        # Tables and positions are kept and nothing of q and k: the gradient does not depend on them.
        ctx.save_for_backward(first, second, positions)
        ctx.how = how
        if not in_place:
            return _turned(q, k, first, second, positions, *how)
        write_rope(q, k, q, k, first, second, positions, *how)
        # mark_dirty would be the word for this, but it takes no views from a function of two results, and q and k are
        # views of one projection nearly always. So the results are q and k under a new name, as if just made.
        return q.detach(), k.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, dq, dk):
        # Not in place: a gradient may be shared, as the two of a sum are, and what belongs to others stays as it is.
        # Another tensor costs the same bytes.
        *how, inverse = ctx.how
        return *_turned(dq, dk, *ctx.saved_tensors, *how, not inverse), *(None,) * (4 + len(ctx.how))


def _check(q, k, angles: Angles, layout: str, positions) -> None:
    assert q.dim() == k.dim() == 4, "q and k are (batch, heads, length, head size)"
    (B, _, S, D), sizes = q.shape, (k.shape[0], *k.shape[2:])
    assert sizes == (B, S, D), f"q and k do not belong together: {tuple(q.shape)}, {tuple(k.shape)}"
    assert q.dtype == k.dtype and q.dtype in DTYPES, f"one type of {DTYPES}: {q.dtype}, {k.dtype}"
    assert layout in ("halves", "interleaved"), f'layout is "halves" or "interleaved", not {layout!r}'
    first, second = angles.parts
    dim = 2 if isinstance(angles, Tables) else 1
    assert first.shape == second.shape and first.dim() == dim, f"{tuple(first.shape)} and {tuple(second.shape)}"
    assert first.dtype == second.dtype == torch.float32, f"angles are fp32: 8 bits would turn by 0.4 %: {first.dtype}"
    assert first.is_contiguous() and second.is_contiguous(), "tables are contiguous"
    assert 2 * first.shape[-1] <= D, f"{2 * first.shape[-1]} elements cannot be turned in heads of {D}"
    if positions is not None:
        assert positions.shape == (B, S), f"one position for each of {B} x {S} rows, not {tuple(positions.shape)}"
        assert positions.dtype in (torch.int32, torch.int64), f"positions are integers, not {positions.dtype}"


def _asked(angles: Angles, layout: str, positions, offset: int, inverse: bool) -> tuple:
    """What the launcher and the operators take behind q and k."""
    return *angles.parts, positions, offset, isinstance(angles, Computed), layout == "interleaved", inverse


def _records(q, k) -> bool:
    return torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)


def rope(
    q, k, angles: Angles, layout: Layout = "halves", positions=None, offset: int = 0, inverse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """q (B, H, S, D) and k (B, H_kv, S, D) turned, as new tensors with, where it can be, the strides of q and k.

    fp16, bf16 or fp32; any strides, so (B, S, H, D) in memory goes in as x.transpose(1, 2). The first R elements of
    each head are turned, R twice the last size of the angles' tensors. Row s of sequence b is at position
    offset + (positions[b, s], or s); one that tables do not hold gives NaN. inverse: back again.
    Differentiable in q and k. Bytes: read and write q and k.
    """
    _check(q, k, angles, layout, positions)
    asked = _asked(angles, layout, positions, offset, inverse)
    if torch.compiler.is_compiling():
        return rope_operator(q, k, *asked)
    # A Function costs the host 4 us a call, an operator 20.
    return _Rope.apply(q, k, False, *asked) if _records(q, k) else _turned(q, k, *asked)


def rope_(
    q, k, angles: Angles, layout: Layout = "halves", positions=None, offset: int = 0, inverse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same in the memory of q and k, which are used up: go on with what is returned.

    Autograd does not see that q and k were written over: whoever needs their old values, this call's caller or an
    operation that kept them for its backward, has to take `rope`. (A projection keeps its input and not its result.)
    Where a graph is being compiled that records gradients, the results are new tensors. Bytes: read and write the
    turned part of q and k.
    """
    _check(q, k, angles, layout, positions)
    for name, x in (("q", q), ("k", k)):
        assert not (x.requires_grad and x.is_leaf and _records(q, k)), f"{name} is a leaf whose old values are kept"
        steps = [step for size, step in zip(x.shape, x.stride()) if size > 1]
        assert 0 not in steps, f"rows of {name} share memory: each would be turned several times"
    asked = _asked(angles, layout, positions, offset, inverse)
    if torch.compiler.is_compiling():
        if _records(q, k):
            return rope_operator(q, k, *asked)
        rope_in_place_operator(q, k, *asked)
        return q, k
    if _records(q, k):
        return _Rope.apply(q, k, True, *asked)
    write_rope(q, k, q, k, *asked)
    return q, k
