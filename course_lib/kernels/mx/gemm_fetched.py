"""y = x wᵀ for 17 to 256 rows of x: one warp fetches tiles, two groups of four warps convert weights and multiply.

gemm_registers.py reads x through the L1 cache for every 32 rows of weights, which costs more than the weights from 32
rows of x on. Here x comes by the copy engine into shared memory, once for all rows of weights of a program, and wgmma
reads it there. Weights come the same way as bytes. A consumer takes its part of them into registers, makes them bf16
and hands them to wgmma from there. While wgmma multiplies one block the next one is converted; and while one consumer
waits, the other one's products run. rings.py has the barriers where they meet.

Of 16 columns wgmma wants from thread t of four the columns 2 t, 2 t + 1, 2 t + 8, 2 t + 9. In memory the two of a
pair are adjacent, so weights are read as pairs, 16 bits each; 8 rows of 128 swizzled bytes have no bank in common.
A pair takes a load and 5 instructions to become bf16. With l a weight's low 7 bits and s its sign bit, bytes 0x43 and
the weight's are a bf16 whose bits & 0xFF7F are 128 + l and whose bits & 0xFF80 are 128 + 128 s; their difference is
the weight, exact, and so is the weight times its scale.

Few tiles leave multiprocessors idle, so the sum along K is cut into SPLIT parts, which `sum_parts_kernel` adds up in a
fixed order: the same bits on every run.

Bytes: N K (1 + 1 / 32) from memory, 2 K a row of x for every tile of weights from the L2 cache, and 8 rows x N x SPLIT
for parts. FLOP: 2 rows N K.
On an H200, N 14336, K 4096: 22.8 us with 32 rows of x, 27.2 with 64, 37.6 with 128, 61.2 with 256, which are 0.74,
0.85, 1.12 and 1.38 of what cuBLAS takes for bf16 weights.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from course_lib.kernels.descriptors import make_context_current
from course_lib.kernels.mx.format import GROUP, Quantized
from course_lib.kernels.mx.gemm import add_parts
from course_lib.kernels.mx.gemm_registers import SCALES
from course_lib.kernels.mx.tuning import Fetched
from course_lib.kernels.rings import LAUNCH, arrived, claim, new_ring, release

__all__ = ["fetched_kernel", "swizzled", "write_fetched"]

_PAIR = """
    prmt.b32 v, {word}, $6, 0x4140;
    and.b32 s, v, 0xFF80FF80;
    and.b32 v, v, 0xFF7FFF7F;
    sub.rn.bf16x2 v, v, s;
    mul.rn.bf16x2 {out}, v, {scale};"""
# Two pairs of weights, the low halves of $2 and $3, with scales $4 and $5, become $0 and $1; $6 is HIGH.
PAIRS = gl.constexpr(
    "{\n    .reg .b32 v, s;"
    + _PAIR.format(word="$2", scale="$4", out="$0")
    + _PAIR.format(word="$3", scale="$5", out="$1")
    + "\n}"
)
HIGH = gl.constexpr(0x43434343)


@triton.constexpr_function
def _doubles(first, most, place):
    """Bases first, 2 first, ... below most, at a place of five."""
    return [[first << n if i == place else 0 for i in range(5)] for n in range((most // first).bit_length() - 1)]


@triton.constexpr_function
def _layout(rows, groups):
    """(rows, groups, 2, 2, 4): where pairs are; columns are 32 a group, 16 a step, 8 a half, 2 a thread.

    The two halves of a step come first in a thread: they are converted together.
    """
    registers = _doubles(1, 2, 3) + _doubles(1, 2, 2) + _doubles(1, groups, 1) + _doubles(8, 16, 0)
    lanes = _doubles(1, 4, 4) + _doubles(1, 8, 0)
    shape = [rows, groups, 2, 2, 4]
    return gl.DistributedLinearLayout(registers + _doubles(64, rows, 0), lanes, _doubles(16, 64, 0), [], shape)


@triton.constexpr_function
def _flat(layout):
    """The same for (rows, pairs of columns)."""

    def flat(bases):
        return [[row, 16 * group + 8 * step + 4 * half + t] for row, group, step, half, t in bases]

    rows, groups = layout.shape[:2]
    bases = [flat(part) for part in (layout.reg_bases, layout.lane_bases, layout.warp_bases)]
    return gl.DistributedLinearLayout(*bases, [], [rows, 16 * groups])


@gluon.jit
def _weights(buffer, e, high, L: gl.constexpr, ACC: gl.constexpr):
    """(rows, BLOCK_K) bf16 in the registers where wgmma wants them, of pairs in shared memory and exponents."""
    R: gl.constexpr = L.shape[0]
    G: gl.constexpr = L.shape[1]
    pairs = buffer.load(_flat(L)).reshape([R, G, 2, 2, 4])
    pairs = gl.convert_layout(pairs, L, assert_trivial=True)
    bits = e.to(gl.int32) * 0x00800080
    scale = gl.inline_asm_elementwise(SCALES, "=r,r", [bits], dtype=gl.int32, is_pure=True, pack=1)
    scale = scale[:, :, None, None, None].broadcast_to([R, G, 2, 2, 4])
    given = pairs.to(gl.int32), scale, gl.full([R, G, 2, 2, 4], high, gl.int32, L)
    two: gl.constexpr = (gl.bfloat16, gl.bfloat16)
    first, second = gl.inline_asm_elementwise(PAIRS, "=&r,=&r,r,r,r,r,r,r", given, dtype=two, is_pure=True, pack=2)
    # Two pairs went in, one a half; out came two columns each: (R, G, step, column, t, half).
    w = gl.join(first, second).permute([0, 1, 2, 5, 4, 3]).reshape([R, 32 * G])
    return gl.convert_layout(w, gl.DotOperandLayout(0, ACC, 2), assert_trivial=True)


@gluon.jit
def _produce(w_desc, x_desc, w, x, ring, at):
    R: gl.constexpr = w.shape[1]
    BLOCK_K: gl.constexpr = x.shape[2]
    first_n, first_m, first_k, steps = at
    BYTES: gl.constexpr = 2 * R * BLOCK_K + x_desc.block_type.shape[0] * BLOCK_K * 2
    for step in range(steps):
        k = first_k + step * BLOCK_K
        place, bar = claim(ring, step, BYTES)
        for i in gl.static_range(2):
            tma.async_copy_global_to_shared(w_desc, [first_n + i * R, k // 2], bar, w.index(2 * place + i))
        tma.async_copy_global_to_shared(x_desc, [first_m, k], bar, x.index(place))


@gluon.jit
def _consume(out_ptr, e_ptr, bias_ptr, w, x, ring, at, sizes, WHICH: gl.constexpr):
    R: gl.constexpr = w.shape[1]
    BLOCK_M: gl.constexpr = x.shape[1]
    BLOCK_K: gl.constexpr = x.shape[2]
    first_n, first_m, first_k, steps = at
    M, N, groups, stride_out = sizes
    G: gl.constexpr = BLOCK_K // 32
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    L: gl.constexpr = _layout(R, G)
    BY_GROUP: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, gl.SliceLayout(4, L)))
    row = first_n + WHICH * R + gl.arange(0, R, gl.SliceLayout(1, BY_GROUP))
    row = gl.minimum(row, N - 1)  # nobody stores the others
    offs_g = first_k // 32 + gl.arange(0, G, gl.SliceLayout(0, BY_GROUP))
    e_ptrs = e_ptr + (row.to(gl.int64) * groups)[:, None] + offs_g[None, :]

    # The assembler would load a constant anew for every pair. One that it does not know as such stays in a register.
    high = gl.minimum(N, 0) + HIGH

    # Exponents are asked for two blocks ahead. Beyond the end the last ones are read again.
    e = gl.load(e_ptrs)
    e_next = gl.load(e_ptrs + gl.minimum(1, steps - 1) * G)
    a = _weights(w.index(2 * arrived(ring, 0) + WHICH), e, high, L, ACC)
    acc = gl.zeros([R, BLOCK_M], gl.float32, ACC)
    for step in range(steps - 1):
        acc = warpgroup_mma(a, x.index(step % x.shape[0]).permute([1, 0]), acc, is_async=True)
        e_soon = gl.load(e_ptrs + gl.minimum(step + 2, steps - 1) * G)
        a_next = _weights(w.index(2 * arrived(ring, step + 1) + WHICH), e_next, high, L, ACC)
        acc, a = warpgroup_mma_wait(0, deps=[acc, a])
        release(ring, step)
        a, e_next = a_next, e_soon
    acc = warpgroup_mma(a, x.index((steps - 1) % x.shape[0]).permute([1, 0]), acc, is_async=True)
    acc, a = warpgroup_mma_wait(0, deps=[acc, a])

    offs_n = first_n + WHICH * R + gl.arange(0, R, gl.SliceLayout(1, ACC))
    offs_m = first_m + gl.arange(0, BLOCK_M, gl.SliceLayout(0, ACC))
    mask_n, mask_m = offs_n < N, offs_m < M
    if bias_ptr is not None:
        acc += gl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(gl.float32)[:, None]
    out_ptrs = out_ptr + offs_m.to(gl.int64)[None, :] * stride_out + offs_n[:, None]
    gl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask_n[:, None] & mask_m[None, :])


@gluon.jit(do_not_specialize=["M", "steps", "steps_a_part"])
def fetched_kernel(
    out_ptr, w_desc, e_ptr, x_desc, bias_ptr,
    M, N, groups, steps, steps_a_part,
    stride_out_part, stride_out,
    STAGES: gl.constexpr,
):  # fmt: skip
    R: gl.constexpr = w_desc.block_type.shape[0]
    BLOCK_M: gl.constexpr = x_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = x_desc.block_type.shape[1]
    # Programs with the same weights are neighbours: the second one finds them in the L2 cache.
    first_m, first_n = gl.program_id(0) * BLOCK_M, gl.program_id(1) * (2 * R)
    part = gl.program_id(2)
    first_k = part * steps_a_part * BLOCK_K
    steps = gl.minimum(steps_a_part, steps - part * steps_a_part)
    out_ptr += gl.to_tensor(part).to(gl.int64) * stride_out_part

    w = gl.allocate_shared_memory(gl.int16, [2 * STAGES, R, BLOCK_K // 2], w_desc.layout)
    x = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_M, BLOCK_K], x_desc.layout)
    ring = new_ring(STAGES, 2)
    fence_async_shared()
    at = first_n, first_m, first_k, steps
    sizes = M, N, groups, stride_out
    gl.warp_specialize(
        [
            (_consume, (out_ptr, e_ptr, bias_ptr, w, x, ring, at, sizes, 0)),
            (_consume, (out_ptr, e_ptr, bias_ptr, w, x, ring, at, sizes, 1)),
            (_produce, (w_desc, x_desc, w, x, ring, at)),
        ],
        [4, 1],  # warps of the second and third
        [240, 24],  # and their registers
    )


def swizzled(columns: int) -> gl.NVMMASharedLayout:
    """Rows of so many 16-bit numbers, up to 128 bytes each, as wgmma wants them; wider ones are several beside."""
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, 2 * columns), element_bitwidth=16, rank=2)


def _described(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    make_context_current(x)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns], swizzled(columns))


def write_fetched(out, x, w: Quantized, bias: torch.Tensor | None, blocks: Fetched) -> None:
    """out (rows, N), x (rows, K) in bf16, columns adjacent, that `rungs.fetched_for` takes."""
    M, (N, K) = x.shape[0], w.mantissas.shape
    assert K % blocks.k == 0 and w.group == GROUP, f"{N} x {K} weights: columns in steps of {blocks.k}, groups of 32"
    steps = K // blocks.k
    a_part = triton.cdiv(steps, blocks.split)
    split = triton.cdiv(steps, a_part)
    parts = out if split == 1 else torch.empty(split, M, N, dtype=torch.float32, device=out.device)
    fetched_kernel[(triton.cdiv(M, blocks.m), triton.cdiv(N, blocks.n), split)](
        parts, _described(w.mantissas.view(torch.int16), blocks.n // 2, blocks.k // 2), w.exponents,
        _described(x, blocks.m, blocks.k), bias if split == 1 else None,
        M, N, K // GROUP, steps, a_part,
        parts.stride(0) if split > 1 else 0, parts.stride(-2),
        STAGES=blocks.stages, **LAUNCH,
    )  # fmt: skip
    if split > 1:
        add_parts(out, parts, bias)
