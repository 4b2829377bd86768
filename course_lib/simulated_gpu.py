"""A pretend GPU with a clock of its own, so that a timer can be written, and judged, without a GPU.

`DeviceModel` is the device and knows the truth; the judge of a timer keeps it. `SimulatedGPU` is given to the timer.
Its methods take and return plain numbers and names, and each call is one message, so that the two may live in
different processes. Time here is virtual: nothing waits, a call costs microseconds of real time.

What the device does, as a real one:
- `launch` returns when the host has handed the work over; the work runs later, in order. The queue holds so many
  entries and no more: then the host waits.
- The first launch of a kernel compiles it on the host, for a long time.
- A kernel that runs again on data that is still in the cache is faster; another kernel or a sweep empties it.
- After a pause the clock is low and rises while there is work.
- Now and then another process takes the device for a while. Of any five runs in a row of the same kernel (or of five
  sweeps) it slows down one at most, so chance cannot make many of the samples slow that a timer takes in a row.
- An event is stamped when the device reaches it, on a clock that ticks and is a little noisy. Writing the stamp keeps
  the device for a moment, so two events with nothing between them lie that moment apart.
"""

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

__all__ = ["PITFALLS", "PRESETS", "DeviceModel", "SimulatedGPU", "Traits", "vary"]

APART = 5  # of so many runs in a row of the same work another process slows down one at most


@dataclass(frozen=True)
class Traits:
    launch_s: float = 5e-6  # host time of one launch
    command_s: float = 1e-6  # host time of any other call: record, flush_cache, reading a clock
    latency_s: float = 2e-6  # from the host's call until an idle device begins
    queue_depth: int = 1024  # entries that may wait before the host does
    compile_s: float = 0.0  # host time that the first launch of each kernel adds
    flush_s: float = 80e-6  # device time of one sweep of the cache
    cache_gain: float = 1.0  # how many times faster a kernel runs on data it left in the cache
    idle_speed: float = 1.0  # speed of a device that has rested, as a share of its sustained speed
    ramp_s: float = 0.03  # work until the sustained speed is reached
    decay_s: float = 0.01  # rest after which the clock is low again
    outlier_rate: float = 0.0  # share of runs that another process slows down; at most 1 / APART
    outlier_factor: float = 8.0  # by how much
    noise: float = 0.0  # relative standard deviation of a run
    timer_noise_s: float = 0.0  # standard deviation of an event's stamp
    resolution_s: float = 1e-9  # tick of the event clock
    event_s: float = 0.0  # device time of an event, after its stamp


class SimulatedGPU:
    """What a timer may use. All times are seconds."""

    __slots__ = ("_send",)

    def __init__(self, send: Callable):
        """`send(name, *numbers_or_names)` carries one call to the model and returns its answer."""
        self._send = send

    def launch(self, kernel: str) -> None:
        """Queue one run of `kernel`, always on the same data. Returns before it has run."""
        self._send("launch", kernel)

    def flush_cache(self) -> None:
        """Queue a sweep of the whole cache. The sweep takes device time as well."""
        self._send("flush_cache")

    def record(self) -> int:
        """Queue an event and return its number; the device stamps it when everything before it is done."""
        return self._send("record")

    def elapsed(self, start: int, end: int) -> float:
        """Seconds between two events; both must have happened, so `synchronize` first."""
        return self._send("elapsed", start, end)

    def synchronize(self) -> None:
        """Let the host wait until the device has nothing left to do."""
        self._send("synchronize")

    def host_time(self) -> float:
        """The host's clock."""
        return self._send("host_time")

    def sleep(self, seconds: float) -> None:
        """Let the host do nothing for a while."""
        self._send("sleep", seconds)


class DeviceModel:
    """The device behind a SimulatedGPU, with the truth about its kernels."""

    CALLS = ("elapsed", "flush_cache", "host_time", "launch", "record", "sleep", "synchronize")

    def __init__(
        self, kernels: Mapping[str, float], traits: Traits, seed: int = 0, limit_s: float = 60.0, limit: int = 200_000
    ):
        """`kernels`: name -> seconds of one run, cold cache, sustained clock. Everything random follows `seed`.

        A timer that needs more than `limit_s` virtual seconds or `limit` calls is stopped.
        """
        if traits.outlier_rate > 1 / APART:
            raise ValueError(f"outlier_rate {traits.outlier_rate:g}: at most one run in {APART} can be slowed down")
        self.traits, self.kernels = traits, dict(kernels)
        self.limit_s, self.limit, self.calls = limit_s, limit, 0
        self._random = random.Random(seed)
        self._host = self._random.uniform(100.0, 1000.0)  # like any clock, it does not begin at zero
        self._began = self._host
        self._free = self._host  # when the device has done all it was given
        self._worked_until = self._host  # the same for kernels and sweeps alone: an event is no work for the clock
        self._worked = 0.0  # seconds of work since the device last rested
        self._queue: deque[float] = deque()  # when each waiting entry will be done
        self._compiled: set[str] = set()
        self._cached: str | None = None  # whose data the cache holds
        self._undisturbed: dict[str | None, int] = {}  # runs since one was slowed down, of each kernel and of sweeps
        self._events: list[tuple[float, float]] = []  # (when it happens, what its stamp says)

    def truth(self, kernel: str) -> float:
        """Seconds of one run: cold cache, sustained clock, nobody else on the device, no waiting."""
        return self.kernels[kernel]

    @property
    def seconds(self) -> float:
        """Virtual time that has passed on the host."""
        return self._host - self._began

    def handle(self) -> SimulatedGPU:
        return SimulatedGPU(self.call)

    def call(self, name: str, *values):
        """One message from a timer. Raises RuntimeError, with a sentence, for anything that is not allowed."""
        if name not in self.CALLS:
            raise RuntimeError(f"this device has no {name!r}; it has {', '.join(self.CALLS)}")
        self.calls += 1
        if self.calls > self.limit or self.seconds > self.limit_s:
            raise RuntimeError(
                f"stopped after {self.calls - 1} calls and {self.seconds:.1f} virtual seconds: does the timer end?"
            )
        self._host += self.traits.command_s
        return getattr(self, f"_{name}")(*values)

    def _launch(self, kernel: str) -> None:
        if kernel not in self.kernels:
            raise RuntimeError(f"no kernel {kernel!r} here; there is {', '.join(sorted(self.kernels))}")
        if kernel not in self._compiled:
            self._compiled.add(kernel)
            self._host += self.traits.compile_s
        self._host += max(0.0, self.traits.launch_s - self.traits.command_s)
        work = self.kernels[kernel]
        if self._cached == kernel:
            work /= self.traits.cache_gain
        self._cached = kernel
        self._run(work, kernel)

    def _flush_cache(self) -> None:
        self._cached = None
        self._run(self.traits.flush_s, None)

    def _record(self) -> int:
        self._wait_for_room()
        happens = max(self._free, self._host + self.traits.latency_s)
        if self.traits.event_s:
            self._free = happens + self.traits.event_s
        self._queue.append(happens + self.traits.event_s)
        stamp = happens + self._random.gauss(0.0, 1.0) * self.traits.timer_noise_s
        tick = self.traits.resolution_s
        self._events.append((happens, stamp // tick * tick))
        return len(self._events) - 1

    def _elapsed(self, start: int, end: int) -> float:
        for event in (start, end):
            if isinstance(event, bool) or not isinstance(event, int) or not 0 <= event < len(self._events):
                raise RuntimeError(f"{event!r} is no event: record() returns them")
            if self._events[event][0] > self._host:
                raise RuntimeError(f"event {event} has not happened yet: the device is behind; synchronize first")
        return self._events[end][1] - self._events[start][1]

    def _synchronize(self) -> None:
        last = self._queue[-1] if self._queue else self._host
        self._host = max(self._host, last)
        self._queue.clear()

    def _host_time(self) -> float:
        return self._host

    def _sleep(self, seconds: float) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= self.limit_s:
            raise RuntimeError(f"cannot sleep {seconds!r} seconds")
        self._host += seconds

    def _disturbed(self, kernel: str | None) -> bool:
        """Whether another process slows down this run of a kernel, or this sweep."""
        rate, since = self.traits.outlier_rate, self._undisturbed.get(kernel, APART)
        # After a slow run the next APART - 1 are not slow. The other runs are slow more often, which keeps the rate.
        disturbed = self._random.random() * (1 - (APART - 1) * rate) < rate and since >= APART - 1
        self._undisturbed[kernel] = 0 if disturbed else since + 1
        return disturbed

    def _run(self, work: float, kernel: str | None) -> None:
        """Put work on the queue; its place in time is already certain, since the queue is in order."""
        self._wait_for_room()
        start = max(self._free, self._host + self.traits.latency_s)
        if start - self._worked_until > self.traits.decay_s:
            self._worked = 0.0
        work *= max(0.1, 1.0 + self._random.gauss(0.0, 1.0) * self.traits.noise)
        took = self._at_current_clock(work)
        if self._disturbed(kernel):
            took *= self.traits.outlier_factor
        self._worked += took
        self._free = self._worked_until = start + took
        self._queue.append(self._free)

    def _at_current_clock(self, work: float) -> float:
        """Seconds that `work` takes. The speed rises in a straight line over `ramp_s` seconds of work."""
        idle, ramp, left = self.traits.idle_speed, self.traits.ramp_s, self.traits.ramp_s - self._worked
        if left <= 0.0 or idle >= 1.0:
            return work
        speed, slope = 1.0 - (1.0 - idle) * left / ramp, (1.0 - idle) / ramp
        in_ramp = left * (speed + 1.0) / 2  # work that is done by the time the ramp ends
        if work >= in_ramp:
            return left + work - in_ramp
        return ((speed * speed + 2 * slope * work) ** 0.5 - speed) / slope

    def _wait_for_room(self) -> None:
        queue = self._queue
        while queue and queue[0] <= self._host:
            queue.popleft()
        if len(queue) >= self.traits.queue_depth:
            self._host = queue.popleft()


_CALM = {"noise": 0.005, "timer_noise_s": 20e-9, "resolution_s": 32e-9}

# Devices with one difficulty each: the one that a timer fails on says what the timer forgets.
PITFALLS: dict[str, Traits] = {
    "asynchrony": Traits(**_CALM),
    "compile": Traits(**_CALM, compile_s=0.25),
    "cache": Traits(**_CALM, cache_gain=1.7),
    "ramp": Traits(**_CALM, idle_speed=0.5, ramp_s=0.06),
    "outliers": Traits(**_CALM, outlier_rate=0.04, outlier_factor=10.0),
    "slow_host": Traits(**_CALM, launch_s=60e-6, flush_s=25e-6, command_s=2e-6),
    "events": Traits(**_CALM, event_s=4e-6),  # an H200's pair: 2.9 us
}

# Whole devices, with everything at once.
PRESETS: dict[str, Traits] = {
    **PITFALLS,
    "datacentre": Traits(
        **_CALM, compile_s=0.4, cache_gain=1.5, idle_speed=0.6, ramp_s=0.03, outlier_rate=0.005, launch_s=10e-6,
        event_s=1.3e-6,
    ),
    "laptop": Traits(
        noise=0.02, timer_noise_s=0.1e-6, resolution_s=0.25e-6, compile_s=0.9, cache_gain=2.0, flush_s=300e-6,
        idle_speed=0.35, ramp_s=0.15, decay_s=0.005, outlier_rate=0.03, outlier_factor=4.0, launch_s=15e-6,
        queue_depth=256, event_s=2e-6,
    ),
    "shared": Traits(
        noise=0.03, timer_noise_s=50e-9, resolution_s=32e-9, compile_s=0.4, cache_gain=1.4, idle_speed=0.8,
        outlier_rate=0.15, outlier_factor=3.0, launch_s=45e-6, flush_s=40e-6, command_s=2e-6, queue_depth=512,
        event_s=1.5e-6,
    ),
}  # fmt: skip


def vary(traits: Traits, seed: int, by: float = 0.25) -> Traits:
    """The same device with every number moved by up to `by`, so that no number can be learnt by heart.

    What is off stays off, and a speed or a share stays below 1.
    """
    rng, changed = random.Random(seed), {}
    for f in fields(traits):
        old = getattr(traits, f.name)
        new = old * rng.uniform(1 - by, 1 + by)
        if f.name == "queue_depth":
            new = round(new)
        elif f.name in ("cache_gain", "outlier_factor"):
            new = 1 + (old - 1) * rng.uniform(1 - by, 1 + by)
        elif f.name == "idle_speed":
            new = 1 - (1 - old) * rng.uniform(1 - by, 1 + by)
        changed[f.name] = new
    return replace(traits, **changed)
