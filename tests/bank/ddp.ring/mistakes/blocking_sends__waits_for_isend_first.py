"""isend, but its wait comes before the receive.

NCCL runs what two ranks send each other in one queue, so it wants a batch.
"""

import torch
import torch.distributed as dist

KILLED_BY = "two ranks"
NCCL = False


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    parts = list(buffer.tensor_split(ranks))
    for step in range(ranks - 1):
        mine, theirs = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
        came = torch.empty_like(theirs)
        dist.isend(mine, right).wait()
        dist.irecv(came, left).wait()
        theirs += came
    for step in range(ranks - 1):
        mine, theirs = parts[(rank + 1 - step) % ranks], parts[(rank - step) % ranks]
        dist.isend(mine, right).wait()
        dist.irecv(theirs, left).wait()
