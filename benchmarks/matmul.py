"""Matrix products against cuBLAS (torch.mm): the last rung at many sizes, and the ladder at one.

Large products run at the power limit, so only times taken turn by turn can be compared.
"""

from functools import partial

import torch

from benchmarks.against import Case, measure, within
from course_lib.kernels.matmul import matmul, matmul_grouped, matmul_naive, matmul_persistent, matmul_tiled

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
# (rung, type, M, N, K, is b stored by columns, target)
CASES = (
    (matmul, BF16, 8192, 8192, 8192, False, 1.03),
    (matmul, BF16, 8192, 8192, 8192, True, 1.03),
    (matmul, FP16, 8192, 8192, 8192, False, 1.03),
    (matmul, BF16, 4096, 4096, 4096, False, None),
    (matmul, BF16, 2048, 2048, 2048, False, None),
    (matmul, BF16, 1024, 1024, 1024, False, None),
    (matmul, BF16, 16384, 4304, 1152, True, None),
    (matmul, BF16, 4095, 4095, 4095, False, None),
    (matmul, FP32, 4096, 4096, 4096, False, None),
    (matmul_naive, BF16, 4096, 4096, 4096, False, None),
    (matmul_tiled, BF16, 4096, 4096, 4096, False, None),
    (matmul_grouped, BF16, 4096, 4096, 4096, False, None),
    (matmul_persistent, BF16, 4096, 4096, 4096, False, None),
    (matmul_tiled, BF16, 16384, 16384, 4096, False, None),
    (matmul_grouped, BF16, 16384, 16384, 4096, False, None),
)


def run() -> list[dict]:
    torch.backends.cuda.matmul.allow_tf32 = False  # fp32 means ieee on both sides
    return [measure(_case(*case)) for case in CASES]


def _case(rung, dtype, M: int, N: int, K: int, b_by_column: bool, target) -> Case:
    a = torch.randn(M, K, device="cuda", dtype=dtype)
    b = (
        torch.randn(N, K, device="cuda", dtype=dtype).T
        if b_by_column
        else torch.randn(K, N, device="cuda", dtype=dtype)
    )
    out, peer_out = (torch.empty(M, N, device="cuda", dtype=dtype) for _ in range(2))
    flops = 2 * M * N * K
    stored = ", b by columns" if b_by_column else ""
    return Case(
        f"{rung.__name__} {str(dtype).removeprefix('torch.')} {M} x {N} x {K}{stored}",
        partial(rung, a, b, out),
        {"cublas": partial(torch.mm, a, b, out=peer_out)},
        partial(_check, rung, a, b),
        target=target,
        method="graph" if flops < 1.2e11 else "events",  # below about 0.2 ms launches would show
        work={"TFLOP/s": flops / 1e12},
    )


def _check(rung, a: torch.Tensor, b: torch.Tensor) -> None:
    out = rung(a, b, torch.full((a.shape[0], b.shape[1]), float("nan"), device="cuda", dtype=a.dtype))
    limit = {FP32: 1e-5, FP16: 4e-4, BF16: 2.5e-3}[a.dtype]  # one rounding of the result gives 2e-4 and 1.7e-3
    rows = torch.cat([torch.arange(0, min(128, len(a))), torch.arange(max(0, len(a) - 128), len(a))])
    within(rung.__name__, out[rows], a[rows].double() @ b.double(), limit)
    if out.isnan().any():
        within(rung.__name__, out, torch.zeros_like(out), limit)
