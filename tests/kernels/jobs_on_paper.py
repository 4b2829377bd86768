"""Kernels with jobs for their warps, carried out by the host: every job of every program is a thread.

Triton's interpreter knows no Gluon. Here a kernel's own functions run as Python, with tiles as torch tensors. One
thread runs at a time, and which one is drawn at every barrier. What is asked of a GPU and not waited for happens as
early or as late as it may:

    a fetch       at any time until the barrier is passed that hears of it
    a product     reads shared memory at any time until somebody waits for it, and has no value before that
    a tile sent   is read at any time until `store_wait`, and is in global memory at any time after that

So who forgets to wait, or frees a place too early, gets what a GPU would get on a bad day, and where everybody waits
for ever is said. Shared memory is NaN at first, and so is what was never written. What is not seen: layouts, warps of
one job that do not wait for each other, fences, registers, time.
"""

import functools
import itertools
import random
import threading
import types
from collections.abc import Callable

import torch
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import constexpr

__all__ = ["Int", "OnPaper", "up"]

OPTIONS = ("num_warps", "maxnreg", "launch_cooperative_grid")


class Int(int):
    """An integer of the GPU: // rounds towards zero there, % has the sign of the left side. Nobody may rely on it."""

    def __floordiv__(self, other):
        assert self >= 0 and other > 0, f"{int(self)} // {int(other)}"
        return Int(int(self) // int(other))

    def __mod__(self, other):
        assert self >= 0 and other > 0, f"{int(self)} % {int(other)}"
        return Int(int(self) % int(other))

    def to(self, kind):
        return self


def _kept(name):
    def method(self, other):
        found = getattr(int, name)(int(self), int(other)) if isinstance(other, int) else NotImplemented
        return found if found is NotImplemented else Int(found)

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "rshift"):
    setattr(Int, f"__{_name}__", _kept(f"__{_name}__"))


def _number(x) -> bool:
    return isinstance(x, (int, float))


class Tile(torch.Tensor):
    """What a job holds in registers."""

    type = types.SimpleNamespace(layout=None)


def _tile(x: torch.Tensor) -> Tile:
    return x.as_subclass(Tile)


class Pointer:
    def __init__(self, memory: torch.Tensor, offset=0):
        self.memory, self.offset = memory, offset

    def __add__(self, offset):
        return Pointer(self.memory, self.offset + offset)

    @property
    def value(self):
        return self.memory.view(-1)[self.offset]

    @value.setter
    def value(self, new):
        self.memory.view(-1)[self.offset] = new


class Described:
    """A tensor as the copy engine knows it."""

    def __init__(self, desc: TensorDescriptor):
        self.memory = desc.base.as_strided(desc.shape, desc.strides)
        self.dtype, self.layout = desc.base.dtype, desc.layout
        self.block_type = types.SimpleNamespace(shape=list(desc.block_shape))

    def region(self, coord):
        """Of a tile there: what of it lies in the tensor, and where in the tensor and in the tile that is."""
        ends = [min(c + b, n) - c for c, b, n in zip(coord, self.block_type.shape, self.memory.shape)]
        inside = tuple(slice(0, max(end, 0)) for end in ends)
        return tuple(slice(c, c + max(end, 0)) for c, end in zip(coord, ends)), inside


class Memory:
    """A part of shared memory."""

    def __init__(self, values: torch.Tensor, layout=None):
        self.values, self.layout = values, layout
        self.shape, self.dtype = list(values.shape), values.dtype

    def index(self, place):
        return Memory(self.values[place], self.layout)

    def reshape(self, shape):
        return Memory(self.values.view(shape), self.layout)

    def permute(self, order):
        return Memory(self.values.permute(order), self.layout)

    def slice(self, start, length, dim=0):
        return Memory(self.values.narrow(dim, start, length), self.layout)

    def _reinterpret(self, kind, shape, layout):
        count = torch.Size(shape).numel()
        return Memory(self.values.reshape(-1).view(kind)[:count].view(shape), layout)

    def load(self, layout):
        return _tile(self.values.clone())

    def store(self, x):
        assert x.dtype == self.dtype and list(x.shape) == self.shape, (x.dtype, self.dtype, x.shape, self.shape)
        self.values.copy_(x)


class Barrier:
    def __init__(self):
        self.count = self.missing = self.bytes = self.passed = 0

    def now(self, missing: int, bytes_: int):
        self.missing, self.bytes = self.missing + missing, self.bytes + bytes_
        assert self.missing >= 0, "more have arrived than were awaited"
        if self.missing == self.bytes == 0:
            self.missing, self.passed = self.count, self.passed + 1


class Barriers:
    def __init__(self, shape):
        self.shape, self.each = list(shape), [Barrier() for _ in range(shape[0])]

    def index(self, place):
        return self.each[place]


class InFlight:
    """A product that nobody has waited for. It has no value, so whoever uses it fails."""

    def __init__(self, product: Callable[[], torch.Tensor]):
        self._product = product

    @functools.cached_property
    def made(self) -> Tile:
        return _tile(self._product())


class Sent:
    """A tile on its way out of shared memory."""

    def __init__(self, desc: Described, coord, tile: Memory, adds: bool):
        self._there, self._of_tile = desc.region(coord)
        self._desc, self._tile, self._adds = desc, tile, adds
        self._values, self._written = None, False

    def read(self):
        if self._values is None:
            self._values = self._tile.values.view(self._desc.block_type.shape)[self._of_tile].clone()

    def write(self):
        self.read()
        if not self._written:
            self._written = True
            there = self._desc.memory[self._there]
            there.copy_(there + self._values if self._adds else self._values)


class Stopped(Exception):
    pass


class Job:
    def __init__(self, program: int, name: str, call: Callable[[], None]):
        self.program, self.name, self.call = Int(program), name, call
        self.may_run = threading.Semaphore(0)
        self.until, self.done = None, False
        self.products: list[InFlight] = []
        self.sent: list[Sent] = []


class OnPaper:
    """`launch` in place of course_lib.kernels.launching.launch.

    at_once: so many programs at a time, the next when one has ended. asm: what the texts of inline assembly do.
    instead: functions of the kernel's text that are to be others, by name.
    """

    def __init__(self, seed: int, at_once: int, asm: dict | None = None, instead: dict | None = None):
        self._draw, self._at_once = random.Random(seed), at_once
        self._asm = {} if asm is None else asm
        self._spaces: dict[int, dict] = {}
        self._known = self._names() | ({} if instead is None else instead)

    def until(self, condition: Callable[[], bool]) -> None:
        """For a text of assembly: the job that is here waits."""
        me = self._me
        me.until = condition
        self._pass_on(me)
        me.until = None

    def all_written(self) -> None:
        """For a text of assembly: all that this job has sent is in global memory."""
        for one in self._me.sent:
            one.write()
        self._me.sent.clear()

    def launch(self, kernel, grid, *args, **options):
        given = {name: value for name, value in options.items() if name not in OPTIONS}
        names = kernel.arg_names
        given |= dict(zip(names, args))
        given = {name: self._given(value) for name, value in given.items()}
        self._grid, self._jobs, self._fetches, self._wrong = grid[0], [], [], None
        body = self._function(kernel)
        waiting = iter(range(self._grid))
        for program in itertools.islice(waiting, self._at_once):
            self._start(Job(program, "start", functools.partial(body, **given)))
        self._next_program = lambda: next(waiting, None)
        self._body = functools.partial(body, **given)
        self._over = threading.Semaphore(0)
        self._pass_on(None)
        self._over.acquire()
        for job in self._jobs:
            job.thread.join(10)
        if self._wrong is not None:
            raise self._wrong
        for job in self._jobs:
            for one in job.sent:
                one.write()

    def _given(self, value):
        if isinstance(value, TensorDescriptor):
            return Described(value)
        if isinstance(value, torch.Tensor):
            return Pointer(value)
        return Int(value) if type(value) is int else value

    # Who runs

    def _start(self, job: Job):
        def run():
            job.may_run.acquire()
            try:
                if self._wrong is None:
                    job.call()
            except Stopped:
                pass
            except BaseException as error:
                error.add_note(f"in job {job.name} of program {job.program}")
                self._wrong = self._wrong or error
            job.done = True
            self._pass_on(job)

        self._jobs.append(job)
        job.thread = threading.Thread(target=run, daemon=True)
        job.thread.job = job
        job.thread.start()

    @property
    def _me(self) -> Job:
        return threading.current_thread().job

    def _ready(self) -> list[Job]:
        return [job for job in self._jobs if not job.done and (job.until is None or job.until())]

    def _pass_on(self, me: Job | None):
        """Let somebody else run, and return when it is one's own turn."""
        if me is not None and me.done:
            if me.name == "start" and (number := self._next_program()) is not None:
                self._start(Job(number, "start", self._body))
        while self._wrong is None:
            for one in self._some([sent for job in self._jobs for sent in job.sent]):
                self._draw.choice((one.read, one.write))()
            ready = self._ready()
            if self._fetches and (not ready or self._draw.random() < 0.3):
                self._fetches.pop(self._draw.randrange(len(self._fetches)))()
                continue
            if ready:
                job = self._draw.choice(ready)
                break
            if all(job.done for job in self._jobs):
                self._over.release()
                return
            stuck = ", ".join(f"{job.name} of {job.program}" for job in self._jobs if not job.done)
            self._wrong = AssertionError(f"these wait for ever: {stuck}")
        if self._wrong is not None:
            left = [job for job in self._jobs if not job.done and job is not me]
            if not left or me is None:
                self._over.release()
            for job in left[:1]:
                job.may_run.release()
            if me is not None and not me.done:
                raise Stopped
            return
        if job is me:
            return
        job.may_run.release()
        if me is not None and not me.done:
            me.may_run.acquire()
            if self._wrong is not None:
                raise Stopped

    def _some(self, many: list) -> list:
        return [one for one in many[-8:] if self._draw.random() < 0.05]

    # What a kernel's text means

    def _function(self, jitted):
        fn = jitted.fn
        space = self._spaces.get(id(fn.__globals__))
        if space is None:
            space = self._spaces[id(fn.__globals__)] = {}
            space |= {name: self._meaning(name, value) for name, value in fn.__globals__.items()} | {"range": _range}
        made = types.FunctionType(fn.__code__, space, fn.__name__, fn.__defaults__)
        made.__kwdefaults__ = fn.__kwdefaults__
        return made

    def _meaning(self, name, value):
        if name in self._known:
            return self._known[name]
        if isinstance(value, constexpr):
            return Int(value.value) if type(value.value) is int else value.value
        if hasattr(value, "fn") and hasattr(value, "arg_names"):
            return _Later(self, value)
        return value

    def _names(self) -> dict:
        language = types.SimpleNamespace(
            constexpr=None, int32=torch.int32, int64=torch.int64, float32=torch.float32, float16=torch.float16,
            bfloat16=torch.bfloat16, static_range=range, tensor=Int, static_assert=_assert,
            program_id=lambda axis: self._me.program, num_programs=lambda axis: Int(self._grid),
            cdiv=up, minimum=_least, maximum=_most, where=_where, cast=lambda x, kind: x,
            exp2=lambda x: torch.exp2(x), log2=lambda x: torch.log2(x),
            sum=lambda x, axis: x.sum(axis), max=_largest,
            arange=lambda a, b, layout=None: _tile(torch.arange(a, b)),
            zeros=lambda shape, kind, layout=None: _tile(torch.zeros(shape, dtype=kind)),
            full=lambda shape, value, kind, layout=None: _tile(torch.full(shape, value, dtype=kind)),
            zeros_like=torch.zeros_like, convert_layout=lambda x, layout: x,
            load=lambda pointer, **_: Int(pointer.value), store=_store,
            allocate_shared_memory=self._allocate, warp_specialize=self._specialize,
            inline_asm_elementwise=self._assembly,
            **{f"{name}Layout": lambda *_, **__: None
               for name in ("Slice", "Blocked", "DotOperand", "NVMMADistributed", "NVMMAShared", "SwizzledShared")},
        )  # fmt: skip
        at_barriers = types.SimpleNamespace(
            MBarrierLayout=mbarrier.MBarrierLayout, init=_init, arrive=self._arrive, expect=self._expect,
            wait=self._wait,
        )  # fmt: skip
        copies = types.SimpleNamespace(
            async_copy_global_to_shared=self._fetch, store_wait=self._store_wait,
            async_copy_shared_to_global=lambda desc, coord, tile: self._send(desc, coord, tile, False),
        )  # fmt: skip
        return {
            "gl": language, "tl": language, "mbarrier": at_barriers, "tma": copies,
            "fence_async_shared": lambda: None, "sync": lambda: None,
            "async_add": lambda desc, coord, tile: self._send(desc, coord, tile, True),
            "warpgroup_mma": self._product, "warpgroup_mma_wait": self._products_until,
        }  # fmt: skip

    def _allocate(self, kind, shape, layout):
        if isinstance(layout, mbarrier.MBarrierLayout):
            return Barriers(shape)
        return Memory(torch.full(shape, float("nan") if kind.is_floating_point else -1, dtype=kind), layout)

    def _specialize(self, jobs, warps, registers):
        program, ended = self._me.program, []
        for number, (function, args) in enumerate(jobs):
            job = Job(program, f"{number} ({getattr(function, 'name', function)})", functools.partial(function, *args))
            ended.append(job)
            self._start(job)
        self.until(lambda: all(job.done for job in ended))

    def _assembly(self, text, constraints, args, dtype=None, is_pure=True, pack=1):
        return self._asm[text](self, *args)

    def _arrive(self, barrier, count=1):
        barrier.now(-count, 0)
        self._pass_on(self._me)

    def _expect(self, barrier, bytes_):
        barrier.now(-1, bytes_)

    def _wait(self, barrier, phase):
        self.until(lambda: barrier.passed % 2 != phase)

    def _fetch(self, desc, coord, barrier, to):
        there, inside = desc.region(coord)
        box = desc.block_type.shape

        def come():
            tile = torch.zeros(box, dtype=desc.dtype)
            tile[inside] = desc.memory[there]
            to.values.copy_(tile.view(to.shape))
            barrier.now(0, -tile.numel() * tile.element_size())

        self._fetches.append(come)

    def _send(self, desc, coord, tile, adds):
        self._me.sent.append(Sent(desc, coord, tile, adds))

    def _store_wait(self, pendings):
        sent = self._me.sent
        for one in sent[: len(sent) - pendings]:
            one.read()

    def _product(self, a, b, acc, use_acc=True, is_async=False):
        def product():
            left, right = (x.values if isinstance(x, Memory) else x for x in (a, b))
            made = left.float() @ right.float()
            return (acc.made if isinstance(acc, InFlight) else acc) + made if use_acc else made

        found = InFlight(product)
        self._me.products.append(found)
        if self._draw.random() < 0.5:
            self._make(self._me.products)
        return found if is_async else found.made

    def _make(self, products):
        for one in products:
            one.made  # noqa: B018

    def _products_until(self, pendings, deps):
        products = self._me.products
        done = products[: len(products) - pendings]
        self._make(done)
        del products[: len(done)]
        found = [x.made if isinstance(x, InFlight) and x not in products else x for x in deps]
        return found[0] if len(found) == 1 else tuple(found)


class _Later:
    """A function of a kernel's text, read when it is called: two may call each other."""

    def __init__(self, paper: OnPaper, jitted):
        self._paper, self._jitted, self.name = paper, jitted, jitted.fn.__name__

    @functools.cached_property
    def _made(self):
        return self._paper._function(self._jitted)

    def __call__(self, *args, **named):
        return self._made(*args, **named)


def _range(*args):
    return map(Int, range(*args))


def _assert(condition, message=""):
    assert condition, message


def up(a, b):
    return Int((abs(a + b - 1) // b) * (1 if a + b - 1 >= 0 else -1))


def _least(a, b):
    return Int(min(a, b)) if _number(a) and _number(b) else torch.minimum(*map(torch.as_tensor, (a, b)))


def _most(a, b):
    return Int(max(a, b)) if _number(a) and _number(b) else torch.maximum(*map(torch.as_tensor, (a, b)))


def _where(condition, a, b):
    if isinstance(condition, bool):
        found = a if condition else b
        return Int(found) if type(found) is int else found
    return _tile(torch.where(condition, a, b))


def _largest(x, axis):
    found = x.amax(axis)
    return found if found.ndim else Int(found)


def _store(pointer, values, mask=None):
    memory = pointer.memory.view(-1)
    where = torch.as_tensor(pointer.offset)
    mask = torch.ones_like(where, dtype=torch.bool) if mask is None else mask
    memory[where[mask]] = values[mask].to(memory.dtype)


def _init(barrier, count):
    barrier.count = barrier.missing = count
