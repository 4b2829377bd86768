"""cuBLAS makes h; the kernel only applies GELU."""

import torch
import triton
import triton.language as tl

FAMILY = "vendor call"
NAIVE = True
CAUGHT = "torch multiplies while the function runs"


@triton.jit
def _gelu_kernel(out_ptr, h_ptr, rows, columns, stride_om, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < rows * columns
    h = tl.load(h_ptr + at, mask=mask, other=0.0)
    y = h * tl.sigmoid(1.5957691216057308 * (h + 0.044715 * h * h * h))
    tl.store(out_ptr + at // columns * stride_om + at % columns, y.to(out_ptr.dtype.element_ty), mask=mask)


def linear_gelu(x, w, bias, out):
    h = torch.nn.functional.linear(x.float(), w.float(), None if bias is None else bias.float())
    _gelu_kernel[(triton.cdiv(h.numel(), 1024),)](out, h, *h.shape, out.stride(0), BLOCK=1024)
