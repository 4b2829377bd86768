"""One copy of a model on each rank: what every rung of the ladder shares.

    ddp = Buckets(model)           # or Naive, Flat, Overlap
    ddp(shard).mean().backward()   # each rank has a shard of the batch
    ddp.finish()                   # each gradient is now the mean over all ranks
    optimizer.step()               # the same step everywhere: the copies stay equal

With shards of equal size and a loss that is a mean, this is training on the whole batch in one process.

Who used which parameter costs a small collective in every step, and the host of a rank that lacks one waits for its
answer. static=True promises that every step uses what the first one used on this rank, as torch's static_graph does:
then only the first step asks. group: the ranks that average, all by default, as torch's process_group.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn


class Replica(nn.Module):
    def __init__(self, module: nn.Module, static: bool = False, group: dist.ProcessGroup | None = None):
        super().__init__()
        self.module, self.static, self.group, self.ranks = module, static, group, dist.get_world_size(group)
        self.first: tuple[set[int], list[nn.Parameter]] | None = None  # ids lacking here, and what nobody used
        # a weight that two layers share is one parameter, and is listed once; a frozen one gets no gradient
        self.trained = [p for p in module.parameters() if p.requires_grad]
        self.syncing = True
        self.begun: list[dist.Work] = []  # collectives that are on their way
        self.divides = dist.get_backend(group) == "nccl"  # NCCL can take the mean on the way; gloo only sums everywhere
        # ranks may have drawn different first weights: all take those of rank 0, frozen layers included
        self.take_from_rank_0(itertools.chain(module.parameters(), module.buffers()))

    def forward(self, *args, **options):
        if self.begun:
            raise RuntimeError("finish() was not called after the last backward pass")
        if self.training and self.syncing and torch.is_grad_enabled():
            # the statistics of a BatchNorm differ between shards: all ranks take those of rank 0, as in DDP
            self.take_from_rank_0(self.module.buffers())
        return self.module(*args, **options)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; the next one outside averages what has come together."""
        self.syncing, before = False, self.syncing
        try:
            yield
        finally:
            self.syncing = before

    def finish(self) -> None:
        """To be called after the backward pass, by every rank, before gradients are looked at, clipped or used."""
        raise NotImplementedError

    @torch.no_grad()
    def take_from_rank_0(self, tensors: Iterable[torch.Tensor]) -> None:
        for tensor in tensors:
            dense = tensor.contiguous()  # a weight may be a view with gaps
            dist.broadcast(dense, group=self.group, group_src=0)
            if dense is not tensor:
                tensor.copy_(dense)

    def mean(self, tensor: torch.Tensor) -> dist.Work:
        """Begin to replace a tensor by its mean over all ranks.

        A collective reads memory and ignores strides. Gradients have the layout of their parameters, the same on all
        ranks and without gaps. NCCL refuses a tensor that is not contiguous, so it gets the memory as one flat view.
        """
        if not tensor.is_contiguous():
            tensor = tensor.as_strided((tensor.numel(),), (1,))
        if self.divides:
            return dist.all_reduce(tensor, dist.ReduceOp.AVG, group=self.group, async_op=True)
        tensor.div_(self.ranks)  # before the sum, which could leave the range of fp16
        return dist.all_reduce(tensor, group=self.group, async_op=True)

    def lacking(self, params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
        """The parameters that this rank's shard did not use. They get zeros, because other ranks may have used them.

        All ranks must start the same collectives in the same order: a rank that leaves one out makes the others wait
        for ever, or take one tensor for another.
        """
        found = [p for p in params if p.grad is None]
        for p in found:
            p.grad = torch.zeros_like(p)
        return found

    def unused(self, lacking: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        """The lacking parameters that no rank used. They get no gradient, so that an optimizer leaves them unchanged.

        One small collective in every step, or in the first where the graph is static. Only a rank that lacks something
        has to read the answer, for which the host waits; the others' hosts go on.
        """
        if not self.trained:
            return []
        if not self.static:
            return self._unused(lacking)
        ids = {id(p) for p in lacking}
        if self.first is None:
            self.first = ids, self._unused(lacking)
        if ids != self.first[0]:
            raise RuntimeError("static=True, but this step used other parameters than the first: leave it out")
        return self.first[1]

    def _unused(self, lacking: Sequence[nn.Parameter]) -> list[nn.Parameter]:
        used = torch.ones(len(self.trained), dtype=torch.int32, device=self.trained[0].device)
        if lacking:
            absent = {id(p) for p in lacking}
            used[[number for number, p in enumerate(self.trained) if id(p) in absent]] = 0
        # behind the gradients, on their stream
        dist.all_reduce(used, dist.ReduceOp.MAX, group=self.group, async_op=True).wait()
        if not lacking:
            return []
        return [p for p, anywhere in zip(self.trained, used.tolist(), strict=True) if not anywhere]
