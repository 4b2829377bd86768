import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels import add_norm as module
from course_lib.kernels.add_norm import add_norm, add_norm_operator, add_norm_reference, tuning
from course_lib.kernels.add_norm.backward import backward_kernel
from course_lib.kernels.add_norm.forward import forward_kernel
from course_lib.kernels.add_norm.launch import write_backward, write_forward
from course_lib.kernels.add_norm.tuning import BACKWARD, FORWARD, Backward, Forward, parts_of
from course_lib.kernels.dropout import dropout, dropout_reference

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

U = 2.0**-24
EPS = 1e-5
WIDTHS = [1, 2, 16, 33, 72, 100, 129, 256, 1000, 1152]
NAMES = ("y", "s", "dx", "dresidual", "dw", "db")


@pytest.fixture
def make(random):
    """make(rows, N, dtype): x, residual, weight, bias."""

    def tensors(rows, N, dtype):
        vectors = [random(N, dtype=dtype) for _ in range(2)]
        return [random(rows, N, dtype=dtype), random(rows, N, dtype=dtype), *vectors]

    return tensors


def seed_of(number):
    return torch.tensor([number], dtype=torch.int64, device=DEVICE)


def forward_oracle(x, residual, weight, bias, eps=EPS):
    """y, mean, rstd exactly, and how far a right y may be: each term of a row is off by a few units of the largest."""
    s = x.double() + residual.double()
    mean = s.mean(-1, keepdim=True)
    rstd = (s.var(-1, correction=0, keepdim=True) + eps).rsqrt()
    y = (s - mean) * rstd * weight.double() + (0 if bias is None else bias.double())
    size = s.abs().amax(-1, keepdim=True) * rstd
    bound = U * (weight.double().abs() * (6 + size + (s.shape[-1] ** 0.5 + 8) * size) + 2 * y.abs())
    return s, mean, rstd, y, bound * (1 + size)


def backward_oracle(dy, ds, s, weight, mean, rstd):
    """d, dw, db in float64 from what backward is given."""
    x = (s.double() - mean.double()[:, None]) * rstd.double()[:, None]
    g = dy.double() * weight.double()
    d = (g - g.mean(-1, keepdim=True) - x * (g * x).mean(-1, keepdim=True)) * rstd.double()[:, None]
    return d + (0 if ds is None else ds.double()), (dy.double() * x).sum(0), dy.double().sum(0)


def near(got, want, limit, name=""):
    """||got - want|| / ||want||, of the worst row too."""
    assert got.shape == want.shape and not got.isnan().any(), name
    error, size = (got.double() - want.double()), want.double()
    assert error.norm() <= limit * size.norm() + 1e-30, f"{name} is off by {(error.norm() / size.norm()).item():.1e}"


@pytest.mark.parametrize(
    ("rows", "N", "biased"), [(5, N, True) for N in WIDTHS] + [(1, 72, True), (1, 129, False), (2, 16, False)]
)
def test_forward_is_right_for_any_width(rows, N, biased, dtype, make, fenced, assert_within):
    x, residual, weight, bias = make(rows, N, dtype)
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
def test_backward_is_right_for_any_width(rows, N, other, dtype, make, fenced, random):
    """11 rows: programs that take several turns, and not all as many."""
    x, residual, weight, _ = make(rows, N, dtype)
    s, (mean, rstd) = (x + residual), (torch.randn(2, rows, device=DEVICE))
    rstd = rstd.abs() + 0.5
    dy = random(rows, N, dtype=dtype)
    ds = None if other == "no ds" else random(rows, N, dtype=dtype)
    d, dw = fenced(rows, N, dtype=dtype), fenced(N, dtype=torch.float32)
    db = None if other == "no bias" else fenced(N, dtype=torch.float32)
    write_backward(d, None, dw, db, dy, ds, s, weight, mean, rstd)
    want, want_w, want_b = backward_oracle(dy, ds, s, weight, mean, rstd)
    near(d, want, 2e-6 + torch.finfo(dtype).eps / 2, "d")
    near(dw, want_w, 2e-6, "dw")
    if db is not None:
        near(db, want_b, 1e-6, "db")


def gradients(f, given, gy, gs):
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in given]
    y, s = f(*leaves)
    grads = torch.autograd.grad((y, s), [t for t in leaves if t is not None], (gy.to(y.dtype), gs.to(s.dtype)))
    return [y.detach(), s.detach(), *grads]


LIMIT = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize(("rows", "N"), [(7, 72), (5, 33), (3, 1152), (64, 16)])
def test_results_and_gradients_are_those_of_separate_operations(rows, N, p, dtype, make, random):
    given = make(rows, N, dtype)
    gy, gs = random(rows, N, dtype=dtype), random(rows, N, dtype=dtype)
    kept = dropout_reference(torch.ones(rows, N, device=DEVICE), p, 9, 8).double() if p else 1.0
    want = gradients(
        lambda x, *rest: add_norm_reference(x * kept, *rest), [t.double() for t in given], gy.double(), gs.double()
    )
    got = gradients(lambda *t: add_norm(*t, p=p, seed=seed_of(9), offset=8), given, gy, gs)
    for name, a, b in zip(NAMES, got, want, strict=True):
        near(a, b, LIMIT[dtype], name)


@pytest.mark.parametrize("N", [33, 72, 1152])
def test_its_dropout_is_the_one_that_stands_alone(N, make):
    x, residual, weight, bias = make(5, N, torch.float32)
    _, s = add_norm(x, torch.zeros_like(residual), weight, bias, p=0.4, seed=seed_of(21), offset=12)
    assert torch.equal(s, dropout(x, 0.4, seed=seed_of(21), offset=12))
    torch.manual_seed(4)
    _, first = add_norm(x, residual, weight, bias, p=0.4)
    torch.manual_seed(4)
    assert torch.equal(first, add_norm(x, residual, weight, bias, p=0.4)[1])
    assert torch.equal(add_norm(x, residual, weight, bias, p=0.4, training=False)[1], x + residual)


def test_a_large_mean_costs_the_variance_no_bits(make):
    """E[s^2] - E[s]^2 in fp32 would keep none: the mean's square is 10^8, the variance 1."""
    x, residual, weight, bias = make(4, 1152, torch.float32)
    x = x + 1e4
    y, _ = add_norm(x, residual, weight, bias)
    *_, want, _ = forward_oracle(x, residual, weight, bias)
    near(y, want, 3e-3)  # fp32 holds x itself to 5e-4 of a standard deviation
    squares = (x + residual).square().mean(-1) - (x + residual).mean(-1).square()
    assert (squares - 2).abs().max() > 1


def test_eps_stands_inside_the_root(make):
    _, _, weight, bias = make(1, 72, torch.float32)
    x = torch.full((3, 72), 5.0, device=DEVICE)
    mean, rstd = torch.empty(3, device=DEVICE), torch.empty(3, device=DEVICE)
    y = torch.empty_like(x)
    write_forward(y, torch.empty_like(x), mean, rstd, x, x, weight, bias, 0.04)
    assert torch.equal(rstd, torch.full_like(rstd, 5.0))
    # A GPU divides by N to two units: the mean may be off by 2e-6.
    torch.testing.assert_close(y, bias.expand(3, 72), rtol=0, atol=1e-4 if DEVICE == "cuda" else 0)


@pytest.mark.parametrize(("N", "pitches"), [(40, (56, 48, 40, 64)), (33, (35, 34, 33, 37)), (1152, (1160,) * 4)])
def test_rows_may_lie_apart_in_memory(N, pitches, dtype, make, random, fenced):
    given = [random(5, pitch, dtype=dtype)[:, :N] for pitch in pitches[:2]]
    _, _, weight, bias = make(1, N, dtype)
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


def test_leading_dimensions_and_other_strides_are_no_special_case(make):
    x, residual, weight, bias = make(30, 72, torch.float32)
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
def test_the_stream_of_residuals_may_be_finer_than_what_is_added(of_x, of_residual, of_weight, make):
    x, residual, weight, bias = make(6, 72, torch.float32)
    given = [getattr(x, of_x)(), getattr(residual, of_residual)(), *(getattr(t, of_weight)() for t in (weight, bias))]
    gy, gs = torch.randn_like(x), torch.randn_like(x)
    got = gradients(add_norm, given, gy, gs)
    want = gradients(add_norm_reference, [t.double() for t in given], gy.double(), gs.double())
    assert [t.dtype for t in got] == [given[0].dtype, given[1].dtype, *(t.dtype for t in given)]
    for name, a, b in zip(NAMES, got, want, strict=True):
        near(a, b, 1e-3, name)
    near(got[3], want[3], 5e-4, "the residual's gradient, from dy in half")


@pytest.mark.parametrize("used", ["y", "s"])
def test_one_result_may_go_unused(used, make):
    given = make(6, 72, torch.float32)
    picks = {"y": lambda y, s: y.sin().sum(), "s": lambda y, s: s.sin().sum()}
    results = []
    for f, kind in ((add_norm, torch.float32), (add_norm_reference, torch.float64)):
        leaves = [t.detach().to(kind, copy=True).requires_grad_() for t in given]
        picks[used](*f(*leaves)).backward()
        results.append([torch.zeros_like(t) if t.grad is None else t.grad for t in leaves])
    for a, b in zip(*results):
        near(a, b, 2e-6)


def test_the_one_gradient_of_two_inputs_is_not_counted_as_one(make):
    """x and the residual get the same tensor: both may be one leaf, or both be used elsewhere."""
    given = make(6, 72, torch.float32)
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
def test_in_place_the_results_take_the_given_memory_and_are_the_same(in_place, dtype, make, random):
    x, residual, weight, bias = make(6, 72, dtype)
    want = add_norm(x, residual, weight, bias)
    old = residual.clone()
    y, s = add_norm(x, residual, weight, bias, in_place=in_place)
    assert y.data_ptr() == x.data_ptr() and (s.data_ptr() == residual.data_ptr()) == (in_place == "both")
    assert torch.equal(y, want[0]) and torch.equal(s, want[1])
    assert in_place == "both" or torch.equal(residual, old)


@pytest.mark.parametrize("in_place", ["x", "both"])
def test_gradients_do_not_notice_what_was_done_in_place(in_place, make, random):
    given, gy, gs = make(6, 72, torch.float32), random(6, 72, dtype=torch.float32), random(6, 72, dtype=torch.float32)
    want = gradients(lambda x, r, *rest: add_norm(x * 2, r * 3, *rest), given, gy, gs)
    got = gradients(lambda x, r, *rest: add_norm(x * 2, r * 3, *rest, in_place=in_place), given, gy, gs)
    assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_whoever_kept_what_was_written_over_is_told(make):
    given = [t.requires_grad_() for t in make(6, 72, torch.float32)]
    kept = given[0].sin()
    used = kept.cos()  # cos keeps its input
    y, _ = add_norm(kept, given[1] * 1, *given[2:], in_place="x")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (used.sum() + y.sum()).backward()


def test_a_second_layer_may_not_write_over_the_sum_that_the_first_has_kept(make):
    x, residual, *affine = (t.requires_grad_() for t in make(6, 72, torch.float32))
    y, s = add_norm(x * 1, residual * 1, *affine, in_place="both")
    y, s = add_norm(y * 1, s, *affine, in_place="both")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.sum().backward()
    y, s = add_norm(x * 1, residual * 1, *affine, in_place="x")
    y, s = add_norm(y * 1, s, *affine, in_place="x")
    s.sum().backward()


def test_the_sum_and_eight_bytes_a_row_are_kept_and_nothing_of_x(make):
    given = [t.requires_grad_() for t in make(6, 72, torch.float32)]
    kept = []
    for p, more in ((0.0, 0), (0.2, 8)):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
            _, s = add_norm(*given, p=p)
        assert sum(t.nbytes for t in kept if t.data_ptr() != given[2].data_ptr()) == s.nbytes + 8 * 6 + more


def test_no_rows_and_a_nan_are_no_special_case(make):
    x, residual, weight, bias = make(6, 72, torch.float32)
    empty = gradients(add_norm, (x[:0], residual[:0], weight, bias), x[:0], x[:0])
    assert empty[0].shape == (0, 72) and (empty[4] == 0).all() and (empty[5] == 0).all()
    x[2, 5] = float("nan")
    y, s = add_norm(x, residual, weight, bias)
    assert y[2].isnan().all() and y.isnan().sum() == 72 and s.isnan().sum() == 1


def test_what_it_cannot_do_is_refused(make):
    x, residual, weight, bias = make(6, 72, torch.float32)
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


@pytest.mark.parametrize(("p", "biased"), [(0.0, True), (0.3, True), (0.0, False)])
def test_the_operator_passes_opcheck(p, biased, make):
    x, residual, weight, bias = (t.requires_grad_() for t in make(6, 72, torch.float32))
    seed = seed_of(3) if p else None
    torch.library.opcheck(add_norm_operator, (x, residual, weight, bias if biased else None, EPS, p, seed, 8))


def test_the_operator_passes_opcheck_where_the_types_differ(make):
    x, residual, weight, bias = make(6, 72, torch.float32)
    given = (x.half().requires_grad_(), residual.requires_grad_(), weight, bias, EPS, 0.0, None, 0)
    torch.library.opcheck(add_norm_operator, given)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
@pytest.mark.parametrize("in_place", [None, "both"])
@pytest.mark.parametrize("p", [0.0, 0.3])
def test_compile_takes_it_whole(p, in_place, make, random):
    given, gy, gs = make(6, 72, torch.float32), random(6, 72, dtype=torch.float32), random(6, 72, dtype=torch.float32)

    def layer(x, residual, weight, bias):
        y, s = add_norm(x * 2, residual * 1, weight, bias, p=p, seed=seed_of(9) if p else None, in_place=in_place)
        return y.sin(), s.cos()

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    for a, b in zip(gradients(layer, given, gy, gs), gradients(compiled, given, gy, gs)):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_layer_draws_its_seed_as_an_eager_one_does(make):
    x, residual, weight, bias = make(6, 72, torch.float32)

    def layer(x):
        return add_norm(x, residual, weight, bias, p=0.3)[1]

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.manual_seed(5)
    want = layer(x)
    torch.manual_seed(5)
    assert torch.equal(compiled(x), want) and not torch.equal(compiled(x), want)


# What the compiler makes of it.


def compiled(kernel, N, how, arch=90, drop=False):
    main, rest = parts_of(N, how.rows)
    fixed = {"N": N, "MAIN": main, "REST": rest, "UNIT": 8, "BLOCK_M": how.rows}
    fixed |= {} if kernel is forward_kernel else {"AHEAD": how.ahead, "STAGES": how.stages}
    if not drop:
        fixed |= {"seed_ptr": None} | ({} if kernel is forward_kernel else {"dx_ptr": None})
    types = dict.fromkeys(("mean_ptr", "rstd_ptr", "parts_w_ptr", "parts_b_ptr"), "*fp32")
    types |= {"seed_ptr": "*i64", "eps": "fp32", "scale": "fp32"}
    signature = {
        name: types.get(name, "*bf16" if name.endswith("_ptr") else "i32")
        for name in kernel.arg_names
        if name not in fixed
    }
    return compile_kernel(kernel, signature, fixed, arch=arch, num_warps=how.warps)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("N", [1152, 4096])
def test_the_published_widths_compile_without_spills_to_wide_accesses(N, arch, access_widths):
    cuda = torch.device("cuda")
    forward = compiled(forward_kernel, N, tuning.forward_rows(N, cuda), arch)
    backward = compiled(backward_kernel, N, tuning.backward_rows(N, 16384, cuda), arch)
    for made in (forward, backward):
        assert made.fits and made.spills_bytes == 0 and not made.instructions["atomic"], str(made)
        assert {16} <= access_widths(made)["ld"] and {16} <= access_widths(made)["st"]
    how = tuning.backward_rows(N, 16384, cuda)
    assert backward.registers * 32 * how.warps * how.programs <= 65536, "so many programs side by side"


def test_two_parts_are_for_single_rows_and_cover_the_width():
    for N in (*WIDTHS, 768, 1600, 4096, 5120, 16384):
        main, rest = parts_of(N, 1)
        assert main + rest >= N and (rest == 0 or main < N)
        assert parts_of(N, 2)[1] == 0
    assert parts_of(1152, 1) == (1024, 128)


def test_a_width_gets_the_first_entry_that_holds_its_lanes():
    cuda = torch.device("cuda")
    assert tuning.backward_rows(1152, 16384, cuda) == BACKWARD[1152]
    assert tuning.backward_rows(2048, 16384, cuda) == BACKWARD[2048]
    assert tuning.backward_rows(4097, 16384, cuda) == BACKWARD[8192]
    assert tuning.forward_rows(72, cuda) == Forward(8, FORWARD[1024].warps)
    assert tuning.backward_rows(72, 3, cuda).rows == 4


@pytest.mark.slow
@pytest.mark.parametrize("columns", sorted(BACKWARD))
def test_as_many_programs_as_the_table_says_fit_beside_each_other(columns):
    how = tuning.backward_rows(columns, 16384, torch.device("cuda"))
    made = compiled(backward_kernel, columns, how)
    assert made.registers * 32 * how.warps * how.programs <= 65536, str(made)
    assert made.spills_bytes == 0 or columns == 16384, str(made)


def test_other_rows_and_warps_may_be_asked_for(make, random):
    x, residual, weight, bias = make(11, 72, torch.float32)
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


def forward_terms(s):
    mean = s.double().mean(-1)
    return mean, (s.double().var(-1, correction=0) + EPS).rsqrt()


# What only a GPU can show.


@pytest.mark.gpu
@pytest.mark.parametrize("short", [0, 8, 3])
@pytest.mark.parametrize("columns", sorted(FORWARD.keys() | BACKWARD.keys()))
def test_every_entry_of_the_table_is_right(columns, short, dtype, make, random):
    N = columns - short
    given = make(1031, N, dtype)
    gy, gs = random(1031, N, dtype=dtype), random(1031, N, dtype=dtype)
    want = gradients(add_norm_reference, [t.double() for t in given], gy.double(), gs.double())
    for name, a, b in zip(NAMES, gradients(add_norm, given, gy, gs), want, strict=True):
        near(a, b, 2 * LIMIT[dtype], name)


@pytest.mark.gpu
@pytest.mark.parametrize("N", [1152, 4096])
def test_errors_are_no_larger_than_eager_s(N, make, random):
    kind = torch.bfloat16
    given = make(16384, N, kind)
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
@pytest.mark.parametrize("N", [72, 1152, 4096])
def test_the_same_bits_on_every_run(N, p, make):
    given = make(5000, N, torch.bfloat16)
    first = gradients(lambda *t: add_norm(*t, p=p, seed=seed_of(2)), given, given[0], given[1])
    for _ in range(5):
        again = gradients(lambda *t: add_norm(*t, p=p, seed=seed_of(2)), given, given[0], given[1])
        assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.gpu
def test_matrices_past_2_to_the_31_elements_are_right_to_the_last_row(make):
    x, residual = (torch.randn(2**19 + 5, 4096, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    _, _, weight, bias = make(1, 4096, torch.bfloat16)
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
def test_dropout_at_every_entry_of_the_table(columns, make, random):
    given = make(517, columns, torch.bfloat16)
    gy = random(517, columns, dtype=torch.bfloat16)
    kept = dropout_reference(torch.ones(517, columns), 0.3, 9).to(DEVICE).double()
    want = gradients(
        lambda x, *rest: add_norm_reference(x * kept, *rest), [t.double() for t in given], gy.double(), gy.double()
    )
    got = gradients(lambda *t: add_norm(*t, p=0.3, seed=seed_of(9)), given, gy, gy)
    for name, a, b in zip(NAMES, got, want, strict=True):
        near(a, b, 2 * LIMIT[torch.bfloat16], name)


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
