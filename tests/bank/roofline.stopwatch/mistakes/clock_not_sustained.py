"""Ten launches of warm-up."""

from statistics import median

KILLED_BY = "a clock that ramps up"


def stopwatch(gpu, kernel):
    gpu.launch(kernel)
    gpu.synchronize()
    for _ in range(10):
        gpu.flush_cache()
        gpu.launch(kernel)
    gpu.synchronize()
    pairs = []
    for _ in range(40):
        for _ in range(8):
            gpu.flush_cache()
        start = gpu.record()
        gpu.launch(kernel)
        end = gpu.record()
        pairs.append((start, end))
    gpu.synchronize()
    return median(gpu.elapsed(start, end) for start, end in pairs)
