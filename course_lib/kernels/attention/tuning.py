"""Which kernel runs and which blocks it works in: tables, keyed by the columns that are computed and by causal.

They hold on the architecture that they were measured on. Elsewhere blocks are the fastest of OTHERS by the model of
fitting.py, from what the device says a program may have.

Where tiles are too few for a GPU, programs share one: `keys_shared` (forward, few queries), `heads_shared` (dk and dv)
and `parts_of_heads` (one pass) say when, and how many.

Kernels stand on two rungs. Both take and leave the same tensors, so that every call may choose anew.

    1  forward.py, backward.py             any shape, stride, type and device: what the lesson teaches. TABLE; on an
                                           H100 or H200 SHORT_HEADS, forward, where a block holds the keys of a head
       side_by_side.py                     backward, few tiles, in both passes at once, there. SIDE_BY_SIDE
       one_block.py                        backward, few keys, there: where it was faster. ONE_BLOCK
    2  groups_forward.py, groups_dkdv.py,  an H100 or H200, rows in reach of the copy engine, and an entry in GROUPS
       groups_onepass.py                   (ONE_PASS, IN_ORDER): where the hand-made schedule was measured faster

Each entry is the fastest of 9 to 22 that `python -m benchmarks.attention_sweep` tried on an H200: on 4 x 16 heads of
4096, and for (80, False) on 256 x 16 heads of 256 and head size 72. Those of GROUPS at 32, 48, 64 and 96 columns, not
causal, were chosen on an H100, of 1 to 17, on 2^18 queries in heads of 4096. The causal ones of forward, and those at
16 columns, were chosen on an H200, of 3 to 8, at 256 to 16384 queries.
benchmarks/notes/attention.md has the figures.
"""

import functools
import math
from dataclasses import dataclass, replace

import torch

from course_lib.kernels.attention.rows import aligned
from course_lib.kernels.columns import split
from course_lib.kernels.fitting import Need, best, residents
from course_lib.kernels.hardware import HOPPER, Limits, capability, gluon_is_known, limits, multiprocessors

__all__ = [
    "BESIDE_COLLECTIVES",
    "FASTER_IN_ORDER",
    "GROUPS",
    "IN_ORDER",
    "ONE_BLOCK",
    "ONE_PASS",
    "OTHERS",
    "PLAIN",
    "SHORT",
    "SHORT_HEADS",
    "SIDE_BY_SIDE",
    "SPILL_LIMIT",
    "TABLE",
    "Blocks",
    "Groups",
    "OneBlock",
    "OnePass",
    "SideBySide",
    "Tuned",
    "blocks_for",
    "groups_for",
    "need_of",
    "one_block_for",
    "one_pass_for",
    "parts_of_heads",
    "side_by_side_for",
    "tuned",
]

SPILL_LIMIT = 160  # bytes a thread; only dk and dv at 128 columns come near it: 31 of 490 instructions of its loop


@dataclass(frozen=True)
class Blocks:
    m: int  # queries a block
    n: int  # keys a block
    warps: int
    stages: int  # blocks of the inner loop that are in shared memory or on their way there
    registers: int | None = None  # at most so many a thread, where that makes room for one more program
    edge: int | None = None  # forward: begin with the keys that some queries do not see, so many a block


@dataclass(frozen=True)
class Groups:
    """For the kernels with jobs for their warps, where each of two or three groups of warps holds 64 rows."""

    block: int  # rows that one turn of the loop walks over: keys forward, queries for dk and dv
    stages: int  # such blocks in shared memory or on their way there
    held: int = 1  # 2: the rows of the next tile are on their way while this one's are in use
    persistent: bool = True  # as many programs as multiprocessors, each with many tiles; else a program a tile
    heads_interleaved: int = 1  # causal: the longest tiles of so many heads come before their shorter ones
    turns: bool = True  # forward: the groups take turns at the tensor cores
    lengths: bool = True  # also where sequences have lengths of their own
    consumers: int = 2  # forward: groups of warps that compute
    stages_of_two: int = 3  # where two consumers are taken in the place of three
    dealt: bool = False  # forward, causal, persistent: tiles are given in advance as the hardware would hand them out
    lazy: bool = False  # forward, without lengths: o is scaled only where a maximum has grown much


@dataclass(frozen=True)
class OnePass:
    """For the backward pass in one (groups_onepass.py), where two groups of warps hold 64 keys each."""

    block: int  # queries a turn
    together: int  # the same block of keys of so many heads, then the next
    least: int  # keys, and queries, from which on it was measured faster; zeros for the sums and rounding them cost
    tiles: int  # of 128 keys, all heads of queries together, from which on it was measured faster
    short: int | None = None  # keys, and queries, in the place of `least` where tiles are MANY
    in_order: bool = False  # the same bits on every run
    dealt: bool = False  # in order, no mask, all sequences equally long: tiles in rounds, not from a counter
    stages: int = 2  # blocks of q, and of do, in shared memory or on their way there
    parts: int = 1  # so many programs share the query heads of a tile


@dataclass(frozen=True)
class Parts(Blocks):
    """Where tiles are too few for a GPU: several programs share what one would walk over, and their sums are added.

    Forward a tile of `m` rows holds all query heads that share keys, and programs share the keys. For dk and dv they
    share the query heads.
    """

    parts: int = 1  # so many programs a tile


@dataclass(frozen=True)
class OneBlock(Blocks):
    """Backward where a block of `n` holds all keys of a head: one program makes its gradients (one_block.py)."""


@dataclass(frozen=True)
class SideBySide(Blocks):
    """Backward in two passes at once (side_by_side.py), up to so many programs a multiprocessor."""

    most: float = 0.0  # where the other way is two passes one after the other
    most_for_one: float = 0.0  # where it is one pass in order
    most_for_any: float = 0.0  # where it is one pass in any order


@dataclass(frozen=True)
class Tuned:
    forward: Blocks
    dq: Blocks
    dkdv: Blocks


# (columns computed, causal) -> blocks of the three kernels, 2-byte types
TABLE = {
    (16, False): Tuned(Blocks(64, 128, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (16, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (32, False): Tuned(Blocks(64, 128, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (32, True): Tuned(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2)),
    (48, False): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3)),
    (48, True): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 3, 168)),
    (64, False): Tuned(Blocks(64, 128, 4, 2, edge=64), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 3, 168)),
    (64, True): Tuned(Blocks(64, 128, 4, 2, edge=64), Blocks(64, 64, 4, 2, 128), Blocks(64, 64, 4, 3)),
    (80, False): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 32, 4, 3), Blocks(32, 64, 4, 3, 168)),
    (80, True): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 32, 4, 3), Blocks(64, 64, 4, 3)),
    (96, False): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(64, 64, 4, 3)),
    (96, True): Tuned(Blocks(128, 64, 4, 3), Blocks(64, 64, 4, 2, 168), Blocks(64, 64, 4, 2)),
    (128, False): Tuned(Blocks(128, 64, 4, 2), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
    (128, True): Tuned(Blocks(64, 64, 4, 3), Blocks(128, 64, 8, 3), Blocks(64, 64, 4, 2)),
}
# (kernel, columns computed, causal) -> where the hand-scheduled kernel is the fastest measured on an H100 or H200
GROUPS = {
    ("forward", 16, False): Groups(128, 4, held=2, consumers=3),
    ("forward", 16, True): Groups(128, 4, held=2, heads_interleaved=16, dealt=True, turns=False, lengths=False),
    ("forward", 32, False): Groups(128, 4, held=2, consumers=3),
    ("forward", 32, True): Groups(128, 4, held=2, heads_interleaved=16, dealt=True, lengths=False),
    ("forward", 48, False): Groups(128, 3, held=2, consumers=3),
    ("forward", 48, True): Groups(128, 3, held=2, heads_interleaved=16, dealt=True),
    ("forward", 64, False): Groups(128, 4, held=2, consumers=3, lazy=True),
    ("forward", 64, True): Groups(128, 3, held=2, heads_interleaved=16, dealt=True),
    ("forward", 80, False): Groups(128, 3, held=2),
    ("forward", 80, True): Groups(128, 3, held=2, heads_interleaved=16, dealt=True, lazy=True),
    ("forward", 96, False): Groups(128, 3, held=2),
    ("forward", 96, True): Groups(128, 3, held=2, heads_interleaved=16, dealt=True),
    ("forward", 128, False): Groups(128, 2, held=2, turns=False, lazy=True),
    ("forward", 128, True): Groups(128, 2, held=2, heads_interleaved=16, dealt=True, turns=False, lazy=True),
    ("dkdv", 80, False): Groups(64, 4, held=2),
    ("dkdv", 80, True): Groups(64, 3, persistent=False),
    ("dkdv", 96, False): Groups(64, 3, held=2, lengths=False),
    ("dkdv", 96, True): Groups(64, 3, held=2, lengths=False),
    ("dkdv", 128, False): Groups(32, 4, lengths=False),
}
# The same key -> what stands in its place where queries or keys are so many or fewer; None is the first rung.
SHORT = {
    ("forward", 16, False): (1024, Groups(128, 4, held=2, consumers=3, stages_of_two=4, lengths=False)),
    ("forward", 16, True): (1536, None),
    ("forward", 32, True): (1024, None),
    ("forward", 64, False): (512, Groups(128, 4, held=2, consumers=3)),
    ("forward", 64, True): (1024, Groups(128, 3, held=2, heads_interleaved=8)),
}
# Not causal, three consumers share tiles of 192 queries and two tiles of 128. Two need so many times three's time for a
# row: 1.11 to 1.14 at 64 columns, 1.07 at 32, by all lengths measured. But a last round of tiles may be nearly empty: 8
# heads of 4096 queries are 176 tiles of 192 for 132 programs.
ROW_OF_TWO = 1.12
TWO_WITH_LENGTHS = 1024  # queries or keys: with lengths two took 0.53 to 1.01 of three's time (32, 48 and 64 columns)
# dk and dv, not causal, where the first rung is as fast for each tile and the second wins by its rounds alone: the
# first runs three programs of 64 keys a multiprocessor at once, the second one of 128. A round of the second takes 0.71
# of the first's time (4096 queries of 32 and 64 columns, H200), so that 8 heads of 4096 take 0.71 and 0.73; at 0.75
# what is chosen gains. From so many queries and keys on; with 1024 it lost.
FEWER_ROUNDS = {
    ("dkdv", 32, False): Groups(64, 3, persistent=False, lengths=False),
    ("dkdv", 64, False): Groups(64, 3, persistent=False, lengths=False),
}
ROUND_OF_ONE, FEWER_ROUNDS_FROM = 0.75, 2048
# dq, where the table's tiles are no more than multiprocessors: 0.73 of its time at 8 heads of 1024, 0.87 at 2048.
DQ_OF_FEW = {(64, False): Blocks(64, 64, 4, 3)}
# (columns computed, causal) -> the backward pass in one: for calls that allow additions in any order, and for all
# others; who allows any order gets them in order where only that fits. Measured on an H200 at 256 to 16384 keys and 128
# to 2048 tiles; where 256 or 2048 tiles stand, fewer were slower or not tried. Two steps are not clean: 64 columns lose
# 3 % in any order at 192 tiles, where 128 tiles gain 4 and 12 %; and causal, in order, 1 % at 1024 keys of 2048 tiles,
# where 128 tiles gain 7 %.
ONE_PASS = {
    (16, False): OnePass(128, together=8, least=1024, tiles=2048),
    (16, True): OnePass(128, together=32, least=2048, tiles=2048),
    (32, False): OnePass(128, together=8, least=1024, tiles=256),
    (32, True): OnePass(128, together=32, least=2048, tiles=256),
    (48, False): OnePass(128, together=8, least=768, tiles=256),
    (48, True): OnePass(128, together=32, least=2048, tiles=256),
    (64, False): OnePass(128, together=8, least=1024, tiles=128),
    (64, True): OnePass(128, together=32, least=1536, tiles=128),
    (80, False): OnePass(64, together=8, least=768, tiles=128, stages=3),
    (80, True): OnePass(64, together=32, least=512, tiles=128, short=256),
    (96, False): OnePass(64, together=8, least=768, tiles=128, short=512, stages=3),
    (96, True): OnePass(64, together=32, least=768, tiles=128, short=512),
    (128, False): OnePass(64, together=8, least=1024, tiles=128, short=384),
    (128, True): OnePass(64, together=32, least=768, tiles=128, short=384),
}
IN_ORDER = {
    (16, False): OnePass(128, together=8, least=1024, tiles=2048, in_order=True, dealt=True),
    (16, True): OnePass(128, together=64, least=2048, tiles=2048, in_order=True),
    (32, False): OnePass(128, together=32, least=1024, tiles=256, in_order=True, dealt=True),
    (32, True): OnePass(128, together=64, least=2048, tiles=256, in_order=True),
    (48, False): OnePass(128, together=32, least=768, tiles=256, in_order=True, dealt=True),
    (48, True): OnePass(128, together=64, least=1024, tiles=256, in_order=True, stages=3),
    (64, False): OnePass(128, together=8, least=1024, tiles=256, in_order=True, dealt=True),
    (64, True): OnePass(128, together=64, least=1024, tiles=128, in_order=True),
    (80, False): OnePass(64, together=8, least=768, tiles=128, in_order=True, dealt=True, stages=3),
    (80, True): OnePass(64, together=32, least=512, tiles=128, short=256, in_order=True),
    (96, False): OnePass(64, together=8, least=768, tiles=128, short=512, in_order=True, dealt=True, stages=3),
    (96, True): OnePass(64, together=32, least=768, tiles=128, short=256, in_order=True),
    (128, False): OnePass(64, together=2, least=1024, tiles=128, short=384, in_order=True, dealt=True),
    (128, True): OnePass(64, together=32, least=768, tiles=128, short=256, in_order=True),
}
# From so many heads on. Any order took 1.02 to 1.05 times as long at 64 to 256 heads without a mask, and with 16 heads
# 0.92 at 48 columns; with a mask, at 128 columns, 1.00 to 1.11 with 24 heads or more, and 0.83 to 1.01 with fewer.
FASTER_IN_ORDER = {(48, False): 64, (128, False): 1, (128, True): 24}
# In order, without a mask, tiles come from a counter: where lengths differ, as rounds would be none; where queries are
# fewer than keys, as programs of a round would want the same dq; and, by columns, where that was faster (0.88 to 0.98).
# So many heads go together, from so many heads on: fewer were not timed, or wait.
WITH_LENGTHS, WITH_FEW_QUERIES = (32, 16), (64, 32)
FROM_A_COUNTER = {16: (32, 32), 32: (32, 32), 80: (16, 32)}
# The same where other ranks are: rounds begin when as many multiprocessors are free as there are programs, and a
# collective holds some. A step of two ranks took 0.95 and 0.96 of the time that it takes with rounds, and 1.03 and 1.00
# where nothing is sent.
BESIDE_COLLECTIVES = {128: (8, 32)}
# (columns computed) -> backward in one block, causal or not, for so many queries and keys or fewer. Timed with 4096
# heads of as many queries as keys and without lengths, and some with 128 heads, a program a multiprocessor.
_UP_TO_64 = (32, OneBlock(32, 32, 4, 2)), (64, OneBlock(64, 64, 4, 2))
_UP_TO_96 = (*_UP_TO_64, (96, OneBlock(32, 128, 8, 2, 128)))
ONE_BLOCK = {
    16: _UP_TO_64,
    32: _UP_TO_96,
    48: _UP_TO_64,
    64: _UP_TO_96,
    80: _UP_TO_64,
    96: _UP_TO_64,
    128: (*_UP_TO_64, (128, OneBlock(64, 128, 8, 2))),
}
# (columns computed, causal) -> backward in both passes at once: up to so many programs of 64 rows a multiprocessor. At
# 4 to 256 heads of 160 to 4096 queries and as many keys it took 0.48 to 0.97 of the other way's time there. Without a
# mask one pass never has so few. One pass in any order was held against it at 64 columns alone; elsewhere only that in
# order was, of whose time any order took 0.79 or more.
SIDE_BY_SIDE = {
    key: SideBySide(64, 64, 4, 2 if key[0] == 128 else 3, None, None, *most)
    for key, most in {
        (16, False): (8,),
        (16, True): (16,),
        (32, False): (3,),
        (32, True): (12, 8),
        (48, False): (4,),
        (48, True): (8, 12),
        (64, False): (3,),
        (64, True): (16, 12, 6),
        (80, False): (3,),
        (80, True): (16, 8, 4),
        (96, False): (2,),
        (96, True): (12, 6, 4),
        (128, False): (2,),
        (128, True): (16, 6, 4),
    }.items()
}
# (columns computed, causal) -> forward on the first rung, for so many queries and keys or fewer: tiles of 128 and 192
# rows would be half empty or more. At 4096 heads it takes 0.11 to 0.93 of their time, or of that of the table's blocks.
_TINY = (16, Blocks(16, 32, 2, 1)), (32, Blocks(32, 32, 2, 1))
SHORT_HEADS = {
    (columns, causal): (*_TINY, (64, Blocks(64, 64, 4, 2 if columns in (80, 96) and not causal else 1)))
    for columns in (16, 32, 48, 64, 80, 96, 128)
    for causal in (False, True)
}
SHORT_HEADS[64, True] += ((128, Blocks(64, 64, 4, 2)),)
MANY = 500  # tiles
FEW_OF_MANY = 64, 4096  # so many queries of so many keys are enough, of MANY tiles, for 80 columns and more
FULL_ROUNDS = 0.7  # of all places for programs. 0.73 won at 128 columns, and lost at 64, where `tiles` keeps it out
# fp32 keeps all its bits and so has no tensor cores: small blocks, for checking and not for speed.
FP32 = Tuned(Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1), Blocks(32, 32, 4, 1))
# The interpreter gets blocks so small that short sequences have several, and not square ones.
INTERPRETED = Tuned(Blocks(16, 32, 4, 1, edge=16), Blocks(32, 16, 4, 1), Blocks(16, 32, 4, 1))
# Tried in this order for 2-byte types on tensor cores that were not measured.
OTHERS = tuple(
    Blocks(m, n, warps, stages)
    for m, n, warps in (
        (128, 128, 8), (128, 64, 4), (128, 64, 8), (64, 128, 4), (64, 64, 4), (128, 32, 4), (64, 32, 4),
        (32, 64, 4), (32, 32, 4), (16, 32, 4), (32, 16, 4), (16, 16, 4),
    )
    for stages in (3, 2, 1)
)  # fmt: skip
# Plain arithmetic takes every operand to registers and unrolls the whole product.
PLAIN = (Blocks(32, 32, 4, 1), Blocks(16, 32, 4, 1), Blocks(16, 16, 4, 1))

# Forward with at most so many queries, and at least so many keys: several programs may share the keys. With at most
# VERY_FEW they share a tile with the other heads also where tiles are enough, since a tile of one head would hold next
# to nothing.
FEW_QUERIES, VERY_FEW, FEW_KEYS = 128, 32, 256
# (rows a tile) -> keys a turn, warps and stages of such programs.
FEW = {m: Blocks(m, 128, 4, 3) for m in (16, 32, 64)}
FEW_INTERPRETED = Blocks(16, 16, 4, 1), 6
START = 8  # turns: what starting one more round of programs, and merging what they leave, costs
LEAST_KEYS = 8  # of a program, for each row of its tile: sums are then a quarter of the bytes of keys and values
MOST_PARTS = 128  # the states of a query are merged in one block
# dk and dv: programs for each multiprocessor, which holds two at once. Causal, the first keys are seen by all queries
# and the last by few. Handed out longest first, 2 programs take 2.0 times the mean, 16 take 1.17 (list scheduling of
# 4096 keys in blocks of 64).
PROGRAMS_DKDV = {False: 2, True: 16}
# One pass: what sums in fp32 and adding them cost a program, in queries walked over: 4 numbers of 4 bytes, for 256 keys
# and each column, at 23 bytes a ns are as long as 10 turns of 64 queries.
START_OF_PART = 640
MOST_HEADS = 4  # that a program walks over, causal: 16 took 1.2 times as long, 8 up to 1.12
LEAST_ROWS = 4096  # that a program of dk and dv walks over: for less, writing and adding sums costs more than it gives


def tuned(head_size: int, causal: bool, dtype: torch.dtype, device: torch.device) -> Tuned:
    if device.type != "cuda":
        return INTERPRETED
    has = limits(device)
    if not has.measured:
        return _fitted(sum(split(head_size)), dtype.itemsize, has)
    return FP32 if dtype == torch.float32 else TABLE[sum(split(head_size)), causal]


@functools.cache
def _fitted(columns: int, itemsize: int, has: Limits) -> Tuned:
    candidates = OTHERS if itemsize == 2 and has.tensor_cores else PLAIN
    chosen = (
        best(candidates, lambda one, kernel=kernel: need_of(kernel, one, columns, itemsize, has), has)
        for kernel in ("forward", "dq", "dkdv")
    )
    return Tuned(*chosen)


def need_of(kernel: str, blocks: Blocks, columns: int, itemsize: int, has: Limits) -> Need:
    """What a program of "forward", "dq" or "dkdv" takes.

    It holds rows of its own (q; q and do; k and v), sums for them, and walks over two others, a block of rows a turn.
    """
    held, walked = (blocks.n, blocks.m) if kernel == "dkdv" else (blocks.m, blocks.n)
    tensors, sums, tiles = {"forward": (1, 1, 1), "dq": (2, 1, 2), "dkdv": (2, 2, 2)}[kernel]
    # mma frees a buffer when its operand is in registers, before the product; wgmma reads it until the product is made.
    buffers = blocks.stages if has.products_read_shared else max(1, blocks.stages - 1)
    terms = 8 * walked if kernel == "dkdv" else 0
    shared = tensors * held * columns * itemsize + buffers * (2 * walked * columns * itemsize + terms)
    registers = 50 + (sums * held * columns + tiles * held * walked) // (32 * blocks.warps)
    arithmetic = not has.tensor_cores or itemsize == 4
    if arithmetic:  # every number of an operand passes through registers, and scores change hands
        shared += 4 * tiles * held * walked
        registers += int(1.5 * columns * (held * walked / (32 * blocks.warps)) ** 0.5)
    elif not has.products_read_shared:  # operands are in registers: rows held, scores, and backward a block walked over
        registers += (tensors * held * columns + held * walked) * itemsize // 4 // (32 * blocks.warps)
        # Of a walked block every warp has all at once for dk and dv, half for dq, and little of it forward.
        share = {"forward": 0.0, "dq": 0.5, "dkdv": 1.0}[kernel]
        registers += int(share * walked * columns * itemsize) // 128
    else:  # only scores are, once more, as operands; on their way there they may pass through shared memory
        registers += tiles * held * walked * itemsize // 4 // (32 * blocks.warps)
        shared += (kernel != "forward") * (tiles * held * walked * itemsize + 8192)
        if kernel == "dkdv" and has.capability > HOPPER and walked > 64:  # Blackwell: such a block lies there twice
            shared += walked * columns * itemsize
    # Two products forward, three for dq, four for dk and dv; every turn reads both walked tensors and its own rows.
    products = {"forward": 2, "dq": 3, "dkdv": 4}[kernel]
    reuse = 2 * products * held * walked / ((2 * walked + held) * itemsize)
    return Need(shared + 512, registers, blocks.warps, blocks.stages, reuse)


def groups_for(kernel: str, causal: bool, padded: bool, capability, *tensors: torch.Tensor) -> Groups | None:
    """The second rung's blocks for "forward" or "dkdv", or None where that rung is not valid or not faster.

    `tensors`: all that the copy engine is to fetch or to write, q and k first; `padded`: k_lengths are given;
    `capability`: of the device.
    """
    q, k, *_ = tensors
    key = kernel, sum(split(q.shape[-1])), causal
    entry, rows = GROUPS.get(key), min(q.shape[2], k.shape[2])
    if entry is not None:
        most, short = SHORT.get(key, (0, None))
        entry = short if rows <= most else entry
    elif rows >= FEWER_ROUNDS_FROM and _fewer_rounds(k):
        entry = FEWER_ROUNDS.get(key)
    if entry is None or (padded and not entry.lengths):
        return None
    if padded and entry.lazy:
        entry = _always_scaled(entry, causal)
    if capability != HOPPER or not all(map(aligned, tensors)) or not gluon_is_known():
        return None
    if entry.consumers == 3 and not causal:
        two = _with_two(entry)
        if padded and rows <= TWO_WITH_LENGTHS:
            return two
        return min(entry, two, key=lambda one: _longest(one, q))
    return entry


@functools.cache
def _always_scaled(groups: Groups, causal: bool) -> Groups:
    """With lengths scaling seldom lost up to 13 % at 64 columns and 2 % at 80, causal; at 128 it lost 0 to 3 %, and
    causal it gained 1 %."""
    return replace(groups, lazy=False, turns=groups.turns or not causal)


@functools.cache
def _with_two(groups: Groups) -> Groups:
    return replace(groups, consumers=2, stages=groups.stages_of_two)


def _longest(groups: Groups, q: torch.Tensor) -> float:
    """What the program with the most tiles takes, in the time of 64 rows where three consumers share a tile."""
    tiles = q.shape[:2].numel() * -(-q.shape[2] // (64 * groups.consumers))
    rounds = -(-tiles // multiprocessors(q.device))
    return rounds * groups.consumers * (ROW_OF_TWO if groups.consumers == 2 else 1)


def _fewer_rounds(k: torch.Tensor) -> bool:
    """Whether one program of 128 keys a multiprocessor is done before three of 64."""
    heads, at_once = k.shape[:2].numel(), multiprocessors(k.device)
    ones, threes = (
        -(-heads * -(-k.shape[2] // keys) // places) for keys, places in ((128, at_once), (64, 3 * at_once))
    )
    return ROUND_OF_ONE * ones < threes


def one_pass_for(causal: bool, k_lengths, deterministic: bool, *tensors: torch.Tensor) -> OnePass | None:
    """The blocks of the backward pass in one, or None: two passes.

    `tensors`: q, k and all others that the copy engine is to fetch or to write.
    """
    q, k, *_ = tensors
    if q.shape[-1] % 4:  # rows of the sums of dq, in fp32, have to be in reach too
        return None
    if capability(q.device) != HOPPER:
        return None
    key, heads = (sum(split(q.shape[-1])), causal), q.shape[:2].numel()
    padded, crowded = k_lengths is not None, not causal and q.shape[2] < k.shape[2]
    entry = in_order = _one_pass(_in_order(key, padded, crowded, heads), causal, padded, q, k)
    if not (deterministic or torch.are_deterministic_algorithms_enabled()):
        faster = in_order and not crowded and heads >= FASTER_IN_ORDER.get(key, math.inf)
        entry = in_order if faster else _one_pass(ONE_PASS.get(key), causal, padded, q, k) or in_order
    return entry if entry and all(map(aligned, tensors)) and gluon_is_known() else None


def _in_order(key: tuple[int, bool], padded: bool, crowded: bool, heads: int) -> OnePass | None:
    """The entry for additions in order: with tiles in rounds or from a counter, or None where neither is good."""
    entry, (columns, causal) = IN_ORDER.get(key), key
    if entry is None or causal:
        return entry
    if crowded or padded:
        together, least = WITH_FEW_QUERIES if crowded else WITH_LENGTHS
        return _from_a_counter(entry, together) if heads >= least else None
    table = BESIDE_COLLECTIVES if columns in BESIDE_COLLECTIVES and _other_ranks() else FROM_A_COUNTER
    together, least = table.get(columns, (0, math.inf))
    return _from_a_counter(entry, together) if heads >= least else entry


def _other_ranks() -> bool:
    ranks = torch.distributed
    return ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1


@functools.cache
def _from_a_counter(entry: OnePass, together: int) -> OnePass:
    return replace(entry, dealt=False, together=together)


def _one_pass(
    entry: OnePass | None, causal: bool, padded: bool, q: torch.Tensor, k: torch.Tensor
) -> OnePass | None:  # fmt: skip
    """The entry for these sizes, or None where two passes are as fast."""
    if entry is None:
        return None
    n_q, n_k = q.shape[2], k.shape[2]
    tiles = -(-n_k // 128) * q.shape[:2].numel()
    least = entry.short if entry.short and tiles >= MANY else entry.least
    if padded and causal and entry.block == 128:  # lengths are shorter: 1.09 of two passes at 1024 keys, .99 at 2048
        least *= 2
    enough = min(n_q, n_k) >= least
    if entry.block == 64 and tiles >= MANY:
        enough |= n_q >= FEW_OF_MANY[0] and n_k >= FEW_OF_MANY[1]
    if tiles < entry.tiles or not enough:
        return None
    parts = parts_of_heads(causal, q, k)
    if entry.dealt and not _rounds_are_full(k, parts):
        return None
    return entry if parts == 1 else _in_parts(entry, parts)


@functools.cache
def _in_parts(entry: OnePass, parts: int) -> OnePass:
    return replace(entry, parts=parts)


def _items(k: torch.Tensor) -> int:
    return -(-k.shape[2] // 128) * k.shape[:2].numel()


def _rounds_are_full(k: torch.Tensor, parts: int) -> bool:
    """Tiles that all take equally long: 144 for 132 programs take as long as 264."""
    items, at_once = _items(k) * parts, multiprocessors(k.device)
    return items >= FULL_ROUNDS * at_once * -(-items // at_once)


def parts_of_heads(causal: bool, q: torch.Tensor, k: torch.Tensor) -> int:
    """One pass: how many programs share the query heads of a tile."""
    if q.shape[1] == k.shape[1] or split(q.shape[-1])[1]:  # nothing to share, or two tiles of columns
        return 1
    return _parts(_items(k), q.shape[1] // k.shape[1], q.shape[2], multiprocessors(k.device), causal)


@functools.cache
def _parts(items: int, group: int, n_q: int, at_once: int, causal: bool) -> int:
    """The fewest parts of a group of heads that take the shortest time, or 5 % more.

    Tiles of one length come in rounds, as in `_shares`. Causal ones are half as long in the mean, and the longest is
    waited for, which is taken first.
    """

    def takes(parts: int) -> float:
        rounds = items * parts / at_once
        longest = max(1, rounds / 2) if causal else math.ceil(rounds)
        return longest * (group * n_q / parts + START_OF_PART * (parts > 1))

    least = group / MOST_HEADS if causal else 1
    able = [parts for parts in range(1, group + 1) if group % parts == 0 and parts >= least]
    shortest = min(map(takes, able))
    return next(parts for parts in able if takes(parts) <= 1.05 * shortest)


def keys_shared(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Parts | None:
    """Forward: blocks for few queries of many keys, or None where one program a tile of one head does as well.

    Types, shapes, strides, whether rows start at multiples of 16 bytes, and the device decide.
    """
    (B, H, n_q, D), (kv_heads, n_k) = q.shape, k.shape[1:3]
    group, (main, rest) = H // kv_heads, split(D)
    if n_q > FEW_QUERIES or n_k < FEW_KEYS or q.numel() == 0:
        return None
    blocks, at_once = FEW_INTERPRETED
    if q.device.type == "cuda":
        reached = rest == 0 and aligned(k) and aligned(v)
        blocks, at_once = _few(group * n_q, main + rest, q.dtype.itemsize, reached, limits(q.device))
    at_once *= multiprocessors(q.device)
    tiles = -(-group * n_q // blocks.m) * B * kv_heads
    parts = _shares(tiles, -(-n_k // blocks.n), at_once, min(MOST_PARTS, n_k // (LEAST_KEYS * blocks.m)))
    if n_q <= VERY_FEW:
        # One head of 128 columns is as fast in the second rung's tiles: they have 128 FLOP for each byte of keys.
        pays = parts > 1 or group > 1 or main + rest <= 64
    else:
        pays = parts > 1 and 2 * tiles <= at_once
    return Parts(**vars(blocks), parts=parts) if pays else None


@functools.cache
def _shares(tiles: int, turns: int, at_once: int, most: int) -> int:
    """Into how many parts the keys of each tile go.

    Programs come in rounds of as many as run at once, and a round takes as long as its turns and its start. A round
    that is not full leaves multiprocessors idle; more rounds cost more starts.
    """
    return min(
        range(1, max(1, most) + 1), key=lambda parts: -(-tiles * parts // at_once) * (-(-turns // parts) + START)
    )


@functools.cache
def _few(rows: int, columns: int, itemsize: int, reached: bool, has: Limits) -> tuple[Blocks, int]:
    """For tiles of so many rows or fewer, and how many such programs a multiprocessor runs at once.

    `reached`: rows are one block of columns in reach of the copy engine; 128 keys a turn would spill elsewhere.
    """
    m = min(64, max(16, 1 << (rows - 1).bit_length()))
    candidates = [Blocks(m, n, 4, stages) for n in (64, 32, 16) for stages in (3, 2, 1)]
    if itemsize == 4 or not has.tensor_cores:
        candidates = [one for one in PLAIN if one.m <= m]
    elif has.measured:
        candidates = [FEW[m] if reached and m * columns <= 4096 else replace(FEW[m], n=64)]

    def need(one: Blocks) -> Need:
        return need_of("forward", one, columns, itemsize, has)

    blocks = best(candidates, need, has)
    return blocks, residents(need(blocks), has)


def heads_shared(q: torch.Tensor, k: torch.Tensor, causal: bool, blocks: Blocks) -> Parts | None:
    """dk and dv: the same blocks with the query heads of a tile in parts, or None where the tiles are enough."""
    (B, H, n_q, _), (kv_heads, n_k) = q.shape, k.shape[1:3]
    group, parts = H // kv_heads, 1
    most = PROGRAMS_DKDV[causal] * multiprocessors(q.device)
    tiles = -(-n_k // blocks.n) * B * kv_heads
    while group % (2 * parts) == 0 and 2 * parts * tiles <= most and group // (2 * parts) * n_q >= LEAST_ROWS:
        parts *= 2
    return Parts(**vars(blocks), parts=parts) if parts > 1 else None


def one_block_for(q: torch.Tensor, k: torch.Tensor) -> OneBlock | None:
    """The backward pass of heads that one block holds, or None where two passes are as fast."""
    return _for_few_keys(ONE_BLOCK.get(sum(split(q.shape[-1])), ()), q, k)


def _for_few_keys(entries, q: torch.Tensor, k: torch.Tensor):
    longest = max(q.shape[2], k.shape[2])
    return next((blocks for most, blocks in entries if longest <= most), None) if _timed_alone(q, k) else None


def _timed_alone(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether this is a call as those of SHORT_HEADS, ONE_BLOCK and SIDE_BY_SIDE were: no head shares its keys."""
    return capability(q.device) == HOPPER and q.dtype != torch.float32 and q.shape[1] == k.shape[1]


def side_by_side_for(causal: bool, one: OnePass | None, q: torch.Tensor, k: torch.Tensor) -> SideBySide | None:
    """The backward pass where tiles are few, or None where it was not measured faster than `one`, or two passes."""
    entry = SIDE_BY_SIDE.get((sum(split(q.shape[-1])), causal))
    if entry is None or not _timed_alone(q, k):
        return None
    programs = (-(-q.shape[2] // entry.m) + -(-k.shape[2] // entry.n)) * q.shape[:2].numel()
    most = entry.most if one is None else entry.most_for_one if one.in_order else entry.most_for_any
    return entry if programs <= most * multiprocessors(q.device) else None


def blocks_for(kernel: str, causal: bool, k_lengths, *tensors: torch.Tensor) -> Blocks | Groups | Parts:
    """What to launch "forward", "dq" or "dkdv" with. Its type says which kernels: Groups are of the second rung."""
    q, k, v, *_ = tensors
    blocks = getattr(tuned(q.shape[-1], causal, q.dtype, q.device), kernel)
    if kernel == "dq":
        return _dq_of_few(q, causal, blocks)
    if kernel == "forward":
        few = _for_few_keys(SHORT_HEADS.get((sum(split(q.shape[-1])), causal), ()), q, k) or keys_shared(q, k, v)
    else:
        few = heads_shared(q, k, causal, blocks)
    return few or groups_for(kernel, causal, k_lengths is not None, capability(q.device), *tensors) or blocks


def _dq_of_few(q: torch.Tensor, causal: bool, blocks: Blocks) -> Blocks:
    smaller = DQ_OF_FEW.get((sum(split(q.shape[-1])), causal))
    if smaller is None or q.dtype == torch.float32 or capability(q.device) != HOPPER:
        return blocks
    tiles = q.shape[:2].numel() * -(-q.shape[2] // blocks.m)
    return smaller if tiles <= multiprocessors(q.device) else blocks
