"""Which tile of queries comes when, for the forward kernel with jobs for its warps.

Without a mask all tiles take equally long and their order matters little. Under a causal mask the last queries of a
head see most keys. Two ways to share such tiles out:

    a program a tile     the hardware starts the next program when one ends. Of a few heads together the longest tiles
                         come first, so that programs side by side are about equally long and the shortest are left for
                         the end
    programs that stay   as many as multiprocessors, each with many tiles, given in advance: a program fetches its next
                         tile while it writes the last one. Who is given too much ends last

The second needs an order that is fair. `serpentine`: the tiles of all heads, longest first, are dealt in rounds, one to
each program, and every second round goes the other way round: who had the longest of one round has the shortest of the
next. At 64 heads of 4096 queries the program with most to do then has 1.01 to 1.02 times the mean, where 8 heads
together, dealt one way, give it 1.27 (list scheduling).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from course_lib.kernels.attention.masks import key_range

__all__ = ["TOGETHER", "blocks_of_keys", "place"]

# Serpentine: so many keys of heads whose tiles are mixed; programs side by side read them all. 64 heads of 4096 are
# what was measured: keys and values of 67 MB at 64 columns.
TOGETHER = gl.constexpr(2**18)


@gluon.jit
def _turned(tile, tiles):
    """A program's tile of an even round as it is; of an odd round the one as far from the round's other end."""
    programs = gl.num_programs(0)
    first_here = tile // programs * programs
    turned = first_here + gl.minimum(programs, tiles - first_here) - 1 - gl.program_id(0)
    return gl.where(tile // programs % 2 == 1, turned, tile)


@gluon.jit
def place(
    tile, tiles, sizes,
    ROWS: gl.constexpr, CAUSAL: gl.constexpr, HEADS_INTERLEAVED: gl.constexpr, SERPENTINE: gl.constexpr,
):  # fmt: skip
    """Number of a tile of ROWS queries -> (first query, batch, head).

    Causal: of `together` heads all the longest tiles come first, then all the next shorter ones. Serpentine: as many
    heads as TOGETHER allows, in groups of equal size (a small last group would be dealt unfairly).
    """
    heads, batch_heads, n_q, n_k = sizes
    blocks = gl.cdiv(n_q, ROWS)
    if SERPENTINE:
        tile = _turned(tile, tiles)
        together = gl.cdiv(batch_heads, gl.cdiv(batch_heads, gl.maximum(TOGETHER // n_k, 1)))
    else:
        together = HEADS_INTERLEAVED
    if CAUSAL:
        first = tile // (blocks * together) * together
        here = gl.minimum(batch_heads - first, together)
        among = tile % (blocks * together)
        block, batch_head = blocks - 1 - among // here, first + among % here
    else:
        block, batch_head = tile % blocks, tile // blocks
    return block * ROWS, batch_head // heads, batch_head % heads


@gluon.jit
def blocks_of_keys(first_m, n_q, n_k, n_valid, ROWS: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_N: gl.constexpr):
    """How many blocks of keys all of these ROWS queries see whole, and how many any sees; at least one is walked."""
    full, end = key_range(first_m, n_valid, n_k - n_q, CAUSAL, ROWS, BLOCK_N)
    return full // BLOCK_N, gl.maximum(gl.cdiv(end, BLOCK_N), 1)
