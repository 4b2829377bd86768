"""Memory that the referee owns and a worker opens: sealed shared memory on a CPU, raw device allocations on a GPU.

A tensor travels as a description: which slab, and where in it. Torch's own allocator is never used for a slab: opening
one of its tensors elsewhere would share the whole block around it, with whatever else lies there.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
from collections.abc import Sequence

import torch

from autograder.inside.slabs import Handle, at_address, driver
from autograder.inside.wire import TAG, name_of

SEAL_SHRINK, SEAL_GROW = 0x2, 0x4
GRANULE = 1 << 21  # a device allocation of whole 2 MiB pages shares no page with another


class HostSlab:
    """Memory with a descriptor that can be sent to a worker; of a size that nobody can change."""

    def __init__(self, size: int):
        self.size = -(-max(size, 1) // 16) * 16
        self.descriptor = os.memfd_create("referee", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, self.size)
        # a file that shrank would kill whoever reads its mapping
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEAL_SHRINK | SEAL_GROW)
        self.bytes = torch.frombuffer(mmap.mmap(self.descriptor, self.size), dtype=torch.uint8)

    def tensor(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return self.bytes[: elements * dtype.itemsize].view(dtype)

    def close(self) -> None:
        os.close(self.descriptor)


class DeviceSlab:
    """Device memory whose handle can be sent to a worker. It starts with whatever lay there before: fill it."""

    descriptor = None  # a handle is a string; it travels in the message
    held = 0  # bytes of all that are open

    def __init__(self, size: int):
        self.size = -(-max(size, 1) // GRANULE) * GRANULE
        torch.cuda.init()
        torch.cuda.synchronize()  # makes torch's context the current one
        self.address = ctypes.c_uint64()
        driver("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.size))
        DeviceSlab.held += self.size
        handle = Handle()
        driver("cuIpcGetMemHandle", ctypes.byref(handle), self.address)
        self.handle = bytes(handle.reserved).hex()
        self.bytes = at_address(self.address.value, self.size)

    def tensor(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return self.bytes[: elements * dtype.itemsize].view(dtype)

    def close(self) -> None:
        torch.cuda.synchronize()
        driver("cuMemFree_v2", self.address)
        DeviceSlab.held -= self.size


Slab = HostSlab | DeviceSlab


def slab(size: int, device: str) -> Slab:
    return DeviceSlab(size) if device == "cuda" else HostSlab(size)


def describe_slabs(slabs: Sequence[Slab]) -> tuple[list[dict], list[int]]:
    """What goes into the message, and the descriptors that go beside it. What fills them has been done by then."""
    if any(one.descriptor is None for one in slabs):
        torch.cuda.synchronize()
    described, descriptors = [], []
    for one in slabs:
        if one.descriptor is None:
            described.append({"handle": one.handle, "size": one.size})
        else:
            described.append({"descriptor": len(descriptors), "size": one.size})
            descriptors.append(one.descriptor)
    return described, descriptors


def describe_tensor(view: torch.Tensor, number: int) -> dict:
    """Where a tensor lies in the slab of that number."""
    place = {"slab": number, "dtype": name_of(view.dtype), "at": view.storage_offset()}
    return {TAG: "placed", **place, "shape": list(view.shape), "stride": list(view.stride())}


def node_of_gpu() -> int:
    """N of /dev/nvidiaN for the GPU in use; CUDA's own count depends on which GPUs it may see."""
    place = ctypes.create_string_buffer(32)
    torch.cuda.init()
    driver("cuDeviceGetPCIBusId", place, len(place), torch.cuda.current_device())
    try:
        with open(f"/proc/driver/nvidia/gpus/{place.value.decode().lower()}/information") as told:
            return next(int(line.split()[-1]) for line in told if line.startswith("Device Minor"))
    except (OSError, StopIteration):  # a container that hides the driver's files
        return torch.cuda.current_device()
