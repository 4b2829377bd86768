"""The tower in ledgers on paper, and its recorded rows as steps."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks import tower as benchmark
from course_lib.models.siglip import Sizes, naive, on_paper, strong
from course_lib.models.siglip.steps import steps

SIZES, IMAGES = Sizes.so400m(layers=2), 8
ROWS, D, M = IMAGES * 256, 1152, 4304


def test_the_strong_tower_keeps_eight_widths_and_two_hidden_layers_a_row():
    own = F.scaled_dot_product_attention
    account = on_paper.step_on_paper(strong.Tower, SIZES, IMAGES)
    assert F.scaled_dot_product_attention is own
    held = account.owners_at(account.forward - 1)
    layers = 2 * ROWS * SIZES.layers
    # x before the first layer's norm and before the last one is counted with the others
    assert held["x"] == 2 * ROWS * D * (2 * SIZES.layers + 1)
    assert held["results of norms"] == layers * 2 * D
    assert held["q, k, v, o"] == layers * 4 * D
    assert held["h"] == held["gelu(h)"] == layers * M
    assert "probabilities" not in held
    assert sum(held.values()) == account.held_bytes


def test_the_naive_tower_keeps_its_probabilities_in_two_types():
    account = on_paper.step_on_paper(naive.Tower, SIZES, IMAGES)
    scores = IMAGES * SIZES.heads * SIZES.patches**2
    assert account.owners_at(account.forward - 1)["probabilities"] == SIZES.layers * scores * (4 + 2)
    assert account.owners_at(account.peak_at)["h"] == 2 * ROWS * SIZES.layers * M


def test_the_stand_in_has_the_right_shapes_and_goes_when_something_fails():
    own = F.scaled_dot_product_attention
    x = torch.empty(2, 3, 4, 5, device="meta", requires_grad=True)
    with on_paper.fused_attention():
        assert F.scaled_dot_product_attention(x, x, x, attn_mask=None).shape == x.shape
    with pytest.raises(TypeError), on_paper.fused_attention():
        F.scaled_dot_product_attention(x)
    assert F.scaled_dot_product_attention is own


def row(name, forward, backward, peak):
    return {
        "name": f"tower {benchmark.LARGE}: {name}",
        "value": forward,
        "unit": "us",
        "backward us": backward,
        "peak MiB": peak,
    }


def test_steps_go_from_naive_as_written_to_ours_with_the_least_memory_each_direction_by_itself():
    rows = [
        row("naive, eager", 40, 60, 16),
        row("ours, input kept, norms again, eager", 17, 40, 5),
        row("ours, pre-activation kept, compiled", 16, 35, 8),
        row("ours, pre-activation kept, eager", 17, 34, 9),
        row("naive, compiled", 25, 36, 15),
        row("strong, cudnn, eager", 19, 42, 10),
        row("strong, efficient, compiled", 21, 36, 9),
        {"name": f"tower forward {benchmark.LARGE}, input kept, against strong", "value": 3.0, "unit": "us"},
        {"name": f"tower peak {benchmark.LARGE}, pre-activation kept", "value": 3.0, "unit": "MiB"},
        {"name": "tower step 8 x 256 x 1152, 4 layers: naive, eager", "value": 3.0, "unit": "us"},
    ]
    found = [(one.name, *(round(1e6 * s) for s in one.seconds.values()), one.peak_mib) for one in steps(rows)]
    assert found == [
        ("naive, eager", 40, 60, 16),
        ("naive, better of each direction", 25, 36, 15),
        ("strong, better of each direction", 19, 36, 9),
        ("ours, pre-activation kept", 16, 34, 8),
        ("ours, input kept, norms again", 17, 40, 5),
    ]
    assert steps([]) == []
