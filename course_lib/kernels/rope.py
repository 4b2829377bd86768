"""Rotary position embedding: q and k turned in place, by one launch, in one read and one write of device memory.

    pair j of a head is turned by the angle  position * f_j        f_j = base^(-2 j / R)        j = 0 .. R / 2 - 1

    y0 = x0 cos - x1 sin        halves:       the pair is (x[j], x[j + R / 2])     GPT-NeoX, Llama in transformers
    y1 = x1 cos + x0 sin        interleaved:  the pair is (x[2 j], x[2 j + 1])     the paper, Llama as it was released

q (B, H, S, D), k (B, H_kv, S, D), any strides. The first R elements of a head are turned, the rest is neither read nor
written. Backward is the same with the sine's sign turned: what it needs is the angles, and no activation is kept.

Bytes: 2 x element size for each element that is turned; tables of S R / 2 cosines and as many sines come from the L2
cache after their first read. 3 FLOP an element, 0.75 a byte in bf16: far left of any ridge, so the floor is a copy.

Whether x and out are the same memory makes no difference: a thread has loaded both elements of a pair before it stores
either, and no other thread stores them. angles.py has the frequencies and the two forms in which a kernel gets them.

Measured on an H200: benchmarks/notes/rope.md.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from course_lib.kernels.angles import Angles, Computed, Tables
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.strides import in_units, unit_of

__all__ = [
    "Blocks",
    "Computed",
    "Tables",
    "blocks_for",
    "heads_inside",
    "rope",
    "rope_",
    "rope_in_place_operator",
    "rope_kernel",
    "rope_operator",
    "rope_reference",
    "write_rope",
]

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


@triton.jit
def _positions(positions_ptr, batch, offs_s, mask_s, stride, offset):
    if positions_ptr is None:
        return offs_s.to(tl.int64) + offset
    else:
        at = positions_ptr + tl.cast(batch, tl.int64) * stride[0] + offs_s.to(tl.int64) * stride[1]
        return tl.load(at, mask=mask_s, other=0).to(tl.int64) + offset


@triton.jit
def _cos_sin_of_quarters(whole, rest):
    """cos and sin of whole + rest quarter turns, whole integer, |rest| <= 0.5.

    Two short polynomials (of the Cephes library, for up to an eighth of a turn, within 1.5 units in the last place);
    the number of the quarter says which of the two is the cosine, and its sign. tl.cos would reduce the angle once more
    and would bring along a path for huge angles: the kernel has 2000 lines of machine code, and 6400 with tl.cos.
    """
    x = rest * 1.5707963267948966
    z = x * x
    sin = x + x * z * (-1.6666654611e-1 + z * (8.3321608736e-3 - z * 1.9515295891e-4))
    cos = 1.0 - 0.5 * z + z * z * (4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5))
    quarter = whole.to(tl.int32) & 3
    odd = (quarter & 1) == 1
    turned_cos, turned_sin = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    turned_cos = tl.where((quarter == 1) | (quarter == 2), -turned_cos, turned_cos)
    return turned_cos, tl.where(quarter >= 2, -turned_sin, turned_sin)


@triton.jit
def _cos_sin(
    first_ptr, second_ptr, positions, mask_s, offs_p, n_positions,
    PAIRS: tl.constexpr, COMPUTED: tl.constexpr,
):  # fmt: skip
    """(positions, pairs) in fp32."""
    mask_p = offs_p < PAIRS
    if COMPUTED:
        high = tl.load(first_ptr + offs_p, mask=mask_p, other=0.0)[None, :]
        low = tl.load(second_ptr + offs_p, mask=mask_p, other=0.0)[None, :]
        position, high = tl.broadcast(positions.to(tl.float32)[:, None], high)
        # Whole quarters are taken off before anything is rounded: a fused multiply-add of two 24-bit factors rounds
        # once, by 2^-26 of a quarter at most, for every position below 2^24.
        whole = tl.floor(position * high + 0.5)
        rest = tl.fma(position, high, -whole) + position * low
        more = tl.floor(rest + 0.5)  # beyond 2^22 quarters the sum above had no bit left for a half
        return _cos_sin_of_quarters(whole + more, rest - more)
    else:
        # A position that the tables do not hold gives NaN, and reads nothing.
        known = mask_s & (positions >= 0) & (positions < n_positions)
        at, mask = positions[:, None] * PAIRS + offs_p[None, :], known[:, None] & mask_p[None, :]
        cos = tl.load(first_ptr + at, mask=mask, other=float("nan"))
        return cos, tl.load(second_ptr + at, mask=mask, other=float("nan"))


@triton.jit
def _turn(
    out_ptr, x_ptr, first_ptr, second_ptr, positions_ptr,
    batch, offs_s, first_head, n_heads, length, n_positions, offset,
    stride_out, stride_x, stride_positions,
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTED: tl.constexpr, INVERSE: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    offs_h = first_head + tl.arange(0, BLOCK_H)
    offs_p = tl.arange(0, BLOCK_P)
    mask_s = offs_s < length
    mask_rows = mask_s[:, None] & (offs_h < n_heads)[None, :]
    # Strides but that inside a row come in UNITs, so that the compiler sees wide accesses in rows of 72 elements too.
    x_rows = tl.cast(batch, tl.int64) * stride_x[0] + offs_s.to(tl.int64)[:, None] * stride_x[2]
    x_rows = (x_rows + offs_h.to(tl.int64)[None, :] * stride_x[1]) * UNIT  # (BLOCK_S, BLOCK_H)
    out_rows = tl.cast(batch, tl.int64) * stride_out[0] + offs_s.to(tl.int64)[:, None] * stride_out[2]
    out_rows = (out_rows + offs_h.to(tl.int64)[None, :] * stride_out[1]) * UNIT  # (BLOCK_S, BLOCK_H)
    x_ptrs, out_ptrs = x_ptr + x_rows[:, :, None], out_ptr + out_rows[:, :, None]  # (BLOCK_S, BLOCK_H, 1)

    # x is loaded before the tables: where positions are given, the loads of the tables have to wait for them.
    mask = mask_rows[:, :, None] & (offs_p < PAIRS)[None, None, :]
    if INTERLEAVED:
        # Both elements of a pair in one access: a step of two would halve what each access brings.
        offs_i = tl.arange(0, 2 * BLOCK_P)
        mask_i = mask_rows[:, :, None] & (offs_i < 2 * PAIRS)[None, None, :]
        # (BLOCK_S, BLOCK_H, 2 BLOCK_P)
        x = tl.load(x_ptrs + offs_i[None, None, :] * stride_x[3], mask=mask_i, other=0.0).to(tl.float32)
        x0, x1 = tl.split(tl.reshape(x, (x.shape[0], BLOCK_H, BLOCK_P, 2)))  # (BLOCK_S, BLOCK_H, BLOCK_P) each
    else:
        # (BLOCK_S, BLOCK_H, BLOCK_P) each
        x0 = tl.load(x_ptrs + offs_p[None, None, :] * stride_x[3], mask=mask, other=0.0).to(tl.float32)
        x1 = tl.load(x_ptrs + (PAIRS + offs_p)[None, None, :] * stride_x[3], mask=mask, other=0.0).to(tl.float32)

    positions = _positions(positions_ptr, batch, offs_s, mask_s, stride_positions, offset)
    cos, sin = _cos_sin(first_ptr, second_ptr, positions, mask_s, offs_p, n_positions, PAIRS, COMPUTED)
    if INVERSE:
        sin = -sin
    cos, sin = cos[:, None, :], sin[:, None, :]  # (BLOCK_S, 1, BLOCK_P): one angle for all heads
    y0 = (x0 * cos - x1 * sin).to(out_ptr.dtype.element_ty)  # (BLOCK_S, BLOCK_H, BLOCK_P)
    y1 = (x1 * cos + x0 * sin).to(out_ptr.dtype.element_ty)

    if INTERLEAVED:
        y = tl.reshape(tl.join(y0, y1), (x0.shape[0], BLOCK_H, 2 * BLOCK_P))
        tl.store(out_ptrs + offs_i[None, None, :] * stride_out[3], y, mask=mask_i)
    else:
        tl.store(out_ptrs + offs_p[None, None, :] * stride_out[3], y0, mask=mask)
        tl.store(out_ptrs + (PAIRS + offs_p)[None, None, :] * stride_out[3], y1, mask=mask)
    if REST:  # out of place only: in place, what is not turned is already there
        offs_r = tl.arange(0, BLOCK_R)
        mask_r = mask_rows[:, :, None] & (offs_r < REST)[None, None, :]
        rest = tl.load(x_ptrs + (2 * PAIRS + offs_r)[None, None, :] * stride_x[3], mask=mask_r, other=0.0)
        tl.store(out_ptrs + (2 * PAIRS + offs_r)[None, None, :] * stride_out[3], rest, mask=mask_r)


@triton.jit
def rope_kernel(
    q_out_ptr, k_out_ptr, q_ptr, k_ptr, first_ptr, second_ptr, positions_ptr,
    q_heads, k_heads, length, n_positions, offset,
    stride_q_out, stride_k_out, stride_q, stride_k,  # of batch, head and position in UNITs, of element
    stride_positions,  # of batch and position
    PAIRS: tl.constexpr, REST: tl.constexpr, INTERLEAVED: tl.constexpr, COMPUTED: tl.constexpr, INVERSE: tl.constexpr,
    HEADS_INSIDE: tl.constexpr, UNIT: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    q_blocks = tl.cdiv(q_heads, BLOCK_Q)
    blocks = q_blocks + tl.cdiv(k_heads, BLOCK_K)
    s_blocks = tl.cdiv(length, BLOCK_S)
    # Programs that run at the same time take neighbouring memory: the next heads, or the next positions.
    if HEADS_INSIDE:
        block = tl.program_id(0) % blocks
        s_block = tl.program_id(0) // blocks % s_blocks
    else:
        s_block = tl.program_id(0) % s_blocks
        block = tl.program_id(0) // s_blocks % blocks
    batch = tl.program_id(0) // (blocks * s_blocks)
    offs_s = s_block * BLOCK_S + tl.arange(0, BLOCK_S)
    # Two calls, and not one call with pointers chosen before it: the compiler forgets the alignment of a pointer that
    # is the result of a choice.
    if block < q_blocks:
        _turn(
            q_out_ptr, q_ptr, first_ptr, second_ptr, positions_ptr,
            batch, offs_s, block * BLOCK_Q, q_heads, length, n_positions, offset,
            stride_q_out, stride_q, stride_positions,
            PAIRS, REST, INTERLEAVED, COMPUTED, INVERSE, UNIT, BLOCK_Q, BLOCK_P, BLOCK_R,
        )  # fmt: skip
    else:
        _turn(
            k_out_ptr, k_ptr, first_ptr, second_ptr, positions_ptr,
            batch, offs_s, (block - q_blocks) * BLOCK_K, k_heads, length, n_positions, offset,
            stride_k_out, stride_k, stride_positions,
            PAIRS, REST, INTERLEAVED, COMPUTED, INVERSE, UNIT, BLOCK_K, BLOCK_P, BLOCK_R,
        )  # fmt: skip


@dataclass(frozen=True)
class Blocks:
    """Positions and heads that one program turns, and its warps."""

    positions: int
    q_heads: int
    k_heads: int
    warps: int


# Measured on an H200: programs of 2 to 8 KB are within 1 % of each other, and of a copy; 16 KB and 4 warps, as large as
# a row softmax likes them, are 4.6 % slower. `python -m benchmarks.rope_sweep` tries others.
WARPS = 2
# Elements of one tensor a program, where heads lie side by side (B, S, H, D in memory) and where positions do.
ELEMENTS = {True: 1024, False: 2048}
# Heads a program where positions lie side by side: each reads its block of the tables anew.
HEADS = 2
INTERPRETED = Blocks(positions=2, q_heads=2, k_heads=2, warps=4)  # so small that short inputs have several, part-filled


def blocks_for(q_heads: int, k_heads: int, rotary_size: int, heads_inside: bool, device: torch.device) -> Blocks:
    if device.type != "cuda":
        return INTERPRETED
    rows = max(1, ELEMENTS[heads_inside] // triton.next_power_of_2(rotary_size))
    most = rows if heads_inside else HEADS
    block_q, block_k = (min(most, triton.next_power_of_2(max(1, heads))) for heads in (q_heads, k_heads))
    return Blocks(max(1, rows // max(block_q, block_k)), block_q, block_k, WARPS)


def heads_inside(q) -> bool:
    """Do the heads of one position lie closer together than the positions of one head: (B, S, H, D) in memory?"""
    return q.stride(1) < q.stride(2)


@planned
def write_rope(
    q_out, k_out, q, k, first, second, positions, offset: int, computed: bool, interleaved: bool, inverse: bool,
    blocks: Blocks | None = None,
) -> None:  # fmt: skip
    """q, q_out (B, H, S, D), k, k_out (B, H_kv, S, D), any strides; in place where out is the tensor itself.

    first, second: cosines and sines (positions, R / 2), or with `computed` both parts of the frequencies (R / 2,).
    positions: (B, S) integers of any strides, or None for 0, 1, ..; `offset` is added to each. Bytes: read and write
    the first R elements of every head, all D of them where out is another tensor.
    """
    (B, q_heads, S, D), k_heads = q.shape, k.shape[1]
    pairs = first.shape[-1]
    inside = heads_inside(q)
    blocks = blocks or blocks_for(q_heads, k_heads, 2 * pairs, inside, q.device)
    programs = B * triton.cdiv(S, blocks.positions)
    programs *= triton.cdiv(q_heads, blocks.q_heads) + triton.cdiv(k_heads, blocks.k_heads)
    if programs == 0 or pairs == 0:
        return
    rest = 0 if q_out is q and k_out is k else D - 2 * pairs
    unit = unit_of(q_out, k_out, q, k)
    launch(
        rope_kernel, (programs,),
        q_out, k_out, q, k, first, second, positions,
        q_heads, k_heads, S, first.shape[0], offset,
        *(in_units(x, unit) for x in (q_out, k_out, q, k)),
        (0, 0) if positions is None else positions.stride(),
        PAIRS=pairs, REST=rest, INTERLEAVED=interleaved, COMPUTED=computed, INVERSE=inverse,
        HEADS_INSIDE=inside, UNIT=unit,
        BLOCK_S=blocks.positions, BLOCK_Q=blocks.q_heads, BLOCK_K=blocks.k_heads,
        BLOCK_P=triton.next_power_of_2(pairs), BLOCK_R=triton.next_power_of_2(max(1, rest)),
        num_warps=blocks.warps,
    )  # fmt: skip


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
