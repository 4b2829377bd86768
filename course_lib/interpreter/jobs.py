"""Kernels in Gluon, with jobs for their warps, carried out by the host: every job of every program is a thread.

Triton's interpreter knows no Gluon. Here a kernel's own functions run as Python, with tiles as torch tensors on the
CPU. One thread runs at a time, and which one is drawn at every barrier. What a GPU is asked for and does by itself
happens as early or as late as it may:

    a fetch       at any time until the barrier is passed that hears of it
    a product     reads shared memory at any time until somebody waits for it, and has no value before that
    a tile sent   is read at any time until `store_wait`, and is in global memory at any time after that

So who forgets to wait, or frees a place too early, gets in some draw what a GPU may give on a bad day; and where
everybody waits for ever, it is said who. Shared memory is NaN at first. What is not seen: layouts, warps of one job
that do not wait for each other, fences, registers, time.
"""

import functools
import random
import threading
import types
from collections.abc import Callable, Mapping

import torch
import triton.language
from triton.experimental.gluon import language
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import constexpr
from triton.runtime import KernelInterface

from course_lib.interpreter.tiles import (
    Barriers,
    Described,
    InFlight,
    Int,
    Memory,
    Pointer,
    Sent,
    Tile,
    of_tile,
    up,
)

__all__ = ["Run", "carry_out"]

LAUNCH = "num_warps", "maxnreg", "launch_cooperative_grid"  # options that mean nothing here
SOON = 0.3  # the chance that a fetch comes before the next job runs


def carry_out(kernel, grid, *args, seed=0, at_once=None, asm=None, instead=None, **named) -> None:
    """kernel[grid](*args, **named) on tensors of the CPU, in an order that `seed` draws.

    at_once: so many programs at a time, the next when one has ended; None: all. instead: functions of the kernel's text
    that are to be others, by name; asm: what its texts of inline assembly do. Those of Python, and all of asm, are
    called with the Run before their arguments.
    """
    Run(seed, asm or {}, instead or {}).launch(kernel, grid, at_once, args, named)


class _Stopped(Exception):
    """Somebody else has failed."""


class _Job:
    def __init__(self, program: int, name: str, call: Callable[[], None]):
        self.program, self.name, self.call = Int(program), name, call
        self.may_run, self.done = threading.Semaphore(0), False
        self.until: Callable[[], bool] = lambda: True
        self.products: list[InFlight] = []  # that nobody has waited for
        self.sent: list[Sent] = []


class Run:
    """One launch: its jobs, and what is on its way."""

    def __init__(self, seed: int, asm: Mapping[str, Callable], instead: Mapping[str, Callable]):
        self._draw, self._asm, self._instead = random.Random(seed), asm, instead
        self._spaces: dict[int, dict] = {}
        self._meanings = self._names()
        self._jobs: list[_Job] = []
        self._fetches: list[Callable[[], None]] = []
        self._wrong: BaseException | None = None
        self._over = threading.Semaphore(0)

    def launch(self, kernel, grid, at_once, args, named) -> None:
        given = dict(zip(kernel.arg_names, args)) | {name: x for name, x in named.items() if name not in LAUNCH}
        self._body = functools.partial(self._read(kernel), **{name: _given(x) for name, x in given.items()})
        self._programs, self._waiting = grid[0], iter(range(grid[0]))
        for _ in range(grid[0] if at_once is None else at_once):
            self._start_a_program()
        self._go_on()
        self._over.acquire()
        for job in self._jobs:
            job.thread.join()
        if self._wrong is not None:
            raise self._wrong
        for job in self._jobs:
            for one in job.sent:
                one.write()

    def until(self, condition: Callable[[], bool]) -> None:
        """The job that runs waits."""
        me = self._me
        me.until = condition
        self._go_on()
        me.may_run.acquire()
        if self._wrong is not None:
            raise _Stopped

    def all_written(self) -> None:
        """All that the job that runs has sent is in global memory."""
        for one in self._me.sent:
            one.write()
        self._me.sent.clear()

    # Who runs

    @property
    def _me(self) -> _Job:
        return threading.current_thread().job

    def _start_a_program(self) -> None:
        number = next(self._waiting, None)
        if number is not None:
            self._start(_Job(number, "start", self._body))

    def _start(self, job: _Job) -> None:
        def run():
            job.may_run.acquire()
            try:
                if self._wrong is None:
                    job.call()
                    if job.name == "start":
                        self._start_a_program()
            except _Stopped:
                pass
            except BaseException as error:
                error.add_note(f"in {job.name} of program {job.program}")
                self._wrong = self._wrong or error
            job.done = True
            self._go_on()

        self._jobs.append(job)
        job.thread = threading.Thread(target=run, daemon=True)
        job.thread.job = job
        job.thread.start()

    def _go_on(self) -> None:
        """Somebody else, or the same job again, may run."""
        left = [job for job in self._jobs if not job.done]
        if not left:
            self._over.release()
            return
        try:
            ready = left if self._wrong else self._ready(left)
        except Exception as error:
            self._wrong, ready = error, left  # any of them, to be told
        self._draw.choice(ready).may_run.release()

    def _ready(self, left: list[_Job]) -> list[_Job]:
        self._let_some_come()
        while not (ready := [job for job in left if job.until()]):
            if not self._fetches:
                who = ", ".join(f"{job.name} of program {job.program}" for job in left if job.name != "start")
                raise AssertionError(f"these wait for ever: {who}")
            self._one_comes()
        return ready

    def _let_some_come(self) -> None:
        while self._fetches and self._draw.random() < SOON:
            self._one_comes()
        for job in self._jobs:
            for one in job.sent[-2:]:
                if self._draw.random() < SOON:
                    self._draw.choice((one.read, one.write))()

    def _one_comes(self) -> None:
        self._fetches.pop(self._draw.randrange(len(self._fetches)))()

    # What a kernel's text means

    def _read(self, jitted) -> Callable:
        fn = jitted.fn
        space = self._spaces.get(id(fn.__globals__))
        if space is None:
            space = self._spaces[id(fn.__globals__)] = {"range": lambda *ends: map(Int, range(*ends))}
            space |= {name: self._meaning(name, value) for name, value in fn.__globals__.items()}
        return types.FunctionType(fn.__code__, space, fn.__name__, fn.__defaults__, fn.__closure__)

    def _meaning(self, name: str, value):
        if name in self._instead:
            value = self._instead[name]
            if not isinstance(value, KernelInterface):
                return functools.partial(value, self)
        if isinstance(value, constexpr):
            return _given(value.value)
        if isinstance(value, KernelInterface):  # read when it is called: two may call each other
            return lambda *args, **named: self._read(value)(*args, **named)
        return self._meanings.get(id(value), value)

    def _names(self) -> dict[int, object]:
        """By the identity of what a kernel's module has imported."""
        layouts = "Blocked", "DotOperand", "NVMMADistributed", "NVMMAShared", "Slice", "SwizzledShared"
        words = types.SimpleNamespace(
            int32=torch.int32, int64=torch.int64, float16=torch.float16, bfloat16=torch.bfloat16, float32=torch.float32,
            tensor=Int, static_range=range, static_assert=_assert, cast=lambda x, kind: x, cdiv=up,
            program_id=lambda axis: self._me.program, num_programs=lambda axis: Int(self._programs),
            minimum=_of_two(min, torch.minimum), maximum=_of_two(max, torch.maximum), where=_where,
            exp2=torch.exp2, log2=torch.log2,
            sum=lambda x, axis: _scalar(x.sum(axis)), max=lambda x, axis: _scalar(x.amax(axis)),
            arange=lambda first, last, layout=None: of_tile(torch.arange(first, last)),
            zeros=lambda shape, kind, layout=None: of_tile(torch.zeros(shape, dtype=kind)),
            full=lambda shape, value, kind, layout=None: of_tile(torch.full(shape, value, dtype=kind)),
            zeros_like=torch.zeros_like, convert_layout=lambda x, layout: x,
            load=_load, store=_store, to_tensor=_given,
            allocate_shared_memory=_allocate, warp_specialize=self._specialize,
            inline_asm_elementwise=lambda text, constraints, args, **_: self._asm[text](self, *args),
            **{f"{name}Layout": lambda *_, **_named: None for name in layouts},
        )  # fmt: skip
        barriers = types.SimpleNamespace(
            MBarrierLayout=hopper.mbarrier.MBarrierLayout, init=lambda barrier, count: barrier.init(count),
            expect=lambda barrier, count: barrier.hears(1, count), arrive=self._arrive,
            wait=lambda barrier, parity: self.until(lambda: barrier.is_passed(parity)),
        )  # fmt: skip
        copies = types.SimpleNamespace(
            async_copy_global_to_shared=self._fetch, async_copy_shared_to_global=self.send, store_wait=self._until_read
        )
        sync = language.thread_barrier if hasattr(language, "thread_barrier") else language.barrier
        meanings = {
            language: words, triton.language: words, hopper.mbarrier: barriers, hopper.tma: copies,
            hopper.fence_async_shared: _nothing, sync: _nothing, hopper.warpgroup_mma: self._product,
            hopper.warpgroup_mma_wait: self._until_made,
        }  # fmt: skip
        return {id(name): meaning for name, meaning in meanings.items()}

    def _specialize(self, jobs, warps, registers):
        program, begun = self._me.program, len(self._jobs)
        for number, (function, args) in enumerate(jobs):
            self._start(_Job(program, f"job {number}", functools.partial(function, *args)))
        mine = self._jobs[begun : begun + len(jobs)]
        self.until(lambda: all(job.done for job in mine))

    def _arrive(self, barrier, count=1):
        barrier.hears(count, 0)
        self.until(lambda: True)

    def _fetch(self, desc, coord, barrier, to: Memory):
        def come():
            tile = desc.tile(coord)
            to.values.copy_(tile.view(to.shape))
            barrier.hears(0, -tile.numel() * tile.element_size())

        self._fetches.append(come)

    def send(self, desc, coord, tile: Memory, adds: bool = False):
        """`adds`: to what is there."""
        self._me.sent.append(Sent(desc, coord, tile, adds))

    def _until_read(self, pendings: int):
        sent = self._me.sent
        for one in sent[: len(sent) - pendings]:
            one.read()

    def _product(self, a, b, acc, use_acc=True, is_async=False):
        def product():
            left, right = (x.values if isinstance(x, Memory) else x for x in (a, b))
            made = left.float() @ right.float()
            return (acc.made if isinstance(acc, InFlight) else acc) + made if use_acc else made

        found, products = InFlight(product), self._me.products
        products.append(found)
        if self._draw.random() < 0.5:
            _make(products)
        return found if is_async else found.made

    def _until_made(self, pendings: int, deps):
        products = self._me.products
        done = products[: len(products) - pendings]
        _make(done)
        del products[: len(done)]
        found = [x.made if isinstance(x, InFlight) and x not in products else x for x in deps]
        return found[0] if len(found) == 1 else tuple(found)


def _given(value):
    if isinstance(value, TensorDescriptor):
        return Described(value)
    if isinstance(value, torch.Tensor):
        return Pointer(value)
    return Int(value) if type(value) is int else value


def _make(products: list[InFlight]) -> None:
    """In the order in which they were asked for."""
    for one in products:
        one.made  # noqa: B018


def _allocate(kind, shape, layout):
    if isinstance(layout, hopper.mbarrier.MBarrierLayout):
        return Barriers(shape)
    return Memory(torch.full(shape, float("nan") if kind.is_floating_point else -1, dtype=kind), layout)


def _nothing(*_):
    return None


def _assert(condition, message=""):
    assert condition, message


def _scalar(x: Tile):
    return x if x.ndim else Int(x)


def _of_two(numbers: Callable, tiles: Callable) -> Callable:
    def chosen(a, b):
        if isinstance(a, (int, float)) and isinstance(b, (int, float)):
            return _given(numbers(a, b))
        return tiles(torch.as_tensor(a), torch.as_tensor(b))

    return chosen


def _where(condition, a, b):
    if isinstance(condition, bool) and not any(isinstance(x, torch.Tensor) for x in (a, b)):
        return _given(a if condition else b)
    return of_tile(torch.where(torch.as_tensor(condition), a, b))


def _load(pointer: Pointer, mask=None, other=0):
    where = torch.as_tensor(pointer.offset)
    if where.ndim == 0:
        return _scalar(pointer.value)
    mask = torch.ones_like(where, dtype=torch.bool) if mask is None else mask
    found = torch.full(where.shape, other, dtype=pointer.memory.dtype)
    found[mask] = pointer.memory[where[mask]]
    return of_tile(found)


def _store(pointer: Pointer, values, mask=None):
    where = torch.as_tensor(pointer.offset)
    mask = torch.ones_like(where, dtype=torch.bool) if mask is None else mask
    pointer.memory[where[mask]] = values[mask].to(pointer.memory.dtype)
