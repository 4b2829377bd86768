import pytest
import torch

from course_lib.device import DEVICE, TIER
from course_lib.kernels import add_norm as module
from course_lib.kernels.add_norm import add_norm, add_norm_operator, add_norm_reference
from course_lib.kernels.add_norm.backward import write_backward
from course_lib.kernels.add_norm.forward import write_forward
from course_lib.kernels.dropout import dropout, dropout_reference
from tests.kernels.add_norm_oracle import (
    EPS,
    LIMIT,
    NAMES,
    U,
    backward_is_right,
    backward_oracle,
    drawn,
    forward_oracle,
    gradients,
    near,
    seed_of,
)

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

WIDTHS = [1, 2, 16, 33, 72, 100, 129, 256, 1000, 1152]


@pytest.mark.parametrize(
    ("rows", "N", "biased"), [(5, N, True) for N in WIDTHS] + [(1, 72, True), (1, 129, False), (2, 16, False)]
)
def test_forward_is_right_for_any_width(rows, N, biased, dtype, fenced, assert_within):
    x, residual, weight, bias = drawn(rows, N, dtype)
    bias = bias if biased else None
    y, s = fenced(rows, N, dtype=dtype), fenced(rows, N, dtype=dtype)
    mean, rstd = fenced(rows, dtype=torch.float32), fenced(rows, dtype=torch.float32)
    write_forward(y, s, mean, rstd, x, residual, weight, bias, EPS)
    exact, want_mean, want_rstd, want, bound = forward_oracle(x, residual, weight, bias)
    assert_within(s, exact, U * exact.abs())
    assert_within(y, want, bound)
    assert_within(mean, want_mean[:, 0], 8 * U * exact.abs().amax(-1))
    near(rstd, want_rstd[:, 0], 1e-4 if N < 3 else 2e-6)


@pytest.mark.parametrize(
    ("rows", "N", "other"),
    [(11, N, "both") for N in WIDTHS] + [(rows, N, o) for rows, N in ((1, 72), (3, 129)) for o in ("no bias", "no ds")],
)
def test_backward_is_right_for_any_width(rows, N, other, dtype, fenced, random):
    """11 rows: programs that take several turns, and not all as many."""
    x, residual, weight, _ = drawn(rows, N, dtype)
    s, (mean, rstd) = (x + residual), (torch.randn(2, rows, device=DEVICE))
    mean, rstd = s[:, 0].float() if N == 1 else mean, rstd.abs() + 0.5
    dy = random(rows, N, dtype=dtype)
    ds = None if other == "no ds" else random(rows, N, dtype=dtype)
    d, dw = fenced(rows, N, dtype=dtype), fenced(N, dtype=torch.float32)
    db = None if other == "no bias" else fenced(N, dtype=torch.float32)
    sum_x = fenced(N, dtype=torch.float32) if other != "no ds" else None
    write_backward(d, None, dw, db, dy, ds, s, weight, mean, rstd, sum_x=sum_x)
    backward_is_right(d, dw, db, sum_x, dy, ds, s, weight, mean, rstd)


@pytest.mark.fp32_first
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "N"), [(7, 72), (5, 33), (3, 1152), (64, 16)])
def test_results_and_gradients_are_those_of_separate_operations(rows, N, p, dtype, random):
    given = drawn(rows, N, dtype)
    gy, gs = random(rows, N, dtype=dtype), random(rows, N, dtype=dtype)
    kept = dropout_reference(torch.ones(rows, N, device=DEVICE), p, 9, 8).double() if p else 1.0
    want = gradients(
        lambda x, *rest: add_norm_reference(x * kept, *rest), [t.double() for t in given], gy.double(), gs.double()
    )
    got = gradients(lambda *t: add_norm(*t, p=p, seed=seed_of(9), offset=8), given, gy, gs)
    for name, a, b in zip(NAMES, got, want, strict=True):
        near(a, b, LIMIT[dtype], name)


@pytest.mark.fp32_first
@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "N"), [(7, 72), (5, 33), (11, 1152)])
def test_a_bias_in_x_gets_the_sum_of_the_gradient_of_x(rows, N, p, dtype, random):
    given = [*drawn(rows, N, dtype), torch.randn(N, device=DEVICE).to(dtype)]
    gy, gs = random(rows, N, dtype=dtype), random(rows, N, dtype=dtype)
    kept = dropout_reference(torch.ones(rows, N, device=DEVICE), p, 9, 8).double() if p else 1.0

    def ours(x, residual, weight, bias, x_bias):
        x = x + x_bias.detach()
        return add_norm(x, residual, weight, bias, p=p, seed=seed_of(9), offset=8, x_bias=x_bias)

    def plain(x, residual, weight, bias, x_bias):
        x = x + x_bias
        return add_norm_reference((x + (x.to(dtype) - x).detach()) * kept, residual, weight, bias)

    got = gradients(ours, given, gy, gs)
    want = gradients(plain, [t.double() for t in given], gy.double(), gs.double())
    for name, a, b in zip((*NAMES, "dx_bias"), got, want, strict=True):
        near(a, b, LIMIT[dtype], name)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("N", [1, 2, 3, 4, 5])
def test_gradients_of_narrow_rows_are_off_by_the_rounding_of_the_sum_alone(N, kind, random, assert_within):
    """The sum is kept in 16 bits, and a narrow row whose numbers are close divides its rounding by a small deviation.
    A row of one number has no deviation: its gradients are 0, whatever was rounded."""
    given = drawn(12, N, kind)
    gy, gs = random(12, N, dtype=kind), torch.zeros(12, N, device=DEVICE, dtype=kind)
    want = gradients(add_norm_reference, [t.double() for t in given], gy.double(), gs.double())
    got = dict(zip(NAMES, gradients(add_norm, given, gy, gs), strict=True))
    want = dict(zip(NAMES, want, strict=True))
    s = given[0].double() + given[1].double()
    rstd = (s.var(-1, correction=0, keepdim=True) + EPS).rsqrt()
    x, g = (s - s.mean(-1, keepdim=True)) * rstd, gy.double() * given[2].double()
    half = 0 if kind == torch.float32 else torch.finfo(kind).eps / 2
    of_x = (half * s.abs() + 16 * U * s.abs().amax(-1, keepdim=True)) * rstd * (1 + x.abs())
    of_sum = (g.abs() * of_x).mean(-1, keepdim=True)
    size = g.abs().amax(-1, keepdim=True)
    if N == 1:
        assert (got["dw"] == 0).all()
        for name in ("dx", "dresidual"):  # the difference of two equal numbers, of which one may not have been rounded
            assert_within(got[name], want[name], rstd * 4 * U * size)
    of_d = of_x * (g * x).mean(-1, keepdim=True).abs() + (x.abs() + of_x) * of_sum + (of_x + 16 * U) * size
    assert_within(got["dx"], want["dx"], rstd * of_d)
    assert_within(got["dw"], want["dw"], (gy.double().abs() * of_x).sum(0) + 32 * U)
    assert_within(got["db"], want["db"], 32 * U * gy.double().abs().sum(0))


@pytest.mark.parametrize("N", [33, 72, 1152])
def test_its_dropout_is_the_one_that_stands_alone(N):
    x, residual, weight, bias = drawn(5, N, torch.float32)
    _, s = add_norm(x, torch.zeros_like(residual), weight, bias, p=0.4, seed=seed_of(21), offset=12)
    assert torch.equal(s, dropout(x, 0.4, seed=seed_of(21), offset=12))
    torch.manual_seed(4)
    _, first = add_norm(x, residual, weight, bias, p=0.4)
    torch.manual_seed(4)
    assert torch.equal(first, add_norm(x, residual, weight, bias, p=0.4)[1])
    assert torch.equal(add_norm(x, residual, weight, bias, p=0.4, training=False)[1], x + residual)


def test_a_large_mean_costs_the_variance_no_bits():
    """E[s^2] - E[s]^2 in fp32 would keep none: the mean's square is 10^8, the variance 1."""
    x, residual, weight, bias = drawn(4, 1152, torch.float32)
    x = x + 1e4
    y, _ = add_norm(x, residual, weight, bias)
    *_, want, _ = forward_oracle(x, residual, weight, bias)
    near(y, want, 3e-3)  # fp32 holds x itself to 5e-4 of a standard deviation
    squares = (x + residual).square().mean(-1) - (x + residual).mean(-1).square()
    assert (squares - 2).abs().max() > 1


def test_eps_stands_inside_the_root():
    _, _, weight, bias = drawn(1, 72, torch.float32)
    x = torch.full((3, 72), 5.0, device=DEVICE)
    mean, rstd = torch.empty(3, device=DEVICE), torch.empty(3, device=DEVICE)
    y = torch.empty_like(x)
    write_forward(y, torch.empty_like(x), mean, rstd, x, x, weight, bias, 0.04)
    assert torch.equal(rstd, torch.full_like(rstd, 5.0))
    # A GPU divides by N to two units: the mean may be off by 2e-6.
    torch.testing.assert_close(y, bias.expand(3, 72), rtol=0, atol=1e-4 if DEVICE == "cuda" else 0)


@pytest.mark.parametrize(("N", "pitches"), [(40, (56, 48, 40, 64)), (33, (35, 34, 33, 37)), (1152, (1160,) * 4)])
def test_rows_may_lie_apart_in_memory(N, pitches, dtype, random, fenced):
    given = [random(5, pitch, dtype=dtype)[:, :N] for pitch in pitches[:2]]
    _, _, weight, bias = drawn(1, N, dtype)
    buffers = [fenced(5, pitch, dtype=dtype) for pitch in pitches[2:]]
    y, s = (b[:, :N] for b in buffers)
    mean, rstd = torch.empty(5, device=DEVICE), torch.empty(5, device=DEVICE)
    write_forward(y, s, mean, rstd, *given, weight, bias, EPS)
    exact, _, _, want, _ = forward_oracle(*given, weight, bias)
    near(y, want, LIMIT[dtype])
    near(s, exact, LIMIT[dtype])
    assert all(b[:, N:].isnan().all() for b in buffers), "written between the rows"
    d = buffers[0].fill_(float("nan"))[:, :N]
    dw, db = torch.empty(N, device=DEVICE), torch.empty(N, device=DEVICE)
    write_backward(d, None, dw, db, given[0], given[1], s, weight, mean, rstd)
    near(d, backward_oracle(given[0], given[1], s, weight, mean, rstd)[0], LIMIT[dtype])
    assert buffers[0][:, N:].isnan().all()


def test_leading_dimensions_and_other_strides_are_no_special_case():
    x, residual, weight, bias = drawn(30, 72, torch.float32)
    want = gradients(add_norm, (x, residual, weight, bias), x, residual)
    for shape in ((2, 15, 72), (30, 1, 72)):
        got = gradients(
            add_norm, (x.view(shape), residual.view(shape), weight, bias), x.view(shape), residual.view(shape)
        )
        assert got[0].shape == shape
        assert all(torch.equal(a.flatten(), b.flatten()) for a, b in zip(got, want))
    got = gradients(add_norm, (x.T.contiguous().T, residual, weight, bias), x.T.contiguous().T, residual)
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("of_x", "of_residual", "of_weight"), [("half", "float", "float"), ("half", "float", "half")])
def test_the_stream_of_residuals_may_be_finer_than_what_is_added(of_x, of_residual, of_weight):
    x, residual, weight, bias = drawn(6, 72, torch.float32)
    given = [getattr(x, of_x)(), getattr(residual, of_residual)(), *(getattr(t, of_weight)() for t in (weight, bias))]
    gy, gs = torch.randn_like(x), torch.randn_like(x)
    got = gradients(add_norm, given, gy, gs)
    want = gradients(add_norm_reference, [t.double() for t in given], gy.double(), gs.double())
    assert [t.dtype for t in got] == [given[0].dtype, given[1].dtype, *(t.dtype for t in given)]
    for name, a, b in zip(NAMES, got, want, strict=True):
        near(a, b, 1e-3, name)
    near(got[3], want[3], 5e-4, "the residual's gradient, from dy in half")


@pytest.mark.parametrize("used", ["y", "s"])
def test_one_result_may_go_unused(used):
    given = drawn(6, 72, torch.float32)
    picks = {"y": lambda y, s: y.sin().sum(), "s": lambda y, s: s.sin().sum()}
    results = []
    for f, kind in ((add_norm, torch.float32), (add_norm_reference, torch.float64)):
        leaves = [t.detach().to(kind, copy=True).requires_grad_() for t in given]
        picks[used](*f(*leaves)).backward()
        results.append([torch.zeros_like(t) if t.grad is None else t.grad for t in leaves])
    for a, b in zip(*results):
        near(a, b, 2e-6)


def test_the_one_gradient_of_two_inputs_is_not_counted_as_one():
    """x and the residual get the same tensor: both may be one leaf, or both be used elsewhere."""
    given = drawn(6, 72, torch.float32)
    for f in (lambda x, r, w, b: (x, x, w, b), lambda x, r, w, b: (x, r, w, b)):
        grads = []
        for norm, kind in ((add_norm, torch.float32), (add_norm_reference, torch.float64)):
            leaves = [t.to(kind, copy=True).requires_grad_() for t in given]
            y, s = norm(*f(*leaves))
            grads.append(torch.autograd.grad((y * s + leaves[0] * leaves[1].sin()).sum(), leaves))
        for a, b in zip(*grads):
            near(a, b, 2e-6)


# In place.


@pytest.mark.parametrize("in_place", ["x", "both"])
def test_in_place_the_results_take_the_given_memory_and_are_the_same(in_place, dtype, random):
    x, residual, weight, bias = drawn(6, 72, dtype)
    want = add_norm(x, residual, weight, bias)
    old = residual.clone()
    y, s = add_norm(x, residual, weight, bias, in_place=in_place)
    assert y.data_ptr() == x.data_ptr() and (s.data_ptr() == residual.data_ptr()) == (in_place == "both")
    assert torch.equal(y, want[0]) and torch.equal(s, want[1])
    assert in_place == "both" or torch.equal(residual, old)


@pytest.mark.parametrize("in_place", ["x", "both"])
def test_gradients_do_not_notice_what_was_done_in_place(in_place, random):
    given, gy, gs = drawn(6, 72, torch.float32), random(6, 72, dtype=torch.float32), random(6, 72, dtype=torch.float32)
    want = gradients(lambda x, r, *rest: add_norm(x * 2, r * 3, *rest), given, gy, gs)
    got = gradients(lambda x, r, *rest: add_norm(x * 2, r * 3, *rest, in_place=in_place), given, gy, gs)
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_whoever_kept_what_was_written_over_is_told():
    given = [t.requires_grad_() for t in drawn(6, 72, torch.float32)]
    kept = given[0].sin()
    used = kept.cos()  # cos keeps its input
    y, _ = add_norm(kept, given[1] * 1, *given[2:], in_place="x")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (used.sum() + y.sum()).backward()


def test_a_second_layer_may_not_write_over_the_sum_that_the_first_has_kept():
    x, residual, *affine = (t.requires_grad_() for t in drawn(6, 72, torch.float32))
    y, s = add_norm(x * 1, residual * 1, *affine, in_place="both")
    y, s = add_norm(y * 1, s, *affine, in_place="both")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.sum().backward()
    y, s = add_norm(x * 1, residual * 1, *affine, in_place="x")
    y, s = add_norm(y * 1, s, *affine, in_place="x")
    s.sum().backward()


def test_the_sum_and_eight_bytes_a_row_are_kept_and_nothing_of_x():
    given = [t.requires_grad_() for t in drawn(6, 72, torch.float32)]
    kept = []
    for p, more in ((0.0, 0), (0.2, 8)):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            _, s = add_norm(*given, p=p)
        assert sum(t.nbytes for t in kept if t.data_ptr() != given[2].data_ptr()) == s.nbytes + 8 * 6 + more


def test_no_rows_and_a_nan_are_no_special_case():
    x, residual, weight, bias = drawn(6, 72, torch.float32)
    empty = gradients(add_norm, (x[:0], residual[:0], weight, bias), x[:0], x[:0])
    assert empty[0].shape == (0, 72) and (empty[4] == 0).all() and (empty[5] == 0).all()
    x[2, 5] = float("nan")
    y, s = add_norm(x, residual, weight, bias)
    assert y[2].isnan().all() and y.isnan().sum() == 72 and s.isnan().sum() == 1


def test_what_it_cannot_do_is_refused():
    x, residual, weight, bias = drawn(6, 72, torch.float32)
    with pytest.raises(AssertionError, match="differ"):
        add_norm(x, residual[:5], weight, bias)
    with pytest.raises(AssertionError, match="16384"):
        add_norm(torch.empty(1, 16385), torch.empty(1, 16385), torch.empty(16385))
    with pytest.raises(AssertionError, match="weight"):
        add_norm(x, residual, weight[:70], bias)
    with pytest.raises(AssertionError, match="multiple of 4"):
        add_norm(x, residual, weight, bias, p=0.1, offset=3)
    with pytest.raises(AssertionError, match="in_place"):
        add_norm(x, residual, weight, bias, in_place="residual")
    with pytest.raises(AssertionError, match="leaf"):
        add_norm(x.requires_grad_(), residual, weight, bias, in_place="x")
    with pytest.raises(AssertionError, match="contiguous"):
        add_norm(x.detach()[:, ::2], residual[:, ::2], weight[:36].contiguous(), in_place="x")


# torch.compile.


@pytest.mark.parametrize(
    ("p", "biased"), [(0.0, False), *(pytest.param(p, True, marks=pytest.mark.slow) for p in (0.0, 0.3))]
)
def test_the_operator_passes_opcheck(p, biased):
    x, residual, weight, bias = (t.requires_grad_() for t in drawn(6, 72, torch.float32))
    seed = seed_of(3) if p else None
    given = x, residual, weight, bias if biased else None, EPS, p, seed, 8
    torch.library.opcheck(add_norm_operator, given)
    torch.library.opcheck(add_norm_operator, (*given, torch.zeros_like(bias, requires_grad=True)))


def test_the_operator_passes_opcheck_where_the_types_differ():
    x, residual, weight, bias = drawn(6, 72, torch.float32)
    given = (x.half().requires_grad_(), residual.requires_grad_(), weight, bias, EPS, 0.0, None, 0)
    torch.library.opcheck(add_norm_operator, given)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
@pytest.mark.parametrize("in_place", [None, "both"])
@pytest.mark.parametrize("p", [pytest.param(0.0, marks=pytest.mark.slow), 0.3])
def test_compile_takes_it_whole(p, in_place, random):
    given, gy, gs = drawn(6, 72, torch.float32), random(6, 72, dtype=torch.float32), random(6, 72, dtype=torch.float32)

    def layer(x, residual, weight, bias):
        y, s = add_norm(x * 2, residual * 1, weight, bias, p=p, seed=seed_of(9) if p else None, in_place=in_place)
        return y.sin(), s.cos()

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    for a, b in zip(gradients(layer, given, gy, gs), gradients(compiled, given, gy, gs)):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_layer_draws_its_seed_as_an_eager_one_does():
    x, residual, weight, bias = drawn(6, 72, torch.float32)

    def layer(x):
        return add_norm(x, residual, weight, bias, p=0.3)[1]

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.manual_seed(5)
    want = layer(x)
    torch.manual_seed(5)
    assert torch.equal(compiled(x), want) and not torch.equal(compiled(x), want)


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
