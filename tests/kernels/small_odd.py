"""Every kernel once or twice on small shapes that fit no tile, and how far it was from float64.

    python -m tests.kernels.small_odd FAMILY        prints the largest relative error

test_sanitizer.py runs this under compute-sanitizer, which makes a kernel a hundred times slower: so small, and few.
"""

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

import torch

from course_lib.device import DEVICE, TIER
from course_lib.kernels.add_norm import add_norm, add_norm_reference
from course_lib.kernels.angles import rope_frequencies
from course_lib.kernels.attention import attention_reference, tuning
from course_lib.kernels.attention.backward import backward, write_backward
from course_lib.kernels.attention.forward import forward, write_forward
from course_lib.kernels.attention.tuning import GROUPS, IN_ORDER, ONE_PASS, Groups, Parts
from course_lib.kernels.dropout import dropout, dropout_reference
from course_lib.kernels.linear_gelu import (
    linear_gelu_grouped,
    linear_gelu_persistent,
    linear_gelu_pingpong,
    linear_gelu_reference,
    linear_gelu_tiled,
)
from course_lib.kernels.matmul import matmul_grouped, matmul_naive, matmul_persistent, matmul_tiled
from course_lib.kernels.mx import dequantize, dequantize_reference, quantize, quantize_reference
from course_lib.kernels.mx.product import product
from course_lib.kernels.one_pass import backward_in_one_pass
from course_lib.kernels.pointwise import axpy, cos_chain, cos_chain_reference
from course_lib.kernels.rope import Tables, rope, rope_, rope_reference
from course_lib.kernels.softmax import softmax

DTYPE = torch.bfloat16 if TIER == "gpu" else torch.float16


def made(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def pointwise() -> float:
    x, y, out = torch.randn(1037, device=DEVICE), torch.randn(1037, device=DEVICE), torch.empty(1037, device=DEVICE)
    worst = error(axpy(1.5, x, y, out.clone()), 1.5 * x.double() + y.double())
    return max(worst, error(cos_chain(x, 3, out.clone()), cos_chain_reference(x.double(), 3)))


def rows() -> float:
    return max(error(softmax(x), x.double().softmax(-1)) for x in (made(37, 129), made(5, 3000)))


def products() -> float:
    worst = 0.0
    for M, N, K in ((70, 40, 36), (129, 136, 72)):
        a, b = made(M, K), made(K, N)
        reached = TIER == "gpu" and K % 8 == 0  # by the copy engine
        for f in (matmul_naive, matmul_tiled, matmul_grouped, *((matmul_persistent,) if reached else ())):
            worst = max(worst, error(f(a, b), a.double() @ b.double()))
    return worst


def _attention(
    D: int, n_q: int, n_k: int, H: int, H_kv: int, causal: bool, one_pass: bool = False, deterministic: bool = True,
    length: int | None = None,
) -> float:  # fmt: skip
    q, k, v, do = (made(1, h, n, D) for h, n in ((H, n_q), (H_kv, n_k), (H_kv, n_k), (H, n_q)))
    lengths = None if length is None else torch.tensor([length], dtype=torch.int32, device=DEVICE)
    o, l = forward(q, k, v, causal, D**-0.5, lengths)
    gradients = backward(do, q, k, v, o, l, causal, D**-0.5, lengths, deterministic=deterministic)
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    want, _ = attention_reference(*exact, causal, D**-0.5, lengths)
    wanted = torch.autograd.grad(want, exact, do.double())
    worst = max([error(o, want), *map(error, gradients, wanted)])
    if one_pass:
        worst = max([worst, *map(error, backward_in_one_pass(do, q, k, v, o, l, causal, D**-0.5), wanted)])
    return worst


def attention() -> float:
    """The first rung: its blocks, and dq by atomics beside them."""
    with patch.multiple(tuning, GROUPS={}, ONE_BLOCK={}, SIDE_BY_SIDE={}):
        grouped = _attention(72, 77, 101, 2, 1, True), _attention(33, 77, 101, 2, 1, True)
        return max(*grouped, _attention(64, 90, 70, 2, 2, False, True), _attention(128, 70, 66, 2, 2, True, True))


def few_keys() -> float:
    """Forward in small blocks of few warps; backward all gradients of a head by one program, and both passes in one
    launch."""
    worst = 0.0
    for D, n_q, n_k, causal, blocks in (
        (72, 13, 9, False, tuning.Blocks(16, 32, 2, 1)),
        (72, 37, 29, True, tuning.Blocks(32, 32, 2, 1)),
        (128, 70, 101, False, tuning.Blocks(64, 64, 4, 2)),
        (64, 130, 64, True, tuning.Blocks(64, 64, 4, 1)),
    ):
        q, k, v, do = (made(1, 2, n, D) for n in (n_q, n_k, n_k, n_q))
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        want, _ = attention_reference(*exact, causal, D**-0.5)
        wanted = torch.autograd.grad(want, exact, do.double())
        o, l = torch.empty_like(q), torch.empty(q.shape[:-1], device=DEVICE)
        write_forward(o, l, q, k, v, causal, D**-0.5, None, blocks)
        worst = max(worst, error(o, want))
        for of_all in (tuning.OneBlock(32, 128, 8, 2), tuning.SideBySide(64, 64, 4, 2)):
            gradients = [torch.empty_like(x) for x in (q, k, v)]
            write_backward(*gradients, do, q, k, v, o, l, causal, D**-0.5, blocks=of_all)
            worst = max([worst, *map(error, gradients, wanted)])
    return worst


def parts() -> float:
    """Keys of few queries, and query heads of dk and dv, shared by several programs."""
    worst = 0.0
    for n_q, D, m, causal in ((1, 64, 16, False), (5, 72, 32, True), (19, 128, 64, True)):
        q, k, v, do = (made(1, h, n, D) for h, n in ((4, n_q), (1, 201), (1, 201), (4, n_q)))
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        want, _ = attention_reference(*exact, causal, D**-0.5)
        wanted = torch.autograd.grad(want, exact, do.double())
        o, l = torch.empty_like(q), torch.empty(q.shape[:-1], device=DEVICE)
        write_forward(o, l, q, k, v, causal, D**-0.5, None, Parts(m, 32, 4, 3, parts=3))
        gradients = [torch.empty_like(x) for x in (q, k, v)]
        of_heads = Parts(32, 64, 4, 2, parts=2)
        write_backward(*gradients, do, q, k, v, o, l, causal, D**-0.5, blocks=of_heads)
        worst = max([worst, error(o, want), *map(error, gradients, wanted)])
    return worst


def groups() -> float:
    """The second rung, at every head size, also where it is not the fastest."""
    more = {
        ("dkdv", 128, True): Groups(32, 4),
        ("dkdv", 64, False): Groups(64, 4),
    }
    with patch.multiple(tuning, GROUPS={**more, **GROUPS}, SHORT={}, SHORT_HEADS={}, SIDE_BY_SIDE={}):
        odd = (72, 197, 301, 2, 1, False), (72, 130, 257, 2, 2, True), (64, 130, 192, 2, 2, False)
        more = (64, 150, 150, 2, 2, True), (128, 301, 197, 2, 2, True), (128, 150, 260, 140, 140, False)
        narrow = (40, 260, 300, 2, 2, True), (96, 150, 133, 2, 1, False), (32, 200, 70, 2, 2, False)
        narrow = *narrow, (16, 260, 300, 2, 1, False)
        padded = itertools.product((odd[0], more[0], more[1]), (0, 1, 130))
        worst = max(_attention(*case) for case in (*odd, *more, *narrow))
        return max([worst, *(_attention(*case, length=n) for case, n in padded)])


def additions() -> float:
    """Backward in one pass, with jobs for warps: more tiles of keys than one, which add to the same dq."""
    one_pass, in_order = (
        {key: replace(one, least=1, tiles=1, short=None) for key, one in table.items()}
        for table in (ONE_PASS, IN_ORDER)
    )
    always = {"WITH_LENGTHS": (32, 1), "WITH_FEW_QUERIES": (64, 1), "FULL_ROUNDS": 0.0, "SIDE_BY_SIDE": {}}
    # 70 heads are more tiles than programs run at once.
    cases = (64, 301, 197, 2, 1, False), (64, 257, 130, 3, 3, True), (128, 260, 150, 2, 2, False)
    cases += (128, 301, 197, 2, 1, True), (64, 300, 280, 140, 70, False), (64, 300, 257, 2, 1, True)
    cases += (40, 301, 197, 2, 1, True), (72, 260, 150, 2, 2, False)
    cases += (96, 301, 197, 2, 1, True), (32, 257, 130, 3, 3, False)
    padded = (64, 257, 300, 2, 1, False), (128, 257, 200, 2, 2, True), (72, 130, 260, 2, 2, False)
    lengths = itertools.product(padded, (False, True), (150, 1))
    with patch.multiple(tuning, ONE_PASS=one_pass, IN_ORDER=in_order, **always):
        worst = max(_attention(*case, deterministic=wish) for case in cases for wish in (False, True))
        return max([worst, *(_attention(*case, deterministic=wish, length=n) for case, wish, n in lengths)])


def rotations() -> float:
    worst = 0.0
    for H, H_kv, S, D, R, layout in ((5, 2, 37, 128, 128, "halves"), (3, 1, 9, 33, 32, "interleaved")):
        frequencies = rope_frequencies(R)
        q, k, angles = made(1, H, S, D), made(1, H_kv, S, D), Tables.of(frequencies, S, DEVICE)
        by = torch.outer(torch.arange(S).double(), frequencies).to(DEVICE)
        wanted = [rope_reference(x.double(), by.cos(), by.sin(), layout) for x in (q, k)]
        got = rope(q, k, angles, layout)
        rope_(q, k, angles, layout)
        worst = max([worst, *map(error, (*got, q, k), (*wanted, *wanted))])
    return worst


def quantised() -> float:
    worst, wide = 0.0, torch.bfloat16 if TIER == "gpu" else torch.float32  # with the exponents of a scale
    # The tuned rungs': two steps of a warp's walk, and warps with nothing to do in the last turn.
    tuned = ((37, 2048, 32), (33, 1152, 32)) if TIER == "gpu" else ()
    for N, K, group in ((33, 200, 32), (5, 96, 16), *tuned):
        weight = made(N, K, dtype=wide)
        held, exact = quantize(weight, group), quantize_reference(weight, group)
        assert torch.equal(held.mantissas, exact.mantissas) and torch.equal(held.exponents, exact.exponents)
        assert torch.equal(dequantize(held), dequantize_reference(held))
        for count, route in ((1, "vector"), (3, "vector"), (16, "matrix"), (40, "matrix"), (20, "dequantize")):
            x = made(count, K, dtype=wide)
            want = x.double() @ dequantize_reference(held).double().T
            worst = max(worst, error(product(x, held, None, route), want))
    return worst


def gelu() -> float:
    worst = 0.0
    by_tiles = (linear_gelu_tiled, linear_gelu_grouped)
    for M, N, K in ((130, 72, 40), (17, 24, 8)):
        x, w, b = made(M, K), made(N, K) * K**-0.5, made(N)
        want = linear_gelu_reference(x.double(), w.double(), b.double())
        for f in (*by_tiles, *((linear_gelu_persistent, linear_gelu_pingpong) if TIER == "gpu" else ())):
            worst = max(worst, error(f(x, w, b, h=made(M, N)), want))
    return worst


def norms() -> float:
    worst = 0.0
    for count, N in ((37, 72), (5, 1152)):
        given = [made(*shape).requires_grad_() for shape in ((count, N), (count, N), (N,), (N,))]
        exact = [t.detach().double().requires_grad_() for t in given]
        got, want = add_norm(*given), add_norm_reference(*exact)
        into = made(count, N), made(count, N)
        gradients = torch.autograd.grad(got, given, into)
        wanted = torch.autograd.grad(want, exact, tuple(t.double() for t in into))
        worst = max([worst, *map(error, (*got, *gradients), (*want, *wanted))])
        dropped = torch.autograd.grad(add_norm(*given, p=0.2), given, into)
        assert all(t.isfinite().all() for t in dropped)
    seed = torch.tensor(7, device=DEVICE)
    x = made(1037)
    return max(worst, error(dropout(x, 0.3, seed=seed), dropout_reference(x.cpu(), 0.3, 7).to(DEVICE)))


FAMILIES: dict[str, Callable[[], float]] = {
    f.__name__: f
    for f in (
        pointwise,
        rows,
        products,
        attention,
        few_keys,
        parts,
        groups,
        additions,
        rotations,
        quantised,
        gelu,
        norms,
    )
}

if __name__ == "__main__":
    torch.manual_seed(0)
    print(f"{sys.argv[1]}: largest relative error {FAMILIES[sys.argv[1]]():.2g}", flush=True)
