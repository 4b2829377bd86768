"""Bits, as the machine has them: kinds in one number, backends in another."""

NAMES = (
    "{}",
    "BackendSelect",
    "Python",
    "ADInplaceOrView",
    "Autograd{}",
    "AutocastCPU",
    "PythonTLSSnapshot",
)
DENSE, SELECT, PYTHON, VIEW, GRAD, CAST, SNAPSHOT = (1 << n for n in range(len(NAMES)))
CPU, META = 1, 2


def keys(tensors, around):
    kinds, backends = 0, 0
    for one in tensors:
        mine, here = bits(one)
        kinds |= mine
        backends |= here
    backend = "Meta" if backends & META else "CPU" if backends else ""
    include, exclude = SELECT | VIEW, CAST
    for name in around:
        include, exclude = entered(name, include, exclude)
    kinds = (kinds | include) & ~exclude
    return [name.format(backend) for n, name in reversed(list(enumerate(NAMES))) if kinds >> n & 1]


def bits(tensor):
    made = tensor["made"]
    new = "inference" not in made or "clone" in made or "wrapped" in made
    kinds = DENSE | (GRAD | VIEW) * new
    kinds |= CAST * (tensor["device"] == "cpu")
    kinds |= (PYTHON | SNAPSHOT) * ("wrapped" in made)
    return kinds, META if tensor["device"] == "meta" else CPU


def entered(name, include, exclude):
    if name == "inference_mode":
        return include & ~VIEW, exclude | GRAD
    if name == "autocast":
        return include, exclude & ~CAST
    if name == "autocast(False)":
        return include, exclude | CAST
    if name == "below autograd":
        return include, exclude | GRAD
    if name == "dispatch mode":
        return include | PYTHON | SNAPSHOT, exclude
    if name == "handler":
        return include, exclude | -(PYTHON << 1)
    return include, exclude
