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
# # 03 The dispatcher
#
# After this lesson you can
#
# - say of a call which layers of PyTorch it goes through, in which order, and who put each of them in its way,
# - count the FLOPs and bytes of a whole model, forward and backward, also of one that does not fit your machine, and put
#   it under the roofline,
# - give an operator one kernel for a device, one for autograd and one that needs no data, and give tensors a meaning of
#   your own,
# - say what each of these layers costs the host, and when a model waits for them.
#
# **Time** 5 hours; the five exercises take almost three of them. Three sittings:
#
# | sitting | what | minutes | what you have at its end |
# |---|---|---|---|
# | 1 | sections 1 to 3, exercises 3.1 and 3.2 | 105 | a dispatcher of your own, and the keys of a call |
# | 2 | sections 4 and 5, exercises 3.3 and 3.4 | 105 | a meter for whole models, and an operator with three kernels |
# | 3 | sections 6 and 7, exercise 3.5, questions 3.6 to 3.8 | 90 | a tensor with a meaning, and what each layer costs |
#
# Run the cells from the top each time. A cell that needs an exercise which you have not solved stops with "not written
# yet", or because a name is missing that such a cell would have made; go on with the cell below it.
#
# **Needs** lesson 01: bytes and FLOPs, the ridge, overhead. Of lesson 02 only section 8, an operator of your own.
#
# **Without a GPU** everything runs, and all five exercises can be solved and checked. The dispatcher is a program of
# the host: the layers are the same on every machine, and the last of them differs. What a CPU cannot show is what the
# host of a GPU pays for a call; recorded results of an H200 stand beside yours where there are any.

# %% tags=["setup"]
from course_lib.device import (
    DEVICE,
    TIER,
    ceilings,
    half,
    has_bf16,
    machine,
    share_of_sizes,
)

import contextlib
import itertools
import time
import warnings
from statistics import median, quantiles

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from autograder import check
from course_lib import plots, results, torch_inside, widgets
from course_lib.device import processor
from course_lib.predictions import against
from course_lib.roofline import Roof, floor_s
from course_lib.timing import time_gpu

aten = torch.ops.aten
HERE = machine()
print(results.memory_of("03_dispatch"), f"host: {processor()}", sep="\n")
HERE

# %%
GPU = TIER == "gpu"


def timed(fn):
    """The course's timer, told how long it may take on this tier."""
    return (
        time_gpu(fn, precision=0.01, max_seconds=1.0)
        if GPU
        else time_gpu(fn, precision=0.05, max_seconds=0.3)
    )


def wait():
    """Until the device has done all that was asked of it; a CPU already has."""
    if GPU:
        torch.cuda.synchronize()


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


# %% [markdown]
# ## 1. The keys of a tensor
# ### Case file
# **The report says** (first-principles notes of an engineer): every call of an operator goes through the *dispatcher*.
# It takes the union of the key sets of all tensors, of a thread-local include set and of a global set, less a
# thread-local exclude set. The kernel of the highest key runs. A kernel that only wraps, like that of autograd, masks
# itself and dispatches again. For example: a tensor on a GPU has the key set {CUDA, Autograd}, *because*
# `requires_grad` is true.
#
# A **dispatch key** names a layer that may want to do something with the call: keep a graph for backward, cast the
# arguments, show the call to Python, and, last, compute. Each tensor carries a set of them. It is 64 bits in one
# integer, made when the tensor is made.
#
# ### Predict
# How many keys does a tensor have more, or less, than `torch.ones(2)` when it requires a gradient? When it was made in
# `no_grad`? When it was made in inference mode?

# %%
predicted = {  # replace None
    "requires a gradient": None,
    "made in no_grad": None,
    "made in inference mode": None,
}
### BEGIN PREDICTION
why = (
    "requires_grad and no_grad are read by the kernel of autograd; "
    "inference mode is without that kernel's key"
)
predicted = {
    "requires a gradient": 0,
    "made in no_grad": 0,
    "made in inference mode": -1,
    "why": why,
}
### END PREDICTION

# %%
keys_of = torch._C._dispatch_keys
made = {"torch.ones(2)": torch.ones(2, device=DEVICE)}
made["requires a gradient"] = torch.ones(2, device=DEVICE, requires_grad=True)
with torch.no_grad():
    made["made in no_grad"] = torch.ones(2, device=DEVICE)
with torch.inference_mode():
    made["made in inference mode"] = torch.ones(2, device=DEVICE)
for name, one in made.items():
    print(f"{name:24}{keys_of(one)}")


def more(one):
    """How many keys more than an ordinary tensor; less is negative."""
    plain, here = keys_of(made["torch.ones(2)"]).raw_repr(), keys_of(one).raw_repr()
    return (here & ~plain).bit_count() - (plain & ~here).bit_count()


against(predicted, {name: more(one) for name, one in made.items()})

# %% [markdown]
# **The prediction, counted.** 0, 0 and -2 keys: a tensor made in inference mode lacks ADInplaceOrView and the key
# of autograd.
#
# **Whether a tensor requires a gradient is not in its keys.** Every ordinary tensor has a key of autograd, so the
# kernel of autograd runs in every ordinary call; *it* looks whether an argument requires a gradient and whether
# gradients are switched on. `no_grad` is such a switch, a flag that this kernel reads, and no matter of keys either.
# (Here torch prints a set from its lowest key up. In the rest of the lesson the highest comes first.)

# %%
x, needs = made["torch.ones(2)"], made["requires a gradient"]
print("x + x:               ", (x + x).grad_fn)
print("x + needs:           ", (x + needs).grad_fn)
with torch.no_grad():
    print("the same, in no_grad:", (x + needs).grad_fn)
late = torch.zeros(2, device=DEVICE)
late.add_(needs)
print(
    "written into:         requires_grad",
    late.requires_grad, "- keys as before:", more(late) == 0,
)  # fmt: skip

# %% [markdown]
# Why not put it into the set? Because it does not hold for a tensor's whole life. `requires_grad_()` can switch it on
# later, a write can, as in the last line, and then every view's key set would need updating. The key says what is
# fixed: this tensor *could* become part of a graph. Only inference mode promises that it never will, and takes the keys
# away. The promise is kept by force:

# %%
inferred = made["made in inference mode"]
try:
    (needs * inferred).sum().backward()
except RuntimeError as error:
    print(str(error).split(". ")[0])

# %% [markdown]
# ## 2. The path of a call
# For each call the dispatcher makes one set. With your own tensors, at this moment:

# %%
weight = torch.ones(2, 2, device=DEVICE, requires_grad=True)
image = torch.ones(2, 2, device=DEVICE)
axes = plots.call_path(torch_inside.call_path(aten.mm.default, x=image, w=weight))
plots.show(
    axes,
    alt="The keys of a matrix product, highest first: autocast is excluded by the "
    "thread, autograd runs a kernel, two keys pass the call on, the kernel of the "
    "device computes",
)

# %% [markdown]
# Read it from the top.
#
# - **The set.** Tensors bring keys, and so does the thread: it *includes* some in every call and *excludes* others.
#   What is excluded is out, whoever brought it. Each tensor on a CPU or GPU brings a key of autocast, for
#   example, and a thread that is not in autocast excludes it.
# - **The highest key decides.** In an integer that is its highest bit. With it the kernel is looked up in a table that
#   the operator has, one entry for each key.
# - **An entry can be a fallthrough**: this operator has nothing to do at this key, take the next.
# - **A kernel that wraps** does its part and calls again with what is below it: a *redispatch*. The set is handed on
#   with the upper keys cleared. It is not made again from the tensors.
# - **A kernel that computes** is the end.
#
# ### In slow motion
# No figure is proof. So we make an operator that does nothing, give it kernels in Python at several keys, and let
# each of them say that it was called, and with which set. What calls them is the real dispatcher.

# %%
from course_lib.torch_inside import keysets

BACKEND = DEVICE.upper()  # "CPU" or "CUDA", as keys spell it
NOTED = (f"Autocast{BACKEND}", f"Autograd{BACKEND}", "ADInplaceOrView", BACKEND)
library = torch.library.Library("lesson03", "FRAGMENT")
count = globals().get("count") or itertools.count()  # also when this cell runs again
below = torch._C._dispatch_keyset_full_after  # all keys below one


def make_visit(log):
    """An operator that takes a tensor and notes in `log` at which keys it came by."""
    name = f"visit{next(count)}"
    library.define(f"{name}(Tensor x) -> Tensor")
    op = getattr(torch.ops.lesson03, name).default

    def kernel_of(key):
        def kernel(keys, x):
            log.append((key, keysets.in_order(keys)))
            return (
                x.clone()
                if key == BACKEND
                else op.redispatch(keys & below(getattr(torch._C.DispatchKey, key)), x)
            )

        return kernel

    for key in NOTED:
        library.impl(name, kernel_of(key), key, with_keyset=True)
    return op


# %% [markdown]
# ### Predict
# How many of the four kernels run for an ordinary `x`? In `no_grad`? In inference mode? In autocast?

# %%
predicted = {  # replace None
    "nothing around": None,
    "no_grad": None,
    "inference mode": None,
    "autocast": None,
}
### BEGIN PREDICTION
why = (
    "autograd, ADInplaceOrView, the device; inference mode takes both of autograd's "
    "away, autocast adds one"
)
predicted = {
    "nothing around": 3,
    "no_grad": 3,
    "inference mode": 1,
    "autocast": 4,
    "why": why,
}
### END PREDICTION

# %%
log = []
visit, came = make_visit(log), {}
arounds = {"nothing around": contextlib.nullcontext(), "no_grad": torch.no_grad()}
arounds |= {
    "inference mode": torch.inference_mode(),
    "autocast": torch.autocast(DEVICE, dtype=torch.bfloat16),
}
for name, around in arounds.items():
    log.clear()
    with around:
        visit(x)
    came[name] = len(log)
    print(
        f"\n{name}\n"
        + "\n".join(f"  {key:16} got {', '.join(keys)}" for key, keys in log)
    )
print()
against(predicted, came)

# %% [markdown]
# **The prediction, counted.** 3, 3, 2 and 4 kernels: Autograd, ADInplaceOrView and the device; inference mode takes
# one away, and autocast adds one.
#
# `no_grad` changes nothing, again. Inference mode excludes autograd; `x` itself still has the key that follows, because
# it was made outside. Each kernel gets a shorter set than the one before. And BackendSelect, where `visit` has nothing
# registered and passes on, is in none of these sets: torch clears such keys before it looks for the highest, so passing
# on takes no time.
#
# ### What is in a table
# How does PyTorch fill so many keys for so many operators? Mostly it does not.

# %%
operators = [
    name for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")
]
print(f"{len(operators)} operators in aten, each overload counted")
for op in (aten.mm.default, aten.add_.Tensor, aten.relu.default, aten.matmul.default):
    entries = torch_inside.registered(op).values()
    kinds = {"fallthrough": sum(e.passes_on for e in entries)}
    for entry in entries:
        kinds[entry.kind] = kinds.get(entry.kind, 0) + (not entry.passes_on)
    told = ", ".join(f"{n} {kind}" for kind, n in kinds.items() if n)
    print(f"{op.name().removeprefix('aten::'):12}{len(entries)} entries: {told}")

# %% [markdown]
# - A **kernel** is registered for this operator and this key; an *autograd kernel* for this operator and the autograd
#   keys of all devices at once.
# - A **backend fallback** is registered for a key and serves *all* operators. It cannot have the arguments of any one of
#   them as a C++ signature, so it gets them **boxed**: on a stack of values that know their type, with the schema to
#   tell what they are. Python, conjugation and functionalisation are served like this. A fallback can be a fallthrough,
#   and most of the fallthroughs are.
# - A **default backend kernel** is written with other operators and serves all devices that have no kernel.
# - A **math kernel** does too, and it also serves the keys of autograd: what it calls is differentiable, so it needs no
#   derivative. `matmul` is one. Its path ends early:

# %%
torch_inside.call_path(aten.matmul.default, x=image, w=weight)

# %% [markdown]
# What `matmul` calls, here `mm`, starts at the top with a set of its own. One line of Python is often several calls;
# section 4 lists them.

# %% [markdown]
# ## Exercise 3.1 `dispatch.table` (35 min, 8 points)
# Write a dispatcher. An operator is a name, a key is a name, and a set of keys is a `frozenset`.
#
# - `Dispatcher(keys)`: the keys that there are, highest priority first
# - `.register(op, key, kernel)`: the kernel of an operator for a key. It is called as `kernel(dispatcher, keys, *args)`
#   with the whole set, including fallthrough keys (torch itself removes them), and what it returns is returned
# - `.fallthrough(op, key)`: for this operator, this key passes on to the next one in the set
# - `.call(op, *args)`: every argument has an attribute `keys`. The set is the keys of all arguments and those that are
#   included, less those that are excluded
# - `.redispatch(op, keys, *args)`: the same with exactly these keys
# - `.include(key)`, `.exclude(key)`: contexts, for `with`. They nest, also the same one twice, and end with their block,
#   also when an error leaves it
#
# A key for which nothing is registered raises `LookupError` when its turn comes, and so does a set in which no key is
# left. What one dispatcher includes or excludes is nothing to another. It is judged on random programs: kernels that
# return, redispatch, call, raise and catch.


# %% nbgrader={"grade": false, "grade_id": "dispatch_table", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Dispatcher:
    def __init__(self, keys):
        """keys: names, highest priority first."""
        ### BEGIN SOLUTION
        self.order, self.table = list(keys), {}
        self.included = self.excluded = frozenset()
        ### END SOLUTION

    def register(self, op, key, kernel):
        ### BEGIN SOLUTION
        self.table[op, key] = kernel
        ### END SOLUTION

    def fallthrough(self, op, key):
        ### BEGIN SOLUTION
        self.table[op, key] = None
        ### END SOLUTION

    def call(self, op, *args):
        ### BEGIN SOLUTION
        keys = self.included.union(*(arg.keys for arg in args)) - self.excluded
        return self.redispatch(op, keys, *args)
        ### END SOLUTION

    def redispatch(self, op, keys, *args):
        ### BEGIN SOLUTION
        for key in self.order:
            if key not in keys:
                continue
            if (op, key) not in self.table:
                raise LookupError(f"{op} has no kernel for {key}")
            if self.table[op, key] is not None:
                return self.table[op, key](self, keys, *args)
        raise LookupError(f"{op}: no key is left")
        ### END SOLUTION

    def include(self, key):
        """A context for `with`."""
        ### BEGIN SOLUTION
        return self.within(self.included | {key}, self.excluded)
        ### END SOLUTION

    def exclude(self, key):
        """A context for `with`."""
        ### BEGIN SOLUTION
        return self.within(self.included, self.excluded | {key})

    @contextlib.contextmanager
    def within(self, *sets):
        before, (self.included, self.excluded) = (self.included, self.excluded), sets
        try:
            yield
        finally:
            self.included, self.excluded = before
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dispatch_table_check", "locked": true, "points": 8, "schema_version": 3, "solution": false, "task": false}
check("dispatch.table", Dispatcher)

# %% [markdown]
# <details><summary>Hint 1: what to keep</summary>
#
# Three things: the order of the keys; a dictionary from (operator, key) to a kernel, or to something that stands for
# "passes on"; and two frozensets, what is included and what is excluded.
# </details>
# <details><summary>Hint 2: one loop</summary>
#
# Put the search into `redispatch`, and let `call` make the set and call it. Walk over the keys *in the order of the
# dispatcher*. Not in the set: next. Passes on: next. Nothing registered: `LookupError`. Else call it, with the set as
# it was given to you. Which keys a kernel hands on is its own affair.
# </details>
# <details><summary>Hint 3: contexts that unwind</summary>
#
# `contextlib.contextmanager` makes a context of a function with one `yield`. Remember the old set before, and put it
# back in a `finally`: without it an error skips the line. Taking the key out again instead is wrong where it was in the
# set before.
# </details>

# %% [markdown]
# The same as PyTorch's? Your dispatcher gets the kernels of `visit`, and the keys and the state of the thread from
# torch. The same kernels must run, with the same sets.


# %%
def with_mine(log):
    """`visit` by your dispatcher, with the keys that torch gives at this moment."""
    include, exclude = (
        torch._C._dispatch_tls_local_include_set(),
        torch._C._dispatch_tls_local_exclude_set(),
    )
    brought, every = (
        keysets.in_order(keys_of(x)),
        keysets.in_order(keys_of(x) | include),
    )
    mine = Dispatcher(every)
    for key in every:
        if key not in NOTED:
            mine.fallthrough("visit", key)
            continue

        def kernel(dispatcher, keys, arg, key=key):
            log.append((key, [k for k in every if k in keys and k in NOTED]))
            lower = keys & set(every[every.index(key) + 1 :])
            return arg if key == BACKEND else dispatcher.redispatch("visit", lower, arg)

        mine.register("visit", key, kernel)
    with contextlib.ExitStack() as contexts:
        for key in keysets.in_order(include):
            contexts.enter_context(mine.include(key))
        for key in set(every) - set(keysets.in_order((keys_of(x) | include) - exclude)):
            contexts.enter_context(mine.exclude(key))
        mine.call("visit", type("Argument", (), {"keys": frozenset(brought)}))


# %%
arounds = {"nothing around": contextlib.nullcontext(), "no_grad": torch.no_grad()}
arounds |= {
    "inference mode": torch.inference_mode(),
    "autocast": torch.autocast(DEVICE, dtype=torch.bfloat16),
}
for name, around in arounds.items():
    ours = []
    log.clear()
    with around:
        visit(x), with_mine(ours)
    print(f"{name:16}{'the same' if ours == log else f'torch {log}, yours {ours}'}")

# %% [markdown]
# ## 3. Who brings keys, who takes them
# The keys that you will meet most. (`...` is a device: CPU, CUDA, Meta.)
#
# | key | its kernels |
# |---|---|
# | `CPU`, `CUDA`, `Meta`, `Sparse...` | compute; on `Meta`, the shape and type of the result only |
# | `Autograd...` | keep what backward needs |
# | `ADInplaceOrView` | count the writes into a tensor, and note whose view it is; nothing to do for other operators |
# | `Autocast...` | cast arguments to a shorter type, or to fp32, for the operators on its lists |
# | `BackendSelect` | for operators without a tensor, such as `torch.empty`: read the device and add its key |
# | `Conjugate` | carry out a conjugation that was put off |
# | `Functionalize` | replace writes by operators that return new tensors; the compiler uses it |
# | `FuncTorch...` | `vmap`, `grad` and the other transforms of `torch.func` |
# | `Python` | ask a mode or a tensor in Python (sections 4 and 6) |
# | `PythonTLSSnapshot` | remember the state of the thread at the top, for whoever is asked in Python |
#
# ### Try it
# Put a call together and see the set that your machine gives it (for tensors on the CPU and on meta), and its path. The
# still picture changes one fact at a time. Which facts leave the path of the ordinary tensor as it is? Where does the
# path end early?

# %%
widgets.key_set_builder()

# %% [markdown]
# The facts that you can tick come from two sides. Some are properties of a tensor: its device, its layout, a
# conjugation that was put off, a wrapper. The others are states of the thread:

# %%
include, exclude = (
    torch._C._dispatch_tls_local_include_set,
    torch._C._dispatch_tls_local_exclude_set,
)


def state():
    """What this thread includes, and what it excludes of all that the tensor `image` brings."""
    every = keysets.in_order(keys_of(image) | include())
    kept = keysets.in_order((keys_of(image) | include()) - exclude())
    away = [key for key in every if key not in kept]
    return (
        f"includes {', '.join(keysets.in_order(include()))}; "
        f"excludes {', '.join(away) or 'nothing'}"
    )


print("now:           ", state())
with torch.inference_mode():
    print("inference mode:", state())
with torch.autocast(DEVICE, dtype=torch.bfloat16):
    print("autocast:      ", state())

# %% [markdown]
# What the notes call the global set is the line "now": a state that every thread starts with, not a set of its own.
#
# `keysets.met` asks the machine for the keys of a call that is described as data: `tensors`, a list of dictionaries,
# and `around`, the contexts it is made in, outermost first. Ask it anything you are not sure of.


# %%
def tensor(*made, device="cpu", requires_grad=False):
    """A tensor as data; `made` is what happened to it since, in order."""
    return {"device": device, "requires_grad": requires_grad, "made": list(made)}


def ask(*tensors, around=()):
    told = "; ".join(" ".join([one["device"], *one["made"]]) for one in tensors)
    print(
        f"{told}, in {', '.join(around) or 'nothing'}: "
        f"{', '.join(keysets.met(tensors, around))}"
    )


ask(tensor())
ask(tensor("inference"))
ask(tensor("inference", "clone"))
ask(tensor(), around=["autocast", "autocast(False)"])
ask(tensor(device="meta"), tensor(device="cpu"))
ask(tensor(), around=["dispatch mode"])
ask(tensor(), around=["handler"])

# %% [markdown]
# ## Exercise 3.2 `dispatch.keys` (30 min, 6 points)
# A rule, not a list of answers. Write `keys(tensors, around)`: the names of the keys in the set with which the call
# begins, highest priority first. It is judged against what torch says when it is judged, on calls drawn at random. It
# cannot ask: where it is judged there is no torch, so write plain Python, without anything from the cells above.
#
# `tensors` is a list of dictionaries, as `tensor(...)` makes them; it may be empty, as of a call of `torch.empty`:
#
# - `device`: "cpu" or "meta"; `requires_grad`
# - `made`: what happened to it, in order. "inference": made in inference mode (only first). "view". "clone". "wrapped": a
#   wrapper subclass with `__torch_dispatch__`
#
# `around` is a list of contexts, outermost first: "no_grad", "inference_mode", "autocast", "autocast(False)", "dispatch
# mode", "below autograd" (what a kernel of autograd sets before it redispatches), and "handler": in the handler of a
# dispatch mode that an operator has just entered. Inside the handler that mode is off; outer modes stay active.
#
# A call has one device for its keys, the highest among its tensors, whichever of them brings a key: with tensors on "cpu"
# and on "meta" a call meets AutogradMeta and Meta, and not AutogradCPU and CPU. Only autocast stands apart: look there.


# %% nbgrader={"grade": false, "grade_id": "dispatch_keys", "locked": false, "schema_version": 3, "solution": true, "task": false}
def keys(tensors, around):
    """Names of the keys that a call begins with, highest priority first."""
    ### BEGIN SOLUTION
    order = [
        "PythonTLSSnapshot",
        "Autocast",
        "Autograd",
        "ADInplaceOrView",
        "Python",
        "BackendSelect",
        "",
    ]
    graph, python = {"Autograd", "ADInplaceOrView"}, {"Python", "PythonTLSSnapshot"}
    brought = set()
    for told in tensors:
        mine = graph | {""}
        for step in told["made"]:
            mine -= graph if step == "inference" else set()
            mine |= {"clone": graph, "wrapped": graph | python}.get(step, set())
        brought |= mine | ({"Autocast"} if told["device"] == "cpu" else set())

    include, exclude = {"BackendSelect", "ADInplaceOrView"}, {"Autocast"}
    for name in around:
        include -= {"ADInplaceOrView"} if name == "inference_mode" else set()
        include |= python if name == "dispatch mode" else set()
        exclude -= {"Autocast"} if name == "autocast" else set()
        exclude |= (
            {"Autograd"} if name in ("inference_mode", "below autograd") else set()
        )
        exclude |= {"Autocast"} if name == "autocast(False)" else set()
        exclude |= set(order[: order.index("Python")]) if name == "handler" else set()

    devices = {told["device"] for told in tensors}
    device = "Meta" if "meta" in devices else "CPU" if devices else ""
    names = []
    for kind in order:
        if kind in (brought | include) - exclude:
            names.append(
                "AutocastCPU"
                if kind == "Autocast"
                else kind + device * (kind in ("Autograd", ""))
            )
    return names
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dispatch_keys_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("dispatch.keys", keys)

# %% [markdown]
# <details><summary>Hint 1: three sets of kinds</summary>
#
# Forget devices at first: work with kinds (Autograd, Autocast, the device's own, ...) and put the device into the names
# at the end. Make three sets: what the tensors bring, what is included, what is excluded. The answer is (brought and
# included) less excluded, in the order that you find by asking.
# </details>
# <details><summary>Hint 2: what tensors bring</summary>
#
# Ask for one tensor at a time, and for each step of `made`. Inference takes two kinds away; find out whether a view, a
# clone and a wrapper of such a tensor give them back. On meta one kind is missing that CPU tensors have; look in
# autocast. The thread also *includes* a kind that tensors bring, so it shows even where no tensor has it.
# </details>
# <details><summary>Hint 3: what contexts do</summary>
#
# Walk through `around` from the outside and change the sets as you go: of two contexts that say the opposite the inner
# one wins. One of the contexts changes no key at all. A handler excludes all keys above Python and none below it;
# inside of it, autocast goes on changing its own kind.
# </details>

# %% [markdown]
# ### Verdict on the first half of the case
# The rule of the notes is right: union, include, exclude, the highest key, mask and redispatch. You have written it
# down and it agrees with the machine. The example is wrong: `requires_grad` is in no set. It is worth knowing for a
# practical reason. If you want the kernel of autograd *not to run*, `no_grad` does not do it; inference mode does. What
# that saves is in section 7.

# %% [markdown]
# ## 4. A mode sees what comes below autograd
# Below autograd there is a key called Python. Its kernel, one fallback for all operators, calls a method
# `__torch_dispatch__`: of a *mode*, if one is active, or of an argument that has such a method (section 6). A mode is a
# context; while it is active the thread includes that key in every call.


# %%
class Names(TorchDispatchMode):
    """Notes every operator that comes by."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))  # here this mode is not active any more


# %% [markdown]
# ### Predict
# How many operators does the mode see of the forward pass in this cell, which calls four functions? How many of its
# backward pass?

# %%
predicted = {"forward": None, "backward": None}  # replace None
### BEGIN PREDICTION
predicted = {
    "forward": 5,
    "backward": 8,
    "why": "four calls and the transpose in linear; about two each backward",
}
### END PREDICTION
x, w, bias = normal(8, 4), normal(3, 4).requires_grad_(), normal(3).requires_grad_()

# %%
with Names() as forward:
    loss = F.dropout(F.linear(x, w, bias).relu()).sum()
with Names() as backward:
    loss.backward()
print("forward: ", ", ".join(forward.names))
print("backward:", ", ".join(backward.names))
against(predicted, {"forward": len(forward.names), "backward": len(backward.names)})

# %% [markdown]
# **The prediction, counted.** On the recorded H200 six forward (four functions, and `t` and `detach`) and thirteen
# backward, of which eight are views.
#
# No `linear` and no `dropout`: those are math kernels, which end at autograd's key, above Python, and what they call
# comes by: for `dropout` that is `native_dropout` on a GPU, and operators for memory, random numbers and products on a
# CPU. Views come by as well, also those that autograd makes for itself, `t` and `detach`. And the backward pass is
# seen, because gradients are computed by calls like all others. What the mode cannot see is autograd itself: that lies
# above.
#
# **In inference mode this is different.** It takes autograd's key away, and with it the place where a math kernel would
# have ended. PythonTLSSnapshot only notes the state of the thread, and the next key at which something runs is
# Python's. So the mode is asked for `linear`, `matmul`, `dropout` and `scaled_dot_product_attention` as they are, and
# what they call while its handler runs comes by no more. A mode that counts products of matrices counts none. The
# remedy is `func.decompose(*args, **kwargs)`: it runs the math kernel of an operator that has one, and returns
# `NotImplemented` for all others. Called `with self:`, so that the mode is active again, its parts come by as they do
# elsewhere. (In `no_grad` nothing of this is needed: autograd's key is still there.)


# %%
class Parts(Names):
    """The same, of operators that are made of others their parts."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self:
            out = func.decompose(*args, **(kwargs or {}))
        return (
            super().__torch_dispatch__(func, types, args, kwargs)
            if out is NotImplemented
            else out
        )


for kind in (Names, Parts):
    with torch.inference_mode(), kind() as mode:
        F.linear(x, w, bias).relu()
    print(f"{kind.__name__} in inference mode:", ", ".join(mode.names))

# %% [markdown]
# `linear` comes whole to the first mode, and as `t` and `addmm` to the second.
#
# In the handler everything above Python is excluded. So a calculation in it makes no graph, even if it looks as though
# it should:


# %%
class Doubtful(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        print(
            f"in the handler: {func.name()}, requires_grad {args[0].requires_grad}, "
            f"grad_fn {out.grad_fn}"
        )
        return out


with Doubtful():
    print("outside:        grad_fn", w.relu().grad_fn)
axes = plots.call_path(
    keysets.within(
        ["dispatch mode"], lambda: torch_inside.call_path(aten.relu.default, w=w)
    )
)
plots.show(
    axes,
    alt="The path of relu under a mode: a snapshot of the thread's state is taken, "
    "autograd runs, the path ends at the key Python; the device is not "
    "reached by this call",
)

# %% [markdown]
# One place where operators come by, with their arguments and their results: that is where one counts.

# %% [markdown]
# ## Exercise 3.3 `dispatch.meter` (35 min, 6 points)
# Write `Meter`, a `TorchDispatchMode` with two numbers, `flops` and `bytes`, of everything that runs inside it:
# `with Meter() as meter: ...`.
#
# - FLOPs of a product of matrices: $2mnk$ for `aten.mm`, `aten.addmm`, `aten.bmm` and `aten.baddbmm`; the last two
#   multiply stacks of matrices, so times the number of matrices.
# - Attention in one operator, `aten._scaled_dot_product_...`: 2 products forward and 5 backward, each of 2 FLOP for each
#   batch entry, head, query, key and place of a head; what a mask hides counts. The arguments begin with `q`, `k` and
#   `v`; in an operator for backward the gradient stands in front of them.
# - `aten.convolution`: 2 FLOP for each element of its result and each weight of one output channel, `weight[0]`.
#   `aten.convolution_backward`, which gets the gradient of that result, the input, the weight and more: the same count
#   for the gradient of the input and again for that of the weight, where its last argument asks for them.
# - No other operator has FLOPs.
# - An operator that is made of others and comes as a whole, as in inference mode, counts as its parts.
# - Bytes of an operator: those of every tensor among its arguments, also in lists and keywords, and of every tensor in
#   its result. A tensor has its elements times their size.
# - Two kinds of operators move nothing: views (`func.is_view`, and `aten._unsafe_view`), and allocations (`aten.empty`,
#   `aten.empty_like`, `aten.new_empty` and the like). An operator in place counts its argument twice: read and written.
#
# Right means both numbers exactly, forward and backward, and that the program computes what it computes without you.


# %% nbgrader={"grade": false, "grade_id": "dispatch_meter", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Meter(TorchDispatchMode):
    """Counts FLOPs and bytes of every operator that runs inside it."""

    def __init__(self):
        super().__init__()
        self.flops = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        ### BEGIN SOLUTION
        kwargs = kwargs or {}
        with self:  # what an operator is made of comes by here again
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out = func(*args, **kwargs)
        op = func.overloadpacket
        self.flops += self.flops_of(op, args, out)
        moves_nothing = (
            func.is_view or op is aten._unsafe_view or "empty" in func.name()
        )
        if not moves_nothing:
            for one in tree_leaves((args, kwargs, out)):
                if isinstance(one, torch.Tensor):
                    self.bytes += one.numel() * one.element_size()
        return out

    def flops_of(self, op, args, out):
        name = op.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm"):
            a, b = args[-2:]  # the last two: a bias stands in front of them
            return 2 * a.numel() * b.shape[-1]
        if name == "convolution":
            return 2 * out.numel() * args[1][0].numel()
        if name == "convolution_backward":
            return 2 * args[0].numel() * args[2][0].numel() * sum(args[-1][:2])
        if name.startswith("_scaled_dot_product"):
            backward = name.endswith("_backward")
            # backward the gradient stands in front of them
            q, k = args[backward : backward + 2]
            return (5 if backward else 2) * 2 * q.numel() * k.shape[-2]
        return 0
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dispatch_meter_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("dispatch.meter", Meter)

# %% [markdown]
# <details><summary>Hint 1: the frame</summary>
#
# First the parts: `with self: out = func.decompose(*args, **kwargs)`, and if `out` is not `NotImplemented`, return it:
# its parts have been counted. Else `out = func(*args, **kwargs)`, `return out` last, the counting in between. (`kwargs`
# may be `None`.) `func.overloadpacket` is the operator without its overload: `aten.add` for `aten.add.Tensor` and for
# `aten.add.Scalar`.
# </details>
# <details><summary>Hint 2: FLOPs</summary>
#
# For `mm` and `bmm` the factors are the first two arguments, for `addmm` and `baddbmm` the second and the third. A
# factor (batch, m, k) has batch times m times k elements already, so only 2 and n are missing. In the same way `q` has
# the batch, the heads, the queries and the places of a head, and only 2 and the keys are missing.
# `func.overloadpacket.__name__` is the name to ask for.
# </details>
# <details><summary>Hint 3: all tensors</summary>
#
# `tree_leaves((args, kwargs, out))` goes into tuples, lists and dictionaries and gives what is in them, one after the
# other. Take the tensors. For the memory of a view use `numel() * element_size()`, not the size of its storage.
# </details>

# %% [markdown]
# ### A whole model
# `course_lib.models` has two: a small decoder-only transformer and a vision tower. Their matrix products are known on
# paper (`Sizes.forward_flops`), so your meter can be checked: $2mnk$ for each product of the forward pass, and in the
# backward pass two products for each, one for the gradient of either factor. The tower's first layer has only one,
# because nobody asks for a gradient of the images.

# %%
from course_lib.models import transformer, vision
from course_lib.tally import by_kind, tally

DTYPE, RATE = (
    (half(), "bf16" if has_bf16() else "fp16") if GPU else (torch.float32, "fp32")
)
T = (
    transformer.Sizes(8192, 1024, 1024, 16, 4)
    if GPU
    else transformer.Sizes(512, 128, 256, 4, 2)
)
V = (
    vision.Sizes.so400m(layers=4)
    if GPU
    else vision.Sizes(patch=48, patches=64, width=96, mlp=384, heads=4)
)
TEXTS, IMAGES = (4, max(8, round(64 * share_of_sizes()))) if GPU else (4, 8)


def text_loss(sizes, batch, device=DEVICE, dtype=DTYPE):
    """A transformer and a batch of tokens; returns a function that gives the loss."""
    with torch.device(device):
        model = transformer.Transformer(sizes).to(dtype)
        tokens = torch.zeros(batch, sizes.context + 1, dtype=torch.long)
    return lambda: model.loss(tokens)


def image_loss(sizes, batch, device=DEVICE, dtype=DTYPE):
    """The same for the tower, with images that have no padding."""
    with torch.device(device):
        tower = vision.VisionTower(sizes).to(dtype)
        patches = torch.zeros(batch, sizes.patches, sizes.patch, dtype=dtype)
        real = torch.ones(batch, sizes.patches, dtype=torch.bool)
    return lambda: tower(patches, real).square().mean()


# %% [markdown]
# `tally` runs a model under your meter, one operator at a time, and keeps the passes apart.

# %%
losses = {"transformer": text_loss(T, TEXTS), "tower": image_loss(V, IMAGES)}
calls = {name: tally(Meter, loss) for name, loss in losses.items()}
paper = {
    "transformer": (
        T.forward_flops(TEXTS, T.context),
        T.backward_flops(TEXTS, T.context),
    )
}
paper["tower"] = (V.forward_flops(IMAGES), V.backward_flops(IMAGES))
works = {}
for name, expected in paper.items():
    for phase, on_paper in zip(("forward", "backward"), expected):
        works[name, phase] = work = sum(
            call.work for call in calls[name] if call.phase == phase
        )
        said = "as on paper" if work.flops == on_paper else f"on paper {on_paper:,}"
        print(
            f"{name:12}{phase:9}{work.flops:>20,} FLOP, {said}; "
            f"{work.bytes / 2**20:>9,.0f} MiB"
        )

# %% [markdown]
# PyTorch has a meter too, `FlopCounterMode`. It counts FLOPs and no bytes. Two programs that agree on a number that a
# third one has on paper:

# %%
from torch.utils.flop_counter import FlopCounterMode

for name, loss in losses.items():
    with FlopCounterMode(display=False) as theirs:
        loss().backward()
    mine = sum(works[name, phase].flops for phase in ("forward", "backward"))
    total = theirs.get_total_flops()
    print(
        f"{name:12} torch counts {total:,} FLOP, yours "
        f"{'the same' if total == mine else f'{mine:,}'}"
    )

# %% [markdown]
# Now both models go under the roofline, with measured times. Predict first: what share of its roof will the forward pass
# of the transformer reach?

# %%
predicted = {"transformer, forward, % of its roof": None}  # replace None
### BEGIN PREDICTION
why = (
    "products near their rate take half of the time; the rest is elementwise, eager, "
    "and far below the roof"
)
predicted = {"transformer, forward, % of its roof": 50, "why": why}
### END PREDICTION


def passes_s(loss):
    """Seconds of the forward pass, and of the backward pass as the rest of both."""
    # beside other work on the machine the rest may come out negative: again, then
    for _ in range(5):
        forward = timed(loss).median_s
        both = timed(lambda: loss().backward()).median_s
        if both > forward:
            break
    return {"forward": forward, "backward": both - forward}


top = ceilings()
roof = Roof(RATE, top.flops_per_s[RATE], top.bytes_per_s, top.launch_s)
seconds = {name: passes_s(loss) for name, loss in losses.items()}
points = [
    (f"{name}, {phase}", work, seconds[name][phase])
    for (name, phase), work in works.items()
]
share = (
    floor_s(works["transformer", "forward"], roof) / seconds["transformer"]["forward"]
)
against(predicted, {"transformer, forward, % of its roof": 100 * share})
axes = plots.roofline(roof, points, device=HERE.name)
plots.show(
    axes,
    alt="Roofline of this machine with four points: forward and backward pass of the "
    "transformer and of the vision tower",
)

# %% [markdown]
# **The prediction, counted.** On the recorded H200 the forward pass reaches 41 % of its roof: 1.50 ms of 3.63.
#
# As one point, a model may lie right of the ridge, and one would say that arithmetic sets its time. But it is not one
# kernel. It runs operator by operator, and the next one does not begin to move its bytes while this one computes. So its
# floor is not the floor of the sums, $\max(\sum F_i / R, \sum B_i / C)$. It is the sum of the floors, $\sum \max(F_i / R,
# B_i / C)$, which is never smaller. (In the table the maximum of each call has a third term, the cost of a launch: as if
# the host launched a call only when the one before is done. A host that runs ahead hides its launches, so with them the
# sum is no strict floor. The next part prints how much they are.)


# %%
def floors(calls, roof, phase):
    """Seconds: the floor of the sums, and the sum of the floors of all calls that move something."""
    moving = [
        c.work for c in calls if c.phase == phase and (c.work.bytes or c.work.flops)
    ]
    return floor_s(sum(moving), roof), sum(floor_s(work, roof) for work in moving)


rows = {}
for name, phase in works:
    as_one, one_by_one = floors(calls[name], roof, phase)
    rows |= {
        f"{name}, {phase}, floor of the sums": as_one,
        f"{name}, {phase}, sum of the floors": one_by_one,
    }
    rows[f"{name}, {phase}, measured"] = seconds[name][phase]
results.beside(
    "lesson03.models", rows, unit="ms", size=f"width {T.width}, {TEXTS} texts"
)

# %% [markdown]
# What lies between the two floors could be won by overlapping one operator's memory traffic with another's arithmetic
# and, where the launch is the largest of a call's three terms, by launching ahead or by fewer calls. Fusion can win more,
# because it removes bytes. What lies between the second floor and the measured time is for better kernels and for the
# host. And which operators are it? By kind. (The meter counts whole arguments. So a lookup counts the whole table that it
# reads some rows of: more than it moves. And the floor of many small calls, copies among them, is their launch, so their
# share of the floor is the launches' and not their bytes'.)

# %%
axes = plots.kinds(
    by_kind(calls["transformer"], roof),
    device=f"counted; floor with the rates of {HERE.name}",
)
plots.show(
    axes,
    alt="For forward and backward the shares of FLOPs, bytes and floor by kind of "
    "operator: products have all counted FLOPs and a smaller share of the bytes "
    "and of the floor",
)

# %% [markdown]
# ### A model that does not fit
# On the device **meta** a tensor has a shape, a type, strides and no memory. It has keys: AutogradMeta and Meta, in the
# places of your device. So a model on meta takes the same path, through autograd, through your mode, to kernels that
# only work out shapes. Nothing is computed, and everything is counted. Here is a transformer with the sizes of the
# usual 1.5-billion-parameter model, with a batch of 64 texts of 1024 tokens in bf16, on a machine that could not hold
# what a step of it needs. (Forward and backward are counted; the optimizer is left out.)

# %%
XL = transformer.Sizes(vocabulary=50257, context=1024, width=1600, heads=25, layers=48)
begin = time.perf_counter()
xl = tally(Meter, text_loss(XL, 64, "meta", torch.bfloat16))
took, total = time.perf_counter() - begin, sum(call.work for call in xl)
exact = total.flops == 3 * XL.forward_flops(64, 1024)
print(f"{len(xl)} operators counted in {took:.1f} s")
print(
    f"the scores of one of the {XL.layers} layers would fill "
    f"{2 * 64 * XL.heads * XL.context**2 / 2**30:.1f} GiB"
)
print(
    f"{total.flops:.3g} FLOP{', as on paper' if exact else ', not as on paper'}; "
    f"{total.bytes / 1e12:.1f} TB moved"
)
recorded = {
    row["name"]: row["value"]
    for row in (results.load("lesson01.ceilings") or {"rows": ()})["rows"]
}
if recorded:
    h200 = Roof(
        "H200 bf16",
        recorded["matmul bf16, TFLOP/s"] * 1e12,
        recorded["copy, TB/s"] * 1e12,
    )
else:
    h200 = Roof(f"{HERE.name} {RATE}", roof.flops_per_s, roof.bytes_per_s)
as_one, one_by_one = (
    sum(s) for s in zip(*(floors(xl, h200, phase) for phase in ("forward", "backward")))
)
print(
    f"one step on {h200.name}: floor of the sums {as_one:.2f} s, sum of the floors "
    f"{one_by_one:.2f} s"
)

# %% [markdown]
# No launch is in these floors: `h200` has none. How much of a sum of the floors were the launches in the table above?
# The small transformer again, with the sizes that it has on a GPU, counted on meta:

# %%
call_s = recorded["launch, us"] * 1e-6 if recorded else roof.launch_s
waiting = Roof("with launches", h200.flops_per_s, h200.bytes_per_s, call_s)
sizes = transformer.Sizes(8192, 1024, 1024, 16, 4)
small = tally(Meter, text_loss(sizes, 4, "meta", torch.bfloat16))
for name, one in (("with launches", waiting), ("without", h200)):
    floor_ms = 1e3 * floors(small, one, "forward")[1]
    print(f"forward, sum of the floors {name}: {floor_ms:.2f} ms")
works_of = [call.work for call in small if call.phase == "forward"]
moving = [work for work in works_of if work.bytes or work.flops]
at_launch = sum(floor_s(work, waiting) == call_s for work in moving)
print(f"{at_launch} of {len(moving)} calls stand at their launch")
print(f"all launches together: {1e3 * len(moving) * call_s:.2f} ms")

# %% [markdown]
# Half of the calls are so small that a launch takes longer than they do, and the difference is 16 % of the sum. (The
# first number is smaller than the table's. That one was made on a host with longer launches; lesson 01's ceilings,
# which are used here, have 12 us. And on meta some operators are others than on a GPU.) A host that runs ahead hides
# its launches, as long as all of them together take less time than the device: then the sum without them is the floor,
# and the difference is what a host that waits would add.

# %% [markdown]
# ### Case file
# **The report says** (speeding up a SigLIP-2 vision tower, 1024 images of 256 patches, bf16, one data-centre GPU): the
# original takes 2100 ms forward and 2900 ms backward, with a peak of 19288 MiB. It does not say how many layers there
# are. Lesson 02 counted what a layer must keep: two of them nearly fill that peak, unless layers are computed again in
# backward. Does the *time* say the same?
#
# ### Predict
# The floor of the forward pass, operator by operator, of a tower of that width with 2 layers and with 27, on the
# recorded H200 (or on your machine, where nothing is recorded)?

# %%
predicted = {"2 layers, ms": None, "27 layers, ms": None}  # replace None
### BEGIN PREDICTION
why = (
    "on the H200 the products alone are 2 x 262,144 tokens x 16 million weights a "
    "layer, 13 ms; half as much for bytes"
)
predicted = {"2 layers, ms": 40, "27 layers, ms": 530, "why": why}
### END PREDICTION
reported = {"forward": 2.100, "backward": 2.900}

# %%
came = {}
for layers in (2, 27):
    counted = tally(
        Meter, image_loss(vision.Sizes.so400m(layers), 1024, "meta", torch.bfloat16)
    )
    floor = {phase: floors(counted, h200, phase)[1] for phase in reported}
    came[f"{layers} layers, ms"] = 1e3 * floor["forward"]
    for phase, s in floor.items():
        print(
            f"{layers:2} layers, {phase:8}: floor {1e3 * s:6.0f} ms; "
            f"reported is {reported[phase] / s:.1f} times that"
        )
middle = median(call.work.bytes for call in counted if call.work.bytes)
print(f"half of the operators that move something move more than {middle / 1e6:.0f} MB")
against(predicted, came)

# %% [markdown]
# **The prediction, counted.** On the H200's roofs 42 ms with 2 layers and 547 with 27: 20.2 ms for each layer, and
# 1.5 ms for all else.
#
# The report does not name its GPU, and a slower one has higher floors, so take the factors as upper limits. With two
# layers both passes would be tens of times above their floors, and nothing explains that: operators that move so much do
# not wait for their launches. With 27 layers both are a few times above. **The time says many layers; the memory says
# that they were computed again in backward.** But then backward should take the forward pass and its own time, and the
# report's takes only 1.4 times its forward pass. (Reading one scalar in each layer does not explain it: lesson 02,
# section 3, counts it.) What could explain it, and what would tell the explanations apart, is question 3.8.

# %% [markdown]
# ## 5. Kernels at keys
# `torch.library.custom_op`, which lesson 02 used, is a layer of Python on top of what follows. An operator is a schema,
# and kernels at keys. Some names stand for many keys at once:
#
# | registered for | serves |
# |---|---|
# | `CPU`, `CUDA`, `Meta` | this device |
# | `Autograd` | the autograd keys of all devices |
# | `CompositeExplicitAutograd` | all devices that have no kernel; autograd is left to others |
# | `CompositeImplicitAutograd` | all devices and autograd: the math kernels of section 2 |
#
# What if a place is left empty? Two operators compute x / 2, each with one kernel at the key of the CPU: one is written
# with torch, the other with NumPy. Neither has a kernel for autograd. Predict: which gradient does `x + half(x)` give, by
# either? (1.5 would be right.)

# %%
predicted = {"in torch": None, "in NumPy": None}  # replace None
### BEGIN PREDICTION
why = "without a kernel for autograd the half is outside of the graph, in both"
predicted = {"in torch": 1, "in NumPy": 1, "why": why}
### END PREDICTION
halves = torch.library.Library(f"lesson03_{next(count)}", "DEF")
halves.define("in_torch(Tensor x) -> Tensor")
halves.define("in_numpy(Tensor x) -> Tensor")
halves.impl("in_torch", lambda x: x / 2, "CPU")
halves.impl("in_numpy", lambda x: torch.from_numpy(x.detach().numpy() / 2), "CPU")
halving = getattr(torch.ops, halves.ns)

# %%
came = {}
for name, op in (("in torch", halving.in_torch), ("in NumPy", halving.in_numpy)):
    x = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        (x + op(x)).sum().backward()
    came[name] = x.grad.item()
    print(
        f"{name}: torch warns: "
        f"{str(said[-1].message).partition(': ')[2].partition('. ')[0]}"
    )
against(predicted, came)
try:
    halving.in_torch(torch.ones(3, device="meta"))
except NotImplementedError as error:
    print("on meta:", str(error).partition(": ")[2].partition(". ")[0][:110])
torch_inside.call_path(halving.in_numpy.default, x=x)

# %% [markdown]
# **The prediction, counted.** 1.5 in torch, and 1 in NumPy: there the half that `half(x)` should add is lost.
#
# On meta the operator fails, loudly. Without a kernel for autograd it does something worse. There the fallback for all
# operators runs, which only knows how to warn, and **the NumPy version trains a model with wrong gradients**.
#
# The version in torch came out right, by luck, and the reason is worth a minute. A redispatch clears autograd from the
# set of *this* call. `x / 2` inside of the kernel is *another* call: its set is made from its tensors and the thread, and
# autograd is in it again. What is cleared from a set holds for one call; what the thread excludes holds for everything
# that is called meanwhile.
#
# To fill the place, a kernel for `Autograd` must do three things: keep what backward needs, call the same operator
# again below autograd, and give a gradient. For the second both ways are open. The kernel asks for the set
# (`with_keyset=True`), clears what is not below autograd and redispatches, as `visit` did. Or it excludes autograd in
# the thread and calls the operator as usual, `with torch._C._AutoDispatchBelowAutograd()`. Torch's own kernels do both:
# they redispatch with a cleared set, and the thread excludes autograd meanwhile, so what the lower kernel calls makes
# no graph either. A kernel that does neither calls itself.

# %% [markdown]
# ## Exercise 3.4 `dispatch.custom` (30 min, 6 points)
# `cap(x, limit)` $= L \tanh(x / L)$ keeps numbers within a limit without a corner. The kernel that computes it is given:
# `cap_into(x, limit, out)` writes into contiguous memory of the CPU, and autograd knows nothing of it.
#
# Write `register(library)`. `library` is a `torch.library.Library` of a new namespace, `library.ns`. Define in it the
# operator `cap(Tensor x, float limit) -> Tensor`, for a floating-point tensor of any strides and a positive number, and
# register kernels for exactly three keys:
#
# - `"CPU"`: computes with `cap_into`. The result is a new contiguous tensor; `x` stays as it is
# - `"Meta"`: a tensor without data that has the shape, strides and type of that result, contiguous whatever `x` is
# - `"Autograd"`: makes the result differentiable, as often as one likes, and leaves the computation to the keys below.
#   What is below autograd, a mode or another device, sees `cap` and not its parts
#
# With $t = \tanh(x / L)$ the derivative is $1 - t^2$. It must be right in `no_grad` and in inference mode too, and after
# a call the thread includes and excludes what it did before.


# %% nbgrader={"grade": false, "grade_id": "dispatch_custom", "locked": false, "schema_version": 3, "solution": true, "task": false}
from course_lib.given_kernels import cap_into


def register(library):
    """Define the operator `cap` in a Library, with kernels for CPU,
    Meta and Autograd."""
    ### BEGIN SOLUTION
    library.define("cap(Tensor x, float limit) -> Tensor")
    operator = getattr(torch.ops, library.ns).cap

    def on_cpu(x, limit):
        out = torch.empty(x.shape, dtype=x.dtype)
        cap_into(x, limit, out)
        return out

    def on_meta(x, limit):
        return torch.empty(x.shape, dtype=x.dtype, device="meta")

    class Cap(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, limit):
            with torch._C._AutoDispatchBelowAutograd():
                out = operator(x, limit)
            ctx.limit = limit
            ctx.save_for_backward(out)
            return out

        @staticmethod
        def backward(ctx, grad):
            (out,) = ctx.saved_tensors
            # of operators that autograd knows: differentiable again
            return grad * (1 - (out / ctx.limit) ** 2), None

    library.impl("cap", on_cpu, "CPU")
    library.impl("cap", on_meta, "Meta")
    library.impl("cap", Cap.apply, "Autograd")
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dispatch_custom_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("dispatch.custom", register)

# %% [markdown]
# <details><summary>Hint 1: the three registrations</summary>
#
# `library.define("cap(Tensor x, float limit) -> Tensor")`, then `library.impl("cap", function, key)` three times. The
# operator, to be called again, is `getattr(torch.ops, library.ns).cap`. Both kernels without gradients start with
# `torch.empty(x.shape, dtype=x.dtype)`, one of them with `device="meta"`.
# </details>
# <details><summary>Hint 2: autograd</summary>
#
# A `torch.autograd.Function` in `register`, whose `apply` is the kernel. In its `forward`, call the operator again
# `with torch._C._AutoDispatchBelowAutograd():`. Keep what backward needs with `ctx.save_for_backward`, numbers as
# attributes of `ctx`. Return one gradient for each argument, `None` for the number.
# </details>
# <details><summary>Hint 3: the derivative of the derivative</summary>
#
# It comes by itself if backward uses operators that autograd knows, on what was *saved*. Save the result and not
# `tanh` of something that you computed below autograd and kept beside it: 1 - (out / limit)² says it all.
# </details>

# %%
caps = torch.library.Library(f"lesson03_{next(count)}", "DEF")
register(caps)
cap = getattr(torch.ops, caps.ns).cap
x = torch.linspace(-6, 6, 5, dtype=torch.float64, requires_grad=True)
print("value:   ", cap(x, 2.0).tolist())
print("gradient:", torch.autograd.grad(cap(x, 2.0).sum(), x)[0].tolist())
print("checked: ", torch.autograd.gradgradcheck(lambda x: cap(x, 2.0), x))
torch_inside.call_path(cap.default, x=x)

# %% [markdown]
# ### What the kernel for Meta is good for
# A **fake tensor** claims to live on a device and has no memory there. It is itself a tensor on meta, of a subclass
# that remembers the device it stands for and brings that device's keys and the key Python. Dynamo's stand-ins of lesson
# 02 are fake tensors. When a call with one comes to the key Python, its handler asks the kernel for Meta and puts the
# device back on. So your operator works with the compiler, as it is:

# %%
from torch._subclasses.fake_tensor import FakeTensorMode

with FakeTensorMode() as fakes:
    fake = fakes.from_tensor(x)
    out = cap(fake, 2.0)
    print(
        type(out).__name__, tuple(out.shape), "on", out.device, "| keys:", keys_of(out)
    )
torch._dynamo.reset()
with torch_inside.watch() as seen:
    torch.compile(lambda x: cap(x * 2, 2.0).sin(), backend="aot_eager")(x)
print(
    f"compiled: {len(torch_inside.graphs(seen))} graph, "
    f"{len(torch_inside.breaks(seen))} breaks"
)

# %% [markdown]
# ## 6. Tensors with a meaning
# The key Python has a second user. A subclass of Tensor with a `__torch_dispatch__` of its own brings the key with it,
# and its calls end there: **the tensor itself says what an operator does.** `_make_wrapper_subclass` makes such a
# tensor without memory: it has a shape, a type and a device, and what it *means* is up to you. Quantised weights,
# weights spread over several GPUs (DTensor) and nested lists of tensors are made this way. (A fake tensor is not: it
# holds no other tensor.)
#
# Which order do they stand in, modes and wrappers? The set only says that somebody in Python is asked. Predict: with two
# modes active and a wrapper among the arguments, who is asked first, and who last? And do the modes see what the wrapper
# calls in its handler?


# %%
class Logged(torch.Tensor):
    """Holds a tensor, and says so when an operator comes."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=held.dtype, device=held.device
        )

    def __init__(self, held):
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        print("the wrapper is asked for", func.name())
        return func(
            *tree_map(lambda t: t.held if isinstance(t, cls) else t, args),
            **(kwargs or {}),
        )


# %%
class Said(TorchDispatchMode):
    """Says so too."""

    def __init__(self, which):
        super().__init__()
        self.which = which

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        print(
            self.which, "mode is asked for", func.name(),
            "with", ", ".join(type(a).__name__ for a in args),
        )  # fmt: skip
        return func(*args, **(kwargs or {}))


logged = Logged(torch.ones(2))
with Said("the outer"), Said("the inner"):
    logged.neg()

# %% [markdown]
# **The prediction, counted.** Three are asked, each once: the inner mode, the outer one, and last the wrapper. When the
# wrapper then works with what it holds, no mode is active any more. So **a meter around a model with wrapped weights
# counts what the wrappers stand for, not what they do.** Keep it in mind when a tool of this kind reports a quantised
# model's bytes.
#
# Two wrappers of different classes in one call **negotiate**: torch asks one class after the other, a subclass before
# its parent, and a handler that returns `NotImplemented` passes the call on. If all of them pass, the call is a
# `TypeError`. So a handler should decline what it does not know.


# %%
class Modest(Logged):
    # asked at the key only, not before as well
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if any(not issubclass(cls, kind) for kind in types):
            print(f"{cls.__name__} declines {func.name()}")
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


class Broad(Modest):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        print(
            f"{cls.__name__} answers {func.name()} for",
            ", ".join(kind.__name__ for kind in types),
        )
        return func(*[getattr(arg, "held", arg) for arg in args], **(kwargs or {}))


other = type("Other", (Modest,), {})
print(torch.add(other(torch.ones(2)), Broad(torch.ones(2))))
try:
    torch.add(other(torch.ones(2)), type("Third", (Modest,), {})(torch.ones(2)))
except TypeError as error:
    print("TypeError:", str(error).splitlines()[0][:80])

# %% [markdown]
# ## Exercise 3.5 `dispatch.subclass` (40 min, 6 points)
# `Scaled(held, scale)` stands for `held * scale`: `x.held` is a tensor, `x.scale` a number. Scaling it is free: only the
# number changes. Made by `_make_wrapper_subclass` with the shape, the strides, the type and the device of `held`.
#
# - **a number**: `aten.mul.Tensor` and `aten.div.Tensor` of a Scaled and a number, and `aten.neg`: a Scaled with another
#   scale that holds the same memory
# - **views** (`func.is_view`; `aten._unsafe_view`) and `aten.clone`: a Scaled, or several, of the view or clone of what
#   is held, with the same scale
# - **products**, `aten.mm` and `aten.bmm`: a Scaled that holds the product of what is held, and whose scale is the
#   product of both scales; an ordinary tensor has the scale 1
# - **in place**: `aten.mul_` and `aten.div_` of a Scaled and a number change its scale and return it, and its views,
#   made before or after, have the new scale too: after `y = x.t(); x.mul_(3)` also `y` is three times what it was. Of a
#   view (`x[0].mul_(3)`) they raise `TypeError`, because one scale cannot say that a part was scaled. Any other
#   operator that would write into a Scaled raises `TypeError`, because it would write into a copy
# - **all others** work on held * scale, wherever a Scaled stands among the arguments, and give what they give
#
# Right means that values, kinds, scales and memory are as said, and that gradients come out as if there were no wrapper.
# (For these you do nothing: autograd is above you.)


# %% nbgrader={"grade": false, "grade_id": "dispatch_subclass", "locked": false, "schema_version": 3, "solution": true, "task": false}
class Scaled(torch.Tensor):
    """Stands for held * scale."""

    @staticmethod
    def __new__(cls, held, scale, base=None):
        ### BEGIN SOLUTION
        like = {"strides": held.stride(), "dtype": held.dtype, "device": held.device}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, **like)
        ### END SOLUTION

    def __init__(self, held, scale, base=None):
        self.held, self.base, self.own = held, base, scale

    @property
    def scale(self):
        ### BEGIN SOLUTION
        return self.own if self.base is None else self.base.scale
        ### END SOLUTION

    def __repr__(self):
        return f"Scaled({self.held}, {self.scale})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        ### BEGIN SOLUTION
        kwargs, first = kwargs or {}, args[0]
        by_number = isinstance(first, cls) and not any(
            isinstance(arg, torch.Tensor) for arg in args[1:]
        )
        if by_number and func in (aten.mul.Tensor, aten.mul_.Tensor):
            scale = first.scale * args[1]
        elif by_number and func in (aten.div.Tensor, aten.div_.Tensor):
            scale = first.scale / args[1]
        elif func is aten.neg.default:
            scale = -first.scale
        else:
            return cls.other(func, args, kwargs)
        if func._schema.is_mutable:
            if first.base is not None:
                raise TypeError(
                    f"{func} would scale a part, and there is one scale for all"
                )
            first.own = scale
            return first
        return cls(first.held, scale)

    @classmethod
    def other(cls, func, args, kwargs):
        """What does not only change the scale."""
        if func._schema.is_mutable and isinstance(kwargs.get("out", args[0]), cls):
            raise TypeError(
                f"{func} would write into a Scaled, which has no memory of its own"
            )
        if func.is_view or func in (aten._unsafe_view.default, aten.clone.default):
            out = func(args[0].held, *args[1:], **kwargs)
            base = args[0] if func.is_view else None  # a clone is nobody's view
            return tree_map(lambda part: cls(part, args[0].scale, base), out)
        if func in (aten.mm.default, aten.bmm.default):
            held = [getattr(arg, "held", arg) for arg in args]
            return cls(
                func(*held), getattr(args[0], "scale", 1) * getattr(args[1], "scale", 1)
            )
        args, kwargs = tree_map(
            lambda t: t.held * t.scale if isinstance(t, cls) else t, (args, kwargs)
        )
        return func(*args, **kwargs)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "dispatch_subclass_check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
check("dispatch.subclass", Scaled)

# %% [markdown]
# <details><summary>Hint 1: begin with "all others"</summary>
#
# `tree_map(lambda t: t.held * t.scale if isinstance(t, cls) else t, (args, kwargs))` turns every Scaled into an ordinary
# tensor, also in lists and keywords; then call `func` with what comes. That alone is right in value for every operator.
# Add the cases in front of it, one at a time, and let `check` tell you which is next.
# </details>
# <details><summary>Hint 2: is it a number?</summary>
#
# `x * p` with a tensor `p` is `aten.mul.Tensor` too. By a number means: the first argument is a Scaled and no other
# argument is a tensor. `aten.div.Tensor_mode`, a division that rounds, is another operator, and so is not meant.
# </details>
# <details><summary>Hint 3: who writes?</summary>
#
# `func._schema.is_mutable` says that an operator writes into an argument: the first one, or the keyword `out`. If that
# one is a Scaled: `mul_` or `div_` by a number, or `TypeError`. If it is an ordinary tensor, all is well: unwrap the
# others. A view remembers what it is a view of (`base`) and asks it for the scale, so that it never holds an old one; a
# clone, or what `_unsafe_view` gives, is nobody's view. A view of `x * 2` has nothing to do with `x`, though both hold
# the same memory.
# </details>

# %% [markdown]
# What is it good for? Each scaling of an ordinary tensor is a pass over memory; with your wrapper it is free, and the
# product takes the scale along. The code of `chain` knows nothing of it. Predict: how many times faster?

# %%
ROWS, WIDTH = (2**16, 1024) if GPU else (2**14, 128)
predicted = {"ordinary / Scaled": None}  # replace None
### BEGIN PREDICTION
why = (
    "four passes of 2 arrays and a product that reads 1, against that product: "
    "9 arrays to 1, less what is cached"
)
predicted = {"ordinary / Scaled": 6, "why": why}
### END PREDICTION


def chain(x, w):
    return (x * 2 / 3 * 5 / 7) @ w


held, w = normal(ROWS, WIDTH), normal(WIDTH, 16)
wrapped = Scaled(held, 1.0)
difference = (chain(held, w) - chain(wrapped, w) * torch.ones_like(w[:1])).abs().max()
print(f"largest difference: {difference.item():.2g}")
scaled = {
    "ordinary": timed(lambda: chain(held, w)),
    "Scaled": timed(lambda: chain(wrapped, w)),
}
against(
    predicted,
    {"ordinary / Scaled": scaled["ordinary"].median_s / scaled["Scaled"].median_s},
)
results.beside("lesson03.scaled", scaled, unit="us", size=f"{ROWS} x {WIDTH}")

# %% [markdown]
# **The prediction, counted.** On the recorded H200 3.6 times: 711 us, where four operators pass over the array before
# the product, against 197 us for the product alone: the scale goes with it as a number.
#
# The same on tensors of eight numbers would be *slower*, because every handler is Python. How much slower is the last
# section. A compiler runs the handlers once, while it compiles. For this the class has to say what it is made of:
# `__tensor_flatten__` names the tensors inside, and `__tensor_unflatten__` makes a wrapper of such tensors again.


# %%
class Boxed(Modest):
    """Holds a tensor; what comes of an operator is held too."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        bare = tree_map(lambda t: t.held if isinstance(t, cls) else t, args)
        return tree_map(
            lambda t: cls(t) if isinstance(t, torch.Tensor) else t,
            func(*bare, **(kwargs or {})),
        )


class Flat(Boxed):
    def __tensor_flatten__(self):
        # the names of the attributes that are tensors, and anything else to remember
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner, remembered, size, stride):
        return Flat(inner["held"])


# %%
for kind in (Boxed, Flat):
    torch._dynamo.reset()
    fast = torch.compile(lambda x: x.sin() * 2, backend="aot_eager", fullgraph=True)
    try:
        print(
            f"{kind.__name__}: compiled, returns a "
            f"{type(fast(kind(torch.ones(3)))).__name__}"
        )
    except Exception as error:
        print(f"{kind.__name__}: {type(error).__name__}")

# %% [markdown]
# Dynamo stops at `Boxed`, which does not say what it is made of: `Unsupported`. It takes `Flat` and hands it to the
# backend. Whether the backend compiles `Flat` depends on the version. With torch 2.13 on a CPU the cell prints
# "compiled, returns a Flat". In the recorded run, with torch 2.11, it prints `BackendCompilerFailed`: Dynamo's part is
# done, and the error is one of `aot_eager`, the backend below it. (`error.inner_exception` has the backend's own
# error.)

# %% [markdown]
# ## 7. What a call costs
# Every layer of this lesson is run by the host, before any arithmetic. On a GPU the host runs ahead, and pays for a call
# while the device computes an earlier one; as long as it is ahead, a layer costs nothing that one sees. When the
# operators are small, it is all that one sees (lesson 01, section 3).
#
# ### Predict
# `torch.add(x, y)` on eight numbers is the unit. How many times as long does it take when a gradient is required? Under
# a mode that does nothing? As a `custom_op`? On meta, where nothing is computed?

# %%
predicted = {  # replace None
    "a gradient is required": None,
    "under a dispatch mode": None,
    "torch.library.custom_op": None,
    "on meta": None,
}
### BEGIN PREDICTION
why = (
    "a node of the graph is C++; a visit to Python costs about a call; "
    "on meta nothing is computed"
)
predicted = {
    "a gradient is required": 1.2,
    "under a dispatch mode": 2,
    "torch.library.custom_op": 3,
}
predicted |= {"on meta": 0.8, "why": why}
### END PREDICTION

# %% [markdown]
# Each row changes one thing in the plain call.

# %%
from torch.overrides import TorchFunctionMode


class Passes(TorchFunctionMode):
    """Sees calls of Python functions: no key, and above the dispatcher."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Quiet(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Wrapper(Logged):
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*[arg.held for arg in args], **(kwargs or {})))


# %%
class Plus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x + y

    @staticmethod
    def backward(ctx, grad):
        return grad, grad


@torch.library.custom_op("lesson03::plus", mutates_args=())
def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


sums = torch.library.Library(f"lesson03_{next(count)}", "DEF")
sums.define("plus(Tensor x, Tensor y) -> Tensor")
sums.impl("plus", lambda x, y: x + y, BACKEND)
key_plus = getattr(torch.ops, sums.ns).plus.default

# %%
x, y = normal(8), normal(8)
needs, out, meta = x.clone().requires_grad_(), torch.empty_like(x), x.to("meta")
wrapped, faked = Wrapper(x), FakeTensorMode().from_tensor(x)
with torch.inference_mode():
    inferred = x.clone()
alone = {
    "torch.add(x, y)": lambda: torch.add(x, y),
    "into memory that is there": lambda: torch.add(x, y, out=out),
    "torch.ops.aten.add.Tensor": lambda: aten.add.Tensor(x, y),
    "a gradient is required": lambda: torch.add(needs, y),
    "in an autograd.Function": lambda: Plus.apply(x, y),
    "a wrapper with __torch_dispatch__": lambda: torch.add(wrapped, wrapped),
    "a kernel in Python on one key": lambda: key_plus(x, y),
    "torch.library.custom_op": lambda: plus(x, y),
    "on meta": lambda: torch.add(meta, meta),
    "a fake tensor": lambda: torch.add(faked, faked),
}
around = {
    "in no_grad": (alone["torch.add(x, y)"], torch.no_grad),
    "inference tensors, inference mode": (
        lambda: torch.add(inferred, inferred),
        torch.inference_mode,
    ),
    "in autocast": (
        alone["torch.add(x, y)"],
        lambda: torch.autocast(DEVICE, dtype=torch.bfloat16),
    ),
    "under a function mode": (alone["torch.add(x, y)"], Passes),
    "under a dispatch mode": (alone["torch.add(x, y)"], Quiet),
}

# %% [markdown]
# The rows take turns, some calls each, so that what drifts meets all alike. On a GPU the device is waited for before
# each turn and not after it: what is measured is how long the host needs to hand the work over.


# %%
def in_turn(settings, calls=200, rounds=21):
    """name -> seconds of a call on the host's clock: one number a round."""
    found = {name: [] for name in settings}
    for _ in range(rounds):
        for name, (fn, context) in settings.items():
            with context():
                # what was timed before has left nothing of this one in the caches
                for _ in range(calls // 4):
                    fn()
                wait()
                begin = time.perf_counter()
                for _ in range(calls):
                    fn()
                found[name].append((time.perf_counter() - begin) / calls)
    return found


settings = {
    name: (fn, contextlib.nullcontext)
    for name, fn in ({"": lambda: None} | alone).items()
} | around
rounds = in_turn(settings)
loop_s = median(rounds.pop(""))  # an empty function and the loop
cost = {name: median(seconds) - loop_s for name, seconds in rounds.items()}
plain = cost["torch.add(x, y)"]
against(predicted, {name: taken / plain for name, taken in cost.items()})
results.beside("dispatch", cost, unit="us", records=False)

# %% [markdown]
# **The prediction, counted.** On the recorded H200's host a plain call takes 6.9 us, and these 7.9, 12.0, 17.8 and 74:
# 1.15, 1.7, 2.6 and 11 times as long.
#
# The recorded column is measured by `python -m benchmarks dispatch`: the median of five processes, with some rows more,
# the ways around a Triton launch and compiled calls. As a picture: the recorded H200's rows where there are any, with a
# bar over all five processes; else yours, with a bar over the middle half of the rounds. (The times are the host's. Your
# host's processor stands below the setup cell; the record names its GPU only, so compare within a column.)

# %%
entry = results.load("dispatch")
own_rows = []
for name, taken in rounds.items():
    low, middle, high = (1e6 * (s - loop_s) for s in quantiles(taken, n=4))
    own_rows.append({"name": name, "us": middle, "low_us": low, "high_us": high})
axes = plots.costs(
    entry["rows"] if entry else own_rows,
    plain="torch.add(x, y)",
    device=f"{entry['machine'] if entry else HERE.name}'s host",
)
plots.show(
    axes,
    alt="Host time of one addition in several ways, from the cheapest to the dearest, "
    "on a logarithmic scale: contexts near the plain call, layers in Python above it, "
    "meta and fake tensors far above",
)

# %% [markdown]
# Read the table by groups.
#
# - **Layers in C++ are cheap.** The plain call already has autograd's kernel in it. `no_grad` and autocast change flags
#   and bits. Inference mode takes the kernel out, and what that saves is the share of it in the plain call: little. When
#   a gradient *is* required, a node of the graph is made, and that shows.
# - **Each visit to Python costs a microsecond or several**: arguments are made into Python objects, a function is found
#   and called, and its result goes the same way back. Modes, wrappers, an `autograd.Function` and `custom_op` differ in
#   how often they do it. `custom_op` is a kernel in Python with layers of Python around it, which look after autograd,
#   writes and aliases. A kernel at a key, as in exercise 3.4, has none.
# - **Nothing computed is not nothing done.** For an addition meta and fake tensors take longest of all: on meta its
#   rule for the result's shape and type, with all of broadcasting and promotion, is a long Python program. That depends
#   on the operator: a clone or a view on meta costs about what it costs on a CPU. These rules run when a model is
#   compiled or counted, and not in training.
#
# ### Where the microseconds go
# The dispatcher is the small part of a call. Five calls from the shortest to the longest; they share parts, and no
# row contains the whole of another one.

# %%
steps = {
    "x.dim(): into C++ and back": lambda: x.dim(),
    "x.detach(): keys, three kernels, a new view": lambda: x.detach(),
    "torch.empty(8): new memory": lambda: torch.empty(8, device=DEVICE),
    "torch.add into memory that is there": lambda: torch.add(x, y, out=out),
    "torch.add(x, y)": lambda: torch.add(x, y),
}
taken = in_turn(
    {"": (lambda: None, contextlib.nullcontext)}
    | {n: (f, contextlib.nullcontext) for n, f in steps.items()}
)
loop_s = median(taken.pop(""))
print(f"host: {processor()}")
results.beside(
    "lesson03.steps",
    {name: median(seconds) - loop_s for name, seconds in taken.items()},
    unit="us",
)

# %% [markdown]
# `x.detach()` takes the whole path: the set is made, and kernels run at autograd, at ADInplaceOrView and at the
# device. All that the dispatcher costs is inside of this row, and a new tensor is as well. On the recorded H200's
# host it takes 1.0 us, and the addition 10.8 us, more than ten times as long. (Compare within this table: it was
# recorded on a slower host than the table above, where the same addition takes 6.9 us.) What the addition adds is
# arithmetic on shapes and types, which kernel to use, memory for the result, and on a GPU the launch. The memory is the
# difference of the last two rows, 1.8 us there. That is less than the row of `torch.empty`, which also reads its
# arguments from Python.
#
# ### `custom_op` taken apart
# Its path has two kernels in Python, and the second one calls your function:

# %%
torch_inside.call_path(torch.ops.lesson03.plus.default, x=x, y=y)

# %% [markdown]
# ### When does a model wait for its host?
# The tally knows how many operators of a step move something. Each costs the host about what one of our calls costs,
# and the device needs at least the sum of the floors. Both can be counted on meta, for any width. For the forward and
# backward pass of a transformer with 12 layers on the recorded H200 (no optimizer), 8 texts of 512 tokens in bf16: from
# which width on does the device set the pace?

# %%
predicted = {"width": None}  # replace None
### BEGIN PREDICTION
why = (
    "on the H200 some 1,500 calls of 8 us are 12 ms; at 512 the products of a step "
    "take about 3 ms, at 1024 about 12"
)
predicted = {"width": 1024, "why": why}
### END PREDICTION


def call_us(name):
    """What a call costs the recorded H200's host;
    your own where nothing is recorded."""
    for section, row in (
        ("dispatch", name),
        ("lesson01.call", "one of many additions"),
    ):
        for found in (results.load(section) or {"rows": ()})["rows"]:
            if found["name"] == row:
                return found.get("us", found.get("value")), "H200's host"
    return 1e6 * cost[name], HERE.name


each_us, whose = call_us("a gradient is required")

# %%
widths, host, device = (256, 512, 1024, 2048, 4096), [], []
for width in widths:
    sizes = transformer.Sizes(
        vocabulary=8192, context=512, width=width, heads=width // 64, layers=12
    )
    step = tally(Meter, text_loss(sizes, 8, "meta", torch.bfloat16))
    device.append(
        sum(floors(step, h200, phase)[1] for phase in ("forward", "backward"))
    )
    moving = sum(call.work.bytes > 0 for call in step)
    host.append(moving * each_us * 1e-6)
against(
    predicted,
    {
        "width": next(
            (w for w, h, d in zip(widths, host, device) if d > h), float("inf")
        )
    },
)
series = {f"host: {moving} calls of {each_us:.3g} us, {whose}": host}
series[f"device: sum of the floors, {h200.name}"] = device
axes = plots.sweep(
    widths, series,
    xlabel="width", yscale="log", title="A narrow model waits for its host",
)  # fmt: skip
plots.show(
    axes,
    alt="Time of a training step against the width: the host's part is flat, "
    "the device's floor rises and crosses it",
)

# %% [markdown]
# **The prediction, counted.** On the recorded H200 the lines cross between width 256 and 512, so 512 is the first
# width at which the device's floor is longer than the host's calls. (There it is hardly longer. With the slower host of
# the table of steps the first width would be 1024.)
#
# The host's line is flat: the number of calls does not depend on the width. Left of the crossing nothing that happens
# on the device matters, neither bytes nor a better kernel, and a layer in Python is paid in full. Right of it the same
# layer is free. This is the overhead regime of lesson 01, now with its parts. The remedies are those that make fewer
# calls: fusion, compilation (lesson 02), CUDA graphs (lesson 01); or cheaper ones.
#
# Both are estimates; here is the direction of each error. Real kernels need longer than their floors, which moves the
# crossing to the left. The host's line leaves out views and what your own Python does between the calls, which would
# lift it; the calls of backward do not come from Python, which would lower it.

# %% [markdown]
# ## Verdicts
# What was claimed, and what we found. The numbers are in the cells above.
#
# | claim of the reports | verdict | for your own work |
# |---|---|---|
# | keys of the tensors and of the thread, less what is excluded; the highest runs, masks itself, redispatches | right; you wrote it, and it agrees with the machine | look at the set before you guess |
# | there is a global set | it is the state that every thread starts with | |
# | the set is {CUDA, Autograd} because `requires_grad` is true | wrong: it is in no set, and `no_grad` changes none | inference mode takes the kernel out, and saves little |
# | a vision tower: 2100 ms forward, 2900 ms backward, 19288 MiB | the time says many layers, the memory says that they are computed again, and the ratio of the passes does not fit | count twice, in two units, and follow the contradiction |
# | we asked: what does a call cost that computes nothing? | an addition on meta or with fake tensors costs more than any other; a view no more than elsewhere | they are for compiling and counting |
# | we asked: does a layer in Python slow a model down? | only where the host sets the pace | count the calls before you optimise them |

# %% [markdown]
# ## Questions
# Three answers in your own words, graded by a person. A few sentences each are enough.
#
# ### Question 3.6 (10 min, 3 points)
# A team keeps the weights of a language model as int8 instead of bf16, in a wrapper subclass. Its `__torch_dispatch__`
# dequantises a weight and multiplies. For one token at a time (batch 1) the weights are nearly all that is moved, so
# half the bytes should mean nearly half the time; in eager mode the model is slower than before. With 200 products in a
# forward pass, what does the wrapper cost it at least, by the table of section 7? How large must a weight be on the
# recorded H200, for the saved bytes to pay for it? (Its copy rate is `recorded["copy, TB/s"]` of section 4.) Give one
# remedy, with the reason why it works.

# %% [markdown] nbgrader={"grade": true, "grade_id": "dispatch_question_wrapper", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# The wrapper costs (its row minus the plain row) a call, with the numbers of the machine that was used: some
# microseconds, times 200, so about a millisecond or more a token (the recorded H200: 7 µs, 1.4 ms); and the handler
# makes at least one more operator, the dequantisation. A bf16 weight of $n$ numbers moves $2n$ bytes, int8 moves $n$:
# saved are $n$ bytes, at about 4.2 TB/s. In 7 µs that is 30 MB, so $n$ of about 3e7, a weight of 5500 x 5500, where the
# device set the pace before; where the host did, no size pays. (If the dequantised weight is written to memory and read
# again, as in eager mode, more bytes move than before: $n + 2n + 2n$ and nothing is saved at any size. That is the
# better answer.) Remedies: compile the model, because the handlers then run while it is compiled, and dequantisation is
# fused into what follows (for this the wrapper has to say what it is made of, with `__tensor_flatten__` and
# `__tensor_unflatten__`); a fused kernel for the product behind one operator; a CUDA graph, which replays without the
# host.
#
# *Marking guide.* 1 point for the cost from the table with its units. 1 for a size from saved bytes and copy rate (any
# sensible cost), or for seeing that eager dequantisation moves more bytes. 1 for a remedy with a reason.
# ### END SOLUTION

# %% [markdown]
# ### Question 3.7 (10 min, 3 points)
# Suppose that `requires_grad_()` put the autograd key into a tensor's set, and that tensors without it had no such key.
# Ordinary calls would then be a little cheaper. Give a program of two or three lines, with a view or a write in place,
# that would then compute a wrong gradient or none, and say at which moment which set is too small. Why is inference mode
# allowed to leave the key out?

# %% [markdown] nbgrader={"grade": true, "grade_id": "dispatch_question_keys", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# For example: `base = torch.zeros(4)`, `part = base[:2]`, `base.mul_(w)` with a `w` that requires a gradient, then
# `part.sum().backward()`. The view was made when `base` had no autograd key, so nothing noted that `part` is a view of
# `base`; after the write `base` belongs to the graph and `part`, the same memory, does not, so no gradient comes to `w`.
# (Also good: a tensor without the key is written in place after another operator saved it for backward; with no kernel
# at ADInplaceOrView its version is not counted, and backward uses the new values without an error.) The set is read
# before the call, so what the call changes comes too late for the views and users that were there before.
#
# Inference mode may, because it forbids what would make this wrong: its tensors cannot be saved for backward or be
# changed in place outside in a recorded calculation; torch raises an error instead.
#
# *Marking guide.* 1 point for a program with a view or a write that fits. 1 for the moment: the set belongs to what was
# true when the tensor or the view was made. 1 for the promise of inference mode, and that it is enforced.
# ### END SOLUTION

# %% [markdown]
# ### Question 3.8 (15 min, 4 points)
# The vision tower of section 4 again. Take 27 layers on the recorded H200, each computed again in backward. Which ratio
# of backward to forward follows from the floors? The report has 1.4. Name two explanations that fit *all* of: 2100 ms,
# 2900 ms, 19288 MiB. For each, describe one measurement with a tool of lessons 01 to 03 (a profile, a tally, a list of
# breaks, a switch) whose outcome would be different for the two, and say which outcome speaks for which.

# %% [markdown] nbgrader={"grade": true, "grade_id": "dispatch_question_tower", "locked": false, "points": 4, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# From the floors: backward alone is a little less than twice forward; computed again it is forward + backward, nearly
# three times forward (with the printed floors about 2.8; a checkpoint without reentry leaves out each layer's last
# product, so a little less is right as well). Explanations: (a) the forward pass contains time that is
# neither bytes nor FLOPs and does not come again in backward: work of the host that grows with the batch, such as a
# Python loop over the 1024 images in the mask code of every layer (reading one scalar a layer is too cheap: lesson 02
# counts it); (b) the two passes were not measured alike: the forward time contains first calls, compilation or data
# transfer, or the clock was stopped before the device had finished backward; (c) fewer layers on a much slower GPU do
# not fit, since ratio and memory speak against it. With (a) the recomputation would do the host's work again as well,
# unless the mask is kept: a good answer says so.
#
# Measurements: a profile of the forward pass: long gaps in which the GPU is idle while the host is in the mask code
# speak for (a), a busy GPU against it. A tally of the operators of a layer at two batch sizes shows whether their
# number grows with the batch; the list of graph breaks and the count of `_local_scalar_dense` show where the host
# reads. For (b): repeat with warm-up and a synchronisation before each reading of the clock; if forward falls and
# backward stays, (b).
#
# *Marking guide.* 1 point for a ratio between 2.5 and 3 from the floors. 1 for two explanations that fit all numbers;
# the reads of scalars alone do not, and get half of it. 2 for measurements that separate them, one each; half where the
# outcome is not said.
# ### END SOLUTION

# %% [markdown]
# ## Further reading
# - Edward Z. Yang, [Let's talk about the PyTorch
#   dispatcher](https://blog.ezyang.com/2020/09/lets-talk-about-the-pytorch-dispatcher/), 2020. By its author; names of
#   keys have changed since.
# - Edward Z. Yang, [PyTorch internals](https://blog.ezyang.com/2019/05/pytorch-internals/), 2019. What lies below the
#   last key.
# - [Extending PyTorch](https://docs.pytorch.org/docs/stable/notes/extending.html), the documentation: function modes,
#   dispatch modes and subclasses.
# - [Custom operators](https://pytorch.org/tutorials/advanced/custom_ops_landing_page.html), the tutorial: which way of
#   registering to choose.
# - [The subclass zoo](https://github.com/albanD/subclass_zoo): small wrappers and modes to learn from.
# - `torch/utils/flop_counter.py` in your own installation: the FLOP counter that comes with PyTorch is a mode like
#   yours, with a formula for each operator.
