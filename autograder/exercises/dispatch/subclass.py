"""dispatch.subclass: a wrapper tensor that carries a scale and unwraps itself.

    Scaled(held, scale)    stands for held * scale; x.held is a tensor, x.scale a number

`Scaled` is a subclass of `torch.Tensor`, made by `torch.Tensor._make_wrapper_subclass` with the shape, the strides, the
type and the device of `held`. It has no memory of its own: every operator comes to its `__torch_dispatch__`. Asked for:

    a number       aten.mul.Tensor and aten.div.Tensor of a Scaled and a number, and aten.neg: a Scaled with another
                   scale that holds the same memory
    views          views (`func.is_view`; aten._unsafe_view) and aten.clone: a Scaled, or several, of the view or the
                   clone of what is held, with the same scale
    products       aten.mm and aten.bmm: a Scaled that holds the product of what is held, and whose scale is the product
                   of both scales; an ordinary tensor has the scale 1
    in place       aten.mul_ and aten.div_ of a Scaled and a number change its scale and return it, and its views, made
                   before or after, have the new scale too. Of a view they raise TypeError: one scale cannot say that a
                   part was scaled. Any other operator that would write into a Scaled raises TypeError: it would write
                   into a copy
    all others     work on held * scale, wherever a Scaled stands among the arguments, and give what they give

Right means: values, kinds, scales and memory are as said, and gradients come out as if there were no wrapper.
"""

from __future__ import annotations

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.dispatch.subclass_mistakes import MISTAKES, truth
from autograder.exercises.number_lists import differ
from autograder.exercises.recorded import judged_here
from autograder.exercises.telling import telling
from autograder.inside.probes import scaling

LIMIT = {"float64": 1e-10, "float32": 1e-4}  # of the largest number

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    expressions, limit = args["expressions"], LIMIT[args["call"]["dtype"]]
    if not isinstance(got, list | tuple) or len(got) != len(want):
        return "the class could not be looked at"
    told = (
        f"{expression}: {why}"
        for expression, here, true in zip(expressions, got, want, strict=True)
        if (why := _result_wrong(here, true, limit))
    )
    return next(told, None)


def _result_wrong(got, want, limit) -> str | None:
    if not isinstance(got, dict):
        return "was not worked out"
    if "raised" in got or "raised" in want:
        if "raised" in got and "raised" in want and got["raised"] == want["raised"]:
            return None
        said = f"{got.get('raised')!s:.40}: {got.get('says')!s:.160}" if "raised" in got else "nothing"
        return f"raised {said}" if "raised" not in want else f"should be refused with {want['raised']}, raised {said}"
    if set(got) != set(want):
        return "was not worked out"
    if "gradients" in want:
        return _gradients_wrong(got["gradients"], want["gradients"], limit)
    places = {"result": "", "x": "afterwards x ", "p": "afterwards p "}
    return next((f"{places[k]}{why}" for k in want if (why := _value_wrong(got[k], want[k], limit))), None)


def _gradients_wrong(got, want, limit) -> str | None:
    if not isinstance(got, dict) or set(got) != set(want):
        return "a gradient is missing or was not asked for"
    wrong = [name for name in want if _far(got[name], want[name], limit)]
    return f"the gradient of {wrong[0]} is wrong" if wrong else None


def _value_wrong(got, want, limit) -> str | None:
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return "is not as many tensors as it should be"
        return next((why for g, w in zip(got, want, strict=True) if (why := _value_wrong(g, w, limit))), None)
    if not isinstance(got, dict) or got.get("kind") != want["kind"]:
        kind = got.get("kind") if isinstance(got, dict) else type(got).__name__
        return f"is a {kind!s:.40} and should be a {want['kind']}"
    for name in ("dtype", "shape", "strides"):
        if got.get(name) != want[name]:
            return f"has {name} {got.get(name)!s:.60}"
    if _far(got.get("values"), want["values"], limit):
        return "has other values"
    if want["kind"] == "Tensor":
        return None
    if not isinstance(got.get("scale"), int | float) or not abs(got["scale"] - want["scale"]) <= 1e-9 * abs(
        want["scale"]
    ):
        return "has the right values, and another scale than asked for"
    if got.get("memory_of_x") is not want["memory_of_x"]:
        return "holds a copy" if want["memory_of_x"] else "holds the memory of x"
    if got.get("is_x") is not want["is_x"]:
        return "is another tensor than x" if want["is_x"] else "is x itself"
    return None


def _far(got, want, limit: float) -> bool:
    """limit: of the largest number."""
    return differ(got, want, limit * max([1.0, *map(abs, want)]))


# ------------------------------------------------------------------------------------------------- the cases


SCALES = ((0.2, 0.8), (1.25, 3.0))  # a scale of 1 would hide that it was forgotten


def _call(d: Draw, *expressions: str, dtype="float64", layout="contiguous", backward=False, batch=()) -> Call:
    n = d.integer(3, 5)
    shape = [*batch, n, n]
    scales = [round(d.choice((-1, 1)) * d.number(*d.choice(SCALES)), 3) for _ in "xy"]
    call = {"shape": shape, "dtype": dtype, "layout": layout, "scales": scales, "n": round(d.number(1.5, 4.0), 3)}
    call |= {"backward": backward, "seed": d.integer(0, 2**31)}
    ordered = list(expressions)
    d.rng.shuffle(ordered)
    return Call({"expressions": ordered, "call": call}, ", ".join(ordered))


NUMBERS = ("x * n", "n * x", "x / n", "-x", "(x * n) / 3 * 2")
VIEWS = ("x.t()", "x[1:]", "x.view(-1)", "x.detach()", "x.unsqueeze(0)", "x.t()[1]")
PRODUCTS = ("x @ y", "x @ p", "p @ x", "x @ y.t()", "F.linear(p, x)", "(x * n) @ y")
OTHERS = (
    "x + p",
    "x + y",
    "p - x",
    "y - x",
    "x + 1",
    "x * y",
    "p * x",
    "x / y",
    "x.exp()",
    "n / x",
    "x.sum()",
)
REFUSED = ("x.add_(1)", "x.zero_()", "x.exp_()", "x.copy_(p)", "x.mul_(y)", "torch.add(p, q, out=x)")
SHOWN = (
    "[x.t(), x.mul_(n)]",
    "[x[0], x.div_(n)]",
    "[x.t()[1:].view_as(x[1:]), x.mul_(n).div_(3)]",
    "[x.split(2), x.mul_(n)]",
    "[x.mul_(n), x[1]]",
    "[x * n, -x, x.mul_(n)]",
    "[x.clone(), x.t().clone(), x.mul_(n)]",
)
PARTS = ("x[0].mul_(n)", "x.t().div_(n)", "x.view(-1).mul_(n)", "x[1:].t().mul_(n)")
WRITTEN = ("p.add_(x)", "p.copy_(x)", "p.mul_(x)", "torch.add(q, x, out=p)", "p.addmm_(x, y)")
GRADIENTS = ("x * n", "x @ p", "x.t() @ y", "x + p", "x * p", "x[1:] * n", "torch.cat([x, p])", "x.sigmoid() @ x")

CASES = (
    Case("the wrapper itself", lambda d: _call(d, "x", "y")),
    Case("transposed", lambda d: _call(d, "x", "x.t()", "x + p", "x.reshape(-1)", layout="transposed")),
    Case("fp32", lambda d: _call(d, "x", "x * n", "x @ p", dtype="float32")),
    Case("numbers", lambda d: _call(d, *NUMBERS)),
    Case(
        "rounded division",
        lambda d: _call(d, "x.div(n, rounding_mode='floor')", "torch.div(x, 1, rounding_mode='trunc')"),
    ),
    Case("views", lambda d: _call(d, *VIEWS)),
    Case("parts", lambda d: _call(d, "x.split(2)", "x.unbind()", "x.chunk(2, -1)")),
    Case("clones", lambda d: _call(d, "x.clone()", "x.clone() * n", "x.t().clone()")),
    Case("reshaped", lambda d: _call(d, "x.t().reshape(-1)", "(x * n).t().reshape(-1)")),
    Case("products", lambda d: _call(d, *PRODUCTS)),
    Case("products of stacks", lambda d: _call(d, "x @ y", "x @ p", "p @ x", batch=[d.integer(2, 3)])),
    Case("stack and matrix", lambda d: _call(d, "x @ y[0]", "x @ p[0]", "p @ x[0]", batch=[d.integer(2, 3)])),
    Case("sums and functions", lambda d: _call(d, *d.rng.sample(OTHERS, 5), "x + y", "x * p")),
    Case("products with tensors", lambda d: _call(d, "x * y", "x * p", "p * x", "x / p")),
    Case("one of three", lambda d: _call(d, "torch.addmm(p, q, x)", "torch.where(p > 0, q, x)", "torch.lerp(p, q, x)")),
    Case("lists", lambda d: _call(d, "torch.cat([x, y, p])", "torch.stack([p, x])", "torch.cat([p, q, x])")),
    Case(
        "keywords",
        lambda d: _call(d, "torch.add(p, x, alpha=2)", "x.to(torch.float16).double()", "x.sum(dtype=torch.float32)"),
    ),
    Case("several results", lambda d: _call(d, "x.max(-1)", "x.sort(-1)", "torch.aminmax(x)")),
    Case("scaled in place", lambda d: _call(d, "x.mul_(n)", "x.div_(n)", "x.mul_(n) + p")),
    Case("views of what is scaled", lambda d: _call(d, *SHOWN)),
    Case("a view scaled in place", lambda d: _call(d, *PARTS, "x.t().reshape(-1).mul_(n)", "x.clone().div_(n)")),
    Case("refused", lambda d: _call(d, *REFUSED)),
    Case("written by a wrapper", lambda d: _call(d, *WRITTEN)),
    Case("gradients", lambda d: _call(d, *GRADIENTS, backward=True)),
    Case("fp32 gradients", lambda d: _call(d, *d.rng.sample(GRADIENTS, 3), backward=True, dtype="float32")),
)


def _truth(v) -> dict:
    return {"results": scaling.worked_out(truth.Scaled, v["expressions"], v["call"])}


# Mistakes that some draws of a case show and others do not
UNSTEADY = {
    "rounded division": "computed_on_held",
    "products of stacks": "scales_of_products",
    "fp32 gradients": "factors_alike first_argument_only lists_missed numbers_twice "
    "scale_lost_in_views scales_of_products",
}

SUBCLASS = Exercise(
    name="dispatch.subclass",
    entry="Scaled",
    points=6,
    about="a tensor that keeps its scale apart for as long as that is exact",
    point=("views", "products", "refused"),
    kind="scenario",
    cases=telling(
        CASES,
        _truth,
        MISTAKES,
        accept,
        among=UNSTEADY,
    ),
    oracle=_truth,
    mistakes=MISTAKES,
    returns=("results",),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.scaling:worked_out",
)
SUBCLASS = judged_here(SUBCLASS, truth)
