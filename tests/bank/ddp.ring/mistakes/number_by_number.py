"""A message for each number."""

import torch
import torch.distributed as dist

KILLED_BY = "two ranks"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    parts = list(buffer.tensor_split(ranks))
    for step in range(ranks - 1):
        mine, theirs = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
        came = torch.empty_like(theirs)
        operations = [dist.P2POp(dist.isend, one, right) for one in mine.split(1)]
        operations += [dist.P2POp(dist.irecv, one, left) for one in came.split(1)]
        works = dist.batch_isend_irecv(operations)
        for work in works:
            work.wait()
        theirs += came
    for step in range(ranks - 1):
        mine, theirs = parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks]
        operations = [dist.P2POp(dist.isend, one, right) for one in mine.split(1)]
        operations += [dist.P2POp(dist.irecv, one, left) for one in theirs.split(1)]
        works = dist.batch_isend_irecv(operations)
        for work in works:
            work.wait()
