"""How many programs of a kernel one multiprocessor can hold at once, and what runs out first.

NVIDIA calls the share of the possible warps that are resident "occupancy". Sizes of sm_80 and sm_90 are those of the
CUDA programming guide, "Compute capabilities".
"""

from dataclasses import dataclass

__all__ = ["REGISTERS", "SHARED_BYTES", "WARPS", "Residents", "residents"]

REGISTERS = 64 * 1024  # of 4 bytes, a multiprocessor; sm_80 and sm_90
WARPS = 64
PROGRAMS = 32
SHARED_BYTES = {80: 164 * 1024, 90: 228 * 1024}
RESERVED_BYTES = 1024  # of shared memory, taken by the system for every program
REGISTERS_AT_ONCE = 256  # a warp gets registers in this many


@dataclass(frozen=True)
class Residents:
    programs: int  # at once on one multiprocessor; 0 when not even one fits
    limits: dict[str, int]  # "registers", "shared memory", "warps" -> how many programs each would allow
    registers: int  # that one program takes
    shared_bytes: int  # that one program takes, the system's part included

    @property
    def limit(self) -> str:
        """What runs out first; several where they tie."""
        return " and ".join(name for name, most in self.limits.items() if most == self.programs)


def residents(made) -> Residents:
    """`made`: what `compile_kernel` returned, or anything with its registers, shared_bytes, num_warps and arch."""
    a_warp = -(-made.registers * 32 // REGISTERS_AT_ONCE) * REGISTERS_AT_ONCE
    registers, shared = a_warp * made.num_warps, made.shared_bytes + RESERVED_BYTES
    limits = {
        "registers": REGISTERS // registers,
        "shared memory": SHARED_BYTES[made.arch] // shared,
        "warps": min(WARPS // made.num_warps, PROGRAMS),
    }
    return Residents(min(limits.values()), limits, registers, shared)
