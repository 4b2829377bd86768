"""Backward in one pass, with jobs for the warps: five products where two passes make seven, and dq is added to.

A program holds 128 keys, 64 for each of two consumers, and walks over the queries that see them. In the turn of block t

    dv += pᵀ do    of block t - 1                 p and dp of that block are in registers
    s = k qᵀ       of block t, asked for behind it
    ds = p (dp - delta), to shared memory, where both consumers' ds meet
    dq = ds k      of block t - 1, each consumer one half of it; another warp adds it to global memory
    dk += dsᵀ q    of block t - 1, made while dq is handed over
    dp = v doᵀ     of block t, made while p = exp2(s - shift) is taken

so a consumer waits for a product only when others of its own, or of its neighbour, are still in hand.

dq is a sum over programs, in fp32: the copy engine adds a tile to it (a reduction in the L2 cache). Two more kernels
stand around this one: `prepare` makes shift and delta and zeros for the sums, `finish` rounds the sums.

ORDERED: a tile of dq is added by one program after the other, in a fixed order, so the same bits come on every run.
A counter for each block of queries says how many have added. Nobody waits for a program that starts later than itself,
as programs start in the order of their numbers; so somebody can always go on.
"""

import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from course_lib.kernels.attention.backward import _row_terms
from course_lib.kernels.attention.groups import HALF, ROWS, descriptors, term_descriptors
from course_lib.kernels.attention.masks import head_start, keys_of, probabilities, queries_of, query_range
from course_lib.kernels.attention.rows import LOG2_E, load_rows
from course_lib.kernels.descriptors import make_context_current
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.rings import LAUNCH, arrived, claim, new_ring, release, sync
from course_lib.kernels.strides import in_units, unit_of

__all__ = ["one_pass_in_groups_kernel", "room", "write_in_one_pass"]


@builtin
def async_add(desc, coord, src, _semantic=None):
    """Add a tile in shared memory to one in global memory. Both Tritons have the operation, Gluon has no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


# Wait until a counter has reached a number; what the copy engine does next comes after it.
_AWAIT = gl.constexpr(
    "{ .reg .pred p; .reg .b32 c; again: ld.acquire.gpu.global.u32 c, [$1]; setp.lt.s32 p, c, $2; @p bra again;"
    " fence.proxy.async; mov.b32 $0, c; }"
)
# All that this thread asked the copy engine to add has been added; then one thread counts.
_COUNT = gl.constexpr(
    "{ .reg .pred p; .reg .b32 l; cp.async.bulk.wait_group 0; fence.proxy.async; bar.warp.sync 0xffffffff;"
    " mov.u32 l, %laneid; setp.eq.u32 p, l, 0; @p red.release.gpu.global.add.u32 [$1], $2; mov.b32 $0, l; }"
)


# Two neighbours of a row at once.
_RED = gl.constexpr(
    "{ .reg .pred p; setp.ne.s32 p, $6, 0; @p red.relaxed.gpu.global.add.v2.f32 [$2], {$4, $5};"
    " mov.b32 $0, 0; mov.b32 $1, 0; }"
)


@gluon.jit
def _asm(TEXT: gl.constexpr, ptr, number):
    return gl.inline_asm_elementwise(TEXT, "=r,l,r", [ptr, number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _place(kv_heads, n_k, CAUSAL: gl.constexpr, ORDERED: gl.constexpr, TOGETHER: gl.constexpr):
    """Program -> (number of the block of keys, batch, head of keys). Of TOGETHER heads the same block comes first.

    Causal, the first keys are seen by most queries: longest first. Ordered, the other way round: the last keys begin at
    their diagonal, which is where the sums of their queries begin."""
    blocks = gl.cdiv(n_k, 2 * HALF)
    program = gl.program_id(0)
    group = program // (blocks * TOGETHER)
    among = program % (blocks * TOGETHER)
    heads = gl.minimum(gl.num_programs(0) // blocks - group * TOGETHER, TOGETHER)
    block, batch_head = among // heads, group * TOGETHER + among % heads
    if CAUSAL and ORDERED:
        block = blocks - 1 - block
    return block, batch_head // kv_heads, batch_head % kv_heads


@gluon.jit
def _blocks(
    first_n, n_q, n_k, n_valid,
    PADDED: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, SAME_LENGTHS: gl.constexpr,
):  # fmt: skip
    """Blocks of queries: the first that sees any of the tile's keys, the first that sees all of them, the end."""
    n_rows = queries_of(n_q, n_valid, SAME_LENGTHS)
    first, full, end = query_range(first_n, n_rows, n_valid, n_k - n_q, CAUSAL, BLOCK_M, 2 * HALF)
    end = gl.cdiv(end, BLOCK_M)
    return gl.minimum(first // BLOCK_M, end), gl.cdiv(full, BLOCK_M), end


@gluon.jit
def _produce(
    tensors, rings, lengths_ptr, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, SAME_LENGTHS: gl.constexpr,
    ORDERED: gl.constexpr, TOGETHER: gl.constexpr, AHEAD: gl.constexpr,
):  # fmt: skip
    k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc, k, v, q, do, shift, delta = tensors
    held, q_ring, do_ring, _met, _dq_rings = rings
    kv_heads, n_q, n_k = sizes
    block, batch, kv_head = _place(kv_heads, n_k, CAUSAL, ORDERED, TOGETHER)
    first_n = block * (2 * HALF)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    PADDED: gl.constexpr = lengths_ptr is not None
    first, _full, end = _blocks(first_n, n_q, n_k, n_valid, PADDED, CAUSAL, BLOCK_M, SAME_LENGTHS)
    BYTES: gl.constexpr = 2 * BLOCK_M * MAIN + 4 * BLOCK_M
    for i in gl.static_range(2):
        mbarrier.expect(held.index(i), 2 * 2 * HALF * MAIN)
    for half in gl.static_range(2):
        at = [batch, kv_head, first_n + half * HALF, 0]
        tma.async_copy_global_to_shared(k_desc, at, held.index(0), k.index(half))
        tma.async_copy_global_to_shared(v_desc, at, held.index(1), v.index(half))
    turn = 0
    for member in range(GROUP):
        head = kv_head * GROUP + member
        row = batch * kv_heads * GROUP + head
        for j in range(first, end):
            place, bar = claim(q_ring, turn, BYTES)
            tma.async_copy_global_to_shared(q_desc, [batch, head, j * BLOCK_M, 0], bar, q.index(place))
            tma.async_copy_global_to_shared(shift_desc, [row, j * BLOCK_M], bar, shift.index(place))
            place, bar = claim(do_ring, turn, BYTES)
            tma.async_copy_global_to_shared(do_desc, [batch, head, j * BLOCK_M, 0], bar, do.index(place))
            tma.async_copy_global_to_shared(delta_desc, [row, j * BLOCK_M], bar, delta.index(place))
            turn += 1
    if AHEAD == 2:  # one block more, of whose s nothing is made
        head = kv_head * GROUP
        row = batch * kv_heads * GROUP + head
        place, bar = claim(q_ring, turn, BYTES)
        tma.async_copy_global_to_shared(q_desc, [batch, head, 0, 0], bar, q.index(place))
        tma.async_copy_global_to_shared(shift_desc, [row, 0], bar, shift.index(place))


@gluon.jit
def _add(
    dq_desc, dq, added_ptr, rings, lengths_ptr, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, SAME_LENGTHS: gl.constexpr,
    ORDERED: gl.constexpr, TOGETHER: gl.constexpr, RED: gl.constexpr,
):  # fmt: skip
    """The warp that has the copy engine add: both halves of a tile of dq, in its turn."""
    _held, _q_ring, _do_ring, _met, dq_rings = rings
    kv_heads, n_q, n_k = sizes
    block, batch, kv_head = _place(kv_heads, n_k, CAUSAL, ORDERED, TOGETHER)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    PADDED: gl.constexpr = lengths_ptr is not None
    first, _full, end = _blocks(block * (2 * HALF), n_q, n_k, n_valid, PADDED, CAUSAL, BLOCK_M, SAME_LENGTHS)
    blocks_m = gl.cdiv(n_q, BLOCK_M)
    turn = 0
    for member in range(0 if RED else GROUP):
        row = (batch * kv_heads + kv_head) * GROUP + member
        for j in range(first, end):
            at = added_ptr + (row * blocks_m + j)
            mine = block
            if ORDERED:
                if CAUSAL:  # the last block of keys that the queries of this block see adds first
                    last = gl.minimum((j + 1) * BLOCK_M + n_k - n_q, n_valid) - 1
                    mine = last // (2 * HALF) - block
            for half in gl.static_range(2):
                arrived(dq_rings[half], turn)
                if half == 0:
                    if ORDERED:
                        _asm(_AWAIT, at, mine)
                if MAIN == 128:
                    async_add(dq_desc, [row, j * BLOCK_M, half * 64], dq[half].index(0))
                else:
                    async_add(dq_desc, [row, j * BLOCK_M + half * 64, 0], dq[half].index(0))
            tma.store_wait(0)  # read
            release(dq_rings[0], turn)
            release(dq_rings[1], turn)
            if ORDERED:
                _asm(_COUNT, at, 1)
            turn += 1


@gluon.jit
def _exponentials(
    s, shift, place, first_m, offs_n, n_valid, diagonal, scale_log2,
    BLOCK_M: gl.constexpr, S: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    offs_m = first_m + gl.arange(0, BLOCK_M, gl.SliceLayout(0, S))
    return probabilities(
        s, shift.index(place).load(S), offs_m[None, :], offs_n[:, None], n_valid, diagonal, scale_log2,
        CAUSAL, False, MASKED,
    )  # fmt: skip


@gluon.jit
def _product(a, b, S: gl.constexpr):
    """a bᵀ, asked for: a (M, D), b (N, D) -> (M, N)"""
    M: gl.constexpr = a.shape[0]
    N: gl.constexpr = b.shape[0]
    zeros = gl.zeros([M, N], gl.float32, S)
    return warpgroup_mma(a, b.permute([1, 0]), zeros, use_acc=False, is_async=True)


@gluon.jit
def _dq(k, ds_tiles, place, WHICH: gl.constexpr, MAIN: gl.constexpr):
    """A consumer's half of dq = ds k, asked for: 64 columns of 128, or where there are 64, 64 rows of 128."""
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    dq = gl.zeros([64, 64], gl.float32, DQ)
    for half in gl.static_range(2):
        a = ds_tiles[half].index(place)
        b = k.index(half).reshape([HALF, MAIN])
        if MAIN == 128:
            b = b.slice(WHICH * 64, 64, dim=1)
        else:
            a = a.slice(WHICH * 64, 64, dim=1)
        dq = warpgroup_mma(a.permute([1, 0]), b, dq, use_acc=half == 1, is_async=True)  # (64, HALF) (HALF, 64)
    return dq


@gluon.jit
def _hand_over(dq, dq_tile, ring, turn):
    full, empty = ring
    mbarrier.wait(empty.index(0), (turn & 1) ^ 1)
    dq_tile.index(0).reshape([64, 64]).store(dq)
    fence_async_shared()
    mbarrier.arrive(full.index(0), count=1)


@gluon.jit
def _add_from_registers(dq, at, first_m, n_q, WHICH: gl.constexpr, MAIN: gl.constexpr):
    """`at`: where the head begins."""
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    offs_m = first_m + (0 if MAIN == 128 else WHICH * 64) + gl.arange(0, 64, gl.SliceLayout(1, DQ))
    offs_d = (WHICH * 64 if MAIN == 128 else 0) + gl.arange(0, 64, gl.SliceLayout(0, DQ))
    ptrs = (at + (offs_m[:, None] * MAIN + offs_d[None, :])).to(gl.int64)
    inside = (offs_m < n_q).to(gl.int32)[:, None]
    gl.inline_asm_elementwise(_RED, "=r,=r,l,l,f,f,r,r", [ptrs, dq, inside], dtype=gl.int32, is_pure=False, pack=2)


@gluon.jit
def _whole_step(
    dk, dv, tensors, rings, turn, first_m, offs_n, n_q, at, n_valid, diagonal, scale_log2,
    WHICH: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, S: gl.constexpr, P: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, DS_SHARED: gl.constexpr, RED: gl.constexpr,
):  # fmt: skip
    """All of block number `turn`, as FlashAttention-3 orders it."""
    k, v, q, do, shift, delta, ds_tiles, dq_tiles = tensors
    held, q_ring, do_ring, met, dq_rings = rings
    q_place = arrived(q_ring, turn)
    q_tile = q.index(q_place).reshape([BLOCK_M, MAIN])
    s = _product(k.index(WHICH).reshape([HALF, MAIN]), q_tile, S)
    do_place = arrived(do_ring, turn)
    do_tile = do.index(do_place).reshape([BLOCK_M, MAIN])
    dp = _product(v.index(WHICH).reshape([HALF, MAIN]), do_tile, S)
    s = warpgroup_mma_wait(1, deps=[s])
    p = _exponentials(s, shift, q_place, first_m, offs_n, n_valid, diagonal, scale_log2, BLOCK_M, S, CAUSAL, MASKED)
    if turn == -1:
        arrived(q_ring, 0)
    dp = warpgroup_mma_wait(0, deps=[dp])
    p_rounded = gl.convert_layout(p.to(k.dtype), P)
    ds_rounded = (p * (dp - delta.index(do_place).load(S))).to(k.dtype)
    dv = warpgroup_mma(p_rounded, do_tile, dv, is_async=True)
    ds_tiles[WHICH].index(turn % 2).store(ds_rounded)
    fence_async_shared()
    mbarrier.arrive(met.index(turn % 2), count=1)
    mbarrier.wait(met.index(turn % 2), (turn // 2) & 1)
    dq = _dq(k, ds_tiles, turn % 2, WHICH, MAIN)
    if DS_SHARED:
        dk = warpgroup_mma(ds_tiles[WHICH].index(turn % 2), q_tile, dk, is_async=True)
    else:
        ds_rounded = gl.convert_layout(ds_rounded, P)
        dk = warpgroup_mma(ds_rounded, q_tile, dk, is_async=True)
    dv, p_rounded, dq = warpgroup_mma_wait(1, deps=[dv, p_rounded, dq])
    if RED:
        _add_from_registers(dq, at, first_m, n_q, WHICH, MAIN)
    else:
        _hand_over(dq, dq_tiles[WHICH], dq_rings[WHICH], turn)
    release(do_ring, turn)
    if turn == -1:
        arrived(q_ring, 0)
    if DS_SHARED:
        dk = warpgroup_mma_wait(0, deps=[dk])
    else:
        dk, ds_rounded = warpgroup_mma_wait(0, deps=[dk, ds_rounded])
    release(q_ring, turn)
    return dk, dv


@gluon.jit
def _ahead_step(
    dk, dv, s, ds_before, tensors, rings, turn, first_m, offs_n, n_valid, diagonal, scale_log2,
    WHICH: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, S: gl.constexpr, P: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, AHEAD: gl.constexpr, DS_SHARED: gl.constexpr,
):  # fmt: skip
    """Block number `turn`, whose s is there: what it adds to dv and dq, what the block before adds to dk, and the s of
    the next. So each piece of other arithmetic is done while a product is being made:

        dp and dk of the block before    p, ds
        dv                               ds to shared memory, where both consumers meet
        dq, and s of the next            dq is handed over
    """
    k, v, q, do, shift, delta, ds_tiles, dq_tiles = tensors
    held, q_ring, do_ring, met, dq_rings = rings
    if AHEAD == 2:
        q_place = turn % q.shape[0]
    else:
        q_place = arrived(q_ring, turn)
        s = _product(k.index(WHICH).reshape([HALF, MAIN]), q.index(q_place).reshape([BLOCK_M, MAIN]), S)
    before = gl.where(turn == 0, turn, turn - 1)  # before the first: ds_before is 0, and q is what is there
    do_place = arrived(do_ring, turn)
    do_tile = do.index(do_place).reshape([BLOCK_M, MAIN])
    dp = _product(v.index(WHICH).reshape([HALF, MAIN]), do_tile, S)
    q_before = q.index(before % q.shape[0]).reshape([BLOCK_M, MAIN])
    if DS_SHARED:
        dk = warpgroup_mma(ds_tiles[WHICH].index((turn + 1) % 2), q_before, dk, is_async=True)
    else:
        dk = warpgroup_mma(ds_before, q_before, dk, is_async=True)
    if AHEAD == 1:
        s = warpgroup_mma_wait(2, deps=[s])
    p = _exponentials(s, shift, q_place, first_m, offs_n, n_valid, diagonal, scale_log2, BLOCK_M, S, CAUSAL, MASKED)
    if turn == -1:  # never taken: the branch keeps the assembler from moving the wait up, as in groups_forward.py
        arrived(q_ring, 0)
    dp = warpgroup_mma_wait(1, deps=[dp])
    p_rounded = gl.convert_layout(p.to(k.dtype), P)
    ds_rounded = (p * (dp - delta.index(do_place).load(S))).to(k.dtype)
    if turn == -1:
        arrived(q_ring, 0)
    if DS_SHARED:
        dk = warpgroup_mma_wait(0, deps=[dk])
    else:
        dk, ds_before = warpgroup_mma_wait(0, deps=[dk, ds_before])
    mbarrier.arrive(q_ring[1].index(before % q.shape[0]), count=1, pred=turn > 0)
    dv = warpgroup_mma(p_rounded, do_tile, dv, is_async=True)
    ds_tiles[WHICH].index(turn % 2).store(ds_rounded)
    fence_async_shared()
    mbarrier.arrive(met.index(turn % 2), count=1)
    mbarrier.wait(met.index(turn % 2), (turn // 2) & 1)
    dq = _dq(k, ds_tiles, turn % 2, WHICH, MAIN)
    if AHEAD == 2:
        next_q = arrived(q_ring, turn + 1)
        s = _product(k.index(WHICH).reshape([HALF, MAIN]), q.index(next_q).reshape([BLOCK_M, MAIN]), S)
        dv, p_rounded, dq = warpgroup_mma_wait(1, deps=[dv, p_rounded, dq])
    else:
        dv, p_rounded, dq = warpgroup_mma_wait(0, deps=[dv, p_rounded, dq])
    _hand_over(dq, dq_tiles[WHICH], dq_rings[WHICH], turn)
    release(do_ring, turn)
    if AHEAD == 2:
        if turn == -1:
            arrived(q_ring, 0)
        s = warpgroup_mma_wait(0, deps=[s])
    if not DS_SHARED:
        ds_before = gl.convert_layout(ds_rounded, P)
    if AHEAD == 1:
        s = gl.zeros([HALF, BLOCK_M], gl.float32, S)
    return dk, dv, s, ds_before


@gluon.jit
def _cut(tile, rows):
    """Zeros behind the first `rows` rows of a tile in shared memory."""
    COLUMNS: gl.constexpr = tile.shape[1]
    BY: gl.constexpr = gl.BlockedLayout([1, 8], [256 // COLUMNS, COLUMNS // 8], [4, 1], [1, 0])
    inside = gl.arange(0, tile.shape[0], gl.SliceLayout(1, BY)) < rows
    values = tile.load(BY)
    tile.store(gl.where(inside[:, None], values, gl.zeros_like(values)))


@gluon.jit
def _consume(
    outs, sum_ptr, tensors, rings, lengths_ptr, sizes, scale, scale_log2,
    WHICH: gl.constexpr, GROUP: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_M: gl.constexpr,
    MAIN: gl.constexpr, SAME_LENGTHS: gl.constexpr, ORDERED: gl.constexpr, TOGETHER: gl.constexpr,
    AHEAD: gl.constexpr, DS_SHARED: gl.constexpr, RED: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    PADDED: gl.constexpr = lengths_ptr is not None
    MASK: gl.constexpr = CAUSAL or not WHOLE
    k, v, q, do, shift, delta, _ds, _dq = tensors
    held, q_ring, do_ring, met, _dq_rings = rings
    kv_heads, n_q, n_k = sizes
    diagonal = n_k - n_q
    block, batch, kv_head = _place(kv_heads, n_k, CAUSAL, ORDERED, TOGETHER)
    first_n = block * (2 * HALF)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    first, full, end = _blocks(first_n, n_q, n_k, n_valid, PADDED, CAUSAL, BLOCK_M, SAME_LENGTHS)
    first_own = first_n + WHICH * HALF
    offs_n = first_own + gl.arange(0, HALF, gl.SliceLayout(1, S))
    dk = gl.zeros([HALF, MAIN], gl.float32, ACC)
    dv = gl.zeros([HALF, MAIN], gl.float32, ACC)
    k_own, v_own = k.index(WHICH).reshape([HALF, MAIN]), v.index(WHICH).reshape([HALF, MAIN])
    mbarrier.wait(held.index(0), 0)
    if PADDED:  # keys behind the length: a probability of 0 hides no NaN
        mbarrier.wait(held.index(1), 0)
        if first_own + HALF > n_valid:
            _cut(k_own, n_valid - first_own)
            _cut(v_own, n_valid - first_own)
            fence_async_shared()
            sync()
    turn = 0
    members = gl.where(first < end, GROUP, 0)
    mbarrier.wait(held.index(1), 0)
    if AHEAD:
        ds_before = gl.convert_layout(gl.zeros([HALF, BLOCK_M], k.dtype, S), P)
        if DS_SHARED:
            _ds[WHICH].index(1).store(gl.zeros([HALF, BLOCK_M], k.dtype, S))
            fence_async_shared()
            sync()
        s = gl.zeros([HALF, BLOCK_M], gl.float32, S)
        if AHEAD == 2:
            s = _product(k_own, q.index(arrived(q_ring, 0)).reshape([BLOCK_M, MAIN]), S)
            s = warpgroup_mma_wait(0, deps=[s])
    for member in range(members):
        at = sum_ptr + ((batch * kv_heads + kv_head) * GROUP + member).to(gl.int64) * n_q * MAIN
        plain = first
        if MASK:
            plain = gl.maximum(full, first)
            for j in range(first, plain):
                if AHEAD:
                    dk, dv, s, ds_before = _ahead_step(
                        dk, dv, s, ds_before, tensors, rings, turn, j * BLOCK_M, offs_n, n_valid, diagonal, scale_log2,
                        WHICH, BLOCK_M, MAIN, S, P, CAUSAL, True, AHEAD, DS_SHARED,
                    )  # fmt: skip
                else:
                    dk, dv = _whole_step(
                        dk, dv, tensors, rings, turn, j * BLOCK_M, offs_n, n_q, at, n_valid, diagonal, scale_log2,
                        WHICH, BLOCK_M, MAIN, S, P, CAUSAL, True, DS_SHARED, RED,
                    )  # fmt: skip
                turn += 1
        for j in range(plain, end):
            if AHEAD:
                dk, dv, s, ds_before = _ahead_step(
                    dk, dv, s, ds_before, tensors, rings, turn, j * BLOCK_M, offs_n, n_valid, diagonal, scale_log2,
                    WHICH, BLOCK_M, MAIN, S, P, CAUSAL, False, AHEAD, DS_SHARED,
                )  # fmt: skip
            else:
                dk, dv = _whole_step(
                    dk, dv, tensors, rings, turn, j * BLOCK_M, offs_n, n_q, at, n_valid, diagonal, scale_log2,
                    WHICH, BLOCK_M, MAIN, S, P, CAUSAL, False, DS_SHARED, RED,
                )  # fmt: skip
            turn += 1
    if AHEAD:
        if members > 0:  # what the last block adds to dk
            q_last = q.index((turn - 1) % q.shape[0]).reshape([BLOCK_M, MAIN])
            if DS_SHARED:
                dk = warpgroup_mma(_ds[WHICH].index((turn + 1) % 2), q_last, dk, is_async=True)
                dk = warpgroup_mma_wait(0, deps=[dk])
            else:
                dk = warpgroup_mma(ds_before, q_last, dk, is_async=True)
                dk, ds_before = warpgroup_mma_wait(0, deps=[dk, ds_before])
    # Both consumers have read all of k when they have met once more: dk and dv leave through the places of k and v.
    mbarrier.arrive(met.index(turn % 2), count=1)
    mbarrier.wait(met.index(turn % 2), (turn // 2) & 1)
    k_own.store((dk * scale).to(k.dtype))
    v_own.store(dv.to(k.dtype))
    fence_async_shared()
    sync()
    tma.async_copy_shared_to_global(outs[0], [batch, kv_head, first_own, 0], k.index(WHICH))
    tma.async_copy_shared_to_global(outs[1], [batch, kv_head, first_own, 0], v.index(WHICH))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["kv_heads", "n_q", "n_k"])
def one_pass_in_groups_kernel(
    dq_desc, sum_ptr, added_ptr, dk_desc, dv_desc, k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc,
    kv_heads, n_q, n_k, scale, scale_log2,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr,
    STAGES_Q: gl.constexpr, STAGES_DO: gl.constexpr, ORDERED: gl.constexpr, TOGETHER: gl.constexpr,
    AHEAD: gl.constexpr, DS_SHARED: gl.constexpr, RED: gl.constexpr, lengths_ptr=None, SAME_LENGTHS: gl.constexpr = False,
):  # fmt: skip
    DS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k = gl.allocate_shared_memory(k_desc.dtype, [2, 1, 1, HALF, MAIN], k_desc.layout)
    v = gl.allocate_shared_memory(k_desc.dtype, [2, 1, 1, HALF, MAIN], v_desc.layout)
    q = gl.allocate_shared_memory(k_desc.dtype, [STAGES_Q, 1, 1, BLOCK_M, MAIN], q_desc.layout)
    do = gl.allocate_shared_memory(k_desc.dtype, [STAGES_DO, 1, 1, BLOCK_M, MAIN], do_desc.layout)
    ds0 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    ds1 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    dq0 = gl.allocate_shared_memory(gl.float32, [1, 1, 64, 64], dq_desc.layout)
    dq1 = gl.allocate_shared_memory(gl.float32, [1, 1, 64, 64], dq_desc.layout)
    shift = gl.allocate_shared_memory(gl.float32, [STAGES_Q, 1, BLOCK_M], shift_desc.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES_DO, 1, BLOCK_M], delta_desc.layout)
    held = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    met = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(held.index(i), count=1)
        mbarrier.init(met.index(i), count=2)
    rings = held, new_ring(STAGES_Q, 2), new_ring(STAGES_DO, 2), met, (new_ring(1, 1), new_ring(1, 1))
    fence_async_shared()
    outs, sizes = (dk_desc, dv_desc), (kv_heads, n_q, n_k)
    tensors = k, v, q, do, shift, delta, (ds0, ds1), (dq0, dq1)
    fetched = k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc, k, v, q, do, shift, delta
    gl.warp_specialize(
        [
            (
                _consume,
                (outs, sum_ptr, tensors, rings, lengths_ptr, sizes, scale, scale_log2, 0, GROUP, CAUSAL, WHOLE, BLOCK_M, MAIN,
                 SAME_LENGTHS, ORDERED, TOGETHER, AHEAD, DS_SHARED, RED),
            ),
            (
                _consume,
                (outs, sum_ptr, tensors, rings, lengths_ptr, sizes, scale, scale_log2, 1, GROUP, CAUSAL, WHOLE, BLOCK_M, MAIN,
                 SAME_LENGTHS, ORDERED, TOGETHER, AHEAD, DS_SHARED, RED),
            ),
            (
                _produce,
                (fetched, rings, lengths_ptr, sizes, GROUP, CAUSAL, BLOCK_M, MAIN, SAME_LENGTHS, ORDERED, TOGETHER,
                 AHEAD),
            ),
            (
                _add,
                (dq_desc, (dq0, dq1), added_ptr, rings, lengths_ptr, sizes, GROUP, CAUSAL, BLOCK_M, MAIN,
                 SAME_LENGTHS, ORDERED, TOGETHER, RED),
            ),
        ],
        [4, 1, 1],  # warps of all but the first
        [240, 24, 24],  # and their registers
    )  # fmt: skip


@triton.jit
def prepare_kernel(
    sum_ptr, added_ptr, shift_ptr, delta_ptr, o_ptr, do_ptr, l_ptr, dl_ptr, lengths_ptr,
    heads, n_q, n_k, blocks_m, stride_terms, stride_o, stride_do,
    HEAD: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr, BLOCK_M: tl.constexpr, ORDERED: tl.constexpr,
    SAME_LENGTHS: tl.constexpr,
):  # fmt: skip
    """shift and delta, as dq_kernel makes them, zeros for the sums, and nobody has added yet."""
    blocks = tl.cdiv(n_q, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = row // heads, row % heads
    first_m = block * BLOCK
    offs_m = first_m + tl.arange(0, BLOCK)
    n_rows = queries_of(n_q, keys_of(lengths_ptr, batch, n_k), SAME_LENGTHS)
    o_rows = (head_start(o_ptr, batch, head, stride_o, UNIT), stride_o[2], stride_o[3])
    do_rows = (head_start(do_ptr, batch, head, stride_do, UNIT), stride_do[2], stride_do[3])
    o, _ = load_rows(o_rows, first_m, n_rows, BLOCK, HEAD, HEAD, 0, UNIT, False, True)
    do, _ = load_rows(do_rows, first_m, n_rows, BLOCK, HEAD, HEAD, 0, UNIT, False, True)
    dl_row = dl_ptr
    if dl_ptr is not None:
        dl_row = dl_ptr + row * n_q
    shift, delta = _row_terms(do, do, o, o, l_ptr + row * n_q, dl_row, offs_m, n_rows, 0)
    tl.store(shift_ptr + row * stride_terms + offs_m, shift, mask=offs_m < n_q)
    tl.store(delta_ptr + row * stride_terms + offs_m, delta, mask=offs_m < n_q)
    at = sum_ptr + row * n_q * HEAD + offs_m[:, None] * HEAD + tl.arange(0, HEAD)[None, :]
    tl.store(at, tl.zeros((BLOCK, HEAD), tl.float32), mask=(offs_m < n_q)[:, None])
    if ORDERED:
        counters: tl.constexpr = BLOCK // BLOCK_M
        offs = block * counters + tl.arange(0, counters)
        tl.store(added_ptr + row * blocks_m + offs, tl.zeros((counters,), tl.int32), mask=offs < blocks_m)


@triton.jit
def finish_kernel(
    dq_ptr, sum_ptr, heads, n_q, stride_dq, scale,
    HEAD: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dq of its sums: scaled and rounded."""
    blocks = tl.cdiv(n_q, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    offs_m = block * BLOCK + tl.arange(0, BLOCK)
    mask = (offs_m < n_q)[:, None]
    offs_d = tl.arange(0, HEAD)[None, :]
    x = tl.load(sum_ptr + row * n_q * HEAD + offs_m[:, None] * HEAD + offs_d, mask=mask, other=0.0)
    start = head_start(dq_ptr, row // heads, row % heads, stride_dq, UNIT)
    to = start + offs_m[:, None].to(tl.int64) * stride_dq[2] * UNIT + offs_d * stride_dq[3]
    tl.store(to, (x * scale).to(dq_ptr.dtype.element_ty), mask=mask)


_SUMS = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=3)
PREPARED = 128  # rows of a program of the two small kernels


def sums_descriptor(sums) -> TensorDescriptor:
    """(B H, n_q, D) fp32: what each consumer hands over, 64 rows of 64 columns."""
    make_context_current(sums)
    return TensorDescriptor(sums, list(sums.shape), list(sums.stride()), [1, 64, 64], _SUMS)


def _prepare(sums, added, shift, delta, do, q, k, o, l, dl, k_lengths, blocks, same_lengths: bool) -> None:
    (B, H, n_q, D), unit = q.shape, unit_of(o, do)
    launch(
        prepare_kernel, (triton.cdiv(n_q, PREPARED) * B * H,),
        sums, added, shift, delta, o, do, l, dl if dl is None else dl.contiguous(), k_lengths,
        H, n_q, k.shape[2], triton.cdiv(n_q, blocks.block), shift.stride(0), in_units(o, unit), in_units(do, unit),
        HEAD=D, UNIT=unit, BLOCK=PREPARED, BLOCK_M=blocks.block, ORDERED=blocks.ordered, SAME_LENGTHS=same_lengths,
        num_warps=8,
    )  # fmt: skip


def _sum(
    sums, added, dk, dv, shift, delta, do, q, k, v, causal: bool, scale: float, k_lengths, blocks, same_lengths: bool
) -> None:  # fmt: skip
    (B, H, _n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    launch(
        one_pass_in_groups_kernel, (triton.cdiv(n_k, ROWS) * B * kv_heads,),
        sums_descriptor(sums), sums, added,
        *descriptors(HALF.value, D, 0, dk, dv, k, v)[::2], *descriptors(blocks.block, D, 0, q, do)[::2],
        *term_descriptors(blocks.block, shift, delta),
        kv_heads, q.shape[2], n_k, scale, scale * LOG2_E,
        GROUP=H // kv_heads, CAUSAL=causal, WHOLE=k_lengths is None and n_k % ROWS == 0, BLOCK_M=blocks.block, MAIN=D,
        STAGES_Q=blocks.stages_q, STAGES_DO=blocks.stages_do, ORDERED=blocks.ordered, TOGETHER=blocks.together,
        AHEAD=blocks.ahead, DS_SHARED=blocks.ds_shared, RED=blocks.red,
        lengths_ptr=k_lengths, SAME_LENGTHS=same_lengths,
        **LAUNCH,
    )  # fmt: skip


def _finish(dq, sums, scale: float) -> None:
    (B, H, n_q, D), unit = dq.shape, unit_of(dq)
    launch(
        finish_kernel, (triton.cdiv(n_q, PREPARED) * B * H,), dq, sums, H, n_q, in_units(dq, unit), scale,
        HEAD=D, UNIT=unit, BLOCK=PREPARED, num_warps=8,
    )  # fmt: skip


def room(q, blocks) -> tuple[torch.Tensor, torch.Tensor]:
    """For the sums of dq in fp32, and for how many programs have added to each block of queries."""
    B, H, n_q, D = q.shape
    sums = torch.empty(B * H, n_q, D, dtype=torch.float32, device=q.device)
    return sums, torch.empty(B * H * triton.cdiv(n_q, blocks.block), dtype=torch.int32, device=q.device)


@planned
def write_in_one_pass(
    dq, dk, dv, terms, sums, added, do, q, k, v, o, l, causal: bool, scale: float, k_lengths=None, dl=None,
    blocks=None, same_lengths: bool = False,
) -> None:  # fmt: skip
    """`terms`, `sums` and `added`: room from `row_terms` and `room`."""
    shift, delta = terms
    _prepare(sums, added, shift, delta, do, q, k, o, l, dl, k_lengths, blocks, same_lengths)
    _sum(sums, added, dk, dv, shift, delta, do, q, k, v, causal, scale, k_lengths, blocks, same_lengths)
    _finish(dq, sums, scale)
