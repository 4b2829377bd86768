"""One entry of the batch."""

KILLED_BY = "a batch of matmuls"

ITEMSIZE = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


def work(op, sizes, dtype):
    item = ITEMSIZE[dtype]
    if op == "matmul":
        b, m, n, k = 1, sizes["m"], sizes["n"], sizes["k"]
        flops = 2 * b * m * n * k
        elements = b * (m * k + k * n + m * n)
    elif op == "add":
        flops = sizes["elements"]
        elements = 3 * sizes["elements"]
    elif op == "softmax":
        n = sizes["rows"] * sizes["columns"]
        flops = 5 * n
        elements = 2 * n
    elif op == "layer_norm":
        rows, columns = sizes["rows"], sizes["columns"]
        flops = rows * (7 * columns + 4)
        elements = 2 * rows * columns + 2 * columns
    else:
        pairs = sizes["heads"]
        q, k, d = sizes["queries"], sizes["keys"], sizes["head_size"]
        flops = pairs * q * k * (2 * d + 1 + 5 + 2 * d)
        elements = pairs * (q * d + 2 * k * d + q * d)
        if op == "naive_attention":
            elements += 4 * pairs * q * k
    return flops, item * elements
