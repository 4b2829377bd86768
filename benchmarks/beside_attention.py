"""Attention around the table: many lengths, head sizes 16 to 128, grouped heads, padding, decoding, small batches.

Backward is measured once more in any order of additions, as FlashAttention-4 adds, where that is another kernel here.
Peers that refuse a shape, or are more than twice as far from float64 as ours may be, do not count in that direction.
FlashAttention-4 is a peer where its wheel (flash-attn-4) is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch._functorch import config as donated_buffers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import attention as tabled
from benchmarks import beside
from benchmarks.against import Case, Red
from course_lib.device import DEVICE
from course_lib.kernels.attention import attention, attention_reference
from course_lib.kernels.attention.backward import in_one_for
from course_lib.kernels.attention.tuning import OnePass

DTYPE = torch.bfloat16
EXACT = 2**22  # scores in float64 of one head: a longer one is checked at its last queries, forward only


@dataclass(frozen=True)
class Shape:
    """batch, heads, heads of keys, queries, keys, head size."""

    batch: int
    heads: int
    shared: int
    n_q: int
    n_k: int
    size: int
    causal: bool = False
    padded: bool = False  # lengths from half of the keys to all of them

    @classmethod
    def square(cls, batch: int, heads: int, length: int, size: int, **options) -> Shape:
        return cls(batch, heads, options.pop("shared", heads), length, length, size, **options)

    def __str__(self) -> str:
        heads = f"{self.heads}" if self.shared == self.heads else f"{self.heads}/{self.shared}"
        length = f"{self.n_q}" if self.n_q == self.n_k else f"{self.n_q} of {self.n_k}"
        ends = f"{', causal' if self.causal else ''}{', padded' if self.padded else ''}"
        return f"{self.batch} x {heads} x {length} x {self.size}{ends}"


# About as much work each as 4 x 16 x 4096 where the length is small, so that a launch does not show.
LENGTHS = ((256, 77), (256, 128), (128, 256), (64, 512), (32, 1000), (16, 1024), (8, 2048), (3, 4095), (1, 16384))
SHAPES = (
    *(Shape.square(batch, 16, length, 64) for batch, length in LENGTHS),
    *(Shape.square(batch, 16, length, 128, causal=True) for batch, length in LENGTHS),
    *(Shape.square(4, 16, 4096, size) for size in (16, 32, 40, 48, 72, 80, 96, 112)),
    *(Shape.square(4, 16, 4096, size, causal=True) for size in (32, 48, 80, 96)),
    *(Shape.square(4, 32, 4096, 128, shared=shared, causal=True) for shared in (8, 1)),
    *(Shape.square(batch, 16, length, size, padded=True) for batch, length, size in ((256, 256, 72), (16, 1024, 64))),
    *(Shape.square(1, heads, 1024, size, causal=True) for heads in (8, 16) for size in (64, 128)),
    *(Shape.square(1, 8, 1024, size) for size in (64, 128)),
    # heads of which a block holds all keys
    *(Shape.square(256, 16, length, size) for length, size in ((32, 128), (49, 32), (50, 64), (64, 64))),
    Shape.square(1024, 16, 16, 64),
    Shape.square(256, 16, 77, 64, causal=True),
    # so few heads that a last round of tiles may be nearly empty
    *(Shape.square(8, 1, length, size) for length, size in ((1024, 64), (4096, 32), (4096, 64), (4096, 128))),
    *(Shape.square(1, 12, 2048, 64, causal=causal) for causal in (False, True)),
    Shape.square(8, 16, 256, 72, padded=True),
    Shape(32, 32, 8, 1, 8192, 128),
    Shape(1, 32, 8, 1, 32768, 128),
    Shape(64, 16, 16, 1, 2048, 64, padded=True),
    Shape(4, 16, 16, 128, 8192, 128, causal=False),
)


@donated_buffers.patch(donated_buffer=False)  # a graph is kept, and its backward runs again and again
def run(shapes: Sequence[Shape] = SHAPES) -> list[dict]:
    return beside.rows("attention", cases, shapes)


def cases(shape: Shape) -> Iterator[Case]:
    q, k, v, do, lengths = drawn(shape)
    ours = partial(attention, causal=shape.causal, k_lengths=lengths)
    want = exact(shape, q, k, v, do, lengths)
    if far := _far(ours, want, q, k, v, do, 1.0):
        raise Red(f"attention is wrong at {shape}: relative errors {far}")
    able: dict[str, dict[str, Callable]] = {"forward": {}, "backward": {}}
    for name, peer in _peers(shape, lengths).items():
        for direction, far in _failed(peer, want, q, k, v, do).items():
            if far:
                print(f"{name} is left out of {direction} {shape}: {far}", flush=True)
            else:
                able[direction][name] = peer
    flops = 4 * shape.batch * shape.heads * shape.n_q * shape.n_k * shape.size / (2 if shape.causal else 1)
    ways = [("forward", "forward", tabled._forward, ours, 1.0)]
    if shape.n_q > 1:
        ways.append(("backward", "backward", tabled._backward, ours, 2.5))
    blocks = in_one_for(shape.causal, lengths, False, q, k, v, do) if shape.n_q > 1 else None
    if isinstance(blocks, OnePass) and not blocks.in_order:
        free = partial(ours, deterministic=False)
        if far := _far(free, want, q, k, v, do, 1.0, "backward"):
            raise Red(f"attention in any order is wrong at {shape}: relative errors {far}")
        ways.append(("backward in any order", "backward", tabled._backward, free, 2.5))
    for name, direction, make, one, times in ways:
        if not able[direction]:
            continue
        by_graphs = times * flops < 1e11  # less time than the host needs to ask for it
        with beside.stream_of_graphs() if by_graphs else nullcontext():
            calls = {peer: make(call, q, k, v, do) for peer, call in {"": one, **able[direction]}.items()}
        yield Case(
            f"attention {name} {shape}",
            calls.pop(""),
            calls,
            lambda: None,  # it was held against float64 above
            method="graph" if by_graphs else "events",
            work={"TFLOP/s": times * flops / 1e12},
        )


def _failed(peer: Callable, want: dict, q, k, v, do) -> dict[str, dict | str]:
    """Why a peer does not count in a direction, or nothing there. Its gradients are held against right ones alone."""
    failed: dict[str, dict | str] = {}
    for direction in ("forward", "backward") if q.shape[2] > 1 else ("forward",):
        try:
            failed[direction] = _far(peer, want, q, k, v, do, tabled.OTHERS_SLACK, direction)
        except Exception as refused:  # a compiler of kernels has exceptions of its own
            failed[direction] = tabled.refusal(refused)[:100]
    return failed


def drawn(shape: Shape) -> tuple[torch.Tensor, ...]:
    """q, k, v, do and lengths, or None where nothing is padded."""
    sizes = (shape.heads, shape.n_q), (shape.shared, shape.n_k), (shape.shared, shape.n_k), (shape.heads, shape.n_q)
    made = [torch.randn(shape.batch, *size, shape.size, device=DEVICE, dtype=DTYPE) for size in sizes]
    lengths = torch.randint(shape.n_k // 2, shape.n_k + 1, (shape.batch,), device=DEVICE, dtype=torch.int32)
    return *made, lengths if shape.padded else None


def _peers(shape: Shape, lengths) -> dict[str, Callable]:
    mask = None
    if lengths is not None:  # added to the scores, as the backends' kernels take it
        there = torch.arange(shape.n_k, device=DEVICE) < lengths[:, None]
        mask = torch.zeros(there.shape, device=DEVICE, dtype=DTYPE).masked_fill(~there, -float("inf"))[:, None, None]

    def sdpa(backend, q, k, v):
        how = {"attn_mask": mask, "is_causal": shape.causal, "enable_gqa": shape.shared != shape.heads}
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, **how)

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    if shape.batch * shape.heads * shape.n_q * shape.n_k > EXACT * 16:  # it writes the scores
        del backends["math"]
    found: dict[str, Callable] = {name: partial(sdpa, backend) for name, backend in backends.items()}
    if lengths is None and shape.n_q == shape.n_k:
        found |= tabled.flash_attention_4(shape.causal)
    return found


def exact(shape: Shape, q, k, v, do, lengths) -> dict[str, torch.Tensor]:
    """o and, where the scores of a group of heads are few enough, the gradients of the last sequences' first heads.

    Of short sequences several, or the first rows of a causal one, which have few keys and large gradients, decide how
    far rounding leads.
    """
    group = shape.heads // shape.shared
    few = group * shape.n_q * shape.n_k <= EXACT
    last = slice(-min(shape.batch, max(1, EXACT // (group * shape.n_q * shape.n_k))), None)
    rows = slice(0 if few else -(EXACT // (group * shape.n_k) or 1), None)  # a causal query sees the same keys
    leaves = [x[last, :heads].double() for x, heads in ((q[:, :, rows], group), (k, 1), (v, 1))]
    leaves = [x.requires_grad_() for x in leaves]
    of_last = None if lengths is None else lengths[last]
    o = attention_reference(*leaves, shape.causal, None, of_last)[0]
    if not few or shape.n_q == 1:
        return {"o": o.detach()}
    made = torch.autograd.grad(o, leaves, do[last, :group].double())
    return {"o": o.detach(), **dict(zip(("dq", "dk", "dv"), made))}


def _far(function: Callable, want: dict, q, k, v, do, slack: float, direction: str = "both") -> dict[str, float]:
    """Errors beyond what is allowed. NaN anywhere in a result is one, also where nothing is there to compare with."""
    leaves = [x.detach().requires_grad_(direction != "forward") for x in (q, k, v)]
    o = function(*leaves)
    got = {"o": o.detach()} if direction != "backward" else {}
    if direction != "forward" and q.shape[2] > 1:
        got |= dict(zip(("dq", "dk", "dv"), torch.autograd.grad(o, leaves, do)))
    errors = {}
    for name, whole in got.items():
        if whole.isnan().any():
            errors[name] = float("nan")
        elif name in want:
            last, heads, rows, _ = want[name].shape
            errors[name] = tabled.relative(whole[-last:, :heads, whole.shape[2] - rows :], want[name])
    limits = {name: slack * tabled.limit(name, want[name].numel()) for name in errors if name in want}
    return {name: x for name, x in errors.items() if not x <= limits.get(name, 0.0)}
