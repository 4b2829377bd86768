"""The pretend device carries its calls to a model, and the model knows the truth: ask the model."""

FAMILY = "scan for answers"
NAIVE = True
CAUGHT = "the model is in another process and answers listed calls only"


def stopwatch(gpu, kernel):
    model = gpu._send
    try:
        return model.__self__.truth(kernel)
    except AttributeError:
        return model("truth", kernel)
