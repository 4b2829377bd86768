"""How people turn queries and keys wrongly. Blocks of rows are the student's choice, so they come as variants."""

from functools import partial
from itertools import product

from autograder.exercise import Mistake
from autograder.exercises.everywhere import grid_dimension, int32_offset
from autograder.exercises.flash.wrong_forward_formulas import rounded_on_the_way
from autograder.exercises.rope import wrong_rotation_formulas as wrong
from autograder.exercises.rope.rotation import LAYOUTS, turned
from autograder.exercises.rope.wrong_rotation_formulas import BLOCKS, TWO_BYTES, both


def _mixed(mix):
    return both(lambda v, x: turned(v, x, mix=mix))


def _q_and_k(of_q, of_k):
    return lambda v: {"q": of_q(v, v["q_before"]), "k": of_k(v, v["k_before"])}


def _unchanged(v, x):
    return x.double()


def _group(v) -> int:
    return v["q"].shape[1] // v["k"].shape[1]


_other_layout = both(wrong.other_layout)

PAIRS = (
    Mistake(
        "layout_ignored",
        "`layout` changes nothing, the pairs are always the same: for halves (x[j], x[j + P]), for interleaved "
        "(x[2 j], x[2 j + 1]).",
        sign=lambda e: wrong.layout_ignored(e, _other_layout),
    ),
    Mistake(
        "layouts_swapped",
        "The two layouts are exchanged: for halves a pair is (x[j], x[j + P]), for interleaved (x[2 j], x[2 j + 1]).",
        answer=_other_layout,
    ),
    Mistake(
        "half_overwritten",
        "One half is right, the other was made from it: the first store has overwritten what the second result needs. "
        "Load both elements of a pair before you store either.",
        answer=lambda v, second: _mixed(wrong.overwritten(second))(v),
        variants=(False, True),
    ),
    *wrong.wrong_signs(_mixed),
    Mistake(
        "cosine_alone",
        "The pairs are multiplied with the cosine only: each result needs both elements of its pair.",
        answer=_mixed(wrong.cosine_alone),
    ),
    Mistake(
        "tables_swapped",
        "cos and sin are exchanged.",
        answer=both(wrong.swapped_tables),
    ),
    Mistake(
        "results_swapped",
        "Each of the two results lies where the other belongs.",
        answer=_mixed(wrong.exchanged),
    ),
    Mistake(
        "put_back_otherwise",
        "One layout is right, and the results of the other lie in wrong places: what was taken as halves goes back as "
        "halves, what was taken as neighbours as neighbours.",
        answer=both(wrong.put_back_otherwise),
        variants=LAYOUTS,
    ),
    Mistake(
        "tables_of_the_other_layout",
        "The two elements of a pair get different angles: column j of the tables belongs to pair j. The index of "
        "element d is d % P for halves and d // 2 for interleaved.",
        answer=both(wrong.full_width),
        variants=(None, *LAYOUTS),
    ),
    Mistake(
        "partner_of_whole_head",
        "Wrong only where a part of the head is turned: with halves the partner of x[j] is x[j + P], P the columns of "
        "the tables, and not x[j + D / 2].",
        answer=both(wrong.whole_head_partner),
    ),
    Mistake(
        "whole_head_turned",
        "The whole head is turned, with angles from beyond a row of the tables: the tables have P columns, and only "
        "the first 2 P elements belong to pairs.",
        answer=both(wrong.whole_head),
        variants=(0, 1),
    ),
    Mistake(
        "table_rows_of_whole_head",
        "Wrong only where a part of the head is turned: rows of the tables are P apart, not D / 2.",
        answer=both(wrong.rows_of_whole_head),
    ),
    Mistake(
        "rest_lost",
        "The elements that are not turned were changed: leave them alone, as you found them.",
        answer=both(wrong.rest_lost),
        variants=(0.0, float("nan")),
    ),
)

ANGLES = (
    Mistake(
        "offset_without_ids",
        "With position ids the offset is not added: row s of sequence b is at offset + positions[b, s].",
        answer=both(wrong.offset_without_ids),
    ),
    Mistake(
        "offset_ignored",
        "`offset` changes nothing: row s is at position offset + s.",
        answer=both(wrong.without_offset),
    ),
    Mistake(
        "ids_ignored",
        "`positions` changes nothing: where it is not None, row s of sequence b is at offset + positions[b, s].",
        answer=both(wrong.without_ids),
    ),
    Mistake(
        "ids_of_the_first_sequence",
        "Every sequence has the positions of the first: load them from the row of the sequence.",
        answer=both(wrong.ids_of_the_first),
    ),
    Mistake(
        "strides_of_ids_ignored",
        "`positions` is taken to be contiguous: use both of its strides.",
        sign=lambda e: e.failed_only("strided position ids"),
    ),
    Mistake(
        "tables_by_block",
        "cos and sin are those of the block, not of the row: the row of the table is the position, "
        "block * BLOCK + the row inside it, plus the offset.",
        answer=both(wrong.by_block),
        variants=tuple(product((True, False), BLOCKS)),
    ),
    Mistake(
        "rows_run_on",
        "Positions are counted over the whole batch: each sequence begins at the offset. From a flat row number, "
        "`row % S` is the row of its sequence.",
        answer=both(wrong.running_on),
        variants=(False, True),
    ),
    Mistake(
        "tables_by_head",
        "The angle depends on the head and not on the row: the index of the head was used for the position.",
        answer=both(wrong.by_head),
    ),
)


def copies(e) -> bool:
    return e.raised("they are to be turned where they lie")


PLACES = (
    Mistake(
        "copy_turned",
        "Right for contiguous tensors, unchanged for others: `.contiguous()` or `.reshape` made a copy, and that copy "
        "was turned. Give the kernel the tensor itself and its strides.",
        sign=lambda e: e.passed("whole blocks") and copies(e) and any(t.outcome.error is None for t in e.failing),
    ),
    Mistake(
        "element_stride_ignored",
        "Right only while the elements of a row are adjacent: the last stride need not be 1.",
        sign=lambda e: e.failed_only("elements apart"),
    ),
    Mistake(
        "strides_of_q_for_k",
        "k is addressed with the strides of q: each tensor has strides of its own.",
        answer=wrong.strides_of_q,
    ),
    Mistake(
        "strides_ignored",
        "Right for one layout in memory only: use all four strides of q and of k.",
        answer=wrong.strides_ignored,
        variants=(False, True),
    ),
    Mistake(
        "k_over_the_heads_of_q",
        "k is walked over as many heads as q has: with fewer heads of keys, rows of the next sequence are turned "
        "again, and memory behind k.",
        answer=wrong.k_over_heads_of_q,
    ),
    Mistake(
        "k_once_a_query_head",
        "Heads of k are turned several times: once for every head of q that shares them.",
        answer=lambda v: _q_and_k(turned, partial(wrong.times, n=_group(v)))(v),
    ),
    Mistake(
        "q_over_the_heads_of_k",
        "Only as many heads of q are turned as k has.",
        answer=lambda v: _q_and_k(partial(wrong.only, heads=slice(0, v["k"].shape[1])), turned)(v),
    ),
    Mistake(
        "k_not_turned",
        "k was not turned.",
        answer=_q_and_k(turned, _unchanged),
    ),
    Mistake(
        "q_not_turned",
        "q was not turned.",
        answer=_q_and_k(_unchanged, turned),
    ),
    Mistake(
        "positions_for_rows",
        "The position was used for the place in memory too, so that the offset moves the rows: it belongs "
        "to the tables, and the row to memory.",
        answer=both(wrong.positions_for_rows),
    ),
    Mistake(
        "nothing_turned",
        "q and k are as they were: the results belong into q and k themselves. What the function returns is not looked "
        "at.",
        answer=both(_unchanged),
    ),
    Mistake(
        "turned_twice",
        "Everything was turned twice.",
        answer=both(partial(wrong.times, n=2)),
    ),
    Mistake(
        "last_rows_missing",
        "The last partial block of rows is not turned: the grid has triton.cdiv(S, BLOCK) blocks.",
        answer=both(lambda v, x, block: wrong.only(v, x, length=slice(0, x.shape[2] // block * block))),
        variants=BLOCKS,
    ),
    Mistake(
        "first_rows_only",
        "Only the first block of rows is turned: launch one program a block.",
        answer=both(lambda v, x, block: wrong.only(v, x, length=slice(0, block))),
        variants=(1, *BLOCKS),
    ),
    Mistake(
        "block_not_scaled",
        "Blocks overlap, so rows are turned several times: block i begins at row i * BLOCK, not at i.",
        answer=both(wrong.unscaled_blocks),
        variants=BLOCKS,
    ),
    Mistake(
        "first_head_only",
        "Only the first head is turned: launch programs for all heads.",
        answer=both(lambda v, x: wrong.only(v, x, heads=slice(0, 1))),
    ),
    Mistake(
        "first_sequence_only",
        "Only the first sequence is turned: launch programs for all sequences.",
        answer=both(lambda v, x: wrong.only(v, x, batches=slice(0, 1))),
    ),
    Mistake(
        "sequences_on_the_first",
        "The first sequence is turned once for every sequence, and the others are not: where a sequence begins in "
        "memory is batch * stride.",
        answer=both(wrong.sequences_on_the_first),
    ),
    Mistake(
        "heads_unmasked",
        "Heads past the last one are turned too, and they belong to the next sequence or to nobody: mask loads and "
        "stores with offs_h < heads.",
        answer=wrong.past_the_last_head,
        variants=(2, 4, 8, 16, 32),
    ),
    Mistake(
        "no_mask",
        "Rows past the last one are turned too, and they belong to the next head or to nobody: mask loads and stores "
        "with offs_s < S.",
        answer=wrong.past_the_end,
        variants=BLOCKS,
    ),
)


def _tables_changed(e) -> bool:
    """Tables were changed in most cases that have them, and not by stores beyond q and k, which may hit anything."""
    if any(map(e.wrote_outside, "qk")):
        return False
    ran = [t for t in e.tried if t.outcome.error is None]
    changed = [[n in t.outcome.changed for t in ran if t.args[n] is not None] for n in ("cos", "sin", "positions")]
    return any(2 * sum(cases) > len(cases) for cases in changed)


SIGNS = (
    int32_offset("a sequence", "batch"),
    grid_dimension("programs", "everything", "more than 65535 rows", "more than 65535 sequences"),
    Mistake(
        "inputs_changed",
        "cos, sin or positions was changed: the tables are for everyone.",
        sign=_tables_changed,
    ),
    Mistake(
        "turned_in_copies",
        "q or k is copied, the copy is turned, and copied back: six passes over memory in place of two. Give the "
        "kernel the tensors as they lie, with all four strides.",
        sign=lambda e: copies(e) and all(t.outcome.error for t in e.failing),
    ),
    Mistake(
        "pairs_unmasked",
        "Wrong when P is no power of two: the block of columns is then longer than P. Mask loads and stores with "
        "offs_p < P; and partners, and rows of the tables, are P apart, not the length of the block.",
        sign=wrong.pairs_unmasked,
    ),
    Mistake(
        "half_precision",
        "fp32 inputs give the error of 2-byte numbers: something was rounded to fp16 or bf16 on the way. Load, convert "
        "to fp32, and convert back at the store.",
        sign=rounded_on_the_way,
    ),
)

TABLES = (
    Mistake(
        "tables_in_two_bytes",
        "The error is that of cosines and sines with 2 bytes: keep the tables in fp32.",
        answer=both(wrong.rounded_tables),
        variants=TWO_BYTES,
    ),
)


def _in_any_order(name: str, sign) -> Mistake:
    """The same mistake, known by a sign: on a GPU programs that turn the same rows race, so no formula fits."""
    known = next(m for m in PLACES if m.name == name)
    return Mistake(name, known.says, sign=sign)


RACES = (
    _in_any_order("k_over_the_heads_of_q", wrong.k_past_its_end),
    _in_any_order("heads_unmasked", lambda e: e.wrote_outside("q") and e.passed("one row") and e.passed("halves")),
    _in_any_order("no_mask", lambda e: e.wrote_outside("q") and e.failed("one row")),
    _in_any_order("block_not_scaled", wrong.blocks_overlap),
    _in_any_order("k_once_a_query_head", wrong.k_wrong_where_shared),
    _in_any_order("sequences_on_the_first", wrong.first_sequence_alone),
)
MISTAKES = (*SIGNS[:5], *TABLES, *PAIRS, *ANGLES, *PLACES, *SIGNS[5:], *RACES)
