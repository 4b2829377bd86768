"""The backward pass of attention in one pass and in two, bf16, 4 x 16 heads of 4096; and what a race does to dq.

One pass makes 5 products and adds to dq by atomic operations; two passes make 7 and add nothing. "without dq" is one
pass that leaves dq out: the rest of its time goes to the additions and the product before them. One pass is given
delta; two passes make it. TFLOP/s count 10 B H n_q n_k D for everybody, half of it causal.
"""

from functools import partial

import torch

from benchmarks.attention import inputs, relative
from course_lib.kernels.attention.backward import row_terms, write_gradients
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.one_pass import backward_in_one_pass
from course_lib.timing import compare

RUNS = 6
BLOCKS = ((64, 64, 4, 2), (64, 64, 4, 3), (32, 64, 4, 3), (64, 128, 8, 2))  # the fastest one stands for one pass


def run() -> list[dict]:
    speeds = [_speed(head_size, causal) for head_size in (64, 128) for causal in (False, True)]
    return [*speeds, *(_answers(add) for add in ("two passes", "atomic", "racy"))]


def _given(head_size: int, causal: bool):
    """do, q, k, v, o, l, causal, scale, and delta."""
    torch.manual_seed(0)
    q, k, v, do = inputs(4, 16, 4096, head_size)
    scale = head_size**-0.5
    o, l = forward(q, k, v, causal, scale)
    return (do, q, k, v, o, l, causal, scale), (o.float() * do.float()).sum(-1)


def _two_passes(do, q, k, v, o, l, causal: bool, scale: float) -> list[torch.Tensor]:
    """Also where the library's backward pass is one, with jobs for its warps."""
    gradients = [torch.empty_like(x) for x in (q, k, v)]
    write_gradients(*gradients, row_terms(l), do, q, k, v, o, l, causal, scale)
    return gradients


def _speed(head_size: int, causal: bool) -> dict:
    given, delta = _given(head_size, causal)
    two = partial(_two_passes, *given)
    best = None
    for blocks in BLOCKS:
        one = partial(backward_in_one_pass, *given, "atomic", blocks, delta)
        seen = compare(one, two, cold=False, precision=0.01, max_seconds=0.4)
        if best is None or seen.ratio < best[0].ratio:
            best = seen, blocks
    seen, blocks = best
    without = partial(backward_in_one_pass, *given, "none", blocks, delta)
    rest = compare(without, two, cold=False, precision=0.01, max_seconds=0.4)
    tflop = 10 * 64 * 4096**2 * head_size / (2 if causal else 1) / 1e12
    return {
        "name": f"backward, head size {head_size}{' causal' if causal else ''}",
        "two passes us": seen.b.us,
        "one pass us": seen.a.us,
        "without dq us": rest.a.us,
        "one over two": seen.ratio,
        "low": seen.low,
        "high": seen.high,
        "two passes TFLOP/s": tflop / seen.b.median_s,
        "one pass TFLOP/s": tflop / seen.a.median_s,
        "blocks": "x".join(map(str, blocks)),
    }


def _answers(add: str) -> dict:
    """dq of RUNS calls with the same inputs: how many answers, how far apart, how far from the two passes' own."""
    given, delta = _given(64, False)
    right = _two_passes(*given)[0].double()
    if add == "two passes":
        answers = [_two_passes(*given)[0] for _ in range(RUNS)]
    else:
        answers = [backward_in_one_pass(*given, add, delta=delta)[0] for _ in range(RUNS)]
    different = sum(not any(torch.equal(x, y) for y in answers[:i]) for i, x in enumerate(answers))
    errors = [relative(x, right) for x in answers]
    apart = max(relative(x, answers[0].double()) for x in answers)
    return {
        "name": f"dq, {add}: {RUNS} runs",
        "different answers": different,
        "least error": min(errors),
        "largest error": max(errors),
        "furthest apart": apart,
    }
