"""Where a result of capstone.qkv is wrong, in words: images, patches and heads, or rows of q, k and v in w."""

import torch

from autograder.exercises.places import listed, only_in, runs


def wrong_places(output: str, wrong: torch.Tensor, args) -> str:
    """One sentence. wrong: which elements of o or dx (B, N, d), of dw (3 d, d) or of db (3 d,) are over their limit."""
    if not wrong.any():
        return ""
    rows, places = (_of_w if output in ("dw", "db") else _of_patches)(output, wrong, args["heads"])
    said = ", ".join(filter(None, places))
    return f"wrong in {int(rows.sum())} of {rows.numel()} rows" + (f": {said}" if said else "")


def _of_w(output: str, wrong: torch.Tensor, heads: int):
    rows = wrong.flatten(1).any(dim=1) if wrong.dim() > 1 else wrong
    parts = rows.unflatten(0, (3, heads, -1))
    bad = [name for name, part in zip("qkv", parts, strict=True) if part.any()]
    only = "" if len(bad) == 3 else f"only in those of {' and '.join(bad)}"
    return rows, [only, only_in(parts.any(dim=2).any(dim=0), "head", "heads")]


def _of_patches(output: str, wrong: torch.Tensor, heads: int):
    rows = wrong.any(dim=-1)
    of_heads = wrong.unflatten(-1, (heads, -1)).any(dim=-1).flatten(0, 1).any(dim=0)
    heads_bad = only_in(of_heads, "head", "heads") if output == "o" else ""
    return rows, [only_in(rows.any(dim=1), "image", "images"), _patches(rows.any(dim=0)), heads_bad]


def _patches(bad: torch.Tensor) -> str:
    if bool(bad.all()):
        return ""
    found = [f"{first} to {last}" if last > first else f"{first}" for first, last in runs(bad)]
    return f"patches {listed(found)} of 0 to {len(bad) - 1}"
