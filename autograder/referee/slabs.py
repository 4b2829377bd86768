"""Memory that the referee owns and a worker opens: sealed shared memory on a CPU, raw device allocations on a GPU.

Both sides use this file, and it imports nothing of ours. A tensor travels as a description: which slab, and where in
it. Torch's own allocator is never used for a slab: opening one of its tensors elsewhere would share the whole block
around it, with whatever else lies there.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import os
from collections.abc import Sequence

import torch

SEAL_SHRINK, SEAL_GROW = 0x2, 0x4
GRANULE = 1 << 21  # a device allocation of whole 2 MiB pages shares no page with another
LAZY_PEER_ACCESS = 1  # the only flag that cuIpcOpenMemHandle knows, and it asks for it
OUT_OF_MEMORY = 2  # of the driver's errors


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

    def __init__(self, size: int):
        self.size = -(-max(size, 1) // GRANULE) * GRANULE
        torch.cuda.init()
        torch.cuda.synchronize()  # makes torch's context the current one
        self.address = ctypes.c_uint64()
        _do("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.size))
        handle = _Handle()
        _do("cuIpcGetMemHandle", ctypes.byref(handle), self.address)
        self.handle = bytes(handle.reserved).hex()
        self.bytes = _at(self.address.value, self.size)

    def tensor(self, elements: int, dtype: torch.dtype) -> torch.Tensor:
        return self.bytes[: elements * dtype.itemsize].view(dtype)

    def close(self) -> None:
        torch.cuda.synchronize()
        _do("cuMemFree_v2", self.address)


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
    kind = str(view.dtype).removeprefix("torch.")
    shape, stride = list(view.shape), list(view.stride())
    return {"$": "tensor", "slab": number, "dtype": kind, "shape": shape, "stride": stride, "at": view.storage_offset()}


# ------------------------------------------------------------------------------------------- the worker's side


class Opened:
    """The slabs of one order, until they are closed."""

    def __init__(self, described: Sequence[dict], descriptors: Sequence[int]):
        self.addresses: list[ctypes.c_uint64] = []
        self.bytes = [self._open(one, descriptors) for one in described]
        self._typed: dict[tuple[int, str], torch.Tensor] = {}

    def _open(self, described: dict, descriptors: Sequence[int]) -> torch.Tensor:
        if "handle" not in described:
            shared = mmap.mmap(descriptors[described["descriptor"]], described["size"])
            return torch.frombuffer(shared, dtype=torch.uint8)
        torch.cuda.init()
        torch.cuda.synchronize()
        address = ctypes.c_uint64()
        handle = _Handle.from_buffer_copy(bytes.fromhex(described["handle"]))
        _do("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(LAZY_PEER_ACCESS))
        self.addresses.append(address)
        return _at(address.value, described["size"])

    def tensor(self, described: dict) -> torch.Tensor:
        key = described["slab"], described["dtype"]
        if key not in self._typed:
            self._typed[key] = self.bytes[key[0]].view(getattr(torch, key[1]))
        return self._typed[key].as_strided(described["shape"], described["stride"], described["at"])

    def touch(self) -> None:
        """Read one byte of each, so that what a device does on first use is done."""
        for whole in self.bytes:
            whole[:1].clone()
        if self.addresses:
            torch.cuda.synchronize()

    def close(self) -> None:
        """Device memory is unmapped, so that the referee may free it; shared memory lives as long as its tensors."""
        if self.addresses:
            torch.cuda.synchronize()
        for address in self.addresses:
            _do("cuIpcCloseMemHandle", address)
        self.addresses, self.bytes, self._typed = [], [], {}


# ------------------------------------------------------------------------------------------- the driver


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _do(name: str, *arguments) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code:
        word = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(word))
        kind = torch.OutOfMemoryError if code == OUT_OF_MEMORY else RuntimeError
        raise kind(f"{name}: {(word.value or b'unknown error').decode()}")


def node_of_gpu() -> int:
    """N of /dev/nvidiaN for the GPU in use; CUDA's own count depends on which GPUs it may see."""
    place = ctypes.create_string_buffer(32)
    torch.cuda.init()
    _do("cuDeviceGetPCIBusId", place, len(place), torch.cuda.current_device())
    try:
        with open(f"/proc/driver/nvidia/gpus/{place.value.decode().lower()}/information") as told:
            return next(int(line.split()[-1]) for line in told if line.startswith("Device Minor"))
    except (OSError, StopIteration):  # a container that hides the driver's files
        return torch.cuda.current_device()


class _Memory:
    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _at(address: int, size: int) -> torch.Tensor:
    return torch.as_tensor(_Memory(address, size), device="cuda")
