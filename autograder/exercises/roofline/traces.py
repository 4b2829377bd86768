"""Recorded traces as a profiler would show them, drawn at random: what roofline.profile is asked about.

A host thread opens ranges and launches kernels; a kernel starts when its launch has ended and the kernels before it on
its stream are done. So kernels outlast the range that launched them whenever the device is behind.
All times are multiples of 1/8 microsecond, which float64 adds and subtracts exactly.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field

from autograder.exercise import Draw

TICK = 0.125  # microseconds
MAIN, AUTOGRAD = 1, 2  # threads
COMPUTE, SIDE = 7, 13  # streams


@dataclass
class Recorder:
    """One host with several threads, one device with several streams; all times in ticks."""

    draw: Draw
    kernel_us: tuple[float, float]  # how long kernels take
    host_us: tuple[float, float]  # how long the host takes between two launches
    now: dict[int, int] = field(default_factory=dict)  # thread -> its time
    free: dict[int, int] = field(default_factory=dict)  # stream -> when its last kernel ends
    events: list[dict] = field(default_factory=list)
    correlation: int = 100

    def __post_init__(self):
        self.now[MAIN] = self.draw.integer(10**6, 10**8)  # clocks of traces start anywhere

    def ticks(self, low_us: float, high_us: float) -> int:
        return self.draw.integer(max(1, round(low_us / TICK)), max(1, round(high_us / TICK)))

    def event(self, category: str, name: str, start: int, end: int, **where) -> None:
        self.events.append(
            {"category": category, "name": name, "start_us": start * TICK, "duration_us": (end - start) * TICK, **where}
        )

    @contextmanager
    def range(self, name: str, thread: int = MAIN):
        self.now[thread] += self.ticks(0.5, 2)
        start = self.now[thread]
        yield
        self.now[thread] += self.ticks(0.5, 2)
        self.event("range", name, start, self.now[thread], thread=thread)

    def idle(self, low_us: float, high_us: float, thread: int = MAIN) -> None:
        self.now[thread] += self.ticks(low_us, high_us)

    def launch(self, stream: int = COMPUTE, thread: int = MAIN, kernels: int = 1, kernel_us=None) -> None:
        """`kernels` more than 1 is a graph: one launch, several kernels with its correlation."""
        self.idle(*self.host_us, thread=thread)
        start = self.now[thread]
        self.now[thread] += self.ticks(2, 5)
        self.correlation += self.draw.integer(1, 5)
        name = "cudaGraphLaunch" if kernels > 1 else "cudaLaunchKernel"
        self.event("launch", name, start, self.now[thread], thread=thread, correlation=self.correlation)
        for _ in range(kernels):
            self._kernel(self.now[thread] + self.ticks(0.5, 2), stream, kernel_us or self.kernel_us)

    def _kernel(self, earliest: int, stream: int, kernel_us) -> None:
        start = max(earliest, self.free.get(stream, 0))
        end = self.free[stream] = start + self.ticks(*kernel_us)
        name = self.draw.choice(("gemm", "softmax", "layer_norm", "gelu", "add", "copy"))
        self.event("kernel", name, start, end, stream=stream, correlation=self.correlation)

    def synchronize(self) -> None:
        """The host waits for the device, in every thread."""
        start = self.now[MAIN]
        self.now[MAIN] = max([start, *self.free.values()]) + self.ticks(1, 3)
        self.event("sync", "cudaDeviceSynchronize", start, self.now[MAIN], thread=MAIN)
        for stream in self.free:
            self.free[stream] = 0

    def wait_for(self, thread: int) -> None:
        self.now[MAIN] = max(self.now[MAIN], self.now[thread]) + self.ticks(1, 3)


@dataclass(frozen=True)
class Plan:
    """What a trace contains."""

    kernel_us: tuple[float, float] = (3, 12)
    host_us: tuple[float, float] = (1, 30)
    steps: int = 3
    warm_up: bool = False
    nested: bool = False
    side_stream: bool = False  # kernels of a second stream beside the first
    short_inside_long: bool = False  # a long kernel on one stream, short ones on the other
    autograd_thread: bool = False  # backward launches from a thread of its own
    outside: bool = False  # launches in no range
    graph: bool = False  # one launch of several kernels
    kernels_a_launch: tuple[int, int] = (1, 1)  # every launch in a range is a graph of so many
    long_kernels: bool = False  # one long kernel a range among the others
    pause_us: float = 0  # the host is busy elsewhere after each step
    lead_in_us: float = 0  # the host works before the first launch and after the last
    waits: bool = False  # every step ends with a wait for the device
    shuffled: bool = False


def record(draw: Draw, plan: Plan) -> list[dict]:
    r = Recorder(draw, plan.kernel_us, plan.host_us)
    if plan.warm_up:
        with r.range("warmup"):
            r.idle(500, 2000)
            for _ in range(draw.integer(1, 2)):
                _step(r, plan)
            r.synchronize()
    with r.range("train") if plan.nested else _nothing():
        if plan.lead_in_us:
            with r.range("load"):
                r.idle(plan.lead_in_us, 2 * plan.lead_in_us)
        for _ in range(plan.steps):
            _step(r, plan)
            if plan.outside:
                r.launch()
                r.launch()
        if plan.lead_in_us:
            r.synchronize()
            with r.range("save"):
                r.idle(plan.lead_in_us, 2 * plan.lead_in_us)
    r.synchronize()
    r.events.sort(key=lambda e: e["start_us"])
    if plan.shuffled:
        draw.rng.shuffle(r.events)
    return r.events


@contextmanager
def _nothing():
    yield


def _step(r: Recorder, plan: Plan) -> None:
    with r.range("forward"):
        _launches(r, plan, 2, 5)
        if plan.nested:
            for name in ("attention", "mlp"):
                with r.range(name):
                    _launches(r, plan, 1, 4)
            r.launch()
        if plan.graph:
            r.launch(kernels=r.draw.integer(3, 6))
        if plan.short_inside_long:
            r.launch(SIDE, kernel_us=(200, 300))
            for _ in range(3):
                r.launch(kernel_us=(2, 6))
    if plan.autograd_thread:
        _backward_in_a_thread(r, plan)
    else:
        with r.range("backward"):
            _launches(r, plan, 3, 6)
    with r.range("optimizer"):
        _launches(r, plan, 1, 3)
    if plan.waits:
        r.synchronize()
    if plan.pause_us:
        r.idle(plan.pause_us, 2 * plan.pause_us)


def _launches(r: Recorder, plan: Plan, low: int, high: int, thread: int = MAIN) -> None:
    if plan.long_kernels:
        r.launch(thread=thread, kernel_us=(200, 300))
    for _ in range(r.draw.integer(low, high)):
        r.launch(thread=thread, kernels=r.draw.integer(*plan.kernels_a_launch))
        if plan.side_stream:
            r.launch(SIDE, thread=thread)


def _backward_in_a_thread(r: Recorder, plan: Plan) -> None:
    """The autograd thread launches under its own range, then under none, while the main thread waits in another."""
    r.now[AUTOGRAD] = r.now[MAIN] + r.ticks(1, 3)
    with r.range("backward", thread=AUTOGRAD):
        r.now[MAIN] = r.now[AUTOGRAD] + r.ticks(0.5, 1)
        with r.range("wait"):
            _launches(r, plan, 3, 6, thread=AUTOGRAD)
            r.now[AUTOGRAD] += r.ticks(1, 2)
            r.now[MAIN] = r.now[AUTOGRAD] + r.ticks(60, 90)
    r.launch(thread=AUTOGRAD)  # still inside the main thread's wait
    r.wait_for(AUTOGRAD)
