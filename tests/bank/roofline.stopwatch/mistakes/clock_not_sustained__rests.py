"""Lets the device cool down between samples."""

from statistics import median

KILLED_BY = "a clock that ramps up"


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
    for _ in range(50):
        for _ in range(8):
            gpu.flush_cache()
        start = gpu.record()
        gpu.launch(kernel)
        end = gpu.record()
        pairs.append((start, end))
        gpu.synchronize()
        gpu.sleep(0.014)
    gpu.synchronize()
    return median(gpu.elapsed(start, end) for start, end in pairs)
