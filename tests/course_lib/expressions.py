"""Kernels made from one expression, run on the tier at hand: what the tests of the interpreter share."""

import linecache
import math

import torch

from course_lib.device import DEVICE

# isort: split
import triton
import triton.language as tl

F32, F16, BF16, F64 = torch.float32, torch.float16, torch.bfloat16, torch.float64
I8, I16, I32, I64, U8 = torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8
_made = {}


def kernel(text):
    """A @triton.jit kernel from its text; Triton reads the source through linecache."""
    if text not in _made:
        name = f"<kernel {len(_made)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space = {"triton": triton, "tl": tl, "__name__": __name__}
        exec(compile(text, name, "exec"), space)
        _made[text] = triton.jit(space["kernel"])
    return _made[text]


def elementwise(expression, *inputs, out=None, n=None):
    """Run `expression` of x, y, z over a block; lanes from n on are masked."""
    names = "xyz"[: len(inputs)]
    n = inputs[0].numel() if n is None else n
    pointers = ", ".join(f"{name}_ptr" for name in names)
    loads = "\n".join(f"    {name} = tl.load({name}_ptr + offs, mask=mask, other=0)" for name in names)
    text = (
        f"def kernel(out_ptr, {pointers}, n, BLOCK: tl.constexpr):\n"
        f"    offs = tl.arange(0, BLOCK)\n    mask = offs < n\n{loads}\n"
        f"    tl.store(out_ptr + offs, {expression}, mask=mask)\n"
    )
    result = torch.zeros(inputs[0].numel(), dtype=out or inputs[0].dtype, device=DEVICE)
    block = triton.next_power_of_2(inputs[0].numel())
    kernel(text)[(1,)](result, *[one.to(DEVICE) for one in inputs], n, BLOCK=block)
    return result.cpu()


def reduction(expression, x, out_shape, out=None):
    """Run `expression` of a 2-D block x, write `out_shape` elements."""
    grid = "tl.arange(0, OUT)[:, None] * C + tl.arange(0, C)[None, :]"
    offs = ["0", "tl.arange(0, OUT)", grid][len(out_shape)]
    text = (
        "def kernel(out_ptr, x_ptr, R: tl.constexpr, C: tl.constexpr, OUT: tl.constexpr):\n"
        "    x = tl.load(x_ptr + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])\n"
        f"    tl.store(out_ptr + {offs}, {expression})\n"
    )
    result = torch.zeros(out_shape, dtype=out or x.dtype, device=DEVICE)
    kernel(text)[(1,)](result, x.to(DEVICE), R=x.shape[0], C=x.shape[1], OUT=out_shape[0] if out_shape else 1)
    return result.cpu()


def normal(*shape, dtype=F32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def same(got, want, rtol=0.0, atol=0.0):
    torch.testing.assert_close(got, want.to(got.dtype), rtol=rtol, atol=atol, equal_nan=True)


def dot(a, b, options="", out=F32, start=None):
    text = (
        "def kernel(out_ptr, a_ptr, b_ptr, c_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):\n"
        "    m = tl.arange(0, M)[:, None]\n    n = tl.arange(0, N)[None, :]\n"
        "    a = tl.load(a_ptr + m * K + tl.arange(0, K)[None, :])\n"
        "    b = tl.load(b_ptr + tl.arange(0, K)[:, None] * N + n)\n"
        "    c = tl.load(c_ptr + m * N + n)\n"
        f"    tl.store(out_ptr + m * N + n, tl.dot(a, b, c{options}))\n"
    )
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros(m, n, dtype=out) if start is None else start
    result = torch.zeros(m, n, dtype=out, device=DEVICE)
    kernel(text)[(1,)](result, a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), M=m, N=n, K=k)
    return result.cpu()


def integers(dtype, seed=0):
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    values = torch.randint(low, high, (120,), generator=torch.Generator().manual_seed(seed), dtype=I64)
    return torch.cat([values, torch.tensor([low, high, 0, 1, 2, 3, 5, 7])]).to(dtype)


SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, 65504.0, 65520.0, 1e-8, 3e38])
FLOATS = torch.cat([normal(117), SPECIAL])
