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


# ---------------------------------------------------------------------------- operators and what they promise


def test_a_fake_with_other_strides_is_found_when_the_compiled_program_runs():
    @torch.library.custom_op("torch_claims::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).contiguous()

    twice.register_fake(lambda x: torch.empty_like(x))
    compiled = torch.compile(lambda x: twice(x) + 1)
    assert torch.equal(compiled(torch.ones(3, 4)), torch.full((3, 4), 3.0))
    with pytest.raises(AssertionError, match="stride"):
        compiled(torch.ones(4, 3).t())


def test_a_write_that_the_schema_hides_is_lost_without_a_message_and_opcheck_finds_it():
    @torch.library.custom_op("torch_claims::norms", mutates_args=())
    def norms(x: torch.Tensor) -> torch.Tensor:
        size = x.norm(dim=-1, keepdim=True)
        x /= size
        return size

    norms.register_fake(lambda x: x.new_empty(x.shape[0], 1))

    def unit(x):
        y = x + 1
        norms(y)
        return y

    zeros = torch.zeros(2, 4)
    assert torch.equal(unit(zeros), torch.full((2, 4), 0.5))
    assert torch.equal(torch.compile(unit)(zeros), torch.ones(2, 4))
    with pytest.raises(Exception, match="not defined as mutable"):
        torch.library.opcheck(norms, (zeros + 1,))


def test_an_operator_that_returns_a_tuple_is_no_break():
    @torch.library.custom_op("torch_claims::both", mutates_args=())
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), x.cos()

    both.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
    with tracing.watch() as seen:
        out = torch.compile(lambda x: sum(both(x + 1)), backend="aot_eager")(torch.zeros(3))
    assert torch.allclose(out, torch.ones(3).sin() + torch.ones(3).cos())
    assert len(seen.compilations) == 1 and len(tracing.breaks(seen)) == 0


def test_a_break_inside_a_loop_over_layers_makes_as_many_graphs_for_two_layers_as_for_four():
    from course_lib.models.broken_tower import PATCH, Tower

    made = []
    for layers in (2, 4):
        torch._dynamo.reset()
        with tracing.watch() as seen, torch.no_grad():
            torch.compile(Tower(layers=layers).eval(), backend="eager")(
                torch.ones(3, 5, PATCH), torch.tensor([5, 2, 3])
            )
        made.append(len(tracing.graphs(seen)))
    assert made[0] == made[1] > 1
