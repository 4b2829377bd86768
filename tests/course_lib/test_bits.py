"""Bits of bf16 and MXINT8, the packing trick one number at a time, and the widget that edits them."""

from math import inf, isnan, nan

import pytest
import torch
from matplotlib.patches import Rectangle

from course_lib import bits
from course_lib.plots.bits import bit_rows, decoding

PAIRS = [(m, e) for m in range(-128, 128) for e in range(256)]


def test_bf16_bits_are_those_of_torch():
    numbers = [0.0, -0.0, 1.0, -2.0, 1.00390625, 1.01171875, 3.4e38, -3.5e38, 1e-40, 2.0**-133, 1.5 * 2.0**-134, inf]
    want = torch.tensor(numbers).to(torch.bfloat16).view(torch.int16).tolist()
    assert [bits.bf16_bits(x) for x in numbers] == [w & 0xFFFF for w in want]
    assert all(bits.bf16_value(bits.bf16_bits(bits.bf16_value(b))) == bits.bf16_value(b) for b in range(0, 0x7F80, 97))
    assert (
        bits.bf16_bits(1e300) == 0x7F80
        and bits.bf16_bits(-1e300) == 0xFF80
        and isnan(bits.bf16_value(bits.bf16_bits(nan)))
    )


def test_packing_is_wrong_for_511_pairs():
    wrong = {(m, e) for m, e in PAIRS if not bits.pack(m, e).right}
    expected = {(m, e) for m, e in PAIRS if (m == -128 and e < 255) or (e == 0 and m) or (e == 255 and abs(m) == 64)}
    assert wrong == expected and len(wrong) == 511


@pytest.mark.parametrize(
    ("pair", "number", "correction", "value"),
    [
        ((96, 127), 0x3FC0, None, 1.5),
        ((40, 127), 0x3FD0, 0x3F80, 0.625),
        ((-40, 127), 0xBFD0, 0xBF80, -0.625),
        ((-128, 127), 0xBF80, 0xBF80, 0.0),
        ((64, 255), 0x7F80, None, inf),
        ((5, 0), 0x000A, 0x0000, 2 * 5 * 2.0**-133),
    ],
)
def test_packing_goes_through_these_steps(pair, number, correction, value):
    made = bits.pack(*pair)
    assert (made.number, made.correction, made.value) == (number, correction, value)


def test_what_is_no_mantissa_or_exponent_is_refused():
    with pytest.raises(ValueError, match="128"):
        bits.mx_value(128, 0)
    with pytest.raises(ValueError, match="256"):
        bits.pack(0, 256)


def marked(axes) -> int:
    return sum(isinstance(p, Rectangle) and p.get_linewidth() > 1.5 for p in axes.patches)


def test_bits_of_a_wrong_result_are_outlined_and_those_of_a_right_one_not():
    assert marked(bit_rows(-128, 127)) == 2 and marked(bit_rows(40, 127)) == marked(bit_rows(3, 255)) == 0
    assert marked(decoding([(40, 127), (5, 0)])) == 4
    said = {text.get_text() for text in bit_rows(-128, 127).texts}
    assert "0: wrong" in said and "-1; minus -1: bit 6 of |m| is clear" in said


def test_the_editor_says_value_bf16_and_result():
    widgets = pytest.importorskip("course_lib.widgets", reason="needs ipywidgets, and this machine has none")
    editor = widgets.mx_bit_editor()
    editor.controls["m"].value = -128
    assert editor.words.value == "-128 * 2^(127 - 133) = -2; bf16 holds -2; packing ends with 0: wrong."
    editor.controls["e"].value = 255
    assert editor.words.value.endswith("packing ends with nan: right.")
    assert editor.still().figure is not editor.axes.figure
