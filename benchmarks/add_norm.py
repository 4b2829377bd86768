"""Residual add and LayerNorm, bf16, 16384 rows: both directions against Dao, torch.compile, Liger and eager.

Every call of a round works on its own rows, so that nobody finds them in the cache. Dao's is the Triton kernel of
flash_attn.ops.triton, which adds as well; Liger's norm stands behind eager's addition. `floor us` is four passes of the
bytes at the measured ceiling.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

import torch
from torch._functorch import config as donated_buffers

from benchmarks.against import Case, Red, measure, ring_of
from course_lib.device import ceilings
from course_lib.kernels.add_norm import add_norm, add_norm_reference
from course_lib.kernels.dropout import dropout

ROWS = 16384
WIDTHS = (1152, 4096)
WIDE = (12288, 16384)
FORWARD, BACKWARD, ON_WIDE_ROWS = 1.05, 0.85, 1.15  # largest time over the best peer's
LIMIT = {"y": 3e-3, "s": 2.5e-3, "dx": 5e-3, "dw": 4e-3, "db": 3e-3}
P = 0.1


@donated_buffers.patch(donated_buffer=False)  # graphs are kept, so that backward can run again and again
def run() -> list[dict]:
    rows = []
    for width in WIDTHS + WIDE:
        wide = width in WIDE
        for row in chain(_main_rows(width, wide), () if wide else _other_rows(width)):
            rows.append(row)
            print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


class Given:
    """One width: rows of x and residual in a ring, vectors, gradients."""

    def __init__(self, width: int):
        self.width = width
        self.size = 8 * ROWS * width  # bytes of the four passes
        self.ring = ring_of(lambda: normal(2, ROWS, width), self.size)  # x and the residual; dy and ds
        self.weight, self.bias = (1 + 0.1 * normal(width)), 0.1 * normal(width)
        self.outputs: list = [None] * len(self.ring)  # kept, so that nobody writes over lines still in the cache

    def forward(self, f: Callable) -> Callable[[], None]:
        def loop() -> None:
            for i, (x, residual) in enumerate(self.ring):
                self.outputs[i] = f(x, residual, self.weight, self.bias)

        return loop

    def backward(self, f: Callable) -> Callable[[], None]:
        graphs = []
        for x, residual in self.ring:
            leaves = [t.detach().requires_grad_() for t in (x, residual, self.weight, self.bias)]
            graphs.append((f(*leaves), leaves))

        def loop() -> None:
            for i, ((out, leaves), given) in enumerate(zip(graphs, self.ring)):
                self.outputs[i] = torch.autograd.grad(out, leaves, tuple(given), retain_graph=True)

        return loop

    def floor_us(self) -> float:
        return self.size / ceilings().bytes_per_s * 1e6


def peers() -> dict[str, Callable]:
    torch._dynamo.reset()
    found = {"eager": add_norm_reference, "compile": torch.compile(add_norm_reference, dynamic=False)}
    try:
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        def liger(x, residual, weight, bias):
            s = x + residual
            return LigerLayerNormFunction.apply(s, weight, bias, 1e-5), s

        found["liger"] = liger
    except ImportError:
        print("Liger is not installed", flush=True)
    try:
        from flash_attn.ops.triton.layer_norm import layer_norm_fn

        found["dao"] = lambda x, r, w, b: layer_norm_fn(x, w, b, residual=r, eps=1e-5, prenorm=True)
    except ImportError:
        print("flash_attn's Triton kernels are not installed", flush=True)
    return found


def _main_rows(width: int, wide: bool) -> Iterator[dict]:
    targets = (ON_WIDE_ROWS, ON_WIDE_ROWS) if wide else (FORWARD, BACKWARD)
    for (case, more), target in zip(cases(width), targets):
        yield measure(replace(case, target=target)) | more


def cases(width: int) -> Iterator[tuple[Case, dict]]:
    """Both directions, without a target; with each what its row says besides: the floor, and everybody's errors."""
    given, others = Given(width), peers()
    errors = {name: errors_of(f, given) for name, f in {"ours": add_norm, **others}.items()}
    others = {name: f for name, f in others.items() if all(errors[name][n] < 2 * LIMIT[n] for n in LIMIT)}
    more = {f"{what} of {name}": e for name, seen in errors.items() for what, e in seen.items()}
    for direction in ("forward", "backward"):
        make = getattr(given, direction)
        case = Case(
            f"add_norm {direction} {ROWS} x {width}",
            make(add_norm),
            {name: make(f) for name, f in others.items()},
            lambda: _check(errors["ours"]),
            calls=len(given.ring),
            method="events",
            work={"TB/s": given.size / 1e12},
        )
        yield case, {"floor us": given.floor_us()} | more


def _check(errors: dict[str, float]) -> None:
    if not all(errors[name] < limit for name, limit in LIMIT.items()):
        raise Red(f"add_norm is wrong: relative errors {errors}, limits {LIMIT}")


def errors_of(f: Callable, given: Given) -> dict[str, float]:
    """||got - want|| / ||want|| against float64."""
    (x, residual), (dy, ds) = given.ring[0], given.ring[1]
    leaves = [t.detach().requires_grad_() for t in (x, residual, given.weight, given.bias)]
    y, s = f(*leaves)
    dx, _, dw, db = torch.autograd.grad((y, s), leaves, (dy, ds))
    exact = [t.detach().double().requires_grad_() for t in leaves]
    want_y, want_s = add_norm_reference(*exact)
    want = torch.autograd.grad((want_y, want_s), exact, (dy.double(), ds.double()))
    pairs = {"y": (y, want_y), "s": (s, want_s), "dx": (dx, want[0]), "dw": (dw, want[2]), "db": (db, want[3])}
    return {n: ((a.double() - b).norm() / b.norm()).item() for n, (a, b) in pairs.items()}


def _other_rows(width: int) -> Iterator[dict]:
    """What else the kernels do, over our own plain case; and dropout in front, over dropout by itself and then ours."""
    given = Given(width)
    seed = torch.tensor([5], device="cuda")

    def in_place(x, residual, weight, bias):
        return add_norm(x, residual, weight, bias, in_place="both")

    def dropped(x, residual, weight, bias):
        return add_norm(x, residual, weight, bias, p=P, seed=seed)

    def apart(x, residual, weight, bias):
        return add_norm(dropout(x, P, seed=seed), residual, weight, bias)

    cases = (
        ("forward", "in place", in_place, {"ours": add_norm}),
        ("forward", "with dropout", dropped, {"ours": add_norm, "dropout apart": apart}),
        ("backward", "with dropout", dropped, {"ours": add_norm, "dropout apart": apart}),
    )
    for direction, name, f, others in cases:
        make = getattr(given, direction)
        calls = {n: make(g) for n, g in others.items()}
        row = Case(
            f"add_norm {direction} {ROWS} x {width}, {name}", make(f), calls, lambda: None,
            calls=len(given.ring), method="events", work={"TB/s": given.size / 1e12},
        )  # fmt: skip
        yield measure(row)
