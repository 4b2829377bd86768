"""The backward pass in one: which calls may run it, what it promises, and that it is right."""

import re
from dataclasses import replace

import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE
from course_lib.kernels.attention import attention, attention_operator, backward, tuning
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.attention.packed import packed_attention
from course_lib.kernels.attention.sums import room
from course_lib.kernels.attention.terms import row_terms
from course_lib.kernels.attention.tuning import ONE_PASS, ORDERED, OnePass, one_pass_for
from tests.kernels.attention_oracle import oracle

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

HALVES = pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
KEYS = [(columns, causal) for columns in (64, 128) for causal in (False, True)]
PLAIN = {64: OnePass(128, late=True, places=2), 128: OnePass(64, late=True, places=2)}
# The tables, and where they have nothing what fits, for any length: what is not the fastest must be right all the same.
ANY_ORDER = {key: replace(ONE_PASS.get(key, PLAIN[key[0]]), least=1, tiles=1, lengths=True) for key in KEYS}
IN_ORDER = {
    key: replace(ORDERED.get(key, replace(PLAIN[key[0]], order=2, together=8)), least=1, tiles=1, lengths=True)
    for key in KEYS
}
SPILLS = 400  # bytes a thread: in the masked loop, of which causal a tile has two turns, and around the loops
HOPPER_HAS = 232448  # bytes of shared memory for a program


@pytest.fixture
def everywhere(monkeypatch):
    monkeypatch.setattr(tuning, "ONE_PASS", ANY_ORDER)
    monkeypatch.setattr(tuning, "ORDERED", IN_ORDER)


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(tuning, "capability", lambda device: (9, 0))


def three(n_q=4096, n_k=4096, D=128, dtype=torch.bfloat16, B=2, H=16, H_kv=16):
    """q, k and v, whose values do not matter."""
    return [torch.empty(B, h, n, D, dtype=dtype) for h, n in ((H, n_q), (H_kv, n_k), (H_kv, n_k))]


@pytest.fixture
def with_two_entries(monkeypatch, on_hopper):
    one, ordered = OnePass(64), OnePass(64, order=2)
    monkeypatch.setattr(tuning, "ONE_PASS", {(128, False): one, (128, True): one})
    monkeypatch.setattr(tuning, "ORDERED", {(128, True): ordered})
    return one, ordered


def test_additions_in_any_order_have_to_be_allowed(with_two_entries):
    one, ordered = with_two_entries
    assert one_pass_for(False, None, True, *three()) is None
    assert one_pass_for(True, None, True, *three()) is ordered
    assert one_pass_for(False, None, False, *three()) is one
    assert one_pass_for(True, None, False, *three()) is one


def test_torch_can_forbid_them(with_two_entries):
    _, ordered = with_two_entries
    torch.use_deterministic_algorithms(True)
    try:
        assert one_pass_for(False, None, False, *three()) is None
        assert one_pass_for(True, None, False, *three()) is ordered
    finally:
        torch.use_deterministic_algorithms(False)


def test_short_sequences_few_tiles_lengths_and_other_sizes_stay_with_two_passes(with_two_entries):
    one, _ = with_two_entries
    assert one_pass_for(False, None, False, *three(n_q=one.least, n_k=one.least, B=8)) is one
    assert one_pass_for(False, None, False, *three(n_q=one.least - 1)) is None
    assert one_pass_for(False, None, False, *three(n_k=one.least - 1)) is None
    assert one_pass_for(False, None, False, *three(B=1, H_kv=4)) is None, "128 tiles"
    assert one_pass_for(False, torch.ones(2), False, *three()) is None
    for head_size in (64, 72, 120, 104):
        assert one_pass_for(False, None, False, *three(D=head_size)) is None
    q, k, v = three()
    assert one_pass_for(False, None, False, q.float(), k, v) is None
    assert one_pass_for(False, None, False, q, k.mT.contiguous().mT, v) is None


def test_no_other_architecture_and_no_other_triton_runs_it(with_two_entries, monkeypatch):
    monkeypatch.setattr(tuning, "gluon_is_known", lambda: False)
    assert one_pass_for(False, None, False, *three()) is None
    monkeypatch.undo()
    assert one_pass_for(False, None, False, *three()) is None, "this is a CPU"


def test_what_is_added_in_a_fixed_order_is_in_the_table_of_the_fastest_too():
    assert set(ORDERED) <= set(ONE_PASS), "packed attention looks into one of them"
    assert all(entry.order for entry in ORDERED.values())
    assert {columns for columns, _ in ONE_PASS} <= {64, 128}


def test_room_is_made_for_what_the_entry_asks_for():
    q, *_ = three(n_q=100)
    assert room(q, None) == (None, None)
    sums, added = room(q, OnePass(64))
    assert sums.shape == (32, 100, 128) and sums.dtype == torch.float32 and added is None
    assert room(q, OnePass(64, order=1))[1].shape == (64,)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_answer_is_the_same_without_a_gpu(deterministic, make):
    q, k, v, do = make(1, 2, 1, 20, 33, 64, torch.float32)
    results = []
    for given in ({}, {"deterministic": deterministic}):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        results.append(torch.autograd.grad(attention(*leaves, causal=True, **given), leaves, do))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_the_wish_reaches_the_backward_pass_by_every_way(make, monkeypatch):
    from course_lib.kernels.attention import packed, public

    asked = []

    def spy(*args):
        asked.append(args[-1])
        return backward.backward(*args)

    monkeypatch.setattr(public, "backward", spy)
    q, k, v, do = make(1, 2, 2, 17, 17, 16, torch.float32)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    for wish in (True, False):
        attention(*leaves, deterministic=wish).backward(do)
        attention_operator(*leaves, False, 0.25, None, wish)[0].backward(do)
    attention_operator(*leaves, False, 0.25, None)[0].backward(do)
    assert asked == [True, True, False, False, True]
    asked.clear()
    monkeypatch.setattr(packed, "ONE_PASS", {(16, False): None})
    monkeypatch.setattr(packed, "one_pass_for", lambda causal, lengths, wish, *tensors: asked.append(wish))
    qkv = torch.randn(1, 17, 3, 2, 16, device=DEVICE, requires_grad=True)
    for wish in (True, False):
        packed_attention(qkv, deterministic=wish).sum().backward()
        packed.packed_attention_operator(qkv, None, None, wish)[0].sum().backward()
    assert asked == [True, True, False, False]


def test_anything_but_yes_or_no_is_refused_in_words(make):
    q, k, v, _ = make(1, 1, 1, 4, 4, 16, torch.float32)
    with pytest.raises(AssertionError, match="deterministic is True or False, not 0"):
        attention(q, k, v, deterministic=0)


def compiled(D, causal, entry, whole=True, padded=False):
    """What the compiler makes of the kernel, one head of keys for each of queries."""
    from course_lib.kernels.attention.groups import HALF, _layout, _plain
    from course_lib.kernels.attention.groups_onepass import SUMS, one_pass_in_groups_kernel, settings
    from course_lib.kernels.rings import LAUNCH

    fixed = settings(entry, causal) | {"GROUP": 1, "CAUSAL": causal, "WHOLE": whole, "MAIN": D, "SAME_LENGTHS": False}
    signature = {}
    for one in (n for n in one_pass_in_groups_kernel.arg_names if n not in fixed):
        rows = entry.block if one in ("q_desc", "do_desc") else HALF.value
        if one in ("lengths_ptr", "added_ptr") and not {"lengths_ptr": padded, "added_ptr": entry.order}[one]:
            fixed[one] = None
        elif one in ("shift_desc", "delta_desc"):
            signature[one] = f"tensordesc<fp32[1, {entry.block}],{_plain()!r}>"
        elif one == "dq_desc":
            signature[one] = f"tensordesc<fp32[1, 64, 64],{SUMS!r}>"
        elif one.endswith("_desc"):
            signature[one] = f"tensordesc<bf16[1, 1, {rows}, {D}],{_layout(D)!r}>"
        else:
            signature[one] = {"scale": "fp32", "scale_log2": "fp32"}.get(one, "*i32" if "ptr" in one else "i32")
    options = {"num_warps": LAUNCH["num_warps"], "max_registers": LAUNCH["maxnreg"]}
    return compile_kernel(one_pass_in_groups_kernel, signature, fixed, divisible_by_16=False, **options)


@pytest.mark.parametrize(
    ("columns", "causal", "ordered"),
    [
        pytest.param(*key, ordered, marks=[] if (*key, ordered) == (128, False, True) else pytest.mark.slow)
        for key in KEYS
        for ordered in (False, True)
    ],
)
def test_every_configuration_compiles_and_fits(columns, causal, ordered):
    got = compiled(columns, causal, (IN_ORDER if ordered else ANY_ORDER)[columns, causal])
    assert got.shared_bytes <= HOPPER_HAS and got.registers == 168, str(got)
    assert got.spills_bytes <= SPILLS, str(got)
    assert got.instructions["wgmma"] and got.instructions["tma"], str(got)
    assert bool(got.instructions["atomic"]) == ordered, "one thread counts; it is the copy engine that adds"
    assert "cp.reduce.async.bulk.tensor" in got.ptx
    assert {"240", "24"} <= set(re.findall(r"setmaxnreg[^;]*?(\d+);", got.ptx)), "registers move to those who compute"


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_tails_and_lengths_compile_and_fit_too(key, ordered):
    got = compiled(*key, (IN_ORDER if ordered else ANY_ORDER)[key], whole=False, padded=True)
    assert got.shared_bytes <= HOPPER_HAS


SHAPES = [  # B, H, H_kv, n_q, n_k, D
    (1, 1, 1, 1, 1, 128),
    (1, 1, 1, 70, 17, 128),
    (1, 1, 1, 1, 80, 64),
    (1, 2, 2, 300, 1, 128),
    (2, 4, 2, 200, 333, 128),
    (1, 2, 2, 333, 200, 128),
    (1, 8, 1, 257, 129, 64),
    (2, 4, 2, 513, 640, 64),
    (40, 8, 8, 300, 300, 128),
]


@pytest.mark.gpu
@HALVES
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_pass_is_right_for_any_shape(shape, causal, deterministic, kind, make, everywhere):
    q, k, v, do = make(*shape, kind)
    scale = shape[-1] ** -0.5
    for lengths in (None, torch.arange(shape[0], device=DEVICE, dtype=torch.int32) * shape[4] // max(1, shape[0] - 1)):
        o, l = forward(q, k, v, causal, scale, lengths)
        assert one_pass_for(causal, lengths, deterministic, q, k, v)
        got = backward.backward(do, q, k, v, o, l, causal, scale, lengths, None, deterministic)
        want = oracle(q, k, v, do, causal=causal, k_lengths=lengths)
        for name, value in zip(("dq", "dk", "dv"), got):
            exact, bound = want[name]
            assert ((value - exact).abs() <= bound + 1e-6 * exact.abs()).all(), name


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [64, 128])
def test_in_a_fixed_order_every_run_gives_the_same_bits(columns, causal, make, everywhere):
    q, k, v, do = make(8, 16, 8, 1000, 1100, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    first = backward.backward(do, q, k, v, o, l, causal, 0.1)
    for _ in range(8):
        again = backward.backward(do, q, k, v, o, l, causal, 0.1)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [64, 128])
def test_in_any_order_dk_and_dv_are_the_same_and_dq_is_as_close(columns, causal, make, everywhere):
    q, k, v, do = make(2, 4, 4, 1024, 2048, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    runs = [backward.backward(do, q, k, v, o, l, causal, 0.1, None, None, wish) for wish in (True, False, False)]
    exact, _ = oracle(q, k, v, do, causal=causal, scale=0.1)["dq"]
    errors = [((dq - exact).norm() / exact.norm()).item() for dq, _, _ in runs]
    assert max(errors) < 1.01 * min(errors) < 4e-3
    for a, b in zip(runs[1][1:], runs[2][1:]):
        assert torch.equal(a, b)


@pytest.mark.gpu
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("columns", [64, 128])
def test_nothing_is_written_beside_the_outputs(columns, causal, deterministic, make, fenced, everywhere):
    q, k, v, do = make(3, 2, 1, 197, 131, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    dq, dk, dv = (fenced(*x.shape, dtype=x.dtype) for x in (q, k, v))
    backward.write_backward(dq, dk, dv, do, q, k, v, o, l, causal, 0.1, None, None, None, deterministic)
    assert not any(x.isnan().any() for x in (dq, dk, dv))


@pytest.mark.gpu
def test_a_gradient_of_l_and_one_tensor_for_q_k_and_v_come_this_way_too(make, everywhere, monkeypatch):
    from course_lib.kernels.attention import packed

    q, k, v, do = make(1, 4, 4, 256, 256, 64, torch.bfloat16)
    o, l = forward(q, k, v, False, 0.125)
    dl = torch.randn_like(l)
    one = backward.backward(do, q, k, v, o, l, False, 0.125, None, dl, False)
    two = [torch.empty_like(x) for x in (q, k, v)]
    backward.write_gradients(*two, row_terms(l), do, q, k, v, o, l, False, 0.125, None, dl)
    for a, b in zip(one, two):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)
    monkeypatch.setattr(packed, "ONE_PASS", ANY_ORDER)
    qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2).requires_grad_()
    packed_attention(qkv, deterministic=False).backward(do.transpose(1, 2))
    plain = backward.backward(do, q, k, v, o, l, False, 0.125)
    for a, b in zip(qkv.grad.unbind(2), plain):
        torch.testing.assert_close(a.transpose(1, 2), b, rtol=2e-2, atol=2e-3)
