"""Attention of one projection, as a step that autograd differentiates: what it keeps, makes, copies and multiplies."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autograder.inside.calling import Found
from autograder.inside.probes.norming import fresh_memory_is_nan
from autograder.inside.probes.passing import InPassing
from autograder.inside.probes.rotating import attributes, kept, of_the_module
from course_lib.interpreter.launch import is_running

NAMES = ("x", "w", "b")
LARGE = 140  # rows of x, from which on the passes are looked at: below, what is small beside o is not small
COPIES = {"copy_", "_to_copy", "clone", "cat", "stack", "constant_pad_nd", "repeat"}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}


class Step(InPassing):
    """Notes besides how many products the library is asked for, and how many bytes are copied, some to another type."""

    def __init__(self, granted: int):
        super().__init__(granted)
        self.products, self.copied, self.retyped = 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = super().__torch_dispatch__(func, types, args, kwargs)
        if not is_running():
            name = func.overloadpacket.__name__
            self.products += name in PRODUCTS
            if name in COPIES:
                other = any(t.dtype != made.dtype for t in args if isinstance(t, torch.Tensor))
                self.copied += made.nbytes
                self.retyped += made.nbytes if other else 0
        return made


def differentiated(function: Callable, x, w, b, lengths, heads: int, do) -> tuple[torch.Tensor, ...]:
    """o and the gradients of x, w and b for this gradient of o; fresh memory is NaN meanwhile.

    A gradient without dimensions is that of a sum: autograd makes it as large as the result, without memory of its own.
    An error when more is kept between the passes than the projection's result, o and a number a query; and where x has
    many rows, when a pass holds more than it needs, copies, or asks the library for more products than it needs.
    """
    leaves = [t.detach().requires_grad_() for t in (x, w, b)]
    saved: list[torch.Tensor] = []
    before = of_the_module(function)
    batch, length = x.shape[:2]
    large = batch * length >= LARGE
    of_o, of_l = x.numel() * x.element_size(), 4 * batch * heads * length
    # rows that do not lie at equal distances are no matrix: a product of the library copies them first
    again = 0 if 1 in (batch, length) or x.stride(0) == length * x.stride(1) else of_o
    small = of_l + of_o // 2
    forward, backward = Step(4 * of_o + again + small), Step(4 * of_o + w.nbytes + b.nbytes + again + small)
    with fresh_memory_is_nan():
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t), forward:
            o = function(*leaves, lengths, heads)
        _check(o, x)
        held = kept([*saved, *attributes([o]), *of_the_module(function)], [*leaves, lengths, *before])
        most = 4 * of_o + of_l + of_o // 8
        if held > most:
            raise Found(
                f"{held} bytes beside the arguments are kept for backward; the projection's result, o and a number a "
                f"query have {most - of_o // 8}"
            )
        with backward:
            made = torch.autograd.grad(o, leaves, do.expand_as(o) if do.dim() == 0 else do, allow_unused=True)
    for name, gradient in zip(NAMES, made, strict=True):
        if gradient is None:
            raise Found(f"there is no gradient of {name}")
    if large:
        _look(forward, "forward", 1, again, of_o)
        _look(backward, "backward", 2, again, of_o)
    return o.detach(), *made


def _check(o, x: torch.Tensor) -> None:
    if not isinstance(o, torch.Tensor):
        raise TypeError(f"expected a tensor, got {type(o).__name__}")
    if o.shape != x.shape:
        raise Found(f"o has shape {tuple(o.shape)}, should be {tuple(x.shape)}, like x")
    if not o.requires_grad:
        raise Found("the result has no gradient function")
    if not o.is_contiguous():
        raise Found(f"o is not contiguous: its strides are {o.stride()}")


def _look(step: Step, words: str, products: int, again: int, of_o: int) -> None:
    """again: bytes that a product may copy by itself."""
    if step.products > products:
        raise Found(
            f"the {words} pass asks the library for {step.products} products; with q, k and v in one tensor it needs "
            f"{products}"
        )
    if step.retyped > of_o // 2:
        raise Found(
            f"the {words} pass makes copies in another type, of {step.retyped} bytes; o has {of_o}, and nothing of its "
            "size is to be copied"
        )
    if step.copied > again + of_o // 2:
        many = "as many bytes as dq, dk and dv have" if step.copied >= again + 3 * of_o else f"{step.copied} bytes"
        raise Found(f"the {words} pass copies {many}; o has {of_o}, and nothing of its size is to be copied")
    if step.most > step.granted:
        raise Found(
            f"at one moment of the {words} pass {step.most} bytes are alive that it made; {step.granted} are granted, "
            f"and o has {of_o}"
        )
