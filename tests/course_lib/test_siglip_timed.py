"""The block that the clock compares others with: the strong tower's, which is the naive one's but for roundings."""

import inspect

import pytest
import torch

from course_lib.device import DEVICE, TIER
from course_lib.models.siglip import naive, strong, timed
from course_lib.models.vision import Sizes

# Nothing is a multiple of anything: 7 patches, a hidden layer of 31, three heads of 24.
ODD = Sizes(patch=5, patches=7, width=72, mlp=31, heads=3)
LENGTHS = (7, 1, 3, 6)
NORMS = {"before_attention": "n1", "before_mlp": "n2"}


def named(of: str) -> str:
    """before_attention.weight -> n1_w, attention.out.bias -> out_b."""
    module, _, kind = of.rpartition(".")
    last = module.rpartition(".")[2]
    return f"{NORMS.get(last, last)}_{kind[0]}"


def packed(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """By the names of the entry, q, k and v in one."""
    made = {named(name): t for name, t in tensors.items()}
    for kind in "wb":
        made[f"qkv_{kind}"] = torch.cat([made.pop(f"{part}_{kind}") for part in "qkv"])
    return made


def block(kind, dtype, sizes=ODD, lengths=LENGTHS):
    """A block, its input and lengths, and the gradient of its result."""
    torch.manual_seed(0)
    made = kind.Block(sizes).to(DEVICE, dtype)
    for p in made.parameters():
        torch.nn.init.normal_(p, 0.1, 0.3)
    x, dy = (torch.randn(len(lengths), sizes.patches, sizes.width).to(DEVICE, dtype) for _ in "12")
    return made, x, torch.tensor(lengths, device=DEVICE, dtype=torch.int32), dy


def by_autograd(made, x, how, dy):
    """y, dx and the gradients of the parameters, by the entry's names."""
    x = x.clone().requires_grad_()
    y = made(x, how)
    dx, *rest = torch.autograd.grad(y, [x, *made.parameters()], dy)
    names = [name for name, _ in made.named_parameters()]
    gradients = packed(dict(zip(names, rest, strict=True)))
    return {"y": y.detach(), "dx": dx} | {f"d_{name}": t for name, t in gradients.items()}


def by_step(made, x, lengths, dy, heads=ODD.heads):
    """The same from `block_step`, whose outputs are NaN before the call."""
    given = {"x": x, "lengths": lengths, "dy": dy, "heads": heads} | packed(dict(made.named_parameters()))
    args = {}
    for name in inspect.signature(timed.block_step).parameters:
        like = {"y": "x"}.get(name) or name.removeprefix("d_").removeprefix("d" if name == "dx" else "")
        args[name] = given[name] if name in given else torch.full_like(given[like], float("nan"))
    timed.block_step(**args)
    return {name: t for name, t in args.items() if name not in given}


def furthest(got, want):
    assert got.keys() == want.keys()
    largest = max(t.norm() for name, t in want.items() if name.startswith("d_"))
    return max(((got[name] - t).norm() / max(t.norm(), 1e-3 * largest)).item() for name, t in want.items())


@pytest.mark.parametrize("lengths", [LENGTHS, (7, 7), (1, 1, 1), (2,)], ids=str)
def test_it_is_the_naive_block(lengths):
    made, x, lengths, dy = block(naive, torch.float64, lengths=lengths)
    assert furthest(by_step(made, x, lengths, dy), by_autograd(made, x, lengths, dy)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_the_strong_block_but_for_roundings(dtype):
    made, x, lengths, dy = block(strong, dtype)
    real = torch.arange(ODD.patches, device=DEVICE) < lengths[:, None]
    mask = torch.zeros_like(real, dtype=dtype).masked_fill(~real, float("-inf"))[:, None, None]
    limit = 1e-5 if dtype == torch.float32 else 3e-2
    assert furthest(by_step(made, x, lengths, dy), by_autograd(made, x, mask, dy)) < limit


def test_inputs_stay_as_they_are_and_nothing_asks_for_gradients():
    made, x, lengths, dy = block(strong, torch.float32)
    before = [t.clone() for t in (x, lengths, dy, *made.parameters())]
    results = by_step(made, x, lengths, dy)
    assert all(torch.equal(a, b) for a, b in zip(before, (x, lengths, dy, *made.parameters()), strict=True))
    assert not any(t.requires_grad or t.isnan().any() for t in results.values())
    assert all(p.grad is None for p in made.parameters())


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_it_runs_where_gradients_are_off_too(around):
    made, x, lengths, dy = block(strong, torch.float32)
    with around():
        results = by_step(made, x, lengths, dy)
    assert not any(t.isnan().any() for t in results.values())


@pytest.mark.gpu
@pytest.mark.skipif(TIER != "gpu", reason="needs a GPU")
def test_attention_of_the_widths_that_are_timed_does_not_fall_back_to_the_plain_one(monkeypatch):
    monkeypatch.setattr(timed, "BACKENDS", timed.BACKENDS[:2])
    sizes = Sizes.so400m(layers=1)
    made, x, lengths, dy = block(strong, torch.bfloat16, sizes, (256, 128, 200))
    assert not any(t.isnan().any() for t in by_step(made, x, lengths, dy, sizes.heads).values())
