"""What our kernels would ask of cards that are not here: a pretend card, every launch written down, then compiled.

    python -m tests.kernels.other_cards 75,86                 a line of JSON for each launch, compiled for both
    python -m tests.kernels.other_cards 120 "attention 128"   only calls with this in their name
    python -m tests.kernels.other_cards 120 "" 2/6            of the launches, the second of every six

The pretend card answers torch and Triton as the real one would. Tensors have shapes and no memory. A launch runs
through Triton's own code up to the compiler: types, constants and alignments are those of a real launch. The compiler
then needs no GPU. A launch starts if its shared memory, registers and warps are at most what one program may have.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
from dataclasses import asdict, dataclass

import torch
import triton
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from course_lib.cards import ARCHITECTURES, CARDS, Architecture

MEMORY = 8 << 30
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Launch:
    arch: int
    call: str  # "attention 128 causal"
    dtype: str
    kernel: str
    shared_bytes: int = 0
    registers: int = 0
    spills_bytes: int = 0
    warps: int = 0
    error: str = ""  # the compiler's, or that of the code before the launch
    stages: int = 0
    instructions: tuple[str, ...] = ()  # kinds that stand in the code
    sizes: tuple[tuple[str, int], ...] = ()  # constants: BLOCK_M and the like
    unwritten: tuple[str, ...] = ()  # instructions that read what nobody wrote, on an H200

    def wrong(self) -> str:
        """Why it does not start, or ""."""
        has = ARCHITECTURES[self.arch]
        if self.error:
            return self.error
        if self.shared_bytes > has.shared_limit_bytes:
            return f"needs {self.shared_bytes} B of shared memory, a program has {has.shared_limit_bytes}"
        if self.warps * 32 > has.threads_a_program or self.warps > has.warps:
            return f"needs {self.warps} warps"
        if self.unwritten:
            return f"reads a register that nobody wrote: {self.unwritten[0]}"
        rounded = -(-self.registers // 8) * 8 * 32 * self.warps
        return f"needs {rounded} registers" if rounded > has.registers else ""


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self):
        return torch.device("cuda", 0)

    @property
    def is_cuda(self):
        return True

    def get_device(self):
        return 0


class _Tensor(OnGpu):
    """Without memory; at addresses of their own, aligned as torch's allocator aligns."""

    def data_ptr(self):
        return id(self) << 9


class _OnTheCard(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = "meta"
        if getattr(function, "__name__", "") == "__get__":
            return function(*args, **kwargs)
        # torch itself must see where they are: on no device
        args, kwargs = tree_map(lambda x: x.as_subclass(torch.Tensor) if type(x) is _Tensor else x, (args, kwargs))
        result = function(*args, **kwargs)
        return tree_map(lambda x: x.as_subclass(_Tensor) if type(x) is torch.Tensor else x, result)


class _Event:
    def record(self):
        """Nothing runs, and so nothing happens."""


class _Properties:
    def __init__(self, has: Architecture):
        card = next(one for one in CARDS.values() if one.arch == has.number)
        self.name, (self.major, self.minor), self.total_memory = card.name, has.capability, MEMORY
        self.multi_processor_count, self.warp_size, self.uuid = card.multiprocessors, 32, None
        self.L2_cache_size = int(card.l2_mib * 2**20)
        self.shared_memory_per_block_optin = has.shared_limit_bytes
        self.shared_memory_per_multiprocessor = has.shared_bytes
        self.regs_per_multiprocessor, self.max_threads_per_multi_processor = has.registers, 32 * has.warps


class _Driver:
    """Triton's view of the card. Each architecture is a device of its own, so that nothing is shared between two."""

    def __init__(self, has: Architecture):
        self.arch = has.number

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self):
        return self.arch

    def get_current_stream(self, device=None):
        return 0

    def is_active(self):
        return True

    def get_active_torch_device(self):
        return torch.device("cuda", 0)


def pretend(arch: int) -> None:
    """This process has such a card from now on. Import nothing of the kernels before the first call."""
    has = ARCHITECTURES[arch]
    cuda = torch.cuda
    cuda.device_count, cuda.current_device = lambda: 1, lambda: 0
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda *_: has.capability
    cuda.get_device_properties = lambda *_: _Properties(has)
    cuda._lazy_init = lambda: None
    cuda.device = lambda *_: contextlib.nullcontext()
    cuda.is_current_stream_capturing = lambda: False
    cuda.Event = _Event
    triton.runtime.driver.set_active(_Driver(has))
    from course_lib.kernels import hardware
    from course_lib.kernels.attention import tables

    tables._asked = lambda *_: None  # what lies in a table is nothing to a compiler
    for one in vars(hardware).values():
        if hasattr(one, "cache_clear"):
            one.cache_clear()


class _Launches:
    """Takes the place of the compiler inside a launch, and keeps what it would be given."""

    def __init__(self):
        self.label, self.found = ("", ""), {}

    def take(self, kernel, key, signature, device, constexprs, options, attrs, warmup):
        call, dtype = self.label
        what = (device, kernel, repr((signature, constexprs, options, attrs)))
        self.found.setdefault(what, (call, dtype, kernel, device, (signature, constexprs, attrs), options))
        return None


def captured(arch: int, wanted: str = "") -> list:
    """All launches of all calls on this card; errors of the code before a launch as `Launch`es with an error.

    `wanted`: a regular expression for names of calls and types, "attention 128 causal fp16".
    """
    pretend(arch)
    from triton.runtime.jit import JITFunction

    kept, run = _Launches(), JITFunction.run

    def captured_run(self, *args, grid, warmup=False, **options):
        return run(self, *args, grid=grid, warmup=True, **options)

    def compiled(self, *args):
        return kept.take(self, *args)

    errors = []
    original = JITFunction._do_compile
    JITFunction.run, JITFunction._do_compile = captured_run, compiled
    try:
        with _OnTheCard():
            from tests.kernels.other_cards_calls import calls

            for dtype in [of for of in TYPES if of != "bf16" or ARCHITECTURES[arch].bf16]:
                for name, call in calls(TYPES[dtype]):
                    if not re.search(wanted, f"{name} {dtype}"):
                        continue
                    kept.label = name, dtype
                    try:
                        call()
                    except Exception as error:
                        why = f"{type(error).__name__}: {error}"[:300]
                        errors.append(Launch(arch, name, dtype, "(before the launch)", error=why))
    finally:
        JITFunction.run, JITFunction._do_compile = run, original
    return [*errors, *kept.found.values()]


def compiled(one) -> Launch:
    """What the compiler makes of one captured launch."""
    if isinstance(one, Launch):
        return one
    call, dtype, kernel, arch, source, options = one
    from triton.compiler import ASTSource

    from course_lib.compiled.unwritten import unwritten
    from course_lib.compiled.worker import INSTRUCTIONS, disassemble

    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    from triton.backends.compiler import GPUTarget

    names = [one.name for one in kernel.params]
    sizes = {names[path[0]]: value for path, value in source[1].items() if len(path) == 1 and type(value) is int}
    known = {"arch": arch, "call": call, "dtype": dtype, "kernel": kernel.fn.__name__, "sizes": tuple(sizes.items())}
    log = tempfile.TemporaryFile()
    try:
        with _stdout_to(log):
            made = triton.compile(
                ASTSource(kernel, *source), target=GPUTarget("cuda", arch, 32), options=options.__dict__
            )
    except Exception as error:
        return Launch(**known, error=f"{type(error).__name__}: {error}"[:300])
    log.seek(0)
    spills = re.search(r"(\d+) bytes spill stores", log.read().decode(errors="replace"))
    usage, sass = disassemble(made.asm["cubin"], sass=arch == 90)
    return Launch(
        **known,
        shared_bytes=made.metadata.shared,
        registers=usage.get("REG", 0),
        spills_bytes=int(spills[1]) if spills else usage.get("STACK", 0),
        warps=made.metadata.num_warps,
        stages=options.num_stages,
        instructions=tuple(kind for kind, regex in INSTRUCTIONS.items() if re.search(regex, made.asm["ptx"])),
        unwritten=tuple(unwritten(sass or "") if arch == 90 else ()),
    )


@contextlib.contextmanager
def _stdout_to(file):
    """The assembler's log is printed by Triton, in Python."""
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        yield
    file.write(text.getvalue().encode())


def unlike(found: list) -> list:
    """Of launches of one kernel with the same blocks, types of the same size and the same ways to load: the first."""
    kept = {}
    for one in found:
        if isinstance(one, Launch):
            kept[one.call, one.dtype] = one
            continue
        _, dtype, kernel, _, (_signature, constants, _), options = one
        names = [parameter.name for parameter in kernel.params]
        sizes = {(names[path[0]], str(value)) for path, value in constants.items() if names[path[0]].isupper()}
        what = [
            key
            for key in sizes
            if re.match("BLOCK|MAIN|REST|ROWS|STAGES|TMA|CAUSAL|PARTS|GROUP_SIZE|UNIT_[AB]", key[0])
        ]
        key = kernel.fn.__name__, tuple(sorted(what)), options.num_warps, options.num_stages, TYPES[dtype].itemsize
        kept.setdefault(key, one)
    return list(kept.values())


def main(archs: str, calls: str = "", only: str = "1/1") -> None:
    """One line of JSON a launch. `calls`: a regular expression; `only`: "captured", and nothing is compiled; or 2/6."""
    part, parts = (1, 1) if only == "captured" else map(int, only.split("/"))
    os.environ |= {"TRITON_ALWAYS_COMPILE": "1", "TRITON_DUMP_PTXAS_LOG": "1", "TRITON_CACHE_DIR": tempfile.mkdtemp()}
    for arch in map(int, archs.split(",")):
        for one in unlike(captured(arch, calls))[part - 1 :: parts]:
            if only != "captured":
                one = compiled(one)
            print(json.dumps(asdict(one) if isinstance(one, Launch) else [*one[:2], one[2].fn.__name__]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
