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

import triton
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

from course_lib.kernels.attention.groups import HALF, ROWS, descriptors, term_descriptors
from course_lib.kernels.attention.masks import keys_of, probabilities, queries_of, query_range
from course_lib.kernels.attention.rows import LOG2_E
from course_lib.kernels.attention.sums import finish, prepare
from course_lib.kernels.attention.tuning import OnePass
from course_lib.kernels.descriptors import make_context_current
from course_lib.kernels.launching import launch
from course_lib.kernels.rings import LAUNCH, arrived, claim, new_ring, release, sync

__all__ = ["add_up", "one_pass_in_groups_kernel", "settings", "write_in_one_pass"]


@builtin
def async_add(desc, coord, src, _semantic=None):
    """Add a tile in shared memory to one in global memory. Triton has the operation, Gluon has no name for it."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


# Wait until a counter has reached a number; what the copy engine does next comes after it.
_AWAIT = gl.constexpr(
    "{ .reg .pred p; .reg .b32 c; again: ld.acquire.gpu.global.u32 c, [$1]; setp.lt.s32 p, c, $2; @p bra again;"
    " fence.proxy.async; mov.b32 $0, c; }"
)


def _count(in_flight: int) -> gl.constexpr:
    """All that the copy engine was asked to add, but for the last so many, has been added: one thread counts."""
    return gl.constexpr(
        f"{{ .reg .pred p; .reg .b32 l; cp.async.bulk.wait_group {in_flight}; fence.proxy.async;"
        " bar.warp.sync 0xffffffff; mov.u32 l, %laneid; setp.eq.u32 p, l, 0;"
        " @p red.release.gpu.global.add.u32 [$1], $2; mov.b32 $0, l; }"
    )


_COUNT, _COUNT_BEFORE = _count(0), _count(2)


@gluon.jit
def _asm(TEXT: gl.constexpr, ptr, number):
    return gl.inline_asm_elementwise(TEXT, "=r,l,r", [ptr, number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _place(kv_heads, n_k, DESCENDING: gl.constexpr, TOGETHER: gl.constexpr):
    """Program -> (number of the block of keys, batch, head of keys). Of TOGETHER heads the same block comes first.

    Causal, the first keys are seen by most queries: longest first. DESCENDING, the other way round: the last keys begin
    at their diagonal, which is where the sums of their queries begin."""
    blocks = gl.cdiv(n_k, 2 * HALF)
    program = gl.program_id(0)
    group = program // (blocks * TOGETHER)
    among = program % (blocks * TOGETHER)
    heads = gl.minimum(gl.num_programs(0) // blocks - group * TOGETHER, TOGETHER)
    block, batch_head = among // heads, group * TOGETHER + among % heads
    if DESCENDING:
        block = blocks - 1 - block
    return block, batch_head // kv_heads, batch_head % kv_heads


@gluon.jit
def _walk(
    lengths_ptr, sizes,
    CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, SAME_LENGTHS: gl.constexpr, ORDER: gl.constexpr,
    TOGETHER: gl.constexpr,
):  # fmt: skip
    """What this program does: its block of keys, batch, head of keys, how many keys there are, and blocks of queries:
    the first that sees any of its keys, the first that sees all of them, the end."""
    kv_heads, n_q, n_k = sizes
    block, batch, kv_head = _place(kv_heads, n_k, CAUSAL and ORDER == 2, TOGETHER)
    n_valid = keys_of(lengths_ptr, batch, n_k)
    n_rows = queries_of(n_q, n_valid, SAME_LENGTHS)
    first, full, end = query_range(block * (2 * HALF), n_rows, n_valid, n_k - n_q, CAUSAL, BLOCK_M, 2 * HALF)
    end = gl.cdiv(end, BLOCK_M)
    first = gl.minimum(first // BLOCK_M, end)
    return block, batch, kv_head, n_valid, first, gl.maximum(gl.cdiv(full, BLOCK_M), first), end


@gluon.jit
def _turned(j, first, end, block, blocks, ROTATED: gl.constexpr):
    """Each tile of keys begins at another block of queries, so that few add to the same at once."""
    if ROTATED:
        j = j + block * (end - first) // blocks
        j = gl.where(j >= end, j - (end - first), j)
    return j


@gluon.jit
def _produce(
    tensors, rings, lengths_ptr, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, SAME_LENGTHS: gl.constexpr,
    ORDER: gl.constexpr, TOGETHER: gl.constexpr, ROTATED: gl.constexpr,
):  # fmt: skip
    k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc, k, v, q, do, shift, delta = tensors
    held, q_ring, do_ring, _met, _dq_rings = rings
    kv_heads, _n_q, n_k = sizes
    block, batch, kv_head, _n_valid, first, _full, end = _walk(
        lengths_ptr, sizes, CAUSAL, BLOCK_M, SAME_LENGTHS, ORDER, TOGETHER
    )  # fmt: skip
    BYTES: gl.constexpr = 2 * BLOCK_M * MAIN + 4 * BLOCK_M
    for half in gl.static_range(2):
        mbarrier.expect(held.index(half), 2 * 2 * HALF * MAIN)
    for half in gl.static_range(2):
        at = [batch, kv_head, (2 * block + half) * HALF, 0]
        tma.async_copy_global_to_shared(k_desc, at, held.index(0), k.index(half))
        tma.async_copy_global_to_shared(v_desc, at, held.index(1), v.index(half))
    turn = 0
    for member in range(GROUP):
        head = kv_head * GROUP + member
        row = batch * kv_heads * GROUP + head
        for i in range(first, end):
            first_m = _turned(i, first, end, block, gl.cdiv(n_k, 2 * HALF), ROTATED) * BLOCK_M
            place, bar = claim(q_ring, turn, BYTES)
            tma.async_copy_global_to_shared(q_desc, [batch, head, first_m, 0], bar, q.index(place))
            tma.async_copy_global_to_shared(shift_desc, [row, first_m], bar, shift.index(place))
            place, bar = claim(do_ring, turn, BYTES)
            tma.async_copy_global_to_shared(do_desc, [batch, head, first_m, 0], bar, do.index(place))
            tma.async_copy_global_to_shared(delta_desc, [row, first_m], bar, delta.index(place))
            turn += 1


@gluon.jit
def _add(
    dq_desc, dq, added_ptr, rings, lengths_ptr, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, SAME_LENGTHS: gl.constexpr,
    ORDER: gl.constexpr, TOGETHER: gl.constexpr, ROTATED: gl.constexpr, LATE: gl.constexpr, COUNT_LATE: gl.constexpr,
):  # fmt: skip
    """The warp that has the copy engine add: both halves of a tile of dq, in its turn."""
    _held, _q_ring, _do_ring, _met, dq_rings = rings
    kv_heads, n_q, n_k = sizes
    block, batch, kv_head, n_valid, first, _full, end = _walk(
        lengths_ptr, sizes, CAUSAL, BLOCK_M, SAME_LENGTHS, ORDER, TOGETHER
    )  # fmt: skip
    blocks_m = gl.cdiv(n_q, BLOCK_M)
    turn = 0
    if LATE:
        if first < end:  # nothing is before the first block
            for half in gl.static_range(2):
                arrived(dq_rings[half], 0)
                release(dq_rings[half], 0)
            turn += 1
    before = (batch * kv_heads + kv_head) * GROUP * blocks_m
    for member in range(GROUP):
        row = (batch * kv_heads + kv_head) * GROUP + member
        for i in range(first, end):
            j = _turned(i, first, end, block, gl.cdiv(n_k, 2 * HALF), ROTATED)
            at = row * blocks_m + j
            if ORDER > 0:
                mine = block
                if CAUSAL and ORDER == 2:  # the last block of keys that the queries of this block see adds first
                    last = gl.minimum((j + 1) * BLOCK_M + n_k - n_q, n_valid) - 1
                    mine = last // (2 * HALF) - block
                _asm(_AWAIT, added_ptr + at, mine)
            for half in gl.static_range(2):
                place = arrived(dq_rings[half], turn)
                if MAIN == 128:
                    async_add(dq_desc, [row, j * BLOCK_M, half * 64], dq[half].index(place))
                else:
                    async_add(dq_desc, [row, j * BLOCK_M + half * 64, 0], dq[half].index(place))
            for half in gl.static_range(2):
                tma.store_wait(1 - half)  # read
                release(dq_rings[half], turn)
            if ORDER > 0:
                if COUNT_LATE:
                    if (member > 0) | (i > first):
                        _asm(_COUNT_BEFORE, added_ptr + before, 1)
                    before = at
                else:
                    _asm(_COUNT, added_ptr + at, 1)
            turn += 1
    if ORDER > 0 and COUNT_LATE:
        if first < end:
            _asm(_COUNT, added_ptr + before, 1)


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
    PLACES: gl.constexpr = full.shape[0]
    mbarrier.wait(empty.index(turn % PLACES), ((turn // PLACES) & 1) ^ 1)
    dq_tile.index(turn % PLACES).reshape([64, 64]).store(dq)
    fence_async_shared()
    mbarrier.arrive(full.index(turn % PLACES), count=1)


@gluon.jit
def _late_dq(k, ds_tiles, met, turn, WHICH: gl.constexpr, MAIN: gl.constexpr):
    """Of the block before number `turn`. Before the first there is none: what comes out is added to nothing."""
    mbarrier.wait(met.index((turn + 1) % 2), (((turn + 1) // 2) & 1) ^ 1)
    return _dq(k, ds_tiles, (turn + 1) % 2, WHICH, MAIN)


@gluon.jit
def _step(
    dk, dv, tensors, rings, turn, first_m, offs_n, n_valid, diagonal, scale_log2,
    WHICH: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, S: gl.constexpr, P: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, LATE: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """All of block number `turn`; LATE: but dq of the block before."""
    k, v, q, do, shift, delta, ds_tiles, dq_tiles = tensors
    _held, q_ring, do_ring, met, dq_rings = rings
    q_place = arrived(q_ring, turn)
    q_tile = q.index(q_place).reshape([BLOCK_M, MAIN])
    s = _product(k.index(WHICH).reshape([HALF, MAIN]), q_tile, S)
    do_place = arrived(do_ring, turn)
    do_tile = do.index(do_place).reshape([BLOCK_M, MAIN])
    dp = _product(v.index(WHICH).reshape([HALF, MAIN]), do_tile, S)
    s = warpgroup_mma_wait(1, deps=[s])
    p = _exponentials(s, shift, q_place, first_m, offs_n, n_valid, diagonal, scale_log2, BLOCK_M, S, CAUSAL, MASKED)
    p_rounded = gl.convert_layout(p.to(k.dtype), P)
    if EARLY:
        dv = warpgroup_mma(p_rounded, do_tile, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=[dp])
    else:
        dp = warpgroup_mma_wait(0, deps=[dp])
    ds_rounded = (p * (dp - delta.index(do_place).load(S))).to(k.dtype)
    if not EARLY:
        dv = warpgroup_mma(p_rounded, do_tile, dv, is_async=True)
    if LATE:  # the other has read this place when he has written the next
        mbarrier.wait(met.index((turn + 1) % 2), (((turn + 1) // 2) & 1) ^ 1)
    ds_tiles[WHICH].index(turn % 2).store(ds_rounded)
    fence_async_shared()
    if LATE:
        dq = _dq(k, ds_tiles, (turn + 1) % 2, WHICH, MAIN)
    else:
        mbarrier.arrive(met.index(turn % 2), count=1)
        mbarrier.wait(met.index(turn % 2), (turn // 2) & 1)
        dq = _dq(k, ds_tiles, turn % 2, WHICH, MAIN)
    ds_operand = gl.convert_layout(ds_rounded, P)
    dk = warpgroup_mma(ds_operand, q_tile, dk, is_async=True)
    dv, p_rounded, dq = warpgroup_mma_wait(1, deps=[dv, p_rounded, dq])
    if LATE:
        mbarrier.arrive(met.index(turn % 2), count=1)
    _hand_over(dq, dq_tiles[WHICH], dq_rings[WHICH], turn)
    release(do_ring, turn)
    dk, ds_operand = warpgroup_mma_wait(0, deps=[dk, ds_operand])
    release(q_ring, turn)
    return dk, dv


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
    outs, tensors, rings, lengths_ptr, sizes, scale, scale_log2,
    WHICH: gl.constexpr, GROUP: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_M: gl.constexpr,
    MAIN: gl.constexpr, SAME_LENGTHS: gl.constexpr, ORDER: gl.constexpr, TOGETHER: gl.constexpr,
    ROTATED: gl.constexpr, LATE: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    MASK: gl.constexpr = CAUSAL or not WHOLE
    k, v, _q, _do, _shift, _delta, ds_tiles, dq_tiles = tensors
    held, _q_ring, _do_ring, met, dq_rings = rings
    _kv_heads, n_q, n_k = sizes
    diagonal = n_k - n_q
    block, batch, kv_head, n_valid, first, plain, end = _walk(
        lengths_ptr, sizes, CAUSAL, BLOCK_M, SAME_LENGTHS, ORDER, TOGETHER
    )  # fmt: skip
    blocks = gl.cdiv(n_k, 2 * HALF)
    first_own = (2 * block + WHICH) * HALF
    offs_n = first_own + gl.arange(0, HALF, gl.SliceLayout(1, S))
    dk = gl.zeros([HALF, MAIN], gl.float32, ACC)
    dv = gl.zeros([HALF, MAIN], gl.float32, ACC)
    k_own, v_own = k.index(WHICH).reshape([HALF, MAIN]), v.index(WHICH).reshape([HALF, MAIN])
    mbarrier.wait(held.index(0), 0)
    mbarrier.wait(held.index(1), 0)
    if lengths_ptr is not None:  # keys behind the length: a probability of 0 hides no NaN
        if first_own + HALF > n_valid:
            _cut(k_own, n_valid - first_own)
            _cut(v_own, n_valid - first_own)
            fence_async_shared()
            sync()
    turn = 0
    members = gl.where(first < end, GROUP, 0)
    for _member in range(members):
        if MASK:
            for i in range(first, plain):
                j = _turned(i, first, end, block, blocks, ROTATED)
                dk, dv = _step(
                    dk, dv, tensors, rings, turn, j * BLOCK_M, offs_n, n_valid, diagonal, scale_log2,
                    WHICH, BLOCK_M, MAIN, S, P, CAUSAL, True, LATE, EARLY,
                )  # fmt: skip
                turn += 1
        for i in range(plain if MASK else first, end):
            j = _turned(i, first, end, block, blocks, ROTATED)
            dk, dv = _step(
                dk, dv, tensors, rings, turn, j * BLOCK_M, offs_n, n_valid, diagonal, scale_log2,
                WHICH, BLOCK_M, MAIN, S, P, CAUSAL, False, LATE, EARLY,
            )  # fmt: skip
            turn += 1
    if LATE:
        if members > 0:
            dq = warpgroup_mma_wait(0, deps=[_late_dq(k, ds_tiles, met, turn, WHICH, MAIN)])
            _hand_over(dq, dq_tiles[WHICH], dq_rings[WHICH], turn)
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
    dq_desc, added_ptr, dk_desc, dv_desc, k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc,
    kv_heads, n_q, n_k, scale, scale_log2,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr,
    STAGES_Q: gl.constexpr, STAGES_DO: gl.constexpr, PLACES: gl.constexpr, ORDER: gl.constexpr,
    TOGETHER: gl.constexpr, ROTATED: gl.constexpr, LATE: gl.constexpr, COUNT_LATE: gl.constexpr,
    EARLY: gl.constexpr, lengths_ptr=None, SAME_LENGTHS: gl.constexpr = False,
):  # fmt: skip
    DS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k = gl.allocate_shared_memory(k_desc.dtype, [2, 1, 1, HALF, MAIN], k_desc.layout)
    v = gl.allocate_shared_memory(k_desc.dtype, [2, 1, 1, HALF, MAIN], v_desc.layout)
    q = gl.allocate_shared_memory(k_desc.dtype, [STAGES_Q, 1, 1, BLOCK_M, MAIN], q_desc.layout)
    do = gl.allocate_shared_memory(k_desc.dtype, [STAGES_DO, 1, 1, BLOCK_M, MAIN], do_desc.layout)
    ds0 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    ds1 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    dq0 = gl.allocate_shared_memory(gl.float32, [PLACES, 1, 64, 64], dq_desc.layout)
    dq1 = gl.allocate_shared_memory(gl.float32, [PLACES, 1, 64, 64], dq_desc.layout)
    shift = gl.allocate_shared_memory(gl.float32, [STAGES_Q, 1, BLOCK_M], shift_desc.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES_DO, 1, BLOCK_M], delta_desc.layout)
    held = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    met = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(held.index(i), count=1)
        mbarrier.init(met.index(i), count=2)
    rings = held, new_ring(STAGES_Q, 2), new_ring(STAGES_DO, 2), met, (new_ring(PLACES, 1), new_ring(PLACES, 1))
    fence_async_shared()
    outs, sizes = (dk_desc, dv_desc), (kv_heads, n_q, n_k)
    tensors = k, v, q, do, shift, delta, (ds0, ds1), (dq0, dq1)
    fetched = k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc, k, v, q, do, shift, delta
    gl.warp_specialize(
        [
            (
                _consume,
                (outs, tensors, rings, lengths_ptr, sizes, scale, scale_log2, 0, GROUP, CAUSAL, WHOLE, BLOCK_M, MAIN,
                 SAME_LENGTHS, ORDER, TOGETHER, ROTATED, LATE, EARLY),
            ),
            (
                _consume,
                (outs, tensors, rings, lengths_ptr, sizes, scale, scale_log2, 1, GROUP, CAUSAL, WHOLE, BLOCK_M, MAIN,
                 SAME_LENGTHS, ORDER, TOGETHER, ROTATED, LATE, EARLY),
            ),
            (
                _produce,
                (fetched, rings, lengths_ptr, sizes, GROUP, CAUSAL, BLOCK_M, MAIN, SAME_LENGTHS, ORDER, TOGETHER,
                 ROTATED),
            ),
            (
                _add,
                (dq_desc, (dq0, dq1), added_ptr, rings, lengths_ptr, sizes, GROUP, CAUSAL, BLOCK_M, MAIN,
                 SAME_LENGTHS, ORDER, TOGETHER, ROTATED, LATE, COUNT_LATE),
            ),
        ],
        [4, 1, 1],  # warps of all but the first
        [240, 24, 24],  # and their registers
    )  # fmt: skip


SUMS = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=3)


def sums_descriptor(sums) -> TensorDescriptor:
    """(B H, n_q, D) fp32: what each consumer hands over, 64 rows of 64 columns."""
    make_context_current(sums)
    return TensorDescriptor(sums, list(sums.shape), list(sums.stride()), [1, 64, 64], SUMS)


def settings(blocks: OnePass, causal: bool) -> dict:
    """The kernel's constants that a table decides."""
    return {
        "BLOCK_M": blocks.block,
        "STAGES_Q": blocks.stages_q,
        "STAGES_DO": blocks.stages_do,
        "PLACES": blocks.places,
        "ORDER": blocks.order,
        "TOGETHER": blocks.together,
        "ROTATED": blocks.rotated and not causal,
        "LATE": blocks.late,
        "COUNT_LATE": blocks.count_late,
        "EARLY": blocks.early,
    }


def add_up(
    sums, added, dk, dv, shift, delta, do, q, k, v, causal: bool, scale: float, k_lengths, blocks, same_lengths: bool
) -> None:  # fmt: skip
    (B, H, _n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    launch(
        one_pass_in_groups_kernel, (triton.cdiv(n_k, ROWS) * B * kv_heads,),
        sums_descriptor(sums), added,
        *descriptors(HALF.value, D, 0, dk, dv, k, v)[::2], *descriptors(blocks.block, D, 0, q, do)[::2],
        *term_descriptors(blocks.block, shift, delta),
        kv_heads, q.shape[2], n_k, scale, scale * LOG2_E,
        GROUP=H // kv_heads, CAUSAL=causal, WHOLE=k_lengths is None and n_k % ROWS == 0, MAIN=D,
        **settings(blocks, causal), lengths_ptr=k_lengths, SAME_LENGTHS=same_lengths,
        **LAUNCH,
    )  # fmt: skip


def write_in_one_pass(
    dq, dk, dv, shift, delta, sums, added, do, q, k, v, o, l, dl, causal: bool, scale: float, k_lengths, blocks,
    same_lengths: bool = False,
) -> None:  # fmt: skip
    """`sums` and `added`: from `room`. FLOP: 10 B H n_q n_k D, half of it causal."""
    prepare(sums, added, shift, delta, do, q, k, o, l, dl, k_lengths, blocks.block, same_lengths)
    add_up(sums, added, dk, dv, shift, delta, do, q, k, v, causal, scale, k_lengths, blocks, same_lengths)
    finish(dq, sums, scale)
