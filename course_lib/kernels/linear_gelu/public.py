"""What others call: `linear_gelu` and its rungs, the product that comes back, the operator for torch.compile."""

import math

import torch

from course_lib.kernels.descriptors import describable
from course_lib.kernels.hardware import multiprocessors, on_hopper
from course_lib.kernels.launching import planned
from course_lib.kernels.linear_gelu import tuning
from course_lib.kernels.linear_gelu.elementwise import write_slope
from course_lib.kernels.linear_gelu.gelu import gelu, gelu_reference
from course_lib.kernels.linear_gelu.persistent import write_gelu_persistent, write_slope_persistent
from course_lib.kernels.linear_gelu.tiled import write_gelu_tiled, write_slope_tiled
from course_lib.kernels.linear_gelu.tuning import GELU, SLOPE, Turns, blocks_for, large_tile, reached, turns_for
from course_lib.kernels.product_copies import aligned_like, aligned_rows, copy_back
from course_lib.kernels.product_parts import write_parts
from course_lib.kernels.product_routes import Parts, copies_us, large_us, parts_for
from course_lib.kernels.product_tiles import GROUP_M
from course_lib.kernels.product_wide import Wide, write_wide

__all__ = [
    "linear_gelu",
    "linear_gelu_grouped",
    "linear_gelu_operator",
    "linear_gelu_parts",
    "linear_gelu_persistent",
    "linear_gelu_pingpong",
    "linear_gelu_reference",
    "linear_gelu_tiled",
    "product_through_gelu",
    "product_with_slope",
]

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def linear_gelu_reference(x, w, bias=None):
    """x (M, K), w (N, K), bias (N,), in whatever type they are."""
    return gelu_reference(torch.nn.functional.linear(x, w, bias))


def _checked(x, w, bias, out, h) -> tuple[torch.Tensor, torch.Tensor | None]:
    """out, made where none is given, and the bias with adjacent elements."""
    assert x.dim() == w.dim() == 2, f"two matrices expected, got shapes {tuple(x.shape)} and {tuple(w.shape)}"
    assert x.shape[1] == w.shape[1], f"x {tuple(x.shape)} and w {tuple(w.shape)} differ in their last size"
    assert x.dtype == w.dtype and x.dtype in DTYPES, f"one type of {DTYPES}: {x.dtype}, {w.dtype}"
    assert bias is None or bias.shape == w.shape[:1], f"bias {tuple(bias.shape)} for {w.shape[0]} columns"
    out = torch.empty(x.shape[0], w.shape[0], dtype=x.dtype, device=x.device) if out is None else out
    for result in (out, h):
        assert result is None or result.shape == (x.shape[0], w.shape[0]), f"a result has shape {tuple(result.shape)}"
    return out, None if bias is None else bias.contiguous()


def linear_gelu_tiled(x, w, bias=None, out=None, h=None, input_precision: str = "ieee"):
    """The first rung: tiles row by row. Arguments as `linear_gelu`."""
    out, bias = _checked(x, w, bias, out, h)
    if out.numel():
        write_gelu_tiled(out, h, x, w, bias, 1, input_precision)
    return out


def linear_gelu_grouped(x, w, bias=None, out=None, h=None, input_precision: str = "ieee"):
    """The second: tiles in groups of 8 tile rows."""
    out, bias = _checked(x, w, bias, out, h)
    if out.numel():
        write_gelu_tiled(out, h, x, w, bias, GROUP_M, input_precision)
    return out


def linear_gelu_persistent(x, w, bias=None, out=None, h=None, input_precision: str = "ieee"):
    """The third: programs that stay, for matrices that the copy engine reaches by rows."""
    out, bias = _checked(x, w, bias, out, h)
    assert reached(out, h, x, w), "TMA needs compute capability 9.0 and 16-byte rows: use linear_gelu_grouped"
    blocks = blocks_for(GELU, x, w.shape[0], stored=1 if h is None else 2)
    write_gelu_persistent(out, h, x, w, bias, blocks, input_precision)
    return out


def linear_gelu_pingpong(x, w, bias=None, out=None, h=None, turns: Turns | None = None):
    """The fourth: groups of warps that take turns, for 2-byte types on an H100 or H200."""
    from course_lib.kernels.linear_gelu.pingpong import write_gelu_pingpong  # Gluon need not be there

    out, bias = _checked(x, w, bias, out, h)
    assert x.element_size() == 2 and reached(out, h, x, w), "2-byte types with 16-byte rows: use linear_gelu_grouped"
    assert not x.is_cuda or on_hopper(x.device), "scheduled by hand for wgmma, of an H100 or H200: use linear_gelu"
    write_gelu_pingpong(out, h, x, w, bias, turns or Turns(5))
    return out


def linear_gelu_parts(x, w, bias=None, out=None, h=None, input_precision: str = "ieee", parts: Parts | None = None):
    """Beside the ladder, for a result of few tiles: lower tiles for few rows, and shared sums. Any strides."""
    out, bias = _checked(x, w, bias, out, h)
    if out.numel():
        parts = parts or parts_for(*out.shape, x.shape[1], x, w)
        write_parts(out, x, w.t(), parts.tile, parts.split, input_precision, bias, h, gelu)
    return out


@planned
def _write(out, h, x, w, bias, input_precision: str) -> None:
    """The way with the shortest estimate: parts, or large tiles, for which rows off 16 bytes are copied."""
    (M, N), K = out.shape, x.shape[1]
    far = [one for one in (out, h, x, w) if one is not None and not describable(one)]
    parts = parts_for(M, N, K, x, w)
    us = large_us(large_tile(x, N), M, N, K, x.element_size(), multiprocessors(x.device))
    if K == 0 or parts.us <= us + copies_us(one.numel() * one.element_size() for one in far):
        linear_gelu_parts(x, w, bias, out, h, input_precision, parts)
        return
    x, w = (one if describable(one) else aligned_rows(one) for one in (x, w))
    made = [one if one is None or describable(one) else aligned_like(one) for one in (out, h)]
    _write_large(*made, x, w, bias, input_precision)
    for one, its in zip((out, h), made):
        if its is not one:
            copy_back(one, its)


def _write_large(out, h, x, w, bias, input_precision: str) -> None:
    if turns := turns_for("gelu", out, h, x, w):
        linear_gelu_pingpong(x, w, bias, out, h, turns)
    elif x.element_size() == 2 and reached(out, h, x, w):
        tile = large_tile(x, w.shape[0])
        if isinstance(tile, Wide):
            write_wide(out, x, w.t(), tile, input_precision, bias, h, gelu)
        else:
            linear_gelu_persistent(x, w, bias, out, h, input_precision)
    else:
        linear_gelu_grouped(x, w, bias, out, h, input_precision)


@torch.library.custom_op("speed_of_light::linear_gelu", mutates_args=())
def linear_gelu_operator(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, input_precision: str
) -> torch.Tensor:
    """x (..., K), w (N, K) -> (..., N). To torch.compile one node; it has no gradient, and says so when asked."""
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    out, bias = _checked(rows, w, bias, None, None)
    if out.numel():
        _write(out, None, rows, w, bias, input_precision)
    return out.view(*x.shape[:-1], w.shape[0])


@linear_gelu_operator.register_fake
def _(x, w, bias, input_precision):
    return x.new_empty(*x.shape[:-1], w.shape[0])


def linear_gelu(x, w, bias=None, out=None, h=None, input_precision: str = "ieee"):
    """gelu(x wᵀ + bias), tanh form: x (M, K), w (N, K), bias (N,) -> out (M, N); fp16, bf16 or fp32, any strides.

    h: (M, N), where x wᵀ + bias is to be written as well, which a backward pass wants. `input_precision` says what a
    product of fp32 is: "ieee", or "tf32", fast and of 11 bits. No gradient is recorded: that is for mlp.
    """
    if torch.compiler.is_compiling():
        assert out is None and h is None, "a compiled call makes its result itself"
        return linear_gelu_operator(x, w, bias, input_precision)
    recorded = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, w, bias))
    assert not recorded, "linear_gelu records no gradient: call it under torch.no_grad, or use course_lib.kernels.mlp"
    out, bias = _checked(x, w, bias, out, h)
    if out.numel():
        _write(out, h, x, w, bias, input_precision)
    return out


def product_with_slope(dy, w, h, dh=None, a=None, sums: bool = False, input_precision: str = "ieee"):
    """(dy w) gelu'(h): dy (M, K), w (K, N), h (M, N) -> dh (M, N), which may be h itself; gelu(h) into a if given.

    With `sums` also the sum of dh's rows, (N,) in fp32, from sums of 32 to 128 rows: the gradient of a bias.
    """
    assert dy.shape[1] == w.shape[0] and h.shape == (dy.shape[0], w.shape[1]), "dy w and h differ in shape"
    dh = torch.empty_like(h, memory_format=torch.contiguous_format) if dh is None else dh
    if dh.numel() == 0:
        return (dh, dh.new_zeros(h.shape[1], dtype=torch.float32)) if sums else dh
    if turns := turns_for("slope", dh, a, h, dy, w):
        from course_lib.kernels.linear_gelu.pingpong import write_slope_pingpong

        parts = write_slope_pingpong(dh, a, h, dy, w, sums, turns)
    elif dy.element_size() == 2 and reached(dh, a, h, dy, w):
        blocks = blocks_for(SLOPE, dy, w.shape[1], stored=2 if a is None else 3)
        parts = write_slope_persistent(dh, a, h, dy, w, sums, blocks, input_precision)
    else:
        parts = write_slope_tiled(dh, a, h, dy, w, sums, GROUP_M, input_precision)
    return (dh, parts.sum(0)) if sums else dh


def product_through_gelu(dy, w, h, dh=None, a=None):
    """The same (dy w) gelu'(h), the fastest way for these shapes, and the sum of dh's rows: (dh, sums).

    That is one kernel where it was measured faster, and otherwise the vendor's product and one pass over it, which
    rounds dy w to the tensors' type on its way through memory. dh may be h itself; gelu(h) into a if given.
    """
    if tuning.FUSED_SLOPE or turns_for("slope", h, a, dy, w):
        return product_with_slope(dy, w, h, dh, a, sums=True)
    da = torch.mm(dy, w)
    dh = da if dh is None else dh
    return dh, write_slope(dh, a, da, h).sum(0)
