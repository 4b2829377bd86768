"""What a launcher asks of the device and of Triton before it chooses a kernel."""

import functools

import torch
import triton

__all__ = ["HOPPER", "capability", "copy_engine", "gluon_is_known", "multiprocessors", "on_hopper"]

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
