"""RoPE of q and k, bf16, batch 4, head size 128: against a copy of the same bytes, Liger, torch.compile and eager.

Three rows a length and direction: over a copy (out of place, one launch), over an in-place scale (the same addresses
read and written), and against libraries. Forward is in place, for us as for Liger. Backward is into new tensors, since
autograd's gradients may be shared; Liger's writes over them. Every call of a round works on its own q and k.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import triton
import triton.language as tl
from torch._functorch import config as donated_buffers

from benchmarks.against import Case, Red, measure, ring_of
from course_lib.kernels.angles import rope_frequencies
from course_lib.kernels.rope import Computed, Tables, rope, rope_, rope_reference

BATCH, HEADS, HEAD_SIZE = 4, 32, 128
LENGTHS = (2048, 8192)
OVER_COPY, OVER_LIBRARIES = 1.03, 1.00
LIMIT = 2.0e-3  # relative, over normal inputs: the rounding to bf16 alone is 1.66e-3


def run() -> list[dict]:
    rows = []
    for length in LENGTHS:
        for row in (*_main_rows(length), *_other_rows(length)):
            rows.append(row)
            print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


@triton.jit
def _scale_kernel(out_ptr, x_ptr, n, factor, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    tl.store(out_ptr + offs, (x * factor).to(out_ptr.dtype.element_ty), mask=mask)


def scale(out: torch.Tensor, x: torch.Tensor, factor: float = 1.0) -> None:
    """out = factor x, contiguous, in one launch: a copy where out is another tensor. The factor 1.0 is no constant."""
    _scale_kernel[(triton.cdiv(x.numel(), 4096),)](out, x, x.numel(), factor, BLOCK=4096, num_warps=4)


def heads_of(qk: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(2, B, S, H, D) -> q and k as (B, H, S, D), heads inside."""
    return qk[0].transpose(1, 2), qk[1].transpose(1, 2)


def pairs(length: int, copies: int | None = None) -> list[torch.Tensor]:
    """As many pairs of q and k as leave no call its data in the cache."""
    shape = (2, BATCH, length, HEADS, HEAD_SIZE)

    def make() -> torch.Tensor:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

    return ring_of(make, 4 * torch.Size(shape).numel()) if copies is None else [make() for _ in range(copies)]


def _main_rows(length: int) -> Iterator[dict]:
    ring = pairs(length)
    angles = Tables.of(rope_frequencies(HEAD_SIZE), length, "cuda")
    errors = _errors(ring[0], angles)
    others = [torch.empty_like(x) for x in ring]
    outputs: list = [None] * len(ring)  # kept, so that nobody writes over lines that are still in the cache

    def over(function: Callable[[torch.Tensor], object]) -> Callable[[], None]:
        def loop() -> None:
            for i, qk in enumerate(ring):
                outputs[i] = function(qk)

        return loop

    copy = partial(_each, ring, others, lambda x, out: scale(out, x))
    in_place = over(lambda qk: scale(qk, qk))
    for direction in ("forward", "backward"):
        ours = over(_ours(direction, angles))
        libraries = {name: over(f) for name, f in _libraries(direction, angles, ring).items()}
        yardsticks = (
            ("over a copy", {"copy": copy}, OVER_COPY),
            ("over an in-place scale", {"scale": in_place}, None),
            ("against libraries", libraries, OVER_LIBRARIES),
        )
        for what, peers, target in yardsticks:
            row = measure(_case(f"rope {direction} {length}, {what}", ours, peers, len(ring), length, target, errors))
            yield row | {f"error of {name}": error for name, error in errors.items()}


def _case(name: str, ours, peers, calls: int, length: int, target: float | None, errors: dict) -> Case:
    def check() -> None:
        if not errors["ours"] < LIMIT:
            raise Red(f"rope is wrong: relative errors {errors}, limit {LIMIT}")

    size = 2 * 2 * 2 * BATCH * length * HEADS * HEAD_SIZE
    return Case(name, ours, peers, check, calls, target, method="events", work={"TB/s": size / 1e12})


def _each(ring: list, others: list, function: Callable) -> None:
    for x, out in zip(ring, others):
        function(x, out)


def _ours(direction: str, angles) -> Callable[[torch.Tensor], object]:
    if direction == "forward":
        return lambda qk: rope_(*heads_of(qk), angles)
    return lambda qk: rope(*heads_of(qk), angles, inverse=True)  # what the Function's backward calls


def _eager(q, k, cos, sin):
    """As transformers writes it, with tables of full width in fp32."""

    def turned(x):
        x0, x1 = x.chunk(2, dim=-1)
        return (x * cos + torch.cat((-x1, x0), dim=-1) * sin).to(x.dtype)

    return turned(q), turned(k)


def _libraries(direction: str, angles: Tables, ring: list) -> dict[str, Callable[[torch.Tensor], object]]:
    cos, sin = (torch.cat((x, x), dim=-1)[None] for x in angles.parts)  # (1, S, D)
    torch._dynamo.reset()
    plain = {"eager": _eager, "compile": torch.compile(_eager, dynamic=False)}
    if direction == "forward":
        peers = {name: (lambda qk, f=f: f(*heads_of(qk), cos, sin)) for name, f in plain.items()}
    else:
        peers = {name: _through_autograd(f, ring[0], cos, sin) for name, f in plain.items()}
    try:
        from liger_kernel.ops.rope import rope_backward, rope_forward
    except ImportError:
        return peers
    liger = rope_forward if direction == "forward" else rope_backward
    return peers | {"liger": lambda qk: liger(*heads_of(qk), cos, sin)}


def _through_autograd(function: Callable, qk: torch.Tensor, cos, sin) -> Callable[[torch.Tensor], object]:
    leaves = [x.detach().requires_grad_() for x in heads_of(qk)]
    with donated_buffers.patch(donated_buffer=False):  # the graph is kept: backward runs again and again
        out = function(*leaves, cos, sin)
    return lambda given: torch.autograd.grad(out, leaves, heads_of(given), retain_graph=True)


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def _errors(qk: torch.Tensor, angles: Tables) -> dict[str, float]:
    """||got - want|| / ||want|| over two heads of the first and last sequence, against float64 from float64 angles."""
    length = qk.shape[2]
    computed = Computed.of(rope_frequencies(HEAD_SIZE), "cuda")
    errors = {"ours": _error(*heads_of(qk), angles), "computed": _error(*heads_of(qk), computed)}
    turned = torch.outer(torch.arange(length).double(), rope_frequencies(HEAD_SIZE)).to(qk.device)
    try:
        from liger_kernel.ops.rope import rope_forward
    except ImportError:
        return errors
    cos, sin = (torch.cat((x, x), dim=-1)[None] for x in angles.parts)
    q, k, *_ = rope_forward(*heads_of(qk.clone()), cos, sin)
    ends = [x[[0, -1], :2] for x in (*heads_of(qk), q, k)]
    want = torch.cat([rope_reference(x.double(), turned.cos(), turned.sin()) for x in ends[:2]])
    return errors | {"liger": relative(torch.cat(ends[2:]), want)}


def _other_rows(length: int) -> Iterator[dict]:
    """What else the kernel does, each over our own plain case: its bytes are the same unless said."""
    ring = pairs(length)
    frequencies = rope_frequencies(HEAD_SIZE)
    angles, computed = Tables.of(frequencies, length, "cuda"), Computed.of(frequencies, "cuda")
    positions = torch.arange(length, device="cuda").expand(BATCH, -1).contiguous()
    apart = [x.view(2, BATCH, HEADS, length, HEAD_SIZE) for x in ring]  # the same memory, positions inside
    plain = partial(_all, [heads_of(x) for x in ring], {"angles": angles})
    variants = {  # name -> q and k, what rope is given
        "angles computed": ([heads_of(x) for x in ring], {"angles": computed}),
        "interleaved": ([heads_of(x) for x in ring], {"angles": angles, "layout": "interleaved"}),
        "position ids": ([heads_of(x) for x in ring], {"angles": angles, "positions": positions}),
        "positions inside": (apart, {"angles": angles}),
    }
    for name, (views, given) in variants.items():
        error = _error(*views[0], **given)
        ours = partial(_all, views, given)
        yield measure(
            _case(f"rope forward {length}, {name}", ours, {"plain": plain}, len(ring), length, None, {"ours": error})
        )


def _error(q, k, angles, layout: str = "halves", positions=None) -> float:
    got = rope(q, k, angles, layout, positions)
    turned = torch.outer(torch.arange(q.shape[2]).double(), rope_frequencies(HEAD_SIZE)).to(q.device)
    ends = [x[[0, -1], :2] for x in (q, k, *got)]
    want = [rope_reference(x.double(), turned.cos(), turned.sin(), layout) for x in ends[:2]]
    return relative(torch.cat(ends[2:]), torch.cat(want))


def _all(views: list, given: dict) -> None:
    for q, k in views:
        rope_(q, k, **given)
