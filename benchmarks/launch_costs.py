"""python -m benchmarks.launch_costs: what a call of each public kernel costs the host, a JSON line each.

Shapes are so small that the device is always done first: a call's time is that of Python, of Triton's launcher and of
the driver. Medians of rounds in turn over all calls, so that a slower moment of the machine meets all of them alike.
"""

import json
import time
from collections.abc import Callable
from statistics import median

import torch

from course_lib.device import DEVICE, machine
from course_lib.kernels.add_norm import add_norm
from course_lib.kernels.attention import attention
from course_lib.kernels.attention.backward import backward
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.linear_gelu import linear_gelu, linear_gelu_grouped, linear_gelu_persistent
from course_lib.kernels.matmul import matmul
from course_lib.kernels.mx import mx_linear, quantize
from course_lib.kernels.rope import Tables, rope, rope_

__all__ = ["calls", "measured"]

ROUNDS, CALLS = 41, 100


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)


def calls() -> dict[str, Callable[[], object]]:
    found = {}
    for D, heads, kv_heads in ((64, 4, 4), (72, 4, 2)):
        q, k, v = (_random(1, h, 64, D) for h in (heads, kv_heads, kv_heads))
        o, l = forward(q, k, v, True, 0.1)
        found |= {
            f"attention forward, head size {D}": lambda q=q, k=k, v=v: forward(q, k, v, True, 0.1),
            f"attention backward, head size {D}": lambda q=q, k=k, v=v, o=o, l=l: backward(o, q, k, v, o, l, True, 0.1),
            f"attention, head size {D}": lambda q=q, k=k, v=v: attention(q, k, v, causal=True),
        }
    q, k = _random(1, 4, 16, 64), _random(1, 2, 16, 64)
    angle = torch.arange(16.0)[:, None] / torch.arange(1.0, 33.0)
    tables = Tables(angle.cos().to(DEVICE), angle.sin().to(DEVICE))
    positions = torch.arange(16, device=DEVICE)[None]
    x, s, weight, bias = (_random(*shape) for shape in ((16, 128), (16, 128), (128,), (128,)))
    w, hidden = _random(256, 128), _random(256)
    N, K = (512, 2048) if DEVICE == "cuda" else (16, 64)
    held, one, some = quantize(_random(N, K)), _random(1, K), _random(16, K)
    needs = x.clone().requires_grad_()
    y, total = add_norm(needs, s, weight, bias)
    return found | {
        "rope": lambda: rope(q, k, tables),
        "rope with positions": lambda: rope(q, k, tables, positions=positions),
        "rope_": lambda: rope_(q, k, tables),
        "add_norm": lambda: add_norm(x, s, weight, bias),
        "add_norm backward": lambda: torch.autograd.grad((y, total), needs, (x, s), retain_graph=True),
        "linear_gelu": lambda: linear_gelu(x, w, hidden),
        "linear_gelu_grouped": lambda: linear_gelu_grouped(x, w, hidden),
        "linear_gelu_persistent": lambda: linear_gelu_persistent(x, w, hidden),
        "matmul": lambda: matmul(x, w.T),
        "mx_linear, 1 row": lambda: mx_linear(one, held),
        "mx_linear, 16 rows": lambda: mx_linear(some, held),
    }


def _batch(call: Callable[[], object], count: int) -> float:
    """Seconds of the host a call."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def measured(rounds: int = ROUNDS, count: int = CALLS) -> list[dict]:
    every = calls()
    for call in every.values():  # compiled and warmed up before anything is timed
        _batch(call, min(count, 20))
    seconds: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, call in every.items():
            seconds[name].append(_batch(call, count))
    return [
        {"name": name, "us": round(median(taken) * 1e6, 2), "least": round(min(taken) * 1e6, 2)}
        for name, taken in seconds.items()
    ]


def main() -> None:
    print(json.dumps({"machine": machine().name, "torch": torch.__version__}))
    for row in measured():
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
