"""ddp.naive: copies of a model that stay equal, because gradients are averaged after the backward pass.

    class Naive:
        def __init__(self, module): ...
        def finish(self): ...

Each rank makes `Naive(module)`, module being its copy of the model. From then on all copies are equal to rank 0's:
parameters, also those that are not trained, and buffers. Then each rank runs the forward and the backward pass of
`module` on its shard, once or several times, and calls `finish()`. After that every gradient is the mean over all ranks
of what the backward passes left, a rank that did not use a parameter counting with zero; a parameter that no rank used
has no gradient. Then all optimizers take a step.

Promised: shards are of equal size, the same parameters require gradients on all ranks. Not promised: that all have one
type, that each lies row by row, that a rank uses them all.

Right means: gradients and weights as in one process that trains on the whole batch, and weights bit for bit the same
on all ranks. What is begun in the background is waited for. What a collective is given lies row by row: NCCL asks for
it, and so the check does, also with gloo. And all ranks together send at most 1.3 times what all-reduces send.
"""

from __future__ import annotations

from autograder.exercise import Exercise
from autograder.exercises.ddp.averaging import acceptance, cases, oracle
from autograder.exercises.ddp.averaging_mistakes import SHARED, all_of

NAIVE = Exercise(
    name="ddp.naive",
    entry="Naive",
    points=4,
    about="the same mean gradient on every rank, whoever used a parameter",
    point=("two ranks", "three ranks", "used on one rank only"),
    kind="distributed",
    cases=cases(),
    oracle=oracle,
    mistakes=all_of(SHARED, without=("types_together", "changed_on_its_way")),
    returns=("ranks",),
    accept=acceptance(lambda got, args: None),
    probe="autograder.inside.probes.replicas:averaged",
    launches=False,
)
