"""What all kernel tests share: types of this tier, outputs that start as NaN between fences, error bounds."""

import re

import pytest
import torch

from course_lib.cards import ARCHITECTURES, CARDS
from course_lib.device import DEVICE, TIER
from course_lib.interpreter.jobs import carry_out
from course_lib.kernels import hardware, launching, one_pass
from course_lib.kernels.add_norm import tuning as add_norm_tuning
from course_lib.kernels.attention import attention
from course_lib.kernels.attention import tuning as attention_tuning
from course_lib.kernels.hardware import Limits
from course_lib.kernels.linear_gelu import tuning as linear_gelu_tuning
from course_lib.kernels.mx import tuning as mx_tuning
from tests.kernels.attention_oracle import oracle

# Under the interpreter bf16 holds values but does not compute.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if TIER == "gpu" else [])
FENCE = 64


def pytest_generate_tests(metafunc):
    if "dtype" in metafunc.fixturenames:
        later = TIER == "interpreter" and metafunc.definition.get_closest_marker("fp32_first")
        params = [pytest.param(d, marks=pytest.mark.slow if later and d != torch.float32 else ()) for d in DTYPES]
        metafunc.parametrize("dtype", params, ids=[str(d).removeprefix("torch.") for d in DTYPES])


@pytest.fixture(autouse=True)
def launchers_run_anew():
    """Tests change tables, and what was launched by others is forgotten."""
    launching.forget()
    yield
    launching.forget()


@pytest.fixture
def carried_out(monkeypatch):
    """carried_out(modules, kernels, seed=0, ...): from now on what these modules launch of these kernels is carried out
    by the host, as on `multiprocessors` of them. Returns the kernels that were launched, anew each time."""

    def begin(modules, kernels, multiprocessors=5, **how):
        ran = []

        def launch(kernel, grid, *args, **options):
            if kernel not in kernels:
                return launching.launch(kernel, grid, *args, **options)
            ran.append(kernel)
            return carry_out(kernel, grid, *args, **how, **options)

        for module in modules:
            monkeypatch.setattr(module, "launch", launch)
            monkeypatch.setattr(module, "multiprocessors", lambda device: multiprocessors)
        return ran

    return begin


@pytest.fixture
def random():
    """random(shape, dtype): standard normal values on the device under test."""
    return lambda *shape, dtype: torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


@pytest.fixture
def fenced():
    """fenced(shape, dtype): a contiguous view full of NaN; what lies around it is checked at the end of the test."""
    whole = []

    def make(*shape, dtype):
        size = torch.Size(shape).numel()
        buffer = torch.full((size + 2 * FENCE,), 7.0, device=DEVICE, dtype=dtype)
        view = buffer[FENCE : FENCE + size].fill_(float("nan"))
        whole.append((buffer, size))
        return view.view(shape)

    yield make
    for buffer, size in whole:
        assert (buffer[:FENCE] == 7.0).all(), "written before the start of the output"
        assert (buffer[FENCE + size :] == 7.0).all(), "written past the end of the output"


@pytest.fixture
def assert_within():
    """|got - want| <= bound + rounding of got's type, element by element; NaN never passes."""

    def check(got, want, bound):
        info = torch.finfo(got.dtype)
        # Half a unit in the last place, twice for a rounding that starts from an fp32 value; subnormals have a floor.
        limit = bound + info.eps * (want.abs() + bound) + info.smallest_normal * info.eps
        good = (got.double() - want).abs() <= limit
        first = tuple((~good).nonzero()[0].tolist()) if not good.all() else None
        assert good.all(), f"{(~good).sum().item()} of {good.numel()} elements are off, the first at {first}"

    return check


@pytest.fixture
def access_widths():
    """access_widths(compiled): of its accesses to device memory, in bytes, {"ld": {16, 1}, "st": {16}}."""

    def widths(made):
        seen = {"ld": set(), "st": set()}
        for kind, count, bits in re.findall(r"\b(ld|st)\.global(?:\.[A-Za-z_:0-9]+)*?(?:\.v(\d))?\.b(\d+)", made.ptx):
            seen[kind].add(int(count or 1) * int(bits) // 8)
        return seen

    return widths


@pytest.fixture
def empty_tensors_hold_nan(monkeypatch):
    """What a kernel does not write is NaN, and not what happened to lie there."""
    for name in ("empty", "empty_like"):
        original = getattr(torch, name)

        def poisoned(*args, original=original, **kwargs):
            x = original(*args, **kwargs)
            with torch.no_grad():  # PyTorch itself makes leaves with it
                return x.fill_(float("nan")) if x.is_floating_point() else x

        monkeypatch.setattr(torch, name, poisoned)


@pytest.fixture
def make(random):
    """make(B, H, H_kv, n_q, n_k, D, dtype): q, k, v and do."""

    def tensors(B, H, H_kv, n_q, n_k, D, dtype):
        return [random(B, h, n, D, dtype=dtype) for h, n in ((H, n_q), (H_kv, n_k), (H_kv, n_k), (H, n_q))]

    return tensors


@pytest.fixture
def assert_gradients(assert_within):
    """assert_gradients(got, q, k, v, do, **options of attention): dq, dk and dv against float64."""

    def run(got, *given, **options):
        want = oracle(*given, **options)
        for x, name in zip(got, ("dq", "dk", "dv"), strict=True):
            assert_within(x, *want[name])

    return run


@pytest.fixture
def check(assert_within):
    """check(q, k, v, do, **options): o and all gradients against float64."""

    def run(q, k, v, do, **options):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o = attention(*leaves, **options)
        o.backward(do)
        got = dict(zip(("o", "dq", "dk", "dv"), (o.detach(), *(x.grad for x in leaves))))
        want = oracle(q, k, v, do, **options)
        for name, value in got.items():
            assert value.shape == want[name][0].shape and value.dtype == q.dtype
            assert_within(value, *want[name])
        return got

    return run


ASK_THE_DEVICE = hardware, one_pass, add_norm_tuning, attention_tuning, linear_gelu_tuning, mx_tuning


def limits_of(arch: int) -> Limits:
    has = ARCHITECTURES[arch]
    return Limits(has.capability, has.shared_limit_bytes, has.shared_bytes, has.registers, has.warps)


@pytest.fixture
def on(monkeypatch):
    """on(arch): the tables are asked for a card of this architecture, whatever there is."""

    def become(arch: int):
        card = next(one for one in CARDS.values() if one.arch == arch)
        for room in ASK_THE_DEVICE:
            for name, value in (("limits", limits_of(arch)), ("multiprocessors", card.multiprocessors)):
                if hasattr(room, name):
                    monkeypatch.setattr(room, name, lambda _, value=value: value)

    return become


@pytest.fixture
def an_h200(on):
    on(90)
