"""One total over many cold runs, less as many sweeps."""

from statistics import median

KILLED_BY = "other people's work"


def stopwatch(gpu, kernel):
    gpu.launch(kernel)
    gpu.synchronize()
    began = gpu.host_time()
    while gpu.host_time() - began < 0.17:
        for _ in range(20):
            gpu.flush_cache()
            gpu.launch(kernel)
        gpu.synchronize()
    ahead = 100
    for _ in range(ahead):
        gpu.flush_cache()
    total = 0.0
    pairs = []
    for _ in range(150):
        for _ in range(6):
            gpu.flush_cache()
        pairs.append((gpu.record(), gpu.launch(kernel), gpu.record()))
    gpu.synchronize()
    for start, _, end in pairs:
        total += gpu.elapsed(start, end)
    return total / len(pairs)
