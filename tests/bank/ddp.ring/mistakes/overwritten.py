"""One memory for everything: what is being sent is overwritten by what comes.

NCCL runs what two ranks send each other in one queue, so it wants a batch.
"""

import torch
import torch.distributed as dist

KILLED_BY = "three ranks"
NCCL = False


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    parts = list(buffer.tensor_split(ranks))
    sends = []
    for step in range(2 * (ranks - 1)):
        mine, theirs = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
        came = torch.empty_like(theirs)
        sends.append(dist.isend(mine, right))
        dist.irecv(came, left).wait()
        if step < ranks - 1:
            theirs += came
        else:
            theirs.copy_(came)
    for send in sends:
        send.wait()
