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
from course_lib.kernels.attention.tuning import ONE_PASS, OnePass, one_pass_for
from tests.kernels.attention_oracle import oracle

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

HALVES = pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
KEYS = sorted(ONE_PASS)
EVERYWHERE = {key: replace(entry, least=1, tiles=1) for key, entry in ONE_PASS.items()}
# Bytes a thread, with either Triton, mostly around the loops. In the loop of whole blocks nothing is spilled at 128; at
# 64 one number is read back.
SPILLS = {(64, False): 200, (64, True): 240, (128, False): 64, (128, True): 120}
HOPPER_HAS = 232448  # bytes of shared memory for a program


@pytest.fixture
def everywhere(monkeypatch):
    """Calls of any size may run in one pass. What ran: True for each backward pass in one, False for each in two."""
    ran = []

    def spy(*args, _true=backward.write_gradients):
        ran.append(isinstance(args[14], OnePass))
        return _true(*args)

    monkeypatch.setattr(tuning, "ONE_PASS", EVERYWHERE)
    monkeypatch.setattr(backward, "write_gradients", spy)
    return ran


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(tuning, "capability", lambda device: (9, 0))


def three(n_q=4096, n_k=4096, D=128, dtype=torch.bfloat16, B=2, H=16, H_kv=16):
    """q, k and v, whose values do not matter."""
    return [torch.empty(B, h, n, D, dtype=dtype) for h, n in ((H, n_q), (H_kv, n_k), (H_kv, n_k))]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_additions_in_any_order_have_to_be_allowed(key, on_hopper):
    columns, causal = key
    assert one_pass_for(causal, None, True, *three(D=columns)) is None
    assert one_pass_for(causal, None, False, *three(D=columns)) is ONE_PASS[key]


def test_torch_can_forbid_them(on_hopper):
    torch.use_deterministic_algorithms(True)
    try:
        assert one_pass_for(False, None, False, *three()) is None
    finally:
        torch.use_deterministic_algorithms(False)
    assert one_pass_for(False, None, False, *three())


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_two_passes_stay_below_the_length_from_which_one_was_faster(key, on_hopper):
    (columns, causal), entry = key, ONE_PASS[key]
    sizes = {"D": columns, "B": 8}
    assert one_pass_for(causal, None, False, *three(entry.least, entry.least, **sizes)) is entry
    assert one_pass_for(causal, None, False, *three(n_q=entry.least - 1, **sizes)) is None
    assert one_pass_for(causal, None, False, *three(n_k=entry.least - 1, **sizes)) is None


def test_few_tiles_lengths_and_other_sizes_stay_with_two_passes(on_hopper):
    assert one_pass_for(False, None, False, *three(B=1, H_kv=4)) is None, "128 tiles"
    assert one_pass_for(False, torch.ones(2), False, *three()) is None
    for head_size in (72, 120, 104):
        assert one_pass_for(False, None, False, *three(D=head_size)) is None
    q, k, v = three()
    assert one_pass_for(False, None, False, q.float(), k, v) is None
    assert one_pass_for(False, None, False, q, k.mT.contiguous().mT, v) is None


def test_no_other_architecture_and_no_other_triton_runs_it(on_hopper, monkeypatch):
    monkeypatch.setattr(tuning, "gluon_is_known", lambda: False)
    assert one_pass_for(False, None, False, *three()) is None
    monkeypatch.setattr(tuning, "gluon_is_known", lambda: True)
    assert one_pass_for(False, None, False, *three())
    for other in ((8, 0), (8, 9), (10, 0), (12, 0)):
        monkeypatch.setattr(tuning, "capability", lambda device, other=other: other)
        assert one_pass_for(False, None, False, *three()) is None


def test_room_is_made_for_one_pass_only():
    q, *_ = three(n_q=100)
    assert room(q, None) is None
    sums = room(q, ONE_PASS[128, False])
    assert sums.shape == (32, 100, 128) and sums.dtype == torch.float32


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
    compiled = torch.compile(lambda *given: attention(*given, deterministic=False), backend="aot_eager")
    compiled(*leaves).backward(do)
    assert asked == [False]
    asked.clear()
    monkeypatch.setattr(packed, "ONE_PASS", {(16, False): None})
    monkeypatch.setattr(packed, "one_pass_for", lambda causal, lengths, wish, *tensors: asked.append(wish))
    qkv = torch.randn(1, 17, 3, 2, 16, device=DEVICE, requires_grad=True)
    for wish in (True, False):
        packed_attention(qkv, deterministic=wish).sum().backward()
        packed.packed_attention_operator(qkv, None, None, wish)[0].sum().backward()
    compiled = torch.compile(lambda given: packed_attention(given, deterministic=False), backend="aot_eager")
    compiled(qkv).sum().backward()
    assert asked == [False, False, False], "who wants the same bits does not look for one pass"


def test_anything_but_yes_or_no_is_refused_in_words(make):
    q, k, v, _ = make(1, 1, 1, 4, 4, 16, torch.float32)
    with pytest.raises(AssertionError, match="deterministic is True or False, not 0"):
        attention(q, k, v, deterministic=0)


def compiled(D, causal, whole=True):
    """What the compiler makes of the kernel, one head of keys for each of queries."""
    from course_lib.kernels.attention.groups import HALF, _layout, _plain
    from course_lib.kernels.attention.groups_onepass import SUMS, one_pass_in_groups_kernel, settings
    from course_lib.kernels.rings import LAUNCH

    entry = ONE_PASS[D, causal]
    fixed = settings(entry) | {"GROUP": 1, "CAUSAL": causal, "WHOLE": whole, "MAIN": D}
    signature = {}
    for one in (n for n in one_pass_in_groups_kernel.arg_names if n not in fixed):
        rows = entry.block if one in ("q_desc", "do_desc") else HALF.value
        if one in ("shift_desc", "delta_desc"):
            signature[one] = f"tensordesc<fp32[1, {entry.block}],{_plain()!r}>"
        elif one == "dq_desc":
            signature[one] = f"tensordesc<fp32[1, 64, 64],{SUMS!r}>"
        elif one.endswith("_desc"):
            signature[one] = f"tensordesc<bf16[1, 1, {rows}, {D}],{_layout(D)!r}>"
        else:
            signature[one] = {"scale": "fp32", "scale_log2": "fp32"}.get(one, "i32")
    options = {"num_warps": LAUNCH["num_warps"], "max_registers": LAUNCH["maxnreg"]}
    return compile_kernel(one_pass_in_groups_kernel, signature, fixed, divisible_by_16=False, **options)


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[pytest.mark.slow] if key[1] else []) for key in KEYS], ids=str
)
def test_every_configuration_compiles_and_fits(key):
    got = compiled(*key)
    assert got.shared_bytes <= HOPPER_HAS and got.registers == 168, str(got)
    assert got.spills_bytes <= SPILLS[key], str(got)
    assert got.instructions["wgmma"] and got.instructions["tma"], str(got)
    assert not got.instructions["atomic"], "it is the copy engine that adds"
    assert "cp.reduce.async.bulk.tensor" in got.ptx
    assert {"240", "24"} <= set(re.findall(r"setmaxnreg[^;]*?(\d+);", got.ptx)), "registers move to those who compute"


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_tails_compile_and_fit_too(key):
    assert compiled(*key, whole=False).shared_bytes <= HOPPER_HAS


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
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_pass_is_right_for_any_shape(shape, causal, kind, make, everywhere):
    q, k, v, do = make(*shape, kind)
    scale = shape[-1] ** -0.5
    o, l = forward(q, k, v, causal, scale)
    got = backward.backward(do, q, k, v, o, l, causal, scale, None, None, False)
    assert everywhere == [True]
    want = oracle(q, k, v, do, causal=causal)
    for name, value in zip(("dq", "dk", "dv"), got):
        exact, bound = want[name]
        assert ((value - exact).abs() <= bound + 1e-6 * exact.abs()).all(), name


@pytest.mark.gpu
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_same_bits_come_unless_any_order_is_allowed(key, make, everywhere):
    columns, causal = key
    q, k, v, do = make(8, 16, 8, 1000, 1100, columns, torch.bfloat16)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = attention(*leaves, causal=causal)
    runs = [torch.autograd.grad(o, leaves, do, retain_graph=True) for _ in range(4)]
    assert everywhere == 4 * [False]
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again))
    o = attention(*leaves, causal=causal, deterministic=False)
    free = [torch.autograd.grad(o, leaves, do, retain_graph=True) for _ in range(4)]
    assert everywhere[4:] == 4 * [True]
    for again in free[1:]:
        assert all(torch.equal(a, b) for a, b in zip(free[0][1:], again[1:])), "dk and dv"


@pytest.mark.gpu
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_dq_in_any_order_is_as_close(key, make, everywhere):
    columns, causal = key
    q, k, v, do = make(2, 4, 4, 1024, 2048, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    runs = [backward.backward(do, q, k, v, o, l, causal, 0.1, None, None, wish) for wish in (True, False, False)]
    assert everywhere == [False, True, True]
    exact, _ = oracle(q, k, v, do, causal=causal, scale=0.1)["dq"]
    errors = [((dq - exact).norm() / exact.norm()).item() for dq, _, _ in runs]
    assert max(errors) < 1.01 * min(errors) < 4e-3


@pytest.mark.gpu
def test_below_the_table_two_passes_run_and_above_it_one(make, monkeypatch):
    from course_lib.kernels.attention import groups_onepass

    launched = []

    def spy(kernel, *args, _true=groups_onepass.launch, **options):
        launched.append(kernel)
        return _true(kernel, *args, **options)

    monkeypatch.setattr(groups_onepass, "launch", spy)
    for n, times in ((1023, 0), (1024, 1)):
        q, k, v, do = make(4, 16, 16, n, n, 128, torch.bfloat16)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(attention(*leaves, deterministic=False), leaves, do)
        assert launched == times * [groups_onepass.one_pass_in_groups_kernel]


@pytest.mark.gpu
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_nothing_is_written_beside_the_outputs(key, make, fenced, everywhere):
    columns, causal = key
    q, k, v, do = make(3, 2, 1, 197, 131, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    dq, dk, dv = (fenced(*x.shape, dtype=x.dtype) for x in (q, k, v))
    backward.write_backward(dq, dk, dv, do, q, k, v, o, l, causal, 0.1, None, None, None, False)
    assert everywhere == [True] and not any(x.isnan().any() for x in (dq, dk, dv))


@pytest.mark.gpu
def test_a_gradient_of_l_and_one_tensor_for_q_k_and_v_come_this_way_too(make, everywhere, monkeypatch):
    from course_lib.kernels.attention import packed

    q, k, v, do = make(1, 4, 4, 256, 256, 64, torch.bfloat16)
    o, l = forward(q, k, v, False, 0.125)
    dl = torch.randn_like(l)
    one, two = (backward.backward(do, q, k, v, o, l, False, 0.125, None, dl, wish) for wish in (False, True))
    assert everywhere == [True, False]
    for a, b in zip(one, two):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)
    monkeypatch.setattr(packed, "write_gradients", backward.write_gradients)
    qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2).requires_grad_()
    packed_attention(qkv, deterministic=False).backward(do.transpose(1, 2))
    assert everywhere == [True, False, True]
    plain = backward.backward(do, q, k, v, o, l, False, 0.125)
    for a, b in zip(qkv.grad.unbind(2), plain):
        torch.testing.assert_close(a.transpose(1, 2), b, rtol=2e-2, atol=2e-3)
