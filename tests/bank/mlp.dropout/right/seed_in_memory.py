"""A call for four elements. The seed travels as a tensor of 8 bytes, which autograd keeps."""

import torch
import triton
import triton.language as tl


@triton.jit
def _dropout_kernel(out_ptr, x_ptr, seed_ptr, n, p, scale, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    calls = tl.program_id(0).to(tl.int64) * (BLOCK // 4) + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.rand4x(tl.load(seed_ptr), calls)
    keep = tl.join(tl.join(a, c), tl.join(b, d)).reshape(BLOCK) >= p
    y = tl.where(keep, x * scale, 0.0)
    tl.store(out_ptr + offs, y.to(out_ptr.dtype.element_ty), mask=mask)


def dropped(x, p, seed):
    x = x.contiguous()
    out = torch.empty_like(x)
    _dropout_kernel[(triton.cdiv(x.numel(), 256),)](out, x, seed, x.numel(), p, 1 / (1 - p), BLOCK=256)
    return out


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        seed = torch.full((1,), seed, dtype=torch.int64, device=x.device)
        ctx.save_for_backward(seed)
        ctx.p = p
        return dropped(x, p, seed)

    @staticmethod
    def backward(ctx, dy):
        return dropped(dy, ctx.p, *ctx.saved_tensors), None, None


def dropout(x, p, seed):
    return Dropout.apply(x, p, seed)
