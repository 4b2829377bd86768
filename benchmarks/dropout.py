"""Dropout that keeps a seed, bf16: against a copy of the same bytes, torch.compile and eager, both directions.

Ours and compile's keep a seed; eager writes and reads a mask of a byte an element. "by element" makes a counter for
each element, ours for four. Every call of a round works on its own tensor, kept from call to call.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch._functorch import config as donated_buffers
from torch.nn import functional as F

from benchmarks.against import Case, Red, measure, ring_of
from benchmarks.rope import scale
from course_lib.kernels.dropout import dropout, dropout_by_element, dropout_reference

SIZES = ((16384, 1152), (16384, 4096))
P = 0.1


@donated_buffers.patch(donated_buffer=False)  # graphs are kept, so that backward can run again and again
def run() -> list[dict]:
    rows = []
    for size in SIZES:
        for row in _rows(*size):
            rows.append(row)
            print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


def _ours(seed: torch.Tensor) -> Callable:
    return lambda x: dropout(x, P, seed=seed)


def _check(seed: torch.Tensor) -> None:
    x = torch.ones(100_003, device="cuda", dtype=torch.bfloat16)
    for f, count in ((_ours(seed), 4), (lambda x: dropout_by_element(x, P, seed), 1)):
        want = dropout_reference(torch.ones(len(x)), P, int(seed), per_counter=count)
        if not torch.equal(f(x).cpu() != 0, want != 0):
            raise Red(f"dropout keeps others than {count} numbers a counter say")


def _rows(rows: int, width: int) -> Iterator[dict]:
    size = 4 * rows * width
    ring = ring_of(lambda: torch.randn(rows, width, device="cuda", dtype=torch.bfloat16), size)
    others, outputs = [torch.empty_like(x) for x in ring], [None] * len(ring)
    seed = torch.tensor([2024], device="cuda")

    def forward(f: Callable) -> Callable[[], None]:
        def loop() -> None:
            for i, x in enumerate(ring):
                outputs[i] = f(x)

        return loop

    def copy() -> None:
        for x, out in zip(ring, others):
            scale(out, x)

    def backward(f: Callable) -> Callable[[], None]:
        graphs = []
        for x in ring:
            leaf = x.detach().requires_grad_()
            graphs.append((f(leaf), leaf))

        def loop() -> None:
            for i, ((y, leaf), dy) in enumerate(zip(graphs, ring)):
                outputs[i] = torch.autograd.grad(y, leaf, dy, retain_graph=True)

        return loop

    torch._dynamo.reset()
    libraries = {"eager": lambda x: F.dropout(x, P), "compile": torch.compile(lambda x: F.dropout(x, P), dynamic=False)}

    def case(name: str, ours: Callable, peers: dict) -> Case:
        work = {"TB/s": size / 1e12}
        label = f"dropout {name} {rows} x {width}"
        return Case(label, ours, peers, partial(_check, seed), len(ring), None, "events", work)

    ours = forward(_ours(seed))
    yield measure(case("forward, over a copy", ours, {"copy": copy}))
    yield measure(case("forward", ours, {n: forward(f) for n, f in libraries.items()}))
    yield measure(case("forward with a seed drawn", forward(lambda x: dropout(x, P)), {"seed given": ours}))
    yield measure(case("by element", forward(lambda x: dropout_by_element(x, P, seed)), {"by four": ours}))
    yield measure(case("backward", backward(_ours(seed)), {n: backward(f) for n, f in libraries.items()}))
