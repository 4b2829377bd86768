"""Wrong matrix products, each as a formula or as a sign. Tile sizes are the student's choice, so they are variants."""

from functools import partial
from itertools import product

import torch

from autograder.exercise import Mistake
from autograder.exercises.dtypes import significant
from autograder.exercises.everywhere import OUT_NEVER_WRITTEN, int32_offset, no_mask_on_store, output_stride_ignored
from autograder.exercises.strides import as_read

NAN = float("nan")
BLOCKS = (16, 32, 64, 128, 256)
TILES = tuple(product(BLOCKS[:4], BLOCKS[:4]))


def _product(v) -> torch.Tensor:
    return v["a"].double() @ v["b"].double()


def _sizes(v) -> tuple[int, int, int]:
    return v["a"].shape[0], v["b"].shape[1], v["a"].shape[1]


# ---- along K: which column of a meets which row of b


def _gathered(v, columns_of_a: list[int], rows_of_b: list[int]):
    return {"out": v["a"].double()[:, columns_of_a] @ v["b"].double()[rows_of_b]}


def _k_range(start, stop):
    """Only these k take part; both ends are functions of K and the block."""

    def answer(v, block: int):
        k = _sizes(v)[2]
        kept = list(range(max(0, start(k, block)), min(k, stop(k, block))))
        return _gathered(v, kept, kept)

    return answer


def _advanced(move):
    """Where lane `j` of turn `i` reads when the pointers of a, of b or of both move wrongly between turns."""

    def answer(v, variant):
        block, which = variant
        ks = range(_sizes(v)[2])
        moved = [move(k // block, k % block) for k in ks]
        return _gathered(v, moved if "a" in which else list(ks), moved if "b" in which else list(ks))

    return answer


def _k_tail_read(v, variant):
    """Lanes past K are read from whatever lies there, in one matrix or in both."""
    block, unmasked = variant
    m, n, k = _sizes(v)
    wide = -(-k // block) * block
    a = as_read(v["a"], (m, wide), v["a"].stride()).double()
    b = as_read(v["b"], (wide, n), v["b"].stride()).double()
    if "a" not in unmasked:
        a[:, k:] = 0.0
    if "b" not in unmasked:
        b[k:] = 0.0
    return {"out": a @ b}


# ---- over tiles: which are computed


def _tiles(v, bm: int, bn: int, covered: torch.Tensor):
    """The right answer in the tiles that are covered, nothing elsewhere. covered: (tiles along M, tiles along N)."""
    m, n, _ = _sizes(v)
    elements = covered.repeat_interleave(bm, 0)[:m].repeat_interleave(bn, 1)[:, :n].to(v["a"].device)
    return {"out": torch.where(elements, _product(v), NAN)}


def _tile_counts(v, bm: int, bn: int) -> tuple[int, int]:
    m, n, _ = _sizes(v)
    return -(-m // bm), -(-n // bn)


def _grouped(v, variant):
    """Grouped order where the last group is taken to be as high as the others, in one place or in both."""
    bm, bn, group, of_m, of_n = variant
    tiles_m, tiles_n = _tile_counts(v, bm, bn)
    covered = torch.zeros(tiles_m, tiles_n, dtype=torch.bool)
    for pid in range(tiles_m * tiles_n):
        first, inside = pid // (group * tiles_n) * group, pid % (group * tiles_n)
        height = min(tiles_m - first, group)
        pid_m, pid_n = first + inside % (of_m or height), inside // (of_n or height)
        if pid_m < tiles_m and pid_n < tiles_n:
            covered[pid_m, pid_n] = True
    return _tiles(v, bm, bn, covered)


GROUPS = tuple(
    (bm, bn, group, group * m, group * n)
    for (bm, bn), group, (m, n) in product(TILES, (4, 8, 16), ((1, 1), (0, 1), (1, 0)))
)


def _covered(keep):
    """Tiles (i, j) with i < and j < what `keep` says, given M, N, the tile and the numbers of tiles."""

    def answer(v, tile):
        bm, bn = tile[:2]
        m, n, _ = _sizes(v)
        counts = _tile_counts(v, bm, bn)
        rows, columns = keep(m, n, tile, counts)
        covered = torch.zeros(counts, dtype=torch.bool)
        covered[:rows, :columns] = True
        return _tiles(v, bm, bn, covered)

    return answer


def _rounded_down(m, n, tile, counts):
    bm, bn, which = tile
    return m // bm if "m" in which else counts[0], n // bn if "n" in which else counts[1]


def _overlapping(v, tile):
    """Tile p begins at row or column p."""
    m, n, _ = _sizes(v)
    counts = _tile_counts(v, *tile)
    out = torch.full((m, n), NAN, dtype=torch.float64, device=v["a"].device)
    rows, columns = counts[0] - 1 + tile[0], counts[1] - 1 + tile[1]
    out[:rows, :columns] = _product(v)[:rows, :columns]
    return {"out": out}


# ---- strides and formats


def _read_as(strides):
    """a, b or both read with other strides than they have."""

    def answer(v, which: str):
        read = {name: v[name] for name in "ab"}
        for name in which:
            read[name] = as_read(v[name], v[name].shape, strides(v[name]))
        return {"out": _product(read)}

    return answer


def _inputs(rounded):
    return lambda v: {"out": rounded(v["a"]).double() @ rounded(v["b"]).double()}


def _to(dtype):
    return lambda x: x.to(dtype)


EITHER = ("ab", "a", "b")
TF32 = partial(significant, bits=11, truncate=False), partial(significant, bits=11, truncate=True)

MISTAKES = (
    int32_offset("a row", "offs_m"),
    output_stride_ignored("N"),
    no_mask_on_store(
        "Something is written beyond the output: give the store a mask for rows and columns, `(offs_m[:, None] < M) &"
        " (offs_n[None, :] < N)`.",
        "out",
    ),
    OUT_NEVER_WRITTEN,
    Mistake(
        "accumulator_in_output_type",
        "Wrong where partial sums grow large in between: the accumulator is rounded to the output's type every turn. "
        "Accumulate in fp32 and convert once, at the store.",
        sign=lambda e: e.failed("large partial sums") and e.failed_only("large partial sums", *SIXTEEN_BITS),
    ),
    Mistake(
        "result_rounded",
        "The result was rounded on its way to `out`: convert the accumulator to the type of `out`, once.",
        answer=lambda v, dtype: {"out": _product(v).to(dtype or v["a"].dtype)},
        variants=(None, torch.float16, torch.bfloat16),
    ),
    Mistake(
        "tf32",
        "The error is what TF32 gives: `tl.dot` of fp32 keeps 10 fraction bits of its inputs by default, and so "
        "does a `tl.sum` of products that Triton turns into a dot. The exercise asks for `tl.dot` with "
        '`input_precision="ieee"`.',
        answer=lambda v, rounded: _inputs(rounded)(v),
        variants=TF32,
        rounds=TF32,
    ),
    Mistake(
        "inputs_in_fp16",
        "The inputs were rounded to fp16, which also overflows past 65504: multiply them as they are.",
        answer=_inputs(_to(torch.float16)),
        rounds=(_to(torch.float16),),
    ),
    Mistake(
        "inputs_in_bf16",
        "The inputs were rounded to bf16: multiply them as they are.",
        answer=_inputs(_to(torch.bfloat16)),
        rounds=(_to(torch.bfloat16),),
    ),
    Mistake(
        "accumulator_reset",
        "Only the last block of K counts: the accumulator is set anew in every turn. Start it before the loop, "
        "and add.",
        answer=_k_range(lambda k, b: (k - 1) // b * b, lambda k, b: k),
        variants=BLOCKS,
    ),
    Mistake(
        "first_k_block_only",
        "Only the first block of K counts: there must be a loop over K.",
        answer=_k_range(lambda k, b: 0, lambda k, b: b),
        variants=BLOCKS,
    ),
    Mistake(
        "k_tail_dropped",
        "The last partial block of K is left out: the loop makes `K // BLOCK_K` turns. "
        "It takes `triton.cdiv(K, BLOCK_K)` and a mask.",
        answer=_k_range(lambda k, b: 0, lambda k, b: k // b * b),
        variants=BLOCKS,
    ),
    Mistake(
        "last_k_block_dropped",
        "The last block of K is left out, whole or partial: the loop ends one turn early.",
        answer=_k_range(lambda k, b: 0, lambda k, b: (k - 1) // b * b),
        variants=BLOCKS,
    ),
    Mistake(
        "first_k_block_dropped",
        "The first block of K is left out: the pointers move before the first load.",
        answer=_k_range(lambda k, b: b, lambda k, b: k),
        variants=BLOCKS,
    ),
    Mistake(
        "pointers_not_advanced",
        "Every turn of the loop reads the same block of K: both pointers must move by BLOCK_K times their stride.",
        answer=_advanced(lambda turn, lane: lane),
        variants=tuple(product(BLOCKS, EITHER)),
    ),
    Mistake(
        "pointers_advanced_by_one",
        "The pointers move by one element of K a turn: they must move by BLOCK_K of them.",
        answer=_advanced(lambda turn, lane: turn + lane),
        variants=tuple(product(BLOCKS, EITHER)),
    ),
    Mistake(
        "k_tail_unmasked",
        "Wrong when K is not a multiple of BLOCK_K: lanes past K are read from what lies behind. Mask both loads "
        "along K with what is left, `offs_k < K - k`, and `other=0.0`.",
        answer=_k_tail_read,
        variants=tuple(product(BLOCKS, EITHER)),
    ),
    Mistake(
        "strides_swapped",
        "The two strides of a matrix are the wrong way round: the first belongs to its rows.",
        answer=_read_as(lambda t: (t.stride(1), t.stride(0))),
        variants=EITHER,
    ),
    Mistake(
        "strides_ignored",
        "Right for contiguous matrices only: use all four strides of `a` and `b`.",
        answer=_read_as(lambda t: (t.shape[1], 1)),
        variants=EITHER,
    ),
    Mistake(
        "column_stride_ignored",
        "Right only while the elements of a row are adjacent: a transposed matrix has another column stride.",
        answer=_read_as(lambda t: (t.stride(0), 1)),
        variants=EITHER,
    ),
    Mistake(
        "grouped_order_tail",
        "Whole tiles are missing: in grouped order the last group has fewer rows of tiles than the others. "
        "Divide by `min(tiles_m - first, GROUP)`, in both places.",
        answer=_grouped,
        variants=GROUPS,
    ),
    Mistake(
        "grid_rounds_down",
        "The last partial tiles are never computed: use `triton.cdiv` for the grid, along M and along N.",
        answer=_covered(_rounded_down),
        variants=tuple((bm, bn, which) for (bm, bn), which in product(TILES, ("mn", "m", "n"))),
    ),
    Mistake(
        "first_tile_only",
        "Only the first tile is computed: launch one program a tile.",
        answer=_covered(lambda m, n, tile, counts: (1, 1)),
        variants=TILES,
    ),
    Mistake(
        "first_tile_row_only",
        "Only the first row of tiles is computed.",
        answer=_covered(lambda m, n, tile, counts: (1, counts[1])),
        variants=TILES,
    ),
    Mistake(
        "program_ids_swapped",
        "Tiles are missing when M and N differ: the grid counts tiles of M first, the kernel tiles of N.",
        answer=_covered(lambda m, n, tile, counts: (counts[1], counts[0])),
        variants=TILES,
    ),
    Mistake(
        "program_id_not_scaled",
        "Tiles overlap: tile p begins at p * BLOCK, not at p.",
        answer=_overlapping,
        variants=TILES,
    ),
)

SIXTEEN_BITS = ("fp16", "fp16 in, fp32 out", "bf16", "large", "offsets past 2^31")
