"""What a notebook shows: the bare score as text, the report as HTML, nothing on stderr."""

import runpy
import shutil
import sys
import warnings

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell

from autograder import check, check_speed
from autograder.bank import entries, find, load
from autograder.call.in_process import examine
from autograder.call.trial import judged_part
from autograder.classroom import demonstrated
from autograder.exercise import Call, Case, get, registry
from autograder.judging.verdict import CaseVerdict, Diagnosis, SpeedVerdict, Timed, Verdict
from autograder.live import Score
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
from course_lib.device import TIER
from course_lib.kernels.timed import gemv_into


def not_written(a, x, y, out):
    raise NotImplementedError("not written yet")


def test_the_text_form_of_a_score_is_a_number_that_nbgrader_reads():
    score = check("start.axpy", not_written)
    assert float(repr(score)) == score.points == 0.0


def test_a_check_keeps_warnings_and_stderr_out_of_the_cell(capfd):
    def noisy(a, x, y, out):
        warnings.warn("one line here would cost all points", stacklevel=1)
        print("as would this", file=sys.stderr)

    check("start.axpy", noisy)
    assert capfd.readouterr().err == ""


def forgets_a_until_the_device_is_lost(a, x, y, out):
    if x.numel() == 2**12 + 1:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nFor debugging consider")
    out.copy_(x + y)


def test_a_fault_ends_the_trials_and_the_mistake_is_named_by_the_cases_before_it():
    verdict = check("start.axpy", forgets_a_until_the_device_is_lost, seed=3).verdict
    why = {case.name: case.why for case in verdict.cases}
    assert why["one past a power of two"].startswith("raised RuntimeError: CUDA error: an illegal memory access")
    assert why["one short of a power of two"].startswith("not tried: After the fault")
    assert "restart the kernel" in verdict.note
    assert verdict.diagnosis.mistake == "a_forgotten"
    assert verdict.points == 0


@pytest.mark.skipif(TIER != "interpreter", reason="on a GPU every launch is compiled")
def test_a_check_shows_that_no_compiler_takes_a_kernel_as_grading_does(tmp_path):
    """The interpreter adds a block to a number; a compiled loop keeps the type that its variable had before it."""
    right, zeros = find("roofline.matmul/right/plain").source, "tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)"
    assert zeros in right
    (tmp_path / "wrong.py").write_text(right.replace(zeros, "0.0"))
    (tmp_path / "right.py").write_text(right)
    verdict = check("roofline.matmul", runpy.run_path(tmp_path / "wrong.py")["matmul"]).verdict
    assert verdict.right == len(verdict.cases) and verdict.points == 0
    assert "no GPU would" in verdict.note and verdict.note.count("Loop-carried variable acc") == 1
    assert check("roofline.matmul", runpy.run_path(tmp_path / "right.py")["matmul"]).points == 10


@pytest.mark.gpu
def test_what_is_judged_of_a_call_keeps_its_strides():
    x = torch.zeros(3, 12, device="cuda")[:, :5]
    case = Case("any", lambda draw: None)
    there = judged_part(Call({"x": x}, ""), case).args["x"]
    assert there.device.type == "cpu" and there.stride() == (12, 1)


@pytest.mark.gpu
def test_a_large_argument_keeps_the_small_ones_beside_it_and_outputs_follow_the_truth():
    large, small = torch.zeros(2**23, device="cuda"), torch.ones(3, device="cuda")
    call = Call({"x": large, "y": small, "n": 3}, "")
    args = judged_part(call, Case("any", lambda draw: None)).args
    assert args["x"].is_cuda and args["y"].is_cuda and args["n"] == 3
    verdict = examine(get("mx.gemv"), gemv_into, seed=1, only="large")
    assert verdict.accepted and verdict.cases, verdict.explain()


def test_something_that_is_no_function_is_told_so():
    assert "should be a function" in check("start.axpy", 3).explain()


def test_an_unknown_exercise_is_told_which_there_are():
    with pytest.raises(KeyError, match=r"start\.axpy"):
        check("start.axpi", not_written)


@pytest.mark.skipif(TIER == "gpu", reason="on a GPU speed is measured")
def test_without_a_gpu_speed_points_are_pending():
    score = check_speed("roofline.softmax", not_written)
    assert score.points == 0 and score.verdict.pending
    assert "waits for a GPU" in score.explain()


HOSTILE = "<script>alert('points')</script>"


def test_the_report_escapes_everything_a_submission_could_have_written():
    verdict = Verdict(
        "start.axpy",
        "interpreter",
        1,
        0.0,
        5,
        (CaseVerdict(HOSTILE, HOSTILE, False, HOSTILE),),
        Diagnosis(None, HOSTILE, HOSTILE),
        note=HOSTILE,
    )
    assert "<script" not in Score(0.0, verdict)._repr_html_()


def test_points_that_wait_for_a_person_are_not_said_to_wait_for_a_gpu():
    note = "The points wait for a person. In the text: imports os."
    held = Verdict("start.axpy", "gpu", 1, 0.0, 5, (), note=note, pending=True, held=5.0)
    assert held.headline == f"start.axpy: {note}"
    assert "waiting for a GPU" in Verdict("start.axpy", "gpu", 1, 0.0, 5, (), pending=True).headline


def test_a_speed_report_shows_time_floor_and_reference():
    row = Timed("n = 4", 2e-4, 1.9e-4, 2.1e-4, 1e-4, 1.8e-4)
    score = Score(3.0, SpeedVerdict("roofline.softmax", "gpu", 3.0, 4.0, (row,)))
    assert "200.0 us [190.0, 210.0], floor 100.0 us, reference 180.0 us" in score.explain()
    assert "<img" in score._repr_html_()
    assert row.share == pytest.approx(0.9)


KERNEL_AND_TORCH = """
def axpy(a, x, y, out):
    _axpy(a, x, y, out)
    out.copy_(out if out.numel() < 100 else a * x + y)
"""


def ran(folder, source):
    """The names that a file leaves behind: Triton reads a kernel's text from one."""
    path = folder / f"cell_{len(list(folder.iterdir()))}.py"
    path.write_text(source, encoding="utf-8")
    return runpy.run_path(str(path))


def test_torchs_arithmetic_beside_a_kernel_earns_nothing_as_in_grading(tmp_path):
    right = find("start.axpy/right/masked").source
    score = check("start.axpy", ran(tmp_path, right.replace("def axpy(", "def _axpy(") + KERNEL_AND_TORCH)["axpy"])
    assert score.points == 0 and score.verdict.right == len(score.verdict.cases)
    assert "torch computed: `aten::mul`, `aten::add`" in score.explain()
    assert "Launch your kernel directly" not in score.explain()
    views = ran(tmp_path, right.replace("n = x.numel()", "n = x.view(-1)[:].numel()"))["axpy"]
    assert check("start.axpy", views).points == 5


WRAPPED = """
import torch

@torch.library.custom_op("tests_check::axpy", mutates_args={"out"})
def wrapped(a: float, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    _axpy(a, x, y, out)

def axpy(a, x, y, out):
    wrapped(a, x, y, out)
"""


def test_a_kernel_inside_an_operator_of_ones_own_is_told_to_stand_without_it(tmp_path):
    right = find("start.axpy/right/masked").source
    score = check("start.axpy", ran(tmp_path, right.replace("def axpy(", "def _axpy(") + WRAPPED)["axpy"])
    assert score.points == 0
    assert "Launch your kernel directly here, not inside an operator (`tests_check::axpy`)." in score.explain()


@pytest.fixture
def notebook(monkeypatch):
    """A notebook that runs here: `notebook(text)` runs a cell and returns its names."""
    shell = InteractiveShell(user_ns={})
    monkeypatch.setattr(demonstrated, "_shell", lambda: shell)

    def run(text):
        shell.run_cell(text, store_history=True).raise_error()
        return shell.user_ns

    yield run
    shell.history_manager.end_session()


SHOWN = 'GPU = TIER == "gpu"  # a demonstration cell of the lesson on attention'
WORK = "def work(op, sizes, dtype):\n    return {'flops': int(GPU)}"


@pytest.mark.parametrize("own", ["", "GPU = 0", "for GPU in [1]: pass", "import torch as GPU"])
def test_a_name_that_only_a_demonstration_cell_binds_is_missing_in_a_check_as_it_will_be_in_grading(
    notebook, monkeypatch, own
):
    monkeypatch.setattr(demonstrated, "_demonstrations", lambda: {demonstrated._bare(SHOWN): frozenset({"GPU"})})
    notebook("TIER = 'gpu'")
    notebook(SHOWN)
    names = notebook(own + "\n" + WORK)
    score = check("roofline.work", names["work"])
    assert ("`GPU` is defined only in a demonstration cell" in score.explain()) == (not own)
    assert names["GPU"] is not None, "the notebook has it again"


def test_a_class_lacks_too_what_only_a_demonstration_cell_binds(notebook, monkeypatch):
    monkeypatch.setattr(demonstrated, "_demonstrations", lambda: {demonstrated._bare(SHOWN): frozenset({"GPU"})})
    notebook("TIER = 'gpu'")
    notebook(SHOWN)
    answer = notebook("class Answer:\n    def __init__(self):\n        self.gpu = GPU")["Answer"]
    with demonstrated.withheld(answer), pytest.raises(NameError, match="GPU"):
        answer()
    assert answer().gpu


def test_an_answer_in_a_demonstration_cell_earns_nothing_and_is_told(notebook, monkeypatch):
    monkeypatch.setattr(demonstrated, "_demonstrations", lambda: {demonstrated._bare(WORK): frozenset({"work"})})
    score = check("roofline.work", notebook(WORK)["work"])
    assert score.points == 0 and "`work` is defined only in a demonstration cell" in score.explain()


def test_a_demonstration_that_is_checked_has_the_names_beside_it(notebook, monkeypatch):
    text = "FLOPS = 5\ndef wrong(op, sizes, dtype):\n    return FLOPS, 7"
    monkeypatch.setattr(demonstrated, "_demonstrations", lambda: {demonstrated._bare(text): {"FLOPS", "wrong"}})
    score = check("roofline.work", notebook(text)["wrong"])
    assert score.verdict.cases and "demonstration" not in score.explain() and "not defined" not in score.explain()


def test_demonstration_cells_are_those_of_the_released_lessons_that_are_not_set_up_cells():
    bound = set().union(*demonstrated._demonstrations().values())
    assert "GPU" in bound and "check" not in bound


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize("name", sorted(registry()))
def test_a_check_gives_what_grading_gives(name):
    """Every right answer, and some wrong ones, under one seed."""
    asked = get(name)
    if TIER not in asked.tiers:
        pytest.skip("judged on a GPU only")
    mistakes = entries([name], ["mistakes"])
    for entry in [*entries([name], ["right"]), *mistakes[:: max(1, len(mistakes) // 4)]]:
        shown = examine(asked, getattr(load(entry), asked.entry), 20260103)
        with Referee(Submission((Cell("answer", entry.source),))) as there:
            graded = there.examine(asked, 20260103)
        assert shown.points == graded.points, f"{entry}: {graded.note or graded.headline}"
