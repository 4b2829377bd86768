"""y = x wᵀ for up to 64 rows of x on the tensor cores: weights become bf16 where the product reads them, in registers.

A sum over K may be taken in any order. The tensor cores want of every 16 columns two and two from each of four threads;
memory wants 16 adjacent bytes from each. So columns change names: of every 64, thread t of the four has columns 16 t to
16 t + 15, of the weights and of x alike, and they play the parts of its places in four products. Nobody passes a weight
to another thread: each reads 16 bytes and multiplies what it has read.

    of a thread's 16 columns   8 a + 4 q1 + 2 p + q0     (2 a + q1: its word of four weights)
    product                    a, q1
    place of 16 in it          8 q0 + 2 t + p

A pair is columns k and k + 2, because a mask of bytes 0 and 2 of a word is one instruction. Four weights take 9: with l
its low 7 bits and s its sign bit, bits 0x4300 | l are 128 + l in bf16 and 0x4300 | s << 7 are 128 + 128 s; their
difference is the weight, and the weight times its scale is exact too.

A program has BLOCK_N rows of weights and all of K. WARPS of its warps take turns along K, 128 columns each, and add up
once, in a fixed order: one launch, no parts in memory, and the same bits on every run. BESIDE times as many share these
columns, with rows of weights of their own. While a warp multiplies, the next 128 columns are on their way to it.

Bytes: N K (1 + 1 / 32), and 2 K a row of x for every BLOCK_N rows of weights, where possible from the L1 cache. K and
the strides are constants to the compiler: rows lie at fixed distances, which takes no registers.
On an H200, N 14336, K 4096: 18.8 us with 2 rows of x, 20.5 with 16, 30.4 with 32, 36.8 with 64, which are 0.58, 0.67,
0.99 and 1.15 of what cuBLAS takes for bf16 weights; gemm.py takes 37, 38, 46 and 53. From 17 rows on gemm_fetched.py is
faster, with 22.8 and 27.2 at 32 and 64, but for few rows of weights that are short: tuning.py has where. With weights
waiting in shared memory instead of registers, 64 columns at a time and up to six times ahead: 22.0 with 16 rows, 47
with 64.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.tuning import Direct
from course_lib.kernels.rings import sync

__all__ = ["direct_kernel", "write_direct"]

COLUMNS = gl.constexpr(128)  # that a warp takes at once: four groups, whose exponents are one word

# Two exponents << 7, each of which is 2^(e - 127) in bf16 but 0 for e = 0 and infinite for 255 -> 2^(e - 133). The
# maximum makes it right for 0, and 0 times it NaN for 255. Times 2^-6: subnormal numbers come out right.
SCALES = gl.constexpr("""{
    .reg .b32 least, zero, small, s;
    mov.b32 least, 0x00400040;
    mov.b32 zero, 0;
    mov.b32 small, 0x3C803C80;
    max.bf16x2 s, $1, least;
    mul.rn.bf16x2 zero, s, zero;
    fma.rn.bf16x2 $0, s, small, zero;
}""")
_PAIR = """
    lop3.b32 v, {word}, 0x007F007F, 0x43004300, 0xEA;
    lop3.b32 s, {word}, 0x00800080, 0x43004300, 0xEA;
    sub.rn.bf16x2 v, v, s;
    mul.rn.bf16x2 {out}, v, {scale};"""
_WORD = _PAIR + "\n    shr.u32 w, {word}, 8;" + _PAIR.replace("{word}", "w").replace("{out}", "{odd}")
# Two words of weights, $4 and $5, with scales $6 and $7: bytes 0 and 2 of the first are $0, its bytes 1 and 3 are $1.
WEIGHTS = gl.constexpr(
    "{\n    .reg .b32 v, s, w;"
    + _WORD.format(word="$4", scale="$6", out="$0", odd="$1")
    + _WORD.format(word="$5", scale="$7", out="$2", odd="$3")
    + "\n}"
)


@triton.constexpr_function
def _doubles(first, most, dim):
    """Bases along one of four dimensions: first, 2 first, ... below most."""
    return [[first << n if i == dim else 0 for i in range(4)] for n in range((most // first).bit_length() - 1)]


@triton.constexpr_function
def _layout(warps, beside, rows, words, of_x):
    """(warps, rows, 4, words): a thread has all words; 4 threads have a row, 8 rows a warp, more its registers.

    `beside` warps share columns: of the weights they have 16 rows each in turn, as the product wants it, of x all.
    """
    lanes = _doubles(1, 4, 2) + _doubles(1, 8, 1)
    apart = 1 if of_x else beside
    registers = _doubles(1, words, 3) + _doubles(8, min(rows, 16), 1) + _doubles(16 * apart, rows, 1)
    near = [[0, 0 if of_x else base[1], 0, 0] for base in _doubles(16, 16 * beside, 1)]
    return gl.DistributedLinearLayout(registers, lanes, near + _doubles(1, warps, 0), [], [warps, rows, 4, words])


@gluon.jit
def _place(ptr, rows, STRIDE: gl.constexpr, A_WARP: gl.constexpr, A_THREAD: gl.constexpr, LAYOUT: gl.constexpr):
    """Pointers to four words for each (warp, row, t), and which warp; strides in words."""
    BY_ROW: gl.constexpr = gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT))
    BY_T: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))
    warp = gl.arange(0, LAYOUT.shape[0], gl.SliceLayout(1, BY_ROW))
    row = gl.arange(0, LAYOUT.shape[1], gl.SliceLayout(0, BY_ROW))
    row = row if rows is None else gl.minimum(row, rows - 1)  # cheaper than a mask at every load; nobody stores them
    t, word = gl.arange(0, 4, gl.SliceLayout(1, BY_T)), gl.arange(0, 4, gl.SliceLayout(0, BY_T))
    at = (warp[:, None] * A_WARP + row[None, :] * STRIDE)[:, :, None, None]
    at += (t[:, None] * A_THREAD + word[None, :])[None, None, :, :]
    return ptr.to(gl.pointer_type(gl.int32), bitcast=True) + at, warp


@gluon.jit
def _exponents(e_ptr, words: gl.constexpr, W: gl.constexpr, BESIDE: gl.constexpr, R: gl.constexpr):
    """All exponents of the program's rows, in shared memory: (turns, warps, rows), a word for 128 columns."""
    TURNS: gl.constexpr = (words + W - 1) // W
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [W, 32 // W], [1, W * BESIDE], [0, 1])
    warp = gl.arange(0, W, gl.SliceLayout(1, LAYOUT))[:, None]
    row = gl.arange(0, R, gl.SliceLayout(0, LAYOUT))[None, :]
    shared = gl.allocate_shared_memory(gl.int32, [TURNS, W, R], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    e_ptrs = e_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + row * words
    every = ()
    for turn in gl.static_range(TURNS):
        word = warp + turn * W
        every = every + (gl.load(e_ptrs + word, mask=word < words, other=0),)
    for turn in gl.static_range(TURNS):
        shared.index(turn).store(every[turn])
    return shared


@gluon.jit
def _scales(e):
    """For the two groups of (warp, row, t), of its word of exponents: first in the low half, second in the high one."""
    t = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, e.type.layout.parent)))
    bits = ((e[:, :, None] >> ((t >> 1) * 8)[None, None, :]) & 0x00FF00FF) << 7
    return gl.inline_asm_elementwise(SCALES, "=r,r", [bits], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _add_32(acc, words, scale, x, H: gl.constexpr, A: gl.constexpr, BESIDE: gl.constexpr):
    """acc plus the product of 32 of the warp's 128 columns: of each 64 (H), of each thread's 16 a half (A)."""
    W: gl.constexpr = acc.shape[0]
    R: gl.constexpr = acc.shape[1]
    HALF: gl.constexpr = _layout(W, BESIDE, R, 2, False)
    halves = words.reshape([W, R, 4, 2, 2]).permute([0, 1, 2, 4, 3]).split()
    words = gl.convert_layout(halves[A], HALF, assert_trivial=True)
    twice: gl.constexpr = "prmt.b32 $0, $1, 0, 0x3232;" if H == 1 else "prmt.b32 $0, $1, 0, 0x1010;"
    scale = gl.inline_asm_elementwise(twice, "=r,r", [scale], dtype=gl.int32, is_pure=True, pack=1)
    scale = gl.convert_layout(scale, gl.SliceLayout(3, HALF), assert_trivial=True)[:, :, :, None]
    four: gl.constexpr = (gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16)
    b0, b1, b2, b3 = gl.inline_asm_elementwise(
        WEIGHTS, "=&r,=&r,=&r,=&r,r,r,r,r", [words, scale.broadcast_to(words.shape)], dtype=four, is_pure=True, pack=2
    )
    w = gl.join(gl.join(b0, b1), gl.join(b2, b3))  # (W, R, t, p, q0, q1): two words went in, p = 0 and 1 came out
    w = w.permute([0, 1, 5, 4, 2, 3]).reshape([W, R, 32])
    even, odd = gl.inline_asm_elementwise(
        "prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632;",
        "=&r,=&r,r,r", [x], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    x = gl.join(even, odd).reshape([W, acc.shape[2], 4, 2, 2, 2])  # (W, M, t, q1, p, q0)
    x = x.permute([0, 3, 5, 2, 4, 1]).reshape([W, 32, acc.shape[2]])
    w = gl.convert_layout(w, gl.DotOperandLayout(0, acc.type.layout, 2), assert_trivial=True)
    return mma_v2(w, gl.convert_layout(x, gl.DotOperandLayout(1, acc.type.layout, 2), assert_trivial=True), acc)


@gluon.jit
def _leave(out_ptr, bias_ptr, acc, first_n, first_m, M, stride_out, BESIDE: gl.constexpr):
    """Add up what the warps have, each thread all of its places, and write it."""
    LANES: gl.constexpr = [1, min(acc.shape[1], 32), 32 // min(acc.shape[1], 32)]
    SUM: gl.constexpr = gl.BlockedLayout([acc.shape[0], 1, 1], LANES, [1, 1, acc.shape[0] * BESIDE], [1, 0, 2])
    y = gl.sum(gl.convert_layout(acc, SUM), 0)
    offs_n = first_n + gl.arange(0, acc.shape[1], gl.SliceLayout(1, gl.SliceLayout(0, SUM)))
    offs_m = first_m + gl.arange(0, acc.shape[2], gl.SliceLayout(0, gl.SliceLayout(0, SUM)))
    if bias_ptr is not None:
        y += gl.load(bias_ptr + offs_n).to(gl.float32)[:, None]
    out_ptrs = out_ptr + offs_m.to(gl.int64)[None, :] * stride_out + offs_n[:, None]
    gl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=(offs_m < M)[None, :])


@gluon.jit
def direct_kernel(
    out_ptr, m_ptr, e_ptr, x_ptr, bias_ptr,
    M, N, stride_out,
    K: gl.constexpr, STRIDE_M: gl.constexpr, STRIDE_X: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, WARPS: gl.constexpr, BESIDE: gl.constexpr,
):  # fmt: skip
    WORDS: gl.constexpr = _layout(WARPS, BESIDE, BLOCK_N, 4, False)
    X: gl.constexpr = _layout(WARPS, BESIDE, BLOCK_M, 4, True)
    ACC: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, BESIDE, 1], [1, 16, 8])
    words: gl.constexpr = K // COLUMNS  # of exponents a row
    EVEN: gl.constexpr = words % WARPS == 0

    # The last program begins early enough to be whole, and writes some results that another one writes too.
    first_n, first_m = gl.minimum(gl.program_id(0) * BLOCK_N, N - BLOCK_N), gl.program_id(1) * BLOCK_M
    wide_n, wide_m = gl.to_tensor(first_n).to(gl.int64), gl.to_tensor(first_m).to(gl.int64)
    m_ptrs, warp_m = _place(m_ptr + wide_n * STRIDE_M, None, STRIDE_M // 4, COLUMNS // 4, 4, WORDS)
    x_ptrs, warp_x = _place(x_ptr + wide_m * STRIDE_X, M - first_m, STRIDE_X // 2, COLUMNS // 2, 8, X)

    # Beyond the end nothing is used where the turns come out even: only do not read.
    mask = True if EVEN else (warp_m < words)[:, None, None, None]
    ahead = ()
    for h in gl.static_range(2):
        ahead += (gl.load(m_ptrs + h * (COLUMNS // 8), mask=mask, other=0, eviction_policy="evict_first"),)
    exponents = _exponents(e_ptr + wide_n * (words * 4), words, WARPS, BESIDE, BLOCK_N)
    sync()
    acc = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, ACC)
    for turn in range((words + WARPS - 1) // WARPS):
        scale = _scales(exponents.index(turn).load(gl.SliceLayout(2, gl.SliceLayout(3, WORDS))))
        mask_x = True if EVEN else (warp_x + turn * WARPS < words)[:, None, None, None]
        for h in gl.static_range(2):
            for a in gl.static_range(2):
                # (WARPS, BLOCK_M, 4, 4) words of two
                x = gl.load(x_ptrs + turn * (WARPS * COLUMNS // 2) + (32 * h + 4 * a), mask=mask_x, other=0)
                acc = _add_32(acc, ahead[h], scale, x, h, a, BESIDE)  # (WARPS, BLOCK_N, BLOCK_M)
            soon = (turn + 1) * WARPS
            mask = soon < words if EVEN else (warp_m + soon < words)[:, None, None, None]
            m_soon = m_ptrs + h * (COLUMNS // 8) + (turn + 1) * (WARPS * COLUMNS // 4)
            new = gl.load(m_soon, mask=mask, other=0, eviction_policy="evict_first")  # (WARPS, BLOCK_N, 4, 4) words
            ahead = (new, ahead[1]) if h == 0 else (ahead[0], new)
    _leave(out_ptr, bias_ptr, acc, first_n, first_m, M, stride_out, BESIDE)


def write_direct(out, x, w: Quantized, bias: torch.Tensor | None, blocks: Direct) -> None:
    """out (rows, N), x (rows, K) in bf16, columns adjacent, that `rungs.direct_for` takes. FLOP: 2 rows N K."""
    M, (N, K) = x.shape[0], w.mantissas.shape
    assert blocks.n <= N and K % COLUMNS.value == 0, f"{N} x {K} weights: {blocks.n} rows at least, columns in 128s"
    direct_kernel[(triton.cdiv(N, blocks.n), triton.cdiv(M, blocks.m))](
        out, w.mantissas, w.exponents, x, bias,
        M, N, out.stride(0),
        K=K, STRIDE_M=w.mantissas.stride(0), STRIDE_X=x.stride(0) if M > 1 else K,
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, WARPS=blocks.warps, BESIDE=blocks.beside,
        num_warps=blocks.warps * blocks.beside,
    )  # fmt: skip
