import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels import linear_gelu as module
from course_lib.kernels import tiles
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
    rungs,
    slope_reference,
    tuning,
)
from course_lib.kernels.linear_gelu.elementwise import write_slope
from course_lib.kernels.linear_gelu.launch import (
    write_gelu_persistent,
    write_gelu_tiled,
    write_slope_persistent,
    write_slope_tiled,
)
from course_lib.kernels.linear_gelu.persistent import gelu_persistent_kernel, slope_persistent_kernel
from course_lib.kernels.linear_gelu.tuning import GELU, INTERPRETED, SLOPE, Blocks, Turns

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

U = 2.0**-24  # half a unit in the last place of fp32, relative
POINTERS = (linear_gelu_tiled, linear_gelu_grouped)
SHAPES = [(1, 8, 8), (33, 72, 40), (70, 136, 24), (64, 64, 32), (5, 200, 104)]  # M, N, K in reach of the copy engine
ODD = [(1, 1, 1), (33, 71, 41), (3, 5, 70)]


def summed(a, b, bias=None):
    """(a b + bias exactly, how far a sum in fp32 may be from it): K products and additions of one unit each."""
    sizes = a.double().abs() @ b.double().abs() + (0 if bias is None else bias.double().abs())
    return a.double() @ b.double() + (0 if bias is None else bias.double()), 2 * (a.shape[1] + 8) * U * sizes


def exponent(h):
    """-2 log2(e) u, which is off by three roundings; 2^it is then off by so many more units."""
    return h.abs() * (2.3023 + 0.10295 * h * h)


def two_u(h):
    return (8 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)


def exact_gelu(h):
    """torch's own takes 1 + tanh u, which in float64 too has no bits left at h = -7."""
    return h * torch.sigmoid(two_u(h))


def gelu_oracle(x, w, bias=None):
    h, off = summed(x, w.T, bias)
    a = exact_gelu(h)
    return a, 1.13 * off + (3 * exponent(h) + 8) * U * a.abs() + 1e-36  # the steepest slope is 1.129


def slope_oracle(dy, w, h):
    """(dh, its bound); h is given, and exact."""
    da, off = summed(dy, w)
    h = h.double()
    s, rest = torch.sigmoid(two_u(h)), torch.sigmoid(-two_u(h))
    size = s * (1 + (h * rest * (1.6 + 0.215 * h * h)).abs())
    return da * slope_reference(h), off * size + da.abs() * size * (3 * exponent(h) + 16) * U + 1e-36


@pytest.fixture
def make(random):
    """make(M, N, K, dtype): x, w, bias."""

    def tensors(M, N, K, dtype):
        return random(M, K, dtype=dtype), random(N, K, dtype=dtype), random(N, dtype=dtype)

    return tensors


def test_the_slope_is_the_derivative():
    h = torch.linspace(-9, 9, 1001, dtype=torch.float64, requires_grad=True)
    want = torch.autograd.grad(gelu_reference(h).sum(), h)[0]
    torch.testing.assert_close(slope_reference(h.detach()), want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES + ODD, ids=str)
@pytest.mark.parametrize("rung", [*POINTERS, linear_gelu_persistent], ids=lambda f: f.__name__)
def test_every_rung_is_right(rung, shape, biased, keep, dtype, make, fenced, assert_within):
    if rung is linear_gelu_persistent and shape in ODD:
        pytest.skip("rows that the copy engine does not reach")
    M, N, K = shape
    x, w, bias = make(M, N, K, dtype)
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
    tile = tiles.Tile(32, 64, 16, 4, 1, rate=1)
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
def test_what_the_copy_engine_cannot_address_goes_to_the_pointer_rung(layout, dtype, make, assert_within):
    x, w, bias = make(34, 40, 24, dtype)
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
    assert not rungs.reached(out, x, w)
    linear_gelu(x, w, bias, out)
    assert_within(out, *gelu_oracle(x, w, bias))
    with pytest.raises(AssertionError, match="16-byte"):
        linear_gelu_persistent(x, w, bias, out)


def test_strides_of_a_bias_and_empty_matrices_are_no_special_case(make, assert_within):
    x, w, _ = make(34, 40, 24, torch.float32)
    bias = torch.randn(80, device=DEVICE)[::2]
    assert_within(linear_gelu(x, w, bias), *gelu_oracle(x, w, bias))
    assert linear_gelu(x[:0], w).shape == (0, 40) and linear_gelu(x, w[:0]).shape == (34, 0)
    dh, sums = product_with_slope(x[:0], w.T, torch.empty(0, 40, device=DEVICE), sums=True)
    assert dh.shape == (0, 40) and (sums == 0).all()


def test_a_nan_stays_in_its_row(make):
    x, w, bias = make(40, 72, 24, torch.float32)
    x[11, 3] = float("nan")
    for rung in (*POINTERS, linear_gelu_persistent):
        bad = rung(x, w, bias).isnan()
        assert bad[11].all() and bad.sum() == 72


def test_what_it_cannot_do_is_refused(make):
    x, w, bias = make(8, 16, 24, torch.float32)
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


def test_the_operator_passes_opcheck(make):
    x, w, bias = make(6, 16, 24, torch.float32)
    for given in (bias, None):
        torch.library.opcheck(linear_gelu_operator, (x.view(2, 3, 24), w, given, "ieee"))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
def test_compile_takes_it_whole(make):
    x, w, bias = make(6, 16, 24, torch.float32)
    layer = torch.compile(
        lambda x: linear_gelu(x * 2, w, bias).sin(),
        fullgraph=True,
        backend="inductor" if TIER == "gpu" else "aot_eager",
    )
    torch.testing.assert_close(layer(x), linear_gelu(x * 2, w, bias).sin())


# Where groups of warps take turns: chosen by a table, for shapes that have work for all of them.


def test_the_rung_of_turns_is_asked_only_where_it_is_valid(monkeypatch, make):
    monkeypatch.setattr(rungs, "PINGPONG", {"gelu": Turns(5)})
    x, w, _ = make(16, 16, 16, torch.float16)
    assert rungs.turns_for("gelu", torch.empty(16, 16, dtype=torch.float16), x, w) is None, "no Hopper, or no tiles"
    assert rungs.turns_for("slope", torch.empty(16, 16, dtype=torch.float16), x, w) is None, "no entry"


def product_types(kernel, block_m, block_n, block_k, parts):
    result = f"tensordesc<bf16[{block_m}, {block_n // parts}]>"
    left = f"tensordesc<bf16[{block_m}, {block_k}]>"
    right = f"[{block_n}, {block_k}]" if kernel is gelu_persistent_kernel else f"[{block_k}, {block_n}]"
    types = dict.fromkeys(("out_desc", "h_desc", "dh_desc", "a_desc"), result)
    types |= {"x_desc": left, "dy_desc": left, "w_desc": f"tensordesc<bf16{right}>"}
    return types | {"bias_ptr": "*bf16", "sums_ptr": "*fp32", "M": "i32", "N": "i32", "K": "i32"}


@pytest.mark.parametrize(
    ("kernel", "blocks"),
    [(gelu_persistent_kernel, b) for b in GELU[2][:2]] + [(slope_persistent_kernel, b) for b in SLOPE[2][:1]],
    ids=lambda x: getattr(x, "__name__", None) or f"{x.block_m}x{x.block_n}",
)
def test_large_tiles_compile_to_the_copy_engine_and_wgmma_and_fit(kernel, blocks):
    types = product_types(kernel, blocks.block_m, blocks.block_n, blocks.block_k, blocks.parts)
    fixed = {"BLOCK_M": blocks.block_m, "BLOCK_N": blocks.block_n, "BLOCK_K": blocks.block_k, "GROUP_M": 8}
    fixed |= {"PARTS": blocks.parts, "FLATTEN": blocks.flatten, "INPUT_PRECISION": "tf32"}
    signature = {name: types[name] for name in kernel.arg_names if name not in fixed}
    made = compile_kernel(kernel, signature, fixed, num_warps=blocks.warps, num_stages=blocks.stages)
    assert made.instructions["wgmma"] and made.instructions["tma"] and made.spills_bytes <= 16, str(made)
    programs = max(1, blocks.programs)
    assert programs * (made.shared_bytes + 1024) <= 228 * 1024, "so many programs side by side"
    assert programs * made.registers * 32 * blocks.warps <= 65536


def compiled_pingpong(which, keep, turns):
    from course_lib.kernels.attention.groups import LAUNCH
    from course_lib.kernels.linear_gelu.pingpong import _LAYOUT, gelu_pingpong_kernel, slope_pingpong_kernel

    def described(rows, columns):
        return f"tensordesc<bf16[{rows}, {columns}],{_LAYOUT!r}>"

    kernel = {"gelu": gelu_pingpong_kernel, "slope": slope_pingpong_kernel}[which]
    fixed = {"GROUP_M": turns.group_m, "STAGES": turns.stages} | (
        {} if keep else {"h_desc" if which == "gelu" else "a_desc": None}
    )
    types = {"x_desc": described(128, 64), "dy_desc": described(128, 64), "bias_ptr": "*bf16", "sums_ptr": "*fp32"}
    types["w_desc"] = described(128, 64) if which == "gelu" else described(64, 128)
    signature = {
        name: types.get(name, described(128, 64) if name.endswith("_desc") else "i32")
        for name in kernel.arg_names
        if name not in fixed
    }
    options = {"num_warps": LAUNCH["num_warps"], "max_registers": LAUNCH["maxnreg"]}
    return compile_kernel(kernel, signature, fixed, divisible_by_16=False, **options)


@pytest.mark.parametrize(
    ("which", "keep"),
    [("gelu", True), ("slope", True), *(pytest.param(w, False, marks=pytest.mark.slow) for w in ("gelu", "slope"))],
)
def test_the_rung_of_turns_compiles_and_fits(which, keep):
    if not rungs.gluon_is_known():
        pytest.skip("a Triton whose Gluon was not tried")
    made = compiled_pingpong(which, keep, Turns(5))
    assert made.fits and made.registers == 168, str(made)
    # A few numbers a tile, none in the loop; versions of Triton differ.
    assert made.spills_bytes <= 128, str(made)
    assert made.instructions["wgmma"] and made.instructions["tma"] and not made.instructions["cp.async"], str(made)


# What only a GPU can show.


@pytest.fixture
def large(random):
    """x, w, bias in reach of the copy engine; more than two tiles for each multiprocessor, the last ones cut off."""
    return lambda dtype, M=3000, N=4304, K=328: (
        random(M, K, dtype=dtype) * 0.2,
        random(N, K, dtype=dtype),
        random(N, dtype=dtype),
    )


HALVES = pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("blocks", [*GELU[2], Blocks(128, 128, 64, 4, 3, 1, programs=0, parts=2)], ids=str)
def test_every_tile_of_the_table_is_right(blocks, keep, kind, large, fenced, assert_within):
    x, w, bias = large(kind)
    out = fenced(len(x), len(w), dtype=kind)
    h = fenced(len(x), len(w), dtype=kind) if keep else None
    write_gelu_persistent(out, h, x, w, bias, blocks)
    assert_within(out, *gelu_oracle(x, w, bias))
    if keep:
        assert_within(h, *summed(x, w.T, bias))


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("blocks", [*SLOPE[2], Blocks(128, 128, 64, 4, 3, 1, programs=0, parts=2)], ids=str)
def test_every_tile_of_the_way_back_is_right(blocks, again, kind, random, fenced, assert_within):
    dy, w, h = random(3000, 328, dtype=kind) * 0.2, random(328, 4304, dtype=kind), random(3000, 4304, dtype=kind)
    dh = fenced(3000, 4304, dtype=kind)
    a = fenced(3000, 4304, dtype=kind) if again else None
    sums = write_slope_persistent(dh, a, h, dy, w, True, blocks).sum(0)
    want, bound = slope_oracle(dy, w, h)
    assert_within(dh, want, bound)
    assert_within(sums, want.sum(0), bound.sum(0) + 3000 * U * want.abs().sum(0))
    if again:
        torch.testing.assert_close(a.float(), gelu_reference(h.float()), rtol=2e-2, atol=1e-6)


PINGPONG_SHAPES = [(3000, 4304, 328), (17, 24, 8), (129, 136, 64), (5000, 2000, 72), (128 * 133, 128, 1152)]


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("stages", [4, 5])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("shape", PINGPONG_SHAPES, ids=str)
def test_groups_that_take_turns_are_right(shape, keep, stages, kind, large, fenced, assert_within):
    """Fewer tiles than programs, one block along K, many; the last tile of either group; nothing beside the result."""
    x, w, bias = large(kind, *shape)
    out = fenced(len(x), len(w), dtype=kind)
    h = fenced(len(x), len(w), dtype=kind) if keep else None
    linear_gelu_pingpong(x, w, bias, out, h, Turns(stages))
    assert_within(out, *gelu_oracle(x, w, bias))
    if keep:
        assert_within(h, *summed(x, w.T, bias))


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("shape", PINGPONG_SHAPES, ids=str)
def test_the_way_back_of_groups_that_take_turns_is_right(shape, over, again, kind, random, fenced, assert_within):
    from course_lib.kernels.linear_gelu.pingpong import write_slope_pingpong

    M, N, K = shape
    dy, w, h = random(M, K, dtype=kind) * 0.2, random(K, N, dtype=kind), random(M, N, dtype=kind)
    want, bound = slope_oracle(dy, w, h)
    dh = h.clone() if over else fenced(M, N, dtype=kind)
    a = fenced(M, N, dtype=kind) if again else None
    sums = write_slope_pingpong(dh, a, dh if over else h, dy, w, True, Turns(5)).sum(0)
    assert_within(dh, want, bound)
    assert_within(sums, want.sum(0), bound.sum(0) + M * U * want.abs().sum(0))
    if again:
        torch.testing.assert_close(a.float(), gelu_reference(h.float()), rtol=2e-2, atol=1e-6)


@pytest.mark.gpu
def test_on_hopper_the_table_decides_and_only_for_what_it_is_valid_for(large, monkeypatch):
    if torch.cuda.get_device_capability() != rungs.HOPPER or not rungs.gluon_is_known():
        pytest.skip("not the device, or not a Triton, that this rung is for")
    entry = Turns(5)
    monkeypatch.setattr(rungs, "PINGPONG", {"gelu": entry})
    x, w, _ = large(torch.bfloat16)
    out = torch.empty(len(x), len(w), device=DEVICE, dtype=x.dtype)
    assert rungs.turns_for("gelu", out, None, x, w) is entry and rungs.turns_for("slope", out, None, x, w) is None
    assert rungs.turns_for("gelu", out[:1000, :1000], None, x, w) is None, "fewer tiles than groups"
    assert rungs.turns_for("gelu", out.float(), None, x.float(), w.float()) is None
    assert (
        rungs.turns_for("gelu", out, None, x[:, 1:], w[:, 1:]) is None and rungs.turns_for("gelu", out, x.T, w) is None
    )


@pytest.mark.gpu
def test_every_rung_gives_the_same_bits_on_every_run(large, monkeypatch):
    x, w, bias = large(torch.bfloat16)
    dy, h = torch.randn_like(x), torch.randn(len(x), len(w), device=DEVICE, dtype=x.dtype)
    back = w.T.contiguous()
    for entries in ({}, {"gelu": Turns(5), "slope": Turns(5)}):
        monkeypatch.setattr(rungs, "PINGPONG", entries)
        first = None
        for _ in range(5):
            got = linear_gelu(x, w, bias), *product_with_slope(dy, back, h, sums=True)
            first = first or got
            assert all(torch.equal(a, b) for a, b in zip(first, got))


@pytest.mark.gpu
def test_results_past_2_to_the_31_elements_are_right_to_the_last_row(assert_within, monkeypatch):
    x, w = (torch.randn(n, 64, device=DEVICE, dtype=torch.bfloat16) for n in (2**16 + 5, 2**15 + 8))
    rows = torch.tensor([0, 77, 2**16 - 1, 2**16 + 4], device=DEVICE)
    out = torch.empty(len(x), len(w), device=DEVICE, dtype=x.dtype)
    for write in (
        lambda: linear_gelu_grouped(x, w, out=out),
        lambda: linear_gelu_persistent(x, w, out=out),
        lambda: linear_gelu_pingpong(x, w, out=out),
    ):
        out.fill_(float("nan"))
        write()
        assert_within(out[rows], *gelu_oracle(x[rows], w))
        assert not out.isnan().any()


@pytest.mark.gpu
def test_a_captured_graph_gives_what_a_call_gives(large):
    x, w, bias = large(torch.bfloat16)
    want, out = linear_gelu(x, w, bias), torch.empty(len(x), len(w), device=DEVICE, dtype=x.dtype)
    linear_gelu(x, w, bias, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        linear_gelu(x, w, bias, out)
    out.fill_(float("nan"))
    graph.replay()
    assert torch.equal(out, want)


def test_other_tiles_may_be_given(make, assert_within):
    x, w, bias = make(70, 136, 24, torch.float32)
    out = torch.full((70, 136), float("nan"), device=DEVICE)
    for blocks in (INTERPRETED, Blocks(16, 32, 16, 4, 1, 1, programs=0), Blocks(32, 32, 32, 4, 1, 1, programs=2)):
        if TIER != "gpu":
            write_gelu_persistent(out.fill_(float("nan")), None, x, w, bias, blocks)
            assert_within(out, *gelu_oracle(x, w, bias))
    write_gelu_tiled(out.fill_(float("nan")), None, x, w, bias, 3)
    assert_within(out, *gelu_oracle(x, w, bias))


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
