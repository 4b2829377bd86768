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
# # 09 Capstone: a vision tower, from the report to the floor
#
# After this lesson you can
#
# - read a report of a speed-up, find out what its numbers say, and say what cannot be known from them,
# - bring a whole model from the code that one finds to a small multiple of its floor, in steps that are each predicted
#   before they are measured,
# - plan how much memory a training step holds, to the byte, and trade it for time on purpose,
# - keep an engineering log that someone else can check.
#
# **Time** 15 hours; the five exercises take about seven of them. Each row is a sitting or two. Run the cells from the
# top each time. A cell that needs an exercise which you have not solved stops with "not written yet"; go on with the
# cell below it.
#
# | sections | what they are about | exercises | hours |
# |---|---|---|---|
# | 1, 2 | the report and its riddles; the naive tower | | 2 |
# | 3, 4 | one mask for all layers; what torch alone does well | exercise 9.1 | 2 |
# | 5 | q, k and v in one tensor | exercise 9.2 | 3 |
# | 6 | the whole tower behind operators | exercise 9.3 | 3 |
# | 7, 8 | memory planned to the byte; small batches | exercise 9.4 | 2 |
# | 9, 10 | speed; the waterfall, the riddles answered, the log | exercise 9.5, two questions | 3 |
#
# **Needs** all lessons before it, most of all lesson 02 (graphs, operators), lesson 04 (attention) and lesson 05 (what
# is kept, what is made again). Kernels that you wrote there may be used again: copy them into your answers.
#
# **Without a GPU** four of the five exercises can be solved and earn all their points; of exercise 9.5 it is checked
# that the answer is right, and its points for speed need a GPU. Counting needs no GPU anywhere: floors, bytes and plans
# are made for the tower at its full widths. Times come from the machine at hand, where a CPU takes a small tower. Where
# a cell shows recorded numbers of a GPU, it says on which one; where nothing was recorded yet, it says so.

# %% tags=["setup"]
from course_lib.device import DEVICE, TIER, half, machine, share_of_sizes

import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

from autograder import check, check_speed
from course_lib.models.siglip import Sizes, naive, strong

HERE = machine()
HERE

# %% [markdown]
# What the demonstrations use. `SO400M` has the widths of the tower that the report is about, in 4 layers, and is what
# we count with. `SIZES` is what we measure with: the same on a GPU, and on a CPU a tower that is small in everything
# but its head size, which is 72 as well.

# %%
from contextlib import nullcontext

import torch._functorch.config
from torch.nn.attention import sdpa_kernel

from course_lib import memory, plots, results, torch_inside
from course_lib.device import ceilings
from course_lib.models.siglip import on_paper
from course_lib.models.siglip.frame import named_gradients
from course_lib.models.siglip.steps import steps
from course_lib.predictions import Log, against
from course_lib.profiling.families import by_family
from course_lib.roofline import Roof
from course_lib.table import Table, bytes_text
from course_lib.timing import time_gpu
from course_lib.timing.waiting import captured, waited_us

GPU, MIB = TIER == "gpu", 2**20
SO400M, LARGE = Sizes.so400m(layers=4), 256  # images, for counting
SIZES = SO400M if GPU else Sizes(48, patches=64, width=144, mlp=538, heads=2, layers=2)
IMAGES = int(LARGE * share_of_sizes()) if GPU else 16
DTYPE = half() if GPU else torch.float32
AT = f"{IMAGES} x {SIZES.patches} x {SIZES.width}, {SIZES.layers} layers"
torch._functorch.config.donated_buffer = False  # backward is to run again and again
log = Log()
print(results.memory_of("09_capstone"))


# %%
def timed(fn):
    """The course's timer, told how long it may take on this tier."""
    precision, seconds = (0.01, 1.0) if GPU else (0.1, 0.4)
    return time_gpu(fn, precision=precision, max_seconds=seconds)


def recorded(section):
    """The rows of a recorded section; none, and a line that says so,
    where nothing was measured."""
    entry = results.load(section)
    said = "not yet run on a GPU"
    if entry:
        said = f"recorded on {entry['machine']}, {entry['date']}"
    print(f"{section}: {said}")
    return entry["rows"] if entry else []


def batch(images=IMAGES, sizes=SIZES):
    """Patches, padded, and how many of each image are real."""
    random = torch.Generator().manual_seed(0)
    patches = torch.randn(images, sizes.patches, sizes.patch, generator=random)
    ends = sizes.patches // 2, sizes.patches + 1
    lengths = torch.randint(*ends, (images,), generator=random)
    return patches.to(DEVICE, DTYPE), lengths.to(DEVICE)


# %%
torch.manual_seed(0)
FIRST = naive.Tower(SIZES).to(DEVICE, DTYPE)
given = batch()


def made(kind):
    """A tower of another kind with the same weights."""
    tower = kind(SIZES).to(DEVICE, DTYPE)
    tower.load_state_dict(FIRST.state_dict())
    return tower


def measured(tower, call=None):
    """MiB at the peak of a step, and seconds forward and backward."""
    call, weights = call if call is not None else tower, list(tower.parameters())
    dy = torch.ones(IMAGES, SIZES.width, device=DEVICE, dtype=DTYPE)

    def step():
        return torch.autograd.grad(call(*given), weights, dy)

    found = {"peak, MiB": memory.peak(step) / MIB}
    found["forward"] = timed(lambda: call(*given)).median_s
    y = call(*given)
    again = lambda: torch.autograd.grad(y, weights, dy, retain_graph=True)  # noqa: E731
    return found | {"backward": timed(again).median_s}


# %% [markdown]
# Two roofs: of the recorded H200, for what is counted, and of the machine at hand, for what is measured.

# %%
ceiling = {
    row["name"]: row["value"] for row in results.load("lesson01.ceilings")["rows"]
}
H200 = Roof(
    "H200 bf16", ceiling["matmul bf16, TFLOP/s"] * 1e12, ceiling["copy, TB/s"] * 1e12
)
top = ceilings()
RATE = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[DTYPE]
OWN = Roof(f"{HERE.name} {RATE}", top.flops_per_s[RATE], top.bytes_per_s)
for roof in (H200, OWN):
    print(
        f"{roof.name}: {roof.flops_per_s / 1e12:.3g} TFLOP/s, "
        f"{roof.bytes_per_s / 1e12:.3g} TB/s"
    )

# %% [markdown]
# ## 1. The report and its riddles
# ### Case file
# **The report says** (an engineer speeds up the vision encoder of SigLIP-2): head size 72, at most 256 patches an
# image, batches of images of different sizes with a padding mask, 1024 images, bf16, one data-centre GPU. Lessons 02,
# 03 and 05 took parts of it. Here it is whole.
#
# | | forward | backward | peak memory |
# |---|---|---|---|
# | original | 2099.66 ms | 2899.58 ms | 19288.3 MiB |
# | optimised | 1273.94 ms | 2971.07 ms | 12136.7 MiB |
#
# What was done, in this order: compile, and read the log of graph breaks. The mask code read a scalar, and every layer
# built the mask again; moved out of the layers, the model compiled in one graph. Profile; find that the MLP's
# activation is the largest owner of memory; write a fused MLP that makes part of it again in backward. A fused addition
# with its norm, in place where possible. One product for q, k and v. Dropout from a seed ("about 1000 MiB", left out).
# Stream-K (no gain). CUDA graphs ("big effect", left out on purpose). And two complaints: tiles of the TMA do not fit
# head size 72, and operators that return tuples broke under compile.
#
# The report gives neither the depth nor the widths. Width 1152, 16 heads, MLP 4304 is our assumption: So400m, the size
# of this family with head size 72, has them, in 27 layers.
#
# ### Predict
# A layer whose attention is fused keeps, for each of the 1024 x 256 rows: x twice (each norm keeps its input), the
# results of both norms, q, k, v, what attention gives, and h and gelu(h) of the MLP. How many MiB is that? How many
# such layers fill the report's peak? And how large is the dropout mask of one layer, a byte for each score?

# %%
predicted_memory = {  # replace None
    "a layer, MiB": None,
    "layers that fill the peak": None,
    "a mask, MiB": None,
}
### BEGIN PREDICTION
why = "8 x 1152 + 2 x 4304 numbers of 2 bytes in 262,144 rows; 1024 x 16 x 256 x 256"
predicted_memory = {
    "a layer, MiB": 9000,
    "layers that fill the peak": 2,
    "a mask, MiB": 1000,
    "why": why,
}
### END PREDICTION
REPORT = {  # ms forward, ms backward, MiB at the peak
    "original": (2099.66, 2899.58, 19288.3),
    "optimised": (1273.94, 2971.07, 12136.7),
}
WHOLE, BATCH = Sizes.so400m(), 1024  # all 27 layers

# %%
rows = BATCH * WHOLE.patches
row = {  # of a layer, in numbers
    "x, twice": 2 * WHOLE.width,
    "results of both norms": 2 * WHOLE.width,
    "q, k, v": 3 * WHOLE.width,
    "o": WHOLE.width,
    "h": WHOLE.mlp,
    "gelu(h)": WHOLE.mlp,
}
for name, numbers in row.items():
    print(f"{name:22} {2 * rows * numbers / MIB:6.0f} MiB")
layer = 2 * rows * sum(row.values()) / MIB
x_alone = 2 * rows * WHOLE.width / MIB
mask = BATCH * WHOLE.heads * WHOLE.patches**2 / MIB
peak = REPORT["original"][2]
print(f"together {layer:.0f} MiB a layer")
came = {"a layer, MiB": layer, "layers that fill the peak": peak / layer}
against(predicted_memory, came | {"a mask, MiB": mask}, digits=4)
log.note("reading the report", predicted_memory, came | {"a mask, MiB": mask})

# %% [markdown]
# **The prediction, counted.** A layer keeps 8912 MiB, so 2.164 layers fill the peak, and a mask of one layer has 1024
# MiB, which the report calls about 1000.
#
# Three stories fit 19288 MiB. Each of them also says how the mask's 1000 MiB is to be read.

# %%
stories = (
    ("all is kept, 1024 images at once", peak / layer, BATCH),
    ("layers are made again in backward", (peak - layer) / x_alone, BATCH),
    ("27 layers, the batch in parts", WHOLE.layers, BATCH * peak / layer / 27),
)
Table(
    ("story", "layers", "images at once", "masks held at once, MiB"),
    [
        (name, f"{layers:.1f}", f"{images:.0f}", f"{held * mask * images / BATCH:.0f}")
        for (name, layers, images), held in zip(stories, (peak / layer, 1, 27))
    ],
    note="counted with fused attention; 27 is the depth of So400m",
)

# %% [markdown]
# In the second story a layer's insides are there only while its own backward step runs, so one mask is there at a time:
# of the three it is the one in which a mask of one layer is just what is saved. That speaks for it, and proves nothing:
# the saving may have been measured on one layer.
#
# ### Backward is 1.38 times forward
# Time has its own arithmetic. Of every product forward, backward makes two. What is made again in backward comes on
# top. So the ratio of the passes tells what is made again, where products set the time.
#
# ### Predict
# The ratio of backward to forward by products alone: where all is kept; where the MLP's first product is made again,
# as in exercise 5.5; where whole layers are made again. Which of them is the report's tower *after* the work? And
# *before*?

# %%
predicted_ratio = {  # replace None; the last two: one of the names above them
    "all kept": None,
    "the MLP's first product again": None,
    "whole layers again": None,
    "the report, after": None,
    "the report, before": None,
}
### BEGIN PREDICTION
why = "the up projection is a third of the products; before, none of them fits"
predicted_ratio = {
    "all kept": 2.0,
    "the MLP's first product again": 2.3,
    "whole layers again": 3.0,
    "the report, after": "the MLP's first product again",
    "the report, before": "none",
    "why": why,
}
### END PREDICTION

# %%
forward, backward = WHOLE.forward_flops(BATCH), WHOLE.backward_flops(BATCH)
up = WHOLE.layers * 2 * rows * WHOLE.width * WHOLE.mlp
ratios = {
    "all kept": backward / forward,
    "the MLP's first product again": (backward + up) / forward,
    "whole layers again": (backward + forward) / forward,
}
came = dict(ratios)
for said, (forth, back, _) in zip(("before", "after"), REPORT.values()):
    nearest = min(ratios, key=lambda name: abs(ratios[name] - back / forth))
    fits = abs(ratios[nearest] - back / forth) < 0.1
    came[f"the report, {said}"] = nearest if fits else "none"
    print(f"the report's ratio {said} the work: {back / forth:.2f}")
against(predicted_ratio, came)
log.note("ratio of the passes", predicted_ratio, came)
gone = REPORT["original"][0] - REPORT["optimised"][0]
more = REPORT["optimised"][1] - REPORT["original"][1]
print(f"forward lost {gone:.0f} ms, backward took {more:.0f} ms more")

# %% [markdown]
# **The prediction, counted.** By products 2.00, 2.31 and 3.00. The report has 2.33 after the work, which is what a
# tower takes that makes the MLP's first product again, and 1.38 before, which is none of the three.
#
# So the work did two things. It put a product into backward, as it says. And it took 826 ms out of the *forward* pass
# that had no counterpart in backward. Products, norms and additions all have one. What has none is code without a
# gradient: **the mask**. (A ratio may agree by accident. With layers made again it would be 3, so the second story
# above would need another explanation for 2.33.)
#
# ### What can take 826 ms?
# Hypothesis one: a scalar is read in every layer, and each read waits until the device has nothing left to do.
# Hypothesis two: the mask is built in Python, image by image. The next cell has both, and the mask made at once.


# %%
def image_by_image(lengths, patches):
    real = torch.zeros(len(lengths), patches, dtype=torch.bool, device=lengths.device)
    for i, length in enumerate(lengths):
        real[i, : int(length)] = True  # reads a number of each image
    return real


def one_read(lengths, patches):
    longest = int(lengths.max())  # one number a layer
    return torch.arange(longest, device=lengths.device) < lengths[:, None]


def at_once(lengths, patches):
    return torch.arange(patches, device=lengths.device) < lengths[:, None]


# %% [markdown]
# ### Predict
# For 27 layers and 1024 images on your machine: the ms of each of the three. (Lesson 01 measured what an operator costs
# the host: some microseconds.)

# %%
predicted_mask = {"image by image": None, "one read": None, "at once": None}  # ms
### BEGIN PREDICTION
why = (
    "27 x 1024 images, two operators and a read each, 10 us; the others 27 times 20 us"
)
predicted_mask = {"image by image": 280, "one read": 0.5, "at once": 0.5, "why": why}
### END PREDICTION

# %%
lengths = torch.randint(128, 257, (BATCH,), device=DEVICE)
ways = {"image by image": image_by_image, "one read": one_read, "at once": at_once}
took = {
    name: 27 * waited_us(lambda way=way: way(lengths, WHOLE.patches)) * 1e-6
    for name, way in ways.items()
    if way(lengths, WHOLE.patches) is not None  # a first call, not counted
}
came = {name: 1e3 * s for name, s in took.items()}
against(predicted_mask, came, "ms")
log.note("the mask of 27 layers, ms", predicted_mask, came)
print(f"826 ms are {826e3 / 27 / 1024:.1f} us for each image in each layer")
results.beside("lesson09.mask", took)

# %% [markdown]
# **The prediction, counted.** The numbers are your machine's. On any machine the two ways without a loop cost next to
# nothing, and the loop costs many times as much, because it grows with the batch. What the report lost, 29.9 us for
# each image in each layer, are a few operators more than this loop has, or a slower host, or a device that each read
# has to wait for. So a scalar a layer is not the reason, and a loop over images is large enough. This is a hypothesis
# that the numbers allow. It is not a finding: the report does not show its mask code.
#
# (The published code of this model, in the library *transformers*, has such a loop elsewhere: it resizes the table of
# positions for each image, once a call. That one has a gradient, so it would cost backward as well.)
#
# ### Three small riddles
# Head size 72, stream-K, and the launches.

# %%
SMS, TILE = 132, 128  # of an H200; rows and columns of a tile
head = WHOLE.width // WHOLE.heads
print(
    f"head size {head}: {2 * head} bytes a row, {head % 32} more than a multiple of 32"
)
for padded in (80, 96, 128):
    print(f"  in tiles of {padded:3}: {1 - head / padded:4.0%} of the work is on zeros")
for images in (1024, 8):
    tiles = math.ceil(images * 256 / TILE) * math.ceil(WHOLE.mlp / TILE)
    waves = math.ceil(tiles / SMS)
    idle = 1 - tiles / SMS / waves
    print(f"{images:4} images: {tiles} tiles in {waves} waves, {idle:.1%} idle")
least = 3 * 2 * rows * WHOLE.width / H200.bytes_per_s  # reads two, writes one
print(f"an addition of 1024 images takes the H200 {1e6 * least:.0f} us or more")

# %% [markdown]
# - **72** is no multiple of 32. A tile has a power of two columns in Triton, so 128, and nearly half of its work is on
#   zeros, unless a kernel cuts the head in two: 64 columns and 16, of which 8 are masked. The course's own kernels do.
# - **Stream-K** evens out the last wave of tiles. With 1024 images that wave is one of hundreds: there is nothing to
#   even out. Section 5 of lesson 05 counted it at fewer tokens.
# - **CUDA graphs** save launches. At 1024 images even an addition takes the device some forty times as long as its
#   launch takes the host, so graphs can have a "big effect" only if the host has other work to do: another hint at the
#   loop. Or it was measured with fewer images. Section 8 counts where the border lies.
#
# ### What cannot be known from the report
# The GPU; the depth, and with it whether layers were made again; how the lengths were distributed; whether the first
# call was among those timed; whether both passes were waited for; what the mask code did; and which of seven changes
# brought what, since two lines of a table cannot tell. The last is what a log is for. So we do the work again, one step
# at a time, with a prediction before each.

# %% [markdown]
# ## 2. The naive tower
# `course_lib.models.siglip.naive` is the tower as one finds them. It is right, in every type. Read its attention, and
# count on your fingers how often the scores go through memory.

# %%
import inspect

print(inspect.getsource(naive.Attention.forward))

# %% [markdown]
# ### Its products
# Products are the part of the work that nobody can take away, so their time at the full rate is the floor that
# everything below is held against. Norms, additions and attention's softmax would have to hide behind them.

# %%
named = SO400M.products(LARGE)
total = SO400M.forward_flops(LARGE)
Table(
    ("product", "how many", "m, n, k", "TFLOP", "share", "floor, H200"),
    [
        (
            name,
            sum(count for count, *_ in each),
            f"{each[0][1]:,} x {each[0][2]:,} x {each[0][3]:,}",
            f"{flops / 1e12:.3f}",
            f"{flops / total:.1%}",
            f"{1e3 * flops / H200.flops_per_s:.2f} ms",
        )
        for name, each in named.items()
        for flops in [sum(2 * math.prod(one) for one in each)]
    ],
    note=f"{SO400M.layers} layers, {LARGE} images; backward: two each, one for embed",
)


# %%
def floor_s(sizes, images, roof):
    """Seconds of the products at the full rate, of either pass."""
    return {
        "forward": sizes.forward_flops(images) / roof.flops_per_s,
        "backward": sizes.backward_flops(images) / roof.flops_per_s,
    }


for name, s in floor_s(SO400M, LARGE, H200).items():
    print(f"floor of the products, {name}, on the recorded H200: {1e3 * s:.1f} ms")

# %% [markdown]
# ### Predict
# Attention (its two products, and all that happens to the scores between them) has a small share of the FLOPs, as the
# table says. What share of the naive tower's *floor* does it have forward, where every operator is charged for its
# bytes? And how many bytes does the naive code move for each score?

# %%
predicted_naive = {  # replace None
    "attention, % of the floor": None,
    "bytes a score": None,
}
### BEGIN PREDICTION
why = "2 written, 2 + 4, 4 + 4, 4 + 4, 4 + 4, 4 + 2, 2 read; about as long as products"
predicted_naive = {"attention, % of the floor": 50, "bytes a score": 40, "why": why}
### END PREDICTION


# %%
def counted(kind, sizes, images):
    """The floor of each family of operators on the H200, on tensors without memory."""
    with torch.device("meta"):
        tower = kind(sizes).to(torch.bfloat16)
        patches = torch.empty(images, sizes.patches, sizes.patch, dtype=torch.bfloat16)
        lengths = torch.empty(images, dtype=torch.int64)
    given = {"patches": sizes.patches, "roof": H200, "timed": False}
    return by_family(lambda: tower(patches, lengths), [*tower.parameters()], **given)


plain = counted(naive.Tower, SO400M, LARGE)
Table(
    ("family", "operators", "bytes moved", "floor, H200"),
    [
        (
            f"{r.phase}: {r.family}",
            r.calls,
            bytes_text(r.bytes),
            f"{1e3 * r.floor_s:.2f} ms",
        )
        for r in plain
    ],
)

# %%
forth = {row.family: row for row in plain if row.phase == "forward"}
all_of = sum(row.floor_s for row in forth.values())
scores = SO400M.layers * LARGE * SO400M.heads * SO400M.patches**2
came = {
    "attention, % of the floor": 100 * forth["attention"].floor_s / all_of,
    "bytes a score": forth["attention"].bytes / scores,
}
against(predicted_naive, came)
log.note("the naive tower, counted", predicted_naive, came)
values = 2 * math.prod(named["values"][0]) * SO400M.layers
print(
    f"attention: {forth['attention'].floor_s / all_of:.1%} of the floor, "
    f"{values / total:.1%} of the FLOPs for each of its two products, "
    f"{came['bytes a score']:.1f} bytes a score"
)
for phase in ("forward", "backward"):
    s = sum(row.floor_s for row in plain if row.phase == phase)
    print(f"sum of all floors, {phase}: {1e3 * s:.1f} ms")

# %% [markdown]
# **The prediction, counted.** Attention has 40.1 % of the floor forward, and its two products have 1.8 % of the FLOPs
# each. A score costs 42.4 bytes, some two of them for q, k, v and the result. Here is the first thing to remove.
#
# ### Where the time goes
# Now the clock. Every operator of the naive tower runs inside a range with the name of its family, and a profile sums
# the device's time by range. The marks are the floors at the rates of the machine at hand.


# %%
def profiled(tower):
    weights = list(tower.parameters())
    return by_family(lambda: tower(*given), weights, patches=SIZES.patches, roof=OWN)


plain_here = profiled(FIRST)
plots.show(
    plots.families(plain_here, device=f"{HERE.name}, {RATE}, {AT}"),
    alt="Time of the naive tower by family of operators, forward and backward, each "
    "beside its floor",
)

# %% [markdown]
# Read it family by family: a bar close to its mark can only be made shorter by removing the work, a bar far from its
# mark by a better kernel. (A mark right of its bar: the bytes never left a cache, as happens to a small tower on a
# CPU.)
#
# ### What it keeps
# And memory. The ledger of lesson 05, section 6, on the tower at its full widths: who owns each byte, operator by
# operator, without a GPU.

# %%
OWNERS = (
    "x",
    "q, k, v, o",
    "probabilities",
    "h",
    "gelu(h)",
    "in passing",
    "results of norms",
)
paper = {"naive": on_paper.step_on_paper(naive.Tower, SO400M, LARGE)}
plots.show(
    plots.memory_by_owner(
        paper["naive"],
        looks=OWNERS,
        device=f"counted; bf16, {LARGE} images, {SO400M.layers} layers",
    ),
    alt="Memory of a step of the naive tower as stacked areas by owner: probabilities "
    "are the largest, then the MLP's h and gelu(h)",
)
paper["naive"]

# %% [markdown]
# The probabilities are kept twice: in fp32 for the softmax, and in 16 bits for the product behind it. Together they are
# two fifths of all.
#
# Last, its time and its peak, the first row of everything that follows.

# %%
seen = {"naive, eager": measured(FIRST)}
floor = floor_s(SIZES, IMAGES, OWN)
for name in ("forward", "backward"):
    s = seen["naive, eager"][name]
    print(f"{name}: {1e3 * s:.3g} ms, {s / floor[name]:.2f} times its products' floor")
print(f"peak: {seen['naive, eager']['peak, MiB']:.0f} MiB")

# %% [markdown]
# ## 3. One mask for all layers
# The report's first step: a mask that is built once. Lesson 02 repaired a tower that broke its graph. The naive tower
# here breaks no graph, and builds its mask in every layer all the same. How many nodes of its graph are made of
# `lengths` alone?


# %%
def from_lengths(tower, given):
    """Of the graph of a call: the nodes that are computed from `lengths` alone."""
    graphs = []

    def keep(graph, examples):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(tower, backend=keep, fullgraph=True)(*given)
    above, found = {}, []  # node -> the inputs that it depends on
    for node in graphs[0].graph.nodes:
        above[node] = {node.name} if node.op == "placeholder" else set()
        above[node] |= set().union(*(above[one] for one in node.all_input_nodes))
        computed = node.op.startswith("call") and above[node]
        if computed and all("lengths" in name for name in above[node]):
            found.append(node.name)
    return found


# %% [markdown]
# ### Predict
# How many such nodes has a naive tower with one layer, with three, and with nine? And what will the time of the forward
# pass be, once there is one mask, over the time of the naive one, at the full batch?

# %%
predicted_hoist = {  # replace None
    "nodes, 1 layer": None,
    "nodes, 3 layers": None,
    "nodes, 9 layers": None,
    "forward, hoisted / naive": None,
}
### BEGIN PREDICTION
why = "about four in the frame and four a layer; on B x N booleans, so no time to gain"
predicted_hoist = {
    "nodes, 1 layer": 8,
    "nodes, 3 layers": 16,
    "nodes, 9 layers": 40,
    "forward, hoisted / naive": 1.0,
    "why": why,
}
### END PREDICTION

# %%
came_hoist = {}
for layers in (1, 3, 9):
    few = Sizes(layers=layers)
    tiny = torch.randn(3, few.patches, few.patch), torch.tensor([4, 16, 9])
    nodes = from_lengths(naive.Tower(few), tiny)
    word = "nodes, 1 layer" if layers == 1 else f"nodes, {layers} layers"
    came_hoist[word] = len(nodes)
    print(f"{word}: {len(nodes)}; the last ones: {', '.join(nodes[-3:])}")

# %% [markdown]
# EXERCISE capstone.mask

# %% [markdown]
# ### After
# Your tower beside the naive one: the nodes, and the time.

# %%
hoisted = made(HoistedTower)
tiny = Sizes(layers=3)
torch.manual_seed(0)
nodes = from_lengths(
    HoistedTower(tiny),
    (torch.randn(3, tiny.patches, tiny.patch), torch.tensor([4, 16, 9])),
)
print(f"hoisted, 3 layers: {len(nodes)} nodes")
seen["hoisted, eager"] = measured(hoisted)
came_hoist["forward, hoisted / naive"] = (
    seen["hoisted, eager"]["forward"] / seen["naive, eager"]["forward"]
)
against(predicted_hoist, came_hoist)
log.note("one mask for all layers", predicted_hoist, came_hoist)

# %% [markdown]
# **The prediction, counted.** 11 nodes with one layer, 19 with three, 43 with nine: 7 in the frame and 4 in each
# layer. As for the time, look at what else your tower does in another way than the naive one. If its softmax is not
# in fp32 any more, you have measured two changes at once, and the second moves bytes.
#
# **Verdict.** A mask of this tower is a comparison of 256 x 256 numbers, so building it in every layer costs launches
# and no bytes that count. With a large batch hoisting gains nothing by itself, and with a small one a few launches a
# layer. It pays in other ways: there is one place where the mask is made, in the form that the kernels want; nothing
# in a layer looks at `lengths`; and if the code that makes it is slow (a loop), it is slow once. The report's gain was
# the loop's, or the graph's, and not the hoisting's.

# %% [markdown]
# ## 4. What torch alone does well
# A fair opponent comes before any kernel. `course_lib.models.siglip.strong` is the tower with one additive mask for
# all layers, and `scaled_dot_product_attention`, which never writes scores. On a GPU there are two of its backends that
# take a mask, and each may run eager or compiled. **The strong baseline of each direction is the best of all of them**,
# chosen for forward and backward apart, which no single program reaches.
#
# ### Predict
# On the H200, counted: what does the naive tower lose by its scores, in ms forward and backward? Take attention's floor
# of the naive tower (the table of section 2), and subtract what a fused attention must still do: its products. And your
# machine: the time of strong over naive, forward and backward?

# %%
predicted_strong = {  # replace None
    "scores, forward, ms": None,
    "scores, backward, ms": None,
    "strong / naive, forward": None,
    "strong / naive, backward": None,
}
### BEGIN PREDICTION
why = "40 bytes for each of 1.07 billion scores, half as much again backward"
predicted_strong = {
    "scores, forward, ms": 10,
    "scores, backward, ms": 15,
    "strong / naive, forward": 0.6,
    "strong / naive, backward": 0.7,
    "why": why,
}
### END PREDICTION

# %%
came_strong = {}
(_, m, n, k), (_, *_) = named["scores"][0], named["values"][0]
one = 2 * LARGE * SO400M.heads * m * n * k * SO400M.layers  # FLOPs of one product
for phase, products in (("forward", 2), ("backward", 5)):
    of_scores = next(
        row for row in plain if (row.phase, row.family) == (phase, "attention")
    )
    still = products * one / H200.flops_per_s
    came_strong[f"scores, {phase}, ms"] = 1e3 * (of_scores.floor_s - still)
    print(
        f"{phase}: {1e3 * of_scores.floor_s:.2f} ms, less {1e3 * still:.2f} ms of "
        f"products, is {came_strong[f'scores, {phase}, ms']:.1f} ms"
    )

# %%
tower, ways = made(strong.Tower), {"eager": None, "compiled": None}
if GPU:
    ways = {"eager": None} | {n: way.backend for n, way in strong.WAYS.items()}
for name, backend in ways.items():
    torch._dynamo.reset()
    compiled = name.endswith("compiled")
    call = torch.compile(tower, fullgraph=True, dynamic=False) if compiled else tower
    try:
        with nullcontext() if backend is None else sdpa_kernel(backend):
            seen[f"strong, {name}"] = measured(tower, call)
    except RuntimeError as refused:  # a backend that does not take these shapes
        print(f"strong, {name} is left out: {str(refused).splitlines()[0]}")
if GPU:  # on a CPU compiling takes longer than it can give back here
    seen["naive, compiled"] = measured(FIRST, torch.compile(FIRST, dynamic=False))


# %%
def best(kind, what):
    """The least of `what` among all ways of running a kind of tower."""
    return min(row[what] for name, row in seen.items() if name.startswith(kind))


for what in ("forward", "backward"):
    ratio = best("strong", what) / seen["naive, eager"][what]
    came_strong[f"strong / naive, {what}"] = ratio
against(predicted_strong, came_strong)
log.note("attention that writes no scores", predicted_strong, came_strong)
print(
    f"scores, counted: {came_strong['scores, forward, ms']:.1f} ms forward, "
    f"{came_strong['scores, backward, ms']:.1f} ms backward"
)

# %%
results.beside(
    "lesson09.towers",
    {f"{n}, {what}": row[what] for n, row in seen.items() for what in floor},
    size=f"{RATE}, {AT}",
)

# %% [markdown]
# **The prediction, counted.** The scores cost the naive tower 10.2 ms forward and 12.1 ms backward on the H200's
# roofs. The ratios are your machine's; on a CPU the scores of a small tower stay in a cache, and attention's share is
# small.
#
# Does compiling help? Look at each direction. It fuses norms, additions and GELU into fewer passes, and it also decides
# what backward keeps. It may as well make things slower, where it chooses another layout or another product than eager
# does. That is why the baseline takes the better of each.

# %%
plots.show(
    plots.families(profiled(tower), device=f"{HERE.name}, {RATE}, {AT}, eager"),
    alt="Time of the strong tower by family of operators, forward and backward, each "
    "beside its floor: products dominate",
)

# %% [markdown]
# What is left beside the products: attention itself, GELU, norms, additions and sums. Each is a row of one of the
# lessons before this one. From here on it is kernels.

# %% [markdown]
# ## 5. q, k and v in one tensor
# ### Case file
# **The report says**: one fused projection for q, k and v "saves launches". At 1024 images launches are not what one
# pays. So what does it save?
#
# Forward, three products read the same input. One product with the three weights stacked, (3 width, width), gives
# `qkv` in one pass. Attention takes q, k and v as views of it: strides are enough, nothing is copied. Backward is where
# it gets interesting. Three products give three gradients of x, which have to be added. And one product wants *one*
# gradient of `qkv`, while attention's backward pass gives three tensors.
#
# ### Predict
# Count the operators of the projection's backward pass, apart and packed by `chunk`: products, additions, and
# concatenations (`cat`). And in MB, at the full widths and 256 images, for one layer: what do the additions move, and
# what does the concatenation?

# %%
predicted_qkv = {  # replace None
    "apart, products": None,
    "apart, additions": None,
    "packed, products": None,
    "packed, cat": None,
    "additions, MB": None,
    "cat, MB": None,
}
### BEGIN PREDICTION
why = "two products each; a sum of three is two additions; 151 MB a tensor, 3 each time"
predicted_qkv = {
    "apart, products": 6,
    "apart, additions": 2,
    "packed, products": 2,
    "packed, cat": 1,
    "additions, MB": 900,
    "cat, MB": 900,
    "why": why,
}
### END PREDICTION


# %%
def backward_of(projection, heads=2, d=144):
    """The operators of backward through a projection and attention, counted by name."""
    x = torch.randn(4, 64, d, requires_grad=True)

    def forward():
        q, k, v = (t.view(4, 64, heads, -1).transpose(1, 2) for t in projection(x + 0))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(4, 64, d)

    account = memory.ledger(forward)
    return account.moments[account.forward :]


three, one = nn.ModuleList(nn.Linear(144, 144) for _ in "qkv"), nn.Linear(144, 432)
ran = {
    "apart": backward_of(lambda x: [layer(x) for layer in three]),
    "packed": backward_of(lambda x: one(x).chunk(3, -1)),
}
for name, operators in ran.items():
    print(f"{name}: {', '.join(operators)}")

# %%
tensor = 2 * LARGE * SO400M.patches * SO400M.width / 1e6  # MB, in bf16
came = {
    "apart, products": ran["apart"].count("mm"),
    "apart, additions": ran["apart"].count("add"),
    "packed, products": ran["packed"].count("mm"),
    "packed, cat": ran["packed"].count("cat"),
    "additions, MB": 2 * 3 * tensor,  # each reads two and writes one
    "cat, MB": 2 * 3 * tensor,  # reads three, writes three
}
against(predicted_qkv, came)
log.note("one product for q, k and v", predicted_qkv, came)
each_ms = 1e-3 * 6 * tensor / H200.bytes_per_s * 1e12
print(f"either moves {6 * tensor:.0f} MB, and takes {each_ms:.2f} ms a layer or more")

# %% [markdown]
# **The prediction, counted.** Apart, backward has 6 products and 2 additions; packed, 2 products and one `cat`. The
# additions move 906 MB a layer, and the `cat` moves 906 MB too.
#
# So packing in this way trades one traffic for another of the same size, 0.21 ms a layer, and what is left is the
# launches and that larger products run a little better. The gain comes when **nobody copies**: the backward kernels of
# attention write dq, dk and dv straight into their places in one tensor, and the projection reads it as it lies.

# %% [markdown]
# EXERCISE capstone.qkv

# %% [markdown]
# ### Measure
# On a GPU: a projection with its attention, forward and backward, in three ways. Yours, apart and packed by `chunk`
# with the library's attention.


# %%
def library(x, w, b, lengths, heads, apart):
    """The same with scaled_dot_product_attention and a mask that is added."""
    batch, patches, width = x.shape
    parts = zip(w.chunk(3), b.chunk(3)) if apart else [(w, b)]
    made = [F.linear(x, *each) for each in parts]
    q, k, v = made if apart else made[0].chunk(3, -1)
    real = at_once(lengths, patches)[:, None, None]
    mask = torch.zeros_like(real, dtype=x.dtype).masked_fill(~real, -math.inf)
    q, k, v = (t.view(batch, patches, heads, -1).transpose(1, 2) for t in (q, k, v))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return o.transpose(1, 2).reshape(batch, patches, width)


def backward_again(o, wanted):
    do = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, wanted, do, retain_graph=True)


# %%
took = {}
if GPU:
    first = FIRST.blocks[0].attention
    layers = [first.q, first.k, first.v]
    w = torch.cat([one.weight for one in layers]).detach().requires_grad_()
    b = torch.cat([one.bias for one in layers]).detach().requires_grad_()
    x = torch.randn(IMAGES, SIZES.patches, SIZES.width, device=DEVICE, dtype=DTYPE)
    x.requires_grad_()
    lengths, heads = given[1].to(torch.int32), SIZES.heads
    for name, call in {
        "apart": lambda: library(x, w, b, lengths, heads, True),
        "packed by chunk": lambda: library(x, w, b, lengths, heads, False),
        "yours": lambda: attend(x, w, b, lengths, heads),
    }.items():
        took[f"{name}, forward"] = timed(call)
        took[f"{name}, backward"] = timed(backward_again(call(), (x, w, b)))
if not took:
    recorded("lesson09.qkv")
results.beside("lesson09.qkv", took, size=AT if GPU else "")

# %% [markdown]
# ### Verdict on the claim
# "Saves launches" is true and beside the point at that batch. What one product saves is the addition of three gradients
# of x, and it saves it only if the gradients of q, k and v are never put together by a copy.

# %% [markdown]
# ## 6. The whole tower behind operators
# Now everything that the lessons before this one made comes together: attention from packed rows, GELU at the end of a
# product or in a pass of its own, addition and norm in one kernel, the MLP that makes GELU again. And the tower must
# still be one graph.
#
# ### The walk of the data
# Before any code, write down what each step reads, what it writes and what stays until backward. This is such a walk
# for one layer, in rows of the width and in MiB at 256 images. Where a step could use memory again that nobody needs,
# it says so.

# %%
unit = 2 * LARGE * SO400M.patches * SO400M.width / MIB  # a row of the width, all rows
hidden = SO400M.mlp / SO400M.width
walk = (
    ("qkv = y w + b", 1, 3, "y (the norm's result), or x of which it is the norm"),
    ("attention", 3, 1, "qkv, o, a number a query"),
    ("out", 1, 1, "o is kept already; nobody keeps the result"),
    (
        "x = x + out, y = norm(x)",
        2,
        2,
        "x, and two numbers a row; y may use out's memory",
    ),
    ("h = y w + b, gelu(h)", 1, 2 * hidden, "y; h, or gelu(h), or both, or neither"),
    ("down", hidden, 1, "gelu(h), unless it is made again"),
    ("x = x + down, y = norm(x)", 2, 2, "x; the next layer begins with y"),
)
Table(
    ("step", "reads, MiB", "writes, MiB", "kept for backward"),
    [(step, f"{r * unit:.0f}", f"{w * unit:.0f}", kept) for step, r, w, kept in walk],
)

# %% [markdown]
# An addition always has a norm behind it, also where one layer ends and the next begins. So a layer may end *before*
# its last addition, and the next one begins with it.
#
# ### Why operators
# A kernel of yours is launched by Python that no compiler should run through. Behind `torch.library.custom_op` it is
# one node: with a rule for fake tensors, so that the graph knows its result's shape, and with a rule for gradients
# (lesson 02, section 8). The report says that operators which return tuples broke under compile. Does that hold for
# the torch at hand? A tuple of two in a compiled function, forward and backward:


# %%
@torch.library.custom_op("lesson09::twice_and_half", mutates_args=())
def twice_and_half(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return 2 * x, x / 2


@twice_and_half.register_fake
def _(x):
    return torch.empty_like(x), torch.empty_like(x)


twice_and_half.register_autograd(lambda ctx, d2, dhalf: 2 * d2 + dhalf / 2)
torch._dynamo.reset()
with torch_inside.watch() as watched:
    x = torch.ones(4, requires_grad=True)
    sum(torch.compile(lambda x: twice_and_half(x * 3))(x)).sum().backward()
print(
    f"torch {torch.__version__}: {len(torch_inside.graphs(watched))} graph, "
    f"{len(torch_inside.breaks(watched))} breaks, gradient {x.grad[0]:g}"
)

# %% [markdown]
# One graph, no break, and the right gradient. Whatever broke for the report's author has been mended since, or was
# something else.

# %% [markdown]
# EXERCISE capstone.tower

# %% [markdown]
# ### Measure
# On a GPU your tower, eager and compiled, beside those of sections 2 and 4. On a CPU your kernels run in the
# interpreter, whose times say nothing; there a small batch says that results agree, and how many graphs are made.


# %%
def agrees(tower, given):
    """Largest relative error of result and gradients, against the naive tower."""
    worst, names, dy = 0.0, [], torch.randn(len(given[1]), SIZES.width, device=DEVICE)
    for one in (FIRST, tower):
        one.zero_grad(set_to_none=True)
        y = one(*given)
        y.backward(dy.to(y.dtype))
        names.append({"y": y.detach()} | named_gradients(one))
        one.zero_grad(set_to_none=True)
    for name, want in names[0].items():
        if not name.endswith("attention.k.bias"):  # 0 on paper: only roundings
            worst = max(worst, ((names[1][name] - want).norm() / want.norm()).item())
    return worst


mine, few = made(Tower), tuple(t[:2] for t in given)
print(f"largest relative error: {agrees(mine, few):.1e}")

# %%
came_tower = {}
if GPU:
    seen["mine, eager"] = measured(mine)
    torch._dynamo.reset()
    compiled = torch.compile(mine, fullgraph=True, dynamic=False)
    seen["mine, compiled"] = measured(mine, compiled)
else:
    recorded("lesson09.mine")
results.beside(
    "lesson09.mine",
    {f"{n}, {w}": row[w] for n, row in seen.items() if "mine" in n for w in floor},
    size=f"{RATE}, {AT}" if GPU else "",
)

# %% [markdown]
# ## 7. Memory, planned
# The report's peak went from 19288 MiB to 12137 MiB, to less than two thirds, with "part of the activation made
# again". What would be possible? Look first at what the strong tower holds, at its full widths. (On tensors without
# memory the library's attention falls back to writing scores; a stand-in keeps what a fused kernel keeps.)

# %%
paper["strong"] = on_paper.step_on_paper(strong.Tower, SO400M, LARGE)
plots.show(
    plots.memory_by_owner(
        paper["strong"],
        limit=paper["naive"].peak_bytes,
        looks=OWNERS,
        device=f"counted; bf16, {LARGE} images, {SO400M.layers} layers",
    ),
    alt="Memory of a step of the strong tower as stacked areas by owner, on the scale "
    "of the naive one: no probabilities; h and gelu(h) are the largest owners",
)
paper["strong"]

# %% [markdown]
# With the probabilities gone, "the MLP's activation is the largest owner" is right: h and gelu(h) together have nearly
# half. What each owner costs to make again differs by orders of magnitude. Sort by bytes freed for the time that it
# takes (lesson 05, section 7).
#
# ### Predict
# For one layer at 256 images on the recorded H200: in which order do these stand by MiB freed for a microsecond, the
# best first: "gelu(h)" (made again at the end of a product that reads h anyway), "norms" (the results of both, one pass
# each), "h" (one product), "qkv" (one product), "layer" (everything but x, by the whole forward pass)?

# %%
predicted_order = {"order": None}  # replace None, as in "h, norms, qkv, layer, gelu(h)"
### BEGIN PREDICTION
why = "no bytes for gelu(h), a pass for norms; a layer frees cheap things too"
predicted_order = {"order": "gelu(h), norms, layer, h, qkv", "why": why}
### END PREDICTION
VECTOR = ceiling["matmul fp32, TFLOP/s"] * 1e12  # arithmetic without tensor cores
d, m, n = SO400M.width, SO400M.mlp, LARGE * SO400M.patches  # m hidden, n rows


# %%
def product_s(columns, k):
    return 2 * n * columns * k / H200.flops_per_s


free = {  # bytes freed, seconds to make them again
    "gelu(h)": (2 * n * m, 10 * n * m / VECTOR),
    "norms": (2 * 2 * n * d, 2 * 2 * 2 * n * d / H200.bytes_per_s),
    "h": (2 * n * m, product_s(m, d)),
    "qkv": (3 * 2 * n * d, product_s(3 * d, d)),
    "layer": (
        2 * n * (7 * d + 2 * m),
        floor_s(SO400M, LARGE, H200)["forward"] / SO400M.layers,
    ),
}
gain = {name: freed / MIB / (1e6 * s) for name, (freed, s) in free.items()}
order = sorted(gain, key=gain.get, reverse=True)
for name in order:
    freed, s = free[name]
    print(
        f"{name:8} frees {freed / MIB:5.0f} MiB for {1e6 * s:5.0f} us or more: "
        f"{gain[name]:.2f} MiB a us"
    )
against(predicted_order, {"order": ", ".join(order)})
log.note("what to make again", predicted_order, {"order": ", ".join(order)})

# %% [markdown]
# **The prediction, counted.** gelu(h), norms, layer, h, qkv: 9.79 MiB a microsecond at the end of a product, 2.04
# MiB for the norms' passes of bytes, and 0.55 MiB for a product. A whole layer comes before a single product, with 0.66
# MiB, because it frees all that is cheap as well: who needs very little memory makes layers again, and not h.
#
# ### Which choices reach which target
# Bytes of a row and layer, in numbers of the width: x twice, the norms' results twice, q, k, v, o, and the hidden
# tensors. Every choice with its memory and what it adds to backward, on paper:

# %%
strong_row = 8 * d + 2 * m
choices = {
    "as strong": (),
    "gelu(h) again": ("gelu(h)",),
    "gelu(h) and norms again": ("gelu(h)", "norms"),
    "gelu(h) and h again": ("gelu(h)", "h"),
    "gelu(h), norms and h again": ("gelu(h)", "norms", "h"),
    "whole layers again": ("layer",),
}
layer_s = floor_s(SO400M, LARGE, H200)["backward"] / SO400M.layers
rows = []
for name, again in choices.items():
    left = 2 * n * strong_row - sum(free[one][0] for one in again)
    price = sum(free[one][1] for one in again) / layer_s
    share = left / (2 * n * strong_row)
    rows.append((name, f"{left / MIB:.0f}", f"{share:.2f}", f"+{price:.1%}"))
Table(("made again", "kept a layer, MiB", "of strong's", "on backward's floor"), rows)

# %% [markdown]
# The second column is what is held *between* the passes. The peak is that and what one layer needs in passing during
# its own backward step, so at the peak shares are a little higher, most of all where few layers are deep. A plan that
# forgets what is held in passing meets it as an error of the allocator.

# %% [markdown]
# EXERCISE capstone.memory

# %% [markdown]
# ### The plan, beside what came
# Your plan at the full widths, and the ledger of your tower there: what is held between the passes by the account, and
# by owner over time.

# %%
plan = FrugalTower.planned(SO400M, LARGE, 2)
paper["frugal"] = on_paper.step_on_paper(FrugalTower, SO400M, LARGE)
held = {name: one.held_bytes for name, one in paper.items()}
print(
    f"planned {sum(plan.values()) / MIB:.0f} MiB, held {held['frugal'] / MIB:.0f} MiB"
)
for name in ("naive", "strong"):
    print(f"of {name}'s: {held['frugal'] / held[name]:.2f}")
plots.show(
    plots.memory_by_owner(
        paper["frugal"],
        limit=paper["strong"].peak_bytes,
        looks=OWNERS,
        device=f"counted; bf16, {LARGE} images, {SO400M.layers} layers",
    ),
    alt="Memory of a step of the frugal tower as stacked areas by owner, on the scale "
    "of the strong one",
)

# %% [markdown]
# Look at the peak in backward. What is made again is there once, for one layer, and goes with it. And what is the price
# in time, on the machine at hand?

# %%
seen["frugal, eager"] = measured(made(FrugalTower))
for what in ("forward", "backward", "peak, MiB"):
    ratio = seen["frugal, eager"][what] / best("strong", what)
    print(f"{what}: frugal over the best of strong {ratio:.2f}")
rows = {f"{n}, peak": row["peak, MiB"] for n, row in seen.items() if "eager" in n}
results.beside("lesson09.peaks", rows, unit="MiB", size=f"{RATE}, {AT}")

# %% [markdown]
# ### Verdict on the case
# The report's optimised tower takes two thirds of the memory, and its backward pass got slower although everything
# around it got faster. Both follow from one choice: the MLP's first product is made again. Memory alone could not
# tell, since the norms' results and gelu(h) made again come to the same share; the ratio of the passes in section 1
# can. The table above has the price. **Recomputing pays where it frees the most bytes for its time**: GELU at the end
# of a product first, norms next, products last, and only until the model fits. Who wanted a faster backward pass
# should have kept h.

# %% [markdown]
# ## 8. Small batches, and who sets the pace
# ### Case file
# **The report says**: CUDA graphs had a big effect, and were left out on purpose. Seeded dropout was left out as well.
#
# A CUDA graph replays all launches at one command of the host, so it helps as far as the host is slower than the
# device. When is that?
#
# ### Predict
# A step of the naive tower, 4 layers: how many operators is it, forward and backward? How long does the host of the
# recorded H200 take to ask for them, at the cost of an addition that lesson 01 measured? And up to how many images, as
# a power of two, does the host take longer than the device (by the sum of all floors)?

# %%
predicted_host = {  # replace None
    "operators": None,
    "host, ms": None,
    "images, at most": None,
}
### BEGIN PREDICTION
why = "100 operators forward and twice that backward, 10 us each; 0.3 ms an image"
predicted_host = {"operators": 300, "host, ms": 3.0, "images, at most": 8, "why": why}
### END PREDICTION

# %%
call_us = results.load("lesson01.call")["rows"][0]["value"]
device_ms, host_ms = {}, {}
for images in (1, 2, 4, 8, 16, 32, 64, 128, 256):
    every = counted(naive.Tower, SO400M, images)
    device_ms[images] = 1e3 * sum(row.floor_s for row in every)
    host_ms[images] = 1e-3 * call_us * sum(row.calls for row in every)
came = {
    "operators": sum(row.calls for row in every),
    "host, ms": host_ms[256],
    "images, at most": max(n for n in host_ms if host_ms[n] > device_ms[n]),
}
against(predicted_host, came)
log.note("who sets the pace", predicted_host, came)
for images in (1, 8, 256):
    print(
        f"{images:3} images: device {device_ms[images]:.2f} ms or more, "
        f"host {host_ms[images]:.2f} ms"
    )

# %% [markdown]
# **The prediction, counted.** A step is 275 operators, for which the host takes 2.72 ms whatever the batch (of one
# image it is a few less). The device needs less than that up to 8 images.
#
# So with 1024 images the device is behind by orders of magnitude, and a graph can give next to nothing, *unless the
# host does something else*, such as a loop over the images. With few images, as when images come one by one, a graph is
# the cheapest speed-up there is. What it asks for: every tensor at the address that it had when the graph was recorded,
# so inputs are copied into place; every shape fixed, so a graph for each batch size; no read of a number by the host.
# Lengths may change: they are numbers in a tensor.
#
# On a GPU: a step of 8 images by the host's clock, until the device has done it, as a series of launches and as one
# graph.

# %%
took = {}
if GPU:
    small = batch(8)
    for name, tower in {
        "naive": FIRST, "strong": made(strong.Tower), "mine": made(Tower),
    }.items():  # fmt: skip
        weights = list(tower.parameters())

        def step(tower=tower, weights=weights):
            y = tower(*small)
            return torch.autograd.grad(y, weights, torch.ones_like(y))

        took[f"{name}, launched"] = 1e-6 * waited_us(step)
        took[f"{name}, in a graph"] = 1e-6 * waited_us(captured(step))
else:
    recorded("lesson09.small")
results.beside("lesson09.small", took, size="8 images" if GPU else "")

# %% [markdown]
# ### Verdict on the case
# What the report left out was left out for reasons that it does not give. For **CUDA graphs** a good one is at hand:
# batches of many sizes need many graphs, each with memory of its own, and at 1024 images they gain nothing that a
# mask without a loop does not gain. For **seeded dropout** the reason given, that it did not compose with compile, is
# one of a hidden state, and lesson 05, section 9, has the cure: the seed is a tensor. Neither of the two is needed by
# the tower of this lesson, which has no dropout.

# %% [markdown]
# ## 9. Speed
# One block, forward and backward, is what is left. Its floor is the time of its products. How far from it is the strong
# one, and where is the difference?

# %%
blocks = sum(
    2 * math.prod(one)
    for name, each in SO400M.products(LARGE).items()
    for one in (each if name != "embed" else ())
)
forth = 1e3 * blocks / SO400M.layers / H200.flops_per_s
print(f"products of a block on the H200: {forth:.2f} and {2 * forth:.2f} ms")
strong_here = profiled(made(strong.Tower))
for phase in ("forward", "backward"):
    rows = [row for row in strong_here if row.phase == phase]
    whole = sum(row.seconds for row in rows)
    shares = ", ".join(f"{row.family} {row.seconds / whole:.0%}" for row in rows)
    print(f"strong on {HERE.name}, {phase}: {shares}")

# %% [markdown]
# Where to look, in the order of what can be gained:
#
# 1. **Attention's backward pass** at head size 72: five products and no copy, from packed rows into one gradient.
# 2. **GELU and its slope**: at the end of a product, or in one pass that reads h and da once and writes both results.
# 3. **Addition, norm, and their sums**: one kernel each way; the gradients of the norm's weight and bias come from rows
#    that are in registers anyway.
# 4. **Sums for biases**: a pass over a gradient each. The largest is that of h. A kernel that writes a gradient can add
#    up its columns while it is there.
# 5. **Queries behind the length**: nobody needs them. A tile of only padding can end at once, if the results that it
#    leaves are ones that nothing reads.
#
# The products are the library's. They take most of the time, and are near their roof; lesson 01, section 7, is about
# how near one of your own can come.

# %% [markdown]
# EXERCISE capstone.speed

# %% [markdown]
# ## 10. From naive to fast
# ### The waterfall
# `python -m benchmarks tower` runs the naive tower, the strong one in all its ways, and the course's own in three
# settings, in one process on one GPU: each in the better of eager and compiled, for each direction. The figure, a waterfall, is
# drawn from its recorded rows.

# %%
rows = recorded("tower")
found = steps(rows)
if found:
    floors = [row["floor us"] for row in rows if "floor us" in row]
    axes = plots.waterfall(
        [(step.name, step.seconds) for step in found],
        1e-6 * (min(floors) + max(floors)),
        device=results.load("tower")["machine"],
    )
    words = "A bar each from the naive tower to the course's own, down to the floor"
    plots.show(axes, alt=words)
else:
    print("The figure stands here once the benchmark has run on a GPU.")

# %% [markdown]
# And yours, of the machine at hand: every kind of tower that you measured in this lesson, in the better of its ways.
# (On a CPU without the one of exercise 9.3, whose kernels run in the interpreter there.)

# %%
kinds = [
    k
    for k in ("naive, eager", "hoisted", "strong", "frugal", "mine")
    if any(n.startswith(k) for n in seen)
]
taken = [(kind, {what: best(kind, what) for what in floor}) for kind in kinds]
plots.show(
    plots.waterfall(taken, sum(floor.values()), device=f"{HERE.name}, {RATE}, {AT}"),
    alt="A bar for each tower of this lesson on the machine at hand, from the naive "
    "one on, cut into forward and backward, with the floor of the products at the end",
)

# %% [markdown]
# ### The riddles, answered
# The numbers are in the cells above.
#
# | riddle of the report | answer | how sure |
# |---|---|---|
# | 19288 MiB | not 27 layers with all kept: one keeps 8912 MiB. Layers made again, or the batch in parts, or two layers | three stories; the report cannot tell |
# | 1000 MiB of dropout | the mask of one layer, a byte a score | the number is exact; why one layer is open |
# | backward 1.38 times forward | the forward pass had 826 ms that backward had not: code without a gradient | the ratio after the work fits |
# | a scalar read in every layer | far too cheap | measured |
# | a loop over the images | large enough | possible; the report does not show its code |
# | backward slower after the work | the MLP's first product is made again: 2.31 by count, 2.33 reported | the best supported of all |
# | one product for q, k and v | its gain is the addition of three gradients, if no copy takes it back | counted |
# | head size 72 | nearly half of a tile of 128 is zeros | counted; kernels can cut it |
# | stream-K | hundreds of waves: nothing to even out | counted |
# | CUDA graphs, a big effect | not at 1024 images, unless the host does more than launch | counted; another hint at the loop |
# | tuples from operators break | not with the torch at hand | tried |
#
# For your own reports: give the GPU, the depth, the batch, what was warmed up and what was waited for; change one thing
# at a time; and write down what you expected. Everything that could not be known here was one line away.
#
# ### The engineering log
# Everything that you predicted, beside what came. Now the last column: for each step, what do you decide, and why?
# "Keep" and "drop" are decisions, and so is "keep where the batch is small".

# %%
decided = {  # replace None: keep, drop or when, and why, in a line
    "one mask for all layers": None,
    "attention that writes no scores": None,
    "one product for q, k and v": None,
    "what to make again": None,
    "who sets the pace": None,
}
### BEGIN PREDICTION
decided = {
    "one mask for all layers": "keep: one place for it, though it saves no time",
    "attention that writes no scores": "keep: it removes two fifths of the floor",
    "one product for q, k and v": "keep where dq, dk and dv share memory",
    "what to make again": "gelu(h) always, norms to fit, h only if nothing else fits",
    "who sets the pace": "a graph for batches of up to 8 images, none above",
}
### END PREDICTION
log.decide(decided)
log

# %% [markdown]
# The line below the table is worth a thought: it is how well you know this machine. Engineers who keep such a log for a
# year see that factor fall, and know for which kind of question it does not.

# %% [markdown]
# ## Questions
# Two answers in your own words, graded by a person.
#
# ### Question 9.6 (20 min, 6 points)
# Your log. Copy its rows if you like, and answer: (a) Which prediction was furthest off, and which assumption was
# wrong? Name the mechanism, not the number. (b) Which step would you leave out if you could take only half of them,
# for a training run of 1024 images on one GPU, and for a service that gets images one by one? (c) What would you
# measure next, what do you predict, and which outcome would change a decision?

# %% [markdown] nbgrader={"grade": true, "grade_id": "capstone_question_log", "locked": false, "points": 6, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) For example: hoisting the mask was predicted to save time, and saved none. The assumption was that work which is
# done in every layer costs in every layer; but a mask of booleans has no bytes to speak of, and its launches hide
# behind a device that is far behind. (b) Training: attention without scores, packed gradients, and as much made again
# as is needed to fit; graphs and hoisting may go. One by one: one graph first, since the host sets the pace there; then
# attention; recomputing has no use, because there is no backward pass. (c) For example: the strong tower compiled with
# "max-autotune". Predicted: some percent forward from better tiles, nothing in attention. If it were faster than one's
# own tower in a direction, the baseline of that direction changes, and one's own kernel there is not worth keeping.
#
# *Marking guide.* The log itself, above: 1 point where every step has a prediction that was made before (numbers that
# agree to the last digit everywhere were not). (a) 2 points: 1 for a prediction that is really off, 1 for the
# mechanism. (b) 2 points: 1 for each setting, with what sets its time (bytes, products, the host). (c) 1 point for a
# measurement with a predicted outcome and a decision that depends on it.
# ### END SOLUTION

# %% [markdown]
# ### Question 9.7 (15 min, 4 points)
# A colleague reports: "With our new kernels the tower is 1.9 times faster and takes half of the memory." Write the five
# questions that you would ask before you believe it, the most telling one first, and for each the answer that would
# make the claim worth little.

# %% [markdown] nbgrader={"grade": true, "grade_id": "capstone_question_claim", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Faster than what: the code that one finds, or the best that the library does in that direction (naive: worth little)?
# Which direction, and is it both in one program: may forward be twice as fast and backward slower? At the same
# memory: were speed and half of the memory measured in one setting, or each in its own? At which batch, lengths and
# type, and does the host set the pace there (a small batch: the gain is launches)? Are results and gradients right, by
# which tolerance, padding of NaN among it? Others that count: was the first call timed; was the device waited for; one
# run or an interval; each alone or in turn on a hot chip; what share of the floor is reached now.
#
# *Marking guide.* 1 point for the baseline. 1 for speed and memory in one setting, or both directions in one program. 1
# for a condition of the measurement (batch, lengths, warm-up, waiting, the clock). 1 for being right, or for the share
# of the floor. Half where the answer that spoils the claim is missing.
# ### END SOLUTION

# %% [markdown]
# ## What you have now
# You began with one kernel that adds a multiple of a vector, and a number for how fast this machine copies. You end
# with a model of which you can say, for every part: what it must cost, what it costs, why the difference is there,
# and whether it is worth taking away. That is all there is to it: **count, predict, measure, explain, decide**, and
# write it down. The next model will have other layers, and the same floor under them.

# %% [markdown]
# ## Further reading
# - Michael Tschannen and others, *SigLIP 2: Multilingual Vision-Language Encoders with Improved Semantic Understanding,
#   Localization, and Dense Features*, 2025, arXiv:2502.14786: the model, and its variant for images of any size.
# - Mostafa Dehghani and others, *Patch n' Pack: NaViT, a Vision Transformer for any Aspect Ratio and Resolution*, 2023,
#   arXiv:2307.06304: images packed into one sequence, so that nothing is padding.
# - Tri Dao, *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning*, 2023, arXiv:2307.08691.
# - Vijay Korthikanti and others, *Reducing Activation Recomputation in Large Transformer Models*, 2022,
#   arXiv:2205.05198: which activations are worth making again.
# - `course_lib/models/siglip`: the towers of this lesson, the course's own among them where the course has its kernels,
#   and `benchmarks/notes/tower.md`: what was predicted for it, and what came.
