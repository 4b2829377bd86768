"""What lessons 02 and 03 say about torch where common accounts say otherwise. When a new torch changes one: look."""

import pytest
import torch

from course_lib import tracing

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def forgotten():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def branches(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def test_a_branch_on_a_tensors_value_is_a_break_and_not_a_guard():
    compiled = torch.compile(branches, backend="eager")
    up, down = torch.ones(3), -torch.ones(3)
    with tracing.watch() as seen:
        for x in (up, down, up, down):
            assert torch.equal(compiled(x), branches(x))
    (found,) = tracing.breaks(seen)
    assert found.source == "if x.sum() > 0:"
    # the graph up to the branch, and one for each side, each made once: another value compiles nothing again
    assert len(seen.compilations) == 3 and len(tracing.recompiles(seen)) == 0
    assert not any("sum" in row.text for row in tracing.guards(seen, "0/0", everything=True))


def test_a_branch_on_a_size_is_a_guard_and_not_a_break():
    def by_size(x):
        return x + 1 if x.shape[0] > 4 else x - 1

    compiled = torch.compile(by_size, backend="eager", dynamic=True)
    with tracing.watch() as seen:
        for rows in (5, 6, 3, 4):
            compiled(torch.ones(rows, 2))
    assert len(tracing.breaks(seen)) == 0
    assert [one.id for one in seen.compilations] == ["0/0", "0/1"]
    assert any("x.size(0)" in row.failed for row in tracing.recompiles(seen))


def keys(tensor) -> str:
    return str(torch._C._dispatch_keys(tensor))


def test_requires_grad_does_not_change_the_key_set_and_inference_mode_does():
    plain, needs = torch.ones(2), torch.ones(2, requires_grad=True)
    assert keys(plain) == keys(needs) and "AutogradCPU" in keys(plain)
    with torch.no_grad():
        assert keys(torch.ones(2)) == keys(plain)
    with torch.inference_mode():
        inside = torch.ones(2)
    assert "AutogradCPU" not in keys(inside) and "ADInplaceOrView" not in keys(inside)


def test_no_grad_leaves_the_excluded_keys_alone_and_inference_mode_excludes_autograd():
    outside = str(torch._C._dispatch_tls_local_exclude_set())
    with torch.no_grad():
        assert str(torch._C._dispatch_tls_local_exclude_set()) == outside
    with torch.inference_mode():
        inside = str(torch._C._dispatch_tls_local_exclude_set())
    assert "AutogradOther" in inside and "AutogradOther" not in outside


@pytest.mark.parametrize(
    ("module", "again"),
    [
        (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), 0),
        (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5)), 1),
        (torch.nn.BatchNorm1d(4), 1),
    ],
    ids=["no layer that asks", "dropout", "batch norm"],
)
def test_calls_without_eval_compile_once_and_eval_costs_one_more_where_a_layer_asks_for_it(module, again):
    compiled, x = torch.compile(module.train(), backend="eager"), torch.ones(3, 4)
    with tracing.watch() as seen:
        for _ in range(5):
            compiled(x)
        assert len(seen.compilations) == 1
        for step in (module.eval, module.train, module.eval):
            step()
            compiled(x)
    assert len(seen.compilations) == 1 + again
    assert all(row.failed.endswith("training == True") for row in tracing.recompiles(seen))
