"""Only what is read is counted."""

KILLED_BY = "matmul"

BITS = {"fp64": 64, "fp32": 32, "tf32": 32, "bf16": 16, "fp16": 16, "fp8": 8}


def matmul(batch, m, n, k):
    return 2 * batch * m * n * k, batch * m * k + batch * k * n, batch * m * n


def add(elements):
    return elements, 2 * elements, elements


def softmax(rows, columns):
    n = rows * columns
    maximum, subtract, exponential, total, divide = n, n, n, n, n
    return maximum + subtract + exponential + total + divide, n, n


def layer_norm(rows, columns):
    n = rows * columns
    mean = n + rows
    centred = n
    variance = n + n + rows
    rstd = rows + rows
    affine = 3 * n
    return mean + centred + variance + rstd + affine, n + columns + columns, n


def naive_attention(batch, heads, queries, keys, head_size):
    """Three kernels one after the other."""
    pairs = batch * heads
    f1, r1, w1 = matmul(pairs, queries, keys, head_size)
    f1 += w1
    f2, r2, w2 = softmax(pairs * queries, keys)
    f3, r3, w3 = matmul(pairs, queries, head_size, keys)
    return f1 + f2 + f3, r1 + r2 + r3, w1 + w2 + w3


def fused_attention(batch, heads, queries, keys, head_size):
    flops, _, _ = naive_attention(batch, heads, queries, keys, head_size)
    one_row = batch * heads * head_size
    return flops, one_row * (queries + keys + keys), one_row * queries


def work(op, sizes, dtype):
    flops, read, written = globals()[op](**sizes)
    return flops, read * BITS[dtype] // 8
