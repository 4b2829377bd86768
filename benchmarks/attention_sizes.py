"""Time and memory of attention over lengths and head sizes: 8 sequences of one head, not causal.

The plain formula in fp32 and in bf16, the same under torch.compile (which meets changing lengths and so makes its
kernels for any), SDPA as torch chooses, and ours. Forward and backward; MiB that the forward pass leaves held, its
result included, and the most that was held at once in both passes, above the inputs.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch._functorch import config as donated_buffers
from torch.nn.functional import scaled_dot_product_attention

from course_lib.kernels.attention import attention
from course_lib.timing import time_gpu

LENGTHS, HEAD_SIZES = tuple(2**i for i in range(8, 15)), (16, 32, 64, 128)
BATCH = 8
MIB = 2**20


def run() -> list[dict]:
    rows = []
    for head_size in HEAD_SIZES:
        held = list(_look(_memory, head_size))
        with donated_buffers.patch(donated_buffer=False):  # one graph is kept, and its backward runs again and again
            timed = list(_look(_times, head_size))
        for length, times, memory in zip(LENGTHS, timed, held, strict=True):
            row = {"name": f"length {length}, head size {head_size}", "length": length, "head size": head_size}
            rows.append(row | times | memory)
            print({key: round(x, 1) if isinstance(x, float) else x for key, x in rows[-1].items()}, flush=True)
    return rows


def _look(what: Callable, head_size: int) -> Iterator[dict[str, float]]:
    """Of one length after the other, as a program that meets them would."""
    torch._dynamo.reset()
    variants = _variants()
    for length in LENGTHS:
        row = {}
        for name, (dtype, function) in variants.items():
            q, k, v, do = (torch.randn(BATCH, 1, length, head_size, device="cuda", dtype=dtype) for _ in range(4))
            leaves = [x.requires_grad_() for x in (q, k, v)]
            torch.autograd.grad(function(*leaves), leaves, do)  # compiles
            row |= {f"{name} {key}": x for key, x in what(partial(function, *leaves), leaves, do).items()}
        yield row


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


def _memory(forward: Callable, leaves: list, do: torch.Tensor) -> dict[str, float]:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o = forward()
    held = torch.cuda.memory_allocated() - before
    torch.autograd.grad(o, leaves, do)
    return {"MiB held": held / MIB, "MiB at most": (torch.cuda.max_memory_allocated() - before) / MIB}


def _times(forward: Callable, leaves: list, do: torch.Tensor) -> dict[str, float]:
    o = forward()
    fast = {"cold": False, "precision": 0.02, "max_seconds": 0.08}
    return {
        "forward us": time_gpu(forward, **fast).us,
        "backward us": time_gpu(lambda: torch.autograd.grad(o, leaves, do, retain_graph=True), **fast).us,
    }
