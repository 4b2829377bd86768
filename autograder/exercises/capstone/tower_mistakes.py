"""How people put blocks together wrongly, backward too, and how a tower falls apart under a compiler."""

from __future__ import annotations

import itertools
from functools import partial

import torch

from autograder.exercise import Mistake
from autograder.exercises.capstone.tower_formula import NAMES, head_last, step
from autograder.exercises.everywhere import number_of_gradients
from autograder.exercises.mlp.gelu import CUBE, by_erf, by_sigmoid, gelu, slope, slope_by_erf

PARTS = ("q", "k", "v")
ORDERS = tuple(one for one in itertools.permutations(PARTS) if one != PARTS)
NO_GRADIENT = "there is no gradient of"
GAPS = "h with gaps between its rows"  # a case


def _with(**changes):
    return lambda v: step(v, **changes)


# ------------------------------------------------------------------------------------------- from block to block


def _after_the_norm(x, first, second, attend, mlp, rounded, which):
    """The residual is what the norm gave, for attention, the MLP or both."""
    n = first(x)
    x = rounded((n if "attention" in which else x) + attend(n))
    n = second(x)
    return rounded((n if "mlp" in which else x) + mlp(n))


def _without_residual(x, first, second, attend, mlp, rounded, which):
    x = rounded(("attention" not in which) * x + attend(first(x)))
    return rounded(("mlp" not in which) * x + mlp(second(x)))


def _side_by_side(x, first, second, attend, mlp, rounded):
    """The second norm is that of the block's input."""
    return rounded(rounded(x + attend(first(x))) + mlp(second(x)))


def _of_the_branch(x, first, second, attend, mlp, rounded):
    """The second norm is that of what attention adds, without x."""
    a = attend(first(x))
    return rounded(rounded(x + a) + mlp(second(a)))


def _onto_the_input(x, first, second, attend, mlp, rounded):
    """The MLP's branch is added to the block's input, and attention's is lost."""
    return rounded(x + mlp(second(rounded(x + attend(first(x))))))


def _post_norm(x, first, second, attend, mlp, rounded):
    x = first(rounded(x + attend(x)))
    return second(rounded(x + mlp(x)))


def _norms_swapped(p):
    return p | {f"{a}_{end}": p[f"{b}_{end}"] for a, b in (("n1", "n2"), ("n2", "n1")) for end in "wb"}


def _joined_without_transpose(o):
    return o.reshape(o.shape[0], o.shape[2], -1)


# ------------------------------------------------------------------------------------------- q, k and v in one layer


def _role(p, order):
    """The parameters of q, k and v in the roles of others."""
    return p | {f"{role}_{end}": p[f"{given}_{end}"] for role, given in zip(PARTS, order, strict=True) for end in "wb"}


def _gradients_of(p, order):
    """Gradients by kind, those of q, k and v under the names of others."""
    return p | {f"{to}_{end}": p[f"{given}_{end}"] for to, given in zip(PARTS, order, strict=True) for end in "wb"}


def _roles_swapped(v, way):
    """Packed in one order and read in another. The rows that are read as q give the gradient that is called q's, or
    their own where the kernels alone are wrong.
    """
    order, renamed = way
    made = step(
        v, of_layer=partial(_role, order=order), renamed=partial(_gradients_of, order=order if renamed else PARTS)
    )
    vanished = "d_k" if renamed else f"d_{order[1]}"
    return {name: one for name, one in made.items() if name != vanished or name == "d_k"}


def _gradients_renamed(v, order):
    return _without_vanished(step(v, renamed=partial(_gradients_of, order=order)), order)


def _without_vanished(made, order):
    """Nothing is said of what holds the gradient of the bias of k, which is made of rounding errors."""
    return {name: one for name, one in made.items() if name != f"d_{PARTS[order.index('k')]}" or name == "d_k"}


def _through_rows(v, order_of):
    """The packed rows are read in another order, forward and backward."""
    width, heads = v["places"].shape[1], v["heads"]
    rows = order_of(torch.arange(3 * width), heads)
    changed = dict(v)
    for end in "wb":
        whole = torch.cat([v[f"{part}_{end}"] for part in PARTS], 1)[:, rows]
        changed |= {f"{part}_{end}": one for part, one in zip(PARTS, whole.chunk(3, 1), strict=True)}
    return {name: one for name, one in step(changed).items() if name not in ("d_q", "d_k", "d_v")}


def _heads_outside(rows, heads):
    """(heads, 3, head size), where (3, heads, head size) was packed."""
    return rows.view(heads, 3, -1).transpose(0, 1).reshape(-1)


def _parts_inside(rows, heads):
    """(heads, head size, 3)."""
    return rows.view(heads, -1, 3).movedim(-1, 0).reshape(-1)


# ------------------------------------------------------------------------------------------- lengths and padding


def _one_more(real):
    return torch.cat([torch.ones_like(real[:, :1]), real[:, :-1]], 1)


def _one_less(real):
    found = torch.cat([real[:, 1:], torch.zeros_like(real[:, :1])], 1)
    return found | (torch.arange(real.shape[1], device=real.device) < 1)


def _of_the_first(real):
    return real[:1].expand_as(real)


def _mean_of_all(x, real):
    return x.mean(1)


def _over_all(x, real):
    return (x * real[..., None]).sum(1) / x.shape[1]


def _sum_of_real(x, real):
    return (x * real[..., None]).sum(1)


def _all_over_real(x, real):
    return x.sum(1) / real.sum(-1, keepdim=True)


def _first_of_all(x, real):
    return x[:, 0]


POOLS = (_mean_of_all, _over_all, _all_over_real)


def _becomes_nan(e) -> bool:
    """NaN in the one case whose padding holds some, and in no other."""
    if not e.failed_only("padding of NaN"):
        return False
    return any(
        isinstance(one, torch.Tensor) and bool(one.isnan().any())
        for t in e.failing
        for one in t.outcome.outputs.values()
    )


def _by_type_of_lengths(e) -> bool:
    """Most lengths of one type go wrong, and none of the other."""
    of = {kind: [t.right for t in e.tried if t.args["lengths"].dtype == kind] for kind in (torch.int32, torch.int64)}
    return all(of.values()) and any(
        all(of[one]) and 3 * sum(of[other]) < len(of[other]) for one, other in itertools.permutations(of)
    )


def _type_differs(e) -> bool:
    ran = [t for t in e.failing if t.outcome.error is None]
    return bool(ran) and all(
        any(getattr(t.outcome.outputs.get(name), "dtype", None) != t.args["patches"].dtype for name in NAMES)
        for t in ran
    )


# ------------------------------------------------------------------------------------------- the mistakes

BLOCKS = (
    Mistake(
        "residual_after_norm",
        "The residual is what the norm gave: in a pre-norm block x itself is carried on, "
        "x = x + attention(norm(x)), and the norm lies in the branch alone.",
        answer=lambda v, which: step(v, block=partial(_after_the_norm, which=which)),
        variants=(("attention",), ("mlp",), ("attention", "mlp")),
    ),
    Mistake(
        "residual_missing",
        "A branch takes the place of x where it should be added to it: x = x + branch(norm(x)), twice a block.",
        answer=lambda v, which: step(v, block=partial(_without_residual, which=which)),
        variants=(("attention",), ("mlp",), ("attention", "mlp")),
    ),
    Mistake(
        "norm_of_the_input",
        "The second norm of a block is taken of what the block was given: it is the norm of the sum after attention, "
        "x + attention(...).",
        answer=_with(block=_side_by_side),
    ),
    Mistake(
        "norm_of_the_branch",
        "The second norm of a block is that of what attention gave: it is the norm of the sum, x + attention(...).",
        answer=_with(block=_of_the_branch),
    ),
    Mistake(
        "attention_not_carried_on",
        "The MLP's branch is added to what the block was given, and attention's branch is lost there: the sum after "
        "attention is carried on.",
        answer=_with(block=_onto_the_input),
    ),
    Mistake(
        "post_norm",
        "The norms come behind the sums: here each lies before its branch, and x is not normalised in between.",
        answer=_with(block=_post_norm),
    ),
    Mistake(
        "norms_swapped",
        "The two norms of a block have each other's parameters: `before_attention` and `before_mlp`.",
        answer=_with(of_layer=_norms_swapped),
    ),
    Mistake(
        "input_overwritten",
        "Something was written over that backward still needs: `x += branch` changes the x that the norm has kept. "
        "Write x = x + branch.",
        sign=lambda e: e.raised("modified by an inplace operation"),
    ),
)

ATTENTION = (
    Mistake(
        "scale_of_the_width",
        "The scores are divided by the root of the width: it is the root of the head size, width / heads.",
        answer=lambda v: step(v, scale=lambda size: (size * v["heads"]) ** -0.5),
    ),
    Mistake(
        "scale_of_the_block",
        "The scores are divided by the root of the power of two to which a head was padded: the root is that of the "
        "head size itself.",
        answer=_with(scale=lambda size: (1 << (size - 1).bit_length()) ** -0.5),
    ),
    Mistake(
        "scale_missing",
        "The scores are not divided by the root of the head size.",
        answer=_with(scale=lambda size: 1.0),
    ),
    Mistake(
        "scale_twice",
        "The scores are divided by the root of the head size twice: once for q, say, and once in the kernel.",
        answer=_with(scale=lambda size: 1.0 / size),
    ),
    Mistake(
        "heads_in_the_wrong_place",
        "A row was split to (head size, heads): the numbers of one head lie next to each other, (heads, head size).",
        answer=_with(apart=head_last),
    ),
    Mistake(
        "heads_not_put_back",
        "The result of attention became rows without its dimensions in order: (B, heads, N, head size) is transposed "
        "to (B, N, heads, head size) first.",
        answer=_with(joined=_joined_without_transpose),
    ),
    Mistake(
        "order_of_q_k_v",
        "q, k and v are packed in one order and read in another: the rows of `attention.qkv` are those of q, then of "
        "k, then of v, where the state dict is loaded and where the kernel reads.",
        answer=_roles_swapped,
        variants=tuple((one, named) for one in ORDERS for named in (True, False)),
    ),
    Mistake(
        "rows_by_heads",
        "A packed row is read as (heads, 3, head size), or with q, k and v innermost: packed as q, then k, then v it "
        "is (3, heads, head size).",
        answer=_through_rows,
        variants=(_heads_outside, _parts_inside),
    ),
    Mistake(
        "gradients_renamed",
        "y is right, and only the gradients of the weights of q, k and v have each other's names: the rows of "
        "`attention.qkv.weight` are those of q, then of k, then of v.",
        answer=_gradients_renamed,
        variants=ORDERS,
    ),
    Mistake(
        "gradients_exchanged",
        "y is right, and the backward pass of attention gives dq, dk and dv in each other's places.",
        answer=lambda v, order: step(v, backward=("".join(order),)),
        variants=ORDERS,
    ),
    Mistake(
        "delta_missing",
        "In the backward pass of attention delta is missing: ds = p (dp - delta), with delta the sum of do o in a row.",
        answer=_with(backward=("delta",)),
    ),
    Mistake(
        "scale_missing_backward",
        "A gradient of attention is not scaled: s = scale q kᵀ, so dq and dk both carry the scale.",
        answer=lambda v, lacks: step(v, backward=lacks),
        variants=(("scale of q",), ("scale of k",), ("scale of q", "scale of k")),
    ),
)

PADDING = (
    Mistake(
        "padding_is_seen",
        "Patches behind the length are attended to: keys end at the length of their image.",
        answer=_with(see=torch.ones_like),
    ),
    Mistake(
        "one_key_too_many",
        "Attention sees one patch too many: keys are those with n < length, not n <= length.",
        answer=_with(see=_one_more),
    ),
    Mistake(
        "one_key_too_few",
        "Attention misses the last real patch: keys are those with n < length.",
        answer=_with(see=_one_less),
    ),
    Mistake(
        "length_of_the_first",
        "All images are masked with the length of the first: program `batch` loads `lengths_ptr + batch`.",
        answer=_with(see=_of_the_first),
    ),
    Mistake(
        "mean_over_all",
        "The mean at the end goes over padding too, or is divided by N: real patches are summed up, and divided by "
        "their number.",
        answer=lambda v, pool: step(v, pooled=pool),
        variants=POOLS,
    ),
    Mistake(
        "sum_and_no_mean",
        "The result is the sum of the real patches: divide by the length.",
        answer=_with(pooled=_sum_of_real),
    ),
    Mistake(
        "first_patch_only",
        "The result is the first patch: it is the mean of all real ones.",
        answer=_with(pooled=_first_of_all),
    ),
    Mistake(
        "padding_shows",
        "NaN behind a length comes through. A weight of 0 hides no NaN, and the gradient of `embed` is a product over "
        "all rows: set padding to 0 before it, with masked_fill or torch.where.",
        sign=_becomes_nan,
    ),
    Mistake(
        "type_of_the_lengths",
        "Right for one type of lengths, and wrong for the other: they come as int32 and as int64. "
        "`lengths.to(torch.int32)` at the start gives the kernels one of them.",
        sign=_by_type_of_lengths,
    ),
)

MLP = (
    Mistake(
        "erf",
        "This is GELU with erf, forward and backward: the tower has the form with tanh.",
        answer=_with(value=by_erf),
    ),
    Mistake(
        "gelu_by_sigmoid",
        "This is x sigmoid(1.702 x): the tower has the form with tanh.",
        answer=_with(value=by_sigmoid),
    ),
    Mistake(
        "slope_of_erf",
        "y is right, and the slope is that of GELU with erf, where the forward pass has tanh.",
        answer=_with(rise=slope_by_erf),
    ),
    Mistake(
        "inner_derivative_missing",
        "In the slope of GELU u' is missing: tanh(u) has the derivative (1 - t^2) u'.",
        answer=_with(rise=partial(slope, inner=False)),
    ),
    Mistake(
        "three_missing",
        "In the slope of GELU the 3 is missing: the derivative of h^3 is 3 h^2.",
        answer=_with(rise=partial(slope, cube=CUBE / 3)),
    ),
    Mistake(
        "slope_missing",
        "The gradient passes GELU unchanged: dh = da gelu'(h).",
        answer=_with(rise=torch.ones_like),
    ),
    Mistake(
        "slope_at_result",
        "The slope was taken at a = gelu(h), which has taken the place of h: it is gelu'(h). Keep h, or make it again.",
        answer=_with(rise=lambda h: slope(gelu(h))),
    ),
)

MODULE = (
    Mistake(
        "places_missing",
        "The positions are not added: x = embed(patches) + places.",
        sign=lambda e: e.raised(f"{NO_GRADIENT} places") and not e.raised("places, "),
    ),
    Mistake(
        "one_norm_for_both",
        "One norm of a block is used twice: `before_attention` and `before_mlp` have parameters of their own.",
        sign=lambda e: any(
            e.raised(f"{NO_GRADIENT} blocks.*.{one}.weight, blocks.*.{one}.bias") and not e.raised(f"{one}.bias, ")
            for one in ("before_mlp", "before_attention")
        ),
    ),
    Mistake(
        "one_block_for_all",
        "Only one block is used, for all layers or in place of them: each layer has a block of its own.",
        sign=lambda e: e.raised(f"{NO_GRADIENT} blocks.1.") or e.raised(f"{NO_GRADIENT} blocks.0."),
    ),
    Mistake(
        "last_norm_missing",
        "The norm behind the last block is missing.",
        sign=lambda e: e.raised(f"{NO_GRADIENT} norm.weight, norm.bias"),
    ),
    Mistake(
        "other_names",
        "The state dict of the naive tower does not fit: a parameter has another name, or another shape. Where q, k "
        "and v are one layer, `load_state_dict` has to pack them (`frame.packed`, in a pre-hook).",
        sign=lambda e: e.raised("Error(s) in loading state_dict"),
    ),
    Mistake(
        "not_differentiable",
        "The result knows no gradient: an operator needs `register_autograd`, or a torch.autograd.Function around it.",
        sign=lambda e: e.raised("the result has no gradient function") or e.raised("no autograd formula"),
    ),
    number_of_gradients(),
    Mistake(
        "gradient_missing",
        "A parameter has no gradient: it is not used, or a backward pass gives None for it, or nothing at all because "
        "the operator has no `register_autograd`.",
        sign=lambda e: e.raised(NO_GRADIENT),
    ),
    Mistake(
        "buffer",
        "The tower holds a tensor beside its parameters: make it in `forward`, where batch and type are known.",
        sign=lambda e: e.raised("the tower holds the buffer"),
    ),
    Mistake(
        "scores_in_memory",
        "The scores of all pairs of patches are written to memory: attention in one kernel keeps a block of them at a "
        "time.",
        sign=lambda e: e.raised("for all pairs of patches"),
    ),
    Mistake(
        "gelu_by_torch",
        "The slope of GELU is applied by torch: da gelu'(h) belongs into the kernel that computes the slope.",
        sign=lambda e: e.raised("on all numbers of the hidden layer"),
    ),
    Mistake(
        "another_type",
        "A result or a gradient has another type than the patches: compute in fp32, and give back what came.",
        sign=_type_differs,
    ),
)

OPERATORS = (
    Mistake(
        "strides_of_h",
        "GELU's operator, or that of its gradient, reads h or da as if it were contiguous, and returns a new tensor: "
        "take `h.contiguous()` and `da.contiguous()`, or load by their strides.",
        sign=lambda e: e.failed_only(GAPS),
    ),
)

COMPILED = (
    Mistake(
        "alias_returned",
        "An operator returns one of its arguments: give a new tensor, or write into the argument, say so in "
        "`mutates_args` and return nothing.",
        sign=lambda e: e.raised("must not also be an input") or e.raised("may not alias"),
    ),
    Mistake(
        "no_fake",
        "An operator has no rule for fake tensors, forward or backward: `register_fake` makes empty tensors of the "
        "right shape, strides and type.",
        sign=lambda e: e.raised("fake impl") or e.raised("register_fake"),
    ),
    Mistake(
        "fake_differs",
        "What `register_fake` promises is not what the operator gives: the compiler lays memory out by the shape, "
        "strides and type of the fake. `empty_like` keeps strides, `x.new_empty(shape)` is contiguous.",
        sign=lambda e: e.raised("the fake result of") or e.raised("raised TorchRuntimeError"),
    ),
    Mistake(
        "kernels_left_out",
        "Under the compiler a kernel runs less often than without. An operator that writes into an argument, and does "
        "not name it in `mutates_args`, looks useless there and is dropped; and a way of its own for the compiler has "
        "to launch the kernels too.",
        sign=lambda e: e.raised("under torch.compile the kernel"),
    ),
    Mistake(
        "values_of_lengths",
        "A value of the lengths is read (`item`, `tolist`, `int`, `max` for a loop): that ends the graph, or compiles "
        "anew for each value. Kernels load lengths themselves; masks compare with them.",
        sign=lambda e: _reads_a_value(e),
    ),
    Mistake(
        "number_of_images_fixed",
        "The tower was compiled again for another number of images: something takes it for a constant, such as "
        "`int(...)` of a size, or a loop over images.",
        sign=lambda e: e.raised("compiled again"),
    ),
    Mistake(
        "graph_ends",
        "Dynamo cannot go through a kernel's launch, or prints and the like: put the launch behind an operator "
        "(`torch.library.custom_op`), which is one node of the graph.",
        sign=lambda e: e.raised("under torch.compile the first call made") or e.raised("InternalTorchDynamoError"),
    ),
)


def _reads_a_value(e) -> bool:
    if e.raised("compiled again"):
        return e.raised("with other lengths")
    said = ("out of a tensor", "value of a tensor", "_local_scalar_dense", ".item()", ".tolist()")
    return e.raised("under torch.compile the first call made") and any(map(e.raised, said))


MISTAKES = (*MODULE, *OPERATORS, *COMPILED, *BLOCKS, *ATTENTION, *PADDING, *MLP)
