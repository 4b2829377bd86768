"""Around the table: ours against the best peer at other sizes than the table has, nothing left out.

    attention    lengths 77 to 16384, head sizes 16 to 128, grouped heads, padding, decoding, small batches; backward
                 once more in any order of additions, as FlashAttention-4 adds, where that is another kernel
    matmul       few rows, a long K, odd sizes
    linear_gelu  few rows, a K that is no multiple of 64
    add_norm     rows that are wide, and narrow

A row where ours refuses the shape says so in `refused`. Peers that refuse a shape, or are more than twice as far from
float64 as ours may be, do not count; of attention, in the direction where they do. FlashAttention-4 is a peer where its
wheel (flash-attn-4) is installed. No row is a claim: a look of 0.1 s at every peer, and of 0.4 s at the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch._functorch import config as donated_buffers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import add_norm as norms
from benchmarks import attention as tabled
from benchmarks import linear_gelu as gelus
from benchmarks import matmul as products
from benchmarks.against import Case, Red, measure
from course_lib.device import DEVICE
from course_lib.kernels.attention import attention, attention_reference
from course_lib.kernels.attention.tuning import one_pass_for
from course_lib.kernels.linear_gelu import linear_gelu
from course_lib.kernels.matmul import matmul

DTYPE = torch.bfloat16
LOOKS = 0.1, 0.4  # seconds
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
ATTENTION = (
    *(Shape.square(batch, 16, length, 64) for batch, length in LENGTHS),
    *(Shape.square(batch, 16, length, 128, causal=True) for batch, length in LENGTHS),
    *(Shape.square(4, 16, 4096, size) for size in (16, 32, 40, 48, 72, 80, 96, 112)),
    *(Shape.square(4, 16, 4096, size, causal=True) for size in (32, 48, 80, 96)),
    *(Shape.square(4, 32, 4096, 128, shared=shared, causal=True) for shared in (8, 1)),
    *(Shape.square(batch, 16, length, size, padded=True) for batch, length, size in ((256, 256, 72), (16, 1024, 64))),
    *(Shape.square(1, heads, 1024, 64, causal=True) for heads in (8, 16)),
    Shape.square(8, 16, 256, 72, padded=True),
    Shape(32, 32, 8, 1, 8192, 128),
    Shape(1, 32, 8, 1, 32768, 128),
    Shape(64, 16, 16, 1, 2048, 64, padded=True),
    Shape(4, 16, 16, 128, 8192, 128, causal=False),
)
MATMUL = (
    *((m, 4096, 4096) for m in (1, 16, 64, 128)),
    *((256, 256, 65536), (1000, 1000, 1000), (4095, 4096, 4100), (8192, 512, 8192), (512, 8192, 2048)),
)
LINEAR_GELU = ((512, 4304, 1152), (16384, 4304, 1150), (2048, 4304, 1152), (64, 4096, 1024), (4095, 4099, 1024))
ADD_NORM = (64, 768, 1150, 8192, 12288, 16384)


@donated_buffers.patch(donated_buffer=False)  # a graph is kept, and its backward runs again and again
def run(attention=ATTENTION, matmul=MATMUL, linear_gelu=LINEAR_GELU, add_norm=ADD_NORM) -> list[dict]:
    makers = {_attention: attention, _matmul: matmul, _linear_gelu: linear_gelu, _add_norm: add_norm}
    rows = []
    for make, shapes in makers.items():
        for shape in shapes:
            for row in _tried(make, shape):
                rows.append(row)
                print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
            if DEVICE == "cuda":
                torch.cuda.empty_cache()
    return rows


def _tried(make: Callable, shape) -> Iterator[dict]:
    """The rows of one shape; in the place of what ours does not take, the reason."""
    kind = make.__name__.strip("_")
    try:
        for case in make(shape):
            yield {"kind": kind, **measure(case, looks=LOOKS)}
    except (AssertionError, RuntimeError, ValueError) as refused:
        if isinstance(refused, Red):
            raise
        yield {"kind": kind, "name": f"{kind} {shape}", "refused": tabled.refusal(refused)[:200]}


# ------------------------------------------------------------------------------------------------- attention


def _attention(shape: Shape) -> Iterator[Case]:
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
    if shape.n_q > 1 and one_pass_for(shape.causal, lengths, False, q, k, v, do):
        free = partial(ours, deterministic=False)
        if far := _far(free, want, q, k, v, do, 1.0, "backward"):
            raise Red(f"attention in any order is wrong at {shape}: relative errors {far}")
        ways.append(("backward in any order", "backward", tabled._backward, free, 2.5))
    for name, direction, make, one, times in ways:
        if not able[direction]:
            continue
        yield Case(
            f"attention {name} {shape}",
            make(one, q, k, v, do),
            {peer: make(call, q, k, v, do) for peer, call in able[direction].items()},
            lambda: None,  # it was held against float64 above
            method="graph" if direction == "forward" and flops < 1e11 else "events",
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
    """o and, where the scores of a group of heads are few enough, the gradients of the last sequence's first heads."""
    group = shape.heads // shape.shared
    few = group * shape.n_q * shape.n_k <= EXACT
    rows = slice(0 if few else -(EXACT // (group * shape.n_k) or 1), None)  # a causal query sees the same keys
    leaves = [x[-1:, :heads].double() for x, heads in ((q[:, :, rows], group), (k, 1), (v, 1))]
    leaves = [x.requires_grad_() for x in leaves]
    of_last = None if lengths is None else lengths[-1:]
    o = attention_reference(*leaves, shape.causal, None, of_last)[0]
    if not few or shape.n_q == 1:
        return {"o": o.detach()}
    made = torch.autograd.grad(o, leaves, do[-1:, :group].double())
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
            heads, rows = want[name].shape[1:3]
            errors[name] = tabled.relative(whole[-1:, :heads, whole.shape[2] - rows :], want[name])
    limits = {name: slack * tabled.limit(name, want[name].numel()) for name in errors if name in want}
    return {name: x for name, x in errors.items() if not x <= limits.get(name, 0.0)}


# -------------------------------------------------------------------------------------------------- the others


def _matmul(shape: tuple[int, int, int]) -> Iterator[Case]:
    yield products._case(matmul, DTYPE, *shape, False, None)


def _linear_gelu(shape: tuple[int, int, int]) -> Iterator[Case]:
    M, N, K = shape
    given, out = gelus.inputs(*shape), torch.empty(M, N, device=DEVICE, dtype=DTYPE)
    torch._dynamo.reset()
    compiled = torch.compile(gelus.linear_gelu_reference, dynamic=False)
    peers = {"cublaslt": gelus.cublaslt, "compile": compiled, "eager": gelus.linear_gelu_reference}
    yield Case(
        f"linear_gelu {M} x {N} x {K}",
        partial(linear_gelu, *given, out),
        {name: partial(f, *given) for name, f in peers.items()},
        partial(gelus.check_gelu, linear_gelu, *given),
        method=gelus.method(*shape),
        work={"TFLOP/s": 2 * M * N * K / 1e12},
    )


def _add_norm(width: int) -> Iterator[Case]:
    for case, _ in norms.cases(width):  # narrow rows take less time than the host needs to ask for them
        yield replace(case, method="graph") if "forward" in case.name else case
