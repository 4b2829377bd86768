"""dk and dv with jobs for the warps: as groups_forward.py makes o, with keys held and queries walked over.

Each consumer holds 64 keys. As in backward.py keys go down, queries across. In one turn a consumer

    asks for s and dp of block t and, behind them, for what block t - 1 adds to dv and dk,
    waits for s and dp alone and makes p and ds of them, while those sums are being made.

It pays where a head is short. At 256 queries a program of the plain kernel has eight turns, and nothing fills its
beginning and its end. Here (`held` = 2) the keys of the next tile are on their way while this one is worked on.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from course_lib.kernels.attention.groups import (
    HALF,
    ROWS,
    add_products,
    allocate,
    allocate_terms,
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
from course_lib.kernels.attention.masks import keys_of, probabilities, queries_of, query_range
from course_lib.kernels.attention.rows import LOG2_E
from course_lib.kernels.attention.tuning import Groups
from course_lib.kernels.columns import split
from course_lib.kernels.hardware import multiprocessors
from course_lib.kernels.launching import launch
from course_lib.kernels.rings import LAUNCH, arrived, claim, new_ring, release, sync

__all__ = ["dkdv_in_groups_kernel", "write_dkdv_in_groups"]


@gluon.jit
def _place(tile, kv_heads, n_k):
    """Number of a tile -> (first key, batch, head of keys)."""
    blocks = gl.cdiv(n_k, 2 * HALF)
    return tile % blocks * (2 * HALF), tile // blocks // kv_heads, tile // blocks % kv_heads


@gluon.jit
def _blocks(
    first_n, n_q, n_k, n_valid,
    PADDED: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, SAME_LENGTHS: gl.constexpr,
):  # fmt: skip
    """Blocks of queries: the first that sees any of the tile's keys (one is always walked), the first that sees all of
    them, the end. A key has a row of its own in all sums, so keys behind the last one need no mask: with k_lengths
    their rows become zeros at the end (`_cut`), and of a tile that has only such keys one block is walked."""
    last = first_n + 2 * HALF
    if PADDED:
        last = gl.where(first_n < n_valid, last, first_n)
    n_rows = queries_of(n_q, n_valid, SAME_LENGTHS)
    first, full, end = query_range(first_n, n_rows, last, n_k - n_q, CAUSAL, BLOCK_M, 2 * HALF)
    end = gl.maximum(gl.cdiv(end, BLOCK_M), 1)
    return gl.minimum(first // BLOCK_M, end - 1), gl.cdiv(full, BLOCK_M), end


@gluon.jit
def _produce(
    held, walked, rings, lengths_ptr, sizes, tiles,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, MAIN: gl.constexpr, REST: gl.constexpr,
    SAME_LENGTHS: gl.constexpr,
):  # fmt: skip
    PADDED: gl.constexpr = lengths_ptr is not None
    q_tiles, do_tiles, shift_terms, delta_terms = walked
    ring = rings[2]
    kv_heads, n_q, n_k = sizes
    K_BYTES: gl.constexpr = 2 * 2 * HALF * (MAIN + REST)  # k and v
    BYTES: gl.constexpr = 2 * 2 * BLOCK_M * (MAIN + REST) + 2 * 4 * BLOCK_M  # q and do, shift and delta
    turn, count = 0, 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_n, batch, kv_head = _place(tile, kv_heads, n_k)
        n_valid = keys_of(lengths_ptr, batch, n_k)
        first, _full, end = _blocks(first_n, n_q, n_k, n_valid, PADDED, CAUSAL, BLOCK_M, SAME_LENGTHS)
        for half in gl.static_range(2):
            place, bar = claim(rings[half], count, K_BYTES)
            fetch(held[half][0], place, bar, batch, kv_head, first_n + half * HALF, REST)  # (HALF, MAIN), (HALF, REST)
            fetch(held[half][1], place, bar, batch, kv_head, first_n + half * HALF, REST)
        for member in range(GROUP):  # the query heads that share these keys
            head = kv_head * GROUP + member
            row = batch * kv_heads * GROUP + head
            for j in range(first, end):
                place, bar = claim(ring, turn, BYTES)
                fetch(q_tiles, place, bar, batch, head, j * BLOCK_M, REST)  # (BLOCK_M, MAIN), (BLOCK_M, REST)
                fetch(do_tiles, place, bar, batch, head, j * BLOCK_M, REST)
                tma.async_copy_global_to_shared(shift_terms[0], [row, j * BLOCK_M], bar, shift_terms[1].index(place))
                tma.async_copy_global_to_shared(delta_terms[0], [row, j * BLOCK_M], bar, delta_terms[1].index(place))
                turn += 1
        count += 1


@gluon.jit
def _gradient(
    s, dp, walked, place, offs_n, first_m, n_k, diagonal, scale_log2,
    BLOCK_M: gl.constexpr, S: gl.constexpr, CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """p and ds of one block, in fp32. Queries behind the last one are zeros, and so is what they add; between a length
    and the last one shift is inf and delta 0, as dq_kernel leaves them."""
    shift = walked[2][1].index(place).load(S)  # (1, BLOCK_M)
    delta = walked[3][1].index(place).load(S)
    offs_m = first_m + gl.arange(0, BLOCK_M, gl.SliceLayout(0, S))
    p = probabilities(
        s, shift, offs_m[None, :], offs_n[:, None], n_k, diagonal, scale_log2, CAUSAL, True, MASKED and CAUSAL
    )  # fmt: skip
    return p, p * (dp - delta)


@gluon.jit
def _add(dk, dv, p, ds, walked, place, REST: gl.constexpr):
    dv = add_products(dv, p, view(walked[1], place, REST), REST)  # (HALF, MAIN), (HALF, REST)
    dk = add_products(dk, ds, view(walked[0], place, REST), REST)  # (HALF, MAIN), (HALF, REST)
    return dk, dv


@gluon.jit
def _carried(p, ds, KIND: gl.constexpr, REST: gl.constexpr):
    """What a turn leaves for the sums of the next: fp32, which the assembler rounds just before those products. At 64 +
    32 columns 352 bytes a thread would be spilled so; rounded here, 8 are."""
    if REST == 32:
        p, ds = p.to(KIND), ds.to(KIND)
    return p, ds


@gluon.jit
def _step(
    dk, dv, p, ds, k, v, walked, ring, turn, first_m, offs_n, n_k, diagonal, scale_log2,
    BLOCK_M: gl.constexpr, REST: gl.constexpr, S: gl.constexpr, P: gl.constexpr,
    CAUSAL: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """p and ds of block number `turn`, and the sums of the block before it, whose p and ds are given."""
    PLACES: gl.constexpr = walked[0][2].shape[0]
    p = gl.convert_layout(p.to(k[0].dtype), P)  # (HALF, BLOCK_M)
    ds = gl.convert_layout(ds.to(k[0].dtype), P)
    place = arrived(ring, turn)
    s = products(k, view(walked[0], place, REST), REST, S)  # (HALF, BLOCK_M)
    dp = products(v, view(walked[1], place, REST), REST, S)  # (HALF, BLOCK_M)
    dk, dv = _add(dk, dv, p, ds, walked, (turn - 1) % PLACES, REST)
    s, dp = warpgroup_mma_wait(4 if REST else 2, deps=[s, dp])  # all but the sums
    p_next, ds_next = _gradient(
        s, dp, walked, place, offs_n, first_m, n_k, diagonal, scale_log2, BLOCK_M, S, CAUSAL, MASKED
    )  # fmt: skip
    fence_async_shared()  # shift and delta were read as threads read memory; the copy engine writes there next
    if turn == -1:  # never taken: the branch keeps the assembler from moving the waits up, as in groups_forward.py
        arrived(ring, 0)
    dk, p = wait_for_all(dk, p, REST)
    dv, ds = wait_for_all(dv, ds, REST)
    release(ring, turn - 1)
    p_next, ds_next = _carried(p_next, ds_next, k[0].dtype, REST)
    return dk, dv, p_next, ds_next


@gluon.jit
def _cut(acc, rows, REST: gl.constexpr):
    """Zeros behind the first `rows` rows: keys behind the length get no gradient, whatever their memory holds."""
    main, rest = acc
    inside = gl.arange(0, HALF, gl.SliceLayout(1, main.type.layout)) < rows
    main = gl.where(inside[:, None], main, 0.0)
    if REST:
        inside = gl.arange(0, HALF, gl.SliceLayout(1, rest.type.layout)) < rows
        rest = gl.where(inside[:, None], rest, 0.0)
    return main, rest


@gluon.jit
def _consume(
    ours, lengths_ptr,
    WHICH: gl.constexpr, GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr,
    MAIN: gl.constexpr, REST: gl.constexpr, SAME_LENGTHS: gl.constexpr,
):  # fmt: skip
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    P: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, MAIN, 16]), 2)
    PADDED: gl.constexpr = lengths_ptr is not None
    outs, held, walked, rings, sizes, tiles, scale, scale_log2 = ours
    k_tiles, v_tiles = held[WHICH]
    ring = rings[2]
    kv_heads, n_q, n_k = sizes
    diagonal = n_k - n_q
    turn, count = 0, 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        first_n, batch, kv_head = _place(tile, kv_heads, n_k)
        n_valid = keys_of(lengths_ptr, batch, n_k)
        first, full, end = _blocks(first_n, n_q, n_k, n_valid, PADDED, CAUSAL, BLOCK_M, SAME_LENGTHS)
        first_own = first_n + WHICH * HALF
        offs_n = first_own + gl.arange(0, HALF, gl.SliceLayout(1, S))
        dk, dv = zeros(MAIN, REST), zeros(MAIN, REST)
        k_place = arrived(rings[WHICH], count)
        k, v = view(k_tiles, k_place, REST), view(v_tiles, k_place, REST)
        for _member in range(GROUP):
            # The first block has no block before it.
            place = arrived(ring, turn)
            s = products(k, view(walked[0], place, REST), REST, S)
            dp = products(v, view(walked[1], place, REST), REST, S)
            s, dp = warpgroup_mma_wait(0, deps=[s, dp])
            p, ds = _gradient(
                s, dp, walked, place, offs_n, first * BLOCK_M, n_k, diagonal, scale_log2, BLOCK_M, S, CAUSAL, True
            )  # fmt: skip
            p, ds = _carried(p, ds, k[0].dtype, REST)
            turn += 1
            plain = first + 1
            if CAUSAL:
                plain = gl.maximum(full, first + 1)
                for j in range(first + 1, full):
                    dk, dv, p, ds = _step(
                        dk, dv, p, ds, k, v, walked, ring, turn, j * BLOCK_M, offs_n, n_k, diagonal, scale_log2,
                        BLOCK_M, REST, S, P, CAUSAL, True,
                    )  # fmt: skip
                    turn += 1
            for j in range(plain, end):
                dk, dv, p, ds = _step(
                    dk, dv, p, ds, k, v, walked, ring, turn, j * BLOCK_M, offs_n, n_k, diagonal, scale_log2,
                    BLOCK_M, REST, S, P, CAUSAL, False,
                )  # fmt: skip
                turn += 1
            PLACES: gl.constexpr = walked[0][2].shape[0]
            p = gl.convert_layout(p.to(k[0].dtype), P)
            ds = gl.convert_layout(ds.to(k[0].dtype), P)
            dk, dv = _add(dk, dv, p, ds, walked, (turn - 1) % PLACES, REST)
            dk, p = wait_for_all(dk, p, REST)
            dv, ds = wait_for_all(dv, ds, REST)
            sync()
            release(ring, turn - 1)
        # k and v were read for the last time: dk and dv leave through their places.
        if PADDED:
            dk, dv = _cut(dk, n_valid - first_own, REST), _cut(dv, n_valid - first_own, REST)
        dk_scaled = dk[0] * scale, dk[1] * scale
        store(k, dk_scaled, REST)
        store(v, dv, REST)
        fence_async_shared()
        sync()
        send(outs[0], outs[1], k_tiles, k_place, batch, kv_head, first_own, REST)
        send(outs[2], outs[3], v_tiles, k_place, batch, kv_head, first_own, REST)
        tma.store_wait(0)
        sync()
        release(rings[WHICH], count)
        count += 1


@gluon.jit(do_not_specialize=["kv_heads", "n_q", "n_k", "tiles"])
def dkdv_in_groups_kernel(
    dk_desc, dk_rest, dv_desc, dv_rest, k_desc, k_rest, v_desc, v_rest,
    q_desc, q_rest, do_desc, do_rest, shift_desc, delta_desc,
    kv_heads, n_q, n_k, tiles, scale, scale_log2,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, HELD: gl.constexpr,
    MAIN: gl.constexpr, REST: gl.constexpr, lengths_ptr=None, SAME_LENGTHS: gl.constexpr = False,
):  # fmt: skip
    first = allocate(k_desc, k_rest, HELD, REST), allocate(v_desc, v_rest, HELD, REST)
    second = allocate(k_desc, k_rest, HELD, REST), allocate(v_desc, v_rest, HELD, REST)
    q, do = allocate(q_desc, q_rest, STAGES, REST), allocate(do_desc, do_rest, STAGES, REST)
    shift, delta = allocate_terms(shift_desc, STAGES), allocate_terms(delta_desc, STAGES)
    rings = new_ring(HELD, 1), new_ring(HELD, 1), new_ring(STAGES, 2)
    fence_async_shared()
    outs, held, walked = (dk_desc, dk_rest, dv_desc, dv_rest), (first, second), (q, do, shift, delta)
    sizes = kv_heads, n_q, n_k
    ours = outs, held, walked, rings, sizes, tiles, scale, scale_log2
    gl.warp_specialize(
        [
            (_consume, (ours, lengths_ptr, 0, GROUP, CAUSAL, BLOCK_M, MAIN, REST, SAME_LENGTHS)),
            (_consume, (ours, lengths_ptr, 1, GROUP, CAUSAL, BLOCK_M, MAIN, REST, SAME_LENGTHS)),
            (
                _produce,
                (held, walked, rings, lengths_ptr, sizes, tiles, GROUP, CAUSAL, BLOCK_M, MAIN, REST, SAME_LENGTHS),
            ),
        ],
        [4, 1],  # warps of the second and third
        [240, 24],  # and their registers
    )


def write_dkdv_in_groups(
    dk, dv, do, q, k, v, shift, delta, causal: bool, scale: float, k_lengths, groups: Groups,
    same_lengths: bool = False,
) -> None:  # fmt: skip
    """Into dk and dv, like k and v, all in reach of the copy engine (tuning.py says when); shift and delta as write_dq
    made them."""
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    main, rest = split(D)
    tiles = triton.cdiv(n_k, ROWS) * B * kv_heads
    launch(
        dkdv_in_groups_kernel, (min(tiles, multiprocessors(q.device)) if groups.persistent else tiles,),
        *descriptors(HALF.value, main, rest, dk, dv, k, v), *descriptors(groups.block, main, rest, q, do),
        *term_descriptors(groups.block, shift, delta),
        kv_heads, n_q, n_k, tiles, scale, scale * LOG2_E,
        GROUP=H // kv_heads, CAUSAL=causal, BLOCK_M=groups.block, STAGES=groups.stages, HELD=groups.held,
        MAIN=main, REST=rest, lengths_ptr=k_lengths, SAME_LENGTHS=same_lengths,
        **LAUNCH,
    )  # fmt: skip
