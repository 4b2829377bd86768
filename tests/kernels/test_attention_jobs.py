"""Attention's kernels with jobs for their warps, carried out by the host: right whoever comes first."""

import sys
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from course_lib.device import TIER
from course_lib.interpreter.jobs import Run
from course_lib.interpreter.tiles import Int
from course_lib.kernels.attention import (
    groups_dkdv,
    groups_forward,
    groups_onepass,
    groups_softmax,
    groups_tiles,
    sums,
)
from course_lib.kernels.attention.backward import write_gradients
from course_lib.kernels.attention.groups_dkdv import write_dkdv_in_groups
from course_lib.kernels.attention.groups_forward import write_forward_in_groups
from course_lib.kernels.attention.groups_onepass import write_in_one_pass
from course_lib.kernels.attention.tuning import GROUPS, IN_ORDER, ONE_PASS, Groups
from course_lib.kernels.columns import split
from tests.kernels.attention_oracle import growing, oracle

pytestmark = pytest.mark.skipif(TIER == "gpu", reason="there the GPU carries them out")

MULTIPROCESSORS = 3  # of every shape some program has several tiles
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])


def asked_for_its_turn(run, counter, number):
    run.until(lambda: counter.value >= number)
    return 0


def counted(run, counter, number):
    counter.value += number
    return 0


def taken(run, counter, number):
    before = Int(counter.value)
    counter.value += number
    return before


SCALING = [groups_softmax.scaling(n) for n in (8, 32, 64)]
ASM = {
    groups_onepass._TAKE.value: taken,
    groups_onepass._OF_LANE_0.value: lambda run, number: number,
    groups_onepass._NOW.value: lambda run, number: number,
    groups_onepass._AWAIT.value: asked_for_its_turn,
    groups_onepass._COUNT.value: counted,
    groups_onepass._ADDED.value: lambda run, turn: run.all_written() or 0,
} | dict.fromkeys(SCALING, lambda run, x, factor: x * factor)


def add(run, desc, coord, tile):
    run.send(desc, coord, tile, adds=True)


MODULES = groups_forward, groups_dkdv, groups_onepass
KERNELS = (
    groups_forward.forward_in_groups_kernel,
    groups_dkdv.dkdv_in_groups_kernel,
    groups_onepass.one_pass_in_groups_kernel,
)


@pytest.fixture
def paper(carried_out, monkeypatch):
    """paper(seed): from now on kernels with jobs are carried out by the host; the list says which were."""

    def dealt(q, *kind):
        return torch.tensor(groups_tiles.deal(MULTIPROCESSORS, *kind), dtype=torch.int32)

    monkeypatch.setattr(groups_forward, "dealt", dealt)

    def begin(seed, instead=None, at_once=MULTIPROCESSORS):
        instead = {"async_add": add} | (instead or {})
        return carried_out(MODULES, KERNELS, MULTIPROCESSORS, seed=seed, at_once=at_once, asm=ASM, instead=instead)

    return begin


def four(B, H, H_kv, n_q, n_k, D, kind, lengths=None):
    """q, k, v and do; keys behind a length are no numbers."""
    draw = torch.Generator().manual_seed(D + n_q)
    sizes = (H, n_q), (H_kv, n_k), (H_kv, n_k), (H, n_q)
    q, k, v, do = (torch.randn(B, h, n, D, generator=draw).to(kind) for h, n in sizes)
    for batch, length in enumerate(() if lengths is None else lengths):
        k[batch, :, length:], v[batch, :, length:] = float("nan"), float("inf")
    return q, k, v, do


def assert_near(got, want, names):
    for name, value in zip(names, got, strict=True):
        exact, bound = want[name]
        unit = torch.finfo(value.dtype).eps if value.dtype != torch.float32 else 2.0**-22
        limit = bound + unit * (exact.abs() + bound) + 1e-6
        finite = exact.isfinite()
        assert torch.equal(value[~finite].double(), exact[~finite]), name
        assert ((value.double() - exact).abs() <= limit)[finite].all(), name


def empty(*tensors):
    return [torch.full_like(x, float("nan")) for x in tensors]


FORWARD = {
    "a program a tile": {"persistent": False, "held": 1},
    "every third": {"persistent": True, "held": 2},
    "dealt": {"persistent": True, "held": 2, "dealt": True},
    "three consumers": {"persistent": True, "held": 1, "consumers": 3, "stages": 2},
}


@pytest.mark.parametrize("way", FORWARD)
@CAUSAL
@pytest.mark.parametrize(
    "shape",
    [(1, 2, 2, 200, 333, 128), (2, 4, 2, 333, 200, 64), (1, 2, 1, 300, 260, 48), (1, 2, 2, 130, 130, 72)],
    ids=str,
)
def test_forward(shape, causal, way, paper):
    if FORWARD[way].get("dealt") and not causal:
        pytest.skip("tiles of one length are not dealt")
    q, k, v, do = four(*shape, torch.float16)
    want = oracle(q, k, v, do, causal=causal)
    blocks = replace(GROUPS["forward", sum(split(shape[-1])), causal], **FORWARD[way], heads_interleaved=2)
    blocks = replace(blocks, dealt=bool(FORWARD[way].get("dealt")), consumers=FORWARD[way].get("consumers", 2))
    for seed in range(2):
        ran = paper(seed)
        (o,), l = empty(q), torch.full(q.shape[:3], float("nan"))
        write_forward_in_groups(o, l, q, k, v, causal, shape[-1] ** -0.5, None, blocks)
        assert_near((o, l), want, ("o", "l"))
        assert ran == [KERNELS[0]]


@pytest.fixture
def scaled(monkeypatch):
    """Of every time that sums may be scaled: whether some factor is not 1."""
    found = []

    def seen(run, x, factor):
        found.append(bool((factor != 1).any()))
        return x * factor

    monkeypatch.setattr(sys.modules[__name__], "ASM", ASM | dict.fromkeys(SCALING, seen))
    return found


@CAUSAL
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("columns", "consumers"), [(64, 3), (64, 2), (80, 2), (128, 2)])
def test_forward_where_maxima_grow(columns, consumers, lazy, causal, paper, scaled):
    q, k, v, do = four(1, 2, 1, 260, 700, columns, torch.float16)
    q, k = growing(q, k)
    want = oracle(q, k, v, do, causal=causal)
    paper(0)
    (o,), l = empty(q), torch.full(q.shape[:3], float("nan"))
    blocks = replace(GROUPS["forward", columns, causal], lazy=lazy, consumers=consumers, stages=2)
    write_forward_in_groups(o, l, q, k, v, causal, columns**-0.5, None, blocks)
    assert_near((o, l), want, ("o", "l"))
    assert any(scaled) is lazy, "where a maximum has grown by more than 8 powers of two"


def test_sums_are_seldom_scaled(paper, scaled):
    """Of scores of one size, after the first block: never."""
    q, k, v, _do = four(1, 1, 1, 128, 1024, 64, torch.float16)
    paper(0)
    write_forward_in_groups(
        *empty(q), torch.empty(q.shape[:3]), q, k, v, False, 0.125, None, Groups(128, 3, held=2, lazy=True)
    )
    assert scaled == [False] * 14, "7 blocks after the first of 64 rows, twice"


LENGTHS = (333, 1, 150, 256)


@CAUSAL
def test_forward_with_lengths(causal, paper):
    """Of no key o is 0, whatever v holds; and no tile is asked for that lies behind the length as a whole."""
    shape, lengths = (6, 2, 2, 333, 333, 64), torch.tensor((*LENGTHS, 0, -3), dtype=torch.int32)
    q, k, v, do = four(*shape, torch.float16, (*LENGTHS, 0, 0))
    want = oracle(q, k, v, do, causal=causal, k_lengths=lengths.clamp(min=0))
    for blocks in (GROUPS["forward", 64, causal], Groups(128, 3, held=2)):
        paper(0)
        (o,), l = empty(q), torch.full(q.shape[:3], float("nan"))
        write_forward_in_groups(o, l, q, k, v, causal, 0.125, lengths, blocks)
        assert_near((o, l), want, ("o", "l"))
        assert (o[4:] == 0).all()


def test_forward_with_lengths_of_two_tiles_shared_heads_and_heads_inside_rows(paper):
    """Columns in two tiles, two heads of queries for one of keys, and rows of v that lie heads apart."""
    lengths = torch.tensor([150, 0, 77], dtype=torch.int32)
    q, k, v, do = four(3, 4, 2, 130, 150, 72, torch.float16, lengths.tolist())
    want = oracle(q, k, v, do, k_lengths=lengths)
    v = v.transpose(1, 2).contiguous().transpose(1, 2)
    paper(0)
    (o,), l = empty(q), torch.full(q.shape[:3], float("nan"))
    write_forward_in_groups(o, l, q, k, v, False, 72**-0.5, lengths, Groups(128, 3, held=2))
    assert_near((o, l), want, ("o", "l"))


@CAUSAL
def test_forward_with_a_scale_of_0_is_a_mean(causal, paper):
    """Hidden scores, -inf, are scaled after they were hidden."""
    q, k, v, do = four(2, 1, 1, 140, 150, 64, torch.float16)
    for lengths in (None, torch.tensor([150, 70], dtype=torch.int32)):
        want = oracle(q, k, v, do, causal=causal, scale=0.0, k_lengths=lengths)
        paper(0)
        (o,), l = empty(q), torch.full(q.shape[:3], float("nan"))
        write_forward_in_groups(o, l, q, k, v, causal, 0.0, lengths, Groups(128, 3, held=2))
        assert_near((o, l), want, ("o", "l"))


def terms(want, do, scale):
    """shift and delta as the passes over keys want them, in rows whose bytes the copy engine can address."""
    o, l = want["o"][0], want["l"][0]
    found = []
    for x in (l * 1.4426950408889634, (do.double() * o.to(do.dtype).double()).sum(-1)):
        x = x.masked_fill(l == -float("inf"), float("inf") if not found else 0.0).flatten(0, 1)
        room = torch.full((x.shape[0], -(-x.shape[1] // 4) * 4), float("nan"))
        room[:, : x.shape[1]] = x
        found.append(room[:, : x.shape[1]])
    return found


@CAUSAL
@pytest.mark.parametrize(
    ("shape", "lengths"),
    [((1, 2, 2, 200, 333, 128), None), ((2, 4, 2, 333, 200, 72), None), ((4, 2, 2, 333, 333, 64), LENGTHS)],
    ids=["128", "72, heads share keys", "64, lengths"],
)
def test_dk_and_dv(shape, lengths, causal, paper):
    padded = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    q, k, v, do = four(*shape, torch.float16, lengths)
    want = oracle(q, k, v, do, causal=causal, k_lengths=padded)
    blocks = GROUPS.get(("dkdv", sum(split(shape[-1])), causal), Groups(64, 3, persistent=True, held=2))
    shift, delta = terms(want, do, shape[-1] ** -0.5)
    for seed in range(2):
        ran = paper(seed)
        dk, dv = empty(k, v)
        write_dkdv_in_groups(dk, dv, do, q, k, v, shift, delta, causal, shape[-1] ** -0.5, padded, blocks)
        assert_near((dk, dv), want, ("dk", "dv"))
        assert ran == [KERNELS[1]]


def one_pass(q, k, v, do, causal, in_order, want, parts=1, lengths=None):
    D = q.shape[-1]
    table = IN_ORDER if in_order else ONE_PASS
    blocks = replace(table[sum(split(D)), causal], parts=parts)
    if lengths is not None:
        blocks = replace(blocks, dealt=False)
    got, room = empty(q, k, v), sums.room(q, k, blocks).fill_(float("nan"))
    shift, delta = (x.fill_(float("nan")) for x in terms(want, do, D**-0.5))
    o, l = want["o"][0].to(q.dtype), want["l"][0].float()
    write_in_one_pass(*got, shift, delta, room, do, q, k, v, o, l, None, causal, D**-0.5, lengths, blocks)
    return got


SOME_NONE = (333, 0, 150, 256)
WHOLE_BLOCKS = (256, 0, -3, 70)  # of 256 keys: without lengths no block of keys would need a mask
ONE_PASS_SHAPES = [  # and parts, and lengths
    (1, 2, 2, 200, 333, 128, 1, None),
    (2, 4, 2, 333, 200, 64, 1, None),
    (1, 4, 1, 257, 300, 64, 2, None),
    (1, 4, 1, 70, 260, 128, 4, None),
    (1, 2, 2, 257, 129, 72, 1, None),
    (1, 3, 3, 300, 300, 48, 1, None),
    (1, 1, 1, 70, 17, 96, 1, None),
    (4, 1, 1, 257, 333, 128, 1, SOME_NONE),
    (4, 2, 1, 333, 333, 64, 1, SOME_NONE),
    (4, 4, 1, 70, 333, 64, 2, SOME_NONE),
    (4, 1, 1, 200, 333, 80, 1, SOME_NONE),
    (4, 1, 1, 256, 256, 128, 1, WHOLE_BLOCKS),
    (4, 2, 1, 384, 256, 64, 1, WHOLE_BLOCKS),
]


@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "in any order"])
@CAUSAL
@pytest.mark.parametrize("shape", ONE_PASS_SHAPES, ids=str)
def test_one_pass(shape, causal, in_order, paper):
    *sizes, parts, lengths = shape
    padded = None if lengths is None else torch.tensor(lengths, dtype=torch.int32)
    q, k, v, do = four(*sizes, torch.float16, lengths)
    there = None if padded is None else padded.clamp(min=0)
    want, bits = oracle(q, k, v, do, causal=causal, k_lengths=there), []
    for seed in range(3):
        ran = paper(seed)
        bits.append(one_pass(q, k, v, do, causal, in_order, want, parts, padded))
        assert_near(bits[-1], want, ("dq", "dk", "dv"))
        assert ran == [KERNELS[2]]
    if in_order:
        assert all(map(torch.equal, bits[0] + bits[0], bits[1] + bits[2])), "the same bits whoever comes first"


def test_bits_of_any_order_hang_on_who_comes_first(paper):
    """Else the test above would show nothing."""
    q, k, v, do = four(1, 1, 1, 128, 640, 128, torch.float16)
    want, bits = oracle(q, k, v, do), []
    for seed in range(6):
        paper(seed)
        bits.append(one_pass(q, k, v, do, False, False, want)[0])
    assert any(not torch.equal(bits[0], other) for other in bits[1:])


def nothing(run, *_):
    return None


def place_of(run, ring, turn):
    return turn % ring[0].shape[0]


@gluon.jit
def _hand_over_at_once(dq, to, ring, turn):
    full, _empty = ring
    PLACES: gl.constexpr = full.shape[0]
    to[1].index(turn % PLACES).reshape([dq.shape[0], dq.shape[1]]).store(dq)
    mbarrier.arrive(full.index(turn % PLACES), count=1)


FAULTS = {  # what is left out -> the function of the text, what stands there instead, and how it shows
    "nobody says that a place is free": ("release", nothing, "wait for ever"),
    "nobody waits for what is fetched": ("arrived", place_of, None),
    "nobody waits for the neighbour's ds": ("_await_before", nothing, None),
    "nobody waits until dq has left its place": ("_hand_over", _hand_over_at_once, None),
    "products are not waited for": ("warpgroup_mma_wait", lambda run, pendings, deps: deps, None),
    "no end of a tile": ("_bring_nothing", nothing, "wait for ever"),
    "a tile stays": ("send", nothing, None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_kernel_forgets_is_seen(fault, paper):
    """In some draw at least: a GPU shows it on a bad day."""
    name, stand_in, says = FAULTS[fault]
    q, k, v, do = four(1, 2, 2, 300, 300, 64, torch.float16)
    want, found = oracle(q, k, v, do), []
    for seed in range(8):
        paper(seed, {name: stand_in})
        try:
            got = one_pass(q, k, v, do, False, True, want)
            assert_near(got, want, ("dq", "dk", "dv"))
        except (AssertionError, TypeError, AttributeError) as error:
            found.append(str(error))
    assert found
    assert says is None or says in found[0], found


def test_a_tile_is_taken_when_the_last_one_is_fetched(paper, monkeypatch):
    """Sooner it would be right all the same, and held by who is still at work."""
    came = []

    def fetch(run, *args, _true=Run._fetch):
        came.append("fetch")
        return _true(run, *args)

    monkeypatch.setattr(Run, "_fetch", fetch)
    monkeypatch.setitem(ASM, groups_onepass._TAKE.value, lambda *args: came.append("take") or taken(*args))
    q, k, v, do = four(1, 2, 2, 300, 600, 64, torch.float16)
    want = oracle(q, k, v, do, causal=True)
    for in_order in (True, False):
        came.clear()
        paper(0, at_once=1)  # so the first program has all 10 tiles
        one_pass(q, k, v, do, True, in_order, want)
        takes = [i for i, what in enumerate(came) if what == "take"]
        assert min(later - sooner for sooner, later in pairwise(takes[:11])) > 4, "q, do, shift and delta come between"


@CAUSAL
@pytest.mark.parametrize("in_order", [True, False], ids=["in order", "in any order"])
def test_programs_begin_together_where_they_wait_in_a_circle(causal, in_order, monkeypatch):
    asked = []
    monkeypatch.setattr(groups_onepass, "multiprocessors", lambda device: MULTIPROCESSORS)
    monkeypatch.setattr(groups_onepass, "launch", lambda kernel, grid, *args, **options: asked.append(options))
    q, k, v, do = four(1, 1, 1, 130, 300, 64, torch.float16)
    want = oracle(q, k, v, do, causal=causal)
    for lengths in (None, torch.tensor([300], dtype=torch.int32)):
        one_pass(q, k, v, do, causal, in_order, want, lengths=lengths)
    together = [options.get("launch_cooperative_grid", False) for options in asked]
    assert together == [in_order and not causal, False], "with lengths tiles come from a counter"


def test_what_one_pass_does_not_take_is_refused():
    x, lengths = torch.zeros(1, 1, 4, 64), torch.ones(1, dtype=torch.int32)
    with pytest.raises(AssertionError, match="different lengths do not come in rounds"):
        write_in_one_pass(*13 * (x,), False, 1.0, lengths, IN_ORDER[64, False])
    with pytest.raises(AssertionError, match="one pass knows no lengths of queries"):
        write_gradients(*3 * (x,), (x, x), *6 * (x,), False, 1.0, lengths, None, ONE_PASS[64, False], True)


def test_a_program_waits_for_none_that_has_not_begun(paper):
    """Causal: whatever else holds multiprocessors, those that run come to an end. Without a mask they do not."""
    q, k, v, do = four(2, 2, 2, 640, 640, 64, torch.float16)
    want = oracle(q, k, v, do, causal=True)
    for at_once in (1, 2, 3):
        paper(0, at_once=at_once)
        assert_near(one_pass(q, k, v, do, True, True, want), want, ("dq", "dk", "dv"))
    paper(0, at_once=1)
    with pytest.raises(AssertionError, match="wait for ever"):
        one_pass(q, k, v, do, False, True, oracle(q, k, v, do))
