"""The kernels of add_norm as they are compiled, and every entry of their tables."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE
from course_lib.kernels.add_norm import add_norm, add_norm_reference, tuning
from course_lib.kernels.add_norm.backward import backward_kernel, write_backward
from course_lib.kernels.add_norm.forward import forward_kernel, write_forward
from course_lib.kernels.add_norm.rows import sizes
from course_lib.kernels.add_norm.tuning import BACKWARD, FORWARD, Backward, Forward, parts_of
from course_lib.kernels.dropout import dropout_reference
from tests.kernels.add_norm_oracle import (
    EPS,
    LIMIT,
    NAMES,
    backward_is_right,
    backward_oracle,
    drawn,
    forward_oracle,
    forward_terms,
    gradients,
    near,
    seed_of,
)
from tests.kernels.signatures import signature_of

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

# Bytes a thread that backward spills in bf16 on sm_90, at most of Triton 3.6.0 and 3.7.1: benchmarks/notes/add_norm.md.
SPILLS = {
    "plain": {12288: 8},
    "weights in fp32": {12288: 16},
    "dropout": {12288: 84},
    "sum_x": {12288: 172, 16384: 28},
}


def compiled(kernel, N, how, arch=90, drop=False, sum_x=False, weight="*bf16", rows="*bf16"):
    fixed = sizes(N, math.gcd(N, 8), how.rows, kernel is backward_kernel and how.halved)
    if kernel is backward_kernel:
        fixed |= {"AHEAD": how.ahead, "STAGES": how.stages, "AGAIN": how.again, "SHARERS": 1 + how.halved}
    if not drop:
        fixed |= {"seed_ptr": None} | ({} if kernel is forward_kernel else {"dx_ptr": None})
    if kernel is backward_kernel and not sum_x:
        fixed["parts_x_ptr"] = None
    types = dict.fromkeys(("mean_ptr", "rstd_ptr", "parts_w_ptr", "parts_b_ptr", "parts_x_ptr"), "*fp32")
    types |= {"seed_ptr": "*i64", "eps": "fp32", "scale": "fp32", "weight_ptr": weight}
    limit = tuning.registers_of(how) if sum_x else None
    signature = signature_of(kernel, fixed, types, rows)
    return compile_kernel(kernel, signature, fixed, arch=arch, num_warps=how.warps, max_registers=limit)


@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("N", [1152, 4096])
def test_the_published_widths_compile_without_spills_to_wide_accesses(N, arch, access_widths):
    cuda = torch.device("cuda")
    forward = compiled(forward_kernel, N, tuning.forward_rows(N, cuda), arch)
    backward = compiled(backward_kernel, N, tuning.backward_rows(N, 16384, cuda), arch)
    with_sum = compiled(backward_kernel, N, tuning.backward_rows(N, 16384, cuda), arch, sum_x=True)
    for made in (forward, backward, with_sum):
        assert made.fits and made.spills_bytes == 0 and not made.instructions["atomic"], str(made)
        assert {16} <= access_widths(made)["ld"] and {16} <= access_widths(made)["st"]
    how = tuning.backward_rows(N, 16384, cuda)
    for made in (backward, with_sum):
        assert made.registers * 32 * how.warps * how.programs <= 65536, "so many programs side by side"


def test_two_parts_are_for_single_rows_and_cover_the_width():
    for N in (*range(1, 140), 256, 768, 1000, 1152, 1600, 4096, 5120, 16384):
        main, rest = parts_of(N, 1)
        assert main + rest >= N and (rest == 0 or main < N)
        assert parts_of(N, 2)[1] == 0
        half, other = parts_of(N, 1, halved=True)
        assert half == other and 2 * half >= N
    assert parts_of(1152, 1) == (1024, 128)
    assert parts_of(12289, 1, halved=True) == (8192, 8192)


@pytest.mark.usefixtures("an_h200")
def test_a_width_gets_the_first_entry_that_holds_its_lanes():
    cuda = torch.device("cuda")
    assert tuning.backward_rows(1152, 16384, cuda) == BACKWARD[1152]
    assert tuning.backward_rows(2048, 16384, cuda) == BACKWARD[2048]
    assert tuning.backward_rows(4097, 16384, cuda) == BACKWARD[8192]
    assert tuning.backward_rows(9216, 16384, cuda) == BACKWARD[12288]
    assert tuning.backward_rows(9216, 16384, cuda, 4) == tuning.BACKWARD_FP32[12288]
    assert tuning.forward_rows(72, cuda) == Forward(8, FORWARD[1024].warps)
    assert tuning.backward_rows(72, 3, cuda).rows == 4


@pytest.mark.usefixtures("an_h200")
def test_weights_and_sums_of_a_row_are_loaded_anew_where_fp32_is_made_twice():
    """Not volatile, they let the first fp32 rows stay: 92 bytes spill with Triton 3.6.0, 100 with 3.7.1."""
    made = compiled(backward_kernel, 12288, tuning.backward_rows(12288, 16384, torch.device("cuda")))
    assert made.spills_bytes <= SPILLS["plain"][12288], str(made)


def test_the_estimate_of_shared_memory_counts_weights_in_their_own_type(on):
    """The compiler asks for 123,060 B at 12288 columns, with weights in fp32 for 172,212, and for at most 164,008 at
    16384, where rows are not made twice; an A100 has 166,912."""
    how, wide = BACKWARD[12288], BACKWARD[16384]
    assert 123_060 <= tuning.need_of(how, 12288, 2, 2).shared_bytes <= 125_000
    assert 172_212 <= tuning.need_of(how, 12288, 2, 4).shared_bytes <= 175_000
    for weights in (2, 4):
        assert 164_008 <= tuning.need_of(wide, 16384, 2, weights).shared_bytes <= 166_912
    on(80)
    assert tuning.backward_rows(12288, 4096, torch.device("cuda")) == how
    assert tuning.backward_rows(12288, 4096, torch.device("cuda"), 2, 4).stages == 1
    assert tuning.backward_rows(16384, 4096, torch.device("cuda"), 2, 4) == wide


@pytest.mark.usefixtures("an_h200")
def test_two_programs_share_rows_that_one_cannot_hold():
    """One program that has a row to itself spills hundreds of bytes: benchmarks/notes/add_norm.md."""
    cuda = torch.device("cuda")
    how, fp32 = (tuning.backward_rows(16384, 16384, cuda, itemsize) for itemsize in (2, 4))
    assert how.halved and fp32.halved
    for columns in (14336, 16384):
        made = compiled(backward_kernel, columns, how)
        assert made.spills_bytes == 0, str(made)
    alone = compiled(backward_kernel, 16384, replace(how, halved=False, stages=2, again=True))
    assert alone.spills_bytes > 200, str(alone)
    made = compiled(backward_kernel, 16384, fp32, weight="*fp32", rows="*fp32")
    assert made.spills_bytes <= 12, str(made)


@pytest.mark.slow
@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize("columns", sorted(BACKWARD))
def test_as_many_programs_as_the_table_says_fit_beside_each_other(columns):
    how = tuning.backward_rows(columns, 16384, torch.device("cuda"))
    made = compiled(backward_kernel, columns, how)
    assert made.registers * 32 * how.warps * how.programs <= 65536, str(made)
    assert made.spills_bytes <= SPILLS["plain"].get(columns, 0), str(made)


@pytest.mark.slow
@pytest.mark.usefixtures("an_h200")
@pytest.mark.parametrize("columns", sorted(BACKWARD))
@pytest.mark.parametrize("more", sorted(SPILLS.keys() - {"plain"}))
def test_dropout_a_sum_more_and_fp32_weights_spill_at_wide_rows_alone(more, columns):
    """And so much: most for the sum of dx, which is a third sum of a row in registers."""
    options = {"weights in fp32": {"weight": "*fp32"}, "dropout": {"drop": True}, "sum_x": {"sum_x": True}}[more]
    made = compiled(backward_kernel, columns, tuning.backward_rows(columns, 16384, torch.device("cuda")), **options)
    assert made.spills_bytes <= SPILLS[more].get(columns, 0), str(made)


def test_other_rows_and_warps_may_be_asked_for(random):
    x, residual, weight, bias = drawn(11, 72, torch.float32)
    want = add_norm(x, residual, weight, bias)
    mean, rstd = torch.empty(11, device=DEVICE), torch.empty(11, device=DEVICE)
    grads = backward_oracle(x, residual, want[1], weight, *forward_terms(want[1]))
    for rows in (1, 2, 8):
        y, s, d = (torch.full_like(x, float("nan")) for _ in range(3))
        dw, db = (torch.full_like(weight, float("nan")) for _ in range(2))
        write_forward(y, s, mean, rstd, x, residual, weight, bias, EPS, how=Forward(rows, 4))
        near(y, want[0], 1e-6)
        for ahead in (False, True):
            how = Backward(rows, 4, 1, ahead)
            write_backward(d, None, dw, db, x, residual, s, weight, mean, rstd, how=how)
            for got, exact in zip((d, dw, db), grads):
                near(got, exact, 2e-6)


WAYS_OF_WIDE_ROWS = [
    Backward(1, 4, 1 + halved, ahead=ahead, again=again, halved=halved)
    for halved, ahead, again in product((False, True), repeat=3)
    if halved or again
]


@pytest.mark.fp32_first
@pytest.mark.parametrize(
    ("rows", "N", "other"),
    [
        (11, 72, "plain"),
        (1, 33, "no bias"),
        pytest.param(5, 1152, "no ds", marks=pytest.mark.slow),
        (9, 129, "dropout"),
        pytest.param(9, 132, "dropout", marks=pytest.mark.slow),
        (7, 40, "sum_x"),
        pytest.param(0, 40, "plain", marks=pytest.mark.slow),
        pytest.param(12, 16, "sum_x", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("how", WAYS_OF_WIDE_ROWS, ids=str)
def test_the_ways_of_wide_rows_are_right_at_narrow_rows_too(rows, N, other, how, dtype, fenced, random):
    """Rows that lie apart, by strides that differ."""
    dy, ds, s = (random(rows, N + more, dtype=dtype)[:, :N] for more in (1, 8, 3))
    weight, mean, rstd = random(N, dtype=dtype), torch.randn(rows, device=DEVICE), torch.rand(rows, device=DEVICE) + 0.5
    ds = None if other == "no ds" else ds
    d, dw, db, sum_x = fenced(rows, N, dtype=dtype), *(fenced(N, dtype=torch.float32) for _ in range(3))
    dx, p, seed = None, 0.0, None
    if other == "dropout":
        dx, p, seed = fenced(rows, N, dtype=dtype), 0.3, seed_of(9)
    db, sum_x = None if other == "no bias" else db, sum_x if other == "sum_x" else None
    write_backward(d, dx, dw, db, dy, ds, s, weight, mean, rstd, p, seed, 8, how=how, sum_x=sum_x)
    want = backward_is_right(d, dw, db, sum_x, dy, ds, s, weight, mean, rstd)
    if dx is not None:
        kept = dropout_reference(torch.ones(rows, N, device=DEVICE), p, 9, 8).double()
        near(dx, want * kept, 2e-6 + torch.finfo(dtype).eps / 2, "dx")


@pytest.mark.fp32_first
@pytest.mark.parametrize("read", ["dy", "ds", "s"])
@pytest.mark.parametrize("written", ["d", "dx"])
def test_two_programs_of_a_row_write_nothing_that_the_other_reads(written, read, dtype, random):
    """A program alone may: it has read a row before it writes it."""
    t = {name: random(3, 40, dtype=dtype) for name in ("d", "dx", "dy", "ds", "s")}
    t[written] = t[read]
    weight, mean, rstd = random(40, dtype=dtype), torch.randn(3, device=DEVICE), torch.rand(3, device=DEVICE) + 0.5
    dw, db = (torch.empty(40, device=DEVICE) for _ in range(2))
    with pytest.raises(AssertionError, match="their own memory"):
        write_backward(
            t["d"], t["dx"], dw, db, t["dy"], t["ds"], t["s"], weight, mean, rstd, 0.3, seed_of(9), 8,
            how=Backward(1, 4, 2, halved=True),
        )  # fmt: skip


# What only a GPU can show.


@pytest.mark.gpu
@pytest.mark.parametrize("short", [0, 8, 3])
@pytest.mark.parametrize("columns", sorted(FORWARD.keys() | BACKWARD.keys()))
def test_every_entry_of_the_table_is_right(columns, short, dtype, random):
    N = columns - short
    given = drawn(1031, N, dtype)
    gy, gs = random(1031, N, dtype=dtype), random(1031, N, dtype=dtype)
    want = gradients(add_norm_reference, [t.double() for t in given], gy.double(), gs.double())
    for name, a, b in zip(NAMES, gradients(add_norm, given, gy, gs), want, strict=True):
        near(a, b, 2 * LIMIT[dtype], name)


@pytest.mark.gpu
@pytest.mark.parametrize("N", [1152, 4096])
def test_errors_are_no_larger_than_eager_s(N, random):
    kind = torch.bfloat16
    given = drawn(16384, N, kind)
    gy, gs = random(16384, N, dtype=kind), random(16384, N, dtype=kind)
    want = gradients(add_norm_reference, [t.double() for t in given], gy.double(), gs.double())
    errors = [
        [((a.double() - b).norm() / b.norm()).item() for a, b in zip(gradients(f, given, gy, gs), want)]
        for f in (add_norm, add_norm_reference)
    ]
    for name, ours, eager in zip(NAMES, *errors):
        assert ours <= 1.02 * eager, f"{name}: {ours:.2e}, eager {eager:.2e}"


@pytest.mark.gpu
@pytest.mark.parametrize("p", [0.0, 0.2])
@pytest.mark.parametrize("N", [72, 1152, 4096, 16384])
def test_the_same_bits_on_every_run(N, p):
    given = drawn(5000, N, torch.bfloat16)
    first = gradients(lambda *t: add_norm(*t, p=p, seed=seed_of(2)), given, given[0], given[1])
    for _ in range(5):
        again = gradients(lambda *t: add_norm(*t, p=p, seed=seed_of(2)), given, given[0], given[1])
        assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.gpu
def test_matrices_past_2_to_the_31_elements_are_right_to_the_last_row():
    x, residual = (torch.randn(2**19 + 5, 4096, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    _, _, weight, bias = drawn(1, 4096, torch.bfloat16)
    tail = x[-4:].clone(), residual[-4:].clone()
    y, s = add_norm(x, residual, weight, bias, in_place="both")
    *_, want, _ = forward_oracle(*tail, weight, bias)
    near(y[-4:], want, LIMIT[torch.bfloat16])
    assert not y.isnan().any()
    mean, rstd = forward_terms(s[-4:])
    d, dw = torch.empty_like(s), torch.empty(4096, device=DEVICE)
    means, rstds = torch.zeros(len(s), device=DEVICE), torch.ones(len(s), device=DEVICE)
    means[-4:], rstds[-4:] = mean.float(), rstd.float()
    write_backward(d, None, dw, None, y, None, s, weight, means, rstds)
    near(d[-4:], backward_oracle(y[-4:], None, s[-4:], weight, mean, rstd)[0], LIMIT[torch.bfloat16])


@pytest.mark.gpu
@pytest.mark.parametrize("columns", sorted(BACKWARD))
def test_dropout_at_every_entry_of_the_table(columns, random):
    given = drawn(517, columns, torch.bfloat16)
    gy = random(517, columns, dtype=torch.bfloat16)
    kept = dropout_reference(torch.ones(517, columns), 0.3, 9).to(DEVICE).double()
    want = gradients(
        lambda x, *rest: add_norm_reference(x * kept, *rest), [t.double() for t in given], gy.double(), gy.double()
    )
    got = gradients(lambda *t: add_norm(*t, p=0.3, seed=seed_of(9)), given, gy, gy)
    for name, a, b in zip(NAMES, got, want, strict=True):
        near(a, b, 2 * LIMIT[torch.bfloat16], name)
