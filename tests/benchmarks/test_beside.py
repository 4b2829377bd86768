"""Shapes around the table, without a GPU: what is drawn, what is true, who is left out. Nothing is timed here."""

import pytest
import torch

from benchmarks import beside, beside_add_norm, beside_products
from benchmarks import beside_attention as attentions
from benchmarks.against import Red
from benchmarks.beside_attention import Shape
from course_lib.kernels.attention.tuning import IN_ORDER, ONE_PASS, SIDE_BY_SIDE

SMALL = (
    Shape.square(2, 2, 33, 16),
    Shape.square(2, 4, 24, 16, shared=2, causal=True),
    Shape.square(3, 2, 20, 16, padded=True),
    Shape(2, 4, 2, 1, 40, 16),
)


@pytest.fixture
def untimed(monkeypatch):
    """Each call is made once; its peers' names are the row."""

    def measured(case, looks):
        case.check()
        case.ours()
        for peer in case.peers.values():
            peer()
        return {"name": case.name, "peers": sorted(case.peers)}

    monkeypatch.setattr(beside, "measure", measured)
    monkeypatch.setattr(attentions, "DTYPE", torch.float32)  # the interpreter has no bf16


def rows(*shapes):
    return attentions.run(shapes)


def test_there_are_at_least_sixty_rows_and_no_shape_comes_twice():
    shapes = [*attentions.SHAPES, *beside_products.MATMUL, *beside_products.LINEAR_GELU, *beside_add_norm.WIDTHS]
    assert len(set(shapes)) == len(shapes)
    both = sum(1 + (shape.n_q > 1) for shape in attentions.SHAPES)
    assert both + len(beside_products.MATMUL) + len(beside_products.LINEAR_GELU) + 2 * len(beside_add_norm.WIDTHS) >= 60
    assert {shape.size for shape in attentions.SHAPES} >= {16, 32, 40, 48, 64, 72, 80, 96, 128}


@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_ours_and_a_peer_are_held_against_float64_in_both_directions(shape, untimed):
    found = rows(shape)
    directions = ["forward"] if shape.n_q == 1 else ["forward", "backward"]
    assert [row["name"] for row in found] == [f"attention {direction} {shape}" for direction in directions]
    assert all("math" in row["peers"] for row in found)


def test_long_sequences_are_checked_at_their_last_queries(untimed, monkeypatch):
    monkeypatch.setattr(attentions, "EXACT", 200)
    q, k, v, do, lengths = attentions.drawn(shape := Shape.square(1, 1, 40, 16, causal=True))
    want = attentions.exact(shape, q, k, v, do, lengths)
    assert want.keys() == {"o"} and want["o"].shape == (1, 1, 5, 16)
    o = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    assert torch.allclose(want["o"], o[:, :, -5:])


def test_what_ours_refuses_is_a_row_and_what_is_wrong_is_none(untimed, monkeypatch):
    (row,) = rows(Shape.square(1, 1, 16, 8))  # head sizes are 16 to 128
    assert "head size" in row["refused"] and row["kind"] == "attention"
    monkeypatch.setattr(attentions, "attention", lambda q, k, v, **options: q + 0 * (k.sum() + v.sum()))
    with pytest.raises(Red, match="attention is wrong"):
        rows(SMALL[0])


def test_backward_is_looked_at_once_more_where_any_order_of_additions_is_another_kernel(untimed, monkeypatch):
    def spoiled(q, k, v, causal, k_lengths, deterministic=True):
        return ours(q if deterministic else _Spoiled.apply(q), k, v, causal)

    def told(blocks):
        monkeypatch.setattr(attentions, "in_one_for", lambda causal, lengths, wish, *tensors: None if wish else blocks)
        return [row["name"] for row in rows(shape)]

    ours, shape = attentions.attention, Shape.square(2, 2, 33, 16)
    names = [f"attention {way} {shape}" for way in ("forward", "backward", "backward in any order")]
    assert told(ONE_PASS[64, False]) == names
    for faster in (IN_ORDER[64, False], SIDE_BY_SIDE[64, True]):  # a call that allows any order gets it too
        assert told(faster) == names[:2]
    monkeypatch.setattr(attentions, "attention", spoiled)
    with pytest.raises(Red, match="in any order is wrong"):
        told(ONE_PASS[64, False])


class _Spoiled(torch.autograd.Function):
    """q as it is; its gradient is NaN in the first number."""

    @staticmethod
    def forward(ctx, q):
        return q.clone()

    @staticmethod
    def backward(ctx, dq):
        dq = dq.clone()
        dq[0, 0, 0, 0] = float("nan")
        return dq


@pytest.mark.parametrize("few", [True, False])
def test_a_peer_that_fails_only_backward_keeps_its_forward_row(few, untimed, monkeypatch):
    """Also where gradients are not compared, and where backward is refused."""

    def sdpa(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    def refuses(q, k, v):
        if q.requires_grad:
            raise NotImplementedError("no backward")
        return sdpa(q, k, v)

    peers = {"right": sdpa, "NaN": lambda q, k, v: sdpa(_Spoiled.apply(q), k, v), "refuses": refuses}
    monkeypatch.setattr(attentions, "_peers", lambda shape, lengths: peers)
    monkeypatch.setattr(attentions, "EXACT", 2**22 if few else 200)
    forward, backward = rows(Shape.square(2, 2, 33, 16))
    assert forward["peers"] == sorted(peers) and backward["peers"] == ["right"]
    monkeypatch.setattr(attentions, "attention", lambda q, k, v, **options: peers["NaN"](q, k, v))
    with pytest.raises(Red, match=r"dq': nan"):
        rows(Shape.square(2, 2, 33, 16))
