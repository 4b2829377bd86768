"""How people write the forward pass wrongly. Blocks are the student's choice, so they come as variants."""

import math
from itertools import product

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import (
    OUT_NEVER_WRITTEN,
    grid_dimension,
    inputs_changed,
    int32_offset,
    no_mask_on_store,
)
from autograder.exercises.flash import wrong_forward_formulas as wrong
from autograder.exercises.flash.inputs import BEHIND, KEPT_SAYS, kept_by_shape
from autograder.exercises.flash.wrong_forward_formulas import BLOCKS, LOOSE, NAN

PAIRS = tuple(product(BLOCKS, BLOCKS))
OF_STRIDES = ("qkv", "q", "k", "v", "kv")
HALF_CASES = ("a long row", "huge scores", "a negative scale", "fp16", "bf16", "large", "bf16, head size 72")

MASKS = (
    Mistake(
        "causal_ignored",
        "`causal` changes nothing: hide the keys behind the diagonal.",
        answer=wrong.all_keys,
    ),
    Mistake(
        "causal_top_left",
        "Causal is right only for as many keys as queries: the diagonal ends at the last key. Query m sees key n where "
        "n <= m + n_k - n_q.",
        answer=wrong.top_left,
    ),
    Mistake(
        "causal_off_by_one",
        "The causal diagonal is off by one key: query m sees key n where n <= m + n_k - n_q, that key included.",
        answer=wrong.off_by_one,
        variants=(-1, 1),
    ),
    Mistake(
        "diagonal_of_lengths",
        "With k_lengths the causal diagonal has moved: it ends at the last of all n_k keys, whatever k_lengths says.",
        answer=wrong.diagonal_of_lengths,
    ),
    Mistake(
        "walk_ignores_difference",
        "Causal leaves out keys when n_k > n_q: the walk ends at (block + 1) * BLOCK_M, and should end at "
        "(block + 1) * BLOCK_M + n_k - n_q.",
        answer=wrong.walk_ignores_difference,
        variants=PAIRS,
    ),
    Mistake(
        "mask_begins_too_late",
        "Causal counts keys behind the diagonal: the tiles that need no mask end before key first + 1 + n_k - n_q, "
        "rounded down to whole tiles, where `first` is the first query of the block. Later tiles are only half seen.",
        answer=wrong.mask_begins_too_late,
        variants=tuple(product((False, True), BLOCKS, BLOCKS)),
    ),
    Mistake(
        "first_length_for_all",
        "All sequences have the number of keys of the first: load k_lengths at the number of the sequence.",
        answer=wrong.first_length,
    ),
    Mistake(
        "lengths_ignored",
        "k_lengths changes nothing: keys from k_lengths[b] on are padding, and belong to no softmax.",
        answer=wrong.lengths_ignored,
    ),
    Mistake(
        "keys_behind_multiplied",
        "NaN behind the length of a sequence reaches `out`: the weight of those keys is 0, and 0 * NaN is NaN. Mask "
        "the loads of k and v with offs_n < k_lengths[b], other=0.0; n_k alone is too much.",
        sign=lambda e: e.failed_only(BEHIND) and wrong.some_nan(e),
    ),
    Mistake(
        "walks_over_queries",
        "Right only for as many keys as queries: the loop ends at n_q and should end at n_k.",
        answer=wrong.keys_below(lambda n_q, n_k: n_q),
    ),
    Mistake(
        "walks_over_blocks_of_queries",
        "Right only for as many keys as queries: the loop makes as many turns as n_q has blocks.",
        answer=wrong.keys_below(lambda n_q, n_k, block: -(-n_q // block) * block),
        variants=BLOCKS,
    ),
    Mistake(
        "last_keys_dropped",
        "The last partial block of keys is left out: the walk goes to n_k, with a mask, and not to n_k // BLOCK_N "
        "whole blocks.",
        answer=wrong.keys_below(lambda n_q, n_k, block: n_k // block * block),
        variants=BLOCKS,
    ),
    Mistake(
        "first_keys_only",
        "Only the first block of keys counts: there must be a loop over the keys.",
        answer=wrong.keys_below(lambda n_q, n_k, block: block),
        variants=BLOCKS,
    ),
    Mistake(
        "padded_keys_counted",
        "Wrong when n_k is not a multiple of BLOCK_N: keys past the end were loaded as 0, and a score of 0 is not "
        "nothing. Set scores to -inf where offs_n >= n_k.",
        answer=wrong.padded_keys,
        variants=BLOCKS,
    ),
    Mistake(
        "stray_keys",
        "Wrong or NaN when n_k is not a multiple of BLOCK_N: keys past the end are read from what lies there. Mask the "
        "loads of k and v with offs_n < n_k, other=0.0; -inf in the scores alone leaves 0 * NaN.",
        answer=wrong.stray_keys,
        variants=tuple(product(BLOCKS, (False, True))),
    ),
)

SOFTMAX = (
    Mistake(
        "nan_without_keys",
        "NaN for queries that see no key: their maximum stays -inf, and -inf - (-inf), or 0 / 0, is NaN. Subtract 0 "
        "while the maximum is -inf, and divide by 1 where the sum is 0.",
        sign=wrong.nan_without_keys,
    ),
    Mistake(
        "lse_without_keys",
        "Right but for lse of queries that see no key: it should be -inf there, the logarithm of an empty sum.",
        answer=lambda v, lse: wrong.in_keyless_rows(v, None, torch.tensor(lse)),
        variants=(0.0, NAN, float("inf")),
    ),
    Mistake(
        "average_without_keys",
        "Queries that see no key give an average of v: hidden scores were set to a large negative number, so that all "
        "of them equal the maximum. Set them to -inf.",
        sign=wrong.average_without_keys,
    ),
    Mistake(
        "maximum_from_zero",
        "Wrong when every score of a row lies far below zero: the running maximum begins at 0. Begin with -inf.",
        answer=wrong.maximum_from_zero,
        variants=LOOSE,
    ),
    Mistake(
        "maximum_before_scale",
        "Wrong for a negative scale: scale * max(q kᵀ) is then the smallest score, and exp overflows. Scale first, "
        "then take the maximum.",
        answer=wrong.maximum_before_scale,
        variants=(*product(BLOCKS, (True, False)), None),
    ),
    Mistake(
        "scale_after_maximum",
        "Wrong when scores are large: the maximum was taken of q kᵀ and the scale came after it, so what is subtracted "
        "is not the maximum of the scaled scores. Scale first, then take the maximum.",
        answer=wrong.scale_after_maximum,
        variants=tuple(product(BLOCKS, (True, False), (True, False), (True, False))),
    ),
    Mistake(
        "no_maximum",
        "exp overflows or vanishes when scores are large: subtract the running maximum.",
        answer=wrong.no_maximum,
        variants=LOOSE,
    ),
    Mistake(
        "accumulator_not_rescaled",
        "`out` is wrong when a later block holds a larger score: before adding, multiply the accumulator with "
        "exp(old maximum - new maximum).",
        answer=lambda v, block: wrong.online(v, block, rescale_o=False),
        variants=BLOCKS,
    ),
    Mistake(
        "sum_not_rescaled",
        "The sum is wrong when a later block holds a larger score: before adding, multiply it with exp(old maximum - "
        "new maximum), as the accumulator.",
        answer=lambda v, block: wrong.online(v, block, rescale_l=False),
        variants=BLOCKS,
    ),
    Mistake(
        "nothing_rescaled",
        "Sum and accumulator are wrong when a later block holds a larger score: before adding, multiply both with "
        "exp(old maximum - new maximum).",
        answer=lambda v, block: wrong.online(v, block, rescale_o=False, rescale_l=False),
        variants=BLOCKS,
    ),
    Mistake(
        "not_divided",
        "`out` is the accumulator: divide it by the sum, once, after the walk.",
        answer=wrong.not_divided,
    ),
    Mistake(
        "each_block_by_itself",
        "Every block is a softmax of its own, and they are averaged: maximum and sum belong to the whole row.",
        answer=wrong.each_block_by_itself,
        variants=BLOCKS,
    ),
    Mistake(
        "scale_forgotten",
        "The scores are not scaled: multiply q kᵀ with `scale`.",
        answer=lambda v: wrong.scaled(v, 1.0),
    ),
    Mistake(
        "scale_hard_coded",
        "The scores are scaled with 1/8 or 1/sqrt(D): `scale` is an argument, and may be another number.",
        answer=lambda v, eighth: wrong.scaled(v, 0.125 if eighth else v["q"].shape[-1] ** -0.5),
        variants=(True, False),
    ),
    Mistake(
        "scale_twice",
        "The scores are scaled twice.",
        answer=lambda v: wrong.scaled(v, v["scale"] ** 2),
    ),
    Mistake(
        "base_two",
        "This is a softmax to the base 2: with `tl.exp2`, log2(e) belongs into the scale.",
        answer=wrong.in_base_two,
        variants=(0, 1),
    ),
    Mistake(
        "lse_without_maximum",
        "lse is the logarithm of the sum alone: add the maximum that was subtracted.",
        answer=wrong.lse_without_maximum,
    ),
    Mistake(
        "lse_without_scale",
        "`out` is right and lse is not: the maximum of q kᵀ was added, without the scale, to the logarithm of a sum of "
        "scaled exponentials. Scale first, then take the maximum.",
        answer=wrong.scale_in_the_exponent,
        variants=(1.0, math.log(2)),
    ),
    Mistake(
        "lse_in_base_two",
        "lse is a logarithm to the base 2: multiply with ln 2 = 0.693 at the end.",
        answer=wrong.lse_in_base_two,
    ),
    Mistake(
        "lse_in_two_bases",
        "lse mixes two bases: with log2(e) in the scale the maximum is in base 2, so it is (m + log2(l)) * ln 2.",
        answer=wrong.lse_in_two_bases,
        variants=(0, 1),
    ),
    Mistake(
        "lse_is_maximum",
        "lse is the maximum alone: add the logarithm of the sum.",
        answer=wrong.lse_is_maximum,
    ),
)

PLACES = (
    Mistake(
        "heads_interleaved",
        "Query heads read the wrong head of keys: head h reads h // (H / H_kv), not h % H_kv.",
        answer=wrong.heads_interleaved,
    ),
    Mistake(
        "heads_not_divided",
        "Query head h reads head h of k and v, which has fewer: read head h // (H / H_kv).",
        answer=wrong.heads_not_divided,
    ),
    Mistake(
        "first_head_for_all",
        "All query heads read the first head of k and v.",
        answer=wrong.first_kv_head,
    ),
    Mistake(
        "tile_not_moved",
        "Every tile takes the keys or the values of the first one: move both on by BLOCK_N rows in every turn.",
        answer=wrong.tile_not_moved,
        variants=tuple(product(("v", "k", "kv"), BLOCKS)),
    ),
    Mistake(
        "step_without_stride",
        "The first tile is right and later ones are not, unless rows follow each other: the next tile of k lies "
        "BLOCK_N * stride_k_n further, and that of v BLOCK_N * stride_v_n, not BLOCK_N * D.",
        answer=wrong.step_without_stride,
        variants=tuple(product(("kv", "k", "v"), BLOCKS)),
    ),
    Mistake(
        "columns_unmasked",
        "Wrong when D is no power of two: the block of columns is wider than a row, and what follows enters the "
        "products. Mask the loads with offs_d < D, other=0.0.",
        answer=wrong.columns_unmasked,
        variants=("qk", "k"),
    ),
    Mistake(
        "v_read_like_k",
        "v is read with the strides of k: each tensor has strides of its own.",
        answer=wrong.strides_of,
        variants=("vk", "kv", "kq", "qk"),
    ),
    Mistake(
        "column_stride_ignored",
        "Right only while the elements of a row are adjacent: the last stride need not be 1.",
        answer=wrong.columns_adjacent,
    ),
    Mistake(
        "strides_ignored",
        "Right for contiguous tensors only: use all four strides of q, k and v.",
        answer=wrong.strides_ignored,
        variants=OF_STRIDES,
    ),
    Mistake(
        "last_queries_missing",
        "The last partial block of queries is never computed: the grid has triton.cdiv(n_q, BLOCK_M) blocks.",
        answer=lambda v, block: wrong.rows_written(v, slice(0, v["q"].shape[2] // block * block)),
        variants=BLOCKS,
    ),
    Mistake(
        "first_queries_only",
        "Only the first block of queries is computed: launch one program a block.",
        answer=lambda v, block: wrong.rows_written(v, slice(0, block)),
        variants=BLOCKS,
    ),
    Mistake(
        "block_not_scaled",
        "Programs overlap: block i begins at query i * BLOCK_M, not at i.",
        answer=lambda v, block: wrong.rows_written(v, slice(0, -(-v["q"].shape[2] // block) + block - 1)),
        variants=BLOCKS,
    ),
    Mistake(
        "first_head_only",
        "Only the first head of each sequence is computed: launch programs for all B * H heads.",
        answer=lambda v: wrong.heads_written(v, slice(None), slice(0, 1)),
    ),
    Mistake(
        "first_sequence_only",
        "Only the first sequence is computed: launch programs for all B * H heads.",
        answer=lambda v: wrong.heads_written(v, slice(0, 1), slice(None)),
    ),
)

SIGNS = (
    Mistake("kept_from_first_call", KEPT_SAYS, sign=kept_by_shape),
    int32_offset("a sequence", "batch"),
    grid_dimension("heads", "B * H", "more than 65535 heads"),
    Mistake(
        "output_strides_ignored",
        "`out` is taken to be contiguous, or to have the strides of q: use its own.",
        sign=lambda e: (
            e.failed("strided output") and e.failed_only("strided output", "strided inputs", "columns apart")
        ),
    ),
    no_mask_on_store(
        "Something is written beyond `out` or `lse`: mask the stores with offs_m < n_q, and that of `out` with offs_d"
        " < D as well. If they are, look at how tile, head and batch are taken from the number of the program.",
        "out",
        "lse",
    ),
    inputs_changed(*"qkv", says="q, k or v was changed: scale what was loaded, and leave what lies in memory."),
    OUT_NEVER_WRITTEN,
    Mistake(
        "lse_never_written",
        "`lse` was not written: the backward pass needs it.",
        sign=lambda e: e.all_failing_unwritten("lse") and not any(map(wrong.out_is_wrong(e), e.failing)),
    ),
    Mistake(
        "half_accumulator",
        "Inf or NaN on a long row of 2-byte numbers: something that is summed is kept in fp16, which ends at 65504. "
        "Keep maximum, sum and accumulator in fp32, and convert once, at the store.",
        sign=lambda e: e.failed("a long row") and e.failed_only(*HALF_CASES) and not e.raised_any(),
    ),
)

PRECISION = (
    Mistake(
        "tf32",
        "The error is what TF32 gives: `tl.dot` of fp32 keeps 10 fraction bits of its inputs unless it is told "
        '`input_precision="ieee"`.',
        answer=wrong.in_tf32,
        variants=("both", "scores", "values"),
    ),
    Mistake(
        "scaled_queries_rounded",
        "q was multiplied with the scale and converted back to 2 bytes, so the scores lose digits, the more the larger "
        "they are. Scale the scores, in fp32.",
        answer=wrong.scaled_queries_rounded,
        variants=(1.0, wrong.LOG2_E),
    ),
    Mistake(
        "half_precision",
        "fp32 inputs give the error of 2-byte numbers: something was rounded to fp16 or bf16 on the way. Convert the "
        "weights to the type of v, and nothing else.",
        sign=wrong.rounded_on_the_way,
    ),
)

MISTAKES = (*SIGNS, *SOFTMAX, *MASKS, *PLACES, *PRECISION)
