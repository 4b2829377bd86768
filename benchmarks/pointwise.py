"""axpy and chains of cosines over 2^27 fp32 elements, against eager torch and torch.compile."""

from functools import partial

import torch

from benchmarks.against import Case, measure, within
from course_lib.device import ceilings
from course_lib.kernels.pointwise import axpy, cos_chain

N = 2**27
REPEATS = (1, 2, 4, 16, 64)


def run() -> list[dict]:
    x, y = torch.randn(2, N, device="cuda")
    out = torch.empty_like(x)
    return [_axpy(x, y, out), *(_chain(x, out, repeat) for repeat in REPEATS)]


def _axpy(x, y, out) -> dict:
    def check():
        within("axpy", axpy(2.0, x, y, out.fill_(float("nan"))), 2.0 * x.double() + y.double(), 1e-6)

    case = Case(
        "axpy fp32 2^27",
        partial(axpy, 2.0, x, y, out),
        {"eager": partial(torch.add, y, x, alpha=2.0, out=out)},
        check,
        target=1.01,
        method="events",
        work={"TB/s": 12 * N / 1e12},
    )
    return measure(case)


def _chain(x, out, repeat: int) -> dict:
    def plain(x):
        for _ in range(repeat):
            x = torch.cos(x)
        return x

    def check():
        cos_chain(x, repeat, out.fill_(float("nan")))
        within("cos_chain", out[: 2**22], plain(x[: 2**22].double()), 1e-6)
        if out.isnan().any():
            within("cos_chain", out, torch.zeros_like(out), 1e-6)

    torch._dynamo.reset()
    case = Case(
        f"cos_chain fp32 2^27, {repeat} times",
        partial(cos_chain, x, repeat, out),
        {"eager": partial(plain, x)}
        | ({"compile": partial(torch.compile(plain, dynamic=False), x)} if repeat <= 4 else {}),
        check,
        method="events",
        work={"TB/s": 8 * N / 1e12},
    )
    row = measure(case)
    top = ceilings()
    floor_s = max(8 * N / top.bytes_per_s, repeat * N / top.cos_per_s)
    return row | {"floor us": floor_s * 1e6, "over floor": row["value"] / (floor_s * 1e6)}
