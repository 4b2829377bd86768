"""Which tile of queries comes when, for the forward kernel with jobs for its warps.

Without a mask all tiles take equally long and their order matters little. Under a causal mask the last queries of a
head see most keys. Of a few heads together the longest tiles come first; and they are shared out in one of three ways:

    a program a tile     the hardware starts the next program when one ends: fair, but each begins from nothing
    every 132nd          programs that stay, as many as multiprocessors: one fetches its next tile while it writes the
                         last. Which tiles it gets is chance, and who gets too much ends last
    dealt                programs that stay, and tiles as the hardware would hand them out: who is done first by the
                         count of turns gets the next. The order is made on the host, once for each kind of call

At 64 heads of 4096 queries the program with most to do has 1.01 times the mean where tiles are dealt, and 1.27 where it
gets every 132nd. And programs side by side read the keys of 16 heads, not of all, so these stay in the L2 cache.
"""

import heapq
import itertools

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from course_lib.kernels.attention.masks import key_range
from course_lib.kernels.attention.tables import Table
from course_lib.kernels.descriptors import make_context_current
from course_lib.kernels.hardware import multiprocessors

__all__ = ["blocks_of_keys", "deal", "dealt", "place", "share", "take"]

START = 0.7  # turns: what beginning and ending a tile costs
MOST_TILES = 2**16  # to deal more takes the host a tenth of a second; a program a tile has many rounds then

_dealt: dict[tuple, Table] = {}


def dealt(q: torch.Tensor, *kind: int) -> Table | None:
    """`deal` for q's device. None where it is not there and cannot be made: then a program a tile is as right."""
    device = q.device
    found = _dealt.get((device, *kind))
    if found is None:
        batch_heads, blocks, *_ = kind
        if batch_heads * blocks > MOST_TILES or torch.cuda.is_current_stream_capturing():
            return None
        with torch.cuda.device(device):
            make_context_current(q)  # the driver is asked for memory, maybe in a thread of autograd's
            found = _dealt[device, *kind] = Table(deal(multiprocessors(device), *kind))
    return found


def deal(programs: int, batch_heads: int, blocks: int, turns: int, more: int, together: int) -> list[int]:
    """Causal tiles for programs that stay: where each one's begin in this list, where the last's end, and the tiles.

    blocks: tiles of a head; the first of them has `turns` + `more` turns, each of the others `turns` more than the one
    before it.
    """
    shares: list[list[int]] = [[] for _ in range(programs)]
    free = [(0.0, program) for program in range(programs)]
    for tile in range(batch_heads * blocks):
        first = tile // (blocks * together) * together
        block = blocks - 1 - tile % (blocks * together) // min(batch_heads - first, together)
        done, program = free[0]
        shares[program].append(tile)
        heapq.heapreplace(free, (done + START + max((block + 1) * turns + more, 1), program))
    places = itertools.accumulate(map(len, shares), initial=programs + 1)
    return [*places, *itertools.chain(*shares)]


@gluon.jit
def share(dealt_ptr, tiles):
    """(first, last, step, number of the first tile): a program walks over places in what was dealt, or over numbers."""
    if dealt_ptr is None:
        mine = gl.program_id(0), tiles, gl.num_programs(0), gl.program_id(0)
    else:
        first = gl.load(dealt_ptr + gl.program_id(0))
        mine = first, gl.load(dealt_ptr + gl.program_id(0) + 1), 1, gl.load(dealt_ptr + first)
    return mine


@gluon.jit
def take(dealt_ptr, at, last, coming):
    """(number of the tile there, of the next one): the next is asked for a tile ahead."""
    if dealt_ptr is None:
        numbers = at, at
    else:
        numbers = coming, gl.load(dealt_ptr + gl.minimum(at + 1, last - 1))
    return numbers


@gluon.jit
def place(tile, sizes, ROWS: gl.constexpr, CAUSAL: gl.constexpr, HEADS_INTERLEAVED: gl.constexpr):
    """Number of a tile of ROWS queries -> (first query, batch, head).

    Causal: of HEADS_INTERLEAVED heads all the longest tiles come first, then all the next shorter ones.
    """
    heads, batch_heads, n_q, _n_k = sizes
    blocks = gl.cdiv(n_q, ROWS)
    if CAUSAL:
        first = tile // (blocks * HEADS_INTERLEAVED) * HEADS_INTERLEAVED
        here = gl.minimum(batch_heads - first, HEADS_INTERLEAVED)
        among = tile % (blocks * HEADS_INTERLEAVED)
        block, batch_head = blocks - 1 - among // here, first + among % here
    else:
        block, batch_head = tile % blocks, tile // blocks
    return block * ROWS, batch_head // heads, batch_head % heads


@gluon.jit
def blocks_of_keys(first_m, n_q, n_k, n_valid, ROWS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many blocks of keys all of these ROWS queries see whole, and how many any sees; at least one is walked."""
    full, end = key_range(first_m, n_valid, n_k - n_q, CAUSAL, ROWS, BLOCK_N)
    return full // BLOCK_N, gl.maximum(gl.cdiv(end, BLOCK_N), 1)
