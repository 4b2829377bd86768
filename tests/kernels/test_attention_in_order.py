"""One pass in order: the kernel's own arithmetic of tiles, and a model of who waits for whom.

tests/kernels/test_attention_jobs.py carries out the kernel itself.
"""

import heapq
import itertools
import types

import pytest

from course_lib.interpreter.tiles import Int, up
from course_lib.kernels.attention import groups_onepass as kernel
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


def tiles(batch, kv_heads, n_q, n_k, causal, block_m, together, programs=132, lengths=None):
    """In the order in which they are taken, or dealt: (block of keys, batch, head of keys, of its blocks of queries in
    the order of its walk each with how many blocks of keys add before)."""
    items = -(-n_k // ROWS) * batch * kv_heads
    programs, dealt = min(programs, items), is_dealt(causal, lengths)
    walk, nth, before = functions(programs)
    sizes = *map(Int, (kv_heads, n_q, n_k, items)), lengths
    for number in map(Int, range(items)):
        block, b, h, first, plain, end, in_round = walk(number, sizes, causal, Int(block_m), Int(together))
        assert first <= plain <= end or (lengths is not None and end == 0)
        walked = [nth(i, first, end, block, in_round, True, dealt) for i in map(Int, range(first, end))]
        assert sorted(walked) == list(range(first, end))
        yield int(block), int(b), int(h), [(int(j), int(before(j, end, block, in_round, dealt))) for j in walked]


def is_dealt(causal, lengths) -> bool:
    return not causal and lengths is None


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
@pytest.mark.parametrize("padded", [False, True], ids=["", "lengths"])
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_comes_once_and_each_has_a_place_in_the_order(shape, causal, padded, block_m, together, programs):
    batch, kv_heads, n_q, n_k = shape
    lengths = [(n_k, n_k // 2, 0)[b % 3] for b in range(batch)] if padded else None
    places, seen = {}, set()
    for block, b, h, walked in tiles(*shape, causal, block_m, together, programs, lengths):
        assert walked or (padded and block * ROWS >= lengths[b]), "a tile that nobody sees"
        seen.add((block, b, h))
        for j, before in walked:
            here = places.setdefault((b, h, j), [])
            assert is_dealt(causal, lengths) or before == len(here), "it would wait for a tile that is taken later"
            here.append(before)
    assert len(seen) == -(-n_k // ROWS) * batch * kv_heads
    assert takes(shape, causal, block_m, together, programs=programs, lengths=lengths), "nobody waits for ever"
    for b, h, j in itertools.product(range(batch), range(kv_heads), range(-(-n_q // block_m))):
        blocks = -(-(lengths[b] if padded else n_k) // ROWS)
        want = sum(sees(j, n, n_q, n_k, causal, block_m) for n in range(blocks))
        assert sorted(places.get((b, h, j), [])) == list(range(want)), "each adds at a place of its own"


def sees(j, block, n_q, n_k, causal, block_m) -> bool:
    """Does any query of block j see a key of this block?"""
    return not causal or block * ROWS <= min((j + 1) * block_m, n_q) - 1 + n_k - n_q


def takes(shape, causal, block_m, together, early=False, programs=132, lengths=None):
    """Turns until all is done, over what they would be if nobody waited and all were equally busy. `early`: a tile is
    taken when the one before it is begun, and not when it is done."""
    todo = list(tiles(*shape, causal, block_m, together, programs, lengths))
    turns = sum(len(walked) + TURNS_A_TILE for *_, walked in todo)
    programs = min(programs, len(todo))
    dealt = [iter(todo[number::programs]) for number in range(programs)]
    coming = dealt if is_dealt(causal, lengths) else [iter(todo)] * programs  # one list that all take from
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
    (_, causal), entry = key, IN_ORDER[key]
    assert takes((4, 16, 4096, 4096), causal, entry.block, entry.together) < 1.08


def test_tiles_that_are_taken_early_are_waited_for():
    """As benchmarks/notes/attention.md tells."""
    for together, early, late in ((16, 1.37, 1.08), (32, 1.20, 1.03), (64, 1.03, 1.01)):
        found = [takes((4, 16, 4096, 4096), True, 64, together, when) for when in (True, False)]
        assert [round(one, 2) for one in found] == [early, late]


def test_few_heads_wait_for_each_other():
    """Causal, 16 blocks of a head run at once, each behind the one before. Without a mask they begin apart."""
    assert takes((1, 8, 4096, 4096), True, 64, 8) > 1.3
    assert takes((1, 8, 4096, 4096), False, 64, 2) < 1.1
