"""Compile, warm up by time, cold samples behind several sweeps, median; less what an empty pair of events takes."""

from statistics import median


def stopwatch(gpu, kernel):
    gpu.launch(kernel)
    gpu.synchronize()
    began = gpu.host_time()
    while gpu.host_time() - began < 0.17:
        for _ in range(20):
            gpu.flush_cache()
            gpu.launch(kernel)
        gpu.synchronize()
    empty = []
    for _ in range(20):
        gpu.flush_cache()
        empty.append((gpu.record(), gpu.record()))
    pairs = []
    for _ in range(100):
        for _ in range(8):
            gpu.flush_cache()
        start = gpu.record()
        gpu.launch(kernel)
        end = gpu.record()
        pairs.append((start, end))
    gpu.synchronize()
    events = median(gpu.elapsed(start, end) for start, end in empty)
    return median(gpu.elapsed(start, end) for start, end in pairs) - events
