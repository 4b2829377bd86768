"""Linear layer with bias and GELU, bf16: the front rung against cublasLt's own, and every rung of the ladder.

cublasLt has GELU as an end of its products too (`torch._addmm_activation`, tanh form). Large products run at the power
limit, so only times taken turn by turn can be compared. The last rows are the product that comes back through a GELU,
against the vendor's product and one pass over its result.
"""

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.against import Case, Red, measure, within
from course_lib.kernels.linear_gelu import (
    linear_gelu,
    linear_gelu_grouped,
    linear_gelu_persistent,
    linear_gelu_pingpong,
    linear_gelu_reference,
    linear_gelu_tiled,
    slope_reference,
)
from course_lib.kernels.linear_gelu.elementwise import write_slope
from course_lib.kernels.linear_gelu.persistent import write_slope_persistent
from course_lib.kernels.linear_gelu.tuning import SLOPE, Turns, blocks_for, turns_for

SIZES = ((16384, 4304, 1152), (16384, 16384, 4096))  # M, N, K
LADDER = (linear_gelu_tiled, linear_gelu_grouped, linear_gelu_persistent, linear_gelu_pingpong)
TARGET = 1.05
LIMIT = 2.5e-3  # relative, over normal inputs: the rounding to bf16 alone is 1.7e-3


def run() -> list[dict]:
    rows = []
    for size in SIZES:
        for row in (*_gelu_rows(*size), *_slope_rows(*size)):
            rows.append(row)
            print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


def inputs(M: int, N: int, K: int) -> tuple[torch.Tensor, ...]:
    """x, w, bias: so that h is near 1, where GELU bends."""
    x, w, bias = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((M, K), (N, K), (N,)))
    return x, w.mul_(K**-0.5), bias


def method(M: int, N: int, K: int) -> str:
    """A graph holds a call 20 times; above a millisecond launches do not show anyway."""
    return "graph" if 2 * M * N * K < 6e11 else "events"


def cublaslt(x, w, bias):
    return torch._addmm_activation(bias, x, w.mT, use_gelu=True)


def _gelu_rows(M: int, N: int, K: int) -> Iterator[dict]:
    given = inputs(M, N, K)
    out, h = (torch.empty(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    torch._dynamo.reset()
    peers = {"eager": linear_gelu_reference, "compile": torch.compile(linear_gelu_reference, dynamic=False)}
    vendor = {"cublaslt": partial(cublaslt, *given)}
    others = {name: partial(f, *given) for name, f in peers.items()}
    size = f"{M} x {N} x {K}"

    def case(name: str, function, against: dict, target: float | None = None) -> Case:
        work = {"TFLOP/s": 2 * M * N * K / 1e12}
        check = partial(check_gelu, function, *given)
        return Case(f"{name} {size}", partial(function, *given, out), against, check, 1, target, method(M, N, K), work)

    def kept(x, w, bias, out):
        return linear_gelu(x, w, bias, out, h)

    turns = turns_for("gelu", out, given[0], given[1])
    yield measure(case("linear_gelu", linear_gelu, vendor, TARGET)) | {
        "rung": "pingpong" if turns else "persistent", "error": error_of(linear_gelu, *given),
        "peer's error": error_of(lambda *t: cublaslt(*t[:3]), *given),
    }  # fmt: skip
    yield measure(case("linear_gelu beside libraries", linear_gelu, others)) | {
        "error": error_of(linear_gelu, *given),
        "peer's error": error_of(lambda *t: linear_gelu_reference(*t[:3]), *given),
    }
    for rung in LADDER:
        try:
            yield measure(case(rung.__name__, rung, vendor))
        except Red as wrong:  # it is said, and the other rungs have their numbers
            yield {"name": f"{rung.__name__} {size}", "wrong": str(wrong)}
    yield measure(case("linear_gelu, h kept too", kept, others))


def _sample(M: int) -> torch.Tensor:
    """The first rows, the last, and some in the middle."""
    rows = torch.cat([torch.arange(64), torch.arange(M // 2, M // 2 + 64), torch.arange(M - 64, M)])
    return rows[(rows >= 0) & (rows < M)].cuda()


def check_gelu(function, x, w, bias) -> None:
    out = function(x, w, bias, torch.full((len(x), len(w)), float("nan"), device="cuda", dtype=x.dtype))
    rows = _sample(len(x))
    within("linear_gelu", out[rows], linear_gelu_reference(x[rows].double(), w.double(), bias.double()), LIMIT)
    if out.isnan().any():
        raise Red("linear_gelu leaves NaN")


def error_of(function, x, w, bias) -> float:
    rows = _sample(len(x))
    got = function(x, w, bias, torch.empty(len(x), len(w), device="cuda", dtype=x.dtype))[rows].double()
    want = linear_gelu_reference(x[rows].double(), w.double(), bias.double())
    return ((got - want).norm() / want.norm()).item()


def ways_back(dh, a, h, dy, w) -> dict:
    """name -> a call that writes dh and a, and returns the sums of dh's rows."""

    def vendor():
        return write_slope(dh, a, torch.mm(dy, w), h)

    def turns():
        from course_lib.kernels.linear_gelu.pingpong import write_slope_pingpong

        return write_slope_pingpong(dh, a, h, dy, w, True, Turns(5))

    plain = partial(write_slope_persistent, dh, a, h, dy, w, True, blocks_for(SLOPE, dy, w.shape[1]))
    return {"cublas and one pass": vendor, "persistent": plain, "pingpong": turns}


def _slope_rows(M: int, N: int, K: int) -> Iterator[dict]:
    dy, w, _ = inputs(M, N, K)
    w, h = w.mT.contiguous(), torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
    dh, a = (torch.empty_like(h) for _ in range(2))
    ways = ways_back(dh, a, h, dy, w)
    vendor = {"cublas and one pass": ways["cublas and one pass"]}
    for name in ("persistent", "pingpong"):
        check = partial(check_slope, ways[name], dh, a, h, dy, w)
        work = {"TFLOP/s": 2 * M * N * K / 1e12}
        label = f"slope, {name} {M} x {N} x {K}"
        case = Case(label, ways[name], vendor, check, method=method(M, N, K), work=work)
        try:
            yield measure(case)
        except Red as wrong:
            yield {"name": case.name, "wrong": str(wrong)}


def check_slope(call, dh, a, h, dy, w) -> None:
    dh.fill_(float("nan"))
    a.fill_(float("nan"))
    sums, rows = call().sum(0), _sample(len(h))
    want = (dy[rows].double() @ w.double()) * slope_reference(h[rows].double())
    within("dh", dh[rows], want, LIMIT)
    within("a", a[rows], torch.nn.functional.gelu(h[rows].double(), approximate="tanh"), LIMIT)
    within("sums", sums[None], dh.double().sum(0)[None], LIMIT)
    if dh.isnan().any() or a.isnan().any():
        raise Red("the way back leaves NaN")
