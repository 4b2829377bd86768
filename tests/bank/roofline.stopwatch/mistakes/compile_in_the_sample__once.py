"""A single launch between two events."""

KILLED_BY = "compilation"


def stopwatch(gpu, kernel):
    gpu.flush_cache()
    start = gpu.record()
    gpu.launch(kernel)
    end = gpu.record()
    gpu.synchronize()
    return gpu.elapsed(start, end)
