"""python -m benchmarks.products_sweep [--seconds 150] [--kinds matmul ...]: every way to make a product, by shape.

Every line: kind, shape M, N, K, is b stored by columns, way, blocks, us a call, time over the vendor's fastest, or what
went wrong. A way is checked against float64 first, and twice for the same bits. Ways:

    ours         what `matmul` or `linear_gelu` chooses
    grouped      the grouped rung of matmul
    parts        rows, columns, block of K, warps, stages; programs that share a sum; 1: the second kernel starts early
    persistent   rows, columns, block of K, warps, stages (and for linear_gelu programs a multiprocessor, parts)
    copied       the same from copies whose rows start at multiples of 16 bytes
    wide         rows, columns, more columns, block of K, warps, stages
    pingpong     stages, tile rows in a group

Times are medians of CUDA graphs of some 0.3 ms: short looks that tell ways apart and carry no claim.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from statistics import median

import torch

from benchmarks.against import within
from benchmarks.linear_gelu import cublaslt, inputs
from benchmarks.sweeping import main
from course_lib.kernels import linear_gelu as gelus
from course_lib.kernels import matmul as products
from course_lib.kernels.linear_gelu.gelu import gelu
from course_lib.kernels.linear_gelu.persistent import write_gelu_persistent
from course_lib.kernels.linear_gelu.tuning import Blocks, Turns
from course_lib.kernels.product_copies import aligned_like, aligned_rows, copy_back
from course_lib.kernels.product_parts import write_parts
from course_lib.kernels.product_tiles import Tile
from course_lib.kernels.product_wide import Wide, write_wide

KINDS = ("linear_gelu", "matmul", "matmul_odd", "matmul_fp32")
BF16 = torch.bfloat16
LINEAR_GELU = (
    (512, 4304, 1152), (64, 4096, 1024), (2048, 4304, 1152), (1024, 4304, 1152), (256, 4304, 1152), (128, 4304, 1152),
    (16, 4304, 1152), (512, 4096, 4096), (1024, 1024, 1024), (1, 4096, 4096),
    (512, 4304, 1150), (16384, 4304, 1150), (4095, 4099, 1024),
)  # fmt: skip
# M, N, K, is b stored by columns
MATMUL = (
    *((m, n, k, True) for m in (16, 64, 256) for n, k in ((1024, 4096), (4096, 1024), (14336, 4096), (4096, 14336))),
    (512, 14336, 4096, True), (512, 1024, 1024, True), (1024, 1024, 16384, True), (128, 128, 16384, True),
    *((m, 4304, 1152, True) for m in (16, 128, 512)), *((m, 1152, 4304, True) for m in (16, 128, 512)),
    *((n, n, n, False) for n in (512, 768, 1024, 1536, 2048, 4096)), (512, 8192, 2048, False), (8192, 512, 8192, False),
    (384, 4096, 4096, False), (64, 64, 65536, False), (512, 512, 16384, False),
)  # fmt: skip
MATMUL_ODD = (
    (4095, 4095, 4095, False), (1001, 1001, 1001, False), (2048, 2047, 2049, True), (512, 4096, 4100, True),
    (16, 4096, 4100, True), (16, 4099, 1023, False),
)  # fmt: skip
MATMUL_FP32 = ((16, 4096, 4096, False), (256, 256, 16384, False), (256, 4096, 4096, False))
# rows, columns, block of K, warps, stages
PARTS = {
    16: ((16, 64, 128, 4, 4), (16, 128, 64, 4, 6)),
    32: ((32, 64, 128, 4, 5), (32, 128, 64, 4, 5)),
    64: ((64, 64, 128, 4, 3),),
    256: ((128, 64, 128, 4, 4), (64, 64, 128, 4, 3)),
    10**9: ((128, 64, 128, 4, 4), (128, 128, 64, 8, 4)),
}
NARROW = {16: ((16, 32, 128, 4, 3),), 10**9: ((64, 64, 64, 4, 3),)}
FP32 = {16: ((16, 32, 32, 4, 4),), 10**9: ((64, 64, 16, 4, 3),)}
PERSISTENT = (
    (64, 64, 128, 4, 6), (64, 128, 128, 4, 4), (128, 128, 64, 4, 4), (128, 256, 64, 8, 3), (64, 128, 64, 4, 5),
)  # fmt: skip
# and programs a multiprocessor (0: a program a tile), parts
GELU_PERSISTENT = (
    (128, 256, 64, 8, 3, 1, 1), (128, 128, 64, 4, 3, 2, 2), (64, 128, 128, 4, 4, 1, 1), (64, 64, 128, 4, 6, 1, 1),
    (64, 128, 64, 4, 5, 1, 1), (64, 128, 64, 4, 4, 0, 1), (128, 64, 64, 4, 4, 0, 1),
)  # fmt: skip
PINGPONG = ((5, 8),)
WIDE = ((64, 256, 32, 64, 4, 4), (128, 128, 16, 64, 4, 5), (64, 128, 16, 64, 4, 7), (64, 128, 16, 128, 4, 3))
CLOSE = ((64, 128, 64, 4, 3), (128, 64, 64, 4, 3))  # of parts: three programs fit on a multiprocessor
PROGRAMS = 132


def splits(tile, M: int, N: int, K: int) -> list[int]:
    """Into how many parts a sum may be cut to fill one or two programs a multiprocessor, or not at all."""
    tiles, most = -(-M // tile[0]) * -(-N // tile[1]), min(64, K // (2 * tile[2]))
    return sorted({1} | {s for s in (waves * PROGRAMS // tiles for waves in (1, 2)) if 1 < s <= most})


def parts(sizes: dict, M: int, N: int, K: int) -> list[tuple]:
    tiles = next(tiles for most, tiles in sizes.items() if most >= M)
    found = [(*tile, split, 1) for tile in tiles for split in splits(tile, M, N, K)]
    return [one for one in found if PROGRAMS // 3 <= _programs(one, M, N) <= 8 * PROGRAMS] or found[:1]


def _programs(one: tuple, M: int, N: int) -> int:
    return -(-M // one[0]) * -(-N // one[1]) * one[5]


def jobs(kinds: list[str]) -> list[dict]:
    return [
        {"kind": kind, "shape": shape, "way": way, "blocks": blocks}
        for kind in kinds
        for shape in globals()[kind.upper()]
        for way, blocks in [("ours", ()), *_ways(kind, *shape)]
    ]


def _ways(kind: str, M: int, N: int, K: int, by_column: bool = True) -> list[tuple[str, tuple]]:
    sizes = FP32 if kind == "matmul_fp32" else NARROW if kind == "matmul_odd" and K % 2 else PARTS
    ways = [("parts", one) for one in parts(sizes, M, N, K)]
    if kind == "matmul_fp32":
        return [*ways, ("grouped", ())]
    if kind == "matmul":
        return ways + [("persistent", tile) for tile in PERSISTENT if M > 32]
    if kind == "matmul_odd":
        return ways + [("copied", tile) for tile in PERSISTENT[2:3] if M > 32]
    large = "persistent" if K % 8 == 0 and N % 8 == 0 else "copied"
    ways += [(large, blocks) for blocks in GELU_PERSISTENT[: None if large == "persistent" else 4] if M > 32]
    if (M, N, K) in ((512, 4304, 1152), (256, 4304, 1152)):
        ways += [("wide", tile) for tile in WIDE] + [("parts", (*tile, 1, 1)) for tile in CLOSE]
    return ways + [("pingpong", turns) for turns in PINGPONG if large == "persistent" and M > 128]


@lru_cache(maxsize=1)
def _ready(kind: str, shape: tuple) -> tuple[Callable, Callable, dict[str, Callable]]:
    """(a call of a way with blocks, what float64 says, the vendor's calls)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    if kind != "linear_gelu":
        M, N, K, by_column = shape
        dtype = torch.float32 if kind == "matmul_fp32" else BF16
        a, b = (torch.randn(size, K, device="cuda", dtype=dtype) for size in (M, N))
        b = b.T if by_column else b.T.contiguous()
        out, peer_out = (torch.empty(M, N, device="cuda", dtype=dtype) for _ in range(2))
        vendor = {"cublas": partial(torch.mm, a, b, out=peer_out)}
        return partial(_product, a, b, out), lru_cache(lambda: a.double() @ b.double()), vendor
    M, N, K = shape
    x, w, bias = inputs(M, N, K)
    out = torch.empty(M, N, device="cuda", dtype=BF16)
    vendor = {"cublaslt": partial(cublaslt, x, w, bias), "eager": partial(gelus.linear_gelu_reference, x, w, bias)}
    exact = lru_cache(lambda: gelus.linear_gelu_reference(x.double(), w.double(), bias.double()))
    return partial(_layer, x, w, bias, out), exact, vendor


def _product(a, b, out, way: str, blocks: list[int]) -> torch.Tensor:
    if way == "ours":
        return products.matmul(a, b, out)
    if way == "parts":
        write_parts(out, a, b, Tile(*blocks[:5], rate=1), blocks[5], early=_early(blocks))
        return out
    if way == "grouped":
        return products.matmul_grouped(a, b, out)
    if way == "copied":
        near = [x if products.by_rows_or_columns(x) else products._aligned(x) for x in (a, b)]
        made = out if products.describable(out) else aligned_like(out)
        _product(*near, made, "persistent", blocks)
        if made is not out:
            copy_back(out, made)
        return out
    table, products.PERSISTENT = products.PERSISTENT, {2: (Tile(*blocks, rate=1),)}
    try:
        return products.matmul_persistent(a, b, out)
    finally:
        products.PERSISTENT = table


def _early(blocks: list[int]) -> bool:
    return bool(blocks[6]) and blocks[5] > 1


def _layer(x, w, bias, out, way: str, blocks: list[int]) -> torch.Tensor:
    if way == "ours":
        return gelus.linear_gelu(x, w, bias, out)
    if way == "parts":
        write_parts(out, x, w.T, Tile(*blocks[:5], rate=1), blocks[5], bias=bias, end=gelu, early=_early(blocks))
    elif way == "wide":
        write_wide(out, x, w.t(), Wide(*blocks, rate=1), bias=bias, end=gelu)
    elif way == "pingpong":
        gelus.linear_gelu_pingpong(x, w, bias, out, turns=Turns(*blocks))
    elif way == "copied":
        near = [one if products.describable(one) else aligned_rows(one) for one in (x, w)]
        made = out if products.describable(out) else aligned_like(out)
        _layer(*near, bias, made, "persistent", blocks)
        if made is not out:
            copy_back(out, made)
    else:
        *tile, programs, leaves = blocks
        write_gelu_persistent(out, None, x, w, bias, Blocks(*tile, rate=1, programs=programs, parts=leaves))
    return out


def once(job: dict) -> None:
    _ready(job["kind"], tuple(job["shape"]))[0](job["way"], job["blocks"])


def graph_us(call: Callable[[], object], looks: int = 9) -> float:
    """The median of some replays of a graph of calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        stream.synchronize()
        count = max(4, min(40, round(0.3 / max(begin.elapsed_time(end), 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(count):
                call()
        seen = []
        for _ in range(looks + 3):
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            seen.append(begin.elapsed_time(end) * 1e3 / count)
    return median(seen[3:])


@lru_cache(maxsize=1)
def _vendor_us(kind: str, shape: tuple) -> dict[str, float]:
    return {name: round(graph_us(call), 2) for name, call in _ready(kind, shape)[2].items()}


def measured(job: dict) -> dict:
    key = job["kind"], tuple(job["shape"])
    run, exact, _ = _ready(*key)
    vendor = _vendor_us(*key)
    call = partial(run, job["way"], job["blocks"])
    first = _fresh(call)
    within(str(job), first, exact(), 2.5e-3)
    if not torch.equal(first, _fresh(call)):
        return {"failed": "other bits on a second run"}
    us = graph_us(call)
    return {"us": round(us, 2), "ratio": round(us / min(vendor.values()), 3)} | vendor


def _fresh(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The result of a call into an output of NaN."""
    call().fill_(float("nan"))
    return call().clone()


if __name__ == "__main__":
    main("benchmarks.products_sweep", list(KINDS), jobs, once, measured)
