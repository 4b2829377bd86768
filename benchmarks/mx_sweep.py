"""python -m benchmarks.mx_sweep [--seconds 300] [--kinds convert vector matrix tuned fetched]: try blocks.

Every line is JSON: kind, shape, blocks, us a call, time over that of the defaults (turn by turn, in a graph), and for
products over bf16 cuBLAS; or what went wrong. Likeliest blocks first, kinds and shapes in turn, each product on its own
weights. No blocks beside "fetched" are what runs without it: gemm_registers.py, or dequantising first.
"""

import argparse
import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import zip_longest

import torch

from benchmarks.against import ring_of
from benchmarks.mx import normal
from course_lib.kernels.hardware import multiprocessors
from course_lib.kernels.mx import dequantize, dequantize_reference, quantize
from course_lib.kernels.mx.convert import DEQUANTIZE, QUANTIZE
from course_lib.kernels.mx.gemm import write_gemm
from course_lib.kernels.mx.gemm_fetched import write_fetched
from course_lib.kernels.mx.gemm_registers import write_direct
from course_lib.kernels.mx.gemv import write_gemv
from course_lib.kernels.mx.gemv_warps import write_by_warp
from course_lib.kernels.mx.product import product
from course_lib.kernels.mx.tuning import (
    Direct,
    Fetched,
    Matrix,
    Vector,
    Walk,
    direct_blocks,
    matrix_blocks,
    vector_blocks,
    walk_blocks,
)
from course_lib.timing import compare

SHAPES = {  # kind -> (rows of x, N, K); of conversions (rows, columns)
    "dequantize": [(8192, 28672), (4096, 4096)],
    "quantize": [(8192, 28672)],
    "vector": [(1, 14336, 4096), (1, 4096, 4096), (4, 14336, 4096), (1, 4096, 14336)],
    "matrix": [(16, 14336, 4096), (16, 4096, 4096), (1, 4096, 4096), (1, 14336, 4096), (64, 14336, 4096),
               (256, 14336, 4096), (1024, 14336, 4096)],
    "walk": [(1, 14336, 4096), (1, 4096, 4096), (1, 4096, 14336)],
    "direct": [(16, 14336, 4096), (16, 4096, 4096), (8, 14336, 4096), (32, 14336, 4096), (64, 14336, 4096),
               (64, 4096, 4096)],
    "fetched": [(rows, *weights) for weights in ((14336, 4096), (4096, 4096), (4096, 14336))
                for rows in (128, 256, 64, 32, 192)],
}  # fmt: skip
CONVERT = [(1024, 4), (4096, 16), (4096, 4), (8192, 8), (1024, 2), (512, 2), (2048, 4), (4096, 8), (512, 1)]
CANDIDATES = {
    "dequantize": CONVERT,
    "quantize": CONVERT,
    # rows of weights, columns, warps
    "vector": [
        (8, 4096, 4), (4, 2048, 4), (4, 4096, 4), (2, 4096, 4), (4, 4096, 8), (2, 4096, 8), (8, 4096, 8), (8, 2048, 4),
        (8, 1024, 4), (1, 4096, 4), (4, 1024, 1), (16, 1024, 8), (1, 4096, 2), (16, 512, 4), (8, 512, 2), (2, 2048, 2),
        (4, 4096, 16), (1, 4096, 1), (16, 2048, 4),
    ],
    # rows of x, rows of weights, columns, warps, stages, parts
    "matrix": [
        (16, 64, 128, 4, 3, 1), (16, 64, 128, 4, 5, 1), (16, 64, 128, 4, 4, 2), (16, 64, 256, 4, 3, 1),
        (16, 64, 256, 4, 3, 2), (16, 128, 128, 4, 4, 2), (16, 64, 64, 4, 6, 2), (16, 64, 128, 4, 4, 4),
        (16, 128, 128, 8, 4, 2), (16, 64, 256, 8, 3, 2), (16, 32, 256, 4, 4, 1), (16, 32, 128, 2, 4, 1),
        (32, 64, 128, 4, 3, 2), (64, 64, 128, 4, 3, 2), (64, 128, 128, 8, 3, 1), (64, 64, 64, 4, 4, 2),
        (128, 128, 64, 8, 4, 1), (128, 128, 128, 8, 3, 1), (128, 64, 64, 4, 4, 1), (256, 128, 64, 8, 3, 1),
        (128, 256, 64, 8, 3, 1), (64, 128, 64, 4, 4, 1), (256, 64, 64, 8, 3, 1),
    ],
    # rows of weights, pieces of 512 columns, unrolled
    "walk": [(2, 4, True), (2, 2, False), (4, 2, False), (2, 4, False), (2, 2, True), (4, 1, False), (1, 4, True)],
    # rows of x, rows of weights, warps along K, times so many beside
    "direct": [
        (16, 32, 4, 1), (16, 16, 8, 1), (64, 64, 2, 2), (64, 32, 8, 1), (8, 32, 4, 1), (8, 16, 8, 1), (32, 64, 4, 1),
        (32, 64, 2, 2), (16, 64, 4, 2),
        (64, 32, 4, 1), (16, 32, 8, 1), (8, 32, 8, 1), (64, 64, 4, 1), (16, 64, 4, 1), (64, 128, 2, 4), (8, 16, 4, 1),
    ],
}  # fmt: skip
# rows of x -> rows of x a program, rows of weights, columns, stages; as many parts along K as make 112 or 128 programs
FETCHED = {
    32: [(32, 128, 128, 8), (32, 256, 128, 5), (32, 128, 64, 12)],
    64: [(64, 128, 128, 6), (64, 256, 128, 4), (64, 128, 64, 10), (32, 256, 128, 5)],
    128: [(128, 128, 128, 4), (128, 256, 64, 6), (128, 128, 64, 8), (64, 256, 128, 4)],
    192: [(256, 128, 64, 5), (64, 256, 128, 4), (64, 128, 128, 6)],
    256: [(256, 128, 64, 5), (128, 256, 64, 6), (128, 128, 128, 4)],
}
KINDS = {
    "convert": ("dequantize", "quantize"), "vector": ("vector",), "matrix": ("matrix",), "tuned": ("walk", "direct"),
    "fetched": ("fetched",),
}  # fmt: skip
WRITES = {
    "vector": (write_gemv, Vector),
    "matrix": (write_gemm, Matrix),
    "walk": (write_by_warp, Walk),
    "direct": (write_direct, Direct),
    "fetched": (write_fetched, Fetched),
}
NEAR = {"method": "graph", "cold": False, "precision": 0.005, "max_seconds": 0.3}


def candidates(kind: str, shape: tuple) -> list[tuple]:
    if kind != "fetched":
        return CANDIDATES[kind]
    rows, N, _ = shape
    found = []
    for m, n, k, stages in FETCHED[rows]:
        tiles = -(-rows // m) * (N // n)
        most = max(1, 132 // tiles)
        found += [(m, n, k, stages, split) for split in sorted({most, max(1, most // 2)}, reverse=True)]
    return found


def jobs(kinds: list[str]) -> list[tuple]:
    """(kind, shape, blocks): first candidates of everything, then second ones."""
    columns = [
        [(kind, shape, blocks) for blocks in candidates(kind, shape)]
        for name in kinds
        for kind in KINDS[name]
        for shape in SHAPES[kind]
    ]
    return [job for row in zip_longest(*columns) for job in row if job is not None]


def _compile(blocks: tuple) -> None:
    x, w = normal(blocks[0], 4096), quantize(normal(512, 4096))
    write_fetched(torch.empty_like(x[:, :512]), x, w, None, Fetched(*blocks))


def compile_ahead(found: list[tuple], workers: int = 8) -> None:
    """Compile what `found` has of "fetched" in processes side by side; the compiler's cache on disk keeps it."""
    kernels = {(*blocks[:4], min(blocks[4], 2)) for kind, _, blocks in found if kind == "fetched"}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for made in [pool.submit(_compile, blocks) for blocks in kernels]:
            made.exception()  # the sweep meets it again and says it


class Conversion:
    def __init__(self, kind: str, rows: int, columns: int):
        self.given = ring_of(partial(normal, rows, columns), 3 * rows * columns)
        if kind == "dequantize":
            self.given = [quantize(x) for x in self.given]
        self.function, self.default = {"dequantize": (dequantize, DEQUANTIZE), "quantize": (quantize, QUANTIZE)}[kind]
        self.outputs = [None] * len(self.given)

    def run(self, blocks: tuple) -> None:
        for i, given in enumerate(self.given):
            self.outputs[i] = self.function(given, elements=blocks[0], warps=blocks[1])

    def right(self, blocks: tuple) -> bool:
        got, want = (self.function(self.given[0], elements=e, warps=w) for e, w in (blocks, self.default))
        return torch.equal(getattr(got, "mantissas", got), getattr(want, "mantissas", want))


class Product:
    def __init__(self, kind: str, rows: int, N: int, K: int):
        self.plain = ring_of(partial(normal, N, K), N * K)
        self.given = [quantize(w) for w in self.plain]
        self.x, self.out = normal(rows, K), torch.empty(rows, N, device="cuda", dtype=torch.bfloat16)
        self.write, self.type = WRITES[kind]
        device = self.x.device
        default = {
            "vector": lambda: vector_blocks(rows, N, device),
            "matrix": lambda: matrix_blocks(rows, N, K, device, multiprocessors(device)),
            "walk": lambda: walk_blocks(N, K),
            "direct": lambda: direct_blocks(rows, N, K),
            "fetched": lambda: None,
        }[kind]()
        self.default = tuple(vars(default).values()) if default else ()
        self.want = self.x.double() @ dequantize_reference(self.given[0]).double().T

    def call(self, w, blocks: tuple) -> None:
        """No blocks: what there is beside gemm_fetched.py."""
        if blocks:
            self.write(self.out, self.x, w, None, self.type(*blocks))
        elif direct := direct_blocks(self.x.shape[0], *w.mantissas.shape):
            write_direct(self.out, self.x, w, None, direct)
        else:
            product(self.x, w, None, "dequantize", self.out)

    def run(self, blocks: tuple) -> None:
        for w in self.given:
            self.call(w, blocks)

    def peer(self) -> None:
        for w in self.plain:
            torch.nn.functional.linear(self.x, w)

    def right(self, blocks: tuple) -> bool:
        self.out.fill_(float("nan"))
        self.call(self.given[0], blocks)
        return bool((self.out.double() - self.want).norm() < 3e-3 * self.want.norm())


def measured(ready: Conversion | Product, blocks: tuple) -> dict:
    if not ready.right(blocks):
        return {"wrong": "not the result of the defaults"}
    line = {}
    if ready.default:
        seen = compare(lambda: ready.run(blocks), lambda: ready.run(ready.default), **NEAR)
        line |= {"over the default": round(seen.ratio, 4)}
    if isinstance(ready, Product):
        seen = compare(lambda: ready.run(blocks), ready.peer, **NEAR)
        line |= {"over cublas": round(seen.ratio, 4)}
    line["us"] = round(seen.a.us / len(ready.given), 2)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    asked = parser.parse_args()
    deadline, ready = time.time() + asked.seconds, {}
    found = jobs(asked.kinds)
    if "fetched" in asked.kinds:
        compile_ahead(found)
    for kind, shape, blocks in found:
        if time.time() > deadline:
            return
        line = {"kind": kind, "shape": shape, "blocks": blocks}
        try:
            if (kind, shape) not in ready:
                ready[kind, shape] = (Product if len(shape) == 3 else Conversion)(kind, *shape)
                default = ready[kind, shape].default
                print(json.dumps(line | {"blocks": default} | measured(ready[kind, shape], default)), flush=True)
            line |= measured(ready[kind, shape], blocks)
        except Exception as failed:  # whatever one configuration does, the next is to be tried
            line |= {"failed": f"{type(failed).__name__}: {str(failed)[:120]}"}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
