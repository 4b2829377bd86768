"""Memory that the referee owns, as a worker opens it: shared memory on a CPU, a device allocation on a GPU.

How the referee makes it: `referee/slabs.py`, which talks to the driver through the lower half of this file.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Sequence

import torch

LAZY_PEER_ACCESS = 1  # the only flag that cuIpcOpenMemHandle knows, and it asks for it
OUT_OF_MEMORY = 2  # of the driver's errors


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
        handle = Handle.from_buffer_copy(bytes.fromhex(described["handle"]))
        driver("cuIpcOpenMemHandle_v2", ctypes.byref(address), handle, ctypes.c_uint(LAZY_PEER_ACCESS))
        self.addresses.append(address)
        return at_address(address.value, described["size"])

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
            driver("cuIpcCloseMemHandle", address)
        self.addresses, self.bytes, self._typed = [], [], {}


# ------------------------------------------------------------------------------------------- the driver


class Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def driver(name: str, *arguments) -> None:
    """One call of CUDA's driver; its error is raised."""
    code = getattr(_driver(), name)(*arguments)
    if code:
        word = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(word))
        kind = torch.OutOfMemoryError if code == OUT_OF_MEMORY else RuntimeError
        raise kind(f"{name}: {(word.value or b'unknown error').decode()}")


class _Memory:
    def __init__(self, address: int, size: int):
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def at_address(address: int, size: int) -> torch.Tensor:
    """So many bytes of the device from there."""
    return torch.as_tensor(_Memory(address, size), device="cuda")
