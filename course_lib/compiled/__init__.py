"""Compile a kernel for a GPU that need not be here, and read what the compiler made of it.

It works on any Linux machine: Triton's real compiler runs, for any architecture of course_lib/cards.py, down to
machine code, and says how many registers and how much shared memory the kernel needs and which instructions
it became. It does not show that the kernel runs, or that it is fast.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path

from course_lib.cards import Architecture, architecture, sold_as
from course_lib.compiled.source import describe
from course_lib.compiled.unwritten import unwritten
from course_lib.device import cache_folder, write_atomically
from course_lib.table import Table, Tabular

__all__ = ["CompileError", "Compiled", "compile_kernel", "why_not", "why_not_each"]

SECONDS = 120  # a kernel compiles in 0.1-5 s; unrolled loops can take for ever
_WORKER = Path(__file__).with_name("worker.py")


class CompileError(Exception):
    """The kernel does not compile; the message holds the line of the kernel and what is wrong with it."""

    def __init__(self, message: str, file: str | None = None, line: int | None = None, source: str = ""):
        self.file, self.line, self.source = file, line, source
        where = f"line {line} of {file}: {source}\n  " if line else ""
        super().__init__(where + message)


@dataclass(frozen=True)
class Compiled(Tabular):
    """What the compiler made of a kernel."""

    name: str
    arch: int  # 90 for sm_90
    registers: int  # a thread, at most 255
    spills_bytes: int  # a thread: registers that did not fit and live in memory
    shared_bytes: int  # a block
    shared_limit_bytes: int  # what a block may have on this architecture
    fits: bool  # shared_bytes <= shared_limit_bytes
    num_warps: int
    num_stages: int
    instructions: dict[str, int]  # kind -> how often it stands in the PTX
    ptx: str = field(repr=False)  # thousands of lines
    sass: str | None = field(repr=False)  # machine code as text, None where cuobjdump is missing
    warnings: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        used = ", ".join(f"{name} {count}" for name, count in self.instructions.items() if count)
        fits = "fits" if self.fits else "does not fit"
        return [
            ("kernel", f"{self.name}, {self.num_warps} warps, {self.num_stages} stages"),
            ("compiled for", f"sm_{self.arch}: {sold_as(self.arch)}"),
            ("registers a thread", str(self.registers)),
            ("spilled bytes a thread", str(self.spills_bytes)),
            ("shared memory a block", f"{self.shared_bytes} of {self.shared_limit_bytes} B, {fits}"),
            ("instructions", used or "none of those counted"),
            *(("warning", text) for text in self.warnings),
        ]

    def table(self) -> Table:
        return Table((), self.rows())


def compile_kernel(
    fn,
    signature: dict[str, str | tuple],
    constexprs: dict | None = None,
    arch: int | str = 90,
    num_warps: int = 4,
    num_stages: int = 3,
    divisible_by_16: bool = True,
    max_registers: int | None = None,
) -> Compiled:
    """Compile a `@triton.jit` or `@gluon.jit` function, or `(path or text of a source, name of the kernel in it)`.

    `signature` gives the type of every argument that is not constexpr: "*fp16" (pointer), "i32", "fp32",
    "tensordesc<fp16[128, 64]>", or for a tuple the type of each element, where a number in the place of a type is a
    constant, as a launch makes one of 1: ("i64", "i32", 1). `constexprs` gives the values of the other arguments. With
    `divisible_by_16` pointers and integers are taken as multiples of 16, as Triton finds them in aligned tensors of
    round sizes. `max_registers` a thread, where a launch sets a limit. `arch` is an architecture, 90, or a card, "T4".
    """
    number = architecture(arch).number
    request = describe(fn, signature, constexprs or {})
    request |= {"arch": number, "num_warps": num_warps, "num_stages": num_stages, "divisible": divisible_by_16}
    if max_registers is not None:
        request["maxnreg"] = max_registers
    return _answer(json.dumps(request))


def why_not(fn, signature: dict[str, str | tuple], constexprs: dict, arch: int | str = 90) -> str:
    """Why Triton's compiler refuses a kernel, with the line, or "" if it does not refuse.

    Raises CompileError if the line is not known. Only the compiler's first step runs, which takes 0.2 s.
    """
    (why,) = why_not_each([(fn, signature, constexprs)], arch)
    if isinstance(why, Exception):
        raise why
    return why


def why_not_each(launches: Sequence[tuple], arch: int | str = 90) -> list[str | Exception]:
    """The same of many (fn, signature, constexprs). What `why_not` would raise is an answer.

    One process compiles all of them: to start it takes ten times as long as the first step for one kernel.
    """
    options = {"num_warps": 4, "num_stages": 3, "divisible": True, "only_read": True}
    options["arch"] = architecture(arch).number
    answers: dict[int, str | Exception] = {}
    requests: dict[int, str] = {}
    for number, launch in enumerate(launches):
        try:
            requests[number] = json.dumps(describe(*launch) | options)
        except Exception as error:
            answers[number] = error
    replies = _compile_in_fresh_process(list(requests.values()))
    answers |= {number: _why(reply) for number, reply in zip(requests, replies, strict=True)}
    return [answers[number] for number in range(len(launches))]


def _why(reply: dict) -> str | CompileError:
    if "error" not in reply:
        return ""
    error = CompileError(**reply["error"])
    return str(error) if error.line else error


@cache
def _answer(request: str) -> Compiled:
    versions = (version("triton"), _WORKER.read_text(), sys.version_info[:2])
    digest = hashlib.sha256(repr((request, versions)).encode()).hexdigest()
    path = cache_folder() / f"compiled-{digest[:24]}.json"
    reply = _read(path)
    if reply is None:
        (reply,) = _compile_in_fresh_process([request])
        if "crashed" not in reply:
            write_atomically(path, json.dumps(reply))
    if "error" in reply:
        raise CompileError(**reply["error"])
    return _compiled(reply, **{name: json.loads(request)[name] for name in ("arch", "num_warps", "num_stages")})


def _read(path: Path) -> dict | None:
    try:
        reply = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    sound = isinstance(reply, dict) and ("error" in reply or "ptx" in reply)
    return reply if sound else None


def _compile_in_fresh_process(requests: Sequence[str]) -> list[dict]:
    """Always another process: this one may hold Triton's interpreter. One that crashes costs the kernel it was at."""
    replies: list[dict] = []
    while left := requests[len(replies) :]:
        replies += _replies(left)
    return replies


def _replies(requests: Sequence[str]) -> list[dict]:
    """The replies of one process: to all requests, or to those up to the one that it crashed at."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory(prefix="compile-") as folder:
        # With an old entry in Triton's cache the assembler would not run, and only its log shows spills.
        environment |= {"TRITON_CACHE_DIR": folder, "TRITON_ALWAYS_COMPILE": "1"}
        try:
            done = subprocess.run(
                [sys.executable, str(_WORKER)],
                input=f"[{','.join(requests)}]",
                capture_output=True,
                text=True,
                env=environment,
                cwd=folder,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            late = _crash(f"the compiler was stopped after {SECONDS} s: are loops unrolled with tl.static_range?")
            return [late] * len(requests)
    lines = done.stdout.splitlines()
    if done.returncode == 0 and len(lines) == len(requests):
        return [json.loads(line) for line in lines]
    tail = done.stderr.strip().splitlines()[-3:]
    crash = _crash(f"the compiler crashed (exit status {done.returncode}). {' '.join(tail)}")
    return [*(json.loads(line) for line in lines[: len(requests) - 1]), crash]


def _crash(message: str) -> dict:
    return {"error": {"message": message}, "crashed": True}  # never cached: the machine may be at fault


def _compiled(reply: dict, arch: int, num_warps: int, num_stages: int) -> Compiled:
    target = architecture(arch)
    limit = target.shared_limit_bytes
    count = reply["instructions"]
    warnings = []
    if reply["spills_bytes"]:
        warnings.append(f"{reply['spills_bytes']} bytes a thread spill to memory: use smaller tiles or more warps")
    if reply["shared_bytes"] > limit:
        warnings.append(
            f"needs {reply['shared_bytes']} bytes of shared memory, sm_{arch} has {limit} for a block: "
            "use smaller tiles or fewer stages"
        )
    if lost := unwritten(reply["sass"] or "") if arch == 90 else []:
        warnings.append(
            f"the assembler lost a value, and the kernel may read where no memory is ({lost[0]} reads a register that "
            "nobody wrote): use another tile, or Triton's newer assembler by TRITON_PTXAS_PATH"
        )
    if reply["has_dot"]:
        warnings += _on_tensor_cores(target, count)
    return Compiled(
        name=reply["name"],
        arch=arch,
        registers=reply["registers"],
        spills_bytes=reply["spills_bytes"],
        shared_bytes=reply["shared_bytes"],
        shared_limit_bytes=limit,
        fits=reply["shared_bytes"] <= limit,
        num_warps=num_warps,
        num_stages=num_stages,
        instructions=count,
        ptx=reply["ptx"],
        sass=reply["sass"],
        warnings=tuple(warnings),
    )


def _on_tensor_cores(target: Architecture, count: dict[str, int]) -> list[str]:
    """What is to be said of the instructions that a product became."""
    if not target.tensor_cores:
        return [f"tl.dot became plain arithmetic: Triton does not use the tensor cores of sm_{target.number}"]
    if not count["tcgen05"] + count["wgmma"] + count["mma"]:
        return ['tl.dot became plain arithmetic: tensor cores take no fp32 with input_precision="ieee"']
    if target.number == 90 and not count["wgmma"]:
        return ["tl.dot became mma and not wgmma: that needs at least 64 rows and 4 warps"]
    return []
