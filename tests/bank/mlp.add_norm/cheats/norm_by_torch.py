"""Forward is a kernel; autograd differentiates torch's LayerNorm."""

import torch
import triton
import triton.language as tl

FAMILY = "vendor call"
NAIVE = True
CAUGHT = "the watched run saw torch's LayerNorm"


@triton.jit
def _forward_kernel(
    y_ptr, s_ptr, mean_ptr, rstd_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr,
    N, eps,
    stride_y, stride_s, stride_x, stride_residual,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * stride_residual + offs, mask=mask, other=0.0).to(tl.float32)
    s = x + residual
    mean = tl.sum(s, axis=0) / N
    centred = tl.where(mask, s - mean, 0.0)
    variance = tl.sum(centred * centred, axis=0) / N
    rstd = 1.0 / tl.sqrt(variance + eps)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    bias = tl.load(bias_ptr + offs, mask=mask, other=0.0)
    y = centred * rstd * weight + bias
    tl.store(y_ptr + row * stride_y + offs, y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(s_ptr + row * stride_s + offs, s.to(s_ptr.dtype.element_ty), mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)


class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, bias, eps, in_place):
        rows, N = x.shape
        if in_place:
            ctx.mark_dirty(x, residual)
            y, s = x, residual
        else:
            y, s = (torch.empty(rows, N, dtype=x.dtype, device=x.device) for _ in range(2))
        mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
        _forward_kernel[(rows,)](
            y, s, mean, rstd, x, residual, weight, bias,
            N, eps,
            y.stride(0), s.stride(0), x.stride(0), residual.stride(0),
            BLOCK=triton.next_power_of_2(N),
        )
        ctx.save_for_backward(s, weight)
        ctx.eps = eps
        return y, s

    @staticmethod
    def backward(ctx, dy, ds):
        s, weight = ctx.saved_tensors
        N = s.shape[1]
        with torch.enable_grad():
            given = s.float().detach().requires_grad_(), weight.detach().requires_grad_()
            y = torch.nn.functional.layer_norm(given[0], (N,), given[1], None, ctx.eps)
        d, dweight = torch.autograd.grad(y, given, dy.float())
        d, dbias = (d + ds).to(s.dtype), dy.float().sum(0)
        return d, d, dweight, dbias, None, None


def add_norm(x, residual, weight, bias, eps, in_place):
    return AddNorm.apply(x, residual, weight, bias, eps, in_place)
