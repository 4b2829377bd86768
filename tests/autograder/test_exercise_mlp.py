"""Unit 05: how the truth is made, what a diagnosis says, and that the course's own kernels pass."""

import types
from dataclasses import replace

import pytest
import torch
import triton
import triton.language as tl

from autograder import bank
from autograder.call.in_process import examine
from autograder.exercise import Draw, get, of_unit
from autograder.exercises.mlp import autocast, autocast_rule, block, gelu, kept_bytes, norm, sums
from autograder.exercises.mlp.linear_gelu_mistakes import before_gelu
from autograder.exercises.mlp.linear_gelu_mistakes import wrong_pre_activations as places
from autograder.exercises.mlp.philox import numbers, numbers_of_four
from autograder.inside.probes import rotating
from autograder.inside.probes.dropping import differentiated as dropping
from autograder.inside.probes.norming import fresh_memory_is_nan
from autograder.inside.probes.recomputing import differentiated as recomputing
from autograder.inside.probes.rotating import reached
from autograder.judging import score, tolerance
from course_lib import results
from course_lib.device import DEVICE
from course_lib.kernels.add_norm import add_norm
from course_lib.kernels.dropout import dropout
from course_lib.kernels.linear_gelu import linear_gelu as write_gelu
from course_lib.kernels.mlp import mlp
from course_lib.memory import saved
from course_lib.numerics import accumulate as accumulate_of_the_library
from course_lib.numerics import error, round_to

NAMES = [exercise.name for exercise in of_unit("mlp")]


def drawn(name: str, case: str, seed: int = 7) -> dict:
    exercise = get(name)
    found = next(one for one in exercise.cases if one.name == case)
    return exercise.draw(found, seed, "cpu", "interpreter").args


# ------------------------------------------------------------------------------------------- sums in a format


def test_a_number_is_rounded_as_the_library_rounds_it():
    x = torch.randn(300, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = torch.cat(
        (x * torch.exp2(torch.arange(-30, 30).double().repeat(5)), torch.tensor([0.0, 65519.9, 65520.0, 1e39]))
    )
    for of in sums.FORMATS:
        assert [sums.near(t, of) for t in x.tolist()] == round_to(x, of).tolist(), of


@pytest.mark.parametrize("case", ["fp16", "in pairs, bf16", "in pairs, fp32", "compensated, fp16", "mixed signs"])
def test_sums_here_and_those_of_the_library_are_the_same_bits(case):
    case = case.replace("compensated, fp16", "compensated, all sizes")
    v = drawn("mlp.accumulate", case)
    terms = round_to(torch.tensor(v["terms"], dtype=torch.float64), v["of_terms"])
    assert sums.answer(v)["sum"][0] == accumulate_of_the_library(terms, v["of_sum"], v["order"]).item()


def test_a_hundredth_in_fp16_sticks_at_32_after_2798_terms():
    v = {"terms": [0.01] * 3000, "of_terms": "fp16", "of_sum": "fp16", "order": "one by one"}
    assert sums.answer(v)["sum"] == (32.0, 2.0, 2798)


def test_where_it_sticks_is_the_last_change_and_zeros_do_not_count():
    assert sums.stuck_after([1.0, 0.1, 1.0, 0.1], [1.0, 1.0, 2.0, 2.0]) == 3
    assert sums.stuck_after([1.0, 0.0], [1.0, 1.0]) is None
    assert sums.stuck_after([0.1], [0.0]) == 0


@pytest.mark.parametrize("case", ["fp32", "large terms cancel"])
def test_the_drift_is_forgiven_what_its_own_subtraction_rounds_and_no_more(case):
    exercise, v = get("mlp.accumulate"), drawn("mlp.accumulate", case)
    total, drift, stuck = want = sums.answer(v)["sum"]
    size = max(1.0, abs(sums.exact(v["terms"])))
    assert exercise.accept((total, drift + 1e-13 * size, stuck), want, v) is None
    for wrong in (drift + 1e-11 * size, float("inf"), float("nan")):
        assert "the drift is not" in exercise.accept((total, wrong, stuck), want, v)


def test_where_the_total_is_infinite_only_an_infinite_drift_is_right():
    exercise, v = get("mlp.accumulate"), drawn("mlp.accumulate", "too large for fp16")
    total, drift, stuck = want = sums.answer(v)["sum"]
    assert total == drift == float("inf") and exercise.accept(want, want, v) is None
    assert "the drift is not" in exercise.accept((total, 1e300, stuck), want, v)


@pytest.mark.parametrize("seed", range(5))
def test_small_terms_beside_large_ones_are_lost_by_a_sum_that_carries_what_one_addition_loses(seed):
    """So that sum() is not right on one version of Python and wrong on another: from 3.12 on it is this."""
    terms, total, lost = drawn("mlp.accumulate", "large terms cancel", seed)["terms"], 0.0, 0.0
    for t in terms:
        following = total + t
        lost += (total - following) + t if abs(total) >= abs(t) else (t - following) + total
        total = following
    assert total + lost == sum(terms) == 0.0 and sums.exact(terms) > 9


# ------------------------------------------------------------------------------------------- GELU


def test_the_formulas_of_gelu_and_of_its_slope_are_those_of_torch():
    h = torch.linspace(-12, 60, 2001, dtype=torch.float64, requires_grad=True)
    for approximate, value, slope in (("tanh", gelu.gelu, gelu.slope), ("none", gelu.by_erf, gelu.slope_by_erf)):
        want = torch.nn.functional.gelu(h, approximate=approximate)
        (rise,) = torch.autograd.grad(want.sum(), h)
        torch.testing.assert_close(value(h.detach()), want.detach(), rtol=1e-12, atol=1e-13)
        torch.testing.assert_close(slope(h.detach()), rise, rtol=1e-12, atol=1e-13)


def test_what_is_wrong_for_large_h_only_is_told_in_terms_of_h():
    v = drawn("mlp.linear_gelu", "large h")
    h = before_gelu(v)
    assert places("out", h > 9, v).startswith("only where h is above") and "everywhere there" in places("out", h > 9, v)
    assert places("out", (h < 0) & (h > -1), v) == "only where h is negative"
    assert places("out", h < 99, v) == ""


def test_where_h_is_far_below_zero_a_rounding_of_h_shows_though_the_result_is_as_narrow():
    exercise = get("mlp.linear_gelu")
    of_x, of_out = (
        bank.find(f"mlp.linear_gelu/mistakes/{name}").function for name in ("gelu_after_cast", "gelu_after_cast_to_out")
    )
    assert examine(exercise, of_out, seed=5, only="fp16 in, fp32 out").accepted
    assert not examine(exercise, of_x, seed=5, only="fp16 in, fp32 out").accepted
    for rounded in (of_x, of_out):
        assert not examine(exercise, rounded, seed=5, only="fp16, h far below 0").accepted


# ------------------------------------------------------------------------------------------- add and norm


def test_the_formulas_of_the_norm_are_what_autograd_makes_of_torchs():
    for case in ("odd sizes", "the gradient of a sum", "s not used further", "rows that hardly vary"):
        v = drawn("mlp.add_norm", case)
        leaves = [v[name].double().requires_grad_() for name in ("x", "residual", "weight", "bias")]
        s = leaves[0] + leaves[1]
        y = torch.nn.functional.layer_norm(s, s.shape[-1:], *leaves[2:], v["eps"])
        dy, ds = norm.gradients_given(v, torch.float64)
        gradients = torch.autograd.grad((y, s), leaves, (dy, ds))
        for name, want in zip(norm.NAMES, (y, s, *gradients), strict=True):
            torch.testing.assert_close(norm.made(v)[name], want.detach(), rtol=1e-10, atol=1e-10)


def test_sums_of_two_byte_numbers_are_such_numbers_so_that_rounding_them_is_no_error():
    for case in ("fp16", "fp16, many rows"):
        v = drawn("mlp.add_norm", case)
        s = v["x"].double() + v["residual"].double()
        assert torch.equal(s, s.to(v["x"].dtype).double())


def test_where_the_mean_is_large_it_is_a_number_of_fp32_and_its_square_is_not():
    v = drawn("mlp.add_norm", "a large mean")
    s = v["x"].double()
    assert torch.equal(s.mean(-1).float().double(), s.mean(-1))
    assert not torch.equal(s.square().float().double(), s.square())


def test_fresh_memory_is_nan_while_a_step_runs_and_not_before_or_after():
    mode = torch.get_deterministic_debug_mode()
    with fresh_memory_is_nan():
        assert torch.empty(5).isnan().all() and torch.empty_like(torch.ones(3)).isnan().all()
    assert torch.get_deterministic_debug_mode() == mode


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, p, seed, keep):
        if keep == "saved":
            ctx.save_for_backward(x > p)
        if keep == "attribute":
            ctx.mine = [{"mask": x > p}]
        return 2 * x

    @staticmethod
    def backward(ctx, dy):
        return 2 * dy, None, None, None


# ------------------------------------------------------------------------------------------- dropout


@pytest.mark.parametrize("keep", ["saved", "attribute"])
def test_a_mask_that_is_kept_is_found_however_it_is_kept(keep):
    x = torch.randn(100)
    with pytest.raises(ValueError, match="100 bytes are kept for the backward pass"):
        dropping(lambda x, p, seed: _Kept.apply(x, p, seed, keep), x, 0.5, 1, 2, torch.ones(()))
    dropping(lambda x, p, seed: _Kept.apply(x, p, seed, ""), x, 0.5, 1, 2, torch.ones(()))


def _class_of_torch(mask):
    return type("Kept", (), {"__module__": "torch.kept", "mask": mask})


def _class_that_says_it_is_a_layer(mask):
    return type("Linear", (), {"__module__": "torch.nn", "__qualname__": "Linear", "mask": mask})


def _class_that_hides_its_names(mask):
    kind = type("Hiding", (type,), {"__dict__": property(lambda cls: {}), "__module__": property(lambda cls: "torch")})
    return kind("Kept", (), {"mask": mask})


def _string_with_an_attribute(mask):
    text = type("Text", (str,), {})("text")
    text.mask = mask
    return text


def _module_of_its_own(mask):
    made = types.ModuleType("torch")
    made.mask = mask
    return made


def _object_that_says_it_is_a_string(mask):
    one = type("Text", (), {"__class__": property(lambda self: str)})()
    one.mask = mask
    return one


def _small_tensor_with_an_attribute(mask):
    small = torch.ones(1)
    small.mask = mask
    return small


@pytest.mark.parametrize(
    "held", [
        _class_of_torch, _class_that_says_it_is_a_layer, _class_that_hides_its_names, _string_with_an_attribute,
        _module_of_its_own, _object_that_says_it_is_a_string, _small_tensor_with_an_attribute,
        lambda mask: [mask].append,
    ],
)  # fmt: skip
def test_what_is_kept_is_found_whatever_holds_it_says_of_itself(held):
    mask = torch.ones(100)
    assert any(one is mask for one in reached({"HELD": held(mask)}))
    assert not list(reached({"torch": torch, "nn": torch.nn, "Linear": torch.nn.Linear, "sum": torch.sum}))


def test_numbers_here_are_those_of_triton_for_seeds_and_counters_past_32_bits():
    counters = torch.tensor([0, 1, 2**31, 2**32 - 1, 2**32, 2**40 + 7])
    for seed in (0, 1, 2**31, 2**32, 2**63 - 1):
        got = torch.empty(len(counters), dtype=torch.float32, device=DEVICE)
        _numbers_kernel[(1,)](got, counters.to(DEVICE), torch.tensor([seed], device=DEVICE), len(counters), BLOCK=8)
        assert torch.equal(numbers(seed, counters), got.cpu()), seed


@triton.jit
def _numbers_kernel(out_ptr, counters_ptr, seed_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    counters = tl.load(counters_ptr + offs, mask=offs < n, other=0)
    tl.store(out_ptr + offs, tl.rand(tl.load(seed_ptr), counters), mask=offs < n)


def test_one_element_has_p_for_its_number_and_one_of_fp16_stays_by_a_factor_that_fp16_does_not_hold():
    v = drawn("mlp.dropout", "a number that is p")
    assert (numbers_of_four(v["seed"], torch.arange(v["x"].numel())) == v["p"]).sum() == 1
    v = drawn("mlp.dropout", "fp16, hardly any stays")
    made = get("mlp.dropout").oracle(v)
    assert 1 / (1 - v["p"]) > torch.finfo(torch.float16).max
    assert all(made[name].half().isfinite().all() and made[name].any() for name in ("y", "dx"))


def test_one_element_too_many_is_seen():
    right = bank.find("mlp.dropout/right/copied_first").function

    def nearly(x, p, seed):
        y = right(x, p, seed)
        return y + torch.zeros_like(y).index_fill_(0, (y.detach() == 0).nonzero()[0], 1.0) if y.numel() > 200 else y

    verdict = examine(get("mlp.dropout"), nearly, seed=5, only="a vector")
    assert not verdict.accepted


# ------------------------------------------------------------------------------------------- the way back


def test_the_formulas_of_the_mlp_are_what_autograd_makes_of_torchs():
    for case in ("odd sizes", "the gradient of a sum", "large h"):
        v = drawn("mlp.recompute", case)
        x, w1, b1, w2, b2 = leaves = [v[name].double().requires_grad_() for name in ("x", "w1", "b1", "w2", "b2")]
        linear = torch.nn.functional.linear
        y = linear(torch.nn.functional.gelu(linear(x, w1, b1), approximate="tanh"), w2, b2)
        gradients = torch.autograd.grad(y, leaves, v["dy"].double().expand_as(y))
        for name, want in zip(block.NAMES, (y, *gradients), strict=True):
            torch.testing.assert_close(block.passes(v)[name], want.detach(), rtol=1e-10, atol=1e-10)


def test_what_torch_keeps_of_an_mlp_is_too_much_and_the_arguments_alone_are_not():
    args = list(drawn("mlp.recompute", "odd sizes").values())

    def plain(x, w1, b1, w2, b2):
        linear = torch.nn.functional.linear
        return linear(torch.nn.functional.gelu(linear(x, w1, b1), approximate="tanh"), w2, b2)

    with pytest.raises(ValueError, match="beside the arguments are kept for backward"):
        recomputing(plain, *args)
    wants = torch.utils.checkpoint.checkpoint
    made = recomputing(lambda *given: wants(plain, *given, use_reentrant=False), *args)
    assert len(made) == 6 and made[0].shape == args[0].shape


def test_a_pass_that_holds_more_than_two_matrices_as_large_as_h_is_found():
    args = list(drawn("mlp.recompute", "memory in passing").values())
    wants = torch.utils.checkpoint.checkpoint

    def plain(x, w1, b1, w2, b2):
        linear = torch.nn.functional.linear
        return linear(torch.nn.functional.gelu(linear(x, w1, b1), approximate="tanh"), w2, b2)

    with pytest.raises(ValueError, match=r"of the backward pass .* bytes are alive that it made"):  # h, a, da and dh
        recomputing(lambda *given: wants(plain, *given, use_reentrant=False), *args)
    right = bank.find("mlp.recompute/right/library_products").function

    class InACycle(torch.autograd.Function):  # as frames of the interpreter are: let go, and not yet collected
        @staticmethod
        def forward(ctx, y):
            return y.clone()

        @staticmethod
        def backward(ctx, dy):
            for _ in range(9):
                cycle = [torch.empty(len(args[0]), len(args[1]))]
                cycle.append(cycle)
            return dy

    for function in (right, lambda *given: InACycle.apply(right(*given))):
        made = recomputing(function, *args)
        assert len(made) == 6 and made[0].shape == args[0].shape


@pytest.mark.parametrize("name", ["mlp.linear_gelu", "mlp.recompute", "mlp.add_norm", "mlp.dropout"])
def test_every_limit_of_fp32_comes_from_outputs_that_are_large_enough(name):
    """Where none is, the limit is twice the honest error, and honest sums differ by that in fp32."""
    exercise = get(name)
    drawn_all = [exercise.draw(c, 3, "cpu", "interpreter").args for c in exercise.cases if "interpreter" in c.tiers]
    limits = tolerance.derive(exercise, [(v, exercise.oracle(v)) for v in drawn_all])
    fp32 = [by[metric] for (_, dtype), by in limits.items() if dtype == torch.float32 for metric in by]
    assert fp32 and all(limit.lower > 8 * limit.good for limit in fp32), limits


@pytest.mark.slow
def test_the_mlp_of_the_library_is_right():
    verdict = examine(get("mlp.recompute"), lambda *given: mlp(*given, keep="input"), seed=41, live=True)
    assert verdict.accepted, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]


# ------------------------------------------------------------------------------------------- types under autocast


def test_the_rule_of_autocast_is_what_torch_does_and_what_it_did_on_a_gpu():
    exercise, tier = get("mlp.autocast"), "gpu" if DEVICE == "cuda" else "interpreter"
    for seed in range(5):
        for case in exercise.cases:
            v = exercise.draw(case, seed, DEVICE, tier).args
            assert autocast_rule.rule(v) == autocast_rule.truth(v), (case.name, v)
            if v["device"] == "cuda":
                assert autocast_rule.rule(v) == autocast_rule.recorded(v), (case.name, v)


def test_the_recorded_table_of_autocast_is_of_a_gpu_and_a_gradient_has_the_type_of_what_came_in():
    kept = results.load("autocast")
    rows = {row["name"]: row for row in kept["rows"]}
    assert "H200" in kept["machine"]
    assert rows["layer_norm of bf16 and fp32, bf16"]["result"] == "fp32"  # on a CPU bf16
    assert rows["cat of bf16 and fp16, bf16"]["result"] == "fp32"  # which a CPU refuses
    for kind in autocast_rule.TYPES:
        assert {row["gradient of x"] for row in rows.values() if f" of {kind}" in row["name"]} == {kind}


def test_a_walk_over_the_table_of_a_cpu_gives_what_torch_does_there(monkeypatch):
    rows = {row["name"]: row for row in autocast_rule.table("cpu")}
    monkeypatch.setattr(autocast_rule, "_recorded", lambda: rows)
    exercise = get("mlp.autocast")
    for case in exercise.cases:
        v = exercise.draw(case, 3, "cpu", "interpreter").args | {"device": "cpu"}
        assert autocast_rule.recorded(v) == autocast_rule.live(v), (case.name, v)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS, but there was no current CUDA context")
def test_the_recorded_table_of_autocast_is_what_torch_does_now():
    assert list(autocast_rule.table("cuda")) == results.load("autocast")["rows"]


def test_a_table_of_the_types_that_was_written_at_home_earns_nothing():
    exercise = get("mlp.autocast")

    def of(seed):
        return {case.name: exercise.draw(case, seed, "cpu", "interpreter").args for case in exercise.cases}

    known = {repr(v): autocast_rule.rule(v) for seed in (1, 2) for v in of(seed).values()}
    right = {name: known.get(repr(v)) == autocast_rule.rule(v) for name, v in of(3).items()}
    assert sum(right[name] for name in right if not name.startswith("mixture")) > 13, "of 26, with two variants each"
    assert not any(right[name] for name in right if name.startswith("mixture")) and not score.credit(exercise, right)


@pytest.mark.parametrize("device", autocast.SHOWN)
def test_each_mixture_of_types_shows_its_mistake(device):
    exercise, shown = get("mlp.autocast"), autocast.SHOWN[device]
    for number, name in enumerate(shown):
        v = drawn("mlp.autocast", f"mixture {number + 1}" + ", on CUDA" * (device == "cuda"))
        one = exercise.mistake(name)
        answers = [one.answer(v, *variant) for variant in [(v,) for v in one.variants] or [()]]
        assert any(answer["types"] != autocast_rule.rule(v) for answer in answers), name
    assert len(shown) <= autocast.MIXTURES[device] and 2 * sum(autocast.MIXTURES.values()) > len(exercise.cases)


def test_a_layer_that_is_wrong_is_named_without_its_type():
    v = drawn("mlp.autocast", "the toy of the report")
    true = autocast_rule.rule(v)
    wrong = [list(row) for row in true]
    wrong[1][1] = "fp32"
    said = get("mlp.autocast").accept(wrong, true, v)
    assert said == "layer 1, relu: the type of the gradient that arrives at it is not 'fp32'"
    assert get("mlp.autocast").accept([tuple(row) for row in true], true, v) is None


# ------------------------------------------------------------------------------------------- bytes kept


@pytest.mark.parametrize("case", ["linear, gelu, linear", "x with a gradient", "a gate", "frozen layers", "a residual"])
def test_the_rules_of_what_is_kept_are_those_of_the_ledger_of_the_library(case):
    v = drawn("mlp.saved", case) | {"dtype": "fp32"}
    x = torch.empty(v["shape"], device="meta", requires_grad=v["x_grad"])
    results, weights = {"x": x}, []
    for number, layer in enumerate(v["layers"]):
        if layer["op"] == "linear":
            weight = torch.empty(layer["out"], x.shape[-1], device="meta", requires_grad=not layer["frozen"])
            weights.append(weight)
            x = torch.nn.functional.linear(x, weight)
        elif layer["op"] in ("add", "mul"):
            x = getattr(torch, layer["op"])(x, results[layer["from"]])
        else:
            function = getattr(torch.nn.functional, layer["op"], None) or getattr(torch, layer["op"])
            x = function(x)
        results[number] = x
    held = sum(kept.bytes for kept in saved(x, [results["x"], *weights]) if not kept.given)
    assert held == sum(kept_bytes.kept(v))


# ------------------------------------------------------------------------------------------- what is right


def library_linear_gelu(x, w, bias, out):
    write_gelu(x, w, bias, out)


def library_add_norm(x, residual, weight, bias, eps, in_place):
    return add_norm(x, residual, weight, bias, eps)


def library_dropout(x, p, seed):
    if p == 0:
        return x.clone()  # the library's is x itself
    return dropout(x, p, seed=torch.full((1,), seed, dtype=torch.int64, device=x.device))


@pytest.mark.slow
def test_the_add_and_norm_of_the_library_is_right_but_for_its_place():
    verdict = examine(get("mlp.add_norm"), library_add_norm, seed=41, live=True)
    failing = {case.name for case in verdict.cases if not case.right}
    assert failing == {case.name for case in verdict.cases if "in place" in case.sizes}


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mlp.linear_gelu", library_linear_gelu),
        pytest.param("mlp.dropout", library_dropout, marks=pytest.mark.slow),
    ],
)
def test_the_kernels_of_the_library_are_right(name, function):
    verdict = examine(get(name), function, seed=41, live=True)
    assert verdict.accepted, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]


def test_a_fake_tensor_that_a_compiler_left_behind_holds_nothing():
    """On a GPU lesson 05's right answer earned 0: its globals led to one, which may not be asked where it lies."""
    from torch._functorch import config
    from torch._subclasses.fake_tensor import FakeTensorMode

    with config.patch(fake_tensor_allow_unsafe_data_ptr_access=False), FakeTensorMode():
        fake = torch.empty(3)
    with pytest.raises(RuntimeError, match="data pointer"):
        fake.untyped_storage().data_ptr()
    real = torch.ones(4)
    assert rotating.kept([fake, real], [fake]) == 16 and rotating.kept([real], [fake, real]) == 0


def test_terms_that_all_ways_add_alike_are_drawn_anew():
    """127 numbers, cut in halves again and again, are the pairs of neighbours: no values tell the two ways apart."""
    asked = []

    class First127(Draw):
        def odd(self, low, high):
            asked.append(127 if not asked else super().odd(low, high))
            return asked[-1]

        def number(self, low, high):
            assert len(asked) > 1 or self.rng.random() > 1e-4, "it goes on with 127"
            return super().number(low, high)

    case = next(case for case in get("mlp.accumulate").cases if case.name == "in pairs, bf16")
    assert len(case.draw.draw(First127(5, "cpu", "interpreter")).args["terms"]) != 127


@pytest.mark.parametrize("alike", [True, False], ids=["graded", "checked"])
def test_a_slope_by_tanh_is_far_within_the_limits_of_every_draw(alike):
    """Four of 400 draws refused it: a row of a gradient was a slope near 0, which is the rounding of its tanh."""
    one = replace(get("mlp.recompute"), alike=alike)
    cases = [case for case in one.cases if "interpreter" in case.tiers and "fp16" not in case.name]
    for seed in range(71086, 71096):
        groups = [[(args, one.oracle(args))] for args in (one.draw(c, seed, "cpu", "interpreter").args for c in cases)]
        limits = tolerance.derive_from_groups(one, groups)
        for case, ((args, want),) in zip(cases, groups, strict=True):
            dh = (args["dy"].expand_as(args["x"]) @ args["w2"]) * _slope_by_tanh(
                torch.addmm(args["b1"], args["x"], args["w1"].mT)
            )
            for name, got in (("dx", dh @ args["w1"]), ("dw1", dh.mT @ args["x"])):
                if want[name].numel() < tolerance.ENOUGH:
                    continue  # measured with siblings
                found, limit = error(got, want[name]), limits[name, torch.float32]
                assert all(getattr(found, m) < 0.7 * limit[m].limit for m in limit), (seed, case.name, name)


def _slope_by_tanh(h):
    """In fp32, as kernels have it: tanh from an exponential, and 1 - tanh^2."""
    u = 0.7978845608 * (h + 0.044715 * h**3)
    e = torch.exp(-2 * u.abs())
    t = u.sign() * (1 - e) / (1 + e)
    return 0.5 * (1 + t) + 0.5 * h * (1 - t * t) * 0.7978845608 * (1 + 3 * 0.044715 * h * h)
