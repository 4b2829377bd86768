"""Every reference kernel at the sizes of the lessons and the benchmarks, and at odd ones."""

import torch

from course_lib.kernels import dropout, matmul, pointwise, rope, softmax
from course_lib.kernels import mx as mx_room
from course_lib.kernels.add_norm import public as add_norm
from course_lib.kernels.attention.backward import backward
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.attention.tuning import Parts, blocks_for
from course_lib.kernels.linear_gelu import public as linear_gelu
from course_lib.kernels.mx.product import product
from course_lib.kernels.one_pass import backward_in_one_pass
from course_lib.kernels.timed import attention_step, gemv_into

HEAD_SIZES = (16, 32, 48, 64, 72, 80, 96, 112, 128)
PRODUCTS = ((8192, 8192, 8192), (4096, 4096, 4096), (512, 512, 512), (16384, 1152, 4304), (1000, 333, 77), (1, 1, 1))

# Few rows, long sums, rows off 16 bytes: rows, inner size, columns.
FEW_TILES = (
    (1, 4096, 4096),
    (30, 4096, 1152),
    (64, 4100, 4099),
    (100, 1151, 1000),
    (256, 65536, 256),
    (4095, 4100, 4096),
)


def empty(*shape, dtype):
    return torch.empty(*shape, dtype=dtype, device="cuda")


def calls(dtype):
    """(name, call) for each."""
    yield from _pointwise(dtype)
    yield from _attention(dtype)
    yield from _products(dtype)
    yield from _norms(dtype)
    yield from _rope(dtype)
    yield from _mx(dtype)


def _pointwise(dtype):
    for n in (2**27, 1001):
        x = empty(n, dtype=dtype)
        yield f"axpy {n}", lambda x=x: pointwise.axpy(2.0, x, x, x)
        yield f"cos {n}", lambda x=x: pointwise.cos_chain(x, 16, x)
        yield f"dropout {n}", lambda x=x: dropout._dropped(x, empty(1, dtype=torch.int64), 0.1, 0)
    for width in (20, 64, 100, 200, 500, 1000, 1024, 2048, 4096, 8192, 16384):
        yield f"softmax {width}", lambda width=width: softmax.softmax(empty(4096, width, dtype=dtype))


def _attention(dtype):
    for size in HEAD_SIZES if dtype != torch.float32 else (64, 128):  # plain arithmetic compiles for many seconds
        for causal in (False, True):
            for what in ("", "odd", "lengths") if dtype != torch.float32 else ("odd",):
                name = f"attention {size} {'causal ' * causal}{what}".rstrip()
                yield name, lambda size=size, causal=causal, what=what: _both_passes(dtype, size, causal, what)
    for size in (64, 72, 128) if dtype != torch.float32 else (64,):
        for n_q in (1, 8, 64):  # of four heads that share keys: tiles of 16, 32 and 64 rows
            for what in ("", "odd", "lengths") if dtype != torch.float32 else ("odd",):
                name = f"attention {size} of {n_q} queries {what}".rstrip()
                yield name, lambda size=size, n_q=n_q, what=what: _few_queries(dtype, size, n_q, what)
        yield f"attention {size} of heads in parts", lambda size=size: _heads_in_parts(dtype, size)
    for size in (64, 128):
        for add in ("atomic", "none"):
            yield f"attention {size} in one pass, {add}", lambda size=size, add=add: _one_pass(dtype, size, add)
        yield f"attention step {size}", lambda size=size: _step(dtype, size)


def _both_passes(dtype, size, causal, what):
    n_q, n_k = (1023, 777) if what else (1024, 1024)
    width = size + 1 if what == "odd" else size  # rows that the copy engine does not reach
    q, k, v = (empty(2, heads, n, width, dtype=dtype)[..., :size] for heads, n in ((8, n_q), (4, n_k), (4, n_k)))
    lengths = empty(2, dtype=torch.int32) if what == "lengths" else None
    o, l = forward(q, k, v, causal, 0.1, lengths)
    backward(torch.empty_like(o), q, k, v, o, l, causal, 0.1, lengths)


def _few_queries(dtype, size, n_q, what):
    width = size + 1 if what == "odd" else size
    q, k, v = (empty(1, heads, n, width, dtype=dtype)[..., :size] for heads, n in ((4, n_q), (1, 4096), (1, 4096)))
    assert isinstance(blocks_for("forward", True, None, q, k, v, q), Parts)
    forward(q, k, v, True, 0.1, empty(1, dtype=torch.int32) if what == "lengths" else None)


def _heads_in_parts(dtype, size):
    q, k, v = (empty(1, heads, 2048, size, dtype=dtype) for heads in (32, 1, 1))
    assert isinstance(blocks_for("dkdv", True, None, q, k, v, q, k, v), Parts)
    backward(q, q, k, v, q, empty(1, 32, 2048, dtype=torch.float32), True, 0.1)


def _one_pass(dtype, size, add):
    q, k, v, o, do = (empty(2, 8, 1024, size, dtype=dtype) for _ in range(5))
    l = empty(2, 8, 1024, dtype=torch.float32)
    backward_in_one_pass(do, q, k, v, o, l, False, 0.1, add)


def _step(dtype, size):
    q, k, v, do, o, dq, dk, dv = (empty(2, 8, 1024, size, dtype=dtype) for _ in range(8))
    attention_step(q, k, v, do, o, empty(2, 8, 1024, dtype=torch.float32), dq, dk, dv, True, 0.1)


def _products(dtype):
    for m, k, n in PRODUCTS:
        a, b = empty(m, k, dtype=dtype), empty(k, n, dtype=dtype)
        for rung in (matmul.matmul, matmul.matmul_naive, matmul.matmul_tiled, matmul.matmul_grouped):
            yield f"{rung.__name__} {m} {k} {n}", lambda a=a, b=b, rung=rung: rung(a, b)
        yield f"matmul {m} {k} {n} by columns", lambda a=a, b=b: matmul.matmul(a, b.mT.contiguous().mT)
        yield f"matmul {m} {k} {n} tf32", lambda a=a, b=b: matmul.matmul(a, b, input_precision="tf32")
        yield from _linear_gelu(dtype, m, k, n)
    for m, k, n in FEW_TILES:
        a, b, w, bias = (empty(*shape, dtype=dtype) for shape in ((m, k), (k, n), (n, k), (n,)))
        for what, given in (("", (a, b)), (" by columns", (a, w.t())), (" turned", (b.t(), a.t()))):
            yield f"matmul {m} {k} {n}{what}", lambda given=given: matmul.matmul(*given)
            yield f"matmul_parts {m} {k} {n}{what}", lambda given=given: matmul.matmul_parts(*given)
        for call in (linear_gelu.linear_gelu, linear_gelu.linear_gelu_parts):
            yield f"{call.__name__} {m} {k} {n}", lambda a=a, w=w, bias=bias, call=call: call(a, w, bias)
    for m in (256, 512):  # wide tiles on an H200
        x, w, h = (empty(*shape, dtype=dtype) for shape in ((m, 1152), (4304, 1152), (m, 4304)))
        for what, kept in (("", None), (" with h", h)):
            yield f"linear_gelu {m} 1152 4304{what}", lambda x=x, w=w, kept=kept: linear_gelu.linear_gelu(x, w, h=kept)


def _linear_gelu(dtype, m, k, n):
    x, w, bias, h, dy = (empty(*shape, dtype=dtype) for shape in ((m, k), (n, k), (n,), (m, n), (m, k)))
    for rung in (linear_gelu.linear_gelu, linear_gelu.linear_gelu_tiled, linear_gelu.linear_gelu_grouped):
        yield f"{rung.__name__} {m} {k} {n}", lambda rung=rung: rung(x, w, bias)
    yield f"linear_gelu {m} {k} {n} with h", lambda: linear_gelu.linear_gelu(x, w, bias, h=h)
    yield f"slope {m} {k} {n}", lambda: linear_gelu.product_with_slope(dy, w.mT.contiguous(), h, sums=True)
    yield f"through gelu {m} {k} {n}", lambda: linear_gelu.product_through_gelu(dy, w.mT.contiguous(), h)


def refused():
    """Calls of rungs that a card may not have: they say so."""
    a = empty(4096, 4096, dtype=torch.float16)
    yield lambda: matmul.matmul_persistent(a, a)
    yield lambda: linear_gelu.linear_gelu_persistent(a, a)
    yield lambda: linear_gelu.linear_gelu_pingpong(a, a)


def _norms(dtype):
    for width in (1, 20, 768, 1000, 1152, 2048, 4096, 8192, 12288, 16384):
        for p in (0.0, 0.1):
            yield f"add_norm {width}{' dropout' * bool(p)}", lambda width=width, p=p: _both_norms(dtype, width, p)


def _both_norms(dtype, width, p):
    x, residual, dy = (empty(4096, width, dtype=dtype) for _ in range(3))
    weight, bias = empty(width, dtype=dtype), empty(width, dtype=dtype)
    seed = empty(1, dtype=torch.int64) if p else None
    _, s, mean, rstd = add_norm._forward(x, residual, weight, bias, 1e-5, p, seed, 0)
    add_norm._backward(dy, dy, s, weight, True, mean, rstd, p, seed, 0)


def _rope(dtype):
    tables = rope.Tables(empty(8192, 64, dtype=torch.float32), empty(8192, 64, dtype=torch.float32))
    for length in (8192, 77):
        for inside in (False, True):
            shape = (2, length, 32, 128) if inside else (2, 32, length, 128)
            q, k = (empty(*shape, dtype=dtype) for _ in range(2))
            q, k = (x.transpose(1, 2) if inside else x for x in (q, k))
            yield f"rope {length}{' heads inside' * inside}", lambda q=q, k=k: rope.rope_(q, k, tables)
            yield f"rope {length}{' heads inside' * inside}, new", lambda q=q, k=k: rope.rope(q, k, tables)


def _mx(dtype):
    for n, k, group in ((14336, 4096, 32), (4096, 4096, 32), (333, 100, 16)):
        groups = -(-k // group)
        m, e = empty(n, k, dtype=torch.int8), empty(n, groups, dtype=torch.uint8)
        w = mx_room.Quantized(m, e, group)
        yield f"quantize {n} {k}", lambda n=n, k=k, group=group: mx_room.quantize(empty(n, k, dtype=dtype), group)
        if dtype != torch.float16:
            yield f"dequantize {n} {k}", lambda w=w: mx_room.dequantize(w, dtype)
        for rows in (1, 2, 8, 16, 32, 64, 100, 256):
            x = empty(rows, k, dtype=dtype)
            yield f"mx_linear {rows} {n} {k}", lambda x=x, w=w: mx_room.mx_linear(x, w)
            if rows <= 8:
                yield f"mx vector {rows} {n} {k}", lambda x=x, w=w: product(x, w, route="vector")
            if rows <= 16:
                out = empty(rows, n, dtype=dtype)
                yield (
                    f"gemv {rows} {n} {k}",
                    lambda x=x, w=w, out=out: gemv_into(x, w.mantissas, w.exponents, w.group, out),
                )
            yield f"mx matrix {rows} {n} {k}", lambda x=x, w=w: product(x, w, route="matrix")
