"""Two events around a hundred launches."""

from statistics import median

KILLED_BY = "a cache that stays warm"


def stopwatch(gpu, kernel):
    gpu.launch(kernel)
    gpu.synchronize()
    began = gpu.host_time()
    while gpu.host_time() - began < 0.17:
        for _ in range(20):
            gpu.flush_cache()
            gpu.launch(kernel)
        gpu.synchronize()
    times = []
    for _ in range(20):
        for _ in range(50):
            gpu.flush_cache()
        start = gpu.record()
        for _ in range(10):
            gpu.launch(kernel)
        end = gpu.record()
        gpu.synchronize()
        times.append(gpu.elapsed(start, end) / 10)
    return median(times)
