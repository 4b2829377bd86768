"""capstone.qkv: its formulas against autograd, and what its probe says about ways to keep, copy and multiply."""

import pytest
import torch
import torch.nn.functional as F

from autograder import bank
from autograder.exercise import Draw, get
from autograder.exercises.capstone import packed
from autograder.exercises.capstone.qkv_places import wrong_places
from autograder.inside.calling import Found
from autograder.inside.probes.packing import LARGE, differentiated
from autograder.judging import tolerance
from course_lib.numerics import error

QKV = get("capstone.qkv")
WATCHED = ("memory in passing", "the gradient of a sum")  # cases in which a copy of do would be seen


def drawn(case: str, seed: int = 3) -> dict:
    return QKV.draw(next(c for c in QKV.cases if c.name == case), seed, "cpu", "interpreter").args


def plain(x, w, b, lengths, heads):
    """The same by the library alone."""
    q, k, v = F.linear(x, w, b).unflatten(-1, (3, heads, -1)).transpose(1, 3).unbind(2)
    see = torch.arange(x.shape[1]) < lengths[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=see[:, None, None]).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("case", ["odd lengths", "the gradient of a sum", "large scores", "images of x apart"])
def test_the_formulas_are_what_autograd_makes_of_torchs(case):
    v = drawn(case)
    leaves = [v[name].double().requires_grad_() for name in ("x", "w", "b")]
    o = plain(*leaves, v["lengths"], v["heads"])
    gradients = torch.autograd.grad(o, leaves, v["do"].double().expand_as(o))
    for name, want in zip(packed.NAMES, (o, *gradients), strict=True):
        torch.testing.assert_close(packed.passes(v)[name], want.detach(), rtol=1e-10, atol=1e-10)


def test_a_bias_of_keys_has_no_gradient():
    db = packed.passes(drawn("odd lengths"))["db"].chunk(3)
    assert db[1].abs().max() < 1e-12 < 1e-3 < db[0].abs().max()


@pytest.mark.parametrize("order", packed.HEADS_OF)
def test_rows_are_put_together_as_they_were_taken_apart(order):
    rows = torch.randn(2, 5, 3 * 4 * 8)
    parts = packed.apart(rows, 4, order=order)
    assert parts["q"].shape == (2, 4, 5, 8)
    assert torch.equal(packed.together({f"d{name}": part for name, part in parts.items()}, order=order), rows)


class By(torch.autograd.Function):
    """Attention by torch, with what is kept and done under the test's control."""

    @staticmethod
    def forward(ctx, x, w, b, lengths, heads, way):
        ctx.kept, ctx.way = (x, w, b, lengths, heads), way
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in (x, w, b)]
            o = plain(*leaves, lengths, heads)
        made = o.detach().contiguous()
        if way == "kept":
            ctx.more = x.new_empty(5 * x.numel())
        if way == "strides":
            return made.mT.contiguous().mT
        return made

    @staticmethod
    def backward(ctx, do):
        (x, w, b, _, heads), way = ctx.kept, ctx.way
        if way == "missing":
            return torch.zeros_like(x), torch.zeros_like(w), None, None, None, None
        if way == "stacked":
            torch.stack([x.new_empty(x.shape)] * 3)
        if way == "do copied":
            do.clone()
        if way == "another type":
            x.new_empty(3, *x.shape).float()
        if way == "products":
            [x[0] @ w.mT for _ in range(3)]
        if way == "scores":
            x.new_empty(len(x), heads, 4 * x.shape[1], x.shape[1])
        return torch.zeros_like(x), torch.zeros_like(w), torch.zeros_like(b), None, None, None


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("kept", "beside the arguments are kept for backward"),
        ("strides", "o is not contiguous"),
        ("missing", "there is no gradient of b"),
        ("stacked", "the backward pass copies as many bytes as dq, dk and dv have"),
        ("do copied", r"the backward pass copies \d+ bytes"),
        ("another type", r"the backward pass makes copies in another type, of \d+ bytes"),
        ("products", "the backward pass asks the library for 3 products"),
        ("scores", "of the backward pass .* bytes are alive that it made"),
    ],
)
def test_the_probe_finds_what_is_kept_copied_multiplied_and_held(way, says):
    *args, do = drawn("memory in passing").values()

    def attend(*given):
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes():  # how torch makes o is nobody's business here
            return By.apply(*given, way)

    with pytest.raises(Found, match=says):
        differentiated(attend, *args, do)


@pytest.mark.parametrize("case", WATCHED)
@pytest.mark.parametrize("seed", range(9))
def test_a_copy_of_do_is_looked_for_in_every_draw_in_which_it_costs_one(case, seed):
    args = next(c for c in QKV.cases if c.name == case).draw(Draw(seed, "cpu", "interpreter")).args
    assert args["x"].shape[0] * args["x"].shape[1] >= LARGE
    assert not args["do"].expand(args["x"].shape).is_contiguous()


@pytest.mark.parametrize("case", WATCHED)
def test_a_copy_of_do_is_found(case):
    attend = bank.find("capstone.qkv/mistakes/gradient_copied__contiguous").function
    with pytest.raises(Found, match="the backward pass copies"):
        differentiated(attend, *drawn(case).values())


@pytest.mark.parametrize("case", ["images of x apart", *WATCHED])
def test_the_probe_has_nothing_to_say_about_a_right_answer(case):
    args = list(drawn(case).values())
    made = differentiated(bank.find("capstone.qkv/right/two_passes").function, *args)
    assert [t.shape for t in made] == [args[0].shape, args[0].shape, args[1].shape, args[2].shape]


def test_what_torch_keeps_of_it_is_found():
    with pytest.raises(Found):
        differentiated(plain, *drawn("memory in passing").values())


def test_every_limit_of_fp32_comes_from_outputs_that_are_large_enough():
    """Where none is, it is twice the honest error. What is honest is wide where all scores are far from 0."""
    every = [drawn(case.name) for case in QKV.cases if "interpreter" in case.tiers]
    limits = tolerance.derive(QKV, [(v, QKV.oracle(v)) for v in every])
    fp32 = [by[metric] for (_, dtype), by in limits.items() if dtype == torch.float32 for metric in by]
    assert fp32 and all(limit.lower > 5 * limit.good for limit in fp32), limits


def test_places_in_words():
    args = {"heads": 2}
    wrong = torch.zeros(2, 5, 8, dtype=torch.bool)
    assert wrong_places("o", wrong, args) == ""
    wrong[1, 2:4, 4:] = True
    said = "wrong in 2 of 10 rows: only in image 1, patches 2 to 3 of 0 to 4, only in head 1"
    assert wrong_places("o", wrong, args) == said
    of_w = torch.zeros(24, 8, dtype=torch.bool)
    of_w[8:16] = True
    assert wrong_places("dw", of_w, args) == "wrong in 8 of 24 rows: only in those of k"
    assert wrong_places("db", of_w[:, 0], args) == "wrong in 8 of 24 rows: only in those of k"


@pytest.mark.parametrize("seed", range(8))
def test_a_sum_of_db_in_16_bits_is_far_over_its_limit_in_every_draw(seed):
    """One draw of 100 let it pass: 16 rows after the other, as kernels add them up."""
    case = next(case for case in QKV.cases if case.name == "many rows, fp16")
    args = QKV.draw(case, seed, "cpu", "interpreter").args
    x, w, b, do = (args[name].double() for name in ("x", "w", "b", "do"))
    qkv = (x @ w.mT + b).requires_grad_()  # one head, all patches real
    q, k, v = qkv.split(x.shape[-1], -1)
    o = (q @ k.mT * x.shape[-1] ** -0.5).softmax(-1) @ v
    rows = torch.autograd.grad(o, qkv, do)[0].flatten(0, 1)
    total = torch.zeros(rows.shape[1], dtype=torch.float16)
    for some in rows.split(16):
        total = total + some.sum(0).half()
    want = QKV.oracle(args)
    limits = tolerance.derive(QKV, [(args, want)])["db", torch.float16]
    found = error(total, want["db"])
    assert max(getattr(found, metric) / one.limit for metric, one in limits.items()) > 5
    assert error(rows.sum(0), want["db"]).rms < 1e-10, "the rows are those of the truth"
