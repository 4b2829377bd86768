"""y = x wᵀ for one row of x: a warp has rows of weights of its own and walks along them.

A thread takes 16 adjacent weights of each row, half a group: 16 bytes, and one scale, which multiplies the thread's own
sum. So nothing is exchanged before the end of K, where one sum over the warp's threads is left to do, in a fixed order:
no barrier, no shared memory, and the same bits on every run. A program is one warp: 16 or more of them on each
multiprocessor start and end when they like, where gemv.py's of four wait for each other. PIECES times 512 columns of
BLOCK_N rows are asked for while those before them are multiplied.

A weight becomes fp32 by choosing bytes: 0x44000000 with m + 128 in its second byte is 512 + (m + 128) / 64, and 514 is
taken off again, exactly. Two instructions at full rate, where an integer of 8 bits becomes fp32 at an eighth of it.

Bytes: N K (1 + 1 / 32); x comes from the L1 cache. On an H200: 17.7 us at N 14336, K 4096, 6.6 at N = K = 4096, 17.4 at
N 4096, K 14336, which are 0.58, 0.49 and 0.54 of what cuBLAS takes for bf16 weights; gemv.py takes 20.8, 8.3 and 22.8.
With weights waiting in shared memory instead of registers: 18.2, 7.5 and 18.8.

K and the stride of the weights are constants to the compiler.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.tuning import PIECE, Walk

__all__ = ["by_warp_kernel", "write_by_warp"]

# A word of four weights to 512 + (m + 128) / 64, four times.
UNPACK = gl.constexpr("""{
    .reg .b32 t;
    xor.b32 t, $4, 0x80808080;
    prmt.b32 $0, t, 0x44000000, 0x7504;
    prmt.b32 $1, t, 0x44000000, 0x7514;
    prmt.b32 $2, t, 0x44000000, 0x7524;
    prmt.b32 $3, t, 0x44000000, 0x7534;
}""")


@gluon.jit
def _sums(w, scale, x):
    """Words (pieces, rows, 32, 4), scales without the 4, x (pieces, 32, 4) of four bf16 -> scaled sums of 16."""
    low, high = x.to(gl.int32), (x >> 32).to(gl.int32)
    x0, x1 = (low << 16).to(gl.float32, bitcast=True), (low & -65536).to(gl.float32, bitcast=True)
    x2, x3 = (high << 16).to(gl.float32, bitcast=True), (high & -65536).to(gl.float32, bitcast=True)
    four: gl.constexpr = (gl.float32, gl.float32, gl.float32, gl.float32)
    w0, w1, w2, w3 = gl.inline_asm_elementwise(UNPACK, "=r,=r,=r,=r,r", [w], dtype=four, is_pure=True, pack=1)
    w0, w1, w2, w3 = w0 - 514.0, w1 - 514.0, w2 - 514.0, w3 - 514.0
    y = w0 * gl.expand_dims(x0, 1)
    y += w1 * gl.expand_dims(x1, 1)
    y += w2 * gl.expand_dims(x2, 1)
    y += w3 * gl.expand_dims(x3, 1)
    return gl.sum(y, 3) * scale


@gluon.jit
def _scales(e):
    """2^(e - 127). Made before it goes round the loop, where bytes would be packed and unpacked again."""
    e = e.to(gl.int32)
    bits = gl.maximum(e << 23, 0x400000)  # 2^-127, a subnormal number, where e is 0
    return gl.where(e == 255, 0x7FC00000, bits).to(gl.float32, bitcast=True)


@gluon.jit
def _fetch(m_ptrs, e_ptrs, x_ptrs, step, PIECES: gl.constexpr):
    # Words of four weights, (PIECES, BLOCK_N, 32, 4), go past the L1 cache, which is for x (PIECES, 32, 4).
    w = gl.load(m_ptrs + step * (128 * PIECES), cache_modifier=".cg")
    return w, gl.load(e_ptrs + step * (16 * PIECES)), gl.load(x_ptrs + step * (128 * PIECES))


@gluon.jit
def by_warp_kernel(
    out_ptr, m_ptr, e_ptr, x_ptr, bias_ptr,
    N,
    K: gl.constexpr, STRIDE_M: gl.constexpr,
    BLOCK_N: gl.constexpr, PIECES: gl.constexpr, UNROLLED: gl.constexpr,
):  # fmt: skip
    # (pieces, rows, 32, 4) words; the same without the words; without the rows
    W: gl.constexpr = gl.BlockedLayout([1, 1, 1, 4], [1, 1, 32, 1], [1, 1, 1, 1], [3, 2, 1, 0])
    FLAT: gl.constexpr = gl.SliceLayout(3, W)
    X: gl.constexpr = gl.SliceLayout(1, W)
    STEPS: gl.constexpr = K // (512 * PIECES)

    # Rows beyond the last read the last one, and are not stored.
    rows = gl.program_id(0) * BLOCK_N + gl.arange(0, BLOCK_N, gl.SliceLayout(0, gl.SliceLayout(2, FLAT)))
    row = gl.minimum(rows, N - 1)[None, :, None]
    # A row's place and then a piece's, in this order: the other way round Triton 3.6's compiler needs 95 registers
    # instead of 127 and asks for the next step when this one is nearly done.
    j = gl.arange(0, PIECES, gl.SliceLayout(1, gl.SliceLayout(2, FLAT)))[:, None, None]
    piece = j * 32 + gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, FLAT)))[None, None, :]
    word = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, W))))[None, None, None, :]
    m_ptrs = m_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
    m_ptrs += gl.expand_dims(row * (STRIDE_M // 16) + piece, 3) * 4 + word
    e_ptrs = e_ptr + (row * (K // 32) + piece // 2)
    j = gl.arange(0, PIECES, gl.SliceLayout(1, gl.SliceLayout(2, X)))[:, None, None]
    piece = j * 32 + gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(2, X)))[None, :, None]
    word = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, X)))[None, None, :]
    x_ptrs = x_ptr.to(gl.pointer_type(gl.int64), bitcast=True) + (piece * 4 + word)

    w, e, x = _fetch(m_ptrs, e_ptrs, x_ptrs, 0, PIECES)
    scale, acc = _scales(e), gl.zeros((PIECES, BLOCK_N, 32), gl.float32, layout=FLAT)
    if UNROLLED:
        for step in gl.static_range(1, STEPS):
            w_soon, e, x_soon = _fetch(m_ptrs, e_ptrs, x_ptrs, step, PIECES)
            acc += _sums(w, scale, x)
            w, scale, x = w_soon, _scales(e), x_soon
    else:
        for step in range(1, STEPS):
            w_soon, e, x_soon = _fetch(m_ptrs, e_ptrs, x_ptrs, step, PIECES)
            acc += _sums(w, scale, x)
            w, scale, x = w_soon, _scales(e), x_soon
    acc += _sums(w, scale, x)

    y = gl.sum(gl.sum(acc, 0), 1)
    rows = gl.program_id(0) * BLOCK_N + gl.arange(0, BLOCK_N, layout=y.type.layout)
    if bias_ptr is not None:
        y += gl.load(bias_ptr + rows, mask=rows < N, other=0.0).to(gl.float32)
    gl.store(out_ptr + rows, y.to(out_ptr.dtype.element_ty), mask=rows < N)


def write_by_warp(out, x, w: Quantized, bias: torch.Tensor | None, blocks: Walk) -> None:
    """out (1, N), x (1, K) in bf16, columns adjacent, that `rungs.walk_for` takes. FLOP: 2 N K."""
    (N, K), stride = w.mantissas.shape, w.mantissas.stride(0)
    assert x.shape[0] == 1 and K % (PIECE * blocks.pieces) == 0, f"one row, and {K} columns in whole steps"
    assert N * stride < 2**33, "words of weights are numbered in 32 bits"
    by_warp_kernel[(triton.cdiv(N, blocks.n),)](
        out, w.mantissas, w.exponents, x, bias,
        N,
        K=K, STRIDE_M=stride,
        BLOCK_N=blocks.n, PIECES=blocks.pieces, UNROLLED=blocks.unrolled,
        num_warps=1,
    )  # fmt: skip
