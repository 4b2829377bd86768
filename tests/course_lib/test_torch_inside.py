"""Each view shows what torch really did, on graphs that are small enough to know by heart."""

import json
import logging
import re

import numpy as np
import pytest
import torch

from course_lib import torch_inside
from course_lib.torch_inside import events
from course_lib.torch_inside.breaks import KNOWN
from course_lib.torch_inside.events import Event
from course_lib.torch_inside.recompiles import in_words
from course_lib.torch_inside.saved import size_text

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
FACTOR = 2.0


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def watched(fn, *calls, backend="eager", **options):
    compiled = torch.compile(fn, backend=backend, **options)
    with torch_inside.watch() as seen:
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
    (found,) = torch_inside.breaks(watched(fn, (torch.rand(4),)))
    first = fn.__code__.co_firstlineno
    assert re.fullmatch(r"test_torch_inside\.py:(\d+)", found.line)
    assert first < int(found.line.split(":")[1]) < first + 4
    assert found.source.startswith(source)
    assert reason in found.reason and remedy in found.remedy


def test_a_break_that_is_not_known_keeps_the_words_of_torch():
    def disabled_backward(x):
        hook = x.register_hook
        return x * hash(hook)

    (found,) = torch_inside.breaks(watched(disabled_backward, (torch.rand(3, requires_grad=True),)))[:1]
    assert len(found.reason) > 20 and found.remedy
    assert not any(found.reason == reason for _, reason, _ in KNOWN)


def test_one_graph_has_no_breaks():
    seen = watched(lambda x: x.sin() * 2, (torch.rand(4),))
    assert len(torch_inside.breaks(seen)) == 0 and len(torch_inside.graphs(seen)) == 1


def test_a_break_that_is_met_twice_is_listed_once():
    seen = watched(branches, (torch.rand(4),), (torch.rand(5),))
    assert len(torch_inside.breaks(seen)) == 1
    assert [c.piece for c in seen.compilations][:2] == ["branches", f"branches, from line {line_of(branches, 1)} on"]


def test_the_record_is_whole_where_logging_is_disabled():
    logging.disable(logging.CRITICAL)
    try:
        seen = watched(branches, (torch.rand(4),))
    finally:
        logging.disable(logging.NOTSET)
    assert len(torch_inside.breaks(seen)) == 1 and len(seen.compilations) == 2


def line_of(fn, below):
    return fn.__code__.co_firstlineno + below


# ---------------------------------------------------------------------------------------- guards, recompiles


def scaled(x, times):
    return x * FACTOR * times


def test_guards_say_in_words_when_the_code_is_used_again():
    found = {row.what: row.must for row in torch_inside.guards(watched(scaled, (torch.rand(3, 4), 3)))}
    assert found["x"] == "be a float32 tensor on cpu of size (3, 4), strides (4, 1), that needs no gradient"
    assert found["times"] == "equal 3"
    assert found["global FACTOR"] == "equal 2.0"


def test_guards_on_flags_are_in_words_and_modules_are_left_out():
    found = {row.what: row.must for row in torch_inside.guards(watched(chooses, (torch.rand(3), True, None)))}
    assert found["flag"] == "be True" and found["other"] == "be None"
    assert not any(what.startswith("global torch") for what in found)


def test_guards_on_a_module_are_on_its_tensors_flags_and_numbers():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
    found = {row.what: row.must for row in torch_inside.guards(watched(module, (torch.rand(2, 3),)))}
    assert found["fn.1.p"] == "equal 0.5" and found["fn.1.training"] == "be True"
    assert found["fn.0.bias"].startswith("be a float32 tensor")
    assert not any("Manager" in what or "source=" in what for what in found)


def chooses(x, flag, other):
    return torch.sin(x) if flag and other is None else x


def test_without_gradients_the_mode_is_the_guard_that_failed():
    compiled = torch.compile(lambda x: x * 2, backend="eager")
    with torch_inside.watch() as seen:
        compiled(torch.rand(3))
        with torch.no_grad():
            compiled(torch.rand(3))
    assert [row.failed for row in torch_inside.recompiles(seen)] == ["grad mode of the program changed"]


def test_guards_of_the_second_compilation_leave_the_size_open():
    seen = watched(scaled, (torch.rand(3, 4), 3), (torch.rand(5, 4), 3))
    assert [c.id for c in seen.compilations] == ["0/0", "0/1"]
    first, second = ({r.what: r.must for r in torch_inside.guards(seen, id)} for id in ("0/0", "0/1"))
    assert "(3, 4)" in first["x"] and "(any, 4)" in second["x"]
    assert "x.size(0)" in second["sizes"] and "2 <=" in second["sizes"]


def test_all_guards_are_there_when_asked_for():
    seen = watched(scaled, (torch.rand(3, 4), 3))
    few, all_of_them = torch_inside.guards(seen), torch_inside.guards(seen, everything=True)
    assert len(all_of_them) > len(few)
    assert f"{len(all_of_them) - len(few)} more" in few.note


def test_what_was_compiled_again_names_the_guard_that_failed():
    calls = [torch.rand(3, 4), torch.rand(5, 4), torch.rand(5, 4, requires_grad=True), torch.rand(5, 4).double()]
    rows = torch_inside.recompiles(watched(scaled, *[(x, 3) for x in calls], (torch.rand(5, 4), 4)))
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
    with torch_inside.watch() as seen:
        compiled(torch.ones(2, 4))
        module.eval()
        compiled(torch.ones(2, 4))
    (row,) = torch_inside.recompiles(seen)
    assert row.failed.endswith(".training == True") and row.earlier == "0/0"


def test_what_is_not_compiled_again_is_not_listed():
    seen = watched(scaled, (torch.rand(3, 4), 3), (torch.rand(3, 4), 3))
    assert len(seen.compilations) == 1 and len(torch_inside.recompiles(seen)) == 0


# -------------------------------------------------------------------------------------------------- bytecode


def with_flag(x, flag):
    y = x * 2
    if flag:
        y = y.relu()
    return y


def test_bytecode_stands_beside_the_graph_line_by_line():
    rows = torch_inside.bytecode(with_flag, watched(with_flag, (torch.rand(3), True)))
    at = {row.source: row for row in rows}
    assert "BINARY_OP *" in at["y = x * 2"].bytecode and "l_x_ * 2" in at["y = x * 2"].graph
    assert "JUMP" in at["if flag:"].bytecode and at["if flag:"].graph == ""
    assert ".relu()" in at["y = y.relu()"].graph
    assert [row.line for row in rows] == [line_of(with_flag, n) for n in (1, 2, 3, 4)]


# ------------------------------------------------------------------------------- listening, and what is shown


def handlers():
    import logging

    return [h for h in logging.getLogger(events.LOGGER).handlers if isinstance(h, events._Listener)]


def test_nothing_listens_after_the_block_not_even_after_an_error():
    def fails():
        with torch_inside.watch():
            assert len(handlers()) == 1
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not handlers()


def test_two_watchers_do_not_disturb_each_other():
    with torch_inside.watch() as outer, torch_inside.watch() as inner:
        torch.compile(lambda x: x + 1, backend="eager")(torch.rand(3))
    assert len(outer.compilations) == len(inner.compilations) == 1


def test_a_torch_without_the_record_is_named(monkeypatch):
    monkeypatch.setattr(torch._logging._internal, "trace_log", None)
    with pytest.raises(RuntimeError, match=re.escape(torch.__version__)), torch_inside.watch():
        pass


def test_a_record_without_an_entry_that_a_view_needs_is_named():
    seen = watched(scaled, (torch.rand(3, 4), 3))
    without = torch_inside.Watched([e for e in seen.events if e.kind != events.GUARDS])
    with pytest.raises(RuntimeError, match=f"{events.GUARDS}.*proven with torch"):
        torch_inside.guards(without)
    with pytest.raises(RuntimeError, match="no end of a compilation"):
        torch_inside.guards(torch_inside.Watched([Event("str", None, 0)]))


def test_what_an_attempt_that_was_given_up_wrote_is_not_shown():
    end = {"co_name": "f", "co_filename": "f.py", "co_firstlineno": 1}
    texts = [
        "class G:\n    def forward(self, a):\n        return (a,)",
        "class G:\n    def forward(self, b):\n        return (b,)",
    ]
    found = [Event(events.GRAPH, "0/0", n, {}, text) for n, text in enumerate(texts)]
    seen = torch_inside.Watched([*found, Event(events.METRICS, "0/0", 1, end)])
    assert [graph.outputs for graph in torch_inside.graphs(seen)] == [("b",)]


def test_every_name_that_the_package_promises_is_there():
    assert torch_inside.__all__ == sorted(torch_inside.__all__)
    assert all(hasattr(torch_inside, name) for name in torch_inside.__all__)


def test_the_bytes_of_a_tensor_with_a_symbolic_size_are_not_known():
    assert [size_text(n) for n in (1536, None)] == ["1.5 KiB", "depends on a size"]


def test_torch_writes_every_entry_that_the_views_read():
    """The names are torch's: this fails first when a new version changes one."""
    x = torch.rand(3, requires_grad=True)
    with torch_inside.watch() as seen:
        torch.compile(branches, backend="aot_eager")(x).sum().backward()
        torch.compile(branches, backend="aot_eager")(torch.rand(5))
    kinds = {event.kind for event in seen.events}
    wanted = {events.METRICS, events.GRAPH, events.BREAK, events.GUARDS, events.RECOMPILED, events.JOINT}
    assert wanted | {events.FORWARD, events.BACKWARD, events.SPAN} <= kinds
    assert all(json.dumps(dict(e.data), default=str) for e in seen.events)
