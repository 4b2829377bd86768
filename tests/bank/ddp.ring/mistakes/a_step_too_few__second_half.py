"""N - 2 steps in which finished parts go round."""

import torch
import torch.distributed as dist

KILLED_BY = "four ranks, not divisible"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    size = -(-len(buffer) // ranks)
    parts = [buffer[i * size : (i + 1) * size] for i in range(ranks)]
    for step in range(ranks - 1):
        mine, theirs = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
        came = torch.empty_like(theirs)
        operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, came, left)]
        works = dist.batch_isend_irecv(operations)
        for work in works:
            work.wait()
        theirs += came
    for step in range(ranks - 2):
        mine, theirs = parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks]
        operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
        works = dist.batch_isend_irecv(operations)
        for work in works:
            work.wait()
