"""Sets of kinds; the backend is put into the names at the end."""

ORDER = [
    "PythonTLSSnapshot",
    "Autocast",
    "Autograd",
    "ADInplaceOrView",
    "Python",
    "BackendSelect",
    "Dense",
]
OF_AUTOGRAD = {"Autograd", "ADInplaceOrView"}
OF_A_MODE = {"Python", "PythonTLSSnapshot"}


def kinds_of(tensor):
    kinds = set(OF_AUTOGRAD)
    for step in tensor["made"]:
        if step == "inference":
            kinds -= OF_AUTOGRAD
        elif step == "clone":
            kinds |= OF_AUTOGRAD
        elif step == "wrapped":
            kinds |= OF_AUTOGRAD | OF_A_MODE
    if tensor["device"] == "cpu":
        kinds.add("Autocast")
    kinds.add("Dense")
    return kinds


def state_of(around):
    include, exclude, modes = {"BackendSelect", "ADInplaceOrView"}, {"Autocast"}, 0
    for name in around:
        if name == "inference_mode":
            include -= {"ADInplaceOrView"}
            exclude |= {"Autograd"}
        elif name == "autocast":
            exclude -= {"Autocast"}
        elif name == "autocast(False)":
            exclude |= {"Autocast"}
        elif name == "below autograd":
            exclude |= {"Autograd"}
        elif name == "dispatch mode":
            modes += 1
        elif name == "handler":
            exclude |= set(ORDER[: ORDER.index("Python")])
    if modes:
        include |= OF_A_MODE
    return include, exclude


def full_name(kind, backend):
    if kind == "Autocast":
        return "AutocastCPU"
    if kind == "Dense":
        return backend
    return kind + backend if kind == "Autograd" else kind


def keys(tensors, around):
    include, exclude = state_of(around)
    found = set(include)
    for tensor in tensors:
        found |= kinds_of(tensor)
    found -= exclude
    devices = {tensor["device"] for tensor in tensors}
    backend = "Meta" if "meta" in devices else "CPU" if devices else ""
    return [full_name(kind, backend) for kind in ORDER if kind in found]
