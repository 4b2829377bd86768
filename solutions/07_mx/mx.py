# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 MXINT8: a weight in a byte and a quarter of a bit
#
# After this lesson you can
#
# - write a matrix as integers that share exponents, and predict the error of that before you measure it,
# - take numbers apart into the bits of bf16, and find the corners in which a decoder is wrong,
# - cut a matrix of groups into tiles with their scales, and mask what lies past the end,
# - multiply with weights as they are held, and say for which batch sizes that wins and for which it loses,
# - swap the layers of a model, count its bytes and compare its logits.
#
# **Time** 5 and a half hours; the four exercises take four of them. Run the cells from the top each time. A cell that
# needs an exercise which you have not solved stops with "not written yet", or misses a name that such a cell would have
# made; go on with the cell below it.
#
# | section | reading and measuring | exercise |
# |---|---|---|
# | 1. What a weight costs | 10 min | |
# | 2. Groups that share an exponent | 10 min | exercise 7.1 `mx.quantize` 60 min |
# | 3. How far off? | 10 min | |
# | 4. Back to numbers | 15 min | exercise 7.2 `mx.dequantize` 50 min |
# | 5. The product | 10 min | exercise 7.3 `mx.gemv` 90 min |
# | 6. A model's layers, swapped | 10 min | exercise 7.4 `mx.linear` 50 min |
# | 7. Other formats, and what perplexity says of them | 15 min | |
#
# The three questions at the end take 35 minutes more. Two sittings: sections 1 to 4, and 5 to 7.
#
# **The check** in a notebook judges as grading does. An answer may use what the setup cells and your own cells define,
# and no name of a demonstration cell. In exercises 7.1 to 7.3 all arithmetic has to be in kernels. Where an answer breaks
# one of these rules, the check says so.
#
# **Needs** lesson 01: bytes, FLOP, the roofline, and a kernel with a mask.
#
# **Without a GPU** all four exercises can be solved and checked for being right, the errors can be measured, and the
# compiler counts instructions. What a CPU cannot show: speed. Recorded results of an H200 stand beside yours.
#
# The format is one of the *microscaling* formats (MX) of the Open Compute Project, described by Bita Darvish Rouhani
# and others in *Microscaling Data Formats for Deep Learning*.

# %% tags=["setup"]
from course_lib.device import DEVICE, TIER, half, machine

import copy
import math
import re

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

from autograder import check, check_speed
from course_lib import plots, results, widgets
from course_lib.predictions import against
from course_lib.roofline import Roof, Work, floor_s, ridge
from course_lib.timing import time_graph

HERE = machine()
print(results.memory_of("07_mx"))
HERE

# %% [markdown]
# Some helpers for the measurements below.

# %%
GPU = TIER == "gpu"
# the type of activations where kernels multiply
HALF = half() if GPU else torch.float32


def recorded(section):
    """The rows of a recorded section; none, and a line that says so,
    where nothing was measured yet."""
    entry = results.load(section)
    print(
        f"{section}: recorded on {entry['machine']}, {entry['date']}"
        if entry
        else f"{section}: not yet measured"
    )
    return entry["rows"] if entry else []


def relative(got, want):
    """||got - want|| / ||want||"""
    got, want = got.double(), want.double()
    return ((got - want).norm() / want.norm()).item()


# %% [markdown]
# ## 1. What a weight costs
# ### Case file
# **The report says** (a deep-learning-systems lab, about a CUDA kernel for MXINT8). A weight is an 8-bit integer, the
# *mantissa*, with 6 fraction bits. Several weights, a *group*, share one 8-bit exponent with bias 127. The kernel turns
# them into bf16 by putting bits together, and a library multiplies. One bit of the mantissa decides whether a "bias" is
# subtracted; the report calls it "a region selector". At the end it leaves a question open: what would it buy to
# quantise the *activations* too?
#
# The report gives no time and no error. So there are three questions before the open one: is it faster, and when? How
# far off are the weights? And does the kernel decode every number right?
#
# ### Count
# A linear layer computes $Y = X W^\top$, with $M$ rows of activations, and $N K$ weights. With groups of 32 a weight
# takes $1 + 1/32$ bytes, where bf16 takes 2.
#
# | | bytes a weight | FLOP a weight |
# |---|---|---|
# | bf16 | 2 | $2 M$ |
# | MXINT8, converted on the way into the product | 1.031 | $2 M$ |
# | MXINT8, first made bf16 in memory | 1.031 read, 2 written, 2 read | $2 M$ |
#
# ### Predict
# A layer with $N = 14336$ and $K = 4096$. How long does the second way take at its floor, in units of the first, for
# $M = 1$ and for $M = 4096$? From which power of two of rows on is the gain below 5 %? And what does the third way cost
# at $M = 1$?

# %%
predicted = {  # replace None; times in units of bf16's
    "held, 1 row": None,
    "held, 4096 rows": None,
    "no gain from": None,
    "bf16 first, 1 row": None,
}
### BEGIN PREDICTION
predicted = {
    "held, 1 row": 0.52,
    "held, 4096 rows": 1,
    "no gain from": 128,
    "bf16 first, 1 row": 2.5,
    "why": "1.031 bytes for 2 at one row; the ridge of 156 FLOP a byte is passed with "
    "156 rows of bf16",
}
### END PREDICTION

# %%
entry = {row["name"]: row["value"] for row in results.load("lesson01.ceilings")["rows"]}
H200 = Roof(
    "H200 bf16", entry["matmul bf16, TFLOP/s"] * 1e12, entry["copy, TB/s"] * 1e12, 0.0
)
GROUP_BYTES = 1 + 1 / 32


def floors(rows, N=14336, K=4096, roof=H200):
    """Seconds at least, of the three ways."""
    flops, activations = 2 * rows * N * K, 2 * rows * (N + K)
    bf16 = floor_s(Work(flops, 2 * N * K + activations), roof)
    held = floor_s(Work(flops, GROUP_BYTES * N * K + activations), roof)
    return {
        "bf16": bf16,
        "held": held,
        "bf16 first": bf16 + floor_s(Work(0, (GROUP_BYTES + 2) * N * K), roof),
    }


rows = [2**i for i in range(13)]
shares = {
    name: [floors(r)[name] / floors(r)["bf16"] for r in rows]
    for name in ("held", "bf16 first")
}
came = {
    "held, 1 row": shares["held"][0],
    "held, 4096 rows": shares["held"][-1],
    "no gain from": next(r for r, share in zip(rows, shares["held"]) if share > 0.95),
    "bf16 first, 1 row": shares["bf16 first"][0],
}
against(predicted, came)
print(f"ridge of the H200: {ridge(H200):.0f} FLOP a byte")

# %% [markdown]
# **The prediction, counted.** One row: 1.031 / 2 = 0.516. 4096 rows: 1, since arithmetic sets both times. No gain
# from 256 rows on. bf16 first, one row: 3.03 bytes more for 2, so 2.52.

# %%
axes = plots.sweep(
    rows, shares,
    xlabel="rows of activations", ylabel="floor, over that of bf16 weights",
    unit="", title="Half the bytes are half the time, until arithmetic sets it",
    device="floors from the recorded ceilings of an H200",
)  # fmt: skip
axes.axhline(1, color="black", linewidth=0.8, zorder=0)
axes.yaxis.set_major_formatter("{x:g}")
plots.show(
    axes,
    alt="Floor of two ways over that of bf16 weights against rows: "
    "held weights lie near a half up to a hundred rows and reach 1 above; "
    "bf16 first begins at 2.5 and comes down towards 1",
)

# %% [markdown]
# A weight takes part in $M$ multiply-adds. Below the ridge the bytes set the time, and half the bytes can be half the
# time. Far above it the tensor cores set the time, and how weights are held makes no difference; the conversion comes
# on top. The lower curve is the roofline of lesson 01 with rows as intensity, held weights over bf16 ones: $M$ rows make
# nearly $M$ FLOP for a byte of bf16 and $1.94 M$ for a byte as held, so held weights are at the ridge with 85 rows, bf16
# ones with 164, and between the two the gain goes. So weight-only quantisation is for few rows: a language model that
# writes one token at a time, for one reader or some. For many rows it saves memory and no time.
#
# These are floors. What kernels make of them is section 5. First: what do the numbers lose?

# %% [markdown]
# ## 2. Groups that share an exponent
# A group of numbers is written as
#
# $$x_i \approx m_i \cdot 2^{\,e - 133}, \qquad m_i \in \{-128, \dots, 127\}, \quad e \in \{0, \dots, 254\}.$$
#
# 133 is the bias of the exponent, 127, and the 6 fraction bits of the mantissa: $m / 64$ lies between $-2$ and $2$. The
# exponent comes from the largest number of the group: $e = \lfloor \log_2 \max_i |x_i| \rfloor + 127$. So the largest
# mantissa lies between 64 and 127 (less where $e$ is held to 0, or if all are 0), and all others are counted in the
# same *step* $2^{e - 133}$.
#
# | | stored as | bits | largest number | step |
# |---|---|---|---|---|
# | bf16 | sign, exponent, fraction | 16 | just below $2^{128}$ | follows each number: $2^{-7}$ of its power of two |
# | MXINT8 | mantissa, and 1/32 of an exponent | 8.25 | just below $2^{128}$ | follows the largest of the group: $2^{-6}$ of its power of two |
#
# The standard leaves some room. These are our rules:
#
# - mantissas are rounded to nearest, ties to the even one, and held to $\pm 127$,
# - a group of zeros has $e = 0$ and $m = 0$; exponents are held to 0 .. 254,
# - a group that holds NaN or an infinity has $e = 255$ and $m = 0$, and 255 means NaN for every mantissa.
#
# The specification, in plain PyTorch and float64. It is right and slow; compare your kernels with it.


# %% tags=["setup"]
def plain_quantize(x, group=32):
    """(rows, columns) of numbers -> mantissas (rows, columns) int8,
    exponents (rows, groups) uint8."""
    lacking = -x.shape[1] % group
    groups = F.pad(x.double(), (0, lacking)).unflatten(1, (-1, group))
    largest = groups.abs().amax(2)  # NaN if there is one
    ordinary = largest.isfinite() & (largest > 0)
    # the floor of log2, exactly
    power = torch.frexp(torch.where(ordinary, largest, 1.0)).exponent - 1
    e = torch.where(ordinary, power + 127, 0).clamp(0, 254)
    scale = torch.exp2(133 - e.double())  # up to 2^133, more than fp32 holds
    m = (groups * scale[:, :, None]).round().clamp(-127, 127)
    m = torch.where(largest.isfinite()[:, :, None], m, 0.0).flatten(1)[:, : x.shape[1]]
    return m.to(torch.int8), torch.where(largest.isfinite(), e, 255).to(torch.uint8)


def plain_numbers(m, e, group=32):
    """Back, in float64."""
    scale = torch.where(e == 255, float("nan"), torch.exp2(e.double() - 133))
    return m.double() * scale.repeat_interleave(group, 1)[:, : m.shape[1]]


# %%
x = torch.tensor([[0.9, -0.3, 0.05, 0.001]])
m, e = plain_quantize(x)
print("x        ", x[0].tolist())
print("exponent ", e.item(), f"so a step is 2^{e.item() - 133}")
print("mantissas", m[0].tolist())
print("numbers  ", plain_numbers(m, e)[0].tolist())

# %% [markdown]
# 0.001 has become 0: beside 0.9 it is less than half a step. That is the price of sharing an exponent, and the length
# of a group says how many numbers pay it together.
#
# ### A block of groups
# How does a kernel walk over groups? The report's kernel takes a row as a table: the place in the group goes down, the
# number of the group goes across. A block of threads (a *CTA*, in CUDA's words) owns a tile of it. All places of a
# group have one scale, so the scales are cut along one side only. Each thread of the block has its part of the tile.
# And where the tile hangs over the edge, lanes are switched off: the report makes an *identity tensor*, whose element
# $(i, j)$ is the pair $(i, j)$, cuts it like the data, and compares each lane's coordinates with the sizes.
#
# The picture shows a row of 476 numbers in groups of 32, in tiles of 16 places of 4 groups. At the right is the same in
# Triton's manner: a program owns a block of whole groups, so it loads each scale once.

# %%
plots.show(
    plots.group_tiles(476, 32, block_m=16, block_k=4, per_thread=8),
    alt="Left: a table of 32 places by 15 groups with one tile and its four scales "
    "marked, the end of the row hatched. Right: a block of four groups, "
    "eight adjacent elements a thread, past the end hatched",
)

# %% [markdown]
# | the report (CUDA, CuTe) | Triton |
# |---|---|
# | tile of BLK_M x BLK_K | `column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]`, a block of (groups, elements) |
# | scales tiled along K only | `tl.load(e_ptr + group)`, used as `scale[:, None]` |
# | partition of the tile among threads | the compiler's; here 8 adjacent elements a thread |
# | identity tensor, compared with the sizes | `mask = column < columns`: `column` *is* the tensor of coordinates |
#
# Two masks are needed and they differ: elements of the last group that do not exist, and groups that do not exist.

# %% [markdown]
# ## Exercise 7.1 `mx.quantize` (60 min, 6 points)
# Write `quantize(x, group, mantissas, exponents)`.
#
# - `x`: (R, C) in fp32, fp16 or bf16; `mantissas`: (R, C) in int8. Rows of both may lie apart, columns are adjacent
# - `exponents`: (R, ceil(C / group)) in uint8, contiguous
# - `group`: a power of two from 1 to 256; the last group of a row may be short; R may be 0
# - the rules above; **every mantissa and exponent must be exact**, also for the largest and the smallest numbers
# - the offset at which a row starts may pass $2^{31}$ (tried on a GPU, and only when it is graded)
#
# Two things make it less simple than it looks. `tl.max` drops NaN, as the hardware does. And powers of two past
# $2^{127}$ or below $2^{-126}$ are not what `tl.exp2` gives: $2^{133 - e}$ is one for small $e$. The bits of an fp32
# number help with both: `x.to(tl.int32, bitcast=True)` has the sign in bit 31, then 8 bits of exponent with bias 127,
# then 23 bits of fraction. (`libdevice.rint` and its like do not work in Triton's interpreter, so not in the checks on a
# CPU.) About 20 lines.


# %% nbgrader={"grade": false, "grade_id": "mx_quantize_kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _quantize_kernel(
    m_ptr, e_ptr, x_ptr,
    columns, groups,
    stride_m, stride_x,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """BLOCK_G groups of one row."""
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = column < columns
    x = tl.load(x_ptr + row * stride_x + column, mask=mask, other=0.0).to(tl.float32)

    # without the sign: NaN is above infinity
    largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, axis=1)
    e = largest >> 23
    half = (133 - e) // 2  # 2^(133 - e) in two factors that fp32 holds
    first = ((half + 127) << 23).to(tl.float32, bitcast=True)
    second = ((133 - e - half + 127) << 23).to(tl.float32, bitcast=True)
    y = x * first[:, None] * second[:, None]
    # 1.5 * 2^23 leaves no room for a fraction: to nearest, ties to even
    m = (y + 12582912.0) - 12582912.0
    m = tl.minimum(tl.maximum(m, -127.0), 127.0)
    m = tl.where((e == 255)[:, None], 0.0, m)

    tl.store(m_ptr + row * stride_m + column, m.to(tl.int8), mask=mask)
    tl.store(e_ptr + row * groups + group, e.to(tl.uint8), mask=group < groups)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mx_quantize", "locked": false, "schema_version": 3, "solution": true, "task": false}
def quantize(x, group, mantissas, exponents):
    """Fill mantissas and exponents."""
    ### BEGIN SOLUTION
    rows, columns = x.shape
    groups = triton.cdiv(columns, group)
    block = max(1, (2048 if x.is_cuda else 256) // group)
    if rows:
        _quantize_kernel[(rows, triton.cdiv(groups, block))](
            mantissas, exponents, x,
            columns, groups,
            mantissas.stride(0), x.stride(0),
            GROUP=group, BLOCK_G=block,
        )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mx_quantize_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("mx.quantize", quantize)

# %% [markdown]
# <details><summary>Hint 1: in which order to write it</summary>
#
# One program for a row and a block of groups. First only ordinary numbers: `tl.max(tl.abs(x), axis=1)`, its exponent
# from the bits, then `x` times $2^{133 - e}$, rounded, held, stored. Run the check and read what is still wrong.
# </details>
# <details><summary>Hint 2: the exponent</summary>
#
# `log2` rounds, and just below a power of two it rounds up. The exponent field of the bits is the floor, exactly. Take
# the maximum of the *bits* without the sign, as integers: for positive numbers they are in the same order as the
# numbers, and NaN comes out above infinity. A field of 255 then means "NaN or infinity", and 0 "below $2^{-126}$",
# which is what holding $e$ to 0 gives.
# </details>
# <details><summary>Hint 3: rounding, and very small numbers</summary>
#
# `y + 1.5 * 2**23 - 1.5 * 2**23`, in fp32, rounds `y` to an integer with ties to even. Hold it to $\pm 127$ while it is
# a float: 128 converted to int8 is $-128$. A power of two from its exponent: `((k + 127) << 23)`, bit-cast to fp32, for
# $k$ from $-126$ to 127. Multiply with two of them.
# </details>

# %% [markdown]
# ## 3. How far off?
# ### Predict
# Before measuring, a model. Rounding to a grid makes an error that is spread evenly over one step, from $-1/2$ to
# $1/2$, as long as numbers are many steps large. The root of its mean square is $\mathrm{step} / \sqrt{12}$.
#
# *A group of one.* Each number sets its own exponent, so $|m|$ lies between 64 and 128. Suppose it is spread evenly
# there ("uniform within a binade"; a *binade* is the numbers between two powers of two). What is the relative error,
# the root of mean square error over that of the numbers?
#
# *A group of 32 normal numbers with $\sigma = 1$.* The step comes from the largest, and the largest of 32 mostly lies
# between 2 and 4. What is the relative error then?

# %%
predicted_error = {  # replace None: 0.01 is one per cent
    "groups of 1": None,
    "groups of 32": None,
}
### BEGIN PREDICTION
predicted_error = {
    "groups of 1": 0.003,
    "groups of 32": 0.009,
    "why": "a step over the root of 12: 0.289 of some 98 steps; "
    "of a step of 2/64 for a largest above 2",
}
### END PREDICTION

# %% [markdown]
# Now the same in formulas. Evenly between 64 and 128 the mean of $m^2$ is $64^2 \cdot 7/3$. For longer groups, the
# largest of $n$ normal numbers lies below $t$ with probability $\mathrm{erf}(t / \sqrt 2)^n$; so we know how often it
# falls into each binade, and with it the mean square of the step.


# %%
def predicted_of(group):
    """Relative error of normal numbers in groups of this length: an even error, a step from the largest."""
    below = [math.erf(2.0**k / math.sqrt(2)) ** group for k in range(-30, 6)]
    mean_square_step = sum(
        (b - a) * (2.0 ** (k - 6)) ** 2
        for k, a, b in zip(range(-30, 5), below, below[1:])
    )
    return math.sqrt(mean_square_step / 12)


def measured_of(group, numbers):
    return relative(plain_numbers(*plain_quantize(numbers, group), group), numbers)


torch.manual_seed(0)
normal = torch.randn(256, 1024)
evenly = (1 / math.sqrt(12)) / (64 * math.sqrt(7 / 3))
against(
    predicted_error,
    {"groups of 1": measured_of(1, normal), "groups of 32": measured_of(32, normal)},
)
print(
    f"formulas: groups of 1 {evenly:.4f} (evenly in a binade), {predicted_of(1):.4f} "
    f"(normal); groups of 32 {predicted_of(32):.4f}"
)
print(f"for comparison: bf16 {relative(normal.bfloat16(), normal):.4f}")

# %%
lengths = [2**k for k in range(11)]
spread = {
    "normal": normal,
    "evenly from -1 to 1": 2 * torch.rand(256, 1024) - 1,
    "Laplace (longer tails)": torch.distributions.Laplace(0.0, 1.0).sample((256, 1024)),
}
errors = {
    name: [measured_of(n, values) for n in lengths] for name, values in spread.items()
}
axes = plots.sweep(
    lengths, errors, xlabel="length of a group", ylabel="relative error", unit="",
    title="A longer group has a larger largest number, and a larger step",
    device="any machine",
)  # fmt: skip
axes.plot(
    lengths, [predicted_of(n) for n in lengths],
    color="black", linewidth=1, label="normal, predicted",
)  # fmt: skip
with plots.style():
    axes.legend()
axes.yaxis.set_major_formatter("{x:.2%}")
plots.show(
    axes,
    alt="Relative error against the length of a group: normal numbers rise slowly and "
    "lie on the line that was predicted for them, even numbers stay low, "
    "Laplace numbers rise most",
)

# %% [markdown]
# **The prediction, counted.** The formulas say 0.0033 and 0.0083, and 0.00335 and 0.00828 came: the prediction from the
# largest is good to a few per cent of itself, with no number fitted. For groups of one the even model says 0.0030,
# which is 12 % too low: normal numbers are not even in a binade, smaller ones are commoner.
#
# Where would the prediction fail? When a step is as large as the numbers themselves, so that most become 0: one outlier
# in a group does that. And at the top of the binade, between 127.5 and 128 steps, where mantissas are held: the error
# goes up to a whole step there, for few numbers.
#
# ### Wrong turns
# Three mistakes of rounding, as errors in steps. Cut off instead of rounded, every number moves towards zero. With the
# exponent one too large, steps are twice as long. And where 128 wraps round to $-128$, a few numbers change their
# sign: out of sight in a histogram, and the largest error of all.


# %%
def in_steps(how):
    """Errors of normal numbers in groups of 32, in right steps; above 0: away from zero."""
    groups = normal.double().unflatten(1, (-1, 32))
    power = torch.frexp(groups.abs().amax(2)).exponent - 1
    y = groups * torch.exp2(6.0 - power)[:, :, None].double()
    wrapped = (y.round() + 128) % 256 - 128
    ways = {
        "rounded": y.round().clamp(-127, 127),
        "cut off": y.trunc(),
        "exponent one too large": 2 * (y / 2).round(),
    }
    return ({**ways, "128 wraps": wrapped}[how] - y) * y.sign()


kinds = ("rounded", "cut off", "exponent one too large", "128 wraps")
for kind in kinds:
    off = in_steps(kind)
    print(
        f"{kind:24} root of mean square {off.square().mean().sqrt():6.3f} steps, "
        f"mean {off.mean():+.3f}, largest {off.abs().max():5.1f}"
    )
axes = plots.histogram(
    {k: in_steps(k).flatten()[::16].tolist() for k in kinds[:3]},
    xlabel="error away from zero, in steps",
    device="any machine",
    title="Rounding errors are spread evenly over one step",
)
axes.set_ylim(0, 1.45 * axes.get_ylim()[1])  # room for the legend
plots.show(
    axes,
    alt="Histograms of errors in steps: rounded evenly from -0.5 to 0.5, "
    "cut off evenly from -1 to 0, exponent one too large evenly from -1 to 1",
)

# %% [markdown]
# One over the root of 12 is 0.289: the first line is what the model said. Mind the last column: the mean of the last
# line looks harmless, and some of its weights have the wrong sign. The check of your kernel therefore asks for every
# mantissa.

# %% [markdown]
# ## 4. Back to numbers
# The kernel of the report makes bf16 out of $m$ and $e$ without any multiplication. How can that work?
#
# A bf16 number has 1 bit of sign, 8 of exponent $E$ with bias 127, and 7 of fraction $f$. For $1 \le E \le 254$
#
# $$\text{value} = \pm \Big(1 + \frac{f}{128}\Big)\, 2^{E - 127}.$$
#
# The 1 is not stored: it is *implicit*. MXINT8 has no such thing: its number is $\frac{|m|}{64}\, 2^{e - 127}$, with
# the same bias. Now take the low six bits of $|m|$ and look at two cases.
#
# - $64 \le |m| < 128$. Then $\frac{|m|}{64} = 1 + \frac{|m| \,\&\, 63}{64}$. So $E = e$ and $f = 2 (|m| \,\&\, 63)$
#   give exactly the right number: bit 6 of $|m|$ *is* bf16's implicit one.
# - $|m| < 64$. There is no one in $|m|$, and bf16 adds it all the same: the number is too large by exactly
#   $1 \cdot 2^{e - 127}$, with its sign. That is what has to be taken away.
#
# So the report's "region selector" selects no region. It asks: is the leading one there? The next cell does it, bit by
# bit, on integers.


# %%
def as_bf16(bits):
    """What 16 bits mean, as fp32."""
    return (
        ((bits & 0xFFFF) ^ 0x8000)
        .sub(0x8000)
        .to(torch.int16)
        .view(torch.bfloat16)
        .float()
    )


def by_packing(m, e):
    """The report's way. m, e: int64 tensors of one shape; the size of m is that of an int8."""
    size = m.abs() & 0xFF
    sign = (m < 0).long() << 15
    number = as_bf16(sign | e << 7 | (size & 0x3F) << 1)
    correction = as_bf16(sign | e << 7)  # 1.0, with this sign and exponent
    return torch.where(size & 0x40 == 0, number - correction, number)


def by_definition(m, e):
    value = m.double() * torch.exp2(e.double() - 133)
    return torch.where(e == 255, float("nan"), value).to(torch.bfloat16).float()


some_m = torch.tensor([96, 64, 63, 40, 1, 0, -1, -40, -96, -127])
some_e = torch.full_like(some_m, 127)
for name, way in (("by packing", by_packing), ("by definition", by_definition)):
    print(f"{name:14}", way(some_m, some_e).tolist())

# %% [markdown]
# ### Find the bug
# Ten of ten. There are 256 mantissas and 256 exponents. Is the trick right for all 65,536 pairs? Think of where the
# derivation above used a condition, look for pairs that break it, and put those that you find into the list.
# `try_pair(m, e)` shows both ways.


# %%
def try_pair(m, e):
    m, e = torch.tensor([m]), torch.tensor([e])
    got, want = by_packing(m, e).item(), by_definition(m, e).item()
    right = got == want or (math.isnan(got) and math.isnan(want))
    print(
        f"m {m.item()}, e {e.item()}: by packing {got:.6g}, by definition "
        f"{want:.6g}{'' if right else '   <- wrong'}"
    )


try_pair(40, 130)
found = []  # pairs (m, e) that are wrong, such as (40, 130) if it were
predicted_wrong = {"wrong pairs": None}  # replace None: how many of the 65,536?
### BEGIN PREDICTION
predicted_wrong = {
    "wrong pairs": 513,
    "why": "256 with m = -128, 255 more with e = 0, and m = 64 and -64 with e = 255",
}
### END PREDICTION

# %% [markdown]
# Now all of them. The cell counts, tells how many of yours are among them, and the picture after it shows where they
# lie.

# %%
all_m, all_e = torch.meshgrid(torch.arange(-128, 128), torch.arange(256), indexing="ij")
got, want = by_packing(all_m, all_e), by_definition(all_m, all_e)
wrong = (got != want) & ~(got.isnan() & want.isnan())
against(predicted_wrong, {"wrong pairs": wrong.sum().item()})
print(
    f"of the {len(found)} that you named, "
    f"{sum(bool(wrong[m + 128, e]) for m, e in found)} are wrong"
)


# %% [markdown]
# **The prediction, counted.** 511 of the 65,536 pairs: 255 with $m = -128$, 254 others with $e = 0$, and $m = \pm 64$
# with $e = 255$.

# %%
from course_lib.plots.house import drawn


@drawn
def draw_wrong(wrong):
    """A dot for each wrong pair: mantissas across, exponents up."""
    figure, ax = plots.figure(6.6, 3.6)
    figure.suptitle(
        "The packing trick is wrong along two edges, and at two points",
        x=0.01, ha="left", weight="bold",
    )  # fmt: skip
    places = {
        "m = -128": (wrong[:1], 0), "e = 0": (wrong[1:, :1], 1),
        "e = 255": (wrong[1:, 255:], 2),
    }  # fmt: skip
    for name, (part, i) in places.items():
        m, e = part.nonzero()
        m, e = m - 128 + (name != "m = -128"), e + 255 * (name == "e = 255")
        label = f"{name}: {len(m)} pairs"
        ax.plot(
            m, e, plots.MARKERS[i],
            color=plots.PALETTE[i], markersize=4, label=label, clip_on=False,
        )  # fmt: skip
    ax.set(xlim=(-136, 130), ylim=(-8, 260), xlabel="mantissa m", ylabel="exponent e")
    ax.set_xticks(range(-128, 129, 64))
    ax.set_yticks(range(0, 257, 64))
    ax.legend(loc="center")
    return figure


plots.show(
    draw_wrong(wrong.numpy()),
    alt="Mantissas across and exponents up: wrong pairs fill the left edge, m = -128, "
    "and the lower edge, e = 0, and there are two at the top, m = 64 and "
    "-64 with e = 255",
)

# %% [markdown]
# Three corners, and a reason for each.
#
# - **$m = -128$.** $|m| = 128$ does not fit into seven bits: bit 7 is set, bit 6 is clear and so are all others. The
#   packed number is $-1 \cdot 2^{e-127}$, the correction is the same, and the result is 0, where $-2 \cdot 2^{e-127}$
#   is right. In 8 bits it is worse still: there $|-128|$ is $-128$ again. Our quantiser never writes a $-128$, but
#   others may, and a decoder reads a format and not a quantiser.
# - **$e = 0$.** A bf16 number with exponent field 0 is *subnormal*: there is no implicit one, and a step is worth
#   $2^{-133}$. Nothing has to be taken away, and the fraction is not $2 |m|$ but $|m|$: every nonzero mantissa is
#   wrong.
# - **$e = 255$.** In both formats this field is special. The standard says NaN; bf16 says NaN only if the fraction is
#   not 0, and an infinity otherwise. With $|m| = 64$ the fraction is 0.
#
# And $e$ from 1 to 6 with small $m$? The subtraction gives subnormal numbers there, and they come out right if the
# hardware keeps them. A right decoder meets one more special pair: $(-128, 254)$ is $-2^{128}$, the only number of all
# that bf16 cannot hold. It becomes $-\infty$.
#
# Move the bits yourself. Which bits of the value change when $m$ passes from 63 to 64, and why so many? Boxes of bf16
# are tinted by what they hold: sign, then 8 bits of exponent, then 7 of fraction.

# %%
widgets.mx_bit_editor()

# %%
from course_lib.plots.bits import decoding

axes = decoding(
    [(63, 127), (64, 127), (-128, 127), (40, 0)],
    title="From 63 to 64 six bits change; for -128, and where e is 0, packing is wrong",
)
plots.show(
    axes,
    alt="Four pairs of m and e as bits, with their value as bf16 and what packing "
    "makes: from 63 to 64 the last bit of the exponent becomes 1 and the five ones of "
    "the fraction become 0; for m = -128 the value is -2 and packing gives 0; "
    "for m = 40 with e = 0 packing gives another number",
)

# %% [markdown]
# 63 steps are $2^{-1} \cdot 1.1111100$ in binary, 64 are $2^0 \cdot 1.0$: the carry runs through the fraction into the
# exponent. In the mantissa it ends in bit 6, and there the packing begins to take nothing away.

# %% [markdown]
# ## Exercise 7.2 `mx.dequantize` (50 min, 6 points)
# Write `dequantize(mantissas, exponents, group, out)`.
#
# - `mantissas`: (R, C) in int8; `out`: (R, C) in bf16. Rows of both may lie apart, columns are adjacent; R may be 0, and
#   the offset at which a row starts may pass $2^{31}$, as in exercise 7.1
# - `exponents`: (R, ceil(C / group)) in uint8, contiguous; `group` as before, the last one of a row may be short
# - `out` is $m \cdot 2^{e - 133}$ for $e$ from 0 to 254, subnormal numbers included, and NaN for $e = 255$
# - **exact for all 65,536 pairs**; $(-128, 254)$ gives $-\infty$
#
# By bits or by a product, as you like; on a CPU subtract in fp32, because the interpreter has no bf16 arithmetic.
# Beware of `tl.exp2`: on a GPU it makes zeros of results below $2^{-126}$, which the interpreter does not show.
# `_scale_of` is a proposal for the product; what comes after this exercise, as exercise 7.3, needs it too. About 15
# lines.


# %% nbgrader={"grade": false, "grade_id": "mx_scale", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _scale_of(e):
    """2^(e - 133) as fp32, NaN for 255. e: a block of int32."""
    ### BEGIN SOLUTION
    normal = (tl.maximum(e, 7) - 6) << 23
    # one bit that has left the exponent and gone down the fraction
    subnormal = (1 << 16) << tl.minimum(e, 6)
    bits = tl.where(e > 6, normal, subnormal)
    return tl.where(e == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mx_dequantize_kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _dequantize_kernel(
    out_ptr, m_ptr, e_ptr,
    columns, groups,
    stride_out, stride_m,
    GROUP: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """BLOCK_G groups of one row."""
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * BLOCK_G + tl.arange(0, BLOCK_G)
    column = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = column < columns
    m = tl.load(m_ptr + row * stride_m + column, mask=mask, other=0)
    e = tl.load(e_ptr + row * groups + group, mask=group < groups, other=0).to(tl.int32)
    out = m.to(tl.float32) * _scale_of(e)[:, None]
    tl.store(out_ptr + row * stride_out + column, out.to(tl.bfloat16), mask=mask)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mx_dequantize", "locked": false, "schema_version": 3, "solution": true, "task": false}
def dequantize(mantissas, exponents, group, out):
    """Fill out."""
    ### BEGIN SOLUTION
    rows, columns = mantissas.shape
    groups = triton.cdiv(columns, group)
    # 4 warps with 8 elements a thread
    block = max(1, (1024 if out.is_cuda else 256) // group)
    if rows:
        _dequantize_kernel[(rows, triton.cdiv(groups, block))](
            out, mantissas, exponents,
            columns, groups,
            out.stride(0), mantissas.stride(0),
            GROUP=group, BLOCK_G=block,
        )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mx_dequantize_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("mx.dequantize", dequantize)

# %% [markdown]
# <details><summary>Hint 1: the plan</summary>
#
# The same block of groups as in `quantize`. Load mantissas (`other=0`) and one exponent a group, widen both, multiply
# `m.to(tl.float32)` with `scale[:, None]`, convert to bf16, store with the mask.
# </details>
# <details><summary>Hint 2: the scale</summary>
#
# $2^{e - 133}$ is a normal fp32 number from $e = 7$ on: exponent field $e - 6$, so the bits are `(e - 6) << 23`. For
# $e \le 6$ it is subnormal: a single bit in the fraction. $2^{-133}$ is `1 << 16`, and each step of $e$ moves the bit
# up by one. Or multiply with two normal factors, one after the other.
# </details>
# <details><summary>Hint 3: what is still wrong</summary>
#
# Only $m = -128$: some `abs` or a mask of seven bits. Only $e = 255$: a `tl.where` with the bits of a NaN, 0x7FC00000.
# Wrong from the second row on where the last group is short: a row has `ceil(C / group)` exponents.
# </details>

# %% [markdown]
# ### What does the trick cost?
# Its point was to avoid a multiplication. The compiler tells whether that pays. Two kernels, written the two ways, for
# whole groups only: the packing as in the report, with its three corners wrong, and a product in fp32 with your
# `_scale_of`, $m \cdot 2^{e - 133}$, exact for all pairs, because seven bits times a power of two need no rounding.
# Predict: how many machine instructions does a thread need for 8 elements, packed and multiplied?

# %%
predicted_instructions = {"packing": None, "product": None}  # replace None
### BEGIN PREDICTION
predicted_instructions = {
    "packing": 100,
    "product": 60,
    "why": "packing: abs, mask, shift, sign, two ors, a subtraction, a choice, "
    "and loads; product: convert, multiply, convert back",
}
### END PREDICTION

# %%
from course_lib.compiled import compile_kernel


@triton.jit
def packing_kernel(out_ptr, m_ptr, e_ptr, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    m, e = (
        tl.load(m_ptr + at).to(tl.int16),
        tl.load(e_ptr + group).to(tl.int16)[:, None],
    )
    size, top = tl.abs(m), (m & -32768) | (e << 7)
    number = (top | ((size & 0x3F) << 1)).to(tl.bfloat16, bitcast=True)
    out = tl.where(
        (size & 0x40) == 0, number - top.to(tl.bfloat16, bitcast=True), number
    )
    tl.store(out_ptr + at, out)


@triton.jit
def product_kernel(out_ptr, m_ptr, e_ptr, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    m, e = tl.load(m_ptr + at).to(tl.float32), tl.load(e_ptr + group).to(tl.int32)
    tl.store(out_ptr + at, (m * _scale_of(e)[:, None]).to(tl.bfloat16))


# %%
def instructions(made):
    """Lines of machine code that do something; of PTX where the disassembler is missing."""
    lines = re.findall(
        r"^\s*/\*[0-9a-f]{4}\*/\s+(.*?);", made.sass or made.ptx, re.MULTILINE
    )
    return (
        sum(not line.startswith(("NOP", "BRA")) for line in lines)
        if made.sass
        else made.ptx.count(";")
    )


def compiled(kernel, groups, warps=8):
    """For an H200, groups of 32; groups x 32 / (32 x warps) elements a thread."""
    types = {"out_ptr": "*bf16", "m_ptr": "*i8", "e_ptr": "*u8"}
    return compile_kernel(
        kernel, types, {"GROUP": 32, "GROUPS": groups}, arch=90, num_warps=warps
    )


came = {name: instructions(compiled(kernel, 64)) for name, kernel in
        (("packing", packing_kernel), ("product", product_kernel))}  # fmt: skip
against(predicted_instructions, came)
for elements in (4, 8, 16):
    made = compiled(product_kernel, 8 * elements)
    used = {
        name: made.instructions[name]
        for name in ("ld.global.v4", "st.global.v4", "barrier")
    }
    print(
        f"product, {elements:2} elements a thread: {instructions(made) / elements:.1f} "
        f"instructions an element, {made.shared_bytes} B of shared memory, {used}"
    )

# %% [markdown]
# **The prediction, counted.** Of 8 elements 131 instructions packed and 58 multiplied, for an H200.
#
# The exact product needs fewer instructions than the wrong packing. A multiplication is one instruction; shifting,
# masking and joining are several. And the scale is made once for a group, so its corner cases cost next to nothing. Not
# all instructions take equally long, though: turning an integer into fp32 (`I2F`) goes at 16 lanes a clock and
# multiprocessor, where a multiplication goes at 128, and the product needs it for each element. Section 5 will meet
# that price. On other hardware, or by hand with two numbers in a register, the balance may differ; the lesson is to
# count.
#
# The lines above show one more thing. With 16 elements a thread the widest load (16 mantissas of a byte) and the widest
# store (8 numbers of two bytes) want the elements in different threads: the compiler moves them through shared memory,
# with a barrier. With 8, load and store agree, and nothing moves. Is that better? We expected it, and on the recorded
# H200 it was not: our kernel takes 3 % *longer* with 8 than with 16. The exchange is hidden behind memory; wider
# accesses gain more than it costs. Count, then measure.

# %% [markdown]
# ### Measure
# Conversion alone is bound by bytes: 1.031 read and 2 written, a weight. How near to the copy is it? On a GPU the cell
# times your kernel and the same in plain PyTorch compiled; a CPU shows the recorded run.


# %%
def compiled_numbers(m, e):
    """Right but for e <= 6 and 255, which is what its exp2 makes of them."""
    groups = m.view(*e.shape, -1).float() * torch.exp2(e.float() - 133.0)[..., None]
    return groups.to(torch.bfloat16).view(m.shape)


def conversion_times(N, K):
    """name -> seconds, in a graph."""
    m = torch.randint(-127, 128, (N, K), dtype=torch.int8, device=DEVICE)
    e = torch.randint(100, 140, (N, K // 32), dtype=torch.uint8, device=DEVICE)
    out = torch.empty(N, K, dtype=torch.bfloat16, device=DEVICE)
    fused = torch.compile(compiled_numbers, dynamic=False)
    return {
        "mine": time_graph(lambda: dequantize(m, e, 32, out)),
        "compiled": time_graph(lambda: fused(m, e)),
    }


took = {}
for N, K in ((4096, 4096), (14336, 4096), (8192, 28672)) if GPU else ():
    took |= {f"{N} x {K}, {name}": t for name, t in conversion_times(N, K).items()}
    took[f"{N} x {K}, floor"] = N * K * (GROUP_BYTES + 2) / H200.bytes_per_s
results.beside("lesson07.dequantize", took, unit="us")

# %% [markdown]
# On the H200 the compiled one takes 1.04 times the floor at the largest size and 1.66 at the smallest: 6 to 8 us more
# than the floor at every size. Most of that comes with the sweep of the cache. In the benchmark, where no sweep comes
# between two calls, the smallest size is 2 us above its floor, and it takes 1.14 times its floor. The recorded solution
# takes 2 to 11 % longer than the compiled one. Instructions are not what it lacks time for: there are about 10 for an
# element, and 21 could be issued in the time of its 3.03 bytes. The course's own kernel is as fast as the compiled one
# (0.99 to 1.00 of its time). Three things in it differ: 16 elements a thread, which is worth 3 %; four times as many
# elements a program; and, where groups and blocks are whole, no masks, with reads that the caches give up last.

# %% [markdown]
# ## 5. The product
# A product that reads weights as they are held has half the bytes of bf16. To come near that floor it needs few
# instructions a weight, because at this rate weights arrive fast.

# %%
# of an H200; each issues one instruction for 32 threads a clock
schedulers, clock = 132 * 4, 1.75e9
budget = schedulers * clock * 32 / (H200.bytes_per_s / GROUP_BYTES)
print(
    f"a weight arrives every {1e12 * GROUP_BYTES / H200.bytes_per_s:.2f} "
    "ps of the device"
)
print(f"in that time it can issue {budget:.1f} instructions of one thread")

# %% [markdown]
# That is all there is: loading, converting to fp32, scaling, multiplying and adding, for each weight. So it matters
# where the scale goes. Written as a sum over groups,
#
# $$y_n = \sum_k x_k\, m_{nk}\, 2^{e_{ng(k)} - 133} = \sum_g 2^{e_{ng} - 133} \sum_{k \in g} x_k\, m_{nk},$$
#
# the scale can multiply the *sum of a group* instead of its 32 weights. What it cannot do is multiply the sum of all
# groups: each has its own.
#
# ### Wrong turns
# How wrong is that, and would a test see it? The cell multiplies with one scale for a whole row, for weights whose
# groups are alike and for weights with one large channel in a hundred.

# %%
torch.manual_seed(1)
alike = torch.randn(64, 1024)
uneven = alike * torch.where(torch.rand(1024) < 0.01, 30.0, 1.0)
x = torch.randn(1, 1024).double()
for name, weights in (("all alike", alike), ("some large channels", uneven)):
    m, e = plain_quantize(weights)
    true = x @ plain_numbers(m, e).T
    after = (x @ m.double().T) * torch.exp2(e[:, :1].double() - 133).T
    print(
        f"{name:20} exponents {sorted(set(e.flatten().tolist()))}, relative error "
        f"{relative(after, true):.2f}"
    )

# %% [markdown]
# A test would see it: even alike groups have three different exponents, and the error is half as large as the result.
#
# ### Rows, tensor cores, and enough programs
# Three decisions are left.
#
# - **One row or several.** For one row of $X$ every weight is used once; multiply and add in fp32, without tensor
#   cores. For several rows tensor cores take over: they multiply 16 rows in the time of one, so rows up to 16 are
#   nearly free. The weights become bf16 in registers, exactly, and the accumulator is fp32.
# - **Enough programs.** With 64 rows of weights a program, $N = 4096$ makes 64 programs, for 132 multiprocessors. Cut
#   along $K$ too: each program adds up a part of $K$ (*split K*).
# - **Who adds the parts?** They may be added to `out` by atomics. Then `out` must hold zeros before, each addition is
#   rounded to the type of `out`, and the order of the sum changes from run to run. Or each part goes into memory of its
#   own and a second kernel adds them, in a fixed order. `out` holds NaN when your function is called: what you add to
#   must be yours.

# %% [markdown]
# ## Exercise 7.3 `mx.gemv` (90 min, 8 points, and 4 for speed)
# Write `gemv(x, mantissas, exponents, group, out)`.
#
# - `x`: (M, K), `out`: (M, N), both fp32, or both bf16 on a GPU; M is 1 to 16
# - `mantissas`: (N, K) in int8, `exponents`: (N, ceil(K / group)) in uint8, contiguous: the weights, row by row
# - `group`: a power of two from 16 to 256; the last group of a row may be short
# - rows of x, mantissas and out may lie apart, columns are adjacent, and the offset at which a row starts may pass
#   $2^{31}$, as in exercise 7.1; `out` holds NaN before the call
# - the weights are multiplied as they are held: no memory is made that they would fill at two bytes a number
# - sums in fp32, and products of fp32 keep fp32 (`input_precision="ieee"`); an exponent of 255 makes NaN of the
#   outputs that its row gives
#
# The kernel cells are a proposal: one without tensor cores, one with them, one that adds parts; the scales come from
# `_scale_of` of exercise 7.2. `gemv` decides what is launched, so the last two may stay unwritten: begin with the
# first, a program for some rows of weights and one row of x, until the checks pass. Speed is timed with one row and
# with sixteen, on weights that no cache holds. What counts is the share of the floor, one read of the weights, or of
# the speed of the course's own plain kernels, whichever is kinder to you: full points from 85 % on. About 20 lines, and
# 50 for all.


# %% nbgrader={"grade": false, "grade_id": "mx_gemv_rows", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _gemv_kernel(
    out_ptr, x_ptr, m_ptr, e_ptr,
    N, K, groups,
    stride_out, stride_x, stride_m,
    GROUP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """One row of x with BLOCK_N rows of weights, BLOCK_G groups at a time,
    without tensor cores."""
    ### BEGIN SOLUTION
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row = tl.program_id(1).to(tl.int64)
    mask_n, wide_n = offs_n < N, offs_n.to(tl.int64)
    acc = tl.zeros((BLOCK_N,), tl.float32)
    for first in range(0, groups, BLOCK_G):
        offs_g = first + tl.arange(0, BLOCK_G)
        offs_k = offs_g[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        mask_k = offs_k < K
        x = tl.load(x_ptr + row * stride_x + offs_k, mask=mask_k, other=0.0).to(
            tl.float32
        )
        m_ptrs = m_ptr + wide_n[:, None, None] * stride_m + offs_k[None, :, :]
        m = tl.load(
            m_ptrs, mask=mask_n[:, None, None] & mask_k[None, :, :], other=0
        ).to(tl.float32)
        mask_e = mask_n[:, None] & (offs_g < groups)[None, :]
        e = tl.load(
            e_ptr + wide_n[:, None] * groups + offs_g[None, :], mask=mask_e, other=0
        ).to(tl.int32)
        acc += tl.sum(tl.sum(m * x[None, :, :], axis=2) * _scale_of(e), axis=1)
    tl.store(
        out_ptr + row * stride_out + offs_n,
        acc.to(out_ptr.dtype.element_ty),
        mask=mask_n,
    )
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mx_gemv_tensor_cores", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _gemm_kernel(
    parts_ptr, x_ptr, m_ptr, e_ptr,
    M, N, K, groups, k_a_part,
    stride_x, stride_m,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Up to BLOCK_M rows of x on tensor cores:
    part program_id(1) of K, into parts (parts, M, N), fp32."""
    ### BEGIN SOLUTION
    INNER: tl.constexpr = BLOCK_K if BLOCK_K < GROUP else GROUP
    offs_n, offs_m = (
        tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N),
        tl.arange(0, BLOCK_M),
    )
    part = tl.program_id(1)
    mask_n, mask_m, wide_n = offs_n < N, offs_m < M, offs_n.to(tl.int64)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in range(part * k_a_part, min(K, (part + 1) * k_a_part), BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        offs_g = k // GROUP + tl.arange(0, BLOCK_K // INNER)
        mask_k = offs_k < K
        m_ptrs = m_ptr + wide_n[:, None] * stride_m + offs_k[None, :]
        m = tl.load(m_ptrs, mask=mask_n[:, None] & mask_k[None, :], other=0)
        mask_e = mask_n[:, None] & (offs_g < groups)[None, :]
        e = tl.load(
            e_ptr + wide_n[:, None] * groups + offs_g[None, :], mask=mask_e, other=0
        ).to(tl.int32)
        x_ptrs = x_ptr + offs_m.to(tl.int64)[None, :] * stride_x + offs_k[:, None]
        x = tl.load(x_ptrs, mask=mask_m[None, :] & mask_k[:, None], other=0.0)
        w = (
            tl.reshape(m, (BLOCK_N, BLOCK_K // INNER, INNER)).to(tl.float32)
            * _scale_of(e)[:, :, None]
        )
        acc = tl.dot(
            tl.reshape(w, (BLOCK_N, BLOCK_K)).to(x.dtype), x, acc,
            input_precision="ieee",
        )  # fmt: skip
    at = (part.to(tl.int64) * M + offs_m[None, :]) * N + offs_n[:, None]
    tl.store(parts_ptr + at, acc, mask=mask_n[:, None] & mask_m[None, :])
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mx_gemv_sum", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _sum_kernel(
    out_ptr, parts_ptr, M, N, stride_out, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    """out = the sum of parts (parts, M, N), in their order."""
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    offs_n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        acc += tl.load(
            parts_ptr + (tl.cast(part, tl.int64) * M + row) * N + offs_n,
            mask=offs_n < N,
            other=0.0,
        )
    tl.store(
        out_ptr + row * stride_out + offs_n,
        acc.to(out_ptr.dtype.element_ty),
        mask=offs_n < N,
    )
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mx_gemv", "locked": false, "schema_version": 3, "solution": true, "task": false}
def gemv(x, mantissas, exponents, group, out):
    """Fill out."""
    ### BEGIN SOLUTION
    (M, K), N, groups = x.shape, mantissas.shape[0], exponents.shape[1]
    if M == 1:
        block_n, block_k = (4, 4096) if x.is_cuda else (16, 128)
        block_k = max(group, min(block_k, triton.next_power_of_2(K)))
        _gemv_kernel[(triton.cdiv(N, block_n), M)](
            out, x, mantissas, exponents,
            N, K, groups,
            out.stride(0), x.stride(0), mantissas.stride(0),
            GROUP=group, BLOCK_N=block_n, BLOCK_G=block_k // group,
        )  # fmt: skip
        return
    block_n, block_k, stages = (64, 128, 4) if x.is_cuda else (16, 64, 1)
    # 4 programs a multiprocessor
    split = max(1, min(8, 528 * block_n // N, K // (4 * block_k))) if x.is_cuda else 2
    a_part = triton.cdiv(triton.cdiv(K, block_k), split) * block_k
    split = triton.cdiv(K, a_part)
    parts = torch.empty(split, M, N, dtype=torch.float32, device=x.device)
    _gemm_kernel[(triton.cdiv(N, block_n), split)](
        parts, x, mantissas, exponents,
        M, N, K, groups, a_part,
        x.stride(0), mantissas.stride(0),
        GROUP=group, BLOCK_M=16, BLOCK_N=block_n, BLOCK_K=block_k, num_stages=stages,
    )  # fmt: skip
    block = 1024 if x.is_cuda else 64
    _sum_kernel[(M, triton.cdiv(N, block))](
        out, parts, M, N, out.stride(0), PARTS=split, BLOCK=block
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mx_gemv_check", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false}
check("mx.gemv", gemv)

# %% nbgrader={"grade": true, "grade_id": "mx_gemv_speed", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check_speed("mx.gemv", gemv)

# %% [markdown]
# <details><summary>Hint 1: a first version</summary>
#
# Grid (blocks of N, M). In the loop over K, with `BLOCK_K = BLOCK_G * GROUP`: a row of x (`BLOCK_K`), a tile of
# mantissas (`BLOCK_N`, `BLOCK_K`), and the exponent of each element, `e_ptr + n * groups + offs_k // GROUP`. Multiply,
# `tl.sum(..., axis=1)`, add to an accumulator of `BLOCK_N`. Mask all loads along K, those of x too: zero times NaN is
# NaN. That is enough for the checks.
# </details>
# <details><summary>Hint 2: the scale after the sum of a group</summary>
#
# Load the mantissas as a block of three dimensions, (rows, groups, elements): `offs_k` is (groups, elements), as in
# `quantize`. `tl.sum(m * x[None], axis=2)` is (rows, groups); times the scales, then `tl.sum(..., axis=1)`.
# </details>
# <details><summary>Hint 3: one row, fast</summary>
#
# Bytes in flight: a program that asks for whole rows of weights at once, 4 of them with 4096 elements, waits once and
# not in every turn of a loop. Leave `num_warps` at 4 and let many programs share a multiprocessor.
# </details>
# <details><summary>Hint 4: sixteen rows</summary>
#
# `tl.dot` takes any powers of two for rows and columns, and sums over 16 or more. On Hopper 64 rows of bf16 at the left
# and 16 columns at the right become its own instruction, `wgmma`. So give it the weights as the left operand,
# (`BLOCK_N`, `BLOCK_K`) with `BLOCK_N = 64`, and x as the right one, (`BLOCK_K`, 16), rows past M masked. Cut K so that
# there are about four programs a multiprocessor, write fp32 parts (parts, M, N), and add them in a second kernel.
# </details>

# %% [markdown]
# ### Measure
# Where does it win? The three ways of section 1, on a GPU: bf16 weights with the vendor's product, your `gemv` (16 rows
# at a time), and your `dequantize` followed by the vendor's product. Predict first: with your kernels, how many times
# as long as bf16 do the two ways take with 1 row, and with 1024?

# %%
predicted_time = {  # replace None
    "1 row, gemv": None,
    "1 row, bf16 first": None,
    "1024 rows, bf16 first": None,
}
### BEGIN PREDICTION
predicted_time = {
    "1 row, gemv": 0.6,
    "1 row, bf16 first": 2.5,
    "1024 rows, bf16 first": 1.25,
    "why": "the floors of section 1; conversion takes instructions, so gemv will miss "
    "its own a little",
}
### END PREDICTION


def product_times(rows, N=14336, K=4096):
    """name -> seconds in a graph, for weights of one layer."""
    x, w = (
        torch.randn(rows, K, device=DEVICE, dtype=HALF),
        torch.randn(N, K, device=DEVICE, dtype=HALF),
    )
    m, e = (
        torch.empty(N, K, dtype=torch.int8, device=DEVICE),
        torch.empty(N, K // 32, dtype=torch.uint8, device=DEVICE),
    )
    quantize(w, 32, m, e)
    out, whole = torch.empty(rows, N, device=DEVICE, dtype=HALF), torch.empty_like(w)

    def whole_first():
        dequantize(m, e, 32, whole)
        torch.mm(x, whole.T, out=out)

    def in_pieces():
        for some, into in zip(x.split(16), out.split(16)):
            gemv(some, m, e, 32, into)

    took = {
        "bf16": time_graph(lambda: torch.mm(x, w.T, out=out)),
        "bf16 first": time_graph(whole_first),
    }
    return took | ({"gemv": time_graph(in_pieces)} if rows <= 64 else {})


# %%
batches = (
    {rows: product_times(rows) for rows in (1, 4, 16, 32, 48, 64, 256, 1024, 4096)}
    if GPU
    else {}
)
for rows, took in batches.items():
    print(
        f"{rows:5} rows: "
        + ", ".join(f"{name} {t.us:.1f} us" for name, t in took.items())
    )
named = {
    f"{rows} row{'s' * (rows > 1)}, {way}": t
    for rows, took in batches.items()
    for way, t in took.items()
}
record = results.load("lesson07.products")
there = {row["name"]: row["value"] for row in record["rows"]} if record else {}
# without a GPU the recorded ones
times = {name: t.us for name, t in named.items()} or there
if times:
    ratios = {
        name: took / times[f"{name.split(',')[0]}, bf16"]
        for name, took in times.items()
    }
    against(predicted_time, ratios)
results.beside("lesson07.products", named, unit="us")

# %% [markdown]
# ### Predicted and measured
# **The prediction, counted.** The floors of section 1 promise 0.52, 2.52 and 1.23; on the H200 0.70, 2.61 and 1.25
# came. All of it, with the recorded solutions of exercises 7.2 and 7.3, in units of bf16's time:
#
# | | floor | came |
# |---|---|---|
# | held, 1 row | 0.52 | 0.70 |
# | held, 4 and 16 rows | 0.52 | 1.14 and 1.14 |
# | bf16 first, 1 row | 2.52 | 2.61 |
# | bf16 first, 256 rows | 1.92 | 2.13 |
# | bf16 first, 1024 rows | 1.23 | 1.25 |
# | bf16 first, 4096 rows | 1.06 | 1.01 |
#
# **One row.** The bytes of the weights are 14 us, and `gemv` takes 22; bf16 has a floor of 28 and takes 32. Where each
# call has weights of its own and no sweep of the cache comes between, the course's plain kernel, made like this one,
# takes 21 us and bf16 30 to 31. The timer sweeps by *reading*, and that matters: zeros that a sweep writes stay in the
# cache and are written back while the next kernel reads, so a kernel that only reads pays for somebody else's writes
# (`benchmarks/notes/mx.md` has a run that tells them apart). The other 7 us of these 21 are the kernel's instructions.
# The compiler (Triton 3.6, which was recorded) makes 6.8 a weight, of the 7.1 that are free, so nothing is left over
# for waiting; and one of them is dearer than the rest: an integer becomes fp32 at 16 lanes a clock and multiprocessor,
# so 58.7 million weights take 16 us for that alone, as long as their bytes.
#
# **4 and 16 rows** cost the same, as was promised for tensor cores, and lose. A weight goes from memory to shared
# memory, to registers, to fp32, times its scale, to bf16, to shared memory again and into the product, with a barrier
# on either side, and nobody multiplies meanwhile: half the bytes, and more than the time of all of them. So with
# these kernels "no gain from 256 rows" is "no gain from 4".
#
# **bf16 first** came within 11 % of the count. With one row the conversion adds 52 us, of 42 at its floor; with 4096
# rows the ratio is *below* that of the floors, and only 10 us are added to the product.
#
# **Below the floor.** With 1024 rows cuBLAS takes 159 us where the floor is 181, with 4096 rows 707 where it is 724.
# The floor's rate of products was sustained at the limit of power (lesson 01, section 7). Here the timer sweeps the
# cache between two calls; a sweep draws less power, and the clock is higher. A measured ceiling belongs to the state
# in which it was measured.
#
# The course measures its own kernels turn by turn with cuBLAS, each call on weights of its own. So compare ratios with
# the table above, and not microseconds. Its routes are those of the exercise: no tensor cores, tensor cores, and
# conversion first, with the crossovers measured on the device. On an H200 three kernels stand one floor below Triton,
# in **Gluon**. Up to 16 rows `gemv_warps.py` and `gemm_registers.py` bring weights from memory straight to the
# registers that multiply, and putting bits together takes the place of converting integers; up to 8 rows the plain
# forms take 1.2 to 1.9 times as long. From 17 to 256 rows it is `gemm_fetched.py`, where one warp fetches weights and
# activations for two groups of warps that convert and multiply (at 32 rows and 4096 x 4096 still `gemm_registers.py`).
# From 257 rows on the weights are converted first. The figure sets the ratios on the floors of section 1.

# %%
shown = [row for row in recorded("mx") if row["name"].startswith("product")]
for row in shown:
    print(
        f"{row['name']:32} {row['value']:7.1f} us, {row['ratio']:.2f} of bf16 cuBLAS, "
        f"floor {row['floor us']:.1f} us"
    )
wide = {
    int(row["name"].split()[1]): row["ratio"]
    for row in shown
    if row["name"].endswith("14336 x 4096")
}
if wide:
    rows = sorted(wide)
    curves = {
        "measured": [wide[r] for r in rows],
        "floors": [floors(r)["held"] / floors(r)["bf16"] for r in rows],
    }
    axes = plots.sweep(
        rows, curves, xlabel="rows of activations", ylabel="time over bf16 weights",
        unit="", title="Weight-only wins with few rows and loses with hundreds",
        device="recorded H200",
    )  # fmt: skip
    axes.axhline(1, color="black", linewidth=0.8)
    axes.yaxis.set_major_formatter("{x:g}")
    plots.show(
        axes,
        alt="Time with MXINT8 weights over that with bf16 weights against rows, "
        "measured and at the floors: below 1 for few rows, above 1 from 128 on, "
        "most at 256, and near 1 for thousands",
    )

# %% [markdown]
# These kernels have most of what the floors promised up to 16 rows: 0.59 to 0.68 of bf16's time, for 0.52. With 14336 x
# 4096 weights they win up to 64 rows, 0.75 at 32 and 0.82 at 64, where the floors still promise 0.53. From 128 rows on
# they lose, in turn, at every size that was measured: 1.14 at 128, 1.39 at 256, 1.27 at 1024 and 1.03 at 8192. With
# 4096 x 4096 a quarter of the time is saved at 32 rows, nothing at 64 (1.04), and 256 rows take 1.33. These ratios are
# in turn. Each alone for a second, those of 14336 x 4096 are 1.12 at 256, 1.19 at 1024, 1.02 at 4096 and 1.00 at 8192.
# On an H100, which reads weights more slowly, 128 rows win too: 0.77.
#
# Why does the gain end? `gemm_registers.py` reads the activations again for every 32 rows of weights, so it takes
# longer with each row: in a sweep 0.99 of bf16's time at 32 rows and 1.15 at 64. `gemm_fetched.py` reads them once for
# 128 rows of weights, and its gain lasts four times as long. But it converts every weight, which bf16 weights need not,
# and by the times conversion and products seem to come one after the other and not at once (an account that fits, and
# no profile: `benchmarks/notes/mx.md`). At 128 rows that costs more than the bytes save. Beyond 256 rows the weights
# are converted first, and a thousand rows are too few to pay for that. So the worst case lies between some hundred rows
# and a thousand: in turn 256 rows, alone 1024.
#
# Who serves such batches with kernels like these keeps bf16 weights, or takes a format that the tensor cores multiply
# without any conversion: FP8 on Hopper, and on Blackwell block formats such as MXFP8 and NVFP4, whose scales the tensor
# cores apply themselves (`tl.dot_scaled` in Triton).

# %% [markdown]
# ## 6. A model's layers, swapped
# The table of section 5 has two routes, and neither is right for all rows. A layer should look at its input and take
# the faster one. Where do they cross?
#
# ### Count the crossover
# `gemv` takes up to 16 rows at once. More rows can be given to it in pieces of 16, and each piece reads all of the
# held weights again. The other route pays for the conversion once, whatever the rows. So pieces win as long as all of
# them together take less time than one conversion and one product. The cell takes the times of one piece and of the
# other route from the table of section 5, says how many pieces fit, and where rows in between were measured, whether it
# was so.

# %%
if times:
    pieces = int(times["64 rows, bf16 first"] / times["16 rows, gemv"])
    print(
        f"one piece of 16 rows {times['16 rows, gemv']:.1f} us, bf16 first with 64 "
        f"rows {times['64 rows, bf16 first']:.1f} us: {pieces} pieces fit, "
        f"so up to {16 * pieces} rows"
    )
    both = [
        r
        for r in range(1, 65)
        if {f"{r} rows, gemv", f"{r} rows, bf16 first"} <= times.keys()
    ]
    for r in both:
        held, first = (times[f"{r} rows, {way}"] for way in ("gemv", "bf16 first"))
        print(f"{r:3} rows: gemv in pieces {held:6.1f} us, bf16 first {first:6.1f} us: "
              f"{'gemv' if held < first else 'bf16 first'} is faster")  # fmt: skip

# %% [markdown]
# (The course's own kernels multiply more rows at once. The plain product crosses at 96 or 128 rows on an H200, by the
# shape of the weight; the table `ROUTES` in `course_lib/kernels/mx/tuning.py` says which, and `python -m
# benchmarks.mx_routes` measures it. `gemm_fetched.py` is ahead of bf16 first up to 256 rows, the most that it takes.)
#
# ## Exercise 7.4 `mx.linear` (50 min, 5 points)
# Write `swap_linears(model, skip)`: it puts a layer of your own in the place of every `nn.Linear` of a model, and
# returns their names.
#
# - the layer looks at the *rows* of its input: the product of all dimensions but the last. **Up to 16 rows** a kernel
#   of yours multiplies with the weight as it is held, and no memory is made that the weight would fill at two bytes a
#   number. **From 128 rows on** the weight is made whole, once in the call, and one product of the library takes it.
#   Between the two the choice is yours: take the crossover that you measured. The check looks at what ran
# - the new layer holds the weight as int8 mantissas and uint8 exponents in groups of 32 along the inputs, and the old
#   layer's `bias` parameter itself. It holds nothing else: $1 + 1/32$ bytes a weight
# - inputs may have any number of leading dimensions, and have the type of the model's parameters, fp32 or bf16; so has
#   the result (few rows come in bf16 on a GPU only: the interpreter multiplies no bf16)
# - the state of one swapped model can be loaded into another: register mantissas and exponents as buffers
#   (`register_buffer`)
# - these stay as they are: a layer whose name is in the list `skip`, or lies below a name in it ("blocks.0" is for
#   "blocks.0.up" too); a layer of a *subclass* of `nn.Linear`; a layer whose weight belongs to a module of another kind
#   too, such as an embedding
# - a layer that is used in two places becomes *one* new layer, in both; its name, for `skip` too, is the first
# - returned: the names as `model.named_modules()` has them, each once, in any order
#
# Models in the check are small, on this machine's device. Your `quantize`, `gemv` and `dequantize` may do the work; who
# has not got them may call `plain_quantize` and `plain_numbers`, and needs a kernel for few rows all the same, such as
# the one of hint 1 of exercise 7.3. `model.get_submodule(name)` and `model.set_submodule(name, layer)` read and replace
# by name, and
# `model.named_modules(remove_duplicate=False)` shows every place. About 40 lines.


# %% nbgrader={"grade": false, "grade_id": "mx_linear_layer", "locked": false, "schema_version": 3, "solution": true, "task": false}
# up to so many rows the weight is multiplied as it is held: the crossover that was
# counted
AS_HELD = 32


class MXLinear(nn.Module):
    """A linear layer whose weight is held as MXINT8."""

    def __init__(self, layer):
        """layer: the nn.Linear whose place it takes."""
        super().__init__()
        ### BEGIN SOLUTION
        weight = layer.weight.detach().contiguous()
        rows, columns = weight.shape
        self.register_buffer("mantissas", torch.empty_like(weight, dtype=torch.int8))
        self.register_buffer(
            "exponents",
            weight.new_empty(rows, triton.cdiv(columns, 32), dtype=torch.uint8),
        )
        quantize(weight, 32, self.mantissas, self.exponents)
        self.bias = layer.bias
        ### END SOLUTION

    def forward(self, x):
        ### BEGIN SOLUTION
        given = x.reshape(-1, x.shape[-1])
        if len(given) > AS_HELD:
            weight = torch.empty(
                self.mantissas.shape, dtype=torch.bfloat16, device=x.device
            )
            dequantize(self.mantissas, self.exponents, 32, weight)
            return F.linear(x, weight.to(x.dtype), self.bias)
        y = torch.empty(len(given), len(self.mantissas), dtype=x.dtype, device=x.device)
        for some, into in zip(given.split(16), y.split(16)):
            gemv(some, self.mantissas, self.exponents, 32, into)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], len(self.mantissas))
        ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mx_linear", "locked": false, "schema_version": 3, "solution": true, "task": false}
def swap_linears(model, skip):
    """Swap the linear layers of `model` in place; their names."""
    ### BEGIN SOLUTION
    shared = {id(weight) for module in model.modules() if type(module) is not nn.Linear
              for weight in module.parameters(recurse=False)}  # fmt: skip
    swapped = []
    for name, layer in model.named_modules():
        skipped = any(name == one or name.startswith(f"{one}.") for one in skip)
        if type(layer) is nn.Linear and id(layer.weight) not in shared and not skipped:
            swapped.append(name)
    new = {
        model.get_submodule(name): MXLinear(model.get_submodule(name))
        for name in swapped
    }
    for name, layer in list(model.named_modules(remove_duplicate=False)):
        if layer in new:
            model.set_submodule(name, new[layer])
    return swapped
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mx_linear_check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check("mx.linear", swap_linears)

# %% [markdown]
# <details><summary>Hint 1: the layer</summary>
#
# `register_buffer("mantissas", ...)`, `register_buffer("exponents", ...)`, `self.bias = layer.bias`. Do not keep
# `layer` or its weight. Write `forward` for many rows first: make the weight anew in each call, convert it to
# `x.dtype`, and let `F.linear` take care of leading dimensions. Then add the other route.
# </details>
# <details><summary>Hint 2: few rows</summary>
#
# `given = x.reshape(-1, x.shape[-1])` folds the leading dimensions, and `len(given)` is the number of rows:
# `x.shape[0]` is not. `gemv` fills an `out` that you make, (rows, outputs) in `x.dtype`, and adds no bias. `given` and
# `out` can be cut alike by `.split(16)`, which makes views. At the end `.view(*x.shape[:-1], outputs)`.
# </details>
# <details><summary>Hint 3: which layers</summary>
#
# Collect first, replace then: a dictionary that changes while you walk over it raises an error. `type(m) is nn.Linear`
# leaves subclasses out. For shared weights: the parameters of all modules that are no nn.Linear,
# `parameters(recurse=False)`, compared by `id`.
# </details>
# <details><summary>Hint 4: two places</summary>
#
# A dictionary from the old layer to the new one. `named_modules(remove_duplicate=False)` gives every name of a layer.
# </details>

# %% [markdown]
# ### Measure
# Now a language model that has learnt something from real text: the docstrings of Python's standard library, which lie
# on every machine that runs this notebook. The model reads characters. It is small, two layers of width 64. It takes
# 3000 steps on a GPU and 800 on a CPU, which is less than a minute on either. A tenth of the text is kept back: errors
# are measured on text that the model has never seen.

# %%
import ast
from pathlib import Path

TOKENS, LENGTH = 128, 64


def docstrings(files=80):
    """The docstrings of the first modules of the standard library, in the order of their names."""
    told = []
    for file in sorted(Path(ast.__file__).parent.glob("*.py"))[:files]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        told += [
            ast.get_docstring(node)
            for node in ast.walk(tree)
            if isinstance(node, documented)
        ]
    return "\n\n".join(filter(None, told))


corpus = docstrings()
letters = torch.tensor(list(corpus.encode("ascii", "replace")), device=DEVICE)
learnt, kept = letters[: -(len(letters) // 10)], letters[-(len(letters) // 10) :]
print(f"{len(letters):,} characters, of which {len(kept):,} are kept back; they begin:")
print(corpus[:300])

# %%
from course_lib.models.transformer import Sizes, Transformer

torch.manual_seed(0)
model = Transformer(
    Sizes(vocabulary=TOKENS, context=LENGTH, width=64, heads=4, layers=2)
).to(DEVICE)
optimizer, steps = torch.optim.Adam(model.parameters()), 3000 if GPU else 800
for step in range(steps):
    # up, then down to nothing
    optimizer.param_groups[0]["lr"] = (
        4e-3 * min(1, step / 50) * (1 - step / steps) + 1e-5
    )
    at = torch.randint(len(learnt) - LENGTH, (16, 1)).to(DEVICE) + torch.arange(
        LENGTH + 1, device=DEVICE
    )
    loss = model.loss(learnt[at])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
# what errors are measured on
lines = kept[: len(kept) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)[:400]
with torch.no_grad():
    loss_before = model.loss(lines).item()
print(
    f"loss {loss_before:.3f} nats a character of unseen text, of an even choice "
    f"{math.log(TOKENS):.3f}"
)
print(
    f"perplexity {math.exp(loss_before):.2f}: as uncertain as an even choice among so "
    "many characters"
)

# %% [markdown]
# The loss is a natural logarithm, whose unit is the *nat*. **Perplexity** is $e$ to the loss. It is the usual number
# for what a format costs a language model, because it asks what the model is for: how likely is the text that really
# comes next?
#
# ### Predict
# How far do the logits move? The errors of the weights of a layer are independent, so in each output they add up in
# squares. If the products added up in the same way, the relative error of the outputs would be that of the weights.
# Most layers stand inside a residual block: what they give is added to a sum that was not rounded. And the errors of
# different layers are independent again. Predict for this model: the relative error of the logits when one layer is
# swapped, in the mean; when all nine are; and the change of the loss in nats.

# %%
predicted_logits = {  # replace None
    "one layer": None,
    "all layers": None,
    "change of the loss": None,
}
### BEGIN PREDICTION
predicted_logits = {
    "one layer": 0.003,
    "all layers": 0.008,
    "change of the loss": 0.0,
    "why": "0.8 % a layer, of which a sum that was not rounded hides half; "
    "nine layers in squares: three times one; and the loss is near its smallest value, "
    "where first-order changes vanish",
}
### END PREDICTION

# %%
given = lines[:16]
with torch.no_grad():
    before, loss_given = model(given[:, :-1]), model.loss(given).item()


def swapped_error(skip=()):
    """Relative error of the logits, and the model, with all layers swapped but those in `skip`."""
    other = copy.deepcopy(model)
    names = swap_linears(other, list(skip))
    with torch.no_grad():
        return relative(other(given[:, :-1]), before), other, names


every, other, names = swapped_error()
alone = {name: swapped_error([n for n in names if n != name])[0] for name in names}
weights = {name: model.get_submodule(name).weight.detach() for name in names}
for name, error in alone.items():
    off = relative(plain_numbers(*plain_quantize(weights[name])), weights[name])
    print(
        f"{name:24} weights off by {off:.2%}; swapped alone, logits off by {error:.2%}"
    )

# %%
together = math.sqrt(sum(error**2 for error in alone.values()))
with torch.no_grad():
    change = other.loss(given).item() - loss_given
    agree = (
        (other(given[:, :-1]).argmax(-1) == before.argmax(-1)).double().mean().item()
    )
print(
    f"root of the sum of squares {together:.2%}; all swapped {every:.2%}; "
    f"likeliest token the same: {agree:.1%}"
)
one = sum(alone.values()) / len(alone)
against(
    predicted_logits,
    {"one layer": one, "all layers": every, "change of the loss": change},
)

# %% [markdown]
# **The prediction, counted.** The cell has the three numbers. The error of all layers together is near the root of the
# sum of squares of the layers alone, and one layer alone gives less than its weights are off.
#
# The weights are off by a little less than normal numbers in groups of 32 (section 3). Why do logits move less? The
# products of a trained layer often have the same sign and add up; errors have random signs and partly cancel. And the
# layers inside a block add to a sum that was not rounded. The head is the exception: nothing is added to what it
# gives, so for it only the first reason holds. Errors of different layers add up in squares, and the loss hardly
# moves: an error of the logits as small as this makes some characters likelier and others less likely, and on the
# average of many characters that nearly cancels too.
#
# What did it buy? Count the bytes of both models, the first one as if it were held in bf16.


# %%
def megabytes(model, size=None):
    """Of parameters and buffers; `size`: bytes of a parameter."""
    held = [p.numel() * (size or p.element_size()) for p in model.parameters()]
    return (sum(held) + sum(b.nbytes for b in model.buffers())) / 2**20


linear_weights = sum(model.get_submodule(name).weight.numel() for name in names)
saved = {
    "fp32": megabytes(model),
    "bf16": megabytes(model, 2),
    "linears as MXINT8, rest bf16": megabytes(other, 2),
}
print(
    f"{linear_weights / sum(p.numel() for p in model.parameters()):.0%} of the weights "
    "are in linear layers"
)
results.beside("lesson07.model_bytes", saved, unit="MiB")

# %% [markdown]
# ### Outliers
# Why groups, and not one scale for a whole row or matrix? Trained language models have a few channels of activations
# that are many times as large as others (Tim Dettmers and others describe them). Where such a channel is scaled down
# before a layer, as SmoothQuant does on purpose, the weights that read it are scaled up. The cell does that to our
# model without changing what it computes: in both places one input channel of `up` is divided by $s$ in the norm, and
# multiplied by $s$ in the weights. Then it rounds the weights of `up` in four ways. Predict which of them suffer, and
# how much.

# %%
predicted_outlier = {  # replace None: of the four, and of the logits at s = 64
    "worst": None,
    "its error": None,
}
### BEGIN PREDICTION
predicted_outlier = {
    "worst": "int8, one scale",
    "its error": 0.1,
    "why": "64 times the step for all weights: 0.5 % of rounding becomes 30 %, "
    "of which a third arrives",
}
### END PREDICTION


def rounded(weight, how):
    """The weight after 8 bits, in one of four ways."""
    if how.startswith("MXINT8"):
        group = int(how.split()[-1])
        return plain_numbers(*plain_quantize(weight, group), group).float()
    scale = (
        weight.abs().amax()
        if how == "int8, one scale"
        else weight.abs().amax(1, keepdim=True)
    ) / 127
    return (weight / scale).round() * scale


@torch.no_grad()
def error_with_outlier(s, how, channel=5):
    other = copy.deepcopy(model)
    for block in other.blocks:
        block.before_mlp.weight[channel] /= s
        block.up.weight[:, channel] *= s
        block.up.weight.copy_(rounded(block.up.weight, how))
    return relative(other(given[:, :-1]), before)


# %%
sizes = [1, 2, 4, 8, 16, 32, 64, 128]
ways = (
    "int8, one scale", "int8, a scale a row",
    "MXINT8, groups of 64", "MXINT8, groups of 16",
)  # fmt: skip
curves = {how: [error_with_outlier(s, how) for s in sizes] for how in ways}
axes = plots.sweep(
    sizes, curves, xlabel="size of one channel's weights, over the others'",
    unit="", ylabel="error of the logits", yscale="log",
    title="An outlier costs those who share its scale", device="any machine",
)  # fmt: skip
axes.yaxis.set_major_formatter("{x:.1%}")
plots.show(
    axes,
    alt="Relative error of the logits against the size of one channel of weights: "
    "all four rise with it, one scale for the matrix highest, groups of 16 lowest "
    "from some size on",
)
at_64 = {how: values[sizes.index(64)] for how, values in curves.items()}
print("at s = 64: " + ", ".join(f"{how} {error:.2%}" for how, error in at_64.items()))
against(
    predicted_outlier,
    {"worst": max(at_64, key=at_64.get), "its error": max(at_64.values())},
)

# %% [markdown]
# **The prediction, counted.** One scale for the whole matrix is the worst; the line above has its error at $s = 64$.
# All four have 8 bits a weight. What grows is the step, for every weight that shares a
# scale with the outlier: the whole matrix, a row of 64, or 16 weights of it. Groups of 16 have about half the error of
# groups of 64, because a quarter of the weights are hit, and errors add up in squares: the root of a quarter. That is
# the trade of a block format: shorter groups confine an outlier, and cost more bytes of exponents.
#
# A group of 64 is a row here, and still a scale a row is better: it makes the largest 127, where a power of two makes
# it 64 to 127, which costs up to one bit of the mantissa. What the power of two buys is an exact conversion to bf16.

# %% [markdown]
# ## 7. Other formats, and what perplexity says of them
# MXINT8 is one of a family. All of them answer three questions: what is an element, how many elements share a scale,
# and what is a scale?
#
# - **FP8** is a floating-point number in a byte (Paulius Micikevicius and others). **E4M3** has 4 bits of exponent and
#   3 of fraction and ends at 448; **E5M2** has 5 and 2 and ends at 57344. E4M3 is for weights and activations, E5M2 for
#   gradients, which are spread over more powers of two. Usually one scale in fp32 serves a whole tensor or a row.
#   Tensor cores multiply FP8 from Ada and Hopper on, at twice the rate of bf16.
# - **MXFP8, MXFP6 and MXFP4** are the other formats of the OCP standard: elements in 8, 6 or 4 bits, and 32 of them share
#   a power of two in 8 bits (**E8M0**), as here. The element of MXFP4 is **E2M1**, which knows eight sizes: 0, 0.5, 1,
#   1.5, 2, 3, 4 and 6.
# - **NVFP4** is NVIDIA's: E2M1 again, but only 16 elements share a scale, and the scale is an E4M3 number with a
#   fraction. It can put the largest of a group near 6 (not at exactly 6, because the scale itself is rounded to three
#   bits of fraction), where a power of two leaves it between 4 and 8 (and what is above 6 is cut off). One more scale
#   in fp32, for the whole tensor, keeps the scales of the groups in the range of E4M3.
# - **Integers with a scale a row** (int8) or a group (int4, usually 32 to 128 weights, a scale in fp16) have a step that
#   is the same for all sizes.
#
# ### Predict
# Elements E2M1 have one bit of fraction. Which of the two 4-bit formats has the smaller error on normal numbers, and
# by which factor? And by how much will the perplexity of our model rise with the best format of 8 bits, and with the
# worst of 4?

# %%
predicted_formats = {  # replace None; 0.01: by 1 %
    "MXFP4 / NVFP4": None,
    "best 8 bits": None,
    "worst 4 bits": None,
}
### BEGIN PREDICTION
predicted_formats = {
    "MXFP4 / NVFP4": 1.3,
    "best 8 bits": 0.0,
    "worst 4 bits": 0.03,
    "why": "half the group makes the largest a little smaller, and a power of two "
    "wastes up to a half; errors of the weights of 0.8 % moved the loss by nothing, "
    "ten times as large ones a hundred times",
}
### END PREDICTION

# %% [markdown]
# The formats in exact emulation, in fp64: scale, round to the nearest element, scale back. `round_to` of
# `course_lib.numerics` rounds to any floating-point format, with its subnormal numbers, and with `saturate` what is
# too large becomes the largest.

# %%
from course_lib.numerics import Format, round_to
from course_lib.table import Table

E2M1 = Format("e2m1", fraction_bits=1, min_exponent=0, max_exponent=2)
# of the elements
LARGEST = {"int8": 127, "int4": 7, "e4m3": 448, "e5m2": 57344, "e2m1": E2M1.largest}
SCALES = {"e8m0": 8, "e4m3": 8, "fp16": 16, "of all": 0}  # bits


def nearest(y, element):
    """The nearest elements; what is too large becomes the largest."""
    if element.startswith("int"):
        return y.round().clamp(-LARGEST[element], LARGEST[element])
    return round_to(y, E2M1 if element == "e2m1" else element, saturate=True)


# %%
def held_as(w, element, group, scale):
    """w (rows, columns) after it was held so; group: weights that share a scale."""
    parts = F.pad(w.double(), (0, -w.shape[1] % group)).unflatten(1, (-1, group))
    top, most = parts.abs().amax(2, keepdim=True).clamp(min=2.0**-120), LARGEST[element]
    # the power of two of the largest, over that of the largest element
    if scale == "e8m0":
        step = torch.exp2(top.log2().floor() - math.floor(math.log2(most)))
    elif scale == "e4m3":
        # beside one scale for all, with which the largest scale is 448
        whole = top.amax() / (448 * most)
        step = round_to(top / most / whole, "e4m3").clamp(min=2**-9) * whole
    else:
        step = round_to(top / most, "fp16") if scale == "fp16" else top.amax() / most
    return (nearest(parts / step, element) * step).flatten(1)[:, : w.shape[1]]


# %%
ROW = 1 << 14  # longer than any row here
FORMATS = {
    "int8, a scale a row": ("int8", ROW, "fp16"),
    "MXINT8": ("int8", 32, "e8m0"),
    "FP8 E4M3, one scale": ("e4m3", ROW, "of all"),
    "FP8 E5M2, one scale": ("e5m2", ROW, "of all"),
    "MXFP8 E4M3": ("e4m3", 32, "e8m0"),
    "int4, groups of 32": ("int4", 32, "fp16"),
    "MXFP4": ("e2m1", 32, "e8m0"),
    "NVFP4": ("e2m1", 16, "e4m3"),
}
# one channel in a hundred is large
outliers = normal * torch.where(torch.arange(1024) % 100 == 50, 30.0, 1.0)


def errors_of(element, group, scale):
    """Bits a weight; worst error of the largest of 32;
    errors of normal numbers, and of those beside large channels."""
    got, beside = (
        held_as(normal, element, group, scale),
        held_as(outliers, element, group, scale),
    )
    sizes, off = (t.abs().unflatten(1, (-1, 32)) for t in (normal, got - normal))
    at, small = sizes.argmax(2, keepdim=True), torch.arange(1024) % 100 != 50
    worst = (off.gather(2, at) / sizes.gather(2, at)).max().item()
    bits = (4 if element in ("int4", "e2m1") else 8) + SCALES[scale] / group
    return (
        bits, worst, relative(got, normal),
        relative(beside[:, small], outliers[:, small]),
    )  # fmt: skip


errors_by = {name: errors_of(*how) for name, how in FORMATS.items()}

# %% [markdown]
# And the perplexity. Differences are small, so they are taken line by line: both models read the same text, and what
# varies from line to line cancels. *Worst of a largest* looks at the largest number of each 32: how far it is off at
# worst, as a share of itself. The last column is the standard error of the mean change over the lines. A change of
# less than twice that is none that this text can show. (*Bits a weight* counts a row of 16,384 weights for a scale a
# row. Most rows of our model have 64 weights: there a scale of 16 bits makes it 8.25, as much as MXINT8.)


# %%
@torch.no_grad()
def line_losses(rounded=None):
    """The loss of each line in nats a character, with the linear layers' weights rounded."""
    other = copy.deepcopy(model)
    for module in other.modules():
        if rounded and type(module) is nn.Linear:
            module.weight.copy_(rounded(module.weight))
    losses = F.cross_entropy(
        other(lines[:, :-1]).flatten(0, 1), lines[:, 1:].flatten(), reduction="none"
    )
    return losses.double().view(len(lines), -1).mean(1)


exactly = line_losses()
changes = {
    name: line_losses(lambda w, how=how: held_as(w, *how)) - exactly
    for name, how in FORMATS.items()
}
changes["bf16"] = line_losses(lambda w: w.bfloat16()) - exactly
errors_by["bf16"] = (
    16.0, 2.0**-8, relative(normal.bfloat16(), normal),
    relative(outliers.bfloat16(), outliers),
)  # fmt: skip
rises = {name: math.expm1(change.mean().item()) for name, change in changes.items()}
heads = (
    "format", "bits a weight", "worst of a largest",
    "normal", "beside outliers", "perplexity", "+-",
)  # fmt: skip
Table(
    heads,
    [
        (
            name, f"{bits:.4g}", f"{worst:.1%}", f"{even:.2%}", f"{beside:.2%}",
            f"{rises[name]:+.3%}",
            f"{(changes[name].std() / len(lines) ** 0.5).item():.3%}",
        )
        for name, (bits, worst, even, beside) in sorted(
            errors_by.items(), key=lambda item: -item[1][0]
        )
    ],
    caption="What a format costs: errors of weights, and the change of perplexity "
    "on unseen text",
)  # fmt: skip

# %%
of_bits = {
    bits: [rises[name] for name in FORMATS if (errors_by[name][0] < 6) == (bits == 4)]
    for bits in (4, 8)
}
came = {
    "MXFP4 / NVFP4": errors_by["MXFP4"][2] / errors_by["NVFP4"][2],
    "best 8 bits": min(of_bits[8], key=abs),
    "worst 4 bits": max(of_bits[4]),
}
against(predicted_formats, came)

# %% [markdown]
# **The prediction, counted.** The error of MXFP4 on normal numbers is 1.2 times that of NVFP4: half as long a group
# has a smaller largest number, and a scale with a fraction fits it better. The best format of 8 bits moves the
# perplexity by nearly nothing, as predicted, and the worst of 4 by twice what was predicted.
#
# Read the table by its columns. On *normal* numbers elements with a fixed step win among the formats of 8 bits: the 8
# bits of MXINT8 lie evenly below the largest, and E4M3 spends bits on powers of two that normal weights hardly use.
# With 4 bits NVFP4 is just ahead of the integers, with half as long a group. *Beside outliers* it is the other way
# round: a floating-point element of 8 bits has a step of its own, so it does not care what else is in the group; E2M1
# has too few powers of two for that, and suffers less than int4. MXFP8 is worse than FP8 with one scale here, since a
# power of two cuts off the largest of some groups (third column). And a perplexity that moves by less than twice its
# standard error says "not seen here", never "no loss": this model is small, and its text is easy. Published
# comparisons find that large models lose little with 8 bits, and with 4 bits enough to need one of the remedies
# below. Perplexity is an average too: it can stay while rare abilities go, so whoever ships a quantised model also
# runs the tasks that it is for.
#
# ### Remedies
# SmoothQuant, AWQ and GPTQ change *what* is rounded, or how, and leave the format as it is. The first and the last of
# the list are for speed.
#
# - **W8A8** rounds activations too, so that the product runs on integer tensor cores, from Ampere to Hopper at twice
#   the rate of bf16. It pays for many rows, where weight-only does not. Activations have outlier channels, which is the
#   difficulty.
# - **SmoothQuant** (Guangxuan Xiao and others) moves it: channel $k$ of the activations is divided by $s_k$ and the weights
#   of that channel are multiplied by it, $s_k = \max|X_k|^{1/2} / \max|W_k|^{1/2}$. The product stays as it is, and both
#   factors have moderate outliers instead of one of them large ones.
# - **AWQ** (Ji Lin and others) is for weights alone: the few channels that meet large activations are scaled up before
#   rounding, since their errors count most.
# - **GPTQ** (Elias Frantar and others) rounds a column at a time, and changes the columns that are still to come so
#   that they make up for the error so far. It needs the second moments of the layer's inputs, from some hundred pieces
#   of text.
# - **Pre-shuffled weights** (Marlin, Elias Frantar and others) change no number: they are stored in the order in which the
#   threads of a tensor-core product want them, so a thread loads 16 bytes and has whole operands in its registers. The
#   exchange through shared memory that cost us section 5's gain is then done once, when the model is loaded.
#
# ### Scales in the tensor cores
# `tl.dot_scaled(a, a_scale, "e4m3", b, b_scale, "e4m3", acc)` multiplies blocks that are held in these formats, scales
# and all. What it becomes depends on the card. The cell compiles it for an H200 and for a Blackwell B200, and counts
# the instructions that multiply. No GPU is needed.


# %%
@triton.jit
def scaled_kernel(
    out_ptr, a_ptr, a_scale_ptr, b_ptr, b_scale_ptr,
    FORMAT: tl.constexpr, IN_BYTE: tl.constexpr,
):  # fmt: skip
    """128 x 128 results of 128 products each, whose factors share a scale in groups of
    32."""
    m, g = tl.arange(0, 128), tl.arange(0, 4)
    WIDE: tl.constexpr = 128 // IN_BYTE  # bytes of a row
    k = tl.arange(0, WIDE)
    a, b = (
        tl.load(a_ptr + m[:, None] * WIDE + k[None, :]),
        tl.load(b_ptr + m[None, :] * WIDE + k[:, None]),
    )
    a_scale = tl.load(a_scale_ptr + m[:, None] * 4 + g[None, :])
    b_scale = tl.load(b_scale_ptr + m[:, None] * 4 + g[None, :])
    acc = tl.dot_scaled(a, a_scale, FORMAT, b, b_scale, FORMAT)
    tl.store(out_ptr + m[:, None] * 128 + m[None, :], acc)


# %%
def multiplying(arch, element):
    """The kinds of instructions that multiply, and how many of each."""
    # two elements of 4 bits are a byte
    factors = "*u8" if element == "e2m1" else "*fp8e4nv"
    types = {"out_ptr": "*fp32"} | dict.fromkeys(("a_ptr", "b_ptr"), factors)
    types |= dict.fromkeys(("a_scale_ptr", "b_scale_ptr"), "*u8")
    constants = {"FORMAT": element, "IN_BYTE": 2 if element == "e2m1" else 1}
    ptx = compile_kernel(scaled_kernel, types, constants, arch=arch).ptx
    found = re.findall(r"(?:wgmma\.mma_async|tcgen05\.mma|mma\.sync)\.[\w.:]*", ptx)
    return ", ".join(f"{found.count(kind)} x {kind}" for kind in dict.fromkeys(found))


Table(
    ("card", "elements", "what multiplies"),
    [
        (card, element, multiplying(arch, element))
        for card, arch in (("H200", 90), ("B200", 100))
        for element in ("e4m3", "e2m1")
    ],
    code=("what multiplies",),
)

# %% [markdown]
# On the B200 one kind of instruction takes the elements and the scales as they are held (`block_scale`). The H200 has
# none: there Triton turns both factors into bf16, applies the scales, and multiplies as ever (`bf16.bf16`). It is
# *emulated*: right, with the bytes of the short format and the rate of the long one, and with the conversion in the way,
# as in section 5. So "it runs on my card" does not mean that the card has it; count the instructions.

# %% [markdown]
# ## Verdicts
# What was claimed, and what we found. The numbers are in the cells above, on your machine and on the recorded H200.
#
# | claim of the report | verdict | for your own work |
# |---|---|---|
# | a group of mantissas shares an exponent with bias 127 | right: half the bytes of bf16, at an error that a two-line model predicts | predict an error before you measure it |
# | bit 6 of the mantissa selects a region | it is bf16's implicit leading one: present or not | derive a trick before you trust it |
# | the packed bits are the number | wrong for $m = -128$, for $e = 0$, and twice for $e = 255$ | a format has 65,536 pairs: test them all |
# | bits instead of a multiplication | more instructions than the exact product, here | count instructions; a multiplication is one |
# | scales are tiled along K only, lanes predicated by coordinates | right; in Triton one line each | ask which index an operand does not depend on |
# | (not said) it is faster | for one row with a plain kernel, up to 16 or so with one that converts weights on their way to the registers, up to 64, for large weights, with one that fetches activations once for many rows of weights; on an H200 slower in turn at every size from 128 rows to 8192 | ask for the batch size first |

# %% [markdown]
# ## Questions
# Three answers in your own words, graded by a person. A few sentences each are enough.
#
# ### Question 7.5 (15 min, 4 points)
# The report's open question: what would it buy to quantise weights *and activations* to MXINT8, on hardware made for
# it? Say what a multiply-accumulate unit would have to do with two groups, what happens to bytes and to arithmetic for
# one row and for thousands, and what becomes harder with activations than with weights.

# %% [markdown] nbgrader={"grade": true, "grade_id": "mx_question_activations", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# A product of two groups of 32 is an integer dot product, $\sum m_i m'_i$, of int8 times int8 in an int32 accumulator
# (32 products of at most $2^{14}$ sum to at most $2^{19}$, which takes 20 bits and a sign; 19 where mantissas are held
# to $\pm 127$), and one addition of exponents: the group's sum is scaled by $2^{e + e' - 266}$ and added in fp32.
# Integer multipliers of 8 bits are much smaller and need less energy than those of bf16 with alignment and
# normalisation, so more fit on a chip: twice the rate of bf16 and more. For one row the weights' bytes set the time, so
# nothing is won there beyond weight-only (no conversion in the kernel, though). For thousands of rows the arithmetic
# sets the time, and that is where the faster units pay; activations and the key-value cache also take half the bytes.
#
# Harder: activations are made at run time, so the maximum and the rounding come on top in every layer, along the
# dimension that is summed over (and along the other one for the backward pass); they have outlier channels, which set
# the step of their group; nobody can correct for their error beforehand, as one can for weights. The error of a product
# has two sources, adding in squares.
#
# *Marking guide.* 1 point for integer dot product and adding exponents. 1 for: nothing at one row, or only the
# conversion saved, because bytes of weights set the time. 1 for: faster at many rows, because arithmetic sets it there.
# 1 for one difficulty of activations with its reason (made at run time, outliers, both sides of the error).
# ### END SOLUTION

# %% [markdown]
# ### Question 7.6 (10 min, 3 points)
# A colleague tests a new decoder with a million random normal weights, quantised by your `quantize`, and finds no
# difference. Which of the three corners of section 4 did this test never touch, and why? Write down a test that is
# better and takes less time.

# %% [markdown] nbgrader={"grade": true, "grade_id": "mx_question_test", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# None of the three was touched. $m = -128$: the quantiser holds mantissas to $\pm 127$. $e = 0$ (and everything below
# 7): the largest of a group of normal numbers is never below $2^{-120}$. $e = 255$: there is no NaN and no infinity
# among the numbers. A better test decodes all 256 x 256 pairs, a row for each exponent, and compares bit by bit with
# the definition in float64: 65,536 numbers instead of a million.
#
# *Marking guide.* 1 point for all three corners untouched. 1 for the reasons (at least two). 1 for the exhaustive test
# with an exact comparison.
# ### END SOLUTION

# %% [markdown]
# ### Question 7.7 (10 min, 3 points)
# In 4-bit formats of the same family a number has a sign, two bits of exponent and one of fraction, and a group of 32
# has a shared exponent of 8 bits. Which floor has a layer with $N = 14336$, $K = 4096$ for one row, in units of bf16?
# Compared with MXINT8: up to how many rows, roughly, is its floor lower by the full factor, and from how many on is it
# not lower at all? And what do you expect for the instructions?

# %% [markdown] nbgrader={"grade": true, "grade_id": "mx_question_four_bits", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# $0.5 + 1/32 = 0.531$ bytes a weight, 0.27 of bf16's and 0.52 of MXINT8's. The intensity at $M$ rows is $2M / 0.531$
# FLOP a byte, so with a ridge near 156 arithmetic sets the time from $156 \cdot 0.531 / 2 = 41$ rows on: up to there
# the gain over MXINT8 is the full factor of 1.94. Then it shrinks, until MXINT8 meets the same arithmetic at
# $156 \cdot 1.031 / 2 = 80$ rows; from there on there is none. A weight arrives in half the time, so there are half as
# many instructions for it, between 3 and 4: conversion must take two or more weights an instruction (a table, or bits
# joined for several at once), or be done by the hardware.
#
# *Marking guide.* 1 point for the floor. 1 for the rows, about 40 and about 80, with the reason (each format gains
# until it meets arithmetic). 1 for the halved budget of instructions and one consequence.
# ### END SOLUTION

# %% [markdown]
# ## Further reading
# - Bita Darvish Rouhani, Ritchie Zhao, Ankit More, Mathew Hall and others, *Microscaling Data Formats for Deep
#   Learning*, 2023, arXiv:2310.10537. The formats, and what models lose with them.
# - Open Compute Project, *OCP Microscaling Formats (MX) Specification*, version 1.0, 2023. What is fixed, and what is
#   left to the implementation.
# - Bita Darvish Rouhani and others, *With Shared Microexponents, A Little Shifting Goes a Long Way*, 2023,
#   arXiv:2302.08007. Where block formats come from.
# - Tim Dettmers, Mike Lewis, Younes Belkada and Luke Zettlemoyer, *LLM.int8(): 8-bit Matrix Multiplication for
#   Transformers at Scale*, NeurIPS 2022, arXiv:2208.07339. Outlier channels.
# - Paulius Micikevicius and others, *FP8 Formats for Deep Learning*, 2022, arXiv:2209.05433. E4M3 and E5M2.
# - Elias Frantar, Roberto L. Castro, Jiale Chen, Torsten Hoefler and Dan Alistarh, *MARLIN: Mixed-Precision
#   Auto-Regressive Parallel Inference on Large Language Models*, 2024, arXiv:2408.11743. Weight-only products up to
#   batches of some dozens.
# - Guangxuan Xiao and others, *SmoothQuant*, arXiv:2211.10438; Ji Lin and others, *AWQ*, arXiv:2306.00978; Elias Frantar
#   and others, *GPTQ*, arXiv:2210.17323. The remedies of section 7.
# - `course_lib/kernels/mx`: the course's own kernels, and `benchmarks/notes/mx.md`, what was predicted for them.
