"""Numbers as bits: MXINT8's mantissa and exponent, the same number as bf16, and what packing makes of it."""

from math import frexp, isnan
from typing import NamedTuple

from matplotlib.patches import Rectangle

from course_lib.bits import bf16_bits, bf16_value, mx_value, pack, written
from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, finish, two_to

__all__ = ["KINDS", "Row", "bit_rows", "decoded", "decoding", "message"]

# sign, exponent, fraction or integer: a tint for the box
_TINTS = {"s": "#F6E0EC", "e": "#D6E6F2", "f": "#FBEFD0", "m": "#D4EEE4"}
_BF16 = "s" + 8 * "e" + 7 * "f"
KINDS = {"mantissa": 8 * "m", "exponent": 8 * "e", "bf16": _BF16}  # what each bit of a row is


def _number(x: float) -> str:
    """The shortest form that is easy to read: -2, 1.5, 1.25 · 2⁻¹³¹."""
    if isnan(x):
        return "NaN"
    if abs(x) in (0.0, float("inf")) or 1e-3 <= abs(x) < 1e4:
        return f"{x:g}"
    half, exponent = frexp(x)
    value, power = 2 * half, two_to(exponent - 1)
    return f"{value:g} · {power}" if abs(value) != 1 else f"{'-' if x < 0 else ''}{power}"


def _boxes(ax, x: float, y: float, text: str, kinds: str, marked=()) -> float:
    """One box a bit from x on; where they end. marked: bits that are wrong."""
    for i, (bit, kind) in enumerate(zip(text, kinds, strict=True)):
        wrong = i in marked
        edge = (
            {"edgecolor": PALETTE[1], "linewidth": 1.8, "zorder": 3}
            if wrong
            else {"edgecolor": FAINT, "linewidth": 0.6}
        )
        ax.add_patch(Rectangle((x + i, y), 1, 1, facecolor=_TINTS[kind], **edge))
        ax.text(x + i + 0.5, y + 0.52, bit, ha="center", va="center", fontsize=8.5, color=INK, zorder=4,
                weight="bold" if wrong else "normal")  # fmt: skip
    return x + len(text)


def _differing(true: int, came: float) -> tuple[int, ...]:
    """Places of the bits that differ; none where both are NaN."""
    if isnan(bf16_value(true)) and isnan(came):
        return ()
    pairs = zip(written(true, 16), written(bf16_bits(came), 16), strict=True)
    return tuple(i for i, (a, b) in enumerate(pairs) if a != b)


class Row(NamedTuple):
    """One line of bits and what they mean."""

    name: str
    bits: str
    kind: str  # of KINDS
    says: str
    wrong: tuple[int, ...] = ()  # places of bits that should be others


def decoded(m: int, e: int) -> list[Row]:
    """Mantissa, exponent, the value as bf16, the packed bits, and the result of the trick."""
    value, packed = mx_value(m, e), pack(m, e)
    true = bf16_bits(value)
    took = "nothing is taken away: bit 6 of |m| is set"
    if packed.correction is not None:
        took = f"minus {_number(bf16_value(packed.correction))}: bit 6 of |m| is clear"
    power = "255: not a number" if e == 255 else f"{e}, which is {two_to(e - 127)}"
    differing = _differing(true, packed.value)
    return [
        Row("mantissa m", written(m, 8), "mantissa", f"{m}, which is {m / 64:g} with 6 fraction bits"),
        Row("exponent e", written(e, 8), "exponent", power),
        Row("value, as bf16", written(true, 16), "bf16", _number(bf16_value(true))),
        Row("packed", written(packed.number, 16), "bf16", f"{_number(bf16_value(packed.number))}; {took}"),
        Row("result", written(bf16_bits(packed.value), 16), "bf16", _result(packed), differing),
    ]


@drawn
def bit_rows(m: int, e: int, ax=None, *, title=None):
    """One number in the five rows of `decoded`."""
    ax = axes_or_new(ax, 8.6, 2.3)
    for y, row in enumerate(decoded(m, e)):
        ax.text(-0.5, 1.35 * y + 0.5, row.name, ha="right", va="center", fontsize=9.5)
        end = _boxes(ax, 0, 1.35 * y, row.bits, KINDS[row.kind], row.wrong)
        ax.text(end + 0.5, 1.35 * y + 0.5, row.says, va="center", fontsize=9, color=INK)
    ax.set(xlim=(-5, 30), ylim=(6.5, -0.2))
    ax.set_axis_off()
    return finish(ax, title or message(m, e, pack(m, e)))


def _result(packed) -> str:
    return _number(packed.value) + ("" if packed.right else ": wrong")


def message(m: int, e: int, packed) -> str:
    """One sentence about what packing does to a number."""
    if packed.right:
        return f"m = {m}, e = {e}: packing ends with the right number"
    return f"m = {m}, e = {e}: packing ends with {_number(packed.value)}, and should not"


@drawn
def decoding(pairs, ax=None, *, title=None):
    """One row for each (m, e): the bits of both, the value as bf16, and the result of packing as bf16."""
    ax = axes_or_new(ax, 9.6, 0.8 + 0.3 * len(pairs))
    columns = {"bits of m": 0.0, "bits of e": 9.5, "value, as bf16": 19.0, "by packing": 46.0}
    for name, x in columns.items():
        ax.text(x, -0.45, name, fontsize=8.5, weight="bold", va="bottom")
    ax.text(-0.5, -0.45, "m, e", fontsize=8.5, weight="bold", va="bottom", ha="right")
    for row, (m, e) in enumerate(pairs):
        y, value, packed = 1.45 * row, mx_value(m, e), pack(m, e)
        true = bf16_bits(value)
        ax.text(-0.5, y + 0.5, f"{m}, {e}", ha="right", va="center", fontsize=9)
        _boxes(ax, columns["bits of m"], y, written(m, 8), "m" * 8)
        _boxes(ax, columns["bits of e"], y, written(e, 8), "e" * 8)
        end = _boxes(ax, columns["value, as bf16"], y, written(true, 16), _BF16)
        ax.text(end + 0.4, y + 0.5, _number(bf16_value(true)), va="center", fontsize=8.5)
        marked = _differing(true, packed.value)
        end = _boxes(ax, columns["by packing"], y, written(bf16_bits(packed.value), 16), _BF16, marked)
        ax.text(end + 0.4, y + 0.5, _result(packed), va="center", fontsize=8.5)
    ax.set(xlim=(-7, 76), ylim=(1.45 * len(pairs), -1.6))
    ax.set_axis_off()
    return finish(ax, title or "A mantissa and an exponent, the same number as bf16, and what packing makes of it")
