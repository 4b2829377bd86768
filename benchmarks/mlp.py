"""The MLP by what it keeps, bf16, 16384 tokens: time in each direction over eager's, and bytes, by the allocator.

At width 1152 forward and forward + backward run in CUDA graphs. Backward alone runs on a kept graph between events, and
so does everything at 4096: it takes milliseconds, and the host is ahead. "held" is what lies between forward and
backward, the input among it; "peak" the most at any time of a step, above weights and their gradients.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch._functorch import config as donated_buffers
from torch.utils.checkpoint import checkpoint

from benchmarks.against import Case, Red, measure
from course_lib.device import ceilings
from course_lib.kernels.mlp import KEEP, bytes_kept, mlp, mlp_reference

TOKENS = 16384
SIZES = ((1152, 4304), (4096, 16384))  # width, hidden
# Largest time over eager's, by what is kept: of either direction, or of a whole step.
EACH_WAY = {"pre-activation": 1.00}
WHOLE = {("input", 1152): 1.10, ("input", 4096): 1.15}
LIMIT = 1.2e-2  # of every gradient, relative: eager's own errors are 3e-3 to 6e-3
NAMES = ("y", "dx", "dw1", "db1", "dw2", "db2")


@donated_buffers.patch(donated_buffer=False)  # graphs are kept, so that backward can run again and again
def run() -> list[dict]:
    rows = []
    for size in SIZES:
        for row in _rows(*size):
            rows.append(row)
            print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


class Given:
    """One size: inputs as leaves, and the truth of a few rows."""

    def __init__(self, width: int, hidden: int):
        self.width, self.hidden = width, hidden
        shapes = ((TOKENS, width), (hidden, width), (hidden,), (width, hidden), (width,))
        scales = (1, width**-0.5, 0.5, hidden**-0.5, 1)
        make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        self.leaves = [make(shape).mul_(scale).requires_grad_() for shape, scale in zip(shapes, scales)]
        self.dy = make(TOKENS, width)

    def forward(self, f: Callable) -> object:
        return f(*self.leaves)

    def step(self, f: Callable) -> object:
        return torch.autograd.grad(f(*self.leaves), self.leaves, self.dy)

    def backward(self, f: Callable) -> Callable[[], object]:
        y = f(*self.leaves)
        return lambda: torch.autograd.grad(y, self.leaves, self.dy, retain_graph=True)

    def flops(self) -> float:
        """Of forward; backward twice as many."""
        return 4 * TOKENS * self.width * self.hidden

    def results(self, f: Callable) -> list[torch.Tensor]:
        y = f(*self.leaves)
        return [y.detach(), *torch.autograd.grad(y, self.leaves, self.dy)]


def _rows(width: int, hidden: int) -> Iterator[dict]:
    given = Given(width, hidden)
    torch._dynamo.reset()
    others = {
        "compile": torch.compile(mlp_reference, dynamic=False),
        "checkpoint": lambda *t: checkpoint(mlp_reference, *t, use_reentrant=False),
    }
    errors = _errors(given, mlp_reference)
    whole = _memory(given, mlp_reference)
    for keep in KEEP:
        ours = partial(mlp, keep=keep)
        seen = _errors(given, ours)
        memory = _memory(given, ours)
        more = {
            "held MiB": memory["held"], "eager's": whole["held"], "held over eager's": memory["held"] / whole["held"],
            "predicted MiB": bytes_kept(TOKENS, width, hidden, keep) / 2**20,
            "peak MiB": memory["peak"], "eager's peak": whole["peak"],
        }  # fmt: skip
        more |= {f"error of {n}": e for n, e in seen.items()} | {f"eager's of {n}": e for n, e in errors.items()}
        products = 7 if keep == "input" else 6
        for row in _timed(given, keep, ours, {"eager": mlp_reference}, seen):
            floor = {"forward": 2, "backward": products - 2, "step": products}[row["name"].split()[1]]
            yield row | {"floor us": floor / 2 * given.flops() / ceilings().flops_per_s["bf16"] * 1e6} | more
    # What a library does of itself, for comparison and without a claim.
    yield from _timed(given, "pre-activation", partial(mlp, keep="pre-activation"), others, seen, info=True)


def _timed(given: Given, keep: str, ours: Callable, peers: dict, errors: dict, info: bool = False) -> Iterator[dict]:
    def check() -> None:
        if not max(errors.values()) < LIMIT:
            raise Red(f"mlp, {keep}: relative errors {errors}, limit {LIMIT}")

    size = f"{TOKENS} x {given.width} x {given.hidden}, {keep} kept" + (", against others" if info else "")
    for direction, make, method, factor in (
        ("forward", lambda f: partial(given.forward, f), "graph", 1),
        ("backward", given.backward, "events", 2),
        ("step", lambda f: partial(given.step, f), "graph", 3),
    ):
        target = None if info else WHOLE.get((keep, given.width)) if direction == "step" else EACH_WAY.get(keep)
        work = {"TFLOP/s": factor * given.flops() / 1e12}
        calls = {name: make(f) for name, f in peers.items()}
        method = method if given.width < 4096 else "events"
        yield measure(Case(f"mlp {direction} {size}", make(ours), calls, check, 1, target, method, work))


def _errors(given: Given, f: Callable) -> dict[str, float]:
    """||got - want|| / ||want|| against float64: y and dx of some rows, gradients of weights of some of theirs."""
    got = dict(zip(NAMES, given.results(f)))
    x, w1, b1, w2, b2 = (t.detach() for t in given.leaves)
    rows = slice(0, 256)
    some = [t.double().requires_grad_() for t in (x[rows], w1, b1, w2, b2)]
    y = mlp_reference(*some)
    want = {"y": y.detach(), "dx": torch.autograd.grad(y, some[0], given.dy[rows].double())[0]}
    errors = {name: _relative(got[name][rows], want[name]) for name in want}
    # Sums over all tokens: 64 of the hidden units, and all that they depend on.
    units = slice(0, 64)
    h = x.double() @ w1[units].double().T + b1[units].double()
    a = torch.nn.functional.gelu(h.requires_grad_(), approximate="tanh")
    (dh,) = torch.autograd.grad(a, h, given.dy.double() @ w2[:, units].double())
    exact = {
        "dw1": (got["dw1"][units], dh.T @ x.double()),
        "db1": (got["db1"][units], dh.sum(0)),
        "dw2": (got["dw2"][:, units], given.dy.double().T @ a.detach()),
        "db2": (got["db2"], given.dy.double().sum(0)),
    }
    return errors | {name: _relative(*pair) for name, pair in exact.items()}


def _relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def _memory(given: Given, f: Callable) -> dict[str, float]:
    """MiB by the allocator, after a step that is not counted."""
    given.step(f)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = f(*given.leaves)
    held = torch.cuda.memory_allocated() - before - y.nbytes + given.leaves[0].nbytes  # x is kept, and was there
    grads = torch.autograd.grad(y, given.leaves, given.dy)
    peak = torch.cuda.max_memory_allocated() - before - sum(g.nbytes for g in grads[1:])
    return {"held": held / 2**20, "peak": peak / 2**20}
