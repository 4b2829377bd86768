"""Each rank sends its buffer to every other."""

import torch
import torch.distributed as dist

KILLED_BY = "four ranks"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, found, works = buffer.clone(), [], []
    for other in range(ranks):
        found.append(mine if other == rank else torch.empty_like(buffer))
        if other != rank:
            works += [dist.isend(mine, other), dist.irecv(found[other], other)]
    for work in works:
        work.wait()
    buffer.copy_(torch.stack(found).sum(0))
