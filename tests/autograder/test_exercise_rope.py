"""Unit 06: what a diagnosis says about places, what is held between passes, and that the course's own kernels pass."""

import gc
import linecache
import shutil
from dataclasses import replace

import pytest
import torch

from autograder import bank
from autograder.call.in_process import examine
from autograder.exercise import get, of_unit
from autograder.exercises.rope import wrong_rotation_formulas as wrong
from autograder.exercises.rope.forward_mistakes import RACES
from autograder.exercises.rope.places import wrong_pairs
from autograder.exercises.rope.rotation import turned
from autograder.exercises.strides import as_read
from autograder.inside.calling import Found
from autograder.inside.probes import rotating
from autograder.inside.probes.passing import InPassing
from autograder.inside.probes.rotating import attributes, differentiated, kept
from autograder.judging.outcome import FOUND
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
from course_lib.kernels.rope import Tables, rope, rope_

NAMES = [exercise.name for exercise in of_unit("rope")]


def wrong_in(rows=slice(None), columns=slice(None), batch=2, heads=4, length=37, head_size=16):
    wrong = torch.zeros(batch, heads, length, head_size, dtype=torch.bool)
    wrong[:, :, rows, columns] = True
    return wrong


def args(pairs=8, layout="halves"):
    return {"cos": torch.empty(40, pairs), "layout": layout}


# ------------------------------------------------------------------------------------------- where it is wrong


def test_a_partial_last_block_is_called_by_its_rows_and_the_blocks_that_end_there():
    said = wrong_pairs("q", wrong_in(slice(32, 37)), args())
    assert "in rows 32 to 36 of 0 to 36, the last block when it has 8 or 16 or 32 rows" in said


def test_elements_of_pairs_are_told_apart_in_both_layouts():
    assert "only second elements of the pairs" in wrong_pairs("q", wrong_in(columns=slice(8, 16)), args())
    assert "only first elements of the pairs" in wrong_pairs(
        "q", wrong_in(columns=slice(0, 16, 2)), args(8, "interleaved")
    )
    assert "only elements that are not turned" in wrong_pairs("q", wrong_in(columns=slice(8, 16)), args(pairs=4))


def test_a_row_at_position_0_that_stays_right_is_told():
    assert "in every row but the first" in wrong_pairs("k", wrong_in(slice(1, None)), args())


def test_one_head_and_one_sequence_are_named():
    wrong = torch.zeros(2, 4, 37, 16, dtype=torch.bool)
    wrong[1, 3] = True
    assert "only in sequence 1, only in head 3" in wrong_pairs("k", wrong, args())


# ------------------------------------------------------------------------------------------- races


def in_any_order(v, x, most):
    """Each element turned once or as often as `most` says of its row: what programs that overtake each other leave.

    Mostly once: where few programs are, all have loaded before the first of them stores.
    """
    several = torch.rand(()) < 0.3
    made, turning = wrong.repeated(v, x, most.clamp(max=1)), (torch.rand(x.shape) < 0.5) & several
    for n in range(2, int(most.max()) + 1):
        made = torch.where(turning & (most >= n)[..., None], wrong.repeated(v, x, most.clamp(max=n)), made)
    return made


def overlapping(v, x, other):
    return in_any_order(v, x, wrong.programs_a_row(x, 8))


def once_a_query_head(v, x, other):
    return in_any_order(v, x, torch.full((x.shape[2],), max(1, other.shape[1] // x.shape[1])))


def first_sequence(v, x, other):
    return in_any_order(v, x, (torch.arange(len(x)) < 1)[:, None, None] * len(x))


def first_rows(v, x, other):
    return wrong.only(v, x, length=slice(0, 8))


def first_row_of_shared_heads(v, x, other):
    return wrong.only(v, x, length=slice(0, 1 if other.shape[1] > x.shape[1] else None))


@pytest.mark.parametrize(
    ("turn", "name"),
    [
        (overlapping, "block_not_scaled"),
        (once_a_query_head, "k_once_a_query_head"),
        (first_sequence, "sequences_on_the_first"),
        (first_rows, "first_rows_only"),
        (first_row_of_shared_heads, None),
    ],
)
def test_programs_that_overtake_each_other_are_named_by_what_they_cannot_change(monkeypatch, turn, name):
    torch.manual_seed(0)
    monkeypatch.setattr(rotating, "HEADS", 10**9)  # what such programs leave behind is made in copies here

    def rope_(q, k, cos, sin, positions, offset, layout):
        v = {"cos": cos, "sin": sin, "positions": positions, "offset": offset, "layout": layout}
        for x, other in ((q, k), (k, q)):
            x.copy_(turn(v, x.clone(), other))

    diagnosis = examine(get("rope.forward"), rope_, seed=20260101).diagnosis
    assert (diagnosis.mistake if diagnosis else None) == name


@pytest.mark.parametrize("heads_of_q", [True, False])
def test_rows_that_are_turned_again_behind_k_are_told_from_rows_that_are_left_alone(heads_of_q):
    """Either k is walked over the heads of q, or its own heads with the strides of q."""

    def rope_(q, k, cos, sin, positions, offset, layout):
        v = {"cos": cos, "sin": sin, "positions": positions, "offset": offset, "layout": layout}
        q.copy_(turned(v, q.clone()))
        shape, strides = (q.shape, k.stride()) if heads_of_q else (k.shape, q.stride())
        for head in k.as_strided(shape, strides).unbind(1):
            made = turned(v, head[:, None].clone())[:, 0]
            head.copy_(torch.where(made.isnan(), torch.nan, made))  # another NaN than those around k, as on a GPU

    sign = next(m for m in RACES if m.name == "k_over_the_heads_of_q")
    only = "one row", "halves", "fewer heads of keys"
    verdict = examine(replace(get("rope.forward"), mistakes=(sign,)), rope_, seed=20260101, only=only)
    assert any("outside `k`" in case.why for case in verdict.cases)
    assert verdict.diagnosis.mistake == (sign.name if heads_of_q else None)


# ------------------------------------------------------------------------------------------- what is held


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, keep):
        if keep == "saved":
            ctx.save_for_backward(q)
        if keep == "attribute":
            ctx.mine = {"deep": [q]}
        return 2 * q, 2 * k

    @staticmethod
    def backward(ctx, dq, dk):
        return 2 * dq, 2 * dk, None


def _tensors():
    return [torch.randn(1, 2, 3, 4) for _ in range(4)]


@pytest.mark.parametrize("keep", ["saved", "attribute"])
def test_a_tensor_that_is_kept_for_backward_is_found_however_it_is_kept(keep):
    with pytest.raises(ValueError, match="96 bytes beside the tables are kept for the backward pass"):
        differentiated(_Doubled.apply, *_tensors(), True, keep)
    differentiated(_Doubled.apply, *_tensors(), False, keep)


def _in_torch(of_q: bool = True, of_k: bool = True):
    """rope_ without a kernel."""

    def rope_(q, k, cos, sin, positions, offset, layout):
        v = {"cos": cos, "sin": sin, "positions": positions, "offset": offset, "layout": layout}
        for x, wanted in ((q, of_q), (k, of_k)):
            if wanted:
                x.copy_(turned(v, x.clone()))

    return rope_


def test_an_answer_without_a_kernel_is_told_that_and_nothing_of_copies():
    one = get("rope.forward")
    signs = replace(one, mistakes=tuple(m for m in one.mistakes if m.sign))
    verdict = examine(signs, _in_torch(), seed=5, only=("halves", "heads side by side"))
    assert verdict.note.startswith("No Triton kernel was launched") and verdict.diagnosis is None


@pytest.mark.parametrize("name", ["rope.forward/mistakes/turned_in_copies", "rope.backward/mistakes/gradients_copied"])
def test_what_a_probe_finds_is_no_error_of_the_answer(name):
    entry = bank.find(name)
    verdict = examine(get(entry.exercise), entry.function, seed=5, only=entry.killed_by)
    assert "the call held" in verdict.cases[0].why and "raised" not in verdict.cases[0].why
    assert FOUND == Found.__name__


def test_a_headline_quotes_the_plainest_case_that_is_wrong():
    only = "one row", "halves", "head size 72", "fp16"
    one = get("rope.forward")
    known = replace(one, mistakes=tuple(m for m in one.mistakes if m.name == "k_not_turned"))
    diagnosis = examine(known, _in_torch(of_k=False), seed=5, only=only).diagnosis
    assert diagnosis.mistake == "k_not_turned" and diagnosis.pattern.startswith("k, in \u201chalves\u201d")


def test_memory_that_only_a_cycle_holds_is_let_go_and_what_was_there_before_is_not_looked_through():
    gc.disable()
    try:
        frozen = gc.get_freeze_count()
        with InPassing(granted=1000) as made:
            assert gc.get_freeze_count() > frozen
            for _ in range(3):
                cycle = [torch.zeros(200)]
                cycle.append(cycle)
                del cycle
        assert (made.most, gc.get_freeze_count()) == (800, frozen)
    finally:
        gc.enable()


def test_the_gradient_of_a_sum_is_read_with_other_strides_too():
    assert as_read(torch.ones(()).expand(2, 3), (2, 3), (0, 0)).tolist() == [[1.0] * 3] * 2


def test_what_comes_back_are_results_and_gradients():
    q, k, q_grad, _ = _tensors()
    made = differentiated(_Doubled.apply, q, k, q_grad, None, True, "")
    assert all(torch.equal(got, 2 * want) for got, want in zip(made, (q, k, q_grad, q_grad), strict=True))


def test_a_result_of_another_shape_is_told_before_autograd_compares_it():
    """Torch's own message about two such shapes fails to be made: it compares tensors."""
    q, k, q_grad, k_grad = _tensors()
    with pytest.raises(ValueError, match=r"the result for k has shape \(1, 4, 3, 4\), should be \(1, 2, 3, 4\)"):
        differentiated(lambda q, k: (2 * q, k.repeat(1, 2, 1, 1)), q, k, q_grad, k_grad, False)


def test_the_gradient_of_a_sum_has_no_memory_of_its_own():
    seen = []

    class Looking(_Doubled):
        @staticmethod
        def backward(ctx, dq, dk):
            seen.append(dq.stride())
            return 2 * dq, 2 * dk, None

    differentiated(Looking.apply, *_tensors()[:2], torch.ones(()), torch.ones(()), True, "")
    assert seen == [(0, 0, 0, 0)]


def test_memory_that_is_shared_counts_once_and_that_of_the_tables_not_at_all():
    table, x = torch.ones(100), torch.ones(10, 10)
    assert kept([x, x[:5], table[3:]], [table]) == x.nbytes
    assert list(attributes([(2 * x.requires_grad_())])) == []


# ------------------------------------------------------------------------------------------- what is right


def in_place(q, k, cos, sin, positions, offset, layout):
    rope_(q, k, Tables(cos, sin), layout, positions, offset)


def anew(q, k, cos, sin, positions, offset, layout):
    return rope(q, k, Tables(cos, sin), layout, positions, offset)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("rope.forward", in_place),
        ("rope.backward", anew),
        ("rope.speed", get("rope.speed").speed.kernel()),
    ],
)
def test_the_kernels_of_the_library_are_right(name, function):
    verdict = examine(get(name), function, seed=41, live=True)
    assert verdict.accepted, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_what_is_turned_in_place_is_judged_from_outside_too():
    """The audit calls twice in a row, and each time q and k hold their values first."""
    source = bank.find("rope.forward/right/two_launches").source
    with Referee(Submission((Cell("mine", source),))) as referee:
        verdict = referee.examine(get("rope.forward"), seed=3)
    assert verdict.points == 8, verdict.note


def test_what_an_autotuner_tries_out_is_no_copy_and_no_launch_of_the_answer():
    source = bank.find("rope.forward/right/two_launches").source
    tuner = "@triton.autotune([triton.Config({'BLOCK_S': n}) for n in (4, 8)], ['length'], restore_value=['x_ptr'])\n"
    source = source.replace("@triton.jit", f"{tuner}@triton.jit").replace(" BLOCK_S=8,", "")
    source = source.replace("[(triton.cdiv(length, 8)", "[lambda meta: (triton.cdiv(length, meta['BLOCK_S'])")
    cells = {"__name__": "tuned"}
    linecache.cache["<tuned>"] = (len(source), None, source.splitlines(keepends=True), "<tuned>")
    exec(compile(source, "<tuned>", "exec"), cells)
    verdict = examine(get("rope.forward"), cells["rope_"], seed=3, only=("heads side by side", "halves"))
    assert [f"{case.name}: {case.why}" for case in verdict.cases if not case.right] == []


def test_angles_are_drawn_near_position_0_or_far_from_it():
    """Between, angles in fp32 are neither right nor wrong: 1000 positions times 3e-8 is about the limit."""
    exercise = get("rope.reference")
    for case in exercise.cases:
        drawn = exercise.draw(case, 7, "cpu", "interpreter").args
        last = abs(drawn["offset"]) + drawn["x"].shape[2]
        assert drawn["x"].dtype != torch.float32 or last <= 110 or last >= 100_000, case.name
