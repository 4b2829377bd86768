"""Products around the table: few rows, a long K, sizes that no tile divides."""

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from benchmarks import beside
from benchmarks import linear_gelu as gelus
from benchmarks import matmul as products
from benchmarks.against import Case
from course_lib.device import DEVICE
from course_lib.kernels.linear_gelu import linear_gelu
from course_lib.kernels.matmul import matmul

DTYPE = torch.bfloat16
Shape = tuple[int, int, int]  # M, N, K
MATMUL = (
    *((m, 4096, 4096) for m in (1, 16, 64, 128)),
    *((256, 256, 65536), (1000, 1000, 1000), (4095, 4096, 4100), (8192, 512, 8192), (512, 8192, 2048)),
)
LINEAR_GELU = ((512, 4304, 1152), (16384, 4304, 1150), (2048, 4304, 1152), (64, 4096, 1024), (4095, 4099, 1024))


def run(matmul: Sequence[Shape] = MATMUL, linear_gelu: Sequence[Shape] = LINEAR_GELU) -> list[dict]:
    return [*beside.rows("matmul", _matmul, matmul), *beside.rows("linear_gelu", _linear_gelu, linear_gelu)]


def _matmul(shape: Shape) -> Iterator[Case]:
    yield products._case(matmul, DTYPE, *shape, False, None)


def _linear_gelu(shape: Shape) -> Iterator[Case]:
    M, N, K = shape
    given, out = gelus.inputs(*shape), torch.empty(M, N, device=DEVICE, dtype=DTYPE)
    torch._dynamo.reset()
    compiled = torch.compile(gelus.linear_gelu_reference, dynamic=False)
    peers = {"cublaslt": gelus.cublaslt, "compile": compiled, "eager": gelus.linear_gelu_reference}
    yield Case(
        f"linear_gelu {M} x {N} x {K}",
        partial(linear_gelu, *given, out),
        {name: partial(f, *given) for name, f in peers.items()},
        partial(gelus.check_gelu, linear_gelu, *given),
        method=gelus.method(*shape),
        work={"TFLOP/s": 2 * M * N * K / 1e12},
    )
