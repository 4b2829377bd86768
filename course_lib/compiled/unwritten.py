"""Uniform registers that machine code for an H100 or H200 reads and nobody wrote: a mistake of the assembler.

ptxas 12.8, which comes with Triton 3.6 and 3.7, loses the descriptor of a product of tensor cores in some kernels: in
attention with tiles of 32 columns, keys by columns and values by rows, with most tiles that one would take. The product
reads shared memory where there is none (triton#11366 has such a kernel). Only machine code tells, no source and no log.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\S*)\s*(.*?)\s*;", re.MULTILINE)
WRITTEN = re.compile(r"UR(\d+)\b")
READ = re.compile(r"(g?desc\[)?UR(\d+)\b")
WRITERS = ("R2UR", "S2UR", "CS2UR", "VOTEU", "REDUX")
BEFORE_IT = re.compile(r"U?PT?\d*,\s*")  # a predicate that such a writer gives besides


@dataclass(frozen=True)
class Instruction:
    at: int
    name: str
    operands: str
    conditional: bool

    @property
    def writes(self) -> set[int]:
        if not self.name.startswith(WRITERS) and not (self.name.startswith("U") and "[" not in self._first):
            return set()
        first = WRITTEN.fullmatch(self._first)
        wide = ".64" in self.name or ".WIDE" in self.name
        return {int(first[1]) + i for i in range(1 + wide)} if first else set()

    @property
    def reads(self) -> set[int]:
        rest = self._operands
        if self.writes:
            rest = rest.partition(",")[2]
        found: set[int] = set()
        for kind, number in READ.findall(rest):
            n = int(number)
            if kind == "gdesc[":  # of two operands the first may lie in registers; then its place is not read
                found |= {n + 2, n + 3}
            else:
                pair = kind or (self.name.startswith("U") and ".64" in self.name)
                found |= {n, n + 1} if pair else {n}
        return found

    @property
    def _operands(self) -> str:
        return BEFORE_IT.sub("", self.operands) if self.name.startswith(WRITERS) else self.operands

    @property
    def _first(self) -> str:
        return self._operands.partition(",")[0].strip()

    @property
    def goes_to(self) -> tuple[int | None, bool]:
        """Where it may jump, and whether the next instruction may follow. Where threads meet, BSYNC, they go on."""
        kind = self.name.partition(".")[0]
        place = re.search(r"0x([0-9a-f]+)", self.operands) if kind in ("BRA", "CALL") else None
        on = kind not in ("BRA", "EXIT", "RET", "BRX") or self.conditional
        return (int(place[1], 16) if place else None), on


def unwritten(sass: str) -> list[str]:
    """Instructions that may read a uniform register before anybody wrote it, as text."""
    return [f"{one.name} {one.operands}" for code in _functions(sass) for one in _too_early(code)]


def _functions(sass: str) -> Iterator[list[Instruction]]:
    for text in re.split(r"^\s*Function : ", sass, flags=re.MULTILINE):
        code = [Instruction(int(m[1], 16), m[2], m[3], "@" in m[0].partition(m[2])[0]) for m in LINE.finditer(text)]
        if code:
            yield code


def _too_early(code: list[Instruction]) -> list[Instruction]:
    places = {one.at: i for i, one in enumerate(code)}
    everything = frozenset(range(64))
    unknown: dict[int, frozenset[int]] = {0: everything}  # before an instruction: what may not have been written
    todo = [0]
    while todo:
        i = todo.pop()
        after = unknown[i] - code[i].writes
        jump, on = code[i].goes_to
        for j in {places.get(jump), i + 1 if on and i + 1 < len(code) else None} - {None}:
            if j not in unknown or not after <= unknown[j]:
                unknown[j] = unknown.get(j, frozenset()) | after
                todo.append(j)
    return [code[i] for i in sorted(unknown) if code[i].reads & unknown[i]]
