"""Each view shows what torch really did, on graphs that are small enough to know by heart."""

import json
import logging
import re

import numpy as np
import pytest
import torch

from course_lib import tracing
from course_lib.tracing import events
from course_lib.tracing.breaks import KNOWN
from course_lib.tracing.events import Event
from course_lib.tracing.graphs import read_graph
from course_lib.tracing.kernels import cut_cpp, cut_triton
from course_lib.tracing.phases import AOT, COMPILER, DYNAMO, GUARDS, INDUCTOR, split
from course_lib.tracing.recompiles import in_words
from course_lib.tracing.view import View, bytes_text

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
FACTOR = 2.0


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def watched(fn, *calls, backend="eager", **options):
    compiled = torch.compile(fn, backend=backend, **options)
    with tracing.watch() as seen:
        for args in calls:
            compiled(*args)
    return seen


# ---------------------------------------------------------------------------------------------------- breaks


def branches(x):
    if x.sum() > 0:
        x = x + 1
    return x * 2


def reads_a_number(x):
    return x * x.sum().item()


def prints(x):
    x = x + 1
    print("so far")
    return x * 2


def goes_through_numpy(x):
    return torch.from_numpy(np.interp(x.numpy(), [0.0, 1.0], [0.0, 2.0])) * 2


def makes_a_list(x):
    return x * sum(x.tolist())


def chooses_elements(x):
    return x.nonzero()


@pytest.mark.parametrize(
    ("fn", "source", "reason", "remedy"),
    [
        (branches, "if x.sum() > 0:", "choose a branch", "torch.where"),
        (reads_a_number, "return x * x.sum().item()", "a number is read", "keep it a tensor"),
        (prints, 'print("so far")', "side effect", "outside"),
        (goes_through_numpy, "return torch.from_numpy(np.interp(", "NumPy", "torch"),
        (makes_a_list, "return x * sum(x.tolist())", "a list is read", "loop over sizes"),
        (chooses_elements, "return x.nonzero()", "depends on the values", "mask"),
    ],
)
def test_a_break_has_its_line_a_reason_and_a_remedy(fn, source, reason, remedy, capsys):
    (found,) = tracing.breaks(watched(fn, (torch.rand(4),)))
    first = fn.__code__.co_firstlineno
    assert re.fullmatch(r"test_tracing\.py:(\d+)", found.line)
    assert first < int(found.line.split(":")[1]) < first + 4
    assert found.source.startswith(source)
    assert reason in found.reason and remedy in found.remedy


def test_a_break_that_is_not_known_keeps_the_words_of_torch():
    def disabled_backward(x):
        hook = x.register_hook
        return x * hash(hook)

    (found,) = tracing.breaks(watched(disabled_backward, (torch.rand(3, requires_grad=True),)))[:1]
    assert len(found.reason) > 20 and found.remedy
    assert not any(found.reason == reason for _, reason, _ in KNOWN)


def test_one_graph_has_no_breaks():
    seen = watched(lambda x: x.sin() * 2, (torch.rand(4),))
    assert len(tracing.breaks(seen)) == 0 and len(tracing.graphs(seen)) == 1


def test_a_break_that_is_met_twice_is_listed_once():
    seen = watched(branches, (torch.rand(4),), (torch.rand(5),))
    assert len(tracing.breaks(seen)) == 1
    assert [c.piece for c in seen.compilations][:2] == ["branches", f"branches, from line {line_of(branches, 1)} on"]


def test_the_record_is_whole_where_logging_is_disabled():
    logging.disable(logging.CRITICAL)
    try:
        seen = watched(branches, (torch.rand(4),))
    finally:
        logging.disable(logging.NOTSET)
    assert len(tracing.breaks(seen)) == 1 and len(seen.compilations) == 2


def line_of(fn, below):
    return fn.__code__.co_firstlineno + below


# ---------------------------------------------------------------------------------------- guards, recompiles


def scaled(x, times):
    return x * FACTOR * times


def test_guards_say_in_words_when_the_code_is_used_again():
    found = {row.what: row.must for row in tracing.guards(watched(scaled, (torch.rand(3, 4), 3)))}
    assert found["x"] == "be a float32 tensor on cpu of size (3, 4), strides (4, 1), that needs no gradient"
    assert found["times"] == "equal 3"
    assert found["global FACTOR"] == "equal 2.0"


def test_guards_on_flags_are_in_words_and_modules_are_left_out():
    found = {row.what: row.must for row in tracing.guards(watched(chooses, (torch.rand(3), True, None)))}
    assert found["flag"] == "be True" and found["other"] == "be None"
    assert not any(what.startswith("global torch") for what in found)


def test_guards_on_a_module_are_on_its_tensors_flags_and_numbers():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    found = {row.what: row.must for row in tracing.guards(watched(module, (torch.rand(2, 3),)))}
    assert found["fn.1.p"] == "equal 0.5" and found["fn.1.training"] == "be True"
    assert found["fn.0.bias"].startswith("be a float32 tensor")
    assert not any("Manager" in what or "source=" in what for what in found)


def chooses(x, flag, other):
    return torch.sin(x) if flag and other is None else x


def test_without_gradients_the_mode_is_the_guard_that_failed():
    compiled = torch.compile(lambda x: x * 2, backend="eager")
    with tracing.watch() as seen:
        compiled(torch.rand(3))
        with torch.no_grad():
            compiled(torch.rand(3))
    assert [row.failed for row in tracing.recompiles(seen)] == ["grad mode of the program changed"]


def test_guards_of_the_second_compilation_leave_the_size_open():
    seen = watched(scaled, (torch.rand(3, 4), 3), (torch.rand(5, 4), 3))
    assert [c.id for c in seen.compilations] == ["0/0", "0/1"]
    first, second = ({r.what: r.must for r in tracing.guards(seen, id)} for id in ("0/0", "0/1"))
    assert "(3, 4)" in first["x"] and "(any, 4)" in second["x"]
    assert "x.size(0)" in second["sizes"] and "2 <=" in second["sizes"]


def test_all_guards_are_there_when_asked_for():
    seen = watched(scaled, (torch.rand(3, 4), 3))
    few, all_of_them = tracing.guards(seen), tracing.guards(seen, everything=True)
    assert len(all_of_them) > len(few)
    assert f"{len(all_of_them) - len(few)} more" in few.note


def test_what_was_compiled_again_names_the_guard_that_failed():
    calls = [torch.rand(3, 4), torch.rand(5, 4), torch.rand(5, 4, requires_grad=True), torch.rand(5, 4).double()]
    rows = tracing.recompiles(watched(scaled, *[(x, 3) for x in calls], (torch.rand(5, 4), 4)))
    failed = {row.compilation: [r.failed for r in rows if r.compilation == row.compilation] for row in rows}
    assert failed["0/1"] == ["x.size(0) was 3, is 5"]
    assert "x needed no gradient, needs one" in failed["0/2"]
    assert any("x was" in text for text in failed["0/3"])
    assert "times == 3" in failed["0/4"]


def test_a_failed_guard_that_is_not_known_stays_as_it_is():
    assert in_words("tensor 'x' stride mismatch at index 0. expected 4, actual 1") == "x.stride(0) was 4, is 1"
    assert in_words("tensor 'x' requires_grad mismatch. expected requires_grad=1") == "x needed a gradient, needs none"
    assert in_words("L['k'] == 3  # y = x * k") == "k == 3"
    assert in_words("GLOBAL_STATE changed: grad_mode") == "grad mode of the program changed"
    assert in_words("something new about L['k']") == "something new about k"


def test_of_a_failed_guard_with_a_stack_only_the_guard_is_listed():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    compiled = torch.compile(module, backend="eager")
    with tracing.watch() as seen:
        compiled(torch.ones(2, 4))
        module.eval()
        compiled(torch.ones(2, 4))
    (row,) = tracing.recompiles(seen)
    assert row.failed.endswith(".training == True") and row.earlier == "0/0"


def test_what_is_not_compiled_again_is_not_listed():
    seen = watched(scaled, (torch.rand(3, 4), 3), (torch.rand(3, 4), 3))
    assert len(seen.compilations) == 1 and len(tracing.recompiles(seen)) == 0


# ------------------------------------------------------------------------------------------ graphs, bytecode


def test_a_graph_is_read_back_with_types_and_lines():
    text = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[3, 4][4, 1]cpu", s77: "Sym(s77)"):
        l_x_ = L_x_

        # File: /a/model.py:8 in f, code: y = x * 2
        y: "bf16[s77, 4][4, 1]cuda:0" = torch.ops.aten.mul.Tensor(l_x_, 2);  l_x_ = None

        # No stacktrace found for following nodes
        gt: "b8[][]cpu" = y.sum() > 0;  y = None
        return (gt, y, None)
"""
    graph = read_graph(text)
    assert [(s.name, str(s.kind)) for s in graph.inputs] == [("L_x_", "f32[3, 4][4, 1]cpu"), ("s77", "Sym(s77)")]
    assert graph.inputs[0].kind.bytes == 48 and graph.inputs[1].kind.bytes is None
    y, gt = graph.find("y"), graph.find("gt")
    assert (y.operator, y.file, y.line, y.source) == ("aten.mul", "/a/model.py", 8, "y = x * 2")
    assert y.kind.dtype is torch.bfloat16 and y.kind.sizes == ("s77", 4) and y.kind.bytes is None
    assert gt.kind.bytes == 1 and gt.line == 0
    assert graph.outputs == ("gt", "y")


def test_a_joint_graph_is_read_back_without_the_lists_that_hold_its_inputs():
    text = """class inner_f(torch.nn.Module):
    def forward(
        self,
        primals,
        tangents,
    ):
        primals_1: "f32[3][1]cpu"  # PlainAOTInput(idx=0)
        tangents_1: "f32[3][1]cpu"  # TangentAOTInput(output=PlainAOTOutput(idx=0))
        primals_1, tangents_1, = fx_pytree.tree_flatten_spec([primals, tangents], self._in_spec)
        mul: "f32[3][1]cpu" = torch.ops.aten.mul.Tensor(primals_1, 2);  primals_1 = None
        return pytree.tree_unflatten([
            mul,  # PlainAOTOutput(idx=0)
        ], self._out_spec)
"""
    graph = read_graph(text)
    assert [step.name for step in graph.inputs] == ["primals_1", "tangents_1"]
    assert [step.name for step in graph.steps] == ["mul"] and graph.outputs == ("mul",)


def with_flag(x, flag):
    y = x * 2
    if flag:
        y = y.relu()
    return y


def test_bytecode_stands_beside_the_graph_line_by_line():
    rows = tracing.bytecode(with_flag, watched(with_flag, (torch.rand(3), True)))
    at = {row.source: row for row in rows}
    assert "BINARY_OP *" in at["y = x * 2"].bytecode and "l_x_ * 2" in at["y = x * 2"].graph
    assert "JUMP" in at["if flag:"].bytecode and at["if flag:"].graph == ""
    assert ".relu()" in at["y = y.relu()"].graph
    assert [row.line for row in rows] == [line_of(with_flag, n) for n in (1, 2, 3, 4)]


# --------------------------------------------------------------------------------- joint graph, code, phases


def layer(x, w):
    z = x * 2 + w[0]
    p = torch.softmax(z, -1)
    return (p @ w).relu()


@pytest.fixture(scope="module")
def whole():
    """A small layer, compiled by Inductor, forward and backward."""
    torch._dynamo.reset()
    x, w = torch.randn(24, 16, requires_grad=True), torch.randn(16, 16)
    compiled = torch.compile(layer)
    # an earlier run's code would be read from disk
    with torch.compiler.config.patch(force_disable_caches=True), tracing.watch() as seen:
        compiled(x, w).sum().backward()
    return seen


def test_the_joint_graph_says_where_every_value_is_computed(whole):
    rows = tracing.joint(whole)
    where = {}
    for row in rows:
        where.setdefault(row.runs, []).append(row)
    assert any("aten.mm" in row.computes for row in where["forward"])
    assert any("aten.mm" in row.computes for row in where["backward"])
    products = [row for row in rows if "aten.mm" in row.computes]
    assert [row.bytes for row in products] == [24 * 16 * 4] * 2


def test_what_is_saved_is_counted_in_bytes_and_views_of_inputs_are_free(whole):
    rows = tracing.saved(whole)
    assert all(row.bytes is not None for row in rows)
    # of the layer: the probabilities in fp32 and the mask of relu, one byte an element
    new = {row.bytes for row in rows if "input" not in row.what}
    assert new == {24 * 16 * 4, 24 * 16}
    assert f"{bytes_text(24 * 16 * 5)} of new memory" in rows.note
    views = [row for row in rows if row.what == "view of input"]
    assert [row.bytes for row in views] == [16 * 16 * 4], "the weight, transposed for the gradient of the product"
    assert all(row.where.startswith("test_tracing.py:") for row in rows if "input" not in row.what)


def test_without_gradients_there_is_no_joint_graph():
    seen = watched(lambda x: x.sin(), (torch.rand(3),), backend="aot_eager")
    with pytest.raises((ValueError, RuntimeError), match="joint"):
        tracing.joint(seen)


def test_kernels_stand_in_the_order_of_their_launches_beside_their_python(whole):
    rows = tracing.kernels(whole)
    forward = [row for row in rows if row.runs == "forward"]
    assert any(row.runs == "backward" for row in rows)
    at = next(i for i, row in enumerate(forward) if row.language == "library")
    before, after = forward[at - 1], forward[at + 1]
    assert "z = x * 2 + w[0]" in before.python and "p = torch.softmax(z, -1)" in before.python
    assert "return (p @ w).relu()" in after.python and "softmax" not in after.python
    assert all(row.code for row in rows if row.language in ("C++", "Triton"))
    assert "exp" in before.code and "exp" not in after.code


def test_a_backward_pass_lists_its_own_kernels_and_not_those_of_earlier_ones():
    def f(x, w):
        return torch.tanh(x @ w)

    listed = []
    for rows in (5, 6):  # other sizes, so that nothing comes from the disk
        torch._dynamo.reset()
        x, w = torch.randn(rows, 4, requires_grad=True), torch.randn(4, 3, requires_grad=True)
        compiled = torch.compile(f, dynamic=False)
        with tracing.watch() as seen:
            compiled(x, w).sum().backward()
        listed.append([(row.name, row.runs) for row in tracing.kernels(seen)])
    assert listed[0] == listed[1] and sum(runs == "backward" for _, runs in listed[0]) == 3


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_are_triton_beside_their_python():
    x, w = torch.randn(24, 16, device="cuda", requires_grad=True), torch.randn(16, 16, device="cuda")
    with torch.compiler.config.patch(force_disable_caches=True), tracing.watch() as seen:
        torch.compile(layer)(x, w).sum().backward()
    written = [row for row in tracing.kernels(seen) if row.language == "Triton"]
    assert {row.runs for row in written} == {"forward", "backward"}
    assert all("@triton.jit" in row.code and "tl.store(" in row.code for row in written)
    assert any("p = torch.softmax(z, -1)" in row.python for row in written)


CPP = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{
    std::atomic<int> inductor_cpu_integer_div_error{0};
    #pragma GCC ivdep
    for(int64_t x0=static_cast<int64_t>(0L); x0<static_cast<int64_t>(33L); x0+=static_cast<int64_t>(1L))
    {
        auto tmp0 = in_ptr0[static_cast<int64_t>(x0 + 40L*x1)];
        auto tmp1 = static_cast<float>(2.0);
        out_ptr0[static_cast<int64_t>(x0)] = tmp0 * tmp1;
    }
}
"""


def test_of_a_cpp_kernel_nothing_that_computes_is_cut():
    text = cut_cpp(CPP)
    assert "for(int64_t x0=0; x0<33; x0+=1)" in text
    assert "auto tmp0 = in_ptr0[x0 + 40*x1];" in text
    assert "auto tmp1 = 2.0f;" in text and "out_ptr0[x0] = tmp0 * tmp1;" in text
    assert not any(word in text for word in ("#include", "static_cast", "pragma", "div_error"))


def test_of_a_triton_kernel_the_header_is_cut():
    text = cut_triton(
        "import triton\n@triton_heuristics.pointwise(size_hints={'x': 64})\n@triton.jit\ndef k(x):\n    pass\n"
    )
    assert text == "@triton.jit\ndef k(x):\n    pass"


def test_parts_of_the_time_add_up_to_the_compilations(whole):
    rows = tracing.phases(whole)
    part = {row.part: row.seconds for row in rows}
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    assert sum(part.values()) >= sum(c.seconds for c in whole.compilations) * 0.98
    assert {DYNAMO, GUARDS, AOT, INDUCTOR} <= set(part)
    assert all(seconds > 0 for seconds in part.values())


def span(name, start, end):
    return [({"ph": kind, "name": name, "ts": ts}, "") for kind, ts in (("B", start), ("E", end))]


def test_time_belongs_to_the_innermost_part():
    begin, end = span("dynamo", 0, 100)
    entries = [begin, *span("bytecode_tracing", 5, 20), *span("backend_compile", 30, 90), end]
    inner = span("inductor_compile", 40, 80)
    entries[4:4] = inner  # inside backend_compile
    found = split(entries)
    assert found == pytest.approx({DYNAMO: 40e-6, AOT: 20e-6, INDUCTOR: 40e-6})


def test_overlapping_compilers_of_several_threads_are_counted_once():
    entries = [*span("inductor_compile", 0, 100)]
    entries[1:1] = [*span("async_compile.wait", 10, 90)]
    entries[2:2] = sorted([*span("compile_file", 20, 60), *span("compile_file", 40, 80)], key=lambda e: e[0]["ts"])
    assert split(entries) == pytest.approx({INDUCTOR: 20e-6, COMPILER: 80e-6})


# ------------------------------------------------------------------------------- listening, and what is shown


def handlers():
    import logging

    return [h for h in logging.getLogger(events.LOGGER).handlers if isinstance(h, events._Listener)]


def test_nothing_listens_after_the_block_not_even_after_an_error():
    def fails():
        with tracing.watch():
            assert len(handlers()) == 1
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not handlers()


def test_two_watchers_do_not_disturb_each_other():
    with tracing.watch() as outer, tracing.watch() as inner:
        torch.compile(lambda x: x + 1, backend="eager")(torch.rand(3))
    assert len(outer.compilations) == len(inner.compilations) == 1


def test_a_torch_without_the_record_is_named(monkeypatch):
    monkeypatch.setattr(torch._logging._internal, "trace_log", None)
    with pytest.raises(RuntimeError, match=re.escape(torch.__version__)), tracing.watch():
        pass


def test_a_record_without_an_entry_that_a_view_needs_is_named():
    seen = watched(scaled, (torch.rand(3, 4), 3))
    without = tracing.Watched([e for e in seen.events if e.kind != events.GUARDS])
    with pytest.raises(RuntimeError, match=f"{events.GUARDS}.*proven with torch"):
        tracing.guards(without)
    with pytest.raises(RuntimeError, match="no end of a compilation"):
        tracing.guards(tracing.Watched([Event("str", None, 0)]))


def test_what_an_attempt_that_was_given_up_wrote_is_not_shown():
    end = {"co_name": "f", "co_filename": "f.py", "co_firstlineno": 1}
    texts = [
        "class G:\n    def forward(self, a):\n        return (a,)",
        "class G:\n    def forward(self, b):\n        return (b,)",
    ]
    found = [Event(events.GRAPH, "0/0", n, {}, text) for n, text in enumerate(texts)]
    seen = tracing.Watched([*found, Event(events.METRICS, "0/0", 1, end)])
    assert [graph.outputs for graph in tracing.graphs(seen)] == [("b",)]


def test_a_view_is_text_and_html_and_both_are_escaped_or_aligned():
    from collections import namedtuple

    row = namedtuple("row", "name code")
    view = View(
        "a <title>", ("name", "code"), (row("x", "if a < b:\n    pass"), row("longer", "")), ("code",), "so & so"
    )
    assert str(view).split("\n") == [
        "a <title>",
        "name    code",
        "x       if a < b:",
        "            pass",
        "longer",
        "so & so",
    ]
    page = view._repr_html_()
    assert "a &lt;title&gt;" in page and "if a &lt; b:" in page and "so &amp; so" in page and "<title>" not in page
    assert len(view) == 2 and view[0].name == "x"


def test_every_name_that_the_package_promises_is_there():
    assert tracing.__all__ == sorted(tracing.__all__)
    assert all(hasattr(tracing, name) for name in tracing.__all__)


def test_bytes_are_said_in_a_unit_that_fits():
    assert [bytes_text(n) for n in (0, 1023, 1536, 2**20, 3 * 2**30, None)] == [
        "0 B", "1023 B", "1.5 KiB", "1.0 MiB", "3.0 GiB", "depends on a size",
    ]  # fmt: skip


def test_torch_writes_every_entry_that_the_views_read():
    """The names are torch's: this fails first when a new version changes one."""
    x = torch.rand(3, requires_grad=True)
    with tracing.watch() as seen:
        torch.compile(branches, backend="aot_eager")(x).sum().backward()
        torch.compile(branches, backend="aot_eager")(torch.rand(5))
    kinds = {event.kind for event in seen.events}
    wanted = {events.METRICS, events.GRAPH, events.BREAK, events.GUARDS, events.RECOMPILED, events.JOINT}
    assert wanted | {events.FORWARD, events.BACKWARD, events.SPAN} <= kinds
    assert all(json.dumps(dict(e.data), default=str) for e in seen.events)
