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


def walk(*args):
    """The kernel's own function, with numbers of the host."""
    words = types.SimpleNamespace(
        cdiv=up, minimum=lambda a, b: Int(min(a, b)), maximum=lambda a, b: Int(max(a, b)), cast=lambda x, kind: Int(x),
        where=lambda condition, a, b: Int(a if condition else b), constexpr=int, int32=int,
    )  # fmt: skip
    known = {"gl": words, "tl": words, "HALF": Int(64)}
    for name, function in (("query_range", query_range), ("_walk", kernel._walk)):
        known[name] = types.FunctionType(function.fn.__code__, known)
    return known["_walk"](*args)


def tiles(batch, kv_heads, n_q, n_k, causal, block_m, together):
    """In the order in which they are taken: (block of keys, batch, head of keys, blocks of queries, last first)."""
    items = -(-n_k // ROWS) * batch * kv_heads
    sizes = tuple(map(Int, (kv_heads, n_q, n_k, items)))
    for number in map(Int, range(items)):
        block, b, h, first, plain, end = walk(number, sizes, causal, Int(block_m), Int(together))
        assert first <= plain <= end
        yield int(block), int(b), int(h), list(range(end - 1, first - 1, -1))


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


@pytest.mark.parametrize("together", [1, 3, 16])
@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_tile_comes_once_and_after_those_it_waits_for(shape, causal, block_m, together):
    batch, kv_heads, n_q, n_k = shape
    added, seen = {}, set()
    for block, b, h, walked in tiles(*shape, causal, block_m, together):
        assert walked, "a tile that nobody sees"
        seen.add((block, b, h))
        for j in walked:
            assert len(added.setdefault((b, h, j), [])) == block, "it would wait for a tile that comes later"
            added[b, h, j].append(block)
    assert len(seen) == -(-n_k // ROWS) * batch * kv_heads
    for b, h, j in itertools.product(range(batch), range(kv_heads), range(-(-n_q // block_m))):
        want = sum(sees(j, n, n_q, n_k, causal, block_m) for n in range(-(-n_k // ROWS)))
        assert len(added.get((b, h, j), [])) == want


def sees(j, block, n_q, n_k, causal, block_m) -> bool:
    """Does any query of block j see a key of this block?"""
    return not causal or block * ROWS <= min((j + 1) * block_m, n_q) - 1 + n_k - n_q


def takes(shape, causal, block_m, together, programs=132):
    """Turns until all is done, over what they would be if nobody waited and all were equally busy."""
    free, seen_at, turns = [(0.0, number) for number in range(programs)], {}, 0
    for _block, b, h, walked in tiles(*shape, causal, block_m, together):
        at, number = heapq.heappop(free)
        at += TURNS_A_TILE
        for j in walked:
            at = max(at + 1, seen_at.get((b, h, j), 0.0))
            seen_at[b, h, j] = at + SEEN_AFTER
        turns += len(walked) + TURNS_A_TILE
        heapq.heappush(free, (at, number))
    return max(free)[0] / (turns / programs)


@pytest.mark.parametrize("key", sorted(IN_ORDER), ids=str)
def test_few_wait_at_the_tables_own_size(key):
    """4 x 16 heads of 4096."""
    (_, causal), entry = key, IN_ORDER[key]
    assert takes((4, 16, 4096, 4096), causal, entry.block, entry.together) < 1.2


def test_few_heads_wait_for_each_other():
    """Which is why such calls make two passes: 16 blocks of a head run at once, each behind the one before."""
    assert takes((1, 8, 4096, 4096), True, 64, 8) > 1.3
    assert takes((4, 16, 1024, 16384), False, 64, 16) < 1.05, "few queries are no reason"
