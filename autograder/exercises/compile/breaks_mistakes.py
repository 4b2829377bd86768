"""What the tower computes, and what people leave in it or break while they repair it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from autograder.exercise import Mistake
from autograder.inside.probes import towers
from course_lib.models.broken_tower import Block, Tower

ONE_GRAPH = {"first": 1, "later": 0, "ended": [], "opaque": []}


def truth(v) -> dict:
    return {"results": towers.run(towers.make(Tower, v["config"]), v["calls"]), "graphs": ONE_GRAPH}


# ------------------------------------------------------------------------------- towers that compute another thing


class Variant(Tower):
    """The tower with one mask for all layers; a distortion overrides one method."""

    class block(Block):
        def forward(self, x, keys):
            x = x + self.attention(x, keys, x.shape[1])
            return x + self.down(torch.relu(self.up(x)))

    def forward(self, patches, lengths):
        x = self.embed(patches) + self.positions(patches.shape[1])
        for block in self.blocks:
            x = block(x, self.keys(patches.shape[1], lengths))
        return self.pooled(self.norm(x), lengths)

    def keys(self, patches, lengths):
        return torch.arange(patches) < lengths[:, None]


class NoMask(Variant):
    def keys(self, patches, lengths):
        return torch.ones(len(lengths), patches, dtype=torch.bool)


class MaskOffByOne(Variant):
    def keys(self, patches, lengths):
        return torch.arange(patches) <= lengths[:, None]


class MaskOfTheLongest(Variant):
    def keys(self, patches, lengths):
        return (torch.arange(patches) < lengths.max()).expand(len(lengths), patches)


class MaskInverted(Variant):
    def keys(self, patches, lengths):
        return torch.arange(patches) >= lengths[:, None]


class MaskOfQueries(Variant):
    class block(Variant.block):
        def attention(self, x, keys, longest):
            batch, patches, width = x.shape
            q, k, v = self.qkv(x).view(batch, patches, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5
            scores = scores.masked_fill(~keys[:, None, :, None], float("-inf"))
            return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, patches, width))


class MaskRemembered(Variant):
    """The lengths of the first call, as far as they go."""

    first = None

    def keys(self, patches, lengths):
        self.first = lengths if self.first is None else self.first
        return super().keys(patches, self.first) if len(self.first) == len(lengths) else super().keys(patches, lengths)


class PooledOverPadding(Variant):
    def pooled(self, x, lengths):
        return x.mean(1)


class PooledOverAll(Variant):
    """The sum over real patches, divided by all of them."""

    def pooled(self, x, lengths):
        return super().pooled(x, lengths) * lengths[:, None] / x.shape[1]


class PositionsByCentres(Variant):
    def positions(self, patches):
        return F.interpolate(self.table.t()[None], size=patches, mode="linear", align_corners=False)[0].t()


class PositionsNearest(Variant):
    def positions(self, patches):
        return F.interpolate(self.table.t()[None], size=patches, mode="nearest")[0].t()


class PositionsRounded(Variant):
    def positions(self, patches):
        return self.table[torch.linspace(0, len(self.table) - 1, patches).round().long()]


def _results(v, kind: type[Tower]) -> list:
    return towers.run(towers.make(kind, v["config"]), v["calls"])


def _computes(*kinds: type[Variant]):
    """The results of these towers, where they are other ones than the truth."""

    def answer(v, kind):
        results = _results(v, kind)
        return {"results": results} if results != _results(v, Variant) else {}

    return {"answer": answer, "variants": kinds}


# ------------------------------------------------------------------------------------- breaks that are left


def _graphs(e) -> list[dict]:
    return [t.outcome.outputs["graphs"] for t in e.tried if t.outcome.error is None]


def _ended(e, *signs: str) -> bool:
    return any(sign in why for graphs in _graphs(e) for why in graphs["ended"] for sign in signs)


LEFT = {  # kind of break -> words of the reasons that course_lib.torch_inside gives
    "scalar": ("read out of a tensor", "value of a tensor"),
    "numpy": ("NumPy",),
    "print": ("printing",),
    "clock": ("cannot look inside", "perf_counter"),
}


def _left(e, name: str) -> bool:
    """This break is left, and no other kind of break is."""
    return _ended(e, *LEFT[name]) and not any(_ended(e, *signs) for other, signs in LEFT.items() if other != name)


def _several(e) -> bool:
    return sum(_ended(e, *signs) for signs in LEFT.values()) > 1


def _right_but_again(e, *cases: str) -> bool:
    """One graph and right results everywhere, compiled again in all of these cases."""
    right = all(graphs["first"] == 1 for graphs in _graphs(e)) and len(_graphs(e)) == len(e.tried)
    return right and all(e.failed(case) and _results_right(e, case) for case in cases)


def _results_right(e, case: str) -> bool:
    results = [(t.outcome.outputs["results"], t.want["results"], t.args) for t in e.tried if t.case.name == case]
    return all(e.exercise.accept(*result) is None for result in results)


def _remembers(e) -> bool:
    ran = [t for t in e.tried if t.case.name == "another mask each time" and t.outcome.error is None]
    return any(
        not _results_right(e, t.case.name)
        and e.exercise.accept(t.outcome.outputs["results"], _results(t.args, MaskRemembered), t.args) is None
        for t in ran
    )


MISTAKES = (
    Mistake(
        "several_breaks_left",
        "More than one kind of break is left. A break hides those that come after it: repair one, compile, and read "
        "the list again.",
        sign=_several,
    ),
    Mistake(
        "disabled",
        "A part was taken out with torch.compiler.disable: the graph ends there, and begins again after it.",
        sign=lambda e: _ended(e, "not to be compiled", "disable"),
    ),
    Mistake(
        "hidden_in_an_operator",
        "The tower went into an operator of your own: that is one graph, with a call in it that no compiler can look "
        "into. Repair what ends a graph, and leave the rest to torch's operators.",
        sign=lambda e: any(graphs["opaque"] for graphs in _graphs(e)),
    ),
    Mistake(
        "scalar_read_left",
        "A number is still read out of a tensor. No layer needs it: compare `torch.arange(patches)` with the lengths, "
        "once, and give the mask to the layers.",
        sign=lambda e: _left(e, "scalar"),
    ),
    Mistake(
        "numpy_left",
        "The positions still go through NumPy: torch.nn.functional.interpolate computes them.",
        sign=lambda e: _left(e, "numpy"),
    ),
    Mistake(
        "print_left",
        "A print is left: print outside of the module.",
        sign=lambda e: _left(e, "print"),
    ),
    Mistake(
        "clock_left",
        "The time is still taken inside: take it around the call.",
        sign=lambda e: _left(e, "clock"),
    ),
    Mistake(
        "batch_written_down",
        "A new number of images is compiled anew: something in the module turned it into a number of Python, such as a "
        "loop over images or int(). Keep it a size.",
        sign=lambda e: _right_but_again(e, "the batch grows") and not e.failed("another mask each time"),
    ),
    Mistake(
        "counter_kept",
        "Every call is compiled anew, also with the same sizes: the graph depends on a number that the module changes "
        "in each call. Count outside of it.",
        sign=lambda e: _right_but_again(e, "another mask each time", "the batch grows"),
    ),
    Mistake(
        "mask_remembered",
        "The first mask is used for later calls too: make it from the lengths of each call.",
        sign=_remembers,
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
        "One patch of padding takes part: `<`, not `<=`.",
        **_computes(MaskOffByOne),
    ),
    Mistake(
        "mask_inverted",
        "The padding is kept and the image masked out.",
        **_computes(MaskInverted),
    ),
    Mistake(
        "mask_of_queries",
        "The mask lies along the queries: it belongs along the keys, the last dimension of the scores.",
        **_computes(MaskOfQueries),
    ),
    Mistake(
        "padding_pooled",
        "The mean at the end is over the real patches of each image.",
        **_computes(PooledOverPadding, PooledOverAll),
    ),
    Mistake(
        "positions_by_centres",
        "The positions are interpolated between the centres of cells: the broken tower goes from the first learnt one "
        "to the last, align_corners=True.",
        **_computes(PositionsByCentres),
    ),
    Mistake(
        "positions_not_interpolated",
        "The nearest learnt position is taken: the broken tower interpolates between two.",
        **_computes(PositionsNearest, PositionsRounded),
    ),
)
