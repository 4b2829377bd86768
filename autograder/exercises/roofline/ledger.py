"""FLOPs and bytes of six operators, by the rules that roofline.work states."""

from math import prod

BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
ATTENTION = ("naive_attention", "fused_attention")


def flops(v, fma=2, softmax=5, scale=1, norm=7, norm_row=4) -> int:
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


def moves(v) -> dict[str, int]:
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


def answer(v, does=None, moved=None, item=None) -> dict:
    """The right answer. FLOPs, moves or bytes an element replace the right ones where they are given."""
    does = flops(v) if does is None else does
    moved = moves(v) if moved is None else moved
    return {"work": (does, (BYTES[v["dtype"]] if item is None else item) * sum(moved.values()))}
