"""Blocks that cards get which are not here, on the GPU that is here: are they right, and what do they cost beside ours?

For each of CARDS attention and products run as they would there: the same choice from the same limits, and without the
copy engine where the card has none. This GPU's own choice runs in turn with it (A B B A). "the model's own" is what the
model of course_lib/kernels/fitting.py would choose here if nothing had been measured: how far it is from the best of
the sweeps. Registers and tensor cores stay those of the GPU that is here, so this predicts no time elsewhere.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from benchmarks.against import Red
from course_lib.cards import ARCHITECTURES
from course_lib.kernels import matmul as products
from course_lib.kernels.attention import backward, forward, rows, tuning
from course_lib.kernels.columns import split
from course_lib.kernels.hardware import HOPPER, Limits, limits, multiprocessors
from course_lib.timing import compare

__all__ = ["limits_of", "run"]

CARDS = {"RTX 30, L4, RTX 40": 86, "RTX 50": 120}
HEAD_SIZES = ((64, False), (128, True), (72, False))
PRODUCTS = ((4096, 4096, 4096), (1024, 1024, 1024))
NEAR = 2e-2  # of the largest number: both sum in fp32, in another order


def limits_of(arch: int) -> Limits:
    has = ARCHITECTURES[arch]
    return Limits(has.capability, has.shared_limit_bytes, has.shared_bytes, has.registers, has.warps)


@contextlib.contextmanager
def as_on(has: Limits, *modules) -> Iterator[None]:
    """These modules see a device with such limits, and a copy engine where it has one."""
    fakes = {"limits": lambda _: has, "copy_engine": lambda _: has.capability >= HOPPER}
    saved = [(module, name, getattr(module, name)) for module in modules for name in fakes if hasattr(module, name)]
    for module, name, _ in saved:
        setattr(module, name, fakes[name])
    try:
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


def run() -> list[dict]:
    here = limits(torch.device("cuda", torch.cuda.current_device()))
    cards = {"the model's own": here} | {name: limits_of(arch) for name, arch in CARDS.items()}
    found = []
    for name, has in cards.items():
        for size, causal in HEAD_SIZES:
            found += _attention(name, has, size, causal)
        for shape in PRODUCTS:
            found.append(_product(name, has, *shape))
    return found


def _attention(name: str, has: Limits, size: int, causal: bool) -> list[dict]:
    q, k, v, do = (torch.randn(4, 16, 4096, size, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    scale, ours = size**-0.5, tuning.tuned(size, causal, q.dtype, q.device)
    theirs = tuning._fitted(sum(split(size)), 2, has)

    def made(blocks):
        o, l, dq, dk, dv = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32), *map(empty, (q, k, v))
        shift, delta = backward.row_terms(l)
        terms = dq, shift, delta, do, q, k, v, o, l, None, causal, scale, None
        calls = {
            "forward": partial(forward.write_forward, o, l, q, k, v, causal, scale, None, blocks.forward),
            "dq": partial(backward.write_dq, *terms, blocks.dq),
            "dkdv": partial(
                backward.write_dkdv, dk, dv, do, q, k, v, shift, delta, causal, scale, None, blocks.dkdv
            ),
        }  # fmt: skip
        for call in calls.values():
            call()
        return calls, (o, dq, dk, dv)

    mine, want = made(ours)
    with as_on(has, rows):
        other, got = made(theirs)
        _assert_near(f"attention {size}, blocks of {name}", got, want)
        kernels = {kernel: _as_there(has, call) for kernel, call in other.items()}
    rest = {kernel: getattr(theirs, kernel) for kernel in kernels}
    words = f"{size}{' causal' * causal}, {name}"
    return [
        _row(f"attention {kernel} {words}", call, mine[kernel], blocks_words(rest[kernel]))
        for kernel, call in kernels.items()
    ]


def empty(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, float("nan"))


def _as_there(has: Limits, call):
    def run_it():
        with as_on(has, rows):
            call()

    return run_it


def blocks_words(blocks) -> str:
    return f"{blocks.m} x {blocks.n}, {blocks.warps} warps, {blocks.stages} stages"


def _product(name: str, has: Limits, m: int, n: int, k: int) -> dict:
    a, b = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(k, n, device="cuda").bfloat16()
    out, want = torch.empty(m, n, device="cuda", dtype=a.dtype), products.matmul(a, b)
    if has.measured:  # such limits ask for the tables; a neighbour's are the same and ask for the model
        has = replace(has, capability=(10, 0))

    def there():
        with as_on(has, products):
            products.matmul(a, b, out)

    there()
    _assert_near(f"matmul {m}, tiles of {name}", (out,), (want,))
    persistent = has.capability >= HOPPER
    table = products.PERSISTENT if persistent else products.POINTER
    tile = products.fastest(products.allowed(table[2], 2, has, int(persistent)), m, n, multiprocessors(a.device))
    words = f"{tile.block_m} x {tile.block_n} x {tile.block_k}, {tile.warps} warps, {tile.stages} stages"
    return _row(f"matmul {m} x {n} x {k}, {name}", there, partial(products.matmul, a, b, out), words)


def _row(name: str, theirs, ours, blocks: str) -> dict:
    took = compare(theirs, ours, method="graph", max_seconds=0.5)
    return {
        "name": name,
        "value": took.a.median_s * 1e6,
        "unit": "us",
        "own us": took.b.median_s * 1e6,
        "ratio": took.ratio,
        "low": took.low,
        "high": took.high,
        "blocks": blocks,
    }


def _assert_near(what: str, got, want) -> None:
    for one, other in zip(got, want, strict=True):
        far = float((one.float() - other.float()).abs().max() / other.float().abs().max())
        if not far <= NEAR:
            raise Red(f"{what} is wrong: off by {far:.1e} of the largest number")
