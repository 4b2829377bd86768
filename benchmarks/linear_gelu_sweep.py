"""python -m benchmarks.linear_gelu_sweep [--seconds 300] [--kinds gelu slope ...]: try tiles, rungs, orders.

Every line: kind, shape, rung, blocks, us a call, TFLOP/s, time over the vendor's turn by turn (cublasLt with GELU; for
the way back cuBLAS and one pass over its result), or what went wrong. "kept" writes h too, "again" gelu(h).
"""

from functools import lru_cache, partial
from itertools import zip_longest

import torch

from benchmarks.linear_gelu import SIZES, check_gelu, check_slope, cublaslt, inputs, method, ways_back
from benchmarks.sweeping import main
from course_lib.kernels.linear_gelu.persistent import write_gelu_persistent, write_slope_persistent
from course_lib.kernels.linear_gelu.tuning import Blocks, Turns
from course_lib.timing import compare

# rows, columns, inner, warps, stages, programs a multiprocessor (0: a program a tile), parts
PERSISTENT = [
    (128, 128, 64, 4, 3, 2, 2), (128, 256, 64, 8, 3, 1, 1), (128, 128, 64, 4, 3, 0, 2), (128, 128, 64, 4, 4, 1, 1),
    (128, 256, 64, 8, 4, 1, 2), (128, 128, 64, 8, 3, 2, 2), (128, 256, 64, 8, 3, 1, 2), (128, 256, 64, 8, 3, 0, 2),
    (64, 256, 64, 4, 3, 2, 2), (256, 128, 64, 8, 3, 1, 2), (128, 128, 32, 4, 6, 2, 2),
]  # fmt: skip
PINGPONG = [(5, 8), (4, 8), (5, 16), (5, 4), (5, 12), (4, 16)]  # stages, tile rows in a group
KINDS = ("gelu", "slope", "gelu kept", "slope again")


def jobs(kinds: list[str]) -> list[dict]:
    """The first candidates of every kind and shape before any second ones."""
    tried = [("pingpong", b) for b in PINGPONG[:1]] + [("persistent", b) for b in PERSISTENT[:3]]
    tried += [("pingpong", b) for b in PINGPONG[1:4]] + [("persistent", b) for b in PERSISTENT[3:]]
    tried += [("pingpong", b) for b in PINGPONG[4:]]
    columns = [
        [{"kind": kind, "shape": list(size), "rung": rung, "blocks": list(blocks)} for rung, blocks in tried]
        for kind in kinds
        for size in SIZES
    ]
    return [job for row in zip_longest(*columns) for job in row if job is not None]


def _blocks(given: list[int]) -> Blocks:
    *tile, programs, parts = given
    return Blocks(*tile, rate=1, programs=programs, parts=parts)


@lru_cache(maxsize=1)
def _ready(kind: str, shape: tuple[int, ...]):
    """(a call of a rung with blocks, the vendor's, a check of such a call)."""
    M, N, K = shape
    x, w, bias = inputs(M, N, K)
    out, second = (torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    more = second if kind in ("gelu kept", "slope again") else None
    if kind.startswith("gelu"):

        def gelu(rung, blocks, x=x, w=w, bias=bias, out=out):
            if rung == "persistent":
                write_gelu_persistent(out, more, x, w, bias, _blocks(blocks))
            else:
                from course_lib.kernels.linear_gelu.pingpong import write_gelu_pingpong

                write_gelu_pingpong(out, more, x, w, bias, Turns(*blocks))
            return out

        def check(rung, blocks):
            check_gelu(lambda x, w, bias, out: gelu(rung, blocks, x, w, bias, out), x, w, bias)

        return gelu, partial(cublaslt, x, w, bias), check
    back, h = w.mT.contiguous(), torch.randn(M, N, device="cuda", dtype=torch.bfloat16)

    def slope(rung, blocks, a=more):
        if rung == "persistent":
            return write_slope_persistent(out, a, h, x, back, True, _blocks(blocks))
        from course_lib.kernels.linear_gelu.pingpong import write_slope_pingpong

        return write_slope_pingpong(out, a, h, x, back, True, Turns(*blocks))

    def check_back(rung, blocks):
        check_slope(lambda: slope(rung, blocks, second), out, second, h, x, back)

    return slope, ways_back(out, more, h, x, back)["cublas and one pass"], check_back


def once(job: dict) -> None:
    run, _, _ = _ready(job["kind"], tuple(job["shape"]))
    run(job["rung"], job["blocks"])


def measured(job: dict) -> dict:
    run, vendor, check = _ready(job["kind"], tuple(job["shape"]))
    check(job["rung"], job["blocks"])
    M, N, K = job["shape"]
    how = {"method": method(M, N, K), "cold": False, "precision": 0.005, "max_seconds": 0.4}
    seen = compare(partial(run, job["rung"], job["blocks"]), vendor, **how)
    return {
        "us": round(seen.a.us, 1),
        "TFLOP/s": round(2 * M * N * K / seen.a.median_s / 1e12, 1),
        "over the vendor": round(seen.ratio, 4),
    }


if __name__ == "__main__":
    main("benchmarks.linear_gelu_sweep", list(KINDS), jobs, once, measured)
