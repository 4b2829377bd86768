"""How many programs of a kernel one multiprocessor can hold at once, and what runs out first.

NVIDIA calls the share of the possible warps that are resident "occupancy". What a multiprocessor has is in cards.py.
"""

from dataclasses import dataclass

from course_lib.cards import architecture

__all__ = ["Residents", "residents"]

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
    has = architecture(made.arch)
    registers, shared = a_warp * made.num_warps, made.shared_bytes + has.reserved_bytes
    limits = {
        "registers": has.registers // registers,
        "shared memory": has.shared_bytes // max(1, shared),
        "warps": min(has.warps // made.num_warps, has.programs),
    }
    return Residents(min(limits.values()), limits, registers, shared)
