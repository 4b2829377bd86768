"""capstone.mask: what is made of lengths alone is found, wherever it is made, and the strong tower is out of reach."""

import shutil
from dataclasses import replace

import pytest
import torch
import torch._dynamo  # here, so that the bank's processes, forked from this one, have it already
from torch.utils.checkpoint import checkpoint

from autograder.call.trial import hidden
from autograder.exercise import get
from autograder.inside.calling import Found
from autograder.inside.probes import hoisting, towers
from autograder.referee import sandbox
from autograder.referee.referee import Referee
from autograder.referee.submission import Cell, Submission
from course_lib.models.siglip import naive, strong
from course_lib.models.siglip.frame import packed, real_patches

EXERCISE = get("capstone.mask")
CONFIG = {"patch": 3, "patches": 5, "width": 4, "mlp": 6, "heads": 2, "layers": 2, "seed": 1}
CALL = {"lengths": [3, 5, 1], "seed": 2}
sandboxed = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


class Hoisted(naive.Tower):
    """Right, and what each layer does besides is for a subclass."""

    def forward(self, patches, lengths):
        real = real_patches(lengths, patches.shape[1])
        x = self.embedded(patches, real)
        hidden = ~real[:, None, None]
        for block in self.blocks:
            x = self.layer(block, x, hidden, lengths)
        return self.pooled(self.norm(x), real)

    def layer(self, block, x, hidden, lengths):
        part, y = block.attention, block.before_attention(x)
        q, k, v = (f(y).unflatten(-1, (part.heads, -1)).transpose(1, 2) for f in (part.q, part.k, part.v))
        weights = self.masked(q @ k.mT * q.shape[-1] ** -0.5, hidden).softmax(-1)
        x = x + part.out((weights @ v).transpose(1, 2).flatten(2))
        return x + block.down(torch.nn.functional.gelu(block.up(block.before_mlp(x)), approximate="tanh"))

    def masked(self, scores, hidden):
        return scores.masked_fill(hidden, float("-inf"))


class InCheckpoints(Hoisted):
    """The mask is made in a graph inside of the graph."""

    def layer(self, block, x, hidden, lengths):
        return checkpoint(block, x, lengths, use_reentrant=False)


class WithAZeroOfTheImages(Hoisted):
    def layer(self, block, x, hidden, lengths):
        zero = (0 * x.detach()[:, 0, 0]).to(lengths.dtype)
        return super().layer(block, x, ~real_patches(lengths + zero, x.shape[1])[:, None, None], lengths)


class ByAssignment(Hoisted):
    def masked(self, scores, hidden):
        bias = torch.zeros_like(scores[:, :1, :1])
        bias[hidden] = float("-inf")
        return scores + bias


class OneForEach(Hoisted):
    """As many operations in a tower of any depth."""

    def forward(self, patches, lengths):
        self.ready = iter([~real_patches(lengths, patches.shape[1])[:, None, None] for _ in range(4)])
        return super().forward(patches, lengths)

    def masked(self, scores, hidden):
        return super().masked(scores, next(self.ready))


class LooksAtImages(Hoisted):
    """In each layer bools and integers, none of lengths."""

    def masked(self, scores, hidden):
        rows = torch.arange(scores.shape[-1]).clamp(min=0)
        return super().masked(scores.masked_fill(scores.isnan(), 0.0) + 0 * rows, hidden)


def again(kind):
    *_, found = hoisting.hoisted(kind, CONFIG, [CALL])
    return found


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (naive.Tower, ["getitem", "getitem", "invert", "lt"]),
        (Hoisted, []),
        pytest.param(InCheckpoints, ["getitem", "getitem", "invert", "lt"], marks=pytest.mark.slow),
        pytest.param(WithAZeroOfTheImages, ["add", "getitem", "getitem", "invert", "lt"], marks=pytest.mark.slow),
        (ByAssignment, ["setitem"]),
        pytest.param(OneForEach, [], marks=pytest.mark.slow),
        pytest.param(LooksAtImages, [], marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_what_a_layer_makes_again_of_lengths_alone_is_found(kind, names):
    found = again(kind)
    assert found["again"] == names
    # a layer whose own mask is read has one more that is read
    assert found["masks"] == (0 if kind in (Hoisted, LooksAtImages) else 1)


def test_results_and_gradients_of_a_compiled_tower_are_those_of_the_naive_one():
    calls = [{**CALL, "padding": ["nan", "nan", "inf"]}, {"lengths": [2, 4], "seed": 3, "type": "int64"}]
    results, gradients, graphs, found = hoisting.hoisted(Hoisted, CONFIG, calls)
    want = EXERCISE.oracle({"config": CONFIG, "calls": calls})
    assert want["gradients"].keys() == dict(naive.Tower(hoisting.Sizes(3, 5, 4, 6, 2, 2)).named_parameters()).keys()
    got = {"results": results, "gradients": gradients, "graphs": graphs, "hoisted": found}
    assert {name: EXERCISE.accept(got[name], true, {}) for name, true in want.items()} == dict.fromkeys(want)


def test_a_tower_that_clears_padding_in_place_is_told_so():
    class InPlace(Hoisted):
        def forward(self, patches, lengths):
            patches[~real_patches(lengths, patches.shape[1])] = 0.0
            return super().forward(patches, lengths)

    with pytest.raises(Found, match="was changed"):
        hoisting.hoisted(InPlace, CONFIG, [CALL])


def test_a_tower_may_hold_q_k_and_v_at_once():
    class Packed(torch.nn.Module):
        def __init__(self, given):
            super().__init__()
            for name, weights in packed(given.state_dict()).items():
                self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(weights))

        def state_dict(self):
            return {name.replace("/", "."): weights for name, weights in super().state_dict().items()}

        def load_state_dict(self, named, strict):
            own = {name.replace(".", "/"): weights for name, weights in packed(named).items()}
            return super().load_state_dict(own, strict)

    given = naive.Tower(hoisting.Sizes(3, 5, 4, 6, 2, 1))
    made = towers.with_weights(Packed(given), given, 4)
    assert all(torch.equal(made.state_dict()[name], weights) for name, weights in packed(given.state_dict()).items())


@pytest.mark.parametrize("kind", [strong.Tower, type("Mine", (strong.Tower,), {})])
def test_the_strong_tower_is_no_answer(kind):
    with pytest.raises(Found, match="write the forward pass yourself"):
        hoisting.make(kind, CONFIG)


def test_one_module_of_a_package_can_be_hidden_in_this_process():
    from course_lib.models import siglip

    with hidden(EXERCISE.hides):
        assert not hasattr(siglip, "strong") and siglip.naive is naive
        with pytest.raises(ImportError):
            from course_lib.models.siglip.strong import Tower  # noqa: F401
    assert siglip.strong is strong


@sandboxed
def test_in_a_sandbox_a_hidden_module_defines_nothing_and_its_neighbours_are_there():
    tries = """
from pathlib import Path
from course_lib.models import siglip
from course_lib.models.siglip import naive, strong
said = Path(strong.__file__).read_text()
compiled = list((Path(naive.__file__).parent / "__pycache__").glob("*"))
assert not hasattr(strong, "Tower") and "scaled_dot_product_attention" not in said and not compiled
class HoistedTower(naive.Tower):
    pass
"""
    with Referee(Submission((Cell("tower", tries),))) as there:
        verdict = there.examine(replace(EXERCISE, cases=EXERCISE.cases[:2]), seed=3)
    assert verdict.points == 0 and verdict.diagnosis.mistake == "made_in_every_layer", verdict


def test_a_hidden_module_is_covered_by_a_file_and_what_is_compiled_of_it_by_a_folder(monkeypatch, tmp_path):
    (tmp_path / "half_hidden/__pycache__").mkdir(parents=True)
    for name in ("__init__", "shown", "answer"):
        (tmp_path / f"half_hidden/{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    line = sandbox.command(["true"], hides=("half_hidden.answer",))
    at = line.index(str(tmp_path / "half_hidden/answer.py"))
    assert line[at - 2 : at] == ["--ro-bind", str(sandbox.INSIDE / "nothing.py")]
    assert line[at + 1 : at + 3] == ["--tmpfs", str(tmp_path / "half_hidden/__pycache__")]
    assert not [part for part in line if part.endswith("shown.py")]
