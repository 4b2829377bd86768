"""A whole model, counted operator by operator: sums that a person can do on paper."""

import math

import pytest
import torch
from matplotlib.text import Text
from torch.utils.flop_counter import FlopCounterMode

from autograder.exercises.dispatch.meter_truth import Meter
from course_lib import plots
from course_lib.models.transformer import Sizes, Transformer
from course_lib.roofline import Roof, Work, floor_s
from course_lib.tally import KINDS, by_kind, kind_of, tally

SIZES = (Sizes(), Sizes(vocabulary=96, context=33, width=48, heads=3, layers=3), Sizes(64, 16, 32, 1, 1))
ROOF = Roof("a machine", 100e12, 1e12)


def counted(sizes, batch=2, tokens=13):
    model = Transformer(sizes)
    ids = torch.randint(0, sizes.vocabulary, (batch, tokens + 1), generator=torch.Generator().manual_seed(0))
    return tally(Meter, lambda: model.loss(ids)), model, ids


@pytest.mark.parametrize("sizes", SIZES)
def test_flops_of_the_transformer_are_those_on_paper_forward_and_backward(sizes):
    calls, model, ids = counted(sizes)
    flops = {phase: sum(c.work.flops for c in calls if c.phase == phase) for phase in ("forward", "backward")}
    assert flops == {"forward": sizes.forward_flops(2, 13), "backward": sizes.backward_flops(2, 13)}
    with FlopCounterMode(display=False) as theirs:
        model.loss(ids).backward()
    assert sum(flops.values()) == theirs.get_total_flops()


@pytest.mark.parametrize("sizes", SIZES)
def test_bytes_of_its_products_are_those_of_three_matrices_each(sizes):
    calls, _, _ = counted(sizes)
    products = [one for several in sizes.products(2, 13).values() for one in several]
    expected = sum(4 * b * (m * k + k * n + m * n) for b, m, n, k in products)
    forward, backward = (next(r for r in by_kind(calls) if r[:2] == (p, KINDS[0])) for p in ("forward", "backward"))
    assert (forward.calls, forward.work.bytes) == (len(products), expected)
    # for either gradient the same three matrices: one of them is written instead
    assert (backward.calls, backward.work.bytes) == (2 * len(products), 2 * expected)


def test_two_flops_a_weight_and_token_are_all_but_attention():
    sizes = Sizes(width=256)
    attention = 2 * 2 * sizes.layers * 2 * 64 * 64 * sizes.width  # scores and values, 2 m n k each
    assert sizes.forward_flops(2, 64) - attention == 2 * sizes.weights * 2 * 64
    model = Transformer(sizes)
    assert sum(
        p.numel() for n, p in model.named_parameters() if p.dim() == 2 and n[:6] not in ("tokens", "places")
    ) == (sizes.weights)


def test_the_model_sees_nothing_that_comes_later_and_learns():
    torch.manual_seed(0)
    sizes = Sizes(vocabulary=11, context=12, width=32, heads=4, layers=2)
    model, ids = Transformer(sizes), torch.arange(24).view(2, 12) % 11
    changed = ids.clone()
    changed[:, 7:] = (changed[:, 7:] + 1) % 11
    first, second = model(ids), model(changed)
    assert torch.equal(first[:, :7], second[:, :7]) and not torch.equal(first[:, 7:], second[:, 7:])
    start = model.loss(ids).item()
    assert abs(start - math.log(11)) < 0.7  # nothing is known yet
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(25):
        optimizer.zero_grad()
        model.loss(ids).backward()
        optimizer.step()
    assert model.loss(ids).item() < 0.5 * start


def test_every_operator_finds_its_kind():
    aten = torch.ops.aten
    kinds = {
        "matrix products": (aten.mm.default, aten.baddbmm.default),
        "elementwise": (aten.add.Tensor, aten.gelu.default, aten.gelu_backward.default, aten.masked_fill.Scalar),
        "norms and softmax": (aten._softmax.default, aten.native_layer_norm_backward.default, aten.sum.default),
        "copies": (aten.clone.default, aten.copy_.default, aten.zeros.default),
        "lookups": (aten.embedding.default, aten.nll_loss_backward.default),
    }
    assert {kind: {kind_of(f) for f in funcs} for kind, funcs in kinds.items()} == {kind: {kind} for kind in kinds}
    assert set(kinds) == set(KINDS)


def test_sums_by_kind_lose_nothing_and_add_up_floors_call_by_call():
    calls, _, _ = counted(SIZES[1])
    rows = by_kind(calls, ROOF)
    moving = [c for c in calls if c.work != Work(0, 0)]
    assert sum(r.work for r in rows) == sum(c.work for c in moving) and sum(r.calls for r in rows) == len(moving)
    assert math.isclose(sum(r.floor_s for r in rows), sum(floor_s(c.work, ROOF) for c in moving))
    assert len(moving) < len(calls)  # views are calls too
    assert [r.phase for r in rows] == sorted((r.phase for r in rows), reverse=True)
    assert all(r.floor_s is None for r in by_kind(calls))


def test_without_a_backward_pass_there_is_none():
    model = Transformer(SIZES[2])
    with torch.no_grad():
        calls = tally(Meter, lambda: model(torch.zeros(1, 4, dtype=torch.long)), backward=False)
    assert {c.phase for c in calls} == {"forward"}


def test_the_figure_says_whose_flops_and_bytes_they_are():
    calls, _, _ = counted(SIZES[0])
    for roof, bars in ((None, 4), (ROOF, 6)):
        rows = by_kind(calls, roof)
        ax = plots.kinds(rows, device="a machine")
        assert len(ax.get_yticks()) == bars
        shown = [t.get_text() for t in ax.figure.findobj(Text)]
        products = sum(r.work.bytes for r in rows if r.kind == KINDS[0]) / sum(r.work.bytes for r in rows)
        assert "matrix products" in shown and f"{100 * products:.0f} % of the bytes" in ax.get_title(
            loc="left"
        ).replace("\n", " ")
