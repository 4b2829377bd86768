"""The products of linear_gelu as they are compiled, their tables, and what only a GPU can show."""

import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels import launching
from course_lib.kernels.hardware import HOPPER, gluon_is_known
from course_lib.kernels.linear_gelu import (
    gelu_reference,
    linear_gelu,
    linear_gelu_grouped,
    linear_gelu_persistent,
    linear_gelu_pingpong,
    product_with_slope,
    tuning,
)
from course_lib.kernels.linear_gelu.persistent import (
    gelu_persistent_kernel,
    slope_persistent_kernel,
    write_gelu_persistent,
    write_slope_persistent,
)
from course_lib.kernels.linear_gelu.tiled import write_gelu_tiled
from course_lib.kernels.linear_gelu.tuning import GELU, INTERPRETED, SLOPE, Blocks, Turns
from tests.kernels.linear_gelu_oracle import U, drawn, gelu_oracle, slope_oracle, summed

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")


def test_the_rung_of_turns_is_asked_only_where_it_is_valid(monkeypatch):
    monkeypatch.setattr(tuning, "PINGPONG", {"gelu": Turns(5)})
    x, w, _ = drawn(16, 16, 16, torch.float16)
    assert tuning.turns_for("gelu", torch.empty(16, 16, dtype=torch.float16), x, w) is None, "no Hopper, or no tiles"
    assert tuning.turns_for("slope", torch.empty(16, 16, dtype=torch.float16), x, w) is None, "no entry"


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
    from course_lib.kernels.linear_gelu.pingpong import _LAYOUT, gelu_pingpong_kernel, slope_pingpong_kernel
    from course_lib.kernels.rings import LAUNCH

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
    if not gluon_is_known():
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


@pytest.fixture
def right_way_back(assert_within):
    """Are dh, the sums of its columns and, where it was made again, gelu(h) right?"""

    def check(dy, w, h, dh, sums, a):
        want, bound = slope_oracle(dy, w, h)
        assert_within(dh, want, bound)
        assert_within(sums, want.sum(0), bound.sum(0) + len(dy) * U * want.abs().sum(0))
        if a is not None:
            torch.testing.assert_close(a.float(), gelu_reference(h.float()), rtol=2e-2, atol=1e-6)

    return check


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("blocks", [*SLOPE[2], Blocks(128, 128, 64, 4, 3, 1, programs=0, parts=2)], ids=str)
def test_every_tile_of_the_way_back_is_right(blocks, again, kind, random, fenced, right_way_back):
    dy, w, h = random(3000, 328, dtype=kind) * 0.2, random(328, 4304, dtype=kind), random(3000, 4304, dtype=kind)
    dh = fenced(3000, 4304, dtype=kind)
    a = fenced(3000, 4304, dtype=kind) if again else None
    sums = write_slope_persistent(dh, a, h, dy, w, True, blocks).sum(0)
    right_way_back(dy, w, h, dh, sums, a)


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
def test_the_way_back_of_groups_that_take_turns_is_right(shape, over, again, kind, random, fenced, right_way_back):
    from course_lib.kernels.linear_gelu.pingpong import write_slope_pingpong

    M, N, K = shape
    dy, w, h = random(M, K, dtype=kind) * 0.2, random(K, N, dtype=kind), random(M, N, dtype=kind)
    dh = h.clone() if over else fenced(M, N, dtype=kind)
    a = fenced(M, N, dtype=kind) if again else None
    sums = write_slope_pingpong(dh, a, dh if over else h, dy, w, True, Turns(5)).sum(0)
    right_way_back(dy, w, h, dh, sums, a)


@pytest.mark.gpu
def test_on_hopper_the_table_decides_and_only_for_what_it_is_valid_for(large, monkeypatch):
    if torch.cuda.get_device_capability() != HOPPER or not gluon_is_known():
        pytest.skip("not the device, or not a Triton, that this rung is for")
    entry = Turns(5)
    monkeypatch.setattr(tuning, "PINGPONG", {"gelu": entry})
    x, w, _ = large(torch.bfloat16)
    out = torch.empty(len(x), len(w), device=DEVICE, dtype=x.dtype)
    assert tuning.turns_for("gelu", out, None, x, w) is entry and tuning.turns_for("slope", out, None, x, w) is None
    assert tuning.turns_for("gelu", out[:1000, :1000], None, x, w) is None, "fewer tiles than groups"
    assert tuning.turns_for("gelu", out.float(), None, x.float(), w.float()) is None
    assert tuning.turns_for("gelu", out, None, x[:, 1:], w[:, 1:]) is None
    assert tuning.turns_for("gelu", out, x.T, w) is None


@pytest.mark.gpu
def test_every_rung_gives_the_same_bits_on_every_run(large, monkeypatch):
    x, w, bias = large(torch.bfloat16)
    dy, h = torch.randn_like(x), torch.randn(len(x), len(w), device=DEVICE, dtype=x.dtype)
    back = w.T.contiguous()
    for entries in ({}, {"gelu": Turns(5), "slope": Turns(5)}):
        monkeypatch.setattr(tuning, "PINGPONG", entries)
        launching.forget()
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


def test_other_tiles_may_be_given(assert_within):
    x, w, bias = drawn(70, 136, 24, torch.float32)
    out = torch.full((70, 136), float("nan"), device=DEVICE)
    for blocks in (INTERPRETED, Blocks(16, 32, 16, 4, 1, 1, programs=0), Blocks(32, 32, 32, 4, 1, 1, programs=2)):
        if TIER != "gpu":
            write_gelu_persistent(out.fill_(float("nan")), None, x, w, bias, blocks)
            assert_within(out, *gelu_oracle(x, w, bias))
    write_gelu_tiled(out.fill_(float("nan")), None, x, w, bias, 3)
    assert_within(out, *gelu_oracle(x, w, bias))
