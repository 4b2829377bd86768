"""capstone.qkv: attention of one projection, whose three gradients are one tensor from the start.

    attend(x, w, b, lengths, heads) -> o

x is (B, N, d), w (3 d, d), b (3 d,), all of one type: fp32 or fp16, or bf16 on a GPU. w and b are contiguous; the rows
of x may lie apart, and so may its images. lengths (B,) int32, from 1 to N, lies where x lies. heads divides d, and
D = d / heads is from 16 to 128, not always a power of two. The rows of w are those of q, then k, then v, and of each
those of the first head, then the second:

    qkv = x wᵀ + b   as (B, N, 3, H, D)        o = softmax(q kᵀ / sqrt(D)) v

Every query of an image sees the keys before the image's length. Keys behind it are used by nobody, so the gradients of
their k and v are 0; queries behind it are computed like all others. x is finite everywhere.

o is new, (B, N, d) with its heads side by side, contiguous, of the type of x. It can be differentiated in x, w and b.
With do, the gradient of o, flash.backward's formulas give dq, dk and dv, which are parts of one dqkv (B, N, 3, H, D):

    dx = dqkv w        dw = dqkvᵀ x        db = sum of the rows of dqkv

Arithmetic is in fp32, products of fp32 without TF32; qkv, o and dqkv have the type of x. The products with w and x, one
forward and two backward, and sums may be the library's (`ALLOWED`); attention is in kernels. Between the passes the
arguments are kept, and beyond them at most qkv, o and one fp32 number a query. Forward these are all that is made;
backward it is dqkv, the results, and small things. In neither pass is anything of the size of o copied, but for what a
product of the library has to copy where the rows of x are no matrix; where x has few rows nobody looks. do comes in any
strides, that of a sum with strides of 0, and stays as it is, as the arguments do: it is no more copied than anything
else. While the function runs, torch.empty gives NaN.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.capstone.packed import NAMES, ROUGH_IS, honest, passes, rough
from autograder.exercises.capstone.qkv_mistakes import MISTAKES
from autograder.exercises.capstone.qkv_places import wrong_places
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16, FP32

# products, and sums: what a library does as well as anybody; `add` brings linear its bias where rows of x lie apart
ALLOWED = tuple(f"aten::{name}" for name in "mm addmm bmm baddbmm mv addmv matmul linear sum add".split())


def most(v) -> dict[str, int]:
    """Twice what three products are given and make when each head has its own matrices, in batches; and sums."""
    images, length, width = v["x"].shape
    rows = images * length
    return {
        "products": 6 * ((3 * v["heads"] + 4) * rows * width + (images + 1) * 3 * width * width),
        "sums": 200 * rows * width,
    }


def _call(
    d: Draw, batch: int, heads: int, length: int, head_size: int, lengths=None, dtype=FP32, row_gap=0, image_gap=0,
    do_strides=None, of_a_sum=False, spread=1.3, offset=0.0, do_mean=0.3,
) -> Call:  # fmt: skip
    """spread: of q, k and v. offset: is added to all scores, but for rounding."""
    dtype, width = d.type_of(dtype), heads * head_size
    row = width + row_gap
    bias = d.normal(3, heads, head_size, std=0.5 * spread)
    if offset:
        signs = torch.tensor([1, 1 if offset > 0 else -1], device=bias.device)  # of q and of k
        bias[:2] += (abs(offset) * head_size**-0.5) ** 0.5 * signs[:, None, None]
    shape = (batch, length, width)
    do = d.normal(*(() if of_a_sum else shape), dtype=dtype, mean=do_mean, strides=do_strides and do_strides(*shape))
    given = _lengths(d, batch, length) if lengths is None else lengths
    args = {
        "x": d.normal(*shape, dtype=dtype, strides=(length * row + image_gap, row, 1)),
        "w": d.normal(3 * width, width, dtype=dtype, std=spread * width**-0.5),
        "b": d.lay_out(bias.flatten().to(dtype)),
        "lengths": d.lay_out(_int32(given)),
        "heads": heads,
        "do": do,
    }
    return Call(args, _in_words(args, given))


def _lengths(d: Draw, batch: int, length: int, *fixed: int) -> list[int]:
    """These, and others between, the last all of them. Of several images the first has fewer patches than others."""
    drawn = [d.integer(length // 3, length - 3) for _ in range(batch - len(fixed))]
    return [*fixed, *drawn][: batch - 1] + ([length] if batch > 1 else drawn)


def _int32(numbers: list[int]):
    return torch.tensor(numbers, dtype=torch.int32)


def _in_words(args: dict, lengths: list[int]) -> str:
    (batch, length, width), heads = args["x"].shape, args["heads"]
    said = str(lengths) if batch <= 8 else f"from {min(lengths)} to {max(lengths)}"
    of_do = "" if args["do"].is_contiguous() else f", gradient with strides {args['do'].stride()}"
    return (
        f"batch {batch}, heads {heads}, {length} patches, head size {width // heads}, {DTYPE_NAMES[args['x'].dtype]}, "
        f"lengths {said}{of_do}"
    )


def _sizes(d: Draw) -> tuple[int, int, int, int]:
    """Images, heads, patches and head size of a small call, with a partial block of patches."""
    return 2, 2, d.odd(35, 45), 16


def _of_some_lengths(d: Draw) -> Call:
    length = d.odd(66, 75)
    return _call(d, 4, 1, length, 16, lengths=_lengths(d, 4, length, 1, 32))


def _transposed(batch: int, length: int, width: int) -> tuple[int, int, int]:
    return length * width, 1, length


def _apart(gap: int):
    return lambda batch, length, width: (length * (width + gap), width + gap, 1)


def _full(d: Draw) -> Call:
    return _call(d, 2, 1, 64, 32, lengths=[64, 64])


def _memory_in_passing(d: Draw) -> Call:
    """So many rows, 140 or more, that the probe looks at what a pass makes. A copy of do and one in fp32 show too."""
    return _call(d, 2, 2, d.odd(75, 85), 16, dtype=FP16, do_strides=_transposed, do_mean=1.0)


def _many_rows(d: Draw) -> Call:
    """A sum of db in fp16 stands still in the second half of the images: 16 of their rows are less than half a step.

    All patches are real and every key is looked at: where dv is 0 or small, a row of dx is made of rounding.
    """
    batch, length = d.odd(85, 91), d.odd(27, 31)
    call = _call(d, batch, 1, length, 16, lengths=[length] * batch, dtype=FP16, spread=0.7, do_mean=0.5)
    call.args["do"][: batch // 2] += 35.5
    return call


def _of_a_sum(d: Draw) -> Call:
    """With as many rows, for a copy of do that is made where its strides are 0."""
    return _call(d, 4, 2, d.odd(35, 45), 16, of_a_sum=True)


def _far_from_zero(d: Draw, sign: int) -> Call:
    """Scores that exp does not reach. In a wide head, less is added to k, and rounding errors of scores count less.

    do is far from 0, so db is no small sum: with columns in another order it came to 0.98 of the limit.
    """
    return _call(d, 2, 1, d.odd(35, 45), 64, offset=sign * d.integer(104, 110), do_mean=3.0)


SOME_SIZE = (24, 40, 48, 56, 80)

CASES = (
    Case("odd lengths", lambda d: _call(d, 2, 2, d.odd(51, 61), 32)),
    Case("whole blocks", _full),
    Case("lengths", _of_some_lengths),
    Case("one image", lambda d: _call(d, 1, 2, d.odd(35, 45), 16)),
    Case("one head", lambda d: _call(d, 3, 1, d.odd(35, 45), 16)),
    Case("three heads", lambda d: _call(d, 2, 3, d.odd(9, 15), 16)),
    Case("head size 72", lambda d: _call(d, 2, 2, d.odd(17, 29), 72)),
    Case("another head size", lambda d: _call(d, 1, 3, d.odd(33, 39), d.choice(SOME_SIZE))),
    Case("memory in passing", _memory_in_passing),
    Case("rows of x apart", lambda d: _call(d, *_sizes(d), row_gap=d.integer(3, 9))),
    Case("images of x apart", lambda d: _call(d, *_sizes(d), image_gap=16 * d.integer(3, 9))),
    Case("a gradient with strided rows", lambda d: _call(d, *_sizes(d), do_strides=_apart(d.integer(3, 9)))),
    Case("a gradient that is transposed", lambda d: _call(d, *_sizes(d), do_strides=_transposed)),
    Case("the gradient of a sum", _of_a_sum),
    Case("large scores", lambda d: _far_from_zero(d, 1)),
    Case("very negative scores", lambda d: _far_from_zero(d, -1)),
    Case("fp16", lambda d: _call(d, 2, 2, d.odd(51, 61), 40, dtype=FP16)),
    Case("many rows, fp16", _many_rows),
    Case("bf16", lambda d: _call(d, 4, 4, d.odd(200, 256), 64, dtype=BF16), tiers=ON_GPU),
    Case("bf16, head size 72", lambda d: _call(d, 2, 16, 256, 72, dtype=BF16), tiers=ON_GPU),
    Case("more than 65535 heads", lambda d: _call(d, 66000, 1, 9, 16, dtype=FP16), tiers=ON_GPU),
)

QKV = Exercise(
    name="capstone.qkv",
    entry="attend",
    points=7,
    about="attention of one projection, whose three gradients are written into one tensor without a copy",
    point=("odd lengths", "head size 72", "memory in passing", "the gradient of a sum"),
    kind="kernel",
    cases=CASES,
    returns=NAMES,
    oracle=passes,
    precision=Precision(
        good=honest,
        good_is="fp32 arithmetic, the type of x between steps",
        lower=rough,
        lower_is=ROUGH_IS,
        floor_ulps=0.5,
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.packing:differentiated",
    allowed=ALLOWED,
    most=most,
    public=("lengths",),
    where=wrong_places,
    shows_not="speed, bf16, races between programs, and more than 65535 programs in a dimension of the grid",
)
