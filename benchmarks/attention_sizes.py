"""Time and memory of attention over lengths and head sizes: 8 sequences of one head, not causal.

The plain formula in fp32 and in bf16, the same under torch.compile (which meets changing lengths and so makes its
kernels for any), SDPA as torch chooses, and ours. Forward and backward; MiB that the forward pass leaves held, its
result included, and the most that was held at once in both passes, above the inputs.
"""

from collections.abc import Callable

import torch
from torch.nn.functional import scaled_dot_product_attention

from course_lib.kernels.attention import attention
from course_lib.timing import time_gpu

FILES = tuple(
    f"course_lib/kernels/attention/{name}.py" for name in ("dkdv", "dq", "forward", "groups_forward", "rungs", "tuning")
)
LENGTHS, HEAD_SIZES = tuple(2**i for i in range(8, 15)), (16, 32, 64, 128)
BATCH = 8
MIB = 2**20


def run() -> list[dict]:
    rows = []
    for head_size in HEAD_SIZES:
        torch._dynamo.reset()
        variants = _variants()
        for length in LENGTHS:
            row = {"name": f"length {length}, head size {head_size}", "length": length, "head size": head_size}
            for name, (dtype, function) in variants.items():
                row |= {f"{name} {what}": x for what, x in _seen(function, length, head_size, dtype).items()}
            rows.append(row)
            print({key: round(x, 1) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


def _variants() -> dict[str, tuple[torch.dtype, Callable]]:
    bf16 = torch.bfloat16
    return {
        "plain fp32": (torch.float32, _plain),
        "plain": (bf16, _plain),
        "compiled": (bf16, torch.compile(_plain)),
        "sdpa": (bf16, scaled_dot_product_attention),
        "ours": (bf16, attention),
    }


def _plain(q, k, v) -> torch.Tensor:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v


def _seen(function: Callable, length: int, head_size: int, dtype: torch.dtype) -> dict[str, float]:
    q, k, v, do = (torch.randn(BATCH, 1, length, head_size, device="cuda", dtype=dtype) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def forward() -> torch.Tensor:
        return function(*leaves)

    torch.autograd.grad(forward(), leaves, do)  # compiles
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o = forward()
    held = torch.cuda.memory_allocated() - before
    torch.autograd.grad(o, leaves, do)
    most = torch.cuda.max_memory_allocated() - before
    o = forward()
    fast = {"cold": False, "precision": 0.02, "max_seconds": 0.08}
    return {
        "forward us": time_gpu(forward, **fast).us,
        "backward us": time_gpu(lambda: torch.autograd.grad(o, leaves, do, retain_graph=True), **fast).us,
        "MiB held": held / MIB,
        "MiB at most": most / MIB,
    }
