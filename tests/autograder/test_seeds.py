"""The same answer earns the same points whatever is drawn."""

import argparse
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autograder import bank, exercise
from autograder.bank import command, formulas, orders, recording, seeds
from autograder.exercise import Call, Case, Draw, Exercise, Mistake, Precision
from autograder.exercises.compile import guards
from autograder.exercises.roofline import growth, regime, softmax, stopwatch
from autograder.exercises.telling import telling
from autograder.judging import tolerance
from course_lib import results

EXERCISES = sorted(exercise.registry())
SAMPLE = ("flash.merge",)
MANY, SOME = 200, 20  # seeds of an exercise of plain data, and of one with kernels, compilers or ranks


# Of roofline.stopwatch: each forgets something that only some devices have
OF_TIMERS = (
    "clock_not_sustained", "device_idle_at_launch", "gap_counted", "host_clock_around_each", "mean_instead_of_median",
    "minimum_instead_of_median", "slowest_run", "warm_cache",
)  # fmt: skip


@pytest.mark.parametrize("name", SAMPLE)
def test_points_of_a_sample_are_the_same_under_a_few_seeds(name):
    assert seeds.judged(name, 0, 8) == []


@pytest.mark.slow
def test_points_of_a_timer_are_the_same_under_twenty_seeds():
    """Its device answers while it is measured, so what a draw hides by chance shows in a few draws of a hundred."""
    first = {entry.mistake: entry for entry in reversed(bank.entries(["roofline.stopwatch"], ["mistakes"]))}
    assert seeds.judged("roofline.stopwatch", 0, 20, [first[mistake] for mistake in OF_TIMERS]) == []


REGIMES = [case.name for case in exercise.get("roofline.regime").cases]


@pytest.mark.parametrize("case", REGIMES)
def test_a_case_of_regimes_tells_the_same_wrong_rules_in_every_draw(case):
    answers = dict(formulas.answers(exercise.get("roofline.regime").mistakes))
    shown = _shown(exercise.get("roofline.regime"), case, answers, 6)
    assert [name for name, right in shown.items() if len(right) > 1] == []


def test_no_launch_cost_that_people_quote_is_right_where_overhead_ends_inside_the_table():
    """By construction, and so before a draw is chosen by what it tells."""
    for name, situation in regime.SITUATIONS.items():
        for call in (growth.table(Draw(seed, "cpu", "interpreter"), situation) for seed in range(12)):
            v = {**call.args, **call.secret}
            if ends := growth.answer(v)["overhead_ends"]:
                for label, answer in _formulas("roofline.regime", "quoted_launch_cost").items():
                    assert regime.accept(answer(v)["overhead_ends"], ends, v), f"{name}: {label}"


def test_every_device_of_a_timer_keeps_what_is_promised():
    for case in exercise.get("roofline.stopwatch").cases:
        for seed in range(40):
            traits = exercise.get("roofline.stopwatch").draw(case, seed, "cpu", "interpreter").secret["traits"]
            assert traits.ramp_s <= 0.15 and traits.outlier_rate < 0.2
            assert traits.launch_s < 6 * traits.flush_s


def test_a_careful_timer_is_off_by_half_of_what_is_allowed_at_most_on_devices_that_others_use():
    one = exercise.get("roofline.stopwatch")
    used = [case for case in one.cases if case.name in (*stopwatch.TOGETHER, "other people's work")]
    off = {}
    for entry in bank.entries(["roofline.stopwatch"], ["right"]):
        for case in used:
            for seed in range(120, 130):
                call = one.draw(case, seed, "cpu", "interpreter")
                got = entry.function(*call.args.values())
                off[entry.name, case.name, seed] = abs(got / call.secret["truth"] - 1)
    assert {which: share for which, share in off.items() if share > stopwatch.LIMIT / 2} == {}


def test_disturbed_runs_do_not_make_up_for_a_warm_cache_on_a_shared_device():
    """Of ten runs in a row 0, 1 or, on average over batches, 0.5 are slow."""
    one = exercise.get("roofline.stopwatch")
    (case,) = (case for case in one.cases if case.name == "a shared device")
    for seed in range(200):
        traits = one.draw(case, seed, "cpu", "interpreter").secret["traits"]
        for disturbed in (0, 0.5, 1):
            mean = (1 + disturbed * (traits.outlier_factor - 1) / 10) / traits.cache_gain
            assert abs(mean - 1) > 1.5 * stopwatch.LIMIT


@pytest.mark.slow
def test_a_pass_that_joins_half_of_the_pairs_earns_the_same_whatever_is_drawn():
    assert seeds.by_formula("compile.pass", 0, 6) == []


def test_each_case_of_guards_tells_the_same_wrong_rules_in_every_draw():
    """By the rule: asked for each draw, torch would take half a second."""
    answers = [mistake.answer for mistake in guards.MISTAKES if mistake.answer]
    for case in guards.GUARDS.cases:
        drawn = [case.draw(Draw(seed, "cpu", "interpreter")).args for seed in range(20)]
        shown = {tuple(list(f(v)["compiles"]) != guards._by_rule(v)["compiles"] for f in answers) for v in drawn}
        assert len(shown) == 1, case.name


def _shown(one: Exercise, case: str, answers: dict, draws: int) -> dict[str, set[bool]]:
    """Of a case alone, with the limits that it has by itself: which answers are right, over several draws."""
    alone = replace(one, cases=tuple(c for c in one.cases if c.name == case))
    under = [formulas.under(alone, seed) for seed in range(draws)]
    return {name: {drawn.right(answer)[case] for drawn in under} for name, answer in answers.items()}


def _formulas(name: str, mistake: str) -> dict:
    found = dict(formulas.answers(exercise.get(name).mistakes))
    chosen = {label: answer for label, answer in found.items() if label.partition(" of ")[0] == mistake}
    assert chosen, f"{name} has no formula of {mistake}"
    return chosen


@pytest.mark.parametrize("case", ["one row", "a power of two", "strided rows", "some -inf", "a long row"])
def test_a_constant_in_the_sum_of_a_softmax_shows_in_every_draw_or_in_none(case):
    shown = _shown(exercise.get("roofline.softmax"), case, _formulas("roofline.softmax", "epsilon_in_sum"), 10)
    assert all(len(right) == 1 for right in shown.values()), shown
    assert {False} in shown.values(), "no constant shows here any more"


@pytest.mark.parametrize(("bounds", "width"), [(softmax.FEW, 45), (softmax.FEW, 128), (softmax.MORE, 9001)])
def test_sums_lie_within_their_bounds_and_the_largest_stays_where_it_was(bounds, width):
    x = 2 * torch.randn(20000 if width < 1000 else 500, width, generator=torch.Generator().manual_seed(4129))
    moved = softmax._summing_to(x, *bounds)
    assert torch.equal(moved.argmax(1), x.argmax(1))
    sums = (moved - moved.amax(1, keepdim=True)).double().exp().sum(1)
    assert bounds[0] * 0.999 < sums.min() and sums.max() < bounds[1] * 1.001


def test_the_maximum_of_a_long_row_rises_in_its_last_block_and_its_sum_overflows_fp16_in_every_draw():
    one = exercise.get("flash.forward")
    (case,) = (case for case in one.cases if case.name == "a long row")
    for seed in range(20):
        v = one.draw(case, seed, "cpu", "interpreter").args
        scores = v["scale"] * (v["q"][0, 0].double() @ v["k"][0, 0].double().mT)
        assert scores[-1, -1] > scores[-1, :-1].max() + 0.15
        assert (scores - scores.amax(-1, keepdim=True)).exp().sum(-1).min() * 60 > 65504


@pytest.mark.parametrize("case", ["ties", "next to ties", "a largest that is a power of two"])
def test_an_exponent_from_fp16_shows_in_every_draw(case):
    answers = _formulas("mx.quantize", "exponent_of_rounded")
    one = {name: answer for name, answer in answers.items() if "float16" in name and "bf" not in name}
    (right,) = _shown(exercise.get("mx.quantize"), case, one, 20).values()
    assert right == {False}


@pytest.mark.slow
def test_another_eps_shows_in_no_draw_of_large_pre_activations():
    answers = _formulas("capstone.speed", "another_eps")
    assert set().union(*_shown(exercise.get("capstone.speed"), "large pre-activations", answers, 12).values()) == {True}


@pytest.mark.slow
def test_another_eps_shows_in_no_small_tower_in_fp32():
    answers = _formulas("capstone.memory", "other_eps")
    small = ("images of full length", "short images", "one image")
    shown = {case: _shown(exercise.get("capstone.memory"), case, answers, 6) for case in small}
    assert all(right == {True} for of_case in shown.values() for right in of_case.values()), shown


@pytest.mark.slow
@pytest.mark.parametrize("case", ["short images", "padding that is no number"])
def test_a_weak_mask_shows_in_every_draw_of_a_tower_or_in_none(case):
    found = enumerate(formulas.answers(exercise.get("capstone.mask").mistakes))  # many of one name
    answers = {f"{number}": answer for number, (label, answer) in found if label.startswith("mask_too_weak")}
    shown = _shown(exercise.get("capstone.mask"), case, answers, 6)
    assert {True} in shown.values() and {False} in shown.values()
    assert all(len(right) == 1 for right in shown.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_points_are_the_same_under_every_seed(name):
    assert seeds.judged(name, 0, MANY if seeds.plain(exercise.get(name)) else SOME) == []


def _doubled(cases) -> Exercise:
    """twice(n) -> 2 n. A mistake: n squared, which is right for 2."""
    return Exercise(
        name="start.axpy",
        entry="twice",
        points=4,
        kind="scenario",
        cases=cases,
        oracle=_right,
        mistakes=(SQUARED,),
        returns=("value",),
        launches=False,
    )


def _right(v):
    return {"value": 2 * v["n"]}


SQUARED = Mistake("squared", "That is n squared.", answer=lambda v: {"value": v["n"] ** 2})
ANY = Case("a number", lambda d: Call({"n": d.integer(1, 4)}, "a number"))
LUCKY = (ANY, Case("five", lambda d: Call({"n": 5}, "")))


def _tried(tmp_path, monkeypatch, text: str, kind: str, cases=LUCKY) -> seeds.Drawn:
    (tmp_path / "answer.py").write_text(f"def twice(n):\n    return {text}\n")
    monkeypatch.setattr(seeds, "undiagnosed", lambda name: _doubled(cases))
    monkeypatch.setattr(bank, "get", lambda name: _doubled(cases))
    entry = bank.Entry("start.axpy", kind, "answer", Path(tmp_path / "answer.py"))
    return seeds.try_seeds(entry, 0, False, 40)


def test_points_that_vary_are_said_with_least_most_and_the_case(tmp_path, monkeypatch):
    cases = (*LUCKY, Case("two", lambda d: Call({"n": 2}, "")))
    (fault,) = _tried(tmp_path, monkeypatch, "n * n", "mistakes", cases).faults
    assert "earns 0 to 1.33" in fault and "a number" in fault and "five" not in fault


def test_a_mistake_that_earns_everything_and_a_right_one_that_is_refused_are_said(tmp_path, monkeypatch):
    said = _tried(tmp_path, monkeypatch, "n * n", "mistakes", LUCKY[:1]).faults
    assert "earns everything under" in said[0]
    assert "was refused: seed" in _tried(tmp_path, monkeypatch, "n * n", "right").faults[0]
    assert _tried(tmp_path, monkeypatch, "n + n", "right").faults == []
    assert _tried(tmp_path, monkeypatch, "3 * n", "mistakes").faults == []


def test_formulas_alone_say_which_mistake_varies_and_where(monkeypatch):
    lucky = _doubled((*LUCKY, Case("two", lambda d: Call({"n": 2}, ""))))
    monkeypatch.setattr(seeds, "undiagnosed", lambda name: lucky)
    monkeypatch.setattr(seeds, "get", lambda name: lucky)
    (fault,) = seeds.by_formula("start.axpy", 0, 20)
    assert "squared earns 0 to 1.33" in fault and "a number" in fault and "five" not in fault and "two" not in fault
    steady = _doubled(LUCKY[1:])
    monkeypatch.setattr(seeds, "undiagnosed", lambda name: steady)
    assert seeds.by_formula("start.axpy", 0, 20) == []


def test_a_formula_that_varies_on_a_gpu_alone_is_said(monkeypatch):
    case = Case("a number", lambda d: Call({"n": 2 if d.tier == "gpu" and d.integer(0, 1) else 5}, ""))
    lucky = replace(_doubled((case,)), probe="any")
    monkeypatch.setattr(seeds, "undiagnosed", lambda name: lucky)
    monkeypatch.setattr(seeds, "get", lambda name: lucky)
    (fault,) = seeds.by_formula("start.axpy", 0, 20)
    assert "in cases of the gpu" in fault


MEASURED = [name for name, one in exercise.registry().items() if one.precision]


@pytest.mark.parametrize("name", MEASURED)
def test_the_honest_answer_is_right_whatever_the_order_of_its_sums(name):
    assert _refused_in_another_order(name, "interpreter") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_the_honest_answer_is_right_in_the_cases_of_a_gpu_whatever_the_order_of_its_sums(name):
    assert _refused_in_another_order(name, "gpu") == []


def _refused_in_another_order(name: str, tier: str) -> list[tuple[int, str]]:
    one = seeds.undiagnosed(name)
    right = {seed: formulas.under(one, seed, tier).right(orders.honest(one, seed)[0][1]) for seed in range(3)}
    return [(seed, case) for seed, cases in right.items() for case, fine in cases.items() if not fine]


def test_an_order_of_the_honest_answer_that_is_refused_is_said(monkeypatch):
    """1e8 - 1e8 + 1 is 1 in this order alone."""
    terms = torch.tensor([1e8, -1e8, 1.0]).repeat(64, 1)
    one = Exercise(
        name="added", entry="f", points=1, about="", point=(), kind="scenario", mistakes=(), returns=("sums",),
        cases=(Case("cancelling", lambda d: Call({"x": terms}, "")),),
        oracle=lambda v: {"sums": v["x"].double().sum(1)},
        precision=Precision(lambda v: {"sums": v["x"].sum(1)}, "", lambda v: {"sums": 1.01 * v["x"].sum(1)}, "", 1),
    )  # fmt: skip
    monkeypatch.setattr(seeds, "undiagnosed", lambda name: one)
    monkeypatch.setattr(seeds, "get", lambda name: one)
    (fault,) = seeds.by_formula("start.axpy", 0, 20)
    assert orders.RIGHT in fault and "“cancelling” right under" in fault
    always = [(orders.RIGHT, lambda v: {"sums": torch.zeros(64)})]
    monkeypatch.setattr(orders, "honest", lambda exercise, seed: always)
    (fault,) = seeds.by_formula("start.axpy", 0, 4)
    assert "“cancelling” right under 0" in fault


def test_every_product_and_every_sum_is_made_in_another_order():
    x, y = torch.randn(2, 300, 300, generator=torch.Generator().manual_seed(1))
    ways = (
        lambda: x @ y,
        lambda: torch.stack([x, y]) @ torch.stack([y, x]),
        lambda: torch.nn.functional.linear(x, y, x[0]),
        lambda: torch.baddbmm(x[None], x[None], y[None]),
        lambda: x.sum(0),
        lambda: x.mean((0, 1)),
        lambda: x.sum(),
        lambda: x.mean(),
    )
    for number, way in enumerate(ways):
        with orders.Shuffled(2):
            other = way()
        assert not torch.equal(other, way()), number
        torch.testing.assert_close(other, way(), rtol=1e-4, atol=1e-4)


def test_formulas_are_judged_in_the_cases_of_a_gpu_without_one():
    """That the largest score is taken before the scale shows in fp16, and there where scores are large."""
    name, mistake = "flash.forward", "scale_after_maximum"
    answers = {n: a for n, a in _formulas(name, mistake).items() if n.startswith(f"{mistake} of (32, True")}
    one, wrong_on_a_gpu = exercise.get(name), {"odd lengths": False, "grouped heads": False, "head size 72": True}
    some = replace(one, cases=tuple(c for c in one.cases if c.name in wrong_on_a_gpu))
    for tier in ("interpreter", "gpu"):
        for seed in range(8):
            drawn = formulas.under(some, seed, tier)
            for answer in answers.values():
                assert drawn.right(answer) == {n: tier != "gpu" or not wrong for n, wrong in wrong_on_a_gpu.items()}
    large = formulas.under(one, 1, "gpu").known.keys()
    assert "bf16" in large and "bf16" not in formulas.under(one, 1, "interpreter").known
    assert "offsets past 2^31" not in large


TENSORS = [n for n, one in exercise.registry().items() if one.kind != "scenario" and "interpreter" in one.tiers]


def _drawn(one: Exercise, seed: int) -> list[tuple[Case, Call]]:
    cases = [case for case in one.cases if case.live and "interpreter" in case.tiers]
    return [(case, one.draw(case, seed, "cpu", "interpreter")) for case in cases]


def _sizes(call: Call) -> str:
    shapes = {n: (v.shape, v.stride(), v.dtype) if torch.is_tensor(v) else v for n, v in call.args.items()}
    return f"{call.sizes} {shapes}" if all(not isinstance(v, list) for v in call.args.values()) else call.sizes


def _values(call: Call) -> str:
    return str([v.double().nansum().item() if torch.is_tensor(v) else v for v in call.args.values()])


def test_a_right_one_is_judged_in_the_sizes_of_a_notebooks_check_too(tmp_path):
    right = bank.find("start.axpy/right/masked")
    graded = {call.args["x"].numel() for _, call in _drawn(exercise.get("start.axpy"), 0)}
    only = f"\n_all = axpy\n\ndef axpy(a, x, y, out):\n    if x.numel() in {graded}: _all(a, x, y, out)\n"
    (tmp_path / "answer.py").write_text(right.source + only)
    entry = bank.Entry("start.axpy", "right", "answer", tmp_path / "answer.py")
    (fault,) = seeds.try_seeds(entry, 0, False, 2).faults
    assert "was refused: seed 0: in sizes of a notebook's check: “" in fault


def test_what_was_loaded_first_is_done_with_before_an_answer_is_loaded_again(tmp_path, monkeypatch):
    """Loading it again ends the operators of torch that it defined, whose memory is then used for other things."""
    monkeypatch.setattr(torch, "newest", None, raising=False)
    right = bank.find("start.axpy/right/masked")
    only = "\ntorch.newest = _newest = object()\n_all = axpy\n\ndef axpy(a, x, y, out):\n"
    only += "    assert torch.newest is _newest\n    _all(a, x, y, out)\n"
    (tmp_path / "answer.py").write_text("import torch\n" + right.source + only)
    entry = bank.Entry("start.axpy", "right", "answer", tmp_path / "answer.py")
    assert seeds.try_seeds(entry, 0, False, 2).faults == []


@pytest.mark.parametrize("name", TENSORS)
def test_every_grading_run_asks_for_the_same_sizes_with_values_of_its_own(name):
    one = exercise.get(name)
    first, second = _drawn(one, 1), _drawn(one, 2)
    for (case, a), (_, b) in zip(first, second, strict=True):
        assert _sizes(a) == _sizes(b), case.name
    differ = sum(_values(a) != _values(b) for (_, a), (_, b) in zip(first, second, strict=True))
    assert 2 * differ > len(first)


def test_a_check_meets_other_sizes_each_time_and_plain_data_is_never_the_same():
    checked = replace(exercise.get("start.axpy"), alike=False)
    assert len({_sizes(_drawn(checked, seed)[3][1]) for seed in range(6)}) > 1
    assert len({_values(_drawn(exercise.get("flash.merge"), seed)[0][1]) for seed in range(6)}) == 6


@pytest.mark.slow
def test_a_formula_is_right_in_the_cases_in_which_the_mistake_is():
    name, seen = "start.axpy", {}
    found = dict(formulas.answers(exercise.get(name).mistakes))
    under = formulas.under(seeds.undiagnosed(name), 4)
    for entry in bank.entries([name], ["mistakes"]):
        verdict = seeds.examine(seeds.undiagnosed(name), entry.function, 4)
        seen[entry.name] = {case.name: case.right for case in verdict.cases}
    labels = ("a_on_y", "mask_one_too_short", "y_forgotten", "grid_off_by_one")
    told = {
        label: next(under.right(found[one]) for one in found if one.partition(" of ")[0] == label) for label in labels
    }
    for label in labels[:3]:
        assert told[label] == seen[label]
    assert told["grid_off_by_one"]["a power of two"] and not told["a_on_y"]["a power of two"]


def test_a_formula_stands_for_a_mistake_only_where_both_were_right_in_the_same_cases(monkeypatch):
    many = [{"a": True, "b": n != 5} for n in range(8)]
    monkeypatch.setitem(seeds.FOUND, ("start.axpy", 0), [("no_mask of 64", many), ("no_mask of 64", many[::-1])])
    assert seeds.stands_for("start.axpy", "no_mask", many[:3], 0) == many
    assert seeds.stands_for("start.axpy", "no_mask", many[::-1][:3], 0) == many[::-1]
    assert seeds.stands_for("start.axpy", "no_mask", [{"a": False, "b": True}], 0) is None
    assert seeds.stands_for("start.axpy", "another", many[:3], 0) is None


@pytest.mark.parametrize(
    ("submission", "name"),
    [
        ("mlp.linear_gelu/right/grouped_and_transposed", "large partial sums"),
        pytest.param("flash.speed/right/plain", "fp16", marks=pytest.mark.slow),
    ],
)
def test_a_right_answer_is_right_in_two_calls_of_one_case_too(submission, name):
    """Limits that come from one case alone scatter, and a right answer may round otherwise than the honest one."""
    entry = bank.find(submission)
    one, function = seeds.undiagnosed(entry.exercise), entry.function
    case = next(case for case in one.cases if case.name == name)
    assert [why for seed in range(500, 512) if (why := seeds.twice(one, case, seed, function))] == []


def test_a_rough_gelu_is_rough_also_where_nothing_but_the_bias_is_left():
    """Or its limit is a rounding or two, and a right tanh that rounds otherwise is a matter of luck."""
    one = exercise.get("mlp.linear_gelu")
    case = next(case for case in one.cases if case.name == "K is zero")
    args = one.draw(case, 5, "cpu", "interpreter").args
    (by_metric,) = tolerance.derive(one, [(args, one.oracle(args))]).values()
    assert all(limit.lower > 100 * limit.good for limit in by_metric.values())


KERNELS = [name for name in EXERCISES if exercise.get(name).kind == "kernel" and exercise.get(name).asks_for_kernels]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_right_answers_are_right_in_two_calls_of_every_case(name):
    one = seeds.undiagnosed(name)
    cases = [case for case in one.cases if case.runs_here and case.live and not case.part]
    if not cases:
        pytest.skip("this tier cannot run it")
    wrong = {}
    for entry in bank.entries([name], ["right", "slow"]):
        function = entry.function
        for case in cases:
            for seed in range(2):
                if why := seeds.twice(one, case, seed, function):
                    wrong[f"{entry}, {case.name}, seed {seed}"] = why
    assert wrong == {}


def test_what_a_call_keeps_from_the_one_before_is_seen_within_those_limits():
    one = seeds.undiagnosed("start.axpy")
    right, kept = bank.find("start.axpy/right/masked").function, []

    def keeps(a, x, y, out):
        if not kept:
            right(a, x, y, out)
            kept.append(out.clone())
        return out.copy_(kept[0])

    case = next(case for case in one.cases if case.name == "a power of two")
    assert "relative error" in seeds.twice(one, case, 3, keeps)


def test_no_row_of_a_gradient_is_made_of_rounding_where_rows_are_many():
    """Right answers whose gradients pass through other products differ in such a row by more than the limit."""
    one = seeds.undiagnosed("capstone.qkv")
    case = next(case for case in one.cases if case.name == "many rows, fp16")
    for seed in range(4):
        args = one.draw(case, seed, "cpu", "interpreter").args
        rows = one.oracle(args)["dx"].norm(dim=2)
        assert (rows.min(dim=1).values > 0.2 * rows.square().mean(dim=1).sqrt()).all(), "of an image"


def test_processes_share_the_seeds_of_a_right_one_and_of_a_mistake_only_the_first_are_tried_before():
    right, wrong = bank.find("start.axpy/right/masked"), bank.find("start.axpy/mistakes/a_on_y")
    shares = seeds.shared([right, wrong], 7, 100, 3)
    assert [number for one in shares[:-1] for number in one.seeds] == list(range(7, 107))
    assert len(shares) == 4 and shares[-1].seeds == range(7, 10) and str(shares[-1]) == str(wrong)
    assert [len(one.seeds) for one in seeds.shared([right], 7, 25, 16)] == [10, 10, 5]
    _, last = seeds.shared([right], 7, 12, 2)
    drawn = seeds.try_seeds(last, 7, False, 12)
    assert drawn.points == (drawn.out_of,) * 2


def test_a_mistake_earns_the_same_however_its_seeds_are_shared(monkeypatch):
    wrong = bank.find("start.axpy/mistakes/no_mask")
    alone = seeds.try_seeds(wrong, 7, False, 24)
    first = seeds.try_seeds(*seeds.shared([wrong], 7, 24, 2), 7, False, 24)
    rest = [seeds.try_seeds(one, 7, False, 24) for one in seeds._shares(first.entry, range(10, 31), 2, first.seen)]
    together = seeds.whole([first, *rest])[0]
    assert [len(one.points) for one in (first, *rest)] == [3, 11, 10]
    assert (together.points, together.seen.rights) == (alone.points, alone.seen.rights)
    assert seeds.by_its_formula(first, 7) is None
    monkeypatch.setitem(seeds.FOUND, ("start.axpy", 7), [("no_mask of 64", alone.seen.rights)])
    assert seeds.whole([first, seeds.by_its_formula(first, 7)])[0].points == alone.points


def test_what_one_share_found_holds_for_the_submission():
    (one, other), wrong = seeds.shared([bank.find("start.axpy/right/masked")], 0, 20, 2), "seed 12: no"
    fine = seeds.Drawn(one, points=(2.0,) * 10, out_of=2.0)
    (all_of_it,) = seeds.whole([fine, replace(fine, entry=other)])
    assert all_of_it.points == (2.0,) * 20 and not all_of_it.faults
    (refused,) = seeds.whole([fine, seeds.Drawn(other, points=(2.0, 0.0), out_of=2.0, refused=wrong)])
    assert refused.faults == [f"{one} was refused: {wrong}"]
    (both,) = seeds.whole([seeds.Drawn(one, says="it hangs"), replace(refused, entry=other)])
    assert both.faults == [f"{one} was refused: {wrong}"]
    for order in ([fine, seeds.Drawn(other, says="it hangs")], [seeds.Drawn(one, says="it hangs"), fine]):
        (lost,) = seeds.whole(order)
        assert lost.faults == [f"{one} could not be judged: it hangs"]


def test_a_run_that_was_cut_off_goes_on_from_what_is_through(monkeypatch, tmp_path):
    todo, judged = [bank.find("start.axpy/right/masked"), bank.find("start.axpy/mistakes/no_mask")], []
    run = bank.run

    def cut_off(some, *rest, **more):
        for one in run(some, *rest, **more):
            judged.append(one.entry)
            yield one
            if len(judged) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(bank, "run", cut_off)
    with pytest.raises(KeyboardInterrupt):
        seeds.judged("start.axpy", 7, 8, todo, tmp_path)
    assert len(list(tmp_path.glob("*.pickle"))) >= 2 and not list(tmp_path.glob("*.[0-9]*"))
    assert seeds.judged("start.axpy", 7, 8, todo, tmp_path) == []

    def of_right():
        return sorted(number for one in judged if one.kind == "right" for number in one.seeds)

    assert of_right() == list(range(7, 15)), "none twice, none left out"
    monkeypatch.setattr(seeds, "means", lambda part, name: "a case is drawn otherwise")
    assert seeds.judged("start.axpy", 7, 8, todo, tmp_path) == []
    assert of_right() == sorted([*range(7, 15)] * 2)


def test_a_run_that_goes_on_draws_what_it_drew(monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(seeds, "main", lambda names, seed, *_: drawn.append(seed) or 0)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for more in ([], [], ["--resume", str(tmp_path)], ["--resume", str(tmp_path)]):
        assert command.main(parser.parse_args(["start.axpy", "--seeds", "3", *more])) == 0
    first, second, *resumed = drawn
    assert first != second and resumed == [0, 0]


def test_what_could_not_be_judged_is_a_fault():
    entry = bank.find("start.axpy/right/masked")
    assert "could not be judged: it hangs" in seeds.Drawn(entry, says="it hangs").faults[0]
    assert replace(seeds.Drawn(entry), skipped=True).faults == []


def test_a_case_that_tells_is_drawn_until_it_shows_what_its_typical_draw_shows():
    def shown(case):
        drawn = (case.draw(Draw(seed, "cpu", "interpreter")) for seed in range(100, 160))
        return Counter(call.args["n"] == 2 for call in drawn)

    assert set(shown(LUCKY[0])) == {True, False}
    (told,) = telling(LUCKY[:1], _right, (SQUARED,))
    assert set(shown(told)) == {False}
    assert len({told.draw(Draw(seed, "cpu", "interpreter")).args["n"] for seed in range(30)}) == 3


def test_a_case_is_told_by_the_mistakes_that_are_named_for_it_only():
    named, other = telling(LUCKY, _right, (SQUARED,), among={"a number": "squared"})
    assert named.draw is not LUCKY[0].draw and other is LUCKY[1]


def test_how_many_seeds_were_judged_is_kept_with_what_was_found(monkeypatch):
    kept = []
    monkeypatch.setattr(seeds, "keep_apart", lambda *given: kept.append(given))
    monkeypatch.setattr(seeds, "judged", lambda name, seed, count, **_: ["varies"] if name == "start.axpy" else [])
    assert seeds.main(["roofline.work", "start.axpy"], 3, 50, record="cpu") == 1
    rows = {row["exercise"]: row for _, (row,), _ in kept}
    assert {name: row["faults"] for name, row in rows.items()} == {"roofline.work": 0, "start.axpy": 1}
    assert {row["seeds"] for row in rows.values()} == {50} and {part for part, *_ in kept} == {"bank_seeds"}
    assert rows["start.axpy"]["found"] == "varies"


def test_no_record_of_seeds_holds_a_fault():
    kept = [
        (slug, part)
        for slug in ("cpu", "h100", "h200")
        for part in results.sections(slug)
        if part.startswith("bank_seeds.")
    ]
    rows = [row for slug, part in kept for row in results.load(part, slug)["rows"]]
    assert len(rows) >= 41 and [row for row in rows if row["faults"] or row["seeds"] < 100] == []


def test_what_is_kept_of_seeds_no_longer_holds_where_a_case_is_drawn_otherwise(monkeypatch):
    before = {name: recording.means("bank_seeds", name) for name in ("roofline.softmax", "roofline.work")}
    source = Path(softmax.__file__).read_text()
    read = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path: source.replace("2.2, 10.0", "2.0, 10.0") if path.name == "softmax.py" else read(path),
    )
    assert recording.means("bank_seeds", "roofline.softmax") != before["roofline.softmax"]
    assert recording.means("bank_seeds", "roofline.work") == before["roofline.work"]


def test_how_a_case_is_drawn_is_not_asked_of_the_units_other_exercises():
    files = {path.name for path in recording._drawn_in(exercise.get("mx.quantize"))}
    assert {"quantize.py", "mxint8.py", "inputs.py"} <= files and not files & {"linear.py", "gemv.py", "swapping.py"}


@pytest.mark.parametrize(
    ("asked", "told"), [(["--seeds", "99", "--record", "cpu"], "100 seeds"), (["--seeds", "0"], "1 or more, got 0")]
)
def test_less_than_100_seeds_are_not_kept_and_none_is_no_whole_bank(asked, told, capsys):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.main(parser.parse_args(["start.axpy", *asked])) == 2
    assert told in capsys.readouterr().out


def test_on_a_gpu_nothing_is_drawn_before_the_bank_forks(monkeypatch):
    monkeypatch.setattr(seeds.device, "TIER", "gpu")
    monkeypatch.setattr(Exercise, "draw", lambda *_: pytest.fail("it would start CUDA"))
    seeds.draw_before("compile.guards", range(3))
    seeds.compute_before("rope.forward", [70001])
    assert not seeds.FOUND.get(("rope.forward", 70001))


def test_on_a_gpu_cases_of_tens_of_gb_are_left_out(monkeypatch):
    """And mistakes that only they catch: fifteen workers have no room for fifteen of them."""
    whole, before = seeds.get("rope.forward"), seeds.undiagnosed.__wrapped__("rope.forward")
    monkeypatch.setattr(seeds.device, "TIER", "gpu")
    monkeypatch.setattr(seeds.device, "memory_bytes", lambda: 141 * 10**9)
    left = seeds.undiagnosed.__wrapped__("rope.forward")
    large = {case.name for case in whole.cases if case.share}
    assert large and len(before.cases) == len(whole.cases)
    assert {case.name for case in whole.cases} - {case.name for case in left.cases} == large
    mistakes = bank.entries(["rope.forward"], ["mistakes"])
    of_them = [entry for entry in mistakes if entry.killed_by in large]
    monkeypatch.setattr(seeds, "_judged", lambda *_: (({}, {}), "", ""))
    assert of_them and [entry for entry in mistakes if seeds.try_seeds(entry, 1, False, 1).skipped] == of_them
