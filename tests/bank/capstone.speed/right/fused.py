"""What stands between two products is one kernel, sums for biases included; a head's columns are a power of two and a
rest; q, k and v are one tensor, and so are their gradients."""

import torch
import triton
import triton.language as tl


@triton.jit
def _part(ptr, offs, n, stride, FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr):
    offs_d = FIRST + tl.arange(0, COLUMNS)
    mask = (offs < n)[:, None] & (offs_d < HEAD)[None, :]
    return tl.load(ptr + offs[:, None] * stride + offs_d[None, :], mask=mask, other=0.0)


@triton.jit
def _keep(ptr, x, offs, n, stride, FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr):
    offs_d = FIRST + tl.arange(0, COLUMNS)
    mask = (offs < n)[:, None] & (offs_d < HEAD)[None, :]
    tl.store(ptr + offs[:, None] * stride + offs_d[None, :], x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _keep_sum(ptr, x, FIRST: tl.constexpr, COLUMNS: tl.constexpr, HEAD: tl.constexpr):
    offs_d = FIRST + tl.arange(0, COLUMNS)
    tl.store(ptr + offs_d, tl.sum(x, axis=0), mask=offs_d < HEAD)


@triton.jit
def _place(n, heads, BLOCK: tl.constexpr, HEAD: tl.constexpr):
    """Which block, image and head this program has; where its head begins in rows of q, k, v and in rows of o."""
    blocks = tl.cdiv(n, BLOCK)
    block, row = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    image, head = row // heads, row % heads
    in_qkv = image * n * 3 * heads * HEAD + head * HEAD
    return block, blocks, row, image, head, in_qkv, image * n * heads * HEAD + head * HEAD


@triton.jit
def _attention_kernel(
    o_ptr, lse_ptr, qkv_ptr, lengths_ptr, n, heads, scale,
    M: tl.constexpr, N: tl.constexpr, HEAD: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
):
    block, blocks, row, image, head, in_qkv, in_o = _place(n, heads, M, HEAD)
    width = heads * HEAD
    stride = 3 * width
    q_ptr = qkv_ptr + in_qkv
    k_ptr, v_ptr = q_ptr + width, q_ptr + 2 * width
    keys = tl.load(lengths_ptr + image)
    offs_m = block * M + tl.arange(0, M)
    q0 = _part(q_ptr, offs_m, n, stride, 0, D0, HEAD)
    acc0 = tl.zeros((M, D0), tl.float32)
    if D1:
        q1 = _part(q_ptr, offs_m, n, stride, D0, D1, HEAD)
        acc1 = tl.zeros((M, D1), tl.float32)
    top = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    for start in range(0, keys, N):
        offs_n = start + tl.arange(0, N)
        k0 = _part(k_ptr, offs_n, n, stride, 0, D0, HEAD)
        s = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        if D1:
            k1 = _part(k_ptr, offs_n, n, stride, D0, D1, HEAD)
            s = tl.dot(q1, tl.trans(k1), s, input_precision="ieee")
        s = tl.where((offs_n < keys)[None, :], s * scale, -float("inf"))
        new = tl.maximum(top, tl.max(s, axis=1))
        p = tl.exp2(s - new[:, None])
        factor = tl.exp2(top - new)
        total = total * factor + tl.sum(p, axis=1)
        top = new
        v0 = _part(v_ptr, offs_n, n, stride, 0, D0, HEAD)
        acc0 = tl.dot(p.to(v0.dtype), v0, acc0 * factor[:, None], input_precision="ieee")
        if D1:
            v1 = _part(v_ptr, offs_n, n, stride, D0, D1, HEAD)
            acc1 = tl.dot(p.to(v0.dtype), v1, acc1 * factor[:, None], input_precision="ieee")
    _keep(o_ptr + in_o, acc0 / total[:, None], offs_m, n, width, 0, D0, HEAD)
    if D1:
        _keep(o_ptr + in_o, acc1 / total[:, None], offs_m, n, width, D0, D1, HEAD)
    tl.store(lse_ptr + row * n + offs_m, top + tl.log2(total), mask=offs_m < n)


@triton.jit
def _dq_kernel(
    dqkv_ptr, sums_ptr, delta_ptr, qkv_ptr, o_ptr, do_ptr, lse_ptr, lengths_ptr, n, heads, scale,
    M: tl.constexpr, N: tl.constexpr, HEAD: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
):
    """dq and the sums of its rows; on the way delta, which the other pass needs."""
    block, blocks, row, image, head, in_qkv, in_o = _place(n, heads, M, HEAD)
    width = heads * HEAD
    stride = 3 * width
    q_ptr = qkv_ptr + in_qkv
    k_ptr, v_ptr = q_ptr + width, q_ptr + 2 * width
    keys = tl.load(lengths_ptr + image)
    offs_m = block * M + tl.arange(0, M)
    q0 = _part(q_ptr, offs_m, n, stride, 0, D0, HEAD)
    do0 = _part(do_ptr + in_o, offs_m, n, width, 0, D0, HEAD)
    o0 = _part(o_ptr + in_o, offs_m, n, width, 0, D0, HEAD)
    delta = tl.sum(o0.to(tl.float32) * do0.to(tl.float32), axis=1)
    dq0 = tl.zeros((M, D0), tl.float32)
    if D1:
        q1 = _part(q_ptr, offs_m, n, stride, D0, D1, HEAD)
        do1 = _part(do_ptr + in_o, offs_m, n, width, D0, D1, HEAD)
        o1 = _part(o_ptr + in_o, offs_m, n, width, D0, D1, HEAD)
        delta += tl.sum(o1.to(tl.float32) * do1.to(tl.float32), axis=1)
        dq1 = tl.zeros((M, D1), tl.float32)
    tl.store(delta_ptr + row * n + offs_m, delta, mask=offs_m < n)
    lse = tl.load(lse_ptr + row * n + offs_m, mask=offs_m < n, other=float("inf"))
    of_exponent = scale * 1.4426950408889634
    for start in range(0, keys, N):
        offs_n = start + tl.arange(0, N)
        k0 = _part(k_ptr, offs_n, n, stride, 0, D0, HEAD)
        v0 = _part(v_ptr, offs_n, n, stride, 0, D0, HEAD)
        s = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        dp = tl.dot(do0, tl.trans(v0), input_precision="ieee")
        if D1:
            k1 = _part(k_ptr, offs_n, n, stride, D0, D1, HEAD)
            v1 = _part(v_ptr, offs_n, n, stride, D0, D1, HEAD)
            s = tl.dot(q1, tl.trans(k1), s, input_precision="ieee")
            dp = tl.dot(do1, tl.trans(v1), dp, input_precision="ieee")
        s = tl.where((offs_n < keys)[None, :], s * of_exponent, -float("inf"))
        ds = (tl.exp2(s - lse[:, None]) * (dp - delta[:, None])).to(k0.dtype)
        dq0 = tl.dot(ds, k0, dq0, input_precision="ieee")
        if D1:
            dq1 = tl.dot(ds, k1, dq1, input_precision="ieee")
    sums_ptr += (image * blocks + block) * width + head * HEAD
    _keep(dqkv_ptr + in_qkv, dq0 * scale, offs_m, n, stride, 0, D0, HEAD)
    _keep_sum(sums_ptr, dq0 * scale, 0, D0, HEAD)
    if D1:
        _keep(dqkv_ptr + in_qkv, dq1 * scale, offs_m, n, stride, D0, D1, HEAD)
        _keep_sum(sums_ptr, dq1 * scale, D0, D1, HEAD)


@triton.jit
def _dkdv_kernel(
    dqkv_ptr, sums_ptr, qkv_ptr, do_ptr, lse_ptr, delta_ptr, lengths_ptr, n, heads, scale,
    M: tl.constexpr, N: tl.constexpr, HEAD: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
):
    """dk, dv and the sums of their rows. Keys go down and queries across; a block behind the length is zeros."""
    block, blocks, row, image, head, in_qkv, in_o = _place(n, heads, N, HEAD)
    width = heads * HEAD
    stride = 3 * width
    q_ptr = qkv_ptr + in_qkv
    k_ptr, v_ptr = q_ptr + width, q_ptr + 2 * width
    lse_ptr += row * n
    delta_ptr += row * n
    keys = tl.load(lengths_ptr + image)
    offs_n = block * N + tl.arange(0, N)
    k0 = _part(k_ptr, offs_n, n, stride, 0, D0, HEAD)
    v0 = _part(v_ptr, offs_n, n, stride, 0, D0, HEAD)
    dk0 = tl.zeros((N, D0), tl.float32)
    dv0 = tl.zeros((N, D0), tl.float32)
    if D1:
        k1 = _part(k_ptr, offs_n, n, stride, D0, D1, HEAD)
        v1 = _part(v_ptr, offs_n, n, stride, D0, D1, HEAD)
        dk1 = tl.zeros((N, D1), tl.float32)
        dv1 = tl.zeros((N, D1), tl.float32)
    of_exponent = scale * 1.4426950408889634
    queries = n * (block * N < keys).to(tl.int32)
    for start in range(0, queries, M):
        offs_m = start + tl.arange(0, M)
        q0 = _part(q_ptr, offs_m, n, stride, 0, D0, HEAD)
        do0 = _part(do_ptr + in_o, offs_m, n, width, 0, D0, HEAD)
        s = tl.dot(k0, tl.trans(q0), input_precision="ieee")
        dp = tl.dot(v0, tl.trans(do0), input_precision="ieee")
        if D1:
            q1 = _part(q_ptr, offs_m, n, stride, D0, D1, HEAD)
            do1 = _part(do_ptr + in_o, offs_m, n, width, D0, D1, HEAD)
            s = tl.dot(k1, tl.trans(q1), s, input_precision="ieee")
            dp = tl.dot(v1, tl.trans(do1), dp, input_precision="ieee")
        lse = tl.load(lse_ptr + offs_m, mask=offs_m < n, other=float("inf"))
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < n, other=0.0)
        s = tl.where((offs_n < keys)[:, None], s * of_exponent, -float("inf"))
        p = tl.exp2(s - lse[None, :])
        ds = (p * (dp - delta[None, :])).to(q0.dtype)
        p = p.to(q0.dtype)
        dv0 = tl.dot(p, do0, dv0, input_precision="ieee")
        dk0 = tl.dot(ds, q0, dk0, input_precision="ieee")
        if D1:
            dv1 = tl.dot(p, do1, dv1, input_precision="ieee")
            dk1 = tl.dot(ds, q1, dk1, input_precision="ieee")
    sums_ptr += (image * blocks + block) * 2 * width + head * HEAD
    dk_ptr = dqkv_ptr + in_qkv + width
    dv_ptr = dk_ptr + width
    _keep(dk_ptr, dk0 * scale, offs_n, n, stride, 0, D0, HEAD)
    _keep(dv_ptr, dv0, offs_n, n, stride, 0, D0, HEAD)
    _keep_sum(sums_ptr, dk0 * scale, 0, D0, HEAD)
    _keep_sum(sums_ptr + width, dv0, 0, D0, HEAD)
    if D1:
        _keep(dk_ptr, dk1 * scale, offs_n, n, stride, D0, D1, HEAD)
        _keep(dv_ptr, dv1, offs_n, n, stride, D0, D1, HEAD)
        _keep_sum(sums_ptr, dk1 * scale, D0, D1, HEAD)
        _keep_sum(sums_ptr + width, dv1, D0, D1, HEAD)


@triton.jit
def _norm_kernel(
    out_ptr, mean_ptr, rstd_ptr, h_ptr, y_ptr, x_ptr, branch_ptr, last_ptr, weight_ptr, bias_ptr, rows, width,
    ADDS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    """Norms of rows. ADDS: of x + branch, which is kept as h; y begins as h and the last bias."""
    offs_m = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    offs_n = tl.arange(0, BLOCK)
    mask_n = offs_n < width
    mask = (offs_m < rows)[:, None] & mask_n[None, :]
    at = offs_m[:, None] * width + offs_n[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if ADDS:
        x += tl.load(branch_ptr + at, mask=mask, other=0.0).to(tl.float32)
        h = x.to(h_ptr.dtype.element_ty)
        tl.store(h_ptr + at, h, mask=mask)
        x = h.to(tl.float32)
        last = tl.load(last_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
        tl.store(y_ptr + at, (x + last[None, :]).to(y_ptr.dtype.element_ty), mask=mask)
    mean = tl.sum(x, axis=1) / width
    centred = tl.where(mask, x - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, axis=1) / width + 1e-5)
    weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    out = centred * rstd[:, None] * weight[None, :] + bias[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(mean_ptr + offs_m, mean, mask=offs_m < rows)
    tl.store(rstd_ptr + offs_m, rstd, mask=offs_m < rows)


@triton.jit
def _norm_back_kernel(
    dx_ptr, sums_ptr, dn_ptr, around_ptr, x_ptr, mean_ptr, rstd_ptr, weight_ptr, rows, width,
    SUMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):
    """Some rows: the gradient through the norm and around it. SUMS: 2, weight and bias; 4, also of both gradients."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    offs_n = tl.arange(0, BLOCK)
    mask_n = offs_n < width
    weight = tl.load(weight_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)
    d_weight = tl.zeros((BLOCK,), tl.float32)
    d_bias = tl.zeros((BLOCK,), tl.float32)
    of_dx = tl.zeros((BLOCK,), tl.float32)
    of_around = tl.zeros((BLOCK,), tl.float32)
    for first in range(program * ROWS, rows, programs * ROWS):
        offs_m = first + tl.arange(0, ROWS)
        mask_m = offs_m < rows
        mask = mask_m[:, None] & mask_n[None, :]
        at = offs_m.to(tl.int64)[:, None] * width + offs_n[None, :]
        dn = tl.load(dn_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
        around = tl.load(around_ptr + at, mask=mask, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        rstd = tl.load(rstd_ptr + offs_m, mask=mask_m, other=0.0)[:, None]
        hat = tl.where(mask, (x - mean) * rstd, 0.0)
        g = dn * weight[None, :]
        of_g, of_both = tl.sum(g, axis=1)[:, None] / width, tl.sum(g * hat, axis=1)[:, None] / width
        dx = tl.where(mask, rstd * (g - of_g - hat * of_both) + around, 0.0)
        tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        d_weight += tl.sum(dn * hat, axis=0)
        d_bias += tl.sum(dn, axis=0)
        if SUMS == 4:
            of_dx += tl.sum(dx, axis=0)
            of_around += tl.sum(around, axis=0)
    sums_ptr += program * SUMS * width + offs_n
    tl.store(sums_ptr, d_weight, mask=mask_n)
    tl.store(sums_ptr + width, d_bias, mask=mask_n)
    if SUMS == 4:
        tl.store(sums_ptr + 2 * width, of_dx, mask=mask_n)
        tl.store(sums_ptr + 3 * width, of_around, mask=mask_n)


@triton.jit
def _gelu_kernel(g_ptr, u_ptr, size, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    u = tl.load(u_ptr + offs, mask=offs < size, other=0.0).to(tl.float32)
    g = u * tl.sigmoid(1.5957691216057308 * (u + 0.044715 * u * u * u))
    tl.store(g_ptr + offs, g.to(g_ptr.dtype.element_ty), mask=offs < size)


@triton.jit
def _slope_kernel(
    du_ptr, sums_ptr, u_ptr, rows, hidden, ROWS: tl.constexpr, STEP: tl.constexpr, COLUMNS: tl.constexpr
):
    """ROWS rows of some columns: du in place of dg, and the sums of these rows."""
    offs_n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, ROWS, STEP):
        offs_m = tl.program_id(0).to(tl.int64) * ROWS + start + tl.arange(0, STEP)
        mask = (offs_m < rows)[:, None] & (offs_n < hidden)[None, :]
        at = offs_m[:, None] * hidden + offs_n[None, :]
        u = tl.load(u_ptr + at, mask=mask, other=0.0).to(tl.float32)
        dg = tl.load(du_ptr + at, mask=mask, other=0.0).to(tl.float32)
        two_u = 1.5957691216057308 * (u + 0.044715 * u * u * u)
        s = tl.sigmoid(two_u)
        du = dg * (s + u * s * tl.sigmoid(-two_u) * 1.5957691216057308 * (1.0 + 0.134145 * u * u))
        tl.store(du_ptr + at, du.to(du_ptr.dtype.element_ty), mask=mask)
        total += tl.sum(du, axis=0)
    tl.store(sums_ptr + tl.program_id(0) * hidden + offs_n, total, mask=offs_n < hidden)


@triton.jit
def _sum_kernel(out_ptr, parts_ptr, parts, stride, size, STEP: tl.constexpr, BLOCK: tl.constexpr):
    """out = the sum of `parts` rows that lie `stride` apart."""
    offs_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, parts, STEP):
        offs_p = first + tl.arange(0, STEP)
        mask = (offs_p < parts)[:, None] & (offs_n < size)[None, :]
        total += tl.sum(tl.load(parts_ptr + offs_p[:, None] * stride + offs_n[None, :], mask=mask, other=0.0), axis=0)
    tl.store(out_ptr + offs_n, total.to(out_ptr.dtype.element_ty), mask=offs_n < size)


def add_up(out, parts):
    """out (size,) from parts (count, size), whose rows may lie apart."""
    _sum_kernel[(triton.cdiv(len(out), 32),)](out, parts, len(parts), parts.stride(0), len(out), STEP=64, BLOCK=32)


def norm(x, weight, bias, branch=None, last=None, y=None):
    """The norm, mean and 1 / deviation; of x + branch, which comes too."""
    rows, width = x.shape
    out, h = torch.empty_like(x), x if branch is None else torch.empty_like(x)
    mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in "12")
    at_once = 1 if x.is_cuda else 64
    _norm_kernel[(triton.cdiv(rows, at_once),)](
        out, mean, rstd, h, y, x, branch, last, weight, bias, rows, width,
        ADDS=branch is not None, ROWS=at_once, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )
    return out, mean, rstd, h


def norm_back(dx, sums_of, dn, around, x, mean, rstd, weight):
    rows, width = x.shape
    at_once, programs = (1, min(rows, NORM_BACK[0])) if x.is_cuda else (32, 2)
    sums = torch.empty(programs, len(sums_of), width, dtype=torch.float32, device=x.device)
    _norm_back_kernel[(programs,)](
        dx, sums, dn, around, x, mean, rstd, weight, rows, width,
        SUMS=len(sums_of), ROWS=at_once, BLOCK=triton.next_power_of_2(width), num_warps=NORM_BACK[1],
    )
    for number, out in enumerate(sums_of):
        add_up(out, sums[:, number])


# queries, keys, warps, stages: forward, dq, dk and dv
FAST = ((128, 64, 4, 3), (64, 32, 4, 2), (64, 64, 4, 3))
SMALL = ((32, 32, 4, 1), (32, 32, 4, 1), (32, 32, 4, 1))
NORM_BACK = (396, 8)  # programs, warps
SLOPE = (256, 16, 128, 4)  # rows a program, rows a turn, columns, warps


def block_step(
    x, lengths, dy, n1_w, n1_b, qkv_w, qkv_b, out_w, out_b, n2_w, n2_b, up_w, up_b, down_w, down_b, heads,
    y, dx, d_n1_w, d_n1_b, d_qkv_w, d_qkv_b, d_out_w, d_out_b, d_n2_w, d_n2_b, d_up_w, d_up_b, d_down_w, d_down_b,
):
    batch, n, width = x.shape
    head, scale = width // heads, (width // heads) ** -0.5
    x, dy, y, dx = (t.view(-1, width) for t in (x, dy, y, dx))
    rows, hidden = len(x), len(up_b)
    whole = 1 << (head.bit_length() - 1)
    rest = max(16, triton.next_power_of_2(head - whole)) if head > whole else 0
    forward, for_q, for_k = (
        {"M": m, "N": k, "HEAD": head, "D0": whole, "D1": rest, "num_warps": warps, "num_stages": stages}
        for m, k, warps, stages in (FAST if x.is_cuda and x.element_size() == 2 else SMALL)
    )
    fp32 = {"dtype": torch.float32, "device": x.device}

    n1, mean1, rstd1, _ = norm(x, n1_w, n1_b)
    qkv = torch.addmm(qkv_b, n1, qkv_w.mT)
    o, lse = torch.empty_like(x), torch.empty(batch * heads, n, **fp32)
    _attention_kernel[(triton.cdiv(n, forward["M"]) * batch * heads,)](
        o, lse, qkv, lengths, n, heads, scale * 1.4426950408889634, **forward
    )
    branch = torch.addmm(out_b, o, out_w.mT)
    n2, mean2, rstd2, h = norm(x, n2_w, n2_b, branch, down_b, y)
    u = torch.addmm(up_b, n2, up_w.mT)
    g = torch.empty_like(u)
    _gelu_kernel[(triton.cdiv(u.numel(), 1024),)](g, u, u.numel(), BLOCK=1024)
    torch.addmm(y, g, down_w.mT, out=y)

    torch.mm(dy.mT, g, out=d_down_w)
    du = torch.mm(dy, down_w, out=g)
    chunk, step, columns, warps = SLOPE if x.is_cuda else (64, 64, 128, 4)
    parts = torch.empty(triton.cdiv(rows, chunk), hidden, **fp32)
    _slope_kernel[(len(parts), triton.cdiv(hidden, columns))](
        du, parts, u, rows, hidden, ROWS=chunk, STEP=step, COLUMNS=columns, num_warps=warps
    )
    add_up(d_up_b, parts)
    torch.mm(du.mT, n2, out=d_up_w)
    dn2, dh = torch.mm(du, up_w, out=n2), branch
    norm_back(dh, (d_n2_w, d_n2_b, d_out_b, d_down_b), dn2, dy, h, mean2, rstd2, n2_w)
    torch.mm(dh.mT, o, out=d_out_w)
    do, dqkv, delta = torch.mm(dh, out_w, out=dn2), torch.empty_like(qkv), torch.empty_like(lse)
    blocks_q, blocks_k = batch * triton.cdiv(n, for_q["M"]), batch * triton.cdiv(n, for_k["N"])
    of_q, of_kv = torch.empty(blocks_q, width, **fp32), torch.empty(blocks_k, 2 * width, **fp32)
    _dq_kernel[(blocks_q * heads,)](dqkv, of_q, delta, qkv, o, do, lse, lengths, n, heads, scale, **for_q)
    _dkdv_kernel[(blocks_k * heads,)](dqkv, of_kv, qkv, do, lse, delta, lengths, n, heads, scale, **for_k)
    add_up(d_qkv_b[:width], of_q)
    add_up(d_qkv_b[width:], of_kv)
    torch.mm(dqkv.mT, n1, out=d_qkv_w)
    norm_back(dx, (d_n1_w, d_n1_b), torch.mm(dqkv, qkv_w, out=n1), dh, x, mean1, rstd1, n1_w)
