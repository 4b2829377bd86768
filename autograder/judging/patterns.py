"""Where the wrong elements of an output lie, when no known mistake explains them.

Each pattern is a pure question about `wrong`, a boolean map; its text is what the student reads. The words never
hold an expected value: positions and factors only.
"""

from __future__ import annotations

from itertools import pairwise

import torch


def describe(got: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor) -> dict[str, str]:
    """Every pattern that fits, kind -> sentence, most telling first."""
    got = got.detach().to(torch.float64)
    wrong = wrong | (got.isnan() & ~want.isnan())
    if not wrong.any():
        return {}
    rows = wrong.reshape(-1, wrong.shape[-1]) if wrong.dim() else wrong.reshape(1, 1)
    found = {}
    for question in (_unwritten, _nan, _everything_by_a_factor, _last_columns, _last_rows, _one_row, _diagonal, _grows):
        found.update(question(got, want, wrong, rows))
    share = float(wrong.double().mean())
    found.setdefault("share", f"{share:.0%} of the elements are wrong" if share < 1 else "every element is wrong")
    return found


def _unwritten(got, want, wrong, rows):
    missing = got.isnan() & ~want.isnan()
    if bool((missing == wrong).all()):
        return {"unwritten": f"{int(missing.sum())} of {missing.numel()} elements {_are(missing)} NaN"}
    return {}


def _nan(got, want, wrong, rows):
    bad = got.isnan() & ~want.isnan()
    if bad.any() and not bool((bad == wrong).all()):
        return {"nan": f"{int(bad.sum())} of {bad.numel()} elements {_are(bad)} NaN and others are wrong"}
    return {}


def _are(some) -> str:
    return "is" if int(some.sum()) == 1 else "are"


def _everything_by_a_factor(got, want, wrong, rows):
    usable = (want.abs() > 1e-12) & want.isfinite() & got.isfinite()
    if not bool(wrong.all()) or usable.sum() < 8:
        return {}
    ratio = (got / want)[usable]
    middle = ratio.median()
    if middle and bool(((ratio / middle - 1).abs() < 1e-2).double().mean() > 0.95):
        return {"constant factor": f"every element is off by the same factor, about {float(middle):.4g}"}
    return {}


def _last_columns(got, want, wrong, rows):
    columns = rows.any(dim=0)
    first = int(columns.nonzero()[0])
    width = len(columns)
    if 0 < first and bool(columns[first:].all()):
        return {"last columns": f"wrong only in the last {width - first} of {width} columns: the partial last tile"}
    return {}


def _last_rows(got, want, wrong, rows):
    bad = rows.any(dim=1)
    first = int(bad.nonzero()[0])
    if len(bad) > 1 and 0 < first and bool(bad[first:].all()):
        return {"last rows": f"wrong only in the last {len(bad) - first} of {len(bad)} rows: the partial last tile"}
    return {}


def _one_row(got, want, wrong, rows):
    bad = rows.any(dim=1)
    if len(bad) > 1 and int(bad.sum()) == 1:
        return {"one row": f"wrong only in row {int(bad.nonzero()[0])}"}
    return {}


def _diagonal(got, want, wrong, rows):
    if wrong.dim() < 2 or rows.shape[0] < 3 or bool(wrong.all()):
        return {}
    row, column = rows.nonzero(as_tuple=True)
    row = row % wrong.shape[-2]
    if bool((column > row).all()):
        return {"above diagonal": "wrong only above the diagonal: look at the mask"}
    if bool((column < row).all()):
        return {"below diagonal": "wrong only below the diagonal: look at the mask"}
    return {}


def _grows(got, want, wrong, rows):
    if want.dim() == 0 or want.shape[-1] < 32:
        return {}
    off = (got - want).abs().reshape(-1, want.shape[-1]).nan_to_num(posinf=0.0).mean(dim=0)
    quarter = len(off) // 4
    ends = [float(off[i * quarter : (i + 1) * quarter].mean()) for i in range(4)]
    if ends[0] > 0 and all(b > 1.2 * a for a, b in pairwise(ends)) and ends[3] > 3 * ends[0]:
        return {"grows along columns": "the error grows from the first column to the last"}
    return {}
