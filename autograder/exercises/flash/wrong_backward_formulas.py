"""Wrong gradients as formulas, (arguments[, variant]) -> dq, dk and dv; for every exercise that makes them."""

import torch

from autograder.exercises.dtypes import significant
from autograder.exercises.flash.attention import (
    LOG2_E,
    delta_of,
    for_queries,
    gradients,
    lengths,
    probabilities,
    scores,
    sizes,
    visible,
)
from autograder.exercises.flash.wrong_forward_formulas import contiguous, read_as, stepped, with_first_length
from autograder.exercises.strides import as_read
from autograder.judging.tolerance import exceeded
from course_lib.numerics import error

NAN = float("nan")
PASSES = ("both", "dq", "dkdv")  # in which of the two the mistake was made


def mixed(v, wrong: dict, which: str) -> dict:
    """The wrong gradients of one pass, the right ones of the other."""
    if which == "both":
        return wrong
    right = gradients(v)
    return {name: (wrong if (name == "dq") == (which == "dq") else right)[name] for name in ("dq", "dk", "dv")}


def in_a_pass(make):
    """`make(arguments)` gives wrong gradients; the variant says in which pass they are used."""
    return lambda v, which: mixed(v, make(v), which)


def from_lse(v, see, s=None) -> torch.Tensor:
    """exp(s - L) with the given L, and 0 where `see` is False. As in a kernel, it is not normalised again."""
    s = scores(v) if s is None else s
    return torch.where(see, torch.exp(s - v["lse"].double()[..., None]), 0.0)


# ---- delta and ds


without_delta = in_a_pass(lambda v: gradients(v, delta=torch.zeros((), device=v["q"].device)))


DELTAS = {
    "dout": lambda v: v["dout"].double().sum(dim=-1, keepdim=True),
    "out": lambda v: v["out"].double().square().sum(dim=-1, keepdim=True),
    "q": lambda v: (v["q"].double() * v["dout"].double()).sum(dim=-1, keepdim=True),
    "p": lambda v: probabilities(v, scores(v)).sum(dim=-1, keepdim=True),
    "mean": lambda v: delta_of(v) / v["q"].shape[-1],
    "squares": lambda v: v["dout"].double().square().sum(dim=-1, keepdim=True),
    "scaled": lambda v: delta_of(v) * v["scale"],
}


def other_delta(v, which: str):
    return gradients(v, delta=DELTAS[which](v))


def delta_outside(v, hidden: bool):
    """p dp - delta; `hidden`: only where p is not hidden."""
    see = visible(v) if hidden else torch.ones_like(visible(v))
    return gradients(v, ds=lambda p, dp, delta: torch.where(see, p * dp - delta, 0.0))


def ds_without_p(v):
    return gradients(v, ds=lambda p, dp, delta: torch.where(visible(v), dp - delta, 0.0))


# ---- factors


def times(v, of_dq=1.0, of_dk=1.0):
    made = gradients(v)
    return made | {"dq": made["dq"] * of_dq, "dk": made["dk"] * of_dk}


def by_factor(factor):
    """dq, dk or both are `factor(arguments[, choice])` times what they should be."""

    def answer(v, variant):
        which, *choice = variant if isinstance(variant, tuple) else (variant,)
        off = factor(v, *choice)
        return times(v, off if which != "dk" else 1.0, off if which != "dq" else 1.0)

    return answer


WHICH = ("both", "dq", "dk")


def other_scale(v, variant):
    """p made with another scale than L; `outside`: dq and dk are multiplied with it too."""
    eighth, outside = variant
    scale = 0.125 if eighth else v["q"].shape[-1] ** -0.5
    made = gradients(v, p=from_lse(v, visible(v), scores(v, scale=scale)), delta=delta_of(v))
    off = scale / v["scale"] if outside else 1.0
    return made | {"dq": made["dq"] * off, "dk": made["dk"] * off}


def lse_ignored(v):
    p = torch.where(visible(v), torch.exp(scores(v, torch.float32)).double(), 0.0)
    return gradients(v, p=p, delta=delta_of(v))


BASES = ((LOG2_E, 1.0), (1.0, 1.0), (LOG2_E, 1 / LOG2_E))  # factors of the scores and of L


def lse_in_another_base(v, factors):
    """exp2(s log2(e) - L), exp2(s - L), or L brought to the base 2 by ln 2."""
    of_s, of_lse = factors
    p = torch.exp2(scores(v) * of_s - v["lse"].double()[..., None] * of_lse)
    return gradients(v, p=torch.where(visible(v), p, 0.0), delta=delta_of(v))


# ---- nothing at all


def zeros(v, names):
    """These gradients are zeros throughout."""
    made = gradients(v)
    return made | {name: torch.zeros_like(made[name]) for name in names}


# ---- what is multiplied with what


def dv_from(v, which: str):
    return gradients(v, dv_p=lambda p, dp, ds: dp if which == "dp" else ds)


def dv_scaled(v):
    made = gradients(v)
    return made | {"dv": made["dv"] * v["scale"]}


def swapped(v):
    made = gradients(v)
    return {"dq": made["dq"], "dk": made["dv"], "dv": made["dk"]}


def k_for_v(v):
    """dp from k: dv is right."""
    made = gradients(v | {"v": v["k"]}, delta=delta_of(v))
    return made | {"dv": gradients(v)["dv"]}


def dk_from_dp(v):
    """dk is made from dp in place of ds, and pairs that the mask hides count too."""
    made, kv_heads = gradients(v), v["k"].shape[1]
    dp = v["dout"].double() @ for_queries(v, v["v"]).double().mT
    dk = (dp.mT @ v["q"].double() * v["scale"]).unflatten(1, (kv_heads, -1)).sum(dim=2)
    return made | {"dk": dk}


def dq_from_v(v):
    made = gradients(v)
    ds = _ds(v)
    return made | {"dq": ds @ for_queries(v, v["v"]).double() * v["scale"]}


def _ds(v, p=None) -> torch.Tensor:
    p = probabilities(v, scores(v)) if p is None else p
    dp = v["dout"].double() @ for_queries(v, v["v"]).double().mT
    return p * (dp - (p * dp).sum(dim=-1, keepdim=True))


# ---- which query sees which key


def seen(see):
    """p from another mask and the L that is given."""
    return in_a_pass(lambda v: gradients(v, p=from_lse(v, see(v)), delta=delta_of(v)))


def with_other_lengths(change):
    """p from the lengths of `change(arguments)`, the L and the delta that are given."""

    def make(v):
        other = change(v)
        return gradients(other, p=from_lse(other, visible(other)), delta=delta_of(v))

    return in_a_pass(make)


all_keys = seen(lambda v: visible(v | {"causal": False}))
top_left = seen(lambda v: visible(v, diagonal=0))
later = seen(lambda v: visible(v, diagonal=v["k"].shape[2] - v["q"].shape[2] + 1))
earlier = seen(lambda v: visible(v, diagonal=v["k"].shape[2] - v["q"].shape[2] - 1))
diagonal_of_lengths = seen(lambda v: visible(v, diagonal=lengths(v) - v["q"].shape[2]))
lengths_ignored = with_other_lengths(lambda v: v | {"k_lengths": None})
first_length = with_other_lengths(with_first_length)


def other_way_round(v, variant):
    """The causal mask is the other way round, in the tiles that a causal walk visits. Queries without keys add inf."""
    which, block_m, block_n = variant
    if not v["causal"]:
        return gradients(v)
    (m, n), apart = _numbers(v), v["k"].shape[2] - v["q"].shape[2]
    met = n < (m // block_m + 1) * block_m + apart
    if which == "dkdv":
        met = m >= (n // block_n * block_n - apart).clamp(min=0) // block_m * block_m
    behind = seen(lambda v: met & (n >= m + apart) & visible(v | {"causal": False}))
    return behind(v, which)


def only(v, kept, which: str):
    """Only the pairs (query, key) that `kept` holds are added up, in one pass; p and delta are right."""
    p = probabilities(v, scores(v))
    right, ds = gradients(v), _ds(v)
    part = gradients(v, p=torch.where(kept, p, 0.0), ds=lambda p, dp, delta: torch.where(kept, ds, 0.0))
    return {name: (part if (name == "dq") == (which == "dq") else right)[name] for name in ("dq", "dk", "dv")}


def _numbers(v) -> tuple[torch.Tensor, torch.Tensor]:
    _, _, n_q, n_k, _ = sizes(v)
    return torch.arange(n_q, device=v["q"].device)[:, None], torch.arange(n_k, device=v["q"].device)[None, :]


def walk_ignores_difference(v, variant):
    """Causal: the walks end and begin as if n_k - n_q were `apart` times as large, 0 or with the wrong sign."""
    which, block_m, block_n, apart = variant
    m, n = _numbers(v)
    if not v["causal"]:
        return gradients(v)
    apart *= v["k"].shape[2] - v["q"].shape[2]
    if which == "dq":
        return only(v, n < -(-((m // block_m + 1) * block_m + apart) // block_n) * block_n, which)
    return only(v, m >= (n // block_n * block_n - apart).clamp(min=0) // block_m * block_m, which)


def tail_dropped(v, variant):
    which, block = variant
    _, _, n_q, n_k, _ = sizes(v)
    m, n = _numbers(v)
    return only(v, n < n_k // block * block if which == "dq" else m < n_q // block * block, which)


def last_block_only(v, variant):
    """Only the last block counts: the accumulator is reset in each turn, or each turn stores its own part."""
    which, block = variant
    _, _, n_q, n_k, _ = sizes(v)
    m, n = _numbers(v)
    return only(v, n >= (n_k - 1) // block * block if which == "dq" else m >= (n_q - 1) // block * block, which)


def first_block_only(v, variant):
    which, block = variant
    m, n = _numbers(v)
    return only(v, n < block if which == "dq" else m < block, which)


# ---- heads


def one_of_group(v, member: int):
    """dk and dv of one query head of each group alone."""
    made = gradients(v, grouped=False)
    group = v["q"].shape[1] // v["k"].shape[1]
    member %= group
    return made | {name: made[name][:, member::group] for name in ("dk", "dv")}


@in_a_pass
def heads_interleaved(v):
    """Head h shares with h + H_kv, h + 2 H_kv ...; L and `out` are those of the right heads."""
    heads, kv_heads, *_ = sizes(v)
    taken = torch.arange(heads, device=v["q"].device) % kv_heads
    spread = v | {name: v[name][:, taken] for name in "kv"}
    made = gradients(spread, p=from_lse(spread, visible(v)), delta=delta_of(v))
    return made | {name: made[name].unflatten(1, (-1, kv_heads)).sum(dim=1) for name in ("dk", "dv")}


# ---- memory


def stray_queries(v, block: int):
    """Queries past the end are read from the memory that follows; their L and delta are 0."""
    _, _, n_q, _, head_size = sizes(v)
    padded = -(-n_q // block) * block
    made = gradients(v)
    if padded == n_q:
        return made
    shape = (*v["q"].shape[:2], padded, head_size)
    q, dout = (as_read(v[name], shape, v[name].stride())[:, :, n_q:].double() for name in ("q", "dout"))
    # a query past the last one sees every key
    tail = v | {"q": q, "dout": dout, "causal": False, "lse": torch.zeros(q.shape[:3], device=q.device)}
    extra = gradients(tail, p=from_lse(tail, visible(tail)), delta=torch.zeros((), device=q.device))
    return made | {name: made[name] + extra[name] for name in ("dk", "dv")}


def stray_keys(v, variant):
    """In the pass of dq, keys past the end are read from the memory that follows; `hidden`: with p = 0."""
    block, hidden = variant
    _, _, _, n_k, head_size = sizes(v)
    padded = -(-n_k // block) * block
    made = gradients(v)
    if padded == n_k:
        return made
    shape = (*v["k"].shape[:2], padded, head_size)
    tail = v | {name: as_read(v[name], shape, v[name].stride())[:, :, n_k:] for name in "kv"} | {"k_lengths": None}
    see = torch.zeros_like if hidden or v["causal"] else torch.ones_like
    like = torch.empty(1, 1, v["q"].shape[2], padded - n_k, dtype=torch.bool, device=v["q"].device)
    if v.get("k_lengths") is not None:
        see = torch.zeros_like
    p = from_lse(tail, see(like))
    return made | {"dq": made["dq"] + gradients(tail, p=p, delta=delta_of(v))["dq"]}


def columns_unmasked(v, names):
    """Rows are read as wide as the block of columns, so the memory behind a row enters s and dp."""
    head_size = v["q"].shape[-1]
    wide = 1 << (head_size - 1).bit_length()
    if wide == head_size:
        return gradients(v)
    padded = {name: torch.nn.functional.pad(v[name], (0, wide - head_size)) for name in ("q", "k", "v", "dout")}
    read = v | padded
    read |= {name: as_read(v[name], (*v[name].shape[:3], wide), v[name].stride()) for name in names}
    made = gradients(read, p=from_lse(read, visible(v)), delta=delta_of(v))
    return {name: x[..., :head_size] for name, x in made.items()}


def unwritten(v, names, kept) -> dict:
    """The truth where `kept` (a slice of rows) says so, nothing elsewhere."""
    made = gradients(v)
    for name in names:
        rows = torch.zeros(made[name].shape[2], dtype=torch.bool, device=made[name].device)
        rows[kept] = True
        made[name] = torch.where(rows[:, None], made[name], NAN)
    return made


def grid_of_the_other(v, variant):
    """The grid of the other pass: dk and dv get as many programs as queries need, or dq as many as keys need."""
    which, block = variant
    _, _, n_q, n_k, _ = sizes(v)
    if which == "dq":
        return unwritten(v, ("dq",), slice(0, -(-n_k // block) * block))
    return unwritten(v, ("dk", "dv"), slice(0, -(-n_q // block) * block))


def hidden_keys_unwritten(v, block: int):
    """Blocks of keys past the length of a sequence are left as they were."""
    made, n = gradients(v), torch.arange(v["k"].shape[2], device=v["q"].device)[:, None]
    last = -(-lengths(v) // block) * block
    return made | {name: torch.where(n < last, made[name], NAN) for name in ("dk", "dv")}


# ---- strides


def read_differently(v, strides: dict, parts=("delta", "products")) -> dict:
    """`strides`: argument -> the strides with which it is read, in delta, in the products, or in both."""
    read = read_as(v, **{name: (v[name].shape, how) for name, how in strides.items()})
    delta = delta_of(read if "delta" in parts else v)
    if "products" not in parts:
        return gradients(v, delta=delta)
    return gradients(read, p=from_lse(read, visible(read)), delta=delta)


def dout_strides_ignored(v, variant):
    like, *parts = variant
    how = contiguous(v["dout"].shape) if like == "contiguous" else v[like].stride()
    return read_differently(v, {"dout": how}, parts or ("delta", "products"))


def strides_ignored(v, names):
    names = {"out" if name == "o" else name for name in names}
    return read_differently(v, {name: contiguous(v[name].shape) for name in names})


def column_stride_ignored(v, names):
    return read_differently(v, {name: (*v[name].stride()[:3], 1) for name in names})


def step_without_stride(v, variant):
    """The walk of one pass goes on by contiguous rows: over k and v for dq, over q and dout for dk and dv."""
    which, block = variant
    read = v | {name: stepped(v[name], block) for name in (("k", "v") if which == "dq" else ("q", "dout"))}
    return mixed(v, gradients(read, p=from_lse(read, visible(v)), delta=delta_of(v)), which)


def v_read_like_k(v):
    return read_differently(v, {"v": v["k"].stride()})


# ---- precision


def in_tf32(v):
    """tl.dot of fp32 with its default, in all five products."""
    if v["q"].dtype != torch.float32:
        return {}
    cut = {name: significant(v[name], 11, truncate=True) for name in ("q", "k", "v", "dout")}
    low = v | cut
    p = from_lse(low, visible(v))
    k, values = (for_queries(v, cut[name]) for name in "kv")
    ds = significant(p * (cut["dout"] @ values.mT - delta_of(v)), 11, truncate=True)
    p = significant(p, 11, truncate=True)
    made = {"dk": ds.mT @ cut["q"] * v["scale"], "dv": p.mT @ cut["dout"]}
    kv_heads = v["k"].shape[1]
    summed = {name: x.unflatten(1, (kv_heads, -1)).sum(dim=2) for name, x in made.items()}
    return {"dq": ds @ k * v["scale"], **summed}


# ---- signs


def all_nan(e, name: str) -> bool:
    """In every failing case, no element of that output is a number."""
    shown = [t.outcome.outputs.get(name) for t in e.failing]
    return bool(shown) and all(isinstance(x, torch.Tensor) and bool(x.isnan().all()) for x in shown)


def right_in_failing(e, name: str) -> bool:
    """In every failing case, that output by itself is right."""
    return all(is_right(e, t, name) for t in e.failing)


def is_right(e, t, name: str) -> bool:
    got = t.outcome.outputs.get(name)
    if not isinstance(got, torch.Tensor) or got.shape != t.want[name].shape:
        return False
    return not exceeded(error(got, t.want[name]), e.limits[name, got.dtype])


def queries_past_the_end(e) -> bool:
    """dk and dv are wrong, though written, in every case whose queries fill no whole tiles, and dq is right."""
    part = [t for t in e.tried if t.args["q"].shape[2] % 16]
    if not e.passed("whole tiles") or e.raised_any() or any(t.right for t in part):
        return False
    written = not any(t.outcome.unwritten.get(name) for t in e.failing for name in ("dk", "dv"))
    return written and right_in_failing(e, "dq") and not any(is_right(e, t, "dv") for t in e.failing)
