"""Few queries and many keys: programs that share keys, and the kernel that merges what each of them leaves."""

import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels.attention import attention, attention_operator, tuning
from course_lib.kernels.attention import forward as forward_module
from course_lib.kernels.attention.backward import backward, row_terms, write_dkdv, write_dq
from course_lib.kernels.attention.forward import forward, write_forward
from course_lib.kernels.attention.parts import _merge_kernel, _parts_kernel, merging_warps
from course_lib.kernels.attention.tuning import Blocks, Parts, heads_shared, keys_shared
from course_lib.kernels.columns import split
from tests.kernels.attention_oracle import oracle
from tests.kernels.signatures import signature_of

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")


@pytest.fixture
def in_parts(fenced, assert_within, make):
    """in_parts(sizes, dtype, parts): o and L of that many parts against float64; options as of attention."""

    def run(sizes, dtype, parts, m=16, n=16, tensors=None, **options):
        q, k, v, do = tensors or make(*sizes, dtype)
        o, l = fenced(*q.shape, dtype=q.dtype), fenced(*q.shape[:-1], dtype=torch.float32)
        causal, lengths = options.get("causal", False), options.get("k_lengths")
        write_forward(o, l, q, k, v, causal, q.shape[-1] ** -0.5, lengths, Parts(m, n, 4, 2, parts=parts))
        want = oracle(q, k, v, do, **options)
        assert_within(o, *want["o"])
        some = want["l"][0].isfinite()  # queries that see a key
        assert_within(l[some], *(x[some] for x in want["l"]))
        assert (l[~some] == -float("inf")).all() and (o[~some] == 0).all()
        return o, l

    return run


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("sizes", "parts", "m"),
    [  # batch, heads, heads of keys, queries, keys, head size
        ((2, 2, 2, 1, 77, 64), 3, 16),
        ((1, 8, 2, 1, 130, 128), 5, 16),
        ((2, 8, 1, 2, 70, 72), 4, 16),
        ((1, 32, 1, 1, 90, 16), 6, 32),
        ((1, 32, 1, 5, 64, 16), 2, 64),  # three tiles of 160 rows
        ((1, 4, 1, 16, 100, 96), 3, 64),
        ((2, 3, 1, 7, 50, 24), 2, 16),  # a tile that begins in the middle of a query's heads
        ((1, 1, 1, 128, 200, 16), 4, 64),
        ((1, 2, 2, 5, 3, 16), 4, 16),  # more parts than keys; causal, the first two queries see none
        ((1, 1, 1, 1, 1, 17), 1, 16),
    ],
    ids=str,
)
def test_any_group_any_number_of_queries_and_of_parts(sizes, parts, m, causal, dtype, in_parts):
    in_parts(sizes, dtype, parts, m, causal=causal)


@pytest.mark.fp32_first
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n_q", [1, 5])
def test_lengths_hide_keys_from_every_part(n_q, causal, dtype, in_parts):
    lengths = torch.tensor([70, 0, 1, 17, 64], device=DEVICE, dtype=torch.int32)
    in_parts((5, 4, 2, n_q, 70, 40), dtype, 3, causal=causal, k_lengths=lengths)


@pytest.mark.parametrize("left_there", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize(("causal", "D"), [(False, 16), (True, 72)], ids=str)
def test_what_lies_behind_the_length_is_neither_used_nor_moved(causal, D, left_there, make, in_parts):
    lengths = torch.tensor([21, 0, 32], device=DEVICE, dtype=torch.int32)
    q, k, v, do = make(3, 4, 2, 2, 80, D, torch.float16)
    before = in_parts(None, None, 4, tensors=(q, k, v, do), causal=causal, k_lengths=lengths)
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = left_there, -left_there
    kept = k.clone(), v.clone()
    after = in_parts(None, None, 4, tensors=(q, k, v, do), causal=causal, k_lengths=lengths)
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(kept, (k, v)))


def test_the_bits_are_the_same_on_every_run(make):
    q, k, v, _ = make(2, 8, 2, 3, 150, 72, torch.float16)
    results = []
    for _ in range(3):
        o, l = torch.empty_like(q), torch.empty(q.shape[:-1], device=DEVICE)
        write_forward(o, l, q, k, v, True, 0.1, None, Parts(16, 16, 4, 2, parts=5))
        results.append((o, l))
    assert all(torch.equal(a, b) for again in results[1:] for a, b in zip(results[0], again))


def test_scores_of_any_size_do_not_overflow(make, in_parts, dtype):
    q, k, v, do = make(1, 2, 1, 2, 70, 16, dtype)
    k[:, :, 40:] *= -1.0  # the parts' maxima lie thousands apart
    for offset in (30.0, -30.0):
        in_parts(None, None, 4, tensors=(q + offset, 30 * k.sign() + k, v, do))


@pytest.mark.fp32_first
@pytest.mark.parametrize("turned", [False, True])
def test_strides_may_be_anything(turned, make, in_parts, dtype):
    def moved(x):
        if turned:
            return x.mT.contiguous().mT
        buffer = torch.full((x.shape[0], x.shape[2], x.shape[1] + 1, x.shape[3] + 3), float("nan"), device=DEVICE)
        view = buffer.to(x.dtype)[:, :, 1:, 2:-1].transpose(1, 2)
        return view.copy_(x)

    q, k, v, do = map(moved, make(2, 4, 2, 5, 90, 40, dtype))
    o, l = in_parts(None, None, 3, tensors=(q, k, v, do), causal=True)
    into = moved(torch.empty_like(do).contiguous())
    write_forward(into, l, q, k, v, True, 40**-0.5, None, Parts(16, 16, 4, 2, parts=3))
    assert torch.equal(into, o)


@pytest.fixture
def taken(monkeypatch):
    """What attention splits: the blocks of each call that does."""
    seen, original = [], forward_module.write_forward_in_parts

    def watched(*given):
        seen.append(given[-1])
        return original(*given)

    monkeypatch.setattr(forward_module, "write_forward_in_parts", watched)
    return seen


N_K = 4096 if TIER == "gpu" else 300


@pytest.mark.fp32_first
@pytest.mark.parametrize("lengths", [None, (N_K - 3,)], ids=["whole", "padded"])
@pytest.mark.parametrize(("n_q", "causal"), [(1, False), (6, True)], ids=str)
def test_attention_splits_keys_by_itself_and_its_gradients_are_right(n_q, causal, lengths, dtype, make, check, taken):
    lengths = None if lengths is None else torch.tensor(lengths, device=DEVICE)
    check(*make(1, 2, 1, n_q, N_K, 32, dtype), causal=causal, k_lengths=lengths)
    assert len(taken) == 1 and taken[0].parts > 1


def test_one_query_sees_all_keys_causal_or_not(make, taken):
    q, k, v, _ = make(1, 2, 1, 1, N_K, 32, torch.float16)
    assert torch.equal(attention(q, k, v), attention(q, k, v, causal=True)) and len(taken) == 2


def test_the_operator_passes_opcheck(make, taken):
    q, k, v, _ = make(1, 2, 1, 2, N_K, 24, torch.float32)
    torch.library.opcheck(attention_operator, (*(x.requires_grad_() for x in (q, k, v)), True, 0.2, None))
    assert taken


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
def test_compile_takes_it_whole(make, taken):
    q, k, v, _ = make(1, 2, 1, 1, N_K, 24, torch.float32)
    compiled = torch.compile(attention, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    torch.testing.assert_close(compiled(q, k, v), attention(q, k, v))
    assert len(taken) == 2


# dk and dv, their query heads in parts.


@pytest.mark.fp32_first
@pytest.mark.parametrize(("parts", "causal"), [(2, True), (4, False), (4, True)], ids=str)
def test_dk_and_dv_are_sums_over_parts_of_the_query_heads(parts, causal, dtype, make, assert_within, fenced):
    lengths = torch.tensor([20, 0], device=DEVICE, dtype=torch.int32)
    q, k, v, do = make(2, 8, 2, 18, 33, 24, dtype)
    k[0, :, 20:], v[0, :, 20:] = float("nan"), float("inf")
    o, l = forward(q, k, v, causal, 0.2, lengths)
    terms = row_terms(l)
    write_dq(torch.empty_like(q), *terms, do, q, k, v, o, l, None, causal, 0.2, lengths, Blocks(32, 16, 4, 1))
    results = []
    for _ in range(2):
        dk, dv = (fenced(*k.shape, dtype=dtype) for _ in range(2))
        write_dkdv(dk, dv, do, q, k, v, *terms, causal, 0.2, lengths, Parts(16, 32, 4, 1, parts=parts))
        results.append((dk, dv))
    want = oracle(q, k, v, do, causal=causal, scale=0.2, k_lengths=lengths)
    for name, got in zip(("dk", "dv"), results[0]):
        assert_within(got, *want[name])
        assert (got[0, :, 20:] == 0).all() and (got[1] == 0).all()
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_attention_parts_query_heads_by_itself_and_its_gradients_are_right(make, check, monkeypatch):
    monkeypatch.setattr(tuning, "LEAST_ROWS", 1)
    q, k, v, do = make(1, 4, 1, 20, 33, 24, torch.float32)
    assert heads_shared(q, k, True, tuning.INTERPRETED.dkdv).parts == 4
    check(q, k, v, do, causal=True)
    check(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v, do)), causal=True)


# The rules.


def shaped(B, H, H_kv, n_q, n_k, D, dtype=torch.bfloat16):
    """q, k and v with a shape and no memory, which say that they are on a GPU."""

    class Shaped(torch.Tensor):
        device = torch.device("cuda")

    sizes = (H, n_q), (H_kv, n_k), (H_kv, n_k)
    return [torch.empty(B, *size, D, dtype=dtype, device="meta").as_subclass(Shaped) for size in sizes]


@pytest.fixture
def rule(on):
    """rule(arch, *sizes): what a card of this architecture is launched with."""

    def ask(arch, *sizes, **options):
        on(arch)
        return keys_shared(*shaped(*sizes, **options))

    return ask


@pytest.mark.parametrize(
    ("sizes", "blocks"),
    [  # batch, heads, heads of keys, queries, keys, head size -> rows, keys a turn, parts
        ((1, 32, 8, 1, 1024, 128), (16, 128, 8)),
        ((1, 32, 8, 1, 4096, 128), (16, 128, 16)),
        ((1, 32, 8, 1, 32768, 128), (16, 128, 16)),
        ((1, 64, 8, 1, 65536, 128), (16, 128, 16)),
        ((8, 32, 8, 1, 4096, 128), (16, 128, 2)),
        ((32, 32, 8, 1, 8192, 128), (16, 128, 1)),
        ((1, 16, 16, 1, 16384, 64), (16, 128, 16)),
        ((16, 16, 16, 1, 4096, 64), (16, 128, 1)),
        ((256, 16, 16, 1, 512, 64), (16, 128, 1)),
        ((1, 32, 1, 1, 32768, 128), (32, 128, 128)),
        ((8, 32, 8, 5, 8192, 128), (32, 128, 2)),
        ((4, 16, 16, 128, 8192, 128), (64, 64, 2)),
        ((2, 16, 16, 128, 4096, 64), (64, 128, 4)),
        ((64, 16, 16, 16, 1024, 128), None),
        ((16, 16, 16, 64, 2048, 64), None),
    ],
    ids=str,
)
def test_an_h200_gets_what_was_fastest_there(sizes, blocks, rule):
    found = rule(90, *sizes)
    assert (found and (found.m, found.n, found.parts)) == blocks


def test_a_round_of_programs_is_full_where_splitting_makes_it_so():
    assert tuning._shares(tiles=128, turns=64, at_once=132, most=64) == 1
    assert tuning._shares(tiles=160, turns=64, at_once=132, most=64) == 2, "3 rounds of half as many turns, not 2"
    assert tuning._shares(tiles=160, turns=4, at_once=132, most=64) == 1, "starts cost more"
    assert tuning._shares(tiles=1, turns=10**6, at_once=132, most=tuning.MOST_PARTS) == tuning.MOST_PARTS
    assert tuning._shares(tiles=1, turns=1, at_once=132, most=0) == 1


def test_a_tile_holds_the_rows_of_all_heads_that_share_keys(rule):
    assert rule(90, 1, 32, 8, 1, 32768, 128).m == 16 and rule(90, 1, 32, 1, 1, 32768, 128).m == 32
    assert rule(90, 1, 32, 8, 16, 32768, 128).m == 64 and rule(90, 1, 16, 16, 33, 32768, 64).m == 64


def test_turns_are_short_where_128_keys_would_spill(rule):
    assert rule(90, 1, 32, 8, 1, 32768, 128).n == rule(90, 1, 32, 8, 1, 32768, 64).n == 128
    assert rule(90, 1, 32, 8, 1, 32768, 72).n == rule(90, 1, 32, 8, 1, 32768, 125).n == 64
    assert rule(90, 1, 32, 8, 16, 32768, 64).n == 128 and rule(90, 1, 32, 8, 16, 32768, 128).n == 64


def test_few_keys_and_many_queries_are_left_to_the_other_kernels(rule):
    assert rule(90, 4, 16, 16, 129, 8192, 128) is None, "more than FEW_QUERIES"
    assert rule(90, 1, 16, 16, 1, 255, 128) is None, "fewer than FEW_KEYS"
    assert rule(90, 64, 16, 16, 64, 8192, 64) is None, "tiles enough"
    assert rule(90, 64, 16, 16, 1, 8192, 64).parts == 1, "tiles enough, but of one row each"
    for nothing in ((1, 16, 16, 0, 8192, 128), (1, 16, 16, 1, 0, 128), (0, 16, 16, 1, 8192, 128)):
        assert rule(90, *nothing) is None


def test_few_tiles_of_keys_get_more_programs_where_query_heads_share_them(on):
    on(90)

    def parts(*sizes, causal=True):
        q, k, _ = shaped(*sizes)
        found = heads_shared(q, k, causal, tuning.TABLE[sizes[-1], causal].dkdv)
        return found.parts if found else 1

    assert parts(4, 32, 1, 4096, 4096, 128) == 8, "2048 programs of at most 16 x 132"
    assert parts(4, 32, 1, 4096, 4096, 128, causal=False) == 1, "256 programs run at once, all as long"
    assert parts(1, 32, 1, 4096, 4096, 128, causal=False) == 4
    assert parts(1, 32, 8, 4096, 4096, 128) == 4 and parts(2, 16, 2, 8192, 8192, 64) == 4
    assert parts(4, 32, 8, 4096, 4096, 128) == 1, "2048 programs without"
    assert parts(4, 32, 32, 4096, 4096, 128) == 1, "nothing is shared"
    assert parts(4, 32, 8, 1024, 1024, 128) == 1, "too few queries for each"
    assert parts(1, 24, 1, 8192, 8192, 128) == 8, "three heads each"


@pytest.mark.parametrize("arch", [75, 80, 86, 89, 90, 100, 120])
def test_what_the_rule_asks_for_is_there(arch, rule):
    from tests.kernels.conftest import limits_of

    has = limits_of(arch)
    for D in (16, 64, 72, 96, 128):
        for heads, n_q in ((1, 1), (8, 1), (32, 1), (1, 128)):
            for dtype in (torch.float16, torch.float32):
                blocks = rule(arch, 1, heads, 1, n_q, 16384, D, dtype=dtype)
                need = tuning.need_of("forward", blocks, sum(split(D)), dtype.itemsize, has)
                assert 1 < blocks.parts <= tuning.MOST_PARTS and need.shared_bytes <= has.shared_bytes
                assert tuning.LEAST_KEYS * blocks.m * blocks.parts <= 16384


# What the compiler makes of it.


def compiled(m, n, warps, stages, D=128, group=4, causal=False, padded=False, tma=True):
    main, rest = split(D)
    fixed = {"GROUP": group, "HEAD": D, "MAIN": main, "REST": rest, "UNIT": 8, "WIDE": False, "TMA": tma}
    fixed |= {"CAUSAL": causal, "WHOLE": not padded, "BLOCK_M": m, "BLOCK_N": n, "PRECISION": "tf32"}
    fixed |= {} if padded else {"lengths_ptr": None}
    fixed |= {} if tma else {"k_tiles": None, "v_tiles": None}
    types = dict.fromkeys(("k_tiles", "v_tiles"), f"tensordesc<bf16[1,1,{n},{main}]>")
    types |= dict.fromkeys(("stride_q", "stride_k", "stride_v"), ("i32", "i32", "i32", 1))
    types |= {"acc_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32", "lengths_ptr": "*i32", "scale_log2": "fp32"}
    signature = signature_of(_parts_kernel, fixed, types)
    return compile_kernel(_parts_kernel, signature, fixed, num_warps=warps, num_stages=stages)


@pytest.mark.parametrize("m", tuning.FEW)
@pytest.mark.parametrize(
    ("D", "causal", "padded"),
    [
        (128, False, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((72, True, True), (96, True, True), (64, True, True))
        ),
    ],
)
def test_programs_that_share_keys_use_tensor_cores_and_spill_nothing(m, D, causal, padded, rule):
    blocks = rule(90, 1, m, 1, 1, 16384, D)  # m heads of one query are m rows
    assert blocks.m == m
    got = compiled(m, blocks.n, blocks.warps, blocks.stages, D, causal=causal, padded=padded)
    assert got.fits and got.spills_bytes == 0, str(got)
    assert got.instructions["wgmma" if m == 64 else "mma"] and got.instructions["tma"], str(got)
    assert not got.instructions["atomic"], str(got)


@pytest.mark.parametrize("parts", [2, 128])
def test_merging_reads_16_bytes_at_a_time(parts, access_widths):
    fixed = {"HEAD": 128, "COLUMNS": 128, "BLOCK_P": parts}
    types = {"l_ptr": "*fp32", "acc_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
    types["stride_o"] = ("i32", "i32", "i32", 1)
    signature = signature_of(_merge_kernel, fixed, types)
    got = compile_kernel(_merge_kernel, signature, fixed, num_warps=merging_warps(128, parts))
    assert got.spills_bytes == 0 and 16 in access_widths(got)["ld"], str(got)


# On a GPU.


@pytest.mark.gpu
@pytest.mark.parametrize("D", [64, 72, 128])
@pytest.mark.parametrize(("H", "H_kv"), [(4, 4), (8, 2), (32, 1)], ids=str)
def test_every_tile_is_right_on_a_gpu(H, H_kv, D, make, assert_within, taken):
    lengths = torch.tensor([2400, 1], device=DEVICE, dtype=torch.int32)
    for n_q, causal in ((1, False), (2, True), (16, True), (128, True), (128, False)):
        q, k, v, do = make(2, H, H_kv, n_q, 2560, D, torch.bfloat16)
        for given in (None, lengths):
            if given is not None:
                for b, length in enumerate(given):
                    k[b, :, length:], v[b, :, length:] = float("nan"), float("inf")
            (o, l), again = (forward(q, k, v, causal, 0.1, given) for _ in range(2))
            assert torch.equal(o, again[0]) and torch.equal(l, again[1])
            want = oracle(q, k, v, do, causal=causal, scale=0.1, k_lengths=given)
            assert_within(o, *want["o"])
            some = want["l"][0].isfinite()
            assert_within(l[some], *(x[some] for x in want["l"]))
            assert (l[~some] == -float("inf")).all()
    assert len(taken) == 20


@pytest.mark.gpu
@pytest.mark.parametrize("D", [16, 64, 72, 128])
def test_query_heads_in_parts_are_right_on_a_gpu(D, dtype, make, check):
    q, k, v, do = make(2, 16, 1, 700, 900, D, dtype)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tuning, "LEAST_ROWS", 1)
        assert heads_shared(q, k, True, tuning.tuned(D, True, dtype, q.device).dkdv).parts > 1
        lengths = torch.tensor([900, 333], device=DEVICE)
        k[1, :, 333:], v[1, :, 333:] = float("nan"), float("inf")
        check(q, k, v, do, causal=True, k_lengths=lengths)


@pytest.mark.gpu
def test_a_graph_replays_it_with_other_lengths(make):
    q, k, v, _ = make(2, 8, 2, 1, 4096, 128, torch.bfloat16)
    lengths = torch.tensor([4096, 4096], device=DEVICE, dtype=torch.int32)
    attention(q, k, v, k_lengths=lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = attention(q, k, v, k_lengths=lengths)
    for some in ((4096, 1), (0, 100), (3000, 4096)):
        lengths.copy_(torch.tensor(some))
        graph.replay()
        assert torch.equal(o, attention(q, k, v, k_lengths=lengths))


@pytest.mark.gpu
def test_four_million_keys_are_no_special_case(make):
    q, k, v, do = make(1, 32, 1, 1, 2**22, 128, torch.bfloat16)  # 1 GiB of keys
    o, _ = forward(q, k, v, False, 0.1)
    half = [forward(q, x, y, False, 0.1) for x, y in zip(k.chunk(2, 2), v.chunk(2, 2))]
    weights = torch.stack([l for _, l in half]).softmax(0)[..., None]
    torch.testing.assert_close(o.float(), sum(w * x.float() for w, (x, _) in zip(weights, half)), rtol=2e-2, atol=2e-3)
    assert all(x.isfinite().all() for x in backward(do, q, k, v, *forward(q, k, v, False, 0.1), False, 0.1))
