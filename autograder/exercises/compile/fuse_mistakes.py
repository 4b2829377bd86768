"""What joining products and sums leaves of a program, and how passes go wrong: one rule overridden each."""

from __future__ import annotations

from collections import Counter

from autograder.exercise import Mistake
from autograder.inside.probes.rewriting import build, run

HALVES = {"torch.float16", "torch.bfloat16"}


class Pass:
    """Which pairs are joined. Works on the plain steps: no graph is changed here."""

    def __init__(self, v):
        self.steps = v["steps"]
        self.at = {step["name"]: number for number, step in enumerate(self.steps)}
        self.uses = Counter(a for step in self.steps for a in step["args"] if isinstance(a, str)) + Counter(
            v["outputs"]
        )
        module = build(v["steps"], v["inputs"], v["outputs"])
        self.types = {node.name: node.meta["val"].dtype for node in module.graph.nodes if "val" in node.meta}

    def joined(self) -> dict[str, str]:
        """Sum -> product."""
        found: dict[str, str] = {}
        for step in self.steps:
            product = next((a for a in self.operands(step) if self.may_join(step, a)), None)
            if product is not None:
                found[step["name"]] = product
        return found

    def operands(self, step) -> list:
        return step["args"] if step["op"] == "add" else []

    def may_join(self, step, product) -> bool:
        if product not in self.at or self.steps[self.at[product]]["op"] != "mul":
            return False
        return all((self.unused_elsewhere(product), self.plain(step, product), self.unwritten(step, product)))

    def unused_elsewhere(self, product) -> bool:
        return self.uses[product] == 1

    def plain(self, step, product) -> bool:
        values = [*self.steps[self.at[product]]["args"], *step["args"]]
        return self.all_tensors(values) and self.one_type(values) and self.no_alpha(step)

    def all_tensors(self, values) -> bool:
        return all(isinstance(value, str) for value in values)

    def one_type(self, values) -> bool:
        return len({self.types[value] for value in values}) == 1

    def no_alpha(self, step) -> bool:
        return not step["kwargs"]

    def unwritten(self, step, product) -> bool:
        between = self.steps[self.at[product] : self.at[step["name"]]]
        written = {s["args"][0] for s in between if s["op"] == "add_"}
        return not written & set(self.steps[self.at[product]]["args"])

    def counts(self) -> dict[str, int]:
        """The operators that are left."""
        ops, joined = Counter(step["op"] for step in self.steps), len(self.joined())
        return {"mul": ops["mul"] - self.gone(), "add": ops["add"] - joined, "addcmul": joined}

    def gone(self) -> int:
        return len(self.joined())


def unchanged(v) -> tuple[list[dict], dict[str, int]]:
    """What the program computes and calls as it comes."""
    return run(build(v["steps"], v["inputs"], v["outputs"]), v["inputs"])


def largest_product(v) -> float:
    """The largest magnitude among the products of a program, rounded to their types."""
    products = [step["name"] for step in v["steps"] if step["op"] == "mul"]
    computed = run(build(v["steps"], v["inputs"], products), v["inputs"])[0]
    return max((abs(number) for one in computed for number in one["values"]), default=0.0)


def answer(v, rule: type[Pass] = Pass) -> dict:
    """Right results, and the operators that this rule leaves."""
    counts = rule(v).counts()
    return {"results": unchanged(v)[0], "runs": counts, "in_graph": counts}


class OnlyOnTheLeft(Pass):
    def operands(self, step):
        return super().operands(step)[:1]


class OnlyOnTheRight(Pass):
    def operands(self, step):
        return super().operands(step)[1:]


class OnlyTheFirst(Pass):
    def joined(self):
        return dict(list(super().joined().items())[:1])


class ProductsLeft(Pass):
    def gone(self):
        return 0


class OnlyFp32(Pass):
    def one_type(self, values):
        return {str(self.types[value]) for value in values} == {"torch.float32"}


class NoHalves(Pass):
    def one_type(self, values):
        return super().one_type(values) and not {str(self.types[value]) for value in values} & HALVES


class NoIntegers(Pass):
    def one_type(self, values):
        return super().one_type(values) and all(self.types[value].is_floating_point for value in values)


class SecondUserJoined(Pass):
    """The product is joined and kept, because something else needs it."""

    def unused_elsewhere(self, product):
        return True

    def gone(self):
        return sum(self.uses[product] == 1 for product in self.joined().values())


class UsersCounted(SecondUserJoined):
    """One user is asked for, and a sum that uses the product twice is one."""

    def unused_elsewhere(self, product):
        twice = any(step["args"] == [product, product] for step in self.steps)
        return self.uses[product] == 1 or (self.uses[product] == 2 and twice)


class OneSizeOnly(Pass):
    def __init__(self, v):
        super().__init__(v)
        module = build(v["steps"], v["inputs"], v["outputs"])
        self.shapes = {n.name: tuple(n.meta["val"].shape) for n in module.graph.nodes if "val" in n.meta}

    def plain(self, step, product):
        values = [*self.steps[self.at[product]]["args"], *step["args"]]
        return super().plain(step, product) and len({self.shapes[value] for value in values}) == 1


class AnyWriteStops(Pass):
    def unwritten(self, step, product):
        return not any(s["op"] == "add_" for s in self.steps[self.at[product] : self.at[step["name"]]])


class WriteIntoTheOtherStops(Pass):
    """A write into what is added stops it too."""

    def unwritten(self, step, product):
        between = self.steps[self.at[product] : self.at[step["name"]]]
        written = {s["args"][0] for s in between if s["op"] == "add_"}
        return super().unwritten(step, product) and not written & set(step["args"])


class FactorWrittenAnywhereStops(Pass):
    """A write into a factor stops, wherever it is."""

    def unwritten(self, step, product):
        written = {s["args"][0] for s in self.looked_at(step, product) if s["op"] == "add_"}
        return not written & set(self.steps[self.at[product]]["args"])

    def looked_at(self, step, product) -> list:
        return self.steps


class FactorWrittenBeforeStops(FactorWrittenAnywhereStops):
    def looked_at(self, step, product):
        return self.steps[: self.at[step["name"]]]


class FactorWrittenAfterStops(FactorWrittenAnywhereStops):
    def looked_at(self, step, product):
        return self.steps[self.at[product] :]


class GraphWithWritesLeft(Pass):
    def unwritten(self, step, product):
        return not any(s["op"] == "add_" for s in self.steps)


class TypesIgnored(Pass):
    def one_type(self, values):
        return True


class OneWidth(Pass):
    """Types of as many bytes are taken for one type."""

    def one_type(self, values):
        return len({self.types[value].itemsize for value in values}) == 1


class FactorsNotCompared(Pass):
    """The types of the product and of what is added are compared, and perhaps one factor's."""

    compared: tuple[int, ...] = ()  # factors

    def plain(self, step, product):
        factors = self.steps[self.at[product]]["args"]
        looked_at = [*step["args"], *[factors[place] for place in self.compared]]
        return self.all_tensors([*factors, *step["args"]]) and self.one_type(looked_at) and self.no_alpha(step)


class FirstFactorCompared(FactorsNotCompared):
    compared = (0,)


class SecondFactorCompared(FactorsNotCompared):
    compared = (1,)


class AlphaIgnored(Pass):
    def no_alpha(self, step):
        return True


class WritesIgnored(Pass):
    def unwritten(self, step, product):
        return True


class FirstFactorWatched(Pass):
    """Of the operands of the pair, writes into this one are looked for."""

    def unwritten(self, step, product):
        between = self.steps[self.at[product] : self.at[step["name"]]]
        return self.watched(step, product) not in [s["args"][0] for s in between if s["op"] == "add_"]

    def watched(self, step, product) -> str:
        return self.steps[self.at[product]]["args"][0]


class SecondFactorWatched(FirstFactorWatched):
    def watched(self, step, product):
        return self.steps[self.at[product]]["args"][1]


class SumWatched(FirstFactorWatched):
    def watched(self, step, product):
        return next((other for other in step["args"] if other != product), product)


class DifferencesJoined(Pass):
    def operands(self, step):
        return step["args"] if step["op"] in ("add", "sub") else []

    def counts(self):
        subs = sum(step["op"] == "sub" and step["name"] in self.joined() for step in self.steps)
        counts = super().counts()
        return counts | {"add": counts["add"] + subs}


def _leaves(rule: type[Pass]):
    """Right results and these operators."""
    return lambda v: answer(v, rule)


def _calls(rule: type[Pass]):
    """These operators, whatever the results; nothing where they are the right ones."""

    def other_counts(v):
        counts = rule(v).counts()
        return {"runs": counts} if counts != Pass(v).counts() else {}

    return other_counts


def _without_writes(v) -> dict:
    kept = [step for step in v["steps"] if step["op"] != "add_"]
    return {"results": run(build(kept, v["inputs"], v["outputs"]), v["inputs"])[0]} if kept != v["steps"] else {}


PLAINEST = ("the product on the left", "the product on the right")


def _not_recompiled(e) -> bool:
    """In every wrong case the graph says one thing and the code that runs is that of the graph as it came."""
    ran = [t for t in e.failing if t.outcome.error is None]
    return bool(ran) and all(
        t.outcome.outputs["runs"] == unchanged(t.args)[1] != t.outcome.outputs["in_graph"] for t in ran
    )


def _right_work_wrong_results(e) -> bool:
    """In the plainest pairs that were joined the operators are right, and the results are wrong."""
    plain = [t for t in e.failing if t.case.name in PLAINEST and t.outcome.error is None]
    return any(t.outcome.outputs["runs"] == t.want["runs"] for t in plain)


def _only_halves_change_type(e) -> bool:
    """The right pairs are joined, in float64 rightly, and what comes in halves comes in another type."""
    changed = [t for t in e.failing if t.case.name in ("fp16", "bf16") and t.outcome.error is None]
    return e.passed(PLAINEST[0]) and any(
        [r["dtype"] for r in t.outcome.outputs["results"]] != [r["dtype"] for r in t.want["results"]] for t in changed
    )


def _only_numbers_raise(e) -> bool:
    return e.raised("addcmul()") and e.failed("numbers in place of tensors") and any(map(e.passed, PLAINEST))


MISTAKES = (
    Mistake(
        "module_not_returned",
        "`fuse` has to return the module, also where it changed nothing: end with `return module`.",
        sign=lambda e: e.raised("expected the rewritten GraphModule"),
    ),
    Mistake(
        "not_recompiled",
        "The graph was changed, and the code that runs was not: call `module.recompile()` when the graph is done.",
        sign=_not_recompiled,
    ),
    Mistake(
        "node_in_use_erased",
        "A node was erased that something still uses. Replace every use first, and leave a product alone that is "
        "used elsewhere.",
        sign=lambda e: e.raised("Tried to erase Node"),
    ),
    Mistake(
        "writes_eliminated",
        "A write is gone: `eliminate_dead_code` takes away nodes that nobody uses, and does not know that the method "
        "add_ writes. Erase the product yourself.",
        answer=_without_writes,
    ),
    Mistake(
        "placed_before_its_inputs",
        "addcmul was put where the product stood: what is added may not be computed there yet. Insert it at the sum.",
        sign=lambda e: e.raised("used before it has been defined") or e.raised("was used before"),
    ),
    Mistake(
        "type_widened",
        "A result has another type than before: something in the graph converts to float32. Leave the conversion out; "
        "addcmul of halves computes in float32 inside and gives the type back.",
        sign=_only_halves_change_type,
    ),
    Mistake(
        "numbers_joined",
        "addcmul takes tensors: a product with a number, or a number that is added, has to stay.",
        sign=_only_numbers_raise,
    ),
    Mistake(
        "operands_shuffled",
        "The right pairs are joined, and the operands are in the wrong places: torch.addcmul(b, x, a) is b + x * a.",
        sign=_right_work_wrong_results,
    ),
    Mistake(
        "factors_not_compared",
        "Product and sum are of one type there, and one of the factors is of another: addcmul would get tensors of two "
        "types. Compare the types of x, a and b, not that of the product.",
        answer=lambda v, rule: _calls(rule)(v),
        variants=(FactorsNotCompared, FirstFactorCompared, SecondFactorCompared),
    ),
    Mistake(
        "types_ignored",
        "Pairs of several types were joined. `mul` rounds to the type of the product before `add` goes to another one; "
        "addcmul goes to the common type at once. Compare the types in `meta`.",
        answer=lambda v, rule: _calls(rule)(v),
        variants=(TypesIgnored, OneWidth),
    ),
    Mistake(
        "alpha_ignored",
        "A sum with `alpha` was joined as if it had none: look at `node.kwargs`.",
        answer=_calls(AlphaIgnored),
    ),
    Mistake(
        "write_crossed",
        "addcmul reads the factors where the sum stood, and by then one of them had been written into. Look for add_ "
        "between the two, into either factor.",
        answer=lambda v, rule: _calls(rule)(v),
        variants=(WritesIgnored, FirstFactorWatched, SecondFactorWatched, SumWatched),
    ),
    Mistake(
        "differences_joined",
        "A difference was taken for a sum.",
        answer=_calls(DifferencesJoined),
    ),
    Mistake(
        "second_user_joined",
        "A product that something else uses was joined too: it is computed twice now. Look at `node.users`, and at the "
        "operands of the sum, which may be twice the same.",
        answer=lambda v, rule: _calls(rule)(v),
        variants=(SecondUserJoined, UsersCounted),
    ),
    Mistake(
        "products_left",
        "The products are still computed, and nobody uses them: erase them, or call `eliminate_dead_code`.",
        answer=_leaves(ProductsLeft),
    ),
    Mistake(
        "any_write_stops",
        "A write to something else is no danger, also one to b, which the sum would have read after it as well: only "
        "writes to x and a matter.",
        answer=lambda v, rule: _leaves(rule)(v),
        variants=(AnyWriteStops, WriteIntoTheOtherStops),
    ),
    Mistake(
        "write_elsewhere_stops",
        "Only writes between the product and the sum matter. Of one before the product, mul and addcmul both read the "
        "result; of one after the sum, neither does.",
        answer=lambda v, rule: _leaves(rule)(v),
        variants=(
            FactorWrittenAnywhereStops,
            FactorWrittenBeforeStops,
            FactorWrittenAfterStops,
            GraphWithWritesLeft,
        ),
    ),
    Mistake(
        "same_sizes_only",
        "addcmul broadcasts as mul and add do: sizes need not be equal.",
        answer=_leaves(OneSizeOnly),
    ),
    Mistake(
        "only_on_the_left",
        "Only products that stand first in the sum were joined: add(b, x * a) is the same sum.",
        answer=_leaves(OnlyOnTheLeft),
    ),
    Mistake(
        "only_on_the_right",
        "Only products that stand second in the sum were joined: add(x * a, b) is the same sum.",
        answer=_leaves(OnlyOnTheRight),
    ),
    Mistake(
        "only_the_first",
        "Only the first pair was joined: go on to the end of the graph.",
        answer=_leaves(OnlyTheFirst),
    ),
    Mistake(
        "integers_left",
        "Pairs of integers were left as they were: any one type will do, and of integers addcmul is exact.",
        answer=_leaves(NoIntegers),
    ),
    Mistake(
        "halves_left",
        "Pairs of fp16 or bf16 were left as they were. They are safe too: addcmul rounds once where the pair rounds "
        "twice, and the exercise allows for that difference in every floating type.",
        answer=_leaves(NoHalves),
    ),
    Mistake(
        "only_fp32",
        "Only pairs of float32 were joined: any one type will do.",
        answer=_leaves(OnlyFp32),
    ),
)
