"""dispatch.meter: a mode that counts the FLOPs and the bytes of whatever runs inside it.

    with Meter() as meter: ...
    meter.flops, meter.bytes

`Meter` is a `torch.utils._python_dispatch.TorchDispatchMode`: every operator passes through its `__torch_dispatch__`,
those of the backward pass too.

FLOPs: 2 m n k of each product of matrices (aten.mm, aten.addmm, aten.bmm, aten.baddbmm, the last two times the batch).
Attention that is one operator, aten._scaled_dot_product_...: 2 products forward and 5 backward, each of 2 FLOP for each
batch entry, head, query, key and place of a head; what a mask hides counts. aten.convolution: 2 FLOP for each element
of the result and each weight of one of its channels; aten.convolution_backward the same for the gradient of the input
and for that of the weight, where `output_mask` asks for them. Nothing else counts.

An operator that is made of others and comes as a whole, as they do in inference mode, counts as its parts
(`func.decompose`, with the mode active).

Bytes of an operator: those of every tensor in its arguments, lists and keywords included, plus those of every tensor in
its result; the bytes of a tensor are its elements times their size. Two kinds move nothing: views, which give memory of
an argument back and write nothing (`func.is_view`, and aten._unsafe_view), and allocations (aten.empty,
aten.empty_like and the like). An operator that works in place reads its argument and writes it: it counts twice, once
in each role.

Right means both numbers, exactly, and the program computes what it computes without the mode.
"""

from __future__ import annotations

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.dispatch.meter_mistakes import MISTAKES, truth
from autograder.exercises.recorded import judged_here
from autograder.exercises.telling import telling
from autograder.inside.probes import meters

# -------------------------------------------------------------------------------------------- the comparison


def accept(got, want, args) -> str | None:
    if isinstance(want, float):
        close = isinstance(got, float) and abs(got - want) <= 1e-6 * max(1.0, abs(want))
        return None if close else "under the mode the program computes something else"
    if not isinstance(got, dict) or set(got) != set(want):
        return "the meter should have counted flops and bytes"
    for name, true in want.items():
        here = got[name]
        if isinstance(here, bool) or not isinstance(here, int | float):
            return f"{name} should be a number, got {here!r:.40}"
        if here != true:
            return f"{here:,} {name} were counted: too {'few' if here < true else 'many'}"
    return None


# ------------------------------------------------------------------------------------------------- the cases

PRODUCTS = ("x = x @ w", "x = F.linear(x, w, b)", "x = torch.matmul(x, w.t())")
POINTWISE = ("x = x + b", "x = x * 2", "x = torch.relu(x)", "x = x.sigmoid()", "x = x - x.mean()")
VIEWS = ("x = x.transpose(0, -1).transpose(0, -1)", "x = x.unsqueeze(0)[0]", "x = x.view(-1).view_as(x)")
SEVERAL = ("x = F.layer_norm(x, (w.shape[0],))", "x = x - x.max(-1, keepdim=True)[0]")
LISTS = ("x = torch.cat([x, x, x])[: x.shape[0]]", "x = torch.stack([x, x * 2, x])[1]")
GIVEN = ("x = torch.add(x, b, out=torch.empty_like(x))", "x = torch.mul(x, 2, out=x + 1)")
IN_PLACE = ("x = (x * 2).add_(b)", "x = (x + 1).mul_(x)", "x = (x + 0).relu_()")


def _call(d: Draw, lines, batch=None, dtype="float32", backward=False, around="nothing") -> Call:
    source = "\n".join(["def f(x, w, b):", *(f"    {line}" for line in lines), "    return x", ""])
    batch = [d.integer(2, 9)] if batch is None else batch
    sizes = {"batch": batch, "n": d.integer(3, 8), "dtype": dtype, "backward": backward, "seed": d.integer(0, 2**31)}
    sizes["around"] = around
    told = f"{len(lines)} lines, {dtype}{', backward' if backward else ''}"
    return Call({"source": source, "sizes": sizes}, told if around == "nothing" else f"{told}, in {around}")


def _some(d: Draw, *kinds, count: int = 4) -> list[str]:
    """At least one of each kind, in any order."""
    lines = [d.choice(kind) for kind in kinds]
    lines += [d.choice(d.choice(kinds)) for _ in range(count - len(lines))]
    d.rng.shuffle(lines)
    return lines


BATCHED = ("x = torch.bmm(x, x.transpose(1, 2)) @ x", "x = torch.baddbmm(x, torch.bmm(x, x.transpose(1, 2)), x)")
ALLOCATED = ("x = torch.empty_like(x).copy_(x)", "x = x.new_empty(x.shape).copy_(x) * 2")


def _attention(d: Draw, backward: bool) -> Call:
    lines = [
        "q, k, v = F.linear(x, w, b), x @ w, x",
        "p = torch.softmax(q @ k.transpose(1, 2) / 2, -1)",
        "x = x + p @ v",
    ]
    return _call(d, lines, batch=[d.integer(2, 3), d.integer(2, 6)], backward=backward)


WHOLE_ATTENTION = (
    "q, k, v = (t[:, None] for t in (x, x @ w, x * 2))",
    "x = F.scaled_dot_product_attention(q, k, v, is_causal={causal})[:, 0]",
)
CONVOLUTIONS = (
    "x = F.conv1d(x.t()[None], w[:, :, None])[0].t()",
    "x = F.conv1d(x.t()[None], torch.stack([w, w.t()], -1), b, padding=1)[0, :, 1:].t()",
    "x = F.conv1d(x.t()[None], w[:, None, :3], padding=1, groups=w.shape[0])[0].t()",
)
INFERRED = ("x = F.linear(x, w, b)", "x = torch.matmul(x, w.t())", "x = x @ w")


def _whole_attention(d: Draw, **how) -> Call:
    lines = [line.format(causal=d.choice((True, False))) for line in WHOLE_ATTENTION]
    return _call(d, lines, batch=[d.integer(2, 3), d.integer(2, 6)], **how)


CASES = (
    Case("products", lambda d: _call(d, _some(d, PRODUCTS))),
    Case("pointwise", lambda d: _call(d, _some(d, POINTWISE))),
    Case("views", lambda d: _call(d, _some(d, VIEWS, POINTWISE))),
    Case("batched products", lambda d: _call(d, _some(d, BATCHED, count=2), batch=[d.integer(2, 4), d.integer(2, 5)])),
    Case("products of three dimensions", lambda d: _call(d, _some(d, PRODUCTS, count=3), batch=[2, d.integer(2, 5)])),
    Case("several results", lambda d: _call(d, _some(d, SEVERAL))),
    Case("lists of tensors", lambda d: _call(d, _some(d, LISTS))),
    Case("a result that is given", lambda d: _call(d, _some(d, GIVEN))),
    Case("in place", lambda d: _call(d, _some(d, IN_PLACE))),
    Case("allocated memory", lambda d: _call(d, _some(d, ALLOCATED, count=2))),
    Case("fp64", lambda d: _call(d, _some(d, PRODUCTS, POINTWISE), dtype="float64")),
    Case("forward and backward", lambda d: _call(d, _some(d, PRODUCTS, POINTWISE), backward=True)),
    Case("attention", lambda d: _attention(d, backward=False)),
    Case("attention, backward too", lambda d: _attention(d, backward=True)),
    Case("attention in one operator", _whole_attention),
    Case("attention in one operator, backward too", lambda d: _whole_attention(d, backward=True)),
    Case("convolutions", lambda d: _call(d, _some(d, CONVOLUTIONS, count=2))),
    Case("convolutions, backward too", lambda d: _call(d, _some(d, CONVOLUTIONS, count=2), backward=True)),
    Case("no_grad", lambda d: _call(d, _some(d, PRODUCTS, POINTWISE), around="no_grad")),
    Case("inference mode", lambda d: _call(d, _some(d, INFERRED, POINTWISE, VIEWS), around="inference_mode")),
    Case("inference mode, three dimensions", lambda d: _call(d, INFERRED, batch=[2, 3], around="inference_mode")),
    Case("inference mode, attention", lambda d: _whole_attention(d, around="inference_mode")),
    Case("inference mode, a convolution", lambda d: _call(d, [d.choice(CONVOLUTIONS)], around="inference_mode")),
)


def _truth(v) -> dict:
    return dict(zip(("counts", "sum"), meters.metered(truth.Meter, v["source"], v["sizes"]), strict=True))


# Mistakes that some draws of a case show and others do not
UNSTEADY = {
    "products": "addmm_missed",
    "batched products": "addmm_missed unsafe_view_counted",
    "products of three dimensions": "addmm_missed unsafe_view_counted",
    "several results": "four_bytes_an_element",
    "a result that is given": "allocations_counted",
    "fp64": "addmm_missed",
    "forward and backward": "addmm_missed whole_memory",
    "convolutions": "lists_missed whole_memory",
    "convolutions, backward too": "lists_missed whole_memory",
    "no_grad": "addmm_missed bias_taken_for_a_factor views_counted",
    "inference mode": "addmm_missed bias_taken_for_a_factor",
    "inference mode, a convolution": "lists_missed whole_memory",
}

METER = Exercise(
    name="dispatch.meter",
    entry="Meter",
    points=6,
    about="FLOP and bytes of what really ran",
    point=("products", "views", "in place", "inference mode"),
    kind="scenario",
    cases=telling(CASES, _truth, MISTAKES, accept, among=UNSTEADY),
    oracle=_truth,
    mistakes=MISTAKES,
    returns=("counts", "sum"),
    accept=accept,
    launches=False,
    probe="autograder.inside.probes.meters:metered",
)
METER = judged_here(METER, truth)
