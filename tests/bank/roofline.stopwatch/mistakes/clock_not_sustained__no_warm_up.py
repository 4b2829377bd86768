"""Trusts the median to drop the compilation."""

from statistics import median

KILLED_BY = "a clock that ramps up"


def batch(gpu, kernel, samples, head):
    """Cold times of some runs; the sweeps queued first keep the device busy while the host launches."""
    events = []
    for _ in range(head):
        gpu.flush_cache()
    for _ in range(samples):
        gpu.flush_cache()
        events.append(gpu.record())
        gpu.launch(kernel)
        events.append(gpu.record())
    gpu.synchronize()
    return [gpu.elapsed(events[i], events[i + 1]) for i in range(0, len(events), 2)]


def stopwatch(gpu, kernel):
    samples = []
    for _ in range(3):
        samples += batch(gpu, kernel, 20, 60)
    return median(samples)
