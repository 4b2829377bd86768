import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE
from course_lib.kernels import mx as module
from course_lib.kernels.mx import Quantized, dequantize, dequantize_reference, quantize, quantize_reference
from course_lib.kernels.mx.convert import DEQUANTIZE, QUANTIZE, dequantize_kernel, quantize_kernel

GROUPS = [1, 2, 16, 32, 64, 256]
TYPES = [torch.float32, torch.float16, torch.bfloat16]  # holding bf16 is no arithmetic: the interpreter takes it too


@pytest.fixture(autouse=True)
def empty_tensors_hold_nan(monkeypatch):
    original = torch.empty

    def poisoned(*args, **kwargs):
        x = original(*args, **kwargs)
        return x.fill_(float("nan") if x.is_floating_point() else 77)

    monkeypatch.setattr(torch, "empty", poisoned)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits, any NaN equal to any NaN; 0 and -0 differ."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.element_size()]
    both = a.isnan() & b.isnan() if a.is_floating_point() else torch.zeros_like(a, dtype=torch.bool)
    return a.dtype == b.dtype and bool(((a.contiguous().view(bits) == b.contiguous().view(bits)) | both).all())


def equal(a: Quantized, b: Quantized) -> bool:
    return same(a.mantissas, b.mantissas) and same(a.exponents, b.exponents)


def every_pair() -> Quantized:
    """Row e holds all 256 mantissas with exponent e."""
    m = torch.arange(-128, 128).to(torch.int8).repeat(256, 1)
    return Quantized(m.to(DEVICE), torch.arange(256).to(torch.uint8)[:, None].to(DEVICE), 256)


@pytest.mark.parametrize("out_type", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("group", [256, 32, 1])
def test_all_65536_pairs_are_exact(group, out_type):
    pairs = every_pair()
    w = Quantized(pairs.mantissas, pairs.exponents.repeat(1, 256 // group), group)
    got = dequantize(w, out_type)
    exact = w.mantissas.double() * torch.exp2(w.exponents[:, :1].double() - 133)
    assert got[255].isnan().all() and not got[:255].isnan().any()
    assert got[254, 0] == -float("inf") and got[:255].isinf().sum() == 1, "(-128, 254) is the one that does not fit"
    exact[254, 0] = -float("inf")
    assert (got[:255].double() == exact[:255]).all(), "a subnormal value was lost, or a bit"
    assert same(got, dequantize_reference(w, out_type))


@pytest.mark.parametrize(
    ("m", "e", "value"), [(-128, 127, -2.0), (64, 127, 1.0), (1, 0, 2.0**-133), (-127, 254, -127 * 2.0**121)]
)
def test_single_values_are_what_the_format_says(m, e, value):
    w = Quantized(*(torch.tensor([[x]], dtype=t, device=DEVICE) for x, t in ((m, torch.int8), (e, torch.uint8))), 32)
    assert dequantize(w).item() == value == dequantize_reference(w).item()


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 33), (5, 64), (2, 300), (70, 7)])
def test_quantize_and_dequantize_are_the_reference_for_any_shape(rows, columns, group, random):
    for dtype in TYPES:
        x = random(rows, columns, dtype=dtype)
        w = quantize(x, group)
        assert equal(w, quantize_reference(x, group))
        assert same(dequantize(w), dequantize_reference(w)) and same(
            dequantize(w, torch.float32), dequantize_reference(w, torch.float32)
        )


def test_rows_may_lie_apart_in_memory(random):
    x = random(7, 100, dtype=torch.float32)[:, 3:73]
    w = quantize(x)
    assert equal(w, quantize_reference(x))
    apart = torch.full((7, 90), 9, dtype=torch.int8, device=DEVICE)
    apart[:, 4:74] = w.mantissas
    out = torch.full((7, 81), 5.0, dtype=torch.bfloat16, device=DEVICE)
    dequantize(Quantized(apart[:, 4:74], w.exponents, 32), out=out[:, 5:75])
    assert same(out[:, 5:75], dequantize_reference(w)) and (out[:, :5] == 5).all() and (out[:, 75:] == 5).all()


def test_results_go_where_they_are_told_to(random):
    x = random(5, 70, dtype=torch.float32)
    m, e = (torch.full(n, 9, dtype=t, device=DEVICE) for n, t in (((5, 80), torch.int8), ((5, 3), torch.uint8)))
    given = Quantized(m[:, 4:74], e, 32)
    assert quantize(x, out=given) is given and equal(given, quantize_reference(x))
    assert (m[:, :4] == 9).all() and (m[:, 74:] == 9).all()


def test_values_of_any_size_are_quantized_by_the_rules():
    x = (
        torch.randn(280, 64, device=DEVICE)
        * torch.exp2(torch.arange(-152, 128, device=DEVICE).double()).float()[:, None]
    )
    x[:, 5] = 0
    got = quantize(x)
    assert equal(got, quantize_reference(x)) and (got.exponents == 0).any() and (got.exponents >= 253).any()


def test_zeros_infinities_and_nan_follow_the_rules(random):
    x = random(5, 96, dtype=torch.float32)
    x[0], x[1, 40], x[2, 70], x[3, 0] = 0, float("nan"), float("inf"), -float("inf")
    w = quantize(x)
    assert w.exponents[0].tolist() == [0, 0, 0] and (w.mantissas[0] == 0).all()
    for row, group in ((1, 1), (2, 2), (3, 0)):
        block = slice(32 * group, 32 * group + 32)
        assert w.exponents[row, group] == 255 and (w.mantissas[row, block] == 0).all()
        out = dequantize(w)[row]
        assert out[block].isnan().all() and out.isnan().sum() == 32, "one group and no other"
    assert equal(w, quantize_reference(x))


def test_rounding_is_to_nearest_even_and_held_to_127():
    """A 1.0 in the group makes a step 1/64; halves of a step go to the even side, 127.5 would go to 128."""
    steps = torch.tensor([64.0, 0.5, 1.5, 2.5, -0.5, -1.5, 63.5, 62.5, 0.49, 0.51])
    w = quantize((steps / 64)[None].to(DEVICE))
    assert w.mantissas[0].tolist() == [64, 0, 2, 2, 0, -2, 64, 62, 0, 1] and w.exponents.item() == 127
    w = quantize(torch.tensor([[127.5, -127.9, 127.4]], device=DEVICE))
    assert w.mantissas[0].tolist() == [127, -127, 127] and w.exponents.item() == 133, "and the exponent does not move"


def test_the_error_is_at_most_half_a_step_but_where_it_is_held(random):
    x = random(64, 512, dtype=torch.float32)
    w = quantize(x)
    step = torch.exp2(w.exponents.double() - 133).repeat_interleave(32, dim=1)
    error = (dequantize(w, torch.float32).double() - x.double()).abs() / step
    assert (error <= 0.5).float().mean() > 0.99 and error.max() < 1


def test_nothing_is_no_special_case():
    for shape in ((0, 64), (3, 0)):
        w = quantize(torch.zeros(shape, device=DEVICE))
        assert w.mantissas.shape == shape and dequantize(w).shape == shape


def test_what_conversion_cannot_do_is_refused():
    x = torch.zeros(4, 8, device=DEVICE)
    with pytest.raises(AssertionError, match="power of two"):
        quantize(x, 24)
    with pytest.raises(AssertionError, match="adjacent"):
        quantize(x.T)
    with pytest.raises(AssertionError, match="does not hold"):
        dequantize(quantize(x), torch.float16)


TYPE = {"m_ptr": "*i8", "e_ptr": "*u8", "x_ptr": "*bf16", "out_ptr": "*bf16"}


def compiled(kernel, arch, elements, warps):
    """What the compiler makes of a conversion for rows of whole groups that follow each other."""
    fixed = {"GROUP_SIZE": 32, "EVEN": True, "WHOLE": True, "MASKED": False, "BLOCK_N": elements // 32}
    signature = {name: TYPE.get(name, "i32") for name in kernel.arg_names if name not in fixed}
    return compile_kernel(kernel, signature, fixed, arch=arch, num_warps=warps)


@pytest.mark.parametrize("arch", [80, 90])
def test_conversions_compile_without_spills_to_wide_accesses(arch, access_widths):
    for kernel, blocks, narrow in ((dequantize_kernel, DEQUANTIZE, "ld"), (quantize_kernel, QUANTIZE, "st")):
        made, wide = compiled(kernel, arch, *blocks), access_widths(compiled(kernel, arch, *blocks))
        assert made.fits and made.spills_bytes == 0, str(made)
        assert 16 in wide["ld"] and 16 in wide["st"] and min(wide[narrow]) == 1, "exponents are bytes"
        eight = compiled(kernel, arch, 8 * 32 * blocks[1], blocks[1])
        assert eight.shared_bytes < 1024, "with eight elements a thread none change hands"


@pytest.mark.gpu
def test_matrices_past_2_to_the_31_elements_are_converted_to_the_last_row():
    x = torch.randn(2**17 + 5, 2**14, device=DEVICE, dtype=torch.bfloat16)
    w = quantize(x)
    out = dequantize(w)
    ends = Quantized(w.mantissas[-4:], w.exponents[-4:], 32)
    assert equal(ends, quantize_reference(x[-4:])) and same(out[-4:], dequantize_reference(ends))


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
