"""Graphs as torch writes them, the joint graph, the generated code, and what the time of a compilation consists of."""

import pytest
import torch

from course_lib import torch_inside
from course_lib.table import bytes_text
from course_lib.torch_inside.graphs import read_graph
from course_lib.torch_inside.kernels import cut_cpp, cut_triton
from course_lib.torch_inside.phases import AOT, COMPILER, DYNAMO, GUARDS, INDUCTOR, split

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
    pytest.mark.xdist_group("graphs"),  # one worker imports torch's compiler
]


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


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
    with torch.compiler.config.patch(force_disable_caches=True), torch_inside.watch() as seen:
        compiled(x, w).sum().backward()
    return seen


def test_the_joint_graph_says_where_every_value_is_computed(whole):
    rows = torch_inside.joint(whole)
    where = {}
    for row in rows:
        where.setdefault(row.runs, []).append(row)
    assert any("aten.mm" in row.computes for row in where["forward"])
    assert any("aten.mm" in row.computes for row in where["backward"])
    products = [row for row in rows if "aten.mm" in row.computes]
    assert [row.bytes for row in products] == [24 * 16 * 4] * 2


def test_what_is_saved_is_counted_in_bytes_and_views_of_inputs_are_free(whole):
    rows = torch_inside.saved(whole)
    assert all(row.bytes is not None for row in rows)
    # of the layer: the probabilities in fp32 and the mask of relu, one byte an element
    new = {row.bytes for row in rows if "input" not in row.what}
    assert new == {24 * 16 * 4, 24 * 16}
    assert f"{bytes_text(24 * 16 * 5)} of new memory" in rows.note
    views = [row for row in rows if row.what == "view of input"]
    assert [row.bytes for row in views] == [16 * 16 * 4], "the weight, transposed for the gradient of the product"
    assert all(row.where.startswith("test_torch_inside_graphs.py:") for row in rows if "input" not in row.what)


def test_without_gradients_there_is_no_joint_graph():
    with torch_inside.watch() as seen:
        torch.compile(torch.sin, backend="aot_eager")(torch.rand(3))
    with pytest.raises((ValueError, RuntimeError), match="joint"):
        torch_inside.joint(seen)


def test_kernels_stand_in_the_order_of_their_launches_beside_their_python(whole):
    rows = torch_inside.kernels(whole)
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
        with torch_inside.watch() as seen:
            compiled(x, w).sum().backward()
        listed.append([(row.name, row.runs) for row in torch_inside.kernels(seen)])
    assert listed[0] == listed[1] and sum(runs == "backward" for _, runs in listed[0]) == 3


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_are_triton_beside_their_python():
    x, w = torch.randn(24, 16, device="cuda", requires_grad=True), torch.randn(16, 16, device="cuda")
    with torch.compiler.config.patch(force_disable_caches=True), torch_inside.watch() as seen:
        torch.compile(layer)(x, w).sum().backward()
    written = [row for row in torch_inside.kernels(seen) if row.language == "Triton"]
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
    rows = torch_inside.phases(whole)
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
