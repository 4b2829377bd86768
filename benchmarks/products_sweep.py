"""python -m benchmarks.products_sweep [--seconds 150] [--kinds matmul ...]: every way to make a product, by shape.

Every line: kind, shape M, N, K, is b stored by columns, way, blocks, us a call, time over the vendor's fastest, or what
went wrong. A way is checked against float64 first, and twice for the same bits. Ways:

    ours         what `matmul` or `linear_gelu` chooses
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

KINDS = ("matmul", "linear_gelu")
BF16 = torch.bfloat16
# M, N, K, is b stored by columns
MATMUL = (
    *((m, 4096, 4096, False) for m in (1, 16, 64, 128)),
    (256, 256, 65536, False), (4095, 4096, 4100, False), (1000, 1000, 1000, False),
    *((m, 4096, 4096, True) for m in (1, 16, 32, 64, 128, 256, 512)),
    *((m, n, k, True) for m in (1, 16, 64, 256) for n, k in ((1024, 4096), (4096, 1024), (14336, 4096), (4096, 14336))),
    *((m, 4304, 1152, True) for m in (16, 128, 512)), *((m, 1152, 4304, True) for m in (16, 128, 512)),
    (32, 14336, 4096, False), (512, 1024, 1024, True), (128, 1024, 1024, True), (512, 14336, 4096, True),
    (64, 64, 65536, False), (128, 128, 16384, True), (512, 512, 16384, False), (1024, 1024, 16384, True),
    (512, 512, 512, False), (768, 768, 768, False), (1024, 1024, 1024, False), (1536, 1536, 1536, False),
    (2048, 2048, 2048, False), (512, 8192, 2048, False), (8192, 512, 8192, False), (1001, 1001, 1001, False),
    (4095, 4095, 4095, False), (512, 4096, 4100, True), (16, 4096, 4100, True), (16, 4099, 1023, False),
    (128, 4096, 4098, True), (2048, 2047, 2049, True), (2000, 1000, 3000, True),
)  # fmt: skip
LINEAR_GELU = (
    (512, 4304, 1152), (512, 4304, 1150), (16384, 4304, 1150), (64, 4096, 1024), (2048, 4304, 1152),
    (4095, 4099, 1024), (16, 4304, 1152), (128, 4304, 1152), (256, 4304, 1152), (1024, 4304, 1152),
    (512, 4096, 4096), (128, 14336, 4096), (1, 4096, 4096), (1024, 1024, 1024),
)  # fmt: skip
# rows, columns, block of K, warps, stages
FEW_ROWS = {
    16: (
        (16, 32, 128, 4, 6), (16, 16, 256, 4, 6), (16, 32, 256, 4, 4), (16, 64, 128, 4, 6), (16, 64, 128, 4, 4),
        (16, 128, 64, 4, 6), (16, 64, 256, 4, 3), (16, 32, 256, 8, 4),
    ),
    32: ((32, 32, 128, 4, 5), (32, 64, 128, 4, 5), (32, 64, 128, 4, 4), (32, 32, 256, 4, 3), (32, 128, 64, 4, 5)),
    64: (
        (64, 64, 128, 4, 4), (64, 32, 128, 4, 5), (64, 64, 64, 4, 6), (64, 64, 64, 4, 4), (64, 128, 64, 4, 5),
        (64, 64, 128, 4, 3), (64, 128, 128, 8, 3),
    ),
    10**9: (
        (128, 64, 64, 4, 5), (128, 64, 128, 4, 4), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4), (64, 64, 64, 4, 6),
        (64, 64, 128, 4, 4), (64, 128, 64, 4, 5), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 64, 128, 4, 3),
        (64, 128, 64, 4, 3), (128, 32, 128, 4, 4), (256, 128, 64, 8, 3), (128, 128, 128, 8, 3), (64, 64, 64, 4, 4),
    ),
}  # fmt: skip
PERSISTENT = (
    (64, 128, 64, 4, 5), (128, 128, 64, 4, 4), (64, 64, 64, 4, 5), (128, 256, 64, 8, 3), (64, 128, 128, 4, 4),
    (64, 64, 128, 4, 6), (128, 64, 64, 4, 6), (128, 64, 128, 4, 4), (128, 128, 64, 8, 4), (128, 128, 128, 8, 3),
    (64, 128, 64, 4, 8), (256, 128, 64, 8, 3),
)  # fmt: skip
# and programs a multiprocessor (0: a program a tile), parts
GELU_PERSISTENT = (
    (64, 128, 64, 4, 5, 1, 1), (128, 128, 64, 4, 3, 2, 2), (128, 256, 64, 8, 3, 1, 1), (128, 128, 64, 4, 3, 0, 2),
    (128, 128, 64, 8, 4, 1, 1), (128, 128, 64, 4, 4, 1, 1), (64, 128, 64, 4, 3, 0, 1), (64, 128, 64, 4, 3, 3, 1),
    (64, 128, 64, 4, 4, 2, 1), (128, 64, 64, 4, 4, 2, 1), (64, 64, 64, 4, 4, 0, 1), (64, 256, 64, 4, 4, 1, 2),
    (256, 128, 64, 8, 3, 0, 2), (128, 128, 64, 8, 3, 2, 2),
)  # fmt: skip
PINGPONG = ((5, 8), (4, 4))
WIDE = (
    (128, 128, 16, 64, 8, 5), (128, 128, 32, 64, 8, 5), (128, 128, 64, 64, 8, 4), (128, 128, 16, 64, 4, 5),
    (128, 128, 32, 64, 4, 5), (64, 128, 16, 64, 4, 7), (64, 128, 64, 64, 4, 6), (64, 256, 32, 64, 4, 4),
    (256, 128, 16, 64, 8, 4), (128, 64, 16, 64, 4, 6), (128, 64, 32, 64, 4, 7), (128, 64, 16, 64, 8, 7),
)  # fmt: skip
PROGRAMS = 132


def splits(tile, M: int, N: int, K: int) -> list[int]:
    """Into how many parts a sum may be cut to fill one, two or three programs a multiprocessor, or not at all."""
    tiles, most = -(-M // tile[0]) * -(-N // tile[1]), min(64, K // (2 * tile[2]))
    return sorted({1} | {s for s in (waves * PROGRAMS // tiles for waves in (1, 2, 3)) if 1 < s <= most})


def parts(M: int, N: int, K: int) -> list[tuple]:
    sizes = next(tiles for most, tiles in FEW_ROWS.items() if most >= M)
    found = [(*tile, split, 1) for tile in sizes for split in splits(tile, M, N, K)]
    few = [one for one in found if _programs(one, M, N) >= PROGRAMS // 3] or found
    again = [(*one[:-1], 0) for one in few if one[-2] > 1][:2]
    return [one for one in few if M * N * K < 2e11 or one[0] * one[1] >= 8192] + again


def _programs(one: tuple, M: int, N: int) -> int:
    return -(-M // one[0]) * -(-N // one[1]) * one[5]


def jobs(kinds: list[str]) -> list[dict]:
    found = []
    for shape in MATMUL if "matmul" in kinds else ():
        M, N, K, by_column = shape
        reached = K % 8 == 0 if by_column else K % 8 == 0 and N % 8 == 0
        large = [("persistent" if reached and N % 8 == 0 else "copied", tile) for tile in PERSISTENT]
        if large[0][0] == "persistent" and M > 64:
            large += [("wide", tile) for tile in WIDE]
        ways = [("ours", ())] + [("parts", one) for one in parts(M, N, K)] + (large if M > 32 else large[:3])
        found += [{"kind": "matmul", "shape": shape, "way": way, "blocks": blocks} for way, blocks in ways]
    for shape in LINEAR_GELU if "linear_gelu" in kinds else ():
        M, N, K = shape
        near = K % 8 == 0 and N % 8 == 0
        large = [("persistent" if near else "copied", blocks) for blocks in GELU_PERSISTENT] if M > 32 else []
        large += [("wide", tile) for tile in WIDE] if near and M > 64 else []
        large += [("pingpong", turns) for turns in PINGPONG] if near and M > 128 else []
        ways = [("ours", ())] + [("parts", one) for one in parts(M, N, K)] + large
        found += [{"kind": "linear_gelu", "shape": shape, "way": way, "blocks": blocks} for way, blocks in ways]
    return found


@lru_cache(maxsize=1)
def _ready(kind: str, shape: tuple) -> tuple[Callable, Callable, dict[str, Callable]]:
    """(a call of a way with blocks, what float64 says, the vendor's calls)."""
    torch.backends.cuda.matmul.allow_tf32 = False
    if kind == "matmul":
        M, N, K, by_column = shape
        a = torch.randn(M, K, device="cuda", dtype=BF16)
        b = (
            torch.randn(N, K, device="cuda", dtype=BF16).T
            if by_column
            else torch.randn(K, N, device="cuda", dtype=BF16)
        )
        out, peer_out = (torch.empty(M, N, device="cuda", dtype=BF16) for _ in range(2))
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
    if way == "wide":
        write_wide(out, a, b, Wide(*blocks, rate=1))
        return out
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
    if job["kind"] == "matmul" or job["way"] != "ours":
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
