"""The machine at hand: which tier it is, what it has, and how fast it really is.

Import this before Triton. Triton decides when its own modules are imported whether kernels run on the
GPU or in its interpreter, so the choice cannot be made later.
"""

import csv
import datetime
import hashlib
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from course_lib.table import Table, Tabular, bytes_text

__all__ = [
    "DEVICE",
    "TIER",
    "Ceilings",
    "DeviceError",
    "Machine",
    "ask_apart",
    "cache_folder",
    "ceilings",
    "half",
    "has_bf16",
    "machine",
    "memory_bytes",
    "processor",
    "require",
    "share_of_sizes",
    "take_at_most",
]

MEMORY_LIMIT = "SPEED_OF_LIGHT_GPU_GIB"  # in the environment: a process takes no more of the GPU's memory than this
ALL_SIZES_BYTES = 36 << 30  # of a GPU's memory, from which on nothing is made smaller: cards sold with 40 GB have it


class DeviceError(RuntimeError):
    """The machine, or what it was given, does not fit; the message says what to do."""


def _choose_tier() -> str:
    # device_count asks NVML and makes no CUDA context, so a process that imports this can still fork.
    asked = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on", "y")
    if torch.version.hip and not asked:
        raise DeviceError(
            "Expected a PyTorch for NVIDIA GPUs or for CPUs, found one for AMD GPUs (ROCm "
            f"{torch.version.hip}). Nothing of this course was tried on an AMD GPU: its measurements ask NVIDIA's "
            "driver, and its limits are those of NVIDIA's cards. Set TRITON_INTERPRET=1 before you start Jupyter: "
            "kernels then run in Triton's interpreter, which needs no GPU, and compile_kernel works as well."
        )
    tier = "interpreter" if asked or torch.cuda.device_count() == 0 else "gpu"
    if tier == "interpreter":
        _check_triton_not_imported_compiled()
        os.environ["TRITON_INTERPRET"] = "1"
        from course_lib import interpreter

        interpreter.install()
    return tier


def _check_triton_not_imported_compiled() -> None:
    triton_language = sys.modules.get("triton.language")
    if triton_language is None:
        return
    # Triton's own tl.sum is an InterpretedFunction or a JITFunction, for the life of the process.
    if type(triton_language.sum).__name__ != "InterpretedFunction":
        raise DeviceError(
            "Expected course_lib.device to be imported before triton, because torch sees no GPU here "
            "and Triton must be told so when it starts. Triton was imported first, in GPU mode. "
            "Restart the kernel and make `from course_lib.device import DEVICE` the first import."
        )


TIER = _choose_tier()
DEVICE = "cuda" if TIER == "gpu" else "cpu"


def _memory_limit() -> int | None:
    """Bytes of the GPU that this process may take, if somebody set a limit."""
    text = os.environ.get(MEMORY_LIMIT)
    try:
        return int(float(text) * 2**30) if text else None
    except ValueError:
        raise DeviceError(f"Expected {MEMORY_LIMIT} to be a number of GiB, such as 7; got {text!r}.") from None


def _hold_to_limit() -> None:
    torch.cuda.set_per_process_memory_fraction(min(1.0, _memory_limit() / _card()[0]))


if TIER == "gpu" and _memory_limit():
    # once this process, or a fork of it, starts CUDA: whoever has can fork no more
    torch.cuda._lazy_call(_hold_to_limit)

_told: tuple[int, tuple[int, int]] | None = None


def _card() -> tuple[int, tuple[int, int]]:
    """Its bytes of memory and its capability. This starts CUDA, unless `ask_apart` came before."""
    if _told:
        return _told
    has = torch.cuda.get_device_properties(torch.cuda.current_device())
    return has.total_memory, torch.cuda.get_device_capability()


def ask_apart() -> None:
    """For a process that will fork: have a fork ask for what starts CUDA."""
    global _told
    if TIER == "gpu" and not torch.cuda.is_initialized():
        with multiprocessing.get_context("fork").Pool(1) as pool:
            _told = pool.apply(_card)


def memory_bytes() -> int:
    """Of the GPU, or of the part of it that this process may take."""
    total, _ = _card()
    return min(total, _memory_limit() or total)


@cache
def has_bf16() -> bool:
    """Does this machine compute in bf16? Cards before compute capability 8.0 (T4, RTX 20) do not."""
    return TIER != "gpu" or _card()[1] >= (8, 0)


def half() -> torch.dtype:
    """The 2-byte type to compute in: bf16, or fp16 on a card that has no bf16."""
    return torch.bfloat16 if has_bf16() else torch.float16


def take_at_most(share: float) -> None:
    """Of the GPU's memory: torch gives back what it only holds before this process takes more than this share."""
    if TIER == "gpu":
        torch.cuda.set_per_process_memory_fraction(share * memory_bytes() / _card()[0])


@cache
def share_of_sizes() -> float:
    """What large sizes are multiplied by to fit: 1 from 40 GB on, 1/2 for 24, 1/4 for 12 and 16, 1/8 for 8."""
    if TIER != "gpu":
        return 1.0
    return share_for(memory_bytes())


def share_for(memory_bytes: int) -> float:
    return 2.0 ** min(0, math.floor(math.log2(memory_bytes / ALL_SIZES_BYTES)))


@dataclass(frozen=True)
class Machine(Tabular):
    """What this machine is; None where it cannot be read."""

    name: str  # "NVIDIA H200", or the processor's name
    tier: str  # "gpu" or "interpreter"
    capability: tuple[int, int] | None  # (9, 0)
    multiprocessors: int | None
    memory_bytes: int | None  # of the GPU, or of the host on the interpreter tier
    l2_bytes: int | None
    shared_bytes_per_block: int | None  # the most one block may ask for
    driver: str | None
    torch: str
    triton: str | None
    python: str
    numpy: str | None
    power_limit_w: float | None
    power_w: float | None  # at this moment
    sm_clock_mhz: float | None  # at this moment
    max_sm_clock_mhz: float | None

    def rows(self) -> list[tuple[str, str]]:
        """What a person wants to read, without what is not known."""
        tier = {"gpu": "GPU", "interpreter": "interpreter (no speed, no races, no tensor-core precision)"}
        capability = self.capability and "sm_{}{}".format(*self.capability)
        rows = [
            ("device", self.name),
            ("tier", tier[self.tier]),
            ("compute capability", capability),
            ("multiprocessors", self.multiprocessors),
            ("memory", self.memory_bytes and bytes_text(self.memory_bytes)),
            ("L2 cache", self.l2_bytes and bytes_text(self.l2_bytes)),
            ("shared memory a block", self.shared_bytes_per_block and f"{self.shared_bytes_per_block} B"),
            ("power limit", self.power_limit_w and f"{self.power_limit_w:.0f} W"),
            ("highest SM clock", self.max_sm_clock_mhz and f"{self.max_sm_clock_mhz:.0f} MHz"),
            ("driver", self.driver),
            ("torch", self.torch),
            ("triton", self.triton),
            ("numpy", self.numpy),
            ("python", self.python),
        ]
        return [(name, str(value)) for name, value in rows if value is not None]

    def table(self) -> Table:
        return Table((), self.rows())


@dataclass(frozen=True)
class Ceilings(Tabular):
    """What this machine reaches when it does one thing only, measured here and not quoted."""

    machine: str
    bytes_per_s: float  # a large copy, bytes read plus bytes written
    flops_per_s: dict[str, float]  # "bf16", "fp16", "tf32", "fp32": sustained, not the burst after idle
    launch_s: float  # host time of one Triton launch with five tensors (of one torch op without a GPU)
    cos_per_s: float  # fp32 cosines a second, the whole device
    date: str  # ISO date of the measurement

    def products_per_s(self, name: str) -> float:
        """What a product in Triton can reach at best: fp32's rate where tl.dot uses no tensor cores, and no bf16 is."""
        return self.flops_per_s[name if "bf16" in self.flops_per_s else "fp32"]

    def rows(self) -> list[tuple[str, str]]:
        rates = [(f"matmul {name}", f"{rate / 1e12:.2f} TFLOP/s") for name, rate in self.flops_per_s.items()]
        return [
            ("device", self.machine),
            ("copy", f"{self.bytes_per_s / 1e12:.3f} TB/s read and written"),
            *rates,
            ("launch", f"{self.launch_s * 1e6:.1f} us of host time"),
            ("cosines", f"{self.cos_per_s / 1e9:.1f} G/s, fp32"),
            ("measured", self.date),
        ]

    def table(self) -> Table:
        return Table((), self.rows())


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _nvidia_smi(gpu: str) -> dict[str, str]:
    """One row of nvidia-smi, or nothing where it is missing, slow or refuses."""
    names = ["driver_version", "power.limit", "power.draw", "clocks.sm", "clocks.max.sm"]
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", f"--id={gpu}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        values = next(csv.reader([result.stdout.splitlines()[0]], skipinitialspace=True))
    except (OSError, subprocess.SubprocessError, IndexError, StopIteration):
        return {}
    return dict(zip(names, values, strict=False))


def _number(text: str | None) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):  # "[N/A]", "[Not Supported]", or no row at all
        return None


def _line_after(path: str, label: str) -> str | None:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(label):
                return line.split(":", 1)[1].strip()
    except (OSError, IndexError):
        pass
    return None


def _host_memory_bytes() -> int | None:
    text = _line_after("/proc/meminfo", "MemTotal")
    kib = _number(text.split()[0]) if text else None
    return int(kib * 1024) if kib else None


def processor() -> str:
    """The name of the host's processor, which sets every time of the host, also beside a GPU."""
    return _line_after("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def machine() -> Machine:
    """Read the machine now. Never fails: what cannot be read is None."""
    versions = {
        "torch": torch.__version__,
        "triton": _package_version("triton"),
        "python": platform.python_version(),
        "numpy": _package_version("numpy"),
    }
    if TIER == "interpreter":
        return Machine(
            name=processor(),
            tier=TIER,
            capability=None,
            multiprocessors=None,
            memory_bytes=_host_memory_bytes(),
            l2_bytes=None,
            shared_bytes_per_block=None,
            driver=None,
            power_limit_w=None,
            power_w=None,
            sm_clock_mhz=None,
            max_sm_clock_mhz=None,
            **versions,
        )
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = getattr(properties, "uuid", None)
    live = _nvidia_smi(f"GPU-{uuid}" if uuid else str(torch.cuda.current_device()))
    return Machine(
        name=properties.name,
        tier=TIER,
        capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        memory_bytes=memory_bytes(),
        l2_bytes=getattr(properties, "L2_cache_size", None),
        shared_bytes_per_block=getattr(properties, "shared_memory_per_block_optin", None),
        driver=live.get("driver_version"),
        power_limit_w=_number(live.get("power.limit")),
        power_w=_number(live.get("power.draw")),
        sm_clock_mhz=_number(live.get("clocks.sm")),
        max_sm_clock_mhz=_number(live.get("clocks.max.sm")),
        **versions,
    )


def cache_folder() -> Path:
    """Where measurements and compiled results are kept between runs."""
    chosen = os.environ.get("SPEED_OF_LIGHT_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "speed-of-light"


def ceilings(refresh: bool = False) -> Ceilings:
    """The measured ceilings of this machine: read from the cache, or measured (seconds) and kept."""
    if refresh:
        _ceilings_once.cache_clear()
    return _ceilings_once(refresh)


@cache
def _ceilings_once(refresh: bool) -> Ceilings:
    path = _ceilings_path(machine())
    found = None if refresh else _read_ceilings(path)
    if found is None:
        from course_lib import ceilings as measure

        found = Ceilings(
            machine=machine().name,
            date=datetime.date.today().isoformat(),
            **(measure.on_gpu() if TIER == "gpu" else measure.on_host()),
        )
        write_atomically(path, json.dumps(asdict(found), indent=1))
    return found


def _ceilings_path(here: Machine) -> Path:
    key = (here.name, here.tier, here.driver, here.power_limit_w, here.torch, here.triton)
    digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
    slug = "".join(c if c.isalnum() else "-" for c in here.name.lower()).strip("-")
    return cache_folder() / f"ceilings-{slug}-{digest}.json"


def _read_ceilings(path: Path) -> Ceilings | None:
    """The kept measurement, or None when there is none or the file is damaged."""
    try:
        data = json.loads(path.read_text())
        rates = [data["bytes_per_s"], data["launch_s"], data["cos_per_s"], *data["flops_per_s"].values()]
        names = {field.name for field in fields(Ceilings)}
        sound = set(data) == names and all(isinstance(x, float) and 0 < x < 1e18 for x in rates)
        return Ceilings(**data) if sound and data["flops_per_s"] else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, never half of it. A read-only folder is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".new", delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except OSError:
        pass


def require(*needs) -> None:
    """Refuse early, in plain words, what this machine cannot do.

    A tensor must lie where kernels run here; a dtype is one to *compute* in; a number is bytes of memory.
    """
    for need in needs:
        if isinstance(need, torch.dtype):
            _require_dtype(need)
        elif isinstance(need, torch.Tensor):
            _require_place(need)
        elif isinstance(need, int):
            _require_memory(need)
        else:
            raise TypeError(f"Expected a tensor, a dtype or a number of bytes, got {type(need).__name__}.")


def _require_dtype(dtype: torch.dtype) -> None:
    if TIER == "interpreter" and (dtype == torch.bfloat16 or (dtype.is_floating_point and dtype.itemsize == 1)):
        raise DeviceError(
            f"Expected a type that Triton's interpreter computes in exactly (float32, float16), got {dtype}. "
            "There it is for storage only: load it, convert with .to(tl.float32), compute, and convert back "
            "on store; or run this on a GPU."
        )
    if dtype == torch.bfloat16 and not has_bf16():
        raise DeviceError(
            f"Expected a type that {machine().name} computes in, got {dtype}: cards before compute capability 8.0 have "
            "no bf16. Take torch.float16, or course_lib.device.half(), which is the one that this card has."
        )


def _require_place(tensor: torch.Tensor) -> None:
    if tensor.device.type == DEVICE:
        return
    where = "on the GPU" if TIER == "gpu" else "in Triton's interpreter, on CPU tensors"
    raise DeviceError(
        f"Expected a tensor on {DEVICE!r}, because kernels run {where} here; got one of shape "
        f"{tuple(tensor.shape)} on {str(tensor.device)!r}. Make it with device=DEVICE, or move it with "
        f".to(DEVICE)."
    )


def _require_memory(needed: int) -> None:
    free = _free_bytes()
    if free is not None and needed > free:
        raise DeviceError(
            f"Expected {bytes_text(needed)} of free memory, found {bytes_text(free)}. "
            "Use a smaller size, or free what is held: delete large tensors and restart other kernels."
        )


def _free_bytes() -> int | None:
    if TIER == "gpu":
        return torch.cuda.mem_get_info()[0]
    text = _line_after("/proc/meminfo", "MemAvailable")
    kib = _number(text.split()[0]) if text else None
    return int(kib * 1024) if kib else None
