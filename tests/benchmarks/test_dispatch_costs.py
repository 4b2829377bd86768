"""What a call costs, layer by layer: only right calls are timed, and the order of the layers is what lesson 03 says."""

import contextlib
import sys

import pytest
import torch
from matplotlib.text import Text

from benchmarks import dispatch
from benchmarks.against import Red
from benchmarks.launches import add_kernel, add_many_kernel
from course_lib import plots, results
from course_lib.device import DEVICE


@pytest.fixture(scope="module")
def cost() -> dict[str, float]:
    """Of twelve tries the fastest: other tests that run beside this one only make a call slower."""
    tries = [{row["name"]: row["us"] for row in dispatch.measured(rounds=3)} for _ in range(12)]
    return {name: min(one[name] for one in tries) for name in tries[0]}


def test_a_layer_that_does_not_give_the_sum_is_not_timed():
    x = torch.zeros(dispatch.NUMBERS)
    with pytest.raises(Red, match="a layer"):
        dispatch._check("a layer", lambda: x, contextlib.nullcontext)
    with pytest.raises(Red):
        dispatch._check("a layer", lambda: torch.empty(3, device="meta"), contextlib.nullcontext)


def frames(call, around) -> int:
    """How many functions of Python one call enters."""
    entered = []
    with around():
        call()
        sys.setprofile(lambda frame, event, arg: entered.append(frame) if event == "call" else None)
        try:
            call()
        finally:
            sys.setprofile(None)
    return len(entered)


def test_every_layer_adds_the_python_that_it_is_about():
    with dispatch.by_key() as key_plus:
        entered = {name: frames(*setting) for name, setting in dispatch.layers(key_plus).items()}
    plain = entered[dispatch.PLAIN]
    for name in ("x + y", "in no_grad", "a gradient is required", "in autocast"):
        assert entered[name] == plain, name
    assert plain < entered["under a dispatch mode"] < entered["under two dispatch modes"]
    assert plain < entered["a kernel in Python on one key"] < entered["torch.library.custom_op"]
    for name in ("under a function mode", "a wrapper with __torch_dispatch__", "in an autograd.Function", "a subclass"):
        assert entered[name] > plain, name
    assert entered["a fake tensor"] > entered["on meta"] > 10 * plain, "the rule for the shape of a sum is in Python"


@pytest.mark.slow
def test_every_python_layer_costs_a_microsecond_or_more(cost):
    plain = cost[dispatch.PLAIN]
    for name in ("under a dispatch mode", "a wrapper with __torch_dispatch__", "in an autograd.Function", "a subclass"):
        assert cost[name] - plain > 1.0, name
    assert cost["under two dispatch modes"] - cost["under a dispatch mode"] > 0.8
    assert cost["torch.library.custom_op"] - cost["a kernel in Python on one key"] > 2.0


@pytest.mark.slow
def test_no_grad_and_autocast_cost_a_sum_next_to_nothing_and_a_graph_does(cost):
    plain = cost[dispatch.PLAIN]
    for name in ("in no_grad", "in autocast", "inference tensors, inference mode"):
        assert 0.5 * plain < cost[name] < 1.5 * plain, name
    assert cost["a gradient is required"] - plain > 0.1


@pytest.mark.slow
def test_a_call_without_data_costs_more_than_one_with(cost):
    assert cost["a fake tensor"] > cost["on meta"] > 20 + cost[dispatch.PLAIN]


def test_both_kernels_whose_launches_are_timed_add():
    x, y = (torch.arange(dispatch.NUMBERS, dtype=torch.float32, device=DEVICE) + i for i in range(2))
    few, many = torch.full_like(x, float("nan")), torch.full_like(x, float("nan"))
    add_kernel[(1,)](few, x, y, dispatch.NUMBERS, BLOCK=16)
    add_many_kernel[(1,)](many, x, y, x, y, 1, 1, 1, dispatch.NUMBERS, 1.0, BLOCK=16)
    assert torch.equal(few, x + y) and torch.equal(many, x + y)


def test_several_processes_make_one_row():
    found = [
        [{"name": dispatch.PLAIN, "us": a}, {"name": "b", "us": b}] for a, b in ((1.0, 5.0), (2.0, 9.0), (1.5, 4.0))
    ]
    first, second = dispatch.together(found)
    assert first == {"name": dispatch.PLAIN, "us": 1.5, "low_us": 1.0, "high_us": 2.0, "above_plain_us": 0.0}
    assert second == {"name": "b", "us": 5.0, "low_us": 4.0, "high_us": 9.0, "above_plain_us": 3.5}


def test_the_figure_names_the_dearest_and_every_factor():
    recorded = results.load("dispatch", "cpu")
    ax = plots.costs(recorded["rows"], device=recorded["machine"])
    shown = [t.get_text() for t in ax.figure.findobj(Text)]
    names = [row["name"] for row in recorded["rows"]]
    dearest = max(recorded["rows"], key=lambda row: row["us"])
    assert set(names) <= set(shown) and dearest["name"] in ax.get_title(loc="left").replace("\n", " ")
    assert sum(text.endswith("x") and ", " in text for text in shown) == len(names) - 1
