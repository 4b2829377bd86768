import pytest
import torch

from course_lib.device import DEVICE, TIER
from course_lib.kernels import linear_gelu as module
from course_lib.kernels import product_tiles
from course_lib.kernels.linear_gelu import (
    gelu_reference,
    linear_gelu,
    linear_gelu_grouped,
    linear_gelu_operator,
    linear_gelu_persistent,
    linear_gelu_pingpong,
    linear_gelu_reference,
    linear_gelu_tiled,
    product_with_slope,
    slope_reference,
    tuning,
)
from course_lib.kernels.linear_gelu.elementwise import write_slope
from course_lib.kernels.linear_gelu.persistent import write_slope_persistent
from course_lib.kernels.linear_gelu.tiled import write_slope_tiled
from course_lib.kernels.linear_gelu.tuning import SLOPE, reached
from tests.kernels.linear_gelu_oracle import U, drawn, exact_gelu, exponent, gelu_oracle, slope_oracle, summed

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

POINTERS = (linear_gelu_tiled, linear_gelu_grouped)
SHAPES = [(1, 8, 8), (33, 72, 40), (70, 136, 24), (64, 64, 32), (5, 200, 104)]  # M, N, K in reach of the copy engine
ODD = [(1, 1, 1), (33, 71, 41), (3, 5, 70)]


def test_the_slope_is_the_derivative():
    h = torch.linspace(-9, 9, 1001, dtype=torch.float64, requires_grad=True)
    want = torch.autograd.grad(gelu_reference(h).sum(), h)[0]
    torch.testing.assert_close(slope_reference(h.detach()), want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
@pytest.mark.parametrize("rung", [*POINTERS, linear_gelu_persistent], ids=lambda f: f.__name__)
def test_every_rung_is_right(rung, shape, biased, keep, dtype, fenced, assert_within):
    if rung is linear_gelu_persistent and shape in ODD:
        pytest.skip("rows that the copy engine does not reach")
    M, N, K = shape
    x, w, bias = drawn(M, N, K, dtype)
    bias = bias if biased else None
    out = fenced(M, N, dtype=dtype)
    h = fenced(M, N, dtype=dtype) if keep else None
    assert rung(x, w, bias, out, h) is out
    assert_within(out, *gelu_oracle(x, w, bias))
    if keep:
        assert_within(h, *summed(x, w.T, bias))


def test_far_from_zero_nothing_overflows_and_nothing_cancels(assert_within):
    h = torch.tensor([-60000.0, -100.0, -20.0, -9.0, -5.0, -3.0, -0.7518, 0.0, 3.0, 9.0, 100.0, 60000.0], device=DEVICE)
    x, w = h[:, None], torch.ones(8, 1, device=DEVICE)
    out = linear_gelu(x, w)
    assert_within(out, *gelu_oracle(x, w))
    kept = h[:, None].expand(-1, 8).contiguous()
    dh = product_with_slope(torch.ones(12, 1, device=DEVICE), torch.ones(1, 8, device=DEVICE), kept)
    assert_within(dh, *slope_oracle(torch.ones(12, 1, device=DEVICE), torch.ones(1, 8, device=DEVICE), kept))


def test_the_approximation_in_one_instruction_would_be_wrong_below_zero():
    """Why gelu.py takes an exponential and a division: tanh.approx is off by 2^-11, and 1 + tanh u is small there."""
    h = torch.tensor(-3.0, dtype=torch.float64)
    u = (2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)
    rough = h / 2 * (1 + torch.tanh(u) * (1 - 2.0**-11))
    assert (rough / gelu_reference(h) - 1).abs() > 0.15


def test_one_rounding_is_better_than_two(random):
    """The fused end against separate kernels, in the type that they share; the truth is float64's."""
    kind = torch.bfloat16 if TIER == "gpu" else torch.float16
    x, w = random(64, 64, dtype=kind), random(96, 64, dtype=kind) / 8
    want = linear_gelu_reference(x.double(), w.double())

    def error(got):
        return ((got.double() - want).norm() / want.norm()).item()

    h = (x.double() @ w.double().T).to(kind)
    apart = gelu_reference(h.double()).to(kind)
    assert error(linear_gelu(x, w)) < 0.8 * error(apart)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
def test_the_product_that_comes_back_is_right(shape, again, dtype, random, fenced, assert_within):
    M, N, K = shape
    dy, w, h = random(M, K, dtype=dtype), random(K, N, dtype=dtype), random(M, N, dtype=dtype) * 2
    dh = fenced(M, N, dtype=dtype)
    a = fenced(M, N, dtype=dtype) if again else None
    got, sums = product_with_slope(dy, w, h, dh, a, sums=True)
    want, bound = slope_oracle(dy, w, h)
    assert got is dh
    assert_within(dh, want, bound)
    assert_within(sums, want.sum(0), bound.sum(0) + (M + 8) * U * want.abs().sum(0))
    if again:
        exact = exact_gelu(h.double())
        assert_within(a, exact, (3 * exponent(h.double()) + 8) * U * exact.abs())


def both_ways(dy, w, h, dh, a):
    """All plain kernels for the way back, as calls."""
    tile = product_tiles.Tile(32, 64, 16, 4, 1, rate=1)
    da = (dy.double() @ w.double()).to(h.dtype)
    yield lambda: write_slope_tiled(dh, a, h, dy, w, True, tile=tile if TIER != "gpu" else None)
    yield lambda: write_slope_persistent(dh, a, h, dy, w, True, tuning.blocks_for(SLOPE, dy, w.shape[1]))
    yield lambda: write_slope(dh, a, da, h)


def test_the_way_back_may_write_over_h_in_every_kernel(random, assert_within):
    dy, w, h = (random(*shape, dtype=torch.float32) for shape in ((70, 24), (24, 136), (70, 136)))
    want, bound = slope_oracle(dy, w, h)
    for i in range(3):
        there, a = h.clone(), torch.full_like(h, float("nan"))
        parts = list(both_ways(dy, w, there, there, a))[i]()
        assert_within(there, want, bound + 2 * U * want.abs())
        assert_within(parts.sum(0), want.sum(0), bound.sum(0) + 99 * U * want.abs().sum(0))
        torch.testing.assert_close(a, gelu_reference(h), rtol=2e-5, atol=1e-6)


def test_sums_stay_within_their_rows(random):
    """A row of sums for each row of tiles: what a later tile adds to, a fixed order needs no lock for."""
    dy, w, h = (random(*shape, dtype=torch.float32) for shape in ((70, 24), (24, 136), (70, 136)))
    dh = torch.empty_like(h)
    for call in both_ways(dy, w, h, dh, None):
        parts = call()
        rows = {1: 128, 3: 32}.get(parts.shape[0], 64)
        want = torch.stack([part.sum(0) for part in dh.split(rows)])
        torch.testing.assert_close(parts, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", ["x by columns", "w by columns", "out by columns", "apart", "off by one"])
def test_what_the_copy_engine_cannot_address_goes_to_the_pointer_rung(layout, dtype, assert_within):
    x, w, bias = drawn(34, 40, 24, dtype)
    out = torch.full((34, 40), float("nan"), device=DEVICE, dtype=dtype)
    if layout == "x by columns":
        x = x.T.contiguous().T
    elif layout == "w by columns":
        w = w.T.contiguous().T
    elif layout == "out by columns":
        out = out.T.contiguous().T
    elif layout == "apart":
        x = torch.cat((x, x), dim=1)[:, ::2].contiguous()[:, :24]
        w = torch.nn.functional.pad(w, (0, 3))[:, :24]
    else:
        x = torch.cat((x.flatten(), x.flatten()[:8]))[1:][: 34 * 24].view(34, 24)
    assert not reached(out, x, w)
    linear_gelu(x, w, bias, out)
    assert_within(out, *gelu_oracle(x, w, bias))
    with pytest.raises(AssertionError, match="16-byte"):
        linear_gelu_persistent(x, w, bias, out)


def test_strides_of_a_bias_and_empty_matrices_are_no_special_case(assert_within):
    x, w, _ = drawn(34, 40, 24, torch.float32)
    bias = torch.randn(80, device=DEVICE)[::2]
    assert_within(linear_gelu(x, w, bias), *gelu_oracle(x, w, bias))
    assert linear_gelu(x[:0], w).shape == (0, 40) and linear_gelu(x, w[:0]).shape == (34, 0)
    dh, sums = product_with_slope(x[:0], w.T, torch.empty(0, 40, device=DEVICE), sums=True)
    assert dh.shape == (0, 40) and (sums == 0).all()


def test_a_nan_stays_in_its_row():
    x, w, bias = drawn(40, 72, 24, torch.float32)
    x[11, 3] = float("nan")
    for rung in (*POINTERS, linear_gelu_persistent):
        bad = rung(x, w, bias).isnan()
        assert bad[11].all() and bad.sum() == 72


def test_what_it_cannot_do_is_refused():
    x, w, bias = drawn(8, 16, 24, torch.float32)
    with pytest.raises(AssertionError, match="records no gradient"):
        linear_gelu(x, w.requires_grad_())
    w = w.detach()
    with pytest.raises(AssertionError, match="last size"):
        linear_gelu(x, w[:, :8])
    with pytest.raises(AssertionError, match="one type"):
        linear_gelu(x, w.half())
    with pytest.raises(AssertionError, match="16 columns"):
        linear_gelu(x, w, bias[:8])
    with pytest.raises(AssertionError, match="a result has shape"):
        linear_gelu(x, w, bias, out=torch.empty(8, 15, device=DEVICE))
    with pytest.raises(AssertionError, match="2-byte"):
        linear_gelu_pingpong(x, w, bias)
    with pytest.raises(AssertionError, match="differ in shape"):
        product_with_slope(x, w.T, x)


def test_the_operator_passes_opcheck():
    x, w, bias = drawn(6, 16, 24, torch.float32)
    for given in (bias, None):
        torch.library.opcheck(linear_gelu_operator, (x.view(2, 3, 24), w, given, "ieee"))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
def test_compile_takes_it_whole():
    x, w, bias = drawn(6, 16, 24, torch.float32)
    layer = torch.compile(
        lambda x: linear_gelu(x * 2, w, bias).sin(),
        fullgraph=True,
        backend="inductor" if TIER == "gpu" else "aot_eager",
    )
    torch.testing.assert_close(layer(x), linear_gelu(x * 2, w, bias).sin())


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
