"""Dropout without a mask: which elements stay is computed, forward and again backward, from a seed and their place.

    y = x / (1 - p) where number(seed, offset + i) >= p, else 0        i: the element's row-major index

Philox, the generator, is a function: ten rounds of multiplications make four numbers of 32 bits of a seed and a
counter. So nothing is kept but the seed, 8 bytes, where a mask is a byte an element; and what an element gets does not
depend on blocks, programs or the order of anything.

    dropout_by_element   number i is tl.rand(seed, i): a counter an element, three of its four numbers thrown away
    dropout              number i is tl.rand4x(seed, i // 4)[i % 4]: a counter for four elements

Bytes: read x, write y. In bf16 that buys about 30 instructions an element; a counter costs about 60, or 40 where both
halves of a product come from one multiplication.

The seed is a tensor, drawn by torch's own generator where the data lies. So torch.manual_seed governs it, a replayed
CUDA graph draws a new one, and nobody waits for the host to read it. The operators are functions of it: torch.compile
sees an input where a hidden state would be, keeps it for backward, and may not draw twice.
"""

import numpy as np
import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from course_lib.kernels.launching import launch, planned
from course_lib.kernels.philox import SCALE, draw_seed, keeps, random_bits, smallest_kept

__all__ = ["dropout", "dropout_by_element", "dropout_operator", "dropout_reference", "numbers_reference"]

BLOCK, WARPS = 2048, 4


def numbers_reference(seed: int, counters: np.ndarray) -> np.ndarray:
    """(n,) counters -> (n, 4) numbers in [0, 1), float32: Philox 4x32 with ten rounds, as tl.rand4x makes them."""
    word = np.uint64(0xFFFFFFFF)
    counters, seed = counters.astype(np.uint64), np.uint64(seed % 2**64)
    c0, c1, c2, c3 = counters & word, counters >> np.uint64(32), np.zeros_like(counters), np.zeros_like(counters)
    k0, k1 = seed & word, seed >> np.uint64(32)
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> np.uint64(32)) ^ c1 ^ k0, b & word, (a >> np.uint64(32)) ^ c3 ^ k1, a & word
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & word, (k1 + np.uint64(0xBB67AE85)) & word
    bits = np.stack((c0, c1, c2, c3), axis=-1).astype(np.uint32).view(np.int32)
    return (bits ^ (bits >> 31)).astype(np.float32) * SCALE


def dropout_reference(x: torch.Tensor, p: float, seed: int, offset: int = 0, per_counter: int = 4) -> torch.Tensor:
    """per_counter 4: what `dropout` does; 1: what `dropout_by_element` does. In the type of x."""
    index = offset + np.arange(x.numel(), dtype=np.int64)
    numbers = numbers_reference(seed, index // per_counter)[np.arange(len(index)), index % per_counter]
    kept = torch.from_numpy(numbers >= np.float32(p)).view(x.shape).to(x.device)
    return torch.where(kept, x / (1 - p), 0.0)


@triton.jit
def _by_element_kernel(out_ptr, x_ptr, seed_ptr, n, offset, least, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    kept = keeps(tl.randint(tl.load(seed_ptr), offset + offs), least)
    tl.store(out_ptr + offs, (tl.where(kept, x, 0.0) * scale).to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _by_four_kernel(out_ptr, x_ptr, seed_ptr, n, offset, least, scale, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    counters = (offset + first) // 4 + tl.arange(0, BLOCK // 4)
    kept = keeps(tl.reshape(random_bits(tl.load(seed_ptr), counters[None, :]), (BLOCK,)), least)
    # Zeros go in before the multiplication. After it the results are rounded in pairs, and a choice between them would
    # have to take the pairs apart.
    tl.store(out_ptr + offs, (tl.where(kept, x, 0.0) * scale).to(out_ptr.dtype.element_ty), mask=mask)


@planned
def _write(out, x, seed, p: float, offset: int, per_counter: int) -> None:
    n, kernel = x.numel(), {1: _by_element_kernel, 4: _by_four_kernel}[per_counter]
    if n:
        block = BLOCK if x.device.type == "cuda" else 256
        launch(
            kernel, (triton.cdiv(n, block),),
            out, x, seed,
            n, offset, smallest_kept(p), 1 / (1 - p),
            BLOCK=block, num_warps=WARPS,
        )  # fmt: skip


def dropout_by_element(x, p: float, seed: torch.Tensor, out=None, offset: int = 0) -> torch.Tensor:
    """The first rung; x and out contiguous, seed (1,) int64. No gradient is recorded."""
    _check(x, p, seed)
    out = torch.empty_like(x) if out is None else out
    assert x.is_contiguous() and out.is_contiguous() and out.shape == x.shape, "contiguous, of one shape"
    _write(out, x, seed, p, offset, 1)
    return out


def _dropped(x, seed, p: float, offset: int) -> torch.Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _write(out, x, seed, p, offset, 4)
    return out


@torch.library.custom_op("speed_of_light::dropout", mutates_args=())
def dropout_operator(x: torch.Tensor, seed: torch.Tensor, p: float, offset: int) -> torch.Tensor:
    """A function of x and seed: the same on every call. Backward is the operator itself, on the gradient."""
    return _dropped(x, seed, p, offset)


@dropout_operator.register_fake
def _(x, seed, p, offset):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _keep_for_backward(ctx, inputs, output):
    _, seed, ctx.p, ctx.offset = inputs
    ctx.save_for_backward(seed)


def _operator_backward(ctx, dy):
    (seed,) = ctx.saved_tensors
    return dropout_operator(dy, seed, ctx.p, ctx.offset), None, None, None


dropout_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seed, p, offset):
        ctx.save_for_backward(seed)
        ctx.p, ctx.offset = p, offset
        return _dropped(x, seed, p, offset)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return _dropped(dy, *ctx.saved_tensors, ctx.p, ctx.offset), None, None, None


def _check(x, p: float, seed) -> None:
    assert x.is_floating_point(), f"numbers that can be scaled, not {x.dtype}"
    assert 0 <= p < 1, f"0 <= p < 1: with p = {p} there is nothing to scale by 1 / (1 - p)"
    if seed is not None:
        assert seed.dtype == torch.int64 and seed.numel() == 1, f"a seed is one int64, not {seed.numel()} {seed.dtype}"
        assert seed.device == x.device, f"the seed is on {seed.device}, x on {x.device}"


def dropout(x, p: float = 0.5, training: bool = True, seed=None, offset: int = 0) -> torch.Tensor:
    """x of any shape and strides -> contiguous; differentiable. Keeps 8 bytes for backward.

    seed: (1,) int64 on x's device; drawn anew where none is given. Several calls may share one, each from another
    `offset` on, a multiple of 4: they then cost one launch for all their seeds.
    """
    _check(x, p, seed)
    assert offset % 4 == 0, f"four elements share a counter: an offset is a multiple of 4, not {offset}"
    if not training or p == 0:
        return x
    seed = draw_seed(x.device) if seed is None else seed
    if torch.compiler.is_compiling():
        return dropout_operator(x, seed, p, offset)
    return _Dropout.apply(x, seed, p, offset)
