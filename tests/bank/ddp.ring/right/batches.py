"""batch_isend_irecv, parts of length // N whose last takes the rest."""

import torch
import torch.distributed as dist


def exchange(mine, theirs):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sends = dist.P2POp(dist.isend, mine, (rank + 1) % ranks)
    receives = dist.P2POp(dist.irecv, theirs, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    size = len(buffer) // ranks
    ends = [size * i for i in range(ranks)] + [len(buffer)]
    parts = [buffer[a:b] for a, b in zip(ends, ends[1:])]
    for step in range(ranks - 1):
        theirs = parts[(rank - step - 1) % ranks]
        came = torch.empty_like(theirs)
        exchange(parts[(rank - step) % ranks], came)
        theirs.add_(came)
    for step in range(ranks - 1):
        theirs = parts[(rank - step) % ranks]
        came = torch.empty_like(theirs)
        exchange(parts[(rank - step + 1) % ranks], came)
        theirs.copy_(came)
