"""How people go wrong with attention of one projection: its layout, its lengths, its sums, its memory."""

from functools import partial
from itertools import permutations, product

import torch

from autograder.exercise import Mistake
from autograder.exercises.capstone.packed import apart, by_heads, passes, together
from autograder.exercises.everywhere import NOT_DIFFERENTIABLE, grid_dimension, inputs_changed, number_of_gradients
from autograder.exercises.flash import wrong_backward_formulas as back
from autograder.exercises.flash import wrong_forward_formulas as forth
from autograder.exercises.flash.attention import attend, delta_of, gradients, lengths, visible
from autograder.exercises.flash.wrong_backward_formulas import PASSES, WHICH
from autograder.exercises.flash.wrong_forward_formulas import BLOCKS
from autograder.exercises.strides import as_read, contiguous
from course_lib.numerics import error

NAN = float("nan")
WHERE = ("both", "forward", "backward")
OF_OFFSETS = ("large scores", "very negative scores")
OF_LAST_STRIDES = ("memory in passing", "a gradient that is transposed", "the gradient of a sum")


def _with(**changes):
    return lambda v: passes(v, **changes)


def _back(formula):
    """Wrong gradients of attention, (its arguments[, variant]) -> dq, dk and dv."""
    return lambda v, *variant: passes(v, back=lambda t: formula(t, *variant))


def _forth(formula):
    """A wrong forward pass of attention; backward makes p from its L, and delta from its o."""
    return lambda v, *variant: passes(v, forth=lambda t: attend(t) | formula(t, *variant), back=_of_what_is_kept)


def _of_what_is_kept(t) -> dict:
    return gradients(t, p=back.from_lse(t, visible(t)), delta=delta_of(t))


def _in_places(where: str, **changes) -> dict:
    """The changes of `forward` and `backward` that are made in this place."""
    return {name: change for at, change in changes.items() if where in ("both", at) for name, change in change.items()}


# ---- layout


def _rows_of_w(v, variant):
    order, where = variant
    split, joined = {"split": partial(apart, order=order)}, {"joined": partial(together, order=order)}
    return passes(v, **_in_places(where, forward=split, backward=joined))


def _exchanged(v, variant):
    names, where = variant
    split, joined = {"split": partial(apart, names=names)}, {"joined": partial(together, names=names)}
    return passes(v, **_in_places(where, forward=split, backward=joined))


def _heads_first(v, where: str):
    """Rows of o, or of its gradient, taken from memory that lies (B, H, N, D)."""
    shape = v["x"].shape
    of_o = {"out_rows": lambda o: o.reshape(shape)}
    of_do = {"dout_heads": lambda do, heads: do.reshape(shape[0], heads, shape[1], -1)}
    return passes(v, **_in_places(where, forward=of_o, backward=of_do))


# ---- scale


def _another_scale(v, which: str):
    scale = {"width": v["x"].shape[-1] ** -0.5, "none": 1.0, "eighth": 0.125}[which]
    return passes(v, forth=lambda t: attend(t | {"scale": scale}), back=lambda t: gradients(t | {"scale": scale}))


# ---- lengths


def _other_lengths(change):
    """Another number of keys, forward only or in a pass of the backward step, or in all: change(arguments, ...)."""

    def answer(v, variant):
        where, *how = variant
        if where == "everywhere":
            return passes(v, forth=lambda t: attend(change(t, *how)), back=lambda t: gradients(change(t, *how)))
        if where == "forward":
            return _forth(lambda t: attend(change(t, *how)))(v)
        return passes(v, back=lambda t: back.with_other_lengths(lambda t: change(t, *how))(t, where))

    return answer


def _all_keys(t) -> dict:
    return t | {"k_lengths": None}


def _moved(t, by: int) -> dict:
    return t | {"k_lengths": (lengths(t).flatten() + by).clamp(max=t["k"].shape[2])}


def _queries_left_out(v, variant):
    """Blocks of queries behind the length are left out, with what stands in their place."""
    block, fill, where = variant
    numbers = torch.arange(v["x"].shape[1], device=v["x"].device)[:, None]
    ends = -(-v["lengths"].view(-1, 1, 1, 1) // block) * block

    def forward(t):
        made = attend(t)
        lse = made["lse"] + torch.where(numbers < ends, 0.0, fill).squeeze(-1)
        return {"out": torch.where(numbers < ends, made["out"], fill), "lse": lse}

    def backward(t):
        made = gradients(t | {"dout": torch.where(numbers < ends, t["dout"], 0.0)})
        return made | {"dq": torch.where(numbers < ends, made["dq"], fill)}

    if where == "forward":
        return _forth(forward)(v)
    if where == "dkdv":
        return passes(v, back=lambda t: back.only(t, numbers < ends, "dkdv"))
    return passes(v, back=backward, **_in_places(where, forward={"forth": forward}))


def _padding_counted(t, block: int, one=False) -> dict:
    """Keys of the last block of an image that lie behind its length, or only the first of them, have a score of 0, and
    a v of 0.
    """
    behind = torch.arange(t["k"].shape[2], device=t["k"].device)[:, None] >= lengths(t)
    zeros = [0, 0, 0, -t["k"].shape[2] % block]
    padded = {name: torch.nn.functional.pad(t[name].masked_fill(behind, 0.0), zeros) for name in "kv"}
    ends = -(-lengths(t) // block) * block
    return attend(t | padded, see=visible(t | padded, counted=torch.minimum(ends, lengths(t) + 1) if one else ends))


# ---- blocks


def _tail_dropped(v, variant):
    where, block = variant
    if where != "forward":
        m = torch.arange(v["x"].shape[1], device=v["x"].device)[:, None]
        return passes(v, back=lambda t: back.only(t, _whole(t, block) if where == "dq" else m < len(m) // block * block,
                                                  where))  # fmt: skip

    def forward(t):
        made = attend(t, see=_whole(t, block))
        none = (lengths(t) < block).expand_as(made["out"])
        return made | {"out": made["out"].masked_fill(none, NAN)}

    return _forth(forward)(v)


def _whole(t, block: int) -> torch.Tensor:
    return visible(t, counted=lengths(t) // block * block)


def _one_block_only(v, variant):
    which, block, last = variant
    return passes(v, back=lambda t: back.only(t, _in_one_block(t, which, block, last), which))


def _in_one_block(t, which: str, block: int, last: bool) -> torch.Tensor:
    """Keys of the first or the last block that a walk over keys visits, or queries of one over queries."""
    numbers = torch.arange(t["k"].shape[2], device=t["k"].device)
    end = lengths(t) if which == "dq" else torch.full_like(lengths(t), len(numbers))
    first = (end - 1) // block * block if last else torch.zeros_like(end)
    numbers = numbers if which == "dq" else numbers[:, None]
    return (numbers >= first) & (numbers < first + block)


def _last_rows_unwritten(v, variant):
    where, block = variant
    length = v["x"].shape[1]
    rows = slice(0, length // block * block)
    if where == "forward":
        return _forth(lambda t: forth.rows_written(t, rows))(v)
    names = ("dq",) if where == "dq" else ("dk", "dv")
    return passes(v, back=lambda t: back.unwritten(t, names, rows))


# ---- L

WRONG_L = {
    "sum alone": forth.lse_without_maximum,
    "maximum alone": forth.lse_is_maximum,
    "not a logarithm": forth.lse_is_sum,
    "in base two": forth.lse_in_base_two,
}


# ---- sums


def _of_real_rows(v):
    real = torch.arange(v["x"].shape[1], device=v["x"].device) < v["lengths"][:, None]
    return passes(v, of_b=lambda t: t["drows"][real].sum(0))


def _of_one_block(v, variant):
    block, last = variant
    rows = v["x"].shape[0] * v["x"].shape[1]
    kept = slice((rows - 1) // block * block, rows) if last else slice(0, block)
    return passes(v, of_b=lambda t: t["drows"].flatten(0, 1)[kept].sum(0))


def _dw_of_one_image(v, image: int):
    return passes(v, of_w=lambda t: t["drows"][image].mT @ t["x"][image])


def _dx_of_a_part(v, names: str):
    """dx from some of the three gradients."""

    def of_x(t):
        width = t["w"].shape[1]
        thirds = [slice(n * width, (n + 1) * width) for n, name in enumerate("qkv") if name in names]
        return sum(t["drows"][..., third] @ t["w"][third] for third in thirds)

    return passes(v, of_x=of_x)


def _summed_in_half(e) -> bool:
    """Only db is off, in fp16 and where there are many rows."""
    halves = ("many rows, fp16", "memory in passing", "fp16", "bf16", "bf16, head size 72")
    if not e.failed("many rows, fp16") or not e.failed_only(*halves):
        return False
    if e.raised_any():
        return False
    return all(back.is_right(e, t, name) for t in e.failing for name in ("o", "dx", "dw"))


# ---- strides


def _as_if_contiguous(t: torch.Tensor, shape) -> torch.Tensor:
    return as_read(t, shape, contiguous(shape))


def _strides_ignored(v, where: str):
    read = _as_if_contiguous(v["x"], v["x"].shape)
    if where == "forward":
        return passes(v | {"x": read}, again=lambda x: v["x"].to(x.dtype))
    if where == "backward":
        return passes(v, again=read.to)
    return passes(v | {"x": read})


def _gradient_strides_ignored(v, where: str):
    read = _as_if_contiguous(v["do"], v["x"].shape).double()
    if where == "both":
        return passes(v | {"do": read})
    other = by_heads(read, v["heads"])
    if where == "delta":
        return passes(v, back=lambda t: gradients(t, delta=delta_of(t | {"dout": other})))
    return passes(v, back=lambda t: gradients(t | {"dout": other}, delta=delta_of(t)))


# ---- signs


def _gradient_copied(e) -> bool:
    """In every failing case. A wrong `reshape` of do copies too, where do is not contiguous, and is wrong elsewhere."""
    return all("the backward pass copies" in (t.outcome.error or "") for t in e.failing)


def _last_stride_ignored(e) -> bool:
    """Wrong only where the last stride of do is not 1, and o is right."""
    if not e.failed_only(*OF_LAST_STRIDES) or not all(map(e.failed, OF_LAST_STRIDES)):
        return False
    ran = [t for t in e.failing if t.outcome.error is None]
    return bool(ran) and all(back.is_right(e, t, "o") for t in ran)


def _columns_unmasked(e) -> bool:
    """Wrong only where a head is narrower than a block of columns; if anything was raised, a lane left its tensor."""
    narrow = all(_size_of_a_head(t.args) & (_size_of_a_head(t.args) - 1) for t in e.failing)
    return narrow and (e.raised("outside every argument") or not e.raised_any())


def _size_of_a_head(v) -> int:
    return v["x"].shape[-1] // v["heads"]


def _tf32(e) -> bool:
    """Every output of every call in fp32 that ends is off, by what 11 bits give."""
    ran = [t for t in e.failing if t.outcome.error is None]
    if not ran or len(ran) < len(e.failing) or any(t.args["x"].dtype != torch.float32 for t in ran):
        return False
    off = [error(t.outcome.outputs[name], t.want[name]).rms for t in ran for name in ("dx", "dw")]
    return all(1e-5 < one < 5e-2 for one in off)


def _some_nan(t, names=("o", "dx", "dw", "db")) -> bool:
    return any(isinstance(x := t.outcome.outputs.get(name), torch.Tensor) and bool(x.isnan().any()) for name in names)


def _forward_overflows(e) -> bool:
    return e.failed("large scores") and e.failed_only(*OF_OFFSETS) and all(_some_nan(t, ("o",)) for t in e.failing)


def _forward_underflows(e) -> bool:
    return e.failed_only("very negative scores") and all(_some_nan(t, ("o",)) for t in e.failing)


def _hidden_overflows(e) -> bool:
    return e.failed_only("very negative scores") and all(_some_nan(t) and not _some_nan(t, ("o",)) for t in e.failing)


MEMORY = (
    inputs_changed("x", "w", "b", "do"),
    Mistake(
        "something_kept",
        "More is kept for backward than the arguments, qkv, o and L: q, k and v are views of qkv, the rows of x are "
        "those of the argument, and o is the result itself.",
        sign=lambda e: e.raised("are kept for backward"),
    ),
    Mistake(
        "copied_to_another_type",
        "Something as large as o is copied to another type. A copy of dqkv in fp32 for its sum: torch.sum(rows, 0, "
        "dtype=torch.float32) adds in fp32 without it. Gradients in fp32 that are copied to the type of x: the kernels "
        "can store them in it. Of do, q, k and v a kernel widens what it has loaded.",
        sign=lambda e: e.raised("pass makes copies in another type"),
    ),
    Mistake(
        "gradients_packed_afterwards",
        "dq, dk and dv are made in tensors of their own, and copied into one. Make dqkv, (B, N, 3, H, D), first, and "
        "let the kernels write into views of it, with its strides.",
        sign=lambda e: e.raised("the backward pass copies as many bytes as dq, dk and dv have"),
    ),
    Mistake(
        "gradient_copied",
        "Something as large as o is copied on the way back: do, which the kernels can read with its own strides, or a "
        "gradient, which they can write where it belongs.",
        sign=_gradient_copied,
    ),
    Mistake(
        "copied_forward",
        "Something as large as o is copied forward: q, k, v or o. The kernels can read q, k and v as views of qkv, and "
        "write o with the heads of a patch side by side.",
        sign=lambda e: e.raised("the forward pass copies"),
    ),
    Mistake(
        "several_products",
        "x is multiplied with w more often than needed: the rows of w give q, k and v in one product, and dx and dw "
        "are one product each of the rows of dqkv.",
        sign=lambda e: e.raised("asks the library for"),
    ),
    Mistake(
        "much_in_passing",
        "A pass holds more at one time than qkv and o forward, dqkv and the results backward: something of the size of "
        "o, or of the scores, is beside them.",
        sign=lambda e: e.raised("bytes are alive that it made"),
    ),
    Mistake(
        "o_not_contiguous",
        "o has the right values and other strides: make it (B, N, H, D), let the kernel write with these strides, and "
        "view it as (B, N, d).",
        sign=lambda e: e.raised("o is not contiguous"),
    ),
    Mistake(
        "shape_of_o",
        "o has another shape than x: its heads stand side by side, (B, N, H, D) viewed as (B, N, d).",
        sign=lambda e: e.raised("o has shape"),
    ),
    Mistake(
        "weights_transposed",
        "A gradient has the shape of the transposed matrix: dw is dqkvᵀ x, (3 d, d).",
        sign=lambda e: e.raised("returned an invalid gradient"),
    ),
    Mistake(
        "gradient_missing",
        "One of the three has no gradient: None was returned in its place.",
        sign=lambda e: e.raised("there is no gradient of"),
    ),
    Mistake(
        "last_stride_ignored",
        "Right while the elements of a row of do follow each other, and wrong where its last stride is not 1: that of "
        "a transposed gradient, and 0 for the gradient of a sum. Give the kernels do.stride(-1) too.",
        sign=_last_stride_ignored,
    ),
    NOT_DIFFERENTIABLE,
    number_of_gradients("lengths and heads"),
    grid_dimension("heads", "B * H", "more than 65535 heads"),
)

LAYOUT = (
    Mistake(
        "rows_of_w",
        "The rows of w are read in another order: all of q come first, then all of k, then all of v, so qkv is "
        "(B, N, 3, H, D), and dqkv as well.",
        answer=_rows_of_w,
        variants=tuple(product(("H3D", "HD3"), WHERE)),
    ),
    Mistake(
        "parts_exchanged",
        "q, k and v, or their gradients, stand in each other's place: qkv[:, :, 0] is q, 1 is k, 2 is v, and dqkv has "
        "the same order.",
        answer=_exchanged,
        variants=tuple(product(list(permutations("qkv"))[1:], WHERE)),
    ),
    Mistake(
        "heads_first",
        "o, or its gradient, is taken to lie (B, H, N, D): a row of it holds the heads of one patch side by side.",
        answer=_heads_first,
        variants=WHERE,
    ),
)

DS = (
    Mistake(
        "scale_missing",
        "dq, dk or both lack the scale: s = q kᵀ / sqrt(D), so both gradients are multiplied with 1 / sqrt(D) once.",
        answer=_back(back.by_factor(lambda t: 1 / t["scale"])),
        variants=WHICH,
    ),
    Mistake(
        "another_scale",
        "The scores are scaled with another number than 1 / sqrt(D), where D is the size of a head, d / heads.",
        answer=_another_scale,
        variants=("width", "none", "eighth"),
    ),
    Mistake(
        "delta_missing",
        "delta is missing, for dq, for dk or for both: ds = p (dp - delta), with delta = sum over D of o do.",
        answer=_back(back.without_delta),
        variants=PASSES,
    ),
    Mistake(
        "delta_of_something_else",
        "delta is not what it should be: the sum over D of o times do, element by element, one number a query and "
        "head.",
        answer=_back(back.other_delta),
        variants=tuple(back.DELTAS),
    ),
    Mistake(
        "ds_without_p",
        "ds is dp - delta: the probabilities are missing, ds = p (dp - delta).",
        answer=_back(back.ds_without_p),
    ),
    Mistake(
        "dv_from_ds",
        "dv is pᵀ do, not made from dp or ds.",
        answer=_back(back.dv_from),
        variants=("ds", "dp"),
    ),
    Mistake(
        "dp_from_k",
        "dp = do vᵀ, with v and not k.",
        answer=_back(back.k_for_v),
    ),
)

LENGTHS = (
    Mistake(
        "lengths_ignored",
        "`lengths` changes nothing: keys from lengths[b] on belong to no softmax, and their dk and dv are 0.",
        answer=_other_lengths(_all_keys),
        variants=(("everywhere",),),
    ),
    Mistake(
        "lengths_ignored_forward",
        "`lengths` is used backward only: o counts keys behind the length.",
        answer=_other_lengths(_all_keys),
        variants=(("forward",),),
    ),
    Mistake(
        "lengths_ignored_backward",
        "o is right, and backward forgets `lengths`, for dq, for dk and dv, or for all: p is 0 for keys from "
        "lengths[b] on.",
        answer=_other_lengths(_all_keys),
        variants=tuple((where,) for where in PASSES),
    ),
    Mistake(
        "lengths_off_by_one",
        "One key too many or too few counts: image b has the keys n < lengths[b].",
        answer=_other_lengths(_moved),
        variants=tuple(product(("everywhere", "forward", *PASSES), (-1, 1))),
    ),
    Mistake(
        "first_length_for_all",
        "All images have the number of keys of the first: load lengths at the number of the image.",
        answer=_other_lengths(forth.with_first_length),
        variants=tuple((where,) for where in ("everywhere", "forward", *PASSES)),
    ),
    Mistake(
        "queries_left_out",
        "Queries behind the length were left out: padding is asked for nothing as a key, but as a query it is computed "
        "like all others, and its gradient counts.",
        answer=_queries_left_out,
        variants=tuple(product((1, *BLOCKS), (0.0, NAN), WHERE)) + tuple(product((1, *BLOCKS), (0.0,), ("dkdv",))),
    ),
    Mistake(
        "hidden_keys_unwritten",
        "dk and dv of keys behind the length were left as they were, and torch.empty holds anything: their gradient is "
        "0, and some program has to store it.",
        answer=_back(back.hidden_keys_unwritten),
        variants=(1, *BLOCKS),
    ),
    Mistake(
        "padding_counted",
        "In the last block of an image, keys behind its length count with a score of 0: the loads have a mask, and the "
        "scores need one too, -inf where offs_n >= lengths[b].",
        answer=_forth(lambda t, variant: _padding_counted(t, *variant)),
        variants=tuple(product(BLOCKS, (False, True))),
    ),
    Mistake(
        "keys_past_the_end",
        "Keys behind the length count in the pass of dq: their k is 0, so their score is 0 and p is exp(-L). That "
        "vanishes in the product with k as long as p is finite. Let p be 0 there, `tl.where(see, tl.exp(s - l), 0.0)`.",
        sign=_hidden_overflows,
    ),
)

BLOCKWISE = (
    Mistake(
        "not_rescaled",
        "o is wrong where an image has more keys than a block: when the maximum grows, what was summed up before, o or "
        "the sum of weights, is multiplied with exp(old maximum - new maximum).",
        answer=_forth(lambda t, variant: forth.online(t, *variant)),
        variants=tuple(product(BLOCKS, (False,), (True, False))) + tuple(product(BLOCKS, (True,), (False,))),
    ),
    Mistake(
        "tail_dropped",
        "The last partial block of a walk is left out: over keys for o and dq, over queries for dk and dv. Walk to "
        "lengths[b] and to N, with masks.",
        answer=_tail_dropped,
        variants=tuple(product(("forward", "dq", "dkdv"), BLOCKS)),
    ),
    Mistake(
        "one_block_only",
        "Only one block of a backward walk counts: the accumulator is set anew in every turn, or the walk ends after "
        "the first.",
        answer=_one_block_only,
        variants=tuple(product(("dq", "dkdv"), BLOCKS, (True, False))),
    ),
    Mistake(
        "last_rows_unwritten",
        "The last partial block is never computed: the grid rounds down. triton.cdiv(N, BLOCK) programs for each image "
        "and head.",
        answer=_last_rows_unwritten,
        variants=tuple(product(("forward", "dq", "dkdv"), BLOCKS)),
    ),
    Mistake(
        "l_is_something_else",
        "o is right, and p of the backward pass is not: L is the maximum plus the logarithm of the sum, "
        "`m + tl.log(l)`, in the base that the backward pass takes it for.",
        answer=lambda v, which: _forth(WRONG_L[which])(v),
        variants=("sum alone", "maximum alone", "not a logarithm", "in base two"),
    ),
    Mistake(
        "maximum_missing",
        "NaN where scores are large: exp overflows at 88. Subtract the maximum of the row first.",
        sign=_forward_overflows,
    ),
    Mistake(
        "maximum_from_zero",
        "NaN where all scores are very negative: the running maximum begins at 0, and should begin at -inf.",
        sign=_forward_underflows,
    ),
)

SUMS = (
    Mistake(
        "bias_missing",
        "b was not added: qkv = x wᵀ + b.",
        answer=_with(biased=False),
    ),
    Mistake(
        "bias_averaged",
        "db is a mean over rows, patches or images: it is the sum of all B N rows of dqkv.",
        answer=lambda v, dims: passes(v, of_b=lambda t: t["drows"].sum((0, 1)) / _count(t["drows"], dims)),
        variants=((0, 1), (0,), (1,)),
    ),
    Mistake(
        "bias_of_one_image",
        "db is that of one image: sum over the images too.",
        answer=lambda v, image: passes(v, of_b=lambda t: t["drows"][image].sum(0)),
        variants=(0, -1),
    ),
    Mistake(
        "bias_of_real_rows",
        "db is that of the patches before the length: queries behind it have gradients too, so the sum goes over all "
        "B N rows of dqkv.",
        answer=_of_real_rows,
    ),
    Mistake(
        "sums_of_one_block",
        "db is that of one block of rows: the sum goes over all of them.",
        answer=_of_one_block,
        variants=tuple((block, last) for block in BLOCKS for last in (True, False)),
    ),
    Mistake(
        "summed_in_fp16",
        "db was added up in 16 bits: over many rows the sum grows and its last bits are lost. Add in fp32, and round "
        "once.",
        sign=_summed_in_half,
    ),
    Mistake(
        "weights_of_one_image",
        "dw is that of one image: its product goes over the rows of all images.",
        answer=_dw_of_one_image,
        variants=(0, -1),
    ),
    Mistake(
        "dx_of_a_part",
        "dx was made from some of the three gradients: x is where q, k and v come from, so it is the whole row of dqkv "
        "times w.",
        answer=_dx_of_a_part,
        variants=("q", "k", "v", "qk", "qv", "kv"),
    ),
    Mistake(
        "strides_ignored",
        "Right only while the rows of x follow each other: an image begins at x.stride(0), a row at x.stride(1), "
        "forward and in dw.",
        answer=_strides_ignored,
        variants=WHERE,
    ),
    Mistake(
        "gradient_strides_ignored",
        "Right only for a contiguous gradient: do comes with strides of its own, and those of a sum are 0. Use them, "
        "for delta too.",
        answer=_gradient_strides_ignored,
        variants=("both", "delta", "products"),
    ),
    Mistake(
        "tf32",
        "The error is what TF32 gives: `tl.dot` of fp32 keeps 10 fraction bits of its inputs unless told "
        '`input_precision="ieee"`, and the library does where `torch.backends.cuda.matmul.allow_tf32` is on.',
        sign=_tf32,
    ),
    Mistake(
        "columns_unmasked",
        "Wrong only where D is no power of two: a block of columns is wider than a head, and what follows belongs to "
        "the next head, or to nobody. Mask with offs_d < D, the loads of q, k, v, o and do as well as all stores, and "
        "count strides and the scale with D.",
        sign=_columns_unmasked,
    ),
)


def _count(rows: torch.Tensor, dims) -> int:
    return torch.Size([rows.shape[dim] for dim in dims]).numel()


MISTAKES = (*MEMORY, *LAYOUT, *DS, *LENGTHS, *BLOCKWISE, *SUMS)
