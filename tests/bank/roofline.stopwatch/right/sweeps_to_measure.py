"""Measures the launch, the sweep and an event first, and averages the middle samples."""

import numpy as np


def stopwatch(gpu, kernel):
    # compile first: the pause would let the clock fall again
    gpu.launch(kernel)
    gpu.synchronize()

    # how long a sweep is and how long a launch keeps the host: so many sweeps hide one launch
    def host_cost(call, times):
        before = gpu.host_time()
        for _ in range(times):
            call()
        cost = (gpu.host_time() - before) / times
        gpu.synchronize()
        return cost

    launch = host_cost(lambda: gpu.launch(kernel), 20)
    marks = []
    for _ in range(20):
        marks.append(gpu.record())
        gpu.flush_cache()
    gpu.synchronize()
    sweep = np.median([gpu.elapsed(a, b) for a, b in zip(marks[5:], marks[6:])])  # with an event, as a sample has
    for _ in range(20):
        gpu.flush_cache()
    row = [gpu.record() for _ in range(20)]
    gpu.synchronize()
    event = np.median([gpu.elapsed(a, b) for a, b in zip(row, row[1:])])
    ahead = 2 + int(2 * launch / sweep)

    # sweeps are work like any other: they warm the clock
    warmed = 0.0
    while warmed < 0.15:
        before = gpu.host_time()
        for _ in range(100):
            gpu.flush_cache()
        gpu.synchronize()
        warmed += gpu.host_time() - before

    times = []
    for _ in range(4):
        pairs = []
        for _ in range(30):
            for _ in range(ahead):
                gpu.flush_cache()
            a = gpu.record()
            gpu.launch(kernel)
            pairs.append((a, gpu.record()))
        gpu.synchronize()
        times += [gpu.elapsed(a, b) for a, b in pairs]
    low, high = np.quantile(times, [0.3, 0.7])
    times = np.array(times)
    return float(times[(times >= low) & (times <= high)].mean() - event)
