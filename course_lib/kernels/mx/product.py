"""y = x wᵀ + bias with weights in the format: three routes, the operator, and its gradient.

A route is a way to multiply: without tensor cores ("vector"), on them ("matrix"), or on whole weights ("dequantize").
tuning.py says from how many rows of x on a route is taken, rungs.py which kernel makes the product.
"""

import math

import torch

from course_lib.kernels.hardware import multiprocessors, on_hopper
from course_lib.kernels.mx.convert import dequantize
from course_lib.kernels.mx.format import Quantized
from course_lib.kernels.mx.gemm import write_gemm
from course_lib.kernels.mx.gemv import write_gemv
from course_lib.kernels.mx.rungs import direct_for, fetched_for, walk_for
from course_lib.kernels.mx.tuning import VECTOR_ROWS, Routes, matrix_blocks, routes_for, vector_blocks

__all__ = ["mx_linear", "mx_linear_operator", "product", "route_for", "route_of", "taught_matrix", "taught_vector"]

DTYPES = (torch.bfloat16, torch.float32, torch.float16)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """fp16 ends at 65504, where a weight may be 2^127: the weights become fp32 there, and so does x."""
    return x.float() if x.dtype == torch.float16 else x


def taught_vector(out, x, w: Quantized, bias) -> None:
    write_gemv(out, x, w, bias, vector_blocks(*out.shape, x.device))


def taught_matrix(out, x, w: Quantized, bias) -> None:
    (rows, N), K = out.shape, x.shape[1]
    x = _wide(x)
    write_gemm(out, x, w, bias, matrix_blocks(rows, N, K, x.device, multiprocessors(x.device), x.element_size()))


def _vector(out, x, w: Quantized, bias) -> None:
    if blocks := walk_for(x, w, on_hopper(x.device)):
        from course_lib.kernels.mx.gemv_warps import write_by_warp  # Gluon need not be there

        write_by_warp(out, x, w, bias, blocks)
    else:
        taught_vector(out, x, w, bias)


def _matrix(out, x, w: Quantized, bias) -> None:
    if blocks := fetched_for(x, w, on_hopper(x.device)):
        from course_lib.kernels.mx.gemm_fetched import write_fetched  # Gluon need not be there

        write_fetched(out, x, w, bias, blocks)
    elif blocks := direct_for(x, w, on_hopper(x.device)):
        from course_lib.kernels.mx.gemm_registers import write_direct  # Gluon need not be there

        write_direct(out, x, w, bias, blocks)
    else:
        taught_matrix(out, x, w, bias)


@torch.no_grad()
def _dequantized(out, x, w: Quantized, bias) -> None:
    """2 N K bytes more are written and read, once: many rows of x pay for that, and the vendor's product is fastest."""
    wide = _wide(x)
    whole = dequantize(w, wide.dtype).mT
    if wide is not x:
        out.copy_(torch.mm(wide, whole) if bias is None else torch.addmm(bias.float(), wide, whole))
    else:
        torch.mm(x, whole, out=out) if bias is None else torch.addmm(bias, x, whole, out=out)


ROUTES = {"vector": _vector, "matrix": _matrix, "dequantize": _dequantized}


def route_of(rows: int, routes: Routes) -> str:
    if rows >= routes.dequantize:
        return "dequantize"
    return "matrix" if rows >= routes.tensor_cores or rows > VECTOR_ROWS else "vector"


def route_for(x, w: Quantized) -> str:
    """What tuning.py names for these. Its table of routes was measured without gemm_fetched.py."""
    route = route_of(x.shape[0], routes_for(*w.mantissas.shape))
    return "matrix" if route == "dequantize" and fetched_for(x, w, on_hopper(x.device)) else route


def product(x, w: Quantized, bias=None, route: str | None = None, out=None) -> torch.Tensor:
    """x (rows, K), w (N, K) -> (rows, N) in x's type, by the route that tuning.py names or by the one that is given.

    out: (rows, N), columns adjacent. No gradient is recorded.
    """
    (N, K), rows = w.mantissas.shape, x.shape[0]
    out = torch.empty(rows, N, dtype=x.dtype, device=x.device) if out is None else out
    assert out.shape == (rows, N) and (out.stride(1) == 1 or N == 1), f"out {tuple(out.shape)}, {out.stride()}"
    if rows == 0 or N == 0 or K == 0:
        route = "dequantize"
    if x.stride(1) != 1:
        x = x.contiguous()
    ROUTES[route or route_for(x, w)](out, x, w, bias)
    return out


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


@torch.library.custom_op("speed_of_light::mx_linear", mutates_args=())
def mx_linear_operator(
    x: torch.Tensor, mantissas: torch.Tensor, exponents: torch.Tensor, bias: torch.Tensor | None, group: int
) -> torch.Tensor:
    """x (..., K) -> (..., N). To torch.compile one node; differentiable in x and bias, and not in the weights."""
    out = product(_rows(x), Quantized(mantissas, exponents, group), bias)
    return out.view(*x.shape[:-1], mantissas.shape[0])


@mx_linear_operator.register_fake
def _(x, mantissas, exponents, bias, group):
    return x.new_empty(*x.shape[:-1], mantissas.shape[0])


@torch.library.custom_op("speed_of_light::mx_linear_backward", mutates_args=())
def _backward_operator(dy: torch.Tensor, mantissas: torch.Tensor, exponents: torch.Tensor, group: int) -> torch.Tensor:
    """dx (..., K): weights are read along the other side there, so they are made whole once."""
    wide = _wide(dy)
    return (wide @ dequantize(Quantized(mantissas, exponents, group), wide.dtype)).to(dy.dtype)


@_backward_operator.register_fake
def _(dy, mantissas, exponents, group):
    return dy.new_empty(*dy.shape[:-1], mantissas.shape[1])


def _keep_for_backward(ctx, inputs, output):
    _, mantissas, exponents, _, ctx.group = inputs
    ctx.save_for_backward(mantissas, exponents)


def _operator_backward(ctx, dy):
    dx = _backward_operator(dy, *ctx.saved_tensors, ctx.group) if ctx.needs_input_grad[0] else None
    dbias = dy.flatten(0, -2).sum(0) if ctx.needs_input_grad[3] else None
    return dx, None, None, dbias, None


mx_linear_operator.register_autograd(_operator_backward, setup_context=_keep_for_backward)


def mx_linear(x: torch.Tensor, w: Quantized, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x (..., K) bf16, fp32 or fp16, w (N, K), bias (N,) -> (..., N) in x's type, summed in fp32.

    fp16 is for cards without bf16. Its weights become fp32, which is slower where rows are many.

    Differentiable in x and bias; weights have no gradient. Bytes: N K (1 + 1 / group) for few rows of x.
    """
    N, K = w.mantissas.shape
    assert x.dtype in DTYPES, f"x is one of {DTYPES}, not {x.dtype}"
    assert x.dim() > 0 and x.shape[-1] == K, f"x {tuple(x.shape)} does not end in {K}"
    assert bias is None or bias.shape == (N,), f"bias {tuple(bias.shape)} for {N} outputs"
    recorded = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    if recorded or torch.compiler.is_compiling():
        return mx_linear_operator(x, w.mantissas, w.exponents, bias, w.group)
    # The operator costs the host 20 us, which is more than a small product takes.
    return product(_rows(x), w, bias).view(*x.shape[:-1], N)
