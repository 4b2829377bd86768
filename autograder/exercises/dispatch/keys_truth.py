"""The rule for the keys of a call, and the rules that people write: one part overridden each."""

from __future__ import annotations

BACKENDS = {"meta": "Meta", "cpu": "CPU"}  # highest first
ORDER = (  # kinds of keys, highest priority first
    "PythonTLSSnapshot",
    "Autocast",
    "Autograd",
    "ADInplaceOrView",
    "Python",
    "BackendSelect",
    "Dense",
)
MODE = {"Python", "PythonTLSSnapshot"}


class Rule:
    order = ORDER
    always = frozenset({"BackendSelect", "ADInplaceOrView"})

    def met(self, tensors, around) -> list[str]:
        kinds, exclude = self.included(around), self.excluded(around)
        for tensor in tensors:
            kinds = kinds | self.of(tensor)
        kinds = self.of_all(kinds, tensors, around) - exclude
        return self.named([kind for kind in self.order if kind in kinds], {tensor["device"] for tensor in tensors})

    def of_all(self, kinds, tensors, around):
        return kinds

    def of(self, tensor) -> set[str]:
        kinds = {"Dense", "Autocast"} if tensor["device"] == "cpu" else {"Dense"}
        kinds |= set() if self.is_inference(tensor) else {"Autograd", "ADInplaceOrView"}
        return kinds | (MODE if "wrapped" in tensor["made"] else set())

    def is_inference(self, tensor) -> bool:
        made = tensor["made"]
        return "inference" in made and "clone" not in made and "wrapped" not in made

    def included(self, around) -> set[str]:
        kinds, modes = set(self.always), 0
        for name in around:
            kinds = self.include(kinds, name)
            modes += name == "dispatch mode"
        return kinds | MODE if modes else kinds

    def include(self, kinds: set[str], name: str) -> set[str]:
        return kinds - {"ADInplaceOrView"} if name == "inference_mode" else kinds

    def excluded(self, around) -> set[str]:
        kinds = {"Autocast"}
        for name in around:
            kinds = self.exclude(kinds, name)
        return kinds

    def exclude(self, kinds: set[str], name: str) -> set[str]:
        if name in ("inference_mode", "below autograd"):
            return kinds | {"Autograd"}
        if name in ("autocast", "autocast(False)"):
            return kinds - {"Autocast"} if name == "autocast" else kinds | {"Autocast"}
        return kinds | set(ORDER[: ORDER.index("Python")]) if name == "handler" else kinds

    def named(self, kinds: list[str], devices: set[str]) -> list[str]:
        backend = next((BACKENDS[device] for device in BACKENDS if device in devices), "")
        return [_name(kind, backend) for kind in kinds]


def _name(kind: str, backend: str) -> str:
    return {"Dense": backend, "Autocast": "AutocastCPU", "Autograd": f"Autograd{backend}"}.get(kind, kind)


# ------------------------------------------------------------------------------------------- what people write


class OnlyWhereRequired(Rule):
    def of(self, tensor):
        return super().of(tensor) - (set() if tensor["requires_grad"] else {"Autograd"})


class NoGradExcludes(Rule):
    def exclude(self, kinds, name):
        kinds = super().exclude(kinds, name)
        return kinds | {"Autograd"} if name == "no_grad" else kinds


class InferenceTensorsAlike(Rule):
    def is_inference(self, tensor):
        return False


class ViewsAreNew(Rule):
    def is_inference(self, tensor):
        return super().is_inference(tensor) and "view" not in tensor["made"]


class ClonesStay(Rule):
    def is_inference(self, tensor):
        return "inference" in tensor["made"] and "wrapped" not in tensor["made"]


class WrappersStay(Rule):
    def is_inference(self, tensor):
        return "inference" in tensor["made"] and "clone" not in tensor["made"]


class AllStay(Rule):
    def is_inference(self, tensor):
        return "inference" in tensor["made"]


class InferenceModeIgnored(Rule):
    def include(self, kinds, name):
        return kinds if name == "inference_mode" else super().include(kinds, name)

    def exclude(self, kinds, name):
        return kinds if name == "inference_mode" else super().exclude(kinds, name)


class InferenceModeExcludesBoth(Rule):
    def exclude(self, kinds, name):
        kinds = super().exclude(kinds, name)
        return kinds | {"ADInplaceOrView"} if name == "inference_mode" else kinds


class InferenceModeKeepsViews(Rule):
    """Autograd is excluded, and ADInplaceOrView is included all the same."""

    def include(self, kinds, name):
        return kinds if name == "inference_mode" else super().include(kinds, name)


class ViewsOfTensorsOnly(Rule):
    always = frozenset({"BackendSelect"})


class EndsIgnored(Rule):
    """What switches something off again is passed over."""

    def exclude(self, kinds, name):
        return kinds if _ends(name) else super().exclude(kinds, name)


class EndsWin(Rule):
    """Where something is switched off anywhere, it is off."""

    def excluded(self, around):
        return super().excluded(sorted(around, key=_ends))


def _ends(name: str) -> bool:
    return name.endswith("(False)")


class AutocastAlways(Rule):
    def exclude(self, kinds, name):
        return super().exclude(kinds, name) - {"Autocast"}

    def excluded(self, around):
        return super().excluded(around) - {"Autocast"}


class AutocastNever(Rule):
    def of(self, tensor):
        return super().of(tensor) - {"Autocast"}


class AutocastIncludes(Rule):
    def of_all(self, kinds, tensors, around):
        return kinds | {"Autocast"}


class Unincluded(Rule):
    always = frozenset({"ADInplaceOrView"})


class WithoutSnapshot(Rule):
    def excluded(self, around):
        return super().excluded(around) | {"PythonTLSSnapshot"}


class ModeIgnored(Rule):
    def included(self, around):
        return super().included([name for name in around if name != "dispatch mode"])


class HandlerIgnored(Rule):
    def exclude(self, kinds, name):
        return kinds if name == "handler" else super().exclude(kinds, name)


class HandlerEndsModes(Rule):
    """In a handler no mode is left."""

    def included(self, around):
        last = max((n for n, name in enumerate(around) if name == "handler"), default=-1)
        kept = [name for n, name in enumerate(around) if name != "dispatch mode" or n > last]
        return super().included(kept)


class HandlerInItsMode(Rule):
    def included(self, around):
        return super().included(around) | (MODE if "handler" in around else set())


class WrapperIgnored(Rule):
    def of(self, tensor):
        return super().of(tensor) - MODE


class WrapperOnly(Rule):
    def of(self, tensor):
        return MODE if "wrapped" in tensor["made"] else super().of(tensor)


class FirstTensorOnly(Rule):
    def met(self, tensors, around):
        return super().met(tensors[:1], around)


class CommonOnly(Rule):
    def of_all(self, kinds, tensors, around):
        common = set.intersection(*map(self.of, tensors)) if tensors else set()
        return self.included(around) | common


class BothBackends(Rule):
    def named(self, kinds, devices):
        backends = [BACKENDS[device] for device in BACKENDS if device in devices]
        names = [_name(kind, backend) for kind in kinds for backend in backends or [""]]
        return list(dict.fromkeys(names))


class BackendOfEachKind(Rule):
    """The highest backend among the tensors that bring the kind, not among all."""

    def met(self, tensors, around):
        names = super().met(tensors, around)
        bringing = {tensor["device"] for tensor in tensors if "Autograd" in self.of(tensor)}
        backend = next((BACKENDS[device] for device in BACKENDS if device in bringing), "")
        return [f"Autograd{backend}" if name.startswith("Autograd") else name for name in names]


class LowerBackend(Rule):
    def named(self, kinds, devices):
        return super().named(kinds, {"cpu"} if "cpu" in devices else devices)


class ExcludeFirst(Rule):
    """What the thread includes is added last."""

    def met(self, tensors, around):
        kinds = set()
        for tensor in tensors:
            kinds |= self.of(tensor)
        kinds = (kinds - self.excluded(around)) | self.included(around)
        return self.named([kind for kind in self.order if kind in kinds], {tensor["device"] for tensor in tensors})


class LowestFirst(Rule):
    order = ORDER[::-1]


def ordered(*order: str) -> type[Rule]:
    return type("Ordered", (Rule,), {"order": order})


def moved(kind: str, above: str) -> type[Rule]:
    rest = [other for other in ORDER if other != kind]
    at = rest.index(above)
    return ordered(*rest[:at], kind, *rest[at:])
