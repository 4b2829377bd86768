"""Launching again what was launched before: a kind of call walks through Triton's host path once.

Triton looks at each argument of each launch: which type, is it 1, do 16 bytes divide it. It encodes a descriptor for
each matrix that the copy engine fetches. With fifty arguments that takes longer than a small kernel runs. But all of
it, and all that a launcher decides, follows from types, shapes, strides, numbers and the addresses of tensors. So a
function with `@planned` runs as it is written once for each of these, and what it launched is written down:

    plans    for types, shapes, strides, numbers, and addresses mod 16: the launches, each with Triton's C function, its
             grid and its arguments, and for every address where it comes from
    ready    for addresses too: the same with addresses and encoded descriptors, all that the C function is called with

torch's allocator gives the same addresses step after step, so nearly every call is found in `ready`. Neither table
holds a tensor, and either is emptied when it is full.

A planned function takes tensors, numbers, words, None and frozen dataclasses by position, the first a tensor. It
returns nothing and launches with `launch`, on tensors that it was given or views of them. A tensor that it makes has to
be an argument of one of its launches: then it runs as it is written each time. An operator of torch on tensors that it
was given would be left out of the plan. What else it reads, such as a table, is constant: who changes one calls
`forget`. Where somebody watches launches, by Triton's hooks or in place of its `run`, and where there is no GPU or a
Triton that was not tried, it runs as it is written.
"""

import functools
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import triton
from triton import knobs
from triton.runtime import jit

from course_lib.kernels.descriptors import Shifted, make_context_current

__all__ = ["forget", "launch", "planned"]

TRITON_SEEN = ("3.6", "3.7")  # what their C functions are called with: `_before_arguments`
MOST_PLANS, MOST_READY = 1024, 4096  # 2 to 4 KiB each


class _OfThread(threading.local):
    launches: list | None = None  # of the planned function that is being written down


_thread = _OfThread()
_plans: dict[tuple, list | None] = {}  # None: only Triton can launch this
_ready: dict[tuple, list] = {}
_NEW = object()


def forget() -> None:
    """Every planned function runs as it is written once more."""
    _plans.clear()
    _ready.clear()


def launch(kernel, grid: tuple[int, ...], *args, **options) -> None:
    """kernel[grid](*args, **options)"""
    compiled = kernel[grid](*args, **options)
    if _thread.launches is not None:
        _thread.launches.append((compiled, kernel, grid, args, options))


def planned(function: Callable[..., None]) -> Callable[..., None]:
    """The function, which runs as it is written once for each kind of call, and then is only its launches."""

    @functools.wraps(function)
    def call(*args, **named):
        if named or not args[0].is_cuda or _thread.launches is not None or _watched():
            return function(*args, **named)
        device = torch.cuda.current_device()
        key = [function, device]
        for x in args:
            key.append((x.shape, x.stride(), x.dtype, x.data_ptr()) if isinstance(x, torch.Tensor) else x)
        key = tuple(key)
        launches = _ready.get(key)
        if launches is None:
            launches = _made_ready(key, function, device, args)
        make_context_current(args[0])
        stream = torch._C._cuda_getCurrentRawStream(device)
        for c_function, (x, y, z), arguments in launches:
            c_function(x, y, z, stream, *arguments)

    return call


def _watched() -> bool:
    """Does anybody look at launches, or make something else of them?"""
    run = knobs.runtime
    return (
        getattr(jit.JITFunction.run, "__globals__", None) is not jit.__dict__
        or _is_set(run.launch_enter_hook)
        or _is_set(run.launch_exit_hook)
        or run.add_stages_inspection_hook is not None
    )


def _is_set(hook) -> bool:
    return hook is not None and bool(getattr(hook, "calls", True))


def _made_ready(key: tuple, function, device: int, args: tuple) -> list:
    """What is left to launch for this call, with these addresses: nothing, where the function ran as it is written."""
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    if any(x.get_device() != device for x in tensors):
        function(*args)
        return []
    addresses = [x.data_ptr() for x in tensors]
    # Tensors that begin at one address are one to a plan, which tells them apart by it.
    kinds = tuple((address % 16, addresses.index(address)) for address in addresses)
    general = tuple(x[:-1] if type(x) is tuple else x for x in key), kinds
    plan = _plans.get(general, _NEW)
    if plan is _NEW:
        _keep(_plans, general, _written_down(function, args, tensors), MOST_PLANS)
        return []
    if plan is None:
        function(*args)
        return []
    make_context_current(tensors[0])  # before descriptors are encoded
    return _keep(_ready, key, [one.ready(addresses) for one in plan], MOST_READY)


def _keep(table: dict, key: tuple, value, most: int):
    if len(table) >= most:
        forget() if table is _plans else table.clear()  # what is ready runs kernels that plans hold
    table[key] = value
    return value


@dataclass(frozen=True)
class _Address:
    """Of a tensor of the call, and so many bytes behind its start."""

    tensor: int
    offset: int

    def of(self, addresses: list[int]) -> int:
        return addresses[self.tensor] + self.offset


@dataclass(frozen=True)
class _Base:
    """In place of a descriptor's tensor."""

    address: int

    def data_ptr(self) -> int:
        return self.address


@dataclass(frozen=True)
class _Descriptor:
    """Without its tensor."""

    base: _Address
    described: dict  # shape, strides, padding and the like
    metadata: dict | None  # how the compiled kernel wants it encoded

    def arguments(self, addresses: list[int]) -> list:
        """For the C function: the descriptor encoded, then its sizes and strides."""
        descriptor = types.SimpleNamespace(base=_Base(self.base.of(addresses)), **self.described)
        return _driver().make_tensordesc_arg(descriptor, self.metadata)

    def of(self, addresses: list[int]):
        return self.arguments(addresses)[0]


@dataclass(frozen=True)
class _Launch:
    compiled: object  # Triton's CompiledKernel, kept from being unloaded
    c_function: Callable
    grid: tuple[int, int, int]
    before: tuple  # what the C function takes between the stream and the kernel's arguments
    arguments: list  # of the kernel, its constants among them
    addressed: list[tuple[int, _Address | _Descriptor]]  # which of them come from addresses
    apart: bool  # does the C function take each of them as an argument of its own?

    def ready(self, addresses: list[int]) -> tuple:
        arguments = self.arguments.copy()
        for i, source in self.addressed:
            arguments[i] = source.of(addresses)
        return self.c_function, self.grid, (*self.before, *(arguments if self.apart else [arguments]))


@functools.cache
def _driver():
    from triton.backends.nvidia import driver

    return driver


class _ForTritonAlone(Exception):
    """A launch that cannot be written down."""


def _written_down(function, args: tuple, tensors: list) -> list[_Launch] | None:
    """Runs the function; its launches, or None where one of them is for Triton alone."""
    launches = _thread.launches = []
    try:
        function(*args)
    finally:
        _thread.launches = None
    try:
        return [_as_launch(tensors, *one) for one in launches] or None
    except _ForTritonAlone:
        return None


def _as_launch(tensors: list, compiled, kernel, grid, args, options) -> _Launch:
    launcher = getattr(compiled, "run", None)
    known = ".".join(triton.__version__.split(".")[:2]) in TRITON_SEEN
    if not known or type(launcher).__module__ != "triton.backends.nvidia.driver":
        raise _ForTritonAlone
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        raise _ForTritonAlone
    bound = kernel.signature.bind(*args, **{name: x for name, x in options.items() if name in kernel.arg_names})
    bound.apply_defaults()
    metadata = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    addresses = [x.data_ptr() for x in tensors]
    arguments, addressed = [], []
    for x in bound.arguments.values():
        if isinstance(x, torch.Tensor):
            addressed.append((len(arguments), _address(x, tensors)))
            arguments.append(None)
        elif isinstance(getattr(x, "base", None), torch.Tensor | Shifted):
            described = {name: value for name, value in vars(x).items() if name != "base"}
            descriptor = _Descriptor(_address(x.base, tensors), described, next(metadata, None))
            addressed.append((len(arguments), descriptor))
            arguments += [None, *descriptor.arguments(addresses)[1:]]
        else:
            arguments.append(x)
    before, apart = _before_arguments(compiled)
    return _Launch(compiled, _c_function(launcher), (*grid, 1, 1)[:3], before, arguments, addressed, apart)


def _address(x: torch.Tensor | Shifted, tensors: list) -> _Address:
    """Which tensor of the call has the memory of x."""
    if isinstance(x, Shifted):
        of = _address(x.tensor, tensors)
        return replace(of, offset=of.offset + x.elements * x.tensor.element_size())
    address = x.data_ptr()
    for i, one in enumerate(tensors):  # q, k and v may be views of one memory
        if one is x:
            return _Address(i, 0)
    found: dict[int, int] = {}
    for i, one in enumerate(tensors):
        start = one.data_ptr()
        if start == address or start < address < start + _span(one):
            found.setdefault(start, i)
    if len(found) != 1:  # none, or two that need not overlap in the next call
        raise _ForTritonAlone
    ((start, i),) = found.items()
    return _Address(i, address - start)


def _span(x: torch.Tensor) -> int:
    """Bytes from the first element of x to the end of its last."""
    return x.element_size() * (1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride())))


def _c_function(launcher) -> Callable:
    """Where arguments are descriptors, `launch` is a Python function around the C function, which encodes them."""
    outer = launcher.launch
    if not isinstance(outer, types.FunctionType):
        return outer
    return dict(zip(outer.__code__.co_freevars, outer.__closure__))["launcher"].cell_contents


def _before_arguments(compiled) -> tuple[tuple, bool]:
    """What the C function takes between the stream and the kernel's arguments, and whether it takes those apart.

    No scratch memory, no hooks, and nothing to tell them.
    """
    launcher, metadata = compiled.run, compiled.packed_metadata
    first = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl
    told, hooks, scratch = (None,), (None, None), (None, None)
    if hasattr(launcher, "kernel_signature"):  # 3.7: one C function for all kernels, which is told the types
        types_of_arguments = launcher.arg_annotations, launcher.kernel_signature
        return (*first, metadata, *told, *hooks, *scratch, *types_of_arguments), False
    return (*first, *scratch, metadata, *told, *hooks), True
