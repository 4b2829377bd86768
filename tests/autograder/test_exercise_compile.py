"""Unit 02's exercises: what they ask is what torch really does, and the referee sees it from outside."""

import shutil
import sys

import pytest
import torch
import torch._dynamo  # here, so that the bank's processes, forked from this one, have it already

from autograder import bank
from autograder.check import examine
from autograder.exercise import get, of_unit
from autograder.exercises.compile.guards_mistakes import Rule
from autograder.referee import sandbox
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
from autograder.trial import hidden

NAMES = tuple(exercise.name for exercise in of_unit("compile"))
sandboxed = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def _submissions(name, kind):
    for entry in bank.entries([name], [kind]):
        module = bank.load(entry.path)
        yield entry, module, getattr(module, get(name).entry)


# ---------------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize("name", NAMES)
def test_two_right_solutions_and_a_file_for_every_mistake(name):
    files = bank.entries([name])
    assert sum(e.kind == "right" for e in files) >= 2
    assert {e.mistake for e in files if e.kind == "mistakes"} == {m.name for m in get(name).mistakes}


@pytest.mark.parametrize("name", NAMES)
def test_right_is_accepted_and_each_mistake_is_caught_on_its_case(name):
    results = list(bank.run(bank.entries([name]), seed=20260101, quick=True, limit_s=60))
    surprising = [f"{r.entry}: {r.says or 'accepted'}" for r in results if not r.as_expected]
    assert results and not surprising, "\n".join(surprising)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_mistake_is_called_by_its_name_on_another_seed(name):
    wrong = []
    for entry, module, function in _submissions(name, "mistakes"):
        verdict = examine(get(name), function, seed=77)
        named = verdict.diagnosis.mistake if verdict.diagnosis else None
        killed = any(c.name == module.KILLED_BY and not c.right for c in verdict.cases)
        if named != entry.mistake or not killed:
            wrong.append(f"{entry}: named {named}, {'caught' if killed else 'not caught'} by {module.KILLED_BY}")
    assert not wrong, "\n".join(wrong)


@sandboxed
@pytest.mark.parametrize("kind", ["right", "mistakes"])
def test_the_referee_comes_to_the_same_verdict_from_outside(kind):
    chosen = {name: next(_submissions(name, kind)) for name in NAMES}
    cells = tuple(Cell(name, entry.path.read_text()) for name, (entry, _, _) in chosen.items())
    with Referee(Submission(cells)) as there:
        for name, (entry, _, function) in chosen.items():
            outside, inside = there.examine(get(name), seed=21), examine(get(name), function, seed=21)
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


def test_the_rule_is_what_torch_does():
    """Fails when a new torch guards otherwise: then the exercise's text and its known mistakes are to be looked at."""
    exercise = get("compile.guards")
    for case in exercise.cases:
        for seed in range(2):
            v = exercise.draw(case, seed, "cpu", "interpreter").args
            said = Rule(v["dynamic"], v["marked"], v["limit"]).compiles(v["calls"])
            assert exercise.oracle(v)["compiles"] == said, (case.name, seed, v)


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


def test_what_is_no_package_cannot_be_hidden():
    with pytest.raises(sandbox.NoSandbox, match="no package"):
        sandbox.command(["true"], hides=("torch._dynamos",))
