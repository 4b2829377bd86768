"""One kernel forward, one backward whose programs own queries or keys and make delta as they go; base 2; F.linear."""

import torch
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _rows(ptr, offs, n, stride_row, stride_column, head_size, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (columns < head_size)[None, :]
    return tl.load(ptr + offs[:, None] * stride_row + columns[None, :] * stride_column, mask=mask, other=0.0)


@triton.jit
def _keep(ptr, block, offs, n, stride_row, head_size, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (columns < head_size)[None, :]
    tl.store(ptr + offs[:, None] * stride_row + columns[None, :], block.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _forward_kernel(
    o_ptr, l_ptr, qkv_ptr, lengths_ptr,
    heads, n, head_size, scale,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    """l is in base 2. A row of qkv is 3 heads head_size long, and those of an image follow each other."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    blocks = tl.cdiv(n, BLOCK)
    image_head = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = image_head // heads, image_head % heads
    width = heads * head_size
    offs_m = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    keys = tl.load(lengths_ptr + batch)
    q_ptr = qkv_ptr + batch * n * 3 * width + head * head_size
    q = _rows(q_ptr, offs_m, n, 3 * width, 1, head_size, BLOCK_D)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for start in range(0, keys, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        k = _rows(q_ptr + width, offs_n, keys, 3 * width, 1, head_size, BLOCK_D)
        v = _rows(q_ptr + 2 * width, offs_n, keys, 3 * width, 1, head_size, BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        s += tl.where(offs_n < keys, 0.0, -float("inf"))[None, :]
        before = top
        top = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - top[:, None])
        shrunk = tl.exp2(before - top)
        total = total * shrunk + tl.sum(p, axis=1)
        acc = tl.dot(p.to(v.dtype), v, acc * shrunk[:, None], input_precision="ieee")
    o_ptr += batch * n * width + head * head_size
    _keep(o_ptr, acc / total[:, None], offs_m, n, width, head_size, BLOCK_D)
    tl.store(l_ptr + image_head * n + offs_m, top + tl.log2(total), mask=offs_m < n)


@triton.jit
def _turned(k, v, q, o, do, l_ptr, offs_m, offs_n, n, keys, scale):
    """p and ds with keys down and queries across."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    l = tl.load(l_ptr + offs_m, mask=offs_m < n, other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    hidden = (offs_n[:, None] >= keys) | (offs_m[None, :] >= n)
    s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * LOG2_E)
    p = tl.exp2(tl.where(hidden, -float("inf"), s - l[None, :]))
    dp = tl.dot(v, tl.trans(do), input_precision="ieee")
    return p, p * (dp - delta[None, :])


@triton.jit
def _backward_kernel(
    dqkv_ptr, qkv_ptr, o_ptr, l_ptr, do_ptr, lengths_ptr,
    heads, n, head_size, scale, of_queries,
    stride_gb, stride_gn, stride_gd,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    program = tl.program_id(0)
    blocks = tl.cdiv(n, BLOCK)
    owns_queries = program < of_queries
    if program >= of_queries:
        program -= of_queries
    image_head = (program // blocks).to(tl.int64)
    batch, head = image_head // heads, image_head % heads
    width = heads * head_size
    keys = tl.load(lengths_ptr + batch)
    own = program % blocks * BLOCK + tl.arange(0, BLOCK)
    place = batch * n * 3 * width + head * head_size
    q_ptr, dq_ptr = qkv_ptr + place, dqkv_ptr + place
    o_ptr += batch * n * width + head * head_size
    do_ptr += batch * stride_gb + head * head_size * stride_gd
    l_ptr += image_head * n
    if owns_queries:
        q = _rows(q_ptr, own, n, 3 * width, 1, head_size, BLOCK_D)
        o = _rows(o_ptr, own, n, width, 1, head_size, BLOCK_D)
        do = _rows(do_ptr, own, n, stride_gn, stride_gd, head_size, BLOCK_D)
        dq = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        for start in range(0, keys, BLOCK):
            offs_n = start + tl.arange(0, BLOCK)
            k = _rows(q_ptr + width, offs_n, keys, 3 * width, 1, head_size, BLOCK_D)
            v = _rows(q_ptr + 2 * width, offs_n, keys, 3 * width, 1, head_size, BLOCK_D)
            p, ds = _turned(k, v, q, o, do, l_ptr, own, offs_n, n, keys, scale)
            dq += tl.dot(tl.trans(ds.to(k.dtype)), k, input_precision="ieee")
        _keep(dq_ptr, dq * scale, own, n, 3 * width, head_size, BLOCK_D)
    else:
        k = _rows(q_ptr + width, own, n, 3 * width, 1, head_size, BLOCK_D)
        v = _rows(q_ptr + 2 * width, own, n, 3 * width, 1, head_size, BLOCK_D)
        dk = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        dv = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        for start in range(0, n, BLOCK):
            offs_m = start + tl.arange(0, BLOCK)
            q = _rows(q_ptr, offs_m, n, 3 * width, 1, head_size, BLOCK_D)
            o = _rows(o_ptr, offs_m, n, width, 1, head_size, BLOCK_D)
            do = _rows(do_ptr, offs_m, n, stride_gn, stride_gd, head_size, BLOCK_D)
            p, ds = _turned(k, v, q, o, do, l_ptr, offs_m, own, n, keys, scale)
            dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
        _keep(dq_ptr + width, dk * scale, own, n, 3 * width, head_size, BLOCK_D)
        _keep(dq_ptr + 2 * width, dv, own, n, 3 * width, head_size, BLOCK_D)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, lengths, heads):
        B, N, d = x.shape
        D = d // heads
        qkv = F.linear(x, w, b)
        o = torch.empty_like(x, memory_format=torch.contiguous_format)
        l = torch.empty(B * heads, N, dtype=torch.float32, device=x.device)
        _forward_kernel[(triton.cdiv(N, 32) * B * heads,)](
            o, l, qkv, lengths, heads, N, D, D**-0.5, BLOCK=32, BLOCK_D=triton.next_power_of_2(D)
        )
        ctx.save_for_backward(x, w, lengths, qkv, o, l)
        ctx.heads = heads
        return o

    @staticmethod
    def backward(ctx, do):
        x, w, lengths, qkv, o, l = ctx.saved_tensors
        (B, N, d), heads = x.shape, ctx.heads
        D, programs = d // heads, triton.cdiv(N, 32) * B * heads
        dqkv = torch.empty_like(qkv)
        _backward_kernel[(2 * programs,)](
            dqkv, qkv, o, l, do, lengths, heads, N, D, D**-0.5, programs, *do.stride(),
            BLOCK=32, BLOCK_D=triton.next_power_of_2(D),
        )
        dw = torch.mm(dqkv.flatten(0, 1).mT, x.flatten(0, 1))
        return dqkv @ w, dw, torch.sum(dqkv, dim=(0, 1)), None, None


def attend(x, w, b, lengths, heads):
    return Attend.apply(x, w, b, lengths, heads)
