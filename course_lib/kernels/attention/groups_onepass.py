"""Backward in one pass, with jobs for the warps: five products where two passes make seven, and dq is added to.

A tile is 128 keys, 64 for each of two groups of warps, the consumers, and the queries that see them are walked over. A
third warp fetches q, do, shift and delta, and k and v of the next tile; a fourth adds dq to global memory. In the turn
of block t a consumer makes

    s = k qᵀ, dp = v doᵀ   of block t, both asked for at once
    p = exp2(s - shift)    while dp is being made
    ds = p (dp - delta)    to shared memory, as dq needs the ds of both consumers
    dv += pᵀ do            p is in registers
    dq = ds k              of the block before, a part of it by each consumer, handed to the warp that adds
    dk += dsᵀ q            made while dq is handed over; ds is in registers too

Scores are turned, keys down and queries across, so p and ds come out of one product as the next one takes them.
The parts of dq: half of 128 columns, half of the rows where columns are 64 or fewer, and where they are two tiles
(columns.py: 72 are 64 + 16) one consumer has the first and one the second.
dq comes a turn late: a consumer then never waits for the ds that its neighbour is just making. They meet at a barrier
that each passes a turn after it arrived there. Every ds has two places, and so has dq on its way out.

There are as many programs as multiprocessors. They take tiles from a counter in global memory: the warp that fetches
takes the next number when it has asked for the last block of a tile, no sooner, and tells the other jobs. (DEALT:
below.) Of TOGETHER heads all first blocks of keys come first, the longest under a causal mask, then all second ones.

dq of a block of queries is a sum over programs, in fp32: the copy engine adds a tile of it in the L2 cache (TMA reduce,
`cp.reduce.async.bulk.tensor`), so no tile is read back. Two small kernels stand around this one (sums.py): `prepare`
makes shift, delta and zeros for the sums, `finish` scales and rounds the sums. That is 14 B H n_q D bytes, which short
sequences do not earn back, and 10 where the first of the sums is written: in order, but for causal calls of more
queries than keys, some of which see none, and sequences without keys.

PARTS: where tiles are too few for a GPU, so many programs share the query heads of a tile. To all but who fetches k and
v each part is a head of keys of its own, with fewer query heads. Its dk and dv are sums in fp32, which leave through
the places of dq; `finish` adds them, always in the same order.

Lengths: keys behind the length of a sequence become zeros in shared memory, once a tile, since a probability of 0 hides
no NaN. A tile that has only such keys walks over nothing, and its zeros leave.

In any order, programs add as they come: in fp32 the last bits differ from run to run.

ORDERED: the same bits on every run. A counter for each block of queries says how many blocks of keys have added, and
each waits for its place. The first has nothing to add to and writes. What matters is that nobody waits for long, and
that the warp that adds has nothing else to do:

    taken      blocks of keys add in the order of their numbers, and all walk from the last queries back, so the n-th
               follows the one before a turn or two behind. A tile waits only for tiles that were taken before it:
               however few programs run at a time, they come to an end
    DEALT      without a mask all tiles are equally long, and can come in rounds. Those of a round begin as far from
               each other as they can, and add in the order in which they come if all turns take equally long. They wait
               in a circle, the last for the first: all programs run at once, or none (a cooperative launch), and the
               pass begins when so many multiprocessors are free
    two more   warps: one asks the counter, one counts. Asking, waiting until a tile has been added and counting take
    jobs       longer one after the other than a turn does

What is asked for when, the warp that adds, two consumers who share ds, tiles taken from a counter, and counters for the
order of additions follow FlashAttention-3 (Shah and others, 2024) and FlashAttention-4; that programs of a head begin
apart is an idea of DASH (Qiang and others, 2026). benchmarks/notes/attention.md says what was measured.
"""

import functools

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

from course_lib.kernels.attention.groups import (
    HALF,
    ROWS,
    add_products,
    allocate,
    allocate_terms,
    cut,
    descriptors,
    fetch,
    products,
    send,
    store,
    term_descriptors,
    view,
    wait_for_all,
    zeros,
)
from course_lib.kernels.attention.masks import keys_of, probabilities, query_range
from course_lib.kernels.attention.rows import LOG2_E
from course_lib.kernels.attention.sums import COUNTED, finish, prepare, sums_and_counts, sums_of_parts
from course_lib.kernels.attention.tuning import OnePass
from course_lib.kernels.columns import split
from course_lib.kernels.descriptors import make_context_current
from course_lib.kernels.hardware import multiprocessors
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
# One more. Of a warp one thread counts.
_COUNT = gl.constexpr(
    "{ .reg .pred p; .reg .b32 l; mov.u32 l, %laneid; setp.eq.u32 p, l, 0;"
    " @p red.release.gpu.global.add.u32 [$1], $2; mov.b32 $0, l; }"
)
# All that this warp had the copy engine add is in global memory. (`store_wait`: it has been read.)
_ADDED = gl.constexpr("cp.async.bulk.wait_group 0; fence.proxy.async; mov.b32 $0, $1;")


@gluon.jit
def _asm(TEXT: gl.constexpr, ptr, number):
    return gl.inline_asm_elementwise(TEXT, "=r,l,r", [ptr, number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _await_added(turn):
    gl.inline_asm_elementwise(_ADDED, "=r,r", [turn], dtype=gl.int32, is_pure=False, pack=1)


assert HALF.value == COUNTED.value, "a counter for each HALF queries"


@functools.cache
def _of_sums(columns: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout(swizzle_byte_width=min(128, 4 * columns), element_bitwidth=32, rank=5)


@gluon.jit
def allocate_sums(desc):
    """Two places for what one consumer hands over."""
    eights: gl.constexpr = desc.block_type.shape[1]
    columns: gl.constexpr = desc.block_type.shape[4]
    return desc, gl.allocate_shared_memory(gl.float32, [2, 1, eights, 4, 2, columns], desc.layout)


# One more tile is taken: the number of what was not taken before, for lane 0 of the warp that asks.
_TAKE = gl.constexpr(
    "{ .reg .pred p; .reg .b32 l, n; mov.u32 l, %laneid; setp.eq.u32 p, l, 0; mov.b32 n, 0;"
    " @p atom.relaxed.gpu.global.add.u32 n, [$1], $2; mov.b32 $0, n; }"
)
_OF_LANE_0 = gl.constexpr("shfl.sync.idx.b32 $0, $1, 0, 31, 0xffffffff;")


@gluon.jit
def _of_lane_0(number):
    return gl.inline_asm_elementwise(_OF_LANE_0, "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


# A number that the compiler does not know: what follows from it is worked out in every turn, not kept from before the
# loop, for which there are no registers.
_NOW = gl.constexpr("mov.b32 $0, $1;")


@gluon.jit
def _now(number):
    return gl.inline_asm_elementwise(_NOW, "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _tell(tiles, step, number):
    """The warp that fetches, to all others: the number of the next tile."""
    ring, numbers = tiles
    full, empty = ring
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    mbarrier.wait(empty.index(step % 2), ((step // 2) & 1) ^ 1)
    numbers.index(step % 2).store(gl.full([1], number, gl.int32, ONE))
    mbarrier.arrive(full.index(step % 2), count=1)


@gluon.jit
def _hear(tiles, step, WARPS: gl.constexpr):
    """Any other job, of so many warps: the number of its next tile."""
    ring, numbers = tiles
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [WARPS], [0])
    place = arrived(ring, step)
    number = gl.max(numbers.index(place).load(LAYOUT), 0)
    release(ring, step)
    return number


@gluon.jit
def _walk(number, sizes, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, TOGETHER: gl.constexpr):
    """What a tile is: its block of keys, batch, head of keys; of the blocks of queries the first that sees any of its
    keys, the first that sees all of them, and the end; and the blocks [a, b) of keys of this head that are in the same
    round of tiles, where these are dealt. Of TOGETHER heads the same block comes before the next."""
    kv_heads, n_q, n_k, items, lengths_ptr = sizes
    blocks = gl.cdiv(n_k, 2 * HALF)
    group = number // (blocks * TOGETHER)
    heads = gl.minimum(items // blocks - group * TOGETHER, TOGETHER)
    among = number % (blocks * TOGETHER)
    block, head = among // heads, group * TOGETHER + among % heads
    n_valid = keys_of(lengths_ptr, head // kv_heads, n_k)
    first, full, end = query_range(block * (2 * HALF), n_q, n_valid, n_k - n_q, CAUSAL, BLOCK_M, 2 * HALF)
    end = gl.cdiv(end, BLOCK_M)
    first = first // BLOCK_M  # before the end, as the last query sees all keys; behind the length the end is 0
    programs = gl.num_programs(0)
    to_start = number // programs * programs - (number - among) - among % heads  # of the round, from the head's first
    a = gl.maximum(gl.cdiv(to_start, heads), 0)
    b = gl.minimum(gl.cdiv(to_start + programs, heads), blocks)
    return block, head // kv_heads, head % kv_heads, first, gl.maximum(gl.cdiv(full, BLOCK_M), first), end, (a, b)


@gluon.jit
def _nth(i, first, end, block, in_round, ORDERED: gl.constexpr, DEALT: gl.constexpr):
    """Of a walk over blocks of queries. Where tiles are dealt, those of a round begin as far from each other as they
    can. Else in order all begin with the last, where blocks of keys follow one another. In any order all begin with the
    first that they have, causal at their own diagonals, so that few programs add to the same dq at once."""
    if DEALT:
        i += (block - in_round[0]) * (end // (in_round[1] - in_round[0]))
        i = gl.where(i >= end, i - end, i)
    elif ORDERED:
        i = first + end - 1 - i
    return i


@gluon.jit
def _before(j, end, block, in_round, DEALT: gl.constexpr):
    """How many blocks of keys add to dq of block j of queries before this one: those with lower numbers, or of tiles
    that are dealt those of rounds before, and of the same round those that come there earlier if all turns take equally
    long."""
    before = block
    if DEALT:
        a, b = in_round
        apart = end // (b - a)
        before = gl.minimum(j // gl.maximum(apart, 1), b - a - 1) - (block - a)
        before = gl.where(before < 0, before + b - a, before)
        before = a + gl.where(apart == 0, block - a, before)  # all walk alike
    return before


@gluon.jit
def _hold(k, v, rings, step, block, batch, kv_head, MAIN: gl.constexpr, REST: gl.constexpr):
    """Ask for k and v of a block, in the places that the last ones leave."""
    _place_k, k_bar = claim(rings[0], step, 2 * 2 * HALF * (MAIN + REST))
    _place_v, v_bar = claim(rings[1], step, 2 * 2 * HALF * (MAIN + REST))
    for half in gl.static_range(2):
        row = (2 * block + half) * HALF
        fetch(k, half, k_bar, batch, kv_head, row, REST)
        fetch(v, half, v_bar, batch, kv_head, row, REST)


@gluon.jit
def _bring_nothing(ring, turn):
    """A use of a ring for which no bytes come, so that all who count turns count alike."""
    full, empty = ring
    PLACES: gl.constexpr = full.shape[0]
    mbarrier.wait(empty.index(turn % PLACES), ((turn // PLACES) & 1) ^ 1)
    mbarrier.arrive(full.index(turn % PLACES), count=1)


@gluon.jit
def _produce(
    tensors, rings, tiles, next_ptr, sizes,
    GROUP: gl.constexpr, PARTS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr,
    REST: gl.constexpr, TOGETHER: gl.constexpr, ORDERED: gl.constexpr, DEALT: gl.constexpr,
):  # fmt: skip
    k, v, q, do, shift, delta = tensors
    held, q_ring, do_ring, _met, _dq_rings = rings
    kv_heads, items = sizes[0], sizes[3]
    BYTES: gl.constexpr = 2 * BLOCK_M * (MAIN + REST) + 4 * BLOCK_M
    turn, step = 0, 0
    number = gl.program_id(0) if DEALT else _of_lane_0(_asm(_TAKE, next_ptr, 1))
    _tell(tiles, step, number)
    while number < items:
        block, batch, kv_head, first, _full, end, in_round = _walk(number, sizes, CAUSAL, BLOCK_M, TOGETHER)
        for member in range(GROUP):
            head = kv_head * GROUP + member
            row = batch * kv_heads * GROUP + head
            for i in range(first, end):
                first_m = _nth(i, first, end, block, in_round, ORDERED, DEALT) * BLOCK_M
                place, bar = claim(q_ring, turn, BYTES)
                fetch(q, place, bar, batch, head, first_m, REST)
                tma.async_copy_global_to_shared(shift[0], [row, first_m], bar, shift[1].index(place))
                place, bar = claim(do_ring, turn, BYTES)
                fetch(do, place, bar, batch, head, first_m, REST)
                tma.async_copy_global_to_shared(delta[0], [row, first_m], bar, delta[1].index(place))
                turn += 1
                if (member == 0) & (i == first):  # q and do come while dk and dv of the tile before leave
                    _hold(k, v, held, step, block, batch, kv_head // PARTS, MAIN, REST)
        if sizes[4] is not None:
            if first >= end:  # behind the length; zeros leave through these places
                _hold(k, v, held, step, block, batch, kv_head // PARTS, MAIN, REST)
        # Not sooner: a tile that is held by a program still at work is not there for one that is free.
        coming = number + gl.num_programs(0) if DEALT else _asm(_TAKE, next_ptr, 1)
        _bring_nothing(q_ring, turn)  # in the turn of the last dq
        _bring_nothing(do_ring, turn)
        turn += 1
        step += 1
        number = _of_lane_0(coming)
        _tell(tiles, step, number)


@gluon.jit
def _count_turns(
    added_ptr, ring, tiles, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, TOGETHER: gl.constexpr, DEALT: gl.constexpr,
    ASKS: gl.constexpr,
):  # fmt: skip
    """Beside the warp that adds: one warp waits until it is this program's turn, and one counts what has been added."""
    kv_heads, n_q, items = sizes[0], sizes[1], sizes[3]
    counters = gl.cdiv(n_q, HALF)
    full, empty = ring
    turn, step = 0, 0
    number = _hear(tiles, step, 1)
    while number < items:
        block, batch, kv_head, first, _full, end, in_round = _walk(number, sizes, CAUSAL, BLOCK_M, TOGETHER)
        for member in range(GROUP):
            row = (batch * kv_heads + kv_head) * GROUP + member
            for i in range(first, end):
                j = _nth(i, first, end, block, in_round, True, DEALT)
                counter = added_ptr + row * counters + j * (BLOCK_M // HALF)
                if ASKS:
                    mbarrier.wait(empty.index(turn % 2), ((turn // 2) & 1) ^ 1)
                    _asm(_AWAIT, counter, _before(j, end, block, in_round, DEALT))
                    mbarrier.arrive(full.index(turn % 2), count=1)
                else:
                    arrived(ring, turn)
                    _asm(_COUNT, counter, 1)
                    release(ring, turn)
                turn += 1
        step += 1
        number = _hear(tiles, step, 1)


@gluon.jit
def _add_tile(desc, coord, tile, is_first):
    """What nobody has added to is written."""
    if is_first:
        tma.async_copy_shared_to_global(desc, coord, tile)
    else:
        async_add(desc, coord, tile)


@gluon.jit
def _add(
    dq, in_turn, rings, tiles, sizes,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr,
    TOGETHER: gl.constexpr, ORDERED: gl.constexpr, DEALT: gl.constexpr,
):  # fmt: skip
    """The warp that has the copy engine add: what each consumer has of a tile of dq, block after block."""
    _held, _q_ring, _do_ring, _met, dq_rings = rings
    may, done = in_turn
    kv_heads, items = sizes[0], sizes[3]
    turn, added, step = 0, 0, 0
    number = _hear(tiles, step, 1)
    while number < items:
        block, batch, kv_head, first, _full, end, in_round = _walk(number, sizes, CAUSAL, BLOCK_M, TOGETHER)
        for half in gl.static_range(2):  # no block is before the first: what comes for it is not added
            arrived(dq_rings[half], turn)
            release(dq_rings[half], turn)
        turn += 1
        for member in range(GROUP):
            row = (batch * kv_heads + kv_head) * GROUP + member
            for i in range(first, end):
                j = _nth(i, first, end, block, in_round, ORDERED, DEALT)
                if ORDERED:
                    arrived(may, added)
                    release(may, added)
                for half in gl.static_range(2):
                    place = arrived(dq_rings[half], turn)
                    desc, tile = dq[half]
                    eight = j * (BLOCK_M // 8)
                    if REST or MAIN == 128:
                        coord = [row, eight, 0, 0, half * (MAIN if REST else 64)]
                    else:
                        coord = [row, eight + half * 8, 0, 0, 0]
                    if ORDERED:
                        _add_tile(desc, coord, tile.index(place), _before(j, end, block, in_round, DEALT) == 0)
                    else:
                        async_add(desc, coord, tile.index(place))
                for half in gl.static_range(2):
                    tma.store_wait(1 - half)  # the copy engine has read this half
                    release(dq_rings[half], turn)
                if ORDERED:
                    _await_added(turn)
                    full, empty = done
                    mbarrier.wait(empty.index(added % 2), ((added // 2) & 1) ^ 1)
                    mbarrier.arrive(full.index(added % 2), count=1)
                    added += 1
                turn += 1
        step += 1
        number = _hear(tiles, step, 1)


@gluon.jit
def _dq(k, ds_tiles, place, WHICH: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr):
    """A consumer's part of dq = ds k, asked for."""
    ds = ds_tiles[0].index(place), ds_tiles[1].index(place)
    ROWS: gl.constexpr = ds_tiles[0].shape[2] if REST else 64
    COLUMNS: gl.constexpr = (REST if WHICH else MAIN) if REST else (64 if MAIN == 128 else MAIN)
    DQ: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    dq = gl.zeros([ROWS, COLUMNS], gl.float32, DQ)
    for half in gl.static_range(2):
        a = ds[half]
        b = view(k, _now(half), REST)[WHICH if REST else 0]
        if MAIN == 128:
            b = b.slice(WHICH * 64, 64, dim=1)
        elif REST == 0:
            a = a.slice(WHICH * 64, 64, dim=1)
        dq = warpgroup_mma(a.permute([1, 0]), b, dq, use_acc=half == 1, is_async=True)  # (ROWS, HALF) (HALF, COLUMNS)
    return dq


@gluon.jit
def _without_conflicts(dq):
    """Of eight rows 0 to 3 go to the even places, 4 to 7 to the odd ones.

    Half a warp writes 32 bytes of each of four rows at a time. The copy engine wants a tile in the layout where two
    places that follow one another hold the same 32 bytes in the same banks, so rows as they come need two writes.
    That is so for 32 columns or more. 16, a row of 64 bytes, need two writes either way.
    """
    EIGHTS: gl.constexpr = dq.shape[0] // 8
    COLUMNS: gl.constexpr = dq.shape[1]
    return dq.reshape([EIGHTS, 2, 4, COLUMNS]).permute([0, 2, 1, 3])


@gluon.jit
def _hand_over(dq, to, ring, turn):
    full, empty = ring
    PLACES: gl.constexpr = full.shape[0]
    mbarrier.wait(empty.index(turn % PLACES), ((turn // PLACES) & 1) ^ 1)
    eights = _without_conflicts(dq)
    to[1].index(turn % PLACES).reshape(eights.shape).store(eights)
    fence_async_shared()
    mbarrier.arrive(full.index(turn % PLACES), count=1)


@gluon.jit
def _send_sums(acc, desc, to, ring, turn, batch, head, row):
    """A part's sums of dk or dv, through both places of dq, when what was handed over there has been added."""
    _full, empty = ring
    for later in gl.static_range(2):
        mbarrier.wait(empty.index((turn + later) % 2), (((turn + later) // 2) & 1) ^ 1)
    MAIN: gl.constexpr = desc.block_type.shape[3]
    buffer = to[1]._reinterpret(gl.float32, [1, 1, 1, HALF, MAIN], desc.layout)
    tiles = desc, desc, buffer, buffer
    store(view(tiles, 0, 0), acc, 0)
    fence_async_shared()
    sync()
    send(desc, desc, tiles, 0, batch, head, row, 0)
    tma.store_wait(0)
    sync()


@gluon.jit
def _await_before(met, turn):
    """Until both consumers' ds of the block before is in shared memory."""
    mbarrier.wait(met.index((turn + 1) % 2), (((turn + 1) // 2) & 1) ^ 1)


@gluon.jit
def _wait_for_all_but_dk(dv, p, dq, REST: gl.constexpr):
    main, rest = dv
    if REST:
        main, rest, p, dq = warpgroup_mma_wait(2, deps=[main, rest, p, dq])
    else:
        main, p, dq = warpgroup_mma_wait(1, deps=[main, p, dq])
    return (main, rest), p, dq


@gluon.jit
def _step(
    dk, dv, v_held, tensors, rings, turn, first_m, offs_n, n_valid, diagonal, scale_log2,
    WHICH: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr, S: gl.constexpr,
    P: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """All of a block but its dq, and dq of the block before; the turn of the last dq of a tile brings no block."""
    k, v, q, do, shift, delta, ds_tiles, dq_tiles = tensors
    _held, q_ring, do_ring, met, dq_rings = rings
    q_place = arrived(q_ring, turn)
    q_tile = view(q, q_place, REST)
    own = _now(WHICH)
    s = products(view(k, own, REST), q_tile, REST, S)  # (HALF, BLOCK_M)
    do_place = arrived(do_ring, turn)
    do_tile = view(do, do_place, REST)
    # Where registers are left for it, v need not be read in every turn: 128 of 3,328 clocks of shared memory.
    IN_REGISTERS: gl.constexpr = MAIN == 64 and REST == 0 and not MASKED
    dp = products((v_held, v_held) if IN_REGISTERS else view(v, own, REST), do_tile, REST, S)
    s = warpgroup_mma_wait(2 if REST else 1, deps=[s])
    offs_m = first_m + gl.arange(0, BLOCK_M, gl.SliceLayout(0, S))
    p = probabilities(
        s, shift[1].index(q_place).load(S), offs_m[None, :], offs_n[:, None], n_valid, diagonal, scale_log2,
        CAUSAL, WHOLE, MASKED,
    )  # fmt: skip
    p_rounded = gl.convert_layout(p.to(k[0].dtype), P)
    dp = warpgroup_mma_wait(0, deps=[dp])
    ds_rounded = (p * (dp - delta[1].index(do_place).load(S))).to(k[0].dtype)
    dv = add_products(dv, p_rounded, do_tile, REST)
    # The other consumer arrives at this barrier after its dq of two blocks before, the last to read this place of ds.
    _await_before(met, turn)
    ds_tiles[WHICH].index(turn % 2).store(ds_rounded)
    fence_async_shared()
    dq = _dq(k, ds_tiles, (turn + 1) % 2, WHICH, MAIN, REST)
    ds_operand = gl.convert_layout(ds_rounded, P)
    dk = add_products(dk, ds_operand, q_tile, REST)
    dv, p_rounded, dq = _wait_for_all_but_dk(dv, p_rounded, dq, REST)
    mbarrier.arrive(met.index(turn % 2), count=1)
    _hand_over(dq, dq_tiles[WHICH], dq_rings[WHICH], turn)
    release(do_ring, turn)
    dk, ds_operand = wait_for_all(dk, ds_operand, REST)
    release(q_ring, turn)
    return dk, dv


@gluon.jit
def _consume(
    given,
    WHICH: gl.constexpr, GROUP: gl.constexpr, PARTS: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr,
    BLOCK_M: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr, TOGETHER: gl.constexpr, ORDERED: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16]), 2)
    MASK: gl.constexpr = CAUSAL or not WHOLE
    outs, tensors, rings, tiles, sizes, scale, scale_log2 = given
    k, v, _q, _do, _shift, _delta, ds_tiles, dq_tiles = tensors
    held, _q_ring, _do_ring, met, dq_rings = rings
    _kv_heads, n_q, n_k, items, lengths_ptr = sizes
    diagonal = n_k - n_q
    turn, step = 0, 0
    number = _hear(tiles, step, 4)
    while number < items:
        block, batch, kv_head, first, plain, end, _in_round = _walk(number, sizes, CAUSAL, BLOCK_M, TOGETHER)
        first_own = (2 * block + WHICH) * HALF
        offs_n = first_own + gl.arange(0, HALF, gl.SliceLayout(1, S))
        dk, dv = zeros(MAIN, REST), zeros(MAIN, REST)
        arrived(held[0], step)
        arrived(held[1], step)
        n_valid = keys_of(lengths_ptr, batch, n_k)
        if lengths_ptr is not None:  # a probability of 0 hides no NaN. The other consumer reads this half after `met`
            if first_own + HALF > n_valid:
                cut(view(k, WHICH, REST), n_valid - first_own, REST)
                cut(view(v, WHICH, REST), n_valid - first_own, REST)
        for _member in range(GROUP):
            v_held = view(v, WHICH, REST)[0]
            if MASK and not ORDERED:
                for j in range(first, plain):
                    dk, dv = _step(
                        dk, dv, v_held, tensors, rings, turn, j * BLOCK_M, offs_n, n_valid, diagonal, scale_log2,
                        WHICH, BLOCK_M, MAIN, REST, S, P, CAUSAL, WHOLE, True,
                    )  # fmt: skip
                    turn += 1
            if MAIN == 64 and REST == 0:
                v_held = v_held.load(gl.DotOperandLayout(0, S, 2))
            for _ in range(end - plain if MASK else end - first):
                dk, dv = _step(
                    dk, dv, v_held, tensors, rings, turn, 0, offs_n, n_valid, diagonal, scale_log2,
                    WHICH, BLOCK_M, MAIN, REST, S, P, CAUSAL, WHOLE, False,
                )  # fmt: skip
                turn += 1
            if MASK and ORDERED:  # without a mask these are the last keys, of which queries do not matter
                for i in range(first, plain):
                    dk, dv = _step(
                        dk, dv, v_held, tensors, rings, turn, (first + plain - 1 - i) * BLOCK_M, offs_n, n_valid,
                        diagonal, scale_log2, WHICH, BLOCK_M, MAIN, REST, S, P, CAUSAL, WHOLE, True,
                    )  # fmt: skip
                    turn += 1
        _await_before(met, turn)  # dq of the last block
        dq = warpgroup_mma_wait(0, deps=[_dq(k, ds_tiles, (turn + 1) % 2, WHICH, MAIN, REST)])
        _hand_over(dq, dq_tiles[WHICH], dq_rings[WHICH], turn)
        for ring in gl.static_range(2):  # which brings neither q nor do
            arrived(rings[1 + ring], turn)
            release(rings[1 + ring], turn)
        # Both consumers have read all of k when they have met once more: dk and dv leave through the places of k and v.
        mbarrier.arrive(met.index(turn % 2), count=1)
        mbarrier.wait(met.index(turn % 2), (turn // 2) & 1)
        turn += 1
        dk_scaled = dk[0] * scale, dk[1] * scale
        if PARTS == 1:
            store(view(k, WHICH, REST), dk_scaled, REST)
            store(view(v, WHICH, REST), dv, REST)
            fence_async_shared()
            sync()
            send(outs[0], outs[1], k, WHICH, batch, kv_head, first_own, REST)
            send(outs[2], outs[3], v, WHICH, batch, kv_head, first_own, REST)
            tma.store_wait(0)
            sync()
        else:
            _send_sums(dk_scaled, outs[0], dq_tiles[WHICH], dq_rings[WHICH], turn, batch, kv_head, first_own)
            _send_sums(dv, outs[2], dq_tiles[WHICH], dq_rings[WHICH], turn, batch, kv_head, first_own)
        release(held[0], step)
        release(held[1], step)
        step += 1
        number = _hear(tiles, step, 4)


@gluon.jit(do_not_specialize=["kv_heads", "n_q", "n_k", "items"])
def one_pass_in_groups_kernel(
    dq_desc, dq_rest, dk_desc, dk_rest, dv_desc, dv_rest, k_desc, k_rest, v_desc, v_rest,
    q_desc, q_rest, do_desc, do_rest, shift_desc, delta_desc, counts_ptr,
    lengths_ptr, kv_heads, n_q, n_k, items, scale, scale_log2,
    GROUP: gl.constexpr, PARTS: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_M: gl.constexpr,
    MAIN: gl.constexpr, REST: gl.constexpr, STAGES: gl.constexpr, TOGETHER: gl.constexpr, ORDERED: gl.constexpr,
    DEALT: gl.constexpr,
):  # fmt: skip
    """kv_heads: heads of keys x PARTS; GROUP: query heads of each."""
    gl.static_assert(PARTS == 1 or REST == 0, "parts of two tiles of columns are not written")
    gl.static_assert(REST > 0 or BLOCK_M == (64 if MAIN == 128 else 128), "the halves of dq are of 64 rows and columns")
    DS: gl.constexpr = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    k, v = allocate(k_desc, k_rest, 2, REST), allocate(v_desc, v_rest, 2, REST)
    q, do = allocate(q_desc, q_rest, STAGES, REST), allocate(do_desc, do_rest, STAGES, REST)
    ds0 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    ds1 = gl.allocate_shared_memory(k_desc.dtype, [2, HALF, BLOCK_M], DS)
    dq0 = allocate_sums(dq_desc)
    if REST:
        dq1 = allocate_sums(dq_rest)
    else:
        dq1 = allocate_sums(dq_desc)
    shift, delta = allocate_terms(shift_desc, STAGES), allocate_terms(delta_desc, STAGES)
    met = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(met.index(i), count=2)
    held = new_ring(1, 2), new_ring(1, 2)
    rings = held, new_ring(STAGES, 2), new_ring(STAGES, 2), met, (new_ring(2, 1), new_ring(2, 1))
    may, done = new_ring(2, 1), new_ring(2, 1)
    NUMBER: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    tiles = new_ring(2, 5 if ORDERED else 3), gl.allocate_shared_memory(gl.int32, [2, 1], NUMBER)
    fence_async_shared()
    outs, sizes = (dk_desc, dk_rest, dv_desc, dv_rest), (kv_heads, n_q, n_k, items, lengths_ptr)
    fetched = k, v, q, do, shift, delta
    tensors = k, v, q, do, shift, delta, (ds0, ds1), (dq0, dq1)
    given = outs, tensors, rings, tiles, sizes, scale, scale_log2
    # A constexpr that is given a second name becomes a number of the GPU's, and in a sum of lists it is none any more:
    # hence every job is written out, and both lists are.
    if ORDERED:
        gl.warp_specialize(
            [
                (_consume, (given, 0, GROUP, PARTS, CAUSAL, WHOLE, BLOCK_M, MAIN, REST, TOGETHER, ORDERED)),
                (_consume, (given, 1, GROUP, PARTS, CAUSAL, WHOLE, BLOCK_M, MAIN, REST, TOGETHER, ORDERED)),
                (_produce, (fetched, rings, tiles, counts_ptr, sizes, GROUP, PARTS, CAUSAL, BLOCK_M, MAIN, REST,
                            TOGETHER, ORDERED, DEALT)),
                (_add, ((dq0, dq1), (may, done), rings, tiles, sizes, GROUP, CAUSAL, BLOCK_M, MAIN, REST, TOGETHER,
                        True, DEALT)),
                (_count_turns, (counts_ptr + 1, may, tiles, sizes, GROUP, CAUSAL, BLOCK_M, TOGETHER, DEALT, True)),
                (_count_turns, (counts_ptr + 1, done, tiles, sizes, GROUP, CAUSAL, BLOCK_M, TOGETHER, DEALT, False)),
            ],
            [4, 1, 1, 1, 1],  # warps of all but the first
            [240, 24, 24, 24, 24],  # and their registers
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_consume, (given, 0, GROUP, PARTS, CAUSAL, WHOLE, BLOCK_M, MAIN, REST, TOGETHER, ORDERED)),
                (_consume, (given, 1, GROUP, PARTS, CAUSAL, WHOLE, BLOCK_M, MAIN, REST, TOGETHER, ORDERED)),
                (_produce, (fetched, rings, tiles, counts_ptr, sizes, GROUP, PARTS, CAUSAL, BLOCK_M, MAIN, REST,
                            TOGETHER, ORDERED, DEALT)),
                (_add, ((dq0, dq1), (may, done), rings, tiles, sizes, GROUP, CAUSAL, BLOCK_M, MAIN, REST, TOGETHER,
                        False, DEALT)),
            ],
            [4, 1, 1],
            [240, 24, 24],
        )  # fmt: skip


def sums_descriptors(sums, block: int) -> tuple[TensorDescriptor, TensorDescriptor | None]:
    """(B H, n_q rounded up to eights, D) fp32: what a consumer hands over. Of two blocks of columns each consumer has
    one, all rows; of one 64 rows of 64 columns or less. Eight rows are two times four, and the two and the four have
    changed places, as in shared memory."""
    make_context_current(sums)
    (heads, rows, D), (main, rest) = sums.shape, split(sums.shape[2])
    high, columns = (block, (main, rest)) if rest else (64, (min(main, 64), 0))
    shape, strides = [heads, rows // 8, 4, 2, D], [sums.stride(0), 8 * D, D, 4 * D, 1]
    tiles = (
        TensorDescriptor(sums, shape, strides, [1, high // 8, 4, 2, n], _of_sums(n)) if n else None for n in columns
    )
    return tuple(tiles)


def settings(blocks: OnePass) -> dict:
    """The kernel's constants that a table decides."""
    decided = {"BLOCK_M": blocks.block, "STAGES": blocks.stages, "TOGETHER": blocks.together}
    return decided | {"ORDERED": blocks.in_order, "DEALT": blocks.dealt, "PARTS": blocks.parts}


def add_up(
    sums, counts, dk, dv, shift, delta, do, q, k, v, causal: bool, scale: float, k_lengths, blocks: OnePass
) -> None:  # fmt: skip
    """dk and dv: of each part, if there are any."""
    (B, H, _n_q, D), (kv_heads, n_k) = q.shape, dk.shape[1:3]
    main, rest = split(D)
    items = triton.cdiv(n_k, ROWS) * B * kv_heads
    # Where programs wait for one another in a circle all of them run at once, or none.
    options = {"launch_cooperative_grid": True} if blocks.dealt else {}
    launch(
        one_pass_in_groups_kernel, (min(items, multiprocessors(q.device)),),
        *sums_descriptors(sums, blocks.block),
        *descriptors(HALF.value, main, rest, dk, dv, k, v), *descriptors(blocks.block, main, rest, q, do),
        *term_descriptors(blocks.block, shift, delta), counts,
        k_lengths, kv_heads, q.shape[2], n_k, items, scale, scale * LOG2_E,
        GROUP=H // kv_heads, CAUSAL=causal, WHOLE=k_lengths is None and n_k % ROWS == 0, MAIN=main, REST=rest,
        **settings(blocks),
        **LAUNCH, **options,
    )  # fmt: skip


def write_in_one_pass(
    dq, dk, dv, shift, delta, room, do, q, k, v, o, l, dl, causal: bool, scale: float, k_lengths, blocks: OnePass
) -> None:  # fmt: skip
    """`room`: of sums.py. FLOP: 10 B H n_q n_k D, half of it causal."""
    assert k_lengths is None or not blocks.dealt, "tiles of sequences of different lengths do not come in rounds"
    sums, counts = sums_and_counts(room, q, k, blocks)
    of_parts = sums_of_parts(room, q, k, blocks) if blocks.parts > 1 else (dk, dv)
    # In order whoever comes first to a block of queries writes. Zeros are for calls with queries that see no key, and
    # for sequences of length 0.
    zeros = not blocks.in_order or (causal and q.shape[2] > k.shape[2])
    prepare(sums, counts, shift, delta, do, q, o, l, dl, k_lengths, zeros, blocks.in_order)
    add_up(sums, counts, *of_parts, shift, delta, do, q, k, v, causal, scale, k_lengths, blocks)
    finish(dq, sums, scale)
    if blocks.parts > 1:
        finish(dk, of_parts[0], 1.0, blocks.parts)
        finish(dv, of_parts[1], 1.0, blocks.parts)
