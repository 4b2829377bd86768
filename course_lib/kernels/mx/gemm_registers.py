"""y = x wᵀ for a few rows of x on the tensor cores: weights become bf16 where the product reads them, in registers.

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
at the end in a fixed order: no parts in memory, no second kernel. BESIDE times as many share these columns, with rows
of weights of their own. What is needed BEFORE long is already asked for: `staged_kernel` has it come to shared memory,
64 columns at a time; `direct_kernel` to registers, 128 at a time, where the compiler waits for all of it at once.

Bytes: N K (1 + 1 / 32), and 2 K a row of x for every BLOCK_N rows of weights, where possible from the L1 cache.
Instructions: 3.7 a weight with 16 rows of x, 3.4 with 8, 4.2 with 32, 5.4 with 64.

K and the strides are constants to the compiler: rows lie at fixed distances, which takes no registers.
"""

from dataclasses import dataclass

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from course_lib.kernels.mx.format import Quantized

__all__ = ["Direct", "direct_kernel", "takes", "write_direct"]

sync = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # Triton 3.6, 3.7
COLUMNS = gl.constexpr(128)  # that a warp takes at once: four groups, whose exponents are one word
GROUP = 32


@dataclass(frozen=True)
class Direct:
    m: int  # rows of x a program: 8, 16, 32, 64
    n: int  # rows of weights a program, 16 or more for each warp beside another
    warps: int  # along K
    beside: int  # times so many along n
    before: int  # what is asked for ahead: 64 columns a warp each where staged, 128 where not
    registers: int | None = None  # a thread, at most
    staged: bool = True


@triton.constexpr_function
def _doubles(first, most, dim, rank):
    """Bases along one dimension: first, 2 first, ... below most."""
    bases = []
    while first < most:
        bases.append([first if i == dim else 0 for i in range(rank)])
        first *= 2
    return bases


@triton.constexpr_function
def _weights_layout(warps, beside, rows, columns):
    """(warps, rows, 4, columns): a thread has all columns; 4 threads of a row, 8 rows, more in its registers.

    `beside` warps share columns and have 16 rows each in turn, as the product wants it.
    """
    lanes = _doubles(1, 4, 2, 4) + _doubles(1, 8, 1, 4)
    registers = _doubles(1, columns, 3, 4) + _doubles(8, 16, 1, 4) + _doubles(16 * beside, rows, 1, 4)
    several = _doubles(16, 16 * beside, 1, 4) + _doubles(1, warps, 0, 4)
    return gl.DistributedLinearLayout(registers, lanes, several, [], [warps, rows, 4, columns])


@triton.constexpr_function
def _x_layout(warps, beside, rows):
    """(warps, rows, 4, 4): the same for words of x, which warps beside each other all have."""
    lanes = _doubles(1, 4, 2, 4) + _doubles(1, 8, 1, 4)
    registers = _doubles(1, 4, 3, 4) + _doubles(8, rows, 1, 4)
    several = [[0, 0, 0, 0] for _ in _doubles(1, beside, 0, 4)] + _doubles(1, warps, 0, 4)
    return gl.DistributedLinearLayout(registers, lanes, several, [], [warps, rows, 4, 4])


@triton.constexpr_function
def _sum_layout(warps, beside, rows):
    """(warps, rows of w, rows of x): a thread has what all warps found for its places."""
    lanes = [1, min(rows, 32), 32 // min(rows, 32)]
    return gl.BlockedLayout([warps, 1, 1], lanes, [1, 1, warps * beside], [1, 0, 2])


@gluon.jit
def _scales(e, t):
    """2^(e - 133) in bf16 for the two groups of (warp, row, t), of its word of exponents: first low, second high.

    As numbers of bf16, e << 7 is 2^(e - 127), but 0 for e = 0 and infinite for 255. The maximum makes it right for 0,
    and 0 times it NaN for 255. Times 2^-6: subnormal numbers come out right.
    """
    bits = ((e[:, :, None] >> ((t >> 1) * 8)[None, None, :]) & 0x00FF00FF) << 7
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 least, zero, small, s;
        mov.b32 least, 0x00400040;
        mov.b32 zero, 0;
        mov.b32 small, 0x3C803C80;
        max.bf16x2 s, $1, least;
        mul.rn.bf16x2 zero, s, zero;
        fma.rn.bf16x2 $0, s, small, zero;
        }""",
        "=r,r", [bits], dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def _twice(pair, HIGH: gl.constexpr):
    """One half of a pair, in both halves."""
    asm: gl.constexpr = "prmt.b32 $0, $1, 0, 0x3232;" if HIGH else "prmt.b32 $0, $1, 0, 0x1010;"
    return gl.inline_asm_elementwise(asm, "=r,r", [pair], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _weights(words, scale, W: gl.constexpr, R: gl.constexpr, A: gl.constexpr):
    """(W, R, 4, 2) words of 4 weights, (W, R, 4) scales -> (W, R, 32) in bf16, the left operand."""
    scale = scale[:, :, :, None].broadcast_to(words.shape)
    # Two words at a time, p = 0 and 1 of the outputs: output 2 q1 + q0 is byte q0 + 2 p of word q1.
    b0, b1, b2, b3 = gl.inline_asm_elementwise(
        """{
        .reg .b32 v, s, w;
        lop3.b32 v, $4, 0x007F007F, 0x43004300, 0xEA;
        lop3.b32 s, $4, 0x00800080, 0x43004300, 0xEA;
        sub.rn.bf16x2 v, v, s;
        mul.rn.bf16x2 $0, v, $6;
        shr.u32 w, $4, 8;
        lop3.b32 v, w, 0x007F007F, 0x43004300, 0xEA;
        lop3.b32 s, w, 0x00800080, 0x43004300, 0xEA;
        sub.rn.bf16x2 v, v, s;
        mul.rn.bf16x2 $1, v, $6;
        lop3.b32 v, $5, 0x007F007F, 0x43004300, 0xEA;
        lop3.b32 s, $5, 0x00800080, 0x43004300, 0xEA;
        sub.rn.bf16x2 v, v, s;
        mul.rn.bf16x2 $2, v, $7;
        shr.u32 w, $5, 8;
        lop3.b32 v, w, 0x007F007F, 0x43004300, 0xEA;
        lop3.b32 s, w, 0x00800080, 0x43004300, 0xEA;
        sub.rn.bf16x2 v, v, s;
        mul.rn.bf16x2 $3, v, $7;
        }""",
        "=&r,=&r,=&r,=&r,r,r,r,r", [words, scale],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    w = gl.join(gl.join(b0, b1), gl.join(b2, b3))  # (W, R, t, p, q0, q1)
    w = w.permute([0, 1, 5, 4, 2, 3]).reshape([W, R, 32])
    return gl.convert_layout(w, A, assert_trivial=True)


@gluon.jit
def _columns_of_x(words, W: gl.constexpr, M: gl.constexpr, B: gl.constexpr):
    """(W, M, 4, 4) words of 2 of x -> (W, 32, M), the right operand: columns renamed as the weights' are."""
    even, odd = gl.inline_asm_elementwise(
        "prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632;",
        "=&r,=&r,r,r", [words], dtype=(gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    x = gl.join(even, odd).reshape([W, M, 4, 2, 2, 2])  # (W, M, t, q1, p, q0)
    x = x.permute([0, 3, 5, 2, 4, 1]).reshape([W, 32, M])
    return gl.convert_layout(x, B, assert_trivial=True)


@gluon.jit
def _fetch(ptrs, step: gl.constexpr, turn, words: gl.constexpr, warp, W: gl.constexpr, EVEN: gl.constexpr):
    """Four words a thread and row of this warp's columns of the turn."""
    if EVEN:  # beyond the end nothing is used: only do not read
        return gl.load(ptrs + turn * step, mask=turn * W < words, eviction_policy="evict_first")
    mask = (warp + turn * W < words)[:, None, None, None]
    return gl.load(ptrs + turn * step, mask=mask, other=0, eviction_policy="evict_first")


@gluon.jit
def _exponents(
    e_ptr, first_n, words: gl.constexpr, TURNS: gl.constexpr, W: gl.constexpr, BESIDE: gl.constexpr, R: gl.constexpr
):
    """All exponents of the program's rows, in shared memory: (turns, warps, rows), a word for 128 columns."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1], [W, 32 // W], [1, W * BESIDE], [0, 1])
    warp = gl.arange(0, W, gl.SliceLayout(1, LAYOUT))[:, None]
    row = gl.arange(0, R, gl.SliceLayout(0, LAYOUT))[None, :]
    shared = gl.allocate_shared_memory(gl.int32, [TURNS, W, R], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    e_ptr += gl.to_tensor(first_n).to(gl.int64) * (words * 4)
    e_ptrs = e_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + row * words
    every = ()
    for turn in gl.static_range(TURNS):
        word = warp + turn * W
        every = every + (gl.load(e_ptrs + word, mask=word < words, other=0),)
    for turn in gl.static_range(TURNS):
        shared.index(turn).store(every[turn])
    return shared


@gluon.jit
def _halves(words, W: gl.constexpr, R: gl.constexpr, LAYOUT: gl.constexpr):
    """(W, R, 4, 4) -> twice (W, R, 4, 2): of a thread's four words the first two and the last two."""
    first, last = words.reshape([W, R, 4, 2, 2]).permute([0, 1, 2, 4, 3]).split()
    first = gl.convert_layout(first, LAYOUT, assert_trivial=True)
    return first, gl.convert_layout(last, LAYOUT, assert_trivial=True)


@gluon.jit
def _pointers_m(m_ptr, first_n, STRIDE: gl.constexpr, W: gl.constexpr, R: gl.constexpr, LAYOUT: gl.constexpr):
    """(W, R, 4, 4): words of the first 64 columns of each warp's 128."""
    warp = gl.arange(0, W, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT))))
    row = gl.arange(0, R, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT))))
    t = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))))
    word = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))))
    at = (warp[:, None] * (COLUMNS // 4) + row[None, :] * (STRIDE // 4))[:, :, None, None]
    at += (t[:, None] * 4 + word[None, :])[None, None, :, :]
    m_ptr += gl.to_tensor(first_n).to(gl.int64) * STRIDE
    return m_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + at


@gluon.jit
def _pointers_x(x_ptr, first_m, M, STRIDE: gl.constexpr, W: gl.constexpr, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """(W, rows, 4, 4): words of the first 8 of a thread's 16 columns of the first 64 of each warp's 128."""
    warp = gl.arange(0, W, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT))))
    row = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT))))
    t = gl.arange(0, 4, gl.SliceLayout(1, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))))
    word = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))))
    # Rows beyond the last read the last one: cheaper than a mask at every load, and nobody stores them.
    row = gl.where(first_m + row < M, row, M - 1 - first_m)
    at = (warp[:, None] * (COLUMNS // 2) + row[None, :] * (STRIDE // 2))[:, :, None, None]
    at += (t[:, None] * 8 + word[None, :])[None, None, :, :]
    x_ptr += gl.to_tensor(first_m).to(gl.int64) * STRIDE
    return x_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + at


@gluon.jit
def _fetch_x(
    x_ptrs, turn, H: gl.constexpr, A: gl.constexpr, words: gl.constexpr, warp, W: gl.constexpr, EVEN: gl.constexpr
):
    """The first or last (A) 8 of a thread's 16 columns of the first or last (H) 64 of each warp's 128."""
    x_ptrs += turn * (W * COLUMNS // 2) + (32 * H + 4 * A)
    if EVEN:
        return gl.load(x_ptrs)
    return gl.load(x_ptrs, mask=(warp + turn * W < words)[:, None, None, None], other=0)


@gluon.jit
def _add_32(acc, words, scale, x, H: gl.constexpr, A: gl.constexpr):
    """acc plus the product of 32 of the warp's 128 columns: of each 64 (H), of each thread's 16 (A) a half."""
    W: gl.constexpr = acc.shape[0]
    R: gl.constexpr = acc.shape[1]
    M: gl.constexpr = acc.shape[2]
    LEFT: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, acc.type.layout, 2)
    HALF: gl.constexpr = _weights_layout(W, acc.type.layout.warps_per_cta[1], R, 2)
    halves = _halves(words, W, R, HALF)
    scale = gl.convert_layout(_twice(scale, H == 1), gl.SliceLayout(3, HALF), assert_trivial=True)
    return mma_v2(_weights(halves[A], scale, W, R, LEFT), _columns_of_x(x, W, M, RIGHT), acc)


@gluon.jit
def _leave(out_ptr, bias_ptr, acc, first_n, first_m, M, stride_out):
    """Add up what the warps have and write it."""
    W: gl.constexpr = acc.shape[0]
    R: gl.constexpr = acc.shape[1]
    COLUMNS_OUT: gl.constexpr = acc.shape[2]
    SUM: gl.constexpr = _sum_layout(W, acc.type.layout.warps_per_cta[1], R)
    y = gl.sum(gl.convert_layout(acc, SUM), 0)
    offs_n = first_n + gl.arange(0, R, gl.SliceLayout(1, gl.SliceLayout(0, SUM)))
    offs_m = first_m + gl.arange(0, COLUMNS_OUT, gl.SliceLayout(0, gl.SliceLayout(0, SUM)))
    if bias_ptr is not None:
        y += gl.load(bias_ptr + offs_n).to(gl.float32)[:, None]
    out_ptrs = out_ptr + offs_m.to(gl.int64)[None, :] * stride_out + offs_n[:, None]
    gl.store(out_ptrs, y.to(out_ptr.dtype.element_ty), mask=(offs_m < M)[None, :])


@gluon.jit
def direct_kernel(
    out_ptr, m_ptr, e_ptr, x_ptr, bias_ptr,
    M, N, stride_out,
    K: gl.constexpr, STRIDE_M: gl.constexpr, STRIDE_X: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    WARPS: gl.constexpr, BESIDE: gl.constexpr, BEFORE: gl.constexpr,
):  # fmt: skip
    WORDS: gl.constexpr = _weights_layout(WARPS, BESIDE, BLOCK_N, 4)
    X: gl.constexpr = _x_layout(WARPS, BESIDE, BLOCK_M)
    ACC: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, BESIDE, 1], [1, 16, 8])
    words: gl.constexpr = K // COLUMNS  # of exponents a row
    TURNS: gl.constexpr = (words + WARPS - 1) // WARPS
    STEP: gl.constexpr = WARPS * COLUMNS // 4
    EVEN: gl.constexpr = words % (WARPS * BEFORE) == 0

    # The last program begins early enough to be whole, and writes some results that another one writes too.
    first_n, first_m = gl.minimum(gl.program_id(0) * BLOCK_N, N - BLOCK_N), gl.program_id(1) * BLOCK_M
    m_ptrs = _pointers_m(m_ptr, first_n, STRIDE_M, WARPS, BLOCK_N, WORDS)
    x_ptrs = _pointers_x(x_ptr, first_m, M, STRIDE_X, WARPS, BLOCK_M, X)
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, WORDS))))
    warp_x = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, X))))
    t = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, WORDS))))

    ahead = ()
    for i in gl.static_range(BEFORE):
        for h in gl.static_range(2):
            ahead = ahead + (_fetch(m_ptrs + h * (COLUMNS // 8), STEP, i, words, warp, WARPS, EVEN),)
    exponents = _exponents(e_ptr, first_n, words, TURNS, WARPS, BESIDE, BLOCK_N)
    sync()
    acc = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, ACC)
    for turn in range(0, TURNS, BEFORE):
        for i in gl.static_range(BEFORE):
            now = turn + i
            e = exponents.index(now if EVEN else gl.minimum(now, TURNS - 1))
            scale = _scales(e.load(gl.SliceLayout(2, gl.SliceLayout(3, WORDS))), t)
            for h in gl.static_range(2):
                for a in gl.static_range(2):
                    x = _fetch_x(x_ptrs, now, h, a, words, warp_x, WARPS, EVEN)
                    acc = _add_32(acc, ahead[2 * i + h], scale, x, h, a)
                new = _fetch(m_ptrs + h * (COLUMNS // 8), STEP, now + BEFORE, words, warp, WARPS, EVEN)
                ahead = ahead[: 2 * i + h] + (new,) + ahead[2 * i + h + 1 :]
    _leave(out_ptr, bias_ptr, acc, first_n, first_m, M, stride_out)


@gluon.jit
def _copy(place, ptrs, turn, H: gl.constexpr, words: gl.constexpr, warp, W: gl.constexpr, EVEN: gl.constexpr):
    """Ask for 64 columns of a turn, the first or the last (H) of each warp's 128; beyond the end for zeros."""
    ptrs += turn * (W * COLUMNS // 4) + H * (COLUMNS // 8)
    mask = turn * W < words if EVEN else (warp + turn * W < words)[:, None, None, None]
    async_copy.async_copy_global_to_shared(place, ptrs, mask=mask)
    async_copy.commit_group()


@gluon.jit
def staged_kernel(
    out_ptr, m_ptr, e_ptr, x_ptr, bias_ptr,
    M, N, stride_out,
    K: gl.constexpr, STRIDE_M: gl.constexpr, STRIDE_X: gl.constexpr,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
    WARPS: gl.constexpr, BESIDE: gl.constexpr, BEFORE: gl.constexpr,
):  # fmt: skip
    """The same with weights on their way in shared memory; each thread reads there what it has asked for itself."""
    WORDS: gl.constexpr = _weights_layout(WARPS, BESIDE, BLOCK_N, 4)
    X: gl.constexpr = _x_layout(WARPS, BESIDE, BLOCK_M)
    ACC: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, BESIDE, 1], [1, 16, 8])
    words: gl.constexpr = K // COLUMNS
    TURNS: gl.constexpr = (words + WARPS - 1) // WARPS
    EVEN: gl.constexpr = words % WARPS == 0
    X_BEFORE: gl.constexpr = BLOCK_M <= 16  # more do not fit beside everything else

    first_n, first_m = gl.minimum(gl.program_id(0) * BLOCK_N, N - BLOCK_N), gl.program_id(1) * BLOCK_M
    m_ptrs = _pointers_m(m_ptr, first_n, STRIDE_M, WARPS, BLOCK_N, WORDS)
    x_ptrs = _pointers_x(x_ptr, first_m, M, STRIDE_X, WARPS, BLOCK_M, X)
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, WORDS))))
    warp_x = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, X))))
    t = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, WORDS))))

    SHARED: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 1, [3, 2, 1, 0])
    places = gl.allocate_shared_memory(gl.int32, [BEFORE + 1, WARPS, BLOCK_N, 4, 4], SHARED)
    for i in gl.static_range(BEFORE):
        _copy(places.index(i), m_ptrs, i // 2, i % 2, words, warp, WARPS, EVEN)
    exponents = _exponents(e_ptr, first_n, words, TURNS, WARPS, BESIDE, BLOCK_N)
    sync()
    acc = gl.zeros([WARPS, BLOCK_N, BLOCK_M], gl.float32, ACC)
    place = 0
    if X_BEFORE:
        x0 = _fetch_x(x_ptrs, 0, 0, 0, words, warp_x, WARPS, EVEN)
        x1 = _fetch_x(x_ptrs, 0, 0, 1, words, warp_x, WARPS, EVEN)
    for now in range(0, TURNS):
        scale = _scales(exponents.index(now).load(gl.SliceLayout(2, gl.SliceLayout(3, WORDS))), t)
        for h in gl.static_range(2):
            if X_BEFORE:
                soon = gl.minimum(now + h, TURNS - 1)
                next_x0 = _fetch_x(x_ptrs, soon, 1 - h, 0, words, warp_x, WARPS, EVEN)
                next_x1 = _fetch_x(x_ptrs, soon, 1 - h, 1, words, warp_x, WARPS, EVEN)
            async_copy.wait_group(BEFORE - 1)
            w = places.index(place).load(WORDS)
            free = place - 1 if place > 0 else BEFORE  # all have read it before the last barrier
            _copy(places.index(free), m_ptrs, now + (BEFORE + h) // 2, (BEFORE + h) % 2, words, warp, WARPS, EVEN)
            if X_BEFORE:
                acc = _add_32(acc, w, scale, x0, h, 0)
                acc = _add_32(acc, w, scale, x1, h, 1)
                x0, x1 = next_x0, next_x1
            else:
                acc = _add_32(acc, w, scale, _fetch_x(x_ptrs, now, h, 0, words, warp_x, WARPS, EVEN), h, 0)
                acc = _add_32(acc, w, scale, _fetch_x(x_ptrs, now, h, 1, words, warp_x, WARPS, EVEN), h, 1)
            place = place + 1 if place < BEFORE else 0
    async_copy.wait_group(0)
    _leave(out_ptr, bias_ptr, acc, first_n, first_m, M, stride_out)


def takes(x, w: Quantized, blocks: Direct) -> bool:
    """Whether the kernels may be used: rows begin at 16 bytes, groups are the standard's, K is 128 times something."""
    m, e = w.mantissas, w.exponents
    wide = m.stride(0) % 16 == 0 and x.stride(0) % 8 == 0 and m.shape[1] % COLUMNS.value == 0
    aligned = m.data_ptr() % 16 == 0 and e.data_ptr() % 4 == 0 and x.data_ptr() % 16 == 0
    return x.dtype == torch.bfloat16 and w.group == GROUP and m.shape[0] >= blocks.n and wide and aligned


def write_direct(out, x, w: Quantized, bias, blocks: Direct) -> None:
    """out (rows, N), x (rows, K) in bf16, columns adjacent, that `takes` takes. FLOP: 2 rows N K."""
    M, (N, K) = x.shape[0], w.mantissas.shape
    limit = {} if blocks.registers is None else {"maxnreg": blocks.registers}
    kernel = staged_kernel if blocks.staged else direct_kernel
    kernel[(triton.cdiv(N, blocks.n), triton.cdiv(M, blocks.m))](
        out, w.mantissas, w.exponents, x, bias,
        M, N, out.stride(0),
        K=K, STRIDE_M=w.mantissas.stride(0), STRIDE_X=x.stride(0),
        BLOCK_M=blocks.m, BLOCK_N=blocks.n, WARPS=blocks.warps, BESIDE=blocks.beside, BEFORE=blocks.before,
        num_warps=blocks.warps * blocks.beside, **limit,
    )  # fmt: skip
