"""The host's clock around launch and wait."""

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
    for _ in range(100):
        gpu.flush_cache()
        gpu.synchronize()
        start = gpu.host_time()
        gpu.launch(kernel)
        gpu.synchronize()
        times.append(gpu.host_time() - start)
    return median(times)
