"""The library's products, norms and sums; attention and GELU in small kernels of whole heads, every tile masked."""

import torch
import triton
import triton.language as tl


@triton.jit
def _rows(ptr, offs, n, stride, head_size, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (offs_d < head_size)[None, :]
    return tl.load(ptr + offs[:, None] * stride + offs_d[None, :], mask=mask, other=0.0)


@triton.jit
def _keep(ptr, x, offs, n, stride, head_size, BLOCK_D: tl.constexpr):
    offs_d = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (offs_d < head_size)[None, :]
    tl.store(ptr + offs[:, None] * stride + offs_d[None, :], x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _attention_kernel(
    o_ptr, lse_ptr, qkv_ptr, lengths_ptr, n, heads, head_size, scale, BLOCK: tl.constexpr, BLOCK_D: tl.constexpr
):
    blocks = tl.cdiv(n, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    image, head = row // heads, row % heads
    width = heads * head_size
    q_ptr = qkv_ptr + image * n * 3 * width + head * head_size
    keys = tl.load(lengths_ptr + image)
    offs_m = block * BLOCK + tl.arange(0, BLOCK)
    q = _rows(q_ptr, offs_m, n, 3 * width, head_size, BLOCK_D)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    acc = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for start in range(0, keys, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        k = _rows(q_ptr + width, offs_n, n, 3 * width, head_size, BLOCK_D)
        v = _rows(q_ptr + 2 * width, offs_n, n, 3 * width, head_size, BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where((offs_n < keys)[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - new[:, None])
        factor = tl.exp(top - new)
        total = total * factor + tl.sum(p, axis=1)
        acc = acc * factor[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = new
    o_ptr += image * n * width + head * head_size
    _keep(o_ptr, acc / total[:, None], offs_m, n, width, head_size, BLOCK_D)
    tl.store(lse_ptr + row * n + offs_m, top + tl.log(total), mask=offs_m < n)


@triton.jit
def _dq_kernel(
    dqkv_ptr, delta_ptr, qkv_ptr, o_ptr, do_ptr, lse_ptr, lengths_ptr, n, heads, head_size, scale,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    image, head = row // heads, row % heads
    width = heads * head_size
    q_ptr = qkv_ptr + image * n * 3 * width + head * head_size
    keys = tl.load(lengths_ptr + image)
    offs_m = block * BLOCK + tl.arange(0, BLOCK)
    q = _rows(q_ptr, offs_m, n, 3 * width, head_size, BLOCK_D)
    o = _rows(o_ptr + image * n * width + head * head_size, offs_m, n, width, head_size, BLOCK_D)
    do = _rows(do_ptr + image * n * width + head * head_size, offs_m, n, width, head_size, BLOCK_D)
    lse = tl.load(lse_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    tl.store(delta_ptr + row * n + offs_m, delta, mask=offs_m < n)
    dq = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for start in range(0, keys, BLOCK):
        offs_n = start + tl.arange(0, BLOCK)
        k = _rows(q_ptr + width, offs_n, n, 3 * width, head_size, BLOCK_D)
        v = _rows(q_ptr + 2 * width, offs_n, n, 3 * width, head_size, BLOCK_D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where((offs_n < keys)[None, :], tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    _keep(dqkv_ptr + image * n * 3 * width + head * head_size, dq * scale, offs_m, n, 3 * width, head_size, BLOCK_D)


@triton.jit
def _dkdv_kernel(
    dqkv_ptr, qkv_ptr, do_ptr, lse_ptr, delta_ptr, lengths_ptr, n, heads, head_size, scale,
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr,
):
    blocks = tl.cdiv(n, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    image, head = row // heads, row % heads
    width = heads * head_size
    q_ptr = qkv_ptr + image * n * 3 * width + head * head_size
    do_ptr += image * n * width + head * head_size
    keys = tl.load(lengths_ptr + image)
    offs_n = block * BLOCK + tl.arange(0, BLOCK)
    k = _rows(q_ptr + width, offs_n, n, 3 * width, head_size, BLOCK_D)
    v = _rows(q_ptr + 2 * width, offs_n, n, 3 * width, head_size, BLOCK_D)
    dk = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK, BLOCK_D), tl.float32)
    for start in range(0, n, BLOCK):
        offs_m = start + tl.arange(0, BLOCK)
        q = _rows(q_ptr, offs_m, n, 3 * width, head_size, BLOCK_D)
        do = _rows(do_ptr, offs_m, n, width, head_size, BLOCK_D)
        lse = tl.load(lse_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
        delta = tl.load(delta_ptr + row * n + offs_m, mask=offs_m < n, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where((offs_n < keys)[None, :], tl.exp(s - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    dqkv_ptr += image * n * 3 * width + head * head_size
    _keep(dqkv_ptr + width, dk * scale, offs_n, n, 3 * width, head_size, BLOCK_D)
    _keep(dqkv_ptr + 2 * width, dv, offs_n, n, 3 * width, head_size, BLOCK_D)


@triton.jit
def _gelu_kernel(g_ptr, u_ptr, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(u_ptr + offs, mask=offs < size, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (u + 0.044715 * u * u * u)))
    tl.store(g_ptr + offs, (u * sigmoid).to(g_ptr.dtype.element_ty), mask=offs < size)


@triton.jit
def _slope_kernel(du_ptr, dg_ptr, u_ptr, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(u_ptr + offs, mask=offs < size, other=0.0).to(tl.float32)
    dg = tl.load(dg_ptr + offs, mask=offs < size, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (u + 0.044715 * u * u * u)))
    inner = 1.5957691216057308 * (1.0 + 3.0 * 0.044715 * u * u)
    slope = sigmoid + u * sigmoid * (1.0 - sigmoid) * inner
    tl.store(du_ptr + offs, (dg * slope).to(du_ptr.dtype.element_ty), mask=offs < size)


def norm(x, weight, bias):
    """The norm, and what autograd is asked for its gradients with."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias)]
    out = torch.nn.functional.layer_norm(leaves[0], (x.shape[1],), leaves[1], leaves[2], 1e-5)
    return out.detach(), (out, leaves)


def norm_back(dn, kept, d_weight, d_bias):
    dx, dw, db = torch.autograd.grad(*kept, dn)
    d_weight.copy_(dw)
    d_bias.copy_(db)
    return dx


def block_step(
    x, lengths, dy, n1_w, n1_b, qkv_w, qkv_b, out_w, out_b, n2_w, n2_b, up_w, up_b, down_w, down_b, heads,
    y, dx, d_n1_w, d_n1_b, d_qkv_w, d_qkv_b, d_out_w, d_out_b, d_n2_w, d_n2_b, d_up_w, d_up_b, d_down_w, d_down_b,
):
    batch, n, width = x.shape
    head_size, scale = width // heads, (width // heads) ** -0.5
    x, dy, y, dx = (t.view(-1, width) for t in (x, dy, y, dx))
    grid = (triton.cdiv(n, 32) * batch * heads,)
    meta = {"BLOCK": 32, "BLOCK_D": triton.next_power_of_2(head_size)}

    n1, kept1 = norm(x, n1_w, n1_b)
    qkv = torch.addmm(qkv_b, n1, qkv_w.mT)
    o = torch.empty_like(x)
    lse = torch.empty(batch, heads, n, dtype=torch.float32, device=x.device)
    _attention_kernel[grid](o, lse, qkv, lengths, n, heads, head_size, scale, **meta)
    h = torch.addmm(out_b, o, out_w.mT)
    h += x
    n2, kept2 = norm(h, n2_w, n2_b)
    u = torch.addmm(up_b, n2, up_w.mT)
    g = torch.empty_like(u)
    of_hidden = (triton.cdiv(u.numel(), 1024),)
    _gelu_kernel[of_hidden](g, u, u.numel(), BLOCK=1024)
    torch.addmm(down_b, g, down_w.mT, out=y)
    y += h

    torch.mm(dy.mT, g, out=d_down_w)
    torch.sum(dy, 0, out=d_down_b)
    du = dy @ down_w
    _slope_kernel[of_hidden](du, du, u, u.numel(), BLOCK=1024)
    torch.mm(du.mT, n2, out=d_up_w)
    torch.sum(du, 0, out=d_up_b)
    dh = norm_back(du @ up_w, kept2, d_n2_w, d_n2_b)
    dh += dy
    torch.mm(dh.mT, o, out=d_out_w)
    torch.sum(dh, 0, out=d_out_b)
    do, dqkv, delta = dh @ out_w, torch.empty_like(qkv), torch.empty_like(lse)
    _dq_kernel[grid](dqkv, delta, qkv, o, do, lse, lengths, n, heads, head_size, scale, **meta)
    _dkdv_kernel[grid](dqkv, qkv, do, lse, delta, lengths, n, heads, head_size, scale, **meta)
    torch.mm(dqkv.mT, n1, out=d_qkv_w)
    torch.sum(dqkv, 0, out=d_qkv_b)
    normed = norm_back(dqkv @ qkv_w, kept1, d_n1_w, d_n1_b)
    torch.add(normed, dh, out=dx)
