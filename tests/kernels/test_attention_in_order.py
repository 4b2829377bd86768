"""One pass in order: the kernel's own arithmetic of tiles, and a model of who waits for whom.

tests/kernels/test_attention_jobs.py carries out the kernel itself.
"""

import heapq
import itertools
import random
import types

import pytest

from course_lib.interpreter.tiles import Int, up
from course_lib.kernels.attention import groups_onepass as kernel
from course_lib.kernels.attention import tuning
from course_lib.kernels.attention.masks import query_range
from course_lib.kernels.attention.tuning import IN_ORDER

ROWS = 128  # keys a tile
TURNS_A_TILE = 1.7  # what beginning and ending one costs, besides
SEEN_AFTER = 1.4  # turns: when an addition is seen by others (H200)


def functions(programs):
    """The kernel's own, with numbers of the host."""
    words = types.SimpleNamespace(
        cdiv=up, minimum=lambda a, b: Int(min(a, b)), maximum=lambda a, b: Int(max(a, b)), cast=lambda x, kind: Int(x),
        where=lambda condition, a, b: Int(a if condition else b), constexpr=int, int32=int,
        num_programs=lambda axis: Int(programs),
    )  # fmt: skip
    known = {"gl": words, "tl": words, "HALF": Int(64)}
    known["keys_of"] = lambda lengths, batch, n_k: n_k if lengths is None else Int(lengths[int(batch)])
    for name in ("query_range", "_walk", "_nth", "_before"):
        function = query_range if name == "query_range" else getattr(kernel, name)
        known[name] = types.FunctionType(function.fn.__code__, known)
    return known["_walk"], known["_nth"], known["_before"]


def tiles(batch, kv_heads, n_q, n_k, dealt, causal, block_m, together, programs=132, lengths=None):
    """In the order in which they are taken, or dealt: (block of keys, batch, head of keys, of its blocks of queries in
    the order of its walk each with how many blocks of keys add before)."""
    items = -(-n_k // ROWS) * batch * kv_heads
    programs = min(programs, items)
    walk, nth, before = functions(programs)
    sizes = *map(Int, (kv_heads, n_q, n_k, items)), lengths
    for number in map(Int, range(items)):
        block, b, h, first, plain, end, in_round = walk(number, sizes, causal, Int(block_m), Int(together))
        assert first <= plain <= end or (lengths is not None and end == 0)
        walked = [nth(i, first, end, block, in_round, True, dealt) for i in map(Int, range(first, end))]
        assert sorted(walked) == list(range(first, end))
        yield int(block), int(b), int(h), [(int(j), int(before(j, end, block, in_round, dealt))) for j in walked]


SHAPES = [  # batch, heads of keys, queries, keys
    (1, 1, 1, 1),
    (1, 3, 300, 1),
    (1, 2, 1, 700),
    (2, 3, 640, 640),
    (3, 5, 1000, 1000),
    (1, 5, 1100, 2500),
    (2, 5, 2500, 1100),
    (1, 2, 2047, 2047),
]


@pytest.mark.parametrize("programs", [1, 5, 132])
@pytest.mark.parametrize("together", [1, 3, 16])
@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize(
    ("causal", "dealt", "padded"),
    [(False, True, False), (False, False, False), (False, False, True), (True, False, False), (True, False, True)],
    ids=["whole, dealt", "whole, taken", "whole, lengths", "causal", "causal, lengths"],
)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_comes_once_and_each_has_a_place_in_the_order(
    shape, causal, dealt, padded, block_m, together, programs
):
    batch, kv_heads, n_q, n_k = shape
    lengths = [(n_k, n_k // 2, 0)[b % 3] for b in range(batch)] if padded else None
    places, seen = {}, set()
    for block, b, h, walked in tiles(*shape, dealt, causal, block_m, together, programs, lengths):
        assert walked or (padded and block * ROWS >= lengths[b]), "a tile that nobody sees"
        seen.add((block, b, h))
        for j, before in walked:
            here = places.setdefault((b, h, j), [])
            assert dealt or before == len(here), "it would wait for a tile that is taken later"
            here.append(before)
    assert len(seen) == -(-n_k // ROWS) * batch * kv_heads
    assert takes(shape, dealt, causal, block_m, together, programs=programs, lengths=lengths), "nobody waits for ever"
    for b, h, j in itertools.product(range(batch), range(kv_heads), range(-(-n_q // block_m))):
        blocks = -(-(lengths[b] if padded else n_k) // ROWS)
        want = sum(sees(j, n, n_q, n_k, causal, block_m) for n in range(blocks))
        assert sorted(places.get((b, h, j), [])) == list(range(want)), "each adds at a place of its own"


def sees(j, block, n_q, n_k, causal, block_m) -> bool:
    """Does any query of block j see a key of this block?"""
    return not causal or block * ROWS <= min((j + 1) * block_m, n_q) - 1 + n_k - n_q


def takes(shape, dealt, causal, block_m, together, early=False, programs=132, lengths=None):
    """Turns until all is done, over what they would be if nobody waited and all were equally busy. `early`: a tile is
    taken when the one before it is begun, and not when it is done."""
    todo = list(tiles(*shape, dealt, causal, block_m, together, programs, lengths))
    turns = sum(len(walked) + TURNS_A_TILE for *_, walked in todo)
    programs = min(programs, len(todo))
    coming = [iter(todo)] * programs  # one list that all take from
    if dealt:
        coming = [iter(todo[number::programs]) for number in range(programs)]
    promised = [next(coming[number], None) for number in range(programs)] if early else None
    before_it, at = [[] for _ in range(programs)], [0.0] * programs  # what is left of its tile, and the time it is at
    seen_at, waiting = {}, {}  # (batch, head, block of queries, additions) -> when seen; the program that waits for it
    ready = [(0.0, number) for number in range(programs)]
    while ready:
        now, number = heapq.heappop(ready)
        if not before_it[number]:
            tile = following = next(coming[number], None)
            if early:
                tile, promised[number] = promised[number], following
            if tile is None:
                continue
            now += TURNS_A_TILE
            before_it[number] = [(*tile[1:3], *turn) for turn in tile[3]]
            if not tile[3]:  # behind a length
                at[number] = now
                heapq.heappush(ready, (now, number))
                continue
        *where, additions = before_it[number][0]
        if additions and (*where, additions) not in seen_at:
            waiting[*where, additions] = now, number
            continue
        before_it[number].pop(0)
        at[number] = max(now + 1, seen_at.get((*where, additions), 0.0))
        seen_at[*where, additions + 1] = at[number] + SEEN_AFTER
        heapq.heappush(ready, (at[number], number))
        if (*where, additions + 1) in waiting:
            heapq.heappush(ready, waiting.pop((*where, additions + 1)))
    assert not waiting, "they wait for ever"
    return max(at) / (turns / programs)


@pytest.mark.parametrize("key", sorted(IN_ORDER), ids=str)
def test_few_wait_at_the_tables_own_size(key):
    """4 x 16 heads of 4096."""
    entry = tuning._in_order(key, False, False, 64)
    assert takes((4, 16, 4096, 4096), entry.dealt, key[1], entry.block, entry.together) < 1.08


@pytest.mark.parametrize("keys", [512, 1024, 2048, 4096])
def test_with_lengths_few_wait_where_many_heads_go_together(keys):
    """As benchmarks/notes/attention.md tells; lengths from half of the keys on."""
    shape, numbers = (4 * 4096 // keys, 16, keys, keys), random.Random(1)
    lengths = [numbers.randint(keys // 2, keys) for _ in range(shape[0])]
    entry = tuning._in_order((128, False), True, False, 64)
    assert not entry.dealt
    assert takes(shape, False, False, 64, entry.together, lengths=lengths) < 1.07
    assert takes(shape, False, False, 64, 2, lengths=lengths) > 1.15


def test_few_queries_of_many_keys_wait_if_they_come_in_rounds_or_of_few_heads():
    """128 queries of 8192 keys, over the least time."""
    entry = tuning._in_order((128, False), False, True, 64)
    shape = 4, 16, 128, 8192
    assert takes(shape, entry.dealt, False, entry.block, entry.together) < 1.04
    assert takes(shape, True, False, 64, 2) > 5
    assert takes((1, 16, *shape[2:]), entry.dealt, False, entry.block, entry.together) > 3
    assert tuning._in_order((128, False), False, True, 16) is None


def test_tiles_that_are_taken_early_are_waited_for():
    """As benchmarks/notes/attention.md tells."""
    for together, early, late in ((16, 1.37, 1.08), (32, 1.20, 1.03), (64, 1.03, 1.01)):
        found = [takes((4, 16, 4096, 4096), False, True, 64, together, when) for when in (True, False)]
        assert [round(one, 2) for one in found] == [early, late]


def test_few_heads_wait_for_each_other():
    """Causal, 16 blocks of a head run at once, each behind the one before. Without a mask they begin apart."""
    assert takes((1, 8, 4096, 4096), False, True, 64, 8) > 1.3
    assert takes((1, 8, 4096, 4096), True, False, 64, 2) < 1.1
