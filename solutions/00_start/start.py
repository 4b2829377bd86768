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
# # 00 Start here
#
# After this lesson you can
#
# - say what your machine is, and how fast it really moves bytes,
# - write a Triton kernel that is right for every length,
# - read the report of a check and know what to try next.
#
# **Time** 50 minutes. **Needs** Python and a little PyTorch; no CUDA.
#
# | part | what you do | minutes |
# |---|---|---|
# | the machine | predict and measure how fast bytes move | 10 |
# | a Triton program | see programs, threads, and what 16 has to do with them | 12 |
# | a check | read a report of a wrong kernel | 3 |
# | exercise 0.1 | write the first kernel | 15 |
# | questions 0.2 and 0.3 | two answers in words | 10 |
#
# The outputs come from H200s, of several runs: a rate may differ by some per cent from one cell to the next.
#
# **Without a GPU** everything here runs: Triton's interpreter executes your kernel on the CPU, one program after
# another. It shows whether the algorithm, the masks and the tails are right. It cannot show speed, and it cannot show
# two programs that disturb each other. It also runs some Python that the compiler refuses, such as a list that grows
# inside a kernel: in a kernel use numbers, blocks, `if`, `for` over `range`, and functions of `tl`.

# %% [markdown]
# ## Is my machine ready?
# Every lesson starts with this cell. Its first line decides where kernels run, so it stays first.

# %% tags=["setup"]
from course_lib.device import DEVICE, TIER, ceilings, machine

import torch
import triton
import triton.language as tl

from autograder import check
from course_lib import plots, results
from course_lib.predictions import against
from course_lib.timing import time_gpu

print(results.memory_of("00_start"))
machine()

# %% [markdown]
# ## How fast do bytes move here?
# Most of the kernels that you will write yourself (sums, activations, norms) are limited by memory and not by
# arithmetic; matrix products are the exception, and lesson 01 tells the two apart. So the first number to know about a
# machine is how many bytes it moves a second. We do not take it from a data sheet. We copy a large array and count: a
# copy of $b$ bytes reads $b$ and writes $b$, so it moves $2b$.
#
# ### Predict
# An H200's data sheet promises 4.8 TB/s. How long will a copy of 1 GiB take there, in milliseconds? And on your
# machine, with 1 GiB if it has a GPU and 64 MiB if it has none? (The memory of most laptops, and of one server core,
# moves between 10 and 100 GB/s.) Write your numbers down before you run the measurement. The cell after the measurement
# reads them back. You may add `"why": "..."`.

# %%
predicted_ms = {"H200, 1 GiB": None, "my machine": None}  # replace None
### BEGIN PREDICTION
predicted_ms = {"H200, 1 GiB": 0.45, "my machine": 0.45}
predicted_ms["why"] = """A copy reads and writes: 2 GiB at the 4.8 TB/s of the data
sheet. My machine is the H200."""
### END PREDICTION

# %% [markdown]
# ### Measure
# `time_gpu` runs the function until its time has settled, sweeps the cache before every run, and returns the median
# with an interval. The interval says how exactly *this series* of runs knows its own median. It says nothing of the
# next process, another day or a warmer chip, which differ by more. Lesson 01 takes the timer apart.

# %%
size = 2**30 if TIER == "gpu" else 2**26  # bytes; larger than any cache on the way
source = torch.randn(size // 4, device=DEVICE)
target = torch.empty_like(source)
copy = time_gpu(lambda: target.copy_(source))
rate = 2 * size / copy.median_s
print(f"{size / 2**20:.0f} MiB: {copy}, {rate / 1e9:.0f} GB/s")
results.beside("lesson00.copy", {"GB/s moved": rate / 1e9}, unit="GB/s")

# %%
recorded = {row["name"]: row["value"] for row in results.load("lesson00.copy")["rows"]}
came_ms = {
    "H200, 1 GiB": 1e3 * 2 * 2**30 / (1e9 * recorded["GB/s moved"]),
    "my machine": copy.ms,
}
against(predicted_ms, came_ms, unit="ms")

# %% [markdown]
# The table has a recorded H200 beside your machine. **The prediction, counted.** At its recorded rate, about 4.2 TB/s,
# 1 GiB takes $2 \cdot 2^{30}$ bytes / 4.2 TB/s = 0.51 ms. If you predicted half, you forgot the write. For your own
# machine it is the same division with the rate of the first column, for the size that was copied. The measured rate
# lies below the data sheet's: the promise counts every cycle of the memory pins, and some cycles go to refreshing cells
# and to turning the bus from reading to writing. **From here on, "the floor" means: bytes moved, divided by this
# measured rate.**
#
# `ceilings()` holds this rate, measured once more with its own copy, and the other rates that later lessons need. They
# are measured once and kept. Compare its copy rate with the one above: on the recorded H200 the two differ by several
# times the width of the interval. That is what "of one series" means. To say that one version of a program is faster
# than another, call the two in turn (`course_lib.timing.compare` does), and repeat it in several processes.

# %%
ceilings()

# %% [markdown]
# ## What is a Triton program?
# **The report says** (a field report on a rotary embedding kernel, lesson 06): its author wrote a fast Triton kernel
# and still wondered how a *Triton program* relates to a *CUDA thread*. The question deserves an answer before the
# first kernel.
#
# CUDA code says what **one thread** does, in the simplest kernels with **one element**. Triton code says what **one
# program** does with **one block of elements**: `tl.load` brings in a whole block, `a * x + y` works on whole blocks. A
# function that runs on the device is a *kernel*. A *launch* of it starts a *grid* of programs, all with the same code,
# told apart by `tl.program_id(0)`.

# %%
figure, axes = plots.figure(width=7.5, height=2.4)
plots.grid(n=13, block=4, ax=axes)
plots.show(
    figure,
    alt="13 elements cut into 4 programs of 4 elements; "
    "the last program has 3 lanes past the end",
)

# %% [markdown]
# With `BLOCK` elements a program, `triton.cdiv(n, BLOCK)` programs are needed: the quotient, rounded up. Each place in
# a block is a **lane**, and the last program may have lanes left over. Those lanes exist, they just own nothing. A
# **mask** says which lanes may touch memory; without it they read and write whatever lies behind the array.
#
# Let us see the programs. The next kernel writes into every element the number of the program that owns it. To read it:
#
# - A tensor arrives in a kernel as the address of its first element. So `out_ptr + offs` is a block of addresses, and
#   `tl.store(addresses, values, mask=...)` writes to them. `tl.load(addresses, mask=..., other=0.0)` reads from them,
#   and gives the masked lanes the value `other`.
# - `tl.arange(0, BLOCK)` is the block 0, 1, ... `BLOCK` - 1. Its length has to be a power of two, and known when the
#   kernel is compiled: that is what `tl.constexpr` says.
# - `kernel[grid](arguments)` is a launch. The grid is a tuple, here with one number in it, hence the comma.


# %%
@triton.jit
def _owner_kernel(out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + offs, tl.program_id(0), mask=offs < n)


owner = torch.full((13,), -1, dtype=torch.int32, device=DEVICE)
_owner_kernel[(triton.cdiv(13, 4),)](owner, 13, BLOCK=4)
print(owner.tolist())

# %% [markdown]
# **Where are the threads?** The compiler hands the block to them. A program becomes one CUDA *thread block* of `32 *
# num_warps` threads (32 threads that run in step are a *warp*), whatever `BLOCK` is. With the default `num_warps = 4`
# that is 128 threads: with `BLOCK = 1024` each has 8 elements, and with `BLOCK = 4`, as above, most have nothing of
# their own to write. You can watch the compiler decide, also without a GPU: the next cell compiles the kernel for the
# card that `CARD` names and counts its memory instructions. Write the one that you have, or will have. The cell tells
# the compiler that the address and `n` are multiples of 16, as Triton finds them in a launch on a whole array of a
# round length.

# %%
from course_lib.cards import CARDS
from course_lib.compiled import compile_kernel

CARD = "H200"
print("known:", ", ".join(CARDS))
signature = {"out_ptr": "*i32", "n": "i32"}
for block in (128, 1024):
    made = compile_kernel(_owner_kernel, signature, {"BLOCK": block}, arch=CARD)
    print(
        f"BLOCK {block}: {block // 128} elements a thread, {made.registers} "
        "registers a thread"
    )
    print("   ", {kind: count for kind, count in made.instructions.items() if count})

# %% [markdown]
# A *register* holds one number of 4 bytes of one thread. `st.global` counts all instructions of a thread that write to
# memory, and `st.global.v4` those among them that write four numbers, 16 bytes, at once: 8 elements a thread are
# written by two. With `divisible_by_16=False` as a further argument there are eight instructions in place of the two: a
# length such as 1000001 gets a version of the kernel that writes number by number, because the mask may end anywhere
# and not only between groups of four.
#
# **How many programs run at once?** A GPU has multiprocessors, an H200 132 of them, and each holds several programs. How
# many is decided by what a program takes: registers, shared memory, threads. What does not fit waits, and begins when
# another program ends. If all programs take equally long, they run in **waves**: all places full, again and again, and
# a last wave that may fill only a few. The next cell computes waves for the kernel above.

# %%
from course_lib.compiled.occupancy import residents

n, processors = 10**6, 132
for block in (128, 1024):
    made = compile_kernel(_owner_kernel, signature, {"BLOCK": block}, arch=CARD)
    places, programs = processors * residents(made).programs, triton.cdiv(n, block)
    print(f"BLOCK {block}: {programs} programs, {places} places on {processors} "
          f"multiprocessors: {programs / places:.2f} waves")  # fmt: skip

# %% [markdown]
# A kernel of little more than one wave takes nearly as long as one of two. That matters where a program works long and
# there are few of them, as in a matrix product. With thousands of short programs, as here, the waves blur.
#
# So the answer to the report: **a program is a thread block that you program as one worker on arrays.** You choose
# which elements belong together. The compiler chooses which thread does what. Where it knows that addresses and lengths
# are multiples of 16, it joins neighbouring elements of one thread into wide memory accesses of 16 bytes. You gain
# short code. You give up control of single threads, which you will rarely miss.

# %% [markdown]
# ## How a check reads
# Every exercise ends in a cell that calls `check`. It draws sizes and values afresh each time, runs your function, and
# compares with the truth in 64-bit arithmetic. Memory around your arrays is fenced, so a stray write shows; a stray
# read shows only if its value reaches the result. Outputs start as NaN, so an element that nobody wrote is NaN.
#
# Here is an answer with an error in it. Read the kernel, decide what is wrong, then run the cell and see whether the
# report agrees. (The exercise is the one that you will solve below: `out = a * x + y`.)


# %%
@triton.jit
def _hasty_kernel(out_ptr, x_ptr, y_ptr, a, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.load(y_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, a * x + y, mask=offs < n)


def hasty(a, x, y, out):
    _hasty_kernel[(x.numel() // 256,)](out, x, y, a, x.numel(), BLOCK=256)


check("start.axpy", hasty)

# %% [markdown]
# The report has four parts.
#
# 1. **How many cases were right.** Half of them is worth nothing: a kernel like this one is right whenever the length
#    happens to fit. Some cases hold what an exercise is about; while one of these is wrong, an answer earns at most half
#    of the points, and the report says so.
# 2. **What is wrong**, by name when it is a known mistake, otherwise by where the wrong elements lie, and what to look
#    at next. The picture shows the error of each element in units of the limit.
# 3. **The cases**, folded. Compare the sizes that are right with those that are not.
# 4. **The limits and where they come from**, folded too. An honest computation in the asked precision has some error.
#    One precision lower has a larger one. The limit lies between, and both ends are printed.
#
# `check("start.axpy", hasty, seed=...)` with the printed seed repeats exactly this draw.
#
# **What grading takes of this notebook**: the solution cells, cells of your own, and the cells that set things up (the
# first code cell of every lesson; where there is another one, the text says so). It runs them from top to bottom. The
# lesson's other cells, like the one above, are demonstrations: a name that only they define is missing in grading, and
# a demonstration that you edit is one still. `check` lacks their names too and says which of them your answer uses; what
# your answer needs belongs into its cell or one of your own. Before you hand in, restart the kernel and run all cells:
# what the checks show then is what grading decides, on other inputs.

# %% [markdown]
# ## Exercise 0.1 `start.axpy` (15 min, 5 points)
# Write your first kernel: `out = a * x + y`.
#
# - `a`: a Python float
# - `x`, `y`, `out`: contiguous, fp32, the same number of elements: any, also 0, 1, or more than $2^{31}$
# - writes into `out`, which is given; `x` and `y` stay as they are
#
# You need about 5 lines in the kernel and 3 in the function that launches it.


# %% nbgrader={"grade": false, "grade_id": "start_axpy", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def _axpy_kernel(out_ptr, x_ptr, y_ptr, a, n, BLOCK: tl.constexpr):
    ### BEGIN SOLUTION
    # 64-bit offsets: past 2^31 elements a 32-bit offset wraps to a negative number
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + offs, a * x + y, mask=mask)
    ### END SOLUTION


def axpy(a, x, y, out):
    """out = a * x + y; reads 2n and writes n fp32 numbers."""
    ### BEGIN SOLUTION
    n = x.numel()
    if n:
        _axpy_kernel[(triton.cdiv(n, 1024),)](out, x, y, a, n, BLOCK=1024)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "start_axpy_check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check("start.axpy", axpy)

# %% [markdown]
# <details><summary>Hint 1: where to begin</summary>
#
# Copy `_owner_kernel`. It already knows which elements a program owns. What has to change is what it loads and what
# it stores.
# </details>
# <details><summary>Hint 2: right for some lengths only</summary>
#
# Two places round: how many programs you launch, and which lanes may touch memory. Both must be right for a length
# that the block size does not divide.
# </details>
# <details><summary>Hint 3: more than $2^{31}$ elements</summary>
#
# The check does not try so many, because they need 26 GB; grading on a GPU does. `tl.program_id(0)` is a 32-bit
# integer, and so is its product with `BLOCK`. What happens past $2^{31}$? Widen the program id before you multiply.
# </details>

# %% [markdown]
# ## Question 0.2 (5 min, 2 points, graded by a person)
# Your `axpy` on $2^{26}$ elements: how many bytes must it move at least, and how long does that take on an H200 and
# on your machine, with the rates measured above? Show the division.

# %% [markdown] nbgrader={"grade": true, "grade_id": "start_axpy_floor", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Two reads and one write of $2^{26}$ fp32 numbers: $3 \cdot 4 \cdot 2^{26} = 805\,306\,368$ bytes. The time is that
# number divided by the copy rate printed above.
#
# *Marking guide.* 1 point for three transfers of 4 bytes an element (reading `out` is not needed, so four transfers
# is wrong). 1 point for dividing by the measured rate of the named machine with the unit right.
# ### END SOLUTION

# %% [markdown]
# ## Question 0.3 (5 min, 2 points, graded by a person)
# A friend who writes CUDA asks: "In your kernel, which thread handles element 1000?" Answer in two or three sentences
# for `BLOCK = 1024` and `num_warps = 4`: what is certain, and what is the compiler's choice?

# %% [markdown] nbgrader={"grade": true, "grade_id": "start_axpy_threads", "locked": false, "points": 2, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# Certain: element 1000 belongs to program 0, because 1000 // 1024 = 0, so to the first thread block, which has 128
# threads. The compiler's choice: which of the 128 threads holds it. Each has 8 of the 1024 elements, and where `n` and
# the addresses are multiples of 16 the compiler usually gives a thread 4 neighbours at a time, to make 16-byte
# accesses.
#
# *Marking guide.* 1 point for program 0 being one thread block of 128 threads. 1 point for saying that the mapping
# inside the block is the compiler's, with any sensible reason.
# ### END SOLUTION

# %% [markdown]
# ## Verdict on the case
# The report's question has a short answer: one program is one thread block, and the threads inside it are the
# compiler's business. Its practical side is the grid. That report laid its grid over batch times length in one
# direction and heads times head size in the other; whether that was a good choice is measured in lesson 06.
#
# ## How to hand in
# Reading alone: nothing to hand in. Run the check cells, and open the next lesson.
#
# In a course: save the notebook under the name it has and upload it where your instructor says, or use the *Submit*
# button of the nbgrader panel if your JupyterLab has one. You may add cells. Cells that you change or delete by
# accident, other than your solutions, are put back before grading.
#
# ## Further reading
# - Philippe Tillet, H. T. Kung and David Cox, *Triton: An Intermediate Language and Compiler for Tiled Neural Network
#   Computations*, MAPL 2019: why blocks and not threads.
# - The [Triton tutorials](https://triton-lang.org/main/getting-started/tutorials/index.html), *Vector Addition*.
# - NVIDIA, [CUDA C++ Programming Guide](https://docs.nvidia.com/cuda/cuda-c-programming-guide/), *Thread Hierarchy*.
