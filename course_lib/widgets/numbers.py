"""Positions as rotations, and one number of MXINT8."""

import ipywidgets
import numpy as np

from course_lib.bits import bf16_bits, bf16_value, mx_value, pack
from course_lib.plots.bits import bit_rows, decoded, decoding, message
from course_lib.plots.house import axes_or_new, drawn
from course_lib.plots.rotation import dials, frequencies, score
from course_lib.widgets.explorer import Explorer, slider
from course_lib.widgets.live import Live

__all__ = ["mx_bit_editor", "rotation_explorer"]


@drawn
def rotation_explorer(pairs=8):
    """A query and a key that are turned by their positions, pair by pair; the wedge between them is their distance's.

    The score is that of two equal vectors of length 1 in every pair.
    """
    axes = axes_or_new(None, 8.2, 1.8)

    bases = {base: frequencies(2 * pairs, base) for base in (10, 100, 1000, 10000, 500000)}

    def numbers(query, key, base):
        turns = bases[base]
        words = f"Distance {query - key}: two equal vectors score {score(query - key, turns):.2f} of {pairs}. "
        half = int((abs(turns * (query - key)) > np.pi / 2).sum())
        return {
            "angles": np.outer(turns, (query, key)).tolist(),
            "score": score(query - key, turns),
            "half": half,
            "title": f"Query at {query}, key at {key}, base {base:,}",
            "words": words + f"More than a quarter turn apart: {half} of {pairs} pairs.",
        }

    def move(query, key, base):
        seen = numbers(query, key, base)
        axes.clear()
        dials([(query, key)], bases[base], axes, title=seen["title"])
        return seen["words"]

    def still():
        title = "In the first three rows the distance is the same: so are the wedges, and so is the score"
        return dials([(5, 2), (25, 22), (3005, 3002), (25, 2)], frequencies(2 * pairs), title=title)

    controls = {
        "query": slider("position of the query", 0, 200, 25),
        "key": slider("position of the key", 0, 200, 22),
        "base": ipywidgets.SelectionSlider(options=list(bases), value=10000, description="base",
                                           continuous_update=False, style={"description_width": "11em"},
                                           layout={"width": "34em"}),
    }  # fmt: skip
    alt = (
        "Eight pairs as dials for four pairs of positions, each with an arrow for the query and one for the key: "
        "where both positions grow by the same number all arrows move, the wedges between them and the score stay."
    )
    turns = {str(base): each.tolist() for base, each in bases.items()}  # JSON has no keys that are numbers
    return Explorer(axes, controls, move, still, alt, Live("rotation", numbers, lambda: {"turns": turns}))


@drawn
def mx_bit_editor():
    """One MXINT8 number as bits: its mantissa and exponent, the same number as bf16, and what packing makes of it."""
    axes = axes_or_new(None, 8.6, 2.3)

    def numbers(m, e):
        value, packed = mx_value(m, e), pack(m, e)
        words = f"{m} * 2^({e} - 133) = {value:g}; bf16 holds {bf16_value(bf16_bits(value)):g}"
        rows = decoded(m, e)
        return {
            "rows": [[row.name, row.bits, row.kind, row.says] for row in rows],
            "right": packed.right,
            "differing": list(rows[-1].wrong),
            "title": message(m, e, packed),
            "words": f"{words}; packing ends with {packed.value:g}: {'right' if packed.right else 'wrong'}.",
        }

    def move(m, e):
        axes.clear()
        bit_rows(m, e, axes)
        return numbers(m, e)["words"]

    def still():
        return decoding([(96, 127), (64, 127), (63, 127), (-40, 127), (-128, 127), (5, 0), (64, 255), (-128, 254)])

    controls = {"m": slider("mantissa m", -128, 127, 40), "e": slider("exponent e", 0, 255, 127)}
    alt = (
        "Eight numbers, each with the bits of its mantissa and exponent, of the same value as bf16, and of what "
        "packing ends with: right for 96, 64, 63 and -40 with an ordinary exponent; for -128 it gives 0, for exponent "
        "0 twice the value, and for exponent 255 infinity where NaN is asked for."
    )
    return Explorer(axes, controls, move, still, alt, Live("mx_bits", numbers))
