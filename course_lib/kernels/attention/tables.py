"""Numbers that a kernel reads and that stay on the device as long as the process lives: an order of tiles, say.

Their memory comes from the driver itself. torch's allocator would take it from the memory of whatever is being compiled
or captured just then, where nothing may stay.
"""

import ctypes
import functools

import torch

__all__ = ["Table"]


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class Table:
    """32-bit integers on the current device, to be given to a kernel as a pointer."""

    dtype = torch.int32

    def __init__(self, numbers: list[int]):
        memory = (ctypes.c_int32 * len(numbers))(*numbers)
        address, size = ctypes.c_uint64(), ctypes.c_size_t(ctypes.sizeof(memory))
        _asked("cuMemAlloc_v2", ctypes.byref(address), size)
        _asked("cuMemcpyHtoD_v2", address, memory, size)
        _asked("cuStreamSynchronize", None)  # so little may still be on its way when the copy returns
        self._address = address.value

    def data_ptr(self) -> int:
        return self._address


def _asked(function: str, *args) -> None:
    if wrong := getattr(_driver(), function)(*args):
        raise RuntimeError(f"{function} of the CUDA driver ended with error {wrong}")
