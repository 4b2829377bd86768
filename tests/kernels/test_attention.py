import pytest
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels import attention as module
from course_lib.kernels.attention import attention, attention_operator, attention_reference, tuning
from course_lib.kernels.attention.backward import backward, dkdv_kernel, dq_kernel
from course_lib.kernels.attention.forward import _forward_kernel, forward, write_forward
from course_lib.kernels.attention.rows import spans, tiles
from course_lib.kernels.attention.tuning import Blocks
from course_lib.kernels.columns import split
from course_lib.kernels.strides import unit_of
from course_lib.kernels.timed import attention_step
from tests.kernels.attention_oracle import oracle
from tests.kernels.signatures import signature_of

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan", "first_rung")


@pytest.fixture
def first_rung(monkeypatch):
    """Plain Triton, a program a tile. Kernels with jobs for their warps and tiles in parts have files of their own."""
    for table in ("GROUPS", "ONE_BLOCK", "SIDE_BY_SIDE", "SHORT_HEADS"):
        monkeypatch.setattr(f"course_lib.kernels.attention.tuning.{table}", {})
    monkeypatch.setattr("course_lib.kernels.attention.tuning.FEW_QUERIES", 0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("B", "H", "H_kv", "n_q", "n_k", "D"),
    [
        (1, 1, 1, 1, 1, 16),
        (2, 2, 1, 33, 50, 72),
        pytest.param(1, 2, 2, 50, 33, 40, marks=pytest.mark.slow),
        (1, 4, 2, 17, 70, 24),
        (1, 1, 1, 70, 17, 128),
        (2, 1, 1, 64, 64, 17),
        (1, 3, 1, 40, 41, 100),
        (1, 1, 1, 1, 80, 64),
    ],
)
def test_attention_and_its_gradients_are_right_for_any_shape(B, H, H_kv, n_q, n_k, D, causal, dtype, make, check):
    check(*make(B, H, H_kv, n_q, n_k, D, dtype), causal=causal)


def test_a_head_size_costs_the_next_sixteen_and_not_the_next_power_of_two():
    assert [split(d) for d in (16, 17, 40, 48, 64)] == [(16, 0), (32, 0), (32, 16), (32, 16), (64, 0)]
    assert [split(d) for d in (65, 72, 80, 96)] == [(64, 16), (64, 16), (64, 16), (64, 32)]
    assert split(112) == split(128) == (128, 0)
    for d in range(16, 129):
        assert sum(split(d)) >= d and all(part == 0 or (part & (part - 1) == 0 and part >= 16) for part in split(d))


@pytest.mark.parametrize("scale", [0.0, 0.37, -0.2, 3.0])
def test_any_scale_is_right(scale, make, check):
    check(*make(1, 2, 1, 35, 37, 32, torch.float32), scale=scale, causal=True)


def test_scores_of_any_size_do_not_overflow(make, check, dtype):
    q, k, v, do = make(1, 1, 1, 33, 40, 16, dtype)
    for offset in (30.0, -30.0):  # scores near + and - 3600: exp alone gives inf, and 0 / 0
        check(q + offset, torch.full_like(k, 30.0) + k, v, do, scale=0.25)


def test_l_is_the_natural_logarithm_of_the_sum(make, dtype, assert_within):
    q, k, v, do = make(2, 2, 1, 33, 50, 72, dtype)
    lengths = torch.tensor([50, 7], device=DEVICE, dtype=torch.int32)
    _, l = forward(q, k, v, False, 0.2, lengths)
    assert_within(l, *oracle(q, k, v, do, scale=0.2, k_lengths=lengths)["l"])


@pytest.mark.fp32_first
@pytest.mark.parametrize("edge", [None, 16, 32])
def test_keys_at_the_edge_come_last_or_first_in_blocks_of_their_own(edge, make, dtype, assert_within):
    for n_q, n_k, causal, lengths in (
        (70, 70, True, None),
        (64, 128, True, None),
        (50, 33, True, (33, 20)),
        (40, 90, False, (90, 5)),
        (32, 50, False, None),
    ):
        q, k, v, do = make(2, 2, 1, n_q, n_k, 64, dtype)
        lengths = None if lengths is None else torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
        o, l = torch.empty_like(q), torch.empty(q.shape[:-1], device=DEVICE)
        write_forward(o, l, q, k, v, causal, 0.2, lengths, Blocks(32, 32, 4, 2, edge=edge))
        truth = oracle(q, k, v, do, causal=causal, scale=0.2, k_lengths=lengths)
        assert_within(o, *truth["o"])
        some = truth["l"][0].isfinite()  # queries that see a key
        assert_within(l[some], *(x[some] for x in truth["l"]))
        assert (l[~some] == -float("inf")).all()


def test_long_rows_are_summed_in_fp32(random):
    """Values of 1 and equal scores: a 2-byte sum of probabilities or products would stop growing at 2048."""
    q, k = (torch.zeros(1, 1, n, 16, device=DEVICE, dtype=torch.float16) for n in (1, 5000))
    o, l = forward(q, k, torch.ones_like(k), False, 1.0)
    assert (o == 1).all() and (l - torch.tensor(5000.0).log()).abs().max() < 1e-5


@pytest.mark.fp32_first
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_hide_keys_and_rows_without_keys_give_zeros(causal, dtype, make, check):
    q, k, v, do = make(5, 2, 1, 45, 33, 40, dtype)
    lengths = torch.tensor([33, 0, 1, 17, 32], device=DEVICE)
    got = check(q, k, v, do, causal=causal, k_lengths=lengths)
    assert all((got[name][1] == 0).all() for name in got)
    for b, length in enumerate(lengths):
        assert (got["dk"][b, :, length:] == 0).all() and (got["dv"][b, :, length:] == 0).all()
    if causal:  # 45 queries, 33 keys: the first 12 see none
        assert (got["o"][:, :, :12] == 0).all() and (got["dq"][:, :, :12] == 0).all()
    _, l = forward(q, k, v, causal, 0.2, lengths.int())
    assert (l[1] == -float("inf")).all() and not l.isnan().any()


def tiles_without_a_gpu(rows, *tensors):
    """What `tiles` gives on a GPU. The interpreter plays the copy engine."""
    main, _ = split(tensors[0].shape[-1])
    return tuple(TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, main]) for x in tensors)


@pytest.fixture(params=["threads load", "the copy engine loads"])
def loads(request, monkeypatch):
    """Who fetches a tile; on a GPU it is the copy engine wherever it can."""
    if TIER != "gpu" and request.param == "the copy engine loads":
        for part in ("forward", "backward"):
            monkeypatch.setattr(f"course_lib.kernels.attention.{part}.tiles", tiles_without_a_gpu)


@pytest.mark.parametrize("left_there", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize(("causal", "D"), [(False, 16), (True, 72)], ids=str)
def test_what_lies_behind_the_length_may_be_anything(causal, D, left_there, loads, make, check):
    q, k, v, do = make(3, 2, 1, 20, 50, D, torch.float16)
    lengths = torch.tensor([21, 0, 32], device=DEVICE)  # 32: where a block of every kernel ends in the interpreter
    before = check(q, k, v, do, causal=causal, k_lengths=lengths)
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = left_there, -left_there
    after = check(q, k, v, do, causal=causal, k_lengths=lengths)
    assert all(torch.equal(before[name], after[name]) for name in before)
    o, _ = attention_reference(q, k, v, causal, D**-0.5, lengths)
    torch.testing.assert_close(o, after["o"], rtol=1e-2, atol=1e-2)


def test_lengths_out_of_range_are_held_to_it(make):
    q, k, v, _ = make(2, 1, 1, 5, 20, 16, torch.float32)
    over = attention(q, k, v, k_lengths=torch.tensor([99, -3], device=DEVICE))
    assert torch.equal(over, attention(q, k, v, k_lengths=torch.tensor([20, 0], device=DEVICE)))


@pytest.mark.parametrize(("n_q", "n_k"), [(0, 7), (7, 0), (0, 0)])
def test_no_queries_and_no_keys_are_no_special_case(n_q, n_k, make, check):
    got = check(*make(2, 2, 1, n_q, n_k, 32, torch.float32), causal=True)
    assert all((x == 0).all() for x in got.values())


def scattered(x, kind):
    """The same values in another layout; what lies between is NaN."""
    if kind == "heads inside":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if kind == "head size outside":
        return x.mT.contiguous().mT
    shape = {"padded": (1, 1, 1, 2), "every third": (2, 1, 3, 1), "columns apart": (1, 2, 1, 2)}[kind]
    buffer = torch.full([n * m + 1 for n, m in zip(x.shape, shape)], float("nan"), device=x.device, dtype=x.dtype)
    steps = shape if kind != "padded" else (1, 1, 1, 1)
    view = buffer[tuple(slice(1, 1 + n * m, m) for n, m in zip(x.shape, steps))]
    return view.copy_(x)


LAYOUTS = ["heads inside", "head size outside", "padded", "every third", "columns apart"]


@pytest.mark.fp32_first
@pytest.mark.parametrize("kind", LAYOUTS)
def test_strides_may_be_anything(kind, make, check, dtype):
    tensors = make(2, 2, 1, 35, 33, 24, dtype)
    got = check(*(scattered(x, kind) for x in tensors), causal=True)
    plain = check(*tensors, causal=True)
    if TIER != "gpu":  # there the compiler may sum in another order where the loads are others
        assert all(torch.equal(got[name], plain[name]) for name in got), "a layout changes no arithmetic"


@pytest.mark.parametrize("mixed", range(4))
def test_each_tensor_has_strides_of_its_own(mixed, make, check):
    tensors = make(2, 2, 2, 20, 33, 40, torch.float32)
    check(*(scattered(x, LAYOUTS[(i + mixed) % 4]) for i, x in enumerate(tensors)))


def test_a_gradient_without_strides_is_read_right(make, check):
    q, k, v, do = make(2, 2, 1, 20, 33, 40, torch.float32)
    check(q, k, v, torch.ones_like(do[:1, :1, :1, :1]).expand_as(do))  # what o.sum() sends back


def test_rows_of_head_size_72_are_seen_to_be_aligned():
    x = torch.zeros(2, 3, 5, 72, dtype=torch.float16)
    assert unit_of(x) == 8 and unit_of(x, x.mT) == 1 and unit_of(x[..., :70]) == 8 and unit_of(x.float()) == 4
    assert unit_of(x.expand(2, 3, 5, 72), x[:, :, :1].expand(-1, -1, 5, -1)) == 8


@pytest.mark.gpu
def test_the_copy_engine_is_asked_only_for_what_it_can_fetch():
    x = torch.zeros(2, 3, 50, 72, device=DEVICE, dtype=torch.bfloat16)
    assert tiles(32, x)[0].block_shape == [1, 1, 32, 64] and tiles(64, x.transpose(1, 2), x)[0] is not None
    beside = (x[:, :, :, 4:], x.mT, x[:, :1].expand_as(x), x.float(), x[..., :70].contiguous(), x[:, :, :0])
    for other in beside:  # starts off 16 bytes, rows not adjacent, a stride of 0, 4 bytes, a row of 140 bytes, nothing
        assert tiles(64, other) == (None,) and tiles(64, x, other) == (None, None)


def test_offsets_inside_a_block_are_widened_where_it_spans_2_to_the_31_elements(make, monkeypatch, check):
    row = torch.empty(1, device="meta").as_strided((1, 1, 200, 16), (1, 1, 2**24 + 16, 1))
    assert spans(128, 16, row) and not spans(64, 16, row)
    for part in ("forward", "backward"):
        monkeypatch.setattr(f"course_lib.kernels.attention.{part}.spans", lambda *_: True)
    check(*make(1, 2, 1, 35, 33, 40, torch.float32), causal=True)


def test_the_gradients_are_the_same_bits_on_every_run(make):
    q, k, v, do = make(2, 4, 2, 64, 64, 72, torch.float16)
    o, l = forward(q, k, v, True, 0.1)
    first, second = (backward(do, q, k, v, o, l, True, 0.1) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second))


@pytest.mark.fp32_first
def test_a_step_writes_into_what_it_is_given(make, dtype):
    q, k, v, do = make(2, 4, 2, 33, 50, 40, dtype)
    o, l = forward(q, k, v, True, 0.2)
    want = [o, l, *backward(do, q, k, v, o, l, True, 0.2)]
    given = [scattered(x, "padded").fill_(float("nan")) if x is not l else torch.empty_like(l) for x in want]
    attention_step(q, k, v, do, *given, True, 0.2)
    assert not any(x.isnan().any() for x in given)
    for got, x in zip(given, want):
        torch.testing.assert_close(got, x, rtol=1e-2, atol=1e-2)


def test_inputs_are_left_as_they_were(make):
    tensors = make(1, 2, 1, 20, 33, 40, torch.float32)
    copies = [x.clone() for x in tensors]
    q, k, v, do = tensors
    backward(do, q, k, v, *forward(q, k, v, True, 0.1), True, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies))


def test_the_plain_reference_agrees_with_the_oracle(make):
    q, k, v, do = make(2, 4, 2, 20, 17, 24, torch.float32)
    lengths = torch.tensor([17, 5], device=DEVICE)
    o, l = attention_reference(q.double(), k.double(), v.double(), True, 0.3, lengths)
    want = oracle(q, k, v, do, causal=True, scale=0.3, k_lengths=lengths)
    torch.testing.assert_close(o, want["o"][0])
    torch.testing.assert_close(l, want["l"][0])


@pytest.mark.parametrize("lengths", [None, pytest.param((33, 4), marks=pytest.mark.slow)])
def test_the_operator_passes_opcheck(lengths, random):
    q, k, v = (random(2, h, n, 24, dtype=torch.float32).requires_grad_() for h, n in ((4, 20), (2, 33), (2, 33)))
    lengths = None if lengths is None else torch.tensor(lengths, device=DEVICE, dtype=torch.int32)
    torch.library.opcheck(attention_operator, (q, k, v, True, 0.2, lengths))


def test_the_operator_gives_a_gradient_through_l_too(make, assert_within):
    q, k, v, _ = make(1, 2, 1, 20, 33, 24, torch.float32)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    attention_operator(*leaves, True, 0.2, None)[1].sum().backward()
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    attention_reference(*exact, True, 0.2)[1].sum().backward()
    for got, want in zip(leaves[:2], exact):
        assert_within(got.grad, want.grad, 1e-5)
    assert (leaves[2].grad == 0).all()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
def test_compile_takes_it_whole(make, monkeypatch):
    q, k, v, do = make(1, 2, 1, 20, 33, 24, torch.float32)
    lengths = torch.tensor([30], device=DEVICE)

    def layer(q, k, v):
        return attention(q * 2, k, v, causal=True, k_lengths=lengths).sin()

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    results = []
    for f in (layer, compiled):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        f(*leaves).backward(do)
        results.append([x.grad for x in leaves])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


def test_what_it_cannot_do_is_refused(make):
    q, k, v, _ = make(1, 3, 2, 4, 4, 32, torch.float32)
    with pytest.raises(AssertionError, match="evenly"):
        attention(q, k, v)
    with pytest.raises(AssertionError, match="16 to 128"):
        attention(*make(1, 1, 1, 4, 4, 8, torch.float32)[:3])
    with pytest.raises(AssertionError, match="differ in shape"):
        attention(q[:, :2], k, v[:, :, :2])
    with pytest.raises(AssertionError, match="one type"):
        attention(q[:, :2].half(), k, v)
    with pytest.raises(AssertionError, match="one length"):
        attention(q[:, :2], k, v, k_lengths=torch.tensor([1, 2]))


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("D", [16, 40, 48, 64, 72, 80, 96, 128])
def test_one_key_and_one_query_are_no_special_case(D, causal, make, check):
    """As a constant, one key made the assembler of Triton 3.6 crash: causal, at head sizes 40, 64, 72 and 96."""
    for n_q, n_k in ((1, 1), (2, 1), (300, 1), (1, 300)):
        check(*make(1, 2, 1, n_q, n_k, D, torch.bfloat16), causal=causal)


KERNELS = {"forward": _forward_kernel, "dq": dq_kernel, "dkdv": dkdv_kernel}
DEFAULTS = {"SAME_LENGTHS": False}
# 72 stands for 80 columns: its rows are no multiple of 16 elements, and 8 columns are masked.
HEADS = {16: 16, 32: 32, 48: 40, 64: 64, 80: 72, 96: 96, 128: 128}


def compiled(name, head_size, causal, blocks, pointer="*bf16", precision="tf32", tma=True, whole=True, **given):
    """What the compiler makes of one kernel for rows of adjacent elements, one head of keys for each of queries.

    given: arguments whose value it knows.
    """
    kernel, (main, rest) = KERNELS[name], split(head_size)
    fixed = given | {"lengths_ptr": None, "GROUP": 1, "HEAD": head_size, "MAIN": main, "REST": rest, "CAUSAL": causal}
    fixed |= {"UNIT": 8 if pointer == "*bf16" else 4, "WIDE": False, "PRECISION": precision}
    edge = blocks.edge or blocks.n
    fixed |= {"BLOCK_M": blocks.m, "BLOCK_N": blocks.n, "TMA": tma, "WHOLE": whole}
    names = kernel.arg_names
    fixed |= {"PARTS": 1} if "PARTS" in names else {}
    fixed |= {"EDGE": edge, "EDGE_FIRST": blocks.edge is not None} if "EDGE" in names else {}
    fixed |= {one: None for one in names if one == "dl_ptr" or ("tiles" in one and not tma)}
    fixed = {one: value for one, value in (DEFAULTS | fixed).items() if one in names}
    rows = blocks.m if name == "dkdv" else blocks.n
    types = {one: f"tensordesc<bf16[1,1,{rows},{main}]>" for one in names if "tiles" in one}
    types |= dict.fromkeys(("k_edge_tiles", "v_edge_tiles"), f"tensordesc<bf16[1,1,{edge},{main}]>")
    types |= dict.fromkeys(("shift_tiles", "delta_tiles"), f"tensordesc<fp32[1,{blocks.m}]>")
    types |= {one: ("i32", "i32", "i32", 1) for one in names if one.startswith("stride_") and one != "stride_terms"}
    types |= {"l_ptr": "*fp32", "shift_ptr": "*fp32", "delta_ptr": "*fp32", "scale": "fp32", "scale_log2": "fp32"}
    signature = signature_of(kernel, fixed, types, pointer)
    return compile_kernel(kernel, signature, fixed, num_warps=blocks.warps, num_stages=blocks.stages)


def test_the_table_has_every_head_size():
    for head_size in range(16, 129):
        for causal in (False, True):
            assert (sum(split(head_size)), causal) in tuning.TABLE


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n != "forward" else n for n in KERNELS])
def test_one_key_is_nothing_that_the_assembler_knows(name):
    """A launch gives the compiler an argument of 1 as a constant. With that the assembler of Triton 3.6 crashed."""
    got = compiled(name, 64, True, getattr(tuning.TABLE[64, True], name), whole=False, n_k=1)
    assert "%nctaid.y" in got.ptx and got.fits, str(got)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("columns", "causal"), tuning.TABLE, ids=str)
def test_every_configuration_of_the_table_compiles_to_tensor_cores_and_fits(columns, causal, name):
    got = compiled(name, HEADS[columns], causal, getattr(tuning.TABLE[columns, causal], name))
    assert got.fits and got.spills_bytes <= tuning.SPILL_LIMIT, str(got)
    assert got.instructions["wgmma"] and got.instructions["tma"], str(got)
    assert bool(got.instructions["cp.async"]) == bool(split(HEADS[columns])[1]), f"only a rest comes by cp.async: {got}"
    assert not got.instructions["atomic"], str(got)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n != "forward" else n for n in KERNELS])
def test_rows_of_head_size_72_are_loaded_16_bytes_at_a_time_without_the_copy_engine_too(name):
    got = compiled(name, 72, True, Blocks(64, 64, 4, 2), tma=False)
    assert got.fits and got.spills_bytes == 0, str(got)
    assert got.instructions["wgmma"] and got.instructions["cp.async"], str(got)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_fp32_compiles_and_fits(name):
    assert compiled(name, 128, True, getattr(tuning.FP32, name), "*fp32", "ieee", tma=False).fits


@pytest.mark.gpu
@pytest.mark.parametrize("lengths", [None, (300, 0, 77)], ids=["whole", "padded"])
@pytest.mark.parametrize(("columns", "causal"), tuning.TABLE, ids=str)
def test_every_configuration_of_the_table_is_right(columns, causal, lengths, dtype, make, check):
    lengths = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    for n_q, n_k in ((300, 300), (256, 512), (515, 200)):
        q, k, v, do = make(3, 4, 2, n_q, n_k, HEADS[columns], dtype)
        if lengths is not None:
            for b, length in enumerate(lengths):
                k[b, :, length:], v[b, :, length:] = float("nan"), float("inf")
        got = check(q, k, v, do, causal=causal, k_lengths=lengths)
        assert not any(x.isnan().any() for x in got.values())


@pytest.mark.gpu
@pytest.mark.parametrize("head_size", [33, 41, 71, 90, 127])  # rows that start anywhere: narrow loads, no copies
def test_head_sizes_that_align_with_nothing_are_right(head_size, make, check):
    check(*make(1, 2, 1, 300, 257, head_size, torch.bfloat16), causal=True)


@pytest.mark.gpu
def test_more_than_65535_heads_in_all_are_right(make, check):
    check(*make(300, 256, 128, 17, 19, 16, torch.bfloat16), causal=True)


@pytest.mark.gpu
def test_sequences_past_2_to_the_31_elements_are_right_to_the_last_row():
    buffer = torch.zeros(40000, 2**16, device=DEVICE, dtype=torch.bfloat16)  # 5 GB; a row of it holds every head
    x = buffer[:, : 2 * 64].normal_().view(1, 40000, 2, 64).transpose(1, 2)
    assert x.stride(2) * (x.shape[2] - 1) > 2**31
    results = []
    for view in (x, x.contiguous()):
        leaf = view.detach().requires_grad_()
        o = attention(leaf, leaf, leaf, causal=True)
        results.append((o, *torch.autograd.grad(o, leaf, torch.ones_like(o))))
    assert all(torch.equal(a, b) for a, b in zip(*results)) and not results[0][0].isnan().any()


@pytest.mark.gpu
def test_a_block_past_2_to_the_31_elements_is_right(check):
    buffer = torch.zeros(70, 2**25 + 8, device=DEVICE, dtype=torch.bfloat16)
    x = buffer[:, :32].normal_().view(1, 1, 70, 32)
    assert spans(64, 32, x)
    check(x, x, x, x.contiguous(), causal=True)


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
