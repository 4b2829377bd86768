"""What others call: plain torch, the autograd Function, the operator that torch.compile takes whole, `attention`."""

import torch
from torch.autograd.function import once_differentiable

from course_lib.kernels.attention.backward import backward
from course_lib.kernels.attention.forward import forward

__all__ = ["attention", "attention_operator", "attention_reference"]

HEAD_SIZES = range(16, 129)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def attention_reference(q, k, v, causal: bool = False, scale: float | None = None, k_lengths=None):
    """The same in plain torch, scores and all, in fp32 or, for fp64 inputs, in fp64: (o, L)."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    group, (n_q, n_k) = q.shape[1] // k.shape[1], (q.shape[2], k.shape[2])
    wide_q, wide_k, wide_v = q.to(dtype), *(x.to(dtype).repeat_interleave(group, dim=1) for x in (k, v))
    see = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device)
    if causal:
        see = see.tril(n_k - n_q)
    if k_lengths is not None:
        there = torch.arange(n_k, device=q.device) < k_lengths.view(-1, 1, 1, 1)
        see = see & there
        # A probability of 0 hides no NaN: what lies behind the length is zeros to all products.
        wide_k, wide_v = (x.masked_fill(~there.mT, 0.0) for x in (wide_k, wide_v))
    s = (wide_q @ wide_k.mT * _scale(q, scale)).masked_fill(~see, -float("inf"))
    l = torch.logsumexp(s, dim=-1)
    # A row with no key: exp(-inf - 0) = 0, where exp(-inf - -inf) would be NaN.
    p = torch.exp(s - l.masked_fill(l == -float("inf"), 0.0)[..., None])
    return (p @ wide_v).to(q.dtype), l


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale, k_lengths, deterministic):
        o, l = forward(q, k, v, causal, scale, k_lengths)
        ctx.save_for_backward(q, k, v, o, l, k_lengths)
        ctx.causal, ctx.scale, ctx.deterministic = causal, scale, deterministic
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, o, l, k_lengths = ctx.saved_tensors
        grads = backward(do, q, k, v, o, l, ctx.causal, ctx.scale, k_lengths, None, ctx.deterministic)
        return *grads, None, None, None, None


@torch.library.custom_op("speed_of_light::attention", mutates_args=())
def attention_operator(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, k_lengths: torch.Tensor | None,
    deterministic: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(o, L), both differentiable. To torch.compile it is one node whose inside is never looked at."""
    return forward(q, k, v, causal, scale, k_lengths)


@attention_operator.register_fake
def _(q, k, v, causal, scale, k_lengths, deterministic=True):
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("speed_of_light::attention_backward", mutates_args=())
def _backward_operator(
    do: torch.Tensor, dl: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    o: torch.Tensor, l: torch.Tensor, causal: bool, scale: float, k_lengths: torch.Tensor | None, deterministic: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return backward(do, q, k, v, o, l, causal, scale, k_lengths, dl, deterministic)


@_backward_operator.register_fake
def _(do, dl, q, k, v, o, l, causal, scale, k_lengths, deterministic):
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep_for_backward(ctx, inputs, output):
    q, k, v, ctx.causal, ctx.scale, k_lengths, ctx.deterministic = inputs
    ctx.save_for_backward(q, k, v, *output, k_lengths)


def _operator_backward(ctx, do, dl):
    q, k, v, o, l, k_lengths = ctx.saved_tensors
    grads = _backward_operator(do, dl, q, k, v, o, l, ctx.causal, ctx.scale, k_lengths, ctx.deterministic)
    return *grads, None, None, None, None


attention_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


def _scale(q, scale: float | None) -> float:
    return q.shape[-1] ** -0.5 if scale is None else float(scale)


def _check(q, k, v, k_lengths) -> None:
    assert q.dim() == k.dim() == v.dim() == 4, "q, k and v are (batch, heads, length, head size)"
    assert k.shape == v.shape, f"k and v differ in shape: {tuple(k.shape)}, {tuple(v.shape)}"
    (B, H, _, D), kv_heads = q.shape, k.shape[1]
    assert k.shape[0] == B and k.shape[3] == D, f"q and k do not belong together: {tuple(q.shape)}, {tuple(k.shape)}"
    assert kv_heads and H % kv_heads == 0, f"{H} query heads cannot share {kv_heads} heads of keys evenly"
    assert D in HEAD_SIZES, f"head size {D}: this kernel takes {HEAD_SIZES[0]} to {HEAD_SIZES[-1]}"
    assert q.dtype == k.dtype == v.dtype and q.dtype in DTYPES, f"one type of {DTYPES}: {q.dtype}, {k.dtype}, {v.dtype}"
    if k_lengths is not None:
        assert k_lengths.shape == (B,), f"k_lengths holds one length for each of {B} sequences"
        assert k_lengths.device == q.device, f"k_lengths is on {k_lengths.device}, q on {q.device}"


def attention(
    q, k, v, causal: bool = False, scale: float | None = None, k_lengths=None, deterministic: bool = True
) -> torch.Tensor:
    """softmax(scale q kᵀ) v, differentiable in q, k and v; o has the shape, and where it can the strides, of q.

    q: (B, H, n_q, D); k, v: (B, H_kv, n_k, D), H a multiple of H_kv; D from 16 to 128; fp16, bf16 or fp32; any strides.
    causal: query m sees key n where n <= m + n_k - n_q. scale: 1 / sqrt(D) when None.
    k_lengths: (B,) integers; sequence b has k_lengths[b] keys, and what lies behind them is neither used nor moved.
    A query that sees no key gives zeros, and no gradient.
    deterministic: the same bits on every run. False, unless `torch.use_deterministic_algorithms(True)` forbids it,
    allows the last bits of dq to differ from run to run; those of o, dk and dv never do.
    On an H100 or H200 many calls of many keys go backward in one pass, either way, and take 4 B H n_q D
    bytes for it (tuning.ONE_PASS and IN_ORDER). Some of those in order, not causal and without k_lengths, begin when as
    many multiprocessors are free as they have programs, up to all of them (OnePass.dealt), also where a call that may
    have any order gets it (FASTER_IN_ORDER); all others run beside another kernel, such as a collective. Where
    torch.distributed has other ranks, calls of head size 97 to 128 and 32 heads or more (of the whole batch) are among
    those others too (BESIDE_COLLECTIVES), and the last bits of their gradients differ from those of a single rank.
    And the last bits of the gradients follow from the shapes of the whole batch and the number of multiprocessors.
    """
    _check(q, k, v, k_lengths)
    assert isinstance(deterministic, bool), f"deterministic is True or False, not {deterministic!r}"
    scale = _scale(q, scale)
    if scale < 0:  # the running maximum is taken before scaling, which only a scale of at least 0 leaves in order
        q, scale = -q, -scale
    if k_lengths is not None:
        k_lengths = k_lengths.to(torch.int32).contiguous()
    if torch.compiler.is_compiling():
        return attention_operator(q, k, v, causal, scale, k_lengths, deterministic)[0]
    # A Function costs the host 4 us a call, an operator 20.
    return _Attention.apply(q, k, v, causal, scale, k_lengths, deterministic)
