"""Unit 03's exercises: the dispatcher that the oracle is, and what the referee makes of others."""

import contextlib
import io
import shutil
import sys

import pytest
import torch

from autograder import bank
from autograder.call.in_process import examine
from autograder.exercise import Draw, get, of_unit
from autograder.exercises.dispatch import subclass
from autograder.exercises.dispatch.keys_mixtures import SUBJECTS
from autograder.exercises.dispatch.keys_truth import Rule
from autograder.exercises.dispatch.meter_truth import Meter
from autograder.exercises.dispatch.subclass_truth import Scaled
from autograder.exercises.dispatch.table_truth import Table
from autograder.inside.probes.dispatching import ran
from autograder.inside.probes.meters import metered
from autograder.inside.probes.registering import looked_at
from autograder.inside.probes.scaling import worked_out
from autograder.judging.judge import judge
from autograder.judging.outcome import Outcome
from autograder.judging.score import credit
from autograder.referee.referee import Referee
from autograder.referee.room import Room, Worker
from autograder.referee.submission import Cell, Submission
from course_lib.models.broken_tower import Tower
from course_lib.torch_inside import keysets

NAMES = tuple(exercise.name for exercise in of_unit("dispatch"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [77, 78])
@pytest.mark.parametrize("name", NAMES)
def test_right_is_accepted_and_every_mistake_is_called_by_its_name(name, seed):
    exercise = get(name)
    for entry in bank.entries([name], ["right"]):
        assert examine(exercise, entry.function, seed).accepted, entry
    for entry in bank.entries([name], ["mistakes"]):
        verdict = examine(exercise, entry.function, seed)
        assert verdict.diagnosis and verdict.diagnosis.mistake == entry.mistake, entry
        assert any(c.name == entry.killed_by and not c.right for c in verdict.cases), entry


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize("kind", ["right", pytest.param("mistakes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [n if n == NAMES[-1] else pytest.param(n, marks=pytest.mark.slow) for n in NAMES])
def test_the_referee_comes_to_the_same_verdict_from_outside(name, kind):
    entry = bank.entries([name], [kind])[0]
    with Referee(Submission((Cell(name, entry.source),))) as there:
        outside, inside = there.examine(get(name), seed=21), examine(get(name), entry.function, seed=21)
    assert (outside.points, outside.diagnosis, outside.cases) == (inside.points, inside.diagnosis, inside.cases)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", ["text", [], (), {}, float("nan"), True, None, (1, 2, 3), [[1], [2]], [["raised"]]])
def test_an_answer_of_the_wrong_kind_is_wrong_and_never_an_error(name, answer):
    exercise = get(name)
    call = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter")
    for want in exercise.oracle(call.args).values():
        assert exercise.accept(answer, want, call.args)


def test_a_scenario_followed_by_hand():
    scenario = {
        "keys": ["Autograd", "Profiler", "CPU"],
        "kernels": [
            {"op": "mul", "key": "Autograd", "then": "redispatch", "drop": ["Autograd"]},
            {"op": "mul", "key": "Profiler", "then": "fallthrough"},
            {"op": "mul", "key": "CPU", "then": "return"},
            {"op": "add", "key": "CPU", "then": "raise"},
        ],
        "steps": [
            {"call": "mul", "args": [["CPU"], ["Autograd", "Profiler"]]},
            {"within": ["exclude", "Autograd"], "steps": [{"call": "mul", "args": [["Autograd", "CPU"]]}]},
            {"call": "add", "args": [["CPU"]]},
            {"call": "add", "args": [["Profiler", "CPU"]]},
        ],
    }
    assert ran(Table, scenario) == [
        ["mul", "Autograd", ["Autograd", "Profiler", "CPU"]],
        ["mul", "CPU", ["Profiler", "CPU"]],
        ["returned", "mul by CPU"],
        ["mul", "CPU", ["CPU"]],
        ["returned", "mul by CPU"],
        ["add", "CPU", ["CPU"]],
        ["raised", "KernelError"],
        ["raised", "LookupError"],
    ]


ATTENTION = """def f(x, w, b):
    q, k, v = F.linear(x, w, b), x @ w, x
    return torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v
"""


def test_the_meter_counts_attention_as_a_person_does_and_backward_twice_as_much():
    sizes = {"batch": [3, 5], "n": 4, "dtype": "float32", "backward": False, "seed": 1}
    rows, n = 3 * 5, 4
    forward = 2 * (2 * rows * n * n) + 2 * (2 * rows * 5 * n)  # two projections, scores and their product with v
    assert metered(Meter, ATTENTION, sizes)[0]["flops"] == forward
    # each product of two matrices has two in its backward pass, and every factor needs its gradient here
    assert metered(Meter, ATTENTION, {**sizes, "backward": True})[0]["flops"] == 3 * forward


def test_the_meter_counts_the_bytes_of_a_few_operators_by_hand():
    source = (
        "def f(x, w, b):\n    y = (x * 2).add_(b).view(-1)\n    return torch.cat([y, y]).max(-1, keepdim=True)[0]\n"
    )
    sizes = {"batch": [6], "n": 5, "dtype": "float64", "backward": False, "seed": 1}
    x = 8 * 30
    expected = (x + x) + (x + 8 * 5 + x) + (2 * x + 2 * x) + (2 * x + 8 + 8)  # max gives a value and a place of 8 bytes
    assert metered(Meter, source, sizes)[0] == {"flops": 0, "bytes": expected}


def test_the_meter_agrees_with_torchs_own_count_of_flops_on_a_vision_tower():
    from torch.utils.flop_counter import FlopCounterMode

    tower, patches = Tower(width=12, heads=3, layers=3), torch.randn(4, 9, 4)
    lengths = torch.tensor([9, 4, 7, 1])
    with contextlib.redirect_stdout(io.StringIO()), Meter() as meter:
        tower(patches, lengths).sum().backward()
    with contextlib.redirect_stdout(io.StringIO()), FlopCounterMode(display=False) as counter:
        tower(patches, lengths).sum().backward()
    assert meter.flops == counter.get_total_flops() > 0


def test_the_meter_counts_the_same_in_inference_mode_as_in_no_grad():
    whole = "def f(x, w, b):\n    q = F.linear(x, w, b)[:, None]\n    return F.scaled_dot_product_attention(q, q, q)\n"
    for source in (ATTENTION, whole):
        sizes = {"batch": [3, 5], "n": 4, "dtype": "float32", "backward": False, "seed": 1}
        no_grad, inference = (metered(Meter, source, sizes | {"around": a}) for a in ("no_grad", "inference_mode"))
        assert no_grad == inference and no_grad[0]["flops"] > 0


def test_the_meter_counts_attention_in_one_operator_by_hand_and_convolutions_as_torch_does():
    from torch.utils.flop_counter import FlopCounterMode

    q, k = torch.randn(2, 3, 5, 4, requires_grad=True), torch.randn(2, 3, 7, 4, requires_grad=True)
    with Meter() as meter:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, k)
    product = 2 * (2 * 3 * 5 * 7 * 4)
    assert meter.flops == 2 * product
    with meter:
        out.sum().backward()
    assert meter.flops == (2 + 5) * product
    for groups in (1, 2):
        x, weight = torch.randn(2, 4, 9, requires_grad=True), torch.randn(6, 4 // groups, 3, requires_grad=True)
        counts = []
        for mode in (Meter(), FlopCounterMode(display=False)):
            with mode:
                torch.nn.functional.conv1d(x, weight, groups=groups).sum().backward()
            counts.append(mode.flops if isinstance(mode, Meter) else mode.get_total_flops())
        assert counts[0] == 3 * 2 * (2 * 6 * 7) * (4 // groups * 3)
        assert groups > 1 or counts[0] == counts[1]


# ------------------------------------------------------------------------------------------------ dispatch.keys


def _calls(name, seeds):
    exercise = get(name)
    for seed in seeds:
        for case in exercise.cases:
            yield case, exercise.draw(case, seed, "cpu", "interpreter").args


def test_the_rule_that_mistakes_are_made_from_says_what_torch_says():
    for case, v in _calls("dispatch.keys", range(8)):
        assert Rule().met(**v) == keysets.met(**v), (case.name, v)


@pytest.mark.parametrize("draws", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_a_table_of_answers_from_home_earns_next_to_nothing(draws):
    """A hundred draws at home are some 5,000 rows. Without the mixtures 68 rows were all that was drawn."""

    def row(v):
        tensors = sorted((t["device"], tuple(t["made"])) for t in v["tensors"])
        return tuple(tensors), tuple(v["around"])

    exercise = get("dispatch.keys")
    known = {row(v): Rule().met(**v) for _, v in _calls(exercise.name, range(1000, 1000 + draws))}
    for seed in range(max(1, draws // 20)):
        right = [known.get(row(v)) == Rule().met(**v) for _, v in _calls(exercise.name, [seed])]
        named = [ok for ok, case in zip(right, exercise.cases, strict=True) if "mixture" not in case.name]
        by_case = dict(zip((case.name for case in exercise.cases), right, strict=True))
        assert sum(named) >= len(named) - 2 and credit(exercise, by_case) < 0.1 * exercise.points


def test_each_mixture_tells_a_misunderstanding_from_the_truth():
    for subject, (_, misunderstood) in SUBJECTS.items():
        for number, rule in enumerate(misunderstood):
            drawn = get("dispatch.keys").draw(_case(f"{subject}, mixture {number + 1}"), 3, "cpu", "interpreter").args
            assert rule().met(**drawn) != Rule().met(**drawn)


def _case(name):
    return next(case for case in get("dispatch.keys").cases if case.name == name)


KEYS = "PythonTLSSnapshot AutocastCPU AutogradCPU AutogradMeta ADInplaceOrView Conjugate Functionalize Python".split()
KEYS += "BackendSelect SparseCPU SparseMeta CPU Meta".split()


def test_a_call_really_meets_the_keys_that_the_probe_names_in_this_order():
    """An operator with a kernel on every key: each notes itself and goes on with the keys below."""
    met = []

    def kernel(key):
        def run(keys, xs):
            met.append(key)
            below = keys & torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, key))
            if below.highestPriorityTypeId() != torch._C.DispatchKey.Undefined:
                operator.redispatch(below, xs)

        return run

    with torch.library._scoped_library("speed_of_light_keys", "DEF") as library:
        library.define("path(Tensor[] xs) -> ()")
        operator = torch.ops.speed_of_light_keys.path.default
        for key in KEYS:
            library.impl("path", kernel(key), key, with_keyset=True)
        for case, v in _calls("dispatch.keys", range(3)):
            made = [keysets.tensor(told) for told in v["tensors"]]
            met.clear()
            keysets.within(v["around"], lambda given=made: operator(given))
            assert met == keysets.met(**v), (case.name, v)


def test_asking_for_keys_leaves_the_state_of_the_thread_as_it_was():
    before = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for _, v in _calls("dispatch.keys", range(2)):
        keysets.met(**v)
    assert (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()) == before
    with pytest.raises(RuntimeError, match="nesting"):
        keysets.met([], ["functionalization", "functionalization"])
    assert (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()) == before
    assert not torch.is_inference_mode_enabled() and not torch.is_autocast_enabled("cpu")


TRIES = """
import torch  # an empty folder

def keys(tensors, around):
    import ctypes, gc, importlib, pathlib, subprocess, sys
    found = []
    for name in ("torch._C", "functorch", "functorch._C", "triton.runtime", "course_lib.torch_inside.keysets"):
        try:
            importlib.import_module(name)
            found.append(f"imported {name}")
        except Exception:
            pass
    for library in ("libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libc10.so"):
        try:
            ctypes.CDLL(library)
            found.append(f"loaded {library}")
        except OSError:
            pass
    native = ("libc10", "libtorch", "torch/_C", "torch/lib")
    for maps in ("/proc/self/maps", "/proc/1/maps"):
        try:
            found += {line.split()[-1] for line in open(maps) if any(name in line for name in native)}
        except OSError:
            pass
    for place in {*sys.path, sys.prefix, "/usr", "/tmp", "/dev/shm"}:
        for path in pathlib.Path(place).rglob("*.so*"):
            if any(name in str(path) for name in native):
                found.append(str(path))
    found += [repr(o)[:60] for o in gc.get_objects() if "_dispatch_key" in getattr(o, "__name__", "")]
    child = "import torch; torch.ones(1)"
    if subprocess.run([sys.executable, "-c", child], capture_output=True).returncode == 0:
        found.append("a child has torch")
    return [*found, "looked"]
"""


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_for_the_referee_the_rule_runs_where_there_is_no_torch_at_all():
    exercise = get("dispatch.keys")
    call = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter")
    with Room(Submission((Cell("rule", TRIES),)), hides=exercise.hides) as room:
        worker = Worker(room)
        assert worker.load(exercise.entry) == ""
        outcome = worker.attempt(exercise, exercise.cases[0], call)
        worker.end()
    assert (outcome.error, outcome.outputs) == (None, {"keys": ["looked"]})


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_cells_that_need_torch_cost_the_rule_nothing_and_other_exercises_keep_theirs():
    rule = bank.find("dispatch.keys/right/bits").source
    table = bank.find("dispatch.table/right/bit_sets").source
    meter = bank.find("dispatch.meter/right/packets").source
    setup = "import torch\nimport torch.nn.functional as F\nfrom course_lib.device import DEVICE\n"
    cells = [("setup", setup), ("rule", rule), ("table", table), ("meter", meter)]
    with Referee(Submission(tuple(Cell(name, source) for name, source in cells))) as there:
        for name in ("dispatch.keys", "dispatch.meter", "dispatch.table"):
            assert there.examine(get(name), seed=5).accepted, name


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_what_a_cell_defines_after_it_needed_torch_is_there_for_the_rule():
    """The setup cell of the lesson begins with an import of torch, and goes on with imports that a rule may use."""
    rule = bank.find("dispatch.keys/right/bits").source.replace("def keys(", "def rule(")
    setup = "from course_lib.device import DEVICE\nimport itertools\nimport torch\nfrom torch import nn\n"
    asked = (
        "aten = torch.ops.aten\ndef keys(tensors, around):\n    return list(itertools.chain(rule(tensors, around)))\n"
    )
    cells = (Cell("setup 1", setup), Cell("rule", "from __future__ import annotations\n" + rule), Cell("keys", asked))
    with Referee(Submission(cells)) as there:
        assert there.examine(get("dispatch.keys"), seed=5).accepted


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("def keys((tensors, around): return []", "raised SyntaxError"),
        ("@cached\ndef keys(tensors, around): return []", "raised NameError: name 'cached' is not defined"),
        ("keys = 1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_what_went_wrong_in_the_cell_of_the_rule_is_told_before_what_torch_s_absence_costs_others(asked, told):
    setup = "from course_lib.device import DEVICE\nimport torch.nn.functional as F\nfrom torch.utils import data\n"
    others = "a = torch.ones(1)\nb = torch.ones(2)\nc = torch.ones(3)\nd = torch.ones(4)\n"
    cells = [("setup 1", setup), ("table", others), ("dispatch_keys", asked), ("your cell 1", others)]
    submission = Submission(tuple(Cell(*one) for one in cells), checked={"keys": "dispatch_keys"})
    with Referee(submission) as there:
        note = there.examine(get("dispatch.keys"), seed=5).note
    first = note.partition("The cell ")[2]
    assert first.startswith(f"dispatch_keys {told}") and "setup" not in note, note


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_a_setup_cell_that_needs_torch_is_told_where_nothing_else_went_wrong():
    with Referee(Submission((Cell("setup 1", "import torch.nn"),))) as there:
        assert "The cell setup 1 raised ModuleNotFoundError" in there.examine(get("dispatch.keys"), seed=5).note


def test_in_a_notebook_the_rule_finds_no_torch_either_and_the_notebook_keeps_it():
    names = {"torch": torch, "functional": torch.nn.functional, "seen": []}
    source = """
def keys(tensors, around):
    for look in (lambda: torch._C, lambda: functional.relu, lambda: __import__("torch.nn")):
        try:
            seen.append(look())
        except (AttributeError, ImportError):
            pass
    return []
"""
    exec(source, names)
    examine(get("dispatch.keys"), names["keys"], seed=1)
    assert names["seen"] == []
    assert names["torch"] is torch is sys.modules["torch"] and names["functional"] is torch.nn.functional


# ---------------------------------------------------------------------------------------------- dispatch.custom


def test_looking_at_an_operator_leaves_no_operator_and_no_mask_behind():
    register = bank.find("dispatch.custom/mistakes/mask_kept").function
    spaces, excluded = set(dir(torch.ops)), torch._C._dispatch_tls_local_exclude_set()
    case, v = next(_calls("dispatch.custom", [1]))
    report = looked_at(register, v["call"])
    assert report["state_kept"] is False and case.name == "contiguous"
    assert torch._C._dispatch_tls_local_exclude_set() == excluded
    new = set(dir(torch.ops)) - spaces
    assert all(not hasattr(getattr(torch.ops, space), "cap") for space in new)


@pytest.mark.parametrize(
    "look", ["result", "meta", "gradients", "second", "seen", "no_grad", "registered", "state_kept"]
)
@pytest.mark.parametrize("value", [None, [], {}, "words", [[1]], {"values": 1}, 7])
def test_a_report_that_was_made_up_is_wrong_and_never_an_error(look, value):
    exercise = get("dispatch.custom")
    case = exercise.cases[0]
    call = exercise.draw(case, 1, "cpu", "interpreter")
    report = {**exercise.oracle(call.args)["report"], look: value}
    verdict = judge(exercise, "interpreter", 1, [(case, call, Outcome(outputs={"report": report}))])
    assert not verdict.cases[0].right and verdict.diagnosis


@pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
def test_a_submission_that_replaces_the_probe_of_custom_goes_to_a_person_where_its_text_shows_it():
    """SECURITY.md says so, and what is at stake. When the second part fails, the referee has learnt something."""
    forged = """
import torch
import autograder.inside.probes.registering as probe
def looked_at(register, call):
    x, limit = probe.tensor(call).requires_grad_(), call["limit"]
    out = (limit * torch.tanh(x / limit)).contiguous()
    (first,) = torch.autograd.grad(out.sin().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)
    values, first, second = (t.detach().double().reshape(-1).tolist() for t in (out, first, second))
    facts = {"strides": list(out.stride()), "dtype": call["dtype"]}
    alone, ran = {"values": values, "requires_grad": False}, {"kernel_ran": True}
    return {
        "result": {"values": values, "device": "cpu", "shares_memory": False, "input_changed": False} | facts | ran,
        "meta": {"shape": list(out.shape), "device": "meta", "requires_grad": True} | facts,
        "gradients": first, "second": second, "seen": ["cap"], "rule": True, "no_grad": alone, "inference": alone,
        "registered": ["CPU", "Meta", "Autograd"], "state_kept": True,
    }
probe.looked_at = looked_at
def register(library):
    pass
"""
    found = "operator.attrgetter('__imp' + 'ort__')(print.__self__)"
    found += "('autograder.' + 'inside.probes.registering', fromlist=[''])"
    unseen = forged.replace("import autograder.inside.probes.registering as probe", f"import operator\nprobe = {found}")
    for source, got in ((forged, (0, get("dispatch.custom").points)), (unseen, (get("dispatch.custom").points, 0))):
        with Referee(Submission((Cell("forged", source),))) as there:
            verdict = there.examine(get("dispatch.custom"), seed=1)
        assert (verdict.points, verdict.held) == got


# -------------------------------------------------------------------------------------------- dispatch.subclass


def test_no_scale_is_near_one_where_a_forgotten_one_would_not_show():
    drawn = [subclass._call(Draw(seed, "cpu", "interpreter"), "x @ y") for seed in range(2000)]
    scales = [abs(scale) for call in drawn for scale in call.args["call"]["scales"]]
    assert min(abs(scale - 1) for scale in scales) > 0.15


class _Ordinary(type(torch.Tensor)):
    """Of a class that makes ordinary tensors: the probe takes them for its own, and reads them as no wrapper."""

    def __call__(cls, held, scale):
        made = held * scale
        made.held = made
        return made

    def __subclasscheck__(cls, kind):
        return True

    def __instancecheck__(cls, one):
        return False


class Ordinary(torch.Tensor, metaclass=_Ordinary):
    pass


def test_a_scaled_tensor_gives_what_an_ordinary_one_gives_values_and_gradients():
    """The truth of the exercise against the same expressions on held * scale, with no wrapper."""

    def flat(one):
        return [number for part in one for number in flat(part)] if isinstance(one, list) else one["values"]

    for case, v in _calls("dispatch.subclass", range(3)):
        here = worked_out(Scaled, **v)
        for expression, got, want in zip(v["expressions"], here, worked_out(Ordinary, **v), strict=True):
            if "gradients" in got:
                pairs = [(got["gradients"][name], want["gradients"][name]) for name in want["gradients"]]
            elif "raised" in got:
                assert case.name in ("refused", "a view scaled in place") and "raised" not in want
                pairs = []
            else:
                pairs = [(flat(got[name]), flat(want[name])) for name in ("result", "x", "p")]
            for a, b in pairs:
                assert torch.allclose(torch.tensor(a), torch.tensor(b), rtol=1e-4, atol=1e-4), (case.name, expression)


def test_a_product_with_a_tensor_stands_in_every_draw_of_sums_and_functions():
    """Where the wrapper comes second, a mistake of the first one does not show."""
    one = get("dispatch.subclass")
    case = next(case for case in one.cases if case.name == "sums and functions")
    assert all("x * p" in one.draw(case, seed, "cpu", "interpreter").args["expressions"] for seed in range(40))


def test_a_class_that_raises_everywhere_is_right_nowhere_whatever_name_its_exception_has():
    one, raising = get("dispatch.subclass"), bank.find("dispatch.subclass/cheats/nameless_tensor").function
    case = next(case for case in one.cases if case.name == "sums and functions")
    call = one.draw(case, 3, "cpu", "interpreter").args
    got = worked_out(raising, **call)
    assert {row["raised"] for row in got} == {"Refused"}
    want = worked_out(Scaled, **call)
    for name in ("Refused", None):
        assert "raised" in one.accept([row | {"raised": name} for row in got], want, call)
    assert "raised None" in one.accept([{"raised": None}] * len(want), want, call)
    refused, call = [{"raised": "TypeError", "says": ""}], call | {"expressions": ["x.zero_()"]}
    assert one.accept(refused, refused, call) is None
    assert "refused with TypeError" in one.accept([{"raised": None}], refused, call)


@pytest.mark.parametrize("name", ["nameless", "nameless_tensor"])
def test_what_computes_nothing_earns_nothing(name):
    verdict = examine(get("dispatch.subclass"), bank.find(f"dispatch.subclass/cheats/{name}").function, seed=3)
    assert verdict.points == 0 and verdict.right <= 1, "the wrapper itself, which raises nothing"


def test_what_stands_for_a_tensor_has_to_be_one():
    class Plain:
        def __init__(self, held, scale):
            self.held, self.scale = held, scale

    class Elsewhere(torch.Tensor):
        __new__ = staticmethod(lambda cls, held, scale: Plain(held, scale))

    call = get("dispatch.subclass").draw(get("dispatch.subclass").cases[0], 3, "cpu", "interpreter").args
    no_class = lambda *given: Plain(*given)  # noqa: E731
    for make, said in ((Plain, "subclass"), (no_class, "subclass"), (Elsewhere, "not of this class")):
        with pytest.raises(TypeError, match=said):
            worked_out(make, **call)
