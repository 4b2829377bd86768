"""How people write the rotation in PyTorch wrongly: which angle, which pair, in which precision."""

import math

import torch

from autograder.exercise import Mistake
from autograder.exercises.rope import wrong_rotation_formulas as wrong
from autograder.exercises.rope.rotation import LAYOUTS, turned
from course_lib.numerics import error


def frequencies(v, exponent=None, base=None) -> torch.Tensor:
    """base^(-2 j / R), or with another exponent, a function of j."""
    j = torch.arange(v["rotary_size"] // 2, dtype=torch.float64, device=v["x"].device)
    return (base or v["base"]) ** (-2 * j / v["rotary_size"] if exponent is None else exponent(j))


def with_tables(v, dtype=torch.float64, at=None, turn_by=None) -> dict:
    """The arguments with tables for the rows of x; at: their positions; turn_by: other frequencies."""
    at = positions(v) if at is None else at
    angles = torch.outer(at, frequencies(v) if turn_by is None else turn_by)
    return with_angles(v, angles, dtype)


def with_angles(v, angles: torch.Tensor, dtype=torch.float64) -> dict:
    # no offset, and no positions: the tables begin with the first row
    return {"cos": angles.cos().to(dtype), "sin": angles.sin().to(dtype), "layout": v["layout"]}


def positions(v, offset=None) -> torch.Tensor:
    offset = v["offset"] if offset is None else offset
    return torch.arange(v["x"].shape[2], dtype=torch.float64, device=v["x"].device) + offset


def _frequencies(exponent=None, base=None):
    """An answer with other frequencies."""
    return lambda v: {"y": turned(with_tables(v, turn_by=frequencies(v, exponent and exponent(v), base)), v["x"])}


def _positions(at):
    return lambda v: {"y": turned(with_tables(v, at=at(v)), v["x"])}


def _formula(change):
    """An answer from a formula of one tensor."""
    return lambda v, *variant: {"y": change(with_tables(v), v["x"], *variant)}


def _mixed(mix):
    return _formula(lambda v, x: turned(v, x, mix=mix))


def _short_angles(e) -> bool:
    """A little off near position 0, if at all; anything elsewhere."""
    near = [t for t in e.failing if t.case.name not in (*FAR, "bf16")]
    if not e.failed("bf16") or any(t.outcome.error for t in e.failing):
        return False
    return all(error(t.outcome.outputs["y"], t.want["y"]).rms < 0.1 for t in near)


def _along_heads(v) -> dict:
    """x taken for (B, S, H, D)."""
    x = v["x"].transpose(1, 2)
    return {"y": turned(with_tables(v | {"x": x}), x).transpose(1, 2)}


def _whole_head(v) -> dict:
    """R taken to be D, the frequencies too."""
    return {"y": turned(with_tables(v | {"rotary_size": v["x"].shape[3]}), v["x"])}


def _returned(e, is_so) -> bool:
    """Whether every failing case returned a tensor y of which is_so(y, x) holds."""
    found = [(t.outcome.outputs.get("y"), t.args["x"]) for t in e.failing]
    return bool(found) and all(isinstance(y, torch.Tensor) and is_so(y, x) for y, x in found)


_other_layout = _formula(wrong.other_layout)
FAR = ("far positions", "fp16, far positions")

MISTAKES = (
    Mistake(
        "input_changed",
        "x was changed: slices are views, and what is written into them is written into x.",
        sign=lambda e: e.changed("x"),
    ),
    Mistake(
        "result_in_another_type",
        "The result has another type than x: convert it back at the end.",
        sign=lambda e: _returned(e, lambda y, x: y.shape == x.shape and y.dtype != x.dtype),
    ),
    Mistake(
        "rest_missing",
        "Only the turned elements are returned: put the D - R others behind them.",
        sign=lambda e: _returned(e, lambda y, x: y.dim() == 4 and y.shape[-1] < x.shape[-1]),
    ),
    Mistake(
        "layout_ignored",
        "`layout` changes nothing: the pairs are (x[j], x[j + R / 2]) for halves, (x[2 j], x[2 j + 1]) else.",
        sign=lambda e: wrong.layout_ignored(e, _other_layout),
    ),
    Mistake(
        "layouts_swapped",
        "The two layouts are exchanged: halves pairs x[j] with x[j + R / 2], interleaved x[2 j] with x[2 j + 1].",
        answer=_other_layout,
    ),
    Mistake(
        "put_back_otherwise",
        "One layout is right, and the results of the other lie in the wrong places: torch.cat puts halves back, and "
        "torch.stack(..., dim=-1).flatten(-2) neighbours.",
        answer=_formula(wrong.put_back_otherwise),
        variants=LAYOUTS,
    ),
    Mistake(
        "tables_of_the_other_layout",
        "The two elements of a pair get different angles. Cosines of full width are repeated as a whole for halves, "
        "torch.cat((c, c), -1), and one by one for interleaved, c.repeat_interleave(2, -1).",
        answer=_formula(wrong.full_width),
        variants=(None, *LAYOUTS),
    ),
    Mistake(
        "offset_subtracted",
        "The offset is subtracted: row s is at position offset + s.",
        answer=_positions(lambda v: positions(v, -v["offset"])),
    ),
    Mistake(
        "offset_ignored",
        "`offset` changes nothing: row s is at position offset + s.",
        answer=_positions(lambda v: positions(v, 0)),
    ),
    Mistake(
        "positions_from_one",
        "Positions are off by one: row 0 is at position offset.",
        answer=_positions(lambda v: positions(v) + 1),
    ),
    Mistake(
        "positions_along_heads",
        "The angle grows along the heads and not along the rows: x is (B, H, S, D).",
        answer=_along_heads,
    ),
    Mistake(
        "exponent_of_whole_head",
        "Wrong only where a part of the head is turned: the exponent is -2 j / R, with the size that is turned.",
        answer=_frequencies(lambda v: lambda j: -2 * j / v["x"].shape[3]),
    ),
    Mistake(
        "exponent_halved",
        "Frequencies fall half as fast as they should: the exponent is -2 j / R.",
        answer=_frequencies(lambda v: lambda j: -j / v["rotary_size"]),
    ),
    Mistake(
        "exponent_doubled",
        "Frequencies fall twice as fast as they should: torch.arange(0, R, 2) counts 2 j already.",
        answer=_frequencies(lambda v: lambda j: -4 * j / v["rotary_size"]),
    ),
    Mistake(
        "exponent_inverted",
        "Frequencies grow with j: the exponent is negative.",
        answer=_frequencies(lambda v: lambda j: 2 * j / v["rotary_size"]),
    ),
    Mistake(
        "frequencies_from_one",
        "Frequencies begin with j = 1: the first pair turns by one radian a position.",
        answer=_frequencies(lambda v: lambda j: -2 * (j + 1) / v["rotary_size"]),
    ),
    Mistake(
        "base_hard_coded",
        "The base is always 10000: it is an argument.",
        answer=_frequencies(base=10000.0),
    ),
    Mistake(
        "full_turns",
        "Angles are 2 pi times too large: a frequency is in radians a position.",
        answer=lambda v: {"y": turned(with_tables(v, turn_by=2 * math.pi * frequencies(v)), v["x"])},
    ),
    *wrong.wrong_signs(_mixed),
    Mistake(
        "cosine_alone",
        "The pairs are multiplied with the cosine only: each result needs both elements of its pair.",
        answer=_mixed(wrong.cosine_alone),
    ),
    Mistake(
        "half_overwritten",
        "One half is right, the other was made from it: x0 was replaced before y1 was computed.",
        answer=lambda v, second: _mixed(wrong.overwritten(second))(v),
        variants=(False, True),
    ),
    Mistake(
        "partner_of_whole_head",
        "Wrong only where a part of the head is turned: with halves the partner of x[j] is x[j + R / 2], not "
        "x[j + D / 2].",
        answer=_formula(wrong.whole_head_partner),
    ),
    Mistake(
        "whole_head_turned",
        "The whole head is turned: only its first R elements belong to pairs.",
        answer=_whole_head,
    ),
    Mistake(
        "rest_lost",
        "The elements that are not turned were changed: copy them.",
        answer=_formula(wrong.rest_lost),
        variants=(0.0,),
    ),
    Mistake(
        "angles_in_fp32",
        "Right near position 0, wrong far from it: a frequency in fp32 is off by up to 6e-8 of itself, and the "
        "position multiplies that. Make the angles in float64.",
        sign=lambda e: e.failed("far positions") and e.failed_only(*FAR),
    ),
    Mistake(
        "angles_in_two_bytes",
        "Angles have the error of a 2-byte type: positions or frequencies took the type of x, or bf16. bf16 has no "
        "number between 256 and 258.",
        sign=_short_angles,
    ),
)
