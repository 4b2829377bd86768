import pytest
import torch

from course_lib import memory
from course_lib.device import TIER
from course_lib.kernels import mlp as module
from course_lib.kernels.linear_gelu import tuning
from course_lib.kernels.mlp import KEEP, bytes_kept, mlp, mlp_operator, mlp_reference

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

U = 2.0**-24
NAMES = ("y", "dx", "dw1", "db1", "dw2", "db2")
# Relative errors of a right answer, over the whole tensor: products of fp32 sums, and for 2-byte types the roundings of
# y, h, a, da and dh, each at most half a unit and 0.29 of a unit on average.
LIMIT = {torch.float32: 2e-6, torch.float16: 1.5e-3, torch.bfloat16: 1.2e-2}


@pytest.fixture
def make(random):
    """make(rows, d, n, d_out, dtype): x, w1, b1, w2, b2; h near 1, where GELU bends."""

    def tensors(rows, d, n, d_out, dtype):
        w1, w2 = random(n, d, dtype=dtype) / d**0.5, random(d_out, n, dtype=dtype) / n**0.5
        return [random(rows, d, dtype=dtype), w1, random(n, dtype=dtype) / 2, w2, random(d_out, dtype=dtype)]

    return tensors


def gradients(f, given, dy):
    leaves = [None if t is None else t.detach().clone().requires_grad_() for t in given]
    y = f(*leaves)
    return [y.detach(), *torch.autograd.grad(y, [t for t in leaves if t is not None], dy.to(y.dtype))]


def check(got, want, limit):
    limit = limit * (4 if want[0].numel() < 20 else 1)  # where few numbers are averaged, one weighs more
    names = NAMES if len(want) == 6 else ("y", "dx", "dw1", "dw2")
    for name, a, b in zip(names, got, want, strict=True):
        assert a.shape == b.shape and not a.isnan().any(), name
        error = ((a.double() - b).norm() / b.norm()).item()
        assert error < limit, f"{name} is off by {error:.1e}"


@pytest.fixture(params=[True, False], ids=["fused", "apart"])
def fused(request, monkeypatch):
    """Both ways back through the GELU."""
    monkeypatch.setattr(tuning, "FUSED_SLOPE", request.param)
    if not request.param:
        monkeypatch.setattr(tuning, "PINGPONG", {})


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("sizes", [(37, 24, 72, 16), (64, 32, 64, 32), (5, 7, 13, 3), (1, 4, 9, 2)], ids=str)
def test_result_and_gradients_are_right_whatever_is_kept(sizes, keep, biased, fused, dtype, make, random):
    given = make(*sizes, dtype)
    if not biased:
        given[2] = given[4] = None
    dy = random(sizes[0], sizes[3], dtype=dtype)
    want = gradients(mlp_reference, [None if t is None else t.double() for t in given], dy)
    check(gradients(lambda *t: mlp(*t, keep=keep), given, dy), want, LIMIT[dtype])


@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("at_once", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 36, 37)), 10, 100])
def test_rows_in_pieces_give_the_same(at_once, keep, fused, dtype, make, random):
    given, dy = make(37, 24, 72, 16, dtype), random(37, 16, dtype=dtype)
    want = gradients(mlp_reference, [t.double() for t in given], dy)
    limit = LIMIT[dtype] * (1 + (dtype != torch.float32) * (37 // at_once) ** 0.5 / 4)  # sums are rounded once a piece
    check(gradients(lambda *t: mlp(*t, keep=keep, at_once=at_once), given, dy), want, limit)


def test_no_more_rows_of_a_hidden_layer_exist_at_once_than_were_asked_for(make, monkeypatch):
    rows = []
    for name, of in (("linear_gelu", 0), ("product_through_gelu", 2)):
        original = getattr(module, name)

        def spy(*args, original=original, of=of, **options):
            rows.append(len(args[of]))
            return original(*args, **options)

        monkeypatch.setattr(module, name, spy)
    for keep, calls in (("input", 3), ("pre-activation", 2)):
        given = [t.requires_grad_() for t in make(37, 16, 32, 16, torch.float32)]
        mlp(*given, keep=keep, at_once=10).sum().backward()
        assert sorted(rows) == [7] * calls + [10] * 3 * calls, keep
        rows.clear()


def test_keeping_less_changes_no_result_and_the_input_alone_no_bit_of_a_gradient(make, random):
    given, dy = make(37, 24, 72, 16, torch.float16), random(37, 16, dtype=torch.float16)
    everything, pre, only = (gradients(lambda *t, k=k: mlp(*t, keep=k), given, dy) for k in KEEP)
    assert all(torch.equal(a, b) for a, b in zip(everything, only)), "h and a are made again by the same kernel"
    # From the h that was rounded, a is not the a that was used forward; nothing else depends on it but dw2.
    assert all(torch.equal(a, b) for i, (a, b) in enumerate(zip(everything, pre)) if NAMES[i] != "dw2")
    assert (everything[4] - pre[4]).double().norm() < LIMIT[torch.float16] * pre[4].double().norm()


def held_by(f, given):
    """Bytes of activations that autograd keeps: each storage once, without the weights."""
    weights = {t.untyped_storage().data_ptr() for t in given[1:]}
    kept = {}

    def pack(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = f(*given)
    del y
    return sum(size for where, size in kept.items() if where not in weights)


@pytest.mark.parametrize("keep", KEEP)
def test_what_is_held_is_what_was_asked_for(keep, make):
    given = [t.requires_grad_() for t in make(64, 24, 88, 24, torch.float32)]
    assert held_by(lambda *t: mlp(*t, keep=keep), given) == bytes_kept(64, 24, 88, keep, 4)


def test_the_published_shares_are_those_of_the_sizes():
    for width, hidden, most in ((1152, 4304, 0.56), (4096, 16384, 0.56)):
        whole, pre, only = (bytes_kept(16384, width, hidden, keep) for keep in KEEP)
        assert pre / whole < most and only / whole < 0.12
    assert round(bytes_kept(16384, 1152, 4304, "everything") / 2**20) == 305


@pytest.mark.parametrize("keep", KEEP)
def test_only_the_gradients_that_are_wanted_are_made(keep, make, random, fused):
    given, dy = make(37, 24, 72, 16, torch.float32), random(37, 16, dtype=torch.float32)
    want = gradients(mlp_reference, [t.double() for t in given], dy)[1:]
    for wanted in ((0,), (1,), (2,), (3,), (4,), (0, 3), (3, 4), (1, 2)):
        leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(given)]
        got = torch.autograd.grad(mlp(*leaves, keep=keep), [leaves[i] for i in wanted], dy)
        for i, a in zip(wanted, got):
            torch.testing.assert_close(a.double(), want[i], rtol=1e-4, atol=1e-4)


def test_backward_may_run_twice_and_kept_tensors_stay_as_they_are(make, random):
    given, dy = make(37, 24, 72, 16, torch.float32), random(37, 16, dtype=torch.float32)
    for keep in KEEP:
        leaves = [t.clone().requires_grad_() for t in given]
        y = mlp(*leaves, keep=keep)
        first = torch.autograd.grad(y, leaves, dy, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(y, leaves, dy)))


def test_an_input_that_was_written_over_is_noticed(make):
    given = [t.requires_grad_() for t in make(8, 16, 16, 16, torch.float32)]
    x = given[0] * 1
    y = mlp(x, *given[1:], keep="input")
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_leading_dimensions_strides_and_expanded_gradients_are_no_special_case(make):
    x, *rest = make(30, 24, 40, 16, torch.float32)
    for given in (x.view(2, 15, 24), x.view(5, 6, 24).transpose(0, 1), x.T.contiguous().T, x[0]):
        leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (given, *rest)]
        y = mlp(*leaves)
        assert y.shape == (*given.shape[:-1], 16)
        got = torch.autograd.grad(y.sum(), leaves)  # dy is one number, expanded
        doubles = [t.detach().double().requires_grad_() for t in leaves]
        want = torch.autograd.grad(mlp_reference(*doubles).sum(), doubles)
        for a, b in zip(got, want):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-4)


def test_without_gradients_nothing_is_kept(make):
    given = make(8, 16, 16, 16, torch.float32)
    with torch.no_grad():
        assert mlp(*given).grad_fn is None
    assert mlp(*given).grad_fn is None


def test_what_it_cannot_do_is_refused(make):
    x, w1, b1, w2, b2 = make(8, 16, 24, 16, torch.float32)
    with pytest.raises(AssertionError, match="keep is one of"):
        mlp(x, w1, b1, w2, b2, keep="nothing")
    with pytest.raises(AssertionError, match="w1"):
        mlp(x, w1, b1, w1, b2)
    with pytest.raises(AssertionError, match="end in 16"):
        mlp(x[:, :8], w1, b1, w2, b2)
    with pytest.raises(AssertionError, match="one type"):
        mlp(x, w1, b1.half(), w2, b2)
    with pytest.raises(AssertionError, match="b2"):
        mlp(x, w1, b1, w2, b1)


@pytest.mark.parametrize("keep", KEEP)
def test_the_operator_passes_opcheck(keep, make):
    given = [t.requires_grad_() for t in make(6, 16, 24, 16, torch.float32)]
    torch.library.opcheck(mlp_operator, (*given, keep))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
@pytest.mark.parametrize("keep", KEEP)
def test_compile_takes_it_whole_and_keeps_no_more(keep, make, random):
    given, dy = make(12, 16, 64, 16, torch.float32), random(2, 6, 16, dtype=torch.float32)
    given[0] = given[0].view(2, 6, 16)

    def layer(x, *rest):
        return mlp(x.sin(), *rest, keep=keep).cos()

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    for a, b in zip(gradients(layer, given, dy), gradients(compiled, given, dy)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    leaves = [t.requires_grad_() for t in given]
    more = bytes_kept(12, 16, 64, keep, 4) + 2 * 12 * 16 * 4  # and, for sin and cos, x and y
    assert held_by(compiled, leaves) <= more


# What only a GPU can show.

SIZES = [(1111, 1152, 4304, 1152), (16384, 1152, 4304, 1152)]


@pytest.mark.gpu
@pytest.mark.parametrize("keep", KEEP)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_sizes_that_are_published_are_right(sizes, keep, fused, make, random):
    given, dy = make(*sizes, torch.bfloat16), random(sizes[0], sizes[3], dtype=torch.bfloat16)
    want = gradients(mlp_reference, [t.double() for t in given], dy)
    ours = gradients(lambda *t: mlp(*t, keep=keep), given, dy)
    eager = gradients(mlp_reference, given, dy)
    check(ours, want, LIMIT[torch.bfloat16])
    for name, a, b, c in zip(NAMES, ours, eager, want):
        errors = [((t.double() - c).norm() / c.norm()).item() for t in (a, b)]
        assert errors[0] <= 1.05 * errors[1], f"{name}: {errors[0]:.2e}, eager {errors[1]:.2e}"


@pytest.mark.gpu
@pytest.mark.parametrize("keep", KEEP)
def test_the_same_bits_on_every_run(keep, fused, make, random):
    given, dy = make(3000, 1152, 4304, 1152, torch.bfloat16), random(3000, 1152, dtype=torch.bfloat16)
    first = gradients(lambda *t: mlp(*t, keep=keep), given, dy)
    for _ in range(3):
        again = gradients(lambda *t: mlp(*t, keep=keep), given, dy)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.gpu
@pytest.mark.parametrize("keep", KEEP)
def test_the_allocator_of_a_gpu_holds_what_was_predicted(keep, make):
    x, *rest = (t.requires_grad_() for t in make(8192, 1152, 4304, 1152, torch.bfloat16))
    mlp(x, *rest, keep=keep).sum().backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    y = mlp(x, *rest, keep=keep)
    held = torch.cuda.memory_allocated() - before - y.numel() * 2
    assert held + x.numel() * 2 == pytest.approx(bytes_kept(8192, 1152, 4304, keep), rel=0.01)


@pytest.mark.gpu
def test_backward_of_the_input_alone_holds_two_hidden_matrices_at_most(make, fused):
    """h and a; dh takes the place of h. On a CPU the interpreter's copies would be counted too."""
    given = [t.requires_grad_() for t in make(8192, 1152, 4304, 1152, torch.bfloat16)]

    def step():
        mlp(*given, keep="input").sum().backward()
        for t in given:
            t.grad = None

    hidden = 8192 * 4304 * 2
    most = 2.6 if tuning.FUSED_SLOPE else 3.6
    assert 2 * hidden <= memory.peak(step) < most * hidden


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
