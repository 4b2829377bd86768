"""Forward where a head has few queries and few keys: small blocks of the first rung."""

import pytest
import torch

from course_lib.device import DEVICE
from course_lib.kernels.attention import attention_reference, tuning
from course_lib.kernels.attention.forward import write_forward
from course_lib.kernels.attention.tuning import SHORT_HEADS, Blocks, blocks_for
from course_lib.kernels.hardware import HOPPER
from tests.kernels.attention_oracle import oracle
from tests.kernels.test_attention import compiled

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

HEADS = {16: 16, 32: 32, 48: 40, 64: 64, 80: 72, 96: 96, 128: 128}  # a head size of each number of columns
ENTRIES = {(*key, most): blocks for key, entries in SHORT_HEADS.items() for most, blocks in entries}
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["whole", "causal"])


def meta(n_q=64, n_k=64, D=64, heads=(4, 4), dtype=torch.bfloat16):
    """q, k, v and o."""
    return [
        torch.empty(2, h, n, D, dtype=dtype, device="meta")
        for h, n in zip((*heads, heads[1], heads[0]), (n_q, n_k, n_k, n_q))
    ]


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(tuning, "capability", lambda device: HOPPER)


@pytest.mark.parametrize(("columns", "causal", "most"), ENTRIES, ids=str)
def test_the_longer_of_queries_and_keys_decides(columns, causal, most, on_hopper, monkeypatch):
    want, D = ENTRIES[columns, causal, most], HEADS[columns]

    def chosen(*sizes, lengths=None, **more):
        return blocks_for("forward", causal, lengths, *meta(*sizes, D=D, **more))

    for n_q, n_k in ((most, most), (most, 1), (1, most)):
        assert chosen(n_q, n_k) is chosen(n_q, n_k, lengths=torch.empty(2)) is want
    longer = min((m for c, masked, m in ENTRIES if (c, masked) == (columns, causal) and m > most), default=None)
    next_one = ENTRIES[columns, causal, longer] if longer else None
    assert (chosen(most + 1, most) == next_one) == (longer is not None)
    assert chosen(most, most, heads=(4, 2)) != want
    monkeypatch.setattr(tuning, "SHORT_HEADS", {})
    assert chosen(most, most) != want


def test_other_types_and_other_gpus_keep_their_blocks(on_hopper, monkeypatch):
    few = set(ENTRIES.values())
    assert blocks_for("forward", False, None, *meta(16, 16)) in few
    assert blocks_for("forward", False, None, *meta(16, 16, dtype=torch.float32)) not in few
    monkeypatch.setattr(tuning, "capability", lambda device: (10, 0))
    assert blocks_for("forward", False, None, *meta(16, 16)) not in few


@CAUSAL
@pytest.mark.parametrize("blocks", [Blocks(16, 32, 2, 1), Blocks(32, 32, 2, 1), Blocks(64, 64, 4, 1)], ids=str)
@pytest.mark.parametrize("sizes", [(2, 2, 2, 13, 9, 72), (1, 2, 2, 29, 32, 40), (1, 2, 1, 70, 64, 16)], ids=str)
def test_small_blocks_are_right(sizes, blocks, causal, make, fenced, assert_within, dtype):
    q, k, v, do = make(*sizes, dtype)
    for lengths in (None, torch.tensor([5, 0][: len(q)], device=DEVICE, dtype=torch.int32)):
        o, l = fenced(*q.shape, dtype=dtype), fenced(*q.shape[:3], dtype=torch.float32)
        write_forward(o, l, q, k, v, causal, q.shape[-1] ** -0.5, lengths, blocks)
        assert_within(o, *oracle(q, k, v, do, causal=causal, k_lengths=lengths)["o"])
        _, want = attention_reference(q.double(), k.double(), v.double(), causal, None, lengths)
        torch.testing.assert_close(l.double(), want.double(), rtol=0, atol=4 * torch.finfo(torch.float32).eps * 16)


QUICK = {(64, False, 64), (80, True, 64), (128, False, 16)}


@pytest.mark.parametrize(
    ("columns", "causal", "most"),
    [one if one in QUICK else pytest.param(*one, marks=pytest.mark.slow) for one in ENTRIES],
    ids=str,
)
def test_every_entry_compiles_and_spills_next_to_nothing(columns, causal, most):
    for whole in (True, False):
        got = compiled("forward", HEADS[columns], causal, ENTRIES[columns, causal, most], whole=whole)
        assert got.fits and got.spills_bytes <= 64, str(got)
        assert got.instructions["wgmma"] or got.instructions["mma"], str(got)


@pytest.mark.gpu
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("columns", "causal", "most"), ENTRIES, ids=str)
def test_every_entry_is_right_and_has_the_same_bits_on_every_run(
    columns, causal, most, kind, padded, make, fenced, assert_within
):
    for n_q, n_k in ((most, most), (most - 7, most - 3), (1, most), (most, 2)):
        lengths = torch.randint(0, n_k + 1, (5,), device=DEVICE, dtype=torch.int32) if padded else None
        q, k, v, do = make(5, 16, 16, n_q, n_k, HEADS[columns], kind)
        for b, length in enumerate(() if lengths is None else lengths):
            k[b, :, length:], v[b, :, length:] = float("nan"), float("inf")
        runs = []
        for _ in range(3):
            o, l = fenced(*q.shape, dtype=kind), fenced(*q.shape[:3], dtype=torch.float32)
            blocks = ENTRIES[columns, causal, most]
            assert tuning.capability(q.device) != HOPPER or blocks_for("forward", causal, lengths, q, k, v, o) == blocks
            write_forward(o, l, q, k, v, causal, q.shape[-1] ** -0.5, lengths, blocks)
            runs.append((o, l))
        assert_within(runs[0][0], *oracle(q, k, v, do, causal=causal, k_lengths=lengths)["o"])
        assert all(torch.equal(x, y) for again in runs[1:] for x, y in zip(again, runs[0]))
