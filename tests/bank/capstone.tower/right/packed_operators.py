"""q, k and v in one layer; each kernel behind an operator that returns new tensors and knows its gradient."""

import torch
import triton
import triton.language as tl
from torch import nn

from course_lib.models import vision
from course_lib.models.siglip.frame import Framed, packed, real_patches, unpacked


@triton.jit
def rows(ptr, offs, n, stride, head_size, BLOCK_D: tl.constexpr):
    """Rows `offs` of one head."""
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (offs_d < head_size)[None, :]
    return tl.load(ptr + offs[:, None] * stride + offs_d[None, :], mask=mask, other=0.0)


@triton.jit
def keep(ptr, x, offs, n, stride, head_size, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (offs_d < head_size)[None, :]
    tl.store(ptr + offs[:, None] * stride + offs_d[None, :], x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def forward_kernel(
    o_ptr, l_ptr, qkv_ptr, lengths_ptr,
    n, heads, head_size, scale,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    width = heads * head_size
    offs_m = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    q_ptr = qkv_ptr + batch * n * 3 * width + head * head_size
    k_ptr, v_ptr = q_ptr + width, q_ptr + 2 * width
    keys = tl.load(lengths_ptr + batch)
    q = rows(q_ptr, offs_m, n, 3 * width, head_size, BLOCK_D)
    m = tl.full((BLOCK,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for start in range(0, keys, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        k = rows(k_ptr, offs_n, keys, 3 * width, head_size, BLOCK_D)
        v = rows(v_ptr, offs_n, keys, 3 * width, head_size, BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(offs_n[None, :] < keys, s, -float("inf"))
        new = tl.maximum(m, tl.max(s, axis=1))
        p = tl.exp(s - new[:, None])
        factor = tl.exp(m - new)
        l = l * factor + tl.sum(p, axis=1)
        acc = acc * factor[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = new
    o_ptr += batch * n * width + head * head_size
    keep(o_ptr, acc / l[:, None], offs_m, n, width, head_size, BLOCK_D)
    tl.store(l_ptr + (batch * heads + head) * n + offs_m, m + tl.log(l), mask=offs_m < n)


@triton.jit
def pair(q, k, v, o, do, l, offs_m, offs_n, n, keys, scale):
    """p and ds, queries down and keys across."""
    see = (offs_m < n)[:, None] & (offs_n < keys)[None, :]
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    p = tl.where(see, tl.exp(s - l[:, None]), 0.0)
    dp = tl.dot(do, tl.trans(v), input_precision="ieee")
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    return p, p * (dp - delta[:, None]) * scale


@triton.jit
def backward_kernel(
    dqkv_ptr, do_ptr, qkv_ptr, o_ptr, l_ptr, lengths_ptr,
    n, heads, head_size, scale,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One block of rows: first as queries, then as keys."""
    batch, head = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    width = heads * head_size
    mine = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    q_ptr = qkv_ptr + batch * n * 3 * width + head * head_size
    k_ptr, v_ptr = q_ptr + width, q_ptr + 2 * width
    o_ptr += batch * n * width + head * head_size
    do_ptr += batch * n * width + head * head_size
    l_ptr += (batch * heads + head) * n
    dqkv_ptr += batch * n * 3 * width + head * head_size
    keys = tl.load(lengths_ptr + batch)
    q = rows(q_ptr, mine, n, 3 * width, head_size, BLOCK_D)
    o = rows(o_ptr, mine, n, width, head_size, BLOCK_D)
    do = rows(do_ptr, mine, n, width, head_size, BLOCK_D)
    l = tl.load(l_ptr + mine, mask=mine < n, other=0.0)
    dq = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for start in range(0, keys, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        k = rows(k_ptr, offs_n, keys, 3 * width, head_size, BLOCK_D)
        v = rows(v_ptr, offs_n, keys, 3 * width, head_size, BLOCK_D)
        _, ds = pair(q, k, v, o, do, l, mine, offs_n, n, keys, scale)
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    keep(dqkv_ptr, dq, mine, n, 3 * width, head_size, BLOCK_D)
    k = rows(k_ptr, mine, keys, 3 * width, head_size, BLOCK_D)
    v = rows(v_ptr, mine, keys, 3 * width, head_size, BLOCK_D)
    dk = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for start in range(0, n, BLOCK):
        offs_m = start + tl.arange(0, BLOCK)
        q = rows(q_ptr, offs_m, n, 3 * width, head_size, BLOCK_D)
        o = rows(o_ptr, offs_m, n, width, head_size, BLOCK_D)
        do = rows(do_ptr, offs_m, n, width, head_size, BLOCK_D)
        l = tl.load(l_ptr + offs_m, mask=offs_m < n, other=0.0)
        p, ds = pair(q, k, v, o, do, l, offs_m, mine, n, keys, scale)
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    keep(dqkv_ptr + width, dk, mine, n, 3 * width, head_size, BLOCK_D)
    keep(dqkv_ptr + 2 * width, dv, mine, n, 3 * width, head_size, BLOCK_D)


@triton.jit
def gelu_kernel(out_ptr, h_ptr, da_ptr, n, BLOCK: tl.constexpr):
    """a, or with da the gradient of h."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    h = tl.load(h_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    s = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (h + 0.044715 * h * h * h)))
    out = h * s
    if da_ptr is not None:
        rise = s + h * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 3.0 * 0.044715 * h * h)
        out = rise * tl.load(da_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, out.to(out_ptr.dtype.element_ty), mask=mask)


def launch(kernel, out, qkv, *given):
    B, N, _, H, D = qkv.shape
    columns = max(16, triton.next_power_of_2(D))
    kernel[(triton.cdiv(N, 32), B * H)](*out, qkv, *given, N, H, D, D**-0.5, BLOCK=32, BLOCK_D=columns)


@torch.library.custom_op("capstone::attention", mutates_args=())
def attention(qkv: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    B, N, _, H, D = qkv.shape
    o, l = qkv.new_empty(B, N, H, D), qkv.new_empty(B, H, N, dtype=torch.float32)
    launch(forward_kernel, (o, l), qkv.contiguous(), lengths)
    return o, l


@attention.register_fake
def _(qkv, lengths):
    B, N, _, H, D = qkv.shape
    return qkv.new_empty(B, N, H, D), qkv.new_empty(B, H, N, dtype=torch.float32)


@torch.library.custom_op("capstone::attention_backward", mutates_args=())
def attention_backward(
    do: torch.Tensor, qkv: torch.Tensor, o: torch.Tensor, l: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    dqkv = qkv.new_empty(qkv.shape)
    launch(backward_kernel, (dqkv, do.contiguous()), qkv.contiguous(), o, l, lengths)
    return dqkv


@attention_backward.register_fake
def _(do, qkv, o, l, lengths):
    return qkv.new_empty(qkv.shape)


def keep_for_attention(ctx, inputs, output):
    qkv, lengths = inputs
    ctx.save_for_backward(qkv, *output, lengths)


def back_through_attention(ctx, do, _):
    return attention_backward(do, *ctx.saved_tensors), None


attention.register_autograd(back_through_attention, setup_context=keep_for_attention)


@torch.library.custom_op("capstone::gelu", mutates_args=())
def gelu(h: torch.Tensor) -> torch.Tensor:
    out = h.new_empty(h.shape)
    gelu_kernel[(triton.cdiv(h.numel(), 1024),)](out, h.contiguous(), None, h.numel(), BLOCK=1024)
    return out


@gelu.register_fake
def _(h):
    return h.new_empty(h.shape)


@torch.library.custom_op("capstone::gelu_backward", mutates_args=())
def gelu_backward(da: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    out = h.new_empty(h.shape)
    gelu_kernel[(triton.cdiv(h.numel(), 1024),)](out, h.contiguous(), da.contiguous(), h.numel(), BLOCK=1024)
    return out


@gelu_backward.register_fake
def _(da, h):
    return h.new_empty(h.shape)


def keep_for_gelu(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def back_through_gelu(ctx, da):
    return gelu_backward(da, *ctx.saved_tensors)


gelu.register_autograd(back_through_gelu, setup_context=keep_for_gelu)


class Attention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, x, lengths):
        B, N, width = x.shape
        o, _ = attention(self.qkv(x).view(B, N, 3, self.heads, width // self.heads), lengths)
        return self.out(o.view(B, N, width))


class Block(vision.Block):
    def __init__(self, sizes):
        super().__init__(sizes, Attention)

    def forward(self, x, lengths):
        x = x + self.attention(self.before_attention(x), lengths)
        return x + self.down(gelu(self.up(self.before_mlp(x))))


def load_packed(tower, state, *_):
    whole = packed(state)
    state.clear()
    state.update(whole)


def save_apart(tower, state, *_):
    whole = unpacked(state)
    state.clear()
    state.update(whole)


class Tower(Framed):
    def __init__(self, sizes):
        super().__init__(sizes, Block)
        self.register_load_state_dict_pre_hook(load_packed)
        self.register_state_dict_post_hook(save_apart)

    def forward(self, patches, lengths):
        lengths = lengths.to(torch.int32)
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        for block in self.blocks:
            x = block(x, lengths)
        return self.pooled(self.norm(x), real)
