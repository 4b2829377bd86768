"""An address outside every argument is an error here. On a GPU it reads garbage, and in numpy it ends the process.

The whole storage behind a tensor is allowed, so a kernel may touch memory around a view, as on a GPU.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
import triton.language as tl

__all__ = ["check", "only"]

# Whether a tensor of 64-bit integers may hold addresses of other tensors, which a launch then may touch too.
trust_addresses = True
# (first byte, first byte after, name, bytes an element) of what the running kernel was given; None: anything
_ranges: list[tuple[int, int, str, int]] | None = None


@contextmanager
def only(arguments: Iterable[tuple[str, object]]) -> Iterator[None]:
    """Inside the block, kernels may touch the storages of these named arguments and nothing else."""
    global _ranges
    before, _ranges = _ranges, _of(arguments)
    try:
        yield
    finally:
        _ranges = before


def _of(arguments) -> list[tuple[int, int, str, int]] | None:
    ranges = []
    for name, value in arguments:
        value = getattr(value, "base", value) if not isinstance(value, torch.Tensor | tuple) else value
        value = value.value if isinstance(value, tl.constexpr) else value
        if isinstance(value, tuple | list):
            inner = _of((f"{name}[{i}]", one) for i, one in enumerate(value))
            if inner is None:
                return None
            ranges += inner
        elif isinstance(value, torch.Tensor):
            if trust_addresses and value.dtype in (torch.int64, torch.uint64):
                return None
            storage = value.untyped_storage()
            ranges.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes(), name, value.itemsize))
    return ranges


def check(addresses: np.ndarray, mask: np.ndarray, size: int, action: str) -> None:
    """Raise IndexError when a lane that is not masked touches `size` bytes outside every argument."""
    if _ranges is None:
        return
    # a mask that is the product of a block and a number is one of integers, which numpy would take for places
    used = addresses[np.broadcast_to(mask, addresses.shape).astype(bool)]
    if used.size == 0:
        return
    low, high = int(used.min()), int(used.max()) + size
    if any(first <= low and high <= end for first, end, _, _ in _ranges):
        return
    outside = np.ones(used.shape, dtype=bool)
    for first, end, _, _ in _ranges:
        # used < end: the last bytes of the address space, added to, come out as small numbers
        outside &= ~((used >= first) & (used < end) & (used + np.uint64(size) <= end))
    if not outside.any():
        return
    address = int(used[outside][0])
    distances = [(max(first - address, address + size - end), first, name, item) for first, end, name, item in _ranges]
    _, first, name, item = min(distances)
    count = next(end - start for start, end, other, _ in _ranges if other == name) // item
    raise IndexError(
        f"{action} of {int(outside.sum())} elements outside every argument, the first at element "
        f"{(address - first) // item} of {name}, which has {count}: is a mask missing, or an offset too large "
        "for 32 bits?"
    )
