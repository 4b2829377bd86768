"""The key of autograd is that of the tensors that bring it."""

KILLED_BY = "an inference tensor on meta"

ORDER = [
    "PythonTLSSnapshot",
    "Autocast",
    "Autograd",
    "ADInplaceOrView",
    "Conjugate",
    "Functionalize",
    "Python",
    "BackendSelect",
    "Sparse",
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
            kinds -= {"Conjugate"}
        elif step == "conj":
            kinds.add("Conjugate")
        elif step == "functional":
            kinds.add("Functionalize")
        elif step == "wrapped":
            kinds |= OF_AUTOGRAD | OF_A_MODE
    if tensor["device"] == "cpu":
        kinds.add("Autocast")
    kinds.add("Sparse" if tensor["layout"] == "sparse" else "Dense")
    return kinds


def state_of(around):
    include, exclude, modes = {"BackendSelect", "ADInplaceOrView"}, {"Autocast"}, 0
    for name in around:
        if name == "inference_mode":
            include -= {"ADInplaceOrView"}
            exclude |= {"Autograd"}
        elif name == "inference_mode(False)":
            include |= {"ADInplaceOrView"}
            exclude -= {"Autograd"}
        elif name == "autocast":
            exclude -= {"Autocast"}
        elif name == "autocast(False)":
            exclude |= {"Autocast"}
        elif name == "below autograd":
            exclude |= {"Autograd"}
        elif name == "functionalization":
            include |= {"Functionalize"}
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
    return kind + backend if kind in ("Autograd", "Sparse") else kind


def keys(tensors, around):
    include, exclude = state_of(around)
    found = set(include)
    for tensor in tensors:
        found |= kinds_of(tensor)
    found -= exclude
    names = []
    for kind in ORDER:
        if kind in found:
            bringing = [t for t in tensors if kind != "Autograd" or kind in kinds_of(t)]
            devices = {tensor["device"] for tensor in bringing}
            backend = next((name for name in ("Meta", "CPU") if name.lower() in devices), "")
            names.append(full_name(kind, backend))
    return names
