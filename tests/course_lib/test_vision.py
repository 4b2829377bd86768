"""The vision tower: what it computes, and its FLOPs on paper."""

import pytest
import torch

from autograder.exercises.dispatch.meter_truth import Meter
from course_lib.models.vision import Sizes, VisionTower
from course_lib.tally import PHASES, tally

SIZES = (Sizes(), Sizes(patch=5, patches=7, width=12, mlp=31, heads=3, layers=3))


def images(sizes, batch=3, device="cpu"):
    patches = torch.randn(batch, sizes.patches, sizes.patch, generator=torch.Generator().manual_seed(0))
    lengths = torch.arange(sizes.patches, sizes.patches - batch, -1)
    return patches.to(device), (torch.arange(sizes.patches) < lengths[:, None]).to(device)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("sizes", SIZES)
def test_flops_are_those_on_paper_forward_and_backward_also_without_data(sizes, device):
    tower, (patches, real) = VisionTower(sizes).to(device), images(sizes, device=device)
    calls = tally(Meter, lambda: tower(patches, real).square().mean())
    flops = {phase: sum(c.work.flops for c in calls if c.phase == phase) for phase in PHASES}
    assert flops == {"forward": sizes.forward_flops(3), "backward": sizes.backward_flops(3)}


def test_padding_changes_nothing():
    torch.manual_seed(0)
    tower, (patches, real) = VisionTower(), images(Sizes())
    before = tower(patches, real)
    assert before.shape == (3, 64)
    changed = torch.where(real[..., None], patches, 100.0)
    assert not torch.equal(changed, patches)
    assert torch.allclose(tower(changed, real), before, atol=1e-6)


def test_every_parameter_gets_a_gradient():
    tower, (patches, real) = VisionTower(), images(Sizes())
    tower(patches, real).square().mean().backward()
    names = [name for name, p in tower.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert all(name.endswith("attention.k.bias") for name in names)  # it moves all scores of a row alike


def test_so400m_has_the_weights_of_that_tower():
    """15.2 M in a layer, 412 M in all 27; the published tower's 428 M count embeddings and a pooling head as well."""
    with torch.device("meta"):
        tower = VisionTower(Sizes.so400m())
    layer = sum(p.numel() for p in tower.blocks[0].parameters())
    assert layer == 4 * (1152**2 + 1152) + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152
    assert len(tower.blocks) == 27 and 410e6 < sum(p.numel() for p in tower.parameters()) < 415e6
