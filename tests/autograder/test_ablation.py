"""Kernels switched off in the source: the text stays a program, and what it computes goes wrong as it should."""

import linecache
import types

import pytest
import torch

from autograder.bank import find
from autograder.referee.ablation import emptied, halved, not_found
from autograder.referee.submission import Cell
from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE

KERNEL = '''
import torch
import triton
import triton.language as tl


@triton.jit
def _twice(x):
    return x + x


@triton.jit
def _kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    """Twice x."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for _ in range(1):
        tl.store(out_ptr + offs, _twice(tl.load(x_ptr + offs, mask=offs < n)), mask=offs < n)


def double(x, out):
    _kernel[(triton.cdiv(x.numel(), 16),)](out, x, x.numel(), BLOCK=16)
'''
CELLS = (Cell("mine", KERNEL),)
AFTER = "\n\ndef after():\n    raise KeyError('here')\n"


def run(cells):
    module = types.ModuleType("student")
    for number, cell in enumerate(cells):
        path = f"<{cell.name} {id(cells)} {number}>"
        linecache.cache[path] = (len(cell.source), None, cell.source.splitlines(keepends=True), path)
        exec(compile(cell.source, path, "exec"), module.__dict__)
    return module


def doubled(cells, n=16 * 64):
    """Which programs wrote their block, right or not."""
    x, out = torch.ones(n, device=DEVICE), torch.zeros(n, device=DEVICE)
    run(cells).double(x, out)
    return out.reshape(-1, 16)


def test_an_emptied_kernel_does_nothing():
    assert (doubled(CELLS) == 2).all()
    assert (doubled(emptied(CELLS, {"_kernel"})) == 0).all()


def test_about_half_of_the_programs_return_early_and_the_others_are_right():
    for salt in range(5):
        rows = doubled(halved(CELLS, {"_kernel"}, salt))
        ran = (rows == 2).all(1)
        assert (rows[~ran] == 0).all()
        assert 16 <= ran.sum() <= 48


def test_another_salt_takes_another_half():
    halves = {tuple((doubled(halved(CELLS, {"_kernel"}, salt)) == 2).all(1).tolist()) for salt in range(6)}
    assert len(halves) == 6


@pytest.mark.parametrize("programs", [1, 2, 7, 64])
def test_the_inverted_salt_takes_exactly_the_other_half(programs):
    for salt in (0, 3, 2**40 + 17):
        one = doubled(halved(CELLS, {"_kernel"}, salt), 16 * programs)
        other = doubled(halved(CELLS, {"_kernel"}, ~salt), 16 * programs)
        assert torch.equal(one + other, torch.full_like(one, 2))


def test_programs_of_every_axis_are_chosen_between():
    source = """
import triton
import triton.language as tl
@triton.jit
def _mark(out_ptr, J: tl.constexpr, K: tl.constexpr):
    tl.store(out_ptr + (tl.program_id(0) * J + tl.program_id(1)) * K + tl.program_id(2), 1.0)
"""
    module = run(halved((Cell("mine", source),), {"_mark"}, 5))
    out = torch.zeros(6, 6, 6, device=DEVICE)
    module._mark[(6, 6, 6)](out, 6, 6)
    for axis in range(3):
        sums = out.movedim(axis, 0).flatten(1).sum(1)
        assert 60 < out.sum() < 156 and ((sums > 0) & (sums < 36)).all(), sums


def test_lines_of_an_emptied_cell_keep_their_numbers():
    cells = emptied((Cell("mine", KERNEL + AFTER),), {"_kernel"})
    with pytest.raises(KeyError) as caught:
        run(cells).after()
    line = caught.traceback[-1].lineno
    assert (KERNEL + AFTER).split("\n")[line].strip().startswith("raise KeyError")


SHAPES = {
    "on one line": "@triton.jit\ndef _kernel(out_ptr): tl.store(out_ptr, 1.0)",
    "two statements on one line": "@triton.jit\ndef _kernel(out_ptr): x = 1.0; tl.store(out_ptr, x)",
    "letters of several bytes": '@triton.jit\ndef _kernel(out_ptr): "größe"; tl.store(out_ptr, 1.0) # größe',
    "with options": "@triton.jit(do_not_specialize=['a'])\ndef _kernel(out_ptr, a=1):\n\ttl.store(out_ptr, 1.0)",
    "autotuned": "@triton.autotune([triton.Config({'B': 1})], key=[])\n@triton.jit\n"
    "def _kernel(out_ptr, B: tl.constexpr):\n  tl.store(out_ptr, 1.0)",
    "with heuristics": "@triton.heuristics({'B': lambda args: 1})\n@triton.jit\n"
    "def _kernel(out_ptr, B: tl.constexpr):\n  tl.store(out_ptr, 1.0)",
    "inside a function": "def make():\n  @triton.jit\n  def _kernel(out_ptr):\n    tl.store(out_ptr, 1.0)\n"
    "  return _kernel\n_kernel = make()",
    "under another name of jit": "from triton import jit as j\n@j\ndef _kernel(out_ptr):\n    tl.store(out_ptr, 1.0)",
    "under another name of triton": "import triton as t\n@t.jit\ndef _kernel(out_ptr):\n    tl.store(out_ptr, 1.0)",
    "defined twice": "@triton.jit\ndef _kernel(out_ptr):\n    tl.store(out_ptr, 1.0)\n" * 2,
    "with its own early return": "@triton.jit\ndef _kernel(out_ptr):\n    if tl.program_id(0) > 5:\n        return\n"
    "    tl.store(out_ptr, 1.0)",
    "with returns of an old machine": "@triton.jit\r\ndef _kernel(out_ptr):\r    tl.store(out_ptr, 1.0)\r\n",
    "a body with a comment behind": "@triton.jit\ndef _kernel(out_ptr):\n    tl.store(\n        out_ptr, 1.0)  # one",
}


@pytest.mark.parametrize("name", SHAPES)
def test_kernels_of_every_shape_are_found(name):
    cells = (Cell("setup", "import triton\nimport triton.language as tl"), Cell("mine", SHAPES[name]))
    assert not_found(cells, {"_kernel"}) == set()

    def written(cells):
        out = torch.zeros(1, device=DEVICE)
        kernel = run(cells)._kernel
        kernel[(1,)](out)
        return float(out)

    assert written(cells) == 1.0
    assert written(emptied(cells, {"_kernel"})) == 0.0
    assert written(halved(cells, {"_kernel"}, 8)) + written(halved(cells, {"_kernel"}, ~8)) == 1.0


NOT_FOUND = {
    "made by exec": "exec('@triton.jit\\ndef _kernel(o): pass')",
    "a call of jit": "def _kernel(o): pass\n_kernel = triton.jit(_kernel)",
    "a decorator that is not Triton's": "@jit\ndef _kernel(o): pass",
    "a host function of the same name": "@triton.jit\ndef _kernel(o): pass\nk = _kernel\ndef _kernel(o): k[(1,)](o)",
    "nowhere": "from elsewhere import _kernel",
    "behind a deeply nested decorator": "@x" + ".b" * 900 + "\ndef _kernel(o): pass",
    "in a cell that does not parse": "@triton.jit\ndef _kernel(o): pass pass",
}


@pytest.mark.parametrize("name", NOT_FOUND)
def test_a_kernel_that_cannot_be_switched_off_is_said(name):
    assert not_found((Cell("mine", NOT_FOUND[name]),), {"_kernel"}) == {"_kernel"}


def test_nothing_else_is_touched():
    other = Cell("other", "def _kernel(o):\n    return 1")
    assert emptied((other,), {"_kernel"}) == (other,)
    assert emptied(CELLS, {"another"}) == CELLS


SIGNATURES = {
    "start.axpy/right/grid_stride": (
        "_axpy_kernel",
        {"out_ptr": "*fp32", "x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "a": "fp32"},
        {"BLOCK": 256},
    ),
    "roofline.matmul/right/grouped": (
        "_matmul_kernel",
        {f"{name}_ptr": "*fp16" for name in ("out", "a", "b")}
        | dict.fromkeys(("M", "N", "K", *(f"stride_{s}" for s in ("om", "am", "ak", "bk", "bn"))), "i32"),
        {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 32, "GROUP": 8},
    ),
}


@pytest.mark.parametrize("path", SIGNATURES)
@pytest.mark.parametrize("change", ["empty", "half"])
def test_what_is_left_compiles_for_a_gpu(path, change, tmp_path):
    name, signature, constexprs = SIGNATURES[path]
    cells = (Cell("mine", find(path).source),)
    cells = emptied(cells, {name}) if change == "empty" else halved(cells, {name}, 11)
    made = compile_kernel(("\n".join(c.source for c in cells), name), signature, constexprs, arch=90)
    assert made.instructions["st.global"] == 0 if change == "empty" else made.instructions["st.global"] > 0
