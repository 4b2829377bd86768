"""Where an output of attention is wrong, in words: which sequences, heads and rows, and what that says about tiles."""

import torch

TILES = (16, 32, 64, 128)
OF_KEYS = ("dk", "dv")
MANY = 5  # separate runs of rows that are still listed


def where(output: str, wrong: torch.Tensor, args) -> str:
    """One sentence. wrong: (B, H, N) or (B, H, N, D), which elements are over their limit."""
    if wrong.dim() not in (3, 4) or not wrong.any():
        return ""
    rows = wrong.any(dim=-1) if wrong.dim() == 4 else wrong
    heads = "heads of keys" if output in OF_KEYS else "heads"
    said = [
        _some(rows.any(dim=2).any(dim=1), "sequences"),
        _some(rows.any(dim=2).any(dim=0), heads),
        _rows(rows.any(dim=1).any(dim=0), "keys" if output in OF_KEYS else "queries", args),
        _columns(wrong) if wrong.dim() == 4 else "",
    ]
    places = ", ".join(filter(None, said))
    return f"wrong in {int(rows.sum())} of {rows.numel()} rows" + (f": {places}" if places else "")


def _some(bad: torch.Tensor, what: str) -> str:
    """Which of several, unless it is all of them."""
    if bool(bad.all()):
        return ""
    found = bad.nonzero().flatten().tolist()
    names = ", ".join(map(str, found[:MANY])) + (" and others" if len(found) > MANY else "")
    return f"only in {what if len(found) > 1 else what.replace('heads', 'head').removesuffix('s')} {names}"


def _rows(bad: torch.Tensor, what: str, args) -> str:
    if bool(bad.all()):
        return ""
    runs = _runs(bad)
    shown = ", ".join(f"{first} to {last}" if last > first else f"{first}" for first, last in runs[:MANY])
    said = f"{what} {shown}{' and others' if len(runs) > MANY else ''} of 0 to {len(bad) - 1}"
    first, last = runs[0]
    if len(runs) > 1:
        return said
    hidden = args["q"].shape[2] - args["k"].shape[2]
    if what == "queries" and args.get("causal") and (first, last) == (0, hidden - 1):
        return f"{said}, those that see no key"
    if "block" in args:  # all queries at once: no tile of them ends anywhere
        return said
    if last == len(bad) - 1 and first:
        tiles = [tile for tile in TILES if first == last // tile * tile]
        return said + (f", the last tile when it has {_either(tiles)} rows" if tiles else "")
    if first == 0 and last + 1 in TILES:
        return f"{said}, the first tile of {last + 1}"
    return said


def _runs(bad: torch.Tensor) -> list[tuple[int, int]]:
    """First and last of each run of neighbours."""
    runs: list[tuple[int, int]] = []
    for n in bad.nonzero().flatten().tolist():
        if runs and runs[-1][1] == n - 1:
            runs[-1] = (runs[-1][0], n)
        else:
            runs.append((n, n))
    return runs


def _either(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _columns(wrong: torch.Tensor) -> str:
    bad = wrong.flatten(0, 2).any(dim=0)
    runs = _runs(bad)
    if bool(bad.all()) or len(runs) > 1:
        return ""
    return f"columns {runs[0][0]} to {runs[0][1]} of 0 to {len(bad) - 1}"
