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
# # 05 Fused MLP: numerics and memory
#
# After this lesson you can
#
# - say which bits a format keeps of a number, what a long sum loses in it, and predict where such a sum sticks,
# - find out which rounding of a computation brings which error, and remove the one that need not be there,
# - account for every byte that a model holds between forward and backward, on paper and by measurement,
# - decide what to keep and what to make again, and write the kernels: a product (GEMM) with GELU at its end, an MLP that
#   keeps its input only, a residual norm, dropout without a mask.
#
# **Time** 8 hours in three parts; the seven exercises take about five of them. Each part is a sitting, can be taken
# without the others, and begins with what it needs.
#
# | part | sections | minutes | exercises |
# |---|---|---|---|
# | A. Numbers in few bits | 1 formats, 2 sums, 3 rounding twice, 4 mixed precision | 150 | `accumulate`, `autocast` |
# | B. The MLP and its memory | 5 GELU in the epilogue, 6 what is kept, 7 what is made again | 200 | `linear_gelu`, `saved`, `recompute` |
# | C. Norm and dropout | 8 residual and norm, 9 dropout without a mask | 130 | `add_norm`, `dropout` |
#
# The verdicts and three questions stand at the end. Run the cells from the top each time. A cell that needs an exercise
# which you have not solved stops with "not written yet"; go on with the cell below it. (Who teaches can give out a part
# alone: `python -m autograder part 05_mlp b`.)
#
# **The check** in a notebook judges as grading does. An answer may use what the setup cells and your own cells define,
# and no name of a demonstration cell. In exercises 5.3, 5.6 and 5.7 all arithmetic has to be in kernels, in exercise
# 5.5 all but the library's products and sums. Where an answer breaks one of these rules, the check says so.
#
# **Needs** lesson 01: counting, the roofline, the tiled matrix product. What "in place" means is said in section 8.
#
# **Without a GPU** all seven exercises can be solved and checked for being right; roundings are emulated exactly, and
# memory is accounted on tensors without memory. What a CPU cannot show: the speed of the kernels, races, and what
# happens inside tensor cores. So numbers of an H200 are recorded: what the solution of this lesson took there stands in
# the tables beside yours, and after it what the course's own kernels took.

# %% tags=["setup"]
from course_lib.device import DEVICE, TIER, half, machine

import math

import torch
import triton
import triton.language as tl

from autograder import check

HERE = machine()
HERE

# %% [markdown]
# What the demonstrations use, and some helpers. On a CPU sizes are smaller and medians are known less exactly.

# %%
from torch import nn

from course_lib import memory, numerics, plots, results, widgets
from course_lib.numerics import bits, round_to, running_sums, ulp
from course_lib.plots.house import drawn
from course_lib.predictions import against
from course_lib.roofline import Roof, Work, floor_s, ridge
from course_lib.timing import time_gpu

GPU = TIER == "gpu"
print(results.memory_of("05_mlp"))


# %%
def timed(fn):
    """The course's timer, told how long it may take on this tier."""
    if GPU:
        return time_gpu(fn, precision=0.01, max_seconds=1.0)
    return time_gpu(fn, precision=0.1, max_seconds=0.2)


def recorded(section):
    """The rows of a recorded section; none, and a line that says so,
    where nothing was measured."""
    entry = results.load(section)
    said = (
        f"recorded on {entry['machine']}, {entry['date']}"
        if entry
        else "not yet run on a GPU"
    )
    print(f"{section}: {said}")
    return entry["rows"] if entry else []


def gelu(h):
    return nn.functional.gelu(h, approximate="tanh")


# %% [markdown]
# The parts share two things more: the recorded H200's roof with the sizes that are counted under it (a layer of a
# vision tower: width 1152, hidden 4304, our assumption; and a larger one), and a transformer layer.

# %%
ceiling = {
    row["name"]: row["value"] for row in results.load("lesson01.ceilings")["rows"]
}
roof = Roof(
    "H200 bf16", ceiling["matmul bf16, TFLOP/s"] * 1e12, ceiling["copy, TB/s"] * 1e12
)
TOKENS, SIZES = 16384, ((1152, 4304), (4096, 16384))  # width, hidden


# %%
class Layer(nn.Module):
    """A transformer layer as the report has it: naive causal attention, then an MLP."""

    def __init__(self, width, heads=4, hidden=None):
        super().__init__()
        hidden = hidden or 4 * width
        self.heads, self.norms = (
            heads,
            nn.ModuleList(nn.LayerNorm(width) for _ in range(2)),
        )
        self.qkv, self.proj = (
            nn.Linear(width, 3 * width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.up, self.down = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(hidden, width, bias=False),
        )

    def forward(self, x):  # (batch, length, width)
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norms[0](x))
            .view(batch, length, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        s = q @ k.mT * (width // self.heads) ** -0.5
        s = s.masked_fill(
            torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1),
            -math.inf,
        )
        x = x + self.proj(
            (torch.softmax(s, -1) @ v).transpose(1, 2).reshape(batch, length, width)
        )
        return x + self.down(gelu(self.up(self.norms[1](x))))


# %% [markdown] tags=["part-a"]
# ## Part A. Numbers in few bits
#
# 150 minutes. Of lesson 01 it needs section 3 alone.
#
# | section | what it is about | minutes |
# |---|---|---|
# | 1 | which numbers a format has | 15 |
# | 2 | a sum that stops growing, and its cures; exercise 5.1 | 60 |
# | 3 | which of two roundings costs more | 25 |
# | 4 | mixed precision: types under autocast, gradients that become 0, weights that stop moving; exercise 5.2 | 50 |

# %% [markdown]
# ## 1. A number and its bits
# A floating-point number is $(-1)^s \cdot 1.f \cdot 2^e$. A format says how many bits the fraction $f$ has and how far
# the exponent $e$ reaches. The bits of the fraction are **precision**: the distance between neighbours, one *unit in
# the last place* or **ulp**. The bits of the exponent are **range**. With 16 bits one is paid for with the other: fp16
# has 10 bits of fraction and ends at 65504, bf16 has 7 and reaches as far as fp32.
#
# Type a number, or shift it by a power of two: when does fp16 run out, when bf16?

# %%
widgets.format_explorer()

# %%
for name in ("fp32", "bf16", "fp16", "e4m3"):
    of = numerics.formats.FORMATS[name]
    print(
        f"{name}: largest {of.largest:.4g}, smallest normal "
        f"{2.0**of.min_exponent:.3g}, smallest {of.smallest:.3g}, ulp of 1 "
        f"{ulp(1.0, of):.3g}"
    )

# %% [markdown]
# Below the smallest normal number the leading 1 is given up: these are the **subnormal** numbers, with fewer and fewer
# bits until nothing is left.
#
# ### Case file
# **The report says** (systems notes of a language-model course assignment): "for x = 1e3, 1/rms underflows in fp16,
# while bf16 is fine". The norm in question is $x / \sqrt{\mathrm{mean}(x^2) + \varepsilon}$.
#
# ### Predict
# The result is indeed wrong. But is "underflow" the word? What are $x^2$, its mean, the reciprocal root and the result
# in fp16? And for which power of ten, if any, does $x^2$ *really* underflow, all the way to 0? Name the largest.

# %%
predicted_squares = {"1000": None}  # replace None: x squared in fp16
### BEGIN PREDICTION
predicted_squares = {"1000": "inf", "why": "a million is beyond 65504"}
### END PREDICTION
predicted_underflow = {"largest power of ten": None}  # replace None: its exponent
### BEGIN PREDICTION
why = "the square of 10^-4 is 10^-8; half of fp16's smallest number is 3e-8"
predicted_underflow = {"largest power of ten": -4, "why": why}
### END PREDICTION


def rms_norm(x, eps=1e-12):
    """Every step stored in the type of x, as a chain of operators does it."""
    square = x * x
    scale = torch.rsqrt(square.mean() + eps)
    return square[0].item(), scale.item(), (x * scale)[0].item()


# %%
came = {}
for value in (1000.0, 200.0, 1.0, 1e-4):
    for dtype in (torch.float16, torch.bfloat16):
        square, scale, y = rms_norm(torch.full((8,), value, dtype=dtype))
        print(
            f"x = {value:g} in {str(dtype)[6:]:8}: x^2 = {square:.4g}, "
            f"1/rms = {scale:.4g}, y = {y:.4g}; should be 1"
        )
        if dtype == torch.float16:
            came[f"{value:g}"] = square
against(predicted_squares, came)
zero = [
    k
    for k in range(0, -9, -1)
    if not torch.tensor(10.0**k, dtype=torch.float16).square()
]
against(predicted_underflow, {"largest power of ten": zero[0]})

# %% [markdown]
# **The prediction, counted.** The square of 1000 is a million, beyond 65504, so it is infinite, its reciprocal root
# is 0, and so is the result. The largest power of ten whose square becomes 0 is $10^{-4}$.
#
# **Verdict.** The square, a million, is beyond 65504: it **overflows** to infinity, and the reciprocal root of infinity
# is 0. That 0 looks like underflow if one looks at the last step only. The remedy for underflow (scale up) would make
# it worse. Real underflow is on the other side. It begins below 0.0078, where the square is no normal number any more:
# that of 0.001 is a subnormal one and has lost bits. The square of 0.0001 is $10^{-8}$, less than half of fp16's
# smallest number, so it becomes 0, and only $\varepsilon$ is left (which fp16 rounds to 0 as well, hence infinity).
# bf16 has the range for both. What norms really do is neither: they load 16 bits and compute in fp32.

# %% [markdown]
# ## 2. A sum that stops growing
# ### Case file
# **The same report** adds 0.01 again and again, in an fp32 and in an fp16 accumulator. Four additions: 0.0400085 in
# both. Five: 0.0500107 and 0.0500183. "fp32 tracks, fp16 drifts." There it ends, at a few steps.
#
# Even the fp32 sum is off, in the fourth digit, and for another reason: the *term* was rounded before anything was
# added.

# %%
term = round_to(0.01, "fp16")
print(
    f"0.01 in fp16 is {term:.10f}, bits {bits(term, 'fp16')}, off by "
    f"{(term - 0.01) / 0.01:.1e} of itself"
)
few = torch.full((6,), term)
for name in ("fp32", "fp16"):
    print(
        f"accumulator {name}:",
        " ".join(f"{x:.7f}" for x in running_sums(few, name).tolist()),
    )

# %% [markdown]
# So there are two errors. The rounding of terms is the same for any accumulator, and it is a fixed share of the sum.
# The rounding of sums grows with the sum's own ulp. The two accumulators differ at three terms already; at four they
# agree again, because four times a number of fp16 is one too, and the fourth addition happens to undo what the third
# had lost.
#
# ### Predict
# Go on adding. Each addition is rounded to the nearest number of fp16, and these lie further apart the larger they are:
# 0.0078 apart from 8 on. Where does the sum stop growing, and after how many terms? Where would bf16 stop?

# %%
predicted_stop = {"fp16": None, "bf16": None}  # replace None: the sum
### BEGIN PREDICTION
why = "half an ulp passes 0.01 where the ulp passes 0.02: at 32 and at 4 it is 0.031"
predicted_stop = {"fp16": 32, "bf16": 4, "why": why}
### END PREDICTION


# %%
def stop(of, at_most=10_000):
    """(the last sum, after how many terms it is reached) of 0.01 added in a format, terms in the same format."""
    sums = running_sums(torch.full((at_most,), round_to(0.01, of)), of)
    return sums[-1].item(), int((sums < sums[-1]).sum()) + 1


stops = {of: stop(of) for of in ("fp16", "bf16")}
against(predicted_stop, {of: total for of, (total, _) in stops.items()})
for of, (total, terms) in stops.items():
    print(
        f"{of}: stuck at {total:g} after {terms} terms; the next number is "
        f"{total + ulp(total, of):g}, and half the way there is "
        f"{ulp(total, of) / 2:g}, more than {round_to(0.01, of):g}"
    )

# %% [markdown]
# **The prediction, counted.** fp16 stops at 32, after 2798 terms, and bf16 at 4, after 350. From there on half the
# way to the next number is 0.015625 in both, and the term is 0.01.
#
# A sum sticks where its half ulp exceeds the term. That takes two to four times $1/\text{ulp}(1)$ terms of one sign: a
# few thousand in fp16, a few hundred in bf16, some twenty million in fp32. A dot product of length 4096 in bf16 could
# not be accumulated in bf16. Tensor cores multiply 16-bit numbers and **accumulate in fp32**, which is why nobody
# notices; unless someone asks for an accumulator in the input's type, as one mistake of exercise 5.3 does. There is one
# place where PyTorch does allow less: a library may split a long sum among several programs and add their parts in 16
# bits. The next cell shows that this is allowed by default.

# %%
matmul = torch.backends.cuda.matmul
for name in ("bf16", "fp16"):
    allowed = getattr(matmul, f"allow_{name}_reduced_precision_reduction")
    print(f"parts of a sum of {name} products may be added in {name}: {allowed}")

# %% [markdown]
# ### Cures
# If the accumulator has to be narrow, or the sum is very long, the order helps. **In pairs**: neighbours are added
# first, so both sides of every addition are of like size, and an element takes part in $\log_2 n$ roundings instead of
# $n$. That is also what threads of a GPU do among themselves. **Compensated** (Kahan): what an addition has lost is
# computed exactly, $(s' - s) - t$, and taken back from the next term.
#
# The report's table, continued to 777,777 terms. Drift is measured against the exact sum of the *rounded* terms.

# %%
WAYS = {
    "fp16, one by one": ("fp16", "one by one"),
    "fp16, in pairs": ("fp16", "in pairs"),
    "fp16, compensated": ("fp16", "compensated"),
    "fp32, one by one": ("fp32", "one by one"),
    "fp32, in pairs": ("fp32", "in pairs"),
}
COUNTS = (5, 77, 777, 2777, 7777, 77_777, 777_777)
drift = {name: [] for name in WAYS}
for n in COUNTS:
    terms = torch.full((n,), term, dtype=torch.float64)
    for name, (of, order) in WAYS.items():
        drift[name].append(
            abs(numerics.accumulate(terms, of, order).item() / (n * term) - 1)
        )

# %%
print(f"{'terms':9}" + "".join(f"{name:>20}" for name in WAYS))
for i, n in enumerate(COUNTS):
    print(f"{n:<9,}" + "".join(f"{drift[name][i]:20.1e}" for name in WAYS))
shown = {name: [x or math.nan for x in column] for name, column in drift.items()}
axes = plots.sweep(
    COUNTS, shown,
    xlabel="terms of 0.01", ylabel="relative drift (0 is not drawn)", unit="",
    yscale="log", title="One by one a sum drifts in every format; in pairs it does not",
)  # fmt: skip
axes.yaxis.set_major_formatter("{x:.0e}")
axes.get_legend().set_loc((0.03, 0.2))
plots.show(
    axes,
    alt="Relative drift of a sum of 0.01 against the number of terms up to 777777: "
    "fp16 one by one rises to 1; fp16 compensated and fp32 one by one rise late, "
    "to about a hundredth; fp16 in pairs stays below 1e-3, and fp32 in pairs is 0 but "
    "for the two longest sums, near 1e-8",
)

# %% [markdown]
# Read the columns. In pairs the drift is that of a few roundings of the result, however long the sum. Compensated is as
# good until the sum is so large that the lost part grows beyond what one number of fp16 can hold beside a term: the
# correction has an ulp of its own. And fp32 one by one is no cure at all for so many terms: it drifts as fp16 does,
# only later. (Equal terms are the worst case. Random terms lose less, because their errors have both signs.)
#
# ## Exercise 5.1 `mlp.accumulate` (40 min, 5 points)
# Write `accumulate(terms, of_terms, of_sum, order)`, a sum as hardware with such an accumulator makes it, bit by bit.
# It returns `(total, drift, stuck)`. Write the rounding yourself: `course_lib.numerics` is not there when it is judged.
# numpy and torch may be used.
#
# - `terms`: a list of numbers. Each is first rounded to the format `of_terms`, as data in memory is
# - then they are added, and every addition is rounded to `of_sum`: R
# - formats are `"fp16"`, `"bf16"`, `"fp32"`. To nearest, ties to even, from the sum as Python's own addition gives it
#   (hint 2); subnormal numbers are kept; what is too large becomes infinite
# - `order`:
#     - `"one by one"`: `total = R(total + t)`, from 0 on
#     - `"in pairs"`: neighbours are added, then neighbours of their sums, and so on; an odd one at the end waits
#     - `"compensated"`: from `total = lost = 0`, for each term: `wanted = R(t - lost)`;
#       `following = R(total + wanted)`; `lost = R(R(following - total) - wanted)`; `total = following`
# - `total`: the sum so made; 0 where there are no terms
# - `drift`: total less the exact sum of the terms *as they were given* (the figure above measures from the rounded
#   ones). Exact: large terms may cancel, and Python's `sum()` rounds
# - `stuck`: for "one by one", after how many terms the total does not change any more although terms other than 0 (as
#   rounded) follow, so 0 where no term ever moves it; `None` where there is no such place, and in the other orders


# %% nbgrader={"grade": false, "grade_id": "mlp_accumulate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def accumulate(terms, of_terms, of_sum, order):
    """(total, drift, stuck) of a sum in a chosen format and order."""
    ### BEGIN SOLUTION
    formats = {
        "fp16": (10, -14, 65504.0),
        "bf16": (7, -126, 255 * 2.0**120),
        "fp32": (23, -126, (2**24 - 1) * 2.0**104),
    }

    def near(x, of):
        fraction_bits, least, largest = formats[of]
        if x == 0 or not math.isfinite(x):
            return x
        step = 2.0 ** (max(math.frexp(x)[1] - 1, least) - fraction_bits)
        rounded = round(x / step) * step  # Python's round breaks ties to even
        return rounded if abs(rounded) <= largest else math.copysign(math.inf, x)

    data, total, stuck = [near(t, of_terms) for t in terms], 0.0, None
    if order == "one by one":
        last = 0
        for i, t in enumerate(data):
            before, total = total, near(total + t, of_sum)
            last = i + 1 if total != before else last
        stuck = last if any(data[last:]) else None
    elif order == "in pairs":
        while len(data) > 1:
            waits = data[-1:] if len(data) % 2 else []
            data = [near(a + b, of_sum) for a, b in zip(data[0::2], data[1::2])] + waits
        total = data[0] if data else 0.0
    else:
        lost = 0.0
        for t in data:
            wanted = near(t - lost, of_sum)
            following = near(total + wanted, of_sum)
            lost = near(near(following - total, of_sum) - wanted, of_sum)
            total = following
    return total, total - math.fsum(terms), stuck
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mlp_accumulate_check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check("mlp.accumulate", accumulate)

# %% [markdown]
# <details><summary>Hint 1: rounding to a format</summary>
#
# `math.frexp(x)[1] - 1` is the exponent of x. Around x the numbers of the format lie $2^{e - \text{fraction bits}}$
# apart, where e does not go below that of the smallest normal number. Divide by that step (exact: it is a power of
# two), round to an integer, multiply. (torch converts float64 to fp16 by way of fp32, which is rounding twice.)
# </details>
# <details><summary>Hint 2: is Python's own addition good enough?</summary>
#
# It rounds the exact sum to 53 bits, and then you round to 24 or fewer. Rounding twice can go wrong (section 3). Where
# both numbers are of the format that the sum is rounded to, it cannot: 53 is more than twice 24 plus one, and then the
# double rounding of one addition is known to be harmless. Where a term is wider than the sum it can, in rare cases:
# $2^{-60} + (1 + 2^{-8})$ is just above the middle between two numbers of bf16, Python's addition loses the $2^{-60}$,
# and the tie goes the wrong way. The exercise takes Python's addition as it is.
# </details>
# <details><summary>Hint 3: where it sticks</summary>
#
# Remember the last term that changed the total. The sum may stall and go on later, so look at the last change and not
# at the first stall. If only zeros follow, nothing got stuck. `math.fsum` gives the exact sum for the drift.
# </details>

# %% [markdown]
# ### Verdict on the case
# "fp32 tracks, fp16 drifts" is right and stops too early: fp16 does not drift for ever, it **stops**, and the place can
# be predicted on paper. fp32 does the same after about $2^{13}$ times as many terms. For your own work: ask for the
# accumulator's format first and for the order next; the rounding of the terms is a share that does not grow.

# %% [markdown]
# ## 3. Rounded twice
# ### Case file
# **The report says** (an engineer speeds up a SigLIP-2 vision tower in bf16): a linear layer followed by GELU in
# kernels of their own rounds the fp32 accumulator to bf16, writes it, reads it, and widens it again for the tanh. A
# fused kernel takes the GELU of the accumulator, and is "measurably more accurate".
#
# $$h = x w^\top + b, \qquad \mathrm{gelu}(h) = \frac h2 \left(1 + \tanh u\right) = \frac{h}{1 + e^{-2u}}, \qquad
#   u = \sqrt{2/\pi}\,(h + 0.044715\, h^3)$$
#
# Two conversions, then: of $h$ and of the result. The fused kernel has only the second. Does that halve the error?
# Which of the two loses more? And is it the same for every element?
#
# ### Predict
# Which rounding brings the larger error, "of h" or "of the result", and how many times the other: where $h$ is about
# 1.5, about -0.75 (GELU has its minimum there), and about -3?

# %%
predicted_worse = {  # replace None, as in "of h, 2 times"
    "1.5": None,
    "-0.75": None,
    "-3": None,
}
### BEGIN PREDICTION
why = "h gelu'(h) / gelu(h): near 1, near 0, and h^2 + 1 far below 0"
predicted_worse = {"1.5": "of h, 1 times", "-0.75": "of the result, 10 times"}
predicted_worse |= {"-3": "of h, 10 times", "why": why}
### END PREDICTION


def roundings(h, of):
    """(GELU of h, of the rounded h, and both of these rounded), h in float64."""
    exact, from_rounded = gelu(h), gelu(round_to(h, of))
    return exact, from_rounded, round_to(exact, of), round_to(from_rounded, of)


# %% [markdown]
# ### One element, bit by bit
# First one element whose accumulator holds -2.9925. Follow the bits: the fraction of bf16 is the first 7 bits of
# fp32's, rounded.

# %%
h = round_to(-2.9925, "fp32")
rounded_h = round_to(h, "bf16")
print(f"h                fp32  {bits(h, 'fp32')}   {h:.7g}")
print(
    f"h rounded        bf16  {bits(rounded_h, 'bf16')}{'':16}   {rounded_h:.7g}, "
    f"off by {abs(rounded_h / h - 1):.1e}"
)
for words, start in (("fused", h), ("apart", rounded_h)):
    y = gelu(torch.tensor(start, dtype=torch.float64)).item()
    kept, wide = round_to(y, "bf16"), round_to(y, "fp32")
    print(f"{words}: gelu(h)   fp32  {bits(wide, 'fp32')}   {wide:.7g}")
    print(f"{words}: result    bf16  {bits(kept, 'bf16')}{'':16}   {kept:.7g}")

# %% [markdown]
# $h$ was off by less than half a unit in its last place, which is what rounding promises. The result that was made from
# it is off by several units in *its* last place: GELU has magnified the error. How much a function magnifies a relative
# error is its condition number, $\kappa(h) = |h\, \mathrm{gelu}'(h) / \mathrm{gelu}(h)|$. So the answer to "which
# conversion loses more" is: look at $\kappa$.

# %%
grid = torch.linspace(-4, 4, 401, dtype=torch.float64, requires_grad=True)
(slope,) = torch.autograd.grad(gelu(grid).sum(), grid)
magnified = (grid * slope / gelu(grid)).abs().detach()
came = {}
for name in ("1.5", "-0.75", "-3"):
    exact, from_rounded, once, _ = roundings(
        torch.linspace(0.95, 1.05, 2001, dtype=torch.float64) * float(name), "bf16"
    )
    losses = {"of h": from_rounded - exact, "of the result": once - exact}
    size = {which: off.square().mean().sqrt().item() for which, off in losses.items()}
    came[name] = (
        f"{max(size, key=size.get)}, "
        f"{max(size.values()) / min(size.values()):.1f} times"
    )
against(predicted_worse, came)

# %% [markdown]
# **The prediction, counted.** Of h, 1.1 times at 1.5; of the result, 8.8 times at -0.75; and of h, 8.3 times at -3.


# %%
@drawn
def draw_condition(h, magnified, scatter):
    """Left: how GELU magnifies relative errors. Right:
    errors of bf16 in ulps, for h rounded before and not."""
    figure, (left, right) = plots.figure(8.0, 3.5, columns=2)
    figure.suptitle(
        "GELU magnifies the rounding of h where h is below -1.2",
        x=0.01, ha="left", weight="bold",
    )  # fmt: skip
    left.plot(h, magnified, color=plots.PALETTE[0])
    left.axhline(1, color=plots.PALETTE[6], linewidth=0.8)
    left.set(xlabel="h", ylabel="relative error out / in")
    for i, (name, (x, off)) in enumerate(scatter.items()):
        right.plot(
            x, off, plots.MARKERS[i], color=plots.PALETTE[1 - i],
            markersize=2.2 - i, label=name, linestyle="none",
        )  # fmt: skip
    right.set(xlabel="h", ylabel="error, ulps of bf16", ylim=(-9, 9))
    right.legend(loc="upper right", markerscale=3)
    return figure


# %%
h = 1.2 * torch.randn(
    6000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
)
exact, _, once, twice = roundings(h, "bf16")
scatter = {
    name: (h, numerics.signed_ulps(y, exact, "bf16"))
    for name, y in (("apart", twice), ("fused", once))
}
plots.show(
    draw_condition(grid.detach(), magnified, scatter),
    alt="Left: the condition number of GELU against h, 0 near -0.75, "
    "about 1 for positive h, 8 and more below -3. Right: errors in ulps; "
    "fused they fill a band of half an ulp, apart the band widens below "
    "-1 to many ulps",
)

# %% [markdown]
# For positive $h$ GELU is nearly $h$ itself, $\kappa$ is 1 to 1.3, and both roundings weigh about the same. (Above 3
# GELU hardly changes $h$, and the result lies on the grid of $h$: rounded once, it hardly needs rounding again.)
# Negative $h$ are of two kinds. Between -1.19 and 0 GELU makes the relative error *smaller*, and at its minimum, where
# the slope is zero, the rounding of $h$ is forgiven. Below -1.19 it is magnified, 4 times at -2 and 10 times at -3, and
# dominates. Those results are small numbers, so an error relative to the *whole* output hardly sees them. That is why
# the two measures below disagree about how much fusion helps.
#
# ### An error budget
# Roundings know nothing of each other, so their errors add up as squares do: if one step alone brings $a$ and another
# one $b$, both bring $\sqrt{a^2 + b^2}$. A budget lists what each step brings alone; where the sum and the measured
# error differ, something is wrong that is in no step. The layer below has 512 terms a sum, of bf16 or fp16 numbers.


# %%
def layer(of, rows=256, columns=64, k=512):
    """h of a linear layer, exact for inputs of the format (float64), and as an fp32 accumulator has it."""
    generator = torch.Generator().manual_seed(1)
    x, w = (
        torch.randn(n, k, generator=generator, dtype=torch.float64)
        for n in (rows, columns)
    )
    x, w = round_to(x, of), round_to(1.2 * k**-0.5 * w, of)
    return x @ w.mT, x.float() @ w.float().mT


for of in ("bf16", "fp16"):
    h, accumulator = layer(of)
    want, _, once, twice = roundings(h, of)
    parts = {
        "sum in fp32": gelu(accumulator.double()),
        "h rounded": gelu(round_to(h, of)),
        "result rounded": once,
    }
    apart = round_to(gelu(round_to(accumulator.double(), of)), of)
    fused = round_to(gelu(accumulator.double()), of)
    print(f"{of}, kernels of their own:\n{numerics.error_budget(want, parts, apart)}")
    print(f"fused{'':10}  {numerics.error(fused, want).rms:.2e}\n")

# %% [markdown]
# Both conversions bring about the same, so leaving one out takes away about a third of the root mean square error, not
# half. The fp32 sum brings about a thousandth of either or less: with a wide accumulator, the *stores* make the error.
# In ulps the picture is the same for both formats, because both roundings are relative to the format's own grid; fp16's
# grid is just eight times as fine. Now element by element: how many results are the **nearest** number of the format?

# %%
for of in ("bf16", "fp16"):
    h, accumulator = layer(of)
    want = gelu(h)
    for words, start in (
        ("fused", accumulator.double()),
        ("apart", round_to(accumulator.double(), of)),
    ):
        y = round_to(gelu(start), of)
        s = numerics.ulp_statistics(y, want, of)
        print(
            f"{of}, {words}: nearest number {s.correct:6.1%}, one of the two "
            f"neighbours {s.faithful:6.1%}, rms {s.rms:.2f} ulps, largest "
            f"{s.largest:.1f}"
        )


# %% [markdown]
# The explorer draws these errors, for sums whose length you choose: make the sum longer, or keep it in the narrow
# format, and compare what that costs with what fusion saves.

# %%
widgets.rounding_explorer()

# %% [markdown]
# ### Verdict on the case
# "Measurably more accurate" is right, and now it has numbers: without the rounding of $h$ nearly every result is the
# nearest number there is. In squared ulps three quarters of the gain sit where $h$ is below -1.2, at a sixth of the
# elements. Of the root mean square error it takes about a third, so it will hardly decide a training run. The stronger
# reason to fuse is another one: what is not rounded is not written.

# %% [markdown]
# ## 4. Mixed precision
# ### Case file
# **The report says** (case of section 2 again): under CUDA autocast with fp16, parameters stay fp32, the result of a
# linear layer is fp16, that of a layer norm fp32, logits fp16, the loss fp32, and gradients of parameters fp32.
# "Gradients stay fp32, so there is no underflow."
#
# ### Predict
# A toy model as in the report: linear, ReLU, layer norm, linear, cross entropy. Write down the type of every result for
# *your* device, and the type of the gradient that arrives at each of them. (Autocast's lists of operators are not the
# same for every device.)

# %%
STEPS = ("fc1", "relu", "norm", "fc2", "loss")
predicted_types = dict.fromkeys(STEPS)  # replace None: "fp16", "fp32"
predicted_gradient_types = dict.fromkeys(STEPS)
### BEGIN PREDICTION
why = "as the report found on CUDA; a gradient is stored as what it is the gradient of"
predicted_types = dict(zip(STEPS, ("fp16", "fp16", "fp32", "fp16", "fp32"))) | {
    "why": why
}
predicted_gradient_types = predicted_types
### END PREDICTION

# %%
SHORT = {torch.float16: "fp16", torch.float32: "fp32", torch.bfloat16: "bf16"}


def toy(classes=10):
    torch.manual_seed(0)
    parts = {
        "fc1": nn.Linear(64, 64),
        "relu": nn.ReLU(),
        "norm": nn.LayerNorm(64),
        "fc2": nn.Linear(64, classes),
    }
    return nn.ModuleDict(parts).to(DEVICE)


model, types, gradient_types = toy(), {}, {}
with torch.autocast(DEVICE, torch.float16):
    y = torch.randn(32, 64, device=DEVICE)
    for step in STEPS:
        y = (
            model[step](y)
            if step in model
            else nn.functional.cross_entropy(y, torch.zeros_like(y[:, 0]).long())
        )
        types[step] = SHORT[y.dtype]
        y.register_hook(
            lambda grad, step=step: gradient_types.__setitem__(step, SHORT[grad.dtype])
        )
y.backward()
against(predicted_types, types)
print(
    "gradients arriving:", gradient_types, "of parameters:",
    {SHORT[p.grad.dtype] for p in model.parameters()},
)  # fmt: skip
against(predicted_gradient_types, gradient_types)

# %% [markdown]
# **The prediction, counted.** On a GPU the linear layers and the ReLU give fp16, and the norm and the loss fp32. Each
# gradient has the type of the result that it belongs to.
#
# Two things to see. The norm: the CPU's autocast leaves it in the low type, CUDA's has it on its fp32 list, as the
# report found. And the gradients: **the gradient of a result has the type of the result.** What is fp32 are the
# gradients of *parameters*, because a parameter is fp32 and its copy was made by a cast, whose backward step casts
# back. So a weight's gradient is *made* in fp16 and cast afterwards, and between the layers gradients travel in fp16.
# What becomes 0 or infinite there, no later fp32 brings back.
#
# ## Exercise 5.2 `mlp.autocast` (30 min, 4 points)
# Write the rule. `autocast(device, dtype, x, layers)` returns a list with `[result, gradient, weight]` for each layer:
# the type of its result, of the gradient that arrives at this result, and of the gradient of its weight (`None` where
# it has no weight). Types are `"fp32"`, `"bf16"`, `"fp16"`. Find out on your machine what torch does; the rule itself
# is judged where there is no torch.
#
# - the model runs under `torch.autocast(device, dtype)`; `device` is `"cpu"` or `"cuda"`, `dtype` `"bf16"` or `"fp16"`,
#   `x` the type of the input, which requires a gradient. Layers follow one another, layer 0 takes x
# - each layer is a dictionary with `"op"`:
#     - `"linear"`, `"layer_norm"`: `"weight"` is the type in which its weight is held
#     - `"relu"`, `"gelu"`, `"exp"`, `"pow"`, `"softmax"`, `"sum"` (along rows)
#     - `"matmul"`, `"add"`, `"mul"`, `"cat"`, `"mse_loss"` (no reduction): of this and the result of layer number
#       `"from"`, or of x where `"from"` is `"x"` (no case has a pair of types that the CPU's autocast refuses to
#       concatenate)
#     - `"cross_entropy"`: with fixed targets
#     - `"to"`: `x.to(type)`, where `"type"` is the type
# - a layer with `"off": True` runs inside `torch.autocast(device, enabled=False)`
#
# On a machine without a GPU the truth for `"cuda"` is what torch did on an H200, recorded. PyTorch's documentation
# ("Autocast Op Reference") lists for CUDA, among others, as operators that go to fp32: layer norm, softmax, exp, pow,
# sum, and the losses.


# %% nbgrader={"grade": false, "grade_id": "mlp_autocast", "locked": false, "schema_version": 3, "solution": true, "task": false}
def autocast(device, dtype, x, layers):
    """[type of the result, of its gradient, of the gradient of its weight] of each
    layer."""
    ### BEGIN SOLUTION
    to_fp32 = {"mse_loss", "cross_entropy"}
    if device == "cuda":
        to_fp32 |= {"layer_norm", "softmax", "exp", "pow", "sum"}
    types, answer, now = {"x": x}, [], "x"
    for number, layer in enumerate(layers):
        op, kind = layer["op"], types[now]
        if "from" in layer and types[layer["from"]] != kind:
            # two types meet in the wider one, and bf16 and fp16 meet in fp32
            kind = "fp32"
        if op == "to":
            kind = layer["type"]
        elif layer.get("off"):
            pass  # nothing is cast: what came in decides
        elif op in ("linear", "matmul"):
            kind = dtype
        elif op in to_fp32:
            kind = "fp32"
        types[number], now = kind, number
        answer.append([kind, kind, layer.get("weight")])
    return answer
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mlp_autocast_check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("mlp.autocast", autocast)

# %% [markdown]
# <details><summary>Hint 1: three kinds of operators</summary>
#
# Those that are cast to the low type, whatever comes in; those that are cast to fp32, whatever comes in; and all
# others, which autocast does not touch. For these the ordinary rule of PyTorch holds, that of two types.
# </details>
# <details><summary>Hint 2: how to find out</summary>
#
# `with torch.autocast("cpu", torch.bfloat16): print(torch.softmax(y, -1).dtype)`, with y in fp32 and in bf16. If both
# times the type of y comes out, the operator is on no list.
# </details>
# <details><summary>Hint 3: the two gradients</summary>
#
# The gradient of a tensor has the type of the tensor. A result is one, so its own type answers the second question; a
# weight is another, and it is held in the type that the layer says.
# </details>

# %% [markdown]
# ### Predict
# The loss is a mean over tokens, and the gradient of a logit is $(p - [\text{target}])$ divided by the number of
# tokens. Take 1024 tokens and 8000 classes, and logits that spread as those of a model that knows something: most
# classes are unlikely. How large is a typical gradient of a logit, and what share of them is 0 in fp16?

# %%
predicted_zero_share = {"logits": None}  # replace None: a number from 0 to 1
### BEGIN PREDICTION
why = "1 of 8000 over 1024 tokens is 1e-7 on average; most classes are far below that"
predicted_zero_share = {"logits": 0.6, "why": why}
### END PREDICTION


# %%
def head(classes=8000, tokens=1024, width=64):
    """Linear, GELU, linear onto classes, and data with targets:
    float64 leaves on the CPU."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((tokens, width), (width, width), (classes, width))
    x, w1, w2 = (
        torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes
    )
    return (
        x, w1 * width**-0.5, w2 * 4 * width**-0.5,
        torch.randint(classes, (tokens,), generator=generator),
    )  # fmt: skip


DATA = head()


def gradients(dtype, scale=1.0):
    """Gradients of the logits, of h, of w1 and w2, divided by the scale again;
    dtype None: all in float64."""
    where, kind = ("cpu", torch.float64) if dtype is None else (DEVICE, torch.float32)
    x, w1, w2 = (t.to(where, kind, copy=True).requires_grad_() for t in DATA[:3])
    target = DATA[3].to(where)
    with torch.autocast(DEVICE, dtype or torch.float16, enabled=dtype is not None):
        h = nn.functional.linear(x, w1)
        logits = nn.functional.linear(gelu(h), w2)
        loss = nn.functional.cross_entropy(logits, target) * scale
    grads = torch.autograd.grad(loss, (logits, h, w1, w2))
    return {
        name: g.cpu().double() / scale
        for name, g in zip(("logits", "h", "w1", "w2"), grads)
    }


# %%
truth, plain = (
    gradients(None),
    {
        name: gradients(kind)
        for name, kind in (("fp16", torch.float16), ("bf16", torch.bfloat16))
    },
)
for name, grads in plain.items():
    for where in ("logits", "h"):
        lost = ((grads[where] == 0) & (truth[where] != 0)).double().mean().item()
        print(
            f"{name}, gradient of {where}: {lost:.1%} became 0; "
            f"typical size in truth {truth[where].abs().median():.1e}"
        )
    off = {w: numerics.error(grads[w], truth[w]) for w in ("w1", "w2")}
    said = (
        f"{w} {e.rms:.1e} and in its worst row {e.worst_row:.1e}"
        for w, e in off.items()
    )
    print(f"{name}, gradients of weights, error of {', of '.join(said)}")
zero_share = (plain["fp16"]["logits"] == 0).double().mean().item()
against(predicted_zero_share, {"logits": zero_share})


# %% [markdown]
# **The prediction, counted.** A typical gradient is 5.8e-9. Half of fp16's smallest number is 3.0e-8, so most are
# lost: 73.7 % became 0.


# %%
@drawn
def draw_sizes(truth, smallest, normal):
    """How large the gradients of activations are, as powers of two, and where fp16 ends."""
    _, ax = plots.figure(7.4, 3.4)
    for i, name in enumerate(("logits", "h")):
        powers = truth[name].abs().clamp(min=2.0**-50).log2().flatten()
        share = torch.histc(powers, bins=45, min=-45, max=0) / len(powers)
        ax.stairs(
            share, range(-45, 1), color=plots.PALETTE[i], linewidth=1.8,
            linestyle=plots.LINES[i], label=f"gradient of {name}",
        )  # fmt: skip
    for at, words in ((smallest, "smallest fp16"), (normal, "smallest normal")):
        ax.axvline(math.log2(at), color=plots.PALETTE[6], linewidth=1, linestyle=":")
        ax.annotate(
            words, (math.log2(at), 1),
            xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8,
        )  # fmt: skip
    ax.set(xlabel="size, as a power of two", ylabel="share of elements")
    ax.set_title("Most gradients of logits lie below fp16's smallest number", pad=18)
    ax.legend(loc="upper right")
    return ax


fp16 = numerics.formats.FORMATS["fp16"]
plots.show(
    draw_sizes(truth, fp16.smallest, 2.0**fp16.min_exponent),
    alt="Histogram of the sizes of gradients as powers of two: "
    "those of logits spread from 2 to the -45 to 2 to the -10, most of them below the "
    "smallest number of fp16; those of h lie around its smallest normal number",
)

# %% [markdown]
# Nothing is strange about these gradients: they are divided by the number of tokens, and there are many classes. Notice
# where it hurts. Over all weights fp16 is even closer than bf16, because the large gradients decide and fp16 has more
# bits for them. The worst row of w2 is a class that was never a target. All it would have got are small gradients, and
# a good part of them is gone. **Loss scaling** multiplies the loss by $S$ before the backward pass and divides the
# parameters' gradients by $S$ after it, in fp32. Backward is linear, so in exact arithmetic nothing changes; in fp16
# the whole histogram moves to the right. Too far, and something becomes infinite. A weight's gradient is made in fp16
# and cast afterwards. It is a sum over all tokens, and so the first to become infinite. Which powers of two work here?
# Predict the two ends: the lower one from the figure, the upper one from the largest gradients.

# %%
for name, grads in truth.items():
    print(
        f"gradient of {name}: largest 2^{math.log2(grads.abs().max()):.1f}; "
        "fp16 ends just below 2^16"
    )

# %%
predicted_window = {  # replace None: exponents of two
    "first good": None,
    "last good": None,
}
### BEGIN PREDICTION
why = (
    "2^-27 has to reach 2^-24, and small ones too: 6 more; 2^-3.7 must stay below 2^16"
)
predicted_window = {"first good": 8, "last good": 18, "why": why}
### END PREDICTION


# %%
exponents = range(0, 29, 2)
off, lost = [], []
for exponent in exponents:
    grads = gradients(torch.float16, 2.0**exponent)
    # infinite where a gradient is
    error = max(numerics.error(grads[w], truth[w]).worst_row for w in ("w1", "w2"))
    off.append(error)
    lost.append(
        ((grads["logits"] == 0) & (truth["logits"] != 0)).double().mean().item()
    )
    print(f"S = 2^{exponent:<2}: {lost[-1]:5.1%} of the logits' gradients are 0, "
          f"worst row of the weights' gradients off by {error:.1e}")  # fmt: skip
good = [e for e, x in zip(exponents, off) if x < 1.5 * min(off)]
against(predicted_window, {"first good": good[0], "last good": good[-1]})

# %% [markdown]
# **The prediction, counted.** From $2^6$ to $2^{18}$. Below, too many gradients of the logits are 0: 19.6 % at $2^6$,
# and 34.5 % at $2^4$. Above, the largest gradient of w1, $2^{-3.7}$, passes fp16's end, $2^{16}$: with $2^{20}$ it
# would be $2^{16.3}$.
#
# There is a window of some powers of two. Its upper end is that of w1's gradient; the logits' own would have borne some
# eighty times more. It moves as training goes on, so scalers search for it: `GradScaler` doubles $S$ after a number of
# good steps, and when an infinity or NaN shows, it drops the step and halves $S$. bf16 has the exponents of fp32 and
# needs none of this; its price stands in the first of the two tables above: over all weights, its gradients are off by
# more.

# %% [markdown]
# ### Weights that stop moving
# A sum that sticks is also what happens to a *weight* that is kept in bf16. AdamW moves a weight by about the learning
# rate a step, whatever the gradient's size. Where that is less than half an ulp of the weight, the sum is rounded back
# to what it was, every time. The cure is older than bf16: keep **master weights** in fp32, update these, and cast them
# for the products. The optimizer's state of a 16-bit model is fp32 for the same reason.
#
# Below, 4096 weights of spread 1 should move by about 0.02, at a learning rate of 0.0003.


# %%
def trained(master, steps=100, lr=3e-4):
    """(share of weights that moved, distance left over distance at the start) after some steps of AdamW."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4096, generator=generator).bfloat16()
    target = start.float() + 0.02 * torch.randn(4096, generator=generator)
    weights = nn.Parameter(start.float() if master else start.clone())
    optimizer = torch.optim.AdamW([weights], lr=lr, weight_decay=0.0)
    for _ in range(steps):
        optimizer.zero_grad()
        (weights.bfloat16().float() - target).square().sum().backward()
        optimizer.step()
    moved = (weights.bfloat16() != start).float().mean().item()
    left = (weights.float() - target).norm() / (start.float() - target).norm()
    return moved, left.item(), start


for words, master in (("bf16 weights", False), ("fp32 master weights", True)):
    moved, left, start = trained(master)
    print(
        f"{words}: {moved:.0%} of the weights moved, {left:.0%} of the distance is left"
    )
small = (start.abs() < 2**-3).float().mean().item()
print(f"weights below 2^-3, whose half ulp is at most {2.0**-12:.1e}: {small:.0%}")

# %% [markdown]
# Only the smallest weights moved. Nothing warns: the loss falls a little, because those weights do learn. Two other
# cures exist: **stochastic rounding**, which is right on average and needs no second copy, and a Kahan term in bf16
# beside each weight. So ask of a framework that says "bf16 training" where its fp32 weights are: some keep them in the
# optimizer, and autocast keeps the parameters themselves in fp32. A model that was loaded in bf16 and given to `AdamW`,
# as here, has none.

# %% [markdown]
# ### Slower, and more memory
# **The report says**: mixed precision makes small models slower, and at short context it takes *more* memory: the 2.7b
# model's forward pass peaks at 24.0 GB instead of 19.3 at context 128, 28.3 instead of 26.0 at 256, and only at 512
# less, 39.6 instead of 42.8.
#
# Lesson 01 (section 3) took the first half apart: divided by its layers, the time of the small models is a constant,
# that of the host; and xl has 48 layers where 2.7b has 32. What was left open there is what autocast *adds* to a layer.
# Count.

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Calls(TorchDispatchMode):
    """Counts operators that are no views, and casts among them."""

    def __init__(self):
        super().__init__()
        self.all, self.casts = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.all += not func.is_view
        self.casts += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


# %%
layer_of_320 = Layer(320).to(DEVICE)
for mixed in (False, True):
    with Calls() as calls, torch.autocast(DEVICE, torch.bfloat16, enabled=mixed):
        layer_of_320(torch.randn(4, 16, 320, device=DEVICE))
    print(
        f"{'autocast' if mixed else 'fp32':8}: {calls.all} operators forward, "
        f"{calls.casts} of them casts"
    )

# %% [markdown]
# Where the host sets the time, each of these casts is another launch, and nothing else in the layer got cheaper: so
# autocast must lose on small models. Does that explain the report's table? Divide what autocast added by the layers.

# %%
REPORT = {  # layers, seconds for 10 forward passes: full precision, mixed
    "small": (12, 0.318, 0.486),
    "medium": (24, 0.656, 0.962),
    "large": (36, 0.948, 1.330),
    "xl": (48, 1.766, 1.510),
    "2.7b": (32, 1.838, 0.932),
}
for name, (layers, full_s, mixed_s) in REPORT.items():
    added_ms = 1e3 * (mixed_s - full_s) / 10 / layers
    print(
        f"{name:7} mixed {100 * mixed_s / layers:5.2f} ms a layer; "
        f"autocast adds {added_ms:+.2f} ms; {calls.casts} launches on the recorded "
        f"host {calls.casts * ceiling['launch, us'] / 1e3:.2f}"
    )

# %% [markdown]
# The sign, yes: for the three small models it is positive, 1.40, 1.27 and 1.06 ms a layer. It does not grow with the
# width, so it is the host that pays and no byte or FLOP. The size, no. A handful of launches is much less than a
# millisecond. The report's layers are written by hand and make more calls than ours, its host may have been slower, and
# autocast does more than launch: it looks at the arguments of every operator on its lists. The table cannot tell these
# apart; a profile with the host's side would.
#
# Now the bytes. Which copies live longer than a moment? The cast weights: a linear layer's backward step needs its
# weight in the type that was multiplied. We account for one layer at an eighth of the report's width, 320, and an
# eighth of its context, so that tokens and width keep their proportion.


# %%
def held(length, mixed):
    """MiB that one layer holds from forward to backward, batch 4, beside its fp32 parameters."""
    x = torch.randn(4, length, 320, device=DEVICE, requires_grad=True)

    def forward():
        with torch.autocast(DEVICE, torch.bfloat16, enabled=mixed):
            return layer_of_320(x)

    return memory.ledger(forward).held_bytes / 2**20


parameters = sum(p.numel() for p in layer_of_320.parameters())
print(f"a copy of all parameters in 2 bytes: {2 * parameters / 2**20:.2f} MiB")
for length in (16, 32, 64, 128):
    full, mixed = held(length, False), held(length, True)
    print(
        f"context {length:3} (report: {8 * length:4}): fp32 {full:6.2f} MiB, "
        f"autocast {mixed:6.2f} MiB, {mixed - full:+.2f}"
    )

# %% [markdown]
# At context 0 autocast would hold one copy of the weights more, and nothing less. With the context its activations grow
# more slowly, since most have two bytes instead of four. So the two curves cross, as they do in the report's table.
# Where they cross depends on what is kept in which type. On CUDA the softmax's result is fp32, and the bf16 copy of it
# that the next product reads is kept as well: six bytes an element of the scores, where fp32 has four and the CPU's
# autocast two.
#
# So on CUDA the difference has three parts: a copy of the weights, which is constant; less for the activations, in
# proportion to the context; and two bytes *more* for each element of the scores, which grow with its square. It is a
# parabola and no line. For naive attention autocast holds less in a middle range of contexts only, and more again where
# the scores rule. With attention that keeps no scores (lesson 04) the third part is gone.
#
# ### Verdict on the case
# "Gradients stay fp32, so there is no underflow" is wrong where it matters: gradients of *parameters* are fp32, those
# of *activations* have the type of the activation, and a good part of them became 0 in front of our eyes; a weight's
# own is fp16 before it is cast. The dtypes of the report are right for CUDA and not for every device. More memory at
# short context is right, and it is one copy of the weights. For your own work: bf16 unless you must; if fp16, scale the
# loss; and ask for the dtype of what travels, not of what is stored.

# %% [markdown] tags=["part-b"]
# ## Part B. The MLP and its memory
#
# 200 minutes. Lesson 01 is needed, sections 5 to 7 of it above all: the tiled product and the ridge. Of part A one
# sentence is used: a result that is rounded twice is off by more than one that is rounded once.
#
# | section | what it is about | minutes |
# |---|---|---|
# | 5 | GELU in the epilogue of a product; exercise 5.3; whether stream-K pays | 75 |
# | 6 | which operator keeps what; exercise 5.4 | 50 |
# | 7 | what to make again, by hand and by the tools; exercise 5.5; SwiGLU | 75 |

# %% [markdown]
# ## 5. GELU in the epilogue
# ### Case file
# **The report says** (an engineer speeds up a SigLIP-2 vision tower in bf16): a linear layer followed by GELU in
# kernels of their own was replaced by one kernel, which takes the GELU of the product's accumulator before anything is
# rounded or written.
#
# $$h = x w^\top + b, \qquad \mathrm{gelu}(h) = \frac h2 \left(1 + \tanh u\right) = \frac{h}{1 + e^{-2u}}, \qquad
#   u = \sqrt{2/\pi}\,(h + 0.044715\, h^3)$$
#
# ### What fusion saves
# Count for 16384 tokens of a layer of the tower and of a larger one, under the recorded H200's roof.

# %%
for width, hidden in SIZES:
    flops, h_bytes = 2 * TOKENS * width * hidden, 2 * TOKENS * hidden
    product = Work(flops, 2 * (TOKENS * width + width * hidden) + h_bytes)
    passes = Work(10 * TOKENS * hidden, 2 * h_bytes)  # h read, gelu(h) written
    print(f"{width} -> {hidden}: product {1e6 * floor_s(product, roof):.0f} us at "
          f"{product.intensity:.0f} FLOP a byte (ridge {ridge(roof):.0f}); GELU apart "
          f"{1e6 * floor_s(passes, roof):.0f} us more, "
          f"{floor_s(passes, roof) / floor_s(product, roof):.0%}")  # fmt: skip

# %% [markdown]
# The product is limited by arithmetic and GELU apart by bytes. Fused, the bytes go, and GELU runs in the tile's
# **epilogue**: what a kernel does to a finished tile before it stores it. There it is not free: an element costs some
# ten instructions, and while a program computes them, its tensor cores rest, unless another program or another group of
# warps multiplies meanwhile. The narrower the layer (the shorter the sum a tile makes), the more such an end weighs.
#
# ## Exercise 5.3 `mlp.linear_gelu` (40 min, 7 points)
# Write `linear_gelu(x, w, bias, out)`: a tiled product with bias and GELU at its end, on the accumulator.
#
# - `x`: (M, K), `w`: (N, K) as `nn.Linear` keeps it; fp32 or fp16 (bf16 on a GPU), one type. Both in any strides:
#   either may be a transposed view
# - `bias`: (N,) of that type, contiguous, or `None`
# - `out`: (M, N) of that type or in fp32. Its rows may lie apart, its columns are adjacent
# - $h = x w^\top + b$, then GELU in its tanh form, in fp32; one rounding, to the type of `out`
# - fp32 inputs are not rounded to TF32: `tl.dot(..., input_precision="ieee")`. $h$ may be as large as 60 in size
#
# Any M and N from 1, any K from 0: an empty sum is 0. An element may lie more than $2^{31}$ elements behind the first one
# (tried on a GPU, and only when it is graded). x and w may be copied first (`.contiguous()`). All arithmetic is in
# kernels. The kernel's head below is a suggestion.


# %% nbgrader={"grade": false, "grade_id": "mlp_linear_gelu_kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _linear_gelu_kernel(
    out_ptr, x_ptr, w_ptr, bias_ptr,
    M, N, K,
    stride_out_m, stride_x_m, stride_x_k, stride_w_n, stride_w_k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    ### BEGIN SOLUTION
    # groups of GROUP_M tile rows, column by column: neighbours in time share rows of x
    # and columns of w in the L2 cache
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * tiles_n)
    rows = min(tiles_m - group * GROUP_M, GROUP_M)
    inside = tl.program_id(0) % (GROUP_M * tiles_n)
    offs_m = (group * GROUP_M + inside % rows).to(tl.int64) * BLOCK_M + tl.arange(
        0, BLOCK_M
    )
    offs_n = (inside // rows).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_m, mask_n = offs_m < M, offs_n < N

    x_ptrs = x_ptr + offs_m[:, None] * stride_x_m + offs_k[None, :] * stride_x_k
    w_ptrs = w_ptr + offs_k[:, None] * stride_w_k + offs_n[None, :] * stride_w_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_k = offs_k < K - k
        x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)
        w = tl.load(w_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
        x_ptrs += tl.cast(stride_x_k, tl.int64) * BLOCK_K
        w_ptrs += tl.cast(stride_w_k, tl.int64) * BLOCK_K

    if bias_ptr is not None:
        acc += tl.load(bias_ptr + offs_n, mask=mask_n, other=0.0).to(tl.float32)[
            None, :
        ]
    y = acc / (1.0 + tl.exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))
    out_ptrs = out_ptr + offs_m[:, None] * stride_out_m + offs_n[None, :]
    tl.store(
        out_ptrs, y.to(out_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :]
    )
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mlp_linear_gelu", "locked": false, "schema_version": 3, "solution": true, "task": false}
def linear_gelu(x, w, bias, out):
    """gelu(x w^T + bias) into out."""
    ### BEGIN SOLUTION
    (M, K), N = x.shape, w.shape[0]
    block_m, block_n, block_k, warps = 32, 32, 32, 4
    if x.is_cuda:
        block_m, block_n, block_k, warps = (
            (64, 64, 32, 4) if x.dtype == torch.float32 else (128, 128, 64, 8)
        )
    _linear_gelu_kernel[(triton.cdiv(M, block_m) * triton.cdiv(N, block_n),)](
        out, x, w, bias,
        M, N, K,
        out.stride(0), *x.stride(), *w.stride(),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=8, num_warps=warps,
    )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mlp_linear_gelu_check", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false}
check("mlp.linear_gelu", linear_gelu)

# %% [markdown]
# <details><summary>Hint 1: from the product of lesson 01</summary>
#
# It is the tiled product with a second matrix that is stored turned: element (k, n) of $w^\top$ is element (n, k) of w.
# Build the block of addresses (BLOCK_K, BLOCK_N) with `stride_w_k` down and `stride_w_n` across, and nothing has to be
# transposed. Everything after the loop is new. An argument that may be `None` stays `None` inside:
# `if bias_ptr is not None:` around the load, and Triton compiles a kernel for each of the two.
# </details>
# <details><summary>Hint 2: GELU without tanh</summary>
#
# $\frac12 (1 + \tanh u) = 1 / (1 + e^{-2u})$, which needs one exponential, is exact for negative $h$ (where
# $1 + \tanh u$ is a small difference), and ends well at both sides: $e^{-2u}$ may become infinite, and $h / \infty$
# is 0. Writing tanh as $(e^{2u} - 1)/(e^{2u} + 1)$ gives infinity over infinity for large $h$.
# </details>
# <details><summary>Hint 3: right in most cases, wrong in some</summary>
#
# Only with bias: is it added before GELU, once, after the loop, along columns? Only when K is no multiple of the block:
# both loads need a mask in k. Only for fp16 inputs, with fp32 output or where h is far below 0: something was rounded
# on the way; look at the accumulator's type and at what is cast before GELU.
# </details>

# %% [markdown]
# ### Measure
# Yours, beside the two kernels of eager PyTorch. (The interpreter is no measure of speed, so on a CPU only the eager
# version runs.) Then what the course's own ladder reached against the vendor's fused epilogue.

# %%
width, hidden = (1152, 4304) if GPU else (96, 360)
tokens = TOKENS if GPU else 256
made = [
    torch.randn(shape, device=DEVICE)
    for shape in ((tokens, width), (hidden, width), (hidden,))
]
x, w, b = (t.to(half()) if GPU else t for t in made)
out = torch.empty(tokens, hidden, device=DEVICE, dtype=x.dtype)
took = {"linear, then gelu": timed(lambda: gelu(nn.functional.linear(x, w, b)))}
if GPU:
    took |= {"linear alone": timed(lambda: nn.functional.linear(x, w, b)),
             "mine": timed(lambda: linear_gelu(x, w, b, out))}  # fmt: skip
results.beside(
    "lesson05.linear_gelu", took, unit="us", size=f"{tokens} x {width} x {hidden}"
)

# %%
for row in recorded("linear_gelu"):
    name, rung = row["name"], row["name"].startswith("linear_gelu_")
    if rung or "alone us" in row:
        print(
            f"{name:47} ours {row['value']:6.1f} us, in turn {row['ratio']:.3f} of "
            f"{row['best peer']}"
        )
    if "alone us" in row:
        peer = row["cublaslt alone us"]
        print(
            f"{'    each alone for a second':47} ours {row['alone us']:6.1f} us, "
            f"cublaslt {peer:.1f}: {row['alone us'] / peer:.3f}"
        )

# %% [markdown]
# **Counted and measured.** For eager the roofline said 244 us for the product and 66 for GELU apart; on the H200 it
# is 241 and 75. The recorded solution of exercise 5.3 saves those 75 us and still takes 449, longer than both kernels
# of eager. It multiplies at 362 TFLOP/s, where the library reaches 676 (here a little more than the roof of lesson
# 01, which was measured in another run). **Fusion pays only if your GEMM is as fast as the library's.**
#
# Much of the rest is lost between two tiles. A multiprocessor has registers for one program of this size (an
# **occupancy** of 8 warps of 64). While that program takes its GELU, stores, and fetches the first blocks of the next
# tile, nobody multiplies. The course's ladder begins at the same place (`tiled`, 411 us) and climbs by filling that
# pause: programs that stay and fetch the next tile meanwhile (`persistent`, 287), then two groups of warps of which one
# multiplies while the other is in its epilogue (`pingpong`, 249). The last one takes 3 % longer *with* GELU than the
# library's product takes without.
#
# **Two ratios.** Power confounds a comparison of fast products. The best peer in that table is the vendor's own fused
# epilogue, cublasLt. *In turn* with it, on one chip with one limit of power, each kernel runs on a chip that the other
# one has heated, and the clock falls with it. *Alone*, each for a second, is what a program made of such products would
# gain: there ours takes 261 us and cublasLt 284, which is 0.92; and at width 4096 ours takes 0.98 of its time. In turn
# the same pairs read 0.78 and 0.91. So for any product that is bound by arithmetic, ask how its time was taken, and
# expect less than a ratio in turn says. (`benchmarks/notes/linear_gelu.md` has two other hosts, and registers and
# clocks of the epilogue.)

# %% [markdown]
# ### Case file: stream-K
# **The report on the tower** tried a stream-K product and saw no gain, because a bias or an activation follows nearly
# every product. What is the idea, and is that the reason?
#
# A product is cut into tiles, and a GPU of 132 multiprocessors with room for one program each works on 132 tiles at a
# time: a *wave*. If the last wave is half empty, half a wave is wasted. Stream-K cuts the *work* instead of the result:
# all tiles' blocks along K stand in one row, and each program gets an equal share of that row, wherever its ends fall.
# Nobody waits, but some tiles are made by two programs. Their parts have to meet before anything can be done with the
# sum.
#
# ### Predict
# How much of the time is wasted by the last wave, for tiles of 128 x 256: at 16384 tokens, and at 2048 tokens of the
# same layer (1152 to 4304)?

# %%
predicted_waste = {  # replace None: a share of the time
    "16384 tokens": None,
    "2048 tokens": None,
}
### BEGIN PREDICTION
why = "tiles over 132: 2176 are 16.5 waves, half of 17 lost; 272 are 2.1 of 3"
predicted_waste = {"16384 tokens": 0.03, "2048 tokens": 0.3, "why": why}
### END PREDICTION


# %%
def waves(tokens, hidden, block=(128, 256), programs=132):
    """(tiles, waves, share of the time in which programs have nothing to do)."""
    tiles = triton.cdiv(tokens, block[0]) * triton.cdiv(hidden, block[1])
    full = tiles / programs
    return tiles, full, 1 - full / math.ceil(full)


# a program writes two parts at most; they are read
parts_us = 1e6 * 2 * 132 * 2 * (128 * 256 * 4) / roof.bytes_per_s
came = {}
for tokens in (512, 2048, 8192, 16384):
    for width, hidden in SIZES:
        tiles, full, wasted = waves(tokens, hidden)
        product_us = 2e6 * tokens * width * hidden / roof.flops_per_s
        print(
            f"{tokens:5} x {width} -> {hidden:5}: {tiles:5} tiles, {full:6.2f} waves, "
            f"{wasted:4.0%} wasted, {wasted * product_us / (1 - wasted):6.1f} us; "
            f"bytes of the parts up to {parts_us:.0f} us"
        )
        came.setdefault(f"{tokens} tokens", wasted)
against(predicted_waste, came)


# %% [markdown]
# **The prediction, counted.** 2176 tiles at 16384 tokens are 16.48 waves, so 0.52 of 17 is wasted, 3 %. At 2048
# tokens 272 tiles are 2.06 waves, and 0.94 of 3 is wasted, 31 %.


# %%
@drawn
def draw_shares(tiles=10, blocks=4, programs=4):
    """Who works when: whole tiles in waves above, equal shares of all blocks below;
    split tiles are hatched."""
    figure, axes = plots.figure(8.0, 3.8, rows=2)
    share = -(-tiles * blocks // programs)
    titles = (
        "In tiles, the last wave is half empty",
        "In shares, all end together, and split tiles meet again",
    )
    for ax, title in zip(axes, titles):
        segments = {}  # of a tile on a program: where its blocks stand
        for unit in range(tiles * blocks):
            tile = unit // blocks
            lane, start, split = (
                tile % programs, tile // programs * blocks + unit % blocks, False,
            )  # fmt: skip
            if ax is axes[1]:
                lane, start = unit // share, unit % share
                split = tile * blocks // share != (tile * blocks + blocks - 1) // share
            ax.barh(
                lane, 1, left=start, color=plots.PALETTE[tile % 6], height=0.8,
                edgecolor="white", linewidth=0.4, hatch="////" if split else "",
            )  # fmt: skip
            segments.setdefault((lane, tile), []).append(start)
        for (lane, tile), starts in segments.items():
            ax.text(
                sum(starts) / len(starts) + 0.5, lane, tile,
                ha="center", va="center", color="black", fontsize=8,
                bbox={
                    "facecolor": "white", "edgecolor": "none",
                    "boxstyle": "round,pad=0.2",
                },
            )  # fmt: skip
        ax.set(
            title=title, xlim=(0, 3 * blocks), yticks=range(programs),
            ylabel="program", xlabel="blocks of K, in time",
        )  # fmt: skip
        ax.invert_yaxis()
    return figure


# %%
plots.show(
    draw_shares(),
    alt="Ten tiles of four blocks on four programs. Above, in waves: "
    "three waves, in the last one two programs have nothing to do. "
    "Below, equal shares: all end earlier and together, two tiles are split "
    "between two programs",
)

# %% [markdown]
# Now a small stream-K of ours. Whole tiles take their GELU at once, as before. Parts go to memory in fp32, and a second
# kernel adds them and takes the GELU of the sum. (Real ones let the second program of a tile wait for the first; the
# wait is the same, at another place.) GELU of a part would be wrong, since
# $\mathrm{gelu}(p + q) \ne \mathrm{gelu}(p) + \mathrm{gelu}(q)$: that is what the report means by "a bias or an
# activation follows".


# %%
@triton.jit
def _gelu_tile(out_ptr, acc, tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_m = (tile // tl.cdiv(N, BLOCK_N)).to(tl.int64) * BLOCK_M + tl.arange(
        0, BLOCK_M
    )
    offs_n = tile % tl.cdiv(N, BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    y = acc / (1.0 + tl.exp(-1.5957691216057308 * (acc + 0.044715 * acc * acc * acc)))
    mask = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    tl.store(
        out_ptr + offs_m[:, None] * N + offs_n[None, :],
        y.to(out_ptr.dtype.element_ty),
        mask=mask,
    )


@triton.jit
def _joining_kernel(
    out_ptr, parts_ptr, M, N, K, share,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A program a tile: where it was split, add its parts in the order of programs,
    then GELU."""
    blocks = tl.cdiv(K, BLOCK_K)
    first, last = (
        tl.program_id(0) * blocks // share,
        (tl.program_id(0) * blocks + blocks - 1) // share,
    )
    if first < last:
        offs = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        # a program has two slots for parts. 1: the tile begins in its share, and
        # another program ends it; 0: the tile was begun before its share
        acc = tl.load(parts_ptr + (2 * first + 1) * BLOCK_M * BLOCK_N + offs)
        for program in range(first + 1, last + 1):
            acc += tl.load(parts_ptr + 2 * program * BLOCK_M * BLOCK_N + offs)
        _gelu_tile(out_ptr, acc, tl.program_id(0), M, N, BLOCK_M, BLOCK_N)


# %%
@triton.jit
def _partial_sum(
    x_ptr, w_ptr, tile, begin, stop, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Of a tile, from one block of K to another; x (M, K) and w (N, K) contiguous."""
    offs_m = (tile // tl.cdiv(N, BLOCK_N)).to(tl.int64) * BLOCK_M + tl.arange(
        0, BLOCK_M
    )
    offs_n = (tile % tl.cdiv(N, BLOCK_N)).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for block in range(begin, stop):
        k = block * BLOCK_K + tl.arange(0, BLOCK_K)
        x_mask, w_mask = (
            (offs_m < M)[:, None] & (k < K)[None, :],
            (offs_n < N)[None, :] & (k < K)[:, None],
        )
        x = tl.load(x_ptr + offs_m[:, None] * K + k[None, :], mask=x_mask, other=0.0)
        w = tl.load(w_ptr + offs_n[None, :] * K + k[:, None], mask=w_mask, other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return acc


# %%
@triton.jit
def _shares_kernel(
    out_ptr, parts_ptr, x_ptr, w_ptr, M, N, K, share,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """This program's share of all blocks of all tiles."""
    blocks = tl.cdiv(K, BLOCK_K)
    unit = tl.program_id(0) * share
    end = min(unit + share, tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N) * blocks)
    while unit < end:
        tile, begin = unit // blocks, unit % blocks
        stop = min(blocks, begin + end - unit)
        acc = _partial_sum(
            x_ptr, w_ptr, tile, begin, stop, M, N, K, BLOCK_M, BLOCK_N, BLOCK_K
        )
        if stop - begin == blocks:
            _gelu_tile(out_ptr, acc, tile, M, N, BLOCK_M, BLOCK_N)
        else:
            # 1 where the tile begins here, else 0
            slot = (2 * tl.program_id(0) + (begin == 0)).to(tl.int64)
            offs = (
                tl.arange(0, BLOCK_M)[:, None] * BLOCK_N
                + tl.arange(0, BLOCK_N)[None, :]
            )
            tl.store(parts_ptr + slot * BLOCK_M * BLOCK_N + offs, acc)
        unit += stop - begin


# %%
def stream_k(
    x, w, out, programs=132 if GPU else 6, block=(128, 128, 64) if GPU else (32, 32, 32)
):
    """gelu(x w^T) into out, in equal shares."""
    (M, K), N = x.shape, w.shape[0]
    tiles = triton.cdiv(M, block[0]) * triton.cdiv(N, block[1])
    share = triton.cdiv(tiles * triton.cdiv(K, block[2]), programs)
    parts = torch.empty(
        programs, 2, block[0], block[1], dtype=torch.float32, device=x.device
    )
    _shares_kernel[(programs,)](
        out, parts, x, w, M, N, K, share, *block, num_warps=8 if GPU else 4
    )
    _joining_kernel[(tiles,)](
        out, parts, M, N, K, share, *block, num_warps=8 if GPU else 4
    )


x, w = (
    torch.randn(70, 150, device=DEVICE),
    torch.randn(100, 150, device=DEVICE) * 150**-0.5,
)
out = torch.full((70, 100), math.nan, device=DEVICE)
stream_k(x, w, out)
h = x.double() @ w.double().mT
print(f"error of ours: {numerics.error(out, gelu(h)).rms:.1e}")
halves = gelu(x.double()[:, :75] @ w.double()[:, :75].mT) + gelu(
    x.double()[:, 75:] @ w.double()[:, 75:].mT
)
print(f"GELU of two parts, then added: {numerics.error(halves, gelu(h)).rms:.1e}")

# %% [markdown]
# On a GPU the next cell measures it at few and at many tokens, beside the product in whole tiles of exercise 5.3 (it
# needs your `linear_gelu`).

# %%
took = {}
for tokens in (512, 2048, 16384) if GPU else ():
    x, w = (
        torch.randn(s, device=DEVICE, dtype=half())
        for s in ((tokens, 1152), (4304, 1152))
    )
    out = torch.empty(tokens, 4304, device=DEVICE, dtype=half())
    took[f"{tokens} tokens, tiles"] = timed(
        lambda x=x, w=w, out=out: linear_gelu(x, w, None, out)
    )
    took[f"{tokens} tokens, stream-K"] = timed(
        lambda x=x, w=w, out=out: stream_k(x, w, out)
    )
if not took and not recorded("lesson05.stream_k"):
    print("Until then the verdict below rests on the count of waves alone.")
results.beside("lesson05.stream_k", took, unit="us")

# %% [markdown]
# **Predicted and measured.** Both kernels make tiles of 128 x 128 here, so the counts are others than above. At 512
# tokens 136 tiles need two waves and waste half of the time, 14 us of 30. At 2048 tokens it is 18 %, 12 us of 67. The
# parts are half as large, 8 us, and a second launch costs two or three: some 4 and 1 us should be left. On the H200
# it is 0.3 and 1.2 us, 1 % and 2 %; the timer was asked for a hundredth, so at 512 tokens no gain can be told. At 16384
# tokens the last wave is full, nothing can be gained, and stream-K takes a *third longer*: its shares go along the
# rows of tiles, where the tiles of exercise 5.3 are taken in groups that share rows of x in the L2 cache. (A real
# stream-K walks in groups too, and often takes whole tiles for all waves but the last ones: a hybrid.
# `benchmarks/notes/linear_gelu.md` has the bytes.)
#
# **Verdict.** The report's observation fits the count and our run, and its reason is half of it. What follows the
# product makes stream-K *dearer*, because parts must go through memory in fp32 and meet before the GELU; it does not
# make it impossible. The other half: for the tower's layer the last wave wastes no more time than the bytes of the
# parts may take, at any of the numbers of tokens above. For the wide layer some tens of microseconds of some
# milliseconds could be had. (And a library takes smaller tiles where that fills the wave.)
#
# ### What the compiler does to small numbers
# One more rounding hides in the instructions. Compile a kernel with one line for each operation and read the PTX, the
# assembly language of NVIDIA GPUs that the compiler writes: an instruction with `.ftz` in its name **flushes to zero**
# what is subnormal in fp32, going in and coming out; `.approx` and `.full` promise an error of an ulp or two instead of
# correct rounding. (The first time, compiling takes some ten seconds.)

# %%
import re

from course_lib.compiled import compile_kernel

OPERATIONS = {
    "x * 0.3": "x * 0.3", "x + 0.3": "x + 0.3",
    "x * x + 0.3": "x * x + 0.3", "0.3 / x": "0.3 / x",
    "tl.div_rn": "tl.div_rn(x, 0.3)", "tl.exp": "tl.exp(x)",
    "tl.exp2": "tl.exp2(x)", "tl.sqrt": "tl.sqrt(x)",
    "tl.sqrt_rn": "tl.sqrt_rn(x)", "tl.rsqrt": "tl.rsqrt(x)", "tl.log": "tl.log(x)",
}  # fmt: skip
SOURCE = """
import triton
import triton.language as tl

@triton.jit
def one(out_ptr, x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 128))
    tl.store(out_ptr + tl.arange(0, 128), {})
"""


# %%
def floating(code):
    """The floating-point instructions of a line of Triton, for an H200."""
    ptx = compile_kernel(
        (SOURCE.format(code), "one"), {"out_ptr": "*fp32", "x_ptr": "*fp32"}
    ).ptx
    names = re.findall(
        r"^\s*(?:@!?%p\d+ )?((?:add|mul|fma|div|ex2|lg2|sqrt|rsqrt|sub)\.[a-z.]*f32)",
        ptx,
        re.M,
    )
    return ", ".join(dict.fromkeys(names))


for name, code in OPERATIONS.items():
    print(f"{name:12} {floating(code)}")

# %% [markdown]
# So Triton's plain arithmetic keeps subnormal numbers, and its division is *not* correctly rounded unless asked;
# `exp2`, `sqrt` and `rsqrt` flush. (`log` has `.ftz` in its text too, and does not: before anything else it multiplies
# a subnormal number by $2^{23}$, with a `mul` that keeps it. Read the whole text, and not the names alone.) Does it
# matter? For GELU no: $e^{-2u}$ below $10^{-38}$ beside a 1 is nothing either way. For a softmax no, for the same
# reason. It matters where a tiny number is *alone*: `rsqrt` of a subnormal variance is infinite, which is one more
# reason to add $\varepsilon$ inside the root. The interpreter flushes nothing, so this is one of the things that a
# check on a CPU cannot show.

# %% [markdown]
# ## 6. Who owns the memory?
# ### Case file
# **The report on the tower says**: the tower (batch 1024, 256 patches, bf16) peaks at 19288 MiB, after all changes at
# 12137 MiB. The largest owner is the activation of the MLP. Seeded dropout would have saved about 1000 MiB more.
#
# How much of a model is in that figure? Between forward and backward lives what autograd keeps: for each operator what
# its backward step needs. That can be counted without the GPU and without the memory. Tensors on the **meta** device
# have a shape and no bytes, operators run on them in no time, and a ledger notes which memory is made, who holds it,
# and when it goes.
#
# ### Predict
# One layer of that tower: 262144 tokens of width 1152, MLP 4304, 16 heads. How many GiB does it keep for backward? How
# much of it belongs to the MLP, how much to the scores of a naive attention? A tensor of the residual stream has 262144
# x 1152 x 2 bytes, 0.56 GiB.

# %%
predicted_gib = {  # replace None
    "one layer": None,
    "h and gelu(h)": None,
    "scores": None,
}
### BEGIN PREDICTION
why = (
    "h and a 2.1 each, scores 1024 x 16 x 256 x 256 x 2 bytes, five "
    "tensors of the width"
)
predicted_gib = {"one layer": 9.0, "h and gelu(h)": 4.2, "scores": 2.0, "why": why}
### END PREDICTION


# %%
with torch.device("meta"):
    tower_layer = Layer(1152, heads=16, hidden=4304).to(torch.bfloat16)
    patches = torch.empty(1024, 256, 1152, dtype=torch.bfloat16, requires_grad=True)
account = memory.ledger(
    lambda: tower_layer(patches + 0), dict(tower_layer.named_parameters())
)
kept = [
    (k.operator, k.shape, k.bytes / 2**30)
    for k in account.kept
    if not k.given and k.bytes > 2**24
]
for operator, shape, gib in kept:
    print(f"{operator:22} keeps {tuple(shape)!s:26} {gib:5.2f} GiB")
came = {
    "one layer": sum(gib for *_, gib in kept),
    "h and gelu(h)": sum(g for _, s, g in kept if 4304 in s),
    "scores": sum(g for _, s, g in kept if s[-2:] == (256, 256)),
}
against(predicted_gib, came)

# %% [markdown]
# **The prediction, counted.** A layer keeps 10.7 GiB: h and gelu(h), 2.10 each, are 4.2; the scores are 2.0; and
# eight tensors of the width, 0.56 each, are 4.5.

# %%
WORDS = {
    "native_layer_norm keeps input": "inputs of norms",
    "gelu keeps self": "h, input of GELU",
    "mm keeps self": "inputs of linear layers",
    "bmm keeps mat2": "k and v",
    "softmax keeps result": "probabilities",
}
axes = plots.memory_by_owner(
    account,
    title="One layer: what is kept climbs through forward and falls through backward",
    device="accounted on meta tensors, bf16, 1024 x 256 tokens of 1152",
    words=WORDS,
)
plots.show(
    axes,
    alt="Memory of one layer over its operators as stacked areas: "
    "inputs of linear layers, the MLP's two hidden tensors and the attention's "
    "probabilities grow through forward and go one by one in backward",
)

# %% [markdown]
# Look at the part that is held "in passing". Much of it is owned by nothing but a *name*: `s` in `Layer.forward` holds
# the scores until the function returns, though nobody needs them after the softmax. (The attention of a library, fused,
# holds neither the scores nor the probabilities; lesson 04.)
#
# **So 19288 MiB cannot be the whole tower.** One layer keeps more than half of that, and nearly half where the
# attention is fused and keeps no scores. So400m, whose sizes these are, has 27 layers. Either the tower was
# checkpointed (only the inputs of its layers were kept), or one or two layers were measured, or the batch went through
# in parts. A memory figure without the number of layers cannot be checked, and this is the check. The report's "about
# 1000 MiB" for dropout tells the same story: a mask is one byte an element of the scores.

# %%
mask = 1024 * 16 * 256**2
print(
    f"a dropout mask on the scores of one layer: {mask / 2**20:.0f} MiB; of 27 layers: "
    f"{27 * mask / 2**30:.0f} GiB"
)

# %% [markdown]
# ### Predicted and measured
# Is the account right? Here is the same layer, small, with real memory: the ledger on meta tensors beside what torch's
# own profiler (on a GPU the allocator) sees of a forward pass, and of a whole step.


# %%
def on_paper(make):
    """(held, peak) bytes of a step by the ledger, on tensors without memory."""
    with torch.device("meta"):
        layer, x = make()
    one = memory.ledger(lambda: layer(x))
    return one.held_bytes, one.peak_bytes


def in_memory(make):
    """(held, peak) bytes of a step, measured."""
    with torch.device(DEVICE):
        layer, x = make()
    leaves, dy = [x, *layer.parameters()], torch.ones_like(x)
    held = memory.timeline(lambda: layer(x)).held_bytes
    return held, memory.timeline(
        lambda: torch.autograd.grad(layer(x), leaves, dy)
    ).peak_bytes


for width, length in ((256, 32), (256, 128), (512, 64)):

    def make(width=width, length=length):
        return Layer(width), torch.ones(4, length, width, requires_grad=True)

    for words, paper, seen in zip(("held", "peak"), on_paper(make), in_memory(make)):
        print(
            f"width {width}, {4 * length:3} tokens, {words}: "
            f"counted {paper / 2**20:6.2f} MiB, measured {seen / 2**20:6.2f} MiB, "
            f"{paper / seen - 1:+.1%}"
        )

# %% [markdown]
# Account and measurement agree to the last digit shown for width 256. For width 512 the H200 holds 0.7 MiB more than
# was counted, 8 %: there the measurement is the allocator's own count of the blocks it gave out, and a block may be
# larger than the tensor in it.
#
# ### Which operator keeps what
# The ledger asks autograd. You can know it without asking: an operator keeps what its derivative is written in. Look at
# what these keep, and find the rule for each: the input, the result, something else, nothing?

# %%
w, other = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8, requires_grad=True)
chains = {
    "linear": lambda y: y @ w, "gelu": gelu,
    "silu": nn.functional.silu, "relu": torch.relu, "tanh": torch.tanh,
    "exp": torch.exp, "softmax": lambda y: y.softmax(-1),
    "mul": lambda y: y * other, "add": lambda y: y + other,
    "layer norm": lambda y: nn.functional.layer_norm(y, (8,)), "sum": lambda y: y.sum(),
}  # fmt: skip
for name, operator in chains.items():
    names = [
        k.name
        for k in memory.saved(operator(torch.randn(4, 8, requires_grad=True) + 0))
    ]
    print(f"{name:11} keeps {', '.join(names) if names else 'nothing'}")

# %% [markdown]
# ("self" is the input. In a product both factors are kept: each is what the gradient of the other is multiplied by.)
# Two neighbours can share: if ReLU keeps its result and the linear layer behind it keeps its input, that is *one*
# tensor.
#
# ## Exercise 5.4 `mlp.saved` (30 min, 4 points)
# Write `saved(shape, dtype, x_grad, layers)`: what every operator of a model keeps for its backward pass, a list with a
# number of bytes for each layer. Eager mode; `course_lib.memory` is not there when it is judged.
#
# - `x` has this shape and type (`"fp32"`, `"bf16"`, `"fp16"`), every other tensor the same type; `x_grad` says whether
#   x requires a gradient
# - `layers` follow one another, layer 0 takes x. Each is a dictionary with `"op"`:
#     - `"linear"`: `"out"` is the number of columns of its result, `"frozen"` whether weight and bias require no
#       gradient
#     - `"layer_norm"`: over the last dimension, with weight and bias that are trained; mean and rstd of each row are
#       fp32
#     - `"gelu"`, `"silu"`, `"relu"`, `"tanh"`, `"sigmoid"`, `"exp"`, `"softmax"`
#     - `"dropout"`: as a GPU has it: a mask of one byte an element
#     - `"add"`, `"mul"`: with the result of layer number `"from"`, or with x where `"from"` is `"x"`
# - counted is memory that autograd holds because of an operator, beyond what is alive anyway: x, weights and biases
#   count nothing. A tensor that several operators keep is counted where it is kept first
# - an operator keeps nothing when no gradient has to pass it


# %% nbgrader={"grade": false, "grade_id": "mlp_saved", "locked": false, "schema_version": 3, "solution": true, "task": false}
def saved(shape, dtype, x_grad, layers):
    """Bytes that each layer keeps for its backward pass."""
    ### BEGIN SOLUTION
    size = {"fp32": 4, "bf16": 2, "fp16": 2}[dtype]
    elements, width = {"x": math.prod(shape)}, {"x": shape[-1]}
    needs, counted, answer, now = {"x": x_grad}, {"x"}, [], "x"
    for number, layer in enumerate(layers):
        op, asked, columns, keeps, more = layer["op"], needs[now], width[now], [], 0
        rows = elements[now] // columns
        if op == "linear":
            columns = layer["out"]
            if not layer["frozen"]:  # dw = dyᵀ x; dx = dy w needs the weight only
                keeps, asked = [now], True
        elif op == "layer_norm":
            keeps, more, asked = [now], 8 * rows, True  # mean and rstd
        elif op == "mul":
            other = layer["from"]
            keeps = [now] * needs[other] + [other] * asked
            asked = asked or needs[other]
        elif op == "add":
            asked = asked or needs[layer["from"]]
        elif asked and op == "dropout":
            more = elements[now]
        elif asked:
            # the others' slopes are written in their results
            keeps = [now] if op in ("gelu", "silu") else [number]
        elements[number], width[number], needs[number] = rows * columns, columns, asked
        for name in keeps:
            more += 0 if name in counted else size * elements[name]
            counted.add(name)
        answer.append(more)
        now = number
    return answer
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "mlp_saved_check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("mlp.saved", saved)

# %% [markdown]
# <details><summary>Hint 1: what to carry along</summary>
#
# For x and for each result three things: how many elements, how many columns, and whether a gradient has to come back
# to it. And one set of the tensors that were counted already; x is in it from the beginning.
# </details>
# <details><summary>Hint 2: who asks for gradients</summary>
#
# A result needs one when its input does, or when the operator has trained weights. A trained linear layer keeps its
# input even if the input needs no gradient (dw is made of it); a frozen one keeps nothing, and hands on whether its
# input asked.
# </details>
# <details><summary>Hint 3: products, and results</summary>
#
# `a * b` keeps b if a needs a gradient, and a if b does. The slope of tanh, sigmoid, exp, ReLU and softmax can be
# written in the *result*, and that is what they keep; the name of the kept tensor is then the layer's own number.
# </details>

# %% [markdown]
# ## 7. Keep it, or make it again
# The MLP holds three tensors for its backward pass: $x$, $h$ and $a = \mathrm{gelu}(h)$.
#
# $$da = dy\, w_2 \qquad dh = da \circ \mathrm{gelu}'(h) \qquad dx = dh\, w_1 \qquad dw_1 = dh^\top x \qquad
#   dw_2 = dy^\top a$$
#
# $h$ and $a$ are the large ones, several times as wide as $x$. But $a$ is a function of $h$, and $h$ of $x$, and $x$ is
# there. So there are three policies: keep everything; keep $h$ and make $a$ again; keep $x$ only and make both again.
#
# Choose a policy and a number of layers. What is *held* adds up over the layers; what one layer needs *in passing*,
# during its own backward step, does not. With one layer, recomputing saves little at the peak. With many it is
# everything.

# %%
widgets.memory_explorer()

# %% [markdown]
# ### Case file
# **The report on the tower**, in numbers: forward 2100 ms before and 1274 ms after all changes; backward 2900 ms before
# and 2971 ms after; the MLP kernel recomputes part of the activation in backward. Memory went down by more
# than a third, and backward became *slower*, although fused norms and fewer launches should have made it cheaper too.
#
# ### Predict
# Recomputing what, do you think, costs time? Give the time of a whole step (forward and backward, only the MLP) that is
# *fused*, with GELU in the ends of products, over that of an *eager* step that keeps everything and has GELU in kernels
# of its own, as the roofline has it, for widths 1152 and 4096. A product has the FLOPs counted in section 5; forward
# has two of them, backward four.

# %%
predicted_step = {  # replace None: fused / eager
    "pre-activation, 1152": None,
    "input, 1152": None,
    "input, 4096": None,
}
### BEGIN PREDICTION
why = (
    "6 or 7 products of 244 us, over 6 of them and 5 passes of 33; "
    "wider, passes weigh less"
)
predicted_step = {
    "pre-activation, 1152": 0.9,
    "input, 1152": 1.05,
    "input, 4096": 1.12,
    "why": why,
}
### END PREDICTION


# %%
def step_s(width, hidden, keep, fused):
    """Least seconds of a step on the recorded H200; GELU in the ends of products (fused) or in kernels of its own."""
    products = {"everything": 6, "pre-activation": 6, "input": 7}[keep]
    whole = products * 2 * TOKENS * width * hidden / roof.flops_per_s
    # passes over a hidden matrix by kernels of their own: gelu 2, its slope 3, and once
    # more gelu where a is made again
    passes = 0 if fused else 5 + (0 if keep == "everything" else 2)
    return whole + passes * 2 * TOKENS * hidden / roof.bytes_per_s


came = {}
for width, hidden in SIZES:
    base = step_s(width, hidden, "everything", fused=False)
    for keep, tensors in (("everything", 2), ("pre-activation", 1), ("input", 0)):
        held_mib = 2 * TOKENS * (width + tensors * hidden) / 2**20
        came[f"{keep}, {width}"] = step_s(width, hidden, keep, fused=True) / base
        print(
            f"{width} -> {hidden}, {keep:14} kept: {held_mib:6.0f} MiB; "
            "floor of a step over eager's: GELU apart "
            f"{step_s(width, hidden, keep, False) / base:.2f}, fused "
            f"{came[f'{keep}, {width}']:.2f}"
        )
against(predicted_step, came)

# %% [markdown]
# **The prediction, counted.** On the H200's roofs an eager step at width 1152 has 6 products of 244 us and 5 passes
# of 33 us. Fused, 6 products are 0.90 of that, and 7 products 1.05. At 4096, where a pass weighs less, 7 are 1.13.
#
# Three kinds of recomputation hide in that table.
#
# - **GELU again, in the end of a product** ("pre-activation", fused): $h$ is read there anyway for the slope, and some
#   arithmetic hides behind bytes or in a tile's end. Memory for nothing.
# - **GELU again, in a kernel of its own** ("pre-activation", apart): two passes over a large matrix more. Memory for
#   bytes.
# - **A product again** ("input"): right of the ridge FLOPs are what time is made of, so one product more of six costs a
#   sixth of a fused step, whatever it saves. Memory for FLOPs.
#
# For any tensor one may ask: how many MiB does it free, and how many microseconds does it cost to make it again?

# %%
rows = TOKENS
# what is made again: (bytes freed, FLOPs, bytes moved by a kernel of its own, or 0
# where it is fused)
candidates = {
    "a from h, fused": (2 * rows * 4304, 10 * rows * 4304, 0),
    "a from h, kernel of its own": (2 * rows * 4304, 10 * rows * 4304, 4 * rows * 4304),
    "norm's result from its input": (2 * rows * 1152, 8 * rows * 1152, 4 * rows * 1152),
    "h from x, width 1152": (2 * rows * 4304, 2 * rows * 1152 * 4304, 0),
    "h from x, width 4096": (2 * rows * 16384, 2 * rows * 4096 * 16384, 0),
}
# elementwise work
vector = Roof("H200 fp32", ceiling["matmul fp32, TFLOP/s"] * 1e12, roof.bytes_per_s)
gains = []
for name, (freed, flops, moved) in candidates.items():
    cost = floor_s(Work(flops, moved), roof if name.startswith("h from") else vector)
    gains.append(freed / 2**20 / (1e6 * cost))
    print(
        f"{name:30} frees {freed / 2**20:5.0f} MiB, costs {1e6 * cost:6.1f} us or "
        f"more: {gains[-1]:5.2f} MiB/us at best"
    )
print(f"best over worst: {max(gains) / min(gains):.0f}")

# %% [markdown]
# **Sort such a list by its last column, make again what stands at the top until the model fits, and stop there.** (In
# the first line GELU's arithmetic is charged in full; at the end of a product part of it hides. How much is a
# measurement.) It also fits the report: a backward pass that got slower while everything around it got faster has put
# back either a product, or a kernel of its own.
#
# ## Exercise 5.5 `mlp.recompute` (50 min, 7 points)
# Write `mlp(x, w1, b1, w2, b2)`: linear, GELU (tanh form), linear, that keeps nothing for its way back but its
# arguments. **Take the library's products.** A product of your own would lose far more time than the memory is worth
# (section 5), and the library's sums over rows are as good. What no library has is the kernel between the products: one
# pass that reads h and da and writes a and dh. That one is yours.
#
# - `x`: (M, d), its rows may lie apart; `w1`: (n, d), `b1`: (n,), `w2`: (d, n), `b2`: (d,), contiguous. fp32 or fp16
#   (bf16 on a GPU), one type for all; y is new and of that type
# - it can be differentiated in all five. Gradients as in the formulas above; db1 and db2 are the sums of the rows of dh
#   and dy. With $t = \tanh u$: $\mathrm{gelu}'(h) = \frac{1 + t}2 + \frac h2 (1 - t^2)\, u'$
# - allowed are `@`, `torch.mm`, `torch.addmm`, `F.linear`, `torch.mv` and `torch.sum`. GELU and its slope are in your
#   kernels: any other arithmetic of torch earns nothing
# - arithmetic in fp32 (the library's products of fp32 are, unless told otherwise); what goes through memory between two
#   products has the type of x
# - **between** the passes the five arguments are kept, and beyond them at most an eighth of the bytes of h
# - **within** a pass at most two matrices of the size of h are alive at one time: a takes the place of h, and dh that
#   of da. The referee looks at both, and at the second where M and n are large
# - dy comes in any strides, that of a sum with strides of 0, and stays as it is, as the five do. `torch.empty` gives NaN


# %% nbgrader={"grade": false, "grade_id": "mlp_recompute_kernels", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _through_gelu_kernel(h_ptr, da_ptr, n, BLOCK: tl.constexpr):
    """h becomes gelu(h) in place; da, if there is one, becomes dh in place."""
    ### BEGIN SOLUTION
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    h = tl.load(h_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    # (1 + tanh u) / 2
    s = 1.0 / (1.0 + tl.exp(-1.5957691216057308 * (h + 0.044715 * h * h * h)))
    tl.store(h_ptr + offs, (h * s).to(h_ptr.dtype.element_ty), mask=mask)
    if da_ptr is not None:
        rise = 1.5957691216057308 * (1.0 + 3.0 * 0.044715 * h * h)
        da = tl.load(da_ptr + offs, mask=mask, other=0.0).to(tl.float32)
        dh = da * s * (1.0 + h * (1.0 - s) * rise)
        tl.store(da_ptr + offs, dh.to(da_ptr.dtype.element_ty), mask=mask)
    ### END SOLUTION


def through_gelu(h, da=None):
    """h and da, contiguous, are written over."""
    ### BEGIN SOLUTION
    _through_gelu_kernel[(triton.cdiv(h.numel(), 1024),)](h, da, h.numel(), BLOCK=1024)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mlp_recompute", "locked": false, "schema_version": 3, "solution": true, "task": false}
class MLP(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2):
        ### BEGIN SOLUTION
        ctx.save_for_backward(x, w1, b1, w2)
        a = torch.addmm(b1, x, w1.mT)  # h; the kernel makes a of it
        through_gelu(a)
        return torch.addmm(b2, a, w2.mT)
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        x, w1, b1, w2 = ctx.saved_tensors
        a, dh = torch.addmm(b1, x, w1.mT), dy @ w2  # h again, and da
        through_gelu(a, dh)
        return dh @ w1, dh.mT @ x, dh.sum(0), dy.mT @ a, dy.sum(0)
        ### END SOLUTION


def mlp(x, w1, b1, w2, b2):
    """gelu(x w1^T + b1) w2^T + b2; for backward the arguments are kept."""
    return MLP.apply(x, w1, b1, w2, b2)


# %% nbgrader={"grade": true, "grade_id": "mlp_recompute_check", "locked": true, "points": 7, "schema_version": 3, "solution": false, "task": false}
check("mlp.recompute", mlp)

# %% [markdown]
# <details><summary>Hint 1: the frame</summary>
#
# A `torch.autograd.Function` with two static methods. `forward(ctx, ...)` calls `ctx.save_for_backward` with arguments
# only. `backward(ctx, dy)` takes them from `ctx.saved_tensors` and returns five gradients, in the order of the
# arguments. Inside both of them torch records nothing.
# </details>
# <details><summary>Hint 2: seven products</summary>
#
# `torch.addmm(b1, x, w1.mT)` is h with its bias in one call; the library takes transposed views, and a dy with strides
# of 0, as they are. Six more: y, h again, da, and three gradients. The kernel is elementwise, so it needs no shape: one
# index over all of h.
# </details>
# <details><summary>Hint 3: in place</summary>
#
# An element of a depends on the same element of h, and an element of dh on the same elements of h and da. So a program
# loads both, and then may store over both: nobody else reads them. A `da` that may be `None` stays `None` inside:
# `if da_ptr is not None:` around its load and store, and Triton compiles a kernel for each of the two.
# </details>
# <details><summary>Hint 4: the slope, and what is wrong when only some gradients are</summary>
#
# With $s = 1/(1 + e^{-2u})$, gelu is $hs$ and its slope $s + hs(1-s)\,2u'$, where
# $u' = \sqrt{2/\pi}(1 + 3 \cdot 0.044715 h^2)$. If dw2 and db2 are right and everything else is wrong, look at the
# slope; the check compares with slopes in which something is missing and names it. If dw2 alone is wrong, `a` was not
# made again from the h with its bias.
# </details>

# %% [markdown]
# ### Measure
# What does yours hold between the passes, and what does eager hold? The ledger sees both. On a GPU also the time of a
# step.


# %%
def mlp_arguments(tokens, width, hidden, dtype=torch.float32):
    shapes = ((tokens, width), (hidden, width), (hidden,), (width, hidden), (width,))
    scales = (1, width**-0.5, 0.5, hidden**-0.5, 0.5)
    made = [torch.randn(s, device=DEVICE) * k for s, k in zip(shapes, scales)]
    return [t.to(dtype).requires_grad_() for t in made]


def eager_mlp(x, w1, b1, w2, b2):
    return nn.functional.linear(gelu(nn.functional.linear(x, w1, b1)), w2, b2)


def step(fn, leaves, dy):
    return torch.autograd.grad(fn(*leaves), leaves, dy)


arguments = mlp_arguments(64, 64, 240)
for name, fn in (("eager", eager_mlp), ("mine", mlp)):
    kept = [k for k in memory.saved(fn(*arguments)) if not k.given]
    times = sum(k.bytes for k in kept) / arguments[0].nbytes
    print(
        f"{name}: {times:.2f} times the bytes of x, beyond the arguments: "
        f"{', '.join(f'{k.operator} {tuple(k.shape)}' for k in kept) or 'nothing'}"
    )

# %%
MLP_SIZE = (TOKENS, 1152, 4304) if GPU else (256, 96, 360)
leaves = mlp_arguments(*MLP_SIZE, half() if GPU else torch.float32)
dy, steps = torch.randn_like(leaves[0]), {}
for name, fn in (
    (("eager", eager_mlp), ("mine", mlp)) if GPU else (("eager", eager_mlp),)
):
    steps[name] = timed(lambda fn=fn: step(fn, leaves, dy))
results.beside(
    "lesson05.recompute", steps, unit="ms", size=" x ".join(map(str, MLP_SIZE))
)

# %% [markdown]
# The solution makes the product for h again, 1 of 7, and its kernel saves one of the seven passes that the count
# above gives to "input kept, GELU apart". That count is 1.19 of eager's step at width 1152 and 1.17 at 4096; on the
# H200 it is 1.14 at width 1152 in the table above, 240 us more than eager; on another host it was 1.13 and 1.16. So
# the price is a product, as counted, and no more.
#
# ### The tools that do it for you
# In a program you rarely write such a Function. PyTorch has three tools, and each is one of the policies:
#
# - **Checkpointing** (`torch.utils.checkpoint`) keeps the inputs of a block and makes again what is in it, up to the
#   last tensor that backward needs: "input". So the block's last product is not made again; nobody needs its result.
#   (The older form, `use_reentrant=True`, makes that again too.)
# - **Selective checkpointing** (`create_selective_checkpoint_contexts`) says operator by operator what is kept. With the
#   products kept, GELU is made again and no product is: "pre-activation", in kernels of their own.
# - **A minimum cut**: `torch.compile` searches the joint graph of both passes for the cheapest set of tensors to keep.
#   It makes again what costs nothing, elementwise work inside of a kernel that runs anyway. GELU is no such work: the
#   product behind it reads a from memory, so a has to be written wherever it is made. Its `activation_memory_budget`
#   below 1 asks for less memory, and pays with time.

# %%
from functools import partial

from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

PRODUCTS = [torch.ops.aten.addmm.default, torch.ops.aten.mm.default]
products_kept = partial(create_selective_checkpoint_contexts, PRODUCTS)
# cuts alike, and generates no code
backend = "inductor" if GPU else "aot_eager_decomp_partition"
TOOLS = {
    "eager": eager_mlp,
    "checkpoint": lambda *t: checkpoint(eager_mlp, *t, use_reentrant=False),
    "selective, products kept": lambda *t: checkpoint(
        eager_mlp, *t, use_reentrant=False, context_fn=products_kept
    ),
    "compiled, minimum cut": torch.compile(eager_mlp, backend=backend, dynamic=False),
}
held, took = {}, {}
for name, fn in TOOLS.items():
    step(fn, leaves, dy)  # compiles
    result_bytes = leaves[0].nbytes
    held[name] = (
        memory.timeline(lambda fn=fn: fn(*leaves)).held_bytes - result_bytes
    ) / 2**20
    took[name] = timed(lambda fn=fn: step(fn, leaves, dy))
size = " x ".join(map(str, MLP_SIZE))

# %%
results.beside("lesson05.tools_held", held, unit="MiB", size=size)

# %%
results.beside("lesson05.tools", took, unit="ms", size=size)

# %% [markdown]
# Read the two tables as one. Checkpointing holds nothing beyond the arguments (the input of a layer is such an
# argument) and pays a product and GELU's passes. Selective checkpointing holds h, and pays the passes only. Eager
# holds h and a, 269 MiB, and so does the minimum cut here: it pads their rows of 4304 numbers to 4352, a multiple of
# 128 bytes, and so holds 272. What one layer needs *within* its own backward step is not in the first table: it comes
# once, whatever the number of layers. (Selective checkpointing looks at every operator from Python. In a step of 2 ms
# this may show: on another host it took longer than plain checkpointing at width 1152. In the table here it is 2 %
# below eager, though it has two passes more; the two readings of eager on this page differ by 1 %, so do not read it
# as a gain. At width 4096 it took 6 % more than eager on that other host, and plain checkpointing 20 % more, a
# product.)
#
# Which to take: compile first. If the model does not fit, checkpoint whole layers, as many as needed and no more;
# selectively, where products are most of the time. A Function of your own pays where no library has a kernel for what
# lies between two products, and where memory *within* the step counts.
#
# And the course's kernels, whose ends of products are fused:

# %%
EAGERS = "eager's"
for row in recorded("mlp"):
    if row["name"].startswith("mlp step") and EAGERS in row:
        print(
            f"{row['name']:50} {row['value']:7.0f} us, over eager's "
            f"{row['ratio']:.3f}; held {row['held MiB']:.0f} of {row[EAGERS]:.0f} MiB"
        )

# %% [markdown]
# **Predicted and measured**, the course's kernels. A step over eager's:
#
# | kept | width 1152: floor | came | width 4096: floor | came |
# |---|---|---|---|---|
# | everything | 0.90 | 0.91 | 0.97 | 0.94 |
# | pre-activation | 0.90 | 0.93 | 0.97 | 0.93 |
# | input | 1.05 | 1.06 | 1.13 | 1.08 |
#
# Two of the three kinds of recomputation can be read off. GELU again, in the end of a product: 1716 us with everything
# kept and 1722 without `a`. (0.91 and 0.93 differ by eager's own time, 1882 and 1855 us.) A product again: 261 us more,
# where 244 were counted; at 4096 it is 2.9 to 3.4 ms, where 3.3 were. The table's ratios are in turn. With the input
# kept, each alone for a second, a step takes 1.07 and 1.15 of eager's. (How far such steps move from run to run, and
# with what ran before them, stands in `benchmarks/notes/mlp.md`.)
#
# ### SwiGLU: how the counts change
# Most language models have replaced GELU by a **gate**: $y = (\mathrm{silu}(x w_1^\top) \circ x w_3^\top)\, w_2^\top$,
# with three matrices, and a hidden width of two thirds so that parameters and FLOPs stay the same. Let the ledger count
# what is kept.


# %%
def swiglu(x, w1, w3, w2):
    return (nn.functional.silu(x @ w1.mT) * (x @ w3.mT)) @ w2.mT


with torch.device("meta"):
    n = 2 * 4304 // 3
    shapes = ((TOKENS, 1152), (n, 1152), (n, 1152), (1152, n))
    gate = [
        torch.empty(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes
    ]
    plain = [
        torch.empty(s, dtype=torch.bfloat16, requires_grad=True)
        for s in ((TOKENS, 1152), (4304, 1152), (4304,), (1152, 4304), (1152,))
    ]
for name, fn, given in (("GELU", eager_mlp, plain), ("SwiGLU", swiglu, gate)):
    kept = [k for k in memory.saved(fn(*given), given) if not k.given]
    print(
        f"{name}: {len(kept)} hidden tensors, {sum(k.bytes for k in kept) / 2**20:.0f} "
        f"MiB; {', '.join(k.operator for k in kept)}"
    )

# %% [markdown]
# Four tensors of two thirds are a third more than two whole ones. Two of the four, silu of the gate and the product of
# both, are functions of the other two: a fused elementwise kernel makes them again in its backward pass, and then
# SwiGLU keeps *less* than GELU does in eager. The list by bytes a microsecond is the same list: elementwise work first,
# products last.

# %% [markdown]
# ### Verdict on the case
# "Recompute to save memory" is right, and it is no single thing. Where the ends of products make GELU again it is free.
# A product more costs 15 to 18 % of a fused step, and the passes that fusion saves pay for a part of it: on the H200
# such a step takes 6 % more than eager's at width 1152, and 8 % at 4096, where there is less to save. Measured each
# alone for a second, they are 7 and 15 %. The report's forward pass takes 39 % less time and its backward pass 2 %
# more, though fused norms should have helped both: its figures fit a product made again, or a kernel of its own for
# what is made again, and do not tell which. For your own work: before you recompute, say which of the three kinds it
# is, and what it frees a microsecond.

# %% [markdown] tags=["part-c"]
# ## Part C. Norm and dropout
#
# 130 minutes. Lesson 01 is needed: rows in registers, bytes.
#
# | section | what it is about | minutes |
# |---|---|---|
# | 8 | residual and norm, in place and in one pass each way; RMSNorm; exercise 5.6 | 80 |
# | 9 | dropout from a seed, four numbers of a call, and the compiler; exercise 5.7 | 50 |

# %% [markdown]
# ## 8. Residual and norm, in place
# Between two halves of a layer stands $s = x + r$ and then $y = \mathrm{norm}(s)$. As two operators: read x and r,
# write s, read s, write y. Fused: read x and r, write s and y. In place, y takes the memory of x and s that of r, so a
# layer needs no new memory at all, where nobody needs the old values any more.
#
# $$\hat h = (s - \mu)\,\rho \qquad y = \hat h\, w + b \qquad \rho = 1/\sqrt{\mathrm{var}(s) + \varepsilon}$$
#
# Backward, with $g = dy \circ w$ and everything by rows of $N$:
#
# $$ds' = \rho\,\bigl(g - \mathrm{mean}(g) - \hat h\, \mathrm{mean}(g\, \hat h)\bigr) + ds \qquad
#   dw = \sum_{\text{rows}} dy \circ \hat h \qquad db = \sum_{\text{rows}} dy$$
#
# Why two means? $\hat h$ does not change when $s$ moves in two directions: a constant added to a row, and (but for
# $\varepsilon$) a row made longer. The gradient must have no part in these directions, and the two terms take it out.
#
# **RMSNorm**, $s / \sqrt{\mathrm{mean}(s^2) + \varepsilon}$, subtracts no mean and has no bias. So it does depend on
# the constant direction, the term $\mathrm{mean}(g)$ falls out, and there is one statistic a row in place of two. What
# does that save? Passes over memory: none, forward and backward read and write the same four tensors. It saves one of
# two sums along a row, which hides behind the bytes in a fused kernel; in a chain of operators it saves kernels. Check
# the directions: what should be zero below, and what not?

# %%
s = torch.randn(6, 40, dtype=torch.float64, requires_grad=True)
norms = {
    "layer norm": lambda t: nn.functional.layer_norm(t, (40,), eps=0.0),
    "RMSNorm": lambda t: nn.functional.rms_norm(t, (40,), eps=0.0),
}
for name, norm in norms.items():
    normed = norm(s)
    (ds,) = torch.autograd.grad(normed, s, torch.randn_like(normed))
    along = {"constant row": ds.sum(1), "row itself": (ds * normed).sum(1)}
    for words, part in along.items():
        print(
            f"{name:10} along the {words}: "
            f"{' '.join(f'{x:.0e}' for x in part.abs().tolist())}"
        )

# %% [markdown]
# ### Wrong turns
# A famous way to save a pass: $\mathrm{var} = \mathrm{mean}(s^2) - \mathrm{mean}(s)^2$. In exact arithmetic it is the
# same. How large may the mean of a row be, in units of its standard deviation, before fp32 no longer tells? Predict a
# power of ten.

# %%
predicted_mean = {"1 % wrong from": None}  # replace None
### BEGIN PREDICTION
why = "the mean's square takes 2k of fp32's 7 digits, and 1 % needs 2 of them: k = 2.5"
predicted_mean = {"1 % wrong from": 1000, "why": why}
### END PREDICTION


# %%
def variances(offset):
    """(difference of squares, mean of squared differences, truth) of rows with this mean and variance near 1; fp32."""
    rows = torch.randn(64, 1024, generator=torch.Generator().manual_seed(3)) + offset
    squares = rows.square().mean(1) - rows.mean(1).square()
    return (
        squares,
        (rows - rows.mean(1, keepdim=True)).square().mean(1),
        rows.double().var(1, correction=0),
    )


offs = [10.0**k for k in range(0, 7)]
wrong = {}
for offset in offs:
    squares, differences, truth = variances(offset)
    wrong[offset] = ((squares - truth).abs() / truth).max().item()
    other = ((differences - truth).abs() / truth).max().item()
    print(
        f"mean {offset:9,.0f}: difference of squares off by {wrong[offset]:.1e}, "
        f"squared differences by {other:.1e}; {(squares < 0).sum()} of 64 "
        "variances negative"
    )
against(
    predicted_mean, {"1 % wrong from": next(o for o, e in wrong.items() if e > 0.01)}
)

# %% [markdown]
# **The prediction, counted.** From a mean of 1000 on. Its square is a million variances, and fp32 has about seven
# digits.
#
# The two terms agree in their leading digits, and the subtraction leaves the rest: if the mean is $10^k$ standard
# deviations, $2k$ digits of about 7 are gone. A negative variance then gives NaN. A row is in registers anyway, so a
# second look at it costs no bytes: subtract the mean first. (Where a row does not fit, Welford's update merges mean and
# sum of squared differences part by part, in one pass.)
#
# And one more that only a partial block shows: lanes behind the end of a row are loaded as 0, and $(0 - \mu)^2$ is
# *not* 0. Mask the difference as well.
#
# ### Whose sum is dw?
# dx is row by row: a program, a row. dw and db are sums *over* rows, and programs run in any order. With atomics every
# run adds in another order and has other last bits; a lock makes programs wait. Instead: as many programs as fit on the
# device, each walks over its rows with sums of its own in registers, writes them once, and a second small kernel adds
# up these parts, in a fixed order. The same bits on every run.

# %%
values = torch.randn(64, 313, generator=torch.Generator().manual_seed(4))
# 64 programs, a sum each
parts, totals = numerics.accumulate(values, "fp32").float(), set()
for trial in range(200):
    # in which they add theirs to one number
    order = torch.randperm(64, generator=torch.Generator().manual_seed(trial))
    totals.add(numerics.accumulate(parts[order], "fp32").item())
print(
    f"64 partial sums added in 200 orders: {len(totals)} different results, "
    f"from {min(totals):.7g} to {max(totals):.7g}"
)

# %% [markdown]
# ## Exercise 5.6 `mlp.add_norm` (70 min, 9 points)
# Write `add_norm(x, residual, weight, bias, eps, in_place)`, which returns `(y, s)`.
#
# - `x`, `residual`: (R, N), one type: fp32 or fp16 (bf16 on a GPU); rows may lie apart, columns are adjacent; N is at
#   most 4096. `weight`, `bias`: (N,), fp32, contiguous
# - y and s are of the type of x. Statistics in fp32; those of s before it is rounded or after, both are right
# - `in_place`: y lies in the memory of x and s in that of residual. Otherwise both are new, and x and residual stay. In
#   place neither is a view of another tensor: autograd refuses a Function that writes into a view and has two results
# - both results can be differentiated in x, residual, weight and bias; the gradients of weight and bias are fp32. `ds`,
#   the gradient of the second result, is added to that of x *and* of the residual
# - dy and ds arrive in any strides, those of a sum with strides of 0, and stay as they are
# - dweight and dbias are the same bits on every run: no two programs add to one number
# - all arithmetic is in kernels, in both passes. `torch.empty` gives NaN
#
# `ctx.mark_dirty(x, residual)` tells autograd that both were written, and in place it has to be told. Without it
# autograd does not notice, say, that exp's kept result was overwritten, and exp's gradient is wrong in silence.
# (Because it takes no views, the course's own kernel calls `torch.autograd.graph.increment_version` instead.) A result
# that nobody used further has zeros as its gradient.


# %% nbgrader={"grade": false, "grade_id": "mlp_add_norm_forward", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _norm_forward_kernel(
    y_ptr, s_ptr, mean_ptr, rstd_ptr, x_ptr, residual_ptr, weight_ptr, bias_ptr,
    N, eps,
    stride_y, stride_s, stride_x, stride_residual,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A row a program."""
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + row * stride_x + offs, mask=mask, other=0.0).to(tl.float32)
    s = x + tl.load(
        residual_ptr + row * stride_residual + offs, mask=mask, other=0.0
    ).to(tl.float32)

    mean = tl.sum(s, axis=0) / N
    # lanes behind the end are no part of the variance
    centred = tl.where(mask, s - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / N + eps)
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    y = centred * rstd * weight + tl.load(bias_ptr + offs, mask=mask, other=0.0)

    tl.store(y_ptr + row * stride_y + offs, y.to(y_ptr.dtype.element_ty), mask=mask)
    tl.store(s_ptr + row * stride_s + offs, s.to(s_ptr.dtype.element_ty), mask=mask)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mlp_add_norm_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _norm_backward_kernel(
    d_ptr, dweight_ptr, dbias_ptr, dy_ptr,
    ds_ptr, s_ptr, mean_ptr, rstd_ptr, weight_ptr,
    rows, N,
    stride_d, stride_dy_r, stride_dy_c, stride_ds_r, stride_ds_c, stride_s,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Programs that stay; each has a row of dweight and of dbias of its own."""
    ### BEGIN SOLUTION
    program = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK).to(tl.int64)
    mask = offs < N
    weight = tl.load(weight_ptr + offs, mask=mask, other=0.0)
    dweight = tl.zeros((BLOCK,), tl.float32)
    dbias = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        dy = tl.load(
            dy_ptr + row * stride_dy_r + offs * stride_dy_c, mask=mask, other=0.0
        ).to(tl.float32)
        ds = tl.load(
            ds_ptr + row * stride_ds_r + offs * stride_ds_c, mask=mask, other=0.0
        ).to(tl.float32)
        s = tl.load(s_ptr + row * stride_s + offs, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        hat = tl.where(mask, (s - tl.load(mean_ptr + row)) * rstd, 0.0)
        g = dy * weight
        d = (
            rstd * (g - tl.sum(g, axis=0) / N - hat * (tl.sum(g * hat, axis=0) / N))
            + ds
        )
        tl.store(d_ptr + row * stride_d + offs, d.to(d_ptr.dtype.element_ty), mask=mask)
        dweight += dy * hat
        dbias += dy
    tl.store(dweight_ptr + program * N + offs, dweight, mask=mask)
    tl.store(dbias_ptr + program * N + offs, dbias, mask=mask)
    ### END SOLUTION


@triton.jit
def _add_parts_kernel(out_ptr, parts_ptr, programs, N, BLOCK: tl.constexpr):
    """The parts of all programs, in their order."""
    ### BEGIN SOLUTION
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for program in range(programs):
        total += tl.load(parts_ptr + program * N + offs, mask=offs < N, other=0.0)
    tl.store(out_ptr + offs, total, mask=offs < N)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "mlp_add_norm", "locked": false, "schema_version": 3, "solution": true, "task": false}
class AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, bias, eps, in_place):
        ### BEGIN SOLUTION
        R, N = x.shape
        if in_place:
            ctx.mark_dirty(x, residual)
            y, s = x, residual
        else:
            y, s = (torch.empty(R, N, dtype=x.dtype, device=x.device) for _ in range(2))
        mean, rstd = (
            torch.empty(R, dtype=torch.float32, device=x.device) for _ in range(2)
        )
        _norm_forward_kernel[(R,)](
            y, s, mean, rstd, x, residual, weight, bias,
            N, eps,
            y.stride(0), s.stride(0), x.stride(0), residual.stride(0),
            BLOCK=triton.next_power_of_2(N),
        )  # fmt: skip
        ctx.save_for_backward(s, mean, rstd, weight)
        return y, s
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy, ds):
        ### BEGIN SOLUTION
        s, mean, rstd, weight = ctx.saved_tensors
        R, N = s.shape
        programs = min(
            R,
            4 * torch.cuda.get_device_properties(s.device).multi_processor_count
            if s.is_cuda
            else 8,
        )
        d = torch.empty(R, N, dtype=s.dtype, device=s.device)
        parts = torch.empty(2, programs, N, dtype=torch.float32, device=s.device)
        _norm_backward_kernel[(programs,)](
            d, parts[0], parts[1], dy, ds, s, mean, rstd, weight,
            R, N,
            d.stride(0), *dy.stride(), *ds.stride(), s.stride(0),
            BLOCK=triton.next_power_of_2(N),
        )  # fmt: skip
        sums = torch.empty(2, N, dtype=torch.float32, device=s.device)
        for total, part in zip(sums, parts):
            _add_parts_kernel[(triton.cdiv(N, 128),)](
                total, part, programs, N, BLOCK=128
            )
        return d, d, *sums, None, None
        ### END SOLUTION


def add_norm(x, residual, weight, bias, eps, in_place):
    """(norm(x + residual) weight + bias, x + residual)."""
    return AddNorm.apply(x, residual, weight, bias, eps, in_place)


# %% nbgrader={"grade": true, "grade_id": "mlp_add_norm_check", "locked": true, "points": 9, "schema_version": 3, "solution": false, "task": false}
check("mlp.add_norm", add_norm)

# %% [markdown]
# <details><summary>Hint 1: what to keep</summary>
#
# s (it exists anyway), and two numbers a row: mean and rstd. Neither x nor the residual nor y. In place, y is used up
# by whoever comes next, so nothing of backward may need it.
# </details>
# <details><summary>Hint 2: backward by rows</summary>
#
# Give each program the rows `program, program + programs, ...`. A row in registers, g and $\hat h$, two sums along the
# row, one store. Load dy and the weight as 0 behind the end; then nothing of $\hat h$ counts there. Make the program's
# number 64 bits wide before the loop, `tl.program_id(0).to(tl.int64)`: in the interpreter the loop's variable may be a
# Python int, which has no `.to`.
# </details>
# <details><summary>Hint 3: dw is nearly right</summary>
#
# Wrong by what some programs had: were there more programs than rows, whose parts were never written, or written before
# they were zero? Wrong in its last bits and different every time: two programs add to one number. Too large by a
# factor: dw is made of $\hat h$, and not of s.
# </details>

# %% [markdown]
# ### Measure
# Yours (on a GPU), and a plain version; the floor is four passes each way. Then the course's kernel beside its peers.


# %%
def plain_add_norm(x, residual, weight, bias):
    s = x + residual
    return nn.functional.layer_norm(
        s, s.shape[-1:], weight.to(s.dtype), bias.to(s.dtype)
    ), s


def norm_times(width):
    """name -> time of forward, and on a GPU of copies of as many bytes."""
    shape = (TOKENS if GPU else 256, width)
    x, residual = (
        torch.randn(shape, device=DEVICE, dtype=half() if GPU else None)
        for _ in range(2)
    )
    weight, bias = torch.randn(2, width, device=DEVICE)
    calls = {"plain": lambda: plain_add_norm(x, residual, weight, bias)}
    if GPU:
        calls |= {"mine": lambda: add_norm(x, residual, weight, bias, 1e-5, False),
                  "two copies": lambda: (x.clone(), residual.clone())}  # fmt: skip
    return {f"width {width}, {name}": timed(call) for name, call in calls.items()}


took = {
    name: t
    for width in ((1152, 4096) if GPU else (1152,))
    for name, t in norm_times(width).items()
}
results.beside(
    "lesson05.add_norm", took, unit="us", size=f"{TOKENS if GPU else 256} rows"
)

# %%
for row in recorded("add_norm"):
    print(
        f"{row['name']:60} ours {row['value']:7.1f} us, over the best peer "
        f"{row['ratio']:.3f}"
    )

# %% [markdown]
# Forward is a matter of bytes: the recorded solution of exercise 5.6, a row a program, takes 2.6 and 2.4 % longer than
# two copies of as many bytes, and the course's kernel is even with its best peer. The plain version has five passes in
# place of four, which is a quarter more, and takes 1.9 and 1.5 times as long. So its kernels do not run at the speed of
# a copy; and there are four of them, two of which convert weight and bias. Backward is where kernels differ: at
# widths 1152, 4096, 12288 and 16384 the course's takes 0.6, 0.7, 0.7 and 0.5 of the best peer's time. (The rows
# "with dropout" are compared with the course's kernel without it. Forward the random numbers hide behind the bytes;
# backward there is one result more, and it takes half as long again.)

# %% [markdown]
# ## 9. Dropout without a mask
# ### Case file
# **The report on the tower**: keeping the random seed of dropout in place of its mask saved about 1000 MiB. It was left
# out, because it did not compose with `torch.compile`.
#
# Dropout zeroes each element with probability $p$ and divides the others by $1 - p$. Backward must treat the same
# elements the same way, so PyTorch keeps a mask. But which elements stay is decided by *computed* random numbers, and
# what is computed can be computed again. The generator that PyTorch and Triton use on GPUs, **Philox**, has no state
# that moves: it is a function. Ten rounds of multiplications turn a seed and a counter into **four** numbers that look
# random; `tl.rand` hands out the first of them, and `tl.rand4x` all four. Give element $i$ the counter $i$, and its
# fate depends on the seed and on its place, and on nothing else: not on the block, not on the program, not on what ran
# before.


# %%
@triton.jit
def _numbers_kernel(out_ptr, counters_ptr, seed, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counters = tl.load(counters_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr + offs, tl.rand(seed, counters), mask=offs < n)


def numbers_of(seed, counters):
    """The number in [0, 1) of each counter, as a NumPy array."""
    counters = counters.flatten().to(DEVICE)
    out = torch.empty(len(counters), device=DEVICE)
    n = len(counters)
    _numbers_kernel[(triton.cdiv(n, 4096),)](out, counters, seed, n, BLOCK=4096)
    return out.cpu().numpy()


# %%
numbers = numbers_of(5, torch.arange(200_000))
again = numbers_of(5, torch.tensor([123_456, 7]))
print(
    "number 123456 and number 7, asked alone:",
    again, "and in a row:", numbers[[123_456, 7]],
)  # fmt: skip
for p in (0.1, 0.5):
    gone = numbers < p
    print(
        f"p = {p}: {gone.mean():.4f} dropped; neighbours both dropped "
        f"{(gone[1:] & gone[:-1]).mean():.4f}, {p * p:.4f} if they know "
        "nothing of each other"
    )

# %% [markdown]
# ### Predict
# Three wrong ways to choose a counter. For each: does a picture of one tensor show it, does a test that compares
# forward with backward, or neither? (a) the column of the element; (b) its place in the block; (c) the right index, but
# one seed for every call.

# %%
predicted_shows = {  # replace None: "picture", "backward", "neither"
    "a": None,
    "b": None,
    "c": None,
}
### BEGIN PREDICTION
why = "(a) makes columns alike, (b) rows of blocks; (c) needs a second call to compare"
predicted_shows = {"a": "picture", "b": "picture", "c": "neither", "why": why}
### END PREDICTION


def dropped(seed, counters):
    """Which elements of a 64 x 128 tensor are dropped at p = 0.3."""
    return torch.from_numpy(numbers_of(seed, counters) < 0.3).view(64, 128)


index = torch.arange(64 * 128).view(64, 128)
masks = {
    "right": dropped(5, index),
    "(a) column": dropped(5, index % 128),
    "(b) place in a block of 512": dropped(5, index % 512),
    "(c) the next call, same seed": dropped(5, index),
}


# %%
@drawn
def draw_masks(masks):
    """Dropped elements in black."""
    figure, axes = plots.figure(8.0, 2.2, columns=len(masks))
    figure.suptitle(
        "A wrong counter repeats; a seed used twice is seen in no single picture",
        x=0.01, ha="left", weight="bold",
    )  # fmt: skip
    for ax, (name, mask) in zip(axes, masks.items()):
        ax.imshow(mask, cmap="gray_r", interpolation="nearest", aspect="auto")
        ax.set_title(name, fontsize=9, weight="normal")
        ax.set(xticks=[], yticks=[])
    return figure


plots.show(
    draw_masks(masks),
    alt="Four masks of 64 rows and 128 columns: the right one is noise; "
    "with the column as counter there are vertical stripes; "
    "with the place in a block a pattern that repeats every four rows; "
    "the fourth is the same noise as the first",
)


# %%
def shows(mask):
    """Whether rows of it come again."""
    return (
        "picture"
        if any(torch.equal(mask[k:], mask[:-k]) for k in range(1, 32))
        else "neither"
    )


against(
    predicted_shows,
    {name[1]: shows(mask) for name, mask in masks.items() if name.startswith("(")},
)
print(
    "the mask of the next call is the first one again:",
    torch.equal(masks["right"], masks["(c) the next call, same seed"]),
)

# %% [markdown]
# **The prediction, counted.** Picture, picture, neither: (a) and (b) make a pattern in one tensor, and (c) shows only
# in a second call.
#
# None of the three breaks the gradient, because backward makes the same mistake. (c) is the worst: every layer and
# every step drops the same elements, and training goes on without them.
#
# ### Four numbers of a call
# A call of the generator is some sixty instructions, and moving an element in bf16 costs about as much time as thirty.
# So a call an element is *not* hidden behind the bytes; a call for four can be. Element $i$ then gets number
# $i \bmod 4$ of call $\lfloor i / 4 \rfloor$, which is again a function of its place alone. The only work is to bring
# four blocks of numbers into the order of the elements: `tl.join(a, c)` makes pairs in a new last dimension, a join of
# two joins makes fours, and `reshape` puts them in a row.
#
# ## Exercise 5.7 `mlp.dropout` (35 min, 5 points)
# Write `dropout(x, p, seed)`.
#
# - `x`: any shape and any strides, fp32 or fp16 (bf16 on a GPU); an element may lie more than $2^{31}$ elements behind
#   the first one (tried on a GPU, and only when it is graded); `p`: 0 <= p < 1; `seed`: an integer from 0 to
#   $2^{63} - 1$
# - with $i$ the **row-major** index of an element in the shape of x, whatever its strides, its number is the one that
#   `i % 4` counts (from 0 on) of the four that `tl.rand4x(seed, i // 4)` makes
# - $y = x / (1 - p)$ where that number is `>= p`, and 0 elsewhere, also where x is infinite or NaN. Computed in fp32 and
#   converted once, to the type of y; `x * (1 / (1 - p))` is as good
# - y is a new tensor of the shape and type of x. The gradient passes where the element did, divided likewise; it
#   arrives in any strides, those of a sum with strides of 0, and stays as it is
# - between the passes at most 64 bytes are kept: neither x nor a mask. The function may be called again before the
#   gradient is asked for
# - the same seed gives the same elements, whatever the block size. All arithmetic is in kernels. `torch.empty` gives
#   NaN
#
# A tensor of many dimensions may be brought into three, or copied first (`.contiguous()` is a copy, and allowed). One
# call an element, three of whose numbers are thrown away, is right as well, and two to three times as slow.


# %% nbgrader={"grade": false, "grade_id": "mlp_dropout", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _dropout_kernel(y_ptr, x_ptr, seed, n, p, BLOCK: tl.constexpr):
    ### BEGIN SOLUTION
    first = tl.program_id(0).to(tl.int64) * BLOCK
    offs = first + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    a, b, c, d = tl.rand4x(seed, first // 4 + tl.arange(0, BLOCK // 4))
    # a b c d of a call, side by side
    number = tl.join(tl.join(a, c), tl.join(b, d)).reshape(BLOCK)
    kept = number >= p
    # a choice and no product with the mask: 0 times infinity is NaN
    tl.store(
        y_ptr + offs,
        tl.where(kept, x / (1.0 - p), 0.0).to(y_ptr.dtype.element_ty),
        mask=mask,
    )
    ### END SOLUTION


class Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed):
        ### BEGIN SOLUTION
        ctx.p, ctx.seed = p, seed  # two numbers, and no tensor
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        _dropout_kernel[(triton.cdiv(x.numel(), 1024),)](
            y, x, seed, x.numel(), p, BLOCK=1024
        )
        return y
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        ### BEGIN SOLUTION
        # the same function, on the gradient
        return Dropout.apply(dy, ctx.p, ctx.seed), None, None
        ### END SOLUTION


def dropout(x, p, seed):
    """x / (1 - p) where the element's number is >= p, else 0;
    for backward two numbers are kept."""
    return Dropout.apply(x, p, seed)


# %% nbgrader={"grade": true, "grade_id": "mlp_dropout_check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check("mlp.dropout", dropout)

# %% [markdown]
# <details><summary>Hint 1: strides</summary>
#
# The row-major index belongs to the *shape*, the address to the strides. The shortest way: a contiguous copy first, and
# both are the same number. With strides in the kernel a copy is saved: take the index apart by division and remainder.
# </details>
# <details><summary>Hint 2: four numbers in order</summary>
#
# Let a block be a multiple of 4 and begin at a multiple of 4: it makes `BLOCK // 4` calls. `tl.rand4x` gives a, b, c,
# d, each of that length. `tl.join(x, y)[i, j]` is x for j = 0 and y for j = 1. Write down the order in which
# `tl.join(tl.join(?, ?), tl.join(?, ?)).reshape(BLOCK)` runs through its last two dimensions, the last one fastest, and
# put the letters where a b c d comes out. If the check says that other elements get the numbers, two letters are
# exchanged.
# </details>
# <details><summary>Hint 3: backward</summary>
#
# The derivative of "times 0 or 1/(1-p)" is the same function. Keep p and seed on `ctx` as plain numbers. What is kept
# on the *class* or in a global is that of the last call, and the last call may be another layer's.
# </details>
# <details><summary>Hint 4: infinite inputs, large seeds</summary>
#
# Choose with `tl.where`; multiplying by a mask of zeros turns infinity into NaN. Pass the seed as an ordinary argument:
# Triton then takes it as 64 bits when it needs them. Converted to int32 or masked on the way, seeds that differ in their
# upper half are one seed. And `torch.empty_like(x)` keeps the strides of an x that is transposed.
# </details>
#
# ### Measure
# Yours, and a call an element, on a GPU; a copy is the floor. (The interpreter is no measure of speed.)


# %%
@triton.jit
def _call_each_kernel(y_ptr, x_ptr, seed, n, p, BLOCK: tl.constexpr):
    """tl.rand for each element: three of a call's four numbers are thrown away."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0).to(tl.float32)
    y = tl.where(tl.rand(seed, offs) >= p, x / (1.0 - p), 0.0)
    tl.store(y_ptr + offs, y.to(y_ptr.dtype.element_ty), mask=offs < n)


took = {}
if GPU:
    x = torch.randn(TOKENS, 4096, device=DEVICE, dtype=half())
    y, n = torch.empty_like(x), x.numel()
    took["a copy"] = timed(lambda: y.copy_(x))
    took["mine"] = timed(lambda: dropout(x, 0.3, 7))
    grid = (triton.cdiv(n, 1024),)
    took["a call an element"] = timed(
        lambda: _call_each_kernel[grid](y, x, 7, n, 0.3, BLOCK=1024)
    )
results.beside("lesson05.dropout", took, unit="us", size=f"{TOKENS} x 4096")

# %% [markdown]
# ### How it composes with compile
# Why did the report's version not? It does not say. A dropout that *draws* inside has a hidden state, and a compiler
# that reorders, merges or repeats calls must know about it. A seed that is read back from the device (`.item()`) stops
# the graph. And a seed as a Python number? One might fear that it becomes a constant of the compiled code, the same
# mask for ever. It does not: the compiler guards it. The first cell below tries a seed that is an argument and one that
# is an attribute of a module. Every mask is right; what is paid is compiling: once more for an argument, which then may
# be any number, and once for *each* value of an attribute, up to a limit.
#
# The course's kernel takes another way: the seed is a **tensor**, drawn by `torch.randint`, which the compiler already
# knows to be random, and the operator is a pure function of it. Its rule for fake tensors is one line and its backward
# step is the operator itself.

# %%
graphs, ones = [], torch.ones(1000, device=DEVICE)


def count_nodes(graph, examples):
    graphs.append(
        [node.name for node in graph.graph.nodes if node.op == "call_function"]
    )
    return graph.forward


def toy_dropout(x, seed):
    i = torch.arange(x.numel(), device=x.device)
    return torch.where((1103515245 * i + 12345 * seed) % 1000 < 500, 0.0, x)


class Holder(nn.Module):
    seed = 0

    def forward(self, x):
        return toy_dropout(x, self.seed)


# %%
holder = Holder()
held_seed = torch.compile(holder, backend=count_nodes)
given_seed = torch.compile(toy_dropout, backend=count_nodes)
for words, call in {
    "an argument": lambda seed: given_seed(ones, seed),
    "an attribute": lambda seed: held_seed(ones),
}.items():
    graphs.clear()
    right = 0
    for holder.seed in (3, 4, 5, 6):
        right += torch.equal(call(holder.seed), toy_dropout(ones, holder.seed))
    print(
        f"the seed is {words}: {right} of 4 masks right, compiled {len(graphs)} times"
    )

# %% [markdown]
# And the course's own, whose seed is a tensor.

# %%
try:
    from course_lib.kernels.dropout import dropout as seeded_dropout
except ImportError:
    seeded_dropout = None
    print(
        "The course's own kernels are not here. With them one graph has the seed, "
        "the dropout and the sum;"
    )
    print("two calls differ, and 8 bytes are kept for backward.")

if seeded_dropout:
    graphs.clear()
    fn = torch.compile(
        lambda x: seeded_dropout(x, 0.5) + 1, backend=count_nodes, fullgraph=True
    )
    x = torch.ones(2000, device=DEVICE)
    torch.manual_seed(0)
    first, second = fn(x) - 1, fn(x) - 1
    torch.manual_seed(0)
    back = torch.equal(first, fn(x) - 1)
    print("one graph, no break:", ", ".join(graphs[0]))
    print(
        f"two calls differ: {not torch.equal(first, second)}; "
        f"torch.manual_seed brings the first back: {back}; compiled {len(graphs)} time"
    )
    y = seeded_dropout(torch.ones(2000, device=DEVICE, requires_grad=True), 0.5)
    print(
        f"kept for backward: {sum(k.bytes for k in memory.saved(y))} bytes; "
        f"a mask would be {x.numel()}"
    )

# %%
for row in recorded("dropout"):
    print(
        f"{row['name']:60} ours {row['value']:7.1f} us, over the best peer "
        f"{row['ratio']:.3f}"
    )

# %% [markdown]
# How to read it: the first row of each size is over a copy, and says that the course's kernel makes its random numbers
# in the shadow of its bytes. The solution of exercise 5.7 does not: under *Measure* it takes 94 us where a copy takes
# 65. Triton makes the two halves of each product of Philox by two multiplications, and the upper one goes at a fraction
# of the rate. The course's kernel takes both from one, by a line of assembly, and saves some other instructions
# (`benchmarks/notes/dropout.md`). "By element" is a call for each element, over that kernel: 2.8 and 3.1 times as long.
# Drawing the seed costs a launch, 2.6 and 2.8 us. Eager's dropout, the best peer forward, writes its mask, and takes
# 1.6 and 1.7 times as long.

# %% [markdown]
# ### Verdict on the case
# The saving is real and can be counted: one byte an element of whatever is dropped, for the scores of one layer exactly
# 1024 MiB. That it cannot be compiled is not a property of seeded dropout, only of a hidden state. With the state as an
# input it is one node in the graph.

# %% [markdown] tags=["part-every"]
# ## Verdicts
# The numbers are in the cells above. What only a GPU can show is that of the recorded H200, beside yours.
#
# | claim of the reports | verdict | for your own work |
# |---|---|---|
# | 1/rms of 1000 underflows in fp16 | the square overflows; underflow is at the other end | look at the first wrong value, not at the last |
# | the fp32 sum tracks, the fp16 sum drifts | right, and then it sticks, where half an ulp exceeds the term | ask for the accumulator's format, then for the order |
# | fused GELU is more accurate | right: without the rounding of h nearly every result is the nearest number; most of the gain where h is below -1.2 | fuse for the bytes, and take the accuracy |
# | stream-K gains nothing, for something follows the product | 2 % here at best, at few tokens; for the tower's layer the last wave wastes no more than the parts may cost | count the last wave first |
# | gradients stay fp32, so nothing underflows | those of parameters; those of activations have the activations' type | bf16, or scale the loss |
# | mixed precision is slower for small models | the sign follows from the host's part, and casts are launches; the size needs more than launches | divide by the layers, then count calls |
# | autocast needs more memory at short context | right: one copy of the weights | ask what grows with the context, and what does not |
# | 19288 MiB for the tower | not for its 27 layers: one keeps more than half of that with naive attention, nearly half with a fused one | give the number of layers with every memory figure |
# | recomputing saves memory | three kinds, with very different prices: nothing, bytes, or a product (15 to 18 % of a fused step; 6 to 8 % over eager's in turn, 7 to 15 % alone) | MiB freed a microsecond |
# | seeded dropout does not compose with compile | a hidden state does not; a seed that is a tensor does | make random state an argument |

# %% [markdown]
# ## Questions
# Three answers in your own words, graded by a person. A few sentences each are enough.

# %% [markdown] tags=["part-a"]
# ### Question 5.8 (10 min, 3 points)
# A training run keeps its parameters' gradients in bf16 and adds up 512 micro-batches before each step. The loss stops
# improving when the number of micro-batches is raised from 64 to 512. What do you suspect, how would you confirm it
# with one measurement, and what are two cures with their price?

# %% [markdown] nbgrader={"grade": true, "grade_id": "mlp_question_gradients", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# A bf16 accumulator has 8 significant bits: once the sum is some 256 times as large as a term of the same sign, half an
# ulp exceeds the term and it is lost. At 64 additions most terms still count, at 512 many do not. Confirm: accumulate
# the same micro-batches once in bf16 and once in fp32 and compare (relative error of the sums, or the share of
# additions that change nothing). Cures: fp32 accumulation buffers (4 bytes a parameter instead of 2); a compensated sum
# (two bf16 numbers a parameter, more arithmetic); adding in pairs (several buffers); larger micro-batches, so that
# fewer additions are needed and the sum is made in the product's fp32 accumulator; stochastic rounding (right on
# average, noisy).
#
# *Marking guide.* 1 point for the mechanism with the ratio at which it happens (a few hundred). 1 for a measurement
# that tells it apart from other causes (same data, other accumulator). 0.5 for each of two cures with its price.
# ### END SOLUTION

# %% [markdown] tags=["part-b"]
# ### Question 5.9 (15 min, 4 points)
# A model of 24 layers as in section 7 (width 1152, hidden 4304, 16384 tokens, bf16) is 3 GiB too large for its GPU. Its
# attention is fused; its MLPs keep everything. What do you make again, in which order, in how many layers, and what do
# you expect it to cost? Use the numbers printed in section 7.

# %% [markdown] nbgrader={"grade": true, "grade_id": "mlp_question_recompute", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# First what is cheapest for its bytes: a from h, fused into the product that reads h anyway. It frees 134 MiB a layer
# for 14 microseconds of arithmetic, a part of which hides, so in all 24 layers 3.15 GiB: enough, if only just, and with
# fused ends probably at no cost or a gain. If the peak still does not fit (in one layer's backward a is there in
# passing, 134 MiB once), next are the norms' results (36 MiB each, a pass of bytes), and only then h from x in a few
# layers: 134 MiB each at 0.24 ms, a sixth of that layer's MLP. Without a fused kernel, a from h costs two passes, 66 us
# a layer, 1.6 ms in all: still far cheaper than products.
#
# *Marking guide.* 1 point for the order by bytes freed for time. 1 for 134 MiB times layers and the comparison with 3
# GiB. 1 for a cost with its kind (hidden, bytes, FLOPs). 1 for what is needed in passing at the peak, or another sound
# limit of the estimate.
# ### END SOLUTION

# %% [markdown] tags=["part-a"]
# ### Question 5.10 (10 min, 3 points)
# You fuse a chain of three operators. A colleague's test compares the result with that of the three operators by
# `torch.equal`, and three elements in ten differ. Which of the two is wrong? Write down (in words) a test that a right
# kernel passes and a kernel with an accumulator in bf16 fails.

# %% [markdown] nbgrader={"grade": true, "grade_id": "mlp_question_test", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Neither need be wrong: both are roundings of the truth, and the fused one has fewer. The truth is float64 on the same
# (already rounded) inputs. A test: the error of the kernel against float64, as a whole, for the worst row and for the
# worst element, is at most that of a good computation (fp32 throughout, rounded once) times a margin, and the margin is
# small enough that the same computation with a bf16 accumulator lies outside; both are measured on the same inputs. Use
# long sums (K of a thousand or more), since the narrow accumulator shows there, and inputs of one sign among them.
#
# *Marking guide.* 1 point for a truth that is neither of the two. 1 for a limit between a measured good error and a
# measured bad one (not a number out of the air). 1 for inputs on which the bad one shows: long sums, the worst row.
# ### END SOLUTION

# %% [markdown] tags=["part-every"]
# ## Further reading
# - Nicholas Higham, *Accuracy and Stability of Numerical Algorithms*, second edition, 2002. Chapter 4 is about sums.
# - Paulius Micikevicius and others, *Mixed Precision Training*, 2017, arXiv:1710.03740: loss scaling, and histograms of
#   gradients like the one in section 4.
# - Tianqi Chen, Bing Xu, Chiyuan Zhang and Carlos Guestrin, *Training Deep Nets with Sublinear Memory Cost*, 2016,
#   arXiv:1604.06174: keep some layers, make the others again.
# - Vijay Korthikanti and others, *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   arXiv:2205.05198: which activations are worth making again.
# - John Salmon, Mark Moraes, Ron Dror and David Shaw, *Parallel Random Numbers: As Easy as 1, 2, 3*, SC 2011: Philox.
# - Dan Hendrycks and Kevin Gimpel, *Gaussian Error Linear Units (GELUs)*, 2016, arXiv:1606.08415. The gate of section 7:
#   Noam Shazeer, *GLU Variants Improve Transformer*, 2020, arXiv:2002.05202.
# - Muhammad Osama, Duane Merrill, Cris Cecka, Michael Garland and John D. Owens, *Stream-K: Work-centric Parallel
#   Decomposition for Dense Matrix-Matrix Multiplication on the GPU*, 2023, arXiv:2301.03598: the idea that section 5
#   tries.
# - Biao Zhang and Rico Sennrich, *Root Mean Square Layer Normalization*, 2019, arXiv:1910.07467: RMSNorm.
# - `course_lib/kernels/mlp.py`, `linear_gelu`, `add_norm` and `dropout.py`: the course's own kernels, and their notes
#   in `benchmarks/notes`, what was predicted for them.
