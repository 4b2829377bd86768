"""What people get wrong when they average gradients: the same copies with one thing done otherwise, or how it ended."""

from __future__ import annotations

from collections.abc import Callable

import torch

from autograder.exercise import Mistake, Values
from autograder.exercises.ddp import replicas
from autograder.exercises.ddp.averaging import ONE_RANK, steps_of, values_off
from course_lib.probes.network import CHANGED, NOT_WAITED


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
        "skips_unused",
        "A rank whose shard did not use a parameter has no gradient for it, and leaves its collective out: the other "
        "rank waits for ever, or takes the next tensor for this one. Every rank starts the same collectives in the "
        "same order; who has no gradient takes part with zeros.",
        sign=lambda e: e.failed_only(ONE_RANK),
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
HOOKS = (
    Mistake(
        "communicates_without_sync",
        "Where gradients are only to come together, collectives are begun. no_sync() has to keep the hooks from it.",
        sign=said("without sync", "has no no_sync()"),
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
