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

from math import prod

from autograder.exercise import Call, Case, Draw, Exercise, Mistake

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
ATTENTION = ("naive_attention", "fused_attention")

# ------------------------------------------------------------------------------------------------- the truth


def _flops(v, fma=2, softmax=5, scale=1, norm=7, norm_row=4) -> int:
    op, s = v["op"], v["sizes"]
    if op == "matmul":
        return fma * prod(s.values())
    if op == "add":
        return s["elements"]
    if op == "softmax":
        return softmax * s["rows"] * s["columns"]
    if op == "layer_norm":
        return s["rows"] * (norm * s["columns"] + norm_row)
    scores = s["batch"] * s["heads"] * s["queries"] * s["keys"]
    return scores * (2 * fma * s["head_size"] + scale + softmax)


def _moves(v) -> dict[str, int]:
    """Elements read and written, tensor by tensor: the ledger that mistakes leave lines out of."""
    op, s = v["op"], v["sizes"]
    if op == "matmul":
        b, m, n, k = s["batch"], s["m"], s["n"], s["k"]
        return {"read a": b * m * k, "read b": b * k * n, "write c": b * m * n}
    if op == "add":
        return dict.fromkeys(("read x", "read y", "write out"), s["elements"])
    if op == "softmax":
        return dict.fromkeys(("read x", "write out"), s["rows"] * s["columns"])
    if op == "layer_norm":
        x = s["rows"] * s["columns"]
        return {"read x": x, "read weight": s["columns"], "read bias": s["columns"], "write out": x}
    pairs = s["batch"] * s["heads"]
    q, k = pairs * s["queries"] * s["head_size"], pairs * s["keys"] * s["head_size"]
    moves = {"read q": q, "read k": k, "read v": k, "write o": q}
    if op == "naive_attention":
        scores = pairs * s["queries"] * s["keys"]
        moves |= dict.fromkeys(("write s", "read s", "write p", "read p"), scores)
    return moves


def _answer(v, flops=None, moves=None, item=None) -> dict:
    """The right answer, but for what is given."""
    flops = _flops(v) if flops is None else flops
    moves = _moves(v) if moves is None else moves
    return {"work": (flops, (BYTES[v["dtype"]] if item is None else item) * sum(moves.values()))}


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

# ---------------------------------------------------------------------------------------------- the mistakes


def _without(v, *lines: str) -> dict[str, int]:
    return {name: n for name, n in _moves(v).items() if name not in lines}


def _with_sizes(v, **changed: int) -> dict:
    """What comes out when some sizes are taken for others."""
    known = {name: n for name, n in changed.items() if name in v["sizes"]}
    return _answer({**v, "sizes": {**v["sizes"], **known}})


def _k_squared(v):
    if v["op"] != "matmul":
        return _answer(v)
    return _answer(v, flops=_flops(v) * v["sizes"]["k"])


def _square(v):
    side = v["sizes"].get("n", 1)
    return _with_sizes(v, m=side, k=side)


def _last_add_left_out(v):
    s = v["sizes"]
    if v["op"] == "matmul":
        return _answer(v, flops=_flops(v) - s["batch"] * s["m"] * s["n"])
    if v["op"] not in ATTENTION:
        return _answer(v)
    pairs = s["batch"] * s["heads"] * s["queries"]
    return _answer(v, flops=_flops(v) - pairs * (s["keys"] + s["head_size"]))


def _scores_moved_by_fused(v):
    return _answer(v, moves=_moves({**v, "op": "naive_attention"})) if v["op"] in ATTENTION else _answer(v)


def _parameters_each_row(v):
    moves = _moves(v)
    for line in ("read weight", "read bias"):
        if line in moves:
            moves[line] *= v["sizes"]["rows"]
    return _answer(v, moves=moves)


def _three_passes(v):
    """What a row-wise kernel moves that reads its row again for each reduction."""
    moves = _moves(v)
    if v["op"] in ("softmax", "layer_norm"):
        moves["read x"] *= 3
    return _answer(v, moves=moves)


def _only_products(v):
    if v["op"] in ATTENTION:
        return _answer(v, flops=_flops(v, softmax=0, scale=0))
    return _answer(v)


def _swapped(v):
    flops, moved = _answer(v)["work"]
    return {"work": (moved, flops)}


def _scaled(v, unit):
    flops, moved = _answer(v)["work"]
    return {"work": (flops / unit[0], moved / unit[1])}


MISTAKES = (
    Mistake(
        "flops_and_bytes_swapped",
        "The two numbers are in the wrong order: return (flops, bytes).",
        answer=_swapped,
    ),
    Mistake(
        "wrong_unit",
        "The counts are scaled (GFLOP, GB, GiB or the like): return plain FLOPs and plain bytes.",
        answer=_scaled,
        variants=((1e9, 1e9), (1e12, 1e9), (1e6, 1e6), (1e9, 2**30), (1e12, 1e12), (1e12, 2**30), (1, 1e9), (1e9, 1)),
    ),
    Mistake(
        "bits_for_bytes",
        "The traffic is 8 times too large: the 16 in fp16 are bits, which is 2 bytes.",
        answer=lambda v: _answer(v, item=8 * BYTES[v["dtype"]]),
    ),
    Mistake(
        "itemsize_forgotten",
        "These are elements, not bytes: multiply by the size of one element in this dtype.",
        answer=lambda v: _answer(v, item=1),
    ),
    Mistake(
        "tf32_in_fewer_bytes",
        "tf32 is a way of multiplying, not of storing: in memory such a tensor is fp32, 4 bytes an element.",
        answer=lambda v, item: _answer(v, item=item if v["dtype"] == "tf32" else None),
        variants=(2, 2.375, 2.5, 3),
    ),
    Mistake(
        "always_four_bytes",
        "Every element was taken to have 4 bytes: the dtype decides.",
        answer=lambda v: _answer(v, item=4),
    ),
    Mistake(
        "always_two_bytes",
        "Every element was taken to have 2 bytes: the dtype decides.",
        answer=lambda v: _answer(v, item=2),
    ),
    Mistake(
        "multiply_add_once",
        "A multiply-add was counted as one operation. It is two: a product of (m, k) and (k, n) does 2mnk.",
        answer=lambda v: _answer(v, flops=_flops(v, fma=1)),
    ),
    Mistake(
        "last_add_left_out",
        "A dot product of length k was counted as 2k - 1. By the rule here the accumulator starts at zero and is "
        "added to k times: 2k.",
        answer=_last_add_left_out,
    ),
    Mistake(
        "k_squared",
        "The inner size of the matmul is in the count twice: m n dot products, each of length k.",
        answer=_k_squared,
    ),
    Mistake(
        "matmul_taken_as_square",
        "The matmul was counted as if all three sizes were the same. A is (m, k), B is (k, n), C is (m, n).",
        answer=_square,
    ),
    Mistake(
        "batch_forgotten",
        "This is the work of one matrix, or of one entry of the batch: multiply by the batch.",
        answer=lambda v: _with_sizes(v, batch=1),
    ),
    Mistake(
        "heads_forgotten",
        "This is the work of one head: every head has its own Q, K, V and scores.",
        answer=lambda v: _with_sizes(v, heads=1),
    ),
    Mistake(
        "keys_taken_for_queries",
        "Right only for as many keys as queries: the scores are (queries, keys), and K and V have `keys` rows.",
        answer=lambda v: _with_sizes(v, keys=v["sizes"].get("queries", 0)),
    ),
    Mistake(
        "queries_taken_for_keys",
        "Right only for as many keys as queries: the scores are (queries, keys), and Q and O have `queries` rows.",
        answer=lambda v: _with_sizes(v, queries=v["sizes"].get("keys", 0)),
    ),
    Mistake(
        "one_input_counted",
        "An addition reads two inputs: three tensors move in all.",
        answer=lambda v: _answer(v, moves=_without(v, *(["read y"] if v["op"] == "add" else []))),
    ),
    Mistake(
        "output_forgotten",
        "Only the inputs were counted: what a kernel writes crosses the memory bus too.",
        answer=lambda v: _answer(v, moves={n: e for n, e in _moves(v).items() if not n.startswith("write")}),
    ),
    Mistake(
        "last_output_forgotten",
        "The final result is missing from the bytes: it is written once, like any intermediate.",
        answer=lambda v: _answer(v, moves=_without(v, "write c", "write out", "write o")),
    ),
    Mistake(
        "scores_not_read_back",
        "Half of the score traffic of naive attention is missing: S and P are each written by one kernel and read "
        "back by the next.",
        answer=lambda v: _answer(v, moves=_without(v, "read s", "read p")),
    ),
    Mistake(
        "scores_counted_once",
        "Naive attention was charged for one pass over the scores. S and P are each written by one kernel and read "
        "by the next.",
        answer=lambda v: _answer(v, moves=_without(v, "read s", "write p", "read p")),
    ),
    Mistake(
        "scores_moved_by_fused",
        "Fused attention was charged for the scores: they stay on the chip, only Q, K, V and O move.",
        answer=_scores_moved_by_fused,
    ),
    Mistake(
        "scores_free_in_naive",
        "Naive attention was counted as if it were fused: its S and P go through memory.",
        answer=lambda v: _answer(v, moves=_without(v, "write s", "read s", "write p", "read p")),
    ),
    Mistake(
        "v_forgotten",
        "Attention reads three inputs: K and V are both (keys, head_size).",
        answer=lambda v: _answer(v, moves=_without(v, "read v")),
    ),
    Mistake(
        "attention_is_two_products",
        "Only the two matrix products of attention were counted: scaling and softmax do arithmetic on every score.",
        answer=_only_products,
    ),
    Mistake(
        "scale_forgotten",
        "Attention multiplies every score by a scale before softmax: 1 FLOP each.",
        answer=lambda v: _answer(v, flops=_flops(v, scale=0)),
    ),
    Mistake(
        "exponential_free",
        "Softmax came out one FLOP an element too low: the exponential counts as 1.",
        answer=lambda v: _answer(v, flops=_flops(v, softmax=4)),
    ),
    Mistake(
        "softmax_without_maximum",
        "This softmax does not subtract the row's maximum: finding it and subtracting it are 2 FLOPs an element.",
        answer=lambda v: _answer(v, flops=_flops(v, softmax=3)),
    ),
    Mistake(
        "three_passes",
        "The rows were read once for each reduction. The least traffic reads a row once and keeps it on the chip.",
        answer=_three_passes,
    ),
    Mistake(
        "norm_parameters_forgotten",
        "Layer norm also reads its weight and its bias, `columns` values each.",
        answer=lambda v: _answer(v, moves=_without(v, "read weight", "read bias")),
    ),
    Mistake(
        "norm_parameters_each_row",
        "Weight and bias were counted for every row: they are read once in all and stay on the chip.",
        answer=_parameters_each_row,
    ),
    Mistake(
        "norm_row_terms_forgotten",
        "Layer norm also does 4 operations a row: two divisions, plus eps, reciprocal square root.",
        answer=lambda v: _answer(v, flops=_flops(v, norm_row=0)),
    ),
    Mistake(
        "norm_without_affine",
        "Layer norm ends with times weight, plus bias: 2 FLOPs an element are missing.",
        answer=lambda v: _answer(v, flops=_flops(v, norm=5)),
    ),
)

WORK = Exercise(
    name="roofline.work",
    entry="work",
    points=6,
    kind="scenario",
    cases=CASES,
    oracle=_answer,
    mistakes=MISTAKES,
    returns=("work",),
    accept=accept,
    launches=False,
)
