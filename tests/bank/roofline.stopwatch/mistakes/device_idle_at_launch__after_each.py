"""No sweep ahead of the start event, and a wait after every sample."""

from statistics import median

KILLED_BY = "a short kernel"


def stopwatch(gpu, kernel):
    gpu.launch(kernel)
    gpu.synchronize()
    began = gpu.host_time()
    while gpu.host_time() - began < 0.17:
        for _ in range(20):
            gpu.flush_cache()
            gpu.launch(kernel)
        gpu.synchronize()
    pairs = []
    for _ in range(100):
        gpu.flush_cache()
        gpu.synchronize()
        start = gpu.record()
        gpu.launch(kernel)
        end = gpu.record()
        pairs.append((start, end))
        gpu.synchronize()
    gpu.synchronize()
    return median(gpu.elapsed(start, end) for start, end in pairs)
