"""What a launch in the interpreter does around the arithmetic: grids, records, errors, autotuning."""

import gc
import linecache
import weakref
from typing import NamedTuple

import pytest
import torch

from course_lib import interpreter
from course_lib.compiled import why_not
from course_lib.device import TIER
from course_lib.interpreter import language, patching
from course_lib.interpreter.launch import signatures
from course_lib.interpreter.names import NEEDED

# isort: split
import triton
import triton.language as tl
from triton.language import arange, load, sigmoid, static_range
from triton.language import range as steps
from triton.language import store as put
from triton.language.math import exp

pytestmark = pytest.mark.skipif(TIER != "interpreter", reason="about Triton's interpreter; this process has a GPU")


@triton.jit
def add_one(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(x_ptr + offs, x + 1, mask=offs < n)


@triton.jit
def _halved(x):
    if tl.max(x, 0) > 100:
        tl.static_assert(False, "too large")
    return x / 2


@triton.jit
def halve(x_ptr):
    offs = tl.arange(0, 16)
    x = tl.load(x_ptr + tl.program_id(0) * 16 + offs)
    tl.store(x_ptr + tl.program_id(0) * 16 + offs, _halved(x))


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, offs * 2.0, mask=offs < n)


@triton.jit
def accumulate(out_ptr, n, BLOCK: tl.constexpr):
    total = 0
    for k in range(0, n, BLOCK):
        total += k
    tl.store(out_ptr, total)


OUTSIDE = """
import triton
import triton.language as tl

FACTOR = 3
SIZE = tl.constexpr(16)

@triton.jit
def scaled(out_ptr, ANY: tl.constexpr):
    offs = tl.arange(0, SIZE)
    if ANY:
        offs = offs * FACTOR
    tl.store(out_ptr + offs, offs)
"""


@pytest.fixture
def outside(monkeypatch):
    """The names of a module with a kernel that takes some of them."""
    monkeypatch.setitem(linecache.cache, "<outside>", (len(OUTSIDE), None, OUTSIDE.splitlines(True), "<outside>"))
    names = {"__name__": "outside"}
    exec(compile(OUTSIDE, "<outside>", "exec", dont_inherit=True), names)
    return names


def test_launches_are_counted_with_their_grid():
    x = torch.zeros(40)
    with interpreter.launches() as outer:
        add_one[(3,)](x, 40, BLOCK=16)
        with interpreter.launches() as inner:
            add_one[lambda meta: (triton.cdiv(meta["n"], meta["BLOCK"]), 1)](x, 40, BLOCK=32)
    add_one[(3,)](x, 40, BLOCK=16)
    assert outer == [("add_one", (3, 1, 1)), ("add_one", (2, 1, 1))]
    assert inner == [("add_one", (2, 1, 1))]
    assert x.tolist() == [3.0] * 40


@triton.jit
def add_one_apart(x_ptr, stride, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    ptrs = x_ptr + offs[:, None] * stride[0] + offs[None, :] * stride[1]
    mask = (offs < n)[:, None] & (offs < n)[None, :]
    tl.store(ptrs, tl.load(ptrs, mask=mask, other=0.0) + 1, mask=mask)


def test_a_tuple_of_strides_is_an_argument_that_the_compiler_is_told_of_too():
    x = torch.zeros(5, 9)[:, :5]
    signatures.clear()
    with interpreter.launches():
        add_one_apart[(1,)](x, x.stride(), 5, BLOCK=8)
    assert x.sum() == 25
    ((function, types, constants),) = signatures.values()
    assert types == {"x_ptr": "*fp32", "stride": ("i32", 1), "n": "i32"} and constants == {"BLOCK": 8}
    assert why_not(function, types, constants) == ""


class Pair(NamedTuple):
    base: torch.Tensor
    strides: tuple
    fill: float = 0.0


class Tile(NamedTuple):
    rows: int
    columns: int = 8


class Read(NamedTuple):
    numbers: tl.tensor
    at: tl.tensor


@triton.jit
def read(pair, mask, tile: tl.constexpr):
    row, column = tl.arange(0, tile.rows)[:, None], tl.arange(0, tile.columns)[None, :]
    at = pair.base + row * pair.strides[0] + column * pair.strides[1]
    return Read(tl.load(at, mask=mask, other=pair.fill), at=at)


@triton.jit
def add_one_by_names(pair, n, TILE: tl.constexpr):
    mask = (tl.arange(0, TILE.rows) < n)[:, None] & (tl.arange(0, TILE.columns) < n)[None, :]
    here = read(pair, mask, TILE)
    tl.store(here.at, here.numbers + 1, mask=mask)


def test_tuples_with_names_are_run_and_compiled():
    x = torch.zeros(5, 9)[:, :5]
    signatures.clear()
    with interpreter.launches():
        add_one_by_names[(1,)](Pair(x, x.stride()), n=5, TILE=Tile(8))
    assert x.sum() == 25
    ((function, types, constants),) = signatures.values()
    assert types == {"pair": ("*fp32", ("i32", 1), "fp32"), "n": "i32"} and types["pair"].base == "*fp32"
    assert why_not(function, types, constants) == ""
    assert "rows" in why_not(function, types, {"TILE": (8, 8)}), "the names are told of"


def test_launches_with_other_sizes_are_other_ways_for_the_compiler():
    signatures.clear()
    with interpreter.launches():
        for block in (16, 32, 16):
            add_one[(1,)](torch.zeros(16), 16, BLOCK=block)
    assert [constants for _, _, constants in signatures.values()] == [{"BLOCK": 16}, {"BLOCK": 32}]


def test_a_launch_that_is_over_holds_no_memory_of_its_arguments():
    x = torch.zeros(16)
    add_one[(1,)](x, 16, BLOCK=16)
    held = weakref.ref(x.untyped_storage())
    gc.collect()
    gc.disable()
    try:
        add_one[(1,)](x, 16, BLOCK=16)
        del x
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("spelt", ["triton.language.constexpr", "language.constexpr", "'tl.constexpr'", "constexpr"])
def test_a_constant_is_one_however_its_annotation_is_spelt(spelt, monkeypatch):
    text = f"""
import triton
import triton.language
import triton.language as tl
import triton.language as language
from triton.language import constexpr

@triton.jit
def count(out_ptr, SIZE: {spelt}):
    offs = tl.arange(0, SIZE)
    tl.store(out_ptr + offs, offs)
"""
    monkeypatch.setitem(linecache.cache, "<spelt>", (len(text), None, text.splitlines(keepends=True), "<spelt>"))
    names = {"__name__": "spelt"}
    exec(compile(text, "<spelt>", "exec", dont_inherit=True), names)
    out = torch.zeros(16, dtype=torch.int32)
    names["count"][(1,)](out, SIZE=16)
    assert out.tolist() == list(range(16))


def test_a_number_from_outside_of_a_kernel_is_refused_where_a_compiler_comes_to_it(outside):
    scaled, out = outside["scaled"], torch.zeros(16, dtype=torch.int32)
    scaled[(1,)](out, ANY=False)
    assert out.tolist() == list(range(16))
    with pytest.raises(Exception, match="`FACTOR` is defined outside of the kernel") as raised:
        scaled[(1,)](out, ANY=True)
    assert interpreter.cause(raised.value).source == "offs = offs * FACTOR"
    outside["FACTOR"] = tl.constexpr(1)
    scaled[(1,)](out, ANY=True)


def test_a_launch_brings_no_name_of_the_interpreter_into_the_notebook(outside):
    """With `math` there, an answer without its import was right in a notebook, and in grading it raised."""
    before = set(outside)
    outside["scaled"][(1,)](torch.zeros(16, dtype=torch.int32), ANY=False)
    assert {"math", "np", "inspect", "partial"}.isdisjoint(outside)
    assert outside.keys() - before <= NEEDED


def test_a_misspelt_argument_is_an_error_and_launch_options_are_not():
    x = torch.zeros(16)
    add_one[(1,)](x, 16, BLOCK=16, num_warps=8, num_stages=2)
    with pytest.raises(TypeError, match="no argument 'BLOK'; it has x_ptr, n, BLOCK"):
        add_one[(1,)](x, 16, BLOCK=16, BLOK=32)


def test_a_grid_that_no_gpu_takes_is_refused():
    with pytest.raises(ValueError, match="65535"):
        add_one[(1, 70000)](torch.zeros(16), 16, BLOCK=16)
    with pytest.raises(TypeError, match="a grid is a tuple such as"):
        add_one[1](torch.zeros(16), 16, BLOCK=16)


def test_a_loop_to_a_run_time_bound_works_with_every_numpy():
    out = torch.zeros(1, dtype=torch.int32)
    accumulate[(1,)](out, 100, BLOCK=16)
    assert out.item() == sum(range(0, 100, 16))


def test_autotune_runs_every_configuration_and_keeps_the_first():
    x = torch.full((50,), torch.nan)
    with interpreter.launches() as seen:
        tuned[lambda meta: (triton.cdiv(50, meta["BLOCK"]),)](x, 50)
    assert x.tolist() == [2.0 * i for i in range(50)]
    assert [grid[0] for _, grid in seen] == [4, 1, 4]
    assert tuned.best_config.kwargs == {"BLOCK": 16}


def test_the_cause_of_an_error_is_the_inner_error_with_the_students_line():
    x = torch.ones(48)
    x[40] = 1000.0
    with pytest.raises(Exception, match="too large") as caught:
        halve[(3,)](x)
    why = interpreter.cause(caught.value)
    assert isinstance(why.error, AssertionError) and str(why.error) == "too large"
    assert why.source == 'tl.static_assert(False, "too large")'
    assert why.file == __file__ and why.program == (2, 0, 0)
    assert "in program (2, 0, 0)" in str(why)


def test_the_cause_of_an_ordinary_error_is_itself():
    error = ValueError("plain")
    assert interpreter.cause(error).error is error


def test_infinities_and_zero_divisions_raise_no_warnings():
    x = torch.tensor([0.0, torch.inf, -1.0, 3e38] * 4)
    nan = x.clone()

    halve[(1,)](x.fill_(-torch.inf))
    add_one[(1,)](nan, 16, BLOCK=16)
    assert nan[1] == torch.inf


@triton.jit
def unmasked(out_ptr, x_ptr, shift, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs + shift))


@triton.jit
def at_the_end_of_memory(out_ptr, BLOCK: tl.constexpr):
    last = tl.full((BLOCK,), -2, tl.int64).to(out_ptr.dtype)  # what follows, counted on from there, is 0, 1, 2
    tl.store(last, 1.0)


def test_an_address_outside_every_argument_is_named_and_touches_nothing():
    x, out = torch.zeros(16), torch.zeros(13)
    with pytest.raises(Exception, match=r"store of 3 elements outside .* element 13 of out_ptr, which has 13"):
        unmasked[(1,)](out, x, 0, BLOCK=16)
    with pytest.raises(Exception, match="load of 16 elements outside every argument"):
        unmasked[(1,)](x, x, 2**31 - 16, BLOCK=16)
    with pytest.raises(Exception, match="store of 16 elements outside every argument"):
        at_the_end_of_memory[(1,)](x, BLOCK=16)


def test_memory_around_a_view_may_be_touched():
    slab = torch.zeros(32)
    unmasked[(1,)](slab[8:16], torch.ones(16), 0, BLOCK=16)
    assert slab.tolist() == [0.0] * 8 + [1.0] * 16 + [0.0] * 8


def test_a_shape_is_looked_at_once_and_every_block_has_the_type_that_triton_gives_it():
    made = [tl.block_type(of, [16, tl.constexpr(2)]) for of in (tl.float32, tl.float32, tl.int64)]
    assert [str(one) for one in made] == ["<['16', '2'], fp32>", "<['16', '2'], fp32>", "<['16', '2'], int64>"]
    assert made[0] == made[1] != made[2]
    assert {(tuple(one.shape.values), one.numel) for one in made} == {((16, 2), 32)}
    blocks = [tl.tensor(None, of) for of in (*made, tl.float32)]
    assert [(one.dtype, int(one.numel), [int(size) for size in one.shape]) for one in blocks] == [
        (tl.float32, 32, [16, 2]), (tl.float32, 32, [16, 2]), (tl.int64, 32, [16, 2]), (tl.float32, 1, [])
    ]  # fmt: skip
    for wrong in ([16.0, 2], [tl.constexpr(16.0), 2], [12, 2], [16, 3], []):
        for _ in range(2):
            with pytest.raises((TypeError, ValueError)):
                tl.block_type(tl.float32, wrong)


def test_installing_twice_changes_nothing():
    before = language.triton_interpreter.InterpreterBuilder.create_dot
    interpreter.install()
    assert language.triton_interpreter.InterpreterBuilder.create_dot is before


def test_a_triton_without_a_private_part_is_named():
    with pytest.raises(RuntimeError, match=rf"Autotuner\.gone.*triton {triton.__version__}"):
        patching.part(language.autotuner.Autotuner, "gone")


@triton.jit
def _rows_from(out_ptr, n, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), n, tl.num_programs(0)):
        offs = row.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out_ptr + offs, offs.to(tl.float32), mask=(tl.arange(0, BLOCK) < BLOCK) & (n > 0))
    for step in tl.range(0, 2):
        tl.static_assert(step.to(tl.int64).dtype == tl.int64)


def test_the_number_of_a_loop_can_be_widened_and_a_mask_may_be_combined_with_a_number():
    out = torch.full((5, 4), torch.nan)
    _rows_from[(2,)](out, 5, BLOCK=4)
    assert torch.equal(out, torch.arange(20.0).reshape(5, 4))
    one = torch.full((1, 1), torch.nan)
    _rows_from[(1,)](one, 1, BLOCK=1)
    assert one.item() == 0.0


@triton.jit
def _doubled(x_ptr, offs):
    return load(x_ptr + offs) * 2


@triton.jit
def _by_imported_names(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    for row in steps(0, n):
        offs = row * BLOCK + arange(0, BLOCK)
        x = _doubled(x_ptr, offs)
        for _ in static_range(2):
            x = x + sigmoid(exp(x)) - 0.5
        put(out_ptr + offs, x)


def test_functions_of_the_language_may_be_imported_by_name():
    x = torch.randn(3, 16)
    out, want = torch.full_like(x, torch.nan), 2 * x
    _by_imported_names[(1,)](out, x, 3, BLOCK=16)
    for _ in range(2):
        want = want + want.exp().sigmoid() - 0.5
    torch.testing.assert_close(out, want)
    assert load is tl.load and put is tl.store, "a launch leaves the names of a notebook as they are"


@triton.jit
def _masked_by_both(x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    tl.store(x_ptr + offs, 1.0, mask=(offs < n) & (n > 0))


def test_the_mask_of_a_short_block_may_hold_a_comparison_of_numbers():
    x = torch.zeros(1)
    _masked_by_both[(1,)](x, 1, BLOCK=16)
    assert x.item() == 1.0


@triton.jit
def _of_a_number(out_ptr, x_ptr, p, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    none, empty = p == 0.0, tl.max(x, 0) == -float("inf")
    tl.store(out_ptr + offs, tl.where((x >= p) | none, x, 0.0), mask=~empty)
    tl.store(out_ptr + BLOCK + offs, none.to(tl.float32) + (x > 0), mask=(offs < BLOCK) & (x == x))


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_comparison_of_one_float_is_combined_with_a_block(p):
    x = torch.linspace(-1, 1, 16)
    out = torch.full((2, 16), torch.nan)
    _of_a_number[(1,)](out, x, p, BLOCK=16)
    want = torch.where((x >= p) | (p == 0.0), x, 0.0), (x > 0) + float(p == 0.0)
    assert torch.equal(out, torch.stack(want))


_FACTOR = tl.constexpr(2.0)


@triton.jit
def _constant_first(out_ptr, x_ptr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    shift: tl.constexpr = 3.0
    inside = tl.where(_FACTOR < x, tl.maximum(_FACTOR * x, HALF), _FACTOR / x)
    tl.store(out_ptr + offs, tl.exp2(shift - 2.0 * _FACTOR + x) + tl.sum(_FACTOR - x, axis=0) + inside)


def test_a_constant_may_stand_to_the_left_of_a_block_wherever_a_block_may():
    x, out = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.empty(4)
    _constant_first[(1,)](out, x, HALF=9.0, BLOCK=4)
    inside = torch.where(x > 2, (2 * x).clamp(min=9.0), 2 / x)
    assert torch.equal(out, torch.exp2(x - 1) + (2 - x).sum() + inside)
    assert (_FACTOR * 3).value == 6 and _FACTOR == tl.constexpr(2.0)
