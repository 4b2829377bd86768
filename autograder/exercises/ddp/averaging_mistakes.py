"""What people get wrong when they average gradients: the same copies with one thing done otherwise, or how it ended."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autograder.exercise import Mistake, Values
from autograder.exercises.ddp import replicas
from autograder.exercises.ddp.averaging import (
    FIRST_WAS_RIGHT,
    LIMIT,
    ONE_RANK,
    PARTS,
    TOO_MUCH,
    segments,
    steps_of,
    trained_bytes,
    values_off,
)
from autograder.inside.probes.network import CHANGED, GAPS, NOT_WAITED

LATE = "only begun after"  # of collectives: the backward pass
SMALL = "small buckets, used on one rank only"  # cases of ddp.buckets
STATIC_ROUTED = "a static graph, used on one rank only"
NOBODY = "a layer that nobody uses"
FLAG = 8  # bytes, at most, of one number that says whether a parameter was used


def answer(**how) -> Callable[..., Values]:
    def make(args: Values, *variant) -> Values:
        chosen = {name: value[variant[0]] if isinstance(value, tuple) else value for name, value in how.items()}
        steps = replicas.trained(args, **chosen)
        if values_off(steps, [replicas.single(args)] * len(steps), args) is None:
            return {}  # here it makes no difference
        if "optimizer" in args:  # an exercise in which no rank has whole gradients
            steps = [[{**step, "grads": {}} for step in one] for one in steps]
        return {"ranks": {"steps": steps, "right": False}}

    return make


def reports(t) -> list[dict]:
    found = t.outcome.outputs.get("ranks")
    return found if isinstance(found, list) else []


def noted(words: str) -> Callable:
    return lambda e: any(words in report["traffic"]["notes"] for t in e.failing for report in reports(t))


def said(*words: str) -> Callable:
    """Every case that failed and ran was refused with one of these words."""

    def sign(e) -> bool:
        ran = [t for t in e.failing if reports(t)]
        return bool(ran) and all(any(word in t.why for word in words) for t in ran)

    return sign


def _nan(e) -> bool:
    """NaN somewhere in what was reported, and everything was waited for in the end."""
    tensors = (
        value
        for t in e.failing
        for report in reports(t)
        for step in steps_of(report["value"])
        for kind in step.values()
        for value in kind.values()
    )
    return any(value is not None and bool(torch.isnan(value).any()) for value in tensors)


def right_at_first(e) -> bool:
    """In most cases that ran the first step was right."""
    ran = [t for t in e.failing if reports(t)]
    return 2 * sum(FIRST_WAS_RIGHT in t.why for t in ran) > len(ran)


def only_where_shards_differ(e) -> bool:
    return e.failed_only(ONE_RANK, SMALL, STATIC_ROUTED)


def _asks_first(e) -> bool:
    """Only where shards differ it goes wrong, and elsewhere finish() is seen to send flags before gradients.

    Where nobody uses a layer, gradients are left over for finish(), and its order shows.
    """
    seen = [t for t in e.tried if t.case.name == NOBODY and t.right]
    found = [begun for t in seen for report in reports(t) for begun in segments(report, "finish")]
    flags = [count * len(trained_bytes("Unused")) for count in (1, 2, 4, 8)]
    return only_where_shards_differ(e) and bool(found) and all(len(f) > 1 and f[0].nbytes in flags for f in found)


def _before_full(e) -> bool:
    """Where every parameter is used on every rank, a gradient was not there yet when it was to be sent."""
    firsts = [t for t in e.failing if t.case.name == "two ranks"]
    if any("NoneType" in (t.outcome.error or "") for t in firsts):
        return True
    return bool(firsts) and all(map(_some_are_zero, firsts))


def _some_are_zero(t) -> bool:
    """After the first step some gradients are right and the others 0."""
    found = [steps_of(report["value"])[0]["grads"] for report in reports(t)]
    truth = t.want["ranks"]["steps"][0][0]["grads"]
    kinds = {_kind(grads[name], right) for grads in found for name, right in truth.items()}
    return kinds == {"right", "zero"}


def _kind(got, right: torch.Tensor) -> str:
    if not isinstance(got, torch.Tensor) or got.shape != right.shape:
        return "wrong"
    return "zero" if not got.any() else "right" if bool(((got - right).abs() < LIMIT).all()) else "wrong"


def flags_apart(words: str, enough: Callable[[Values], int]) -> Callable:
    """Too many collectives began, and of those that hold more than a flag no more than are needed."""

    def sign(e) -> bool:
        steps = [
            (enough(t.args), [*backward, *finish])
            for t in e.failing
            for report in reports(t)
            for backward, finish in zip(segments(report, "backward"), segments(report, "finish"))
        ]
        parts = [sum(one.nbytes > FLAG for one in begun) <= most for most, begun in steps]
        return said(words)(e) and bool(parts) and all(parts)

    return sign


def _gathers(e) -> bool:
    """More than two ranks sent too much. Two ranks send the same bytes in both ways."""
    return any(TOO_MUCH in t.why and len(t.args["shards"]) > 2 for t in e.failing)


def _communicates_without_sync(e) -> bool:
    """Only several parts go wrong, and backward passes of all but the last began something, or were not told apart.

    Read from what travelled: gradients may be wrong by then.
    """
    found = [report for t in e.failing for report in reports(t)]
    alone = [segments(report, "backward without sync") for report in found]
    return e.failed_only(PARTS) and bool(found) and all(not passes or any(passes) for passes in alone)


def _start_without(**what) -> Callable:
    return lambda copies: replicas.start_equal(copies, **what)


SHARED = (
    Mistake(
        "not_waited",
        "A collective that was begun with async_op=True is never waited for: until wait() returns, its tensor may hold "
        "anything. Keep what it returns, and wait in finish().",
        sign=noted(NOT_WAITED),
    ),
    Mistake(
        "changed_on_its_way",
        "What a collective was sending was written to before its wait(). Touch it only afterwards.",
        sign=noted(CHANGED),
    ),
    Mistake(
        "used_before_wait",
        "What was averaged was read, or given to the optimizer, before wait(): it holds NaN until then.",
        sign=_nan,
    ),
    Mistake(
        "none_gradient",
        "A parameter without a gradient is not expected: one that is frozen, or that no shard used, has None.",
        sign=lambda e: e.raised("NoneType"),
    ),
    Mistake(
        "types_together",
        "It fails where parameters have several types: one buffer, and one collective, holds numbers of one type.",
        sign=lambda e: e.failed_only("two types of numbers"),
    ),
    Mistake(
        "gaps_sent",
        "A tensor that does not lie row by row was given to a collective. NCCL refuses it; gloo would not, but your "
        "code is to run on both. Send tensor.contiguous(), and copy what comes back into the tensor with copy_.",
        sign=lambda e: all(GAPS in (t.outcome.error or "") for t in e.failing),
    ),
    Mistake(
        "rows_expected",
        "It fails where a weight does not lie row by row: view(-1) needs that, and reshape(-1) does not; what comes "
        "back belongs into the gradient with copy_.",
        sign=lambda e: (
            e.failed("weights in another order") and e.failed_only("weights in another order", "large layers")
        ),
    ),
    Mistake(
        "sum_for_mean", "Gradients are added and not divided by the number of ranks.", answer(combine=replicas.total)
    ),
    Mistake(
        "divided_twice",
        "Gradients are divided by the number of ranks twice. Before the sum, after it, or ReduceOp.AVG: one is enough.",
        answer(combine=replicas.divided_twice),
    ),
    Mistake(
        "ranks_written_down",
        "Right with two ranks only: gradients are divided by 2, whatever the number of ranks. Ask "
        "dist.get_world_size().",
        answer(combine=replicas.halved),
    ),
    Mistake(
        "not_averaged",
        "Each rank keeps the gradients of its own shard: what was averaged does not come back into p.grad.",
        answer(combine=(replicas.not_at_all, replicas.not_at_all_with_zeros)),
        (0, 1),
    ),
    Mistake(
        "of_one_rank",
        "All have the gradients of rank 0: they were broadcast, and those of the others are lost.",
        answer(combine=replicas.of_rank_0),
    ),
    Mistake(
        "everything_everywhere",
        "Every rank gets the gradients of all others and takes the mean by itself: on N ranks each sends N / 2 times "
        "as much as in an all-reduce, and adds up N times as much. Let the network add: all_reduce, or reduce_scatter "
        "and all_gather.",
        sign=_gathers,
    ),
    Mistake(
        "no_start",
        "Ranks begin with weights of their own: averaging gradients keeps copies equal only when they are equal at the "
        "start. Broadcast rank 0's.",
        answer(start=replicas.start_apart),
    ),
    Mistake(
        "start_without_frozen",
        "Parameters that are not trained differ between ranks: they are part of the model, broadcast them too.",
        answer(start=_start_without(frozen=False)),
    ),
    Mistake(
        "start_without_buffers",
        "What is kept in buffers differs between ranks, such as the statistics of a BatchNorm: broadcast them too.",
        answer(start=_start_without(buffers=False)),
    ),
    Mistake(
        "mean_over_users",
        "Where only some ranks used a parameter, the mean is taken over those. A shard that did not use it has a "
        "gradient of zero: divide by all ranks.",
        answer(combine=replicas.those_with),
    ),
    Mistake(
        "not_brought_back",
        "A rank whose shard did not use a parameter has no gradient for it, and takes part with zeros; but what comes "
        "back has to become its p.grad too, which was None.",
        sign=lambda e: only_where_shards_differ(e) and all("is none, where" in t.why for t in e.failing),
    ),
    Mistake(
        "skips_unused",
        "Only where shards use different layers is something wrong. A rank that did not use a parameter, and has no "
        "gradient for it, leaves its collective out: the other waits for ever, or takes the next tensor for this one. "
        "Or it begins them in another order, or brings something else than zeros. Every rank starts the same "
        "collectives in the same order; who has no gradient takes part with zeros.",
        sign=only_where_shards_differ,
    ),
    Mistake(
        "zeros_for_none",
        "A parameter that nobody used gets a gradient of zeros. An optimizer then applies momentum and decay to it; "
        "without a gradient it leaves it alone, as in one process. Ask all ranks whether anybody used it.",
        answer(combine=replicas.zeros_for_none),
    ),
    Mistake(
        "weights_averaged",
        "Weights are averaged, and each rank then takes a step with gradients of its own. Average the gradients.",
        answer(combine=replicas.weights_instead),
    ),
)
FLAGS_APART = (
    "The gradients are right, but a collective for each parameter asks whether it was used. Put the answers for all "
    "parameters into one tensor: one small collective, or two."
)
HOOKS = (
    Mistake(
        "asks_first",
        "finish() first asks who used what, and then begins the gradients that are left. Ranks whose shards use "
        "different layers have begun different numbers of gradients by then: the question of one meets a gradient of "
        "the other, with another size, and the processes are ended (SIGABRT) or hang. Note who has a gradient first, "
        "begin everything that is left, and send the flags last.",
        sign=_asks_first,
    ),
    Mistake(
        "before_full",
        "A gradient was sent before it was there: already where every rank uses everything, some are None or 0 when "
        "they begin to travel. A bucket begins when the last of its gradients has come, not with the first.",
        sign=_before_full,
    ),
    Mistake(
        "communicates_without_sync",
        "Where gradients are only to come together, collectives are begun. no_sync() has to keep the hooks from it.",
        sign=_communicates_without_sync,
    ),
    Mistake(
        "stays_off",
        "After a backward pass inside no_sync() hooks stay off. Switch them on when the context ends, in finally.",
        sign=lambda e: e.failed_only(PARTS) and said(LATE)(e),
    ),
    Mistake(
        "divided_in_each_part",
        "What has come together is divided in every part, so the first parts count less. Divide once: after the last.",
        answer(each_part=replicas.divided_in_each_part),
    ),
    Mistake(
        "another_order",
        "Ranks begin their collectives in different orders, and one layer of one rank is added to another layer of "
        "the other: where shards use different layers, gradients come in different orders. Let each wait until all "
        "before it, in one fixed order, have begun.",
        answer(combine=replicas.in_another_order),
    ),
    Mistake(
        "left_over",
        "The first step is right and a later one is not: something of the first is left over. Empty in finish() what "
        "hooks have noted; and where gradients lie in a buffer, see in every step that p.grad is still a part of it "
        "and that no old number stays in it.",
        sign=right_at_first,
    ),
    Mistake(
        "last_part_only",
        "Of several parts only the last is averaged: what the parts before have left in p.grad stays each rank's own. "
        "A hook that sees the new gradient does not see the sum; register_post_accumulate_grad_hook does.",
        answer(each_part=replicas.last_part_only),
    ),
    Mistake(
        "shared_weight_twice",
        "A weight that two layers share was sent twice, and its sum grew twice. It is one parameter: "
        "module.parameters() lists it once.",
        answer(combine=replicas.a_shared_weight_twice),
    ),
)


def all_of(*groups: tuple[Mistake, ...], without: tuple[str, ...] = ()) -> tuple[Mistake, ...]:
    return tuple(mistake for group in groups for mistake in group if mistake.name not in without)
