"""Wrong forward passes as formulas, (arguments[, variant]) -> out and lse; for every exercise that makes them."""

import math

import torch

from autograder.exercises.dtypes import significant
from autograder.exercises.flash.attention import (
    INF,
    LOG2_E,
    attend,
    divided,
    for_queries,
    lengths,
    scores,
    shift_of,
    sizes,
    visible,
)
from autograder.exercises.strides import as_read
from course_lib.numerics import error

NAN = float("nan")
BLOCKS = (16, 32, 64, 128)
GUARDS = ("nan", "zero")  # result of a sum of 0: 0 / 0, or zeros if the student divides by 1 there
LOOSE = tuple((guard, cast) for guard in GUARDS for cast in (False, True))  # cast: weights in the type of v


def masked(v, dtype=torch.float64, scale=None, see=None) -> torch.Tensor:
    return scores(v, dtype, scale).masked_fill(~(visible(v) if see is None else see), -INF)


def as_32_bits(v, p, shift, guard: str, cast: bool) -> dict:
    """o and L from weights in fp32: overflow and zero sums give the same infinities and NaN as in a kernel."""
    total = p.sum(dim=-1, keepdim=True)
    p = p.to(v["v"].dtype).float() if cast else p
    o = p @ for_queries(v, v["v"]).float() / (torch.where(total == 0, 1.0, total) if guard == "zero" else total)
    return {"out": o, "lse": (shift + torch.log(total)).squeeze(-1)}


# ---- the softmax of a row


def no_maximum(v, variant):
    s = masked(v, torch.float32)
    return as_32_bits(v, torch.exp(s), torch.zeros_like(s[..., :1]), *variant)


def maximum_from_zero(v, variant):
    s = masked(v, torch.float32)
    shift = s.amax(dim=-1, keepdim=True).clamp(min=0.0)
    return as_32_bits(v, torch.exp(s - shift), shift, *variant)


def online(v, block, rescale_o=True, rescale_l=True, top=None, cast=False) -> dict:
    """Block by block; `top` takes (scores before the scale, scores), -inf where hidden, and gives the new maximum."""
    see = visible(v)
    raw, s = masked(v, torch.float32, scale=1.0), masked(v, torch.float32)
    values = for_queries(v, v["v"]).float()
    m = s.new_full((*s.shape[:-1], 1), -INF)
    total, acc = torch.zeros_like(m), torch.zeros(*s.shape[:-1], values.shape[-1], device=s.device)
    for start in range(0, s.shape[-1], block):
        part = slice(start, start + block)
        here = s[..., part].amax(dim=-1, keepdim=True) if top is None else top(raw[..., part], s[..., part])
        # a block that a query does not see at all changes nothing for it
        new = torch.maximum(m, torch.where(see[..., part].any(dim=-1, keepdim=True), here, -INF))
        shift = torch.where(new == -INF, 0.0, new)
        p, factor = torch.exp(s[..., part] - shift), torch.exp(m - shift)
        total = total * (factor if rescale_l else 1.0) + p.sum(dim=-1, keepdim=True)
        p = p.to(v["v"].dtype).float() if cast else p
        acc = acc * (factor if rescale_o else 1.0) + p @ values[..., part, :]
        m = new
    return {
        "out": acc / torch.where(total == 0, 1.0, total),
        "lse": (torch.where(m == -INF, 0.0, m) + torch.log(total)).squeeze(-1),
    }


def maximum_before_scale(v, variant):
    """scale * max(q kᵀ), the smallest score when the scale is negative; None: scaled in the exponent."""
    if variant is None:
        return scale_in_the_exponent(v)
    block, cast = variant
    return online(v, block, cast=cast, top=lambda raw, s: raw.amax(dim=-1, keepdim=True) * v["scale"])


def scale_in_the_exponent(v, times=None) -> dict:
    """exp(scale * (q kᵀ - its maximum)); L adds that maximum `times` as often, None: rightly scaled."""
    made = attend(v)
    if v["scale"] < 0:  # exp overflows, and the first correction is infinity times 0
        return {name: torch.full_like(x, NAN) for name, x in made.items()}
    if times is None:
        return made
    top = masked(v, scale=1.0).amax(dim=-1)
    return made | {"lse": torch.where(top == -INF, top, made["lse"] + (times - v["scale"]) * top)}


def scale_after_maximum(v, variant):
    """The maximum of q kᵀ is subtracted from the scaled scores; two: in base 2; guard: a sum of 0 is taken for 1."""
    block, cast, two, guard = variant
    factor = 1 / LOG2_E if two else 1.0
    made = online(v, block, cast=cast, top=lambda raw, s: raw.amax(dim=-1, keepdim=True) * factor)
    top = masked(v, torch.float32, scale=1.0).amax(dim=-1) * factor
    return made | {"lse": torch.where(made["lse"] == -INF, top, made["lse"])} if guard else made


def each_block_by_itself(v, block):
    """The average of the softmaxes of all blocks."""
    s, values = masked(v), for_queries(v, v["v"]).double()
    parts = [attend(v | {"causal": False, "k_lengths": None}, s=x, see=x > -INF, values=y)
             for x, y in zip(s.split(block, dim=-1), values.split(block, dim=-2), strict=True)]  # fmt: skip
    return {"out": sum(part["out"] for part in parts) / len(parts)}


def not_divided(v):
    s = masked(v)
    return {"out": torch.exp(s - shift_of(s)) @ for_queries(v, v["v"]).double()}


def keyless(v) -> torch.Tensor:
    """Queries that see no key, (B, 1, n_q)."""
    return ~visible(v).any(dim=-1).expand(len(v["q"]), 1, -1)


def in_keyless_rows(v, out=None, lse=None) -> dict:
    """The truth, but for rows with no key."""
    made, rows = attend(v), keyless(v)
    if out is not None:
        made["out"] = torch.where(rows[..., None], out, made["out"])
    if lse is not None:
        made["lse"] = torch.where(rows, lse, made["lse"])
    return made


def nan_without_keys(e) -> bool:
    """In every failing case `out` is NaN in some rows with no key, and in no other row."""
    if any(not isinstance(t.outcome.outputs.get("out"), torch.Tensor) for t in e.failing):
        return False
    lost = [(t.outcome.outputs["out"].isnan().any(dim=-1), keyless(t.args)) for t in e.failing]
    return all(bool(nan.any()) and not bool((nan & ~rows).any()) for nan, rows in lost)


def average_without_keys(e) -> bool:
    """In every failing case `out` is a number everywhere and wrong in no row with a key; in some it is not zeros.

    Where a sequence has no key at all, v may have been loaded as zeros, whose average is right. L tells then.
    """
    if any(not isinstance(t.outcome.outputs.get("out"), torch.Tensor) for t in e.failing):
        return False
    shown = [(t.outcome.outputs["out"], e.wrong(t, "out").any(dim=-1), keyless(t.args)) for t in e.failing]
    elsewhere = any(bool((wrong & ~rows).any()) or not bool(out.isfinite().all()) for out, wrong, rows in shown)
    return not elsewhere and any(bool(wrong.any()) for _, wrong, _ in shown)


def finite_for_hidden(v, variant):
    """Hidden scores are a finite number: a row without keys becomes the mean of v, over all keys or padded ones too."""
    fill, block = variant
    n_k = v["k"].shape[2]
    padded = -(-n_k // block) * block if block else n_k
    mean = for_queries(v, v["v"]).double().sum(dim=2, keepdim=True) / padded
    return in_keyless_rows(v, mean.expand_as(v["q"]), torch.tensor(fill + math.log(padded), dtype=torch.float64))


# ---- the scale


def scaled(v, scale):
    return attend(v, s=scores(v, scale=scale))


def in_base_two(v, kept: int):
    """2^s in place of e^s; `kept`: whether L is then taken for a logarithm to the base 2, and made natural."""
    made = attend(v, s=scores(v) / LOG2_E)
    return made if kept else made | {"lse": made["lse"] * LOG2_E}


# ---- which keys


def top_left(v):
    return attend(v, see=visible(v, diagonal=0))


def off_by_one(v, by):
    return attend(v, see=visible(v, diagonal=v["k"].shape[2] - v["q"].shape[2] + by))


def diagonal_of_lengths(v):
    """The diagonal ends at the last valid key of each sequence, not at the padded length."""
    return attend(v, see=visible(v, diagonal=lengths(v) - v["q"].shape[2]))


def all_keys(v):
    return attend(v | {"causal": False})


def lengths_ignored(v):
    return attend(v | {"k_lengths": None})


def first_length(v):
    return attend(with_first_length(v))


def with_first_length(v) -> dict:
    return v | {"k_lengths": lengths(v)[:1].flatten().expand(len(v["q"]))}


def keys_below(limit):
    """Only keys below limit(queries, keys, block) count."""

    def answer(v, *block):
        _, _, n_q, n_k, _ = sizes(v)
        n = torch.arange(n_k, device=v["q"].device)
        return attend(v, see=visible(v) & (n < limit(n_q, n_k, *block)))

    return answer


def walk_ignores_difference(v, variant):
    """Causal: a block of queries stops at the block of keys that holds its own numbers, as if n_q = n_k."""
    block_m, block_n = variant
    _, _, n_q, n_k, _ = sizes(v)
    if not v["causal"]:
        return attend(v)
    m, n = torch.arange(n_q, device=v["q"].device), torch.arange(n_k, device=v["q"].device)
    stop = -(-((m // block_m + 1) * block_m) // block_n) * block_n
    return attend(v, see=visible(v) & (n[None, :] < stop[:, None]))


def mask_begins_too_late(v, variant):
    """Causal: tiles below the square diagonal, or all that the last query sees, are taken for whole ones."""
    last, block_m, block_n = variant
    _, _, n_q, n_k, _ = sizes(v)
    if not v["causal"]:
        return attend(v)
    m, n = torch.arange(n_q, device=v["q"].device), torch.arange(n_k, device=v["q"].device)
    below = m // block_m * block_m + (block_m + n_k - n_q if last else 1)
    below = below.clamp(min=0)[None, None, :, None]
    return attend(v, see=visible(v) | (n < torch.minimum(below, lengths(v)) // block_n * block_n))


def padded_keys(v, block):
    """Zeros behind the last key are taken for keys, wherever causal does not hide them."""
    n_k = v["k"].shape[2]
    more = -n_k % block
    zeros = v["k"].new_zeros(*v["k"].shape[:2], more, v["k"].shape[3])
    longer = v | {name: torch.cat([v[name], zeros], dim=2) for name in "kv"}
    return attend(longer, see=_see_padded(v, n_k + more))


def _see_padded(v, padded: int) -> torch.Tensor:
    """As `visible`, but nothing ends at n_k; k_lengths still hold."""
    _, _, n_q, n_k, _ = sizes(v)
    m, n = torch.arange(n_q, device=v["q"].device)[:, None], torch.arange(padded, device=v["q"].device)[None, :]
    see = torch.ones(1, 1, n_q, padded, dtype=torch.bool, device=v["q"].device)
    if v.get("k_lengths") is not None:
        see = see & (n < torch.where(lengths(v) == n_k, padded, lengths(v)))
    return see & (n <= m + n_k - n_q) if v["causal"] else see


def stray_keys(v, variant):
    """Keys past the end are whatever lies in memory there, in k, in v, or in both; `hidden`: with the weight 0."""
    block, hidden = variant
    n_k = v["k"].shape[2]
    padded = -(-n_k // block) * block
    shape = (*v["k"].shape[:2], padded, v["k"].shape[3])
    longer = v | {name: as_read(v[name], shape, v[name].stride()) for name in "kv"}
    see = _see_padded(v, padded)
    if hidden:  # 0 * NaN is NaN all the same
        see = see & (torch.arange(padded, device=see.device) < lengths(v))
    return attend(longer | {"k_lengths": None}, see=see)


# ---- where things lie


def read_as(v, /, **shapes_and_strides) -> dict:
    return v | {name: as_read(v[name], *how) for name, how in shapes_and_strides.items()}


def contiguous(shape) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def tile_not_moved(v, variant):
    names, block = variant
    first = torch.arange(v["k"].shape[2], device=v["q"].device) % block
    return attend(v | {name: v[name][:, :, first] for name in names})


def stepped(x: torch.Tensor, block: int) -> torch.Tensor:
    """What a walk over x reads that goes on by `block` contiguous rows, whatever the stride of a row."""
    batch, heads, n, head_size = x.shape
    along = x.stride()
    tiles = as_read(
        x,
        (batch, heads, -(-n // block), block, head_size),
        (*along[:2], block * head_size, *along[2:]),
    )
    return tiles.flatten(2, 3)[:, :, :n]


def step_without_stride(v, variant):
    names, block = variant
    return attend(v | {name: stepped(v[name], block) for name in names})


def strides_ignored(v, names):
    return attend(read_as(v, **{name: (v[name].shape, contiguous(v[name].shape)) for name in names}))


def strides_of(v, pair):
    name, other = pair
    return attend(read_as(v, **{name: (v[name].shape, v[other].stride())}))


def columns_adjacent(v):
    return attend(read_as(v, **{name: (v[name].shape, (*v[name].stride()[:3], 1)) for name in "qkv"}))


def columns_unmasked(v, names):
    """Rows are read as wide as the block: what follows enters the products."""
    wide = 1 << (v["q"].shape[-1] - 1).bit_length()
    if wide == v["q"].shape[-1]:
        return attend(v)
    return attend(v, s=scores(_widened(v, names, wide), torch.float32).double())


def _widened(v, names, wide: int) -> dict:
    made = {}
    for name in "qk":
        zeros = v[name].new_zeros(*v[name].shape[:3], wide - v[name].shape[3])
        shape = (*v[name].shape[:3], wide)
        made[name] = as_read(v[name], shape, v[name].stride()) if name in names else torch.cat([v[name], zeros], -1)
    return v | made


def heads_interleaved(v):
    """Head h reads head h % H_kv."""
    heads, kv_heads, *_ = sizes(v)
    taken = torch.arange(heads, device=v["q"].device) % kv_heads
    return attend(v | {name: v[name][:, taken] for name in "kv"})


def heads_not_divided(v):
    """Head h reads head h of fewer: beyond the last one comes the next sequence, or nothing."""
    shape = (*v["k"].shape[:1], v["q"].shape[1], *v["k"].shape[2:])
    return attend(read_as(v, **{name: (shape, v[name].stride()) for name in "kv"}))


def first_kv_head(v):
    return attend(v | {name: v[name][:, :1] for name in "kv"})


# ---- what is written


def rows_written(v, rows) -> dict:
    """The truth where `rows` (a slice or a mask over queries) says so, nothing elsewhere."""
    made, kept = attend(v), torch.zeros(v["q"].shape[2], dtype=torch.bool, device=v["q"].device)
    kept[rows] = True
    return {name: x.where(kept[:, None] if name == "out" else kept, NAN) for name, x in made.items()}


def heads_written(v, batches: slice, heads: slice) -> dict:
    made = {name: torch.full_like(x, NAN) for name, x in attend(v).items()}
    for name, x in attend(v).items():
        made[name][batches, heads] = x[batches, heads]
    return made


def out_is_wrong(e):
    """Whether `out` of a tried case is wrong anywhere."""

    def answer(t) -> bool:
        got = t.outcome.outputs.get("out")
        return not isinstance(got, torch.Tensor) or got.shape != t.want["out"].shape or bool(e.wrong(t, "out").any())

    return answer


def lse_changed(change):
    """`out` is right; change(L, maximum, log of the sum, arguments) is stored as L."""

    def answer(v, *variant):
        made = attend(v)
        top = shift_of(masked(v)).squeeze(-1)
        return made | {"lse": change(made["lse"], top, made["lse"] - top, v, *variant)}

    return answer


lse_without_maximum = lse_changed(lambda lse, top, log_sum, v: log_sum)
lse_in_base_two = lse_changed(lambda lse, top, log_sum, v: lse * LOG2_E)
lse_in_two_bases = lse_changed(lambda lse, top, log_sum, v, i: (top * LOG2_E + log_sum, top + log_sum * LOG2_E)[i])
lse_is_maximum = lse_changed(lambda lse, top, log_sum, v: torch.where(lse == -INF, lse, top))
lse_is_sum = lse_changed(lambda lse, top, log_sum, v: torch.exp(log_sum))


# ---- precision


def in_tf32(v, which: str):
    """tl.dot of fp32 with its default, in one product or in both: 13 fraction bits are cut off."""
    if v["q"].dtype != torch.float32:
        return {}
    low = {name: significant(v[name], 11, truncate=True) for name in ("q", "k", "v")}
    s = masked(v | low if which != "values" else v)
    p = torch.exp(s - shift_of(s))
    total = p.sum(dim=-1, keepdim=True)
    if which != "scores":
        return divided(significant(p, 11, truncate=True), total, for_queries(v, low["v"]), shift_of(s))
    return divided(p, total, for_queries(v, v["v"]).double(), shift_of(s))


def scaled_queries_rounded(v, factor: float):
    """q times the scale, with log2(e) or without, back in the 2-byte type of q."""
    if v["q"].dtype == torch.float32:
        return {}
    q = (v["q"].float() * (v["scale"] * factor)).to(v["q"].dtype)
    return attend(v | {"q": q}, s=scores(v | {"q": q}, scale=1 / factor), cast=True)


def some_nan(e) -> bool:
    shown = [[x for x in t.outcome.outputs.values() if isinstance(x, torch.Tensor)] for t in e.failing]
    return all(any(bool(x.isnan().any()) for x in outputs) for outputs in shown)


def rounded_on_the_way(e) -> bool:
    """Wrong for fp32 inputs only, and by no more than rounding to 2 bytes explains."""
    if any(t.outcome.error or t.args["q"].dtype != torch.float32 for t in e.failing):
        return False
    wanted = [(t.outcome.outputs.get(name), want) for t in e.failing for name, want in t.want.items()]
    return all(isinstance(got, torch.Tensor) and error(got, want).rms < 1e-2 for got, want in wanted)


def inputs_rounded(v, dtype):
    return attend(v | {name: v[name].to(dtype) for name in ("q", "k", "v")})
