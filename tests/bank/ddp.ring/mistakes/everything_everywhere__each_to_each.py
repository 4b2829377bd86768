"""Each rank sends its buffer to every other."""

import torch
import torch.distributed as dist

KILLED_BY = "four ranks"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mine, found, operations = buffer.clone(), [], []
    for other in range(ranks):
        found.append(mine if other == rank else torch.empty_like(buffer))
        if other != rank:
            operations += [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, found[other], other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    buffer.copy_(torch.stack(found).sum(0))
