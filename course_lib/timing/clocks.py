"""The GPU's clock, power and reasons to slow down, read from the driver's NVML library while work is running."""

import ctypes
from dataclasses import dataclass
from functools import cache

__all__ = ["Clock", "read"]

_SM_CLOCK = 1  # nvmlClockType_t
_REASONS = {  # nvmlClocksEventReasons: the bits that mean "slower than it could be"
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}


@dataclass(frozen=True)
class Clock:
    sm_mhz: int  # multiprocessor clock at this moment
    power_w: float | None  # board power, None where the driver does not tell
    slowed_by: tuple[str, ...]  # why the clock is held down, empty when it is not


def read() -> Clock | None:
    """The current CUDA device's clock, or None where NVML is missing or refuses. Takes well under 1 ms."""
    import torch

    found = _nvml(torch.cuda.current_device())
    if found is None:
        return None
    library, handle = found
    mhz, milliwatt, bits = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetClockInfo(handle, _SM_CLOCK, ctypes.byref(mhz)) != 0:
        return None
    power = library.nvmlDeviceGetPowerUsage(handle, ctypes.byref(milliwatt))
    library.nvmlDeviceGetCurrentClocksThrottleReasons(handle, ctypes.byref(bits))  # leaves 0 where refused
    slowed_by = tuple(name for bit, name in _REASONS.items() if bits.value & bit)
    return Clock(mhz.value, milliwatt.value / 1000 if power == 0 else None, slowed_by)


@cache
def _nvml(index: int):
    """(library, device handle) by UUID: CUDA and NVML may count devices differently."""
    import torch

    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
    except (OSError, AttributeError, RuntimeError):
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() != 0:
        return None
    if library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)) != 0:
        return None
    return library, handle
