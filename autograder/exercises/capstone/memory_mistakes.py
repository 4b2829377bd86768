"""How people hold little wrongly, hold too much, or plan something else than they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from functools import lru_cache, partial

import torch
import torch.nn.functional as F

from autograder.exercise import Mistake
from autograder.exercises.capstone.memory_rules import accept, bytes_of, faults, truth, wrong_gradients
from autograder.exercises.everywhere import NOT_DIFFERENTIABLE, number_of_gradients
from autograder.inside.probes import holding
from course_lib.models.siglip import naive
from course_lib.models.siglip.frame import real_patches

# --------------------------------------------------------------------------- towers that compute another thing


def backward_of(wrong, right):
    """The values of `right`, and the gradients of `wrong`."""
    return wrong + (right - wrong).detach()


def _erf(h):
    return F.gelu(h)


def _tanh(h):
    return F.gelu(h, approximate="tanh")


class Variant(naive.Tower):
    """The naive tower in pieces; a distortion overrides one."""

    def forward(self, patches, lengths):
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        for block in self.blocks:
            x = self.past(x) + self.attend(block, x, real)
            x = self.past(x) + self.mlp(block, x)
        return self.mean(self.norm(x), real)

    def past(self, x):
        return x

    def mean(self, y, real):
        return self.pooled(y, real)

    def normed(self, norm, x):
        return norm(x)

    def normed_before_mlp(self, norm, x):
        return self.normed(norm, x)

    def attend(self, block, x, real):
        a = block.attention
        q, k, v = (self.heads_of(t, a.heads) for t in self.qkv(a, block.before_attention, x))
        return a.out(self.out_of_heads(self.attention(q, k, v, self.hidden(real))))

    def qkv(self, a, norm, x):
        y = self.normed(norm, x)
        return a.q(y), a.k(y), a.v(y)

    def heads_of(self, t, heads):
        return t.unflatten(-1, (heads, -1)).transpose(1, 2)

    def out_of_heads(self, o):
        return o.transpose(1, 2).flatten(2)

    def hidden(self, real):
        return ~real[:, None, None]

    def attention(self, q, k, v, hidden):
        return self.softmax(self.scores(q, k).masked_fill(hidden, -math.inf)) @ v

    def scores(self, q, k):
        return q @ k.mT * q.shape[-1] ** -0.5

    def softmax(self, scores):
        return scores.softmax(-1)

    def mlp(self, block, x):
        y = self.normed_before_mlp(block.before_mlp, x)
        return self.products(y, block.up.weight, block.up.bias, block.down.weight, block.down.bias)

    def products(self, y, w1, b1, w2, b2):
        h = F.linear(y, w1, b1)
        return F.linear(self.gelu(h), w2, b2)

    def gelu(self, h):
        return _tanh(h)


def naive_mlp(block, x):
    return block.down(_tanh(block.up(block.before_mlp(x))))


class NoMask(Variant):
    def hidden(self, real):
        return torch.zeros_like(real)[:, None, None]


class MaskOfQueries(Variant):
    def hidden(self, real):
        return ~real[:, None, :, None]

    def softmax(self, scores):
        return super().softmax(scores).nan_to_num(0.0)


class MaskOneTooLong(Variant):
    def hidden(self, real):
        return ~F.pad(real, (1, 0), value=True)[:, :-1][:, None, None]


class NoScale(Variant):
    def scores(self, q, k):
        return q @ k.mT


class ScaleOfTheWidth(Variant):
    def scores(self, q, k):
        return q @ k.mT * (q.shape[1] * q.shape[-1]) ** -0.5


class HeadsMixed(Variant):
    def heads_of(self, t, heads):
        batch, patches, width = t.shape
        return t.reshape(batch, heads, patches, width // heads)

    def out_of_heads(self, o):
        return o.transpose(1, 2).flatten(2)


class Erf(Variant):
    def gelu(self, h):
        return _erf(h)


class PooledOverPadding(Variant):
    def mean(self, y, real):
        return y.mean(1)


class ErfAgain(Variant):
    """The product after it takes what was made again, for the gradient of its weight."""

    def products(self, y, w1, b1, w2, b2):
        again = F.linear(_erf(F.linear(y, w1, b1)), w2, b2)
        return backward_of(again, super().products(y, w1, b1, w2, b2))


class SlopeMissing(Variant):
    def gelu(self, h):
        return backward_of(h, _tanh(h))


class SecondPartMissing(Variant):
    def gelu(self, h):
        a = _tanh(h)
        return backward_of(h * torch.where(h == 0, 0.5, a / h).detach(), a)


class BiasNotAddedAgain(Variant):
    def products(self, y, w1, b1, w2, b2):
        again = F.linear(_tanh(F.linear(y, w1) + b1 - b1.detach()), w2, b2)
        return backward_of(again, super().products(y, w1, b1, w2, b2))


class BiasBeforeSlope(Variant):
    """db1 is the sum of da, not of dh."""

    def products(self, y, w1, b1, w2, b2):
        right = super().products(y, w1, b1.detach(), w2, b2)
        rows = (b1 - b1.detach()).expand(*y.shape[:-1], -1)
        return right + F.linear(rows, w2)


class LastRowMissing(Variant):
    """The gradient of the second bias lacks the last row, or that of the first, or both."""

    of_first, of_second = False, True

    def products(self, y, w1, b1, w2, b2):
        last = torch.zeros(y.shape[:-1], dtype=torch.bool)
        last[-1, -1] = True
        first, second = (
            torch.where(last[..., None], b.detach(), b) if lacks else b
            for b, lacks in ((b1, self.of_first), (b2, self.of_second))
        )
        return F.linear(self.gelu(F.linear(y, w1) + first), w2) + second


class LastRowMissingOfFirst(LastRowMissing):
    of_first, of_second = True, False


class LastRowMissingOfBoth(LastRowMissing):
    of_first = True


class WeightOfPreActivation(Variant):
    """dw2 is made from h."""

    def products(self, y, w1, b1, w2, b2):
        right = super().products(y, w1, b1, w2.detach(), b2)
        return backward_of(right + F.linear(F.linear(y, w1, b1).detach(), w2), right)


class BiasesAveraged(Variant):
    def products(self, y, w1, b1, w2, b2):
        rows = y.shape[0] * y.shape[1]
        return super().products(y, w1, backward_of(b1 / rows, b1), w2, backward_of(b2 / rows, b2))


class NormPassed(Variant):
    """The gradient passes the norm of the MLP, or both, unchanged."""

    def normed_before_mlp(self, norm, x):
        return backward_of(x + norm(x.detach()), norm(x))


class BothNormsPassed(NormPassed):
    def normed(self, norm, x):
        return self.normed_before_mlp(norm, x)


class OtherEps(Variant):
    """1e-6 in the norm of the MLP."""

    def normed_before_mlp(self, norm, x):
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, 1e-6)


class OtherEpsOfBoth(OtherEps):
    def normed(self, norm, x):
        return self.normed_before_mlp(norm, x)


class OtherEpsOfAll(OtherEpsOfBoth):
    def forward(self, patches, lengths):
        self.norm.eps = 1e-6
        return super().forward(patches, lengths)


class OtherEpsAgain(OtherEps):
    """Only where backward makes the norm of the MLP again, and from it the rest."""

    def mlp(self, block, x):
        return backward_of(super().mlp(block, x), naive_mlp(block, x))


class OtherEpsOfBothAgain(OtherEpsAgain):
    def qkv(self, a, norm, x):
        wrong = super().qkv(a, partial(self.normed_before_mlp, norm), x)
        right = super().qkv(a, norm, x)
        return [backward_of(*both) for both in zip(wrong, right, strict=True)]


class ResidualLost(Variant):
    """No gradient passes beside a branch."""

    def past(self, x):
        return x.detach()


class ResidualLostOfTheMLP(Variant):
    def mlp(self, block, x):
        return super().mlp(block, x) - x + x.detach()


class NoMaskAgain(Variant):
    def attention(self, q, k, v, hidden):
        return backward_of(super().attention(q, k, v, torch.zeros_like(hidden)), super().attention(q, k, v, hidden))


class NoScaleBackward(Variant):
    def scores(self, q, k):
        return backward_of(q @ k.mT, super().scores(q, k))


class RowSumMissing(Variant):
    """ds = p dp."""

    def softmax(self, scores):
        p = scores.softmax(-1)
        return backward_of(p.detach() * scores.masked_fill(scores == -math.inf, 0.0), p)


@lru_cache(maxsize=1024)
def _of(kind: type[Variant], case: str) -> dict:
    results, gradients = holding.computed(kind, json.loads(case))
    return {"results": results, "gradients": gradients}


def _computes(*kinds: type[Variant]):
    """The results and gradients of these towers, where one of them is not as it should be."""

    def answer(v, kind):
        made, right = _of(kind, json.dumps(v["case"])), truth(v)
        return made if any(accept(made[name], right[name], v) for name in made) else {}

    return {"answer": answer, "variants": kinds}


# ---------------------------------------------------------------------------------------------- what is held


def _ran(e) -> Iterator:
    return (t for t in e.tried if t.outcome.error is None)


def _memory(t) -> dict[str, str]:
    """What is wrong with the memory of a call."""
    return faults(t.outcome.outputs["memory"], t.want["memory"], t.args["case"])


def _right(t) -> bool:
    """Whether result and gradients are."""
    return all(accept(t.outcome.outputs[name], t.want[name], t.args) is None for name in ("results", "gradients"))


def _kinds(e) -> set[str]:
    """What is wrong with the memory, in whatever case; {} where something else is wrong too."""
    ran = list(_ran(e))
    others = [t for t in e.tried if t.outcome.error is not None and not _about_the_plan(t.outcome.error)]
    return set() if others or not all(map(_right, ran)) else {kind for t in ran for kind in _memory(t)}


def _about_the_plan(error: str) -> bool:
    return "NotImplementedError" in error or "planned" in error


def _only_the_plan(e) -> bool:
    return _kinds(e) == {"plan"} and not any(t.outcome.error for t in e.tried)


class Rows:
    """What a call holds, in the terms of its sizes."""

    def __init__(self, t):
        case = t.args["case"]
        s = case["sizes"]
        self.item = bytes_of(case)
        self.images, self.layers, self.patches, self.heads = len(case["lengths"]), s["layers"], s["patches"], s["heads"]
        self.width, self.mlp, self.patch = s["width"], s["mlp"], s["patch"]
        self.rows = self.images * self.patches
        got = t.outcome.outputs["memory"]
        self.held, self.planned = got["held"], got["planned"]
        self.more = got["backward"] - t.want["memory"]["backward"]  # FLOP

    @property
    def layer(self) -> float:
        """Numbers a row and layer, what is held once taken off."""
        return (self.held / self.item / self.rows - self.patch - self.width) / self.layers

    def holds(self, numbers: float) -> bool:
        """Whether a row and layer holds so many, and besides a little."""
        return -0.01 * self.width < self.layer - numbers < 0.12 * self.width + self.heads + 4

    @property
    def whole(self) -> bool:
        """Whether it holds so many numbers of each row, beside booleans and a number of each image: no weights."""
        return any(
            (self.held - images * 8 * self.images - booleans * self.rows) % (self.item * self.rows) == 0
            for images in range(3)
            for booleans in range(self.item)
        )

    def multiplies(self, squares: float, hidden: float, attention: float) -> bool:
        """Whether backward takes so many products more: of width by width, width by the MLP's, queries by keys."""
        products = squares * self.width**2 + hidden * self.width * self.mlp + attention * self.width * self.patches
        return abs(self.more / (2 * self.rows * self.layers) - products) < 0.002 * products

    @property
    def weights(self) -> int:
        return 4 * self.width * (self.width + 1) + self.mlp * (2 * self.width + 1) + self.width


def _each(e, kind: str, holds: Callable[[Rows], bool]) -> bool:
    """Beside the plan only this is wrong, and where it is, the sizes are so."""
    return _kinds(e) - {"plan"} == {kind} and all(holds(Rows(t)) for t in _ran(e) if kind in _memory(t))


def _keeps(*ways: tuple[int, int]):
    """So many widths and hidden layers of each row and layer."""
    return lambda r: any(r.holds(w * r.width + m * r.mlp) for w, m in ways)


def _probabilities(r: Rows) -> bool:
    pairs = r.heads * r.patches
    return any(r.holds(k * pairs + w * r.width + m * r.mlp) for k in (1, 2) for w in (6, 7, 8) for m in (0, 1, 2))


def _weights_too(r: Rows) -> bool:
    """Copies of the weights of q, k and v, or of the MLP, a layer."""
    copies = (3 * r.width * (r.width + 1), 3 * r.width**2, 2 * r.mlp * r.width)
    return any(r.holds(some / r.rows + w * r.width) for some in copies for w in (5, 6, 7, 8))


def _weights_copied(e) -> bool:
    """h may happen to be as large as copies of weights. It is whole numbers of each row, and they are not in all cases:
    3 width^2 of 60 rows, say, are with a width of 60 and not with one of 65.
    """
    return _each(e, "share", _weights_too) and not all(Rows(t).whole for t in _ran(e) if t.args["case"]["asks"])


def _again(*ways: tuple[int, int, int]):
    """A sign: too many products backward, and in every case they are those of one of the ways."""

    def sign(e) -> bool:
        if _kinds(e) - {"plan"} != {"products"}:
            return False
        rows = [Rows(t) for t in _ran(e) if "products" in _memory(t)]
        return any(all(r.multiplies(*way) for r in rows) for way in ways)

    return sign


def _rounded(e) -> bool:
    """Results are right, and every gradient below is off by what 11 or 8 bits give."""
    ran = [t for t in _ran(e) if not _right(t)]
    if not ran or len(ran) < len(e.failing):
        return False
    for t in ran:
        if accept(t.outcome.outputs["results"], t.want["results"], t.args):
            return False
        off = wrong_gradients(t.outcome.outputs["gradients"], t.want["gradients"], t.args["case"])
        if not all(1e-6 < one < 2e-2 for one in off.values()):
            return False
    return True


def _nan(t, name: str) -> bool:
    return "NaN" in (accept(t.outcome.outputs[name], t.want[name], t.args) or "")


def _nan_behind(e, name: str) -> bool:
    """What this output has is NaN, where it lies behind the lengths and nowhere else."""
    ran = [t for t in _ran(e) if not _right(t)]
    return bool(ran) and all(t.args["case"]["nan"] and _nan(t, name) for t in ran)


# ------------------------------------------------------------------------------------------------- what is planned


def _plans(lacks: Callable[[Rows], float], *seen_in: str):
    """A sign: the plan lacks these bytes, negative for what it has too many of. seen_in: cases that always show it."""

    def sign(e) -> bool:
        if not _only_the_plan(e) or not all(map(e.failed, seen_in)):
            return False
        return all(abs(r.held - r.planned - lacks(r)) < 0.006 * r.held for r in map(Rows, e.failing))

    return {"sign": sign}


def _statistics_forgotten(e) -> bool:
    """The plan lacks at most 4 numbers of each row and layer, and at most 4 of each row besides."""
    if not _only_the_plan(e) or not all(map(e.failed, ("the plan, one layer", "the plan, many heads"))):
        return False
    lacks = [((r.held - r.planned) / (r.item * r.rows), r.layers) for r in map(Rows, e.failing)]
    ways = ((a, b) for a in range(5) for b in range(5) if a + b)
    return any(all(abs(numbers - a * layers - b) < 1 for numbers, layers in lacks) for a, b in ways)


def _per_layer(widths: float, hidden: float = 0.0):
    return lambda r: r.item * r.rows * r.layers * (widths * r.width + hidden * r.mlp)


def _plan_of_another(e, share: Callable[[Rows], float]) -> bool:
    """The plan is a share of what is held, nearly."""
    return _only_the_plan(e) and all(
        abs(r.planned / max(1.0, r.held) / share(r) - 1) < 0.03 for r in map(Rows, e.failing)
    )


def _layers_forgotten(e) -> bool:
    """Right of one layer, and of several the same as if there were one."""
    if not _only_the_plan(e) or any(t.case.name == "the plan, one layer" for t in e.failing):
        return False
    return all(r.planned < r.held / r.layers + r.item * r.rows * (r.patch + 3 * r.width) for r in map(Rows, e.failing))


RESULTS = (
    Mistake("mask_missing", "Padding takes part in the attention: where did the mask go?", **_computes(NoMask)),
    Mistake(
        "mask_of_queries",
        "The mask lies along the queries: it belongs along the keys, the last dimension of the scores.",
        **_computes(MaskOfQueries),
    ),
    Mistake("mask_one_too_long", "One patch of padding takes part: `<`, not `<=`.", **_computes(MaskOneTooLong)),
    Mistake(
        "scale_wrong",
        "The scores are multiplied with the wrong number: D ** -0.5, where D is the width of a head.",
        **_computes(NoScale, ScaleOfTheWidth),
    ),
    Mistake(
        "heads_mixed",
        "Heads and patches are mixed up: (B, N, heads D) is split into (B, N, heads, D), and only then transposed.",
        **_computes(HeadsMixed),
    ),
    Mistake("erf", "This is GELU with erf: the towers have the form with tanh.", **_computes(Erf)),
    Mistake(
        "padding_pooled", "The mean at the end is over the real patches of each image.", **_computes(PooledOverPadding)
    ),
    Mistake(
        "padding_not_set_to_zero",
        "NaN behind a length shows in the results: a weight of 0 hides no NaN. Set padding to 0 before the "
        "first product.",
        sign=lambda e: _nan_behind(e, "results"),
    ),
    Mistake(
        "padding_in_gradients",
        "The result is right, and NaN behind a length shows in the gradient of `embed`: that is a product over all "
        "rows, padding too. Set padding to 0 before the first product, not after it.",
        sign=lambda e: _nan_behind(e, "gradients"),
    ),
)

GRADIENTS = (
    NOT_DIFFERENTIABLE,
    number_of_gradients("what is no tensor"),
    Mistake(
        "gradient_missing",
        "A parameter has no gradient: `backward` returned None in its place, or it was used where no graph is made.",
        sign=lambda e: e.raised("there is no gradient of"),
    ),
    Mistake(
        "erf_again",
        "Forward is GELU with tanh, and backward makes it again with erf: `approximate` belongs to both.",
        **_computes(ErfAgain),
    ),
    Mistake("slope_missing", "The gradient passes GELU unchanged: dh = da gelu'(h).", **_computes(SlopeMissing)),
    Mistake(
        "second_part_missing",
        "The slope of GELU is (1 + t) / 2 alone: h / 2 times the derivative of t is missing.",
        **_computes(SecondPartMissing),
    ),
    Mistake(
        "bias_before_slope",
        "The gradient of up.bias was summed before the slope of GELU was applied: it is the sum of dh, as in "
        "dh = da gelu'(h), over rows.",
        **_computes(BiasBeforeSlope),
    ),
    Mistake(
        "row_missing",
        "The gradient of up.bias or down.bias lacks the last row: all rows are summed.",
        **_computes(LastRowMissing, LastRowMissingOfFirst, LastRowMissingOfBoth),
    ),
    Mistake(
        "other_eps",
        "A norm is computed with an eps of 1e-6, forward or where it is made again: the towers have nn.LayerNorm's "
        "own, 1e-5. In fp64 this shows.",
        **_computes(OtherEps, OtherEpsOfBoth, OtherEpsOfAll, OtherEpsAgain, OtherEpsOfBothAgain),
    ),
    Mistake(
        "bias_not_added_again",
        "Backward makes the pre-activation again without its bias.",
        **_computes(BiasNotAddedAgain),
    ),
    Mistake(
        "weight_of_pre_activation",
        "The gradient of down.weight was made from h: that product multiplies gelu(h).",
        **_computes(WeightOfPreActivation),
    ),
    Mistake(
        "biases_averaged",
        "The gradients of up.bias and down.bias are means over rows: they are sums.",
        **_computes(BiasesAveraged),
    ),
    Mistake(
        "norm_passed",
        "The gradient passes a norm unchanged: it goes through the norm's own backward, as it does for "
        "weight and bias.",
        **_computes(NormPassed, BothNormsPassed),
    ),
    Mistake(
        "residual_lost",
        "The gradient goes through the branch alone: what was added, x, passes it on as well.",
        **_computes(ResidualLost, ResidualLostOfTheMLP),
    ),
    Mistake(
        "mask_missing_again",
        "The probabilities are made again without the mask.",
        **_computes(NoMaskAgain),
    ),
    Mistake(
        "scale_missing_backward",
        "The gradients of q and k lack the factor D ** -0.5: the scores had it.",
        **_computes(NoScaleBackward),
    ),
    Mistake(
        "row_sum_missing",
        "ds = p dp lacks what softmax takes off: ds = p (dp - the sum of p dp over the row).",
        **_computes(RowSumMissing),
    ),
    Mistake(
        "rounded",
        "The result is right and the gradients are off by roundings: something was held in fewer bits. Leave it out "
        "and make it again instead.",
        sign=_rounded,
    ),
)

HELD = (
    Mistake(
        "everything_again",
        "Little is held, and backward multiplies too much again: a whole block is made once more. Find what costs no "
        "product to make again, and the one product that saves most.",
        sign=_again(*((4, hidden, attention) for hidden in (1, 2) for attention in (0, 2))),
    ),
    Mistake(
        "down_again",
        "Both products of the MLP are made again, and nobody reads what `down` gives: autograd goes back through the "
        "whole branch. End what it goes back through at gelu(h), and write the gradients of `down` by hand; or let a "
        "checkpoint that is not reentrant stop before it.",
        sign=_again((0, 2, 0)),
    ),
    Mistake(
        "too_much_again",
        "Backward multiplies too much again: one product of the MLP is granted, or q, k and v. Count what runs a "
        "second time; a norm or GELU costs no product.",
        sign=lambda e: _kinds(e) - {"plan"} == {"products"},
    ),
    Mistake(
        "held_in_vain",
        "Something is held that the backward pass never reads: leave it out of `save_for_backward`, and keep it "
        "neither on the context nor in the module.",
        sign=lambda e: "in vain" in _kinds(e),
    ),
    Mistake(
        "probabilities_kept",
        "The probabilities are held, patches x patches a head: q, k and the mask make them again.",
        sign=lambda e: _each(e, "share", _probabilities),
    ),
    Mistake(
        "weights_copied",
        "Copies of weights are held: torch.cat of q, k and v makes one in every layer. Give the Function the "
        "parameters.",
        sign=_weights_copied,
    ),
    Mistake(
        "nothing_again",
        "This is what autograd holds by itself: 8 widths and two hidden layers of each row and layer. Which of them "
        "can be made again from others?",
        sign=lambda e: _each(e, "share", _keeps((8, 2), (9, 2), (10, 2))),
    ),
    Mistake(
        "only_gelu_again",
        "One of the two hidden layers is left out, and a little too much is left: the results of the norms can be made "
        "again from x too.",
        sign=lambda e: _each(e, "share", _keeps((8, 1))) and e.failed("within 0.75"),
    ),
    Mistake(
        "only_norms_again",
        "The norms are made again, and both hidden layers are held, which are most of it.",
        sign=lambda e: _each(e, "share", _keeps((6, 2), (7, 2))),
    ),
    Mistake(
        "no_product_again",
        "Within 0.75, not within 0.55: a hidden layer is still held. To leave it out costs one product a layer again.",
        sign=lambda e: _each(e, "share", _keeps((6, 1), (7, 1), (5, 1), (8, 1))) and not e.failed("within 0.75"),
    ),
)

PLANS = (
    Mistake(
        "no_plan",
        "The class has no `planned(sizes, images, bytes_a_number)`: a static method that returns a dict.",
        sign=lambda e: e.raised("has no `planned`") or e.raised("planned() should return a dict"),
    ),
    Mistake(
        "plan_measured",
        "`planned` computes with tensors: it says what will be held from the sizes alone.",
        sign=lambda e: e.raised("planned() ran"),
    ),
    Mistake(
        "elements_planned",
        "The plan counts numbers: multiply with bytes_a_number.",
        sign=lambda e: _plan_of_another(e, lambda r: 1 / r.item),
    ),
    Mistake(
        "four_bytes_planned",
        "The plan takes 4 bytes a number, and in fp64 it is 8: bytes_a_number.",
        sign=lambda e: e.failed_only("the plan, fp64") and _plan_of_another(e, lambda r: 0.5),
    ),
    Mistake(
        "images_forgotten",
        "The plan is that of one image.",
        sign=lambda e: _plan_of_another(e, lambda r: 1 / r.images),
    ),
    Mistake(
        "layers_forgotten",
        "The plan is right for one layer, and of several it is the same: over all layers is asked for.",
        sign=_layers_forgotten,
    ),
    Mistake(
        "patches_forgotten",
        "The plan lacks the input of `embed`: the patches with padding set to 0 are another tensor than those that "
        "came, and its product keeps them for the gradient of its weight.",
        **_plans(lambda r: r.item * r.rows * r.patch, "the plan, long patches"),
    ),
    Mistake(
        "last_norm_forgotten",
        "The plan lacks one width a row, whatever the number of layers: the last norm keeps its input.",
        **_plans(lambda r: r.item * r.rows * r.width, "the plan, one layer"),
    ),
    Mistake(
        "before_and_after_forgotten",
        "The plan has the layers alone: the input of `embed` and that of the last norm are held too.",
        **_plans(lambda r: r.item * r.rows * (r.width + r.patch)),
    ),
    Mistake(
        "log_sum_exp_forgotten",
        "The plan lacks one number for each query and head: attention keeps the logarithm of the sum that softmax "
        "divides by.",
        **_plans(lambda r: r.item * r.rows * r.heads * r.layers, "the plan, many heads"),
    ),
    Mistake(
        "statistics_forgotten",
        "The plan lacks a few numbers of each row: a norm that torch computes keeps the mean and 1 / deviation beside "
        "x, two numbers of each row, the last norm too; and a mask is held as numbers, one of each row.",
        sign=_statistics_forgotten,
    ),
    Mistake(
        "hidden_planned",
        "The plan has a hidden layer that the tower makes again: what is not held is not planned.",
        **_plans(lambda r: -_per_layer(0, 1)(r)),
    ),
    Mistake(
        "norms_planned",
        "The plan has two widths of each row and layer too many: the norms' results, which are made again.",
        **_plans(lambda r: -_per_layer(2)(r)),
    ),
    Mistake(
        "width_forgotten",
        "The plan lacks one or two widths of each row and layer: x before each of the two norms; the result of a norm "
        "that is not made again; q, k and v, which are three; what attention returns.",
        sign=lambda e: any(_plans(_per_layer(widths))["sign"](e) for widths in (1, 2)),
    ),
    Mistake(
        "weights_planned",
        "The plan counts parameters: they are there anyway, and only what the first pass makes is held.",
        **_plans(lambda r: -r.item * r.layers * r.weights),
    ),
)

MISTAKES = (*RESULTS, *GRADIENTS, *HELD, *PLANS)
