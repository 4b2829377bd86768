"""Wrong rotations as formulas: of one tensor, (arguments, tensor), or in memory, (arguments, "q" or "k"); and signs."""

from collections.abc import Callable

import torch

from autograder.exercise import Mistake
from autograder.exercises.rope.rotation import backwards, joined, look_up, parts, rows, turned
from autograder.exercises.strides import as_read

BLOCKS = (2, 4, 8, 16, 32, 64, 128)
FEW = 64  # heads of a call that are still walked one after the other
TWO_BYTES = (torch.float16, torch.bfloat16)


# ---- one tensor: what becomes of a pair


def one_sign(minus: bool):
    """The sine with the same sign in both results."""

    def mix(x0, x1, cos, sin):
        sign = -1.0 if minus else 1.0
        return x0 * cos + sign * x1 * sin, x1 * cos + sign * x0 * sin

    return mix


def overwritten(second_first: bool):
    """The second result is made from the first one in place of what was there before."""

    def mix(x0, x1, cos, sin):
        if second_first:
            y1 = x1 * cos + x0 * sin
            return x0 * cos - y1 * sin, y1
        y0 = x0 * cos - x1 * sin
        return y0, x1 * cos + y0 * sin

    return mix


def wrong_signs(mixed: Callable) -> tuple[Mistake, Mistake]:
    """mixed(mix): the answer of an exercise in which `mix` makes the two results of a pair."""
    return (
        Mistake(
            "turned_back",
            "Everything is turned the other way round: y0 = x0 cos - x1 sin, y1 = x1 cos + x0 sin.",
            answer=mixed(backwards),
        ),
        Mistake(
            "one_sign",
            "This is no rotation: the sine has a minus in y0 and a plus in y1.",
            answer=lambda v, minus: mixed(one_sign(minus))(v),
            variants=(False, True),
        ),
    )


def cosine_alone(x0, x1, cos, sin):
    return x0 * cos, x1 * cos


def exchanged(x0, x1, cos, sin):
    return x1 * cos + x0 * sin, x0 * cos - x1 * sin


def swapped_tables(v, x):
    return turned(v, x, cos=v["sin"], sin=v["cos"])


def other_layout(v, x):
    return turned(v, x, layout="interleaved" if v["layout"] == "halves" else "halves")


def put_back_otherwise(v, x, layout: str):
    """Pairs of this layout are taken rightly, and put back as those of the other."""
    if v["layout"] != layout:
        return turned(v, x)
    x0, x1, rest = parts(turned(v, x), v["cos"].shape[1], layout)
    return joined(x0, x1, rest, "interleaved" if layout == "halves" else "halves")


def full_width(v, x, only=None):
    """Tables widened to two columns a pair in the way of the other layout: the two elements get different angles.
    only: the layout for which they are; the other is right."""
    if only not in (None, v["layout"]):
        return turned(v, x)
    widen = (lambda t: t.repeat_interleave(2, -1)) if v["layout"] == "halves" else (lambda t: torch.cat((t, t), -1))
    at = rows(v, x.shape[2])[:, None]
    cos, sin = (widen(look_up(v[name], at).double()) for name in ("cos", "sin"))
    pairs = v["cos"].shape[1]
    x0, x1, rest = parts(x.double(), pairs, v["layout"])
    (c0, c1, _), (s0, s1, _) = (parts(t, pairs, v["layout"]) for t in (cos, sin))
    return joined(x0 * c0 - x1 * s0, x1 * c1 + x0 * s1, rest, v["layout"])


def whole_head_partner(v, x):
    """Halves of the whole head, where only a part of it is turned: x[j] and x[j + D / 2]."""
    pairs, half = v["cos"].shape[1], x.shape[-1] // 2
    if v["layout"] != "halves" or pairs == half:
        return turned(v, x)
    order = [*range(pairs), *range(half, half + pairs)]
    order += [d for d in range(x.shape[-1]) if d not in set(order)]
    made = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    made[..., order] = turned(v, x[..., order])
    return made


def whole_head(v, x, apart: int):
    """All pairs of the head: columns past the table's last are those of its next row, or of no row."""
    pairs, half = v["cos"].shape[1], x.shape[-1] // 2
    shape, strides = (len(v["cos"]), half), (half if apart else pairs, 1)
    return turned(v, x, **{name: as_read(v[name], shape, strides) for name in ("cos", "sin")})


def rows_of_whole_head(v, x):
    """The table's rows taken to be D / 2 apart."""
    strides = (x.shape[-1] // 2, 1)
    return turned(v, x, **{name: as_read(v[name], v[name].shape, strides) for name in ("cos", "sin")})


def rest_lost(v, x, value: float):
    made = turned(v, x)
    made[..., 2 * v["cos"].shape[1] :] = value
    return made


def rounded_tables(v, x, dtype):
    return turned(v, x, **{name: v[name].to(dtype) for name in ("cos", "sin")})


# ---- one tensor: which angle


def by_block(v, x, variant):
    """The row inside its block, or the number of its block, in place of the row."""
    inside, block = variant
    if v.get("positions") is not None:
        return turned(v, x)
    s = torch.arange(x.shape[2], device=x.device)
    return turned(v, x, at=(s % block if inside else s // block)[None] + v.get("offset", 0))


def without_offset(v, x):
    return turned(v | {"offset": 0}, x)


def offset_without_ids(v, x):
    """The offset is added only where there are no position ids."""
    return turned(v | {"offset": 0}, x) if v["positions"] is not None else turned(v, x)


def without_ids(v, x):
    return turned(v | {"positions": None}, x)


def ids_of_the_first(v, x):
    return turned(v, x) if v["positions"] is None else turned(v | {"positions": v["positions"][:1]}, x)


def running_on(v, x, heads_too: bool):
    """Rows counted over the whole batch, or over all heads of it, and not from 0 in each sequence."""
    if v.get("positions") is not None:
        return turned(v, x)
    batch, heads, length, _ = x.shape
    shape = (batch, heads, length) if heads_too else (batch, length)
    at = torch.arange(batch * length * (heads if heads_too else 1), device=x.device).view(shape)
    return turned(v, x, at=at + v.get("offset", 0))


def by_head(v, x):
    """The number of the head in place of the row."""
    _, heads, length, _ = x.shape
    at = torch.arange(heads, device=x.device)[None, :, None].expand(1, heads, length)
    return turned(v, x, at=at + v.get("offset", 0))


# ---- one tensor: how often, and where


def repeated(v, x, counts: torch.Tensor, at=None):
    """Row s turned counts[..., s] times."""
    made = x.double()
    for n in range(int(counts.max()) if counts.numel() else 0):
        made = torch.where((counts > n)[..., None], turned(v, made, at=at), made)
    return made


def sequences_on_the_first(v, x):
    """The first sequence turned by the angles of all, one after the other."""
    made, at = x.double().clone(), rows(v, x.shape[2])
    for sequence in range(x.shape[0]):
        made[:1] = turned(v, made[:1], at=at[min(sequence, len(at) - 1)][None])
    return made if x.shape[0] <= FEW else x.double()


def positions_for_rows(v, x):
    """The position says which row is turned too: rows from the offset on, as often as ids name them."""
    length = x.shape[2]
    s = torch.arange(length, device=x.device)
    counts = (rows(v, length)[:, :, None] == s).sum(dim=1)  # (B or 1, S)
    if v["positions"] is None:
        counts = (s >= v["offset"]).long()[None]  # blocks reach beyond the last row
    return repeated(v, x, counts[:, None], at=s[None])


def times(v, x, n: int):
    return repeated(v, x, torch.full((x.shape[2],), n, device=x.device))


def unscaled_blocks(v, x, block: int):
    """Programs p = 0, 1, .. begin at row p: rows are turned by all that hold them."""
    return repeated(v, x, programs_a_row(x, block))


def programs_a_row(x, block: int):
    s, programs = torch.arange(x.shape[2], device=x.device), -(-x.shape[2] // block)
    return (torch.minimum(s, torch.tensor(programs - 1)) - (s - block).clamp(min=-1)).clamp(min=0)


def only(v, x, batches=slice(None), heads=slice(None), length=slice(None)):
    """Turned there, unchanged elsewhere."""
    made = x.double().clone()
    made[batches, heads, length] = turned(v, x)[batches, heads, length]
    return made


# ---- in memory


def both(change: Callable):
    """An answer of rope.forward from what a formula makes of one tensor."""

    def answer(v, *variant):
        return {name: change(v, v[f"{name}_before"], *variant) for name in "qk"}

    return answer


def laid(v, name: str) -> torch.Tensor:
    """The memory of a tensor before the call."""
    x = v[name]
    memory = torch.empty_strided(x.shape, x.stride(), dtype=torch.float64, device=x.device)
    return memory.copy_(v[f"{name}_before"])


def read_as(v, name: str, strides) -> torch.Tensor:
    """Turned with other strides, in a memory that is NaN around the tensor."""
    x = laid(v, name)
    seen = as_read(x, x.shape, strides)
    seen.copy_(turned(v, seen.clone()))
    return seen.as_strided(x.shape, x.stride())


def strides_ignored(v, heads_inside: bool):
    made = {}
    for name in "qk":
        _, heads, length, head_size = shape = v[name].shape
        row = heads * head_size
        inside = (length * row, head_size, row, 1)
        made[name] = read_as(v, name, inside if heads_inside else torch.empty(shape, device="meta").stride())
    return made


def strides_of_q(v):
    return {"q": turned(v, v["q_before"]), "k": read_as(v, "k", v["q"].stride())}


def walked(v, name: str, heads: int, length: int) -> torch.Tensor:
    """Heads are turned one after the other, each in the memory that the heads before it have changed."""
    x = laid(v, name)
    at = torch.arange(length, device=x.device)[None] + v["offset"] if length != x.shape[2] else rows(v, length)
    memory = as_read(x, (len(x), heads, length, x.shape[3]), x.stride())
    for b in range(len(x)):
        here = at[b : b + 1] if len(at) > 1 else at
        for h in range(heads):
            memory[b, h] = turned(v, memory[b : b + 1, h : h + 1].clone(), at=here)[0, 0]
    return memory.as_strided(x.shape, x.stride())


def past_the_end(v, block: int):
    """Rows of the last block that are none: of the next head, of the next sequence, or of nobody."""
    if v["q"].shape[0] * v["q"].shape[1] > FEW or v["positions"] is not None:
        return {}
    return {name: walked(v, name, v[name].shape[1], -(-v[name].shape[2] // block) * block) for name in "qk"}


def past_the_last_head(v, block: int):
    """Heads of the last block that are none: of the next sequence or position, or of nobody."""
    if v["q"].shape[0] * v["q"].shape[1] > FEW:
        return {}
    return {name: walked(v, name, -(-v[name].shape[1] // block) * block, v[name].shape[2]) for name in "qk"}


def k_over_heads_of_q(v):
    if v["q"].shape[0] * v["q"].shape[1] > FEW:
        return {}
    return {"q": turned(v, v["q_before"]), "k": walked(v, "k", v["q"].shape[1], v["k"].shape[2])}


# ---- signs


def layout_ignored(e, other) -> bool:
    """Right in one layout, and in the other turned like that one; `other` is the answer in the other layout."""
    layouts = {t.args["layout"] for t in e.failing if t.outcome.error is None}
    one_is_right = any(t.right and t.args["layout"] not in layouts for t in e.tried)
    return len(layouts) == 1 and one_is_right and all(e.matches(t, other(t.args)) for t in e.failing)


def pairs_unmasked(e) -> bool:
    """Wrong for numbers of pairs that are no power of two, 36 among them, and right for those that are."""

    def whole(t) -> bool:
        pairs = t.args["cos"].shape[1]
        return pairs & (pairs - 1) == 0

    failing = [t for t in e.failing if t.outcome.error is None]
    return e.failed("head size 72") and not any(map(whole, failing)) and any(t.right and whole(t) for t in e.tried)


# ---- what is certain where programs overtake each other


def blocks_overlap(e) -> bool:
    """Rows that one unscaled block holds are right, and those of none unchanged: of one size of block in all cases."""
    ran = [t for t in e.failing if t.outcome.error is None]

    def fits(t, block: int) -> bool:
        before, off = t.args["q_before"], e.wrong(t, "q").any(-1)
        changed, by = (t.outcome.outputs["q"] != before).any(-1), programs_a_row(before, block)
        return not off[..., by == 1].any() and not changed[..., by == 0].any()

    # where blocks leave no row out, q may be right by luck and k not
    return any(e.wrong(t, "q").any() for t in ran) and any(all(fits(t, block) for t in ran) for block in BLOCKS)


def first_sequence_alone(e) -> bool:
    """Right with one sequence; of several the others are as they were, and the first is wrong in some case."""

    def fits(t) -> bool:
        got, before = t.outcome.outputs["q"], t.args["q_before"]
        return len(got) > 1 and torch.equal(got[1:], before[1:])

    ran = [t for t in e.failing if t.outcome.error is None]
    return all(map(fits, ran)) and any(bool(e.wrong(t, "q")[:1].any()) for t in ran)


def k_wrong_where_shared(e) -> bool:
    """Only where several heads of q share one of k, only in k, and no wrong row of it was left alone."""
    ran = [t for t in e.failing if t.outcome.error is None]
    shared = all(t.args["q"].shape[1] > t.args["k"].shape[1] for t in ran)
    return bool(ran) and shared and not any(e.wrong(t, "q").any() for t in ran) and _none_left_alone(e, ran)


def k_past_its_end(e) -> bool:
    """Behind k, not behind q, and no wrong row of k was left alone."""
    ran = [t for t in e.failing if t.outcome.error is None]
    return e.wrote_outside("k") and not e.wrote_outside("q") and _none_left_alone(e, ran)


def _none_left_alone(e, ran) -> bool:
    """Every wrong row of k was turned, however often."""

    def fits(t) -> bool:
        alone = (t.outcome.outputs["k"] == t.args["k_before"]).all(-1)
        return not (e.wrong(t, "k").any(-1) & alone).any()

    return all(map(fits, ran))
