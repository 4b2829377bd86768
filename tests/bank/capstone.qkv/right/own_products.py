"""Products and sums in kernels too, x read where it lies; the pass of dq makes delta for that of dk and dv."""

import torch
import triton
import triton.language as tl


@triton.jit
def _product_kernel(
    out_ptr, a_ptr, b_ptr, bias_ptr,
    M, N, K, rows_a, rows_b,
    stride_ai, stride_am, stride_ak, stride_bi, stride_bk, stride_bn,
    BLOCK: tl.constexpr,
):
    """Rows of a, and of b, lie in images of rows_a and rows_b rows."""
    offs_m = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_n = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row_of_a = offs_m // rows_a * stride_ai + offs_m % rows_a * stride_am
    acc = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, K, BLOCK):
        offs_k = start + tl.arange(0, BLOCK)
        row_of_b = offs_k // rows_b * stride_bi + offs_k % rows_b * stride_bk
        a = tl.load(
            a_ptr + row_of_a[:, None] + offs_k[None, :] * stride_ak,
            mask=(offs_m < M)[:, None] & (offs_k < K)[None, :], other=0.0,
        )
        b = tl.load(
            b_ptr + row_of_b[:, None] + offs_n[None, :] * stride_bn,
            mask=(offs_k < K)[:, None] & (offs_n < N)[None, :], other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=offs_n < N, other=0.0).to(tl.float32)[None, :]
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _sum_kernel(out_ptr, x_ptr, M, N, BLOCK: tl.constexpr):
    offs_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, M, BLOCK):
        offs_m = start + tl.arange(0, BLOCK)
        mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
        x = tl.load(x_ptr + offs_m[:, None] * N + offs_n[None, :], mask=mask, other=0.0)
        total += tl.sum(x.to(tl.float32), axis=0)
    tl.store(out_ptr + offs_n, total.to(out_ptr.dtype.element_ty), mask=offs_n < N)


@triton.jit
def _forward_kernel(
    o_ptr, l_ptr, qkv_ptr, lengths_ptr,
    heads, n, head_size, scale,
    stride_b, stride_n, stride_part, stride_h,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    batch, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0).to(tl.int64) % heads
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    qkv_ptr += batch * stride_b + head * stride_h
    queries = offs_m[:, None] * stride_n + offs_d[None, :]
    q = tl.load(qkv_ptr + queries, mask=(offs_m < n)[:, None] & mask_d, other=0.0)
    length = tl.load(lengths_ptr + batch)
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_n = (offs_n < length)[:, None] & mask_d
        keys = offs_n[:, None] * stride_n + offs_d[None, :]
        k = tl.load(qkv_ptr + stride_part + keys, mask=mask_n, other=0.0)
        v = tl.load(qkv_ptr + 2 * stride_part + keys, mask=mask_n, other=0.0)
        s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
        s = tl.where((offs_n < length)[None, :], s, -float("inf"))
        now = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp(s - now[:, None])
        total = total * tl.exp(top - now) + tl.sum(p, axis=1)
        acc = acc * tl.exp(top - now)[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = now
    place = ((batch * n + offs_m) * heads + head)[:, None] * head_size + offs_d[None, :]
    tl.store(o_ptr + place, (acc / total[:, None]).to(o_ptr.dtype.element_ty), mask=(offs_m < n)[:, None] & mask_d)
    tl.store(l_ptr + (batch * n + offs_m) * heads + head, top + tl.log(total), mask=offs_m < n)


@triton.jit
def _dq_kernel(
    dqkv_ptr, delta_ptr, qkv_ptr, o_ptr, l_ptr, do_ptr, lengths_ptr,
    heads, n, head_size, scale,
    stride_b, stride_n, stride_part, stride_h, stride_gb, stride_gn, stride_gh, stride_gd,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    batch, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0).to(tl.int64) % heads
    offs_m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    mask_m = (offs_m < n)[:, None] & mask_d
    qkv_ptr += batch * stride_b + head * stride_h
    do_ptr += batch * stride_gb + head * stride_gh
    queries = offs_m[:, None] * stride_n + offs_d[None, :]
    number = (batch * n + offs_m) * heads + head
    q = tl.load(qkv_ptr + queries, mask=mask_m, other=0.0)
    o = tl.load(o_ptr + number[:, None] * head_size + offs_d[None, :], mask=mask_m, other=0.0)
    do = tl.load(do_ptr + offs_m[:, None] * stride_gn + offs_d[None, :] * stride_gd, mask=mask_m, other=0.0)
    l = tl.load(l_ptr + number, mask=offs_m < n, other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    tl.store(delta_ptr + number, delta, mask=offs_m < n)
    length = tl.load(lengths_ptr + batch)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, length, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)
        mask_n = (offs_n < length)[:, None] & mask_d
        keys = offs_n[:, None] * stride_n + offs_d[None, :]
        k = tl.load(qkv_ptr + stride_part + keys, mask=mask_n, other=0.0)
        v = tl.load(qkv_ptr + 2 * stride_part + keys, mask=mask_n, other=0.0)
        s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
        p = tl.where((offs_n < length)[None, :], tl.exp(s - l[:, None]), 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    dqkv_ptr += batch * stride_b + head * stride_h
    tl.store(dqkv_ptr + queries, (scale * dq).to(dqkv_ptr.dtype.element_ty), mask=mask_m)


@triton.jit
def _dkdv_kernel(
    dqkv_ptr, delta_ptr, qkv_ptr, l_ptr, do_ptr, lengths_ptr,
    heads, n, head_size, scale,
    stride_b, stride_n, stride_part, stride_h, stride_gb, stride_gn, stride_gh, stride_gd,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    batch, head = tl.program_id(0).to(tl.int64) // heads, tl.program_id(0).to(tl.int64) % heads
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = (offs_d < head_size)[None, :]
    mask_n = (offs_n < n)[:, None] & mask_d
    qkv_ptr += batch * stride_b + head * stride_h
    do_ptr += batch * stride_gb + head * stride_gh
    keys = offs_n[:, None] * stride_n + offs_d[None, :]
    k = tl.load(qkv_ptr + stride_part + keys, mask=mask_n, other=0.0)
    v = tl.load(qkv_ptr + 2 * stride_part + keys, mask=mask_n, other=0.0)
    seen = (offs_n < tl.load(lengths_ptr + batch))[:, None]
    dk = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    dv = tl.zeros((BLOCK_N, BLOCK_D), tl.float32)
    for start in range(0, n, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        mask_m = (offs_m < n)[:, None] & mask_d
        q = tl.load(qkv_ptr + offs_m[:, None] * stride_n + offs_d[None, :], mask=mask_m, other=0.0)
        do = tl.load(do_ptr + offs_m[:, None] * stride_gn + offs_d[None, :] * stride_gd, mask=mask_m, other=0.0)
        number = (batch * n + offs_m) * heads + head
        l = tl.load(l_ptr + number, mask=offs_m < n, other=0.0)
        delta = tl.load(delta_ptr + number, mask=offs_m < n, other=0.0)
        s = scale * tl.dot(k, tl.trans(q), input_precision="ieee")
        p = tl.where(seen & (offs_m < n)[None, :], tl.exp(s - l[None, :]), 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        ds = p * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    dqkv_ptr += batch * stride_b + head * stride_h
    tl.store(dqkv_ptr + stride_part + keys, (scale * dk).to(dqkv_ptr.dtype.element_ty), mask=mask_n)
    tl.store(dqkv_ptr + 2 * stride_part + keys, dv.to(dqkv_ptr.dtype.element_ty), mask=mask_n)


def product(a, b, bias=None):
    """a (.., .., K) or (M, K) times b (K, N), or (.., .., N) where K counts its rows; a matrix is one image."""
    a, b = (t if t.dim() == 3 else t[None] for t in (a, b))
    (images, rows, K), N = a.shape, b.shape[2]
    out = torch.empty(images * rows, N, dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(images * rows, 32), triton.cdiv(N, 32))
    _product_kernel[grid](
        out, a, b, bias, images * rows, N, K, rows, b.shape[1], *a.stride(), *b.stride(), BLOCK=32
    )
    return out


def sum_of_rows(x):
    out = torch.empty(x.shape[1], dtype=x.dtype, device=x.device)
    _sum_kernel[(triton.cdiv(x.shape[1], 32),)](out, x, *x.shape, BLOCK=32)
    return out


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, b, lengths, heads):
        (B, N, d), D = x.shape, x.shape[2] // heads
        qkv = product(x, w.mT, b).view(B, N, 3, heads, D)
        o, l = qkv.new_empty(B, N, d), qkv.new_empty(B, N, heads, dtype=torch.float32)
        _forward_kernel[(B * heads, triton.cdiv(N, 16))](
            o, l, qkv, lengths, heads, N, D, D**-0.5, *qkv.stride()[:4],
            BLOCK_M=16, BLOCK_N=64, BLOCK_D=triton.next_power_of_2(D),
        )
        ctx.save_for_backward(x, w, lengths, qkv, o, l)
        return o

    @staticmethod
    def backward(ctx, do):
        x, w, lengths, qkv, o, l = ctx.saved_tensors
        B, N, _, heads, D = qkv.shape
        dqkv, delta = torch.empty_like(qkv), torch.empty_like(l)
        do, size = do.unflatten(2, (heads, D)), {"BLOCK_D": triton.next_power_of_2(D)}
        of_strides = (heads, N, D, D**-0.5, *qkv.stride()[:4], *do.stride())
        _dq_kernel[(B * heads, triton.cdiv(N, 16))](
            dqkv, delta, qkv, o, l, do, lengths, *of_strides, BLOCK_M=16, BLOCK_N=64, **size
        )
        _dkdv_kernel[(B * heads, triton.cdiv(N, 32))](
            dqkv, delta, qkv, l, do, lengths, *of_strides, BLOCK_M=32, BLOCK_N=32, **size
        )
        rows = dqkv.view(B * N, 3 * heads * D)
        return product(rows, w).view(x.shape), product(rows.mT, x), sum_of_rows(rows), None, None


def attend(x, w, b, lengths, heads):
    return Attend.apply(x, w, b, lengths, heads)
