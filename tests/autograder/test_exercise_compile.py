"""Unit 02's exercises: what they ask is what torch really does, and the referee sees it from outside."""

import inspect
import itertools
import shutil
import sys
from dataclasses import replace
from statistics import median

import pytest
import torch
import torch._dynamo  # here, so that the bank's processes, forked from this one, have it already

from autograder import bank
from autograder.call.in_process import examine
from autograder.call.trial import hidden
from autograder.exercise import get, of_unit
from autograder.exercises.compile.break_even_mistakes import MINUTES, calls_until, mean_of_settled, totals
from autograder.exercises.compile.guards_truth import Rule
from autograder.inside.probes import backends, rewriting, rotating, towers
from autograder.judging.score import credit
from autograder.referee import sandbox
from autograder.referee.reading import past_graphs
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
from course_lib.given_kernels import gate_into

NAMES = tuple(exercise.name for exercise in of_unit("compile"))
COMPILING = ("compile.breaks", "compile.guards", "compile.backend", "compile.operator")  # half a second a case
sandboxed = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


# ---------------------------------------------------------------------------------------------- all of them


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_mistake_is_called_by_its_name_on_another_seed(name):
    wrong = []
    for entry in bank.entries([name], ["mistakes"]):
        verdict = examine(get(name), entry.function, seed=77)
        named = verdict.diagnosis.mistake if verdict.diagnosis else None
        killed = any(c.name == entry.killed_by and not c.right for c in verdict.cases)
        if named != entry.mistake or not killed:
            wrong.append(f"{entry}: named {named}, {'caught' if killed else 'not caught'} by {entry.killed_by}")
    assert not wrong, "\n".join(wrong)


@sandboxed
@pytest.mark.parametrize("kind", ["right", pytest.param("mistakes", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "names",
    [
        pytest.param([n for n in NAMES if n not in COMPILING], id="quick"),
        pytest.param(COMPILING, id="compiling", marks=pytest.mark.slow),
    ],
)
def test_the_referee_comes_to_the_same_verdict_from_outside(names, kind):
    chosen = {name: bank.entries([name], [kind])[0] for name in names}
    cells = tuple(Cell(name, entry.source) for name, entry in chosen.items())
    with Referee(Submission(cells)) as there:
        for name, entry in chosen.items():
            outside, inside = there.examine(get(name), seed=21), examine(get(name), entry.function, seed=21)
            assert (outside.points, outside.diagnosis) == (inside.points, inside.diagnosis), entry
            assert outside.cases == inside.cases, entry


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("answer", ["text", [], (), {}, float("nan"), True, (1, 2, 3), [[1], [2]], -1.0])
def test_an_answer_of_the_wrong_kind_is_wrong_and_never_an_error(name, answer):
    exercise = get(name)
    call = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter")
    known = {**call.args, **call.secret}
    for want in exercise.oracle(known).values():
        assert exercise.accept(answer, want, known)


# ---------------------------------------------------------------------------------------------- compile.guards


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_rule_is_what_torch_does(seed):
    """Fails when a new torch guards otherwise: then the exercise's text and its known mistakes are to be looked at."""
    exercise = get("compile.guards")
    for case in exercise.cases:
        v = exercise.draw(case, seed, "cpu", "interpreter").args
        said = Rule(v["dynamic"], v["marked"], v["limit"]).compiles(v["calls"])
        assert exercise.oracle(v)["compiles"] == said, (case.name, seed, v)


@pytest.mark.parametrize("draws", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_a_table_of_answers_from_home_earns_nothing(draws):
    """A thousand rows a case would still not hold them; 27 rows did while the order of the calls was a fixed one."""

    def row(v):
        letters = {0: 0, 1: 1}
        calls = [
            (*(letters.setdefault(n, len(letters)) for n in c["shape"]), *list(c.values())[1:]) for c in v["calls"]
        ]
        return repr((calls, v["dynamic"], v["marked"], v["limit"]))

    exercise, known = get("compile.guards"), set()
    for seed in range(1000, 1000 + draws):
        known |= {row(exercise.draw(case, seed, "cpu", "interpreter").args) for case in exercise.cases}
    for seed in range(5):
        held = {c.name: row(exercise.draw(c, seed, "cpu", "interpreter").args) in known for c in exercise.cases}
        assert credit(exercise, held) == 0


def test_asking_torch_changes_nothing_for_the_rest_of_the_process():
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=counting)
    compiled(torch.rand(3))
    exercise = get("compile.guards")
    case = next(c for c in exercise.cases if c.name == "more sizes than the limit")
    v = exercise.draw(case, 1, "cpu", "interpreter").args
    limit = torch._dynamo.config.recompile_limit
    assert exercise.oracle(v) == exercise.oracle(v), "what torch learnt about sizes the first time must not matter"
    compiled(torch.rand(3))
    assert len(graphs) == 1 and torch._dynamo.config.recompile_limit == limit


def test_programs_from_text_are_new_to_torch_each_time_and_their_text_can_be_found():
    """More of them than the limit of compilations that one function has."""
    from course_lib.torch_inside.reuse import SOURCE, compiles, fresh

    assert inspect.getsource(fresh(SOURCE)) == SOURCE and inspect.getsourcefile(fresh(SOURCE))
    for _ in range(10):
        assert compiles([{"shape": [n, 3]} for n in (4, 5, 6)]) == [True, True, False]


@sandboxed
def test_the_referee_judges_the_rule_where_nothing_can_be_compiled():
    tries = """
import importlib
def compiles(calls, dynamic, marked, limit):
    import torch
    for _ in range(2):
        try:
            importlib.import_module("torch._dynamo.eval_frame")
            return ["imported"]
        except ImportError:
            pass
    torch.compile(lambda x: x, backend="eager")(torch.ones(1))
"""
    with Referee(Submission((Cell("rule", tries),))) as there:
        verdict = there.examine(get("compile.guards"), seed=3)
    assert verdict.points == 0 and verdict.diagnosis.mistake == "compiled_to_find_out"
    assert all("torch._dynamo" in case.why for case in verdict.cases)


def test_hiding_a_module_in_this_process_ends_with_the_call():
    before = {name: module for name, module in sys.modules.items() if name.startswith("torch._dynamo")}
    with hidden(("torch._dynamo",)), pytest.raises(ImportError, match=r"torch\._dynamo"):
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert len(before) > 10 and all(sys.modules[name] is module for name, module in before.items())
    assert torch._dynamo is before["torch._dynamo"]
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2


def test_what_is_neither_package_nor_module_cannot_be_hidden():
    with pytest.raises(sandbox.NoSandbox, match="neither package nor module"):
        sandbox.command(["true"], hides=("torch._dynamos",))


def test_reference_solutions_that_this_copy_of_the_course_lacks_need_not_be_hidden(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox, "COURSE_LIB", tmp_path)  # holds no folder "kernels"
    line = sandbox.command(["true"], hides=("course_lib.kernels",))
    assert not [part for part in line if part.endswith("kernels")]


def test_a_wrong_entry_is_shown_with_the_calls_before_it():
    kinds = [((4, 3), "float32", False), ((5, 3), "float64", True), ((6, 3), "float32", False)]
    calls = [{"shape": list(shape), "dtype": dtype, "needs_grad": needs} for shape, dtype, needs in kinds]
    said = get("compile.guards").accept([True, True, False], [True, True, True], {"calls": calls})
    assert said == (
        "call 3 of 3, [6, 3] float32, after [4, 3] float32; [5, 3] float64 needs_grad: said not to compile, and torch "
        "does"
    )


# ------------------------------------------------------------------------------------ compile.pass, and its probe


def test_a_graph_is_built_with_types_and_runs_as_its_steps_say():
    steps = [
        {"name": "t0", "op": "mul", "args": ["x0", "x1"], "kwargs": {}},
        {"name": "t1", "op": "add_", "args": ["x0", "x1"], "kwargs": {}},
        {"name": "t2", "op": "add", "args": ["t0", "x0"], "kwargs": {"alpha": 2}},
    ]
    inputs = [{"name": f"x{i}", "dtype": "float32", "shape": [2, 3], "seed": i} for i in (0, 1)]
    module = rewriting.build(steps, inputs, ["t2"])
    types = {node.name: node.meta["val"].dtype for node in module.graph.nodes if "val" in node.meta}
    assert types == dict.fromkeys(["x0", "x1", "t0", "t1", "t2"], torch.float32)
    x0, x1 = rewriting.values(inputs)
    (result,), calls = rewriting.run(module, inputs)
    assert result["values"] == (x0 * x1 + 2 * (x0 + x1)).double().reshape(-1).tolist()
    assert calls == {"mul": 1, "add": 1, "addcmul": 0}


def test_what_runs_is_counted_and_not_what_the_graph_says():
    steps = [{"name": "t0", "op": "mul", "args": ["x0", "x0"], "kwargs": {}}]
    inputs = [{"name": "x0", "dtype": "float64", "shape": [3], "seed": 1}]

    def not_recompiled(module):
        node = next(n for n in module.graph.nodes if n.target is torch.mul)
        node.target = torch.add
        return module

    _, runs, in_graph = rewriting.rewritten(not_recompiled, steps, inputs, ["t0"])
    assert (runs["mul"], runs["add"]) == (1, 0) and (in_graph["mul"], in_graph["add"]) == (0, 1)


def test_joining_changes_results_exactly_where_the_exercise_says_so():
    """Of two types or with a write in between: a pass that joins there is not only told off, its results are wrong."""
    exercise = get("compile.pass")
    for name, mistake in (
        ("fp16 product, fp32 sum", "types_ignored"),
        ("a factor is written in between", "write_crossed"),
        ("a sum with alpha", "alpha_ignored"),
    ):
        case = next(c for c in exercise.cases if c.name == name)
        function = bank.find(f"compile.pass/mistakes/{mistake}").function
        for seed in range(4):
            v = exercise.draw(case, seed, "cpu", "interpreter").args
            got = rewriting.rewritten(function, **v)[0]
            assert exercise.accept(got, exercise.oracle(v)["results"], v), (name, seed)


def test_each_way_to_join_too_little_or_too_much_loses_its_own_cases_and_together_they_lose_a_third():
    """Each of the first three earned all points while every factor was written between and no type was an integer."""
    wrong = {
        "write_elsewhere_stops": {"a factor is written before the product", "a factor is written after the sum"},
        "integers_left": {"int32", "int64"},
        "factors_not_compared": {
            "an fp16 and an fp32 factor, fp32 sum",
            "an integer and an fp16 factor, fp16 sum",
        },
        "any_write_stops__into_what_is_added": {"what is added is written in between"},
    }
    exercise = replace(get("compile.pass"), mistakes=())
    for name, cases in wrong.items():
        verdict = examine(exercise, bank.find(f"compile.pass/mistakes/{name}").function, seed=5)
        assert {case.name for case in verdict.cases if not case.right} == cases
        assert exercise.points - 1.5 < verdict.points < exercise.points
    together = set().union(*wrong.values())
    assert credit(exercise, {c.name: c.name not in together for c in exercise.cases}) < 2 / 3 * exercise.points


@sandboxed
def test_a_submission_that_replaces_the_probe_goes_to_a_person_where_its_text_shows_it_and_is_believed_elsewhere():
    """SECURITY.md says so, and what is at stake. When the second part fails, the referee has learnt something."""
    rule = (sandbox.COURSE_LIB.parent / "autograder/exercises/compile/fuse_mistakes.py").read_text()
    rule = rule[rule.index("class Pass:") : rule.index("def unchanged(")]
    forged = f"""
from collections import Counter
import autograder.inside.probes.rewriting as probe
build, run = probe.build, probe.run
{rule}
def rewritten(function, steps, inputs, outputs):
    v = {{"steps": steps, "inputs": inputs, "outputs": outputs}}
    counts = Pass(v).counts()
    return probe.run(probe.build(steps, inputs, outputs), inputs)[0], counts, counts
probe.rewritten = rewritten
def fuse(module):
    return module
"""
    found = "operator.attrgetter('__imp' + 'ort__')(print.__self__)"
    found += "('autograder.' + 'inside.probes.rewriting', fromlist=[''])"
    unseen = forged.replace("import autograder.inside.probes.rewriting as probe", f"import operator\nprobe = {found}")
    for source, got in ((forged, (0, get("compile.pass").points)), (unseen, (get("compile.pass").points, 0))):
        with Referee(Submission((Cell("forged", source),))) as there:
            verdict = there.examine(get("compile.pass"), seed=1)
        assert (verdict.points, verdict.held) == got


# --------------------------------------------------------------------------- compile.backend, .breaks, .operator


def test_compiled_programs_compute_what_they_do_without_a_compiler():
    exercise = get("compile.backend")
    for case in exercise.cases:
        v = exercise.draw(case, 3, "cpu", "interpreter").args
        alone = [backends.program(v["source"])(*backends.inputs(call)).reshape(-1) for call in v["calls"]]
        for got, want in zip(exercise.oracle(v)["results"], alone, strict=True):
            assert torch.allclose(torch.tensor(got), want, atol=1e-5), case.name


def test_counts_of_a_program_are_what_a_person_counts():
    source = "def f(x, w):\n    x = torch.relu(x @ w) + 1\n    torch._dynamo.graph_break()\n    return x.relu() * x\n"
    oracle = get("compile.backend").oracle
    assert oracle({"source": source, "calls": [{"rows": 2, "seed": 1}] * 2})["counts"] == {
        "matmul": 1, "relu": 2, "add": 1, "mul": 1,
    }  # fmt: skip


def test_the_broken_tower_has_four_kinds_of_breaks_and_the_repaired_one_none():
    exercise = get("compile.breaks")
    case = next(c for c in exercise.cases if c.name == "three layers")
    v = exercise.draw(case, 1, "cpu", "interpreter").args
    _, broken = towers.compiled(towers.Tower, **v)
    assert len(broken["ended"]) == 4 and broken["first"] > 4
    repaired = bank.find("compile.breaks/right/one_mask_for_all_layers").function
    results, graphs = towers.compiled(repaired, **v)
    assert graphs == {"first": 1, "later": 0, "ended": [], "opaque": []}
    assert exercise.accept(results, exercise.oracle(v)["results"], v) is None


def test_an_operator_of_ones_own_is_seen_in_a_graph_and_torchs_are_not():
    """Also where it goes by a name that looks like torch's."""
    library = torch.library.Library("aten", "FRAGMENT")
    library.define("speed_of_light_twice(Tensor x) -> Tensor")
    library.impl("speed_of_light_twice", lambda x: 2 * x, "CPU")
    mine = torch.ops.aten.speed_of_light_twice
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for target in (torch.add, torch.ops.aten.add, torch.ops.aten.add.Tensor, torch.cat, abs, mine, mine.default):
        x = graph.call_function(target, (x, x))
    graph.output(x)
    assert towers._opaque(torch.fx.GraphModule(torch.nn.Module(), graph)) == [
        "aten.speed_of_light_twice",
        "aten.speed_of_light_twice.default",
    ]


def test_what_only_says_that_it_is_torchs_or_pythons_is_seen_in_a_graph():
    """A class and the file of a function's code are text; a generator's `send` runs whatever the generator does."""

    class Whole:
        __module__ = "builtins"
        __name__ = "whole"

        def __call__(self, x):
            return x

    def forged(x):
        return x

    def generator():
        yield

    forged.__code__ = forged.__code__.replace(co_filename=torch.nn.functional.__file__)
    forged.__module__ = "torch.nn.functional"
    layer = torch.nn.Linear(2, 2)
    layer.forward = forged
    found = [Whole(), forged, generator().send, layer, torch.library.custom_op("mine::same", forged, mutates_args=(),
        schema="(Tensor x) -> Tensor")]  # fmt: skip
    assert not any(map(towers._is_own, found))
    functional = torch.nn.functional
    own = [torch.arange, functional.linear, functional.layer_norm, functional.max_pool2d, torch.Tensor.add, getattr]
    assert all(map(towers._is_own, [*own, torch.nn.ReLU(), torch.nn.Linear(2, 2), torch.ops.higher_order.cond]))


@pytest.mark.parametrize(
    "line", ["torch.compiler.allow_in_graph(f)", "from torch._dynamo import nonstrict_trace as n",
    "with torch._C.DisableTorchFunction(): pass", 'getattr(torch.compiler, "allow_in_graph")(f)'],
)  # fmt: skip
def test_what_a_graph_does_not_look_into_is_read_where_the_graph_is_judged(line):
    cells = (Cell("a cell", f"import torch\n{line}\n"),)
    assert [one[:2] for one in past_graphs(cells)] == [("a cell", 2)]
    assert not past_graphs((Cell("a cell", "import torch\nfast = torch.compile(tower)\n"),))


def test_a_tower_that_renames_its_weights_is_told_so():
    class Renamed(towers.Tower):
        def __init__(self, **config):
            super().__init__(**config)
            self.head = self.norm
            del self.norm

    config = {"width": 4, "heads": 2, "layers": 1, "positions": 5, "seed": 1}
    with pytest.raises(TypeError, match="keep their names"):
        towers.make(Renamed, config)


def test_a_kernel_that_gets_memory_with_gaps_refuses_it():
    x = torch.ones(4, 3)
    with pytest.raises(ValueError, match="contiguous"):
        gate_into(x, x, torch.empty(3, 4).t())
    out = torch.empty(4, 3)
    gate_into(x, 2 * x, out)
    assert torch.allclose(out, torch.sigmoid(2 * x))


# ------------------------------------------------------------------------------------------ compile.break_even


def test_a_mean_of_disturbed_times_is_recognised_beside_another_mistake():
    exercise = get("compile.break_even")
    case = next(c for c in exercise.cases if c.name == "disturbed timings")
    for seed in range(6):  # eager or compiled is disturbed
        v = exercise.draw(case, seed, "cpu", "interpreter")
        known = {**v.args, **v.secret}
        wrong = mean_of_settled(known)
        assert "mean" in exercise.accept(wrong, v.secret["want"], known)
        assert "mean" not in exercise.accept(3 * v.secret["want"] + 10**6, v.secret["want"], known)


def _lowest_four(times):
    return sum(sorted(times)[:4]) / 4


def _walked(eager, compiled, steps, middle, extra) -> int | None:
    """As the bank's steady_and_extra, by another steady time and another extra of the first calls."""
    usual = [{shape: middle(times[6:]) for shape, times in way.items()} for way in (eager, compiled)]
    if sum(usual[0][s] for s in steps) < sum(usual[1][s] for s in steps):
        return None
    lead, number, behind, met = 0.0, 0, 0, dict.fromkeys(eager, 0)
    while number < 2 * behind + 8 * len(steps):
        shape = steps[number % len(steps)]
        for sign, way, steady in zip((1, -1), (eager, compiled), usual, strict=True):
            more = extra(way[shape][met[shape]] - steady[shape], steady[shape]) if met[shape] < 6 else 0.0
            lead += sign * (steady[shape] + more)
        met[shape] += 1
        number += 1
        behind = number if lead < 0 else behind
    return behind + 1


EXTRAS = (lambda more, usual: more, lambda more, usual: max(0.0, more), lambda more, usual: more * (more > usual / 2))
MIDDLES = (median, lambda times: sorted(times)[2], lambda times: sorted(times)[3], _lowest_four, min)


@pytest.mark.slow
def test_no_draw_refuses_an_honest_reading_of_the_timings():
    """Each is off by 60 % of what is allowed at most: draws leave half of it to 21 readings, and these are more."""
    exercise, near = get("compile.break_even"), []
    for case in exercise.cases:
        if case.name == MINUTES:
            continue  # 100,000 steps
        for seed in range(71000, 71030):
            v = exercise.draw(case, seed, "cpu", "interpreter")
            want = v.secret["want"]
            for middle, extra in itertools.product(MIDDLES, EXTRAS):
                got = _walked(v.args["eager"], v.args["compiled"], v.args["steps"], middle, extra)
                off = got is not want if None in (got, want) else abs(got - want) > 0.6 * max(2, 0.12 * want)
                near += [(case.name, seed, got, want)] if off else []
    assert near == []


@pytest.mark.parametrize(
    ("eager", "compiled", "steps", "calls"),
    [
        # compiling costs 20 more than a call; 2 are won in each later one
        ({"a": [3.0] * 12}, {"a": [23.0] + [1.0] * 11}, ["a"], 11),
        # eager's own first call costs 9 more
        ({"a": [12.0] + [3.0] * 11}, {"a": [23.0] + [1.0] * 11}, ["a"], 7),
        ({"a": [3.0] * 12}, {"a": [1.0] * 12}, ["a"], 1),
        ({"a": [1.0] * 12}, {"a": [5.0] + [1.5] * 11}, ["a"], None),
        # a minute for a gain of a millisecond
        ({"a": [3.0] * 12}, {"a": [120_001.5] + [1.0] * 11}, ["a"], 60_001),
        # b is compiled when it is met for the first time
        ({"a": [3.0] * 12, "b": [3.0] * 12}, {"a": [11.0] + [1.0] * 11, "b": [7.0] + [1.0] * 11}, ["a", "b"], 8),
    ],
)
def test_break_even_is_what_a_person_adds_up(eager, compiled, steps, calls):
    settled = [{shape: times[-1] for shape, times in way.items()} for way in (eager, compiled)]
    sums = [totals(way, usual, steps) for way, usual in zip((eager, compiled), settled, strict=True)]
    assert calls_until(*sums, steps) == calls


def test_a_default_device_is_no_mode_that_was_left_on():
    torch.set_default_device("cpu")
    try:
        towers._no_mode_is_on()
        with torch.overrides.BaseTorchFunctionMode(), pytest.raises(ValueError, match="entered and not left"):
            towers._no_mode_is_on()
    finally:
        torch.set_default_device(None)


def test_what_is_kept_behind_more_objects_than_are_looked_at_is_an_error(monkeypatch):
    monkeypatch.setattr(rotating, "MOST", 100)
    assert len(list(rotating.reached([[] for _ in range(50)] + [torch.ones(1)]))) == 1
    with pytest.raises(ValueError, match="objects hang on this answer"):
        list(rotating.reached([torch.ones(1)] + [[] for _ in range(200)]))
