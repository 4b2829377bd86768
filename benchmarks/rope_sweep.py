"""python -m benchmarks.rope_sweep [--seconds 200]: try blocks of the RoPE kernel, one JSON line each.

Every line: shape, layout in memory, blocks, us a call, time over that of the table's blocks (turn by turn), over an
in-place scale of the same bytes; or what went wrong. Likeliest blocks first.
"""

import argparse
import json
import time

import torch

from benchmarks.rope import BATCH, HEAD_SIZE, HEADS, heads_of, pairs, relative, scale
from course_lib.kernels.angles import rope_frequencies
from course_lib.kernels.rope import Blocks, Computed, Tables, blocks_for, heads_inside, write_rope
from course_lib.timing import compare

SHAPES = [(length, inside, kind) for length in (8192, 2048) for inside, kind in ((True, Tables), (False, Tables))]
SHAPES.append((8192, True, Computed))
CANDIDATES = {  # positions, heads of q, heads of k, warps
    True: [
        (1, 32, 32, 4), (1, 32, 32, 8), (1, 32, 32, 2), (1, 16, 16, 4), (1, 16, 16, 2), (2, 32, 32, 8), (2, 32, 32, 4),
        (1, 8, 8, 1), (1, 8, 8, 2), (2, 16, 16, 4), (4, 32, 32, 8), (4, 8, 8, 4), (1, 16, 16, 1), (8, 4, 4, 4),
    ],
    False: [
        (8, 4, 4, 4), (32, 1, 1, 4), (16, 2, 2, 4), (8, 2, 2, 2), (4, 8, 8, 4), (16, 4, 4, 8), (16, 1, 1, 4),
        (16, 1, 1, 2), (64, 1, 1, 8), (8, 1, 1, 1), (32, 1, 1, 8), (4, 4, 4, 2), (16, 4, 4, 4), (2, 16, 16, 4),
    ],
}  # fmt: skip


def jobs() -> list[tuple]:
    longest = max(map(len, CANDIDATES.values()))
    return [
        (shape, CANDIDATES[shape[1]][i]) for i in range(longest) for shape in SHAPES if i < len(CANDIDATES[shape[1]])
    ]


class Ready:
    """One shape: q and k in a ring, and the calls to compare."""

    def __init__(self, length: int, inside: bool, kind: type):
        self.ring = pairs(length)
        frequencies = rope_frequencies(HEAD_SIZE)
        angles = Tables.of(frequencies, length, "cuda") if kind is Tables else Computed.of(frequencies, "cuda")
        self.how = (*angles.parts, None, 0, kind is Computed, False, False)
        size = (2, BATCH, HEADS, length, HEAD_SIZE)
        self.views = [heads_of(x) if inside else tuple(x.view(size)) for x in self.ring]
        q, _ = self.views[0]
        assert heads_inside(q) == inside
        self.table = blocks_for(HEADS, HEADS, HEAD_SIZE, inside, q.device)

    def run(self, blocks: Blocks) -> None:
        for q, k in self.views:
            write_rope(q, k, q, k, *self.how, blocks)

    def scale(self) -> None:
        for x in self.ring:
            scale(x, x)

    def once(self, blocks: Blocks) -> list[torch.Tensor]:
        """Into new tensors, so that the ring stays as it is."""
        q, k = self.views[0]
        got = [torch.full_like(x, float("nan")) for x in (q, k)]
        write_rope(*got, q, k, *self.how, blocks)
        return got


def measured(ready: Ready, blocks: Blocks) -> dict:
    errors = [relative(got, want.double()) for got, want in zip(ready.once(blocks), ready.once(ready.table))]
    # Another program may round a last bit of fp32 differently, and a few of bf16 with it. NaN is below nothing.
    if not all(error < 2e-4 for error in errors):
        return {"wrong": f"{errors} from the result with the table's blocks"}
    near = {"cold": False, "precision": 0.003, "max_seconds": 0.25}
    seen = compare(lambda: ready.run(blocks), lambda: ready.run(ready.table), **near)
    over = compare(lambda: ready.run(blocks), ready.scale, **near)
    calls = len(ready.ring)
    return {
        "us": round(seen.a.us / calls, 2),
        "over the table's": round(seen.ratio, 4),
        "over a scale": round(over.ratio, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=200)
    deadline, ready = time.time() + parser.parse_args().seconds, {}
    for shape, blocks in jobs():
        if time.time() > deadline:
            return
        if shape not in ready:
            ready[shape] = Ready(*shape)
        length, inside, kind = shape
        line = {"length": length, "heads inside": inside, "angles": kind.__name__, "blocks": blocks}
        try:
            line |= measured(ready[shape], Blocks(*blocks))
        except Exception as failed:  # whatever one configuration does, the next is to be tried
            line |= {"failed": f"{type(failed).__name__}: {str(failed)[:120]}"}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
