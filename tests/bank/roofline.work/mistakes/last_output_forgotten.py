"""The result of each operator is missing."""

import numpy as np

KILLED_BY = "matmul"

DTYPES = {"fp64": 8.0, "fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}


def tensors(op, s):
    """The shapes of everything that is read or written."""
    if op == "matmul":
        return [(s["batch"], s["m"], s["k"]), (s["batch"], s["k"], s["n"])]
    if op == "add":
        return [(s["elements"],)] * 2
    if op == "softmax":
        return [(s["rows"], s["columns"])]
    if op == "layer_norm":
        return [(s["rows"], s["columns"])] + [(s["columns"],)] * 2
    bh = (s["batch"], s["heads"])
    query, key, score = bh + (s["queries"], s["head_size"]), bh + (s["keys"], s["head_size"]), bh + (s["queries"], s["keys"])
    return [query, key, key] + [score] * (4 if op == "naive_attention" else 0)


def work(op, sizes, dtype):
    moved = sum(float(np.prod(shape, dtype=np.float64)) for shape in tensors(op, sizes)) * DTYPES[dtype]
    total = float(np.prod(list(sizes.values()), dtype=np.float64))
    if op == "matmul":
        flops = 2 * total
    elif op == "add":
        flops = total
    elif op == "softmax":
        flops = 5 * total
    elif op == "layer_norm":
        flops = 7 * total + 4 * sizes["rows"]
    else:
        flops = 4 * total + 6 * total / sizes["head_size"]
    return flops, moved
