"""What lessons 02 and 03 say about torch where common accounts say otherwise. When a new torch changes one: look."""

import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.exercises.dispatch.meter_truth import Meter
from course_lib import torch_inside
from course_lib.models.transformer import Sizes, Transformer
from course_lib.tally import tally
from course_lib.torch_inside import keysets

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
    with torch_inside.watch() as seen:
        for x in (up, down, up, down):
            assert torch.equal(compiled(x), branches(x))
    (found,) = torch_inside.breaks(seen)
    assert found.source == "if x.sum() > 0:"
    # the graph up to the branch, and one for each side, each made once: another value compiles nothing again
    assert len(seen.compilations) == 3 and len(torch_inside.recompiles(seen)) == 0
    assert not any("sum" in row.text for row in torch_inside.guards(seen, "0/0", everything=True))


def test_a_branch_on_a_size_is_a_guard_and_not_a_break():
    def by_size(x):
        return x + 1 if x.shape[0] > 4 else x - 1

    compiled = torch.compile(by_size, backend="eager", dynamic=True)
    with torch_inside.watch() as seen:
        for rows in (5, 6, 3, 4):
            compiled(torch.ones(rows, 2))
    assert len(torch_inside.breaks(seen)) == 0
    assert [one.id for one in seen.compilations] == ["0/0", "0/1"]
    assert any("x.size(0)" in row.failed for row in torch_inside.recompiles(seen))


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


def test_a_write_makes_a_tensor_require_a_gradient_and_changes_no_key():
    late, needs = torch.zeros(2), torch.ones(2, requires_grad=True)
    before = keys(late)
    late.add_(needs)
    assert late.requires_grad and keys(late) == before


def test_an_inference_tensor_cannot_be_saved_for_backward():
    with torch.inference_mode():
        inferred = torch.ones(2)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (torch.ones(2, requires_grad=True) * inferred).sum()


def test_every_thread_starts_with_the_same_keys_included_and_autocast_excluded():
    """Also one that is started in inference mode."""
    found = []

    def look():
        include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        found.append((keysets.in_order(include), keysets.in_order(exclude)))

    look()
    with torch.inference_mode(), torch.autocast("cpu"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found[0] == found[1]
    assert found[0][0] == ["ADInplaceOrView", "BackendSelect"]
    assert "AutocastCPU" in found[0][1] and not any("Autograd" in key for key in found[0][1])


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
    with torch_inside.watch() as seen:
        for _ in range(5):
            compiled(x)
        assert len(seen.compilations) == 1
        for step in (module.eval, module.train, module.eval):
            step()
            compiled(x)
    assert len(seen.compilations) == 1 + again
    assert all(row.failed.endswith("training == True") for row in torch_inside.recompiles(seen))


# ------------------------------------------------------------------------------- kernels at keys, modes, wrappers


class Names(TorchDispatchMode):
    """Notes which operators come by, before it calls them."""

    def __init__(self, log, name=""):
        super().__init__()
        self.log, self.name = log, name

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.log.append(self.name + func.name())
        return func(*args, **(kwargs or {}))


def test_a_kernel_gets_the_keys_without_those_that_pass_on():
    got = []
    with torch.library._scoped_library("torch_claims_keys", "DEF") as library:
        library.define("visit(Tensor x) -> Tensor")
        for key in ("CPU", "AutogradCPU"):
            library.impl(
                "visit", lambda keys, x: got.append(keysets.in_order(keys)) or x.clone(), key, with_keyset=True
            )
        torch.ops.torch_claims_keys.visit(torch.ones(1))
    assert got == [["AutogradCPU", "CPU"]]  # ADInplaceOrView and BackendSelect have nothing registered


def test_a_mode_sees_neither_linear_nor_dropout_and_the_whole_backward_pass():
    w, x = torch.ones(3, 4, requires_grad=True), torch.ones(2, 4)
    forward, backward = [], []
    with Names(forward):
        loss = F.dropout(F.linear(x, w).relu()).sum()
    with Names(backward):
        loss.backward()
    assert "aten::mm" in forward and "aten::relu" in forward
    assert not any(part in name for name in forward for part in ("linear", "aten::dropout"))
    assert {"aten::mm", "aten::threshold_backward"} <= set(backward)


def test_in_the_handler_of_a_mode_nothing_is_recorded_for_backward():
    seen = []

    class Looks(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            seen.append((func.name(), args[0].requires_grad, out.grad_fn))
            return out

    w = torch.ones(2, requires_grad=True)
    with Looks():
        outside = w.relu()
    assert seen[0] == ("aten::relu", True, None) and outside.grad_fn is not None


def test_modes_come_before_wrappers_the_innermost_first_and_see_nothing_of_what_wrappers_call():
    log = []

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, held):
            return torch.Tensor._make_wrapper_subclass(cls, held.shape)

        def __init__(self, held):
            self.held = held

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            log.append(f"wrapper {func.name()}")
            return args[0].held.neg().neg()

    one = Wrapper(torch.ones(2))
    with Names(log, "outer "), Names(log, "inner "):
        one.exp()
    assert log == ["inner aten::exp", "outer aten::exp", "wrapper aten::exp"]


def test_without_a_kernel_for_autograd_torch_warns_and_a_kernel_in_numpy_loses_its_gradient():
    """And what a kernel calls is a call of its own, with autograd in its set again."""
    gradients, warned = {}, {}
    kernels = {"in_torch": lambda x: x / 2, "in_numpy": lambda x: torch.from_numpy(x.detach().numpy() / 2)}
    with torch.library._scoped_library("torch_claims_half", "DEF") as library:
        for name, kernel in kernels.items():
            library.define(f"{name}(Tensor x) -> Tensor")
            library.impl(name, kernel, "CPU")
            x = torch.ones(1, requires_grad=True)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                (x + getattr(torch.ops.torch_claims_half, name)(x)).sum().backward()
            gradients[name] = x.grad.item()
            warned[name] = any("autograd kernel was not registered" in str(one.message) for one in said)
        with pytest.raises(NotImplementedError):
            torch.ops.torch_claims_half.in_torch(torch.ones(1, device="meta"))
    assert gradients == {"in_torch": 1.5, "in_numpy": 1.0}
    assert warned == {"in_torch": True, "in_numpy": True}


def test_a_model_on_meta_is_counted_as_on_a_cpu_call_by_call():
    counted = []
    for device in ("cpu", "meta"):
        model = Transformer(Sizes(vocabulary=16, context=8, width=16, heads=2, layers=1)).to(device)
        tokens = torch.zeros(2, 9, dtype=torch.long, device=device)
        counted.append(tally(Meter, lambda model=model, tokens=tokens: model.loss(tokens)))
    assert counted[0] == counted[1] and len(counted[0]) > 50


def test_a_custom_op_has_kernels_in_python_at_autograd_and_at_the_device():
    @torch.library.custom_op("torch_claims::plus", mutates_args=())
    def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    x = torch.ones(2)
    path = torch_inside.call_path(torch.ops.torch_claims.plus.default, x=x, y=x)
    found = [(row.key, row.file[-3:]) for row in path if row.state in ("runs", "lands")]
    assert found == [("AutogradCPU", ".py"), ("CPU", ".py")]


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
    with torch_inside.watch() as seen:
        out = torch.compile(lambda x: sum(both(x + 1)), backend="aot_eager")(torch.zeros(3))
    assert torch.allclose(out, torch.ones(3).sin() + torch.ones(3).cos())
    assert len(seen.compilations) == 1 and len(torch_inside.breaks(seen)) == 0


def test_a_break_inside_a_loop_over_layers_makes_as_many_graphs_for_two_layers_as_for_four():
    from course_lib.models.broken_tower import PATCH, Tower

    made = []
    for layers in (2, 4):
        torch._dynamo.reset()
        with torch_inside.watch() as seen, torch.no_grad():
            torch.compile(Tower(layers=layers).eval(), backend="eager")(
                torch.ones(3, 5, PATCH), torch.tensor([5, 2, 3])
            )
        made.append(len(torch_inside.graphs(seen)))
    assert made[0] == made[1] > 1
