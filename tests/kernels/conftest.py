"""What all kernel tests share: types of this tier, outputs that start as NaN between fences, error bounds."""

import re

import pytest
import torch

from course_lib.device import DEVICE, TIER

# Under the interpreter bf16 holds values but does not compute.
DTYPES = [torch.float32, torch.float16] + ([torch.bfloat16] if TIER == "gpu" else [])
FENCE = 64


def pytest_generate_tests(metafunc):
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", DTYPES, ids=[str(d).removeprefix("torch.") for d in DTYPES])


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
        for kind, count, bits in re.findall(r"\b(ld|st)\.global(?:\.[a-z_:0-9]+)*?(?:\.v(\d))?\.b(\d+)", made.ptx):
            seen[kind].add(int(count or 1) * int(bits) // 8)
        return seen

    return widths
