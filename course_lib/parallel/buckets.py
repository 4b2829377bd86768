"""Rung 4: gradients travel in buckets of several MiB, each as soon as it is full.

This needs fewer calls than one for each parameter, and starts earlier than one call for everything. In a bucket
gradients lie side by side. They are copied into it once and never back: `p.grad` becomes a view of the bucket. A
parameter that has a bucket to itself is not copied at all.
"""

import torch
from torch import nn

from course_lib.parallel.replica import Replica

MIB = 2**20


class Bucket:
    def __init__(self, params: list[nn.Parameter]):
        self.params = params
        self.missing = {id(p) for p in params}  # whose gradients have not come in this step
        self.buffer = None
        if len(params) > 1:
            self.buffer = torch.zeros(sum(p.numel() for p in params), dtype=params[0].dtype, device=params[0].device)
            parts = self.buffer.split([p.numel() for p in params])
            self.views = {id(p): part.view(p.shape) for p, part in zip(params, parts, strict=True)}

    def put(self, p: nn.Parameter) -> None:
        self.missing.discard(id(p))
        if self.buffer is None:
            return
        view = self.views[id(p)]
        # zero_grad(set_to_none=True) takes the view away, and backward then makes a tensor of its own
        if p.grad.data_ptr() != view.data_ptr():
            p.grad = view.copy_(p.grad)

    def take(self, unused: set[int]) -> None:
        """Called when the means have arrived."""
        for p in self.params:
            if id(p) in unused:
                p.grad = None
        self.missing = {id(p) for p in self.params}

    @property
    def tensor(self) -> torch.Tensor:
        return self.params[0].grad if self.buffer is None else self.buffer


def fill(params: list[nn.Parameter], mib: float) -> list[list[nn.Parameter]]:
    """Parameters in buckets of at most `mib`, each of one type and device, in the order in which they are complete."""
    open_: dict = {}
    full = []
    for number, p in enumerate(params):
        kind = p.dtype, p.device
        held = open_.setdefault(kind, [])
        if held and sum(q.nbytes for _, q in held) + p.nbytes > mib * MIB:
            full.append(held)
            held = open_[kind] = []
        held.append((number, p))
    full += open_.values()
    return [[p for _, p in held] for held in sorted(full, key=lambda held: held[-1][0])]


class Buckets(Replica):
    def __init__(self, module: nn.Module, mib: float = 25.0, **options):
        super().__init__(module, **options)
        self.buckets = [self.bucket(params) for params in fill(self.trained[::-1], mib)]
        for bucket in self.buckets:
            for p in bucket.params:
                p.register_post_accumulate_grad_hook(lambda p, bucket=bucket: self.arrives(p, bucket))

    def bucket(self, params: list[nn.Parameter]) -> Bucket:
        return Bucket(params)

    def arrives(self, p: nn.Parameter, bucket: Bucket) -> None:
        if not self.syncing:
            return
        if id(p) not in bucket.missing:
            raise RuntimeError("a second backward pass before finish(): run all but the last inside no_sync()")
        bucket.put(p)
        # in one order on all ranks: a full bucket waits for those before it
        while len(self.begun) < len(self.buckets) and not self.buckets[len(self.begun)].missing:
            self.begin(self.buckets[len(self.begun)])

    def begin(self, bucket: Bucket) -> None:
        self.begun.append(self.mean(bucket.tensor))

    def finish(self) -> None:
        rest = [(p, bucket) for bucket in self.buckets for p in bucket.params if id(p) in bucket.missing]
        lacking = self.lacking(p for p, _ in rest)
        for p, bucket in rest:
            bucket.put(p)
        for bucket in self.buckets[len(self.begun) :]:
            self.begin(bucket)
        unused = self.unused(lacking)
        for bucket, work in zip(self.buckets, self.begun, strict=True):
            work.wait()
            bucket.take({id(p) for p in unused})
        self.begun.clear()
