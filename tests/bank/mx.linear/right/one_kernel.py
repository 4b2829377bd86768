"""Everything in PyTorch but the product of few rows; layers are replaced by their names."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _few_kernel(
    y_ptr, x_ptr, m_ptr, e_ptr, N, K, groups, stride_m, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One row of x, BLOCK_N rows of the weight."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1)
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for first in range(0, K, BLOCK):
        offs_k = first + tl.arange(0, BLOCK)
        mask = (offs_n < N)[:, None] & (offs_k < K)[None, :]
        m = tl.load(m_ptr + offs_n[:, None] * stride_m + offs_k[None, :], mask=mask, other=0).to(tl.float32)
        e = tl.load(e_ptr + offs_n[:, None] * groups + (offs_k // GROUP)[None, :], mask=mask, other=0).to(tl.int32)
        first_half = ((e // 2 - 66 + 127) << 23).to(tl.float32, bitcast=True)
        scale = ((e - e // 2 - 67 + 127) << 23).to(tl.float32, bitcast=True) * first_half
        x = tl.load(x_ptr + row * K + offs_k, mask=offs_k < K, other=0.0).to(tl.float32)
        acc += tl.sum(m * scale * x[None, :], axis=1)
    tl.store(y_ptr + row * N + offs_n, acc.to(y_ptr.dtype.element_ty), mask=offs_n < N)


def quantized(weight, group):
    """int8 mantissas (N, K) and uint8 exponents (N, groups)."""
    groups = F.pad(weight.detach().double(), (0, -weight.shape[1] % group)).unflatten(1, (-1, group))
    largest = groups.abs().amax(2)
    power = torch.frexp(largest).exponent - 1
    e = torch.where(largest > 0, power + 127, 0).clamp(0, 254)
    m = (groups * torch.exp2(133.0 - e.double())[:, :, None]).round().clamp(-127, 127)
    return m.flatten(1)[:, : weight.shape[1]].to(torch.int8), e.to(torch.uint8)


class MXLinear(nn.Module):
    def __init__(self, layer, group=32):
        super().__init__()
        m, e = quantized(layer.weight, group)
        self.group = group
        self.register_buffer("mantissas", m)
        self.register_buffer("exponents", e)
        self.bias = layer.bias

    def forward(self, x):
        rows = x.numel() // x.shape[-1]
        y = self.few(x, rows) if rows <= 32 else self.many(x)
        return y if self.bias is None else y + self.bias

    def few(self, x, rows):
        N, K, groups = len(self.mantissas), x.shape[-1], self.exponents.shape[1]
        y = x.new_empty(*x.shape[:-1], N)
        _few_kernel[(triton.cdiv(N, 16), rows)](
            y, x.contiguous(), self.mantissas, self.exponents,
            N, K, groups, self.mantissas.stride(0),
            GROUP=self.group, BLOCK_N=16, BLOCK=128,
        )  # fmt: skip
        return y

    def many(self, x):
        scale = torch.exp2(self.exponents.float() - 133).repeat_interleave(self.group, 1)[:, : x.shape[-1]]
        return x @ (self.mantissas * scale).to(x.dtype).T


def stays(name, layer, model, skip):
    if type(layer) is not nn.Linear or any(name == one or name.startswith(one + ".") for one in skip):
        return True
    others = [m for m in model.modules() if not isinstance(m, nn.Linear)]
    return any(p is layer.weight for m in others for p in m.parameters(recurse=False))


def swap_linears(model, skip):
    swapped = [name for name, layer in model.named_modules() if not stays(name, layer, model, skip)]
    new = {model.get_submodule(name): MXLinear(model.get_submodule(name)) for name in swapped}
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if layer in new:
            model.set_submodule(name, new[layer])
    return swapped
