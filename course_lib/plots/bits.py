"""Numbers as bits: MXINT8's mantissa and exponent, the same number as bf16, and what packing makes of it."""

from math import isnan

from matplotlib.patches import Rectangle

from course_lib.bits import bf16_bits, bf16_value, mx_value, pack, written
from course_lib.plots.house import FAINT, INK, PALETTE, axes_or_new, drawn, finish, two_to

__all__ = ["bit_rows", "decoding"]

# sign, exponent, fraction or integer: a tint for the box
_TINTS = {"s": "#F6E0EC", "e": "#D6E6F2", "f": "#FBEFD0", "m": "#D4EEE4"}
_BF16 = "s" + 8 * "e" + 7 * "f"


def _number(x: float) -> str:
    """The shortest form that is easy to read: -2, 1.5, 1.25 · 2⁻¹³¹."""
    if isnan(x):
        return "NaN"
    if abs(x) in (0.0, float("inf")) or 1e-3 <= abs(x) < 1e4:
        return f"{x:g}"
    mantissa, exponent = x.hex().split("p")
    value = float.fromhex(mantissa + "p0")
    power = two_to(int(exponent))
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


@drawn
def bit_rows(m: int, e: int, ax=None, *, title=None):
    """One number in five rows: mantissa, exponent, the value as bf16, the packed bits, and the result of the trick."""
    ax = axes_or_new(ax, 8.6, 2.3)
    value, packed = mx_value(m, e), pack(m, e)
    true = bf16_bits(value)
    took = "nothing is taken away: bit 6 of |m| is set"
    if packed.correction is not None:
        took = f"minus {_number(bf16_value(packed.correction))}: bit 6 of |m| is clear"
    rows = (
        ("mantissa m", written(m, 8), "m" * 8, (), f"{m}, which is {m / 64:g} with 6 fraction bits"),
        (
            "exponent e",
            written(e, 8),
            "e" * 8,
            (),
            "255: not a number" if e == 255 else f"{e}, which is {two_to(e - 127)}",
        ),
        ("value, as bf16", written(true, 16), _BF16, (), _number(bf16_value(true))),
        ("packed", written(packed.number, 16), _BF16, (), f"{_number(bf16_value(packed.number))}; {took}"),
        ("result", written(bf16_bits(packed.value), 16), _BF16, _differing(true, packed.value), _result(packed)),
    )
    for y, (name, text, kinds, marked, says) in enumerate(rows):
        ax.text(-0.5, 1.35 * y + 0.5, name, ha="right", va="center", fontsize=9.5)
        end = _boxes(ax, 0, 1.35 * y, text, kinds, marked)
        ax.text(end + 0.5, 1.35 * y + 0.5, says, va="center", fontsize=9, color=INK)
    ax.set(xlim=(-5, 30), ylim=(6.5, -0.2))
    ax.set_axis_off()
    return finish(ax, title or _message(m, e, packed))


def _result(packed) -> str:
    return _number(packed.value) + ("" if packed.right else ": wrong")


def _message(m: int, e: int, packed) -> str:
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
