"""Attention as formulas: the truth, what an honest kernel computes, and the places where a wrong one differs.

Everything takes the arguments of a call (`q`, `k`, `v`, `causal`, `scale`, `k_lengths`, ...) as the exercises do:
q (B, H, n_q, D), k and v (B, H_kv, n_k, D), H a multiple of H_kv. Mistakes change one keyword.
"""

import math

import torch

INF = float("inf")
LOG2_E = math.log2(math.e)
SHOWN = 1.3  # times the numbers of q, k, v and the result; copies of these, in other types too, are fewer
WHOLE = 2**24  # scores: more of them are made head by head, since float64 takes 8 bytes for each


def sizes(v) -> tuple[int, int, int, int, int]:
    """Heads, heads of keys, queries, keys, head size."""
    (_, heads, n_q, head_size), (kv_heads, n_k) = v["q"].shape, v["k"].shape[1:3]
    return heads, kv_heads, n_q, n_k, head_size


def lengths(v) -> torch.Tensor:
    """Keys of each sequence, (B, 1, 1, 1)."""
    given, n_k = v.get("k_lengths"), v["k"].shape[2]
    if given is None:
        given = torch.full((v["q"].shape[0],), n_k, device=v["q"].device)
    return given.view(-1, 1, 1, 1)


def visible(v, diagonal=None, counted=None) -> torch.Tensor:
    """Which query sees which key, (B, 1, n_q, n_k). Another diagonal or other lengths make a mistake of it."""
    n_q, n_k = v["q"].shape[2], v["k"].shape[2]
    m, n = torch.arange(n_q, device=v["q"].device)[:, None], torch.arange(n_k, device=v["q"].device)[None, :]
    see = n < (lengths(v) if counted is None else counted)
    if v["causal"]:
        see = see & (n <= m + (n_k - n_q if diagonal is None else diagonal))
    return see


def for_queries(v, x: torch.Tensor) -> torch.Tensor:
    """k or v with one head for each query head: head h reads head h // group. Zeros stand behind the length."""
    if v.get("k_lengths") is not None:  # a weight of 0 hides no NaN
        x = x.masked_fill(torch.arange(x.shape[2], device=x.device)[:, None] >= lengths(v), 0.0)
    return x.repeat_interleave(v["q"].shape[1] // x.shape[1], dim=1)


def for_keys(v, x: torch.Tensor) -> torch.Tensor:
    """A gradient (B, H, n_k, D) summed over the query heads that share their keys."""
    return x.unflatten(1, (v["k"].shape[1], -1)).sum(dim=2)


def scores(v, dtype=torch.float64, scale=None) -> torch.Tensor:
    """scale q kᵀ, (B, H, n_q, n_k)."""
    return v["q"].to(dtype) @ for_queries(v, v["k"]).to(dtype).mT * (v["scale"] if scale is None else scale)


def shift_of(s: torch.Tensor) -> torch.Tensor:
    """The maximum of each row; 0 for a row of only -inf."""
    top = s.amax(dim=-1, keepdim=True)
    return torch.where(top == -INF, 0.0, top)


def divided(p, total, values, shift) -> dict:
    """o and L from exp(s - shift), its sum, the values, and the shift; a row with no key gives zeros and -inf."""
    return {
        "out": p @ values / torch.where(total == 0, 1.0, total),
        "lse": (shift + torch.log(total)).squeeze(-1),
    }


def attend(v, dtype=torch.float64, s=None, see=None, values=None, shift=None, cast=False) -> dict:
    """softmax(s) v and L. An argument that is given replaces the right value. `cast`: p is rounded to the type of v."""
    s = scores(v, dtype) if s is None else s
    s = s.masked_fill(~(visible(v) if see is None else see), -INF)
    shift = shift_of(s) if shift is None else shift
    p = torch.exp(s - shift)
    total = p.sum(dim=-1, keepdim=True)
    values = (for_queries(v, v["v"]) if values is None else values).to(dtype)
    return divided(p.to(v["v"].dtype).to(dtype) if cast else p, total, values, shift)


def gradients(
    v, dtype=torch.float64, s=None, see=None, p=None, delta=None, ds=None, cast=False, dv_p=None, grouped=True
) -> dict:
    """dq, dk, dv from q, k, v and dout. An argument that is given replaces the right value.

    p: probabilities; delta (B, H, n_q, 1); ds: a function of (p, dp, delta); dv_p: what stands for p in dv.
    `cast`: p and ds rounded to the type of the inputs. `grouped` False leaves dk and dv per query head.
    """
    q, dout = v["q"].to(dtype), v["dout"].to(dtype)
    k, values = (for_queries(v, v[name]).to(dtype) for name in "kv")
    if p is None:
        p = probabilities(v, scores(v, dtype) if s is None else s, see)
    dp = dout @ values.mT
    delta = (p * dp).sum(dim=-1, keepdim=True) if delta is None else delta
    ds = p * (dp - delta) if ds is None else ds(p, dp, delta)
    if cast:
        p, ds = p.to(v["q"].dtype).to(dtype), ds.to(v["q"].dtype).to(dtype)
    dk, dv = ds.mT @ q * v["scale"], (p if dv_p is None else dv_p(p, dp, ds)).mT @ dout
    if grouped:
        dk, dv = for_keys(v, dk), for_keys(v, dv)
    return {"dq": ds @ k * v["scale"], "dk": dk, "dv": dv}


def probabilities(v, s, see=None) -> torch.Tensor:
    s = s.masked_fill(~(visible(v) if see is None else see), -INF)
    p = torch.exp(s - shift_of(s))
    total = p.sum(dim=-1, keepdim=True)
    return p / torch.where(total == 0, 1.0, total)


def delta_of(v, dtype=torch.float64) -> torch.Tensor:
    """As a kernel makes it: from `out` as it was stored."""
    return (v["out"].to(dtype) * v["dout"].to(dtype)).sum(dim=-1, keepdim=True)


# ---------------------------------------------------------------------------------------------- whole answers


def in_parts(make, v, outputs: tuple[str, ...]) -> dict:
    """make(v). If the scores of all heads are too many for one piece, it runs once for each group of heads."""
    heads, kv_heads, n_q, n_k, _ = sizes(v)
    if len(v["q"]) * heads * n_q * n_k <= WHOLE:
        return {name: make(v)[name] for name in outputs} if outputs else make(v)
    batches = []
    for b in range(len(v["q"])):
        parts = []
        for h in range(kv_heads):
            parts.append(make(v | {name: _head(v, name, b, h) for name in v if _has_heads(v[name])} | _length(v, b)))
        batches.append({name: torch.cat([part[name] for part in parts], dim=1) for name in outputs})
    return {name: torch.cat([batch[name] for batch in batches]) for name in outputs}


def _has_heads(value) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() >= 3


def _head(v, name: str, b: int, h: int) -> torch.Tensor:
    group = v[name].shape[1] // v["k"].shape[1]
    return v[name][b : b + 1, h * group : (h + 1) * group]


def _length(v, b: int) -> dict:
    return {"k_lengths": v["k_lengths"][b : b + 1]} if v.get("k_lengths") is not None else {}


def scores_in_memory(v) -> float:
    """How many scores there are, where that is clearly more than an answer may copy; else infinity."""
    q, k = v["q"], v["k"]
    number, given = q[..., 0].numel() * k.shape[2], 2 * q.numel() + 2 * k.numel()
    return number if number > SHOWN * given else math.inf


def forward_truth(v) -> dict:
    return in_parts(attend, v, ("out", "lse"))


def forward_in_fp32(v, rounded=lambda x: x) -> dict:
    """What a good kernel computes: fp32, base-2 exponentials with log2(e) folded into the scale, p in the type of v.

    `rounded` is applied to q, k and v first.
    """

    def make(v):
        v = v | {name: rounded(v[name]) for name in ("q", "k", "v")}
        s = scores(v, torch.float32, v["scale"] * LOG2_E).masked_fill(~visible(v), -INF)
        shift = shift_of(s)
        p = torch.exp2(s - shift)
        total = p.sum(dim=-1, keepdim=True)
        values = for_queries(v, v["v"]).float()
        made = divided(p.to(v["v"].dtype).float(), total, values, shift)
        return {"out": made["out"], "lse": ((shift + torch.log2(total)) / LOG2_E).squeeze(-1)}

    return in_parts(make, v, ("out", "lse"))


def backward_truth(v) -> dict:
    return in_parts(gradients, v, ("dq", "dk", "dv"))


def backward_in_fp32(v, rounded=lambda x: x) -> dict:
    """What a good kernel computes: p from the L it is given, delta from `out`, p and ds in the type of the inputs."""

    def make(v):
        v = v | {name: rounded(v[name]) for name in ("q", "k", "v", "dout")}
        s = scores(v, torch.float32, v["scale"] * LOG2_E).masked_fill(~visible(v), -INF)
        lse = v["lse"].float()[..., None] * LOG2_E
        p = torch.exp2(s - torch.where(lse == -INF, 0.0, lse))
        return gradients(v, torch.float32, p=p, delta=delta_of(v, torch.float32), cast=True)

    return in_parts(make, v, ("dq", "dk", "dv"))
