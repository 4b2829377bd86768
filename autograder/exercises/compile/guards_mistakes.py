"""How people misjudge guards."""

from __future__ import annotations

from autograder.exercise import Mistake
from autograder.exercises.recorded import apart

try:
    import autograder.exercises.compile.guards_truth as truth
except ModuleNotFoundError as missing:
    truth = apart(missing)


def _says(rule: type):
    return lambda v: {"compiles": rule(v["dynamic"], v["marked"], v["limit"]).compiles(v["calls"])}


def _opposite(v):
    return {"compiles": [not said for said in _says(truth.Rule)(v)["compiles"]]}


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
        answer=_says(truth.FalseWins),
    ),
    Mistake(
        "limit_of_each_type",
        "The limit is one for the function: compilations for other types and with gradients count too.",
        answer=_says(truth.LimitOfEachType),
    ),
    Mistake(
        "limit_off_by_one",
        "The limit counts all compilations of the function, the first one too.",
        answer=_says(truth.LimitOffByOne),
    ),
    Mistake(
        "oldest_thrown_away",
        "At the limit nothing is thrown away: what is compiled stays in use, and new situations run without compiling.",
        answer=_says(truth.OldestThrownAway),
    ),
    Mistake(
        "limit_forgotten",
        "Past the recompile limit torch does not compile this function any more: it runs without.",
        answer=_says(truth.Unlimited),
    ),
    Mistake(
        "whole_shape_marked",
        "A mark frees the dimension that it names and no other.",
        answer=_says(truth.WholeShapeMarked),
    ),
    Mistake(
        "marks_forgotten",
        "A dimension given to mark_dynamic is free from the first compilation on, whatever `dynamic` says.",
        answer=_says(truth.MarksForgotten),
    ),
    Mistake(
        "learns_from_every_call",
        "What torch knows about changing sizes it learns when it compiles. Calls that use what is compiled teach it "
        "nothing.",
        answer=_says(truth.LearnsFromEveryCall),
    ),
    Mistake(
        "equal_sizes_not_tied",
        "With dynamic=True sizes that are equal at the compilation get one symbol: the code holds only while they stay "
        "equal.",
        answer=_says(truth.NeverTied),
    ),
    Mistake(
        "equal_sizes_always_tied",
        "Equal sizes share a symbol only where dynamic=True made them free. A dimension that is marked, or free "
        "because it changed, has a symbol of its own.",
        answer=_says(truth.AlwaysTied),
    ),
    Mistake(
        "whole_shape_becomes_dynamic",
        "Only the dimension that changed becomes free. The other one still holds its size until it changes too.",
        answer=_says(truth.WholeShape),
    ),
    Mistake(
        "false_ignored",
        "dynamic=False learns nothing: a size that is not marked is a number in every compilation.",
        answer=_says(truth.FalseIgnored),
    ),
    Mistake(
        "learnt_by_type",
        "What torch has learnt about changing sizes belongs to the argument, whatever its type: the first compilation "
        "for another type leaves those dimensions free already.",
        answer=_says(truth.LearntByType),
    ),
    Mistake(
        "only_zero_special",
        "Not only 0 but also 1 is always compiled for itself: a size of 1 broadcasts.",
        answer=_says(truth.OnlyZeroSpecial),
    ),
    Mistake(
        "only_one_special",
        "Not only 1 but also 0 is always compiled for itself: an empty tensor takes other paths.",
        answer=_says(truth.OnlyOneSpecial),
    ),
    Mistake(
        "zero_and_one_not_special",
        "Code for a free dimension holds for sizes from 2 on. 0 and 1 are always compiled for themselves.",
        answer=_says(truth.NothingSpecial),
    ),
    Mistake(
        "only_the_last_is_kept",
        "All compiled code is kept: a call may use what was compiled before the last compilation.",
        answer=_says(truth.OnlyTheLast),
    ),
    Mistake(
        "types_alike",
        "The type is guarded: code for float32 does not hold for float64.",
        answer=_says(truth.TypesAlike),
    ),
    Mistake(
        "gradients_alike",
        "Whether a tensor needs a gradient is guarded: each of the two has code of its own.",
        answer=_says(truth.GradientsAlike),
    ),
    Mistake(
        "dynamic_from_the_third",
        "The second size of a dimension is enough: the compilation that it causes leaves the dimension free already.",
        answer=_says(truth.DynamicFromTheThird),
    ),
    Mistake(
        "dynamic_at_once",
        "With dynamic=None the first compilation is for one shape: a dimension becomes free only when it has changed.",
        answer=_says(truth.DynamicAtOnce),
    ),
    Mistake(
        "never_learns",
        "With dynamic=None every new shape was said to compile. A dimension whose size has changed becomes "
        "free when torch compiles again.",
        answer=_says(truth.StaticUnlessAsked),
    ),
    Mistake(
        "always_static",
        "Every new shape was said to compile. With dynamic=None a dimension whose size has changed becomes "
        "free when torch compiles again, and with dynamic=True all are free at once.",
        answer=_says(truth.AlwaysStatic),
    ),
)
