"""Backward where tiles are few: both passes in one launch."""

from dataclasses import replace

import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels.attention import backward as backward_module
from course_lib.kernels.attention import tuning
from course_lib.kernels.attention.backward import row_terms, write_gradients
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.attention.packed import packed_attention
from course_lib.kernels.attention.side_by_side import side_by_side_kernel, write_side_by_side
from course_lib.kernels.attention.tuning import IN_ORDER, ONE_PASS, SIDE_BY_SIDE, Blocks, SideBySide, side_by_side_for
from course_lib.kernels.columns import split
from course_lib.kernels.hardware import HOPPER
from tests.kernels.signatures import signature_of

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])
FEW = SideBySide(64, 64, 4, 3) if TIER == "gpu" else SideBySide(16, 32, 4, 1)
FEW_OF_FP32 = SideBySide(32, 32, 4, 1)  # which has no tensor cores
SIZES = [  # batch, heads, heads of keys, queries, keys, head size
    (2, 3, 3, 50, 69, 72),
    (1, 4, 2, 69, 50, 64),
    (2, 2, 2, 16, 16, 16),
    (1, 2, 1, 1, 90, 33),
    (1, 2, 2, 40, 3, 40),  # causal, the first queries see no key
]


def few(dtype):
    return FEW_OF_FP32 if TIER == "gpu" and dtype == torch.float32 else FEW


@pytest.fixture
def side_by_side(fenced, assert_gradients, make):
    """side_by_side(sizes, dtype): all gradients against float64; options as of attention."""

    def run(sizes, dtype, tensors=None, causal=False, k_lengths=None, blocks=None):
        q, k, v, do = tensors or make(*sizes, dtype)
        blocks = blocks or few(q.dtype)
        scale = q.shape[-1] ** -0.5
        o, l = forward(q, k, v, causal, scale, k_lengths)
        got = [fenced(*x.shape, dtype=x.dtype) for x in (q, k, v)]
        write_side_by_side(*got, *row_terms(l), do, q, k, v, o, l, None, causal, scale, k_lengths, blocks)
        assert_gradients(got, q, k, v, do, causal=causal, k_lengths=k_lengths)
        return got

    return run


@CAUSAL
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_any_shape(sizes, causal, dtype, side_by_side):
    side_by_side(sizes, dtype, causal=causal)


@pytest.mark.parametrize("left_there", [float("inf"), float("nan")], ids=str)
@CAUSAL
def test_what_lies_behind_the_length_is_neither_used_nor_moved(causal, left_there, make, side_by_side):
    lengths = torch.tensor([41, 0, 64, 1], device=DEVICE, dtype=torch.int32)
    q, k, v, do = make(4, 2, 2, 37, 64, 72, torch.float16)
    before = side_by_side(None, None, (q, k, v, do), causal, lengths)
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = left_there, -left_there
    after = side_by_side(None, None, (q, k, v, do), causal, lengths)
    assert all(torch.equal(a, b) for a, b in zip(before, after))


@CAUSAL
@pytest.mark.parametrize("sizes", SIZES[:2], ids=str)
def test_the_gradients_are_those_of_two_passes_in_the_same_blocks(sizes, causal, make, dtype, monkeypatch):
    """With a gradient of L. To the last bit where shift and delta are; on a GPU these are summed in another order."""
    q, k, v, do = make(*sizes, dtype)
    o, l = forward(q, k, v, causal, 0.2)
    dl = torch.randn(l.shape, device=DEVICE)
    ours = few(dtype)
    plain = Blocks(ours.m, ours.n, ours.warps, ours.stages)
    monkeypatch.setattr(backward_module, "blocks_for", lambda *_: plain)
    made = []
    for blocks in (ours, plain):
        got, terms = [torch.empty_like(x) for x in (q, k, v)], row_terms(l)
        write_gradients(*got, terms, do, q, k, v, o, l, causal, 0.2, None, dl, blocks)
        made.append((*got, *terms))
    if TIER != "gpu":
        assert all(torch.equal(one, two) for one, two in zip(*made))
    unit = max(torch.finfo(dtype).eps, 1e-6)
    for one, two in zip(*made):
        seen = two.isfinite()
        assert torch.equal(one[~seen], two[~seen])
        largest = two[seen].abs().max().item()
        torch.testing.assert_close(one[seen], two[seen], rtol=2 * unit, atol=2 * unit * largest)


def test_strides_may_be_anything(make, side_by_side):
    tensors = make(2, 2, 2, 40, 50, 40, torch.float32)
    turned = [x.mT.contiguous().mT for x in tensors]
    pairs = zip(side_by_side(None, None, turned, True), side_by_side(None, None, tensors, True))
    assert all(torch.equal(a, b) for a, b in pairs)


def test_without_queries_or_keys_what_is_left_is_0(make):
    for n_q, n_k in ((0, 20), (20, 0)):
        q, k, v, do = make(2, 2, 2, n_q, n_k, 16, torch.float32)
        got = [torch.full_like(x, float("nan")) for x in (q, k, v)]
        l = torch.full(q.shape[:3], -float("inf"), device=DEVICE)
        write_side_by_side(*got, *row_terms(l), do, q, k, v, q, l, None, False, 1.0, None, few(q.dtype))
        assert all((x == 0).all() for x in got)


@pytest.fixture
def a_table(monkeypatch):
    """One entry: 2 programs a multiprocessor, 1 in the place of one pass in order, 0.6 where any order is allowed."""
    entry = replace(FEW, most=2.0, most_for_one=1.0, most_for_any=0.6)
    monkeypatch.setattr(tuning, "SIDE_BY_SIDE", {(64, False): entry, (64, True): entry})
    monkeypatch.setattr(tuning, "capability", lambda device: HOPPER)
    monkeypatch.setattr(tuning, "multiprocessors", lambda device: 10)
    return entry


def meta(tiles, H=1, H_kv=1, D=64, dtype=torch.bfloat16):
    """q and k of so many tiles of queries and of keys."""
    return [torch.empty(1, h, n * tiles, D, dtype=dtype, device="meta") for h, n in ((H, FEW.m), (H_kv, FEW.n))]


def test_the_number_of_programs_decides(a_table):
    for one, most in ((None, 10), (IN_ORDER[64, True], 5), (ONE_PASS[64, True], 3)):
        assert side_by_side_for(True, one, *meta(most)) is a_table
        assert side_by_side_for(True, one, *meta(most + 1)) is None
    assert side_by_side_for(True, None, *meta(5, H=2, H_kv=2)) is a_table
    assert side_by_side_for(True, None, *meta(6, H=2, H_kv=2)) is None
    for other in ({"D": 128}, {"dtype": torch.float32}, {"H": 2}):
        assert side_by_side_for(True, None, *meta(2, **other)) is None


@CAUSAL
def test_attention_takes_it_in_the_place_of_two_passes(causal, monkeypatch, make, check, dtype):
    ran, true = [], backward_module.write_side_by_side
    monkeypatch.setattr(backward_module, "write_side_by_side", lambda *given: ran.append(given[-1]) or true(*given))
    monkeypatch.setattr(backward_module, "one_block_for", lambda q, k: None)
    instead_of = []

    def chosen(causal, one, q, k):
        instead_of.append(one)
        return few(q.dtype)

    monkeypatch.setattr(backward_module, "side_by_side_for", chosen)
    check(*make(1, 2, 2, 33, 41, 40, dtype), causal=causal)
    assert ran == [few(dtype)] and instead_of == [None]


@CAUSAL
def test_who_takes_one_pass_is_asked_whether_side_by_side_is_faster(causal, monkeypatch, make):
    one, q = IN_ORDER[64, causal], make(1, 1, 1, 16, 16, 64, torch.float16)[0]
    monkeypatch.setattr(backward_module, "one_pass_for", lambda *_: one)
    monkeypatch.setattr(backward_module, "room", lambda q, k, blocks: blocks)
    written = []
    monkeypatch.setattr(backward_module, "write_gradients", lambda *given: written.append((given[-3], given[-1])))

    def write(blocks=None):
        backward_module.write_backward(*(q,) * 8, q[..., 0], causal, 0.1, None, None, blocks)
        return written.pop()

    monkeypatch.setattr(backward_module, "side_by_side_for", lambda causal, one, q, k: None)
    assert write() == (one, one)
    monkeypatch.setattr(backward_module, "side_by_side_for", lambda causal, given, q, k: FEW if given is one else None)
    assert write() == (FEW, FEW), "and so the room"
    assert write(one) == (one, one), "what the caller says"


def test_packed_attention_with_lengths_asks_for_two_passes(monkeypatch, random):
    monkeypatch.setattr(backward_module, "one_block_for", lambda q, k: None)
    monkeypatch.setattr(backward_module, "side_by_side_for", lambda *_: few(torch.float32))
    qkv = random(2, 20, 3, 2, 24, dtype=torch.float32).requires_grad_()
    packed_attention(qkv, torch.tensor([20, 7], device=DEVICE)).sum().backward()
    assert qkv.grad.isfinite().all()


def test_queries_with_lengths_are_refused(make):
    q, k, v, do = make(1, 1, 1, 8, 8, 16, torch.float32)
    l = q[..., 0].contiguous()
    lengths = torch.tensor([4], device=DEVICE, dtype=torch.int32)
    with pytest.raises(AssertionError, match="no lengths of queries"):
        write_gradients(q, k, v, row_terms(l), do, q, k, v, q, l, False, 1.0, lengths, None, FEW, True)


HEADS = {16: 16, 32: 32, 48: 40, 64: 64, 80: 72, 96: 96, 128: 128}  # a head size of each number of columns
ENTRIES = [key if key == (64, True) else pytest.param(*key, marks=pytest.mark.slow) for key in SIDE_BY_SIDE]


@pytest.mark.parametrize(("columns", "causal"), ENTRIES, ids=str)
@pytest.mark.parametrize("padded", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["whole", "padded"])
def test_the_table_compiles_and_fits_and_spills_next_to_nothing(columns, causal, padded):
    D, blocks = HEADS[columns], SIDE_BY_SIDE[columns, causal]
    main, rest = split(D)
    fixed = {"HEAD": D, "MAIN": main, "REST": rest, "UNIT": 8, "WIDE": False, "TMA": True, "CAUSAL": causal, "GROUP": 1}
    fixed |= {"WHOLE": not padded, "BLOCK_M": blocks.m, "BLOCK_N": blocks.n, "PRECISION": "tf32"}
    if not padded:
        fixed["lengths_ptr"] = None
    types = {name: ("i32", "i32", "i32", 1) for name in side_by_side_kernel.arg_names if name.startswith("stride_")}
    types |= {f"{x}_tiles": f"tensordesc<bf16[1, 1, 64, {main}]>" for x in ("q", "k", "v", "do")}
    types |= {f"{x}_tiles": "tensordesc<fp32[1, 64]>" for x in ("shift", "delta")}
    types |= dict.fromkeys(("shift_ptr", "delta_ptr"), "*fp32") | {"lengths_ptr": "*i32"}
    types |= {"sizes": ("i32",) * 6, "scales": ("fp32", "fp32")}
    signature = signature_of(side_by_side_kernel, fixed, types)
    options = {"num_warps": blocks.warps, "num_stages": blocks.stages}
    got = compile_kernel(side_by_side_kernel, signature, fixed, "H200", **options)
    assert got.fits and got.spills_bytes <= 64, str(got)
    if columns == 64 and causal and not padded:
        assert got.registers <= 168, f"three programs fit on a multiprocessor: {got}"
    assert got.instructions["wgmma"] and got.instructions["tma"] and not got.instructions["atomic"], str(got)


@pytest.mark.gpu
@CAUSAL
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", HEADS)
def test_the_table_is_right_on_a_gpu_with_the_same_bits_on_every_run(columns, kind, padded, causal, make, side_by_side):
    for n_q, n_k in ((1024, 1024), (300, 517)):
        lengths = torch.tensor([n_k, n_k // 3, 0], device=DEVICE, dtype=torch.int32) if padded else None
        q, k, v, do = make(3, 8, 8, n_q, n_k, HEADS[columns], kind)
        for b, length in enumerate(() if lengths is None else lengths):
            k[b, :, length:], v[b, :, length:] = float("nan"), float("inf")
        blocks = SIDE_BY_SIDE[columns, causal]
        first = side_by_side(None, None, (q, k, v, do), causal, lengths, blocks)
        for _ in range(3):
            again = side_by_side(None, None, (q, k, v, do), causal, lengths, blocks)
            assert all(torch.equal(a, b) for a, b in zip(first, again))
