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
# # 06 RoPE: positions as rotations, at the speed of a copy
#
# After this lesson you can
#
# - say what a rotary embedding computes, why scores then depend on distances only, and tell its two layouts apart,
# - turn queries and keys in place by one launch: any strides, fewer heads of keys, parts of a head, packed sequences,
# - write its backward pass, and say what "in place" may and may not mean to autograd,
# - compare a kernel with a library so that the number is about the kernel: device time, host time and first calls apart.
#
# **Time** 4 and a half hours; the five exercises take three of them. Run the cells from the top each time. A cell that
# needs an exercise which you have not solved stops with "not written yet"; go on with the cell below it.
#
# | section | reading and measuring | exercise |
# |---|---|---|
# | 1. Eight times faster: counting passes | 15 min | |
# | 2. Positions as rotations; longer texts, pictures | 20 min | exercise 6.1 `rope.reference` 25 min, exercise 6.2 `rope.relative` 15 min |
# | 3. Two layouts, and strides | 10 min | |
# | 4. One launch, in place | 10 min | exercise 6.3 `rope.forward` 75 min |
# | 5. What a fair comparison takes | 10 min | |
# | 6. Backward | 10 min | exercise 6.4 `rope.backward` 30 min |
# | 7. Tables, or angles | 5 min | |
# | 8. When does it matter? Fused away | 10 min | |
# | 9. At the speed of a copy | 5 min | exercise 6.5 `rope.speed` 30 min |
#
# The three questions at the end take 35 minutes more. A good place to stop is behind exercise 6.3.
#
# **The check** in a notebook judges as grading does. An answer may use what the setup cells and your own cells define,
# and no name of a demonstration cell. In exercises 6.3 to 6.5 all arithmetic has to be in kernels. Where an answer
# breaks one of these rules, the check says so.
#
# **Needs** lesson 01: bytes, the roofline, and what a launch costs. From lesson 04 only what a head is.
#
# **Without a GPU** all five exercises can be solved and checked for being right, and the compiler tells registers and
# the width of accesses. What a CPU cannot show: the speed of the kernels, and races. Recorded results of an H200 stand
# beside yours.
#
# Rotary embeddings are from *RoFormer* by Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen and Yunfeng Liu.

# %% tags=["setup"]
from course_lib.device import DEVICE, TIER, half, machine

import math
import time

import torch
import triton
import triton.language as tl

from autograder import check, check_speed
from course_lib import plots, results, widgets
from course_lib.predictions import against
from course_lib.roofline import Roof
from course_lib.timing import time_gpu

HERE = machine()
print(results.memory_of("06_rope"))
HERE

# %% [markdown]
# Some helpers for the measurements below. On a CPU sizes are smaller and medians are known less exactly.

# %%
GPU = TIER == "gpu"
HALF = half() if GPU else torch.float32  # the type of queries and keys in measurements
BATCH, HEADS, SIZE = (4, 32, 128) if GPU else (1, 8, 64)


def timed(fn):
    """The course's timer, told how long it may take on this tier."""
    return (
        time_gpu(fn, precision=0.01, max_seconds=1.0)
        if GPU
        else time_gpu(fn, precision=0.1, max_seconds=0.2)
    )


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


# %% [markdown]
# ## 1. Eight times faster
# ### Case file
# **The report says** (an engineer writes rotary embedding as one Triton kernel that works in place): "about 8 times
# faster forward and 6 times backward than plain PyTorch". The plots behind this are not explained. A profile at one
# size is (whether of q alone or of q and k, it does not say):
#
# | | launches on the GPU | GPU time |
# |---|---|---|
# | PyTorch, forward | 8: two multiplications 21 us, two concatenations 20 us, one addition 13 us, one negation 6 us, ... | 62 us |
# | Triton, forward | 1, and the cosine and sine before it 2 us | 11 us |
#
# The same profile shows 2.34 ms of *host* time for the Triton call; 1.97 ms of them are one call of `aten::cos`, whose
# kernel runs for 1 us. Two more remarks: the backward pass is "the same kernel with the sine negated", and the author
# wonders how a Triton program relates to a CUDA thread.
#
# So there are several ratios in one report. 62 / 11 is 5.6, with the tables 62 / 13 = 4.8, and 8 comes from somewhere
# else. What was timed? Before we measure, we count. Rotary embedding multiplies, adds, and moves bytes; there is no
# product of matrices in it. The plain version is three lines:


# %%
def eager(q, k, cos, sin):
    """As model code writes it: q and k (B, H, S, D), cos and sin (S, D), halves.
    New tensors."""

    def turned(x):
        x0, x1 = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-x1, x0), dim=-1) * sin).to(x.dtype)

    return turned(q), turned(k)


# %% [markdown]
# Every operator reads its inputs from memory and writes its result there. Call one reading or one writing of a tensor
# like q a **pass**. A multiplication of q with a small table is 2 passes, an addition of two tensors like q 3, a
# concatenation of two halves 2, a negation of half a tensor 1. A kernel that does everything at once makes 2.
#
# ### Predict
# Three numbers before you go on. How many passes does `x * cos + torch.cat((-x1, x0), -1) * sin` make? So how many times
# faster is a fused kernel where bytes set the time? And how many times, at most, where launches set it, for q and k
# together? (Section 5 sets the last one beside a measured H200.)

# %%
predicted_passes = {"passes": None}  # replace None
predicted_gain = {  # replace None: time of PyTorch / time of one kernel
    "long sequences": None,
    "short sequences": None,
}
### BEGIN PREDICTION
predicted_passes = {
    "passes": 10,
    "why": "two products make 2 each, the concatenation 2, the negation 1, the sum 3",
}
predicted_gain = {
    "long sequences": 5,
    "short sequences": 10,
    "why": "10 passes for 2 where bytes set the time; for two tensors 10 launches for "
    "1 where they do",
}
### END PREDICTION

# %% [markdown]
# The next cell tests the idea of passes on the report's own figures: the fused kernel makes 2 passes in 11 us, so a
# pass is 5.5 us, and every other operator is predicted from that.

# %%
one_pass = 11 / 2
report = {
    "two multiplications": (4, 21),
    "two concatenations": (4, 20),
    "one addition": (3, 13),
    "one negation": (1, 6),
}
for operators, (passes, said_us) in report.items():
    print(
        f"{operators:20} {passes} passes: counted {passes * one_pass:4.1f} us, "
        f"the report measured {said_us} us"
    )
total = sum(passes for passes, _ in report.values())
print(
    f"{total} passes in place of 2: a factor of {total / 2:g}; the report's kernels: "
    f"{62 / 11:.1f}"
)

# %% [markdown]
# The report's GPU times are what its bytes cost, within about 20 %. (One of its concatenations must join something as
# large as q; our three lines have only one.) So 5.6 is no achievement of Triton. It is the number of passes, and any
# program that makes two of them, each at the speed of a copy, is as fast.
#
# Now our version. A dispatch mode sees every operator that runs, on any machine, and writes down the bytes of its
# inputs and outputs; views move nothing.

# %%
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Ledger(TorchDispatchMode):
    """Name and bytes of every operator that is no view."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            moved = sum(
                t.nbytes
                for t in tree_leaves((args, kwargs, out))
                if isinstance(t, torch.Tensor)
            )
            self.rows.append((func.overloadpacket.__name__, moved))
        return out


# %%
def passes_of(dtype, table_dtype):
    """Operators of the eager version, and their passes over q and k of this type:
    name -> (calls, passes)."""
    q, k = (torch.randn(2, 32, 64, 64).to(dtype) for _ in range(2))
    tables = [torch.ones(64, 64, dtype=table_dtype) for _ in range(2)]
    with Ledger() as ledger:
        eager(q, k, *tables)
    counted = {}
    for name, moved in ledger.rows:
        calls, passes = counted.get(name, (0, 0.0))
        counted[name] = calls + 1, passes + moved / (q.nbytes + k.nbytes)
    return counted


# %%
for words, kinds in (
    ("tables in bf16", (torch.bfloat16,) * 2),
    ("tables in fp32", (torch.bfloat16, torch.float32)),
):
    counted = passes_of(*kinds)
    wide = sum(passes for _, passes in counted.values())
    each = ", ".join(
        f"{calls} {name} {passes:.1f}" for name, (calls, passes) in counted.items()
    )
    print(
        f"q and k in bf16, {words}: {each}; in all "
        f"{sum(calls for calls, _ in counted.values())} launches, {wide:.1f} passes"
    )
    if kinds[0] == kinds[1]:
        against(predicted_passes, {"passes": wide})

# %% [markdown]
# **The prediction, counted.** 10 passes in 10 launches: five times a fused kernel's two passes, and ten times its one
# launch. The second line is a trap: multiply a bf16 tensor with an fp32 table, and PyTorch promotes. The products, and
# everything behind them, are fp32 and twice as large, and a conversion comes at the end. It is the same line of code,
# its result is even better, and the "plain PyTorch" of a comparison now moves nearly twice the bytes. **A ratio needs
# both sides described.** Section 5 measures them.
#
# ## 2. Positions as rotations
# Attention compares a query with a key by a dot product, and a dot product does not know where the two stand. RoPE
# tells it. Take the elements of a head in pairs, and think of each pair as a point in a plane. At position $m$, turn
# pair $j$ by the angle $m\,\theta_j$:
#
# $$y_0 = x_0 \cos m\theta_j - x_1 \sin m\theta_j, \qquad y_1 = x_1 \cos m\theta_j + x_0 \sin m\theta_j, \qquad
#   \theta_j = b^{-2j/R}, \quad j = 0 \dots R/2 - 1.$$
#
# $R$ is how many elements of the head are turned, often all of them, and the base $b$ is 10000 or larger. The first
# pair turns by one radian a position, the last by about $1/b$.
#
# Why a rotation? The dot product of two points in a plane depends on their lengths and on the angle between them. Turn
# the query by $m\theta$ and the key by $n\theta$, and the angle between them grows by $(m - n)\theta$: **the score knows
# the distance, and nothing else about the positions.** No number is added to what the query says, lengths stay as they
# are, and nothing has to be learnt.
#
# Move the sliders. Both arrows of a dial turn with their positions; the wedge between them belongs to the distance.
# Then enlarge the base and see which pairs stop moving.

# %%
widgets.rotation_explorer()

# %% [markdown]
# With many pairs the cosines of fast pairs cancel once the distance is large, and those of slow pairs stay near 1. So
# the score of two *equal* vectors falls with their distance, quickly at first. (For other vectors it need not fall: it
# may rise and fall as their pairs turn.) A larger base keeps more pairs slow, which is what models for long contexts
# do.

# %%
distances = [0, *(round(2 ** (k / 4)) for k in range(4 * 15 + 1))]
curves = {}
for base in (100.0, 10000.0, 500000.0):
    turns = base ** (-torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    curves[f"base {base:,.0f}"] = [
        torch.cos(d * turns).mean().item() for d in distances
    ]
axes = plots.sweep(
    distances[1:], {name: curve[1:] for name, curve in curves.items()},
    xlabel="distance", ylabel="score of two equal vectors",
    unit="", device="64 pairs, score 1 at distance 0",
    title="Equal vectors: the score falls with distance, later with a larger base",
)  # fmt: skip
axes.set_ylim(bottom=-0.3)
axes.yaxis.set_major_formatter("{x:.1f}")
plots.show(
    axes,
    alt="Mean cosine of 64 pairs against the distance for three bases: "
    "all fall from 1, the base 100 within tens of positions to around 0, "
    "the base 500000 over tens of thousands",
)

# %% [markdown]
# ### Longer texts, pictures, packed sequences
# Three variants that you will meet. None of them needs another kernel: what changes is which angle a position gets.
#
# **Longer than trained.** A model that learnt up to position $L$ meets angles at $L'$ that it has never seen. *Position
# interpolation* (Shouyuan Chen and others) divides positions, $m' = m\,L / L'$: all angles are then known ones, but
# neighbours come closer together in the fast pairs too. *YaRN* (Bowen Peng and others) spares these. Pair $j$ makes
# $r_j = L\,\theta_j / 2\pi$ turns in the trained length; those that make more than 32 stay, those that make less than 1
# are slowed down by $L / L'$, and between the two
#
# $$\theta'_j = \gamma_j\,\theta_j + (1 - \gamma_j)\,\frac{L}{L'}\,\theta_j, \qquad
#   \gamma_j = \frac{r_j - 1}{32 - 1} \;\text{held to}\; 0 \dots 1.$$
#
# (YaRN also multiplies q and k by $0.1 \ln(L' / L) + 1$, which can go into the tables.)
#
# **Pictures.** A vision tower cuts a picture into patches, and a patch has a row $y$ and a column $x$. In **2-D RoPE**
# (Byeongho Heo and others compare its forms) half of the pairs turn by $y\,\theta_j$, the other half by $x\,\theta_j$. A
# score then depends on both distances, and on nothing else. The tables have a row for each patch, and the kernel sees no
# difference. (Not every tower turns: the one of lesson 09 adds a learnt vector to each patch instead.)
#
# **Packed sequences.** Sequences of different lengths share a row of the batch, one behind the other. Positions begin
# at 0 in each: a tensor of *position ids* says where every token stands. It comes from the same list of starts that
# attention for packed sequences (*varlen*) takes. Exercise 6.3 asks for it.


# %%
def picture_tables(height, width, pairs=16, base=10000.0):
    """cos and sin (height * width, pairs): the first half of the pairs turns by the row, the other by the column."""
    turns = base ** (-torch.arange(pairs // 2, dtype=torch.float64) / (pairs // 2))
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angle = torch.cat(
        (y.flatten()[:, None] * turns, x.flatten()[:, None] * turns), dim=1
    )
    return angle.cos(), angle.sin()


# full width, as halves
cos, sin = (torch.cat((table, table), dim=1) for table in picture_tables(12, 12))
# the same at every patch
q, k = (torch.randn(32, dtype=torch.float64).expand(1, 1, 144, 32) for _ in range(2))
turned_q, turned_k = (one[0, 0].view(12, 12, 32) for one in eager(q, k, cos, sin))
for words, (qy, qx), (ky, kx) in (
    ("2 rows down, 4 columns on", (2, 3), (4, 7)),
    ("the same, elsewhere", (7, 1), (9, 5)),
    ("4 rows down, 2 columns on", (2, 3), (6, 5)),
):
    print(f"{words:28} score {turned_q[qy, qx] @ turned_k[ky, kx]:.6f}")

starts = torch.tensor([0, 5, 8, 12])  # three sequences of 5, 3 and 4 tokens in a row
lengths = starts.diff()
print(
    "position ids:",
    (torch.arange(12) - starts[:-1].repeat_interleave(lengths)).tolist(),
)

# %% [markdown]
# ## Exercise 6.1 `rope.reference` (25 min, 3 points)
# Write `rope_reference(x, offset, base, rotary_size, layout)` in plain PyTorch: the truth that your kernels will be
# compared with.
#
# - `x`: (B, H, S, D) in fp32, fp16 or bf16, any strides; it stays as it is. Returns a new tensor of its shape and type
# - the first `rotary_size` = R elements of each head are turned (R even), the others are copied
# - row s stands at position `offset + s`; the offset may be negative, and it may be beyond a million
# - pair j turns by `position * base ** (-2 j / R)` and is
#     - for `layout="halves"`: elements j and j + R / 2
#     - for `layout="interleaved"`: elements 2 j and 2 j + 1
# - angles in float64, their cosines and sines rounded to fp32, products in fp32, one rounding to the type of x


# %% nbgrader={"grade": false, "grade_id": "rope_reference", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rope_reference(x, offset, base, rotary_size, layout):
    """x with its pairs turned, in plain PyTorch."""
    ### BEGIN SOLUTION
    length, pairs = x.shape[2], rotary_size // 2
    position = torch.arange(length, dtype=torch.float64, device=x.device) + offset
    frequency = base ** (
        -torch.arange(0, rotary_size, 2, dtype=torch.float64, device=x.device)
        / rotary_size
    )
    angle = torch.outer(position, frequency)
    cos, sin = angle.cos().float(), angle.sin().float()

    turning, rest = x[..., :rotary_size].float(), x[..., rotary_size:]
    if layout == "halves":
        x0, x1 = turning[..., :pairs], turning[..., pairs:]
    else:
        x0, x1 = turning[..., 0::2], turning[..., 1::2]
    y0, y1 = x0 * cos - x1 * sin, x1 * cos + x0 * sin
    y = (
        torch.cat((y0, y1), dim=-1)
        if layout == "halves"
        else torch.stack((y0, y1), dim=-1).flatten(-2)
    )
    return torch.cat((y.to(x.dtype), rest), dim=-1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rope_reference_check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("rope.reference", rope_reference)

# %% [markdown]
# <details><summary>Hint 1: the angles</summary>
#
# `torch.arange(0, R, 2, dtype=torch.float64)` is 2 j already; divide by R, negate, and raise the base to it. Positions
# are a second `arange`, in float64 too. `torch.outer` of the two has a row for each position and a column for each pair.
# </details>
# <details><summary>Hint 2: putting the pairs back</summary>
#
# `torch.cat((y0, y1), dim=-1)` puts halves behind each other. For interleaved, `torch.stack((y0, y1), dim=-1)` has a last
# dimension of 2, and `.flatten(-2)` merges it with the one before.
# </details>
# <details><summary>Hint 3: right near 0, wrong far out, or wrong in bf16</summary>
#
# Look at every type on the way to the angle. An `arange` that takes the type of x counts in bf16, which has no number
# between 256 and 258. And in fp32 a frequency is off by up to 6e-8 of itself, times a position of a million.
# </details>

# %% [markdown]
# ### The score knows the distance only
# The next cell needs your `rope_reference`. It scores 16 queries against 16 keys, then moves *both* further and further
# along the sequence. In exact arithmetic nothing would change.


# %%
def scores_at(start, layout, size=64):
    """Scores of 16 turned queries and 16 turned keys that stand at `start` and 7 further."""
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.randn(1, 1, 16, size, generator=generator, dtype=torch.float32)
        for _ in range(2)
    )
    turned = [
        rope_reference(x, at, 10000.0, size, layout)
        for x, at in ((q, start), (k, start + 7))
    ]
    return turned[0].double() @ turned[1].double().mT


for layout in ("halves", "interleaved"):
    near = scores_at(0, layout)
    moved = {
        start: (scores_at(start, layout) - near).norm() / near.norm()
        for start in (10, 1000, 100_000, 10_000_000)
    }
    print(
        f"{layout:12}",
        ", ".join(
            f"moved by {start:,}: {change:.1e}" for start, change in moved.items()
        ),
    )

# %% [markdown]
# Both layouts have the property, with the rounding of fp32 as the only difference. It also follows that **the layout
# cannot be seen from the outside**: a model that is run in the wrong one computes scores that look healthy, lengths are
# kept, and only the answers are bad.
#
# ### In which precision?
# Your reference makes angles in float64. What if it did not? The cell turns vectors at growing positions, with angles
# (position, frequency and their product) in four types, and shows the error of the result.


# %%
def error_at(position, dtype, pairs=64):
    """Relative error of turned vectors, when the angles of this position are made in this type; fp32 tables."""
    exact = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    made = (torch.tensor(float(position)).to(dtype) * exact.to(dtype)).double()
    right, wrong = (
        torch.stack((angle.cos(), angle.sin())) for angle in (position * exact, made)
    )
    return ((wrong.float() - right).norm() / right.norm()).item()


positions = [2**k + 1 for k in range(1, 21)]
kinds = {
    "bf16": torch.bfloat16, "fp16": torch.float16,
    "fp32": torch.float32, "float64": torch.float64,
}  # fmt: skip
errors = {name: [error_at(p, kind) for p in positions] for name, kind in kinds.items()}
# fp16 ends there
errors["fp16"] = [
    e if p < 65504 else math.nan for e, p in zip(errors["fp16"], positions)
]
axes = plots.sweep(
    positions, errors,
    xlabel="position", ylabel="relative error of what is turned", unit="", yscale="log",
    title="A rounded frequency is multiplied by the position", device="on any machine",
)  # fmt: skip
axes.axhline(2**-9, color="#666666", linewidth=0.8, linestyle=":")
axes.annotate(
    "one rounding to bf16", (2**13, 2**-9),
    xytext=(0, 3), textcoords="offset points", fontsize=8,
)  # fmt: skip
axes.yaxis.set_major_formatter("{x:.0e}")
plots.show(
    axes,
    alt="Error against position: bf16 angles are wrong from the first positions on and "
    "useless past 256, fp16 past some thousands, fp32 grows in proportion to the "
    "position, float64 stays flat below all",
)

# %% [markdown]
# Angles in bf16 are of no use after some hundreds of positions, in fp16 after some thousands (a rotation by a random
# angle has the error 1.4). Angles in fp32 are good enough for a bf16 model as long as their curve stays below the
# dotted line, since the result is rounded there anyway. *Tables* of cosines and sines are a different matter: they lie
# between -1 and 1, and rounding them costs one rounding, whatever the position. "RoPE in bf16" can mean either, and one
# of the two is a mistake.

# %% [markdown]
# ## Exercise 6.2 `rope.relative` (15 min, 2 points)
# If a score depends on the distance only, then it can be computed from the distance only. Write
# `relative_score(q, k, distance, base, layout)`: the dot product of a turned query and a turned key, without turning
# either.
#
# - `q` and `k`: lists of R numbers, as they were before they were turned; all R are turned
# - `distance`: position of the query minus position of the key, an integer of any sign
# - `base` and `layout` as in exercise 6.1. Plain Python and `math`
#
# Multiply out $y^{(q)}_0 y^{(k)}_0 + y^{(q)}_1 y^{(k)}_1$ for one pair on paper first.


# %% nbgrader={"grade": false, "grade_id": "rope_relative", "locked": false, "schema_version": 3, "solution": true, "task": false}
def relative_score(q, k, distance, base, layout):
    """The score of a query and a key that stand so far apart."""
    ### BEGIN SOLUTION
    size, half, score = len(q), len(q) // 2, 0.0
    for j in range(half):
        a, b = (j, j + half) if layout == "halves" else (2 * j, 2 * j + 1)
        angle = distance * base ** (-2 * j / size)
        score += (q[a] * k[a] + q[b] * k[b]) * math.cos(angle) + (
            q[a] * k[b] - q[b] * k[a]
        ) * math.sin(angle)
    return score
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rope_relative_check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("rope.relative", relative_score)

# %% [markdown]
# <details><summary>Hint 1: any two positions will do</summary>
#
# Put the key at position 0, so that it is not turned, and the query at position `distance`. Write out the two elements
# of the turned query, multiply them with those of the key, and collect what stands beside the cosine and beside the
# sine.
# </details>
# <details><summary>Hint 2: the sign</summary>
#
# For one pair it is $(q_0 k_0 + q_1 k_1) \cos + (q_0 k_1 - q_1 k_0) \sin$ of $(m - n)\,\theta_j$. The second term changes
# its sign with the distance: looking back is not looking ahead.
# </details>

# %% [markdown]
# ## 3. Two layouts, and strides
# Which elements are a pair? The paper takes neighbours, (0, 1), (2, 3) and so on: **interleaved**. GPT-NeoX, and Llama
# in most libraries, take element j with element j + R/2: **halves**. In a partial rotary embedding only the first R of
# D elements are turned.

# %%
plots.show(
    plots.pair_map(16, 12),
    alt="A head of 16 elements of which 12 are turned, in both layouts: "
    "with halves the partners of pair 0 are elements 0 and 6, interleaved they are "
    "elements 0 and 1",
)

# %% [markdown]
# Neither layout is better for attention: one is the other with the elements of q and of k in another order, and a dot
# product does not mind an order that both share. So a checkpoint can be converted by sorting the outputs of two
# projections, which are rows of the weight of an `nn.Linear`. The cell shows it: sorted elements turned as halves,
# sorted back, are what interleaved gives.

# %%
x = torch.randn(1, 1, 5, 16)
# even elements, odd ones, the rest
order = torch.tensor([*range(0, 12, 2), *range(1, 12, 2), *range(12, 16)])
as_halves = rope_reference(x[..., order], 3, 10000.0, 12, "halves")[
    ..., torch.argsort(order)
]
print(
    "sorted, halves, sorted back == interleaved:",
    torch.equal(as_halves, rope_reference(x, 3, 10000.0, 12, "interleaved")),
)
wrong = rope_reference(x, 3, 10000.0, 12, "halves")
right = rope_reference(x, 3, 10000.0, 12, "interleaved")
print(f"not sorted: lengths agree to {abs(wrong.norm() / right.norm() - 1):.1e}, "
      f"values are off by {(wrong - right).norm() / right.norm():.0%}")  # fmt: skip

# %% [markdown]
# To a kernel the layouts are different accesses. With halves a row is two runs of R/2 neighbours, each loaded by
# itself. Interleaved, both elements of a pair lie side by side. Loading "every second element" twice would fetch every
# cache line twice, and each access would bring half of what it could; better to load the row as a whole and take it
# apart in registers (`tl.split`).
#
# The second question is where the heads lie. A projection leaves (B, S, H, D): all heads of one position side by side.
# Attention kernels like (B, H, S, D). The arguments below are called (B, H, S, D) always; `x.transpose(1, 2)` makes the
# one into the other without moving anything, so only *strides* tell them apart. And when q, k and v come from one
# product, q is a slice with gaps between its rows. `.contiguous()` would make all that simple, for the price of two
# more passes; and in place it is a mistake, because the copy is turned, and not q.

# %%
# one product: 8 heads of q, 2 of k, 2 of v, head size 16
projected = torch.empty(2, 5, (8 + 2 + 2) * 16)
q, k, v = projected.view(2, 5, 12, 16).transpose(1, 2).split([8, 2, 2], dim=1)
for name, one in (("q", q), ("k", k)):
    print(
        f"{name}: shape {tuple(one.shape)}, strides {one.stride()}, contiguous: "
        f"{one.is_contiguous()}"
    )

# %% [markdown]
# ## 4. One launch, in place
# ### What is a program, seen from CUDA?
# The report wonders how a Triton program relates to a CUDA thread. It does not: a *program* is a **thread block**. You
# say what happens to blocks of numbers; the compiler deals their elements out to the 32 x `num_warps` threads. A
# program that turns 1 position of 32 heads of size 128 has 2048 pairs; with 4 warps each of 128 threads gets 16 of
# them. No line of yours says which.
#
# That answers the question of safety, too. In place, the input is destroyed while it is read. For each pair the kernel
# loads both elements, then stores both. That is right because **one program owns a pair**: nobody else reads or writes
# it. Split the two elements of a pair among two programs, and each needs what the other overwrites: a race. Load the
# second element after storing the first, and you read what you have just written.
#
# ### Wrong turns
# Rotate a point at distance 1 through 40 positions, with one thing wrong at a time.


# %%
from course_lib.plots.house import drawn

MISTAKES = ("right", "first half overwritten", "plus in both", "turned back")


def walk_around(mistake, positions=40, theta=0.16):
    """Where the point (0.8, 0.6) ends at each position."""
    angle = torch.arange(positions, dtype=torch.float64) * theta
    cos, sin, x0, x1 = (
        angle.cos(), angle.sin(), torch.ones(positions), torch.zeros(positions),
    )  # fmt: skip
    x0, x1 = x0 * 0.8, x1 + 0.6  # a point of length 1 that lies on no axis
    y0 = (
        x0 * cos + x1 * sin
        if mistake in ("turned back", "plus in both")
        else x0 * cos - x1 * sin
    )
    if mistake == "first half overwritten":
        return y0, x1 * cos + y0 * sin
    if mistake == "turned back":
        return y0, x1 * cos - x0 * sin
    return y0, x1 * cos + x0 * sin


# %%
def way(y0, y1, steps=3):
    """Ends of an arrow along the longest stretch of a walk, on its outer side."""
    walk = torch.stack((y0, y1), dim=-1)
    # on a circle, the first
    i = (walk[steps:] - walk[:-steps]).norm(dim=-1).round(decimals=3).argmax()
    start, end = walk[i], walk[i + steps]
    out = torch.stack((end[1] - start[1], start[0] - end[0]))
    out *= 0.2 * torch.sign(out @ start) / out.norm()
    return start + out, end + out


# %%
@drawn
def draw_walks(names):
    """One panel for each: the points of all positions, and which way they go; the circle they belong on, thin."""
    figure, axes = plots.figure(7.8, 2.6, columns=len(names))
    figure.suptitle(
        "Two of these keep lengths, and one of the two is wrong",
        x=0.01, ha="left", weight="bold",
    )  # fmt: skip
    circle = torch.linspace(0, 2 * math.pi, 100)
    for i, (ax, name) in enumerate(zip(axes, names)):
        y0, y1 = walk_around(name)
        ax.plot(circle.cos(), circle.sin(), color="#999999", linewidth=0.7)
        ax.plot(
            y0, y1, marker=plots.MARKERS[i],
            color=plots.PALETTE[i], markersize=3, linewidth=0.8,
        )  # fmt: skip
        start, end = way(y0, y1)
        ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "black"})
        length = torch.sqrt(y0**2 + y1**2)
        ax.set_title(
            f"{name}\nlengths {length.min():.2f} to {length.max():.2f}", fontsize=8.5
        )
        ax.set(xlim=(-1.5, 1.5), ylim=(-1.5, 1.5), aspect="equal")
        ax.set_axis_off()
    return figure


plots.show(
    draw_walks(MISTAKES),
    alt="A point turned through 40 positions. Right: a circle. First half overwritten: "
    "a loop inside and outside of the circle. A plus in both results: "
    "a narrow ellipse. Turned back: the circle, the other way round",
)

# %% [markdown]
# A test that lengths are kept finds two of three. The third one, a sign, is a rotation too, the other way round. The
# wrong layout, a wrong frequency and a wrong position are rotations as well. That is why the checks compare values.
#
# ### How much should one program do?
# The report's grid is `[batch x length, heads x head size]`: one program for a row and a block of its columns. Is that a
# good choice? Two counts decide. *Bytes a program*: a program should have some kilobytes in flight, and there should be
# many programs. *Reads of the tables*: all heads of a row need the same angles. A program with one head loads them for
# that head; the next program loads them again, from the L2 cache, but it loads them.

# %%
row = 2 * 128  # bytes of one head of one position in bf16
tables = 2 * 4 * 64  # bytes of its cosines and sines in fp32
print(
    f"{'a program turns':38}{'bytes read':>12}{'programs':>12}"
    f"{'bytes of tables for a byte of q':>34}"
)
for positions, heads in ((1, 1), (1, 8), (1, 32), (8, 4), (32, 1)):
    words = (
        f"{positions} position{'s' * (positions > 1)} of {heads} "
        f"head{'s' * (heads > 1)}"
    )
    # batch 4, length 2048, 32 heads of q and of k
    programs = 4 * 2048 * 32 * 2 // (positions * heads)
    print(
        f"{words:38}{positions * heads * row:>12,}{programs:>12,}"
        f"{tables / (heads * row):>34.2f}"
    )

# %% [markdown]
# One head of one position a program reads twice as many bytes of tables as of q; they come from the cache, but each
# costs a load. All heads of a position share one load of the angles. So a program should take several heads where they
# lie side by side. The report's grid is a good one if its block of columns is several heads wide, and a poor one if it
# is one head. Where heads are far apart, (B, H, S, D) in memory, 8 positions of 4 heads read as many bytes of q as one
# position of 32 heads does, in longer runs, and eight times the bytes of tables.

# %% [markdown]
# ## Exercise 6.3 `rope.forward` (75 min, 8 points)
# Write `rope_(q, k, cos, sin, positions, offset, layout)`, which turns q and k where they lie, without a copy of
# either, in one launch or two. What it returns is not looked at.
#
# - `q`: (B, H, S, D), `k`: (B, H_kv, S, D), with perhaps fewer heads; one type: fp32, fp16, or bf16 (on a GPU). Any
#   strides, the last one included; gaps are not touched
# - `cos`, `sin`: (positions, P), fp32, contiguous. R = 2 P elements of a head are turned, R at most D, P any number; the
#   others stay as they are
# - `layout`: `"halves"` or `"interleaved"`, as in exercise 6.1
# - `positions`: (B, S) int32 with any strides, or `None`. Row s of sequence b is at `offset + positions[b, s]`, or at
#   `offset + s`. (Several sequences packed into one row begin at 0 again and again.)
# - load, convert to fp32, turn, convert back, store. Batch, heads and rows may each pass 65535, and a sequence may begin
#   past $2^{31}$ elements (both tried on a GPU, the second only when it is graded)
#
# Two kernel functions are proposed: `_turn` for one block of positions and heads of one tensor, `_rope_kernel` to say
# which block that is. They get an output and an input: in place both are the same tensor, and in exercises 6.4 and 6.5
# they are two. `REST` is how many elements are to be copied, 0 in place; write it now, exercise 6.4 begins with it.
# Section 9 compiles `_rope_kernel` by the names of its arguments, so keep them. About 35 lines, 15 and 10.


# %% nbgrader={"grade": false, "grade_id": "rope_forward_turn", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _turn(
    out_ptr, x_ptr, cos_ptr, sin_ptr, position, batch, offs_s, offs_h, length, heads,
    stride_out_b, stride_out_h, stride_out_s, stride_out_d,
    stride_x_b, stride_x_h, stride_x_s, stride_x_d,
    PAIRS: tl.constexpr, REST: tl.constexpr,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Rows offs_s (at `position`) of heads offs_h of one tensor:
    from x to out, which may be x."""
    ### BEGIN SOLUTION
    offs_p = tl.arange(0, BLOCK_P)
    mask_s, mask_p = offs_s < length, offs_p < PAIRS
    rows = mask_s[:, None] & (offs_h < heads)[None, :]
    x_ptr += (
        batch * stride_x_b + offs_s[:, None] * stride_x_s + offs_h[None, :] * stride_x_h
    )
    out_ptr += (
        batch * stride_out_b
        + offs_s[:, None] * stride_out_s
        + offs_h[None, :] * stride_out_h
    )
    x_ptrs, out_ptrs = x_ptr[:, :, None], out_ptr[:, :, None]  # (positions, heads, 1)

    at, mask_t = (
        position[:, None] * PAIRS + offs_p[None, :],
        mask_s[:, None] & mask_p[None, :],
    )
    # the same for all heads
    cos = tl.load(cos_ptr + at, mask=mask_t, other=0.0)[:, None, :]
    sin = tl.load(sin_ptr + at, mask=mask_t, other=0.0)[:, None, :]
    if INVERSE:
        sin = -sin

    if INTERLEAVED:  # both elements of a pair in one access
        offs_d = tl.arange(0, 2 * BLOCK_P)[None, None, :]
        mask = rows[:, :, None] & (offs_d < 2 * PAIRS)
        x = tl.load(x_ptrs + offs_d * stride_x_d, mask=mask, other=0.0).to(tl.float32)
        x0, x1 = tl.split(tl.reshape(x, (x.shape[0], x.shape[1], BLOCK_P, 2)))
        y = tl.reshape(tl.join(x0 * cos - x1 * sin, x1 * cos + x0 * sin), x.shape)
        tl.store(
            out_ptrs + offs_d * stride_out_d, y.to(out_ptr.dtype.element_ty), mask=mask
        )
    else:
        first, second = offs_p[None, None, :], offs_p[None, None, :] + PAIRS
        mask = rows[:, :, None] & mask_p[None, None, :]
        x0 = tl.load(x_ptrs + first * stride_x_d, mask=mask, other=0.0).to(tl.float32)
        x1 = tl.load(x_ptrs + second * stride_x_d, mask=mask, other=0.0).to(tl.float32)
        y0, y1 = x0 * cos - x1 * sin, x1 * cos + x0 * sin
        tl.store(
            out_ptrs + first * stride_out_d, y0.to(out_ptr.dtype.element_ty), mask=mask
        )
        tl.store(
            out_ptrs + second * stride_out_d, y1.to(out_ptr.dtype.element_ty), mask=mask
        )
    if REST > 0:  # in place it is already there
        offs_r = 2 * PAIRS + tl.arange(0, BLOCK_R)[None, None, :]
        mask = rows[:, :, None] & (offs_r < 2 * PAIRS + REST)
        tl.store(
            out_ptrs + offs_r * stride_out_d,
            tl.load(x_ptrs + offs_r * stride_x_d, mask=mask),
            mask=mask,
        )
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "rope_forward_kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _rope_kernel(
    q_out_ptr, k_out_ptr, q_ptr, k_ptr, cos_ptr, sin_ptr, positions_ptr,
    q_heads, k_heads, length, offset,
    stride_q_out_b, stride_q_out_h, stride_q_out_s, stride_q_out_d,
    stride_k_out_b, stride_k_out_h, stride_k_out_s, stride_k_out_d,
    stride_q_b, stride_q_h, stride_q_s, stride_q_d,
    stride_k_b, stride_k_h, stride_k_s, stride_k_d,
    stride_positions_b, stride_positions_s,
    PAIRS: tl.constexpr, REST: tl.constexpr,
    INTERLEAVED: tl.constexpr, INVERSE: tl.constexpr,
    BLOCK_S: tl.constexpr, BLOCK_H: tl.constexpr,
    BLOCK_P: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    ### BEGIN SOLUTION
    q_blocks = tl.cdiv(q_heads, BLOCK_H)
    blocks = q_blocks + tl.cdiv(k_heads, BLOCK_H)
    s_blocks = tl.cdiv(length, BLOCK_S)
    # one dimension, since the others end at 65535; programs that run at the same time
    # take neighbouring memory
    inside = stride_q_h < stride_q_s
    block = tl.where(
        inside, tl.program_id(0) % blocks, tl.program_id(0) // s_blocks % blocks
    )
    s_block = tl.where(
        inside, tl.program_id(0) // blocks % s_blocks, tl.program_id(0) % s_blocks
    )
    batch = (tl.program_id(0) // blocks // s_blocks).to(tl.int64)
    offs_s = s_block * BLOCK_S + tl.arange(0, BLOCK_S).to(tl.int64)
    offs_h = tl.arange(0, BLOCK_H).to(tl.int64)

    position = offs_s
    if positions_ptr is not None:
        at = positions_ptr + batch * stride_positions_b + offs_s * stride_positions_s
        position = tl.load(at, mask=offs_s < length, other=0)
    position += offset

    if block < q_blocks:
        _turn(
            q_out_ptr, q_ptr, cos_ptr, sin_ptr,
            position, batch, offs_s, block * BLOCK_H + offs_h, length, q_heads,
            stride_q_out_b, stride_q_out_h, stride_q_out_s, stride_q_out_d,
            stride_q_b, stride_q_h, stride_q_s, stride_q_d,
            PAIRS, REST, INTERLEAVED, INVERSE, BLOCK_P, BLOCK_R,
        )  # fmt: skip
    else:
        offs_h += (block - q_blocks) * BLOCK_H
        _turn(
            k_out_ptr, k_ptr, cos_ptr, sin_ptr,
            position, batch, offs_s, offs_h, length, k_heads,
            stride_k_out_b, stride_k_out_h, stride_k_out_s, stride_k_out_d,
            stride_k_b, stride_k_h, stride_k_s, stride_k_d,
            PAIRS, REST, INTERLEAVED, INVERSE, BLOCK_P, BLOCK_R,
        )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "rope_forward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def turn_into(
    q_out, k_out, q, k, cos, sin, positions, offset, layout, inverse=False, blocks=None
):
    """One launch. blocks: positions and heads a program, and its warps."""
    ### BEGIN SOLUTION
    (B, H, S, D), H_kv, pairs = q.shape, k.shape[1], cos.shape[1]
    rest = 0 if q_out is q else D - 2 * pairs
    if not blocks:
        # 4 KB of bf16 a program
        rows = 2048 // triton.next_power_of_2(2 * pairs) if q.is_cuda else 32
        # few heads where positions lie together
        most, warps = (rows, 4) if q.stride(1) < q.stride(2) else (2, 2)
        heads = min(most, triton.next_power_of_2(max(H, H_kv)))
        blocks = max(1, rows // heads), heads, warps
    block_s, block_h, warps = blocks
    programs = (
        triton.cdiv(S, block_s)
        * (triton.cdiv(H, block_h) + triton.cdiv(H_kv, block_h))
        * B
    )
    _rope_kernel[(programs,)](
        q_out, k_out, q, k, cos, sin, positions,
        H, H_kv, S, offset,
        *q_out.stride(), *k_out.stride(), *q.stride(), *k.stride(),
        *((0, 0) if positions is None else positions.stride()),
        PAIRS=pairs, REST=rest, INTERLEAVED=layout == "interleaved", INVERSE=inverse,
        BLOCK_S=block_s, BLOCK_H=block_h,
        BLOCK_P=triton.next_power_of_2(pairs),
        BLOCK_R=triton.next_power_of_2(max(1, rest)), num_warps=warps,
    )  # fmt: skip
    ### END SOLUTION


def rope_(q, k, cos, sin, positions, offset, layout):
    """q and k turned in place."""
    turn_into(q, k, q, k, cos, sin, positions, offset, layout)


# %% nbgrader={"grade": true, "grade_id": "rope_forward_check", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false}
check("rope.forward", rope_)

# %% [markdown]
# <details><summary>Hint 1: in which order to write it</summary>
#
# First q alone, halves, whole heads, no positions, one head a program: `offs_s` rows, `offs_p` pairs, a block of
# addresses (rows, pairs). Load x0 and x1, load cos and sin at `position * PAIRS + offs_p`, store both. Then k in the
# same launch, then the other layout, then positions. Several heads a program come last, as a dimension in the middle:
# (rows, heads, pairs). Run the check after each step. With q alone no case can be right; from k on more of them are each
# time, `whole blocks` and `halves` first, and from both layouts on the check names what is missing.
# </details>
# <details><summary>Hint 2: q and k in one grid</summary>
#
# Number the blocks of heads through: those of q first, those of k behind them. `if block < q_blocks:` is decided at run
# time, which is allowed as long as no name is given another type in one of the branches. Calling a second
# `@triton.jit` function in each branch avoids that.
# </details>
# <details><summary>Hint 3: parts of a head, and P that is no power of two</summary>
#
# The second half begins at P, not at D / 2. `offs_p` must be a power of two long, so mask it with `offs_p < PAIRS`,
# loads and stores alike: an unmasked store at `offs_p + PAIRS` reaches into the next row. For interleaved load
# `2 * BLOCK_P` neighbours, reshape to (..., BLOCK_P, 2), `tl.split`; `tl.join` and reshape back.
# </details>
# <details><summary>Hint 4: positions</summary>
#
# `positions_ptr` may be `None`, and `if positions_ptr is not None` is decided when the kernel is compiled. Load one
# position a row, with both strides of `positions`, add the offset in both cases, and use it for the tables only: the
# row in memory is still `offs_s`.
# </details>
# <details><summary>Hint 5: what only a GPU shows</summary>
#
# The second and third dimension of a grid end at 65535: number all programs in the first, and take the number apart with
# `%` and `//`. And offsets have 32 bits until you widen one factor: `batch.to(tl.int64) * stride`.
# </details>

# %% [markdown]
# ## 5. What a fair comparison takes
# Now the claim. Four things hide in "8 times faster", and each has a measurement of its own.
#
# 1. **Device time**: what the GPU works on. `time_gpu` queues calls ahead, so the host's time is not in it.
# 2. **Pace**: what a program sees that calls again and again. About the larger of device time and host time. It can be a
#    little less than the device time of 1., because the calls that are timed in 1. do not find their data in the cache.
# 3. **First calls**: loading and compiling, once a process.
# 4. **What is compared with what**: types of tables, and whether making them counts.
#
# The versions: the plain one with tables in the type of q, the same with fp32 tables, that one compiled by
# `torch.compile`, your kernel, and a copy of q and k, two launches, which is the yardstick. A CPU runs the plain version
# and the copy only, with smaller shapes (1 x 8 heads of 64 numbers): there compare rows within a column, and ignore the
# column *here / recorded*.


# %%
def tables_for(length, size=SIZE, base=10000.0):
    """cos and sin (length, size / 2), made in float64, in fp32."""
    turns = base ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), turns)
    return angle.cos().float().to(DEVICE), angle.sin().float().to(DEVICE)


compiled_eager = torch.compile(eager, dynamic=False)  # compiles when it is called


def versions(length):
    """name -> a call that turns q and k of this length;
    heads side by side in memory."""
    shape = (BATCH, length, HEADS, SIZE)
    q, k = (
        torch.randn(shape, device=DEVICE, dtype=HALF).transpose(1, 2) for _ in range(2)
    )
    cos, sin = tables_for(length)
    full = [torch.cat((t, t), dim=-1) for t in (cos, sin)]
    short = [t.to(HALF) for t in full]
    into = [torch.empty_like(x) for x in (q, k)]
    calls = {
        "plain": lambda: eager(q, k, *short),
        "copy": lambda: (into[0].copy_(q), into[1].copy_(k)),
    }
    if GPU:
        calls |= {
            "plain, fp32 tables": lambda: eager(q, k, *full),
            "compiled": lambda: compiled_eager(q, k, *full),
            "mine": lambda: rope_(q, k, cos, sin, None, 0, "halves"),
        }
    return calls


# %%
LENGTHS = (16, 128, 512, 2048, 8192) if GPU else (24, 64, 256, 1024)
CALLS = {n: versions(n) for n in LENGTHS}
device_times = {
    n: {name: timed(call) for name, call in calls.items()} for n, calls in CALLS.items()
}
shown = {
    f"length {n}, {name}": took
    for n, by_name in device_times.items()
    for name, took in by_name.items()
}
results.beside("lesson06.device", shown, unit="us")


# %% [markdown]
# And the pace: many calls one behind the other, one wait at the end.


# %%
def pace(call, calls=30, rounds=7):
    """Seconds that one of many queued calls costs: the median of some rounds."""
    seconds = []
    for _ in range(rounds + 1):  # the first round warms up
        if GPU:
            torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        if GPU:
            torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begin) / calls)
    return sorted(seconds[1:])[rounds // 2]


paces = {
    n: {name: pace(call) for name, call in calls.items()} for n, calls in CALLS.items()
}
shown = {
    f"length {n}, {name}": took
    for n, by_name in paces.items()
    for name, took in by_name.items()
}
results.beside("lesson06.pace", shown, unit="us")

# %% [markdown]
# Both tables as ratios to the copy, which stands for two passes. Where an H200 was recorded, its numbers follow.


# %%
def over_copy(numbers):
    """length -> name -> time over that of the copy; numbers: length -> name -> time."""
    return {
        n: {name: t / by_name["copy"] for name, t in by_name.items() if name != "copy"}
        for n, by_name in numbers.items()
    }


def read_back(section):
    """A recorded table as length -> name -> time."""
    made = {}
    for row in recorded(section):
        length, name = row["name"].removeprefix("length ").split(", ", 1)
        made.setdefault(int(length), {})[name] = row["value"]
    return made


device_s = {
    n: {name: took.median_s for name, took in by_name.items()}
    for n, by_name in device_times.items()
}
all_ratios = {"device time, here": over_copy(device_s), "pace, here": over_copy(paces)}
all_ratios |= {
    f"{words}, recorded": over_copy(read_back(f"lesson06.{words.split()[0]}"))
    for words in ("device time", "pace")
}

# %%
for words, table in all_ratios.items():
    print(f"{words}, over a copy:" if table else f"{words}: nothing")
    for n, by_name in table.items():
        print(
            f"  length {n:5}: "
            + ", ".join(f"{name} {ratio:.1f}" for name, ratio in by_name.items())
        )
there = paces if GPU else read_back("lesson06.pace")  # your kernel runs on a GPU only
if there:
    at_length = {"long sequences": max(there), "short sequences": min(there)}
    against(
        predicted_gain,
        {words: there[n]["plain"] / there[n]["mine"] for words, n in at_length.items()},
    )

# %% [markdown]
# How to read this. **Long sequences**: device time and pace agree, because the device is the slower side. Counted
# were 5 (ten passes in place of two); recorded is 14. So bytes say what the plain version *must* cost, not what it
# does: its operators take nearly three times what their passes would at a copy's speed. They see tables that are
# broadcast, halves of rows, and rows in two orders (q has its heads side by side here, a concatenation writes (B, H,
# S, D) whatever it reads), and probably a general kernel for such operands moves small pieces. Tables in fp32 add to
# it: 20 to 21. None of this is a property of Triton: what the compiler generates for the forward pass makes two
# passes too and is nearly as fast.
#
# **Short sequences**: the pace is the host's. Ten operators against one launch are a ratio of 2 and not of 10,
# because a call of *this* Triton kernel costs the host as much as four or five operators. That of the recorded
# solution has 29 run-time arguments: seven pointers (to q and k, to their outputs, to both tables and the positions),
# four numbers (two counts of heads, length, offset) and 18 strides. Triton's launcher looks at each of them before
# every launch, for its type and for what makes a constant of it: is it 1, is it a multiple of 16? The cell below
# measures what one costs. (The ten took 140 us at length 16 and 143 us at 128; host times belong to the host.) Take
# the host away, as a CUDA graph does, and the ratio *grows* to 7: ten kernels begin and end where one does. In the
# range between, many numbers can be had by the choice of a length, 8 among them. (A CPU has no queue, so its pace
# differs from its "device time" for one reason: calls in a row find their data in a cache.)
#
# ### What an argument costs
# Three kernels that do nothing but store a number. One has a single argument, one has 20 numbers more, one 6 pointers
# more. The device needs less time for them than the host, so the pace is the host's.


# %%
@triton.jit
def _one_argument(x_ptr):
    tl.store(x_ptr, 1.0)


@triton.jit
def _twenty_numbers(x_ptr, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t):
    tl.store(x_ptr, 1.0)


@triton.jit
def _six_pointers(x_ptr, a, b, c, d, e, f):
    tl.store(x_ptr, 1.0)


host = {}
if GPU:
    x, *others = (torch.zeros(8, device=DEVICE) for _ in range(7))
    host["one pointer"] = pace(lambda: _one_argument[(1,)](x), calls=200)
    host["20 numbers more"] = pace(
        lambda: _twenty_numbers[(1,)](x, *range(2, 22)), calls=200
    )
    host["6 pointers more"] = pace(lambda: _six_pointers[(1,)](x, *others), calls=200)
    for words, count in (("20 numbers more", 20), ("6 pointers more", 6)):
        print(
            f"{words}: {1e9 * (host[words] - host['one pointer']) / count:.0f} ns each"
        )
results.beside("lesson06.arguments", host, unit="us")

# %% [markdown]
# On the recorded H200 arguments are cheap: 20 numbers cost 0.4 us together, of a call of 16 us, and six pointers less
# than such calls scatter. So the arguments do not explain why a call of `rope_` costs 60 us and more. What is left is
# the Python around the launch, and what the launcher does for constants; the cell does not tell them apart. Where
# that matters, capture the step in a CUDA graph.
#
# ### The first call
# The report's 1.97 ms for one `aten::cos`, whose kernel ran for 1 us, is no property of the cosine either. On a GPU
# kernels are loaded when they are first used, and the profile happened to see that. The cell starts fresh processes and
# times the first call of an operator and a later one.

# %%
import subprocess
import sys

FIRST = """
import time, torch
device = "{device}"
x = torch.ones(2048, 64, device=device)
def call():
    torch.cos(x)
    if device == "cuda": torch.cuda.synchronize()
seconds = []
for _ in range(20):
    begin = time.perf_counter(); call(); seconds.append(time.perf_counter() - begin)
print(seconds[0], sorted(seconds[1:])[9])
"""
fresh = [
    list(
        map(
            float,
            subprocess.run(
                [sys.executable, "-c", FIRST.format(device=DEVICE)],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split(),
        )
    )
    for _ in range(3)
]
first, later = (sorted(column)[1] for column in zip(*fresh))
print(f"the first call of cos in a process costs {first / later:.0f} times a later one")
results.beside(
    "lesson06.first_cos", {"first call": first, "a later call": later}, unit="us"
)

# %% [markdown]
# So a profile of one call is a profile of a first call, unless it was warmed up. The Triton kernel in the report must
# have been compiled before, or compiling would be all that one sees.
#
# ### Peers
# What do others reach? The course measures its own kernel against a copy, an in-place scale of the same bytes,
# Liger's kernel, the compiled and the plain version, forward and backward, in turn in one process. `eager` and
# `compile` have fp32 tables there; in the rows of a variant (angles computed, interleaved, position ids, positions
# side by side inside a head) `plain` is our own kernel without it.

# %%
for row in recorded("rope"):
    peers = ", ".join(
        f"{name.removesuffix(' us')} {us:.0f}"
        for name, us in row.items()
        if name.endswith(" us") and us
    )
    print(
        f"{row['name']:48} ours {row['value']:6.1f} us; {peers}; "
        f"over the best of them {row['ratio']:.3f}"
    )

# %% [markdown]
# ## 6. Backward: turn back
# A rotation is a matrix with orthonormal columns, and its transpose is its inverse. So for each pair
#
# $$dx_0 = dy_0 \cos + dy_1 \sin, \qquad dx_1 = dy_1 \cos - dy_0 \sin :$$
#
# the same kernel with the sign of the sine turned, as the report says. Nothing of q or k appears in it. **No activation
# is saved**; what is kept are the tables, which are small and shared by all layers, and the positions. Compare with the
# plain version: autograd keeps for $x \cdot \cos$ nothing of x either (the tables need no gradient), but its backward
# pass is again a chain of operators.
#
# ### What does "in place" mean to autograd?
# Autograd keeps tensors for backward passes. When an operator of PyTorch writes into such a tensor, a version counter
# goes up, and the backward pass finds out. A kernel of yours writes behind autograd's back: the counter stays.

# %%
x = torch.randn(1, 1, 4, 8, device=DEVICE, requires_grad=True)
cos, sin = tables_for(4, 8)


def gradient(change):
    """d/dx of sum(y^2) with y = 2 x, when `change` is done to y after the square was taken: 8 x."""
    y = 2 * x
    loss = (y * y).sum()  # keeps y for backward
    change(y)
    return torch.autograd.grad(loss, x)[0]


try:
    gradient(lambda y: y.mul_(0.5))
except RuntimeError as error:
    print("torch's own operator:", str(error).split(":")[0])
silent = gradient(
    lambda y: rope_(y.detach(), y.detach().clone(), cos, sin, None, 0, "halves")
)
print(
    "a kernel of ours: no error, and the gradient is off by "
    f"{((silent - 8 * x).norm() / (8 * x).norm()).item():.0%}"
)

# %% [markdown]
# So turning q in place is right only where nobody needs its old values: the operation that made q must not have kept
# its *result*. A linear layer keeps its input, so the usual place, right behind the projection, is safe. A residual
# branch, a norm whose backward pass uses its output, or a second reader of q are not.
#
# `torch.autograd.Function` has a word for it, `ctx.mark_dirty(q, k)`. It raises the version counter, and then the checks
# of autograd hold. Two of them get in the way here.


# %%
class Dirty(torch.autograd.Function):
    """Both inputs multiplied by 2 in place, and marked so."""

    @staticmethod
    def forward(ctx, q, k):
        ctx.mark_dirty(q, k)
        return q.mul_(2), k.mul_(2)

    @staticmethod
    def backward(ctx, dq, dk):
        return 2 * dq, 2 * dk


leaf = torch.ones(3, requires_grad=True)
# as q and k of one projection
views = (2 * torch.ones(2, 3, requires_grad=True)).unbind(0)
for words, given in (
    ("leaves", (leaf, leaf.detach().clone().requires_grad_())),
    ("views", views),
):
    try:
        Dirty.apply(*given)
    except RuntimeError as error:
        print(f"{words}: {str(error)[:118]}...")

# %% [markdown]
# A leaf is what the user owns and asks gradients for, so its values must stay. And q and k are views of one projection
# nearly always, which rules out two results from one in-place Function. The course's own `rope_` therefore returns q
# and k as if newly made and says in its documentation who may call it. `torch.compile` has an answer of its own: an
# operator whose schema says that it writes (`mutates_args=("q", "k")`), which the compiler may turn into a version that
# does not, where it has to.
#
# In the backward pass the temptation is the same: the gradient of the result has arrived, so turn it in place. But a
# gradient may belong to two.


# %%
class Greedy(torch.autograd.Function):
    """The identity, whose backward pass negates the gradient in place."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g.neg_()


a, b = (torch.ones(3, requires_grad=True) for _ in range(2))
given = torch.ones(3)
da, db = torch.autograd.grad(Greedy.apply(a) + b, (a, b), given)
print(
    f"a + b, the gradient of a negated: da {da.tolist()}, db {db.tolist()}; "
    f"the gradient that was given: {given.tolist()}"
)

# %% [markdown]
# db should be 1, and what was given should still be 1. (A sum makes things worse: its gradient has strides of 0, one
# number of memory for all elements, and a kernel that turns it in place turns that number again and again.) Out of
# place costs the same bytes, one read and one write, and memory for one more tensor while the backward pass is at this
# layer. That is the better bargain.

# %% [markdown]
# ## Exercise 6.4 `rope.backward` (30 min, 5 points)
# Write `rope(q, k, cos, sin, positions, offset, layout)`, which returns q and k turned, as new tensors that can be
# differentiated. Arguments as in exercise 6.3; q and k stay as they are.
#
# - gradients come in any strides, and are read where they lie: a copy of one costs points, since it is two passes more.
#   Those of a sum have strides of 0, and one tensor may be the gradient of both. They
#   stay as they are
# - between the passes nothing is kept but `cos`, `sin`, `positions` and plain numbers. The check looks at what you save,
#   and at what hangs on `ctx`
# - all arithmetic is in kernels, forward and backward. That holds for the sign too: `-sin` in PyTorch is a launch and a
#   pass over the table in every layer, where the kernel has the sine in a register, and grading takes it for a kernel
#   that is missing. About 15 lines around `turn_into`


# %% nbgrader={"grade": false, "grade_id": "rope_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Rope(torch.autograd.Function):
    """q and k turned; their gradients turned back."""

    @staticmethod
    def forward(ctx, q, k, cos, sin, positions, offset, layout):
        ### BEGIN SOLUTION
        ctx.save_for_backward(cos, sin, positions)
        ctx.how = offset, layout
        turned = torch.empty_like(q), torch.empty_like(k)
        turn_into(*turned, q, k, cos, sin, positions, offset, layout)
        return turned
        ### END SOLUTION

    @staticmethod
    def backward(ctx, dq, dk):
        ### BEGIN SOLUTION
        # new memory, dense also where the gradient is that of a sum
        # and its strides are 0
        back = torch.empty_like(dq), torch.empty_like(dk)
        turn_into(*back, dq, dk, *ctx.saved_tensors, *ctx.how, inverse=True)
        return *back, None, None, None, None, None
        ### END SOLUTION


def rope(q, k, cos, sin, positions, offset, layout):
    """q and k turned, as new tensors; differentiable in both."""
    return Rope.apply(q, k, cos, sin, positions, offset, layout)


# %% nbgrader={"grade": true, "grade_id": "rope_backward_check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check("rope.backward", rope)

# %% [markdown]
# <details><summary>Hint 1: what a Function needs</summary>
#
# `forward(ctx, ...)` with all arguments in order; `ctx.save_for_backward(...)` for tensors (it takes `None` as well),
# attributes of `ctx` for numbers; `backward(ctx, dq, dk)` with one argument for each *result*, returning one value for
# each *argument* of forward: the two gradients, then `None` five times.
# </details>
# <details><summary>Hint 2: wrong or NaN only for some gradients</summary>
#
# A gradient does not have the strides of q. Pass `dq.stride()`; the gradient of a sum has (0, 0, 0, 0), and your kernel
# reads it like any other. Only what you *write* needs memory of its own.
# </details>

# %% [markdown]
# ### Measure
# The backward pass of the plain version, through autograd, beside yours. Predict first: how many passes does autograd
# make to turn one gradient back? Go through the line from its end: the addition hands the gradient on, a multiplication
# has a multiplication, a concatenation is cut, what arrives from two sides is added.

# %%
predicted_back = {"plain backward, passes": None}  # replace None
### BEGIN PREDICTION
predicted_back = {
    "plain backward, passes": 10,
    "why": "each operator of the forward pass has one of as many passes behind it",
}
### END PREDICTION


def passes_back(dtype):
    """Operators and passes of the plain version's backward pass."""
    q, k = (torch.randn(1, 4, 256, 64).to(dtype).requires_grad_() for _ in range(2))
    out = eager(q, k, *(torch.ones(256, 64, dtype=dtype) for _ in range(2)))
    with Ledger() as ledger:
        torch.autograd.grad(out, (q, k), [torch.ones_like(x) for x in out])
    rows = [
        (name, moved)
        for name, moved in ledger.rows
        if name not in ("ones_like", "detach")
    ]
    return [name for name, _ in rows], sum(moved for _, moved in rows) / (
        q.nbytes + k.nbytes
    )


names, passes = passes_back(torch.bfloat16)
print(
    f"{len(names)} operators: "
    f"{', '.join(f'{names.count(n)} {n}' for n in dict.fromkeys(names))}"
)
against(predicted_back, {"plain backward, passes": passes})


# %% [markdown]
# **The prediction, counted.** 10.5 passes in 10 operators (4 products, 2 negations, 2 concatenations, 2 additions),
# half a pass more than forward.


# %%
def backward_calls(length):
    """name -> a call that takes gradients of q and k back through the rotation."""
    shape = (BATCH, length, HEADS, SIZE)
    q, k, dq, dk = (
        torch.randn(shape, device=DEVICE, dtype=HALF).transpose(1, 2) for _ in range(4)
    )
    cos, sin = tables_for(length)
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    plain = eager(q, k, *(torch.cat((t, t), dim=-1).to(HALF) for t in (cos, sin)))
    calls = {
        "plain": lambda: torch.autograd.grad(
            plain, (q, k), (dq, dk), retain_graph=True
        ),
        "copy": lambda: (dq.clone(), dk.clone()),
    }
    if GPU:
        turned = rope(q, k, cos, sin, None, 0, "halves")
        calls["mine"] = lambda: torch.autograd.grad(
            turned, (q, k), (dq, dk), retain_graph=True
        )
    return calls


back = {
    n: {name: timed(call) for name, call in backward_calls(n).items()}
    for n in (LENGTHS[-2], LENGTHS[-1])
}
shown = {
    f"length {n}, {name}": took
    for n, by_name in back.items()
    for name, took in by_name.items()
}
results.beside("lesson06.backward", shown, unit="us")

# %% [markdown]
# The plain backward pass has the operators of the forward one in another order, and about as many passes. So where bytes
# set the time the gain must be the same in both directions. The report has 8 forward and 6 backward: at least one of its
# plots was made where something else than bytes set the time, or where the two sides were not alike. The claim gives no
# way to find out. (The half of a pass that the count has more is the tables, which only 4 heads share there.)
#
# What the compiler makes of the backward pass takes nearly four times a copy, as the table of peers shows, although
# it fused forward. A profile on an H200 (2048 tokens) says why. The compiled kernel itself makes two passes, and
# takes 71 us where a copy takes 64. Before it run two plain copies, one a gradient, and they take 189 us. The
# backward pass was compiled for gradients that lie as (B, H, S, D), contiguous. The gradients that arrive have their
# heads side by side, as q and k have, so autograd's wrapper first copies each into the order that was promised. These
# are two passes more, and slow ones: they read and write in different orders. 71 + 189 = 260 us, and the table says
# 259. Your kernel takes gradients in any strides, as exercise 6.4 asks, and pays none of it.
#
# ## 7. Tables, or angles in the kernel?
# The report counts 2 us for cosine and sine *beside* its 11 us. Whether these belong to RoPE is a question of design.
# There are three.
#
# | | kept in memory | each call | costs |
# |---|---|---|---|
# | tables made once | 8 bytes a pair and position | reads them | memory, and a limit to positions |
# | tables made in every call | nothing | makes them, then reads them | launches and bytes in every layer |
# | angles in the kernel | 8 bytes a pair: a frequency in two numbers | computes cos and sin | arithmetic, a slower path for large angles |
#
# Tables are small beside q and k: all heads share them, and sequences do too. The cell counts.

# %%
print(f"{'length':>8}{'tables, KiB':>14}{'q and k, MiB':>14}{'tables / (q and k)':>20}")
for length, heads, kv_heads in (
    (2048, 32, 32), (8192, 32, 32), (8192, 32, 8), (131072, 32, 8),
):  # fmt: skip
    size, tables = 4 * length * (heads + kv_heads) * 128 * 2, 2 * length * 64 * 4
    print(
        f"{length:8}{tables / 2**10:14,.0f}{size / 2**20:14,.0f}{tables / size:20.2%}  "
        f"({heads} and {kv_heads} heads, batch 4)"
    )

# %% [markdown]
# About one per cent, and after the first read they come from the L2 cache. Angles in the kernel save these bytes and
# pay with instructions, which a kernel that waits for memory has to spare: in lesson 01 two cosines hid, for the most
# part, behind the traffic of 8 bytes. What does the compiler make of the two? The kernel below turns rows of one head,
# with tables or with `tl.cos` and `tl.sin`, and is compiled for an H200 without needing one.


# %%
@triton.jit
def _either_kernel(
    x_ptr, first_ptr, second_ptr, stride,
    COMPUTED: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, PAIRS)
    if COMPUTED:
        angle = row.to(tl.float32)[:, None] * tl.load(first_ptr + pair)[None, :]
        cos, sin = tl.cos(angle), tl.sin(angle)
    else:
        at = row[:, None] * PAIRS + pair[None, :]
        cos, sin = tl.load(first_ptr + at), tl.load(second_ptr + at)
    at = x_ptr + row[:, None] * stride + pair[None, :]
    x0, x1 = tl.load(at).to(tl.float32), tl.load(at + PAIRS).to(tl.float32)
    tl.store(at, (x0 * cos - x1 * sin).to(x_ptr.dtype.element_ty))
    tl.store(at + PAIRS, (x1 * cos + x0 * sin).to(x_ptr.dtype.element_ty))


# %%
from course_lib.compiled import compile_kernel
from course_lib.compiled.occupancy import residents

types = {"x_ptr": "*bf16", "first_ptr": "*fp32", "second_ptr": "*fp32", "stride": "i32"}
for computed in (False, True):
    made = compile_kernel(
        _either_kernel, types, {"COMPUTED": computed, "ROWS": 32, "PAIRS": 64}
    )
    print(
        f"{'angles computed' if computed else 'tables':16} {made.registers} registers, "
        f"{made.spills_bytes} bytes spilled, {len(made.ptx.splitlines()):,} lines of "
        f"PTX, {residents(made).programs} programs fit"
    )

# %% [markdown]
# `tl.cos` of an fp32 angle must be right for *any* angle, so it brings a second path for huge ones along, with loops and
# tables of its own. Few angles take it, but its code and its registers are there for all, and fewer programs fit. The
# course's own kernel computes angles in another way: it counts quarter turns, so that whole turns can be taken away
# exactly, and needs two short polynomials for what is left. The recorded comparison of its two rungs, in which computing
# wins by 1 to 2 %:

# %%
for row in recorded("rope"):
    if "angles computed" in row["name"]:
        print(
            f"{row['name']}: {row['value']:.1f} us, tables {row['plain us']:.1f} us, "
            f"ratio {row['ratio']:.3f}"
        )

# %% [markdown]
# And tables made in every call, as the report did, and as model code often does in every layer?


# %%
def make_tables(length):
    """As model code does it: fp32, from positions to cos and sin of full width."""
    turns = 1.0 / 10000.0 ** (torch.arange(0, SIZE, 2, device=DEVICE).float() / SIZE)
    angle = torch.outer(torch.arange(length, device=DEVICE).float(), turns)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().to(HALF), angle.sin().to(HALF)


table_cost = {}
for n in (LENGTHS[0], LENGTHS[-1]):
    table_cost[f"length {n}, made: pace"] = pace(lambda n=n: make_tables(n))
    table_cost[f"length {n}, made: device"] = timed(lambda n=n: make_tables(n))
    table_cost[f"length {n}, plain rotation: pace"] = paces[n]["plain"]
    table_cost[f"length {n}, plain rotation: device"] = device_times[n]["plain"]
results.beside("lesson06.tables", table_cost, unit="us")

# %% [markdown]
# Beside the rotation of a long sequence the tables are small. With a short one making them costs about what the
# rotation itself does, less on the device (36 us beside 43) and more in pace (199 us beside 140), because it is 14
# small operators. Make them once, for all layers. Verdict: do not make tables in every call. Make them once; or
# compute the angles in the kernel with care, which was 1 to 2 % faster still in the recorded rows and knows no
# longest position.
#
# ## 8. When does RoPE matter at all?
# A kernel that is five times faster saves 80 % of its own time, one that is 13 times faster 92 %. What it saves of a
# *layer* depends on its share. Count an attention layer in bf16: projections for q, k, v and the output, attention, and
# RoPE as 2 passes or as 10 or more.


# %%
def recorded_roof():
    """The bf16 roof of the recorded H200."""
    value = {
        row["name"]: row["value"] for row in results.load("lesson01.ceilings")["rows"]
    }
    return Roof(
        "H200", value["matmul bf16, TFLOP/s"] * 1e12,
        value["copy, TB/s"] * 1e12, value["launch, us"] * 1e-6,
    )  # fmt: skip


H200 = recorded_roof()


def layer_floors(batch, length, passes, cached=0, width=4096, roof=H200):
    """Seconds of the floors of one causal attention layer:
    projections, attention, rotation. 2-byte types."""
    tokens, keys = batch * length, cached or length
    projections = max(
        8 * tokens * width**2 / roof.flops_per_s,
        (4 * width**2 + 8 * tokens * width) * 2 / roof.bytes_per_s,
    )
    scores = 4 * tokens * keys * width * (1 if cached else 0.5)
    attention = max(
        scores / roof.flops_per_s,
        (2 * tokens + 2 * batch * keys) * width * 2 / roof.bytes_per_s,
    )
    return projections, attention, passes * 2 * tokens * width * 2 / roof.bytes_per_s


# %% [markdown]
# ### Predict
# Batch 4, 2048 tokens, width 4096. Which share of the layer's time goes to RoPE when it is fused, and which when it is
# plain with tables in the type of q? And at 32768 tokens?

# %%
predicted_share = {  # replace None
    "fused, 2048": None,
    "plain, 2048": None,
    "plain, 32768": None,
}
### BEGIN PREDICTION
predicted_share = {
    "fused, 2048": 3.4,
    "plain, 2048": 15,
    "plain, 32768": 7,
    "why": "on the H200 projections take 1.7 ms and a pass 0.03 ms; "
    "at 32768 tokens attention is as long as the projections",
}
### END PREDICTION

# %%
lengths = [2**k for k in range(7, 18)]
shares = {}
kinds = {
    "fused, 2 passes": 2,
    "plain, 10 passes": 10,
    f"plain, fp32 tables, {wide:.0f} passes": wide,
}
for words, passes in kinds.items():
    parts = [layer_floors(4, n, passes) for n in lengths]
    shares[words] = [100 * rope_s / sum(others, rope_s) for *others, rope_s in parts]
axes = plots.sweep(
    lengths, shares, xlabel="length", ylabel="share of the layer's time, %", unit="",
    title="RoPE's share of an attention layer, if every part runs at its floor",
    device="batch 4, width 4096, bf16, floors of the recorded H200",
)  # fmt: skip
plots.show(
    axes,
    alt="Share of RoPE in the floors of an attention layer against the length: "
    "fused a few per cent, plain several times that, all falling at large lengths, "
    "where attention grows with the square",
)
at = dict(zip(lengths, range(len(lengths))))
against(
    predicted_share,
    {
        "fused, 2048": shares["fused, 2 passes"][at[2048]],
        "plain, 2048": shares["plain, 10 passes"][at[2048]],
        "plain, 32768": shares["plain, 10 passes"][at[32768]],
    },
)

# %% [markdown]
# **The prediction, counted.** On the H200's roofs the products of the layer take 1.86 ms. Two passes over q and k take
# 0.063 ms, 3.3 % of the whole, and ten take 0.314, 14.4 %. At 32768 tokens, where attention takes twice as long as the
# projections, ten passes are about 6 %.
#
# At training lengths the plain version takes a visible part of the layer, and the fused one a few per cent. For very
# long sequences attention takes over, and nobody needs to care.
#
# Floors know no launches. The cells measure a whole layer, with one product for q, k and v: without RoPE and with it, in
# turn; and one step of generating text, where every sequence adds a single token to a cache.

# %%
from torch.nn.functional import scaled_dot_product_attention as sdpa


def layer(x, weights, turn, cache=None):
    """x (B, S, width); cache: keys and values of earlier tokens, (B, H, n, D) each."""
    (batch, length, width), (inward, outward) = x.shape, weights
    heads = width // SIZE
    q, k, v = (
        (x @ inward)
        .view(batch, length, 3 * heads, SIZE)
        .transpose(1, 2)
        .chunk(3, dim=1)
    )
    q, k = turn(q, k)
    o = sdpa(q, k, v, is_causal=True) if cache is None else sdpa(q, *cache)
    return o.transpose(1, 2).reshape(batch, length, width) @ outward


def turns_for(length, offset=0):
    """name -> a function of q and k."""
    cos, sin = tables_for(offset + length)
    full = [torch.cat((t, t), dim=-1).to(HALF)[offset:] for t in (cos, sin)]

    def in_place(q, k):
        rope_(q, k, cos, sin, None, offset, "halves")
        return q, k

    turns = {"no RoPE": lambda q, k: (q, k), "plain": lambda q, k: eager(q, k, *full)}
    return turns | ({"mine": in_place} if GPU else {})


# %%
def layer_calls(batch, length, cached=0):
    """name -> a call of the layer with this rotation."""
    width = HEADS * SIZE
    weights = [
        torch.randn(width, n * width, device=DEVICE, dtype=HALF) / width**0.5
        for n in (3, 1)
    ]
    x = torch.randn(batch, length, width, device=DEVICE, dtype=HALF)
    cache = (
        [
            torch.randn(batch, HEADS, cached, SIZE, device=DEVICE, dtype=HALF)
            for _ in range(2)
        ]
        if cached
        else None
    )
    return {
        name: lambda turn=turn: layer(x, weights, turn, cache)
        for name, turn in turns_for(length, cached).items()
    }


def share(with_rope, without):
    """Per cent of a layer's time that goes to RoPE; both timed in turn."""
    seen = compare(with_rope, without, precision=0.01 if GPU else 0.05, max_seconds=1.0)
    return 100 * (1 - 1 / seen.ratio)


# %%
from course_lib.timing import compare

shares_of = {}
with torch.no_grad():
    for batch, length in (
        ((4, 512), (4, 2048), (4, 8192)) if GPU else ((1, 128), (1, 512))
    ):
        calls = layer_calls(batch, length)
        without = calls.pop("no RoPE")
        shares_of |= {
            f"{batch} x {length} tokens, {name}": share(call, without)
            for name, call in calls.items()
        }
    one_token = {
        name: pace(call)
        for name, call in layer_calls(16 if GPU else 2, 1, 4096 if GPU else 256).items()
    }
results.beside("lesson06.layer_shares", shares_of, unit="%")

# %%
size = "" if GPU else ", 2 sequences, 256 cached"  # fewer than in the recorded run
results.beside(
    "lesson06.one_token",
    {name + size: took for name, took in one_token.items()},
    unit="us",
)

# %% [markdown]
# (A share below zero is noise: the rotation is too cheap to be seen.) On the recorded H200 the floors said 3 and 14
# %, and measured are 4 and 38 %: the fused kernel runs near its floor, the plain version far from it.
#
# The last table is the *pace* of a layer when every sequence adds one token. There RoPE is a matter of kernels that
# begin and end: the plain version has ten, in a layer that needs a handful, and takes 16 % of the step; one kernel
# cannot be seen there. The host is hidden there, behind a gigabyte of cached keys and values that the device has to
# read.
#
# The rule behind all of it: a part that takes the share $p$ of a program and becomes $n$ times faster makes the
# program $1 / (1 - p + p / n)$ times faster. For 38 % and a factor of 14 that is 1.55, and for a twentieth it is
# 1.05. The last 4 % go where there is no kernel for RoPE at all.
#
# ### Fused away
# q and k are in registers twice in a layer: when their projection has made them, and when attention has loaded them. A
# rotation there crosses memory not at all. Both passes over q and k are saved, and a launch. What does it cost?
#
# | turned in | turned how often | what it needs |
# |---|---|---|
# | the **epilogue** of the projection: the end of its kernel, before it stores | once | both elements of a pair in one tile: a tile is whole heads wide; a product of your own, as fast as the library's (lesson 05) |
# | attention, as it loads q | once: each block of queries is loaded by one program | angles of the block's rows |
# | attention, as it loads k | once for every block of queries that sees it: up to 2048 / 128 = 16 times at 2048 tokens | arithmetic inside the loop that feeds the tensor cores |
# | the kernel that writes k into the cache | once for every token ever | a cache that holds turned keys |
#
# So q costs no pass when it is turned in attention, and k is better turned before. That is what serving does: the
# kernel that writes the new k and v into the cache turns k on the way, and the attention kernel turns q. In training
# the epilogue is the place, but the gradient comes back through it: the backward pass turns dq and dk where the
# projection's backward product loads them, or in a kernel as yours. For 4 % of a layer few have found that worth a
# product of their own.

# %% [markdown]
# ## 9. At the speed of a copy
# Two passes are the floor, so the yardstick is a copy of the same bytes. What can stand between your kernel and it?
#
# - **narrow accesses**: a thread should move 16 bytes at once, and neighbouring threads neighbouring bytes
#   (**coalescing**). It does when the compiler can prove that 8 neighbours lie together and begin at a multiple of 16
#   bytes. A last stride that is not 1, or a P that is no multiple of 8, costs
# - **too few bytes in flight**, by programs that are small or few; see section 4
# - **tables read again and again**, by programs that hold one head
# - **a second launch**: its start-up and tail show for short tensors
#
# The first can be seen without a GPU. The cell compiles your kernel for bf16 and counts accesses to device memory by
# their width.

# %%
import re

PLAIN = dict.fromkeys(("q_out_ptr", "k_out_ptr", "q_ptr", "k_ptr"), "*bf16") | {
    "cos_ptr": "*fp32",
    "sin_ptr": "*fp32",
}
PLAIN |= dict.fromkeys(("q_heads", "k_heads", "length", "offset"), "i32")
PLAIN |= {
    f"stride_{x}_{of}": "i32" for x in ("q_out", "k_out", "q", "k") for of in "bhs"
}
PLAIN |= {"stride_positions_b": "i32", "stride_positions_s": "i32"}


def compiled(pairs, layout, blocks, adjacent=True):
    """Your kernel in bf16, in place; blocks: positions, heads, warps. adjacent:
    is the last stride known to be 1?"""
    last = (
        {f"stride_{x}_d": 1 for x in ("q_out", "k_out", "q", "k")} if adjacent else {}
    )
    types = (
        PLAIN if adjacent
        else PLAIN | {f"stride_{x}_d": "i32" for x in ("q_out", "k_out", "q", "k")}
    )  # fmt: skip
    fixed = {
        "positions_ptr": None, "PAIRS": pairs, "REST": 0,
        "INTERLEAVED": layout == "interleaved", "INVERSE": False,
    }  # fmt: skip
    fixed |= {
        "BLOCK_S": blocks[0], "BLOCK_H": blocks[1],
        "BLOCK_P": triton.next_power_of_2(pairs), "BLOCK_R": 1,
    }  # fmt: skip
    return compile_kernel(_rope_kernel, types, fixed | last, num_warps=blocks[2])


def widths(made):
    """How many accesses of how many bytes, loads and stores of device memory."""
    found = re.findall(
        r"\b(ld|st)\.global(?:\.[a-z_:0-9]+)*?(?:\.v(\d))?\.b(\d+)", made.ptx
    )
    sizes = [int(count or 1) * int(bits) // 8 for _, count, bits in found]
    return ", ".join(
        f"{sizes.count(size)} of {size} bytes"
        for size in sorted(set(sizes), reverse=True)
    )


# %%
for words, arguments in {
    "halves": (64, "halves", (1, 32, 4)),
    "interleaved": (64, "interleaved", (1, 32, 4)),
    "halves, head size 72": (36, "halves", (1, 32, 4)),
    "halves, last stride unknown": (64, "halves", (1, 32, 4), False),
}.items():
    made = compiled(*arguments)
    print(
        f"{words:28} {made.registers} registers, {residents(made).programs} programs "
        f"fit; {widths(made)}"
    )

# %% [markdown]
# The last stride is 1 in nearly every real call, and Triton finds that out by itself: an integer argument that *is* 1
# becomes a constant. So a general kernel costs nothing, as long as the stride is passed and not computed with.
#
# ## Exercise 6.5 `rope.speed` (30 min, 2 points and 6 for speed)
# Write `rope_into(q, k, cos, sin, layout, q_out, k_out)`: as in exercise 6.3, but from q and k into `q_out` and
# `k_out`, each with strides of its own; row s is at position s, and the tables may hold more positions than there are
# rows. What is not turned is copied. (The clock needs outputs it can look at; the bytes are those of turning in place.)
#
# Timed in bf16, head size 128: batch 4, 32 heads, 2048 tokens, heads side by side, halves; and batch 4, 32 heads of q
# and 8 of k, 3072 tokens, (B, H, S, D), interleaved. The floor is one read and one write at the rate of a large copy.
# Full points at 90 % of the floor's speed, or of our own kernel's where that is less.


# %% nbgrader={"grade": false, "grade_id": "rope_speed", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rope_into(q, k, cos, sin, layout, q_out, k_out):
    """q and k turned into q_out and k_out."""
    ### BEGIN SOLUTION
    turn_into(q_out, k_out, q, k, cos, sin, None, 0, layout)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "rope_speed_check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("rope.speed", rope_into)

# %% nbgrader={"grade": true, "grade_id": "rope_speed_speed", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check_speed("rope.speed", rope_into)

# %% [markdown]
# <details><summary>Hint 1: where to look first</summary>
#
# Run `compiled(...)` of the cell above for your blocks. If accesses are narrower than 16 bytes, the columns of your block
# are not neighbours in memory, or the compiler cannot prove it: are the addresses built as (start of the row) + (0, 1,
# 2, ...) * stride?
# </details>
# <details><summary>Hint 2: what to try</summary>
#
# 2 to 4 KB a program is a good start: 8 or 16 heads of one position where heads lie side by side, 8 positions of 2
# heads where positions do. Then half and twice that, with 2, 4 and 8 warps. The cell below measures several. And which
# programs run at the same time? Those with neighbouring numbers: let them take neighbouring memory, whether heads or
# positions lie side by side. Choose the head and the position of a program by `tl.where`: behind an `if` Triton 3.6
# loses what it knows of addresses, and accesses get narrow.
# </details>

# %% [markdown]
# ### Measure
# On a GPU: your kernel in place with several blocks, beside a copy of the same bytes. Which will be the fastest, and how
# far from the copy is it?

# %%
predicted_blocks = {  # replace None: "1, 8" is one position of eight heads
    "positions and heads": None
}
### BEGIN PREDICTION
predicted_blocks = {
    "positions and heads": "1, 32",
    "why": "all heads of a position share one load of the tables",
}
### END PREDICTION


def block_rates(blocks, length=2048):
    """TB/s of read and written bytes, heads side by side."""
    shape = (BATCH, length, HEADS, SIZE)
    q, k = (
        torch.randn(shape, device=DEVICE, dtype=HALF).transpose(1, 2) for _ in range(2)
    )
    cos, sin = tables_for(length)
    took = timed(
        lambda: turn_into(q, k, q, k, cos, sin, None, 0, "halves", blocks=blocks)
    )
    return 2 * (q.nbytes + k.nbytes) / took.median_s / 1e12


rates = {}
for blocks in (
    ((1, 1, 1), (1, 8, 2), (1, 16, 4), (1, 32, 4), (1, 32, 8), (8, 4, 4), (32, 1, 4))
    if GPU
    else ()
):
    rates["{} positions, {} heads, {} warps".format(*blocks)] = block_rates(blocks)
if GPU:
    moved = 2 * 2 * 2 * BATCH * 2048 * HEADS * SIZE
    rates["copy"] = moved / device_times[2048]["copy"].median_s / 1e12
    fastest = re.findall(
        r"\d+", max((name for name in rates if name != "copy"), key=rates.get)
    )
    against(predicted_blocks, {"positions and heads": ", ".join(fastest[:2])})
results.beside("lesson06.blocks", rates, unit="TB/s")

# %% [markdown]
# **The prediction, counted.** On the recorded H200 1 position and 16 heads, which is 4 KB a program.
#
# Bytes a program decide: one head of one position moves 256 bytes and reaches a fifth of a copy's rate, 2 to 4 KB are
# best, 8 KB a little too many at once. Tables read for every head cost 16 % together with shorter runs (32 positions of 1
# head against 8 of 4), not a factor: they come from a cache.
#
# ## Verdict on the case
# The numbers are in the tables above, on your machine and on the recorded H200.
#
# | claim of the report | verdict | for your own work |
# |---|---|---|
# | 8 times faster forward | its own kernels say 5.6, and that is passes: 12 in place of 2. Here 2.2 (pace, 16 tokens) to 21 (fp32 tables, 8192 tokens) can be had | describe both sides of a ratio |
# | 6 times faster backward | by passes the gain is the same in both directions, and ours nearly is: 14 forward, 15 backward | two ratios should fit one model |
# | 2.34 ms of host time, 1.97 in `aten::cos` | a first call | warm up, then profile |
# | 2 us for cosine and sine | belongs to whoever makes tables in every call | make them once |
# | backward is the same kernel with the sine negated | right, and nothing is kept | do not turn gradients in place |
# | grid `[batch x length, heads x head size]` | good if a block spans several heads | count bytes a program and reads of the tables |
# | a program and a CUDA thread | a program is a thread block | one owner for each pair |

# %% [markdown]
# ## Questions
# Three answers in your own words, graded by a person. A few sentences each are enough.
#
# ### Question 6.6 (10 min, 3 points)
# A blog post: "our fused RoPE is 14 times faster than PyTorch". Which four things do you ask before you believe or doubt
# it, and what would each answer change?

# %% [markdown] nbgrader={"grade": true, "grade_id": "rope_question_claim", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# For example:
#
# - Device time or time of a loop? At which sizes? At short lengths the ratio is that of host costs, and a graph removes
#   it; at long ones that of bytes.
# - Types on the plain side: with fp32 tables PyTorch promotes, and moves nearly twice the bytes.
# - Are tables made inside the timed region, on one side or on both?
# - Warm-up: is a first call in it (loading, compiling)? Cold or warm cache?
# - In place against new tensors; memory allocation; one tensor or both; forward or backward.
# - How far is either side from a copy of the same bytes? That one number makes most other questions unnecessary.
#
# *Marking guide.* 0.75 points for each of four questions with its consequence. A question without what its answer would
# change earns half.
# ### END SOLUTION

# %% [markdown]
# ### Question 6.7 (10 min, 3 points)
# Where in a transformer layer may q be turned in place during training, and where not? Give one place of each kind, and
# say what would go wrong and who would notice.

# %% [markdown] nbgrader={"grade": true, "grade_id": "rope_question_in_place", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Allowed: right behind the projection of q. A linear layer keeps its input and its weight for backward, not its result,
# and nobody else reads q before it is turned. Not allowed: behind a norm on q whose backward pass uses its output
# (torch's layer_norm and rms_norm keep their input, so behind them it is allowed), behind any operator that kept its
# result (sigmoid, tanh, softmax) or q itself (a product q * q), or where q has a second reader, such as an auxiliary
# loss or a cache of unturned keys. A kernel of our own raises no version counter, so the gradient is wrong without a
# word; only a comparison of gradients, or `mark_dirty`, would show it.
#
# *Marking guide.* 1 point for an allowed place with its reason (what the operator before keeps). 1 for a forbidden one
# with its reason. 1 for saying that the error is silent, because the version counter does not move.
# ### END SOLUTION

# %% [markdown]
# ### Question 6.8 (15 min, 4 points)
# A model has 32 heads of q and 8 of k, head size 128 of which 64 are turned, and generates one token at a time for 64
# sequences, each at a position of its own. Bytes, launches, or something else: what sets RoPE's time? Which arguments of
# exercise 6.3 do you use, how many bytes must move in bf16, and what would you fuse RoPE with?

# %% [markdown] nbgrader={"grade": true, "grade_id": "rope_question_decode", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# S = 1, B = 64, `positions` (64, 1) with one position a sequence, P = 32. Bytes: 64 x 40 heads x 64 elements x 2
# bytes, read and written, is 0.66 MB (in place; the unturned half is not touched), plus 64 rows of tables of 256
# bytes: about 0.2 us at 4 TB/s. A launch costs some microseconds on the host (a call of a Triton kernel 15 to 65),
# and the smallest kernel takes more than a microsecond on the device (in the graph of lesson 01 1.3), so the launch
# is the cost. Remedies: fuse with the kernel before or behind (the projection's epilogue, the write of k into the
# cache, or the load of q in the attention kernel), or capture the step in a CUDA graph.
#
# *Marking guide.* 1 point for position ids of shape (64, 1) and P = 32 (not 64). 1 for the bytes within a factor of two.
# 1 for the launch as the limit, with a number. 1 for a sensible fusion or a graph.
# ### END SOLUTION

# %% [markdown]
# ## Further reading
# - Jianlin Su, Yu Lu, Shengfeng Pan, Ahmed Murtadha, Bo Wen and Yunfeng Liu, *RoFormer: Enhanced Transformer with Rotary
#   Position Embedding*, 2021, arXiv:2104.09864. Section 3 derives the rotation from the property.
# - Shouyuan Chen, Sherman Wong, Liangjian Chen and Yuandong Tian, *Extending Context Window of Large Language Models via
#   Positional Interpolation*, 2023, arXiv:2306.15595. Positions divided.
# - Bowen Peng, Jeffrey Quesnelle, Honglu Fan and Enrico Shippole, *YaRN: Efficient Context Window Extension of Large
#   Language Models*, 2023, arXiv:2309.00071: what other frequencies do for longer contexts.
# - Byeongho Heo, Song Park, Dongyoon Han and Sangdoo Yun, *Rotary Position Embedding for Vision Transformer*, 2024,
#   arXiv:2403.13298: pairs that turn by rows and by columns.
# - Pin-Lun Hsu and others, *Liger Kernel: Efficient Triton Kernels for LLM Training*, 2024, arXiv:2410.10989. Its RoPE
#   kernel takes one position of q and k a program, and turns gradients in place.
# - `course_lib/kernels/rope.py`: the course's own kernel, with angles computed as a second rung, and
#   `benchmarks/notes/rope.md`, what was predicted for it.
