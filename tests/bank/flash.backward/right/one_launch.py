"""One kernel for everything: some programs own queries, others keys, and each makes delta as it goes; base 2."""

import triton
import triton.language as tl


@triton.jit
def _rows(ptr, offs, n, stride_row, stride_column, head_size, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (columns < head_size)[None, :]
    return tl.load(ptr + offs[:, None] * stride_row + columns[None, :] * stride_column, mask=mask, other=0.0)


@triton.jit
def _keep(ptr, x, offs, n, stride_row, stride_column, head_size, BLOCK_D: tl.constexpr):
    columns = tl.arange(0, BLOCK_D)
    mask = (offs < n)[:, None] & (columns < head_size)[None, :]
    place = offs[:, None] * stride_row + columns[None, :] * stride_column
    tl.store(ptr + place, x.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _turned(k, v, q, out, dout, lse_ptr, offs_m, offs_n, n_q, keys, diagonal, scale, CAUSAL: tl.constexpr):
    """p and ds with keys down and queries across."""
    LOG2_E: tl.constexpr = 1.4426950408889634
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < n_q, other=0.0)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), axis=1)
    hidden = (offs_n[:, None] >= keys) | (offs_m[None, :] >= n_q)
    if CAUSAL:
        hidden |= offs_n[:, None] > offs_m[None, :] + diagonal
    s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * LOG2_E)
    lse = tl.where(lse == -float("inf"), 0.0, lse * LOG2_E)
    p = tl.exp2(tl.where(hidden, -float("inf"), s - lse[None, :]))
    dp = tl.dot(v, tl.trans(dout), input_precision="ieee")
    return p, p * (dp - delta[None, :])


@triton.jit
def _backward_kernel(
    dq_ptr, dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, dout_ptr, lengths_ptr,
    kv_heads, group, n_q, n_k, head_size, scale, of_queries,
    s_dqb, s_dqh, s_dqm, s_dqd, s_dkb, s_dkh, s_dkn, s_dkd, s_dvb, s_dvh, s_dvn, s_dvd,
    s_qb, s_qh, s_qm, s_qd, s_kb, s_kh, s_kn, s_kd, s_vb, s_vh, s_vn, s_vd, s_ob, s_oh, s_om, s_od,
    s_gb, s_gh, s_gm, s_gd,
    CAUSAL: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, BLOCK_D: tl.constexpr,
):
    program = tl.program_id(0)
    diagonal = n_k - n_q
    if program < of_queries:
        blocks = tl.cdiv(n_q, BLOCK)
        row = (program // blocks).to(tl.int64)
        batch, head = row // (kv_heads * group), row % (kv_heads * group)
        keys = n_k
        if lengths_ptr is not None:
            keys = tl.load(lengths_ptr + batch)
        offs_m = program % blocks * BLOCK + tl.arange(0, BLOCK)
        q = _rows(q_ptr + batch * s_qb + head * s_qh, offs_m, n_q, s_qm, s_qd, head_size, BLOCK_D)
        out = _rows(out_ptr + batch * s_ob + head * s_oh, offs_m, n_q, s_om, s_od, head_size, BLOCK_D)
        dout = _rows(dout_ptr + batch * s_gb + head * s_gh, offs_m, n_q, s_gm, s_gd, head_size, BLOCK_D)
        k_head = k_ptr + batch * s_kb + head // group * s_kh
        v_head = v_ptr + batch * s_vb + head // group * s_vh
        end = keys
        if CAUSAL:
            end = tl.minimum(keys, tl.maximum(program % blocks * BLOCK + BLOCK + diagonal, 0))
        dq = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        for start in range(0, end, STEP):
            offs_n = start + tl.arange(0, STEP)
            k = _rows(k_head, offs_n, keys, s_kn, s_kd, head_size, BLOCK_D)
            v = _rows(v_head, offs_n, keys, s_vn, s_vd, head_size, BLOCK_D)
            p, ds = _turned(
                k, v, q, out, dout, lse_ptr + row * n_q, offs_m, offs_n, n_q, keys, diagonal, scale, CAUSAL
            )
            dq += tl.dot(tl.trans(ds.to(k.dtype)), k, input_precision="ieee")
        dq_ptr += batch * s_dqb + head * s_dqh
        _keep(dq_ptr, dq * scale, offs_m, n_q, s_dqm, s_dqd, head_size, BLOCK_D)
    else:
        program = program - of_queries
        blocks = tl.cdiv(n_k, BLOCK)
        batch, kv_head = (program // blocks // kv_heads).to(tl.int64), (program // blocks % kv_heads).to(tl.int64)
        keys = n_k
        if lengths_ptr is not None:
            keys = tl.load(lengths_ptr + batch)
        offs_n = program % blocks * BLOCK + tl.arange(0, BLOCK)
        k = _rows(k_ptr + batch * s_kb + kv_head * s_kh, offs_n, keys, s_kn, s_kd, head_size, BLOCK_D)
        v = _rows(v_ptr + batch * s_vb + kv_head * s_vh, offs_n, keys, s_vn, s_vd, head_size, BLOCK_D)
        dk = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        dv = tl.zeros((BLOCK, BLOCK_D), tl.float32)
        first = 0
        if CAUSAL:
            first = tl.maximum(program % blocks * BLOCK - diagonal, 0) // STEP
        steps = tl.cdiv(n_q, STEP) - first
        for turn in range(0, group * steps):
            head = kv_head * group + turn // steps
            row = batch * kv_heads * group + head
            offs_m = (first + turn % steps) * STEP + tl.arange(0, STEP)
            q = _rows(q_ptr + batch * s_qb + head * s_qh, offs_m, n_q, s_qm, s_qd, head_size, BLOCK_D)
            out = _rows(out_ptr + batch * s_ob + head * s_oh, offs_m, n_q, s_om, s_od, head_size, BLOCK_D)
            dout = _rows(dout_ptr + batch * s_gb + head * s_gh, offs_m, n_q, s_gm, s_gd, head_size, BLOCK_D)
            p, ds = _turned(
                k, v, q, out, dout, lse_ptr + row * n_q, offs_m, offs_n, n_q, keys, diagonal, scale, CAUSAL
            )
            dv = tl.dot(p.to(dout.dtype), dout, dv, input_precision="ieee")
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
        dk_ptr += batch * s_dkb + kv_head * s_dkh
        dv_ptr += batch * s_dvb + kv_head * s_dvh
        _keep(dk_ptr, dk * scale, offs_n, n_k, s_dkn, s_dkd, head_size, BLOCK_D)
        _keep(dv_ptr, dv, offs_n, n_k, s_dvn, s_dvd, head_size, BLOCK_D)


def flash_backward(q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths):
    (batch, heads, n_q, head_size), (kv_heads, n_k) = q.shape, k.shape[1:3]
    of_queries = triton.cdiv(n_q, 32) * batch * heads
    of_keys = triton.cdiv(n_k, 32) * batch * kv_heads
    _backward_kernel[(of_queries + of_keys,)](
        dq, dk, dv, q, k, v, out, lse, dout, k_lengths,
        kv_heads, heads // kv_heads, n_q, n_k, head_size, scale, of_queries,
        *dq.stride(), *dk.stride(), *dv.stride(), *q.stride(), *k.stride(), *v.stride(), *out.stride(),
        *dout.stride(),
        CAUSAL=causal, BLOCK=32, STEP=32, BLOCK_D=triton.next_power_of_2(head_size),
    )
