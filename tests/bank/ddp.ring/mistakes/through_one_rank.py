"""Rank 0 collects, adds and sends to all."""

import torch
import torch.distributed as dist

KILLED_BY = "three ranks"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        came = torch.empty_like(buffer)
        for other in range(1, ranks):
            dist.recv(came, other)
            buffer += came
        for other in range(1, ranks):
            dist.send(buffer, other)
    else:
        dist.send(buffer, 0)
        dist.recv(buffer, 0)
