"""Whole buffers go round, and each rank adds them in the order of the ranks."""

import torch
import torch.distributed as dist

KILLED_BY = "four ranks"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    found = {rank: buffer.clone()}
    for step in range(ranks - 1):
        came = torch.empty_like(buffer)
        operations = [dist.P2POp(dist.isend, found[(rank - step) % ranks], right), dist.P2POp(dist.irecv, came, left)]
        works = dist.batch_isend_irecv(operations)
        for work in works:
            work.wait()
        found[(rank - step - 1) % ranks] = came
    total = found[0]
    for other in range(1, ranks):
        total = total + found[other]
    buffer.copy_(total)
