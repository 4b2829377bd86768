"""Unit 03's exercises: the dispatcher that the oracle is, and what the referee makes of others."""

import contextlib
import io
import shutil

import pytest
import torch

from autograder import bank
from autograder.check import examine
from autograder.exercise import get, of_unit
from autograder.exercises.dispatch.meter_mistakes import Meter
from autograder.exercises.dispatch.table_mistakes import Table
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
from course_lib.models.broken_tower import Tower
from course_lib.probes.dispatching import ran
from course_lib.probes.meters import metered

NAMES = tuple(exercise.name for exercise in of_unit("dispatch"))


def _submissions(name, kind):
    for entry in bank.entries([name], [kind]):
        module = bank.load(entry.path)
        yield entry, module, getattr(module, get(name).entry)


@pytest.mark.parametrize("name", NAMES)
def test_two_right_solutions_and_a_file_for_every_mistake(name):
    files = bank.entries([name])
    assert sum(e.kind == "right" for e in files) >= 2
    assert {e.mistake for e in files if e.kind == "mistakes"} == {m.name for m in get(name).mistakes}


@pytest.mark.parametrize("name", NAMES)
def test_right_is_accepted_and_every_mistake_is_called_by_its_name(name):
    exercise = get(name)
    for seed in (77, 78):
        for entry, _, function in _submissions(name, "right"):
            assert examine(exercise, function, seed).accepted, entry
        for entry, module, function in _submissions(name, "mistakes"):
            verdict = examine(exercise, function, seed)
            assert verdict.diagnosis and verdict.diagnosis.mistake == entry.mistake, entry
            assert any(c.name == module.KILLED_BY and not c.right for c in verdict.cases), entry


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize("kind", ["right", "mistakes"])
def test_the_referee_comes_to_the_same_verdict_from_outside(kind):
    for name in NAMES:
        entry, _, function = next(_submissions(name, kind))
        with Referee(Submission((Cell(name, entry.path.read_text()),))) as there:
            outside, inside = there.examine(get(name), seed=21), examine(get(name), function, seed=21)
        assert (outside.points, outside.diagnosis, outside.cases) == (inside.points, inside.diagnosis, inside.cases)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", ["text", [], (), {}, float("nan"), True, None, (1, 2, 3), [[1], [2]], [["raised"]]])
def test_an_answer_of_the_wrong_kind_is_wrong_and_never_an_error(name, answer):
    exercise = get(name)
    call = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter")
    for want in exercise.oracle(call.args).values():
        assert exercise.accept(answer, want, call.args)


def test_a_scenario_followed_by_hand():
    scenario = {
        "keys": ["Autograd", "Profiler", "CPU"],
        "kernels": [
            {"op": "mul", "key": "Autograd", "then": "redispatch", "drop": ["Autograd"]},
            {"op": "mul", "key": "Profiler", "then": "fallthrough"},
            {"op": "mul", "key": "CPU", "then": "return"},
            {"op": "add", "key": "CPU", "then": "raise"},
        ],
        "steps": [
            {"call": "mul", "args": [["CPU"], ["Autograd", "Profiler"]]},
            {"within": ["exclude", "Autograd"], "steps": [{"call": "mul", "args": [["Autograd", "CPU"]]}]},
            {"call": "add", "args": [["CPU"]]},
            {"call": "add", "args": [["Profiler", "CPU"]]},
        ],
    }
    assert ran(Table, scenario) == [
        ["mul", "Autograd", ["Autograd", "Profiler", "CPU"]],
        ["mul", "CPU", ["Profiler", "CPU"]],
        ["returned", "mul by CPU"],
        ["mul", "CPU", ["CPU"]],
        ["returned", "mul by CPU"],
        ["add", "CPU", ["CPU"]],
        ["raised", "KernelError"],
        ["raised", "LookupError"],
    ]


ATTENTION = """def f(x, w, b):
    q, k, v = F.linear(x, w, b), x @ w, x
    return torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v
"""


def test_the_meter_counts_attention_as_a_person_does_and_backward_twice_as_much():
    sizes = {"batch": [3, 5], "n": 4, "dtype": "float32", "backward": False, "seed": 1}
    rows, n = 3 * 5, 4
    forward = 2 * (2 * rows * n * n) + 2 * (2 * rows * 5 * n)  # two projections, scores and their product with v
    assert metered(Meter, ATTENTION, sizes)[0]["flops"] == forward
    # each product of two matrices has two in its backward pass, and every factor needs its gradient here
    assert metered(Meter, ATTENTION, {**sizes, "backward": True})[0]["flops"] == 3 * forward


def test_the_meter_counts_the_bytes_of_a_few_operators_by_hand():
    source = (
        "def f(x, w, b):\n    y = (x * 2).add_(b).view(-1)\n    return torch.cat([y, y]).max(-1, keepdim=True)[0]\n"
    )
    sizes = {"batch": [6], "n": 5, "dtype": "float64", "backward": False, "seed": 1}
    x = 8 * 30
    expected = (x + x) + (x + 8 * 5 + x) + (2 * x + 2 * x) + (2 * x + 8 + 8)  # max gives a value and a place of 8 bytes
    assert metered(Meter, source, sizes)[0] == {"flops": 0, "bytes": expected}


def test_the_meter_agrees_with_torchs_own_count_of_flops_on_a_vision_tower():
    from torch.utils.flop_counter import FlopCounterMode

    tower, patches = Tower(width=12, heads=3, layers=3), torch.randn(4, 9, 4)
    lengths = torch.tensor([9, 4, 7, 1])
    with contextlib.redirect_stdout(io.StringIO()), Meter() as meter:
        tower(patches, lengths).sum().backward()
    with contextlib.redirect_stdout(io.StringIO()), FlopCounterMode(display=False) as counter:
        tower(patches, lengths).sum().backward()
    assert meter.flops == counter.get_total_flops() > 0
