"""The host's clock around a loop of launches."""

KILLED_BY = "a long kernel"


def stopwatch(gpu, kernel):
    for _ in range(10):
        gpu.launch(kernel)
    start = gpu.host_time()
    for _ in range(100):
        gpu.launch(kernel)
    return (gpu.host_time() - start) / 100
