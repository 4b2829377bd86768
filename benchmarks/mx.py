"""MXINT8: to and from the format, and products with weights held in it, against torch.compile and cuBLAS.

Dequantize and quantize run against the same plain torch compiled; products against cuBLAS on bf16 weights, each call of
a round on weights of its own, so that nobody finds them in the cache. `floor us` is the bytes at the measured ceiling.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from benchmarks.against import Case, Red, measure, ring_of
from course_lib.device import ceilings
from course_lib.kernels.hardware import on_hopper
from course_lib.kernels.mx import Quantized, dequantize, dequantize_reference, quantize, quantize_reference
from course_lib.kernels.mx.product import product, route_for
from course_lib.kernels.mx.rungs import direct_for, fetched_for, walk_for
from course_lib.kernels.mx.tuning import routes_for

SIZES = ((8192, 28672), (14336, 4096), (4096, 4096))  # rows, columns; (14336, 4096) is N, K of the products too
# rows of x -> largest time over bf16 cuBLAS's, for N 14336 and N 4096; None is published without a claim
PRODUCTS = {
    (14336, 4096): {1: 0.55, 2: None, 4: None, 8: None, 16: 0.65, 32: None, 64: None, 128: None, 256: 1.9, 1024: 1.3,
                    4096: 1.06, 8192: 1.06},
    (4096, 4096): {1: 0.75, 2: None, 4: None, 8: None, 16: 0.75, 32: None, 64: None, 256: None, 4096: None},
    (4096, 14336): {1: None, 16: None},
}  # fmt: skip
LIMIT = 3e-3  # of products, relative: the rounding to bf16 is 1.7e-3


def run() -> list[dict]:
    rows = []
    for row in (*_conversions(), *_products()):
        rows.append(row)
        print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


def plain_dequantize(m: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """What is compiled: right but for e <= 6, where exp2 makes zeros on a GPU, and e = 255."""
    groups = m.view(*e.shape, -1).float() * torch.exp2(e.float() - 133.0)[..., None]
    return groups.to(torch.bfloat16).view(m.shape)


def plain_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Right for finite groups: floor(log2) may be off by one next to a power of two, and NaN has no rule."""
    groups = x.view(x.shape[0], -1, 32).float()
    e = (torch.floor(torch.log2(groups.abs().amax(-1))) + 127).clamp(0, 254)
    m = torch.round(groups * torch.exp2(133.0 - e)[..., None]).clamp(-127, 127)
    return m.to(torch.int8).view(x.shape), e.to(torch.uint8)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit by bit."""
    bits = torch.int16 if a.element_size() == 2 else torch.int8
    return torch.equal(a.view(bits), b.view(bits))


def _over(inputs: list, outputs: list, function: Callable) -> None:
    for i, given in enumerate(inputs):
        outputs[i] = function(given)  # kept: no peer writes over lines that are still in the cache


def _conversions() -> Iterator[dict]:
    for rows, columns in SIZES:
        yield _dequantize_row(rows, columns)
    yield _quantize_row(*SIZES[0])


def _dequantize_row(rows: int, columns: int) -> dict:
    size = rows * columns * (1 + 1 / 32 + 2)
    ring = [quantize(x) for x in ring_of(partial(normal, rows, columns), size)]
    torch._dynamo.reset()
    compiled = torch.compile(plain_dequantize, dynamic=False)

    def check() -> None:
        if not _same(dequantize(ring[0]), dequantize_reference(ring[0])):
            raise Red("dequantize is not bit-exact")

    functions = {"ours": dequantize} | _torchao(ring[0])
    functions |= {
        n: (lambda w, f=f: f(w.mantissas, w.exponents)) for n, f in (("compile", compiled), ("eager", plain_dequantize))
    }
    calls = {name: partial(_over, ring, [None] * len(ring), f) for name, f in functions.items()}
    ours = calls.pop("ours")
    name, work = f"dequantize {rows} x {columns}", {"TB/s": size / 1e12}
    row = measure(Case(name, ours, calls, check, calls=len(ring), target=1.0, work=work))
    return row | {"floor us": _floor_us(size)}


def _torchao(w) -> dict[str, Callable]:
    """Its kernel for as many bytes of another format, with fp8 in the place of int8; not on every device."""
    try:
        from torchao.prototype.mx_formats.kernels import triton_mxfp8_dequant_dim0

        def convert(w):
            return triton_mxfp8_dequant_dim0(w.mantissas.view(torch.float8_e4m3fn), w.exponents, torch.bfloat16)

        convert(w)  # tunes itself
    except (ImportError, AssertionError):
        return {}
    return {"torchao mxfp8": convert}


def _quantize_row(rows: int, columns: int) -> dict:
    size = rows * columns * (2 + 1 + 1 / 32)
    ring = ring_of(partial(normal, rows, columns), size)
    compiled = torch.compile(plain_quantize, dynamic=False)

    def check() -> None:
        got, want = quantize(ring[0]), quantize_reference(ring[0])
        if not (_same(got.mantissas, want.mantissas) and torch.equal(got.exponents, want.exponents)):
            raise Red("quantize differs from the rules")

    case = Case(
        f"quantize {rows} x {columns}",
        partial(_over, ring, [None] * len(ring), quantize),
        {"compile": partial(_over, ring, [None] * len(ring), compiled)},
        check,
        calls=len(ring),
        work={"TB/s": size / 1e12},
    )
    return measure(case) | {"floor us": _floor_us(size)}


def normal(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)


def _floor_us(size: float, flops: float = 0.0) -> float:
    top = ceilings()
    return max(size / top.bytes_per_s, flops / top.flops_per_s["bf16"]) * 1e6


def _products() -> Iterator[dict]:
    for (N, K), targets in PRODUCTS.items():
        plain = ring_of(partial(normal, N, K), N * K)
        held = [quantize(w) for w in plain]
        routes = routes_for(N, K)
        for rows, target in targets.items():
            yield _product_row(plain, held, N, K, rows, target) | {
                "rung": _rung(normal(rows, K), held[0]),
                "tensor cores from": routes.tensor_cores,
                "dequantize from": routes.dequantize,
            }


def _rung(x: torch.Tensor, w: Quantized) -> str:
    route, tuned = route_for(x, w), {"vector": (walk_for,), "matrix": (fetched_for, direct_for)}
    blocks = next(filter(None, (find(x, w, on_hopper(x.device)) for find in tuned.get(route, ()))), "taught")
    return f"{route}, {blocks}" if route in tuned else route


def _product_row(plain: list, held: list, N: int, K: int, rows: int, target: float | None) -> dict:
    x = normal(rows, K)
    used = slice(None) if rows <= 256 else slice(0, 2)  # many rows take long enough without the whole ring
    size = N * K * (1 + 1 / 32) + 2 * rows * (N + K)

    def check() -> None:
        want = x.double() @ dequantize_reference(held[0]).double().T
        for route in ("vector", "matrix", "dequantize") if rows <= 8 else ("matrix", "dequantize"):
            error = ((product(x, held[0], None, route).double() - want).norm() / want.norm()).item()
            if not error < LIMIT:
                raise Red(f"{route}, {rows} rows: relative error {error:.1e}, limit {LIMIT:.0e}")

    weights = held[used]
    case = Case(
        f"product {rows} x {N} x {K}",
        partial(_over, weights, [None] * len(weights), lambda w: product(x, w)),
        {"cublas bf16": partial(_over, plain[used], [None] * len(weights), lambda w: torch.nn.functional.linear(x, w))},
        check,
        calls=len(weights),
        target=target,
        work={"TB/s": size / 1e12, "TFLOP/s": 2 * rows * N * K / 1e12},
    )
    return measure(case) | {"floor us": _floor_us(size, 2 * rows * N * K)}
