"""What attention is in float64, and how far from it a right kernel may be: derived, element by element."""

import torch

__all__ = ["growing", "oracle"]

U = 2.0**-24  # half a unit in the last place of fp32, relative


def seen(q, k, causal, k_lengths):
    n_q, n_k = q.shape[2], k.shape[2]
    rows, columns = torch.arange(n_q, device=q.device)[:, None], torch.arange(n_k, device=q.device)
    see = torch.ones(q.shape[0], 1, n_q, n_k, dtype=torch.bool, device=q.device)
    if causal:
        see &= columns <= rows + n_k - n_q
    if k_lengths is not None:
        see &= columns < k_lengths[:, None, None, None]
    return see


def oracle(q, k, v, do, causal=False, scale=None, k_lengths=None):
    """name -> (the exact value in float64, how far a right kernel may be from it)."""
    dtype, D, (H_kv, n_k) = q.dtype, q.shape[-1], k.shape[1:3]
    scale = D**-0.5 if scale is None else scale
    group = q.shape[1] // H_kv
    q, do = q.double(), do.double()
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    see = seen(q, k, causal, k_lengths)
    if k_lengths is not None:  # whatever lies behind the length is no key, NaN neither
        behind = torch.arange(n_k, device=q.device)[:, None] >= k_lengths[:, None, None, None]
        k, v = k.masked_fill(behind, 0.0), v.masked_fill(behind, 0.0)
    s = (q @ k.mT * scale).masked_fill(~see, -float("inf"))
    l = s.logsumexp(-1, keepdim=True)
    p = torch.exp(s - l.masked_fill(l == -float("inf"), 0.0))
    o, dp = p @ v, do @ v.mT
    delta = (do * o).sum(-1, keepdim=True)
    ds = p * (dp - delta)

    # Rounded to the inputs' type: p and ds as they enter a product, o as delta reads it. fp16 has a floor besides.
    info = torch.finfo(dtype)
    eps, tiny = (0.0, 0.0) if dtype == torch.float32 else (info.eps, info.smallest_normal * info.eps)
    tiny = max(tiny, 2.0**-126)  # a GPU's exp2 makes 0 of what is smaller
    # A sum of D products in fp32; then scale, exponent and L, each rounded at its own size.
    e_s = 2 * (D + 8) * U * abs(scale) * (q.abs() @ k.abs().mT)
    size = s.masked_fill(~see, 0.0).abs().amax(-1, keepdim=True) + 10 if n_k else torch.zeros_like(l)
    e_p = e_s + (e_s.amax(-1, keepdim=True) if n_k else 0.0) + 16 * U * size + 2 * n_k * U  # relative
    e_dp = 2 * (D + 4) * U * (do.abs() @ v.abs().mT)
    e_delta = (do.abs() * ((eps + 2 * D * U) * o.abs() + (e_p + eps) * p @ v.abs())).sum(-1, keepdim=True)
    e_ds = (e_p + eps + 8 * U) * ds.abs() + p * (e_dp + e_delta) + tiny
    long = 4 * max(n_k, q.shape[2] * group) * U

    def shared(x):
        return x.unflatten(1, (H_kv, group)).sum(2)

    return {
        "o": (o, (e_p + eps + long) * p @ v.abs() + tiny * v.abs().sum(-2, keepdim=True)),
        "dq": (scale * ds @ k, abs(scale) * (e_ds + long * ds.abs()) @ k.abs()),
        "dk": (shared(scale * ds.mT @ q), shared(abs(scale) * (e_ds + long * ds.abs()).mT @ q.abs())),
        "dv": (shared(p.mT @ do), shared(((e_p + eps + long) * p + tiny).mT @ do.abs())),
        "l": (l[..., 0], (e_s.amax(-1) if n_k else 0.0) + 8 * U * size[..., 0]),
    }


def growing(q, k):
    """q and k whose scores grow from the last 128 keys to those before. Of five groups of 16 rows, one after the other:
    in the first 8 rows by 12 powers of two a block, in the last 8 by 12, in all by 3, in one by 12, in none."""
    step, unit = 4.0, q.shape[-1] ** -0.5 * 1.4426950408889634
    q, k = q.clone(), k.clone()
    a_block = torch.zeros(5, 16, device=q.device)
    a_block[0, :8], a_block[1, 8:], a_block[2], a_block[3, 11] = 12.0, 12.0, 3.0, 12.0
    rows, keys = torch.arange(q.shape[2], device=q.device), torch.arange(k.shape[2], device=k.device)
    q[..., 0] = a_block.flatten()[rows % a_block.numel()] / (step * unit)
    k[..., 0] = (k.shape[2] - 1 - keys) // 128 * step
    return q, k
