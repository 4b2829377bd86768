"""compile.pass: a pass over an FX graph that joins a product and a sum, and never changes a result.

    fuse(module) -> module

`module`: a `torch.fx.GraphModule`. Its graph has placeholders, calls of torch.mul, torch.add, torch.sub, torch.sin and
torch.neg, the method add_, which writes into its first argument and whose value is not used, and a tuple as output. No
two values share memory. `node.meta["val"]` has the type and the shape of each value.

Where a product is added to something, in either order, `torch.addcmul(b, x, a)` computes b + x * a in one pass over
memory. Asked for: the module with every such pair replaced, and the product gone, where this is safe:

- x, a and b are nodes, not numbers, and of one type, whichever it is, floating or integer (`mul` and `add` of
  several types round in between);
- the sum has no `alpha` (none is drawn with `alpha=1` spelled out: joined or not, it computes the same);
- the product is used nowhere else: in no other node, not in the output, not twice in the sum;
- nothing writes into x or a between the product and the sum, where addcmul would read them.

Right means: the results are those of the graph as it came, and the operators that run, counted while the module runs,
are those that should be left. "Those of the graph as it came" allows for the order of rounding: the pair rounds its
product to the type and then its sum, addcmul rounds once, after both. So a result may move by a unit in the last place
of the product or of the result, whichever is larger, in fp16 and bf16 as in other floating types; integers may not.
"""

from __future__ import annotations

import math

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.compile.fuse_mistakes import MISTAKES, answer, largest_product
from autograder.exercises.number_lists import differ
from autograder.exercises.places import counted

# The largest error of a few sums and products, each rounded once, relative to the largest number around. Of float64 and
# float32 it has room to spare. Of halves it is a unit in the last place and no more: a product of halves is exact in
# float32, in which addcmul computes, so both are neighbours on the grid of the larger of product and result.
LIMIT = {"float64": 1e-12, "float32": 3e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7, "int32": 0.0, "int64": 0.0}

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    return _results_wrong(got, want, args) if isinstance(want, list) else _calls_wrong(got, want)


def _results_wrong(got, want, args) -> str | None:
    if not isinstance(got, list | tuple) or len(got) != len(want):
        return f"the module should still return {len(want)} results"
    product = largest_product(args)
    for number, (here, true) in enumerate(zip(got, want, strict=True), 1):
        if not isinstance(here, dict) or set(here) != set(true):
            return f"result {number} is no tensor"
        if here["dtype"] != true["dtype"]:
            return f"result {number} has become {here['dtype']}: it is of another type in the graph as it came"
        if here["shape"] != true["shape"]:
            return f"result {number} has another shape than in the graph as it came: {here['shape']}"
        size = max([product, *(abs(w) for w in true["values"] if math.isfinite(w))])
        if differ(here["values"], true["values"], LIMIT[true["dtype"]] * size):
            return f"result {number} is not what the graph computed as it came"
    return None


def _calls_wrong(got, want) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return "the operators that run could not be counted"
    if got == want:
        return None
    if got["addcmul"] != want["addcmul"]:
        few = got["addcmul"] < want["addcmul"]
        return (
            f"{got['addcmul']} addcmul: too {'few, a safe pair was left' if few else 'many, an unsafe pair was joined'}"
        )
    return f"{got['mul']} mul and {got['add']} add beside {got['addcmul']} addcmul: is what was replaced really gone?"


# ------------------------------------------------------------------------------------------------- the cases


class Program:
    """A program being drawn: values are named in the order in which they are made."""

    def __init__(self, draw: Draw, dtype: str = "float64"):
        self.draw, self.dtype, self.steps, self.inputs = draw, dtype, [], []
        self.shape = [draw.integer(1, 4), draw.integer(2, 5)]
        self.left = bool(draw.integer(0, 1))

    def input(self, dtype: str = "", shape=None) -> str:
        name = f"x{len(self.inputs)}"
        seed = self.draw.integer(0, 2**31)
        self.inputs.append({"name": name, "dtype": dtype or self.dtype, "shape": shape or self.shape, "seed": seed})
        return name

    def step(self, op: str, *args, **kwargs) -> str:
        name = f"t{len(self.steps)}"
        self.steps.append({"name": name, "op": op, "args": list(args), "kwargs": kwargs})
        return name

    def noise(self) -> str:
        """A step or two that have nothing to do with any pair."""
        ops = ("neg",) if self.dtype.startswith("int") else ("sin", "neg")  # the sine of integers is none
        return self.step(self.draw.choice(ops), self.step("sub", self.input(), self.input()))

    def add(self, product: str, other) -> str:
        """Their sum, each time in the other order: who joins one of both shows it in every draw."""
        self.left = not self.left
        return self.step("add", *((product, other) if self.left else (other, product)))

    def pairs(self) -> list[str]:
        """Two that are safe to join, one in either order."""
        return [self.add(self.step("mul", self.input(), self.input()), self.noise()) for _ in range(2)]

    def call(self, *outputs: str) -> Call:
        args = {"steps": self.steps, "inputs": self.inputs, "outputs": list(outputs)}
        return Call(args, f"{counted(len(self.steps), 'step')}, {counted(len(outputs), 'result')}")


def _pairs(d: Draw, dtype: str = "float64") -> Call:
    p = Program(d, dtype)
    return p.call(*(name for _ in range(d.integer(1, 2)) for name in p.pairs()), p.noise())


def _on(d: Draw, left: bool) -> Call:
    p, results = Program(d), []
    for _ in range(d.integer(2, 4)):
        product, b = p.step("mul", p.input(), p.input()), p.noise()
        results.append(p.step("add", *((product, b) if left else (b, product))))
    return p.call(*results, p.noise())


def _chain(d: Draw) -> Call:
    """Horner's rule: each sum is a factor of the next product."""
    p = Program(d)
    x, total = p.input(), p.input()
    for _ in range(d.integer(2, 4)):
        total = p.add(p.step("mul", total, x), p.input())
    return p.call(total)


def _two_products(d: Draw) -> Call:
    p = Program(d)
    first, second = (p.step("mul", p.input(), p.input()) for _ in range(2))
    return p.call(p.step("add", first, second), *p.pairs())


def _second_user(d: Draw) -> Call:
    p = Program(d)
    product = p.step("mul", p.input(), p.input())
    other = p.step("sin", product)
    return p.call(p.add(product, p.input()), other, *p.pairs())


def _product_returned(d: Draw) -> Call:
    p = Program(d)
    product = p.step("mul", p.input(), p.input())
    return p.call(p.add(product, p.input()), product, *p.pairs())


def _twice(d: Draw) -> Call:
    p = Program(d)
    product = p.step("mul", p.input(), p.input())
    return p.call(p.step("add", product, product), *p.pairs())


def _types(d: Draw, product: str, other: str) -> Call:
    p = Program(d)
    mixed = p.step("mul", p.input(product), p.input(product))
    return p.call(p.add(mixed, p.input(other)), *p.pairs())


def _factors(d: Draw, narrow: str, wide: str) -> Call:
    """Product and sum are of one type, and one of the factors is not: once the first, once the second."""
    p = Program(d)
    products = [p.step("mul", p.input(x), p.input(a)) for x, a in ((narrow, wide), (wide, narrow))]
    return p.call(*[p.add(product, p.input(wide)) for product in products], *p.pairs())


def _numbers(d: Draw) -> Call:
    p = Program(d)
    scaled = p.step("mul", p.input(), d.number(1, 3))
    shifted = p.step("mul", p.input(), p.input())
    return p.call(p.add(scaled, p.input()), p.step("add", shifted, d.number(1, 3)), *p.pairs())


def _alpha(d: Draw) -> Call:
    p = Program(d)
    product = p.step("mul", p.input(), p.input())
    order = (product, p.input()) if d.integer(0, 1) else (p.input(), product)
    return p.call(p.step("add", *order, alpha=d.integer(2, 5)), *p.pairs())


def _differences(d: Draw) -> Call:
    p = Program(d)
    first, second = (p.step("mul", p.input(), p.input()) for _ in range(2))
    return p.call(p.step("sub", first, p.input()), p.step("sub", p.input(), second), *p.pairs())


def _written(d: Draw) -> Call:
    """Between the product and the sum a factor is written: of one product the first, of another one the second."""
    p = Program(d)
    results, factors = [], [(p.input(), p.input()) for _ in range(2)]
    for place, (x, a) in enumerate(factors):
        product = p.step("mul", x, a)
        p.step("add_", (x, a)[place], p.input())
        results.append(p.add(product, p.input()))
    return p.call(*results, *p.pairs(), *[p.step("sin", one) for pair in factors for one in pair])


def _sum_written(d: Draw) -> Call:
    """Between the product and the sum, what is added is written."""
    p = Program(d)
    y, b = p.input(), p.input()
    product = p.step("mul", y, p.input())
    p.step("add_", b, y)
    return p.call(p.add(product, b), *p.pairs())


def _other_written(d: Draw) -> Call:
    """Between the product and the sum a factor is read, and something else is written. Two sums, in both orders."""
    p, results = Program(d), []
    for _ in range(2):
        y = p.input()
        product = p.step("mul", y, p.input())
        p.step("add_", p.input(), y)
        results.append(p.add(product, p.noise()))
    return p.call(*results)


def _written_outside(d: Draw, before: bool) -> Call:
    """A factor is written before the product or after the sum: of one product the first, of another one the second."""
    p = Program(d)
    results, factors = [], [(p.input(), p.input()) for _ in range(2)]
    for place, (x, a) in enumerate(factors):
        if before:
            p.step("add_", (x, a)[place], p.input())
        results.append(p.add(p.step("mul", x, a), p.noise()))
        if not before:
            p.step("add_", (x, a)[place], p.input())
    return p.call(*results, *[p.step("sin", one) for pair in factors for one in pair])


def _broadcast(d: Draw) -> Call:
    p = Program(d)
    rows, columns = p.shape
    row, column = p.input(shape=[1, columns]), p.input(shape=[rows, 1])
    return p.call(
        p.add(p.step("mul", row, column), p.input()), p.add(p.step("mul", p.input(), row), p.input(shape=[1]))
    )


def _early(d: Draw) -> Call:
    """The product stands long before what is added to it is known."""
    p = Program(d)
    products = [p.step("mul", p.input(), p.input()) for _ in range(3)]
    return p.call(*[p.step("add", p.noise(), product) for product in reversed(products)])


def _nothing(d: Draw) -> Call:
    p = Program(d)
    return p.call(p.step("sin", p.step("mul", p.input(), p.input())), p.step("add", p.noise(), p.input()))


CASES = (
    Case("the product on the left", lambda d: _on(d, left=True)),
    Case("the product on the right", lambda d: _on(d, left=False)),
    Case("fp32", lambda d: _pairs(d, "float32")),
    Case("fp16", lambda d: _pairs(d, "float16")),
    Case("bf16", lambda d: _pairs(d, "bfloat16")),
    Case("int32", lambda d: _pairs(d, "int32")),
    Case("int64", lambda d: _pairs(d, "int64")),
    Case("a chain", _chain),
    Case("a sum of two products", _two_products),
    Case("products long before their sums", _early),
    Case("a product that is used again", _second_user),
    Case("a product that is returned", _product_returned),
    Case("a product added to itself", _twice),
    Case("fp16 product, fp32 sum", lambda d: _types(d, "float16", "float32")),
    Case("fp16 product, bf16 sum", lambda d: _types(d, "float16", "bfloat16")),
    Case("integer product, fp16 sum", lambda d: _types(d, "int32", "float16")),
    Case("an fp16 and an fp32 factor, fp32 sum", lambda d: _factors(d, "float16", "float32")),
    Case("an integer and an fp16 factor, fp16 sum", lambda d: _factors(d, "int32", "float16")),
    Case("numbers in place of tensors", _numbers),
    Case("a sum with alpha", _alpha),
    Case("differences", _differences),
    Case("a factor is written in between", _written),
    Case("what is added is written in between", _sum_written),
    Case("something else is written in between", _other_written),
    Case("a factor is written before the product", lambda d: _written_outside(d, before=True)),
    Case("a factor is written after the sum", lambda d: _written_outside(d, before=False)),
    Case("sizes that broadcast", _broadcast),
    Case("nothing to join", _nothing),
)

FUSE = Exercise(
    name="compile.pass",
    entry="fuse",
    points=8,
    about="a rewritten graph that computes the same",
    point=("a product that is used again", "fp16 product, fp32 sum", "a factor is written in between"),
    kind="scenario",
    cases=CASES,
    oracle=answer,
    mistakes=MISTAKES,
    returns=("results", "runs", "in_graph"),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.rewriting:rewritten",
)
