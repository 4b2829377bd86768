"""Mantissas and exponents by torch's own operators; a kernel copies them."""

import torch
import triton
import triton.language as tl

FAMILY = "vendor call"
NAIVE = True
CAUGHT = "torch computes while the function runs"


@triton.jit
def _copy_kernel(out_ptr, in_ptr, rows, columns, stride_out, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(in_ptr + at, mask=at < rows * columns, other=0)
    tl.store(out_ptr + at // columns * stride_out + at % columns, value, mask=at < rows * columns)


def quantize(x, group, mantissas, exponents):
    rows, columns = x.shape
    lacking = -columns % group
    groups = torch.nn.functional.pad(x.double(), (0, lacking)).unflatten(1, (-1, group))
    largest = groups.abs().amax(2)
    good = largest.isfinite()
    power = torch.frexp(torch.where(good & (largest > 0), largest, 1.0)).exponent - 1
    e = torch.where(good & (largest > 0), power + 127, 0).clamp(0, 254)
    m = (groups * torch.exp2(133.0 - e.double())[:, :, None]).round().clamp(-127, 127)
    m = torch.where(good[:, :, None], m, 0.0).flatten(1)[:, :columns].to(torch.int8).contiguous()
    e = torch.where(good, e, 255).to(torch.uint8)
    for out, made in ((mantissas, m), (exponents, e)):
        if rows:
            _copy_kernel[(triton.cdiv(made.numel(), 1024),)](out, made, *made.shape, out.stride(0), BLOCK=1024)
