import pytest
import torch
from torch import nn

from course_lib import memory, plots
from course_lib.device import DEVICE
from course_lib.kernels.mlp import KEEP, bytes_kept, mlp
from course_lib.memory import ledger, saved
from course_lib.plots.memory_areas import REST, stacks

ROWS, WIDTH, HIDDEN = 1000, 64, 256
KIB = 1024


def perceptron(device=DEVICE, dtype=torch.float32):
    torch.manual_seed(0)
    with torch.device(device):
        layers = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU("tanh"), nn.Linear(HIDDEN, WIDTH)).to(dtype)
        x = torch.randn(ROWS, WIDTH).to(dtype).requires_grad_()
    return layers, x


def account(device=DEVICE):
    layers, x = perceptron(device)
    return ledger(lambda: layers(x), dict(layers.named_parameters()) | {"x": x})


def test_what_each_operator_keeps_is_named_once_and_inputs_are_told_from_activations():
    layers, x = perceptron()
    kept = saved(layers(x))
    assert [(k.operator, k.name, k.given) for k in kept] == [
        ("addmm", "mat1", True),
        ("addmm", "mat2", True),
        ("gelu", "self", False),
        ("addmm", "mat1", False),
        ("addmm", "mat2", True),
    ]
    assert [k.bytes // KIB for k in kept] == [250, 64, 1000, 1000, 64]
    assert kept[2].shape == (ROWS, HIDDEN) and kept[2].dtype == torch.float32


def test_memory_that_two_operators_keep_counts_where_it_comes_first():
    x = torch.randn(512, requires_grad=True)
    y = x.exp()  # keeps its result, which the product keeps too
    kept = saved((y * y).sum())
    assert [k.bytes for k in kept if not k.given] == [2048, 0, 0]


def test_autograd_functions_and_operators_are_called_by_their_names():
    x = torch.randn(8, 16, device=DEVICE, requires_grad=True)
    w1, w2 = torch.randn(32, 16, device=DEVICE), torch.randn(16, 32, device=DEVICE)
    y = mlp(x, w1, None, w2, None, keep="pre-activation")
    assert {k.operator for k in saved(y)} == {"_MLP"}
    y = torch.ops.speed_of_light.mlp(x, w1, None, w2, None, "input")[0]
    assert {k.operator for k in saved(y)} == {"speed_of_light_mlp"}


@pytest.mark.parametrize("device", [DEVICE, "meta"])
def test_every_byte_has_an_owner_at_every_moment(device):
    got = account(device)
    assert got.moments == (
        *("addmm", "gelu", "addmm"),
        *("mm", "mm", "sum", "gelu_backward", "mm", "mm", "sum"),
    )
    assert got.forward == 3
    hidden, rows = ROWS * HIDDEN * 4, ROWS * WIDTH * 4
    assert got.owners_at(0) == {"gelu keeps self": hidden}
    assert got.owners_at(2) == {"gelu keeps self": hidden, "addmm keeps mat1": hidden, "the result": rows}
    at_gelu_backward = got.owners_at(6)
    assert at_gelu_backward["in passing"] == 2 * hidden and "addmm keeps mat1" not in at_gelu_backward
    last = got.owners_at(len(got.moments) - 1)
    names = {"gradient of x", *(f"gradient of {n}" for n in ("0.weight", "0.bias", "2.weight", "2.bias"))}
    assert set(last) == names and last["gradient of 0.weight"] == WIDTH * HIDDEN * 4
    assert got.held_bytes == 2 * hidden + rows
    assert got.peak_bytes == max(map(got.bytes_at, range(10))) == got.bytes_at(got.peak_at)


def test_the_account_on_meta_tensors_is_a_prediction_of_the_one_that_is_run():
    here, meta = account(), account("meta")
    assert meta.device == "meta" and meta.moments == here.moments and meta.kept == here.kept
    assert meta.peak_bytes == pytest.approx(here.peak_bytes, rel=0.001)  # multiples of 512 bytes


@pytest.mark.skipif(DEVICE != "cpu", reason="the allocator of a GPU has a test of its own")
def test_the_prediction_is_within_two_percent_of_what_was_allocated():
    layers, x = perceptron()
    predicted = account("meta")

    def step():
        layers(x).backward(grad)
        layers.zero_grad()
        x.grad = None

    grad = torch.ones(ROWS, WIDTH)
    seen = memory.timeline(step)
    assert predicted.peak_bytes == pytest.approx(seen.peak_bytes, rel=0.02)
    held = memory.timeline(lambda: layers(x))
    assert predicted.held_bytes == pytest.approx(held.held_bytes, rel=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_prediction_is_within_two_percent_of_a_gpu_s_allocator(dtype):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1152, 4304), nn.GELU("tanh"), nn.Linear(4304, 1152)).to(dtype)
        x = torch.empty(8192, 1152, dtype=dtype, requires_grad=True)
    predicted = ledger(lambda: model(x))
    model, x = model.to_empty(device="cuda"), torch.randn(8192, 1152, device="cuda", dtype=dtype).requires_grad_()
    grad = torch.ones(8192, 1152, device="cuda", dtype=dtype)

    def step():
        y = model(x)
        y.backward(grad)
        model.zero_grad()
        x.grad = None
        return y

    assert predicted.peak_bytes == pytest.approx(memory.peak(step), rel=0.02)
    before = torch.cuda.memory_allocated()
    y = model(x)
    assert predicted.held_bytes == pytest.approx(torch.cuda.memory_allocated() - before, rel=0.02)
    del y


@pytest.mark.parametrize("keep", KEEP)
def test_the_mlp_s_policies_are_seen_in_the_account(keep):
    x = torch.randn(128, 16, device=DEVICE, requires_grad=True)
    w1, w2 = (torch.randn(*s, device=DEVICE, requires_grad=True) for s in ((64, 16), (16, 64)))
    got = ledger(lambda: mlp(x, w1, None, w2, None, keep=keep), {"x": x, "w1": w1, "w2": w2})
    kept = sum(k.bytes for k in got.kept if not k.given)
    assert kept == bytes_kept(128, 16, 64, keep, 4) - x.nbytes
    assert sum(size for owner, size in got.owners_at(got.forward - 1).items() if "keeps" in owner) == kept


def test_what_is_written_into_given_memory_is_no_new_memory():
    x = torch.randn(512, device=DEVICE, requires_grad=True)
    out = torch.empty(512, device=DEVICE)
    got = ledger(lambda: torch.add(x.detach(), 1, out=out).mul_(2).add(x))
    assert got.held_bytes == 2048 and [b.operator for b in got.blocks if b.born < got.forward] == ["add"]


def test_a_call_without_gradients_has_no_backward():
    x = torch.randn(512, device=DEVICE)
    got = ledger(lambda: x.exp().sum())
    assert got.kept == () and got.forward == len(got.moments) == 2
    assert "exp" in {b.operator for b in got.blocks} and "at the peak (exp, forward)" in str(got)


def test_the_table_says_both_moments_that_matter():
    got = account("meta")
    text = str(got)
    assert text.splitlines()[0].split("  ")[0] == "owner" and "gelu keeps self" in text
    assert text.splitlines()[-1].startswith("all") and ">gelu keeps self</td>" in got._repr_html_()


# The figure.


def test_areas_add_up_to_what_is_held_and_what_passes_lies_on_top():
    got = account("meta")
    shown = stacks(got, most=3)
    assert list(shown)[:2] == ["gelu keeps self", "addmm keeps mat1"] and list(shown)[-2:] == [got.PASSING, REST]
    assert [int(sum(s[m] for s in shown.values())) for m in range(10)] == [got.bytes_at(m) for m in range(10)]


def test_the_figure_marks_the_peak_and_the_turn_from_forward_to_backward():
    got = account("meta")
    ax = plots.memory_by_owner(got, device="somewhere")
    low, high = ax.get_ylim()
    assert low == 0 and high > got.peak_bytes / 2**20
    words = [t.get_text() for t in ax.texts]
    assert any(got.moments[got.peak_at] in w and f"{got.peak_bytes / 2**20:.4g}" in w for w in words)
    assert "forward " in words and "of the peak is held" in ax.get_title(loc="left")
    assert ax.get_lines()[-1].get_xdata()[0] == got.forward
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels[0] == "gelu keeps self" and len(labels) == len(set(labels)) <= 7
    wider = plots.memory_by_owner(got, limit=2 * got.peak_bytes)
    assert wider.get_ylim()[1] > 1.9 * high


def test_nothing_that_ran_is_a_figure_too():
    got = ledger(lambda: torch.ones((), device=DEVICE).detach())
    x = torch.ones(4, device=DEVICE)
    nothing = ledger(lambda: x)
    assert got.peak_bytes <= 512 and nothing.moments == () and nothing.peak_bytes == 0
    assert "nothing ran" in str(nothing) and plots.memory_by_owner(nothing).get_title(loc="left") == "Nothing ran"
