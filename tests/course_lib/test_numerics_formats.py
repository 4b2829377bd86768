from math import inf, isnan, nan

import numpy as np
import pytest
import torch

from course_lib.numerics import Format, accumulate, bits, round_to, running_sums, ulp
from course_lib.numerics.formats import FORMATS, format_of

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
}
SMALL = ["bf16", "fp16", "e5m2", "e4m3"]


def every_number(name):
    """All bit patterns of a format of at most 16 bits, as its numbers in fp32."""
    dtype = DTYPES[name]
    patterns = torch.arange(2 ** (8 * dtype.itemsize), dtype=torch.int64)
    return patterns.to({1: torch.uint8, 2: torch.uint16}[dtype.itemsize]).view(dtype).float()


def same(a, b):
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a.nan_to_num(0.0, 9e99, -9e99), b.nan_to_num(0.0, 9e99, -9e99)
    )


@pytest.mark.parametrize("name", DTYPES)
def test_the_ends_of_a_format_are_torch_s(name):
    of, info = FORMATS[name], torch.finfo(DTYPES[name])
    assert format_of(DTYPES[name]) is of
    assert of.largest == info.max and of.smallest == info.smallest_normal * info.eps
    assert ulp(1.0, name) == info.eps
    assert 1 + of.exponent_bits + of.fraction_bits == info.bits


@pytest.mark.parametrize("name", SMALL)
def test_every_number_of_a_format_stays_what_it_is(name):
    x = every_number(name)
    assert same(round_to(x, name), x)
    for rounding in ("away", "to zero"):
        assert same(round_to(x, name, rounding), x)


@pytest.mark.parametrize("name", SMALL)
def test_rounding_is_torch_s_between_and_at_the_middle_of_neighbours_and_past_the_end(name):
    numbers = every_number(name)
    numbers = numbers[numbers.isfinite()].double().unique()
    middle = (numbers[1:] + numbers[:-1]) / 2
    past = numbers.abs().max() * torch.tensor([1.0, 1.01, 1.03, 1.0625, 1.07, 1.1, 1.2, 2.0], dtype=torch.float64)
    # Past the end of e4m3 some versions of torch saturate and some give NaN.
    saturate = name == "e4m3" and not torch.tensor(1e4).to(DTYPES[name]).float().isnan()
    x = torch.cat([middle, middle * (1 + 2e-7), middle * (1 - 2e-7), past, -past]).float()
    assert same(round_to(x, name, saturate=saturate), x.to(DTYPES[name]).float())
    random = torch.randn(20_000) * 2.0 ** torch.randint(-26, 18, (20_000,))
    assert same(round_to(random, name, saturate=saturate), random.to(DTYPES[name]).float())


def test_eight_bits_without_infinity_overflow_to_nan_or_saturate():
    assert round_to(464.0, "e4m3") == 448 and isnan(round_to(464.1, "e4m3")) and isnan(round_to(-inf, "e4m3"))
    assert round_to(1e9, "e4m3", saturate=True) == 448 and round_to(-inf, "e4m3", saturate=True) == -448
    assert round_to(1e9, "e5m2") == inf and round_to(1e9, "e5m2", saturate=True) == 57344
    assert isnan(round_to(nan, "e4m3", saturate=True))


def test_tf32_ties_may_go_away_from_zero_and_bits_may_be_cut_off():
    tie = 1 + 2.0**-11
    assert round_to(tie, "tf32") == 1 and round_to(tie, "tf32", "away") == 1 + 2.0**-10
    assert round_to(-tie, "tf32", "away") == -1 - 2.0**-10
    assert round_to(1 + 3 * 2.0**-11, "tf32", "to zero") == 1 + 2.0**-10
    assert round_to(0.49999999999999994, Format("whole", 0, 0, 10), "away") == 0, "0.5 - 2^-54, which + 0.5 rounds to 1"
    x = torch.randn(4000)
    cut = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    assert torch.equal(round_to(x, "tf32", "to zero"), cut)
    assert round_to(1e9, "fp16", "to zero") == 65504
    with pytest.raises(ValueError, match="to even"):
        round_to(1.0, "fp16", "up")


def test_a_format_of_ones_own_is_one_line():
    e2m1 = Format("e2m1", 1, 0, 2)  # four bits, were all patterns numbers but two
    assert [round_to(x, e2m1) for x in (0.25, 0.26, 0.75, 1.25, 2.4, 5.0)] == [0, 0.5, 1, 1, 2, 4]
    assert e2m1.exponent_bits == 2 and e2m1.smallest == 0.5
    assert str(bits(1.5, e2m1)) == "0 01 1"


@pytest.mark.parametrize("name", SMALL)
def test_bits_are_those_in_memory(name):
    dtype = DTYPES[name]
    patterns = every_number(name)
    picks = range(len(patterns)) if dtype.itemsize == 1 else range(0, len(patterns), 37)
    for i in picks:
        x = patterns[i].item()
        text = "".join(bits(x, name))
        if isnan(x):
            assert text[1:] == text[1:].replace("0", "1") or name != "e4m3"
        else:
            assert text == f"{i:0{8 * dtype.itemsize}b}", x


def test_bits_of_what_is_no_number_of_the_format_are_refused():
    assert str(bits(-0.15625, "e5m2")) == "1 01100 01"
    with pytest.raises(ValueError, match=r"0.1 is no bf16 number; the nearest is 0.10009765625"):
        bits(0.1, "bf16")


# Sums.


def one_by_one(x, name):
    total, sums = 0.0, []
    for term in x:
        total = round_to(total + float(term), name)
        sums.append(total)
    return sums


@pytest.mark.parametrize("name", ["fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3"])
def test_running_sums_round_after_every_addition(name):
    for x in (torch.randn(300), round_to(torch.randn(300), name), torch.full((300,), 0.37)):
        assert running_sums(x, name).tolist() == one_by_one(x.double(), name)


def test_rows_are_summed_each_by_itself_whether_few_or_many():
    x = torch.randn(40, 50)
    whole = running_sums(x, "bf16")
    for few in (x[:3], x[:16], x.view(2, 20, 50)):
        assert torch.equal(running_sums(few, "bf16").reshape(-1, 50), whole[: few.numel() // 50])
    assert running_sums(torch.empty(0, 5), "bf16").shape == (0, 5)


def test_the_sum_of_a_hundredth_in_fp16_sticks_at_32():
    x = torch.full((6000,), round_to(0.01, "fp16"))
    sums = running_sums(x, "fp16")
    assert sums[3] == 0.040008544921875 and sums[4] != running_sums(x, "fp32")[4]
    assert sums[-1] == 32 and int((sums < 32).sum()) + 1 == 2798
    assert (sums[2798:] == 32).all(), "half a unit of 32 is more than a hundredth"


def test_a_million_terms_drift_in_fp32_and_stick_in_sixteen_bits():
    million = torch.full((1_000_000,), round_to(0.01, "fp32"))
    assert abs(running_sums(million, "fp32")[-1] - 10_000) > 0.1
    assert running_sums(torch.full((20_000,), round_to(0.01, "bf16")), "bf16")[-1] == 4
    for order in ("in pairs", "compensated"):
        assert abs(accumulate(million[:100_000], "fp32", order) - 1000) < 1e-4


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "e4m3"])
def test_pairs_are_neighbours_first(name):
    x = round_to(torch.randn(3, 7), name).double()

    def add(a, b):
        return round_to(a + b, name)

    a, b, c, d, e, f, g = x.unbind(-1)
    want = add(add(add(a, b), add(c, d)), add(add(e, f), g))
    assert torch.equal(accumulate(x, name, "in pairs"), want)


def test_lanes_take_turns_and_meet_in_pairs():
    x = round_to(torch.randn(22), "fp16")
    lanes = [running_sums(x[i::4], "fp16")[-1] for i in range(4)]
    assert accumulate(x, "fp16", lanes=4) == accumulate(torch.stack(lanes), "fp16", "in pairs")


def test_compensation_is_kahan_s_in_the_format_itself():
    x = np.random.default_rng(0).random(2000).astype(np.float32)
    total = lost = np.float32(0)
    for term in x:
        wanted = term - lost
        following = total + wanted
        lost, total = (following - total) - wanted, following
    assert accumulate(torch.from_numpy(x), "fp32", "compensated") == float(total)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_each_order_is_as_good_as_its_bound(name):
    x = round_to(torch.rand(4096), name).double()
    exact, unit = x.sum(), ulp(float(x.sum()), name)
    errors = {o: abs(accumulate(x, name, o) - exact) / unit for o in ("one by one", "in pairs", "compensated")}
    assert errors["compensated"] <= 2 and errors["in pairs"] <= 3 < errors["one by one"] <= 4096 / 2


def test_other_orders_and_empty_sums():
    assert accumulate(torch.empty(3, 0), "fp16").tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="in pairs"):
        accumulate(torch.ones(3), "fp16", "sorted")
    assert accumulate(torch.tensor([60000.0, 60000.0]), "fp16") == inf
    assert isnan(float(accumulate(torch.tensor([400.0, 400.0]), "e4m3")))
