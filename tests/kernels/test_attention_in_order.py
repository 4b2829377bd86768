"""One pass in order: the kernel's own arithmetic of who adds when, run by the host for every program at once.

No program may wait for what comes only after it has added itself, every place in the order has to be taken once, and
dq of every block of queries gets what every block of keys that it sees adds.
"""

import types

import pytest

from course_lib.interpreter.tiles import Int, up
from course_lib.kernels.attention import groups_onepass as kernel
from course_lib.kernels.attention.tuning import IN_ORDER

ROWS = 128  # keys a tile


class Program:
    """What the functions of one program ask of the GPU."""

    def __init__(self, number, programs):
        self.program_id, self.num_programs = (lambda axis: Int(number)), (lambda axis: Int(programs))

    cdiv = staticmethod(up)
    minimum = staticmethod(lambda a, b: Int(min(a, b)))
    maximum = staticmethod(lambda a, b: Int(max(a, b)))
    where = staticmethod(lambda condition, a, b: Int(a if condition else b))
    cast = staticmethod(lambda number, kind: Int(number))
    constexpr = int32 = int


def functions(number: int, programs: int) -> dict:
    """The kernel's functions as they run in one program."""
    asked = Program(number, programs)
    known = {"gl": asked, "tl": asked, "HALF": Int(64)}
    for name in ("_steps", "_place", "_walk", "_nth", "_before", "query_range"):
        known[name] = types.FunctionType(getattr(kernel, name).fn.__code__, known)
    return known


def additions(number, programs, sizes, group, causal, block_m, together):
    """Of one program, in its order: (head, block of queries, block of keys, how many add before)."""
    known, found = functions(number, programs), []
    for step in map(Int, range(known["_steps"](sizes, causal, True))):
        block, batch, kv_head, first, _full, end, turned = known["_walk"](step, sizes, causal, block_m, together, True)
        for member in range(group):
            head = (batch * sizes[0] + kv_head) * group + member
            for i in map(Int, range(first, end)):
                j = known["_nth"](i, first, end, turned, causal, True)
                before = known["_before"](j, step, sizes, group, causal, block_m, together)
                found.append((int(head), int(j), int(block), int(before)))
    return found


def everything(batch, kv_heads, group, n_q, n_k, causal, block_m, together, at_once):
    tiles = -(-n_k // ROWS)
    items = (-(-tiles // 2) if causal else tiles) * batch * kv_heads
    sizes, programs = tuple(map(Int, (kv_heads, n_q, n_k, items))), min(items, at_once)
    return [additions(one, programs, sizes, group, causal, block_m, together) for one in range(programs)]


def run(programs, seen_after: float = 0.0) -> tuple[dict, float]:
    """Let every program add as far as it may, until nobody has anything left: who added to which dq, in order; and how
    many turns that takes, if an addition is seen so many turns later."""
    added, seen_at, at, waiting = {}, {}, [0] * len(programs), {}
    ready, clock = list(range(len(programs))), [0.0] * len(programs)
    while ready:
        one = ready.pop()
        while at[one] < len(programs[one]):
            head, j, block, before = programs[one][at[one]]
            done = added.setdefault((head, j), [])
            if len(done) != before:
                assert len(done) < before, f"two have place {before} at block {j} of head {head}"
                assert (head, j, before) not in waiting, f"two wait for place {before} at block {j} of head {head}"
                waiting[head, j, before] = one
                break
            done.append(block)
            at[one] += 1
            clock[one] = max(clock[one] + 1, seen_at.get((head, j), 0.0))
            seen_at[head, j] = clock[one] + seen_after
            ready += [waiting.pop((head, j, len(done)))] if (head, j, len(done)) in waiting else []
    assert not waiting, f"{len(waiting)} programs wait for ever"
    return added, max(clock)


SHAPES = [  # batch, heads of keys, query heads for each, queries, keys
    (1, 1, 1, 1, 1),
    (1, 3, 1, 300, 1),
    (1, 2, 1, 1, 700),
    (2, 3, 1, 640, 640),
    (2, 4, 2, 513, 640),
    (3, 5, 1, 1000, 1000),
    (1, 5, 1, 1100, 2500),
    (2, 5, 1, 2500, 1100),
    (1, 4, 3, 900, 1500),
    (2, 3, 2, 1500, 300),
    (1, 2, 1, 2047, 2047),
]


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("block_m", [64, 128])
@pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_everybody_has_a_turn_and_nobody_waits_in_a_circle(shape, causal, block_m, together):
    batch, kv_heads, group, n_q, n_k = shape
    for at_once in (1, 5, 12):
        added, _ = run(everything(*shape, causal, block_m, together, at_once))
        assert len(added) == sum(
            any(seen(j, n, n_q, n_k, causal, block_m) for n in range(-(-n_k // ROWS)))
            for j in range(-(-n_q // block_m))
        ) * batch * kv_heads * group  # fmt: skip
        for (_, j), blocks in added.items():
            want = [n for n in range(-(-n_k // ROWS)) if seen(j, n, n_q, n_k, causal, block_m)]
            assert sorted(blocks) == want, j


def seen(j, block, n_q, n_k, causal, block_m) -> bool:
    """Does any query of block j see a key of this block?"""
    return not causal or block * ROWS <= (j + 1) * block_m - 1 + n_k - n_q


@pytest.mark.parametrize("key", sorted(IN_ORDER), ids=str)
def test_the_tables_own_entries_end_on_132_multiprocessors(key):
    (_, causal), entry = key, IN_ORDER[key]
    assert run(everything(3, 16, 1, 2049, 2049, causal, entry.block, entry.together, 132))


@pytest.mark.parametrize(
    ("key", "most"), [((64, False), 1.06), ((64, True), 1.27), ((128, False), 1.01), ((128, True), 1.07)], ids=str
)
def test_waiting_costs_no_more_than_it_did(key, most):
    """4 x 16 heads of 4096. An addition is seen about 1.4 turns later (H200). At 64 a tile has half as many turns."""
    (_, causal), entry = key, IN_ORDER[key]
    programs = everything(4, 16, 1, 4096, 4096, causal, entry.block, entry.together, 132)
    _, took = run(programs, seen_after=1.4)
    assert took <= most * max(map(len, programs))


def test_with_fewer_queries_than_keys_many_would_wait():
    """Which is why such calls make two passes."""
    entry = IN_ORDER[128, False]
    programs = everything(4, 16, 1, 1024, 16384, False, entry.block, entry.together, 132)
    _, took = run(programs, seen_after=1.4)
    assert 3 < took / max(map(len, programs)) < 4
