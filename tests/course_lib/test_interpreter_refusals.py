"""What the interpreter refuses, because a GPU would answer otherwise: the words say what to do."""

import math

import pytest
import torch

from course_lib.device import TIER
from tests.course_lib.expressions import (
    BF16,
    F16,
    F32,
    I32,
    dot,
    elementwise,
    kernel,
    reduction,
    same,
)

interpreter_only = pytest.mark.skipif(TIER != "interpreter", reason="what the interpreter refuses")


REFUSED = ["x + x", "x * 2.0", "x > x", "-x", "tl.abs(x)", "tl.sum(x, 0)", "tl.cdiv(x, x)", "x - 1.0", "x == x"]


@interpreter_only
@pytest.mark.parametrize("expression", REFUSED)
def test_arithmetic_on_bf16_is_refused_with_the_way_out(expression):
    with pytest.raises(Exception, match=r"bf16 arithmetic is not exact .* convert with \.to\(tl\.float32\)"):
        elementwise(expression, torch.ones(16, dtype=BF16))


@interpreter_only
def test_products_and_atomics_of_bf16_are_refused():
    with pytest.raises(Exception, match="bf16 arithmetic"):
        dot(torch.ones(16, 16, dtype=BF16), torch.ones(16, 16, dtype=BF16))
    text = "def kernel(out_ptr, x_ptr):\n    tl.atomic_add(out_ptr, tl.load(x_ptr))\n"
    with pytest.raises(Exception, match="bf16 arithmetic"):
        kernel(text)[(1,)](torch.zeros(1, dtype=BF16), torch.ones(1, dtype=BF16))


@interpreter_only
@pytest.mark.parametrize("expression", ["x + x", "x.to(tl.float32)", "x > x"])
def test_float8_is_refused_apart_from_moving_it(expression):
    text = (
        "def kernel(out_ptr, x_ptr):\n    i = tl.arange(0, 16)\n    x = tl.load(x_ptr + i)\n"
        f"    tl.store(out_ptr + i, {expression})\n"
    )
    x, out = torch.ones(16).to(torch.float8_e4m3fn), torch.zeros(16)
    with pytest.raises(Exception, match="GPU"):
        kernel(text)[(1,)](out, x)
    moved = torch.zeros(16, dtype=x.dtype)
    kernel(text.replace(expression, "x"))[(1,)](moved, x)
    same(moved.float(), x.float())


@interpreter_only
@pytest.mark.parametrize("library", ["tl.extra.libdevice", "tl.extra.cuda.libdevice"])
def test_libdevice_is_refused_in_words(library):
    with pytest.raises(Exception, match=r"libdevice\.tanh does not run in Triton's interpreter"):
        elementwise(f"1.0 + {library}.tanh(x)", torch.ones(16))


@interpreter_only
def test_assembler_is_refused_in_words():
    with pytest.raises(Exception, match="assembler does not run in Triton's interpreter"):
        elementwise("tl.inline_asm_elementwise('mov.b32 $0, $1;', '=r,r', [x], tl.float32, True, 1)", torch.ones(16))


@interpreter_only
def test_a_masked_lane_without_other_is_not_a_convenient_zero():
    text = (
        "def kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):\n    offs = tl.arange(0, BLOCK)\n"
        "    tl.store(out_ptr, tl.sum(tl.load(x_ptr + offs, mask=offs < n), 0))\n"
    )
    for dtype in (F32, F16):
        out = torch.zeros(1, dtype=dtype)
        kernel(text)[(1,)](out, torch.ones(16, dtype=dtype), 5, BLOCK=16)
        assert out.isnan().all()
    out = torch.zeros(1, dtype=I32)
    kernel(text)[(1,)](out, torch.ones(16, dtype=I32), 5, BLOCK=16)
    assert out.item() != 5


@interpreter_only
@pytest.mark.parametrize("condition", ["x > 0", "(x > 0) and (x < 3)", "not (x > 0)", "0 < x < 3"])
def test_a_block_is_neither_true_nor_false(condition):
    text = (
        "def kernel(x_ptr):\n    x = tl.load(x_ptr + tl.arange(0, 16))\n"
        f"    if {condition}:\n        tl.store(x_ptr, 9.0)\n"
    )
    with pytest.raises(Exception, match=r"tl\.where"):
        kernel(text)[(1,)](torch.ones(16))


@interpreter_only
def test_what_has_no_answer_is_refused():
    with pytest.raises(Exception, match="NaN"):
        reduction("tl.argmax(x, axis=1)", torch.full((32, 16), math.nan), (32,), I32)
    with pytest.raises(Exception, match="K >= 16"):
        dot(torch.ones(16, 8, dtype=F16), torch.ones(8, 16, dtype=F16))
    with pytest.raises(Exception, match="bins"):
        elementwise("tl.sum(tl.histogram(x, 16), 0) + x", torch.full((16,), 16, dtype=I32))
    with pytest.raises(Exception, match="outside"):
        elementwise("tl.gather(x, x, 0)", torch.full((16,), -1, dtype=I32))
