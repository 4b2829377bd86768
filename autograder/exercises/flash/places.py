"""Where an output of attention is wrong, in words: which sequences, heads and rows, and what that says about tiles."""

import torch

from autograder.exercises.places import listed, only_in, runs

TILES = (16, 32, 64, 128)
OF_KEYS = ("dk", "dv")


def wrong_rows(output: str, wrong: torch.Tensor, args) -> str:
    """One sentence. wrong: (B, H, N) or (B, H, N, D), which elements are over their limit."""
    if wrong.dim() not in (3, 4) or not wrong.any():
        return ""
    rows = wrong.any(dim=-1) if wrong.dim() == 4 else wrong
    of_keys = " of keys" if output in OF_KEYS else ""
    said = [
        only_in(rows.any(dim=2).any(dim=1), "sequence", "sequences"),
        only_in(rows.any(dim=2).any(dim=0), f"head{of_keys}", f"heads{of_keys}"),
        _rows(rows.any(dim=1).any(dim=0), "keys" if output in OF_KEYS else "queries", args),
        _columns(wrong) if wrong.dim() == 4 else "",
    ]
    places = ", ".join(filter(None, said))
    return f"wrong in {int(rows.sum())} of {rows.numel()} rows" + (f": {places}" if places else "")


def _rows(bad: torch.Tensor, what: str, args) -> str:
    if bool(bad.all()):
        return ""
    found = runs(bad)
    said = f"{what} {listed([_run(*run) for run in found])} of 0 to {len(bad) - 1}"
    first, last = found[0]
    if len(found) > 1:
        return said
    hidden = args["q"].shape[2] - args["k"].shape[2]
    if what == "queries" and args.get("causal") and (first, last) == (0, hidden - 1):
        return f"{said}, those that see no key"
    if "block" in args:  # flash.tiled takes all queries at once, so there are no tiles of queries
        return said
    if last == len(bad) - 1 and first:
        tiles = [tile for tile in TILES if first == last // tile * tile]
        return said + (f", the last tile when it has {_either(tiles)} rows" if tiles else "")
    if first == 0 and last + 1 in TILES:
        return f"{said}, the first tile of {last + 1}"
    return said


def _run(first: int, last: int) -> str:
    return f"{first} to {last}" if last > first else f"{first}"


def _either(numbers: list[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _columns(wrong: torch.Tensor) -> str:
    bad = wrong.flatten(0, 2).any(dim=0)
    found = runs(bad)
    if bool(bad.all()) or len(found) > 1:
        return ""
    return f"columns {found[0][0]} to {found[0][1]} of 0 to {len(bad) - 1}"
