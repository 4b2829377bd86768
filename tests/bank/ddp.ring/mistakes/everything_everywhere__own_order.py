"""Whole buffers go round, and each rank adds them as they come."""

import torch
import torch.distributed as dist

KILLED_BY = "a megabyte"


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
    for step in range(1, ranks):
        buffer += found[(rank - step) % ranks]
