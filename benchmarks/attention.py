"""Attention forward and backward, bf16, against SDPA's flash, cuDNN and efficient backends, FlexAttention, eager and,
where it is installed, FlashAttention-4.

Where the backward pass may add to dq in any order (`deterministic=False`) and then runs in one pass, a row of its own
holds it against the same bits on every run, which is what others get, and against cuDNN and FlashAttention-4.
FlashAttention-4 is a peer backward with its own `deterministic=True` too, where it takes that.

TFLOP/s count 4 B H n_q n_k D forward and 2.5 times that backward, half of both when causal, whatever a kernel makes.
A peer that does not take a shape, or is wrong there, is left out, and a line says so. Flex is compiled; eager writes
the scores.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from math import isfinite

import torch
from torch._functorch import config as donated_buffers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.against import Case, Red, measure
from course_lib.kernels.attention import attention, attention_reference
from course_lib.kernels.attention.tuning import Groups, blocks_for, one_pass_for
from course_lib.timing import compare

# (batch, heads, length, head size, causal, largest time over the fastest peer's: forward, backward). The targets were
# set in TFLOP/s beside cuDNN's, 440 beside 454 and so on; what can be held to is a ratio in one process.
CASES = (
    (4, 16, 4096, 64, False, 454 / 440, 445 / 380),
    (4, 16, 4096, 64, True, 412 / 395, 370 / 340),
    (4, 16, 4096, 128, False, 600 / 575, 532 / 430),
    (4, 16, 4096, 128, True, 544 / 480, 456 / 390),
    (4, 16, 16384, 128, False, 598 / 580, 542 / 440),
    (256, 16, 256, 72, False, 1.0, 0.85),
)
EAGER_BYTES = 8 * 2**30  # larger score matrices are not tried
# Relative, against float64, over normal inputs. Peers: o 1.9e-3 to 2.4e-3, gradients 2.3e-3 to 2.7e-3.
LIMIT = {"o": 2.5e-3, "dq": 2.8e-3, "dk": 2.8e-3, "dv": 2.8e-3}
# A peer may be this many times as far off. Eager rounds the scores to bf16, once more when they are scaled unless the
# scale is a power of two, and the weights: o 5.8e-3 and gradients 6.4e-3 at head size 128.
SLACK = {"eager": 3.0}
OTHERS_SLACK = 2.0
IN_ORDER = "flash 4 in order"  # deterministic=True: the same bits on every run


def run() -> list[dict]:
    rows = []
    with donated_buffers.patch(donated_buffer=False):  # one graph is kept, and its backward runs again and again
        for row in chain.from_iterable(_rows(*shape) for shape in CASES):
            rows.append(row)
            print({key: round(x, 4) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
    return rows


def inputs(batch: int, heads: int, length: int, head_size: int) -> list[torch.Tensor]:
    """q, k, v and do, normal."""
    return [torch.randn(batch, heads, length, head_size, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def refusal(error: Exception) -> str:
    """The first line that says something."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _rows(batch, heads, length, head_size, causal, *targets) -> Iterator[dict]:
    q, k, v, do = inputs(batch, heads, length, head_size)
    want = _exact(q, k, v, do, causal)
    ours = partial(attention, causal=causal)
    errors = errors_of(ours, q, k, v, do, want)
    peers, peer_errors = {}, {}
    for name, peer in _peers(q, causal).items():
        try:
            peer_errors[name] = errors_of(peer, q, k, v, do, want)
        except Exception as refused:  # a shape that it does not take; compilers have exceptions of their own
            print(f"{name} is left out of {tuple(q.shape)}: {refusal(refused)[:120]}", flush=True)
        else:
            slack = SLACK.get(name, OTHERS_SLACK)
            if far := _too_far(peer_errors[name], slack):
                print(f"{name} is left out of {tuple(q.shape)}: errors {far}, over {slack:g} times {LIMIT}", flush=True)
            else:
                peers[name] = peer
    flops = 4 * batch * heads * length**2 * head_size / (2 if causal else 1)
    size = f"{batch} x {heads} x {length} x {head_size}{' causal' if causal else ''}"
    for direction, make, factor, target in zip(
        ("forward", "backward"), (_forward, _backward), (1.0, 2.5), targets, strict=True
    ):
        row = measure(
            Case(
                f"attention {direction} bf16 {size}",
                make(ours, q, k, v, do),
                {
                    name: make(peer, q, k, v, do)
                    for name, peer in peers.items()
                    if direction == "backward" or name != IN_ORDER  # forward it is the same kernel
                },
                partial(_check, errors),
                target=target,
                method="events",
                work={"TFLOP/s": factor * flops / 1e12},
            )
        )
        row["rung"] = _rung(direction, causal, q, k, v, do)
        names = ("o",) if direction == "forward" else ("dq", "dk", "dv")
        row["error of ours"] = _largest(errors, names)
        row |= {f"error of {name}": _largest(peer_errors[name], names) for name in peer_errors}
        yield row
    blocks = one_pass_for(causal, None, False, q, k, v, do)
    if blocks and not blocks.in_order:
        free = partial(attention, causal=causal, deterministic=False)
        beside = {"in order": ours} | {name: peers[name] for name in ("cudnn", "flash 4") if name in peers}
        in_order, in_any = (_backward(one, q, k, v, do) for one in (ours, free))
        cost = compare(in_order, in_any, method="events", cold=False, precision=0.005, max_seconds=1.0)
        row = measure(
            Case(
                f"attention backward in any order bf16 {size}",
                in_any,
                {name: _backward(one, q, k, v, do) for name, one in beside.items()},
                partial(_check, errors_of(free, q, k, v, do, want)),
                method="events",
                work={"TFLOP/s": 2.5 * flops / 1e12},
            )
        )
        yield row | {"rung": "groups", "what the same bits cost": cost.ratio}


def _rung(direction: str, causal: bool, q, k, v, do) -> str:
    """Which kernels ours are: "plain" Triton, or with jobs for their warps; of the backward pass dk and dv."""
    if direction == "forward":
        blocks = blocks_for("forward", causal, None, q, k, v, q)
    elif one_pass_for(causal, None, True, q, k, v, do):
        return "groups"
    else:
        blocks = blocks_for("dkdv", causal, None, q, k, v, do, k, v)
    return "groups" if isinstance(blocks, Groups) else "plain"


def _forward(function: Callable, q, k, v, do) -> Callable[[], object]:
    return partial(function, q, k, v)


def _backward(function: Callable, q, k, v, do) -> Callable[[], object]:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = function(*leaves)
    return partial(torch.autograd.grad, o, leaves, do, retain_graph=True)


def _peers(q: torch.Tensor, causal: bool) -> dict[str, Callable]:
    def sdpa(backend, q, k, v):
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal)

    batch, heads, length, _ = q.shape
    mask = create_block_mask(lambda b, h, m, n: m >= n, None, None, length, length, device="cuda") if causal else None
    torch._dynamo.reset()
    flex = torch.compile(flex_attention, dynamic=False)
    peers = {
        "flash": partial(sdpa, SDPBackend.FLASH_ATTENTION),
        "cudnn": partial(sdpa, SDPBackend.CUDNN_ATTENTION),
        "efficient": partial(sdpa, SDPBackend.EFFICIENT_ATTENTION),
        "flex": lambda q, k, v: flex(q, k, v, block_mask=mask),
    }
    peers |= flash_attention_4(causal) | flash_attention_4(causal, True)
    if batch * heads * length**2 * 2 <= EAGER_BYTES:
        peers["eager"] = partial(_eager, causal)
    else:
        print(f"eager is left out of {tuple(q.shape)}: scores of more than {EAGER_BYTES / 2**30:g} GiB", flush=True)
    return peers


@cache
def flash_attention_4(causal: bool, deterministic: bool = False) -> dict[str, Callable]:
    """FlashAttention-4 (wheel flash-attn-4; on Hopper its kernels are FlashAttention-3's), where it is installed."""
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError:
        print("FlashAttention-4 is not installed", flush=True)
        return {}

    def call(q, k, v):
        found = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal, deterministic=deterministic)
        return (found[0] if isinstance(found, tuple) else found).transpose(1, 2)

    return {IN_ORDER if deterministic else "flash 4": call}


def _eager(causal: bool, q, k, v) -> torch.Tensor:
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1), -float("inf"))
    return torch.softmax(s, dim=-1) @ v


def _slice(x: torch.Tensor) -> torch.Tensor:
    """What is compared in float64: the first two heads of the first and of the last sequence."""
    return x[[0, -1], :2]


def _exact(q, k, v, do, causal: bool) -> dict[str, torch.Tensor]:
    """One head at a time: the scores of 16384 keys are 2 GB in float64, and a gradient holds several such."""
    heads = [x.double().flatten(0, 1)[:, None, None] for x in map(_slice, (q, k, v, do))]
    parts = []
    for *leaves, one in zip(*heads):
        leaves = [x.detach().requires_grad_() for x in leaves]
        o = attention_reference(*leaves, causal)[0]
        parts.append((o.detach(), *torch.autograd.grad(o, leaves, one)))
    return {n: torch.cat(x).view(2, 2, *q.shape[2:]) for n, x in zip(("o", "dq", "dk", "dv"), zip(*parts))}


def errors_of(function: Callable, q, k, v, do, want: dict) -> dict[str, float]:
    """||got - want|| / ||want|| of o and the gradients; NaN anywhere gives NaN."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = function(*leaves)
    got = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *torch.autograd.grad(o, leaves, do))))
    return {n: relative(_slice(x), want[n]) if not x.isnan().any() else float("nan") for n, x in got.items()}


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / want.norm()).item()


def limit(name: str, numbers: int) -> float:
    """Of one query the error scatters: over 64 columns it is 2.3e-3 and 0.3e-3 more or less."""
    return LIMIT[name] * (1 + 4 / numbers**0.5)


def _too_far(errors: dict[str, float], slack: float = 1.0) -> dict[str, float]:
    return {n: errors[n] for n in LIMIT if not errors[n] <= slack * LIMIT[n]}  # NaN is never at most anything


def _largest(errors: dict[str, float], names: tuple[str, ...]) -> float | None:
    """None where one is NaN or infinite: a row that is kept holds numbers."""
    values = [errors[name] for name in names]
    return max(values) if all(map(isfinite, values)) else None


def _check(errors: dict[str, float]) -> None:
    if _too_far(errors):
        raise Red(f"attention is wrong: relative errors {errors}, limits {LIMIT}")
