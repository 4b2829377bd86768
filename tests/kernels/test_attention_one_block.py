"""Backward where one block holds all keys of a head: one program makes its three gradients."""

import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels.attention import attention, one_block, tuning
from course_lib.kernels.attention import backward as backward_module
from course_lib.kernels.attention.backward import row_terms, write_gradients
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.attention.one_block import one_block_kernel, write_in_one_block
from course_lib.kernels.attention.packed import packed_attention, packed_attention_reference
from course_lib.kernels.attention.tuning import ONE_BLOCK, OneBlock, one_block_for
from course_lib.kernels.columns import split
from course_lib.kernels.hardware import HOPPER
from tests.kernels.signatures import signature_of

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])


def block(keys: int, queries: int = 16) -> OneBlock:
    """The smallest that holds so many keys, and blocks of queries so small that there are several."""
    return OneBlock(queries, max(16, 1 << (keys - 1).bit_length()), 4, 1)


@pytest.fixture
def in_one_block(fenced, assert_gradients, make):
    """in_one_block(sizes, dtype): all gradients against float64; options as of attention."""

    def run(sizes, dtype, blocks=None, tensors=None, causal=False, k_lengths=None):
        q, k, v, do = tensors or make(*sizes, dtype)
        scale = q.shape[-1] ** -0.5
        _o, l = forward(q, k, v, causal, scale, k_lengths)
        got = [fenced(*x.shape, dtype=x.dtype) for x in (q, k, v)]
        blocks = blocks or block(k.shape[2])
        write_in_one_block(*got, do, q, k, v, l, None, causal, scale, k_lengths, blocks)
        assert_gradients(got, q, k, v, do, causal=causal, k_lengths=k_lengths)
        return got

    return run


@CAUSAL
@pytest.mark.parametrize(
    "sizes",
    [  # batch, heads, heads of keys, queries, keys, head size
        (2, 3, 3, 50, 29, 72),
        (1, 2, 2, 29, 50, 64),
        (2, 2, 2, 16, 16, 16),
        (1, 1, 1, 1, 1, 17),
        (1, 2, 2, 5, 64, 33),
        (1, 1, 1, 40, 3, 128),  # causal, the first queries see no key
    ],
    ids=str,
)
def test_any_number_of_queries_and_few_keys(sizes, causal, dtype, in_one_block):
    in_one_block(sizes, dtype, causal=causal)


@pytest.mark.parametrize("left_there", [float("inf"), float("nan")], ids=str)
@CAUSAL
def test_what_lies_behind_the_length_is_neither_used_nor_moved(causal, left_there, make, in_one_block):
    lengths = torch.tensor([21, 0, 32, 1], device=DEVICE, dtype=torch.int32)
    q, k, v, do = make(4, 2, 2, 37, 32, 72, torch.float16)
    before = in_one_block(None, None, tensors=(q, k, v, do), causal=causal, k_lengths=lengths)
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = left_there, -left_there
    after = in_one_block(None, None, tensors=(q, k, v, do), causal=causal, k_lengths=lengths)
    assert all(torch.equal(a, b) for a, b in zip(before, after))


@CAUSAL
@pytest.mark.parametrize("of_queries", [False, True], ids=["keys padded", "queries too"])
def test_a_gradient_of_l_and_padded_queries_are_those_of_two_passes(of_queries, causal, make, dtype):
    """delta is a sum of p dp here and of o do there: the two differ by the rounding of o, and by nothing else."""
    q, k, v, do = make(3, 2, 2, 40, 40, 40, dtype)
    lengths = torch.tensor([40, 17, 0], device=DEVICE, dtype=torch.int32)
    o, l = forward(q, k, v, causal, 0.2, lengths)
    dl = torch.randn(l.shape, device=DEVICE)
    made = []
    for blocks in (block(40), tuning.TABLE[64, causal].dkdv if TIER == "gpu" else tuning.INTERPRETED.dkdv):
        got = [torch.empty_like(x) for x in (q, k, v)]
        write_gradients(*got, row_terms(l), do, q, k, v, o, l, causal, 0.2, lengths, dl, blocks, of_queries)
        made.append(got)
    unit = max(torch.finfo(dtype).eps, 1e-6)
    for one, two in zip(*made):
        torch.testing.assert_close(one, two, rtol=4 * unit, atol=8 * unit * two.abs().max().item())
    if of_queries:
        assert all((made[0][0][b, :, n:] == 0).all() for b, n in enumerate(lengths))


def test_strides_may_be_anything(make, in_one_block, dtype):
    tensors = make(2, 2, 2, 40, 30, 40, dtype)
    turned = [x.mT.contiguous().mT for x in tensors]
    assert all(
        torch.equal(a, b)
        for a, b in zip(in_one_block(None, None, tensors=turned), in_one_block(None, None, tensors=tensors))
    )
    q, k, v, do = tensors
    _o, l = forward(q, k, v, True, 0.1)
    into = [torch.empty_like(x).mT.contiguous().mT for x in (q, k, v)]
    straight = [torch.empty_like(x) for x in (q, k, v)]
    for out in (into, straight):
        write_in_one_block(*out, do, q, k, v, l, None, True, 0.1, None, block(30))
    assert all(torch.equal(a, b) for a, b in zip(into, straight))


def test_without_queries_the_gradients_of_keys_are_0(make, monkeypatch):
    q, k, v, do = make(2, 2, 2, 0, 20, 16, torch.float16)
    dq, dk, dv = (torch.full_like(x, float("nan")) for x in (q, k, v))
    l = torch.empty(2, 2, 0, device=DEVICE)
    write_in_one_block(dq, dk, dv, do, q, k, v, l, None, False, 1.0, None, block(20))
    assert (dk == 0).all() and (dv == 0).all()
    nobody = [x[:0] for x in (dq, dk, dv, do, q, k, v, l)]
    monkeypatch.setattr(one_block, "launch", None)  # no GPU launches 0 programs
    write_in_one_block(*nobody, None, False, 1.0, None, block(20))


@pytest.mark.parametrize(("n_k", "H_kv", "said"), [(33, 2, "33 keys"), (20, 1, "keys of its own")])
def test_what_does_not_fit_is_refused(n_k, H_kv, said, make):
    q, k, v, do = make(1, 2, H_kv, 8, n_k, 16, torch.float16)
    with pytest.raises(AssertionError, match=said):
        write_in_one_block(q, k, v, do, q, k, v, q[..., 0].float(), None, False, 1.0, None, OneBlock(16, 32, 4, 1))


ENTRIES = {(columns, most): blocks for columns, entries in ONE_BLOCK.items() for most, blocks in entries}
HEADS = {16: 16, 32: 32, 48: 40, 64: 64, 80: 72, 96: 96, 128: 128}


def meta(B=2, H=4, H_kv=4, n_q=64, n_k=64, D=64, dtype=torch.bfloat16):
    return [torch.empty(B, h, n, D, dtype=dtype, device="meta") for h, n in ((H, n_q), (H_kv, n_k))]


@pytest.mark.parametrize(("columns", "most"), ENTRIES, ids=str)
def test_on_hopper_the_longer_of_queries_and_keys_decides(columns, most, monkeypatch):
    monkeypatch.setattr(tuning, "capability", lambda device: HOPPER)
    want, D = ENTRIES[columns, most], HEADS[columns]
    assert most <= want.n
    for n_q, n_k in ((most, most), (most, 1), (1, most)):
        assert one_block_for(*meta(n_q=n_q, n_k=n_k, D=D)) is want
    longer = one_block_for(*meta(n_q=most + 1, n_k=most, D=D))
    assert longer == ENTRIES.get((columns, min((m for c, m in ENTRIES if c == columns and m > most), default=0)))
    assert one_block_for(*meta(n_q=most, n_k=most, D=D, H_kv=2)) is None
    assert one_block_for(*meta(n_q=most, n_k=most, D=D, dtype=torch.float32)) is None
    monkeypatch.setattr(tuning, "capability", lambda device: (10, 0))
    assert one_block_for(*meta(n_q=most, n_k=most, D=D)) is None


@pytest.fixture
def everywhere(monkeypatch):
    """Heads of up to 64 keys go backward in one block; the list says which calls did."""
    ran, true = [], backward_module.write_in_one_block

    def watched(*given):
        ran.append(given[12])
        return true(*given)

    monkeypatch.setattr(
        backward_module, "one_block_for", lambda q, k: block(64) if max(q.shape[2], k.shape[2]) <= 64 else None
    )
    monkeypatch.setattr(backward_module, "write_in_one_block", watched)
    return ran


@CAUSAL
def test_attention_goes_backward_in_one_block(causal, everywhere, make, check, dtype):
    check(*make(2, 2, 2, 33, 21, 40, dtype), causal=causal)
    lengths = torch.tensor([21, 4], device=DEVICE)
    check(*make(2, 2, 2, 33, 21, 40, dtype), causal=causal, k_lengths=lengths)
    assert everywhere == [block(64)] * 2
    check(*make(1, 2, 2, 65, 21, 16, dtype), causal=causal)
    assert len(everywhere) == 2


@pytest.mark.parametrize("lengths", [None, (20, 7)], ids=["whole", "padded"])
def test_packed_attention_goes_backward_in_one_block(lengths, everywhere, random, dtype):
    lengths = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    qkv, do = random(2, 20, 3, 2, 24, dtype=dtype), random(2, 20, 2, 24, dtype=dtype)
    given, exact = qkv.clone().requires_grad_(), qkv.double().requires_grad_()
    packed_attention(given, lengths).backward(do)
    packed_attention_reference(exact, lengths).backward(do.double())
    unit = max(torch.finfo(dtype).eps, 1e-6)
    torch.testing.assert_close(given.grad.double(), exact.grad, rtol=8 * unit, atol=16 * unit)
    assert everywhere == [block(64)]


# Before and behind the loop; .49 of two passes' time all the same, as blocks of 32 queries, which spill nothing.
SPILLS = {(128, 64): 300, (96, 64): 150}


def compiled(D, blocks, causal=True, padded=False):
    main, rest = split(D)
    fixed = {"HEAD": D, "MAIN": main, "REST": rest, "UNIT": 8, "WIDE": False, "CAUSAL": causal, "SAME_LENGTHS": False}
    fixed |= {"BLOCK_M": blocks.m, "BLOCK_N": blocks.n, "PRECISION": "tf32", "dl_ptr": None}
    if not padded:
        fixed["lengths_ptr"] = None
    types = {name: ("i32", "i32", "i32", 1) for name in one_block_kernel.arg_names if name.startswith("stride")}
    types |= {"l_ptr": "*fp32", "lengths_ptr": "*i32", "scale": "fp32", "scale_log2": "fp32"}
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages, "max_registers": blocks.registers}
    return compile_kernel(one_block_kernel, signature_of(one_block_kernel, fixed, types), fixed, "H200", **options)


@pytest.mark.parametrize(
    ("columns", "most"),
    [one if one in ((64, 64), (128, 128)) else pytest.param(*one, marks=pytest.mark.slow) for one in ENTRIES],
    ids=str,
)
def test_every_entry_compiles_and_fits_and_adds_to_nobodys_sum(columns, most):
    got = compiled(HEADS[columns], ENTRIES[columns, most])
    assert got.fits and got.spills_bytes <= SPILLS.get((columns, most), 100), str(got)
    assert got.instructions["wgmma"] or got.instructions["mma"], str(got)
    assert not got.instructions["atomic"], str(got)


@pytest.mark.gpu
@CAUSAL
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("columns", "most"), ENTRIES, ids=str)
def test_every_entry_is_right_and_has_the_same_bits_on_every_run(
    columns, most, kind, padded, causal, make, in_one_block
):
    for n in (most, most - 7):
        lengths = torch.randint(0, n + 1, (5,), device=DEVICE, dtype=torch.int32) if padded else None
        q, k, v, do = make(5, 16, 16, n, n, HEADS[columns], kind)
        for b, length in enumerate(() if lengths is None else lengths):
            k[b, :, length:], v[b, :, length:] = float("nan"), float("inf")
        blocks = ENTRIES[columns, most]
        if tuning.capability(q.device) == HOPPER:
            assert one_block_for(q, k) is blocks
        first = in_one_block(None, None, blocks, (q, k, v, do), causal=causal, k_lengths=lengths)
        for _ in range(3):
            again = in_one_block(None, None, blocks, (q, k, v, do), causal=causal, k_lengths=lengths)
            assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.gpu
def test_on_this_gpu_attention_takes_it(make, check, monkeypatch):
    if tuning.capability(torch.device("cuda")) != HOPPER:
        pytest.skip("the table is of an H100 and an H200")
    ran, true = [], backward_module.write_in_one_block
    monkeypatch.setattr(backward_module, "write_in_one_block", lambda *given: ran.append(1) or true(*given))
    check(*make(3, 4, 4, 77, 77, 128, torch.bfloat16), causal=True)
    attention(*[x.requires_grad_() for x in make(3, 4, 4, 49, 49, 32, torch.bfloat16)[:3]]).sum().backward()
    assert len(ran) == 2
