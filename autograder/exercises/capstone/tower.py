"""capstone.tower: the whole tower from kernels of one's own, forward and backward, and one graph under torch.compile.

    Tower(sizes) -> nn.Module        tower(patches, lengths) -> y

sizes is a course_lib.models.siglip.Sizes, patches (B, N, numbers a patch) with N = sizes.patches, lengths (B,) integers
from 1 to N, int32 or int64; y is (B, width) and of the type of the patches: fp32 or fp16, or bf16 on a GPU. Head sizes
are multiples of 8 from 16 on. The tower computes what course_lib.models.siglip.naive.Tower does, and so do its
gradients for all parameters. What a patch holds behind the length of its image, NaN for instance, shows nowhere.

The parameters are those of the naive tower: its state dict is loaded, and their gradients are looked for by its names.
A layer that holds q, k and v together is called `attention.qkv`, with their rows in this order; load_state_dict then
packs what it is given (`course_lib.models.siglip.frame` has `packed` and `unpacked`). There are no buffers.

Attention and GELU run in kernels of one's own, forward and backward: no tensor holds a score for each pair of patches,
and torch multiplies nothing of the hidden layer by elements. Products, sums, norms, additions and masks may be torch's
(`ALLOWED`), on about as many numbers as they need (`most`), and scores are none of them (`multiplies`). While the tower
runs, torch.empty gives NaN.

An operator of one's own that takes the hidden layer alone (GELU: h; its gradient: da and h) and returns a new tensor
takes it whatever its strides: in one case it gets the same values in rows with gaps between them.

Cases that compile the tower, in fp16 with other lengths and in fp32 with other batches, ask for one graph of the first
call, forward and backward, and for none more when lengths or the number of images (2 and more) change, both of which
were said to be dynamic. The same kernels are launched as without the compiler, as often, and what the compiler was told
of an operator's result (shape, strides, type) is so.
A custom operator does that; in an eager call it is taken apart, so that its kernels and allocations are seen.
"""

from __future__ import annotations

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.capstone.tower_formula import NAMES, ROUGH_IS, honest, rough, step
from autograder.exercises.capstone.tower_mistakes import GAPS, MISTAKES
from autograder.exercises.dtypes import BF16, DTYPE_NAMES, FP16, FP32

# What a library does as well as anybody, forward and backward. What is compared makes the mask of real patches.
ALLOWED = tuple(
    f"aten::{name}"
    for name in """
    mm addmm bmm mv addmv matmul linear sum mean
    native_layer_norm native_layer_norm_backward layer_norm
    add add_ sub mul mul_ div div_ neg reciprocal rsqrt
    masked_fill masked_fill_ where lt le gt ge eq ne logical_not bitwise_not logical_and bitwise_and clamp clamp_min
    slice_backward select_backward
    """.split()
)
WIDE = 16, 24  # head sizes: a power of two, and one that is none


def most(v) -> dict[str, int]:
    """Twice what a tower is given and makes, and weights once more for each image; norms may be put together."""
    images, patches, numbers = v["patches"].shape
    layers, hidden, width = v["up_w"].shape
    rows, weights = images * patches, layers * (4 * width * width + 2 * width * hidden) + width * numbers
    a_row = layers * (24 * width + 6 * hidden) + 6 * (width + numbers)
    return {
        "products": 2 * rows * a_row + 3 * (1 + images) * weights,
        "norms": 20 * (layers + 1) * (rows + 1) * (width + 1),
        "sums": 200 * (layers + 1) * rows * width,
    }


def multiplies(v) -> int:
    """The products with weights, forward twice and backward, and sums. Those of attention take more of many patches."""
    images, patches, numbers = v["patches"].shape
    layers, hidden, width = v["up_w"].shape
    products = layers * (4 * width * width + 2 * width * hidden) + width * numbers
    return images * patches * (4 * products + (layers + 1) * (10 * width + 2 * hidden))


def _call(
    d: Draw, layers: int = 1, head_size: int = 16, heads: int = 2, images: int = 3, patches: int | None = None,
    patch: int = 12, mlp: int | None = None, lengths: list[int] | None = None, of=torch.int64, dtype=FP32,
    filled: float | None = None, later: tuple = (), gaps: bool = False,
) -> Call:  # fmt: skip
    """filled: what padding holds, or values like all others. of: the type of the lengths. later: lengths of more calls,
    given how many patches there are. gaps: whether operators on the hidden layer get rows with gaps between them.
    """
    dtype = d.type_of(dtype)
    patches = patches or d.odd(17, 23)
    width, mlp = heads * head_size, mlp or 2 * d.integer(18, 22)
    lengths = lengths or [patches, *(d.integer(2, patches - 1) for _ in range(images - 1))]
    images = len(lengths)
    pixels = d.normal(images, patches, patch, dtype=dtype)
    if filled is not None:
        for image, length in zip(pixels, lengths, strict=True):
            image[length:] = filled

    def weights(*shape, std=1.0):
        return d.normal(*shape, dtype=dtype, std=std * shape[-1] ** -0.5)

    def biases(*shape, mean=0.0):
        return d.normal(*shape, dtype=dtype, mean=mean, std=0.3)

    square, row = (layers, width, width), (layers, width)
    args = {
        "patches": pixels,
        "lengths": torch.tensor(lengths, dtype=of, device=d.device),
        "dy": d.normal(images, width, dtype=dtype),
        "heads": heads,
        "later": [list(one) for one in later],
        "gaps": gaps,
        "embed_w": weights(width, patch),
        "embed_b": biases(width),
        "places": d.normal(patches, width, dtype=dtype, std=0.5),
        "n1_w": biases(*row, mean=1.0),
        "n1_b": biases(*row),
        "q_w": weights(*square, std=1.2),
        "q_b": biases(*row),
        "k_w": weights(*square, std=1.2),
        "k_b": biases(*row),
        "v_w": weights(*square),
        "v_b": biases(*row),
        "out_w": weights(*square),
        "out_b": biases(*row),
        "n2_w": biases(*row, mean=1.0),
        "n2_b": biases(*row),
        "up_w": weights(layers, mlp, width, std=1.5),
        "up_b": biases(layers, mlp),
        "down_w": weights(layers, width, mlp),
        "down_b": biases(*row),
        "norm_w": biases(width, mean=1.0),
        "norm_b": biases(width),
    }
    said = f"{layers} layer{'s' * (layers > 1)}, {images} image{'s' * (images > 1)} of {patches} patches, "
    return Call(args, said + f"{heads} heads of {head_size}, {DTYPE_NAMES[dtype]}")


def _lengths(d: Draw, images: int, patches: int) -> list[int]:
    return [d.integer(1, patches) for _ in range(images)]


def _other_lengths(d: Draw) -> Call:
    """In fp16, where statistics in fp32 and what has the type of the patches are told apart."""
    n = d.odd(17, 23)
    later = [_lengths(d, 3, n), [n] * 3]
    return _call(d, patches=n, lengths=[n, 3, d.integer(4, n - 1)], later=later, dtype=FP16)


def _other_batches(d: Draw) -> Call:
    n = d.odd(17, 23)
    later = [_lengths(d, images, n) for images in (2, 5)]
    return _call(d, patches=n, lengths=[d.integer(1, n) for _ in range(3)], of=torch.int32, later=later)


def _short(d: Draw) -> Call:
    """No image fills the patches, and one has a single one."""
    n = d.odd(19, 23)
    return _call(d, patches=n, lengths=[1, d.integer(4, 8), d.integer(9, n - 3)])


def _full(d: Draw) -> Call:
    n = d.odd(17, 23)
    return _call(d, patches=n, lengths=[n] * 2)


CASES = (
    Case("images of full length", _full),
    Case("short images", _short),
    Case("two layers", lambda d: _call(d, layers=2, heads=3, images=2)),
    Case("head size 24", lambda d: _call(d, head_size=24, images=2)),
    Case("more than one block of patches", lambda d: _call(d, images=2, patches=d.odd(71, 77))),
    Case("one image", lambda d: _call(d, lengths=[d.integer(9, 15)])),
    Case("lengths in int32", lambda d: _call(d, images=2, of=torch.int32)),
    Case("padding of NaN", lambda d: _call(d, layers=2, images=2, filled=float("nan"))),
    Case("fp16", lambda d: _call(d, layers=2, images=2, dtype=FP16)),
    Case("fp16, head size 24", lambda d: _call(d, head_size=24, dtype=FP16)),
    Case(GAPS, lambda d: _call(d, images=2, gaps=True)),
    Case("compiled, other lengths", _other_lengths),
    Case("compiled, other batches", _other_batches),
    Case("bf16", lambda d: _call(d, layers=2, head_size=72, patches=d.odd(99, 131), dtype=BF16), tiers=ON_GPU),
    Case(
        "large",
        lambda d: _call(d, layers=2, head_size=72, heads=16, images=8, patches=256, patch=588, mlp=4304, dtype=BF16),
        tiers=ON_GPU,
        live=False,
    ),
)

TOWER = Exercise(
    name="capstone.tower",
    entry="Tower",
    points=8,
    about="blocks from kernels of one's own that make one tower, right forward and backward, and one graph",
    point=("two layers", "compiled, other lengths"),
    kind="kernel",
    cases=CASES,
    returns=NAMES,
    oracle=step,
    precision=Precision(
        good=honest,
        good_is="fp32 arithmetic, the type of the patches between operations",
        lower=rough,
        lower_is=ROUGH_IS,
        by_row=False,  # a row of a weight's gradient is a sum over some dozens of patches, and may nearly cancel
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.assembled:stepped",
    allowed=ALLOWED,
    most=most,
    multiplies=multiplies,
    public=("lengths",),
    shows_not="speed, bf16, races between programs, and what Inductor makes of the graph",
)
