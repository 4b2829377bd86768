"""python -m benchmarks.attention_parts [--seconds 88] [--kinds keys heads]: try blocks and parts, a JSON line each.

    keys     forward with few queries: programs that share keys, and the kernel that merges
    heads    the backward pass where query heads share keys: programs of dk and dv that share these heads

The line of a shape without blocks holds the time of every peer, of one program a tile ("whole") and of what the rule
takes ("rule"). The other lines: us, and the time over the best peer's, turn by turn; or what went wrong. Each result is
held against float64 for the last sequence's first heads, and against that of one program a tile everywhere. SDPA's
causal mask starts at the first key: with fewer queries than keys its backends are timed without one.
"""

from collections.abc import Callable
from dataclasses import astuple, replace
from functools import lru_cache, partial

import torch
from torch._functorch import config as donated_buffers

from benchmarks import attention as tabled
from benchmarks import beside_attention, sweeping
from benchmarks.beside_attention import Shape
from course_lib.device import DEVICE
from course_lib.kernels.attention.backward import row_terms, write_backward, write_dkdv, write_dq
from course_lib.kernels.attention.forward import write_forward
from course_lib.kernels.attention.tuning import Parts, blocks_for, groups_for, tuned
from course_lib.kernels.hardware import capability
from course_lib.timing import compare

NEAR = {"cold": False, "precision": 0.01, "max_seconds": 0.06}
MULTIPROCESSORS = 132  # of an H200
# Programs, in numbers of multiprocessors: of the first candidate, and of the others.
PROGRAMS = (0.5, 1, 2, 3), (1, 2)
KEYS = [
    Shape(1, 32, 8, 1, 4096, 128), Shape(64, 16, 16, 1, 2048, 64, padded=True), Shape(1, 16, 16, 1, 16384, 64),
    Shape(1, 32, 1, 1, 32768, 128), Shape(1, 32, 8, 1, 1024, 128), Shape(2, 16, 16, 128, 4096, 64, causal=True),
    Shape(20, 32, 8, 1, 8192, 128), Shape(16, 16, 16, 1, 4096, 64), Shape(8, 32, 8, 5, 8192, 128, causal=True),
    Shape(8, 16, 16, 16, 8192, 128), Shape(64, 16, 16, 16, 1024, 128), Shape(16, 16, 16, 64, 2048, 64),
    Shape(256, 16, 16, 1, 512, 64),
]  # fmt: skip
# Only the rule beside the peers.
SETTLED = [
    Shape(1, 32, 8, 1, 32768, 128), Shape(32, 32, 8, 1, 8192, 128), Shape(4, 16, 16, 128, 8192, 128),
    Shape(1, 64, 8, 1, 65536, 128), Shape(64, 32, 8, 1, 1024, 128),
]  # fmt: skip
# Parts of the query heads that share keys.
HEADS = {
    Shape.square(4, 32, 4096, 128, shared=1, causal=True): (4, 8, 16),
    Shape.square(1, 32, 4096, 128, shared=8, causal=True): (2, 4),
    Shape.square(1, 32, 4096, 128, shared=1): (2, 4, 8),
    Shape.square(4, 32, 1024, 128, shared=8, causal=True): (2, 4),
    Shape.square(2, 16, 8192, 64, shared=2, causal=True): (2, 4),
    Shape.square(4, 32, 4096, 128, shared=8, causal=True): (2,),
}
# Rows a tile -> rows, keys a turn, warps, stages; likeliest first.
CANDIDATES = {
    16: [(16, 128, 4, 3), (16, 64, 4, 3)],
    32: [(32, 128, 4, 3), (32, 64, 4, 3)],
    64: [(64, 64, 4, 3), (64, 128, 4, 3)],
}


def jobs(kinds: list[str]) -> list[dict]:
    found = []
    if "heads" in kinds:
        for shape, numbers in HEADS.items():
            found += [{"kind": "heads", "shape": astuple(shape), "blocks": parts} for parts in (None, *numbers)]
    if "keys" in kinds:
        for shape in KEYS + SETTLED:
            found.append({"kind": "keys", "shape": astuple(shape), "blocks": None})
            rows = shape.heads // shape.shared * shape.n_q
            tried = CANDIDATES[16 if rows <= 16 else 32 if rows <= 32 else 64] if shape in KEYS else ()
            for number, blocks in enumerate(tried):
                tiles = -(-rows // blocks[0]) * shape.batch * shape.shared
                most = min(128, shape.n_k // blocks[1])
                numbers = [max(1, round(times * MULTIPROCESSORS / tiles)) for times in PROGRAMS[number > 0]]
                if numbers[-1] > most:
                    numbers = [most // 4, most // 2, most][number:]
                for parts in dict.fromkeys(numbers):
                    found.append({"kind": "keys", "shape": astuple(shape), "blocks": (*blocks, parts)})
    return found


class Keys:
    """One shape's inputs, and forward with any blocks."""

    def __init__(self, shape: Shape):
        self.shape = shape
        self.q, self.k, self.v, self.do, self.lengths = beside_attention.drawn(shape)
        self.o, self.l = torch.empty_like(self.q), torch.empty(self.q.shape[:-1], device=DEVICE)
        self.method = "graph"

    def tried(self, blocks: list) -> Parts:
        m, n, warps, stages, parts = blocks
        return Parts(m, n, warps, stages, parts=parts)

    def whole(self):
        given = self.q, self.k, self.v, self.o
        causal, padded = self.shape.causal, self.lengths is not None
        groups = groups_for("forward", causal, padded, capability(self.q.device), *given)
        return groups or tuned(self.shape.size, causal, self.q.dtype, self.q.device).forward

    def rule(self):
        return blocks_for("forward", self.shape.causal, self.lengths, self.q, self.k, self.v, self.o)

    def run(self, blocks) -> dict[str, torch.Tensor]:
        scale = self.shape.size**-0.5
        write_forward(self.o, self.l, self.q, self.k, self.v, self.shape.causal, scale, self.lengths, blocks)
        return {"o": self.o}

    def peer(self, function: Callable) -> Callable:
        return tabled._forward(function, self.q, self.k, self.v, self.do)

    def alone(self, blocks) -> dict:
        return {}


class Heads(Keys):
    """The same of the backward pass. Blocks are those of dk and dv."""

    def __init__(self, shape: Shape):
        super().__init__(shape)
        super().run(blocks_for("forward", shape.causal, None, self.q, self.k, self.v, self.o))
        self.dq, self.dk, self.dv = (torch.empty_like(x) for x in (self.q, self.k, self.v))
        self.method = "events"

    def tried(self, parts: int) -> Parts:
        return Parts(**vars(tuned(self.shape.size, self.shape.causal, self.q.dtype, self.q.device).dkdv), parts=parts)

    def whole(self):
        given = self.q, self.k, self.v, self.do, self.dk, self.dv
        groups = groups_for("dkdv", self.shape.causal, False, capability(self.q.device), *given)
        return groups or tuned(self.shape.size, self.shape.causal, self.q.dtype, self.q.device).dkdv

    def rule(self):
        return blocks_for("dkdv", self.shape.causal, None, self.q, self.k, self.v, self.do, self.dk, self.dv)

    def run(self, blocks) -> dict[str, torch.Tensor]:
        given = self.do, self.q, self.k, self.v, self.o, self.l, self.shape.causal, self.shape.size**-0.5
        write_backward(self.dq, self.dk, self.dv, *given, blocks=blocks)
        return {"dq": self.dq, "dk": self.dk, "dv": self.dv}

    def peer(self, function: Callable) -> Callable:
        return tabled._backward(function, self.q, self.k, self.v, self.do)

    def alone(self, blocks) -> dict:
        """dk and dv without dq."""
        causal, scale, terms = self.shape.causal, self.shape.size**-0.5, row_terms(self.l)
        table = tuned(self.shape.size, causal, self.q.dtype, self.q.device)
        given = self.do, self.q, self.k, self.v
        write_dq(self.dq, *terms, *given, self.o, self.l, None, causal, scale, None, table.dq)

        def call(blocks):
            write_dkdv(self.dk, self.dv, *given, *terms, causal, scale, None, blocks)

        seen = compare(partial(call, blocks), partial(call, self.whole()), **NEAR)
        return {"dkdv us": round(seen.a.us, 1), "dkdv over whole": round(seen.ratio, 3)}


@lru_cache(maxsize=1)  # a shape's inputs are up to 2 GB
def _ready(kind: str, shape: tuple) -> tuple[Keys, dict, dict, dict, str]:
    """The shape; float64 of some heads, one program's result, peers, and the name of the fastest."""
    made = {"keys": Keys, "heads": Heads}[kind](Shape(*shape))
    want = beside_attention.exact(made.shape, made.q, made.k, made.v, made.do, made.lengths)
    whole = {name: x.clone() for name, x in made.run(made.whole()).items()}
    peers, took = {}, {}
    alike = replace(made.shape, causal=made.shape.causal and made.shape.n_q == made.shape.n_k)
    for name, peer in beside_attention._peers(alike, made.lengths).items():
        if name in ("math", "efficient") and made.lengths is None:
            continue
        try:
            call = made.peer(peer)
            took[name] = compare(call, partial(made.run, made.whole()), method=made.method, **NEAR).a.us
            peers[name] = call
        except RuntimeError as refused:
            print(f"{name} is left out of {made.shape}: {str(refused).splitlines()[0][:100]}", flush=True)
    return made, want, whole, peers | {"us": took}, min(took, key=took.get)


def _wrong(made: Keys, blocks, want: dict, whole: dict) -> str:
    for x in made.run(blocks).values():
        x.fill_(float("nan"))
    for name, x in made.run(blocks).items():
        if x.isnan().any():
            return f"NaN in {name}"
        if (far := tabled.relative(x, whole[name].double())) > 4e-3:  # both are rounded to bf16
            return f"{name} is {far:.1e} from the result of one program a tile"
        if name in want:
            heads, rows = want[name].shape[1:3]
            far = tabled.relative(x[-1:, :heads, x.shape[2] - rows :], want[name])
            if not far <= tabled.limit(name, want[name].numel()):
                return f"{name} is {far:.1e} from float64"
    return ""


@donated_buffers.patch(donated_buffer=False)  # a graph is kept, and its backward runs again and again
def measured(job: dict) -> dict:
    made, want, whole, peers, best = _ready(job["kind"], tuple(job["shape"]))
    calls = {"": made.tried(job["blocks"])} if job["blocks"] else {"whole": made.whole(), "rule": made.rule()}
    line = {} if job["blocks"] else {f"{name} us": round(us, 1) for name, us in peers["us"].items()}
    for name, blocks in calls.items():
        if wrong := _wrong(made, blocks, want, whole):
            return {"wrong": f"{name} {wrong}"}
        seen = compare(partial(made.run, blocks), peers[best], method=made.method, **NEAR)
        found = {"us": round(seen.a.us, 1), f"over {best}": round(seen.ratio, 3)} | made.alone(blocks)
        line |= {f"{name} {key}".strip(): value for key, value in found.items()}
        line |= {name: repr(blocks)} if name else {}
    return line


def once(job: dict) -> None:
    """Compile it, with one sequence: a launch of more takes the same code."""
    made = {"keys": Keys, "heads": Heads}[job["kind"]](Shape(1, *job["shape"][1:]))
    for blocks in (made.tried(job["blocks"]),) if job["blocks"] else (made.whole(), made.rule()):
        made.run(blocks)


if __name__ == "__main__":
    sweeping.main("benchmarks.attention_parts", ["keys", "heads"], jobs, once, measured)
