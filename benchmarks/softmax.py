"""Row softmax, bf16, 16384 rows, against eager torch, torch.compile (twice) and Liger where it is installed.

Every call of a round works on its own matrix, and all of them together are ten times the L2 cache: what is timed is
memory. Outputs stay alive, so that no peer writes over lines that are still in the cache.
"""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.against import Case, measure, ring_of, within
from course_lib.kernels.softmax import softmax

ROWS = 16384
# A power of two each, then widths between; at 1001 no row starts at a multiple of 16 bytes.
WIDTHS = (256, 1024, 2048, 4096, 8192, 16384, 1000, 3000, 1001)
AUTOTUNED = (1024, 4096, 16384)  # max-autotune compiles for seconds, and was never ahead


def run() -> list[dict]:
    return [measure(_case(width)) for width in WIDTHS]


def _case(width: int) -> Case:
    size = 2 * ROWS * width * 2
    inputs = ring_of(lambda: torch.randn(ROWS, width, device="cuda", dtype=torch.bfloat16), size)
    peers = {name: partial(_over, inputs, [None] * len(inputs), f) for name, f in _peers(width).items()}
    ours = partial(_over, inputs, [None] * len(inputs), softmax)
    return Case(
        f"softmax bf16 {ROWS} x {width}",
        ours,
        peers,
        partial(_check, inputs[0]),
        calls=len(inputs),
        target=1.0,
        work={"TB/s": size / 1e12},
    )


def _peers(width: int) -> dict[str, Callable]:
    def plain(x):
        return torch.softmax(x, dim=-1)

    torch._dynamo.reset()
    peers = {"eager": plain, "compile": torch.compile(plain, dynamic=False)}
    if width in AUTOTUNED:
        peers["max-autotune"] = torch.compile(plain, dynamic=False, mode="max-autotune-no-cudagraphs")
    try:
        from liger_kernel.ops.softmax import LigerSoftmaxFunction
    except ImportError:
        return peers
    return peers | {"liger": LigerSoftmaxFunction.apply}


def _over(inputs: list, outputs: list, function: Callable) -> None:
    for i, x in enumerate(inputs):
        outputs[i] = function(x)


def _check(x: torch.Tensor) -> None:
    out = softmax(x, torch.full_like(x, float("nan")))
    # Rounding to bf16 alone gives 1.7e-3; computing in bf16 would give 5e-3 and more.
    within("softmax", out, torch.softmax(x.double(), dim=-1), 2.5e-3)
