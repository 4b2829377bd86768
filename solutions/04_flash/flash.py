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
# # 04 FlashAttention-2 in Triton
#
# After this lesson you can
#
# - say what attention costs when its scores are written to memory, and what is left when they are not,
# - derive the online softmax and the backward pass, and say who may write which sum,
# - write FlashAttention-2 in Triton, forward and backward, for any lengths, masks, strides and head groups,
# - read from the compiler, without a GPU, how many programs fit on a multiprocessor and why a kernel spills,
# - say what FlashAttention-3 does that your kernel does not, and find it in generated code.
#
# **Time** 12 hours; the five exercises take seven and a half of them, the backward pass alone three. Six sittings:
#
# | sitting | what | minutes | what you have at its end |
# |---|---|---|---|
# | 1 | sections 1 to 3, exercises 4.1 and 4.2 | 135 | attention in tiles, in plain PyTorch |
# | 2 | section 4, exercise 4.3 | 140 | the forward kernel |
# | 3 | sections 5 and 6, of exercise 4.4 the rows and $dQ$ | 130 | a derivation, and half of the backward pass |
# | 4 | the rest of exercise 4.4, section 7 | 105 | the backward pass |
# | 5 | section 8, exercise 4.5 | 110 | both passes, tuned |
# | 6 | sections 9 and 10, questions 4.6 to 4.8 | 100 | what the peers do, and your own words for it |
#
# Run the cells from the top each time. A cell that needs an exercise which you have not solved stops with "not written
# yet"; go on with the cell below it. Sections 9 and 10 can be read without exercises 4.4 and 4.5.
#
# **The check** in a notebook judges as grading does. An answer may use what the setup cells and your own cells define,
# and no name of a demonstration cell. In exercises 4.3 to 4.5 all arithmetic has to be in kernels. Where an answer breaks
# one of these rules, the check says so.
#
# **Needs** lesson 01: counting, the roofline, the softmax and the tiled matrix product.
#
# **Without a GPU** all five exercises can be solved and checked for being right, and the compiler's part of section 8
# runs too. What a CPU cannot show: speed points, and races. Where a section needs a GPU, recorded results of an H200
# stand in its place, and a small model of the race runs everywhere. The outputs come from H200s, of several runs; jobs
# and seldom scaled sums in section 10 were counted without one.
#
# The algorithm is *FlashAttention* by Tri Dao, Daniel Fu, Stefano Ermon, Atri Rudra and Christopher Ré, in the form of
# *FlashAttention-2* by Tri Dao. It stands on the *online softmax* of Maxim Milakov and Natalia Gimelshein. The kernels
# follow these papers and the Triton tutorial *Fused Attention*.

# %% tags=["setup"]
from course_lib.device import DEVICE, TIER, half, machine, share_of_sizes

import math
import time
import warnings

import torch
import triton
import triton.language as tl

from autograder import check, check_speed
from course_lib import memory, plots, results, widgets
from course_lib.predictions import against
from course_lib.roofline import Roof, Work, floor_s
from course_lib.timing import time_gpu

HERE = machine()
print(results.memory_of("04_flash"))
HERE

# %% [markdown]
# Some helpers for the measurements below. On a CPU sizes are smaller and medians are known less exactly. Two warnings of
# torch say nothing here: who makes the GPU's context, and how its compiler splits a sum.

# %%
warnings.filterwarnings(
    "ignore", message="Attempting to run cuBLAS|\nOnline softmax is disabled"
)
GPU = TIER == "gpu"
HALF = half() if GPU else torch.float32  # the type in which attention is measured here


def timed(fn):
    """The course's timer, told how long it may take on this tier."""
    return (
        time_gpu(fn, precision=0.01, max_seconds=1.0)
        if GPU
        else time_gpu(fn, precision=0.1, max_seconds=0.2)
    )


def normal(*shape, dtype=HALF):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


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
# ## 1. What the score matrix costs
# Attention lets every query look at every key: $S = \sigma\, Q K^\top$, $P = \mathrm{softmax}(S)$ along its rows,
# $O = P V$. The scale $\sigma$ is usually $1/\sqrt d$, where $d$ is the head size. For $n$ tokens, $Q$, $K$, $V$ and
# $O$ have $n \cdot d$ numbers each, and $S$ and $P$ have $n^2$.
#
# ### Case file
# **The report says** (systems notes of a language-model course assignment, attention in plain PyTorch, batch 8, one
# head, head size 128): at 16384 tokens 100 passes take 17.9 s forward and 7.3 s backward. The scores are the largest
# owner of memory, 8 GB at that length. "The memory that is kept for backward grows linearly with the length." Compiled,
# forward falls to 12.3 s, backward stays.
#
# Before measuring, count. One score matrix of the 8 sequences in fp32 has $8 \cdot 16384^2 \cdot 4$ bytes, which is 8
# GiB: the report's figure is exactly *one* such matrix. How often does it cross the memory bus? (PyTorch's softmax
# takes two kernels on its way back: the first one writes $P \circ dP$ to memory, which one kernel for both steps would
# keep in registers.)
#
# | step | forward | backward |
# |---|---|---|
# | $S = Q K^\top$ | writes S | reads dS twice, for dQ and for dK |
# | scale | reads S, writes it | reads dS, writes it |
# | softmax | reads S, writes P | two kernels: reads P and dP, writes their product; reads it and P, writes dS |
# | $O = P V$ | reads P | reads P for dV, writes dP |
# | crossings | **6** | **12** |
# | products of $2 n^2 d$ FLOP | **2** | **4** |

# %% [markdown]
# ### Predict
# Three numbers, before you run the next cells. When a great length doubles, by which factor do the time and the memory
# of a pass grow? And how long does backward take, in units of forward?

# %%
predicted = {  # replace None
    "time, doubled length": None,
    "memory, doubled length": None,
    "backward / forward": None,
}
### BEGIN PREDICTION
predicted = {
    "time, doubled length": 4,
    "memory, doubled length": 4,
    "backward / forward": 2,
    "why": "There are n^2 scores, and they set the bytes, the products and the memory. "
    "Backward has twice the crossings and twice the products.",
}
### END PREDICTION


def naive(q, k, v, causal=False):
    """Attention as the formulas say it: every line is a kernel that passes over all
    scores."""
    s = q @ k.mT
    s = s * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(
            torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1),
            -float("inf"),
        )
    return torch.softmax(s, dim=-1) @ v


# %% [markdown]
# ### Measure
# Forward, backward, and the most memory that a whole step holds beyond its inputs.


# %%
def one_length(n, d=64, batch=8 if GPU else 2, fn=naive):
    """Seconds forward, seconds backward, peak bytes of both: batch x 1 head, fp32."""
    q, k, v = (
        normal(batch, 1, n, d, dtype=torch.float32).requires_grad_() for _ in range(3)
    )
    do = normal(batch, 1, n, d, dtype=torch.float32)
    peak = memory.peak(lambda: torch.autograd.grad(fn(q, k, v), (q, k, v), do))
    with torch.no_grad():
        forward = timed(lambda: fn(q, k, v)).median_s
    o = fn(q, k, v)
    backward = timed(
        lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    ).median_s
    return forward, backward, peak


lengths = (256, 1024, 4096, 16384) if GPU else (60, 120, 240, 480)
if share_of_sizes() < 1:  # the longest takes 33 GiB
    lengths = lengths[:3]
naive_cost = {n: one_length(n) for n in lengths}
shown = {
    f"{name}, length {n}": c[i]
    for n, c in naive_cost.items()
    for i, name in enumerate(("forward", "backward"))
}
results.beside("lesson04.naive", shown, unit="ms")

# %%
peaks = {f"length {n}": cost[2] / 2**20 for n, cost in naive_cost.items()}
scores = {f"length {n}": (8 if GPU else 2) * n * n * 4 / 2**20 for n in lengths}
for name, peak in peaks.items():
    print(f"{name}: peak {peak:,.1f} MiB, {peak / scores[name]:.1f} score matrices")
doublings = math.log2(lengths[-1] / lengths[-2])
last, before = naive_cost[lengths[-1]], naive_cost[lengths[-2]]
came = {
    "time, doubled length": ((last[0] + last[1]) / (before[0] + before[1]))
    ** (1 / doublings),
    "memory, doubled length": (last[2] / before[2]) ** (1 / doublings),
    "backward / forward": last[1] / last[0],
}
against(predicted, came)
results.beside("lesson04.naive_memory", peaks, unit="MiB")

# %% [markdown]
# **The prediction, counted.** The number of scores is the square of the length, so both factors are near 4 (4.06 and
# 3.99 on the H200). Backward has twice the products and twice the crossings of forward, and takes 1.9 times as long.
#
# **Quadratic.** For long sequences both factors come near 4, memory first; where the time's factor is far below,
# overhead still sets the time (lesson 01). On a CPU the sequences are short, and both factors may be far from 4: the
# inputs weigh more in the memory, and the caches in the time. So the report's "linearly" is wrong for this code: what
# is kept for backward is P, and P has $n^2$ numbers. It becomes right the moment P is not kept, and that is what this
# lesson builds.
#
# The whole table, recorded: 8 sequences of one head as in the report, plain attention in fp32, the same in bf16,
# compiled, PyTorch's fused attention (SDPA), and the course's own kernels. Milliseconds are forward / backward, MiB are
# what the forward pass leaves behind for backward.

# %%
from course_lib.table import Table

KINDS = ("plain fp32", "plain", "compiled", "sdpa", "ours")
table = recorded("attention_sizes")


def both_ms(row, kind):
    return (
        f"{row[f'{kind} forward us'] / 1e3:.3f} / "
        f"{row[f'{kind} backward us'] / 1e3:.3f}"
    )


Table(
    (
        "length, head size",
        *(f"{kind}, ms" for kind in KINDS),
        "plain, MiB",
        "ours, MiB",
    ),
    [
        (
            f"{row['length']}, {row['head size']}",
            *(both_ms(row, kind) for kind in KINDS),
            f"{row['plain MiB held']:,.0f}",
            f"{row['ours MiB held']:,.0f}",
        )
        for row in table
    ],
)

# %%
from course_lib.plots.house import drawn


@drawn
def draw_sizes(rows):
    """Against the length: time of forward and backward at the left,
    memory held between them at the right."""
    figure, (left, right) = plots.figure(7.8, 3.8, columns=2)
    figure.suptitle(
        "Without scores in memory, what is held grows with the length and "
        "not its square",
        x=0.01,
        ha="left",
        weight="bold",
    )
    for i, kind in enumerate(KINDS):
        look = {
            "color": plots.PALETTE[i], "marker": plots.MARKERS[i],
            "linestyle": plots.LINES[i], "label": kind,
        }  # fmt: skip
        # the others lie on it
        look |= (
            {"linewidth": 5, "linestyle": "-", "alpha": 0.4}
            if kind == "compiled" else {}
        )  # fmt: skip
        lengths = [row["length"] for row in rows]
        left.plot(
            lengths,
            [
                (row[f"{kind} forward us"] + row[f"{kind} backward us"]) / 1e3
                for row in rows
            ],
            **look,
        )
        right.plot(lengths, [row[f"{kind} MiB held"] for row in rows], **look)
    for ax, words in (
        (left, "forward and backward, ms"), (right, "held for backward, MiB"),
    ):  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set(yscale="log", xlabel="length (recorded H200)", ylabel=words)
        ax.grid(True, axis="y")
    left.legend()
    return figure


# %%
largest = [row for row in table if row["head size"] == 128]
if largest:
    plots.show(
        draw_sizes(largest),
        alt="Recorded H200, head size 128: time and held memory against the length; "
        "plain attention rises steeply; compiled, SDPA and ours lie on each other, "
        "far below",
    )

# %% [markdown]
# Compiled, SDPA and ours lie on each other: compiled is the wide line under the other two. The report's compiled
# version was no such thing: at 16384 tokens and head size 128 its 100 forward passes fell from 17.9 s to 12.3, where
# one in this table, in bf16, falls from 8.3 ms to 1.9. Keep that in mind: section 9 shows why.
#
# ### A forward pass slower than its backward pass?
# The table of counts says that backward has twice the products and twice the crossings. So it must take longer. The
# count is for fp32, and every fp32 row agrees: backward takes 1.5 to 2.5 times as long. (In bf16 at 8192 tokens both
# take the same within 2 %: PyTorch's softmax is furthest from its bytes at rows of that length.) The report has it the
# other way round, by a factor of 2.5. Set the report's two times beside what the counts allow on the recorded H200: the
# products at the fp32 rate, the crossings at the copy rate. (The report's GPU ran out of memory somewhere above 70 GB;
# it is hardly a faster one.) Inside a kernel arithmetic and bytes overlap, so a kernel takes at least the longer of the
# two. The kernels run one after the other, so their times are added.

# %%
entry = {row["name"]: row["value"] for row in results.load("lesson01.ceilings")["rows"]}
fp32_rate, copy_rate = entry["matmul fp32, TFLOP/s"] * 1e12, entry["copy, TB/s"] * 1e12
one_matrix = 8 * 16384**2 * 4
product_s = 2 * 8 * 16384**2 * 128 / fp32_rate
KERNELS = {  # (products, crossings) of each kernel
    "forward": ((1, 1), (0, 2), (0, 2), (1, 1)),  # S; scale; softmax; O
    # dV; dP; softmax; scale; dQ; dK
    "backward": ((1, 1), (1, 1), (0, 3), (0, 3), (0, 2), (1, 1), (1, 1)),
}
report_ms = {"forward": 179, "backward": 73}  # 17.9 s and 7.3 s for 100 passes
plain = [row for row in table if (row["length"], row["head size"]) == (16384, 128)]
for name, kernels in KERNELS.items():
    least = 1e3 * sum(
        max(p * product_s, c * one_matrix / copy_rate) for p, c in kernels
    )
    print(
        f"{name}: counts allow {least:.1f} ms; the report measured {report_ms[name]} "
        f"ms, {report_ms[name] / least:.1f} times that"
    )
    for row in plain:
        ours = row[f"plain fp32 {name} us"] / 1e3
        print(
            f"    plain fp32, recorded on the H200: {ours:.1f} ms, "
            f"{ours / least:.2f} times that"
        )

# %% [markdown]
# Our own forward pass lies 10 % above the count and our backward pass 6 %. The report's backward pass is near what its
# operators must cost, too. Its forward pass is far from it, so something in the forward measurement is *not* these
# operators. Two things would fit. A softmax written by hand crosses eight times instead of two (lesson 01, section 6),
# and a mask as in `naive` adds four more (section 9); even with both, most of the gap remains. And a program that holds
# several matrices of 8 GiB is close to the end of an 80 GB card: the allocator then gives memory back to the driver and
# asks for it again in every pass, which takes milliseconds, and all of it falls into forward, where the large matrices
# are made. The report's figures cannot tell these apart; its compiled forward pass, which makes fewer matrices, fell
# while backward stayed, which fits both. What to keep: **when a time is far from its count, doubt the measurement
# before you explain it.**

# %% [markdown]
# ### What fusion could save
# Now the other side: the least that attention must cost when S and P never leave the chip. The arithmetic stays. The
# bytes are those of Q, K, V and O. (Each of them once. A fused kernel reads K and V again for every block of queries;
# with blocks of 64 queries in bf16 these reads carry 64 FLOP a byte, and the L2 cache serves most of them.)

# %%
roof = Roof(
    "H200 bf16", entry["matmul bf16, TFLOP/s"] * 1e12,
    copy_rate, entry["launch, us"] * 1e-6,
)  # fmt: skip
for n in (256, 1024, 4096, 16384):
    flops = 4 * 8 * n * n * 128
    apart, fused = Work(flops, 6 * 8 * n * n * 2), Work(flops, 4 * 8 * n * 128 * 2)
    print(
        f"length {n:5}: bytes {apart.bytes / 2**20:7.0f} MiB against "
        f"{fused.bytes / 2**20:3.0f} MiB, floor {1e3 * floor_s(apart, roof):6.3f} ms "
        f"against {1e3 * floor_s(fused, roof):6.3f} ms, "
        f"{fused.intensity:.0f} FLOP a byte"
    )

# %% [markdown]
# The roof is that of lesson 01, as recorded: 665 TFLOP/s for products in bf16 and 4.27 TB/s, which meet at a ridge of 156
# FLOP a byte. At length 256 both floors are one launch by the host, and at 1024 the fused one still is; the recorded
# times leave launches out. From 1024 on fusion moves attention from the slope of the roof to its flat part: launches left
# out, its time is then set by the tensor cores alone. That is the promise of FlashAttention. What stands in the way is
# the softmax: a row of P needs the maximum and the sum of the *whole* row of S, and a whole row does not fit on the chip
# together with its keys.

# %% [markdown]
# ## 2. The online softmax
# Take one query. Its scores are $s_1 \dots s_n$ and its output is
#
# $$o = \sum_j \frac{e^{s_j - m}}{\ell} v_j, \qquad m = \max_j s_j, \qquad \ell = \sum_j e^{s_j - m}.$$
#
# Suppose only some of the keys have been seen. Keep three things about them: the maximum $m$, the sum $\ell$, and the
# sum of values *not yet divided*, $a = \sum_j e^{s_j - m} v_j$. Now another tile of keys arrives, and the maximum
# becomes $m' \ge m$. Every term so far was computed with $m$ and should have been computed with $m'$. They are all
# wrong by the same factor, $e^{m - m'}$:
#
# $$\ell \leftarrow \ell\, e^{m-m'} + \sum_{\text{new } j} e^{s_j - m'}, \qquad
#   a \leftarrow a\, e^{m-m'} + \sum_{\text{new } j} e^{s_j - m'} v_j, \qquad m \leftarrow m'.$$
#
# At the end $o = a / \ell$. The result is not an approximation: it is the softmax, summed in another order. It starts
# with $m = -\infty$, $\ell = 0$, $a = 0$, "nothing seen".
#
# Step through it. The slider *tiles of keys done* moves the program; watch what the sums hold when a tile brings a
# larger maximum. Then set the slider *query* to 4 and look at the last tile: it is fully masked. What does it change?
# (The still picture shows another row: the last one, without the causal mask, and with one key less.) Full dots are
# scores that were seen, hollow ones come later, triangles are hidden by the mask.

# %%
widgets.attention_stepper(12, 14)

# %% [markdown]
# ### Wrong turns
# Four ways to get the three lines wrong. Each is right on *some* inputs, which is why people keep them. `walk` does one
# row in fp32, tile by tile, with one thing wrong. The table shows the sum that it ends with: three of the four shares are
# NaN in every place. The figure shows the fourth, which looks healthy: its shares $e^{s_j - m} / \ell$ hatched, the true
# ones outlined.


# %%
def walk(scores, wrong="", tile=4):
    """The weights of one row and their sum, made tile by tile;
    `wrong` says what is done wrong."""
    inf = torch.tensor(float("inf"))
    top, total, weights = (
        torch.tensor(0.0) if wrong == "starts at 0" else -inf,
        torch.tensor(0.0),
        torch.empty(0),
    )
    for new in torch.tensor(scores).split(tile):
        larger = torch.maximum(top, new.max())
        if wrong == "no maximum":
            larger = torch.tensor(0.0)
        shift = larger if wrong == "no guard" or larger > -inf else torch.tensor(0.0)
        factor = (
            torch.tensor(1.0) if wrong == "no correction" else torch.exp(top - shift)
        )
        fresh = torch.exp(new - shift)
        weights, total, top = (
            torch.cat([weights * factor, fresh]), total * factor + fresh.sum(), larger,
        )  # fmt: skip
    return weights, total


row = [0.1, 1.2, -0.4, 0.6, 0.3, -1.0, 2.1, 0.2, 1.9, 0.0, 2.4, -0.7]
wrong_turns = {
    "no correction": row,
    "starts at 0": [s - 150 for s in row],
    "no maximum": [s + 100 for s in row],
    "no guard": [-float("inf")] * 4 + row[4:],
}


# %%
ends = {name: walk(scores, name) for name, scores in wrong_turns.items()}
Table(
    (
        "wrong line",
        "the sum it ends with",
        "the sum should be",
        "share of the first key",
    ),
    [
        (
            name,
            f"{total:.3g}",
            f"{walk(wrong_turns[name])[1]:.3g}",
            f"{(weights / total)[0]:.3g}",
        )
        for name, (weights, total) in ends.items()
    ],
)


# %%
@drawn
def draw_shares(got, right):
    """The shares that a wrong program ends with, hatched, and the true ones as outlines."""
    figure, ax = plots.figure(6.0, 3.0)
    figure.suptitle(
        "Without correction early keys weigh too much", x=0.01, ha="left", weight="bold"
    )
    hatched = {
        "color": plots.PALETTE[1],
        "hatch": "////",
        "edgecolor": "white",
        "linewidth": 0,
    }
    outlined = {"facecolor": "none", "edgecolor": plots.PALETTE[6], "linewidth": 1.2}
    ax.bar(range(12), got, label=f"no correction, sum {got.sum():.2f}", **hatched)
    ax.bar(range(12), right, label=f"right, sum {right.sum():.2f}", **outlined)
    ax.set(xlabel="key (tiles of four)", ylabel="share", xticks=range(12))
    ax.legend(loc="upper left")
    return figure


shares = [weights / total for weights, total in (ends["no correction"], walk(row))]
plots.show(
    draw_shares(*shares),
    alt="Shares of one row of 12 keys: without correction the keys of the first tile "
    "weigh more than twice as much as they should, and later ones too little",
)

# %% [markdown]
# - **No correction**: right as long as the first tile holds the maximum. In this row it does not, and the early keys
#   weigh too much. The shares still add up to one, so no sanity check on the sum will find it.
# - **The maximum starts at 0**: right for every row with a score above zero, which is nearly every row of a test. When
#   all scores are far below zero, every exponential is zero in fp32, and so is the sum.
# - **No maximum**: right for scores around zero. $e^{89}$ is infinite in fp32, and infinity over infinity is NaN.
# - **`no guard`**: in a tile where nothing is visible the new maximum is still $-\infty$, and $-\infty - (-\infty)$ is
#   NaN. NaN then stays in the sum for good. Replace the maximum by any finite number *for the subtraction*.

# %% [markdown]
# ## Exercise 4.1 `flash.merge` (20 min, 3 points)
# Two programs have each seen some keys of one query. Write `merge(a, b)`, which makes one state of both. A state is a
# dictionary:
#
# | entry | holds | when the part saw no key |
# |---|---|---|
# | `"m"` | the largest score | `-math.inf` |
# | `"l"` | the sum of $e^{s_j - m}$ | 0 |
# | `"o"` | the sum of $e^{s_j - m} v_j$, a list with a number for each column: *not* divided by l | zeros |
#
# It returns a new state with the same entries, as if all keys had come at once. A part without keys changes nothing,
# and two of them give a state without keys, not NaN. Scores lie between $-10^4$ and $10^4$. Plain Python and `math` are
# enough.


# %% nbgrader={"grade": false, "grade_id": "flash_merge", "locked": false, "schema_version": 3, "solution": true, "task": false}
def merge(a, b):
    """The state of the keys of a and b together."""
    ### BEGIN SOLUTION
    m = max(a["m"], b["m"])
    if m == -math.inf:
        return {"m": m, "l": 0.0, "o": [0.0] * len(a["o"])}
    of_a, of_b = math.exp(a["m"] - m), math.exp(b["m"] - m)
    o = [of_a * x + of_b * y for x, y in zip(a["o"], b["o"])]
    return {"m": m, "l": of_a * a["l"] + of_b * b["l"], "o": o}
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_merge_check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("flash.merge", merge)

# %% [markdown]
# <details><summary>Hint 1: what has to be equal before two sums may be added</summary>
#
# Both sums are relative to a maximum of their own. Bring both to the larger of the two first: a sum that was taken
# relative to $m_a$ and should be relative to $m$ is too large or too small by the factor $e^{m_a - m}$.
# </details>
# <details><summary>Hint 2: which parts need a factor</summary>
#
# Both. Either one may hold the smaller maximum; the other's factor is then $e^0 = 1$ by itself. The factor of a part
# goes on its `l` *and* on every entry of its `o`. A Python list times a number, and list plus list, do something else.
# </details>
# <details><summary>Hint 3: parts that saw no key</summary>
#
# On one side: $e^{-\infty - m} = 0$, and nothing more is needed. On both sides: the new maximum is $-\infty$ too; give
# the state without keys at once, before anything is subtracted.
# </details>

# %% [markdown]
# This matters beyond tiles: the parts may come in any order, and from any program, even from another GPU (*ring
# attention*). `parts.py` of `course_lib/kernels/attention` is a pair of such kernels: every program of the first leaves a
# state, and the second is your `merge`, for all parts of a query at once. Question 4.7 asks when one would want that.
#
# ## 3. Tiles
# A **tile** is a block of queries against a block of keys. One program takes a block of queries and walks over the
# tiles of its row of the score matrix, from left to right. What does it need on the chip? The queries, one tile of keys
# and of values, one tile of scores, and for each query $m$, $\ell$ and $a$. None of that depends on $n$.
#
# ### What has to be computed at all
# **Causal**: a query must not see later keys. With as many queries as keys, query $m$ sees the keys $0 \dots m$. With
# fewer queries than keys the convention of FlashAttention is **bottom-right**: the last query sees the last key, so
# query $m$ sees key $j$ when $j \le m + n_k - n_q$. (`is_causal=True` of PyTorch's SDPA is *top-left*: query $m$ sees
# the keys $0 \dots m$, whatever $n_k$ is. The two agree where $n_q = n_k$.) **Key lengths**: in a padded batch sequence
# $b$ has only `k_lengths[b]` keys; what lies behind them must not count, whatever its values. Hiding its scores is not
# enough for that: a hidden key has the weight 0, and $0 \cdot \mathrm{NaN}$ is NaN. So the rows behind the length have
# to be *loaded* as zeros. In this lesson the diagonal stays where $n_k$ puts it. FlashAttention aligns it to the
# *actual* length of a sequence instead: there the last query sees the last key that is valid. When you compare two
# kernels on padded batches, ask for this first. (Libraries also take sequences packed without padding, and servers keep
# K and V in pages: see further reading.)

# %%
figure, axes = plots.figure(width=7.6, height=3.4, columns=2)
plots.block_map(8, 14, 4, 4, causal=True, walk="rows", ax=axes[0], legend=False)
plots.block_map(
    12, 14, 4, 4, causal=True, keys=9, walk="rows", ax=axes[1], legend=False
)
plots.show(
    figure,
    alt="Two score matrices cut into tiles of 4 x 4. Left: "
    "8 queries and 14 keys, causal, the diagonal ends in the lower right corner. "
    "Right: also only 9 keys are valid; tiles behind them are skipped",
)

# %% [markdown]
# Read the numbers as the order in which the program of that tile row works. Blue tiles are visible as a whole and need
# no mask, orange tiles are cut by an edge, empty tiles are never loaded. Dots are the pairs that count. What is hatched
# is in no matrix: the 14 keys end in the middle of the fourth column of tiles. At the right only 9 of them are valid,
# and the hatching still begins behind the 14th; but there is no dot behind the ninth, and the nine valid keys have not
# moved the diagonal. With many tiles a causal mask skips nearly half of them: that is the largest single gain that a
# causal kernel can have, and it comes from *where the loop ends*, not from the mask.
#
# ### Predict
# Causal, 4096 queries and keys, tiles of 64 x 64. Which share of the tiles is skipped, and which share needs the mask?

# %%
predicted_share = {"skipped": None, "on an edge": None}  # replace None
### BEGIN PREDICTION
predicted_share = {
    "skipped": 0.49,
    "on an edge": 0.016,
    "why": "Of 64 x 64 tiles the diagonal cuts 64. Half of the other 4032 "
    "lie behind it.",
}
### END PREDICTION

# %%
from course_lib.attention_tiles import tile_kinds, visible

for n, block in ((4096, 64), (4096, 128), (1024, 128), (256, 128)):
    kinds = tile_kinds(n, n, block, block, causal=True)
    share = {kind: (kinds == kind).mean() for kind in ("skipped", "edge", "whole")}
    print(
        f"length {n:4}, tiles of {block:3}: "
        + ", ".join(f"{kind} {part:.1%}" for kind, part in share.items())
    )
    if (n, block) == (4096, 64):
        against(
            predicted_share, {"skipped": share["skipped"], "on an edge": share["edge"]}
        )

# %% [markdown]
# **The prediction, counted.** 64 x 64 tiles are 4096. The 64 on the diagonal, 1.6 %, need the mask, and half of the
# others, 49.2 %, are skipped.

# %% [markdown]
# ### Wrong turns
# Masks go wrong in more ways than a test of square, unpadded inputs can see. Each panel shows what a program with one
# mistake does to the pairs.

# %%
n_q, n_k, keys = 6, 11, 9
right = visible(n_q, n_k, causal=True, keys=keys)
m, j = torch.arange(n_q)[:, None].numpy(), torch.arange(n_k)[None, :].numpy()
seen_by = {
    "top-left\ninstead of bottom-right": (j <= m) & (j < keys),
    "off by one:\n< instead of <=": (j < m + n_k - n_q) & (j < keys),
    "padded keys counted": j <= m + n_k - n_q,
    "the loop ends by the\nsquare diagonal (tiles of 3)": right
    & (j < (m // 3 + 1) * 3),
}


# %%
@drawn
def draw_pairs(wrong, right):
    """For each wrong mask: pairs rightly seen as dots, wrongly seen as squares, missed as crosses."""
    figure, axes = plots.figure(6.4, 5.2, rows=2, columns=2)
    figure.suptitle(
        "Four wrong masks: some pairs are missed, some counted",
        x=0.01, ha="left", weight="bold",
    )  # fmt: skip
    looks = {
        "seen, and should be": (".", 0),
        "seen, should not be": ("s", 1), "missed": ("x", 6),
    }  # fmt: skip
    for ax, (name, got) in zip(axes.flat, wrong.items()):
        for pairs, (label, (marker, i)) in zip(
            (got & right, got & ~right, ~got & right), looks.items()
        ):
            rows, columns = pairs.nonzero()
            ax.plot(
                columns, rows, marker,
                color=plots.PALETTE[i], markersize=4.5, label=label,
            )  # fmt: skip
        ax.set(
            xlim=(-0.7, right.shape[1] - 0.3),
            ylim=(right.shape[0] - 0.3, -0.7), aspect="equal",
        )  # fmt: skip
        ax.set(xticks=range(0, 11, 2), yticks=range(0, 6, 2), ylabel="query")
        ax.set_title(name, fontsize=9)
    for ax in axes[1]:
        ax.set_xlabel("key")
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3
    )
    return figure


plots.show(
    draw_pairs(seen_by, right),
    alt="Four wrong masks for 6 queries and 11 keys of which 9 are valid: "
    "top-left misses most pairs, off by one misses the diagonal, padded keys are seen, "
    "the loop ends too early",
)

# %% [markdown]
# With $n_q = n_k$ the first and the last panel would show no mistake at all, and without padding the third would not.
# That is why the checks below draw lengths that differ and that no tile divides.

# %% [markdown]
# ### What is kept: L
# The backward pass will need P again. It could keep $m$ and $\ell$ of each row; one number is enough:
#
# $$L = m + \log \ell = \log \sum_j e^{s_j}, \qquad p_j = e^{s_j - L}.$$
#
# One exponential gives the *finished* probability, division included. Here L is stored in fp32 as a natural logarithm,
# also by kernels that compute with powers of two inside. (The Triton tutorial stores it to base 2. Its forward and
# backward pass agree on that, and nobody else may read its L as a natural one.)

# %% [markdown]
# ## Exercise 4.2 `flash.tiled` (35 min, 4 points)
# Write `tiled_forward(q, k, v, causal, scale, block)` in plain PyTorch: all queries at once, and the keys `block` at a
# time. It returns `(o, lse)`.
#
# - `q`: (B, H, n_q, D); `k`, `v`: (B, H, n_k, D); fp32 or fp16, any strides; they stay as they are
# - `o`: softmax of the rows of $\sigma Q K^\top$, times V, in the shape and type of q
# - `lse`: L, (B, H, n_q), fp32, natural logarithm
# - `causal`: query m sees key j where `j <= m + n_k - n_q`. A query that sees no key gives zeros and $L = -\infty$
# - `scale`: any number, also a negative one; scores may lie far from zero on either side
# - `block`: any number of keys from 1 on; the last tile may be shorter. Maximum, sum and accumulator are fp32
#
# The scores of all keys at once must not exist. About 20 lines.


# %% nbgrader={"grade": false, "grade_id": "flash_tiled", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tiled_forward(q, k, v, causal, scale, block):
    """Attention in tiles of `block` keys: (o, lse)."""
    ### BEGIN SOLUTION
    (B, H, n_q, D), n_k = q.shape, k.shape[2]
    row_max = torch.full((B, H, n_q), -float("inf"), device=q.device)
    row_sum = torch.zeros(B, H, n_q, device=q.device)
    acc = torch.zeros(B, H, n_q, D, device=q.device)
    queries = torch.arange(n_q, device=q.device)[:, None]

    for start in range(0, n_k, block):
        tile_k, tile_v = (
            k[:, :, start : start + block].float(),
            v[:, :, start : start + block].float(),
        )
        s = q.float() @ tile_k.mT * scale
        if causal:
            keys = torch.arange(start, start + tile_k.shape[2], device=q.device)
            s = s.masked_fill(keys > queries + n_k - n_q, -float("inf"))
        new_max = torch.maximum(row_max, s.amax(dim=-1))
        shift = new_max.masked_fill(new_max == -float("inf"), 0.0)  # -inf - -inf is NaN
        p = torch.exp(s - shift[..., None])
        factor = torch.exp(row_max - shift)
        row_sum = row_sum * factor + p.sum(dim=-1)
        acc = acc * factor[..., None] + p @ tile_v
        row_max = new_max

    o = acc / row_sum.masked_fill(row_sum == 0.0, 1.0)[..., None]
    return o.to(q.dtype), row_max + torch.log(row_sum)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_tiled_check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("flash.tiled", tiled_forward)

# %% [markdown]
# <details><summary>Hint 1: begin without a mask</summary>
#
# Three tensors before the loop: the maximum at $-\infty$, the sum at 0, the accumulator at 0. In the loop: slice
# `block` keys and values, scores, new maximum, correction, new sum, new accumulator. Divide once, after the loop.
# Slices behind the last key are shorter by themselves, so the tail needs no care here.
# </details>
# <details><summary>Hint 2: causal</summary>
#
# A key's number is `start` plus its place in the tile. Compare it with `query + n_k - n_q`. When rows with no visible
# key come out as NaN, look at what is subtracted in the exponential.
# </details>
# <details><summary>Hint 3: rows with no key, and L</summary>
#
# Their sum is 0: divide by 1 instead. `row_max + log(row_sum)` is then $-\infty$ by itself, as it should be.
# </details>

# %% [markdown]
# ### How a check tells such things apart
# It knows the wrong answers, too. The next cell needs your `tiled_forward` and moves its diagonal by one key: read what
# the mistake is called, and which cases it gets right.


# %%
def a_key_too_few(q, k, v, causal, scale, block):
    """Your answer, but with causal no query sees the last key that it should see."""
    n = k.shape[2] - causal
    return tiled_forward(q, k[:, :, :n], v[:, :, :n], causal, scale, block)


check("flash.tiled", a_key_too_few)

# %% [markdown]
# ### Measure
# The same result as the naive version, with how much memory? The next cell needs your `tiled_forward`.

# %%
n = 4096 if GPU else 1024
q, k, v = (normal(1, 2, n, 64, dtype=torch.float32) for _ in range(3))
far = (
    (tiled_forward(q, k, v, True, 0.125, 64)[0] - naive(q, k, v, causal=True))
    .abs()
    .max()
    .item()
)
size = "" if GPU else f", length {n}"  # another one than the recorded
held = {
    f"naive{size}": memory.peak(lambda: naive(q, k, v, causal=True)) / 2**20,
    f"in tiles of 64{size}": memory.peak(
        lambda: tiled_forward(q, k, v, True, 0.125, 64)
    )
    / 2**20,
}
print(
    f"largest difference {far:.1e}; one score matrix: {2 * n * n * 4 / 2**20:.0f} MiB"
)
results.beside("lesson04.tiled_memory", held, unit="MiB")

# %% [markdown]
# The memory no longer holds a score matrix, and it grows with the length instead of its square. But between two lines
# of PyTorch each tile still leaves the registers, for the L2 cache or for memory, so there is no reason for it to be
# faster. To keep a tile on the chip, the whole loop has to be one kernel.

# %% [markdown]
# ## 4. The forward kernel
# One program owns `BLOCK_M` queries of one head and walks over the keys, `BLOCK_N` at a time. It loads its queries once
# and keeps them. For every tile it loads K and V, and everything between the two loads and the next tile stays in
# registers. At the end it writes O and L.
#
# ### In which precision?
# Tensor cores multiply 2-byte numbers and add in fp32. So each quantity needs a decision.
#
# | quantity | precision | why |
# |---|---|---|
# | q, k, v | as they come | the tensor cores want 2 bytes |
# | scores s | fp32 | the accumulator of the product; never stored |
# | maximum, sum, L | fp32 | one number a row, nothing to save |
# | p | cast to the type of v for the product | it is between 0 and 1; the cast costs one rounding |
# | accumulator | **fp32** | it is a long sum, and it is corrected in every tile |
#
# The report says the same of its buffers: fp32, cast at the store. What does it cost to cast p, and what would it cost
# to keep the accumulator in fp16? Predict which one grows with the number of keys. The cell is a model of one row with
# nearly equal scores, in tiles of 64, and runs anywhere.

# %%
predicted_growth = {  # replace None: the error at 16384 over that at 64
    "p in fp16": None,
    "accumulator in fp16": None,
}
### BEGIN PREDICTION
predicted_growth = {
    "p in fp16": 0.06,
    "accumulator in fp16": 16,
    "why": "Roundings of 256 times as many terms cancel like a random walk: "
    "1 / 16 of the error. The accumulator is rounded 256 times instead of once, "
    "and these add up like a random walk.",
}
### END PREDICTION


# %%
def one_row(n, p_type, acc_type):
    """Relative error of 64 rows of n keys, with p and the accumulator rounded to these
    types."""
    torch.manual_seed(n)
    s, v = 0.1 * torch.randn(64, n), torch.rand(n, 32)
    p = torch.exp(s - s.amax(dim=-1, keepdim=True))
    acc = torch.zeros(64, 32, dtype=acc_type)
    for start in range(0, n, 64):
        part = p[:, start : start + 64].to(p_type).float() @ v[start : start + 64]
        acc = (acc.float() + part).to(acc_type)
    want = torch.softmax(s.double(), dim=-1) @ v.double()
    got = acc.double() / p.double().sum(dim=-1, keepdim=True)
    return ((got - want).norm() / want.norm()).item()


fp16, fp32 = torch.float16, torch.float32
kinds = {
    "all in fp32": (fp32, fp32),
    "p in fp16": (fp16, fp32),
    "accumulator in fp16": (fp32, fp16),
}
key_counts = [2**i for i in range(6, 15)]
errors = {
    name: [one_row(n, *types) for n in key_counts] for name, types in kinds.items()
}

# %%
axes = plots.sweep(
    key_counts, errors, xlabel="keys", ylabel="relative error", unit="", yscale="log",
    title="A rounded p costs once; a rounded accumulator costs in every tile",
    device="a model, on any machine",
)  # fmt: skip
axes.yaxis.set_major_formatter("{x:.0e}")
plots.show(
    axes,
    alt="Relative error against the number of keys: that of p in fp16 falls, "
    "that of the accumulator in fp16 is larger and grows, fp32 lies far below both",
)
against(
    predicted_growth, {name: column[-1] / column[0] for name, column in errors.items()}
)

# %% [markdown]
# **The prediction, counted.** From 64 to 16384 keys the error with p in fp16 falls to 0.08 of what it was; with the
# accumulator in fp16, which is rounded once in each of 256 tiles, it grows 12-fold.
#
# Casting p is one rounding a term, and the roundings of many terms cancel: the error even falls. The accumulator is
# rounded again in every tile, at the size it has *then*; late in a long row a whole tile is no more than a few steps of
# fp16 (and above 65504 there is nothing). So short test rows pass, and long rows fail. `tl.dot(p, v, acc)` keeps an
# fp32 accumulator if `acc` is one.
#
# ### Powers of two
# The hardware has $2^x$, not $e^x$. A kernel therefore multiplies the scores once by $\sigma \log_2 e$ and uses
# `tl.exp2` everywhere; maximum and sum live in that base. Only L is turned back: $L = (m_2 + \log_2 \ell) \ln 2$. What
# goes wrong here is easy to name: L left in base 2 is 1.44 times what it should be.
#
# ### Where is my tile?
# A tensor arrives as an address and four strides, and **no stride may be assumed**: q is often a transposed view. You
# are given one helper, because 20 lines of strides teach nothing. `addresses` gives the address of each element of a
# block of rows and columns of one head. Batch, head and rows are multiplied in 64 bits; a column times its stride stays
# in the type of the stride.


# %% tags=["setup"]
LOG2_E, LN_2 = tl.constexpr(1.4426950408889634), tl.constexpr(0.6931471805599453)


@triton.jit
def addresses(
    ptr, batch, head, rows, columns, stride_b, stride_h, stride_row, stride_column
):
    """(rows, columns) of addresses in the matrix of one head;
    batch and head in 64 bits."""
    ptr += batch.to(tl.int64) * stride_b + head.to(tl.int64) * stride_h
    return (
        ptr + rows[:, None].to(tl.int64) * stride_row + columns[None, :] * stride_column
    )


# %% [markdown]
# Five more things that a general kernel has to get right.
#
# - **The grid has one dimension**: tiles x heads x batch. The other two dimensions of a grid end at 65535, and a large
#   batch times its heads may pass that.
# - **Head sizes that are no power of two.** Blocks are powers of two, so 72 columns are loaded as 128 with 56 masked.
#   That is right, and it multiplies zeros. (The course's own kernel splits 72 into 64 + 16.) A product of tensor cores
#   wants at least 16 columns.
# - **Groups of heads.** With fewer heads of keys than of queries, neighbours share: head $h$ uses the keys of head
#   `h // GROUP`. The wrong turn `h % H_kv` has the right shape and the wrong neighbours.
# - **No lengths.** An argument may be `None`. `if lengths_ptr is not None` is decided when the kernel is compiled.
# - **Two loops.** Tiles that are visible as a whole need no mask, and they are nearly all.
#   `for EDGE in tl.static_range(2)` makes the compiler write what is inside it twice, once for each value of `EDGE`, so
#   that the first copy holds no mask at all. Begin with one loop that masks every tile; make two of it when the checks
#   pass.

# %% [markdown]
# ## Exercise 4.3 `flash.forward` (120 min, 12 points)
# Write `flash_forward(q, k, v, out, lse, causal, scale, k_lengths)`.
#
# - `q`, `out`: (B, H, n_q, D); `k`, `v`: (B, H_kv, n_k, D), H a multiple of H_kv: query head h reads head
#   `h // (H // H_kv)`. D is anything from 16 to 128, 72 among them
# - q, k, v and out of one type: fp16 or bf16 on a GPU, fp16 or fp32 in the interpreter; products of fp32 keep fp32
#   (`input_precision="ieee"`)
# - any strides for q, k, v and out, the last one included; batch x heads may pass 65535, and the offset at which a head
#   starts $2^{31}$ (both tried on a GPU, the second only when it is graded)
# - writes `out`, and `lse`: L, (B, H, n_q), contiguous, fp32, natural logarithm
# - `causal`: query m sees key j where `j <= m + n_k - n_q`
# - `k_lengths`: `None`, or (B,) int32, from 0 to n_k: sequence b has only its first `k_lengths[b]` keys. This moves no
#   diagonal; both conditions hold together. Behind the length k and v may hold NaN, which must reach no output
# - a query that sees no key gives zeros and $L = -\infty$; `scale` may be any number
#
# The two kernel cells are a proposal: `_take_in` is the arithmetic of one tile, `_forward_kernel` the walk. The cells
# of section 8 compile `_forward_kernel` by the names of its arguments, so keep them. About 10 lines and 40 lines.


# %% nbgrader={"grade": false, "grade_id": "flash_forward_tile", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _take_in(acc, row_max, row_sum, q, k_t, v, see, scale_log2, EDGE: tl.constexpr):
    """One more tile of keys. q (M, D), k_t (D, N), v (N, D), see (M, N):
    which pairs count; EDGE: do not all?"""
    ### BEGIN SOLUTION
    s = tl.dot(q, k_t, input_precision="ieee") * scale_log2
    if EDGE:
        s = tl.where(see, s, -float("inf"))
    new_max = tl.maximum(row_max, tl.max(s, axis=1))
    shift = new_max
    if EDGE:  # a row that has seen no key: -inf - -inf would be NaN
        shift = tl.where(new_max == -float("inf"), 0.0, new_max)
    p = tl.exp2(s - shift[:, None])
    factor = tl.exp2(row_max - shift)
    acc = tl.dot(p.to(v.dtype), v, acc * factor[:, None], input_precision="ieee")
    # while the tensor cores make the product above
    row_sum = row_sum * factor + tl.sum(p, axis=1)
    return acc, new_max, row_sum
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "flash_forward_kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _forward_kernel(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, lengths_ptr,
    heads, n_q, n_k, scale,
    stride_o_b, stride_o_h, stride_o_m, stride_o_d,
    stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    ### BEGIN SOLUTION
    blocks = tl.cdiv(n_q, BLOCK_M)
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = pair // heads, pair % heads
    if CAUSAL:
        # the longest programs first, so that none of them finishes alone
        block = blocks - 1 - block
    n_valid = tl.load(lengths_ptr + batch) if lengths_ptr is not None else n_k
    offs_m, offs_n = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m, mask_d = offs_m < n_q, offs_d < D
    mask = mask_m[:, None] & mask_d[None, :]
    q_ptrs = addresses(
        q_ptr, batch, head, offs_m, offs_d,
        stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    )  # fmt: skip
    q = tl.load(q_ptrs, mask=mask, other=0.0)

    # Where a tile starts is one 64-bit number; where an element lies inside it, a block
    # of 32-bit ones.
    k_at = (
        k_ptr
        + batch.to(tl.int64) * stride_k_b + (head // GROUP).to(tl.int64) * stride_k_h
    )  # fmt: skip
    v_at = (
        v_ptr
        + batch.to(tl.int64) * stride_v_b + (head // GROUP).to(tl.int64) * stride_v_h
    )  # fmt: skip
    k_tile = offs_d[:, None] * stride_k_d + offs_n[None, :] * stride_k_n  # transposed
    v_tile = offs_n[:, None] * stride_v_n + offs_d[None, :] * stride_v_d

    diagonal = n_k - n_q
    # keys that every query of the block sees whole, and those that any sees
    full, end = n_valid, n_valid
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(block * BLOCK_M + diagonal + 1, 0))
        end = tl.minimum(end, tl.maximum((block + 1) * BLOCK_M + diagonal, 0))
    full = full // BLOCK_N * BLOCK_N
    row_max = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    row_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for EDGE in tl.static_range(2):
        for start in tl.range(
            full if EDGE else 0, end if EDGE else full, BLOCK_N,
            num_stages=1 if EDGE else None,
        ):  # fmt: skip
            keys = start + offs_n
            # a whole tile has no tail
            mask_n = keys < n_valid if EDGE else offs_n < BLOCK_N
            k_t = tl.load(
                k_at + k_tile, mask=mask_d[:, None] & mask_n[None, :], other=0.0
            )
            v = tl.load(
                v_at + v_tile, mask=mask_n[:, None] & mask_d[None, :], other=0.0
            )
            see = mask_n[None, :]
            if CAUSAL:
                see = see & (keys[None, :] <= offs_m[:, None] + diagonal)
            acc, row_max, row_sum = _take_in(
                acc, row_max, row_sum, q, k_t, v, see, scale * LOG2_E, EDGE
            )
            k_at += BLOCK_N * stride_k_n
            v_at += BLOCK_N * stride_v_n

    # no key at all: zeros, and L = -inf
    row_sum = tl.where(row_sum == 0.0, 1.0, row_sum)
    out_ptrs = addresses(
        out_ptr, batch, head, offs_m, offs_d,
        stride_o_b, stride_o_h, stride_o_m, stride_o_d,
    )  # fmt: skip
    tl.store(out_ptrs, (acc / row_sum[:, None]).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(
        lse_ptr + pair.to(tl.int64) * n_q + offs_m,
        (row_max + tl.log2(row_sum)) * LN_2, mask=mask_m,
    )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "flash_forward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def flash_forward(q, k, v, out, lse, causal, scale, k_lengths, tiles=None):
    """Fill out and lse. tiles: queries and keys a tile, warps, stages."""
    ### BEGIN SOLUTION
    (B, H, n_q, D), (H_kv, n_k) = q.shape, k.shape[1:3]
    if out.numel() == 0:
        return
    block_m, block_n, warps, stages = tiles or (
        (64, 64, 4, 2) if q.is_cuda else (32, 32, 4, 1)
    )
    _forward_kernel[(triton.cdiv(n_q, block_m) * B * H,)](
        out, lse, q, k, v, k_lengths,
        H, n_q, n_k, scale,
        *out.stride(), *q.stride(), *k.stride(), *v.stride(),
        GROUP=H // H_kv, D=D, BLOCK_D=max(16, triton.next_power_of_2(D)), CAUSAL=causal,
        BLOCK_M=block_m, BLOCK_N=block_n, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_forward_check", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false}
check("flash.forward", flash_forward)

# %% [markdown]
# <details><summary>Hint 1: in which order to write it</summary>
#
# First without mask, groups and lengths, one loop over all keys, lengths that the tiles divide. `_take_in` is the body
# of your `tiled_forward` with `tl.dot`, `tl.max(..., axis=1)`, `tl.sum(..., axis=1)` and `tl.exp2`. Then the tail: keys
# past the end need $-\infty$ in the scores, and not only 0 in the load, because $e^0$ is not 0. Then lengths, causal,
# groups. Run the check after each.
# </details>
# <details><summary>Hint 2: right for square sizes only</summary>
#
# The diagonal lies at `n_k - n_q`, in the mask *and* where the loop ends: a block of queries that begins at `first`
# sees keys below `first + BLOCK_M + n_k - n_q`, which can be negative or past the last key. Wrong only for some heads:
# `h // GROUP`. Wrong by a constant factor in L: base 2.
# </details>
# <details><summary>Hint 3: NaN</summary>
#
# Four places make it. A tile in which a row has seen no key yet: subtract 0 instead of $-\infty$. A row with no key at
# all: divide by 1 instead of 0, and L comes out as $-\infty$ by itself. Columns past the head size: load them as 0. Rows
# of k and v behind `k_lengths[b]`: load them as 0 too, since p = 0 does not hide a NaN in v.
# </details>
# <details><summary>Hint 4: the loop</summary>
#
# `for start in range(0, end, BLOCK_N)`: load `k_t` (transposed) and `v` at the rows `start + offs_n`, build `see` from
# `start + offs_n < n_valid` and, when causal, `start + offs_n <= offs_m + n_k - n_q`, call `_take_in`. For two loops
# around one body: `for EDGE in tl.static_range(2)` and inside it
# `range(full if EDGE else 0, end if EDGE else full, BLOCK_N)`. Below `full` all queries of the block see all keys: it
# is `n_valid` or, when causal and smaller, `first + 1 + n_k - n_q`, which is taken as 0 where it is negative, and then
# rounded down to whole tiles. The same holds for `end`. (Addresses that are made once and moved on in every
# turn are right too; section 8 shows their price.)
# </details>

# %% [markdown]
# ### Measure
# How far is it from the tensor cores? On a GPU the cell times your kernel, PyTorch's fused attention (SDPA) and the
# naive version, forward. In the interpreter a kernel's time says nothing, so a CPU shows the recorded run only.

# %%
from torch.nn.functional import scaled_dot_product_attention as sdpa


def forward_times(n, d, causal, batch=4, heads=16):
    """name -> TFLOP/s; 4 n^2 d FLOP a head, half of it causal."""
    q, k, v = (normal(batch, heads, n, d) for _ in range(3))
    out, lse = torch.empty_like(q), normal(batch, heads, n, dtype=torch.float32)
    took = {
        "mine": timed(lambda: flash_forward(q, k, v, out, lse, causal, d**-0.5, None)),
        "SDPA": timed(lambda: sdpa(q, k, v, is_causal=causal)),
        "naive": timed(lambda: naive(q, k, v, causal)),
    }
    flops = 4 * batch * heads * n * n * d / (2 if causal else 1)
    return {name: flops / t.median_s / 1e12 for name, t in took.items()}


rates = {}
if GPU:
    for n, d, causal in (
        (1024, 64, False), (4096, 64, False), (4096, 64, True), (4096, 128, False),
    ):  # fmt: skip
        words = f"length {n}, head size {d}{', causal' if causal else ''}"
        rates |= {
            f"{words}, {name}": rate
            for name, rate in forward_times(n, d, causal).items()
        }
results.beside("lesson04.forward", rates, unit="TFLOP/s")

# %% [markdown]
# The FLOPs are counted once, whatever a kernel makes: a causal kernel that computes all tiles and masks half of them
# shows half the rate. Where naive attention stands far below, it is waiting for memory; that part of the claim "fused
# attention is faster" is bytes, not launches. How to come nearer to the ceiling is section 8.

# %% [markdown]
# ## 5. The backward pass, derived
# Given $dO = \partial \text{loss} / \partial O$. Four of the five steps are the product rule for matrices:
#
# $$dV = P^\top dO, \qquad dP = dO\, V^\top, \qquad dQ = \sigma\, dS\, K, \qquad dK = \sigma\, dS^\top Q.$$
#
# The step in the middle is softmax. For one row, $\partial p_j / \partial s_k = p_j (1_{j=k} - p_k)$, so
#
# $$ds_k = \sum_j dp_j\, p_j (1_{j=k} - p_k) = p_k \Big(dp_k - \underbrace{\sum_j p_j\, dp_j}_{\textstyle \delta}\Big).$$
#
# Every element needs $\delta$, a sum over the *whole row*. For a kernel in tiles that would be a pass of its own. One
# line of algebra saves it:
#
# $$\delta = \sum_j p_j\, dp_j = \sum_j p_j \sum_c do_c\, v_{jc} = \sum_c do_c \sum_j p_j v_{jc} = \sum_c do_c\, o_c.$$
#
# So $\delta$ is a dot product of two rows of length $d$ that exist already. And P? It is made again: $p = e^{s - L}$.
# The scores are computed a second time, and nothing of size $n^2$ was kept.
#
# Is it true? The cell does it in float64 and compares with autograd.


# %%
def by_hand(q, k, v, do, scale, s_hidden=None):
    """The five steps, in plain PyTorch, with all the names of the derivation."""
    s = scale * q @ k.mT
    if s_hidden is not None:
        s = s.masked_fill(s_hidden, -float("inf"))
    lse = torch.logsumexp(s, dim=-1, keepdim=True)
    p = torch.exp(s - lse)
    delta = ((p @ v) * do).sum(dim=-1, keepdim=True)
    ds = p * (do @ v.mT - delta)
    return {"dq": scale * ds @ k, "dk": scale * ds.mT @ q, "dv": p.mT @ do}


torch.manual_seed(0)
q, k, v, do = (
    torch.randn(2, 3, 50, 16, dtype=torch.float64).requires_grad_() for _ in range(4)
)
hidden = torch.ones(50, 50, dtype=torch.bool).triu(1)
truth = torch.autograd.grad(sdpa(q, k, v, is_causal=True, scale=0.3), (q, k, v), do)
for (name, got), want in zip(by_hand(q, k, v, do, 0.3, hidden).items(), truth):
    print(f"{name}: largest difference from autograd {(got - want).abs().max():.1e}")

# %% [markdown]
# ### Wrong turns
# The three gradients do not go wrong together, and *which* of them is wrong tells you where to look. The figure makes
# some well-known mistakes on purpose and shows the relative error of each gradient.


# %%
def one_mistake(name):
    """dq, dk and dv with one mistake made."""
    with torch.no_grad():
        s = (0.3 * q @ k.mT).masked_fill(hidden, -float("inf"))
        p = torch.softmax(s, dim=-1)
        # not masked again
        loose = torch.exp(0.3 * q @ k.mT - torch.logsumexp(s, dim=-1, keepdim=True))
        dp = do @ v.mT
        delta = 0.0 if name == "delta forgotten" else (p * dp).sum(dim=-1, keepdim=True)
        ds = p * (dp - delta)
        wide = loose if name == "no causal mask in dk, dv" else p
        scale_q = (
            1.0
            if name == "no scale in dq"
            else 0.3 / math.log(2)
            if name == "dq off by ln 2"
            else 0.3
        )
        dv = (dp if name == "dv from dp" else wide).mT @ do
        return scale_q * ds @ k, 0.3 * (wide * (dp - delta)).mT @ q, dv


mistakes = (
    "delta forgotten", "no scale in dq", "dq off by ln 2",
    "no causal mask in dk, dv", "dv from dp",
)  # fmt: skip
errors = {
    m: [((g - t).norm() / t.norm()).item() for g, t in zip(one_mistake(m), truth)]
    for m in mistakes
}


# %%
@drawn
def draw_errors(errors, columns):
    """One cell for each mistake and gradient: blue where it is right, orange where it is wrong, with the error."""
    figure, ax = plots.figure(6.6, 1.3 + 0.36 * len(errors))
    figure.suptitle(
        "Which gradients are wrong says which mistake it is",
        x=0.01, ha="left", weight="bold",
    )  # fmt: skip
    for y, row in enumerate(errors.values()):
        for x, value in enumerate(row):
            wrong = value > 1e-9
            ax.barh(
                y, 0.94,
                left=x - 0.47, height=0.84, color="#FBE3C8" if wrong else "#E3EDF5",
            )  # fmt: skip
            words = f"{value:.2f}" if wrong else "right"
            ax.text(
                x, y, words, ha="center", va="center",
                fontsize=8.5, weight="bold" if wrong else "normal",
            )  # fmt: skip
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(errors)), list(errors))
    ax.set(ylim=(len(errors) - 0.5, -0.5), xlim=(-0.5, len(columns) - 0.5))
    ax.tick_params(length=0)
    ax.xaxis.tick_top()
    ax.spines[:].set_visible(False)
    return figure


plots.show(
    draw_errors(errors, ("dq", "dk", "dv")),
    alt="Table of relative errors: a forgotten delta spoils dq and dk, "
    "a scale only dq, a missing mask in one pass dk and dv, dv from dp only dv",
)

# %% [markdown]
# Read the rows. $dq$ and $dk$ wrong, $dv$ right: look at $\delta$. Only $dq$: its scale, or a leftover of base 2. $dk$
# and $dv$ wrong and $dq$ right: the pass that owns the keys, so its mask, its lengths, its sum over a group of heads.
# Only $dv$: it is made of P and $dO$ alone, so look at that product.

# %% [markdown]
# ## 6. Who may write which sum?
# In the forward pass every output row belongs to one program. In the backward pass there are two kinds of sums: $dQ$
# sums over keys, $dK$ and $dV$ sum over queries. Whichever way the tiles are dealt out, one kind crosses the programs.

# %%
figure, axes = plots.figure(width=7.6, height=3.2, columns=2)
plots.block_map(
    16, 16, 4, 4, causal=True, walk="rows", ax=axes[0],
    title="dQ: a program owns queries", legend=False,
)  # fmt: skip
plots.block_map(
    16, 16, 4, 4, causal=True, walk="columns", ax=axes[1],
    title="dK, dV: a program owns keys", legend=False,
)  # fmt: skip
plots.show(
    figure,
    alt="Two causal block maps of 16 queries and keys in tiles of 4. "
    "Left, numbers run along the rows: one program a row. "
    "Right, they run down the columns: one program a column",
)

# %% [markdown]
# - **Two passes.** One kernel in which programs own queries and make $dQ$; one in which programs own keys and make $dK$
#   and $dV$. Nothing is shared. $S$ and $dP$ are made twice: 3 products in the first, 4 in the second, **7** in all.
#   Neither waits for the other once $\delta$ is there, so where tiles are too few for a GPU both run side by side
#   (`side_by_side.py`): 8 causal heads of 1024, head size 64, took 1.21 of FlashAttention-4's time on an H200 one after
#   the other, and take 0.84 in one launch.
# - **One pass.** Programs own keys. $dK$ and $dV$ are theirs; to $dQ$ they all add. **5** products. The additions have
#   to be *atomic*, which means that reading, adding and writing cannot be interrupted; or *ordered*: programs take
#   turns, or each adds to a copy of its own and a later kernel sums the copies up.
# - **One program a head.** Where one block holds all keys of a head, nobody else has a part of any sum. **5** products,
#   nothing atomic, nothing in turns; and a program with whole rows of $P$ and $dP$ sums $\delta_i = \sum_j P_{ij}
#   dP_{ij}$ itself and need not read $O$. On an H200 the library's kernel for that (`one_block.py`, plain Triton) takes
#   0.23 to 0.80 of two passes' time for 16 to 64 keys, and 0.73 to 0.89 for 128 keys of head size 128. At
#   nearly all other head sizes it lost with 128 keys, and a longer head has more keys than a block.
#
# ### Case file
# **The report says** (systems notes of the course assignment): the handout's single-pass backward loads a $dQ$ that was
# never initialised and updates it from many programs at once; two passes make this right; and "atomics kill
# performance".
#
# Three claims: a missing zero, a race, and a speed. Take them one by one. The missing zero first, because it is the
# simplest: `torch.empty` gives memory as it was left. A sum that starts from it is wrong by whatever lay there. Fresh
# memory of a process is often zero, so the mistake passes its first test and fails later. On a CPU the next cell may
# show anything: the 3.0 of the array before it, zeros, NaN, or huge numbers. (On a GPU PyTorch keeps what was freed and
# gives it out again: late in a notebook even a large array holds what earlier cells left.) That is why the check fills
# every output with NaN: a sum on top of NaN stays NaN.

# %%
left_behind = torch.full((64, 64), 3.0, device=DEVICE)
del left_behind
for name, shape in (("small, used before", (64, 64)), ("large", (2**12, 2**12))):
    found = torch.empty(shape, device=DEVICE)
    print(
        f"{name}: {(found == 0).double().mean().item():.0%} zeros, largest value "
        f"{found.abs().max().item():.3g}"
    )

# %% [markdown]
# ### The race
# Two programs add to the same number, which is 5. One adds 2, the other 3.
#
# | program A | program B | in memory |
# |---|---|---|
# | loads 5 | | 5 |
# | | loads 5 | 5 |
# | stores 5 + 2 | | 7 |
# | | stores 5 + 3 | **8**, and the 2 is lost |
#
# Nothing was done twice and nothing failed; one addition never happened. Whether it does depends on who is how fast, so
# it is another number in the next run. Below is a model that runs everywhere: 8 programs add their part of one row of
# $dQ$, each as load, then add and store, and a random scheduler decides who goes next.


# %%
def scheduled(parts, rng, atomic):
    """What is in memory after all programs have added their part: fp32, any order; not atomic: as load, then store."""
    total, waiting = torch.tensor(0.0), []
    todo = [(i, "load") for i in range(len(parts))]
    while todo or waiting:
        pick = int(torch.randint(len(todo) + len(waiting), (1,), generator=rng))
        if pick < len(todo):
            program, _ = todo.pop(pick)
            waiting.append((program, total))  # what it has read
        else:
            program, read = waiting.pop(pick - len(todo))
            total = (total if atomic else read) + parts[program]
    return total.item()


rng = torch.Generator().manual_seed(4)
parts = torch.rand(8, generator=rng) + 0.5
answers = {
    kind: [scheduled(parts, rng, kind == "atomic") for _ in range(300)]
    for kind in ("racy", "atomic")
}
for kind, values in answers.items():
    print(
        f"{kind}: {len(set(values))} different answers in 300 runs, "
        f"from {min(values):.7f} to {max(values):.7f}"
    )

# %%
axes = plots.histogram(
    answers,
    xlabel="dQ, one element",
    title="A race loses whole parts; atomics only reorder the sum",
    device="a model, on any machine",
)
plots.show(
    axes,
    alt="Histogram of one element of dQ in 300 runs: the racy sums are spread far "
    "below the true one, the atomic ones lie on it",
)

# %% [markdown]
# The racy sum is short by whole parts. The atomic one is right, and yet not the same every time: fp32 addition is not
# associative, so another order gives another last digit. That is what "not deterministic" means for a correct kernel.
#
# ### The same with real kernels
# `course_lib.kernels.one_pass` has the one-pass backward in three forms: `"atomic"`, `"racy"` (load, add, store) and
# `"none"`, which leaves $dQ$ out. Predict: how many of the elements of $dQ$ will differ between two racy runs on a GPU?
# And between two atomic runs? And in the interpreter?

# %%
predicted_differing = {  # replace None: per cent
    "racy, GPU": None,
    "atomic, GPU": None,
    "racy, interpreter": None,
}
### BEGIN PREDICTION
predicted_differing = {
    "racy, GPU": 100,
    "atomic, GPU": 50,
    "racy, interpreter": 0,
    "why": "16 programs add to each element: one addition is lost in nearly every run. "
    "In another order about every second sum rounds otherwise. "
    "The interpreter runs one program at a time.",
}
### END PREDICTION

# %%
try:
    from course_lib.kernels.one_pass import backward_in_one_pass
except ImportError:
    backward_in_one_pass = None
    print(
        "The course's own kernels are not here: recorded numbers stand in their place."
    )


def five_runs(n, dtype):
    """What five racy and five atomic runs have in common, and how far they are off."""
    q, k, v, do = (normal(2, 4, n, 64, dtype=dtype) for _ in range(4))
    s = 0.125 * q.double() @ k.double().mT
    lse = torch.logsumexp(s, dim=-1).float()
    given = (
        do, q, k, v, (torch.softmax(s, dim=-1) @ v.double()).to(dtype),
        lse, False, 0.125,
    )  # fmt: skip
    want = by_hand(*(x.double() for x in (q, k, v, do)), 0.125)["dq"]
    found = {}
    for add in ("racy", "atomic"):
        dqs = [backward_in_one_pass(*given, add)[0] for _ in range(5)]
        differ = max((x != dqs[0]).double().mean().item() for x in dqs)
        found[f"{add}, elements that differ between runs, %"] = 100 * differ
        off = [((x - want).norm() / want.norm()).item() for x in dqs]
        found[f"{add}, largest relative error of dq"] = max(off)
    return found


# %%
found = {}
if backward_in_one_pass:
    found = five_runs(1024 if GPU else 64, torch.float16 if GPU else torch.float32)
results.beside("lesson04.race", found, unit="")

# %%
race = {row["name"]: row["value"] for row in recorded("lesson04.race")}
differ = {
    add: race.get(f"{add}, elements that differ between runs, %")
    for add in ("racy", "atomic")
}
if None not in differ.values():
    came = {f"{add}, GPU": percent for add, percent in differ.items()}
    against(predicted_differing, came | {"racy, interpreter": 0.0})

# %% [markdown]
# **The prediction, counted.** On the recorded H200 94 % differ between racy runs and 69 % between atomic ones, and in
# the interpreter none, because it runs one program after another.
#
# Recorded with 4 x 16 heads of 4096 tokens in bf16, six runs each: how many of the six answers differ, and how far they
# lie from those of two passes. Two passes store $dQ$ in bf16 and one pass stores it in fp32. So the 1.7e-3 of the
# atomic rows are the rounding of the *yardstick*, and no error of atomics; what they differ by among themselves,
# 1.7e-7, is the order of their sums.

# %%
one_pass = recorded("one_pass")
for row in one_pass:
    if "different answers" in row:
        print(
            f"{row['name']:24} {row['different answers']} different answers, "
            f"off two passes' dq by {row['least error']:.1e} to "
            f"{row['largest error']:.1e}, at most {row['furthest apart']:.1e} apart"
        )

# %% [markdown]
# **In the interpreter the racy kernel is right**, every time: it runs one program after the other, so nobody
# interrupts. A check on a CPU cannot find a race, and neither can a GPU test with a single program a head. What finds
# it: running twice and comparing *bits*; many more programs than one; and a tool, `compute-sanitizer --tool racecheck`,
# for races inside a program's shared memory. The best protection is an argument: every element of every output has
# exactly one program that writes it. For two passes that argument takes one line.

# %% [markdown]
# ### A gradient that is not contiguous
# **The report says**: a non-contiguous $dO$ gives wrong answers or illegal reads if its strides are ignored, and
# running under `torch.compile` can hide it. Here is a function whose backward ignores strides on purpose: it reads its
# gradient as if rows followed each other. Attention's output is usually transposed before the next layer, so its
# gradient comes back transposed; the gradient of a `sum` is even one single number with strides of 0.


# %%
class Careless(torch.autograd.Function):
    """Multiplies by 2; its backward reads the gradient as if it were contiguous."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, dout):
        return 2 * torch.as_strided(dout, dout.shape, (dout.shape[1], 1))


def worst_gradient(function, x, weight):
    """Largest error of the gradient of sum(f(x)ᵀ weight), which is 2 weightᵀ."""
    x = x.clone().requires_grad_()
    (function(x).t() * weight).sum().backward()
    return (x.grad - 2 * weight.t()).abs().max().item()


x, weight = torch.randn(6, 4), torch.randn(4, 6)
careless_compiled = torch.compile(Careless.apply, backend="aot_eager")
print(f"eager: error {worst_gradient(Careless.apply, x, weight):.2f}")
print(f"compiled: error {worst_gradient(careless_compiled, x, weight):.2f}")

# %% [markdown]
# The claim is right, and now you see why. A compiled function is traced before it is known with which strides gradients
# will arrive, so it is written for the usual ones, and what arrives otherwise is *copied into that layout* before the
# backward graph runs. The copy costs a pass over the gradient, and the mistake stays in the kernel until somebody runs
# it without compile. So test a backward pass in eager mode, with a $dO$ that is a transposed view. `.contiguous()` in
# the launcher would be right too, at the price of the copy; a kernel that takes strides needs neither.

# %% [markdown]
# ## Exercise 4.4 `flash.backward` (180 min, 12 points)
# Write `flash_backward(q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths)`.
#
# - `out` and `lse` are what the forward pass stored; `dout` is like q, **with strides of its own**
# - writes `dq`, `dk` and `dv`, which are like q, k and v and hold NaN before the call. Everything else as in exercise
#   4.3
# - dk and dv of a head of keys are sums over all query heads that share it
# - keys from `k_lengths[b]` on get zeros, also where k and v hold NaN, and so does a query that sees no key
# - the same inputs give the same bits every time: no two programs add to one number
# - fp32 accumulators; p and ds may be cast to the type of the inputs. All arithmetic is in kernels, also that of
#   $\delta$
#
# The exercise is cut into cells: what each row of queries needs first; the pass for $dQ$; one tile of the pass for $dK$
# and $dV$, and its walk; the launcher. The first kernel makes two numbers a row: `shift`, which is L in base 2, and
# `delta`. A row with no key has $L = -\infty$; give it a `shift` of $+\infty$, and $2^{s - \infty} = 0$ without any
# further question. The two arrays are your own, so they may be longer than n_q: with `n_rows`, n_q rounded up to whole
# tiles, and $+\infty$ behind the last query, no pass needs a mask for them.


# %% nbgrader={"grade": false, "grade_id": "flash_backward_rows", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _rows_kernel(
    shift_ptr, delta_ptr, lse_ptr, out_ptr, do_ptr,
    heads, n_q, n_rows,
    stride_o_b, stride_o_h, stride_o_m, stride_o_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """For n_rows >= n_q rows a head: shift, which is L in base 2, and delta,
    the dot product of out and dout."""
    ### BEGIN SOLUTION
    blocks = n_rows // BLOCK_M
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = pair // heads, pair % heads
    offs_m, offs_d = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    mask_m = offs_m < n_q
    mask = mask_m[:, None] & (offs_d < D)[None, :]
    o_ptrs = addresses(
        out_ptr, batch, head, offs_m, offs_d,
        stride_o_b, stride_o_h, stride_o_m, stride_o_d,
    )  # fmt: skip
    do_ptrs = addresses(
        do_ptr, batch, head, offs_m, offs_d,
        stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    )  # fmt: skip
    o = tl.load(o_ptrs, mask=mask, other=0.0).to(tl.float32)
    do = tl.load(do_ptrs, mask=mask, other=0.0).to(tl.float32)
    lse = tl.load(
        lse_ptr + pair.to(tl.int64) * n_q + offs_m, mask=mask_m, other=-float("inf")
    )
    # rows past the end exist here: shift +inf, delta 0
    row = pair.to(tl.int64) * n_rows + offs_m
    tl.store(
        shift_ptr + row, tl.where(lse == -float("inf"), float("inf"), lse * LOG2_E)
    )
    tl.store(delta_ptr + row, tl.sum(o * do, axis=1))
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "flash_backward_dq", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _dq_kernel(
    dq_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr, lengths_ptr,
    heads, n_q, n_k, n_rows, scale,
    stride_dq_b, stride_dq_h, stride_dq_m, stride_dq_d,
    stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    ### BEGIN SOLUTION
    blocks = tl.cdiv(n_q, BLOCK_M)
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = pair // heads, pair % heads
    n_valid = tl.load(lengths_ptr + batch) if lengths_ptr is not None else n_k
    offs_m, offs_n = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, BLOCK_D)
    mask_m, mask_d = offs_m < n_q, offs_d < D
    mask = mask_m[:, None] & mask_d[None, :]
    q_ptrs = addresses(
        q_ptr, batch, head, offs_m, offs_d,
        stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    )  # fmt: skip
    do_ptrs = addresses(
        do_ptr, batch, head, offs_m, offs_d,
        stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    )  # fmt: skip
    q, do = (
        tl.load(q_ptrs, mask=mask, other=0.0), tl.load(do_ptrs, mask=mask, other=0.0),
    )  # fmt: skip
    row = pair.to(tl.int64) * n_rows + offs_m
    shift, delta = tl.load(shift_ptr + row), tl.load(delta_ptr + row)
    k_at = (
        k_ptr
        + batch.to(tl.int64) * stride_k_b + (head // GROUP).to(tl.int64) * stride_k_h
    )  # fmt: skip
    v_at = (
        v_ptr
        + batch.to(tl.int64) * stride_v_b + (head // GROUP).to(tl.int64) * stride_v_h
    )  # fmt: skip
    # both transposed
    k_tile = offs_d[:, None] * stride_k_d + offs_n[None, :] * stride_k_n
    v_tile = offs_d[:, None] * stride_v_d + offs_n[None, :] * stride_v_n

    diagonal = n_k - n_q
    full, end = n_valid, n_valid  # as in the forward pass
    if CAUSAL:
        full = tl.minimum(full, tl.maximum(block * BLOCK_M + diagonal + 1, 0))
        end = tl.minimum(end, tl.maximum((block + 1) * BLOCK_M + diagonal, 0))
    full = full // BLOCK_N * BLOCK_N
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for EDGE in tl.static_range(2):
        for start in tl.range(
            full if EDGE else 0, end if EDGE else full, BLOCK_N,
            num_stages=1 if EDGE else None,
        ):  # fmt: skip
            keys = start + offs_n
            mask_n = keys < n_valid if EDGE else offs_n < BLOCK_N
            mask_k = mask_d[:, None] & mask_n[None, :]
            k_t, v_t = (
                tl.load(k_at + k_tile, mask=mask_k, other=0.0),
                tl.load(v_at + v_tile, mask=mask_k, other=0.0),
            )
            s = tl.dot(q, k_t, input_precision="ieee") * (scale * LOG2_E)
            if EDGE:
                see = mask_n[None, :]
                if CAUSAL:
                    see = see & (keys[None, :] <= offs_m[:, None] + diagonal)
                s = tl.where(see, s, -float("inf"))
            p = tl.exp2(s - shift[:, None])
            ds = p * (tl.dot(do, v_t, input_precision="ieee") - delta[:, None])
            dq = tl.dot(ds.to(k_t.dtype), tl.trans(k_t), dq, input_precision="ieee")
            k_at += BLOCK_N * stride_k_n
            v_at += BLOCK_N * stride_v_n
    dq_ptrs = addresses(
        dq_ptr, batch, head, offs_m, offs_d,
        stride_dq_b, stride_dq_h, stride_dq_m, stride_dq_d,
    )  # fmt: skip
    tl.store(dq_ptrs, (dq * scale).to(dq_ptr.dtype.element_ty), mask=mask)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "flash_backward_dkdv_tile", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _add_queries(
    dk, dv, k, v, q, do, shift, delta, see, scale_log2, EDGE: tl.constexpr
):
    """One more tile of queries. k, v (N, D); q, do (M, D); shift, delta (M);
    see (N, M). dk is not scaled yet."""
    ### BEGIN SOLUTION
    # keys go down, queries across
    s = tl.dot(k, tl.trans(q), input_precision="ieee") * scale_log2
    if EDGE:
        s = tl.where(see, s, -float("inf"))
    p = tl.exp2(s - shift[None, :])
    dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
    ds = p * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])
    dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "flash_backward_dkdv", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _dkdv_kernel(
    dk_ptr, dv_ptr, q_ptr, k_ptr, v_ptr, do_ptr, shift_ptr, delta_ptr, lengths_ptr,
    kv_heads, n_q, n_k, n_rows, scale,
    stride_dk_b, stride_dk_h, stride_dk_n, stride_dk_d,
    stride_dv_b, stride_dv_h, stride_dv_n, stride_dv_d,
    stride_q_b, stride_q_h, stride_q_m, stride_q_d,
    stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    stride_do_b, stride_do_h, stride_do_m, stride_do_d,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    ### BEGIN SOLUTION
    blocks = tl.cdiv(n_k, BLOCK_N)
    block, pair = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch, head = pair // kv_heads, pair % kv_heads
    n_valid = tl.load(lengths_ptr + batch) if lengths_ptr is not None else n_k
    offs_n, offs_m = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < D
    # zeros behind the length, whatever lies there
    mask_valid = (offs_n < n_valid)[:, None] & mask_d[None, :]
    k_ptrs = addresses(
        k_ptr, batch, head, offs_n, offs_d,
        stride_k_b, stride_k_h, stride_k_n, stride_k_d,
    )  # fmt: skip
    v_ptrs = addresses(
        v_ptr, batch, head, offs_n, offs_d,
        stride_v_b, stride_v_h, stride_v_n, stride_v_d,
    )  # fmt: skip
    k, v = (
        tl.load(k_ptrs, mask=mask_valid, other=0.0),
        tl.load(v_ptrs, mask=mask_valid, other=0.0),
    )
    q_tile = offs_m[:, None] * stride_q_m + offs_d[None, :] * stride_q_d
    do_tile = offs_m[:, None] * stride_do_m + offs_d[None, :] * stride_do_d

    # where a block of queries begins to see some keys, and all of them
    diagonal, first, whole = n_k - n_q, 0, 0
    if CAUSAL:
        first = tl.maximum(block * BLOCK_N - diagonal, 0) // BLOCK_M * BLOCK_M
        whole = (
            tl.cdiv(tl.maximum((block + 1) * BLOCK_N - 1 - diagonal, 0), BLOCK_M)
            * BLOCK_M
        )
    whole = tl.where((block + 1) * BLOCK_N > n_valid, n_q, tl.minimum(whole, n_q))
    dk, dv = (
        tl.zeros((BLOCK_N, BLOCK_D), tl.float32),
        tl.zeros((BLOCK_N, BLOCK_D), tl.float32),
    )
    for member in range(GROUP):  # the heads of queries that share these keys
        wide_b, head_q = batch.to(tl.int64), head.to(tl.int64) * GROUP + member
        row = (wide_b * kv_heads * GROUP + head_q) * n_rows
        q_at, do_at = (
            wide_b * stride_q_b + head_q * stride_q_h,
            wide_b * stride_do_b + head_q * stride_do_h,
        )
        for EDGE in tl.static_range(2):
            begin, end = (first, whole) if EDGE else (whole, n_q)
            for start in tl.range(begin, end, BLOCK_M, num_stages=1 if EDGE else None):
                queries, wide = start + offs_m, tl.cast(start, tl.int64)
                mask_q = (queries < n_q)[:, None] & mask_d[None, :]
                q = tl.load(
                    q_ptr + q_at + wide * stride_q_m + q_tile, mask=mask_q, other=0.0
                )
                do = tl.load(
                    do_ptr + do_at + wide * stride_do_m + do_tile,
                    mask=mask_q, other=0.0,
                )  # fmt: skip
                shift, delta = (
                    tl.load(shift_ptr + row + queries),
                    tl.load(delta_ptr + row + queries),
                )
                see = (offs_n < n_valid)[:, None]
                if CAUSAL:
                    see = see & (offs_n[:, None] <= queries[None, :] + diagonal)
                dk, dv = _add_queries(
                    dk, dv, k, v, q, do, shift, delta, see, scale * LOG2_E, EDGE
                )
    dk_ptrs = addresses(
        dk_ptr, batch, head, offs_n, offs_d,
        stride_dk_b, stride_dk_h, stride_dk_n, stride_dk_d,
    )  # fmt: skip
    dv_ptrs = addresses(
        dv_ptr, batch, head, offs_n, offs_d,
        stride_dv_b, stride_dv_h, stride_dv_n, stride_dv_d,
    )  # fmt: skip
    # every key has a gradient, the hidden ones zeros
    mask = (offs_n < n_k)[:, None] & mask_d[None, :]
    tl.store(dk_ptrs, (dk * scale).to(dk_ptr.dtype.element_ty), mask=mask)
    tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=mask)
    ### END SOLUTION


# %% nbgrader={"grade": false, "grade_id": "flash_backward", "locked": false, "schema_version": 3, "solution": true, "task": false}
def flash_backward(
    q, k, v, out, lse, dout, dq, dk, dv, causal, scale, k_lengths, tiles=(None, None)
):
    """Fill dq, dk and dv. tiles: of the pass for dq, and of the pass for dk and dv."""
    ### BEGIN SOLUTION
    (B, H, n_q, D), (H_kv, n_k) = q.shape, k.shape[1:3]
    usual = (
        ((64, 64, 4, 2), (64, 64, 4, 2))
        if q.is_cuda
        else ((32, 32, 4, 1), (32, 32, 4, 1))
    )
    for_q, for_k = (given or default for given, default in zip(tiles, usual))
    # whole tiles of queries, so that their two numbers need no mask
    n_rows = triton.cdiv(n_q, 128) * 128
    shift, delta = (
        torch.empty(B, H, n_rows, dtype=torch.float32, device=q.device)
        for _ in range(2)
    )
    inputs = (q, k, v, dout)
    strides = [stride for x in inputs for stride in x.stride()]
    meta = {
        "GROUP": H // H_kv,
        "D": D,
        "BLOCK_D": max(16, triton.next_power_of_2(D)),
        "CAUSAL": causal,
    }
    if dq.numel():
        _rows_kernel[(n_rows // 32 * B * H,)](
            shift, delta, lse, out, dout, H, n_q, n_rows, *out.stride(), *dout.stride(),
            D=D, BLOCK_D=meta["BLOCK_D"], BLOCK_M=32,
        )  # fmt: skip
        _dq_kernel[(triton.cdiv(n_q, for_q[0]) * B * H,)](
            dq, *inputs, shift, delta, k_lengths, H, n_q, n_k, n_rows, scale,
            *dq.stride(), *strides, **meta,
            BLOCK_M=for_q[0], BLOCK_N=for_q[1], num_warps=for_q[2], num_stages=for_q[3],
        )  # fmt: skip
    if dk.numel():
        _dkdv_kernel[(triton.cdiv(n_k, for_k[1]) * B * H_kv,)](
            dk, dv, *inputs, shift, delta, k_lengths, H_kv, n_q, n_k, n_rows, scale,
            *dk.stride(), *dv.stride(), *strides,
            **meta, BLOCK_M=for_k[0], BLOCK_N=for_k[1],
            num_warps=for_k[2], num_stages=for_k[3],
        )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_backward_check", "locked": true, "points": 12, "schema_version": 3, "solution": false, "task": false}
check("flash.backward", flash_backward)

# %% [markdown]
# <details><summary>Hint 1: in which order to write it</summary>
#
# The rows first: compare `delta` with the sum in PyTorch. Then $dQ$, which is your forward kernel with another body:
# same loop, same ends, no maximum and no sum. Then $dK$ and $dV$ without causal, lengths and groups. Give $dK$ and $dV$
# some values by `zero_()` while you work on $dQ$: the check reports each gradient by itself.
# </details>
# <details><summary>Hint 2: the pass that owns keys</summary>
#
# Write the tile transposed, keys down and queries across: `s = tl.dot(k, tl.trans(q))`. Then `shift` and `delta` stand
# along the columns, $dV$ adds `tl.dot(p, do)` and $dK$ adds `tl.dot(ds, q)`, both without a transposition. When causal,
# the walk *begins* at the block that holds query `first_key - (n_k - n_q)`, and it ends at the last query.
# </details>
# <details><summary>Hint 3: right but for a factor, or for some shapes</summary>
#
# $dQ$ and $dK$ need the scale once, $dV$ not at all; scale the finished sum and not every tile. `scale * log2(e)`
# belongs into the exponent only. Query rows past the end: give them a shift of $+\infty$, so that $p = 0$; a masked
# load of `do` alone is not enough, because $0 \cdot \infty$ is NaN. Shared keys: a loop over the heads of the group
# around the loop over tiles, one accumulator for all.
# </details>
# <details><summary>Hint 4: dO</summary>
#
# It has strides of its own, all four of them, and they are not those of `out` or q.
# </details>

# %% [markdown]
# ## 7. Atomics against a second pass
# **The report says**: "atomics kill performance". It gives no measurement. The CUDA code of FlashAttention-2
# accumulates $dQ$ with atomics and makes 5 products; two passes make 7, which is 40 % more arithmetic. Either can be
# the better bargain, so count what the additions cost.
#
# ### Predict
# 4096 tokens, 4 x 16 heads of size 64, tiles of 64 keys. Every program adds to all rows of $dQ$ in fp32. How many bytes
# are added in all, and how does that compare with the bytes of q, k, v, o and their gradients? Which version wins?

# %%
predicted_winner = {  # replace None: "one pass" or "two passes"
    "wins": None,
    "the other takes, times as long": None,
}
### BEGIN PREDICTION
predicted_winner = {
    "wins": "two passes",
    "the other takes, times as long": 1.4,
    "why": "One pass: 1.0 ms of products on the H200, and 4 GiB of additions, "
    "which take 1.0 ms more at the rate of memory. Two passes: 1.4 ms of products.",
}
### END PREDICTION

# %%
n, d, pairs, tile = 4096, 64, 4 * 16, 64
one_product = 2 * pairs * n * n * d
added = pairs * n * d * 4 * (n // tile)
print(
    f"one pass: 5 products, {1e3 * 5 * one_product / roof.flops_per_s:.2f} ms at the "
    f"sustained rate; {added / 2**30:.1f} GiB added to dQ"
)
print(
    f"two passes: 7 products, {1e3 * 7 * one_product / roof.flops_per_s:.2f} ms, "
    "nothing added"
)
print(
    f"all tensors together: {8 * pairs * n * d * 2 / 2**30:.2f} GiB; dQ in fp32: "
    f"{pairs * n * d * 4 / 2**20:.0f} MiB"
)

# %% [markdown]
# The additions are many times the tensors. They do not go to memory one by one, though: atomics are carried out in the
# L2 cache, and the $dQ$ of the heads at work is small enough to stay there. On a GPU the cell measures one pass with
# atomics, the same kernel without the additions, and your two passes. (One pass is given $\delta$; yours makes it.)


# %%
def backward_times(d, causal):
    """name -> time of the backward pass of 4 x 16 heads of 4096 tokens."""
    q, k, v, do = (normal(4, 16, 4096, d) for _ in range(4))
    out, lse = torch.empty_like(q), normal(4, 16, 4096, dtype=torch.float32)
    flash_forward(q, k, v, out, lse, causal, d**-0.5, None)
    given = (do, q, k, v, out, lse, causal, d**-0.5)
    delta, grads = (
        (out.float() * do.float()).sum(-1),
        [torch.empty_like(q) for _ in range(3)],
    )
    took = {}
    if backward_in_one_pass:
        took["one pass, atomics"] = lambda: backward_in_one_pass(
            *given, "atomic", delta=delta
        )
        took["one pass, dQ left out"] = lambda: backward_in_one_pass(
            *given, "none", delta=delta
        )
    took["two passes, mine"] = lambda: flash_backward(
        q, k, v, out, lse, do, *grads, causal, d**-0.5, None
    )
    words = f"head size {d}{', causal' if causal else ''}"
    return {f"{words}: {name}": timed(fn) for name, fn in took.items()}


backward_ms = {}
for d, causal in ((64, False), (64, True), (128, False), (128, True)) if GPU else ():
    backward_ms |= backward_times(d, causal)
results.beside("lesson04.atomics", backward_ms, unit="ms")

# %% [markdown]
# The course's own two passes against the best of four settings of the one-pass kernel, recorded in turn in one process:

# %%
ratios = [row["one over two"] for row in one_pass if "one over two" in row]
if ratios:
    wins = (
        "two passes"
        if min(ratios) > 1
        else "one pass"
        if max(ratios) < 1
        else "it depends on the case"
    )
    against(
        predicted_winner, {"wins": wins, "the other takes, times as long": max(ratios)}
    )
for row in one_pass:
    if "one over two" in row:
        print(
            f"{row['name']:30} one pass {row['one pass us']:6.0f} us, "
            f"without dQ {row['without dq us']:6.0f} us, two passes "
            f"{row['two passes us']:6.0f} us: one over two {row['one over two']:.2f}"
        )

# %% [markdown]
# **The prediction, counted.** Each of a head's 64 programs adds to all of its $dQ$: 64 times 64 MiB, 4 GiB in all; q,
# k, v, o and their gradients in bf16 are 8 times 32 MiB, a sixteenth of that. On the recorded H200 two passes win, and
# one pass takes 1.44 to 1.75 times as long.
#
# Compare "without dQ" with "one pass": the difference is what the additions and the product before them cost. Compare
# "one pass" with "two passes": in the rows of both tables two passes win, and one pass takes 1.3 to 1.75 times as long.
# Here the deterministic version is faster.
#
# **How far does that reach?** It is true of *this* one-pass kernel, which is a plain one. It adds every element by
# itself (`tl.atomic_add` over a block of addresses), masks every tile, and keeps blocks of 64-bit addresses in
# registers; at head size 128 it spills. Where even "without dQ" takes longer than two passes (head size 64, causal),
# the additions are not the whole reason.
#
# One-pass kernels that are built well do not lose like that. The course tried one in which the TMA (a unit of Hopper
# GPUs, such as the H100 and H200, that copies whole tiles) does the adding: 1.12 to 1.13 times the time of two passes.
# Written in Gluon, the language below Triton's, with jobs for the warps (both in section 10), an early one took 0.86 to
# 0.93 of two passes' time on an H100 at 4096 keys; today's takes 0.76 to 0.82 on an H200 at 4096. Its additions can even
# come in a fixed order, so that the result is the same every time (section 10 again): then it takes 0.76 to 0.83, and
# that is what the library's `attention` runs for long calls on such a GPU. (These ratios are of head sizes 64 and 128.)
# The backward passes of cuDNN, NVIDIA's library, and of FlashAttention-4 *are* one pass that adds to $dQ$.
# (`benchmarks/notes/attention.md` has all of them, and how we know it of cuDNN.) So one addition an element in a plain
# Triton kernel loses, and atomics as such need not. No table shows what a result that is the same every time is worth
# when you look for a mistake.

# %% [markdown]
# ## 8. What fits on a multiprocessor
# Larger tiles move fewer bytes for each FLOP and need more registers and shared memory, so fewer
# programs fit beside each other. Three budgets of a multiprocessor decide, on an H100 or H200:
#
# - **registers**: 65536 of 4 bytes. A program takes registers a thread x 32 x warps. At most 255 a thread; what does
#   not fit is **spilled**, stored to memory and read back;
# - **shared memory**: 228 KiB. Tiles of K and V wait there, `num_stages` of them at once: while one is multiplied the
#   next ones are on their way;
# - **warps**: 64.
#
# Why more than one program? In the loop the tensor cores work while the scores are made, and rest while the
# exponentials are. (The unit that makes exponentials is a ceiling of its own: section 10 counts it.) A second program
# fills the pause. (The share of the possible warps that are resident is called **occupancy**.) `num_warps` divides the
# same tile among more threads: fewer registers each.
#
# All this can be read **without a GPU**. `compiled` compiles a kernel of yours for an H200, the forward kernel if you
# name no other; `CARD` may be your card, "T4" or "RTX 4090". It tells types by the names of the arguments, those of the
# kernel cells above.

# %%
import inspect

from course_lib.compiled import compile_kernel

CARD = "H200"


def type_of(name):
    """The type of an argument of the kernels of this lesson, by its name."""
    if name.endswith("_ptr"):
        return "*fp32" if name[:-4] in ("lse", "shift", "delta") else "*bf16"
    return "fp32" if name == "scale" else "i32"


def compiled(head_size, tiles, causal=True, kernel=_forward_kernel):
    """The report on a kernel in bf16; tiles are queries, keys, warps and stages."""
    block_m, block_n, warps, stages = tiles
    names = list(inspect.signature(kernel.fn).parameters)
    fixed = {"lengths_ptr": None, "GROUP": 1, "D": head_size, "CAUSAL": causal}
    fixed |= {
        "BLOCK_D": triton.next_power_of_2(head_size),
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
    }
    fixed = {name: value for name, value in fixed.items() if name in names}
    fixed |= {
        name: 1 for name in names if name.startswith("stride_") and name.endswith("_d")
    }
    types = {name: type_of(name) for name in names if name not in fixed}
    return compile_kernel(
        kernel, types, fixed, CARD, num_warps=warps, num_stages=stages
    )


# %%
compiled(64, (64, 64, 4, 2))

# %% [markdown]
# ### Predict
# Head size 128, tiles of 128 x 64. With 4 warps, how many fp32 numbers of the accumulator does each of the 128 threads
# hold, and of the scores? What is left of 255 registers? Then say which of the eight settings below spill, and which
# budget runs out first for each.

# %%
predicted_spills = {"spill": None}  # replace None: the names of the settings that spill
### BEGIN PREDICTION
predicted_spills = {
    "spill": "128: 128 x 64, 4 warps, 2 stages",
    "why": "128 numbers of the accumulator and 64 of the scores are 192 a thread, "
    "and addresses, maxima and operands need more than 63. With 8 warps it is half; "
    "the others hold half as much.",
}
### END PREDICTION

# %%
settings = {
    "64: 64 x 64, 4 warps, 2 stages": (64, (64, 64, 4, 2)),
    "64: 64 x 64, 4 warps, 3 stages": (64, (64, 64, 4, 3)),
    "64: 64 x 64, 4 warps, 4 stages": (64, (64, 64, 4, 4)),
    "64: 128 x 64, 4 warps, 3 stages": (64, (128, 64, 4, 3)),
    "128: 64 x 64, 4 warps, 3 stages": (128, (64, 64, 4, 3)),
    "128: 128 x 64, 4 warps, 2 stages": (128, (128, 64, 4, 2)),
    "128: 128 x 64, 8 warps, 2 stages": (128, (128, 64, 8, 2)),
    "128: 128 x 128, 8 warps, 2 stages": (128, (128, 128, 8, 2)),
}
made = {name: compiled(*setting) for name, setting in settings.items()}
against(
    predicted_spills,
    {"spill": "; ".join(name for name, one in made.items() if one.spills_bytes)},
)
axes = plots.programs_that_fit(made)
plots.show(
    axes,
    alt="For eight settings of the forward kernel: the share of registers, "
    "shared memory and warps of a multiprocessor that each resident program takes, "
    "how many fit, and which spill",
)

# %% [markdown]
# **The prediction, counted.** The accumulator has 128 x 128 numbers, 128 for each of 128 threads, and the scores 128 x
# 64, 64 for each. Of 255 registers 63 are left for all else, and of the eight settings it is this one that spills,
# compiled for an H200.
#
# Read a row as a shelf: each colour is one budget, each piece one program. Where the pieces of one colour reach the end
# first, that budget is what limits. A stage more costs shared memory, and at some number of stages a program less fits.
# (One *more* may fit before that, where the compiler gets by with fewer registers in its new loop.) Half the warps need
# nearly twice the registers a thread, up to the point where the kernel spills. Does *every* setting of yours spill?
# Then it is not the settings: the next cells show a likely cause. Mend the kernel, and run this cell again.
#
# ### A wrong turn that only the compiler sees
# Two ways to say where the next tile of K is. Both are right. The first keeps a *block of addresses*, 64 bits for each
# element, and moves it on. The second keeps *one* address, where the tile starts, and a block of 32-bit offsets that
# never changes. The kernel below walks as yours does, in two loops, and does less with each tile.


# %%
@triton.jit
def _walk_kernel(
    out_ptr, q_ptr, k_ptr, v_ptr, n, stride,
    ONE: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    rows, columns = tl.arange(0, N), tl.arange(0, D)
    k_tile, v_tile = (
        columns[:, None] + rows[None, :] * stride,
        rows[:, None] * stride + columns[None, :],
    )
    if not ONE:
        k_tile, v_tile = k_ptr + k_tile, v_ptr + v_tile
    q = tl.load(q_ptr + rows[:, None] * D + columns[None, :])
    acc = tl.zeros((N, D), tl.float32)
    for EDGE in tl.static_range(2):
        for start in tl.range(
            n // N * N if EDGE else 0, n if EDGE else n // N * N, N,
            num_stages=1 if EDGE else None,
        ):  # fmt: skip
            mask = start + rows < n
            k = tl.load(
                k_ptr + k_tile if ONE else k_tile, mask=mask[None, :], other=0.0
            )
            v = tl.load(
                v_ptr + v_tile if ONE else v_tile, mask=mask[:, None], other=0.0
            )
            acc = tl.dot(tl.exp2(tl.dot(q, k)).to(v.dtype), v, acc)
            if ONE:
                k_ptr += N * stride
                v_ptr += N * stride
            else:
                k_tile += N * stride
                v_tile += N * stride
    tl.store(out_ptr + rows[:, None] * D + columns[None, :], acc)


# %%
types = (
    {"out_ptr": "*fp32"}
    | dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16")
    | {"n": "i32", "stride": "i32"}
)
for d in (64, 128):
    for words, one in (("a block of addresses", False), ("one address", True)):
        report = compile_kernel(
            _walk_kernel, types, {"ONE": one, "N": 64, "D": d},
            num_warps=4, num_stages=2,
        )  # fmt: skip
        print(
            f"head size {d:3}, {words:20}: {report.registers} registers, "
            f"{report.spills_bytes} bytes spilled"
        )

# %% [markdown]
# Same arithmetic, same loads, other registers: the addresses have to live from the first loop to the second, beside the
# accumulator. At head size 64 that just fits or just does not, depending on the version of Triton; at 128 it is far too
# much. If `compiled` shows more registers than you expect, look for blocks of addresses that change in a loop.
#
# ### Try: a kernel with two accumulators
# The pass for $dK$ and $dV$ keeps two accumulators, and two tiles of scores come and go in each turn. At head size 128
# that is the hardest kernel of this lesson to fit. The cell needs exercise 4.4. Compile it with the tiles below, then
# change the list until you have found a setting that does not spill and of which two programs fit on a multiprocessor.
# (Look at both budgets: registers a thread times threads, and shared memory. `plots.programs_that_fit(made)` draws them
# as above.) Without a GPU this is how you choose tiles for exercise 4.5. (A setting that spills can still be the fastest
# one: what counts is where the spills stand, inside the loop or before it.)

# %%
# queries, keys, warps, stages
tries = [(64, 64, 4, 2), (64, 128, 8, 2), (32, 128, 8, 2), (64, 64, 8, 2)]
made = {f"{tiles}": compiled(128, tiles, kernel=_dkdv_kernel) for tiles in tries}
Table(
    (
        "queries, keys, warps, stages",
        "registers a thread",
        "spilled bytes",
        "shared memory, KiB",
    ),
    [
        (name[1:-1], one.registers, one.spills_bytes, one.shared_bytes // 1024)
        for name, one in made.items()
    ],
)

# %% [markdown]
# ### Letting Triton search
# `@triton.autotune(configs, key)` above `@triton.jit` takes a list of settings, each a `triton.Config` of tiles, warps
# and stages, times them and keeps the fastest. It searches anew for each combination of the *values* of the arguments
# that `key` names and of the dtypes of all tensors; strides, and whatever is not named, it does not look at. Name what
# changes the winner, such as the head size and causal or not, and no length that differs in every call.
#
# A search runs the kernel **many times on the tensors of your call**, every setting for about a tenth of a second. A
# kernel that only writes its outputs does not mind. One that adds to a tensor must name it in `reset_to_zero`, one that
# works in place in `restore_value`; otherwise the traces of all those runs stay in your result. (The course's
# interpreter has no times to compare: each setting runs once and the first is kept.) Later calls pay too, since the key
# is made in Python before every launch. And the winner can change from one process to the next, and with it the last
# bits. So search with it and write down what won, as the course does in `course_lib/kernels/attention/tuning.py`.
#
# A right kernel can also come out of the compiler broken. Where tiles have 32 columns, keys lie by columns and values by
# rows (`k.stride(2)` and `v.stride(3)` are 1), the assembler of Triton 3.6 and 3.7 can lose the address of a tile of
# $V$: on an H200 such a forward kernel of ours ended with `illegal memory access`, and nothing in its source is wrong
# ([triton#11366](https://github.com/triton-lang/triton/issues/11366)). The machine code shows it without a GPU, and
# `compiled` warns that the assembler lost a value. No case of the exercise has this layout. The way out is the newer
# assembler that Triton brings for Blackwell, `backends/nvidia/bin/ptxas-blackwell` in its folder, if
# `TRITON_PTXAS_PATH` names it (read in its machine code, not yet run on a GPU); or keys that lie by rows.
#
# ## Exercise 4.5 `flash.speed` (90 min, 4 points and 10 for speed)
# Write `attention_step(q, k, v, dout, out, lse, dq, dk, dv, causal, scale)`: forward and backward of one training step.
#
# - fills `out` and `lse`, then `dq`, `dk` and `dv`; as many heads of keys as of queries, all keys valid; otherwise as
#   in exercises 4.3 and 4.4, any strides, lengths and head sizes from 16 to 128
# - you may change your kernels of exercises 4.3 and 4.4, or write others
# - without a GPU nothing can be timed: choose tiles by what `compiled` says, for each of the three kernels and both head
#   sizes, in about 30 minutes; the points for speed wait for a GPU
#
# Timed in bf16 with 4 x 16 heads of 4096 tokens: head size 64, and head size 128 causal. The floor counts 2 products
# forward and 5 backward, half of them when causal, at the rate that your device sustains; two passes make 7 backward,
# so no such kernel reaches it. Full points at 85 % of the floor's speed, or of our own kernel's where that is less.


# %% nbgrader={"grade": false, "grade_id": "flash_speed", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attention_step(q, k, v, dout, out, lse, dq, dk, dv, causal, scale):
    """Forward, then backward, with the tiles that suit the head size."""
    ### BEGIN SOLUTION
    forward, for_q, for_k = None, None, None
    # queries and keys a tile, warps, stages: what fits, near the blocks of the course's
    # own kernels
    if q.is_cuda:
        if q.shape[-1] <= 64:
            forward, for_q, for_k = (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 3)
        else:
            forward = (64, 64, 4, 3) if causal else (128, 64, 8, 3)
            for_q, for_k = (128, 64, 8, 3), (64, 128, 8, 2)
    flash_forward(q, k, v, out, lse, causal, scale, None, tiles=forward)
    flash_backward(
        q, k, v, out, lse, dout, dq, dk, dv, causal, scale, None, tiles=(for_q, for_k)
    )
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "flash_speed_check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("flash.speed", attention_step)

# %% nbgrader={"grade": true, "grade_id": "flash_speed_speed", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false}
check_speed("flash.speed", attention_step)

# %% [markdown]
# <details><summary>Hint 1: where to look first</summary>
#
# Time the three parts by themselves: forward, the pass for dq, the pass for dk and dv. Divide each by its products (2,
# 3 and 4) and compare the rates. Begin with the slowest.
# </details>
# <details><summary>Hint 2: in this order</summary>
#
# No spills. (`compiled(128, tiles, kernel=_dkdv_kernel)` shows the pass for dk and dv: at head size 128 look at it first,
# because it has two accumulators.) No mask
# in the loop over whole tiles. When causal, no tile that nobody sees, and the longest programs first. `exp2` and a
# scale that was multiplied once. One address and an offset, not a block of addresses. Of two loops that share an
# accumulator only one should have several stages: `tl.range(..., num_stages=1)` for the edge. (Where the TMA loads,
# through tensor descriptors, both may have them. Head size 64, causal, is then 2 % faster for the course's kernel: it
# begins with the edge, and walks it in blocks of 64 keys, where it takes 128 elsewhere.)
# </details>
# <details><summary>Hint 3: settings to try</summary>
#
# Head size 64: 64 or 128 queries, 64 keys and 4 warps, so that several programs fit. Head size 128: 64 queries with 4
# warps or 128 with 8 forward, 128 with 8 for dq; for dk and dv, whose two accumulators need the registers, 32 or 64
# queries and 128 keys with 8 warps. Then 2 or 3 stages, measured. `triton.autotune` tries a list of settings for you,
# at the price of compiling them all.
# </details>

# %% [markdown]
# ### Measure
# What do the settings of section 8 do on the real device? Write down which one wins for each head size, then look.

# %%
predicted_fastest = {  # replace None: names of settings
    "head size 64": None,
    "head size 128": None,
}
### BEGIN PREDICTION
predicted_fastest = {
    "head size 64": "64: 64 x 64, 4 warps, 3 stages",
    "head size 128": "128: 128 x 64, 8 warps, 2 stages",
    "why": "At 64 several programs fit and fill each other's pauses. "
    "At 128 larger blocks of queries read K and V half as often, and with 8 warps "
    "they do not spill.",
}
### END PREDICTION


# %%
def forward_rate(d, tiles):
    """TFLOP/s of my forward kernel with these tiles: causal, 4 x 16 heads of 4096 tokens."""
    q, k, v = (normal(4, 16, 4096, d) for _ in range(3))
    out, lse = torch.empty_like(q), normal(4, 16, 4096, dtype=torch.float32)
    took = timed(
        lambda: flash_forward(q, k, v, out, lse, True, d**-0.5, None, tiles=tiles)
    )
    return 2 * 64 * 4096**2 * d / took.median_s / 1e12


rates = (
    {name: forward_rate(*setting) for name, setting in settings.items()} if GPU else {}
)
there = rates or {row["name"]: row["value"] for row in recorded("lesson04.settings")}
if there:
    sizes = {
        f"head size {d}": [name for name in there if name.startswith(f"{d}:")]
        for d in (64, 128)
    }
    against(
        predicted_fastest,
        {words: max(names, key=there.get) for words, names in sizes.items()},
    )
results.beside("lesson04.settings", rates, unit="TFLOP/s")

# %% [markdown]
# **The prediction, counted.** On the recorded H200 64 x 64 blocks with 4 warps and 3 stages are fastest at both head
# sizes, with 373 and 422 TFLOP/s.

# %% [markdown]
# ## 9. Compile, SDPA, and a factor of 34
# ### Case file
# **The report says** (a deep-learning-systems lab): replacing naive attention by `scaled_dot_product_attention` takes a
# CPU from 2.384 s to 70.7 ms, a factor of 34, and a GPU from 6.486 to 2.207 ms, a factor of 3. The gain on the GPU is
# put down to fewer launches.
#
# A factor of 34 deserves suspicion: the arithmetic is the same on both sides. The report's profile has a detail that
# nobody followed: 15360 calls of `select` in 20 batched products (`bmm`) in fp16.
#
# ### Predict
# Naive attention on a CPU, 64 heads of 128 tokens. How many times faster is SDPA in fp32? And in fp16, where PyTorch
# may not use oneDNN? (oneDNN is the library with which PyTorch multiplies on a CPU, if the processor can do the type.)

# %%
predicted_gain = {  # replace None
    "float32, with oneDNN": None,
    "float16, without oneDNN": None,
}
### BEGIN PREDICTION
predicted_gain = {
    "float32, with oneDNN": 2,
    "float16, without oneDNN": 34,
    "why": "In fp32 both sides make the same products, and the scores of 4 MiB stay in "
    "a cache. In fp16 the report's factor is all there is to go by.",
}
### END PREDICTION

# %% [markdown]
# The cell runs naive attention and SDPA on the CPU, on every machine, with and without oneDNN, because not every
# processor has fp16 instructions.

# %%
from course_lib import profiling


def on_cpu(dtype, with_onednn):
    """ms of naive attention, ms of SDPA, `select` calls in one naive call:
    8 x 8 heads of 128 tokens, size 64."""
    q, k, v = (torch.randn(8, 8, 128, 64).to(dtype) for _ in range(3))
    before = torch.backends.mkldnn.set_flags(_enabled=with_onednn)[0]
    took = []
    for fn in (naive, sdpa):
        fn(q, k, v)
        runs = []
        for _ in range(7):
            begin = time.perf_counter()
            fn(q, k, v)
            runs.append(time.perf_counter() - begin)
        took.append(1e3 * sorted(runs)[3])
    seen = profiling.record(lambda: naive(q, k, v), warmup=0)
    torch.backends.mkldnn.set_flags(_enabled=before)
    return *took, sum(op.name == "aten::select" for op in seen.operators)


# %%
gains = {}
for dtype in (torch.float32, torch.float16):
    for with_onednn in (True, False):
        name = f"{str(dtype)[6:]}, {'with' if with_onednn else 'without'} oneDNN"
        naive_ms, sdpa_ms, selects = on_cpu(dtype, with_onednn)
        gains[name] = naive_ms / sdpa_ms
        print(
            f"{name:23} naive {naive_ms:6.1f} ms, SDPA {sdpa_ms:5.1f} ms, "
            f"{gains[name]:4.1f} times; {selects} selects"
        )
against(predicted_gain, gains)

# %% [markdown]
# **The prediction, counted.** In fp32 SDPA is 1.4 times as fast. In fp16 without oneDNN 77.4 ms against 6.0 are a
# factor of 12.9, on the processor of the executed lesson.
#
# Look at the row without oneDNN in fp16. Without a library product for fp16, `bmm` falls back to a loop over the
# matrices: three calls of `select` for each, one for every operand and one for the result, and a slow product inside. 2
# products of 64 heads with 3 calls are 384; the report's 15360 are 20 products of 256 with 3. Its factor of 34 compares
# a fallback with a kernel; how large such a factor comes out depends on the processor. In fp32, where both sides use
# proper products, the gain of fusion on a CPU is what the table shows.
#
# And on the GPU? Two products and a softmax are a handful of launches, tens of microseconds; the report's difference is
# 4 *milliseconds*. What naive attention adds is bytes: section 1 counted six crossings. Launches explain it only for
# tiny shapes.
#
# ### Everything together
# `torch.compile` fuses scale, mask and softmax into one kernel and so saves crossings of the scores. It does not merge
# the two products with the softmax, because that needs the algebra of section 2, which no fusion rule finds by itself.
# (Its *FlexAttention* is a template: a kernel like yours, into which the compiler writes your mask.)
#
# And yet *compiled* lay on SDPA in section 1. Besides its rules the compiler has a list of formulas that it knows by
# their look. Plain attention is on the list, and SDPA is put in its place. The cell asks which operators a compiled
# `naive` calls, without and with its causal mask (on a CPU it needs a C++ compiler, as lesson 02 did).


# %%
def operators_of(causal):
    """What compiled naive attention calls for its products: the operators whose names tell of one."""
    q, k, v = (normal(1, 2, 64, 32) for _ in range(3))
    compiled_naive = torch.compile(naive)
    compiled_naive(q, k, v, causal)  # compiles
    seen = profiling.record(lambda: compiled_naive(q, k, v, causal), warmup=0)
    return sorted(
        {op.name for op in seen.operators if "bmm" in op.name or "attention" in op.name}
    )


for causal in (False, True):
    print(f"causal {causal}: {', '.join(operators_of(causal))}")

# %% [markdown]
# Formulas with a mask are on the list too, but not this one: the same mathematics, written otherwise, is missed, and
# no message says so. The report's compiled forward pass fell by a third only, so its formula was hardly on the list
# either. Look at what runs before you explain a speed-up.
#
# ### Predict
# Causal attention of 4 x 16 heads of 4096 tokens, head size 64, forward. The naive version crosses the scores ten
# times: six as in section 1, and four for the mask, which is copied first and then filled. How many crossings must the
# compiled version keep, and what does that make its time, in units of the naive one?

# %%
predicted_share = {"compiled / naive": None}  # replace None
### BEGIN PREDICTION
predicted_share = {
    "compiled / naive": 0.4,
    "why": "4 of 10 crossings stay: S is written and read, P is written and read. "
    "Bytes set both times.",
}
### END PREDICTION


# %%
def together(batch, n=4096, d=64):
    """name -> time forward, and name -> MiB at the peak of forward and backward;
    causal, batch x 16 heads."""
    q, k, v = (normal(batch, 16, n, d).requires_grad_() for _ in range(3))
    do, out, lse = (
        normal(batch, 16, n, d),
        torch.empty_like(q),
        normal(batch, 16, n, dtype=torch.float32),
    )
    compiled_naive = torch.compile(naive)
    versions = {
        "naive": lambda: naive(q, k, v, True),
        "naive, compiled": lambda: compiled_naive(q, k, v, True),
        "SDPA": lambda: sdpa(q, k, v, is_causal=True),
    }
    peaks = {
        name: memory.peak(lambda fn=fn: torch.autograd.grad(fn(), (q, k, v), do))
        / 2**20
        for name, fn in versions.items()
    }
    with torch.no_grad():
        took = {name: timed(fn) for name, fn in versions.items()}
        took["mine"] = timed(
            lambda: flash_forward(q, k, v, out, lse, True, d**-0.5, None)
        )
    return took, peaks


# %%
batch = max(1, round(4 * share_of_sizes()))  # the recorded 4 take 8 GiB
took, peaks = together(batch) if GPU else ({}, {})
there = {name: one.ms for name, one in took.items()}
there = there or {row["name"]: row["value"] for row in recorded("lesson04.together")}
if there:
    against(
        predicted_share, {"compiled / naive": there["naive, compiled"] / there["naive"]}
    )
results.beside("lesson04.together", took, unit="ms")

# %%
results.beside("lesson04.together_memory", peaks, unit="MiB")

# %% [markdown]
# **The prediction, counted.** Four crossings have to stay: the first product writes S, one kernel reads it and writes
# P, the second product reads P. So the compiled version cannot be faster than 0.4 of the naive time where bytes set it,
# and its memory is still quadratic. On the recorded H200 it takes more than that, and both take two to three times what
# their crossings cost at the copy rate. The softmax is a part of it: at rows of 4096 in bf16 PyTorch's takes 3.3 and
# the compiler's 2.5 times its two crossings (recorded with lesson 01's softmax). That makes 2.3 of the 5.1 ms that the
# naive version takes beyond its crossings, and 1.5 of 3.9 ms of the compiled one; for the rest there is no measurement
# here. SDPA and your kernel avoid both costs.
#
# Last, the peers. The course measures its own kernels against every backend of SDPA (`flash` is the CUDA code of
# FlashAttention-2, `cudnn` is NVIDIA's, `efficient` is xFormers'), against FlexAttention, against naive attention and
# against FlashAttention-4 (`flash 4`), which is installed apart: all in one process and in turn. FlashAttention-3, the
# CUDA code for Hopper, was not run here; its paper gives 638 TFLOP/s for 4096 tokens and 648 for 16384, forward, head
# size 128, fp16, on an H100 with 80 GB. In the figure a point is one kernel in one case, named by batch x heads x
# tokens x head size. "Ours" is plain Triton in some rows and Gluon in others: section 10 says which, and what makes
# such kernels fast. In rows "in any order" ours adds to $dQ$ as its programs come, `deterministic=False`; the default is
# the same bits in every run. `flash 4 in order` is FlashAttention-4 with its `deterministic=True`. (All of these are
# products at the limit of power, timed in turn on one chip, where one pays for the heat of the other. So ours and the
# best peer were also timed each alone, for a second; the figure has the times in turn. Lesson 05, section 5, has a
# product for which the two ways differ.)

# %%
rates = {}
for row in recorded("attention"):
    work = row["TFLOP/s"] * row["value"]  # the work of the case, in a unit of its own
    times = {
        name: us
        for name, us in row.items()
        if name.endswith(" us")
        and us
        and "alone" not in name
        and name != "in order us"  # ours, of the row above
    }
    peers = {name.removesuffix(" us"): work / us for name, us in times.items()}
    rates[row["name"].removeprefix("attention ")] = {"ours": row["TFLOP/s"]} | peers
kernels = list(dict.fromkeys(name for by_name in rates.values() for name in by_name))
Table(
    ("TFLOP/s", *kernels),
    [
        (
            case.replace("bf16 ", ""),
            *(f"{by_name[name]:.0f}" if name in by_name else "-" for name in kernels),
        )
        for case, by_name in rates.items()
    ],
)


# %%
@drawn
def draw_rates(rates, kernels, device):
    """One line a case, one marker a kernel, at its TFLOP/s."""
    figure, ax = plots.figure(7.8, 1.5 + 0.36 * len(rates))
    figure.suptitle(
        "Attention on an H200: ours and its peers", x=0.01, ha="left", weight="bold"
    )
    for i, kernel in enumerate(kernels):
        places = [
            (by_name[kernel], y)
            for y, by_name in enumerate(rates.values())
            if kernel in by_name
        ]
        ax.plot(
            *zip(*places), plots.MARKERS[i],
            color=plots.PALETTE[i], label=kernel, markersize=7, zorder=3 - i / 10,
        )  # fmt: skip
    ax.set_yticks(range(len(rates)), list(rates))
    ax.set(
        xlabel=f"TFLOP/s ({device})",
        ylim=(len(rates) - 0.5, -0.5),
        xlim=(0, 1.05 * ax.get_xlim()[1]),
    )
    ax.grid(True)
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


# %%
if rates:
    plots.show(
        draw_rates(rates, kernels, "recorded H200"),
        alt="TFLOP/s of our attention and of its peers in every recorded case",
    )

# %% [markdown]
# What follows is of the record of 2026-11-30. A row "in any order" is ours with `deterministic=False`, where that is
# another kernel. Of head sizes 64 and 128 **FlashAttention-4 is the best peer, forward and backward, in all cases**,
# backward the faster of its two ways. Our time over its, 16 heads and a batch of 4:
#
# | tokens, head size | forward in turn | alone | backward in turn | alone | both in order | both in any order |
# |---|---|---|---|---|---|---|
# | 4096, 64 | 1.02 | 0.99 | 1.01 | 0.99 | 1.01 | 0.98 |
# | 4096, 64, causal | 1.02 | 1.00 | 1.02 | 1.11 | 0.95 | 1.00 |
# | 4096, 128 | 1.00 | 0.99 | 1.03 | 1.02 | 0.99 | 1.03 |
# | 4096, 128, causal | 0.97 | 0.98 | 1.04 | 1.05 | 0.96 | 1.04 |
# | 16384, 128 | 1.02 | 1.00 | 1.06 | 1.10 | 1.05 | 1.06 |
#
# So forward ours takes 3 % less to 2 % more in turn and 2 % less or as much alone, and backward 1 to 6 % more in turn
# and 1 % less to 11 % more alone. Backward the two do not do the same by default: ours gives the same bits in every
# run, and FlashAttention-4 adds to $dQ$ in whatever order its programs come. With `deterministic=True` it keeps an
# order too; beside that ours takes 5 % less to 5 % more, and where both may add in any order 2 % less to 6 % more. The
# same bits cost ours 2 to 3 % at head size 64 and, with so many heads, nothing at 128, where any order is slower; and
# FlashAttention-4 up to 8 %. At 256 tokens, head size 72, it has no time: its $dQ$ was wrong there, with an error as
# large as $dQ$ itself, and what is wrong is not timed. At 4096 tokens and 72 it was right, and ours takes 1.02 of its
# time forward and 0.99 backward, in turn (`python -m benchmarks beside_attention`).
#
# **cuDNN** was timed in turn with ours too, at another moment. By these times backward ours takes 0.85 and, causal,
# 0.81 of its time at 64, and 0.89 to 0.93 at 128; in any order 0.83 and 0.79 at 64. Forward at 64 and 128 ours takes
# 0.86 to 0.93 of its time. At 256 tokens, head size 72, cuDNN is the best peer: there ours takes 0.85 of its time
# forward and 0.69 backward, alone 0.81 and 0.75.
#
# FlexAttention takes 1.3 to 1.7 times the time of ours and is the fastest of the rest, after FlashAttention-4 and
# cuDNN, in all cases but one (forward at head size 72, where `flash` is). Eager takes 4 to 32 times as long forward. It
# is missing at 16384 tokens, where its scores take 32 GiB. And its errors are about 2 to 3 times ours: it rounds the
# scores to bf16, and then it scales them. Scaling by a power of two, as at head size 64, is exact; other scales round
# again. The others keep the scores in fp32. Section 10 has the ratios of every case.

# %% [markdown]
# ## 10. What makes the fastest kernels fast
# Your kernel says what has to be computed, and Triton's compiler decides what overlaps. FlashAttention-3, cuDNN and the
# course's faster kernel decide that themselves. (The course has two rungs: plain Triton, which takes any shape, and this
# one, which runs where it was measured to be faster.) This section reads how, in generated code and on any machine. One
# cell needs exercise 4.3. Eight ideas: the two ceilings beside the tensor cores; the **TMA**, which fetches tiles; jobs
# for the warps (**warp specialisation**); turns at the tensor cores (**ping-pong**); sums that are seldom scaled; an
# order of the tiles; a fixed order of sums; and what goes through shared memory.
#
# ### Two more ceilings
# **Bytes from the L2 cache.** Section 1 counted K and V once. A kernel reads them again for every block of queries, so
# $n$ / `BLOCK_M` times. With one key a block makes $4 \cdot$ `BLOCK_M` $\cdot d$ FLOP, and it reads $2d$ numbers in bf16
# for it: `BLOCK_M` **FLOP a byte**, whatever the head size. Memory need not carry these reads, because the L2
# cache serves programs that work on one head at the same time. The cache has a ceiling of its own, and only more queries
# a block take a kernel away from it.
#
# This is the theorem in FlashAttention's paper, one level down. With room for $M$ numbers a program holds about $M / d$
# queries, so K and V are read about $n d / M$ times, and $n^2 d^2 / M$ numbers move. The paper also proves the other
# direction: no algorithm for exact attention moves fewer, up to a constant factor, for all $M$ from $d$ to $n d$.
#
# **Exponentials.** There are $n^2$ of them beside $4 n^2 d$ FLOP: $4d$ FLOP for each. A unit of its own makes them. In
# one clock a multiprocessor of an H100 or H200 makes 16 exponentials and 4096 FLOP of products in bf16.
#
# ### Predict
# A program makes a product, then the exponentials of its scores, and nothing overlaps. Which share of the time are the
# tensor cores busy, at head size 64 and at 128?

# %%
predicted_busy = {  # replace None: from 0 to 1
    "head size 64": None,
    "head size 128": None,
}
### BEGIN PREDICTION
predicted_busy = {
    "head size 64": 0.5,
    "head size 128": 0.67,
    "why": "256 FLOP take as long as one exponential: 4096 a clock against 16. "
    "Head size 64 has 4 * 64 = 256 FLOP for each exponential, so both take half; "
    "128 has twice as many.",
}
### END PREDICTION

# %%
PRODUCTS, EXPONENTIALS = 4096, 16  # FLOP in bf16, and exponentials, in one clock
busy = {}
for d in (32, 64, 128):
    products, exponentials = 4 * 64 * 64 * d / PRODUCTS, 64 * 64 / EXPONENTIALS
    busy[f"head size {d}"] = products / (products + exponentials)
    print(f"head size {d:3}, 64 x 64 scores: products {products:.0f} clocks, "
          f"exponentials {exponentials:.0f}, {4 * d} FLOP an exponential")  # fmt: skip
against(predicted_busy, busy)
mine = {row["name"]: row["value"] for row in results.load("lesson04.forward")["rows"]}
mine = mine["length 4096, head size 64, mine"]
for block in (64, 128, 192):
    # of one key: FLOP over the bytes of its rows in K and V
    a_byte = 4 * block * d / (2 * d * 2)
    print(
        f"{block:3} queries a block: {a_byte:.0f} FLOP a byte from L2; "
        f"the sustained rate needs {roof.flops_per_s / a_byte / 1e12:.1f} TB/s"
    )
print(
    f"exercise 4.3 as recorded, 64 queries a block: {mine:.0f} TFLOP/s, "
    f"so {mine / 64:.1f} TB/s came from L2; memory copies {copy_rate / 1e12:.1f} TB/s"
)

# %% [markdown]
# **The prediction, counted.** One after the other, the tensor cores are busy 50 % of the time at head size 64. At 128
# it is 67 %. Overlap hides one behind the other, and at head size 64 even perfect overlap leaves the exponentials a
# ceiling as near as the products. That is one reason why every fused kernel of the figure in section 9 is slower at 64.
# (Eager is slower there too, for its bytes. FlashAttention-4 makes a part of the exponentials by a polynomial, on the
# units for ordinary arithmetic.)
#
# ### The TMA: one thread asks for a tile
# In your kernel every thread makes addresses and asks for its own part of a tile (`cp.async`). A Hopper GPU has a unit
# for that, the **Tensor Memory Accelerator**. The host, or the kernel at its beginning, writes a **descriptor**: the
# tensor's address, shape and strides, and the shape of a tile. After that *one thread* names the coordinates of a tile.
# The unit makes all addresses, gives zeros for what lies outside of the tensor, and lays the tile into shared memory as
# the tensor cores read it. When the bytes are there, it says so at an **mbarrier**: a word in shared memory that knows
# how many bytes are still expected and at which the others wait. No block of registers holds addresses, and no thread
# waits for its own loads.
#
# Triton's own language reaches the unit through tensor descriptors (`tl.make_tensor_descriptor`). **Gluon** is the
# language below it: Triton's compiler, but you say which warps do what, where a tile lies and who waits for whom. Here
# is a kernel in Gluon with two jobs. One warp fetches tiles, up to two ahead; four warps add them up. A place in shared
# memory has two barriers. The fetching warp waits at `empty` until its place may be overwritten, the adding warps wait
# at `full` until its bytes have arrived. (A barrier counts its rounds by one bit, the *parity*, which is what `& 1`
# makes.)

# %%
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

ROWS = gl.constexpr(64)  # rows of a tile, and its columns
# its name changed
sync = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier


# %%
@gluon.jit
def _fetch(x_desc, tiles, full, empty, count):
    for i in range(count):
        mbarrier.wait(empty.index(i % 2), ((i // 2) & 1) ^ 1)
        mbarrier.expect(full.index(i % 2), 2 * ROWS * ROWS)  # bytes
        tma.async_copy_global_to_shared(
            x_desc, [i * ROWS, 0], full.index(i % 2), tiles.index(i % 2)
        )


@gluon.jit
def _store_sum(out_ptr, total):
    rows = gl.arange(0, ROWS, gl.SliceLayout(1, total.type.layout))
    columns = gl.arange(0, ROWS, gl.SliceLayout(0, total.type.layout))
    gl.store(out_ptr + rows[:, None] * ROWS + columns[None, :], total)


@gluon.jit
def _add_up(out_ptr, tiles, full, empty, count):
    # who of the four warps holds what of a tile
    WHO: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    total = gl.zeros([ROWS, ROWS], gl.float32, WHO)
    for i in range(count):
        mbarrier.wait(full.index(i % 2), (i // 2) & 1)
        total += tiles.index(i % 2).load(WHO).to(gl.float32)
        sync()  # all four warps have read
        mbarrier.arrive(empty.index(i % 2), count=1)
    _store_sum(out_ptr, total)


# %%
@gluon.jit
def two_jobs_kernel(out_ptr, x_desc, count):
    """out (64, 64) in fp32: the sum of `count` tiles of x (64 count, 64) in bf16."""
    tiles = gl.allocate_shared_memory(gl.bfloat16, [2, ROWS, ROWS], x_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(2):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    add_up, fetch = (
        (out_ptr, tiles, full, empty, count),
        (x_desc, tiles, full, empty, count),
    )
    # 1 more warp, 24 registers
    gl.warp_specialize([(_add_up, add_up), (_fetch, fetch)], [1], [24])


swizzled = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
types = {
    "out_ptr": "*fp32",
    "x_desc": f"tensordesc<bf16[64, 64],{swizzled!r}>",
    "count": "i32",
}
two_jobs = compile_kernel(
    two_jobs_kernel, types, {}, "H200", divisible_by_16=False, max_registers=128
)
two_jobs

# %% [markdown]
# What became of it, line by line. `%p` at the beginning of a line is a condition: only the thread for which it is true
# does what stands behind it.

# %%
lines = [line.strip() for line in two_jobs.ptx.splitlines()]
for words, wanted in (
    ("one warp gives back registers", "setmaxnreg.dec"),
    ("the other warps take them", "setmaxnreg.inc"),
    ("so many bytes are expected", "mbarrier.arrive.expect_tx"),
    ("one thread of the warp is chosen", "elect.sync"),
    ("it asks for the tile", "cp.async.bulk.tensor"),
    ("the others wait for the bytes", "mbarrier.try_wait"),
):
    found = [line for line in lines if wanted in line]
    shown = found[-1] if wanted == "elect.sync" else found[0]
    print(f"{words} ({len(found)} in the text):\n    {' '.join(shown.split())}")

# %% [markdown]
# A whole tile of 64 x 64 numbers is *one* instruction, `cp.async.bulk.tensor`, with two coordinates, the place in
# shared memory and the barrier. `elect.sync` chooses the thread that carries it out. `setmaxnreg` moves registers
# between groups of four warps while the kernel runs: who only asks for tiles needs few, who computes takes what was
# given back.
#
# ### A border for every sequence
# The unit knows one border, that of the tensor, and gives zeros behind it. In a padded batch every sequence ends
# somewhere else, and rows of $v$ behind the length have to come as zeros too: a probability of 0 hides no NaN. The
# course's kernel used to clean them in shared memory, by all its threads and with a barrier. A descriptor with one
# dimension more does it for nothing: **count the rows twice**. The tensor becomes (batch, heads, $n + 1$, $n$, head
# size), both middle dimensions go on by one row, and it begins $n$ rows before $v$. Then the place ($length$, $n -
# length + r$) is row $r$ of $v$, and its second number reaches $n$, the border, where $r$ reaches the length.


# %%
def place_of_row(r, length, n):
    """The two coordinates of row r, and which row of v lies at their address."""
    first, second = length, n - length + r
    return first, second, first + second - n  # it begins n rows before v


n, length = 8, 5
for r in range(n):
    first, second, row = place_of_row(r, length, n)
    assert row == r and first < n + 1
    print(
        f"row {r}: place ({first}, {second})", "zeros" if second >= n else f"v[{row}]"
    )

# %% [markdown]
# At 256 tokens, forward, a batch whose lengths are drawn from half of the tokens on takes 1.04 to 1.19 of the time of the
# same batch without lengths on an H200; it was 1.23 to 1.36. By its address no place that lies inside is before $v$, so
# no memory has to be there. But where a sequence had length 0, and with it a tile that lies outside *as a whole*, an H200
# reported an illegal access. Why is not known; a test found it. Now such a sequence asks for one row, and its result is
# set to 0.
#
# ### Does it wait where it has to? Your CPU can tell
# Compiling does not show that a kernel is right, and Triton's interpreter knows no Gluon. `carry_out` runs such a kernel
# on the host. Every job is a thread, one of them runs at a time, and at every barrier a draw says who goes on. A fetch
# comes as early or as late as it may: at any time until the barrier that hears of it is passed. So a draw can show on
# your CPU what a GPU does on a bad day. (It shows no time, no layouts and no fences, and not that the four warps of a
# job wait for each other.)
#
# Below, `_add_up` is spoilt in three ways: it does not wait at `full`; it frees a place before it has read it; it reads
# before it waits. **Before you run it, say** for each what comes out: the right sum, NaN (shared memory is NaN at
# first), a wrong sum, or nothing, because two jobs wait for each other for ever.

# %%
import torch
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from course_lib.interpreter.jobs import carry_out

x_host = torch.randn(4 * 64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
right_sum = x_host.float().unflatten(0, (4, 64)).sum(0)


def in_ten_draws(**instead):
    """What comes of ten draws, and in how many of them."""
    seen = {}
    for seed in range(10):
        out = torch.full((64, 64), float("nan"))
        described = TensorDescriptor(x_host, [4 * 64, 64], [64, 1], [64, 64], swizzled)
        try:
            carry_out(
                two_jobs_kernel, (1,), out, described, 4, seed=seed, instead=instead
            )
            off = (out - right_sum).abs().max().item()
            what = "right" if off < 1e-4 else "NaN" if off != off else "wrong"
        except AssertionError as error:
            what = str(error)
        seen[what] = seen.get(what, 0) + 1
    return seen


print("as it stands:", in_ten_draws())


# %%
@gluon.jit
def _hurries(out_ptr, tiles, full, empty, count):
    WHO: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    total = gl.zeros([ROWS, ROWS], gl.float32, WHO)
    for i in range(count):
        total += tiles.index(i % 2).load(WHO).to(gl.float32)
        mbarrier.arrive(empty.index(i % 2), count=1)
    _store_sum(out_ptr, total)


@gluon.jit
def _frees_early(out_ptr, tiles, full, empty, count):
    WHO: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    total = gl.zeros([ROWS, ROWS], gl.float32, WHO)
    for i in range(count):
        mbarrier.wait(full.index(i % 2), (i // 2) & 1)
        mbarrier.arrive(empty.index(i % 2), count=1)
        total += tiles.index(i % 2).load(WHO).to(gl.float32)
    _store_sum(out_ptr, total)


@gluon.jit
def _reads_first(out_ptr, tiles, full, empty, count):
    WHO: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    total = gl.zeros([ROWS, ROWS], gl.float32, WHO)
    for i in range(count):
        total += tiles.index(i % 2).load(WHO).to(gl.float32)
        mbarrier.wait(full.index(i % 2), (i // 2) & 1)
        mbarrier.arrive(empty.index(i % 2), count=1)
    _store_sum(out_ptr, total)


# %%
print("no wait at full:", in_ten_draws(_add_up=_hurries))
print("freed before it is read:", in_ten_draws(_add_up=_frees_early))
print("read before the wait:", in_ten_draws(_add_up=_reads_first))

# %% [markdown]
# Reading first gives NaN or a wrong sum. Without the wait at `full` nothing comes in any of these draws: the adding
# warps run ahead and arrive at `empty` twice for each place, so the bit that counts rounds is back where it was, and the
# fetching warp waits for a round that has passed. And a place that is freed too early gives the right sum in most draws:
# a test that runs it once passes more often than not. So the course's own kernels of this kind run in such draws too
# (`tests/kernels/test_attention_jobs.py`), besides on a GPU.
#
# ### Jobs for the warps, in a real kernel
# The forward pass of the course's second rung (`course_lib/kernels/attention/groups_forward.py`) has three jobs: one warp
# fetches Q, K and V, and two groups of four warps hold 64 queries each and read the *same* tiles of K and V (three groups
# at some head sizes up to 64, whose sums take fewer registers). So at head size 128 a program takes 128 queries, and K
# and V come at 128 FLOP a byte. One warp group is what a `wgmma` wants, the instruction by which Hopper's tensor cores
# multiply 64 rows at once, straight from shared memory and without waiting for the result. Between two `setmaxnreg` in
# the text lies one job, so the text can be counted job by job. Your kernel of exercise 4.3 stands above them: every warp
# of it does everything. The cell compiles it with the settings of the course's table; the recorded counts are those of
# the kernel's text of 2026-11-25.

# %%
import re

COUNTED = {
    "wgmma": "wgmma.mma_async",
    "exponentials": "ex2.approx",
    "tiles fetched": ".global.mbarrier",
}
COUNTED |= {"tiles stored": "bulk.tensor.4d.global", "cp.async": "cp.async.cg"}


def by_job(ptx):
    """For each job: its registers a thread, and how often the counted instructions
    stand in it."""
    _, *parts = re.split(r"setmaxnreg\.\w+\.sync\.aligned\.u32\s+(\d+);", ptx)
    jobs = zip(parts[::2], parts[1::2])
    counts = [
        (int(n), {name: text.count(word) for name, word in COUNTED.items()})
        for n, text in jobs
    ]
    return [(registers, found) for registers, found in counts if any(found.values())]


try:
    from course_lib.kernels.attention.groups import _layout
    from course_lib.kernels.attention.groups_forward import forward_in_groups_kernel
    from course_lib.kernels.rings import LAUNCH
except ImportError:
    forward_in_groups_kernel = None
    print(
        "The course's own kernels are not here: recorded counts stand in their place."
    )

# %%
jobs = {}
if forward_in_groups_kernel:  # head size 128, not causal, as the course's table has it
    rows = {"o": 64, "q": 64, "k": 128, "v": 128}
    types = {
        f"{x}_desc": f"tensordesc<bf16[1, 1, {n}, 128],{_layout(128)!r}>"
        for x, n in rows.items()
    }
    types |= {"l_ptr": "*fp32", "scale_log2": "fp32"}
    types |= dict.fromkeys(("heads", "batch_heads", "n_q", "n_k", "tiles"), "i32")
    fixed = {f"{x}_rest": None for x in rows} | {
        "GROUP": 1,
        "CAUSAL": False,
        "WHOLE": True,
    }
    fixed |= {
        "HEADS_INTERLEAVED": 1, "BLOCK_N": 128,
        "STAGES": 2, "HELD": 2, "MAIN": 128, "REST": 0,
    }  # fmt: skip
    fixed |= {"TURNS": False, "LAZY": True}
    options = {"num_warps": LAUNCH["num_warps"], "max_registers": LAUNCH["maxnreg"]}
    groups = compile_kernel(
        forward_in_groups_kernel, types, fixed, "H200", divisible_by_16=False, **options
    )
    for number, (registers, counts) in enumerate(by_job(groups.ptx), 1):
        jobs[f"job {number}: registers a thread"] = registers
        jobs |= {
            f"job {number}: {name}": count for name, count in counts.items() if count
        }
    jobs["spilled bytes a thread"] = groups.spills_bytes
results.beside("lesson04.jobs", jobs, unit="")

# %%
plain = compiled(128, (64, 64, 4, 3), causal=False)  # needs exercise 4.3
counts = {
    name: plain.ptx.count(word) for name, word in COUNTED.items() if word in plain.ptx
}
print(f"your kernel, all warps alike: {plain.registers} registers, {counts}")

# %% [markdown]
# Two jobs hold all products and all exponentials and have 240 registers a thread, about as many as a thread can have.
# The third holds all fetches and lives on 24. In your kernel there is one job: `cp.async` and `wgmma` stand in one
# loop, and all warps have equal registers. So what does the split buy? A warp that waits for a tile blocks nothing but
# itself, and the addresses are out of the loop. Shared out evenly, a thread of the three groups would have 168
# registers. With 240 a computing one has room for 64 sums, 64 scores and the 64 scores that come next: its part of 64
# rows of 128, three times.
#
# ### Ping-pong: the groups take turns
# Two groups share the tensor cores and the unit for exponentials. If both begin together, both multiply together, each at
# half the speed, and then both take exponentials together while the tensor cores rest. If one has to wait until the other
# has asked for its products, they work in opposite phases: one multiplies while the other does softmax. FlashAttention-3
# makes that order with barriers, as NVIDIA's CUTLASS does for plain products, and calls it *ping-pong*. Here is a model
# with nothing but these two units, for blocks of 64 queries and 128 keys.


# %%
def two_groups(d, turns, blocks=4, step=16):
    """(group, unit, begin, end) in clocks. turns:
    one group multiplies at a time, and not both at half the speed."""
    clocks = {
        "products": 4 * 64 * 128 * d / PRODUCTS,
        "exponentials": 64 * 128 / EXPONENTIALS,
    }
    todo = [list(clocks) * blocks for _ in range(2)]
    begun, left, spans, clock = [None, None], [clocks["products"]] * 2, [], 0
    while any(todo):
        for unit in clocks:
            at = [g for g in range(2) if todo[g][:1] == [unit]]
            if turns and unit == "products":
                at = sorted(at, key=lambda g: left[g])[:1]  # who has begun goes on
            for g in at:
                begun[g] = clock if begun[g] is None else begun[g]
                left[g] -= step / len(at)
        clock += step
        for g in range(2):
            if todo[g] and left[g] <= 0:
                spans.append((g, todo[g].pop(0), begun[g], clock))
                begun[g], left[g] = None, clocks[todo[g][0]] if todo[g] else 0
    return spans


def tensor_cores_busy(spans):
    """The share of the time in which some group multiplies."""
    working = {
        clock
        for _, unit, b, e in spans
        if unit == "products"
        for clock in range(b, e, 16)
    }
    return 16 * len(working) / max(end for *_, end in spans)


# %%
@drawn
def draw_turns(both):
    """One panel for each way to share: what the two groups do when, in clocks."""
    figure, axes = plots.figure(7.8, 3.9, rows=len(both))
    message = "In turns, one group takes exponentials while the other multiplies"
    figure.suptitle(message, x=0.01, ha="left", weight="bold")
    looks = {
        "products": (plots.PALETTE[0], ""),
        "exponentials": (plots.PALETTE[4], "////"),
    }
    last = max(end for spans in both.values() for *_, end in spans)
    for ax, (name, spans) in zip(axes, both.items()):
        for unit, (colour, hatch) in looks.items():
            mine = [span for span in spans if span[1] == unit]
            places, widths = (
                [g for g, *_ in mine],
                [end - begin for *_, begin, end in mine],
            )
            look = {
                "height": 0.6, "color": colour, "hatch": hatch,
                "edgecolor": "white", "label": unit,
            }  # fmt: skip
            ax.barh(
                places, widths,
                left=[begin for *_, begin, _ in mine], linewidth=1, **look
            )  # fmt: skip
        ax.set_yticks(range(2), ["group 1", "group 2"])
        ax.set(ylim=(1.5, -0.5), xlim=(0, 1.01 * last))
        ax.set_title(
            f"{name}: tensor cores busy {tensor_cores_busy(spans):.0%}", fontsize=9
        )
    axes[-1].set_xlabel("clocks (a model; head size 128, four blocks of 128 keys)")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2
    )
    return figure


# %%
ways = {"both multiply at once": False, "the groups take turns": True}
plots.show(
    draw_turns({name: two_groups(128, turns) for name, turns in ways.items()}),
    alt="Two timelines of two groups. Above, both multiply together and then both take "
    "exponentials. Below they alternate, and the tensor cores rest only at the end",
)
for d in (64, 128):
    shares = [
        f"{name} {tensor_cores_busy(two_groups(d, turns)):.0%}"
        for name, turns in ways.items()
    ]
    print(f"head size {d:3}, tensor cores busy: {', '.join(shares)}")

# %% [markdown]
# The model gives the whole gain to the order. In a real kernel the groups drift apart by themselves after some blocks,
# and each of them has a second way to overlap: it asks for the scores of the next block before it waits for the product
# of this one, so the tensor cores have work while it takes exponentials. (FlashAttention-3 does both.) In the course's
# kernel the second way brings most of the gain, and the barriers alone little: `benchmarks/notes/attention.md` has the
# times. At head size 128, where sequences have no lengths, it has none of them any more: there it is up to 2 % faster
# without.
#
# ### Sums that are seldom scaled
# When the maximum of a row moves, $o$ is multiplied by $e^{m_{old} - m_{new}}$: 64 products a thread at head size 128, in
# every turn, and meanwhile the group asks for nothing. Where the maximum stays the factor is 1, and nothing need be done.
# But 16 rows share a warp, whose 32 threads execute the same instruction: it has to scale if one of the maxima moves.
#
# ### Predict
# The scores of 4096 keys are normal and independent, and come in blocks of 128. In which share of the 31 turns after the
# first does a warp of 16 rows have to scale?

# %%
predicted_scaled = {"share of the turns": None}  # replace None: from 0 to 1
### BEGIN PREDICTION
predicted_scaled = {
    "share of the turns": 0.66,
    "why": "The largest of t blocks is in the last one with probability 1/t. That "
    "none of 16 rows has it there: (1 - 1/t)^16. One minus that, the mean over t = 2 "
    "to 32.",
}
### END PREDICTION


# %%
def scaled(scores, slack, block=128, rows=16):
    """The share of turns, after the first block, in which some row of a warp moves its
    maximum. slack: it moves only for a score that is larger by more."""
    top, turns = scores[:, :block].amax(1), []
    for begin in range(block, scores.shape[1], block):
        new = scores[:, begin : begin + block].amax(1)
        grown = new > top + slack
        top = torch.where(grown, new, top)
        turns.append(grown.view(-1, rows).any(1))
    return torch.stack(turns).float().mean().item()


# %%
draw = torch.Generator().manual_seed(0)
even = torch.randn(1024, 4096, generator=draw) / math.log(2)  # in powers of 2
rising = even + torch.linspace(0, 24, 4096)  # by 24 from the first key to the last
against(predicted_scaled, {"share of the turns": scaled(even, 0)})
Table(
    ("slack, in powers of 2", "normal scores", "rising ones"),
    [
        (slack, f"{scaled(even, slack):.2f}", f"{scaled(rising, slack):.2f}")
        for slack in (0, 1, 2, 4, 8)
    ],
    note="share of the turns in which a warp of 16 rows scales its sums",
)

# %% [markdown]
# **The prediction, counted.** A warp scales in 66 % of the turns. So to skip products by 1 alone would spare a third of
# them. But $m$ need not be the maximum. **Any number will do, as long as all exponentials of a row use the same one: the
# last division removes it.** It must be large enough that none of them overflows, and not so large that all vanish. So
# FlashAttention-4 (Zadouri and others, 2026) moves $m$ only where a score is larger by more than 8 powers of two
# ($8 \ln 2 = 5.5$). An exponential is at most $2^8 = 256$ then, which has as many bits in two bytes as one below 1, and
# with normal scores nothing is scaled after the first block. Scores that rise all the way, by 24 powers of two, still
# have to be scaled in a third of the turns. A warp asks in one instruction (a *vote*) whether one of its rows has moved,
# and if not it jumps over the products. Without lengths of sequences the course's kernel does so at head size 128, at
# 64 without a mask from 513 tokens on, and at 72 and 80 with one; elsewhere it gained 1 % or nothing, or lost. Forward at
# 16384 tokens of head size 128 it took 1.052 of FlashAttention-4's time before and takes
# 1.024, and at 4096 tokens 1.011 and 1.000.
#
# ### In which order the tiles come
# A program that stays (**persistent**) is launched once a multiprocessor and walks over many tiles. Its fetching warp
# begins with the next tile while the **epilogue** of this one, the division and the store, is still at work. What is
# lost is balance: causal tiles differ in length by far, and programs that get every 132nd end at different times. Where
# each tile is a program of its own, the hardware gives the next one to who is free. The order
# also decides what lies in the L2 cache: programs that run at the same time should share K and V. Two aims, one list of
# tiles. The cell tries four lists: 64 causal heads of 4096 tokens, 128 queries a tile, 132 multiprocessors.

# %%
import heapq


def ends_late(tiles, every, workers=132):
    """The time until the last tile is done, in units of an even share. every:
    tile i goes to worker i % workers."""
    ends = [0] * workers
    for i, (length, _) in enumerate(tiles):
        if every:
            ends[i % workers] += length
        else:
            heapq.heapreplace(ends, ends[0] + length)  # who is free first
    return max(ends) / (sum(length for length, _ in tiles) / workers)


HEADS, TILES = 64, 32
longest_first = range(TILES, 0, -1)
orders = {
    "head by head, shortest first": [
        (n, h) for h in range(HEADS) for n in reversed(longest_first)
    ],
    "head by head, longest first": [
        (n, h) for h in range(HEADS) for n in longest_first
    ],
    "8 heads together": [
        (n, g + h) for g in range(0, HEADS, 8) for n in longest_first for h in range(8)
    ],
    "all heads together": [(n, h) for n in longest_first for h in range(HEADS)],
}

# %%
at_work = {
    name: {head for _, head in tiles[1000:1132]} for name, tiles in orders.items()
}
Table(
    ("order of the tiles", "given out when free", "every 132nd", "K and V in use"),
    [
        (
            name,
            f"{ends_late(tiles, False):.2f}",
            f"{ends_late(tiles, True):.2f}",
            f"{len(at_work[name]) * 2 * 4096 * 128 * 2 / 2**20:.0f} MiB",
        )
        for name, tiles in orders.items()
    ],
    note="times in units of an even share; head size 128, bf16; "
    "the L2 cache of an H200 holds 60 MiB",
)

# %% [markdown]
# Longest first, with eight heads together, ends together and keeps its keys in the cache, if tiles are given out when a
# worker is free. All heads together would be as even, but their keys do not fit into the cache. Without the causal mask
# all tiles are equally long, and there is nothing to balance.
#
# For a long time the course's causal kernel had this order with a program a tile, and so each of some 15 tiles of a
# multiprocessor began from nothing: in the epilogue nobody fetched. Both can be had. Who will be free first is no secret:
# a tile takes as many turns as it has blocks of keys. So the host plays the loop above before the launch and writes down
# for each program its own list, and programs that stay read their lists: the balance of the first column, the cache of
# 16 heads, and the next tile on its way. On an H200 4096 tokens of head size 128 then took 0.89 of the time before, and
# 2048 tokens 0.84; beside FlashAttention-4, for Hopper a program a tile and the longest first, 1.09 became 0.97.
# (FlashAttention-3 has programs that stay ask a counter for their next tile.) **What is known before a launch need not
# be found out in it.**
#
# ### A fixed order of sums
# One pass backward needs several programs to add to the same rows of $dQ$ (section 6). It can still give the same bits
# every time, if the additions come in a fixed order: a counter for each block of queries says whose turn it is, and a
# program that comes early waits. FlashAttention has a result that is the same every time as an option,
# `deterministic=True`: in FlashAttention-3 and -4 by such counters, in FlashAttention-2 by copies of $dQ$ that a later
# kernel sums up. The cell is the model of section 6 with a counter.


# %%
def in_turn(parts, rng):
    """Programs come in random order and add in the order of their numbers: the sum, and how many had to wait."""
    total, turn, there, waited = torch.tensor(0.0), 0, set(), 0
    for program in torch.randperm(len(parts), generator=rng).tolist():
        there.add(program)
        waited += program != turn
        while turn in there:
            total, turn = total + parts[turn], turn + 1
    return total.item(), waited


runs = [in_turn(parts, rng) for _ in range(300)]
print(
    f"in turn: {len({total for total, _ in runs})} answer in {len(runs)} runs; "
    f"{sum(waited for _, waited in runs) / len(runs):.1f} of {len(parts)} programs wait"
)

# %% [markdown]
# The price is the waiting, so a good schedule lets programs come in the order in which they add: without a mask each
# begins its walk at another block of queries. (This idea is from DASH, Qiang and others, 2026.) The course's one pass
# does so, and still it lost at first: at 4096 tokens and head size 128 it took 1.02 times the time
# of two passes, where additions in any order take 0.86. Hardly a program waited for its turn. The warp that adds was too
# slow: it asked the counter, waited until its tile was in memory, and counted, one after the other, and that takes
# longer than a turn of the loop. With two more warps, one that asks and one that counts, it took 0.87. **Before you
# change a schedule, find out who waits, and for what.**
#
# With this schedule programs wait in a circle: 1 for 2, 2 for 3, the last one for 1. So all have to run at the same time.
# A *cooperative launch* starts all programs of a kernel or none; without it two such kernels on one GPU, each with half of
# its programs started, would wait for ever.
#
# **Under a causal mask** tiles are of many lengths, and programs take them from a counter in memory, the longest first, as
# in FlashAttention-3. Blocks of keys add in the order of their numbers, and all walk from the last queries back, so that
# each follows the one before. A tile waits only for tiles that were taken before it: no circle. *When* does a program
# take its next tile? Asking the counter takes time, so at first it asked early, when it began the tile before. The cell
# plays both ways for 8 heads of 4096 tokens in tiles of 128 keys, where nobody waits for anybody's additions.


# %%
def turns_until_done(tiles, programs, early):
    """Whoever is free takes the next tile; `early`: when it begins the one before."""
    coming, ends = iter(tiles), []
    free = [(0, next(coming) if early else 0) for _ in range(programs)]
    while free:
        now, held = heapq.heappop(free)
        taken = next(coming, 0)  # 0: there is none
        turns, held = (held, taken) if early else (taken, 0)
        if turns:
            heapq.heappush(free, (now + turns, held))
            ends.append(now + turns)
    return max(ends)


tiles = [turns for turns in range(32, 0, -1) for head in range(8)]
late, early = (turns_until_done(tiles, 132, early) for early in (False, True))
print(
    f"shared evenly {sum(tiles) / 132:.0f} turns, taken when free {late}, early {early}"
)

# %% [markdown]
# There are 256 tiles for 132 programs. If each takes its next tile early, all tiles are taken in the first moment, and the
# last 124 belong to programs that are still at the longest ones. A program that is done first finds no tile. The cell
# says 1.5. On an H200, head size 64 and additions in any order, the kernel that took tiles early took 1.34 times as long
# as one that asks the counter when it has asked for the last queries of a tile. In order, many heads lose too, as
# programs wait for a tile that somebody has taken and not begun: 4 x 16 heads of 4096, head size 128, took 1.10 times as
# long. **Take work when you can begin it.** (A model of who waits had been written before the kernel. In it programs
# took a tile when they were free, so it promised what the kernel could not do. A model has to do what the code does.)
#
# The circle needs tiles that are equally long, and as many blocks of queries as programs of a head run at once. In a
# padded batch every sequence has its own length, and with few queries of many keys all programs of a head would want the
# same few rows of $dQ$. So there tiles come from the counter without a mask too: a block of keys of 32 or 64 heads, then
# the next block of the same heads. Whoever has the block before began 32 or 64 tiles before. (At head sizes 16, 32 and
# 80 it is faster for 64 to 256 heads without padding too; why there and not at 64 and 128 is not known.) In a padded batch
# without a mask the pass takes 0.72 to 0.88 of two passes' time (16 x 16 heads of 1024 tokens and 4 x 16 of 4096, head
# sizes 64 to 128).
#
# ### What goes through shared memory
# Shared memory has 32 banks. Words of 4 bytes that follow one another lie in banks that follow one another, and a bank
# gives or takes one word a clock: 128 bytes in all. Where threads want two words of one bank at once it takes two clocks,
# a **bank conflict**. The tensor cores make a product of 64 x 64 x 16 in 32 clocks; its two operands in bf16 are 4096
# bytes, and reading them takes 4096 / 128 = 32 clocks. So **a product of 64 rows and 64 columns, both from shared memory,
# keeps the tensor cores and the banks equally busy**, and whatever else is read or written comes on top. (More columns in
# one product are fewer bytes for each FLOP, and so is an operand in registers.)
#
# The cell counts one turn of the course's one pass at head size 128: 64 queries by 128 keys, two groups of warps with 64
# keys each. Each group reads its own operands, also those that both need: hence the factors of 2. One line is not bytes
# but was counted: a load of $L$ or $\delta$, 8 bytes for each thread of a warp, takes two clocks, though many threads
# want the same.


# %%
def clocks(rows, columns, bytes_each=2):
    return rows * columns * bytes_each / 128


QUERIES, KEYS, d = 64, 128, 128
own = KEYS // 2  # keys of a group; each makes half of the columns of dQ
turn = {
    "S: k and q": 2 * (clocks(own, d) + clocks(QUERIES, d)),
    "dP: v and dO": 2 * (clocks(own, d) + clocks(QUERIES, d)),
    "dV: dO, p is in registers": 2 * clocks(QUERIES, d),
    "dK: q, dS is in registers": 2 * clocks(QUERIES, d),
    "dQ: dS of all keys, and k": 2 * (clocks(KEYS, QUERIES) + clocks(KEYS, d // 2)),
    "L, delta: 8 warps, 16 loads": 8 * 16 * 2,
    "q and dO arrive": 2 * clocks(QUERIES, d),
    "dS is written": clocks(QUERIES, KEYS),
    "dQ is written, fp32": clocks(QUERIES, d, 4),
    "dQ is read by the TMA": clocks(QUERIES, d, 4),
}
of_products = 5 * 2 * QUERIES * KEYS * d / PRODUCTS
print("\n".join(f"{what:28} {took:5.0f}" for what, took in turn.items()))
print(f"shared memory {sum(turn.values()):.0f} clocks, products {of_products:.0f}")

# %% [markdown]
# So with these tiles a turn needs more clocks of shared memory than of the tensor cores. On an H200, 2 x 16 heads of 4096
# and additions in any order, it took 4015 clocks, an average with idle ends. Nsight Compute counted: the tensor
# cores were busy for 64 % of the time, and instructions made 2968 *wavefronts* a turn, each a clock of shared memory. What
# the TMA writes and reads, 512 by the cell, is not among them. 2968 and 512 are 280 more than the cell counts, and 260 of
# these are conflicts: writes of $dQ$ that took two clocks.
#
# A thread has two neighbouring sums of $dQ$, 8 bytes, and half a warp, 16 threads, can write 128 bytes in one clock if
# they fall into different banks. Its 16 threads have 32 bytes of each of four rows. The TMA wants a tile in a layout of
# places of 128 bytes, each 32 columns of a row: place $r$ has piece $i$ of its eight pieces of 16 bytes at $i \oplus (r
# \bmod 8)$, where $\oplus$ is XOR, so that a column spreads over the banks. The cell looks where the four rows fall.


# %%
def banks(places):
    """Of 16 pairs of banks, those that half a warp writes to, a row in each place."""
    return [[2 * (t // 2 ^ place % 8) + t % 2 for t in range(4)] for place in places]


for what, places in {"as they come": (0, 1, 2, 3), "apart": (0, 2, 4, 6)}.items():
    there = banks(places)
    worst = max(sum(row.count(bank) for row in there) for bank in range(16))
    print(f"rows {what}: {worst} clock{'s' * (worst > 1)}")
    for place, row in zip(places, there):
        print(f"  place {place}  " + "".join(".#"[bank in row] for bank in range(16)))

# %% [markdown]
# Rows 0 and 1 put their two pieces into the same 32 bytes, swapped, and so do rows 2 and 3: every write of $dQ$ took two
# clocks. The writes are as many as before; what changed is the description of $dQ$ that the TMA is given: of eight rows 0
# to 3 go to the even places of the tile, 4 to 7 to the odd ones. Predicted were 8 % less, by a count that had forgotten $L$ and
# $\delta$; 256 clocks of 4015 are 6 %. At 4 x 16 heads of 4096, head size 128, in order, a call took 0.93 of the time
# before, in the same run; at head size 64 it took 0.98 and, causal, 0.95. Why not less there is not known.
#
# **Count before you rewrite.** Before anybody had counted, machine code had shown a place where both groups wait while
# nothing is asked for. A kernel was written that asks for its next scores there, and takes and adds its tiles in another
# order; 10 to 16 % less were predicted. It took 1.06 of the time. (Two things of it are in the library today, both above:
# tiles from a counter, taken late, and blocks of keys that add in the order of their numbers.)
# A counter says in one run which unit is the fullest. FlashAttention-3 and -4 take 80 queries a turn at this head size
# without a mask, which are fewer bytes for each FLOP; Triton's tiles are powers of two.
#
# ### Where the course's kernels stand
# The rung that ran in each recorded row, and the time over that of the best peer in the same run.

# %%
stand = results.load("attention")["rows"]
Table(
    (
        "batch x heads x tokens x head size",
        "rung",
        "best peer",
        "time over the peer's, in turn",
        "each alone",
    ),
    [
        (
            row["name"].removeprefix("attention ").replace(" bf16", ""),
            {"groups": "jobs for warps, in Gluon", "plain": "plain Triton"}[
                row["rung"]
            ],
            row["best peer"],
            f"{row['ratio']:.2f}",
            f"{row['ratio alone']:.2f}" if "ratio alone" in row else "-",
        )
        for row in stand
    ],
    note=f"recorded on {results.load('attention')['machine']}, "
    f"{results.load('attention')['date']}",
)

# %% [markdown]
# The first rung is plain Triton, the kernels of this lesson with tuned tiles and tensor descriptors. Of two peers that
# are installed apart the record has one, **FlashAttention-4**, which is written in CuTe DSL, NVIDIA's own layer with
# jobs, tiles and barriers for Python. Its new ideas are for Blackwell GPUs; its kernels for Hopper follow
# **FlashAttention-3**, CUDA code for Hopper, which was not measured: this lesson claims no place beside it. A row "in
# any order" adds to $dQ$ as programs come, as FlashAttention-4 does by default.
#
# **No kernel is the fastest at every shape.** A tile of 128 queries by 128 keys makes 4 times the products that a head
# of 64 tokens needs. At head size 64 the second rung took 1.37 of the best peer's time there, forward; blocks of 64 by
# 64 of the first rung take 0.74. No row above has that shape, so nobody had timed it. List the shapes that your users
# have before you tune, not after.

# %% [markdown]
# ## Verdicts
# What was claimed, and what we found. The numbers are in the tables above, on your machine and on the recorded H200.
#
# | claim of the reports | verdict | for your own work |
# |---|---|---|
# | memory kept for backward grows linearly | wrong for naive attention: quadratic; right without P | keep L, make P again |
# | forward is 2.5 times slower than backward | not by its operators: the counts forbid it | doubt a time that is far from its count |
# | buffers in fp32, cast at the store | right; p may be cast, the accumulator may not | ask of each buffer how often it is rounded |
# | $dQ$ starts uninitialised and races | right, two separate faults | one writer for each element, or an atomic |
# | atomics kill performance | one addition an element in a plain Triton kernel: 1.3 to 1.75 times the time of two passes. Whole tiles, added by the copy engine in a kernel with jobs for its warps: 0.76 to 0.82 of it on an H200, and in a fixed order 0.76 to 0.83 | count the additions, then measure the kernel that you would use |
# | compile hides a contiguity bug | right: it copies gradients into the usual layout | test backward in eager mode, transposed |
# | SDPA is 34 times faster on a CPU | it is compared with a fallback | look at what the slow side really runs |
# | the gain on a GPU comes from fewer launches | bytes, not launches | six crossings of $n^2$ numbers |
#
# And the field? On the recorded H200 FlashAttention-4 (Zadouri and others, in CuTe DSL; its kernels for Hopper follow
# FlashAttention-3) is the best peer at 4096 and 16384 tokens, head sizes 64 and 128, in all cases: ours takes 0.97 to
# 1.02 of its time forward in turn and 0.98 to 1.00 alone, and 1.01 to 1.06 backward in turn and 0.99 to 1.11 alone.
# Backward ours keeps the same bits in every run, and FlashAttention-4's default does not; where both keep an order, ours
# takes 0.95 to 1.05, and where both may add in any order 0.98 to 1.06. At 256 tokens, head size 72, cuDNN is the best
# peer, and ours is ahead: 0.85 forward and 0.69 backward. FlashAttention-3 (Shah and others) was not measured, so no
# place beside it is claimed. What makes our second rung fast is theirs and NVIDIA's: the TMA, jobs for warps, turns,
# sums that are seldom scaled, tiles from a counter. That programs of a head begin apart is DASH's.

# %% [markdown]
# ## Questions
# Three answers in your own words, graded by a person. A few sentences each are enough.
#
# ### Question 4.6 (10 min, 3 points)
# A colleague's attention kernel passes a test with one shape: batch 2, 4 heads, 128 queries, 128 keys, head size 64,
# normal values, causal, compared at $10^{-2}$. Name three different mistakes that this test cannot see, and for each
# the input that would show it.

# %% [markdown] nbgrader={"grade": true, "grade_id": "flash_question_tests", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Any three, each with an input:
#
# - tails: 128 is a multiple of every tile; lengths such as 113 or 131 show keys or rows counted past the end
# - top-left instead of bottom-right causal, or a loop that ends by the square diagonal: n_q different from n_k
# - a scale hard-coded to 1/8, which is right for head size 64: another head size, or an explicit scale
# - no maximum, or one that starts at 0: large, or very negative, scores
# - an fp16 accumulator: thousands of keys with values of one sign
# - strides assumed: q, k, v as transposed views, dO as a view
# - wrong neighbours in a group: fewer heads of keys than of queries
# - rows with no key: a length of 0, or more queries than keys when causal
# - races and 32-bit offsets: many programs, repeated runs; a very large batch
#
# *Marking guide.* 1 point for each mistake **with** an input that shows it (at most 3). Half a point without the input.
# "Use more shapes" alone earns nothing.
# ### END SOLUTION

# %% [markdown]
# ### Question 4.7 (15 min, 4 points)
# A language model writes one token: 1 query, 100,000 keys, 32 heads, head size 128, bf16, on a GPU with 132
# multiprocessors. How would the kernel of exercise 4.3 use the GPU, and what sets its time? Which change would you
# make, and which exercise of this lesson contains the missing piece?

# %% [markdown] nbgrader={"grade": true, "grade_id": "flash_question_decode", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# One block of queries a head makes 32 programs: 100 of the 132 multiprocessors have nothing to do, and of each tile of
# 64 queries one row is used. The work is reading K and V: $2 \cdot 32 \cdot 100000 \cdot 128 \cdot 2$ bytes = 1.6 GB,
# at an intensity of about 1 FLOP a byte, so bandwidth sets the floor (about 0.4 ms at 4.2 TB/s), and 32 programs cannot
# keep enough loads in flight to reach it. Change: split the keys among several programs a head; each writes its
# maximum, sum and accumulator, and a second small kernel merges them. That is `merge` of exercise 4.1.
#
# *Marking guide.* 1 point for 32 programs on 132 multiprocessors. 1 for bytes of K and V as the limit, with a number or
# an intensity. 1 for splitting the keys. 1 for the merge with the correction of exercise 4.1 (adding outputs without
# the factors earns nothing here).
# ### END SOLUTION

# %% [markdown]
# ### Question 4.8 (10 min, 3 points)
# FlashAttention makes S a second time in the backward pass. Lesson 01 said: recompute cheap elementwise chains, *not*
# products. Why is it right here to recompute a product? Estimate for 4096 tokens and head size 64 in bf16, for one
# head, what recomputing costs in time and what writing a P and reading it again would cost. The rates are in sections 1
# and 10.

# %% [markdown] nbgrader={"grade": true, "grade_id": "flash_question_recompute", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Recomputing S: $2 \cdot 4096^2 \cdot 64 = 2.1$ GFLOP, about 3.3 microseconds at 660 TFLOP/s. P from S: $4096^2$
# exponentials, 4.0 microseconds where 132 multiprocessors make 16 in each of 1.98 billion clocks a second, and nearly
# hidden behind other products where they overlap. Storing P in forward and
# reading it in backward: $2 \cdot 4096^2 \cdot 2$ bytes = 67 MB, about 16 microseconds at 4.2 TB/s, and 34 MB of memory
# for each head and layer until backward comes. The product is of an inner dimension of 64 only: its intensity against
# the bytes of P it replaces is $2 \cdot 64 / 2 = 64$ FLOP a byte (or half of that with the write), far below the ridge
# of about 155. The rule of lesson 01 is the same rule: recompute when the arithmetic takes less time than the bytes.
#
# *Marking guide.* 1 point for the time of the product, 1 for the bytes of P and their time (write, read or both, if
# said), 1 for the comparison with the ridge or an equivalent reason. Memory saved may replace the third.
# ### END SOLUTION

# %% [markdown]
# ## Further reading
# - Tri Dao, Daniel Y. Fu, Stefano Ermon, Atri Rudra and Christopher Ré, *FlashAttention: Fast and Memory-Efficient
#   Exact Attention with IO-Awareness*, NeurIPS 2022, arXiv:2205.14135. Its third section counts bytes as section 1 did.
# - Tri Dao, *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning*, 2023, arXiv:2307.08691.
#   Algorithms 1 and 2 are your two exercises; algorithm 2 adds to $dQ$ with atomics.
# - Maxim Milakov and Natalia Gimelshein, *Online normalizer calculation for softmax*, 2018, arXiv:1805.02867.
# - Markus N. Rabe and Charles Staats, *Self-attention Does Not Need $O(n^2)$ Memory*, 2021, arXiv:2112.05682.
# - The Triton tutorial [Fused
#   Attention](https://triton-lang.org/main/getting-started/tutorials/06-fused-attention.html).
# - Jay Shah, Ganesh Bikshandi, Ying Zhang, Vijay Thakkar, Pradeep Ramani and Tri Dao, *FlashAttention-3: Fast and
#   Accurate Attention with Asynchrony and Low-precision*, 2024, arXiv:2407.08608: TMA, warp specialisation and ping-pong;
#   the measurements that section 9 quotes.
# - Ted Zadouri, Markus Hoehnerbach, Jay Shah, Timmy Liu, Vijay Thakkar and Tri Dao, *FlashAttention-4: Algorithm and
#   Kernel Pipelining Co-Design for Asymmetric Hardware Scaling*, 2026, arXiv:2603.05451: the exponential unit as a
#   ceiling, sums that are scaled only when a maximum has grown much, and kernels in CuTe DSL.
# - What this lesson leaves out. *Packed sequences* (varlen): the sequences of a batch lie behind each other without
#   padding, and a list says where each begins; FlashAttention's `flash_attn_varlen_func` takes them. *Paged keys*: a
#   server keeps K and V in pages of some tokens, and a table says where each page lies (Woosuk Kwon and others,
#   *Efficient Memory Management for Large Language Model Serving with PagedAttention*, 2023, arXiv:2309.06180). Both walk
#   over tiles as your kernel does; they look up where a tile lies. *Keys shared out* among programs or GPUs, and merged
#   as in exercise 4.1: Tri Dao, Daniel Haziza, Francisco Massa and Grigory Sizov, *Flash-Decoding for Long-Context
#   Inference*, 2023; Hao Liu, Matei Zaharia and Pieter Abbeel, *Ring Attention with Blockwise Transformers for
#   Near-Infinite Context*, 2023, arXiv:2310.01889.
# - Juechu Dong and others, *Flex Attention: A Programming Model for Generating Optimized Attention Kernels*, 2024,
#   arXiv:2412.05496.
# - `course_lib/kernels/attention`: the course's own kernels, and `benchmarks/notes/attention.md`, what was predicted
#   for them and what was measured.
# - Stanford's course CS336, *Language Modeling from Scratch*, whose assignment the systems notes of this lesson answer.
