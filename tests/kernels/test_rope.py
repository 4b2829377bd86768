import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels import rope as module
from course_lib.kernels.angles import rope_frequencies
from course_lib.kernels.rope import (
    Blocks,
    Computed,
    Tables,
    blocks_for,
    heads_inside,
    rope,
    rope_,
    rope_in_place_operator,
    rope_kernel,
    rope_operator,
    rope_reference,
    write_rope,
)
from tests.kernels.signatures import signature_of

U = 2.0**-24  # half a unit in the last place of fp32, relative
# A table's entry is rounded once, then two products and a sum. Computed: the rest of an angle, up to pi / 4, is rounded
# three times (2.4 U), and the polynomials are off by 3 U.
ROUNDINGS = {Tables: 4, Computed: 9}
LAYOUTS = ["halves", "interleaved"]
LONG = [pytest.mark.slow] if TIER == "interpreter" else []  # seconds without a GPU, for one more of a kind


@pytest.fixture(autouse=True)
def empty_tensors_hold_nan(monkeypatch):
    original = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda x, **how: original(x, **how).fill_(float("nan")))


def alike(a, b):
    """Equal bits; on a GPU nearly, since two ways in are two programs, and those need not round alike."""
    if TIER != "gpu":
        return torch.equal(a, b)
    return torch.allclose(a.float(), b.float(), rtol=2 * torch.finfo(a.dtype).eps, atol=1e-5)


@pytest.fixture
def make(random):
    """make(B, H, H_kv, S, D, dtype): q and k."""
    return lambda B, H, H_kv, S, D, dtype: [random(B, h, S, D, dtype=dtype) for h in (H, H_kv)]


def angles_of(kind, rotary_size, positions=64):
    frequencies = rope_frequencies(rotary_size)
    return Tables.of(frequencies, positions, DEVICE) if kind is Tables else Computed.of(frequencies, DEVICE)


def oracle(x, rotary_size, layout="halves", positions=None, offset=0, inverse=False, kind=Tables):
    """(the exact value in float64, how far a right kernel may be from it)."""
    at = torch.arange(x.shape[2], device=x.device) if positions is None else positions[:, None]
    angle = (at + offset).double()[..., None] * rope_frequencies(rotary_size).to(x.device)
    cos, sin = angle.cos(), angle.sin() * (-1 if inverse else 1)
    want = rope_reference(x.double(), cos, sin, layout)
    size = rope_reference(x.double().abs(), torch.ones_like(cos), -torch.ones_like(sin), layout)  # |x0| + |x1|
    other = rope_reference(x.double().abs(), torch.ones_like(cos), torch.ones_like(sin), layout).abs()
    bound = ROUNDINGS[kind] * U * torch.maximum(size, other)
    bound[..., rotary_size:] = 0
    return want, bound


@pytest.fixture
def check(assert_within):
    """check(q, k, rotary size, **options): in place, out of place, and both gradients."""

    def run(q, k, rotary_size, kind=Tables, **options):
        angles = angles_of(kind, rotary_size)
        fresh = rope(q, k, angles, **options)
        old = [x.clone() for x in (q, k)]
        for x, got in zip((q, k), fresh):
            assert got.dtype == x.dtype and got.shape == x.shape
            assert_within(got, *oracle(x, rotary_size, kind=kind, **options))
        leaves = [x.detach().clone().requires_grad_() for x in (q, k)]
        grads = [torch.randn_like(x, dtype=torch.float32).to(x.dtype) for x in (q, k)]
        backwards = options | {"inverse": not options.get("inverse", False)}
        for turn in (rope, rope_):
            outs = turn(*(x.view_as(x) for x in (leaf * 1 for leaf in leaves)), angles, **options)
            for got, want in zip(outs, fresh):
                assert alike(got, want)
            for got, given in zip(torch.autograd.grad(outs, leaves, grads), grads):
                assert_within(got, *oracle(given, rotary_size, kind=kind, **backwards))
        results = rope_(q, k, angles, **options)
        for x, got, want, before in zip((q, k), results, fresh, old):
            assert got is x and alike(got, want)
            assert torch.equal(got[..., rotary_size:], before[..., rotary_size:])

    return run


@pytest.mark.fp32_first
@pytest.mark.parametrize("kind", [Tables, Computed])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("B", "H", "H_kv", "S", "D", "R"),
    [
        (1, 1, 1, 1, 2, 2),
        pytest.param(2, 4, 2, 5, 16, 16, marks=LONG),
        (1, 5, 1, 3, 24, 24),  # 12 pairs: a block of 16
        pytest.param(2, 3, 3, 4, 72, 72, marks=LONG),
        (1, 2, 4, 7, 40, 12),  # a part of the head; more heads of keys than of queries
        (1, 1, 3, 6, 33, 32),  # rows that start anywhere
    ],
)
def test_queries_and_keys_are_turned_for_any_shape(B, H, H_kv, S, D, R, layout, kind, dtype, make, check):
    check(*make(B, H, H_kv, S, D, dtype), R, kind, layout=layout)


@pytest.mark.parametrize("kind", [Tables, Computed])
def test_positions_begin_at_the_offset(kind, make, check):
    check(*make(2, 2, 1, 5, 16, torch.float32), 16, kind, offset=31)


@pytest.mark.parametrize("kind", [Tables, pytest.param(Computed, marks=LONG)])
@pytest.mark.parametrize("dtype_of_ids", [torch.int32, pytest.param(torch.int64, marks=LONG)])
def test_every_sequence_may_have_positions_of_its_own(kind, dtype_of_ids, make, check):
    packed = [[0, 1, 2, 0, 1, 0, 1], [5, 4, 3, 2, 40, 0, 9]]  # three sequences in one row; any order
    positions = torch.tensor(packed, device=DEVICE, dtype=dtype_of_ids)
    check(*make(2, 2, 1, 7, 16, torch.float32), 16, kind, positions=positions)
    check(*make(2, 2, 1, 7, 16, torch.float32), 16, kind, positions=positions, offset=3, layout="interleaved")
    check(*make(2, 2, 1, 7, 16, torch.float32), 16, kind, positions=positions[:1].expand(2, -1))
    check(*make(2, 2, 1, 7, 16, torch.float32), 16, kind, positions=positions.T.contiguous().T)


@pytest.mark.parametrize("kind", [Tables, Computed])
def test_turned_back_is_what_it_was(kind, make):
    q, k = make(2, 2, 1, 7, 16, torch.float32)
    angles = angles_of(kind, 16)
    for got, want in zip(rope(*rope(q, k, angles, offset=3), angles, offset=3, inverse=True), (q, k)):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scores_depend_on_the_distance_of_positions_alone(layout, make):
    q, k = make(1, 1, 1, 1, 32, torch.float32)
    q, k = q.expand(1, 1, 12, 32), k.expand(1, 1, 12, 32)
    q, k = rope(q, k, angles_of(Tables, 32), layout)
    s = (q @ k.mT)[0, 0]
    for distance in range(-11, 12):
        diagonal = s.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=2e-4)


def test_both_layouts_are_one_rotation_of_differently_ordered_heads(make):
    q, k = make(1, 2, 2, 5, 16, torch.float32)
    order = torch.arange(16).view(2, 8).T.flatten()  # 0, 8, 1, 9, ..
    halves = rope(q, k, angles_of(Tables, 16), "halves")
    inter = rope(q[..., order], k[..., order], angles_of(Tables, 16), "interleaved")
    assert all(alike(a[..., order], b) for a, b in zip(halves, inter))


def scattered(x, kind):
    """The same values in another layout; what lies between is NaN."""
    if kind == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "head size outside":
        return x.mT.contiguous().mT
    steps = {"padded": (1, 1, 1, 1), "every third": (2, 1, 3, 1), "columns apart": (1, 2, 1, 2)}[kind]
    buffer = torch.full([n * m + 8 for n, m in zip(x.shape, steps)], float("nan"), device=x.device, dtype=x.dtype)
    return buffer[tuple(slice(1, 1 + n * m, m) for n, m in zip(x.shape, steps))].copy_(x)


KINDS = ["heads inside", "head size outside", "padded", "every third", "columns apart"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", [0, 3, *(pytest.param(n, marks=LONG) for n in (1, 2, 4))])
def test_strides_may_be_anything_and_differ_between_q_and_k(number, layout, dtype, make, check):
    q, k = make(2, 3, 2, 5, 24, dtype)
    check(scattered(q, KINDS[number]), scattered(k, KINDS[number - 1]), 16, layout=layout)


def test_what_lies_between_is_left_alone(make):
    whole = torch.full((2, 5, 7, 24), 3.0, device=DEVICE)  # (B, S, H + H_kv + rest, D), as a fused projection leaves it
    q, k = whole[:, :, :3].transpose(1, 2), whole[:, :, 3:5].transpose(1, 2)
    rope_(q, k, angles_of(Tables, 8))
    assert (whole[:, :, 5:] == 3).all() and (whole[..., 8:] == 3).all() and (whole[:, 1:, :5, :8] != 3).any(-1).all()


def test_a_gradient_without_strides_and_one_that_is_shared_are_read_and_left(make, assert_within):
    q, k = (x.requires_grad_() for x in make(1, 2, 2, 5, 16, torch.float32))
    other = torch.zeros_like(q, requires_grad=True)
    q2, k2 = rope_(q * 1, k * 1, angles_of(Tables, 16))
    (q2 + other).sum().add(k2.sum()).backward()  # the sum hands both of its terms one gradient
    assert (other.grad == 1).all()
    for x in (q, k):
        assert_within(x.grad, *oracle(torch.ones_like(x), 16, inverse=True))


def test_backward_keeps_the_angles_and_nothing_of_q_and_k(make):
    q, k = (x.requires_grad_() for x in make(1, 2, 2, 5, 16, torch.float32))
    kept, angles = [], angles_of(Tables, 16)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        rope_(q.view_as(q), k.view_as(k), angles)
    assert [x.data_ptr() for x in kept] == [x.data_ptr() for x in angles.parts]


def test_views_of_one_projection_can_be_turned_in_place(make):
    x, angles = torch.randn(2, 5, 6 * 16, device=DEVICE, requires_grad=True), angles_of(Tables, 16)
    results = []
    for turn in (rope, rope_):
        q, k, v = (x * 2).view(2, 5, 6, 16).transpose(1, 2).split((3, 1, 2), dim=1)
        q, k = turn(q, k, angles)
        results.append(torch.autograd.grad((q.sum(1) * k[:, 0] * v.sum(1)).sum(), x)[0])
    torch.testing.assert_close(*results)


def test_a_position_that_the_tables_do_not_hold_gives_nan_and_touches_no_other(make):
    q, k = make(1, 2, 1, 4, 16, torch.float32)
    angles = Tables.of(rope_frequencies(16), 6, DEVICE)
    positions = torch.tensor([[5, -1, 6, 2**40]], device=DEVICE)
    for x in rope(q, k, angles, positions=positions):
        assert not x[:, :, 0].isnan().any() and x[:, :, 1:].isnan().all()


def test_computed_angles_are_exact_at_positions_of_millions(make, assert_within):
    q, k = make(1, 1, 1, 3, 64, torch.float32)
    positions = torch.tensor([[8191, 1_000_003, 2**24 - 1]], device=DEVICE)
    got = rope(q, k, Computed.of(rope_frequencies(64), DEVICE), positions=positions)
    for x, y in zip((q, k), got):
        assert_within(y, *oracle(x, 64, positions=positions, kind=Computed))


def test_tables_made_in_fp32_would_be_worse():
    """Why both forms start from float64: the usual recipe is off by 1e-4 and more at position 8191."""
    frequencies, last = rope_frequencies(128), 8191
    usual = torch.outer(torch.tensor([float(last)]), 1.0 / (10000.0 ** (torch.arange(0, 128, 2).float() / 128)))
    exact = (last * frequencies).cos()
    ours = Tables.of(frequencies, last + 1).cos[last]
    assert (ours.double() - exact).abs().max() < U < 1e-4 < (usual.cos()[0].double() - exact).abs().max()


@pytest.mark.parametrize("shape", [(0, 2, 2, 5, 16), (1, 2, 0, 5, 16), (1, 0, 2, 5, 16), (1, 2, 2, 0, 16)])
def test_nothing_to_turn_is_no_special_case(shape, make, check):
    check(*make(*shape, torch.float32), 16)


@pytest.mark.parametrize("computed", [True, pytest.param(False, marks=LONG)])
def test_the_operators_pass_opcheck(computed, make):
    q, k = make(1, 2, 1, 3, 16, torch.float32)
    first, second = angles_of(Computed if computed else Tables, 16).parts
    positions = torch.tensor([[2, 0, 1]], device=DEVICE)
    for given in (None, positions):
        how = (first, second, given, 1, computed, True, False)
        torch.library.opcheck(rope_in_place_operator, (q.clone(), k.clone(), *how))
        torch.library.opcheck(rope_operator, (q.clone().requires_grad_(), k.clone().requires_grad_(), *how))


def test_the_schema_says_what_is_written():
    arguments = {a.name: a for a in torch.ops.speed_of_light.rope_.default._schema.arguments}
    assert {name for name, a in arguments.items() if a.alias_info is not None and a.alias_info.is_write} == {"q", "k"}
    assert not torch.ops.speed_of_light.rope.default._schema.is_mutable


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("records", [False, True])
def test_compile_takes_it_whole(records, make):
    angles, w = angles_of(Tables, 16), torch.randn(16, 3 * 32, device=DEVICE, requires_grad=records)

    def layer(x):
        q, k, v = (x @ w).view(2, 5, 6, 16).transpose(1, 2).chunk(3, dim=1)
        q, k = rope_(q, k, angles, offset=2)
        return q @ k.mT @ v

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    x, results = torch.randn(2, 5, 16, device=DEVICE), []
    for f in (layer, compiled):
        out = f(x)
        results.append((out.detach(), *(torch.autograd.grad(out.sin().sum(), w) if records else ())))
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_compiled_call_without_gradients_still_writes_into_q_and_k(make):
    q, k = make(1, 2, 1, 3, 16, torch.float32)
    angles = angles_of(Tables, 16)
    want = rope(q, k, angles)
    torch.compile(lambda q, k: rope_(q, k, angles), fullgraph=True, backend="aot_eager")(q, k)
    assert all(alike(x, y) for x, y in zip((q, k), want))


def test_what_it_cannot_do_is_refused(make):
    q, k = make(1, 3, 2, 4, 32, torch.float32)
    angles = angles_of(Tables, 32)
    with pytest.raises(AssertionError, match="leaf"):
        rope_(q.clone().requires_grad_(), k, angles)
    with pytest.raises(AssertionError, match="share memory"):
        rope_(q[:, :1].expand(1, 3, 4, 32), k, angles)
    with pytest.raises(AssertionError, match="belong together"):
        rope(q, k[:, :, :3], angles)
    with pytest.raises(AssertionError, match="one type"):
        rope(q, k.half(), angles)
    with pytest.raises(AssertionError, match="heads of 32"):
        rope(q, k, angles_of(Tables, 48))
    with pytest.raises(AssertionError, match="fp32"):
        rope(q, k, Tables(*(x.bfloat16() for x in angles.parts)))
    with pytest.raises(AssertionError, match="one position"):
        rope(q, k, angles, positions=torch.arange(4))
    with pytest.raises(AssertionError, match="layout"):
        rope(q, k, angles, layout="half")
    with pytest.raises(AssertionError, match="even"):
        rope_frequencies(15)


def compiled(head_size=128, rotary_size=128, heads=(32, 32), inside=True, arch=90, **options):
    """What the compiler makes of the kernel for the blocks that a GPU would get, rows of adjacent elements."""
    blocks = blocks_for(*heads, rotary_size, inside, torch.device("cuda"))
    pairs = rotary_size // 2
    fixed = {"positions_ptr": None, "PAIRS": pairs, "REST": 0, "INTERLEAVED": False, "COMPUTED": False}
    fixed |= {"INVERSE": False, "HEADS_INSIDE": inside, "UNIT": 8, "BLOCK_S": blocks.positions, "BLOCK_R": 1}
    fixed |= {"BLOCK_Q": blocks.q_heads, "BLOCK_K": blocks.k_heads, "BLOCK_P": 1 << (pairs - 1).bit_length()}
    fixed |= options
    types = {"first_ptr": "*fp32", "second_ptr": "*fp32", "positions_ptr": "*i64", "stride_positions": ("i32", 1)}
    types |= {f"stride_{name}": ("i32", "i32", "i32", 1) for name in ("q_out", "k_out", "q", "k")}
    signature = signature_of(rope_kernel, fixed, types)
    return compile_kernel(rope_kernel, signature, fixed, arch=arch, num_warps=blocks.warps)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("options", [{}, {"INTERLEAVED": True}, {"COMPUTED": True}], ids=str)
def test_it_compiles_without_spills_to_accesses_of_16_bytes(options, arch, access_widths):
    """Of q and k; a block's share of the tables is 64 numbers, one a thread."""
    made = compiled(arch=arch, **options)
    assert made.fits and made.spills_bytes == 0, str(made)
    seen = access_widths(made)
    assert seen["st"] == {16} and 16 in seen["ld"] and seen["ld"] <= {4, 16}, made.ptx


def test_rows_of_72_elements_are_seen_to_be_aligned(access_widths):
    made = compiled(head_size=72, rotary_size=72)
    assert min(access_widths(made)["ld"]) >= 4 and made.spills_bytes == 0, str(made)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("H", "H_kv", "D", "R"), [(32, 32, 128, 128), (32, 8, 128, 128), (16, 16, 72, 72), (7, 1, 80, 32)]
)
@pytest.mark.parametrize("kind", [Tables, Computed])
def test_the_blocks_of_a_gpu_are_right(H, H_kv, D, R, kind, inside, layout, dtype, make, check):
    q, k = make(2, H, H_kv, 61, D, dtype)
    if inside:
        q, k = (scattered(x, "heads inside") for x in (q, k))
    assert heads_inside(q) == inside
    check(q, k, R, kind, layout=layout)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Tables, Computed])
def test_angles_are_right_at_every_position_of_a_long_sequence(kind, assert_within):
    q, k = (torch.randn(1, 1, 8192, 128, device=DEVICE, dtype=torch.float32) for _ in range(2))
    frequencies = rope_frequencies(128)
    angles = Tables.of(frequencies, 8192, DEVICE) if kind is Tables else Computed.of(frequencies, DEVICE)
    for x, got in zip((q, k), rope(q, k, angles)):
        assert_within(got, *oracle(x, 128, kind=kind))


@pytest.mark.gpu
def test_tensors_past_2_to_the_31_elements_are_turned_to_the_last_row(assert_within):
    q = torch.randn(1, 2**17 + 3, 128, 128, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2)
    k = q[:, :1].clone()
    angles = Tables.of(rope_frequencies(128), q.shape[2], DEVICE)
    tail = q[:, :, -4:].clone()
    rope_(q, k, angles)
    assert_within(q[:, :, -4:], *oracle(tail, 128, offset=q.shape[2] - 4))


def test_the_launcher_takes_other_blocks(make):
    q, k = make(2, 5, 2, 7, 16, torch.float32)
    want = rope(q, k, angles_of(Tables, 16))
    for blocks in (Blocks(1, 8, 2, 4), Blocks(8, 1, 1, 4), Blocks(4, 4, 2, 4)):
        got = [torch.full_like(x, float("nan")) for x in (q, k)]
        write_rope(*got, q, k, *angles_of(Tables, 16).parts, None, 0, False, False, False, blocks)
        assert all(alike(a, b) for a, b in zip(got, want))


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
