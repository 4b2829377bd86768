"""Positions as rotations, and one number of MXINT8."""

import ipywidgets
import numpy as np

from course_lib.bits import bf16_bits, bf16_value, mx_value, pack
from course_lib.plots.bits import bit_rows, decoding
from course_lib.plots.house import axes_or_new, drawn
from course_lib.plots.rotation import dials, frequencies, score
from course_lib.widgets.explorer import Explorer, slider

__all__ = ["mx_bit_editor", "rotation_explorer"]


@drawn
def rotation_explorer(pairs=8):
    """A query and a key that are turned by their positions, pair by pair; the wedge between them is their distance's.

    The score is that of two equal vectors of length 1 in every pair.
    """
    axes = axes_or_new(None, 8.2, 1.8)

    def move(query, key, base):
        turns = frequencies(2 * pairs, base)
        axes.clear()
        dials([(query, key)], turns, axes, title=f"Query at {query}, key at {key}, base {base:,}")
        words = f"Distance {query - key}: two equal vectors score {score(query - key, turns):.2f} of {pairs}. "
        half = sum(abs(turn * (query - key)) > np.pi / 2 for turn in turns)
        return words + f"More than a quarter turn apart: {half} of {pairs} pairs."

    def still():
        title = "In the first three rows the distance is the same: so are the wedges, and so is the score"
        return dials([(5, 2), (25, 22), (3005, 3002), (25, 2)], frequencies(2 * pairs), title=title)

    controls = {
        "query": slider("position of the query", 0, 200, 25),
        "key": slider("position of the key", 0, 200, 22),
        "base": ipywidgets.SelectionSlider(options=[10, 100, 1000, 10000, 500000], value=10000, description="base",
                                           continuous_update=False, style={"description_width": "11em"},
                                           layout={"width": "34em"}),
    }  # fmt: skip
    alt = (
        "Eight pairs as dials for four pairs of positions, each with an arrow for the query and one for the key: "
        "where both positions grow by the same number all arrows move, the wedges between them and the score stay."
    )
    return Explorer(axes, controls, move, still, alt)


@drawn
def mx_bit_editor():
    """One MXINT8 number as bits: its mantissa and exponent, the same number as bf16, and what packing makes of it."""
    axes = axes_or_new(None, 8.6, 2.3)

    def move(m, e):
        axes.clear()
        bit_rows(m, e, axes)
        value, packed = mx_value(m, e), pack(m, e)
        words = f"{m} * 2^({e} - 133) = {value:g}; bf16 holds {bf16_value(bf16_bits(value)):g}"
        return f"{words}; packing ends with {packed.value:g}: {'right' if packed.right else 'wrong'}."

    def still():
        return decoding([(96, 127), (64, 127), (63, 127), (-40, 127), (-128, 127), (5, 0), (64, 255), (-128, 254)])

    controls = {"m": slider("mantissa m", -128, 127, 40), "e": slider("exponent e", 0, 255, 127)}
    alt = (
        "Eight numbers, each with the bits of its mantissa and exponent, of the same value as bf16, and of what "
        "packing ends with: right for 96, 64, 63 and -40 with an ordinary exponent; for -128 it gives 0, for exponent "
        "0 twice the value, and for exponent 255 infinity where NaN is asked for."
    )
    return Explorer(axes, controls, move, still, alt)
