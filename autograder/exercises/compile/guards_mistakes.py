"""How people misjudge guards: the rule that torch follows, and its known distortions, one method each."""

from __future__ import annotations

from autograder.exercise import Mistake


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


def _says(rule: type[Rule]):
    return lambda v: {"compiles": rule(v["dynamic"], v["marked"], v["limit"]).compiles(v["calls"])}


def _opposite(v):
    return {"compiles": [not said for said in _says(Rule)(v)["compiles"]]}


# A mistake that goes wrong in few situations comes before one that goes wrong in many: of two that explain as many
# failures, the first is named.
MISTAKES = (
    Mistake(
        "compiled_to_find_out",
        "The rule tried to use the compiler. It is judged where there is none: say what torch would do.",
        sign=lambda e: e.raised("torch._dynamo"),
    ),
    Mistake(
        "opposite",
        "True and False are the wrong way round: True is for a call that compiles.",
        answer=_opposite,
    ),
    Mistake(
        "false_beats_marks",
        "dynamic=False does not undo a mark: a marked dimension is free all the same.",
        answer=_says(FalseWins),
    ),
    Mistake(
        "limit_of_each_type",
        "The limit is one for the function: compilations for other types and with gradients count too.",
        answer=_says(LimitOfEachType),
    ),
    Mistake(
        "limit_off_by_one",
        "The limit counts all compilations of the function, the first one too.",
        answer=_says(LimitOffByOne),
    ),
    Mistake(
        "oldest_thrown_away",
        "At the limit nothing is thrown away: what is compiled stays in use, and new situations run without compiling.",
        answer=_says(OldestThrownAway),
    ),
    Mistake(
        "limit_forgotten",
        "Past the recompile limit torch does not compile this function any more: it runs without.",
        answer=_says(Unlimited),
    ),
    Mistake(
        "whole_shape_marked",
        "A mark frees the dimension that it names and no other.",
        answer=_says(WholeShapeMarked),
    ),
    Mistake(
        "marks_forgotten",
        "A dimension given to mark_dynamic is free from the first compilation on, whatever `dynamic` says.",
        answer=_says(MarksForgotten),
    ),
    Mistake(
        "learns_from_every_call",
        "What torch knows about changing sizes it learns when it compiles. Calls that use what is compiled teach it "
        "nothing.",
        answer=_says(LearnsFromEveryCall),
    ),
    Mistake(
        "equal_sizes_not_tied",
        "With dynamic=True sizes that are equal at the compilation get one symbol: the code holds only while they stay "
        "equal.",
        answer=_says(NeverTied),
    ),
    Mistake(
        "equal_sizes_always_tied",
        "Equal sizes share a symbol only where dynamic=True made them free. A dimension that is marked, or free "
        "because it changed, has a symbol of its own.",
        answer=_says(AlwaysTied),
    ),
    Mistake(
        "whole_shape_becomes_dynamic",
        "Only the dimension that changed becomes free. The other one still holds its size until it changes too.",
        answer=_says(WholeShape),
    ),
    Mistake(
        "false_ignored",
        "dynamic=False learns nothing: a size that is not marked is a number in every compilation.",
        answer=_says(FalseIgnored),
    ),
    Mistake(
        "learnt_by_type",
        "What torch has learnt about changing sizes belongs to the argument, whatever its type: the first compilation "
        "for another type leaves those dimensions free already.",
        answer=_says(LearntByType),
    ),
    Mistake(
        "only_zero_special",
        "Not only 0 but also 1 is always compiled for itself: a size of 1 broadcasts.",
        answer=_says(OnlyZeroSpecial),
    ),
    Mistake(
        "only_one_special",
        "Not only 1 but also 0 is always compiled for itself: an empty tensor takes other paths.",
        answer=_says(OnlyOneSpecial),
    ),
    Mistake(
        "zero_and_one_not_special",
        "Code for a free dimension holds for sizes from 2 on. 0 and 1 are always compiled for themselves.",
        answer=_says(NothingSpecial),
    ),
    Mistake(
        "only_the_last_is_kept",
        "All compiled code is kept: a call may use what was compiled before the last compilation.",
        answer=_says(OnlyTheLast),
    ),
    Mistake(
        "types_alike",
        "The type is guarded: code for float32 does not hold for float64.",
        answer=_says(TypesAlike),
    ),
    Mistake(
        "gradients_alike",
        "Whether a tensor needs a gradient is guarded: each of the two has code of its own.",
        answer=_says(GradientsAlike),
    ),
    Mistake(
        "dynamic_from_the_third",
        "The second size of a dimension is enough: the compilation that it causes leaves the dimension free already.",
        answer=_says(DynamicFromTheThird),
    ),
    Mistake(
        "dynamic_at_once",
        "With dynamic=None the first compilation is for one shape: a dimension becomes free only when it has changed.",
        answer=_says(DynamicAtOnce),
    ),
    Mistake(
        "never_learns",
        "With dynamic=None every new shape was said to compile. A dimension whose size has changed becomes "
        "free when torch compiles again.",
        answer=_says(StaticUnlessAsked),
    ),
    Mistake(
        "always_static",
        "Every new shape was said to compile. With dynamic=None a dimension whose size has changed becomes "
        "free when torch compiles again, and with dynamic=True all are free at once.",
        answer=_says(AlwaysStatic),
    ),
)
