"""The names are imported one by one, and the ring runs the other way.

NCCL runs what two ranks send each other in one queue, so it wants a batch.
"""

import torch
from torch.distributed import get_rank, get_world_size, irecv, isend

NCCL = False


def ring_all_reduce(buffer):
    rank, ranks = get_rank(), get_world_size()
    to, source = (rank - 1) % ranks, (rank + 1) % ranks
    parts = torch.tensor_split(buffer, ranks)
    for step in range(2 * ranks - 2):
        adding = step < ranks - 1
        theirs = parts[(rank + step + 1) % ranks]
        came = torch.empty_like(theirs)
        receive = irecv(came, source)
        send = isend(parts[(rank + step) % ranks], to)
        send.wait()
        receive.wait()
        theirs.copy_(theirs + came if adding else came)
