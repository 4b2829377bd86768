"""Keys and values are padded to whole blocks and scaled beforehand; the mask is made as a whole."""

import torch
import torch.nn.functional as F


def tiled_forward(q, k, v, causal, scale, block):
    n_q, n_k = q.shape[2], k.shape[2]
    pad = -n_k % block
    keys, values = (F.pad(x.float(), (0, 0, 0, pad)).unflatten(2, (-1, block)) for x in (k, v))
    keys = keys * scale
    see = torch.ones(n_q, n_k, dtype=torch.bool, device=q.device)
    see = F.pad(see.tril(n_k - n_q) if causal else see, (0, pad))
    queries = q.float()
    m = torch.full(q.shape[:3], -torch.inf, device=q.device)
    total, acc = torch.zeros_like(m), torch.zeros_like(queries)
    for number, part in enumerate(see.split(block, dim=1)):
        s = torch.einsum("bhqd,bhkd->bhqk", queries, keys[:, :, number]).masked_fill(~part, -torch.inf)
        new = torch.maximum(m, s.amax(-1))
        shift = new.masked_fill(new == -torch.inf, 0.0)
        p, factor = torch.exp(s - shift[..., None]), torch.exp(m - shift)
        total = total * factor + p.sum(-1)
        acc = acc * factor[..., None] + torch.einsum("bhqk,bhkd->bhqd", p, values[:, :, number])
        m = new
    return (acc / total.masked_fill(total == 0, 1.0)[..., None]).to(q.dtype), m + total.log()
