"""Proof of work: honest answers are left alone, and an answer that a kernel did not make is not paid for."""

import linecache
import math
import types
from dataclasses import replace
from functools import cache

import pytest
import torch

from autograder.bank import entries, find
from autograder.call.in_process import examine
from autograder.call.trial import inspect, lay_out
from autograder.exercise import get, registry
from autograder.inside import calling, watch
from autograder.judging.judge import judge
from autograder.judging.outcome import Outcome
from autograder.judging.proof import broken, judge_count, judge_work, kernels_of, merged, telling
from autograder.judging.verdict import CaseVerdict
from autograder.referee import audit as auditing
from autograder.referee.ablation import emptied, halved, not_found
from autograder.referee.reading import suspicious
from autograder.referee.submission import Cell
from course_lib.device import DEVICE, TIER

LAUNCHING = {n: e for n, e in sorted(registry().items()) if e.kind == "kernel" and e.launches and TIER in e.tiers}
HONEST = entries(LAUNCHING, kinds=("right", "slow"))
QUICK = {name: entries([name], kinds=("right",))[0] for name in LAUNCHING if name.startswith(("start.", "roofline."))}
every_honest_answer = pytest.mark.parametrize(
    "entry",
    [pytest.param(e, id=str(e), marks=[] if e in QUICK.values() else pytest.mark.slow) for e in HONEST],
)
AXPY = get("start.axpy")
RIGHT = find("start.axpy/right/masked").source
SALT = 20


def test_a_grid_of_more_sizes_than_a_grid_has_is_a_report_in_no_shape():
    report = {"operators": {}, "kernels": {"k": 1}, "device": {}, "threads": 0, "processes": 0, "blind": ""}
    assert merged([report | {"programs": [["k", [4, 2, 1]]]}])["blind"] == ""
    assert merged([report | {"programs": [["k", [(1 << 62) - 1] * 390_000]]}])["blind"] == "a report in no shape"
    names = {f"k{n}": 1 for n in range(5000)}  # each would be switched off in the text
    assert merged([report | {"programs": [], "kernels": names}])["blind"] == "a report in no shape"


def function_of(cells, entry, name):
    """The entry point, the cells run one after another as in a notebook."""
    module = types.ModuleType("student")
    for cell in cells:
        path = f"<{name} {cell.name}>"
        linecache.cache[path] = (len(cell.source), None, cell.source.splitlines(keepends=True), path)
        exec(compile(cell.source, path, "exec"), module.__dict__)
    return module.__dict__[entry]


def tried(exercise, case, seed, function):
    """(the verdict on one case, what was seen): inputs of their own for every trial."""
    call = exercise.draw(case, seed, DEVICE, TIER)
    fenced = lay_out(exercise, call)
    args = [fenced[n].view if n in fenced else v for n, v in call.args.items()]
    answer, seen = watch.watched(calling.through(exercise.probe, function), args)
    outcome = Outcome(error=answer.error, where=answer.where, launches=answer.launches)
    outcome = outcome if answer.error else inspect(exercise, outcome, answer.value, fenced)
    return judge(exercise, TIER, seed, [(case, call, outcome)]).cases[0], seen


@cache
def case_of(name, source=""):
    """The case that the audit tries, told by this answer or by the first right one of the bank."""
    first = entries([name], ["right"])[0]
    function = function_of((Cell("mine", source or first.source),), LAUNCHING[name].entry, "all cases")
    cases = [case for case in LAUNCHING[name].cases if case.live and TIER in case.tiers]
    reports = [tried(LAUNCHING[name], case, 1, function)[1] for case in cases]
    at = telling(reports)
    assert source or max(math.prod(grid) for _, grid in reports[at]["programs"]) >= 8, "halves would tell little"
    return cases[at]


def audit(exercise, *sources, case=None):
    """The whole audit in one process, as the referee makes it in two."""
    cells = tuple(Cell(f"cell {i}", source) for i, source in enumerate(sources))
    case = case or case_of(exercise.name)
    function = function_of(cells, exercise.entry, "whole")
    before = watch.threads()
    verdict, seen = tried(exercise, case, 2, function)
    assert verdict.right, verdict.why
    # outside a sandbox there are others: those of the test's own runner
    seen["processes"], seen["threads"] = 0, max(0, seen["threads"] - before)
    kernels = set(seen["kernels"])

    def without(change, name, seed):
        return broken(tried(exercise, case, seed, function_of(change, exercise.entry, name))[0])

    is_right = without(emptied(cells, kernels), "emptied", 3) == "right"
    half = without(halved(cells, kernels, SALT), "halved", 4)
    if half == "right":
        half = without(halved(cells, kernels, ~SALT), "other half", 4)
    return judge_work(exercise, seen, is_right, half, not_found(cells, kernels), suspicious(cells))


@pytest.mark.skipif(TIER != "interpreter", reason="on a GPU every launch is compiled")
@every_honest_answer
def test_the_compiler_takes_every_honest_kernel_that_the_interpreter_ran(entry):
    from course_lib.interpreter.launch import signatures

    signatures.clear()
    exercise = LAUNCHING[entry.exercise]
    function = function_of((Cell("mine", entry.source),), exercise.entry, "compiled")
    tried(exercise, case_of(entry.exercise), 5, function)
    assert signatures and watch.uncompiled() == {"refused": [], "unknown": []}


@every_honest_answer
def test_an_honest_answer_is_neither_refused_nor_held(entry):
    case = case_of(entry.exercise, entry.source)
    assert audit(get(entry.exercise), entry.source, case=case) == ("", "")


DECOY = """
import torch
import triton
import triton.language as tl

from course_lib.device import DEVICE


@triton.jit
def _decoy(flag_ptr):
    tl.store(flag_ptr, 1.0)


def {entry}({args}):
    flag = torch.zeros(1, device=DEVICE)
    _decoy[(64,)](flag)
    {answer}
"""
# our own honest computation in torch stands for a vendor's, so that it is there for every exercise
TORCH = """for name, value in good(dict(zip({names}, values, strict=True))).items():
        outputs[name].copy_(value)"""


@pytest.mark.parametrize(
    "name",
    [
        n if n in QUICK else pytest.param(n, marks=pytest.mark.slow)
        for n, e in LAUNCHING.items()
        if e.writes and not e.probe
    ],
)
def test_a_decoy_kernel_is_refused(name):
    exercise = LAUNCHING[name]
    names = list(exercise.draw(case_of(name), 1, DEVICE, TIER).args)
    before = f"""
from autograder.exercise import get
good = get({name!r}).precision.good
outputs = {{}}
"""
    at = {output: names.index(output) for output in exercise.writes}
    answer = f"outputs.update({{n: values[i] for n, i in {at}.items()}})\n    " + TORCH.format(names=names)
    decoy = DECOY.format(entry=exercise.entry, args="*values", answer=answer)
    refused, _ = audit(exercise, before, decoy)
    assert "aten::" in refused
    assert "does not come from your kernels" in refused and "`_decoy`" in refused


def test_a_kernel_that_copies_what_torch_computed_is_refused_for_the_operator():
    source = RIGHT.replace("a * x + y, mask", "x, mask").replace("(out, x, y,", "(out, torch.add(y, x, alpha=a), y,")
    refused, _ = audit(AXPY, "import torch", source)
    assert "`aten::add`" in refused and "does not come" not in refused


def test_a_kernel_used_as_a_flag_is_refused_by_torch_s_operators():
    source = DECOY.format(entry="axpy", args="a, x, y, out", answer="torch.add(flag * y, x, alpha=a, out=out)")
    refused, _ = audit(AXPY, source)
    assert "`aten::mul`" in refused


def test_numpy_behind_a_flag_goes_to_a_person_on_three_counts():
    answer = "if flag.item(): out.copy_(torch.from_numpy(a * x.cpu().numpy() + y.cpu().numpy()))"
    refused, review = audit(AXPY, DECOY.format(entry="axpy", args="a, x, y, out", answer=answer))
    assert not refused
    assert "read back" in review and "In the text" in review
    assert "stays right" in review or "No element is right" in review or "no answer to compare" in review


def test_numpy_beside_a_decoy_is_refused_because_the_empty_kernel_is_right_too():
    answer = "out.copy_(torch.from_numpy(a * x.cpu().numpy() + y.cpu().numpy()))"
    refused, review = audit(AXPY, DECOY.format(entry="axpy", args="a, x, y, out", answer=answer))
    assert "does not come from your kernels" in refused
    assert "numpy" in review


def test_a_fallback_for_an_empty_answer_is_refused():
    source = RIGHT + "\n    if out.isnan().any():\n        torch.add(y, x, alpha=a, out=out)\n"
    refused, review = audit(AXPY, "import torch", source)
    assert "does not come from your kernels" in refused
    assert "aten::isnan" in review


def test_a_kernel_made_by_exec_goes_to_a_person():
    source = f"""
import linecache
text = {RIGHT!r}
linecache.cache["<made>"] = (len(text), None, text.splitlines(keepends=True), "<made>")
exec(compile(text, "<made>", "exec"))
"""
    refused, review = audit(AXPY, source)
    assert not refused
    assert "`_axpy_kernel`" in review and "exec" in review


def test_a_thread_left_running_goes_to_a_person():
    source = RIGHT + "\n    threading.Thread(target=time.sleep, args=(0.5,), daemon=True).start()\n"
    _, review = audit(AXPY, "import threading, time", source)
    assert "Left running after the call: " in review and "thread" in review


# ------------------------------------------------------------------------------------------- words, from plain data

SEEN = {
    "operators": {"aten::empty": 2, "aten::copy_": 1},
    "kernels": {"_axpy_kernel": 1},
    "device": {},
    "programs": [["_axpy_kernel", [64, 1, 1]]],
    "threads": 0,
    "processes": 0,
    "blind": "",
}


def judged(emptied_right=False, half="partly", missing=(), found=(), exercise=AXPY, **changes):
    return judge_work(exercise, SEEN | changes, emptied_right, half, missing, found)


def test_nothing_out_of_place_is_nothing_said():
    assert judged() == ("", "")


def test_names_that_no_report_has_room_for_go_to_a_person_and_an_operator_named_like_autograds_own_is_refused():
    assert judged(dropped=0) == ("", "") and "5 names are left out" in judged(dropped=5)[1]
    assert "`autograd::f1`" in judged(operators={"autograd::f1": 1})[0]
    own = {"autograd::engine::evaluate_function: MulBackward0": 1, "profiler::_record_function_enter_new": 1}
    assert judged(operators=own) == ("", "")


def test_an_operator_that_the_exercise_allows_is_no_reason():
    assert judged(operators={"aten::sum": 1})[0]
    assert judged(operators={"aten::sum": 1}, exercise=replace(AXPY, allowed=("aten::sum",))) == ("", "")


def test_a_check_for_finite_values_goes_to_a_person_and_costs_nothing():
    _, seen = watch.watched(lambda x: bool(torch.isfinite(x).all()), (torch.ones(4),))
    refused, review = judged(operators=seen["operators"])
    assert not refused and "aten::isfinite" in review


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::(anonymous namespace)::softmax_warp_forward<float, float>(float*)",
        "sm90_xmma_gemm_f32f32_tf32f32_f32",
        "nvjet_hsh_128x256",
        "triton_poi_fused_add_0",
        "triton_per_fused__softmax_exp_prepare_softmax_online_sub_0",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_cublas",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
    ],
)
def test_a_device_kernel_of_a_library_is_refused(name):
    assert "that this submission does not contain" in judged(device={name: 1, "_axpy_kernel": 1})[0]


@pytest.mark.parametrize(
    "name",
    [
        "Memcpy DtoD (Device -> Device)",
        "Memset (Device)",
        "void at::native::vectorized_elementwise_kernel<8, at::native::float16_copy_kernel_cuda(at::TensorIterator&)",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::OpaqueType<4u>, 1, 128>",
        "void (anonymous namespace)::elementwise_kernel_with_index<int, at::native::arange_cuda_out(c10::Scalar)",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1>>",
        "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
    ],
)
def test_copies_and_fills_on_the_device_are_fine(name):
    assert judged(device={name: 3, "_axpy_kernel": 1}) == ("", "")


def test_a_device_kernel_of_unknown_origin_goes_to_a_person():
    refused, review = judged(device={"_axpy_kernel": 1, "_other": 1})
    assert not refused and "`_other`" in review


def test_no_launch_in_the_watched_call_is_refused():
    assert "No Triton kernel" in judged(kernels={}, programs=[])[0]


def test_halves_say_nothing_about_a_single_program():
    for half in ("right", "partly", "broken", "none"):
        assert judged(half=half, programs=[["_axpy_kernel", [1, 1, 1]]]) == ("", "")


def test_an_answer_broken_whole_by_a_half_goes_to_a_person_only_where_there_are_many_programs():
    assert judged(half="broken", programs=[["_axpy_kernel", [8, 1, 1]]]) == ("", "")
    assert "No element is right" in judged(half="broken")[1]
    assert "no answer to compare" in judged(half="none")[1]
    assert broken(CaseVerdict("a case", "n=1", False, "raised ValueError")) == "none"


def test_an_answer_right_whatever_half_returns_goes_to_a_person():
    assert "stays right" in judged(half="right")[1]


def test_an_emptied_kernel_whose_text_was_not_found_proves_nothing():
    refused, review = judged(emptied_right=True, missing={"_axpy_kernel"})
    assert not refused and "under @triton.jit" in review


def test_what_the_profiler_missed_goes_to_a_person():
    assert "could not be seen whole: no events" in judged(blind="no events")[1]


@pytest.mark.parametrize(
    "report",
    [
        None,
        [],
        "seen",
        {},
        SEEN | {"operators": ["aten::add"]},
        SEEN | {"kernels": {"_axpy_kernel": "many"}},
        SEEN | {"programs": [["_axpy_kernel"]]},
        SEEN | {"programs": [["_axpy_kernel", [None]]]},
        SEEN | {"threads": -1},
        SEEN | {"blind": None},
        SEEN | {"device": {"x": True}},
    ],
    ids=repr,
)
def test_a_report_in_no_shape_goes_to_a_person_and_ends_nothing(report):
    _, review = judge_work(AXPY, report, False, "partly", (), ())
    assert "not what the referee's own code reports" in review
    merged([report])


def test_the_call_of_the_most_programs_is_tried():
    assert telling([SEEN, SEEN | {"programs": [["k", [9, 9]], ["k", [1]]]}, {}, SEEN | {"programs": "forged"}]) == 1


def test_reports_of_several_calls_add_up():
    total = merged([SEEN, SEEN | {"operators": {"aten::add": 1}, "threads": 2}])
    assert total["operators"] == {"aten::empty": 2, "aten::copy_": 1, "aten::add": 1}
    assert total["kernels"] == {"_axpy_kernel": 2} and total["threads"] == 2 and len(total["programs"]) == 2


def test_a_long_list_is_cut():
    found = [("mine", line, "uses os") for line in range(30)]
    _, review = judged(found=found)
    assert "and 22 more" in review and len(review) < 600


def test_kernels_are_counted_where_an_exercise_asks_how_many():
    seen = {"operators": {}, "kernels": {}, "device": {"add": 30, "sin": 19}, "programs": [], "threads": 0}
    seen |= {"processes": 0, "blind": ""}
    assert judge_count(seen, 49) == ("", "")
    refused, review = judge_count(seen, 50)
    assert "49 kernels" in refused and "50" in refused and not review


@pytest.mark.parametrize("seen", [{}, {"device": "many"}, None])
def test_kernels_that_could_not_be_counted_refuse_nothing(seen):
    refused, review = judge_count(seen, 50)
    assert review and not refused


@pytest.mark.parametrize(("kernels", "tried_alone"), [(auditing.KERNELS, auditing.KERNELS), (auditing.KERNELS + 1, 0)])
def test_of_more_kernels_than_so_many_none_is_switched_off_alone(kernels, tried_alone, monkeypatch):
    alone = []
    broken = CaseVerdict("a case", "", False, "wrong", {"out": None})
    trial = types.SimpleNamespace(of=lambda cells: broken, worker=types.SimpleNamespace(end=lambda: None))
    worker = types.SimpleNamespace(end=lambda: None)
    room = types.SimpleNamespace(submission=types.SimpleNamespace(cells=(Cell("mine", RIGHT),)))
    monkeypatch.setattr(auditing, "_SwitchedOff", lambda *given: trial)
    monkeypatch.setattr(auditing, "_twice", lambda *given: "")
    monkeypatch.setattr(auditing, "compiled", lambda *given: ("", ""))
    monkeypatch.setattr(auditing, "broken", lambda case: "broken")
    monkeypatch.setattr(auditing, "halved", lambda cells, names, salt: len(names) == 1 and alone.append(names))
    names = {f"k{n}": 1 for n in range(kernels)}
    outcome = Outcome(seen={"operators": {}, "kernels": names, "device": {}, "programs": [["k0", [256]]], "blind": ""})
    verdict = examine(AXPY, function_of([Cell("mine", RIGHT)], "axpy", "right"), seed=1)
    trials = [(case, None, outcome) for case in AXPY.cases if TIER in case.tiers]
    auditing.audited(room, worker, AXPY, verdict, trials)
    assert len(alone) == tried_alone


def test_a_kernel_is_known_by_the_whole_of_its_name():
    """The text is read by these names: one that was cut would be found nowhere."""
    name = "k" * 5000
    assert kernels_of({"kernels": {"0": {"name": name}}}) == {name}
