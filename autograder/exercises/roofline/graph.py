"""roofline.graph: many tiny launches, paid for once.

`run_many` is called again and again, as a server calls a model: a graph is captured when a size is first seen, and
replayed in every later call with new inputs and new weights. A capture costs an H200's host 1 to 3 ms, a call of 8
inputs 0.5 ms with a graph that is there: whoever captures in each call is right, and earns nothing for speed.

The floor is what the device takes for these operations in a graph, measured there. A share of what a launch costs the
host, as it was before, gave one that launches everything half of the points where the host was busy.

The step is given and the same for everybody, so that a referee who sees tensors only can tell whether each input was
really replayed: 16 layers of `x = x + sin(x * w[layer])`, three launches a layer, on so few numbers that a launch
costs far more than the work.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Mistake, Precision, Speed
from course_lib.ceilings import in_a_graph

LAYERS = 16
LAUNCHES_A_LAYER = 3  # multiply, sine, add
ON_AN_H200_S = 1.29e-6  # an operation in a graph: for cards that are looked at on paper


def _call(draw: Draw, inputs: int, n: int, gap: int = 0) -> Call:
    xs = draw.normal(inputs, n, strides=(n + gap, 1))
    w = draw.uniform(LAYERS, n, low=-1.0, high=1.0)
    sizes = f"{inputs} inputs of {n}" + (f", {n + gap} apart" if gap else "")
    return Call({"xs": xs, "w": w, "out": draw.empty(inputs, n)}, sizes)


CASES = (
    Case("a few inputs", lambda d: _call(d, d.integer(3, 7), d.integer(200, 900)), tiers=ON_GPU),
    Case("one input", lambda d: _call(d, 1, d.integer(100, 200)), tiers=ON_GPU),
    Case("one number each", lambda d: _call(d, d.integer(4, 9), 1), tiers=ON_GPU),
    Case("other sizes", lambda d: _call(d, d.integer(8, 12), d.integer(1000, 3000)), tiers=ON_GPU),
    Case("the same sizes again", lambda d: _call(d, 6, 640), tiers=ON_GPU),
    Case("the same sizes, other weights", lambda d: _call(d, 6, 640), tiers=ON_GPU),
    Case(
        "inputs with gaps", lambda d: _call(d, d.integer(3, 6), d.integer(30, 90), gap=d.integer(5, 20)), tiers=ON_GPU
    ),
    Case("many inputs", lambda d: _call(d, d.integer(200, 300), d.integer(20, 60)), tiers=ON_GPU),
)


def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The loop of tiny operations: x (..., n), w (layers, n)."""
    for row in w:
        x = x + torch.sin(x * row)
    return x


def _all(v, dtype: torch.dtype) -> torch.Tensor:
    return step(v["xs"].to(dtype), v["w"].to(dtype))


def _truth(v) -> torch.Tensor:
    return _all(v, torch.float64)


def _rounded(v) -> torch.Tensor:
    """fp16 between two operations."""
    x, w = v["xs"].half().float(), v["w"].half().float()
    for row in w:
        x = (x + torch.sin((x * row).half().float()).half().float()).half().float()
    return x


def _row_missing(v, index: int):
    out = _truth(v)
    out[index] = float("nan")
    return {"out": out}


def _without_residual(v) -> torch.Tensor:
    x = v["xs"].double()
    for row in v["w"].double():
        x = torch.sin(x * row)
    return x


def _one_behind(v):
    truth = _truth(v)
    return {"out": torch.cat([truth[:1], truth[:-1]])}


def _iterated(v):
    """Every result is fed back in; the inputs after the first are never looked at."""
    x, w, rows = v["xs"][0].double(), v["w"].double(), []
    for _ in range(len(v["xs"])):
        x = step(x, w)
        rows.append(x)
    return {"out": torch.stack(rows)}


def _floor_s(v, ceilings) -> float:
    """What the device takes for the operations, if all are in a graph and nothing else is done."""
    return _operations(v) * (in_a_graph() if v["xs"].is_cuda else ON_AN_H200_S)


def _operations(v) -> int:
    return len(v["xs"]) * LAYERS * LAUNCHES_A_LAYER


GRAPH = Exercise(
    name="roofline.graph",
    entry="run_many",
    points=3,
    about="a graph that is captured once for each size and replayed in later calls, with new inputs and new weights",
    point=("a few inputs", "the same sizes again", "the same sizes, other weights"),
    kind="kernel",
    cases=CASES,
    writes=("out",),
    oracle=lambda v: {"out": _truth(v)},
    precision=Precision(
        good=lambda v: {"out": _all(v, torch.float32)},
        good_is="fp32 throughout",
        lower=lambda v: {"out": _rounded(v)},
        lower_is="fp16 between two operations",
    ),
    mistakes=(
        Mistake(
            "captured_on_default_stream",
            "The default stream cannot be captured: use `with torch.cuda.graph(graph):`, which switches to a stream of "
            "its own, or make one and capture there.",
            sign=lambda e: e.raised("non-default stream"),
        ),
        Mistake(
            "waits_inside_capture",
            "Something inside the capture waits for the GPU or copies to or from the host (`synchronize`, `item`, "
            "`cpu`, a tensor made from a Python number): a capture records and runs nothing, so nothing can be waited "
            "for. Move it out.",
            sign=lambda e: e.raised("captur"),
        ),
        Mistake(
            "graph_kept_for_other_sizes",
            "The graph of an earlier call was replayed with inputs of another size: it is bound to the sizes it was "
            "captured with. Keep one graph for each size.",
            sign=lambda e: e.raised("must match the size"),
        ),
        Mistake(
            "weights_of_the_first_call",
            "Another call of the same size had other weights, and the graph read those of the first: it reads the "
            "addresses it was captured with. Keep a static copy of `w` beside that of the input, and copy into it.",
            sign=lambda e: e.failed_only("the same sizes, other weights", "the same sizes again"),
        ),
        Mistake(
            "changes_inputs",
            "`xs` was changed: the step must work on a static copy, not on the caller's inputs.",
            sign=lambda e: e.changed("xs"),
        ),
        Mistake(
            "never_replayed",
            "`out` was not written at all: a capture records the operations and runs none of them, `graph.replay()` "
            "does.",
            sign=lambda e: e.all_failing_unwritten("out"),
        ),
        Mistake(
            "stale_input",
            "Every result is that of the first input: the replay reads the memory it was captured with. Copy each new "
            "input into it with `static_x.copy_(x)`; `static_x = x` only renames.",
            answer=lambda v: {"out": _truth(v)[:1].expand_as(v["out"])},
        ),
        Mistake(
            "aliased_output",
            "Every result is that of the last input: all of them are the one static output, which each replay "
            "overwrites. Copy it into `out` before the next replay.",
            answer=lambda v: {"out": _truth(v)[-1:].expand_as(v["out"])},
        ),
        Mistake(
            "one_behind",
            "Each result belongs to the input before: the order is copy in, replay, copy out.",
            answer=_one_behind,
        ),
        Mistake(
            "fed_back",
            "Each result is the step of the result before: the step was captured in place on the static input, and new "
            "inputs are not copied in.",
            answer=_iterated,
        ),
        Mistake(
            "first_result_missing",
            "The result of the first input is missing: the capture does not run it, so it needs a replay like all "
            "others.",
            answer=lambda v: _row_missing(v, 0),
        ),
        Mistake(
            "last_result_missing",
            "The result of the last input is missing: the loop ends one input early.",
            answer=lambda v: _row_missing(v, -1),
        ),
        Mistake(
            "only_first_result",
            "Only the first result is there: replay once for every input.",
            answer=lambda v: {"out": torch.cat([_truth(v)[:1], torch.full_like(v["out"][1:], torch.nan)])},
        ),
        Mistake(
            "layer_missing",
            "One layer is missing: the loop runs over all rows of `w`.",
            answer=lambda v, rows: {"out": step(v["xs"].double(), v["w"][rows].double())},
            variants=(slice(0, -1), slice(1, None)),
        ),
        Mistake(
            "one_layer_only",
            "Only one layer was captured: the whole loop over `w` belongs into the graph.",
            answer=lambda v, row: {"out": step(v["xs"].double(), v["w"][row : row + 1].double())},
            variants=(0, LAYERS - 1),
        ),
        Mistake(
            "residual_missing",
            "`x` is missing in the sum: a layer is `x + sin(x * w)`.",
            answer=lambda v: {"out": _without_residual(v)},
        ),
        Mistake(
            "step_twice",
            "The step is applied twice: a warm-up or the capture works in place on the very buffer that is replayed.",
            answer=lambda v: {"out": step(_truth(v), v["w"].double())},
        ),
        Mistake(
            "half_precision",
            "The error is what fp16 gives: run the step in fp32, without autocast.",
            answer=lambda v: {"out": _rounded(v)},
        ),
    ),
    speed=Speed(
        points=3,
        cases=(Case("launch-bound", lambda d: _call(d, 8, 256), tiers=ON_GPU),),  # a capture costs more than the call
        floor_s=_floor_s,
        full=0.8,
        none=0.7,
        least_kernels=_operations,  # all inputs as one batch, or as a few, need fewer, and no graph
    ),
    tiers=ON_GPU,
    launches=False,
)
