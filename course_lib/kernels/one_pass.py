"""The backward pass of attention in one pass: five products where two passes make seven, and sums that programs share.

    p = exp(s - L)    dp = do vᵀ    ds = p (dp - delta)    delta_i = sum_d do_id o_id
    dk = scale dsᵀ q    dv = pᵀ do    dq = scale ds k

A program owns a block of keys, so dk and dv are its own. dq is not: every program of a head adds to all of its rows.
`add` says how.

    "atomic"   the hardware adds, one number after the other; right, and in another order every time
    "racy"     load, add, store: two programs that read the same old value lose one of the two sums
    "none"     dq stays zero: what the rest costs

Made for comparison: contiguous tensors, as many heads of keys as of queries, head sizes 16, 32, 64 and 128. What to use
is `attention`. FLOP: 10 B H n_q n_k D, half of it causal. Bytes that are added to dq: 4 B H n_q D for each block of
keys, half of it causal.
"""

from typing import Literal

import torch
import triton
import triton.language as tl

from course_lib.kernels.hardware import limits

__all__ = ["backward_in_one_pass"]

# Queries and keys a block, warps, stages: the first that fits. Plain arithmetic unrolls a whole product: the second.
BLOCKS = (64, 64, 4, 2), (32, 32, 4, 1)
INTERPRETED = (16, 32, 4, 1)


@triton.jit
def _one_pass_kernel(
    dq_ptr, dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, l_ptr, delta_ptr,
    n_q, n_k, scale,
    ADD: tl.constexpr, CAUSAL: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    LOG2_E: tl.constexpr = 1.4426950408889634
    blocks = tl.cdiv(n_k, BLOCK_N)
    block, head = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    offs_n, offs_d = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, D)
    at_n = head * n_k * D + offs_n[:, None] * D + offs_d[None, :]
    mask_n = (offs_n < n_k)[:, None]
    k = tl.load(k_ptr + at_n, mask=mask_n, other=0.0)
    v = tl.load(v_ptr + at_n, mask=mask_n, other=0.0)

    dk = tl.zeros((BLOCK_N, D), tl.float32)
    dv = tl.zeros((BLOCK_N, D), tl.float32)
    first = tl.cast(0, tl.int32)
    if CAUSAL:
        first = tl.maximum(block * BLOCK_N - (n_k - n_q), 0) // BLOCK_M * BLOCK_M
    for start in range(first, n_q, BLOCK_M):
        offs_m = start + tl.arange(0, BLOCK_M)
        at_m = head * n_q * D + offs_m[:, None] * D + offs_d[None, :]
        mask_m = (offs_m < n_q)[:, None]
        q = tl.load(q_ptr + at_m, mask=mask_m, other=0.0)  # (BLOCK_M, D)
        do = tl.load(do_ptr + at_m, mask=mask_m, other=0.0)  # (BLOCK_M, D)
        l = tl.load(l_ptr + head * n_q + offs_m, mask=offs_m < n_q, other=-float("inf"))  # (BLOCK_M,)
        delta = tl.load(delta_ptr + head * n_q + offs_m, mask=offs_m < n_q, other=0.0)
        # +inf for a query with no key: its probabilities become exp2(-inf) = 0, where -inf - -inf would be NaN.
        shift = tl.where(l == -float("inf"), float("inf"), l * LOG2_E)

        # Keys go down, queries go across: (BLOCK_N, BLOCK_M).
        s = tl.dot(k, tl.trans(q), input_precision="ieee") * (scale * LOG2_E)
        see = mask_n
        if CAUSAL:
            see = see & (offs_n[:, None] <= offs_m[None, :] + n_k - n_q)
        p = tl.exp2(tl.where(see, s, -float("inf")) - shift[None, :])
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")  # (BLOCK_N, D)
        dp = tl.dot(v, tl.trans(do), input_precision="ieee")  # (BLOCK_N, BLOCK_M)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dk = tl.dot(ds, q, dk, input_precision="ieee")  # (BLOCK_N, D)
        if ADD != "none":
            part = tl.dot(tl.trans(ds), k, input_precision="ieee") * scale  # (BLOCK_M, D)
            if ADD == "atomic":
                tl.atomic_add(dq_ptr + at_m, part, mask=mask_m, sem="relaxed")
            else:
                tl.store(dq_ptr + at_m, tl.load(dq_ptr + at_m, mask=mask_m, other=0.0) + part, mask=mask_m)
    tl.store(dk_ptr + at_n, (dk * scale).to(dk_ptr.dtype.element_ty), mask=mask_n)
    tl.store(dv_ptr + at_n, dv.to(dv_ptr.dtype.element_ty), mask=mask_n)


def _blocks(q: torch.Tensor) -> tuple[int, int, int, int]:
    has, (m, n, _, stages) = limits(q.device), BLOCKS[0]
    rows = 2 * n + 2 * stages * m + 128  # k and v, q and do, and two tiles of scores
    fits = rows * q.shape[-1] * q.element_size() <= has.shared_bytes and has.tensor_cores
    return BLOCKS[0] if fits or has.measured else BLOCKS[1]


def backward_in_one_pass(
    do, q, k, v, o, l, causal: bool, scale: float, add: Literal["atomic", "racy", "none"] = "atomic",
    blocks: tuple[int, int, int, int] | None = None, delta: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """q, o, do (B, H, n_q, D), k, v (B, H, n_k, D), l (B, H, n_q) as attention gives it -> dq in fp32, dk, dv.

    blocks: queries and keys a block, warps, stages. delta: (B, H, n_q) fp32, when it is already made.
    """
    (B, H, n_q, D), n_k = q.shape, k.shape[2]
    assert k.shape == v.shape == (B, H, n_k, D) and D in (16, 32, 64, 128), (q.shape, k.shape)
    assert all(x.is_contiguous() for x in (do, q, k, v, o, l)), "this kernel takes contiguous tensors"
    assert add in ("atomic", "racy", "none"), add
    block_m, block_n, warps, stages = blocks or (_blocks(q) if q.is_cuda else INTERPRETED)
    delta = (o.float() * do.float()).sum(-1) if delta is None else delta
    dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)  # added to, so it must begin at 0
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    if dk.numel():
        _one_pass_kernel[(triton.cdiv(n_k, block_n) * B * H,)](
            dq, dk, dv, q, k, v, do, l, delta,
            n_q, n_k, scale,
            ADD=add, CAUSAL=causal, D=D, BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages,
        )  # fmt: skip
    return dq, dk, dv
