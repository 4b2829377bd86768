"""The rungs of data parallel training: the same gradients and weights as one process, bit-equal on all ranks."""

import contextlib
import itertools

import pytest
import torch
import torch.distributed as dist

from autograder.inside.probes.replicas import BATCH, WIDTH, adamw, made, state_of
from course_lib.distributed import RankFailed, launch, place
from course_lib.parallel import Buckets, Flat, Naive, Overlap, Sharded
from course_lib.parallel.buckets import MIB, fill

TINY = 300 / MIB  # buckets of 300 bytes: several of them, with one parameter and with more
WRAPS = {
    "naive": Naive,
    "flat": Flat,
    "overlap": Overlap,
    "buckets": lambda module: Buckets(module, TINY),
    "buckets, static graph": lambda module: Buckets(module, TINY, static=True),
    "one bucket": Buckets,
    "sharded": lambda module: Sharded(module, lambda pieces: adamw(pieces.values()), TINY),
    "sharded, one bucket": lambda module: Sharded(module, lambda pieces: adamw(pieces.values())),
}


ALIKE = ("Plain", "Tied", "Frozen", "Unused", "Routed", "Mixed", "Strided", "Wide", "Gaps", "Deep", "Fixed")
ON_GPUS = tuple(model for model in ALIKE if model != "Gaps")  # moving to a GPU closes the gaps
TWO = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
NCCL = pytest.param("nccl", marks=[pytest.mark.gpu, TWO])


def batch(step: int, part: int = 0) -> torch.Tensor:
    """The whole batch; the first column is positive in its first half alone, so that routes differ between shards."""
    x = torch.randn(BATCH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + part))
    x[:, 0] = x[:, 0].abs() * torch.tensor([1.0] * (BATCH // 2) + [-1.0] * (BATCH // 2), dtype=torch.float64)
    return x


def single(model: str, steps: int, parts: int = 1, **options) -> list[dict]:
    """Gradients and weights after each step of training on the whole batch."""
    module = made(model, 0)
    optimizer = adamw([p for p in module.parameters() if p.requires_grad])
    seen = []
    for step in range(steps):
        optimizer.zero_grad(**options)
        for part in range(parts):
            (module(batch(step, part)).square().mean() / parts).backward()
        grads = state_of(module)["grads"]
        optimizer.step()
        seen.append({"grads": grads, "weights": state_of(module)["weights"]})
    return seen


def ranked(rank: int, ranks: int, wrap, model: str, steps: int, parts: int = 1, **options) -> list[dict]:
    """The same on one rank, which starts from weights of its own."""
    module = made(model, rank).to(place())
    ddp = wrap(module)
    optimizer = None if hasattr(ddp, "step") else adamw([p for p in module.parameters() if p.requires_grad])
    seen = []
    for step in range(steps):
        ddp.zero_grad(**options)
        for part in range(parts):
            shard = batch(step, part).chunk(ranks)[rank].to(place())
            with ddp.no_sync() if part < parts - 1 else contextlib.nullcontext():
                (ddp(shard).square().mean() / parts).backward()
        ddp.finish()
        grads = state_of(module)["grads"]
        ddp.step() if optimizer is None else optimizer.step()
        seen.append({"grads": grads, "weights": state_of(module)["weights"]})
    return seen


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.contiguous().view(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and torch.equal(*raw)


def refuse_gaps() -> None:
    """In a rank: gloo refuses what NCCL does, a tensor that does not lie row by row."""
    real = dist.all_reduce

    def all_reduce(tensor, *args, **options):
        assert tensor.is_contiguous(), "Tensors must be contiguous"
        return real(tensor, *args, **options)

    dist.all_reduce = all_reduce


def check(*models: str, ranks: int = 2, steps: int = 3, backend: str = "gloo", **options) -> None:
    """Every rung against training in one process, in one launch for all models."""

    def train(rank):
        refuse_gaps()
        found = {}
        for model, (name, wrap) in itertools.product(models, WRAPS.items()):
            try:
                found[model, name] = ranked(rank, ranks, wrap, model, steps, **options)
            except Exception as wrong:
                wrong.add_note(f"{model}, {name}")
                raise
        return found

    for_all = launch(train, ranks, backend)
    for model in models:
        want = single(model, steps, **options)
        # AdamW divides by the size of a gradient: where that is as small as its epsilon, a rounding counts 1e8 times
        limit = 1e-5 if any(w.dtype == torch.float32 for w in want[0]["weights"].values()) else 1e-11
        for name in WRAPS:
            for step, truth in enumerate(want):
                compare(f"{model}, {name}, step {step}", [one[model, name][step] for one in for_all], truth, limit)


def compare(what: str, states: list[dict], truth: dict, limit: float) -> None:
    """Weights and gradients of all ranks with those of one process."""
    for key, right in truth["weights"].items():
        got = states[0]["weights"][key]
        off = (got - right).abs().max()
        assert off <= limit, f"{what}: the weight {key} is off by {off:.1e}"
        assert all(same_bits(got, s["weights"][key]) for s in states), f"{what}: {key} differs between ranks"
    if "sharded" in what:
        return  # no rank has whole gradients; the weights follow from them
    for key, right in truth["grads"].items():
        got = states[0]["grads"][key]
        assert (got is None) == (right is None), f"{what}: {key} has {'no' if got is None else 'a'} gradient"
        if right is not None:
            assert (got - right).abs().max() <= limit, f"{what}: the gradient of {key}"
            assert all(same_bits(got, s["grads"][key]) for s in states), f"{what}: {key} differs between ranks"


# ------------------------------------------------------------------------------------------- equal to one process


@pytest.mark.parametrize("model", ALIKE)
def test_two_ranks_train_as_one_process_does(model):
    check(model)


# a launch with NCCL takes 4 s: several models share one
@pytest.mark.parametrize("backend", [NCCL])
@pytest.mark.parametrize("models", [ON_GPUS[:5], ON_GPUS[5:]], ids="-".join)
def test_two_gpus_train_as_one_process_does(models, backend):
    check(*models, backend=backend)


@pytest.mark.parametrize("model", ["Routed", "Tied"])
def test_three_ranks_train_as_one_process_does(model):
    check(model, ranks=3, steps=2)


def test_four_ranks_train_as_one_process_does():
    check("Plain", ranks=4, steps=2)


@pytest.mark.parametrize("backend", ["gloo", NCCL])
def test_gradients_that_accumulate_without_sync_are_those_of_all_parts(backend):
    check("Plain", "Tied", "Frozen", "Unused", "Routed", parts=3, steps=2, backend=backend)


def test_gradients_that_are_zeroed_in_place_stay_right():
    check("Plain", set_to_none=False)


def test_a_second_pass_without_zero_grad_adds_up_as_in_one_process():
    module = made("Plain", 0)
    for step in range(2):
        module(batch(step)).square().mean().backward()
    want = [p.grad.clone() for p in module.parameters()]
    optimizer = adamw(module.parameters())
    optimizer.step()

    def train(rank):
        found = {}
        for name, wrap in WRAPS.items():
            mine = made("Plain", 0)
            ddp = wrap(mine)
            for step in range(2):
                ddp(batch(step).chunk(2)[rank]).square().mean().backward()
                ddp.finish()
            found[name] = [p.grad for p in mine.parameters()]
            if "sharded" in name:
                ddp.step()
                found[name] = [p.detach() for p in mine.parameters()]
        return found

    for found in launch(train, 2, "gloo"):
        for name, got in found.items():
            right = list(module.parameters()) if "sharded" in name else want
            assert all(torch.allclose(g, r, rtol=0, atol=1e-12) for g, r in zip(got, right, strict=True)), name


@pytest.mark.parametrize("backend", ["gloo", NCCL])
def test_what_a_batch_norm_has_seen_is_rank_0s_everywhere(backend):
    def train(rank):
        found = {}
        for name, wrap in WRAPS.items():
            module = made("Normed", rank).to(place())
            ddp, starts = wrap(module), []
            module.norm.register_forward_pre_hook(
                lambda norm, _, starts=starts: starts.append(
                    (norm.running_mean.clone(), norm.num_batches_tracked.item())
                )
            )
            for step in range(3):
                ddp(batch(step).chunk(2)[rank].to(place())).square().mean().backward()
                ddp.finish()
                ddp.zero_grad()
            found[name] = starts
        return found

    alone = made("Normed", 0).norm  # it sees what rank 0 sees
    before = []
    for step in range(3):
        before.append(alone.running_mean.clone())
        alone(batch(step).chunk(2)[0])
    first, second = launch(train, 2, backend)
    for name in WRAPS:
        for starts in (first[name], second[name]):
            assert [count for _, count in starts] == [0, 1, 2], name
            off = [(mean - right).abs().max() for (mean, _), right in zip(starts, before, strict=True)]
            assert max(off) <= 1e-12, name
        assert all(same_bits(mine, theirs) for (mine, _), (theirs, _) in zip(first[name], second[name], strict=True))


def test_a_model_without_anything_to_train_is_made_equal_and_left_alone():
    def train(rank):
        found = []
        for wrap in WRAPS.values():
            module = made("Plain", rank).requires_grad_(False)
            ddp = wrap(module)
            ddp(batch(0))
            ddp.finish()
            found.append(module.first.weight)
        return found

    first, second = launch(train, 2, "gloo")
    want = made("Plain", 0).first.weight
    assert all(torch.equal(weight, want) for weight in (*first, *second))


# ------------------------------------------------------------------------------------------- how it is done


def collectives(ranks: int, wrap, model="Plain") -> list[tuple[str, int, bool]]:
    """Of one step on rank 0: each collective, its bytes, and whether it began inside the backward pass."""

    def train(rank):
        module = made(model, 0)
        ddp = wrap(module)
        seen, inside = [], [False]

        def noted(name):
            original = getattr(dist, name)

            def begin(*args, **options):
                data = args[1] if name.startswith("reduce_scatter") else args[0]
                seen.append((name.removesuffix("_single").removesuffix("_tensor"), data.nbytes, inside[0]))
                return original(*args, **options)

            setattr(dist, name, begin)

        for name in ("all_reduce", "reduce_scatter_single", "reduce_scatter_tensor"):
            if hasattr(dist, name):
                noted(name)
        loss = ddp(batch(0).chunk(ranks)[rank]).square().mean()
        inside[0] = True
        loss.backward()
        inside[0] = False
        ddp.finish()
        return seen

    return launch(train, ranks, "gloo")[0]


# parameters of Plain in the order in which their gradients come: 1, 5, 55, 11 and 77 numbers of 8 bytes
FLAGS = ("all_reduce", 5 * 4, False)


def test_naive_sends_each_parameter_after_the_backward_pass():
    assert collectives(2, Naive) == [("all_reduce", 8 * n, False) for n in (77, 11, 55, 5, 1)] + [FLAGS]


def test_flat_sends_once():
    assert collectives(2, Flat) == [("all_reduce", 8 * 149, False), FLAGS]
    assert [bytes_ for _, bytes_, _ in collectives(2, Flat, "Mixed")] == [8 * 94, 4 * 55, 5 * 4]


def test_overlap_begins_inside_the_backward_pass_with_the_last_layer():
    assert collectives(2, Overlap) == [("all_reduce", 8 * n, True) for n in (1, 5, 55, 11, 77)] + [FLAGS]


def test_buckets_begin_when_they_are_full():
    wanted = [("all_reduce", 8 * 6, True), ("all_reduce", 8 * 55, True), ("all_reduce", 8 * 11, True)]
    assert collectives(2, WRAPS["buckets"]) == [*wanted, ("all_reduce", 8 * 77, True), FLAGS]
    assert collectives(2, WRAPS["one bucket"]) == [("all_reduce", 8 * 149, True), FLAGS]


def test_sharded_scatters_instead_of_reducing_everywhere():
    found = collectives(2, WRAPS["sharded, one bucket"])
    assert [(name, inside) for name, _, inside in found] == [("reduce_scatter", True), ("all_reduce", False)]


def test_buckets_hold_at_most_their_size_and_parameters_in_order():
    params = [torch.nn.Parameter(torch.empty(n)) for n in (100, 200, 300, 5000, 10, 10)]
    filled = fill(params, mib=2400 / MIB)
    assert [[p.numel() for p in one] for one in filled] == [[100, 200, 300], [5000], [10, 10]]
    small = torch.nn.Parameter(torch.empty(10, dtype=torch.bfloat16))
    filled = fill([params[0], small, params[4]], mib=1.0)
    assert [[p.numel() for p in one] for one in filled] == [[10], [100, 10]], "one type a bucket, the complete first"


def test_gradients_become_views_of_their_bucket_again_after_zero_grad_took_them_away():
    def train(rank):
        module = made("Plain", 0)
        ddp, found = Buckets(module, TINY), []
        for set_to_none in (True, True, False):
            ddp.zero_grad(set_to_none)
            ddp(batch(0).chunk(2)[rank]).square().mean().backward()
            ddp.finish()
            bucket = ddp.buckets[0]
            lies = bucket.buffer.untyped_storage().data_ptr()
            found.append([p.grad.untyped_storage().data_ptr() == lies for p in bucket.params])
            found.append([ddp.buckets[1].buffer is None])
        return found

    assert launch(train, 2, "gloo")[0] == [[True, True], [True]] * 3


@pytest.mark.parametrize("name", ["overlap", "buckets", "sharded"])
def test_a_forgotten_finish_and_a_second_backward_pass_are_told(name):
    wrap = WRAPS[name]

    def forgets(rank):
        ddp = wrap(made("Plain", 0))
        ddp(batch(0)).mean().backward()
        ddp(batch(0))

    def twice(rank):
        ddp = wrap(made("Plain", 0))
        loss = ddp(batch(0)).mean()
        loss.backward(retain_graph=True)
        loss.backward()

    for function, says in ((forgets, "finish.. was not called"), (twice, "a second backward pass before finish")):
        with pytest.raises(RankFailed, match=says):
            launch(function, 2, "gloo")


# ------------------------------------------------------------------------------------------- sharded state


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_holds_its_part_of_the_optimizers_state(ranks):
    def train(rank):
        module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(6)))
        model = Sharded(module, lambda pieces: adamw(pieces.values()), 16400 / MIB)
        model(torch.ones(4, 64)).mean().backward()
        model.finish()
        model.step()
        state = model.optimizer.state.values()
        kept = sum(bucket.grads.numel() for bucket in model.buckets if bucket.grads is not None)
        return sum(one["exp_avg"].numel() for one in state), sum(p.numel() for p in module.parameters()), kept

    found = launch(train, ranks, "gloo")
    total = found[0][1]
    assert sum(held for held, _, _ in found) == total
    assert all(held <= 1.03 * total / ranks for held, _, _ in found), [held / total for held, _, _ in found]
    assert all(kept < 0.05 * total for _, _, kept in found), "whole gradients of large weights are let go"


def test_clipping_sees_the_norm_of_all_parts():
    module = made("Plain", 0)
    module(batch(0)).square().mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    adamw(module.parameters()).step()

    def train(rank):
        mine = made("Plain", 0)
        model = WRAPS["sharded"](mine)
        model(batch(0).chunk(3)[rank]).square().mean().backward()
        model.finish()
        seen = model.clip(0.01)
        model.step()
        return seen, list(mine.parameters())

    for seen, weights in launch(train, 3, "gloo"):
        assert torch.allclose(seen.double(), norm, rtol=1e-6)
        pairs = zip(weights, module.parameters(), strict=True)
        assert all(torch.allclose(w, right, rtol=0, atol=1e-7) for w, right in pairs)


def test_options_for_some_parameters_reach_their_pieces():
    def train(rank):
        module = made("Plain", 0)

        def optimizer(pieces):
            biases = [piece for name, piece in pieces.items() if name.endswith("bias")]
            others = [piece for name, piece in pieces.items() if not name.endswith("bias")]
            groups = [{"params": biases, "lr": 0.0}, {"params": others}]
            return torch.optim.SGD([group for group in groups if group["params"]], lr=0.1)

        model = Sharded(module, optimizer, TINY)
        before = {name: p.detach().clone() for name, p in module.named_parameters()}
        model(batch(0).chunk(2)[rank]).square().mean().backward()
        model.finish()
        model.step()
        return {name: torch.equal(p, before[name]) for name, p in module.named_parameters()}

    for same in launch(train, 2, "gloo"):
        assert all(still == name.endswith("bias") for name, still in same.items())
