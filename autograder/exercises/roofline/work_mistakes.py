"""How people miscount: the known wrong answers to roofline.work."""

from autograder.exercise import Mistake
from autograder.exercises.roofline.ledger import ATTENTION, BYTES, answer, flops, moves


def _without(v, *lines: str) -> dict[str, int]:
    return {name: n for name, n in moves(v).items() if name not in lines}


def _with_sizes(v, **changed: int) -> dict:
    """What comes out when some sizes are taken for others."""
    known = {name: n for name, n in changed.items() if name in v["sizes"]}
    return answer({**v, "sizes": {**v["sizes"], **known}})


def _k_squared(v):
    if v["op"] != "matmul":
        return answer(v)
    return answer(v, does=flops(v) * v["sizes"]["k"])


def _square(v):
    side = v["sizes"].get("n", 1)
    return _with_sizes(v, m=side, k=side)


def _last_add_left_out(v):
    s = v["sizes"]
    if v["op"] == "matmul":
        return answer(v, does=flops(v) - s["batch"] * s["m"] * s["n"])
    if v["op"] not in ATTENTION:
        return answer(v)
    pairs = s["batch"] * s["heads"] * s["queries"]
    return answer(v, does=flops(v) - pairs * (s["keys"] + s["head_size"]))


def _scores_moved_by_fused(v):
    return answer(v, moved=moves({**v, "op": "naive_attention"})) if v["op"] in ATTENTION else answer(v)


def _parameters_each_row(v):
    moved = moves(v)
    for line in ("read weight", "read bias"):
        if line in moved:
            moved[line] *= v["sizes"]["rows"]
    return answer(v, moved=moved)


def _three_passes(v):
    """What a row-wise kernel moves that reads its row again for each reduction."""
    moved = moves(v)
    if v["op"] in ("softmax", "layer_norm"):
        moved["read x"] *= 3
    return answer(v, moved=moved)


def _only_products(v):
    if v["op"] in ATTENTION:
        return answer(v, does=flops(v, softmax=0, scale=0))
    return answer(v)


def _swapped(v):
    does, moved = answer(v)["work"]
    return {"work": (moved, does)}


def _scaled(v, unit):
    does, moved = answer(v)["work"]
    return {"work": (does / unit[0], moved / unit[1])}


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
        answer=lambda v: answer(v, item=8 * BYTES[v["dtype"]]),
    ),
    Mistake(
        "itemsize_forgotten",
        "These are elements, not bytes: multiply by the size of one element in this dtype.",
        answer=lambda v: answer(v, item=1),
    ),
    Mistake(
        "tf32_in_fewer_bytes",
        "tf32 is a way of multiplying, not of storing: in memory such a tensor is fp32, 4 bytes an element.",
        answer=lambda v, item: answer(v, item=item if v["dtype"] == "tf32" else None),
        variants=(2, 2.375, 2.5, 3),
    ),
    Mistake(
        "always_four_bytes",
        "Every element was taken to have 4 bytes: the dtype decides.",
        answer=lambda v: answer(v, item=4),
    ),
    Mistake(
        "always_two_bytes",
        "Every element was taken to have 2 bytes: the dtype decides.",
        answer=lambda v: answer(v, item=2),
    ),
    Mistake(
        "multiply_add_once",
        "A multiply-add was counted as one operation. It is two: a product of (m, k) and (k, n) does 2mnk.",
        answer=lambda v: answer(v, does=flops(v, fma=1)),
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
        answer=lambda v: answer(v, moved=_without(v, *(["read y"] if v["op"] == "add" else []))),
    ),
    Mistake(
        "output_forgotten",
        "Only the inputs were counted: what a kernel writes crosses the memory bus too.",
        answer=lambda v: answer(v, moved={n: e for n, e in moves(v).items() if not n.startswith("write")}),
    ),
    Mistake(
        "last_output_forgotten",
        "The final result is missing from the bytes: it is written once, like any intermediate.",
        answer=lambda v: answer(v, moved=_without(v, "write c", "write out", "write o")),
    ),
    Mistake(
        "scores_not_read_back",
        "Half of the score traffic of naive attention is missing: S and P are each written by one kernel and read "
        "back by the next.",
        answer=lambda v: answer(v, moved=_without(v, "read s", "read p")),
    ),
    Mistake(
        "scores_counted_once",
        "Naive attention was charged for one pass over the scores. S and P are each written by one kernel and read "
        "by the next.",
        answer=lambda v: answer(v, moved=_without(v, "read s", "write p", "read p")),
    ),
    Mistake(
        "scores_moved_by_fused",
        "Fused attention was charged for the scores: they stay on the chip, only Q, K, V and O move.",
        answer=_scores_moved_by_fused,
    ),
    Mistake(
        "scores_free_in_naive",
        "Naive attention was counted as if it were fused: its S and P go through memory.",
        answer=lambda v: answer(v, moved=_without(v, "write s", "read s", "write p", "read p")),
    ),
    Mistake(
        "v_forgotten",
        "Attention reads three inputs: K and V are both (keys, head_size).",
        answer=lambda v: answer(v, moved=_without(v, "read v")),
    ),
    Mistake(
        "attention_is_two_products",
        "Only the two matrix products of attention were counted: scaling and softmax do arithmetic on every score.",
        answer=_only_products,
    ),
    Mistake(
        "scale_forgotten",
        "Attention multiplies every score by a scale before softmax: 1 FLOP each.",
        answer=lambda v: answer(v, does=flops(v, scale=0)),
    ),
    Mistake(
        "exponential_free",
        "Softmax came out one FLOP an element too low: the exponential counts as 1.",
        answer=lambda v: answer(v, does=flops(v, softmax=4)),
    ),
    Mistake(
        "softmax_without_maximum",
        "This softmax does not subtract the row's maximum: finding it and subtracting it are 2 FLOPs an element.",
        answer=lambda v: answer(v, does=flops(v, softmax=3)),
    ),
    Mistake(
        "three_passes",
        "The rows were read once for each reduction. The least traffic reads a row once and keeps it on the chip.",
        answer=_three_passes,
    ),
    Mistake(
        "norm_parameters_forgotten",
        "Layer norm also reads its weight and its bias, `columns` values each.",
        answer=lambda v: answer(v, moved=_without(v, "read weight", "read bias")),
    ),
    Mistake(
        "norm_parameters_each_row",
        "Weight and bias were counted for every row: they are read once in all and stay on the chip.",
        answer=_parameters_each_row,
    ),
    Mistake(
        "norm_row_terms_forgotten",
        "Layer norm also does 4 operations a row: two divisions, plus eps, reciprocal square root.",
        answer=lambda v: answer(v, does=flops(v, norm_row=0)),
    ),
    Mistake(
        "norm_without_affine",
        "Layer norm ends with times weight, plus bias: 2 FLOPs an element are missing.",
        answer=lambda v: answer(v, does=flops(v, norm=5)),
    ),
)
