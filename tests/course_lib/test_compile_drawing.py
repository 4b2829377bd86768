"""The figures of lesson 02 show what the data say: stations, graphs, when compiling pays."""

import math

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from torch import fx

from course_lib import plots, torch_inside
from course_lib.plots.break_even import break_even_calls, saved_words
from course_lib.plots.fxgraphs import _levels, _places

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def words(ax) -> list[str]:
    return [t.get_text() for t in ax.figure.findobj(Text)]


def half_tanh(x, w):
    h = x @ w
    return 0.5 * torch.tanh(h)


@pytest.fixture(scope="module")
def half_tanh_flow():
    torch._dynamo.reset()
    x, w = torch.randn(8, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    compiled = torch.compile(half_tanh)
    with torch_inside.watch() as seen:
        compiled(x, w).sum().backward()
    yield torch_inside.flow(half_tanh, seen)
    torch._dynamo.reset()


def test_the_flow_of_a_function_holds_every_station(half_tanh_flow):
    assert half_tanh_flow.source[1] == "    h = x @ w"
    assert [step.partition(" = ")[0] for step in half_tanh_flow.graph] == ["h", "tanh", "mul"]
    assert any(guard.startswith("x must be a float32 tensor") for guard in half_tanh_flow.guards)
    assert {"mm", "tanh", "mul"} <= set(half_tanh_flow.forward) and "mm ×2" in half_tanh_flow.backward
    assert half_tanh_flow.saved in (("mm 192 B",), ("tanh 192 B",))
    assert half_tanh_flow.forward_kernels[0] == "mm, library" and len(half_tanh_flow.forward_kernels) == 2
    assert half_tanh_flow.code and all("tmp" in line for line in half_tanh_flow.code)
    assert set(half_tanh_flow.seconds) == {"Dynamo", "AOTAutograd", "Inductor", half_tanh_flow.language}


def test_the_picture_of_the_pipeline_shows_the_readers_own_lines(half_tanh_flow):
    shown = words(plots.pipeline(half_tanh_flow))
    assert "    h = x @ w" in shown and "h = l_x_ @ l_w_" in shown
    assert any(half_tanh_flow.saved[0] in text for text in shown)
    assert "become 2 calls" in " ".join(shown)


def one_by_one(x, a):
    product = torch.mul(x, a)
    return torch.sin(torch.add(product, x))


def test_a_graph_stands_below_what_it_reads_and_no_two_boxes_share_a_place():
    graph = fx.symbolic_trace(one_by_one).graph
    level = _levels(graph)
    places = _places(graph, level)
    assert all(level[source] < level[node] for node in graph.nodes for source in node.all_input_nodes)
    assert len(set(places.values())) == len(places)


def test_a_line_that_passes_a_row_has_a_place_of_its_own_in_it():
    graph = fx.symbolic_trace(one_by_one).graph
    x, _, product, *_ = graph.nodes
    places = _places(graph, _levels(graph))
    assert places[x, 1][1] == places[product][1] and places[x, 1] != places[product]


def test_graphs_count_their_calls_and_mark_what_is_new():
    before, after = fx.symbolic_trace(one_by_one).graph, fx.symbolic_trace(lambda x, a: torch.addcmul(x, x, a)).graph
    axes = plots.graphs({"before": before, "after": after})
    shown = words(axes)
    assert "3 calls become 1" in shown and "before: 3 calls" in shown and "after: 1 call" in shown
    tints = {tuple(np.round(patch.get_facecolor(), 2)) for ax in axes.figure.axes for patch in ax.patches}
    assert len(tints) == 3  # inputs, calls that were there, calls that are new


@pytest.mark.parametrize(("costs", "calls"), [((3e-3, 1e-3, 1.0), 500), ((1e-3, 1e-3, 1.0), math.inf)])
def test_break_even_is_compiling_over_the_gain_of_a_call(costs, calls):
    assert break_even_calls(*costs) == pytest.approx(calls)
    assert ("never" in saved_words(*costs)) == (calls == math.inf)


def test_the_total_starts_at_minus_the_compilation_and_crosses_zero_at_break_even():
    axes = plots.totals({"a": (3e-3, 1e-3, 1.0), "b": (1e-3, 2e-3, 1.0)})
    line = axes.lines[0]
    assert line.get_ydata()[0] == -1.0
    assert np.interp(500, *line.get_data()) == pytest.approx(0, abs=1e-9)
    assert any("b: never pays" in text for text in words(axes))


def test_gains_leave_out_what_was_not_measured():
    axes = plots.gains({"here": {64: 1.5, 128: 1.2}, "not measured": {}}, device="a CPU")
    shown = words(axes)
    assert "here" in shown and "not measured" not in shown and any("a CPU" in text for text in shown)


def test_a_measured_gain_and_its_count_share_a_colour_and_the_count_is_dashed():
    rows = {64: 1.5, 128: 1.2}
    names = ("fp32, measured", "fp32, counted", "bf16, measured", "bf16, counted", "report, forward")
    lines = {line.get_label(): line for line in plots.gains(dict.fromkeys(names, rows), device="a CPU").lines}
    colours = {name: lines[name].get_color() for name in names}
    assert colours["fp32, measured"] == colours["fp32, counted"] != colours["bf16, counted"]
    assert colours["bf16, measured"] == colours["bf16, counted"] != colours["report, forward"]
    assert [name for name in names if lines[name].get_linestyle() == "--"] == ["fp32, counted", "bf16, counted"]
