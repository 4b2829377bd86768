import numpy as np
import pytest
import torch

from course_lib.compiled import compile_kernel
from course_lib.device import DEVICE, TIER
from course_lib.kernels import dropout as module
from course_lib.kernels.dropout import (
    _by_element_kernel,
    _by_four_kernel,
    dropout,
    dropout_by_element,
    dropout_operator,
    dropout_reference,
    numbers_reference,
)
from course_lib.kernels.philox import draw_seed, smallest_kept

pytestmark = pytest.mark.usefixtures("empty_tensors_hold_nan")

SEEDS = [0, 42, 2**31, 0x1234_5678_9ABC_DEF0]


def seed_of(number):
    return torch.tensor([number], dtype=torch.int64, device=DEVICE)


def rung(per_counter):
    return {1: dropout_by_element, 4: lambda x, p, seed, offset=0: dropout(x, p, seed=seed, offset=offset)}[per_counter]


def test_the_reference_is_philox_as_its_authors_published_it():
    """Their test vector for philox4x32-10 where counter and key are 0."""
    zero = (numbers_reference(0, np.array([0])) / np.float32(4.6566127342e-10)).astype(np.float64)[0]
    published = np.array([0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8], dtype=np.uint32).view(np.int32)
    assert np.allclose(zero, published ^ (published >> 31), rtol=1e-6)


@pytest.mark.parametrize("per_counter", [1, 4])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("shape", "p"), [((1,), 0.5), ((5, 77), 0.3), ((3, 4, 70), 0.9), ((64,), 1e-6)])
def test_exactly_the_elements_stay_that_the_numbers_say(shape, p, seed, per_counter, dtype, random):
    x = random(*shape, dtype=torch.float32).abs().add(0.5).to(dtype)
    got = rung(per_counter)(x, p, seed_of(seed))
    want = dropout_reference(x.double(), p, seed, per_counter=per_counter)
    assert got.dtype == dtype and torch.equal(got != 0, want != 0)
    torch.testing.assert_close(got.double(), want, rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_the_integer_comparison_is_the_one_with_fp32_numbers():
    """At the limit itself and next to it, for many p: the kernels ask the left question, tl.rand the right one."""
    for p in [0.0, 0.1, 0.25, 0.3, 0.5, 2**-24, 1 - 2**-24, 0.999999, *np.random.default_rng(0).random(200)]:
        limit = smallest_kept(p)
        near = np.clip(np.arange(limit - 3, limit + 4), 0, 2**31 - 1)
        numbers = near.astype(np.int32).astype(np.float32) * np.float32(4.6566127342e-10)
        if limit < 2**31 - 1:
            assert np.array_equal(near >= limit, numbers >= np.float32(p))


@pytest.mark.parametrize("per_counter", [1, 4])
def test_no_block_size_changes_what_stays(per_counter, monkeypatch, random):
    x, seed = random(900, dtype=torch.float32), seed_of(7)
    kernel, results = {1: _by_element_kernel, 4: _by_four_kernel}[per_counter], []
    for block in (16, 64, 256, 1024):
        out = torch.full_like(x, float("nan"))
        kernel[(-(-900 // block),)](out, x, seed, 900, 0, smallest_kept(0.4), 1 / 0.6, BLOCK=block, num_warps=1)
        results.append(out)
    assert all(torch.equal(results[0], one) for one in results[1:])


def test_parts_of_one_stream_of_numbers_begin_at_their_offsets(random):
    x, seed = random(200, dtype=torch.float32), seed_of(3)
    whole = dropout(x, 0.5, seed=seed)
    assert torch.equal(dropout(x[80:], 0.5, seed=seed, offset=80), whole[80:])
    far = 2**33 + 4  # the counter's second word
    want = dropout_reference(x, 0.5, 3, far)
    assert torch.equal(dropout(x, 0.5, seed=seed, offset=far) != 0, want != 0)
    assert not torch.equal(whole != 0, want != 0)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_stays_and_the_mean_are_right(p):
    """200,000 numbers: the share is within four standard deviations, and neighbours know nothing of each other."""
    kept = dropout_reference(torch.ones(200_000), p, 11).ne(0).double()
    deviation = (p * (1 - p) / 200_000) ** 0.5
    assert abs(kept.mean() - (1 - p)) < 4 * deviation
    for distance in (1, 2, 3, 4, 64):
        together = (kept[distance:] * kept[:-distance]).mean()
        assert abs(together - (1 - p) ** 2) < 8 * deviation


@pytest.mark.parametrize("shape", [(3, 40), (2, 5, 9)])
def test_backward_drops_what_forward_dropped(shape, dtype, random):
    x, dy = random(*shape, dtype=dtype).requires_grad_(), random(*shape, dtype=dtype)
    y = dropout(x, 0.4, seed=seed_of(5))
    (got,) = torch.autograd.grad(y, x, dy)
    assert torch.equal(got, dropout(dy, 0.4, seed=seed_of(5)))


def test_eight_bytes_are_kept_for_backward(random):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.nbytes) or t, lambda t: t):
        dropout(random(30, 40, dtype=torch.float32).requires_grad_(), 0.4)
    assert kept == [8]


def test_rows_that_lie_apart_are_counted_by_their_place_in_the_tensor(random):
    x = random(30, 40, dtype=torch.float32)
    for view in (x[:, :33], x.T, x[::2, 3:], x.expand(2, 30, 40)):
        view = view.clone(memory_format=torch.preserve_format) if view.is_contiguous() else view
        assert torch.equal(dropout(view, 0.4, seed=seed_of(5)), dropout(view.contiguous(), 0.4, seed=seed_of(5)))


def test_torch_s_seed_governs_what_is_drawn(random):
    x = random(400, dtype=torch.float32)
    torch.manual_seed(3)
    first, second = dropout(x, 0.5), dropout(x, 0.5)
    torch.manual_seed(3)
    again = dropout(x, 0.5)
    assert torch.equal(first, again) and not torch.equal(first, second)
    state = torch.get_rng_state() if DEVICE == "cpu" else torch.cuda.get_rng_state()
    third = dropout(x, 0.5)
    (torch.set_rng_state if DEVICE == "cpu" else torch.cuda.set_rng_state)(state)
    assert torch.equal(third, dropout(x, 0.5))


def test_checkpointing_drops_the_same_elements_again(random):
    x = random(6, 50, dtype=torch.float32).requires_grad_()
    y = torch.utils.checkpoint.checkpoint(lambda x: dropout(x.sin(), 0.5).square(), x, use_reentrant=False)
    (got,) = torch.autograd.grad(y.sum(), x)
    kept = y.detach() != 0
    torch.testing.assert_close(got, torch.where(kept, 8 * x.sin() * x.cos(), 0.0).detach())


def test_in_evaluation_and_without_a_share_nothing_is_dropped(random):
    x = random(40, dtype=torch.float32)
    assert dropout(x, 0.5, training=False) is x and dropout(x, 0.0) is x
    assert dropout(x[:0], 0.5).shape == (0,)


def test_nan_and_infinity_pass_where_they_stay_and_only_there():
    x = torch.full((200,), float("nan"), device=DEVICE)
    kept = dropout_reference(torch.ones(200), 0.5, 9).bool().to(DEVICE)
    assert torch.equal(dropout(x, 0.5, seed=seed_of(9)).isnan(), kept)


def test_what_it_cannot_do_is_refused(random):
    x = random(8, dtype=torch.float32)
    with pytest.raises(AssertionError, match="p < 1"):
        dropout(x, 1.0)
    with pytest.raises(AssertionError, match="multiple of 4"):
        dropout(x, 0.5, offset=2)
    with pytest.raises(AssertionError, match="one int64"):
        dropout(x, 0.5, seed=torch.tensor([1.0], device=DEVICE))
    with pytest.raises(AssertionError, match="scaled"):
        dropout(x.int(), 0.5)
    with pytest.raises(AssertionError, match="contiguous"):
        dropout_by_element(x[::2], 0.5, seed_of(1))


def test_the_operator_passes_opcheck(random):
    x = random(6, 10, dtype=torch.float32).requires_grad_()
    torch.library.opcheck(dropout_operator, (x, seed_of(3), 0.5, 8))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # of torch's own, while its compiler is imported
def test_compile_takes_it_whole_draws_twice_for_two_and_once_for_forward_and_backward(random):
    x = random(6, 50, dtype=torch.float32).add(3).requires_grad_()

    def layer(x):
        return dropout(x * 2, 0.5), dropout(x * 2, 0.5)

    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if TIER == "gpu" else "aot_eager")
    first, second = compiled(x)
    assert not torch.equal(first != 0, second != 0), "the same operator on the same x, and yet not one call"
    for y in (first, second):
        (got,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        assert torch.equal(got != 0, y != 0)
    torch.manual_seed(8)
    again = [y.detach() for y in compiled(x)]
    torch.manual_seed(8)
    assert all(torch.equal(a, b) for a, b in zip(again, compiled(x)))
    assert not torch.equal(again[0], first), "a new call draws anew"


@pytest.mark.parametrize(("kernel", "most"), [(_by_element_kernel, 72), (_by_four_kernel, 20)])
def test_a_counter_for_four_elements_takes_less_than_a_third_of_the_instructions(kernel, most, access_widths):
    types = {"out_ptr": "*bf16", "x_ptr": "*bf16", "seed_ptr": "*i64", "scale": "fp32"}
    signature = {name: types.get(name, "i32") for name in kernel.arg_names if name != "BLOCK"}
    made = compile_kernel(kernel, signature, {"BLOCK": module.BLOCK}, num_warps=module.WARPS)
    assert made.spills_bytes == 0 and made.shared_bytes == 0, str(made)
    assert access_widths(made) == {"ld": {16, 8}, "st": {16}}, "8 bytes: the seed"
    if made.sass is None:
        pytest.skip("Triton came without cuobjdump")
    lines = sum(";" in line and "/*0" in line for line in made.sass.splitlines())
    assert lines * 32 * module.WARPS / module.BLOCK < most


# What only a GPU can show.


@pytest.mark.gpu
@pytest.mark.parametrize("per_counter", [1, 4])
@pytest.mark.parametrize("n", [1, 4095, 4096, 1_000_003])
def test_large_tensors_drop_what_the_numbers_say(n, per_counter, dtype):
    x = torch.ones(n, device=DEVICE, dtype=dtype)
    got = rung(per_counter)(x, 0.3, seed_of(77))
    want = dropout_reference(torch.ones(n), 0.3, 77, per_counter=per_counter)
    assert torch.equal(got.cpu() != 0, want != 0)


@pytest.mark.gpu
def test_a_replayed_graph_draws_anew_as_the_generator_says():
    x = torch.randn(10_000, device=DEVICE)
    dropout(x, 0.5)
    graph, out = torch.cuda.CUDAGraph(), torch.empty_like(x)
    with torch.cuda.graph(graph):
        out.copy_(dropout(x, 0.5))

    def replays(count):
        torch.cuda.manual_seed(5)
        results = []
        for _ in range(count):
            graph.replay()
            results.append(out.clone())
        return results

    first, second = replays(2)
    assert not torch.equal(first != 0, second != 0)
    assert all(torch.equal(a, b) for a, b in zip((first, second), replays(2)))


@pytest.mark.gpu
def test_tensors_past_2_to_the_31_elements_are_right_to_the_last():
    x = torch.ones(2**31 + 4099, device=DEVICE, dtype=torch.float16)
    index = np.arange(len(x) - 3000, len(x))
    numbers = numbers_reference(6, index // 4)[np.arange(3000), index % 4]
    kept = dropout(x, 0.5, seed=seed_of(6))[-3000:] != 0
    assert torch.equal(kept.cpu(), torch.from_numpy(numbers >= np.float32(0.5)))


def test_a_seed_is_drawn_where_the_data_lies():
    seed = draw_seed(DEVICE)
    assert seed.device.type == DEVICE and seed.dtype == torch.int64 and seed.shape == (1,)
    assert len({int(draw_seed(DEVICE)) for _ in range(20)}) == 20


def test_the_module_lists_what_it_offers():
    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
