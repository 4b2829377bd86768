"""Attention, forward, with jobs for the warps: the softmax of one group while the tensor cores work for the other.

The same sums as in forward.py, in another order in time. In one turn of its loop a consumer

    asks for the scores of block t and, behind them, for the product of block t - 1 with its probabilities,
    waits for the scores alone and takes their exponentials, while that product is being made,
    waits for the product, and corrects the sums.

So the tensor cores always have one product more in hand than a consumer waits for. The consumers take turns at asking
(`turns`): then they take their exponentials at different times. At 128 columns that costs 0.4 to 2 %, and without
lengths it is left out. The sums may be corrected seldom (`lazy`, groups_softmax.py).

Each consumer holds 64 queries, and all read the same tiles of keys. Of two, each thread has 240 registers. Of three,
160: enough up to 64 columns, where o takes 32, the scores of 128 keys 64 and the probabilities of the turn before 32.
There three win without a mask: the exponentials of 64 columns take as long as the products, and a third consumer fills
the waits of the other two. Under a causal mask two win at 64.

Which tiles a program gets, and in which order: groups_tiles.py. Under a causal mask each consumer walks over the blocks
that its own queries see, and passes over those that only later ones see.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from course_lib.kernels.attention.groups import (
    HALF,
    add_products,
    allocate,
    descriptors,
    ending_descriptors,
    fetch,
    fetch_valid,
    products,
    send,
    view,
    wait_for_all,
)
from course_lib.kernels.attention.groups_softmax import block_softmax, correct, scale_rows, sums_of_threads
from course_lib.kernels.attention.groups_tiles import blocks_of_keys, dealt, place, share, take
from course_lib.kernels.attention.masks import keys_of
from course_lib.kernels.attention.rows import LOG2_E
from course_lib.kernels.attention.tuning import Groups
from course_lib.kernels.columns import split
from course_lib.kernels.hardware import multiprocessors
from course_lib.kernels.launching import launch
from course_lib.kernels.rings import LAUNCH, LAUNCH_THREE, arrived, claim, new_ring, release, sync

__all__ = ["forward_in_groups_kernel", "write_forward_in_groups"]

LEAST_SCALE = 2.0**-126  # in the place of 0, which would make NaN of what is out of sight


@gluon.jit
def _produce(
    tensors, rings, lengths_ptr, dealt_ptr, sizes, tiles,
    REST: gl.constexpr, GROUP: gl.constexpr, CAUSAL: gl.constexpr, HEADS_INTERLEAVED: gl.constexpr,
):  # fmt: skip
    q_tiles, k_tiles, v_tiles = tensors
    q_ring, k_ring, v_ring, turns = rings
    CONSUMERS: gl.constexpr = turns.shape[0]
    BLOCK_N: gl.constexpr = k_tiles[2].shape[3]
    WIDTH: gl.constexpr = k_tiles[2].shape[4] + REST
    Q_BYTES: gl.constexpr = 2 * HALF * WIDTH
    BYTES: gl.constexpr = 2 * BLOCK_N * WIDTH
    n_q, n_k = sizes[2], sizes[3]
    turn, count = 0, 0
    first, last, step, coming = share(dealt_ptr, tiles)
    for at in range(first, last, step):
        tile, coming = take(dealt_ptr, at, last, coming)
        first_m, batch, head = place(tile, sizes, CONSUMERS * HALF, CAUSAL, HEADS_INTERLEAVED)
        n_valid = keys_of(lengths_ptr, batch, n_k)
        _full, end = blocks_of_keys(first_m, n_q, n_k, n_valid, CONSUMERS * HALF, CAUSAL, BLOCK_N)
        for i in range(end):
            first_n = (end - 1 - i) * BLOCK_N  # from the last block on: the masked ones come first
            free, bar = claim(k_ring, turn, BYTES)
            fetch(k_tiles, free, bar, batch, head // GROUP, first_n, REST)  # (BLOCK_N, MAIN), (BLOCK_N, REST)
            if i == 0:
                for which in gl.static_range(CONSUMERS):
                    free, bar = claim(q_ring, count, Q_BYTES)
                    fetch(q_tiles, free, bar, batch, head, first_m + which * HALF, REST)  # (HALF, MAIN), (HALF, REST)
                    count += 1
            free, bar = claim(v_ring, turn, BYTES)
            if lengths_ptr is None:
                fetch(v_tiles, free, bar, batch, head // GROUP, first_n, REST)  # (BLOCK_N, MAIN), (BLOCK_N, REST)
            else:  # a probability of 0 hides no NaN
                fetch_valid(v_tiles, free, bar, batch, head // GROUP, first_n, gl.maximum(n_valid, 1), n_k, REST)
            turn += 1


@gluon.jit
def _carried(p, KIND: gl.constexpr, CONSUMERS: gl.constexpr):
    """What a turn leaves for the next one's product: fp32, which the assembler rounds just before that product. Three
    consumers would spill 1596 bytes a thread so, and round it here."""
    if CONSUMERS == 3:
        p = p.to(KIND)
    return p


@gluon.jit
def _correct(acc, factor, REST: gl.constexpr, LAZY: gl.constexpr):
    """Every row times its own factor."""
    main, rest = acc
    main = correct(main, factor, LAZY)
    if REST:
        rest = correct(rest, factor, LAZY)
    return main, rest


@gluon.jit
def _take_turn(turns, taken, WHICH: gl.constexpr):
    """Barrier WHICH is passed by the group before this one; the first group's first turn is free."""
    FREE: gl.constexpr = 1 if WHICH == 0 else 0
    mbarrier.wait(turns.index(WHICH), (taken & 1) ^ FREE)


@gluon.jit
def _pass_turn(turns, WHICH: gl.constexpr):
    mbarrier.arrive(turns.index((WHICH + 1) % turns.shape[0]), count=1)


@gluon.jit
def _skip(rings, turn, taken, WHICH: gl.constexpr, TURNS: gl.constexpr):
    """A block that other groups' queries see and none of this group's."""
    _q_ring, k_ring, v_ring, turns = rings
    if TURNS:
        _take_turn(turns, taken, WHICH)
        _pass_turn(turns, WHICH)
    # Waiting says that everybody has released the use before: a barrier counts for one use at a time.
    arrived(k_ring, turn)
    release(k_ring, turn)
    arrived(v_ring, turn)
    release(v_ring, turn)


@gluon.jit
def _step(
    acc, row_max, row_sum, p, q, tensors, rings, turn, taken, first_n, offs_m, n_valid, diagonal, scale_log2,
    WHICH: gl.constexpr, REST: gl.constexpr, S: gl.constexpr, P: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr, TURNS: gl.constexpr, LAZY: gl.constexpr,
):  # fmt: skip
    """Scores of block number `turn`, and the product of the block before it with its p."""
    _q_tiles, k_tiles, v_tiles = tensors
    _q_ring, k_ring, v_ring, turns = rings
    p = gl.convert_layout(p.to(q[0].dtype), P)  # (HALF, BLOCK_N)
    k = view(k_tiles, arrived(k_ring, turn), REST)  # (BLOCK_N, MAIN), (BLOCK_N, REST)
    if TURNS:
        _take_turn(turns, taken, WHICH)
    s = products(q, k, REST, S)  # (HALF, BLOCK_N)
    v = view(v_tiles, arrived(v_ring, turn - 1), REST)  # (BLOCK_N, MAIN), (BLOCK_N, REST)
    acc = add_products(acc, p, v, REST)  # (HALF, MAIN), (HALF, REST)
    if TURNS:
        _pass_turn(turns, WHICH)
    s = warpgroup_mma_wait(2 if REST else 1, deps=[s])  # all but the product
    release(k_ring, turn)
    p_next, row_max, correction = block_softmax(
        s, row_max, offs_m, first_n, n_valid, diagonal, scale_log2, S, CAUSAL, MASKED, LAZY
    )  # fmt: skip
    row_sum = scale_rows(row_sum, correction) + sums_of_threads(p_next)
    p_next = _carried(p_next, q[0].dtype, turns.shape[0])
    # Never taken. Without it the assembler moves the wait below up, over the whole softmax, and nothing overlaps; it
    # moves none across a branch. (With three consumers and sums that are seldom scaled it moves the exponentials of two
    # down, behind the wait, and that is faster than to scale always.)
    if turn == -1:
        arrived(v_ring, 0)
    acc, p = wait_for_all(acc, p, REST)
    release(v_ring, turn - 1)
    return _correct(acc, correction, REST, LAZY), row_max, row_sum, p_next


@gluon.jit
def _consume(
    ours, lengths_ptr, dealt_ptr,
    WHICH: gl.constexpr, REST: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr,
    HEADS_INTERLEAVED: gl.constexpr, TURNS: gl.constexpr, LAZY: gl.constexpr,
):  # fmt: skip
    LN_2: gl.constexpr = 0.6931471805599453
    outs, l_ptr, tensors, rings, sizes, tiles, scale_log2 = ours
    q_tiles, k_tiles, v_tiles = tensors
    q_ring, k_ring, v_ring, turns = rings
    CONSUMERS: gl.constexpr = turns.shape[0]
    BLOCK_N: gl.constexpr = k_tiles[2].shape[3]
    MAIN: gl.constexpr = k_tiles[2].shape[4]
    # Who holds what: rows go to the four warps, 16 each, columns to the threads of a warp, as wgmma gives and takes.
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    ACC: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16])
    ACC_REST: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST if REST else MAIN, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, ACC, 2)  # p as the left operand: the registers in which s came
    ROW: gl.constexpr = gl.SliceLayout(1, S)
    MASK: gl.constexpr = CAUSAL or not WHOLE
    heads, n_q, n_k = sizes[0], sizes[2], sizes[3]
    diagonal = n_k - n_q
    turn, taken, count = 0, 0, 0
    count += WHICH
    first, last, step, coming = share(dealt_ptr, tiles)
    for at in range(first, last, step):
        tile, coming = take(dealt_ptr, at, last, coming)
        first_m, batch, head = place(tile, sizes, CONSUMERS * HALF, CAUSAL, HEADS_INTERLEAVED)
        n_valid = keys_of(lengths_ptr, batch, n_k)
        _full, fetched = blocks_of_keys(first_m, n_q, n_k, n_valid, CONSUMERS * HALF, CAUSAL, BLOCK_N)
        first_own = first_m + WHICH * HALF
        full, end = blocks_of_keys(first_own, n_q, n_k, n_valid, HALF, CAUSAL, BLOCK_N)
        end = gl.where(first_own < n_q, end, 1)  # behind the last query there is nothing to do
        offs_m = first_own + gl.arange(0, HALF, ROW)
        row_max = gl.full([HALF], -float("inf"), gl.float32, ROW)
        main = gl.zeros([HALF, MAIN], gl.float32, ACC)
        rest = main
        if REST:
            rest = gl.zeros([HALF, REST], gl.float32, ACC_REST)
        acc = main, rest

        for _i in range(fetched - end):
            _skip(rings, turn, taken, WHICH, TURNS)
            turn += 1
            taken += 1
        # The first block in time, the last of the keys, has no block before it.
        q_place = arrived(q_ring, count)
        q = view(q_tiles, q_place, REST)  # (HALF, MAIN), (HALF, REST)
        k = view(k_tiles, arrived(k_ring, turn), REST)  # (BLOCK_N, MAIN), (BLOCK_N, REST)
        s = products(q, k, REST, S)
        s = warpgroup_mma_wait(0, deps=[s])
        release(k_ring, turn)
        p, row_max, _correction = block_softmax(
            s, row_max, offs_m, (end - 1) * BLOCK_N, n_valid, diagonal, scale_log2, S, CAUSAL, MASK, LAZY
        )  # fmt: skip
        row_sum = sums_of_threads(p)  # (HALF, 4)
        p = _carried(p, q[0].dtype, CONSUMERS)
        turn += 1
        if CAUSAL:  # without, the first block is the only one that some query does not see whole
            for i in range(gl.maximum(end - 1 - full, 0)):
                acc, row_max, row_sum, p = _step(
                    acc, row_max, row_sum, p, q, tensors, rings, turn, taken, (end - 2 - i) * BLOCK_N,
                    offs_m, n_valid, diagonal, scale_log2, WHICH, REST, S, P, CAUSAL, True, TURNS, LAZY,
                )  # fmt: skip
                turn += 1
                taken += 1
        for _i in range(gl.minimum(full, end - 1)):
            acc, row_max, row_sum, p = _step(
                acc, row_max, row_sum, p, q, tensors, rings, turn, taken, 0,
                offs_m, n_valid, diagonal, scale_log2, WHICH, REST, S, P, CAUSAL, False, TURNS, LAZY,
            )  # fmt: skip
            turn += 1
            taken += 1
        p = gl.convert_layout(p.to(q[0].dtype), P)
        acc = add_products(acc, p, view(v_tiles, arrived(v_ring, turn - 1), REST), REST)

        # A row with no key has the sum 0 and the maximum -inf: zeros, and L = -inf.
        whole_sum = gl.convert_layout(gl.sum(row_sum, 1), ROW)
        whole_sum = gl.where(whole_sum == 0.0, 1.0, whole_sum)
        l = (row_max + gl.log2(whole_sum)) * LN_2
        gl.store(l_ptr + (batch.to(gl.int64) * heads + head) * n_q + offs_m, l, mask=offs_m < n_q)
        acc, p = wait_for_all(acc, p, REST)
        sync()
        release(v_ring, turn - 1)
        # q was read for the last time: o leaves through its place.
        main, rest = _correct(acc, 1.0 / whole_sum, REST, False)
        if lengths_ptr is not None:  # of no key the first one was fetched all the same
            main = gl.where(n_valid > 0, main, 0.0)
            if REST:
                rest = gl.where(n_valid > 0, rest, 0.0)
        q[0].store(main.to(q[0].dtype))
        if REST:
            q[1].store(rest.to(q[0].dtype))
        fence_async_shared()  # the copy engine reads shared memory by another way than threads write it
        sync()
        send(outs[0], outs[1], q_tiles, q_place, batch, head, first_own, REST)
        tma.store_wait(0)
        sync()
        release(q_ring, count)
        count += CONSUMERS


@gluon.jit(do_not_specialize=["heads", "batch_heads", "n_q", "n_k", "tiles"])
def forward_in_groups_kernel(
    o_desc, o_rest, l_ptr, q_desc, q_rest, k_desc, k_rest, v_desc, v_rest,
    heads, batch_heads, n_q, n_k, tiles, scale_log2,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, WHOLE: gl.constexpr, HEADS_INTERLEAVED: gl.constexpr,
    STAGES: gl.constexpr, HELD: gl.constexpr, REST: gl.constexpr, TURNS: gl.constexpr, lengths_ptr=None,
    dealt_ptr=None, CONSUMERS: gl.constexpr = 2,
    BLOCK_N: gl.constexpr = None, MAIN: gl.constexpr = None, POLYNOMIAL: gl.constexpr = False,
    LAZY: gl.constexpr = False,
):  # fmt: skip
    q = allocate(q_desc, q_rest, HELD * CONSUMERS, REST)
    k, v = allocate(k_desc, k_rest, STAGES, REST), allocate(v_desc, v_rest, STAGES, REST)
    # Tiles tell BLOCK_N and MAIN: lesson 04, as it was given out before 2026-11-30, gives these three.
    gl.static_assert(BLOCK_N is None or BLOCK_N == k[2].shape[3])
    gl.static_assert(MAIN is None or MAIN == k[2].shape[4])
    gl.static_assert(not POLYNOMIAL)
    turns = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(CONSUMERS):
        mbarrier.init(turns.index(i), count=1)
    rings = new_ring(HELD * CONSUMERS, 1), new_ring(STAGES, CONSUMERS), new_ring(STAGES, CONSUMERS), turns
    fence_async_shared()
    tensors, outs, sizes = (q, k, v), (o_desc, o_rest), (heads, batch_heads, n_q, n_k)
    ours = outs, l_ptr, tensors, rings, sizes, tiles, scale_log2
    # A constexpr that is given a second name becomes a number of the GPU's: hence every job is written out.
    if CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (ours, lengths_ptr, dealt_ptr, 0, REST, CAUSAL, WHOLE, HEADS_INTERLEAVED, TURNS, LAZY)),
                (_consume, (ours, lengths_ptr, dealt_ptr, 1, REST, CAUSAL, WHOLE, HEADS_INTERLEAVED, TURNS, LAZY)),
                (
                    _produce,
                    (tensors, rings, lengths_ptr, dealt_ptr, sizes, tiles, REST, GROUP, CAUSAL, HEADS_INTERLEAVED),
                ),
            ],
            [4, 1],  # warps of the second and third
            [240, 24],  # and their registers
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (ours, lengths_ptr, dealt_ptr, 0, REST, CAUSAL, WHOLE, HEADS_INTERLEAVED, TURNS, LAZY)),
                (_consume, (ours, lengths_ptr, dealt_ptr, 1, REST, CAUSAL, WHOLE, HEADS_INTERLEAVED, TURNS, LAZY)),
                (_consume, (ours, lengths_ptr, dealt_ptr, 2, REST, CAUSAL, WHOLE, HEADS_INTERLEAVED, TURNS, LAZY)),
                (
                    _produce,
                    (tensors, rings, lengths_ptr, dealt_ptr, sizes, tiles, REST, GROUP, CAUSAL, HEADS_INTERLEAVED),
                ),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


def write_forward_in_groups(o, l, q, k, v, causal: bool, scale: float, k_lengths, groups: Groups) -> None:
    """o and L into given tensors that the copy engine reaches (tuning.py says when); L contiguous."""
    (B, H, n_q, D), n_k = q.shape, k.shape[2]
    main, rest = split(D)
    rows = groups.consumers * HALF.value
    blocks = triton.cdiv(n_q, rows)
    tiles, order = blocks * B * H, None
    if groups.dealt:
        turns, more = triton.cdiv(rows, groups.block), (n_k - n_q) // groups.block
        order = dealt(q, B * H, blocks, turns, more, groups.heads_interleaved)
    stay = groups.persistent and (order is not None or not groups.dealt)
    launch(
        forward_in_groups_kernel, (min(tiles, multiprocessors(q.device)) if stay else tiles,),
        *descriptors(HALF.value, main, rest, o), l,
        *descriptors(HALF.value, main, rest, q), *descriptors(groups.block, main, rest, k),
        *(descriptors if k_lengths is None else ending_descriptors)(groups.block, main, rest, v),
        H, B * H, n_q, n_k, tiles, max(scale * LOG2_E, LEAST_SCALE),
        GROUP=H // k.shape[1], CONSUMERS=groups.consumers, CAUSAL=causal,
        WHOLE=k_lengths is None and n_k % groups.block == 0,
        HEADS_INTERLEAVED=groups.heads_interleaved,
        STAGES=groups.stages, HELD=groups.held, REST=rest, TURNS=groups.turns, LAZY=groups.lazy,
        lengths_ptr=k_lengths, dealt_ptr=order,
        **(LAUNCH if groups.consumers == 2 else LAUNCH_THREE),
    )  # fmt: skip
