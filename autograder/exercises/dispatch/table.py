"""dispatch.table: a small dispatcher.

    Dispatcher(keys)                            keys: names, highest priority first
    .register(op, key, kernel)                  kernel(dispatcher, keys, *args) -> value
    .fallthrough(op, key)                       for this op, this key passes on to the next one
    .call(op, *args)                            every argument has `keys`, a frozenset
    .redispatch(op, keys, *args)                with exactly these keys
    .include(key), .exclude(key)                contexts for `with`

`call` takes the keys of all arguments and those that are included, less those that are excluded: what is excluded is
out, whoever brought it. The highest key of the set decides. Its kernel is called with the whole set; a fallthrough
passes to the next key of the set; a key for which nothing is registered, and a set in which none is left, raise
LookupError. `redispatch` does the same with the keys it is given: it looks neither at the arguments nor at what is
included or excluded.

Contexts nest, also the same one twice, and end with their block, also when an error leaves it. What one dispatcher
includes or excludes is nothing to another one.
"""

from __future__ import annotations

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.dispatch.table_mistakes import MISTAKES, truth
from autograder.exercises.recorded import judged_here
from autograder.exercises.telling import telling
from autograder.inside.probes.dispatching import ran

NAMES = ("Python", "Functionalize", "Autocast", "AutogradCPU", "ADInplaceOrView", "Batched", "Profiler", "CPU")

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if not isinstance(got, list | tuple):
        return "nothing is known of what ran"
    for number, (here, true) in enumerate(zip(got, want, strict=False), 1):
        if here != true:
            return f"event {number} of the scenario is another one: {_in_words(here)}"
    if len(got) != len(want):
        return (
            f"{len(got)} events where another number was expected; the last one is: {_in_words(got[-1] if got else [])}"
        )
    return None


def _in_words(event) -> str:
    match event:
        case [op, key, list(keys)]:
            return f"the kernel of {op} for {key} ran with {', '.join(map(str, keys)) or 'no keys'}"
        case [str(what), what_it_was]:
            return f"{what} {what_it_was!s:.80}"
    return "nothing happened"


# ------------------------------------------------------------------------------------------------- the cases


class Scenario:
    """One being drawn: some keys, with the backend last."""

    def __init__(self, d: Draw, count: int = 5):
        self.d = d
        chosen = set(d.rng.sample(NAMES[:-1], count - 1))
        self.keys = [name for name in NAMES if name in chosen] + [NAMES[-1]]
        self.kernels: list[dict] = []

    def kernel(self, op: str, key: str, then: str = "return", **more) -> None:
        self.kernels.append({"op": op, "key": key, "then": then, **more})

    def wrappers(self, op: str, keys=None) -> None:
        """Each key masks itself and redispatches; the last one computes."""
        for key in self.keys[:-1] if keys is None else keys:
            self.kernel(op, key, "redispatch", drop=[key])
        self.kernel(op, self.keys[-1])

    def some(self, least: int = 1, among=None) -> list[str]:
        among = self.keys[:-1] if among is None else among
        count = self.d.integer(least, len(among))
        return [key for key in among if key in set(self.d.rng.sample(list(among), count))]

    def call(self, *args, op: str = "mul") -> dict:
        return {"call": op, "args": [list(keys) for keys in args]}

    def done(self, *steps: dict) -> Call:
        args = {"scenario": {"keys": self.keys, "kernels": self.kernels, "steps": list(steps)}}
        return Call(args, f"{len(self.keys)} keys, {len(self.kernels)} kernels, {len(steps)} steps")


def _priority(d: Draw) -> Call:
    s = Scenario(d)
    for key in s.keys:
        s.kernel("mul", key)
    return s.done(*[s.call([*s.some(), s.keys[-1]]) for _ in range(3)], s.call([s.keys[-1]]))


def _two_arguments(d: Draw) -> Call:
    s = Scenario(d)
    s.wrappers("mul")
    high, low = s.keys[0], s.keys[2]
    return s.done(s.call([low, "CPU"], [high, "CPU"]), s.call(["CPU"], [low, "CPU"], [high]), s.call(["CPU"], ["CPU"]))


def _down_the_line(d: Draw) -> Call:
    s = Scenario(d, d.integer(4, 6))
    s.wrappers("mul")
    return s.done(*[s.call([*s.some(), "CPU"], [*s.some(), "CPU"]) for _ in range(3)])


def _skips(d: Draw) -> Call:
    """Redispatch below several keys at once."""
    s = Scenario(d)
    s.kernel("mul", s.keys[0], "redispatch", drop=s.keys[:3])
    s.wrappers("mul", s.keys[1:-1])
    return s.done(s.call(s.keys), s.call(s.keys[1:]))


def _fallthrough(d: Draw) -> Call:
    """For one op and not for the other."""
    s = Scenario(d)
    through = s.some(2)
    for key in s.keys[:-1]:
        if key in through:
            s.kernel("mul", key, "fallthrough")
        else:
            s.kernel("mul", key, "redispatch", drop=[key])
    s.kernel("mul", "CPU")
    s.wrappers("add")
    return s.done(s.call(s.keys), s.call(s.keys, op="add"), s.call([*through, "CPU"]), s.call(through))


def _missing(d: Draw) -> Call:
    s = Scenario(d)
    gap = s.d.choice(s.keys[1:-1])
    s.wrappers("mul", [key for key in s.keys[:-1] if key != gap])
    return s.done(s.call(["CPU"]), s.call([gap, "CPU"]), s.call(s.keys), s.call([]), s.call(["CPU"], op="unknown"))


def _excluded(d: Draw) -> Call:
    s = Scenario(d)
    s.wrappers("mul")
    out = s.d.choice(s.keys[:-1])
    inside = {"within": ["exclude", out], "steps": [s.call(s.keys), s.call([out, "CPU"]), s.call([out])]}
    return s.done(s.call(s.keys), inside, s.call(s.keys))


def _included(d: Draw) -> Call:
    s = Scenario(d)
    s.wrappers("mul")
    into = s.d.choice(s.keys[:-1])
    inside = {"within": ["include", into], "steps": [s.call(["CPU"]), s.call([*s.some(), "CPU"])]}
    return s.done(s.call(["CPU"]), inside, s.call(["CPU"]))


def _both(d: Draw) -> Call:
    """Included and excluded, one way round and the other."""
    s = Scenario(d)
    s.wrappers("mul")
    key = s.d.choice(s.keys[:-1])
    first = {"within": ["include", key], "steps": [{"within": ["exclude", key], "steps": [s.call(["CPU"])]}]}
    then = {"within": ["exclude", key], "steps": [{"within": ["include", key], "steps": [s.call(["CPU"])]}]}
    return s.done(*d.rng.sample([first, then], 2), s.call([key, "CPU"]))


def _nested(d: Draw) -> Call:
    """The same context twice: the inner end is not the outer one."""
    s = Scenario(d)
    s.wrappers("mul")
    key, kind = s.d.choice(s.keys[:-1]), d.choice(("include", "exclude"))
    inner = {"within": [kind, key], "steps": [s.call(s.keys), s.call(["CPU"])]}
    again = s.call(s.keys if kind == "exclude" else ["CPU"])
    return s.done({"within": [kind, key], "steps": [inner, again]}, again)


def _nested_other_way(d: Draw) -> Call:
    s = Scenario(d)
    s.wrappers("mul")
    key = s.d.choice(s.keys[:-1])
    blocks = []
    for kind in ("exclude", "include"):
        call = s.call([key, "CPU"] if kind == "exclude" else ["CPU"])
        inner = {"within": [kind, key], "steps": [call]}
        blocks.append({"within": [kind, key], "steps": [inner, call]})
    return s.done(*blocks, s.call(["CPU"]))


def _masked_by_its_kernel(d: Draw) -> Call:
    """A kernel excludes its own key and calls again, as modes do."""
    s = Scenario(d)
    key = s.keys[0]
    s.kernel("mul", key, "call", within=[["exclude", key]])
    s.wrappers("mul", s.keys[1:-1])
    return s.done(s.call(s.keys), s.call([key, "CPU"]), s.call(s.keys))


def _error_inside(d: Draw) -> Call:
    """An error leaves a kernel through its contexts."""
    s = Scenario(d)
    key = s.keys[0]
    s.kernel("mul", key, "call", within=[[d.choice(("exclude", "include")), s.keys[1]], ["exclude", key]], to="add")
    for other in s.keys:
        s.kernel("add", other, "raise")
        if other != key:
            s.kernel("mul", other)
    s.kernel("neg", key)
    s.kernel("neg", s.keys[1])
    s.kernel("neg", "CPU")
    after = [s.call(s.keys, op="neg"), s.call([s.keys[1], "CPU"], op="neg"), s.call(["CPU"], op="neg")]
    return s.done(s.call([key, "CPU"]), *after)


def _caught(d: Draw) -> Call:
    """A kernel catches what its own call raised, and the contexts of that call are gone."""
    s = Scenario(d)
    first, second = s.keys[:2]
    s.kernel("mul", first, "redispatch", drop=[first], catch=True)
    s.kernel("mul", second, "raise", within=[["exclude", first], ["include", s.keys[2]]])
    s.wrappers("mul", s.keys[2:-1])
    return s.done(s.call(s.keys), s.call([first, "CPU"]), s.call(["CPU"]))


def _redispatch_is_exact(d: Draw) -> Call:
    """What is redispatched to is not touched by what is excluded or included."""
    s = Scenario(d)
    first, second, third = s.keys[:3]
    s.kernel("mul", first, "redispatch", drop=[first], within=[["exclude", second], ["include", third]])
    s.kernel("mul", second, "redispatch", drop=[second])
    s.kernel("mul", third)
    s.kernel("mul", "CPU")
    for key in s.keys[3:-1]:
        s.kernel("mul", key, "fallthrough")
    return s.done(s.call([first, second, "CPU"]), s.call([first, "CPU"]))


def _two_dispatchers(d: Draw) -> Call:
    s = Scenario(d)
    s.wrappers("mul")
    key = s.d.choice(s.keys[:-1])
    elsewhere = {"other": True, "steps": [s.call([key, "CPU"]), s.call(["CPU"])]}
    blocks = [{"within": [kind, key], "steps": [elsewhere]} for kind in ("exclude", "include")]
    return s.done(*blocks)


CASES = (
    Case("the highest key", _priority),
    Case("keys of two arguments", _two_arguments),
    Case("down the line", _down_the_line),
    Case("several keys at once", _skips),
    Case("fallthrough", _fallthrough),
    Case("nothing registered", _missing),
    Case("excluded", _excluded),
    Case("included", _included),
    Case("included and excluded", _both),
    Case("the same context twice", _nested),
    Case("both contexts twice", _nested_other_way),
    Case("a kernel that masks itself", _masked_by_its_kernel),
    Case("an error inside", _error_inside),
    Case("an error caught", _caught),
    Case("redispatch with other contexts", _redispatch_is_exact),
    Case("two dispatchers", _two_dispatchers),
)


def _truth(v) -> dict:
    return {"events": ran(truth.Table, v["scenario"])}


TABLE = Exercise(
    name="dispatch.table",
    entry="Dispatcher",
    points=8,
    about="the kernel that a key set reaches, and the next one below it",
    point=("the highest key", "down the line", "fallthrough"),
    kind="scenario",
    cases=telling(CASES, _truth, MISTAKES, accept),
    oracle=_truth,
    mistakes=MISTAKES,
    returns=("events",),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.dispatching:ran",
)
TABLE = judged_here(TABLE, truth)
