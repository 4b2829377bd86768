"""Which program gets which tile of queries: each tile is made once, and nobody has much more to do than the mean."""

import heapq
from types import SimpleNamespace

import pytest

PROGRAMS = 132


@pytest.fixture
def dealt(monkeypatch):
    """dealt(...): for each program its tiles, (first query, batch, head), by the kernel's own function on a CPU."""
    from course_lib.kernels.attention import groups_tiles

    program = [0]
    language = SimpleNamespace(
        num_programs=lambda axis: PROGRAMS,
        program_id=lambda axis: program[0],
        cdiv=lambda a, b: -(-a // b),
        minimum=min,
        maximum=max,
        where=lambda condition, a, b: a if condition else b,
    )
    monkeypatch.setattr(groups_tiles, "gl", language)
    monkeypatch.setattr(groups_tiles, "TOGETHER", groups_tiles.TOGETHER.value)
    monkeypatch.setattr(groups_tiles, "_turned", groups_tiles._turned.fn)

    def deal(batch, heads, n, rows, causal, interleaved, serpentine):
        tiles, sizes = -(-n // rows) * batch * heads, (heads, batch * heads, n, n)
        shares = []
        for program[0] in range(PROGRAMS):
            mine = range(program[0], tiles, PROGRAMS)
            shares.append(
                [groups_tiles.place.fn(tile, tiles, sizes, rows, causal, interleaved, serpentine) for tile in mine]
            )
        return shares

    return deal


def turns(first, rows, n):
    """Of a causal tile: its blocks of 128 keys, and what beginning and ending costs, .7 of a block."""
    return -(-min(first + rows, n) // 128) + 0.7


def longest(shares, rows, n):
    """Of the program with most to do, over the mean."""
    work = [sum(turns(first, rows, n) for first, _, _ in mine) for mine in shares]
    return max(work) * len(work) / sum(work)


SIZES = [(4, 16, 4096), (1, 16, 4096), (2, 5, 1000), (3, 34, 8200), (16, 16, 1030), (1, 1, 300), (2, 33, 12000)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", [128, 192])
@pytest.mark.parametrize("how", [(False, 1, False), (True, 8, False), (True, 1, True), (False, 1, True)], ids=str)
def test_every_tile_is_made_once(size, rows, how, dealt):
    batch, heads, n = size
    got = sorted(tile for mine in dealt(*size, rows, *how) for tile in mine)
    assert got == sorted((first, b, head) for first in range(0, n, rows) for b in range(batch) for head in range(heads))


def test_dealt_to_and_fro_the_longest_program_has_little_more_than_the_mean(dealt):
    """The figures of groups_tiles.py."""
    assert round(longest(dealt(4, 16, 4096, 128, True, 8, False), 128, 4096), 2) == 1.27
    for rows, most in ((128, 1.01), (192, 1.02)):
        assert round(longest(dealt(4, 16, 4096, rows, True, 1, True), rows, 4096), 2) == most


@pytest.mark.parametrize("rows", [128, 192])
def test_other_sizes_are_dealt_fairly_too(rows, dealt):
    for n in (1100, 1536, 2048, 3000, 4096, 8192, 16384):
        for heads in (16, 32, 48, 64, 96, 128, 256):
            if 4096 * 16 <= n * heads <= 4096 * 256:
                shares = dealt(1, heads, n, rows, True, 1, True)
                work = sorted((turns(first, rows, n) for mine in shares for first, _, _ in mine), reverse=True)
                free = [0.0] * PROGRAMS
                for one in work:  # handed out as programs end, the longest first
                    heapq.heapreplace(free, free[0] + one)
                best = max(free) * PROGRAMS / sum(work)
                assert longest(shares, rows, n) <= max(1.15, 1.05 * best), (n, heads)
