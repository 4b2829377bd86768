"""Time and floor by family of operators: which family an operator is of, and that nothing is counted twice."""

import pytest
import torch
import torch.nn.functional as F

from course_lib.models.siglip import Sizes, naive, strong
from course_lib.profiling.families import FAMILIES, PHASES, by_family, family_of
from course_lib.roofline import Roof

ROOF = Roof("made up", 1e12, 1e11)
SMALL = Sizes(patch=12, patches=16, width=32, mlp=72, heads=2, layers=2)
aten = torch.ops.aten


def rows_of(kind, device="cpu", timed=True, images=3):
    with torch.device(device):
        tower, patches = kind(SMALL), torch.ones(images, SMALL.patches, SMALL.patch)
        lengths = torch.ones(images, dtype=torch.int64)
    weights = list(tower.parameters())
    return by_family(lambda: tower(patches, lengths), weights, patches=SMALL.patches, roof=ROOF, timed=timed)


@pytest.mark.parametrize(
    ("op", "shape", "family"),
    [
        (aten.addmm.default, (8, 8), "products with weights"),
        (aten.bmm.default, (6, 16, 4), "attention"),
        (aten.mul.Tensor, (3, 2, 16, 16), "attention"),
        (aten._to_copy.default, (3, 2, 16, 16), "attention"),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (3, 2, 16, 8), "attention"),
        (aten.gelu_backward.default, (3, 16, 72), "GELU"),
        (aten.native_layer_norm_backward.default, (3, 16, 32), "norms"),
        (aten.clone.default, (3, 16, 32), "copies"),
        (aten.add.Tensor, (3, 16, 32), "additions, sums"),
        (aten.mul.Tensor, (16, 16), "additions, sums"),
        (torch.ops.profiler._record_function_enter_new.default, (3,), "own operators"),
    ],
)
def test_the_family_of_an_operator_follows_from_its_name_and_from_scores(op, shape, family):
    assert family_of(op, [torch.empty(shape, device="meta")], patches=16) == family


def test_the_floor_of_products_is_that_of_the_counted_flops_and_only_naive_attention_works_on_scores():
    fast = Roof("bytes cost nothing", ROOF.flops_per_s, 1e30)
    with torch.device("meta"):
        tower, patches = naive.Tower(SMALL), torch.empty(3, 16, 12)
        lengths = torch.empty(3, dtype=torch.int64)
    rows = by_family(
        lambda: tower(patches, lengths), list(tower.parameters()), patches=16, roof=fast, timed=False
    )  # fmt: skip
    assert all(row.seconds is None for row in rows)
    for phase, flops in zip(PHASES, (SMALL.forward_flops(3), SMALL.backward_flops(3))):
        floor = sum(row.floor_s for row in rows if row.phase == phase)
        # the mean at the end is a product too: one row of ones for each image
        assert floor * ROOF.flops_per_s == pytest.approx(flops, rel=0.05) and floor * ROOF.flops_per_s >= flops
    scores = 3 * SMALL.heads * SMALL.patches**2
    moved = {kind: attention_bytes(rows_of(kind)) for kind in (naive.Tower, strong.Tower)}
    assert moved[naive.Tower] > 40 * scores * SMALL.layers > moved[strong.Tower]


def attention_bytes(rows):
    return next(row.bytes for row in rows if (row.phase, row.family) == ("forward", "attention"))


def test_rows_stand_in_order_have_times_and_the_same_counts_on_paper():
    timed, paper = rows_of(naive.Tower), rows_of(naive.Tower, "meta", timed=False)
    places = [(PHASES.index(row.phase), FAMILIES.index(row.family)) for row in timed]
    assert places == sorted(set(places))
    assert all(row.seconds > 0 for row in timed)
    # the mask's negation and the mean take other operators on meta than on a CPU, and move next to nothing
    large = [row for row in timed if row.family != "additions, sums"]
    assert [(r.family, r.calls, r.bytes) for r in large] == [
        (r.family, r.calls, r.bytes) for r in paper if r.family != "additions, sums"
    ]


@torch.library.custom_op("families_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x) * 2


twice.register_autograd(lambda ctx, d: 2 * d)


def test_an_operator_of_ones_own_is_one_operator_without_a_floor():
    w = torch.ones(4, 4, requires_grad=True)
    rows = by_family(lambda: twice(w @ w), [w], patches=16, roof=ROOF)
    assert [(r.family, r.calls, r.floor_s is None) for r in rows if r.phase == "forward"] == [
        ("products with weights", 1, False),
        ("own operators", 1, True),
    ]
