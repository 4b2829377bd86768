"""roofline.work: count the FLOPs and the least bytes of six operators.

    work(op, sizes, dtype) -> (flops, bytes)

`op` and the keys of `sizes` (all values are positive integers):

    "matmul"            batch, m, n, k                           C = A B: A is (m, k), B is (k, n), C is (m, n)
    "add"               elements                                 out = x + y, all three of one shape
    "softmax"           rows, columns                            every row: exp(x - max) / sum
    "layer_norm"        rows, columns                            every row: (x - mean) * rstd * weight + bias
    "naive_attention"   batch, heads, queries, keys, head_size   three kernels: S = scale Q K^T, P = softmax(S), O = P V
    "fused_attention"   the same                                 one kernel; S and P never leave the chip

`dtype` is "fp64" (8 bytes), "fp32" (4), "tf32" (4: the tensor cores read 19 of the 32 bits, memory keeps them all),
"bf16" (2), "fp16" (2) or "fp8" (1), and holds for every tensor of the operator.

FLOPs
- An addition, subtraction, multiplication, division, comparison, exponential or reciprocal square root is 1 FLOP.
- A multiply-add is 2, so a dot product of length k is 2k.
- Reducing n values to one (a sum, a maximum) is n.
- Softmax, an element: maximum 1, subtraction 1, exponential 1, sum 1, division 1; 5 in all.
- Layer norm, an element: sum for the mean 1, subtraction of the mean 1, square 1, sum of the squares 1,
  times rstd 1, times weight 1, plus bias 1; 7 in all. A row on top of that: mean = sum / columns 1,
  variance = sum / columns 1, plus eps 1, reciprocal square root 1; 4 in all.
- Attention: the two products, 1 for scaling each score, and softmax over the keys of each query. Naive and fused
  attention do the same arithmetic; what a fused kernel spends on rescaling its running sums is not counted.

Bytes
- Every input is read once and every output written once, a kernel. Nothing else moves: what a kernel needs twice it
  keeps on chip.
- Layer norm reads weight and bias (`columns` values each) once in all, not once a row.
- Naive attention is three kernels, so S and P are each written once and read once.
- Fused attention reads Q, K and V and writes O. K and V have `keys` rows, Q and O have `queries` rows.
- Bytes, not bits, and not kilobytes.
"""

from autograder.exercise import Call, Case, Draw, Exercise
from autograder.exercises.roofline.ledger import answer
from autograder.exercises.roofline.work_mistakes import MISTAKES
from autograder.exercises.telling import telling


def accept(got, want, args) -> str | None:
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        return f"`work` should return two numbers, (flops, bytes); got {got!r:.60}"
    said = f"{args['op']} of {', '.join(f'{k} {n}' for k, n in args['sizes'].items())} in {args['dtype']}"
    for value, true, what, advice in (
        (got[0], want[0], "FLOPs", "Write down what happens to one element, then count the elements."),
        (got[1], want[1], "bytes", "List every tensor that a kernel reads or writes, its elements, its item size."),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return f"the {what} of {said} should be a number, got {type(value).__name__}"
        if not abs(value - true) <= 1e-9 * true:
            return f"{said}: {value:g} {what} is too {'few' if value < true else 'many'}. {advice}"
    return None


# ------------------------------------------------------------------------------------------------- the cases

USUAL = ("fp32", "bf16", "fp16")


def _call(op: str, dtype: str, **sizes: int) -> Call:
    return Call(
        {"op": op, "sizes": sizes, "dtype": dtype}, ", ".join(f"{k} {n}" for k, n in sizes.items()) + f", {dtype}"
    )


def _matmul(d: Draw, dtypes=USUAL, batch=1) -> Call:
    m, n, k = d.rng.sample(range(33, 9000), 3)
    return _call("matmul", d.choice(dtypes), batch=batch, m=m, n=n, k=k)


def _rows(d: Draw, op: str, dtypes=USUAL, rows=None) -> Call:
    return _call(op, d.choice(dtypes), rows=rows or d.integer(100, 9000), columns=d.integer(50, 9000))


def _attention(d: Draw, op: str, dtypes=USUAL, **fixed: int) -> Call:
    n = d.integer(200, 5000)
    sizes = {"batch": d.integer(2, 9), "heads": d.integer(3, 24), "queries": n, "keys": n}
    return _call(op, d.choice(dtypes), **{**sizes, "head_size": d.choice([40, 64, 72, 96, 128]), **fixed})


def _cross(d: Draw, op: str) -> Call:
    queries = d.integer(100, 900)
    return _attention(d, op, queries=queries, keys=queries * d.integer(2, 5) + 7)


CASES = (
    Case("matmul", _matmul),
    Case("matmul in fp8", lambda d: _matmul(d, ("fp8",))),
    Case("matmul in tf32", lambda d: _matmul(d, ("tf32",))),
    Case("a batch of matmuls", lambda d: _matmul(d, batch=d.integer(3, 40))),
    Case("add", lambda d: _call("add", d.choice(("bf16", "fp16")), elements=d.integer(1000, 10**8))),
    Case("softmax", lambda d: _rows(d, "softmax", ("bf16", "fp16"))),
    Case("softmax in fp64", lambda d: _rows(d, "softmax", ("fp64",))),
    Case("layer norm", lambda d: _rows(d, "layer_norm")),
    Case(
        "layer norm of short rows",
        lambda d: _call("layer_norm", "fp32", rows=d.integer(1000, 9000), columns=d.integer(2, 9)),
    ),
    Case("layer norm of few rows", lambda d: _rows(d, "layer_norm", ("fp16",), rows=d.integer(3, 7))),
    Case("naive attention", lambda d: _attention(d, "naive_attention", ("bf16", "fp16"))),
    Case("naive attention, more keys than queries", lambda d: _cross(d, "naive_attention")),
    Case("fused attention", lambda d: _attention(d, "fused_attention", ("bf16", "fp16"))),
    Case("fused attention, more keys than queries", lambda d: _cross(d, "fused_attention")),
    Case("fused attention of one query", lambda d: _attention(d, "fused_attention", queries=1)),
    Case(
        "every size is one",
        lambda d: _attention(d, "naive_attention", ("fp32",), batch=1, heads=1, queries=1, keys=1, head_size=1),
    ),
)

WORK = Exercise(
    name="roofline.work",
    entry="work",
    points=6,
    about="what has to cross memory, and what fusing saves of it",
    point=("add", "naive attention", "fused attention", "fused attention, more keys than queries"),
    kind="scenario",
    cases=telling(CASES, answer, MISTAKES, accept),
    oracle=answer,
    mistakes=MISTAKES,
    returns=("work",),
    accept=accept,
    launches=False,
)
