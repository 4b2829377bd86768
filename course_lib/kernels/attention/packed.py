"""Attention of q, k and v that are one tensor: the projection's result goes in as it is, its gradient comes out as one.

    qkv (B, N, 3, H, D)  ->  o (B, N, H, D)        dqkv like qkv

A projection to q, k and v at once gives rows of 3 H D numbers. The kernels take tensors of any strides, so q, k and v
are views of those rows, and dq, dk and dv are written into views of one gradient. Three gradients in tensors of their
own would be copied into one before the projection's backward step could use them: 3 B N H D numbers read and written.

The gradient of the projection's bias is the sum of the rows of dqkv, of which a third is known. Each row of ds has the
sum 0, so over all queries and keys of a head

    Σ dk = scale Σ dsᵀ q = 0

and a pass over dq and dv is enough. (Sums in the kernel of dq, where dq and do are in registers, took longer.)

Bytes: read qkv, write o and L; backward reads qkv, o, do and writes dqkv. FLOP as in attention.
"""

import math

import torch
from torch.autograd.function import once_differentiable

from course_lib.kernels.attention.backward import in_one_for, row_terms, write_gradients
from course_lib.kernels.attention.forward import write_forward
from course_lib.kernels.attention.public import attention_reference
from course_lib.kernels.attention.sums import room
from course_lib.kernels.attention.tuning import ONE_PASS
from course_lib.kernels.columns import split
from course_lib.kernels.launching import planned

__all__ = ["packed_attention", "packed_attention_operator", "packed_attention_reference"]


def _by_heads(x: torch.Tensor) -> torch.Tensor:
    """(B, N, H, D) -> (B, H, N, D), the same memory."""
    return x.transpose(1, 2)


def _apart(qkv: torch.Tensor) -> list[torch.Tensor]:
    """q, k and v (B, H, N, D), views."""
    return [_by_heads(x) for x in qkv.unbind(2)]


def packed_attention_reference(qkv, k_lengths=None):
    """The same in plain torch."""
    o = _by_heads(attention_reference(*_apart(qkv), k_lengths=k_lengths)[0])
    if k_lengths is not None:
        behind = torch.arange(qkv.shape[1], device=qkv.device) >= k_lengths[:, None]
        o = torch.where(behind[..., None, None], o.detach(), o)
    return o


@planned
def _write_forward(o, l, qkv, k_lengths) -> None:
    write_forward(_by_heads(o), l, *_apart(qkv), False, qkv.shape[-1] ** -0.5, k_lengths)


@planned
def _write_backward(dqkv, terms, do, qkv, o, l, k_lengths, blocks=None, sums=None) -> None:
    do, o, scale, padded = _by_heads(do), _by_heads(o), qkv.shape[-1] ** -0.5, k_lengths is not None
    write_gradients(
        *_apart(dqkv), terms, do, *_apart(qkv), o, l, False, scale, k_lengths, None, blocks, padded, sums
    )  # fmt: skip


def _forward(qkv, k_lengths):
    """o (B, N, H, D), L (B, H, N) fp32."""
    B, N, _, H, D = qkv.shape
    o, l = qkv.new_empty(B, N, H, D), qkv.new_empty(B, H, N, dtype=torch.float32)
    _write_forward(o, l, qkv, k_lengths)
    return o, l


def _backward(do, qkv, o, l, k_lengths, bias, deterministic):
    """dqkv, and the gradient of the bias, None where there is none."""
    dqkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    blocks = sums = None
    # A look at what nearly always forbids it costs less than twelve views. In order it is from no fewer keys on.
    entry = ONE_PASS.get((sum(split(qkv.shape[-1])), False))
    if k_lengths is None and entry is not None and qkv.shape[1] >= (entry.short or entry.least):
        q, *others = _apart(qkv)
        blocks = in_one_for(False, k_lengths, deterministic, q, *others, _by_heads(do), *_apart(dqkv)[1:])
        sums = room(q, others[0], blocks)
    _write_backward(dqkv, row_terms(l), do, qkv, o, l, k_lengths, blocks, sums)
    if bias is None:
        return dqkv, None
    db = torch.zeros_like(bias, memory_format=torch.contiguous_format)
    db.view(3, -1)[::2] = dqkv.view(-1, 3, bias.numel() // 3)[:, ::2].sum(0)
    return dqkv, db


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv, k_lengths, bias, deterministic):
        o, l = _forward(qkv, k_lengths)
        ctx.save_for_backward(qkv, o, l, k_lengths, bias)
        ctx.deterministic = deterministic
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        dqkv, db = _backward(do, *ctx.saved_tensors, ctx.deterministic)
        return dqkv, None, db, None


@torch.library.custom_op("speed_of_light::packed_attention", mutates_args=())
def packed_attention_operator(
    qkv: torch.Tensor, k_lengths: torch.Tensor | None, bias: torch.Tensor | None = None, deterministic: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(o, L). To torch.compile it is one node; L has no gradient."""
    return _forward(qkv, k_lengths)


@packed_attention_operator.register_fake
def _(qkv, k_lengths, bias=None, deterministic=True):
    B, N, _, H, D = qkv.shape
    return qkv.new_empty(B, N, H, D), qkv.new_empty(B, H, N, dtype=torch.float32)


@torch.library.custom_op("speed_of_light::packed_attention_backward", mutates_args=())
def _backward_operator(
    do: torch.Tensor, qkv: torch.Tensor, o: torch.Tensor, l: torch.Tensor, k_lengths: torch.Tensor | None,
    bias: torch.Tensor | None, deterministic: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """dqkv, and the gradient of the bias, empty where there is none: an operator returns tensors."""
    dqkv, db = _backward(do, qkv, o, l, k_lengths, bias, deterministic)
    return dqkv, qkv.new_empty(0) if db is None else db


@_backward_operator.register_fake
def _(do, qkv, o, l, k_lengths, bias, deterministic):
    dqkv = torch.empty_like(qkv, memory_format=torch.contiguous_format)
    return dqkv, qkv.new_empty(0) if bias is None else torch.empty_like(bias, memory_format=torch.contiguous_format)


def _keep_for_backward(ctx, inputs, output):
    qkv, k_lengths, bias, ctx.deterministic = inputs
    ctx.save_for_backward(qkv, *output, k_lengths, bias)


def _operator_backward(ctx, do, _dl):
    dqkv, db = _backward_operator(do, *ctx.saved_tensors, ctx.deterministic)
    return dqkv, None, None if ctx.saved_tensors[-1] is None else db, None


packed_attention_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


def packed_attention(
    qkv: torch.Tensor, k_lengths: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    deterministic: bool = True,
) -> torch.Tensor:  # fmt: skip
    """softmax(q kᵀ / sqrt(D)) v of qkv (B, N, 3, H, D) -> (B, N, H, D), contiguous; differentiable in qkv and bias.

    D from 16 to 128; fp16, bf16 or fp32. k_lengths: (B,) integers; keys behind the length are neither used nor moved,
    and get gradients of 0. Queries behind it are padding too, and have to be finite. There o is finite and
    otherwise unspecified; its gradient, which has to be finite, is ignored, and that of q is 0.
    bias (3 H D,): one that is in qkv already, detached there, as in qkv = F.linear(x, w, bias.detach()). Its gradient
    is the sum of the rows of dqkv, for two thirds of a pass over them (see above). deterministic: as in `attention`.
    """
    assert qkv.dim() == 5 and qkv.shape[2] == 3, f"qkv is (batch, length, 3, heads, head size), not {tuple(qkv.shape)}"
    assert 16 <= qkv.shape[-1] <= 128, f"head size {qkv.shape[-1]}: these kernels take 16 to 128"
    assert isinstance(deterministic, bool), f"deterministic is True or False, not {deterministic!r}"
    if k_lengths is not None:
        assert k_lengths.shape == qkv.shape[:1], f"k_lengths holds one length for each of {qkv.shape[0]} sequences"
        k_lengths = k_lengths.to(torch.int32).contiguous()
    if bias is not None:
        width = math.prod(qkv.shape[2:])
        assert bias.shape == (width,), f"a bias of {width} numbers, not {tuple(bias.shape)}"
        bias = bias if bias.requires_grad else None  # nobody asks for its sums
    if torch.compiler.is_compiling():
        return packed_attention_operator(qkv, k_lengths, bias, deterministic)[0]
    # A Function costs the host 4 us a call, an operator 20.
    return _PackedAttention.apply(qkv, k_lengths, bias, deterministic)
