"""Where an output of a block is wrong, in words: which images, rows before or behind the length, and which third."""

import torch

from autograder.exercises.places import listed, only_in, runs


def where_in_a_block(output: str, wrong: torch.Tensor, args) -> str:
    """One sentence, or "". wrong: which elements are over their limit."""
    if not wrong.any():
        return ""
    if output in ("y", "dx"):
        return _of_rows(wrong.any(dim=-1), args["lengths"].to(wrong.device))
    if output in ("d_qkv_w", "d_qkv_b"):
        bad = [part for part, is_bad in zip("qkv", wrong.reshape(3, -1).any(dim=-1).tolist(), strict=True) if is_bad]
        return f"only in the rows of {' and '.join(bad)}" if len(bad) < 3 else ""
    return ""


def _of_rows(bad: torch.Tensor, lengths: torch.Tensor) -> str:
    """bad: (B, N)."""
    behind = torch.arange(bad.shape[1], device=bad.device) >= lengths[:, None]
    said = [only_in(bad.any(dim=1), "image", "images")]
    if not (bad & ~behind).any():
        said.append("only in rows behind the length")
    elif not (bad & behind).any() and behind.any():
        said.append("only in rows before the length")
    elif not bool((places := bad.any(dim=0)).all()):
        said.append(f"rows {listed([f'{a} to {b}' if b > a else str(a) for a, b in runs(places)])} of {len(places)}")
    return ", ".join(filter(None, said))
