"""ddp.buckets: gradients travel in buckets, each as soon as it is full.

    class Buckets:
        def __init__(self, module, mib, static=False): ...
        def no_sync(self): ...
        def finish(self): ...

As ddp.overlap, but what travels are buckets: parameters in the reverse of their order in the module, side by side in
one buffer, of one type and at most `mib` MiB (of 2^20 bytes); a parameter that is larger has a bucket to itself. Where
types interleave, each type has its own open bucket, and a parameter joins the last bucket of its type if it fits. A
bucket begins to travel, in the background, when its last gradient is there and all buckets before it are under way.

static=True promises that each rank uses in every step the parameters that it used in the first. Who used what is then
asked in the first step at most, and later steps begin buckets and nothing else.

After `finish()`, also after a zero_grad that let go of gradients, each `p.grad` holds the mean.

Right means: as in ddp.overlap, with one bucket at least under way when the backward pass reaches the first layer; no
collective holds more than a bucket may, and in every step no more than needed are begun, with at most one small one
besides; with a static graph none besides from the second step on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autograder.exercise import Case, Exercise, Mistake, Values
from autograder.exercises.ddp.averaging import acceptance, call, cases, oracle, segments, trained_bytes
from autograder.exercises.ddp.averaging_mistakes import (
    FLAGS_APART,
    HOOKS,
    LATE,
    SHARED,
    SMALL,
    STATIC_ROUTED,
    all_of,
    flags_apart,
    reports,
    said,
)
from autograder.exercises.ddp.overlap import BEHIND, HELD, IN_ORDER, not_overlapped, without_sync

MIB = 2**20
BYTES = 500  # of a bucket here: the parameters of Plain make three, and the first layer has two for itself
UNUSED_STATIC = "a static graph without a layer"
SMALL_BYTES = 36  # both parameters of a Routed model's expert, and no more
TOO_LARGE, TOO_MANY, ASKS, OTHERS = (
    "bytes in one collective",
    "collectives in one step",
    "beside its buckets in the second step",
    "bytes belong together",
)


def filled(model: str, limit: float) -> list[int]:
    """Bytes of each bucket when the last one of a type takes what still fits, in the reverse of the module's order."""
    last: dict = {}
    buckets: list[int] = []
    for dtype, nbytes in reversed(trained_bytes(model)):
        if dtype not in last or buckets[last[dtype]] + nbytes > limit:
            last[dtype] = len(buckets)
            buckets.append(0)
        buckets[last[dtype]] += nbytes
    return buckets


def needed(model: str, limit: float) -> int:
    """How many buckets there are."""
    return len(filled(model, limit))


def how(got: Sequence[Mapping], args: Values) -> str | None:
    wrong = without_sync(got, args)
    if wrong:
        return wrong
    limit = round(args["options"]["mib"] * MIB)
    sizes = [nbytes for _, nbytes in trained_bytes(args["model"])]
    count, most_together = needed(args["model"], limit), max(limit, 8 * len(sizes))  # who used what is small
    for rank, report in enumerate(got):
        of_steps = zip(segments(report, "backward"), segments(report, "finish"), strict=True)
        for number, (backward, finish) in enumerate(of_steps):
            begun = [*backward, *finish]
            most = max((one.nbytes for one in begun if one.nbytes not in sizes), default=0)  # one alone may be larger
            if most > most_together:
                return f"rank {rank} has {most} {TOO_LARGE}; a bucket of several parameters holds {limit} at most"
            if len(begun) > count + 1:
                return f"rank {rank} began {len(begun)} {TOO_MANY}, for {count} buckets"
            if len(begun) > count and number and args["options"].get("static"):
                return f"rank {rank} began a collective {ASKS} or a later one, although static=True"
            more = 8 * len(sizes)  # of flags, or where each parameter begins at a whole number of 16 bytes
            for together in filled(args["model"], limit):
                if not any(together <= one.nbytes <= together + more for one in begun):
                    return f"{together} {OTHERS}, and rank {rank} sends {[one.nbytes for one in begun]} in one step"
        wrong = not_overlapped(report, rank, least=count - 1, early=1) if args["model"] in IN_ORDER else None
        if wrong:
            return wrong
    return None


def _buckets(args: Values) -> int:
    return needed(args["model"], round(args["options"]["mib"] * MIB))


def _megabytes(e) -> bool:
    """Every step has as many collectives as buckets of 10^6 bytes for a MiB would make, with or without flags."""
    found = []
    for t in e.failing:
        count = needed(t.args["model"], t.args["options"]["mib"] * 10**6) + 1
        for report in reports(t):
            steps = zip(segments(report, "backward"), segments(report, "finish"), strict=True)
            found += [len(backward) + len(finish) in (count - 1, count) for backward, finish in steps]
    return said(TOO_MANY, ASKS)(e) and bool(found) and all(found)


MISTAKES = (
    Mistake(
        "no_static",
        "Buckets takes a third argument, static: by default False.",
        sign=lambda e: e.raised("unexpected keyword argument 'static'"),
    ),
    Mistake(
        "asks_every_step",
        "static=True promises that every step uses what the first one used, and still every step asks who used what: "
        "a collective, and a host that waits for its answer. Ask in the first step and keep the answer.",
        sign=said(ASKS),
    ),
    Mistake(
        "never_asks",
        "With static=True nobody asks who used what, not even in the first step, and a parameter that no rank uses "
        "gets zeros. That the graph does not change says nothing about who is in it: ask once, and keep the answer.",
        sign=lambda e: e.failed_only(UNUSED_STATIC),
    ),
    *HOOKS,
    Mistake(
        "begins_in_finish",
        "Buckets are right, but begin to travel only when the backward pass is over. Begin one when its last gradient "
        "has come.",
        sign=said(LATE),
    ),
    Mistake(
        "waits_for_the_first",
        "All buckets wait for the gradient of the first layer, which comes last: nothing travels while the backward "
        "pass goes on. Fill them in the reverse of the module's order.",
        sign=said(BEHIND),
    ),
    Mistake(
        "waits_in_the_hook",
        "Each bucket is waited for inside the backward pass, which stands still meanwhile. Begin it with "
        "async_op=True, and wait in finish().",
        sign=said(HELD),
    ),
    Mistake(
        "too_large",
        "A bucket holds more than it may: begin a new one where the next parameter would not fit.",
        sign=said(TOO_LARGE),
    ),
    Mistake(
        "other_buckets",
        "Other parameters share a bucket than is asked for. Go through them in the reverse of the module's order: each "
        "joins the last bucket of its type if it fits, and begins a new one if not. In an earlier bucket that has "
        "room it would keep that one from leaving.",
        sign=lambda e: any(OTHERS in t.why for t in e.failing),
    ),
    Mistake("flags_one_by_one", FLAGS_APART, sign=flags_apart(TOO_MANY, _buckets)),
    Mistake(
        "megabytes",
        "Buckets are closed a little too early: `mib` counts 2^20 bytes, and you took 10^6.",
        sign=_megabytes,
    ),
    Mistake(
        "one_by_one",
        "Far more collectives than buckets: parameters that fit together travel together.",
        sign=said(TOO_MANY),
    ),
    *all_of(SHARED, without=("weights_averaged", "changed_on_its_way", "start_without_frozen")),
)

STATIC = tuple(
    Case(name, lambda d, model=model, size=size: call(d, model, steps=3, mib=size / MIB, static=True))
    for name, model, size in (
        ("a static graph", "Plain", BYTES),
        (UNUSED_STATIC, "Unused", BYTES),
        (STATIC_ROUTED, "Routed", SMALL_BYTES),
    )
)

BUCKETS = Exercise(
    name="ddp.buckets",
    entry="Buckets",
    points=6,
    about="buckets that leave as soon as they are full, in one order on all ranks",
    point=("two ranks", "three ranks", "small buckets, used on one rank only"),
    kind="distributed",
    cases=(*cases(mib=BYTES / MIB), Case(SMALL, lambda d: call(d, "Routed", mib=SMALL_BYTES / MIB)), *STATIC),
    oracle=oracle,
    mistakes=MISTAKES,
    returns=("ranks",),
    accept=acceptance(how),
    probe="autograder.inside.probes.replicas:averaged",
    launches=False,
)
