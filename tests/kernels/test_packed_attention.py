"""Attention of q, k and v in one tensor: equal to attention of three, with one gradient that nobody copies."""

import pytest
import torch

from course_lib.device import DEVICE
from course_lib.kernels.attention import attention
from course_lib.kernels.attention import packed as module
from course_lib.kernels.attention.packed import (
    packed_attention,
    packed_attention_operator,
    packed_attention_reference,
)

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

# batch, length, heads, head size. On an H200 of few tiles with lengths it makes two passes, and attention both at once.
SIZES = [
    (3, 37, 2, 24),
    pytest.param((1, 5, 1, 16), marks=pytest.mark.slow),
    (2, 16, 3, 72),
    *(pytest.param((*one, 72), marks=pytest.mark.gpu) for one in ((140, 256, 2), (40, 300, 8), (12, 513, 2))),
]


def lengths_of(batch, length):
    some = [length, 1, length // 2, 3 * length // 4, length - 1, min(128, length), min(129, length)]
    return torch.tensor([some[i % len(some)] for i in range(batch)], device=DEVICE)


def behind(qkv, lengths):
    """(B, N, 1, 1), true for padding."""
    return (torch.arange(qkv.shape[1], device=DEVICE) >= lengths[:, None])[..., None, None]


@pytest.mark.fp32_first
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_gives_the_bits_of_attention_on_three_tensors(sizes, padded, dtype, random):
    B, N, H, D = sizes
    qkv, do = random(B, N, 3, H, D, dtype=dtype).requires_grad_(), random(B, N, H, D, dtype=dtype)
    lengths = lengths_of(B, N) if padded else None
    o = packed_attention(qkv, lengths)
    (got,) = torch.autograd.grad(o, qkv, do)
    three = [x.transpose(1, 2).contiguous().detach().requires_grad_() for x in qkv.unbind(2)]
    want = attention(*three, k_lengths=lengths)
    if padded:  # attention knows of no padding among queries
        do = do.masked_fill(behind(qkv, lengths), 0.0)
    grads = torch.autograd.grad(want, three, do.transpose(1, 2))
    assert o.isfinite().all() and o.is_contiguous() and got.is_contiguous()
    if padded:  # behind the length o may be anything finite
        o, want = (x.masked_fill(behind(qkv, lengths), 0.0) for x in (o, want.transpose(1, 2)))
        want = want.transpose(1, 2)
    assert torch.equal(o, want.transpose(1, 2))
    assert torch.equal(got, torch.stack([x.transpose(1, 2) for x in grads], dim=2))


def test_no_image_and_a_bias_that_is_frozen(random):
    bias = random(96, dtype=torch.float32).requires_grad_()
    none = packed_attention(random(0, 4, 3, 2, 16, dtype=torch.float32), torch.empty(0, device=DEVICE), bias)
    assert none.shape == (0, 4, 2, 16)
    qkv, lengths = random(2, 9, 3, 2, 16, dtype=torch.float32).requires_grad_(), lengths_of(2, 9)
    frozen = packed_attention(qkv, lengths, bias.detach())
    assert torch.equal(frozen, packed_attention(qkv, lengths, bias))
    assert bias.shape not in [x.shape for x in frozen.grad_fn.saved_tensors if x is not None]


def test_the_reference_is_attention_in_fp64(random):
    qkv, lengths = random(3, 37, 3, 2, 24, dtype=torch.float32), lengths_of(3, 37)
    want = packed_attention_reference(qkv.double(), lengths)
    torch.testing.assert_close(packed_attention(qkv, lengths).double(), want, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_any_strides_and_one_that_is_expanded(random):
    qkv, lengths = random(2, 9, 3, 2, 16, dtype=torch.float32).requires_grad_(), lengths_of(2, 9)
    (got,) = torch.autograd.grad(packed_attention(qkv, lengths).sum(), qkv)
    (want,) = torch.autograd.grad(packed_attention_reference(qkv.double(), lengths).sum(), qkv)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    turned = random(2, 16, 2, 9, dtype=torch.float32).permute(0, 3, 2, 1)  # heads last
    (got,) = torch.autograd.grad(packed_attention(qkv, lengths), qkv, turned)
    (want,) = torch.autograd.grad(packed_attention(qkv, lengths), qkv, turned.contiguous())
    assert torch.equal(got, want)


def test_what_lies_behind_the_length_reaches_nothing_and_gets_zeros(random):
    qkv, do = random(2, 9, 3, 2, 16, dtype=torch.float32), random(2, 9, 2, 16, dtype=torch.float32)
    lengths = torch.tensor([4, 9], device=DEVICE)
    qkv.requires_grad_()
    before = packed_attention(qkv, lengths)
    (grad_before,) = torch.autograd.grad(before, qkv, do)
    with torch.no_grad():
        qkv[0, 4:, 1:], qkv[0, 4:, 0] = float("nan"), 1e4  # keys and values; queries
    o, do[0, 4:] = packed_attention(qkv, lengths), 1e4
    (grad,) = torch.autograd.grad(o, qkv, do)
    assert torch.equal(o[0, :4], before[0, :4]) and torch.equal(o[1], before[1]) and torch.equal(grad, grad_before)
    assert o[0, 4:].isfinite().all() and not grad[0, 4:].any() and grad[0, :4].any() and grad[1].any()


@pytest.mark.fp32_first
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_bias_in_qkv_gets_the_sum_of_the_rows_of_its_gradient(sizes, padded, dtype, random):
    B, N, H, D = sizes
    qkv, do = random(B, N, 3, H, D, dtype=dtype), random(B, N, H, D, dtype=dtype)
    bias = random(3 * H * D, dtype=dtype).requires_grad_()
    lengths = lengths_of(B, N) if padded else None
    exact = qkv.double().requires_grad_()
    (want,) = torch.autograd.grad(packed_attention_reference(exact, lengths), exact, do.double())
    leaf = qkv.requires_grad_()
    grad, db = torch.autograd.grad(packed_attention(leaf, lengths, bias), (leaf, bias), do)
    (alone,) = torch.autograd.grad(packed_attention(leaf, lengths), leaf, do)
    assert torch.equal(grad, alone) and db.dtype == dtype
    want, db = want.sum((0, 1)), db.double().view(3, H, D)
    assert not db[1].any() and want[1].abs().max() < 1e-9, "0 on paper"
    # The largest of each row's terms is off by a few units, here of numbers that cancel.
    limit = 8 * torch.finfo(dtype).eps
    for got, exact in ((db[0], want[0]), (db[2], want[2])):
        assert ((got - exact).norm() / exact.norm()).item() < limit


def test_a_sequence_of_no_patches_gives_zeros_and_no_bias_its_gradient(random):
    qkv, bias = random(2, 9, 3, 2, 16, dtype=torch.float32).requires_grad_(), torch.zeros(96, device=DEVICE)
    lengths = torch.tensor([0, 4], device=DEVICE)
    o = packed_attention(qkv, lengths, bias.requires_grad_())
    grad, db = torch.autograd.grad(o.sum(), (qkv, bias))
    assert not o[0].any() and not grad[0].any()
    torch.testing.assert_close(db.view(3, 2, 16)[2], torch.full((2, 16), 4.0, device=DEVICE))


def test_q_k_and_v_and_their_gradients_are_views_of_one_tensor_each(random, monkeypatch):
    qkv, do = random(2, 9, 3, 2, 16, dtype=torch.float32).requires_grad_(), random(2, 9, 2, 16, dtype=torch.float32)
    seen = []
    whole = module.write_gradients

    def watched(dq, dk, dv, terms, do, q, k, v, *rest):
        seen.append([[x.untyped_storage().data_ptr() for x in three] for three in ((dq, dk, dv), (q, k, v))])
        return whole(dq, dk, dv, terms, do, q, k, v, *rest)

    monkeypatch.setattr(module, "write_gradients", watched)
    (grad,) = torch.autograd.grad(packed_attention(qkv), qkv, do)
    assert seen == [[[grad.untyped_storage().data_ptr()] * 3, [qkv.untyped_storage().data_ptr()] * 3]]


def test_the_operator_passes_opcheck(random):
    qkv = random(2, 9, 3, 2, 16, dtype=torch.float32).requires_grad_()
    for lengths in (None, lengths_of(2, 9).int()):
        torch.library.opcheck(packed_attention_operator, (qkv, lengths))
        bias = torch.zeros(96, device=DEVICE, requires_grad=True)
        torch.library.opcheck(packed_attention_operator, (qkv, lengths, bias))


def test_what_it_cannot_do_is_refused(random):
    with pytest.raises(AssertionError, match="batch, length, 3"):
        packed_attention(random(2, 9, 2, 16, dtype=torch.float32))
    with pytest.raises(AssertionError, match="head size 8"):
        packed_attention(random(2, 9, 3, 2, 8, dtype=torch.float32))
    with pytest.raises(AssertionError, match="one length for each of 2"):
        packed_attention(random(2, 9, 3, 2, 16, dtype=torch.float32), lengths_of(3, 9))
    with pytest.raises(AssertionError, match="96 numbers"):
        packed_attention(random(2, 9, 3, 2, 16, dtype=torch.float32), bias=torch.zeros(32))


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
