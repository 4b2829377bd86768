"""Batches behind a head start of sweeps, until their medians settle; every sample has an empty pair of its own."""

from statistics import median


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
        events.append(gpu.record())
    gpu.synchronize()
    rows = [events[i : i + 3] for i in range(0, len(events), 3)]
    return [gpu.elapsed(a, b) - gpu.elapsed(b, c) for a, b, c in rows]


def stopwatch(gpu, kernel):
    gpu.launch(kernel)
    gpu.synchronize()
    best, calm, began = float("inf"), 0, gpu.host_time()
    while calm < 4 and gpu.host_time() - began < 0.2:
        now = median(batch(gpu, kernel, 20, 60))
        calm = 0 if now < 0.99 * best else calm + 1
        best = min(best, now)
    samples = []
    for _ in range(6):
        samples += batch(gpu, kernel, 20, 60)
    return median(samples)
