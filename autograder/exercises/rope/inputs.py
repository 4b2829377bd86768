"""How inputs of a rotation are drawn: tables, positions, layouts in memory."""

import torch

from autograder.exercise import Draw
from autograder.exercises.dtypes import DTYPE_NAMES, FP32
from autograder.exercises.strides import rows_apart


def tables(draw: Draw, rotary_size: int, positions: int) -> dict:
    """Cosines and sines, made in float64 and rounded once. The base is small, so that no pair stands nearly still."""
    base = draw.number(20.0, 2000.0)
    frequencies = base ** (-torch.arange(0, rotary_size, 2, dtype=torch.float64) / rotary_size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    return {"cos": angles.cos().to(draw.device, FP32), "sin": angles.sin().to(draw.device, FP32)}


def ids(draw: Draw, batch: int, length: int, packed: bool = False) -> list[list[int]]:
    """Positions of a batch of sequences; `packed`: each row holds several sequences, and every one begins at 0."""
    if not packed:
        starts = draw.rng.sample(range(1, 40), batch)
        return [[start + s for s in range(length)] for start in starts]
    return [_packed(draw, length) for _ in range(batch)]


def _packed(draw: Draw, length: int) -> list[int]:
    row: list[int] = []
    while len(row) < length:
        row += range(draw.integer(2, 9))
    return row[:length]


def with_gap(gap: int):
    """Strides of (B, H, S, D) as the views of one projection have them: heads side by side, `gap` elements between."""
    return lambda shape: rows_apart(shape, gap)


def call_words(q: torch.Tensor, k: torch.Tensor, args: dict) -> str:
    """What a report says about a call."""
    (batch, heads, length, head_size), kv_heads = q.shape, k.shape[1]
    shared = f" and {kv_heads}" if kv_heads != heads else ""
    turning = 2 * args["cos"].shape[1]
    part = f", {turning} of them turned" if turning != head_size else ""
    offset = f", offset {args['offset']}" if args.get("offset") else ""
    given = ", position ids" if args.get("positions") is not None else ""
    return (
        f"batch {batch}, heads {heads}{shared}, length {length}, head size {head_size}{part}, {args['layout']}, "
        f"{DTYPE_NAMES[q.dtype]}{offset}{given}"
    )
