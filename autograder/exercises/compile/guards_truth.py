"""The rule that torch follows about guards, and its known distortions, one method each."""

from __future__ import annotations


class Rule:
    """What torch 2.11 to 2.13 does; tests compare it with torch. A distortion overrides one method."""

    def __init__(self, dynamic, marked, limit):
        self.dynamic, self.marked, self.limit = dynamic, marked, limit
        self.codes: list[dict] = []
        self.seen: list | None = None  # size of each dimension at the last compilation, None once it has changed

    def compiles(self, calls) -> list[bool]:
        return [self.one(call) for call in calls]

    def one(self, call) -> bool:
        if any(self.fits(code, call) for code in self.usable(call)):
            return False
        if self.full(call):
            return False
        self.learn(call)
        dims = [self.dimension(i, size) for i, size in enumerate(call["shape"])]
        self.codes.append({"kind": self.kind(call), "dims": dims, "shape": call["shape"]})
        return True

    def usable(self, call) -> list[dict]:
        return self.codes

    def full(self, call) -> bool:
        return len(self.codes) >= self.limit

    def kind(self, call):
        return call["dtype"], call["needs_grad"]

    def learn(self, call) -> None:
        shape = call["shape"]
        self.seen = list(shape) if self.seen is None else [a if a == b else None for a, b in zip(self.seen, shape)]

    def dimension(self, i: int, size: int) -> str:
        """fixed: this size only; free: any size; tied: any, but equal where sizes were equal."""
        if self.special(size):
            return "fixed"
        if i in self.marked:
            return "free"
        if self.dynamic is False:
            return "fixed"
        if self.changed(i):
            return "free"
        return "tied" if self.dynamic else "fixed"

    def special(self, size: int) -> bool:
        return size < 2

    def changed(self, i: int) -> bool:
        return self.seen[i] is None

    def fits(self, code, call) -> bool:
        if code["kind"] != self.kind(call):
            return False
        tied: dict[int, int] = {}
        for dim, then, now in zip(code["dims"], code["shape"], call["shape"], strict=True):
            if then != now if dim == "fixed" else self.special(now):
                return False
            if dim == "tied" and tied.setdefault(then, now) != now:
                return False
        return True


class AlwaysStatic(Rule):
    def dimension(self, i, size):
        return "fixed"


class StaticUnlessAsked(Rule):
    def changed(self, i):
        return False


class DynamicAtOnce(Rule):
    def changed(self, i):
        return self.dynamic is None or super().changed(i)


class DynamicFromTheThird(Rule):
    """A second size is compiled as fixed too."""

    def changed(self, i):
        return super().changed(i) and len(self.codes) > 1


class WholeShape(Rule):
    def changed(self, i):
        return None in self.seen


class WholeShapeMarked(Rule):
    def dimension(self, i, size):
        return "free" if self.marked and not self.special(size) else super().dimension(i, size)


class MarksForgotten(Rule):
    def dimension(self, i, size):
        self.marked = []
        return super().dimension(i, size)


class FalseWins(Rule):
    def dimension(self, i, size):
        return "fixed" if self.dynamic is False else super().dimension(i, size)


class NothingSpecial(Rule):
    def special(self, size):
        return False


class OnlyZeroSpecial(Rule):
    def special(self, size):
        return size == 0


class OnlyOneSpecial(Rule):
    def special(self, size):
        return size == 1


class NeverTied(Rule):
    def dimension(self, i, size):
        return super().dimension(i, size).replace("tied", "free")


class AlwaysTied(Rule):
    def dimension(self, i, size):
        return super().dimension(i, size).replace("free", "tied")


class Unlimited(Rule):
    def full(self, call):
        return False


class LimitOffByOne(Rule):
    """The limit taken for the number of compilations after the first."""

    def full(self, call):
        return len(self.codes) > self.limit


class LimitOfEachType(Rule):
    def full(self, call):
        return sum(code["kind"] == self.kind(call) for code in self.codes) >= self.limit


class OldestThrownAway(Rule):
    def full(self, call):
        del self.codes[: max(0, len(self.codes) - self.limit + 1)]
        return False


class OnlyTheLast(Rule):
    def usable(self, call):
        return self.codes[-1:]

    def full(self, call):
        return len(self.codes) >= self.limit


class TypesAlike(Rule):
    def kind(self, call):
        return call["needs_grad"]


class GradientsAlike(Rule):
    def kind(self, call):
        return call["dtype"]


class FalseIgnored(Rule):
    def __init__(self, dynamic, marked, limit):
        super().__init__(None if dynamic is False else dynamic, marked, limit)


class LearnsFromEveryCall(Rule):
    """Sizes are remembered of calls that use compiled code too."""

    def one(self, call):
        self.learn(call)
        return super().one(call)


class LearntByType(Rule):
    def __init__(self, *settings):
        super().__init__(*settings)
        self.by_kind: dict = {}

    def learn(self, call):
        self.seen = self.by_kind.get(self.kind(call))
        super().learn(call)
        self.by_kind[self.kind(call)] = self.seen
