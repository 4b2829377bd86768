"""Cards that students have: what one program may take there, and what the data sheet promises.

Two kinds of facts. Limits belong to an architecture and are the same on every card of it: the CUDA programming guide,
"Compute capabilities". Rates, memory and the number of multiprocessors belong to a card: its data sheet, without
sparsity, with sums in fp32 (GeForce cards do these at half the rate of sums in fp16). A data sheet is no measurement:
an H200 reaches 86 % of its bandwidth and 66 % of its rate for bf16.
"""

from dataclasses import dataclass

__all__ = ["ARCHITECTURES", "CARDS", "Architecture", "Card", "architecture", "card", "sold_as"]

KIB = 1024


@dataclass(frozen=True)
class Architecture:
    """What every card of one compute capability has."""

    number: int  # 90 for sm_90
    name: str
    shared_bytes: int  # of shared memory, a multiprocessor
    shared_limit_bytes: int  # of it, what one program may ask for; the compiler does not check it, the launch does
    reserved_bytes: int  # of it, what the system takes for every program
    warps: int  # resident on a multiprocessor
    programs: int  # resident on a multiprocessor
    bf16: bool  # does it compute in bf16?
    tensor_cores: bool  # does Triton's tl.dot become tensor-core instructions? Those of Turing it does not use
    copy_engine: bool  # TMA
    registers: int = 64 * 1024  # of 4 bytes, a multiprocessor
    registers_a_thread: int = 255
    threads_a_program: int = 1024

    @property
    def capability(self) -> tuple[int, int]:
        return divmod(self.number, 10)


def _made(number: int, name: str, shared_kib: int, warps: int, programs: int) -> Architecture:
    turing = number < 80
    reserved = 0 if turing else KIB
    return Architecture(
        number, name, shared_kib * KIB, shared_kib * KIB - reserved, reserved, warps, programs,
        bf16=not turing, tensor_cores=not turing, copy_engine=number >= 90,
    )  # fmt: skip


ARCHITECTURES = {
    one.number: one
    for one in (
        _made(75, "Turing", 64, 32, 16),
        _made(80, "Ampere", 164, 64, 32),
        _made(86, "Ampere", 100, 48, 16),
        _made(89, "Ada", 100, 48, 24),
        _made(90, "Hopper", 228, 64, 32),
        _made(100, "Blackwell", 228, 64, 32),
        _made(103, "Blackwell Ultra", 228, 64, 32),
        _made(120, "Blackwell", 100, 48, 24),
    )
}


@dataclass(frozen=True)
class Card:
    name: str
    arch: int
    multiprocessors: int
    memory_gb: float  # 10^9 bytes, as sold
    l2_mib: float
    bytes_per_s: float
    flops_per_s: dict[str, float]  # "bf16", "fp16", "tf32" of tensor cores; "fp32" without them


def _card(name, arch, multiprocessors, memory_gb, l2_mib, gb_per_s, half, fp32, tf32=None) -> Card:
    """`half`, `tf32`, `fp32`: TFLOP/s of 2-byte types, of tf32 (a half of that where None), and of fp32."""
    tera = {"fp16": half, "tf32": half / 2 if tf32 is None else tf32, "fp32": fp32}
    if ARCHITECTURES[arch].bf16:
        tera["bf16"] = half
    return Card(
        name, arch, multiprocessors, memory_gb, l2_mib, gb_per_s * 1e9, {of: rate * 1e12 for of, rate in tera.items()}
    )  # fmt: skip


CARDS = {
    one.name: one
    for one in (
        _card("T4", 75, 40, 16, 4, 320, 65, 8.1, tf32=8.1),  # no tf32: fp32 stays fp32
        _card("RTX 2080 Ti", 75, 68, 11, 5.5, 616, 53.8, 13.4, tf32=13.4),
        _card("A100", 80, 108, 40, 40, 1555, 312, 19.5),
        _card("A10", 86, 72, 24, 6, 600, 125, 31.2),
        _card("RTX 3060", 86, 28, 12, 3, 360, 25.5, 12.7),
        _card("RTX 3090", 86, 82, 24, 6, 936, 71, 35.6),
        _card("L4", 89, 58, 24, 48, 300, 121, 30.3),
        _card("RTX 4060", 89, 24, 8, 24, 272, 30.2, 15.1),
        _card("RTX 4090", 89, 128, 24, 72, 1008, 165.2, 82.6),
        _card("H100", 90, 132, 80, 50, 3350, 989, 67),
        _card("H200", 90, 132, 141, 60, 4800, 989, 67),
        _card("B200", 100, 148, 180, 126, 8000, 2250, 75),
        _card("B300", 103, 148, 288, 126, 8000, 2250, 75),
        _card("RTX 5060", 120, 30, 8, 32, 448, 38.4, 19.2),
        _card("RTX 5090", 120, 170, 32, 96, 1792, 209.5, 104.8),
    )
}


def architecture(which: int | str) -> Architecture:
    """By its number, 90, or by a card of it, "H200"."""
    found = CARDS[which].arch if which in CARDS else which
    if found not in ARCHITECTURES:
        known = ", ".join(f"{number} ({sold_as(number)})" for number in ARCHITECTURES)
        raise ValueError(
            f"Expected the name of a card ({', '.join(CARDS)}) or an architecture, {known}; got {which!r}."
        )
    return ARCHITECTURES[found]


def card(name: str) -> Card:
    if name not in CARDS:
        raise ValueError(f"Expected one of {', '.join(CARDS)}, got {name!r}.")
    return CARDS[name]


def sold_as(number: int) -> str:
    """The cards of an architecture as people know them: "H100, H200"."""
    return ", ".join(one.name for one in CARDS.values() if one.arch == number)
