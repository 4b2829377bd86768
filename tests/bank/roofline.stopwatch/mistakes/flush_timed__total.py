"""Sweep and launch in a loop, one total by the host's clock."""

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
    times = []
    for _ in range(20):
        start = gpu.host_time()
        for _ in range(20):
            gpu.flush_cache()
            gpu.launch(kernel)
        gpu.synchronize()
        times.append((gpu.host_time() - start) / 20)
    return median(times)
