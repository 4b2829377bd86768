"""Measures how fast this machine is when it does one thing only: copying, multiplying, launching, cosines.

Use `course_lib.device.ceilings()`, which keeps the results of these measurements.
"""

import functools
import statistics
import time

import torch
import triton
import triton.language as tl

__all__ = ["in_a_graph", "on_gpu", "on_host"]

# Smaller copies pay for ramping up: an H200 copies 64 MB a seventh slower than 2 GiB.
COPY_BYTES = 2 << 30
# An H200 multiplies a sixth faster just after idle than once it meets its power cap.
SUSTAINED_S = 0.6
COS_BLOCK = 1024  # divides every size it is used with, so no mask is needed


@triton.jit
def _five_tensors_kernel(a_ptr, b_ptr, c_ptr, d_ptr, e_ptr):
    """Does nothing: what remains is what a launch costs."""
    pass


@triton.jit
def _cos_kernel(out_ptr, x_ptr, repeat, BLOCK: tl.constexpr):
    """out = cos(cos(...x)), repeat times: 8 bytes an element, repeat cosines."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    # Not unrolled: each cosine brings its rare slow path along, and 160 of them take 51 s to compile.
    for _ in range(repeat):
        x = tl.cos(x)
    tl.store(out_ptr + offs, x)


def on_gpu() -> dict:
    """Ceilings of the current CUDA device; about five seconds."""
    return {
        "bytes_per_s": _gpu_copy(),
        "flops_per_s": _gpu_matmul(),
        "launch_s": _gpu_launch(),
        "cos_per_s": _gpu_cos(),
    }


def _event_seconds(work, calls: int = 1) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


def _median_seconds(work, runs: int = 15, warm_up: int = 4) -> float:
    return statistics.median([_event_seconds(work) for _ in range(runs + warm_up)][warm_up:])


def _free_bytes() -> int:
    """Of the device, for this process, which may be held to a part of it."""
    free, total = torch.cuda.mem_get_info()
    allowed = int(torch.cuda.get_per_process_memory_fraction() * total)
    return min(free, allowed - torch.cuda.memory_allocated())


def _gpu_copy() -> float:
    size = min(COPY_BYTES, _free_bytes() // 8) // 256 * 256  # source and target together: a quarter of what is free
    source = torch.ones(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size / _median_seconds(lambda: target.copy_(source))


def _gpu_matmul() -> dict[str, float]:
    formats = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
    if torch.cuda.get_device_capability() < (8, 0):  # torch imitates bf16 there, many times slower
        del formats["bf16"]
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    try:
        rates = {}
        for name, dtype in formats.items():
            settings.fp32_precision = "tf32" if name == "tf32" else "ieee"
            rates[name] = _sustained_matmul(dtype)
        return rates
    finally:
        settings.fp32_precision = before


def _sustained_matmul(dtype: torch.dtype) -> float:
    """FLOP/s of a square product of random matrices, the power cap reached first."""
    n = 8192 if _free_bytes() > 4 << 30 else 4096
    # Random values, because zeros switch few transistors and run 15 % faster.
    a, b = (torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty_like(a)

    def multiply():
        torch.mm(a, b, out=out)

    multiply()
    once = _event_seconds(multiply, calls=2) / 2
    calls = max(2, round(SUSTAINED_S / once))
    _event_seconds(multiply, calls=max(1, calls // 2))
    return 2 * n**3 * calls / _event_seconds(multiply, calls)


def _gpu_launch() -> float:
    tensors = [torch.zeros(32, device="cuda") for _ in range(5)]
    _five_tensors_kernel[(1,)](*tensors)
    samples = []
    for _ in range(12):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(100):  # far below the launches that can queue, so the host never waits for the GPU
            _five_tensors_kernel[(1,)](*tensors)
        samples.append((time.perf_counter() - begin) / 100)
    torch.cuda.synchronize()
    return statistics.median(samples)


@functools.cache
def in_a_graph() -> float:
    """Seconds a small operation in a graph that is replayed: the device starts it, whatever the host does meanwhile."""
    x = torch.zeros(256, device="cuda")
    torch.sin(x, out=x)
    torch.cuda.synchronize()
    graph, operations = torch.cuda.CUDAGraph(), 480
    with torch.cuda.graph(graph):
        for _ in range(operations):
            torch.sin(x, out=x)
    graph.replay()
    # Several in a row: the first of them starts when the host has launched it.
    return statistics.median([_event_seconds(graph.replay, calls=8) / 8 for _ in range(15)]) / operations


def _gpu_cos() -> float:
    """Cosines a second from two chain lengths: the difference holds no bytes and no launch."""
    n = 1 << 24
    x = torch.rand(n, device="cuda")
    out = torch.empty_like(x)

    def seconds(repeat: int) -> float:
        return _median_seconds(lambda: _cos_kernel[(n // COS_BLOCK,)](out, x, repeat, BLOCK=COS_BLOCK))

    few, many = 32, 160
    return n * (many - few) / (seconds(many) - seconds(few))


def on_host() -> dict:
    """The same questions to the host's torch, on the interpreter tier; under two seconds."""
    source = torch.ones(64 << 20, dtype=torch.uint8)
    target = torch.empty_like(source)
    a, b = torch.randn(2, 768, 768).unbind()
    out = torch.empty_like(a)
    x = torch.rand(1 << 18)
    y = torch.empty_like(x)
    one = torch.zeros(1)
    return {
        "bytes_per_s": 2 * source.numel() / _host_seconds(lambda: target.copy_(source)),
        "flops_per_s": {"fp32": 2 * 768**3 / _host_seconds(lambda: torch.mm(a, b, out=out))},
        "launch_s": _host_seconds(lambda: one.add_(0)),
        "cos_per_s": x.numel() / _host_seconds(lambda: torch.cos(x, out=y)),
    }


def _host_seconds(work, budget_s: float = 0.3) -> float:
    """Median seconds of a call; short calls are timed in groups, because the clock itself costs 0.1 us."""
    work()
    begin = time.perf_counter()
    work()
    group = max(1, int(1e-3 / max(time.perf_counter() - begin, 1e-7)))
    samples, stop = [], time.perf_counter() + budget_s
    while time.perf_counter() < stop or len(samples) < 3:
        begin = time.perf_counter()
        for _ in range(group):
            work()
        samples.append((time.perf_counter() - begin) / group)
    return statistics.median(samples)
