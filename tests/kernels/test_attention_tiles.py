"""Which program gets which tile of queries: each tile is made once, and nobody has much more to do than the mean."""

import ctypes
import itertools
from types import SimpleNamespace

import pytest
import torch

from course_lib.kernels.attention import groups_tiles

PROGRAMS = 132


@pytest.fixture
def placed(monkeypatch):
    """placed(tile, ...): (first query, batch, head), by the kernel's own function on a CPU."""
    language = SimpleNamespace(cdiv=lambda a, b: -(-a // b), minimum=min)
    monkeypatch.setattr(groups_tiles, "gl", language)

    def place(tile, batch, heads, n, rows, causal, together):
        return groups_tiles.place.fn(tile, (heads, batch * heads, n, n), rows, causal, together)

    return place


def dealt(batch, heads, n, rows, together):
    """For each program its tiles, read as the kernel reads them."""
    given = groups_tiles.deal(PROGRAMS, batch * heads, -(-n // rows), -(-rows // 128), 0, together)
    return [given[given[program] : given[program + 1]] for program in range(PROGRAMS)]


def turns(first, rows, n):
    """Of a causal tile: its blocks of 128 keys, and what beginning and ending costs."""
    return -(-min(first + rows, n) // 128) + groups_tiles.START


def longest(shares, placed, rows, n):
    """Of the program with most to do, over the mean."""
    work = [sum(turns(placed(tile)[0], rows, n) for tile in mine) for mine in shares]
    return max(work) * len(work) / sum(work)


SIZES = [(4, 16, 4096), (1, 16, 4096), (2, 5, 1000), (3, 34, 8200), (16, 16, 1030), (1, 1, 300), (2, 33, 12000)]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", [128, 192])
@pytest.mark.parametrize("how", [(False, 1), (True, 8), (True, 16)], ids=str)
def test_every_tile_has_a_place_of_its_own(size, rows, how, placed):
    batch, heads, n = size
    got = sorted(placed(tile, *size, rows, *how) for tile in range(-(-n // rows) * batch * heads))
    assert got == sorted((first, b, head) for first in range(0, n, rows) for b in range(batch) for head in range(heads))


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("rows", [128, 192])
def test_every_tile_is_dealt_once(size, rows):
    batch, heads, n = size
    shares = dealt(*size, rows, 16)
    assert sorted(itertools.chain(*shares)) == list(range(-(-n // rows) * batch * heads))
    assert all(mine == sorted(mine) for mine in shares), "in their order"


def test_the_figures_of_groups_tiles(placed):
    """64 heads of 4096: the program with most to do over the mean, dealt and with every 132nd tile."""

    def place(together):
        return lambda tile: placed(tile, 4, 16, 4096, 128, True, together)

    assert round(longest(dealt(4, 16, 4096, 128, 16), place(16), 128, 4096), 2) == 1.01
    every = [range(program, 2048, PROGRAMS) for program in range(PROGRAMS)]
    assert round(longest(every, place(8), 128, 4096), 2) == 1.27


def test_what_is_dealt_is_fair_at_other_sizes_too(placed):
    for n in (1100, 1536, 2048, 3000, 4096, 8192, 16384):
        for heads in (16, 32, 48, 64, 96, 128, 256):
            if 4096 * 32 <= n * heads <= 4096 * 256:
                shares = dealt(1, heads, n, 128, 16)
                where = [placed(tile, 1, heads, n, 128, True, 16)[0] for tile in range(-(-n // 128) * heads)]
                least = max(turns(first, 128, n) for first in where) * PROGRAMS / sum(turns(f, 128, n) for f in where)
                most = longest(shares, lambda tile, where=where: (where[tile],), 128, n)
                assert most <= max(1.05, 1.02 * least), (n, heads)


def test_too_many_tiles_are_not_dealt():
    assert groups_tiles.dealt(torch.empty(0), groups_tiles.MOST_TILES // 32 + 1, 32, 1, 0, 16) is None


def test_a_table_is_on_the_device_before_anything_reads_it(monkeypatch):
    from course_lib.kernels.attention import tables

    held, asked = [], []

    def allocated(address, size):
        held.append(ctypes.create_string_buffer(size.value))
        address._obj.value = ctypes.addressof(held[-1])
        return 0

    def copied(address, memory, size):
        asked.append("copied")
        ctypes.memmove(address.value, memory, size.value)
        return 0

    def waited(stream):
        asked.append("waited")
        return 0 if stream is None else 400

    driver = SimpleNamespace(cuMemAlloc_v2=allocated, cuMemcpyHtoD_v2=copied, cuStreamSynchronize=waited)
    monkeypatch.setattr(tables, "_driver", lambda: driver)
    table = tables.Table([3, 1, 4, -1])
    assert list((ctypes.c_int32 * 4).from_address(table.data_ptr())) == [3, 1, 4, -1]
    assert asked == ["copied", "waited"]
    driver.cuMemAlloc_v2 = lambda *_: 2
    with pytest.raises(RuntimeError, match="cuMemAlloc_v2 of the CUDA driver ended with error 2"):
        tables.Table([1])
