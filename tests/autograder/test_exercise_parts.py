"""What the exercises of several units share: sizes, types, layouts in memory, places, comparisons, names."""

import subprocess
import sys

import pytest
import torch

from autograder import exercise
from autograder.exercise import Draw
from autograder.exercises import everywhere
from autograder.exercises.dtypes import BF16, FP16, FP32, ROUGH_BITS, roughened, significant
from autograder.exercises.number_lists import differ
from autograder.exercises.places import listed, only_in, runs
from autograder.exercises.strides import as_read, columns_apart, contiguous, far_apart, rows_apart

NAN, INF = float("nan"), float("inf")


def test_odd_sizes_are_odd_and_reach_both_ends():
    draw = Draw(3, "cpu", "interpreter")
    assert {draw.odd(5, 9) for _ in range(200)} == {5, 7, 9}
    assert {draw.odd(4, 8) for _ in range(200)} == {5, 7, 9}, "an even end stands for the odd number after it"


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16])
def test_rough_arguments_keep_their_types_and_lose_bits_and_the_others_stay(dtype):
    v = {"x": torch.randn(64, generator=torch.Generator().manual_seed(0)).to(dtype), "eps": 1e-5}
    rough = roughened(v, ("x",), dtype)
    assert rough["eps"] == v["eps"] and rough["x"].dtype == dtype and not torch.equal(rough["x"], v["x"])
    assert torch.equal(rough["x"].double(), significant(v["x"], ROUGH_BITS[dtype]))


def test_values_far_apart_are_the_same_values_with_gaps_between_them():
    x = torch.arange(24.0).reshape(3, 2, 4)
    apart = far_apart(x, 100)
    assert torch.equal(apart, x) and apart.stride() == (100, 4, 1)


def test_layouts_have_the_strides_that_they_are_named_after():
    shape = (2, 3, 5, 8)
    assert contiguous(shape) == torch.empty(shape).stride()
    assert rows_apart(shape) == torch.empty(2, 5, 3, 8).transpose(1, 2).stride()
    assert columns_apart(shape) == torch.empty(2, 3, 8, 5).transpose(2, 3).stride()


def test_what_is_read_beyond_a_tensor_is_nan():
    x = torch.arange(4.0)
    assert torch.equal(as_read(x, (2, 2), (1, 2)), torch.tensor([[0.0, 2.0], [1.0, 3.0]]))
    assert as_read(x, (6,), (1,))[4:].isnan().all()


def test_places_are_named_and_many_are_cut_short():
    bad = torch.tensor([False, True, True, False, True])
    assert runs(bad) == [(1, 2), (4, 4)]
    assert only_in(bad, "head", "heads") == "only in heads 1, 2, 4"
    assert only_in(torch.tensor([False, True]), "head of keys", "heads of keys") == "only in head of keys 1"
    assert only_in(torch.tensor([True, True]), "head", "heads") == ""
    assert listed([*range(7)]) == "0, 1, 2, 3, 4 and others"


@pytest.mark.parametrize(
    ("got", "want", "far"),
    [
        ([1.0, 2.0], [1.0, 2.05], False),
        ([1.0, 2.0], [1.0, 2.2], True),
        ([1.0], [1.0, 2.0], True),
        ("12", [1.0, 2.0], True),
        ([1.0, "2"], [1.0, 2.0], True),
        ([1.0, NAN], [1.0, 2.0], True),
        ([1.0, NAN], [1.0, NAN], False),
        ([1.0, INF], [1.0, INF], False),
        ([1.0, -INF], [1.0, INF], True),
        ([1, 2], [1.0, 2.0], False),
    ],
)
def test_lists_of_numbers_differ_beyond_the_limit_and_nan_agrees_with_nan(got, want, far):
    assert differ(got, want, 0.1) is far


def test_a_mistake_of_every_kernel_has_the_name_that_its_files_in_the_bank_have():
    """The text differs from kernel to kernel where it must: the name does not."""
    made = (
        everywhere.int32_offset("a row", "row"),
        everywhere.grid_dimension("heads", "B * H", "more than 65535 heads"),
        everywhere.inputs_changed("x"),
        everywhere.x_changed("the result belongs into `out`"),
        everywhere.output_stride_ignored("N"),
        everywhere.number_of_gradients("eps"),
    )
    names = ["int32_offset", "grid_dimension", "inputs_changed", "writes_into_x", "output_stride_ignored"]
    assert [one.name for one in made] == [*names, "number_of_gradients"]
    assert "`row.to(tl.int64) * stride`" in made[0].says and made[-1].says.endswith("None for eps.")
    assert everywhere.number_of_gradients().says.endswith("in their order.")


def test_an_exercise_is_found_by_its_name_and_an_unknown_one_is_none():
    assert exercise.find("start.axpy") is exercise.get("start.axpy")
    assert exercise.find("start.nothing") is None and exercise.find("nowhere.axpy") is None
    with pytest.raises(KeyError, match=r"no exercise is called 'start\.nothing'; there are capstone\.mask, "):
        exercise.get("start.nothing")


def test_finding_an_exercise_imports_its_own_unit_and_no_other():
    code = (
        "import sys; from autograder import exercise; exercise.find('start.axpy');"
        "print(*sorted({n.split('.')[2] for n in sys.modules if n.startswith('autograder.exercises.')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    units = {"compile", "dispatch", "flash", "mlp", "rope", "mx", "ddp", "roofline"}
    assert not units & set(done.stdout.split()) and "start" in done.stdout.split()
