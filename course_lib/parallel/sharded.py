"""Rung 5: as buckets, but each rank holds the optimizer's state of its own part only (ZeRO, stage 1).

An all-reduce is a reduce-scatter and an all-gather. Here the optimizer's step comes between the two: each rank gets
the mean of its part of every bucket, updates that part of the weights, and the updated parts are gathered. As many
bytes travel as before, and each rank holds 1/N of the state and does 1/N of the optimizer's work.

    model = Sharded(module, lambda pieces: torch.optim.AdamW(pieces.values(), lr=1e-3))
    model(shard).mean().backward()
    model.finish()
    model.step()
    model.zero_grad()

For optimizers that treat every number alike (SGD, Adam and their kin): a piece may be a part of a matrix.
"""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from course_lib.distributed.collectives import all_gather, reduce_scatter
from course_lib.parallel.buckets import Buckets

ALIGN = 32  # numbers: parameters and parts begin where whole cache lines do


class Bucket:
    """Weights side by side in one buffer that is cut into equal parts: the r-th is rank r's."""

    def __init__(self, params: list[nn.Parameter], names: Mapping[int, str], rank: int, ranks: int):
        self.params, self.missing = params, {id(p) for p in params}
        ends = [0]
        for p in params:
            ends.append(_up(ends[-1] + p.numel()))
        part = _up(-(-ends[-1] // ranks))
        self.weights = torch.zeros(part * ranks, dtype=params[0].dtype, device=params[0].device)
        self.mine = self.weights[rank * part : (rank + 1) * part]
        self.whole = len(params) == 1 and params[0].numel() == len(self.weights)  # sent as it is, without a copy
        self.grads = None if self.whole else torch.zeros_like(self.weights)
        self.places: dict[int, slice] = {}  # in the buffer
        self.pieces: dict[str, nn.Parameter] = {}  # what the optimizer is given: of each parameter what lies in my part
        self.cuts: dict[int, tuple[str, slice]] = {}  # a piece's name and its place in my part
        for p, begin in zip(params, ends):
            self.places[id(p)] = place = slice(begin, begin + p.numel())
            p.data = self.weights[place].view(p.shape).copy_(p.data)
            cut = slice(max(begin - rank * part, 0), min(place.stop - rank * part, part))
            if cut.start < cut.stop:
                self.cuts[id(p)] = names[id(p)], cut
                self.pieces[names[id(p)]] = nn.Parameter(self.mine[cut])
        self.held: torch.Tensor | None = None  # the mean gradient of my part, until zero_grad()

    def put(self, p: nn.Parameter) -> None:
        self.missing.discard(id(p))
        if self.whole:
            self.grads = p.grad.view(-1)
        else:
            self.grads[self.places[id(p)]].view(p.shape).copy_(p.grad)
        p.grad = None  # from here on only the mean of my part counts

    def take(self, unused: set[int]) -> None:
        """The mean has come. Without zero_grad() in between means add up, as gradients do."""
        self.held = self.incoming if self.held is None else self.held.add_(self.incoming)
        for key, (name, cut) in self.cuts.items():
            if key not in unused:
                self.pieces[name].grad = self.held[cut]
        if self.whole:
            self.grads = None
        self.missing = {id(p) for p in self.params}


class Sharded(Buckets):
    def __init__(
        self, module: nn.Module, optimizer: Callable[[dict[str, nn.Parameter]], Optimizer], mib: float = 25.0, **options
    ):
        super().__init__(module, mib, **options)
        pieces = {name: piece for bucket in self.buckets for name, piece in bucket.pieces.items()}
        # where there are fewer numbers than ranks one may own nothing, and an optimizer refuses that
        self.optimizer = optimizer(pieces or {"nothing": nn.Parameter(torch.empty(0))})

    def bucket(self, params: list[nn.Parameter]) -> Bucket:
        names = {id(p): name for name, p in self.module.named_parameters()}
        return Bucket(params, names, dist.get_rank(self.group), self.ranks)

    def begin(self, bucket: Bucket) -> None:
        bucket.incoming = torch.empty_like(bucket.mine)
        op = dist.ReduceOp.AVG if self.divides else dist.ReduceOp.SUM
        if not self.divides:
            bucket.grads.div_(self.ranks)
        self.begun.append(reduce_scatter(bucket.incoming, bucket.grads, op, self.group))

    def clip(self, limit: float) -> torch.Tensor:
        """What clip_grad_norm_ is elsewhere: each rank has a part of the gradients, so squares add up over ranks."""
        total = torch.zeros((), device=self.trained[0].device)
        held = [bucket.held for bucket in self.buckets if bucket.held is not None]
        for one in held:
            total += one.float().square().sum()
        dist.all_reduce(total, group=self.group)
        norm = total.sqrt()
        for one in held:
            one.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
        return norm

    def step(self) -> None:
        """Update my parts. While the parts of one bucket are gathered, the next is updated."""
        grads = {piece: piece.grad for bucket in self.buckets for piece in bucket.pieces.values()}
        for piece in grads:
            piece.grad = None  # an optimizer passes over what has none
        gathers = []
        for bucket in self.buckets:
            for piece in bucket.pieces.values():
                piece.grad = grads[piece]
            self.optimizer.step()
            for piece in bucket.pieces.values():
                piece.grad = None
            gathers.append(all_gather(bucket.weights, bucket.mine, self.group))
        for gather in gathers:
            gather.wait()
        for piece, grad in grads.items():
            piece.grad = grad

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for bucket in self.buckets:
            bucket.held = None
            for piece in bucket.pieces.values():
                piece.grad = None


def _up(numbers: int) -> int:
    return -(-numbers // ALIGN) * ALIGN
