"""The path of a call as it is told, against an operator that notes where it really comes by."""

import itertools

import pytest
import torch
from matplotlib.text import Text
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.exercise import Draw
from autograder.exercises.dispatch.keys import CASES
from course_lib import plots
from course_lib.torch_inside import call_path, keysets, registered, situations

aten = torch.ops.aten
after = torch._C._dispatch_keyset_full_after
NOTED = ["PythonTLSSnapshot", "AutocastCPU", "AutogradCPU", "AutogradMeta", "ADInplaceOrView", "Conjugate"]
if torch.__version__ < "2.12":  # its Python key fails unless torch's own kernel of this key has run
    NOTED.remove("PythonTLSSnapshot")
NOTED_LAST = ("CPU", "Meta", "SparseCPU")
number = itertools.count()


class Ends(TorchDispatchMode):
    """A mode whose handler notes the call and calls nothing."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.log.append("Python")
        return args[0][0]


class Sees(TorchDispatchMode):
    """A mode that notes which operators come, and the types of their tensors."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append((func, *(one.dtype for one in args if isinstance(one, torch.Tensor))))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def make_op():
    """make_op(keys) -> an operator with a kernel on each of them that notes its key, and the notes."""
    with torch.library._scoped_library(f"call_path{next(number)}", "DEF") as library:
        count = itertools.count()

        def make(keys):
            name, log = f"visit{next(count)}", []
            library.define(f"{name}(Tensor[] xs) -> Tensor")
            op = getattr(getattr(torch.ops, library.ns), name).default
            for key in keys:
                library.impl(name, noting(op, key, log), key, with_keyset=True)
            return op, log

        yield make


def noting(op, key, log):
    def kernel(keys, xs):
        log.append(key)
        below = keys & after(getattr(torch._C.DispatchKey, key))
        return torch.ones(1) if key in NOTED_LAST else op.redispatch(below, xs)

    return kernel


@pytest.mark.parametrize("seed", range(40))
def test_the_kernels_that_run_are_those_that_the_path_says_and_in_this_order(make_op, seed):
    """On the situations that exercise dispatch.keys draws, for an operator with kernels on some keys."""
    draw = Draw(seed, "cpu", "interpreter")
    told = draw.choice(CASES).draw(draw).args
    op, log = make_op([key for key in NOTED if draw.number(0, 1) < 0.7] + list(NOTED_LAST))
    tensors = {f"x{i}": keysets.tensor(one) for i, one in enumerate(told["tensors"])}
    path = keysets.within(told["around"], lambda: call_path(op, **tensors))
    noted = [row.key for row in path if row.state in ("runs", "lands") and row.registered == "kernel"]
    try:
        keysets.within(told["around"], lambda: op(list(tensors.values())))
    except NotImplementedError:  # no tensor and so no backend, or a wrapper that has nothing but keys
        assert land(path) not in NOTED_LAST
    assert log[: len(noted)] == noted
    if land(path) in NOTED_LAST:
        assert log == noted  # above these, what lands makes a new call


def test_what_goes_on_reaches_the_key_below_with_torchs_own_kernels(make_op):
    x, y = torch.ones(2, 2, requires_grad=True), torch.ones(2)
    version = y._version
    with torch.autocast("cpu", dtype=torch.bfloat16), Sees() as mode:
        states = {row.key: row.state for row in call_path(aten.mm.default, x=x, y=x)}
        assert aten.mm(x, x).grad_fn is not None
        assert {r.key: r.state for r in call_path(aten.add_.Tensor, x=y)}["ADInplaceOrView"] == "runs"
        y.add_(1)
    assert (states["AutocastCPU"], states["AutogradCPU"], states["Python"]) == ("runs", "runs", "lands")
    assert (aten.mm.default, torch.bfloat16, torch.bfloat16) in mode.seen  # below autocast and autograd
    assert y._version == version + 1 and mode.seen[-1][0] is aten.add_.Tensor  # below ADInplaceOrView
    op, log = make_op(["CPU"])
    conjugated = torch.ones(2, dtype=torch.complex64).conj()
    assert {r.key: r.state for r in call_path(op, x=conjugated)}["Conjugate"] == "runs"
    op([conjugated])
    assert log == ["CPU"]


def test_a_handler_that_calls_nothing_is_the_end(make_op):
    op, log = make_op([*NOTED, *NOTED_LAST])
    x = torch.ones(1)
    with Ends(log):
        assert land(call_path(op, x=x)) == "Python"
        op([x])
    assert log == [key for key in NOTED if key in ("PythonTLSSnapshot", "AutogradCPU", "ADInplaceOrView")] + ["Python"]


def test_functionalize_unwraps_and_calls_anew():
    path = call_path(aten.add.Tensor, x=torch._to_functional_tensor(torch.ones(2)))
    assert [row.key for row in path if row.state == "lands"] == ["Functionalize"]
    assert [row.key for row in path if row.state == "not reached"] == ["BackendSelect", "CPU"]


def test_a_composite_operator_ends_above_its_backend_and_is_never_seen_below():
    x = torch.ones(2, 2)
    path = call_path(aten.matmul.default, x=x, y=x)
    (last,) = [row for row in path if row.state == "lands"]
    assert (last.key, last.registered) == ("AutogradCPU", "math kernel")
    with Sees() as mode:
        torch.matmul(x, x)
    assert [func for func, *_ in mode.seen] == [aten.mm.default]


def test_a_factory_has_no_backend_until_backend_select_chooses_one():
    path = call_path(aten.empty.memory_format)
    assert [(row.key, row.state) for row in path] == [("ADInplaceOrView", "passes on"), ("BackendSelect", "lands")]


def test_a_key_without_a_kernel_is_told_as_missing_and_torch_raises():
    sparse = torch.ones(2).to_sparse()
    (gap,) = [row for row in call_path(aten.view.default, x=sparse) if row.state == "missing"]
    assert (gap.key, gap.registered) == ("SparseCPU", "nothing")
    with torch.inference_mode(), pytest.raises(NotImplementedError):
        aten.view(sparse, [2])


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.matmul.default, aten.view.default, aten.empty.memory_format])
def test_every_line_of_torchs_dispatch_table_is_understood(op):
    lines = torch._C._dispatch_dump_table(op.name()).splitlines()
    assert len(lines) == len(registered(op)) > 20
    assert all(row.file.endswith((".cpp", ".py")) and "/" not in row.file for row in registered(op).values())


def test_the_keys_are_those_of_the_moment_and_say_who_brought_them():
    x, y = torch.ones(2), torch.ones(2).to_sparse()
    path = call_path(aten.add.Tensor, x=x, y=y)
    assert [row.key for row in path if row.state != "excluded"] == keysets.in_order(keysets.key_set([x, y]))
    brought = {row.key: row.brought_by for row in path}
    assert (brought["SparseCPU"], brought["CPU"], brought["BackendSelect"]) == ("y", "x", "thread")
    assert brought["ADInplaceOrView"] == "x, y, thread"
    with torch.inference_mode():
        assert {r.key: r.state for r in call_path(aten.add.Tensor, x=x)}["AutogradCPU"] == "excluded"


# ------------------------------------------------------------------------------------------- situations, figures


@pytest.mark.parametrize("kind", situations.KINDS)
def test_every_situation_can_be_asked_for(kind):
    for device, needs in itertools.product(situations.devices(), (False, True)):
        for count in range(len(situations.AROUND) + 1):
            around = situations.AROUND[:count]
            path = situations.path_in("mm(x, y)", kind, device, needs, around)
            assert sum(row.state in ("lands", "missing") for row in path) == 1, (kind, device, needs, around)


def test_a_situation_names_what_was_asked():
    plain = situations.path_in("x + y", "an ordinary tensor", "cpu", False, ())
    needs = situations.path_in("x + y", "an ordinary tensor", "cpu", True, ())
    assert list(plain) == list(needs)
    lands = {kind: land(situations.path_in("x + y", kind, "cpu", False, ())) for kind in situations.KINDS}
    assert lands["a fake tensor"] == lands["a wrapper subclass"] == "Python" and lands["sparse"] == "SparseCPU"
    assert land(situations.path_in("x + y", "an ordinary tensor", "cpu", False, ["vmap"])).startswith("FuncTorch")
    inside = situations.path_in("x + y", "made in inference mode", "cpu", False, ())
    assert "AutogradCPU" not in [row.key for row in inside]


def land(path):
    return next((row.key for row in path if row.state == "lands"), None)


def test_the_figure_draws_its_line_through_what_is_met_and_not_through_what_is_excluded():
    path = situations.path_in("mm(x, y)", "an ordinary tensor", "cpu", False, ["dispatch mode"])
    ax = plots.call_path(path)
    (line,) = [line for line in ax.lines if line.get_gid() == "path"]
    at = {row.key: y for y, row in enumerate(path)}
    assert [at[key] for key in ("PythonTLSSnapshot", "AutogradCPU", "ADInplaceOrView", "Python")] == list(
        line.get_ydata()
    )
    shown = {text.get_text() for text in ax.figure.findobj(Text)}
    assert set(at) <= shown and "thread" in shown
    assert "Python is the last" in ax.get_title(loc="left")


def test_the_map_keeps_one_line_for_a_kind_and_the_order_of_torch():
    asked = {"plain": ("cpu", ()), "meta": ("meta", ()), "mode": ("cpu", ["dispatch mode"]), "vmap": ("cpu", ["vmap"])}
    paths = {n: situations.path_in("x + y", "an ordinary tensor", d, False, a) for n, (d, a) in asked.items()}
    ax = plots.key_map(paths, order=situations.order())
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert "AutogradCPU, AutogradMeta" in names
    assert names.index("FuncTorchDynamicLayerFrontMode") < names.index("PythonTLSSnapshot") < names.index("Python")
    assert [label.get_text() for label in ax.get_xticklabels()] == list(paths)
