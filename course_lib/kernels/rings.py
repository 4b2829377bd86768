"""One warp fetches, others compute: the barriers where they meet, in Gluon, Triton's language one floor below.

A kernel in Triton is written as if all its warps did the same, and the compiler overlaps what it can. On Hopper that
leaves the tensor cores idle while a program does its other arithmetic. In Gluon the overlap is written down: layouts,
shared memory, barriers and the copy engine (TMA) are said, nothing is scheduled for us.

    the producer     one warp: asks the copy engine for tile after tile, as far ahead as there is room
    two consumers    (or three) each a group of four warps, as one wgmma wants

They meet at barriers in shared memory alone. A `ring` is two barriers for each of a few places in shared memory. The
copy engine passes `full` when all bytes of a tile have landed; all readers pass `empty` when they have read it. Use
number t of a ring is at place t % PLACES, round t // PLACES. A barrier has a phase bit that flips each time it is
passed, so whoever waits says which round he waits for. The round's parity is enough, since nobody can be two rounds
ahead.

Registers: every warp starts with as many as all others, 168, or 128 beside three consumers. The producer gives back all
but 24, and the consumers take 240, or 160 of three.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

__all__ = ["LAUNCH", "LAUNCH_THREE", "arrived", "claim", "new_ring", "release", "sync"]

LAUNCH = {"num_warps": 4, "maxnreg": 168}  # 3 x 128 threads x 168 registers: all that a multiprocessor has
LAUNCH_THREE = {"num_warps": 4, "maxnreg": 128}  # the same with three consumers: 4 x 128 threads x 128
# The barrier of one group of warps; Triton 3.6 and 3.7 have different names for it.
sync = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


@gluon.jit
def new_ring(PLACES: gl.constexpr, READERS: gl.constexpr):
    full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    for place in gl.static_range(PLACES):
        mbarrier.init(full.index(place), count=1)  # passed by the producer's one promise, once its bytes are there
        mbarrier.init(empty.index(place), count=READERS)
    return full, empty


@gluon.jit
def claim(ring, turn, BYTES: gl.constexpr):
    """The producer, before use number `turn`: wait until the place is free, promise so many bytes."""
    full, empty = ring
    PLACES: gl.constexpr = full.shape[0]
    place = turn % PLACES
    # In round 0 nobody has to free anything: the phase "before" the first counts as passed.
    mbarrier.wait(empty.index(place), ((turn // PLACES) & 1) ^ 1)
    mbarrier.expect(full.index(place), BYTES)
    return place, full.index(place)


@gluon.jit
def arrived(ring, turn):
    """A consumer: wait for the bytes of use number `turn`; where they are."""
    full, _ = ring
    PLACES: gl.constexpr = full.shape[0]
    mbarrier.wait(full.index(turn % PLACES), (turn // PLACES) & 1)
    return turn % PLACES


@gluon.jit
def release(ring, turn):
    """A consumer: all warps of this group have read what came with use number `turn`."""
    _, empty = ring
    PLACES: gl.constexpr = empty.shape[0]
    mbarrier.arrive(empty.index(turn % PLACES), count=1)
