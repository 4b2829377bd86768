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
# # 01 Roofline and the three regimes
#
# After this lesson you can
#
# - count what a kernel must do, and say from the count how fast it can be on a machine you have measured,
# - time a GPU so that the number would come out the same tomorrow,
# - tell which of three things sets the time of a program: launches, bytes or arithmetic, and which remedy follows,
# - write Triton kernels for a fused chain, a softmax and a matrix product, and know how far each is from its floor.
#
# **Time** 8 hours, in three sittings; the eight exercises take about four of them. Each sitting ends at a place that
# says "stop here".
#
# | sitting | sections | exercises | minutes |
# |---|---|---|---|
# | first: count and time | 1 roofline, 2 timing | the counts, the stopwatch | 150 |
# | second: find the limit | 3 three regimes, 4 profilers, 5 fusion | regimes, a trace, a chain | 155 |
# | third: reach the floor | 6 memory and softmax, 7 products, 8 graphs, questions | three kernels, three answers | 175 |
#
# ```
# 1 count: FLOP, bytes, roofs ---> 3 overhead, bytes or arithmetic? ---> 6 what a byte costs, softmax
#             |                        |                                 7 tiles of a product
# 2 time it honestly ----------> 4 profile: who waits? ---> 5 fuse       8 launch less: graphs
# ```
#
# On another day run the cells from the top: later sections use what earlier ones defined. A cell that needs an exercise
# which you have not solved stops with "not written yet"; go on with the cell below it.
#
# **The check** in a notebook judges as grading does. An answer may use what the setup cells and your own cells define,
# and no name of a demonstration cell. In exercises 1.5 to 1.7 all arithmetic has to be in kernels. Where an answer breaks
# one of these rules, the check says so.
#
# The outputs come from H200s, of several runs and several hosts. So from one cell to the next a rate may differ by some
# per cent, and what a launch costs the host by a factor of about two. A cell whose output is of an H100 says so; its
# table shows the recorded H200 beside it. The text is about the recorded H200.
#
# **Needs** lesson 00: your machine passes its check, you can write a masked load and store, and you know that a Triton
# program is a thread block.
#
# **Without a GPU** every exercise but the last (CUDA graphs) can be solved and checked for being right. The
# measurements run on your CPU: it has the same three regimes with other numbers, and in some places the opposite
# verdict, which is instructive. Recorded results of an H200 stand beside yours. What a CPU cannot show: speed points,
# the asynchrony of a GPU (a simulated GPU stands in for it), races, and the rounding of tensor cores (the interpreter
# imitates it for TF32).

# %% tags=["setup"]
from course_lib.device import DEVICE, TIER, ceilings, machine

import time

import torch
import triton
import triton.language as tl

from autograder import check, check_speed
from course_lib import plots, results, widgets
from course_lib.predictions import against
from course_lib.roofline import Roof, Work, floor_s, regime, ridge
from course_lib.table import Table
from course_lib.timing import time_gpu, time_graph

HERE = machine()
print(results.memory_of("01_roofline"))
HERE

# %% [markdown]
# Sizes are chosen once, here, and every measurement below uses them. On a GPU large arrays have $2^{26}$ elements, more
# than any cache holds. On a CPU they have $2^{22}$, and medians are known less exactly, so that the whole notebook
# takes about as long. Where your sizes are not those of the recorded H200, "here / recorded" compares two different
# amounts of work: look at the ratios within a column instead.

# %%
GPU = TIER == "gpu"
# elements of a large array: 256 MiB of fp32 on a GPU, 16 MiB on a CPU
N = 2**26 if GPU else 2**22


def timed(fn):
    """The course's timer, told how long it may take on this tier."""
    precision, seconds = (0.01, 1.0) if GPU else (0.05, 0.3)
    return time_gpu(fn, precision=precision, max_seconds=seconds)


# %% [markdown]
# ## 1. Two cosines for the price of one
# ### Case file
# **The report says** (first-principles notes of an engineer who learns how PyTorch spends its time): a fused
# `x.cos().cos()` takes nearly exactly as long as one `x.cos()`. "Fused" means that one kernel does both steps, and the
# value between them never leaves the processor.
#
# Twice the arithmetic for free sounds wrong, so before measuring anything we count. For $n$ numbers of 4 bytes:
#
# | version | bytes read | bytes written | cosines |
# |---|---|---|---|
# | `x.cos()` | $4n$ | $4n$ | $n$ |
# | `x.cos().cos()`, two kernels | $8n$ | $8n$ | $2n$ |
# | both in one kernel | $4n$ | $4n$ | $2n$ |
#
# If moving bytes is what costs, the last row should take as long as the first. If arithmetic is what costs, it should
# take as long as the second. The two answers differ by a factor of two, so one measurement decides.

# %% [markdown]
# ### Predict
# Lesson 00 measured how many bytes a second your machine moves; `ceilings()` prints it, together with how many cosines
# a second it computes. Write down three times in milliseconds for `N` elements *before* you run the measurement. A
# prediction that turns out wrong by a factor of two is worth more than no prediction: it tells you which of your
# beliefs to change.

# %%
predicted_ms = {  # replace None
    "cos": None,
    "cos cos, two kernels": None,
    "cos cos, fused": None,
}
### BEGIN PREDICTION
predicted_ms = {"cos": 0.126, "cos cos, two kernels": 0.252, "cos cos, fused": 0.126}
predicted_ms["why"] = """For the H200. A pass moves 8 bytes an element, 0.54 GB,
and memory moves 4.27 TB/s. A cosine is less than half of that,
so two of them hide behind one pass."""
### END PREDICTION
ceilings()

# %% [markdown]
# ### Measure
# `fused` turns a function on tensors into one that passes over memory once. On a GPU `torch.compile` writes one kernel
# for it. On a CPU we do by hand what such a compiler does: work on blocks small enough to stay in the processor's
# cache, so that only the first read and the last write go to memory.


# %%
def fused(fn):
    """fn(out, x, ...) in one pass over memory; fn writes into its first arguments."""
    if GPU:
        return torch.compile(fn)

    def in_blocks(*tensors):
        for block in zip(*(t.split(2**16) for t in tensors)):
            fn(*block)

    return in_blocks


def two_cosines(out, x):
    torch.cos(x, out=out)
    torch.cos(out, out=out)


# %%
x, out, between = (
    torch.randn(N, device=DEVICE),
    torch.empty(N, device=DEVICE),
    torch.empty(N, device=DEVICE),
)
fused_cosines = fused(two_cosines)
cosines = {
    "cos": timed(lambda: torch.cos(x, out=out)),
    "cos cos, two kernels": timed(
        lambda: (torch.cos(x, out=between), torch.cos(between, out=out))
    ),
    "cos cos, fused": timed(lambda: fused_cosines(out, x)),
}
against(predicted_ms, {name: t.ms for name, t in cosines.items()})
results.beside("lesson01.two_cosines", cosines, unit="ms")

# %% [markdown]
# ### Understand
# The time of a kernel has two candidates here: bytes divided by bytes a second, and cosines divided by cosines a
# second. Memory and arithmetic units work at the same time, so the slower one sets the pace and the other is hidden
# behind it. The **floor** is therefore the larger of the two, not their sum. It is the least time at the rates that we
# *measured*: a yardstick. Another program may reach a higher rate than the one that the ceiling was measured with, and
# then it lies below the floor (section 7 has one). What nothing passes is the hardware's own peak, which is higher.

# %%
top = ceilings()
for name, passes, cosines_each in (
    ("cos", 2, 1), ("cos cos, two kernels", 4, 2), ("cos cos, fused", 2, 2),
):  # fmt: skip
    memory_ms = 4 * N * passes / top.bytes_per_s * 1e3
    arithmetic_ms = N * cosines_each / top.cos_per_s * 1e3
    print(
        f"{name:22} memory {memory_ms:.3f} ms, arithmetic {arithmetic_ms:.3f} ms, "
        f"measured {cosines[name].ms:.3f} ms"
    )
print(
    f"memory has time for {8 * top.cos_per_s / top.bytes_per_s:.2f} cosines while one "
    "number travels in and out"
)

# %% [markdown]
# **The prediction, counted.** On the recorded H200 a pass needs 8 bytes an element for reading and writing, 0.126 ms
# in all, and a cosine 0.061 ms. So `cos` takes 0.131 ms, bytes and a little more; two kernels take twice that, 0.260;
# and fused, where two cosines are 0.122 ms, it takes 0.142.
#
# The last line is the heart of the matter. On a data-centre GPU it is well above one: the second cosine fits, wholly or
# in large part, into the time that the bytes take anyway. On a CPU it is often near one or below, and then the second
# cosine costs what a cosine costs. **The same code, the same claim: the verdict depends on how a ratio of the program
# compares with a ratio of the machine.**
#
# The ratio of the program is called **arithmetic intensity**: operations done for each byte moved. Fusion leaves the
# operations alone and removes bytes, so it raises the intensity. The ratio of the machine is called the **ridge**:
# operations a second divided by bytes a second. Below the ridge, in a figure left of it, bytes set the time. Above it
# arithmetic does.

# %% [markdown]
# ### Ceilings are measured, not quoted
# A data sheet says what the chip could do if nothing else happened. The floor of your kernel should be built from what
# this machine has been seen to do: a large copy for bytes, a large matrix product for arithmetic. One trap is worth
# knowing. A data-centre GPU that has rested can multiply faster for a moment than it can sustain, because later it
# meets its power limit. A burst is no ceiling; `ceilings()` measures the rate that lasts.
#
# The unit of arithmetic is the **FLOP**, one floating-point operation, such as an addition or a multiplication. A GPU
# has a ceiling for each format. fp32 numbers are multiplied by its ordinary units. bf16 and fp16 numbers, of 2 bytes,
# go to **tensor cores**, units that multiply small matrices; so does TF32, a shortened fp32 that section 7 explains.

# %%
rates = {
    f"matmul {name}, TFLOP/s": rate / 1e12 for name, rate in top.flops_per_s.items()
}
mine = {
    "copy, TB/s": top.bytes_per_s / 1e12,
    "launch, us": top.launch_s * 1e6,
    "cosines, T/s": top.cos_per_s / 1e12,
}
results.beside("lesson01.ceilings", mine | rates, unit="")

# %% [markdown]
# A `Roof` holds the two rates of one machine for one kind of arithmetic, with the cost of a launch, and `Work` holds
# the two counts of one program. The function below turns the table above into roofs: yours, and the H200's where it
# was recorded.


# %%
def recorded_roofs():
    """The roofs of the recorded H200, fastest first; none where nothing was recorded."""
    entry = results.load("lesson01.ceilings")
    value = {row["name"]: row["value"] for row in entry["rows"]} if entry else {}
    rates = {
        n.split()[1].rstrip(","): v * 1e12
        for n, v in value.items()
        if n.startswith("matmul")
    }
    made = [
        Roof(f"H200 {n}", v, value["copy, TB/s"] * 1e12, value["launch, us"] * 1e-6)
        for n, v in rates.items()
    ]
    return sorted(made, key=lambda roof: -roof.flops_per_s)


my_roofs = [
    Roof(name, rate, top.bytes_per_s, top.launch_s)
    for name, rate in top.flops_per_s.items()
]
roof = {roof.name: roof for roof in my_roofs}["fp32"]
for one in my_roofs + recorded_roofs():
    print(f"{one.name:10} ridge at {ridge(one):6.1f} FLOP a byte")

# %% [markdown]
# Two operators to place under the roof. An addition of two arrays does 1 FLOP an element and moves 12 bytes in fp32:
# an intensity of $1/12$, whatever the size. A product of two $n \times n$ matrices does $n$ multiply-adds, so $2n$
# FLOP, for each of its $n^2$ results, and moves three matrices: $2n^3 / 12n^2 = n/6$ in fp32. Its intensity **grows
# with the size**. That is why matrix products are what GPUs are good at, and why the same product can sit in either
# regime.


# %%
def product(n):
    a, b, c = (torch.randn(n, n, device=DEVICE) for _ in range(3))
    return timed(lambda: torch.mm(a, b, out=c))


sizes = (128, 512, 4096) if GPU else (32, 128, 512)
y = torch.randn(N, device=DEVICE)
placed = {"add": timed(lambda: torch.add(x, y, out=out))} | {
    f"matmul {n}": product(n) for n in sizes
}
work_of = {"add": Work(N, 12 * N)} | {
    f"matmul {n}": Work(2 * n**3, 12 * n**2) for n in sizes
}
points = [(name, work_of[name], t.median_s) for name, t in placed.items()]
axes = plots.roofline(roof, points, device=HERE.name)
plots.show(
    axes,
    alt="Roofline of this machine in fp32: the addition on the slope, "
    "the large matrix product near the flat part, the smallest far below the roof",
)

# %% [markdown]
# Read the figure from left to right. From each point that lies below the roof, a thin line goes up to the part of the
# roof that binds it. The addition lies on the slope: it is as fast as memory allows, and no cleverness with arithmetic
# will help it. (It can even lie a per cent above the roof: the slope was measured with a copy, which writes as much as it
# reads, and an addition writes half as much. On a CPU it can lie far above, while part of the arrays is still in a
# cache.) The large product lies near the flat part. (Its own intensity decides which line limits a point: left of the
# ridge the slope, right of it the flat part.) The smallest product is far *below* the roof, although its intensity would
# allow more. The roof is a ceiling, not a forecast. A GPU with more than a hundred multiprocessors, the units that
# programs run on, has too few tiles of so small a result to keep them busy, and starting a kernel and fetching its first
# numbers takes some microseconds, however little it does. On a CPU it is the call that costs. In a program the launch
# comes on top: section 3.
#
# ### Try it
# A chain of multiply-adds under the roofs of the recorded H200 (or yours, where nothing is recorded). Move the sliders:
# what does storing in bf16 do to the point, what does fusing, and what a small size? None of them moves the roof. What
# would?

# %%
widgets.roofline_explorer(recorded_roofs() or my_roofs)

# %% [markdown]
# ## Exercise 1.1 `roofline.work` (25 min, 6 points)
# Everything in this course begins with a count. Write `work(op, sizes, dtype)`, which returns two numbers,
# `(flops, bytes)`, for six operators. `sizes` is a dictionary of positive integers:
#
# | `op` | keys of `sizes` | what it computes |
# |---|---|---|
# | `"matmul"` | `batch`, `m`, `n`, `k` | C = A B, `batch` times, each with matrices of its own; A is (m, k), B is (k, n), C is (m, n) |
# | `"add"` | `elements` | out = x + y, three tensors of one shape |
# | `"softmax"` | `rows`, `columns` | every row: exp(x - max) / sum |
# | `"layer_norm"` | `rows`, `columns` | every row: (x - mean) * rstd * weight + bias |
# | `"naive_attention"` | `batch`, `heads`, `queries`, `keys`, `head_size` | three kernels: S = scale Q Kᵀ, P = softmax(S), O = P V |
# | `"fused_attention"` | the same | one kernel; S and P never leave the chip |
#
# `dtype` holds for every tensor: `"fp64"` has 8 bytes, `"fp32"` 4, `"tf32"` 4 (the tensor cores read 19 of the 32
# bits, memory keeps them all), `"bf16"` 2, `"fp16"` 2, `"fp8"` 1.

# %% [markdown]
# **FLOPs.** An addition, subtraction, multiplication, division, comparison, exponential or reciprocal square root is 1.
# A multiply-add is 2, so a dot product of length $k$ is $2k$. Reducing $n$ values to one (a sum, a maximum) is $n$.
#
# - Softmax, an element: maximum 1, subtraction 1, exponential 1, sum 1, division 1.
# - Layer norm, an element: sum for the mean 1, subtraction of the mean 1, square 1, sum of the squares 1, times rstd 1,
#   times weight 1, plus bias 1. A row on top of that: mean = sum / columns 1, variance = sum / columns 1, plus eps 1,
#   reciprocal square root 1.
# - Attention: its two products, 1 for scaling each score, and softmax over the keys of each query. Fused attention does
#   the same arithmetic; what it spends on rescaling running sums is not counted.
#
# **Bytes.** Every kernel reads each of its inputs once and writes each of its outputs once; what it needs twice it
# keeps on the chip. Layer norm reads `weight` and `bias` (`columns` values each) once in all. Naive attention is
# three kernels, so S and P are each written once and read once. K and V have `keys` rows, Q and O have `queries`
# rows.


# %% nbgrader={"grade": false, "grade_id": "roofline_work", "locked": false, "schema_version": 3, "solution": true, "task": false}
def work(op, sizes, dtype):
    """(FLOPs, least bytes moved) of one operator."""
    ### BEGIN SOLUTION
    item = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}[dtype]
    if op == "matmul":
        batch, m, n, k = sizes["batch"], sizes["m"], sizes["n"], sizes["k"]
        flops = 2 * batch * m * n * k
        elements = batch * (m * k + k * n + m * n)
    elif op == "add":
        flops = sizes["elements"]
        elements = 3 * sizes["elements"]
    elif op == "softmax":
        flops = 5 * sizes["rows"] * sizes["columns"]
        elements = 2 * sizes["rows"] * sizes["columns"]
    elif op == "layer_norm":
        rows, columns = sizes["rows"], sizes["columns"]
        flops = rows * (7 * columns + 4)
        elements = 2 * rows * columns + 2 * columns
    else:
        pairs, d = sizes["batch"] * sizes["heads"], sizes["head_size"]
        queries, keys = sizes["queries"], sizes["keys"]
        # Q K^T, scale, softmax, P V
        flops = pairs * queries * keys * (2 * d + 1 + 5 + 2 * d)
        elements = pairs * (2 * queries * d + 2 * keys * d)  # Q and O, K and V
        if op == "naive_attention":
            elements += 4 * pairs * queries * keys  # S and P, each written and read
    return flops, item * elements
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_work_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("roofline.work", work)

# %% [markdown]
# <details><summary>Hint 1: how to begin</summary>
#
# For each operator write a list of the tensors that travel, with their shapes, before you write any formula. The bytes
# are the sum over that list. The FLOPs are: what happens to one element of the result, times the elements.
# </details>
# <details><summary>Hint 2: attention</summary>
#
# It is two matmuls and a softmax, and you have already written those. The scores are a (queries, keys) matrix for every
# head of every batch entry. Each of their elements costs a dot product of length `head_size`, one scaling, five for
# softmax, and then `head_size` multiply-adds in P V.
# </details>
# <details><summary>Hint 3: the bytes of the two attentions</summary>
#
# Fused: Q and O have `queries * head_size` elements, K and V have `keys * head_size`. Naive: the same, plus four times
# the scores, because S is written and read, and P is written and read.
# </details>

# %% [markdown]
# Now use it. Attention over 4096 tokens, batch 4, 16 heads of size 128, in bf16: where do the two versions stand on
# the H200's roof, and what does the naive one pay for its scores? The next cell needs your `work`.

# %%
shape = {"batch": 4, "heads": 16, "queries": 4096, "keys": 4096, "head_size": 128}
h200 = {one.name: one for one in recorded_roofs()}.get("H200 bf16", roof)
for op in ("naive_attention", "fused_attention"):
    count = Work(*work(op, shape, "bf16"))
    print(
        f"{op} on {h200.name}: {count.intensity:.0f} FLOP a byte, ridge "
        f"{ridge(h200):.0f}: {regime(count, h200)}, floor "
        f"{1e3 * floor_s(count, h200):.2f} ms"
    )

# %% [markdown]
# The arithmetic is the same, the bytes are not: on the H200's bf16 roof fusion carries attention across the ridge. Two
# simplifications are in this count. Three kernels stand as one point (lesson 03, section 4, adds kernel by kernel), and
# the operations of softmax are priced like those of tensor cores, which do not compute exponentials. That fusion
# crosses the ridge is the reason for lesson 04. (On a CPU's low roof both are on the right of it: again the machine
# decides.)
#
# ### Verdict on the case
# The claim "a fused second cosine is free" is **right where it was made and wrong as a rule**. It holds as long as the
# chain's arithmetic fits behind the memory traffic, and then it stops: exercise 1.5 finds the corner. On a machine
# with little arithmetic for its bytes, such as many CPUs, it does not hold at all. What to keep for your own work:
# left of the ridge, count bytes and forget the arithmetic. Before you optimise anything, find out on which side you
# are.

# %% [markdown]
# ## 2. How long did it take?
# ### Case file
# **The report says** (systems notes of a language-model course assignment): without warm-up the variation of end-to-end
# times is large; and one should warm up *with the same tensor sizes*.
#
# Both sentences are easy to agree with, and hard to act on: how much warm-up is enough, and what else goes wrong? A GPU
# is a second computer beside the first. Your program posts orders to it and goes on, and almost everything that makes
# timing hard follows from that.
#
# ### A GPU to practise on
# `course_lib.simulated_gpu` has a pretend GPU with a clock of its own. Its difficulties are those of real GPUs, made
# large; no real one has all of them, and which yours has you can try at the end of this section. Every machine can run
# it, and it knows the truth. Times are in seconds and virtual: nothing waits. You get seven calls.
#
# | call | what it does |
# |---|---|
# | `gpu.launch(kernel)` | queues one run of a kernel, always on the same data; returns before it has run |
# | `gpu.flush_cache()` | queues a sweep of the cache; it takes device time as well |
# | `gpu.record()` | queues an event and returns its number; stamped when everything before it is done |
# | `gpu.elapsed(start, end)` | seconds between two stamped events |
# | `gpu.synchronize()` | the host waits until the device has nothing left to do |
# | `gpu.host_time()`, `gpu.sleep(seconds)` | the host's clock; let the host do nothing |

# %% [markdown]
# ### Predict
# A kernel takes 200 microseconds. You read the host's clock, launch the kernel, and read the clock again. What will the
# difference be? And if you synchronise before the second reading?

# %%
predicted_us = {  # replace None
    "clock, launch, clock": None,
    "clock, launch, synchronise, clock": None,
}
### BEGIN PREDICTION
predicted_us = {"clock, launch, clock": 5, "clock, launch, synchronise, clock": 205}
predicted_us["why"] = """The host only posts an order, some 5 us; waiting adds the
kernel and nothing else."""
### END PREDICTION

# %%
from course_lib.simulated_gpu import PITFALLS, DeviceModel


def pretend(difficulty, seconds=200e-6):
    """A device with one difficulty, and one kernel of known length called "kernel"."""
    return DeviceModel({"kernel": seconds}, PITFALLS[difficulty], seed=7).handle()


gpu, seen = pretend("asynchrony"), {}
begin = gpu.host_time()
gpu.launch("kernel")
seen["clock, launch, clock"] = 1e6 * (gpu.host_time() - begin)
gpu.synchronize()
seen["clock, launch, synchronise, clock"] = 1e6 * (gpu.host_time() - begin)
against(predicted_us, seen)

# %% [markdown]
# **The prediction, counted.** The first difference is 6 us: one launch and one reading of the clock. The second is
# 209 us: 200 for the kernel, and the rest for the launch, the way to the device and the way back.
#
# **Asynchrony.** The first number is the time to post an order. It would be the same for a kernel of one second. The
# second number is closer, yet too long: it contains the posting, the way to the device and the way back. Fixed costs of
# some microseconds do not matter for a kernel of ten milliseconds, and ruin the timing of one that takes ten
# microseconds.
#
# The remedy is to let the device read the clock. An *event* is an order like any other: "when you get here, write down
# the time". Two events around a kernel time what lies between them on the device.

# %%
gpu = pretend("asynchrony")
for run in range(3):
    start = gpu.record()
    gpu.launch("kernel")
    end = gpu.record()
    gpu.synchronize()
    print(
        f"run {run}: {1e6 * gpu.elapsed(start, end):.1f} us between the events; "
        "the kernel takes 200"
    )

# %% [markdown]
# Nearly right, and still a few microseconds too long. The device was idle, so it stamped the first event at once and
# then *waited for the host to post the kernel*. Two events have nothing but the kernel between them only while the
# device has something to do before them. With short kernels and a slow host this error is no longer small:

# %%
for ahead in (0, 1, 2, 4, 8):
    gpu = pretend("slow_host", seconds=20e-6)
    for _ in range(ahead):
        # any work will do: it keeps the device busy while the host posts the rest
        gpu.flush_cache()
    start = gpu.record()
    gpu.launch("kernel")
    end = gpu.record()
    gpu.synchronize()
    print(
        f"{ahead} sweeps posted first: {1e6 * gpu.elapsed(start, end):5.1f} us; "
        "the kernel takes 20"
    )

# %% [markdown]
# **A host slower than the device.** When enough work is posted *ahead*, the device is still busy with it while the host
# posts the event, the kernel and the second event. Then the two stamps have only the kernel between them. How much is
# enough depends on the host, so a good timer does not assume a number: it finds one, or posts plenty.
#
# **The events themselves.** What is left is the pair. To write a stamp takes the device a moment, so two events with
# nothing between them are not at the same time. An *empty pair* shows how far apart they are, if the device is busy when
# they are queued. This device's pair is 4 us; that of an H200, 2.9 us, comes at the end of the section.


# %%
def pair_around(gpu, work):
    """Two events around `work`, on a device that has something to do before them."""
    for _ in range(8):
        gpu.flush_cache()
    start = gpu.record()
    work()
    return start, gpu.record()


gpu = pretend("events", seconds=20e-6)
gpu.launch("kernel")  # compiles
kernel, empty = (
    pair_around(gpu, lambda: gpu.launch("kernel")),
    pair_around(gpu, lambda: None),
)
gpu.synchronize()
pair_us, empty_us = (1e6 * gpu.elapsed(*pair) for pair in (kernel, empty))
print(f"around the kernel {pair_us:.1f} us, around nothing {empty_us:.1f} us: "
      f"the kernel takes {pair_us - empty_us:.1f}")  # fmt: skip

# %% [markdown]
# Two remedies. Subtract the empty pair; your stopwatch below has to. Or put no event between the runs:
# `course_lib.timing.time_graph` queues many runs as one CUDA graph (section 8), takes the time of all, and divides.
# What is left in its number is the gap between two kernels, about one microsecond on an H200. **Below about 10
# microseconds use `time_graph`.**

# %% [markdown]
# **Compilation.** The first launch of a kernel compiles it, loads it, and picks algorithms; the allocator asks the
# driver for memory. The report's large variation is probably mostly this. Note what it does to the mean, and how
# little the median cares.


# %%
def host_times(gpu, runs):
    """The stopwatch most people write first: host clock, synchronise, mean."""
    seconds = []
    for _ in range(runs):
        begin = gpu.host_time()
        gpu.launch("kernel")
        gpu.synchronize()
        seconds.append(gpu.host_time() - begin)
    return seconds


ten = [1e6 * s for s in host_times(pretend("compile"), 10)]
print("ten runs:", " ".join(f"{t:.0f}" for t in ten), "us")
print(
    f"mean {sum(ten) / 10:.0f}, median {sorted(ten)[5]:.0f}, mean without the first "
    f"run {sum(ten[1:]) / 9:.0f} us"
)

# %% [markdown]
# **The cache.** A kernel that runs twice on the same data finds part of it in the L2 cache the second time: the cache
# between the memory and all multiprocessors. In a model both happen. A weight was last used one step ago, and hundreds of
# megabytes have passed since: it is cold. An activation was written by the kernel just before, and where it is smaller
# than the cache, much of it is still there. Decide which of the two you want to know, and say which one you give. Our
# timer gives the cold one, because it does not depend on what ran before: it sweeps the cache before every run, *outside*
# the events.
#
# How one sweeps matters too. A sweep that *writes* a large array leaves lines in the cache that memory does not have yet.
# Such lines are called *dirty*, and the timed kernel then pays for writing them back. So our timer's sweep *reads* a
# large array: the cache is full of other data, and nothing has to be written back. The recorded H200 shows both, with a
# product of a matrix and a vector that reads 117 MB. Behind a sweep that writes it takes 1.26 times as long as with
# weights of its own in every call and no sweep, as in a model; behind one that reads, 1.01.

# %%
for sweep in (False, True):
    gpu = pretend("cache")
    for _ in range(5):
        gpu.flush_cache()
    pairs = []
    for _ in range(6):
        if sweep:
            gpu.flush_cache()
        start = gpu.record()
        gpu.launch("kernel")
        pairs.append((start, gpu.record()))
    gpu.synchronize()
    times = " ".join(f"{1e6 * gpu.elapsed(*pair):.0f}" for pair in pairs)
    print(
        f"{'swept' if sweep else 'as it comes'}: {times} us; "
        "the kernel takes 200 when the cache is cold"
    )

# %% [markdown]
# **The clock.** A GPU's clock moves, and a pause moves it. There are two kinds. One lowers its clock while it rests, as
# laptops do, and needs *work* until it has reached its pace; the simulated GPU below is of this kind. Waiting does not
# help it, it does harm: after a pause the clock is low again. The other kind is at its full clock again soon after a
# pause, and slows down under load, when it meets its power limit: section 1 said so of data-centre GPUs, for matrix
# products. So after a rest the first runs are too slow on the one kind, and can be too fast on the other; section 7
# tries it on an H200. A number of warm-up runs cannot be right for all kernels either, because what counts is time. How
# long is enough? Watch until two stretches of runs agree.


# %%
def event_times(gpu, runs):
    """Microseconds of each run, queued without a pause."""
    marks = [gpu.record()]
    for _ in range(runs):
        gpu.launch("kernel")
        marks.append(gpu.record())
    gpu.synchronize()
    return [gpu.elapsed(marks[i], marks[i + 1]) for i in range(runs)]


gpu = pretend("ramp")
first = event_times(gpu, 500)
gpu.sleep(0.5)
again = event_times(gpu, 500)
axes = plots.sweep(
    range(1, 501), {"from the start": first, "after half a second of rest": again},
    xlabel="run", xscale="linear", ceiling=("truth", 200e-6), device="simulated GPU",
    title="The clock needs work to rise, and a pause loses it",
)  # fmt: skip
plots.show(
    axes,
    alt="Time of each of 500 runs, twice: from double the truth down to it, "
    "and again after a pause",
)

# %% [markdown]
# **Outliers.** Now and then something else takes the device: another process, the display, the driver. Such runs are
# always too slow and never too fast, so a mean is pulled up, and by how much is chance. The minimum is not moved by
# outliers, and answers another question: how fast was the luckiest run? It gets luckier the more often you try, and
# where the clock moves it is a run at a clock that does not last. A median asks what the typical run does.

# %%
times = event_times(pretend("outliers"), 300)
ordered = sorted(times)
print(
    f"mean {1e6 * sum(times) / 300:.1f} us, median {1e6 * ordered[150]:.1f} us, "
    f"minimum {1e6 * ordered[0]:.1f} us, maximum {1e6 * ordered[-1]:.1f} us; "
    "the kernel takes 200"
)

# %% [markdown]
# ### The same on your machine
# Two helpers: `wait` until the device is done, and a stopwatch on the host's clock that waits after every run.


# %%
def wait():
    """Until the device has done all that was asked of it; a CPU already has."""
    if GPU:
        torch.cuda.synchronize()


def one_by_one(fn, runs, waiting=True):
    """Seconds of each run on the host's clock, waiting for the device or not."""
    seconds = []
    for _ in range(runs):
        wait()
        begin = time.perf_counter()
        fn()
        if waiting:
            wait()
        seconds.append(time.perf_counter() - begin)
    return seconds


# %% [markdown]
# First the report's sentence. The cell makes a Triton kernel that this process has never run, runs it twenty times,
# then does the same with a length that was not there before. On a GPU look at the first run of both. On a CPU Triton
# interprets instead of compiling; its very first run is slow as well, because modules are loaded, but no later one is.


# %%
@triton.jit
def _add_one_kernel(out_ptr, x_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, x + 1, mask=offs < n)


def add_one(n):
    _add_one_kernel[(triton.cdiv(n, 1024),)](out, x, n, BLOCK=1024)


runs = {f"length {n}": one_by_one(lambda n=n: add_one(n), 20) for n in (4096, 5000)}
axes = plots.sweep(
    range(1, 21), runs, xlabel="run", xscale="linear", yscale="log",
    device=HERE.name, title="The first run of a kernel is not like the others",
)  # fmt: skip
plots.show(
    axes,
    alt="Host time of twenty runs of a new kernel and of a new size; "
    "on a GPU the first is far above",
)

# %% [markdown]
# The second series starts high as well on a GPU, because 5000 is not a multiple of 16: Triton compiles a version of the
# kernel for lengths that are, and another for those that are not. Libraries pick among hundreds of kernels by size,
# and the memory allocator looks for blocks of the right size. That is what "warm up with the same sizes" means.
#
# Now the cache and the stopwatch. `time_gpu` sweeps the cache unless it is told `cold=False`.

# %%
# 12 MiB in three arrays on a GPU, 1.5 MiB on a CPU: small enough for a cache
k = 2**20 if GPU else 2**17


def small_add():
    torch.add(x[:k], y[:k], out=out[:k])


found = {
    "host clock, no waiting": sorted(one_by_one(small_add, 21, waiting=False))[10],
    "host clock, waiting": sorted(one_by_one(small_add, 21))[10],
    "time_gpu, warm cache": time_gpu(small_add, cold=False, max_seconds=0.5),
    "time_gpu, cold cache": time_gpu(small_add, max_seconds=0.5),
}
results.beside("lesson01.four_ways_to_time", found, unit="us")

# %% [markdown]
# Four numbers for one addition, and all four are "measured". Set them beside the floor of memory: three arrays of `k`
# numbers at the copy rate.

# %%
floor_us = 1e6 * 12 * k / top.bytes_per_s
print(f"floor of memory: {floor_us:.1f} us")
for name, took in found.items():
    print(
        f"{name:24} {1e6 * getattr(took, 'median_s', took) / floor_us:5.1f} "
        "times the floor"
    )

# %% [markdown]
# On a GPU the first two numbers are mostly the host's, and say little about the addition. The last two differ only in
# where the data came from. The warm number is the smaller one and just as stable. It is right for arrays that the
# kernel before has just written or read and that fit into the cache, and wrong for weights. It can even lie below the
# floor: then memory was not used at all. The cold number lies above the floor, because a kernel of a few microseconds
# spends a good part of them starting and finishing, the pair of events adds some microseconds to both, and the copy
# behind the floor was a large one.
#
# For a kernel as short as this one `time_graph` is the better timer. The next cell shows it beside the events, warm and
# cold. Its first two rows are the empty pair of a real GPU, and a kernel that does nothing: it starts, and it ends.
# (Only a GPU has events and graphs; without one the table shows the recorded run.)


# %%
@triton.jit
def _nothing_kernel():
    pass


def between_events(fn, runs=31):
    """Seconds between two events around fn, on a device that is busy meanwhile."""
    pairs = []
    for _ in range(runs):
        x.amax()  # a sweep that reads
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        fn()
        pair[1].record()
        pairs.append(pair)
    wait()
    return 1e-3 * sorted(a.elapsed_time(b) for a, b in pairs)[runs // 2]


# %%
short = {}
if GPU:
    short["two events, nothing between"] = between_events(lambda: None)
    nothing = _nothing_kernel[(1,)]
    short["two events, an empty kernel between"] = between_events(nothing)
    graph = time_graph(nothing, cold=False, max_seconds=0.5)
    short["an empty kernel, time_graph"] = graph
    for state, cold in (("warm", False), ("cold", True)):
        events = time_gpu(small_add, cold=cold, max_seconds=0.5)
        short[f"small addition, time_gpu, {state}"] = events
        graph = time_graph(small_add, cold=cold, max_seconds=1.0)
        short[f"small addition, time_graph, {state}"] = graph
results.beside("lesson01.short", short, unit="us")

# %% [markdown]
# Read the table in pairs. Whatever a pair of events says about a kernel, the first row is in it, 2.9 us on the recorded
# H200, and the second row is about the least that it can say, 4.4 us. In a graph the same kernel takes 0.7 us with its
# gap. The addition by `time_graph` is less than by events, 3.5 us less warm and 2.3 us less cold, because no event
# stands between the runs. For compute-bound kernels of a millisecond all of this is lost in the digits; there the
# *clock* decides, and section 7 measures one product beside others and alone.
#
# Which state is the right one for your model? An activation was written by the kernel before. The next cell lets one
# kernel write an array and another read it, and subtracts the time of the first; beside it stands the second kernel
# after a sweep.

# %%
import functools

fresh = {}
for mib in (4, 16, 64, 256) if GPU else (1, 4, 16):
    n = mib * 2**18
    write, read = (
        functools.partial(torch.mul, x[:n], 2, out=out[:n]),
        functools.partial(torch.mul, out[:n], 2, out=y[:n]),
    )
    both, first = timed(lambda: (write(), read())), timed(write)  # noqa: B023
    fresh[f"{mib} MiB, just written"] = both.median_s - first.median_s
    fresh[f"{mib} MiB, swept"] = timed(read).median_s
results.beside("lesson01.fresh", fresh, unit="us")

# %% [markdown]
# Mind the pair of events: it is in the rows "swept", and the subtraction takes it out of the others. Where the array is
# smaller than the L2 cache (`torch.cuda.get_device_properties(0).L2_cache_size` says how large yours is), the reader of
# fresh data is still the faster one. On the recorded H200 it takes 3.4 us for 4 MiB, and swept 4.2 us without the
# pair; for 16 MiB 7.8 and 9.5 us. Where the array is larger than the cache, nothing is left of its beginning when the
# reader begins, and fresh data gain nothing: 34.9 us for 64 MiB, and swept 31.1 us without the pair. So a chain of small
# activations runs near the warm time, and weights, which come back once a step, at the cold one. Say which you report.

# %% [markdown]
# ### What a good timer does
# Put together: events and not the host's clock; work posted ahead, so that the device never waits inside a pair; runs
# until two stretches of time agree, before anything counts; a cold cache for each run, swept outside the pair; enough
# runs for a stable median, and the median as the answer, with its conditions beside it: cold or warm, back to back or
# after a rest. `course_lib.timing.time_gpu` does this, NVIDIA's `nvbench` and Triton's `do_bench` do most of it. The
# interval that it prints is of one series; to compare two programs, call them in turn, and repeat it in several
# processes.

# %% [markdown]
# ## Exercise 1.2 `roofline.stopwatch` (40 min, 10 points)
# Write `stopwatch(gpu, kernel)`, which returns **the seconds that one run of `kernel` takes on the device: with a cold
# cache, at the sustained clock, with nobody else on the device and without waiting for the host.** Compilation, sweeps,
# launches, idle time and the events' own time are no part of it. `kernel` is a name, `gpu` is a pretend device with the
# seven calls above.
#
# What is promised about the devices:
#
# - after 0.15 s of work the clock has reached its sustained speed; it falls again when the device rests for some
#   milliseconds
# - of any five runs of the kernel in a row, somebody else slows down one at most
# - a run takes between 20 microseconds and 3 milliseconds, and varies by a few per cent
# - a launch may cost the host more time than a sweep, or the kernel, costs the device, but no more than six sweeps
# - an event takes the device up to 5 microseconds, the same on one device wherever it stands
#
# Every device is drawn afresh, so no number can be learnt by heart. Your budget for one answer is 10,000 calls of `gpu`
# and 3 virtual seconds. Right means within 5 % of the truth; a careful timer is off by 0.1 % typically and by
# 2.5 % at worst.


# %% nbgrader={"grade": false, "grade_id": "roofline_stopwatch", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stopwatch(gpu, kernel):
    """Seconds of one run of `kernel` on the device, cold and sustained."""
    ### BEGIN SOLUTION
    gpu.launch(kernel)  # compiles
    gpu.synchronize()

    began = gpu.host_time()
    while gpu.host_time() - began < 0.22:  # work, not waiting, brings the clock up
        for _ in range(20):
            gpu.flush_cache()
            gpu.launch(kernel)
        gpu.synchronize()

    samples = []
    for _ in range(100):
        # cold cache, and enough work ahead that the device never waits for the launch
        for _ in range(8):
            gpu.flush_cache()
        start = gpu.record()
        gpu.launch(kernel)
        # the last two are an empty pair
        samples.append((start, gpu.record(), gpu.record()))
    gpu.synchronize()  # at the end: a wait in between would let the device run dry

    times = sorted(gpu.elapsed(a, b) - gpu.elapsed(b, c) for a, b, c in samples)
    return (times[49] + times[50]) / 2
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_stopwatch_check", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false}
check("roofline.stopwatch", stopwatch)

# %% [markdown]
# <details><summary>Hint 1: the order of things</summary>
#
# Launch once and wait (compilation). Work until the clock is up. Queue all samples. Wait once. Read all events. Take
# the median. If you synchronise inside the loop of samples, the device is idle whenever a sample begins.
# </details>
# <details><summary>Hint 2: read the list of cases</summary>
#
# The first nine cases have one difficulty each, and their names say which. A timer that is wrong only for "a slow
# host" lacks work queued ahead; one that is wrong only for "a clock that ramps up" warms up by a number of runs and
# not by time.
# </details>
# <details><summary>Hint 3: how much of everything</summary>
#
# 0.2 s of warm-up made of sweeps and launches. 100 samples. Before each sample 8 sweeps, more than the six that a
# launch may last: the last of them empties the cache, the others keep the device busy while the host is slow. Then
# `record`, `launch`, `record`, and one `record` more: the last two are an empty pair, which you subtract.
# </details>

# %% [markdown]
# ### Your timer on a real device
# Your stopwatch knows seven calls, and a real device can answer them. The class below is all it takes (on a CPU an
# event is simply the clock, because work is done when a call returns). Nothing here is graded.


# %%
class RealDevice:
    """The seven calls of the pretend GPU, answered by the machine at hand."""

    def __init__(self, **kernels):
        self.kernels, self.events = kernels, []
        self.sweep = torch.ones(2**26 if GPU else 2**21, device=DEVICE)  # 256 or 8 MiB
        self.synchronize, self.sleep = wait, time.sleep
        self.host_time = time.perf_counter

    def launch(self, kernel):
        self.kernels[kernel]()

    def flush_cache(self):
        self.sweep.amax()  # reads: a sweep that writes leaves lines to be written back

    def record(self):
        event = torch.cuda.Event(enable_timing=True) if GPU else time.perf_counter()
        self.events.append(event)
        if GPU:
            event.record()
        return len(self.events) - 1

    def elapsed(self, start, end):
        a, b = self.events[start], self.events[end]
        return a.elapsed_time(b) * 1e-3 if GPU else b - a


# %%
real = RealDevice(add=lambda: torch.add(x, y, out=out), small_add=small_add)
rows = {}
for name, fn in real.kernels.items():
    rows[f"{name}, my stopwatch"] = stopwatch(real, name)
    rows[f"{name}, time_gpu"] = time_gpu(fn, max_seconds=0.5)
results.beside("lesson01.stopwatch", rows, unit="us")

# %% [markdown]
# On a GPU the two should agree within a few per cent for the large addition. If they do not, your timer is not
# necessarily the wrong one: print `time_gpu`'s result and read its warnings. For the small addition your stopwatch says
# less, by an empty pair, because it subtracts one and `time_gpu` does not. (The rows of 2026-11-21 are of a stopwatch
# that did not subtract, so they lie close together.) On a CPU expect less: there is no device of its own, the cache is
# not swept as thoroughly, and other processes share the cores.
#
# Does your GPU's clock fall at rest or under load? Try it: `time.sleep(5)`, then `one_by_one(real.kernels["add"],
# 200)`, and compare the first runs with the last. Then the same with a large product of bf16 matrices in place of the
# addition. Runs that get faster say the one, runs that get slower the other; a single slow run at the beginning says
# neither.
#
# ### Verdict on the case
# "Without warm-up the variation is large" is right, and it is one seventh of the truth. The cure that most people know,
# some warm-up runs and a mean, removes the largest error and leaves six. Of these the warm cache is the most
# expensive, because it is silent: the number is stable and repeatable, and it is the number of another situation than
# the reader has in mind. "Warm up with the same sizes" is right as well, and you have seen why: a new length can be a
# new kernel.
#
# **Stop here.** The first sitting ends. You can count, you have a roof, and you have a timer that you can trust.

# %% [markdown]
# ## 3. Three regimes
# ### Case file
# **The report says** (the same first-principles notes): overhead does not grow with the problem. So if you double the
# size of your inputs and the time rises by only ten per cent, the program is bound by overhead.
#
# Every call of an operator costs the host time: Python finds the function, PyTorch picks the kernel, allocates the
# result, checks types, and hands a launch to the driver. None of that depends on how many elements there are. The GPU
# works through its queue at the same time, so in a long row of calls the slower of the two sets the pace.
#
# ### Predict
# An addition of two fp32 arrays, called again and again. Below some number of elements its time should not depend on
# the size at all. Which number, on your machine? You have the cost of a call and the bytes a second from section 1.

# %%
predicted_elements = {"size does not matter up to": None}  # replace None
### BEGIN PREDICTION
predicted_elements = {"size does not matter up to": 2e6}
predicted_elements["why"] = """For the H200: some 6 us a call, times 4.27 TB/s, over
12 bytes an element."""
### END PREDICTION

# %% [markdown]
# ### Measure
# This time we do not want the kernel alone, as `time_gpu` gives it, but what a training loop sees: many calls, one
# behind the other, and a wait only at the end.


# %%
def each(fn, calls=50, rounds=5):
    """Seconds that one of many queued calls costs: the median of some rounds."""
    seconds = []
    for _ in range(rounds + 1):  # the first round warms up
        wait()
        begin = time.perf_counter()
        for _ in range(calls):
            fn()
        wait()
        seconds.append((time.perf_counter() - begin) / calls)
    return sorted(seconds[1:])[rounds // 2]


# %%
sizes = [2**k for k in range(8, N.bit_length())]
add_s = [
    each(
        lambda n=n: torch.add(x[:n], y[:n], out=out[:n]),
        50 if n < 2**20 else 10,
        rounds=15,
    )
    for n in sizes
]
flat_s = sorted(add_s)[len(sizes) // 5]
call = Roof("add", roof.flops_per_s, roof.bytes_per_s, launch_s=flat_s)
axes = plots.regimes(sizes, add_s, call, lambda n: Work(n, 12 * n), device=HERE.name)
plots.show(axes, alt="Time of an addition against its size: flat, then a straight "
                     "line along the bandwidth limit")  # fmt: skip
corner = call.launch_s * call.bytes_per_s / 12
against(predicted_elements, {"size does not matter up to": corner})
results.beside("lesson01.call", {"one of many additions": call.launch_s}, unit="us")

# %% [markdown]
# **The prediction, counted.** On the recorded H200 a call costs 9.9 us. At 4.27 TB/s memory moves 42 MB in that time,
# and an element has 12 bytes, so the corner lies at 3.5 million elements.
#
# The flat part is the host, the slope is memory. Neither line is fitted: the slope is the ceiling from lesson 00, and
# the flat one is the fourth-smallest time. One call is four calls here, three slices and an addition, and the host pays
# for each. On the recorded H200 they take 9.9 us. The addition alone, on tensors that are there, took 5.9 us on one
# host and 9.0 on another (both in lesson 03, section 7), so without the slices the corner would lie at a smaller size,
# by a factor of 1.1 to 1.7. (On a CPU there may be a third part between them, lower than the slope: arrays that still
# fit into a cache. On a fast GPU that part is hidden: the device is done with such arrays before the host has launched
# the next call.)
#
# Now the report's rule. The next cell doubles the size step by step and prints what the time does.

# %%
doubled = [(n, after / before) for n, before, after in zip(sizes, add_s, add_s[1:])]
for n, ratio in doubled:
    says, roof_says = (
        "overhead" if ratio < 1.1 else "size",
        regime(Work(n, 12 * n), call),
    )
    print(
        f"{n:>10} -> {2 * n:>10} elements: {ratio:4.2f}x the time; "
        f"the rule says {says}, the roof {roof_says}"
    )

# %% [markdown]
# ### Understand
# The rule works, away from the corner and where times are steady. Close to the corner the rule and the roof may
# disagree, because there the two costs are nearly equal and both matter. A line far to the left of it that says
# "size", if your run has one, is the host's own scatter: ten per cent is little for a host that has other things to
# do. Two or three doublings in a row say much more than one.
#
# The three regimes matter because their remedies have nothing in common.
#
# | regime | how you see it | what helps | what does not |
# |---|---|---|---|
# | overhead | time does not grow with size; the GPU has gaps | fewer and larger calls: batching, fusion, CUDA graphs, compiling | faster kernels, a faster GPU |
# | bandwidth | time grows with bytes; FLOP/s far below the peak | fewer bytes: fusion, smaller types, recomputing | fewer FLOPs |
# | compute | time grows with FLOPs | tensor cores, lower precision, less arithmetic | fewer bytes |
#
# The table's last column is where weeks are lost. The explorer shows the three on one axis: change the launch cost,
# then the FLOPs an element, and watch which sizes notice.

# %%
widgets.regime_explorer((recorded_roofs() or [roof])[-1])

# %% [markdown]
# ### Case file: why is the larger model faster?
# **The report says** (systems notes of a language-model course assignment): mixed precision makes small models slower
# and large ones faster. The table gives seconds for ten runs of the whole model. Its author leaves one question open:
# in mixed precision the 2.7b model is *faster* than the smaller xl model. How can that be?
#
# | model | layers | width | forward | backward | forward, mixed | backward, mixed |
# |---|---|---|---|---|---|---|
# | small | 12 | 768 | .318 | .733 | .486 | .918 |
# | medium | 24 | 1024 | .656 | 1.691 | .962 | 1.770 |
# | large | 36 | 1280 | .948 | 4.092 | 1.330 | 2.244 |
# | xl | 48 | 1600 | 1.766 | 8.498 | 1.510 | 3.651 |
# | 2.7b | 32 | 2560 | 1.838 | 13.481 | .932 | 4.094 |
#
# ### Predict
# Look at the table until you have an answer, and write it down. One line is enough. (The seconds are the report's. Of
# the layers it confirms 48 for xl and 32 for 2.7b; those of the other models and the widths are from the table of model
# sizes in the assignment's handout, CS336 assignment 2.)

# %%
predicted_reason = None  # replace None with a string: "2.7b is faster because ..."
### BEGIN PREDICTION
predicted_reason = """2.7b is faster because it has fewer layers, and why: layers cost
calls, not FLOPs"""
### END PREDICTION

# %% [markdown]
# If arithmetic set the time, then the time of *one layer* would grow with the square of the width. If bytes set the
# time, it would grow with the width as well, activations in proportion and weights with the square. If the host sets
# it, the time of a layer does not depend on the width at all. So divide by the layers.

# %%
# layers, width, then seconds for 10 runs:
# forward, backward, forward mixed, backward mixed
REPORT = {
    "small": (12, 768, 0.318, 0.733, 0.486, 0.918),
    "medium": (24, 1024, 0.656, 1.691, 0.962, 1.770),
    "large": (36, 1280, 0.948, 4.092, 1.330, 2.244),
    "xl": (48, 1600, 1.766, 8.498, 1.510, 3.651),
    "2.7b": (32, 2560, 1.838, 13.481, 0.932, 4.094),
}
print(
    "milliseconds a layer          forward  backward   mixed: "
    "forward  backward     width squared, relative"
)
for name, (layers, width, *seconds) in REPORT.items():
    full, full_back, mixed, mixed_back = (1e3 * s / 10 / layers for s in seconds)
    print(
        f"{name:<28}{full:9.2f}{full_back:10.2f}{mixed:17.2f}{mixed_back:10.2f}"
        f"{(width / 768) ** 2:20.1f}"
    )
xl, largest = REPORT["xl"], REPORT["2.7b"]
print(
    f"\n2.7b over xl: layers {largest[0] / xl[0]:.2f}, forward mixed "
    f"{largest[4] / xl[4]:.2f}"
)

# %% [markdown]
# The column of the mixed forward pass does not grow, it even falls, while the arithmetic of a layer grows as in the
# last column. The host sets the time of that column for **all five** models, and the time is then the number of layers
# times something like a constant. **The prediction, counted.** The xl model has 48 layers and 2.7b has 32, which is
# nearly the whole riddle: the last line sets the ratio of the layers beside the ratio of the times.
#
# The other columns show the regimes change. The full-precision forward pass is flat for three models and then grows;
# the backward pass leaves the flat part one model earlier. Mixed precision divides the arithmetic time and *adds*
# calls, a cast for each weight and for many activations: it must lose in the flat part and win beyond it, and in the
# table it does both.

# %% [markdown]
# ### What the table does not explain
# Two things should still bother you. The constant is not constant: it falls by more than a quarter from the smallest
# model to the largest, and no regime makes a larger layer cheaper for the host. And it is large. Divide it by the cost
# of a call: how many calls in one layer would that be? (What the cell calls "an addition here" is the call of the
# figure above, with its three slices. By an addition alone on the recorded H200 the layer would have 1.1 to 1.7 times
# as many calls.) A transformer layer written by hand makes, by our count, some 50 to 100, casts included. Either that
# host was slower than the ones below, or the rest of its time went into Python between the calls: type checks, `einops`
# expressions, autocast's own bookkeeping. The table cannot tell. "Launches set the time" is a good first word for it;
# "the host sets the time" is what the figures support.

# %%
costs = [("an addition here", call.launch_s)]
costs += [
    ("a Triton launch on the recorded H200", one.launch_s)
    for one in recorded_roofs()[:1]
]
for name, cost in costs:
    calls = [row[4] / 10 / row[0] / cost for row in REPORT.values()]
    print(
        f"at {cost * 1e6:.1f} us a call ({name}) a mixed forward pass through one "
        f"layer would be {min(calls):.0f} to {max(calls):.0f} calls"
    )

# %% [markdown]
# ### Measure it here
# The report's effect can be had in a few lines: a stack of layers, narrow to wide, in fp32 and, on a GPU, with bf16
# autocast. On a CPU the widths are smaller, and only fp32 is run.


# %%
class Layer(torch.nn.Module):
    """Attention with heads of 64 (16 on a CPU), then an MLP four times as wide."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // (64 if GPU else 16)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = (
            torch.nn.Linear(width, 3 * width),
            torch.nn.Linear(width, width),
        )
        self.up, self.down = (
            torch.nn.Linear(width, 4 * width),
            torch.nn.Linear(4 * width, width),
        )

    def forward(self, x):  # (batch, length, width)
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attention = torch.nn.functional.scaled_dot_product_attention
        mixed = attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm2(x))))


# %%
import functools

from course_lib.device import share_of_sizes


@torch.no_grad()
def forward(model, tokens, mixed):
    # entered for every pass, as in a training loop, so the weights are cast every time
    with torch.autocast(DEVICE, torch.bfloat16, enabled=mixed):
        model(tokens)


# 8 of the widest take 6 GiB
LAYERS, TOKENS = max(2, round(8 * share_of_sizes())), (4, 128) if GPU else (1, 16)
widths = (256, 512, 1024, 2048, 4096) if GPU else (16, 32, 64, 128, 256)
layer_s = {"fp32": [], "bf16 autocast": []} if GPU else {"fp32": []}
for width in widths:
    with torch.device(DEVICE):
        model = torch.nn.Sequential(*(Layer(width) for _ in range(LAYERS)))
    tokens = torch.randn(*TOKENS, width, device=DEVICE)
    for name, seconds in layer_s.items():
        run = functools.partial(forward, model, tokens, name != "fp32")
        seconds.append(each(run, calls=10) / LAYERS)
    del model, run

# %%
axes = plots.sweep(
    widths, layer_s, xlabel="width", ylabel="time of one layer", yscale="log",
    device=HERE.name, title="A layer costs the same until it is wide enough",
)  # fmt: skip
plots.show(
    axes,
    alt="Forward time of one transformer layer against its width, flat for narrow "
    "layers, then rising",
)
rows = {
    f"{name}, width {w}": s
    for name, column in layer_s.items()
    for w, s in zip(widths, column)
}
results.beside("lesson01.layers", rows, unit="us")

# %% [markdown]
# Find the width at which the fp32 line leaves its flat part. Left of it, a layer costs what its calls cost. On a GPU
# compare the two lines: autocast is the slower one for narrow layers and the faster one for wide layers, and its own
# flat part reaches much further. That is the report's table, measured with layers only. How long a flat part is depends
# on the host: on the recorded H200 that of the fp32 line holds two widths at most; a slower host makes it longer.

# %% [markdown]
# ## Exercise 1.3 `roofline.regime` (30 min, 6 points)
# Do by program what you just did by eye. Write `regimes(rows, roof)`, which returns `(labels, overhead_ends)` for one
# operator that was timed at growing sizes.
#
# - `rows`: a list with one dictionary a size, in order of size: `size`, `flops`, `bytes`, and `seconds`, a list of
#   seven timings
# - `roof`: a dictionary with the measured ceilings of the device, `flops_per_s` and `bytes_per_s`. What a launch
#   costs is *not* given
# - `labels`: for every row `"overhead"` where the time is a constant that does not grow with the work; otherwise
#   `"bandwidth"` below the ridge and `"compute"` from the ridge on
# - `overhead_ends`: the size at which the time that the work needs overtakes the constant; 0 when it lies below the
#   first size, so that no row is overhead; `None` when it lies above the last, so that every row is
#
# What is promised: the operator reaches a fixed share of the roof, anywhere from 20 % to 95 %. Sizes grow by 15 to 35 %
# from row to row. Timings vary by a few per cent, and at most two of the seven were disturbed and are far too long.
# Overhead ends at least a factor of 2.5 in size away from the first and the last row, inside the table or outside.
#
# Right means: `overhead_ends` within a factor of 2, and every label right, but for sizes within a factor of 2 of the
# end of overhead, which timings cannot tell apart.


# %% nbgrader={"grade": false, "grade_id": "roofline_regime", "locked": false, "schema_version": 3, "solution": true, "task": false}
def regimes(rows, roof):
    """The regime of every row, and the size at which overhead ends."""
    ### BEGIN SOLUTION
    times = [sorted(row["seconds"])[3] for row in rows]  # the median of seven
    by_bytes = [row["bytes"] / roof["bytes_per_s"] for row in rows]
    by_flops = [row["flops"] / roof["flops_per_s"] for row in rows]
    floors = [max(b, f) for b, f in zip(by_bytes, by_flops)]

    # How many times slower than the roof: a constant where the work sets the time, and
    # larger where overhead does.
    slower = [t / floor for t, floor in zip(times, floors)]
    settled = sorted(slower[-3:])[1]
    # more work was free all the way to the last row
    if times[-1] < 1.3 * times[0] and floors[-1] > 2 * floors[0]:
        ends = len(rows)
    else:
        ends = sum(ratio > 1.3 * settled for ratio in slower)

    side = ["bandwidth" if b > f else "compute" for b, f in zip(by_bytes, by_flops)]
    labels = ["overhead"] * ends + side[ends:]
    if ends == 0:
        return labels, 0
    return labels, rows[ends]["size"] if ends < len(rows) else None
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_regime_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("roofline.regime", regimes)

# %% [markdown]
# <details><summary>Hint 1: what tells overhead from a slow kernel</summary>
#
# Not the distance to the roof: a kernel may reach 20 % of it at every size. Overhead is time that does not grow when
# the work does. Begin at the large end of the table, where the work sets the time if it does so anywhere.
# </details>
# <details><summary>Hint 2: one number a row</summary>
#
# Divide each median time by what the roof allows for that row. Where the work sets the time this ratio is the same for
# all rows, one over the share. Where overhead does, it is larger, and it grows towards the small sizes.
# </details>
# <details><summary>Hint 3: the two ends of the table</summary>
#
# Compare every ratio with the median of the last three; a third above it is a safe limit. If no ratio exceeds it, no
# row is overhead. The table in which all rows are overhead needs a test of its own, since its last rows have not
# settled: has the time hardly grown although the work has more than doubled?
# </details>

# %% [markdown]
# ### Verdict on the two cases
# "Overhead does not grow with the problem": right, and the doubling test is the cheapest measurement there is. Use it
# with two or three doublings. "Why is 2.7b faster than xl": because xl has more layers, and in that column the host is
# the limit at every size. The report's own conclusion, that mixed precision pays for large models only, is right for
# its code and no law: with fewer launches (fused norms and activations, `torch.compile`, CUDA graphs) the small models
# would leave the flat part and gain too. For your own work: before you choose a precision, find the regime; a faster
# arithmetic unit does nothing for a program that waits for Python.

# %% [markdown]
# ## 4. Profilers: where the time goes
# ### Case file
# **The report says** (systems notes of the course assignment): in an fp32 language model matrix products dominate,
# elementwise multiplications take about 10 % of the time. And one thing is puzzling: inside attention, the product of
# queries and keys does far more FLOPs than softmax, yet their run times are comparable. Why?
#
# Before you reach for a profiler, count. That is the order which this lesson recommends in general: a profile tells you
# *what* takes time, and a count tells you whether it *should*.
#
# ### Predict
# Scores of 64 heads of size 64 over 1024 tokens, in fp32 (on a CPU: 4 heads, 512 tokens). How many times longer does
# the product take than softmax, if you believe the FLOPs? If you believe the bytes? The report's softmax was written
# by hand in PyTorch: maximum, subtraction, exponential, sum, division, five kernels.

# %%
predicted_ratio = {"product / softmax by hand": None}  # replace None
### BEGIN PREDICTION
predicted_ratio = {"product / softmax by hand": 0.33}
predicted_ratio["why"] = """For the H200: each at its own floor, 0.167 ms of fp32
arithmetic over 0.503 ms of eight passes."""
### END PREDICTION

# %%
heads, tokens, size = (64, 1024, 64) if GPU else (4, 512, 64)
scores = heads * tokens**2
counts = {
    "product": Work(
        *work("matmul", {"batch": heads, "m": tokens, "n": tokens, "k": size}, "fp32")
    ),
    "softmax": Work(
        *work("softmax", {"rows": heads * tokens, "columns": tokens}, "fp32")
    ),
    # maximum reads; subtraction reads and writes; exponential too; sum reads; division
    # reads and writes
    "softmax by hand": Work(5 * scores, 8 * 4 * scores),
}
for name, count in counts.items():
    print(
        f"{name:16} {count.flops / 1e9:6.2f} GFLOP, {count.bytes / 2**20:6.0f} MiB, "
        f"{count.intensity:5.1f} FLOP a byte, floor {1e3 * floor_s(count, roof):.3f} "
        f"ms, {regime(count, roof)}"
    )

# %%
q, kT = (
    torch.randn(heads, tokens, size, device=DEVICE),
    torch.randn(heads, size, tokens, device=DEVICE),
)
s, e = (
    torch.empty(heads, tokens, tokens, device=DEVICE),
    torch.empty(heads, tokens, tokens, device=DEVICE),
)


def softmax_by_hand():
    torch.sub(s, s.amax(dim=-1, keepdim=True), out=e)
    torch.exp(e, out=e)
    torch.div(e, e.sum(dim=-1, keepdim=True), out=e)


parts = {
    "product": timed(lambda: torch.bmm(q, kT, out=s)),
    "softmax": timed(lambda: torch.softmax(s, dim=-1, out=e)),
    "softmax by hand": timed(softmax_by_hand),
}
against(
    predicted_ratio,
    {"product / softmax by hand": parts["product"].ms / parts["softmax by hand"].ms},
)
results.beside("lesson01.scores", parts, unit="ms")

# %% [markdown]
# **The prediction, counted.** By FLOPs the product takes 128 / 5 = 25.6 times as long as softmax by hand, and by
# bytes 288 / 2048 = 0.14 of its time. Each at its own floor on the H200, 0.167 / 0.503 ms, is 0.33; 0.39 came.
#
# The report's puzzle dissolves in the table of counts. The product has an intensity of tens of FLOPs a byte, softmax less
# than one: one is priced in FLOPs, the other in bytes, and there is no reason why the two prices should be in the ratio
# of the FLOPs. Written by hand, softmax moves four times the bytes it must. That, and not its arithmetic, is what makes
# it comparable to a product with many times its FLOPs; on the recorded H200 it takes even longer than the product. Faster
# arithmetic would make the puzzle worse: with tensor cores the product shrinks and softmax stays. (If your CPU is faster
# than a floor in the table: its arrays of 4 MiB fit into a cache, and the floor assumes that every kernel goes to
# memory.)

# %% [markdown]
# ### A profile with names
# A profiler lists hundreds of kernels with names like `ampere_sgemm_128x64_tn`. Names of your own make it readable:
# `span("forward")` marks a stretch of the program in torch's profiler, and on a GPU in NVTX too, so that NVIDIA's
# Nsight Systems shows the same names (`nsys profile -t cuda,nvtx python train.py`). Let us profile one training step
# of the layers from section 3.

# %%
from course_lib import profiling
from course_lib.profiling import span

width, shape = (2048, (4, 512)) if GPU else (256, (1, 16))
with torch.device(DEVICE):
    model = torch.nn.Sequential(*(Layer(width) for _ in range(2)))
    batch = torch.randn(*shape, width)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    with span("forward"):
        loss = model(batch).square().mean()
    with span("backward"):
        loss.backward()
    with span("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


seen = profiling.profile(step, warmup=3)
print(seen)

# %% [markdown]
# On a GPU the rows are kernels, on a CPU they are PyTorch's operators. Two questions for the tables. Which share do the
# matrix products have? And for each range: is the host's time in it longer than the device's, or shorter?


# %%
def share(*words):
    # fused attention is neither of the two
    rows = [row for row in seen.kernels if "fmha" not in row.name]
    return sum(
        row.share for row in rows if any(word in row.name.lower() for word in words)
    )


products = share("gemm", "mm", "nvjet", "cutlass")
elementwise = share("elementwise", "aten::mul", "aten::add_")
print(
    f"matrix products {products:.0%}, named elementwise {elementwise:.0%}; the report: "
    "products dominate, elementwise multiplications about 10 %"
)
results.beside(
    "lesson01.profile",
    {"busy": seen.busy_share, "products": products, "elementwise": elementwise},
    unit="",
)

# %%
from course_lib.profiling.trace import outermost

ranges = [
    r for r in seen.trace.ranges if r.name in ("forward", "backward", "optimizer")
]


def launched_in(work):
    """The name of the range in which the host asked for this work."""
    at = work.start_s if work.launched_s is None else work.launched_s
    return next((r.name for r in ranges if r.start_s <= at < r.end_s), "outside")


work_done = seen.trace.device or outermost(seen.trace.operators)
lanes = {
    "ranges on the host": [(r.start_s, r.end_s, r.name) for r in ranges],
    "device" if GPU else "operators": [
        (i.start_s, i.end_s, launched_in(i)) for i in work_done
    ],
}
axes = plots.timeline(
    lanes, title="A training step: what the host says, and what runs", device=HERE.name
)
plots.show(
    axes,
    alt="Timeline of one training step: the host's ranges above; "
    "below, the work, marked by the range in which it was launched",
)

# %% [markdown]
# On a GPU with this much to do the two lanes are not aligned: the device runs behind the host, so when a kernel runs
# the host may be in the next range already. A kernel therefore belongs to the range in which it was *launched*, as the
# colours show, and the profiler keeps a number with both, the correlation. On a CPU an operator runs where it is
# called, and the lanes agree.
#
# White space in the device's lane is time in which your GPU does nothing. The share of the window without it, **busy**,
# is the first number to look at in any profile: when the device idles, faster kernels do not help. The "GPU
# utilisation" of `nvidia-smi` is the same quantity over a window of its own: a moment counts as soon as one kernel
# runs, however small. So both have the same blind spot. A busy share far below 100 % says that something is missing;
# 100 % can be read on a device that uses a hundredth of its arithmetic. (Set `width` to 256 and run the cells again:
# who waits for whom now?)
#
# So two more questions belong to the busy share. Where it is high: *how long are the kernels?* A kernel that does nothing
# takes 0.7 us on the recorded H200 (section 2). A device that runs kernels of two microseconds one behind the other is
# busy with starting them, and fewer kernels would help it more than faster ones. Where it is low: *what did the host do
# when the device ran dry?* If it was inside a synchronisation (`.item()`, `.cpu()`, a `print` of a tensor), it waited for
# the device and then the device for it; the remedy is to take the wait away. If not, the host was too slow at launching.
# The exercise asks for all of this.

# %% [markdown]
# ## Exercise 1.4 `roofline.profile` (30 min, 8 points)
# Write the reader of a recorded trace: `profile(events, gap_us)`.
#
# A **stream** is a queue of work for the device: work in one stream runs in order, two streams may run
# at the same time.
#
# `events` is a list of dictionaries in no promised order. All have `category`, `name`, `start_us`, `duration_us`, and:
#
# | category | also has | meaning |
# |---|---|---|
# | `"range"` | `thread` | a named stretch of one host thread; ranges of one thread may nest |
# | `"launch"` | `thread`, `correlation` | the host puts work into a stream; the call returns before it is done |
# | `"kernel"` | `stream`, `correlation` | the device runs a kernel; its correlation is that of its launch |
# | `"sync"` | `thread` | the host waits for the device |
#
# Return a dictionary with four entries.

# %% [markdown]
# - `"ranges"`: for every range name, the sum of the durations of the kernels that belong to it, over all occurrences of
#   the name; a name without kernels may have 0 or be left out. A kernel belongs to the innermost range that was open *on
#   the launching thread* when its launch started. Kernels launched in no range come under `"outside"`. One launch may
#   start several kernels (a graph).
# - `"busy"`: the share, from 0 to 1, of the window in which at least one counted kernel runs, on any stream. The window
#   runs from the start of the first counted kernel to the end of the last one to end.
# - `"gaps"`: a list of `[start_us, duration_us]`, in order: the stretches of the window longer than `gap_us` in which
#   no counted kernel runs on any stream.
# - `"bound"`: what keeps the program from being faster. When `busy` is 0.9 or more: `"small kernels"` if counted
#   kernels shorter than 5 us have more than half of the kernel *time* (all their durations, added up), otherwise
#   `"device"`. When it is less: `"waits"` if more than half of the idle time of the window began while the host was
#   inside a `"sync"`, otherwise `"host"`. Here all idle time counts, whatever `gap_us` is, and a stretch of idle time
#   counts as a whole: `sync start <= stretch start < sync end`.
#
# What was launched inside a range called `"warmup"`, at any depth, is not counted anywhere. Without any counted kernel:
# no ranges, busy 0, no gaps, `"host"`.


# %% nbgrader={"grade": false, "grade_id": "roofline_profile", "locked": false, "schema_version": 3, "solution": true, "task": false}
def profile(events, gap_us):
    """Device time of each range, busy share, gaps and verdict of a recorded trace."""
    ### BEGIN SOLUTION
    ranges = [e for e in events if e["category"] == "range"]
    launches = {e["correlation"]: e for e in events if e["category"] == "launch"}

    def around(launch):
        """Names of the ranges open on its thread at its start, the innermost last."""
        at = launch["start_us"]
        mine = [r for r in ranges if r["thread"] == launch["thread"]]
        begun = [r for r in mine if r["start_us"] <= at]
        open_then = [r for r in begun if at < r["start_us"] + r["duration_us"]]
        return [r["name"] for r in sorted(open_then, key=lambda r: r["start_us"])]

    times, spans = {}, []
    for kernel in (e for e in events if e["category"] == "kernel"):
        names = around(launches[kernel["correlation"]])
        if "warmup" in names:
            continue
        name = names[-1] if names else "outside"
        times[name] = times.get(name, 0.0) + kernel["duration_us"]
        spans.append((kernel["start_us"], kernel["start_us"] + kernel["duration_us"]))
    if not spans:
        return {"ranges": {}, "busy": 0.0, "gaps": [], "bound": "host"}

    spans.sort()
    first = reached = spans[0][0]  # `reached`: the latest end of any kernel so far
    idle = []
    for start, end in spans:
        if start > reached:
            idle.append([reached, start - reached])
        reached = max(reached, end)
    idle_us, took = sum(us for _, us in idle), [end - start for start, end in spans]
    busy = 1 - idle_us / (reached - first)
    if busy >= 0.9:
        in_small = sum(us for us in took if us < 5)
        bound = "small kernels" if in_small > sum(took) / 2 else "device"
    else:
        syncs = [e for e in events if e["category"] == "sync"]
        waits = [(e["start_us"], e["start_us"] + e["duration_us"]) for e in syncs]
        waited = sum(us for at, us in idle if any(a <= at < b for a, b in waits))
        bound = "waits" if waited > idle_us / 2 else "host"
    return {
        "ranges": times,
        "busy": busy,
        "gaps": [gap for gap in idle if gap[1] > gap_us],
        "bound": bound,
    }
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_profile_check", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false}
check("roofline.profile", profile)

# %% [markdown]
# <details><summary>Hint 1: from a kernel to its range</summary>
#
# Three steps: the kernel's correlation gives its launch; the launch has a thread and a start; among the ranges of that
# thread, those with `start <= t < end` are open. Ranges that nest open one after the other, so the innermost is the one
# that opened last.
# </details>
# <details><summary>Hint 2: busy, when kernels overlap</summary>
#
# Durations cannot be added: two streams that work at the same moment make the device busy once. Sort the kernels by
# start, walk through them, and remember the latest end you have seen. Only what lies beyond it is new.
# </details>
# <details><summary>Hint 3: gaps</summary>
#
# In the same walk: when the next start is later than the latest end seen so far, nothing ran in between. The end of the
# *previous* kernel is not enough, because an earlier and longer one may still be running.
# </details>
# <details><summary>Hint 4: the four verdicts</summary>
#
# Keep every stretch of idle time in the walk, and leave out the short ones only in `gaps`. A stretch that begins inside
# a `sync` is a wait: the last kernel ended, the host was told, and only then it launched the next one.
# </details>

# %% [markdown]
# ### Verdict on the case
# Matrix products dominate a wide fp32 model: right, for ours as well. The share of elementwise operators says as much
# about the code as about the hardware; where the report's layers wrote out normalisation and activation in single
# operators, ours call fused ones, and the recorded share is smaller. The puzzle of product and softmax has a one-line
# answer, bytes. What a profile alone does not show: on the recorded H200 softmax by hand takes less than one and a half
# times the floor of *its five kernels*, and more than five times the floor of one. A profile shows where time goes;
# only a count shows whether it had to. The report's remark that a profiler's version must match its viewer is still
# good advice: trace formats change.

# %% [markdown]
# ## 5. Fusion, and paying twice on purpose
# Section 1 left a question: if a second cosine is free, how far does that stretch? Now you can answer it with a number,
# because you know both ceilings. One kernel reads `x`, applies `cos` again and again, and writes. Its bytes do not
# change with the number of repeats, its arithmetic grows with it. So the time should be flat, then turn a corner, then
# rise along a straight line.
#
# ### Predict
# Where is the corner on your machine: how many cosines are hidden behind the memory traffic? It is the number that
# section 1 printed in passing, and it need not be whole.

# %%
predicted_corner = {"corner": None}  # replace None
### BEGIN PREDICTION
predicted_corner = {
    "corner": 2.06,
    "why": "Section 1 printed it for the H200: 8 bytes a number.",
}
### END PREDICTION

# %% [markdown]
# ## Exercise 1.5 `roofline.chain` (20 min, 5 points and 3 for speed)
# Write one Triton kernel that applies `cos` to every element `repeat` times.
#
# - `x`: contiguous, fp32, any shape and any number of elements (also 0, and numbers that no block size divides); large
#   values too
# - `repeat`: a Python integer from 1 to 64; make it a compile-time constant of the kernel
# - writes into `out`, contiguous, fp32, of the same shape, which is given; `x` stays as it is
# - computed in fp32 throughout
#
# You need about 6 lines in the kernel. Full points for speed: within 10 % of the larger of one read and one write at
# your copy rate, and `repeat` times one cosine as measured on your device; or within 10 % of our own kernel's speed,
# where that is less.


# %% nbgrader={"grade": false, "grade_id": "roofline_chain", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _chain_kernel(out_ptr, x_ptr, n, REPEAT: tl.constexpr, BLOCK: tl.constexpr):
    ### BEGIN SOLUTION
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    value = tl.load(x_ptr + offs, mask=mask, other=0.0)
    for _ in range(REPEAT):
        value = tl.cos(value)
    tl.store(out_ptr + offs, value, mask=mask)
    ### END SOLUTION


def cos_chain(x, repeat, out):
    """out = cos(cos(...cos(x))), `repeat` times; reads and writes n fp32 numbers."""
    ### BEGIN SOLUTION
    n = x.numel()
    if n:
        _chain_kernel[(triton.cdiv(n, 1024),)](out, x, n, REPEAT=repeat, BLOCK=1024)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_chain_check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check("roofline.chain", cos_chain)

# %% nbgrader={"grade": true, "grade_id": "roofline_chain_speed", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check_speed("roofline.chain", cos_chain)

# %% [markdown]
# <details><summary>Hint 1: the shape of the kernel</summary>
#
# It is `axpy` of lesson 00 with one input. What is new stands between the load and the store.
# </details>
# <details><summary>Hint 2: right for most lengths, or slow</summary>
#
# How many elements does the last program own, and which of its lanes may store? If it is right but slow: does `x`
# arrive once, or once for every repeat? A loop around the *launch* moves all the bytes again each time.
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# `for _ in range(REPEAT): value = tl.cos(value)`, with `REPEAT: tl.constexpr` in the kernel's arguments. Everything
# before it is offsets, mask and load; everything after it is one masked store.
# </details>

# %% [markdown]
# ### Measure
# Time against `repeat`, with the two ceilings as lines. On a GPU this is your kernel. In the interpreter a kernel's
# time says nothing, so a CPU runs the same chain in blocks that stay in the cache, as in section 1.


# %%
def chain_in_blocks(x, repeat, out):
    for from_, to in zip(x.split(2**16), out.split(2**16)):
        torch.cos(from_, out=to)
        for _ in range(repeat - 1):
            torch.cos(to, out=to)


chain = cos_chain if GPU else chain_in_blocks
repeats = (1, 2, 3, 4, 6, 8, 12, 16) if GPU else (1, 2, 3, 4, 6, 8)
chain_s = [timed(lambda r=r: chain(x, r, out)).median_s for r in repeats]
results.beside(
    "lesson01.chain", {f"repeat {r}": s for r, s in zip(repeats, chain_s)}, unit="ms"
)

# %%
memory_s, one_s = 8 * N / top.bytes_per_s, N / top.cos_per_s
floor = {"memory_s": memory_s, "one_s": one_s}
axes = plots.repeat_curve(repeats, chain_s, **floor, device=HERE.name)
plots.show(axes, alt="Time of a fused chain of cosines against its length, with its "
                     "floor: flat, a corner, a line")  # fmt: skip
against(predicted_corner, {"corner": memory_s / one_s})

# %% [markdown]
# **The prediction, counted.** A number travels in and out as 8 bytes. At 4.27 TB/s and 1.10 T cosines a second that
# is the time of 2.06 cosines, on the recorded H200.
#
# Look at the points near the corner first. A floor is a maximum of two terms, and real machines round the corner: just
# below it the arithmetic is hidden almost, not quite. Away from the corner the points should follow the lines within
# some per cent. Mind what this agreement is worth: the rate of cosines was itself measured with a long chain in a
# kernel like yours, so the right end of the line must fit. What the figure tests is the corner, and that time is the
# larger of the two terms and not their sum. If the corner is elsewhere by more than 20 per cent, one of the two
# ceilings is wrong for this kernel: `tl.cos` is not one instruction but some two dozen, and it takes a longer way for
# large arguments. From the second cosine on all arguments lie in $[-1, 1]$; only the first sees the whole of `x`.

# %% [markdown]
# ### Recomputation can save memory *and* time
# **The report says** (the first-principles notes again): recomputing a value can save memory and time at
# once. Again it sounds like a trick.
# Take $y = \cos(\cos x)$ in training. Backward needs $\cos x$, because $dx = dy \sin(\cos x) \sin x$. Either forward
# stores it, or backward computes it again from $x$, which is kept anyway.
#
# | arrays moved | forward reads, writes | backward reads, writes | sum | kept between |
# |---|---|---|---|---|
# | store $\cos x$ | 1, 2 | 3, 1 | 7 | $x$ and $\cos x$ |
# | recompute it | 1, 1 | 2, 1 | 5 | $x$ |
#
# ### Predict
# If bytes set the time, what is the time of "recompute" relative to "store"? If arithmetic does: 5 functions (`cos`
# twice, `sin` twice, `cos` again) against 4?

# %%
predicted_share = {"recompute / store": None}  # replace None
### BEGIN PREDICTION
predicted_share = {
    "recompute / store": 0.71,
    "why": "Bytes set the time: 5 arrays instead of 7.",
}
### END PREDICTION


def store_forward(y, kept, x):
    torch.cos(x, out=kept)
    torch.cos(kept, out=y)


def store_backward(dx, dy, kept, x):
    dx.copy_(dy * kept.sin() * x.sin())


def recompute_backward(dx, dy, x):
    dx.copy_(dy * x.cos().sin() * x.sin())


# %% [markdown]
# All four passes are fused, so that the only difference is the one in the table. `two_cosines` of section 1 is the
# forward pass that stores nothing.

# %%
kept, dx, dy = torch.empty(N, device=DEVICE), torch.empty(N, device=DEVICE), y
passes = [fused(fn) for fn in (store_forward, store_backward, recompute_backward)]
trip_s = {
    "store": timed(
        lambda: (passes[0](out, kept, x), passes[1](dx, dy, kept, x))
    ).median_s,
    "recompute": timed(lambda: (fused_cosines(out, x), passes[2](dx, dy, x))).median_s,
}
against(predicted_share, {"recompute / store": trip_s["recompute"] / trip_s["store"]})
print(
    f"held between forward and backward: store {8 * N / 2**20:.0f} MiB, "
    f"recompute {4 * N / 2**20:.0f} MiB"
)
results.beside("lesson01.recompute", trip_s, unit="ms")

# %% [markdown]
# **The prediction, counted.** By bytes, `store` moves 3 arrays forward and 4 backward, and `recompute` moves 2 and 3:
# 5 / 7 = 0.71. By arithmetic it is 5 / 4 = 1.25. On the recorded H200 0.79 came, near the bytes.
#
# On a GPU the report is right: less memory *and* less time, because the recomputed cosine hides, for the most part,
# behind bytes that move anyway, and the bytes that are not stored are saved twice, once in the write and once in the
# read. On a CPU the same code may say the opposite, for the reason you know from section 1. The rule for your own
# work: **recompute what costs little arithmetic and would cost a round trip of bytes**, which means elementwise chains
# and normalisations. A matrix product is the opposite case, and lessons 02 and 05 come back to where the border lies.

# **Stop here.** The second sitting ends. You can say what limits a program, and you have seen bytes traded for
# arithmetic. What follows is kernels of your own that come near the floor.

# %% [markdown]
# ## 6. Bytes are the budget: sectors, bytes in flight, softmax
# "Bytes a second" was one number so far. Before you write a kernel that lives on it, three questions: which bytes does
# the memory really move, when does it reach its rate, and which other rates stand beside it?
#
# ### Sectors and coalescing
# Memory hands out **sectors** of 32 bytes. One load instruction makes 32 threads, a warp, ask at once. The hardware
# gathers the sectors that these 32 addresses touch, each once: it **coalesces** the requests. Neighbours that lie side
# by side share sectors, and every byte that is fetched is used. Neighbours that lie apart do not. How many sectors a
# load touches can be counted without any GPU.


# %%
def sectors(stride, item=4, lanes=32):
    """Sectors of 32 bytes that a warp's load touches, its numbers `stride` apart."""
    return len({lane * stride * item // 32 for lane in range(lanes)})


strides = (1, 2, 4, 8, 16)
columns = ("numbers apart", "sectors a load", "bytes fetched for each one used")
Table(
    columns,
    [(stride, sectors(stride), 32 * sectors(stride) / 128) for stride in strides],
)

# %% [markdown]
# From 8 numbers apart on, each of the 32 threads pays for a sector of its own and uses an eighth of it. Does the clock
# agree? The kernel adds up numbers that lie apart; the table has the bytes *used* a second. By the count they fall with
# the stride as the last column above grows, and no further from 8 on. (Only a GPU can show it.)


# %%
@triton.jit
def _strided_kernel(out_ptr, x_ptr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    """One sum a program, of BLOCK numbers that lie STRIDE apart."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + tl.program_id(0), tl.sum(tl.load(x_ptr + offs * STRIDE)))


used = {}
if GPU:
    wide, sums = torch.ones(2**28, device=DEVICE), torch.empty(2**14, device=DEVICE)
    for stride in strides:
        read = functools.partial(_strided_kernel[(2**14,)], STRIDE=stride, BLOCK=1024)
        took = timed(functools.partial(read, sums, wide))
        used[f"{stride} apart"] = 4 * 2**24 / took.median_s / 1e12
    del wide
results.beside("lesson01.strides", used, unit="TB/s")

# %% [markdown]
# On the recorded H200 the count holds up to 8 numbers apart: twice as far apart, 0.53 to 0.58 of the rate. It falls to
# 0.51 once more from 8 to 16, where the count says that nothing changes. That is what it looks like when the cache
# fetches from memory in pairs of sectors; a counter of the memory's own bytes, below, would decide it.
#
# So put the dimension whose elements are adjacent along the block of a program, as softmax below does with the columns
# of a row. `tl.load` of a whole block is coalesced when the block lies in one piece.
#
# **Checking a byte count.** A count is a claim, and NVIDIA's Nsight Compute reads the counters that decide it. On a
# machine where you may read them (many clusters allow it to administrators only, and then `ncu` says
# `ERR_NVGPUCTRPERM`), put a kernel and one launch into `strided.py` and run
#
# ```bash
# ncu --kernel-name regex:_strided --metrics dram__bytes_read.sum,dram__bytes_write.sum,l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum,l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum python strided.py
# ```
#
# The third number over the fourth is the column "sectors a load", where each thread loads one number; the first is what
# crossed the memory bus. For numbers that are 1 apart the compiler makes loads of four numbers a thread (lesson 00).
# One such load of a warp touches 16 sectors in place of 4, and all of their bytes are used.
#
# ### Bytes in flight
# A load takes long, and memory is fast because many loads are under way at once. **Little's law** says how many: bytes
# in flight = latency x rate. The latency can be measured with a chase, in which each load gives the address of the next
# one, so that only one is under way.


# %%
@triton.jit
def _chase_kernel(out_ptr, next_ptr, steps):
    at = tl.load(out_ptr)
    for _ in range(steps):
        at = tl.load(next_ptr + at)
    tl.store(out_ptr + 1, at)


def round_trip(count, spacing):
    """`count` places, `spacing` apart, each holding where the next is, in random order."""
    order = torch.randperm(count) * spacing
    following = torch.zeros(count * spacing, dtype=torch.int32)
    following[order] = order.roll(-1).int()
    return following.to(DEVICE)


little = {}
if GPU:
    at = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    following = round_trip(2**16, 1024)
    chase = timed(lambda: _chase_kernel[(1,)](at, following, 4096, num_warps=1))
    little = {"latency, ns": 1e9 * chase.median_s / 4096}
    little["needed in flight, MB"] = chase.median_s / 4096 * top.bytes_per_s / 1e6
results.beside("lesson01.latency", little, unit="")

# %% [markdown]
# On the recorded H200 a load takes 339 ns, so 1.43 MB have to be under way at every moment, over 132 multiprocessors 11
# KB each. Who keeps them under way? A program that reads one block of 1024 numbers of fp32 at a time has 4 KiB in flight.
# A multiprocessor runs as many programs at once as its registers, its shared memory and its 64 warps allow. The warps
# that it holds, as a share of those 64, are its **occupancy**, in the field's word. One program a multiprocessor is far
# too little. How many are enough?
#
# ### Predict
# At which number of programs a multiprocessor does the reading below come within a tenth of its final rate? Take the
# bytes needed in flight from the table, 132 multiprocessors, and 4 KiB a program.

# %%
predicted_programs = {"programs a multiprocessor": None}  # replace None: 1, 2, 4, 8, 16
### BEGIN PREDICTION
predicted_programs = {"programs a multiprocessor": 4}
predicted_programs["why"] = """For the H200: the table's bytes in flight over 132
multiprocessors are 11 KB each, so 3 programs of 4 KiB; the next of the five is 4."""
### END PREDICTION


# %%
@triton.jit
def _stream_kernel(out_ptr, x_ptr, n, passes, BLOCK: tl.constexpr):
    """Reads n numbers `passes` times, past L1; a program has one block in flight."""
    total = tl.zeros((BLOCK,), tl.float32)
    for _ in range(passes):
        for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
            total += tl.load(x_ptr + start + tl.arange(0, BLOCK), cache_modifier=".cg")
    tl.store(out_ptr + tl.program_id(0), tl.sum(total))


rates = {}
if GPU:
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    sums = torch.empty(16 * processors, device=DEVICE)
    for programs in (1, 2, 4, 8, 16):
        read = functools.partial(_stream_kernel[(programs * processors,)], BLOCK=1024)
        took = timed(functools.partial(read, sums, x, N, 1))
        rates[f"{programs} a multiprocessor"] = 4 * N / took.median_s / 1e12
    near = [name for name, rate in rates.items() if rate > 0.9 * max(rates.values())]
    enough = int(near[0].split()[0])
    against(predicted_programs, {"programs a multiprocessor": enough})
results.beside("lesson01.in_flight", rates, unit="TB/s")

# %% [markdown]
# **The prediction, counted.** Bytes needed in flight = latency x rate, from the table of the chase; divided by the
# multiprocessors and by 4096 bytes, that is the least number of programs. On the recorded H200 that is 3, so 4 of the
# five numbers, and 8 came: the chase has the memory for itself, and where all read at once a load waits in queues
# besides. So take the count as a least, and twice that number as a plan. Below it the rate grows with the programs, 1.8
# times from 1 to 2 and 1.5 times from 2 to 4: there the kernel is bound by *latency*, and neither bytes nor arithmetic
# set its time. The remedies are more programs, larger blocks, or loads that are asked for before they are needed
# (`cp.async` in section 7 does that). More than enough helps little: 16 programs read 4 % faster than 8.
#
# ### A second roof: the L2 cache
# The same kernel reads arrays of growing size, each again and again, a gigabyte in all. Small ones stay in the L2
# cache. (On a CPU torch adds up the arrays, and the caches are the CPU's.)

# %%
l2 = {}
for mib in (1, 4, 8, 16, 32, 64, 128, 256) if GPU else (1, 4, 16):
    n, passes = mib * 2**18, (1024 if GPU else 16) // mib
    if GPU:
        read = functools.partial(_stream_kernel[(8 * processors,)], BLOCK=1024)
        took = timed(functools.partial(read, sums, x, n, passes))
    else:
        took = timed(lambda n=n, p=passes: [x[:n].sum() for _ in range(p)])
    l2[f"{mib} MiB"] = 4 * n * passes / took.median_s / 1e12
sizes_mib = [int(name.split()[0]) for name in l2]
axes = plots.sweep(sizes_mib, {"read again and again": list(l2.values())}, unit="",
                   xlabel="MiB of the array", ylabel="TB/s", xscale="log",
                   ceiling=("copy", top.bytes_per_s / 1e12), device=HERE.name,
                   title="What fits into the cache is read faster")  # fmt: skip
plots.show(axes, alt="Rate of reading an array again and again against its size: "
                     "high, then down to memory's rate")  # fmt: skip
results.beside("lesson01.l2", l2, unit="TB/s")

# %% [markdown]
# (The smallest array has fewer blocks than there are programs.) The plateau of the small arrays is a roof as good as the
# one of memory: the **L2 roof**. On the recorded H200 it lies at 8 TB/s from 4 to 32 MiB, 1.9 times the copy rate, and
# 64 MiB are read at memory's rate. A kernel whose data was just written, or is read by many programs, stands under the
# L2 roof. Section 7 lives on it.
#
# ### A second roof of arithmetic: exponentials
# Softmax needs one exponential an element. Exponentials and reciprocals have units of their own, and few: 16 results a
# clock on a multiprocessor of an H200, where multiply-adds have 128. The cell takes both rates from chains of two
# lengths, whose difference holds no bytes and no launch.


# %%
@triton.jit
def _repeated_kernel(out_ptr, x_ptr, repeat, EXP: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x_ptr + offs)
    for _ in range(repeat):
        value = tl.exp2(-value) if EXP else value * 0.5 + 0.25
    tl.store(out_ptr + offs, value)


def a_second(exp):
    """Operations a second, from a long chain and a short one."""
    run = _repeated_kernel[(N // 1024,)]
    run = functools.partial(run, out, x, EXP=exp, BLOCK=1024)
    took = {r: timed(functools.partial(run, repeat=r)) for r in (64, 192)}
    return 128 * N / (took[192].median_s - took[64].median_s)


units = {}
if GPU:
    exponentials, others = a_second(True), a_second(False)
    units = {"exponentials": exponentials / 1e12, "multiply-adds": others / 1e12}
    faster = 4 * exponentials / top.bytes_per_s
    print(f"one exponential an element of fp16: {faster:.1f} times as fast as "
          "its 4 bytes travel")  # fmt: skip
results.beside("lesson01.units", units, unit="T/s")

# %% [markdown]
# On the recorded H200 multiply-adds are 7.1 times as fast as exponentials, near the 8 of the count. For softmax alone the
# exponential hides behind the bytes, with room to spare: it is 3.9 times as fast as its 4 bytes travel. For attention it
# does not go without saying: there the bytes are few, each score costs $4d$ FLOP on the tensor cores, and its exponential
# goes to the slower unit. `Roof` has one rate of arithmetic; a kernel with two kinds has **two roofs beside each other**,
# and the lower one counts. Lesson 04 meets it.
#
# ### Softmax
# Softmax turns each row of a matrix into shares that add up to one:
# $y_j = e^{x_j - m} / \sum_i e^{x_i - m}$ with $m = \max_i x_i$. Subtracting the maximum changes nothing mathematically
# and everything in practice: without it $e^{89}$ is already infinite in fp32.
#
# Exercise 1.1 counted 5 FLOPs an element and two transfers. At an intensity of about one, the budget is one read and
# one write, and a kernel that meets it is as good as any kernel can be. Written by hand in PyTorch it took eight
# passes over memory, because each of five kernels has to bring the row in again.
#
# ### Predict
# 16384 rows of 4096 numbers in fp16 (on a CPU: 512 rows in fp32), on the machine that you sit at. How long does the
# floor say? And how long for eight passes?

# %%
predicted_ms = {"one read, one write": None, "eight passes": None}  # replace None
### BEGIN PREDICTION
predicted_ms = {"one read, one write": 0.063, "eight passes": 0.25}
predicted_ms["why"] = "For the H200: 268 MB at 4.27 TB/s, and four times that."
### END PREDICTION

# %%
rows, columns = (16384, 4096) if GPU else (512, 4096)
z = torch.randn(
    rows, columns, device=DEVICE, dtype=torch.float16 if GPU else torch.float32
)
count = rows * columns * z.element_size()
against(
    predicted_ms,
    {
        f"{name}": 1e3 * passes * count / top.bytes_per_s
        for name, passes in (("one read, one write", 2), ("eight passes", 8))
    },
)

# %% [markdown]
# **The prediction, counted.** On the H200 one read and one write of 16384 x 4096 numbers of fp16 are 268 MB, 0.0628
# ms at 4.27 TB/s. Eight passes are four times that, 0.251 ms.

# %% [markdown]
# ### How many passes does a row need?
# Three things depend on the whole row: the maximum, the sum, and the division. Read literally, that is three passes.
#
# - **The row fits on the chip.** One program loads it once, keeps it in registers, and finds maximum, sum and result
#   there. One read, one write. That is this exercise; a multiprocessor has 256 KiB of registers, so rows of 16384
#   numbers still fit.
# - **Two passes.** If the row is longer, one pass finds maximum and sum together. The trick is called *online
#   softmax*: go through the row in blocks with a running maximum $m$ and a running sum $\ell$. When a block brings a
#   larger maximum $m'$, all terms so far were computed relative to the wrong one, and all of them by the same factor:
#   so $\ell \leftarrow \ell \, e^{m - m'} + \sum e^{x - m'}$. A second pass writes the result. Two reads, one write.
# - **No second pass.** If what you need is not the shares but a weighted sum of vectors with them, then the weighted
#   sum can be rescaled by the same factor, and the shares need never exist in memory. That is attention, and lesson
#   04.
#
# ### A row of only minus infinity
# Attention excludes a key by setting its score to $-\infty$. If all keys of a query are excluded, the maximum is
# $-\infty$, and $-\infty - (-\infty)$ is NaN: that is what `torch.softmax` returns for the row. For attention the
# useful answer is zeros, "no key, no weight". Our softmax gives zeros. It differs from PyTorch here on purpose.

# %%
torch.softmax(torch.full((2, 3), -float("inf")), dim=-1)

# %% [markdown]
# ## Exercise 1.6 `roofline.softmax` (30 min, 8 points and 4 for speed)
# Write row softmax: `softmax(x, out)`.
#
# - `x`: a matrix of any number of rows (also 0), 1 to 16384 columns, fp32, fp16 or bf16 (bf16 on a GPU only). The
#   columns of a row are adjacent; the rows may be any distance apart, also more than the width
# - `out`: the same shape, with a row stride and a type of its own, its columns adjacent too; it is given and filled. `x`
#   stays as it is
# - computed in fp32, rounded once at the store
# - values anywhere in $\pm 10^4$ and `-inf`; a row of only `-inf` gives zeros
# - offsets may pass $2^{31}$ (tried when the notebook is graded on a GPU)
#
# You need about 10 lines in the kernel. Full points for speed: within 10 % of one read and one write at your copy rate,
# or of our own kernel's speed where that is less, for rows of 1024, 4096 and 16384.


# %% nbgrader={"grade": false, "grade_id": "roofline_softmax", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _softmax_kernel(
    out_ptr, x_ptr, width, stride_out_row, stride_x_row, BLOCK: tl.constexpr
):
    ### BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < width
    x_ptrs = x_ptr + row * stride_x_row + offs
    x = tl.load(x_ptrs, mask=mask, other=-float("inf")).to(tl.float32)
    top = tl.max(x, axis=0)
    # -inf - -inf is NaN; with any finite shift an empty row becomes exp(-inf) = 0
    numerator = tl.exp(x - tl.where(top == -float("inf"), 0.0, top))
    total = tl.sum(numerator, axis=0)
    share = numerator / tl.where(total == 0.0, 1.0, total)
    tl.store(
        out_ptr + row * stride_out_row + offs,
        share.to(out_ptr.dtype.element_ty),
        mask=mask,
    )
    ### END SOLUTION


def softmax(x, out):
    """Softmax of every row of x into out: one read, one write."""
    ### BEGIN SOLUTION
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    if rows:
        # 16 or more elements a thread keep enough loads in flight, where the row has so
        # many, and a long row still fits into registers
        warps = min(16, max(1, block // 512))
        run = _softmax_kernel[(rows,)]
        run(out, x, width, out.stride(0), x.stride(0), BLOCK=block, num_warps=warps)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_softmax_check", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false}
check("roofline.softmax", softmax)

# %% nbgrader={"grade": true, "grade_id": "roofline_softmax_speed", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check_speed("roofline.softmax", softmax)

# %% [markdown]
# <details><summary>Hint 1: the shape of the kernel</summary>
#
# One program for one row. Its block is the width rounded up to a power of two (`triton.next_power_of_2`), so that the
# whole row is in registers after one load. `tl.max` and `tl.sum` with `axis=0` reduce it to one number.
# </details>
# <details><summary>Hint 2: lanes past the end of the row</summary>
#
# They must change neither the maximum nor the sum. Which value of `other` does both at once, once it has gone through
# the exponential?
# </details>
# <details><summary>Hint 3: NaN, or slow</summary>
#
# NaN: replace the maximum by 0 where it is `-inf`, and a sum of 0 by 1; `tl.where` does both. Slow for wide rows: the
# default of 4 warps gives each of 128 threads 128 numbers of a row of 16384; give wide rows more warps. Slow for narrow
# rows: few threads with little work each, so give them fewer warps.
# </details>

# %% [markdown]
# ### Measure
# Your kernel beside PyTorch's, beside the one that `torch.compile` writes, and beside the floor. In the interpreter a
# kernel's time says nothing, so a CPU measures PyTorch only.

# %%
out_z = torch.empty_like(z)
softmax_s = {"torch.softmax": timed(lambda: torch.softmax(z, dim=-1, out=out_z))}
if GPU:
    compiled_softmax = torch.compile(lambda z: torch.softmax(z, dim=-1))
    softmax_s["compiled"] = timed(lambda: compiled_softmax(z))
    softmax_s["my kernel"] = timed(lambda: softmax(z, out_z))
axes = plots.timing(softmax_s, floor_s=2 * count / top.bytes_per_s, device=HERE.name)
plots.show(axes, alt="Time of softmax in PyTorch, compiled, and in my kernel; the "
                     "floor is one read and one write")  # fmt: skip
results.beside("lesson01.softmax", softmax_s, unit="us")

# %% [markdown]
# The copy rate of the floor was measured on arrays larger than these, so part of it is out of reach on a GPU, about a
# tenth in the recorded run. (Less in the output that the solved lesson keeps: its copy rate came out lower, and so its
# floor is longer.) PyTorch's kernel took over three times the floor, though in section 4, for rows of 1024 numbers in
# fp32, it was close to its floor. Both the width of a row and the type are different here, so the two numbers do not say
# which of them it is slow for; a library need not be equally good everywhere. If your kernel is near the floor you are
# done with it: no trick with the exponential will make it faster, because the exponential is not what takes the time.
# That is a useful thing to be able to say about a kernel.

# %% [markdown]
# ## 7. Matrix product: tiles raise the intensity
# A product of two $n \times n$ matrices has an intensity of $n/6$ FLOPs a byte in fp32, *if every element crosses the
# memory bus once*. A kernel that computes one result after the other does nothing of the kind. Each result needs a
# row of A and a column of B: $2n$ reads for $2n$ FLOPs, so its intensity is $1/4$, for any $n$.
#
# **Tiles** repair that. A program that computes a block of `BLOCK_M` x `BLOCK_N` results walks along K and loads, at
# each step, `BLOCK_M` + `BLOCK_N` numbers for each `k`, and does `BLOCK_M * BLOCK_N` multiply-adds with them.
#
# ### Predict
# From which square tile size on is a product no longer limited by memory on the H200 in fp32? In bf16 with tensor
# cores? Assume for now that every load goes to device memory.

# %%
predicted_tile = {"fp32": None, "bf16": None}  # replace None
### BEGIN PREDICTION
predicted_tile = {"fp32": 64, "bf16": 512}
predicted_tile["why"] = """For the H200: b / 4 and b / 2 FLOP a byte have to reach
ridges of 12 and 156."""
### END PREDICTION


def intensity_of_tiles(block_m, block_n, item):
    """FLOPs a byte when each program loads its own tiles from memory."""
    return 2 * block_m * block_n / (item * (block_m + block_n))


tiles = {}
for one in [roof, *recorded_roofs()]:
    item = 2 if one.name.endswith("16") else 4
    sides = (2**k for k in range(20))
    enough = next(b for b in sides if intensity_of_tiles(b, b, item) >= ridge(one))
    tiles[one.name] = enough
    print(f"{one.name:10} ridge {ridge(one):6.1f}: tiles of {enough} x {enough}")
against(
    predicted_tile,
    {name: tiles.get(f"H200 {name}", "not recorded") for name in ("fp32", "bf16")},
)

# %% [markdown]
# **The prediction, counted.** A square tile of side $b$ makes $b / 4$ FLOP a byte in fp32 and $b / 2$ in bf16. The
# H200's ridges are at 12.0 and 155.7, so $b$ must be at least 48 and 312. The next powers of two are 64 and 512.

# %% [markdown]
# ### The cache helps, if neighbours run together
# For fp32 the tile is easy to have. For tensor cores it is larger than what fits on a multiprocessor, so something
# must give. It is the assumption: not every load goes to memory. Programs that run at the same time share the L2 cache,
# and two programs in the same tile row need the same rows of A.
#
# Which programs run together is up to you, because they start roughly in the order of their number. In plain row order,
# a hundred programs cover one tile row of C: they share one stripe of A and need a hundred stripes of B. Arranged in
# **groups** of 8 tile rows they cover a block of 8 by about 12 tiles, and need 8 stripes of A and 12 of B.


# %%
def stripes(order, tiles_m, tiles_n, together=96):
    """Stripes of A and of B that the first `together` programs need; order: program -> (tile row, tile column)."""
    first = [order(p, tiles_m, tiles_n) for p in range(together)]
    return len({m for m, _ in first}), len({n for _, n in first})


def by_rows(program, tiles_m, tiles_n):
    return program // tiles_n, program % tiles_n


def grouped(program, tiles_m, tiles_n, height=8):
    group, inside = divmod(program, height * tiles_n)
    rows = min(height, tiles_m - group * height)  # the last group may be lower
    return group * height + inside % rows, inside // rows


for order in (by_rows, grouped):
    a, b = stripes(order, 64, 128)
    print(
        f"{order.__name__:8} {a} stripes of A and {b} of B: "
        f"{a + b} in all for the same 96 tiles"
    )

# %% [markdown]
# Note the `min` in `grouped`. Without it the last group, when it has fewer than 8 tile rows, sends programs to tile
# rows that do not exist, and leaves others out.
#
# ### What is "fp32" in a product?
# Tensor cores do not multiply fp32 numbers. Asked to, `tl.dot` by default keeps what **TF32** has of its inputs: the
# range of fp32, with 10 bits of fraction instead of 23. The product is several times faster, and it is not an fp32
# product. `input_precision="ieee"` keeps all bits and leaves the tensor cores out. `input_precision="tf32x3"` is
# between the two: it splits each input into two TF32 numbers and adds three products of them, on the tensor cores. None
# of them is wrong. Getting one while you believe to have another is. The next cell rounds the inputs itself and prints
# both errors for $K = 1024$. (The interpreter's `tl.dot` rounds too, so the check below tells the two apart on a
# machine without a GPU. The compiled kernel does not round: for an H100 or H200 there is no instruction in it that
# would, so the tensor cores read the upper 19 bits of each input and drop the rest. Inputs that are cut off make an
# error 2.6 times as large as rounded ones.)

# %%
from course_lib.numerics import error, round_to

a, b = torch.randn(64, 1024, device=DEVICE), torch.randn(1024, 64, device=DEVICE)
truth = a.double() @ b.double()
as_tf32 = round_to(a, "tf32").double() @ round_to(b, "tf32").double()
for name, got in (("fp32", a @ b), ("inputs rounded to TF32", as_tf32.float())):
    print(f"{name:24} relative error {error(got, truth).rms:.1e}")

# %% [markdown]
# ## Exercise 1.7 `roofline.matmul` (50 min, 10 points and 4 for speed)
# Write a tiled matrix product: `matmul(a, b, out)`, `out = a @ b`.
#
# - `a` is (M, K), `b` is (K, N), `out` is (M, N), for any M and N from 1 and any K from 0 (an empty sum is 0)
# - `a` and `b` may have any strides: transposed, rows with gaps, every second column. `out` has adjacent columns and
#   any row stride. Offsets may pass $2^{31}$ (tried when the notebook is graded on a GPU)
# - `a` and `b` have one type, fp32, fp16 or bf16 (bf16 on a GPU only); `out` has that type or fp32
# - products of fp32 inputs keep fp32 precision, not TF32. The accumulator is fp32 for every type, and is rounded
#   once, at the store
# - `out` is given and filled; `a` and `b` stay as they are
#
# Full points for speed: 80 % of the rate that products of large fp16 matrices sustain on your device, or of our own
# kernel's where that is less, for two large fp16 products. Keep the argument names of the kernel: the cells after the
# check compile and launch it by them.


# %% nbgrader={"grade": false, "grade_id": "roofline_matmul", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _matmul_kernel(
    out_ptr, a_ptr, b_ptr,
    M, N, K,
    stride_out_m, stride_out_n, stride_a_m, stride_a_k, stride_b_k, stride_b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):  # fmt: skip
    ### BEGIN SOLUTION
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = tl.program_id(0) // (GROUP_M * tiles_n)
    inside = tl.program_id(0) % (GROUP_M * tiles_n)
    # the last group may be lower
    height = tl.minimum(tiles_m - group * GROUP_M, GROUP_M)
    tile_m, tile_n = group * GROUP_M + inside % height, inside // height

    offs_m = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K).to(tl.int64)
    mask_m, mask_n = offs_m < M, offs_n < N

    a_ptrs = a_ptr + offs_m[:, None] * stride_a_m + offs_k[None, :] * stride_a_k
    b_ptrs = b_ptr + offs_k[:, None] * stride_b_k + offs_n[None, :] * stride_b_n
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        mask_k = offs_k < K - k
        a = tl.load(a_ptrs, mask=mask_m[:, None] & mask_k[None, :], other=0.0)
        b = tl.load(b_ptrs, mask=mask_k[:, None] & mask_n[None, :], other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_a_k
        b_ptrs += BLOCK_K * stride_b_k

    out_ptrs = out_ptr + offs_m[:, None] * stride_out_m + offs_n[None, :] * stride_out_n
    tl.store(
        out_ptrs,
        acc.to(out_ptr.dtype.element_ty),
        mask=mask_m[:, None] & mask_n[None, :],
    )
    ### END SOLUTION


def matmul(a, b, out):
    """out = a @ b with an fp32 accumulator; 2 M N K FLOP."""
    ### BEGIN SOLUTION
    (M, K), N = a.shape, b.shape[1]
    # 2-byte inputs go to the tensor cores, which want large tiles; 4-byte ones do not
    on_tensor_cores = a.element_size() == 2
    tile, warps = ((128, 256, 64), 8) if on_tensor_cores else ((64, 64, 32), 4)
    block_m, block_n, block_k = tile
    _matmul_kernel[(triton.cdiv(M, block_m) * triton.cdiv(N, block_n),)](
        out, a, b,
        M, N, K,
        *out.stride(), *a.stride(), *b.stride(),
        BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP_M=8,
        num_warps=warps, num_stages=3,
    )  # fmt: skip
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_matmul_check", "locked": true, "points": 10, "schema_version": 3, "solution": false, "task": false}
check("roofline.matmul", matmul)

# %% nbgrader={"grade": true, "grade_id": "roofline_matmul_speed", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check_speed("roofline.matmul", matmul)

# %% [markdown]
# <details><summary>Hint 1: in which order to write it</summary>
#
# First one program for each tile, numbered row by row, no groups. Offsets for rows of `a`, columns of `b` and the
# current step of K; two masked loads; `acc = tl.dot(a, b, acc, ...)`; one masked store. Get every case right. Then
# exchange the two lines that turn the program's number into a tile for the grouped order of the cell above.
# </details>
# <details><summary>Hint 2: right for some sizes only</summary>
#
# Three edges need a mask: M and N at the store and at the loads, and K *inside the loop*, where `other=0.0` matters,
# because what is loaded there is added up. An address is row times row stride plus column times column stride, with all
# six strides from the launcher; assume none of them to be 1.
# </details>
# <details><summary>Hint 3: nearly right, or slow</summary>
#
# A relative error of some $10^{-4}$ for fp32 inputs: `tl.dot` took TF32; ask for `input_precision="ieee"`. An error in
# fp16 that grows with K: the accumulator is not fp32, or was rounded inside the loop. Slow: for fp16 use tiles of 128 x
# 256 x 64 with `num_warps=8` and `num_stages=3` (steps of K that are on the chip or on their way at once); the same
# tile with 4 warps does not fit into registers. (This is for cards whose tensor cores Triton uses, Ampere and later.)
# </details>

# %% [markdown]
# ### Read what the compiler made
# The compiler needs no GPU. The next cell compiles your kernel for an H200 and reports what matters. (`CARD` may be
# your card, such as "RTX 4090"; the text below reads the H200's reports. On a Turing card, "T4", Triton uses no tensor
# cores, and this tile spills most of what it holds: take a much smaller one there.) It reports registers; spills, which
# are values that did not fit into registers and travel through memory; shared memory against the limit; and which
# instructions multiply. `wgmma` and `mma` are tensor cores, `cp.async` fetches the next tile while this one is being
# computed. (A stride of 1 is a constant here, as Triton makes it in a real launch: without it the compiler could not
# know that neighbours in a row are neighbours in memory.)

# %%
from course_lib.compiled import compile_kernel

CARD = "H200"
STRIDES = {f"stride_{name}": "i32" for name in ("out_m", "a_m", "b_k")}
ADJACENT = {f"stride_{name}": 1 for name in ("out_n", "a_k", "b_n")}


def compiled(dtype, tile, warps, stages=3):
    """The report on a kernel for `dtype` matrices stored by rows."""
    signature = (
        dict.fromkeys(("out_ptr", "a_ptr", "b_ptr"), f"*{dtype}")
        | dict.fromkeys("MNK", "i32")
        | STRIDES
    )
    constants = (
        dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile)) | {"GROUP_M": 8} | ADJACENT
    )
    return compile_kernel(
        _matmul_kernel, signature, constants, CARD, num_warps=warps, num_stages=stages
    )


print(compiled("fp16", (128, 256, 64), warps=8))

# %% [markdown]
# Now the same tile with half the threads. Predict first: the accumulator alone has 128 x 256 fp32 numbers. How many is
# that for each of 128 threads, and how many registers may a thread have at most? (255.)

# %%
print(compiled("fp16", (128, 256, 64), warps=4))

# %% [markdown]
# And fp32 with all its bits:

# %%
print(compiled("fp32", (64, 64, 32), warps=4))

# %% [markdown]
# Three reports, three lessons. The first kernel uses the tensor cores and fits. The second asks every thread to hold
# more numbers than it has registers, so some of them travel to memory and back: it is right, and slow, as the
# measurement below shows. The third contains no tensor-core instruction at all, because tensor cores take no
# fp32; its ceiling is the fp32 roof, not the TF32 roof.
#
# ### Measure
# What did the tiles buy? On a GPU the cell times the kernel with growing tiles, in row order and grouped, beside
# PyTorch. On a CPU the table shows the recorded run only.


# %%
def rate(tile, warps, group, n=8192):
    """TFLOP/s of the kernel above for two n x n matrices in fp16."""
    grid = (triton.cdiv(n, tile[0]) * triton.cdiv(n, tile[1]),)
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile)) | {
        "GROUP_M": group,
        "num_warps": warps,
    }
    took = timed(
        lambda: _matmul_kernel[grid](
            c, a, b, n, n, n, *c.stride(), *a.stride(), *b.stride(), **meta
        )
    )
    return 2 * n**3 / took.median_s / 1e12


rates = {}
if GPU:
    a, b, c = (
        torch.randn(8192, 8192, device=DEVICE, dtype=torch.float16) for _ in range(3)
    )
    for tile, warps in (
        ((32, 32, 64), 4), ((64, 64, 64), 4), ((128, 128, 64), 8), ((128, 256, 64), 8),
    ):  # fmt: skip
        rates[f"{tile[0]} x {tile[1]}, row order"] = rate(tile, warps, group=1)
        rates[f"{tile[0]} x {tile[1]}, grouped"] = rate(tile, warps, group=8)
    rates["128 x 256, grouped, 4 warps"] = rate((128, 256, 64), warps=4, group=8)
    rates["torch.mm"] = (
        2 * 8192**3 / timed(lambda: torch.mm(a, b, out=c)).median_s / 1e12
    )
results.beside("lesson01.tiles", rates, unit="TFLOP/s")

# %% [markdown]
# Compare the rates with the intensity of the tiles times the copy rate: a tile of 32 in fp16 has 16 FLOPs a byte. Any
# rate above that product was paid for by the L2 cache. Larger tiles need the cache less, and the grouped order makes it
# hit more often. Bytes are not the whole of it. A tile of 32 x 32 is too small for `wgmma`, which multiplies 64 rows at
# once, so the compiler takes the older `mma` for it: `print(compiled("fp16", (32, 32, 64), warps=4))` shows it. The
# step from 32 to 64 changes the instruction as well. The tile that spills loses nearly everything that the others
# gained.
#
# In the recorded run the largest grouped tile and PyTorch are close together, and both are some per cent *above* the
# sustained fp16 rate of `ceilings()`. A rate at the power limit is no constant: it moves by some per cent with the
# temperature and with every pause. The ceiling was measured back to back, while the timer sweeps the cache between two
# products, and the shorter the products, the larger the share of the pauses. So the speed check can show more than 100
# %, and its floor is a yardstick: a library's rate under a power limit, not a bound. The bound is the peak that the
# data sheet promises, which neither reaches. Persistent programs and copies that the hardware makes have little left to
# gain at this size; lesson 05 has a product for which they gain much.

# %% [markdown]
# ### One product, five conditions
# How much do conditions matter for a product? The cell runs one and the same product of bf16 matrices alone after a
# swept cache, beside others of its kind without a pause, after three seconds of rest, and on matrices of zeros. (A GPU
# only; elsewhere the table is the recorded run.)


# %%
def back_to_back(left, right, seconds=0.6):
    """TFLOP/s of many products in a row, and the board's watts meanwhile."""

    def run():
        torch.mm(left, right, out=made)

    calls = max(3, int(seconds / each(run, calls=3, rounds=3)))
    took = each(run, calls=calls, rounds=2)
    for _ in range(calls // 2):
        run()
    seen = clocks.read()
    wait()
    return 2 * side**3 / took / 1e12, seen.power_w if seen else None


# %%
from course_lib.timing import clocks

side, conditions = 8192, {}
if GPU:
    left, right = (torch.randn(side, side, device=DEVICE).bfloat16() for _ in range(2))
    made, zeros = torch.empty_like(left), torch.zeros_like(left)
    alone = timed(lambda: torch.mm(left, right, out=made))
    swept = 2 * side**3 / alone.median_s / 1e12
    conditions["random numbers, each after a sweep"] = swept
    for name, pair in (
        ("random numbers, back to back", (left, right)),
        ("zeros, back to back", (zeros, zeros)),
    ):
        conditions[name], watts = back_to_back(*pair)
        print(f"{name}: {watts} W")
    time.sleep(3)
    after = one_by_one(lambda: torch.mm(left, right, out=made), 40)
    conditions["random numbers, second after a rest"] = 2 * side**3 / after[1] / 1e12
    conditions["random numbers, fortieth after a rest"] = 2 * side**3 / after[39] / 1e12
results.beside("lesson01.conditions", conditions, unit="TFLOP/s")

# %% [markdown]
# The instructions are the same in every row. Zeros switch few transistors, so they need less power, and where power is
# the limit they are multiplied faster, 20 % on the recorded H200: **benchmark with the values that your model has**,
# never with zeros. A sweep needs less power than a product, so after a sweep a product *alone* is 10 % faster than the
# same one *beside* others, as it would run in training. Three seconds of rest are another matter, and runs do not agree.
# On the recorded H100 the second product after them was 17 % faster than back to back and the fortieth still 14 %: the
# burst of section 1. On the recorded H200 none shows: the second was 4 % slower than the fortieth. On the H200 whose
# output the solved lesson keeps it shows again: 762 TFLOP/s in the second product, 703 in the fortieth. So try it on the
# card you report, and more than once. (These two rows are of the host's clock, with a wait after each product.) A kernel
# that is bound by bytes hardly notices any of this. When you report a compute-bound number, give the row: which values,
# alone or beside.

# %% [markdown]
# ## 8. Launch overhead and CUDA graphs
# Section 3 found programs that wait for the host. When the calls cannot be made fewer by batching or fusing, there is
# one more remedy: record them once and replay the record. A **CUDA graph** is such a record: a list of kernels with
# their arguments, handed to the device as a whole. Replaying it is one call for the host, whatever it contains.
#
# The simulated GPU shows the arithmetic, on any machine. Its host needs 60 microseconds for a launch, its kernel 20.

# %%
gpu = pretend("slow_host", seconds=20e-6)
gpu.launch("kernel")  # compiles
gpu.synchronize()
begin = gpu.host_time()
for _ in range(100):
    gpu.launch("kernel")
gpu.synchronize()
took = gpu.host_time() - begin
print(
    f"100 launches took {1e3 * took:.2f} ms, the kernels alone take "
    f"{1e3 * 100 * 20e-6:.2f} ms: the device was busy "
    f"{100 * 20e-6 / took:.0%} of the time"
)

# %% [markdown]
# ### What a graph remembers
# A graph holds *addresses*, not values. On replay each kernel reads whatever lies at the addresses it was recorded
# with. Everything that is hard about graphs follows from this one sentence.
#
# - New inputs must be **copied into the tensors that were recorded**. A graph that was recorded on `x` never sees a new
#   tensor, and gives the old answer without a complaint.
# - The outputs are **always the same tensors**. Whoever keeps a result across a replay keeps a tensor that will change.
# - Shapes are fixed, and so is every decision that Python took while recording: an `if`, a loop's length, a number that
#   was passed by value.
# - While recording, nothing runs. What must happen only once (compiling, choosing algorithms, the allocator's first
#   requests) has to happen *before*, on a stream of its own, and nothing inside may wait for the device.

# %% [markdown]
# ### Predict
# A loop of many small operations on the H200: what does one of them cost when Python launches it, and what when it is
# part of a graph? The second number is not zero: the device still has to start each kernel.

# %%
predicted_us = {"launched by Python": None, "in a graph": None}  # replace None
### BEGIN PREDICTION
predicted_us = {"launched by Python": 6, "in a graph": 1}
predicted_us["why"] = """For the H200: the call of section 3 without its
slices; the device's gap of about 1 us."""
### END PREDICTION

# %% [markdown]
# ## Exercise 1.8 `roofline.graph` (20 min, 3 points and 3 for speed; GPU only)
# The step is given: 16 layers of `x + sin(x * w[layer])` on so few numbers that launches cost far more than the work.
# Write `run_many(xs, w, out)`, which runs it on many inputs through a CUDA graph. It is called again and again, as a
# server calls its model. A capture costs the host milliseconds, more than all replays of a call with few inputs: so
# **capture once for each size `n`, when it is first seen, and replay in all later calls.**
#
# - `xs`: (inputs, n), fp32, at least one input; the rows may have gaps between them. `w`: (16, n) and `out`: (inputs, n),
#   both fp32 and contiguous
# - writes `step(xs[i], w)` into `out[i]` for every `i`, in fp32; `xs` and `w` stay as they are
# - every call has tensors of its own: new inputs, new weights, a new `out`, maybe a new `n`
#
# Full points for speed: with 8 inputs of 256 numbers a call, the first call left out, an operation costs at most 1.25
# times what it costs in a graph that is replayed and nothing else, on your machine (the cell under "Measure" below times
# that); none at 1.43 times. The step is given: the referee counts what the GPU runs, 48 operations for each input.
# Without a GPU the points stay pending, and the check says so.


# %% nbgrader={"grade": false, "grade_id": "roofline_graph", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step(x, w):
    """48 tiny operations: x (n), w (16, n) -> (n)."""
    for row in w:
        x = x + torch.sin(x * row)
    return x


# n -> a graph for inputs of n numbers, with the tensors that it reads and writes
graphs = {}


def run_many(xs, w, out):
    """out[i] = step(xs[i], w), each a replay of the graph captured for this size."""
    ### BEGIN SOLUTION
    n = xs.shape[1]
    if n not in graphs:
        # replays read this memory, whatever the caller's tensors are
        static_x, static_w = xs[0].clone(), w.clone()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what happens only once: before the capture
            for _ in range(2):
                step(static_x, static_w)
        torch.cuda.current_stream().wait_stream(side)

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static_y = step(static_x, static_w)
        graphs[n] = graph, static_x, static_w, static_y

    graph, static_x, static_w, static_y = graphs[n]
    static_w.copy_(w)
    for i in range(len(xs)):
        static_x.copy_(xs[i])
        graph.replay()
        out[i].copy_(static_y)  # before the next replay overwrites it
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "roofline_graph_check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("roofline.graph", run_many)

# %% nbgrader={"grade": true, "grade_id": "roofline_graph_speed", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check_speed("roofline.graph", run_many)

# %% [markdown]
# <details><summary>Hint 1: the parts</summary>
#
# When `n` is new: two tensors of your own that will be the graph's input and weights; a few runs on a side stream, to
# warm up; the capture, `with torch.cuda.graph(graph): y = step(x, w)`; and a place in `graphs` for the graph and its
# tensors. In every call: copy the weights in, then the loop over the inputs.
# </details>
# <details><summary>Hint 2: every result is the same</summary>
#
# All like the first: a new input was given a name and not copied into the captured tensor. All like the last: `out`
# holds the one tensor that every replay overwrites. In both cases `copy_` is what is missing. Right in the first call
# and wrong in a later one of the same size: the graph reads the weights of the first call.
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# Three lines: `static_x.copy_(xs[i])`, `graph.replay()`, `out[i].copy_(static_y)`. The capture itself computes nothing,
# so the first input needs its replay like all others.
# </details>

# %% [markdown]
# ### Measure
# What does one operation cost, launched by Python and as part of a graph that is replayed and nothing else? What in your
# `run_many`, with its copies? And what would a capture in each call add to it?


# %%
def replay_of(x, w):
    """A call that replays the step on x, and does nothing else."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x, w)
    return graph.replay


cost_s = {}
if GPU:
    xs, w = torch.randn(56, 256, device=DEVICE), torch.randn(16, 256, device=DEVICE)
    ys = torch.empty_like(xs)
    cost_s["launched by Python"] = each(lambda: step(xs[0], w), calls=10) / 48
    cost_s["in a graph"] = each(replay_of(xs[0], w), calls=200) / 48
    operations = 48 * len(xs)
    many = sorted(one_by_one(lambda: run_many(xs, w, ys), 21))[10]
    cost_s["in run_many"] = many / operations
    again = sorted(one_by_one(lambda: (graphs.clear(), run_many(xs, w, ys)), 11))[5]
    cost_s["in run_many, captured in each call"] = again / operations
    against(predicted_us, {name: 1e6 * s for name, s in cost_s.items()})
results.beside("lesson01.graph", cost_s, unit="us")

# %% [markdown]
# **The prediction, counted.** On the recorded H200 one operation of the step, a product, a sine or a sum, costs 8.8 us
# where Python launches it, all of it the host's, and 1.29 us in a graph, all of it the device's. The output that the
# solved lesson keeps is of a slower host, 11.8 us, and of the same kind of device, 1.28 us.
#
# In the second row the host is out of the way, and what remains is the device: starting one kernel after another takes it
# that time, however small the kernels are. Whoever needs less must make fewer kernels, and that is fusion again.
# `run_many` has more to pay: two copies for each input, and one for the weights. On a slow host it is more, because a
# replay and two copies are three launches. The last row is what capturing in each call would make of it (the recorded run
# is older than this row). So servers capture a graph for each size of batch when they start, and pad a batch up to the
# next size that they have.
#
# For the small models in the report's table a graph of the whole forward pass would be the first thing to try. It is
# also the first thing that does not fit: shapes that vary and control flow in Python have to go before it can be
# used.

# %% [markdown]
# ## Verdicts
# What was claimed, and what we found. The numbers are in the tables above, on your machine and on the recorded H200.
#
# | claim of the reports | verdict | for your own work |
# |---|---|---|
# | a fused second cosine is free | right left of the ridge, wrong as a rule | find the ridge before you optimise |
# | overhead does not grow, so doubling tells | right; use several doublings | the cheapest test of all, do it first |
# | recomputing saves memory and time | right where bytes set the time | recompute cheap elementwise chains, not products |
# | without warm-up the variation is large | right, and only one of seven pitfalls | settle, sweep, queue ahead, take the median, mind the events |
# | warm up with the same sizes | right | a new size can be a new kernel and a new allocation |
# | products dominate, elementwise about 10 % | the first right; the second less in our layers | the share depends on the code, on width and precision |
# | product and softmax take comparable time: why? | bytes: one is priced in FLOPs, one in traffic | count both before comparing |
# | mixed precision pays for large models only | right for that code | small models wait for the host, whatever the precision |
# | 2.7b is faster than xl in mixed precision: why? | 32 layers against 48, and the host sets the time | divide by what repeats |

# %% [markdown]
# ## Questions
# Three answers in your own words, graded by a person. A few sentences each are enough.
#
# ### Question 1.9 (10 min, 3 points)
# A colleague reports that a new kernel is 40 times faster than the old one. The benchmark: `time.time()` before and
# after ten calls of each in a loop, the old kernel first, on the same 1 MiB input, no synchronisation, the mean of the
# ten. Name three faults. For each, say in which direction it moves which of the two numbers.

# %% [markdown] nbgrader={"grade": true, "grade_id": "roofline_question_benchmark", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Any three of these.
#
# - No synchronisation: both loops time the launches and not the kernels. Both numbers become too small and nearly
#   equal, unless the queue fills.
# - No warm-up: the first call of each contains compilation and loading. With a mean of ten it dominates. The old kernel
#   is run first and also pays for the start of the CUDA context, the allocator and, on a GPU that lowers its clock at
#   rest, the ramp, so its number is too large, and the ratio flatters the new kernel.
# - 1 MiB stays in the L2 cache: from the second call on both are too fast for an input that comes from memory; the
#   kernel that reads more often gains more.
# - One after the other instead of in turn: clock and temperature drift meet the two differently.
# - A mean of ten: one outlier moves it; no interval is given, so nobody can say what the ratio is worth.
# - The host's clock: fixed costs of launching and waiting are in both numbers and pull the ratio towards one.
#
# *Marking guide.* 1 point for each fault that is named **with** a right direction (at most 3). Half a point for a fault
# without direction. "Should use events" alone is a remedy and not a fault: no point until it says what goes wrong.
# ### END SOLUTION

# %% [markdown]
# ### Question 1.10 (15 min, 4 points)
# Go back to the table of the report. For the *small* model in full precision, estimate how long the forward pass
# would take if the host cost nothing. Use only the table: the 2.7b row in full precision, and how the work of a layer
# grows with its width. Which assumption are you making about that row? Then say which single change you would try
# first on the small model, which on 2.7b, and why they differ.

# %% [markdown] nbgrader={"grade": true, "grade_id": "roofline_question_table", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# One layer of 2.7b takes $1.838 / 10 / 32 = 5.74$ ms. A layer's products grow with the square of the width at the
# same number of tokens, so a layer of the small model would take $5.74 \cdot (768/2560)^2 = 0.52$ ms, and its 12
# layers 6.2 ms a run, 0.062 s for ten, where the report measured 0.318 s. The device is idle about four fifths of the
# time. Assumption: the 2.7b row is set by arithmetic alone (if the host still plays a part in it, the estimate is too
# high; attention scores and elementwise work, which grow more slowly than the square, make it too low). First change,
# small: fewer or cheaper calls (a CUDA graph or `torch.compile`), because it waits for the host; lower precision only
# adds casts. First change, 2.7b: lower precision on tensor cores, because arithmetic sets the time.
#
# *Marking guide.* 1 point for dividing by the layers, 1 for scaling with the width squared and a result between 0.05
# and 0.08 s for ten runs (or 5 to 8 ms a run). 1 for stating the assumption. 1 for two different changes with the
# regime as the reason. A linear scaling with the width earns the first point only.
# ### END SOLUTION

# %% [markdown]
# ### Question 1.11 (10 min, 3 points)
# `BLOCK_K` does not appear in the formula for the intensity of a tiled product. Why not? What does a larger `BLOCK_K`
# change then, what does it cost, and what would you look at in the compiler's report to see that it was too large?

# %% [markdown] nbgrader={"grade": true, "grade_id": "roofline_question_block_k", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# For each `k` a program loads `BLOCK_M + BLOCK_N` numbers and does `BLOCK_M * BLOCK_N` multiply-adds. A longer step
# in K loads and computes proportionally more, so the ratio stays. It changes how often the loop turns: fewer barriers
# and address computations, larger loads, longer runs of matrix instructions between waits. It costs shared memory, as
# `BLOCK_K` times (`BLOCK_M + BLOCK_N`) times the element size times the number of stages, so fewer stages or fewer
# programs fit. Too large shows as shared memory beyond the limit ("does not fit"), or in registers and spilled bytes
# where operands are held in registers; and as wasted work for a small K, where most of the last step is masked.
#
# *Marking guide.* 1 point for why it cancels, 1 for one benefit and one cost that are right, 1 for naming shared memory
# against its limit (or spills) as what to look at.
# ### END SOLUTION

# %% [markdown]
# ## Further reading
# - Samuel Williams, Andrew Waterman and David Patterson, *Roofline: An Insightful Visual Performance Model for
#   Multicore Architectures*, Communications of the ACM 52(4), 2009. The figure of section 1, in its authors' words.
# - Horace He, [Making Deep Learning Go Brrrr From First Principles](https://horace.io/brrr_intro.html), 2022. The three
#   regimes, and the two cosines that the case file of section 1 retells.
# - Jacob Austin and others, [How to Scale Your Model](https://jax-ml.github.io/scaling-book/), 2025, chapter *All About
#   Rooflines*: the same reasoning across many chips.
# - Maxim Milakov and Natalia Gimelshein, *Online normalizer calculation for softmax*, 2018, arXiv:1805.02867. The
#   running maximum and sum of section 6.
# - The [Triton tutorials](https://triton-lang.org/main/getting-started/tutorials/index.html) *Fused Softmax* and
#   *Matrix Multiplication*, and the source of `triton.testing.do_bench`, which is short.
# - Simon Boehm, [How to Optimize a CUDA Matmul Kernel](https://siboehm.com/articles/22/CUDA-MMM), 2022: the ladder of
#   section 7 in CUDA, one idea a rung.
# - NVIDIA, [CUDA C++ Best Practices Guide](https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/), the
#   [Nsight Systems user guide](https://docs.nvidia.com/nsight-systems/UserGuide/), and the chapter *CUDA Graphs* of the
#   [CUDA C++ Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/).
# - Vinh Nguyen, Michael Carilli and others, [Accelerating PyTorch with CUDA
#   Graphs](https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/), 2021.
# - Torsten Hoefler and Roberto Belli, *Scientific Benchmarking of Parallel Computing Systems*, SC 2015: what to
#   report so that a number can be believed.
# - Stanford's course CS336, *Language Modeling from Scratch*, whose assignment the systems notes of this lesson answer.
