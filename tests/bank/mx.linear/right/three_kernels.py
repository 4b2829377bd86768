"""Quantised at the swap by a kernel; multiplied by one for few rows, dequantised by one for many."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _quantize_kernel(m_ptr, e_ptr, x_ptr, columns, groups, GROUP: tl.constexpr, BLOCK_G: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK_G)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = column < columns
    x = tl.load(x_ptr + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    e = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1) >> 23
    half = (133 - e) // 2
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((133 - e - half + 127) << 23).to(tl.float32, bitcast=True)
    m = (x * first[:, None] * second[:, None] + 12582912.0) - 12582912.0
    m = tl.minimum(tl.maximum(m, -127.0), 127.0)
    tl.store(m_ptr + row * columns + column, m.to(tl.int8), mask=mask)
    tl.store(e_ptr + row * groups + group, e.to(tl.uint8), mask=group < groups)


@triton.jit
def _dequantize_kernel(w_ptr, m_ptr, e_ptr, columns, groups, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    m = tl.load(m_ptr + row * columns + column, mask=mask, other=0).to(tl.float32)
    e = tl.load(e_ptr + row * groups + column // GROUP, mask=mask, other=0).to(tl.int32)
    first = ((e // 2 - 66 + 127) << 23).to(tl.float32, bitcast=True)
    second = ((e - e // 2 - 67 + 127) << 23).to(tl.float32, bitcast=True)
    tl.store(w_ptr + row * columns + column, (m * first * second).to(w_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _product_kernel(
    y_ptr, x_ptr, m_ptr, e_ptr, M, N, K, groups,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Up to BLOCK_M rows of x at once, and BLOCK_N rows of the weight; a group's sum is scaled."""
    offs_m, offs_n = tl.arange(0, BLOCK_M), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for group in range(groups):
        offs_k = group * GROUP + tl.arange(0, GROUP)
        mask_k = offs_k < K
        x = tl.load(
            x_ptr + offs_m[:, None] * K + offs_k[None, :], mask=(offs_m < M)[:, None] & mask_k[None, :], other=0.0
        )
        mask = (offs_n < N)[:, None] & mask_k[None, :]
        m = tl.load(m_ptr + offs_n[:, None] * K + offs_k[None, :], mask=mask, other=0).to(tl.float32)
        e = tl.load(e_ptr + offs_n * groups + group, mask=offs_n < N, other=0).to(tl.int32)
        first = ((e // 2 - 66 + 127) << 23).to(tl.float32, bitcast=True)
        second = ((e - e // 2 - 67 + 127) << 23).to(tl.float32, bitcast=True)
        acc += tl.sum(x.to(tl.float32)[:, None, :] * m[None, :, :], axis=2) * first[None, :] * second[None, :]
    at = y_ptr + offs_m[:, None] * N + offs_n[None, :]
    tl.store(at, acc.to(y_ptr.dtype.element_ty), mask=(offs_m < M)[:, None] & (offs_n < N)[None, :])


class Quantised(nn.Module):
    """A linear layer by three kernels: one at the swap, and one of the others in every call."""

    def __init__(self, layer):
        super().__init__()
        weight = layer.weight.detach().contiguous()
        self.rows, self.columns = weight.shape
        self.groups = triton.cdiv(self.columns, 32)
        self.register_buffer("m", torch.empty_like(weight, dtype=torch.int8))
        self.register_buffer("e", weight.new_empty(self.rows, self.groups, dtype=torch.uint8))
        self.register_parameter("bias", layer.bias)
        block = triton.next_power_of_2(self.groups)
        _quantize_kernel[(self.rows,)](self.m, self.e, weight, self.columns, self.groups, GROUP=32, BLOCK_G=block)

    def forward(self, x):
        given = x.reshape(-1, self.columns).contiguous()
        y = self.few(given) if len(given) <= 16 else self.many(given)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], self.rows)

    def few(self, x):
        y = torch.empty(len(x), self.rows, dtype=x.dtype, device=x.device)
        _product_kernel[(triton.cdiv(self.rows, 16),)](
            y, x, self.m, self.e, len(x), self.rows, self.columns, self.groups,
            GROUP=32, BLOCK_M=triton.next_power_of_2(len(x)), BLOCK_N=16,
        )  # fmt: skip
        return y

    def many(self, x):
        w = torch.empty(self.rows, self.columns, dtype=x.dtype, device=x.device)
        block = triton.next_power_of_2(self.columns)
        _dequantize_kernel[(self.rows,)](w, self.m, self.e, self.columns, self.groups, GROUP=32, BLOCK=block)
        return x @ w.T


def swap_linears(model, skip):
    shared = {id(p) for m in model.modules() if type(m) is not nn.Linear for p in m.parameters(recurse=False)}
    made, names = {}, []
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if type(module) is not nn.Linear or id(module.weight) in shared:
            continue
        words = path.split(".")
        if any(".".join(words[:n]) in skip for n in range(1, len(words) + 1)):
            continue
        if id(module) not in made:
            made[id(module)] = module, Quantised(module)
            names.append(path)
        model.set_submodule(path, made[id(module)][1])
    return names
