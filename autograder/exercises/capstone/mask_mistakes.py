"""What the tower computes, and what people break while they take the mask out of its layers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F

from autograder.exercise import Mistake
from autograder.inside.probes import hoisting
from course_lib.models.siglip import naive
from course_lib.models.siglip.frame import real_patches

ONE_GRAPH = {"first": 1, "later": 0, "ended": [], "opaque": []}
NOTHING_AGAIN = {"again": [], "masks": 0}
INF = float("inf")
LIMIT = 1e-9  # of the largest number: float64, the same maths in another order; fp32 anywhere is off by more


def truth(v) -> dict:
    results, gradients = hoisting.run(hoisting.make(naive.Tower, v["config"]), v["config"], v["calls"])
    return {"results": results, "gradients": gradients, "graphs": ONE_GRAPH, "hoisted": NOTHING_AGAIN}


# ------------------------------------------------------------------------------- towers that compute another thing


class Variant(naive.Tower):
    """The naive tower in small steps; a distortion overrides one of them."""

    def forward(self, patches, lengths):
        real = real_patches(lengths, patches.shape[1])
        keys = self.keys(patches.shape[1], lengths)
        x = self.embedded(patches, real)
        for block in self.blocks:
            x = x + self.attention(block.attention, block.before_attention(x), keys)
            x = x + block.down(self.gelu(block.up(block.before_mlp(x))))
        return self.pooled(self.norm(x), real)

    def keys(self, patches, lengths):
        return real_patches(lengths, patches)

    def attention(self, part, x, keys):
        q, k, v = self.apart(torch.cat([f(x) for f in (part.q, part.k, part.v)], -1), part.heads)
        o = self.weights(self.scores(q, k), keys[:, None, None]) @ v
        return part.out(self.side_by_side(o))

    def apart(self, qkv, heads):
        return qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)

    def scores(self, q, k):
        return q @ k.mT * q.shape[-1] ** -0.5

    def weights(self, scores, keys):
        return scores.masked_fill(~keys, -INF).softmax(-1)

    def side_by_side(self, o):
        return o.transpose(1, 2).flatten(2)

    def gelu(self, x):
        return F.gelu(x, approximate="tanh")


class NoMask(Variant):
    def weights(self, scores, keys):
        return scores.softmax(-1)


class MaskOffByOne(Variant):
    def keys(self, patches, lengths):
        return torch.arange(patches, device=lengths.device) <= lengths[:, None]


class MaskOneShort(Variant):
    """An image of one patch has no key left."""

    def keys(self, patches, lengths):
        return torch.arange(patches, device=lengths.device) < lengths[:, None] - 1


class AllOneLong(Variant):
    """Where one mask serves for everything."""

    def forward(self, patches, lengths):
        return super().forward(patches, lengths + 1)


class AllOneShort(Variant):
    def forward(self, patches, lengths):
        return super().forward(patches, lengths - 1)


class AllOneShortButTheirNumber(Variant):
    def pooled(self, x, real):
        n = real.sum(1, keepdim=True)
        short = real_patches(n[:, 0] - 1, x.shape[1])
        return x.where(short[..., None], 0).sum(1) / n

    keys = MaskOneShort.keys


class MaskOfTheLongest(Variant):
    def keys(self, patches, lengths):
        return (torch.arange(patches, device=lengths.device) < lengths.max()).expand(len(lengths), patches)


class MaskInverted(Variant):
    def weights(self, scores, keys):
        return scores.masked_fill(keys, -INF).softmax(-1)


class MaskInvertedSafely(Variant):
    """Where no key is left, as the fused attention does it: nothing."""

    def weights(self, scores, keys):
        return super().weights(scores, ~keys).nan_to_num()


class MaskOfQueries(Variant):
    def weights(self, scores, keys):
        return super().weights(scores, keys.mT)


class MaskOfQueriesSafely(Variant):
    def weights(self, scores, keys):
        return super().weights(scores, keys.mT).nan_to_num()


class MaskOfBoth(Variant):
    """Padding has no key left, and NaN times 0 is NaN in the mean."""

    def weights(self, scores, keys):
        return super().weights(scores, keys & keys.mT)


class MaskOfAnotherImage(Variant):
    """The masks of all images, then those of all images again, where heads lie inside of images."""

    def weights(self, scores, keys):
        images, heads, rows, _ = scores.shape
        keys = keys[:, 0, 0].repeat(heads, 1).view(images, heads, 1, rows)
        return super().weights(scores, keys)


class MaskOfAnotherImageInHeads(Variant):
    """The other way round: heads are outermost, and the mask has images outermost."""

    def weights(self, scores, keys):
        images, heads, rows, _ = scores.shape
        keys = keys[:, 0, 0].repeat_interleave(heads, 0).view(heads, images, 1, rows).transpose(0, 1)
        return super().weights(scores, keys)


class Added(Variant):
    """True is one, and is added."""

    def weights(self, scores, keys):
        return (scores + keys).softmax(-1)


class AddedToPadding(Variant):
    def weights(self, scores, keys):
        return (scores + ~keys).softmax(-1)


class Multiplied(Variant):
    """A score of 0 is no weight of 0."""

    def weights(self, scores, keys):
        return (scores * keys).softmax(-1)


class AfterSoftmax(Variant):
    def weights(self, scores, keys):
        return scores.softmax(-1) * keys


class ZeroTimesInfinity(Variant):
    def weights(self, scores, keys):
        return (scores + (~keys).to(scores) * -INF).softmax(-1)


def _weaker(number: float) -> type[Variant]:
    class Weak(Variant):
        def weights(self, scores, keys):
            return (scores + (~keys).to(scores) * number).softmax(-1)

    return Weak


def _set_to(number: float) -> type[Variant]:
    class Weak(Variant):
        def weights(self, scores, keys):
            return scores.masked_fill(~keys, number).softmax(-1)

    return Weak


WEAK = (-1e2, -1e3, -1e4, torch.finfo(torch.float16).min)
NEAR_LIMIT = (1e-8, 1e-9, 1e-10, 1e-12)  # whether such a weight shows is a matter of the scores
LOGARITHMS = (1e-6, *NEAR_LIMIT, 1e-20)


class ScaledTwice(Variant):
    def scores(self, q, k):
        return super().scores(q, k) * q.shape[-1] ** -0.5


class ScaledByTheWidth(Variant):
    def scores(self, q, k):
        return q @ k.mT * (q.shape[1] * q.shape[-1]) ** -0.5


class NotScaled(Variant):
    def scores(self, q, k):
        return q @ k.mT


class KeysFirst(Variant):
    def apart(self, qkv, heads):
        k, q, v = super().apart(qkv, heads)
        return q, k, v


class HeadsFirst(Variant):
    def apart(self, qkv, heads):
        return qkv.unflatten(-1, (heads, 3, -1)).permute(3, 0, 2, 1, 4)


class HeadsMixed(Variant):
    def side_by_side(self, o):
        return o.reshape(o.shape[0], o.shape[2], -1)


class GeluByErf(Variant):
    def gelu(self, x):
        return F.gelu(x)


class PooledOverPadding(Variant):
    def pooled(self, x, real):
        return x.mean(1)


class DividedByAll(Variant):
    def pooled(self, x, real):
        return super().pooled(x, real) * real.to(x).mean(1, keepdim=True)


class NotDivided(Variant):
    def pooled(self, x, real):
        return super().pooled(x, real) * real.sum(1, keepdim=True)


class SharesInSingle(Variant):
    """A quotient of integers is of torch's default type."""

    def pooled(self, x, real):
        shares = real / real.sum(1, keepdim=True)
        return (x * shares[..., None]).sum(1)


class NotCleared(Variant):
    def embedded(self, patches, real):
        return self.embed(patches) + self.places


class NaNCleared(Variant):
    def embedded(self, patches, real):
        return self.embed(patches.nan_to_num()) + self.places


class NoLastNorm(Variant):
    def forward(self, patches, lengths):
        self.norm = torch.nn.Identity()
        return super().forward(patches, lengths)


class MaskRemembered(Variant):
    """The lengths of the first call, as far as they go."""

    first = None

    def forward(self, patches, lengths):
        self.first = lengths if self.first is None else self.first
        return super().forward(patches, self.first if len(self.first) == len(lengths) else lengths)


class MaskOfKeysRemembered(Variant):
    """The same, but for the mean at the end."""

    first = None

    def keys(self, patches, lengths):
        self.first = lengths if self.first is None else self.first
        return super().keys(patches, self.first if len(self.first) == len(lengths) else lengths)


@lru_cache(maxsize=1024)
def _computed(kind: Callable, told: str) -> list:
    v = json.loads(told)
    tower = hoisting.make(kind, v["config"])
    with torch.no_grad():
        return [tower(*hoisting.images(v["config"], call)).tolist() for call in v["calls"]]


def _results(v, kind: Callable) -> list:
    return _computed(kind, json.dumps({"config": v["config"], "calls": v["calls"]}))


def _differ(results: list, true: list) -> bool:
    here, there = (torch.cat([torch.tensor(rows, dtype=torch.float64) for rows in one]) for one in (results, true))
    return not bool(((here - there).abs() <= LIMIT * there.abs().max()).all())


def _computes(*kinds: type[Variant]):
    """The results of these towers, where they are other ones than the truth."""

    def answer(v, kind):
        results = _results(v, kind)
        return {"results": results} if _differ(results, _results(v, Variant)) else {}

    return {"answer": answer, "variants": kinds}


@lru_cache(maxsize=64)
def _ran_through(number: float, call: str) -> dict:
    v = json.loads(call)
    results, gradients = hoisting.run(hoisting.make(_weaker(number), v["config"]), v["config"], v["calls"])
    return {"results": results, "gradients": gradients}


def _weak(number: float, output: str, v) -> dict:
    made = _ran_through(number, json.dumps({"config": v["config"], "calls": v["calls"]}))
    return {output: made[output]}


# Results, and gradients, of masks so weak that they show in some draws only
NEARLY_RIGHT = tuple(partial(_weak, math.log(one), output) for one in NEAR_LIMIT for output in ("results", "gradients"))


# ------------------------------------------------------------------------------------- what the signs look at


def _ran(e, output: str) -> list:
    return [t.outcome.outputs[output] for t in e.tried if t.outcome.error is None]


def _ended(e, *signs: str) -> bool:
    return any(sign in why for graphs in _ran(e, "graphs") for why in graphs["ended"] for sign in signs)


def _one_graph(e) -> bool:
    return all(graphs["first"] == 1 and not graphs["ended"] for graphs in _ran(e, "graphs"))


def _right(t, output: str, e) -> bool:
    return t.outcome.error is None and e.exercise.accept(t.outcome.outputs[output], t.want[output], t.args) is None


def _all_right(e, output: str) -> bool:
    return all(_right(t, output, e) for t in e.tried)


def _compiled_again(e, case: str) -> bool:
    return any(t.case.name == case and t.outcome.outputs.get("graphs", {}).get("later") for t in e.tried)


def _remembers(e) -> bool:
    """Right but where the first lengths are used again."""
    ran = [t for t in e.tried if t.case.name == "other lengths each time" and t.outcome.error is None]
    accept, wrong = e.exercise.accept, [t for t in ran if not _right(t, "results", e)]
    kinds = MaskRemembered, MaskOfKeysRemembered
    return any(
        accept(t.outcome.outputs["results"], _results(t.args, kind), t.args) is None for t in wrong for kind in kinds
    )


def _gradients_only(e, *cases: str) -> bool:
    return _all_right(e, "results") and _one_graph(e) and e.failed_only(*cases)


def _gradients_missing(e) -> bool:
    ran = [t for t in e.tried if _right(t, "results", e)]
    return any(t.want["gradients"].keys() - t.outcome.outputs["gradients"].keys() for t in ran)


COMPARISONS = {"lt", "gt", "le", "ge", "less", "greater", "arange"}


def _again(e) -> set[str]:
    """Operations that layers do again, where nothing else is wrong."""
    found = _ran(e, "hoisted") if _one_graph(e) and _all_right(e, "results") else []
    return {name for one in found for name in one["again"]}


MISTAKES = (
    Mistake(
        "strong_tower",
        "This is the strong tower of the course. Write the forward pass yourself: the naive tower is a good start.",
        sign=lambda e: e.raised("made of course_lib"),
    ),
    Mistake(
        "names_changed",
        "The weights of the naive tower do not fit: keep its names (embed, places, blocks, norm, and those of the "
        "layers).",
        sign=lambda e: e.raised("keep their names"),
    ),
    Mistake(
        "inputs_changed",
        "Padding was cleared in the tensor that the caller passed: make a new one, with masked_fill or torch.where.",
        sign=lambda e: e.raised("was changed"),
    ),
    Mistake(
        "no_gradient",
        "The result knows no gradient of the weights: is there a no_grad, a detach or a .data in forward?",
        sign=lambda e: e.raised("does not require grad") or _gradients_missing(e),
    ),
    Mistake(
        "mask_of_another_type",
        "The mask that is added has another type than q, k and v: make it like x, `torch.zeros_like(real, "
        "dtype=x.dtype)`.",
        sign=lambda e: e.raised("attn_mask") or e.raised("attention mask"),
    ),
    Mistake(
        "disabled",
        "A part was taken out with torch.compiler.disable: the graph ends there, and begins again after it.",
        sign=lambda e: _ended(e, "not to be compiled", "disable"),
    ),
    Mistake(
        "hidden_in_an_operator",
        "A part went into an operator of your own: in the graph that is a call that no compiler can look into. Here "
        "torch's operators are enough.",
        sign=lambda e: any(graphs["opaque"] for graphs in _ran(e, "graphs")),
    ),
    Mistake(
        "size_from_the_data",
        "The number of real patches became the size of a tensor, as in `x[real]`: the graph ends there. Keep all "
        "patches, and a mask.",
        sign=lambda e: _ended(e, "size of the result depends"),
    ),
    Mistake(
        "scalar_read",
        "A number is read out of a tensor: `.item()`, `int()`, `.tolist()`, or an `if`. No layer needs it: compare "
        "`torch.arange(patches)` with the lengths, once.",
        sign=lambda e: _ended(e, "read out of a tensor", "the value of a tensor", "Data dependent operator"),
    ),
    Mistake(
        "mask_remembered",
        "A mask of an earlier call is used again, because sizes are the same: make it from the lengths of each call.",
        sign=_remembers,
    ),
    Mistake(
        "batch_written_down",
        "A new number of images is compiled anew: something turned it into a number of Python, such as a loop over "
        "images, int() or an `if`. Keep it a size.",
        sign=lambda e: _compiled_again(e, "the batch grows") and not _compiled_again(e, "other lengths each time"),
    ),
    Mistake(
        "compiled_for_every_call",
        "Every call is compiled anew, also with the same sizes: the graph depends on an object or a number that "
        "changes from call to call.",
        sign=lambda e: _compiled_again(e, "other lengths each time"),
    ),
    Mistake(
        "made_in_every_layer",
        "The mask is made again in every layer. Make it once, before the first layer, and pass it on. A cache in "
        "Python does not help: Dynamo looks into the function, and writes what it does into the graph each time.",
        sign=lambda e: bool(_again(e) & COMPARISONS),
    ),
    Mistake(
        "turned_in_every_layer",
        "The mask is made once, and every layer still turns it into the form that it needs: `~`, an index, a view, "
        "another type. Make that form once, too.",
        sign=lambda e: bool(_again(e)) and not _again(e) & COMPARISONS,
    ),
    Mistake(
        "a_mask_for_each_layer",
        "As many masks are made as there may be layers, all equal. One is enough: every layer reads it.",
        sign=lambda e: _all_right(e, "results") and not _again(e) and any(one["masks"] for one in _ran(e, "hoisted")),
    ),
    Mistake(
        "cleared_after_embed",
        "The results are right, and the gradient of `embed` is NaN: it is a product with the patches as they came, "
        "and 0 times NaN is NaN. Clear the padding before embed.",
        sign=lambda e: _gradients_only(e, "padding that is no number"),
    ),
    Mistake(
        "masked_after_exp",
        "The results are right, and gradients are NaN where scores are large: exp of the score of padding is "
        "infinite, and its gradient is 0 times that. Put the mask on the scores, before exp.",
        sign=lambda e: _gradients_only(e, "large scores"),
    ),
    Mistake(
        "padding_not_cleared",
        "Padding that is NaN or infinite reaches the real patches, for 0 times NaN is NaN. Choose between numbers, "
        "with masked_fill or torch.where, and do so before the first layer.",
        **_computes(NotCleared),
    ),
    Mistake(
        "only_nan_cleared",
        "Padding may be infinite, too, and nan_to_num makes a very large number of that: clear what lies behind a "
        "length, whatever it is.",
        **_computes(NaNCleared),
    ),
    Mistake(
        "mask_too_weak",
        "What is added to the scores of padding is not enough: they may be larger than that. Take -inf; every image "
        "has a real patch, so no softmax is left without one.",
        **_computes(*map(_weaker, WEAK), *map(_set_to, WEAK), *(_weaker(math.log(one)) for one in LOGARITHMS)),
    ),
    Mistake(
        "mask_dropped",
        "Padding takes part in the attention: where did the mask go?",
        **_computes(NoMask),
    ),
    Mistake(
        "mask_of_the_longest",
        "One length for all images: the mask leaves in what is padding of the shorter ones.",
        **_computes(MaskOfTheLongest),
    ),
    Mistake(
        "mask_off_by_one",
        "The mask ends one patch too late or too early: a patch is real where its number, from 0, is less than the "
        "length.",
        **_computes(MaskOffByOne, MaskOneShort, AllOneLong, AllOneShort, AllOneShortButTheirNumber),
    ),
    Mistake(
        "mask_inverted",
        "The padding takes part and the image does not. scaled_dot_product_attention wants True where a key takes "
        "part, masked_fill where it does not.",
        **_computes(MaskInverted, MaskInvertedSafely),
    ),
    Mistake(
        "mask_of_queries",
        "The mask lies along the queries: it belongs along the keys alone, the last dimension of the scores. A query "
        "without any key gets NaN.",
        **_computes(MaskOfQueries, MaskOfQueriesSafely, MaskOfBoth),
    ),
    Mistake(
        "mask_of_another_image",
        "The masks are not in the order of the images and heads: `repeat` writes all images again and again, "
        "`repeat_interleave` each image several times. A dimension of size 1 needs neither.",
        **_computes(MaskOfAnotherImage, MaskOfAnotherImageInHeads),
    ),
    Mistake(
        "mask_added_as_it_is",
        "Ones and zeros were added to the scores: what is added is 0 for a real patch and -inf for padding.",
        **_computes(Added, AddedToPadding),
    ),
    Mistake(
        "mask_multiplied",
        "The mask was multiplied with the scores or the weights: a score of 0 is a weight all the same, and weights "
        "that are cut after the softmax no longer add up to 1.",
        **_computes(Multiplied, AfterSoftmax),
    ),
    Mistake(
        "zero_times_infinity",
        "The mask is made by a product with -inf, and 0 times -inf is NaN. Write -inf where it belongs: masked_fill "
        "or torch.where.",
        **_computes(ZeroTimesInfinity),
    ),
    Mistake(
        "scale_wrong",
        "The scores have another scale: it is 1 / sqrt(numbers a head), once. scaled_dot_product_attention brings "
        "its own.",
        **_computes(ScaledTwice, ScaledByTheWidth, NotScaled),
    ),
    Mistake(
        "order_of_qkv",
        "q, k and v lie in another order than that of the packed weights: all of q, then all of k, then all of v, "
        "and the heads inside of each.",
        **_computes(KeysFirst, HeadsFirst),
    ),
    Mistake(
        "heads_mixed",
        "The heads were not brought side by side again: `transpose(1, 2)` comes before reshape.",
        **_computes(HeadsMixed),
    ),
    Mistake(
        "gelu_exact",
        'The naive tower\'s GELU is the one with tanh: approximate="tanh".',
        **_computes(GeluByErf),
    ),
    Mistake(
        "padding_pooled",
        "The mean at the end is over the real patches of each image: their sum, divided by their number.",
        **_computes(PooledOverPadding, DividedByAll, NotDivided),
    ),
    Mistake(
        "mean_in_single_precision",
        "The results are off by what fp32 rounds: a bool divided by an integer has torch's default type. Convert to "
        "the type of x before the division.",
        **_computes(SharesInSingle),
    ),
    Mistake(
        "last_norm_left_out",
        "The mean is taken of what the last block gives: the norm comes before it.",
        **_computes(NoLastNorm),
    ),
)
