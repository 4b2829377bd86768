"""linear_gelu's kernels that take turns at the tensor cores, carried out by the host: right whoever comes first."""

import pytest
import torch

from course_lib.device import TIER
from course_lib.kernels.linear_gelu import pingpong
from course_lib.kernels.linear_gelu.gelu import gelu_reference, slope_reference
from course_lib.kernels.linear_gelu.tuning import Turns

pytestmark = pytest.mark.skipif(TIER == "gpu", reason="there the GPU carries them out")

KERNELS = pingpong.gelu_pingpong_kernel, pingpong.slope_pingpong_kernel
SHAPES = [(200, 304, 136, 3), (128, 128, 64, 2), (520, 264, 200, 5)]  # M, N, K and places for blocks


def drawn(*sizes):
    return [torch.randn(*size, generator=torch.Generator().manual_seed(sum(size))).half() / 4 for size in sizes]


def assert_near(got, want):
    assert ((got.double() - want).abs() <= 2e-3 * want.abs() + 2e-3).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("keep_h", [False, True], ids=["", "h too"])
def test_gelu(shape, keep_h, carried_out):
    M, N, K, stages = shape
    x, w, bias = drawn((M, K), (N, K), (N,))
    want = x.double() @ w.double().T + bias.double()
    for seed in range(3):
        ran = carried_out([pingpong], KERNELS, 3, seed=seed)
        out = torch.full((M, N), float("nan")).half()
        h = torch.full_like(out, float("nan")) if keep_h else None
        pingpong.write_gelu_pingpong(out, h, x, w, bias, Turns(stages, 2))
        assert_near(out, gelu_reference(want))
        assert h is None or assert_near(h, want) is None
        assert ran == [KERNELS[0]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("also", [False, True], ids=["", "a and sums"])
def test_slope(shape, also, carried_out):
    M, N, K, stages = shape
    dy, w, h = drawn((M, K), (K, N), (M, N))
    want = (dy.double() @ w.double()) * slope_reference(h.double())
    for seed in range(3):
        ran = carried_out([pingpong], KERNELS, 3, seed=seed)
        dh, a = (torch.full((M, N), float("nan")).half() for _ in "ab")
        sums = pingpong.write_slope_pingpong(dh, a if also else None, h, dy, w, also, Turns(stages, 2))
        assert_near(dh, want)
        if also:
            assert_near(a, gelu_reference(h.double()))
            assert_near(sums.sum(0), want.sum(0))
        assert ran == [KERNELS[1]]
