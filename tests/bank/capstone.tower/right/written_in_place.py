"""q, k and v apart; operators that write into memory they are given, inside of autograd Functions; base 2."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_rows(ptr, offs, n, stride, head_size, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (columns < head_size)[None, :]
    return tl.load(ptr + offs[:, None] * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def store_rows(ptr, x, offs, n, stride, head_size, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (columns < head_size)[None, :]
    tl.store(ptr + offs[:, None] * stride + columns[None, :], x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def attend_kernel(
    o_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr,
    n, heads, head_size, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n, BLOCK_M)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    image, stride = row // heads, heads * head_size
    at = image * n * stride + row % heads * head_size
    offs_m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    length = tl.load(lengths_ptr + image).to(tl.int32)
    q = load_rows(q_ptr + at, offs_m, n, stride, head_size, BLOCK_D)
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr + at, offs_n, length, stride, head_size, BLOCK_D)
        v = load_rows(v_ptr + at, offs_n, length, stride, head_size, BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        s = tl.where((offs_n < length)[None, :], s, -float("inf"))
        higher = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")
        top = higher
    store_rows(o_ptr + at, acc / total[:, None], offs_m, n, stride, head_size, BLOCK_D)
    tl.store(lse_ptr + row * n + offs_m, top + tl.log2(total), mask=offs_m < n)


@triton.jit
def delta_kernel(delta_ptr, o_ptr, do_ptr, n, heads, head_size, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    blocks = tl.cdiv(n, BLOCK_M)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    stride = heads * head_size
    at = row // heads * n * stride + row % heads * head_size
    offs_m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    o = load_rows(o_ptr + at, offs_m, n, stride, head_size, BLOCK_D).to(tl.float32)
    do = load_rows(do_ptr + at, offs_m, n, stride, head_size, BLOCK_D).to(tl.float32)
    tl.store(delta_ptr + row * n + offs_m, tl.sum(o * do, axis=1), mask=offs_m < n)


@triton.jit
def queries_kernel(
    dq_ptr, q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, lengths_ptr,
    n, heads, head_size, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n, BLOCK_M)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    image, stride = row // heads, heads * head_size
    at = image * n * stride + row % heads * head_size
    offs_m = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    length = tl.load(lengths_ptr + image).to(tl.int32)
    q = load_rows(q_ptr + at, offs_m, n, stride, head_size, BLOCK_D)
    do = load_rows(do_ptr + at, offs_m, n, stride, head_size, BLOCK_D)
    lse = tl.load(lse_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
    delta = tl.load(delta_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        k = load_rows(k_ptr + at, offs_n, length, stride, head_size, BLOCK_D)
        v = load_rows(v_ptr + at, offs_n, length, stride, head_size, BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        p = tl.where((offs_n < length)[None, :], tl.exp2(s - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    store_rows(dq_ptr + at, dq * scale, offs_m, n, stride, head_size, BLOCK_D)


@triton.jit
def keys_kernel(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, lengths_ptr,
    n, heads, head_size, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(n, BLOCK_N)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    image, stride = row // heads, heads * head_size
    at = image * n * stride + row % heads * head_size
    offs_n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    length = tl.load(lengths_ptr + image).to(tl.int32)
    k = load_rows(k_ptr + at, offs_n, length, stride, head_size, BLOCK_D)
    v = load_rows(v_ptr + at, offs_n, length, stride, head_size, BLOCK_D)
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for start in range(0, n, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        q = load_rows(q_ptr + at, offs_m, n, stride, head_size, BLOCK_D)
        do = load_rows(do_ptr + at, offs_m, n, stride, head_size, BLOCK_D)
        lse = tl.load(lse_ptr + row * n + offs_m, mask=offs_m < n, other=float("inf"))
        delta = tl.load(delta_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        p = tl.where((offs_n < length)[None, :], tl.exp2(s - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dv = tl.dot(tl.trans(p).to(do.dtype), do, dv, input_precision="ieee")
        dk = tl.dot(tl.trans(ds).to(q.dtype), q, dk, input_precision="ieee")
    store_rows(dk_ptr + at, dk * scale, offs_n, n, stride, head_size, BLOCK_D)
    store_rows(dv_ptr + at, dv, offs_n, n, stride, head_size, BLOCK_D)


@triton.jit
def gelu_kernel(a_ptr, h_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(h_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    u = 0.7978845608028654 * (h + 0.044715 * h * h * h)
    e = tl.exp(-2.0 * tl.abs(u))
    t = tl.where(u < 0, -1.0, 1.0) * (1.0 - e) / (1.0 + e)
    tl.store(a_ptr + offs, (0.5 * h * (1.0 + t)).to(a_ptr.dtype.element_ty), mask=offs < n)


@triton.jit
def slope_kernel(dh_ptr, da_ptr, h_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    h = tl.load(h_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    da = tl.load(da_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    u = 0.7978845608028654 * (h + 0.044715 * h * h * h)
    e = tl.exp(-2.0 * tl.abs(u))
    t = tl.where(u < 0, -1.0, 1.0) * (1.0 - e) / (1.0 + e)
    inner = 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * h * h)
    slope = 0.5 * (1.0 + t) + 0.5 * h * (1.0 - t * t) * inner
    tl.store(dh_ptr + offs, (da * slope).to(dh_ptr.dtype.element_ty), mask=offs < n)


@torch.library.custom_op("capstone::attend_into", mutates_args=("o", "lse"))
def attend_into(
    o: torch.Tensor, lse: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
) -> None:
    (B, N, width), H = q.shape, lse.shape[1]
    D = width // H
    attend_kernel[(B * H * triton.cdiv(N, 16),)](
        o, lse, q, k, v, lengths, N, H, D, D**-0.5, BLOCK_M=16, BLOCK_N=32, BLOCK_D=triton.next_power_of_2(D)
    )


@torch.library.custom_op("capstone::attend_back_into", mutates_args=("dq", "dk", "dv"))
def attend_back_into(
    dq: torch.Tensor, dk: torch.Tensor, dv: torch.Tensor, do: torch.Tensor, o: torch.Tensor, lse: torch.Tensor,
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor,
) -> None:  # fmt: skip
    (B, N, width), H = q.shape, lse.shape[1]
    D, delta = width // H, torch.empty_like(lse)
    grid, columns = (B * H * triton.cdiv(N, 32),), triton.next_power_of_2(D)
    delta_kernel[grid](delta, o, do, N, H, D, BLOCK_M=32, BLOCK_D=columns)
    given, blocks = (do, lse, delta, lengths, N, H, D, D**-0.5), {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_D": columns}
    queries_kernel[grid](dq, q, k, v, *given, **blocks)
    keys_kernel[grid](dk, dv, q, k, v, *given, **blocks)


@torch.library.custom_op("capstone::gelu_into", mutates_args=("a",))
def gelu_into(a: torch.Tensor, h: torch.Tensor) -> None:
    gelu_kernel[(triton.cdiv(h.numel(), 512),)](a, h, h.numel(), BLOCK=512)


@torch.library.custom_op("capstone::slope_into", mutates_args=("dh",))
def slope_into(dh: torch.Tensor, da: torch.Tensor, h: torch.Tensor) -> None:
    slope_kernel[(triton.cdiv(h.numel(), 512),)](dh, da, h, h.numel(), BLOCK=512)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, lengths, heads):
        o = torch.empty_like(q)
        lse = torch.empty(q.shape[0], heads, q.shape[1], dtype=torch.float32, device=q.device)
        attend_into(o, lse, q, k, v, lengths)
        ctx.save_for_backward(q, k, v, o, lse, lengths)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse, lengths = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        attend_back_into(dq, dk, dv, do.contiguous(), o, lse, q, k, v, lengths)
        return dq, dk, dv, None, None


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        ctx.save_for_backward(h)
        a = torch.empty_like(h)
        gelu_into(a, h)
        return a

    @staticmethod
    def backward(ctx, da):
        (h,) = ctx.saved_tensors
        dh = torch.empty_like(h)
        slope_into(dh, da.contiguous(), h)
        return dh


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, lengths):
        return self.out(Attend.apply(self.q(x), self.k(x), self.v(x), lengths, self.heads))


class Block(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.before_attention = nn.LayerNorm(sizes.width)
        self.attention = Attention(sizes.width, sizes.heads)
        self.before_mlp = nn.LayerNorm(sizes.width)
        self.up = nn.Linear(sizes.width, sizes.mlp)
        self.down = nn.Linear(sizes.mlp, sizes.width)

    def forward(self, x, lengths):
        x = x + self.attention(self.before_attention(x), lengths)
        return x + self.down(Gelu.apply(self.up(self.before_mlp(x))))


class Tower(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.embed = nn.Linear(sizes.patch, sizes.width)
        self.places = nn.Parameter(torch.zeros(sizes.patches, sizes.width))
        self.blocks = nn.ModuleList([Block(sizes) for _ in range(sizes.layers)])
        self.norm = nn.LayerNorm(sizes.width)

    def forward(self, patches, lengths):
        number = torch.arange(patches.shape[1], device=patches.device)
        real = (number[None, :] < lengths[:, None])[:, :, None]
        x = F.linear(torch.where(real, patches, 0.0), self.embed.weight, self.embed.bias) + self.places
        for block in self.blocks:
            x = block(x, lengths)
        x = torch.where(real, self.norm(x), 0.0)
        return x.sum(1) / lengths[:, None].to(x.dtype)
