"""Backward in one pass, with jobs for the warps: five products where two passes make seven, and dq is added to.

A program holds 128 keys, 64 for each of two groups of warps, the consumers, and walks over the queries that see them. A
third warp fetches q, do, shift and delta; a fourth adds dq to global memory. In the turn of block t a consumer makes

    s = k qᵀ, dp = v doᵀ   of block t, both asked for at once
    p = exp2(s - shift)    while dp is being made
    ds = p (dp - delta)    to shared memory too, as dq needs the ds of both consumers
    dv += pᵀ do            p is in registers
    dq = ds k              of block t - 1, one half of it by each consumer, handed to the warp that adds
    dk += dsᵀ q            ds is in registers; made while dq is handed over

Scores are turned, keys down and queries across, so p and ds come out of one product as the next one takes them.
dq comes a turn late: a consumer then never waits for the ds that its neighbour is just making. They meet at a barrier
that each passes a turn after it arrived there. Every ds has two places, and so has dq on its way out.

dq of a block of queries is a sum over programs, in fp32: the copy engine adds a tile of it in the L2 cache (TMA reduce,
`cp.reduce.async.bulk.tensor`), so no tile is read back. Programs add in the order in which they come: in fp32 the last
bits differ from run to run. Two small kernels stand around this one (sums.py): `prepare` makes shift, delta and zeros
for the sums, `finish` scales and rounds the sums. That is 14 B H n_q D bytes, which short sequences do not earn back.

What is asked for when, the warp that adds, and two consumers who share ds follow FlashAttention-3 (Shah and others,
2024) and FlashAttention-4. A fixed order of additions lost to two passes: benchmarks/notes/attention.md.
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
from course_lib.kernels.attention.masks import probabilities, query_range
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


@gluon.jit
def _place(kv_heads, n_k, TOGETHER: gl.constexpr):
    """Program -> (number of the block of keys, batch, head of keys). Of TOGETHER heads the same block comes first, so
    that fewer programs add to the same dq at once. Causal, the first keys are seen by most queries: longest first."""
    blocks = gl.cdiv(n_k, 2 * HALF)
    program = gl.program_id(0)
    group = program // (blocks * TOGETHER)
    among = program % (blocks * TOGETHER)
    heads = gl.minimum(gl.num_programs(0) // blocks - group * TOGETHER, TOGETHER)
    block, batch_head = among // heads, group * TOGETHER + among % heads
    return block, batch_head // kv_heads, batch_head % kv_heads


@gluon.jit
def _walk(sizes, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, TOGETHER: gl.constexpr):
    """What this program does: its block of keys, batch, head of keys; and blocks of queries: the first that sees any of
    its keys, the first that sees all of them, the end."""
    kv_heads, n_q, n_k = sizes
    block, batch, kv_head = _place(kv_heads, n_k, TOGETHER)
    first, full, end = query_range(block * (2 * HALF), n_q, n_k, n_k - n_q, CAUSAL, BLOCK_M, 2 * HALF)
    end = gl.cdiv(end, BLOCK_M)
    first = gl.minimum(first // BLOCK_M, end)
    return block, batch, kv_head, first, gl.maximum(gl.cdiv(full, BLOCK_M), first), end


@gluon.jit
def _produce(
    tensors, rings, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc, k, v, q, do, shift, delta = tensors
    held, q_ring, do_ring, _met, _dq_rings = rings
    kv_heads, _n_q, _n_k = sizes
    block, batch, kv_head, first, _full, end = _walk(sizes, CAUSAL, BLOCK_M, TOGETHER)
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
        for j in range(first, end):
            first_m = j * BLOCK_M
            place, bar = claim(q_ring, turn, BYTES)
            tma.async_copy_global_to_shared(q_desc, [batch, head, first_m, 0], bar, q.index(place))
            tma.async_copy_global_to_shared(shift_desc, [row, first_m], bar, shift.index(place))
            place, bar = claim(do_ring, turn, BYTES)
            tma.async_copy_global_to_shared(do_desc, [batch, head, first_m, 0], bar, do.index(place))
            tma.async_copy_global_to_shared(delta_desc, [row, first_m], bar, delta.index(place))
            turn += 1


@gluon.jit
def _add(
    dq_desc, dq, rings, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    """The warp that has the copy engine add: both halves of a tile of dq, block after block."""
    _held, _q_ring, _do_ring, _met, dq_rings = rings
    kv_heads, _n_q, _n_k = sizes
    _block, batch, kv_head, first, _full, end = _walk(sizes, CAUSAL, BLOCK_M, TOGETHER)
    turn = 0
    if first < end:  # no block is before the first: what comes for it is not added
        for half in gl.static_range(2):
            arrived(dq_rings[half], 0)
            release(dq_rings[half], 0)
        turn += 1
    for member in range(GROUP):
        row = (batch * kv_heads + kv_head) * GROUP + member
        for j in range(first, end):
            for half in gl.static_range(2):
                place = arrived(dq_rings[half], turn)
                if MAIN == 128:
                    async_add(dq_desc, [row, j * BLOCK_M, half * 64], dq[half].index(place))
                else:
                    async_add(dq_desc, [row, j * BLOCK_M + half * 64, 0], dq[half].index(place))
            for half in gl.static_range(2):
                tma.store_wait(1 - half)  # the copy engine has read this half
                release(dq_rings[half], turn)
            turn += 1


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
def _await_before(met, turn):
    """Until both consumers' ds of the block before is in shared memory."""
    mbarrier.wait(met.index((turn + 1) % 2), (((turn + 1) // 2) & 1) ^ 1)


@gluon.jit
def _step(
    dk, dv, tensors, rings, turn, first_m, offs_n, n_k, diagonal, scale_log2,
    WHICH: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, S: gl.constexpr, P: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """All of block number `turn` but its dq, and dq of the block before."""
    k, v, q, do, shift, delta, ds_tiles, dq_tiles = tensors
    _held, q_ring, do_ring, met, dq_rings = rings
    q_place = arrived(q_ring, turn)
    q_tile = q.index(q_place).reshape([BLOCK_M, MAIN])
    s = _product(k.index(WHICH).reshape([HALF, MAIN]), q_tile, S)
    do_place = arrived(do_ring, turn)
    do_tile = do.index(do_place).reshape([BLOCK_M, MAIN])
    dp = _product(v.index(WHICH).reshape([HALF, MAIN]), do_tile, S)
    s = warpgroup_mma_wait(1, deps=[s])
    offs_m = first_m + gl.arange(0, BLOCK_M, gl.SliceLayout(0, S))
    p = probabilities(
        s, shift.index(q_place).load(S), offs_m[None, :], offs_n[:, None], n_k, diagonal, scale_log2,
        CAUSAL, False, MASKED,
    )  # fmt: skip
    p_rounded = gl.convert_layout(p.to(k.dtype), P)
    dp = warpgroup_mma_wait(0, deps=[dp])
    ds_rounded = (p * (dp - delta.index(do_place).load(S))).to(k.dtype)
    dv = warpgroup_mma(p_rounded, do_tile, dv, is_async=True)
    # The other consumer arrives at this barrier after its dq of two blocks before, the last to read this place of ds.
    _await_before(met, turn)
    ds_tiles[WHICH].index(turn % 2).store(ds_rounded)
    fence_async_shared()
    dq = _dq(k, ds_tiles, (turn + 1) % 2, WHICH, MAIN)
    ds_operand = gl.convert_layout(ds_rounded, P)
    dk = warpgroup_mma(ds_operand, q_tile, dk, is_async=True)
    dv, p_rounded, dq = warpgroup_mma_wait(1, deps=[dv, p_rounded, dq])
    mbarrier.arrive(met.index(turn % 2), count=1)
    _hand_over(dq, dq_tiles[WHICH], dq_rings[WHICH], turn)
    release(do_ring, turn)
    dk, ds_operand = warpgroup_mma_wait(0, deps=[dk, ds_operand])
    release(q_ring, turn)
    return dk, dv


@gluon.jit
def _consume(
    outs, tensors, rings, sizes, scale, scale_log2,
    WHICH: gl.constexpr, GROUP: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_M: gl.constexpr,
    MAIN: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)
    MASK: gl.constexpr = CAUSAL or not WHOLE
    k, v, _q, _do, _shift, _delta, ds_tiles, dq_tiles = tensors
    held, _q_ring, _do_ring, met, dq_rings = rings
    _kv_heads, n_q, n_k = sizes
    diagonal = n_k - n_q
    block, batch, kv_head, first, plain, end = _walk(sizes, CAUSAL, BLOCK_M, TOGETHER)
    first_own = (2 * block + WHICH) * HALF
    offs_n = first_own + gl.arange(0, HALF, gl.SliceLayout(1, S))
    dk = gl.zeros([HALF, MAIN], gl.float32, ACC)
    dv = gl.zeros([HALF, MAIN], gl.float32, ACC)
    k_own, v_own = k.index(WHICH).reshape([HALF, MAIN]), v.index(WHICH).reshape([HALF, MAIN])
    mbarrier.wait(held.index(0), 0)
    mbarrier.wait(held.index(1), 0)
    turn = 0
    members = gl.where(first < end, GROUP, 0)
    for _member in range(members):
        if MASK:
            for j in range(first, plain):
                dk, dv = _step(
                    dk, dv, tensors, rings, turn, j * BLOCK_M, offs_n, n_k, diagonal, scale_log2,
                    WHICH, BLOCK_M, MAIN, S, P, CAUSAL, True,
                )  # fmt: skip
                turn += 1
        for j in range(plain if MASK else first, end):
            dk, dv = _step(
                dk, dv, tensors, rings, turn, j * BLOCK_M, offs_n, n_k, diagonal, scale_log2,
                WHICH, BLOCK_M, MAIN, S, P, CAUSAL, False,
            )  # fmt: skip
            turn += 1
    if members > 0:  # dq of the last block
        _await_before(met, turn)
        dq = warpgroup_mma_wait(0, deps=[_dq(k, ds_tiles, (turn + 1) % 2, WHICH, MAIN)])
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
    dq_desc, dk_desc, dv_desc, k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc,
    kv_heads, n_q, n_k, scale, scale_log2,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr,
    STAGES: gl.constexpr, TOGETHER: gl.constexpr,
):  # fmt: skip
    DS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k = gl.allocate_shared_memory(k_desc.dtype, [2, 1, 1, HALF, MAIN], k_desc.layout)
    v = gl.allocate_shared_memory(k_desc.dtype, [2, 1, 1, HALF, MAIN], v_desc.layout)
    q = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_M, MAIN], q_desc.layout)
    do = gl.allocate_shared_memory(k_desc.dtype, [STAGES, 1, 1, BLOCK_M, MAIN], do_desc.layout)
    ds0 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    ds1 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    dq0 = gl.allocate_shared_memory(gl.float32, [2, 1, 64, 64], dq_desc.layout)
    dq1 = gl.allocate_shared_memory(gl.float32, [2, 1, 64, 64], dq_desc.layout)
    shift = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], shift_desc.layout)
    delta = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_M], delta_desc.layout)
    held = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    met = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(held.index(i), count=1)
        mbarrier.init(met.index(i), count=2)
    rings = held, new_ring(STAGES, 2), new_ring(STAGES, 2), met, (new_ring(2, 1), new_ring(2, 1))
    fence_async_shared()
    outs, sizes = (dk_desc, dv_desc), (kv_heads, n_q, n_k)
    tensors = k, v, q, do, shift, delta, (ds0, ds1), (dq0, dq1)
    fetched = k_desc, v_desc, q_desc, do_desc, shift_desc, delta_desc, k, v, q, do, shift, delta
    gl.warp_specialize(
        [
            (
                _consume,
                (outs, tensors, rings, sizes, scale, scale_log2, 0, GROUP, CAUSAL, WHOLE, BLOCK_M, MAIN, TOGETHER),
            ),
            (
                _consume,
                (outs, tensors, rings, sizes, scale, scale_log2, 1, GROUP, CAUSAL, WHOLE, BLOCK_M, MAIN, TOGETHER),
            ),
            (_produce, (fetched, rings, sizes, GROUP, CAUSAL, BLOCK_M, MAIN, TOGETHER)),
            (_add, (dq_desc, (dq0, dq1), rings, sizes, GROUP, CAUSAL, BLOCK_M, MAIN, TOGETHER)),
        ],
        [4, 1, 1],  # warps of all but the first
        [240, 24, 24],  # and their registers
    )


SUMS = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=3)


def sums_descriptor(sums) -> TensorDescriptor:
    """(B H, n_q, D) fp32: what each consumer hands over, 64 rows of 64 columns."""
    make_context_current(sums)
    return TensorDescriptor(sums, list(sums.shape), list(sums.stride()), [1, 64, 64], SUMS)


def settings(blocks: OnePass) -> dict:
    """The kernel's constants that a table decides."""
    return {"BLOCK_M": blocks.block, "STAGES": blocks.stages, "TOGETHER": blocks.together}


def add_up(
    sums, dk, dv, shift, delta, do, q, k, v, causal: bool, scale: float, blocks: OnePass
) -> None:  # fmt: skip
    (B, H, _n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    launch(
        one_pass_in_groups_kernel, (triton.cdiv(n_k, ROWS) * B * kv_heads,),
        sums_descriptor(sums),
        *descriptors(HALF.value, D, 0, dk, dv, k, v)[::2], *descriptors(blocks.block, D, 0, q, do)[::2],
        *term_descriptors(blocks.block, shift, delta),
        kv_heads, q.shape[2], n_k, scale, scale * LOG2_E,
        GROUP=H // kv_heads, CAUSAL=causal, WHOLE=n_k % ROWS == 0, MAIN=D,
        **settings(blocks),
        **LAUNCH,
    )  # fmt: skip


def write_in_one_pass(
    dq, dk, dv, shift, delta, sums, do, q, k, v, o, l, dl, causal: bool, scale: float, blocks: OnePass
) -> None:  # fmt: skip
    """`sums`: from `room`. FLOP: 10 B H n_q n_k D, half of it causal."""
    prepare(sums, shift, delta, do, q, o, l, dl)
    add_up(sums, dk, dv, shift, delta, do, q, k, v, causal, scale, blocks)
    finish(dq, sums, scale)
