"""capstone.tower: what is true of it is the naive tower, and what its probe sees."""

from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autograder.exercise import get
from autograder.exercises.capstone.tower_formula import _Weighted, honest, step
from autograder.inside.calling import Found
from autograder.inside.probes import assembled
from autograder.judging import tolerance
from course_lib.models.siglip import Sizes, naive
from course_lib.numerics import error

EXERCISE = get("capstone.tower")
TWO = next(case for case in EXERCISE.cases if case.name == "two layers")


def drawn():
    args = EXERCISE.draw(TWO, 1, "cpu", "interpreter").args
    return {
        name: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for name, x in args.items()
    }


def test_the_formula_is_the_naive_tower():
    args = drawn()
    n, patch = args["patches"].shape[1:]
    sizes = Sizes(patch, n, args["places"].shape[1], args["up_w"].shape[1], args["heads"], len(args["up_w"]))
    tower = naive.Tower(sizes).double()
    tower.load_state_dict(assembled._apart({name: args[name] for name in assembled.KINDS}))
    y, gradients = assembled._pass(tower, args["patches"], args["lengths"], args["dy"])
    by_kind = {kind: assembled._together(gradients, name) for kind, name in assembled.KINDS.items()}
    for name, want in {"y": y, **assembled.grouped(by_kind)}.items():
        torch.testing.assert_close(step(args)[name], want.detach(), rtol=1e-9, atol=1e-9)


def test_a_row_that_nearly_cancels_costs_no_honest_tower_its_case():
    """One number moves by one step and roundings fall otherwise: the error of a small row of d_q is four times it."""
    fp16 = next(case for case in EXERCISE.cases if case.name == "fp16")
    args = replace(EXERCISE, alike=False).draw(fp16, 114, "cpu", "interpreter").args
    limits = tolerance.derive(EXERCISE, [(args, step(args))])
    for at in (77, 161, 196):
        moved = args["embed_w"].clone()
        moved.view(-1)[at] = torch.nextafter(moved.view(-1)[at], torch.tensor(8.0, dtype=torch.float16))
        other = args | {"embed_w": moved}
        want = step(other)
        for name, made in honest(other).items():
            assert not tolerance.exceeded(error(made, want[name]), limits[name, torch.float16]), (name, at)


def test_an_honest_tower_makes_delta_of_the_o_that_is_stored():
    def rounded(x):
        return (8 * x).round() / 8

    q, k, v, do = torch.randn(4, 6, 4, generator=torch.Generator().manual_seed(1))
    q.requires_grad_()
    _Weighted.apply(q, k, v, torch.ones(6, 6, dtype=torch.bool), 0.5, rounded, ()).backward(do)
    p = (q.detach() @ k.mT / 2).softmax(-1)
    o = rounded(rounded(p) @ v)
    ds = rounded(p * (do @ v.mT - (o * do).sum(-1, keepdim=True)))
    torch.testing.assert_close(q.grad, ds @ k / 2)


def test_a_tower_that_writes_scores_is_told():
    args = drawn()
    with pytest.raises(Found, match="for all pairs of patches"):
        assembled.stepped(naive.Tower, *args.values())


def test_operators_of_ones_own_are_seen_in_their_parts():
    @torch.library.custom_op("tests_capstone::through", mutates_args=())
    def through(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    seen = []
    with Noted(), assembled._Within(1, Sizes()):
        through(torch.ones(3))
    assert "aten::sin" in seen and "tests_capstone::through" not in seen


def test_operators_on_the_hidden_layer_alone_get_it_with_gaps_between_its_rows():
    @torch.library.custom_op("tests_capstone::noted", mutates_args=())
    def noted(h: torch.Tensor) -> torch.Tensor:
        strides.append(h.stride())
        return h.contiguous() * 2

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    sizes, strides, seen = Sizes(), [], []
    h, other = torch.randn(2, sizes.patches, sizes.mlp), torch.randn(2, sizes.patches, sizes.width)
    with Noted(), assembled._Within(2, sizes, gaps=True):
        assert torch.equal(noted(h), 2 * h)
        noted(other)
    assert strides == [(2 * sizes.patches * sizes.mlp, 2 * sizes.mlp, 1), other.stride()]
    assert "aten::contiguous" not in seen and "aten::clone" in seen  # in parts that a recorder knows


def test_an_operator_is_registered_again_under_its_name():
    def register(factor):
        @torch.library.custom_op("tests_capstone::again", mutates_args=())
        def again(x: torch.Tensor) -> torch.Tensor:
            return x * factor

    register(2.0)
    register(3.0)
    assert torch.ops.tests_capstone.again(torch.ones(1)).item() == 3.0


def test_gradients_that_are_missing_are_told_by_kind():
    names = [one for name in assembled.KINDS.values() for one in assembled._of_layers(name, 2)]
    there = {name: torch.ones(1) for name in names if "before_mlp" not in name and name != "blocks.1.up.bias"}
    stars = ["blocks.*.before_mlp.weight", "blocks.*.before_mlp.bias"]
    assert assembled._missing(there, 2) == [*stars, "blocks.1.up.bias"]
