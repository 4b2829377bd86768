"""How people drop the wrong elements, or keep what they should not."""

from itertools import product

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import NOT_DIFFERENTIABLE, number_of_gradients
from autograder.exercises.mlp.philox import numbers, numbers_of_four
from autograder.exercises.strides import as_read

BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
NOT_CONTIGUOUS = (
    "transposed", "strided rows", "every second element", "heads and rows exchanged", "a gradient that is transposed",
    "a gradient with strided rows", "the gradient of a sum", "fp16, transposed", "offsets past 2^31",
)  # fmt: skip
FEW = 10_000  # elements of a call for which every block size is tried
NAN = float("nan")


def row_major(shape, device="cpu") -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), device=device).view(shape)


def kept(v, seed: int, number=None, index=None, inverted=False, stays=torch.ge) -> torch.Tensor:
    """Which elements stay. number(seed, index) replaces the rule's number, index(v) the row-major index, and
    stays(number, p) the comparison."""
    at = row_major(v["x"].shape, v["x"].device) if index is None else index(v)
    made = (number or numbers_of_four)(seed, at)
    keep = stays(made, torch.tensor(v["p"], dtype=torch.float32))
    return ~keep if inverted else keep


def dropped(v, scale=None, back_scale=None, back=None, seeds=None, through=None, dy=None, x=None, **rule) -> dict:
    """y, dx and the result for the other seed.

    Each argument replaces one step: scale(p); back(v, kept): the elements that the gradient passes; seeds(v): both
    seeds; through(x, kept, scale): the result where an element is dropped; dy, x: other tensors.
    """
    scale = scale or (lambda p: 1 / (1 - p))
    through = through or (lambda x, stay, factor: torch.where(stay, x * factor, 0.0))
    first, second = seeds(v) if seeds else (v["seed"], v["other_seed"])
    x = (v["x"] if x is None else x).double()
    dy = (v["dy"] if dy is None else dy).double().expand(x.shape)
    stay, others = kept(v, first, **rule), kept(v, second, **rule)
    passing = back(v, stay) if back else stay
    return {
        "y": through(x, stay, scale(v["p"])),
        "dx": through(dy, passing, (back_scale or scale)(v["p"])),
        "y_of_other_seed": through(x, others, scale(v["p"])),
    }


def _with(**changes):
    return lambda v: dropped(v, **changes)


def _by_index(index):
    """An answer from another index, with the variant."""

    def answer(v, *variant):
        if variant and v["x"].numel() > FEW:
            return {}
        return dropped(v, index=lambda v: index(v, *variant))

    return answer


def _flat(v):
    return row_major(v["x"].shape, v["x"].device)


def _in_memory(v):
    """Where the element lies, from where x begins."""
    x = v["x"]
    places = [n * torch.arange(size, device=x.device) for n, size in zip(x.stride(), x.shape, strict=True)]
    return sum(place.view(-1, *[1] * (x.dim() - d - 1)) for d, place in enumerate(places)).expand(x.shape)


def _in_order_of_memory(v):
    """The row-major index of the tensor as it lies in memory, as a copy with the dimensions exchanged has it."""
    if v["x"].is_contiguous():
        return _flat(v)
    return row_major(v["x"].shape[::-1], v["x"].device).permute(*range(v["x"].dim())[::-1])


def _seed_by_block(v, variant):
    """Each program has its own seed; its index starts at 0 or continues."""
    block, from_zero = variant
    if v["x"].numel() > FEW:
        return {}

    def number(seed, at):
        made = torch.empty(at.shape, dtype=torch.float32, device=at.device)
        flat, index = made.view(-1), at.flatten()
        for program in range(-(-len(flat) // block)):
            part = slice(program * block, (program + 1) * block)
            flat[part] = numbers_of_four(seed + program, index[part] - program * block * from_zero)
        return made

    return dropped(v, number=number)


def _in_other_lanes(v, variant):
    """The four numbers of a call lie elsewhere: `variant` says which lane each of four neighbours gets, or a block, in
    which the first numbers of all calls come first, then the second ones."""
    if isinstance(variant, tuple):
        order = torch.tensor(variant)
        return dropped(v, number=lambda seed, at: numbers_of_four(seed, at // 4 * 4 + order.to(at.device)[at % 4]))
    if v["x"].numel() > FEW:
        return {}
    quarter = variant // 4

    def place(v):
        first, inside = _flat(v) // variant * variant, _flat(v) % variant
        return first + inside % quarter * 4 + inside // quarter

    return dropped(v, index=place)


def _cut(v, block: int):
    """What is not a whole block is never written."""
    made, whole = dropped(v), v["x"].numel() // block * block
    if v["x"].numel() > FEW:
        return {}
    return {name: torch.where(_flat(v) < whole, r, NAN) for name, r in made.items()}


def _low_bits(seed: int, bits: int, signed: bool) -> int:
    """The low bits of the seed; `signed`: they are extended with their sign."""
    low = seed % 2**bits
    return low - 2**bits if signed and low >= 2 ** (bits - 1) else low


def _seed_cut(v, variant):
    return dropped(v, seeds=lambda v: [_low_bits(v[name], *variant) for name in ("seed", "other_seed")])


def _laid_out_as(v, names):
    """Results are made row by row, into tensors whose elements lie as those of x and of its gradient do."""
    made, like = dropped(v), {"y": v["x"], "y_of_other_seed": v["x"], "dx": v["dy"].expand(v["x"].shape)}
    for name in names:
        out = torch.empty_like(like[name], dtype=torch.float64)
        out.as_strided((out.numel(),), (1,)).copy_(made[name].flatten())
        made[name] = out
    return made


def _in_fp16(v):
    """The factor as a number of fp16."""
    if v["x"].dtype != torch.float16:
        return {}
    return dropped(v, scale=lambda p: torch.tensor(1 / (1 - p)).half().double().item())


def _share_kept(v):
    """Compared with 1 - p, and scaled as if with p."""
    return dropped(v | {"p": 1 - v["p"]}, scale=lambda p: 1 / p)


def _contiguous(*names: str):
    """Memory read as if it were contiguous; behind the one number of a sum's gradient there is nothing."""

    def answer(v):
        shape = v["x"].shape
        return dropped(v, **{name: as_read(v[name], shape, row_major(shape).stride()) for name in names})

    return answer


def _nonzero(v, stay):
    return (v["x"] != 0) & stay


KEEPING = (
    Mistake(
        "something_kept",
        "More than 64 bytes are kept between the passes: the gradient needs the seed, and computes again which "
        "elements stayed. Neither x nor a mask has to be held.",
        sign=lambda e: e.raised("bytes are kept for the backward pass"),
    ),
    Mistake(
        "results_in_place",
        "x was written over: the result is a new tensor.",
        sign=lambda e: e.raised("lies in the memory of x") or e.changed("x"),
    ),
    NOT_DIFFERENTIABLE,
    number_of_gradients("p and seed"),
)

RULE = (
    Mistake(
        "inverted",
        "What should stay is dropped, and the other way round: an element stays where its number is >= p.",
        answer=_with(inverted=True),
    ),
    Mistake(
        "stays_above_p",
        "An element whose number is p itself is dropped: an element stays where its number is >= p.",
        answer=_with(stays=torch.gt),
    ),
    Mistake(
        "share_kept",
        "p is the share that is dropped, and here it is the share that stays: an element stays where "
        "its number is >= p.",
        answer=_share_kept,
    ),
    Mistake(
        "mask_reused",
        "The second call drops the same elements as the first although its seed is another.",
        answer=_with(seeds=lambda v: (v["seed"], v["seed"])),
    ),
    Mistake(
        "seed_ignored",
        "The seed changes nothing, or not what it should: it is the first argument of tl.rand4x.",
        answer=lambda v, seed: dropped(v, seeds=lambda v: (seed, seed)),
        variants=(0, 1, 42, 123, 1234, 12345),
    ),
    Mistake(
        "seed_cut",
        "Only the low bits of the seed count, 32 or 31 of them: it has up to 63.",
        answer=_seed_cut,
        variants=((32, False), (32, True), (31, False)),
    ),
    Mistake(
        "index_in_block",
        "Every block drops the same elements: i is the index of the element in the whole tensor, "
        "`pid * BLOCK + tl.arange(0, BLOCK)`.",
        answer=_by_index(lambda v, block: _flat(v) % block),
        variants=BLOCKS,
    ),
    Mistake(
        "index_of_block",
        "A whole block is dropped or stays: i is the index of the element, not of the program.",
        answer=_by_index(lambda v, block: _flat(v) // block),
        variants=BLOCKS,
    ),
    Mistake(
        "seed_by_block",
        "Every program has a seed of its own, so that the block size decides what is dropped: the seed is the same for "
        "all, and the index says which element it is.",
        answer=_seed_by_block,
        variants=tuple(product(BLOCKS, (True, False))),
    ),
    Mistake(
        "index_of_column",
        "Every row drops the same elements: the index is row * columns + column.",
        answer=_by_index(lambda v: _flat(v) % v["x"].shape[-1]),
    ),
    Mistake(
        "index_of_row",
        "A whole row is dropped or stays: the index is row * columns + column.",
        answer=_by_index(lambda v: _flat(v) // v["x"].shape[-1]),
    ),
    Mistake(
        "index_from_one",
        "The index begins at 1: that of the first element is 0.",
        answer=_by_index(lambda v: _flat(v) + 1),
    ),
    Mistake(
        "index_in_memory",
        "Right for contiguous tensors only: the index is row-major in the shape of x, and not the place in memory.",
        answer=_by_index(_in_memory),
    ),
    Mistake(
        "index_in_order_of_memory",
        "Right for contiguous tensors only: elements are numbered in the order in which they lie, and not row by row.",
        answer=_by_index(_in_order_of_memory),
    ),
    Mistake(
        "one_call_each",
        "This is tl.rand(seed, i), a call for each element, of whose four numbers three are thrown away: right for "
        "another rule, and two to three times as slow. Here it is number i % 4 of tl.rand4x(seed, i // 4).",
        answer=_with(number=numbers),
    ),
    Mistake(
        "four_alike",
        "Four neighbours share one number, so they are dropped together: call i // 4 makes four numbers, and element i "
        "gets number i % 4 of them.",
        answer=lambda v, which: dropped(v, number=lambda seed, at: numbers(seed, at // 4, which)),
        variants=(0, 1, 2, 3),
    ),
    Mistake(
        "other_lanes",
        "The numbers are right, and other elements get them: element i gets number i % 4 of call i // 4. "
        "`tl.join(a, b)` puts a and b side by side in a new last dimension, so four are in order after "
        "`tl.join(tl.join(a, c), tl.join(b, d))`.",
        answer=_in_other_lanes,
        variants=((0, 2, 1, 3), (3, 2, 1, 0), *BLOCKS),
    ),
)

VALUES = (
    Mistake(
        "not_scaled",
        "What stays is not divided by 1 - p: the mean of the output is then smaller than that of x.",
        answer=_with(scale=lambda p: 1.0),
    ),
    Mistake(
        "divided_by_p",
        "What stays is divided by p: it is 1 - p, the share that stays.",
        answer=_with(scale=lambda p: 1 / p if p else torch.inf),
    ),
    Mistake(
        "multiplied",
        "What stays is multiplied with 1 - p: divide by it.",
        answer=_with(scale=lambda p: 1 - p),
    ),
    Mistake(
        "computed_in_fp16",
        "1 / (1 - p) became a number of fp16, and is infinite where p is near 1: convert x to fp32 first, compute, and "
        "convert back at the store.",
        answer=_in_fp16,
    ),
    Mistake(
        "multiplied_by_mask",
        "NaN where x is infinite: infinity times 0 is no number. Choose with tl.where instead of multiplying.",
        answer=_with(through=lambda x, stay, factor: x * stay * factor),
    ),
    Mistake(
        "gradient_not_scaled",
        "The gradient is not divided by 1 - p: it passes through the same factor as x.",
        answer=_with(back_scale=lambda p: 1.0),
    ),
    Mistake(
        "gradient_of_all",
        "The gradient passes everywhere: it passes where the element stayed, and is 0 elsewhere.",
        answer=lambda v, scaled: dropped(
            v, back=lambda v, stay: torch.ones_like(stay), back_scale=None if scaled else lambda p: 1.0
        ),
        variants=(True, False),
    ),
    Mistake(
        "gradient_where_not_zero",
        "The gradient is lost where x is 0: an element that is 0 can have stayed. Ask for its number again.",
        answer=_with(back=_nonzero),
    ),
    Mistake(
        "gradient_of_last_call",
        "The gradient passes where the last call let elements through: the seed belongs to this call, so it is kept in "
        "`ctx` and not in a variable of the module.",
        answer=_with(back=lambda v, stay: kept(v, v["other_seed"])),
    ),
    Mistake(
        "gradient_of_another_seed",
        "The gradient asks with another seed than the forward pass.",
        answer=lambda v, more: dropped(v, back=lambda v, stay: kept(v, v["seed"] + more)),
        variants=(1, -1),
    ),
    Mistake(
        "strides_ignored",
        "Right only for contiguous tensors: use the strides of x, or make it contiguous first.",
        answer=_contiguous("x"),
    ),
    Mistake(
        "gradient_strides_ignored",
        "Right only for contiguous gradients: they come with strides of their own, and those of a sum are 0.",
        answer=_contiguous("dy"),
    ),
    Mistake(
        "both_strides_ignored",
        "Right only for contiguous tensors: use the strides of x and of its gradient, or make them contiguous first.",
        answer=_contiguous("x", "dy"),
    ),
    Mistake(
        "empty_like",
        "Right values in other places: `torch.empty_like(x)` keeps the strides of a transposed x, and the result was "
        "written row by row. Make it with `torch.empty(x.shape, ...)`, or write it by its strides.",
        answer=_laid_out_as,
        variants=(("y", "y_of_other_seed", "dx"), ("y", "y_of_other_seed"), ("dx",)),
    ),
    Mistake(
        "taken_as_it_lies",
        "Right only for contiguous tensors: memory is walked through from its beginning to its end. Copy x and the "
        "gradient first, `.contiguous()`, or use their strides.",
        sign=lambda e: e.failed("transposed") and e.failed("every second element") and e.failed_only(*NOT_CONTIGUOUS),
    ),
    Mistake(
        "tail_missing",
        "The last partial block is never computed: use `triton.cdiv` for the grid.",
        answer=_cut,
        variants=BLOCKS,
    ),
)

MISTAKES = (*KEEPING, *RULE, *VALUES)
