"""How people write the backward pass wrongly. Blocks are the student's choice, so they come as variants."""

from itertools import product

from autograder.exercise import Mistake
from autograder.exercises.everywhere import (
    grid_dimension,
    inputs_changed,
    int32_offset,
    never_written,
    no_mask_on_store,
)
from autograder.exercises.flash import wrong_backward_formulas as wrong
from autograder.exercises.flash.inputs import BEHIND, KEPT_SAYS, kept_by_shape
from autograder.exercises.flash.wrong_backward_formulas import PASSES, WHICH
from autograder.exercises.flash.wrong_forward_formulas import BLOCKS, rounded_on_the_way, some_nan
from course_lib.device import TIER

IN_ONE = tuple(product(("dq", "dkdv"), BLOCKS))
KEYLESS = ("causal, more queries than keys", "a sequence without keys")
HALF_CASES = ("large partial sums", "fp16", "bf16", "large", "bf16, head size 72", "more than 65535 heads")

SIGNS = (
    Mistake("kept_from_first_call", KEPT_SAYS, sign=kept_by_shape),
    Mistake(
        "keys_past_the_end",
        "Keys behind the last count: their k is 0, so their score is 0 and p is exp(-L). That vanishes in the product "
        "with k as long as p is finite. Let p be 0 where offs_n >= n_k, `tl.where(see, tl.exp(s - l), 0.0)`.",
        sign=lambda e: e.failed_only("very negative scores") and some_nan(e),
    ),
    int32_offset("a sequence", "batch"),
    grid_dimension("heads", "B * H", "more than 65535 heads"),
    Mistake(
        "output_strides_ignored",
        "dq, dk or dv is taken to be contiguous, or to have the strides of another tensor: use its own.",
        sign=lambda e: (
            e.failed("strided outputs") and e.failed_only("strided outputs", "strided inputs", "columns apart")
        ),
    ),
    no_mask_on_store(
        "Something is written beyond dq, dk or dv: mask their stores, rows (offs_m < n_q, offs_n < n_k) and columns "
        "(offs_d < D).",
        "dq",
        "dk",
        "dv",
    ),
    inputs_changed("q", "k", "v", "out", "lse", "dout"),
    Mistake(
        "dq_not_zeroed",
        "dq is NaN throughout, dk and dv are right: it was added to without having been zeroed, or never stored. The "
        "memory of an output holds anything before the call. Keep the sum in registers and store it once.",
        sign=lambda e: wrong.all_nan(e, "dq") and wrong.right_in_failing(e, "dk") and wrong.right_in_failing(e, "dv"),
    ),
    never_written(
        "An output was not written at all. The function fills the dq, dk and dv it is given; what it returns is not "
        "looked at.",
        "dq",
        "dk",
        "dv",
    ),
    Mistake(
        "nan_without_keys",
        "NaN where a query sees no key: its L is -inf, and s - L is then -inf - (-inf) or +inf. Let p be 0 wherever "
        "the mask hides a key, `tl.where(see, tl.exp(s - l), 0.0)`, and not the score -inf.",
        sign=lambda e: e.failed_only(*KEYLESS) and some_nan(e),
    ),
    Mistake(
        "half_accumulator",
        "Inf or NaN where partial sums are large: dq, dk or dv is summed in fp16, which ends at 65504. Accumulate in "
        "fp32 and convert once, at the store.",
        sign=lambda e: e.failed("large partial sums") and e.failed_only(*HALF_CASES) and not e.raised_any(),
    ),
)

DS = (
    Mistake(
        "nothing_added",
        "A gradient is 0 throughout: it was set to zero, and nothing was added. If it waits for you, write it next; if "
        "not, look at what its walk adds to the accumulator.",
        answer=wrong.zeros,
        variants=(("dk", "dv"), ("dq",), ("dk",), ("dv",), ("dq", "dk"), ("dq", "dk", "dv")),
    ),
    Mistake(
        "delta_missing",
        "dv is right, dq, dk or both are not: delta is missing. ds = p (dp - delta), with delta = sum over d of out "
        "dout, in both passes.",
        answer=wrong.without_delta,
        variants=PASSES,
    ),
    Mistake(
        "delta_of_something_else",
        "delta is not what it should be: the sum over d of out times dout, element by element, one number a query.",
        answer=wrong.other_delta,
        variants=tuple(wrong.DELTAS),
    ),
    Mistake(
        "delta_outside",
        "delta is subtracted after the product: ds = p (dp - delta), and not p dp - delta.",
        answer=wrong.delta_outside,
        variants=(True, False),
    ),
    Mistake(
        "ds_without_p",
        "ds is dp - delta: the probabilities are missing, ds = p (dp - delta).",
        answer=wrong.ds_without_p,
    ),
    Mistake(
        "scale_missing",
        "dq, dk or both lack the scale: s = scale q kᵀ, so both gradients are multiplied with it once.",
        answer=wrong.by_factor(lambda v: 1 / v["scale"]),
        variants=WHICH,
    ),
    Mistake(
        "scale_twice",
        "dq, dk or both are multiplied with the scale twice.",
        answer=wrong.by_factor(lambda v: v["scale"]),
        variants=WHICH,
    ),
    Mistake(
        "off_by_ln_2",
        "dq, dk or both are off by ln 2 or log2(e): the scale with log2(e) in it is for the exponent alone. Multiply "
        "the gradients with `scale` itself.",
        answer=wrong.by_factor(lambda v, factor: factor),
        variants=tuple(product(WHICH, (wrong.LOG2_E, 1 / wrong.LOG2_E))),
    ),
    Mistake(
        "scale_hard_coded",
        "The probabilities are made with 1/8 or 1/sqrt(D), and L with `scale`: use the argument.",
        answer=wrong.other_scale,
        variants=tuple(product((True, False), (True, False))),
    ),
    Mistake(
        "lse_ignored",
        "The probabilities are not divided by their sum: p = exp(s - lse).",
        answer=wrong.lse_ignored,
    ),
    Mistake(
        "lse_in_another_base",
        "The base of L is mixed up: lse is a natural logarithm. With exp2 it is exp2((s - lse) * log2(e)).",
        answer=wrong.lse_in_another_base,
        variants=wrong.BASES,
    ),
    Mistake(
        "dv_from_ds",
        "dq and dk are right, dv is not: it is pᵀ dout, not made from dp or ds.",
        answer=wrong.dv_from,
        variants=("ds", "dp"),
    ),
    Mistake(
        "dv_scaled",
        "dq and dk are right, dv is not: it is pᵀ dout without the scale, which belongs to dq and dk.",
        answer=wrong.dv_scaled,
    ),
    Mistake(
        "dk_and_dv_swapped",
        "dk and dv are in each other's place.",
        answer=wrong.swapped,
    ),
    Mistake(
        "dp_from_k",
        "dv is right, dq and dk are not: dp = dout vᵀ, with v and not k.",
        answer=wrong.k_for_v,
    ),
    Mistake(
        "dk_from_dp",
        "dq and dv are right, dk is not: dk = scale dsᵀ q, with ds = p (dp - delta) and not dp.",
        answer=wrong.dk_from_dp,
    ),
    Mistake(
        "dq_from_v",
        "dk and dv are right, dq is not: dq = scale ds k, with k and not v.",
        answer=wrong.dq_from_v,
    ),
)

MASKS = (
    Mistake(
        "causal_ignored",
        "The causal mask is missing, in the pass of dq, in that of dk and dv, or in both: p is 0 where a query does "
        "not see a key.",
        answer=wrong.all_keys,
        variants=PASSES,
    ),
    Mistake(
        "causal_top_left",
        "Causal is right only for as many keys as queries: query m sees key n where n <= m + n_k - n_q, in both "
        "passes.",
        answer=wrong.top_left,
        variants=PASSES,
    ),
    Mistake(
        "causal_off_by_one",
        "The causal diagonal is off by one key: query m sees key n where n <= m + n_k - n_q, that key included.",
        answer=lambda v, variant: (wrong.later if variant[1] else wrong.earlier)(v, variant[0]),
        variants=tuple(product(PASSES, (False, True))),
    ),
    Mistake(
        "causal_other_way_round",
        "The causal mask of a pass is the other way round: it keeps what lies behind the diagonal. With keys down and "
        "queries across it is still: number of the key <= number of the query + n_k - n_q.",
        answer=wrong.other_way_round,
        variants=tuple(product(("dkdv", "dq"), BLOCKS, BLOCKS)) + tuple(product(("dkdv", "dq"), (2**20,), (2**20,))),
    ),
    Mistake(
        "diagonal_of_lengths",
        "With k_lengths the causal diagonal has moved: it ends at the last of all n_k keys, whatever k_lengths says.",
        answer=wrong.diagonal_of_lengths,
        variants=PASSES,
    ),
    Mistake(
        "walk_ignores_difference",
        "Causal leaves out pairs when n_k > n_q: the walk over queries begins at the block of key - (n_k - n_q), that "
        "over keys ends at (block + 1) * BLOCK_M + n_k - n_q.",
        answer=wrong.walk_ignores_difference,
        variants=tuple(product(("dkdv", "dq"), BLOCKS, BLOCKS, (0, -1))),
    ),
    Mistake(
        "first_length_for_all",
        "All sequences have the number of keys of the first: load k_lengths at the number of the sequence.",
        answer=wrong.first_length,
        variants=PASSES,
    ),
    Mistake(
        "lengths_ignored",
        "k_lengths changes nothing, in one pass or in both: p is 0 for keys from k_lengths[b] on, and so are their dk "
        "and dv.",
        answer=wrong.lengths_ignored,
        variants=PASSES,
    ),
    Mistake(
        "keys_behind_multiplied",
        "NaN behind the length of a sequence reaches dq, dk or dv: p is 0 there, and 0 * NaN is NaN. Mask the loads of "
        "k and v with offs_n < k_lengths[b], other=0.0, in both passes; their gradients are stored all the same, as 0.",
        sign=lambda e: e.failed_only(BEHIND) and some_nan(e),
    ),
    Mistake(
        "hidden_keys_unwritten",
        "dk and dv of keys past k_lengths[b] were left as they were: their gradient is 0, and some program has to "
        "store it.",
        answer=wrong.hidden_keys_unwritten,
        variants=(1, *BLOCKS),
    ),
    Mistake(
        "tail_dropped",
        "The last partial block of the walk is left out: over keys for dq, over queries for dk and dv. Walk to n_k and "
        "n_q, with masks.",
        answer=wrong.tail_dropped,
        variants=IN_ONE,
    ),
    Mistake(
        "last_block_only",
        "Only the last block of the walk counts: the accumulator is set anew in every turn, or the result is stored "
        "over and over.",
        answer=wrong.last_block_only,
        variants=IN_ONE,
    ),
    Mistake(
        "first_block_only",
        "Only the first block of the walk counts: dq needs all keys, dk and dv need all queries.",
        answer=wrong.first_block_only,
        variants=IN_ONE,
    ),
)

PLACES = (
    Mistake(
        "group_not_summed",
        "dk and dv hold the share of one query head: sum over all heads that share these keys.",
        answer=wrong.one_of_group,
        variants=(-1, 0),
    ),
    Mistake(
        "heads_interleaved",
        "Query heads go with the wrong head of keys: head h shares h // (H / H_kv), not h % H_kv. Look at both passes.",
        answer=wrong.heads_interleaved,
        variants=PASSES,
    ),
    Mistake(
        "stray_queries",
        "dk and dv are wrong when n_q is not a multiple of BLOCK_M: queries past the end were read from what lies "
        "there. Mask the loads of q and dout with offs_m < n_q, other=0.0.",
        answer=wrong.stray_queries,
        variants=BLOCKS,
    ),
    Mistake(
        "queries_past_the_end",
        "dq is right, dk and dv are wrong wherever n_q is not a multiple of BLOCK_M: rows behind the last query count. "
        "Give them a shift of +inf, so that p is 0, and mask the loads of q and dout, other=0.0: 0 * NaN and 0 * inf "
        "are NaN.",
        sign=wrong.queries_past_the_end,
    ),
    Mistake(
        "stray_keys",
        "dq is wrong when n_k is not a multiple of BLOCK_N: keys past the end were read from what lies there. Mask the "
        "loads of k and v with offs_n < n_k, other=0.0.",
        answer=wrong.stray_keys,
        variants=tuple(product(BLOCKS, (True, False))),
    ),
    Mistake(
        "columns_unmasked",
        "Wrong when D is no power of two: the block of columns is wider than a row, and what follows enters the "
        "products. Mask the loads with offs_d < D, other=0.0.",
        answer=wrong.columns_unmasked,
        variants=(("q", "k", "v", "dout"), ("k", "v"), ("q", "dout")),
    ),
    Mistake(
        "dout_strides_ignored",
        "Wrong when dout is not contiguous: it is what autograd hands over, an expanded or transposed view as often as "
        "not. Use its own strides, for delta too.",
        answer=wrong.dout_strides_ignored,
        variants=(
            *(("contiguous", *part) for part in ((), ("delta",), ("products",))),
            *((like, *part) for like, part in product(("q", "out"), ((), ("delta",), ("products",)))),
        ),
    ),
    Mistake(
        "step_without_stride",
        "The first tile of the walk is right and later ones are not, unless rows follow each other: the next tile lies "
        "a block times the stride of a row further, not a block times D.",
        answer=wrong.step_without_stride,
        variants=IN_ONE,
    ),
    Mistake(
        "column_stride_ignored",
        "Right only while the elements of a row are adjacent: the last stride need not be 1.",
        answer=wrong.column_stride_ignored,
        variants=(("q", "k", "v", "dout", "out"), ("q", "k", "v"), ("dout", "out"), ("dout",)),
    ),
    Mistake(
        "v_read_like_k",
        "v is read with the strides of k: each tensor has strides of its own.",
        answer=wrong.v_read_like_k,
    ),
    Mistake(
        "strides_ignored",
        "Right for contiguous inputs only: use all strides of q, k, v and out.",
        answer=wrong.strides_ignored,
        variants=("qkvo", "qkv", "kv", "q", "o"),
    ),
    Mistake(
        "grid_of_the_other",
        "Blocks are missing when n_q and n_k differ: dk and dv need one program a block of keys, dq one a block of "
        "queries.",
        answer=wrong.grid_of_the_other,
        variants=tuple(product(("dkdv", "dq"), BLOCKS)),
    ),
    Mistake(
        "last_keys_unwritten",
        "dk and dv of the last partial block of keys are never computed: the grid has triton.cdiv(n_k, BLOCK_N) "
        "blocks.",
        answer=lambda v, block: wrong.unwritten(v, ("dk", "dv"), slice(0, v["k"].shape[2] // block * block)),
        variants=BLOCKS,
    ),
    Mistake(
        "last_queries_unwritten",
        "dq of the last partial block of queries is never computed: the grid has triton.cdiv(n_q, BLOCK_M) blocks.",
        answer=lambda v, block: wrong.unwritten(v, ("dq",), slice(0, v["q"].shape[2] // block * block)),
        variants=BLOCKS,
    ),
)

LAST = (
    Mistake(
        "tf32",
        "The error is what TF32 gives: `tl.dot` of fp32 keeps 10 fraction bits of its inputs unless it is told "
        '`input_precision="ieee"`.',
        answer=wrong.in_tf32,
    ),
    Mistake(
        "half_precision",
        "fp32 inputs give the error of 2-byte numbers: something was rounded to fp16 or bf16, or to TF32, on the way. "
        "Convert p and ds to the type of the inputs, and nothing else.",
        sign=rounded_on_the_way,
    ),
    Mistake(
        "race_on_dq",
        "dk and dv are right, dq is not, and another run gives another dq: several programs add to the same rows. Let "
        "one program own a block of queries, in a pass of its own.",
        sign=lambda e: (
            TIER == "gpu"
            and not e.failed("one query")
            and wrong.right_in_failing(e, "dk")
            and wrong.right_in_failing(e, "dv")
        ),
    ),
)

MISTAKES = (*SIGNS, *DS, *MASKS, *PLACES, *LAST)
