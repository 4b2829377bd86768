"""What a launcher asks of the device and of Triton before it chooses a kernel."""

import functools
from dataclasses import dataclass

import torch
import triton

__all__ = ["HOPPER", "Limits", "capability", "copy_engine", "gluon_is_known", "limits", "multiprocessors", "on_hopper"]

HOPPER = (9, 0)  # H100 and H200. wgmma is an instruction of this architecture alone; Blackwell has others
# Gluon is experimental: names, defaults and meanings change between releases. The tests have seen these two.
GLUON_SEEN = ("3.6", "3.7")


@functools.cache
def capability(device: torch.device) -> tuple[int, int] | None:
    """Compute capability, such as (9, 0); None without a GPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def on_hopper(device: torch.device) -> bool:
    return capability(device) == HOPPER


def copy_engine(device: torch.device) -> bool:
    """Does the device have a copy engine (TMA)? Compute capability 9.0 and later do; the interpreter plays one."""
    return device.type != "cuda" or capability(device) >= HOPPER


@functools.cache
def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 3  # the interpreter runs programs one after the other; 3 make each walk over several tiles
    return torch.cuda.get_device_properties(device).multi_processor_count


@dataclass(frozen=True)
class Limits:
    """What programs may have on a device, as its driver says."""

    capability: tuple[int, int]
    shared_bytes: int  # of shared memory, one program
    shared_bytes_in_all: int  # all programs of a multiprocessor
    registers: int  # all programs of a multiprocessor
    warps: int  # all programs of a multiprocessor

    @property
    def measured(self) -> bool:
        """Is it of the architecture that the tables were measured on?"""
        return self.capability == HOPPER

    @property
    def tensor_cores(self) -> bool:
        """Does tl.dot run on tensor cores? Triton does not use those before compute capability 8.0."""
        return self.capability >= (8, 0)

    @property
    def products_read_shared(self) -> bool:
        """Do tensor cores read operands in shared memory (wgmma, tcgen05)? Others read them in registers (mma)."""
        return HOPPER <= self.capability < (12, 0)


@functools.cache
def limits(device: torch.device) -> Limits:
    """Of a GPU."""
    has = torch.cuda.get_device_properties(device)
    return Limits(
        (has.major, has.minor),
        has.shared_memory_per_block_optin,
        has.shared_memory_per_multiprocessor,
        has.regs_per_multiprocessor,
        has.max_threads_per_multi_processor // 32,
    )


@functools.cache
def gluon_is_known() -> bool:
    """Is this a Triton whose Gluon the hand-scheduled kernels are written for? Where it is not, plain Triton runs."""
    if ".".join(triton.__version__.split(".")[:2]) not in GLUON_SEEN:
        return False
    try:
        from course_lib.kernels import rings  # noqa: F401
    except (ImportError, AttributeError):  # a build without Gluon, or with another Gluon than its version says
        return False
    return True
