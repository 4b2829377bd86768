"""The backward pass in one: which calls may run it, what it promises, and that it is right."""

import math
import re
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

from course_lib.compiled import CompileError, compile_kernel
from course_lib.device import DEVICE
from course_lib.kernels.attention import attention, attention_operator, backward, tuning
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.attention.packed import packed_attention
from course_lib.kernels.attention.sums import finish, room, sums_and_counts, sums_of_parts
from course_lib.kernels.attention.tuning import (
    FASTER_IN_ORDER,
    FROM_A_COUNTER,
    IN_ORDER,
    ONE_PASS,
    OnePass,
    one_pass_for,
    parts_of_heads,
)
from course_lib.kernels.columns import split
from tests.kernels.attention_oracle import oracle

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

HALVES = pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
KEYS = sorted(ONE_PASS)
TABLES = {True: IN_ORDER, False: ONE_PASS}  # deterministic
EACH = [(*key, wish) for wish, table in TABLES.items() for key in sorted(table)]
# Bytes a thread, with either Triton: half as many again as it was, or 24.
SPILLS = {(64, False, True): 56, (64, False, False): 104, (64, True, True): 88, (64, True, False): 120}
HOPPER_HAS = 232448  # bytes of shared memory for a program


def way(key: tuple[int, bool], wish: bool) -> str:
    return "in order" if TABLES[wish][key].in_order else "in any order"


@pytest.fixture
def everywhere(monkeypatch):
    """Calls of any size may run in one pass. What ran: of each backward pass "in order", "in any order", "in two"."""
    from course_lib.kernels.attention import packed

    ran = []

    def spy(*args, _true=backward.write_gradients):
        one = isinstance(args[14], OnePass)
        ran.append(("in order" if args[14].in_order else "in any order") if one else "in two")
        return _true(*args)

    for name, table in (("IN_ORDER", IN_ORDER), ("ONE_PASS", ONE_PASS)):
        monkeypatch.setattr(
            tuning, name, {key: replace(entry, least=1, tiles=1, short=None) for key, entry in table.items()}
        )
    monkeypatch.setattr(packed, "ONE_PASS", tuning.ONE_PASS)
    for faster in ("FASTER_IN_ORDER", "SIDE_BY_SIDE"):
        monkeypatch.setattr(tuning, faster, {})
    monkeypatch.setattr(tuning, "WITH_LENGTHS", (32, 1))
    monkeypatch.setattr(tuning, "WITH_FEW_QUERIES", (64, 1))
    monkeypatch.setattr(tuning, "FULL_ROUNDS", 0.0)
    monkeypatch.setattr(backward, "write_gradients", spy)
    return ran


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(tuning, "capability", lambda device: (9, 0))
    monkeypatch.setattr(tuning, "multiprocessors", lambda device: 132)


def three(n_q=4096, n_k=4096, D=128, dtype=torch.bfloat16, B=2, H=16, H_kv=16):
    """q, k and v, whose values do not matter."""
    return [torch.empty(B, h, n, D, dtype=dtype, device="meta") for h, n in ((H, n_q), (H_kv, n_k), (H_kv, n_k))]


def chosen(columns, causal, deterministic, heads=1000):
    """The entry that a call gets whose other sizes are right for all."""
    entry = TABLES[deterministic or heads >= FASTER_IN_ORDER.get((columns, causal), math.inf)][columns, causal]
    together, least = FROM_A_COUNTER.get(columns, (0, math.inf))
    return replace(entry, dealt=False, together=together) if entry.dealt and heads >= least else entry


def length(entry, many) -> int:
    """From so many keys on it runs."""
    return (many and entry.short) or entry.least


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_additions_in_any_order_have_to_be_allowed(key, on_hopper):
    columns, causal = key
    tensors = three(D=columns, B=64)
    assert one_pass_for(causal, None, True, *tensors) == chosen(*key, True) and IN_ORDER[key].in_order
    assert one_pass_for(causal, None, False, *tensors) == chosen(*key, False) and not ONE_PASS[key].in_order
    q, *others = tensors
    few = one_pass_for(causal, None, False, q[:, :, :2048].contiguous(), *others)
    assert few is (chosen(*key, False) if causal else ONE_PASS[key]), "many wait for one dq without a mask"


def test_torch_can_forbid_them(on_hopper):
    torch.use_deterministic_algorithms(True)
    try:
        assert one_pass_for(True, None, False, *three(D=64)).in_order
    finally:
        torch.use_deterministic_algorithms(False)
    assert not one_pass_for(True, None, False, *three(D=64)).in_order


@pytest.mark.parametrize(("heads", "in_order"), [(23, False), (24, True)])
def test_with_many_heads_a_mask_and_128_columns_order_costs_nothing(heads, in_order, on_hopper):
    assert one_pass_for(True, None, False, *three(B=1, H=heads, H_kv=heads)).in_order is in_order


@pytest.mark.parametrize("many", [False, True], ids=["few tiles", "many tiles"])
@pytest.mark.parametrize(("columns", "causal", "wish"), EACH, ids=str)
def test_two_passes_stay_below_the_length_from_which_one_was_faster(columns, causal, wish, many, on_hopper):
    table = chosen(columns, causal, wish, 1000 if many else 1)
    least = length(table, many)
    heads = 2048 if many else -(-table.tiles // -(-least // 128))
    entry, in_order = (chosen(columns, causal, always, heads) for always in (wish, True))
    sizes = {"D": columns, "B": 1, "H": heads, "H_kv": heads}
    assert one_pass_for(causal, None, wish, *three(least, least, **sizes)) == entry
    falls_back = in_order if not wish and length(in_order, many) < least else None  # in order is allowed to all calls
    assert one_pass_for(causal, None, wish, *three(least - 1, least - 1, **sizes)) == falls_back
    shorter = length(in_order if falls_back else entry, many) - 1
    assert one_pass_for(causal, None, wish, *three(4096, shorter, **sizes)) is None
    if columns <= 64 or not many:
        assert one_pass_for(causal, None, wish, *three(shorter, 4096 if many else least, **sizes)) is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("wish", [True, False])
@pytest.mark.parametrize("columns", [64, 80, 96, 128])
def test_few_queries_of_many_keys(columns, wish, causal, on_hopper):
    found = one_pass_for(causal, None, wish, *three(64, 4096, D=columns))
    assert bool(found) is (columns >= 80)
    if found and found.in_order and not causal:
        assert not found.dealt and found.together == 64
    for n_q, n_k, heads in ((63, 4096, 32), (64, 4095, 32), (64, 4096, 15)):
        few = {"D": columns, "B": 1, "H": heads, "H_kv": heads}
        assert one_pass_for(causal, None, wish, *three(n_q, n_k, **few)) is None
    with_lengths = one_pass_for(causal, torch.ones(2), wish, *three(64, 4096, D=columns))
    assert with_lengths == found, "lengths change nothing here"


@pytest.mark.parametrize(("why", "n_q", "heads"), [("lengths", 8192, 16), ("few queries", 4096, 32)])
def test_with_few_heads_programs_would_wait_for_each_other(why, n_q, heads, on_hopper):
    """16 heads of 128 queries of 8192 keys, 64 columns, from a counter: 1.51 of two passes."""
    lengths = torch.ones(1) if why == "lengths" else None
    for H in (heads, heads - 1):
        tensors = three(n_q, 8192, B=1, H=H, H_kv=H)
        found = one_pass_for(False, lengths, True, *tensors)
        assert bool(found) is (H == heads) and (found is None or not found.dealt)
        free = one_pass_for(False, lengths, False, *tensors)
        assert free and (why == "lengths" or not free.in_order), "any order waits for nobody"


@pytest.mark.parametrize(("columns", "causal", "wish"), EACH, ids=str)
def test_two_passes_stay_where_tiles_are_few(columns, causal, wish, on_hopper):
    heads = chosen(columns, causal, wish, 1).tiles // 32  # 4096 keys are 32 tiles
    entry = chosen(columns, causal, wish, heads)
    assert one_pass_for(causal, None, wish, *three(D=columns, B=1, H=heads, H_kv=heads)) == entry
    assert one_pass_for(causal, None, wish, *three(D=columns, B=1, H=heads - 1, H_kv=heads - 1)) is None


def test_tiles_come_in_rounds_where_queries_are_as_many_as_keys(on_hopper):
    """Else more programs than blocks of queries want one dq: see test_attention_in_order.py."""
    sizes = {"n_k": 8192, "B": 8}
    for n_q in (8192, 9000):
        assert one_pass_for(False, None, True, *three(n_q, **sizes)) is IN_ORDER[128, False]
    without = replace(IN_ORDER[128, False], dealt=False, together=64)
    assert one_pass_for(False, None, True, *three(8191, **sizes)) == without


@pytest.mark.parametrize(
    ("n", "heads", "there"), [(2304, 8, False), (2048, 12, True), (2048, 8, True), (4096, 9, True)]
)
def test_in_order_a_last_round_is_not_nearly_empty(n, heads, there, on_hopper):
    """144 tiles are two rounds for 132 programs; 192 are most of two, 128 of one, 288 of three."""
    tensors = three(n, n, B=1, H=heads, H_kv=heads)
    assert bool(one_pass_for(False, None, True, *tensors)) is there
    assert one_pass_for(True, None, True, *tensors), "causal tiles are taken"
    assert one_pass_for(False, None, False, *tensors)


@pytest.mark.parametrize(("heads", "dealt"), [(31, True), (32, False)])
@pytest.mark.parametrize("columns", [16, 32, 80])
def test_few_heads_would_wait_for_each_other_if_tiles_came_from_a_counter(columns, heads, dealt, on_hopper):
    """8 heads of 4096 x 32: 1.30 of FlashAttention-4's time, and 1.13 where they are dealt."""
    tensors = three(16896, 16896, D=columns, B=1, H=heads, H_kv=heads)
    assert one_pass_for(False, None, True, *tensors).dealt is dealt


@pytest.mark.parametrize("wish", [True, False])
def test_beside_other_ranks_no_launch_of_128_columns_waits_for_multiprocessors(wish, on_hopper, monkeypatch):
    many, few = three(B=2, H=16, H_kv=16), three(B=2, H=15, H_kv=15)
    assert one_pass_for(False, None, wish, *many).dealt
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    assert one_pass_for(False, None, wish, *many).dealt, "no other rank"
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    found = one_pass_for(False, None, wish, *many)
    assert found == replace(IN_ORDER[128, False], dealt=False, together=8)
    assert one_pass_for(False, None, wish, *few) is IN_ORDER[128, False], "few wait for each other"
    assert one_pass_for(True, None, True, *many) is IN_ORDER[128, True]
    for columns in (80, 96):
        tensors = three(B=2, H=16, H_kv=16, D=columns)
        assert one_pass_for(False, None, True, *tensors).dealt is (columns == 96), "as alone"


@pytest.mark.parametrize("wish", [True, False])
def test_what_the_copy_engine_does_not_reach_stays_with_two_passes(wish, on_hopper):
    for head_size in (36, 50, 100):
        assert one_pass_for(False, None, wish, *three(D=head_size, B=4)) is None, "rows out of the copy engine's reach"
    wide = [torch.empty(4, 16, 4096, 64, dtype=torch.bfloat16)[..., :50] for _ in range(3)]
    assert one_pass_for(False, None, wish, *wide) is None, "sums of dq out of its reach"
    q, k, v = three()
    assert one_pass_for(False, None, wish, q.float(), k, v) is None
    assert one_pass_for(False, None, wish, q, k.mT.contiguous().mT, v) is None


@pytest.mark.parametrize("wish", [True, False])
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_with_lengths_tiles_come_from_a_counter(key, wish, on_hopper):
    columns, causal = key
    tensors, lengths = three(D=columns, B=8), torch.ones(8)
    found, without = (one_pass_for(causal, one, wish, *tensors) for one in (lengths, None))
    if without.in_order and not causal:
        assert found == replace(without, dealt=False, together=32)
    else:
        assert found == without
    few = three(1152, 1152, B=1)  # a last round that is nearly empty: nothing comes in rounds here
    assert one_pass_for(False, torch.ones(1), True, *few).in_order and one_pass_for(False, None, True, *few) is None


@pytest.mark.parametrize("wish", [True, False])
def test_with_lengths_a_causal_call_of_few_columns_is_twice_as_long(wish, on_hopper):
    """Of lengths drawn from half of the keys on, three quarters are there: 1.09 of two passes at 1024 keys."""
    for columns, causal, times in ((48, True, 2), (64, True, 2), (80, True, 1), (128, True, 1), (64, False, 1)):
        least = times * length(chosen(columns, causal, wish), True)
        sizes, lengths = {"D": columns, "B": 32}, torch.ones(32)
        below, found = (one_pass_for(causal, lengths, wish, *three(n, n, **sizes)) for n in (least - 1, least))
        assert found and found != below


def test_no_other_architecture_and_no_other_triton_runs_it(on_hopper, monkeypatch):
    monkeypatch.setattr(tuning, "gluon_is_known", lambda: False)
    assert one_pass_for(False, None, False, *three()) is None
    monkeypatch.setattr(tuning, "gluon_is_known", lambda: True)
    assert one_pass_for(False, None, False, *three())
    for other in ((8, 0), (8, 9), (10, 0), (12, 0)):
        monkeypatch.setattr(tuning, "capability", lambda device, other=other: other)
        assert one_pass_for(False, None, False, *three()) is None


def test_room_is_made_for_one_pass_only():
    q, k = (torch.empty(x.shape, dtype=x.dtype) for x in three(n_q=100, n_k=60, H_kv=4)[:2])
    assert room(q, k, None) is None
    for entry, counters in ((ONE_PASS[128, False], 1), (IN_ORDER[128, False], 1 + 32 * 2)):  # one of tiles
        made = room(q, k, entry)
        assert made.numel() == q.numel() // 100 * 104 + counters and made.dtype == torch.float32
        sums, added = sums_and_counts(made, q, k, entry)
        assert sums.shape == (32, 104, 128)
        entry = replace(entry, parts=2)
        shared = room(q, k, entry)
        assert shared.numel() == made.numel() + 2 * 2 * k.numel()
        shared.zero_()
        sums_of_parts(shared, q, k, entry).fill_(1.0)
        of_dq, added = sums_and_counts(shared, q, k, entry)
        assert sums_of_parts(shared, q, k, entry).shape == (2, 2, 8, 60, 128) and of_dq.shape == sums.shape
        assert not of_dq.any() and not added.any(), "apart from one another"
        assert added.shape == (counters,) and added.dtype == torch.int32


@pytest.mark.parametrize("columns", [32, 64])
def test_no_two_threads_of_half_a_warp_write_to_the_same_banks(columns, monkeypatch):
    """A thread's 8 bytes are two columns of the product; of 16 threads they are all 128 bytes that can be written."""
    from course_lib.kernels.attention import groups_onepass
    from course_lib.kernels.attention.groups_onepass import _of_sums, _without_conflicts, sums_descriptors

    assert _of_sums(columns).swizzle_byte_width == 128
    monkeypatch.setattr(groups_onepass, "make_context_current", lambda tensor: None)
    sums = torch.arange(2 * 64 * columns, dtype=torch.float32).view(2, 64, columns)
    desc, _rest = sums_descriptors(sums, 128)
    there = desc.base.as_strided(desc.shape, desc.strides)
    assert torch.equal(there[1], _without_conflicts.fn(sums[1])), "where the copy engine adds what lies there"
    element = torch.arange(64 * columns).view(64, columns)
    place, column = (x.flatten() for x in torch.meshgrid(torch.arange(64), torch.arange(columns), indexing="ij"))
    panel, chunk = column // 32, column % 32 // 4  # rows of 128 bytes, in which eight places exchange their 16 bytes
    address = 128 * (64 * panel + place) + 16 * (chunk ^ place % 8) + 4 * (column % 4)
    of_element = torch.empty(64 * columns, dtype=torch.int64)
    of_element[_without_conflicts.fn(element).flatten()] = address
    for row, first in product(range(0, 64, 4), range(0, columns, 8)):
        banks = of_element[element[row : row + 4, first : first + 8 : 2]] // 8 % 16
        assert len(banks.unique()) == 16, (row, first)


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
    monkeypatch.setattr(packed, "ONE_PASS", {(16, False): OnePass(64, together=1, least=40, tiles=1, short=17)})
    monkeypatch.setattr(packed, "in_one_for", lambda causal, lengths, wish, *tensors: asked.append(wish))
    qkv = torch.randn(1, 17, 3, 2, 16, device=DEVICE, requires_grad=True)
    for wish in (True, False):
        packed_attention(qkv, deterministic=wish).sum().backward()
        packed.packed_attention_operator(qkv, None, None, wish)[0].sum().backward()
    compiled = torch.compile(lambda given: packed_attention(given, deterministic=False), backend="aot_eager")
    compiled(qkv).sum().backward()
    assert asked == [True, True, False, False, False]


def test_the_look_that_packed_attention_takes_first_leaves_nobody_out():
    """It asks ONE_PASS from which length on, whatever the call allows."""
    for many in (False, True):
        assert all(length(IN_ORDER[key], many) >= length(ONE_PASS[key], many) for key in KEYS if not key[1])


def test_programs_share_query_heads_where_rounds_are_not_full(on_hopper):
    """132 programs at once."""

    def parts(causal, B, H, H_kv, n):
        return parts_of_heads(causal, *three(n, n, B=B, H=H, H_kv=H_kv)[:2])

    assert parts(True, 4, 32, 1, 4096) == 8, "a program walks over four heads"
    assert parts(True, 4, 32, 4, 4096) == 2 and parts(False, 4, 32, 4, 4096) == 1
    assert parts(True, 1, 32, 1, 4096) == 8
    assert parts(True, 4, 32, 8, 4096) == 1, "1,024 tiles, of four heads each"
    assert parts(True, 4, 4, 1, 4096) == 2, "of 128 tiles the longest is twice the mean"
    assert parts(False, 4, 32, 1, 4096) == 1, "128 tiles, as long as one another"
    assert parts(False, 1, 32, 1, 4096) == 4
    assert parts(False, 3, 32, 1, 4096) == 4, "96 tiles are .73 of a round, 384 .97 of three"
    assert parts(True, 1, 32, 32, 1024) == 1, "nothing to share"
    assert parts(False, 1, 7, 1, 8192) == 7, "64 tiles; 2 and 4 do not divide 7"
    assert parts(False, 2, 10, 2, 2048) == 5, "64 tiles; 2 does not divide 5"
    assert parts(True, 1, 32, 8, 4608) == 1, "288 tiles are taken, not dealt"
    assert parts(False, 1, 32, 8, 4608) == 2, "three rounds of four heads, or five of two"


def test_two_tiles_of_columns_are_not_shared(on_hopper):
    for D, parts in ((72, 1), (96, 1), (128, 8)):
        q, k, _ = three(D=D, B=1, H=32, H_kv=1)
        assert parts_of_heads(True, q, k) == parts


@pytest.mark.parametrize("wish", [True, False])
def test_tiles_of_all_query_heads_count(wish, on_hopper):
    found = one_pass_for(True, None, wish, *three(B=4, H=32, H_kv=1))
    assert found == replace(IN_ORDER[128, True], parts=8)
    assert one_pass_for(True, None, wish, *three(B=4, H=4, H_kv=1)) == replace(TABLES[wish][128, True], parts=2)
    assert one_pass_for(True, None, wish, *three(B=3, H=1, H_kv=1)) is None
    assert one_pass_for(True, None, wish, *three(B=4, H=32, H_kv=8)) is IN_ORDER[128, True]


@pytest.mark.parametrize("D", [16, 72, 128])
def test_sums_of_parts_are_added_in_order(D, fenced):
    kind = torch.float16
    whole = fenced(2, 150, 3, D, dtype=kind).transpose(1, 2)
    sums = torch.randn(2, 3 * 4, 150, D, device=DEVICE) * 10.0 ** torch.randint(-3, 4, (2, 12, 1, 1), device=DEVICE)
    finish(whole, sums, 0.5, 4)
    a, b, c, d = sums.unflatten(1, (3, 4)).unbind(2)
    assert torch.equal(whole, (0.5 * (((a + b) + c) + d)).to(kind))


def test_anything_but_yes_or_no_is_refused_in_words(make):
    q, k, v, _ = make(1, 1, 1, 4, 4, 16, torch.float32)
    with pytest.raises(AssertionError, match="deterministic is True or False, not 0"):
        attention(q, k, v, deterministic=0)


def compiled(D, causal, wish, whole=True, group=1, parts=1, lengths=False, dealt=None):
    """What the compiler makes of the kernel; of `group` query heads a program has its part. `dealt`: as the table has
    it."""
    from course_lib.kernels.attention.groups import HALF, _layout, _plain
    from course_lib.kernels.attention.groups_onepass import _of_sums, one_pass_in_groups_kernel, settings
    from course_lib.kernels.rings import LAUNCH

    entry, (main, rest) = replace(TABLES[wish][D, causal], parts=parts), split(D)
    if dealt is not None:
        entry = replace(entry, dealt=dealt)
    fixed = settings(entry) | {"GROUP": group // parts, "CAUSAL": causal, "WHOLE": whole, "MAIN": main, "REST": rest}
    of_sums = (64, min(main, 64)) if rest == 0 else (entry.block, main)
    signature = {}
    for one in (n for n in one_pass_in_groups_kernel.arg_names if n not in fixed):
        rows = entry.block if one.startswith(("q_", "do_")) else HALF.value
        columns = rest if one.endswith("_rest") else main
        if one in ("shift_desc", "delta_desc"):
            signature[one] = f"tensordesc<fp32[1, {entry.block}],{_plain()!r}>"
        elif one == "lengths_ptr":
            signature[one] = "*i32" if lengths else "constexpr"
        elif columns == 0:
            signature[one] = "constexpr"
        elif one.startswith("dq_"):
            height, columns = (of_sums[0], rest) if one == "dq_rest" else of_sums
            signature[one] = f"tensordesc<fp32[1, {height // 8}, 4, 2, {columns}],{_of_sums(columns)!r}>"
        elif one == "counts_ptr":
            signature[one] = "*i32"
        elif one in ("dk_desc", "dv_desc") and parts > 1:
            signature[one] = f"tensordesc<fp32[1, 1, {rows}, {columns}],{_layout(columns, 4)!r}>"
        elif one.endswith(("_desc", "_rest")):
            signature[one] = f"tensordesc<bf16[1, 1, {rows}, {columns}],{_layout(columns)!r}>"
        else:
            signature[one] = {"scale": "fp32", "scale_log2": "fp32"}.get(one, "i32")
    options = {"num_warps": LAUNCH["num_warps"], "max_registers": LAUNCH["maxnreg"]}
    return compile_kernel(one_pass_in_groups_kernel, signature, fixed, divisible_by_16=False, **options)


def shortest_loops(sass: str) -> list[str]:
    """Of all loops that make the products of a turn, 26 or more, the two shortest, one of each consumer: blocks of
    queries that see all keys."""
    lines = [line for line in sass.splitlines() if re.search(r"/\*[0-9a-f]{4,5}\*/", line)]
    at = {int(re.search(r"/\*([0-9a-f]{4,5})\*/", line)[1], 16): i for i, line in enumerate(lines)}
    jumps = [(i, re.search(r"\bBRA 0x([0-9a-f]+)", line)) for i, line in enumerate(lines)]
    back = [(at[int(to[1], 16)], i) for i, to in jumps if to and at.get(int(to[1], 16), i) < i]
    loops = ["\n".join(lines[begin : end + 1]) for begin, end in back]
    return sorted((loop for loop in loops if loop.count("HGMMA") >= 26), key=len)[:2]


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[pytest.mark.slow] if key[1] or not key[2] else []) for key in EACH], ids=str
)
def test_every_configuration_compiles_and_fits(key):
    got = compiled(*key)
    assert got.shared_bytes <= HOPPER_HAS and got.registers == 168, str(got)
    assert got.spills_bytes <= SPILLS.get(key, 24), str(got)
    for loop in shortest_loops(got.sass):
        assert not re.search(r"\b(LDL|STL)\b", loop), "of what lies in local memory nothing is asked for in every turn"
    assert got.instructions["wgmma"] and got.instructions["tma"], str(got)
    assert "cp.reduce.async.bulk.tensor" in got.ptx, "it is the copy engine that adds"
    counters = ("red.release.gpu" in got.ptx, "ld.acquire.gpu" in got.ptx)
    assert counters == 2 * (way(key[:2], key[2]) == "in order",), "they keep the order"
    assert {"240", "24"} <= set(re.findall(r"setmaxnreg[^;]*?(\d+);", got.ptx)), "registers move to those who compute"


@pytest.mark.slow
@pytest.mark.parametrize("key", EACH, ids=str)
def test_tails_compile_and_fit_too(key):
    assert compiled(*key, whole=False).shared_bytes <= HOPPER_HAS


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[] if key == (128, True, True) else [pytest.mark.slow]) for key in EACH], ids=str
)
def test_lengths_compile_and_fit_too(key):
    got = compiled(*key, whole=False, lengths=True, dealt=False)
    assert got.shared_bytes <= HOPPER_HAS and got.registers == 168, str(got)
    for loop in shortest_loops(got.sass):
        assert not re.search(r"\b(LDL|STL)\b", loop), "nothing is spilled over blocks that are seen whole"


@pytest.mark.parametrize("columns", [16, 32, pytest.param(64, marks=pytest.mark.slow), 80, 96, 128])
def test_tiles_from_a_counter_compile_and_fit_without_a_mask_too(columns):
    """For few queries at all widths, and with many heads at some."""
    got = compiled(columns, False, True, dealt=False)
    assert got.shared_bytes <= HOPPER_HAS and got.registers == 168, str(got)
    assert got.spills_bytes <= SPILLS.get((columns, False, True), 24), str(got)
    for loop in shortest_loops(got.sass):
        assert not re.search(r"\b(LDL|STL)\b", loop), "nothing is spilled over blocks that are seen whole"


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=[] if key == (128, True, True) else [pytest.mark.slow]) for key in EACH], ids=str
)
def test_parts_compile_and_fit_too(key):
    """Their sums leave through the places of dq: no more shared memory, and next to no more spills."""
    if split(key[0])[1]:
        with pytest.raises(CompileError, match="parts of two tiles of columns are not written"):
            compiled(*key, group=4, parts=2)
        return
    without, got = compiled(*key, group=2), compiled(*key, group=4, parts=2)
    assert got.shared_bytes == without.shared_bytes and got.registers == 168, str(got)
    assert got.spills_bytes <= without.spills_bytes + 64, f"{got} beside {without}"


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
    (8, 16, 8, 700, 500, 64),
    (8, 16, 8, 700, 500, 128),
    (2, 4, 2, 333, 200, 16),
    (2, 4, 2, 513, 640, 32),
    (8, 16, 8, 700, 500, 40),
    (2, 4, 2, 300, 333, 48),
    (1, 2, 2, 130, 260, 24),
    (1, 2, 2, 257, 129, 56),
    (8, 16, 8, 700, 500, 72),
    (2, 4, 4, 333, 200, 80),
    (1, 2, 1, 70, 17, 88),
    (2, 4, 2, 513, 640, 96),
    (2, 2, 2, 200, 333, 112),
]


WISHES = pytest.mark.parametrize("wish", [True, False], ids=["in order", "in any order"])
IN_PARTS = [  # B, H, H_kv, n_q, n_k, D, parts
    (1, 2, 1, 257, 129, 64, 2),
    (2, 8, 2, 200, 333, 128, 2),
    (2, 8, 2, 200, 333, 128, 4),
    (1, 8, 1, 333, 200, 128, 8),
    (1, 4, 1, 1, 80, 128, 4),
    (2, 6, 2, 70, 17, 16, 3),
    (1, 32, 1, 513, 640, 32, 4),
    (1, 32, 1, 130, 260, 32, 32),
    (1, 32, 1, 1000, 1000, 64, 16),
    (2, 32, 1, 700, 700, 128, 2),
    (40, 8, 4, 300, 300, 128, 2),
    (8, 24, 2, 700, 500, 64, 6),
    (1, 4, 2, 333, 200, 64, 2),
    (1, 8, 2, 257, 300, 112, 4),
]


def assert_near(got, q, k, v, do, causal):
    want = oracle(q, k, v, do, causal=causal)
    for name, value in zip(("dq", "dk", "dv"), got):
        exact, bound = want[name]
        assert ((value - exact).abs() <= bound + 1e-6 * exact.abs()).all(), name


@pytest.mark.gpu
@WISHES
@HALVES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_pass_is_right_for_any_shape(shape, causal, kind, wish, make, everywhere):
    q, k, v, do = make(*shape, kind)
    scale = shape[-1] ** -0.5
    o, l = forward(q, k, v, causal, scale)
    got = backward.backward(do, q, k, v, o, l, causal, scale, None, None, wish)
    assert everywhere == [way((sum(split(shape[-1])), causal), wish)]
    assert_near(got, q, k, v, do, causal)


@pytest.mark.gpu
@WISHES
@HALVES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", IN_PARTS, ids=str)
def test_parts_are_right_for_any_shape(shape, causal, kind, wish, make, fenced):
    *sizes, parts = shape
    q, k, v, do = make(*sizes, kind)
    scale = sizes[-1] ** -0.5
    o, l = forward(q, k, v, causal, scale)
    got = [fenced(*x.shape, dtype=x.dtype) for x in (q, k, v)]
    blocks = replace(TABLES[wish][sum(split(sizes[-1])), causal], parts=parts)
    backward.write_backward(*got, do, q, k, v, o, l, causal, scale, None, None, blocks)
    assert_near(got, q, k, v, do, causal)


@pytest.mark.gpu
@WISHES
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("sizes", [(333, 333), (200, 333), (513, 400), (1024, 1024)], ids=str)
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_lengths(key, sizes, parts, wish, make, fenced):
    """Whole, none, one key, an end inside a block and one at its edge; behind them first NaN, then infinities."""
    columns, causal = key
    if parts > 1 and split(columns)[1]:
        pytest.skip("parts of two tiles of columns are not written")
    q, k, v, do = make(6, 4, 2, *sizes, columns, torch.bfloat16)
    lengths = torch.tensor([sizes[1], 0, 1, 150, 256, -3], dtype=torch.int32, device=q.device)
    behind = (torch.arange(sizes[1], device=q.device) >= lengths[:, None])[:, None, :, None]
    blocks, runs = replace(TABLES[wish][key], parts=parts, dealt=False), []
    for hidden in (float("nan"), float("inf"), float("nan")):
        k, v = (x.masked_fill(behind, hidden) for x in (k, v))
        o, l = forward(q, k, v, causal, 0.1, lengths)
        got = [fenced(*x.shape, dtype=x.dtype) for x in (q, k, v)]
        backward.write_backward(*got, do, q, k, v, o, l, causal, 0.1, lengths, None, blocks)
        runs.append(got)
    want = oracle(q, k, v, do, causal=causal, scale=0.1, k_lengths=lengths.clamp(min=0))
    for name, value in zip(("dq", "dk", "dv"), runs[0]):
        exact, bound = want[name]
        assert ((value - exact).abs() <= bound + 1e-6 * exact.abs()).all(), name
    assert not any(x.masked_select(behind).any() for x in runs[0][1:]), "what lies behind the length is moved"
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0][not wish :], again[not wish :])), "the same bits"


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [2, 4, 8, 32])
@pytest.mark.parametrize("D", [64, 128])
def test_parts_have_the_same_bits_on_every_run(D, heads, causal, make):
    q, k, v, do = make(3, heads, 1, 1500, 1100, D, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    for wish, table in TABLES.items():
        blocks = replace(table[D, causal], parts=min(heads, 4))
        first = None
        for _ in range(30 if wish else 6):
            got = [torch.empty_like(x) for x in (q, k, v)]
            backward.write_backward(*got, do, q, k, v, o, l, causal, 0.1, None, None, blocks)
            first = first or got
            assert not any(x.isnan().any() for x in got)
            assert all(torch.equal(a, b) for a, b in zip(first[not wish :], got[not wish :]))


@pytest.mark.gpu
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_the_same_bits_come_unless_any_order_is_allowed(key, make, everywhere):
    columns, causal = key
    q, k, v, do = make(8, 16, 8, 1000, 1100, columns, torch.bfloat16)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = attention(*leaves, causal=causal)
    runs = [torch.autograd.grad(o, leaves, do, retain_graph=True) for _ in range(30)]
    assert everywhere == 30 * ["in order"]
    for again in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], again))
    o = attention(*leaves, causal=causal, deterministic=False)
    free = [torch.autograd.grad(o, leaves, do, retain_graph=True) for _ in range(4)]
    assert everywhere[30:] == 4 * [way(key, False)]
    for again in free[1:]:
        assert all(torch.equal(a, b) for a, b in zip(free[0][1:], again[1:])), "dk and dv"


@pytest.mark.gpu
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_one_pass_is_as_close_as_two(key, make, everywhere, monkeypatch):
    columns, causal = key
    q, k, v, do = make(2, 4, 4, 1024, 2048, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    runs = [backward.backward(do, q, k, v, o, l, causal, 0.1, None, None, wish) for wish in (True, False, False)]
    monkeypatch.setattr(tuning, "IN_ORDER", {})
    runs.append(backward.backward(do, q, k, v, o, l, causal, 0.1))
    assert everywhere == ["in order", *(2 * [way(key, False)]), "in two"]
    exact, _ = oracle(q, k, v, do, causal=causal, scale=0.1)["dq"]
    errors = [((dq - exact).norm() / exact.norm()).item() for dq, _, _ in runs]
    assert max(errors) < 1.01 * min(errors) < 4e-3


@pytest.mark.gpu
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_programs_that_wait_for_one_another_do_not_wait_for_ever(key, make, everywhere):
    """Two such calls at the same time, in two streams, beside a third that keeps multiprocessors busy."""
    columns, causal = key
    q, k, v, do = make(2, 16, 16, 2048, 2048, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    call = partial(backward.backward, do, q, k, v, o, l, causal, 0.1)
    want = call()
    torch.cuda.synchronize()
    streams, found = [torch.cuda.Stream() for _ in range(3)], []
    square = torch.randn(4096, 4096, device=DEVICE, dtype=torch.bfloat16)
    for _ in range(20):
        for one in streams[:2]:
            with torch.cuda.stream(one):
                found.append(call())
        with torch.cuda.stream(streams[2]):
            square @ square
    torch.cuda.synchronize()
    assert set(everywhere) == {"in order"}
    for got in found:
        assert all(torch.equal(a, b) for a, b in zip(got, want))


@pytest.mark.gpu
def test_it_runs_in_a_graph(make, everywhere):
    from course_lib.timing.waiting import captured

    q, k, v, do = make(4, 16, 16, 1024, 1024, 128, torch.bfloat16)
    o, l = forward(q, k, v, True, 0.1)
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    want = backward.backward(do, q, k, v, o, l, True, 0.1)
    replay = captured(lambda: backward.write_backward(dq, dk, dv, do, q, k, v, o, l, True, 0.1))
    for _ in range(3):
        for x in (dq, dk, dv):
            x.fill_(float("nan"))
        replay()
        torch.cuda.synchronize()
        assert all(torch.equal(a, b) for a, b in zip((dq, dk, dv), want))
    assert set(everywhere) == {"in order"}


@pytest.mark.gpu
@WISHES
def test_below_the_table_two_passes_run_and_above_it_one(wish, make, monkeypatch):
    from course_lib.kernels.attention import groups_onepass

    launched = []

    def spy(kernel, *args, _true=groups_onepass.launch, **options):
        launched.append(kernel)
        return _true(kernel, *args, **options)

    monkeypatch.setattr(groups_onepass, "launch", spy)
    least = TABLES[wish][128, False].least
    for n, times in ((least - 1, 0), (least, 1)):
        q, k, v, do = make(1, 16, 16, n, n, 128, torch.bfloat16)
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        torch.autograd.grad(attention(*leaves, deterministic=wish), leaves, do)
        assert launched == times * [groups_onepass.one_pass_in_groups_kernel]


@pytest.mark.gpu
@WISHES
@pytest.mark.parametrize("key", KEYS, ids=str)
def test_nothing_is_written_beside_the_outputs(key, wish, make, fenced, everywhere):
    columns, causal = key
    q, k, v, do = make(3, 2, 1, 197, 131, columns, torch.bfloat16)
    o, l = forward(q, k, v, causal, 0.1)
    dq, dk, dv = (fenced(*x.shape, dtype=x.dtype) for x in (q, k, v))
    backward.write_backward(dq, dk, dv, do, q, k, v, o, l, causal, 0.1, None, None, None, wish)
    assert everywhere == [way(key, wish)]
    assert not any(x.isnan().any() for x in (dq, dk, dv))


@pytest.mark.gpu
def test_a_gradient_of_l_and_one_tensor_for_q_k_and_v_come_this_way_too(make, everywhere, monkeypatch):
    from course_lib.kernels.attention import packed

    q, k, v, do = make(1, 4, 4, 256, 256, 64, torch.bfloat16)
    o, l = forward(q, k, v, False, 0.125)
    dl = torch.randn_like(l)
    monkeypatch.setattr(packed, "write_gradients", backward.write_gradients)
    qkv = torch.stack([x.transpose(1, 2) for x in (q, k, v)], dim=2).requires_grad_()
    ways = {"in order": True, "in any order": False}
    for way, wish in ways.items():
        one = backward.backward(do, q, k, v, o, l, False, 0.125, None, dl, wish)
        packed_attention(qkv, deterministic=wish).backward(do.transpose(1, 2))
        assert everywhere == [way, way]
        ways[way] = *one, *qkv.grad.unbind(2)
        everywhere.clear()
        qkv.grad = None
    for name in ("IN_ORDER", "ONE_PASS"):
        monkeypatch.setattr(tuning, name, {})
    two = backward.backward(do, q, k, v, o, l, False, 0.125, None, dl)
    two += tuple(x.transpose(1, 2) for x in backward.backward(do, q, k, v, o, l, False, 0.125))
    assert everywhere == ["in two", "in two"]
    for way in ways.values():
        for a, b in zip(way, two, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3)
